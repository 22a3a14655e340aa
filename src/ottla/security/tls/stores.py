"""Key stores and trust stores: PEM, PKCS12 and JKS, as Java 17 and Kafka's DefaultSslEngineFactory read them.

JKS and PKCS12 are taken for each other where a file is the other kind, as Java has done since 9 (keystore.type.compat).
What is a trusted certificate: in JKS an entry of that kind, in PKCS12 a certificate that Java marked as trusted (the
attribute trustedKeyUsage), so that openssl's `-nokeys` files are empty to Java and to us; and the first certificate of
each key. Without a password nothing is checked, and what is encrypted is passed over, as in Java.

Which key: a store usually has one. Of several Java takes, for each kind of key (EC, RSA), the first in the order of a
HashMap of their aliases. Here one is taken for all connections: that of the same order, EC before RSA before the rest.
All keys must open with the one password, as in Java.

Rules: files and all that they announce are bounded; whatever is wrong is ConfigError, one line with the key of the
setting and the file, never a secret. Read at start and when stores change, off the loop: decrypting takes time.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import stat
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from ottla.config.errors import ConfigError
from ottla.model.java_hash import java_hash_code
from ottla.security.tls.decrypt import (
    DIGESTS,
    FOR_MAC,
    HMACS,
    PBMAC1,
    Budget,
    Unsupported,
    WrongPassword,
    bmp,
    decrypt,
    pbkdf2,
    pkcs12_key,
    salt_of,
)
from ottla.security.tls.der import BMP_STRING, CONSTRUCTED, CONTEXT, SET, Der, DerError, read, read_one
from ottla.security.tls.names import Certificate, canonical_name_of, read_certificate

MAX_STORE_BYTES: Final = 8 << 20
MAX_CERTIFICATES: Final = 10_000
MAX_KEYS: Final = 100
# Java counts to 100 at the most, OpenSSL too.
MAX_CHAIN: Final = 100
PEM, JKS, PKCS12 = "PEM", "JKS", "PKCS12"
_JKS_MAGIC: Final = bytes.fromhex("feedfeed")
_JCEKS_MAGIC: Final = bytes.fromhex("cececece")
_SEQUENCE_START: Final = b"\x30"


@dataclass(frozen=True, slots=True)
class KeyMaterial:
    """A private key and the certificates that go with it, and those that others are judged by."""

    private_key: bytes | None = field(default=None, repr=False)  # PEM
    chain: tuple[bytes, ...] = ()  # DER, one's own first
    trusted: tuple[bytes, ...] = ()  # DER
    # For a key that was left as it came, since only OpenSSL knows how it is encrypted.
    key_password: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class KeyEntry:
    """A key in a store, and how to unlock it."""

    alias: str
    chain: tuple[bytes, ...]
    unlock: Callable[[str | None], bytes] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Store:
    """What a file of Java's has in it."""

    keys: tuple[KeyEntry, ...] = ()
    certificates: tuple[bytes, ...] = ()  # trusted ones
    unmarked: int = 0  # certificates that are neither trusted nor a key's


class StoreError(ValueError):
    """What is wrong with a store, in words that name no file yet."""


# -- by the settings ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Where a store is: a file, or the texts of PEM themselves. `prefix` is ssl.keystore or ssl.truststore."""

    prefix: str
    type: str | None = None  # None: whatever the file turns out to be
    location: str | None = None
    password: str | None = field(default=None, repr=False)
    certificates: str | None = field(default=None, repr=False)
    key: str | None = field(default=None, repr=False)
    key_password: str | None = field(default=None, repr=False)
    # A key in a file of its own, as librdkafka has it.
    key_location: str | None = None

    @property
    def is_set(self) -> bool:
        return self.location is not None or self.certificates is not None


