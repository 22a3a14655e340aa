"""The consumer without groups: positions, sessions, resets, transactions, damage."""

from random import Random
from typing import Any

import pytest
from tests.unit.client.fake_cluster import LOSE_REQUEST, LOSE_RESPONSE, NO_ANSWER, FakeCluster, Partition

from ottla.client.config import ConsumerConfig
from ottla.client.consumer.core import ConsumerCore
from ottla.client.consumer.fetch import ConsumerRecord
from ottla.client.errors import NoOffsetForPartition
from ottla.client.network import NetworkCore
from ottla.client.offsets import EARLIEST
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition, Uuid
from ottla.records.control import end_txn_marker
from ottla.records.record import build_batch
from ottla.wire.messages.fetch import FetchRequest, FetchResponse
from ottla.wire.messages.list_offsets import ListOffsetsRequest, OffsetForLeaderEpochRequest

TP = TopicPartition("t", 0)


class Rig:
    """A consumer and a cluster that has topic "t"."""

    def __init__(
        self, nodes: tuple[int, ...] = (1,), *, partitions: int = 1, seed: int = 1, **settings: Any
    ) -> None:
        config = ConsumerConfig(
            bootstrap_servers="bootstrap:9092", **{"auto_offset_reset": "earliest", **settings}
        )
        self.core = NetworkCore(config, seed=seed)
        self.consumer = ConsumerCore(self.core, config)
        self.cluster = FakeCluster(self.core, nodes, seed=seed)
        self.topic = self.cluster.create("t", partitions)

    def assign(self, *partitions: int) -> None:
        self.consumer.assign([TopicPartition("t", p) for p in partitions or (0,)], self.cluster.now)

    def read(self, count: int, limit_ms: float = 10_000, max_records: int = 500) -> list[ConsumerRecord]:
        """Poll until so many records have come (or the time is up)."""
        got: list[ConsumerRecord] = []

        def enough() -> bool:
            for records in self.consumer.drain(max_records).values():
                got.extend(records)
                self.cluster.at(0.0, lambda: None)  # there is room now: as a driver, give the core a turn
            return len(got) >= count

        self.cluster.run(enough, limit_ms)
        return got

    def fetches(self) -> list[FetchRequest]:
        return self.cluster.requests(FetchRequest)


def fill(partition: Partition, *values: bytes, **more: Any) -> None:
    """One batch of these values."""
    records = [(1000 + index, None, value, ()) for index, value in enumerate(values)]
    assert partition.append(bytes(build_batch(records, **more)))[0] == 0


def numbers(partition: Partition, count: int, per_batch: int = 5) -> list[bytes]:
    values = [b"%d" % i for i in range(count)]
    for start in range(0, count, per_batch):
        fill(partition, *values[start : start + per_batch])
    return values


def values(records: list[ConsumerRecord]) -> list[bytes | None]:
    return [record.value for record in records]


def test_records_come_in_order_with_all_they_carry() -> None:
    rig = Rig()
    batch = build_batch([(77, b"k", b"v", (("h", b"x"), ("n", None)))])
    rig.topic.partitions[0].append(bytes(batch))
    rig.topic.partitions[0].epoch = 3
    rig.assign()
    record = rig.read(1)[0]
    assert record == ConsumerRecord("t", 0, 0, 77, 0, b"k", b"v", (("h", b"x"), ("n", None)), 0)


@pytest.mark.parametrize("codec", range(5))
def test_every_codec_is_read(codec: int) -> None:
    rig = Rig()
    fill(rig.topic.partitions[0], b"a" * 100, b"b" * 100, compression=codec)
    rig.assign()
    assert values(rig.read(2)) == [b"a" * 100, b"b" * 100]


def test_reading_goes_on_over_many_batches_and_polls() -> None:
    rig = Rig(partitions=2)
    expected = numbers(rig.topic.partitions[0], 100)
    numbers(rig.topic.partitions[1], 60)
    rig.assign(0, 1)
    got = rig.read(160, max_records=7)
    assert values([r for r in got if r.partition == 0]) == expected
    assert len(got) == 160
    assert rig.consumer.at(TP).position == 100


