"""FetchSessionCache: incremental fetch sessions (KIP-227). The broker remembers what a consumer or a follower reads and
answers only what changed.

A full fetch opens a session; each incremental one names the session and the epoch it expects, says what to
add, change or forget, and gets back only the partitions that have data, an error, or a moved watermark. When the
cache is full a session that has been silent long enough makes room, or one that is worth less than the new one (fewer
partitions, a consumer's where a follower asks), else the new one simply gets none. A session that grows beyond what one
request may name is closed, and large ones are opened and grow only while all together stay within a bound.

A session remembers which of its partitions have news, and a fetch looks at no others. News are made by the partition
itself, of which each CachedPartition is a Watcher, and by a request that names the partition. They end with an answer
after which another look would find nothing: no error (an error is told in every answer, so a partition that is not
hosted is looked at until it is), nothing left to read, and marks that have been told. Everything else that an answer
depends on is in the Reader: with another one all partitions have news. A partition that has news while no fetch waits
is not watched until the next look: a session whose client is gone, and which may be resumed by another connection,
costs its partitions two calls each and nothing after that.

A session is its principal's who opened it: nobody else goes on with it or ends it, whoever guesses its id. What may be
read is judged by each fetch, of the partitions that it looks at; when the rules have changed it looks at all.

Times are of a clock that never goes back. Owner: the broker's loop; one cache serves all listeners.
"""

import random
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sized
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple, Protocol

from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import next_session_epoch
from ottla.replication.partition import FollowerSession, Partition
from ottla.security.principal import ANONYMOUS, KafkaPrincipal
from ottla.wire.fast.fetch import Wanted
from ottla.wire.fast.produce import MAX_PARTITIONS, TopicKey

NO_SESSION = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
# From here on a session's partitions count; what all sessions may remember then (about 500 bytes each).
LARGE_SESSION = 1000
MAX_REMEMBERED = 5 * MAX_PARTITIONS


class Reader(NamedTuple):
    """Who fetches, as far as that decides what is found in a partition."""

    replica_id: int
    replica_epoch: int
    read_committed: bool
    # Since version 11 a consumer may read from a follower, and is told of one that is nearer (KIP-392).
    any_replica: bool
    rack_id: str

    @property
    def is_follower(self) -> bool:
        return self.replica_id >= 0


CONSUMER = Reader(-1, -1, read_committed=False, any_replica=True, rack_id="")
COMMITTED_CONSUMER = CONSUMER._replace(read_committed=True)


class Watermarks(NamedTuple):
    """What was last answered of a partition; when it has changed it is answered again."""

    high_watermark: int
    log_start_offset: int


NOT_ANSWERED = Watermarks(-1, -1)


class Waiting(Protocol):
    """A fetch of a session that waits."""

    def progressed(self, partition: Partition) -> None:
        """A partition of the session has news that may be worth an answer."""
        ...

    def overtaken(self, sender: object) -> None:
        """The session ends, or goes on with a later fetch of this sender: be answered before that."""
        ...


