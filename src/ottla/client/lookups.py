"""Looking things up in the cluster: the cluster itself, a topic, where partitions are, what their leaders say.

A lookup is made when something is asked and belongs to whoever asks, for as long as it waits. What is asked, until
when, and how the answers are read is the same for every driver and stands here; a driver turns the core until
`is_settled`.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

from ottla.client.errors import (
    AuthenticationFailed,
    NoBrokersAvailable,
    NotABroker,
    TimedOut,
    UnsupportedVersion,
)
from ottla.client.metadata import TopicInfo
from ottla.client.network import STALE_METADATA, NetworkCore, timed_out_waiting
from ottla.model.errors import ErrorCode, KafkaError, error_of
from ottla.model.ids import ZERO_UUID, TopicPartition, Uuid
from ottla.net.peers import Node
from ottla.wire.codec import WireError

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
    """One question about many partitions: a request to each leader, asked again where the answer was no use.

    Serves whatever goes by partition: offsets by timestamp, ends of leader epochs, deleting records. Each partition
    gets its own result or error (`on_result` is called once for each); those with an error that passes are asked for
    again after the backoff, at the leader the metadata then names. A RequestManager of the network core while it has
    work.
    """

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
            network.request_managers.append(self)

    @property
    def is_done(self) -> bool:
        return not self._pending

    def step(self, now: float) -> None:
        if self._deadline_ms <= now:
            for tp, pending in list(self._pending.items()):
                failures = self._network.describe_failures()
                why = pending.last_error or KafkaError(ErrorCode.REQUEST_TIMED_OUT, failures)
                name = self._question.request_type.NAME
                self._settle(tp, None, TimedOut(f"{name} for {tp}: no answer in time ({why})"), now)
        for node_id, partitions in self._by_leader(now).items():
            if self._network.ready(node_id, now):
                self._ask(node_id, partitions, now)
        if not self._pending and self in self._network.request_managers:
            # A new list: the network may be walking over the old one.
            self._network.remove_request_manager(self)

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
            elif (error := self._permanent_error(tp)) is not None:
                self._settle(tp, None, error, now)
            else:
                metadata.invalidate()
        return found

    def _permanent_error(self, tp: TopicPartition) -> KafkaError | None:
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
        try:
            self._network.send(node_id, question.build(partitions), version, answered, now, timeout_ms)
        except WireError as error:
            for tp in partitions:
                self._settle(tp, None, error, now)

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


# Calls and fanouts end by their own deadlines; whoever turns the core for them waits a little longer.
GRACE_MS = 10_000.0


class LeaderLookup:
    """The wait for the leaders of partitions; `results` once `is_settled`, one for each partition."""

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


_FINAL = (NotABroker, AuthenticationFailed)


class FirstContact:
    """The wait for the first picture of the cluster; a `timeout_ms` of 0 means every address is tried once."""

    def __init__(self, core: NetworkCore, timeout_ms: float) -> None:
        self._core = core
        self._fail_fast = timeout_ms <= 0
        self.limit_ms = core.config.socket_connection_setup_timeout_ms if self._fail_fast else timeout_ms

    def is_settled(self) -> bool:
        core = self._core
        if core.metadata.version > 0:
            return True
        error = core.bootstrap_error()
        # What is no broker will not be one later, nor will a password be right; a broker that is not there may come.
        return error is not None and (self._fail_fast or isinstance(error, _FINAL))

    def check(self) -> None:
        """NoBrokersAvailable, with who was tried and why in vain, if there was none."""
        core = self._core
        if core.metadata.version == 0:
            addresses = ", ".join(map(str, core.config.addresses))
            raise core.bootstrap_error() or NoBrokersAvailable(
                f"no broker can be reached: {core.describe_failures() or addresses + ': no answer'}"
            )


class TopicLookup:
    """The wait until the cluster has said what it knows of a topic; `result` once `is_settled`, or when time is up."""

    def __init__(self, core: NetworkCore, name: str, now: float) -> None:
        self._core = core
        self._name = name
        core.metadata.want(name, now)
        self._asked = core.metadata.version

    def is_settled(self) -> bool:
        info = self._core.metadata.topic(self._name)
        return info is not None and (bool(info.partitions) or self._is_final(info))

    def result(self) -> TopicInfo:
        """What is known; UNKNOWN_TOPIC_OR_PARTITION, or whatever else stands in the way."""
        info = self._core.metadata.topic(self._name)
        if info is None or (info.error is None and not info.partitions):
            raise timed_out_waiting(f"topic {self._name!r} was not found", self._core)
        return existing(info)

    def _is_final(self, info: TopicInfo) -> bool:
        """The topic's error will not go away by asking again (a missing topic, unless it is being created)."""
        if info.error is None:
            return False
        creates = self._core.config.allow_auto_create_topics
        missing = info.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and not creates
        return self._core.metadata.version > self._asked and (missing or not info.error.retriable)


