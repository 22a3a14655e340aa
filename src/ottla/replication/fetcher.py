"""ReplicaFetcher: how a follower copies its leaders' logs (Kafka's AbstractFetcherThread and FetchSessionHandler).

One object follows, over one connection, some of the partitions that one broker leads. It says what to ask next
(`next_request`) and is told what came of it (`on_response`, `on_failure`); one request is on its way at a time. It has
no socket, clock or await.

Rules:
- Fetches are incremental (KIP-227): a request names the partitions of which something has changed since the one before,
  so an idle fetch costs nothing for each partition. A session that is new is filled by a bounded number of partitions
  a request.
- An answer counts for a partition only if that still stands at the offset and the leader epoch for which it was asked;
  the same is checked again whenever the loop was given to others in the middle of an answer.
- Where the logs part is said by the leader in the fetch's answer (KIP-595), as often as it takes (KIP-279). If the
  offset is not in the leader's log, the leader is asked where that begins and ends.
- What goes wrong with one partition concerns that one: it is asked for again after `replica.fetch.backoff.ms` (sooner
  where the leader only has not heard yet what this broker knows: producers wait for it), or not before its leader epoch
  changes, if its disk or its epoch is what is wrong. What goes wrong with the connection lets all of them wait for
  that time.
- While the follower's quota is exceeded, throttled partitions that lag are left out of fetches (KIP-73). When there is
  room some of them are taken in again, those first that have waited longest. Whether a partition lags is known from the
  last answer; one that was followed before anything was throttled is asked for once more to know it.

Owner: the ReplicaFetcherManager, on the broker's loop.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from math import inf
from struct import Struct
from typing import Final, NamedTuple

from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import NO_LEADER_EPOCH, Uuid, next_session_epoch
from ottla.model.time_slice import Steps
from ottla.records.batch import HEADER_SIZE, LOG_OVERHEAD
from ottla.replication.partition import Partition
from ottla.replication.quotas import ReplicationQuotaManager
from ottla.security.acls import NODE_IS_REFUSED
from ottla.storage.errors import OutOfFilesError, StorageError
from ottla.storage.log.log import Truncation
from ottla.wire.messages.fetch import (
    EpochEndOffset,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ReplicaState,
)
from ottla.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

logger = logging.getLogger("ottla.replication")

LATEST_TIMESTAMP: Final = -1
EARLIEST_TIMESTAMP: Final = -2
UNDEFINED_EPOCH_OFFSET: Final = -1

INVALID_SESSION_ID: Final = 0
INITIAL_EPOCH: Final = 0

# How many partitions a request names while its session is being filled: more would hold the loop.
MAX_NAMED: Final = 200
# How many of those that were held back are taken in again by a request: a quota is used up by few, and the others would
# be named and forgotten with every change.
MAX_RELEASED: Final = 50
# What is appended before others may have the loop. A batch larger than that is one piece.
PIECE_BYTES: Final = 1 << 20
PIECE_BATCHES: Final = 256
# A truncation that has more than this to read, to know who has written what is left, has it read in a thread first.
MAX_REPLAYED_BYTES: Final = 1 << 20
# The first pause after an error that passes by itself; each one after that is twice as long, up to the back-off.
FIRST_RETRY_MS: Final = 20
# How often it is looked whether retention has moved the start of a log of ours, of which the leader then hears.
LOG_START_CHECK_MS: Final = 5_000
# Answers in a row that say nothing and came long before the leader should have given up waiting for news; after these
# the follower waits in its stead.
MAX_EMPTY_ANSWERS: Final = 5

_LENGTH: Final = Struct(">i").unpack_from

# A partition in a session: the topic's id and the partition's index.
Key = tuple[Uuid, int]
Request = FetchRequest | ListOffsetsRequest

# Errors that pass while a partition is created, deleted or moved; how loud the log is about those that do not.
_TRANSIENT: Final[dict[int, int]] = {
    ErrorCode.UNKNOWN_LEADER_EPOCH: logging.DEBUG,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: logging.DEBUG,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: logging.WARNING,
    ErrorCode.UNKNOWN_TOPIC_ID: logging.WARNING,
    ErrorCode.INCONSISTENT_TOPIC_ID: logging.WARNING,
}
_CORRUPT: Final = (ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD)


class FetcherSettings(NamedTuple):
    """How a follower fetches; the names are those of Kafka's keys replica.fetch.*."""

    backoff_ms: int = 1_000
    wait_max_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = 1 << 20
    response_max_bytes: int = 10 << 20


class Asked(NamedTuple):
    """What the leader's session knows of a partition."""

    offset: int
    leader_epoch: int
    last_fetched_epoch: int
    log_start_offset: int


