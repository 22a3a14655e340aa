"""Partitions: in-sync sets, elections, moves and directories."""

import pytest
from tests.unit.controller.support import CONTEXT, Cluster, directory, topic_id

from ottla.controller import (
    cluster_control,
    replication_control,
)
from ottla.controller.cluster_control import fence_broker, unfence_broker
from ottla.controller.result import RequestContext
from ottla.controller.rules import PARTITIONS_PER_PIECE
from ottla.metadata import records as r
from ottla.metadata.registrations import PartitionRegistration
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import Uuid
from ottla.model.time_slice import run_to_end
from ottla.wire.messages.nodes import broker_lifecycle as lifecycle
from ottla.wire.messages.nodes import replication as m


def state(cluster: Cluster, number: int = 0) -> PartitionRegistration:
    found = cluster.image.partition("t", number)
    assert found is not None
    return found


def alter(
    cluster: Cluster, leader: int, new_isr: list[int], context: RequestContext = CONTEXT, **fields: object
) -> m.AlterPartitionResponsePartitionData:
    current = cluster.image.partition("t", 0)
    defaults: dict[str, object] = {
        "partition_index": 0,
        "leader_epoch": current.leader_epoch if current else 0,
        "partition_epoch": current.partition_epoch if current else 0,
        "new_isr": new_isr,
        "new_isr_with_epochs": [m.BrokerState(broker_id=b) for b in new_isr],
    }
    epochs = fields.pop("epochs", None)
    if epochs is not None:
        pairs = zip(new_isr, epochs, strict=True)
        defaults["new_isr_with_epochs"] = [m.BrokerState(broker_id=b, broker_epoch=e) for b, e in pairs]
    uuid = fields.pop("topic_id", topic_id("t"))
    asked = m.AlterPartitionRequestPartitionData(**{**defaults, **fields})
    request = m.AlterPartitionRequest(
        broker_id=leader,
        broker_epoch=cluster.epoch(leader),
        topics=[m.AlterPartitionRequestTopicData(topic_id=uuid, partitions=[asked])],
    )
    result = run_to_end(replication_control.alter_partition(cluster.rules, request, context))
    cluster.take(result)
    return result.response.topics[0].partitions[0]


def three() -> Cluster:
    cluster = Cluster(1, 2, 3)
    cluster.add_topic("t", [[1, 2, 3]])
    return cluster


def test_the_isr_shrinks_and_grows() -> None:
    cluster = three()
    answer = alter(cluster, 1, [1, 2])
    assert (answer.error_code, answer.isr, answer.leader_epoch, answer.partition_epoch) == (0, [1, 2], 0, 1)
    answer = alter(cluster, 1, [1, 2, 3])
    assert (answer.isr, answer.partition_epoch) == ([1, 2, 3], 2)
    assert state(cluster).isr == (1, 2, 3)


def test_the_same_isr_writes_nothing() -> None:
    cluster = three()
    before = cluster.image.offset
    assert alter(cluster, 1, [1, 2, 3]).partition_epoch == 0
    assert cluster.image.offset == before


def test_an_old_version_names_no_epochs() -> None:
    cluster = three()
    assert alter(cluster, 1, [1, 2], RequestContext(2), new_isr_with_epochs=[]).isr == [1, 2]


