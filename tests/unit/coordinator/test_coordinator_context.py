"""A shard: decisions in batches, answers at commit, and the state as it was when something fails."""

import logging
from collections.abc import Iterable, Sequence

import pytest
from tests.support.group_world import MemoryLog
from tests.unit.coordinator.toy import ToyWorld, number, put

from ottla.coordinator.runtime import ANSWERED_AT_ONCE, TRANSITIONS, CoordinatorState, Producer, translate
from ottla.coordinator.shard import After, Answer, CancelTimer, CoordinatorResult, Effect, StartTimer
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.pending import Pending
from ottla.records.batch import iter_batches

NOT_COORDINATOR = KafkaError(ErrorCode.NOT_COORDINATOR)


@pytest.fixture
def world() -> ToyWorld:
    return ToyWorld()


def batches(log: MemoryLog) -> list[int]:
    """How many records each batch of the log has."""
    return [batch.records_count for batch in iter_batches(bytes(log.data))]


# ---- batches --------------------------------------------------------------------------------------------------


def test_decisions_of_one_turn_are_one_batch(world: ToyWorld) -> None:
    answers = [world.write(put(name, 1)) for name in "abc"]
    assert batches(world.log) == []
    assert not any(answer.done for answer in answers)
    world.settle()
    assert batches(world.log) == [3]
    assert [answer.result() for answer in answers] == [
        {"a": 1},
        {"a": 1, "b": 1},
        {"a": 1, "b": 1, "c": 1},
    ]


def test_decisions_wait_for_as_long_as_they_may_linger() -> None:
    world = ToyWorld(linger_ms=10)
    first = world.write(put("a", 1))
    world.pass_ms(9)
    second = world.write(put("b", 2))
    assert not first.done
    world.pass_ms(1)
    assert first.done
    assert second.done
    assert batches(world.log) == [2]


def test_a_batch_is_as_large_as_the_log_takes(world: ToyWorld) -> None:
    world.log.max_batch_bytes = 400
    answers = [world.write(put(f"name-{i}", i)) for i in range(20)]
    world.settle()
    sizes = [batch.size_bytes for batch in iter_batches(bytes(world.log.data))]
    assert len(sizes) > 1
    assert max(sizes) <= 400
    assert all(answer.done and answer.error is None for answer in answers)
    assert world.reloaded().toy.committed() == {f"name-{i}": i for i in range(20)}


def test_one_decision_is_not_torn_into_two_batches(world: ToyWorld) -> None:
    world.log.max_batch_bytes = 400
    world.write(put("first", 0))
    many = [number(f"name-{i}", i) for i in range(3)]
    world.write(lambda toy, _: CoordinatorResult(None, many))
    world.settle()
    assert batches(world.log) == [1, 3] or batches(world.log) == [4]
    too_many = [number(f"more-{i}", i) for i in range(30)]
    refused = world.write(lambda toy, _: CoordinatorResult(None, too_many))
    assert refused.error is not None
    assert refused.error.code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert "more-0" not in world.toy.newest()


def test_a_decision_of_independent_records_may_be_torn(world: ToyWorld) -> None:
    world.log.max_batch_bytes = 400
    many = [number(f"name-{i}", i) for i in range(30)]
    answer = world.write(lambda toy, _: CoordinatorResult("all", many, atomic=False))
    world.settle()
    assert answer.result() == "all"
    assert len(batches(world.log)) > 1
    assert world.reloaded().toy.committed() == {f"name-{i}": i for i in range(30)}


def test_a_record_that_fits_into_no_batch_is_refused(world: ToyWorld) -> None:
    world.log.max_batch_bytes = 400
    huge = [number("huge", 1, metadata="x" * 400)]
    refused = world.write(lambda toy, _: CoordinatorResult(None, huge, atomic=False))
    assert refused.error is not None
    assert refused.error.code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert world.toy.newest() == {}


def test_a_record_that_cannot_be_encoded_is_refused(world: ToyWorld) -> None:
    refused = world.write(put("too_long_a_name" * 10_000, 1))
    assert refused.error is not None
    assert refused.error.code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert world.toy.newest() == {}


