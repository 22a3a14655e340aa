"""Values that brokers cannot read: sealed by producers, opened by consumers, under AES-256-GCM.

Ottla's own; to a broker, and to other clients, they are records with values of bytes and one header more.

A producer has a data key of its own, at random, by which it seals values, and which travels with each of them, wrapped
by a key of a keyring that brokers do not have. The header `ottla.encryption` of a record (its format is in
docs/encryption.md):

    version 1    1 byte
    key id       1 byte of length, then so many of UTF-8
    wrapped key  2 bytes of length, big-endian, then so many
    nonce        12 bytes

The value is what AES-256-GCM makes of it under the data key and nonce, its tag of 16 bytes at the end. What it vouches
for besides is the header without its nonce, the topic and the record's key: a value cannot be put under another key, or
into another topic. A null value stays null and has no such header.

Rules: no value is given out that was not vouched for. Lengths are checked before they are used. Keys are in no repr and
no message. `cryptography` (the extra `security`) is imported when the first key is needed.

Owner: a Sealer by a producer, under its lock; an Opener by a consumer. A keyring may be shared.
"""

import os
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from ottla.model.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

SETTING: Final = "encryption.key"
ALLOW_PLAIN: Final = "encryption.allow.plaintext"
# Instead of a keyring: values are left as they are.
LEAVE_SEALED: Final = "none"
HEADER: Final = "ottla.encryption"
VERSION: Final = 1
KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12
TAG_BYTES: Final = 16
MAX_KEY_ID_BYTES: Final = 255
MAX_WRAPPED_BYTES: Final = 4096
# A data key seals no more than this: nonces are chosen at random, and of 2^32 no two may be alike (SP 800-38D).
MAX_SEALED: Final = 1 << 30
# Nor for longer: after that the newest key of the keyring wraps the next one.
MAX_DATA_KEY_AGE_S: Final = 3600.0
# Data keys that an Opener remembers; each belongs to a producer.
MAX_DATA_KEYS: Final = 10_000
# Nonces that are drawn at once.
NONCES_AT_ONCE: Final = 128

_LENGTH = struct.Struct(">H")
_CONTEXT: Final = b"ottla.encryption\0"

Headers = Sequence[tuple[str, bytes | None]]


class EncryptionError(KafkaError):
    """A value that cannot be opened, or that may not be sealed. The code is INVALID_RECORD."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.INVALID_RECORD, message)


class Keyring(Protocol):
    """Who wraps data keys: a file (security/keyring.py), or a key management service."""

    def wrap(self, data_key: bytes) -> tuple[str, bytes]:
        """Under the newest key: the id of that one, and the data key wrapped."""

    def unwrap(self, key_id: str, wrapped: bytes) -> bytes:
        """The data key. LookupError if the key is not known; ValueError if it is not the one that wrapped it."""


def _cipher(key: bytes) -> "AESGCM":
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(key)


# --- the header


class SealedHeader(NamedTuple):
    """What the header of a sealed value says."""

    key_id: str
    wrapped: bytes
    nonce: bytes


def parse_header(data: bytes | None) -> SealedHeader:
    """ValueError if it is none of ours, or damaged."""
    if not data:
        raise ValueError("the header is empty")
    if data[0] != VERSION:
        raise ValueError(f"the header has version {data[0]}, which is not known here")
    try:
        id_end = 2 + data[1]
        (wrapped_length,) = _LENGTH.unpack_from(data, id_end)
        key_id = data[2:id_end].decode()
    except (IndexError, struct.error, UnicodeDecodeError):
        raise ValueError("the header is damaged") from None
    wrapped_end = id_end + _LENGTH.size + wrapped_length
    if wrapped_length > MAX_WRAPPED_BYTES or len(data) != wrapped_end + NONCE_BYTES:
        raise ValueError("the header is damaged")
    return SealedHeader(key_id, data[id_end + _LENGTH.size : wrapped_end], data[wrapped_end:])


def _header_start(key_id: str, wrapped: bytes) -> bytes:
    """The header without its nonce."""
    name = key_id.encode()
    if not 0 < len(name) <= MAX_KEY_ID_BYTES:
        raise ValueError(f"the id of its key has {len(name)} bytes, not 1 to {MAX_KEY_ID_BYTES}")
    if len(wrapped) > MAX_WRAPPED_BYTES:
        raise ValueError(f"the wrapped key has {len(wrapped)} bytes, more than {MAX_WRAPPED_BYTES}")
    return bytes((VERSION, len(name))) + name + _LENGTH.pack(len(wrapped)) + wrapped


def _vouched(start: bytes, topic: str) -> bytes:
    """What a value vouches for, all but the record's key; every part has its length: none passes for another."""
    try:
        name = topic.encode()
        return _CONTEXT + start + _LENGTH.pack(len(name)) + name
    except (UnicodeEncodeError, struct.error):
        raise EncryptionError("no topic can have such a name") from None


