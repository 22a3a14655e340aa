"""A session that looks only at partitions with news answers as one that looks at all of them, byte for byte.

Two brokers live through the same random events: appends, followers that move the watermark, other leaders and ISRs,
deletions and re-creations, deleted records, configurations, lost logs. One has sessions as they are, the other's look
at every partition in every fetch and wake for every move. Whatever they answer, and when, has to be the same.
"""

import random
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.fetch_world import FOLLOWER, NODE, OTHER, World, as_bytes, asked, connection, fetch_request
from tests.unit.storage.log_support import batch

from ottla.replication.partition import FollowerSession, Partition
from ottla.server.fetch_sessions import CachedPartition, FetchSession, FetchSessionCache
from ottla.server.network.output import Deferred
from ottla.wire.fast.fetch import Wanted
from ottla.wire.messages.fetch import FetchRequest

SOME = settings(max_examples=50, deadline=None, database=None, suppress_health_check=list(HealthCheck))
PARTITIONS = 5
STEPS = st.lists(st.integers(0, 2**32 - 1), min_size=5, max_size=40)


class LookAtAll(FetchSession):
    """A session that does not believe in news."""

    __slots__ = ()

    def in_order(self, *, only_news: bool) -> list[CachedPartition]:
        return super().in_order(only_news=False)


class LookAtAllCache(FetchSessionCache):
    def _open(self, *args: Any) -> FetchSession | None:
        session = super()._open(*args)
        if session is not None:
            session.__class__ = LookAtAll
        return session


@pytest.fixture(scope="module")
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as executor:
        yield executor


@pytest.fixture(autouse=True)
def wakes_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """The session that looks at all is woken by all."""
    usual = CachedPartition._only_marks

    def only_marks(self: CachedPartition, partition: Partition) -> bool:
        return not isinstance(self.session, LookAtAll) and usual(self, partition)

    monkeypatch.setattr(CachedPartition, "_only_marks", only_marks)


class Twin:
    """One of the two brokers, its client, and what it was answered so far."""

    def __init__(self, dir: Path, executor: ThreadPoolExecutor, sessions: FetchSessionCache) -> None:
        self.world = World(dir, executor, sessions)
        self.connections = [connection(), connection()]
        self.waiting: list[Deferred] = []
        self.answers: list[bytes] = []
        for index in range(PARTITIONS):
            self.world.host(index)

    def hosted(self, index: int) -> Partition | None:
        return self.world.replicas.hosted(World.topic_id(0), index)

    def known_of_followers(self) -> list[Any]:
        """What the leader has made of the fetches."""
        followers = [
            (partition.topic_partition, replica, state.log_end_offset, partition.log.high_watermark)
            for partition in self.world.replicas.all_partitions()
            for replica, state in partition.followers.items()
        ]
        return [*followers, self.world.replicas.proposed]

    def step(self, seed: int, follows: bool, session: tuple[int, int]) -> None:
        """An event; a client's request is one of them."""
        rng = random.Random(seed)
        self.world.replicas.clock_ms += rng.randrange(1000)
        event = rng.choice(EVENTS)
        event(self, rng, follows, session)
        self.world.loop.turn()
        self.collect()

    def collect(self) -> None:
        for deferred in [deferred for deferred in self.waiting if deferred.done]:
            self.waiting.remove(deferred)
            self.answers.append(as_bytes(deferred.reply))

    def ask(self, request: FetchRequest, by: int = 0) -> None:
        answer = self.world.fetch(request, by=self.connections[by])
        if isinstance(answer, Deferred):
            self.waiting.append(answer)
        else:
            self.answers.append(answer)


def fetch(twin: Twin, rng: random.Random, follows: bool, session: tuple[int, int]) -> None:
    named = []
    for index in rng.sample(range(PARTITIONS), rng.choice((0, 0, 1, 1, 2, PARTITIONS))):
        partition = twin.hosted(index)
        start, end, epoch = (
            (0, 0, 0)
            if partition is None
            else (partition.log.log_start_offset, partition.log.log_end_offset, partition.leader_epoch)
        )
        offset = end if rng.random() < 0.7 else rng.choice((start, rng.randint(start, end), end + 1))
        named.append(
            asked(
                index,
                offset,
                partition_max_bytes=rng.choice((0, 100, 1 << 20)),
                current_leader_epoch=-1 if rng.random() < 0.2 else epoch - (rng.random() < 0.05),
                last_fetched_epoch=rng.choice((-1, epoch, epoch)) if follows else -1,
                log_start_offset=0 if follows else -1,
            )
        )
    odd = rng.random() < 0.1
    session_id, epoch = session
    request = fetch_request(
        *named,
        forgotten=[rng.randrange(PARTITIONS)] if rng.random() < 0.1 else [],
        session_id=session_id,
        session_epoch=rng.choice((0, -1, epoch + 1)) if odd else epoch,
        max_wait_ms=rng.choice((0, 500, 500)),
        min_bytes=rng.choice((0, 1, 1, 1, 1, 300)),
        max_bytes=rng.choice((150, 1 << 20, 1 << 20)),
        isolation_level=0 if follows else rng.choice((0, 0, 1)),
        replica=FOLLOWER if follows else None,
    )
    twin.ask(request, by=rng.random() < 0.1)


