"""The checker of histories finds nothing in what is right, and each anomaly in a history that shows that one alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from random import Random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.chaos.checker import (
    Assign,
    Committed,
    End,
    Event,
    History,
    Kind,
    Outcome,
    Poll,
    Send,
    check,
)

from ottla.model.ids import TopicPartition

OK, FAILED, UNKNOWN = Outcome.OK, Outcome.FAILED, Outcome.UNKNOWN
P, Q = TopicPartition("orders", 0), TopicPartition("orders", 1)
INPUT = TopicPartition("input", 0)
# The moments of a history by hand: everything at the end comes after everything else.
LATE = 1000


def sent(
    value: str,
    offset: int | None,
    at: int,
    outcome: Outcome = OK,
    *,
    where: TopicPartition = P,
    transaction: str | None = None,
    client: str = "producer",
    idempotent: bool = True,
) -> Send:
    return Send(client, where, value, at, at + 1, outcome, offset, transaction, idempotent)


def polled(
    records: Iterable[tuple[int, str]],
    at: int = LATE,
    *,
    client: str = "end",
    where: TopicPartition = P,
    committed_only: bool = False,
    position: int | None = None,
) -> Poll:
    positions = {} if position is None else {where: position}
    return Poll(client, {where: tuple(records)}, at, at + 1, committed_only, positions)


def ended(transaction: str, at: int, outcome: Outcome = OK, *, committing: bool = True) -> End:
    return End(transaction, committing, at, at + 1, outcome)


def kinds(events: Iterable[Event], final: Iterable[str] = ("end",)) -> list[Kind]:
    return [anomaly.kind for anomaly in check(History(events, final))]


ABC: list[Event] = [sent("a", 0, 1), sent("b", 1, 3), sent("c", 2, 5)]
ALL = [(0, "a"), (1, "b"), (2, "c")]


# ---- what is right --------------------------------------------------------------------------------------


def test_a_clean_history() -> None:
    events: list[Event] = [
        *ABC,
        Assign("reader", {P: 0}, 2),
        polled([(0, "a")], 4, client="reader"),
        polled([(1, "b"), (2, "c")], 8, client="reader"),
        Assign("reader", {P: 1}, 10),
        polled([(1, "b")], 11, client="reader"),
        Assign("end", {P: 0}, LATE),
        polled(ALL, position=3),
    ]
    assert kinds(events) == []


@pytest.mark.parametrize("there", [True, False])
def test_a_write_without_an_answer_may_be_there_or_not(there: bool) -> None:
    events: list[Event] = [
        *ABC,
        sent("maybe", None, 7, UNKNOWN),
        polled([*ALL, (3, "maybe")] if there else ALL),
    ]
    assert kinds(events) == []


def test_without_idempotence_a_write_may_be_there_twice() -> None:
    assert kinds([sent("a", 1, 1, idempotent=False), polled([(0, "a"), (1, "a")])]) == []


def test_an_aborted_transaction_is_there_for_those_who_ask_for_everything() -> None:
    events: list[Event] = [
        sent("a", 0, 1, transaction="t"),
        ended("t", 3, committing=False),
        sent("b", 2, 5),
        polled([(0, "a"), (2, "b")]),
        polled([(2, "b")], client="committed", committed_only=True, position=3),
    ]
    assert kinds(events, ["end", "committed"]) == []


@pytest.mark.parametrize("there", [True, False])
def test_a_commit_without_an_answer_is_whole_or_nothing(there: bool) -> None:
    events: list[Event] = [
        sent("a", 0, 1, transaction="t"),
        sent("b", 0, 3, transaction="t", where=Q),
        ended("t", 5, UNKNOWN),
        polled([(0, "a")] if there else [], committed_only=True, position=2),
        polled([(0, "b")] if there else [], committed_only=True, where=Q, position=2),
    ]
    assert kinds(events) == []


def test_groups_follow_the_transactions_that_committed() -> None:
    events: list[Event] = [
        End("t", True, 1, 2, OK, "group", {INPUT: 5}),
        Committed("group", {INPUT: 5}, 3, 4),
        End("u", True, 5, 8, UNKNOWN, "group", {INPUT: 9}),
        Committed("group", {INPUT: 9}, 6, 7),
    ]
    assert kinds(events) == []


# ---- what is wrong, one at a time -----------------------------------------------------------------------

BROKEN: dict[str, tuple[list[Kind], list[Event]]] = {
    "an offset is acknowledged for two values": (
        [Kind.INCONSISTENT_OFFSET],
        [
            sent("a", 0, 1),
            Send("other", P, "b", 1, 2, OK, 0),
            polled([(0, "a")]),
            polled([(0, "b")], client="end 2"),
        ],
    ),
    "two readers find two values at an offset": (
        [Kind.INCONSISTENT_OFFSET],
        [
            sent("a", None, 1, UNKNOWN),
            sent("b", None, 3, UNKNOWN),
            polled([(0, "a")]),
            polled([(0, "b")], client="end 2"),
        ],
    ),
    "a value is read at another offset than the one acknowledged": (
        [Kind.DUPLICATE],
        [sent("a", 0, 1), polled([(1, "a")])],
    ),
    "a value is there twice": ([Kind.DUPLICATE], [*ABC, polled([*ALL, (3, "b")])]),
    "a value is in two partitions": ([Kind.DUPLICATE], [*ABC, polled(ALL), polled([(0, "a")], where=Q)]),
    "an acknowledged write is missing": ([Kind.LOST_WRITE], [*ABC, polled([(0, "a"), (2, "c")], position=3)]),
    "the end of what was acknowledged is missing": ([Kind.UNSEEN_WRITE], [*ABC, polled(ALL[:2], position=2)]),
    "everything is missing": ([Kind.UNSEEN_WRITE], [sent("a", 0, 1), polled([], position=0)]),
    "a write without an offset is missing": (
        [Kind.UNSEEN_WRITE],
        [sent("a", None, 1), polled([], position=0)],
    ),
    "what somebody read is gone": (
        [Kind.UNDONE_READ],
        [*ABC, polled(ALL, 8, client="reader"), polled(ALL[:2], position=2)],
    ),
    "what somebody read, and nobody was told of, is gone": (
        [Kind.UNDONE_READ],
        [sent("a", None, 1, UNKNOWN), polled([(0, "a")], 5, client="reader"), polled([], position=0)],
    ),
    "a value that nobody sent": ([Kind.INVENTED_READ], [*ABC, polled([*ALL, (3, "d")])]),
    "a write that failed is read": (
        [Kind.ABORTED_READ],
        [*ABC, sent("no", None, 7, FAILED), polled([*ALL, (3, "no")])],
    ),
    "an aborted transaction is read": (
        [Kind.ABORTED_READ],
        [
            sent("a", 0, 1, transaction="t"),
            ended("t", 3, committing=False),
            polled([(0, "a")], committed_only=True),
        ],
    ),
    "a transaction whose abort had no answer is read": (
        [Kind.ABORTED_READ],
        [
            sent("a", 0, 1, transaction="t"),
            ended("t", 3, UNKNOWN, committing=False),
            polled([(0, "a")], committed_only=True),
        ],
    ),
    "a transaction that never ended is read": (
        [Kind.ABORTED_READ],
        [sent("a", 0, 1, transaction="t"), polled([(0, "a")], committed_only=True)],
    ),
    "a transaction whose commit was refused is read": (
        [Kind.ABORTED_READ],
        [sent("a", 0, 1, transaction="t"), ended("t", 3, FAILED), polled([(0, "a")], committed_only=True)],
    ),
    "a transaction is read before its commit": (
        [Kind.INTERMEDIATE_READ],
        [
            sent("a", 0, 1, transaction="t"),
            polled([(0, "a")], 3, client="reader", committed_only=True),
            ended("t", 9),
            polled([(0, "a")], committed_only=True),
        ],
    ),
    "a part of a committed transaction is missing": (
        [Kind.PARTIAL_TRANSACTION],
        [
            sent("a", 0, 1, transaction="t"),
            sent("b", 0, 3, transaction="t", where=Q),
            ended("t", 5),
            polled([(0, "a")], committed_only=True, position=2),
            polled([], committed_only=True, where=Q, position=2),
        ],
    ),
    "a part of what may have committed is missing": (
        [Kind.PARTIAL_TRANSACTION],
        [
            sent("a", 0, 1, transaction="t"),
            sent("b", 1, 3, transaction="t"),
            ended("t", 5, UNKNOWN),
            polled([(1, "b")], committed_only=True, position=3),
        ],
    ),
    "a part is there for those who ask for everything, and not for others": (
        [Kind.PARTIAL_TRANSACTION],
        [
            sent("a", 0, 1, transaction="t"),
            sent("b", 0, 3, transaction="t", where=Q),
            ended("t", 5, UNKNOWN),
            polled([(0, "a")], committed_only=True),
            polled([], committed_only=True, where=Q, position=2),
            polled([(0, "a")], client="end 2"),
            polled([(0, "b")], client="end 2", where=Q),
        ],
    ),
    "a whole committed transaction is missing": (
        [Kind.LOST_WRITE],
        [
            sent("a", 0, 1, transaction="t"),
            ended("t", 3),
            sent("b", 2, 5),
            polled([(2, "b")], committed_only=True, position=3),
        ],
    ),
    "a consumer skips a record": (
        [Kind.SKIPPED_POLL],
        [*ABC, polled([(0, "a"), (2, "c")], 8, client="reader"), polled(ALL)],
    ),
    "a consumer skips a record between two polls": (
        [Kind.SKIPPED_POLL],
        [
            *ABC,
            polled([(0, "a")], 8, client="reader"),
            polled([(2, "c")], 10, client="reader"),
            polled(ALL),
        ],
    ),
    "a consumer does not begin where it was told to": (
        [Kind.SKIPPED_POLL],
        [*ABC, Assign("reader", {P: 0}, 7), polled(ALL[1:], 8, client="reader"), polled(ALL)],
    ),
    "a consumer's position is past what it was given": (
        [Kind.SKIPPED_POLL],
        [*ABC, polled(ALL[:2], 8, client="reader", position=3), polled(ALL)],
    ),
    "one of two readers at the end lacks a record": (
        [Kind.SKIPPED_POLL],
        [*ABC, polled([ALL[0], ALL[2]], client="end 2"), polled(ALL)],
    ),
    "a consumer goes back between two polls": (
        [Kind.NON_MONOTONIC_POLL],
        [*ABC, polled(ALL[:2], 8, client="reader"), polled(ALL[1:], 10, client="reader"), polled(ALL)],
    ),
    "a consumer goes back within a poll": (
        [Kind.NON_MONOTONIC_POLL],
        [*ABC, polled([*ALL, ALL[2]], 8, client="reader"), polled(ALL)],
    ),
    "a consumer's position goes back": (
        [Kind.NON_MONOTONIC_POLL],
        [*ABC, polled(ALL, 8, client="reader"), polled([], 10, client="reader", position=2), polled(ALL)],
    ),
    "a producer's later write is first": (
        [Kind.NON_MONOTONIC_SEND],
        [
            Send("producer", P, "a", 1, 5, OK, 1),
            Send("producer", P, "b", 2, 6, OK, 0),
            polled([(0, "b"), (1, "a")]),
        ],
    ),
    "who came after an answer is written before it": (
        [Kind.NON_MONOTONIC_SEND],
        [sent("a", 1, 1), sent("b", 0, 5, client="other"), polled([(0, "b"), (1, "a")])],
    ),
    "a group is behind a committed transaction": (
        [Kind.LOST_OFFSETS],
        [
            End("t", True, 1, 2, OK, "group", {INPUT: 5}),
            End("u", True, 3, 4, OK, "group", {INPUT: 9}),
            Committed("group", {INPUT: 5}, 6, 7),
        ],
    ),
    "a group is where an aborted transaction would have put it": (
        [Kind.ABORTED_OFFSETS],
        [
            End("t", True, 1, 2, OK, "group", {INPUT: 5}),
            End("u", False, 3, 4, OK, "group", {INPUT: 9}),
            Committed("group", {INPUT: 9}, 6, 7),
        ],
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_history_shows_what_is_broken_and_nothing_else(name: str) -> None:
    expected, events = BROKEN[name]
    assert kinds(events, [client for client in ("end", "end 2") if _reads(client, events)]) == expected


def _reads(client: str, events: list[Event]) -> bool:
    return any(isinstance(event, Poll) and event.client == client for event in events)


def test_every_anomaly_has_a_broken_history() -> None:
    assert {kind for expected, _ in BROKEN.values() for kind in expected} == set(Kind)


def test_an_anomaly_says_where_and_what() -> None:
    (found,) = check(History([*ABC, polled([(0, "a"), (2, "c")])], ["end"]))
    assert str(found) == "LOST_WRITE orders-0: b at 1 (acknowledged, below what was read, and read by nobody)"


# ---- random histories -----------------------------------------------------------------------------------


class Model:
    """A log that keeps its promises, the clients around it, and what they note down."""

    def __init__(self, rng: Random, steps: int) -> None:
        self.rng = rng
        self.history = History()
        self.logs: dict[TopicPartition, list[tuple[str | None, str | None]]] = {P: [], Q: []}
        self.open: dict[str, list[str]] = {}
        self.committed: set[str] = set()
        self.positions: dict[str, dict[TopicPartition, int]] = {}
        self._count = 0
        for client in ("c1", "committed c2"):
            self.assign(client, {P: 0, Q: 0})
        for _ in range(steps):
            rng.choice(
                [self.send, self.send, self.send, self.begin, self.end, self.poll, self.poll, self.seek]
            )()
        for transaction in list(self.open):
            self.end(transaction)
        for client in ("final", "committed final"):
            self.history.final.add(client)
            self.assign(client, {P: 0, Q: 0})
            while any(self.positions[client][where] < len(log) for where, log in self.logs.items()):
                self.poll(client)
            self.poll(client)

    def name(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def send(self) -> None:
        where = self.rng.choice([P, Q])
        transaction = self.rng.choice([None, *self.open])
        outcome = self.rng.choice([OK, OK, OK, UNKNOWN, FAILED]) if transaction is None else OK
        value = self.name("v")
        began = self.history.tick()
        offset = len(self.logs[where])
        if outcome is OK or (outcome is UNKNOWN and self.rng.random() < 0.5):
            self.logs[where].append((value, transaction))
        client = transaction or self.rng.choice(["p1", "p2"])
        told = offset if outcome is OK else None
        self.history.add(Send(client, where, value, began, self.history.tick(), outcome, told, transaction))

    def begin(self) -> None:
        self.open[self.name("t")] = []

    def end(self, transaction: str | None = None) -> None:
        if not self.open:
            return
        transaction = transaction or self.rng.choice(list(self.open))
        committing, outcome = self.rng.random() < 0.6, self.rng.choice([OK, OK, UNKNOWN])
        began = self.history.tick()
        del self.open[transaction]
        if committing and (outcome is OK or self.rng.random() < 0.5):
            self.committed.add(transaction)
        for log in self.logs.values():
            if any(mark == transaction for _, mark in log):
                log.append((None, None))  # the marker
        self.history.add(End(transaction, committing, began, self.history.tick(), outcome))

    def poll(self, client: str | None = None) -> None:
        client = client or self.rng.choice(["c1", "committed c2"])
        committed_only = client.startswith("committed")
        began = self.history.tick()
        positions = self.positions[client]
        records: dict[TopicPartition, tuple[tuple[int, str], ...]] = {}
        for where, log in self.logs.items():
            end = len(log)
            if committed_only:
                end = next((at for at, (_, mark) in enumerate(log) if mark in self.open), end)
            start = positions[where]
            stop = min(end, start + self.rng.randint(0, 4))
            found = [
                (offset, value)
                for offset, (value, mark) in enumerate(log[start:stop], start)
                if value is not None and (not committed_only or mark is None or mark in self.committed)
            ]
            positions[where] = max(stop, start)
            if found:
                records[where] = tuple(found)
        moment = self.history.tick()
        self.history.add(Poll(client, records, began, moment, committed_only, dict(positions)))

    def seek(self) -> None:
        client = self.rng.choice(["c1", "committed c2"])
        self.assign(client, {where: self.rng.randint(0, len(log)) for where, log in self.logs.items()})

    def assign(self, client: str, positions: dict[TopicPartition, int]) -> None:
        self.positions[client] = positions
        self.history.add(Assign(client, dict(positions), self.history.tick()))


def history_of(seed: int, steps: int) -> History:
    return Model(Random(seed), steps).history


SEEDS = st.integers(0, 2**32)
STEPS = st.integers(1, 60)


@given(SEEDS, STEPS)
def test_whatever_a_right_log_does_nothing_is_found(seed: int, steps: int) -> None:
    assert check(history_of(seed, steps)) == []


def reads_of(history: History, client: str) -> list[tuple[int, TopicPartition, int, str]]:
    """(index of the poll, where, offset, value) of all that a consumer has read."""
    return [
        (index, where, offset, value)
        for index, event in enumerate(history.events)
        if isinstance(event, Poll) and event.client == client
        for where, records in event.records.items()
        for offset, value in records
    ]


def change_read(
    history: History, index: int, where: TopicPartition, offset: int, to: list[tuple[int, str]]
) -> None:
    poll = history.events[index]
    assert isinstance(poll, Poll)
    records: list[tuple[int, str]] = []
    for record in poll.records[where]:
        records += to if record[0] == offset else [record]
    history.events[index] = dataclasses.replace(poll, records={**poll.records, where: tuple(records)})


def outcomes(history: History) -> dict[str, Outcome]:
    return {event.value: event.outcome for event in history.events if isinstance(event, Send)}


def drop_at_the_end(history: History, rng: Random) -> None:
    """An acknowledged record that no reader at the end finds."""
    sends = [e for e in history.events if isinstance(e, Send) and e.outcome is OK]
    sure = {e.transaction for e in history.events if isinstance(e, End) and e.committing and e.outcome is OK}
    acknowledged = {send.value for send in sends if send.transaction in {None, *sure}}
    found = [read for read in reads_of(history, "committed final") if read[3] in acknowledged]
    assume(found)
    value = rng.choice(found)[3]
    for client in ("final", "committed final"):
        for index, where, offset, read in reads_of(history, client):
            if read == value:
                change_read(history, index, where, offset, [])


def drop_for_one(history: History, rng: Random) -> None:
    """A record that one reader does not find, and others do."""
    found = reads_of(history, "c1")
    assume(found)
    index, where, offset, _ = rng.choice(found)
    change_read(history, index, where, offset, [])


def read_twice(history: History, rng: Random) -> None:
    found = reads_of(history, "final")
    assume(found)
    index, where, offset, value = rng.choice(found)
    change_read(history, index, where, offset, [(offset, value), (offset, value)])


def read_another(history: History, rng: Random) -> None:
    found = reads_of(history, "final")
    assume(found)
    index, where, offset, value = rng.choice(found)
    others = [other for other in outcomes(history) if other != value]
    change_read(history, index, where, offset, [(offset, rng.choice([*others, "invented"]))])


def read_what_failed(history: History, rng: Random) -> None:
    failed = [value for value, outcome in outcomes(history).items() if outcome is FAILED]
    assume(failed)
    polls = [
        i for i, event in enumerate(history.events) if isinstance(event, Poll) and event.client == "final"
    ]
    poll = history.events[polls[-1]]
    assert isinstance(poll, Poll)
    added = {P: ((poll.positions[P], rng.choice(failed)),)}
    history.events[polls[-1]] = dataclasses.replace(poll, records={**poll.records, **added}, positions={})


def acknowledge_elsewhere(history: History, rng: Random) -> None:
    sends = [i for i, e in enumerate(history.events) if isinstance(e, Send) and e.outcome is OK]
    read = {value for _, _, _, value in reads_of(history, "final")}
    sends = [i for i in sends if history.events[i].value in read]  # type: ignore[union-attr]
    assume(sends)
    index = rng.choice(sends)
    send = history.events[index]
    assert isinstance(send, Send)
    assert send.offset is not None
    history.events[index] = dataclasses.replace(send, offset=send.offset + rng.choice([-1, 1]))


def abort_what_is_read(history: History, rng: Random) -> None:
    read = {value for _, _, _, value in reads_of(history, "committed final")}
    of = {e.transaction for e in history.events if isinstance(e, Send) and e.transaction and e.value in read}
    assume(of)
    transaction = rng.choice(sorted(of))
    for index, event in enumerate(history.events):
        if isinstance(event, End) and event.transaction == transaction:
            history.events[index] = dataclasses.replace(event, committing=False)


MUTATIONS: list[Callable[[History, Random], None]] = [
    drop_at_the_end,
    drop_for_one,
    read_twice,
    read_another,
    read_what_failed,
    acknowledge_elsewhere,
    abort_what_is_read,
]


@pytest.mark.parametrize("mutate", MUTATIONS)
@given(SEEDS, st.integers(10, 60))
def test_a_random_change_is_found(mutate: Callable[[History, Random], None], seed: int, steps: int) -> None:
    history = history_of(seed, steps)
    mutate(history, Random(seed))
    assert check(history) != []
