"""A quorum of one voter in a directory, for tests."""

from pathlib import Path

from tests.support.clock import ManualClock

from ottla.metadata import records as r
from ottla.metadata.registrations import Endpoint
from ottla.metadata.serde import encode_records
from ottla.raft.driver import RaftDriver, RaftOptions
from ottla.raft.formatting import format_metadata, standalone_voters
from ottla.raft.metadata_log import MetadataLogConfig
from ottla.raft.voters import SUPPORTED_KRAFT_VERSIONS, ReplicaKey, VoterNode

CLUSTER_ID = "cluster"
DIRECTORY_ID = bytes(range(16))
LISTENERS = (Endpoint("CONTROLLER", "127.0.0.1", 9093),)
KEY = ReplicaKey(1, DIRECTORY_ID)


class Listener:
    """Notes what the driver tells."""

    def __init__(self) -> None:
        self.high_watermarks: list[int] = []
        self.epochs: list[int] = []
        self.resigned = 0
        self.failures: list[Exception] = []

    def on_commit(self, high_watermark: int) -> None:
        self.high_watermarks.append(high_watermark)

    def on_leader(self, epoch: int) -> None:
        self.epochs.append(epoch)

    def on_resigned(self) -> None:
        self.resigned += 1

    def on_failure(self, error: Exception) -> None:
        self.failures.append(error)


def format_directory(directory: Path, dynamic: bool = True) -> None:
    voters = standalone_voters(1, DIRECTORY_ID, LISTENERS) if dynamic else None
    format_metadata(directory, now_ms=1, voters=voters)


def driver(
    directory: Path,
    clock: ManualClock | None = None,
    config: MetadataLogConfig | None = None,
    listeners: tuple[Endpoint, ...] = LISTENERS,
    key: ReplicaKey = KEY,
) -> RaftDriver:
    options = RaftOptions(
        cluster_id=CLUSTER_ID,
        metadata_dir=directory,
        local=VoterNode(key, listeners, SUPPORTED_KRAFT_VERSIONS),
        log_config=config or MetadataLogConfig(),
    )
    return RaftDriver(options, clock or ManualClock(1_000_000))


def topic(name: str) -> r.TopicRecord:
    return r.TopicRecord(name=name, topic_id=name.encode().ljust(16, b"\0"))


def frames(*records: r.MetadataRecord) -> list[list[bytes]]:
    return [encode_records(records, 30)]


MV = r.FeatureLevelRecord(name="metadata.version", feature_level=30)
