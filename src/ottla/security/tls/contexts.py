"""From `ssl.*` to ssl.SSLContext, for servers and clients (Kafka's SslFactory and DefaultSslEngineFactory).

    settings = tls_settings(get)            # get: a Kafka key -> its value, None where it is not set
    material = load_key_material(settings)  # reads the stores
    server_context(settings, material), client_context(settings, material)

TLS 1.2 and 1.3, as Java 17 has no others; no renegotiation and no compression. A server gives out no session tickets:
whoever comes again shows the certificate again, so that one that has expired or is trusted no longer does not live on,
and no ticket key stands between forward secrecy and whoever gets it. (A TLS 1.2 session can be taken up by its number
within the life of a context; Python cannot turn that off.) The list of accepted authorities is not sent to clients,
which therefore show whatever certificate they have.

A context never changes once it is made: when stores change (`made_of` is another), a new one is made for new
connections.
Rules: whatever is wrong is ConfigError, in one line that names the setting and no secret. Reading stores and making
contexts takes milliseconds to seconds, so do it off the loop.
"""

from __future__ import annotations

import errno
import logging
import os
import ssl
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

from ottla.config.errors import ConfigError
from ottla.security.tls.ciphers import TLS12, TLS13, restrict
from ottla.security.tls.der import DerError
from ottla.security.tls.names import Certificate, canonical_name_of, read_certificate
from ottla.security.tls.stores import (
    PEM,
    KeyMaterial,
    StoreSettings,
    pem,
    read_key_store,
    read_trust_store,
)

log = logging.getLogger("ottla.security.tls")

KEY_STORE: Final = "ssl.keystore"
TRUST_STORE: Final = "ssl.truststore"
NONE, REQUESTED, REQUIRED = "none", "requested", "required"
_CLIENT_AUTH: Final = {
    NONE: ssl.CERT_NONE,
    REQUESTED: ssl.CERT_OPTIONAL,  # one may come without a certificate, but not with a bad one
    REQUIRED: ssl.CERT_REQUIRED,
}
_VERSIONS: Final = {TLS12: ssl.TLSVersion.TLSv1_2, TLS13: ssl.TLSVersion.TLSv1_3}
# Java 17 has these disabled; SSLv2Hello is how it says hello to them.
_OLD_PROTOCOLS: Final = frozenset({"TLSv1", "TLSv1.1", "SSLv3", "SSLv2", "SSL", "SSLv2Hello"})
# What chooses a part of Java's, and the only choices there are.
_FIXED: Final = {
    "ssl.engine.factory.class": (),
    "ssl.provider": (),
    "ssl.secure.random.implementation": (),
    "ssl.keymanager.algorithm": ("SunX509",),
    "ssl.trustmanager.algorithm": ("PKIX",),
}
# A handshake between two of our own contexts takes four turns.
_MAX_TURNS: Final = 20


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """All of `ssl.*` that a context is made of; the stores are not read yet."""

    key_store: StoreSettings = field(default_factory=lambda: StoreSettings(KEY_STORE))
    trust_store: StoreSettings = field(default_factory=lambda: StoreSettings(TRUST_STORE))
    protocol: str = TLS13
    enabled_protocols: tuple[str, ...] = (TLS12, TLS13)
    cipher_suites: tuple[str, ...] = ()
    client_auth: str = NONE
    endpoint_identification_algorithm: str = "https"


def tls_settings(get: Callable[[str], Any], *, pem_files: bool = False) -> TlsSettings:
    """The settings, from whatever gives a value for a key of Kafka's: text or parsed, None where there is none.

    Without a type a store is read as what it is. With `pem_files`, librdkafka's names are asked for, too:
    ssl.ca.location, ssl.certificate.location, ssl.key.location.
    """
    for key, allowed in _FIXED.items():
        if (value := _text(get, key)) and value not in allowed:
            only = f"only {allowed[0]} is" if allowed else "it chooses a part of Java's"
            raise ConfigError(f"{key}: {value!r} is not supported; {only}", key)
    algorithm = get("ssl.endpoint.identification.algorithm")
    algorithm = "https" if algorithm is None else str(algorithm).strip().lower()
    if algorithm not in ("https", ""):
        key = "ssl.endpoint.identification.algorithm"
        raise ConfigError(f"{key}: {algorithm!r} is not supported; https is, or nothing for no check", key)
    client_auth = _text(get, "ssl.client.auth") or NONE
    if client_auth not in _CLIENT_AUTH:
        raise ConfigError(
            f"ssl.client.auth: {client_auth!r} is none of {', '.join(_CLIENT_AUTH)}", "ssl.client.auth"
        )
    protocol = _text(get, "ssl.protocol") or TLS13
    if protocol not in (*_VERSIONS, "TLS"):
        raise _bad_protocol("ssl.protocol", protocol)
    enabled = _list(get, "ssl.enabled.protocols") or (TLS12, TLS13)
    for one in enabled:
        if one not in _VERSIONS:
            raise _bad_protocol("ssl.enabled.protocols", one)
    return TlsSettings(
        _key_store(get, pem_files),
        _trust_store(get, pem_files),
        protocol,
        enabled,
        _list(get, "ssl.cipher.suites"),
        client_auth,
        algorithm,
    )


