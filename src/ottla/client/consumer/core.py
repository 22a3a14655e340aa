"""The consumer's reading half, without I/O: positions in, Fetch requests out, answers turned into records.

Who assigns the partitions, the application or its group (ottla.client.group), makes no difference here. Each turn
looks up positions that are not known (what the group committed, else ListOffsets), checks positions after a
change of leader (OffsetForLeaderEpoch, KIP-320), and keeps one fetch in flight to each broker, within a session
(KIP-227). What comes back waits, undecoded, until `drain` takes it; meanwhile the next fetch is under way, as
long as what waits is less than fetch_max_bytes. A RequestManager of the network core; owned by one driver.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable
from operator import index
from typing import Any

from ottla.client.config import ConsumerConfig
from ottla.client.consumer.fetch import (
    NO_END,
    CompletedFetch,
    ConsumerRecord,
    FetchedRecords,
    Fetcher,
    FetchSettings,
    FetchSpec,
)
from ottla.client.errors import NoOffsetForPartition, UnsupportedVersion
from ottla.client.lookups import LeaderFanout
from ottla.client.network import NetworkCore
from ottla.client.offsets import EARLIEST, LATEST, epoch_end_question, list_offsets_question
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import NO_LEADER_EPOCH, TopicPartition
from ottla.net.peers import LONG_POLL

RESET_TIMESTAMPS = {"earliest": EARLIEST, "latest": LATEST}


class PartitionPosition:
    """Where a consumer stands in one assigned partition.

    `position` is the offset of the next record the application gets; `fetch_offset` runs ahead of it by what is
    fetched and not yet taken. A partition whose position is not known has a `reset` to look up.
    """

    __slots__ = (
        "attempts",
        "fetch_offset",
        "held",
        "high_watermark",
        "last_stable_offset",
        "log_start_offset",
        "looking_up",
        "needs_committed",
        "not_before_ms",
        "offset_epoch",
        "paused",
        "position",
        "preferred_replica",
        "preferred_until_ms",
        "reset",
        "tp",
        "validated_epoch",
        "validating",
    )

    def __init__(self, tp: TopicPartition) -> None:
        self.tp = tp
        self.position: int | None = None
        self.fetch_offset = -1
        self.offset_epoch = NO_LEADER_EPOCH  # the leader epoch of the record before the position
        self.validated_epoch = NO_LEADER_EPOCH  # the leader epoch under which the position was last checked
        self.validating = False
        self.reset: int | None = None  # the (special) timestamp to look the position up by
        self.looking_up = False
        self.needs_committed = False  # the group may know where it stopped: asked before any reset
        self.held = False  # on its way to us or from us: nothing is fetched or handed out
        self.paused = False
        self.attempts = 0
        self.not_before_ms = float("-inf")
        self.preferred_replica = -1
        self.preferred_until_ms = float("-inf")
        self.high_watermark = -1
        self.last_stable_offset = -1
        self.log_start_offset = -1

    def seek(self, offset: int, offset_epoch: int = NO_LEADER_EPOCH) -> None:
        self.needs_committed = False
        self.position = self.fetch_offset = offset
        self.offset_epoch = offset_epoch
        self.validated_epoch = NO_LEADER_EPOCH  # another position was
        self.reset = None
        self.looking_up = self.validating = False
        self.attempts = 0
        self.not_before_ms = float("-inf")

    def need_reset(self, timestamp: int) -> None:
        self.needs_committed = False
        self.position = None
        self.fetch_offset = -1
        self.offset_epoch = NO_LEADER_EPOCH
        self.reset = timestamp
        self.looking_up = self.validating = False
        self.not_before_ms = float("-inf")

    def advanced(self, position: int, leader_epoch: int) -> None:
        """The application took what came before."""
        self.position = position
        if leader_epoch >= 0:
            self.offset_epoch = leader_epoch

    def is_fetchable(self, now: float) -> bool:
        return (
            self.position is not None
            and not self.paused
            and not self.held
            and not self.validating
            and self.not_before_ms <= now
        )

    def back_off(self, now: float, delay_ms: float) -> None:
        """A fetch, or a lookup of the position, failed with an error that is worth a retry."""
        self.not_before_ms = now + delay_ms

    def prefer(self, replica: int, until_ms: float) -> None:
        """KIP-392: the leader names a replica nearer to us to read from."""
        self.preferred_replica, self.preferred_until_ms = replica, until_ms

    def read_replica(self, now: float) -> int:
        """The replica to read from, or -1 for the leader."""
        return self.preferred_replica if self.preferred_until_ms > now else -1


# The group is about to take the partition from us, or has: the question answers itself.
_NOT_OURS = frozenset(
    {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.FENCED_MEMBER_EPOCH}
)


class PositionFinder:
    """Finds positions: what the group committed, else by timestamp; and checks them after a change of leader (KIP-320).

    Shares the positions with the consumer core, which gives it its turns, and reports to it what went wrong.
    """

    def __init__(
        self,
        network: NetworkCore,
        config: ConsumerConfig,
        positions: dict[TopicPartition, PartitionPosition],
        report: Callable[[KafkaError], None],
        discard: Callable[[TopicPartition], None],
    ) -> None:
        self._network = network
        self._metadata = network.metadata
        self._config = config
        self._positions = positions
        self._report = report
        self._discard = discard
        # Set by the group: asks what was committed for partitions, and calls on_committed for each.
        self.committed_source: Callable[[list[TopicPartition], float], None] | None = None

    def look_up(self, now: float) -> None:
        """Ask for the positions that are not known."""
        timestamps: dict[TopicPartition, int] = {}
        committed: list[TopicPartition] = []
        for tp, state in self._positions.items():
            if state.position is not None or state.looking_up or state.not_before_ms > now:
                continue
            if state.needs_committed:
                state.looking_up = True
                committed.append(tp)
                continue
            timestamp = state.reset if state.reset is not None else self._reset_policy(state)
            if timestamp is not None:
                state.reset, state.looking_up = timestamp, True
                timestamps[tp] = timestamp
        if committed and self.committed_source is not None:
            self.committed_source(committed, now)
        if not timestamps:
            return
        question = list_offsets_question(
            timestamps, self._network, read_committed=self._config.read_committed
        )

        def found(tp: TopicPartition, result: Any, error: KafkaError | None, now: float) -> None:
            self._on_position(tp, timestamps[tp], result, error, now)

        LeaderFanout(self._network, timestamps, question, found, float("inf"))

    def on_committed(
        self, tp: TopicPartition, at: tuple[int, int] | None, error: KafkaError | None, now: float
    ) -> None:
        """The group has said where it stopped (offset and epoch); None: it never read this partition."""
        state = self._positions.get(tp)
        if state is None or not state.needs_committed:
            return  # moved or unassigned meanwhile
        state.looking_up = False
        if error is not None:
            if error.code in _NOT_OURS:
                # The member hears of it with its next heartbeat only.
                state.back_off(now, self._config.retry_backoff_ms)
                return
            # As with a lookup by time: whoever lacks a right may be given it.
            state.back_off(now, self._config.retry_backoff_max_ms)
            self._report(error)
            return
        state.needs_committed = False
        if at is not None:
            state.seek(*at)

    def _reset_policy(self, state: PartitionPosition) -> int | None:
        timestamp = RESET_TIMESTAMPS.get(self._config.auto_offset_reset)
        if timestamp is None:
            state.looking_up = True  # reported once; a seek starts it again
            self._report(NoOffsetForPartition(f"{state.tp} has no position and auto_offset_reset is none"))
        return timestamp

    def _on_position(
        self, tp: TopicPartition, asked: int, result: Any, error: KafkaError | None, now: float
    ) -> None:
        state = self._positions.get(tp)
        if state is None or state.reset != asked or state.position is not None:
            return  # moved or unassigned meanwhile
        if error is not None:
            # Whoever lacks a right may be given it, a partition may be added: the application hears of it.
            state.looking_up = False
            state.back_off(now, self._config.retry_backoff_max_ms)
            self._report(error)
            return
        if result.offset < 0:
            # No record at or after the timestamp: the end is where the next one will be.
            state.need_reset(LATEST)
            return
        state.seek(result.offset)
        state.validated_epoch = result.leader_epoch

    def validate(self, now: float) -> None:
        """After a change of leader, see that the log still holds what we have read (KIP-320)."""
        epochs: dict[TopicPartition, int] = {}
        asked_at: dict[TopicPartition, int] = {}
        for tp, state in self._positions.items():
            current = self._metadata.leader_epoch(tp)
            if state.position is None or state.validating or current <= state.validated_epoch:
                continue
            if state.offset_epoch < 0:
                state.validated_epoch = current  # nothing read yet, nothing to check
                continue
            state.validating = True
            epochs[tp], asked_at[tp] = state.offset_epoch, state.position
        if not epochs:
            return

        def answered(tp: TopicPartition, end: Any, error: KafkaError | None, now: float) -> None:
            self._on_epoch_end(tp, asked_at[tp], end, error)

        question = epoch_end_question(epochs, self._metadata)
        LeaderFanout(self._network, epochs, question, answered, float("inf"))

    def _on_epoch_end(self, tp: TopicPartition, asked_at: int, end: Any, error: KafkaError | None) -> None:
        state = self._positions.get(tp)
        if state is None or not state.validating:
            return
        state.validating = False
        if state.position != asked_at:
            # The application has taken what was fetched before, perhaps of later epochs: the next turn asks again.
            return
        state.validated_epoch = self._metadata.leader_epoch(tp)
        if error is not None:
            if not isinstance(error, UnsupportedVersion):
                self._report(error)
            return
        if state.position is None or end.end_offset < 0 or end.end_offset >= state.position:
            return
        self._discard(tp)
        if self._config.auto_offset_reset == "none":
            self._report(
                KafkaError(
                    ErrorCode.OFFSET_OUT_OF_RANGE,
                    f"{tp}: the log was truncated to {end.end_offset}, the position was {state.position}",
                )
            )
        state.seek(end.end_offset, end.leader_epoch)
        state.validated_epoch = self._metadata.leader_epoch(tp)


Records = dict[TopicPartition, list[ConsumerRecord]]


class ConsumerCore:
    """The partitions of one consumer: their positions, what was fetched of them, and errors for the application."""

    def __init__(self, network: NetworkCore, config: ConsumerConfig) -> None:
        self._network = network
        self._metadata = network.metadata
        self._config = config
        self._positions: dict[TopicPartition, PartitionPosition] = {}
        self._fetched: deque[FetchedRecords] = deque()
        self.buffered_bytes = 0  # how much waits to be taken, also for partitions that are paused
        self._errors: deque[KafkaError] = deque()
        self._is_error_overdue = False
        self._fetcher = Fetcher(network, _fetch_settings(config), self)
        self._opener = config.opener()
        self.finder = PositionFinder(network, config, self._positions, self.report, self._discard)
        network.request_managers.append(self)
        # A password may have been changed, a user may be gone: without a word no poll would ever have records again.
        network.on_refused = self.report

    # -- what the application says --------------------------------------------------------------------

    @property
    def assignment(self) -> set[TopicPartition]:
        return set(self._positions)

    def assign(self, partitions: Iterable[TopicPartition], now: float) -> None:
        """Read from these partitions and no others; positions of those kept are kept."""
        wanted = set(partitions)
        self.remove(self._positions.keys() - wanted)
        added = wanted - self._positions.keys()
        self.add(added, now)
        self.release(added)

    def add(self, partitions: Iterable[TopicPartition], now: float) -> None:
        """Read from these too, once they are released."""
        for tp in sorted(partitions):
            if tp in self._positions:
                continue
            state = self._positions[tp] = PartitionPosition(tp)
            state.held = True
            state.needs_committed = self.finder.committed_source is not None
            self._metadata.want(tp.topic, now)

    def hold(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetch and hand out nothing of these for now."""
        for tp in partitions:
            if tp in self._positions:
                self._positions[tp].held = True

    def release(self, partitions: Iterable[TopicPartition]) -> None:
        for tp in partitions:
            if tp in self._positions:
                self._positions[tp].held = False

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        """Read no more from these."""
        for tp in list(partitions):
            self._discard(tp)
            self._positions.pop(tp, None)

    def positions(self) -> dict[TopicPartition, tuple[int, int]]:
        """Where the application stands: the offset of the next record, the leader epoch of the one before."""
        return {
            tp: (state.position, state.offset_epoch)
            for tp, state in self._positions.items()
            if state.position is not None
        }

    def seek(self, tp: TopicPartition, offset: int, leader_epoch: int = -1) -> None:
        offset = index(offset)  # half of an end is a float: no request could carry it, nor anything beside it
        if offset < 0:
            raise ValueError(f"an offset is not negative: {offset}")
        if offset > NO_END:
            raise ValueError(f"an offset has 63 bits: {offset}")
        self._discard(tp)
        self.at(tp).seek(offset, leader_epoch)

    def seek_to(self, partitions: Iterable[TopicPartition], timestamp: int) -> None:
        """Look the position up by a (special) timestamp at the next occasion."""
        for tp in partitions:
            self._discard(tp)
            self.at(tp).need_reset(timestamp)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        for tp in partitions:
            self.at(tp).paused = True

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        for tp in partitions:
            self.at(tp).paused = False

    def paused(self) -> set[TopicPartition]:
        return {tp for tp, state in self._positions.items() if state.paused}

    def get(self, tp: TopicPartition) -> PartitionPosition | None:
        return self._positions.get(tp)

    def at(self, tp: TopicPartition) -> PartitionPosition:
        """The state of an assigned partition."""
        state = self._positions.get(tp)
        if state is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{tp} is not assigned to this consumer")
        return state

    # -- what the application gets --------------------------------------------------------------------

    def report(self, error: KafkaError) -> None:
        """Have a drain raise this: once, however often it comes before one does."""
        if not any(e.code is error.code and e.message == error.message for e in self._errors):
            self._errors.append(error)

    def has_error(self) -> bool:
        return bool(self._errors)

    def take_error(self) -> KafkaError:
        """The error a drain would raise next."""
        return self._errors.popleft()

    def lag(self, tp: TopicPartition) -> int | None:
        """How many records are left to read, by the last fetch; None before there was one."""
        state = self.at(tp)
        end = state.last_stable_offset if self._config.read_committed else state.high_watermark
        return None if state.position is None or end < 0 else max(end - state.position, 0)

    def has_data(self) -> bool:
        """Would drain return or raise something?"""
        return bool(self._errors) or any(self._is_drainable(fetched) for fetched in self._fetched)

    def drain(self, max_records: int) -> Records:
        """Records that have arrived, at most so many; or an error, if no record comes before it or the last call had
        records when it should have been raised."""
        is_overdue, self._is_error_overdue = self._is_error_overdue, False
        if is_overdue and self._errors:
            raise self._errors.popleft()
        out: Records = {}
        held: list[FetchedRecords] = []
        try:
            while max_records > 0 and self._fetched:
                fetched = self._fetched.popleft()
                if not self._is_drainable(fetched):
                    held.append(fetched)
                    continue
                max_records -= self._take(fetched, max_records, out)
        finally:
            self._fetched.extendleft(reversed(held))
        if not out and self._errors:
            raise self._errors.popleft()
        # Where one partition is always good for records, the error of another would never be heard of.
        self._is_error_overdue = bool(self._errors)
        return out

    def next_record(self) -> ConsumerRecord | None:
        """The next record, if it is at hand; else None, and `drain` has to be asked."""
        if self._errors or not self._fetched:
            return None
        fetched = self._fetched[0]
        state = self._positions.get(fetched.tp)
        if state is None or state.paused or state.held:
            return None
        record = fetched.next()
        if record is not None:
            state.advanced(record.offset + 1, record.leader_epoch)
        return record

    def _is_drainable(self, fetched: FetchedRecords) -> bool:
        state = self._positions.get(fetched.tp)
        return state is not None and not state.paused and not state.held

    def _drainable_bytes(self) -> int:
        """What waits, without that of paused partitions, which nobody takes."""
        return sum(fetched.size_bytes for fetched in self._fetched if self._is_drainable(fetched))

    def _take(self, fetched: FetchedRecords, limit: int, out: Records) -> int:
        """Move records from one fetch to `out`; puts the rest of the fetch back at the front."""
        state = self._positions[fetched.tp]
        try:
            records = fetched.take(limit)
        except KafkaError as error:
            # Fetched again next time; whoever wants to get past it seeks.
            self.buffered_bytes -= fetched.size_bytes
            self._discard(fetched.tp)
            state.fetch_offset = state.position if state.position is not None else -1
            self._errors.append(error)
            return limit
        state.advanced(fetched.next_offset, fetched.leader_epoch)
        if records:
            out.setdefault(fetched.tp, []).extend(records)
        if fetched.is_empty:
            self.buffered_bytes -= fetched.size_bytes
        else:
            self._fetched.appendleft(fetched)
        return len(records)

    def _discard(self, tp: TopicPartition) -> None:
        """Forget what was fetched for a partition."""
        for fetched in [fetched for fetched in self._fetched if fetched.tp == tp]:
            self._fetched.remove(fetched)
            self.buffered_bytes -= fetched.size_bytes

    # -- the turn -------------------------------------------------------------------------------------

    def step(self, now: float) -> None:
        self._note_topics(now)
        self.finder.look_up(now)
        self.finder.validate(now)
        for node_id, wanted in self._fetches(now).items():
            self._fetcher.fetch(node_id, wanted, now)

    def next_deadline(self, now: float) -> float:
        moments = [state.not_before_ms for state in self._positions.values()]
        moments.append(self._fetcher.next_deadline(now))
        return min((moment for moment in moments if moment > now), default=float("inf"))

    def close(self, now: float) -> None:
        """Close the fetch sessions at the brokers; nobody waits for the answer."""
        self._fetcher.close(now)

    def _note_topics(self, now: float) -> None:
        for topic in {tp.topic for tp in self._positions}:
            self._metadata.want(topic, now)
            info = self._metadata.topic(topic)
            if info is not None and info.error is not None and not info.error.retriable:
                self.report(KafkaError(info.error, f"topic {topic!r}: {info.error.name}"))

    # -- fetching -------------------------------------------------------------------------------------

    def _fetches(self, now: float) -> dict[int, dict[TopicPartition, FetchSpec]]:
        """What to fetch from whom; brokers with a fetch in flight, or backing off, are left alone."""
        by_node: dict[int, dict[TopicPartition, FetchSpec]] = {}
        limit = self._config.fetch_max_bytes
        have_enough: Collection[TopicPartition] = ()
        if self.buffered_bytes >= limit:
            if self._drainable_bytes() >= limit:
                return by_node
            # What paused partitions have does not keep others waiting, but each of those is fetched once only.
            have_enough = {fetched.tp for fetched in self._fetched}
        for tp, state in self._positions.items():
            if not state.is_fetchable(now) or tp in have_enough:
                continue
            node_id = self._node_for(tp, state, now)
            if node_id is None:
                self._metadata.invalidate()
            elif self._fetcher.is_free(node_id, now):
                by_node.setdefault(node_id, {})[tp] = FetchSpec(
                    self._metadata.topic_id(tp.topic),
                    state.fetch_offset,
                    self._metadata.leader_epoch(tp),
                    self._config.max_partition_fetch_bytes,
                )
        return by_node

    def _node_for(self, tp: TopicPartition, state: PartitionPosition, now: float) -> int | None:
        replica = state.read_replica(now)
        if replica >= 0 and replica in self._metadata.nodes:
            return replica
        leader = self._metadata.leader_of(tp)
        return None if leader is None else leader.node_id

    # -- what came of it (Reader) ---------------------------------------------------------------------

    def wanted_offset(self, tp: TopicPartition) -> int | None:
        state = self._positions.get(tp)
        return None if state is None or state.position is None else state.fetch_offset

    def on_fetched(self, fetch: CompletedFetch, preferred_replica: int, now: float) -> None:
        state = self._positions[fetch.tp]
        state.attempts = 0
        state.high_watermark = fetch.high_watermark
        state.last_stable_offset = fetch.last_stable_offset
        state.log_start_offset = fetch.log_start_offset
        if preferred_replica >= 0:
            state.prefer(preferred_replica, now + self._config.metadata_max_age_ms)
        if len(fetch.data):
            state.fetch_offset = fetch.next_offset
            fetched = FetchedRecords(fetch, opener=self._opener)
            self._fetched.append(fetched)
            self.buffered_bytes += fetched.size_bytes

    def on_refused(self, tp: TopicPartition, error: KafkaError, node_id: int, now: float) -> None:
        state = self._positions[tp]
        state.attempts += 1
        state.back_off(now, self._network.retry_delay_ms(state.attempts))
        if state.read_replica(now) == node_id:
            state.prefer(-1, float("-inf"))  # whatever it was, ask the leader
            return
        if error.code is ErrorCode.OFFSET_OUT_OF_RANGE:
            self._out_of_range(state)
        elif not error.code.retriable:
            self.report(error)

    def on_corrupt(self, tp: TopicPartition, error: KafkaError) -> None:
        self._errors.append(error)
        self._positions[tp].back_off(float("inf"), 0)

    def on_node_error(self, node_id: int, error: KafkaError, now: float) -> None:
        if not error.code.retriable:
            self.report(error)

    def on_lost(self, node_id: int, error: KafkaError, now: float) -> None:
        pass  # the fetcher tries again, at whoever leads then

    def _out_of_range(self, state: PartitionPosition) -> None:
        timestamp = RESET_TIMESTAMPS.get(self._config.auto_offset_reset)
        if any(fetched.tp == state.tp for fetched in self._fetched):
            return  # what was fetched before comes first; the next fetch will say it again
        if timestamp is None:
            self.report(
                NoOffsetForPartition(
                    f"{state.tp}: offset {state.fetch_offset} is out of range and auto_offset_reset is none"
                )
            )
            return
        state.need_reset(timestamp)


def _fetch_settings(config: ConsumerConfig) -> FetchSettings:
    return FetchSettings(
        max_wait_ms=config.fetch_max_wait_ms,
        min_bytes=config.fetch_min_bytes,
        max_bytes=config.fetch_max_bytes,
        request_timeout_ms=config.request_timeout_ms,
        read_committed=config.read_committed,
        check_crcs=config.check_crcs,
        rack=config.client_rack,
        channel=LONG_POLL,
    )