def test_max_records_bounds_a_poll_and_the_position_is_exact() -> None:
    rig = Rig()
    numbers(rig.topic.partitions[0], 20)
    rig.assign()
    assert rig.cluster.run(rig.consumer.has_data)
    assert len(rig.consumer.drain(3)[TP]) == 3
    assert rig.consumer.at(TP).position == 3
    assert len(rig.consumer.drain(4)[TP]) == 4
    assert rig.consumer.at(TP).position == 7


def test_single_records_on_the_short_way_keep_the_position_exact() -> None:
    rig = Rig(partitions=2)
    expected = numbers(rig.topic.partitions[0], 23)
    rig.assign(0, 1)
    got: list[ConsumerRecord] = []
    while len(got) < 23:
        record = rig.consumer.next_record()
        if record is None:
            assert rig.cluster.run(rig.consumer.has_data)
            got += [record for records in rig.consumer.drain(1).values() for record in records]
        else:
            got.append(record)
        assert rig.consumer.at(TP).position == len(got)
    assert values(got) == expected
    rig.consumer.seek(TP, 5)
    assert rig.consumer.next_record() is None, "what was fetched before is forgotten"
    assert values(rig.read(18)) == expected[5:]


def test_the_short_way_ends_at_a_paused_partition() -> None:
    rig = Rig()
    numbers(rig.topic.partitions[0], 5)
    rig.assign()
    assert rig.cluster.run(rig.consumer.has_data)
    rig.consumer.drain(1)
    assert rig.consumer.next_record() is not None
    rig.consumer.pause([TP])
    assert rig.consumer.next_record() is None
    rig.consumer.resume([TP])
    rig.consumer.hold([TP])
    assert rig.consumer.next_record() is None
    assert rig.consumer.at(TP).position == 2


def test_where_it_begins() -> None:
    for reset, expected in (("earliest", [b"0", b"1"]), ("latest", [b"2"])):
        rig = Rig(auto_offset_reset=reset)
        fill(rig.topic.partitions[0], b"0", b"1")
        rig.assign()
        assert rig.cluster.run(lambda rig=rig: rig.consumer.at(TP).position is not None)
        fill(rig.topic.partitions[0], b"2")
        assert values(rig.read(len(expected)))[: len(expected)] == expected


def test_without_a_policy_a_position_must_be_given() -> None:
    rig = Rig(auto_offset_reset="none")
    fill(rig.topic.partitions[0], b"0", b"1")
    rig.assign()
    with pytest.raises(NoOffsetForPartition, match="t-0"):
        rig.read(1)
    rig.consumer.seek(TP, 1)
    assert values(rig.read(1)) == [b"1"]


def test_seek_within_a_batch_and_back() -> None:
    rig = Rig()
    numbers(rig.topic.partitions[0], 20, per_batch=10)
    rig.assign()
    rig.consumer.seek(TP, 13)
    assert values(rig.read(7)) == [b"%d" % i for i in range(13, 20)]
    rig.consumer.seek(TP, 2)
    assert values(rig.read(18))[:3] == [b"2", b"3", b"4"]


def test_an_offset_that_no_log_has_is_refused_and_the_position_stays() -> None:
    rig = Rig()
    numbers(rig.topic.partitions[0], 3)
    rig.assign()
    rig.consumer.seek(TP, 1)
    for offset in (-1, 2**63):
        with pytest.raises(ValueError, match="offset"):
            rig.consumer.seek(TP, offset)
    half: Any = 3 / 2
    with pytest.raises(TypeError, match="float"):
        rig.consumer.seek(TP, half)
    assert values(rig.read(2)) == [b"1", b"2"]


