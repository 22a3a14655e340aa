"""Coordinators for the FakeCluster: groups of both protocols, committed offsets, transactions.

One member is the client under test; others are phantoms that a test puts into the group. A join is answered at
once, by a generation with everybody in it; a test starts a rebalance with `rebalance()`. What the coordinators
are asked is in `cluster.seen`; faults are the cluster's.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.unit.client.fake_cluster import FakeCluster

from ottla.client.group.protocol import (
    Subscription,
    decode_assignment,
    encode_assignment,
    encode_subscription,
)
from ottla.model.errors import ErrorCode
from ottla.model.ids import TopicPartition
from ottla.wire.messages import producers, transactions
from ottla.wire.messages.groups import classic as groups
from ottla.wire.messages.groups import consumer as consumer_group

RANGES = {
    8: (2, 10),
    9: (1, 10),
    10: (0, 6),
    11: (0, 9),
    12: (0, 4),
    13: (0, 5),
    14: (0, 5),
    24: (0, 5),
    25: (0, 4),
    26: (0, 5),
    28: (0, 5),
    68: (0, 1),
}
NONE = 0


@dataclass
class FakeGroup:
    """A group with one real member."""

    generation: int = 0
    member_id: str = ""
    phantoms: dict[str, Subscription] = field(default_factory=dict)
    phantom_leads: bool = False
    # What a phantom leader gives the member; a real one decides itself.
    given: list[TopicPartition] = field(default_factory=list)
    rebalancing: bool = False
    skip_assignment: bool = False
    # What was last assigned to whom by the member, when it led.
    assigned: dict[str, list[TopicPartition]] = field(default_factory=dict)
    # The new protocol: what the member shall have, and what it said that it has.
    epoch: int = 0
    target: list[tuple[bytes, list[int]]] = field(default_factory=list)
    owned: list[tuple[bytes, list[int]]] = field(default_factory=list)
    told: object = None


class FakeGroups:
    """See the module."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self.node = min(cluster.addresses)
        self.group = FakeGroup()
        self.offsets: dict[TopicPartition, tuple[int, str]] = {}
        self.committed_by: list[tuple[int, str]] = []
        self.requires_member_id = True
        self.transaction_epoch = 0
        self.producer_id = 7000
        self.transaction_v2 = True
        self.added: set[TopicPartition] = set()
        self.ended: list[tuple[bool, int]] = []
        self._ids = 0
        cluster.ranges.update(RANGES)
        handlers: dict[type, Callable[[int, Any, int], Any]] = {
            groups.FindCoordinatorRequest: self._find,
            groups.JoinGroupRequest: self._join,
            groups.SyncGroupRequest: self._sync,
            groups.HeartbeatRequest: self._heartbeat,
            groups.LeaveGroupRequest: self._leave,
            groups.OffsetCommitRequest: self._commit,
            groups.OffsetFetchRequest: self._fetch,
            consumer_group.ConsumerGroupHeartbeatRequest: self._consumer_heartbeat,
            producers.InitProducerIdRequest: self._init_producer_id,
            transactions.AddPartitionsToTxnRequest: self._add_partitions,
            transactions.AddOffsetsToTxnRequest: self._add_offsets,
            transactions.TxnOffsetCommitRequest: self._txn_commit,
            transactions.EndTxnRequest: self._end_txn,
        }
        cluster.handlers.update(handlers)

    def rebalance(self) -> None:
        """Heartbeats say that the group forms anew."""
        self.group.rebalancing = True

    def forget_member(self) -> None:
        """The member's session is over."""
        self.group.member_id = ""

    def phantom(self, name: str, *topics: str, owned: tuple[TopicPartition, ...] = ()) -> None:
        self.group.phantoms[name] = Subscription(topics, owned, self.group.generation)

    # -- coordinators ---------------------------------------------------------------------------------

    def _find(self, node: int, request: Any, version: int) -> Any:
        host, port = self.cluster.addresses[self.node]
        if version < 4:
            return groups.FindCoordinatorResponse(node_id=self.node, host=host, port=port)
        return groups.FindCoordinatorResponse(
            coordinators=[
                groups.Coordinator(key=key, node_id=self.node, host=host, port=port)
                for key in request.coordinator_keys
            ]
        )

    # -- the classic protocol -------------------------------------------------------------------------

    def _join(self, node: int, request: Any, version: int) -> Any:
        group = self.group
        if node != self.node:
            return groups.JoinGroupResponse(error_code=ErrorCode.NOT_COORDINATOR)
        if (
            not request.member_id
            and not request.group_instance_id
            and version >= 4
            and self.requires_member_id
        ):
            self._ids += 1
            group.member_id = f"member-{self._ids}"
            return groups.JoinGroupResponse(
                error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id=group.member_id
            )
        if request.member_id and request.member_id != group.member_id:
            return groups.JoinGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID)
        if not request.member_id:
            self._ids += 1
            group.member_id = f"member-{self._ids}"
        group.generation += 1
        group.rebalancing = False
        protocol = request.protocols[0]
        members = [
            groups.JoinGroupResponseMember(member_id=group.member_id, metadata=protocol.metadata),
            *(
                groups.JoinGroupResponseMember(member_id=name, metadata=encode_subscription(subscription))
                for name, subscription in group.phantoms.items()
            ),
        ]
        leader = next(iter(group.phantoms)) if group.phantom_leads else group.member_id
        return groups.JoinGroupResponse(
            generation_id=group.generation,
            protocol_type="consumer",
            protocol_name=protocol.name,
            leader=leader,
            skip_assignment=group.skip_assignment,
            member_id=group.member_id,
            members=[] if group.phantom_leads else members,
        )

    def _sync(self, node: int, request: Any, version: int) -> Any:
        code = self._check(node, request.member_id, request.generation_id)
        if code:
            return groups.SyncGroupResponse(error_code=code)
        if self.group.rebalancing:
            return groups.SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
        if request.assignments:
            self.group.assigned = {
                entry.member_id: decode_assignment(entry.assignment) for entry in request.assignments
            }
            self.group.given = self.group.assigned.get(request.member_id, [])
        return groups.SyncGroupResponse(
            protocol_type="consumer",
            protocol_name=request.protocol_name,
            assignment=encode_assignment(self.group.given),
        )

    def _check(self, node: int, member_id: str, generation: int) -> int:
        if node != self.node:
            return ErrorCode.NOT_COORDINATOR
        if member_id != self.group.member_id:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return NONE if generation == self.group.generation else ErrorCode.ILLEGAL_GENERATION

    def _heartbeat(self, node: int, request: Any, version: int) -> Any:
        code = self._check(node, request.member_id, request.generation_id)
        if not code and self.group.rebalancing:
            code = ErrorCode.REBALANCE_IN_PROGRESS
        return groups.HeartbeatResponse(error_code=code)

    def _leave(self, node: int, request: Any, version: int) -> Any:
        self.group.member_id = ""
        members = [
            groups.MemberResponse(member_id=m.member_id, group_instance_id=m.group_instance_id)
            for m in request.members
        ]
        return groups.LeaveGroupResponse(members=members)

    # -- the new protocol -----------------------------------------------------------------------------

    def _consumer_heartbeat(self, node: int, request: Any, version: int) -> Any:
        group, kind = self.group, consumer_group.ConsumerGroupHeartbeatResponse
        if node != self.node:
            return kind(error_code=ErrorCode.NOT_COORDINATOR)
        if request.member_epoch < 0:
            group.member_id, group.epoch, group.told = "", 0, None
            return kind(member_id=request.member_id, member_epoch=request.member_epoch)
        if request.member_epoch == 0:
            group.member_id, group.epoch, group.told = request.member_id, group.epoch + 1, None
        elif request.member_id != group.member_id:
            return kind(error_code=ErrorCode.UNKNOWN_MEMBER_ID)
        elif request.member_epoch > group.epoch:
            return kind(error_code=ErrorCode.FENCED_MEMBER_EPOCH)
        if request.rebalance_timeout_ms >= 0 and request.topic_partitions is not None:
            group.told = None  # who says everything is told everything
        if request.topic_partitions is not None:
            group.owned = [(entry.topic_id, list(entry.partitions)) for entry in request.topic_partitions]
        assignment = None
        if group.told != group.target:
            group.told = list(group.target)
            assignment = consumer_group.ConsumerGroupHeartbeatResponseAssignment(
                topic_partitions=[
                    consumer_group.ConsumerGroupHeartbeatResponseTopicPartitions(topic_id=t, partitions=p)
                    for t, p in group.target
                ]
            )
        return kind(
            member_id=group.member_id,
            member_epoch=group.epoch,
            heartbeat_interval_ms=1000,
            assignment=assignment,
        )

    # -- offsets --------------------------------------------------------------------------------------

    def _name(self, topic: Any) -> str:
        if topic.name:
            return str(topic.name)
        return next(name for name, known in self.cluster.topics.items() if known.topic_id == topic.topic_id)

    def _commit_error(self, node: int, request: Any) -> int:
        if node != self.node:
            return ErrorCode.NOT_COORDINATOR
        generation = request.generation_id_or_member_epoch
        if generation < 0:
            return NONE
        if request.member_id != self.group.member_id:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if generation in (self.group.generation, self.group.epoch):
            return NONE
        return ErrorCode.STALE_MEMBER_EPOCH if self.group.epoch else ErrorCode.ILLEGAL_GENERATION

    def _commit(self, node: int, request: Any, version: int) -> Any:
        code = self._commit_error(node, request)
        for topic in request.topics:
            for p in topic.partitions:
                if not code:
                    tp = TopicPartition(self._name(topic), p.partition_index)
                    self.offsets[tp] = (p.committed_offset, p.committed_metadata)
        self.committed_by.append((request.generation_id_or_member_epoch, request.member_id))
        return groups.OffsetCommitResponse(
            topics=[
                groups.OffsetCommitResponseTopic(
                    name=topic.name,
                    topic_id=topic.topic_id,
                    partitions=[
                        groups.OffsetCommitResponsePartition(
                            partition_index=p.partition_index, error_code=code
                        )
                        for p in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    def _fetch(self, node: int, request: Any, version: int) -> Any:
        if version < 8:
            code = NONE if node == self.node else ErrorCode.NOT_COORDINATOR
            topics = [
                groups.OffsetFetchResponseTopic(
                    name=t.name,
                    partitions=[
                        groups.OffsetFetchResponsePartition(
                            partition_index=p, committed_offset=self._at(t.name, p)[0], metadata=""
                        )
                        for p in t.partition_indexes
                    ],
                )
                for t in request.topics
            ]
            return groups.OffsetFetchResponse(topics=topics if not code else [], error_code=code)
        group = request.groups[0]
        if node != self.node:
            answer = groups.OffsetFetchResponseGroup(
                group_id=group.group_id, error_code=ErrorCode.NOT_COORDINATOR
            )
            return groups.OffsetFetchResponse(groups=[answer])
        answer = groups.OffsetFetchResponseGroup(
            group_id=group.group_id,
            topics=[
                groups.OffsetFetchResponseTopics(
                    name=t.name,
                    topic_id=t.topic_id,
                    partitions=[
                        groups.OffsetFetchResponsePartitions(
                            partition_index=p,
                            committed_offset=self._at(self._name(t), p)[0],
                            metadata=self._at(self._name(t), p)[1],
                        )
                        for p in t.partition_indexes
                    ],
                )
                for t in group.topics
            ],
        )
        return groups.OffsetFetchResponse(groups=[answer])

    def _at(self, topic: str, partition: int) -> tuple[int, str]:
        return self.offsets.get(TopicPartition(topic, partition), (-1, ""))

    # -- transactions ---------------------------------------------------------------------------------

    def _init_producer_id(self, node: int, request: Any, version: int) -> Any:
        if request.transactional_id is None:
            return self.cluster._init_producer_id(node, request, version)
        if node != self.node:
            return producers.InitProducerIdResponse(error_code=ErrorCode.NOT_COORDINATOR)
        named = request.producer_id >= 0
        if named and (request.producer_id, request.producer_epoch) != (
            self.producer_id,
            self.transaction_epoch,
        ):
            return producers.InitProducerIdResponse(error_code=ErrorCode.PRODUCER_FENCED)
        self.transaction_epoch += 1
        self.added.clear()
        return producers.InitProducerIdResponse(
            producer_id=self.producer_id, producer_epoch=self.transaction_epoch
        )

    def _fenced(self, node: int, producer_id: int, epoch: int) -> int:
        if node != self.node:
            return ErrorCode.NOT_COORDINATOR
        is_ours = (producer_id, epoch) == (self.producer_id, self.transaction_epoch)
        return NONE if is_ours else ErrorCode.INVALID_PRODUCER_EPOCH

    def _add_partitions(self, node: int, request: Any, version: int) -> Any:
        assert version <= 3, "from version 4 on it is for brokers"
        code = self._fenced(node, request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
        results = []
        for topic in request.v3_and_below_topics:
            if not code:
                self.added |= {TopicPartition(topic.name, p) for p in topic.partitions}
            results.append(
                transactions.AddPartitionsToTxnTopicResult(
                    name=topic.name,
                    results_by_partition=[
                        transactions.AddPartitionsToTxnPartitionResult(
                            partition_index=p, partition_error_code=code
                        )
                        for p in topic.partitions
                    ],
                )
            )
        return transactions.AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results)

    def _add_offsets(self, node: int, request: Any, version: int) -> Any:
        code = self._fenced(node, request.producer_id, request.producer_epoch)
        return transactions.AddOffsetsToTxnResponse(error_code=code)

    def _txn_commit(self, node: int, request: Any, version: int) -> Any:
        code = self._fenced(node, request.producer_id, request.producer_epoch)
        for topic in request.topics:
            for p in topic.partitions:
                if not code:
                    tp = TopicPartition(topic.name, p.partition_index)
                    self.offsets[tp] = (p.committed_offset, p.committed_metadata)
        return transactions.TxnOffsetCommitResponse(
            topics=[
                transactions.TxnOffsetCommitResponseTopic(
                    name=topic.name,
                    partitions=[
                        transactions.TxnOffsetCommitResponsePartition(
                            partition_index=p.partition_index, error_code=code
                        )
                        for p in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    def _end_txn(self, node: int, request: Any, version: int) -> Any:
        last = self.ended[-1] if self.ended else None
        if version >= 5 and last == (request.committed, request.producer_epoch):
            code = NONE  # the same end, asked for again because its answer was lost (KIP-890)
        else:
            code = self._fenced(node, request.producer_id, request.producer_epoch)
            if not code:
                self.ended.append((request.committed, request.producer_epoch))
                self.added.clear()
                self.transaction_epoch += version >= 5
        if code:
            return transactions.EndTxnResponse(error_code=code)
        if version < 5:
            return transactions.EndTxnResponse()
        return transactions.EndTxnResponse(
            producer_id=self.producer_id, producer_epoch=self.transaction_epoch
        )