def append(twin: Twin, rng: random.Random, *_: object) -> None:
    partition = twin.hosted(rng.randrange(PARTITIONS))
    size_bytes = rng.choice((1, 100, 1000))
    if partition is None or partition.log.failed:
        return
    if partition.is_leader:
        twin.world.append(partition, size_bytes)
    else:
        end = partition.log.log_end_offset
        records = batch(bytes(size_bytes))
        records[0:8] = end.to_bytes(8, "big")
        records[12:16] = partition.leader_epoch.to_bytes(4, "big")
        partition.log.append_as_follower(bytes(records), twin.world.replicas.clock_ms)
        partition.log.update_high_watermark(rng.randint(partition.log.high_watermark, end + 1))
        partition._wake_watchers()


def others_fetch(twin: Twin, rng: random.Random, *_: object) -> None:
    """The other followers have all there is, or the one that asks has shown it by another session."""
    partition = twin.hosted(rng.randrange(PARTITIONS))
    replicas = rng.choice(((OTHER,), (OTHER, FOLLOWER)))
    if partition is None or not partition.is_leader or partition.log.failed:
        return
    now_ms = twin.world.replicas.clock_ms
    for replica in replicas:
        end = partition.log.log_end_offset
        shown = Wanted(World.topic_id(0), 0, -1, end, -1, 0, 1)
        partition.note_fetch(replica, shown, FollowerSession(replica, -1, now_ms), now_ms)


def change_role(twin: Twin, rng: random.Random, *_: object) -> None:
    partition = twin.hosted(rng.randrange(PARTITIONS))
    leader = rng.choice((NODE, NODE, OTHER))
    isr = rng.choice(((NODE, FOLLOWER, OTHER), (leader,), (leader, FOLLOWER)))
    if partition is not None and not partition.log.failed:
        twin.world.become(partition, leader, isr)


def delete_or_create(twin: Twin, rng: random.Random, *_: object) -> None:
    index = rng.randrange(PARTITIONS)
    partition = twin.hosted(index)
    if partition is None:
        twin.world.host(index)
    else:
        twin.world.unhost(partition)


def delete_records(twin: Twin, rng: random.Random, *_: object) -> None:
    partition = twin.hosted(rng.randrange(PARTITIONS))
    if partition is not None and not partition.log.failed:
        log = partition.log
        log.maybe_increment_log_start_offset(rng.randint(log.log_start_offset, log.high_watermark), "a test")


def change_config(twin: Twin, rng: random.Random, *_: object) -> None:
    partition = twin.hosted(rng.randrange(PARTITIONS))
    min_isr = rng.choice((1, 2, 3))
    if partition is not None and not partition.log.failed:
        partition.log.update_config(replace(partition.log.config, min_insync_replicas=min_isr))
        partition.config_changed()


def lose_log(twin: Twin, rng: random.Random, *_: object) -> None:
    partition = twin.hosted(rng.randrange(PARTITIONS))
    if partition is not None and rng.random() < 0.3:
        partition.log.failed = True
        partition.log.moved()


def bar(twin: Twin, rng: random.Random, *_: object) -> None:
    """Brokers are fenced, and may join no ISR, or are not any more."""
    twin.world.replicas.barred = rng.choice((set(), {FOLLOWER}, {FOLLOWER, OTHER}))


def answer_proposals(twin: Twin, *_: object) -> None:
    """The controller refuses every ISR, so that it may be proposed again."""
    twin.world.replicas.refuse_proposals()


def time_passes(twin: Twin, *_: object) -> None:
    twin.world.loop.time_passes()


EVENTS = (
    *(fetch,) * 8,
    *(append,) * 4,
    *(others_fetch,) * 3,
    *(time_passes,) * 2,
    *(answer_proposals,) * 2,
    bar,
    change_role,
    delete_or_create,
    delete_records,
    change_config,
    lose_log,
)


@SOME
@given(seeds=STEPS, follows=st.booleans())
def test_news_are_all_that_there_is_to_answer(
    executor: ThreadPoolExecutor, seeds: list[int], follows: bool
) -> None:
    dir = Path(tempfile.mkdtemp())
    try:
        ours = Twin(dir / "ours", executor, FetchSessionCache(rng=random.Random(1)))
        all_of_it = Twin(dir / "all", executor, LookAtAllCache(rng=random.Random(1)))
        for seed in seeds:
            # The newest session, and the epoch in which it is.
            sessions = list(ours.world.sessions._sessions.values())
            session = (sessions[-1].id, sessions[-1].epoch) if sessions else (0, 0)
            for twin in (ours, all_of_it):
                twin.step(seed, follows, session)
            assert ours.answers == all_of_it.answers
            assert len(ours.waiting) == len(all_of_it.waiting)
            assert ours.known_of_followers() == all_of_it.known_of_followers()
            assert not [cached for cached in watchers(ours) if not cached.session.is_open]
        assert not {id(w) for w in watchers(ours)} - {
            id(cached)
            for session in ours.world.sessions._sessions.values()
            for cached in session.partitions.values()
        }
    finally:
        shutil.rmtree(dir)


def watchers(twin: Twin) -> list[CachedPartition]:
    """The partitions of sessions that watch a replica."""
    hosted = twin.world.replicas.all_partitions()
    return [w for p in hosted for w in (*p.watchers, *p.end_watchers) if isinstance(w, CachedPartition)]
