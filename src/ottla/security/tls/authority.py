"""A certificate authority of one's own: makes its key, and signs the certificates of nodes and clients.

    ca = new_authority("Our CA", days=3650)
    node = Authority.of(ca).issue("node-1", hosts=("kafka.example", "10.0.0.5"), days=90)
    key_store(node)                                 # for ssl.keystore.location, of type PEM

Keys are EC on P-256, as every client of the last ten years takes them. A certificate serves its owner as a server and
as a client, so that nodes can use one for both. A renewed certificate has a new key, and the names of the one before,
which is what a running listener asks of it (KIP-226).

Rules: no cryptography of our own: the package of that name (extra `security`) does it, and is imported when first used.
Whatever is wrong is AuthorityError in one line without a secret. Private keys are in no repr. Owned by whoever calls.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from ottla.model.install import install

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.types import (
        CertificateIssuerPrivateKeyTypes,
        CertificatePublicKeyTypes,
    )

# Clocks differ: a certificate is valid a little before it was made.
_EARLIER: Final = timedelta(hours=1)
# A renewal is due when less than this share of a certificate's time is left.
DUE: Final = 1 / 3
MAX_DAYS: Final = 36_500


class AuthorityError(Exception):
    """A certificate that cannot be made."""


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate and its key, in PEM."""

    certificate: bytes
    private_key: bytes = field(repr=False)  # PKCS 8, not encrypted


def require_cryptography() -> None:
    """AuthorityError with what to do where the package is not installed."""
    try:
        import cryptography.x509  # noqa: F401
    except ImportError:
        raise AuthorityError(
            f"certificates are made by the package cryptography: {install('security')}"
        ) from None


def new_authority(name: str, *, days: int, now: datetime | None = None) -> Issued:
    """The certificate that others trust, signed by its own key; it signs certificates of nodes and clients only."""
    require_cryptography()
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name(name)
    builder = (
        _builder(subject, subject, key.public_key(), days, now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
    )
    return _signed(builder, key, key)


class Authority:
    """Signs certificates."""

    def __init__(self, certificate: x509.Certificate, key: CertificateIssuerPrivateKeyTypes) -> None:
        self._certificate = certificate
        self._key = key

    @classmethod
    def of(cls, ca: Issued) -> Authority:
        """AuthorityError if these two are not those of an authority."""
        require_cryptography()
        from cryptography import x509
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        try:
            certificate = x509.load_pem_x509_certificate(ca.certificate)
            key = load_pem_private_key(ca.private_key, None)
        except (ValueError, TypeError):  # whose words may quote what was given
            raise AuthorityError(
                "the authority's certificate or its key cannot be read: PEM, without a password"
            ) from None
        if key.public_key() != certificate.public_key():
            raise AuthorityError("the authority's key does not belong to its certificate")
        return cls(certificate, key)  # type: ignore[arg-type]  # one that signs, since the certificate has its half

    def issue(
        self, common_name: str, *, hosts: Sequence[str] = (), days: int, now: datetime | None = None
    ) -> Issued:
        """A key, and a certificate for a name and the hosts (names and addresses) at which it is to be known."""
        return self._issue(_name(common_name), [_alt_name(host) for host in hosts], days, now)

    def renew(
        self,
        certificate: bytes,
        *,
        days: int,
        more_hosts: Sequence[str] = (),
        now: datetime | None = None,
    ) -> Issued:
        """A new key, and a certificate with the names that this one (DER) has, and more."""
        from cryptography import x509

        try:
            old = x509.load_der_x509_certificate(certificate)
            found = old.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            names = list(found)
        except x509.ExtensionNotFound:
            names = []
        except ValueError:
            raise AuthorityError("a certificate that cannot be read") from None
        names += [name for name in map(_alt_name, more_hosts) if name not in names]
        return self._issue(old.subject, names, days, now)

    def has_signed(self, certificate: bytes) -> bool:
        """Is this certificate (DER) one of its own?"""
        from cryptography import x509
        from cryptography.exceptions import InvalidSignature

        try:
            x509.load_der_x509_certificate(certificate).verify_directly_issued_by(self._certificate)
        except (ValueError, TypeError, InvalidSignature):
            return False
        return True

    def _issue(
        self, subject: x509.Name, names: list[x509.GeneralName], days: int, now: datetime | None
    ) -> Issued:
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import ExtendedKeyUsageOID

        key = ec.generate_private_key(ec.SECP256R1())
        both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = (
            _builder(subject, self._certificate.subject, key.public_key(), days, now)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(both), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._certificate.public_key()),  # type: ignore[arg-type]
                critical=False,
            )
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return _signed(builder, key, self._key)


def key_store(issued: Issued) -> bytes:
    """A file for ssl.keystore.location, of type PEM: the key, and the certificate."""
    return issued.private_key + issued.certificate


def pkcs12_key_store(issued: Issued, password: str, alias: str) -> bytes:
    """The same of type PKCS12, as keytool reads it."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import (
        BestAvailableEncryption,
        load_pem_private_key,
        pkcs12,
    )

    key = load_pem_private_key(issued.private_key, None)
    certificate = x509.load_pem_x509_certificate(issued.certificate)
    return pkcs12.serialize_key_and_certificates(
        alias.encode(),
        key,  # type: ignore[arg-type]  # of a kind that was made here
        certificate,
        None,
        BestAvailableEncryption(password.encode()),
    )


def is_due(not_before: datetime, not_after: datetime, now: datetime | None = None) -> bool:
    """Is so little left of a certificate's time that it is to be renewed?"""
    now = datetime.now(UTC) if now is None else now
    return not_after - now < (not_after - not_before) * DUE


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: CertificatePublicKeyTypes,
    days: int,
    now: datetime | None,
) -> x509.CertificateBuilder:
    from cryptography import x509

    if not 1 <= days <= MAX_DAYS:
        raise AuthorityError(f"a certificate is valid for 1 to {MAX_DAYS} days, not for {days}")
    now = datetime.now(UTC) if now is None else now
    return x509.CertificateBuilder(
        issuer_name=issuer,
        subject_name=subject,
        public_key=key,
        serial_number=x509.random_serial_number(),
        not_valid_before=now - _EARLIER,
        not_valid_after=now + timedelta(days=days),
    ).add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)


def _signed(
    builder: x509.CertificateBuilder,
    key: CertificateIssuerPrivateKeyTypes,
    signing_key: CertificateIssuerPrivateKeyTypes,
) -> Issued:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ed448, ed25519
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    has_its_own = isinstance(signing_key, ed25519.Ed25519PrivateKey | ed448.Ed448PrivateKey)
    certificate = builder.sign(signing_key, None if has_its_own else hashes.SHA256())
    return Issued(
        certificate.public_bytes(Encoding.PEM),
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common_name: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    try:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
    except (ValueError, TypeError):
        raise AuthorityError(f"{common_name!r} cannot be a certificate's name: 1 to 64 characters") from None


def _alt_name(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        pass
    try:
        if not host or host != host.strip() or any(char in host for char in "/: \t"):
            raise ValueError
        return x509.DNSName(host)
    except ValueError:
        raise AuthorityError(f"{host!r} is neither a host's name in ASCII nor an address") from None
