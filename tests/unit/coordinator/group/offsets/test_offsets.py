"""Offsets of one shard: who may commit what, what is read when, and what makes them go."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from tests.support.group_world import GroupWorld, error_of

from ottla.coordinator.group.group import GroupType
from ottla.coordinator.group.offsets.expiration import SLICE_OFFSETS
from ottla.coordinator.group.offsets.manager import is_too_long
from ottla.coordinator.group.shard import SLICE_RECORDS
from ottla.coordinator.runtime import Producer
from ottla.coordinator.shard import CoordinatorResult
from ottla.metadata.delta import Delta, TopicChange
from ottla.metadata.image import ClusterImage
from ottla.metadata.persistent import PMap
from ottla.metadata.registrations import TopicImage
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import ZERO_UUID, Uuid
from ottla.model.pending import Pending
from ottla.wire.messages.groups.classic import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponseGroup,
)
from ottla.wire.messages.logs.offsets import GroupMetadataKey, OffsetCommitKey
from ottla.wire.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

ID = Uuid(b"topic-id-of-t---")
OTHER_ID = Uuid(b"another-id-of-t-")
PRODUCER, SECOND = Producer(70, 1), Producer(71, 0)
MINUTE_MS, DAY_MS = 60_000, 86_400_000
CHECK_MS = 600_000

Offsets = Mapping[int, int | tuple[int, str]]


def commit(
    world: GroupWorld, offsets: Offsets, group: str = "g", *, topic: str = "t", **more: Any
) -> Pending[Any]:
    """Commit offsets of one topic, in the name of nobody."""
    version = more.pop("version", 9)
    topic_id = more.pop("topic_id", ID)
    rows = []
    for partition, value in offsets.items():
        offset, metadata = value if isinstance(value, tuple) else (value, "")
        row = OffsetCommitRequestPartition(
            partition_index=partition, committed_offset=offset, committed_metadata=metadata
        )
        rows.append(row)
    request = OffsetCommitRequest(
        group_id=group,
        member_id=more.pop("member_id", ""),
        topics=[OffsetCommitRequestTopic(name=topic, topic_id=topic_id, partitions=rows)],
        **more,
    )
    return world.decide(lambda machine, now_ms: machine.offsets.commit(request, version, now_ms))


def txn_commit(
    world: GroupWorld,
    offsets: Mapping[int, int],
    producer: Producer = PRODUCER,
    group: str = "g",
    **more: Any,
) -> Pending[Any]:
    rows = [
        TxnOffsetCommitRequestPartition(partition_index=p, committed_offset=o, committed_metadata=None)
        for p, o in offsets.items()
    ]
    request = TxnOffsetCommitRequest(
        transactional_id="x",
        group_id=group,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        topics=[TxnOffsetCommitRequestTopic(name="t", partitions=rows)],
        **more,
    )
    return world.shard.write(
        lambda machine, now_ms: machine.offsets.txn_commit(request, 5, now_ms), 5_000, producer
    )


def end(world: GroupWorld, *, committed: bool, producer: Producer = PRODUCER) -> None:
    world.shard.end_transaction(
        producer, committed=committed, coordinator_epoch=0, transaction_version=2, timeout_ms=5_000
    ).result()


def answer(
    world: GroupWorld, group: str = "g", *, stable: bool = False, topics: Any = None
) -> OffsetFetchResponseGroup:
    request = OffsetFetchRequestGroup(group_id=group, topics=topics)
    if stable:
        found = world.decide(
            lambda machine, _: CoordinatorResult(machine.offsets.fetch(request, require_stable=True))
        )
        response: OffsetFetchResponseGroup = found.result()
        return response
    return world.machine.offsets.fetch(request, require_stable=False)


def read(world: GroupWorld, group: str = "g", *, stable: bool = False) -> dict[tuple[str, int], int]:
    """All offsets of a group."""
    return {
        (topic.name, p.partition_index): p.committed_offset
        for topic in answer(world, group, stable=stable).topics
        for p in topic.partitions
    }


def codes(pending: Pending[Any]) -> list[int]:
    return [p.error_code for topic in pending.result().topics for p in topic.partitions]


@pytest.fixture
def world() -> GroupWorld:
    return GroupWorld()


# ---- commit and fetch -----------------------------------------------------------------------------------------


def test_an_offset_is_read_as_it_was_committed_and_outlives_the_coordinator(world: GroupWorld) -> None:
    assert codes(commit(world, {0: 5, 1: (6, "where I am")})) == [0, 0]
    for found in (world, world.reloaded()):
        (topic,) = answer(found).topics
        assert [(p.committed_offset, p.metadata) for p in topic.partitions] == [(5, ""), (6, "where I am")]


def test_what_is_not_committed_is_not_read(world: GroupWorld) -> None:
    commit(world, {0: 1})
    world.log.hold()
    waiting = commit(world, {0: 2, 1: 9})
    assert read(world) == {("t", 0): 1}
    stable = world.decide(
        lambda machine, _: CoordinatorResult(
            machine.offsets.fetch(OffsetFetchRequestGroup(group_id="g", topics=None), require_stable=True)
        )
    )
    assert not stable.done
    world.log.release()
    assert waiting.done
    assert read(world) == {("t", 0): 2, ("t", 1): 9}
    assert [p.committed_offset for p in stable.result().topics[0].partitions] == [2, 9]


def test_a_commit_that_was_not_written_leaves_no_group(world: GroupWorld) -> None:
    world.log.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert error_of(commit(world, {0: 1})) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert read(world, stable=True) == {}
    assert "g" not in world.machine.context.groups
    assert world.machine.offsets.tombstones_for_group("g") == []


def test_partitions_without_an_offset_and_groups_that_there_are_not() -> None:
    world = GroupWorld()
    commit(world, {0: 1})
    asked = [OffsetFetchRequestTopics(name="t", partition_indexes=[0, 1])]
    found = [p.committed_offset for p in answer(world, topics=asked).topics[0].partitions]
    assert found == [1, -1]
    nobody = answer(world, "nobody", topics=asked).topics[0].partitions
    assert [(p.committed_offset, p.error_code, p.metadata) for p in nobody] == [(-1, 0, "")] * 2
    assert answer(world, "nobody").topics == []


def test_an_offset_belongs_to_the_topic_it_was_committed_for(world: GroupWorld) -> None:
    commit(world, {0: 7}, topic_id=ID)

    def asked(topic_id: Uuid) -> int:
        topics = [OffsetFetchRequestTopics(name="t", topic_id=topic_id, partition_indexes=[0])]
        offset: int = answer(world, topics=topics).topics[0].partitions[0].committed_offset
        return offset

    assert asked(ID) == 7
    assert asked(ZERO_UUID) == 7
    assert asked(OTHER_ID) == -1


def test_metadata_has_a_bound_counted_as_java_counts(world: GroupWorld) -> None:
    world.settings["offset.metadata.max.bytes"] = 4
    refused = int(ErrorCode.OFFSET_METADATA_TOO_LARGE)
    assert codes(commit(world, {0: (1, "abcd"), 1: (1, "abcde"), 2: (1, "üüüü")})) == [0, refused, 0]
    assert read(world) == {("t", 0): 1, ("t", 2): 1}
    assert not is_too_long("\U0001f600" * 2, 4)
    assert is_too_long("\U0001f600" * 2 + "x", 4)
    assert not is_too_long(None, 0)


def test_a_commit_of_nothing_but_refused_partitions_writes_nothing(world: GroupWorld) -> None:
    world.settings["offset.metadata.max.bytes"] = 0
    commit(world, {0: (1, "x")})
    assert world.records() == []


@pytest.mark.parametrize(
    ("version", "code"), [(8, ErrorCode.ILLEGAL_GENERATION), (9, ErrorCode.GROUP_ID_NOT_FOUND)]
)
def test_a_generation_of_no_group_is_refused(world: GroupWorld, version: int, code: ErrorCode) -> None:
    refused = commit(world, {0: 1}, version=version, generation_id_or_member_epoch=3, member_id="m")
    assert error_of(refused) is code
    assert "g" not in world.machine.context.groups


def test_a_member_commits_in_its_generation_only(world: GroupWorld) -> None:
    (member,), generation = world.stable()
    good = {"generation_id_or_member_epoch": generation, "member_id": member}
    assert codes(commit(world, {0: 1}, **good)) == [0]
    stale = commit(world, {0: 2}, **{**good, "generation_id_or_member_epoch": generation - 1})
    assert error_of(stale) is ErrorCode.ILLEGAL_GENERATION
    stranger = commit(world, {0: 2}, **{**good, "member_id": "stranger"})
    assert error_of(stranger) is ErrorCode.UNKNOWN_MEMBER_ID
    assert error_of(commit(world, {0: 2})) is ErrorCode.UNKNOWN_MEMBER_ID
    assert read(world) == {("t", 0): 1}


def test_a_commit_keeps_a_session_alive(world: GroupWorld) -> None:
    (member,), generation = world.stable(session_ms=10_000)
    for _ in range(5):
        world.pass_ms(6_000)
        commit(world, {0: 1}, generation_id_or_member_epoch=generation, member_id=member)
    assert member in world.group().members
    world.pass_ms(10_001)
    assert member not in world.group().members


def test_a_group_used_for_offsets_only_is_an_empty_classic_one(world: GroupWorld) -> None:
    commit(world, {0: 1})
    for found in (world, world.reloaded()):
        group = found.machine.context.groups["g"]
        assert (group.type, group.state_name(), group.protocol_type) == (GroupType.CLASSIC, "Empty", "")


@pytest.mark.parametrize("held", [False, True])
def test_an_ordinary_commit_leaves_the_same_as_a_list_of_records(
    monkeypatch: pytest.MonkeyPatch, held: bool
) -> None:
    def log_and_state(world: GroupWorld) -> object:
        if held:
            world.log.hold()
        commit(world, {0: 5, 2: 7, 9: -1})
        commit(world, {0: 6, 1: 1}, topic="other", topic_id=OTHER_ID)
        commit(world, {0: 8}, group="another")
        store = world.machine.offsets.store
        seen = {group: read(world, group) for group in ("g", "another")}
        world.log.release()
        newest = {group: dict(table.items()) for group, table in store.by_group.items()}
        return world.records(), newest, seen, read(world), read(world.reloaded())

    bulk = log_and_state(GroupWorld())
    monkeypatch.setattr("ottla.coordinator.group.offsets.manager._is_ordinary", lambda request: False)
    assert bulk == log_and_state(GroupWorld())


def test_a_bulk_that_was_not_written_is_undone_whole(world: GroupWorld) -> None:
    commit(world, {0: 1, 1: 1})
    world.log.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
    commit(world, {0: 2, 2: 2})
    commit(world, {0: 3, 1: 3, 3: 3})
    assert read(world, stable=True) == {("t", 0): 1, ("t", 1): 1}
    world.log.refuse(None)
    commit(world, {0: 4})
    assert read(world) == read(world.reloaded()) == {("t", 0): 4, ("t", 1): 1}


def test_a_commit_that_no_batch_can_hold_is_refused(world: GroupWorld) -> None:
    world.log.max_batch_bytes = 1_000
    assert error_of(commit(world, {p: p for p in range(50)})) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert read(world, stable=True) == {}
    assert codes(commit(world, {p: p for p in range(5)})) == [0] * 5


# ---- transactions ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("committed", [True, False])
def test_an_offset_in_a_transaction_counts_with_it(world: GroupWorld, committed: bool) -> None:
    commit(world, {0: 1})
    assert codes(txn_commit(world, {0: 2, 1: 3})) == [0, 0]
    assert read(world) == {("t", 0): 1}
    (topic,) = answer(world, stable=True).topics
    assert [p.error_code for p in topic.partitions] == [int(ErrorCode.UNSTABLE_OFFSET_COMMIT)]
    end(world, committed=committed)
    expected = {("t", 0): 2, ("t", 1): 3} if committed else {("t", 0): 1}
    for found in (world, world.reloaded()):
        assert read(found) == expected
        assert read(found, stable=True) == expected


def test_the_newest_of_two_commits_counts_whenever_the_transaction_ends(world: GroupWorld) -> None:
    txn_commit(world, {0: 5, 1: 5})
    commit(world, {0: 9})
    end(world, committed=True)
    expected = {("t", 0): 9, ("t", 1): 5}
    assert read(world) == expected
    assert read(world.reloaded()) == expected


def test_transactions_do_not_end_each_other(world: GroupWorld) -> None:
    txn_commit(world, {0: 1}, PRODUCER)
    txn_commit(world, {0: 2, 1: 2}, SECOND)
    end(world, committed=True, producer=PRODUCER)
    assert read(world) == {("t", 0): 1}
    assert world.machine.offsets.store.has_open("g", ("t", 0))
    end(world, committed=True, producer=SECOND)
    assert read(world, stable=True) == {("t", 0): 2, ("t", 1): 2}
    end(world, committed=False, producer=SECOND)  # nothing is open any more
    assert read(world) == {("t", 0): 2, ("t", 1): 2}


def test_a_transaction_s_offsets_are_unstable_before_and_after_a_reload(world: GroupWorld) -> None:
    txn_commit(world, {0: 1})
    again = world.reloaded()
    asked = [OffsetFetchRequestTopics(name="t", partition_indexes=[0, 1])]
    found = answer(again, stable=True, topics=asked).topics[0].partitions
    assert [p.error_code for p in found] == [int(ErrorCode.UNSTABLE_OFFSET_COMMIT), 0]
    end(again, committed=True)
    assert read(again, stable=True) == {("t", 0): 1}


def test_a_transaction_commits_for_a_known_generation_only(world: GroupWorld) -> None:
    refused = txn_commit(world, {0: 1}, generation_id_or_member_epoch=4, member_id="m")
    assert error_of(refused) is ErrorCode.ILLEGAL_GENERATION
    world.stable()
    assert codes(txn_commit(world, {0: 1})) == [0]  # older producers do not say who they are
    stranger = txn_commit(world, {0: 1}, generation_id_or_member_epoch=4, member_id="m")
    assert error_of(stranger) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_stale_epoch_is_a_stale_generation_to_a_producer(
    world: GroupWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(world, {0: 1})
    group = type(world.group())

    def stale(*_: object, **__: object) -> None:
        raise KafkaError(ErrorCode.STALE_MEMBER_EPOCH)

    monkeypatch.setattr(group, "validate_offset_commit", stale)
    assert error_of(txn_commit(world, {0: 2})) is ErrorCode.ILLEGAL_GENERATION
    monkeypatch.setattr(group, "validate_offset_commit", lambda *_, **__: stale)
    assert error_of(txn_commit(world, {0: 2})) is ErrorCode.ILLEGAL_GENERATION
    assert error_of(commit(world, {0: 2})) is ErrorCode.STALE_MEMBER_EPOCH


# ---- deletion by request --------------------------------------------------------------------------------------


def delete(world: GroupWorld, *partitions: int, group: str = "g") -> Pending[Any]:
    rows = [OffsetDeleteRequestPartition(partition_index=p) for p in partitions]
    request = OffsetDeleteRequest(
        group_id=group, topics=[OffsetDeleteRequestTopic(name="t", partitions=rows)]
    )
    return world.decide(lambda machine, _: machine.offsets.delete_offsets(request))


def test_single_offsets_are_deleted(world: GroupWorld) -> None:
    commit(world, {0: 1, 1: 1})
    txn_commit(world, {2: 1})
    assert codes(delete(world, 0, 2, 7)) == [0, 0, 0]
    tombstones = [
        r.key.partition for r in world.records() if type(r.key) is OffsetCommitKey and r.value is None
    ]
    assert tombstones == [0, 2]
    end(world, committed=True)
    for found in (world, world.reloaded()):
        assert read(found) == {("t", 1): 1}


def test_offsets_of_topics_that_are_subscribed_to_stay(world: GroupWorld) -> None:
    subscription = b"\x00\x01\x00\x00\x00\x01\x00\x01t\xff\xff\xff\xff" + bytes(4)
    (member,), generation = world.stable(protocols=(("range", subscription),))
    commit(world, {0: 1}, generation_id_or_member_epoch=generation, member_id=member)
    assert codes(delete(world, 0)) == [int(ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)]
    assert read(world) == {("t", 0): 1}


def test_offsets_of_nobody_cannot_be_deleted(world: GroupWorld) -> None:
    assert error_of(delete(world, 0)) is ErrorCode.GROUP_ID_NOT_FOUND


def test_a_deleted_group_takes_its_offsets_with_it(world: GroupWorld) -> None:
    commit(world, {0: 1, 1: 2})
    txn_commit(world, {1: 3, 2: 4})
    members, _ = world.stable(group_id="busy")
    deleted = world.decide(lambda machine, _: machine.delete_groups(["g", "busy", "nobody"]))
    assert [(r.group_id, r.error_code) for r in deleted.result()] == [
        ("g", 0),
        ("busy", int(ErrorCode.NON_EMPTY_GROUP)),
        ("nobody", int(ErrorCode.GROUP_ID_NOT_FOUND)),
    ]
    end(world, committed=True)
    for found in (world, world.reloaded()):
        assert read(found) == {}
        assert "g" not in found.machine.context.groups
    assert members


def test_a_group_of_very_many_offsets_can_be_deleted(world: GroupWorld) -> None:
    world.log.max_batch_bytes = 2_000
    for first in range(0, 100, 10):
        commit(world, {p: p for p in range(first, first + 10)})
    deleted = world.decide(lambda machine, _: machine.delete_groups(["g"]))
    assert [r.error_code for r in deleted.result()] == [0]
    assert "g" not in world.reloaded().machine.context.groups


def large(world: GroupWorld, count: int = 3 * SLICE_RECORDS) -> list[int]:
    """A group of more offsets than one decision deletes."""
    for first in range(0, count, 100):
        commit(world, {p: p for p in range(first, first + 100)})
    return list(range(count))


def test_a_large_group_is_deleted_in_slices(world: GroupWorld) -> None:
    count = len(large(world))
    commit(world, {0: 1}, group="small")
    deleted = world.shard.write(lambda machine, _: machine.delete_groups(["g", "small", "no"]), 1_000)
    assert 0 < world.machine.offsets.count("g") < count
    world.pass_ms(100)
    not_found = int(ErrorCode.GROUP_ID_NOT_FOUND)
    assert [(r.group_id, r.error_code) for r in deleted.result()] == [
        ("g", 0),
        ("small", 0),
        ("no", not_found),
    ]
    for found in (world, world.reloaded()):
        assert not found.machine.context.groups.keys()
        assert read(found) == {}


def test_what_is_committed_between_the_slices_of_a_deletion_stays(world: GroupWorld) -> None:
    *_, last = large(world)
    deleted = world.shard.write(lambda machine, _: machine.delete_groups(["g"]), 1_000)
    commit(world, {last: 4})
    world.pass_ms(100)
    assert [r.error_code for r in deleted.result()] == [0]
    for found in (world, world.reloaded()):
        assert read(found) == {("t", last): 4}


def test_what_is_committed_during_a_deletion_stays_also_after_a_write_that_failed(world: GroupWorld) -> None:
    *_, last = large(world)
    world.log.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
    commit(world, dict.fromkeys(range(2 * SLICE_RECORDS), 9), group="other")
    world.log.refuse(None)
    deleted = world.shard.write(lambda machine, _: machine.delete_groups(["g"]), 1_000)
    commit(world, {last: 4})
    world.pass_ms(100)
    assert [r.error_code for r in deleted.result()] == [0]
    assert read(world) == {("t", last): 4}


def test_a_deletion_that_is_not_over_fails_with_its_shard(world: GroupWorld) -> None:
    large(world)
    deleted = world.shard.write(lambda machine, _: machine.delete_groups(["g"]), 1_000)
    world.shard.flush()
    assert not deleted.done
    world.shard.close(KafkaError(ErrorCode.NOT_COORDINATOR))
    assert error_of(deleted) is ErrorCode.NOT_COORDINATOR


def test_a_deletion_that_is_committed_late_is_over_once(
    world: GroupWorld, caplog: pytest.LogCaptureFixture
) -> None:
    large(world)
    world.log.hold()
    world.shard.write(lambda machine, _: machine.delete_groups(["g"]), 1_000)
    world.pass_ms(10_000)  # longer than a decision is waited for
    world.log.release()
    assert "g" not in world.machine.context.groups
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_groups_are_listed_by_state_and_type(world: GroupWorld) -> None:
    commit(world, {0: 1}, group="simple")
    world.stable(group_id="busy")

    def listed(states: tuple[str, ...] = (), types: tuple[str, ...] = ()) -> list[str]:
        return sorted(row.group_id for row in world.machine.list_groups(states, types))

    assert listed() == ["busy", "simple"]
    assert listed((" eMPTY ",)) == ["simple"]
    assert listed(("Empty", "Stable")) == ["busy", "simple"]
    assert listed(("nope",)) == []
    assert listed((), ("CLASSIC",)) == ["busy", "simple"]
    assert listed((), ("consumer", "nope")) == []
    assert listed(("stable",), ("classic",)) == ["busy"]


# ---- what goes by itself --------------------------------------------------------------------------------------


@pytest.fixture
def short() -> GroupWorld:
    """Offsets are kept for a day and looked at every ten minutes."""
    return GroupWorld({"offsets.retention.minutes": 24 * 60, "offsets.retention.check.interval.ms": CHECK_MS})


def test_offsets_of_a_simple_group_expire_after_their_commit(
    short: GroupWorld, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "ottla.coordinator")
    commit(short, {0: 1})
    short.pass_ms(DAY_MS // 2)
    commit(short, {1: 1})
    short.pass_ms(DAY_MS // 2 + CHECK_MS)
    assert read(short) == {("t", 1): 1}
    assert caplog.messages == ["group g: 1 offsets have expired"]
    short.pass_ms(DAY_MS // 2)
    assert read(short) == {}
    assert "g" not in short.machine.context.groups
    assert any(type(r.key) is GroupMetadataKey and r.value is None for r in short.records())


def test_a_retention_of_its_own_is_kept_to(short: GroupWorld) -> None:
    commit(short, {0: 1}, version=2, retention_time_ms=20 * MINUTE_MS)
    commit(short, {1: 1}, version=2, retention_time_ms=10 * DAY_MS)
    short.pass_ms(30 * MINUTE_MS)
    assert read(short) == {("t", 1): 1}
    again = short.reloaded(short.settings)
    again.pass_ms(9 * DAY_MS)
    assert read(again) == {("t", 1): 1}
    again.pass_ms(DAY_MS)
    assert read(again) == {}


def test_offsets_of_members_stay_while_they_subscribe_and_expire_when_they_are_gone(
    short: GroupWorld,
) -> None:
    subscription = b"\x00\x01\x00\x00\x00\x01\x00\x01t\xff\xff\xff\xff" + bytes(4)
    (member,), generation = short.stable(protocols=(("range", subscription),), session_ms=1_000_000)
    who = {"generation_id_or_member_epoch": generation, "member_id": member}
    commit(short, {0: 1}, **who)
    commit(short, {0: 2}, topic="unsubscribed", **who)
    for _ in range(2 * DAY_MS // 900_000):
        short.pass_ms(900_000)
        short.heartbeat(member, generation)
    assert read(short) == {("t", 0): 1}
    short.leave(member)
    short.pass_ms(DAY_MS - 2 * CHECK_MS)
    assert read(short) == {("t", 0): 1}
    short.pass_ms(3 * CHECK_MS)
    assert read(short) == {}
    assert "g" not in short.machine.context.groups


def test_an_offset_does_not_expire_under_a_transaction(short: GroupWorld) -> None:
    commit(short, {0: 1})
    txn_commit(short, {0: 2})
    short.pass_ms(2 * DAY_MS)
    assert read(short) == {("t", 0): 1}
    end(short, committed=False)
    short.pass_ms(CHECK_MS)
    assert read(short) == {}


def test_a_group_with_only_an_open_transaction_stays(short: GroupWorld) -> None:
    txn_commit(short, {0: 2})
    short.pass_ms(2 * DAY_MS)
    assert "g" in short.machine.context.groups
    end(short, committed=True)
    assert read(short) == {("t", 0): 2}


def test_expiry_that_could_not_be_written_is_tried_again(short: GroupWorld) -> None:
    commit(short, {0: 1})
    short.pass_ms(DAY_MS - CHECK_MS)
    short.log.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
    short.pass_ms(2 * CHECK_MS)
    assert read(short) == {("t", 0): 1}
    short.log.refuse(None)
    short.pass_ms(CHECK_MS)
    assert read(short) == {}


def test_expiry_goes_in_slices_however_large_a_group_is(short: GroupWorld) -> None:
    count = 2 * SLICE_OFFSETS + 10
    for first in range(0, count, 500):
        commit(short, {p: p for p in range(first, min(first + 500, count))}, group="large")
    for group in range(30):
        commit(short, {0: 1}, group=f"small-{group}")
    looked_at: list[int] = []
    decide = short.machine.offsets.expiry.next_slice

    def watched(now_ms: int) -> CoordinatorResult[None]:
        result = decide(now_ms)
        looked_at.append(len(result.records))
        return result

    short.machine.offsets.expiry.next_slice = watched  # type: ignore[method-assign]
    short.pass_ms(2 * DAY_MS)
    assert max(looked_at) <= 2 * SLICE_OFFSETS
    assert len([n for n in looked_at if n]) > 2
    assert len(short.machine.offsets.store.by_group) == 0
    assert len(short.machine.context.groups) == 0
    assert len(short.reloaded().machine.context.groups) == 0


# ---- deleted topics -------------------------------------------------------------------------------------------


def delete_topic(world: GroupWorld, name: str = "t", topic_id: Uuid = ID) -> None:
    """The metadata log says that a topic is gone."""
    topic = TopicImage(name=name, id=topic_id, partitions={})
    before = ClusterImage(topics_by_name=PMap({name: topic}), topics_by_id=PMap({topic_id: topic}))
    delta = Delta(before, ClusterImage(), topics={topic_id: TopicChange(topic, None, frozenset())})
    world.shard.apply(world.machine.on_image(delta.after, delta, world.scheduler.now_ms()))


def test_offsets_go_with_their_topic(world: GroupWorld) -> None:
    commit(world, {0: 1, 1: 2})
    commit(world, {0: 3}, topic="other", topic_id=OTHER_ID)
    commit(world, {0: 4}, group="h")
    txn_commit(world, {2: 5}, group="h")
    delete_topic(world)
    world.pass_ms(100)
    end(world, committed=True)
    for found in (world, world.reloaded()):
        assert read(found) == {("other", 0): 3}
        assert read(found, "h") == {}


def test_offsets_of_a_topic_that_took_the_name_stay(world: GroupWorld) -> None:
    commit(world, {0: 1}, topic_id=OTHER_ID)
    delete_topic(world, topic_id=ID)
    world.pass_ms(100)
    assert read(world) == {("t", 0): 1}


def test_what_is_committed_after_the_deletion_stays(world: GroupWorld) -> None:
    commit(world, {0: 1}, topic_id=ZERO_UUID)
    delete_topic(world)
    commit(world, {0: 2}, topic_id=ZERO_UUID)
    world.pass_ms(100)
    assert read(world) == {("t", 0): 2}


def test_what_a_transaction_commits_after_the_deletion_counts_with_it(world: GroupWorld) -> None:
    commit(world, {0: 1, 1: 1})
    delete_topic(world)
    txn_commit(world, {1: 2, 2: 3})
    world.pass_ms(100)
    end(world, committed=True)
    for found in (world, world.reloaded()):
        assert read(found) == {("t", 1): 2, ("t", 2): 3}


def test_offsets_that_were_loaded_go_with_their_topic_too(world: GroupWorld) -> None:
    commit(world, dict.fromkeys(range(10), 1))
    again = world.reloaded()
    delete_topic(again)
    again.pass_ms(100)
    assert read(again) == {}


def test_deleting_a_topic_goes_in_slices(world: GroupWorld) -> None:
    count = 3 * SLICE_OFFSETS
    for first in range(0, count, 500):
        commit(world, {p: p for p in range(first, first + 500)}, group=f"g{first % 3}")
    delete_topic(world)
    world.pass_ms(1)
    left = sum(len(table) for table in world.machine.offsets.store.by_group.values())
    assert 0 < left < count
    world.pass_ms(100)
    assert len(world.machine.offsets.store.by_group) == 0


def test_offsets_whose_removal_could_not_be_written_go_later(world: GroupWorld) -> None:
    for first in range(0, 3 * SLICE_OFFSETS, 500):
        commit(world, {p: p for p in range(first, first + 500)}, group=f"g{first % 3}")
    delete_topic(world)
    world.log.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
    world.pass_ms(100)
    assert len(world.machine.offsets.store.by_group) == 3
    world.log.refuse(None)
    world.pass_ms(2_000)
    assert len(world.machine.offsets.store.by_group) == 0