# ---- commit ---------------------------------------------------------------------------------------------------


def test_an_answer_waits_for_the_commit_and_reads_do_not_see_more(world: ToyWorld) -> None:
    world.log.hold()
    answer = world.write(put("a", 1))
    world.settle()
    assert not answer.done
    assert world.toy.newest() == {"a": 1}
    assert world.toy.committed() == {}
    world.log.release()
    assert answer.result() == {"a": 1}
    assert world.toy.committed() == {"a": 1}
    assert world.timeline.clean


def test_a_decision_without_records_waits_for_what_it_has_seen(world: ToyWorld) -> None:
    assert world.write(lambda toy, _: CoordinatorResult(toy.newest())).result() == {}
    world.log.hold()
    world.write(put("a", 1))
    seen = world.write(lambda toy, _: CoordinatorResult(toy.newest()))
    world.settle()
    assert not seen.done
    world.log.release()
    assert seen.result() == {"a": 1}


def test_a_high_watermark_that_lags_releases_what_it_has_reached(world: ToyWorld) -> None:
    world.log.hold()
    first = world.write(put("a", 1))
    world.settle()
    second = world.write(put("b", 2))
    world.settle()
    world.log.high_watermark = 1
    world.shard._committed(ErrorCode.NONE)
    assert first.done
    assert not second.done
    assert world.toy.committed() == {"a": 1}
    world.log.release()
    assert second.done


def test_a_commit_that_takes_too_long_is_told_and_still_counts(world: ToyWorld) -> None:
    world.log.hold()
    late = world.write(put("a", 1), timeout_ms=100)
    later = world.write(put("b", 1), timeout_ms=5_000)
    shorter = world.write(put("c", 1), timeout_ms=50)
    world.pass_ms(50)
    assert shorter.error is not None
    assert not late.done
    world.pass_ms(50)
    assert late.error is not None
    assert late.error.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert not later.done
    world.log.release()
    assert later.done
    assert later.error is None
    assert world.toy.committed() == {"a": 1, "b": 1, "c": 1}


def test_answers_and_calls_to_the_outside_wait_for_the_commit(world: ToyWorld) -> None:
    world.log.hold()
    parked: Pending[str] = Pending()
    told: list[str] = []
    effects = [Answer(parked, "here"), After(lambda: told.append("done"))]
    world.write(put("a", 1, effects=effects))
    world.settle()
    assert not parked.done
    assert not told
    world.log.release()
    assert parked.result() == "here"
    assert told == ["done"]


def test_a_parked_request_is_answered_by_whoever_resolves_it(world: ToyWorld) -> None:
    parked: Pending[str] = Pending()
    answer = world.write(lambda toy, _: CoordinatorResult(parked, [number("a", 1)]))
    world.settle()
    assert not answer.done
    world.write(put("b", 2, effects=[Answer(parked, "late")]))
    world.settle()
    assert answer.result() == "late"


# ---- failure --------------------------------------------------------------------------------------------------


