"""SCRAM: the exchanges of RFC 5802 and 7677, every lie of a client and of a server, and that nothing else comes out."""

import base64
import hashlib
import hmac
from collections.abc import Callable
from contextlib import suppress
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.security.sasl.support import exchange

from ottla.config.errors import ConfigError
from ottla.model.errors import ErrorCode
from ottla.security.sasl import scram
from ottla.security.sasl.jaas import parse_jaas
from ottla.security.sasl.mechanisms import SaslClient, SaslError, SaslServer
from ottla.security.sasl.scram import (
    MAX_CLIENT_ITERATIONS,
    MAX_MESSAGE_BYTES,
    ScramSaslClient,
    ScramSaslServer,
    ScramToken,
)
from ottla.security.scram_credentials import (
    MECHANISMS,
    Mechanism,
    ScramCredential,
    credential_of,
    random_salt,
    salted_password,
)

SHA_1 = Mechanism("SCRAM-SHA-1", 0, "sha1")
SHA_256 = MECHANISMS["SCRAM-SHA-256"]
SHA_512 = MECHANISMS["SCRAM-SHA-512"]
FAILED = (
    "Authentication failed during authentication due to invalid credentials with SASL mechanism SCRAM-SHA-256"
)
names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=50)


@cache
def credential(
    password: str, mechanism: Mechanism = SHA_256, salt: bytes = b"salt", iterations: int = 4096
) -> ScramCredential:
    return credential_of(mechanism, password, salt, iterations)


ALICE = credential("secret")
USERS = {"alice": ALICE, "weak": credential("secret", iterations=4095)}
TOKENS = {"id": ScramToken("bob", lambda salt: credential("aGFzaA==", salt=salt), 1_000)}


def server() -> ScramSaslServer:
    return ScramSaslServer(SHA_256, USERS.get, TOKENS.get, server_nonce=lambda: "server")


def client_final(
    first: str = "n,,n=alice,r=client",
    *,
    password: str = "secret",
    nonce: str = "clientserver",
    channel: str = "biws",
    extensions: str = "",
) -> bytes:
    """The last message of a client that begins with `first`, by the RFC's formulas."""
    without_proof = f"c={channel},r={nonce}{extensions}"
    server_first = f"r=clientserver,s={base64.b64encode(b'salt').decode()},i=4096"
    auth_message = f"{first.split(',', 2)[2]},{server_first},{without_proof}".encode()
    client_key = hmac.digest(salted_password(SHA_256, password, b"salt", 4096), b"Client Key", "sha256")
    signature = hmac.digest(hashlib.sha256(client_key).digest(), auth_message, "sha256")
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()


@pytest.mark.parametrize(
    ("mechanism", "client_nonce", "server_nonce", "salt", "proof", "signature"),
    [
        (
            SHA_1,
            "fyko+d2lbbFgONRv9qkxdawL",
            "3rfcNHYJY1ZVvWVs7j",
            "QSXCR+Q6sek8bf92",
            "v0X8v3Bz2T0CJGbJQyF0X+HI4Ts=",
            "rmF9pqV8S7suAoZWja4dJRkFsKQ=",
        ),
        (
            SHA_256,
            "rOprNGfwEbeRWgbNEkqO",
            "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0",
            "W22ZaJ0SNY7soEsUEjb6gQ==",
            "dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
            "6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
        ),
    ],
    ids=["RFC 5802", "RFC 7677"],
)
def test_the_exchanges_of_the_rfcs(
    mechanism: Mechanism, client_nonce: str, server_nonce: str, salt: str, proof: str, signature: str
) -> None:
    stored = credential("pencil", mechanism, base64.b64decode(salt))
    client = ScramSaslClient(mechanism, "user", "pencil", client_nonce=lambda: client_nonce)
    server = ScramSaslServer(mechanism, {"user": stored}.get, server_nonce=lambda: server_nonce)
    assert [message.decode() for message in exchange(client, server)] == [
        f"n,,n=user,r={client_nonce}",
        f"r={client_nonce}{server_nonce},s={salt},i=4096",
        f"c=biws,r={client_nonce}{server_nonce},p={proof}",
        f"v={signature}",
    ]
    assert server.authorization_id == "user"