@dataclass(slots=True, eq=False)
class PartitionFetchState:
    """One partition that is followed, in one leader epoch."""

    partition: Partition
    leader_epoch: int
    offset: int
    last_fetched_epoch: int
    # Not asked for before; 0 while nothing is wrong.
    delayed_until_ms: float = 0
    # The timestamp by which the leader is asked for an end of its log, while the offset is out of range.
    lookup: int | None = None
    # The offset that was out of range though the leader's log has it: once that is a race, twice it is not.
    refused_offset: int = -1
    # Where it is to be cut, once what that needs has been read, or there are descriptors again.
    cut_at: int | None = None
    # How often in a row the leader has refused it for what passes by itself.
    refusals: int = 0
    # What the log has last said of it: a partition that goes on to fail does not say so every second.
    complaint: str = ""
    # Is it left out, as it lags and is throttled, until there is room?
    is_held_back: bool = False

    @property
    def is_ready(self) -> bool:
        return (
            not self.delayed_until_ms
            and self.lookup is None
            and self.cut_at is None
            and not self.is_held_back
        )


class FetchSession:
    """The leader's memory of what is fetched, as far as this side of it goes (KIP-227)."""

    __slots__ = ("epoch", "id", "partitions")

    def __init__(self) -> None:
        self.id = INVALID_SESSION_ID
        self.epoch = INITIAL_EPOCH
        self.partitions: dict[Key, Asked] = {}

    @property
    def is_full(self) -> bool:
        """Does the next request say everything anew?"""
        return self.epoch == INITIAL_EPOCH

    def begin_anew(self) -> None:
        """The leader has no session of ours."""
        self.id, self.epoch = INVALID_SESSION_ID, INITIAL_EPOCH

    def replace(self) -> None:
        """The leader may still have the session: it is closed by the request that asks for another."""
        self.epoch = INITIAL_EPOCH

    def problem_of(self, named: set[Key], session_id: int) -> str | None:
        """Why an answer about these partitions, of this session, cannot be one to our request; None if it can."""
        if not self.is_full and session_id not in (self.id, INVALID_SESSION_ID):
            return f"session {session_id}, where {self.id} was asked for"
        extra = [key for key in named if key not in self.partitions]
        if extra:
            return f"{len(extra)} partitions that were not asked for"
        if self.is_full and len(named) < len(self.partitions):
            return f"{len(self.partitions) - len(named)} partitions less than were asked for"
        return None

    def answered(self, session_id: int) -> None:
        """A good answer came: the session it names goes on, if it names one."""
        if session_id == INVALID_SESSION_ID:
            self.begin_anew()
        else:
            self.id, self.epoch = session_id, next_session_epoch(self.epoch)


