"""Contexts made of settings, and handshakes between them in memory."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import shutil
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.support.certificates import Authority
from tests.support.der_writer import attribute, certificate, name, tlv
from tests.support.tls_stores import KEY_PASSWORD, PASSWORD, Stores

from ottla.config.definitions import BROKER_KEYS
from ottla.config.errors import ConfigError
from ottla.security.tls import contexts
from ottla.security.tls.contexts import (
    TlsSettings,
    certificate_changes,
    client_context,
    handshake_error,
    load_key_material,
    server_context,
    tls_settings,
    trust_error,
    verifies,
)
from ottla.security.tls.names import read_certificate
from ottla.security.tls.stores import KeyMaterial, pem

pytestmark = pytest.mark.xdist_group("keytool")


def settings(**given: Any) -> TlsSettings:
    """`keystore_type="JKS"` for ssl.keystore.type=JKS; as a broker has them, with its defaults."""
    values = {key: BROKER_KEYS[key].default for key in BROKER_KEYS if key.startswith("ssl.")}
    values |= {f"ssl.{key.replace('_', '.')}": value for key, value in given.items()}
    return tls_settings(values.get)


def keyed(stores: Stores, alias: str, kind: str = "PKCS12") -> dict[str, Any]:
    path = stores.key_store(alias, kind)
    return {"keystore_location": str(path), "keystore_type": kind, "keystore_password": PASSWORD}


def trusting(stores: Stores, alias: str, kind: str = "PKCS12") -> dict[str, Any]:
    path = stores.trust_store(alias, kind)
    return {"truststore_location": str(path), "truststore_type": kind, "truststore_password": PASSWORD}


NO_NAMES = {"endpoint_identification_algorithm": ""}


def shaken(
    server: TlsSettings, client: TlsSettings, host: str | None = None
) -> tuple[ssl.SSLObject, ssl.SSLObject, str | None]:
    """Both ends after a handshake, and what one of them had against it."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    near = client_context(client).wrap_bio(to_client, to_server, server_hostname=host)
    far = server_context(server).wrap_bio(to_server, to_client, server_side=True)
    waiting = [near, far]
    for _ in range(10):
        for end in list(waiting):
            try:
                end.do_handshake()
                waiting.remove(end)
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError as error:
                return near, far, str(error)
    assert not waiting
    return near, far, None


@pytest.mark.parametrize("kind", ["JKS", "PKCS12"])
def test_both_know_each_other(stores: Stores, kind: str) -> None:
    node = settings(**keyed(stores, "node", kind), **trusting(stores, "ca", kind), client_auth="required")
    user = settings(**keyed(stores, "client", kind), **trusting(stores, "ca", kind))
    near, far, error = shaken(node, user, "localhost")
    assert error is None
    assert near.version() == far.version() == "TLSv1.3"
    peer = far.getpeercert(binary_form=True)
    assert peer is not None
    assert read_certificate(peer).name == "CN=alice,O=Users"
    assert near.getpeercert() != {}


@pytest.mark.parametrize(
    ("auth", "alias", "problem"),
    [
        ("none", None, None),
        ("none", "stranger", None),
        ("requested", None, None),
        ("requested", "client", None),
        ("requested", "stranger", "certificate verify failed"),
        ("required", None, "did not return a certificate"),
        ("required", "stranger", "certificate verify failed"),
    ],
)
def test_client_auth(stores: Stores, auth: str, alias: str | None, problem: str | None) -> None:
    node = settings(**keyed(stores, "node"), **trusting(stores, "ca"), client_auth=auth)
    user = settings(**({} if alias is None else keyed(stores, alias)), **trusting(stores, "ca"))
    _, far, error = shaken(node, user, "127.0.0.1")
    if problem is None:
        assert error is None
        assert (far.getpeercert(binary_form=True) is not None) == (alias is not None and auth != "none")
    else:
        assert error is not None
        assert problem in error


def test_servers_that_a_client_does_not_take(stores: Stores) -> None:
    node = settings(**keyed(stores, "node"))
    user = settings(**trusting(stores, "ca"))
    assert "Hostname mismatch" in (shaken(node, user, "example.org")[2] or "")
    assert shaken(node, settings(**trusting(stores, "ca"), **NO_NAMES), "example.org")[2] is None
    assert "verify failed" in (shaken(settings(**keyed(stores, "stranger")), user, "localhost")[2] or "")
    # One that is in the store itself is trusted, whoever signed it.
    assert shaken(node, settings(**trusting(stores, "node")), "localhost")[2] is None
    # Without a store the system's authorities decide.
    assert "verify failed" in (shaken(node, settings(), "localhost")[2] or "")