@pytest.mark.parametrize(
    ("leader", "new_isr", "fields", "code"),
    [
        (1, [1], {"topic_id": b"?" * 16}, ErrorCode.UNKNOWN_TOPIC_ID),
        (1, [1], {"partition_index": 9}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (1, [1], {"leader_epoch": 9}, ErrorCode.NOT_CONTROLLER),
        (1, [1], {"partition_epoch": 9}, ErrorCode.NOT_CONTROLLER),
        (1, [1], {"leader_epoch": -1}, ErrorCode.FENCED_LEADER_EPOCH),
        (1, [1], {"partition_epoch": -1}, ErrorCode.INVALID_UPDATE_VERSION),
        (2, [2], {}, ErrorCode.INVALID_REQUEST),
        (1, [2, 3], {}, ErrorCode.INVALID_REQUEST),
        (1, [1, 7], {}, ErrorCode.INVALID_REQUEST),
        (1, [1, 1], {}, ErrorCode.INVALID_REQUEST),
        (1, [], {}, ErrorCode.INVALID_REQUEST),
        (1, [1], {"leader_recovery_state": 1}, ErrorCode.INVALID_REQUEST),
        (1, [1], {"leader_recovery_state": 2}, ErrorCode.INVALID_REQUEST),
        (1, [1], {"leader_recovery_state": -1}, ErrorCode.INVALID_REQUEST),
        (1, [1, 2], {"epochs": [-1, 999]}, ErrorCode.INELIGIBLE_REPLICA),
    ],
)
def test_an_isr_that_cannot_be_is_refused(
    leader: int, new_isr: list[int], fields: dict[str, object], code: ErrorCode
) -> None:
    cluster = three()
    before = cluster.image
    assert alter(cluster, leader, new_isr, **fields).error_code == code
    assert cluster.image is before


def test_a_fenced_broker_does_not_join() -> None:
    cluster = three()
    cluster.apply(*fence_broker(cluster.rules, 3))
    assert state(cluster).isr == (1, 2)
    assert alter(cluster, 1, [1, 2, 3]).error_code == ErrorCode.INELIGIBLE_REPLICA


def test_below_the_minimum_those_who_leave_stay_eligible() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.add_topic("t", [[1, 2, 3]], min_insync_replicas="2")
    alter(cluster, 1, [1])
    assert (state(cluster).isr, state(cluster).elr) == ((1,), (2, 3))
    cluster.apply(*fence_broker(cluster.rules, 1))
    after = state(cluster)
    assert (after.leader, after.isr, after.elr) == (2, (2,), (1, 3)), "an eligible one takes over"
    alter(cluster, 2, [2, 3])
    assert state(cluster).elr == ()


def test_without_elr_the_last_of_the_isr_stays_in_it() -> None:
    cluster = Cluster(1, elr=False)
    cluster.add_topic("t", [[1]])
    cluster.apply(*fence_broker(cluster.rules, 1))
    after = state(cluster)
    assert (after.leader, after.isr, after.elr) == (-1, (1,), ())
    cluster.apply(*unfence_broker(cluster.rules, cluster.image.brokers[1]))
    assert state(cluster).leader == 1


# --- elections


def elect(
    cluster: Cluster, kind: int, partitions: list[tuple[str, list[int]]] | None
) -> dict[tuple[str, int], int]:
    asked = None
    if partitions is not None:
        asked = [m.TopicPartitions(topic=t, partitions=p) for t, p in partitions]
    request = m.ElectLeadersRequest(election_type=kind, topic_partitions=asked)
    result = run_to_end(replication_control.elect_leaders(cluster.rules, request))
    cluster.take(result)
    return {
        (topic.topic, p.partition_id): p.error_code
        for topic in result.response.replica_election_results
        for p in topic.partition_result
    }


def test_the_preferred_leader_takes_over() -> None:
    cluster = three()
    cluster.apply(r.PartitionChangeRecord(topic_id=topic_id("t"), partition_id=0, leader=2))
    assert elect(cluster, 0, [("t", [0, 5]), ("none", [0])]) == {("t", 0): 0, ("t", 5): 3, ("none", 0): 3}
    assert state(cluster).leader == 1
    assert elect(cluster, 0, [("t", [0])]) == {("t", 0): ErrorCode.ELECTION_NOT_NEEDED}
    assert elect(cluster, 0, None) == {}


def test_a_preferred_leader_that_is_down_is_not_available() -> None:
    cluster = three()
    cluster.apply(*fence_broker(cluster.rules, 1))
    assert elect(cluster, 0, [("t", [0])]) == {("t", 0): ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE}


def test_an_unclean_election_takes_whoever_is_there() -> None:
    cluster = Cluster(1, 2, elr=False)
    cluster.add_topic("t", [[1, 2]])
    alter(cluster, 1, [1])
    cluster.apply(*fence_broker(cluster.rules, 1))
    assert state(cluster).leader == -1
    assert elect(cluster, 1, [("t", [0])]) == {("t", 0): 0}
    after = state(cluster)
    assert (after.leader, after.isr, after.leader_recovery_state) == (2, (2,), 1)


def test_unclean_elections_happen_by_themselves_only_where_permitted() -> None:
    for permitted, leader in (("false", -1), ("true", 2)):
        cluster = Cluster(1, 2, elr=False)
        cluster.add_topic("t", [[1, 2]])
        alter(cluster, 1, [1])
        cluster.apply(*fence_broker(cluster.rules, 1))
        cluster.apply(
            r.ConfigRecord(
                resource_type=2, resource_name="t", name="unclean.leader.election.enable", value=permitted
            )
        )
        cluster.take(run_to_end(replication_control.elect_unclean_leaders(cluster.rules)))
        assert state(cluster).leader == leader


def test_leaders_are_balanced() -> None:
    cluster = three()
    cluster.apply(r.PartitionChangeRecord(topic_id=topic_id("t"), partition_id=0, leader=2))
    cluster.take(run_to_end(replication_control.balance_leaders(cluster.rules)))
    assert state(cluster).leader == 1
    assert not run_to_end(replication_control.balance_leaders(cluster.rules)).records


def test_an_unknown_election_is_refused() -> None:
    with pytest.raises(KafkaError, match="Unknown election type 7"):
        elect(three(), 7, None)


# --- moves


def move(
    cluster: Cluster, replicas: list[int] | None, allow_factor_change: bool = True, number: int = 0
) -> tuple[int, str | None]:
    request = m.AlterPartitionReassignmentsRequest(
        allow_replication_factor_change=allow_factor_change,
        topics=[
            m.ReassignableTopic(
                name="t", partitions=[m.ReassignablePartition(partition_index=number, replicas=replicas)]
            )
        ],
    )
    result = run_to_end(replication_control.alter_partition_reassignments(cluster.rules, request))
    cluster.take(result)
    answer = result.response.responses[0].partitions[0]
    return answer.error_code, answer.error_message


def moves(cluster: Cluster) -> list[tuple[str, int, list[int], list[int], list[int]]]:
    asked = m.ListPartitionReassignmentsRequest()
    answer = run_to_end(replication_control.list_partition_reassignments(cluster.image, asked))
    return [
        (t.name, p.partition_index, p.replicas, p.adding_replicas, p.removing_replicas)
        for t in answer.topics
        for p in t.partitions
    ]


def test_a_partition_moves_when_the_new_replica_is_in_sync() -> None:
    cluster = Cluster(1, 2)
    cluster.add_topic("t", [[1]])
    assert move(cluster, [2]) == (0, None)
    assert moves(cluster) == [("t", 0, [2, 1], [2], [1])]
    answer = alter(cluster, 1, [1, 2])
    assert answer.error_code == ErrorCode.NEW_LEADER_ELECTED
    after = state(cluster)
    assert (after.replicas, after.isr, after.leader) == ((2,), (2,), 2)
    assert after.directories == (directory(2),)
    assert moves(cluster) == []


def test_a_move_is_called_off() -> None:
    cluster = Cluster(1, 2)
    cluster.add_topic("t", [[1]])
    assert move(cluster, None)[0] == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    move(cluster, [2])
    assert move(cluster, None) == (0, None)
    after = state(cluster)
    assert (after.replicas, after.isr, after.leader) == ((1,), (1,), 1)
    assert moves(cluster) == []


def test_a_move_may_be_changed_on_the_way() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.add_topic("t", [[1, 2]])
    assert move(cluster, [1, 3]) == (0, None)
    assert moves(cluster) == [("t", 0, [1, 3, 2], [3], [2])]
    # What is removed is wanted again, and what is added is still waited for.
    assert move(cluster, [1, 2, 3]) == (0, None)
    assert moves(cluster) == [("t", 0, [1, 2, 3], [3], [])]
    # What was to be added is not any more: there is nothing to wait for.
    assert move(cluster, [1, 2]) == (0, None)
    assert moves(cluster) == []
    assert state(cluster).replicas == (1, 2)


def test_the_last_leader_is_forgotten_when_its_move_is_called_off() -> None:
    """Its log is deleted: if it is wanted again, it begins with none."""
    cluster = Cluster(1, 5, 6)
    cluster.add_topic("t", [[1]], unclean_leader_election_enable="true")
    assert move(cluster, [5, 6]) == (0, None)
    assert alter(cluster, 1, [1, 5]).error_code == 0
    for broker_id in (6, 1, 5):
        cluster.apply(*fence_broker(cluster.rules, broker_id))
    assert move(cluster, None) == (0, None)
    after = state(cluster)
    assert (after.replicas, after.isr, after.elr, after.leader) == ((1,), (), (), -1)
    assert after.last_known_elr == ()
    cluster.apply(*unfence_broker(cluster.rules, cluster.image.brokers[5]))
    unclean = "unclean.leader.election.enable"
    for value, leader in (("false", -1), ("true", 5)):
        cluster.apply(r.ConfigRecord(resource_type=2, resource_name="t", name=unclean, value=value))
        assert move(cluster, [5]) == (0, None)
        repaired(cluster)
        after = state(cluster)
        assert (after.replicas, after.leader, after.last_known_elr) == ((5, 1), leader, ())


def test_nobody_is_no_last_known_leader() -> None:
    """The partition has lost its leader before there were eligible leader replicas."""
    cluster = Cluster(1, 2, 3, elr=False)
    cluster.add_topic("t", [[1]])
    assert move(cluster, [2, 3]) == (0, None)
    cluster.apply(*fence_broker(cluster.rules, 1))
    assert (state(cluster).leader, state(cluster).isr) == (-1, (1,))
    cluster.apply(r.FeatureLevelRecord(name="eligible.leader.replicas.version", feature_level=1))
    assert move(cluster, None) == (0, None)
    after = state(cluster)
    assert (after.replicas, after.leader, after.last_known_elr) == ((1,), -1, ())


@pytest.mark.parametrize(
    ("replicas", "number", "allow", "code"),
    [
        ([7], 0, True, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([], 0, True, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([1], 9, True, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ([1, 2], 0, False, ErrorCode.INVALID_REPLICATION_FACTOR),
    ],
)
def test_a_move_that_cannot_be_is_refused(
    replicas: list[int], number: int, allow: bool, code: ErrorCode
) -> None:
    cluster = Cluster(1, 2)
    cluster.add_topic("t", [[1]])
    assert move(cluster, replicas, allow, number)[0] == code


def test_reordering_alone_needs_no_copying() -> None:
    cluster = three()
    assert move(cluster, [3, 2, 1]) == (0, None)
    assert (state(cluster).replicas, moves(cluster)) == ((3, 2, 1), [])


# --- directories


def test_a_broker_says_where_its_replicas_are() -> None:
    cluster = Cluster(1)
    cluster.add_topic("t", [[1]])
    other = b"d" * 16
    request = lifecycle.AssignReplicasToDirsRequest(
        broker_id=1,
        broker_epoch=cluster.epoch(1),
        directories=[
            lifecycle.AssignReplicasToDirsRequestDirectoryData(
                id=directory(1),
                topics=[
                    lifecycle.AssignReplicasToDirsRequestTopicData(
                        topic_id=uuid,
                        partitions=[
                            lifecycle.AssignReplicasToDirsRequestPartitionData(partition_index=n)
                            for n in numbers
                        ],
                    )
                    for uuid, numbers in ((topic_id("t"), [0, 5]), (other, [0]))
                ],
            )
        ],
    )
    cluster.apply(
        r.PartitionChangeRecord(topic_id=topic_id("t"), partition_id=0, directories=[bytes(15) + b"\1"])
    )
    result = run_to_end(cluster_control.assign_replicas_to_dirs(cluster.rules, request))
    cluster.take(result)
    codes = [[p.error_code for p in t.partitions] for t in result.response.directories[0].topics]
    assert codes == [[0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION], [ErrorCode.UNKNOWN_TOPIC_ID]]
    assert state(cluster).directories == (directory(1),)


def repaired(cluster: Cluster) -> tuple[int, int]:
    """Repair to the end, slice by slice: how many steps and records it took."""
    progress = replication_control.RepairProgress()
    steps = records = 0
    while True:
        slice_ = replication_control.repair_partitions(cluster.rules, progress)
        while True:
            try:
                next(slice_)
            except StopIteration as end:
                result = end.value
                break
            steps += 1
        assert len(result.records) <= cluster.rules.slice_records
        cluster.take(result)
        records += len(result.records)
        if not result.more:
            return steps, records


def test_what_a_broker_leaves_and_finds_is_changed_in_steps() -> None:
    cluster = Cluster(1, 2)
    count = 5 * PARTITIONS_PER_PIECE
    cluster.add_topic("t", [[1, 2], [1]] * count)
    for fenced, changed, leaderless in ((True, 2 * count, count), (False, count, 0)):
        cluster.add_broker(1, fenced=fenced)
        steps, records = repaired(cluster)
        assert records == changed
        # Every piece is looked at once, again when it was changed, and once more at the end.
        pieces = 2 * count // PARTITIONS_PER_PIECE
        assert pieces < steps <= 4 * pieces
        assert repaired(cluster) == (pieces, 0)
        assert sum(not p.has_leader for _, _, p in cluster.image.partitions()) == leaderless


def test_a_repair_finds_what_came_before_the_place_where_it_is() -> None:
    cluster = Cluster(1, 2)
    cluster.add_topic("t", [[1, 2]] * (6 * PARTITIONS_PER_PIECE))
    cluster.add_broker(1, fenced=True)
    progress = replication_control.RepairProgress()
    for _ in range(2):
        cluster.take(run_to_end(replication_control.repair_partitions(cluster.rules, progress)))
    assert progress.settled
    # Its id is lower than any: its partitions come first.
    cluster.apply(r.TopicRecord(name="early", topic_id=Uuid(bytes(15) + b"\1")))
    cluster.apply(
        r.PartitionRecord(
            partition_id=0, topic_id=Uuid(bytes(15) + b"\1"), replicas=[1, 2], isr=[1, 2], leader=1,
            leader_epoch=0, partition_epoch=0, directories=[directory(1), directory(2)],
        )
    )  # fmt: skip
    while (result := run_to_end(replication_control.repair_partitions(cluster.rules, progress))).more:
        cluster.take(result)
    assert all(partition.leader == 2 for _, _, partition in cluster.image.partitions())
