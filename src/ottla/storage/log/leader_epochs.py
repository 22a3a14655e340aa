"""Kafka's LeaderEpochFileCache: at which offset each leader epoch began (KIP-101, KIP-279).

It is how a follower finds where its log and its leader's part.

The file `leader-epoch-checkpoint` is text: version 0, the number of entries, and `epoch start-offset` a line. It is
rewritten when entries are cut off and before the first batch of an epoch is appended, but waits for the disk only
when the log is flushed: what it says of offsets above the recovery point is found again in the batches themselves,
and so is all of it if a power cut or damage has taken it. An epoch without records is known in memory only: loading
a log drops it anyhow, as Kafka does, and ten thousand partitions that get a new leader at every start would be as
many files written for nothing.

Owned by its Log, on the event loop; `flush` may come from a thread.
"""

import logging
from pathlib import Path
from typing import Final, NamedTuple

from ottla.model.ids import NO_LEADER_EPOCH
from ottla.storage.dirs.checkpoints import MAX_INT64, CheckpointError, format_checkpoint, parse_checkpoint
from ottla.storage.errors import is_out_of_files
from ottla.storage.files import fsync_file, read_small, replace_small

logger = logging.getLogger(__name__)

FILE_NAME: Final = "leader-epoch-checkpoint"
MAX_INT32: Final = (1 << 31) - 1
# No epoch: what is known is more, or less, than the file says.
UNSETTLED: Final = -2


class EpochEntry(NamedTuple):
    """A leader epoch and the first offset written in it."""

    epoch: int
    start_offset: int


def format_epochs(entries: list[EpochEntry]) -> bytes:
    return format_checkpoint([f"{epoch} {start_offset}" for epoch, start_offset in entries])


def parse_epochs(content: bytes, source: str) -> list[EpochEntry]:
    """The entries of the file; CheckpointError if it is not what Kafka writes."""
    return parse_checkpoint(content, source, _parse_epoch)


def _parse_epoch(words: list[str]) -> EpochEntry:
    epoch, start_offset = words
    entry = EpochEntry(int(epoch), int(start_offset))
    # What no request has room for would keep those of all other partitions from being sent.
    if not (0 <= entry.epoch <= MAX_INT32 and 0 <= entry.start_offset <= MAX_INT64):
        raise ValueError("no epoch, or no offset")
    return entry


