"""Protobuf values: descriptors as columns, messages as rows and back."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.pipelines import order_class, order_descriptors

from ottla.spark.pipeline.declare import DeclarationError
from ottla.spark.pipeline.values.protobuf import decoder, encoder, protobuf_codec

NAME = "shop.Order"
HERE = Path()


@pytest.fixture
def desc(tmp_path: Path) -> Path:
    (tmp_path / "order.desc").write_bytes(order_descriptors())
    return tmp_path


def test_a_message_as_columns(desc: Path) -> None:
    codec = protobuf_codec("order.desc", NAME, desc)
    assert codec.columns.simpleString() == (
        "struct<id:bigint,who:string,big:decimal(20,0),small:bigint,share:double,ok:boolean,data:binary,at:timestamp,"
        "note:string,place:struct<city:string>,kind:string,tags:array<string>,counts:map<string,int>>"
    )


def test_a_generated_class_will_do() -> None:
    assert protobuf_codec(order_class(), None, HERE).columns.names[0] == "id"


@pytest.mark.parametrize(
    ("schema", "message", "words"),
    [
        (None, NAME, "needs a schema"),
        (7, NAME, "not int"),
        ("nothing.desc", NAME, "there is no file 'nothing.desc'"),
        ("order.desc", "shop.Ordr", "there is no 'shop.Ordr'; there is shop.Place, shop.Order; did you mean"),
        ("order.desc", None, "order.desc has shop.Place, shop.Order; say which"),
        ("text.desc", NAME, "is no descriptor set"),
    ],
)
def test_a_schema_that_is_wrong(desc: Path, schema: Any, message: str | None, words: str) -> None:
    (desc / "text.desc").write_text("message Order {}")
    with pytest.raises(DeclarationError, match=words):
        protobuf_codec(schema, message, desc)


def test_a_proto_file_with_what_it_imports(tmp_path: Path) -> None:
    (tmp_path / "inner.proto").write_text('syntax = "proto3"; package n; message In { int64 id = 1; }')
    (tmp_path / "order.proto").write_text(
        'syntax = "proto3"; import "inner.proto"; import "google/protobuf/timestamp.proto";\n'
        "message Order { n.In inside = 1; google.protobuf.Timestamp at = 2; }"
    )
    codec = protobuf_codec("order.proto", "Order", tmp_path)
    assert codec.columns.simpleString() == "struct<inside:struct<id:bigint>,at:timestamp>"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            'edition = "2023"; message Order {}',
            "editions are read by protoc alone, and there is no protoc here; give",
        ),
        (
            'syntax = "proto3"; import "none.proto";',
            "order.proto: imports 'none.proto': No such file or directory",
        ),
        ('syntax = "proto3"; message Order {', "schema order.proto:1: the end stands where a field should"),
        ("\udcff", "schema order.proto: is no text"),
    ],
)
def test_a_proto_file_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, words: str
) -> None:
    (tmp_path / "order.proto").write_text(text, errors="surrogateescape")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DeclarationError, match=words):
        protobuf_codec("order.proto", "Order", tmp_path)


def test_presence_defaults_and_special_messages() -> None:
    decode = decoder(order_descriptors(), NAME)
    empty = decode(b"")
    assert empty["id"] == 0
    assert empty["who"] == ""
    assert empty["kind"] == "NEW"
    assert (empty["at"], empty["note"], empty["place"]) == (None, None, None)
    assert (empty["tags"], empty["counts"]) == ([], [])
    order = order_class()(big=2**64 - 1)
    order.note.value = "n"
    order.at.FromDatetime(datetime(2026, 1, 1, 12, 0, 0, 5, tzinfo=UTC))
    row = decode(order.SerializeToString())
    assert row["big"] == Decimal(2**64 - 1)
    assert row["note"] == "n"
    assert row["at"] == datetime(2026, 1, 1, 12, 0, 0, 5, tzinfo=UTC)


@pytest.mark.parametrize("number", [9, -1, 2**31 - 1])
def test_a_number_that_an_open_enum_has_no_name_for_goes_on_as_it_came(number: int) -> None:
    """The producer's schema may be newer: a pipeline that hands the field on must not fail, nor change it."""
    data = order_class()(kind=number).SerializeToString()
    row = decoder(order_descriptors(), NAME)(data)
    assert row["kind"] == str(number)
    assert encoder(order_descriptors(), NAME)({"kind": row["kind"]}) == data


