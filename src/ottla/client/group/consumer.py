"""A member of a consumer group of the new protocol (KIP-848): one request, the heartbeat, does everything.

The broker assigns; the member says what it subscribes to and what it holds, and brings what it holds step by step
to what it is assigned: gives up first, then takes, then says so. A member the broker no longer knows has lost
what it held and joins again, with epoch 0, under the id it gave itself. No clock, socket or await: the group
core gives it its turns and passes what changes hands to the application.
"""

from collections.abc import Callable
from typing import Any

from ottla.client.config import ConsumerConfig
from ottla.client.errors import Closed, UnsupportedVersion
from ottla.client.group.events import Change, Group
from ottla.client.network import MOVED_COORDINATOR, Call, NetworkCore, group_coordinator
from ottla.client.offsets import GroupMetadata, by_topic
from ottla.model.errors import ErrorCode, KafkaError, error_of
from ottla.model.ids import TopicPartition, Uuid, uuid_to_str
from ottla.wire.messages.groups.consumer import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatRequestTopicPartitions,
)

JOINING_EPOCH = 0
LEAVING_EPOCH = -1
# A static member that comes back: its partitions wait for it.
LEAVING_FOR_NOW_EPOCH = -2
REGEX_VERSION = 1
# Until the broker has said how often it wants to hear from us; and how long a heartbeat is tried.
FIRST_INTERVAL_MS = 3_000.0
HEARTBEAT_DEADLINE_MS = 45_000.0

_LOST = frozenset({ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID})


