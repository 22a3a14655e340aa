"""Fetches of consumers that have used too much: answered empty, and their sessions as if they had not asked."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.fetch_world import FOLLOWER, NODE, World, asked, connection, fetch_request

from ottla.model.errors import ErrorCode
from ottla.security.principal import ANONYMOUS
from ottla.server.network.output import Deferred
from ottla.server.quotas import QuotaManagers
from ottla.wire.codec import decode
from ottla.wire.framing import decode_response_header
from ottla.wire.messages.fetch import FetchResponse

LIMIT = 4_000.0
VERSION = 17


class Limited(World):
    """A broker with a quota for everybody's fetches."""

    def __init__(self, dir: Path, replicas: tuple[int, ...] = (NODE,)) -> None:
        super().__init__(dir, replicas=replicas)
        clock: Any = SimpleNamespace(monotonic_ms=lambda: float(self.replicas.clock_ms))
        self.services.quotas = self.quotas = QuotaManagers(clock=clock)
        self.quotas.clients.fetch.set_quota((("user", None),), LIMIT)
        self.quotas.enabled = True
        self.connection = self.client()

    def client(self) -> Any:
        made = connection()
        made.quotas, made.is_of_node, made.throttled = None, False, []
        made.throttle = made.throttled.append
        return made

    def used(self, amount: int) -> None:
        self.quotas.clients.fetch.record(ANONYMOUS, "client", amount, self.replicas.clock_ms)

    def ask(self, *partitions: Any, by: Any = None, **fields: Any) -> FetchResponse:
        reply = self.fetch(fetch_request(*partitions, **fields), VERSION, by)
        assert isinstance(reply, bytes), "it waits"
        return parsed(reply)


def parsed(reply: bytes) -> FetchResponse:
    _, start = decode_response_header(reply, 4, 1, VERSION)
    return decode(FetchResponse, reply, VERSION, start)[0]


@pytest.fixture
def world(tmp_path: Path) -> Limited:
    return Limited(tmp_path)


def records(response: FetchResponse) -> list[int]:
    return [len(p.records or b"") for topic in response.responses for p in topic.partitions]


@pytest.mark.parametrize("partitions", [1, 2])
def test_what_is_too_much_is_not_sent(world: Limited, partitions: int) -> None:
    """Of one partition by the short way, of two by the general one."""
    wanted = [asked(index) for index in range(partitions)]
    for index in range(partitions):
        world.append(world.host(index), 100)
    first = world.ask(*wanted, session_epoch=-1)
    assert (first.throttle_time_ms, len(records(first))) == (0, partitions)
    world.used(80_000)
    second = world.ask(*wanted, session_epoch=-1)
    assert second.throttle_time_ms > 0
    assert (second.error_code, second.responses) == (ErrorCode.NONE, [])
    assert world.connection.throttled == [second.throttle_time_ms]
    world.replicas.clock_ms += 12_000
    assert len(records(world.ask(*wanted, session_epoch=-1))) == partitions


@pytest.mark.parametrize("partitions", [1, 2])
def test_a_session_is_as_before(world: Limited, partitions: int) -> None:
    wanted = [asked(index) for index in range(partitions)]
    for index in range(partitions):
        world.append(world.host(index), 100)
    opened = world.ask(*wanted, session_epoch=0)
    assert opened.session_id
    world.used(80_000)
    again = [asked(index, 0) for index in range(partitions)]
    empty = world.ask(*again, session_id=opened.session_id, session_epoch=1)
    assert (empty.session_id, empty.responses) == (opened.session_id, [])
    assert empty.throttle_time_ms > 0
    world.replicas.clock_ms += 12_000
    # The client names nothing anew, and gets what it was not sent.
    full = world.ask(session_id=opened.session_id, session_epoch=2)
    assert len([size for size in records(full) if size]) == partitions


def test_a_session_that_was_to_be_opened_is_not(world: Limited) -> None:
    world.append(world.host(0), 100)
    world.used(80_000)
    refused = world.ask(asked(0), session_epoch=0)
    assert (refused.session_id, refused.responses) == (0, [])
    assert refused.throttle_time_ms > 0
    assert len(world.sessions) == 0


def test_one_that_waited_is_throttled_when_there_is_something(world: Limited) -> None:
    partition = world.host(0)
    waiting = world.fetch(fetch_request(asked(0), session_epoch=-1), VERSION)
    assert isinstance(waiting, Deferred)
    world.used(80_000)
    world.append(partition, 100)
    world.loop.turn()
    assert waiting.done
    assert isinstance(waiting.reply, list)
    answer = parsed(b"".join(bytes(chunk) for chunk in waiting.reply))  # type: ignore[arg-type]
    assert answer.throttle_time_ms > 0
    assert answer.responses == []


def test_no_fetch_gets_more_than_a_quarter_of_a_window(world: Limited) -> None:
    partition = world.host(0)
    for _ in range(50):
        world.append(partition, 100)
    (size,) = records(world.ask(asked(0), session_epoch=-1))
    assert 500 < size <= LIMIT / 4


def test_a_batch_that_no_window_has_room_for_comes_all_the_same(world: Limited) -> None:
    partition = world.host(0)
    world.append(partition, 200_000)
    (size,) = records(world.ask(asked(0), session_epoch=-1))
    assert size > 200_000
    assert world.ask(asked(0), session_epoch=-1).throttle_time_ms > 30_000


def test_followers_have_no_quota(tmp_path: Path) -> None:
    world = Limited(tmp_path, (NODE, FOLLOWER))
    partition = world.host(0)
    for _ in range(50):
        world.append(partition, 1_000)
    world.used(10**9)
    by = world.client()
    answer = world.ask(asked(0), replica=FOLLOWER, session_epoch=-1, by=by)
    assert sum(records(answer)) > 50_000
    assert (answer.throttle_time_ms, by.throttled, by.is_of_node) == (0, [], True)
    before = world.quotas.clients.fetch.record_and_throttle_ms(
        ANONYMOUS, "client", 0, world.replicas.clock_ms
    )
    world.ask(asked(0), replica=FOLLOWER, session_epoch=-1, by=by)
    after = world.quotas.clients.fetch.record_and_throttle_ms(ANONYMOUS, "client", 0, world.replicas.clock_ms)
    assert before == after
