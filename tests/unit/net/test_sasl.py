"""A connection proves who it is: the client's half against the broker's, and nodes that do not keep to it."""

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import pytest

from ottla.config.errors import ConfigError
from ottla.model.errors import ErrorCode, KafkaError
from ottla.net.client import NetworkClient, NetworkSettings
from ottla.net.connection import FIRST_CORRELATION_ID, ApiRanges, SlowStep, Step
from ottla.net.sasl import MAX_STEPS, SaslClientAuthenticator, authenticator_of
from ottla.net.transport import Disconnect, Work, Write
from ottla.security.channels import PLAINTEXT, ChannelSecurity
from ottla.security.sasl.clients import sasl_exchanges
from ottla.security.sasl.mechanisms import SaslError, SaslServer
from ottla.security.sasl.plain import PlainSaslServer
from ottla.security.sasl.scram import ScramSaslServer
from ottla.security.scram_credentials import MECHANISMS, credential_of
from ottla.wire.codec import decode
from ottla.wire.framing import decode_request_header, encode_response
from ottla.wire.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from ottla.wire.messages.security.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

RANGES = ApiRanges({17: (0, 1), 36: (0, 2)})
SCRAM = MECHANISMS["SCRAM-SHA-256"]
CREDENTIAL = credential_of(SCRAM, "secret", b"salt" * 5, 4096)


def plain() -> SaslServer:
    return PlainSaslServer(lambda user, password: (user, password) == ("alice", "secret"))


def scram() -> SaslServer:
    return ScramSaslServer(SCRAM, {"alice": CREDENTIAL}.get)


def authenticator(mechanism: str, password: str = "secret") -> SaslClientAuthenticator:
    exchanges = sasl_exchanges(mechanism, "sasl.jaas.config", None, ("alice", password))
    return SaslClientAuthenticator(mechanism, partial(exchanges, "host"), Random(1))


def converse(client: SaslClientAuthenticator, server: SaslServer, lifetime_ms: int = 0) -> None:
    """Until one of them has had enough."""
    step: Step = client.begin(RANGES)
    while step is not None:
        if isinstance(step, SlowStep):
            step = client.worked(step.function())
            continue
        request, version = step
        if isinstance(request, SaslHandshakeRequest):
            assert version == 1
            step = client.step(SaslHandshakeResponse(mechanisms=[request.mechanism]))
            continue
        assert isinstance(request, SaslAuthenticateRequest)
        assert version == 2
        response = SaslAuthenticateResponse(
            error_message=None, auth_bytes=b"", session_lifetime_ms=lifetime_ms
        )
        try:
            response.auth_bytes = server.evaluate(bytes(request.auth_bytes))
        except SaslError as error:
            response.error_code, response.error_message = error.code, error.message
        step = client.step(response)


@pytest.mark.parametrize(("mechanism", "server"), [("PLAIN", plain), ("SCRAM-SHA-256", scram)])
def test_both_sides_agree(mechanism: str, server: Callable[[], SaslServer]) -> None:
    client = authenticator(mechanism)
    for lifetime_ms in (0, 1_000, 0):  # as often as it is asked to
        made = server()
        converse(client, made, lifetime_ms)
        assert (made.complete, made.authorization_id) == (True, "alice")
        after_ms = client.reauthenticate_after_ms
        if lifetime_ms:
            assert after_ms is not None
            assert 850 <= after_ms <= 950
        else:
            assert after_ms is None


@pytest.mark.parametrize(("mechanism", "server"), [("PLAIN", plain), ("SCRAM-SHA-256", scram)])
def test_a_wrong_password_is_told_in_the_brokers_words(
    mechanism: str, server: Callable[[], SaslServer]
) -> None:
    with pytest.raises(KafkaError) as refused:
        converse(authenticator(mechanism, "guess"), server())
    assert refused.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED
    assert "guess" not in str(refused.value)


def test_a_mechanism_that_is_not_there_is_told_with_those_that_are() -> None:
    client = authenticator("PLAIN")
    client.begin(RANGES)
    answer = SaslHandshakeResponse(
        error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=["GSSAPI", "SCRAM-SHA-512"]
    )
    with pytest.raises(KafkaError, match="PLAIN is not enabled there; these are: GSSAPI, SCRAM-SHA-512"):
        client.step(answer)


@pytest.mark.parametrize("code", [ErrorCode.ILLEGAL_SASL_STATE, 9_999])
def test_other_refusals_are_errors_too(code: int) -> None:
    client = authenticator("PLAIN")
    client.begin(RANGES)
    with pytest.raises(KafkaError):
        client.step(SaslHandshakeResponse(error_code=code, mechanisms=[]))


def test_a_server_without_requests_for_tokens_is_refused() -> None:
    with pytest.raises(KafkaError):
        authenticator("PLAIN").begin(ApiRanges({17: (0, 0)}))


def test_a_scram_server_that_proves_nothing_is_refused() -> None:
    """It says that all is well, and does not know the password."""
    client = authenticator("SCRAM-SHA-256")
    client.begin(RANGES)
    step = client.step(SaslHandshakeResponse(mechanisms=["SCRAM-SHA-256"]))
    assert isinstance(step, tuple)
    first = scram().evaluate(bytes(step[0].auth_bytes))
    slow = client.step(SaslAuthenticateResponse(error_message=None, auth_bytes=first))
    assert isinstance(slow, SlowStep)
    client.worked(slow.function())
    with pytest.raises(KafkaError):
        client.step(SaslAuthenticateResponse(error_message=None, auth_bytes=b"v=" + b"A" * 43 + b"="))