def test_what_could_not_be_appended_was_never_decided(world: ToyWorld) -> None:
    world.write(put("a", 1))
    world.settle()
    world.log.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
    answers = [world.write(put("a", 2)), world.write(put("b", 1)), world.write(put("a", None))]
    seen = world.write(lambda toy, _: CoordinatorResult(toy.newest()))
    world.settle()
    assert [answer.error.code for answer in [*answers, seen] if answer.error] == (
        [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 4
    )
    assert world.toy.newest() == {"a": 1}
    world.log.refuse(None)
    after = world.write(put("c", 3))
    world.settle()
    assert after.result() == {"a": 1, "c": 3}
    assert world.reloaded().toy.committed() == {"a": 1, "c": 3}


def test_a_failure_leaves_alone_what_is_appended_and_not_committed(world: ToyWorld) -> None:
    world.log.hold()
    first = world.write(put("a", 1))
    world.settle()
    world.log.refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    second = world.write(put("a", 2))
    world.settle()
    assert second.error is not None
    assert second.error.code is ErrorCode.NOT_COORDINATOR
    assert not first.done
    assert world.toy.newest() == {"a": 1}
    world.log.release()
    assert first.result() == {"a": 1}


def test_soft_state_is_mended_and_those_who_were_to_be_answered_are_told(world: ToyWorld) -> None:
    world.log.refuse(ErrorCode.KAFKA_STORAGE_ERROR)
    mended: list[ErrorCode] = []
    parked: Pending[str] = Pending()
    told: list[str] = []

    def mend(error: KafkaError) -> list[After]:
        mended.append(error.code)
        return [After(lambda: told.append("after the failure"))]

    answer = world.write(
        put("a", 1, effects=[Answer(parked, "x"), After(lambda: told.append("no"))], on_failure=mend)
    )
    world.settle()
    assert mended == [ErrorCode.NOT_COORDINATOR]
    assert parked.error is not None
    assert answer.error is not None
    assert told == ["after the failure"]


def test_unloading_leaves_nobody_behind_whom_a_failure_was_to_answer(world: ToyWorld) -> None:
    """A leader's assignment that was never committed: the members that wait for it hear of that too."""
    parked: Pending[str] = Pending()
    world.log.hold()
    world.write(put("a", 1, on_failure=lambda error: [Answer(parked, "come again")]))
    world.settle()
    world.shard.close(KafkaError(ErrorCode.NOT_COORDINATOR))
    assert parked.error is not None
    assert parked.error.code is ErrorCode.NOT_COORDINATOR


def test_a_decision_that_is_refused_changes_nothing(world: ToyWorld) -> None:
    def refuse(toy: object, now_ms: int) -> CoordinatorResult[None]:
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION)

    answer = world.write(refuse)
    assert answer.error is not None
    assert answer.error.code is ErrorCode.ILLEGAL_GENERATION
    world.settle()
    assert batches(world.log) == []


def test_a_mistake_in_a_machine_leaves_no_half_of_a_decision(world: ToyWorld) -> None:
    world.toy.fails_on = "bad"
    good = world.write(put("a", 1))
    two = [number("b", 1), number("bad", 1)]
    mended: list[KafkaError] = []

    def mend(error: KafkaError) -> Sequence[Effect]:
        mended.append(error)
        return ()

    bad = world.write(lambda toy, _: CoordinatorResult(None, two, on_failure=mend))
    assert bad.error is not None
    assert bad.error.code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert mended == [bad.error]
    assert world.toy.newest() == {"a": 1}
    world.settle()
    assert good.result() == {"a": 1}
    assert world.reloaded().toy.committed() == {"a": 1}


def test_a_failure_halfway_of_a_long_decision_keeps_what_is_in_the_log(world: ToyWorld) -> None:
    world.log.max_batch_bytes = 400
    appended = world.log.append

    def once(batch: bytearray, now_ms: int, transaction_version: int = 0) -> int:
        world.log.refuse(ErrorCode.NOT_ENOUGH_REPLICAS if world.log.log_end_offset else None)
        return appended(batch, now_ms, transaction_version)

    world.log.append = once  # type: ignore[method-assign]
    many = [number(f"name-{i}", i) for i in range(30)]
    answer = world.write(lambda toy, _: CoordinatorResult("all", many, atomic=False))
    world.settle()
    assert answer.error is not None
    assert world.toy.newest() == world.reloaded().toy.newest() != {}


def test_a_long_decision_that_fails_together_with_an_earlier_one_leaves_no_gap(world: ToyWorld) -> None:
    world.log.max_batch_bytes = 400
    first = world.write(put("a", 1))
    world.log.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
    many = [number(f"name-{i}", i) for i in range(30)]
    second = world.write(lambda toy, _: CoordinatorResult("all", many, atomic=False))
    assert first.error is not None
    assert second.error is not None
    world.log.refuse(None)
    again = world.write(put("b", 2))
    world.settle()
    assert again.done, "it waits for nothing but its own record"
    assert world.toy.committed() == world.reloaded().toy.committed() == {"b": 2}


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
        (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_EPOCH),
    ],
)
def test_failures_of_the_log_in_the_words_of_a_coordinator(found: ErrorCode, told: ErrorCode) -> None:
    assert translate(KafkaError(found)).code is told


