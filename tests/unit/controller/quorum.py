"""The quorum under a controller in a directory: RaftDriver by the interface that controllers and loaders know."""

from collections.abc import Iterator
from pathlib import Path

from tests.support.clock import ManualClock
from tests.unit.raft.support import CLUSTER_ID, KEY, LISTENERS

from ottla.metadata.snapshot import Checkpoint, SnapshotId, read_checkpoint
from ottla.raft.driver import RaftDriver, RaftListener, RaftOptions
from ottla.raft.metadata_log import MetadataLogConfig
from ottla.raft.voters import SUPPORTED_KRAFT_VERSIONS, VoterNode
from ottla.records.batch import BatchView


class SoleVoter(RaftDriver):
    """A quorum of one: all that is in the log when it starts is committed with the start of its epoch."""

    async def start(self, listener: RaftListener) -> None:
        if self.log.latest_snapshot is not None:
            listener.on_snapshot(self.log.latest_snapshot)  # type: ignore[attr-defined]
        await super().start(listener)

    def committed(self, offset: int) -> Iterator[BatchView]:
        for batch in self.log.batches(offset):
            if batch.next_offset > self.state.high_watermark:
                return
            yield batch

    def read_checkpoint(self, snapshot: SnapshotId) -> Checkpoint:
        return read_checkpoint(self.log.snapshot_path(snapshot))

    async def upgrade_kraft_version(self, level: int, *, validate_only: bool = False) -> int | None:
        assert level == self.kraft_version
        return None


def quorum(
    directory: Path, clock: ManualClock | None = None, config: MetadataLogConfig | None = None
) -> SoleVoter:
    options = RaftOptions(
        cluster_id=CLUSTER_ID,
        metadata_dir=directory,
        local=VoterNode(KEY, LISTENERS, SUPPORTED_KRAFT_VERSIONS),
        log_config=config or MetadataLogConfig(),
    )
    return SoleVoter(options, clock or ManualClock(1_000_000))
