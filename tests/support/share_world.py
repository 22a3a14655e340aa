"""A broker's share groups without a broker: real logs and handlers, a share coordinator in memory, time by hand."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.support.group_world import ManualScheduler
from tests.support.partition_world import PartitionWorld
from tests.unit.storage.log_support import EPOCH, NOW, batch, open_log

from ottla.config.broker import BrokerConfig
from ottla.metadata.image import ClusterImage, ConfigResource, ResourceType
from ottla.metadata.persistent import PMap
from ottla.metadata.registrations import PartitionRegistration, TopicImage
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import NodeId, TopicPartition, Uuid
from ottla.model.pending import Pending
from ottla.records.control import end_txn_marker
from ottla.replication.partition import Partition
from ottla.security.principal import ANONYMOUS
from ottla.server.dispatch import Encoded
from ottla.server.handlers.share.fetch import share_acknowledge, share_fetch
from ottla.server.quotas import QuotaManagers
from ottla.share.manager import SharePartitionManager
from ottla.share.state import PersistedState, PersisterStateBatch, RecordState, SharePartitionKey
from ottla.storage.log.log import Log
from ottla.storage.validator import AppendOrigin
from ottla.wire.codec import decode, encode
from ottla.wire.messages.groups.share import (
    AcknowledgementBatch,
    AcknowledgePartition,
    AcknowledgeTopic,
    FetchPartition,
    FetchTopic,
    ForgottenTopic,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareFetchRequest,
    ShareFetchResponse,
)

NODE = NodeId(1)
TOPIC = "orders"
TOPIC_ID = Uuid(bytes(range(16)))
UNKNOWN_ID = Uuid(bytes(range(16, 32)))


@dataclass
class Kept:
    """What is kept of one share partition: every record by itself."""

    state_epoch: int = 0
    leader_epoch: int = -1
    start_offset: int = -1
    complete_count: int = -1
    records: dict[int, tuple[int, int]] = field(default_factory=dict)  # offset: delivery count, state


class MemoryPersister:
    """A share coordinator in memory. What it is asked may wait, fail, or be done and yet said to have failed."""

    def __init__(self) -> None:
        self.kept: dict[SharePartitionKey, Kept] = {}
        self.waiting: list[Callable[[], None]] = []
        self.held = False
        self.refusal: KafkaError | None = None
        self.loses_answers = False
        self.writes: list[tuple[PersisterStateBatch, ...]] = []

    def hold(self) -> None:
        """From now on nothing is answered."""
        self.held = True

    def release(self) -> None:
        """Everything that was asked is answered, in its order."""
        self.held = False
        while self.waiting:
            self.waiting.pop(0)()

    def read_state(
        self, group_id: str, topic_id: Uuid, partition: int, leader_epoch: int
    ) -> Pending[PersistedState]:
        kept = self.kept.setdefault(SharePartitionKey(group_id, topic_id, partition), Kept())
        return self._answer(lambda: self._read(kept, leader_epoch))

    def _read(self, kept: Kept, leader_epoch: int) -> PersistedState:
        if leader_epoch < kept.leader_epoch:
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH, "a newer leader has read it")
        kept.leader_epoch = leader_epoch
        batches: list[PersisterStateBatch] = []
        for offset, (count, state) in sorted(kept.records.items()):
            if batches and batches[-1][1:] == (offset - 1, count, state):
                batches[-1] = batches[-1]._replace(last_offset=offset)
            else:
                batches.append(PersisterStateBatch(offset, offset, count, state))
        return PersistedState(kept.state_epoch, kept.start_offset, batches)

    def write_state(
        self,
        group_id: str,
        topic_id: Uuid,
        partition: int,
        *,
        state_epoch: int,
        leader_epoch: int,
        start_offset: int,
        delivery_complete_count: int,
        batches: Sequence[PersisterStateBatch],
    ) -> Pending[None]:
        kept = self.kept.setdefault(SharePartitionKey(group_id, topic_id, partition), Kept())
        self.writes.append(tuple(batches))

        def write() -> None:
            if leader_epoch < kept.leader_epoch:
                raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH, "a newer leader has read it")
            if state_epoch < kept.state_epoch:
                raise KafkaError(ErrorCode.FENCED_STATE_EPOCH, "it was reset")
            kept.start_offset = start_offset
            kept.complete_count = delivery_complete_count
            for entry in batches:
                for offset in range(entry.first_offset, entry.last_offset + 1):
                    new = (entry.delivery_count, entry.delivery_state)
                    kept.records[offset] = max(kept.records.get(offset, new), new)
            kept.records = {o: kept_as for o, kept_as in kept.records.items() if o >= start_offset}

        return self._answer(write)

    def _answer(self, work: Callable[[], Any]) -> Pending[Any]:
        answer: Pending[Any] = Pending()
        refusal, loses = self.refusal, self.loses_answers

        def finish() -> None:
            try:
                if refusal is not None and not loses:
                    raise refusal
                value = work()
                if refusal is not None:
                    raise refusal
            except KafkaError as error:
                answer.fail(error)
            else:
                answer.resolve(value)

        if self.held:
            self.waiting.append(finish)
        else:
            finish()
        return answer


class NoThreads(Executor):
    """Runs what it is given at once."""

    def submit(self, call: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(call(*args, **kwargs))
        return done


class Replicas:
    """The partitions of one topic, led here unless they are not."""

    def __init__(self, partitions: list[Partition]) -> None:
        self.partitions = partitions
        self.role_listeners: list[Callable[[Partition], None]] = []
        for partition in partitions:
            partition.on_role = self._role_changed

    def _role_changed(self, partition: Partition) -> None:
        for listener in self.role_listeners:
            listener(partition)

    def leader(self, topic: Any, index: int) -> Partition:
        partition = self.hosted(topic, index)
        if partition is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        if not partition.is_leader:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return partition

    def hosted(self, topic: Any, index: int) -> Partition | None:
        return self.partitions[index] if topic in (TOPIC, TOPIC_ID) and index < len(self.partitions) else None


class Connection:
    """A client's connection."""

    def __init__(self) -> None:
        self.principal = ANONYMOUS
        self._on_lost: dict[Any, Callable[[Connection], None]] = {}

    def when_lost(self, key: Any, call: Callable[[Connection], None]) -> None:
        self._on_lost[key] = call

    def lose(self) -> None:
        for call in self._on_lost.values():
            call(self)


