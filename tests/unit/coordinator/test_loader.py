"""A load: what the log says, in slices; and the short way for offsets beside the ordinary one."""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.batches import set_offset_and_epoch
from tests.support.group_world import GroupWorld, MemoryLog
from tests.unit.coordinator.toy import PLACE, Toy, ToyWorld, number, put

from ottla.coordinator.group.offsets.records import offset_record, offset_tombstone
from ottla.coordinator.group.serde import GROUP_RECORDS
from ottla.coordinator.loader import (
    MAX_SKIPS_LOGGED,
    SLICE_RECORDS,
    ReplaysBytes,
    note_skips,
    replay_batches,
)
from ottla.coordinator.runtime import CoordinatorState
from ottla.coordinator.shard import CoordinatorRecord
from ottla.records.batch import CRC_OFFSET, HEADER_SIZE, compute_crc, iter_batches
from ottla.records.control import end_txn_marker
from ottla.records.record import build_batch
from ottla.wire.messages.logs.offsets import GroupMetadataKey, OffsetCommitValue

Pair = tuple[bytes | None, bytes | None]


def log_of(*batches: Sequence[CoordinatorRecord | Pair] | bytearray, compression: int = 0) -> MemoryLog:
    """A log of these batches."""
    data = bytearray()
    end = 0
    for batch in batches:
        if not isinstance(batch, bytearray):
            pairs = [GROUP_RECORDS.encode(r) if isinstance(r, CoordinatorRecord) else r for r in batch]
            batch = build_batch([(0, key, value, ()) for key, value in pairs], compression=compression)
        set_offset_and_epoch(batch, 0, end, 0)
        (delta,) = struct.unpack_from(">i", batch, 23)
        end += delta + 1
        data += batch
    return MemoryLog(bytes(data), end)


@pytest.mark.parametrize("compression", [0, 1, 2, 3, 4])
def test_batches_of_any_codec_are_replayed(compression: int) -> None:
    log = log_of([number("a", 1), number("b", 2)], [number("a", None)], compression=compression)
    assert ToyWorld(log).toy.committed() == {"b": 2}


def test_a_load_comes_up_for_air_and_says_how_far_it_is() -> None:
    world = ToyWorld()
    records = [number(f"n{i}", i) for i in range(3 * SLICE_RECORDS)]
    data = bytes(log_of(records, [number("last", 1)]).data)
    world.timeline.recording = False
    assert list(replay_batches(world.shard, data)) == [
        SLICE_RECORDS,
        2 * SLICE_RECORDS,
        3 * SLICE_RECORDS,
        3 * SLICE_RECORDS + 1,
    ]


def test_many_small_batches_come_up_for_air_too() -> None:
    world = ToyWorld()
    data = bytes(log_of(*[[number(f"n{i}", i)] for i in range(SLICE_RECORDS + 5)]).data)
    assert list(replay_batches(world.shard, data)) == [SLICE_RECORDS, SLICE_RECORDS + 5]


# ---- what cannot be taken in ----------------------------------------------------------------------------------


def spoiled(name: str, spoil: Callable[[bytes, bytes], Pair]) -> Pair:
    key, value = GROUP_RECORDS.encode(number(name, 1))
    assert value is not None
    return spoil(key, value)


BAD_RECORDS: dict[str, tuple[Pair, str, str]] = {
    "no key": ((None, b""), "no key", "a key with a type"),
    "empty key": ((b"", b""), "key ", "a key with a type"),
    "half a type": ((b"\x00", b""), "key 00", "a key with a type"),
    "unknown type": ((b"\x00\x63?", b"??"), "key 00633f", "records of type 99 are not known"),
    "cut key": (spoiled("x", lambda k, v: (k[:-3], v)), "key 0001", "ends before it is complete"),
    "value of a byte": (spoiled("x", lambda k, v: (k, b"\x00")), "topic='x'", "too few for a version"),
    "empty value": (spoiled("x", lambda k, v: (k, b"")), "topic='x'", "too few for a version"),
    "cut value": (spoiled("x", lambda k, v: (k, v[:-5])), "topic='x'", "ends before it is complete"),
    "unknown version": (spoiled("x", lambda k, v: (k, b"\x00\x09" + v[2:])), "topic='x'", "version 9"),
    "negative version": (spoiled("x", lambda k, v: (k, b"\xff\xff" + v[2:])), "topic='x'", "version -1"),
}


