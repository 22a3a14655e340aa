"""Who may fetch what: consumers by the topic, followers by the cluster, and nobody by another's session."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.authorizers import ALICE, BOB, judging, rule
from tests.support.fetch_world import FOLLOWER, NAME, World, as_bytes, asked, connection, fetch_request

from ottla.model.errors import ErrorCode
from ottla.model.ids import Uuid
from ottla.security.acls import AclOperation, ResourceType
from ottla.security.principal import KafkaPrincipal
from ottla.server.fetch_sessions import FetchSession
from ottla.server.network.output import Deferred
from ottla.wire.codec import decode
from ottla.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic

DENIED, NONE = ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.NONE
HIDDEN = "hidden"
READ_ORDERS = rule(AclOperation.READ, NAME)
FOLLOW = rule(AclOperation.CLUSTER_ACTION, kind=ResourceType.CLUSTER)
VERSION = 17


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Records in two topics, of which alice may read one."""
    world = World(tmp_path, replicas=(1,))
    world.append(world.host(0))
    world.append(world.host(0, topic=1, name=HIDDEN))
    world.services.authorizer = judging(READ_ORDERS)
    world.connection.principal = ALICE
    return world


def by(principal: KafkaPrincipal) -> Any:
    made = connection()
    made.principal = principal
    return made


def read(reply: Any, version: int = VERSION) -> FetchResponse:
    return decode(FetchResponse, reply, version, 9 if version >= 12 else 8)[0]


def answer(world: World, request: FetchRequest, sender: Any = None, version: int = VERSION) -> FetchResponse:
    reply = world.fetch(request, version, sender)
    assert isinstance(reply, bytes), "it waits"
    return read(reply, version)


def codes(response: FetchResponse) -> list[tuple[int, bool]]:
    assert response.error_code == NONE
    return [(p.error_code, bool(p.records)) for topic in response.responses for p in topic.partitions]


def both(**fields: Any) -> FetchRequest:
    """A fetch of both topics."""
    request = fetch_request(asked(0), **fields)
    request.topics.append(FetchTopic(topic_id=World.topic_id(1), partitions=[asked(0)]))
    return request


def by_name(name: str) -> FetchRequest:
    topic = FetchTopic(topic=name, partitions=[asked(0)])
    return FetchRequest(max_wait_ms=500, min_bytes=1, topics=[topic], session_epoch=-1)


@pytest.mark.parametrize("session_epoch", [-1, 0])
def test_a_consumer_reads_what_it_may(world: World, session_epoch: int) -> None:
    """The short way, and that of a session."""
    assert codes(answer(world, fetch_request(asked(0), session_epoch=session_epoch))) == [(NONE, True)]
    response = answer(world, fetch_request(asked(0), topic=1, session_epoch=session_epoch))
    assert codes(response) == [(DENIED, False)]
    assert response.responses[0].partitions[0].high_watermark == -1
    assert sorted(codes(answer(world, both(session_epoch=session_epoch)))) == [(NONE, True), (DENIED, False)]


@pytest.mark.parametrize("version", [11, 12])
def test_names_are_judged_before_it_is_looked_whether_they_exist(world: World, version: int) -> None:
    assert codes(answer(world, by_name(NAME), version=version)) == [(NONE, True)]
    for name in (HIDDEN, "absent"):
        assert codes(answer(world, by_name(name), version=version)) == [(DENIED, False)]


def test_an_id_that_nobody_knows_is_unknown(world: World) -> None:
    response = answer(world, fetch_request(asked(0), topic=7, session_epoch=-1))
    assert codes(response) == [(ErrorCode.UNKNOWN_TOPIC_ID, False)]


@pytest.mark.parametrize("operation", [AclOperation.DESCRIBE, AclOperation.WRITE])
def test_another_operation_is_not_enough(world: World, operation: AclOperation) -> None:
    world.services.authorizer = judging(rule(operation, NAME), FOLLOW)
    assert codes(answer(world, fetch_request(asked(0), session_epoch=-1))) == [(DENIED, False)]


@pytest.mark.parametrize("session_epoch", [-1, 0])
def test_only_who_has_cluster_action_follows(world: World, session_epoch: int) -> None:
    partition = world.replicas.hosted(NAME, 0)
    assert partition is not None
    follow = fetch_request(asked(0, 1), replica=FOLLOWER, session_epoch=session_epoch)
    assert codes(answer(world, follow)) == [(DENIED, False)]
    assert FOLLOWER not in partition.followers or partition.followers[FOLLOWER].log_end_offset < 1
    assert not any(session.is_privileged for session in world.sessions._sessions.values())