def test_both_sides_are_what_mechanisms_look_like() -> None:
    one: SaslServer = server()
    other: SaslClient = ScramSaslClient(SHA_256, "alice", "secret")
    assert (one.is_slow, other.is_slow) == (False, False)
    exchange(other, one)
    assert (one.authorization_id, one.token_authenticated, one.expires_at_ms) == ("alice", False, None)


def test_a_delegation_token_is_its_owners() -> None:
    one = server()
    sent = exchange(ScramSaslClient(SHA_256, "id", "aGFzaA==", token_auth=True), one)
    assert sent[0].endswith(b",tokenauth=true")
    assert (one.authorization_id, one.token_authenticated, one.expires_at_ms) == ("bob", True, 1_000)


@pytest.mark.parametrize(
    ("name", "password", "token_auth"),
    [
        ("alice", "wrong", False),
        ("nobody", "secret", False),
        ("weak", "secret", False),
        ("id", "aGFzaA==", False),
        ("bob", "aGFzaA==", True),
        ("id", "wrong", True),
        ("alice", "secret", True),
    ],
)
def test_who_may_not_fails_at_the_proof_with_the_same_words(
    name: str, password: str, token_auth: bool
) -> None:
    one, client = server(), ScramSaslClient(SHA_256, name, password, token_auth=token_auth)
    with pytest.raises(SaslError) as raised:
        exchange(client, one)
    assert raised.value.message == FAILED
    assert "password" in raised.value.reason or "unknown" in raised.value.reason
    assert "secret" not in raised.value.reason
    assert not one.complete
    assert (one.authorization_id, one.token_authenticated, one.expires_at_ms) == ("", False, None)


def test_no_proof_is_an_unknown_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ScramSaslServer, "_is_proof", lambda *arguments: True)
    with pytest.raises(SaslError, match=FAILED):
        exchange(ScramSaslClient(SHA_256, "nobody", "secret"), server())


def test_without_tokens_nobody_comes_by_one() -> None:
    with pytest.raises(SaslError, match=FAILED):
        exchange(
            ScramSaslClient(SHA_256, "id", "aGFzaA==", token_auth=True), ScramSaslServer(SHA_256, USERS.get)
        )


def test_a_token_is_worked_out_at_the_proof_and_looks_like_none_until_then() -> None:
    """PBKDF2 is for a thread, and no salt says whether there is such a token."""
    secret = {"unknown_secret": b"cluster", "server_nonce": lambda: "server"}
    first = b"n,,n=id,r=x,tokenauth=true"
    known, unknown = (
        ScramSaslServer(SHA_256, USERS.get, tokens, **secret) for tokens in (TOKENS.get, {}.get)
    )
    assert not known.is_slow
    assert known.evaluate(first) == unknown.evaluate(first)
    assert known.is_slow
    assert unknown.is_slow

    def broken(salt: bytes) -> ScramCredential:
        raise LookupError("no key")

    lost = ScramSaslServer(SHA_256, USERS.get, {"id": ScramToken("bob", broken, 1)}.get)
    with pytest.raises(SaslError, match=FAILED):
        exchange(ScramSaslClient(SHA_256, "id", "aGFzaA==", token_auth=True), lost)


def test_only_the_clients_proof_is_slow() -> None:
    client, one = ScramSaslClient(SHA_256, "alice", "secret"), server()
    first = client.evaluate(None)
    assert client.is_slow
    assert first is not None
    final = client.evaluate(one.evaluate(first))
    assert not client.is_slow
    assert final is not None


def salt_of(name: str, *, extensions: str = "", secret: bytes | None = None) -> str:
    more = {} if secret is None else {"unknown_secret": secret}
    one = ScramSaslServer(SHA_256, USERS.get, **more)
    answer = one.evaluate(f"n,,n={name},r=x{extensions}".encode()).decode()
    assert answer.endswith(",i=4096")
    return answer.split(",")[1]


def test_an_unknown_user_always_has_the_same_salt() -> None:
    assert salt_of("nobody") == salt_of("nobody")
    assert len({salt_of("nobody"), salt_of("someone"), salt_of("nobody", extensions=",tokenauth=true")}) == 3
    assert salt_of("nobody", secret=b"1") == salt_of("nobody", secret=b"1") != salt_of("nobody", secret=b"2")


def test_an_unknown_users_salt_looks_like_any_other() -> None:
    """Kafka's salts are 130 bits in base 36: 25 or 26 digits, hardly ever fewer."""
    made = [base64.b64decode(salt_of(f"user{i}")[2:]) for i in range(200)]
    for salts in (made, [random_salt() for _ in range(200)]):
        assert {len(salt) for salt in salts} - {23, 24} == {25, 26}
        assert all((salt.isalnum() and salt.islower()) or salt.isdigit() for salt in salts)