# ---- deciding while being told --------------------------------------------------------------------------------


def test_whoever_is_told_may_decide_at_once(world: ToyWorld) -> None:
    seen: list[object] = []
    again = Pending[object]()

    def go_on(_: Pending[object]) -> None:
        world.write(put("b", 2)).then(lambda done: again.resolve(done.result()))

    world.write(put("a", 1)).then(go_on)
    world.settle()
    assert again.result() == {"a": 1, "b": 2}
    assert not seen
    assert world.reloaded().toy.committed() == {"a": 1, "b": 2}


def test_a_decision_made_while_a_batch_is_appended_keeps_its_place(world: ToyWorld) -> None:
    world.log.hold()
    nested: list[Pending[object]] = []
    world.write(put("a", 1)).then(lambda _: nested.append(world.write(put("c", 3))))
    world.settle()
    # The next append moves the high watermark first, as a leader's does whose followers have gone.
    appended = world.log.append

    def advance(batch: bytearray, now_ms: int, transaction_version: int = 0) -> int:
        end = appended(batch, now_ms, transaction_version)
        world.log.append = appended  # type: ignore[method-assign]
        world.log.release()
        return end

    world.log.append = advance  # type: ignore[method-assign]
    second = world.write(put("b", 2))
    world.settle()
    assert second.result() == {"a": 1, "b": 2}
    assert [answer.result() for answer in nested] == [{"a": 1, "b": 2, "c": 3}]
    assert world.lost == 0
    assert world.reloaded().toy.committed() == {"a": 1, "b": 2, "c": 3}


def test_a_decision_made_while_a_transaction_is_about_to_be_written_is_none_of_it(world: ToyWorld) -> None:
    producer = Producer(7, 0)
    world.write(put("a", 1)).then(lambda _: world.write(put("c", 3)))
    world.write(put("b", 2), producer=producer)
    world.end(producer, committed=False)
    world.settle()
    assert world.toy.committed() == world.reloaded().toy.committed() == {"a": 1, "c": 3}


def test_a_decision_made_while_there_is_room_made_for_another_does_not_tear_it(world: ToyWorld) -> None:
    world.log.max_batch_bytes = 340
    world.write(put("a", 1)).then(lambda _: world.write(put("c", 3)))
    together = [number(f"name-{i}", i) for i in range(4)]
    world.write(lambda toy, _: CoordinatorResult("all", together))
    world.settle()
    assert batches(world.log) == [1, 1, 4]
    assert world.toy.committed() == world.reloaded().toy.committed()


def test_a_decision_made_while_a_marker_is_about_to_be_written_comes_before_it(world: ToyWorld) -> None:
    producer = Producer(7, 0)
    world.write(put("b", 2), producer=producer)
    world.write(put("a", 1)).then(lambda _: world.write(put("c", 3)))
    ended = world.end(producer, committed=True)
    world.settle()
    assert ended.error is None
    assert world.lost == 0
    assert world.toy.committed() == world.reloaded().toy.committed() == {"a": 1, "b": 2, "c": 3}


def test_a_decision_made_while_a_batch_fails_is_told_too(world: ToyWorld) -> None:
    nested: list[Pending[object]] = []

    def fail(batch: bytearray, now_ms: int, transaction_version: int = 0) -> int:
        nested.append(world.write(put("nested", 1)))
        raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)

    appended = world.log.append
    world.log.append = fail  # type: ignore[method-assign]
    first = world.write(put("a", 1))
    world.settle()
    world.log.append = appended  # type: ignore[method-assign]
    assert first.error is not None
    assert nested[0].error is not None
    assert world.toy.newest() == {}
    again = world.write(put("b", 1))
    world.settle()
    assert again.result() == {"b": 1}
    assert world.reloaded().toy.committed() == {"b": 1}


