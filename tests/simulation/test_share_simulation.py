"""Share groups under a seeded scheduler: members that vanish, a share coordinator that is slow, refuses or loses its
answers, leaders that start anew, a log that grows and loses its beginning.

After every event: a record whose acceptance was confirmed is never delivered again, nobody gets a record that another
member holds, and no record is delivered more often than allowed. In the end everything is delivered. A failure names
its seed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.support.share_world import TOPIC_ID, Connection, ShareWorld

from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.pending import Pending
from ottla.share.leader import SharePartitionLeader
from ottla.share.state import AcknowledgeType, Acquired, AcquireParams, SharePartitionKey

BLOCKS = 40
SEEDS_A_BLOCK = 50
EVENTS = 100
LOCK_MS = 15_000
PARTITIONS = (0, 1)
REFUSALS = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.FENCED_STATE_EPOCH,
)

Place = tuple[int, int]  # partition, offset
Said = dict[int, list[tuple[int, int, int | list[int]]]]


class Member:
    """A share consumer."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.connection = Connection()
        self.epoch = 0
        self.held: dict[Place, float] = {}  # until when
        self.fetching = False
        self.saying: set[Place] = set()
        self.life = 0  # answers to what an earlier life asked come to nobody

    def restart(self) -> None:
        self.connection = Connection()
        self.epoch = 0
        self.held.clear()
        self.saying.clear()
        self.fetching = False
        self.life += 1