def _for_key(vouched: bytes, key: bytes | None) -> bytes:
    return vouched + b"\0" if key is None else vouched + b"\1" + key


# --- sealing

# Counted in each child of a fork: what a parent has drawn at random is not used again there.
_forks = 0


def _forked() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_forked)


class Sealer:
    """Seals the values of one producer."""

    def __init__(self, keyring: Keyring, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Takes its first data key at once: a key service that does not answer is found out here."""
        self._keyring = keyring
        self._monotonic = monotonic
        self._nonces: Iterator[bytes] = iter(())
        self._renew()

    def seal(
        self, topic: str, key: bytes | None, value: bytes | None, headers: Headers = ()
    ) -> tuple[bytes | None, Headers]:
        """The value and the headers that a record has instead of these."""
        if headers:
            _refuse_own(headers)
        if value is None:
            return None, headers
        nonce = next(self._nonces, None)
        if nonce is None or self._fork != _forks:
            nonce = self._draw()
        vouched = self._vouched.get(topic)
        if vouched is None:
            vouched = self._vouched[topic] = _vouched(self._start, topic)
        sealed = self._cipher.encrypt(nonce, value, _for_key(vouched, key))
        mine = (HEADER, self._start + nonce)
        return sealed, (mine,) if not headers else (*headers, mine)

    def _draw(self) -> bytes:
        """A nonce, of many that are drawn; under another data key when this one has been used for long enough."""
        self._nonces = iter(())
        is_forked = self._fork != _forks
        if is_forked or self._left <= 0 or self._monotonic() >= self._ends_at:
            self._renew()
        self._left -= NONCES_AT_ONCE
        drawn = os.urandom(NONCES_AT_ONCE * NONCE_BYTES)
        self._nonces = iter([drawn[at : at + NONCE_BYTES] for at in range(0, len(drawn), NONCE_BYTES)])
        return next(self._nonces)

    def _renew(self) -> None:
        fork = _forks
        data_key = os.urandom(KEY_BYTES)
        try:
            key_id, wrapped = self._keyring.wrap(data_key)
            start = _header_start(key_id, bytes(wrapped))
        except Exception as error:
            raise EncryptionError(f"{SETTING}: no data key can be wrapped: {_words(error)}") from error
        # Only now: where none can be had the old one is not used on.
        self._start = start
        self._cipher = _cipher(data_key)
        self._vouched: dict[str, bytes] = {}
        self._fork = fork
        self._left = MAX_SEALED
        self._ends_at = self._monotonic() + MAX_DATA_KEY_AGE_S


def _refuse_own(headers: Headers) -> None:
    if any(name == HEADER for name, _ in headers):
        raise EncryptionError(
            f"the header {HEADER} is for values that are encrypted already, and they are sealed here"
        )


def _words(error: Exception) -> str:
    """Of a keyring's error: a file's are ours, those of another's code may be about anything."""
    return str(error) if isinstance(error, LookupError | ValueError) else type(error).__name__


# --- opening


class Opener:
    """Opens values, or says why not."""

    def __init__(self, keyring: Keyring, *, allow_plain: bool = False) -> None:
        """With `allow_plain` a value without the header is given out as it is, and nothing vouches for it."""
        from cryptography.exceptions import InvalidTag

        self._invalid_tag = InvalidTag
        self._keyring = keyring
        self._allow_plain = allow_plain
        self._by_start: dict[bytes, AESGCM] = {}
        # By a header's beginning and a topic; the same, for the records of a producer, is looked up once a record.
        self._vouched: dict[tuple[bytes, str], tuple[AESGCM, bytes]] = {}

    def open(
        self, topic: str, key: bytes | None, value: bytes | None, headers: Headers
    ) -> tuple[bytes | None, Headers]:
        """The value as it was before it was sealed, and the headers without ours; EncryptionError."""
        # Every record passes here: the usual one has our header and no other.
        header: bytes | None
        rest: Headers = ()
        if len(headers) == 1 and headers[0][0] == HEADER:
            header = headers[0][1] or b""
        else:
            header, rest = split_headers(headers)
        if header is None:
            if value is None or self._allow_plain:
                return value, rest
            raise EncryptionError(
                f"its value is not encrypted; {ALLOW_PLAIN}=true reads such values too, which anybody may have written"
            )
        if value is None:
            raise EncryptionError(
                "its value is null, and a header says that it was encrypted: it was taken away"
            )
        start = header[:-NONCE_BYTES]
        cipher, vouched = self._vouched.get((start, topic)) or self._data_key(start, topic, header)
        try:
            return cipher.decrypt(header[-NONCE_BYTES:], value, _for_key(vouched, key)), rest
        except self._invalid_tag:
            raise EncryptionError(
                "its value does not match what was encrypted: the value, its header, the record's key or its topic is "
                "another"
            ) from None

    def _data_key(self, start: bytes, topic: str, header: bytes) -> "tuple[AESGCM, bytes]":
        try:
            parsed = parse_header(header)
        except ValueError as error:
            raise EncryptionError(str(error)) from None
        cipher = self._by_start.get(start)
        if cipher is None:
            cipher = _cipher(_unwrapped(self._keyring, parsed))
            if len(self._by_start) >= MAX_DATA_KEYS:
                del self._by_start[next(iter(self._by_start))]
            self._by_start[start] = cipher
        if len(self._vouched) >= MAX_DATA_KEYS:
            del self._vouched[next(iter(self._vouched))]
        found = self._vouched[start, topic] = (cipher, _vouched(start, topic))
        return found


def _unwrapped(keyring: Keyring, header: SealedHeader) -> bytes:
    try:
        data_key = bytes(keyring.unwrap(header.key_id, header.wrapped))
    except Exception as error:
        raise EncryptionError(f"the data key cannot be unwrapped: {_words(error)}") from error
    if len(data_key) != KEY_BYTES:
        raise EncryptionError(f"the keyring gave a data key of {len(data_key)} bytes, not of {KEY_BYTES}")
    return data_key


class LeftSealed:
    """In place of an Opener, for who wants values as they are: a copy of a topic needs no key."""

    def open(
        self, topic: str, key: bytes | None, value: bytes | None, headers: Headers
    ) -> tuple[bytes | None, Headers]:
        return value, headers


def needs_key(key_id: str) -> str:
    """What a reader without a key is told."""
    return (
        f"its value is encrypted (key {key_id!r}), and {SETTING} is not set; {SETTING}={LEAVE_SEALED} gives out what "
        "is stored"
    )


def split_headers(headers: Headers) -> tuple[bytes | None, Headers]:
    """Our header, or None, and the others; EncryptionError if there is more than one of ours."""
    found = [content or b"" for name, content in headers if name == HEADER]
    if not found:
        return None, headers
    if len(found) > 1:
        raise EncryptionError(f"it has the header {HEADER} {len(found)} times")
    return found[0], tuple(pair for pair in headers if pair[0] != HEADER)


def sealed_key_id(headers: Headers) -> str | None:
    """The key of a sealed value, for who cannot open it; None if it is not sealed."""
    for name, content in headers:
        if name == HEADER:
            try:
                return parse_header(content).key_id
            except ValueError:
                return "?"
    return None
