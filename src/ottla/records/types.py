"""What the two kernels and their users share: the Record, the problems a check may find, the error raised.

Imports no other module of this package, because the compiled kernel imports this one when it is loaded.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple, TypeAlias

from ottla.model.errors import ErrorCode, KafkaError

Buffer: TypeAlias = bytes | bytearray | memoryview
Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]
# What an encoder takes: timestamp, key, value, headers.
NewRecord: TypeAlias = tuple[
    int, Buffer | None, Buffer | None, Sequence[tuple[str | bytes, bytes | bytearray | memoryview | None]]
]


class Record(NamedTuple):
    """One record as a reader sees it."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    sequence: int = -1


# The OffsetMap of the log cleaner: what an entry takes, and the secret under which keys are hashed.
OFFSET_MAP_ENTRY_BYTES = 24
OFFSET_MAP_SECRET_BYTES = 16


class Problem(IntEnum):
    """What is wrong with a batch or with a record in it; the kernels return these as plain ints."""

    NONE = 0
    # In the structure of the records: Kafka refuses the batch without naming records.
    BAD_VARINT = 1
    BAD_RECORD_SIZE = 2
    FIELD_PAST_END = 3
    BAD_HEADERS = 4
    SIZE_MISMATCH = 5
    TOO_FEW_RECORDS = 6
    TRAILING_BYTES = 7
    NEGATIVE_COUNT = 8
    # In one record: reported by its index.
    NO_KEY = 9
    OFFSET_DELTA = 10
    BAD_TIMESTAMP = 11
    # In the header.
    TORN = 20
    BAD_LENGTH = 21
    OLD_MAGIC = 22
    UNKNOWN_MAGIC = 23
    BAD_CRC = 24
    # In the record section as a whole.
    BAD_COMPRESSION = 30


PROBLEM_TEXT: dict[int, str] = {
    Problem.NONE: "nothing is wrong",
    Problem.BAD_VARINT: "a variable-length integer is malformed or cut short",
    Problem.BAD_RECORD_SIZE: "the record's size is negative or larger than what is left of the batch",
    Problem.FIELD_PAST_END: "a field reaches past the end of the record",
    Problem.BAD_HEADERS: "the number of headers or the size of a header's key is invalid",
    Problem.SIZE_MISMATCH: "the fields do not fill the record's declared size",
    Problem.TOO_FEW_RECORDS: "the batch ends before its declared number of records",
    Problem.TRAILING_BYTES: "bytes remain in the batch after its declared number of records",
    Problem.NEGATIVE_COUNT: "the declared number of records is negative",
    Problem.NO_KEY: "the record has no key, which a compacted topic requires",
    Problem.OFFSET_DELTA: "the record's offset delta is not its index in the batch",
    Problem.BAD_TIMESTAMP: "the record's timestamp is outside of what the topic takes",
    Problem.TORN: "the batch is cut short",
    Problem.BAD_LENGTH: "the batch's length is less than that of an empty batch",
    Problem.OLD_MAGIC: "batches of magic 0 and 1 are not supported",
    Problem.UNKNOWN_MAGIC: "the batch's magic is invalid",
    Problem.BAD_CRC: "the batch's checksum does not match its content",
    Problem.BAD_COMPRESSION: "the records cannot be decompressed",
}


class InvalidRecordError(KafkaError):
    """A record section cannot be read: INVALID_RECORD, with what was wrong and at which record."""

    def __init__(self, problem: int, index: int) -> None:
        super().__init__(
            ErrorCode.INVALID_RECORD, f"Invalid record {index} in batch: {PROBLEM_TEXT[problem]}"
        )
        self.problem = Problem(problem)
        self.index = index
