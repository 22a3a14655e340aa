"""A client without asyncio and without threads: the network core turns while the caller waits, in its own thread.

For processes that are forked, live briefly and do one thing at a time, such as Spark's Python workers: nothing
runs in the background, so whatever is in flight waits in the kernel's buffers until the next call. Answers are
read straight into a buffer of the right size (ottla.net.connection).

Rules: one thread; made in the process that uses it. After a fork the child has to make its own: the sockets are
the parent's, and two readers of one connection would each get half of every answer.
"""

import os
import ssl
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

from ottla import __version__
from ottla.client.config import AdminConfig, ClientConfig
from ottla.client.errors import Closed, StateError
from ottla.client.lookups import (
    GRACE_MS,
    FirstContact,
    LeaderLookup,
    Question,
    TopicLookup,
    all_found,
    existing,
)
from ottla.client.metadata import ClusterMetadata, TopicInfo
from ottla.client.network import Ask, ErrorOf, NetworkCore, R, Target, To, top_level_error
from ottla.client.offsets import OffsetAndTimestamp, list_offsets_question
from ottla.model.errors import KafkaError
from ottla.model.ids import TopicPartition
from ottla.net.connection import OnDone
from ottla.net.sasl import authenticator_of
from ottla.net.selector import InlineDriver
from ottla.wire.messages.metadata import MetadataRequest, MetadataRequestTopic

Adapt = Callable[[Any, int], Any]


