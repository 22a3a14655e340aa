"""OAUTHBEARER: the messages of RFC 7628, what a refused token leads to, and that nothing else comes out."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.security.sasl.support import exchange

from ottla.config.errors import ConfigError
from ottla.model.errors import ErrorCode
from ottla.security.sasl.jaas import parse_jaas
from ottla.security.sasl.mechanisms import SaslClient, SaslError, SaslServer
from ottla.security.sasl.oauthbearer import (
    MAX_MESSAGE_BYTES,
    InvalidTokenError,
    OAuthBearerSaslClient,
    OAuthBearerSaslServer,
    OAuthToken,
    jaas_extensions,
)

GOOD = "good.to-ken_~+/9=="
FAILED = (
    "Authentication failed during authentication due to invalid credentials with SASL mechanism OAUTHBEARER"
)
MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
values = st.text(st.sampled_from([chr(c) for c in range(0x20, 0x7F)] + ["\t", "\r", "\n"]), min_size=1)


def validate(token: str) -> OAuthToken:
    if token == "broken":
        raise OSError("no keys")
    if token != GOOD:
        raise InvalidTokenError("it is expired")
    return OAuthToken("alice, the first", 12_345)


def server() -> OAuthBearerSaslServer:
    return OAuthBearerSaslServer(validate)


def test_both_sides_are_what_mechanisms_look_like() -> None:
    one: SaslServer = server()
    other: SaslClient = OAuthBearerSaslClient(GOOD)
    assert (one.is_slow, other.is_slow) == (True, False)
    assert exchange(other, one) == [f"n,,\x01auth=Bearer {GOOD}\x01\x01".encode(), b""]
    assert one.authorization_id == "alice, the first"
    assert (one.token_authenticated, one.expires_at_ms) == (False, 12_345)


def test_extensions_are_taken_along() -> None:
    one = server()
    sent = exchange(OAuthBearerSaslClient(GOOD, {"logicalCluster": "lkc = 1", "b": "2"}), one)
    assert sent[0] == f"n,,\x01auth=Bearer {GOOD}\x01logicalCluster=lkc = 1\x01b=2\x01\x01".encode()
    assert one.extensions == {"logicalCluster": "lkc = 1", "b": "2"}


@pytest.mark.parametrize("scheme", ["bearer", "BEARER", "Bearer  "])
def test_a_scheme_in_any_case(scheme: str) -> None:
    one = server()
    assert one.evaluate(f"n,a=alice=2C the first,\x01auth={scheme} {GOOD}\x01\x01".encode()) == b""
    assert one.complete


def test_a_refused_token_is_answered_by_json_and_fails_with_the_reply() -> None:
    one, client = server(), OAuthBearerSaslClient("expired")
    error = one.evaluate(client.evaluate(None) or b"")
    assert error == b'{"status":"invalid_token"}'
    assert not one.complete
    assert one.refused is not None
    assert client.evaluate(error) == b"\x01"
    with pytest.raises(SaslError) as raised:
        one.evaluate(b"\x01")
    assert raised.value.code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert raised.value.message == '{"status":"invalid_token"}'
    assert raised.value.reason == "it is expired"
    with pytest.raises(SaslError, match="invalid_token"):
        client.evaluate(b"")
    assert not client.complete


def test_after_a_refused_token_there_is_no_other() -> None:
    one = server()
    one.evaluate(b"n,,\x01auth=Bearer expired\x01\x01")
    with pytest.raises(SaslError):
        one.evaluate(f"n,,\x01auth=Bearer {GOOD}\x01\x01".encode())
    with pytest.raises(SaslError):
        one.evaluate(f"n,,\x01auth=Bearer {GOOD}\x01\x01".encode())
    assert not one.complete


def test_what_else_the_client_may_be_told() -> None:
    error = InvalidTokenError("why", "insufficient_scope", 'a "b"', "https://x")
    told = '{"status":"insufficient_scope", "scope":"a \\"b\\"", "openid-configuration":"https://x"}'
    assert error.json == told


def test_a_token_that_could_not_be_checked_says_nothing() -> None:
    with pytest.raises(SaslError, match=FAILED):
        server().evaluate(b"n,,\x01auth=Bearer broken\x01\x01")


def test_nobody_may_ask_to_be_somebody_else() -> None:
    one = server()
    with pytest.raises(SaslError) as raised:
        one.evaluate(f"n,a=bob,\x01auth=Bearer {GOOD}\x01\x01".encode())
    assert raised.value.message == (
        "Authentication failed: Client requested an authorization id (bob) that is different from "
        "the token's principal name (alice, the first)"
    )
    assert not one.complete


@pytest.mark.parametrize(
    "message",
    [
        "",
        "\x01",
        "\0alice\0secret",
        f"n,,\x01auth=Bearer {GOOD}\x01",
        f"n,,auth=Bearer {GOOD}\x01\x01",
        f"y,,\x01auth=Bearer {GOOD}\x01\x01",
        f"n,a=,\x01auth=Bearer {GOOD}\x01\x01",
        f"n,a=x=y,\x01auth=Bearer {GOOD}\x01\x01",
        "n,,\x01\x01",
        "n,,\x01x=y\x01\x01",
        f"n,,\x01Auth=Bearer {GOOD}\x01\x01",
        f"n,,\x01auth=Basic {GOOD}\x01\x01",
        f"n,,\x01auth=Bearer\t{GOOD}\x01\x01",
        f"n,,\x01auth=Bearer {GOOD}x\x01\x01",
        "n,,\x01auth=Bearer \x01\x01",
        f"n,,\x01auth=Bearer expired\x01auth=Bearer {GOOD}\x01\x01",
        f"n,,\x01auth=Bearer {GOOD}\x01x=1\x01x=2\x01\x01",
        f"n,,\x01auth=Bearer {GOOD}\x01x1=1\x01\x01",
        f"n,,\x01auth=Bearer {GOOD}\x01x=\x01\x01",
        f"n,,\x01auth=Bearer {GOOD}\x01x=é\x01\x01",
        f"n,,\x01auth=Bearer {GOOD}\x01\x01\x01",
        f"n,,\x01auth=Bearer {'x' * MAX_MESSAGE_BYTES}\x01\x01",
        "x" * (1 << 20),
        "\udcff",
    ],
)
def test_what_is_no_first_message(message: str) -> None:
    one = server()
    with pytest.raises(SaslError, match=FAILED) as raised:
        one.evaluate(message.encode(errors="surrogateescape"))
    assert GOOD not in raised.value.reason
    with pytest.raises(SaslError):
        one.evaluate(f"n,,\x01auth=Bearer {GOOD}\x01\x01".encode())
    assert not one.complete


def test_an_exchange_is_over_when_it_is_over() -> None:
    one, client = server(), OAuthBearerSaslClient(GOOD)
    exchange(client, one)
    with pytest.raises(SaslError):
        one.evaluate(b"\x01")
    with pytest.raises(SaslError):
        client.evaluate(b"")
    with pytest.raises(SaslError):
        OAuthBearerSaslClient(GOOD).evaluate(b"first")


@pytest.mark.parametrize(
    ("token", "extensions"),
    [
        ("", {}),
        ("a b", {}),
        ("a\x01x=y", {}),
        ("a=b", {}),
        (GOOD, {"auth": "x"}),
        (GOOD, {"a1": "x"}),
        (GOOD, {"": "x"}),
        (GOOD, {"a": ""}),
        (GOOD, {"a": "secret\x01"}),
    ],
)
def test_what_a_client_cannot_say(token: str, extensions: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as raised:
        OAuthBearerSaslClient(token, extensions)
    assert "secret" not in str(raised.value)


def test_extensions_of_a_jaas_text() -> None:
    (entry,) = parse_jaas(f"{MODULE} required scope=x extension_traceId='123' extension_b=c;")
    assert jaas_extensions(entry) == {"traceId": "123", "b": "c"}
    with pytest.raises(ConfigError, match="name a"):
        jaas_extensions(parse_jaas(f"{MODULE} required 'extension_a.b'=c;")[0])


def test_secrets_are_not_shown() -> None:
    assert GOOD not in f"{OAuthBearerSaslClient(GOOD)!r} {validate(GOOD)!r}"


@given(st.dictionaries(st.from_regex(r"[A-Za-z]+", fullmatch=True).filter(lambda key: key != "auth"), values))
def test_any_extensions(extensions: dict[str, str]) -> None:
    one = server()
    exchange(OAuthBearerSaslClient(GOOD, extensions), one)
    assert one.extensions == extensions


pieces = st.lists(
    st.sampled_from(
        ["n,,", "n,a=x,", "\x01", "auth=Bearer ", GOOD, "expired", "broken", "x=y", "=", ",", " ", "\0"]
    )
    | st.text()
).map(lambda parts: "".join(parts).encode(errors="surrogatepass"))


@given(st.lists(pieces | st.binary(), max_size=3))
def test_whatever_a_client_sends_only_a_sasl_error_comes_out(messages: list[bytes]) -> None:
    one = server()
    for message in messages:
        with suppress(SaslError):
            one.evaluate(message)
    assert one.complete == (one.authorization_id != "")


@given(st.lists(st.binary(), max_size=3))
def test_whatever_a_server_sends_only_a_sasl_error_comes_out(challenges: list[bytes]) -> None:
    client = OAuthBearerSaslClient(GOOD)
    client.evaluate(None)
    for challenge in challenges:
        with suppress(SaslError):
            client.evaluate(challenge)
    assert client.complete == (challenges[:1] == [b""])
