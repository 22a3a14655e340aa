"""What an append is asked and what it answers."""

from enum import IntEnum
from typing import NamedTuple


class AppendOrigin(IntEnum):
    """Who hands records to the log: it decides what is checked."""

    CLIENT = 0
    COORDINATOR = 1
    RAFT_LEADER = 2
    REPLICATION = 3


class AppendResult(NamedTuple):
    """Where an append ended up; for a duplicate, where the original did."""

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    duplicate: bool
    size_bytes: int
