"""Who brings the state of share partitions to the share coordinator, and tries again while that is not there yet.

The first to need the share coordinator makes the topic it writes to. What may pass is tried again, with growing
pauses: a coordinator that is not there yet, is loading or has moved, a topic that the coordinator has not heard of.
Everything else is the asker's to deal with.

Owner: the node, on the broker's loop.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from ottla.coordinator.ports import Scheduler
from ottla.coordinator.share.batches import StateBatch as KeptBatch
from ottla.coordinator.share.machine import Summary
from ottla.coordinator.share.state import ShareKey, ShareState, StateChange
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import Uuid
from ottla.model.pending import Pending
from ottla.replication.share_state import PersistedState, StateBatch
from ottla.server.share_state import ShareCoordinator
from ottla.server.share_sweep import sweep

log = logging.getLogger("ottla.coordinator")

T = TypeVar("T")

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
    """See the module; what share partitions need is named in `ottla.server.share_ports`."""

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