class Endless:
    """An exchange that never ends."""

    is_slow = False
    complete = False

    def evaluate(self, challenge: bytes | None) -> bytes | None:
        return b"more"


def test_an_exchange_that_comes_to_no_end_is_given_up() -> None:
    client = SaslClientAuthenticator("PLAIN", Endless)
    client.begin(RANGES)
    client.step(SaslHandshakeResponse(mechanisms=["PLAIN"]))
    answer = partial(SaslAuthenticateResponse, error_message=None, auth_bytes=b"")
    for _ in range(MAX_STEPS - 1):
        client.step(answer())
    with pytest.raises(KafkaError, match="comes to no end"):
        client.step(answer())


def test_a_plain_channel_has_no_authenticator_and_no_secret_is_shown() -> None:
    assert authenticator_of(PLAINTEXT) is None
    security = ChannelSecurity(None, "PLAIN", sasl_exchanges("PLAIN", "k", None, ("alice", "secret")))
    made = authenticator_of(security)
    assert made is not None
    assert made("host") is not made("host")
    assert "secret" not in repr(security)


@pytest.mark.parametrize(
    ("mechanism", "jaas", "words"),
    [
        ("DIGEST-MD5", "x", "DIGEST-MD5 is not supported"),
        ("GSSAPI", None, "sasl.kerberos.service.name is not set"),
        ("OAUTHBEARER", None, "sasl.oauthbearer.token.endpoint.url is not set"),
        ("PLAIN", None, "sasl.jaas.config is not set"),
        ("PLAIN", "com.sun.security.auth.module.JndiLoginModule required;", "sasl.jaas.config: "),
        (
            "PLAIN",
            'org.apache.kafka.common.security.plain.PlainLoginModule required username="a";',
            "no password",
        ),
        (
            "SCRAM-SHA-256",
            'org.apache.kafka.common.security.plain.PlainLoginModule required username="a" password="p";',
            "SCRAM-SHA-256 needs",
        ),
    ],
)
def test_what_is_wrong_with_a_login_is_told_at_once(mechanism: str, jaas: str | None, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        sasl_exchanges(mechanism, "sasl.jaas.config", jaas)


def test_a_slow_step_is_the_drivers_and_what_comes_of_it_is_the_connections() -> None:
    """PBKDF2 of SCRAM, from end to end: what the broker says is answered by hand."""
    security = ChannelSecurity(None, SCRAM.name, sasl_exchanges(SCRAM.name, "k", None, ("alice", "secret")))
    for refused in (False, True):
        network, link = connecting(security)
        server = scram()
        answer(network, link, SaslHandshakeResponse(mechanisms=[SCRAM.name]), 1)
        first = sent(network, SaslAuthenticateRequest, 2)
        answer(network, link, token_response(server.evaluate(bytes(first.auth_bytes))), 2)
        (work,) = network.take_actions()
        assert isinstance(work, Work)
        if refused:
            network.on_worked(work.link, None, SaslError(SCRAM.name, "no ticket", "no ticket"), 0)
            assert network.peers.describe_failures() == "broker:9092: no ticket"
            assert network.take_actions() == [Disconnect(link)]
            network.on_worked(work.link, work.function(), None, 0)  # of a connection that is gone
            continue
        network.on_worked(work.link, work.function(), None, 0)
        final = sent(network, SaslAuthenticateRequest, 2)
        answer(network, link, token_response(server.evaluate(bytes(final.auth_bytes))), 2)
        assert network.ready(-1, 0)
        assert server.complete


def token_response(token: bytes) -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(error_message=None, auth_bytes=token)


def connecting(security: ChannelSecurity) -> tuple[NetworkClient, int]:
    """A client whose connection has asked for the handshake."""
    settings = NetworkSettings("c", 1_000, 1_000, 1_000, 5, 1 << 20, 10, 10, required=SaslHandshakeRequest)
    network = NetworkClient(
        settings,
        [("broker", 9092)],
        Random(1),
        on_stale=lambda: None,
        software_version="0",
        authenticator=authenticator_of(security),
    )
    assert not network.ready(-1, 0)
    (connect,) = network.take_actions()
    network.on_connected(connect.link, 0)
    sent(network, ApiVersionsRequest, 4)
    keys = [
        ApiVersion(api_key=key, min_version=0, max_version=highest) for key, highest in ((17, 1), (36, 2))
    ]
    answer(network, connect.link, ApiVersionsResponse(api_keys=keys), 4, FIRST_CORRELATION_ID)
    sent(network, SaslHandshakeRequest, 1)
    return network, connect.link


def sent(network: NetworkClient, kind: type[Any], version: int) -> Any:
    network.flush()
    (write,) = network.take_actions()
    assert isinstance(write, Write)
    frame = b"".join(write.chunks)[4:]
    header, offset = decode_request_header(memoryview(frame), 0, len(frame))
    network.last_id = header.correlation_id  # type: ignore[attr-defined]
    return decode(kind, memoryview(frame), version, offset)[0]


def answer(
    network: NetworkClient, link: int, response: Any, version: int, correlation_id: int | None = None
) -> None:
    asked = network.last_id if correlation_id is None else correlation_id  # type: ignore[attr-defined]
    network.on_data(link, encode_response(response, version, asked), 0)