def test_the_nonce_is_the_servers_whole_one() -> None:
    """CVE-2024-56128: whoever does not know the nonce has not talked with this server."""
    for nonce in ("client", "server", "clientserve", "clientserver2", "Clientserver", "x"):
        one = server()
        one.evaluate(b"n,,n=alice,r=client")
        with pytest.raises(SaslError) as raised:
            one.evaluate(client_final(nonce=nonce))
        assert "nonce" in raised.value.reason
    one = server()
    one.evaluate(b"n,,n=alice,r=client")
    assert one.evaluate(client_final()).startswith(b"v=")


def test_the_channel_binding_is_the_first_messages_header() -> None:
    first = "n,a=alice,n=alice,r=client"
    for channel, right in ((b"n,a=alice,", True), (b"n,,", False), (b"y,,", False), (b"", False)):
        one = server()
        one.evaluate(first.encode())
        final = client_final(first, channel=base64.b64encode(channel).decode())
        if right:
            assert one.evaluate(final).startswith(b"v=")
        else:
            with pytest.raises(SaslError) as raised:
                one.evaluate(final)
            assert "channel binding" in raised.value.reason


def test_extensions_that_nobody_knows_are_signed_and_ignored() -> None:
    first = "n,,n=alice,r=client,x=1,y=a=b"
    one = server()
    one.evaluate(first.encode())
    assert one.evaluate(client_final(first, extensions=",z=2")).startswith(b"v=")


def test_nobody_may_ask_to_be_somebody_else_and_the_answer_does_not_say_who_there_is() -> None:
    for name in ("alice", "nobody"):
        with pytest.raises(SaslError) as raised:
            server().evaluate(f"n,a=bob,n={name},r=x".encode())
        words = "Authentication failed: Client requested an authorization id that is different from username"
        assert raised.value.message == words


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\0alice\0secret",
        b"n,,n=alice",
        b"n,,n=,r=x",
        b"n,,n=alice,r=",
        b"n,,n=alice,r=x y",
        b"n,,n=al=ice,r=x",
        b"n,,n=al=2cice,r=x",
        b"n,,n=al\0ice,r=x",
        b"n,,n=\xff,r=x",
        b"n,,m=x,n=alice,r=x",
        b"y,,n=alice,r=x",
        b"p=tls-unique,,n=alice,r=x",
        b"n,a=,n=alice,r=x",
        b"n,,n=alice,r=x,tokenauth",
        b"n,,n=alice,r=x,tokenauth=",
        b"n,,n=alice,r=x,",
        b"n,,n=alice,r=x\n",
        b"n,,n=alice,r=" + b"x" * MAX_MESSAGE_BYTES,
        b"x" * (1 << 20),
    ],
)
def test_what_is_no_first_message(message: bytes) -> None:
    one = server()
    with pytest.raises(SaslError) as raised:
        one.evaluate(message)
    assert (raised.value.code, raised.value.message) == (ErrorCode.SASL_AUTHENTICATION_FAILED, FAILED)
    with pytest.raises(SaslError):
        one.evaluate(b"n,,n=alice,r=client")


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"c=biws,r=clientserver",
        b"c=biws,r=clientserver,p=",
        b"c=biws,r=clientserver,p=AAAA",
        b"c=biws,r=clientserver,p=AAA",
        b"c=biws,r=clientserver,p=AB==",
        b"c=biw,r=clientserver,p=AAAA",
        b"c=biws,r=clientserver,p=" + base64.b64encode(bytes(31)),
        b"c=biws,r=clientserver,p=" + base64.b64encode(bytes(32)),
        b"c=biws,r=clientserver,p=" + base64.b64encode(bytes(33)),
        client_final(password="wrong"),
        client_final() + b",x=1",
        client_final()[:-1],
        b"\xff",
    ],
)
def test_what_is_no_proof(message: bytes) -> None:
    one = server()
    one.evaluate(b"n,,n=alice,r=client")
    with pytest.raises(SaslError, match=FAILED):
        one.evaluate(message)
    with pytest.raises(SaslError, match=FAILED):
        one.evaluate(client_final())
    assert not one.complete