def test_a_fetch_under_way_when_seek_is_called_is_not_believed() -> None:
    rig = Rig()
    numbers(rig.topic.partitions[0], 20)
    rig.assign()
    rig.cluster.faults.append(lambda n, request, v: 50.0 if isinstance(request, FetchRequest) else None)
    assert rig.cluster.run(lambda: len(rig.fetches()) == 1)
    rig.consumer.seek(TP, 15)
    assert values(rig.read(5)) == [b"%d" % i for i in range(15, 20)]


def test_seek_to_the_ends_and_by_time() -> None:
    rig = Rig()
    numbers(rig.topic.partitions[0], 10)
    rig.assign()
    rig.consumer.seek(TP, 5)
    rig.read(5)
    rig.consumer.seek_to([TP], EARLIEST)
    assert values(rig.read(10)) == [b"%d" % i for i in range(10)]
    rig.consumer.seek_to([TP], 1003)
    assert rig.read(1)[0].timestamp == 1003
    rig.consumer.seek_to([TP], 999_999)
    assert rig.cluster.run(lambda: rig.consumer.at(TP).position == 10)


def test_a_negative_offset_and_a_foreign_partition_are_refused() -> None:
    rig = Rig()
    rig.assign()
    with pytest.raises(ValueError, match="-1"):
        rig.consumer.seek(TP, -1)
    with pytest.raises(KafkaError, match="not assigned"):
        rig.consumer.seek(TopicPartition("t", 9), 0)


def test_pause_holds_what_is_there_and_fetches_no_more() -> None:
    rig = Rig(partitions=2)
    numbers(rig.topic.partitions[0], 5)
    numbers(rig.topic.partitions[1], 5)
    rig.assign(0, 1)
    rig.consumer.pause([TP])
    got = rig.read(10, limit_ms=3_000)
    assert {r.partition for r in got} == {1}
    assert not rig.consumer.has_data()
    rig.consumer.resume([TP])
    assert [r.partition for r in rig.read(5)] == [0] * 5


def test_what_waits_for_a_paused_partition_holds_up_no_other() -> None:
    rig = Rig(partitions=2, fetch_max_bytes=5_000, max_partition_fetch_bytes=5_000)
    fill(rig.topic.partitions[0], *[b"x" * 600] * 10)
    rig.assign(0, 1)
    assert rig.cluster.run(lambda: rig.consumer.buffered_bytes >= 5_000)
    rig.consumer.pause([TP])
    fill(rig.topic.partitions[1], b"y")
    assert values(rig.read(1)) == [b"y"]
    # Nor does memory grow without end: the other partition gets one fetch ahead.
    for _ in range(20):
        fill(rig.topic.partitions[1], b"y" * 3_000)
    rig.cluster.run_for(5_000)
    assert rig.consumer.buffered_bytes < 5_000 + 2_000 + 5_000
    rig.consumer.resume([TP])
    assert len(rig.read(30)) == 30


def test_assigning_anew_keeps_positions_of_what_stays() -> None:
    rig = Rig(partitions=2)
    numbers(rig.topic.partitions[0], 5)
    rig.assign(0)
    rig.read(5)
    rig.assign(0, 1)
    assert rig.consumer.at(TP).position == 5
    rig.assign(1)
    assert rig.consumer.assignment == {TopicPartition("t", 1)}


def test_out_of_range_goes_where_the_policy_says() -> None:
    rig = Rig()
    partition = rig.topic.partitions[0]
    numbers(partition, 20)
    rig.assign()
    rig.consumer.seek(TP, 500)
    assert values(rig.read(1))[0] == b"0"
    rig = Rig(auto_offset_reset="none")
    numbers(rig.topic.partitions[0], 20)
    rig.assign()
    rig.consumer.seek(TP, 500)
    with pytest.raises(NoOffsetForPartition, match="500"):
        rig.read(1)


def test_records_deleted_from_under_us_are_passed_over() -> None:
    rig = Rig()
    partition = rig.topic.partitions[0]
    numbers(partition, 20)
    rig.assign()
    rig.consumer.seek(TP, 2)
    partition.start = 10
    del partition.batches[:2]
    assert values(rig.read(10)) == [b"%d" % i for i in range(10, 20)]


