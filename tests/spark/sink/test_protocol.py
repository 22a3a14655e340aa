"""The sink's protocol on a real broker, driven as Spark drives it but without Spark: every crash point, every order."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from tests.support.sink_world import Sink, Stopped, final_values, is_stable, values
from tests.support.spark_world import Broker

from ottla.client.transaction.by_id import committed, init_producer_id
from ottla.model.ids import TopicPartition as Place
from ottla.spark.sink.cluster import RowsLostError, read_decision
from ottla.spark.sink.commit import CopyRows, Examine, OlderCheckpointError, SinkError, commit_once

pytestmark = pytest.mark.xdist_group("spark")


def texts(name: str, count: int = 20) -> list[str]:
    return [f"{name}-{number:03}" for number in range(count)]


@pytest.fixture
def sink(broker: Broker) -> Sink:
    return Sink(broker.bootstrap, broker.topic(3), uuid.uuid4().hex)


def check(broker: Broker, sink: Sink, expected: list[str]) -> None:
    assert final_values(broker.bootstrap, sink.topic) == sorted(expected)


def timed_out(sink: Sink, report: Any) -> None:
    """What a timeout and a zombie's initialization have in common: the coordinator aborts and fences."""
    init_producer_id(sink.client, report.entry.transactional_id(sink.prefix))


def wait_for_decision(sink: Sink) -> None:
    """Until its markers are written: a task that looks does not wait for them.

    The partitions are named: asked for all it has, a group says nothing of first commits that are still open.
    """
    places = [Place(sink.topic, partition) for partition in sink.client.topic(sink.topic).partitions]
    committed(sink.client, sink.prefix, places)
    assert read_decision(sink.client, sink.prefix, require_stable=True) is not None


def restart_later(sink: Sink) -> None:
    sink.restart()
    wait_for_decision(sink)


def test_batches_one_after_the_other(broker: Broker, sink: Sink) -> None:
    for batch in range(3):
        reports = [sink.task(batch, slot, texts(f"b{batch}s{slot}")) for slot in range(2)]
        before = texts("b0s0") + texts("b0s1") if batch else []
        assert set(values(broker.bootstrap, sink.topic)) >= set(before)
        sink.commit(batch, reports)
    check(broker, sink, [t for b in range(3) for s in range(2) for t in texts(f"b{b}s{s}")])


def test_nothing_is_visible_before_the_commit(broker: Broker, sink: Sink) -> None:
    reports = [sink.task(0, 0, texts("a"))]
    assert values(broker.bootstrap, sink.topic) == []
    sink.commit(0, reports)
    check(broker, sink, texts("a"))


@pytest.mark.parametrize("looks", [True, False], ids=["replay looks first", "replay writes"])
@pytest.mark.parametrize("steps", range(7))
def test_a_driver_dies_before_any_step_and_the_batch_is_replayed(
    broker: Broker, sink: Sink, steps: int, looks: bool
) -> None:
    """Six steps make a first commit; after the sixth it dies before Spark has noted the batch."""
    reports = [sink.task(0, slot, texts(f"s{slot}")) for slot in range(2)]
    if steps < 6:
        with pytest.raises(Stopped):
            sink.commit(0, reports, die_before=steps)
    else:
        sink.commit(0, reports)
    sink.restart()
    replay = [sink.task(0, 0, texts("s0") + texts("s1"), looks=looks)]  # another layout
    sink.commit(0, replay)
    check(broker, sink, texts("s0") + texts("s1"))
    sink.commit(1, [sink.task(1, 0, texts("next"))])
    check(broker, sink, texts("s0") + texts("s1") + texts("next"))


def test_a_process_that_remembers_an_older_decision_looks_again(broker: Broker, sink: Sink) -> None:
    """Spark commits in any of its workers: the one that wrote batch 1 has not seen who wrote batch 2."""
    other = Sink(broker.bootstrap, sink.topic, sink.query_id)
    for batch, process in enumerate((sink, sink, other)):
        process.commit(batch, [process.task(batch, 0, texts(f"b{batch}"))], of_stream=True)
    with pytest.raises(OlderCheckpointError):
        sink.commit(1, [sink.task(1, 0, texts("other rows"), looks=False)], of_stream=True)
    sink.commit(2, [sink.task(2, 0, texts("b2"), looks=False)], of_stream=True)
    check(broker, sink, texts("b0") + texts("b1") + texts("b2"))


