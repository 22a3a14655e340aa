"""Which logs lose old segments, and when: by time, by size, and below the log start offset.

The log itself decides what is old (Log.delete_old_segments); this module visits the logs, keeps out of the
cleaner's way, and hands what was renamed to the deletions. A log that is only compacted is visited too:
DeleteRecords may have moved its log start offset past whole segments. Runs on the loop, in slices.
"""

import logging
from collections.abc import Callable, Iterable
from typing import Final

from ottla.model.errors import KafkaError
from ottla.model.ids import TopicPartition
from ottla.storage.deletion import Deletions
from ottla.storage.log import Log
from ottla.storage.ticks import in_slices

logger = logging.getLogger(__name__)

# Renaming a segment's files takes some 100 microseconds of the loop.
SEGMENTS_AT_ONCE: Final = 32


def has_nothing_to_retire(log: Log) -> bool:
    """One empty segment: nothing can be old. Most of ten thousand idle partitions end here."""
    return len(log.segments) == 1 and log.size_bytes == 0


class Retention:
    """Applies retention to the logs it is shown."""

    def __init__(self, deletions: Deletions, now_ms: Callable[[], int]) -> None:
        self._deletions = deletions
        self._now_ms = now_ms

    async def run(
        self, logs: Iterable[tuple[TopicPartition, Log]], may_touch: Callable[[TopicPartition], bool]
    ) -> None:
        """Visits a snapshot of the logs; `may_touch` is False for one the cleaner is busy with."""
        again: list[tuple[TopicPartition, Log]] = []

        def visit(item: tuple[TopicPartition, Log]) -> None:
            tp, log = item
            if (
                not log.failed
                and not has_nothing_to_retire(log)
                and may_touch(tp)
                and self.apply(tp, log) >= SEGMENTS_AT_ONCE
            ):
                again.append(item)

        await in_slices(list(logs), visit)
        while again:
            visited, again = again, []
            await in_slices(visited, visit)

    def apply(self, tp: TopicPartition, log: Log) -> int:
        """Retires some of one log's old segments; how many they were."""
        try:
            retired = log.delete_old_segments(self._now_ms(), SEGMENTS_AT_ONCE)
        except KafkaError as error:
            # The log has reported its failed disk itself; the others go on.
            logger.error("retention of %s failed: %s", tp, error)
            return 0
        if retired:
            what = f"{len(retired)} segments of {tp} up to offset {log.log_start_offset}"
            self._deletions.schedule(log.config.file_delete_delay_ms, what, lambda: log.delete_files(retired))
        return len(retired)
