"""Fetches of followers under a throttle (KIP-73): who is held back, by what it is woken, and what counts."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from math import inf
from pathlib import Path
from typing import Any

import pytest
from tests.support.fetch_world import (
    FOLLOWER,
    NAME,
    NODE,
    OTHER,
    World,
    as_bytes,
    asked,
    fetch_request,
)

from ottla.model.errors import ErrorCode
from ottla.replication.partition import Partition
from ottla.replication.quotas import ReplicationQuotaManager
from ottla.security.quotas import QuotaWindows
from ottla.server.handlers.fetch import INLINE_PARTITIONS
from ottla.server.limits import ElementBudget
from ottla.server.network.output import Deferred
from ottla.wire.codec import decode
from ottla.wire.framing import encode_request
from ottla.wire.messages.fetch import FetchRequest, FetchResponse, PartitionData

VERSION = 17
HEADER_BYTES = 9  # size, correlation id, tags
THROTTLED = "leader.replication.throttled.replicas"
RATE = 100.0
# The first two partitions.
BOTH = f"0:{NODE},1:{NODE}"


class Throttled(World):
    """Broker 1 leads partitions of which FOLLOWER is not in sync and OTHER is; the first two are throttled."""

    def __init__(self, dir: Path, executor: ThreadPoolExecutor | None = None, partitions: int = 3) -> None:
        super().__init__(dir, executor)
        self.partitions = [self.host(index) for index in range(partitions)]
        for partition in self.partitions:
            self.become(partition, NODE, (NODE, OTHER))
        self.throttle(BOTH)
        self.quota.update_quota(RATE)

    @property
    def quota(self) -> ReplicationQuotaManager:
        return self.replicas.quotas.leader

    def throttle(self, replicas: str) -> None:
        self.replicas.quotas.topic_changed(NAME, {THROTTLED: replicas} if replicas else {})

    def use_up(self, seconds: float = 3.0) -> None:
        """Throttled partitions have had what they may have in so many seconds."""
        self.quota.record(int(seconds * RATE), self.replicas.clock_ms)

    @property
    def rate(self) -> int:
        """The bytes that have been recorded within the last second."""
        return round(self.quota._rate.measure(self.replicas.clock_ms))

    def answer(self, request: FetchRequest) -> FetchResponse:
        reply = self.fetch(request, VERSION)
        assert isinstance(reply, bytes), "it waits"
        return read(reply)

    def waits(self, request: FetchRequest) -> Deferred:
        reply = self.fetch(request, VERSION)
        assert isinstance(reply, Deferred), read(reply)
        return reply


@pytest.fixture
def world(tmp_path: Path) -> Throttled:
    return Throttled(tmp_path)


def read(reply: bytes) -> FetchResponse:
    response, _ = decode(FetchResponse, reply, VERSION, HEADER_BYTES)
    assert response.error_code == ErrorCode.NONE
    return response


def resolved(deferred: Deferred) -> FetchResponse:
    assert deferred.done
    return read(as_bytes(deferred.reply))


def partitions(response: FetchResponse) -> dict[int, PartitionData]:
    return {found.partition_index: found for topic in response.responses for found in topic.partitions}


def sizes(response: FetchResponse) -> dict[int, int]:
    return {index: len(found.records or b"") for index, found in partitions(response).items()}


def follow(*indexes: int, by: int = FOLLOWER, **fields: Any) -> FetchRequest:
    return fetch_request(*(asked(index) for index in indexes), replica=by, **{"session_epoch": 0, **fields})


def size_of(partition: Partition) -> int:
    log = partition.log
    return log.read(0, 1 << 20, log.log_end_offset).length


def test_who_is_not_in_sync_gets_nothing_of_throttled_partitions_and_all_of_others(world: Throttled) -> None:
    for partition in world.partitions:
        world.append(partition)
    world.throttle(f"0:{NODE},1:{OTHER}")
    world.use_up()
    found = partitions(world.answer(follow(0, 1, 2)))
    assert [bool(found[index].records) for index in range(3)] == [False, True, True]
    assert (found[0].error_code, found[0].log_start_offset) == (ErrorCode.NONE, 0), "its marks it hears"


def test_as_long_as_there_is_room_all_is_sent(world: Throttled) -> None:
    world.append(world.partitions[0])
    world.use_up(1.0)
    assert sizes(world.answer(follow(0)))[0] > 0


def test_who_is_in_sync_is_never_held_back_and_counts(world: Throttled) -> None:
    for partition in world.partitions:
        world.append(partition)
    world.use_up()
    before = world.rate
    sent = sizes(world.answer(follow(0, 1, 2, by=OTHER)))
    assert all(sent.values())
    assert world.rate - before == sent[0] + sent[1], "what is not throttled does not count"


def test_consumers_are_no_concern_of_a_throttle(world: Throttled) -> None:
    partition = world.partitions[0]
    world.become(partition, NODE, (NODE,))
    world.append(partition)
    world.use_up()
    before = world.rate
    assert sizes(world.answer(fetch_request(asked(0), session_epoch=-1)))[0] > 0
    assert world.rate == before


def test_what_is_sent_counts_also_while_there_is_no_rate(world: Throttled) -> None:
    world.quota.update_quota(inf)
    world.append(world.partitions[0], 500)
    assert world.rate == 0
    sent = sizes(world.answer(follow(0)))
    assert world.rate == sent[0] > RATE
    world.quota.update_quota(RATE)
    world.waits(follow(0))


def test_a_fetch_that_is_held_back_waits_for_room_and_not_for_records(world: Throttled) -> None:
    partition = world.partitions[0]
    world.append(partition)
    world.use_up(3.0)
    waiting = world.waits(follow(0, 1, max_wait_ms=60_000))
    assert world.loop.delays_s == [60.0, 3.0]
    world.append(partition)
    world.append(world.partitions[1])
    world.loop.turn()
    assert not waiting.done, "it is held back as before"
    assert world.loop.delays_s == [60.0, 3.0]
    assert not world.loop.calls, "it looks again and again"
    world.replicas.clock_ms += 2_000
    world.use_up(1.0)
    world.loop.is_time_for_the_last()
    assert not waiting.done, "others were faster"
    assert world.loop.delays_s == [60.0, 2.0]
    world.replicas.clock_ms += 2_000
    world.loop.is_time_for_the_last()
    assert sizes(resolved(waiting)) == {0: size_of(partition), 1: size_of(world.partitions[1])}
    assert not world.loop.delays_s
    assert not world.quota.watchers


def test_what_is_held_back_is_not_counted_by_who_waits_for_bytes(world: Throttled) -> None:
    world.append(world.partitions[0], 5_000)
    world.append(world.partitions[2], 10)
    world.use_up()
    waiting = world.waits(follow(0, 2, min_bytes=1_000))
    world.append(world.partitions[2], 5_000)
    world.loop.turn()
    sent = sizes(resolved(waiting))
    assert not sent[0]
    assert sent[2] > 5_000


def test_when_its_time_is_up_it_is_told_nothing_and_the_next_one_gets_it(world: Throttled) -> None:
    world.append(world.partitions[0])
    world.use_up()
    waiting = world.waits(follow(0, 2))
    world.loop.time_passes()
    opened = resolved(waiting)
    assert sizes(opened) == {0: 0, 2: 0}
    assert not world.quota.watchers
    session_id = opened.session_id
    assert not sizes(world.answer(follow(session_id=session_id, session_epoch=1, max_wait_ms=0)))
    waiting = world.waits(follow(session_id=session_id, session_epoch=2))
    world.replicas.clock_ms += 3_000
    world.loop.is_time_for_the_last()
    assert sizes(resolved(waiting))[0] > 0


def test_whom_a_follower_has_it_shows_also_while_it_is_held_back(world: Throttled) -> None:
    partition = world.partitions[0]
    for _ in range(2):
        world.append(partition)
    world.use_up()
    request = fetch_request(asked(0, 1), replica=FOLLOWER, session_epoch=0)
    world.waits(request)
    assert partition.followers[FOLLOWER].log_end_offset == 1


def test_where_the_logs_part_it_hears_though_it_is_held_back(world: Throttled) -> None:
    partition = world.partitions[0]
    world.append(partition)
    world.use_up()
    wanted = asked(0, 9, last_fetched_epoch=partition.leader_epoch)
    found = partitions(world.answer(fetch_request(wanted, replica=FOLLOWER, session_epoch=0)))
    assert found[0].diverging_epoch.end_offset == 1


@pytest.mark.parametrize("change", ["no rate", "a higher rate", "no list", "another list"])
def test_whoever_is_held_back_goes_on_when_the_throttle_is_another(world: Throttled, change: str) -> None:
    world.append(world.partitions[0])
    world.use_up(3.0)
    waiting = world.waits(follow(0))
    world.quota.update_quota(RATE * 1.1)
    world.loop.turn()
    assert not waiting.done
    if change == "no rate":
        world.quota.update_quota(inf)
    elif change == "a higher rate":
        world.quota.update_quota(3 * RATE)
    else:
        world.throttle("" if change == "no list" else f"1:{NODE}")
    world.loop.turn()
    assert sizes(resolved(waiting))[0] > 0
    assert not world.quota.watchers


def test_a_throttle_holds_for_fetches_that_wait_already(world: Throttled) -> None:
    world.throttle("")
    world.quota.update_quota(0)
    waiting = world.waits(follow(0))
    world.throttle("*")
    world.use_up()
    world.append(world.partitions[0])
    world.loop.turn()
    assert not waiting.done


def test_a_rate_of_nothing_ends_no_wait_too_late(world: Throttled) -> None:
    """Once nothing has been sent for as long as is remembered, something is; nobody waits for ever."""
    world.quota.update_quota(0)
    partition = world.partitions[0]
    world.append(partition)
    assert sizes(world.answer(follow(0)))[0] > 0
    waiting = world.waits(follow(0))
    world.loop.time_passes()
    assert sizes(resolved(waiting)) == {0: 0}
    waiting = world.waits(follow(0))
    assert world.loop.delays_s[-1] * 1_000 == QuotaWindows().expiry_ms
    world.replicas.clock_ms += QuotaWindows().expiry_ms
    world.loop.is_time_for_the_last()
    assert sizes(resolved(waiting))[0] > 0


@pytest.mark.parametrize("why", ["epoch", "role", "lost", "gone"])
def test_who_is_held_back_hears_at_once_what_becomes_of_the_partition(world: Throttled, why: str) -> None:
    partition = world.partitions[0]
    world.append(partition)
    world.use_up()
    wanted = asked(0, current_leader_epoch=partition.leader_epoch)
    waiting = world.waits(fetch_request(wanted, replica=FOLLOWER, session_epoch=0))
    expected = ErrorCode.FENCED_LEADER_EPOCH
    if why == "epoch":
        world.become(partition, OTHER)
        world.become(partition, NODE)
    elif why == "role":
        world.become(partition, OTHER)
    elif why == "lost":
        partition.log.failed = True
        partition.log.moved()
        expected = ErrorCode.KAFKA_STORAGE_ERROR
    else:
        world.unhost(partition)
        expected = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    world.loop.turn()
    assert partitions(resolved(waiting))[0].error_code == expected
    assert not world.loop.delays_s
    assert not world.quota.watchers


def test_who_is_gone_waits_no_more(world: Throttled) -> None:
    world.append(world.partitions[0])
    world.use_up()
    waiting = world.waits(follow(0))
    assert world.quota.watchers
    waiting.abandon()
    assert not world.loop.delays_s
    assert not world.quota.watchers


def test_without_a_throttled_partition_nothing_is_asked(
    world: Throttled, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unasked(*_: object) -> Any:
        raise AssertionError("there is no throttle")

    world.throttle(f"0:{OTHER}")
    for name in ("is_throttled", "is_quota_exceeded", "room_ms", "record"):
        monkeypatch.setattr(ReplicationQuotaManager, name, unasked)
    world.append(world.partitions[0])
    assert sizes(world.answer(follow(0)))[0] > 0
    waiting = world.waits(follow(1))
    world.append(world.partitions[1])
    world.loop.turn()
    assert sizes(resolved(waiting))[1] > 0


@pytest.mark.parametrize("ends", ["room", "change"])
def test_very_many_partitions_are_held_back_in_slices(tmp_path: Path, ends: str) -> None:
    many = INLINE_PARTITIONS + 10

    async def run() -> None:
        with ThreadPoolExecutor(1) as executor:
            world = Throttled(tmp_path, executor, many)
            world.services.loop = asyncio.get_running_loop()
            world.services.elements = ElementBudget()
            world.throttle("*")
            world.append(world.partitions[0])
            world.use_up(1.01)
            request = follow(*range(many), max_wait_ms=60_000)
            frame = encode_request(request, VERSION, 5, "client")
            answered = asyncio.ensure_future(world.handle(frame, VERSION))
            while not world.quota.watchers and not answered.done():
                await asyncio.sleep(0)
            assert not answered.done()
            if ends == "room":
                world.replicas.clock_ms += 1_010
            else:
                world.quota.update_quota(inf)
            found = sizes(read(as_bytes(await answered)))
            assert found[0] > 0
            assert len(found) == many
            assert not world.quota.watchers

    asyncio.run(run())
