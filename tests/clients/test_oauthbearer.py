"""OAUTHBEARER: tokens of a local identity provider, by every client that has them, and every way to come without."""

import asyncio
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider as AioTokenProvider
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import Producer as ConfluentProducer
from kafka import KafkaConsumer, KafkaProducer
from kafka.net.sasl.oauth import AbstractTokenProvider
from tests.interop.ottla_node import OTTLA, OttlaNode
from tests.interop.process import HOST, free_ports, wait_until
from tests.support.certificates import Authority
from tests.support.cluster import Processes
from tests.support.identity_provider import AUDIENCE, ISSUER, IdentityProvider
from tests.support.raw_client import Endpoint, RawClient

from ottla.client import Admin, Consumer, Producer
from ottla.model.errors import KafkaError
from ottla.model.ids import TopicPartition
from ottla.security.sasl.oauth.http import ALLOWED_URLS

pytestmark = pytest.mark.xdist_group("security")

PATIENCE_S = 60.0
SASL_HANDSHAKE, SASL_AUTHENTICATE = 17, 36
KAFKA = "org.apache.kafka.common.security.oauthbearer"
SUN = "com.sun.security.auth.module"
MODULE = f"{KAFKA}.OAuthBearerLoginModule"


class Secured(NamedTuple):
    node: OttlaNode
    address: str
    provider: IdentityProvider

    def settings(self) -> dict[str, Any]:
        """Of Ottla's own client, by client credentials."""
        return {
            "bootstrap.servers": self.address,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.token.endpoint.url": self.provider.token_url,
            "sasl.oauthbearer.client.credentials.client.id": "me",
            "sasl.oauthbearer.client.credentials.client.secret": "geheim",
            "sasl.jaas.config": f"{MODULE} required {self.provider.trust};",
            "bootstrap.timeout.ms": 5_000,
        }


def node_settings(provider: IdentityProvider, port: int) -> dict[str, object]:
    return {
        "listeners": f"PLAINTEXT://{HOST}:0,CONTROLLER://{HOST}:0,IN://{HOST}:{port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,IN:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": provider.jwks_url,
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms": 500,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "listener.name.in.oauthbearer.sasl.oauthbearer.expected.issuer": ISSUER,
        "listener.name.in.oauthbearer.sasl.jaas.config": f"{MODULE} required {provider.trust};",
        "listener.name.in.oauthbearer.sasl.server.callback.handler.class": (
            f"{KAFKA}.OAuthBearerValidatorCallbackHandler"
        ),
        "connection.failed.authentication.delay.ms": 10,
        "group.initial.rebalance.delay.ms": 0,
    }


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IdentityProvider]:
    with IdentityProvider(Authority(tmp_path_factory.mktemp("idp"))) as made:
        yield made


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, provider: IdentityProvider) -> Iterator[Secured]:
    (port,) = free_ports(1)
    where = tmp_path_factory.mktemp("oauth") / "data"
    node = OttlaNode(where, node_settings(provider, port), env=provider.environment())
    with node:
        yield Secured(node, f"{HOST}:{port}", provider)
    assert "Traceback" not in node.log_text()
    assert "eyJ" not in node.log_text(), "a token, or a part of one"


@pytest.fixture(autouse=True)
def allowed(monkeypatch: pytest.MonkeyPatch, provider: IdentityProvider) -> None:
    for name, value in provider.environment().items():
        monkeypatch.setenv(name, value)


# ---- who may come in ------------------------------------------------------------------------------------------


def test_our_own_client(secured: Secured) -> None:
    with Producer(secured.settings()) as producer:
        producer.send("own", b"v").result(PATIENCE_S * 1000)
    with Consumer({**secured.settings(), "auto.offset.reset": "earliest"}) as consumer:
        consumer.assign([TopicPartition("own", 0)])
        (records,) = consumer.poll(PATIENCE_S * 1000).values()
    assert [record.value for record in records] == [b"v"]


def test_librdkafka(secured: Secured) -> None:
    def token(_: str) -> tuple[str, float]:
        return secured.provider.token(), time.time() + 300

    settings = {
        "bootstrap.servers": secured.address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": token,
    }
    producer = ConfluentProducer(settings)
    producer.poll(0)
    producer.produce("rd", value=b"v")
    assert producer.flush(PATIENCE_S) == 0
    consumer = ConfluentConsumer({**settings, "group.id": "rd", "auto.offset.reset": "earliest"})
    consumer.subscribe(["rd"])
    found: list[bytes | None] = []

    def read() -> bool:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            found.append(message.value())
        return bool(found)

    wait_until(read, PATIENCE_S, "the record")
    consumer.close()
    assert found == [b"v"]


def test_kafka_python(secured: Secured) -> None:
    class Tokens(AbstractTokenProvider):
        def token(self) -> str:
            return secured.provider.token()

    settings = {
        "bootstrap_servers": secured.address,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauth_token_provider": Tokens(),
    }
    producer = KafkaProducer(**settings)
    producer.send("kp", b"v")
    producer.flush(PATIENCE_S)
    producer.close()
    consumer = KafkaConsumer("kp", **settings, auto_offset_reset="earliest", consumer_timeout_ms=60_000)
    assert next(consumer).value == b"v"
    consumer.close()


