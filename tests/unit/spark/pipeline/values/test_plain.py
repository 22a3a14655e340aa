"""Framed values as JSON text and back."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.pipelines import order_descriptors

from ottla.client.registry.client import RegistryClient, RegistrySettings, UnknownSchemaError
from ottla.client.registry.framing import frame
from ottla.spark.pipeline.declare import DeclarationError
from ottla.spark.pipeline.values.plain import Shown, taker
from ottla.testing import Registry

ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "who", "type": ["null", "string"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "data", "type": "bytes", "default": "\u00ff"},
        {
            "name": "kind",
            "type": {"type": "enum", "name": "Kind", "symbols": ["NEW", "OLD"]},
            "default": "NEW",
        },
        {
            "name": "place",
            "type": [
                "null",
                {"type": "record", "name": "Place", "fields": [{"name": "city", "type": "string"}]},
            ],
            "default": None,
        },
        {"name": "more", "type": {"type": "map", "values": "double"}, "default": {}},
    ],
}
GIVEN: dict[str, Any] = {"id": 7, "at": "2026-01-01T12:00:00+00:00", "price": 12.50}


@pytest.fixture(name="server")
def running() -> Iterator[Registry]:
    with Registry() as made:
        yield made


@pytest.fixture
def client(server: Registry) -> RegistryClient:
    return RegistryClient(RegistrySettings.of(server.url))


@pytest.fixture
def avsc(tmp_path: Path) -> str:
    (tmp_path / "order.avsc").write_text(json.dumps(ORDER))
    return str(tmp_path / "order.avsc")


def test_avro_there_and_back(server: Registry, client: RegistryClient, avsc: str) -> None:
    take = taker(client, "orders-value", avsc, None)
    value = take(json.dumps(GIVEN).encode())
    assert value.startswith(frame(1))
    assert json.loads(server.schema(1)) == ORDER
    assert json.loads(Shown(client)(value)) == {
        "id": 7,
        "who": None,
        "at": "2026-01-01T12:00:00+00:00",
        "price": "12.50",
        "data": "\u00ff",
        "kind": "NEW",
        "place": None,
        "more": {},
    }
    assert taker(client, "orders-value", None, None)(Shown(client)(value)) == value


@pytest.mark.parametrize(
    "more",
    [
        {"who": "ada"},
        {"who": {"string": "ada"}},
        {"place": {"city": "Ulm"}},
        {"place": {"shop.Place": {"city": "Ulm"}}},
        {"more": {"a": 1, "b": 2.5}},
        {"at": 1_767_268_800_000},
        {"price": "12.5"},
    ],
)
def test_forms_that_people_type(client: RegistryClient, avsc: str, more: dict[str, Any]) -> None:
    shown = json.loads(
        Shown(client)(taker(client, "orders-value", avsc, None)(json.dumps({**GIVEN, **more}).encode()))
    )
    assert shown["at"] == GIVEN["at"]
    if "who" in more:
        assert shown["who"] == "ada"
    if "place" in more:
        assert shown["place"] == {"city": "Ulm"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"{", "is not JSON: "),
        (b"\xff", "is not UTF-8"),
        (b"[" * 100_000, "is nested too deep|is not JSON"),
        (b"[1]", "is .1., not object"),
        (b'{"id": 1, "idd": 2}', "has a field 'idd' that the schema lacks"),
        (b'{"id": 1}', "lacks the field 'at'"),
        (b'{"id": "x", "at": 1, "price": 1}', "field 'id' is \"x\", not long"),
        (b'{"id": 9223372036854775808, "at": 1, "price": 1}', "field 'id' is 9223372036854775808, not long"),
        (b'{"id": true, "at": 1, "price": 1}', "field 'id' is true, not long"),
        (b'{"id": 1, "at": "noon", "price": 1}', "field 'at' is \"noon\", not timestamp-millis"),
        (b'{"id": 1, "at": 1, "price": "much"}', "field 'price' is \"much\", not decimal"),
        (b'{"id": 1, "at": 1, "price": 1, "kind": "X"}', "field 'kind' is \"X\", not one of NEW, OLD"),
        (b'{"id": 1, "at": 1, "price": 1, "who": 5}', "field 'who' is 5, not string"),
        (b'{"id": 1, "at": 1, "price": 1, "place": {"city": 1}}', "field 'place.city' is 1, not string"),
        (b'{"id": 1, "at": 1, "price": 123456789012345}', "does not fit the schema: "),
    ],
)
def test_text_that_does_not_fit(client: RegistryClient, avsc: str, text: bytes, words: str) -> None:
    take = taker(client, "orders-value", avsc, None)
    with pytest.raises(ValueError, match=words):
        take(text)


def test_protobuf_there_and_back(client: RegistryClient, tmp_path: Path) -> None:
    (tmp_path / "order.desc").write_bytes(order_descriptors())
    take = taker(client, "orders-value", str(tmp_path / "order.desc"), "shop.Order")
    text = b'{"id":"7","who":"ada","place":{"city":"Ulm"},"tags":["a"]}'
    value = take(text)
    assert json.loads(Shown(client)(value)) == json.loads(text)
    assert taker(client, "orders-value", None, "shop.Order")(text) == value
    with pytest.raises(ValueError, match=r"is no shop.Order: .*nothing"):
        take(b'{"nothing": 1}')
    with pytest.raises(ValueError, match=r"is no shop.Order"):
        take(b"[1]")


def test_json_there_and_back(client: RegistryClient, tmp_path: Path) -> None:
    (tmp_path / "order.json").write_text('{"type": "object"}')
    value = taker(client, "orders-value", str(tmp_path / "order.json"), None)(b'{"n": 1}')
    assert value == frame(1) + b'{"n": 1}'
    assert Shown(client)(value) == b'{"n": 1}'


def test_values_and_schemas_that_are_wrong(server: Registry, client: RegistryClient, tmp_path: Path) -> None:
    show = Shown(client)
    with pytest.raises(ValueError, match="is not framed"):
        show(b"{}")
    with pytest.raises(UnknownSchemaError, match="schema id 9 is unknown"):
        show(frame(9))
    number = server.register("s", '{"type": "recor"}')
    with pytest.raises(ValueError, match=f"of schema id {number} cannot be read: "):
        show(frame(number) + b"x")
    (tmp_path / "bad.avsc").write_text('{"type": "recor"}')
    with pytest.raises(DeclarationError, match=r"schema: .*recor"):
        taker(client, "s", str(tmp_path / "bad.avsc"), None)
    assert server.subjects() == {"s": [number]}
    with pytest.raises(DeclarationError, match=r"a schema is a file .avsc, .json, .proto, .desc"):
        taker(client, "s", "x.txt", None)
    with pytest.raises(DeclarationError, match="there is no file"):
        taker(client, "s", str(tmp_path / "none.avsc"), None)
    with pytest.raises(UnknownSchemaError, match="subject 'none' is unknown"):
        taker(client, "none", None, None)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(payload=st.binary(max_size=60))
def test_garbage_is_a_value_error(server: Registry, client: RegistryClient, payload: bytes) -> None:
    server.register("s", ORDER)
    with contextlib.suppress(ValueError):
        json.loads(Shown(client)(frame(1) + payload))
