"""Encrypted values in columns: sealed as rows are written, opened as records are read; Arrow's shapes stay right."""

import base64
import json
from itertools import repeat
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ottla.client.consumer.inline import CompletedFetch
from ottla.model.ids import TopicPartition
from ottla.records.batch import BatchView, batch_at, stamp_batch
from ottla.records.columns import ColumnBuilder, Columns, encode_columns, prepare_batch
from ottla.records.record import build_batch, read_records
from ottla.security.encryption import HEADER, EncryptionError, Opener, Sealer
from ottla.security.keyring import FileKeyring
from ottla.spark.connection import OptionError
from ottla.spark.encryption import opened, opener_of, refuse_sealed, sealed, sealer_of
from ottla.spark.sink.options import sink_options
from ottla.spark.sink.task import RowEncoder
from ottla.spark.source.arrow import BatchMaker
from ottla.spark.source.options import COLUMNS, HEADERS, source_options

ALL = (*COLUMNS, HEADERS)
TP = TopicPartition("t", 3)
ROWS = [
    (b"k0", b"v0", [("a", b"1"), ("none", None)]),
    (None, b"", []),
    (b"", None, [("tombstone", b"")]),
    (b"k3", b"v3" * 1000, []),
]
Row = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]


@pytest.fixture
def keyring(tmp_path: Path) -> FileKeyring:
    path = tmp_path / "keys.json"
    path.write_text(json.dumps({"keys": [{"id": "k", "key": base64.b64encode(bytes(32)).decode()}]}))
    path.chmod(0o600)
    return FileKeyring(path)


def stored(records: list[tuple[int, bytes | None, bytes | None, Any]], **more: Any) -> bytearray:
    return build_batch(records, **more)


def columns_of(batch: bytearray, with_headers: bool = True) -> Columns:
    builder = ColumnBuilder(with_headers)
    end = builder.add_batches(batch, 0, len(batch), 0, 1 << 40, 1000, 1 << 30)
    assert end == len(batch)
    return builder.finish()


def rows_of(columns: Columns, with_headers: bool = True) -> list[Row]:
    table = BatchMaker(TP.topic, TP.partition, ALL if with_headers else COLUMNS).batch(columns)
    table.validate(full=True)
    headers = table.column("headers").to_pylist() if with_headers else repeat(None)
    return [
        (key, value, [(each["key"], each["value"]) for each in carried or []])
        for key, value, carried in zip(
            table.column("key").to_pylist(), table.column("value").to_pylist(), headers, strict=False
        )
    ]


def sealed_records(
    sealer: Sealer, rows: list[Row] = ROWS
) -> list[tuple[int, bytes | None, bytes | None, Any]]:
    return [(0, key, *sealer.seal(TP.topic, key, value, headers)) for key, value, headers in rows]


@pytest.mark.parametrize("with_headers", [False, True])
def test_what_is_read_is_opened(keyring: FileKeyring, with_headers: bool) -> None:
    columns = columns_of(stored(sealed_records(Sealer(keyring))))
    plain = opened(columns, Opener(keyring), TP, with_headers=with_headers)
    expected = [(key, value, headers if with_headers else []) for key, value, headers in ROWS]
    assert rows_of(plain, with_headers) == expected
    if with_headers:
        table = BatchMaker("t", 3, ALL).batch(plain)
        assert [each is None for each in table.column("headers").to_pylist()] == [False, True, False, True]


def test_no_rows_and_no_headers(keyring: FileKeyring) -> None:
    empty = opened(ColumnBuilder(True).finish(), Opener(keyring), TP, with_headers=True)
    assert rows_of(empty) == []
    tombstones = columns_of(stored([(0, b"a", None, ()), (0, None, None, ())]))
    assert rows_of(opened(tombstones, Opener(keyring), TP, with_headers=True)) == [
        (b"a", None, []),
        (None, None, []),
    ]


def test_a_bad_value_is_named_by_its_offset(keyring: FileKeyring) -> None:
    records = sealed_records(Sealer(keyring))
    at = records[3]
    assert at[2] is not None
    records[3] = (at[0], at[1], at[2][:-1] + bytes([at[2][-1] ^ 1]), at[3])
    columns = columns_of(stored(records, base_offset=100))
    with pytest.raises(EncryptionError, match=r"^t-3, offset 103: .*does not match"):
        opened(columns, Opener(keyring), TP, with_headers=False)


def test_mixed_values_by_a_setting(keyring: FileKeyring) -> None:
    records = [*sealed_records(Sealer(keyring)), (0, b"p", b"plain", (("h", b"1"),))]
    columns = columns_of(stored(records))
    with pytest.raises(EncryptionError, match="offset 4: its value is not encrypted"):
        opened(columns, Opener(keyring), TP, with_headers=True)
    both = opened(columns, Opener(keyring, allow_plain=True), TP, with_headers=True)
    assert rows_of(both) == [*ROWS, (b"p", b"plain", [("h", b"1")])]


