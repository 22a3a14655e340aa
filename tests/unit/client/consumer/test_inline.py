"""A range of a partition, chunk by chunk: leaders that move, brokers that die, gaps, transactions, and ends."""

from typing import Any

import pytest
from tests.support.batches import set_offset_and_epoch
from tests.unit.client.fake_cluster import LOSE_REQUEST, LOSE_RESPONSE, NO_ANSWER, FakeCluster, Partition

from ottla.client.config import AdminConfig
from ottla.client.consumer.inline import CompletedFetch, OffsetOutOfRange, RangeRead, plain_sections
from ottla.client.errors import TimedOut, UnsupportedVersion
from ottla.client.lookups import GONE_AFTER_MS
from ottla.client.network import NetworkCore
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.records.batch import BatchView
from ottla.records.compression import CODECS
from ottla.records.control import end_txn_marker
from ottla.records.kernel import decode_records
from ottla.records.record import build_batch
from ottla.wire.messages.fetch import FetchRequest

TP = TopicPartition("t", 0)
EACH = 10  # records in a batch


class Rig:
    """A cluster with topic "t", and what a fetch of a range of it brings."""

    def __init__(self, nodes: tuple[int, ...] = (1,), *, seed: int = 1, **settings: Any) -> None:
        self.core = NetworkCore(AdminConfig(bootstrap_servers="bootstrap:9092", **settings), seed=seed)
        self.cluster = FakeCluster(self.core, nodes, seed=seed)
        self.partition = self.cluster.create("t", 1).partitions[0]
        self.chunks: list[CompletedFetch] = []

    def fill(self, batches: int, **how: Any) -> None:
        for _ in range(batches):
            add(self.partition, EACH, **how)

    def fetch(self, start: int, end: int, *, read_committed: bool = True, **more: Any) -> RangeRead:
        settings = {"max_bytes": 4096, "timeout_ms": 20_000.0, **more}
        return RangeRead(self.core, TP, start, end, read_committed=read_committed, **settings)

    def next(self, fetch: RangeRead) -> CompletedFetch | None:
        fetch.wait_from(self.cluster.now)
        assert self.cluster.run(fetch.has_news, 600_000)
        chunk = fetch.take()
        if chunk is not None:
            self.chunks.append(chunk)
        return chunk

    def rest(self, fetch: RangeRead) -> None:
        while self.next(fetch) is not None:
            pass

    def read(self, start: int, end: int, **more: Any) -> list[int]:
        """The offsets of all records in the range."""
        fetch = self.fetch(start, end, **more)
        self.rest(fetch)
        fetch.close()
        return [offset for chunk in self.chunks for offset in offsets(chunk) if start <= offset < end]

    def asked(self) -> list[int]:
        return [r.topics[0].partitions[0].fetch_offset for r in self.cluster.requests(FetchRequest)]


def add(partition: Partition, count: int, *, aborted: bool | None = None, **how: Any) -> None:
    """Append a batch; in a transaction that ends so, if `aborted` is not None."""
    values = [(1000 + n, None, b"v" * 20, ()) for n in range(count)]
    in_transaction = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
    data = build_batch(values, **(in_transaction if aborted is not None else {}), **how)
    first = put(partition, data)
    if aborted is not None:
        marker = {"producer_id": 7, "producer_epoch": 0, "coordinator_epoch": 0, "timestamp_ms": 1}
        put(partition, end_txn_marker(committed=not aborted, **marker))
    if aborted:
        partition.aborted.append((7, first))


def put(partition: Partition, data: bytearray) -> int:
    base = partition.end
    set_offset_and_epoch(data, 0, base, partition.epoch)
    partition.batches.append(data)
    return base


def offsets(chunk: CompletedFetch) -> list[int]:
    found: list[int] = []
    for buf, start, end, count, base_offset, base_timestamp, append_time in plain_sections(chunk):
        records = decode_records(buf, start, end, count, base_offset, base_timestamp, -1, append_time)
        found += [record.offset for record in records]
    return found


