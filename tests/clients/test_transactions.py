"""Transactions with every client: what is committed is seen, what is aborted is not, zombies are shut out."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pytest
from tests.clients.adapters.transactional import (
    PRODUCERS,
    Fenced,
    Librdkafka,
    Transactional,
    committed_offset,
    read,
)
from tests.clients.conftest import MakeTopic
from tests.interop.ottla_node import OttlaNode
from tests.interop.process import wait_until

Make = Callable[..., Transactional]


@pytest.fixture(params=PRODUCERS, ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest) -> type[Transactional]:
    """Each client in turn."""
    chosen: type[Transactional] = request.param
    return chosen


@pytest.fixture
def make(address: str, kind: type[Transactional]) -> Iterator[Make]:
    """Producers of one client, each with a transactional id of its own unless the test gives one."""
    made: list[Transactional] = []

    def make(transactional_id: str | None = None, **options: object) -> Transactional:
        producer = kind(address, transactional_id or f"id-{uuid.uuid4().hex[:8]}", **options)  # type: ignore[call-arg]
        made.append(producer)
        return producer

    yield make
    for producer in made:
        producer.close()


def written(producer: Transactional, topic: str, *values: bytes, committed: bool = True) -> None:
    """One transaction."""
    producer.begin()
    for value in values:
        producer.send(topic, value)
    if committed:
        producer.commit()
    else:
        producer.flush()
        producer.abort()


# ---- what is seen ---------------------------------------------------------------------------------------------


def test_a_committed_transaction_is_seen(address: str, make_topic: MakeTopic, make: Make) -> None:
    topic = make_topic()
    written(make(), topic, b"a", b"b")
    assert read(address, topic) == [b"a", b"b"]


@pytest.mark.three_nodes
def test_an_aborted_transaction_is_not_seen(address: str, make_topic: MakeTopic, make: Make) -> None:
    topic = make_topic()
    producer = make()
    written(producer, topic, b"kept")
    written(producer, topic, b"gone", b"gone too", committed=False)
    written(producer, topic, b"kept as well")
    assert read(address, topic) == [b"kept", b"kept as well"]
    assert read(address, topic, committed=False) == [b"kept", b"gone", b"gone too", b"kept as well"]


@pytest.mark.three_nodes
def test_all_partitions_or_none(address: str, make_topic: MakeTopic, make: Make) -> None:
    one, other = make_topic(3), make_topic(2)
    producer = make()
    for committed in (True, False, True):
        producer.begin()
        for partition in range(3):
            producer.send(one, b"%d" % partition, partition)
        producer.send(other, b"other", 1)
        producer.flush()
        producer.commit() if committed else producer.abort()
    assert read(address, one, 3) == [b"0", b"0", b"1", b"1", b"2", b"2"]
    assert read(address, other, 2) == [b"other", b"other"]


def test_a_transaction_of_nothing(address: str, make_topic: MakeTopic, make: Make) -> None:
    topic = make_topic()
    producer = make()
    for end in (producer.commit, producer.abort):
        producer.begin()
        end()
    written(producer, topic, b"after")
    assert read(address, topic) == [b"after"]


@pytest.mark.three_nodes
def test_readers_stop_at_an_open_transaction(
    address: str, make_topic: MakeTopic, make: Make, kind: type[Transactional]
) -> None:
    topic = make_topic()
    first, second = make(), make()
    written(first, topic, b"before")
    first.begin()
    first.send(topic, b"open")
    first.flush()
    written(second, topic, b"behind")
    assert read(address, topic) == [b"before"]
    assert read(address, topic, committed=False) == [b"before", b"open", b"behind"]
    first.commit()
    assert read(address, topic) == [b"before", b"open", b"behind"]


def test_a_transaction_of_many_batches(address: str, make_topic: MakeTopic, make: Make) -> None:
    topic = make_topic(2)
    producer = make()
    values = [b"%06d" % n + b"." * 500 for n in range(3_000)]
    for committed in (False, True):
        producer.begin()
        for number, value in enumerate(values):
            producer.send(topic, value, number % 2)
        producer.flush()
        producer.commit() if committed else producer.abort()
    assert read(address, topic, 2) == values[::2] + values[1::2]


def test_many_transactions_in_a_row(address: str, make_topic: MakeTopic, make: Make) -> None:
    topic = make_topic()
    producer = make()
    for number in range(60):
        written(producer, topic, b"%d" % number, committed=number % 3 != 1)
    assert read(address, topic) == [b"%d" % number for number in range(60) if number % 3 != 1]


# ---- offsets --------------------------------------------------------------------------------------------------


@pytest.mark.three_nodes
def test_offsets_count_with_their_transaction(address: str, make_topic: MakeTopic, make: Make) -> None:
    topic = make_topic()
    group = f"group-{topic}"
    producer = make()
    for offset, committed in ((5, True), (9, False), (7, True)):
        producer.begin()
        producer.send(topic, b"%d" % offset)
        producer.send_offsets(group, topic, {0: offset})
        producer.flush()
        producer.commit() if committed else producer.abort()
        assert committed_offset(address, group, topic) == (offset if committed else 5)
    assert read(address, topic) == [b"5", b"7"]


def test_a_transaction_of_offsets_alone(address: str, make_topic: MakeTopic, make: Make) -> None:
    topic = make_topic()
    group = f"group-{topic}"
    producer = make()
    producer.begin()
    producer.send_offsets(group, topic, {0: 3})
    producer.commit()
    assert committed_offset(address, group, topic) == 3


# ---- zombies --------------------------------------------------------------------------------------------------


@pytest.mark.three_nodes
def test_a_zombie_cannot_commit(address: str, make_topic: MakeTopic, make: Make) -> None:
    topic = make_topic()
    name = f"zombie-{topic}"
    zombie = make(name)
    zombie.begin()
    zombie.send(topic, b"zombie")
    zombie.flush()
    successor = make(name)
    written(successor, topic, b"successor")
    with pytest.raises(Fenced):
        zombie.commit()
    assert read(address, topic) == [b"successor"]


def test_a_zombie_of_another_client_is_shut_out_as_well(
    address: str, make_topic: MakeTopic, make: Make
) -> None:
    topic = make_topic()
    name = f"zombie-{topic}"
    zombie = Librdkafka(address, name)
    zombie.begin()
    zombie.send(topic, b"zombie")
    zombie.flush()
    written(make(name), topic, b"successor")
    with pytest.raises(Fenced):
        zombie.commit()
    assert read(address, topic) == [b"successor"]


# ---- time -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OttlaNode]:
    """A broker that looks for transactions past their timeout all the time."""
    broker = OttlaNode(
        tmp_path_factory.mktemp("hasty") / "data",
        {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 50},
        env={"PYTHONDONTWRITEBYTECODE": ""},
    )
    with broker:
        yield broker
    assert broker.exit_code == 0
    assert "Traceback" not in broker.log_text()


def test_a_transaction_past_its_timeout_is_aborted(hasty: OttlaNode, kind: type[Transactional]) -> None:
    topic = f"late-{kind.name}"
    on_time = Librdkafka(hasty.address, f"on-time-{topic}")
    written(on_time, topic, b"before")
    late = kind(hasty.address, f"late-{topic}", timeout_ms=1_000)  # type: ignore[call-arg]
    late.begin()
    late.send(topic, b"late")
    late.flush()
    written(on_time, topic, b"after")
    wait_until(lambda: read(hasty.address, topic) == [b"before", b"after"], 30, "the abort")
    with pytest.raises(Fenced):
        late.commit()
    late.close()
    assert read(hasty.address, topic) == [b"before", b"after"]
