"""A quorum of one voter in a directory, for tests."""

from collections.abc import Iterable
from pathlib import Path

from tests.support.clock import ManualClock

from ottla.metadata import records as r
from ottla.metadata.image import EMPTY_IMAGE, ClusterImage
from ottla.metadata.loader import MetadataLoader
from ottla.metadata.registrations import Endpoint
from ottla.metadata.serde import encode_records, read_record_batch
from ottla.metadata.snapshot import SnapshotId
from ottla.raft.driver import NodeAsker, RaftDriver, RaftOptions
from ottla.raft.formatting import format_metadata, standalone_voters
from ottla.raft.metadata_log import MetadataLog, MetadataLogConfig
from ottla.raft.snapshots import SnapshotReader
from ottla.raft.voters import SUPPORTED_KRAFT_VERSIONS, ReplicaKey, VoterNode, VoterSet
from ottla.records.batch import BatchView

CLUSTER_ID = "cluster"
DIRECTORY_ID = bytes(range(16))
LISTENERS = (Endpoint("CONTROLLER", "127.0.0.1", 9093),)
KEY = ReplicaKey(1, DIRECTORY_ID)


class Listener:
    """Notes what the driver tells, and keeps the image of what is committed."""

    def __init__(self, raft: RaftDriver) -> None:
        self.raft = raft
        self.loader = MetadataLoader(EMPTY_IMAGE)
        self.snapshots: list[SnapshotId] = []
        self.high_watermarks: list[int] = []
        self.epochs: list[int] = []
        self.leaders: list[tuple[int, int]] = []
        self.resigned = 0
        self.failures: list[Exception] = []

    @property
    def image(self) -> ClusterImage:
        return self.loader.image

    def on_snapshot(self, snapshot: SnapshotId) -> None:
        self.snapshots.append(snapshot)
        self.loader = MetadataLoader(EMPTY_IMAGE)
        replay_snapshot(self.loader, snapshot, self.raft.read_checkpoint(snapshot))

    def on_commit(self, high_watermark: int) -> None:
        replay_batches(self.loader, self.raft.committed(self.image.offset + 1))
        self.high_watermarks.append(high_watermark)

    def on_leader(self, epoch: int) -> None:
        self.epochs.append(epoch)

    def on_resigned(self) -> None:
        self.resigned += 1

    def on_leader_changed(self, leader_id: int, epoch: int) -> None:
        self.leaders.append((leader_id, epoch))

    def on_failure(self, error: Exception) -> None:
        self.failures.append(error)


def replay_snapshot(loader: MetadataLoader, snapshot: SnapshotId, reader: SnapshotReader) -> None:
    place = snapshot.end_offset - 1, snapshot.epoch, reader.last_contained_log_timestamp_ms
    for record in reader.records:
        loader.replay([record], *place)
    loader.advance(*place)
    loader.publish()


def replay_batches(loader: MetadataLoader, batches: Iterable[BatchView]) -> None:
    for batch in batches:
        place = batch.partition_leader_epoch, batch.max_timestamp
        if batch.is_control:
            loader.advance(batch.last_offset, *place)
        else:
            loader.replay(read_record_batch(batch), batch.base_offset, *place)
    loader.publish()


def image_in(log: MetadataLog, *, with_snapshot: bool = True) -> ClusterImage:
    """The image of all that a log holds, committed or not; without its snapshots, if it still has all of it."""
    loader = MetadataLoader(EMPTY_IMAGE)
    snapshot = log.latest_snapshot if with_snapshot else None
    if snapshot is not None and snapshot.end_offset > 0:
        replay_snapshot(loader, snapshot, SnapshotReader(log.snapshot_path(snapshot)))
    replay_batches(loader, log.batches(loader.image.offset + 1))
    return loader.image


def format_directory(directory: Path, dynamic: bool = True) -> None:
    voters = standalone_voters(1, DIRECTORY_ID, LISTENERS) if dynamic else None
    format_metadata(directory, now_ms=1, voters=voters)


def driver(
    directory: Path,
    clock: ManualClock | None = None,
    config: MetadataLogConfig | None = None,
    listeners: tuple[Endpoint, ...] = LISTENERS,
    key: ReplicaKey = KEY,
    static_voters: VoterSet | None = None,
    append_linger_ms: int = 0,
    client: NodeAsker | None = None,
) -> RaftDriver:
    options = RaftOptions(
        cluster_id=CLUSTER_ID,
        metadata_dir=directory,
        local=VoterNode(key, listeners, SUPPORTED_KRAFT_VERSIONS),
        static_voters=static_voters,
        append_linger_ms=append_linger_ms,
        log_config=config or MetadataLogConfig(),
    )
    return RaftDriver(options, clock or ManualClock(1_000_000), client)


def topic(name: str) -> r.TopicRecord:
    return r.TopicRecord(name=name, topic_id=name.encode().ljust(16, b"\0"))


def frames(*records: r.MetadataRecord) -> list[list[bytes]]:
    return [encode_records(records, 30)]


MV = r.FeatureLevelRecord(name="metadata.version", feature_level=30)