def test_an_exchange_is_over_when_it_is_over() -> None:
    one = server()
    one.evaluate(b"n,,n=alice,r=client")
    one.evaluate(client_final())
    with pytest.raises(SaslError):
        one.evaluate(client_final())


def test_credentials_that_cannot_be_looked_up() -> None:
    def broken(name: str) -> None:
        raise LookupError("no image")

    with pytest.raises(SaslError, match=FAILED):
        ScramSaslServer(SHA_256, broken).evaluate(b"n,,n=alice,r=x")
    with pytest.raises(SaslError, match=FAILED):
        ScramSaslServer(SHA_256, USERS.get, broken).evaluate(b"n,,n=alice,r=x,tokenauth=TRUE")


# --- the client


def begun() -> ScramSaslClient:
    client = ScramSaslClient(SHA_256, "alice", "secret", client_nonce=lambda: "client")
    client.evaluate(None)
    return client


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (b"", "format"),
        (b"r=clientserver,s=c2FsdA==", "format"),
        (b"m=x,r=clientserver,s=c2FsdA==,i=4096", "format"),
        (b"r=clientserver,s=c2FsdA==,i=-1", "format"),
        (b"r=clientserver,s=c2FsdA==,i=99999999999", "format"),
        (b"r=clientserver,s=c2FsdA,i=4096", "base64"),
        (b"r=server,s=c2FsdA==,i=4096", "nonce"),
        (b"r=client,s=c2FsdA==,i=4096", "nonce"),
        (b"r=Clientserver,s=c2FsdA==,i=4096", "nonce"),
        (b"r=clientserver,s=c2FsdA==,i=4095", "4095 iterations"),
        (b"r=clientserver,s=c2FsdA==,i=0", "0 iterations"),
        (b"r=clientserver,s=c2FsdA==,i=2147483647", "2147483647 iterations"),
        (f"r=clientserver,s=c2FsdA==,i={MAX_CLIENT_ITERATIONS + 1}".encode(), "iterations"),
        (b"r=client" + b"x" * MAX_MESSAGE_BYTES + b",s=c2FsdA==,i=4096", "bytes"),
        (b"\xff", "format"),
    ],
)
def test_a_server_whose_first_message_is_not_believed(
    message: bytes, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*arguments: object) -> bytes:
        raise AssertionError("a password is worked on for such a server (CVE-2026-10143)")

    monkeypatch.setattr(scram, "salted_password", never)
    client = begun()
    with pytest.raises(SaslError, match=why):
        client.evaluate(message)
    with pytest.raises(SaslError):
        client.evaluate(b"r=clientserver,s=c2FsdA==,i=4096")
    assert not client.complete


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (b"", "format"),
        (b"v=", "does not know the password"),
        (b"v=" + base64.b64encode(bytes(32)), "does not know the password"),
        (b"v=AAA", "base64"),
        (b"e=other-error", "'other-error'"),
        (b"e=other-error,v=AAAA", "'other-error'"),
        (b"\xff", "format"),
        (b"x" * (1 << 20), "bytes"),
    ],
)
def test_a_server_that_has_not_signed_is_not_believed(message: bytes, why: str) -> None:
    client = begun()
    client.evaluate(b"r=clientserver,s=c2FsdA==,i=4096")
    with pytest.raises(SaslError, match=why) as raised:
        client.evaluate(message)
    assert "secret" not in str(raised.value)
    assert not client.complete


def test_a_client_from_its_jaas_text() -> None:
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    (entry,) = parse_jaas(f"{module} required username=id password='aGFzaA==' tokenauth=True;")
    one = server()
    exchange(ScramSaslClient.from_jaas(SHA_256, entry), one)
    assert one.authorization_id == "bob"
    (entry,) = parse_jaas(f"{module} required username=alice password=secret;")
    exchange(ScramSaslClient.from_jaas(SHA_256, entry), server())
    with pytest.raises(ConfigError, match="UTF-8"):
        ScramSaslClient(SHA_256, "\udc80", "secret")
    with pytest.raises(SaslError):
        ScramSaslClient(SHA_256, "alice", "secret").evaluate(b"first")


def test_secrets_are_not_shown() -> None:
    shown = f"{ALICE!r} {TOKENS!r} {begun()!r} {server()!r}"
    assert "secret" not in shown
    for key in (ALICE.salt, ALICE.stored_key, ALICE.server_key):
        assert repr(key)[2:-1] not in shown


