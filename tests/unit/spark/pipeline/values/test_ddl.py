"""Schema strings without a JVM: what parses, and where it says that something does not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import DecimalType

from ottla.spark.pipeline.values.ddl import MAX_DEPTH, DdlError, parse_schema

SIMPLE = ["boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "date", "timestamp"]
SIMPLE += ["timestamp_ntz", "string", "binary", "decimal(7,3)"]


def types(depth: int = 3) -> st.SearchStrategy[str]:
    return st.recursive(
        st.sampled_from(SIMPLE),
        lambda inner: st.one_of(
            inner.map(lambda t: f"array<{t}>"),
            inner.map(lambda t: f"map<string,{t}>"),
            st.lists(inner, min_size=1, max_size=3).map(
                lambda ts: "struct<" + ",".join(f"f{n}:{t}" for n, t in enumerate(ts)) + ">"
            ),
        ),
        max_leaves=depth,
    )


@given(st.lists(types(), min_size=1, max_size=5))
def test_what_spark_prints_parses_to_the_same(kinds: list[str]) -> None:
    parsed = parse_schema(", ".join(f"c{n} {kind}" for n, kind in enumerate(kinds)))
    assert [field.dataType.simpleString() for field in parsed.fields] == kinds


def test_names_colons_quotes_not_null_and_comments() -> None:
    schema = parse_schema("a: int NOT NULL, `b ``c` string COMMENT 'it\\'s', 1st bigint")
    assert schema.names == ["a", "b `c", "1st"]
    assert [field.nullable for field in schema.fields] == [False, True, True]
    assert schema["b `c"].metadata == {"comment": "it's"}


@pytest.mark.parametrize(
    ("text", "position", "words"),
    [
        ("page strng", 6, "there is no type 'strng'; did you mean 'string'?"),
        ("page string user string", 13, "',' or the end is expected, not 'user'"),
        ("page", 5, "column 'page' has no type"),
        ("page, user string", 5, "column 'page' has no type"),
        ("a int,", 7, "the name of a column is expected, not the end"),
        ("", 1, "the name of a column is expected, not the end"),
        ("   ", 1, "the name of a column is expected, not the end"),
        ("a int, A string", 8, "column 'A' is there twice"),
        ("a array<int", 12, "'>' is expected, not the end"),
        ("a map<string>", 13, "',' is expected, not '>'"),
        ("a decimal(50,2)", 11, "decimal(50,2) is out of range"),
        ("a decimal(x)", 11, "a number is expected, not 'x'"),
        ("a int not", 10, "'NULL' is expected, not the end"),
        ("a int comment x", 15, "COMMENT takes a string in quotes, not 'x'"),
        ("a struct<b int c int>", 16, "',' or '>' is expected, not 'c'"),
        ("a int; b int", 6, "';' is not expected here"),
        ("a interval week", 12, "an interval is of year, month, day, hour, minute or second, not 'week'"),
        ("a <int>", 3, "a type is expected, not '<'"),
    ],
)
def test_an_error_says_what_and_where(text: str, position: int, words: str) -> None:
    with pytest.raises(DdlError) as caught:
        parse_schema(text)
    assert (caught.value.position, str(caught.value)) == (position, f"position {position}: {words}")


def test_nesting_is_bounded() -> None:
    deep = "a " + "array<" * MAX_DEPTH + "int" + ">" * MAX_DEPTH
    with pytest.raises(DdlError, match="nested deeper"):
        parse_schema(deep)


@given(st.text(max_size=60))
def test_any_text_parses_or_is_refused_with_a_position_in_it(text: str) -> None:
    position = 1
    try:
        found = parse_schema(text).names
    except DdlError as error:
        found, position = [], error.position
    assert 1 <= position <= len(text) + 1
    assert all(name in text or "`" in text for name in found)


def test_a_plain_decimal_is_sparks_default() -> None:
    assert parse_schema("d decimal").fields[0].dataType == DecimalType(10, 0)
