"""The transaction index of a segment: the aborted transactions whose markers lie in it.

An entry is 34 bytes: version (0), producer id, first and last offset of the transaction, and the last stable
offset when it was aborted, which tells a search when it has seen enough. The file is made with the first entry,
as most segments never have one. There are few entries: they are read at the first search and kept, and an entry
is written at once.
"""

import os
import struct
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from ottla.storage.files import FILE_MODE, fsync_file, read_small, write_fully
from ottla.storage.index import CorruptIndexError
from ottla.storage.open_files import open_file

ENTRY: Final = struct.Struct(">hqqqq")
VERSION: Final = 0


class AbortedTransaction(NamedTuple):
    """An aborted transaction and the last stable offset at its end."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TxnIndex:
    """Aborted transactions in the order of their markers."""

    __slots__ = ("_transactions", "base_offset", "path")

    def __init__(self, path: Path, base_offset: int) -> None:
        self.path = path
        self.base_offset = base_offset
        self._transactions: list[AbortedTransaction] | None = None

    def append(self, txn: AbortedTransaction) -> None:
        """Adds an entry at the end of the file."""
        fd = open_file(self.path, os.O_WRONLY | os.O_CREAT, FILE_MODE)
        try:
            end = os.fstat(fd).st_size // ENTRY.size * ENTRY.size
            write_fully(fd, ENTRY.pack(VERSION, *txn), end)
        finally:
            os.close(fd)
        if self._transactions is not None:
            self._transactions.append(txn)

    def transactions(self) -> list[AbortedTransaction]:
        """Every entry; CorruptIndexError for a version nobody has written or offsets outside the segment."""
        if self._transactions is None:
            content = read_small(str(self.path)) or b""
            usable = len(content) // ENTRY.size * ENTRY.size
            self._transactions = [self._parse(entry) for entry in ENTRY.iter_unpack(content[:usable])]
        return self._transactions

    def _parse(self, entry: tuple[int, int, int, int, int]) -> AbortedTransaction:
        version, txn = entry[0], AbortedTransaction(*entry[1:])
        if version != VERSION or txn.last_offset < self.base_offset:
            raise CorruptIndexError(f"{self.path}: impossible entry {entry}")
        return txn

    def collect(self, start_offset: int, upper_bound: int) -> tuple[list[AbortedTransaction], bool]:
        """Those that overlap the range, and whether later segments need not be searched."""
        found = []
        for txn in self.transactions():
            if txn.last_offset >= start_offset and txn.first_offset < upper_bound:
                found.append(txn)
            if txn.last_stable_offset >= upper_bound:
                return found, True
        return found, False

    def truncate_to(self, offset: int) -> None:
        """Removes the transactions that ended at or after offset."""
        known = self.transactions()
        kept = [txn for txn in known if txn.last_offset < offset]
        if len(kept) != len(known):
            os.truncate(self.path, len(kept) * ENTRY.size)
            self._transactions = kept

    def reset(self) -> None:
        """Removes all."""
        self._transactions = []
        with suppress(FileNotFoundError):
            os.truncate(self.path, 0)

    def flush(self) -> None:
        """Brings the file to the disk, if there is one."""
        if self._transactions is None or self._transactions:
            fsync_file(self.path)
