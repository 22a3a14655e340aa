"""A query's progress as a consumer group, so that every Kafka tool shows its lag.

What lies below the start of a micro-batch has been processed: that is what is committed, and no more. Publishing
never fails a query: an error is logged once, and tried again after a while. Owned by a stream's source runner.
"""

import logging
from collections.abc import Mapping

from ottla.client.coordinators import group_coordinator
from ottla.client.group.offset_messages import (
    BY_NAME,
    GroupMetadata,
    OffsetAndMetadata,
    commit_error,
    commit_request,
)
from ottla.client.inline import InlineClient
from ottla.model.errors import KafkaError
from ottla.model.ids import TopicPartition

# A coordinator that does not answer must not hold the query up for long, or often.
COMMIT_TIMEOUT_MS = 5_000.0
RETRY_AFTER_S = 30.0
# Brokers forget offsets that nobody commits for days (offsets.retention.minutes): a quiet topic is said again.
REPEAT_AFTER_S = 3600.0

log = logging.getLogger(__name__)


class Progress:
    """Publishes offsets under a group, when they have changed."""

    def __init__(self, group: str) -> None:
        self.group = group
        self._published: dict[TopicPartition, int] = {}
        self._published_at_s = 0.0
        self._not_before_s = 0.0
        self._has_failed = False

    def publish(self, client: InlineClient, offsets: Mapping[TopicPartition, int], now_s: float) -> None:
        """Commit `offsets` (where the query will read on) unless that is what was committed last."""
        fresh = now_s - self._published_at_s < REPEAT_AFTER_S
        if not offsets or now_s < self._not_before_s or (fresh and dict(offsets) == self._published):
            return
        changed = {tp: at for tp, at in offsets.items() if not fresh or self._published.get(tp) != at}
        try:
            self._commit(client, changed)
        except KafkaError as error:
            self._failed(error, now_s)
            return
        self._published, self._published_at_s = dict(offsets), now_s
        if self._has_failed:
            self._has_failed = False
            log.warning("the progress of group %s is published again", self.group)

    def _commit(self, client: InlineClient, offsets: Mapping[TopicPartition, int]) -> None:
        """As a consumer without a group's membership does; the members of a real group of that name refuse it."""
        wanted = {tp: OffsetAndMetadata(offset) for tp, offset in offsets.items()}
        response = client.request(
            commit_request(wanted, GroupMetadata(self.group), client.core.metadata),
            group_coordinator(self.group),
            timeout_ms=COMMIT_TIMEOUT_MS,
            error_of=commit_error,
            at_most=BY_NAME,
        )
        code = commit_error(response)
        if code is not None:
            raise KafkaError(code, code.name)

    def _failed(self, error: KafkaError, now_s: float) -> None:
        self._not_before_s = now_s + RETRY_AFTER_S
        if not self._has_failed:
            self._has_failed = True
            log.warning("the progress of group %s is not published, the query goes on: %s", self.group, error)