def _bad_protocol(key: str, value: str) -> ConfigError:
    why = "is out of use, as in Java 17" if value in _OLD_PROTOCOLS else "is not known"
    return ConfigError(f"{key}: {value!r} {why}; {TLS12} and {TLS13} are left", key)


def _key_store(get: Callable[[str], Any], pem_files: bool) -> StoreSettings:
    kind, location = _text(get, f"{KEY_STORE}.type"), _text(get, f"{KEY_STORE}.location")
    if pem_files and location is None and (location := _text(get, "ssl.certificate.location")) is not None:
        kind = PEM
    store = StoreSettings(
        KEY_STORE,
        kind,
        location,
        _secret(get, f"{KEY_STORE}.password"),
        _secret(get, f"{KEY_STORE}.certificate.chain"),
        _secret(get, f"{KEY_STORE}.key"),
        _secret(get, "ssl.key.password"),
        _text(get, "ssl.key.location") if pem_files else None,
    )
    key, chain = f"{KEY_STORE}.key", f"{KEY_STORE}.certificate.chain"
    if (store.key is None) != (store.certificates is None):
        given, missing = (key, chain) if store.certificates is None else (chain, key)
        raise ConfigError(f"{given} is set, but {missing} is not", missing)
    return _checked(store, key)


def _trust_store(get: Callable[[str], Any], pem_files: bool) -> StoreSettings:
    kind, location = _text(get, f"{TRUST_STORE}.type"), _text(get, f"{TRUST_STORE}.location")
    if pem_files and location is None and (location := _text(get, "ssl.ca.location")) is not None:
        kind = PEM
    store = StoreSettings(
        TRUST_STORE,
        kind,
        location,
        _secret(get, f"{TRUST_STORE}.password"),
        _secret(get, f"{TRUST_STORE}.certificates"),
    )
    return _checked(store, f"{TRUST_STORE}.certificates")


def _checked(store: StoreSettings, inline: str) -> StoreSettings:
    """What DefaultSslEngineFactory refuses before it reads anything."""
    location, password = f"{store.prefix}.location", f"{store.prefix}.password"
    if store.certificates is None:
        if store.location is None and store.password is not None:
            raise ConfigError(f"{password} is set, but {location} is not", location)
        return store
    if store.type is not None and store.type.upper() != PEM:
        raise ConfigError(
            f"{inline} is for PEM only, but {store.prefix}.type is {store.type}", f"{store.prefix}.type"
        )
    for name, value in ((location, store.location), (password, store.password)):
        if value is not None:
            raise ConfigError(f"{inline} and {name} are both set; only one can be", name)
    return store


def _text(get: Callable[[str], Any], key: str) -> str | None:
    value = get(key)
    return None if value is None else str(value).strip() or None


def _secret(get: Callable[[str], Any], key: str) -> str | None:
    value = get(key)
    return None if value is None else str(value)


def _list(get: Callable[[str], Any], key: str) -> tuple[str, ...]:
    value = get(key)
    parts = value.split(",") if isinstance(value, str) else value or ()
    return tuple(part for one in parts if (part := str(one).strip()))


# -- contexts -------------------------------------------------------------------------------------------


def load_key_material(settings: TlsSettings) -> KeyMaterial:
    """What is in both stores; nothing where there is none. An expired certificate is a warning only."""
    own = read_key_store(settings.key_store) if settings.key_store.is_set else KeyMaterial()
    trusted = read_trust_store(settings.trust_store).trusted if settings.trust_store.is_set else ()
    for certificate in own.chain[:1]:
        _warn_of_age(read_certificate(certificate))
    return replace(own, trusted=trusted)


