"""JSON values: why one does not parse, field by field."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.spark.pipeline.values.ddl import parse_schema
from ottla.spark.pipeline.values.json import JsonCodec, differences

CODEC = JsonCodec(
    parse_schema(
        "id bigint NOT NULL, ok boolean, small tinyint, x double, d decimal(5,2), at timestamp, day date, "
        "tags array<int>, m map<string, int>, in struct<a: struct<b: int>>, s string"
    )
)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (
            b"{oops",
            "is not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
        ),
        (b"\xff", "is not UTF-8 text"),
        (b"[1]", "is [1], not an object"),
        (b"7", "is 7, not an object"),
        (b"{}", "field 'id' is missing or null"),
        (b'{"id": null}', "field 'id' is missing or null"),
        (b'{"id": "x"}', "field 'id' is \"x\", not bigint"),
        (b'{"id": true}', "field 'id' is true, not bigint"),
        (b'{"id": 1.5}', "field 'id' is 1.5, not bigint"),
        (b'{"id": 9223372036854775808}', "field 'id' is 9223372036854775808, not bigint"),
        (b'{"id": 1, "small": 128}', "field 'small' is 128, not tinyint"),
        (b'{"id": 1, "ok": "yes"}', "field 'ok' is \"yes\", not boolean"),
        (b'{"id": 1, "x": "much"}', "field 'x' is \"much\", not double"),
        (b'{"id": 1, "d": {}}', "field 'd' is {}, not decimal(5,2)"),
        (b'{"id": 1, "at": "noon"}', "field 'at' is \"noon\", not timestamp"),
        (b'{"id": 1, "day": []}', "field 'day' is [], not date"),
        (b'{"id": 1, "tags": [1, "b"]}', "field 'tags[1]' is \"b\", not int"),
        (b'{"id": 1, "tags": {}}', "field 'tags' is {}, not array"),
        (b'{"id": 1, "m": {"k": "v"}}', "field 'm.k' is \"v\", not int"),
        (b'{"id": 1, "m": 3}', "field 'm' is 3, not object"),
        (b'{"id": 1, "in": {"a": {"b": "c"}}}', "field 'in.a.b' is \"c\", not int"),
        (
            b'{"id": 1, "s": "fine"}',
            "is not JSON of the schema struct<id:bigint,ok:boolean,small:tinyint,x:double,d:deci...",
        ),
        (b"[" * 100_000, "is nested too deep"),
        (
            b"null",
            "is not JSON of the schema struct<id:bigint,ok:boolean,small:tinyint,x:double,d:deci...",
        ),
        (b'{"id": "x", "y": 1e99999999999999999999}', "has a number with an exponent that is too large"),
    ],
)
def test_the_reason_names_the_field(value: bytes, reason: str) -> None:
    assert CODEC.explain(value) == reason


@given(st.binary(max_size=200))
def test_any_bytes_have_a_reason(value: bytes) -> None:
    assert CODEC.explain(value)


def test_a_value_is_explained_however_deep_it_is_nested() -> None:
    """To show a value takes a few calls more than to read it: some depths were read, and not shown."""
    for depth in range(900, 1_100):
        assert CODEC.explain(b'{"id": ' + b"[" * depth + b"]" * depth + b"}")


def test_columns_that_differ_from_a_schema_are_named() -> None:
    found = differences(parse_schema("a int, b string, c date"), parse_schema("a bigint, b string, d int"))
    assert found == [
        "the schema has a column 'c' that the result lacks; it has a, b, d",
        "the result has a column 'd' that the schema lacks; it has a, b, c",
        "column 'a' is bigint in the result and int in the schema",
    ]
