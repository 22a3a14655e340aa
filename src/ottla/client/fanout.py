"""One question about many partitions: a request to each leader, asked again where the answer was no use.

Serves whatever goes by partition: offsets by timestamp, ends of leader epochs, deleting records. Each partition
gets its own result or error; those with an error that passes are asked for again after the backoff, at the
leader the metadata then names. A party of the network core for as long as it has work.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from ottla.client.calls import STALE_METADATA
from ottla.client.errors import TimedOut, UnsupportedVersion
from ottla.client.metadata import error_of
from ottla.client.network import NetworkCore
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition

OnResult = Callable[[TopicPartition, Any, KafkaError | None, float], None]


class Question(NamedTuple):
    """How to ask about partitions of one leader, and how to read the answer."""

    request_type: Any
    build: Callable[[list[TopicPartition]], Any]
    # (partition, error code, what to hand out) for each partition in the response
    parse: Callable[[Any], Iterable[tuple[TopicPartition, int, Any]]]
    at_least: int = 0  # the lowest version in which the question can be asked


class _Pending:
    __slots__ = ("attempts", "in_flight", "last_error", "not_before_ms")

    def __init__(self) -> None:
        self.attempts = 0
        self.in_flight = False
        self.not_before_ms = float("-inf")
        self.last_error: KafkaError | None = None


class LeaderFanout:
    """See the module. `on_result` is called once for each partition, unless it is cancelled."""

    def __init__(
        self,
        network: NetworkCore,
        partitions: Iterable[TopicPartition],
        question: Question,
        on_result: OnResult,
        deadline_ms: float,
    ) -> None:
        self._network = network
        self._question = question
        self._on_result = on_result
        self._deadline_ms = deadline_ms
        self._pending = {tp: _Pending() for tp in partitions}
        self._first_version = network.metadata.version
        if self._pending:
            network.parties.append(self)

    @property
    def is_done(self) -> bool:
        return not self._pending

    def cancel(self, tp: TopicPartition) -> None:
        """Nobody wants to know any more."""
        self._pending.pop(tp, None)

    def step(self, now: float) -> None:
        if self._deadline_ms <= now:
            for tp, pending in list(self._pending.items()):
                why = pending.last_error or KafkaError(ErrorCode.REQUEST_TIMED_OUT, self._network.trouble())
                name = self._question.request_type.NAME
                self._settle(tp, None, TimedOut(f"{name} for {tp}: no answer in time ({why})"), now)
        for node_id, partitions in self._by_leader(now).items():
            if self._network.ready(node_id, now):
                self._ask(node_id, partitions, now)
        if not self._pending and self in self._network.parties:
            # A new list: the network may be walking over the old one.
            self._network.parties = [party for party in self._network.parties if party is not self]

    def next_deadline(self, now: float) -> float:
        moments = [p.not_before_ms for p in self._pending.values() if p.not_before_ms > now]
        return min([self._deadline_ms, *moments])

    def _by_leader(self, now: float) -> dict[int, list[TopicPartition]]:
        metadata = self._network.metadata
        found: dict[int, list[TopicPartition]] = {}
        for tp, pending in list(self._pending.items()):
            if pending.in_flight or pending.not_before_ms > now:
                continue
            metadata.want(tp.topic, now)
            leader = metadata.leader_of(tp)
            if leader is not None:
                found.setdefault(leader.node_id, []).append(tp)
            elif (error := self._hopeless(tp)) is not None:
                self._settle(tp, None, error, now)
            else:
                metadata.invalidate()
        return found

    def _hopeless(self, tp: TopicPartition) -> KafkaError | None:
        topic = self._network.metadata.topic(tp.topic)
        if topic is None:
            return None
        if topic.error is not None and not topic.error.retriable:
            return KafkaError(topic.error, f"topic {tp.topic!r}: {topic.error.name}")
        is_fresh = self._network.metadata.version > self._first_version
        if is_fresh and topic.error is None and tp.partition not in topic.partitions:
            return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{tp} does not exist")
        return None

    def _ask(self, node_id: int, partitions: list[TopicPartition], now: float) -> None:
        question = self._question
        try:
            version = self._network.version_for(node_id, question.request_type)
            if version < question.at_least:
                raise UnsupportedVersion(
                    f"{question.request_type.NAME} v{question.at_least} is needed, the broker has v{version}"
                )
        except UnsupportedVersion as error:
            for tp in partitions:
                self._settle(tp, None, error, now)
            return
        for tp in partitions:
            self._pending[tp].in_flight = True
            self._pending[tp].attempts += 1

        def answered(response: Any, error: KafkaError | None, now: float) -> None:
            self._on_answer(partitions, response, error, now)

        timeout_ms = min(self._network.config.request_timeout_ms, self._deadline_ms - now)
        self._network.send(node_id, question.build(partitions), version, answered, now, timeout_ms)

    def _on_answer(
        self, partitions: list[TopicPartition], response: Any, error: KafkaError | None, now: float
    ) -> None:
        results: dict[TopicPartition, tuple[int, Any]] = {}
        if response is not None:
            results = {tp: (code, value) for tp, code, value in self._question.parse(response)}
        for tp in partitions:
            pending = self._pending.get(tp)
            if pending is None:
                continue
            pending.in_flight = False
            if tp in results:
                code, value = results[tp]
                found = error_of(code)
                failure = None if found is None else KafkaError(found, f"{tp}: {found.name}")
            else:
                value = None
                failure = error or KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{tp}: not in the answer")
            self._take(tp, pending, value, failure, now)

    def _take(
        self, tp: TopicPartition, pending: _Pending, value: Any, failure: KafkaError | None, now: float
    ) -> None:
        if failure is None or not failure.code.retriable or self._network.closed:
            self._settle(tp, value, failure, now)
            return
        if failure.code in STALE_METADATA:
            self._network.metadata.invalidate()
        pending.last_error = failure
        pending.not_before_ms = now + self._network.retry_delay_ms(pending.attempts)

    def _settle(self, tp: TopicPartition, value: Any, error: KafkaError | None, now: float) -> None:
        if self._pending.pop(tp, None) is not None:
            self._on_result(tp, value, error, now)