@pytest.mark.parametrize("after", ["the decision", "the tasks"])
def test_transactions_that_time_out_are_written_again(broker: Broker, sink: Sink, after: str) -> None:
    reports = [sink.task(0, slot, texts(f"s{slot}")) for slot in range(3)]
    if after == "the decision":
        with pytest.raises(Stopped):
            sink.commit(0, reports, die_before=4)
    timed_out(sink, reports[0])
    timed_out(sink, reports[2])
    if after == "the decision":
        sink.restart()
    sink.commit(0, reports)
    assert any(isinstance(step, CopyRows) and len(step.entries) == 2 for step in sink.steps)
    check(broker, sink, [text for slot in range(3) for text in texts(f"s{slot}")])
    decision = read_decision(sink.client, sink.prefix, require_stable=True)
    assert decision is not None
    assert [entry.slot for entry in decision.entries] == [1]


@pytest.mark.parametrize("steps", range(6, 12))
def test_a_driver_dies_while_it_recovers(broker: Broker, sink: Sink, steps: int) -> None:
    """TakeOver, ReadDecision, WriteDecision, EndDecision, End, FenceOpen, Examine, CopyRows, Write-, EndDecision."""
    reports = [sink.task(0, slot, texts(f"s{slot}")) for slot in range(2)]
    timed_out(sink, reports[1])
    try:
        sink.commit(0, reports, die_before=steps)
    except Stopped:
        sink.restart()
        sink.commit(0, [sink.task(0, 0, texts("s0") + texts("s1"))])
    check(broker, sink, texts("s0") + texts("s1"))


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
def test_rows_are_written_again_as_they_were(broker: Broker, codec: str, kind: str) -> None:
    topic = broker.topic(2, message_timestamp_type=kind)
    sink = Sink(broker.bootstrap, topic, uuid.uuid4().hex, **{"kafka.compression.type": codec})
    report = sink.task(0, 0, texts("row", 500))
    timed_out(sink, report)
    sink.commit(0, [report])
    check(broker, sink, texts("row", 500))


def test_a_replay_that_has_fenced_what_was_decided(broker: Broker, sink: Sink) -> None:
    """The driver dies between decision and ends; the replay's tasks look too early and take over their ids."""
    reports = [sink.task(0, slot, texts(f"s{slot}")) for slot in range(2)]
    with pytest.raises(Stopped):
        sink.commit(0, reports, die_before=4)
    sink.restart()
    replay = [sink.task(0, slot, texts(f"s{slot}"), looks=False) for slot in range(2)]
    sink.commit(0, replay)
    assert any(isinstance(step, CopyRows) for step in sink.steps)
    check(broker, sink, texts("s0") + texts("s1"))


def test_a_late_look_at_what_was_committed_writes_nothing_again(broker: Broker, sink: Sink) -> None:
    reports = [sink.task(0, 0, texts("a"))]
    sink.commit(0, reports)
    sink.restart()
    timed_out(sink, reports[0])  # the id has moved on: only the log knows now
    sink.commit(0, reports)
    assert any(isinstance(step, Examine) for step in sink.steps)
    assert not any(isinstance(step, CopyRows) for step in sink.steps)
    check(broker, sink, texts("a"))


def test_attempts_that_lost_are_fenced_by_the_commit(broker: Broker, sink: Sink) -> None:
    sink.task(0, 0, texts("lost"), number=0)  # killed: nobody hears of it
    report = sink.task(0, 0, texts("won"), number=1)
    sink.task(0, 0, texts("late"), number=2)  # a speculative copy that was too late
    assert not is_stable(sink.client, sink.topic)
    sink.commit(0, [report])
    check(broker, sink, texts("won"))


def test_two_drivers_decide_once(broker: Broker, sink: Sink) -> None:
    other = Sink(broker.bootstrap, sink.topic, sink.query_id)
    reports = [sink.task(0, 0, texts("a") + texts("b"))]
    replay = [other.task(0, 1, texts("a")), other.task(0, 2, texts("b"))]
    with pytest.raises(Stopped):
        sink.commit(0, reports, die_before=2)  # it has taken over and read
    other.commit(0, replay)
    sink.driver.identity = sink.driver.identity or None
    sink.commit(0, reports)  # it goes on, fenced
    check(broker, sink, texts("a") + texts("b"))
    other.commit(1, [other.task(1, 0, texts("c"))])  # and is fenced itself by that
    check(broker, sink, texts("a") + texts("b") + texts("c"))


