"""kio as an oracle: its classes for our messages, its bytes, and its values in our terms."""

import io
import uuid
from datetime import datetime, timedelta
from enum import Enum
from typing import Any

from kio.index import UnknownEntity, load_entity_schema
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType
from tests.property.wire.strategies import normal, oracle_fields

from ottla.wire.schema import Field, schema_of

_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")
_TYPES = {"request": EntityType.request, "response": EntityType.response, "data": EntityType.data}


def oracle_class(cls: type, version: int) -> type | None:
    """kio's class for a version of a message, or None where it has none."""
    schema = schema_of(cls)
    name = _snake(schema.name.removesuffix("Request").removesuffix("Response"))
    try:
        found: type = load_entity_schema(name, version, _TYPES[schema.role])  # type: ignore[arg-type]
    except UnknownEntity:
        return None
    return found


def _snake(name: str) -> str:
    return "".join("_" + char.lower() if char.isupper() else char for char in name).lstrip("_")


def oracle_decode(oracle: Any, data: bytes) -> Any:
    """kio's reading of some bytes, all of them."""
    value, size = entity_reader(oracle)(data, 0)
    assert size == len(data)
    return value


def oracle_encode(value: Any) -> bytes:
    out = io.BytesIO()
    entity_writer(type(value))(out, value)
    return out.getvalue()


def in_our_terms(value: Any) -> Any:
    """A value of kio's as our codecs would give it; entities as dicts by normal field name."""
    if hasattr(value, "__dataclass_fields__"):
        known = oracle_fields(type(value))
        return {name: in_our_terms(getattr(value, field.name)) for name, field in known.items()}
    if isinstance(value, tuple):
        return [in_our_terms(item) for item in value]
    if isinstance(value, uuid.UUID):
        return value.bytes
    if isinstance(value, timedelta):
        return round(value / timedelta(milliseconds=1))
    if isinstance(value, datetime):
        return round((value - _EPOCH) / timedelta(milliseconds=1))
    if isinstance(value, Enum):
        return value.value
    return value


def assert_same(ours: Any, theirs: Any, where: str = "") -> None:
    """Our message says the same as theirs (in our terms), field by field, by name."""
    by_name = {normal(field.name): field for field in schema_of(type(ours)).fields}
    for name, value in theirs.items():
        field = by_name[name]
        _assert_same_value(field, getattr(ours, field.name), value, f"{where}.{field.name}")


def _assert_same_value(field: Field, ours: Any, theirs: Any, where: str) -> None:
    if isinstance(theirs, dict):
        assert_same(ours, theirs, where)
    elif isinstance(theirs, list):
        assert len(ours) == len(theirs), where
        for ours_item, theirs_item in zip(ours, theirs, strict=True):
            _assert_same_value(field, ours_item, theirs_item, where)
    else:
        assert _plain(field, ours) == _plain(field, theirs), where


def _plain(field: Field, value: Any) -> Any:
    # kio shows the zero id, and the timestamp -1 where that is the default, as None.
    if value == bytes(16):
        return None
    return None if value == -1 and field.default == -1 else value