class ShareWorld:
    """The share groups of one broker, with members that fetch and acknowledge."""

    def __init__(self, dir: Path, partitions: int = 1, **config: object) -> None:
        self.scheduler = ManualScheduler(NOW)
        self.persister = MemoryPersister()
        self.config = BrokerConfig.of({key.replace("_", "."): str(value) for key, value in config.items()})
        self.logs = [open_log(dir / f"{TOPIC}-{index}" / "log-0") for index in range(partitions)]
        self.partitions = [_led(log, index) for index, log in enumerate(self.logs)]
        self.replicas = Replicas(self.partitions)
        self.group_configs: dict[str, dict[str, str]] = {}
        self.features = {"share.version": 1}
        self.refresh_image()
        self.quotas = QuotaManagers()
        self.service = self._make_service()
        self.connection = Connection()

    def _make_service(self) -> SharePartitionManager:
        return SharePartitionManager(
            self.replicas,  # type: ignore[arg-type]
            self.persister,
            self.scheduler,
            NoThreads(),
            _search,
            lambda: self.config,
            lambda: self.image,
        )

    def refresh_image(self) -> None:
        topic = TopicImage(TOPIC, TOPIC_ID, {index: _registration() for index in range(len(self.logs))})
        configs: dict[ConfigResource, Mapping[str, str]] = {
            ConfigResource(ResourceType.GROUP, group): values for group, values in self.group_configs.items()
        }
        self.image = ClusterImage(
            features=self.features,
            topics_by_name=PMap.of({TOPIC: topic}),
            topics_by_id=PMap.of({TOPIC_ID: topic}),
            configs=PMap.of(configs),
        )

    def elect(self, leader: int, index: int = 0, *, epochs: int = 1) -> None:
        """Another leader epoch of a partition, or the same again."""
        partition = self.partitions[index]
        epoch = partition.leader_epoch + epochs
        partition.become(
            _registration()._replace(
                leader=leader, leader_epoch=epoch, partition_epoch=partition.partition_epoch + 1
            )
        )

    def configure(self, group: str = "g", **values: object) -> None:
        """Set what holds for a group."""
        own = self.group_configs.setdefault(group, {})
        own.update({f"share.{key.replace('_', '.')}": str(value) for key, value in values.items()})
        self.group_configs[group] = dict(own)
        self.refresh_image()

    def fail_over(self) -> None:
        """The broker starts anew: what it knew is gone, what was written down is there."""
        self.scheduler.settle()
        self.service.partitions.remove_all()
        for partition in self.partitions:
            partition.leader_epoch += 1
            partition.watchers.clear()
        self.service = self._make_service()

    # ---- the log ------------------------------------------------------------------------------------------

    def write(self, *values: bytes, partition: int = 0, **options: Any) -> int:
        """Append one batch; its base offset."""
        appended = self.partitions[partition].append(batch(*values, **options), -1, NOW)
        self.scheduler.settle()
        return appended.base_offset

    def end_transaction(self, producer_id: int, *, committed: bool, partition: int = 0) -> None:
        marker = end_txn_marker(
            committed=committed,
            coordinator_epoch=0,
            producer_id=producer_id,
            producer_epoch=0,
            timestamp_ms=NOW,
        )
        self.partitions[partition].append(marker, -1, NOW, AppendOrigin.COORDINATOR)
        self.scheduler.settle()

    # ---- members ------------------------------------------------------------------------------------------

    def fetch(
        self,
        epoch: int,
        *,
        member: str = "a",
        group: str | None = "g",
        partitions: Sequence[int] = (),
        topic_id: Uuid = TOPIC_ID,
        forget: Sequence[int] = (),
        acks: dict[int, Sequence[tuple[int, int, int | list[int]]]] | None = None,
        records: int = 500,
        batch_size: int = 500,
        mode: int = 0,
        wait_ms: int = 500,
        min_bytes: int = 1,
        max_bytes: int = 1 << 20,
        renew: bool = False,
        version: int = 2,
        connection: Connection | None = None,
    ) -> Asked:
        """Send a share fetch."""
        said = acks or {}
        named = [*partitions, *(index for index in said if index not in partitions)]
        request = ShareFetchRequest(
            group_id=group,
            member_id=member,
            share_session_epoch=epoch,
            max_wait_ms=wait_ms,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            max_records=records,
            batch_size=batch_size,
            share_acquire_mode=mode,
            is_renew_ack=renew,
            topics=[
                FetchTopic(
                    topic_id=topic_id,
                    partitions=[
                        FetchPartition(
                            partition_index=index, acknowledgement_batches=_batches(said.get(index, ()))
                        )
                        for index in named
                    ],
                )
            ]
            if named
            else [],
            forgotten_topics_data=[ForgottenTopic(topic_id=topic_id, partitions=list(forget))]
            if forget
            else [],
        )
        ctx = self._context(connection, version)
        return Asked(self, share_fetch(ctx, request), ShareFetchResponse, version)

    def acknowledge(
        self,
        epoch: int,
        acks: dict[int, Sequence[tuple[int, int, int | list[int]]]],
        *,
        member: str = "a",
        group: str | None = "g",
        topic_id: Uuid = TOPIC_ID,
        renew: bool = False,
        version: int = 2,
    ) -> Asked:
        """Send acknowledgements."""
        request = ShareAcknowledgeRequest(
            group_id=group,
            member_id=member,
            share_session_epoch=epoch,
            is_renew_ack=renew,
            topics=[
                AcknowledgeTopic(
                    topic_id=topic_id,
                    partitions=[
                        AcknowledgePartition(partition_index=index, acknowledgement_batches=_batches(said))
                        for index, said in acks.items()
                    ],
                )
            ],
        )
        return Asked(
            self, share_acknowledge(self._context(None, version), request), ShareAcknowledgeResponse, version
        )

    def _context(self, connection: Connection | None, version: int) -> Any:
        node = SimpleNamespace(
            share=self.service,
            image=lambda: self.image,
            replicas=self.replicas,
            authorizer=None,
            quotas=self.quotas,
        )
        return SimpleNamespace(
            node=node,
            connection=connection or self.connection,
            version=version,
            header=SimpleNamespace(client_id="member"),
            listener_name="PLAINTEXT",
        )

    def kept(self, group: str = "g", partition: int = 0) -> Kept:
        return self.persister.kept[SharePartitionKey(group, TOPIC_ID, partition)]

    def states(self, group: str = "g", partition: int = 0) -> dict[int, RecordState]:
        """What is kept of every record."""
        return {o: RecordState(state) for o, (_, state) in self.kept(group, partition).records.items()}


