"""GSSAPI: the negotiation of RFC 4752 as Java's sides have it, over a context that is a test's own."""

import sys
from contextlib import suppress
from types import SimpleNamespace
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.security.sasl.support import exchange

from ottla.config.errors import ConfigError
from ottla.security.sasl.gssapi import (
    MAX_ROUNDS,
    MAX_TOKEN_BYTES,
    GssapiSaslClient,
    GssapiSaslServer,
    KerberosLogin,
    accept_context,
    initiate_context,
    kerberos_login,
)
from ottla.security.sasl.jaas import parse_jaas
from ottla.security.sasl.kerberos import KerberosName, KerberosShortNamer
from ottla.security.sasl.mechanisms import SaslClient, SaslError, SaslServer

MODULE = "com.sun.security.auth.module.Krb5LoginModule"
FAILED = "Authentication failed during authentication due to invalid credentials with SASL mechanism GSSAPI"
NAMER = KerberosShortNamer("R", ["DEFAULT", "RULE:[1:$1]s/nobody//"])


class GssError(Exception):
    def __init__(self, text: str, min_code: int = 0, maj_code: int = 0) -> None:
        super().__init__(text)
        self.min_code = min_code
        self.maj_code = maj_code


class Message(NamedTuple):
    message: bytes
    encrypted: bool = False


class Context:
    """Says what it is told to, step by step; its seal is a word before the message."""

    def __init__(
        self, *steps: bytes | Exception | None, name: str = "alice@R", takes: list[bytes | None] | None = None
    ) -> None:
        self._steps = list(steps)
        self._takes = takes
        self.initiator_name = name

    @property
    def complete(self) -> bool:
        return not self._steps

    def step(self, token: bytes | None = None) -> bytes | None:
        if self._takes is not None and token != self._takes.pop(0):
            raise GssError("a token was invalid")
        said = self._steps.pop(0)
        if isinstance(said, Exception):
            raise said
        return said

    def wrap(self, message: bytes, encrypt: bool) -> Message:
        assert not encrypt
        return Message(b"sealed" + message)

    def unwrap(self, message: bytes) -> Message:
        if not message.startswith(b"sealed"):
            raise GssError("a token had an invalid seal")
        return Message(message.removeprefix(b"sealed"))


def server(*steps: bytes | Exception | None, name: str = "alice@R") -> GssapiSaslServer:
    return GssapiSaslServer(lambda: Context(*steps, name=name), NAMER)


OFFER = b"sealed\x01\x01\x00\x00"


def test_both_sides_that_prove_themselves() -> None:
    one: SaslServer = GssapiSaslServer(lambda: Context(b"AP-REP", takes=[b"AP-REQ"]), NAMER)
    other: SaslClient = GssapiSaslClient(Context(b"AP-REQ", None, takes=[None, b"AP-REP"]))
    assert (one.is_slow, other.is_slow) == (True, True)
    assert exchange(other, one) == [b"AP-REQ", b"AP-REP", b"", OFFER, OFFER, b""]
    assert (one.authorization_id, one.token_authenticated, one.expires_at_ms) == ("alice", False, None)


def test_a_client_that_does_not_ask_who_the_server_is() -> None:
    """Java's, and the offer comes at once."""
    one = server(None, name="kafka/host@R")
    assert exchange(GssapiSaslClient(Context(b"AP-REQ")), one) == [b"AP-REQ", OFFER, OFFER, b""]
    assert one.authorization_id == "kafka"
    assert one.kerberos_name == KerberosName("kafka", "host", "R")


@pytest.mark.parametrize(
    "chosen",
    [b"\x01\0\0\0", b"\x01\x01\0\0", b"\x01\x01\0\0alice@R", b"\x01\x01\0\0kafka@host", b"\x01\0\0\0\xff"],
)
def test_who_a_client_is_says_its_ticket(chosen: bytes) -> None:
    one = server(None)
    one.evaluate(b"AP-REQ")
    assert one.evaluate(b"sealed" + chosen) == b""
    assert one.authorization_id == "alice"


