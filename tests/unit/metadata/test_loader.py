"""Following the log: transactions count whole or not at all, and Kafka's own log is understood to the byte."""

from pathlib import Path

import pytest

from ottla.metadata import records as r
from ottla.metadata.delta import MetadataError
from ottla.metadata.image import EMPTY_IMAGE, ResourceType
from ottla.metadata.loader import MetadataLoader
from ottla.metadata.serde import (
    build_record_batch,
    decode_frame,
    encode_frame,
    read_record_batch,
    record_version,
)
from ottla.records.batch import iter_batches
from ottla.records.record import read_records

APACHE_LOG = Path(__file__).parent / "apache-4.3.1" / "00000000000000000000.log"
BEGIN, END, ABORT = r.BeginTransactionRecord(), r.EndTransactionRecord(), r.AbortTransactionRecord()


def topic(name: str) -> r.TopicRecord:
    return r.TopicRecord(name=name, topic_id=name.encode().ljust(16, b"\0"))


def test_a_transaction_shows_when_it_has_ended() -> None:
    loader = MetadataLoader(EMPTY_IMAGE)
    loader.replay([topic("a"), BEGIN, topic("b")], 0, 1, 10)
    loader.publish()
    assert set(loader.image.topics) == {"a"}
    assert loader.transaction_start_offset == 1
    loader.replay([topic("c"), END, topic("d")], 3, 1, 11)
    delta = loader.publish()
    assert set(loader.image.topics) == {"a", "b", "c", "d"}
    assert {t.name for t in delta.created_topics} == {"b", "c", "d"}
    assert loader.transaction_start_offset == -1
    assert (loader.image.offset, loader.image.timestamp_ms) == (5, 11)


def test_an_aborted_transaction_never_was() -> None:
    loader = MetadataLoader(EMPTY_IMAGE)
    loader.replay([BEGIN, topic("b"), ABORT, topic("c")], 0, 1, 10)
    loader.publish()
    assert set(loader.image.topics) == {"c"}


@pytest.mark.parametrize("records", [[END], [ABORT], [BEGIN, BEGIN]])
def test_transactions_out_of_order_are_refused(records: list[r.MetadataRecord]) -> None:
    with pytest.raises(MetadataError):
        MetadataLoader(EMPTY_IMAGE).replay(records, 0, 1, 10)


def test_a_fork_leaves_the_original_alone() -> None:
    loader = MetadataLoader(EMPTY_IMAGE)
    loader.replay([BEGIN, topic("a")], 0, 1, 10)
    loader.publish()
    other = loader.fork()
    other.replay([END], 2, 1, 11)
    other.publish()
    assert set(other.image.topics) == {"a"}
    assert not loader.image.topics
    loader.replay([ABORT], 2, 1, 11)
    loader.publish()
    assert not loader.image.topics


def test_kafkas_log_gives_the_cluster_it_had() -> None:
    loader = MetadataLoader(EMPTY_IMAGE)
    for batch in iter_batches(APACHE_LOG.read_bytes()):
        assert batch.crc_ok()
        if not batch.is_control:
            records = read_record_batch(batch)
            loader.replay(records, batch.base_offset, batch.partition_leader_epoch, batch.max_timestamp)
    loader.publish()
    image = loader.image
    assert set(image.topics) == {"b.c"}
    assert image.features["metadata.version"] == 30
    assert image.config(ResourceType.TOPIC, "b.c") == {"retention.ms": "1234", "min.insync.replicas": "1"}
    assert image.config(ResourceType.BROKER, "") == {"min.insync.replicas": "1", "log.cleaner.threads": "2"}
    state = image.partition("b.c", 0)
    assert state is not None
    # After a clean shutdown of the only broker: nobody leads, and it is the one that may.
    assert (state.leader, state.isr, state.elr) == (-1, (), (1,))
    assert image.brokers[1].fenced
    assert image.controllers[1].listeners["CONTROLLER"].host == "127.0.0.1"


def test_our_batches_are_kafkas_to_the_byte() -> None:
    data = APACHE_LOG.read_bytes()
    compared = 0
    for batch in iter_batches(data):
        if batch.is_control:
            continue
        frames = [record.value for record in read_records(batch)]
        records = [decode_frame(frame)[0] for frame in frames if frame is not None]
        ours = build_record_batch(
            [encode_frame(record, record_version(record, 30)) for record in records],
            base_offset=batch.base_offset,
            leader_epoch=batch.partition_leader_epoch,
            now_ms=batch.base_timestamp,
        )
        assert bytes(ours) == data[batch.pos : batch.end]
        compared += 1
    assert compared > 10
