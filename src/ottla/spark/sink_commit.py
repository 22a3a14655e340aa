"""How a micro-batch becomes visible exactly once: the steps of a commit and of an abort, without I/O.

Each task attempt has written its rows in a transaction of its own and left it open. The commit
  1. takes over the decision's transactional id, which fences every other driver of this query, and reads the
     decision in force. Whoever writes a decision afterwards under the same epoch knows that nobody else has:
     two drivers can never both decide;
  2. writes the decision, the list of this batch's transactions, in a transaction of that id, unless the batch is
     decided already: then it is a replay, and what it wrote is aborted;
  3. ends all transactions in the decision, and fences what else is open under the sink's prefix: attempts that
     failed hard or lost to a speculative copy would hold the last stable offset back until they time out;
  4. asks the log what became of a transaction that the coordinator no longer lets us end. If it was aborted, its
     rows are written again, and the decision without it is written in that same transaction: one or neither.

The steps are generators: they yield what is to be done and are sent what came of it, so that the same code runs
on a cluster (ottla.spark.sink_cluster) and under a simulation that stops it between any two steps. `Fenced` and
other errors are thrown into them. Owned by one driver-side call at a time; `Driver` may live on between calls.
"""

from collections.abc import Generator, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, TypeVar

from ottla.spark.decision import Decision, Entry, Span

# Another driver, or the abort of this very batch, may take over in between: whoever lost looks again.
TAKE_OVERS = 5


class Fenced(Exception):
    """Somebody else has taken over the decision's transactional id."""


class SinkError(Exception):
    """The batch cannot be committed as it is."""


class Identity(NamedTuple):
    """Who we are under the decision's transactional id."""

    producer_id: int
    producer_epoch: int


# -- what is to be done ------------------------------------------------------------------------------------


class TakeOver(NamedTuple):
    """Initialize the decision's transactional id. Gives our Identity."""


class ReadDecision(NamedTuple):
    """Read the decision in force. Gives Decision | None. `stable`: waits for one that is being made."""

    stable: bool


class WriteDecision(NamedTuple):
    """Write the decision into our open transaction, which this begins if need be."""

    identity: Identity
    decision: Decision


class EndDecision(NamedTuple):
    """Commit our transaction. Gives the Identity for the next one."""

    identity: Identity


class End(NamedTuple):
    """End task attempts' transactions. Gives for each True if it is sure to have ended like this, else False."""

    entries: tuple[Entry, ...]
    commit: bool


class FenceOpen(NamedTuple):
    """Fence, and by that abort, every task attempt of this sink whose transaction is open."""


class Examine(NamedTuple):
    """Ask the log about transactions that have ended. Gives those that were aborted, as a frozenset."""

    entries: tuple[Entry, ...]
    spans: tuple[Span, ...]


class CopyRows(NamedTuple):
    """Write the rows of aborted transactions again, in our transaction."""

    identity: Identity
    entries: tuple[Entry, ...]
    spans: tuple[Span, ...]


Step: TypeAlias = TakeOver | ReadDecision | WriteDecision | EndDecision | End | FenceOpen | Examine | CopyRows
T = TypeVar("T")
Steps: TypeAlias = Generator[Step, Any, T]


# -- the state and the input --------------------------------------------------------------------------------


@dataclass(slots=True)
class Driver:
    """What a driver-side process knows of its own last commit, for as long as nobody takes over.

    While `identity` is not fenced nobody else has decided anything: neither taking over nor reading is needed.
    """

    identity: Identity | None = None
    decision: Decision | None = None

    def forget(self) -> None:
        self.identity = self.decision = None


class Written(NamedTuple):
    """What the tasks of a batch report. `skipped`: some wrote nothing because the batch was decided already."""

    query_id: str
    batch_id: int
    entries: tuple[Entry, ...]
    spans: tuple[Span, ...]
    skipped: bool = False


# -- commit and abort ---------------------------------------------------------------------------------------


def commit(driver: Driver, written: Written) -> Steps[None]:
    """Make the batch visible, exactly once, whoever has tried before or is trying now."""
    if not written.entries and not written.skipped and not (yield from _is_settled(driver, written)):
        return
    for _ in range(TAKE_OVERS):
        try:
            yield from _known(driver)
            if not _settles(driver, written):
                yield from _decide(driver, written)
            yield from _complete(driver, written.entries)
        except Fenced:
            driver.forget()
        except BaseException:
            # Whether the last step was done is not known.
            driver.forget()
            raise
        else:
            return
    raise SinkError(
        f"batch {written.batch_id}: another driver of query {written.query_id} has taken over {TAKE_OVERS} times; "
        "is the same checkpoint, or the same kafka.transactional.id, in use twice?"
    )