class InlineClient:
    """A client for one thread. A context manager: `with InlineClient(bootstrap_servers=...) as client`."""

    def __init__(
        self,
        settings: Mapping[str, Any] | None = None,
        *,
        config: type[ClientConfig] = AdminConfig,
        ssl_context: ssl.SSLContext | None = None,
        **more: Any,
    ) -> None:
        """`config` says which settings are known; the default one never creates a topic by asking for it."""
        self.config = config.of({**(settings or {}), **more})
        self._security = self.config.security(ssl_context)
        self.core = NetworkCore(
            self.config, software_version=__version__, authenticator=authenticator_of(self._security)
        )
        self._driver: InlineDriver | None = None
        self._pid = os.getpid()

    @property
    def driver(self) -> InlineDriver:
        if os.getpid() != self._pid:
            raise StateError(
                f"this client was made in process {self._pid} and is used in {os.getpid()}, after a fork: its "
                "connections are the parent's; make a client in the process that uses it"
            )
        if self._driver is None:
            raise Closed("the client is not started, or is closed")
        return self._driver

    # -- life -----------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Find the cluster; NoBrokersAvailable if there is none within bootstrap_timeout_ms."""
        if self._driver is None:
            self._driver = InlineDriver(self.core, ssl_context=self._security.ssl_context)
            try:
                contact = FirstContact(self.core, self.config.bootstrap_timeout_ms)
                self.driver.until(contact.is_settled, contact.limit_ms)
                contact.check()
            except BaseException:
                self.close()
                raise
        return self

    def close(self) -> None:
        """Close every connection. In a child of the process it was made in, only the child's ends of them."""
        driver, self._driver = self._driver, None
        if driver is None:
            return
        if os.getpid() == self._pid:
            driver.close()
        else:
            driver.close_after_fork()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- turning --------------------------------------------------------------------------------------

    def until(self, predicate: Callable[[], bool], timeout_ms: float) -> bool:
        """Turn the core until the predicate holds; False if the time ran out first."""
        return self.driver.until(predicate, timeout_ms)

    def now_ms(self) -> float:
        """The time by which everything of this client goes: it passes only while the client turns."""
        return self.driver.now_ms()

    def turn(self) -> None:
        """Do what can be done now, without waiting for anything."""
        self.driver.turn()

    # -- asking ---------------------------------------------------------------------------------------

    def request(
        self,
        request: Any,
        to: Target = To.ANY,
        *,
        timeout_ms: float | None = None,
        error_of: ErrorOf = top_level_error,
        at_most: int | None = None,
        adapt: Adapt | None = None,
    ) -> Any:
        """Send any request to whom it is for; retried while `error_of` finds an error that passes."""
        return self.ask(
            Ask(request, to, lambda response: response, error_of=error_of, at_most=at_most, adapt=adapt),
            timeout_ms,
        )

    def ask(self, ask: Ask[R], timeout_ms: float | None = None) -> R:
        """Put a question; its answer as `Ask.read` has it."""
        (answer,) = self.ask_all([ask], timeout_ms)
        if isinstance(answer, KafkaError):
            raise answer
        return answer

    def ask_all(self, asks: Iterable[Ask[R]], timeout_ms: float | None = None) -> list[R | KafkaError]:
        """Several questions at once; the answers in their order, the KafkaError where one was refused or lost."""
        driver, now = self.driver, self.now_ms()
        limit = self._limit(timeout_ms)
        questions = list(asks)
        outcomes: dict[int, Any] = {}
        calls = [ask.call(now + limit, _keep(outcomes, index)) for index, ask in enumerate(questions)]
        for call in calls:
            self.core.call(call, now)
        try:
            driver.until(lambda: len(outcomes) == len(calls), limit + GRACE_MS)
        finally:
            for call in calls:
                call.cancelled = True  # after an interrupt nobody wants the rest
        return [_read(ask, outcomes[index]) for index, ask in enumerate(questions)]

    def topic(self, name: str, timeout_ms: float | None = None) -> TopicInfo:
        """What the cluster says of a topic now; UNKNOWN_TOPIC_OR_PARTITION if it does not know it in time."""
        lookup = TopicLookup(self.core, name, self.now_ms())
        if lookup.is_settled():  # by an answer of long ago, perhaps: a worker keeps its client for hours
            return existing(self.topics([name], timeout_ms)[name])
        self.until(lookup.is_settled, self._limit(timeout_ms))
        return lookup.result()

    def topics(
        self, names: Iterable[str] | None = None, timeout_ms: float | None = None
    ) -> dict[str, TopicInfo]:
        """What one broker knows now of these topics (None: of all); one it does not know has an `error`."""
        wanted = None if names is None else [MetadataRequestTopic(name=name) for name in sorted(set(names))]
        request = MetadataRequest(topics=wanted, allow_auto_topic_creation=False)
        picture = ClusterMetadata(self.config)
        picture.update(self.request(request, timeout_ms=timeout_ms), request, self.now_ms())
        return picture.topics

    def ask_leaders(
        self, partitions: Iterable[TopicPartition], question: Question, timeout_ms: float | None = None
    ) -> dict[TopicPartition, Any]:
        """A question to the leaders of partitions; the value for a partition that failed is its KafkaError."""
        lookup = LeaderLookup(self.core, partitions, question, self.now_ms(), timeout_ms)
        self.until(lookup.is_settled, lookup.limit_ms)
        return lookup.results

    def list_offsets(
        self,
        timestamps: Mapping[TopicPartition, int],
        *,
        read_committed: bool = False,
        timeout_ms: float | None = None,
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Offsets by timestamp, or by a special one (ottla.client.offsets); the first error is raised."""
        question = list_offsets_question(timestamps, self.core, read_committed=read_committed)
        return all_found(self.ask_leaders(timestamps, question, timeout_ms))

    def _limit(self, timeout_ms: float | None) -> float:
        return self.config.default_api_timeout_ms if timeout_ms is None else timeout_ms


def _keep(outcomes: dict[int, Any], index: int) -> OnDone:
    """The callback that puts an outcome where `ask_all` looks for it."""

    def done(response: Any, error: KafkaError | None, now: float) -> None:
        outcomes[index] = response if error is None else error

    return done


def _read(ask: Ask[Any], outcome: Any) -> Any:
    try:
        return outcome if isinstance(outcome, KafkaError) else ask.read(outcome)
    except KafkaError as refusal:
        return refusal
