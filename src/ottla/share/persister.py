"""Who brings the state of share partitions to the share coordinator, and tries again while that is not there yet.

The first to need the share coordinator makes the topic it writes to. What may pass is tried again, with growing
pauses: a coordinator that is not there yet, is loading or has moved, a topic that the coordinator has not heard of.
Everything else is the asker's to deal with.

Owner: the node, on the broker's loop.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final, Generic, Protocol, TypeVar

from ottla.coordinator.shard import Scheduler
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import Uuid
from ottla.model.pending import Pending
from ottla.share.coordinator import ShareCoordinator, ShareKey, ShareState, StateChange, Summary
from ottla.share.coordinator import StateBatch as KeptBatch
from ottla.share.state import PersistedState, StateBatch

# ----------------------------------------
# What the leader of a share partition needs of the share coordinator: the state that must last (KIP-932).
#
# An answer that failed carries the share coordinator's own error code (NOT_COORDINATOR, FENCED_STATE_EPOCH, ...); what
# that means for a client is decided by who asked. `ottla.share.persister` is the one that a node has.


class Persister(Protocol):
    """Keeps the state of share partitions."""

    def read_state(
        self, group_id: str, topic_id: Uuid, partition: int, leader_epoch: int
    ) -> Pending[PersistedState]:
        """What is known of a share partition, and this leader's epoch noted: older ones may write no more."""
        ...

    def write_state(
        self,
        group_id: str,
        topic_id: Uuid,
        partition: int,
        *,
        state_epoch: int,
        leader_epoch: int,
        start_offset: int,
        delivery_complete_count: int,
        batches: Sequence[StateBatch],
    ) -> Pending[None]:
        """What has changed: done when it is committed."""
        ...


# ----------------------------------------
# Asking about many share partitions without holding the loop: in slices, with a turn for everybody else in between.


K = TypeVar("K")
T = TypeVar("T")

# Share partitions asked about in one turn of the loop: a few milliseconds of decisions.
SLICE: Final = 64
CallSoon = Callable[[Callable[[], None]], Any]


def sweep(
    keys: Iterable[K], ask: Callable[[K], Pending[T]], call_soon: CallSoon
) -> Pending[dict[K, Pending[T]]]:
    """All answers, in the order of the keys, when the last one is there. A key that comes twice is asked twice."""
    return _Sweep(keys, ask, call_soon).start()


class _Sweep(Generic[K, T]):
    """One of them."""

    def __init__(self, keys: Iterable[K], ask: Callable[[K], Pending[T]], call_soon: CallSoon) -> None:
        self._keys = iter(keys)
        self._ask = ask
        self._call_soon = call_soon
        self._answers: dict[K, Pending[T]] = {}
        self._outcome: Pending[dict[K, Pending[T]]] = Pending()
        self._waiting = 1  # for the last slice

    def start(self) -> Pending[dict[K, Pending[T]]]:
        self._slice()
        return self._outcome

    def _slice(self) -> None:
        keys = list(islice(self._keys, SLICE))
        self._waiting += len(keys)
        for key in keys:
            answer = self._answers[key] = self._ask(key)
            answer.then(self._answered)
        if len(keys) == SLICE:
            self._call_soon(self._slice)
        else:
            self._one_less()

    def _answered(self, _: Pending[T]) -> None:
        self._one_less()

    def _one_less(self) -> None:
        self._waiting -= 1
        if not self._waiting:
            self._outcome.resolve(self._answers)


log = logging.getLogger("ottla.coordinator")