def test_a_closed_enum_takes_names_only(tmp_path: Path) -> None:
    (tmp_path / "m.proto").write_text('syntax = "proto2"; enum K { A = 0; } message M { optional K k = 1; }')
    codec = protobuf_codec("m.proto", "M", tmp_path)
    with pytest.raises(ValueError, match="'9' is no K"):
        encoder(codec.descriptors, codec.message)({"k": "9"})


rows = st.fixed_dictionaries(
    {},
    optional={
        "id": st.integers(-(2**63), 2**63 - 1),
        "who": st.text(),
        "big": st.integers(0, 2**64 - 1).map(Decimal),
        "small": st.integers(0, 2**32 - 1),
        "ok": st.booleans(),
        "data": st.binary(),
        "at": st.none() | st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC)),
        "note": st.none() | st.text(),
        "place": st.none() | st.fixed_dictionaries({"city": st.text()}),
        "kind": st.sampled_from(["NEW", "OLD"]),
        "tags": st.lists(st.text(), max_size=3),
        "counts": st.dictionaries(st.text(), st.integers(-(2**31), 2**31 - 1), max_size=3),
    },
)


@given(rows)
def test_rows_come_back_as_they_were(row: dict[str, Any]) -> None:
    data = encoder(order_descriptors(), NAME)(row)
    back = decoder(order_descriptors(), NAME)(data)
    back["counts"] = dict(back["counts"])
    assert {name: back[name] for name in row} == row


def test_keys_of_maps_come_back_as_they_were(tmp_path: Path) -> None:
    (tmp_path / "m.proto").write_text(
        'syntax = "proto3"; message N { int32 n = 1; }\n'
        "message M { map<uint64, string> big = 1; map<fixed64, N> deep = 2; map<bool, int32> b = 3; }"
    )
    codec = protobuf_codec("m.proto", "M", tmp_path)
    row = {"big": {Decimal(2**64 - 1): "x"}, "deep": {Decimal(0): {"n": 1}}, "b": {True: -1}}
    data = encoder(codec.descriptors, codec.message)(row)
    back = decoder(codec.descriptors, codec.message)(data)
    assert {name: dict(pairs) for name, pairs in back.items()} == row


@given(st.binary(max_size=60))
def test_garbage_is_a_row_or_a_value_error(value: bytes) -> None:
    try:
        row = decoder(order_descriptors(), NAME)(value)
    except ValueError as error:
        row = {"error": str(error)}
    assert row


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"kind": "NONE"}, "field 'kind': 'NONE' is no shop.Kind"),
        ({"kind": "09"}, "field 'kind': '09' is no shop.Kind"),
        ({"kind": str(2**31)}, "field 'kind': '2147483648' is no shop.Kind"),
        ({"small": -1}, "field 'small': "),
        ({"who": 7}, "field 'who': "),
        ({"place": {"city": 7}}, "field 'place.city': "),
        ({"tags": [None]}, "field 'tags': "),
    ],
)
def test_a_row_that_does_not_fit_names_its_field(row: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        encoder(order_descriptors(), NAME)(row)


def test_a_row_has_one_member_of_a_oneof_or_none(tmp_path: Path) -> None:
    (tmp_path / "x.proto").write_text(
        'syntax = "proto3"; message In { string s = 1; }\n'
        "message Row { oneof what { int64 a = 1; string b = 2; In c = 3; } optional int64 d = 4; In in = 5;\n"
        "optional int64 e = 6; }"
    )
    codec = protobuf_codec("x.proto", "Row", tmp_path)
    encode, decode = encoder(codec.descriptors, "Row"), decoder(codec.descriptors, "Row")
    nothing = dict.fromkeys(codec.columns.names)
    for what in ({}, {"a": 0}, {"b": ""}, {"c": {"s": ""}}):
        row = {**nothing, **what, "d": 0, "e": 1}
        assert decode(encode(row)) == row
    with pytest.raises(ValueError, match="field 'b' and 'a' are both set: one of 'what' may be"):
        encode({**nothing, "a": 0, "b": "x"})


def test_columns_may_be_fewer_than_fields_but_no_others(desc: Path) -> None:
    from ottla.spark.pipeline.values.ddl import parse_schema

    codec = protobuf_codec("order.desc", NAME, desc)
    assert codec.refuse(parse_schema("id bigint, who string")) == []
    assert codec.refuse(parse_schema("id int")) == [
        "column 'id' is int in the result and bigint in the schema"
    ]
    (found,) = codec.refuse(parse_schema("x int"))
    assert found.startswith("the result has a column 'x' that the schema lacks")
