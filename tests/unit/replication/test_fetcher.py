"""A follower's fetcher against a leader that answers as Kafka's does, and against one that does not."""

import logging
from pathlib import Path

import pytest
from tests.unit.replication.fetcher_support import (
    BROKER_EPOCH,
    NODE,
    SETTINGS,
    TOPIC_ID,
    Environment,
    Leader,
    answer_of,
    content,
    fetcher_of,
    follower,
    forgotten,
    named,
    one_round,
    registration,
    write,
)
from tests.unit.storage.log_support import NOW, batch

from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.time_slice import run_to_end
from ottla.records.batch import LOG_OVERHEAD, pack_place
from ottla.replication import fetcher as fetcher_module
from ottla.replication.fetcher import FIRST_RETRY_MS, PIECE_BATCHES, ReplicaFetcher, pieces_of
from ottla.replication.partition import Partition
from ottla.storage.config import LogConfig
from ottla.storage.errors import OutOfFilesError
from ottla.storage.log.log import Log
from ottla.wire.codec import encode
from ottla.wire.messages.fetch import EpochEndOffset, FetchRequest, FetchResponse, PartitionData
from ottla.wire.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse

BACKOFF_MS = SETTINGS.backoff_ms


@pytest.fixture
def leader(tmp_path: Path) -> Leader:
    """It has led partition 0 in epoch 0, and written five batches of two records."""
    found = Leader(tmp_path / "leader")
    for _ in range(5):
        write(found.log(), 0, b"a", b"b")
    found.log().update_high_watermark(8)
    return found


def data(index: int = 0, error: int = 0, records: bytes | None = None, **fields: object) -> PartitionData:
    marks: dict[str, object] = {"high_watermark": 0, "log_start_offset": 0, **fields}
    return PartitionData(
        partition_index=index, error_code=error, aborted_transactions=None, records=records, **marks
    )


def answered(
    fetcher: ReplicaFetcher, response: FetchResponse | ListOffsetsResponse, now_ms: float = 0
) -> None:
    run_to_end(fetcher.on_response(response, now_ms))


# -- asking


def test_a_follower_gets_the_leaders_bytes_and_its_marks(tmp_path: Path, leader: Leader) -> None:
    leader.log().maybe_increment_log_start_offset(4, "test")
    ours = follower(tmp_path / "ours")
    ours.log.truncate_fully_and_start_at(4, NOW)
    fetcher = fetcher_of(ours)
    one_round(fetcher, leader)
    assert (ours.log.log_start_offset, ours.log.high_watermark, ours.log.log_end_offset) == (4, 8, 10)
    assert content(ours.log) == content(leader.log())
    assert ours.log.epochs.entries == leader.log().epochs.entries


def test_what_a_request_says_of_the_broker(tmp_path: Path, leader: Leader) -> None:
    ours = follower(tmp_path / "ours")
    request = fetcher_of(ours).next_request(0)
    assert isinstance(request, FetchRequest)
    assert (request.replica_state.replica_id, request.replica_state.replica_epoch) == (NODE, BROKER_EPOCH)
    assert (request.max_wait_ms, request.min_bytes, request.max_bytes) == (500, 1, 10 << 20)
    (topic,) = request.topics
    assert topic.topic_id == TOPIC_ID
    (wanted,) = topic.partitions
    assert (wanted.partition_max_bytes, wanted.log_start_offset) == (1 << 20, 0)


def test_a_session_hears_only_of_what_has_changed(tmp_path: Path, leader: Leader) -> None:
    leader.log(1)
    first, second = follower(tmp_path / "ours"), follower(tmp_path / "ours", index=1)
    fetcher = fetcher_of(first, second)
    request = one_round(fetcher, leader)
    assert named(request) == {0: (0, 0, -1), 1: (0, 0, -1)}
    request = one_round(fetcher, leader)
    assert isinstance(request, FetchRequest)
    assert (request.session_id, request.session_epoch) == (9, 1)
    assert named(request) == {0: (10, 0, 0)}, "the other one is where it was"
    assert named(one_round(fetcher, leader)) == {}
    fetcher.remove(second)
    request = one_round(fetcher, leader)
    assert (named(request), forgotten(request)) == ({}, [1])
    fetcher.remove(first)
    request = one_round(fetcher, leader)
    assert forgotten(request) == [0]
    assert fetcher.next_request(0) is None
    assert fetcher.is_idle


def test_a_partition_that_comes_back_is_not_forgotten(tmp_path: Path, leader: Leader) -> None:
    ours = follower(tmp_path / "ours")
    fetcher = fetcher_of(ours)
    one_round(fetcher, leader)
    one_round(fetcher, leader)
    fetcher.remove(ours)
    fetcher.add(ours)
    request = one_round(fetcher, leader)
    assert (named(request), forgotten(request)) == ({}, [])


def followers(where: Path, leader: Leader, count: int) -> list[Partition]:
    """Of so many partitions of the leader's, from the first on."""
    for index in range(1, count + 1):
        leader.log(index)
    return [follower(where, index=index) for index in range(1, count + 1)]


def test_a_new_session_is_filled_by_and_by(
    tmp_path: Path, leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetcher_module, "MAX_NAMED", 2)
    fetcher = fetcher_of(*followers(tmp_path / "ours", leader, 5))
    asked = []
    for _ in range(4):
        request = one_round(fetcher, leader)
        assert isinstance(request, FetchRequest)
        asked.append((list(named(request)), request.max_wait_ms, request.session_epoch))
    # Only when all are named the leader waits for news.
    assert asked == [([1, 2], 0, 0), ([3, 4], 0, 1), ([5], 500, 2), ([], 500, 3)]