def test_the_session_says_only_what_changed() -> None:
    rig = Rig(partitions=3)
    for partition in rig.topic.partitions:
        fill(partition, b"a")
    rig.assign(0, 1, 2)
    rig.read(3)
    fill(rig.topic.partitions[1], b"b")
    rig.read(1)
    rig.cluster.run_for(5)
    fetches = rig.fetches()
    assert (fetches[0].session_id, fetches[0].session_epoch) == (0, 0)
    assert len(fetches[0].topics[0].partitions) == 3
    said = [[(p.partition, p.fetch_offset) for t in f.topics for p in t.partitions] for f in fetches[1:]]
    assert said[0] == [(0, 1), (1, 1), (2, 1)]
    assert [(1, 2)] in said
    assert [f.session_epoch for f in fetches[1:]] == list(range(1, len(fetches)))


def test_what_is_paused_leaves_the_session_and_comes_back() -> None:
    rig = Rig(partitions=2)
    rig.assign(0, 1)
    assert rig.cluster.run(lambda: len(rig.fetches()) >= 2)
    rig.consumer.pause([TP])
    assert rig.cluster.run(lambda: any(f.forgotten_topics_data for f in rig.fetches()), 3_000)
    rig.consumer.resume([TP])
    fill(rig.topic.partitions[0], b"x")
    assert values(rig.read(1)) == [b"x"]


def test_a_session_the_broker_lost_is_begun_anew() -> None:
    rig = Rig()
    numbers(rig.topic.partitions[0], 5)
    rig.assign()
    rig.read(5)
    rig.cluster.forget_sessions()
    fill(rig.topic.partitions[0], b"after")
    assert values(rig.read(1)) == [b"after"]
    assert [f.session_epoch for f in rig.fetches()].count(0) == 2


@pytest.mark.parametrize("fault", [LOSE_REQUEST, LOSE_RESPONSE])
def test_a_lost_fetch_is_made_good(fault: str) -> None:
    rig = Rig()
    expected = numbers(rig.topic.partitions[0], 30)
    left = [3]

    def lose(node: int, request: Any, version: int) -> str | None:
        if isinstance(request, FetchRequest) and left[0]:
            left[0] -= 1
            return fault
        return None

    rig.cluster.faults.append(lose)
    rig.assign()
    assert values(rig.read(30)) == expected


def test_a_new_leader_is_followed_and_the_position_checked() -> None:
    rig = Rig((1, 2))
    partition = rig.topic.partitions[0]
    numbers(partition, 10)
    rig.assign()
    rig.read(10)
    partition.leader, partition.epoch = 2, 1
    fill(partition, b"new")
    assert values(rig.read(1)) == [b"new"]
    assert len(rig.cluster.requests(OffsetForLeaderEpochRequest)) == 1


def test_a_log_cut_short_takes_the_position_back() -> None:
    rig = Rig((1, 2))
    partition = rig.topic.partitions[0]
    numbers(partition, 10)
    rig.assign()
    rig.read(10)
    # The new leader never had the second half.
    del partition.batches[1:]
    partition.leader, partition.epoch = 2, 1
    for value in (b"other5", b"other6"):
        fill(partition, value)
    assert values(rig.read(2)) == [b"other5", b"other6"]


def test_what_is_taken_while_the_position_is_checked_is_not_taken_for_cut_off() -> None:
    rig = Rig((1, 2))
    partition = rig.topic.partitions[0]
    fill(partition, b"epoch 0", b"epoch 0")
    partition.epoch = 1
    fill(partition, b"epoch 1", b"epoch 1")
    rig.assign()
    assert rig.cluster.run(lambda: rig.consumer.at(TP).fetch_offset == 4)
    got = [record for records in rig.consumer.drain(1).values() for record in records]
    partition.leader, partition.epoch = 2, 2
    rig.core.metadata.invalidate()
    assert rig.cluster.run(lambda: rig.consumer.at(TP).validating)
    got += rig.read(4)
    fill(partition, b"epoch 2")
    got += rig.read(1)
    assert [record.offset for record in got] == [0, 1, 2, 3, 4]