def read_key_store(settings: StoreSettings) -> KeyMaterial:
    """The key and its certificates."""
    if settings.certificates is not None:
        where = f"{settings.prefix}.certificate.chain"
        with_key = _Fault(f"{settings.prefix}.key")
        chain = _pem_chain(_Fault(where), settings.certificates)
        private_key, password = _pem_key(with_key, settings.key or "", settings.key_password)
        return KeyMaterial(private_key, chain, key_password=password)
    fault = _Fault(f"{settings.prefix}.location", settings.location)
    data = _read_file(fault, settings.location or "")
    if _kind(fault, settings, data) == PEM:
        text = _text(fault, data)
        chain = _pem_chain(fault, text)
        if settings.key_location is not None:
            fault = _Fault("ssl.key.location", settings.key_location)
            text = _text(fault, _read_file(fault, settings.key_location))
        private_key, password = _pem_key(fault, text, settings.key_password)
        return KeyMaterial(private_key, chain, key_password=password)
    if settings.password is None:
        raise fault(f"{settings.prefix}.password is not set")
    return _choose(fault, _parse(fault, data, settings.password), settings)


def read_trust_store(settings: StoreSettings) -> KeyMaterial:
    """The trusted certificates; none is no error here."""
    if settings.certificates is not None:
        fault = _Fault(f"{settings.prefix}.certificates")
        return KeyMaterial(trusted=_pem_chain(fault, settings.certificates, at_most=MAX_CERTIFICATES))
    fault = _Fault(f"{settings.prefix}.location", settings.location)
    data = _read_file(fault, settings.location or "")
    if _kind(fault, settings, data) == PEM:
        return KeyMaterial(trusted=_pem_chain(fault, _text(fault, data), at_most=MAX_CERTIFICATES))
    store = _parse(fault, data, settings.password)
    leaves = (entry.chain[0] for entry in store.keys if entry.chain)
    trusted = tuple(dict.fromkeys((*store.certificates, *leaves)))
    if not trusted and store.unmarked:
        raise fault(
            f"{store.unmarked} certificates, but none is marked as trusted: import them with keytool -importcert"
        )
    return KeyMaterial(trusted=trusted)


class _Fault:
    """Makes errors that say which setting and which file are meant."""

    def __init__(self, key: str, file: str | None = None) -> None:
        self.key = key
        self.file = file

    def __call__(self, words: str) -> ConfigError:
        where = self.key if self.file is None else f"{self.key}: {self.file}"
        return ConfigError(f"{where}: {words}", self.key)


def _read_file(fault: _Fault, path: str) -> bytes:
    try:
        # A pipe would be waited for.
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise fault("not a regular file")
            data = file.read(MAX_STORE_BYTES + 1)
    except OSError as error:
        raise fault(os.strerror(error.errno) if error.errno else "cannot be read") from None
    except ValueError as error:  # a zero byte in the name
        if isinstance(error, ConfigError):
            raise
        raise fault("no name of a file") from None
    _check_size(fault, data)
    return data


def _check_size(fault: _Fault, data: bytes | str) -> None:
    if len(data) > MAX_STORE_BYTES:
        raise fault(f"larger than {MAX_STORE_BYTES} bytes, so hardly a store")


def _kind(fault: _Fault, settings: StoreSettings, data: bytes) -> str:
    """PEM, or one of Java's kinds, which are taken for each other."""
    is_java = data.startswith((_JKS_MAGIC, _JCEKS_MAGIC, _SEQUENCE_START))
    kind = settings.type
    if kind is None:
        kind = PKCS12 if is_java else PEM
    kind = kind.strip().upper()
    if kind not in (PEM, JKS, PKCS12):
        raise ConfigError(
            f"{settings.prefix}.type: {settings.type!r} is not supported; PEM, PKCS12 and JKS are",
            f"{settings.prefix}.type",
        )
    if kind == PEM and settings.password is not None:
        raise fault(f"PEM has no password of the store ({settings.prefix}.password), only ssl.key.password")
    if kind == PEM and is_java:
        raise fault(f"not PEM, but a store of Java's: set {settings.prefix}.type=PKCS12 or JKS")
    if kind != PEM and not is_java and b"-----BEGIN" in data[:65_536]:
        raise fault(f"PEM, but {settings.prefix}.type is {kind}: set it to PEM")
    return kind


