"""The source's columns in Arrow: the record kernel's buffers become a RecordBatch without a copy.

The schema is that of Spark's Kafka connector, and has to equal what PySpark derives from it, field by field. Used by
the tasks; one thread.
"""

from array import array
from typing import Any

import pyarrow as pa

from ottla.records.columns import Columns, HeaderColumns

# As a DDL string, because a data source names its schema where no Spark session is.
COLUMNS = "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, timestampType INT"
HEADERS = "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"

_HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
_FIELDS = [
    ("key", pa.binary()),
    ("value", pa.binary()),
    ("topic", pa.string()),
    ("partition", pa.int32()),
    ("offset", pa.int64()),
    ("timestamp", pa.timestamp("us", "UTC")),
    ("timestampType", pa.int32()),
]
SCHEMA = pa.schema(_FIELDS)
SCHEMA_WITH_HEADERS = pa.schema([*_FIELDS, ("headers", pa.list_(pa.field("element", _HEADER)))])


def ddl(with_headers: bool) -> str:
    """The schema in Spark's DDL."""
    return f"{COLUMNS}, {HEADERS}" if with_headers else COLUMNS


def arrow_schema(with_headers: bool) -> Any:
    """The schema as a RecordBatch has it."""
    return SCHEMA_WITH_HEADERS if with_headers else SCHEMA


class BatchMaker:
    """Makes the RecordBatches of one partition: its topic and number are the same in every row."""

    def __init__(self, topic: str, partition: int, with_headers: bool) -> None:
        self._topic = topic.encode()
        self._partition = partition
        self._schema = arrow_schema(with_headers)
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
        arrays = [
            _binary(rows, columns.key_validity, columns.key_offsets, columns.key_data, columns.nulls_key),
            _binary(
                rows, columns.value_validity, columns.value_offsets, columns.value_data, columns.nulls_value
            ),
            self._topics.slice(0, rows),
            self._partitions.slice(0, rows),
            _fixed(pa.int64(), rows, columns.offsets),
            _fixed(pa.timestamp("us", "UTC"), rows, columns.timestamps),
            _fixed(pa.int32(), rows, columns.timestamp_types),
        ]
        if columns.headers is not None:
            arrays.append(_headers(rows, columns.headers))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


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
    kind = SCHEMA_WITH_HEADERS.field("headers").type
    buffers = [_buffer(columns.list_validity), pa.py_buffer(columns.list_offsets)]
    return pa.Array.from_buffers(kind, rows, buffers, columns.nulls_list, children=[structs])