def faults(rig: Rig, *outcomes: Any) -> None:
    """What happens to the next fetches, one after another."""
    left = list(outcomes)

    def fault(node: int, request: Any, version: int) -> Any:
        return left.pop(0) if isinstance(request, FetchRequest) and left else None

    rig.cluster.faults.append(fault)


# -- what comes -----------------------------------------------------------------------------------------


def test_a_range_is_read_once_and_in_order() -> None:
    rig = Rig()
    rig.fill(50)
    assert rig.read(0, 500) == list(range(500))
    assert len(rig.chunks) > 1
    assert [chunk.next_offset for chunk in rig.chunks[:-1]] == [c.fetch_offset for c in rig.chunks[1:]]
    assert rig.chunks[-1].next_offset == 500


def test_a_range_that_begins_and_ends_within_batches() -> None:
    rig = Rig()
    rig.fill(20)
    assert rig.read(13, 108) == list(range(13, 108))
    assert rig.chunks[0].fetch_offset == 13
    assert rig.chunks[-1].next_offset == 108  # clamped: the next reader begins there


def test_batches_after_the_range_are_left_out() -> None:
    rig = Rig()
    rig.fill(20)
    rig.read(0, 30, max_bytes=1 << 20)
    (chunk,) = rig.chunks
    assert offsets(chunk) == list(range(30))


def test_an_empty_range_asks_nothing() -> None:
    rig = Rig()
    assert rig.read(5, 5) == []
    assert rig.cluster.seen == []


def test_the_next_fetch_is_under_way_before_a_chunk_is_handed_out() -> None:
    rig = Rig()
    rig.fill(40)
    fetch = rig.fetch(0, 400, max_bytes=500)
    chunk = rig.next(fetch)
    rig.cluster.run_for(1.5)  # the request's way
    assert chunk is not None
    assert rig.asked()[:2] == [0, chunk.next_offset]


def test_one_fetch_at_a_time_without_a_session() -> None:
    rig = Rig()
    rig.fill(40)
    rig.read(0, 400, max_bytes=500)
    requests = rig.cluster.requests(FetchRequest)
    assert {(r.session_id, r.session_epoch) for r in requests} == {(0, -1)}
    assert rig.asked() == sorted(set(rig.asked()))


def test_no_more_is_asked_for_than_the_range_is_likely_to_take() -> None:
    rig = Rig()
    rig.fill(2000)
    rig.read(0, 10_000, max_bytes=1 << 18)
    sizes = [r.topics[0].partitions[0].partition_max_bytes for r in rig.cluster.requests(FetchRequest)]
    assert sizes[0] == max(sizes) == 1 << 18
    assert len(rig.chunks[-1].data) < sizes[-1] < 1 << 18


@pytest.mark.parametrize("codec", CODECS)
def test_all_codecs(codec: str) -> None:
    rig = Rig()
    rig.fill(5, compression=CODECS[codec])
    assert rig.read(0, 50) == list(range(50))


def test_a_damaged_batch_is_found_when_its_section_is_wanted() -> None:
    rig = Rig()
    rig.fill(2)
    rig.partition.batches[1][-1] ^= 1
    with pytest.raises(KafkaError, match="offset 10 does not match its checksum"):
        rig.read(0, 20)
    assert rig.chunks
    assert len([*plain_sections(rig.chunks[0], check_crcs=False)]) == 2


def test_checksums_are_not_looked_at_if_nobody_wants_that() -> None:
    rig = Rig()
    rig.fill(2)
    rig.partition.batches[1][-10] ^= 1
    assert rig.read(0, 20, check_crcs=False) == list(range(20))


def test_the_time_of_the_log_is_told() -> None:
    rig = Rig()
    rig.fill(1, timestamp_type=1, max_timestamp=4711)
    rig.read(0, 10)
    (section,) = plain_sections(rig.chunks[0])
    assert section.log_append_time == 4711


# -- transactions ---------------------------------------------------------------------------------------


