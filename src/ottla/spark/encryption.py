"""Values that are encrypted, in columns: opened by the tasks of a read, sealed by those of a write.

What a value is encrypted with, and by which header it says so, is in ottla.security.encryption. The option
`kafka.encryption.key` is a reference, a keyring's file or its import path, so that no key stands in a plan, a
checkpoint or an event log: each worker has the file, or reaches the key service, and keeps the keyring between tasks.

Here is the only place of Spark's reads and writes where something is done for each row in Python: AES takes a value at
a time. Buffers in, buffers out; Arrow itself is not needed.
"""

import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

from ottla.client.consumer.inline import CompletedFetch, plain_sections
from ottla.model.ids import TopicPartition
from ottla.records.columns import BinColumn, ColumnBuilder, Columns, HeaderColumn, HeaderColumns, RowColumns
from ottla.security.encryption import (
    HEADER,
    EncryptionError,
    LeftSealed,
    Opener,
    Sealer,
    needs_key,
    sealed_key_id,
)
from ottla.security.keyring import load_opener, load_sealer
from ottla.spark.connection import OptionError

KEY: Final = "encryption.key"
ALLOW_PLAIN: Final = "encryption.allow.plaintext"
_NAME: Final = HEADER.encode()
_NO_END: Final = 1 << 62


class _Kept(NamedTuple):
    """What a process keeps between tasks: a fork begins anew."""

    pid: int
    reference: str
    allow_plain: bool


_openers: dict[_Kept, Opener | LeftSealed] = {}
_sealers: dict[_Kept, Sealer | None] = {}


def reference_of(used: Any) -> str | None:
    """The option, which is only looked at here: the keyring may be where the workers are, and nowhere else."""
    given: str | None = used.get(KEY)
    if given is not None and not given.strip():
        raise OptionError(f"the option kafka.{KEY} is empty: the file of a keyring, or its import path")
    return None if given is None else given.strip()


def opener_of(reference: str, *, allow_plain: bool) -> Opener | LeftSealed:
    """The one of this process."""
    kept = _Kept(os.getpid(), reference, allow_plain)
    if kept not in _openers:
        _openers[kept] = load_opener(reference, allow_plain=allow_plain)
    return _openers[kept]


def sealer_of(reference: str) -> Sealer | None:
    """The one of this process; None if values are left as they are."""
    kept = _Kept(os.getpid(), reference, False)
    if kept not in _sealers:
        _sealers[kept] = load_sealer(reference)
    return _sealers[kept]


# --- reading


def refuse_sealed(chunk: CompletedFetch) -> None:
    """EncryptionError if the values are encrypted, by the first batch: for who has no key."""
    builder = ColumnBuilder(True)
    for section in plain_sections(chunk):
        builder.add_records(*section, chunk.fetch_offset, _NO_END)
        if builder.rows:
            break
    for row in _rows(builder.finish()):
        if row.value is not None:
            key_id = sealed_key_id(row.headers)
            if key_id is not None:
                raise EncryptionError(f"{chunk.tp}, offset {row.offset}: {needs_key(key_id)}")
            return


def opened(columns: Columns, opener: Opener, tp: TopicPartition, *, with_headers: bool) -> Columns:
    """The same rows with their values decrypted and without our header; EncryptionError with the offset of one."""
    values: list[bytes | None] = []
    headers: list[Sequence[tuple[str, bytes | None]]] = []
    topic, open_one = tp.topic, opener.open
    for offset, key, value, sealed_by in _rows(columns):
        try:
            plain, others = open_one(topic, key, value, sealed_by)
        except EncryptionError as error:
            raise EncryptionError(f"{tp}, offset {offset}: {error.message}") from None
        values.append(plain)
        headers.append(others)
    validity, offsets, data, nulls = _binary(values)
    return columns._replace(
        value_validity=validity,
        value_offsets=offsets,
        value_data=data,
        nulls_value=nulls,
        headers=_header_columns(headers) if with_headers else None,
    )


class _Row(NamedTuple):
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]


