"""Part `replication`: three nodes of each kind with both roles, three replicas, min.insync.replicas 2, acks=all.

Both clusters run at once and rounds alternate, but for thousands of partitions, where one cluster runs after the other.
CPU is the sum of the three brokers. Each section has clusters of its own and is run alone with
`python -m bench replication --only SECTION`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Collection
from pathlib import Path

from bench.replication import failures, loads, many
from bench.report import Report

SECTIONS: dict[str, Callable[[Report, Path, bool], None]] = {
    "requests": loads.requests,
    "producer-performance": loads.producer_performance,
    "latency": loads.latency,
    "memory": loads.memory,
    "catch-up": loads.catch_up,
    "failover": failures.failover,
    "rolling-restart": failures.rolling_restart,
    "idle": many.idle,
    "session": many.session,
    "ten-thousand": many.ten_thousand,
}


def replication(report: Report, where: Path, quick: bool = False, only: Collection[str] = ()) -> None:
    """Every section, or those that are named; each is worth its figures even if another has failed."""
    failed: list[str] = []
    for name in only or SECTIONS:
        try:
            SECTIONS[name](report, where / name, quick)
        except (AssertionError, OSError, subprocess.SubprocessError) as error:
            failed.append(name)
            print(f"replication, {name}: {error}", file=sys.stderr)
        shutil.rmtree(where / name, ignore_errors=True)
    assert not failed, f"sections {' '.join(failed)}"
