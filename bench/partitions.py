"""Ten thousand partitions on one node: start, idle processor time, memory."""

import tempfile
import time
from pathlib import Path

from bench.report import Row
from bench.servers import OTTLA, create_topic, make

PARTITIONS_EACH = 2_500
TOPICS = 4
IDLE_SECONDS = 20.0
START_AIM_S = 5.0
IDLE_AIM_PERCENT = 2.0
MEMORY_AIM_KB = 100.0


def partitions() -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="bench-partitions-") as where:
        it = make(OTTLA, Path(where))
        with it:
            begin = time.perf_counter()
            for number in range(TOPICS):
                create_topic(it, f"many-{number}", PARTITIONS_EACH)
            created_s = time.perf_counter() - begin
        begin = time.perf_counter()
        with it:
            started_s = time.perf_counter() - begin
            time.sleep(5)
            before = it.cpu_seconds()
            time.sleep(IDLE_SECONDS)
            idle = (it.cpu_seconds() - before) / IDLE_SECONDS * 100
            memory_kb = it.rss_bytes() / 1e3 / (TOPICS * PARTITIONS_EACH)
    count = f"{TOPICS * PARTITIONS_EACH:,} partitions"
    return [
        Row(f"{count}: create", "s", None, created_s),
        Row(f"{count}: start", "s", None, started_s, START_AIM_S),
        Row(f"{count}: idle", "% of a core", None, idle, IDLE_AIM_PERCENT),
        Row(f"{count}: memory each", "KB", None, memory_kb, MEMORY_AIM_KB, note="all of the process divided"),
    ]
