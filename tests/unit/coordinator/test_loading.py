"""A load: what the log says, in slices; and the short way for offsets beside the ordinary one."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.group_world import GroupWorld, MemoryLog
from tests.unit.coordinator.toy import Toy, ToyWorld, number

from ottla.coordinator.group.offset_commit import offset_record, offset_tombstone
from ottla.coordinator.group.record_types import GROUP_RECORDS
from ottla.coordinator.loading import SLICE_RECORDS, ReplaysBytes, replay_batches
from ottla.coordinator.result import CoordinatorRecord
from ottla.model.errors import KafkaError
from ottla.records.batch import set_offset_and_epoch
from ottla.records.control import end_txn_marker
from ottla.records.record import build_batch
from ottla.wire.messages.offsets_log import GroupMetadataKey, OffsetCommitValue

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


def test_types_of_a_newer_version_are_passed_over() -> None:
    unknown: Pair = (struct.pack(">h", 99) + b"?", b"??")
    assert ToyWorld(log_of([unknown, number("a", 1)])).toy.committed() == {"a": 1}


def test_a_record_without_a_type_is_damage() -> None:
    for key in (None, b"", b"\x00"):
        with pytest.raises(KafkaError):
            ToyWorld(log_of([(key, b"")]))


def test_a_value_of_a_newer_version_is_refused() -> None:
    key, value = GROUP_RECORDS.encode(number("a", 1))
    assert value is not None
    with pytest.raises(KafkaError, match="version 9"):
        ToyWorld(log_of([(key, struct.pack(">h", 9) + value[2:])]))


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
    for broken in (key[:3], key[:2], b"", key[:-1], key[:2] + b"\x7f\xff" + key[4:], b"\x00\x02" + key[2:]):
        assert not replay(0, broken, value)
    assert not replay(0, None, value)
    assert not replay(0, key, None)


def test_names_are_not_remembered_without_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.coordinator.group.offset_loading.MAX_REMEMBERED", 3)
    value = OffsetCommitValue(offset=1, metadata="", commit_timestamp=0, topic_id=b"i" * 16)
    log = log_of([offset_record(f"g{i % 7}", "t", i, value) for i in range(50)])
    world = GroupWorld(log=log)
    loader = world.machine.offsets.loader
    assert not loader._names  # nothing is kept after the load
    store = world.machine.offsets.store
    assert sum(len(table) for table in store.by_group.values()) == 50