def existing(info: TopicInfo) -> TopicInfo:
    """The topic, if it is one: KafkaError if it has no partitions."""
    if info.partitions:
        return info
    error = info.error or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    missing = error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    raise KafkaError(error, f"topic {info.name!r}: {'does not exist' if missing else error.name}")


# -- where partitions are ---------------------------------------------------------------------------------


# A broker that has just started may not know a topic yet: it counts as gone only after this.
GONE_AFTER_MS = 5_000.0


class PartitionWatch:
    """Where a partition's leader is, and whether the partition is still the one it was.

    Whoever reads or writes by offsets or sequence numbers must not go on with a topic that was deleted, nor with one
    made anew under the same name. The topic's id shows that, from the first answer of the leader on (`confirm`): until
    then the id comes from metadata that may be long out of date, and may change.
    """

    def __init__(self, network: NetworkCore, tp: TopicPartition) -> None:
        self._network = network
        self._missing_since: float | None = None
        self.tp = tp
        self.topic_id: Uuid = ZERO_UUID
        self._is_confirmed = False

    def leader(self, now: float) -> Node | None:
        """The leader, or None if it is asked for and somebody has to wait; KafkaError if there is none to come."""
        metadata = self._network.metadata
        metadata.want(self.tp.topic, now)
        topic = metadata.topic(self.tp.topic)
        if topic is not None:
            self._check(topic, now)
        node = metadata.leader_of(self.tp)
        if node is None:
            metadata.invalidate()
        return node

    def confirm(self) -> None:
        """The leader has answered under this id: from here on it is this topic and no other."""
        self._is_confirmed = True

    def next_deadline(self) -> float:
        return float("inf") if self._missing_since is None else self._missing_since + GONE_AFTER_MS

    def _check(self, topic: TopicInfo, now: float) -> None:
        if topic.error is not None and not topic.error.retriable:
            raise KafkaError(topic.error, f"topic {topic.name!r}: {topic.error.name}")
        if self._is_missing(topic):
            self._missing_since = now if self._missing_since is None else self._missing_since
            if now - self._missing_since >= GONE_AFTER_MS:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{self.tp} does not exist")
            self._network.metadata.invalidate()
            return
        self._missing_since = None
        self._check_id(topic)

    def _is_missing(self, topic: TopicInfo) -> bool:
        if topic.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return not self._network.config.allow_auto_create_topics
        return topic.error is None and self.tp.partition not in topic.partitions

    def _check_id(self, topic: TopicInfo) -> None:
        if not self._is_confirmed:
            self.topic_id = topic.topic_id
        elif topic.topic_id != self.topic_id:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"{self.tp}: the topic was deleted, and made anew under the same name",
            )


class Places(Protocol):
    """Where partitions are, for a sender or a fetcher, which asks for a partition's leader before all else."""

    def leader(self, tp: TopicPartition, now: float) -> Node | None:
        """The leader, or None if it is asked for and somebody has to wait; KafkaError if there is none to come."""
        ...

    def topic_id(self, tp: TopicPartition) -> Uuid: ...

    def confirm(self, tp: TopicPartition) -> None:
        """The leader has answered under this id."""
        ...

    def next_deadline(self) -> float: ...


class KnownPlaces:
    """The metadata as it is: a topic made anew is simply the topic of that name."""

    def __init__(self, network: NetworkCore) -> None:
        self._metadata = network.metadata

    def leader(self, tp: TopicPartition, now: float) -> Node | None:
        node = self._metadata.leader_of(tp)
        if node is None:
            self._metadata.want(tp.topic, now)
            self._metadata.invalidate()
        return node

    def topic_id(self, tp: TopicPartition) -> Uuid:
        return self._metadata.topic_id(tp.topic)

    def confirm(self, tp: TopicPartition) -> None:
        pass

    def next_deadline(self) -> float:
        return float("inf")


class WatchedPlaces:
    """A PartitionWatch for each partition: who writes by given numbers must not go on with another topic."""

    def __init__(self, network: NetworkCore) -> None:
        self._network = network
        self._watches: dict[TopicPartition, PartitionWatch] = {}

    def leader(self, tp: TopicPartition, now: float) -> Node | None:
        watch = self._watches.get(tp)
        if watch is None:
            watch = self._watches[tp] = PartitionWatch(self._network, tp)
        return watch.leader(now)

    def topic_id(self, tp: TopicPartition) -> Uuid:
        return self._watches[tp].topic_id

    def confirm(self, tp: TopicPartition) -> None:
        self._watches[tp].confirm()

    def next_deadline(self) -> float:
        return min((watch.next_deadline() for watch in self._watches.values()), default=float("inf"))