@pytest.mark.parametrize(
    "chosen",
    [
        b"",
        b"sealed",
        b"\x01\0\0\0",
        b"sealed\x01\0\0",
        b"sealed\0\0\0\0",
        b"sealed\x02\0\0\0",
        b"sealed\x03\0\0\0",
    ],
)
def test_another_layer_is_refused(chosen: bytes) -> None:
    one = server(None)
    one.evaluate(b"AP-REQ")
    with pytest.raises(SaslError, match=FAILED):
        one.evaluate(chosen)
    with pytest.raises(SaslError):
        one.evaluate(OFFER)
    assert not one.complete
    assert one.authorization_id == ""


@pytest.mark.parametrize(
    "name", ["alice@OTHER/", "a/b/c@R", "alice/x@OTHER", "nobody@OTHER", "@R", "", "a@b@R"]
)
def test_a_ticket_that_stands_for_no_user(name: str) -> None:
    one = server(None, name=name)
    one.evaluate(b"AP-REQ")
    with pytest.raises(SaslError, match=FAILED):
        one.evaluate(OFFER)
    assert not one.complete


def test_a_ticket_that_is_not_accepted() -> None:
    one = server(GssError("Wrong principal in request"))
    with pytest.raises(SaslError, match=FAILED) as raised:
        one.evaluate(b"AP-REQ")
    assert raised.value.reason == "GSS accept failed: Wrong principal in request"
    assert not raised.value.retriable
    with pytest.raises(SaslError):
        one.evaluate(b"AP-REQ")


@pytest.mark.parametrize("code", [21, 33, 34])
def test_a_ticket_that_may_be_accepted_in_a_moment(code: int) -> None:
    for minor in (-1765328384 + code, (-1765328384 + code) & 0xFFFFFFFF):
        with pytest.raises(SaslError) as raised:
            server(GssError("Request is a replay", minor)).evaluate(b"AP-REQ")
        assert raised.value.retriable


def test_a_client_without_a_ticket_may_have_one_in_a_moment() -> None:
    no_credential = GssError("No credentials were supplied", maj_code=7 << 16)
    with pytest.raises(SaslError, match="No credentials") as raised:
        GssapiSaslClient(Context(no_credential)).evaluate(None)
    assert raised.value.retriable
    with pytest.raises(SaslError) as raised:
        server(no_credential).evaluate(b"AP-REQ")
    assert not raised.value.retriable


def test_an_exchange_that_would_never_end() -> None:
    one = server(*[b"more"] * 100)
    for _ in range(MAX_ROUNDS - 1):
        assert one.evaluate(b"token") == b"more"
    with pytest.raises(SaslError):
        one.evaluate(b"token")
    with pytest.raises(SaslError):
        server(None, b"more").evaluate(b"token")
    client = GssapiSaslClient(Context(b"AP-REQ"))
    for _ in range(MAX_ROUNDS):
        assert client.evaluate(b"") is not None
    with pytest.raises(SaslError, match="never comes to an end"):
        client.evaluate(b"")


def test_tokens_are_bounded() -> None:
    with pytest.raises(SaslError):
        server(None).evaluate(bytes(MAX_TOKEN_BYTES + 1))
    with pytest.raises(SaslError):
        GssapiSaslClient(Context(b"AP-REQ")).evaluate(bytes(MAX_TOKEN_BYTES + 1))


def test_data_where_none_is_expected() -> None:
    one = server(b"AP-REP")
    one.evaluate(b"AP-REQ")
    with pytest.raises(SaslError):
        one.evaluate(b"more")


@pytest.mark.parametrize("offer", [b"sealed", b"sealed\x01\0\0", b"sealed\x06\0\0\0", b"\x01\0\0\0"])
def test_a_server_that_offers_layers_only(offer: bytes) -> None:
    client = GssapiSaslClient(Context(b"AP-REQ"))
    client.evaluate(None)
    with pytest.raises(SaslError, match=r"protection layer|seal"):
        client.evaluate(offer)
    assert not client.complete