def _parse(fault: _Fault, data: bytes, password: str | None) -> Store:
    try:
        return parse_store(data, password)
    except (StoreError, DerError) as error:
        raise fault(str(error)) from None
    except Unsupported as error:
        raise fault(f"encrypted in a way that is not known here ({error})") from None
    except WrongPassword:
        raise fault("the password is wrong, or the file was changed") from None


def _choose(fault: _Fault, store: Store, settings: StoreSettings) -> KeyMaterial:
    """The key that Java's SunX509 key manager would choose; all of them have to open."""
    password = settings.password if settings.key_password is None else settings.key_password
    named = "ssl.key.password" if settings.key_password is not None else f"{settings.prefix}.password"
    opened: list[tuple[KeyEntry, bytes]] = []
    for entry in store.keys:
        alias = repr(entry.alias[:60])
        try:
            key = entry.unlock(password)
            read_one(key).parts(3)
        except Unsupported as error:
            raise fault(f"the key {alias} is encrypted in a way that is not known here ({error})") from None
        except (WrongPassword, StoreError, DerError):
            raise fault(f"the password ({named}) does not open the key {alias}") from None
        if entry.chain:
            opened.append((entry, key))
    if not opened:
        raise fault("no private key with a certificate in it")
    entry, key = min(opened, key=lambda one: _preference(one[0], len(opened)))
    return KeyMaterial(pem(key, "PRIVATE KEY"), entry.chain)


def _preference(entry: KeyEntry, count: int) -> tuple[int, int]:
    """EC, RSA, others; then the place of the alias in a HashMap of so many."""
    algorithm = read_certificate(entry.chain[0]).key_algorithm
    capacity = 16
    while count > capacity * 3 // 4:
        capacity *= 2
    code = java_hash_code(entry.alias) & 0xFFFFFFFF
    return ("EC", "RSA", algorithm).index(algorithm), (code ^ code >> 16) & capacity - 1


# -- PEM ------------------------------------------------------------------------------------------------

_BEGIN: Final = "-----BEGIN "
_DASHES: Final = "-----"


def pem(data: bytes, label: str) -> bytes:
    """DER as PEM."""
    text = base64.b64encode(data).decode()
    lines = "\n".join(text[at : at + 64] for at in range(0, len(text), 64))
    return f"-----BEGIN {label}-----\n{lines}\n-----END {label}-----\n".encode()


def pem_blocks(text: str) -> Iterator[tuple[str, str]]:
    """Labels and what stands between the lines of dashes; the text may be in one line, as in a properties file."""
    at = text.find(_BEGIN)
    while at >= 0:
        # No further than to the next one, so that each character is looked at once however many are left open.
        following = text.find(_BEGIN, at + len(_BEGIN))
        limit = len(text) if following < 0 else following
        label_end = text.find(_DASHES, at + len(_BEGIN), limit)
        if label_end >= 0:
            label = text[at + len(_BEGIN) : label_end]
            start = label_end + len(_DASHES)
            stop = text.find(f"-----END {label}-----", start, limit)
            if stop >= 0:
                yield label, text[start:stop]
        at = following