class ConsumerMember:
    """One member, from its first heartbeat to its last."""

    def __init__(self, group: Group, network: NetworkCore, config: ConsumerConfig) -> None:
        self._group = group
        self._network = network
        self._config = config
        self._target = group_coordinator(config.group_id or "")
        self.member_id = uuid_to_str(Uuid(network.random.randbytes(16)))
        self.epoch = JOINING_EPOCH
        self.fatal: KafkaError | None = None
        self._assigned: dict[Uuid, list[int]] | None = None  # what the broker wants us to have
        self._reconciled = (-1, -1)  # the assignment and the metadata last looked at
        self._assignments = 0  # how many assignments have come
        self._was_told = False  # the application has heard of one since we joined
        self._is_away = False  # partitions were lost and the application has not heard of it yet
        self._said: dict[str, Any] = {}  # the fields the broker knows already
        self._said_topics: tuple[frozenset[str], str | None] = (frozenset(), None)
        self._said_changes = -1
        self._call: Call | None = None
        self._interval_ms = FIRST_INTERVAL_MS
        self._next_heartbeat_ms = float("-inf")
        self._failures = 0

    @property
    def identity(self) -> GroupMetadata:
        epoch = self.epoch if self.epoch > JOINING_EPOCH else -1
        return GroupMetadata(self._target.key, epoch, self.member_id, self._config.group_instance_id)

    # -- the turn -------------------------------------------------------------------------------------

    def step(self, now: float) -> None:
        if self.fatal is not None or not self._group.is_active or self._is_away:
            return
        self._reconcile(now)
        if self._call is None and (self._next_heartbeat_ms <= now or self._has_news(now)):
            self._heartbeat(now)

    def next_deadline(self, now: float) -> float:
        return self._next_heartbeat_ms if self._call is None else float("inf")

    # -- reconciling ----------------------------------------------------------------------------------

    def _reconcile(self, now: float) -> None:
        """Bring what we hold nearer to what we are assigned, when the application is free to hear of it."""
        seen = (self._assignments, self._network.metadata.version)
        if self._assigned is None or seen == self._reconciled or not self._group.is_settled:
            return
        self._reconciled = seen
        wanted = self._resolve(self._assigned)
        owned = set(self._group.owned)
        if wanted == owned and (self._was_told or any(self._assigned.values())):
            return
        # As in the Java client, also of an assignment of nothing, if it is the first: it may wait for that.
        self._was_told = True
        if taken := owned - wanted:
            self._group.push(Change.REVOKED, taken)
        self._group.push(Change.ASSIGNED, wanted - owned)

    def _resolve(self, assigned: dict[Uuid, list[int]]) -> set[TopicPartition]:
        """Partitions by name; those of a topic whose name is not known yet follow when it is."""
        metadata = self._network.metadata
        found: set[TopicPartition] = set()
        for topic_id, numbers in assigned.items():
            name = metadata.names_by_id.get(topic_id)
            if name is not None:
                found.update(TopicPartition(name, number) for number in numbers)
        # One that is gone before its name was found out is asked for as long as it is assigned, and no longer.
        metadata.want_ids(assigned)
        return found

    # -- heartbeats -----------------------------------------------------------------------------------

    def _fields(self) -> dict[str, Any]:
        """What the broker should know of us."""
        subscribed = self._group.subscribed
        return {
            "rebalance_timeout_ms": self._config.max_poll_interval_ms,
            "subscribed_topic_names": sorted(subscribed.topics),
            "subscribed_topic_regex": subscribed.server_pattern,
            "server_assignor": self._config.group_remote_assignor,
            "topic_partitions": self._owned(),
            "rack_id": self._config.client_rack or None,
        }

    def _owned(self) -> list[ConsumerGroupHeartbeatRequestTopicPartitions]:
        return [
            ConsumerGroupHeartbeatRequestTopicPartitions(
                topic_id=self._network.metadata.topic_id(topic), partitions=numbers
            )
            for topic, numbers in by_topic(self._group.owned)
        ]

    def _has_news(self, now: float) -> bool:
        """Something changed that the broker should hear before the next heartbeat is due."""
        if self._failures:
            return False  # the backoff has to pass
        if not self._said:
            return self._group.subscribed.is_settled
        subscribed = self._group.subscribed
        if (subscribed.topics, subscribed.server_pattern) != self._said_topics:
            return True
        return self._group.is_settled and self._group.changes != self._said_changes

    def _heartbeat(self, now: float) -> None:
        if not self._group.subscribed.is_settled:
            return
        fields = self._fields()
        if not self._group.is_settled and self._said:
            fields["topic_partitions"] = self._said["topic_partitions"]  # in the midst of a change
        news = {name: value for name, value in fields.items() if value != self._said.get(name)}
        if not self._said:
            news = fields
        elif "subscribed_topic_regex" in news and news["subscribed_topic_regex"] is None:
            news["subscribed_topic_regex"] = ""  # none any more
        request = ConsumerGroupHeartbeatRequest(
            group_id=self._target.key,
            member_id=self.member_id,
            member_epoch=self.epoch,
            instance_id=self._config.group_instance_id,
            **news,
        )
        self._said = fields
        subscribed = self._group.subscribed
        self._said_topics = (subscribed.topics, subscribed.server_pattern)
        if self._group.is_settled:
            self._said_changes = self._group.changes
        self._send(request, now)

    def _send(self, request: ConsumerGroupHeartbeatRequest, now: float) -> None:
        def answered(response: Any, error: KafkaError | None, now: float) -> None:
            self._call = None
            if error is not None:
                self._on_no_answer(error, now)
            elif (code := error_of(response.error_code)) is not None:
                self._on_error(code, response.error_message, now)
            else:
                self._on_answer(response, now)

        # Not sent again as it is: when an answer was lost, its assignment comes again only after a full request.
        self._call = Call(
            request,
            self._target,
            now + HEARTBEAT_DEADLINE_MS,
            answered,
            error_of=lambda _: None,
            retry_lost=False,
            adapt=_check_regex,
        )
        self._network.call(self._call, now)

    def _on_answer(self, response: Any, now: float) -> None:
        self._failures = 0
        self._interval_ms = float(response.heartbeat_interval_ms)
        self._next_heartbeat_ms = now + self._interval_ms
        if response.member_id:
            self.member_id = response.member_id
        self.epoch = response.member_epoch
        if response.assignment is not None:
            self._assignments += 1
            self._assigned = {
                Uuid(entry.topic_id): list(entry.partitions) for entry in response.assignment.topic_partitions
            }

    def _on_no_answer(self, error: KafkaError, now: float) -> None:
        if isinstance(error, Closed):
            return
        if not error.code.retriable:
            self.fatal = error
            return
        self._network.coordinators.forget(self._target)
        self._try_again(now)

    def _try_again(self, now: float) -> None:
        """Say everything again after a while: nobody knows what of the last heartbeat was heard."""
        self._failures += 1
        self._said = {}
        self._next_heartbeat_ms = now + self._network.retry_delay_ms(self._failures)

    def _on_error(self, code: ErrorCode, message: str | None, now: float) -> None:
        words = f"group {self._target.key!r}: {message or code.name}"
        if code in _LOST:
            self._lose(now)
        elif code.retriable:
            if code in MOVED_COORDINATOR:
                self._network.coordinators.forget(self._target)
            self._try_again(now)
        elif code is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            # Whoever lacks a right may be given it: the application hears of it, the member stays.
            self._group.report(KafkaError(code, words))
            self._try_again(now)
        else:
            self.fatal = KafkaError(code, words)

    # -- losing, leaving ------------------------------------------------------------------------------

    def _lose(self, now: float) -> None:
        """The group has gone on without us: what we held is lost, and we join again when that is known."""
        self._begin_again()
        self._group.interrupt()
        owned = self._group.owned
        if owned:
            self._is_away = True
            self._group.push(Change.LOST, owned, self._back)

    def _begin_again(self) -> None:
        if self._call is not None:
            self._call.cancelled = True
            self._call = None
        self.epoch = JOINING_EPOCH
        self._assigned, self._said, self._failures = None, {}, 0
        self._reconciled = (-1, -1)
        self._was_told = False
        self._network.metadata.want_ids(())
        self._next_heartbeat_ms = float("-inf")

    def _back(self, now: float) -> None:
        self._is_away = False

    def rejected(self, code: ErrorCode, who: GroupMetadata, now: float) -> None:
        if code in _LOST and who == self.identity and self.epoch > JOINING_EPOCH:
            self._lose(now)

    def rejoin(self, reason: str) -> None:
        """The broker assigns when it sees a reason: there is nothing to ask for."""

    def expired(self, now: float) -> None:
        self.leave(now, now + self._config.request_timeout_ms, lambda: None, remain=False)
        self._lose(now)

    def leave(self, now: float, deadline_ms: float, on_done: Callable[[], None], *, remain: bool) -> None:
        is_static = self._config.group_instance_id is not None
        was_in = self.epoch > JOINING_EPOCH or self._call is not None
        self._begin_again()
        is_known = self._network.coordinators.known(self._target) is not None
        if not was_in or not is_known or (remain and not is_static):
            on_done()
            return
        request = ConsumerGroupHeartbeatRequest(
            group_id=self._target.key,
            member_id=self.member_id,
            member_epoch=LEAVING_FOR_NOW_EPOCH if is_static else LEAVING_EPOCH,
            instance_id=self._config.group_instance_id,
        )
        self._network.call(Call(request, self._target, deadline_ms, lambda *_: on_done()), now)


def _check_regex(request: ConsumerGroupHeartbeatRequest, version: int) -> ConsumerGroupHeartbeatRequest:
    if version < REGEX_VERSION and request.subscribed_topic_regex is not None:
        raise UnsupportedVersion("this broker does not match expressions: give a compiled pattern instead")
    return request