class LeaderEpochFileCache:
    """The epochs of a log, in order.

    `latest` is the newest one; `settled` is the same if the file says so too, and else no epoch at all: an append
    compares its epoch with it, and calls `assign` if they differ.
    """

    __slots__ = ("_dir", "_entries", "_flushes", "_writes", "latest", "settled")

    def __init__(self, dir: Path, entries: list[EpochEntry] | None = None) -> None:
        self._dir = dir
        self._entries: list[EpochEntry] = []
        self._writes = self._flushes = 0  # how often the file was written, and what of that is on the disk
        self.latest = NO_LEADER_EPOCH
        for entry in entries or ():
            self._put(entry)
        self.settled = self.latest

    @classmethod
    def load(cls, dir: Path) -> "LeaderEpochFileCache":
        """Reads the file. A damaged one counts as none: the epochs are found again in the batches."""
        path = f"{dir}/{FILE_NAME}"
        content = read_small(path)
        if content is None:
            return cls(dir)
        try:
            return cls(dir, parse_epochs(content, path))
        except CheckpointError as error:
            logger.warning("%s; taking the epochs from the log", error)
            return cls(dir)

    @property
    def entries(self) -> list[EpochEntry]:
        return list(self._entries)

    # -- changes

    def begin(self, epoch: int, start_offset: int) -> None:
        """Notes that an epoch begins at an offset; what contradicts it goes. The file hears of it with `assign`."""
        if epoch != self.latest or start_offset < self._entries[-1].start_offset:
            self._put(EpochEntry(epoch, start_offset))
            self.settled = UNSETTLED

    def assign(self, epoch: int, start_offset: int) -> None:
        """A batch of the epoch is about to be appended at an offset: the file knows the epoch from now on."""
        self.begin(epoch, start_offset)
        if self.settled == UNSETTLED:
            self._write()

    def _put(self, entry: EpochEntry) -> None:
        assert entry.epoch >= 0
        assert entry.start_offset >= 0
        entries = self._entries
        while entries and (
            entries[-1].epoch >= entry.epoch or entries[-1].start_offset >= entry.start_offset
        ):
            entries.pop()
        entries.append(entry)
        self.latest = entry.epoch

    def truncate_from_end(self, end_offset: int) -> None:
        """Removes the epochs that begin at or after an offset."""
        self._replace(self._before(end_offset))

    def truncate_from_start(self, start_offset: int) -> None:
        """Removes the epochs that ended before an offset; the one it lies in now begins there."""
        self._replace(self._after(start_offset))

    def _before(self, end_offset: int) -> list[EpochEntry]:
        return [entry for entry in self._entries if entry.start_offset < end_offset]

    def _after(self, start_offset: int) -> list[EpochEntry]:
        before = [entry for entry in self._entries if entry.start_offset <= start_offset]
        if not before:
            return self._entries
        return [EpochEntry(before[-1].epoch, start_offset), *self._entries[len(before) :]]

    def forget_from(self, offset: int) -> None:
        """All batches from here on are about to be read, and say their epochs themselves.

        A power cut may have left an older file, with epochs of batches that were cut off before.
        """
        self._keep(self._before(offset))

    def put_before(self, found: list[EpochEntry]) -> None:
        """These were found in batches before the first epoch that is known: the file was lost."""
        newest = found[-1].epoch if found else NO_LEADER_EPOCH
        self._keep([*found, *(entry for entry in self._entries if entry.epoch > newest)])

    def settle(self, log_start_offset: int, log_end_offset: int, in_file: list[EpochEntry]) -> None:
        """A log was loaded: what lies outside of it goes, and what was found in it is written.

        Entries of the file that only go are not worth a write: they would go again at the next load.
        """
        found = self._entries
        self._entries = in_file
        self._entries = self._before(log_end_offset)
        left = self._after(log_start_offset)
        self._entries = found
        self._keep(self._before(log_end_offset))
        self._keep(self._after(log_start_offset))
        if self._entries != left:
            self._write()
        elif self._entries == in_file:
            self.settled = self.latest

    def clear(self) -> None:
        self._replace([])

    def _replace(self, entries: list[EpochEntry]) -> None:
        if not self._keep(entries):
            return
        try:
            self._write()
        except OSError as error:
            # For want of a descriptor the file says more than is true, as after a crash: a load leaves out what is not
            # in the log, and the next batch, of whatever epoch, has it written first.
            if not is_out_of_files(error):
                raise

    def _keep(self, entries: list[EpochEntry]) -> bool:
        """Puts entries in the place of those that were; did anything change?"""
        if entries == self._entries:
            return False
        self._entries = entries
        self.latest = entries[-1].epoch if entries else NO_LEADER_EPOCH
        self.settled = UNSETTLED
        return True

    # -- questions

    def end_offset_for(self, epoch: int, log_end_offset: int) -> EpochEntry | None:
        """The largest epoch at or below the one asked for, and where it ended; None if that is not known."""
        if epoch == NO_LEADER_EPOCH:
            return None
        if epoch == self.latest:
            return EpochEntry(epoch, log_end_offset)
        higher = [entry for entry in self._entries if entry.epoch > epoch]
        if not higher:
            return None
        lower = [entry for entry in self._entries if entry.epoch <= epoch]
        # Older than anything known: the data is gone, so the follower starts where the first known epoch does.
        found = lower[-1].epoch if lower else epoch
        return EpochEntry(found, higher[0].start_offset)

    def epoch_for(self, offset: int) -> int:
        """The epoch an offset was written in, or NO_LEADER_EPOCH."""
        found = NO_LEADER_EPOCH
        for entry in self._entries:
            if entry.start_offset > offset:
                break
            found = entry.epoch
        return found

    # -- the file

    def _write(self) -> None:
        replace_small(self._dir / FILE_NAME, format_epochs(self._entries), sync=False)
        self.settled = self.latest
        self._writes += 1

    def flush(self) -> bool:
        """Waits for the disk if anything changed; did it? Any thread.

        Of two at once both wait: neither may go on before the file is on the disk.
        """
        writes = self._writes
        if writes == self._flushes:
            return False
        fsync_file(self._dir / FILE_NAME)
        self._flushes = max(self._flushes, writes)
        return True

    def move(self, dir: Path) -> None:
        """The directory was renamed."""
        self._dir = dir