def made_of(settings: TlsSettings) -> object:
    """What a context would be made of now: another value than before, and a new one is due.

    A file that was written again counts (Kafka looks at its time). Take it before the files are read, so that what is
    written meanwhile is found the next time.
    """
    return settings, _file_version(settings.key_store.location), _file_version(settings.trust_store.location)


def _file_version(location: str | None) -> tuple[int, int, int] | None:
    if location is None:
        return None
    try:
        found = os.stat(location)
    except (OSError, ValueError):
        return None  # whoever reads it says why
    return found.st_mtime_ns, found.st_size, found.st_ino


def server_context(settings: TlsSettings, material: KeyMaterial | None = None) -> ssl.SSLContext:
    """For connections that come in. `material` is what load_key_material gave, if it was called already."""
    if not settings.key_store.is_set:
        raise ConfigError(
            f"{KEY_STORE}.location: a listener with TLS needs a key and a certificate",
            KEY_STORE + ".location",
        )
    material = load_key_material(settings) if material is None else material
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _limit(context, settings, is_server=True)
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    _load_key(context, settings, material)
    context.verify_mode = _CLIENT_AUTH[settings.client_auth]
    if context.verify_mode is not ssl.CERT_NONE:
        _load_trust(context, settings, material, ssl.Purpose.CLIENT_AUTH)
    return context


def client_context(settings: TlsSettings, material: KeyMaterial | None = None) -> ssl.SSLContext:
    """For connections to others; without a trust store they are judged by the system's authorities."""
    material = load_key_material(settings) if material is None else material
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _limit(context, settings, is_server=False)
    context.check_hostname = settings.endpoint_identification_algorithm == "https"
    context.verify_mode = ssl.CERT_REQUIRED
    _load_trust(context, settings, material, ssl.Purpose.SERVER_AUTH)
    if material.private_key is not None:
        _load_key(context, settings, material)
    return context


def _limit(context: ssl.SSLContext, settings: TlsSettings, *, is_server: bool) -> None:
    """Protocols, suites, and what is off whatever anybody sets."""
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    protocols = frozenset(settings.enabled_protocols)
    if not is_server and settings.protocol == TLS12 and not settings.cipher_suites:
        # A context of this name has no suites for TLS 1.3 in Java, so that its clients do not speak it.
        protocols -= {TLS13}
        if not protocols:
            raise ConfigError(
                f"ssl.protocol is {TLS12}, but ssl.enabled.protocols has {TLS13} only", "ssl.protocol"
            )
    if settings.cipher_suites:
        protocols = restrict(context, settings.cipher_suites, protocols, is_server=is_server)
    context.minimum_version = min(_VERSIONS[name] for name in protocols)
    context.maximum_version = max(_VERSIONS[name] for name in protocols)


def _load_trust(
    context: ssl.SSLContext, settings: TlsSettings, material: KeyMaterial, purpose: ssl.Purpose
) -> None:
    # Java trusts whatever is in the store, not only what signed itself.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    store = settings.trust_store
    if not store.is_set and not material.trusted:
        context.load_default_certs(purpose)
        return
    key = f"{TRUST_STORE}.location" if store.certificates is None else f"{TRUST_STORE}.certificates"
    where = f"{key}: {store.location}" if store.location is not None else key
    if not material.trusted:
        raise ConfigError(f"{where}: no trusted certificate in it, so that nobody would be trusted", key)
    try:
        context.load_verify_locations(cadata=b"".join(material.trusted))
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(f"{where}: a certificate that cannot be used: {_reason(error)}", key) from None


def _load_key(context: ssl.SSLContext, settings: TlsSettings, material: KeyMaterial) -> None:
    store = settings.key_store
    key = f"{KEY_STORE}.location" if store.certificates is None else f"{KEY_STORE}.key"
    where = f"{key}: {store.location}" if store.location is not None else key
    if material.private_key is None or not material.chain:
        raise ConfigError(f"{where}: no private key with a certificate in it", key)
    text = b"".join(pem(certificate, "CERTIFICATE") for certificate in material.chain) + material.private_key
    try:
        with _unnamed_file(text) as path:
            # Always with a password: without one OpenSSL would ask for it at the terminal.
            context.load_cert_chain(path, password=material.key_password or "")
    except (OSError, ValueError) as error:  # OpenSSL's are of the first kind
        is_locked = material.key_password is not None
        raise ConfigError(f"{where}: {_key_problem(error, is_locked=is_locked)}", key) from None


