"""Consumers on the stage: of the classic protocol, eager and cooperative, and of the new one (KIP-848).

They do what clients do: they give partitions up before they say so, begin again when they are fenced, and say
everything again when an answer was lost. What is asked for the group goes over one connection.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from tests.simulation.group_stage import GROUP, TOPICS, Place, code_of
from tests.simulation.stage import Line, Violation
from tests.support.consumer_world import topic_id

from ottla.coordinator.group.consumer.manager import validate
from ottla.coordinator.group.consumer.migration import parse_assignment, parse_subscription
from ottla.coordinator.group.context import Caller
from ottla.model.errors import ErrorCode, KafkaError
from ottla.wire.codec import encode
from ottla.wire.messages.groups.classic import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from ottla.wire.messages.groups.consumer import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatRequestTopicPartitions,
)
from ottla.wire.messages.groups.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
)

if TYPE_CHECKING:
    from tests.simulation.test_group_simulation import Simulation

SESSION_MS, REBALANCE_MS, BEAT_MS = 9_000, 12_000, 3_000
PATIENCE_MS = 4_000
JOIN_PATIENCE_MS = REBALANCE_MS + 5_000
RETRY_MS = 400
NAMES = {topic_id(name): name for name in TOPICS}
Owned = frozenset[Place]
NOTHING: Owned = frozenset()


class Member:
    """What both kinds have."""

    def __init__(self, sim: Simulation, member_id: str, instance: str | None) -> None:
        self.sim = sim
        self.member_id = member_id
        self.instance = instance
        self.epoch = -1
        self.owns: Owned = NOTHING
        # Has it lost its place without having heard of it? Until it does, what it believes to own is nobody's fault.
        self.lapsed = False
        self._lapsed_ms = 0.0
        self.gone = False
        self.line = Line()
        self._turn = 0  # what an earlier turn asked for is not heard any more

    def lose(self) -> None:
        """It was fenced: nothing is its own."""
        self.owns = NOTHING

    def give(self, owns: Owned) -> None:
        """What it owns from now on; it may have heard of it long after that was true."""
        self.owns = owns
        self.lapsed &= self._lapsed_ms >= self.sim.network.answered_ms

    def lapse(self) -> None:
        self.lapsed = True
        self._lapsed_ms = self.sim.time.monotonic_ms()

    def crash(self) -> None:
        self.gone = True
        self.lose()

    def again(self, delay_ms: float, call: Callable[[], None]) -> None:
        self._turn += 1
        turn = self._turn

        def go_on() -> None:
            if not self.gone and turn == self._turn:
                call()

        self.sim.time.call_later(delay_ms, go_on)

    def ask(
        self,
        operation: Callable[[Any, int], Any],
        heard: Callable[[Any, ErrorCode], None],
        timeout_ms: float = PATIENCE_MS,
        doubles: bool = True,
    ) -> None:
        def hear(value: Any, error: KafkaError | None) -> None:
            if not self.gone:
                heard(value, code_of(value, error))

        self.sim.network.ask(
            lambda: self.sim.coordinators.write(operation),
            hear,
            timeout_ms=timeout_ms,
            line=self.line,
            doubles=doubles,
        )

    def grow(self, epoch: int) -> None:
        """An epoch or generation that it is told."""
        if epoch < self.epoch:
            raise Violation(f"{self.member_id} was in epoch {self.epoch} and is told {epoch}")
        self.epoch = epoch

    @property
    def settled(self) -> bool:
        raise AssertionError


class NewMember(Member):
    """Of the new protocol."""

    def __init__(self, sim: Simulation, member_id: str, instance: str | None) -> None:
        super().__init__(sim, member_id, instance)
        self.epoch = 0
        self._unsure = True
        self._said: Owned | None = None
        self.beat()

    @property
    def settled(self) -> bool:
        return self.epoch > 0 and not self._unsure

    def beat(self) -> None:
        full = self._unsure or self.epoch == 0
        # As a client does, it says what it has when that has changed.
        owned = self.owns if full or self.owns != self._said else None
        self._said = self.owns
        request = ConsumerGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=self.member_id,
            member_epoch=self.epoch,
            instance_id=self.instance,
            rebalance_timeout_ms=REBALANCE_MS if full else -1,
            subscribed_topic_names=sorted(TOPICS) if full else None,
            topic_partitions=None if owned is None else [
                ConsumerGroupHeartbeatRequestTopicPartitions(topic_id=topic_id(name), partitions=numbers)
                for name, numbers in by_topic(owned).items()
            ],
        )  # fmt: skip
        # What it says again it says in full.
        self.ask(lambda machine, now_ms: _beat(machine, request, now_ms), self._heard, doubles=full)

    def _heard(self, answer: Any, code: ErrorCode) -> None:
        if code is ErrorCode.NONE:
            self.grow(answer.member_epoch)
            self._unsure = False
            if answer.assignment is not None:
                rows = answer.assignment.topic_partitions
                self.give(frozenset((NAMES[row.topic_id], p) for row in rows for p in row.partitions))
                self.again(50, self.beat)
                return
            self.again(BEAT_MS, self.beat)
            return
        self._unsure = True
        if code in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND):
            self.lose()
            self.epoch = 0
        elif code is ErrorCode.FENCED_INSTANCE_ID:
            self.crash()
            return
        self.again(RETRY_MS, self.beat)

    def leave(self) -> None:
        epoch = -1 if self.instance is None else -2
        request = ConsumerGroupHeartbeatRequest(
            group_id=GROUP, member_id=self.member_id, member_epoch=epoch, instance_id=self.instance
        )
        self.ask(lambda machine, now_ms: _beat(machine, request, now_ms), lambda *_: None)
        self.crash()


def _beat(machine: Any, request: ConsumerGroupHeartbeatRequest, now_ms: int) -> Any:
    validate(request, 1, {"uniform": None, "range": None})
    return machine.consumer.heartbeat(Caller("client", "/127.0.0.1", 1), request, now_ms)


class ClassicMember(Member):
    """Of the classic protocol."""

    def __init__(self, sim: Simulation, instance: str | None, cooperative: bool) -> None:
        super().__init__(sim, "", instance)
        self.cooperative = cooperative
        self.protocol = "cooperative" if cooperative else "eager"
        self._stable = False
        self.join()

    @property
    def settled(self) -> bool:
        return self._stable

    def lose(self) -> None:
        super().lose()
        self.epoch = -1
        self._stable = False

    def join(self) -> None:
        self._stable = False
        if not self.cooperative:
            self.owns = NOTHING
        said = ConsumerProtocolSubscription(
            topics=sorted(TOPICS), owned_partitions=_rows(self.owns), generation_id=self.epoch
        )
        request = JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            member_id=self.member_id,
            group_instance_id=self.instance,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name=self.protocol, metadata=_packed(said, 2))],
        )
        caller = Caller("client", "/127.0.0.1", 9)
        self.ask(
            lambda machine, now_ms: machine.classic.join(caller, request, now_ms),
            self._joined,
            JOIN_PATIENCE_MS,
        )

    def _joined(self, answer: Any, code: ErrorCode) -> None:
        if code is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
            self.again(1, self.join)
        elif code is not ErrorCode.NONE:
            self._trouble(code)
        else:
            self.member_id = answer.member_id
            self.epoch = answer.generation_id
            leads = answer.leader == answer.member_id and not answer.skip_assignment
            self._sync(self._assign(answer.members) if leads else {})

    def _assign(self, members: Iterable[Any]) -> dict[str, Owned]:
        """As a leader: to each in turn; cooperatively, nothing that somebody else has still in hand."""
        owned = {row.member_id: _owned(parse_subscription(row.metadata)) for row in members}
        places = [(name, p) for name, count in sorted(TOPICS.items()) for p in range(count)]
        order = sorted(owned)
        shift = self.sim.random.randrange(len(order))
        shares: dict[str, set[Place]] = {member: set() for member in order}
        for index, place in enumerate(places):
            member = order[(index + shift) % len(order)]
            if not any(place in has for other, has in owned.items() if other != member):
                shares[member].add(place)
        return {member: frozenset(share) for member, share in shares.items()}

    def _sync(self, shares: dict[str, Owned]) -> None:
        request = SyncGroupRequest(
            group_id=GROUP,
            generation_id=self.epoch,
            member_id=self.member_id,
            group_instance_id=self.instance,
            protocol_type="consumer",
            protocol_name=self.protocol,
            assignments=[
                SyncGroupRequestAssignment(
                    member_id=member,
                    assignment=_packed(ConsumerProtocolAssignment(assigned_partitions=_rows(share)), 2),
                )
                for member, share in shares.items()
            ],
        )
        caller = Caller("client", "/127.0.0.1", 5)
        generation = self.epoch
        self.ask(
            lambda machine, now_ms: machine.classic.sync(caller, request, now_ms),
            lambda answer, code: self._synced(generation, answer, code),
            JOIN_PATIENCE_MS,
        )

    def _synced(self, generation: int, answer: Any, code: ErrorCode) -> None:
        if code is not ErrorCode.NONE:
            self._trouble(code)
            return
        told = assigned(answer.assignment)
        gives_up = self.cooperative and not self.owns <= told
        self.give(told)
        self._stable = True
        self.sim.told_by_sync(self, generation)
        self.again(1 if gives_up else BEAT_MS, self.join if gives_up else self.beat)

    def beat(self) -> None:
        request = HeartbeatRequest(
            group_id=GROUP,
            generation_id=self.epoch,
            member_id=self.member_id,
            group_instance_id=self.instance,
        )
        caller = Caller("client", "/127.0.0.1", 4)
        self.ask(lambda machine, now_ms: machine.classic.heartbeat(caller, request, now_ms), self._beaten)

    def _beaten(self, _: Any, code: ErrorCode) -> None:
        if code is ErrorCode.NONE:
            self.again(BEAT_MS, self.beat)
        else:
            self._trouble(code, self.beat)

    def _trouble(self, code: ErrorCode, retry: Callable[[], None] | None = None) -> None:
        if code is ErrorCode.FENCED_INSTANCE_ID:
            self.crash()
            return
        if code is ErrorCode.UNKNOWN_MEMBER_ID:
            self.lose()
            self.member_id = ""
        elif code is ErrorCode.ILLEGAL_GENERATION:
            self.lose()
        elif code is not ErrorCode.REBALANCE_IN_PROGRESS and retry is not None:
            self.again(RETRY_MS, retry)
            return
        self.again(RETRY_MS, self.join)

    def leave(self) -> None:
        if self.instance is None and self.member_id:
            request = LeaveGroupRequest(
                group_id=GROUP, members=[MemberIdentity(member_id=self.member_id, group_instance_id=None)]
            )
            caller = Caller("client", "/127.0.0.1", 5)
            self.ask(lambda machine, now_ms: machine.classic.leave(caller, request, now_ms), lambda *_: None)
        self.crash()


def by_topic(places: Iterable[Place]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for name, partition in sorted(places):
        found.setdefault(name, []).append(partition)
    return found


def _rows(places: Owned) -> list[TopicPartition]:
    return [TopicPartition(topic=name, partitions=numbers) for name, numbers in by_topic(places).items()]


def _owned(said: ConsumerProtocolSubscription) -> Owned:
    return frozenset((row.topic, p) for row in said.owned_partitions for p in row.partitions)


def assigned(data: bytes) -> Owned:
    """What a SyncGroup tells."""
    if not data:
        return NOTHING
    return frozenset(
        (row.topic, p) for row in parse_assignment(data).assigned_partitions for p in row.partitions
    )


def _packed(message: Any, version: int) -> bytes:
    return struct.pack(">h", version) + encode(message, version)