class ReplicaFetcher:
    """Follows partitions that one broker leads."""

    def __init__(
        self,
        node_id: int,
        leader_id: int,
        settings: FetcherSettings,
        broker_epoch: Callable[[], int],
        quota: ReplicationQuotaManager | None = None,
    ) -> None:
        """`broker_epoch` is that of this broker's registration (KIP-903), `quota` that of all its fetchers (KIP-73)."""
        self._node_id = node_id
        self._leader_id = leader_id
        self._settings = settings
        self._broker_epoch = broker_epoch
        self._states: dict[Key, PartitionFetchState] = {}
        # Partitions that are not followed until they get another leader epoch, for which the manager has to call.
        self.failed: dict[Key, Partition] = {}
        self._session = FetchSession()
        # Of these the session may have to hear something; have there been any since that may be over?
        self._changed: dict[Key, None] = {}
        self._may_be_outdated = False
        self._delayed: dict[Key, PartitionFetchState] = {}
        self._lookups: dict[Key, PartitionFetchState] = {}
        self._cuts: dict[Key, PartitionFetchState] = {}
        self._quota = quota or ReplicationQuotaManager()
        # Throttled partitions that lag: those that are asked for, those that are left out, and when to look again.
        self._lagging: dict[Key, PartitionFetchState] = {}
        self._held_back: dict[Key, PartitionFetchState] = {}
        self._room_ms = 0.0
        # Their logs may have more than flush.messages allows that is not on the disk.
        self._unflushed: dict[Key, Partition] = {}
        # What the ListOffsets on its way asks for.
        self._looked_up: dict[tuple[str, int], tuple[Key, PartitionFetchState, int]] = {}
        self._now_ms = 0.0
        self._paused_until_ms = 0.0
        self._log_starts_checked_ms = 0.0
        self._is_sessionless = False
        # Answers in a row of which nothing could be used.
        self._refusals = 0
        # When the last fetch was asked for; until when the leader should wait if there are no news.
        self._asked_ms = self._answer_due_ms = 0.0
        # Was anything in the last answer; if not, how many such have come in a row too early?
        self._has_news = False
        self._empty_answers = 0
        self._is_connected = True

    def __repr__(self) -> str:
        return f"ReplicaFetcher(leader={self._leader_id}, partitions={len(self._states)})"

    # ---- which partitions ---------------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """Is there nothing left to follow?"""
        return not self._states

    @property
    def partitions(self) -> list[Partition]:
        return [state.partition for state in self._states.values()]

    def state_of(self, partition: Partition) -> PartitionFetchState | None:
        return self._states.get(_key(partition))

    def add(self, partition: Partition) -> None:
        """Follow a partition from the end of its log on, in the leader epoch that it has now."""
        key = _key(partition)
        current = self._states.get(key)
        if (
            current is not None
            and current.partition is partition
            and current.leader_epoch == partition.leader_epoch
        ):
            return
        self.failed.pop(key, None)
        self._forget(key)
        log = partition.log
        state = PartitionFetchState(partition, partition.leader_epoch, log.log_end_offset, log.epochs.latest)
        self._states[key] = state
        self._changed[key] = None
        if self._quota.is_on and self._quota.is_throttled(partition.topic_partition):
            self._lagging[key] = state  # as far as is known
        if partition.flushes_on_append:
            self._unflushed[key] = partition  # another fetcher may have appended it a moment ago
        if state.last_fetched_epoch == NO_LEADER_EPOCH and log.high_watermark < log.log_end_offset:
            # The leader cannot be asked where the logs part: what is not committed is given up, as in Kafka.
            self._truncate(key, state, log.high_watermark, "its batches have no leader epochs")

    def remove(self, partition: Partition) -> None:
        """Follow it no more."""
        key = _key(partition)
        self.failed.pop(key, None)
        state = self._states.get(key)
        if state is not None and state.partition is partition:
            self._forget(key)

    def _forget(self, key: Key) -> None:
        if self._states.pop(key, None) is not None:
            self._delayed.pop(key, None)
            self._lookups.pop(key, None)
            self._cuts.pop(key, None)
            self._lagging.pop(key, None)
            self._held_back.pop(key, None)
            self._unflushed.pop(key, None)
            self._changed[key] = None
            self._may_be_outdated = True

    # ---- asking -------------------------------------------------------------------------------------------

    def next_request(self, now_ms: float) -> Request | None:
        """What to ask the leader now; None if there is nothing to ask before `next_due_ms` or a change."""
        self._now_ms = now_ms
        if now_ms < self._paused_until_ms:
            return None
        self._wake_delayed(now_ms)
        if self._lookups:
            return self._list_offsets()
        if now_ms - self._log_starts_checked_ms >= LOG_START_CHECK_MS:
            self._log_starts_checked_ms = now_ms
            self._note_log_starts()
        if self._quota.is_on:
            self._keep_to_quota(now_ms)
        request = self._fetch()
        if request is not None:
            self._asked_ms = now_ms
            waits = request.min_bytes > 0 and bool(self._session.partitions)
            self._answer_due_ms = now_ms + (request.max_wait_ms if waits else 0)
        return request

    def next_due_ms(self) -> float:
        """When something is to be asked again that waits now."""
        if self._states and self._paused_until_ms:
            return self._paused_until_ms
        due_ms = min((state.delayed_until_ms for state in self._delayed.values()), default=inf)
        return min(due_ms, self._room_ms) if self._held_back else due_ms

    def _wake_delayed(self, now_ms: float) -> None:
        self._paused_until_ms = 0
        for key, state in list(self._delayed.items()):
            # One whose flush has failed is flushed first, however short its delay is, and one that is to be cut is cut.
            if (
                state.delayed_until_ms <= now_ms
                and not self._must_flush(key)
                and not self._is_to_be_cut_again(key, state)
            ):
                state.delayed_until_ms = 0
                del self._delayed[key]
                self._changed[key] = None

    def _note_log_starts(self) -> None:
        states = self._states
        for key, asked in self._session.partitions.items():
            state = states.get(key)
            if state is not None and state.partition.log.log_start_offset != asked.log_start_offset:
                self._changed[key] = None

    def _fetch(self) -> FetchRequest | None:
        session, states, changed = self._session, self._states, self._changed
        if self._may_be_outdated and len(changed) > MAX_NAMED and not session.is_full and self._is_outdated():
            # The leader tells the errors of all of them in every answer until it has heard of each: it forgets them.
            session.replace()
        if session.is_full:
            session.partitions.clear()
            changed.clear()
            changed.update(dict.fromkeys(states))
        asked_of, max_bytes = session.partitions, self._settings.max_bytes
        topics: dict[Uuid, list[FetchPartition]] = {}
        forgotten: dict[Uuid, list[int]] = {}
        limit = len(changed) if self._is_sessionless else MAX_NAMED
        while changed and limit > 0:
            key = next(iter(changed))
            del changed[key]
            state = states.get(key)
            topic_id, index = key
            if state is None or not state.is_ready:
                if asked_of.pop(key, None) is not None:
                    forgotten.setdefault(topic_id, []).append(index)
                    limit -= 1
                continue
            asked = Asked(
                state.offset,
                state.leader_epoch,
                state.last_fetched_epoch,
                state.partition.log.log_start_offset,
            )
            if asked_of.get(key) == asked:
                continue
            asked_of[key] = asked
            limit -= 1
            topics.setdefault(topic_id, []).append(
                FetchPartition(
                    partition=index,
                    current_leader_epoch=asked.leader_epoch,
                    fetch_offset=asked.offset,
                    last_fetched_epoch=asked.last_fetched_epoch,
                    log_start_offset=asked.log_start_offset,
                    partition_max_bytes=max_bytes,
                )
            )
        if not asked_of and not forgotten:
            return None
        settings = self._settings
        return FetchRequest(
            replica_state=ReplicaState(replica_id=self._node_id, replica_epoch=self._broker_epoch()),
            # While there is more to name the leader need not wait for news of what it knows already.
            max_wait_ms=0 if changed else settings.wait_max_ms,
            min_bytes=settings.min_bytes,
            max_bytes=settings.response_max_bytes,
            session_id=session.id,
            session_epoch=session.epoch,
            topics=[FetchTopic(topic_id=topic_id, partitions=named) for topic_id, named in topics.items()],
            forgotten_topics_data=[
                ForgottenTopic(topic_id=topic_id, partitions=indexes)
                for topic_id, indexes in forgotten.items()
            ],
        )

    def _is_outdated(self) -> bool:
        """Are very many partitions in the session in a leader epoch that is over, or though they are not asked for?"""
        self._may_be_outdated = False
        asked_of, states = self._session.partitions, self._states
        count = 0
        for key in self._changed:
            if asked := asked_of.get(key):
                state = states.get(key)
                count += state is None or not state.is_ready or state.leader_epoch != asked.leader_epoch
                if count > MAX_NAMED:
                    return True
        return False

    def _list_offsets(self) -> ListOffsetsRequest:
        """Ask where the leader's logs end, and of those that end after ours where they begin."""
        topics: dict[str, list[ListOffsetsPartition]] = {}
        self._looked_up.clear()
        for key, state in list(self._lookups.items())[:MAX_NAMED]:
            assert state.lookup is not None
            name, index = state.partition.topic_partition
            self._looked_up[name, index] = key, state, state.lookup
            topics.setdefault(name, []).append(
                ListOffsetsPartition(
                    partition_index=index, current_leader_epoch=state.leader_epoch, timestamp=state.lookup
                )
            )
        return ListOffsetsRequest(
            replica_id=self._node_id,
            topics=[ListOffsetsTopic(name=name, partitions=asked) for name, asked in topics.items()],
        )

    # ---- throttles ----------------------------------------------------------------------------------------

    def quota_changed(self) -> None:
        """Other partitions are throttled now, or by another rate: the next request asks the quota anew."""
        known = self._lagging | self._held_back
        self._release(len(self._held_back))
        quota = self._quota
        self._lagging = {
            key: state
            for key, state in known.items()
            if quota.is_on and quota.is_throttled(state.partition.topic_partition)
        }

    def _keep_to_quota(self, now_ms: float) -> None:
        """Leave out those that lag while there is no room, and take some in again when there is."""
        if not self._quota.is_quota_exceeded(now_ms):
            self._room_ms = now_ms
            self._release(MAX_RELEASED)
            return
        self._room_ms = self._quota.room_ms(now_ms)
        if self._lagging:
            for key, state in self._lagging.items():
                state.is_held_back = True
                self._changed[key] = None
            self._may_be_outdated = True
            self._held_back |= self._lagging
            self._lagging.clear()

    def _release(self, at_most: int) -> None:
        for key, state in list(islice(self._held_back.items(), at_most)):
            del self._held_back[key]
            state.is_held_back = False
            self._lagging[key] = state
            self._changed[key] = None

    def _note_throttled(self, response: FetchResponse, now_ms: float) -> None:
        """What came of throttled partitions counts, in sync or not; which of them lag is known from here."""
        quota, session, size_bytes = self._quota, self._session.partitions, 0
        for topic in response.responses:
            for data in topic.partitions:
                key = topic.topic_id, data.partition_index
                state = self._states.get(key)
                if (
                    state is None
                    or key not in session
                    or not quota.is_throttled(state.partition.topic_partition)
                ):
                    continue
                size_bytes += len(data.records or b"")
                if data.error_code or data.diverging_epoch.epoch >= 0 or state.is_held_back:
                    continue
                if data.high_watermark > state.offset:
                    self._lagging[key] = state
                else:
                    self._lagging.pop(key, None)
        if size_bytes:
            quota.record(size_bytes, now_ms)

    # ---- answers ------------------------------------------------------------------------------------------

    def on_response(self, response: FetchResponse | ListOffsetsResponse, now_ms: float) -> Steps[None]:
        """The answer to the last request, dealt with in steps; the next request comes after the last of them."""
        if not self._is_connected:
            self._is_connected = True
            logger.info("following broker %d again", self._leader_id)
        if isinstance(response, ListOffsetsResponse):
            yield from self._on_offsets(response, now_ms)
        elif self._accepts(response, now_ms):
            self._has_news = False
            for topic in response.responses:
                for data in topic.partitions:
                    key = topic.topic_id, data.partition_index
                    try:
                        yield from self._on_partition(key, data, now_ms)
                    except Exception as error:  # noqa: BLE001 - the boundary of one partition: the others go on
                        self._fail_if_followed(key, error)
            if self._quota.is_on:
                self._note_throttled(response, now_ms)
            self._wait_if_leader_does_not(now_ms)

    def _wait_if_leader_does_not(self, now_ms: float) -> None:
        """A leader without news answers when the time is up. One that does not would be asked again without a pause."""
        if self._has_news or now_ms - self._asked_ms >= (self._answer_due_ms - self._asked_ms) / 2:
            self._empty_answers = 0
            return
        self._empty_answers += 1
        if self._empty_answers > MAX_EMPTY_ANSWERS:
            if self._empty_answers == MAX_EMPTY_ANSWERS + 1:
                logger.warning("broker %d answers fetches at once and with nothing", self._leader_id)
            self._paused_until_ms = self._answer_due_ms

    def on_failure(self, error: Exception, now_ms: float) -> None:
        """The last request was not answered, or could not be sent."""
        if self._is_connected:
            self._is_connected = False
            logger.warning("cannot follow broker %d, trying again: %s", self._leader_id, error)
        self._session.replace()
        self._pause(now_ms)

    def _pause(self, now_ms: float) -> None:
        # With a back-off of 0 the next turn of the loop is soon enough.
        self._paused_until_ms = now_ms + max(self._settings.backoff_ms, 1)

    def _accepts(self, response: FetchResponse, now_ms: float) -> bool:
        """Is this an answer to what was asked? Then its session goes on, and it can be used."""
        session = self._session
        problem: str | None
        if response.error_code:
            problem = _name_of(response.error_code)
            if response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
                session.begin_anew()
            else:
                session.replace()
            # A session that was evicted is made anew at once; whoever refuses that too is asked after a while.
            is_serious = response.error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        else:
            named = {
                (topic.topic_id, data.partition_index)
                for topic in response.responses
                for data in topic.partitions
            }
            problem = session.problem_of(named, response.session_id)
            is_serious = False
            if problem is None:
                self._is_sessionless = session.is_full and response.session_id == INVALID_SESSION_ID
                session.answered(response.session_id)
                self._refusals = 0
                return True
            if session.is_full:
                session.begin_anew()
            else:
                session.replace()
        self._refusals += 1
        if is_serious or self._refusals > 1:
            self._pause(now_ms)
        if self._refusals <= 2:
            logger.info("broker %d did not answer a fetch: %s", self._leader_id, problem)
        return False

    def _on_partition(self, key: Key, data: PartitionData, now_ms: float) -> Steps[None]:
        state = self._states.get(key)
        asked = self._session.partitions.get(key)
        if (
            state is None
            or asked is None
            or state.offset != asked.offset
            or state.leader_epoch != asked.leader_epoch
            or not state.is_ready
        ):
            return  # removed, truncated or given another leader while the answer was on its way
        error = data.error_code
        if error != ErrorCode.NONE or data.diverging_epoch.epoch >= 0:
            self._has_news = True
        if state.partition.log.failed:
            self._fail(key, state, "its directory is offline", logging.INFO)
        elif error == ErrorCode.NONE:
            if data.diverging_epoch.epoch >= 0:
                self._diverges(key, state, data.diverging_epoch, now_ms)
            else:
                yield from self._append(key, state, data, now_ms)
        elif error == ErrorCode.OFFSET_OUT_OF_RANGE:
            state.lookup = LATEST_TIMESTAMP
            self._lookups[key] = state
            self._changed[key] = None
        else:
            self._refused(key, state, error, now_ms)

    def _refused(self, key: Key, state: PartitionFetchState, error: int, now_ms: float) -> None:
        if error == ErrorCode.FENCED_LEADER_EPOCH:
            # The leader has a newer epoch, and this broker hears of it a moment later: so it is with every partition
            # whose leader moves, and no news.
            self._fail(key, state, f"epoch {state.leader_epoch} is older than the leader's", logging.DEBUG)
            return
        what = f"the leader answers {_name_of(error)} at offset {state.offset}"
        if error == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            what = f"{what}: {NODE_IS_REFUSED}"  # which is how it tells a follower
        if error not in _TRANSIENT:
            self._complain(state, what, logging.ERROR)
            self._delay(key, state, now_ms)
            return
        # As a rule the leader hears a moment later what this broker knows already, and producers wait for that.
        pause_ms = FIRST_RETRY_MS * 2 ** min(state.refusals, 16)
        state.refusals += 1
        if pause_ms < self._settings.backoff_ms:
            self._complain(state, f"{what}, until now", logging.DEBUG)
        else:
            self._complain(state, what, _TRANSIENT[error])
        self._delay(key, state, now_ms, pause_ms)

    # ---- records ------------------------------------------------------------------------------------------

    def _append(
        self, key: Key, state: PartitionFetchState, data: PartitionData, now_ms: float
    ) -> Steps[None]:
        """Append what came, piece by piece, and take over the leader's marks."""
        partition, offset = state.partition, state.offset
        records = data.records
        try:
            if records:
                for piece in pieces_of(memoryview(records), partition.log.config.segment_bytes):
                    if not self._is_current(key, state) or not self._is_where_asked(key, state):
                        return
                    if not self._append_piece(state, piece):
                        break  # what is left has a later epoch: it comes again when this broker knows of that
                    self._has_news = True
                    self._changed[key] = None
                    if partition.flushes_on_append:
                        self._unflushed[key] = partition
                    yield
                if state.offset == offset and self._is_current(key, state):
                    self._delay(key, state, now_ms)  # the leader would send the same again at once
            if self._is_current(key, state) and self._is_where_asked(key, state):
                marks = partition.log.high_watermark, partition.log.log_start_offset
                partition.follow_marks(data.high_watermark, data.log_start_offset)
                if partition.log.log_start_offset != marks[1]:
                    self._changed[key] = None
                if marks != (partition.log.high_watermark, partition.log.log_start_offset):
                    self._has_news = True
                state.complaint = ""
                state.refusals = 0
                if records:
                    # Those that came last are asked for last: the others are not starved by them.
                    self._states[key] = self._states.pop(key)
        except (OutOfFilesError, MemoryError) as error:
            # That passes, and the log is as it was.
            self._complain(state, str(error) or "there is not enough memory", logging.ERROR)
            self._delay(key, state, now_ms)
        except StorageError as error:
            self._fail(key, state, str(error), logging.ERROR)
        except KafkaError as error:
            if error.code not in _CORRUPT:
                self._fail(key, state, f"at offset {state.offset}: {error}", logging.ERROR)
                return
            # The leader's disk may have flipped a bit, or be in the middle of a truncation: ask again.
            self._complain(state, f"invalid records from offset {state.offset} on: {error}", logging.ERROR)
            self._delay(key, state, now_ms)
        except Exception as error:  # noqa: BLE001 - the boundary of one partition: the others go on
            self._fail(key, state, f"at offset {state.offset}: {error}", logging.ERROR, error)

    def _append_piece(self, state: PartitionFetchState, piece: memoryview) -> bool:
        """Append some batches at the offset that was asked for; False if none of them is."""
        partition = state.partition
        partition.append_as_follower(piece, state.leader_epoch)
        log = partition.log
        if log.log_end_offset == state.offset:
            return False
        state.offset = log.log_end_offset
        state.last_fetched_epoch = log.epochs.latest
        return True

    def _is_where_asked(self, key: Key, state: PartitionFetchState) -> bool:
        """Does the log still end at the offset of this answer? If not, it is of no use, and the next asks there."""
        end = state.partition.log.log_end_offset
        if end == state.offset:
            return True
        logger.info(
            "%s ends at %d by now: what was fetched from %d on is dropped",
            state.partition.topic_partition,
            end,
            state.offset,
        )
        self._go_on_from_end(key, state)
        return False

    def _is_current(self, key: Key, state: PartitionFetchState) -> bool:
        """Is the partition still followed as it was when this state was made?"""
        partition = state.partition
        return (
            self._states.get(key) is state
            and partition.leader_epoch == state.leader_epoch
            and not partition.is_leader
        )

    # ---- flushing -----------------------------------------------------------------------------------------

    def to_flush(self) -> list[Partition]:
        """Those whose flush.messages is due: before the next request, because what that asks for says what we have."""
        for key in list(self._unflushed):
            if not self._must_flush(key):
                del self._unflushed[key]
        return list(self._unflushed.values())

    def _must_flush(self, key: Key) -> bool:
        partition = self._unflushed.get(key)
        if partition is None:
            return False
        log = partition.log
        return log.unflushed_messages >= log.config.flush_messages

    def flush_failed(self, partition: Partition, error: Exception, now_ms: float) -> None:
        """It is on no disk: the leader must not hear of it."""
        key = _key(partition)
        state = self._states.get(key)
        if state is None or state.partition is not partition:
            return
        if isinstance(error, OutOfFilesError):
            self._complain(state, str(error), logging.ERROR)
            self._delay(key, state, now_ms)
            return
        trace = None if isinstance(error, KafkaError) else error
        self._fail(key, state, f"cannot be flushed: {error}", logging.ERROR, trace)

    # ---- where the logs part ------------------------------------------------------------------------------

    def _diverges(self, key: Key, state: PartitionFetchState, theirs: EpochEndOffset, now_ms: float) -> None:
        """The leader knows our last epoch not at all, or only up to an earlier offset (KIP-279)."""
        if theirs.end_offset < UNDEFINED_EPOCH_OFFSET:
            self._complain(
                state, f"the leader's epoch {theirs.epoch} ends at {theirs.end_offset}", logging.ERROR
            )
            self._delay(key, state, now_ms)
            return
        offset = truncation_offset(state, theirs.epoch, theirs.end_offset)
        before = state.offset, state.last_fetched_epoch
        self._truncate(key, state, offset, f"the leader's epoch {theirs.epoch} ends at {theirs.end_offset}")
        if (
            self._states.get(key) is state
            and state.cut_at is None
            and before == (state.offset, state.last_fetched_epoch)
        ):
            # Nothing to cut, and nothing else to ask: no leader says so by right.
            self._complain(state, f"the leader diverges at {theirs.end_offset}, as before", logging.ERROR)
            self._delay(key, state, now_ms)

    def _truncate(self, key: Key, state: PartitionFetchState, offset: int, reason: str) -> None:
        log = state.partition.log
        below = offset < log.high_watermark
        # An epoch in which nobody has written goes without a word.
        cuts = offset < log.log_end_offset
        logger.log(
            logging.WARNING if below else logging.INFO if cuts else logging.DEBUG,
            "%s: truncating from %d to %d%s: %s",
            state.partition.topic_partition,
            log.log_end_offset,
            offset,
            f", below the high watermark {log.high_watermark}" if below else "",
            reason,
        )
        if cuts and log.replayed_bytes(offset) > MAX_REPLAYED_BYTES:
            state.cut_at = offset
            self._cuts[key] = state
            self._changed[key] = None  # it is not asked for meanwhile
        else:
            self._cut(key, state, lambda: state.partition.truncate_to(offset), offset)

    def _is_to_be_cut_again(self, key: Key, state: PartitionFetchState) -> bool:
        return state.cut_at is not None and key not in self._cuts

    def cut_again(self, now_ms: float) -> None:
        """Cut those for which there was no descriptor; before the next request, for the checkpoints to know of it."""
        for key, state in list(self._delayed.items()):
            if state.delayed_until_ms <= now_ms and self._is_to_be_cut_again(key, state):
                assert state.cut_at is not None
                self._now_ms = now_ms
                state.delayed_until_ms = 0
                del self._delayed[key]
                offset, state.cut_at = state.cut_at, None
                self._truncate(key, state, offset, "there was no descriptor for it before")

    def to_cut(self) -> list[tuple[Partition, Truncation]]:
        """What is to be read in a thread before these are cut; before the next request, for `cut` to be told."""
        return [
            (state.partition, state.partition.prepare_truncation(state.cut_at))
            for state in self._cuts.values()
            if state.cut_at is not None
        ]

    def cut(self, partition: Partition, prepared: Truncation) -> None:
        """It has been read, or it could not be: the log says what is wrong then."""
        key = _key(partition)
        state = self._cuts.get(key)
        if state is None or state.partition is not partition or state.cut_at != prepared.offset:
            return
        del self._cuts[key]
        state.cut_at = None
        if self._is_current(key, state):
            cut = partial(partition.truncate_to, prepared.offset, prepared)
            self._cut(key, state, cut, prepared.offset)

    def _cut(
        self, key: Key, state: PartitionFetchState, cut: Callable[[], None], again_at: int | None = None
    ) -> None:
        """Change the log, and go on from where it ends then.

        If there is no descriptor for that the log is as it was: after a while it is cut `again_at` the same offset
        before anything is asked for, or the leader is asked anew where it begins.
        """
        try:
            cut()
        except OutOfFilesError as error:
            self._complain(state, f"cannot truncate: {error}", logging.ERROR)
            state.cut_at = again_at
            self._delay(key, state, self._now_ms)
            return
        except Exception as error:  # noqa: BLE001 - the boundary of one partition: the others go on
            trace = None if isinstance(error, KafkaError) else error
            self._fail(key, state, f"cannot truncate: {error}", logging.ERROR, trace)
            return
        self._go_on_from_end(key, state)

    def _go_on_from_end(self, key: Key, state: PartitionFetchState) -> None:
        log = state.partition.log
        state.offset = log.log_end_offset
        state.last_fetched_epoch = log.epochs.latest
        self._changed[key] = None

    # ---- out of range -------------------------------------------------------------------------------------

    def _on_offsets(self, response: ListOffsetsResponse, now_ms: float) -> Steps[None]:
        looked_up, self._looked_up = self._looked_up, {}
        for topic in response.topics:
            for found in topic.partitions:
                question = looked_up.pop((topic.name, found.partition_index), None)
                if question is None:
                    continue
                key, state, timestamp = question
                if self._is_current(key, state) and state.lookup == timestamp:
                    try:
                        self._on_offset(key, state, found.error_code, found.offset, now_ms)
                    except Exception as error:  # noqa: BLE001 - the boundary of one partition: the others go on
                        self._fail_if_followed(key, error)
                    yield
        for key, state, timestamp in looked_up.values():
            if self._states.get(key) is state and state.lookup == timestamp:
                self._lookup_failed(key, state, "the leader left it out", now_ms)

    def _on_offset(
        self, key: Key, state: PartitionFetchState, error: int, offset: int, now_ms: float
    ) -> None:
        """Kafka's fetchOffsetAndTruncate."""
        partition = state.partition
        if error == ErrorCode.FENCED_LEADER_EPOCH:
            self._refused(key, state, error, now_ms)
            return
        if error or offset < 0:
            self._lookup_failed(key, state, _name_of(error) if error else f"offset {offset}", now_ms)
            return
        end = partition.log.log_end_offset
        if state.lookup == LATEST_TIMESTAMP and offset >= end:
            # Either ours ends before the leader's begins, or the leader has grown since it refused the offset.
            state.lookup = EARLIEST_TIMESTAMP
            return
        is_latest = state.lookup == LATEST_TIMESTAMP
        state.lookup = None
        del self._lookups[key]
        if is_latest:
            self._truncate(key, state, offset, f"the leader's log ends at {offset}")
        elif offset > end:
            logger.warning(
                "%s: starting anew at %d, where the leader's log begins, after %d",
                partition.topic_partition,
                offset,
                end,
            )
            self._cut(key, state, lambda: partition.truncate_fully_and_start_at(offset))
        elif state.refused_offset == state.offset:
            self._complain(state, f"offset {state.offset} is out of range, and is not", logging.ERROR)
            self._delay(key, state, now_ms)
        else:
            state.refused_offset = state.offset
            self._go_on_from_end(key, state)

    def _lookup_failed(self, key: Key, state: PartitionFetchState, why: str, now_ms: float) -> None:
        """After a while it is fetched again, from where it was out of range."""
        self._complain(state, f"cannot ask where the leader's log ends: {why}", logging.WARNING)
        state.lookup = None
        del self._lookups[key]
        self._delay(key, state, now_ms)

    # ---- what is wrong with a partition -------------------------------------------------------------------

    def _delay(self, key: Key, state: PartitionFetchState, now_ms: float, at_most_ms: float = inf) -> None:
        if self._states.get(key) is not state:
            return
        state.delayed_until_ms = now_ms + max(min(self._settings.backoff_ms, at_most_ms), 1)
        self._delayed[key] = state
        self._changed[key] = None
        self._may_be_outdated = True

    def _complain(self, state: PartitionFetchState, what: str, level: int) -> None:
        if state.complaint != what:
            state.complaint = what
            logger.log(level, "%s: %s", state.partition.topic_partition, what)

    def _fail_if_followed(self, key: Key, error: Exception) -> None:
        """What nobody thought of concerns one partition."""
        state = self._states.get(key)
        if state is not None:
            self._fail(key, state, str(error) or type(error).__name__, logging.ERROR, error)

    def _fail(
        self, key: Key, state: PartitionFetchState, why: str, level: int, trace: Exception | None = None
    ) -> None:
        """Follow it no more before it has another leader epoch."""
        if self._states.get(key) is not state:
            return
        logger.log(
            level, "%s is not followed for now: %s", state.partition.topic_partition, why, exc_info=trace
        )
        self._forget(key)
        self.failed[key] = state.partition


