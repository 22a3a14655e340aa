"""A user that is deleted while its connection is open: nobody logs in under that name, and the session is the last."""

from collections.abc import Iterator

import pytest
from tests.interop.process import wait_until
from tests.support.logged_in import LoggedIn
from tests.unit.node.test_authorized_nodes import admin_of, metadata, settings

from ottla.client.admin.types import UserScramCredentialDeletion, UserScramCredentialUpsertion
from ottla.model.errors import ErrorCode
from ottla.security.sasl.scram import ScramSaslClient
from ottla.security.scram_credentials import MECHANISMS
from ottla.testing import Broker
from ottla.wire.messages.security.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

MECHANISM = "SCRAM-SHA-256"
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
    more = {"sasl.enabled.mechanisms": f"PLAIN,{MECHANISM}", "connections.max.reauth.ms": SESSION_MS}
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