def commit_once(written: Written) -> Steps[None]:
    """The same for a write that nobody will replay: it is not written down, so half of it may be left if we die."""
    aborted = yield from _end_all(written.entries, written.spans)
    if aborted:
        identity = yield TakeOver()
        yield CopyRows(identity, tuple(entry for entry in written.entries if entry in aborted), written.spans)
        yield EndDecision(identity)


def abort(driver: Driver, written: Written) -> Steps[None]:
    """Leave nothing of the batch behind, unless it is decided: then it is completed."""
    for _ in range(TAKE_OVERS):
        try:
            driver.forget()
            yield from _known(driver)
            if _settles(driver, written):
                yield from _complete(driver, written.entries)
            else:
                yield End(written.entries, commit=False)
                yield FenceOpen()
        except Fenced:
            continue
        except BaseException:
            driver.forget()
            raise
        else:
            return


def _is_settled(driver: Driver, written: Written) -> Steps[bool]:
    """For a batch without rows: there is nothing to decide, at most something to complete.

    Nobody is taken over for that, so a decision that a dead driver left half made must not be waited for.
    """
    if driver.identity is not None:
        return _settles(driver, written)
    decision = yield ReadDecision(stable=False)
    return decision is not None and decision.settles(written.query_id, written.batch_id)


def _known(driver: Driver) -> Steps[None]:
    if driver.identity is None:
        identity = yield TakeOver()
        driver.decision = yield ReadDecision(stable=True)
        driver.identity = identity


def _settles(driver: Driver, written: Written) -> bool:
    return driver.decision is not None and driver.decision.settles(written.query_id, written.batch_id)


def _decide(driver: Driver, written: Written) -> Steps[None]:
    if written.skipped or not written.entries:
        raise _gone(written)
    before = driver.decision
    if before is not None and before.query_id != written.query_id:
        # Another query used this transactional id and may have died in the middle; ours would hide what it left.
        yield from _complete(driver, ())
        before = driver.decision
    number = 0 if before is None else before.number + 1
    # Sorted, as it will be read: what is compared with it later has been read.
    entries = tuple(sorted(written.entries))
    decision = Decision(number, written.query_id, written.batch_id, entries, written.spans)
    yield from _write(driver, decision)


def _write(driver: Driver, decision: Decision) -> Steps[None]:
    assert driver.identity is not None
    yield WriteDecision(driver.identity, decision)
    driver.identity = yield EndDecision(driver.identity)
    driver.decision = decision


def _complete(driver: Driver, fresh: Iterable[Entry]) -> Steps[None]:
    """End what the decision lists, and what it does not list; see that each listed row is visible."""
    decision = driver.decision
    assert decision is not None
    listed = set(decision.entries)
    losers = tuple(entry for entry in fresh if entry not in listed)
    if losers:
        yield End(losers, commit=False)
    aborted = yield from _end_all(decision.entries, decision.spans)
    if aborted:
        yield from _recover(driver, decision, aborted)


def _end_all(entries: tuple[Entry, ...], spans: tuple[Span, ...]) -> Steps[frozenset[Entry]]:
    """Commit these and nothing else; gives those that were aborted before it came to that."""
    sure = yield End(entries, commit=True)
    # Before the log is asked: an open transaction of ours would hold back the answer.
    yield FenceOpen()
    doubtful = tuple(entry for entry, is_sure in zip(entries, sure, strict=True) if not is_sure)
    if not doubtful:
        return frozenset()
    return (yield Examine(doubtful, spans))  # type: ignore[no-any-return]


def _recover(driver: Driver, decision: Decision, aborted: frozenset[Entry]) -> Steps[None]:
    # With transactions of version 1 an epoch outlives its transaction; rows need one that no other rows have had.
    driver.forget()
    yield from _known(driver)
    if driver.decision != decision:
        raise Fenced("somebody else has gone on meanwhile")
    assert driver.identity is not None
    lost = tuple(entry for entry in decision.entries if entry in aborted)
    yield CopyRows(driver.identity, lost, decision.spans)
    left = tuple(entry for entry in decision.entries if entry not in aborted)
    yield from _write(driver, decision._replace(number=decision.number + 1, entries=left))


def _gone(written: Written) -> SinkError:
    return SinkError(
        f"batch {written.batch_id} of query {written.query_id} was decided when its tasks began and is not any "
        "more: the offsets of the sink's group have expired or were deleted meanwhile; run the batch again"
    )
