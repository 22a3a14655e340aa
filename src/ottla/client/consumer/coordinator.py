"""Kafka's ConsumerCoordinator: ties a group's member to the consumer's positions and to the application.

The member decides what changes hands; the application hears of it, and reacts, when it polls: `take` hands the
driver the next rebalance event, the driver commits and calls the listener, `finish` lets the member go on. So
callbacks run where the application polls, as in the Java client, while heartbeats go on by themselves.
Positions come from what the group has committed; what was consumed is committed at a poll, when everything that
earlier polls returned is done with. A RequestManager of the network core; owned by one driver.
"""

import logging
import re
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ottla.client.config import ConsumerConfig
from ottla.client.consumer.core import ConsumerCore
from ottla.client.errors import Closed, CommitFailed, StateError
from ottla.client.group.events import Change, Member, Rebalance, Subscribed
from ottla.client.network import Call, NetworkCore, group_coordinator, timed_out_waiting
from ottla.client.offsets import (
    GroupMetadata,
    OffsetAndMetadata,
    Offsets,
    fetched_offsets,
    names_at_most,
    offset_commit_error,
    offset_commit_request,
    offset_fetch_error,
    offset_fetch_for_version,
    offset_fetch_request,
)
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition

log = logging.getLogger(__name__)

OnCommitted = Callable[[KafkaError | None, float], None]
OnFetched = Callable[[dict[TopicPartition, OffsetAndMetadata | None], KafkaError | None, float], None]

# The group has gone on without us, or is about to.
NOT_A_MEMBER = frozenset(
    {
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.REBALANCE_IN_PROGRESS,
    }
)


@dataclass(slots=True, eq=False)
class _Commit:
    offsets: Offsets
    deadline_ms: float
    on_done: OnCommitted
    sent_as: GroupMetadata | None = None
    not_before_ms: float = float("-inf")


