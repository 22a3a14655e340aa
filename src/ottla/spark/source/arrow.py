"""The source's columns in Arrow: the record kernel's buffers become a RecordBatch without a copy.

The schema is that of Spark's Kafka connector, less the columns that nobody asked for, and has to equal what PySpark
derives from it, field by field. Used by the tasks; one thread.
"""

from array import array
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from ottla.records.columns import Columns, HeaderColumns

_HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
_HEADERS = pa.list_(pa.field("element", _HEADER))
# Spark's type as DDL, because a data source names its schema where no Spark session is, and Arrow's.
_TYPES: dict[str, tuple[str, Any]] = {
    "key": ("BINARY", pa.binary()),
    "value": ("BINARY", pa.binary()),
    "topic": ("STRING", pa.string()),
    "partition": ("INT", pa.int32()),
    "offset": ("BIGINT", pa.int64()),
    "timestamp": ("TIMESTAMP", pa.timestamp("us", "UTC")),
    "timestampType": ("INT", pa.int32()),
    "headers": ("ARRAY<STRUCT<key: STRING, value: BINARY>>", _HEADERS),
}


def ddl(columns: Iterable[str]) -> str:
    """The schema of these columns in Spark's DDL."""
    return ", ".join(f"{name} {_TYPES[name][0]}" for name in columns)


def arrow_schema(columns: Iterable[str]) -> Any:
    """The schema as a RecordBatch has it."""
    return pa.schema([(name, _TYPES[name][1]) for name in columns])


class BatchMaker:
    """Makes the RecordBatches of one partition: its topic and number are the same in every row."""

    def __init__(self, topic: str, partition: int, columns: Iterable[str]) -> None:
        self._topic = topic.encode()
        self._partition = partition
        self._schema = arrow_schema(columns)
        self._grow(0)

    def _grow(self, rows: int) -> None:
        """The constant columns: made once for the largest batch, of which smaller ones take a slice.

        From buffers: converting Python values would make Arrow import pandas, for half a second, in each worker.
        """
        width = len(self._topic)
        starts = array("i", range(0, rows * width + 1, width))
        self._topics = _binary(rows, None, starts, self._topic * rows, 0, pa.string())
        self._partitions = _fixed(pa.int32(), rows, array("i", [self._partition]) * rows)

    def batch(self, columns: Columns) -> Any:
        """One RecordBatch of what the kernel built."""
        rows = columns.rows
        if len(self._topics) < rows:
            self._grow(rows)
        arrays = [self._array(name, columns) for name in self._schema.names]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _array(self, name: str, columns: Columns) -> Any:
        rows = columns.rows
        match name:
            case "key":
                return _binary(
                    rows, columns.key_validity, columns.key_offsets, columns.key_data, columns.nulls_key
                )
            case "value":
                return _binary(
                    rows,
                    columns.value_validity,
                    columns.value_offsets,
                    columns.value_data,
                    columns.nulls_value,
                )
            case "topic":
                return self._topics.slice(0, rows)
            case "partition":
                return self._partitions.slice(0, rows)
            case "offset":
                return _fixed(pa.int64(), rows, columns.offsets)
            case "timestamp":
                return _fixed(pa.timestamp("us", "UTC"), rows, columns.timestamps)
            case "timestampType":
                return _fixed(pa.int32(), rows, columns.timestamp_types)
        assert columns.headers is not None, "the builder kept the headers"
        return _headers(rows, columns.headers)


def _buffer(data: Any) -> Any:
    return None if data is None else pa.py_buffer(data)


def _binary(rows: int, validity: Any, offsets: Any, data: Any, nulls: int, kind: Any = None) -> Any:
    buffers = [_buffer(validity), pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind or pa.binary(), rows, buffers, nulls)


def _fixed(kind: Any, rows: int, data: Any) -> Any:
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(data)], 0)


def _headers(rows: int, columns: HeaderColumns) -> Any:
    """A list of structs a row; a record without headers has a null list, as Spark's connector gives it."""
    keys = _binary(columns.total, None, columns.key_offsets, columns.key_data, 0, pa.string())
    values = _binary(
        columns.total, columns.value_validity, columns.value_offsets, columns.value_data, columns.nulls_value
    )
    structs = pa.Array.from_buffers(_HEADER, columns.total, [None], 0, children=[keys, values])
    buffers = [_buffer(columns.list_validity), pa.py_buffer(columns.list_offsets)]
    return pa.Array.from_buffers(_HEADERS, rows, buffers, columns.nulls_list, children=[structs])