_CODES: Final = frozenset(int(code) for code in ErrorCode)


def _name_of(code: int) -> str:
    return ErrorCode(code).name if code in _CODES else f"error {code}"


def _key(partition: Partition) -> Key:
    return partition.topic_id, partition.topic_partition.partition


def truncation_offset(state: PartitionFetchState, epoch: int, end_offset: int) -> int:
    """Where to cut after the leader said that `epoch` ends at an offset (Kafka's getOffsetTruncationState).

    If we do not know that epoch, everything after the one before it goes, and the next fetch asks about that.
    """
    log = state.partition.log
    if end_offset == UNDEFINED_EPOCH_OFFSET:
        return state.offset
    ours = log.epochs.end_offset_for(epoch, log.log_end_offset)
    if ours is None:
        return min(end_offset, log.log_end_offset)
    if ours.epoch != epoch:
        return min(ours.start_offset, log.log_end_offset)
    return min(ours.start_offset, end_offset, log.log_end_offset)


def pieces_of(records: memoryview, max_bytes: int = PIECE_BYTES) -> Iterator[memoryview]:
    """Whole batches, as many as may be appended at once. Half a batch at the end is left out if it is alone."""
    max_bytes = min(max_bytes, PIECE_BYTES)
    start = position = count = 0
    end = len(records)
    while end - position >= LOG_OVERHEAD:
        size = LOG_OVERHEAD + _LENGTH(records, position + 8)[0]
        if size < HEADER_SIZE or size > end - position:
            break
        if count and (count == PIECE_BATCHES or position + size - start > max_bytes):
            yield records[start:position]
            start, count = position, 0
        position += size
        count += 1
    if position > start:
        yield records[start:position]
    if position < end and (position == 0 or _is_nonsense(records, position)):
        yield records[position:]  # to be refused by who checks it


def _is_nonsense(records: memoryview, position: int) -> bool:
    """Is this not even the beginning of a batch?"""
    if len(records) - position < LOG_OVERHEAD:
        return False
    return LOG_OVERHEAD + int(_LENGTH(records, position + 8)[0]) < HEADER_SIZE
