"""Topics that the broker has made on demand: the coordinators' own, those that clients ask for, and those of streams.

The active controller is asked once at a time for each, and with one request for all that one client asks about: in
the client's name where there is a client, in the broker's own for the coordinators' topics. Whoever needs a coordinator
may wait until its topic is there; a client that asks for a topic's metadata is answered that there is none, as with
Apache, and finds it when it asks again. The heartbeat of a streams group names the internal topics that are missing and
does not wait either (KIP-1071); what could not be made is not asked for again for a while, and the reason is in the
next heartbeats' answers.

Owner: the node's services, on the broker's loop.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from ottla.config.broker import BrokerConfig
from ottla.controller.result import RequestContext
from ottla.metadata.image import ClusterImage
from ottla.model.clock import Clock
from ottla.model.errors import ErrorCode, KafkaError, error_of
from ottla.model.tasks import spawn
from ottla.wire.messages.admin.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

if TYPE_CHECKING:
    from ottla.coordinator.group.streams.topology import ConfiguredInternalTopic

log = logging.getLogger("ottla.server")
streams_log = logging.getLogger("ottla.coordinator.streams")

# The version of CreateTopics whose rules hold for what a broker asks for.
_CREATE_TOPICS: Final = RequestContext(api_version=7)
# The client is answered first, and one that makes the topic itself in the same moment comes first: with Apache the
# broker's own request goes to the controller by a queue and a connection.
AUTO_CREATE_AFTER_S: Final = 0.005
# How often is looked whether this broker shows a topic that the controller of another node has made, and for how long:
# it follows the metadata log by milliseconds, or is cut off.
SHOWN_POLL_S: Final = 0.005
SHOWN_WITHIN_S: Final = 5.0
# A request for more is encoded beside the loop.
MAX_INLINE: Final = 1_000
# Of the topics of one failed request.
MAX_NAMED: Final = 10
# Failures that are remembered at most; what would be forgotten first makes room.
MAX_FAILURES: Final = 1_000


class TopicCreator(Protocol):
    """The controller, as far as it is asked here."""

    async def create_topics(
        self, request: CreateTopicsRequest, context: RequestContext
    ) -> CreateTopicsResponse: ...


@dataclass(frozen=True, slots=True)
class InternalTopic:
    """A coordinators' topic: the broker's settings that say its size, and its own configuration."""

    name: str
    partitions_key: str
    replication_factor_key: str
    configs: Callable[[BrokerConfig], Mapping[str, object]]

    def partitions(self, image: ClusterImage, config: BrokerConfig) -> int:
        """How many it has, or will have."""
        found = image.topic(self.name)
        return int(config[self.partitions_key]) if found is None else len(found.partitions)

    def creatable(self, config: BrokerConfig) -> CreatableTopic:
        return CreatableTopic(
            name=self.name,
            num_partitions=config[self.partitions_key],
            replication_factor=config[self.replication_factor_key],
            assignments=[],
            configs=[
                CreatableTopicConfig(name=name, value=str(value))
                for name, value in self.configs(config).items()
            ],
        )


GROUP_METADATA: Final = InternalTopic(
    "__consumer_offsets",
    "offsets.topic.num.partitions",
    "offsets.topic.replication.factor",
    lambda config: {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": config["offsets.topic.segment.bytes"],
    },
)
TRANSACTION_STATE: Final = InternalTopic(
    "__transaction_state",
    "transaction.state.log.num.partitions",
    "transaction.state.log.replication.factor",
    lambda config: {
        "unclean.leader.election.enable": "false",
        "compression.type": "uncompressed",
        "cleanup.policy": "compact",
        "min.insync.replicas": config["transaction.state.log.min.isr"],
        "segment.bytes": config["transaction.state.log.segment.bytes"],
    },
)
SHARE_GROUP_STATE: Final = InternalTopic(
    "__share_group_state",
    "share.coordinator.state.topic.num.partitions",
    "share.coordinator.state.topic.replication.factor",
    lambda config: {
        "cleanup.policy": "delete",
        "compression.type": "producer",
        "segment.bytes": config["share.coordinator.state.topic.segment.bytes"],
        "min.insync.replicas": config["share.coordinator.state.topic.min.isr"],
        "retention.ms": -1,
    },
)
_INTERNAL: Final = {topic.name: topic for topic in (GROUP_METADATA, TRANSACTION_STATE, SHARE_GROUP_STATE)}


class AutoTopicCreationManager:
    """Has coordinators' topics made, and those that clients ask about."""

    def __init__(
        self,
        config: Callable[[], BrokerConfig],
        image: Callable[[], ClusterImage],
        controller: TopicCreator,
        caught_up: Callable[[], Awaitable[None]],
    ) -> None:
        """`caught_up` waits until this broker shows what the controller has committed by now, if that runs here."""
        self._config = config
        self._image = image
        self._controller = controller
        self._caught_up = caught_up
        # Those that the controller is asked for, or is about to be.
        self._in_creation: dict[str, asyncio.Task[None]] = {}

    def create_internal(self, topic: InternalTopic) -> "asyncio.Task[None]":
        """Ask for a coordinators' topic; the task ends when this broker shows it, or when it cannot be made."""
        running = self._in_creation.get(topic.name)
        return running if running is not None else self._begin([topic.name], _CREATE_TOPICS, after_s=0)

    def auto_create(self, names: Iterable[str], asked_by: RequestContext = _CREATE_TOPICS) -> None:
        """Ask for topics that a client has asked about, in its name, beside answering it."""
        wanted = [name for name in names if name not in self._in_creation]
        if wanted:
            self._begin(wanted, _for_creation(asked_by, len(wanted)), after_s=AUTO_CREATE_AFTER_S)

    def _begin(self, names: list[str], context: RequestContext, after_s: float) -> "asyncio.Task[None]":
        shown = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
        task = spawn(self._create(names, context, after_s), name=f"creating {shown}", owner="topic creation")
        self._in_creation.update(dict.fromkeys(names, task))
        task.add_done_callback(lambda _: self._ended(names))
        return task

    def _ended(self, names: list[str]) -> None:
        for name in names:
            self._in_creation.pop(name, None)

    async def _create(self, names: list[str], context: RequestContext, after_s: float) -> None:
        if after_s:
            await asyncio.sleep(after_s)
            names = [name for name in names if self._image().topic(name) is None]
            if not names:
                return
        config = self._config()
        request = CreateTopicsRequest(
            topics=[_creatable(name, config) for name in names], timeout_ms=config["request.timeout.ms"]
        )
        try:
            response = await self._controller.create_topics(request, context)
        except KafkaError as error:
            log.warning("%s cannot be created on demand: %s", ", ".join(names[:MAX_NAMED]), error)
            return
        made = []
        for result in response.topics:
            if result.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                message = result.error_message or _name(result.error_code)
                log.warning("topic %s cannot be created on demand: %s", result.name, message)
                continue
            made.append(result.name)
            if not result.error_code:  # otherwise another broker, or a client, was first
                log.info("topic %s is created on demand", result.name)
        await self._caught_up()
        await self._shown(made)

    async def _shown(self, names: list[str]) -> None:
        """Wait until this broker knows the topics, too; one that is deleted at once is not waited for for long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(SHOWN_WITHIN_S):
                while any(self._image().topic(name) is None for name in names):
                    await asyncio.sleep(SHOWN_POLL_S)


def _creatable(name: str, config: BrokerConfig) -> CreatableTopic:
    internal = _INTERNAL.get(name)
    if internal is not None:
        return internal.creatable(config)
    return CreatableTopic(
        name=name,
        num_partitions=_if_given(config, "num.partitions"),
        replication_factor=_if_given(config, "default.replication.factor"),
        assignments=[],
        configs=[],
    )


def _if_given(config: BrokerConfig, key: str) -> int:
    """What this broker's configuration says; where it says nothing, the controller's counts."""
    return int(config[key]) if key in config.originals else -1


def _for_creation(asked_by: RequestContext, count: int) -> RequestContext:
    """Whoever asked for something else has its topics made, in the time of the broker's own requests."""
    return asked_by._replace(
        api_version=_CREATE_TOPICS.api_version, deadline_ms=None, is_large=count > MAX_INLINE
    )