def test_a_shard_whose_log_somebody_else_wrote_to_is_loaded_again(world: ToyWorld) -> None:
    other = ToyWorld(world.log)
    other.write(put("theirs", 1))
    other.settle()
    answer = world.write(put("ours", 1))
    world.settle()
    assert answer.error is not None
    assert answer.error.code is ErrorCode.NOT_COORDINATOR
    assert world.shard.state is CoordinatorState.CLOSED
    assert world.lost == 1


# ---- timers ---------------------------------------------------------------------------------------------------


def test_a_timer_is_a_decision_of_its_own(world: ToyWorld) -> None:
    start = StartTimer("t", 100, lambda now_ms: CoordinatorResult(None, [number("rung", now_ms)]))
    world.write(put("a", 1, effects=[start]))
    world.pass_ms(99)
    assert "rung" not in world.toy.newest()
    world.pass_ms(1)
    assert world.toy.committed()["rung"] == world.scheduler.now_ms()


def test_a_cancelled_timer_does_not_ring(world: ToyWorld) -> None:
    start = StartTimer("t", 100, lambda now_ms: CoordinatorResult(None, [number("rung", 1)]))
    world.write(put("a", 1, effects=[start]))
    world.write(put("b", 1, effects=[CancelTimer("t")]))
    world.pass_ms(1_000)
    assert "rung" not in world.toy.newest()


def test_a_timer_whose_decision_failed_rings_again(world: ToyWorld) -> None:
    start = StartTimer("t", 100, lambda now_ms: CoordinatorResult(None, [number("rung", 1)]))
    world.write(put("a", 1, effects=[start]))
    world.settle()
    world.log.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
    world.pass_ms(100)
    assert "rung" not in world.toy.newest()
    world.log.refuse(None)
    world.pass_ms(500)
    assert world.toy.committed()["rung"] == 1


# ---- transactions ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("committed", [True, False])
def test_a_marker_ends_a_transaction(world: ToyWorld, committed: bool) -> None:
    producer = Producer(7, 2)
    before = world.write(put("a", 1))
    inside = world.write(put("b", 2), producer=producer)
    # A transaction's records are a batch of their own, after what was decided before them.
    assert before.done
    assert inside.done
    assert batches(world.log) == [1, 1]
    assert world.toy.newest() == {"a": 1}
    ended = world.end(producer, committed=committed)
    assert ended.done
    expected = {"a": 1, "b": 2} if committed else {"a": 1}
    assert world.toy.committed() == expected
    assert world.reloaded().toy.committed() == expected


def test_a_marker_that_was_not_written_ends_nothing(world: ToyWorld) -> None:
    producer = Producer(7, 2)
    world.write(put("b", 2), producer=producer)
    world.log.refuse(ErrorCode.INVALID_PRODUCER_EPOCH)
    failed = world.end(producer, committed=True)
    assert failed.error is not None
    assert failed.error.code is ErrorCode.INVALID_PRODUCER_EPOCH
    assert world.toy.newest() == {}
    world.log.refuse(None)
    assert world.end(producer, committed=True).error is None
    assert world.toy.committed() == {"b": 2}


def test_a_marker_is_seen_when_it_is_committed(world: ToyWorld) -> None:
    producer = Producer(7, 2)
    world.write(put("b", 2), producer=producer)
    world.log.hold()
    ended = world.end(producer, committed=True)
    assert not ended.done
    assert world.toy.newest() == {"b": 2}
    assert world.toy.committed() == {}
    world.log.release()
    assert ended.done
    assert world.toy.committed() == {"b": 2}


def test_a_transactional_write_that_fails_leaves_no_trace(world: ToyWorld) -> None:
    world.log.refuse(ErrorCode.INVALID_PRODUCER_EPOCH)
    failed = world.write(put("b", 2), producer=Producer(7, 2))
    assert failed.error is not None
    assert failed.error.code is ErrorCode.INVALID_PRODUCER_EPOCH
    assert world.toy.in_transactions.get(7) is None


