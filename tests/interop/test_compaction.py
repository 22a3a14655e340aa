"""The same log cleaned by Apache's cleaner and by ours: the same batches, records and transaction index are left."""

import asyncio
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from tests.interop.apache import ApacheKafka
from tests.interop.process import wait_until

from ottla.model.clock import SystemClock
from ottla.model.ids import TopicPartition
from ottla.records.batch import BatchView, iter_batches
from ottla.records.record import read_records
from ottla.storage.cleaner.process import CleanerProcess
from ottla.storage.config import LogConfig
from ottla.storage.dirs.checkpoints import parse_offsets
from ottla.storage.log_manager import LogManager

TOPIC = "state"
TP = TopicPartition(TOPIC, 0)
SEGMENT_BYTES = 1 << 20
KEYS = 60
DELETE_RETENTION_MS = 500

pytestmark = pytest.mark.interop


def produce_everything(address: str, seed: int) -> None:
    """Keys overwritten and deleted, every codec, idempotent producers, transactions committed and aborted."""
    rng = random.Random(seed)
    plain = [
        Producer({"bootstrap.servers": address, "compression.type": codec, "linger.ms": 5})
        for codec in ("none", "gzip", "snappy", "lz4", "zstd")
    ]
    idempotent = Producer({"bootstrap.servers": address, "enable.idempotence": True, "linger.ms": 5})
    transactional = [
        Producer({"bootstrap.servers": address, "transactional.id": f"writer-{i}", "linger.ms": 5})
        for i in range(2)
    ]
    for producer in transactional:
        producer.init_transactions(30)
    for round_ in range(60):
        send(rng, rng.choice([*plain, idempotent]))
        producer = transactional[round_ % 2]
        producer.begin_transaction()
        send(rng, producer)
        if rng.random() < 0.5:
            producer.commit_transaction(30)
        else:
            producer.abort_transaction(30)


def send(rng: random.Random, producer: Producer) -> None:
    for _ in range(rng.randrange(5, 40)):
        key = b"key-%d" % rng.randrange(KEYS)
        value = None if rng.random() < 0.1 else rng.randbytes(rng.randrange(10, 1500))
        producer.produce(TOPIC, value, key)
    producer.flush(30)


def cleaned_up_to(data: Path) -> int:
    path = data / "cleaner-offset-checkpoint"
    return parse_offsets(path.read_bytes(), str(path)).get(TP, 0) if path.exists() else 0


def clean_by_apache(data: Path, upto: int) -> None:
    with ApacheKafka(data, {"log.cleaner.backoff.ms": 50}) as kafka:
        wait_until(lambda: cleaned_up_to(data) >= upto, 60.0, "Apache's cleaner")
        assert kafka.is_running()


async def clean_by_ottla(data: Path) -> None:
    config = LogConfig(
        cleanup_policy=frozenset({"compact"}),
        segment_bytes=SEGMENT_BYTES,
        min_cleanable_dirty_ratio=0.001,
        delete_retention_ms=DELETE_RETENTION_MS,
    )
    manager = LogManager([data], SystemClock())
    await manager.load(lambda topic: config if topic == TOPIC else LogConfig())
    log = manager.current_logs[TP]
    log.update_high_watermark(log.log_end_offset)
    process = CleanerProcess()
    while await manager.cleaner.clean_dirtiest(process):
        pass
    process.close()
    await manager.shutdown()


def segments(data: Path) -> dict[str, list[dict[str, Any]]]:
    """Every batch of every segment file of the topic."""
    found = {}
    for path in sorted((data / f"{TOPIC}-0").glob("*.log")):
        content = path.read_bytes()
        found[path.name] = [describe(batch) for batch in iter_batches(content)]
    return found


def describe(batch: BatchView) -> dict[str, Any]:
    """Everything but the compressor's taste."""
    return {
        "offsets": (batch.base_offset, batch.last_offset),
        "epoch": batch.partition_leader_epoch,
        "attributes": batch.attributes,
        "base_timestamp": None if batch.delete_horizon_ms is not None else batch.base_timestamp,
        "max_timestamp": batch.max_timestamp,
        "horizon": batch.delete_horizon_ms,
        "producer": (batch.producer_id, batch.producer_epoch, batch.base_sequence),
        "crc": batch.crc_ok(),
        "records": read_records(batch),
    }


def clean_both(data: Path, work: Path) -> Path:
    """Cleans a copy by each and compares; returns Apache's copy."""
    before = segments(data)
    upto = max(int(name.split(".")[0]) for name in before)
    apache, ottla = work / "apache", work / "ottla"
    shutil.copytree(data, apache)
    shutil.copytree(data, ottla)
    clean_by_apache(apache, upto)
    asyncio.run(clean_by_ottla(ottla))
    assert cleaned_up_to(ottla) == cleaned_up_to(apache) == upto > 0
    ours, theirs = segments(ottla), segments(apache)
    assert list(ours) == list(theirs)
    assert without_horizons(ours) == without_horizons(theirs)
    assert count(ours) < count(before)
    assert [transaction_index(ottla, name) for name in ours] == [
        transaction_index(apache, name) for name in ours
    ]
    return apache


def without_horizons(found: dict[str, list[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    """A horizon set in this cleaning differs with its moment; that there is one does not."""
    return {
        name: [{**batch, "horizon": batch["horizon"] is not None} for batch in batches]
        for name, batches in found.items()
    }


def count(found: dict[str, list[dict[str, Any]]]) -> int:
    return sum(len(batches) for batches in found.values())


def test_both_cleaners_leave_the_same_log(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with ApacheKafka(data, {"log.cleaner.enable": "false"}) as kafka:
        settings = {
            "cleanup.policy": "compact",
            "segment.bytes": SEGMENT_BYTES,
            "min.cleanable.dirty.ratio": "0.001",
            "delete.retention.ms": DELETE_RETENTION_MS,
        }
        configs = [word for name, value in settings.items() for word in ("--config", f"{name}={value}")]
        kafka.tool("TopicCommand", "--create", "--topic", TOPIC, "--partitions", "1", *configs)
        produce_everything(kafka.address, seed=20)
    cleaned = clean_both(data, tmp_path / "first")

    # The second time there is a clean part with tombstones and markers whose time has come, and empty batches.
    with ApacheKafka(cleaned, {"log.cleaner.enable": "false"}) as kafka:
        produce_everything(kafka.address, seed=21)
    horizons = [b["horizon"] for batches in segments(cleaned).values() for b in batches if b["horizon"]]
    assert horizons
    assert max(horizons) < SystemClock().now_ms()
    clean_both(cleaned, tmp_path / "second")


def transaction_index(data: Path, log_name: str) -> bytes:
    path = (data / f"{TOPIC}-0" / log_name).with_suffix(".txnindex")
    return path.read_bytes() if path.exists() else b""
