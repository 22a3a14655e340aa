"""Columns from the record kernel as Arrow batches: types as Spark wants them, values as they were written."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from ottla.records.batch import HEADER_SIZE, BatchView
from ottla.records.columns import ColumnBuilder
from ottla.records.record import build_batch
from ottla.spark.source.arrow import BatchMaker, arrow_schema, ddl

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


@pytest.mark.parametrize("with_headers", [False, True])
def test_the_schema_is_the_one_that_spark_derives(with_headers: bool) -> None:
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

    expected = (
        StructType()
        .add("key", BinaryType())
        .add("value", BinaryType())
        .add("topic", StringType())
        .add("partition", IntegerType())
        .add("offset", LongType())
        .add("timestamp", TimestampType())
        .add("timestampType", IntegerType())
    )
    if with_headers:
        header = StructType().add("key", StringType()).add("value", BinaryType())
        expected = expected.add("headers", ArrayType(header))
    assert to_arrow_schema(expected, timezone="UTC").equals(arrow_schema(with_headers))
    assert [part.split()[0] for part in ddl(False).split(", ")] == expected.fieldNames()[:7]


def test_rows_come_out_as_they_were_written() -> None:
    batch = BatchMaker("topic", 3, True).batch(columns(True))
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


def test_one_maker_makes_batches_of_any_size() -> None:
    maker = BatchMaker("t", 0, False)
    rows = columns(False)
    assert maker.batch(rows).num_rows == 3
    again = maker.batch(rows)
    assert again.schema.equals(arrow_schema(False))
    assert again.column("topic").to_pylist() == ["t"] * 3
