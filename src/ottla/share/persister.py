"""Persister: brings the state of share partitions to the share coordinator (KIP-932).

The first call makes the topic that the share coordinator writes to. Errors that may pass are tried again, with growing
pauses: a coordinator that is not there yet, is loading, has moved or does not answer, a topic that it does not know
yet. Every other error goes to the caller, with the share coordinator's own code (FENCED_STATE_EPOCH, ...).

Questions about many share partitions are asked in slices, so that they do not hold the loop.

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
from ottla.share.coordinator import ShareCoordinator, ShareGroupOffset, StateChange, Summary
from ottla.share.state import PersistedState, PersisterStateBatch, SharePartitionKey

log = logging.getLogger("ottla.coordinator")

K = TypeVar("K")
T = TypeVar("T")
CallSoon = Callable[[Callable[[], None]], Any]

# Share partitions asked about in one turn of the loop: a few milliseconds of decisions.
SLICE: Final = 64
# Twelve seconds in all, the first ones quickly: on this broker a shard is loaded in a few milliseconds.
MAX_ATTEMPTS: Final = 8
FIRST_BACKOFF_MS: Final = 100
_RETRIABLE: Final = frozenset(
    {
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)

# For each topic and partition, None or what went wrong.
PersisterOutcomes = dict[Uuid, dict[int, KafkaError | None]]


class Persister(Protocol):
    """What the leader of a share partition asks of the share coordinator."""

    def read_state(
        self, group_id: str, topic_id: Uuid, partition: int, leader_epoch: int
    ) -> Pending[PersistedState]:
        """The state of a share partition. The leader epoch is noted: older leaders may write no more."""
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
        batches: Sequence[PersisterStateBatch],
    ) -> Pending[None]:
        """What has changed: done when it is committed."""
        ...


class DefaultStatePersister:
    """The Persister of a node; what coordinators of groups need comes on top of it."""

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
        key = SharePartitionKey(group_id, topic_id, partition)
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
        batches: Sequence[PersisterStateBatch],
    ) -> Pending[None]:
        key = SharePartitionKey(group_id, topic_id, partition)
        change = StateChange(state_epoch, leader_epoch, start_offset, delivery_complete_count, tuple(batches))
        return self._try(lambda: self._coordinator.write(key, change))

    # ---- for the coordinator of the group -------------------------------------------------------------------

    def initialize(
        self, group_id: str, state_epoch: int, starts: Mapping[Uuid, Mapping[int, int]]
    ) -> Pending[PersisterOutcomes]:
        """Set share partitions anew, each with the offset to start at (-1 if its leader is to find one)."""
        keys = [
            SharePartitionKey(group_id, topic_id, p) for topic_id, offsets in starts.items() for p in offsets
        ]

        def initialize(key: SharePartitionKey) -> Pending[None]:
            start = starts[key.topic_id][key.partition]
            return self._try(lambda: self._coordinator.initialize(key, state_epoch, start))

        return sweep(keys, initialize, self._scheduler.call_soon).map(_outcomes)

    def delete(self, group_id: str, partitions: Mapping[Uuid, Sequence[int]]) -> Pending[PersisterOutcomes]:
        """Forget share partitions."""
        keys = [
            SharePartitionKey(group_id, topic_id, p)
            for topic_id, numbers in partitions.items()
            for p in numbers
        ]
        return sweep(keys, self._delete, self._scheduler.call_soon).map(_outcomes)

    def _delete(self, key: SharePartitionKey) -> Pending[None]:
        return self._try(lambda: self._coordinator.delete(key))

    def read_summaries(
        self, keys: Sequence[SharePartitionKey]
    ) -> Pending[dict[SharePartitionKey, Pending[Summary]]]:
        """How far groups are in partitions: an answer or an error for each."""
        return sweep(keys, self._summary, self._scheduler.call_soon)

    def _summary(self, key: SharePartitionKey) -> Pending[Summary]:
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


def _outcomes(asked: Mapping[SharePartitionKey, Pending[None]]) -> PersisterOutcomes:
    outcomes: PersisterOutcomes = {}
    for key, pending in asked.items():
        outcomes.setdefault(key.topic_id, {})[key.partition] = pending.error
    return outcomes


def _persisted(state: ShareGroupOffset) -> PersistedState:
    return PersistedState(state.state_epoch, state.start_offset, state.batches)


def sweep(
    keys: Iterable[K], ask: Callable[[K], Pending[T]], call_soon: CallSoon
) -> Pending[dict[K, Pending[T]]]:
    """All answers, in the order of the keys, when the last one is there. A key that comes twice is asked twice."""
    return _Sweep(keys, ask, call_soon).start()


class _Sweep(Generic[K, T]):
    """The questions of one sweep, their answers, and how many are still open."""

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
