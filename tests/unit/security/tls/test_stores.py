"""Stores as keytool and openssl write them: what is read from them, and what is said of those that are bad."""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.support.der_writer import attribute, certificate, name
from tests.support.tls_stores import KEY_PASSWORD, PASSWORD, Stores, run_keytool

from ottla.config.errors import ConfigError
from ottla.security.tls import decrypt
from ottla.security.tls import stores as reader
from ottla.security.tls.names import read_certificate
from ottla.security.tls.stores import (
    KeyEntry,
    KeyMaterial,
    Store,
    StoreSettings,
    parse_store,
    read_key_store,
    read_trust_store,
)

pytestmark = pytest.mark.xdist_group("keytool")
needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the store")


def key_store(location: Path | str, kind: str | None = None, **more: Any) -> KeyMaterial:
    settings: dict[str, Any] = {"password": PASSWORD, **more}
    return read_key_store(StoreSettings("ssl.keystore", kind, str(location), **settings))


def trust_store(location: Path | str, kind: str | None = None, **more: Any) -> tuple[bytes, ...]:
    settings: dict[str, Any] = {"password": PASSWORD, **more}
    return read_trust_store(StoreSettings("ssl.truststore", kind, str(location), **settings)).trusted


def names(chain: tuple[bytes, ...]) -> list[str]:
    return [read_certificate(data).name for data in chain]


def refused(said: str, read: Any, *words: Any, **more: Any) -> ConfigError:
    with pytest.raises(ConfigError, match=said) as caught:
        read(*words, **more)
    line = str(caught.value)
    assert "\n" not in line
    for secret in (PASSWORD, KEY_PASSWORD, "wrong-secret"):
        assert secret not in line
    assert caught.value.__cause__ is None
    return caught.value


@pytest.mark.parametrize("kind", ["JKS", "PKCS12"])
def test_a_key_and_its_chain(stores: Stores, kind: str) -> None:
    found = key_store(stores.key_store("node", kind), kind)
    assert names(found.chain) == ["CN=node-1.example.org,OU=Brokers,O=Ottla\\, Inc.,C=CZ", "CN=Authority"]
    assert found.private_key is not None
    assert found.private_key.startswith(b"-----BEGIN PRIVATE KEY-----\n")
    assert "PRIVATE" not in repr(found)
    assert PASSWORD not in repr(StoreSettings("ssl.keystore", password=PASSWORD, key_password=PASSWORD))


def test_all_kinds_hold_the_same(stores: Stores) -> None:
    jks, p12, legacy = (
        key_store(stores.key_store("node", kind, legacy=old))
        for kind, old in (("JKS", False), ("PKCS12", False), ("PKCS12", True))
    )
    assert jks == p12 == legacy


@pytest.mark.parametrize(
    ("kind", "named"), [("JKS", "PKCS12"), ("PKCS12", "JKS"), ("PKCS12", "pkcs12"), ("JKS", None)]
)
def test_javas_kinds_are_taken_for_each_other(stores: Stores, kind: str, named: str | None) -> None:
    assert key_store(stores.key_store("node", kind), named).chain
    assert len(trust_store(stores.trust_store("ca", kind), named)) == 1


def test_a_key_may_have_a_password_of_its_own(stores: Stores) -> None:
    path = stores.key_store("node", "JKS", key_password=KEY_PASSWORD)
    assert key_store(path, key_password=KEY_PASSWORD) == key_store(stores.key_store("node", "JKS"))
    error = refused("the password \\(ssl.keystore.password\\) does not open the key 'node'", key_store, path)
    assert error.key == "ssl.keystore.location"
    refused("\\(ssl.key.password\\) does not open", key_store, path, key_password="wrong-secret")


@pytest.mark.parametrize("kind", ["JKS", "PKCS12"])
def test_trusted_certificates(stores: Stores, kind: str) -> None:
    path = stores.trust_store("ca", kind)
    assert names(trust_store(path, kind)) == ["CN=Authority"]
    # Without a password JKS is read unchecked, and of PKCS12 what is not encrypted, which is nothing here.
    assert names(trust_store(path, kind, password=None)) == (["CN=Authority"] if kind == "JKS" else [])
    refused(
        "trust-ca-.*: the password is wrong, or the file was changed",
        trust_store,
        path,
        kind,
        password="wrong-secret",
    )
    # The first certificate of a key is trusted, as Java has it; not the rest of its chain.
    assert names(trust_store(stores.key_store("client", kind))) == ["CN=alice,O=Users"]