@pytest.mark.parametrize("name", BAD_RECORDS)
def test_a_record_that_cannot_be_read_is_skipped_and_named(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    bad, key, why = BAD_RECORDS[name]
    world = ToyWorld(log_of([number("a", 1), bad, number("b", 2)], [number("a", 3)]))
    assert world.toy.committed() == {"a": 3, "b": 2}
    assert world.shard.skipped == 1
    (line,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    told = line.getMessage()
    assert f"{PLACE}: the record at offset 1 (" in told
    assert key in told
    assert why in told
    assert line.exc_info is None
    world.write(put("c", 4))
    world.settle()
    assert world.toy.committed() == {"a": 3, "b": 2, "c": 4}


@given(st.binary(max_size=60), st.one_of(st.none(), st.binary(max_size=80)), st.integers(0, 30))
def test_no_record_keeps_a_shard_of_groups_from_serving(rest: bytes, value: bytes | None, kind: int) -> None:
    """Any key type, followed by anything: it is replayed or skipped, and the others count."""
    kept = OffsetCommitValue(offset=7, metadata="", commit_timestamp=0, topic_id=b"i" * 16)
    bad: Pair = (struct.pack(">h", kind) + rest, value)
    world = GroupWorld(log=log_of([bad, offset_record("kept", "t", 0, kept)]))
    assert world.machine.offsets.store.by_group["kept"][("t", 0)].offset == 7
    assert world.shard.state is CoordinatorState.ACTIVE


def test_what_a_machine_refuses_is_skipped_whole(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    replay = Toy.replay

    def halfway(toy: Toy, record: CoordinatorRecord, producer_id: int, producer_epoch: int) -> None:
        replay(toy, record, producer_id, producer_epoch)
        if record.key.topic == "bad":
            toy.numbers["a"] = 99
            raise RuntimeError("a mistake in the machine")

    monkeypatch.setattr(Toy, "replay", halfway)
    world = ToyWorld(log_of([number("a", 1), number("bad", 1), number("b", 2)]))
    assert world.toy.committed() == {"a": 1, "b": 2}
    (line,) = caplog.records
    assert "offset 1 (OffsetCommitKey(group='toy', topic='bad'" in line.getMessage()
    assert "RuntimeError: a mistake in the machine" in line.getMessage()
    assert line.exc_info is not None


def test_a_marker_that_a_machine_refuses_is_skipped(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(toy: Toy, producer_id: int, producer_epoch: int, committed: bool) -> None:
        raise RuntimeError("a mistake in the machine")

    monkeypatch.setattr(Toy, "replay_end_transaction", refuse)
    marker = end_txn_marker(
        committed=True, coordinator_epoch=0, producer_id=1, producer_epoch=3, timestamp_ms=0
    )
    assert ToyWorld(log_of(marker, [number("a", 1)])).toy.committed() == {"a": 1}
    assert "offset 0" in caplog.text


def test_a_batch_with_a_wrong_checksum_is_skipped(caplog: pytest.LogCaptureFixture) -> None:
    log = log_of([number("a", 1)], [number("a", 2), number("b", 2)], [number("c", 3)])
    second = [batch.pos for batch in iter_batches(bytes(log.data))][1]
    log.data[second + 70] ^= 1
    assert ToyWorld(log).toy.committed() == {"a": 1, "c": 3}
    assert "the batch of offsets 1 to 2 is skipped: its checksum is wrong" in caplog.text


def test_records_that_cannot_be_told_apart_are_skipped(caplog: pytest.LogCaptureFixture) -> None:
    """The checksum is right: whoever wrote it wrote nonsense."""
    nonsense = build_batch([(0, b"key", b"value", ())])
    nonsense[HEADER_SIZE] = 0xFF
    struct.pack_into(">I", nonsense, CRC_OFFSET, compute_crc(nonsense, 0, len(nonsense)))
    assert ToyWorld(log_of(nonsense, [number("c", 3)])).toy.committed() == {"c": 3}
    assert "the batch of offsets 0 to 0 is skipped" in caplog.text


def test_what_follows_a_place_without_a_batch_is_skipped(caplog: pytest.LogCaptureFixture) -> None:
    log = log_of([number("a", 1)])
    log.data += bytes(100)
    world = ToyWorld(log)
    assert world.toy.committed() == {"a": 1}
    assert "what follows offset 1 in the segment is skipped" in caplog.text


def test_only_so_many_skips_have_a_line_of_their_own(caplog: pytest.LogCaptureFixture) -> None:
    bad = [spoiled(f"n{i}", lambda k, v: (k, b"\x00")) for i in range(MAX_SKIPS_LOGGED + 7)]
    world = ToyWorld(log_of(bad))
    note_skips(world.shard)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == MAX_SKIPS_LOGGED + 1
    assert lines[-1] == f"{PLACE}: 7 more were skipped while it was loaded"


def test_who_asks_about_a_group_is_told_what_was_skipped() -> None:
    value = OffsetCommitValue(offset=7, metadata="", commit_timestamp=0)
    key, _ = GROUP_RECORDS.encode(offset_record("hurt", "t", 0, value))
    skipped = GroupWorld(log=log_of([(key, b"\x00")])).machine.context.skipped
    assert skipped.about("well") is None
    assert skipped.about("hurt") == (
        "The coordinator skipped 1 record of this group when it was loaded: the record at offset 0 "
        "(OffsetCommitKey(group='hurt', topic='t', partition=0)) of __consumer_offsets-0: "
        "OffsetCommitValue has 1 bytes, too few for a version."
    )
    unknown: Pair = (b"\x00\x63", b"")
    both = GroupWorld(log=log_of([(key, b"\x00")] * 5 + [unknown])).machine.context.skipped
    about = both.about("hurt")
    assert about is not None
    assert "skipped 5 records of this group" in about
    assert "; and 2 more." in about
    assert "skipped 1 record of no known group" in about
    well = both.about("well")
    assert well is not None
    assert "1 record of no known group" in well


def test_transactions_are_replayed_with_their_markers() -> None:
    def inside(name: str, producer_id: int) -> bytearray:
        key, value = GROUP_RECORDS.encode(number(name, 1))
        return build_batch(
            [(0, key, value, ())], producer_id=producer_id, producer_epoch=3, transactional=True
        )

    def marker(producer_id: int, committed: bool) -> bytearray:
        return end_txn_marker(
            committed=committed,
            coordinator_epoch=0,
            producer_id=producer_id,
            producer_epoch=3,
            timestamp_ms=0,
        )

    log = log_of(inside("a", 1), inside("b", 2), inside("c", 3), marker(2, True), marker(1, False))
    toy = ToyWorld(log).toy
    assert toy.committed() == {"b": 1}
    assert list(toy.in_transactions.keys()) == [3]


def test_only_the_groups_have_a_short_way() -> None:
    assert isinstance(GroupWorld().machine, ReplaysBytes)
    assert not isinstance(ToyWorld().toy, ReplaysBytes)
    assert not isinstance(Toy, ReplaysBytes)


# ---- the short way --------------------------------------------------------------------------------------------

NAMES = st.sampled_from(["g", "group", "größe", "", "\U0001f600"])
VALUE = st.builds(
    OffsetCommitValue,
    offset=st.integers(-1, 2**63 - 1),
    leader_epoch=st.integers(-2, 2**31 - 1),
    metadata=st.sampled_from(["", "", "", "m", "x" * 200]),
    commit_timestamp=st.integers(-1, 2**62),
    topic_id=st.sampled_from([bytes(16), b"a" * 16, b"b" * 16]),
)
COMMIT = st.builds(offset_record, NAMES, NAMES, st.integers(-1, 2**31 - 1), VALUE)
OLDER = st.builds(
    lambda record, version: record._replace(value_version=version), COMMIT, st.sampled_from([0, 1, 2, 3])
)
TOMBSTONE = st.builds(offset_tombstone, NAMES, NAMES, st.integers(-1, 3))
GROUP_GONE = st.builds(lambda name: CoordinatorRecord(GroupMetadataKey(group=name), None), NAMES)


def state(world: GroupWorld) -> object:
    store = world.machine.offsets.store
    offsets = {group: dict(table.items()) for group, table in store.by_group.items()}
    return offsets, sorted(world.machine.context.groups.keys())


@given(st.lists(st.one_of(COMMIT, COMMIT, OLDER, TOMBSTONE, GROUP_GONE), max_size=30))
def test_the_short_way_ends_where_the_ordinary_one_does(records: list[CoordinatorRecord]) -> None:
    log = log_of(*[[record] for record in records])
    short = GroupWorld(log=log)
    ordinary = GroupWorld()
    ordinary.machine.replay_bytes = lambda offset, key, value: False
    ordinary.shard.timeline.recording = False
    for _ in replay_batches(ordinary.shard, bytes(log.data)):
        pass
    assert state(short) == state(ordinary)


def test_a_broken_key_is_left_to_the_ordinary_way() -> None:
    key, value = GROUP_RECORDS.encode(
        offset_record(
            "g", "t", 1, OffsetCommitValue(offset=1, metadata="", commit_timestamp=0, topic_id=b"i" * 16)
        )
    )
    replay = GroupWorld().machine.replay_bytes
    assert replay(0, key, value)
    no_text = key[:4] + b"\xff" + key[5:]
    too_long = key[:2] + b"\x7f\xff" + key[4:]
    for broken in (key[:3], key[:2], b"", key[:-1], too_long, no_text, b"\x00\x02" + key[2:]):
        assert not replay(0, broken, value)
    assert not replay(0, None, value)
    assert not replay(0, key, None)


def test_names_are_not_remembered_without_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.coordinator.group.offsets.store.MAX_REMEMBERED", 3)
    value = OffsetCommitValue(offset=1, metadata="", commit_timestamp=0, topic_id=b"i" * 16)
    log = log_of([offset_record(f"g{i % 7}", "t", i, value) for i in range(50)])
    world = GroupWorld(log=log)
    loader = world.machine.offsets.loader
    assert not loader._names  # nothing is kept after the load
    store = world.machine.offsets.store
    assert sum(len(table) for table in store.by_group.values()) == 50