def test_aborted_records_and_markers_are_left_out() -> None:
    rig = Rig()
    rig.fill(1)  # 0..9
    rig.fill(1, aborted=True)  # 10..19, marker 20
    rig.fill(1, aborted=False)  # 21..30, marker 31
    rig.fill(1)  # 32..41
    assert rig.read(0, 42) == [*range(10), *range(21, 31), *range(32, 42)]


def test_read_uncommitted_gives_aborted_records_too() -> None:
    rig = Rig()
    rig.fill(1, aborted=True)
    rig.fill(1)
    assert rig.read(0, 21, read_committed=False) == [*range(10), *range(11, 21)]
    assert rig.chunks[0].aborted is None


def test_a_range_that_ends_with_a_marker_ends() -> None:
    rig = Rig()
    rig.fill(1, aborted=True)
    assert rig.read(0, 11) == []


def lagging(rig: Rig, field: str, ends: list[int]) -> None:
    """Answers say, one after another, that one may read so far."""

    def fault(node: int, request: Any, version: int) -> Any:
        if not isinstance(request, FetchRequest):
            return None
        response = rig.cluster.handlers[FetchRequest](node, request, version)
        data = response.responses[0].partitions[0]
        end = ends.pop(0) if len(ends) > 1 else ends[0]
        setattr(data, field, end)
        kept = [b for b in rig.partition.batches if asked_from(request) < BatchView(b).next_offset <= end]
        data.records = b"".join(map(bytes, kept))
        return response

    rig.cluster.faults.append(fault)


def asked_from(request: Any) -> int:
    offset: int = request.topics[0].partitions[0].fetch_offset
    return offset


def test_the_last_stable_offset_is_waited_for() -> None:
    rig = Rig()
    rig.fill(3)
    lagging(rig, "last_stable_offset", [10, 10, 10, 30])
    assert rig.read(0, 30) == list(range(30))


@pytest.mark.parametrize(
    ("field", "read_committed", "words"),
    [
        ("last_stable_offset", True, "last stable offset stayed at 10 for 20000 ms, .* 30: a transaction"),
        ("high_watermark", False, "high watermark stayed at 10 for 20000 ms, the range ends at 30"),
    ],
)
def test_an_end_that_does_not_come_is_told(field: str, read_committed: bool, words: str) -> None:
    rig = Rig()
    rig.fill(3)
    lagging(rig, field, [10])
    with pytest.raises(TimedOut, match=words):
        rig.read(0, 30, read_committed=read_committed)
    assert len(rig.chunks) == 1
    assert len(rig.asked()) < 1000


# -- gaps -----------------------------------------------------------------------------------------------


def test_compacted_gaps_are_passed_over() -> None:
    rig = Rig()
    rig.fill(10)
    del rig.partition.batches[3:6]
    assert rig.read(0, 100) == [*range(30), *range(60, 100)]


def test_a_range_that_ends_in_a_gap_ends() -> None:
    rig = Rig()
    rig.fill(10)
    del rig.partition.batches[3:6]
    assert rig.read(0, 45) == list(range(30))
    assert rig.chunks[-1].next_offset == 45


def test_a_range_that_is_all_gap_is_empty() -> None:
    rig = Rig()
    rig.fill(10)
    del rig.partition.batches[3:6]
    assert rig.read(35, 45) == []
    assert rig.chunks == []


def test_a_range_whose_last_records_are_gone_ends_at_the_high_watermark() -> None:
    """Nothing is there, though one may read further: asked twice, then believed."""
    rig = Rig()
    rig.fill(5)

    def emptied(node: int, request: Any, version: int) -> Any:
        if not isinstance(request, FetchRequest) or asked_from(request) < 30:
            return None
        response = rig.cluster.handlers[FetchRequest](node, request, version)
        response.responses[0].partitions[0].records = b""
        return response

    def cut(node: int, request: Any, version: int) -> Any:
        if not isinstance(request, FetchRequest):
            return None
        response = rig.cluster.handlers[FetchRequest](node, request, version)
        response.responses[0].partitions[0].records = b"".join(map(bytes, rig.partition.batches[:3]))
        return response

    rig.cluster.faults += [emptied, cut]
    assert rig.read(0, 50) == list(range(30))
    assert rig.asked() == [0, 30, 30]
    assert rig.cluster.requests(FetchRequest)[-1].max_wait_ms == 0


