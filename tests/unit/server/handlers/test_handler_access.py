"""What handlers judge by what a request names: groups, offsets, transactions and share groups, on a whole broker.

Each is asked as somebody who may nothing, who may all but one thing, and who may; of topics that are there and of
others, by name and by id.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from tests.interop.process import wait_until
from tests.support.judged_broker import JudgedBroker, codes, rule

from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import Uuid
from ottla.security.acls import ALL_GROUP_OPERATIONS, CLUSTER_NAME, AclOperation, ResourceType, operation_bits
from ottla.server import authorization, handlers
from ottla.server.authorization import ACCESS
from ottla.server.handlers.transactions import init_producer_id
from ottla.server.network.connection import Listener
from ottla.server.registry import routes
from ottla.wire.messages import transactions as txn
from ottla.wire.messages.groups import classic, consumer, share, streams
from ottla.wire.messages.producers import DescribeProducersRequest, InitProducerIdRequest, TopicRequest
from ottla.wire.registry import APIS

READ, WRITE, CREATE, DELETE, DESCRIBE = (
    AclOperation.READ,
    AclOperation.WRITE,
    AclOperation.CREATE,
    AclOperation.DELETE,
    AclOperation.DESCRIBE,
)
TOPIC, GROUP, CLUSTER, TXN = (
    ResourceType.TOPIC,
    ResourceType.GROUP,
    ResourceType.CLUSTER,
    ResourceType.TRANSACTIONAL_ID,
)
NO_TOPIC, NO_GROUP, NO_CLUSTER, NO_TXN = (
    int(ErrorCode.TOPIC_AUTHORIZATION_FAILED),
    int(ErrorCode.GROUP_AUTHORIZATION_FAILED),
    int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
    int(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
)
UNKNOWN = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
UNKNOWN_ID = Uuid(b"nobody's id-----")
MEMBER = "11111111-1111-1111-1111-111111111111"

handlers.load()
handlers.load_rest()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JudgedBroker]:
    """Topics a, b and c; offsets of the group g in a and b; the transactional id tx."""
    path = tmp_path_factory.mktemp("judged")
    with JudgedBroker(path, {"a": 1, "b": 1, "c": 1}) as judged:
        judged.ready("g", "h", transactional_ids=("tx",))
        assert set(codes(judged.ask(commit("a", "b"), 9))) == {0}
        yield judged


@pytest.fixture(autouse=True)
def everything_allowed(broker: JudgedBroker) -> Iterator[None]:
    broker.may_all()
    yield
    broker.may_all()


# ---- requests -----------------------------------------------------------------------------------------------


def commit(*topics: str | Uuid, group: str = "g") -> classic.OffsetCommitRequest:
    return classic.OffsetCommitRequest(
        group_id=group,
        member_id="",
        topics=[
            classic.OffsetCommitRequestTopic(
                **({"name": topic} if isinstance(topic, str) else {"topic_id": topic}),
                partitions=[
                    classic.OffsetCommitRequestPartition(
                        partition_index=0, committed_offset=5, committed_metadata=""
                    )
                ],
            )
            for topic in topics
        ],
    )


def fetch_offsets(*topics: str | Uuid, group: str = "g") -> classic.OffsetFetchRequest:
    asked = [
        classic.OffsetFetchRequestTopics(
            **({"name": topic} if isinstance(topic, str) else {"topic_id": topic}), partition_indexes=[0]
        )
        for topic in topics
    ]
    return classic.OffsetFetchRequest(groups=[classic.OffsetFetchRequestGroup(group_id=group, topics=asked)])


def fetch_offsets_of_one(*topics: str) -> classic.OffsetFetchRequest:
    """As before version 8."""
    asked = [classic.OffsetFetchRequestTopic(name=name, partition_indexes=[0]) for name in topics]
    return classic.OffsetFetchRequest(group_id="g", topics=asked)


def txn_commit(*topics: str) -> txn.TxnOffsetCommitRequest:
    return txn.TxnOffsetCommitRequest(
        transactional_id="tx",
        group_id="g",
        producer_id=1,
        producer_epoch=0,
        topics=[
            txn.TxnOffsetCommitRequestTopic(
                name=name,
                partitions=[
                    txn.TxnOffsetCommitRequestPartition(
                        partition_index=0, committed_offset=9, committed_metadata=""
                    )
                ],
            )
            for name in topics
        ],
    )


def delete_offsets(*topics: str) -> classic.OffsetDeleteRequest:
    return classic.OffsetDeleteRequest(
        group_id="g",
        topics=[
            classic.OffsetDeleteRequestTopic(
                name=name, partitions=[classic.OffsetDeleteRequestPartition(partition_index=0)]
            )
            for name in topics
        ],
    )


def add_partitions(*topics: str) -> txn.AddPartitionsToTxnRequest:
    """As clients ask, before version 4."""
    return txn.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="tx",
        v3_and_below_producer_id=1,
        v3_and_below_producer_epoch=0,
        v3_and_below_topics=[txn.AddPartitionsToTxnTopic(name=name, partitions=[0]) for name in topics],
    )


def add_partitions_of_many(*topics: str) -> txn.AddPartitionsToTxnRequest:
    """As brokers ask."""
    asked = [txn.AddPartitionsToTxnTopic(name=name, partitions=[0]) for name in topics]
    transaction = txn.AddPartitionsToTxnTransaction(
        transactional_id="tx", producer_id=1, producer_epoch=0, topics=asked
    )
    return txn.AddPartitionsToTxnRequest(transactions=[transaction])


def join_consumer(*topics: str, regex: str | None = None, group: str = "h") -> Any:
    return consumer.ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id=MEMBER,
        member_epoch=0,
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=list(topics),
        subscribed_topic_regex=regex,
        topic_partitions=[],
    )


def leave_consumer(group: str = "h") -> Any:
    return consumer.ConsumerGroupHeartbeatRequest(group_id=group, member_id=MEMBER, member_epoch=-1)


def join_streams(source: str = "a", changelog: str = "st-x-changelog") -> Any:
    subtopology = streams.StreamsGroupHeartbeatRequestSubtopology(
        subtopology_id="0",
        source_topics=[source],
        source_topic_regex=[],
        state_changelog_topics=[
            streams.TopicInfo(name=changelog, partitions=0, replication_factor=0, topic_configs=[])
        ],
        repartition_sink_topics=[],
        repartition_source_topics=[],
        copartition_groups=[],
    )
    return streams.StreamsGroupHeartbeatRequest(
        group_id="st",
        member_id=MEMBER,
        member_epoch=0,
        endpoint_information_epoch=0,
        rebalance_timeout_ms=60_000,
        topology=streams.StreamsGroupHeartbeatRequestTopology(epoch=0, subtopologies=[subtopology]),
        active_tasks=[],
        standby_tasks=[],
        warmup_tasks=[],
        process_id="p",
    )


def share_beat(*topics: str, epoch: int = 0) -> Any:
    return share.ShareGroupHeartbeatRequest(
        group_id="s", member_id=MEMBER, member_epoch=epoch, subscribed_topic_names=list(topics) or None
    )


def share_fetch(*topics: Uuid, epoch: int = 0) -> Any:
    return share.ShareFetchRequest(
        group_id="s",
        member_id=MEMBER,
        share_session_epoch=epoch,
        max_wait_ms=0,
        min_bytes=0,
        max_records=1,
        batch_size=1,
        topics=[
            share.FetchTopic(
                topic_id=topic,
                partitions=[share.FetchPartition(partition_index=0, acknowledgement_batches=[])],
            )
            for topic in topics
        ],
        forgotten_topics_data=[],
    )


def share_acknowledge(*topics: Uuid, epoch: int) -> Any:
    said = share.AcknowledgementBatch(first_offset=0, last_offset=0, acknowledge_types=[1])
    return share.ShareAcknowledgeRequest(
        group_id="s",
        member_id=MEMBER,
        share_session_epoch=epoch,
        topics=[
            share.AcknowledgeTopic(
                topic_id=topic,
                partitions=[share.AcknowledgePartition(partition_index=0, acknowledgement_batches=[said])],
            )
            for topic in topics
        ],
    )


def describe_share_offsets(*topics: str) -> Any:
    asked = [share.DescribeShareGroupOffsetsRequestTopic(topic_name=n, partitions=[0]) for n in topics]
    group = share.DescribeShareGroupOffsetsRequestGroup(group_id="s", topics=asked)
    return share.DescribeShareGroupOffsetsRequest(groups=[group])


def alter_share_offsets(*topics: str) -> Any:
    return share.AlterShareGroupOffsetsRequest(
        group_id="s",
        topics=[
            share.AlterShareGroupOffsetsRequestTopic(
                topic_name=name,
                partitions=[share.AlterShareGroupOffsetsRequestPartition(partition_index=0, start_offset=0)],
            )
            for name in topics
        ],
    )


def delete_share_offsets(*topics: str) -> Any:
    asked = [share.DeleteShareGroupOffsetsRequestTopic(topic_name=name) for name in topics]
    return share.DeleteShareGroupOffsetsRequest(group_id="s", topics=asked)


def init(transactional_id: str | None) -> InitProducerIdRequest:
    return InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000)


def find(kind: int, *keys: str) -> classic.FindCoordinatorRequest:
    return classic.FindCoordinatorRequest(key_type=kind, coordinator_keys=list(keys))


# ---- nothing goes unchecked ---------------------------------------------------------------------------------

JOIN = classic.JoinGroupRequest(
    group_id="g",
    session_timeout_ms=10_000,
    rebalance_timeout_ms=10_000,
    member_id="",
    protocol_type="consumer",
    protocols=[classic.JoinGroupRequestProtocol(name="range", metadata=b"")],
)
SYNC = classic.SyncGroupRequest(
    group_id="g",
    generation_id=1,
    member_id="m",
    protocol_type="consumer",
    protocol_name="range",
    assignments=[],
)
BEAT = classic.HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
LEAVE = classic.LeaveGroupRequest(group_id="g", members=[classic.MemberIdentity(member_id="m")])
ADD_OFFSETS = txn.AddOffsetsToTxnRequest(transactional_id="tx", producer_id=1, producer_epoch=0, group_id="g")
END = txn.EndTxnRequest(transactional_id="tx", producer_id=1, producer_epoch=0, committed=True)
LIST_GROUPS = classic.ListGroupsRequest(states_filter=[], types_filter=[])
LIST_TXNS = txn.ListTransactionsRequest(state_filters=[], producer_id_filters=[])


def every_request(broker: JudgedBroker) -> dict[str, list[Any]]:
    """Of each API, of what is there and of what is not; some with their first version, and their last."""
    both = ("a", "nowhere")
    ids = (broker.topic_id("a"), UNKNOWN_ID)
    return {
        "FindCoordinator": [
            (find(0, "g", "x"), 4),
            (find(1, "tx"), 4),
            (find(2, "g:AAAAAAAAAAAAAAAAAAAAAQ:3"), 6),
            (classic.FindCoordinatorRequest(key_type=0, key="g"), 0, 3),
        ],
        "JoinGroup": [JOIN],
        "SyncGroup": [SYNC],
        "Heartbeat": [BEAT],
        "LeaveGroup": [(LEAVE, 3), (classic.LeaveGroupRequest(group_id="g", member_id="m"), 0, 2)],
        "DescribeGroups": [classic.DescribeGroupsRequest(groups=["g", "x"])],
        "ListGroups": [LIST_GROUPS],
        "DeleteGroups": [classic.DeleteGroupsRequest(groups_names=["g", "x"])],
        "OffsetCommit": [(commit(*both), 2, 9), (commit(*ids), 10)],
        "OffsetFetch": [
            (fetch_offsets(*both), 8, 9),
            (fetch_offsets(*ids), 10),
            (fetch_offsets_of_one(*both), 1, 7),
        ],
        "OffsetDelete": [delete_offsets(*both)],
        "ConsumerGroupHeartbeat": [join_consumer(*both)],
        "ConsumerGroupDescribe": [
            consumer.ConsumerGroupDescribeRequest(group_ids=["g", "x"], include_authorized_operations=True)
        ],
        "StreamsGroupHeartbeat": [join_streams()],
        "StreamsGroupDescribe": [
            streams.StreamsGroupDescribeRequest(group_ids=["g", "x"], include_authorized_operations=True)
        ],
        "ShareGroupHeartbeat": [share_beat(*both)],
        "ShareGroupDescribe": [
            share.ShareGroupDescribeRequest(group_ids=["g", "x"], include_authorized_operations=True)
        ],
        "ShareFetch": [share_fetch(*ids)],
        "ShareAcknowledge": [share_acknowledge(*ids, epoch=1)],
        "DescribeShareGroupOffsets": [describe_share_offsets(*both)],
        "AlterShareGroupOffsets": [alter_share_offsets(*both)],
        "DeleteShareGroupOffsets": [delete_share_offsets(*both)],
        "InitProducerId": [init("tx"), init(None)],
        "AddPartitionsToTxn": [
            (add_partitions(*both), 0, 3),
            (add_partitions_of_many(*both), 4),
        ],
        "AddOffsetsToTxn": [ADD_OFFSETS],
        "EndTxn": [END],
        "TxnOffsetCommit": [txn_commit(*both)],
        "DescribeTransactions": [txn.DescribeTransactionsRequest(transactional_ids=["tx", "x"])],
        "ListTransactions": [LIST_TXNS],
        "DescribeProducers": [
            DescribeProducersRequest(topics=[TopicRequest(name=n, partition_indexes=[0]) for n in both])
        ],
    }


# Their lists are empty.
SILENT = {"ListGroups": "groups", "ListTransactions": "transaction_states"}
DENIALS = {NO_TOPIC, NO_GROUP, NO_CLUSTER, NO_TXN}
MODULES = tuple(f"{handlers.__name__}.{name}" for name in ("groups", "offsets", "transactions", "share."))


def judged_here() -> set[str]:
    """The APIs that the table leaves to these handlers."""
    found = {"FindCoordinator"}
    for key, route in routes(Listener.BROKER).items():
        module = getattr(route.handler, "__module__", "")
        if module.startswith(MODULES) and ACCESS[APIS[key].name].by_handler:
            found.add(APIS[key].name)
    return found


def test_whoever_may_nothing_is_refused_by_every_handler_and_nothing_happens(broker: JudgedBroker) -> None:
    asked = every_request(broker)
    assert set(asked) == judged_here()
    before, topics = broker.written(), set(broker.services.image().topics)
    producer_id = broker.ask(init(None), 4).producer_id
    broker.may()
    for name, requests in asked.items():
        for entry in requests:
            request, *bounds = entry if isinstance(entry, tuple) else (entry,)
            route = routes(Listener.BROKER)[request.API_KEY]
            low = bounds[0] if bounds else route.min_version
            high = bounds[1] if len(bounds) > 1 else route.max_version
            for version in range(low, high + 1):
                if name == "JoinGroup" and version < 2:
                    continue  # advertised, and not served any more
                answer = broker.ask(request, version)
                found = set(codes(answer))
                assert found <= {*DENIALS, 0}, (name, version, found)
                assert name in SILENT or DENIALS & found, (name, version, found)
                if name in SILENT:
                    assert getattr(answer, SILENT[name]) == []
    broker.may_all()
    assert broker.written() == before
    assert set(broker.services.image().topics) == topics
    assert broker.ask(init(None), 4).producer_id == producer_id + 1
    assert [group.group_id for group in broker.ask(LIST_GROUPS, 5).groups] == ["g"]


# ---- coordinators -------------------------------------------------------------------------------------------


def test_coordinators_are_told_whoever_may_describe_what_they_coordinate(broker: JudgedBroker) -> None:
    broker.may(rule(DESCRIBE, GROUP, "g"), rule(WRITE, TXN, "tx"))
    found = broker.ask(find(0, "g", "h"), 6).coordinators
    assert [(row.error_code, row.node_id >= 0) for row in found] == [(0, True), (NO_GROUP, False)]
    found = broker.ask(find(1, "tx", "ty"), 6).coordinators
    assert [(row.error_code, row.port > 0) for row in found] == [(0, True), (NO_TXN, False)]
    old = broker.ask(classic.FindCoordinatorRequest(key_type=0, key="h"), 3)
    assert (old.error_code, old.error_message) == (NO_GROUP, "Group authorization failed.")
    share_key = "g:AAAAAAAAAAAAAAAAAAAAAQ:3"
    (row,) = broker.ask(find(2, share_key), 6).coordinators
    assert (row.error_code, row.error_message) == (NO_CLUSTER, "Cluster authorization failed.")
    assert broker.ask(find(2, share_key), 5).coordinators[0].error_code == ErrorCode.INVALID_REQUEST


# ---- groups -------------------------------------------------------------------------------------------------


def test_members_read_their_group(broker: JudgedBroker) -> None:
    broker.may(rule(READ, GROUP, "g"))
    assert broker.ask(JOIN, 9).error_code == ErrorCode.MEMBER_ID_REQUIRED
    for request, version in ((SYNC, 5), (BEAT, 4)):
        assert broker.ask(request, version).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    (left,) = broker.ask(LEAVE, 5).members
    assert left.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    broker.may(rule(DESCRIBE, GROUP, "g"), rule(READ, GROUP, "h"))
    for request, version in ((JOIN, 9), (SYNC, 5), (BEAT, 4), (LEAVE, 5)):
        assert broker.ask(request, version).error_code == NO_GROUP
    # What a request lacks is told before.
    nameless = classic.SyncGroupRequest(group_id="g", generation_id=1, member_id="m", assignments=[])
    assert broker.ask(nameless, 5).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_groups_that_may_not_be_described_come_first_and_say_so(broker: JudgedBroker) -> None:
    broker.may(rule(DESCRIBE, GROUP, "g"), rule(DELETE, GROUP, "g"))
    request = classic.DescribeGroupsRequest(groups=["g", "h"], include_authorized_operations=True)
    hidden, seen = broker.ask(request, 5).groups
    assert (hidden.group_id, hidden.error_code, hidden.authorized_operations) == ("h", NO_GROUP, -(2**31))
    assert (seen.group_id, seen.error_code) == ("g", 0)
    assert seen.authorized_operations == operation_bits((DESCRIBE, DELETE))
    broker.may_all()
    assert broker.ask(request, 5).groups[0].authorized_operations == ALL_GROUP_OPERATIONS


def test_a_list_has_what_may_be_described(broker: JudgedBroker) -> None:
    assert set(codes(broker.ask(commit("a", group="h"), 9))) == {0}
    for rules, listed in (
        ((rule(DESCRIBE, CLUSTER, CLUSTER_NAME),), {"g", "h"}),
        ((rule(READ, GROUP, "h"),), {"h"}),
        ((rule(DESCRIBE, GROUP, "g"), rule(DESCRIBE, GROUP, "h")), {"g", "h"}),
    ):
        broker.may(*rules)
        assert {group.group_id for group in broker.ask(LIST_GROUPS, 5).groups} == listed
    broker.may(rule(DELETE, GROUP, "h"), rule(READ, GROUP, "g"))
    deleted = broker.ask(classic.DeleteGroupsRequest(groups_names=["g", "h"]), 2).results
    assert [(row.group_id, row.error_code) for row in deleted] == [("h", 0), ("g", NO_GROUP)]


# ---- offsets ------------------------------------------------------------------------------------------------


def test_offsets_are_committed_of_topics_that_may_be_read(broker: JudgedBroker) -> None:
    rules = (rule(READ, GROUP, "g"), rule(READ, TOPIC, "a"), rule(DESCRIBE, TOPIC, "b"))
    broker.may(*rules, rule(READ, TOPIC, "gone"))
    answer = broker.ask(commit("a", "b", "gone", "nowhere"), 9)
    assert {topic.name: topic.partitions[0].error_code for topic in answer.topics} == {
        "a": 0,
        "b": NO_TOPIC,
        "gone": UNKNOWN,
        "nowhere": NO_TOPIC,
    }
    a, b = broker.topic_id("a"), broker.topic_id("b")
    answer = broker.ask(commit(a, b, UNKNOWN_ID), 10)
    assert {topic.topic_id: topic.partitions[0].error_code for topic in answer.topics} == {
        a: 0,
        b: NO_TOPIC,
        UNKNOWN_ID: ErrorCode.UNKNOWN_TOPIC_ID,
    }
    broker.may(rule(DESCRIBE, GROUP, "g"), rule(READ, TOPIC, "a"))
    assert codes(broker.ask(commit("a", "b"), 9)) == [NO_GROUP, NO_GROUP]


def test_offsets_are_told_of_topics_that_may_be_described(broker: JudgedBroker) -> None:
    rules = (rule(DESCRIBE, GROUP, "g"), rule(DESCRIBE, TOPIC, "a"))
    broker.may(*rules)
    (group,) = broker.ask(fetch_offsets("a", "b", "nowhere"), 9).groups
    rows = {topic.name: topic.partitions[0] for topic in group.topics}
    assert [(name, row.error_code, row.committed_offset) for name, row in rows.items()] == [
        ("a", 0, 5),
        ("b", NO_TOPIC, -1),
        ("nowhere", NO_TOPIC, -1),
    ]
    a, b = broker.topic_id("a"), broker.topic_id("b")
    (group,) = broker.ask(fetch_offsets(a, b, UNKNOWN_ID), 10).groups
    assert {topic.topic_id: topic.partitions[0].error_code for topic in group.topics} == {
        a: 0,
        b: NO_TOPIC,
        UNKNOWN_ID: ErrorCode.UNKNOWN_TOPIC_ID,
    }
    everything = classic.OffsetFetchRequest(
        groups=[classic.OffsetFetchRequestGroup(group_id=name, topics=None) for name in ("g", "h")]
    )
    for version in (9, 10):
        seen, hidden = broker.ask(everything, version).groups
        assert [topic.name or topic.topic_id for topic in seen.topics] == ["a" if version == 9 else a]
        assert (hidden.error_code, hidden.topics) == (NO_GROUP, [])
    old = broker.ask(fetch_offsets_of_one("a", "b"), 1)
    assert {topic.name: topic.partitions[0].error_code for topic in old.topics} == {"a": 0, "b": NO_TOPIC}
    broker.may(rule(DESCRIBE, TOPIC, "a"))
    (topic,) = broker.ask(fetch_offsets_of_one("a"), 1).topics
    assert (topic.partitions[0].error_code, topic.partitions[0].committed_offset) == (NO_GROUP, -1)


def test_offsets_are_forgotten_of_topics_that_may_be_read(broker: JudgedBroker) -> None:
    broker.may(rule(DELETE, GROUP, "g"), rule(DESCRIBE, TOPIC, "a"), rule(READ, TOPIC, "gone"))
    answer = broker.ask(delete_offsets("a", "nowhere", "gone"), 0)
    assert answer.error_code == 0
    assert {topic.name: topic.partitions[0].error_code for topic in answer.topics} == {
        "a": NO_TOPIC,
        "nowhere": NO_TOPIC,
        "gone": UNKNOWN,
    }
    broker.may(rule(READ, GROUP, "g"), rule(READ, TOPIC, "a"))
    refused = broker.ask(delete_offsets("a"), 0)
    assert (refused.error_code, refused.topics) == (NO_GROUP, [])
    broker.may_all()
    (group,) = broker.ask(fetch_offsets("a"), 9).groups
    assert group.topics[0].partitions[0].committed_offset == 5


# ---- groups of the newer protocols --------------------------------------------------------------------------


def test_members_describe_what_they_subscribe_to(broker: JudgedBroker) -> None:
    broker.may(rule(READ, GROUP, "h"), rule(DESCRIBE, TOPIC, "a"))
    for topics in (("a", "b"), ("a", "nowhere")):
        refused = broker.ask(join_consumer(*topics), 1)
        assert (refused.error_code, refused.error_message) == (NO_TOPIC, None)
    assert broker.ask(join_consumer("a", "a"), 1).error_code == 0
    broker.may(rule(DESCRIBE, GROUP, "h"), rule(DESCRIBE, TOPIC, "a"))
    assert broker.ask(join_consumer("a"), 1).error_code == NO_GROUP
    # A group whose topics are not all seen is not described.
    request = consumer.ConsumerGroupDescribeRequest(group_ids=["h", "g"], include_authorized_operations=True)
    hidden, seen = broker.ask(request, 1).groups
    assert (hidden.group_id, hidden.error_code, hidden.error_message) == ("g", NO_GROUP, None)
    assert (seen.error_code, len(seen.members)) == (0, 1)
    assert seen.authorized_operations == operation_bits((DESCRIBE,))
    broker.may(rule(DESCRIBE, GROUP, "h"))
    _, refused = broker.ask(request, 1).groups
    assert (refused.error_code, refused.members, refused.group_state) == (NO_TOPIC, [], "")
    assert refused.authorized_operations == -(2**31)
    broker.may_all()
    assert broker.ask(leave_consumer(), 1).error_code == 0


def test_a_regular_expression_matches_what_its_member_may_describe(broker: JudgedBroker) -> None:
    group = "by-regex"
    broker.ready(group)
    broker.may(rule(READ, GROUP, group), rule(DESCRIBE, TOPIC, "a"), rule(DESCRIBE, TOPIC, "c"))
    answer = broker.ask(join_consumer(regex="[ab]|nowhere", group=group), 1)
    assert answer.error_code == 0
    told: dict[str, Any] = {"epoch": answer.member_epoch, "topics": []}

    def assigned() -> bool:
        beat = consumer.ConsumerGroupHeartbeatRequest(
            group_id=group, member_id=MEMBER, member_epoch=told["epoch"]
        )
        said = broker.ask(beat, 1)
        told["epoch"] = said.member_epoch
        if said.assignment is not None and said.assignment.topic_partitions:
            told["topics"] = [topic.topic_id for topic in said.assignment.topic_partitions]
        return bool(told["topics"])

    wait_until(assigned, 20, "an assignment")
    assert told["topics"] == [broker.topic_id("a")]
    broker.may_all()
    assert broker.ask(leave_consumer(group), 1).error_code == 0


def test_a_topology_is_of_topics_that_may_be_described_and_created(broker: JudgedBroker) -> None:
    broker.ready("st")
    internal = "st-x-changelog"
    described = (rule(READ, GROUP, "st"), rule(DESCRIBE, TOPIC, "a"))
    broker.may(*described)
    assert broker.ask(join_streams(), 0).error_code == NO_TOPIC
    # What can be no topic is told before.
    assert broker.ask(join_streams(source="__consumer_offsets"), 0).error_code == (
        ErrorCode.STREAMS_INVALID_TOPOLOGY
    )
    broker.may(*described, rule(DESCRIBE, TOPIC, internal))
    answer = broker.ask(join_streams(), 0)
    assert answer.error_code == 0
    (status,) = [row for row in answer.status if row.status_code == 3]
    assert status.status_detail.endswith(f"; Unauthorized to CREATE on topics {internal}.")
    assert broker.services.image().topic(internal) is None
    request = streams.StreamsGroupDescribeRequest(group_ids=["st", "g"], include_authorized_operations=False)
    hidden, seen = broker.ask(request, 0).groups
    assert (hidden.error_code, seen.error_code) == (NO_GROUP, 0)
    broker.may(*described)
    _, refused = broker.ask(request, 0).groups
    assert (refused.error_code, refused.topology, refused.members) == (NO_TOPIC, None, [])
    broker.may(*described, rule(DESCRIBE, TOPIC, internal), rule(CREATE, TOPIC, internal))

    def made() -> bool:
        broker.ask(join_streams(), 0)
        return broker.services.image().topic(internal) is not None

    wait_until(made, 20, internal)
    broker.may_all()
    leave = streams.StreamsGroupHeartbeatRequest(
        group_id="st", member_id=MEMBER, member_epoch=-1, endpoint_information_epoch=0
    )
    assert broker.ask(leave, 0).error_code == 0


# ---- share groups -------------------------------------------------------------------------------------------


def test_share_groups(broker: JudgedBroker) -> None:
    broker.ready("s")
    broker.may(rule(READ, GROUP, "s"), rule(DESCRIBE, TOPIC, "a"))
    assert broker.ask(share_beat("a", "b"), 1).error_code == NO_TOPIC
    nobody = share.ShareGroupHeartbeatRequest(
        group_id="s", member_id="", member_epoch=0, subscribed_topic_names=["b"]
    )
    assert broker.ask(nobody, 1).error_code == ErrorCode.INVALID_REQUEST
    told = {"epoch": 0}

    def assigned() -> bool:
        said = broker.ask(share_beat(*(() if told["epoch"] else ("a",)), epoch=told["epoch"]), 1)
        assert said.error_code == 0
        told["epoch"] = said.member_epoch
        return said.assignment is not None and bool(said.assignment.topic_partitions)

    wait_until(assigned, 20, "an assignment")
    broker.may(rule(DESCRIBE, GROUP, "s"))
    assert broker.ask(share_beat("a"), 1).error_code == NO_GROUP
    request = share.ShareGroupDescribeRequest(group_ids=["s", "g"], include_authorized_operations=True)
    hidden, refused = broker.ask(request, 1).groups
    assert (hidden.group_id, hidden.error_code) == ("g", NO_GROUP)
    assert (refused.error_code, refused.members) == (NO_TOPIC, [])
    broker.may(rule(DESCRIBE, GROUP, "s"), rule(DESCRIBE, TOPIC, "a"))
    _, seen = broker.ask(request, 1).groups
    assert (seen.error_code, len(seen.members)) == (0, 1)
    assert seen.authorized_operations == operation_bits((DESCRIBE,))


def test_records_are_shared_of_topics_that_may_be_read(broker: JudgedBroker) -> None:
    a, b = broker.topic_id("a"), broker.topic_id("b")
    broker.may(rule(READ, GROUP, "s"), rule(READ, TOPIC, "a"), rule(DESCRIBE, TOPIC, "b"))
    # Opening a session answers nothing but errors.
    answer = broker.ask(share_fetch(a, b), 2)
    assert answer.error_code == 0
    assert {topic.topic_id: topic.partitions[0].error_code for topic in answer.responses}[b] == NO_TOPIC
    # A right that is taken away counts for a session, too, and for what it brings along.
    broker.may(rule(READ, GROUP, "s"))
    answer = broker.ask(share_fetch(epoch=1), 2)
    assert {row.partitions[0].error_code for row in answer.responses} == {NO_TOPIC}
    answer = broker.ask(share_acknowledge(a, b, epoch=2), 2)
    assert codes(answer) == [0, NO_TOPIC, NO_TOPIC]
    # By an id that nobody has: as a whole.
    answer = broker.ask(share_acknowledge(a, UNKNOWN_ID, epoch=3), 2)
    assert codes(answer) == [ErrorCode.UNKNOWN_SERVER_ERROR]
    broker.may(rule(DESCRIBE, GROUP, "s"))
    assert codes(broker.ask(share_fetch(epoch=4), 2)) == [NO_GROUP]
    assert codes(broker.ask(share_acknowledge(a, epoch=4), 2)) == [NO_GROUP]


def test_where_a_share_group_starts(broker: JudgedBroker) -> None:
    broker.ready("s")
    wait_until(lambda: broker.ask(share_beat("a"), 1).error_code == 0, 20, "the group to be there")
    assert broker.ask(share_beat(epoch=-1), 1).error_code == 0
    broker.may(rule(DESCRIBE, GROUP, "s"), rule(DESCRIBE, TOPIC, "a"))
    (group,) = broker.ask(describe_share_offsets("b", "a", "nowhere"), 1).groups
    assert [(t.topic_name, t.partitions[0].error_code) for t in group.topics] == [
        ("a", 0),
        ("b", NO_TOPIC),
        ("nowhere", NO_TOPIC),
    ]
    hidden = group.topics[1]
    assert hidden.topic_id == bytes(16)
    assert hidden.partitions[0].error_message == "Topic authorization failed."
    broker.may(rule(READ, GROUP, "s"), rule(READ, TOPIC, "gone"))
    altered = broker.ask(alter_share_offsets("a", "nowhere", "gone"), 0)
    assert [(t.topic_name, t.topic_id, t.partitions[0].error_code) for t in altered.responses] == [
        ("a", bytes(16), NO_TOPIC),
        ("nowhere", bytes(16), NO_TOPIC),
        ("gone", bytes(16), UNKNOWN),
    ]
    refused = broker.ask(delete_share_offsets("a"), 0)
    assert (refused.error_code, refused.error_message) == (NO_GROUP, "Group authorization failed.")
    broker.may(rule(DELETE, GROUP, "s"), rule(DESCRIBE, TOPIC, "a"))
    deleted = broker.ask(delete_share_offsets("a", "nowhere"), 0)
    assert [(t.topic_name, t.topic_id, t.error_code) for t in deleted.responses] == [
        ("a", bytes(16), NO_TOPIC),
        ("nowhere", bytes(16), NO_TOPIC),
    ]
    refused = broker.ask(alter_share_offsets("a"), 0)
    assert (refused.error_code, refused.error_message) == (NO_GROUP, "Group authorization failed.")


# ---- transactions -------------------------------------------------------------------------------------------


def test_producer_ids_are_for_those_who_may_write(broker: JudgedBroker) -> None:
    for rules, request, code in (
        ((rule(AclOperation.IDEMPOTENT_WRITE, CLUSTER, CLUSTER_NAME),), init(None), 0),
        ((rule(WRITE, TOPIC, "any"),), init(None), 0),
        ((rule(READ, TOPIC, "any"), rule(WRITE, TXN, "tx")), init(None), NO_CLUSTER),
        ((rule(WRITE, TXN, "tx"),), init("tx"), 0),
        ((rule(DESCRIBE, TXN, "tx"), rule(WRITE, TOPIC, "any")), init("tx"), NO_TXN),
    ):
        broker.may(*rules)
        answer = broker.ask(request, 5)
        assert answer.error_code == code
        assert (answer.producer_id >= 0) == (code == 0)
    # Whoever may not is told that first.
    broker.may()
    half = InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=1, producer_id=7)
    assert broker.ask(half, 4).error_code == NO_TXN


@pytest.mark.parametrize("denied", [WRITE, AclOperation.TWO_PHASE_COMMIT])
def test_two_phases_need_a_right_of_their_own(denied: AclOperation) -> None:
    """In a version that is not advertised yet."""
    asked: list[AclOperation] = []

    def require(operation: AclOperation, kind: ResourceType, name: str) -> None:
        asked.append(operation)
        if operation is denied:
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)

    ctx: Any = SimpleNamespace(version=6, node=SimpleNamespace(authorizer=object()), require=require)
    request = InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=1, enable_2pc=True)
    answer: Any = init_producer_id(ctx, request)
    assert answer.result().error_code == NO_TXN
    assert asked[-1] is denied


def test_a_transaction_is_its_ids(broker: JudgedBroker) -> None:
    producer = broker.ask(init("tx"), 4)

    def mine(request: Any) -> Any:
        for name in ("producer_id", "v3_and_below_producer_id"):
            if hasattr(request, name):
                setattr(request, name, producer.producer_id)
                setattr(request, name.replace("_id", "_epoch"), producer.producer_epoch)
        return request

    def added(*topics: str) -> dict[str, int]:
        answer = broker.ask(mine(add_partitions(*topics)), 3)
        rows = answer.results_by_topic_v3_and_below
        return {row.name: row.results_by_partition[0].partition_error_code for row in rows}

    not_tried = int(ErrorCode.OPERATION_NOT_ATTEMPTED)
    broker.may(rule(WRITE, TXN, "tx"), rule(WRITE, TOPIC, "a"), rule(WRITE, TOPIC, "gone"))
    assert added("a", "b", "nowhere", "gone") == {
        "a": not_tried,
        "b": NO_TOPIC,
        "nowhere": NO_TOPIC,
        "gone": UNKNOWN,
    }
    assert added("a") == {"a": 0}
    # The brokers' versions are not for clients.
    answer = broker.ask(add_partitions_of_many("a"), 5)
    assert (answer.error_code, answer.results_by_transaction) == (NO_CLUSTER, [])
    assert broker.ask(mine(add_offsets()), 4).error_code == NO_GROUP
    assert codes(broker.ask(mine(txn_commit("a", "b")), 3)) == [NO_GROUP, NO_GROUP]
    broker.may(rule(DESCRIBE, TXN, "tx"), rule(WRITE, TOPIC, "a"), rule(READ, GROUP, "g"))
    assert added("a", "gone") == {"a": NO_TXN, "gone": NO_TXN}
    assert broker.ask(mine(add_offsets()), 4).error_code == NO_TXN
    assert codes(broker.ask(mine(txn_commit("a")), 3)) == [NO_TXN]
    assert broker.ask(mine(end()), 4).error_code == NO_TXN
    broker.may(rule(WRITE, TXN, "tx"), rule(READ, GROUP, "g"), rule(DESCRIBE, TOPIC, "b"))
    assert broker.ask(mine(add_offsets()), 4).error_code == 0
    assert codes(broker.ask(mine(txn_commit("b", "nowhere")), 3)) == [NO_TOPIC, NO_TOPIC]
    # Who describes a transaction sees of its topics what it may.
    request = txn.DescribeTransactionsRequest(transactional_ids=["tx", "ty"])
    for topic, seen in (("a", ["a"]), ("b", [])):
        broker.may(rule(DESCRIBE, TXN, "tx"), rule(DESCRIBE, TOPIC, topic))
        shown, hidden = broker.ask(request, 0).transaction_states
        assert (shown.error_code, [row.topic for row in shown.topics]) == (0, seen)
        assert (hidden.error_code, hidden.producer_id, hidden.topics) == (NO_TXN, 0, [])
    assert [row.transactional_id for row in broker.ask(LIST_TXNS, 2).transaction_states] == ["tx"]
    broker.may(rule(DESCRIBE, TXN, "ty"))
    assert broker.ask(LIST_TXNS, 2).transaction_states == []
    broker.may(rule(WRITE, TXN, "tx"))
    assert broker.ask(mine(end()), 4).error_code == 0


def test_what_is_merely_not_seen_is_no_denial(broker: JudgedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has asked for these topics by their names: they belong to what was asked for."""
    broker.ready("s")
    wait_until(lambda: broker.ask(share_beat("a"), 1).error_code == 0, 20, "the group to be there")
    all_starts = share.DescribeShareGroupOffsetsRequest(
        groups=[share.DescribeShareGroupOffsetsRequestGroup(group_id="s", topics=None)]
    )
    wait_until(lambda: broker.ask(all_starts, 1).groups[0].topics, 20, "the group to have a start")
    assert broker.ask(share_beat(epoch=-1), 1).error_code == 0
    producer = broker.ask(init("tx"), 4)
    adding = add_partitions("a")
    adding.v3_and_below_producer_id = producer.producer_id
    adding.v3_and_below_producer_epoch = producer.producer_epoch
    assert set(codes(broker.ask(adding, 3))) == {0}
    told: list[str] = []
    monkeypatch.setattr(authorization, "_tell", lambda about, operation, kind, names: told.extend(names))
    broker.may(rule(DESCRIBE, GROUP, "g"), rule(DESCRIBE, GROUP, "s"), rule(DESCRIBE, TXN, "tx"))
    all_offsets = classic.OffsetFetchRequest(
        groups=[classic.OffsetFetchRequestGroup(group_id="g", topics=None)]
    )
    assert [group.topics for group in broker.ask(all_offsets, 9).groups] == [[]]
    assert [group.topics for group in broker.ask(all_starts, 1).groups] == [[]]
    transaction = txn.DescribeTransactionsRequest(transactional_ids=["tx"])
    assert [state.topics for state in broker.ask(transaction, 0).transaction_states] == [[]]
    assert not told
    broker.ask(fetch_offsets("b"), 9)
    assert told == ["b"]
    broker.may_all()
    ending = end()
    ending.producer_id, ending.producer_epoch = producer.producer_id, producer.producer_epoch
    assert broker.ask(ending, 4).error_code == 0


def add_offsets() -> txn.AddOffsetsToTxnRequest:
    return txn.AddOffsetsToTxnRequest(transactional_id="tx", producer_id=1, producer_epoch=0, group_id="g")


def end() -> txn.EndTxnRequest:
    return txn.EndTxnRequest(transactional_id="tx", producer_id=1, producer_epoch=0, committed=False)


def test_producers_are_told_of_topics_that_may_be_read(broker: JudgedBroker) -> None:
    broker.may(rule(READ, TOPIC, "a"), rule(DESCRIBE, TOPIC, "b"), rule(READ, TOPIC, "gone"))
    names = ("a", "b", "gone", "nowhere", "no/topic")
    request = DescribeProducersRequest(topics=[TopicRequest(name=n, partition_indexes=[0]) for n in names])
    answer = broker.ask(request, 0)
    assert [topic.partitions[0].error_code for topic in answer.topics] == [
        0,
        NO_TOPIC,
        UNKNOWN,
        NO_TOPIC,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
    ]
    assert answer.topics[1].partitions[0].error_message == "Topic authorization failed."