class CachedPartition:
    """A partition of a session, and the Watcher of the replica behind it."""

    __slots__ = ("answered", "is_watching", "moved", "order", "partition", "session", "wanted")

    def __init__(self, session: "FetchSession", wanted: Wanted, order: int) -> None:
        self.session = session
        self.wanted = wanted
        self.order = order
        self.answered = NOT_ANSWERED
        # The replica that was last looked at, whether it has moved since, and whether it would say so.
        self.partition: Partition | None = None
        self.moved = True
        self.is_watching = False

    def progressed(self, partition: Partition) -> None:
        had_moved, self.moved = self.moved, True
        session = self.session
        session.news[self] = None
        waiting = session.waiting
        if waiting is None:
            # Not at once: a follower's own fetch moves the watermark between its look and its wait.
            if had_moved:
                self._watch_no_more(partition)
        elif not (session.follower is not None and self._only_marks(partition)):
            waiting.progressed(partition)

    def _only_marks(self, partition: Partition) -> bool:
        """Is there nothing but a moved mark to tell a follower? It waits for records, and is told of marks then."""
        wanted = self.wanted
        return (
            partition.is_leader
            and partition.log.log_end_offset == wanted.fetch_offset
            and wanted.current_leader_epoch in (partition.leader_epoch, -1)
            and not partition.log.failed
        )

    def _watch_no_more(self, partition: Partition) -> None:
        self.is_watching = False
        partition.watchers.discard(self)
        partition.end_watchers.discard(self)

    def watch(self, partition: Partition | None) -> None:
        """Be called by this replica, or by none."""
        watched, self.partition = self.partition, partition
        if watched is not None:
            self._watch_no_more(watched)
        if partition is not None:
            self.is_watching = True
            of_follower = self.session.follower is not None
            (partition.end_watchers if of_follower else partition.watchers).add(self)

    def has_nothing_left(self, may_be_redirected: bool) -> bool:
        """Would another look find what was found, as long as the replica does not move?"""
        partition, reader = self.partition, self.session.reader
        if self.moved or partition is None:
            return False
        if reader.is_follower:
            return self._is_known_to_follow(partition)
        return not may_be_redirected and self.wanted.fetch_offset >= partition.read_bound(
            reader.read_committed
        )

    def _is_known_to_follow(self, partition: Partition) -> bool:
        """Has the follower got all there is, is that noted, and is it in sync? If not, every fetch is a chance."""
        follower = self.session.follower
        assert follower is not None
        replica = partition.followers.get(follower.replica_id)
        return (
            replica is not None
            and replica.session is follower
            and replica.log_end_offset == self.wanted.fetch_offset == partition.log.log_end_offset
            and follower.replica_id in partition.isr
        )


_order = attrgetter("order")


