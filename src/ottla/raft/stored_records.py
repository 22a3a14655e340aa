"""The records in a node's own copy of the metadata log, read before it is opened, or beside a node that has it open.

For those who have to know something before there is an image: the newest snapshot and what follows it, also what is not
committed yet, so that nothing may rest on it for good. Nothing is locked, repaired or written; a half-written end is
where it ends. Functions over paths, which block: off the loop.
"""

import mmap
from collections.abc import Iterator
from pathlib import Path

from ottla.metadata.records import MetadataRecord
from ottla.metadata.serde import read_record_batch
from ottla.metadata.snapshot import (
    BOOTSTRAP_FILE_NAME,
    SUFFIX,
    parse_file_name,
    read_bootstrap,
    read_checkpoint,
)
from ottla.model.errors import KafkaError
from ottla.raft.metadata_log import DIRECTORY_NAME
from ottla.records.batch import BatchView, iter_batches


def stored_records(metadata_dir: Path) -> Iterator[MetadataRecord]:
    """In the order of the log; none where it was never written. KafkaError or OSError if the snapshot is damaged."""
    folder = metadata_dir / DIRECTORY_NAME
    if not folder.is_dir():
        return
    named = [(parse_file_name(entry.name), entry) for entry in folder.iterdir()]
    snapshots = sorted(
        (found[0], entry) for found, entry in named if found is not None and found[1] == SUFFIX
    )
    start = 0
    if snapshots:
        newest, path = snapshots[-1]
        start = newest.end_offset
        yield from read_checkpoint(path).records
    if not start and (metadata_dir / BOOTSTRAP_FILE_NAME).exists():
        yield from read_bootstrap(metadata_dir)
    for path in sorted(folder.glob("*.log")):
        for batch in _batches(path):
            if not batch.is_control and batch.last_offset >= start:
                yield from read_record_batch(batch)


def _batches(path: Path) -> Iterator[BatchView]:
    with path.open("rb") as file:
        size = file.seek(0, 2)
        if not size:
            return
        data = memoryview(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ))
    batches = iter_batches(data, allow_partial=True)
    while True:
        try:
            batch = next(batches)
            if not batch.crc_ok():
                return
        except (StopIteration, KafkaError):
            return
        yield batch