class Commits:
    """Committing and fetching a group's offsets, one commit at a time.

    Commits go out in the order they were asked for, each only when the one before it is settled: so a commit that has
    to be tried again never undoes a later one. Each is built anew for every try, with the generation (or epoch) the
    member has then: `who` says who we are now; `on_rejected` hears that the group does not think so.
    """

    def __init__(
        self,
        network: NetworkCore,
        group_id: str,
        who: Callable[[], GroupMetadata],
        on_rejected: Callable[[ErrorCode, GroupMetadata, float], None],
    ) -> None:
        self._network = network
        self._target = group_coordinator(group_id)
        self._who = who
        self._on_rejected = on_rejected
        self._queue: deque[_Commit] = deque()
        self._in_flight = False
        # What the broker is known to have, so that the same is not committed every few seconds.
        self.acknowledged: dict[TopicPartition, OffsetAndMetadata] = {}

    @property
    def is_idle(self) -> bool:
        return not self._queue

    def commit(self, offsets: Offsets, deadline_ms: float, on_done: OnCommitted, now: float) -> None:
        if not offsets and not self._queue:
            on_done(None, now)
            return
        self._queue.append(_Commit(dict(offsets), deadline_ms, on_done))

    def step(self, now: float) -> None:
        for commit in [other for other in self._waiting() if other.deadline_ms <= now]:
            self._settle(commit, timed_out_waiting("the offsets could not be committed", self._network), now)
        while self._queue and not self._in_flight:
            commit = self._queue[0]
            if not commit.offsets:
                self._settle(commit, None, now)
            elif commit.not_before_ms > now:
                return
            else:
                self._send(commit, now)

    def close(self, now: float) -> None:
        """The consumer closes: what waits behind a commit that is on its way has no turn any more."""
        for commit in self._waiting():
            self._settle(commit, Closed(), now)

    def _waiting(self) -> list[_Commit]:
        """Those that are not on their way: one before them may take longer than they have time."""
        return list(self._queue)[1:] if self._in_flight else list(self._queue)

    def next_deadline(self, now: float) -> float:
        moments = [commit.deadline_ms for commit in self._waiting()]
        if self._queue and not self._in_flight:
            moments.append(self._queue[0].not_before_ms)
        return min((moment for moment in moments if moment > now), default=float("inf"))

    def _send(self, commit: _Commit, now: float) -> None:
        self._in_flight = True
        metadata = self._network.metadata

        def build(_: Any, version: int) -> Any:
            commit.sent_as = self._who()
            return offset_commit_request(commit.offsets, commit.sent_as, metadata)

        def answered(response: Any, error: KafkaError | None, now: float) -> None:
            self._in_flight = False
            code = None if response is None else offset_commit_error(response)
            if code is not None:
                self._on_error(commit, code, now)
            else:
                self._settle(commit, error, now)

        call = Call(
            offset_commit_request(commit.offsets, self._who(), metadata),
            self._target,
            commit.deadline_ms,
            answered,
            error_of=offset_commit_error,
            at_most=names_at_most({tp.topic for tp in commit.offsets}, metadata),
            adapt=build,
        )
        self._network.call(call, now)

    def _on_error(self, commit: _Commit, code: ErrorCode, now: float) -> None:
        sent_as = commit.sent_as or self._who()
        if code is ErrorCode.STALE_MEMBER_EPOCH and now < commit.deadline_ms and not self._network.closed:
            # KIP-848: the epoch rose while the commit was on its way; it is good under the new one.
            commit.not_before_ms = now + self._network.retry_delay_ms(1)
            return
        if code in NOT_A_MEMBER:
            self._on_rejected(code, sent_as, now)
            self._settle(commit, CommitFailed(code, _explain(code, sent_as.group_id)), now)
        else:
            self._settle(commit, KafkaError(code, f"group {sent_as.group_id!r}: {code.name}"), now)

    def _settle(self, commit: _Commit, error: KafkaError | None, now: float) -> None:
        self._queue.remove(commit)
        if error is None:
            self.acknowledged.update(commit.offsets)
        commit.on_done(error, now)

    def fetch(
        self,
        partitions: Iterable[TopicPartition],
        deadline_ms: float,
        on_done: OnFetched,
        now: float,
        *,
        as_member: bool = True,
    ) -> None:
        """What the group has committed for these partitions; waits for open transactions to end (KIP-447)."""
        wanted = list(partitions)
        metadata = self._network.metadata
        who = self._who()
        if not as_member:
            who = GroupMetadata(who.group_id)

        def answered(response: Any, error: KafkaError | None, now: float) -> None:
            code = None if response is None else offset_fetch_error(response)
            if code is not None:
                error = KafkaError(code, f"the committed offsets of group {who.group_id!r}: {code.name}")
            found = {} if error is not None else fetched_offsets(response, metadata)
            failed = next((value for value in found.values() if isinstance(value, ErrorCode)), None)
            if failed is not None:
                error = KafkaError(failed, f"the committed offsets of group {who.group_id!r}: {failed.name}")
            offsets = {tp: value for tp, value in found.items() if not isinstance(value, ErrorCode)}
            on_done({tp: offsets.get(tp) for tp in wanted}, error, now)

        call = Call(
            offset_fetch_request(who, wanted, metadata, require_stable=True),
            self._target,
            deadline_ms,
            answered,
            error_of=offset_fetch_error,
            at_most=names_at_most({tp.topic for tp in wanted}, metadata),
            adapt=offset_fetch_for_version,
        )
        self._network.call(call, now)


def _explain(code: ErrorCode, group_id: str) -> str:
    if code is ErrorCode.REBALANCE_IN_PROGRESS:
        return f"group {group_id!r} is rebalancing: poll, and commit again what is still assigned"
    if code is ErrorCode.FENCED_INSTANCE_ID:
        return f"group {group_id!r}: another consumer has taken over this group_instance_id"
    return f"group {group_id!r} has given this consumer's partitions to others ({code.name}): poll more often"


# How often the metadata hears which topics are still of interest; far below metadata_max_idle_ms.
_KEEP_TOPICS_MS = 1_000.0