@pytest.mark.parametrize("kind", ["JKS", "PKCS12"])
@pytest.mark.parametrize("legacy", [False, True])
def test_a_wrong_password_says_so(stores: Stores, kind: str, legacy: bool) -> None:
    path = stores.key_store("node", kind, legacy=legacy)
    error = refused(
        "the password is wrong, or the file was changed", key_store, path, kind, password="wrong-secret"
    )
    assert str(error).startswith(f"ssl.keystore.location: {path}: ")
    refused("password is not set", key_store, path, kind, password=None)


def test_of_several_keys_java_takes_the_one_that_its_hash_map_has_first(
    stores: Stores, tmp_path: Path
) -> None:
    """One-letter aliases are in the order of their codes modulo 16; tests/interop asks Java for longer ones."""
    (node,) = parse_store(stores.key_store("node", "JKS").read_bytes(), PASSWORD).keys
    chains = {alias: (certificate(name(attribute("2.5.4.3", alias.encode()))),) for alias in "hba"}
    entries = tuple(KeyEntry(alias, chain, node.unlock) for alias, chain in chains.items())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "parse_store", lambda data, password: Store(entries))
        assert names(key_store(stores.everything).chain) == ["CN=a"]
    rsa = tmp_path / "two.p12"
    shutil.copy(stores.key_store("node", "PKCS12"), rsa)
    run_keytool(
        *("-genkeypair", "-alias", "a", "-dname", "CN=rsa", "-keyalg", "RSA", "-keysize", "2048"),
        *("-keystore", rsa, "-storepass", PASSWORD),
    )
    assert key_store(rsa) == key_store(stores.key_store("node", "JKS")), "EC comes before RSA"


def test_a_key_that_was_changed_is_found(stores: Stores, tmp_path: Path) -> None:
    """Not only by the digest over the file, which whoever has its password can make anew."""
    data = stores.key_store("node", "JKS").read_bytes()[:-20]
    at = data.index(b"\x05\x00\x04") + 4 + 20 + 50  # behind the salt, in the number that the key is
    changed = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
    digest = hashlib.sha1(PASSWORD.encode("utf-16-be") + b"Mighty Aphrodite" + changed).digest()
    path = tmp_path / "changed.jks"
    path.write_bytes(changed + digest)
    refused("does not open the key 'node'", key_store, path)


# -- PEM ------------------------------------------------------------------------------------------------


@pytest.fixture
def pem_file(stores: Stores, tmp_path: Path) -> Path:
    found = key_store(stores.key_store("node", "PKCS12"))
    path = tmp_path / "node.pem"
    path.write_bytes(
        (found.private_key or b"") + b"".join(reader.pem(one, "CERTIFICATE") for one in found.chain)
    )
    return path


def test_pem_in_a_file_or_inline(stores: Stores, pem_file: Path) -> None:
    expected = key_store(stores.key_store("node", "JKS"))
    assert key_store(pem_file, "PEM", password=None) == expected
    assert key_store(pem_file, None, password=None) == expected
    text = pem_file.read_text()
    for written in (text, text.replace("\n", " "), text.replace("\n", "\r\n"), f"Bag Attributes: x\n{text}"):
        inline = StoreSettings("ssl.keystore", "PEM", key=written, certificates=written)
        assert read_key_store(inline) == expected
    only_key, only_chain = text.split("-----BEGIN CERTIFICATE", 1)
    apart = pem_file.with_name("key.pem")
    apart.write_text(only_key)
    pem_file.write_text("-----BEGIN CERTIFICATE" + only_chain)
    assert key_store(pem_file, "PEM", password=None, key_location=str(apart)) == expected
    assert trust_store(pem_file, password=None) == expected.chain


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: text.replace("PRIVATE", "PUBLIC"), "no private key in it"),
        (lambda text: text + text, "2 private keys where one is expected"),
        (lambda text: text.replace("CERTIFICATE", "CERTIFICATION"), "no certificate in it"),
        (lambda text: text.replace("KEY-----\nM", "KEY-----\nX"), "the private key cannot be read"),
        (
            lambda text: text.replace("KEY-----\nM", "KEY-----\n!"),
            "the private key cannot be read: not base64",
        ),
        (lambda text: text.replace("TE-----\nMI", "TE-----\nXY"), "certificate 1 cannot be read"),
        (
            lambda text: text.replace("BEGIN PRI", "BEGIN ENCRYPTED PRI").replace(
                "END PRI", "END ENCRYPTED PRI"
            ),
            "the private key is encrypted, and ssl.key.password is not set",
        ),
        (lambda text: "", "no certificate in it"),
    ],
)
def test_pem_that_is_not_right(pem_file: Path, change: Any, said: str) -> None:
    pem_file.write_text(change(pem_file.read_text()))
    refused(f"ssl.keystore.location: {pem_file}: {said}", key_store, pem_file, "PEM", password=None)


