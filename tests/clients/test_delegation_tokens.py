"""Delegation tokens as logins (KIP-48): from `ottla token create` to a client that has nothing else."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.interop.ottla_node import OTTLA, OttlaNode
from tests.interop.process import HOST, free_ports, wait_until

from ottla.client import Admin, Consumer, Producer
from ottla.client.admin.types import DelegationToken
from ottla.client.inline import InlineClient
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition

pytestmark = pytest.mark.xdist_group("security")

PASSWORD = "scram-secret"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
PATIENCE_S = 60.0


class Secured(NamedTuple):
    node: OttlaNode
    address: str

    def settings(
        self, user: str = "admin", password: str = PASSWORD, *, by_token: bool = False
    ) -> dict[str, Any]:
        token = ' tokenauth="true"' if by_token else ""
        return {
            "bootstrap.servers": self.address,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.jaas.config": f'{SCRAM} required username="{user}" password="{password}"{token};',
            "bootstrap.timeout.ms": 5_000,
        }

    def by_token(self, token: DelegationToken) -> dict[str, Any]:
        import base64

        return self.settings(token.token_id, base64.b64encode(token.hmac).decode(), by_token=True)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    where = tmp_path_factory.mktemp("tokens")
    (port,) = free_ports(1)
    node = OttlaNode(
        where / "data",
        {
            "listeners": f"PLAINTEXT://{HOST}:0,CONTROLLER://{HOST}:0,IN://{HOST}:{port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,IN:SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
            "delegation.token.secret.key": "of-all-nodes",
            "delegation.token.expiry.check.interval.ms": 100,
            "connection.failed.authentication.delay.ms": 10,
        },
    )
    credentials = [
        word
        for user in ("admin", "alice")
        for word in ("--add-scram", f"SCRAM-SHA-256=[name={user},password={PASSWORD}]")
    ]
    command = [str(OTTLA), "storage", "format", "--data-dir", str(node.data_dir), *credentials]
    subprocess.run(command, check=True, capture_output=True, env=node.environment())
    with node:
        yield Secured(node, f"{HOST}:{port}")
    assert "Traceback" not in node.log_text()
    assert "of-all-nodes" not in node.log_text()


def created(secured: Secured, **settings: Any) -> DelegationToken:
    with Admin(secured.settings()) as admin:
        return admin.create_delegation_token(**settings)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_token_is_all_that_a_client_needs(secured: Secured, mechanism: str) -> None:
    settings = {**secured.by_token(created(secured)), "sasl.mechanism": mechanism}
    topic = f"by-{mechanism.lower()}"
    with Producer(settings) as producer:
        producer.send(topic, b"v").result(PATIENCE_S * 1000)
    with Consumer({**settings, "auto.offset.reset": "earliest"}) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        (records,) = consumer.poll(PATIENCE_S * 1000).values()
    assert [record.value for record in records] == [b"v"]


def test_who_came_by_a_token_gets_no_other(secured: Secured) -> None:
    token = created(secured, renewers=["User:alice"])
    with Admin(secured.by_token(token)) as admin:
        for ask in (
            admin.create_delegation_token,
            admin.describe_delegation_tokens,
            lambda: admin.renew_delegation_token(token.hmac),
            lambda: admin.expire_delegation_token(token.hmac),
        ):
            with pytest.raises(KafkaError) as refused:
                ask()
            assert refused.value.code is ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
        assert admin.list_topics() is not None


def refused(settings: dict[str, Any]) -> str:
    with pytest.raises(KafkaError) as raised, Admin(settings):
        pass
    return str(raised.value)


def test_wrong_and_lost_tokens_are_refused_in_the_same_words(secured: Secured) -> None:
    token = created(secured)
    wrong = secured.settings(token.token_id, "guess", by_token=True)
    nobody = secured.settings("no-such-token", "guess", by_token=True)
    not_by_token = {**secured.by_token(token)}
    not_by_token["sasl.jaas.config"] = not_by_token["sasl.jaas.config"].replace(' tokenauth="true"', "")
    words = "due to invalid credentials with SASL mechanism SCRAM-SHA-256"
    for settings in (wrong, nobody, not_by_token):
        assert words in refused(settings)
    with Admin(secured.settings()) as admin:
        admin.expire_delegation_token(token.hmac)
    assert words in refused(secured.by_token(token))
    assert "guess" not in secured.node.log_text()


def test_a_session_ends_with_its_token_and_the_token_is_swept(secured: Secured) -> None:
    token = created(secured, max_lifetime_ms=3_000)
    with Admin({**secured.by_token(token), "default.api.timeout.ms": 1_000}) as admin:
        assert admin.list_topics() is not None

        def is_over() -> bool:
            try:
                admin.list_topics()
            except KafkaError:
                return True
            return False

        wait_until(is_over, PATIENCE_S, "the session's end")
    with Admin(secured.settings()) as admin:
        wait_until(
            lambda: token.token_id not in {each.token_id for each in admin.describe_delegation_tokens()},
            PATIENCE_S,
            "the sweep",
        )


def test_by_the_command_line(secured: Secured, tmp_path: Path) -> None:
    def ottla(*words: str, settings: dict[str, Any]) -> subprocess.CompletedProcess[str]:
        file = tmp_path / "client.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        command = [str(OTTLA), *words, "--command-config", str(file)]
        return subprocess.run(
            command, capture_output=True, text=True, env=secured.node.environment(), check=False
        )

    made = ottla("token", "create", "--max-lifetime", "1h", "-o", "json", settings=secured.settings())
    assert made.returncode == 0, made.stderr
    token = json.loads(made.stdout)
    by_token = secured.settings(token["token_id"], token["hmac"], by_token=True)
    listed = ottla("topic", "list", settings=by_token)
    assert listed.returncode == 0, listed.stderr
    again = ottla("token", "create", settings=by_token)
    assert again.returncode != 0
    assert "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED" in again.stderr
    for words in (("renew", token["token_id"]), ("list",), ("expire", token["token_id"])):
        done = ottla("token", *words, settings=secured.settings())
        assert done.returncode == 0, done.stderr
        assert token["hmac"] not in done.stdout + done.stderr
    lost = ottla("topic", "list", settings=by_token)
    assert lost.returncode != 0
    assert token["hmac"] not in lost.stderr


def test_a_client_without_a_loop(secured: Secured) -> None:
    """Its slow steps are made where it waits, as Spark's workers do."""
    with InlineClient(secured.by_token(created(secured))) as client:
        assert client.until(lambda: client.core.metadata.version > 0, PATIENCE_S * 1000)
