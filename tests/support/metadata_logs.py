"""The metadata logs of a cluster's voters, side by side."""

from __future__ import annotations

from pathlib import Path

from tests.interop.process import wait_until
from tests.support.cluster import Processes

from ottla.records.batch import ATTRIBUTES_OFFSET, CRC_OFFSET, compute_crc, iter_batches

DIRECTORY = "__cluster_metadata-0"
# Formatting writes it, with nothing but the voters.
BOOTSTRAP_CHECKPOINT = f"{0:020d}-{0:010d}.checkpoint"


def segments(data_dir: Path) -> list[Path]:
    """Oldest first."""
    return sorted((data_dir / DIRECTORY).glob("*.log"))


def checkpoints(data_dir: Path) -> list[Path]:
    """The snapshots that hold anything, oldest first."""
    found = (data_dir / DIRECTORY).glob("*.checkpoint")
    return sorted(path for path in found if path.name != BOOTSTRAP_CHECKPOINT)


def fit_checksum(data: bytearray, position: int, size: int) -> None:
    """A batch was changed: its checksum says so no longer."""
    crc = compute_crc(data, position, size)
    data[position + CRC_OFFSET : position + ATTRIBUTES_OFFSET] = crc.to_bytes(4, "big")


def batches(data_dir: Path, before: int) -> dict[int, bytes]:
    """Each batch that begins before an offset, by its own base offset."""
    found: dict[int, bytes] = {}
    for path in segments(data_dir):
        for batch in iter_batches(path.read_bytes(), allow_partial=True):
            if batch.base_offset < before:
                found[batch.base_offset] = bytes(batch.buf[batch.pos : batch.end])
    return found


def check_same_logs(cluster: Processes, timeout_s: float = 60.0) -> int:
    """What is committed lies on every voter, byte for byte; how many batches that is."""
    with cluster.admin() as admin:

        def all_have_it() -> bool:
            quorum = admin.describe_quorum()
            return all(voter.log_end_offset >= quorum.high_watermark for voter in quorum.voters)

        wait_until(all_have_it, timeout_s, "every voter to have what is committed")
        committed = admin.describe_quorum().high_watermark
        wait_until(all_have_it, timeout_s, "every voter to have what is committed")
    logs = {n.node_id: batches(n.data_dir, committed) for n in cluster.nodes.values() if n.is_controller}
    first = next(iter(logs.values()))
    for node_id, log in logs.items():
        # A snapshot may have taken the place of a log's beginning.
        both = log.keys() & first.keys()
        assert max(log) == max(first) == max(both), node_id
        assert [at for at in sorted(both) if log[at] != first[at]] == [], node_id
        assert {at for at in log.keys() ^ first.keys() if at > min(both)} == set(), node_id
    return len(first)