class GroupCore:
    """A consumer's side of its group: the subscription, the member, commits, and rebalances for the application."""

    def __init__(self, network: NetworkCore, config: ConsumerConfig, consumer: ConsumerCore) -> None:
        assert config.group_id is not None
        self._network = network
        self._config = config
        self._consumer = consumer
        self.group_id = config.group_id
        self.subscribed = Subscribed()
        self.member: Member = _make_member(self, network, config)
        self.commits = Commits(network, config.group_id, lambda: self.identity, self._on_rejected)
        self.changes = 0  # counts how often partitions have changed hands
        self._wanted: tuple[frozenset[str], float] = (frozenset(), float("-inf"))
        self._events: deque[Rebalance] = deque()
        self._current: Rebalance | None = None
        self._paused_before: set[TopicPartition] = set()
        self._last_poll_ms: float | None = None
        self.polling = 0  # how many polls wait right now
        self._is_expired = False
        self._is_leaving = False
        self._next_auto_commit_ms = float("inf")
        consumer.finder.committed_source = self._fetch_committed
        network.request_managers.append(self)

    # -- what the application says --------------------------------------------------------------------

    def subscribe(
        self,
        topics: Iterable[str] = (),
        pattern: re.Pattern[str] | None = None,
        server_pattern: str | None = None,
    ) -> None:
        """Read what the group assigns of these; the member joins (again) at the next poll."""
        before, self.subscribed = self.subscribed, Subscribed()
        if not before:
            self._consumer.assign([], 0.0)  # what was assigned by hand is no longer wanted
        self.subscribed.topics = frozenset(topics)
        self.subscribed.pattern, self.subscribed.server_pattern = pattern, server_pattern
        self._network.metadata.want_all(pattern is not None)

    def unsubscribed(self) -> None:
        """The member has left: nothing is wanted any more."""
        self.subscribed = Subscribed()
        self._is_leaving = False
        self._network.metadata.want_all(False)
        self.interrupt()
        self._consumer.assign([], 0.0)

    @property
    def identity(self) -> GroupMetadata:
        """Who commits: the member, or nobody in particular when partitions are assigned by hand."""
        return self.member.identity if self.subscribed else GroupMetadata(self.group_id)

    @property
    def owned(self) -> list[TopicPartition]:
        return sorted(self._consumer.assignment)

    @property
    def is_active(self) -> bool:
        """The application is subscribed and polls."""
        polls = self._last_poll_ms is not None and not self._is_expired
        return bool(self.subscribed) and polls and not self._is_leaving

    # -- polls ----------------------------------------------------------------------------------------

    def polled(self, now: float) -> None:
        """The application polls: it is alive, and done with what it got before."""
        if self.subscribed and self.member.fatal is not None:
            raise self.member.fatal
        self._last_poll_ms = now
        self._is_expired = False
        if self._config.enable_auto_commit and self._next_auto_commit_ms <= now:
            self._auto_commit(now)
        if self._next_auto_commit_ms == float("inf"):
            self._next_auto_commit_ms = now + self._config.auto_commit_interval_ms

    def returned(self, now: float) -> None:
        """A poll is over: the time until the next one counts from here."""
        self._last_poll_ms = now

    def begin_leaving(self) -> None:
        """What the member has is given up before it leaves."""
        self._is_leaving = True
        self.interrupt()
        if self.subscribed and self.owned:
            has_place = self.member.identity.generation_id >= 0
            self.push(Change.REVOKED if has_place else Change.LOST, self.owned)

    def commit_soon(self, now: float) -> None:
        """What was consumed is about to be given up by the application's own wish: commit it, if that is automatic."""
        if self._config.enable_auto_commit and self.dirty():
            self._auto_commit(now)

    def _auto_commit(self, now: float) -> None:
        self._next_auto_commit_ms = now + self._config.auto_commit_interval_ms
        if self.commits.is_idle:
            deadline = now + self._config.default_api_timeout_ms
            # A group without members keeps an offset only so long after it was committed last.
            offsets = self.dirty() if self.subscribed else self.consumed()
            self.commits.commit(offsets, deadline, self._on_auto_commit, now)

    def _on_auto_commit(self, error: KafkaError | None, now: float) -> None:
        if error is not None:
            self.auto_commit_failed(error)

    def auto_commit_failed(self, error: KafkaError) -> None:
        """A warning, as in the Java client: nobody waits for this commit, and what is read again is no loss."""
        if not isinstance(error, Closed):
            log.warning(
                "group %s: the offsets could not be committed automatically: %s", self.group_id, error
            )

    def consumed(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """The positions of partitions (all that are assigned), as far as they are known."""
        positions = self._consumer.positions()
        wanted = positions.keys() if partitions is None else partitions
        return {
            tp: OffsetAndMetadata(offset, "", epoch)
            for tp in wanted
            if tp in positions
            for offset, epoch in [positions[tp]]
        }

    def dirty(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Those among them that the broker is not known to have."""
        known = self.commits.acknowledged
        return {
            tp: value
            for tp, value in self.consumed(partitions).items()
            if tp not in known or known[tp].offset != value.offset
        }

    # -- rebalance events -----------------------------------------------------------------------------

    def push(
        self,
        change: Change,
        partitions: Iterable[TopicPartition],
        then: Callable[[float], None] | None = None,
    ) -> None:
        """The member wants the application to hear of this; `then` is called when it has."""
        self._events.append(Rebalance(change, sorted(partitions), then))
        if change is not Change.ASSIGNED:
            # Nothing of them is handed out any more: what is committed now stays the truth.
            self._consumer.hold(self._events[-1].partitions)

    def interrupt(self) -> None:
        """Events that the application has not heard of are out of date; the one it hears of now has no consequences."""
        self._events.clear()
        if self._current is not None:
            self._current.then = None

    @property
    def is_settled(self) -> bool:
        """No rebalance event waits or is being handled."""
        return not self._events and self._current is None

    def has_event(self) -> bool:
        return bool(self._events) and self._current is None

    def take(self, now: float) -> Rebalance | None:
        """The next event for the application. New partitions are there already, so that it may seek in them."""
        if self._current is not None or not self._events:
            return None
        event = self._current = self._events.popleft()
        owned = self._consumer.assignment
        if event.change is Change.ASSIGNED:
            self._consumer.add(event.partitions, now)
            paused = self._paused_before.intersection(event.partitions)
            self._consumer.pause(paused)
            self._paused_before.clear()
            for tp in event.partitions:
                self.commits.acknowledged.pop(tp, None)
        else:
            event.partitions = [tp for tp in event.partitions if tp in owned]
        return event

    def finish(self, event: Rebalance, now: float) -> None:
        """The application has heard it."""
        assert event is self._current
        self._current = None
        self.changes += 1
        if event.change is Change.ASSIGNED:
            self._consumer.release(event.partitions)
        else:
            # Those that come straight back, as all do in an eager rebalance, stay paused.
            self._paused_before |= self._consumer.paused().intersection(event.partitions)
            self._consumer.remove(event.partitions)
        if event.then is not None:
            event.then(now)

    # -- the turn -------------------------------------------------------------------------------------

    def step(self, now: float) -> None:
        if self.subscribed:
            self.subscribed.match(self._network, self._config.exclude_internal_topics)
            self._keep_topics(now)
            self._watch_polls(now)
            self.member.step(now)
        self.commits.step(now)

    def _keep_topics(self, now: float) -> None:
        """Topics nobody speaks of are forgotten: so they are spoken of, though not in every turn."""
        topics, again_ms = self._wanted
        if topics is self.subscribed.topics and now < again_ms:
            return
        self._wanted = (self.subscribed.topics, now + _KEEP_TOPICS_MS)
        for topic in self.subscribed.topics:
            self._network.metadata.want(topic, now)

    def next_deadline(self, now: float) -> float:
        moments = [self.member.next_deadline(now), self.commits.next_deadline(now), self._poll_deadline()]
        return min((moment for moment in moments if moment > now), default=float("inf"))

    def _poll_deadline(self) -> float:
        if self._last_poll_ms is None or self.polling or self._is_expired or not self.subscribed:
            return float("inf")
        return self._last_poll_ms + self._config.max_poll_interval_ms

    def _watch_polls(self, now: float) -> None:
        if self._poll_deadline() <= now:
            self._is_expired = True
            self.member.expired(now)

    def _on_rejected(self, code: ErrorCode, who: GroupMetadata, now: float) -> None:
        if self.subscribed:
            self.member.rejected(code, who, now)

    def _fetch_committed(self, partitions: list[TopicPartition], now: float) -> None:
        """The consumer has partitions without a position: where did the group stop?"""

        def found(
            offsets: dict[TopicPartition, OffsetAndMetadata | None], error: KafkaError | None, now: float
        ) -> None:
            for tp, offset in offsets.items():
                if offset is not None:
                    self.commits.acknowledged[tp] = offset
                at = None if offset is None else (offset.offset, offset.leader_epoch)
                self._consumer.finder.on_committed(tp, at, error, now)

        self.commits.fetch(partitions, float("inf"), found, now)

    def report(self, error: KafkaError) -> None:
        """Something the application hears of at its next poll, though it goes on."""
        self._consumer.report(error)

    def require_no_subscription(self) -> None:
        if self.subscribed:
            raise StateError("partitions are assigned by the group: unsubscribe before assigning by hand")


def _make_member(group: GroupCore, network: NetworkCore, config: ConsumerConfig) -> Member:
    if config.group_protocol == "consumer":
        from ottla.client.group.consumer import ConsumerMember

        return ConsumerMember(group, network, config)
    from ottla.client.group.classic import ClassicMember

    return ClassicMember(group, network, config)
