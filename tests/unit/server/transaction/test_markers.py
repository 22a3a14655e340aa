"""Markers on their way: who gets which, what is asked again, and when the transaction is over."""

import pytest
from tests.support.transaction_world import TransactionWorld, error_of, place

from ottla.coordinator.transaction.metadata import TransactionState
from ottla.metadata.records import NO_LEADER
from ottla.model.errors import ErrorCode
from ottla.server.transaction import markers as markers_module
from ottla.wire.messages.transactions import WriteTxnMarkersResponse

S = TransactionState
RETRIED = [
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.UNKNOWN_SERVER_ERROR,
]


@pytest.fixture
def world() -> TransactionWorld:
    return TransactionWorld(epoch=3)


def brokers_asked(world: TransactionWorld) -> list[int]:
    return [broker for broker, _ in world.markers.written]


def test_each_leader_gets_one_request_for_all_its_partitions(world: TransactionWorld) -> None:
    producer = world.producer()
    world.markers.leaders = {place(0): 5, place(1): 5, place(2): 6, place(0, "other"): 5}
    world.add("t", producer, *world.markers.leaders).result()
    world.end("t", producer)
    asked = {
        broker: sorted((topic.name, sorted(topic.partition_indexes)) for topic in marker.topics)
        for broker, marker in world.markers.written
    }
    assert asked == {5: [("other", [0]), ("topic", [0, 1])], 6: [("topic", [2])]}
    assert {marker.coordinator_epoch for _, marker in world.markers.written} == {3}


@pytest.mark.parametrize("error", RETRIED)
def test_a_partition_that_cannot_take_its_marker_is_asked_again(
    world: TransactionWorld, error: ErrorCode
) -> None:
    producer = world.begin(partitions=2)
    world.markers.refusals[place(1)] = [error, error]
    world.end("t", producer)
    assert world.row().state is S.PREPARE_COMMIT
    world.pass_ms(5_000)
    assert world.row().state is S.COMPLETE_COMMIT
    assert brokers_asked(world) == [0, 1, 1, 1] or brokers_asked(world) == [1, 0, 1, 1]


def test_an_unreachable_broker_is_asked_again(world: TransactionWorld) -> None:
    producer = world.begin()
    world.markers.unreachable = 3
    world.end("t", producer)
    assert world.row().state is S.PREPARE_COMMIT
    world.pass_ms(5_000)
    assert world.row().state is S.COMPLETE_COMMIT