class FetchSession:
    """The session of one consumer or follower."""

    __slots__ = (
        "_next_order",
        "created_ms",
        "epoch",
        "evictable",
        "follower",
        "id",
        "is_open",
        "is_privileged",
        "last_used_ms",
        "news",
        "owner",
        "partitions",
        "reader",
        "rules_version",
        "sender",
        "uses_topic_ids",
        "waiting",
    )

    def __init__(
        self,
        session_id: int,
        uses_topic_ids: bool,
        reader: Reader,
        sender: object,
        now_ms: float,
        owner: KafkaPrincipal = ANONYMOUS,
    ) -> None:
        self.id = session_id
        self.owner = owner
        # The version of the rules by which its partitions were last judged.
        self.rules_version: int | None = None
        self.uses_topic_ids = uses_topic_ids
        self.reader = reader
        self.is_privileged = reader.is_follower
        # By which connection the newest fetch came.
        self.sender = sender
        self.created_ms = now_ms
        self.last_used_ms = now_ms
        self.epoch = next_session_epoch(INITIAL_EPOCH)
        self.is_open = True
        self.partitions: dict[tuple[TopicKey, int], CachedPartition] = {}
        # Those that a fetch has to look at.
        # No set: one that was large once is walked through in its full width for ever, however few are left in it.
        self.news: dict[CachedPartition, None] = {}
        # They are read in this order: one that had data goes to the back, so that none starves behind it.
        self._next_order = 0
        # The fetch of this session that waits now, if any.
        self.waiting: Waiting | None = None
        self.follower = _follower_session(reader, now_ms)
        # Where it stands in the cache's lists, and whether it is old enough for both.
        self.evictable: tuple[EvictableKey, bool] | None = None

    def update(self, wanted: Iterable[Wanted], forgotten: Iterable[tuple[TopicKey, Iterable[int]]]) -> None:
        for item in wanted:
            key = (item.topic, item.index)
            cached = self.partitions.get(key)
            if cached is None:
                self._next_order += 1
                cached = self.partitions[key] = CachedPartition(self, item, self._next_order)
            else:
                if item.current_leader_epoch != cached.wanted.current_leader_epoch:
                    # A follower drops what it is told for an epoch that is over. Kafka's does not hear of the watermark
                    # again before that moves, which in a partition that nobody writes to is never.
                    cached.answered = NOT_ANSWERED
                cached.wanted = item
            self.news[cached] = None
        for topic, indexes in forgotten:
            for index in indexes:
                cached = self.partitions.pop((topic, index), None)
                if cached is not None:
                    self._forget(cached)

    def belongs_to(self, principal: KafkaPrincipal) -> bool:
        owner = self.owner
        # Whoever comes by a token of theirs is the same user.
        return owner is principal or owner[:2] == principal[:2]

    def judged_by(self, rules_version: int) -> None:
        """What a fetch finds depends on the rules: by others all has to be looked at again."""
        if self.rules_version != rules_version:
            self.rules_version = rules_version
            self.news.update(dict.fromkeys(self.partitions.values()))

    def fetched_by(self, reader: Reader, now_ms: float) -> None:
        """A fetch has come; all is news to a reader that has not been told of it."""
        if reader != self.reader:
            self._change_reader(reader, now_ms)
        elif self.follower is not None:
            self.follower.fetched(now_ms)

    def _change_reader(self, reader: Reader, now_ms: float) -> None:
        """Another reader goes on with the session: nothing that the former was told or has reported counts for it."""
        if self.follower is not None:
            self.follower.is_open = False
        self.reader = reader
        self.follower = _follower_session(reader, now_ms)
        for cached in self.partitions.values():
            cached.watch(None)  # the next look watches as this reader has to
            self.news[cached] = None

    def look_at(
        self, cached: Iterable[CachedPartition], hosted: Callable[[TopicKey, int], Partition | None]
    ) -> list[Wanted]:
        """What to read of these; whatever moves from now on is news again."""
        found: list[Wanted] = []
        for item in cached:
            wanted = item.wanted
            partition = hosted(wanted.topic, wanted.index)
            if (partition is not item.partition or not item.is_watching) and self._remembers(item):
                item.watch(partition)
            item.moved = False
            found.append(wanted)
        return found

    def _remembers(self, item: CachedPartition) -> bool:
        """A fetch that goes through very many in slices may come to one that a later fetch has forgotten meanwhile."""
        return self.is_open and self.partitions.get((item.wanted.topic, item.wanted.index)) is item

    def wait(self, waiting: Waiting) -> None:
        """A fetch has looked, and waits for what moves from now on."""
        self.waiting = waiting
        for cached in self.news if self.is_open else ():
            if not cached.is_watching and cached.partition is not None:
                cached.watch(cached.partition)

    def in_order(self, *, only_news: bool) -> list[CachedPartition]:
        """The partitions to look at, in the order of reading."""
        return sorted(self.news if only_news else self.partitions.values(), key=_order)

    def update_response(
        self,
        wanted: Wanted,
        error: int,
        marks: Watermarks,
        has_records: bool,
        must_tell: bool = False,
        may_be_redirected: bool = False,
    ) -> bool:
        """Note what an answer would have of a partition; True if the partition has to be in it.

        Kafka's CachedPartition.maybeUpdateResponseData. `must_tell` is for what is told in every answer: where the
        logs part, or another replica to read from.
        """
        cached = self.partitions.get((wanted.topic, wanted.index))
        if cached is None:
            return True
        must_answer = has_records or must_tell or error != ErrorCode.NONE
        if must_answer or not cached.has_nothing_left(may_be_redirected):
            self.news[cached] = None  # an overtaking fetch may have thought otherwise
        else:
            self.news.pop(cached, None)
        if cached.answered != marks:
            must_answer = True
        # After an error the next good answer is sent, whatever it says; and after one that says where the logs part, or
        # names another replica: whoever gets that leaves the marks in it alone.
        cached.answered = NOT_ANSWERED if error or must_tell else marks
        if has_records:
            self._next_order += 1
            cached.order = self._next_order
        return must_answer

    def close(self) -> None:
        """Nobody fetches by this session any more."""
        if self.waiting is not None:
            self.waiting.overtaken(self.sender)
        self.is_open = False
        for cached in self.partitions.values():
            cached.watch(None)
        self.news.clear()
        if self.follower is not None:
            self.follower.is_open = False

    def _forget(self, cached: CachedPartition) -> None:
        self.news.pop(cached, None)
        partition, follower = cached.partition, self.follower
        cached.watch(None)
        if partition is not None and follower is not None:
            # Its later fetches say nothing of this partition.
            replica = partition.followers.get(follower.replica_id)
            if replica is not None and replica.session is follower:
                replica.session = closed_copy(follower)


