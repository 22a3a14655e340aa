"""Users that are deleted while their connections are open, and passwords that are changed while somebody writes."""

from collections.abc import Iterator
from threading import Event, Thread

import pytest
from tests.interop.process import wait_until
from tests.support.logged_in import LoggedIn
from tests.unit.node.test_authorized_nodes import admin_of, login, metadata, settings

from ottla.client.admin.types import (
    NewTopic,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from ottla.client.blocking import Admin, Consumer, Producer
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.security.sasl.scram import ScramSaslClient
from ottla.security.scram_credentials import MECHANISMS
from ottla.testing import Broker
from ottla.wire.messages.security.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

MECHANISM = "SCRAM-SHA-256"
OTHER = "SCRAM-SHA-512"
SESSION_MS = 3_000
PATIENCE_S = 60.0
NO_TOPIC = ErrorCode.TOPIC_AUTHORIZATION_FAILED


class ByScram(LoggedIn):
    """A connection of somebody who has logged in by SCRAM, and may do so again."""

    def log_in(self, user: str, password: str) -> int:
        """The error code of its last answer."""
        assert self.ask(SaslHandshakeRequest(mechanism=MECHANISM), 1).error_code == 0
        exchange = ScramSaslClient(MECHANISMS[MECHANISM], user, password)
        challenge: bytes | None = None
        while not exchange.complete:
            answer = self.ask(SaslAuthenticateRequest(auth_bytes=exchange.evaluate(challenge) or b""), 2)
            if answer.error_code:
                return int(answer.error_code)
            challenge = bytes(answer.auth_bytes)
            if challenge.startswith(b"v="):
                exchange.evaluate(challenge)
        return 0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    more = {
        "sasl.enabled.mechanisms": f"PLAIN,{MECHANISM},{OTHER}",
        "connections.max.reauth.ms": SESSION_MS,
        "super.users": "User:admin;User:node;User:writer",
    }
    with Broker({**settings(), **more}, data_dir=tmp_path_factory.mktemp("ended")) as made:
        yield made


def test_a_user_that_is_deleted_has_its_session_and_no_other(broker: Broker) -> None:
    with admin_of(broker.bootstrap_servers, "admin") as admin:
        made = UserScramCredentialUpsertion("bob", "bob-secret", MECHANISM)
        assert admin.alter_user_scram_credentials([made]) == {"bob": None}
        with (
            ByScram(broker.bootstrap_servers, "bob", "bob-secret") as bob,
            ByScram(broker.bootstrap_servers, "bob", "bob-secret") as patient,
        ):
            assert metadata(bob, "t") == NO_TOPIC, "known, and allowed nothing"
            gone = UserScramCredentialDeletion("bob", MECHANISM)
            assert admin.alter_user_scram_credentials([gone]) == {"bob": None}
            assert metadata(bob, "t") == NO_TOPIC, "until the session ends"
            with pytest.raises(AssertionError):
                ByScram(broker.bootstrap_servers, "bob", "bob-secret")

            def ends(connection: ByScram) -> bool:
                try:
                    return metadata(connection, "t") != NO_TOPIC
                except (OSError, EOFError, AssertionError):
                    return True

            wait_until(lambda: ends(bob), PATIENCE_S, "the session's end")
            # Nor does it go on for who asks for another in time, or after it.
            with pytest.raises((OSError, EOFError, AssertionError)):
                assert patient.log_in("bob", "bob-secret") == 0


# ---- passwords --------------------------------------------------------------------------------------------------


class Writer:
    """Writes one number after the other, and logs in anew when it is told to."""

    def __init__(self, servers: str, name: str, login: dict[str, str]) -> None:
        self._servers = servers
        self.name = name
        self.login = login
        self.acknowledged: list[bytes] = []
        self.error: Exception | None = None
        self.is_over = Event()
        self._thread = Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self.is_over.is_set():
                login = self.login
                with Producer(bootstrap_servers=self._servers, acks="all", **login) as producer:
                    while self.login is login and not self.is_over.is_set():
                        value = f"{self.name}-{len(self.acknowledged)}".encode()
                        producer.send("load", value).result(PATIENCE_S * 1000)
                        self.acknowledged.append(value)
        except Exception as error:  # noqa: BLE001 - looked at by the test
            self.error = error

    def wait_for_more(self) -> None:
        least = len(self.acknowledged) + 20
        wait_until(lambda: len(self.acknowledged) >= least or self.error, PATIENCE_S, "more to be written")
        assert self.error is None

    def end(self) -> None:
        self.is_over.set()
        self._thread.join(PATIENCE_S)


def by_scram(mechanism: str, password: str) -> dict[str, str]:
    return {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_username": "writer",
        "sasl_password": password,
    }


def test_passwords_are_changed_under_load_and_nothing_is_lost(broker: Broker) -> None:
    """As an operator does it: the next password under the other mechanism, the clients one by one, the old one goes."""
    servers = broker.bootstrap_servers
    with admin_of(servers, "admin") as admin:
        admin.create_topics([NewTopic("load", 1)])

        def alter(change: UserScramCredentialUpsertion | UserScramCredentialDeletion) -> None:
            assert admin.alter_user_scram_credentials([change]) == {"writer": None}

        old = by_scram(MECHANISM, "password-0")
        alter(UserScramCredentialUpsertion("writer", "password-0", MECHANISM))
        writers = [Writer(servers, f"writer-{number}", old) for number in range(3)]
        try:
            for number in range(1, 4):
                mechanism = (MECHANISM, OTHER)[number % 2]
                new = by_scram(mechanism, f"password-{number}")
                alter(UserScramCredentialUpsertion("writer", f"password-{number}", mechanism))
                for writer in writers:
                    writer.wait_for_more()
                    writer.login = new
                    writer.wait_for_more()
                alter(UserScramCredentialDeletion("writer", old["sasl_mechanism"]))
                with pytest.raises(KafkaError), Admin(bootstrap_servers=servers, **old) as late:
                    late.list_topics()
                old = new
                for writer in writers:
                    writer.wait_for_more()
        finally:
            for writer in writers:
                writer.end()
        assert [writer.error for writer in writers] == [None] * 3
    written = [value for writer in writers for value in writer.acknowledged]
    found: list[bytes | None] = []
    with Consumer(bootstrap_servers=servers, auto_offset_reset="earliest", **login("admin")) as consumer:
        consumer.assign([TopicPartition("load", 0)])
        while len(found) < len(written):
            polled = consumer.poll(PATIENCE_S * 1000)
            assert polled, f"only {len(found)} of {len(written)}"
            found += [record.value for records in polled.values() for record in records]
    assert sorted(map(bytes, filter(None, found))) == sorted(written)
