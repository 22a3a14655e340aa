"""Certificates for tests: an authority of the test's own, and what it signs, as PEM files."""

import datetime
import ipaddress
import ssl
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

DAY = datetime.timedelta(days=1)


class Identity(NamedTuple):
    """A certificate with its chain, and its key, as files."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates that whoever trusts `certificate` (a PEM file) takes."""

    def __init__(self, folder: Path, name: str = "Test CA", *, days: int = 2) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        signed = self._build(self._name, self._key.public_key(), days)
        signed = signed.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self.certificate = folder / "ca.pem"
        self.certificate.write_bytes(signed.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM))

    def issue(
        self, common_name: str = "localhost", *, hosts: tuple[str, ...] = (), days: int = 2
    ) -> Identity:
        """For 127.0.0.1 and localhost, or for other hosts; with negative `days` it has expired."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
        names = [_name_of(host) for host in hosts or ("localhost", "127.0.0.1", "::1")]
        built = self._build(subject, key.public_key(), days).add_extension(
            x509.SubjectAlternativeName(names), critical=False
        )
        place = self._folder / f"{common_name}-{built._serial_number}"
        identity = Identity(place.with_suffix(".crt"), place.with_suffix(".key"))
        identity.certificate.write_bytes(built.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM))
        identity.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return identity

    def _build(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, days: int
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return x509.CertificateBuilder(
            issuer_name=self._name,
            subject_name=subject,
            public_key=key,
            serial_number=x509.random_serial_number(),
            not_valid_before=now - 10 * DAY,
            not_valid_after=now + days * DAY,
        )

    def client_context(self, identity: Identity | None = None) -> ssl.SSLContext:
        """Of a client that trusts this authority, and may have a certificate itself."""
        context = ssl.create_default_context(cafile=str(self.certificate))
        if identity is not None:
            context.load_cert_chain(identity.certificate, identity.key)
        return context

    def server_context(
        self, identity: Identity, client_auth: ssl.VerifyMode = ssl.CERT_NONE
    ) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(identity.certificate, identity.key)
        context.load_verify_locations(self.certificate)
        context.verify_mode = client_auth
        return context


def _name_of(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
