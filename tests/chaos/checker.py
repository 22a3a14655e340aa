"""Judges what clients did and saw, after Jepsen's workload for Kafka: pure, over a history of operations.

    history = History()
    history.add(Send(...)), history.add(Poll(...)) ...      # from as many threads as there are clients
    assert check(history) == []

Every value is sent once in the life of a history, so that a value found twice, at another place or not at all tells
what has happened. An operation has three outcomes: OK (it took effect), FAILED (it did not and never will) and
UNKNOWN (no answer: both are right, once). Order in time is that of `History.tick`: an operation that began after
another had ended came after it, and all others are concurrent.

Consumers named in `History.final` have read every partition from its start to its end after everything else was over.
An anomaly is reported once for the value or the offset that shows it, under the name that says most: what somebody read
and what is gone at the end is UNDONE and not also LOST.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple, TypeAlias

from ottla.model.ids import TopicPartition


class Outcome(Enum):
    """What a client knows of its own operation."""

    OK = auto()
    FAILED = auto()
    UNKNOWN = auto()


class Kind(Enum):
    """What a history must not show."""

    INCONSISTENT_OFFSET = "one offset has two values"
    DUPLICATE = "one value has two offsets"
    LOST_WRITE = "acknowledged, below what was read, and read by nobody"
    UNSEEN_WRITE = "acknowledged, above all that was read, and read by nobody"
    UNDONE_READ = "read by somebody, and gone at the end"
    INVENTED_READ = "read, and never sent"
    ABORTED_READ = "read, though its write failed or its transaction was aborted (G1a)"
    INTERMEDIATE_READ = "read as committed before its transaction began to commit (G1b)"
    PARTIAL_TRANSACTION = "a part of a transaction is there, this is not"
    SKIPPED_POLL = "a consumer went past a record that others have"
    NON_MONOTONIC_POLL = "a consumer went back without a seek"
    NON_MONOTONIC_SEND = "written later, at a lower offset"
    LOST_OFFSETS = "a group is behind what a transaction committed for it"
    ABORTED_OFFSETS = "a group is where no transaction that could have committed has put it"


class Anomaly(NamedTuple):
    """One thing that must not be."""

    kind: Kind
    where: TopicPartition
    what: str

    def __str__(self) -> str:
        return f"{self.kind.name} {self.where.topic}-{self.where.partition}: {self.what} ({self.kind.value})"


@dataclass(frozen=True, slots=True)
class Send:
    """One record, from the call to the answer."""

    client: str
    where: TopicPartition
    value: str
    began: int
    ended: int
    outcome: Outcome
    offset: int | None = None  # of what is OK; None where the answer does not say (acks=0)
    transaction: str | None = None
    idempotent: bool = True  # without it a retry may write twice, and in another order


@dataclass(frozen=True, slots=True)
class End:
    """The end of a transaction; one that has none in the history was left open, and is aborted in time."""

    transaction: str
    committing: bool
    began: int
    ended: int
    outcome: Outcome
    group: str = ""
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)  # consumed in it, for that group


@dataclass(frozen=True, slots=True)
class Assign:
    """A consumer begins anew in these partitions: an assignment or a seek. None: wherever the group or a reset says."""

    client: str
    positions: Mapping[TopicPartition, int | None]
    at: int


@dataclass(frozen=True, slots=True)
class Poll:
    """What one poll returned, in its order, and how far the consumer has got: past the last record unless said."""

    client: str
    records: Mapping[TopicPartition, tuple[tuple[int, str], ...]]
    began: int
    ended: int
    committed_only: bool = False
    positions: Mapping[TopicPartition, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Committed:
    """What a group was told that it has committed."""

    group: str
    offsets: Mapping[TopicPartition, int]
    began: int
    ended: int


Event: TypeAlias = Send | End | Assign | Poll | Committed


class History:
    """Events, of each client in its own order."""

    def __init__(self, events: Iterable[Event] = (), final: Iterable[str] = ()) -> None:
        self.events: list[Event] = list(events)
        self.final = set(final)
        self._lock = threading.Lock()
        self._now = 0

    def tick(self) -> int:
        """A moment after all moments handed out so far."""
        with self._lock:
            self._now += 1
            return self._now

    def add(self, event: Event) -> None:
        with self._lock:
            self.events.append(event)

    def of(self, kind: type[Event]) -> list[Event]:
        with self._lock:
            return [event for event in self.events if isinstance(event, kind)]

    def acknowledged(self) -> int:
        """How many sends are OK so far; within a transaction that says little."""
        return sum(event.outcome is Outcome.OK for event in self.of(Send) if isinstance(event, Send))


def check(history: History) -> list[Anomaly]:
    """Every anomaly of a history, the same each time."""
    facts = _Facts(history)
    found = [
        *_places(facts),
        *_reads_of_nothing(facts),
        *_order_of_sends(facts),
        *_consumers(facts),
        *_end(facts),
        *_groups(facts),
    ]
    unique = dict.fromkeys(found)
    return sorted(unique, key=lambda anomaly: (anomaly.kind.name, anomaly.where, anomaly.what))


class _Read(NamedTuple):
    client: str
    offset: int
    poll: Poll


class _Facts:
    """A history by value, by transaction and by consumer."""

    def __init__(self, history: History) -> None:
        self.final = frozenset(history.final)
        self.sends: dict[str, Send] = {}
        self.ends: dict[str, End] = {}
        self.reads: dict[tuple[TopicPartition, str], list[_Read]] = defaultdict(list)
        self.by_consumer: dict[str, list[Assign | Poll]] = defaultdict(list)
        self.committed: list[Committed] = []
        self.members: dict[str, list[Send]] = defaultdict(list)  # the sends of a transaction
        for event in history.events:
            match event:
                case Send():
                    assert event.value not in self.sends, f"{event.value} is sent twice"
                    self.sends[event.value] = event
                    if event.transaction is not None:
                        self.members[event.transaction].append(event)
                case End():
                    assert event.transaction not in self.ends, f"{event.transaction} ends twice"
                    self.ends[event.transaction] = event
                case Committed():
                    self.committed.append(event)
                case Assign():
                    self.by_consumer[event.client].append(event)
                case Poll():
                    self.by_consumer[event.client].append(event)
                    for where, records in event.records.items():
                        for offset, value in records:
                            self.reads[where, value].append(_Read(event.client, offset, event))
        # Every offset at which a value was: as acknowledged, or as read.
        self.offsets: dict[tuple[TopicPartition, str], set[int]] = defaultdict(set)
        for send in self.sends.values():
            if send.outcome is Outcome.OK and send.offset is not None:
                self.offsets[send.where, send.value].add(send.offset)
        for place, reads in self.reads.items():
            self.offsets[place].update(read.offset for read in reads)

    def is_aborted(self, send: Send) -> bool:
        """For sure: its transaction was told to abort, or was never told to commit, or its commit has failed."""
        if send.transaction is None:
            return False
        end = self.ends.get(send.transaction)
        return end is None or not end.committing or end.outcome is Outcome.FAILED

    def is_committed(self, send: Send) -> bool:
        """For sure."""
        if send.transaction is None:
            return send.outcome is Outcome.OK
        end = self.ends.get(send.transaction)
        return end is not None and end.committing and end.outcome is Outcome.OK

    def is_visible(self, where: TopicPartition, value: str, committed_only: bool) -> bool:
        """Whether a reader that goes past a value that somebody has read must see it too."""
        send = self.sends.get(value)
        return not committed_only or send is None or send.transaction is None or self.is_read(send, True)

    def is_read(self, send: Send, committed_only: bool) -> bool:
        """Whether somebody has read it, or somebody who reads committed records only."""
        reads = self.reads.get((send.where, send.value), ())
        return any(read.poll.committed_only >= committed_only for read in reads)


def _places(facts: _Facts) -> Iterator[Anomaly]:
    """Offsets with two values, and values with two offsets or in two partitions."""
    values: dict[tuple[TopicPartition, int], set[str]] = defaultdict(set)
    partitions: dict[str, set[TopicPartition]] = defaultdict(set)
    for (where, value), offsets in facts.offsets.items():
        partitions[value].add(where)
        for offset in offsets:
            values[where, offset].add(value)
        send = facts.sends.get(value)
        if len(offsets) > 1 and (send is None or send.idempotent):
            yield Anomaly(Kind.DUPLICATE, where, f"{value} at {sorted(offsets)}")
    for (where, offset), found in values.items():
        if len(found) > 1:
            yield Anomaly(Kind.INCONSISTENT_OFFSET, where, f"offset {offset} is {sorted(found)}")
    for value, places in partitions.items():
        if len(places) > 1:
            yield Anomaly(
                Kind.DUPLICATE, min(places), f"{value} in {[str(place) for place in sorted(places)]}"
            )


def _reads_of_nothing(facts: _Facts) -> Iterator[Anomaly]:
    """Values that were never written, not for good, or not yet."""
    for (where, value), reads in facts.reads.items():
        send = facts.sends.get(value)
        if send is None:
            yield Anomaly(Kind.INVENTED_READ, where, f"{value} by {reads[0].client}")
            continue
        by_committed = [read for read in reads if read.poll.committed_only]
        if send.outcome is Outcome.FAILED:
            yield Anomaly(Kind.ABORTED_READ, where, f"{value} by {reads[0].client}")
        elif by_committed and facts.is_aborted(send):
            yield Anomaly(Kind.ABORTED_READ, where, f"{value} by {by_committed[0].client}")
        elif send.transaction is not None:
            early = [read for read in by_committed if read.poll.ended < facts.ends[send.transaction].began]
            if early:
                yield Anomaly(Kind.INTERMEDIATE_READ, where, f"{value} by {early[0].client}")


def _order_of_sends(facts: _Facts) -> Iterator[Anomaly]:
    """A client's records stand in the order of its sends; and whoever begins after an answer is written after it."""
    by_partition: dict[TopicPartition, list[Send]] = defaultdict(list)
    for send in facts.sends.values():
        if send.outcome is Outcome.OK and send.offset is not None:
            by_partition[send.where].append(send)
    for where, sends in by_partition.items():
        last: dict[str, Send] = {}
        for send in sorted(sends, key=lambda send: send.began):
            before = last.get(send.client)
            if before is not None and send.idempotent and _offset(before) > _offset(send):
                yield _backwards(where, before, send)
            last[send.client] = send
        # Of all that had ended when a send began, the highest offset.
        ended = sorted(sends, key=lambda send: send.ended)
        highest: Send | None = None
        position = 0
        for send in sorted(sends, key=lambda send: send.began):
            while position < len(ended) and ended[position].ended < send.began:
                if highest is None or _offset(ended[position]) > _offset(highest):
                    highest = ended[position]
                position += 1
            if highest is not None and _offset(highest) > _offset(send):
                yield _backwards(where, highest, send)