def _follower_session(reader: Reader, now_ms: float) -> FollowerSession | None:
    return FollowerSession(reader.replica_id, reader.replica_epoch, now_ms) if reader.is_follower else None


def closed_copy(session: FollowerSession) -> FollowerSession:
    """What the session has shown until now."""
    copy = FollowerSession(session.replica_id, session.broker_epoch, session.last_fetch_ms)
    copy.previous_fetch_ms = session.previous_fetch_ms
    copy.is_open = False
    return copy


@dataclass(slots=True)
class FetchContext:
    """What one fetch request has to read, and how to answer it: Kafka's FetchContext, of all kinds."""

    # What the request names; a session says itself what is to be read.
    wanted: list[Wanted]
    session: FetchSession | None
    incremental: bool
    # The epoch in which the session is while no other fetch has overtaken this one.
    epoch: int = FINAL_EPOCH

    @property
    def session_id(self) -> int:
        return NO_SESSION if self.session is None else self.session.id

    def is_overtaken(self, sender: object) -> bool:
        """Has a later fetch of the session come by another connection before this one was answered?"""
        session = self.session
        return (
            self.incremental
            and session is not None
            and session.epoch != self.epoch
            and session.sender is not sender
        )


class EvictableKey(NamedTuple):
    """What a session is worth: the smallest is given up first."""

    is_privileged: bool
    partitions: int
    session_id: int


