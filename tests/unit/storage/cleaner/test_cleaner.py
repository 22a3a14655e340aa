"""Compaction by example: what stays, what goes, and when."""

import os
from pathlib import Path

import pytest
from tests.unit.storage.compaction_log import CompactionLog

from ottla.records.control import ControlType, parse_control_type
from ottla.records.record import read_records
from ottla.storage.cleaner.cleaner import Cleaner, Throttle, group_segments
from ottla.storage.cleaner.job import CleanedGroup, CleaningAbortedError, SegmentSpec
from ottla.storage.files import CLEANED_SUFFIX, file_name
from ottla.storage.log.reader import find_by_timestamp


@pytest.fixture
def log(tmp_path: Path) -> CompactionLog:
    return CompactionLog(tmp_path)


def keyed(log: CompactionLog) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(r.offset, r.key, r.value) for r in log.records()]


def test_only_the_newest_record_of_a_key_stays_and_keeps_its_offset(log: CompactionLog) -> None:
    log.append([(b"a", b"1"), (b"b", b"1"), (b"a", b"2")])
    log.append([(b"c", b"1")])
    log.roll()
    log.append([(b"b", b"2")])
    log.roll()
    stats = log.clean()
    assert keyed(log) == [(2, b"a", b"2"), (3, b"c", b"1"), (4, b"b", b"2")]
    assert stats.end_offset == 5
    assert (stats.records_read, stats.records_retained) == (5, 3)


def test_the_active_segment_and_what_is_not_decided_stay_as_they_are(log: CompactionLog) -> None:
    log.append([(b"a", b"1")])
    log.roll()
    log.append([(b"a", b"2")], producer_id=1, txn=True)
    log.append([(b"a", b"3")])
    log.roll()
    log.append([(b"a", b"4")])
    before = [file_name(s.base_offset, ".log") for s in log.segments[1:]]
    content = [(log.dir / name).read_bytes() for name in before]
    log.clean()
    assert keyed(log)[0] == (0, b"a", b"1"), "its successors are in the uncleanable part"
    assert [(log.dir / name).read_bytes() for name in before] == content


def test_a_record_of_the_clean_part_goes_when_the_dirty_part_has_a_newer_one(log: CompactionLog) -> None:
    log.append([(b"a", b"1"), (b"b", b"1")])
    log.roll()
    log.clean()
    assert log.clean_offset == 2
    log.append([(b"a", b"2")])
    log.roll()
    log.clean()
    assert keyed(log) == [(1, b"b", b"1"), (2, b"a", b"2")]


def test_a_record_without_key_is_removed(log: CompactionLog) -> None:
    log.append([(None, b"x"), (b"k", b"y")])
    log.append([(b"z", b"z")])
    log.roll()
    log.clean()
    assert keyed(log) == [(1, b"k", b"y"), (2, b"z", b"z")]


@pytest.mark.parametrize("compression", [0, 1, 2, 3, 4])
def test_compressed_batches_keep_their_codec(log: CompactionLog, compression: int) -> None:
    log.append([(b"a", b"x" * 100), (b"b", b"x" * 100)], compression=compression)
    log.append([(b"a", b"y" * 100)], compression=compression)
    log.roll()
    log.clean()
    assert keyed(log) == [(1, b"b", b"x" * 100), (2, b"a", b"y" * 100)]
    assert {batch.compression for batch in log.batches()} == {compression}
    assert all(batch.crc_ok() for batch in log.batches())


def test_a_tombstone_outlives_its_key_by_delete_retention_from_the_first_cleaning(log: CompactionLog) -> None:
    log.append([(b"a", b"1")])
    log.append([(b"a", None)])
    log.append([(b"end", b"e")])
    log.roll()
    log.clean()
    assert keyed(log) == [(1, b"a", None), (2, b"end", b"e")]
    assert log.batches()[0].delete_horizon_ms == log.now_ms + 1_000
    assert read_records(log.batches()[0])[0].timestamp == log.now_ms, "the horizon does not change timestamps"
    log.now_ms += 999
    log.clean()
    assert keyed(log)[0] == (1, b"a", None)
    log.now_ms += 1
    log.clean()
    assert keyed(log) == [(2, b"end", b"e")]


def test_the_last_batch_of_a_round_keeps_its_header_so_that_the_end_is_known(log: CompactionLog) -> None:
    log.append([(b"a", b"1")])
    log.append([(b"b", None)])
    log.roll()
    log.clean()
    log.now_ms += 10_000
    log.append([(b"x", b"y")])
    log.roll()
    log.clean(first_uncleanable_offset=2, segments=log.job().segments[:1])
    batches = log.batches()
    assert [(b.base_offset, b.last_offset, b.records_count) for b in batches][1] == (1, 1, 0)


