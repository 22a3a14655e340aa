"""How many rows a local session sends to Python at once, and the memory that they may take.

Rows go to Python in Arrow batches. Spark ends one at a number of rows or of bytes, and measures the bytes after every
row, which takes a third of the JVM's time for a write; the largest number of bytes means "do not measure". Then only
the rows bound a batch, so there are as many as fit this machine if each were Kafka's largest default message.
"""

import os
from pathlib import Path

UNMEASURED_BYTES = 2**31 - 1
# More are no faster; with fewer, what Python does for each batch shows: 500 take a tenth longer.
MAX_ROWS = 1000
MIN_ROWS = 100
# A row of 1 MB takes two of Java's direct memory while its batch grows, and one of the Python worker that it goes to.
MB_A_LARGE_ROW = 3
CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


def rows_a_batch(memory_mb: int, tasks: int) -> int:
    """So many that rows of 1 MB, in as many tasks at once, take half of the machine's memory."""
    return min(max(memory_mb // 2 // (tasks * MB_A_LARGE_ROW), MIN_ROWS), MAX_ROWS)


def direct_mb(rows: int, tasks: int) -> int:
    """What such batches may take of direct memory: Arrow doubles a buffer, beside the one that it grows from."""
    largest_buffer = 1 << (rows - 1).bit_length()
    return 2 * largest_buffer * tasks


def memory_mb(cgroup_limit: Path = CGROUP_LIMIT) -> int:
    """What this machine has, or this container may take."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        told = cgroup_limit.read_text().strip()
    except OSError:  # not Linux, or no container
        told = "max"
    return (machine if told == "max" else min(machine, int(told))) >> 20
