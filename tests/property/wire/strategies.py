"""Hypothesis strategies for any declared message, built from its schema.

`messages(cls, version)` makes instances that the version can carry. With `oracle`, kio's class of the same message,
values stay within what kio's richer types can hold (its error codes, its dates), so that it can be asked.
"""

from dataclasses import fields as dataclass_fields
from functools import cache
from typing import Any, get_args

from hypothesis import strategies as st
from kio.schema.errors import ErrorCode as KioErrorCode

from ottla.wire.schema import Array, Field, Kind, Primitive, schema_of

_INTEGERS = {
    "int8": (-(2**7), 2**7 - 1),
    "int16": (-(2**15), 2**15 - 1),
    "uint16": (0, 2**16 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
}
_KIO_RANGES = {
    "timedelta_i32": (-(2**31), 2**31 - 1),
    "timedelta_i64": (-(10**10), 10**10),
    "datetime_i64": (0, 4 * 10**12),
}
_STRINGS = st.text(max_size=5) | st.just("x" * 200)  # the last has a length of two varint bytes
_BYTES = st.binary(max_size=5) | st.just(b"y" * 20_000)  # and this one of three
_OTHERS: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "float64": st.floats(allow_nan=False),
    "uuid": st.binary(min_size=16, max_size=16) | st.just(bytes(16)),
    "string": _STRINGS,
    "bytes": _BYTES,
    "records": _BYTES,
}


def normal(name: str) -> str:
    """A field's name without what kio and we do differently: underscores, and the unit of a time."""
    return name.removesuffix("_ms").replace("_", "")


# Kafka gave two fields new names after kio's release.
_RENAMED = {
    ("TxnOffsetCommitRequest", "generation_id"): "generation_id_or_member_epoch",
    ("StreamsGroupHeartbeatResponse", "acceptable_recovery_lag"): "acceptable_recovery_lag_legacy",
}


def oracle_fields(oracle: type) -> dict[str, Any]:
    """kio's fields of a class, by normal name."""
    return {
        normal(_RENAMED.get((oracle.__name__, field.name), field.name)): field
        for field in dataclass_fields(oracle)
    }


def oracle_element(oracle_field: Any) -> type | None:
    """kio's class behind a field of structs."""
    todo = [oracle_field.type]
    while todo:
        hint = todo.pop()
        if hasattr(hint, "__dataclass_fields__"):
            return hint  # type: ignore[no-any-return]
        todo += get_args(hint)
    return None


def present(cls: type, version: int) -> list[Field]:
    """The fields that a version can carry."""
    flexible = _is_flexible(cls, version)
    return [f for f in schema_of(cls).fields if f.is_in(version) and (f.tag is None or flexible)]


def _is_flexible(cls: type, version: int) -> bool:
    schema = schema_of(cls)
    # A struct does not know its message: all tags of structs begin at or after the message's flexible version.
    return schema.role == "struct" or schema.is_flexible(version)


@cache
def messages(cls: Any, version: int, oracle: type | None = None) -> st.SearchStrategy[Any]:
    """Instances of `cls` that `version` can carry."""
    known = oracle_fields(oracle) if oracle is not None else {}
    parts = {
        field.name: _field(field, version, known.get(normal(field.name))) for field in present(cls, version)
    }
    return st.builds(lambda **values: cls(**values), **parts)


def _field(field: Field, version: int, oracle_field: Any) -> st.SearchStrategy[Any]:
    value = _kind(field.kind, version, oracle_field)
    if field.tag is not None:
        value = value | st.just(field.default)
    return st.none() | value if field.is_nullable_in(version) else value


def _kind(kind: Kind, version: int, oracle_field: Any) -> st.SearchStrategy[Any]:
    if isinstance(kind, Array):
        elements = _kind(kind.element, version, oracle_field)
        if isinstance(kind.element, Primitive) and kind.element.format:
            # Short, too long for the packers of short arrays, and with a length of two varint bytes.
            return st.lists(elements, max_size=3) | elements.map(
                lambda one: [one] * 17 if one else [one] * 130
            )
        return st.lists(elements, max_size=3)
    if isinstance(kind, Primitive):
        return _primitive(kind, oracle_field)
    return messages(kind, version, oracle_element(oracle_field) if oracle_field is not None else None)


def _primitive(kind: Primitive, oracle_field: Any) -> st.SearchStrategy[Any]:
    kafka_type = oracle_field.metadata["kafka_type"] if oracle_field is not None else kind.name
    if kafka_type == "error_code":
        return st.sampled_from([code.value for code in KioErrorCode])
    if kafka_type in _KIO_RANGES:
        return st.integers(*_KIO_RANGES[kafka_type])
    if kind.name in _INTEGERS:
        return st.integers(*_INTEGERS[kind.name])
    return _OTHERS[kind.name]
