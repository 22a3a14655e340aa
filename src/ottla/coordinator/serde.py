"""Coordinator records to bytes and back: a key begins with its type, a value with its version.

The table of a topic's record types is all that differs between the coordinators. A type that is not in it (a newer
node may have written it) is passed over on load.
"""

import struct
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from ottla.coordinator.result import CoordinatorRecord
from ottla.model.errors import ErrorCode, KafkaError
from ottla.wire.codec import decode, encode

_SHORT: Final = struct.Struct(">h")
_KEY_VERSION: Final = 0


Encoded = tuple[bytes, bytes | None]


class RecordType(NamedTuple):
    """A kind of record: how its key and value are declared, and the version its values are written in."""

    key: type[Any]
    value: type[Any]
    write_version: int
    # A short way to the bytes of a record; None where it is not the one that the way is for.
    encode: Callable[[CoordinatorRecord], Encoded | None] | None = None


class RecordSerde:
    """The record types of one coordinator's topic."""

    def __init__(self, types: Mapping[int, RecordType]) -> None:
        self._types = dict(types)
        self._by_key = {kind.key: (_SHORT.pack(number), kind) for number, kind in types.items()}

    def encode(self, record: CoordinatorRecord) -> Encoded:
        """The key and the value as the log holds them."""
        prefix, kind = self._by_key[type(record.key)]
        if kind.encode is not None:
            encoded = kind.encode(record)
            if encoded is not None:
                return encoded
        key = prefix + encode(record.key, _KEY_VERSION)
        if record.value is None:
            return key, None
        version = kind.write_version if record.value_version is None else record.value_version
        return key, _SHORT.pack(version) + encode(record.value, version)

    def decode(self, key: bytes | None, value: bytes | None) -> CoordinatorRecord | None:
        """The record; None for a type that is not known here."""
        if key is None or len(key) < _SHORT.size:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "a coordinator's record has a key with a type")
        kind = self._types.get(_SHORT.unpack_from(key)[0])
        if kind is None:
            return None
        decoded, _ = decode(kind.key, key, _KEY_VERSION, _SHORT.size)
        if value is None:
            return CoordinatorRecord(decoded, None)
        version = _SHORT.unpack_from(value)[0]
        if version not in kind.value.VALID_VERSIONS:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"version {version} of {kind.value.__name__} is not known",
            )
        return CoordinatorRecord(decoded, decode(kind.value, value, version, _SHORT.size)[0], version)
