"""Kafka's CoordinatorRecordSerde: coordinator records to bytes and back.

A key begins with its type, a value with its version.

The table of a topic's record types is all that differs between the coordinators. Whatever cannot be read (a newer node
may have written it, or it is damaged) is a KafkaError and nothing else: UNSUPPORTED_VERSION for a type or a version
that is not known here, CORRUPT_MESSAGE for the rest.
"""

import struct
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from ottla.coordinator.shard import CoordinatorRecord
from ottla.model.errors import ErrorCode, KafkaError
from ottla.wire.codec import WireError, decode, encode

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

    def decode(self, key: bytes | None, value: bytes | None) -> CoordinatorRecord:
        """The record."""
        kind, decoded = self._decode_key(key)
        if value is None:
            return CoordinatorRecord(decoded, None)
        name = kind.value.__name__
        if len(value) < _SHORT.size:
            raise _corrupt(f"{name} has {len(value)} bytes, too few for a version")
        version = _SHORT.unpack_from(value)[0]
        if version not in kind.value.VALID_VERSIONS:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"version {version} of {name} is not known")
        try:
            return CoordinatorRecord(decoded, decode(kind.value, value, version, _SHORT.size)[0], version)
        except WireError as error:
            raise _corrupt(str(error)) from error

    def decode_key(self, key: bytes | None) -> Any:
        """The key alone, of a record whose value cannot be read."""
        return self._decode_key(key)[1]

    def _decode_key(self, key: bytes | None) -> tuple[RecordType, Any]:
        if key is None or len(key) < _SHORT.size:
            raise _corrupt("a coordinator's record has a key with a type")
        number = _SHORT.unpack_from(key)[0]
        kind = self._types.get(number)
        if kind is None:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"records of type {number} are not known")
        try:
            return kind, decode(kind.key, key, _KEY_VERSION, _SHORT.size)[0]
        except WireError as error:
            raise _corrupt(str(error)) from error


def _corrupt(message: str) -> KafkaError:
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, message)
