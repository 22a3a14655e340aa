"""What can go wrong with a log beyond a plain KafkaError: a failed disk, and records refused one by one."""

import errno
from pathlib import Path
from typing import NamedTuple

from ottla.model.errors import ErrorCode, KafkaError


class StorageError(KafkaError):
    """The disk under a log failed. Nothing of that directory may be acknowledged until it is restarted."""

    def __init__(self, log_dir: Path, message: str) -> None:
        super().__init__(ErrorCode.KAFKA_STORAGE_ERROR, message)
        self.log_dir = log_dir


class RecoveryAbortedError(Exception):
    """The node was told to stop while its logs were read. What was not finished is recovered at the next start."""


class OutOfFilesError(KafkaError):
    """The process has no descriptor left (EMFILE, ENFILE). The disk is well and nothing was changed: try again."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.KAFKA_STORAGE_ERROR, message)


def is_out_of_files(error: Exception) -> bool:
    """Is it for want of descriptors, which says nothing about the disk?"""
    return isinstance(error, OutOfFilesError) or (
        isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)
    )


class RecordError(NamedTuple):
    """One record the broker refuses, as a Produce response names it (KIP-467)."""

    batch_index: int
    message: str


class RecordValidationError(KafkaError):
    """A batch refused because of some of its records."""

    def __init__(self, code: ErrorCode, message: str, record_errors: list[RecordError]) -> None:
        super().__init__(code, message)
        self.record_errors = record_errors


class UnacceptableRecordsError(KafkaError):
    """What a client sent is not one batch of magic 2, or one that its request may not carry: no log is asked."""


class UnexpectedOffsetError(KafkaError):
    """A follower was given a batch that begins before the end of its log."""

    def __init__(self, message: str, first_offset: int, last_offset: int) -> None:
        super().__init__(ErrorCode.UNKNOWN_SERVER_ERROR, message)
        self.first_offset = first_offset
        self.last_offset = last_offset
