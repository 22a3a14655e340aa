"""Avro values: schemas as columns and back, and what is wrong with bytes."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.spark.pipeline.declare import DeclarationError
from ottla.spark.pipeline.values.avro import _decoder, avro_codec, avro_of, decoder, encoder, nullable
from ottla.spark.pipeline.values.ddl import parse_schema
from ottla.spark.pipeline.values.rows import as_rows, decoded, encoded

POINT = {"type": "record", "name": "Point", "fields": [{"name": "x", "type": "int"}]}
HERE = Path()


def record(*fields: tuple[str, Any]) -> dict[str, Any]:
    return {
        "type": "record",
        "name": "R",
        "namespace": "n",
        "fields": [{"name": n, "type": t} for n, t in fields],
    }


def test_a_schema_as_columns() -> None:
    schema = record(
        ("a", "int"),
        ("b", ["null", "long"]),
        ("c", {"type": "array", "items": POINT}),
        ("d", {"type": "map", "values": "n.Point"}),
        ("e", {"type": "enum", "name": "E", "symbols": ["X"]}),
        ("f", {"type": "fixed", "name": "F", "size": 2}),
        ("g", {"type": "int", "logicalType": "date"}),
        ("h", {"type": "long", "logicalType": "timestamp-micros"}),
        ("i", {"type": "long", "logicalType": "local-timestamp-millis"}),
        ("j", {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}),
        ("k", {"type": "string", "logicalType": "uuid"}),
        ("l", {"type": "int", "logicalType": "time-millis"}),
    )
    codec = avro_codec(schema, HERE, writing=False)
    assert codec.columns is not None
    assert codec.columns.simpleString() == (
        "struct<a:int,b:bigint,c:array<struct<x:int>>,d:map<string,struct<x:int>>,e:string,f:binary,g:date,"
        "h:timestamp,i:timestamp_ntz,j:decimal(6,2),k:string,l:int>"
    )
    assert [field.nullable for field in codec.columns.fields][:2] == [False, True]


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (None, "needs a schema"),
        ("nothing.avsc", "there is no file 'nothing.avsc'"),
        ("{oops", "schema: is not JSON"),
        (7, "not int"),
        ('{"type": "record", "name": "R"}', "the record 'R' has no fields"),
        ('{"type": "string"}', "a record is expected at the top"),
        (record(("a", "strng")), "strng"),
        (record(("a", ["int", "string"])), "field 'a' is a union of 2 types"),
        (record(("a", ["null", "n.R"])), "field 'a' contains itself"),
        (
            record(("a", {"type": "bytes", "logicalType": "decimal"})),
            "a decimal of 0 digits; Spark has 1 to 38",
        ),
        (
            record(("a", {"type": "bytes", "logicalType": "decimal", "precision": 50})),
            "a decimal of 50 digits",
        ),
        (record(("a", {"type": "array", "items": "null"})), "field 'a' is an array of nothing"),
        ('{"a":' * 100_000, "schema: is not JSON"),
        ("a" * 5000, "there is no file 'aaa"),
    ],
)
def test_a_schema_that_is_wrong(schema: Any, words: str) -> None:
    with pytest.raises(DeclarationError, match=words):
        avro_codec(schema, HERE, writing=False)


def test_a_schema_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "point.avsc").write_text(json.dumps(POINT))
    codec = avro_codec("point.avsc", tmp_path, writing=True)
    assert codec.columns is not None
    assert codec.columns.names == ["x"]
    (tmp_path / "bad.avsc").write_text("{")
    with pytest.raises(DeclarationError, match=r"schema bad.avsc: is not JSON"):
        avro_codec("bad.avsc", tmp_path, writing=True)


DDL = "a int, b string, c array<bigint>, d map<string, double>, e struct<f: boolean>, g decimal(7,2)"
DDL += ", h timestamp, i date"
rows = st.fixed_dictionaries(
    {
        "a": st.none() | st.integers(-(2**31), 2**31 - 1),
        "b": st.none() | st.text(),
        "c": st.none() | st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), max_size=3),
        "d": st.none() | st.dictionaries(st.text(), st.none() | st.floats(allow_nan=False), max_size=3),
        "e": st.none() | st.fixed_dictionaries({"f": st.none() | st.booleans()}),
        "g": st.none() | st.decimals(-9999, 9999, places=2),
        "h": st.none() | st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC)),
        "i": st.none() | st.dates(date(1900, 1, 1), date(2200, 1, 1)),
    }
)


@given(st.lists(rows, max_size=4))
def test_rows_come_back_as_they_were(given_rows: list[dict[str, Any]]) -> None:
    schema = json.dumps(avro_of(parse_schema(DDL)))
    written = encoded(given_rows, encoder(schema)).to_pylist()
    assert [one["error"] for one in written] == [None] * len(given_rows)
    read = decoded([one["value"] for one in written], _decoder(schema), parse_schema(DDL)).to_pylist()
    assert [one["error"] for one in read] == [None] * len(given_rows)
    for before, after in zip(given_rows, read, strict=True):
        data = after["data"]
        data["d"] = None if data["d"] is None else dict(data["d"])
        assert data == before


@given(st.binary(max_size=80))
def test_garbage_never_raises(value: bytes) -> None:
    (one,) = decoded([value], _decoder(json.dumps(avro_of(parse_schema(DDL)))), parse_schema(DDL)).to_pylist()
    assert (one["data"] is None) == (one["error"] is not None)


def test_a_value_that_arrow_has_no_room_for_is_an_error_of_its_own_row() -> None:
    from pyspark.sql.types import StructType

    columns = parse_schema("n tinyint")
    assert isinstance(columns, StructType)
    got = decoded([b"1", b"2", None], lambda value: {"n": 1 if value == b"1" else 1000}, columns).to_pylist()
    assert got[0] == {"data": {"n": 1}, "error": None}
    assert got[1]["data"] is None
    assert "1000" in got[1]["error"]
    assert got[2] == {"data": None, "error": None}


def test_a_row_that_does_not_fit_is_an_error_beside_the_others() -> None:
    got = encoded([{"x": 1}, {"x": None}, None], encoder(json.dumps(POINT))).to_pylist()
    assert got[0] == {"value": b"\x02", "error": None}
    assert got[1]["value"] is None
    assert got[1]["error"]
    assert got[2] == {"value": None, "error": None}


def test_a_row_that_python_has_no_value_for_is_an_error_beside_the_others() -> None:
    micros = pa.array([0, 253_402_300_800_000_000, -1, None], pa.int64())
    days = pa.array([0, 0, 2_932_897, None], pa.int32())
    given_bytes = pa.array([b"a", b"b", b"c", b"\xff"], pa.binary())
    text = pa.Array.from_buffers(pa.string(), 4, given_bytes.buffers())
    kept = pa.MapArray.from_arrays(pa.array([0, 1, 1, 1, 1], pa.int32()), ["k"], [1])
    columns = [micros.cast(pa.timestamp("us", "UTC")), days.cast(pa.date32()), text, kept]
    rows = pa.StructArray.from_arrays(columns, ["at", "day", "text", "m"])
    schema = json.dumps(avro_of(parse_schema("at timestamp, day date, text string, m map<string, bigint>")))
    got = encoded(as_rows(rows), encoder(schema)).to_pylist()
    assert [one["error"] is None for one in got] == [True, False, False, False]
    assert [one["value"] is None for one in got] == [False, True, True, True]
    assert "out of range" in got[1]["error"]
    assert "can't decode byte 0xff" in got[3]["error"]


@pytest.mark.parametrize("zone", ["GMT+8", "UTC+08:00", "+08:00", "Asia/Shanghai", "UTC"])
def test_instants_are_the_same_whatever_zone_the_session_has(zone: str) -> None:
    """Java knows names of zones that Python does not."""
    at = pa.timestamp("us", zone)
    kind = pa.struct(
        [("at", at), ("l", pa.list_(at)), ("m", pa.map_(pa.string(), at)), ("s", pa.struct([("at", at)]))]
    )
    moment = datetime(2026, 1, 1, 12, tzinfo=UTC)
    plain = {"at": moment, "l": [moment, None], "m": [("k", moment)], "s": {"at": moment}}
    (row,) = as_rows(pa.array([plain], kind))
    assert row == {**plain, "m": {"k": moment}}
    columns = "at timestamp, l array<timestamp>, m map<string, timestamp>, s struct<at: timestamp>"
    schema = avro_of(parse_schema(columns))
    assert decoder(schema)(encoder(json.dumps(schema))(row)) == row


def test_a_field_that_the_writer_lacks_holds_its_default_as_if_it_had_been_written() -> None:
    millis = {"type": "long", "logicalType": "timestamp-millis"}
    cents = {"type": "fixed", "name": "Sum", "size": 4, "logicalType": "decimal", "precision": 9, "scale": 2}
    inner = record(("at", millis), ("raw", "bytes"))
    inner["name"] = "Inner"
    inner["fields"][1]["default"] = "\xfe"
    reader = record(("x", "int"))
    for name, kind, default in (
        ("at", millis, 1_000),
        ("local", {"type": "long", "logicalType": "local-timestamp-millis"}, -1),
        ("day", {"type": "int", "logicalType": "date"}, 1),
        ("raw", "bytes", "\x00\xff"),
        ("price", cents, "\x00\x00\x04\xe2"),
        ("prices", {"type": "array", "items": "n.Sum"}, ["\xff\xff\xff\xff"]),
        ("inner", inner, {"at": 2_000}),
        ("more", {"type": "map", "values": ["null", "n.Inner"]}, {"k": {"at": 3_000, "raw": "a"}, "z": None}),
        ("none", ["null", millis], None),
        ("some", [millis, "null"], 4_000),
    ):
        reader["fields"].append({"name": name, "type": kind, "default": default})
    writer = record(("x", "int"))
    row = decoder(writer, reader)(encoder(json.dumps(writer))({"x": 7}))
    at = [datetime(1970, 1, 1, 0, 0, second, tzinfo=UTC) for second in range(5)]
    assert row == {
        "x": 7,
        "at": at[1],
        "local": datetime(1969, 12, 31, 23, 59, 59, 999_000),
        "day": date(1970, 1, 2),
        "raw": b"\x00\xff",
        "price": Decimal("12.50"),
        "prices": [Decimal("-0.01")],
        "inner": {"at": at[2], "raw": b"\xfe"},
        "more": {"k": {"at": at[3], "raw": b"a"}, "z": None},
        "none": None,
        "some": at[4],
    }
    wrong = record(("x", "int"), ("y", {"type": "int", "logicalType": "date"}))
    wrong["fields"][1]["default"] = 10**9
    assert decoder(writer, wrong)(encoder(json.dumps(writer))({"x": 7})) == {"x": 7, "y": 10**9}
    codec = avro_codec(reader, HERE, writing=False)
    assert codec.columns is not None
    assert decoded([b""], lambda _: row, nullable(codec.columns)).to_pylist()[0]["error"] is None


def test_a_number_that_only_one_schema_calls_a_time_is_what_the_reader_calls_it() -> None:
    millis = {"type": "long", "logicalType": "timestamp-millis"}
    micros = {"type": "long", "logicalType": "timestamp-micros"}
    money = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
    at, number = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC), 1_700_000_000_000

    def inner(kind: Any) -> dict[str, Any]:
        return {**record(("a", kind)), "name": "Inner"}

    for written, asked, value, expected in (
        ("long", millis, number, at),
        ("long", micros, number * 1000, at),
        (millis, "long", number, number),
        (millis, micros, number, at),
        (["null", "long"], ["null", millis], number, at),
        ({"type": "array", "items": "long"}, {"type": "array", "items": ["null", millis]}, [number], [at]),
        ({"type": "map", "values": millis}, {"type": "map", "values": "long"}, {"k": number}, {"k": number}),
        (inner("long"), inner(millis), {"a": number}, {"a": at}),
        ("int", {"type": "int", "logicalType": "date"}, 1, date(1970, 1, 2)),
        ("bytes", money, b"\x7d", Decimal("1.25")),
        (money, "bytes", b"\x7d", b"\x7d"),
        ("int", "long", 7, 7),
    ):
        plain = json.loads(json.dumps(record(("x", written))).replace("logicalType", "meant"))
        data = encoder(json.dumps(plain))({"x": value})
        reader = record(("y", asked))
        reader["fields"][0]["aliases"] = ["x"]
        assert decoder(record(("x", written)), reader)(data) == {"y": expected}, (written, asked)


def test_nested_records_have_names_of_their_own() -> None:
    """They are made of the columns' names, and may come to the same: order's items and the column order_item."""
    columns = parse_schema(
        "order array<struct<n: int>>, order_item struct<x: struct<a: int>, y: string>, order_item_x struct<b: int>, "
        "Row struct<c: int>"
    )
    schema = avro_of(columns)
    row = {
        "order": [{"n": 1}],
        "order_item": {"x": {"a": 2}, "y": "z"},
        "order_item_x": {"b": 3},
        "Row": {"c": 4},
    }
    value = encoder(json.dumps(schema))(row)
    assert decoder(schema)(value) == row
    once = avro_of(parse_schema("a struct<b: struct<c: int>>"), "T")  # as it is registered already
    assert [once["name"], (inner := once["fields"][0]["type"][1])["name"]] == ["T", "T_a"]
    assert inner["fields"][0]["type"][1]["name"] == "T_a_b"


def test_types_that_avro_lacks_are_refused_by_name() -> None:
    codec = avro_codec(None, HERE, writing=True)
    assert codec.refuse(parse_schema("a map<int,int>")) == ["Avro has maps of strings only, not map<int,int>"]
    assert codec.refuse(parse_schema("a variant")) == ["Avro has no type for variant"]
    assert codec.refuse(parse_schema("a decimal(3,1), b array<struct<c:int>>")) == []
