"""Committing and fetching a group's offsets, one commit at a time.

Commits go out in the order they were asked for, each only when the one before it is settled: so a commit that has
to be tried again never undoes a later one. Each is built anew for every try, with the generation (or epoch) the
member has then. A party of the network core through the group core, which gives it its turns.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ottla.client.calls import Call
from ottla.client.coordinators import group_coordinator
from ottla.client.errors import CommitFailed
from ottla.client.group.offset_messages import (
    GroupMetadata,
    OffsetAndMetadata,
    Offsets,
    at_most,
    commit_error,
    commit_request,
    fetch_error,
    fetch_request,
    fetched_offsets,
    for_version,
)
from ottla.client.network import NetworkCore
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition

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
    """See the module. `who` says who we are now; `on_rejected` hears that the group does not think so."""

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
        while self._queue and not self._in_flight:
            commit = self._queue[0]
            if not commit.offsets:
                self._settle(commit, None, now)
            elif commit.not_before_ms > now:
                return
            else:
                self._send(commit, now)

    def next_deadline(self, now: float) -> float:
        if not self._queue or self._in_flight or self._queue[0].not_before_ms <= now:
            return float("inf")
        return self._queue[0].not_before_ms

    def _send(self, commit: _Commit, now: float) -> None:
        self._in_flight = True
        metadata = self._network.metadata

        def build(_: Any, version: int) -> Any:
            commit.sent_as = self._who()
            return commit_request(commit.offsets, commit.sent_as, metadata)

        def answered(response: Any, error: KafkaError | None, now: float) -> None:
            self._in_flight = False
            code = None if response is None else commit_error(response)
            if code is not None:
                self._on_error(commit, code, now)
            else:
                self._settle(commit, error, now)

        call = Call(
            commit_request(commit.offsets, self._who(), metadata),
            self._target,
            commit.deadline_ms,
            answered,
            error_of=commit_error,
            at_most=at_most({tp.topic for tp in commit.offsets}, metadata),
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
            code = None if response is None else fetch_error(response)
            if code is not None:
                error = KafkaError(code, f"the committed offsets of group {who.group_id!r}: {code.name}")
            found = {} if error is not None else fetched_offsets(response, metadata)
            failed = next((value for value in found.values() if isinstance(value, ErrorCode)), None)
            if failed is not None:
                error = KafkaError(failed, f"the committed offsets of group {who.group_id!r}: {failed.name}")
            offsets = {tp: value for tp, value in found.items() if not isinstance(value, ErrorCode)}
            on_done({tp: offsets.get(tp) for tp in wanted}, error, now)

        call = Call(
            fetch_request(who, wanted, metadata, require_stable=True),
            self._target,
            deadline_ms,
            answered,
            error_of=fetch_error,
            at_most=at_most({tp.topic for tp in wanted}, metadata),
            adapt=for_version,
        )
        self._network.call(call, now)


def _explain(code: ErrorCode, group_id: str) -> str:
    if code is ErrorCode.REBALANCE_IN_PROGRESS:
        return f"group {group_id!r} is rebalancing: poll, and commit again what is still assigned"
    if code is ErrorCode.FENCED_INSTANCE_ID:
        return f"group {group_id!r}: another consumer has taken over this group_instance_id"
    return f"group {group_id!r} has given this consumer's partitions to others ({code.name}): poll more often"