def test_an_abort_leaves_nothing(broker: Broker, sink: Sink) -> None:
    reports = [sink.task(0, 0, texts("a"))]
    sink.task(0, 1, texts("b"))  # its message did not come
    sink.abort(0, reports)
    check(broker, sink, [])
    sink.commit(0, [sink.task(0, 0, texts("again"))])
    check(broker, sink, texts("again"))


def test_an_abort_after_the_decision_completes_the_batch(broker: Broker, sink: Sink) -> None:
    reports = [sink.task(0, 0, texts("a"))]
    with pytest.raises(Stopped):
        sink.commit(0, reports, die_before=4)
    sink.abort(0, reports)
    check(broker, sink, texts("a"))


def test_a_batch_without_rows_decides_nothing(broker: Broker, sink: Sink) -> None:
    sink.commit(0, [sink.task(0, 0, [])])
    assert read_decision(sink.client, sink.prefix, require_stable=True) is None
    check(broker, sink, [])


def test_an_older_batch_is_not_written_again(broker: Broker, sink: Sink) -> None:
    for batch in range(2):
        sink.commit(batch, [sink.task(batch, 0, texts(f"b{batch}"))])
    restart_later(sink)
    report = sink.task(0, 0, texts("b0"))
    assert report.skipped
    sink.commit(0, [report])
    check(broker, sink, texts("b0") + texts("b1"))


def test_a_write_that_nobody_replays(broker: Broker, sink: Sink) -> None:
    """df.write without an id: no decision is written, and what timed out is written again all the same."""
    reports = [sink.task(0, slot, texts(f"s{slot}"), looks=False) for slot in range(3)]
    sink.task(0, 1, texts("lost"), number=1, looks=False)
    timed_out(sink, reports[2])
    sink.run(commit_once(sink.written(0, reports)))
    check(broker, sink, [text for slot in range(3) for text in texts(f"s{slot}")])
    assert read_decision(sink.client, sink.prefix, require_stable=True) is None


def test_another_query_under_the_same_id_completes_what_was_left(broker: Broker) -> None:
    topic, prefix = broker.topic(2), uuid.uuid4().hex
    first = Sink(broker.bootstrap, topic, "first", **{"kafka.transactional.id": prefix})
    with pytest.raises(Stopped):
        first.commit(7, [first.task(7, 0, texts("first"))], die_before=4)
    second = Sink(broker.bootstrap, topic, "second", **{"kafka.transactional.id": prefix})
    second.commit(0, [second.task(0, 0, texts("second"))])
    check(broker, second, texts("first") + texts("second"))


def test_a_decision_that_went_away_is_not_taken_for_one(broker: Broker, sink: Sink) -> None:
    sink.commit(0, [sink.task(0, 0, texts("a"))])
    restart_later(sink)
    report = sink.task(0, 0, texts("a"))
    assert report.skipped
    admin = broker.admin()
    for future in admin.delete_consumer_groups([sink.prefix]).values():
        future.result(30)
    with pytest.raises(SinkError, match="run the batch again"):
        sink.commit(0, [report])


def test_a_decision_that_went_away_is_forgotten_by_who_made_it(broker: Broker, sink: Sink) -> None:
    """The docs' way to have a batch written again, in a program that goes on."""
    sink.commit(0, [sink.task(0, 0, texts("a"))])
    wait_for_decision(sink)
    admin = broker.admin()
    for future in admin.delete_consumer_groups([sink.prefix]).values():
        future.result(30)
    sink.commit(0, [sink.task(0, 0, [])])  # there is nothing to decide, and nothing to miss
    report = sink.task(0, 0, texts("again"))
    assert not report.skipped
    sink.commit(0, [report])
    check(broker, sink, texts("a") + texts("again"))


def test_rows_that_retention_removed_are_missed(broker: Broker, sink: Sink) -> None:
    from confluent_kafka import TopicPartition

    report = sink.task(0, 0, texts("a"))
    timed_out(sink, report)
    admin = broker.admin()
    for future in admin.delete_records([TopicPartition(sink.topic, p, -1) for p in range(3)]).values():
        future.result(30)
    with pytest.raises(RowsLostError, match=r"failOnDataLoss=false"):
        sink.commit(0, [report])
    careless = Sink(broker.bootstrap, sink.topic, sink.query_id, failOnDataLoss="false")
    careless.commit(0, [report])
    check(broker, careless, [])
