"""The short way of an append and the long way do the same: results, errors, bytes, producers, index entries."""

import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.storage.log_support import NOW, all_entries, open_log

from ottla.model.errors import KafkaError
from ottla.records.batch import MAX_SEQUENCE, set_max_timestamp
from ottla.records.control import end_txn_marker
from ottla.records.record import build_batch
from ottla.storage.config import LogConfig
from ottla.storage.log.log import Log
from ottla.storage.producers.verification import NOT_CHECKED, Verification
from ottla.storage.validator import AppendOrigin

configs = st.builds(
    LogConfig,
    segment_bytes=st.sampled_from([300, 1000, 1 << 30]),
    segment_ms=st.sampled_from([50, 604_800_000]),
    index_interval_bytes=st.sampled_from([0, 200]),
    segment_index_bytes=st.sampled_from([36, 10 << 20]),
    max_message_bytes=st.sampled_from([180, 1 << 20]),
    message_timestamp_before_max_ms=st.sampled_from([60, (1 << 63) - 1]),
    message_timestamp_after_max_ms=st.sampled_from([40, 3_600_000]),
    cleanup_policy=st.sampled_from([frozenset({"delete"}), frozenset({"compact"})]),
)

appends = st.fixed_dictionaries(
    {
        "count": st.integers(1, 3),
        "size": st.sampled_from([0, 10, 60]),
        "key": st.sampled_from([b"k", b"k", b"k", None]),
        "compression": st.sampled_from([0, 0, 0, 1]),
        "producer_id": st.integers(-1, 1),
        "producer_epoch": st.sampled_from([0, 0, 0, 0, 1]),
        "step": st.sampled_from([0, 0, 0, 0, 0, 0, -1, 1]),
        "transactional": st.booleans(),
        "later": st.integers(-80, 80),
        "now_later": st.integers(0, 100),
        "lie": st.sampled_from([0, 0, 0, 0, 7]),
        "leader_epoch": st.integers(0, 2),
        "kind": st.sampled_from(["data", "data", "data", "own", "marker"]),
        "coordinator_epoch": st.sampled_from([1, 1, 1, 0, 2]),
        "transaction_version": st.sampled_from([0, 1, 2]),
        "verification": st.sampled_from(["not checked", "begun", "begun", "none", "another's"]),
        "epoch_bump": st.booleans(),
        "commit": st.booleans(),
    }
)


def attempt(log: Log, data: bytearray, step: dict[str, Any], sequence: int, origin: AppendOrigin) -> object:
    try:
        result = log.append_as_leader(
            data,
            step["leader_epoch"],
            NOW + step["now_later"],
            origin=origin,
            transaction_version=step["transaction_version"],
            verification=shown(log, step, sequence),
        )
    except KafkaError as error:
        return error.code, error.message
    if step["commit"]:
        log.update_high_watermark(log.log_end_offset)
    return tuple(result)


def shown(log: Log, step: dict[str, Any], sequence: int) -> Verification | None:
    """What a batch shows; a verification that it begins stays in force if the batch is not appended."""
    if step["verification"] == "not checked":
        return NOT_CHECKED
    if step["verification"] == "none" or not step["transactional"]:
        return None
    proof = log.start_verification(
        step["producer_id"],
        sequence,
        step["producer_epoch"],
        supports_epoch_bump=step["epoch_bump"],
        now_ms=NOW,
    )
    return proof if step["verification"] == "begun" else Verification(sequence, 0, False, NOW)


def state(log: Log) -> object:
    segments = [
        (s.base_offset, s.path.read_bytes(), all_entries(s.offset_index), all_entries(s.time_index))
        for s in log.segments
    ]
    offsets = (log.log_end_offset, log.high_watermark, log.last_stable_offset, log.epochs.latest)
    entries = log.producers.entries
    producers = {pid: (entry.to_snapshot(), tuple(entry.batches)) for pid, entry in entries.items()}
    verifications = {
        pid: (proof.epoch, proof.lowest_sequence, proof.supports_epoch_bump)
        for pid, proof in log.producers.verifications.in_force.items()
    }
    undecided = (
        min(log.producers.ongoing, default=None),
        log._first_unstable,
        log.producers.first_unstable_offset,
    )
    aborted = log.aborted_transactions(0, log.log_end_offset)
    return segments, offsets, producers, verifications, undecided, aborted, log.producers.map_end_offset


@settings(max_examples=100, deadline=None)
@given(config=configs, steps=st.lists(appends, max_size=15), first=st.sampled_from([0, MAX_SEQUENCE - 1]))
def test_both_ways_do_the_same(config: LogConfig, steps: list[dict[str, Any]], first: int) -> None:
    root = Path(tempfile.mkdtemp(prefix="ottla-append-"))
    try:
        short, long = open_log(root / "short", config), open_log(root / "long", config)
        long._plain_bytes = -1
        for step in steps:
            run_step(short, long, step, first)
            assert state(short) == state(long)
        short.close_handlers()
        long.close_handlers()
    finally:
        shutil.rmtree(root)


def next_sequence(log: Log, producer_id: int, epoch: int, first: int) -> int:
    entry = log.producers.entries.get(producer_id)
    if entry is None:
        return first
    return (entry.last_sequence + 1) % (MAX_SEQUENCE + 1) if entry.epoch == epoch else 0


def run_step(short: Log, long: Log, step: dict[str, Any], first: int) -> None:
    pid, epoch = step["producer_id"], step["producer_epoch"]
    origin = AppendOrigin.CLIENT if step["kind"] == "data" else AppendOrigin.COORDINATOR
    sequence = -1
    if step["kind"] == "marker" and pid >= 0:
        data = end_txn_marker(
            committed=bool(step["count"] % 2),
            producer_id=pid,
            producer_epoch=epoch,
            coordinator_epoch=step["coordinator_epoch"],
            timestamp_ms=NOW,
        )
    else:
        if pid >= 0 and origin is AppendOrigin.CLIENT:
            sequence = min(max(next_sequence(short, pid, epoch, first) + step["step"], 0), MAX_SEQUENCE)
        data = build_batch(
            [(NOW + step["later"] + i, step["key"], b"v" * step["size"], ()) for i in range(step["count"])],
            producer_id=pid,
            producer_epoch=epoch if pid >= 0 else -1,
            base_sequence=sequence,
            transactional=bool(step["transactional"]) and pid >= 0,
            compression=step["compression"],
        )
        if step["lie"] and not step["compression"]:
            set_max_timestamp(data, 0, 0, NOW + step["lie"])
    results = [attempt(log, bytearray(data), step, sequence, origin) for log in (short, long)]
    assert results[0] == results[1]
