"""Batches built and read, compared with what Java, kafka-python and aiokafka build."""

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AioBatch
from kafka.record.default_records import DefaultRecordBatchBuilder
from tests.unit.records.java_vectors import JAVA, RECORDS

from ottla.model.errors import ErrorCode, KafkaError
from ottla.records.batch import BatchView
from ottla.records.compression import CODECS
from ottla.records.record import InvalidRecordError, build_batch, read_records

JAVA_FIELDS = {"base_offset": 42, "producer_id": 7, "producer_epoch": 3, "leader_epoch": 9}
pytestmark = pytest.mark.usefixtures("on_kernel")


@pytest.mark.parametrize("name", ["none", "snappy", "lz4"])
def test_builds_what_java_builds(name: str) -> None:
    ours = build_batch(RECORDS, compression=CODECS[name], base_sequence=2**31 - 2, **JAVA_FIELDS)
    assert ours == JAVA[name]


def test_builds_javas_transactional_and_append_time_batches() -> None:
    fields = JAVA_FIELDS | {"base_offset": 100, "base_sequence": 0, "transactional": True}
    assert build_batch(RECORDS, **fields) == JAVA["transactional"]
    ours = build_batch(
        RECORDS, base_offset=5, timestamp_type=1, max_timestamp=1_800_000_000_000, leader_epoch=4
    )
    assert ours == JAVA["append_time"]


@pytest.mark.parametrize("name", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_reads_what_java_built(name: str) -> None:
    records = read_records(BatchView(JAVA[name]))
    assert [(r.timestamp, r.key, r.value, r.headers) for r in records] == [
        (timestamp, key, value, tuple(headers)) for timestamp, key, value, headers in RECORDS
    ]
    assert [r.offset for r in records] == [42, 43, 44, 45, 46]
    assert [r.sequence for r in records] == [2**31 - 2, 2**31 - 1, 0, 1, 2]


def test_append_time_is_every_records_timestamp() -> None:
    assert {r.timestamp for r in read_records(BatchView(JAVA["append_time"]))} == {1_800_000_000_000}


@pytest.mark.parametrize("codec", [0, 1])
def test_kafka_python_builds_the_same(codec: int) -> None:
    theirs = DefaultRecordBatchBuilder(2, codec, True, 7, 3, 10, 1 << 20)
    for offset, (timestamp, key, value, headers) in enumerate(RECORDS):
        assert theirs.append(offset, timestamp, key, value, list(headers)) is not None
    built = bytes(theirs.build())
    ours = build_batch(
        RECORDS, compression=codec, producer_id=7, producer_epoch=3, base_sequence=10, transactional=True
    )
    # The leader epoch is the broker's to write, so clients put there what they like; no CRC covers it.
    if codec == 0:
        assert bytes(ours[:12] + ours[16:]) == built[:12] + built[16:]
    assert read_records(BatchView(built)) == read_records(BatchView(ours))


@pytest.mark.parametrize("codec", range(5))
def test_aiokafka_reads_ours(codec: int) -> None:
    batch = AioBatch(bytes(build_batch(RECORDS, compression=codec, base_offset=42)))
    assert batch.validate_crc()
    assert [(r.offset, r.timestamp, r.key, r.value) for r in batch] == [
        (42 + i, timestamp, key, value) for i, (timestamp, key, value, _) in enumerate(RECORDS)
    ]


def test_compacted_offsets() -> None:
    data = build_batch(RECORDS[:2], base_offset=10, offset_deltas=[3, 5], last_offset_delta=9)
    view = BatchView(data)
    assert (view.base_offset, view.last_offset, view.records_count) == (10, 19, 2)
    assert [r.offset for r in read_records(view)] == [13, 15]


def test_delete_horizon_takes_the_place_of_the_base_timestamp() -> None:
    view = BatchView(build_batch(RECORDS, delete_horizon_ms=2_000_000_000_000))
    assert view.delete_horizon_ms == view.base_timestamp == 2_000_000_000_000
    assert [r.timestamp for r in read_records(view)] == [record[0] for record in RECORDS]


def test_an_emptied_batch_has_no_records_in_any_codec() -> None:
    assert read_records(BatchView(JAVA["kept_none"])) == []
    data = bytearray(JAVA["kept_none"])
    data[22] |= 4
    assert read_records(BatchView(data)) == []


@pytest.mark.parametrize("codec", range(1, 5))
def test_decompression_is_bounded(codec: int) -> None:
    data = build_batch([(0, None, bytes(100_000), ())], compression=codec)
    with pytest.raises(KafkaError) as caught:
        read_records(BatchView(data), max_size=100_000)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
    assert len(read_records(BatchView(data), max_size=100_100)) == 1


def test_broken_records_raise_with_their_index() -> None:
    data = build_batch(RECORDS)
    data[60] = 4
    with pytest.raises(InvalidRecordError, match="bytes remain") as caught:
        read_records(BatchView(data))
    assert caught.value.index == 4