def test_a_session_of_very_many_that_are_over_is_replaced(
    tmp_path: Path, leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is not told that they are over repeats their errors in every answer."""
    monkeypatch.setattr(fetcher_module, "MAX_NAMED", 2)
    ours = followers(tmp_path / "ours", leader, 6)
    fetcher = fetcher_of(*ours)
    for _ in range(4):
        one_round(fetcher, leader)
    for partition in ours[:2]:
        fetcher.remove(partition)
    request = one_round(fetcher, leader)
    assert isinstance(request, FetchRequest)
    assert (forgotten(request), request.session_epoch) == ([1, 2], 4)
    for partition in ours[2:5]:
        fetcher.remove(partition)
    request = one_round(fetcher, leader)
    assert isinstance(request, FetchRequest)
    assert (list(named(request)), forgotten(request)) == ([6], [])
    assert (request.session_epoch, request.session_id) == (0, leader.session_id)


def test_without_a_session_everything_is_said_each_time(
    tmp_path: Path, leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetcher_module, "MAX_NAMED", 1)
    leader.session_id = 0
    leader.log(1)
    fetcher = fetcher_of(follower(tmp_path / "ours"), follower(tmp_path / "ours", index=1))
    one_round(fetcher, leader)
    for _ in range(2):
        request = one_round(fetcher, leader)
        assert isinstance(request, FetchRequest)
        assert (request.session_id, request.session_epoch) == (0, 0)
        assert set(named(request)) == {0, 1}


@pytest.mark.parametrize(
    ("error", "session_id"),
    [(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0), (ErrorCode.INVALID_FETCH_SESSION_EPOCH, 9)],
)
def test_a_lost_session_is_made_anew_at_once(
    tmp_path: Path, leader: Leader, error: ErrorCode, session_id: int
) -> None:
    fetcher = fetcher_of(follower(tmp_path / "ours"))
    one_round(fetcher, leader)
    assert fetcher.next_request(0) is not None
    answered(fetcher, FetchResponse(error_code=error, responses=[]))
    request = fetcher.next_request(0)
    assert isinstance(request, FetchRequest)
    assert (request.session_id, request.session_epoch) == (session_id, 0)
    assert named(request) == {0: (10, 0, 0)}
    answered(fetcher, FetchResponse(error_code=error, responses=[]))
    assert fetcher.next_request(0) is None, "whoever refuses twice is not asked without end"
    assert fetcher.next_due_ms() == BACKOFF_MS
    assert fetcher.next_request(BACKOFF_MS) is not None


def test_a_session_with_wrong_topic_ids_waits(tmp_path: Path, leader: Leader) -> None:
    fetcher = fetcher_of(follower(tmp_path / "ours"))
    assert fetcher.next_request(0) is not None
    answered(fetcher, FetchResponse(error_code=ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, responses=[]))
    assert fetcher.next_request(0) is None


@pytest.mark.parametrize("answer", [[], [data(1)], [data(0), data(1)]], ids=["less", "other", "more"])
def test_an_answer_about_other_partitions_is_none(tmp_path: Path, answer: list[PartitionData]) -> None:
    fetcher = fetcher_of(follower(tmp_path / "ours"))
    assert fetcher.next_request(0) is not None
    answered(fetcher, answer_of(answer))
    request = fetcher.next_request(0)
    assert isinstance(request, FetchRequest)
    assert (request.session_id, request.session_epoch) == (0, 0)


def test_an_answer_of_another_session_is_none(tmp_path: Path, leader: Leader) -> None:
    ours = follower(tmp_path / "ours")
    fetcher = fetcher_of(ours)
    one_round(fetcher, leader)
    write(leader.log(), 0)
    request = fetcher.next_request(0)
    assert request is not None
    of_another = leader.answer(request)
    of_another.session_id += 1
    answered(fetcher, of_another)
    assert ours.log.log_end_offset == 10
    again = fetcher.next_request(0)
    assert isinstance(again, FetchRequest)
    assert (again.session_id, again.session_epoch) == (9, 0), "the one that was asked for is closed"
    answered(fetcher, leader.answer(again))
    assert ours.log.log_end_offset == 11


def test_a_leader_that_answers_at_once_with_nothing_is_asked_as_if_it_waited(
    tmp_path: Path, leader: Leader, caplog: pytest.LogCaptureFixture
) -> None:
    ours = follower(tmp_path / "ours")
    fetcher = fetcher_of(ours)
    wait_ms, asked, now_ms = SETTINGS.wait_max_ms, 0, 0.0
    while now_ms < 20 * wait_ms:
        if one_round(fetcher, leader, now_ms) is None:
            now_ms = fetcher.next_due_ms()
        asked += 1
    assert asked < 3 * 20
    assert caplog.text.count("answers fetches at once and with nothing") == 1
    write(leader.log(), 0)
    one_round(fetcher, leader, now_ms)
    assert ours.log.log_end_offset == 11
    # Nothing is left of it.
    assert [one_round(fetcher, leader, now_ms) is None for _ in range(5)] == [False] * 5


@pytest.mark.parametrize("why", ["it waits", "it was asked not to wait"])
def test_a_leader_that_has_nothing_is_asked_again_at_once(tmp_path: Path, leader: Leader, why: str) -> None:
    waits = why == "it waits"
    settings = SETTINGS if waits else SETTINGS._replace(min_bytes=0)
    fetcher = fetcher_of(follower(tmp_path / "ours"), settings=settings)
    now_ms = 0.0
    for _ in range(20):
        request = fetcher.next_request(now_ms)
        assert request is not None
        now_ms += SETTINGS.wait_max_ms if waits else 0
        answered(fetcher, leader.answer(request), now_ms)


def test_a_lost_connection_lets_all_wait(tmp_path: Path, leader: Leader) -> None:
    leader.log(1)
    fetcher = fetcher_of(follower(tmp_path / "ours"), follower(tmp_path / "ours", index=1))
    one_round(fetcher, leader)
    assert fetcher.next_request(0) is not None
    fetcher.on_failure(KafkaError(ErrorCode.NETWORK_EXCEPTION, "gone"), 1000)
    assert fetcher.next_request(1000 + BACKOFF_MS - 1) is None
    assert fetcher.next_due_ms() == 1000 + BACKOFF_MS
    request = fetcher.next_request(1000 + BACKOFF_MS)
    assert isinstance(request, FetchRequest)
    assert (request.session_id, request.session_epoch) == (9, 0), (
        "the session is closed, if it is still there"
    )
    assert named(request) == {0: (10, 0, 0), 1: (0, 0, -1)}


def test_the_leader_hears_that_retention_moved_the_start(tmp_path: Path, leader: Leader) -> None:
    ours = follower(tmp_path / "ours")
    fetcher = fetcher_of(ours)
    one_round(fetcher, leader)
    one_round(fetcher, leader)
    ours.log.maybe_increment_log_start_offset(6, "retention")
    request = fetcher.next_request(fetcher_module.LOG_START_CHECK_MS)
    assert isinstance(request, FetchRequest)
    assert [wanted.log_start_offset for topic in request.topics for wanted in topic.partitions] == [6]


# -- errors of a partition

PASSES = [
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.INCONSISTENT_TOPIC_ID,
]
WAITS = [
    *PASSES,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE,
    ErrorCode.UNKNOWN_SERVER_ERROR,
    9999,
]


@pytest.mark.parametrize("error", WAITS, ids=[str(int(error)) for error in WAITS])
def test_a_refused_partition_waits_and_the_others_go_on(tmp_path: Path, leader: Leader, error: int) -> None:
    write(leader.log(1), 0)
    good, bad = follower(tmp_path / "ours"), follower(tmp_path / "ours", index=1)
    fetcher = fetcher_of(bad, good)
    leader.errors[TOPIC_ID, 1] = error
    one_round(fetcher, leader)
    assert (good.log.log_end_offset, bad.log.log_end_offset) == (10, 0)
    request = one_round(fetcher, leader)
    assert forgotten(request) == [1], "the leader need not refuse it again at once"
    due_ms = FIRST_RETRY_MS if error in PASSES else BACKOFF_MS
    assert fetcher.next_due_ms() == due_ms
    leader.errors.clear()
    write(leader.log(), 0)
    one_round(fetcher, leader, due_ms - 1)
    assert (good.log.log_end_offset, bad.log.log_end_offset) == (11, 0)
    one_round(fetcher, leader, due_ms)
    assert bad.log.log_end_offset == 1


def test_what_passes_by_itself_is_asked_for_less_and_less(tmp_path: Path, leader: Leader) -> None:
    """Producers wait for a follower whose leader hears a moment later that it is one."""
    bad = follower(tmp_path / "ours")
    fetcher = fetcher_of(bad)

    def pauses(count: int, now_ms: float) -> list[float]:
        leader.errors[TOPIC_ID, 0] = ErrorCode.UNKNOWN_LEADER_EPOCH
        found = []
        for _ in range(count):
            one_round(fetcher, leader, now_ms)
            found.append(fetcher.next_due_ms() - now_ms)
            now_ms = fetcher.next_due_ms()
        leader.errors.clear()
        one_round(fetcher, leader, now_ms)
        return found

    assert pauses(8, 0) == [20, 40, 80, *[BACKOFF_MS] * 5]
    assert bad.log.log_end_offset == 10
    assert pauses(2, 10_000) == [20, 40]


def test_what_passes_by_itself_is_warned_of_when_it_does_not(
    tmp_path: Path, leader: Leader, caplog: pytest.LogCaptureFixture
) -> None:
    """A follower of a new partition is often faster than its leader."""
    fetcher = fetcher_of(follower(tmp_path / "ours"))
    leader.errors[TOPIC_ID, 0] = ErrorCode.UNKNOWN_TOPIC_ID
    one_round(fetcher, leader)
    assert "UNKNOWN_TOPIC_ID" not in caplog.text
    for round_ in range(1, 9):
        one_round(fetcher, leader, round_ * BACKOFF_MS)
    assert caplog.text.count("UNKNOWN_TOPIC_ID") == 1
    leader.errors.clear()
    one_round(fetcher, leader, 10 * BACKOFF_MS)
    leader.errors[TOPIC_ID, 0] = ErrorCode.UNKNOWN_TOPIC_ID
    one_round(fetcher, leader, 5 * BACKOFF_MS)
    assert caplog.text.count("UNKNOWN_TOPIC_ID") == 1


def test_a_fenced_partition_waits_for_its_new_epoch(tmp_path: Path, leader: Leader) -> None:
    leader.lead(1)
    ours = follower(tmp_path / "ours")
    fetcher = fetcher_of(ours)
    one_round(fetcher, leader)
    assert list(fetcher.failed.values()) == [ours]
    assert fetcher.next_due_ms() == float("inf")
    assert forgotten(one_round(fetcher, leader)) == [0]
    ours.become(registration(epoch=1))
    fetcher.add(ours)
    assert not fetcher.failed
    one_round(fetcher, leader)
    assert content(ours.log) == content(leader.log())


def test_one_complaint_for_what_goes_on(
    tmp_path: Path, leader: Leader, caplog: pytest.LogCaptureFixture
) -> None:
    fetcher = fetcher_of(follower(tmp_path / "ours"))
    leader.errors[TOPIC_ID, 0] = ErrorCode.KAFKA_STORAGE_ERROR
    with caplog.at_level(logging.INFO, "ottla.replication"):
        for now_ms in range(0, 10 * BACKOFF_MS, BACKOFF_MS):
            one_round(fetcher, leader, now_ms)
    assert len(caplog.records) == 1


def test_a_flipped_bit_is_refused_until_it_is_gone(
    tmp_path: Path, leader: Leader, caplog: pytest.LogCaptureFixture
) -> None:
    write(leader.log(1), 0)
    good, bad = follower(tmp_path / "ours", index=1), follower(tmp_path / "ours")
    fetcher = fetcher_of(bad, good)
    request = fetcher.next_request(0)
    assert request is not None
    response = leader.answer(request)
    assert isinstance(response, FetchResponse)
    found = next(p for topic in response.responses for p in topic.partitions if p.partition_index == 0)
    damaged = bytearray(found.records or b"")
    damaged[-1] ^= 1  # in the last of five batches
    found.records = bytes(damaged)
    with caplog.at_level(logging.INFO, "ottla.replication"):
        answered(fetcher, response)
    assert good.log.log_end_offset == 1
    assert bad.log.log_end_offset in (0, 8), "the batches before it may be there"
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    one_round(fetcher, leader, BACKOFF_MS)
    assert content(bad.log) == content(leader.log())


@pytest.mark.parametrize(
    "records",
    [b"\x00" * 70, b"short", bytes(batch(b"x"))[:-1], bytes(batch(b"x")) + b"\xff" * 70],
    ids=["zeros", "few bytes", "half a batch", "a batch and nonsense"],
)
def test_nonsense_instead_of_records_delays_the_partition(tmp_path: Path, records: bytes) -> None:
    ours = follower(tmp_path / "ours")
    fetcher = fetcher_of(ours)
    assert fetcher.next_request(0) is not None
    answered(fetcher, answer_of([data(records=records)]))
    assert fetcher.next_due_ms() == BACKOFF_MS
    assert not fetcher.failed


@pytest.mark.parametrize("base_offset", [2**63 - 1, 2**63 - 2])
def test_an_offset_after_which_there_is_none_is_refused(
    tmp_path: Path, leader: Leader, base_offset: int
) -> None:
    """No checksum covers it, and no request has room for the offset after it: nothing at all would be asked for."""
    ours, other = follower(tmp_path / "ours"), follower(tmp_path / "ours", index=1)
    fetcher = fetcher_of(ours, other)
    records = batch(b"a", b"b")
    pack_place(records, 0, base_offset, len(records) - LOG_OVERHEAD, 0)
    fetcher.next_request(0)
    answered(fetcher, answer_of([data(records=bytes(records)), data(1)]))
    assert ours.log.log_end_offset == 0
    assert not fetcher.failed
    request = fetcher.next_request(0)
    assert request is not None
    assert forgotten(request) == [0], "it is asked for again after a while"
    encode(request, 17)
    leader.log(1)
    fetcher.on_failure(KafkaError(ErrorCode.NETWORK_EXCEPTION), 0)
    one_round(fetcher, leader, 2 * BACKOFF_MS)
    assert ours.log.log_end_offset == 10


def test_a_batch_cut_off_at_the_end_comes_again(tmp_path: Path, leader: Leader) -> None:
    ours = follower(tmp_path / "ours")
    fetcher = fetcher_of(ours)
    request = fetcher.next_request(0)
    assert request is not None
    response = leader.answer(request)
    assert isinstance(response, FetchResponse)
    found = response.responses[0].partitions[0]
    found.records = (found.records or b"")[:-5]
    answered(fetcher, response)
    assert ours.log.log_end_offset == 8
    one_round(fetcher, leader)
    assert content(ours.log) == content(leader.log())


def test_a_disk_that_fails_concerns_its_partition(
    tmp_path: Path, leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(leader.log(1), 0)
    good, bad = follower(tmp_path / "ours", index=1), follower(tmp_path / "ours")
    fetcher = fetcher_of(bad, good)

    real = Partition.append_as_follower

    def append(self: Partition, records: memoryview, leader_epoch: int) -> None:
        if self is bad:
            raise self.log._fail("append to", OSError(5, "Input/output error"))
        real(self, records, leader_epoch)

    monkeypatch.setattr(Partition, "append_as_follower", append)
    one_round(fetcher, leader)
    assert list(fetcher.failed.values()) == [bad]
    assert good.log.log_end_offset == 1


def test_a_log_that_is_offline_is_not_followed(tmp_path: Path, leader: Leader) -> None:
    ours = follower(tmp_path / "ours")
    fetcher = fetcher_of(ours)
    ours.log.failed = True
    one_round(fetcher, leader)
    assert list(fetcher.failed.values()) == [ours]


@pytest.mark.parametrize("error", [OutOfFilesError("none left"), MemoryError()])
def test_for_want_of_a_descriptor_or_memory_it_is_tried_again(
    tmp_path: Path, leader: Leader, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    ours = follower(tmp_path / "ours")
    fetcher = fetcher_of(ours)
    with monkeypatch.context() as patched:
        patched.setattr(Partition, "append_as_follower", _raising(error))
        one_round(fetcher, leader)
    assert not fetcher.failed
    one_round(fetcher, leader, BACKOFF_MS)
    assert ours.log.log_end_offset == 10


def test_a_mistake_of_ours_concerns_one_partition(
    tmp_path: Path, leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = follower(tmp_path / "ours")
    fetcher = fetcher_of(ours)
    monkeypatch.setattr(Partition, "append_as_follower", _raising(ZeroDivisionError("a bug")))
    one_round(fetcher, leader)
    assert list(fetcher.failed.values()) == [ours]


def _raising(error: Exception) -> object:
    def raises(*args: object) -> None:
        raise error

    return raises


def test_what_could_not_be_flushed_is_not_told_when_its_time_is_up(tmp_path: Path, leader: Leader) -> None:
    ours = follower(tmp_path / "ours", config=LogConfig(flush_messages=1))
    fetcher = fetcher_of(ours)
    one_round(fetcher, leader)
    assert fetcher.to_flush() == [ours]
    fetcher.flush_failed(ours, OutOfFilesError("none left"), 0)
    assert forgotten(fetcher.next_request(BACKOFF_MS + 1)) == [0], "and not named with what it has"
    ours.log.flush(now_ms=NOW)
    assert fetcher.to_flush() == []
    assert named(fetcher.next_request(BACKOFF_MS + 1)) == {0: (10, 0, 0)}


@pytest.mark.parametrize("step", ["_diverges", "_refused", "_on_offset"])
def test_what_nobody_thought_of_concerns_one_partition(
    tmp_path: Path, leader: Leader, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    write(leader.log(1), 0)
    bad, good = follower(tmp_path / "ours"), follower(tmp_path / "ours", index=1)
    fetcher = fetcher_of(bad, good)
    monkeypatch.setattr(ReplicaFetcher, step, _raising(ZeroDivisionError("a bug")))
    request = fetcher.next_request(0)
    assert request is not None
    leader.answer(request)  # it has a session from now on
    fault = {
        "_diverges": data(diverging_epoch=EpochEndOffset(epoch=0, end_offset=0)),
        "_refused": data(error=ErrorCode.UNKNOWN_SERVER_ERROR),
        "_on_offset": data(error=ErrorCode.OFFSET_OUT_OF_RANGE),
    }[step]
    answered(fetcher, answer_of([fault, data(1, records=content(leader.log(1)))]))
    if step == "_on_offset":
        one_round(fetcher, leader)
    assert list(fetcher.failed.values()) == [bad]
    assert good.log.log_end_offset == 1
    write(leader.log(1), 0)
    assert isinstance(one_round(fetcher, leader), FetchRequest)
    assert good.log.log_end_offset == 2


# -- answers that come too late


@pytest.mark.parametrize("how", ["removed", "another epoch", "leads itself", "truncated", "re-made"])
def test_an_answer_for_what_has_changed_since_is_dropped(tmp_path: Path, leader: Leader, how: str) -> None:
    write(leader.log(), 0)
    ours = follower(tmp_path / "ours")
    fetcher = fetcher_of(ours)
    request = fetcher.next_request(0)
    assert request is not None
    response = leader.answer(request)
    if how == "removed":
        fetcher.remove(ours)
    elif how == "leads itself":
        ours.become(registration(leader=NODE, epoch=1))
    elif how == "another epoch":
        ours.become(registration(epoch=1))
        fetcher.add(ours)
    elif how == "truncated":
        state = fetcher.state_of(ours)
        assert state is not None
        state.offset = 5
    else:
        ours.become(registration(epoch=1))
    answered(fetcher, response)
    assert ours.log.log_end_offset == 0


def test_an_answer_for_a_log_that_ends_elsewhere_by_now_is_dropped(tmp_path: Path, leader: Leader) -> None:
    """As when a copy took its place."""
    ours = follower(tmp_path / "ours")
    fetcher = fetcher_of(ours)
    one_round(fetcher, leader)
    write(leader.log(), 0)
    request = fetcher.next_request(0)
    assert request is not None
    ours.log.truncate_to(4, NOW)
    answered(fetcher, leader.answer(request))
    assert ours.log.log_end_offset == 4
    assert named(one_round(fetcher, leader)) == {0: (4, 0, 0)}
    assert content(ours.log) == content(leader.log())


def test_nor_are_its_marks_of_any_use(tmp_path: Path, leader: Leader) -> None:
    ours = follower(tmp_path / "ours")
    fetcher = fetcher_of(ours)
    one_round(fetcher, leader)
    assert fetcher.next_request(0) is not None
    write(ours.log, 0)
    answered(fetcher, answer_of([data(high_watermark=11)]))
    assert (ours.log.log_end_offset, ours.log.high_watermark) == (11, 8)


def test_a_large_answer_stops_where_the_leader_changes(
    tmp_path: Path, leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetcher_module, "PIECE_BATCHES", 2)
    ours = follower(tmp_path / "ours")
    fetcher = fetcher_of(ours)
    request = fetcher.next_request(0)
    assert request is not None
    steps = fetcher.on_response(leader.answer(request), 0)
    next(steps)
    assert ours.log.log_end_offset == 4
    ours.become(registration(leader=NODE, epoch=1))
    write(ours.log, 1)
    run_to_end(steps)
    assert ours.log.log_end_offset == 5
    assert ours.log.epochs.latest == 1


def test_a_large_answer_that_is_interrupted_goes_on_with_the_next_fetch(
    tmp_path: Path, leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetcher_module, "PIECE_BATCHES", 1)
    ours = follower(tmp_path / "ours")
    fetcher = fetcher_of(ours)
    request = fetcher.next_request(0)
    assert request is not None
    steps = fetcher.on_response(leader.answer(request), 0)
    next(steps)
    steps.close()  # the loop was cancelled, or failed
    fetcher.on_failure(KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "interrupted"), 0)
    request = one_round(fetcher, leader, BACKOFF_MS)
    assert named(request) == {0: (2, 0, 0)}
    assert content(ours.log) == content(leader.log())


def test_batches_of_a_later_epoch_wait_for_the_image(tmp_path: Path) -> None:
    """KAFKA-18723: the leader has been elected anew between the request and its answer."""
    leader = Leader(tmp_path / "leader")
    write(leader.log(), 0)
    leader.log().assign_epoch_start(1, 1)
    write(leader.log(), 1)
    ours = follower(tmp_path / "ours")
    fetcher = fetcher_of(ours)
    one_round(fetcher, leader)
    assert ours.log.log_end_offset == 1
    assert not fetcher.failed
    one_round(fetcher, leader)
    assert forgotten(one_round(fetcher, leader)) == [0], "the leader would send the same again at once"
    assert fetcher.next_request(0) is None
    ours.become(registration(epoch=1))
    leader.epoch = 1
    fetcher.add(ours)
    one_round(fetcher, leader)
    assert ours.log.log_end_offset == 2


# -- truncation


def test_a_tail_that_the_leader_does_not_have_is_cut(tmp_path: Path, leader: Leader) -> None:
    environment = Environment()
    ours = follower(tmp_path / "ours", environment=environment)
    for _ in range(7):
        write(ours.log, 0, b"a", b"b")
    leader.lead(1)
    write(leader.log(), 1, b"new")
    ours.become(registration(epoch=1))
    fetcher = fetcher_of(ours)
    assert named(one_round(fetcher, leader)) == {0: (14, 1, 0)}
    assert ours.log.log_end_offset == 10
    assert environment.truncations == [ours.topic_partition]
    one_round(fetcher, leader)
    assert content(ours.log) == content(leader.log())


def test_several_rounds_find_where_logs_part(tmp_path: Path) -> None:
    """KIP-279: leaders that did not see one another's writes."""
    leader = Leader(tmp_path / "leader")
    ours = follower(tmp_path / "ours", epoch=6)
    for log in (leader.log(), ours.log):
        write(log, 0, b"common")
    for epoch in (1, 3, 5):
        write(ours.log, epoch, b"ours", b"ours")
    for epoch in (2, 4):
        write(leader.log(), epoch, b"theirs", b"theirs", b"theirs")
    leader.lead(6)
    fetcher = fetcher_of(ours)
    ends = []
    for _ in range(4):
        one_round(fetcher, leader)
        ends.append(ours.log.log_end_offset)
    assert ends[:3] == [5, 3, 1]
    assert content(ours.log) == content(leader.log())


def test_an_epoch_without_records_is_given_up(tmp_path: Path, leader: Leader) -> None:
    ours = follower(tmp_path / "ours")
    fetcher = fetcher_of(ours)
    one_round(fetcher, leader)
    ours.log.assign_epoch_start(1, 10)  # it has led for a moment and written nothing
    leader.lead(2)
    ours.become(registration(epoch=2))
    fetcher.add(ours)
    assert named(one_round(fetcher, leader)) == {0: (10, 2, 1)}
    assert ours.log.log_end_offset == 10
    assert named(one_round(fetcher, leader)) == {0: (10, 2, 0)}
    assert fetcher.next_due_ms() == float("inf")


def test_a_leader_that_diverges_for_ever_is_asked_now_and_then(tmp_path: Path, leader: Leader) -> None:
    ours = follower(tmp_path / "ours")
    fetcher = fetcher_of(ours)
    one_round(fetcher, leader)
    for now_ms in (0, BACKOFF_MS):
        assert fetcher.next_request(now_ms) is not None
        answered(fetcher, answer_of([data(diverging_epoch=EpochEndOffset(epoch=0, end_offset=99))]), now_ms)
        assert fetcher.next_due_ms() == now_ms + BACKOFF_MS
    assert ours.log.log_end_offset == 10


def test_a_leader_whose_epoch_ends_below_nothing_is_asked_now_and_then(
    tmp_path: Path, leader: Leader
) -> None:
    ours = follower(tmp_path / "ours")
    fetcher = fetcher_of(ours)
    one_round(fetcher, leader)
    assert fetcher.next_request(0) is not None
    answered(fetcher, answer_of([data(diverging_epoch=EpochEndOffset(epoch=0, end_offset=-7))]), 0)
    assert fetcher.next_due_ms() == BACKOFF_MS
    assert ours.log.log_end_offset == 10


@pytest.fixture
def diverged(tmp_path: Path, leader: Leader, monkeypatch: pytest.MonkeyPatch) -> Partition:
    """A follower of epoch 1 with four records more than its leader, and much to read before they can be cut."""
    monkeypatch.setattr(fetcher_module, "MAX_REPLAYED_BYTES", 100)
    ours = follower(tmp_path / "ours")
    for _ in range(7):
        write(ours.log, 0, b"a", b"b")
    leader.lead(1)
    ours.become(registration(epoch=1))
    return ours


@pytest.mark.parametrize("is_prepared", [True, False])
def test_a_truncation_with_much_to_read_waits_for_that(
    diverged: Partition, leader: Leader, is_prepared: bool
) -> None:
    fetcher = fetcher_of(diverged)
    one_round(fetcher, leader)
    assert diverged.log.log_end_offset == 14
    assert forgotten(fetcher.next_request(0)) == [0], "it is not asked for meanwhile"
    ((partition, truncation),) = fetcher.to_cut()
    assert (partition, truncation.offset) == (diverged, 10)
    if is_prepared:
        truncation.prepare()
    fetcher.cut(partition, truncation)
    assert (diverged.log.log_end_offset, fetcher.to_cut()) == (10, [])
    assert fetcher.next_due_ms() == float("inf"), "nothing is wrong with it"
    write(leader.log(), 1)
    assert named(one_round(fetcher, leader)) == {0: (10, 1, 0)}
    assert content(diverged.log) == content(leader.log())


@pytest.mark.parametrize("how", ["removed", "another epoch", "leads itself"])
def test_a_truncation_that_another_leader_overtakes_is_not_made(
    diverged: Partition, leader: Leader, how: str
) -> None:
    fetcher = fetcher_of(diverged)
    one_round(fetcher, leader)
    ((partition, truncation),) = fetcher.to_cut()
    truncation.prepare()
    if how == "removed":
        fetcher.remove(diverged)
    elif how == "another epoch":
        diverged.become(registration(epoch=2))
        fetcher.add(diverged)
    else:
        diverged.become(registration(leader=NODE, epoch=2))
    fetcher.cut(partition, truncation)
    assert diverged.log.log_end_offset == 14


def test_truncation_below_the_high_watermark_is_said(
    tmp_path: Path, leader: Leader, caplog: pytest.LogCaptureFixture
) -> None:
    ours = follower(tmp_path / "ours")
    for _ in range(7):
        write(ours.log, 0, b"a", b"b")
    ours.log.update_high_watermark(12)
    leader.lead(1)
    ours.become(registration(epoch=1))
    with caplog.at_level(logging.INFO, "ottla.replication"):
        one_round(fetcher_of(ours), leader)
    assert ours.log.high_watermark == 10
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "below the high watermark 12" in caplog.text


def test_without_epochs_what_is_not_committed_goes(tmp_path: Path) -> None:
    ours = follower(tmp_path / "ours")
    write(ours.log, 0)
    write(ours.log, 0)
    ours.log.update_high_watermark(1)
    ours.log.epochs.clear()
    fetcher = fetcher_of(ours)
    assert named(fetcher.next_request(0)) == {0: (1, 0, -1)}


def test_a_truncation_that_fails_concerns_its_partition(
    tmp_path: Path, leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = follower(tmp_path / "ours")
    for _ in range(7):
        write(ours.log, 0, b"a", b"b")
    leader.lead(1)
    ours.become(registration(epoch=1))
    fetcher = fetcher_of(ours)
    monkeypatch.setattr(Partition, "truncate_to", _raising(OSError(5, "Input/output error")))
    one_round(fetcher, leader)
    assert list(fetcher.failed.values()) == [ours]


@pytest.mark.parametrize("why", ["diverging", "without epochs", "prepared"])
def test_for_want_of_a_descriptor_it_is_cut_later(
    tmp_path: Path, leader: Leader, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """Without it nothing more is asked for: what the leader does not have would stay for ever."""
    ours = follower(tmp_path / "ours")
    for _ in range(7):
        write(ours.log, 0, b"a", b"b")
    if why == "without epochs":
        ours.log.update_high_watermark(10)
        ours.log.epochs.clear()
    elif why == "prepared":
        monkeypatch.setattr(fetcher_module, "MAX_REPLAYED_BYTES", 0)
    leader.lead(1)
    ours.become(registration(epoch=1))
    other = follower(tmp_path / "ours", index=1, epoch=1)
    leader.log(1)
    with monkeypatch.context() as patched:
        patched.setattr(Log, "truncate_to", _raising(OutOfFilesError("none left")))
        fetcher = fetcher_of(ours, other)
        one_round(fetcher, leader)
        for partition, truncation in fetcher.to_cut():
            fetcher.cut(partition, truncation)
        for now_ms in (0, BACKOFF_MS, 2 * BACKOFF_MS):
            fetcher.cut_again(now_ms)
            for partition, truncation in fetcher.to_cut():
                fetcher.cut(partition, truncation)
            assert 0 not in named(fetcher.next_request(now_ms) or FetchRequest())
        assert not fetcher.failed
        assert ours.log.log_end_offset == 14
    fetcher.cut_again(3 * BACKOFF_MS)
    for partition, truncation in fetcher.to_cut():
        fetcher.cut(partition, truncation)
    assert ours.log.log_end_offset == 10
    one_round(fetcher, leader, 3 * BACKOFF_MS)
    assert content(ours.log) == content(leader.log())


# -- out of range


def out_of_range(fetcher: ReplicaFetcher, leader: Leader, now_ms: float = 0) -> list[int]:
    """Fetch, be refused, and ask until it is known where the leader's log lies; the timestamps that were asked for."""
    asked: list[int] = []
    request = one_round(fetcher, leader, now_ms)
    assert isinstance(request, FetchRequest)
    while isinstance(request := fetcher.next_request(now_ms), ListOffsetsRequest):
        assert request.replica_id == NODE
        asked += [wanted.timestamp for topic in request.topics for wanted in topic.partitions]
        assert all(
            wanted.current_leader_epoch == 0 for topic in request.topics for wanted in topic.partitions
        )
        answered(fetcher, leader.answer(request), now_ms)
    if request is not None:
        answered(fetcher, leader.answer(request), now_ms)
    return asked


def test_a_follower_beyond_the_leaders_end_is_cut_there(tmp_path: Path, leader: Leader) -> None:
    ours = follower(tmp_path / "ours")
    for _ in range(7):
        write(ours.log, 0, b"a", b"b")
    ours.log.epochs.clear()
    ours.log.update_high_watermark(14)
    fetcher = fetcher_of(ours)
    assert out_of_range(fetcher, leader) == [-1]
    assert ours.log.log_end_offset == 10


def test_a_follower_before_the_leaders_start_begins_anew(tmp_path: Path, leader: Leader) -> None:
    ours = follower(tmp_path / "ours")
    write(ours.log, 0)
    ours.log.update_high_watermark(1)
    leader.log().update_high_watermark(10)
    leader.log().maybe_increment_log_start_offset(6, "retention")
    fetcher = fetcher_of(ours)
    assert out_of_range(fetcher, leader) == [-1, -2]
    assert (ours.log.log_start_offset, ours.log.log_end_offset) == (6, 10)
    assert content(ours.log) == content(leader.log())


def test_a_leader_that_has_grown_meanwhile_is_fetched_from_where_we_end(
    tmp_path: Path, leader: Leader
) -> None:
    ours = follower(tmp_path / "ours")
    fetcher = fetcher_of(ours)
    leader.errors[TOPIC_ID, 0] = ErrorCode.OFFSET_OUT_OF_RANGE
    one_round(fetcher, leader)
    leader.errors.clear()
    assert isinstance(one_round(fetcher, leader), ListOffsetsRequest)
    assert isinstance(one_round(fetcher, leader), ListOffsetsRequest)
    one_round(fetcher, leader)
    assert content(ours.log) == content(leader.log())


def test_a_leader_that_refuses_an_offset_that_it_has_is_asked_now_and_then(
    tmp_path: Path, leader: Leader, caplog: pytest.LogCaptureFixture
) -> None:
    ours = follower(tmp_path / "ours")
    fetcher = fetcher_of(ours)
    leader.errors[TOPIC_ID, 0] = ErrorCode.OFFSET_OUT_OF_RANGE
    for now_ms in (0, BACKOFF_MS, 2 * BACKOFF_MS):
        while one_round(fetcher, leader, now_ms) is not None:
            assert len(leader.requests) < 20, "it is asked again and again, without a pause"
    assert caplog.text.count("offset 0 is out of range, and is not") == 1
    leader.errors.clear()
    one_round(fetcher, leader, 4 * BACKOFF_MS)
    assert content(ours.log) == content(leader.log())


@pytest.mark.parametrize(
    ("error", "fails"),
    [
        (ErrorCode.FENCED_LEADER_EPOCH, True),
        (ErrorCode.UNKNOWN_LEADER_EPOCH, False),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, False),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, False),
        (ErrorCode.UNKNOWN_SERVER_ERROR, False),
    ],
)
def test_what_is_answered_to_the_lookup(
    tmp_path: Path, leader: Leader, error: ErrorCode, fails: bool
) -> None:
    ours = follower(tmp_path / "ours")
    fetcher = fetcher_of(ours)
    leader.errors[TOPIC_ID, 0] = ErrorCode.OFFSET_OUT_OF_RANGE
    one_round(fetcher, leader)
    request = fetcher.next_request(0)
    assert request is not None
    response = leader.answer(request)
    assert isinstance(response, ListOffsetsResponse)
    response.topics[0].partitions[0].error_code = error
    answered(fetcher, response)
    assert bool(fetcher.failed) == fails
    assert fetcher.next_due_ms() == (float("inf") if fails else BACKOFF_MS)
    assert ours.log.log_end_offset == 0


@pytest.mark.parametrize("how", ["left out", "no offset", "lost"])
def test_a_lookup_that_is_not_answered_is_made_again(tmp_path: Path, leader: Leader, how: str) -> None:
    ours = follower(tmp_path / "ours")
    fetcher = fetcher_of(ours)
    leader.errors[TOPIC_ID, 0] = ErrorCode.OFFSET_OUT_OF_RANGE
    one_round(fetcher, leader)
    request = fetcher.next_request(0)
    assert request is not None
    response = leader.answer(request)
    assert isinstance(response, ListOffsetsResponse)
    if how == "lost":
        fetcher.on_failure(KafkaError(ErrorCode.NETWORK_EXCEPTION), 0)
    elif how == "left out":
        answered(fetcher, ListOffsetsResponse(topics=[]))
    else:
        response.topics[0].partitions[0].offset = -1
        answered(fetcher, response)
    request = fetcher.next_request(0)
    if request is not None:
        assert forgotten(request) == [0]
        answered(fetcher, leader.answer(request))
    assert fetcher.next_due_ms() == BACKOFF_MS
    leader.errors.clear()
    for _ in range(4):
        one_round(fetcher, leader, BACKOFF_MS)
    assert content(ours.log) == content(leader.log())


def test_a_lookup_of_an_epoch_that_is_over_cuts_nothing(tmp_path: Path, leader: Leader) -> None:
    ours = follower(tmp_path / "ours")
    for _ in range(7):
        write(ours.log, 0, b"a", b"b")
    fetcher = fetcher_of(ours)
    leader.errors[TOPIC_ID, 0] = ErrorCode.OFFSET_OUT_OF_RANGE
    one_round(fetcher, leader)
    request = fetcher.next_request(0)
    assert isinstance(request, ListOffsetsRequest)
    response = leader.answer(request)
    ours.become(registration(epoch=1))
    answered(fetcher, response)
    assert ours.log.log_end_offset == 14


# -- marks and the beginning of a log


def test_the_watermark_is_bounded_by_the_log_and_does_not_go_back(tmp_path: Path) -> None:
    ours = follower(tmp_path / "ours")
    write(ours.log, 0, b"a", b"b")
    ours.follow_marks(99, 0)
    assert ours.log.high_watermark == 2
    ours.follow_marks(1, 99)
    assert (ours.log.high_watermark, ours.log.log_start_offset) == (2, 2)


def test_a_log_that_starts_within_the_leaders_batch_takes_the_whole_batch(
    tmp_path: Path, leader: Leader
) -> None:
    """DeleteRecords to an odd offset: the batch that holds it begins one before."""
    leader.log().update_high_watermark(10)
    leader.log().maybe_increment_log_start_offset(5, "DeleteRecords")
    ours = follower(tmp_path / "ours")
    fetcher = fetcher_of(ours)
    assert out_of_range(fetcher, leader) == [-1, -2]
    assert (ours.log.log_start_offset, ours.log.log_end_offset) == (5, 10)


def test_nothing_is_appended_for_a_leader_of_another_epoch(tmp_path: Path, leader: Leader) -> None:
    ours = follower(tmp_path / "ours", epoch=3)
    records = memoryview(content(leader.log()))
    ours.append_as_follower(records, 2)
    ours.append_as_follower(records, 4)
    assert ours.log.log_end_offset == 0
    ours.become(registration(leader=NODE, epoch=4))
    ours.append_as_follower(records, 4)
    assert ours.log.log_end_offset == 0


# -- pieces


def test_pieces_are_whole_batches(tmp_path: Path) -> None:
    leader = Leader(tmp_path)
    for _ in range(PIECE_BATCHES + 10):
        write(leader.log(), 0)
    records = memoryview(content(leader.log()))
    pieces = list(pieces_of(records))
    assert len(pieces) == 2
    assert b"".join(pieces) == records
    one = len(records) // (PIECE_BATCHES + 10)
    assert [len(piece) for piece in pieces_of(records, 3 * one)][:3] == [3 * one] * 3
    assert [len(piece) for piece in pieces_of(records, 1)][:3] == [one] * 3, "a batch is never cut"


def test_a_segment_smaller_than_an_answer(tmp_path: Path, leader: Leader) -> None:
    """Kafka refuses an append larger than a segment; what is appended in pieces need not be."""
    ours = follower(tmp_path / "ours", config=LogConfig(segment_bytes=200))
    fetcher = fetcher_of(ours)
    one_round(fetcher, leader)
    assert len(ours.log.segments) > 1
    assert content(ours.log) == content(leader.log())