def test_the_last_batch_of_an_active_producer_stays_as_an_empty_one(log: CompactionLog) -> None:
    log.append([(b"a", b"1"), (b"b", b"1")], producer_id=7)
    log.append([(b"a", b"2"), (b"b", b"2")])
    log.roll()
    log.clean()
    first = log.batches()[0]
    assert (first.producer_id, first.base_offset, first.last_offset, first.records_count) == (7, 0, 1, 0)
    assert (first.base_sequence, first.last_sequence) == (0, 1)
    del log.last_records[7]
    log.clean_offset = 0
    log.clean()
    assert log.batches()[0].base_offset == 2, "an expired producer needs it no longer"


def test_an_earlier_batch_of_an_active_producer_goes(log: CompactionLog) -> None:
    log.append([(b"a", b"1")], producer_id=7)
    log.append([(b"a", b"2")], producer_id=7)
    log.append([(b"z", b"1")])
    log.roll()
    log.clean()
    assert [b.base_offset for b in log.batches()] == [1, 2]


def test_aborted_data_goes_at_once_and_its_marker_later(log: CompactionLog) -> None:
    log.append([(b"a", b"1")])
    log.append([(b"a", b"no"), (b"b", b"no")], producer_id=5, txn=True)
    log.end_txn(5, committed=False)
    log.last_records.clear()
    log.append([(b"end", b"e")])
    log.roll()
    log.clean()
    assert keyed(log) == [(0, b"a", b"1"), (4, b"end", b"e")]
    markers = [b for b in log.batches() if b.is_control]
    assert [parse_control_type(read_records(b)[0]) for b in markers] == [ControlType.ABORT]
    assert markers[0].delete_horizon_ms is None, "data of the transaction was still seen in this round"
    assert len(log.segments[0].txn_index.transactions()) == 1

    log.clean()
    markers = [b for b in log.batches() if b.is_control]
    assert markers[0].delete_horizon_ms == log.now_ms + 1_000
    assert log.segments[0].txn_index.transactions() == []
    log.now_ms += 1_000
    log.clean()
    assert [b for b in log.batches() if b.is_control] == []


def test_a_commit_marker_stays_while_data_of_its_transaction_does(log: CompactionLog) -> None:
    log.append([(b"a", b"1")], producer_id=5, txn=True)
    log.end_txn(5, committed=True)
    log.last_records.clear()
    log.append([(b"end", b"e")])
    log.roll()
    for _ in range(3):
        log.now_ms += 5_000
        log.clean()
    assert [b.is_control for b in log.batches()] == [False, True, False]

    log.append([(b"a", b"2")])
    log.roll()
    for _ in range(4):
        log.now_ms += 5_000
        log.clean()
    assert [b.is_control for b in log.batches()] == [False, False]
    assert keyed(log) == [(2, b"end", b"e"), (3, b"a", b"2")]


def test_the_marker_of_an_active_producer_without_data_stays(log: CompactionLog) -> None:
    log.append([(b"a", b"1")])
    log.end_txn(9, committed=True)
    log.append([(b"end", b"e")])
    log.roll()
    assert log.last_records[9] == (-1, 0)
    for _ in range(3):
        log.now_ms += 5_000
        log.clean()
    kept = [b for b in log.batches() if b.is_control]
    assert [(b.producer_id, b.producer_epoch) for b in kept] == [(9, 0)], "it holds the epoch that fences"


def test_an_aborted_transaction_over_several_segments_is_indexed_where_its_marker_is(
    log: CompactionLog,
) -> None:
    log.append([(b"a", b"no")], producer_id=5, txn=True)
    log.roll()
    log.append([(b"b", b"no")], producer_id=5, txn=True)
    log.append([(b"c", b"1")])
    log.roll()
    log.end_txn(5, committed=False)
    log.append([(b"d", b"1")])
    log.roll()
    log.clean(segment_bytes=1)
    assert keyed(log) == [(2, b"c", b"1"), (4, b"d", b"1")]
    assert [len(s.txn_index.transactions()) for s in log.segments] == [0, 0, 1, 0]


def test_a_full_map_cleans_what_it_holds_and_the_next_round_goes_on(log: CompactionLog) -> None:
    for i in range(400):
        log.append([(b"k%d" % (i % 200), b"%d" % i)])
    log.roll()
    rounds = 0
    while log.clean_offset < log.next_offset:
        before = log.clean_offset
        log.clean(map_bytes=4096, map_load_factor=0.5)
        assert log.clean_offset > before
        rounds += 1
    assert rounds > 1
    assert {k: v for _, k, v in keyed(log)} == {k: v for k, (_, v) in log.newest.items()}
    log.clean_offset = 0
    log.clean()
    assert len(keyed(log)) == 200


