"""Reading for share fetches: from a place in a partition to a slice of its log, its batches, and what of them counts.

Only batch headers are looked at, and no more of them than a member can acquire. The slice that is answered is cut to
the batches with acquired records.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ottla.records.batch import CONTROL_FLAG, LOG_OVERHEAD, TRANSACTIONAL_FLAG
from ottla.replication.share_state import Acquired, Fetched
from ottla.storage.batch_scan import ColdDataError, Pread, pread_warm, scan_headers
from ottla.storage.log import Log
from ottla.storage.slices import ColdSliceError, LogSlice
from ottla.storage.txnindex import AbortedTransaction


class Found(NamedTuple):
    """What there is to acquire at an offset."""

    slice: LogSlice
    batches: list[Fetched]
    has_more: bool


def read(
    log: Log,
    offset: int,
    max_bytes: int,
    bound: int,
    horizon: int,
    *,
    at_least_one: bool,
    pread: Pread = pread_warm,
) -> Found:
    """Read from `offset`: KafkaError if it is not in the log, ColdSliceError for what must be in memory first."""
    found = log.read(offset, max_bytes, bound, min_one_message=at_least_one, wait=pread is not pread_warm)
    if found.length == 0:
        return Found(found, [], has_more=False)
    return Found(found, _batches(found, horizon, pread), found.next_offset < bound)


def _batches(found: LogSlice, horizon: int, pread: Pread) -> list[Fetched]:
    batches: list[Fetched] = []
    end = found.position + found.length
    try:
        for position, header in scan_headers(found.fd, found.position, end, pread, keep=found):
            base_offset, length, attributes, delta, producer_id = (*header[:2], *header[5:7], header[9])
            if base_offset > horizon:
                break
            batches.append(
                Fetched(
                    base_offset,
                    base_offset + delta,
                    position,
                    LOG_OVERHEAD + length,
                    producer_id,
                    attributes,
                )
            )
    except ColdDataError as cold:
        raise ColdSliceError(found.part(cold.position, min(cold.length, end - cold.position))) from None
    return batches


def aborted_ranges(
    batches: Iterable[Fetched], transactions: Sequence[AbortedTransaction]
) -> list[tuple[int, int]]:
    """The offsets of those batches that were written in transactions that were aborted."""
    if not transactions:
        return []
    by_producer: dict[int, list[AbortedTransaction]] = defaultdict(list)
    for transaction in transactions:
        by_producer[transaction.producer_id].append(transaction)
    return [
        (batch.base_offset, batch.last_offset)
        for batch in batches
        if batch.attributes & TRANSACTIONAL_FLAG
        and not batch.attributes & CONTROL_FLAG
        and any(
            aborted.first_offset <= batch.last_offset and batch.base_offset <= aborted.last_offset
            for aborted in by_producer.get(batch.producer_id, ())
        )
    ]


def acquired_part(found: Found, acquired: Sequence[Acquired]) -> LogSlice:
    """The slice from the batch of the first acquired record to that of the last."""
    first, last = acquired[0].first_offset, acquired[-1].last_offset
    wanted = [b for b in found.batches if b.last_offset >= first and b.base_offset <= last]
    begin, end = wanted[0].position, wanted[-1].position + wanted[-1].size_bytes
    return found.slice.part(begin, end - begin)
