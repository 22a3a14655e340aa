"""Messages as JSON, with the names and shapes Kafka's own converters give them.

Fields in camel case and in the order of the wire, ids and bytes as base64, tagged fields only where they say
something. Used by the commands that show what is in a log.
"""

from __future__ import annotations

import base64
import json
from typing import Any

from ottla.model.ids import uuid_to_str
from ottla.wire.schema import UUID, Array, Kind, is_declared, schema_of


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