def _rows(columns: Columns) -> Iterator[_Row]:
    assert columns.headers is not None, "the builder was to keep headers"
    held = columns.headers
    lists = _numbers(held.list_offsets)
    names = _texts(held.total, None, held.key_offsets, held.key_data)
    contents = _texts(held.total, held.value_validity, held.value_offsets, held.value_data)
    pairs = [
        (HEADER if name == _NAME else (name or b"").decode("utf-8", "replace"), content)
        for name, content in zip(names, contents, strict=True)
    ]
    return (
        _Row(offset, key, value, pairs[lists[row] : lists[row + 1]])
        for row, (offset, key, value) in enumerate(
            zip(
                memoryview(columns.offsets).cast("B").cast("q"),
                _texts(columns.rows, columns.key_validity, columns.key_offsets, columns.key_data),
                _texts(columns.rows, columns.value_validity, columns.value_offsets, columns.value_data),
                strict=False,
            )
        )
    )


def _numbers(buffer: Any) -> memoryview:
    return memoryview(buffer).cast("B").cast("i")


def _texts(count: int, validity: Any, offsets: Any, data: Any) -> list[bytes | None]:
    """The values of a binary column; a null one is None."""
    at = _numbers(offsets)[: count + 1].tolist() if count else [0]
    held = bytes(memoryview(data).cast("B"))
    texts: list[bytes | None] = [held[start:end] for start, end in pairwise(at)]
    if validity is not None:
        bits = memoryview(validity).cast("B")
        for row in range(count):
            if not bits[row >> 3] >> (row & 7) & 1:
                texts[row] = None
    return texts


def _binary(values: Sequence[bytes | None]) -> tuple[bytes | None, bytes, bytes, int]:
    """Validity, offsets, data and how many are null, as Arrow has them."""
    offsets = array("i", [0]) * (len(values) + 1)
    end = 0
    for row, value in enumerate(values, 1):
        if value is not None:
            end += len(value)
        offsets[row] = end
    nulls = sum(value is None for value in values)
    data = b"".join(value for value in values if value)
    return _validity(values) if nulls else None, offsets.tobytes(), data, nulls


def _validity(values: Sequence[Any]) -> bytes:
    bits = bytearray((len(values) + 7) // 8)
    for row, value in enumerate(values):
        if value is not None:
            bits[row >> 3] |= 1 << (row & 7)
    return bytes(bits)


def _header_columns(rows: Sequence[Sequence[tuple[str, bytes | None]]]) -> HeaderColumns:
    """A row without headers has a null list, as with Spark's connector."""
    pairs = [pair for row in rows for pair in row]
    _, names, name_data, _ = _binary([name.encode() for name, _ in pairs])
    validity, contents, data, nulls = _binary([content for _, content in pairs])
    lists = array("i", [0]) * (len(rows) + 1)
    end = 0
    for row, headers in enumerate(rows, 1):
        end += len(headers)
        lists[row] = end
    empty = sum(not row for row in rows)
    return HeaderColumns(
        _validity([row or None for row in rows]) if empty else None,
        lists.tobytes(),
        names,
        name_data,
        validity,
        contents,
        data,
        empty,
        nulls,
        len(pairs),
    )


# --- writing


def sealed(
    sealer: Sealer, topics: Iterable[str], keys: Iterable[Any], values: Iterable[Any], headers: Iterable[Any]
) -> RowColumns:
    """The columns of rows with their values encrypted; keys and values are text, bytes or None."""
    key_column: list[bytes | None] = []
    value_column: list[bytes | None] = []
    names: list[bytes | None] = []
    contents: list[bytes | None] = []
    lists = array("i", [0])
    for topic, key, value, given in zip(topics, keys, values, headers, strict=True):
        # What has no name is for the record kernel to refuse.
        own: list[Any] = [
            (None, None) if pair is None else (pair["key"], pair["value"]) for pair in given or ()
        ]
        key_bytes = _bytes(key)
        value_bytes, carried = sealer.seal(topic, key_bytes, _bytes(value), own)
        key_column.append(key_bytes)
        value_column.append(value_bytes)
        for name, content in carried:
            names.append(_bytes(name))
            contents.append(content)
        lists.append(len(names))
    rows, items = len(key_column), len(names)
    header_column = HeaderColumn(
        *(None, lists.tobytes(), 0, rows, None, 0, items), _bin_column(names), _bin_column(contents)
    )
    return RowColumns(_bin_column(key_column), _bin_column(value_column), header_column)


def _bin_column(values: Sequence[bytes | None]) -> BinColumn:
    validity, offsets, data, _ = _binary(values)
    return BinColumn(validity, offsets, data, 0, len(values))


def _bytes(value: Any) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