# -- trouble --------------------------------------------------------------------------------------------


def test_lost_connections_are_tried_again() -> None:
    rig = Rig()
    rig.fill(30)
    faults(rig, LOSE_REQUEST, None, LOSE_RESPONSE, None, LOSE_RESPONSE)
    assert rig.read(0, 300, max_bytes=1000) == list(range(300))


def test_a_broker_that_hangs_is_given_up_and_called_again() -> None:
    rig = Rig()
    rig.fill(5)
    faults(rig, NO_ANSWER)
    assert rig.read(0, 50, timeout_ms=60_000.0) == list(range(50))


def test_a_broker_that_hangs_for_longer_than_the_request_may_take_is_told() -> None:
    rig = Rig(request_timeout_ms=300_000)
    rig.fill(5)
    rig.cluster.faults.append(
        lambda node, request, _: NO_ANSWER if isinstance(request, FetchRequest) else None
    )
    with pytest.raises(TimedOut, match="nothing could be fetched at offset 0 for 20000 ms"):
        rig.read(0, 50)
    assert rig.cluster.now < 25_000


def test_a_broker_that_comes_back_is_waited_for() -> None:
    rig = Rig(socket_connection_setup_timeout_ms=1000)
    rig.fill(20)
    fetch = rig.fetch(0, 200, max_bytes=1000)
    rig.next(fetch)
    rig.cluster.stop(1)
    rig.cluster.at(8_000, lambda: rig.cluster.down.clear())
    rig.rest(fetch)
    assert [offset for chunk in rig.chunks for offset in offsets(chunk)] == list(range(200))


def test_a_broker_that_stays_away_is_told() -> None:
    rig = Rig()
    rig.fill(20)
    fetch = rig.fetch(0, 200, max_bytes=1000)
    rig.next(fetch)
    rig.cluster.stop(1)
    with pytest.raises(TimedOut, match=r"nothing could be fetched at offset .*refused"):
        rig.rest(fetch)


@pytest.mark.parametrize("hinted", [True, False])
def test_a_new_leader_is_found(hinted: bool) -> None:
    rig = Rig((1, 2))
    rig.fill(20)
    fetch = rig.fetch(0, 200, max_bytes=1000)
    rig.next(fetch)
    rig.partition.leader, rig.partition.epoch = 2, 5

    def hint(node: int, request: Any, version: int) -> Any:
        if not isinstance(request, FetchRequest) or node == 2 or not hinted:
            return None
        response = rig.cluster.handlers[FetchRequest](node, request, version)
        data = response.responses[0].partitions[0]
        data.current_leader.leader_id, data.current_leader.leader_epoch = 2, 5
        return response

    rig.cluster.faults.append(hint)
    rig.rest(fetch)
    assert [offset for chunk in rig.chunks for offset in offsets(chunk)] == list(range(200))


@pytest.mark.parametrize("offset", [5, 1000])
def test_an_offset_out_of_range_is_an_error_of_its_own(offset: int) -> None:
    rig = Rig()
    rig.fill(5)
    rig.partition.start = 10
    with pytest.raises(OffsetOutOfRange) as caught:
        rig.read(offset, 2000)
    assert (caught.value.tp, caught.value.offset) == (TP, offset)
    assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


def test_what_came_before_an_error_is_handed_out_first() -> None:
    rig = Rig()
    rig.fill(5)
    fetch = rig.fetch(0, 500, max_bytes=200)
    chunk = rig.next(fetch)
    assert chunk is not None
    rig.partition.start = 49
    assert rig.cluster.run(lambda: fetch.error is not None)
    with pytest.raises(OffsetOutOfRange, match=f"offset {chunk.next_offset} "):
        rig.rest(fetch)


