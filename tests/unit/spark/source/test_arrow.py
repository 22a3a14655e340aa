"""Columns from the record kernel as Arrow batches: types as Spark wants them, values as they were written."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from ottla.records.batch import HEADER_SIZE, BatchView
from ottla.records.columns import ColumnBuilder
from ottla.records.record import build_batch
from ottla.spark.source.arrow import BatchMaker, arrow_schema, ddl
from ottla.spark.source.options import COLUMNS, HEADERS

ALL = (*COLUMNS, HEADERS)

RECORDS = [
    (1_700_000_000_123, b"k", b"v", (("h", b"1"), ("n", None))),
    (1_700_000_000_124, None, None, ()),
    (1_700_000_000_125, b"", b"", (("x", b""),)),
]


def columns(with_headers: bool):  # type: ignore[no-untyped-def]
    data = bytes(build_batch(RECORDS, base_offset=7))
    view = BatchView(memoryview(data), 0)
    builder = ColumnBuilder(with_headers)
    builder.add_records(
        data, HEADER_SIZE, len(data), 3, view.base_offset, view.base_timestamp, None, 0, 1 << 62
    )
    return builder.finish()


@pytest.mark.parametrize("names", [ALL, COLUMNS, ("key", "value"), ("offset",), ("timestampType", "headers")])
def test_the_schema_is_the_one_that_spark_derives(names: tuple[str, ...]) -> None:
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import (
        ArrayType,
        BinaryType,
        IntegerType,
        LongType,
        StringType,
        StructType,
        TimestampType,
    )

    header = StructType().add("key", StringType()).add("value", BinaryType())
    every = (
        StructType()
        .add("key", BinaryType())
        .add("value", BinaryType())
        .add("topic", StringType())
        .add("partition", IntegerType())
        .add("offset", LongType())
        .add("timestamp", TimestampType())
        .add("timestampType", IntegerType())
        .add("headers", ArrayType(header))
    )
    expected = StructType([every[name] for name in names])
    assert to_arrow_schema(expected, timezone="UTC").equals(arrow_schema(names))


def test_the_words_of_the_schema() -> None:
    assert ddl(COLUMNS) == (
        "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, timestampType INT"
    )
    assert ddl(("value", HEADERS)) == "value BINARY, headers ARRAY<STRUCT<key: STRING, value: BINARY>>"


def test_rows_come_out_as_they_were_written() -> None:
    batch = BatchMaker("topic", 3, ALL).batch(columns(True))
    batch.validate(full=True)
    at = [datetime.fromtimestamp(ms / 1000, UTC) for ms, *_ in RECORDS]
    assert batch.to_pydict() == {
        "key": [b"k", None, b""],
        "value": [b"v", None, b""],
        "topic": ["topic"] * 3,
        "partition": [3] * 3,
        "offset": [7, 8, 9],
        "timestamp": at,
        "timestampType": [0, 0, 0],
        "headers": [
            [{"key": "h", "value": b"1"}, {"key": "n", "value": None}],
            None,
            [{"key": "x", "value": b""}],
        ],
    }


@pytest.mark.parametrize(
    "names", [*((name,) for name in ALL), ("key", "value"), ("topic", "offset", "headers")]
)
def test_columns_that_are_left_out_change_nothing_in_the_others(names: tuple[str, ...]) -> None:
    every = BatchMaker("topic", 3, ALL).batch(columns(True))
    some = BatchMaker("topic", 3, names).batch(columns("headers" in names))
    some.validate(full=True)
    assert some.equals(every.select(list(names)))


def test_one_maker_makes_batches_of_any_size() -> None:
    maker = BatchMaker("t", 0, COLUMNS)
    rows = columns(False)
    assert maker.batch(rows).num_rows == 3
    again = maker.batch(rows)
    assert again.schema.equals(arrow_schema(COLUMNS))
    assert again.column("topic").to_pylist() == ["t"] * 3