class Asked:
    """A request and its answer, once it is there."""

    def __init__(self, world: ShareWorld, answer: Any, kind: type[Any], version: int) -> None:
        self._world = world
        self._answer = answer
        self._kind = kind
        self._version = version

    @property
    def done(self) -> bool:
        return not isinstance(self._answer, Pending) or self._answer.done

    @property
    def response(self) -> Any:
        """The answer as a client decodes it."""
        self._world.scheduler.settle()
        assert self.done, "it is not answered yet"
        answer = self._answer.result() if isinstance(self._answer, Pending) else self._answer
        return decode(self._kind, encoded(answer, self._version), self._version)[0]

    @property
    def code(self) -> ErrorCode:
        return ErrorCode(self.response.error_code)

    @property
    def partitions(self) -> dict[int, Any]:
        """What is said of each partition of the topic."""
        return {p.partition_index: p for topic in self.response.responses for p in topic.partitions}

    def acquired(self, partition: int = 0) -> list[tuple[int, int, int]]:
        found = self.partitions.get(partition)
        if found is None:
            return []
        return [(run.first_offset, run.last_offset, run.delivery_count) for run in found.acquired_records]

    def codes(self) -> dict[int, ErrorCode]:
        return {index: ErrorCode(found.error_code) for index, found in self.partitions.items()}

    def ack_codes(self) -> dict[int, ErrorCode]:
        return {index: ErrorCode(found.acknowledge_error_code) for index, found in self.partitions.items()}