def chunk(data: bytearray, fetch_offset: int = 0) -> CompletedFetch:
    return CompletedFetch(TP, memoryview(data), None, fetch_offset, 1 << 30, 0, 0, 0)


@pytest.mark.parametrize("compression", [0, 4])
def test_who_has_no_key_is_told(keyring: FileKeyring, compression: int) -> None:
    records = [(0, b"x", None, ()), *sealed_records(Sealer(keyring))]
    with pytest.raises(EncryptionError, match=r"t-3, offset 1: .*\(key 'k'\), and encryption.key is not set"):
        refuse_sealed(chunk(stored(records, compression=compression)))
    refuse_sealed(chunk(stored([(0, b"x", b"plain", ((HEADER + "s", b""),))], compression=compression)))
    refuse_sealed(chunk(stored([(0, b"x", None, ())], compression=compression)))
    refuse_sealed(chunk(bytearray()))
    # What comes before the range is not looked at, be it read or not.
    two = stored([(0, None, b"plain", ())]) + stored(sealed_records(Sealer(keyring)), base_offset=1)
    with pytest.raises(EncryptionError):
        refuse_sealed(chunk(two, fetch_offset=1))


def test_rows_are_sealed(keyring: FileKeyring) -> None:
    headers = [None if not row[2] else [{"key": k, "value": v} for k, v in row[2]] for row in ROWS]
    columns = sealed(Sealer(keyring), ["t"] * 4, [row[0] for row in ROWS], [row[1] for row in ROWS], headers)
    section, after = encode_columns(columns, None, 0, 4, 1 << 20)
    assert after == 4
    read = columns_of(_whole(prepare_batch(section, 4, 7)))
    assert rows_of(opened(read, Opener(keyring), TP, with_headers=True)) == ROWS
    assert [value for _, value, _ in rows_of(read)] != [value for _, value, _ in ROWS]


def _whole(batch: bytearray) -> bytearray:
    stamp_batch(batch, -1, -1, -1)
    return batch


KAFKA = {"kafka.bootstrap.servers": "localhost:9092"}


def test_a_write_seals_for_the_topic_of_each_row(keyring: FileKeyring, tmp_path: Path) -> None:
    options = sink_options({**KAFKA, "kafka.encryption.key": str(tmp_path / "keys.json")})
    rows = pa.RecordBatch.from_arrays(
        [
            pa.array(["a", "b", "a"]),
            pa.array(["k", None, "l"]),
            pa.array([b"1", b"2", None], pa.binary()),
        ],
        names=["topic", "key", "value"],
    )
    found = {}
    for tp, _, batch in RowEncoder(options, lambda topic: 1, transactional=False).encode(rows, 7):
        view = batch_at(memoryview(_whole(batch)), 0, len(batch))
        assert isinstance(view, BatchView)
        opener = Opener(keyring)
        found[tp.topic] = [
            (record.key, opener.open(tp.topic, record.key, record.value, record.headers))
            for record in read_records(view)
        ]
    assert found == {"a": [(b"k", (b"1", ())), (b"l", (None, ()))], "b": [(None, (b"2", ()))]}


def test_without_the_option_nothing_is_sealed() -> None:
    assert sink_options(KAFKA).encryption_key is None
    assert source_options({**KAFKA, "subscribe": "t"}).encryption_key is None


def test_options() -> None:
    given = {**KAFKA, "kafka.encryption.key": " /keys.json ", "kafka.encryption.allow.plaintext": "TRUE"}
    read = source_options({**given, "subscribe": "t"})
    assert (read.encryption_key, read.allow_plaintext) == ("/keys.json", True)
    assert read.no_effect == ()
    # Jobs hand the same options to reads and writes.
    write = sink_options(given)
    assert write.encryption_key == "/keys.json"
    assert write.no_effect == ("kafka.encryption.allow.plaintext",)
    for options in (source_options, sink_options):
        with pytest.raises(OptionError, match=r"kafka\.encryption\.key is empty"):
            options({**KAFKA, "subscribe": "t", "kafka.encryption.key": " "})
    with pytest.raises(OptionError, match=r"allow\.plaintext must be true or false"):
        source_options({**given, "subscribe": "t", "kafka.encryption.allow.plaintext": "maybe"})
    with pytest.raises(OptionError, match=r"nearest one is kafka\.encryption\.key"):
        source_options({**KAFKA, "subscribe": "t", "kafka.encryption.keys": "x"})


def test_a_process_keeps_its_keyring(tmp_path: Path, keyring: FileKeyring) -> None:
    path = str(tmp_path / "keys.json")
    assert opener_of(path, allow_plain=False) is opener_of(path, allow_plain=False)
    assert opener_of(path, allow_plain=True) is not opener_of(path, allow_plain=False)
    assert sealer_of(path) is sealer_of(path)
    assert sealer_of("none") is None
