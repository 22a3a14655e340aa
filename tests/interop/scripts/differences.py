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


KNOWN_DIFFERENCES: list[Difference] = []