def test_an_exchange_is_over_when_it_is_over() -> None:
    one, client = server(None), GssapiSaslClient(Context(b"AP-REQ"))
    exchange(client, one)
    for side in (one, client):
        with pytest.raises(SaslError):
            side.evaluate(OFFER)


@given(st.lists(st.binary() | st.binary().map(lambda data: b"sealed" + data), max_size=4), st.booleans())
def test_whatever_is_sent_only_a_sasl_error_comes_out(messages: list[bytes], mutual: bool) -> None:
    for side in (
        server(b"AP-REP" if mutual else None),
        GssapiSaslClient(Context(b"AP-REQ", *[None] * mutual)),
    ):
        for message in messages:
            with suppress(SaslError):
                side.evaluate(message)


# --- what is asked of the package


def test_a_login_of_a_jaas_text() -> None:
    text = f"""{MODULE} required useKeyTab=true storeKey=true
        keyTab="/etc/kafka.keytab" principal="kafka/host@R" serviceName="kafka" ticketCache="/tmp/cc";"""
    assert kerberos_login(parse_jaas(text)[0]) == KerberosLogin(
        "kafka/host@R", "/etc/kafka.keytab", None, "kafka"
    )
    (entry,) = parse_jaas(f"{MODULE} required useTicketCache=true ticketCache='/tmp/cc' keyTab='/x';")
    assert kerberos_login(entry) == KerberosLogin(None, None, "/tmp/cc", None)
    (entry,) = parse_jaas(f"{MODULE} required useKeyTab=True keyTab='FILE:/x';")
    assert kerberos_login(entry).keytab == "/x"
    with pytest.raises(ConfigError, match="no keyTab"):
        kerberos_login(parse_jaas(f"{MODULE} required useKeyTab=true;")[0])


def test_without_the_extra_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gssapi", None)
    with pytest.raises(ConfigError, match=r"\.\[kerberos\]"):
        accept_context(KerberosLogin(None, None, None, None))


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Returns what it was called with."""
    fake = SimpleNamespace(
        Name=lambda text, kind: (text, kind),
        NameType=SimpleNamespace(hostbased_service="service", kerberos_principal="principal"),
        MechType=SimpleNamespace(kerberos="krb5"),
        RequirementFlag=SimpleNamespace(mutual_authentication=2, integrity=32),
        Credentials=lambda **arguments: arguments,
        SecurityContext=lambda **arguments: arguments,
    )
    monkeypatch.setitem(sys.modules, "gssapi", fake)
    return fake


def test_contexts_are_of_kerberos_and_the_server_proves_itself(package: SimpleNamespace) -> None:
    login = KerberosLogin("kafka/host@R", "/k", None, None)
    name = ("kafka/host@R", "principal")
    accepting = {"name": name, "usage": "accept", "mechs": ["krb5"], "store": {"keytab": "/k"}}
    assert accept_context(login) == {"creds": accepting, "usage": "accept"}
    initiating = {"name": None, "usage": "initiate", "mechs": ["krb5"], "store": {"ccache": "/tmp/cc"}}
    assert initiate_context(KerberosLogin(None, None, "/tmp/cc", None), "kafka", "broker1") == {
        "name": ("kafka@broker1", "service"),
        "creds": initiating,
        "usage": "initiate",
        "mech": "krb5",
        "flags": 34,
    }


def test_a_login_that_fails(package: SimpleNamespace) -> None:
    def fails(**arguments: object) -> None:
        raise GssError("No key table entry found")

    package.Credentials = fails
    login = KerberosLogin(None, None, None, None)
    with pytest.raises(SaslError) as raised:
        accept_context(login)
    assert "No key table entry" in raised.value.reason
    with pytest.raises(SaslError, match="No key table entry"):
        initiate_context(login, "kafka", "broker1")