def test_a_position_that_comes_with_an_epoch_is_checked_also_in_the_middle() -> None:
    rig = Rig()
    partition = rig.topic.partitions[0]
    numbers(partition, 5)
    partition.epoch = 1
    numbers(partition, 5)
    rig.assign()
    rig.read(10)
    # Kept by the application since before the log was cut at 5 and went on under epoch 1.
    rig.consumer.seek(TP, 8, leader_epoch=0)
    assert [record.offset for record in rig.read(5)] == [5, 6, 7, 8, 9]
    assert len(rig.cluster.requests(OffsetForLeaderEpochRequest)) == 1


def test_a_log_cut_short_is_an_error_without_a_policy() -> None:
    rig = Rig((1, 2), auto_offset_reset="none")
    partition = rig.topic.partitions[0]
    numbers(partition, 10)
    rig.assign()
    rig.consumer.seek(TP, 0)
    rig.read(10)
    del partition.batches[1:]
    partition.leader, partition.epoch = 2, 1
    with pytest.raises(KafkaError, match="truncated to 5"):
        rig.read(1)


def test_a_damaged_batch_is_named_and_can_be_passed_by() -> None:
    rig = Rig()
    partition = rig.topic.partitions[0]
    numbers(partition, 15)
    partition.batches[1][-1] ^= 0xFF
    rig.assign()
    assert len(rig.read(5)) >= 5
    with pytest.raises(KafkaError, match="t-0: the batch at offset 5") as caught:
        rig.read(1)
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
    assert rig.consumer.at(TP).position == 5
    rig.consumer.seek(TP, 10)
    assert values(rig.read(5)) == [b"%d" % i for i in range(10, 15)]


def test_the_checksum_may_be_left_unchecked() -> None:
    rig = Rig(check_crcs=False)
    fill(rig.topic.partitions[0], b"a")
    rig.topic.partitions[0].batches[0][17] ^= 0xFF
    rig.assign()
    assert values(rig.read(1)) == [b"a"]


def test_a_batch_cut_off_at_the_end_of_an_answer_is_fetched_again() -> None:
    rig = Rig()
    partition = rig.topic.partitions[0]
    expected = numbers(partition, 20)
    whole = partition.read
    partition.read = lambda offset, size: whole(offset, size)[:-20] if offset < 15 else whole(offset, size)  # type: ignore[method-assign]
    rig.assign()
    assert values(rig.read(20)) == expected


def test_aborted_transactions_are_left_out_only_if_asked() -> None:
    def log(rig: Rig) -> None:
        partition = rig.topic.partitions[0]
        store = partition.batches

        def put(data: bytearray) -> None:
            view_end = partition.end
            data[0:8] = view_end.to_bytes(8, "big")
            store.append(data)

        def data(producer: int, value: bytes) -> None:
            put(
                build_batch(
                    [(1, None, value, ())],
                    producer_id=producer,
                    producer_epoch=0,
                    base_sequence=0,
                    transactional=True,
                )
            )

        def marker(producer: int, committed: bool) -> None:
            put(
                end_txn_marker(
                    committed=committed,
                    producer_id=producer,
                    producer_epoch=0,
                    coordinator_epoch=0,
                    timestamp_ms=1,
                )
            )

        data(1, b"aborted")  # 0
        data(2, b"committed")  # 1
        put(build_batch([(1, None, b"plain", ())]))  # 2
        marker(1, committed=False)  # 3
        data(1, b"second try")  # 4
        marker(2, committed=True)  # 5
        marker(1, committed=True)  # 6
        partition.aborted = [(1, 0)]

    rig = Rig(isolation_level="read_committed")
    log(rig)
    rig.assign()
    assert values(rig.read(3)) == [b"committed", b"plain", b"second try"]
    assert rig.cluster.run(lambda: rig.consumer.drain(10) == {} and rig.consumer.at(TP).position == 7, 3_000)
    rig = Rig()
    log(rig)
    rig.assign()
    assert values(rig.read(4)) == [b"aborted", b"committed", b"plain", b"second try"]


