"""The internal topics of streams applications, made on their behalf (KIP-1071).

A heartbeat names those that are missing; the controller is asked, and the heartbeat does not wait. What could not be
made is not asked for again for a while, and told to whoever needs it meanwhile.

Owner: the node's services, on the broker's loop.
"""

import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from ottla.controller.result import RequestContext
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.tasks import spawn
from ottla.wire.messages.topics import CreatableTopicResult, CreateTopicsRequest

if TYPE_CHECKING:
    from ottla.coordinator.group.streams.configured import ConfiguredInternalTopic
    from ottla.server.context import Services

log = logging.getLogger("ottla.coordinator.streams")

# Failures that are remembered at most; what would be forgotten first makes room.
MAX_FAILURES: Final = 1_000
# The version of CreateTopics whose rules hold for what a broker asks for.
CREATE_TOPICS_VERSION: Final = 7


class _Failure(NamedTuple):
    message: str
    until_ms: int


class StreamsTopics:
    """See the module."""

    def __init__(self) -> None:
        self._in_creation: set[str] = set()
        self._failures: dict[str, _Failure] = {}

    def create(
        self, node: "Services", topics: "Mapping[str, ConfiguredInternalTopic]", retry_ms: int, now_ms: int
    ) -> None:
        """Ask the controller for those that it is not asked for already, nor has refused just now."""
        wanted = [
            topic
            for name, topic in topics.items()
            if name not in self._in_creation and not self._failed(name, now_ms)
        ]
        if not wanted:
            return
        self._in_creation.update(topic.name for topic in wanted)
        spawn(self._create(node, wanted, retry_ms), name="creating topics", owner="streams topics")

    def failures(self, names: Iterable[str], now_ms: int) -> dict[str, str]:
        """Why topics could not be made, of those that were refused a while ago at most."""
        return {name: self._failures[name].message for name in names if self._failed(name, now_ms)}

    def _failed(self, name: str, now_ms: int) -> bool:
        failure = self._failures.get(name)
        return failure is not None and failure.until_ms > now_ms

    async def _create(self, node: "Services", topics: "list[ConfiguredInternalTopic]", retry_ms: int) -> None:
        request = CreateTopicsRequest(
            topics=[topic.creatable() for topic in topics], timeout_ms=node.config()["request.timeout.ms"]
        )
        try:
            response = await node.controller.create_topics(request, RequestContext(CREATE_TOPICS_VERSION))
            results: list[CreatableTopicResult] = response.topics
            self._note(
                {r.name: r.error_message or ErrorCode(r.error_code).name for r in results if r.error_code},
                node.clock.now_ms() + retry_ms,
            )
        except KafkaError as error:
            message = error.message or error.code.name
            self._note({topic.name: message for topic in topics}, node.clock.now_ms() + retry_ms)
        finally:
            self._in_creation.difference_update(topic.name for topic in topics)

    def _note(self, failed: Mapping[str, str], until_ms: int) -> None:
        for name, message in failed.items():
            log.warning("topic %s of a streams application cannot be made: %s", name, message)
            self._failures[name] = _Failure(message, until_ms)
        while len(self._failures) > MAX_FAILURES:
            self._failures.pop(min(self._failures, key=lambda name: self._failures[name].until_ms))