def _key_problem(error: Exception, *, is_locked: bool) -> str:
    if isinstance(error, ssl.SSLError) and error.reason in (
        "KEY_VALUES_MISMATCH",
        "KEY_TYPE_MISMATCH",
        "NO_CERTIFICATE_ASSIGNED",
        "NO_PRIVATE_KEY_ASSIGNED",
    ):
        return "the private key does not belong to the certificate"
    if is_locked:  # OpenSSL says anything or nothing of a wrong password
        return "ssl.key.password does not open the private key"
    return f"the key or its certificate cannot be used: {_reason(error)}"


def _reason(error: Exception) -> str:
    """OpenSSL's word for it; never the whole text of an exception, which may quote what it was given."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    if isinstance(error, ssl.SSLError):
        return (error.reason or "unknown to OpenSSL").lower().replace("_", " ")
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    return type(error).__name__


@contextmanager
def _unnamed_file(data: bytes) -> Iterator[str]:
    """A path that OpenSSL can read a key from: memory on Linux, elsewhere a file of ours alone that is gone at once."""
    try:
        handle = os.memfd_create("tls", os.MFD_CLOEXEC)
        path, temporary = f"/proc/self/fd/{handle}", None
        if not os.path.exists(path):
            os.close(handle)
            raise OSError(errno.ENOENT, "no /proc")
    except (AttributeError, OSError):
        handle, path = tempfile.mkstemp(prefix="ottla-")
        temporary = path
    try:
        with open(handle, "wb") as file:
            file.write(data)
            file.flush()
            yield path
    finally:
        if temporary is not None:
            os.unlink(temporary)


def _warn_of_age(certificate: Certificate) -> None:
    now = datetime.now(UTC)
    if certificate.not_after < now:
        log.warning("the certificate of %s expired on %s", certificate.name, certificate.not_after)
    elif now < certificate.not_before:
        log.warning("the certificate of %s is not valid before %s", certificate.name, certificate.not_before)


# -- changes --------------------------------------------------------------------------------------------


def certificate_changes(
    old_chain: Sequence[bytes], new_chain: Sequence[bytes], allow_dn: bool, allow_san: bool
) -> str | None:
    """Why a new certificate may not take the old one's place while a listener runs (CertificateEntries); None: it may.

    The name must stay, and no alternative name may get lost, but for ssl.allow.dn.changes and ssl.allow.san.changes.
    """
    if bool(old_chain) != bool(new_chain):
        return f"a key store cannot be {'removed from' if old_chain else 'added to'} a listener while it runs"
    if not old_chain:
        return None
    try:
        old, new = read_certificate(old_chain[0]), read_certificate(new_chain[0])
    except DerError as error:
        return f"a certificate that cannot be read: {error}"
    is_same = canonical_name_of(old.subject) == canonical_name_of(new.subject)
    if not allow_dn and not is_same and old.name.lower() != new.name.lower():
        return f"Keystore DistinguishedName does not match: existing={old.name}, new={new.name}"
    if not allow_san and (lost := old.alt_names - new.alt_names):
        names = ", ".join(sorted(str(value) for _, value in lost))
        return f"Keystore SubjectAltNames do not match: the new certificate lacks {names}"
    return None


def trust_error(material: KeyMaterial, trusted: Sequence[bytes], *, client_auth: str = NONE) -> str | None:
    """Why others who trust these certificates would not take ours (brokers among themselves); None: they would.

    With `client_auth` it is tried as a client's certificate, too.
    """
    both = replace(material, trusted=tuple(trusted))
    settings = TlsSettings(
        StoreSettings(KEY_STORE, certificates=""),
        StoreSettings(TRUST_STORE, certificates=""),
        client_auth=client_auth,
        endpoint_identification_algorithm="",
    )
    try:
        return handshake_error(server_context(settings, both), client_context(settings, both))
    except ConfigError as error:
        return str(error)


def verifies(material: KeyMaterial, trusted: Sequence[bytes], *, client_auth: str = NONE) -> bool:
    """Do these certificates vouch for ours?"""
    return trust_error(material, trusted, client_auth=client_auth) is None


def handshake_error(server: ssl.SSLContext, client: ssl.SSLContext) -> str | None:
    """Why these two cannot speak with each other, tried in memory (SslEngineValidator); None: they can.

    The client's context must not check names: there is none.
    """
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_side=False),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    waiting = list(ends)
    for _ in range(_MAX_TURNS):
        for end in list(waiting):
            try:
                end.do_handshake()
                waiting.remove(end)
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError as error:
                return _reason(error)
        if not waiting:
            return None
    return "the handshake does not come to an end"