def test_a_map_too_small_for_one_batch_is_an_error_that_says_what_to_raise(log: CompactionLog) -> None:
    log.append([(b"k%d" % i, b"v") for i in range(300)])
    log.roll()
    with pytest.raises(ValueError, match=r"log\.cleaner\.dedupe\.buffer\.size"):
        log.clean(map_bytes=4096)


def test_small_segments_are_merged_up_to_the_limits(log: CompactionLog) -> None:
    for i in range(10):
        log.append([(b"k%d" % i, b"v" * 50)])
        log.roll()
    size = log.segments[0].size_bytes
    log.clean(segment_bytes=3 * size)
    assert [s.base_offset for s in log.segments] == [0, 3, 6, 9, 10]
    log.clean_offset = 0
    log.clean()
    assert [s.base_offset for s in log.segments] == [0, 10]


def test_groups_respect_size_index_size_and_offset_range(log: CompactionLog) -> None:
    def groups(specs: list[SegmentSpec], **changes: object) -> list[list[int]]:
        job = log.job(first_uncleanable_offset=1 << 40, **changes)
        return [[s.base_offset for s in group] for group in group_segments(log.dir, specs, job)]

    three = [SegmentSpec(0, 10), SegmentSpec(10, 10), SegmentSpec(20, 10)]
    assert groups([*three[:2], SegmentSpec(20, 10), SegmentSpec(21, 0)], segment_bytes=20) == [
        [0, 10],
        [20, 21],
    ]
    far = [SegmentSpec(0, 10), SegmentSpec(1 << 31, 10), SegmentSpec((1 << 31) + 5, 0)]
    assert groups(far, segment_bytes=1000) == [[0], [1 << 31, (1 << 31) + 5]]
    (log.dir / file_name(0, ".index")).write_bytes(bytes(40))
    (log.dir / file_name(10, ".index")).write_bytes(bytes(40))
    assert groups(three, segment_index_bytes=79)[0] == [0]


def test_cleaned_segments_have_working_indexes_and_the_age_of_their_source(log: CompactionLog) -> None:
    for i in range(50):
        log.now_ms += 10
        log.append([(b"k%d" % (i % 25), b"v" * 40)])
    log.roll()
    os.utime(log.segments[0].path, ns=(123_000_000, 123_000_000))
    log.clean()
    segment = log.segments[0]
    assert segment.last_modified_ms == 123
    assert segment.offset_index.entries > 3
    for offset in range(25, 50):
        found = segment.locate(offset)
        assert found is not None
        assert found[1] == offset
    assert segment.max_timestamp_so_far == log.now_ms
    hit = find_by_timestamp(segment, log.now_ms - 40, 0)
    assert hit is not None
    assert hit.offset == 45


def test_a_stopped_cleaning_leaves_only_cleaned_files(log: CompactionLog) -> None:
    log.append([(b"a", b"1")])
    log.roll()
    log.append([(b"a", b"2")])
    log.roll()
    before = {path.name: path.read_bytes() for path in log.dir.iterdir()}
    calls = 0

    def stop_at_the_end() -> None:
        nonlocal calls
        calls += 1
        if calls == 5:
            raise CleaningAbortedError("stop")

    groups: list[CleanedGroup] = []
    with pytest.raises(CleaningAbortedError):
        Cleaner(log.job(), stop_at_the_end).run(groups.append)
    assert groups == []
    after = {
        path.name: path.read_bytes() for path in log.dir.iterdir() if not path.name.endswith(CLEANED_SUFFIX)
    }
    assert after == before


def test_a_segment_that_ends_in_half_a_batch_is_refused(log: CompactionLog) -> None:
    log.append([(b"a", b"1")])
    log.roll()
    job = log.job()
    spec = SegmentSpec(0, job.segments[0].size_bytes - 3)
    with pytest.raises(ValueError, match="half a batch"):
        Cleaner(log.job(segments=(spec,)), lambda: None).run(lambda group: None)


def test_the_throttle_spreads_bytes_over_time(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    now_s = 100.0

    def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds
        slept.append(seconds)

    monkeypatch.setattr("ottla.storage.cleaner.cleaner.monotonic", lambda: now_s)
    monkeypatch.setattr("ottla.storage.cleaner.cleaner.sleep", sleep)
    checks: list[int] = []
    throttle = Throttle(1000.0, lambda: checks.append(1))
    throttle(250)
    throttle(1000)
    assert slept == [0.25, 0.5, 0.5], "it looks up now and then to see whether to stop"
    assert len(checks) == 3
    now_s += 10
    throttle(5000)
    assert len(slept) == 3