def test_a_topic_that_may_not_be_read_says_so_once() -> None:
    rig = Rig()
    described = rig.cluster._describe("t", None)
    described.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    described.partitions = []
    rig.cluster._describe = lambda name, request: described  # type: ignore[method-assign]
    rig.assign()
    with pytest.raises(KafkaError, match="TOPIC_AUTHORIZATION_FAILED"):
        rig.read(1)


def test_a_partition_that_may_not_be_read_is_heard_of_while_others_are_read() -> None:
    rig = Rig(partitions=2)
    numbers(rig.topic.partitions[0], 200)
    real = rig.cluster._read

    def refuse(node: int, name: str, topic_id: bytes, asked: Any) -> Any:
        data = real(node, name, topic_id, asked)
        if asked.partition == 1:
            data.error_code, data.records = ErrorCode.TOPIC_AUTHORIZATION_FAILED, None
        return data

    rig.cluster._read = refuse  # type: ignore[method-assign]
    rig.assign(0, 1)
    # The application is busy, and the partition is tried again and again meanwhile.
    rig.cluster.run_for(60_000)
    got, refusals = 0, []
    while got < 200:
        try:
            got += len(rig.consumer.drain(1)[TP])
        except KafkaError as error:
            refusals.append(error.message)
    assert refusals == ["t-1: TOPIC_AUTHORIZATION_FAILED"]


def test_a_partition_that_does_not_exist_is_named() -> None:
    rig = Rig()
    rig.assign(7)
    with pytest.raises(KafkaError, match="t-7 does not exist"):
        rig.read(1)


def test_a_partition_that_could_not_be_looked_up_is_read_once_it_can() -> None:
    rig = Rig()
    refused = [True]
    real = rig.cluster._describe

    def describe(name: str, request: Any) -> Any:
        described = real(name, request)
        if refused[0]:
            described.error_code, described.partitions = ErrorCode.TOPIC_AUTHORIZATION_FAILED, []
        return described

    rig.cluster._describe = describe  # type: ignore[method-assign]
    fill(rig.topic.partitions[0], b"a")
    rig.assign()
    for _ in range(5):
        with pytest.raises(KafkaError, match="TOPIC_AUTHORIZATION_FAILED"):
            rig.read(1)
        rig.cluster.run_for(10_000)
    refused[0] = False
    rig.core.metadata.invalidate()
    rig.cluster.run_for(5_000)
    assert values(rig.read(1)) == [b"a"]


def test_a_topic_made_anew_is_read_under_its_new_id() -> None:
    rig = Rig(metadata_max_age_ms=500)
    fill(rig.topic.partitions[0], b"old")
    rig.assign()
    rig.read(1)
    rig.topic.topic_id = Uuid(b"n" * 16)
    rig.topic.partitions[0].batches.clear()
    fill(rig.topic.partitions[0], b"new0", b"new1")
    assert values(rig.read(1)) == [b"new1"]  # the position 1 still exists


def test_an_old_broker_is_asked_by_name_and_without_sessions() -> None:
    rig = Rig()
    rig.cluster.ranges.update({1: (4, 6), 3: (0, 5), 2: (1, 3)})
    numbers(rig.topic.partitions[0], 5)
    rig.assign()
    assert len(rig.read(5)) == 5
    assert set(rig.cluster.versions(FetchRequest)) == {6}


def test_offsets_are_asked_in_one_request_a_leader() -> None:
    rig = Rig((1, 2), partitions=6)
    rig.assign(*range(6))
    done = [TopicPartition("t", p) for p in range(6)]
    assert rig.cluster.run(lambda: all(rig.consumer.at(tp).position is not None for tp in done))
    assert len(rig.cluster.requests(ListOffsetsRequest)) == 2


