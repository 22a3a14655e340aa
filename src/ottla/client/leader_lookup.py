"""Waiting until the leaders of partitions have answered a question. Owned by whoever asks, for as long as it waits.

What is asked, until when, and how the answers are read is the same for every driver and stands here; a driver turns
the core until `is_settled`.
"""

from collections.abc import Iterable
from typing import Any

from ottla.client.fanout import LeaderFanout, Question
from ottla.client.network import NetworkCore
from ottla.client.transport import GRACE_MS
from ottla.model.errors import KafkaError
from ottla.model.ids import TopicPartition


class LeaderLookup:
    """Made when the question is asked; `results` once `is_settled`, one for each partition."""

    def __init__(
        self,
        core: NetworkCore,
        partitions: Iterable[TopicPartition],
        question: Question,
        now: float,
        timeout_ms: float | None = None,
    ) -> None:
        """The time is up after default.api.timeout.ms, unless another is given."""
        limit_ms = core.config.default_api_timeout_ms if timeout_ms is None else timeout_ms
        self.results: dict[TopicPartition, Any] = {}  # what was found, or the KafkaError
        # The fanout reports its deadline for each partition; who waits for it waits a little longer.
        self.limit_ms = limit_ms + GRACE_MS
        self._fanout = LeaderFanout(core, set(partitions), question, self._found, now + limit_ms)

    def is_settled(self) -> bool:
        return self._fanout.is_done

    def _found(self, tp: TopicPartition, value: Any, error: KafkaError | None, now: float) -> None:
        self.results[tp] = value if error is None else error


def all_found(results: dict[TopicPartition, Any]) -> dict[TopicPartition, Any]:
    """The results, if every partition has one; otherwise the first error is raised."""
    for result in results.values():
        if isinstance(result, KafkaError):
            raise result
    return results