def _backwards(where: TopicPartition, first: Send, then: Send) -> Anomaly:
    text = f"{first.value} at {first.offset}, then {then.value} at {then.offset}"
    return Anomaly(Kind.NON_MONOTONIC_SEND, where, text)


def _offset(send: Send) -> int:
    assert send.offset is not None
    return send.offset


def _consumers(facts: _Facts) -> Iterator[Anomaly]:
    """Every consumer goes forward, one record after the other."""
    kept = _kept_at_the_end(facts)
    for client, events in facts.by_consumer.items():
        position: dict[TopicPartition, int | None] = {}
        for event in events:
            if isinstance(event, Assign):
                position |= event.positions
                continue
            for where in event.records.keys() | event.positions.keys():
                at = position.get(where)
                for offset, value in event.records.get(where, ()):
                    if at is not None and offset < at:
                        yield Anomaly(
                            Kind.NON_MONOTONIC_POLL, where, f"{client} at {at} read {value} at {offset}"
                        )
                    elif at is not None:
                        yield from _passed(facts, kept, event, where, at, offset)
                    at = offset + 1
                reached = event.positions.get(where)
                if reached is not None:
                    if at is not None and reached < at:
                        yield Anomaly(Kind.NON_MONOTONIC_POLL, where, f"{client} at {at} went to {reached}")
                    elif at is not None:
                        yield from _passed(facts, kept, event, where, at, reached)
                    at = reached
                position[where] = at