def _text(fault: _Fault, data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise fault("neither PEM nor a store that Java knows") from None


def _pem_chain(fault: _Fault, text: str, at_most: int = MAX_CHAIN) -> tuple[bytes, ...]:
    _check_size(fault, text)
    found: list[bytes] = []
    for label, body in pem_blocks(text):
        if label not in ("CERTIFICATE", "X509 CERTIFICATE"):
            continue
        if len(found) >= at_most:
            raise fault(f"more than {at_most} certificates")
        try:
            data = _base64(body)
            read_certificate(data)
        except (DerError, StoreError) as error:
            raise fault(f"certificate {len(found) + 1} cannot be read: {error}") from None
        found.append(data)
    if not found:
        raise fault("no certificate in it")
    return tuple(found)


def _pem_key(fault: _Fault, text: str, password: str | None) -> tuple[bytes, str | None]:
    """The one private key, as PEM, and the password it still needs."""
    _check_size(fault, text)
    keys = [(label, body) for label, body in pem_blocks(text) if label.endswith("PRIVATE KEY")]
    if len(keys) != 1:
        raise fault(f"{len(keys)} private keys where one is expected" if keys else "no private key in it")
    label, body = keys[0]
    is_old = "Proc-Type:" in body and "ENCRYPTED" in body  # as before PKCS#8
    if password is None and (is_old or label == "ENCRYPTED PRIVATE KEY"):
        raise fault("the private key is encrypted, and ssl.key.password is not set")
    if is_old:
        return f"-----BEGIN {label}-----\n{body.strip()}\n-----END {label}-----\n".encode(), password
    try:
        data = _base64(body)
        if label != "ENCRYPTED PRIVATE KEY":
            read_one(data).parts(1)
            return pem(data, label), None
        key = _decrypted_key(data, password or "", Budget())
        try:
            read_one(key).parts(3)
        except DerError:  # one in some hundred wrong passwords gives something that looks decrypted
            raise WrongPassword from None
    except Unsupported:
        return pem(data, label), password
    except WrongPassword:
        raise fault("ssl.key.password does not open the private key") from None
    except (DerError, StoreError) as error:
        raise fault(f"the private key cannot be read: {error}") from None
    return pem(key, "PRIVATE KEY"), None


def _base64(body: str) -> bytes:
    try:
        return base64.b64decode("".join(body.split()), validate=True)
    except (binascii.Error, ValueError):
        raise StoreError("not base64") from None


def _decrypted_key(data: bytes, password: str, budget: Budget) -> bytes:
    """PKCS#8's EncryptedPrivateKeyInfo."""
    algorithm, encrypted = read_one(data).parts(2)[:2]
    return _parsed(decrypt(algorithm, encrypted.octets(), password, budget))


def _parsed(data: bytes) -> bytes:
    """What was decrypted, if it is anything: padding fits by chance once in 256 times."""
    try:
        return read(data)[0].encoded
    except DerError:
        raise WrongPassword from None


# -- JKS ------------------------------------------------------------------------------------------------

_PRIVATE_KEY, _TRUSTED = 1, 2
_WHITENER: Final = b"Mighty Aphrodite"
_SHA1_BYTES: Final = 20
_KEY_PROTECTOR: Final = "1.3.6.1.4.1.42.2.17.1.1"


def parse_store(data: bytes, password: str | None) -> Store:
    """A file of Java's, of whichever kind; StoreError, DerError, Unsupported, WrongPassword."""
    if data.startswith(_JKS_MAGIC):
        return _parse_jks(data, password)
    if data.startswith(_JCEKS_MAGIC):
        raise StoreError(
            "JCEKS is not supported: convert it with keytool -importkeystore -deststoretype PKCS12"
        )
    if data.startswith(_SEQUENCE_START):
        return _parse_pkcs12(data, password)
    raise StoreError("the file is empty" if not data else "neither JKS nor PKCS12")


class _Reader:
    """Java's DataInputStream over bytes that are all there."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int) -> bytes:
        if not 0 <= size <= len(self._data) - self._at:
            raise StoreError(f"{size} bytes announced where {len(self._data) - self._at} are left")
        self._at += size
        return self._data[self._at - size : self._at]

    def number(self) -> int:
        return int(struct.unpack(">i", self.take(4))[0])

    def text(self) -> str:
        # Java's UTF-8 differs in zeros and pairs only, which no alias has; it is compared and shown, no more.
        return self.take(int(struct.unpack(">H", self.take(2))[0])).decode("utf-8", "replace")

    @property
    def left(self) -> int:
        return len(self._data) - self._at


def _parse_jks(data: bytes, password: str | None) -> Store:
    if len(data) < len(_JKS_MAGIC) + 8 + _SHA1_BYTES:
        raise StoreError("it ends in the middle")
    body, digest = data[:-_SHA1_BYTES], data[-_SHA1_BYTES:]
    if password is not None:
        hashed = hashlib.sha1(_utf16(password) + _WHITENER + body).digest()
        if not hmac.compare_digest(hashed, digest):
            raise WrongPassword
    reader = _Reader(body)
    reader.take(len(_JKS_MAGIC))
    version = reader.number()
    if version not in (1, 2):
        raise StoreError(f"JKS of version {version}, where 1 and 2 are known")
    keys: dict[str, KeyEntry] = {}
    certificates: dict[str, bytes] = {}
    count = 0
    for _ in range(_counted(reader.number(), MAX_CERTIFICATES)):
        tag = reader.number()
        alias = reader.text()
        reader.take(8)  # when it was made
        if tag == _PRIVATE_KEY:
            protected = reader.take(reader.number())
            size = _counted(reader.number(), MAX_CHAIN)
            chain = tuple(_jks_certificate(reader, version) for _ in range(size))
            keys[alias] = KeyEntry(alias, chain, _jks_unlock(protected))
            _counted(len(keys), MAX_KEYS)
            count += size
        elif tag == _TRUSTED:
            certificates[alias] = _jks_certificate(reader, version)
            count += 1
        else:
            raise StoreError(f"an entry of kind {tag} in JKS, where 1 and 2 are known")
        _counted(count, MAX_CERTIFICATES)
    if reader.left:
        raise StoreError(f"{reader.left} bytes after the last entry")
    return Store(tuple(keys.values()), tuple(certificates.values()))


def _jks_certificate(reader: _Reader, version: int) -> bytes:
    if version == 2 and (kind := reader.text()) not in ("X.509", "X509"):
        raise StoreError(f"a certificate of type {kind[:40]!r}")
    return _certificate(reader.take(reader.number()))


def _jks_unlock(protected: bytes) -> Callable[[str | None], bytes]:
    """Java's own key protector: a stream of SHA-1 hashes, and a hash of the key at the end."""

    def unlock(password: str | None) -> bytes:
        algorithm, encrypted = read_one(protected).parts(2)[:2]
        if algorithm.parts(1)[0].oid() != _KEY_PROTECTOR:
            raise Unsupported(algorithm.parts(1)[0].oid())
        blob = encrypted.octets()
        if password is None or len(blob) < 2 * _SHA1_BYTES:
            raise WrongPassword
        secret = _utf16(password)
        part, cipher, check = blob[:_SHA1_BYTES], blob[_SHA1_BYTES:-_SHA1_BYTES], blob[-_SHA1_BYTES:]
        stream = bytearray()
        while len(stream) < len(cipher):
            part = hashlib.sha1(secret + part).digest()
            stream += part
        plain = bytes(one ^ other for one, other in zip(cipher, stream, strict=False))
        if not hmac.compare_digest(hashlib.sha1(secret + plain).digest(), check):
            raise WrongPassword
        return plain

    return unlock


def _utf16(password: str) -> bytes:
    return password.encode("utf-16-be", "surrogatepass")


def _counted(count: int, most: int) -> int:
    if not 0 <= count <= most:
        raise StoreError(f"{count} entries, where at most {most} are read")
    return count


def _certificate(data: bytes) -> bytes:
    """Itself, if it is one."""
    try:
        value = read(data)[0].encoded
        read_certificate(value)
    except DerError as error:
        raise StoreError(f"a certificate that cannot be read: {error}") from None
    return value


# -- PKCS12 ---------------------------------------------------------------------------------------------

_DATA: Final = "1.2.840.113549.1.7.1"
_ENCRYPTED_DATA: Final = "1.2.840.113549.1.7.6"
_KEY_BAG: Final = "1.2.840.113549.1.12.10.1.1"
_SHROUDED_KEY_BAG: Final = "1.2.840.113549.1.12.10.1.2"
_CERT_BAG: Final = "1.2.840.113549.1.12.10.1.3"
_FRIENDLY_NAME: Final = "1.2.840.113549.1.9.20"
_LOCAL_KEY_ID: Final = "1.2.840.113549.1.9.21"
_TRUSTED_KEY_USAGE: Final = "2.16.840.1.113894.746875.1.1"
_EXPLICIT: Final = CONTEXT | CONSTRUCTED
_LONGEST_DIGEST: Final = 64
# What Java gives the one key that has no id, and the first certificate after it.
_ONLY_KEY_ID: Final = b"01"


@dataclass(slots=True)
class _Bag:
    """A key or a certificate, with the attributes that matter."""

    value: Der
    is_key: bool
    is_plain: bool = False
    alias: str | None = None
    key_id: bytes | None = None
    is_trusted: bool = False


def _parse_pkcs12(data: bytes, password: str | None) -> Store:
    parts = read(data)[0].parts(2)
    if parts[0].integer() != 3:
        raise StoreError(f"PKCS12 of version {parts[0].integer()}, where 3 is known")
    kind, content = _content_info(parts[1])
    if kind != _DATA:
        raise StoreError("PKCS12 that is signed with a key, where one with a password is expected")
    safes = content.octets()
    budget = Budget()
    # Java tries an empty password as none, too.
    tries: Sequence[str | None] = ("", "\0") if password == "" else (password,)
    if len(parts) > 2 and password is not None:
        tries = [one for one in tries if one is not None and _mac_fits(parts[2], safes, one, budget)][:1]
        if not tries:
            raise WrongPassword
    bags: list[_Bag] = []
    for info in read_one(safes).items():
        kind, content = _content_info(info)
        if kind == _DATA:
            _add_bags(bags, content.octets())
        elif kind == _ENCRYPTED_DATA:
            if password is not None:
                _add_bags(bags, _decrypted_safe(content, tries, budget))
        else:
            raise StoreError("a part of PKCS12 that is encrypted with a key, where a password is expected")
        _counted(len(bags), MAX_CERTIFICATES)
    _counted(sum(bag.is_key for bag in bags), MAX_KEYS)
    return _store_of(bags, budget)


def _content_info(info: Der) -> tuple[str, Der]:
    parts = info.parts(2)
    return parts[0].oid(), parts[1].parts(1, _EXPLICIT)[0]


def _decrypted_safe(content: Der, tries: Sequence[str | None], budget: Budget) -> bytes:
    info = content.parts(2)[1].parts(3)
    blob = info[2].octets(CONTEXT)
    for number, one in enumerate(tries, 1):
        try:
            return _parsed(decrypt(info[1], blob, one or "", budget))
        except WrongPassword:
            if number == len(tries):
                raise
    raise WrongPassword


def _mac_fits(mac: Der, data: bytes, password: str, budget: Budget) -> bool:
    """Was it written by somebody who knows the password, and not changed since?"""
    info, salt, *rest = mac.parts(2)
    algorithm, digest = info.parts(2)[:2]
    name = algorithm.parts(1)[0].oid()
    expected = digest.octets()
    if len(expected) > _LONGEST_DIGEST:
        raise DerError(f"a digest of {len(expected)} bytes")
    if name == PBMAC1:  # RFC 9579
        kdf, scheme = algorithm.parts(2)[1].parts(2)[:2]
        hashed = HMACS.get(scheme.parts(1)[0].oid())
        if hashed is None:
            raise Unsupported(scheme.parts(1)[0].oid())
        key = pbkdf2(kdf.parts(2), password, len(expected), budget)
    else:
        hashed = DIGESTS.get(name)
        if hashed is None:
            raise Unsupported(name)
        iterations = rest[0].integer() if rest else 1
        budget.take(iterations)
        make = pkcs12_key(hashed, bmp(password), salt_of(salt), iterations)
        key = make(FOR_MAC, hashlib.new(hashed).digest_size)
    return hmac.compare_digest(hmac.digest(key, data, hashed), expected)


def _add_bags(bags: list[_Bag], data: bytes) -> None:
    """SafeContents; where ids are missing, those that Java puts there."""
    keys = sum(bag.is_key for bag in bags)
    for number, bag in enumerate(read_one(data).items()):
        parts = bag.parts(2)
        kind = parts[0].oid()
        value = parts[1].parts(1, _EXPLICIT)[0]
        if kind not in (_KEY_BAG, _SHROUDED_KEY_BAG, _CERT_BAG):
            continue  # secret keys, CRLs
        one = _Bag(value, kind != _CERT_BAG, kind == _KEY_BAG)
        _read_attributes(one, parts[2:])
        keys += one.is_key
        if one.key_id is None and keys == 1 and (one.is_key or number == 0):
            one.key_id = _ONLY_KEY_ID
        bags.append(one)


def _read_attributes(bag: _Bag, sets: list[Der]) -> None:
    for attribute in sets[0].items(SET) if sets else ():
        name, values = attribute.parts(2)[:2]
        kind = name.oid()
        if kind == _TRUSTED_KEY_USAGE:
            bag.is_trusted = True
        elif kind == _FRIENDLY_NAME:
            bag.alias = values.parts(1, SET)[0].expect(BMP_STRING).content.decode("utf-16-be", "replace")
        elif kind == _LOCAL_KEY_ID:
            bag.key_id = values.parts(1, SET)[0].octets()


@dataclass(frozen=True, slots=True)
class _Found:
    """A certificate in a PKCS12 file."""

    data: bytes
    read: Certificate
    bag: _Bag

    @property
    def subject(self) -> str:
        return canonical_name_of(self.read.subject)


def _store_of(bags: list[_Bag], budget: Budget) -> Store:
    certificates: list[_Found] = []
    for bag in bags:
        if not bag.is_key:
            data = _certificate(bag.value.parts(2)[1].parts(1, _EXPLICIT)[0].octets())
            certificates.append(_Found(data, read_certificate(data), bag))
    by_subject: dict[str, _Found] = {}
    for found in certificates:
        by_subject.setdefault(found.subject, found)
    keys: dict[str, KeyEntry] = {}
    used: set[bytes] = set()
    nameless = 0
    plain = [found for found in certificates if not found.bag.is_trusted]
    for bag in bags:
        is_entry = bag.is_trusted if not bag.is_key else bag.key_id is not None
        if is_entry and bag.alias is None:
            nameless += 1
            bag.alias = str(nameless)
        if bag.is_key and is_entry:
            alias = (bag.alias or "").lower()
            chain = _chain(_match(bag, alias, plain), by_subject)
            used.update(chain)
            keys[alias] = KeyEntry(alias, chain, _pkcs12_unlock(bag, budget))
    trusted = tuple(found.data for found in certificates if found.bag.is_trusted)
    unmarked = sum(not found.bag.is_trusted and found.data not in used for found in certificates)
    return Store(tuple(keys.values()), trusted, unmarked)


def _match(key: _Bag, alias: str, certificates: list[_Found]) -> _Found | None:
    """The key's own certificate: by its id and name, by its id, by its name."""
    by_id = by_name = None
    for found in certificates:
        has_name = found.bag.alias is not None and found.bag.alias.lower() == alias
        if found.bag.key_id == key.key_id:
            if has_name:
                return found
            by_id = found
        elif has_name:
            by_name = found
    return by_id or by_name


def _chain(first: _Found | None, by_subject: dict[str, _Found]) -> tuple[bytes, ...]:
    """From one to its issuer, as far as they are in the store."""
    chain: list[bytes] = []
    one = first
    while one is not None and one.data not in chain:
        if len(chain) >= MAX_CHAIN:
            raise StoreError(f"a chain of more than {MAX_CHAIN} certificates")
        chain.append(one.data)
        issuer = canonical_name_of(one.read.issuer)
        one = None if issuer == one.subject else by_subject.get(issuer)
    return tuple(chain)


def _pkcs12_unlock(bag: _Bag, budget: Budget) -> Callable[[str | None], bytes]:
    def unlock(password: str | None) -> bytes:
        if bag.is_plain:
            return bag.value.encoded
        if password is None:
            raise WrongPassword
        if password:
            return _decrypted_key(bag.value.encoded, password, budget)
        try:
            return _decrypted_key(bag.value.encoded, "", budget)
        except WrongPassword:
            return _decrypted_key(bag.value.encoded, "\0", budget)

    return unlock