def test_the_new_leader_is_asked(world: TransactionWorld) -> None:
    producer = world.begin()
    world.markers.refusals[place(0)] = [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    world.end("t", producer)
    world.markers.leaders[place(0)] = 9
    world.pass_ms(1_000)
    assert brokers_asked(world) == [0, 9]


def test_a_partition_without_a_leader_is_waited_for(world: TransactionWorld) -> None:
    producer = world.begin(partitions=2)
    world.markers.leaders[place(1)] = NO_LEADER
    world.end("t", producer)
    world.pass_ms(10_000)
    assert world.row().state is S.PREPARE_COMMIT
    assert brokers_asked(world) == [0]
    world.markers.leaders[place(1)] = 1
    world.pass_ms(1_000)
    assert world.row().state is S.COMPLETE_COMMIT


def test_a_partition_that_is_gone_needs_no_marker(world: TransactionWorld) -> None:
    producer = world.begin(partitions=2)
    world.markers.leaders[place(0)] = None
    world.end("t", producer)
    assert brokers_asked(world) == [1]
    assert world.row().state is S.COMPLETE_COMMIT


def test_with_all_partitions_gone_the_transaction_is_over(world: TransactionWorld) -> None:
    producer = world.begin()
    world.markers.leaders[place(0)] = None
    world.end("t", producer)
    assert world.row().state is S.COMPLETE_COMMIT
    assert not world.markers.written


@pytest.mark.parametrize(
    "error", [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED]
)
def test_markers_that_another_coordinator_has_overtaken_are_dropped(
    world: TransactionWorld, error: ErrorCode
) -> None:
    producer = world.begin()
    world.markers.refusals[place(0)] = [error]
    world.end("t", producer)
    world.pass_ms(60_000)
    assert len(world.markers.written) == 1
    assert not world.sender.sending


@pytest.mark.parametrize("error", [ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, ErrorCode.UNSUPPORTED_VERSION])
def test_a_partition_that_knows_no_markers_is_left_out(world: TransactionWorld, error: ErrorCode) -> None:
    producer = world.begin()
    world.markers.refusals[place(0)] = [error]
    world.end("t", producer)
    assert world.row().state is S.COMPLETE_COMMIT


@pytest.mark.parametrize("error", [ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.KAFKA_STORAGE_ERROR])
def test_the_end_is_written_down_as_soon_as_that_is_possible(
    world: TransactionWorld, error: ErrorCode
) -> None:
    producer = world.begin()
    world.markers.hold()
    world.end("t", producer)
    world.log.refuse(error)
    world.markers.release()
    world.pass_ms(2_000)
    assert world.row().state is S.PREPARE_COMMIT
    world.log.refuse(None)
    world.pass_ms(2_000)
    assert world.row().state is S.COMPLETE_COMMIT
    assert len(world.markers.written) == 1
    assert not world.sender.sending


def test_a_coordinator_that_has_lost_its_partition_sends_nothing_more(world: TransactionWorld) -> None:
    producer = world.begin()
    world.markers.unreachable = 1
    world.end("t", producer)
    world.runtime.resign(0)
    world.pass_ms(60_000)
    assert not world.markers.written
    assert not world.sender.sending


def test_a_coordinator_in_another_epoch_sends_anew_what_it_finds(world: TransactionWorld) -> None:
    producer = world.begin(partitions=2)
    world.markers.hold()
    world.end("t", producer, committed=False)
    after = world.reloaded()
    assert after.row().state is S.COMPLETE_ABORT
    assert {marker.coordinator_epoch for _, marker in after.markers.written} == {4}
    assert {marker.transaction_result for _, marker in after.markers.written} == {False}
    assert {marker.producer_epoch for _, marker in after.markers.written} == {producer.producer_epoch + 1}


def test_an_open_transaction_is_still_open_after_a_restart(world: TransactionWorld) -> None:
    producer = world.begin(partitions=2)
    after = world.reloaded()
    assert after.row().state is S.ONGOING
    assert not after.markers.written
    assert error_of(after.end("t", producer)) is ErrorCode.NONE
    assert len(after.markers.written) == 2


def test_a_second_end_while_the_first_is_sent_changes_nothing(world: TransactionWorld) -> None:
    """Told twice that all markers are written, the coordinator writes down the end once."""
    producer = world.begin()
    world.markers.hold()
    world.end("t", producer)
    sending = world.sender.sending["t"].markers
    world.markers.release()
    world.scheduler.settle()
    written = len(world.records())
    assert world.complete(sending).error is None
    world.scheduler.settle()
    assert len(world.records()) == written


# ---- brokers that are busy ----------------------------------------------------------------------------------


def requests(world: TransactionWorld) -> list[tuple[int, set[str]]]:
    """Whom they went to, and whose markers they had."""
    names = {world.row(name).producer_id: name for name in world.machine.transactions}
    return [
        (broker, {names[marker.producer_id] for marker in request.markers})
        for broker, request in world.markers.requests
    ]


def test_markers_of_transactions_that_end_meanwhile_are_one_request(world: TransactionWorld) -> None:
    producers = {name: world.begin(name, partitions=2) for name in "abc"}
    world.markers.hold()
    for name, producer in producers.items():
        world.end(name, producer)
    assert sorted(requests(world)) == [(0, {"a"}), (1, {"a"})]
    world.markers.release()
    world.scheduler.settle()
    assert sorted(requests(world))[1::2] == [(0, {"b", "c"}), (1, {"b", "c"})]
    assert all(world.row(name).state is S.COMPLETE_COMMIT for name in "abc")
    assert not world.sender.sending


def test_a_slow_broker_does_not_hold_up_the_others(world: TransactionWorld) -> None:
    slow = world.producer("slow")
    world.add("slow", slow, place(7)).result()
    world.markers.hold()
    world.end("slow", slow)
    held, world.markers._held = world.markers._held, None
    producer = world.begin("t", partitions=2)
    world.end("t", producer)
    assert world.row("t").state is S.COMPLETE_COMMIT
    assert held
    held[0]()
    world.scheduler.settle()
    assert world.row("slow").state is S.COMPLETE_COMMIT


def test_a_refusal_concerns_its_own_transaction_only(world: TransactionWorld) -> None:
    producers = {name: world.begin(name) for name in "abc"}
    world.markers.hold()
    for name, producer in producers.items():
        world.end(name, producer)
    world.markers.refusals[place(0)] = [ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER]
    world.markers.release()
    world.scheduler.settle()
    assert [world.row(name).state for name in "abc"] == [
        S.COMPLETE_COMMIT,
        S.PREPARE_COMMIT,
        S.COMPLETE_COMMIT,
    ]
    world.pass_ms(1_000)
    assert world.row("b").state is S.COMPLETE_COMMIT


def test_an_answer_that_says_nothing_of_a_transaction_is_asked_for_again(world: TransactionWorld) -> None:
    producer = world.begin()
    answers = iter([WriteTxnMarkersResponse(markers=[])])
    served = world.markers._write
    world.markers._write = lambda *asked: next(answers, None) or served(*asked)  # type: ignore[method-assign]
    world.end("t", producer)
    assert world.row().state is S.PREPARE_COMMIT
    world.pass_ms(1_000)
    assert world.row().state is S.COMPLETE_COMMIT


def test_what_waits_for_a_broker_is_not_sent_by_a_coordinator_that_is_one_no_more(
    world: TransactionWorld,
) -> None:
    first, second = world.begin("first"), world.begin("second")
    world.markers.hold()
    world.end("first", first)
    world.end("second", second)
    world.runtime.resign(0)
    world.markers.release()
    world.pass_ms(60_000)
    assert len(world.markers.requests) == 1
    assert not world.sender.sending


def test_a_broker_that_cannot_be_asked_delays_what_waits_for_it_and_no_more(world: TransactionWorld) -> None:
    producers = {name: world.begin(name) for name in "abc"}
    world.markers.hold()
    world.end("a", producers["a"])
    world.end("b", producers["b"])
    world.end("c", producers["c"])
    world.markers.unreachable = 5
    world.markers.release()
    assert world.row("a").state is S.COMPLETE_COMMIT
    assert world.row("b").state is S.PREPARE_COMMIT
    world.pass_ms(5_000)
    assert [world.row(name).state for name in "bc"] == [S.COMPLETE_COMMIT] * 2
    assert not world.sender.sending


def test_a_request_holds_only_so_many_markers(
    world: TransactionWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(markers_module, "MAX_MARKERS", 3)
    world.markers.leaders = {place(index): 5 for index in range(4)}
    producers = {name: world.begin(name, partitions=4) for name in "ab"}
    world.markers.hold()
    for name, producer in producers.items():
        world.end(name, producer)
    world.markers.release()
    world.scheduler.settle()
    sizes = [
        sum(len(topic.partition_indexes) for marker in request.markers for topic in marker.topics)
        for _, request in world.markers.requests
    ]
    assert sizes == [4, 3, 1]
    assert [world.row(name).state for name in "ab"] == [S.COMPLETE_COMMIT] * 2


def test_a_request_that_fails_as_nobody_thought_is_made_again(
    world: TransactionWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise its broker would count as busy, and no transaction would ever end there again."""
    producer = world.begin()
    world.markers.leaders[place(0)] = 5

    def ask(*args: object) -> None:
        raise RuntimeError("nobody thought of this")

    with monkeypatch.context() as patch:
        patch.setattr(world.markers, "ask", ask)
        world.end("t", producer)
    assert world.row().state is S.PREPARE_COMMIT
    world.pass_ms(5_000)
    assert world.row().state is S.COMPLETE_COMMIT
    assert brokers_asked(world) == [5]