# Twelve seconds in all, the first ones quickly: on this broker a shard is loaded in a few milliseconds.
MAX_ATTEMPTS: Final = 8
FIRST_BACKOFF_MS: Final = 100
_RETRIABLE: Final = frozenset(
    {
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)

# For each topic, what is asked or answered of its partitions.
Outcomes = dict[Uuid, dict[int, KafkaError | None]]


class SharePersister:
    """See the module; what share partitions need is named in `ottla.share.persister`."""

    def __init__(
        self, coordinator: ShareCoordinator, scheduler: Scheduler, require_topic: Callable[[], bool]
    ) -> None:
        """`require_topic` says whether the coordinator's topic exists, and has it made otherwise."""
        self._coordinator = coordinator
        self._scheduler = scheduler
        self.require_topic = require_topic

    # ---- for the leaders of partitions ----------------------------------------------------------------------

    def read_state(
        self, group_id: str, topic_id: Uuid, partition: int, leader_epoch: int
    ) -> Pending[PersistedState]:
        key = ShareKey(group_id, topic_id, partition)
        return self._try(lambda: self._coordinator.read(key, leader_epoch)).map(_persisted)

    def write_state(
        self,
        group_id: str,
        topic_id: Uuid,
        partition: int,
        *,
        state_epoch: int,
        leader_epoch: int,
        start_offset: int,
        delivery_complete_count: int,
        batches: Sequence[StateBatch],
    ) -> Pending[None]:
        key = ShareKey(group_id, topic_id, partition)
        kept = tuple(KeptBatch(first, last, count, state) for first, last, state, count in batches)
        change = StateChange(state_epoch, leader_epoch, start_offset, delivery_complete_count, kept)
        return self._try(lambda: self._coordinator.write(key, change))

    # ---- for the coordinator of the group -------------------------------------------------------------------

    def initialize(
        self, group_id: str, state_epoch: int, starts: Mapping[Uuid, Mapping[int, int]]
    ) -> Pending[Outcomes]:
        """Set share partitions anew, each with the offset to start at (-1 if its leader is to find one)."""
        keys = [ShareKey(group_id, topic_id, p) for topic_id, offsets in starts.items() for p in offsets]

        def initialize(key: ShareKey) -> Pending[None]:
            start = starts[key.topic_id][key.partition]
            return self._try(lambda: self._coordinator.initialize(key, state_epoch, start))

        return sweep(keys, initialize, self._scheduler.call_soon).map(_outcomes)

    def delete(self, group_id: str, partitions: Mapping[Uuid, Sequence[int]]) -> Pending[Outcomes]:
        """Forget share partitions."""
        keys = [ShareKey(group_id, topic_id, p) for topic_id, numbers in partitions.items() for p in numbers]
        return sweep(keys, self._delete, self._scheduler.call_soon).map(_outcomes)

    def _delete(self, key: ShareKey) -> Pending[None]:
        return self._try(lambda: self._coordinator.delete(key))

    def read_summaries(self, keys: Sequence[ShareKey]) -> Pending[dict[ShareKey, Pending[Summary]]]:
        """How far groups are in partitions: an answer or an error for each."""
        return sweep(keys, self._summary, self._scheduler.call_soon)

    def _summary(self, key: ShareKey) -> Pending[Summary]:
        return self._try(lambda: self._coordinator.summary(key))

    # ---- trying ---------------------------------------------------------------------------------------------

    def _try(self, ask: Callable[[], Pending[T]]) -> Pending[T]:
        answer: Pending[T] = Pending()
        self._attempt(ask, answer, 1)
        return answer

    def _attempt(self, ask: Callable[[], Pending[T]], answer: Pending[T], attempts: int) -> None:
        if self.require_topic():
            asked = ask()
        else:
            asked = Pending.failed(KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "its topic is being made"))
        asked.then(lambda done: self._tried(ask, answer, done, attempts))

    def _tried(
        self, ask: Callable[[], Pending[T]], answer: Pending[T], done: Pending[T], attempts: int
    ) -> None:
        error = done.error
        if error is None:
            answer.resolve(done.result())
        elif error.code in _RETRIABLE and attempts < MAX_ATTEMPTS:
            pause_ms = FIRST_BACKOFF_MS << (attempts - 1)
            self._scheduler.call_later(pause_ms, lambda: self._attempt(ask, answer, attempts + 1))
        else:
            log.info("the share coordinator was asked %d times: %s", attempts, error)
            answer.fail(error)


def _outcomes(asked: Mapping[ShareKey, Pending[None]]) -> Outcomes:
    outcomes: Outcomes = {}
    for key, pending in asked.items():
        outcomes.setdefault(key.topic_id, {})[key.partition] = pending.error
    return outcomes


def _persisted(state: ShareState) -> PersistedState:
    batches = [StateBatch(first, last, kind, count) for first, last, count, kind in state.batches]
    return PersistedState(state.state_epoch, state.start_offset, batches)
