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

The decision is kept in committed offsets of the sink's group: the offset is the batch id, the metadata carries the
decision in pieces, because a broker takes 4,096 bytes a partition (offset.metadata.max.bytes). Each decision has a
number one above the one before it; the highest number is in force, so that pieces of older decisions, which stay where
the newer one had no piece, do no harm. Each topic that was written has one at least, if need be once more. The driver
side writes and reads it, tasks read it.

The steps are generators: they yield what is to be done and are sent what came of it, so that the same code runs
on a cluster (ottla.spark.sink.cluster) and under a simulation that stops it between any two steps. `Fenced` and
other errors are thrown into them. Owned by one driver-side call at a time; `Driver` may live on between calls.
"""

import base64
import binascii
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, TypeVar

from ottla.model.ids import TopicPartition

FORMAT = 1
PIECE_CHARS = 4_000
# Far more than any cluster's partitions hold; what a reader unpacks before it trusts anything.
MAX_DECISION_BYTES = 16 * 1024 * 1024
# A decision that more topics were written for is told to so many of them.
MAX_TOLD_TOPICS = 16
_MARK = "ottla-sink"
# Another driver, or the abort of this very batch, may take over in between: whoever lost looks again.
TAKE_OVERS = 5


class DecisionError(Exception):
    """A decision cannot be written or read."""


class Entry(NamedTuple):
    """A task attempt's transaction: `<prefix>-<slot>-<attempt>` under that producer id and epoch."""

    slot: int
    attempt: int
    producer_id: int
    producer_epoch: int
    rows: int

    def transactional_id(self, prefix: str) -> str:
        return f"{prefix}-{self.slot}-{self.attempt}"


class Span(NamedTuple):
    """Where the batch's rows lie in a partition: first and last offset over all of its transactions."""

    topic: str
    partition: int
    first_offset: int
    last_offset: int

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class Decision(NamedTuple):
    """Batch `batch_id` of query `query_id` consists of these transactions and of no others."""

    number: int
    query_id: str
    batch_id: int
    entries: tuple[Entry, ...]
    spans: tuple[Span, ...]

    def settles(self, query_id: str, batch_id: int) -> bool:
        """True if that batch is decided: it must not be written again."""
        return self.query_id == query_id and self.batch_id >= batch_id


class Committed(NamedTuple):
    """A committed offset, as far as the decision needs it."""

    offset: int
    metadata: str


def union(spans: Iterable[Span]) -> tuple[Span, ...]:
    """One span a partition, in order, that covers all given for it."""
    widest: dict[TopicPartition, Span] = {}
    for span in spans:
        known = widest.get(span.topic_partition, span)
        first, last = min(known.first_offset, span.first_offset), max(known.last_offset, span.last_offset)
        widest[span.topic_partition] = Span(span.topic, span.partition, first, last)
    return tuple(widest[tp] for tp in sorted(widest))


# -- pieces ---------------------------------------------------------------------------------------------


def to_offsets(decision: Decision, places: Sequence[TopicPartition]) -> dict[TopicPartition, Committed]:
    """The offsets to commit, on as many of `places` as it takes. DecisionError if these are too few."""
    text = base64.b85encode(encode(decision)).decode("ascii")
    pieces = [text[start : start + PIECE_CHARS] for start in range(0, len(text), PIECE_CHARS)]
    if len(pieces) > len(places):
        raise DecisionError(
            f"batch {decision.batch_id} was written by {len(decision.entries)} tasks to {len(decision.spans)} "
            f"partitions: the decision takes {len(pieces)} offsets and the topics have {len(places)} partitions "
            "to hold them; write with fewer tasks (coalesce) or to topics with more partitions"
        )
    made = [
        Committed(decision.batch_id, f"{_MARK} {decision.number} {index} {len(pieces)} {piece}")
        for index, piece in enumerate(pieces)
    ]
    offsets = dict(zip(places, made, strict=False))
    # Each topic knows of it: if one that holds a piece is deleted, an older decision must not come back into force.
    known = {place.topic for place in offsets}
    for place in places[len(pieces) :]:
        if place.topic not in known and len(known) < MAX_TOLD_TOPICS:
            known.add(place.topic)
            offsets[place] = made[0]
    return offsets


class _Piece(NamedTuple):
    number: int
    place: int
    total: int
    text: str


def from_offsets(committed: Mapping[TopicPartition, Committed]) -> Decision | None:
    """The decision in force; None if there is none. DecisionError if a part of it is gone or damaged."""
    pieces = [piece for offset in committed.values() if (piece := _parse_piece(offset.metadata)) is not None]
    if not pieces:
        return None
    number = max(piece.number for piece in pieces)
    in_force = {piece.place: piece for piece in pieces if piece.number == number}
    total = next(iter(in_force.values())).total
    if set(in_force) != set(range(total)):
        raise DecisionError(
            f"of the decision's {total} pieces only {len(in_force)} are left: a topic that held some was deleted"
        )
    text = "".join(in_force[index].text for index in range(total))
    try:
        decision = decode(base64.b85decode(text))
    except (ValueError, binascii.Error, zlib.error) as error:
        raise DecisionError(f"the decision cannot be read: {error}") from error
    if decision.number != number:
        raise DecisionError(f"the decision says it is number {decision.number}, its pieces say {number}")
    return decision


def _parse_piece(metadata: str) -> _Piece | None:
    """None for an offset that somebody else committed to the group."""
    parts = metadata.split(" ")
    if len(parts) != 5 or parts[0] != _MARK or not all(part.isdecimal() for part in parts[1:4]):
        return None
    return _Piece(int(parts[1]), int(parts[2]), int(parts[3]), parts[4])