def test_what_waits_is_bounded() -> None:
    rig = Rig(fetch_max_bytes=5_000, max_partition_fetch_bytes=3_000)
    for _ in range(50):
        fill(rig.topic.partitions[0], b"x" * 900)
    rig.assign()
    rig.cluster.run_for(5_000)
    assert 5_000 <= rig.consumer.buffered_bytes <= 8_000
    assert len(rig.read(50)) == 50
    assert rig.consumer.buffered_bytes == 0


def test_a_nearer_replica_is_read_from_when_the_leader_says_so() -> None:
    rig = Rig((1, 2), client_rack="r2")
    partition = rig.topic.partitions[0]
    fill(partition, b"a")
    rig.assign()
    real = rig.cluster.handlers[FetchRequest]

    def redirect(node: int, request: Any, version: int) -> Any:
        if node == 1:
            response = real(node, request, version)
            for topic in response.responses:
                for data in topic.partitions:
                    data.preferred_read_replica, data.records = 2, None
            return response
        partition.leader, response = 2, None
        response = real(node, request, version)
        partition.leader = 1
        return response

    rig.cluster.handlers[FetchRequest] = redirect
    assert values(rig.read(1)) == [b"a"]
    assert rig.fetches()[0].rack_id == "r2"


def test_closing_ends_the_sessions() -> None:
    rig = Rig(fetch_max_wait_ms=10)
    rig.assign()
    assert rig.cluster.run(lambda: len(rig.fetches()) >= 2)
    session = rig.fetches()[-1].session_id
    rig.consumer.close(rig.cluster.now)
    rig.consumer.assign([], rig.cluster.now)
    rig.cluster.run_for(50)
    assert rig.fetches()[-1].session_epoch == -1
    assert rig.fetches()[-1].session_id == session


def test_an_error_for_the_whole_fetch_that_does_not_pass_is_raised() -> None:
    rig = Rig()
    rig.assign()
    rig.cluster.handlers[FetchRequest] = lambda *_: FetchResponse(
        error_code=ErrorCode.UNKNOWN_SERVER_ERROR, responses=[]
    )
    with pytest.raises(KafkaError, match="UNKNOWN_SERVER_ERROR"):
        rig.read(1)


def test_a_fetch_that_waits_holds_up_nothing_else() -> None:
    rig = Rig(partitions=2, fetch_max_wait_ms=20_000)
    rig.assign(0)
    assert rig.cluster.run(lambda: len(rig.fetches()) == 1)
    started = rig.cluster.now
    rig.assign(0, 1)
    assert rig.cluster.run(lambda: rig.consumer.at(TopicPartition("t", 1)).position is not None)
    assert rig.cluster.now - started < 100


@pytest.mark.parametrize("seed", range(30))
def test_whatever_happens_each_record_is_read_once_and_in_order(seed: int) -> None:
    rig = Rig(
        (1, 2, 3),
        partitions=3,
        seed=seed,
        request_timeout_ms=700,
        fetch_max_wait_ms=100,
        max_partition_fetch_bytes=300,
        auto_offset_reset="none",
    )
    random = Random(seed)
    rig.cluster.latency_ms = (0.1, 20.0)

    def trouble(node: int, request: Any, version: int) -> Any:
        roll = random.random()
        if roll < 0.05:
            partition = random.choice(rig.topic.partitions)
            partition.leader, partition.epoch = random.choice((1, 2, 3)), partition.epoch + 1
        if roll < 0.08:
            rig.cluster.forget_sessions()
        if isinstance(request, FetchRequest) and roll > 0.8:
            return random.choice((LOSE_REQUEST, LOSE_RESPONSE, NO_ANSWER, 50.0))
        return LOSE_REQUEST if roll > 0.97 else None

    rig.cluster.faults.append(trouble)
    expected = {p: numbers(partition, 60) for p, partition in enumerate(rig.topic.partitions)}
    rig.assign(0, 1, 2)
    for tp in rig.consumer.assignment:
        rig.consumer.seek(tp, 0)
    got = rig.read(180, limit_ms=120_000, max_records=random.randrange(1, 40))
    for p in range(3):
        assert values([record for record in got if record.partition == p]) == expected[p]
