"""What the records of Kafka's own topics mean: the cluster's metadata, committed offsets, transactions, share state.

A decoder takes a record and returns key and payload as text; a record it cannot read becomes a sentence, as in
kafka-dump-log, because one damaged record is no reason not to see the others. `to_json` gives a message the names and
shapes of Kafka's own converters: fields in camel case and in the order of the wire, ids and bytes as base64, tagged
fields only where they are not the default.
"""

from __future__ import annotations

import base64
import json
import struct
from typing import TYPE_CHECKING, Any

from ottla.model.ids import uuid_to_str
from ottla.wire.schema import UUID, Array, Kind, is_declared, schema_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from ottla.records.types import Record

    Decoder = Callable[[Record], tuple[str | None, str | None]]
_SHORT = struct.Struct(">h")


def to_json(message: Any, version: int) -> dict[str, Any]:
    """A declared message or struct as Kafka's JSON has it in this version."""
    document: dict[str, Any] = {}
    for field in schema_of(type(message)).fields:
        value = getattr(message, field.name)
        if field.is_in(version) and not (field.tag is not None and value == field.default):
            document[camel_case(field.name)] = _value(value, field.kind, version)
    return document


def _value(value: Any, kind: Kind, version: int) -> Any:
    if value is None:
        return None
    if isinstance(kind, Array):
        return [_value(entry, kind.element, version) for entry in value]
    if is_declared(kind):
        return to_json(value, version)
    if kind is UUID:
        return uuid_to_str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode("ascii")
    return value


def camel_case(name: str) -> str:
    """leader_epoch is leaderEpoch; KRaft keeps its second capital."""
    first, *rest = name.strip("_").split("_")
    first = "kRaft" if first == "kraft" else first
    return first + "".join(word[:1].upper() + word[1:] for word in rest)


def compact(document: object) -> str:
    """JSON on one line without blanks, as Kafka's tools print it."""
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False)


def plain(key_class: str, value_class: str) -> Decoder:
    """Keys and values as one of Kafka's decoder classes reads them; the package may be left out."""
    key, value = PLAIN[key_class.rpartition(".")[2]], PLAIN[value_class.rpartition(".")[2]]

    def decode(record: Record) -> tuple[str | None, str | None]:
        return (
            None if record.key is None else key(record.key),
            None if record.value is None else value(record.value),
        )

    return decode


def _number(layout: str) -> Callable[[bytes], str]:
    number = struct.Struct(layout)

    def decode(raw: bytes) -> str:
        if len(raw) < number.size:
            return f"Error: {len(raw)} bytes are too few for a number of {number.size}"
        return str(number.unpack_from(raw)[0])

    return decode


# Kafka's DefaultDecoder prints an array's address, which helps nobody.
PLAIN: dict[str, Callable[[bytes], str]] = {
    "StringDecoder": lambda raw: raw.decode("utf-8", "replace"),
    "IntegerDecoder": _number(">i"),
    "LongDecoder": _number(">q"),
    "DefaultDecoder": lambda raw: raw.hex(),
}


def cluster_metadata(record: Record) -> tuple[str | None, str | None]:
    """A record of __cluster_metadata."""
    from ottla.metadata.serde import decode_frame
    from ottla.model.errors import KafkaError

    try:
        message, version = decode_frame(record.value or b"")
    except KafkaError as error:
        return None, f"Error at {record.offset}, skipping. {error}"
    name = type(message).__name__
    kind = "".join("_" + char if char.isupper() else char for char in name).strip("_").upper()
    return None, compact({"type": kind, "version": version, "data": to_json(message, version)})


def offsets() -> Decoder:
    """Records of __consumer_offsets, whatever kind of group wrote them."""
    from ottla.wire.messages.logs import offsets as offsets_log
    from ottla.wire.messages.logs import share_group as share_group_log
    from ottla.wire.messages.logs import streams_group as streams_group_log

    return _coordinator(offsets_log, share_group_log, streams_group_log)


def transactions() -> Decoder:
    """Records of __transaction_state."""
    from ottla.wire.messages.logs import transactions as transaction_log

    return _coordinator(transaction_log)


def share_state() -> Decoder:
    """Records of __share_group_state."""
    from ottla.wire.messages.logs import share_state as share_state_log

    return _coordinator(share_state_log)


def _coordinator(*modules: ModuleType) -> Decoder:
    """A coordinator's log: the key begins with its type, the value with its version."""
    keys, values = _classes(modules, "Key"), _classes(modules, "Value")

    def decode(record: Record) -> tuple[str | None, str | None]:
        from ottla.model.errors import KafkaError

        if record.key is None or len(record.key) < _SHORT.size:
            return f"Error at offset {record.offset}, skipping. The key is missing or too short", None
        (kind,) = _SHORT.unpack_from(record.key)
        if kind not in keys:
            return f"Unknown record type {kind} at offset {record.offset}, skipping.", None
        try:
            return _decode_key(keys[kind], kind, record.key), _decode_value(values[kind], record.value)
        except (KafkaError, struct.error) as error:
            return f"Error at offset {record.offset}, skipping. {error}", None

    return decode


def _classes(modules: tuple[ModuleType, ...], suffix: str) -> dict[int, Any]:
    found = {}
    for module in modules:
        for name, value in vars(module).items():
            if name.endswith(suffix) and getattr(value, "API_KEY", None) is not None:
                found[int(value.API_KEY)] = value
    return found


def _decode_key(cls: Any, kind: int, raw: bytes) -> str:
    from ottla.wire.codec import decode

    message, _ = decode(cls, raw, 0, _SHORT.size)
    return compact({"type": str(kind), "data": to_json(message, 0)})


def _decode_value(cls: Any, raw: bytes | None) -> str:
    from ottla.wire.codec import decode

    if raw is None:
        return "<DELETE>"
    (version,) = _SHORT.unpack_from(raw)
    message, _ = decode(cls, raw, version, _SHORT.size)
    document = to_json(message, version)
    if document.get("protocolType") == "consumer":
        _open_members(message, document)
    return compact({"version": str(version), "data": document})


def _open_members(message: Any, document: dict[str, Any]) -> None:
    """A classic consumer group keeps its clients' own messages: they are shown opened, where they can be."""
    from ottla.wire.messages.groups.consumer_protocol import (
        ConsumerProtocolAssignment,
        ConsumerProtocolSubscription,
    )

    for member, shown in zip(message.members, document["members"], strict=True):
        for field, cls in (
            ("subscription", ConsumerProtocolSubscription),
            ("assignment", ConsumerProtocolAssignment),
        ):
            opened = _open(cls, bytes(getattr(member, field)))
            if opened is not None:
                shown[field] = opened


def _open(cls: Any, raw: bytes) -> dict[str, Any] | None:
    from ottla.model.errors import KafkaError
    from ottla.wire.codec import decode
    from ottla.wire.schema import schema_of

    if len(raw) < _SHORT.size:
        return None
    (version,) = _SHORT.unpack_from(raw)
    if version not in schema_of(cls).versions:
        return None
    try:
        message, _ = decode(cls, raw, version, _SHORT.size)
    except KafkaError:
        return None
    return to_json(message, version)