def _kept_at_the_end(facts: _Facts) -> dict[TopicPartition, dict[int, str]]:
    """What final readers have read; without any, what anybody has."""
    kept: dict[TopicPartition, dict[int, str]] = defaultdict(dict)
    for (where, value), reads in facts.reads.items():
        for read in reads:
            if not facts.final or read.client in facts.final:
                kept[where][read.offset] = value
    return kept


def _passed(
    facts: _Facts,
    kept: dict[TopicPartition, dict[int, str]],
    poll: Poll,
    where: TopicPartition,
    start: int,
    stop: int,
) -> Iterator[Anomaly]:
    there = kept[where]
    inside = range(start, stop) if stop - start < len(there) else [o for o in there if start <= o < stop]
    for offset in inside:
        value = there.get(offset)
        if value is not None and facts.is_visible(where, value, poll.committed_only):
            yield Anomaly(Kind.SKIPPED_POLL, where, f"{poll.client} went past {value} at {offset}")


def _end(facts: _Facts) -> Iterator[Anomaly]:
    """What is not there though it was acknowledged, or seen before."""
    highest: dict[TopicPartition, int] = defaultdict(lambda: -1)
    for (where, _), reads in facts.reads.items():
        highest[where] = max(highest[where], *(read.offset for read in reads))
    # Whether the readers at the end read all records, or committed ones, or some these and some those.
    finals = [e for client in facts.final for e in facts.by_consumer[client] if isinstance(e, Poll)]
    ways = {poll.committed_only for poll in finals}
    for (where, value), reads in facts.reads.items():
        expected = any(facts.is_visible(where, value, committed_only) for committed_only in ways)
        if expected and not any(read.client in facts.final for read in reads):
            yield Anomaly(Kind.UNDONE_READ, where, f"{value} by {reads[0].client} at {reads[0].offset}")
    for value, send in facts.sends.items():
        as_committed = send.transaction is not None and True in ways
        if send.outcome is not Outcome.OK or facts.is_aborted(send) or facts.is_read(send, as_committed):
            continue
        siblings = facts.members[send.transaction] if send.transaction is not None else ()
        if any(facts.is_read(other, True) for other in siblings):
            yield Anomaly(Kind.PARTIAL_TRANSACTION, send.where, f"{value} of {send.transaction}")
        elif facts.is_committed(send):
            below = send.offset is not None and send.offset < highest[send.where]
            kind = Kind.LOST_WRITE if below else Kind.UNSEEN_WRITE
            yield Anomaly(kind, send.where, f"{value} at {send.offset}")


def _groups(facts: _Facts) -> Iterator[Anomaly]:
    """A group is where a transaction that may have committed has put it, and not behind one that has."""
    by_group: dict[tuple[str, TopicPartition], list[End]] = defaultdict(list)
    for end in facts.ends.values():
        for where in end.offsets:
            by_group[end.group, where].append(end)
    for told in facts.committed:
        for where, offset in told.offsets.items():
            ends = by_group[told.group, where]
            possible = {
                end.offsets[where]
                for end in ends
                if end.committing and end.outcome is not Outcome.FAILED and end.began < told.ended
            }
            sure = [
                end.offsets[where]
                for end in ends
                if end.committing and end.outcome is Outcome.OK and end.ended < told.began
            ]
            if offset not in possible:
                yield Anomaly(Kind.ABORTED_OFFSETS, where, f"{told.group} is at {offset}")
            elif sure and offset < max(sure):
                yield Anomaly(Kind.LOST_OFFSETS, where, f"{told.group} is at {offset}, not at {max(sure)}")