class _Failure(NamedTuple):
    message: str
    until_ms: int


class StreamsInternalTopics:
    """Has the internal topics of streams applications made, and remembers for a while which could not be."""

    def __init__(self, config: Callable[[], BrokerConfig], controller: TopicCreator, clock: Clock) -> None:
        self._config = config
        self._controller = controller
        self._clock = clock
        self._in_creation: set[str] = set()
        self._failures: dict[str, _Failure] = {}

    def create(
        self,
        topics: "Mapping[str, ConfiguredInternalTopic]",
        retry_ms: int,
        now_ms: int,
        asked_by: RequestContext = _CREATE_TOPICS,
    ) -> None:
        """Ask the controller for those that it is not asked for already, nor has refused just now.

        `asked_by` is the member whose heartbeat needs them.
        """
        wanted = [
            topic
            for name, topic in topics.items()
            if name not in self._in_creation and not self._failed(name, now_ms)
        ]
        if not wanted:
            return
        self._in_creation.update(topic.name for topic in wanted)
        context = _for_creation(asked_by, len(wanted))
        spawn(self._create(wanted, context, retry_ms), name="creating topics", owner="streams topics")

    def failures(self, names: Iterable[str], now_ms: int) -> dict[str, str]:
        """Why topics could not be made, of those that were refused a while ago at most."""
        return {name: self._failures[name].message for name in names if self._failed(name, now_ms)}

    def _failed(self, name: str, now_ms: int) -> bool:
        failure = self._failures.get(name)
        return failure is not None and failure.until_ms > now_ms

    async def _create(
        self, topics: "list[ConfiguredInternalTopic]", context: RequestContext, retry_ms: int
    ) -> None:
        request = CreateTopicsRequest(
            topics=[topic.creatable() for topic in topics], timeout_ms=self._config()["request.timeout.ms"]
        )
        try:
            response = await self._controller.create_topics(request, context)
            results: list[CreatableTopicResult] = response.topics
            self._note(
                {r.name: r.error_message or _name(r.error_code) for r in results if r.error_code},
                self._clock.now_ms() + retry_ms,
            )
        except KafkaError as error:
            message = error.message or error.code.name
            self._note({topic.name: message for topic in topics}, self._clock.now_ms() + retry_ms)
        finally:
            self._in_creation.difference_update(topic.name for topic in topics)

    def _note(self, failed: Mapping[str, str], until_ms: int) -> None:
        for name, message in failed.items():
            streams_log.warning("topic %s of a streams application cannot be made: %s", name, message)
            self._failures[name] = _Failure(message, until_ms)
        while len(self._failures) > MAX_FAILURES:
            self._failures.pop(min(self._failures, key=lambda name: self._failures[name].until_ms))


def _name(error_code: int) -> str:
    return (error_of(error_code) or ErrorCode.NONE).name
