"""A shard of the group coordinator without a broker: a log in memory, and time that passes when a test says so.

world = GroupWorld()
joined = world.join("g", "m")        # a Pending, as a handler gets it
world.pass_ms(3_000)                 # timers go off in their order
world.log.refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER); world.log.hold()
world = world.reloaded()             # the next coordinator, from what was written
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tests.support.batches import set_offset_and_epoch

from ottla.config.definitions import BROKER_KEYS
from ottla.coordinator.group.classic.group import ClassicGroup
from ottla.coordinator.group.context import Caller, GroupContext
from ottla.coordinator.group.serde import GROUP_RECORDS
from ottla.coordinator.group.shard import GroupCoordinatorShard
from ottla.coordinator.loader import replay_batches
from ottla.coordinator.runtime import CoordinatorContext
from ottla.coordinator.shard import CoordinatorRecord
from ottla.coordinator.timeline import Timeline
from ottla.metadata.image import ClusterImage
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition, Uuid
from ottla.model.pending import Pending
from ottla.records.batch import iter_batches
from ottla.records.record import read_records
from ottla.wire.messages.groups.classic import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)

WRITE_TIMEOUT_MS = 5_000
SETTINGS: dict[str, Any] = {name: key.default for name, key in BROKER_KEYS.items()}
PROTOCOLS: tuple[tuple[str, bytes], ...] = (("range", b"\x00\x01" + bytes(8)),)
Operation = Callable[[GroupCoordinatorShard, int], Any]


class ManualScheduler:
    """Time that passes by hand."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = float(now_ms)
        self._order = itertools.count()
        self._soon: list[Callable[[], None]] = []
        self._later: list[tuple[float, int, ManualHandle]] = []

    def now_ms(self) -> int:
        return int(self._now_ms)

    def monotonic_ms(self) -> float:
        return self._now_ms

    def call_soon(self, call: Callable[[], None]) -> object:
        self._soon.append(call)
        return None

    def call_later(self, delay_ms: float, call: Callable[[], None]) -> ManualHandle:
        handle = ManualHandle(call)
        heapq.heappush(self._later, (self._now_ms + delay_ms, next(self._order), handle))
        return handle

    def settle(self) -> None:
        """Everything that is to happen soon."""
        while self._soon:
            calls, self._soon = self._soon, []
            for call in calls:
                call()

    def pass_ms(self, duration_ms: float) -> None:
        """Everything that is to happen meanwhile, in its order."""
        end_ms = self._now_ms + duration_ms
        self.settle()
        while self._later and self._later[0][0] <= end_ms:
            due_ms, _, handle = heapq.heappop(self._later)
            self._now_ms = max(self._now_ms, due_ms)
            if not handle.cancelled:
                handle.call()
            self.settle()
        self._now_ms = end_ms

    def jump_ms(self, duration_ms: float) -> None:
        """The clock is put forward, or the process stood still: what was to happen meanwhile happens later."""
        self._now_ms += duration_ms


class ManualHandle:
    """Something that is to happen."""

    def __init__(self, call: Callable[[], None]) -> None:
        self.call = call
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class MemoryLog:
    """A partition that commits at once, unless it is held, and takes every batch, unless it is to refuse."""

    max_batch_bytes = 1024 * 1024

    def __init__(self, data: bytes = b"", end: int = 0) -> None:
        self.data = bytearray(data)
        self.log_end_offset = end
        self.high_watermark = end
        self._refusal: ErrorCode | None = None
        self._held = False
        self._waiting: list[tuple[int, Callable[[ErrorCode], None]]] = []

    def append(self, batch: bytearray, now_ms: int, transaction_version: int = 0) -> int:
        if self._refusal is not None:
            raise KafkaError(self._refusal, "refused")
        set_offset_and_epoch(batch, 0, self.log_end_offset, 0)
        self.data += batch
        self.log_end_offset = next(iter_batches(batch)).next_offset
        return self.log_end_offset

    def when_committed(self, offset: int, call: Callable[[ErrorCode], None]) -> None:
        self._waiting.append((offset, call))
        if not self._held:
            self.release()

    def refuse(self, code: ErrorCode | None) -> None:
        """What is appended from now on is not."""
        self._refusal = code

    def hold(self) -> None:
        """What is appended from now on is not committed."""
        self._held = True

    def release(self) -> None:
        """Everything is committed."""
        self._held = False
        self.high_watermark = self.log_end_offset
        waiting, self._waiting = self._waiting, []
        for _, call in waiting:
            call(ErrorCode.NONE)


