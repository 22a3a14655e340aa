"""FetchSessionCache: incremental fetch sessions (KIP-227). The broker remembers what a consumer reads and answers only
what changed.

A full fetch opens a session; each incremental one names the session and the epoch it expects, says what to
add, change or forget, and gets back only the partitions that have data, an error, or a moved watermark. When the
cache is full a session that has been silent long enough makes room, else the new consumer simply gets none. A session
that grows beyond what one request may name is closed, and large ones are opened and grow only while all together stay
within a bound.

Owner: the broker's loop; one cache serves all listeners.
"""

import random
from collections import OrderedDict
from collections.abc import Iterable, Sized
from dataclasses import dataclass
from typing import NamedTuple

from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import next_session_epoch
from ottla.wire.fast.fetch import Wanted
from ottla.wire.fast.produce import MAX_PARTITIONS, TopicKey

NO_SESSION = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
# From here on a session's partitions count; what all sessions may remember then (about 400 bytes each).
LARGE_SESSION = 1000
MAX_REMEMBERED = 5 * MAX_PARTITIONS


class Watermarks(NamedTuple):
    """What was last answered of a partition; when it has changed it is answered again."""

    high_watermark: int
    log_start_offset: int


NOT_ANSWERED = Watermarks(-1, -1)


@dataclass(slots=True)
class CachedPartition:
    """A partition of a session."""

    wanted: Wanted
    answered: Watermarks = NOT_ANSWERED


class FetchSession:
    """One consumer's session."""

    __slots__ = ("epoch", "id", "last_used_ms", "partitions", "uses_topic_ids")

    def __init__(self, session_id: int, uses_topic_ids: bool, now_ms: int) -> None:
        self.id = session_id
        self.uses_topic_ids = uses_topic_ids
        self.last_used_ms = now_ms
        self.epoch = next_session_epoch(INITIAL_EPOCH)
        # In the order of reading: one that had data goes to the back, so that none starves behind it.
        self.partitions: OrderedDict[tuple[TopicKey, int], CachedPartition] = OrderedDict()

    def update(self, wanted: Iterable[Wanted], forgotten: Iterable[tuple[TopicKey, Iterable[int]]]) -> None:
        for item in wanted:
            key = (item.topic, item.index)
            cached = self.partitions.get(key)
            if cached is None:
                self.partitions[key] = CachedPartition(item)
            else:
                cached.wanted = item
        for topic, indexes in forgotten:
            for index in indexes:
                self.partitions.pop((topic, index), None)

    def update_response(self, wanted: Wanted, error: int, marks: Watermarks, has_records: bool) -> bool:
        """Note what an answer would have of a partition; True if the partition has to be in it.

        Kafka's CachedPartition.maybeUpdateResponseData.
        """
        key = (wanted.topic, wanted.index)
        cached = self.partitions.get(key)
        if cached is None:
            return True
        must_answer = has_records or error != ErrorCode.NONE or cached.answered != marks
        # After an error the next good answer is sent, whatever it says.
        cached.answered = NOT_ANSWERED if error else marks
        if has_records:
            self.partitions.move_to_end(key)
        return must_answer


@dataclass(slots=True)
class FetchContext:
    """What one fetch request has to read, and how to answer it: Kafka's FetchContext, of all kinds."""

    wanted: list[Wanted]
    session: FetchSession | None
    incremental: bool

    @property
    def session_id(self) -> int:
        return NO_SESSION if self.session is None else self.session.id


class FetchSessionCache:
    """The sessions of a broker, at most max.incremental.fetch.session.cache.slots; also Kafka's FetchManager."""

    def __init__(
        self, max_sessions: int = 1000, eviction_ms: int = 120_000, rng: random.Random | None = None
    ) -> None:
        self._max_sessions = max_sessions
        self._eviction_ms = eviction_ms
        self._rng = rng or random.Random()
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()  # longest unused first

    def __len__(self) -> int:
        return len(self._sessions)

    def new_context(
        self,
        session_id: int,
        epoch: int,
        wanted: list[Wanted],
        forgotten: Iterable[tuple[TopicKey, Iterable[int]]],
        uses_topic_ids: bool,
        now_ms: int,
    ) -> FetchContext:
        """Which partitions this request reads; KafkaError for a session that is not as the client believes."""
        if epoch in (FINAL_EPOCH, INITIAL_EPOCH):
            self._sessions.pop(session_id, None)
            session = self._open(wanted, uses_topic_ids, now_ms) if epoch == INITIAL_EPOCH else None
            return FetchContext(wanted, session, incremental=False)
        session = self._resume(session_id, epoch, uses_topic_ids)
        session.update(wanted, forgotten)
        if len(session.partitions) > LARGE_SESSION and wanted and not self._may_hold(session.partitions):
            del self._sessions[session_id]
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if not session.partitions:
            del self._sessions[session_id]
            return FetchContext([], None, incremental=False)
        session.last_used_ms = now_ms
        session.epoch = next_session_epoch(session.epoch)
        self._sessions.move_to_end(session_id)
        return FetchContext(
            [cached.wanted for cached in session.partitions.values()], session, incremental=True
        )

    def is_only(self, session_id: int, epoch: int, topic: TopicKey, index: int) -> bool:
        """Is this the epoch that the session expects, and the partition its only one?"""
        session = self._sessions.get(session_id)
        if session is None or session.epoch != epoch or len(session.partitions) != 1:
            return False
        return session.uses_topic_ids == isinstance(topic, bytes) and (topic, index) in session.partitions

    def _resume(self, session_id: int, epoch: int, uses_topic_ids: bool) -> FetchSession:
        session = self._sessions.get(session_id)
        if session is None:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != epoch:
            raise KafkaError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.uses_topic_ids != uses_topic_ids:
            raise KafkaError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        return session

    def _open(self, wanted: list[Wanted], uses_topic_ids: bool, now_ms: int) -> FetchSession | None:
        if not self._make_room(now_ms) or (
            len(wanted) > LARGE_SESSION and not self._may_hold(wanted, new=True)
        ):
            return None
        session = FetchSession(self._fresh_id(), uses_topic_ids, now_ms)
        session.update(wanted, ())
        self._sessions[session.id] = session
        return session

    def _make_room(self, now_ms: int) -> bool:
        if len(self._sessions) < self._max_sessions:
            return True
        if not self._sessions:
            return False
        oldest_id, oldest = next(iter(self._sessions.items()))
        if now_ms - oldest.last_used_ms <= self._eviction_ms:
            return False
        del self._sessions[oldest_id]
        return True

    def _may_hold(self, partitions: Sized, new: bool = False) -> bool:
        if len(partitions) > MAX_PARTITIONS:
            return False
        remembered = sum(len(session.partitions) for session in self._sessions.values())
        return remembered + (len(partitions) if new else 0) <= MAX_REMEMBERED

    def _fresh_id(self) -> int:
        while True:
            candidate = self._rng.randrange(1, 2**31)
            if candidate not in self._sessions:
                return candidate