class FetchSessionCache:
    """The sessions of a broker, at most max.incremental.fetch.session.cache.slots; also Kafka's FetchManager."""

    def __init__(
        self, max_sessions: int = 1000, eviction_ms: int = 120_000, rng: random.Random | None = None
    ) -> None:
        self._max_sessions = max_sessions
        self._eviction_ms = eviction_ms
        self._rng = rng or random.Random()
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()  # longest unused first
        # What may make room for any other session, and what for a follower's.
        self._evictable_by_all: list[EvictableKey] = []
        self._evictable_by_privileged: list[EvictableKey] = []

    def __len__(self) -> int:
        return len(self._sessions)

    def new_context(
        self,
        session_id: int,
        epoch: int,
        wanted: list[Wanted],
        forgotten: Iterable[tuple[TopicKey, Iterable[int]]],
        uses_topic_ids: bool,
        now_ms: float,
        reader: Reader = CONSUMER,
        sender: object = None,
        owner: KafkaPrincipal = ANONYMOUS,
    ) -> FetchContext:
        """Which partitions a request of `owner` reads; KafkaError for a session that is not as the client believes."""
        if epoch in (FINAL_EPOCH, INITIAL_EPOCH):
            ended = self._sessions.get(session_id)
            if ended is not None and ended.belongs_to(owner):
                self.close(session_id)
            if epoch == FINAL_EPOCH:
                return FetchContext(wanted, None, incremental=False)
            opened = self._open(wanted, uses_topic_ids, reader, sender, now_ms, owner)
            return FetchContext(wanted, opened, incremental=False)
        session = self._resume(session_id, epoch, uses_topic_ids, owner)
        if session.waiting is not None:
            session.waiting.overtaken(sender)
        session.update(wanted, forgotten)
        if len(session.partitions) > LARGE_SESSION and wanted and not self._may_hold(session.partitions):
            self.close(session_id)
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if not session.partitions:
            self.close(session_id)
            return FetchContext([], None, incremental=False)
        session.fetched_by(reader, now_ms)
        self._touch(session, now_ms)
        session.epoch = next_session_epoch(session.epoch)
        session.sender = sender
        return FetchContext(wanted, session, incremental=True, epoch=session.epoch)

    def close(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._delist(session)
            session.close()

    def is_only(
        self, session_id: int, epoch: int, topic: TopicKey, index: int, owner: KafkaPrincipal = ANONYMOUS
    ) -> bool:
        """Is this the epoch that `owner`'s session expects, the partition its only one, and no fetch of it waiting?"""
        session = self._sessions.get(session_id)
        if session is None or session.epoch != epoch or len(session.partitions) != 1:
            return False
        if session.waiting is not None or not (session.owner is owner or session.belongs_to(owner)):
            return False
        return session.uses_topic_ids == isinstance(topic, bytes) and (topic, index) in session.partitions

    def session(self, session_id: int) -> FetchSession | None:
        return self._sessions.get(session_id)

    def _resume(
        self, session_id: int, epoch: int, uses_topic_ids: bool, owner: KafkaPrincipal
    ) -> FetchSession:
        session = self._sessions.get(session_id)
        if session is None or not session.belongs_to(owner):
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != epoch:
            raise KafkaError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.uses_topic_ids != uses_topic_ids:
            raise KafkaError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        return session

    def _open(
        self,
        wanted: list[Wanted],
        uses_topic_ids: bool,
        reader: Reader,
        sender: object,
        now_ms: float,
        owner: KafkaPrincipal,
    ) -> FetchSession | None:
        if not self._make_room(EvictableKey(reader.is_follower, len(wanted), 0), now_ms) or (
            len(wanted) > LARGE_SESSION and not self._may_hold(wanted, new=True)
        ):
            return None
        session = FetchSession(self._fresh_id(), uses_topic_ids, reader, sender, now_ms, owner)
        session.update(wanted, ())
        self._sessions[session.id] = session
        self._touch(session, now_ms)
        return session

    # ---- making room --------------------------------------------------------------------------------------

    def _make_room(self, key: EvictableKey, now_ms: float) -> bool:
        """Kafka's tryEvict, where there is no room."""
        if len(self._sessions) < self._max_sessions:
            return True
        if not self._sessions:
            return False
        oldest = next(iter(self._sessions.values()))
        if now_ms - oldest.last_used_ms > self._eviction_ms:
            self.close(oldest.id)
            return True
        evictable = self._evictable_by_privileged if key.is_privileged else self._evictable_by_all
        if not evictable or key < evictable[0]:
            return False
        self.close(evictable[0].session_id)
        return True

    def _touch(self, session: FetchSession, now_ms: float) -> None:
        session.last_used_ms = now_ms
        self._sessions.move_to_end(session.id)
        key = EvictableKey(session.is_privileged, len(session.partitions), session.id)
        is_old = now_ms - session.created_ms > self._eviction_ms
        if session.evictable == (key, is_old):
            return
        self._delist(session)
        session.evictable = key, is_old
        if is_old:
            insort(self._evictable_by_all, key)
        if is_old or not session.is_privileged:
            insort(self._evictable_by_privileged, key)

    def _delist(self, session: FetchSession) -> None:
        if session.evictable is None:
            return
        key, is_old = session.evictable
        if is_old:
            del self._evictable_by_all[bisect_left(self._evictable_by_all, key)]
        if is_old or not session.is_privileged:
            del self._evictable_by_privileged[bisect_left(self._evictable_by_privileged, key)]

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
