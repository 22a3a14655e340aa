"""The differences between Ottla's answers and Apache Kafka 4.3.1's that have a good reason.

At most twenty, none of them an error code (the comparison refuses that). docs/compatibility.md shows this
table.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MOST_KNOWN_DIFFERENCES = 20


@dataclass(frozen=True)
class Difference:
    """Fields whose path matches, in answers whose label matches, may differ, because of the reason."""

    title: str
    label: str
    path: str
    reason: str

    def covers(self, label: str, path: str) -> bool:
        """Whether it speaks of this field of this answer."""
        return bool(re.search(self.label, label) and re.fullmatch(self.path, path))


KNOWN_DIFFERENCES: list[Difference] = [
    Difference(
        title="A fetch answer ends with a whole batch",
        label=r"^broker fetch v\d+: (a batch and a half|big batches over segments, from \d+, 400000 bytes)$",
        path=r"responses\[0\]\.partitions\[0\]\.records",
        reason="Apache fills an answer to its size limit with the beginning of the next batch, which every client "
        "has to throw away and fetch again; Ottla sends only what can be used.",
    ),
    Difference(
        title="At most ten refused records of a batch are named",
        label=r"^broker produce v9: 25 (of the far future|without a key), (none|gzip)$",
        path=r"responses\[[^\]]+\]\.partition_responses\[0\]\.record_errors",
        reason="Apache names every record that it refuses: a batch of 2 KB may hold millions, and the answer had "
        "249 MB. The error code and the first ten are the same.",
    ),
    Difference(
        title="A topic that may not be seen has no id in AlterShareGroupOffsets",
        label=r"^broker alter_share_group_offsets v0: ghost, ",
        path=r"responses\[\d+\]\.topic_id",
        reason="Apache answers TOPIC_AUTHORIZATION_FAILED with the topic's id if there is such a topic, and so tells "
        "that there is; Ottla tells nobody who may not know.",
    ),
]