# --- whatever is sent


@settings(max_examples=30)
@given(names, names, st.sampled_from([SHA_256, SHA_512]), st.binary(max_size=40), st.booleans())
def test_any_name_and_password(
    name: str, password: str, mechanism: Mechanism, salt: bytes, by_token: bool
) -> None:
    stored = credential(password, mechanism, salt)
    token = ScramToken("owner", lambda salt: credential(password, mechanism, salt), 7)
    one = ScramSaslServer(mechanism, {name: stored}.get, {name: token}.get)
    exchange(ScramSaslClient(mechanism, name, password, token_auth=by_token), one)
    assert (one.authorization_id, one.expires_at_ms) == (("owner", 7) if by_token else (name, None))
    with pytest.raises(SaslError):
        exchange(
            ScramSaslClient(mechanism, name, password + "x"), ScramSaslServer(mechanism, {name: stored}.get)
        )


def mangled(message: bytes) -> st.SearchStrategy[bytes]:
    """Something else than the message, mostly not much else."""

    def changed(position: int, removed: int, added: bytes) -> bytes:
        return message[:position] + added + message[position + removed :]

    added = st.binary(max_size=3) | st.sampled_from([b",", b"=", b"=2C", b",x=y", b"m=x,", b"p="])
    positions = st.integers(0, len(message))
    near = st.builds(changed, positions, st.integers(0, 3), added).filter(lambda other: other != message)
    return near | st.binary()


def only_sasl_errors(evaluate: Callable[[bytes], bytes | None], message: bytes) -> None:
    with suppress(SaslError):
        evaluate(message)


@given(st.binary() | mangled(b"n,a=alice,n=alice,r=client,tokenauth=true"))
def test_whatever_a_client_sends_first_only_a_sasl_error_comes_out(message: bytes) -> None:
    only_sasl_errors(server().evaluate, message)


@given(mangled(client_final()))
def test_whatever_a_client_sends_last_it_is_no_proof(message: bytes) -> None:
    one = server()
    one.evaluate(b"n,,n=alice,r=client")
    with pytest.raises(SaslError):
        one.evaluate(message)


@settings(max_examples=50)
@given(mangled(b"r=clientserver,s=c2FsdA==,i=4096"))
def test_whatever_a_server_sends_first_only_a_sasl_error_comes_out(message: bytes) -> None:
    client = begun()
    only_sasl_errors(client.evaluate, message)
    assert not client.complete


@settings(max_examples=50)
@given(st.binary() | mangled(b"v=" + base64.b64encode(bytes(32))))
def test_whatever_a_server_sends_last_it_has_not_signed(message: bytes) -> None:
    client = begun()
    client.evaluate(b"r=clientserver,s=c2FsdA==,i=4096")
    with pytest.raises(SaslError):
        client.evaluate(message)
    assert not client.complete


# ---- planted bugs -----------------------------------------------------------------------------------------------


class ProofNotCompared(ScramSaslServer):
    """Takes any proof of a user that there is."""

    def _is_proof(self, proof: bytes, auth_message: bytes) -> bool:
        super()._is_proof(proof, auth_message)
        return True


class OwnStoredKeyCompared(ScramSaslServer):
    """Compares the stored key with itself."""

    def _is_proof(self, proof: bytes, auth_message: bytes) -> bool:
        stored_key = self._claim.credential.stored_key
        return hmac.compare_digest(stored_key, stored_key)


@pytest.mark.parametrize("broken", [ProofNotCompared, OwnStoredKeyCompared])
@pytest.mark.parametrize(
    "check",
    [
        lambda: test_who_may_not_fails_at_the_proof_with_the_same_words("alice", "wrong", False),
        lambda: test_who_may_not_fails_at_the_proof_with_the_same_words("id", "wrong", True),
    ],
)
def test_a_proof_that_is_not_compared_is_found(
    monkeypatch: pytest.MonkeyPatch, broken: type[ScramSaslServer], check: Callable[[], None]
) -> None:
    monkeypatch.setitem(globals(), "ScramSaslServer", broken)
    assert type(server()) is broken
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        check()


def test_a_servers_signature_that_is_not_compared_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scram.hmac, "compare_digest", lambda one, other: True)
    with pytest.raises(pytest.fail.Exception):
        test_a_server_that_has_not_signed_is_not_believed(b"v=" + base64.b64encode(bytes(32)), "password")