def test_certificates_that_have_expired(tmp_path: Path) -> None:
    """On whichever side: a server's is refused by clients and other nodes, a client's where one is required."""
    authority = Authority(tmp_path)

    def store(days: int) -> TlsSettings:
        identity = authority.issue(days=days)
        path = tmp_path / f"{days}.pem"
        path.write_bytes(identity.key.read_bytes() + identity.certificate.read_bytes())
        return settings(
            keystore_type="PEM",
            keystore_location=str(path),
            truststore_type="PEM",
            truststore_location=str(authority.certificate),
            client_auth="required",
        )

    good, late = store(2), store(-1)
    assert shaken(good, good, "localhost")[2] is None
    assert "certificate has expired" in (shaken(late, good, "localhost")[2] or "")
    assert "expired" in (shaken(good, late, "localhost")[2] or "")


@pytest.mark.parametrize(
    ("server", "client", "version"),
    [
        ({}, {}, "TLSv1.3"),
        ({"enabled_protocols": ("TLSv1.2",)}, {}, "TLSv1.2"),
        ({}, {"enabled_protocols": "TLSv1.2"}, "TLSv1.2"),
        ({}, {"protocol": "TLSv1.2"}, "TLSv1.2"),
        ({"protocol": "TLSv1.2"}, {}, "TLSv1.3"),
        ({"enabled_protocols": "TLSv1.3"}, {"enabled_protocols": "TLSv1.2"}, None),
        ({"cipher_suites": "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"}, {}, "TLSv1.2"),
        (
            {"cipher_suites": "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"},
            {"enabled_protocols": "TLSv1.3"},
            None,
        ),
    ],
)
def test_protocols(
    stores: Stores, server: dict[str, Any], client: dict[str, Any], version: str | None
) -> None:
    node = settings(**keyed(stores, "node"), **server)
    near, _, error = shaken(node, settings(**trusting(stores, "ca"), **client), "localhost")
    assert (near.version() if error is None else None) == version
    if "cipher_suites" in server and version:
        assert (near.cipher() or ())[0] == "ECDHE-ECDSA-AES256-GCM-SHA384"


def test_what_is_always_off(stores: Stores) -> None:
    context = server_context(settings(**keyed(stores, "node")))
    for option in (ssl.OP_NO_COMPRESSION, ssl.OP_NO_RENEGOTIATION, ssl.OP_NO_TICKET):
        assert context.options & option
    assert context.num_tickets == 0
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    client = client_context(settings(**trusting(stores, "ca")))
    assert client.options & ssl.OP_NO_RENEGOTIATION
    assert client.verify_mode is ssl.CERT_REQUIRED


def test_no_session_is_taken_up_again(stores: Stores) -> None:
    node = server_context(settings(**keyed(stores, "node")))
    user = client_context(settings(**trusting(stores, "ca"), **NO_NAMES))
    session = None
    for _ in range(2):
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        near = user.wrap_bio(to_client, to_server, session=session)
        far = node.wrap_bio(to_server, to_client, server_side=True)
        for end in (near, far, near, far):
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
        far.write(b"x")
        assert near.read(1) == b"x"
        assert not near.session_reused
        session = near.session
        assert session is None or not session.has_ticket


