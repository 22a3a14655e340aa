"""The shapes that columns of records have on their way from and to Arrow; see ottla.records.columns.

Imports no other module of this package but `types`, because the compiled kernel imports this one when columns
are first asked for.
"""

from typing import Any, NamedTuple, TypeAlias

from ottla.records.types import Buffer

# Whatever has a contiguous buffer: pyarrow.Buffer, memoryview, bytes, and the kernel's own ColumnBuffer.
AnyBuffer: TypeAlias = Any


class HeaderColumns(NamedTuple):
    """The headers of rows that were read: list<struct<key: string, value: binary>> in buffers."""

    list_validity: Buffer | None
    list_offsets: Buffer
    key_offsets: Buffer
    key_data: Buffer
    value_validity: Buffer | None
    value_offsets: Buffer
    value_data: Buffer
    nulls_list: int
    nulls_value: int
    total: int  # headers of all rows together


class Columns(NamedTuple):
    """Rows that were read, as Arrow's buffers. A validity is None where nothing is null."""

    rows: int
    key_validity: Buffer | None
    key_offsets: Buffer
    key_data: Buffer
    value_validity: Buffer | None
    value_offsets: Buffer
    value_data: Buffer
    offsets: Buffer
    timestamps: Buffer
    timestamp_types: Buffer
    nulls_key: int
    nulls_value: int
    headers: HeaderColumns | None


class BinColumn(NamedTuple):
    """A binary or string array: `rows` values from the `offset`-th on, which counts bits of `validity` too."""

    validity: AnyBuffer | None
    offsets: AnyBuffer | None
    data: AnyBuffer | None
    offset: int
    rows: int


class HeaderColumn(NamedTuple):
    """An array of list<struct<key: string, value: binary>>; the offsets of the list count the structs from 0."""

    validity: AnyBuffer | None
    offsets: AnyBuffer | None
    offset: int
    rows: int
    item_validity: AnyBuffer | None
    item_offset: int
    items: int
    key: BinColumn
    value: BinColumn


class RowColumns(NamedTuple):
    """What becomes records: as many rows in each column. No key column: null keys; no headers: none."""

    key: BinColumn | None
    value: BinColumn
    headers: HeaderColumn | None


class RowSplit(NamedTuple):
    """Row numbers (int32) in the order of their partitions: p's are order[bounds[p]:bounds[p + 1]]."""

    order: Buffer
    bounds: tuple[int, ...]
