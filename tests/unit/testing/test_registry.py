"""The registry for tests: what fits what."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ottla.client.registry.client import (
    RegistryClient,
    RegistryRefusedError,
    RegistrySettings,
    Schema,
)
from ottla.testing import Registry
from ottla.testing.registry import unreadable

A = {"name": "a", "type": "int"}
B = {"name": "b", "type": ["null", "string"], "default": None}
C = {"name": "c", "type": "string"}


def record(*fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": list(fields)}


@pytest.mark.parametrize(
    ("level", "second", "fits"),
    [
        ("BACKWARD", record(A, B), True),
        ("BACKWARD", record(A, C), False),
        ("BACKWARD", record(B), True),
        ("FORWARD", record(A, C), True),
        ("FORWARD", record(B), False),
        ("FULL", record(A, B), True),
        ("FULL", record(A, C), False),
        ("FULL", record(B), False),
        ("NONE", record(C), True),
    ],
)
def test_fields_added_and_removed(level: str, second: dict[str, Any], fits: bool) -> None:
    with Registry(compatibility=level) as registry:
        client = RegistryClient(RegistrySettings.of(registry.url))
        client.register("s", Schema("AVRO", json.dumps(record(A))))
        if fits:
            assert client.register("s", Schema("AVRO", json.dumps(second))) == 2
        else:
            with pytest.raises(RegistryRefusedError, match=level):
                client.register("s", Schema("AVRO", json.dumps(second)))


@pytest.mark.parametrize(
    ("reader", "writer", "fits"),
    [
        ("long", "int", True),
        ("int", "long", False),
        (["null", "int"], "int", True),
        ("int", ["null", "int"], False),
        ({"type": "array", "items": "long"}, {"type": "array", "items": "int"}, True),
        ({"type": "map", "values": "int"}, {"type": "map", "values": "string"}, False),
        (record({**C, "aliases": ["a"]}), record({"name": "a", "type": "string"}), True),
        (
            {"type": "enum", "name": "E", "symbols": ["X"]},
            {"type": "enum", "name": "E", "symbols": ["X", "Y"]},
            False,
        ),
    ],
)
def test_types(reader: Any, writer: Any, fits: bool) -> None:
    assert (unreadable(reader, writer) == []) is fits


def test_an_unknown_compatibility() -> None:
    with pytest.raises(ValueError, match="none of NONE"):
        Registry(compatibility="BACKWARDS")
