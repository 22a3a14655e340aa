"""What the cleaner writes in place of a batch, compared with MemoryRecords.filterTo."""

import os

import pytest
from tests.unit.records.java_vectors import DELETE_RETENTION_MS, JAVA, NOW_MS

from ottla.records.batch import BatchView
from ottla.records.compaction import Filtered, collect_keys, filter_batch
from ottla.records.kernel import OffsetMap, decode_records
from ottla.records.record import build_batch, read_records
from ottla.records.types import Buffer

SECRET = os.urandom(16)
HUGE = 1 << 40
pytestmark = pytest.mark.usefixtures("on_kernel")


class Keep:
    """Stands in for the offset map: keeps the offsets it is told to."""

    def __init__(self, *offsets: int) -> None:
        self.offsets = offsets

    def put_records(self, *_: object) -> int:
        raise AssertionError("nothing is collected here")

    def retain_mask(
        self, buf: Buffer, start: int, end: int, count: int, base_offset: int, _latest: int, _deletes: bool
    ) -> tuple[bytearray, int, bool]:
        records = decode_records(buf, start, end, count, base_offset, 0)
        kept = [record for record in records if record.offset in self.offsets]
        mask = bytearray(record in kept for record in records)
        return mask, len(kept), any(record.value is None for record in kept)


def cleaned(
    data: Buffer, offsets: object, *, now_ms: int = NOW_MS, latest: int = HUGE, **options: bool
) -> Filtered:
    return filter_batch(
        BatchView(data),
        offsets,  # type: ignore[arg-type]
        latest_offset=latest,
        now_ms=now_ms,
        delete_retention_ms=DELETE_RETENTION_MS,
        **options,
    )


@pytest.mark.parametrize(
    ("source", "keep", "result"),
    [
        ("plain", (43, 45), "kept_some"),
        ("plain", (44, 45), "kept_tombstone"),
        ("append_time", (6, 8), "append_time_some"),
        ("append_time", (7,), "append_time_tombstone"),
    ],
)
def test_writes_what_java_writes(source: str, keep: tuple[int, ...], result: str) -> None:
    filtered = cleaned(JAVA[source], Keep(*keep))
    assert filtered.data == JAVA[result]
    assert (filtered.records_read, filtered.records_retained) == (5, len(keep))
    assert filtered.max_timestamp == BatchView(JAVA[result]).max_timestamp


def test_a_horizon_once_set_stays() -> None:
    again = cleaned(JAVA["kept_tombstone"], Keep(45), now_ms=NOW_MS + 5000)
    assert again.data == JAVA["kept_after_horizon"]
    untouched = cleaned(JAVA["kept_tombstone"], Keep(44, 45), now_ms=NOW_MS + 5)
    assert untouched.data == JAVA["kept_tombstone"]


def test_the_marker_of_an_empty_transaction_gets_a_horizon() -> None:
    assert cleaned(JAVA["commit"], Keep(), ends_empty_transaction=True).data == JAVA["marker_horizon"]
    assert cleaned(JAVA["commit"], Keep()).data == JAVA["commit"]


def test_an_empty_batch_stays_only_where_it_must() -> None:
    assert cleaned(JAVA["plain"], Keep(), retain_empty=True).data == JAVA["kept_none"]
    assert cleaned(JAVA["plain"], Keep(), retain_empty=True).max_timestamp == 1_700_000_000_007
    assert cleaned(JAVA["plain"], Keep()).data is None
    assert cleaned(JAVA["kept_none"], Keep(), retain_empty=True).data == JAVA["kept_none"]
    assert cleaned(JAVA["kept_none"], Keep()).data is None


def test_a_discarded_batch_is_not_even_read() -> None:
    torn = bytearray(JAVA["zstd"])
    torn[70:] = bytes(len(torn) - 70)
    assert cleaned(torn, Keep(42), discard=True) == Filtered(None, 5, 0, -1)
    header = cleaned(torn, Keep(42), discard=True, retain_empty=True).data
    assert header is not None
    view = BatchView(header)
    assert (view.records_count, view.base_offset, view.last_offset, view.compression) == (0, 42, 46, 0)
    assert (view.producer_id, view.producer_epoch, view.last_sequence) == (7, 3, 2)


def test_an_untouched_batch_is_not_copied() -> None:
    filtered = cleaned(JAVA["none"], Keep(42, 43, 45, 46), latest=HUGE)
    assert filtered.records_retained == 4
    kept = cleaned(JAVA["commit"], Keep())
    assert isinstance(kept.data, memoryview)
    assert kept.data.obj is JAVA["commit"]


@pytest.mark.parametrize("codec", range(5))
def test_the_newest_of_each_key_survives(codec: int) -> None:
    first = build_batch([(i, b"k%d" % (i % 3), b"old%d" % i, ()) for i in range(6)], compression=codec)
    second = build_batch([(9, b"k1", b"new", ()), (9, b"k2", None, ())], base_offset=6, compression=codec)
    offsets = OffsetMap(2400, SECRET)
    for data in (first, second):
        assert collect_keys(offsets, BatchView(data), start_offset=0, max_entries=90)
    kept = cleaned(first, offsets, latest=7)
    assert kept.data is not None
    view = BatchView(kept.data)
    assert view.crc_ok()
    assert view.compression == codec
    assert [(r.offset, r.value) for r in read_records(view)] == [(3, b"old3")]
    assert (view.base_offset, view.last_offset) == (0, 5)
    kept = cleaned(second, offsets, latest=7)
    assert kept.data is not None
    view = BatchView(kept.data)
    assert view.delete_horizon_ms == NOW_MS + DELETE_RETENTION_MS
    assert [(r.offset, r.value) for r in read_records(view)] == [(6, b"new"), (7, None)]
    late = cleaned(kept.data, offsets, latest=7, now_ms=NOW_MS + DELETE_RETENTION_MS)
    assert late.data is not None
    assert [r.offset for r in read_records(BatchView(late.data))] == [6]


def test_records_past_the_map_and_without_key() -> None:
    data = build_batch([(1, None, b"a", ()), (1, b"k", b"b", ()), (1, None, b"c", ())])
    offsets = OffsetMap(2400, SECRET)
    kept = cleaned(data, offsets, latest=1)
    assert kept.data is not None
    assert [r.value for r in read_records(BatchView(kept.data))] == [b"b", b"c"]


def test_collecting_stops_when_the_map_is_full() -> None:
    data = build_batch([(1, b"k%d" % i, b"", ()) for i in range(10)], base_offset=100)
    offsets = OffsetMap(2400, SECRET)
    assert not collect_keys(offsets, BatchView(data), start_offset=0, max_entries=4)
    assert len(offsets) == 4
    assert offsets.get(b"k3") == 103
    assert offsets.get(b"k4") == -1