class Simulation:
    """See the module."""

    def __init__(self, seed: int, dir: Path) -> None:
        self.rng = Random(seed)
        self.max_deliveries = self.rng.choice([2, 3, 5, 10])
        self.exact = self.rng.random() < 0.3
        self.world = self.make_world(dir)
        self.world.configure(
            auto_offset_reset="earliest",
            delivery_count_limit=self.max_deliveries,
            partition_max_record_locks=self.rng.choice([100, 200]),
        )
        self.members = [Member(name) for name in "abc"]
        self.accepted: set[Place] = set()
        self.locks: dict[Place, tuple[str, float]] = {}  # who has acquired it, and until when
        self._watch_the_broker()

    def make_world(self, dir: Path) -> ShareWorld:
        return ShareWorld(dir, partitions=len(PARTITIONS), group_share_record_lock_duration_ms=LOCK_MS)

    def _watch_the_broker(self) -> None:
        """Look at what is acquired when it is: an answer may come much later."""
        shares = self.world.service.partitions
        find, remove = shares.find_or_host, shares.remove

        def found(key: SharePartitionKey) -> SharePartitionLeader:
            hosted = find(key)
            if not hasattr(hosted, "is_watched"):
                acquire = hosted.acquire
                hosted.acquire = lambda wish, *rest: self._acquired(key, wish, acquire(wish, *rest))  # type: ignore
                hosted.is_watched = True  # type: ignore[attr-defined]
            return hosted

        def removed(key: SharePartitionKey) -> None:
            """What is forgotten of a share partition are its locks too, whatever the holders believe."""
            for place in [place for place in self.locks if place[0] == key.partition]:
                del self.locks[place]
            remove(key)

        shares.find_or_host = found  # type: ignore[method-assign]
        shares.remove = removed  # type: ignore[method-assign]

    def _acquired(
        self, key: SharePartitionKey, wish: AcquireParams, acquired: list[Acquired]
    ) -> list[Acquired]:
        for first, last, count in acquired:
            assert 1 <= count <= self.max_deliveries, f"{first} is delivered for the {count}th time"
            for place in [(key.partition, offset) for offset in range(first, last + 1)]:
                assert place not in self.accepted, f"{place} was accepted and is delivered again"
                holder, until = self.locks.get(place, ("", 0))
                assert until <= self.now, f"{place} is held by {holder}"
                self.locks[place] = (wish.member_id, self.now + LOCK_MS)
        return acquired

    def _let_go(self, member: Member) -> None:
        for place in [place for place, (holder, _) in self.locks.items() if holder == member.name]:
            del self.locks[place]

    @property
    def now(self) -> float:
        return self.world.scheduler.monotonic_ms()

    def actions(self) -> list[tuple[Callable[[], None], float]]:
        """What may happen, and how often."""
        return [
            (self.produce, 6),
            (self.fetch, 14),
            (self.acknowledge, 10),
            (self.wait, 6),
            (self.vanish, 1),
            (self.close, 1),
            (self.slow_down, 2),
            (self.speed_up, 3),
            (self.refuse, 2),
            (self.recover, 4),
            (self.fail_over, 1),
            (self.lose_beginning, 0.5),
        ]

    def run(self) -> None:
        calls, weights = zip(*self.actions(), strict=True)
        for _ in range(EVENTS):
            self.rng.choices(calls, weights)[0]()
            self.world.scheduler.settle()
        self.drain()

    # ---- what happens -------------------------------------------------------------------------------------

    def produce(self) -> None:
        values = [b"v"] * self.rng.randint(1, 12)
        self.world.write(*values, partition=self.rng.choice(PARTITIONS))

    def fetch(self) -> None:
        member = self.rng.choice(self.members)
        if member.fetching or member.saying:
            return
        said = self._something_to_say(member) if member.epoch and self.rng.random() < 0.5 else {}
        epoch, life = member.epoch, member.life
        member.epoch += 1
        member.fetching = True
        asked = self.world.fetch(
            epoch,
            member=member.name,
            partitions=PARTITIONS if epoch == 0 else (),
            acks=said,
            records=self.rng.choice([1, 5, 500]),
            batch_size=self.rng.choice([1, 10, 500]),
            mode=int(self.exact),
            wait_ms=self.rng.choice([0, 100, 5_000]),
            connection=member.connection,
        )
        self._when_answered(asked, member, life, lambda: self._fetched(member, asked, said))

    def acknowledge(self) -> None:
        member = self.rng.choice(self.members)
        said = self._something_to_say(member)
        if not said or member.fetching:
            return
        epoch, life = member.epoch, member.life
        member.epoch += 1
        renews = any(AcknowledgeType.RENEW in kinds for runs in said.values() for _, _, kinds in runs)
        asked = self.world.acknowledge(epoch, said, member=member.name, renew=renews)
        self._when_answered(asked, member, life, lambda: self._heard(member, said, asked.codes()))

    def wait(self) -> None:
        self.world.scheduler.pass_ms(self.rng.choice([1, 100, 5_000, LOCK_MS]))

    def vanish(self) -> None:
        member = self.rng.choice(self.members)
        connection = member.connection
        member.restart()
        self._let_go(member)
        connection.lose()

    def close(self) -> None:
        member = self.rng.choice(self.members)
        if member.epoch and not member.fetching and not member.saying:
            member.restart()
            self._let_go(member)
            self.world.fetch(-1, member=member.name, connection=member.connection)

    def slow_down(self) -> None:
        self.world.persister.hold()

    def speed_up(self) -> None:
        self.world.persister.release()

    def refuse(self) -> None:
        self.world.persister.refusal = KafkaError(self.rng.choice(REFUSALS), "not now")
        self.world.persister.loses_answers = self.rng.random() < 0.5

    def recover(self) -> None:
        self.world.persister.refusal = None

    def fail_over(self) -> None:
        for member in self.members:
            member.restart()
        self.locks.clear()
        self.world.fail_over()
        self._watch_the_broker()

    def lose_beginning(self) -> None:
        log = self.world.logs[self.rng.choice(PARTITIONS)]
        offset = min(log.log_start_offset + self.rng.randint(1, 30), log.high_watermark)
        log.maybe_increment_log_start_offset(offset, "deleted")

    # ---- what members do ----------------------------------------------------------------------------------

    def _something_to_say(self, member: Member) -> Said:
        places = sorted(place for place, until in member.held.items() if until > self.now)
        places = [place for place in places if place not in member.saying]
        if not places:
            return {}
        chosen = [place for place in places if self.rng.random() < 0.7]
        kinds = [AcknowledgeType.ACCEPT] * 4 + [AcknowledgeType.RELEASE, AcknowledgeType.REJECT]
        self._say(member, chosen)
        return _said(chosen, [self.rng.choice(kinds) for _ in chosen])

    def _say(self, member: Member, places: Sequence[Place]) -> None:
        """From when it is said a record may be anybody's."""
        member.saying.update(places)
        for place in places:
            self.locks.pop(place, None)

    def _when_answered(self, asked: Any, member: Member, life: int, then: Any) -> None:
        def answered(_: object) -> None:
            if member.life == life:
                then()

        if isinstance(asked._answer, Pending):
            asked._answer.then(answered)
        else:
            answered(None)

    def _fetched(self, member: Member, asked: Any, said: Said) -> None:
        member.fetching = False
        if asked.code != ErrorCode.NONE:
            self._lost_session(member)
            return
        if said:
            self._heard(member, said, asked.ack_codes())
        for partition, found in asked.partitions.items():
            for run in found.acquired_records:
                for offset in range(run.first_offset, run.last_offset + 1):
                    self._delivered(member, (partition, offset))

    def _delivered(self, member: Member, place: Place) -> None:
        holder, until = self.locks.get(place, ("", 0))
        if holder == member.name and until > self.now:
            member.held[place] = until

    def _heard(self, member: Member, said: Said, codes: dict[int, ErrorCode]) -> None:
        for partition, runs in said.items():
            for first, _, kinds in runs:
                assert isinstance(kinds, list)
                for offset, kind in enumerate(kinds, first):
                    self._settled(member, (partition, offset), kind, codes.get(partition))

    def _settled(self, member: Member, place: Place, kind: int, code: ErrorCode | None) -> None:
        member.saying.discard(place)
        if code == ErrorCode.NONE:
            member.held.pop(place, None)
            if kind == AcknowledgeType.ACCEPT:
                self.accepted.add(place)

    def _lost_session(self, member: Member) -> None:
        member.restart()
        self._let_go(member)

    # ---- the end ------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Nothing fails any more and everybody accepts what is left."""
        self.recover()
        self.speed_up()
        for member in self.members:
            connection = member.connection
            member.restart()
            self._let_go(member)
            connection.lose()
        self.world.scheduler.pass_ms(LOCK_MS)
        last = self.members[0]
        for _ in range(2_000):
            if self._is_drained():
                return
            if last.saying or last.fetching:
                self.world.scheduler.pass_ms(5_000)
                continue
            places = sorted(last.held)
            self._say(last, places)
            said = _said(places, [AcknowledgeType.ACCEPT] * len(places)) if last.epoch else {}
            epoch, life = last.epoch, last.life
            last.epoch, last.fetching = epoch + 1, True
            asked = self.world.fetch(
                epoch, member=last.name, partitions=PARTITIONS if not epoch else (), acks=said, wait_ms=10
            )
            self._when_answered(asked, last, life, lambda a=asked, s=said: self._fetched(last, a, s))
            self.world.scheduler.pass_ms(20)
        raise AssertionError("some records are never done")

    def _is_drained(self) -> bool:
        for index, log in enumerate(self.world.logs):
            hosted = self.world.service.partitions.get(SharePartitionKey("g", TOPIC_ID, index))
            if hosted is None or hosted.machine.start_offset < log.high_watermark:
                return False
        return True


def _said(places: Sequence[Place], kinds: Sequence[int]) -> Said:
    """Runs of neighbouring offsets, with an answer for each."""
    said: Said = {}
    for (partition, offset), kind in zip(places, kinds, strict=True):
        runs = said.setdefault(partition, [])
        if runs and runs[-1][1] == offset - 1:
            first, _, before = runs[-1]
            assert isinstance(before, list)
            runs[-1] = (first, offset, [*before, kind])
        else:
            runs.append((offset, offset, [kind]))
    return said


def simulate(seed: int) -> None:
    with tempfile.TemporaryDirectory() as dir:
        try:
            Simulation(seed, Path(dir)).run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


@pytest.mark.parametrize("block", range(BLOCKS))
def test_share_groups(block: int) -> None:
    for seed in range(block * SEEDS_A_BLOCK, (block + 1) * SEEDS_A_BLOCK):
        simulate(seed)
