"""Part `replication`: three nodes of each kind with both roles, three replicas, min.insync.replicas 2, acks=all.

Both clusters run at once and rounds alternate, but for thousands of partitions, where one cluster runs after the other.
CPU is the sum of the three brokers. Each section has clusters of its own and is run alone with
`python -m bench replication --only SECTION`.
"""

from __future__ import annotations

from functools import partial

from bench.replication import failures, loads, many
from bench.sections import Section, run_sections

SECTIONS: dict[str, Section] = {
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

replication = partial(run_sections, "replication", SECTIONS)