@needs_openssl
@pytest.mark.parametrize(
    "how",
    [
        ("-v2", "aes-256-cbc"),
        ("-v2", "aes-128-cbc", "-v2prf", "hmacWithSHA512"),
        ("-v2", "aes-192-cbc", "-v2prf", "hmacWithSHA1", "-iter", "50000"),
        ("-v2", "des3"),
        ("-v1", "PBE-SHA1-3DES"),
        ("-scrypt",),
        ("-v2", "camellia-256-cbc"),
    ],
)
def test_encrypted_pem(stores: Stores, pem_file: Path, how: tuple[str, ...]) -> None:
    chain = pem_file.read_text().split("-----END PRIVATE KEY-----\n")[1]
    made = openssl("pkcs8", "-topk8", "-in", pem_file, "-passout", f"pass:{KEY_PASSWORD}", *how)
    pem_file.write_bytes(made + chain.encode())
    found = key_store(pem_file, "PEM", password=None, key_password=KEY_PASSWORD)
    expected = key_store(stores.key_store("node", "JKS"))
    assert found.chain == expected.chain
    if found.key_password is None:
        assert found == expected
        refused(
            "ssl.key.password does not open", key_store, pem_file, password=None, key_password="wrong-secret"
        )
    else:
        assert how[-1] in ("-scrypt", "camellia-256-cbc"), "these are OpenSSL's to open"
    refused("ssl.key.password is not set", key_store, pem_file, password=None)


def test_a_wrong_password_that_decrypts_by_chance_is_called_one(
    pem_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "_decrypted_key", lambda *_: b"\x30\x03no key")
    text = (
        pem_file.read_text()
        .replace("BEGIN PRI", "BEGIN ENCRYPTED PRI")
        .replace("END PRI", "END ENCRYPTED PRI")
    )
    pem_file.write_text(text)
    refused("ssl.key.password does not open", key_store, pem_file, password=None, key_password="wrong-secret")


def openssl(*words: str | Path) -> bytes:
    return subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True, timeout=120).stdout


@needs_openssl
@pytest.mark.parametrize(
    "how",
    [
        (),
        ("-macalg", "sha1", "-iter", "1"),
        ("-macalg", "sha512", "-keypbe", "aes-128-cbc", "-certpbe", "AES-192-CBC"),
        ("-keypbe", "PBE-SHA1-3DES", "-certpbe", "PBE-SHA1-3DES", "-macalg", "SHA384"),
        ("-keypbe", "PBE-SHA1-2DES", "-certpbe", "PBE-SHA1-2DES"),
        ("-legacy",),
        ("-legacy", "-keypbe", "PBE-SHA1-RC2-128", "-certpbe", "PBE-SHA1-RC2-128"),
        ("-nomac",),
        ("-keypbe", "NONE", "-certpbe", "NONE"),
    ],
)
def test_pkcs12_as_openssl_writes_it(
    stores: Stores, pem_file: Path, tmp_path: Path, how: tuple[str, ...]
) -> None:
    path = tmp_path / "node.p12"
    openssl("pkcs12", "-export", "-in", pem_file, "-out", path, "-passout", f"pass:{PASSWORD}", *how)
    assert key_store(path) == key_store(stores.key_store("node", "JKS"))
    if how != ("-keypbe", "NONE", "-certpbe", "NONE"):
        refused("the password .*(is wrong|does not open)", key_store, path, password="wrong-secret")