# ---- the end --------------------------------------------------------------------------------------------------


def test_unloading_tells_everybody_who_waits(world: ToyWorld) -> None:
    world.log.hold()
    appended = world.write(put("a", 1))
    world.settle()
    decided = world.write(put("b", 1))
    rung: list[int] = []
    world.write(
        put("c", 1, effects=[StartTimer("t", 10, lambda now_ms: CoordinatorResult(rung.append(now_ms)))])
    )
    world.shard.close(NOT_COORDINATOR)
    assert appended.error is NOT_COORDINATOR
    assert decided.error is NOT_COORDINATOR
    assert world.toy.unloaded is NOT_COORDINATOR
    world.settle()
    world.pass_ms(1_000)
    world.log.release()
    assert batches(world.log) == [1]
    assert not rung


def test_a_shard_takes_no_more_than_it_can_hold(world: ToyWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.coordinator.runtime.MAX_PENDING_DECISIONS", 2)
    world.log.hold()
    taken = [world.write(put("a", i)) for i in range(2)]
    refused = world.write(put("a", 9))
    assert refused.error is not None
    assert refused.error.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.settle()
    world.log.release()
    assert [answer.result() for answer in taken] == [{"a": 0}, {"a": 1}]


def test_a_closed_shard_stays_closed() -> None:
    assert TRANSITIONS[CoordinatorState.CLOSED] == frozenset()
    assert all(
        CoordinatorState.CLOSED in TRANSITIONS[state]
        for state in CoordinatorState
        if state != CoordinatorState.CLOSED
    )


def test_many_who_wait_for_one_batch_are_answered_in_portions() -> None:
    world = ToyWorld()
    count = 3 * ANSWERED_AT_ONCE
    answers = [world.write(put("a", value)) for value in range(count)]
    world.shard.flush()
    assert [answer.done for answer in answers] == [i < ANSWERED_AT_ONCE for i in range(count)]
    late = world.write(lambda toy, _: CoordinatorResult(toy.newest()))
    assert not late.done
    world.settle()
    assert [answer.result() for answer in answers] == [{"a": value} for value in range(count)]
    assert late.result() == {"a": count - 1}


def test_a_shard_that_closes_still_answers_what_is_committed() -> None:
    world = ToyWorld()
    answers = [world.write(put("a", value)) for value in range(2 * ANSWERED_AT_ONCE)]
    world.shard.flush()
    waits = world.write(put("a", -1))
    assert not answers[-1].done
    world.shard.close(KafkaError(ErrorCode.NOT_COORDINATOR))
    assert [answer.error for answer in answers] == [None] * len(answers)
    assert waits.error is not None


# ---- what nobody expected -------------------------------------------------------------------------------------


def raising(*_: object) -> None:
    raise RuntimeError("nobody expected this")


def test_a_decision_that_raises_fails_alone(world: ToyWorld, caplog: pytest.LogCaptureFixture) -> None:
    def operation(toy: object, now_ms: int) -> CoordinatorResult[None]:
        raise RuntimeError("nobody expected this")

    bad, good = world.write(operation), world.write(put("a", 1))
    world.settle()
    assert bad.error is not None
    assert bad.error.code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert good.result() == {"a": 1}
    (line,) = caplog.records
    assert "nobody expected this" in line.getMessage()
    assert line.exc_info is not None


def test_a_log_that_raises_leaves_the_shard_to_be_loaded_again(
    world: ToyWorld, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody knows how much of the batch is in the log."""
    appended = world.log.append

    def torn(batch: bytearray, now_ms: int, transaction_version: int = 0) -> int:
        appended(batch, now_ms, transaction_version)
        raise RuntimeError("nobody expected this")

    world.log.append = torn  # type: ignore[method-assign]
    answers = [world.write(put("a", 1)), world.write(put("b", 2))]
    world.settle()
    assert [answer.error.code for answer in answers if answer.error] == [ErrorCode.NOT_COORDINATOR] * 2
    assert world.shard.state is CoordinatorState.CLOSED
    assert world.lost == 1
    assert world.reloaded().toy.committed() == {"a": 1, "b": 2}
    assert "writing a batch failed: nobody expected this" in caplog.text


def test_a_batch_that_cannot_be_built_is_as_if_it_was_never_decided(
    world: ToyWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ottla.coordinator.runtime.build_batch", raising)
    answers = [world.write(put("a", 1)), world.write(put("b", 2))]
    world.settle()
    assert [answer.error.code for answer in answers if answer.error] == [ErrorCode.UNKNOWN_SERVER_ERROR] * 2
    assert world.toy.newest() == {}
    monkeypatch.undo()
    good = world.write(put("c", 3))
    world.settle()
    assert good.result() == {"c": 3}


def test_a_marker_that_the_machine_refuses_is_not_written(
    world: ToyWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = Producer(5, 0)
    world.write(put("a", 1), producer=producer)
    end = world.log.log_end_offset
    with monkeypatch.context() as patched:
        patched.setattr(world.toy, "replay_end_transaction", raising)
        refused = world.end(producer, committed=True)
    assert refused.error is not None
    assert refused.error.code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert world.log.log_end_offset == end
    assert world.end(producer, committed=True).error is None
    assert world.toy.committed() == {"a": 1}


def test_whoever_raises_when_told_keeps_nobody_else_waiting(
    world: ToyWorld, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = world.write(put("a", 1)), world.write(put("b", 2))
    first.then(raising)
    heard: list[bool] = []
    first.then(lambda done: heard.append(True))
    third = world.write(
        lambda toy, _: CoordinatorResult("third", [number("c", 3)], [After(lambda: raising())])
    )
    world.settle()
    assert heard == [True]
    assert second.result() == {"a": 1, "b": 2}
    assert third.result() == "third"
    assert caplog.text.count("nobody expected this") >= 2


def test_a_mistake_while_undoing_leaves_nobody_without_an_answer(world: ToyWorld) -> None:
    def mend(error: KafkaError) -> Sequence[Effect]:
        raise RuntimeError("nobody expected this")

    world.log.refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    parked: Pending[str] = Pending()
    effects: list[Effect] = [Answer(parked, "yes")]
    bad = world.write(lambda toy, _: CoordinatorResult(None, [number("a", 1)], effects, mend))
    other = world.write(put("b", 1))
    world.settle()
    assert bad.error is not None
    assert other.error is not None
    assert parked.error is not None


def test_a_closed_shard_tells_everybody_even_if_its_machine_raises(
    world: ToyWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.log.hold()
    answer = world.write(put("a", 1))
    world.settle()
    monkeypatch.setattr(world.toy, "on_unloaded", raising)
    world.shard.close(NOT_COORDINATOR)
    assert answer.error is NOT_COORDINATOR
    assert world.shard.state is CoordinatorState.CLOSED


def test_a_machine_that_raises_when_it_is_loaded_leaves_the_shard_loading(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def effects() -> Iterable[Effect]:
        raise RuntimeError("nobody expected this")

    world = ToyWorld()
    world.shard.state = CoordinatorState.LOADING
    with pytest.raises(RuntimeError):
        world.shard.activate(effects)
    assert world.shard.state is CoordinatorState.LOADING


def test_a_timer_that_raises_is_tried_again(world: ToyWorld, caplog: pytest.LogCaptureFixture) -> None:
    rung: list[int] = []

    def ring(now_ms: int) -> CoordinatorResult[None]:
        rung.append(now_ms)
        if len(rung) == 1:
            raise RuntimeError("nobody expected this")
        return CoordinatorResult(None, [number("rung", len(rung))])

    world.write(lambda toy, _: CoordinatorResult(None, (), [StartTimer("t", 100, ring)]))
    world.pass_ms(10_000)
    assert len(rung) == 2
    assert world.toy.committed() == {"rung": 2}
    (line,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "nobody expected this" in line.getMessage()