def encoded(answer: Any, version: int) -> bytes:
    """The body of an answer, as it goes onto the wire."""
    if not isinstance(answer, Encoded):
        return encode(answer, version)
    chunks: list[Any] = list(answer.chunks)
    return b"".join(chunk if isinstance(chunk, bytes) else chunk.read() for chunk in chunks)


def _batches(said: Sequence[tuple[int, int, int | list[int]]]) -> list[AcknowledgementBatch]:
    return [
        AcknowledgementBatch(
            first_offset=first,
            last_offset=last,
            acknowledge_types=kinds if isinstance(kinds, list) else [kinds],
        )
        for first, last, kinds in said
    ]


def _search(log: Log, timestamp: int) -> Pending[int | None]:
    found = log.offset_for_timestamp(timestamp)
    return Pending.of(None if found is None else found.offset)


def _registration() -> PartitionRegistration:
    return PartitionRegistration(
        (NODE,),
        (TOPIC_ID,),
        (NODE,),
        (),
        (),
        leader=NODE,
        leader_recovery_state=0,
        leader_epoch=EPOCH,
        partition_epoch=0,
    )


def _led(log: Log, index: int) -> Partition:
    partition = Partition(TopicPartition(TOPIC, index), TOPIC_ID, log, PartitionWorld(NODE))
    partition.become(_registration())
    return partition


@contextlib.contextmanager
def held(persister: MemoryPersister) -> Any:
    """While this lasts nothing is answered by the share coordinator."""
    persister.hold()
    try:
        yield
    finally:
        persister.release()
