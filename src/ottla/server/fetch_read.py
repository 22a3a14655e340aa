"""Reading for fetches: from wanted partitions to slices of log files, within the request's limits.

As in Kafka the first partition that has anything gives at least one batch even if that is larger than every
limit, so that a consumer always gets on; after that the limits are hard.

A slice may lie in pages that are not in memory. Sending it would stall the loop on the disk, so a range that is
not warm is first read in a thread (`warm_up`), and then sent from the page cache like any other. The same goes for
the batch headers by which a slice is found (`ColdReadError`).
"""

import os
from typing import NamedTuple

from ottla.model.errors import ErrorCode, KafkaError
from ottla.replication.partition import Partition
from ottla.replication.replica_manager import ReplicaManager
from ottla.storage.errors import OutOfFilesError
from ottla.storage.open_files import open_files
from ottla.storage.slices import ColdSliceError, LogSlice
from ottla.storage.txnindex import AbortedTransaction
from ottla.wire.fast_fetch import Wanted

# The kernel reads ahead in windows about this large: one resident page in it stands for the rest.
PROBE_STRIDE_BYTES = 256 * 1024
WARM_UP_CHUNK_BYTES = 1024 * 1024
UNKNOWN = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
_CAN_PROBE = hasattr(os, "RWF_NOWAIT") and hasattr(os, "preadv")
_PROBE = [bytearray(1)]  # nobody looks at what is read


class EpochEnd(NamedTuple):
    """Where the log of a fetcher parts from ours (KIP-595)."""

    epoch: int
    end_offset: int


class ColdReadError(Exception):
    """A fetch cannot be answered without waiting for the disk; `slices` are to be warmed up before the next try."""

    def __init__(self, slices: list[LogSlice]) -> None:
        super().__init__(f"{len(slices)} reads are cold")
        self.slices = slices


class PartitionRead(NamedTuple):
    """What a fetch finds in one partition."""

    wanted: Wanted
    error_code: int
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted: list[AbortedTransaction] | None = None
    diverging: EpochEnd | None = None
    slice: LogSlice | None = None
    current_leader: tuple[int, int] | None = None
    preferred_read_replica: int = -1
    snapshot: tuple[int, int] | None = None

    @property
    def size_bytes(self) -> int:
        return 0 if self.slice is None else self.slice.length

    @property
    def decides(self) -> bool:
        """Is there something to tell that cannot wait for more data?"""
        return self.error_code != ErrorCode.NONE or self.diverging is not None


def read_partitions(
    replicas: ReplicaManager,
    wanted: list[Wanted],
    max_bytes: int,
    read_committed: bool,
    replica_id: int,
    wait: bool = True,
    total: int = 0,
) -> tuple[list[PartitionRead], int]:
    """Read each partition in turn while the budget lasts; the reads, and `total` with how many bytes they come to.

    Without `wait` ColdReadError has what must be in memory first, if anything.
    """
    reads: list[PartitionRead] = []
    cold: list[LogSlice] = []
    files = 0
    for item in wanted:
        try:
            read = read_partition(
                replicas, item, max_bytes - total, read_committed, total == 0, replica_id, wait
            )
        except ColdSliceError as error:
            cold.append(error.slice)
            continue
        reads.append(read)
        total += read.size_bytes
        if read.slice is not None:
            files += 1
            if files >= open_files.files_a_fetch:
                total = max(
                    total, max_bytes
                )  # as if that was all: the others' turn comes with the next fetch
    if cold:
        raise ColdReadError(cold)
    return reads, total


def read_partition(
    replicas: ReplicaManager,
    wanted: Wanted,
    budget_bytes: int,
    read_committed: bool,
    at_least_one: bool,
    replica_id: int,
    wait: bool = True,
) -> PartitionRead:
    """Read one partition; an error is a result like another."""
    try:
        partition = replicas.leader(wanted.topic, wanted.index)
        error = partition.check_leader(wanted.current_leader_epoch)
        if error:
            raise KafkaError(error)
        if replica_id >= 0:
            _require_follower(partition, wanted, replica_id)
        return _read(partition, wanted, budget_bytes, read_committed, at_least_one, wait)
    except KafkaError as error:
        # A partition that nobody knows is told with an empty list of transactions, all other errors with none.
        return PartitionRead(wanted, error.code, aborted=[] if error.code in UNKNOWN else None)


def _read(
    partition: Partition,
    wanted: Wanted,
    budget_bytes: int,
    read_committed: bool,
    at_least_one: bool,
    wait: bool,
) -> PartitionRead:
    log = partition.log
    diverging = _diverging(partition, wanted) if wanted.last_fetched_epoch >= 0 else None
    offset = wanted.fetch_offset
    if diverging is None and not log.log_start_offset <= offset <= log.log_end_offset:
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
    high_watermark = log.high_watermark
    stable = log.last_stable_offset
    bound = stable if read_committed else high_watermark
    size = min(wanted.max_bytes, budget_bytes)
    found: LogSlice | None = None
    if diverging is None and offset < bound and (size > 0 or at_least_one):
        try:
            found = log.read(offset, max(size, 0), bound, min_one_message=at_least_one, wait=wait)
        except OutOfFilesError:
            if at_least_one:
                raise
            found = None  # what is being sent holds the descriptors: its turn comes with another fetch
        if found is not None and found.length == 0:
            found = None
    aborted: list[AbortedTransaction] | None = None
    if read_committed:
        aborted = log.aborted_transactions(offset, found.next_offset) if found is not None else []
    return PartitionRead(
        wanted, ErrorCode.NONE, high_watermark, stable, log.log_start_offset, aborted, diverging, found
    )


def _require_follower(partition: Partition, wanted: Wanted, replica_id: int) -> None:
    """A broker may only follow what is assigned to it; one that knows the epoch hears of it a moment later."""
    if not partition.has_follower(replica_id):
        knows_epoch = wanted.current_leader_epoch >= 0
        raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH if knows_epoch else ErrorCode.NOT_LEADER_OR_FOLLOWER)


def _diverging(partition: Partition, wanted: Wanted) -> EpochEnd | None:
    end = partition.log.end_offset_for_epoch(wanted.last_fetched_epoch)
    if end is None:
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
    epoch, end_offset = end
    if epoch < wanted.last_fetched_epoch or end_offset < wanted.fetch_offset:
        return EpochEnd(epoch, end_offset)
    return None


# ---- cold data ------------------------------------------------------------------------------------------------


def is_cold(slice_: LogSlice) -> bool:
    """Would sending this wait for the disk? Where the system cannot tell, assume that it would not."""
    if not _CAN_PROBE:
        return False
    fd, start = slice_.fd, slice_.position
    last = start + slice_.length - 1
    try:
        for position in range(start, last, PROBE_STRIDE_BYTES):
            os.preadv(fd, _PROBE, position, os.RWF_NOWAIT)
        os.preadv(fd, _PROBE, last, os.RWF_NOWAIT)
    except BlockingIOError:
        return True
    except OSError:
        return False  # a file system without the flag
    return False


def warm_up(slices: list[LogSlice]) -> None:
    """Bring slices into the page cache; runs in a thread."""
    scratch = bytearray(WARM_UP_CHUNK_BYTES)
    for slice_ in slices:
        position, end = slice_.position, slice_.position + slice_.length
        while position < end:
            got = os.preadv(slice_.fd, [memoryview(scratch)[: end - position]], position)
            if got == 0:
                break
            position += got