# -- bytes ----------------------------------------------------------------------------------------------
# Column by column and as differences, which are small and alike, so that zlib finds something to do: a
# transaction takes 3 to 5 bytes.


def encode(decision: Decision) -> bytes:
    out = bytearray([FORMAT])
    _put(out, decision.number, decision.batch_id)
    _put_text(out, decision.query_id)
    entries = sorted(decision.entries)
    _put(out, len(entries))
    for column in ("slot", "attempt", "producer_id", "producer_epoch", "rows"):
        _put_differences(out, [getattr(entry, column) for entry in entries])
    by_topic: dict[str, list[Span]] = {}
    for span in sorted(decision.spans):
        by_topic.setdefault(span.topic, []).append(span)
    _put(out, len(by_topic))
    for topic, spans in by_topic.items():
        _put_text(out, topic)
        _put(out, len(spans))
        _put_differences(out, [span.partition for span in spans])
        _put_differences(out, [span.first_offset for span in spans])
        _put_differences(out, [span.last_offset - span.first_offset for span in spans])
    return zlib.compress(bytes(out), 9)


def decode(data: bytes) -> Decision:
    """The decision; ValueError (or zlib.error) if these bytes are none."""
    unpacker = zlib.decompressobj()
    plain = unpacker.decompress(data, MAX_DECISION_BYTES)
    if not unpacker.eof:
        raise ValueError("it is cut short or too large")
    if not plain or plain[0] != FORMAT:
        raise ValueError(f"unknown format {plain[:1].hex()}")
    reader = _Reader(plain[1:])
    number, batch_id = reader.number(), reader.number()
    query_id = reader.text()
    entries = tuple(map(Entry, *_columns(reader, reader.count(), 5)))
    spans = tuple(_spans(reader))
    if reader.left:
        raise ValueError(f"{reader.left} bytes too many")
    return Decision(number, query_id, batch_id, entries, spans)


def _columns(reader: "_Reader", rows: int, columns: int) -> list[list[int]]:
    return [reader.differences(rows) for _ in range(columns)]


def _spans(reader: "_Reader") -> Iterator[Span]:
    for _ in range(reader.count()):
        topic = reader.text()
        partitions, firsts, lengths = _columns(reader, reader.count(), 3)
        for partition, first, length in zip(partitions, firsts, lengths, strict=True):
            yield Span(topic, partition, first, first + length)


def _put(out: bytearray, *numbers: int) -> None:
    for number in numbers:
        assert number >= 0
        while number > 0x7F:
            out.append(number & 0x7F | 0x80)
            number >>= 7
        out.append(number)


def _put_text(out: bytearray, text: str) -> None:
    data = text.encode()
    _put(out, len(data))
    out += data


def _put_differences(out: bytearray, numbers: Sequence[int]) -> None:
    before = 0
    for number in numbers:
        difference = number - before
        _put(out, difference << 1 if difference >= 0 else (-difference << 1) - 1)
        before = number


class _Reader:
    """Reads what _put wrote; ValueError where the bytes end too early."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def number(self) -> int:
        value = shift = 0
        while True:
            if self._at >= len(self._data) or shift > 63:
                raise ValueError("a number is cut short")
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def count(self) -> int:
        """A count of things that take a byte each at least."""
        count = self.number()
        if count > self.left:
            raise ValueError(f"{count} things in {self.left} bytes")
        return count

    def text(self) -> str:
        size = self.count()
        self._at += size
        return self._data[self._at - size : self._at].decode()

    def differences(self, count: int) -> list[int]:
        return list(_sums(self.number, count))


def _sums(read: Callable[[], int], count: int) -> Iterator[int]:
    total = 0
    for _ in range(count):
        number = read()
        total += number >> 1 if number & 1 == 0 else -((number + 1) >> 1)
        yield total


class Fenced(Exception):
    """Somebody else has taken over the decision's transactional id."""


class SinkError(Exception):
    """The batch cannot be committed as it is."""


class OlderCheckpointError(SinkError):
    """A later batch of this query is decided already."""


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

    While `identity` is not fenced nobody else has decided anything: neither taking over nor reading is needed to write.
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


def commit(driver: Driver, written: Written, *, of_stream: bool = False) -> Steps[None]:
    """Make the batch visible, exactly once, whoever has tried before or is trying now.

    The batches `of_stream` come one after the other. From an older checkpoint the same number comes again, with other
    rows than it had: to take it for written would lose them.
    """
    if not written.entries and not written.skipped and not (yield from _is_settled(driver, written)):
        return
    for _ in range(TAKE_OVERS):
        try:
            if _settles(driver, written):
                # Nothing would be written below, so we would not learn that a driver in another process has gone on,
                # or that the group's offsets were deleted.
                driver.forget()
            yield from _known(driver)
            if not _settles(driver, written):
                yield from _decide(driver, written)
            elif of_stream:
                _refuse_if_overtaken(driver, written)
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
    if driver.identity is not None and not _settles(driver, written):
        return False
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


def _refuse_if_overtaken(driver: Driver, written: Written) -> None:
    assert driver.decision is not None
    if driver.decision.batch_id > written.batch_id:
        raise OlderCheckpointError(
            f"batch {driver.decision.batch_id} of query {written.query_id} is written, and its checkpoint is at batch "
            f"{written.batch_id}: it is an older copy, or another run writes from it. Nothing is written; go on "
            "with the newest checkpoint, or with a new one from where the query has ended"
        )


def _gone(written: Written) -> SinkError:
    return SinkError(
        f"batch {written.batch_id} of query {written.query_id} was decided when its tasks began and is not any "
        "more: the offsets of the sink's group have expired or were deleted meanwhile; run the batch again"
    )
