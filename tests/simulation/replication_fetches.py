"""How a simulated broker serves fetches: the real sessions and the real DelayedFetch, without the bytes of the wire.

A follower's requests are those of the real ReplicaFetcher; a consumer's are made here, without a session.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ottla.model.errors import ErrorCode, KafkaError
from ottla.replication.partition import Partition, PartitionRead
from ottla.replication.quotas import ReplicationQuotas
from ottla.replication.replica_manager import ReplicaManager
from ottla.security.principal import ANONYMOUS
from ottla.server.fetch_sessions import FetchSessionCache
from ottla.server.handlers.fetch import DelayedFetch
from ottla.server.network.output import Deferred
from ottla.server.quotas import QuotaManagers
from ottla.wire.fast.fetch import FetchFast, Wanted
from ottla.wire.messages import fetch as m
from ottla.wire.messages import list_offsets as offsets

if TYPE_CHECKING:
    from tests.simulation.replication_stage import Process

VERSION = 17
LATEST = -1
MAX_BYTES = 10_000


class Replicas:
    """What DelayedFetch needs of the ReplicaManager: its reading, over the partitions of a process."""

    # A broker that is not registered yet is no follower.
    followers_tell_their_epochs = True

    def __init__(self, process: Process) -> None:
        self._process = process
        self.quotas = ReplicationQuotas(process.broker.id)

    def hosted(self, topic: Any, index: int) -> Partition | None:
        return self._process.by_id.get((topic, index))

    read_from_log = ReplicaManager.read_from_log
    _readable = ReplicaManager._readable

    def _explain(self, topic: Any, index: int) -> Partition:
        partition = self.hosted(topic, index)
        if partition is not None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
        known = self._process.image.topics_by_id.get(topic)
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID if known is None else ErrorCode.NOT_LEADER_OR_FOLLOWER)


class SimulatedFetch(DelayedFetch):
    """A fetch whose answer is an object."""

    def _refuse_overtaken(self) -> Any:
        return refusal(ErrorCode.INVALID_FETCH_SESSION_EPOCH)

    def _encode_changed(self, reads: list[PartitionRead]) -> Any:
        topics: dict[Any, list[m.PartitionData]] = {}
        for read in reads:
            topics.setdefault(read.wanted.topic, []).append(_answer(read))
        return m.FetchResponse(
            session_id=self._context.session_id,
            responses=[m.FetchableTopicResponse(topic_id=t, partitions=found) for t, found in topics.items()],
        )


def _answer(read: PartitionRead) -> m.PartitionData:
    diverging = m.EpochEndOffset()
    if read.diverging is not None:
        diverging = m.EpochEndOffset(epoch=read.diverging.epoch, end_offset=read.diverging.end_offset)
    return m.PartitionData(
        partition_index=read.wanted.index,
        error_code=read.error_code,
        high_watermark=read.high_watermark,
        last_stable_offset=read.last_stable_offset,
        log_start_offset=read.log_start_offset,
        diverging_epoch=diverging,
        aborted_transactions=None,
        records=b"" if read.slice is None else read.slice.read(),
    )


def refusal(code: ErrorCode) -> m.FetchResponse:
    return m.FetchResponse(error_code=code, responses=[])


class FetchServer:
    """The fetches that a process serves."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._replicas = Replicas(process)
        self._services: Any = SimpleNamespace(
            config=lambda: {"fetch.max.bytes": MAX_BYTES},
            clock=process,
            fetch_sessions=FetchSessionCache(100, rng=Random(process.broker.id)),
            replicas=self._replicas,
            replica_selection=SimpleNamespace(is_on=False, is_for=lambda _: False),
            loop=process.loop,
            authorizer=None,
            quotas=QuotaManagers(),
        )
        # By which connection a fetch comes; when one is lost, another takes its place.
        self._connections: dict[Any, Any] = {}

    def serve(
        self, request: m.FetchRequest | offsets.ListOffsetsRequest, reply: Callable[[Any], None]
    ) -> None:
        """A follower's request."""
        if isinstance(request, offsets.ListOffsetsRequest):
            reply(self._list_offsets(request))
            return
        who = request.replica_state
        wanted = [
            Wanted(
                topic.topic_id,
                asked.partition,
                asked.current_leader_epoch,
                asked.fetch_offset,
                asked.last_fetched_epoch,
                asked.log_start_offset,
                asked.partition_max_bytes,
            )
            for topic in request.topics
            for asked in topic.partitions
        ]
        forgotten = [(topic.topic_id, topic.partitions) for topic in request.forgotten_topics_data]
        self._fetch(
            FetchFast(
                who.replica_id,
                who.replica_epoch,
                request.max_wait_ms,
                request.min_bytes,
                request.max_bytes,
                0,
                request.session_id,
                request.session_epoch,
                wanted,
                forgotten,  # type: ignore[arg-type]
                "",
                None,
            ),
            reply,
        )

    def serve_consumer(self, wanted: Wanted, reply: Callable[[Any], None]) -> None:
        self._fetch(FetchFast(-1, -1, 100, 1, MAX_BYTES, 0, 0, -1, [wanted], [], "", None), reply)

    def _fetch(self, request: FetchFast, reply: Callable[[Any], None]) -> None:
        connection: Any = SimpleNamespace(name="a connection", fail=self._failed, principal=ANONYMOUS)
        call = SimulatedFetch(self._services, request, VERSION, 0, connection)
        try:
            call.make_context()
        except KafkaError as error:
            reply(refusal(error.code))
            return
        answer: Any = call.answer()
        if isinstance(answer, Deferred):
            answer.then(reply)
        else:
            reply(answer)

    def _failed(self, *arguments: object) -> None:
        raise AssertionError(f"a fetch fails: {arguments}")

    def _list_offsets(self, request: offsets.ListOffsetsRequest) -> offsets.ListOffsetsResponse:
        return offsets.ListOffsetsResponse(
            topics=[
                offsets.ListOffsetsTopicResponse(
                    name=topic.name, partitions=[self._find(topic.name, asked) for asked in topic.partitions]
                )
                for topic in request.topics
            ]
        )

    def _find(self, name: str, asked: offsets.ListOffsetsPartition) -> offsets.ListOffsetsPartitionResponse:
        answer = offsets.ListOffsetsPartitionResponse(partition_index=asked.partition_index)
        partition = self._process.partitions.get((name, asked.partition_index))  # type: ignore[call-overload]
        if partition is None:
            answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return answer
        log = partition.log
        answer.error_code = partition.check_leader(asked.current_leader_epoch)
        if not answer.error_code:
            answer.offset = log.log_end_offset if asked.timestamp == LATEST else log.log_start_offset
            answer.leader_epoch = partition.leader_epoch
        return answer