def test_a_follower_needs_nothing_else(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.append(world.host(0))
    world.services.authorizer = judging(FOLLOW)
    world.connection.principal = ALICE
    follow = fetch_request(asked(0), replica=FOLLOWER, session_epoch=0)
    assert codes(answer(world, follow)) == [(NONE, True)]
    assert codes(answer(world, fetch_request(asked(0), session_epoch=-1))) == [(DENIED, False)]


def test_what_may_not_be_read_does_not_end_the_wait_for_what_may(world: World) -> None:
    request = both(session_epoch=-1)
    request.topics[0].partitions[0].fetch_offset = 1
    waiting = world.fetch(request)
    assert isinstance(waiting, Deferred)
    hidden, orders = world.replicas.hosted(HIDDEN, 0), world.replicas.hosted(NAME, 0)
    assert hidden is not None
    assert orders is not None
    world.append(hidden)
    world.loop.turn()
    assert not waiting.done
    world.append(orders)
    world.loop.turn()
    assert sorted(codes(read(as_bytes(waiting.reply)))) == [(NONE, True), (DENIED, False)]


def test_a_fetch_that_waits_is_judged_again(world: World) -> None:
    waiting = world.fetch(fetch_request(asked(0, 1), session_epoch=-1))
    assert isinstance(waiting, Deferred)
    partition = world.replicas.hosted(NAME, 0)
    assert partition is not None
    take_away(world)
    world.append(partition)
    world.loop.turn()
    assert codes(read(as_bytes(waiting.reply))) == [(DENIED, False)]


def take_away(world: World) -> None:
    """Alice may read no more."""
    world.services.authorizer.apply([], removed=[Uuid(bytes(16))])


@pytest.mark.parametrize("version", [11, VERSION])
def test_what_is_known_of_a_connection_holds_until_rules_or_principal_change(
    world: World, version: int
) -> None:
    request = by_name(NAME) if version < 13 else fetch_request(asked(0), session_epoch=-1)

    def found() -> list[tuple[int, bool]]:
        return codes(answer(world, request, version=version))

    assert [found() for _ in range(3)] == [[(NONE, True)]] * 3
    take_away(world)
    assert found() == [(DENIED, False)], "the next request"
    world.services.authorizer.apply([(Uuid(bytes(16)), READ_ORDERS)])
    assert [found() for _ in range(2)] == [[(NONE, True)]] * 2
    world.connection.principal = BOB
    assert found() == [(DENIED, False)]
    world.connection.principal = ALICE
    assert found() == [(NONE, True)]
    another = judging(rule(AclOperation.WRITE, NAME))
    another.version = world.services.authorizer.version
    world.services.authorizer = another
    assert found() == [(DENIED, False)]


# ---- sessions ---------------------------------------------------------------------------------------------------


def opened(world: World, *partitions: FetchPartition) -> int:
    response = answer(world, fetch_request(*partitions, session_epoch=0, max_wait_ms=0))
    assert response.session_id
    return response.session_id


@pytest.mark.parametrize("partitions", [[asked(0)], [asked(0), asked(1)]])
def test_a_session_is_its_principals(world: World, partitions: list[FetchPartition]) -> None:
    world.append(world.host(1))
    world.services.authorizer = judging(READ_ORDERS, rule(AclOperation.READ, NAME, principal=BOB))
    session_id = opened(world, *partitions)
    again = fetch_request(asked(0), session_id=session_id, session_epoch=1, max_wait_ms=0)
    for _ in range(2):
        assert answer(world, again, by(BOB)).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    token = by(ALICE._replace(token_authenticated=True))
    assert (0, True) in codes(answer(world, again, token))


@pytest.mark.parametrize("epoch", [-1, 0])
def test_nobody_ends_the_session_of_another(world: World, epoch: int) -> None:
    session_id = opened(world, asked(0))
    ending = fetch_request(session_id=session_id, session_epoch=epoch, max_wait_ms=0)
    answer(world, ending, by(BOB))
    assert world.sessions.session(session_id) is not None
    answer(world, ending)
    assert world.sessions.session(session_id) is None


def test_also_without_an_authorizer(world: World) -> None:
    world.services.authorizer = None
    session_id = opened(world, asked(0))
    again = fetch_request(session_id=session_id, session_epoch=1, max_wait_ms=0)
    assert answer(world, again, by(BOB)).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_session_looks_at_everything_when_the_rules_have_changed(world: World) -> None:
    session_id = opened(world, asked(0, 1))
    again = fetch_request(session_id=session_id, session_epoch=1, max_wait_ms=0)
    assert codes(answer(world, again)) == []
    take_away(world)
    again.session_epoch = 2
    assert codes(answer(world, again)) == [(DENIED, False)]


def test_what_may_not_be_read_is_said_in_every_answer(world: World) -> None:
    session_id = answer(world, both(session_epoch=0)).session_id
    for epoch in (1, 2):
        again = fetch_request(session_id=session_id, session_epoch=epoch, max_wait_ms=0)
        assert (DENIED, False) in codes(answer(world, again))


# ---- planted bugs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "check",
    [
        lambda world: test_a_session_is_its_principals(world, [asked(0)]),
        lambda world: test_a_session_is_its_principals(world, [asked(0), asked(1)]),
        lambda world: test_nobody_ends_the_session_of_another(world, -1),
        lambda world: test_nobody_ends_the_session_of_another(world, 0),
        test_also_without_an_authorizer,
    ],
)
def test_a_session_that_serves_whoever_names_it_is_found(
    world: World, check: Callable[[World], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FetchSession, "belongs_to", lambda session, principal: True)
    with pytest.raises(AssertionError):
        check(world)
