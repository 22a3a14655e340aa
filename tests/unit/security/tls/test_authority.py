"""An authority of one's own: what it makes is taken by OpenSSL and by our own readers, and by nobody else's trust."""

import builtins
import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ottla.security.tls import authority as module
from ottla.security.tls.authority import (
    Authority,
    AuthorityError,
    Issued,
    is_due,
    key_store,
    new_authority,
    pkcs12_key_store,
)
from ottla.security.tls.contexts import certificate_changes, verifies
from ottla.security.tls.names import read_certificate
from ottla.security.tls.stores import KeyMaterial, StoreSettings, read_key_store


def der(pem: bytes) -> bytes:
    return ssl.PEM_cert_to_DER_cert(pem.decode())


@pytest.fixture(scope="module")
def ca() -> Issued:
    return new_authority("Test CA", days=10)


def stored(data: bytes, where: Path, password: str | None = None) -> KeyMaterial:
    path = where / "store"
    path.write_bytes(data)
    return read_key_store(StoreSettings("ssl.keystore", None, str(path), password))


def test_what_it_signs_is_trusted_by_who_trusts_it(ca: Issued, tmp_path: Path) -> None:
    issued = Authority.of(ca).issue("node-1", hosts=("kafka.example", "10.0.0.5", "::1"), days=3)
    material = stored(key_store(issued), tmp_path)
    assert verifies(material, [der(ca.certificate)])
    assert verifies(material, [der(ca.certificate)], client_auth="required")
    assert not verifies(material, [der(new_authority("Test CA", days=10).certificate)])
    found = read_certificate(material.chain[0])
    assert found.name == "CN=node-1"
    assert {value for _, value in found.alt_names} == {"kafka.example", "10.0.0.5", "0:0:0:0:0:0:0:1"}
    assert timedelta(days=2) < found.not_after - datetime.now(UTC) < timedelta(days=3)
    assert Authority.of(ca).has_signed(material.chain[0])
    assert not Authority.of(new_authority("Test CA", days=1)).has_signed(material.chain[0])


def test_a_store_with_a_password_opens_with_it(ca: Issued, tmp_path: Path) -> None:
    issued = Authority.of(ca).issue("node-1", days=3)
    material = stored(pkcs12_key_store(issued, "geheim", "node-1"), tmp_path, "geheim")
    assert material.chain == (der(issued.certificate),)
    assert verifies(material, [der(ca.certificate)])


def test_a_renewed_certificate_may_take_the_place_of_the_old_one(ca: Issued) -> None:
    authority = Authority.of(ca)
    old = authority.issue("node-1", hosts=("a.example",), days=3)
    new = authority.renew(der(old.certificate), days=9, more_hosts=("b.example", "a.example"))
    assert new.private_key != old.private_key
    assert certificate_changes([der(old.certificate)], [der(new.certificate)], False, False) is None
    assert {value for _, value in read_certificate(der(new.certificate)).alt_names} == {
        "a.example",
        "b.example",
    }
    bare = authority.issue("client", days=3)
    assert (
        read_certificate(der(authority.renew(der(bare.certificate), days=3).certificate)).name == "CN=client"
    )


def test_a_renewal_is_due_in_the_last_third() -> None:
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    end = begin + timedelta(days=90)
    assert not is_due(begin, end, begin + timedelta(days=59))
    assert is_due(begin, end, begin + timedelta(days=61))
    assert is_due(begin, end, end + timedelta(days=1))


def refusals(ca: Issued) -> list[tuple[Callable[[], object], str]]:
    authority = Authority.of(ca)
    other = new_authority("Other", days=1)
    return [
        (lambda: authority.issue("", days=1), "cannot be a certificate's name"),
        (lambda: authority.issue("x" * 65, days=1), "cannot be a certificate's name"),
        (lambda: authority.issue("a", days=0), "1 to 36500 days"),
        (lambda: authority.issue("a", days=10**9), "1 to 36500 days"),
        (lambda: authority.issue("a", hosts=("bücher.example",), days=1), "neither a host's name"),
        (lambda: authority.issue("a", hosts=("https://a",), days=1), "neither a host's name"),
        (lambda: authority.issue("a", hosts=("",), days=1), "neither a host's name"),
        (lambda: authority.renew(b"garbage", days=1), "a certificate that cannot be read"),
        (
            lambda: Authority.of(Issued(ca.certificate, other.private_key)),
            "does not belong to its certificate",
        ),
        (lambda: Authority.of(Issued(b"", b"")), "cannot be read"),
    ]


@pytest.mark.parametrize("number", range(10))
def test_what_cannot_be_made_is_one_line(ca: Issued, number: int) -> None:
    make, words = refusals(ca)[number]
    with pytest.raises(AuthorityError, match=words) as refused:
        make()
    assert "\n" not in str(refused.value)
    assert "PRIVATE KEY" not in str(refused.value)


def test_a_key_is_in_no_repr(ca: Issued) -> None:
    assert "PRIVATE" not in repr(ca)


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("cryptography"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(AuthorityError, match=r"cryptography: pip install '.\[security\]'"):
        module.new_authority("x", days=1)