class GroupWorld:
    """See the module."""

    def __init__(
        self,
        settings: Mapping[str, Any] | None = None,
        *,
        log: MemoryLog | None = None,
        scheduler: ManualScheduler | None = None,
        ids: Iterator[int] | None = None,
    ) -> None:
        self.settings = {**SETTINGS, **(settings or {})}
        self.scheduler = scheduler or ManualScheduler()
        self.log = log or MemoryLog()
        self._ids = ids or itertools.count(1)
        timeline = Timeline()
        timeline.recording = False
        context = GroupContext(timeline, lambda: self.settings, lambda _: {}, self._new_uuid)
        self.machine = GroupCoordinatorShard(context)
        place = TopicPartition("__consumer_offsets", 0)
        self.shard = CoordinatorContext(
            place, 0, self.machine, timeline, GROUP_RECORDS, self.log, self.scheduler
        )
        for _ in replay_batches(self.shard, bytes(self.log.data)):
            pass
        self.shard.activate(lambda: self.machine.on_loaded(ClusterImage(), self.scheduler.now_ms()))
        self.pass_ms = self.scheduler.pass_ms

    def _new_uuid(self) -> Uuid:
        return Uuid(next(self._ids).to_bytes(16, "big"))

    def reloaded(self, settings: Mapping[str, Any] | None = None) -> GroupWorld:
        """The next coordinator, of what this one has written."""
        log = MemoryLog(bytes(self.log.data), self.log.log_end_offset)
        scheduler = ManualScheduler(self.scheduler.now_ms())
        return GroupWorld(settings or self.settings, log=log, scheduler=scheduler, ids=self._ids)

    # ---- asking -------------------------------------------------------------------------------------------

    def decide(self, operation: Operation) -> Pending[Any]:
        """As a handler does."""
        pending: Pending[Any] = self.shard.write(operation, WRITE_TIMEOUT_MS)
        self.scheduler.settle()
        return pending

    def group(self, group_id: str = "g") -> ClassicGroup:
        group = self.machine.context.groups.get(group_id)
        assert isinstance(group, ClassicGroup)
        return group

    def records(self) -> list[CoordinatorRecord]:
        """All that was written, the oldest first."""
        found = []
        for batch in iter_batches(bytes(self.log.data)):
            for record in read_records(batch):
                decoded = GROUP_RECORDS.decode(record.key, record.value)
                assert decoded is not None
                found.append(decoded)
        return found

    def join(
        self,
        group_id: str = "g",
        member_id: str = "",
        *,
        instance: str | None = None,
        protocols: tuple[tuple[str, bytes], ...] = PROTOCOLS,
        protocol_type: str = "consumer",
        session_ms: int = 10_000,
        rebalance_ms: int = 60_000,
        version: int = 9,
        client_id: str = "client",
    ) -> Pending[JoinGroupResponse]:
        request = JoinGroupRequest(
            group_id=group_id,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocols=[JoinGroupRequestProtocol(name=name, metadata=data) for name, data in protocols],
        )
        caller = Caller(client_id, "/127.0.0.1", version)
        return self.decide(lambda machine, now_ms: machine.classic.join(caller, request, now_ms))

    def sync(
        self,
        member_id: str,
        generation: int,
        assignments: Mapping[str, bytes] | None = None,
        *,
        group_id: str = "g",
        instance: str | None = None,
        protocol_type: str | None = "consumer",
        protocol_name: str | None = "range",
    ) -> Pending[SyncGroupResponse]:
        request = SyncGroupRequest(
            group_id=group_id,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocol_name=protocol_name,
            assignments=[
                SyncGroupRequestAssignment(member_id=member, assignment=assignment)
                for member, assignment in (assignments or {}).items()
            ],
        )
        caller = Caller("client", "/127.0.0.1", 5)
        return self.decide(lambda machine, now_ms: machine.classic.sync(caller, request, now_ms))

    def heartbeat(
        self, member_id: str, generation: int, *, group_id: str = "g", instance: str | None = None
    ) -> Pending[HeartbeatResponse]:
        request = HeartbeatRequest(
            group_id=group_id, generation_id=generation, member_id=member_id, group_instance_id=instance
        )
        caller = Caller("client", "/127.0.0.1", 4)
        return self.decide(lambda machine, now_ms: machine.classic.heartbeat(caller, request, now_ms))

    def leave(
        self, *members: str | tuple[str, str | None], group_id: str = "g"
    ) -> Pending[LeaveGroupResponse]:
        pairs = [(member, None) if isinstance(member, str) else member for member in members]
        request = LeaveGroupRequest(
            group_id=group_id,
            members=[
                MemberIdentity(member_id=member, group_instance_id=instance) for member, instance in pairs
            ],
        )
        caller = Caller("client", "/127.0.0.1", 5)
        return self.decide(lambda machine, now_ms: machine.classic.leave(caller, request, now_ms))

    # ---- what most tests begin with -----------------------------------------------------------------------

    def new_member(self, group_id: str = "g", **options: Any) -> tuple[str, Pending[JoinGroupResponse]]:
        """A dynamic member that has come with the id it was given; its join may be parked."""
        member_id = self.join(group_id, **options).result().member_id
        return member_id, self.join(group_id, member_id, **options)

    def stable(self, count: int = 1, *, group_id: str = "g", **options: Any) -> tuple[list[str], int]:
        """A stable group of so many dynamic members, the leader first; and its generation."""
        joins = [self.new_member(group_id, **options) for _ in range(count)]
        self.pass_ms(self.settings["group.initial.rebalance.delay.ms"] * 3)
        responses = [pending.result() for _, pending in joins]
        leader, generation = responses[0].leader, responses[0].generation_id
        members = sorted((member for member, _ in joins), key=lambda member: member != leader)
        name = responses[0].protocol_name
        kind = responses[0].protocol_type
        synced = [
            self.sync(
                member,
                generation,
                {m: m.encode() for m in members} if member == leader else None,
                group_id=group_id,
                protocol_name=name,
                protocol_type=kind,
            )
            for member in members
        ]
        assert all(pending.result().error_code == 0 for pending in synced)
        return members, generation


def error_of(pending: Pending[Any]) -> ErrorCode:
    """What an answered request was refused with."""
    if pending.error is not None:
        return pending.error.code
    return ErrorCode(pending.result().error_code)