def test_a_topic_that_does_not_exist_is_told_after_a_while() -> None:
    rig = Rig()
    fetch = RangeRead(
        rig.core, TopicPartition("u", 0), 0, 5, read_committed=True, max_bytes=1, timeout_ms=60_000
    )
    with pytest.raises(KafkaError, match="does not exist") as caught:
        rig.next(fetch)
    assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert rig.cluster.now < 2 * GONE_AFTER_MS


def test_a_partition_that_does_not_exist_is_told() -> None:
    rig = Rig()
    where = TopicPartition("t", 3)
    fetch = RangeRead(rig.core, where, 0, 5, read_committed=True, max_bytes=1, timeout_ms=60_000)
    with pytest.raises(KafkaError, match="does not exist"):
        rig.next(fetch)


def test_a_topic_that_is_missing_for_a_moment_is_not_gone() -> None:
    """A broker that has just started may not know it yet."""
    rig = Rig()
    rig.fill(20)
    fetch = rig.fetch(0, 200, max_bytes=1000)
    rig.next(fetch)
    topic = rig.cluster.topics.pop("t")
    rig.cluster.at(GONE_AFTER_MS / 2, lambda: rig.cluster.topics.update(t=topic))
    rig.rest(fetch)
    assert [offset for chunk in rig.chunks for offset in offsets(chunk)] == list(range(200))


def test_a_topic_made_anew_is_another_topic() -> None:
    rig = Rig()
    rig.fill(20)
    fetch = rig.fetch(0, 200, max_bytes=1000)
    rig.next(fetch)
    rig.cluster.topics["other"] = rig.cluster.topics.pop("t")
    made_anew = rig.cluster.create("t", 1).partitions[0]
    made_anew.epoch = 7
    for _ in range(20):
        add(made_anew, EACH)
    rig.cluster.topics.pop("other")
    with pytest.raises(KafkaError, match="made anew"):
        rig.rest(fetch)


def test_a_broker_without_a_common_version_is_told() -> None:
    rig = Rig()
    rig.fill(1)
    rig.cluster.ranges[1] = (0, 3)
    with pytest.raises(UnsupportedVersion):
        rig.read(0, 10)


def test_a_broker_from_before_topic_ids() -> None:
    rig = Rig()
    rig.fill(5)
    rig.cluster.ranges[1] = (4, 6)
    assert rig.read(0, 50) == list(range(50))


def test_half_a_batch_alone_is_an_error() -> None:
    rig = Rig()
    rig.fill(1)

    def cut(node: int, request: Any, version: int) -> Any:
        if not isinstance(request, FetchRequest):
            return None
        response = rig.cluster.handlers[FetchRequest](node, request, version)
        data = response.responses[0].partitions[0]
        data.records = data.records[:-1]
        return response

    rig.cluster.faults.append(cut)
    with pytest.raises(KafkaError, match="no whole batch at offset 0"):
        rig.read(0, 10)


def test_after_close_nothing_is_asked_any_more() -> None:
    rig = Rig()
    rig.fill(40)
    fetch = rig.fetch(0, 400, max_bytes=500)
    rig.next(fetch)
    fetch.close()
    asked = len(rig.asked())
    rig.cluster.run_for(10_000)
    assert len(rig.asked()) <= asked + 1  # one may have been on its way
    assert fetch not in rig.core.request_managers


def test_time_without_anybody_waiting_does_not_count() -> None:
    rig = Rig()
    rig.fill(20)
    fetch = rig.fetch(0, 200, max_bytes=500, timeout_ms=5_000.0)
    assert rig.next(fetch) is not None
    rig.cluster.now += 100_000
    assert rig.next(fetch) is not None


def test_what_was_known_of_a_topic_before_may_be_out_of_date() -> None:
    """A client outlives topics: one that was made anew before the fetch began is simply the topic."""
    rig = Rig()
    rig.fill(5)
    rig.read(0, 50)
    rig.chunks.clear()
    old = rig.cluster.topics.pop("t")
    rig.cluster.topics["other"] = old
    rig.partition = rig.cluster.create("t", 1).partitions[0]
    rig.cluster.topics.pop("other")
    rig.fill(7)
    assert rig.read(0, 70) == list(range(70))
