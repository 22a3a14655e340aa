"""The record kernel: per-record work, compiled from C where that was possible, else its Python twin.

KERNEL is "c" or "python"; the environment variable OTTLA_KERNEL=python forces the twin. Both give the same
answers and raise the same errors. `buf` is anything with a contiguous buffer; `start` and `end` bound what
may be read (ValueError if they do not lie in it); a record section is what follows the 61-byte header, plain.
Nothing is allocated from a length that was not checked against the bytes at hand. Input of 512 KB and more
(16 KB for what only the cleaner calls) is worked on without the GIL: the caller keeps it unchanged meanwhile.

check_batch(buf, start, end, require_key, without_records=False) -> 16 ints
    All that the produce path asks of one batch: the 13 header fields in the order of batch.BATCH_HEADER, then
    (problem, min_timestamp, max_timestamp). `problem` is a types.Problem: the header's size and magic, the
    CRC, and, if the batch is not compressed, the records: structure, count, offset deltas 0..n-1, a key in
    each if `require_key`. A problem of structure outranks NO_KEY, which outranks OFFSET_DELTA; judge_records
    names the records. The timestamps are the lowest and highest of the records, leaving out NO_TIMESTAMP
    (-1 if no other is there); with LogAppendTime both are the header's; compressed: -1 and the header's
    maximum, and so where the caller has looked at the records before (`without_records`). Where fewer than 61
    bytes are left the header fields are 0. Whether the header's fields make
    sense together (count against last offset delta, control, sequence) is the caller's to judge.
summarize_records(buf, start, end, count, base_timestamp, require_key, numbered=False)
    -> (problem, index, min_ts, max_ts). The same look at a section that the caller has decompressed; index -1 if
    nothing is wrong. `numbered`: the first wrong offset delta ends it, and is what is wrong.
judge_records(buf, start, end, count, require_key, base_timestamp, log_append_time, earliest, latest, limit)
    -> (refused, late, [(record_index, problem, timestamp), ...]). How many records are refused, how many of them
    for their timestamp (BAD_TIMESTAMP: it is not NO_TIMESTAMP and not in [earliest, latest]; `log_append_time`, if
    not None, is the timestamp of all), and the first `limit` of them, at most 1000. A missing key outranks the
    timestamp. InvalidRecordError if the structure is broken.
find_timestamp(buf, start, end, count, base_offset, base_timestamp, log_append_time, timestamp, start_offset)
    -> (offset, timestamp) of the first record at or after both, or None. InvalidRecordError if the structure is
    broken before that.
whole_batches(buf, start, end, end_offset) -> (position, next_offset)
    Walks over batches by their headers' lengths to where the last whole one ends (a fetched run may end in half
    a batch), and gives the offset after it, -1 if there is none. Stops before the first that begins at or after
    `end_offset`: then that is the offset.
decode_records(buf, start, end, count, base_offset, base_timestamp, base_sequence=-1, log_append_time=None)
    -> [Record, ...]. InvalidRecordError if the structure is broken.
encode_records(records, base_timestamp, offset_deltas=None, reserve_bytes=0) -> (bytearray, max_timestamp)
    `records` are (timestamp, key, value, headers); the first `reserve_bytes` are left for a header.
rebuild_records(buf, start, end, count, mask, base_timestamp, log_append_time=None, new_base_timestamp=None)
    -> (section, base_timestamp, max_timestamp, retained). The records whose byte in `mask` is not 0, with
    their offset deltas, the timestamps relative to the new base (the first retained record's if None).
renumber_records(buf, start, end, count, reserve_bytes=0) -> bytearray
    The same records with the offset deltas 0..n-1; the first `reserve_bytes` are left for a header.
OffsetMap(memory_bytes, secret)  24 bytes an entry; `secret` is 16 random bytes; one thread at a time
    .slots, len(), .put(key, offset) -> False if full, .get(key) -> offset or -1, .clear()
    .put_records(buf, start, end, count, base_offset, start_offset, max_entries) -> records taken
       before the map was full (count if all); records without key or below start_offset are passed over
    .retain_mask(buf, start, end, count, base_offset, latest_offset, retain_deletes)
       -> (mask, retained, tombstones): a record stays if it lies past latest_offset, or is the newest of its
       key and has a value or retain_deletes; tombstones says whether one without value stays
crc32c(buf, value=0) -> int

Records as columns (Arrow's buffers) go through the same kernel: see ottla.records.columns.
"""

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING or os.environ.get("OTTLA_KERNEL") == "python":
    from ottla.records import _kernel_py as _impl
    from ottla.records._kernel_py import OffsetMap

    KERNEL = "python"
else:
    try:
        from ottla.records import _kernel as _impl
        from ottla.records._kernel import OffsetMap

        KERNEL = "c"
    except ImportError:
        from ottla.records import _kernel_py as _impl
        from ottla.records._kernel_py import OffsetMap

        KERNEL = "python"

check_batch = _impl.check_batch
crc32c = _impl.crc32c
decode_records = _impl.decode_records
encode_records = _impl.encode_records
find_timestamp = _impl.find_timestamp
judge_records = _impl.judge_records
rebuild_records = _impl.rebuild_records
renumber_records = _impl.renumber_records
summarize_records = _impl.summarize_records
whole_batches = _impl.whole_batches

__all__ = [
    "KERNEL",
    "OffsetMap",
    "check_batch",
    "crc32c",
    "decode_records",
    "encode_records",
    "find_timestamp",
    "judge_records",
    "rebuild_records",
    "renumber_records",
    "summarize_records",
    "whole_batches",
]
