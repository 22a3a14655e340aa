"""PLAIN: who may log in, what everybody else is told, and that nothing else comes out."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.security.sasl.support import exchange

from ottla.config.errors import ConfigError
from ottla.model.errors import ErrorCode
from ottla.security.sasl import plain
from ottla.security.sasl.jaas import parse_jaas
from ottla.security.sasl.mechanisms import MAX_REASON_LENGTH, SaslClient, SaslError, SaslServer
from ottla.security.sasl.plain import MAX_RESPONSE_BYTES, JaasUsers, PlainSaslClient, PlainSaslServer

MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
INVALID = "Authentication failed: Invalid username or password"
texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1)


@pytest.fixture
def users() -> JaasUsers:
    (entry,) = parse_jaas(
        f'{MODULE} required username=broker password=b user_alice="secret" user_="x" user_c="";'
    )
    return JaasUsers(entry)


def test_both_sides_are_what_mechanisms_look_like(users: JaasUsers) -> None:
    server: SaslServer = PlainSaslServer(users)
    client: SaslClient = PlainSaslClient("alice", "secret")
    assert (server.is_slow, client.is_slow) == (False, False)
    assert exchange(client, server) == [b"\0alice\0secret", b""]
    assert (server.authorization_id, server.token_authenticated, server.expires_at_ms) == (
        "alice",
        False,
        None,
    )


def test_oneself_may_be_named_as_whom_one_wants_to_be(users: JaasUsers) -> None:
    server = PlainSaslServer(users)
    assert server.evaluate(b"alice\0alice\0secret") == b""
    assert server.complete


@pytest.mark.parametrize(
    ("response", "message"),
    [
        (b"\0alice\0wrong", INVALID),
        (b"\0alice\0secret2", INVALID),
        (b"\0alice\0secre", INVALID),
        (b"\0bob\0secret", INVALID),
        (b"\0Alice\0secret", INVALID),
        (b"\0broker\0b", INVALID),
        (b"bob\0alice\0wrong", INVALID),
        (
            b"bob\0alice\0secret",  # CVE-2017-12610
            "Authentication failed: Client requested an authorization id that is different from username",
        ),
        (b"\0\0x", "Authentication failed: username not specified"),
        (b"\0c\0", "Authentication failed: password not specified"),
        (b"", "Invalid SASL/PLAIN response: expected 3 tokens, got 1"),
        (b"alice\0secret", "Invalid SASL/PLAIN response: expected 3 tokens, got 2"),
        (b"\0alice\0secret\0", "Invalid SASL/PLAIN response: expected 3 tokens, got 4"),
        (b"\0" * 9, "Invalid SASL/PLAIN response: expected 3 tokens, got 4"),
        (b"\0alice\xff\0secret", INVALID),
        (b"\0alice\0" + b"x" * (MAX_RESPONSE_BYTES - 7), INVALID),
        (b"\0alice\0" + b"x" * (1 << 20), INVALID),
    ],
)
def test_who_may_not(users: JaasUsers, response: bytes, message: str) -> None:
    server = PlainSaslServer(users)
    with pytest.raises(SaslError) as raised:
        server.evaluate(response)
    assert (raised.value.code, raised.value.message) == (ErrorCode.SASL_AUTHENTICATION_FAILED, message)
    assert "secret" not in raised.value.reason
    with pytest.raises(SaslError):
        server.evaluate(b"\0alice\0secret")
    assert not server.complete
    assert server.authorization_id == ""


async def _later(username: str, password: str) -> bool:
    return False


@pytest.mark.parametrize(
    "answer", [_later, lambda *_: 1, lambda *_: "no", lambda *_: object(), lambda *_: None]
)
@pytest.mark.filterwarnings("ignore:coroutine")
def test_what_is_no_yes_is_a_no(answer: Any) -> None:
    """A callback of an operator's own that has to be awaited would let everybody in."""
    server = PlainSaslServer(answer, is_slow=True)
    with pytest.raises(SaslError, match=INVALID):
        server.evaluate(b"\0alice\0secret")
    assert not server.complete


def test_unknown_users_and_wrong_passwords_are_the_same_work(
    users: JaasUsers, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[tuple[int, int]] = []

    def counted(one: bytes, other: bytes) -> bool:
        compared.append((len(one), len(other)))
        return one == other

    monkeypatch.setattr(plain.hmac, "compare_digest", counted)
    for username, password in (("alice", "x"), ("alice", "x" * 5_000), ("ghost", "secret"), ("", "secret")):
        assert not users(username, password)
    assert compared == [(32, 32)] * 4


def test_an_exchange_is_over_when_it_is_over(users: JaasUsers) -> None:
    server = PlainSaslServer(users)
    server.evaluate(b"\0alice\0secret")
    with pytest.raises(SaslError):
        server.evaluate(b"\0alice\0secret")
    client = PlainSaslClient("alice", "secret")
    client.evaluate(None)
    with pytest.raises(SaslError):
        client.evaluate(b"")
    with pytest.raises(SaslError):
        PlainSaslClient("alice", "secret").evaluate(b"who are you?")


def test_credentials_that_cannot_be_looked_up() -> None:
    def broken(name: str, password: str) -> bool:
        raise LookupError("no directory")

    with pytest.raises(SaslError) as raised:
        PlainSaslServer(broken).evaluate(b"\0a\0b")
    assert raised.value.message == "Authentication failed: credentials for user could not be verified"


def test_users_of_another_login_module_are_not_taken() -> None:
    text = "org.apache.kafka.common.security.scram.ScramLoginModule required user_a=b;"
    with pytest.raises(ConfigError, match="PLAIN needs"):
        JaasUsers(parse_jaas(text)[0])


def test_a_client_from_its_jaas_text() -> None:
    client = PlainSaslClient.from_jaas(parse_jaas(f"{MODULE} required username=alice password=secret;")[0])
    assert client.evaluate(None) == b"\0alice\0secret"
    with pytest.raises(ConfigError):
        PlainSaslClient("a\0b", "c")
    with pytest.raises(ConfigError, match="UTF-8"):
        PlainSaslClient("a", "\udc80")


@given(texts, texts)
def test_any_name_and_password(name: str, password: str) -> None:
    server = PlainSaslServer(lambda n, p: (n, p) == (name, password))
    exchange(PlainSaslClient(name, password), server)
    assert server.authorization_id == name


@given(st.binary() | st.lists(st.binary(max_size=3), max_size=5).map(b"\0".join))
def test_whatever_is_sent_only_a_sasl_error_comes_out(response: bytes) -> None:
    server = PlainSaslServer(lambda name, password: False)
    with pytest.raises(SaslError):
        server.evaluate(response)


def test_what_the_peer_is_told_of_a_reauthentication() -> None:
    assert SaslError("PLAIN", "why", "words").message_for(reauthenticating=True) == "words"
    error = SaslError("SCRAM-SHA-256", "why")
    words = "Authentication failed during {} due to invalid credentials with SASL mechanism SCRAM-SHA-256"
    assert error.message == error.message_for(reauthenticating=False) == words.format("authentication")
    assert error.message_for(reauthenticating=True) == words.format("re-authentication")
    assert "why" not in f"{error} {error!r}"
    assert len(SaslError("PLAIN", "x" * 10_000).reason) == MAX_REASON_LENGTH