@needs_openssl
def test_certificates_that_nobody_marked_are_not_trusted(stores: Stores, tmp_path: Path) -> None:
    path = tmp_path / "ca.p12"
    openssl(
        "pkcs12",
        "-export",
        "-nokeys",
        "-in",
        stores.certificate("ca"),
        "-out",
        path,
        "-passout",
        f"pass:{PASSWORD}",
    )
    refused("1 certificates, but none is marked as trusted: import them with keytool", trust_store, path)
    refused("no private key with a certificate in it", key_store, path)


@needs_openssl
def test_an_empty_password(pem_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "node.p12"
    openssl("pkcs12", "-export", "-in", pem_file, "-out", path, "-passout", "pass:")
    assert key_store(path, password="").chain


# -- bad stores -----------------------------------------------------------------------------------------


def test_files_that_are_no_stores(tmp_path: Path, stores: Stores) -> None:
    missing = tmp_path / "missing"
    error = refused(f"ssl.keystore.location: {missing}: No such file or directory", key_store, missing, "JKS")
    assert error.key == "ssl.keystore.location"
    refused("Is a directory", key_store, tmp_path, "JKS")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    refused("not a regular file", key_store, pipe, "JKS")
    refused("no name of a file", key_store, "a\0b")
    empty = tmp_path / "empty"
    empty.touch()
    refused("the file is empty", key_store, empty, "JKS")
    empty.write_bytes(b"hello")
    refused("neither JKS nor PKCS12", key_store, empty, "PKCS12")
    empty.write_bytes(bytes.fromhex("cececece") + bytes(100))
    refused("JCEKS is not supported: convert it", key_store, empty, "JKS")
    refused("ssl.keystore.type: 'BCFKS' is not supported", key_store, empty, "BCFKS")
    refused(
        "a store of Java's: set ssl.keystore.type=PKCS12", key_store, stores.everything, "PEM", password=None
    )
    refused(
        "PEM, but ssl.truststore.type is JKS: set it to PEM", trust_store, stores.certificate("ca"), "JKS"
    )
    refused("PEM has no password of the store", trust_store, stores.certificate("ca"), "PEM")
    with empty.open("wb") as file:
        file.truncate(reader.MAX_STORE_BYTES + 1)
    refused("hardly a store", key_store, empty)


@pytest.mark.parametrize("kind", ["JKS", "PKCS12"])
def test_every_change_is_found(stores: Stores, kind: str, tmp_path: Path) -> None:
    data = stores.key_store("node", kind).read_bytes()
    path = tmp_path / "changed"
    for at in range(4, len(data), 97):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :])
        with pytest.raises(ConfigError):
            key_store(path)
        path.write_bytes(data[:at])
        with pytest.raises(ConfigError):
            key_store(path)


def test_counts_that_are_announced_are_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "store.jks"
    for body in (
        struct.pack(">ii", 2, 2**31 - 1),
        struct.pack(">ii", 2, -1),
        struct.pack(">ii", 3, 0),
        struct.pack(">iiiHqi", 2, 1, 1, 0, 0, 2**31 - 1),
        struct.pack(">iiiHqii", 2, 1, 1, 0, 0, 0, 2**31 - 1),
        struct.pack(">iii", 2, 1, 7) + bytes(10),
    ):
        path.write_bytes(bytes.fromhex("feedfeed") + body + bytes(40))
        refused("ssl.truststore.location", trust_store, path, password=None)


def test_iterations_beyond_all_reason_are_refused(stores: Stores, tmp_path: Path) -> None:
    data = stores.trust_store("ca", "PKCS12").read_bytes()
    count = b"\x02\x02\x27\x10"  # 10,000
    assert data.count(count) == 2, "for the certificates and for the MAC"
    path = tmp_path / "slow.p12"
    path.write_bytes(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "Budget", lambda: decrypt.Budget(iterations=19_999))
        refused("passwords hashed more than 5000000 times", trust_store, path)
        patch.setattr(reader, "Budget", lambda: decrypt.Budget(iterations=20_000))
        assert trust_store(path)
    with pytest.raises(ValueError, match="0 iterations"):
        decrypt.Budget().take(0)
    with pytest.raises(ValueError, match="5000000"):
        decrypt.Budget().take(decrypt.MAX_ITERATIONS + 1)
    with pytest.raises(ValueError, match="encrypted bytes"):
        decrypt.Budget().take(1, decrypt.MAX_ENCRYPTED_BYTES + 1)