def test_keys_leave_no_file_behind(stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = settings(**keyed(stores, "node"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = set(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else set()
    server_context(given)
    # Where there is no memory to name as a file.
    monkeypatch.delattr(os, "memfd_create", raising=False)
    modes: list[int] = []
    made = contexts.tempfile.mkstemp

    def mkstemp(**words: Any) -> tuple[int, str]:
        handle, path = made(**words)
        modes.append(os.stat(path).st_mode & 0o777)
        return handle, path

    monkeypatch.setattr("tempfile.mkstemp", mkstemp)
    server_context(given)
    assert modes == [0o600]
    assert list(tmp_path.iterdir()) == []
    if before:
        assert set(os.listdir("/proc/self/fd")) == before


# -- PEM, inline and encrypted, and errors ----------------------------------------------------------------


def inline(stores: Stores, alias: str = "node") -> dict[str, Any]:
    found = load_key_material(settings(**keyed(stores, alias)))
    chain = b"".join(pem(one, "CERTIFICATE") for one in found.chain).decode()
    return {
        "keystore_type": "PEM",
        "keystore_key": (found.private_key or b"").decode(),
        "keystore_certificate_chain": chain,
    }


def test_inline_pem(stores: Stores) -> None:
    ca = stores.certificate("ca").read_text()
    user = settings(truststore_type="PEM", truststore_certificates=ca)
    assert shaken(settings(**inline(stores)), user, "localhost")[2] is None


def test_librdkafkas_names(stores: Stores, tmp_path: Path) -> None:
    texts = inline(stores, "client")
    (tmp_path / "key.pem").write_text(texts["keystore_key"])
    (tmp_path / "cert.pem").write_text(texts["keystore_certificate_chain"])
    given = {
        "ssl.ca.location": str(stores.certificate("ca")),
        "ssl.certificate.location": str(tmp_path / "cert.pem"),
        "ssl.key.location": str(tmp_path / "key.pem"),
    }
    node = settings(**keyed(stores, "node"), **trusting(stores, "ca"), client_auth="required")
    assert shaken(node, tls_settings(given.get, pem_files=True), "localhost")[2] is None
    assert not tls_settings(given.get).trust_store.is_set


def refused(said: str, given: TlsSettings | dict[str, Any], make: Any = server_context) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        make(given if isinstance(given, TlsSettings) else settings(**given))
    line = str(caught.value)
    assert "\n" not in line
    assert caught.value.key is not None
    for secret in (PASSWORD, KEY_PASSWORD, "BEGIN"):
        assert secret not in line


def test_a_key_of_another_certificate(stores: Stores) -> None:
    mixed = inline(stores) | {"keystore_key": inline(stores, "client")["keystore_key"]}
    refused("ssl.keystore.key: the private key does not belong to the certificate", mixed)
    refused("does not belong", mixed, client_context)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the keys")
def test_keys_that_only_openssl_opens(stores: Stores, tmp_path: Path) -> None:
    """scrypt, and PEM from before PKCS#8."""
    texts = inline(stores)
    plain, locked = tmp_path / "plain.pem", tmp_path / "locked.pem"
    plain.write_text(texts["keystore_key"])
    for how in (["pkcs8", "-topk8", "-scrypt"], ["ec", "-aes256"]):
        words = ["-in", str(plain), "-out", str(locked), "-passout", f"pass:{KEY_PASSWORD}"]
        subprocess.run(["openssl", *how, *words], check=True, capture_output=True)
        given = texts | {"keystore_key": locked.read_text()}
        server_context(settings(**given, key_password=KEY_PASSWORD))
        for wrong in ("other", "", "x" * 2000):
            refused("ssl.keystore.key: ssl.key.password does not open", given | {"key_password": wrong})
        mixed = given | {"key_password": KEY_PASSWORD}
        refused(
            "does not belong",
            mixed | {"keystore_certificate_chain": stores.certificate("client").read_text()},
        )


def test_a_key_that_is_none(stores: Stores) -> None:
    refused(
        "cannot be used",
        inline(stores) | {"keystore_key": pem(b"\x30\x03\x02\x01\x00", "PRIVATE KEY").decode()},
    )


def test_settings_that_do_not_go_together(stores: Stores) -> None:
    texts = inline(stores)
    refused("a listener with TLS needs a key", {})
    refused(
        "ssl.keystore.key is set, but ssl.keystore.certificate.chain is not",
        {"keystore_key": texts["keystore_key"]},
    )
    refused("certificate.chain is set, but ssl.keystore.key is not", {"keystore_certificate_chain": "x"})
    refused(
        "ssl.keystore.key is for PEM only, but ssl.keystore.type is JKS", texts | {"keystore_type": "JKS"}
    )
    refused("ssl.keystore.key and ssl.keystore.location are both set", texts | {"keystore_location": "/x"})
    refused("ssl.keystore.key and ssl.keystore.password are both set", texts | {"keystore_password": "x"})
    refused("ssl.keystore.password is set, but ssl.keystore.location is not", {"keystore_password": PASSWORD})
    refused("ssl.truststore.password is set, but", {"truststore_password": PASSWORD})
    refused("ssl.keystore.password is not set", keyed(stores, "node") | {"keystore_password": None})
    refused("trust.*no trusted certificate in it", _emptied(stores), client_context)


def _emptied(stores: Stores) -> dict[str, Any]:
    return trusting(stores, "ca") | {"truststore_password": None}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"engine_factory_class": "x.Y"}, "ssl.engine.factory.class: 'x.Y' is not supported"),
        ({"provider": "BC"}, "ssl.provider: 'BC' is not supported"),
        ({"secure_random_implementation": "SHA1PRNG"}, "ssl.secure.random.implementation"),
        ({"keymanager_algorithm": "NewSunX509"}, "only SunX509 is"),
        ({"trustmanager_algorithm": "SunX509"}, "only PKIX is"),
        ({"protocol": "TLSv1.1"}, "ssl.protocol: 'TLSv1.1' is out of use, as in Java 17"),
        ({"enabled_protocols": ("TLSv1.2", "TLSv1")}, "ssl.enabled.protocols: 'TLSv1' is out of use"),
        ({"enabled_protocols": "TLSv1.4"}, "'TLSv1.4' is not known"),
        ({"client_auth": "want"}, "ssl.client.auth: 'want' is none of none, requested, required"),
        ({"endpoint_identification_algorithm": "LDAPS"}, "'ldaps' is not supported"),
    ],
)
def test_settings_that_cannot_be_meant(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        settings(**given)
    assert caught.value.key is not None


def test_a_client_without_a_protocol() -> None:
    refused(
        "ssl.protocol is TLSv1.2, but",
        {"protocol": "TLSv1.2", "enabled_protocols": "TLSv1.3"},
        client_context,
    )


def test_settings_are_values() -> None:
    """Kept by, sent to other processes, and shown without secrets."""
    given = settings(keystore_location="/k", keystore_password=PASSWORD, key_password=KEY_PASSWORD)
    assert pickle.loads(pickle.dumps(given)) == given
    assert len({given, settings(), settings()}) == 2
    assert PASSWORD not in repr(given)
    assert KEY_PASSWORD not in repr(given)
    assert "PRIVATE" not in repr(
        settings(keystore_type="PEM", keystore_key="PRIVATE", keystore_certificate_chain="x")
    )


def test_an_expired_certificate_is_a_warning(stores: Stores, caplog: pytest.LogCaptureFixture) -> None:
    old = certificate(name(attribute("2.5.4.3", b"old")), until="20250101000000Z")
    ours = inline(stores) | {"keystore_certificate_chain": pem(old, "CERTIFICATE").decode()}
    with caplog.at_level(logging.WARNING):
        load_key_material(settings(**ours))
    assert caplog.messages == ["the certificate of CN=old expired on 2025-01-01 00:00:00+00:00"]


# -- changes ----------------------------------------------------------------------------------------------


def one(common_name: str, *hosts: str) -> list[bytes]:
    return [
        certificate(
            name(attribute("2.5.4.3", common_name.encode())), *(tlv(0x82, host.encode()) for host in hosts)
        )
    ]


@pytest.mark.parametrize(
    ("old", "new", "allowed", "said"),
    [
        (one("a", "x"), one("a", "x"), (False, False), None),
        (one("a", "x"), one("A ", "x", "y"), (False, False), None),
        (
            one("a", "x"),
            one("b", "x"),
            (False, False),
            "DistinguishedName does not match: existing=CN=a, new=CN=b",
        ),
        (one("a", "x"), one("b", "x"), (True, False), None),
        (one("a", "x", "y"), one("a", "y"), (True, False), "lacks x"),
        (one("a", "x", "y"), one("a", "y"), (False, True), None),
        ([], [], (False, False), None),
        ([], one("a"), (True, True), "cannot be added to a listener"),
        (one("a"), [], (True, True), "cannot be removed from a listener"),
        (one("a"), [b"x"], (True, True), "cannot be read"),
    ],
)
def test_what_may_change(
    old: list[bytes], new: list[bytes], allowed: tuple[bool, bool], said: str | None
) -> None:
    found = certificate_changes(old, new, *allowed)
    assert found is None if said is None else found is not None and said in found


def test_brokers_trust_their_own(stores: Stores) -> None:
    node, ca, stranger = (
        load_key_material(settings(**keyed(stores, "node"), **trusting(stores, alias)))
        for alias in ("ca", "ca", "stranger")
    )
    assert verifies(node, ca.trusted)
    assert verifies(node, ca.trusted, client_auth="required")
    assert not verifies(node, stranger.trusted)
    assert trust_error(node, stranger.trusted) == "self-signed certificate in certificate chain"
    assert "no trusted certificate" in (trust_error(node, []) or "")
    assert "no private key" in (trust_error(KeyMaterial(), ca.trusted) or "")


def test_old_and_new_must_speak(stores: Stores) -> None:
    both = {**keyed(stores, "node"), **trusting(stores, "ca"), **NO_NAMES}
    old, new = settings(**both, enabled_protocols="TLSv1.2"), settings(**both, enabled_protocols="TLSv1.3")
    assert handshake_error(server_context(old), client_context(old)) is None
    assert handshake_error(server_context(old), client_context(new)) is not None