def test_aiokafka(secured: Secured) -> None:
    class Tokens(AioTokenProvider):
        async def token(self) -> str:
            return secured.provider.token()

    settings = {
        "bootstrap_servers": secured.address,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauth_token_provider": Tokens(),
    }

    async def write_and_read() -> bytes | None:
        async with AIOKafkaProducer(**settings) as producer:
            await producer.send_and_wait("aio", b"v")
        async with AIOKafkaConsumer("aio", **settings, auto_offset_reset="earliest") as consumer:
            return (await consumer.getone()).value

    assert asyncio.run(asyncio.wait_for(write_and_read(), PATIENCE_S)) == b"v"


def test_the_keys_are_changed_and_whoever_comes_with_a_new_one_is_let_in(secured: Secured) -> None:
    secured.provider.new_key()

    def is_in() -> bool:
        try:
            with Admin(secured.settings()) as admin:
                return admin.list_topics() is not None
        except KafkaError:
            return False

    wait_until(is_in, PATIENCE_S, "the new key")


def test_a_session_is_renewed_with_a_new_token(secured: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens of two seconds: connections go on, by the next one each time."""
    monkeypatch.setattr(secured.provider, "lifetime_s", 2)
    before = secured.provider.asked["/token"]
    with Admin(secured.settings()) as admin:
        until = time.monotonic() + 7
        while time.monotonic() < until:
            assert admin.list_topics() is not None
    assert secured.provider.asked["/token"] - before >= 3
    assert "has ended, and it has not proved again" not in secured.node.log_text()


# ---- who may not ----------------------------------------------------------------------------------------------


def answer_to(secured: Secured, token: str) -> tuple[str, bytes]:
    """The error and the words that a client with this token gets, which replies as it has to."""
    with RawClient(Endpoint.of(secured.address)) as client:
        client.ask(SASL_HANDSHAKE, 1, {"mechanism": "OAUTHBEARER"})
        first = f"n,,\x01auth=Bearer {token}\x01\x01".encode()
        response = client.ask(SASL_AUTHENTICATE, 2, {"auth_bytes": first})
        if response["error_code"] == "none" and response["auth_bytes"]:
            response = client.ask(SASL_AUTHENTICATE, 2, {"auth_bytes": b"\x01"})
        return response["error_code"], (response["error_message"] or "").encode()


def test_forged_and_foreign_tokens_are_refused(secured: Secured) -> None:
    provider, now = secured.provider, int(time.time())
    from cryptography.hazmat.primitives.asymmetric import rsa
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    public = provider.keys[provider.key_id].public_key()
    pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    import hashlib
    import hmac
    from base64 import urlsafe_b64encode

    def hs256() -> str:
        """By the public key as if it were a secret; PyJWT itself would not make it."""
        unsigned = provider.token(algorithm="none", key="").rpartition(".")[0]
        header = (
            urlsafe_b64encode(f'{{"alg":"HS256","kid":"{provider.key_id}"}}'.encode()).decode().rstrip("=")
        )
        signed = f"{header}.{unsigned.partition('.')[2]}"
        digest = hmac.digest(pem, signed.encode(), hashlib.sha256)
        return f"{signed}.{urlsafe_b64encode(digest).decode().rstrip('=')}"

    stranger = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    bad = {
        "none": provider.token(algorithm="none", key="") + "x",
        "HS256": hs256(),
        "a stranger's": provider.token(key=stranger),
        "an unknown key": provider.token(key=stranger, kid="unknown"),
        "issuer": provider.token(iss="https://elsewhere"),
        "audience": provider.token(aud="others"),
        "expired": provider.token(exp=now - 100, iat=now - 200),
        "too early": provider.token(nbf=now + 100),
        "nobody's": provider.token(sub=None),
        "no JWT": "opaque",
    }
    assert answer_to(secured, provider.token()) == ("none", b"")
    answers = {what: answer_to(secured, token) for what, token in bad.items()}
    assert set(answers.values()) == {("sasl_authentication_failed", b'{"status":"invalid_token"}')}, answers
    log = secured.node.log_text()
    assert "OAUTHBEARER authentication failed: " in log
    assert not any(token in log for token in bad.values())


@pytest.mark.parametrize("size", [0, 200_000, 1_000_000])
def test_tokens_that_are_no_tokens_by_their_size(secured: Secured, size: int) -> None:
    """Of 0 bytes, of more than any token has, and of more than sasl.server.max.receive.size."""
    with RawClient(Endpoint.of(secured.address)) as client:
        client.ask(SASL_HANDSHAKE, 1, {"mechanism": "OAUTHBEARER"})
        token = b"n,,\x01auth=Bearer " + b"x" * size + b"\x01\x01" if size else b""
        try:
            answer = client.ask(SASL_AUTHENTICATE, 2, {"auth_bytes": token})
        except ConnectionError:
            assert size == 1_000_000
        else:
            assert answer["error_code"] == "sasl_authentication_failed"
            assert client.is_closed()
    assert answer_to(secured, secured.provider.token()) == ("none", b"")


def test_unknown_keys_by_the_hundred_cause_a_fetch_or_two(secured: Secured) -> None:
    before, began = secured.provider.asked["/jwks"], time.monotonic()
    for number in range(200):
        assert answer_to(secured, secured.provider.token(kid=f"unknown-{number}"))[0] != "none"
    # One in each back-off, which is half a second here.
    at_most = (time.monotonic() - began) / 0.5 + 2
    assert secured.provider.asked["/jwks"] - before <= at_most


@pytest.mark.parametrize(
    ("changed", "environ", "words"),
    [
        ({"sasl.oauthbearer.jwks.endpoint.url": ""}, {}, "sasl.oauthbearer.jwks.endpoint.url is not set"),
        ({}, {ALLOWED_URLS: "https://elsewhere/keys"}, ALLOWED_URLS),
        (
            {"listener.name.in.oauthbearer.sasl.jaas.config": f"{SUN}.JndiLoginModule required;"},
            {},
            "JndiLoginModule is not allowed",
        ),
        (
            {"listener.name.in.oauthbearer.sasl.jaas.config": f"{SUN}.LdapLoginModule required;"},
            {},
            "LdapLoginModule is not allowed",
        ),
        (
            {
                "listener.name.in.oauthbearer.sasl.server.callback.handler.class": (
                    f"{KAFKA}.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"
                )
            },
            {},
            "is not supported",
        ),
        (
            {"sasl.oauthbearer.jwt.validator.class": f"{KAFKA}.ClientJwtValidator"},
            {},
            "is not supported",
        ),
    ],
)
def test_a_node_that_would_believe_anybody_does_not_start(
    provider: IdentityProvider,
    tmp_path: Path,
    changed: dict[str, object],
    environ: dict[str, str],
    words: str,
) -> None:
    settings = {**node_settings(provider, 0), **changed}
    file = tmp_path / "server.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    node = OttlaNode(tmp_path / "data", env={**provider.environment(), **environ})
    done = subprocess.run(
        [str(OTTLA), "serve", "-c", str(file), "-d", str(tmp_path / "data")],
        capture_output=True,
        text=True,
        env=node.environment(),
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr


# ---- a cluster that logs in so with itself --------------------------------------------------------------------


def test_three_nodes_log_in_to_one_another(
    provider: IdentityProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By tokens that last some seconds: followers and heartbeats go on with the next ones."""
    monkeypatch.setattr(provider, "lifetime_s", 4)
    monkeypatch.setattr(provider, "subject", "broker")
    client = f'{MODULE} required clientId="nodes" clientSecret="geheim" {provider.trust};'
    settings: dict[str, object] = {
        "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
        "sasl.mechanism.controller.protocol": "OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": provider.jwks_url,
        "sasl.oauthbearer.token.endpoint.url": provider.token_url,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "default.replication.factor": 3,
        "min.insync.replicas": 3,
        **{
            f"listener.name.{name}.oauthbearer.sasl.jaas.config": client
            for name in ("plaintext", "controller")
        },
    }
    cluster = Processes(tmp_path, combined=3, settings=settings)  # the environment is this process's
    try:
        for node in cluster.nodes.values():
            node.launch()
        for node in cluster.nodes.values():
            wait_until(node._ready_or_dead, PATIENCE_S, f"{node.kind} to serve")
        where = ",".join(f"{HOST}:{node.wanted_port}" for node in cluster.nodes.values())
        own = {**Secured(None, where, provider).settings(), "bootstrap.timeout.ms": 60_000}  # type: ignore[arg-type]
        with Producer({**own, "acks": "all"}) as producer:
            until = time.monotonic() + 10
            while time.monotonic() < until:
                producer.send("t", b"v").result(PATIENCE_S * 1000)
        for node in cluster.nodes.values():
            log = node.log_text()
            assert "has ended, and it has not proved again" not in log
            assert "Traceback" not in log
            assert "geheim" not in log
    finally:
        cluster.kill_all()


def test_the_providers_keys_change_under_load_and_nothing_is_lost(
    secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secured.provider, "lifetime_s", 3)
    sent = 0
    with Producer({**secured.settings(), "acks": "all"}) as producer:
        for _ in range(3):
            old = list(secured.provider.keys)
            secured.provider.new_key()
            for key_id in old:
                del secured.provider.keys[key_id]
            until = time.monotonic() + 4
            while time.monotonic() < until:
                producer.send("load", str(sent).encode()).result(PATIENCE_S * 1000)
                sent += 1
    with Consumer({**secured.settings(), "auto.offset.reset": "earliest"}) as consumer:
        consumer.assign([TopicPartition("load", 0)])
        found: list[bytes | None] = []
        while len(found) < sent:
            polled = consumer.poll(PATIENCE_S * 1000)
            assert polled, f"only {len(found)} of {sent}"
            found += [record.value for records in polled.values() for record in records]
    assert found == [str(number).encode() for number in range(sent)]
