"""The share coordinator as others ask it, one share partition at a time: of this broker, or one day of another.

Owner: the node, on the broker's loop.
"""

from collections.abc import Callable
from typing import Protocol, TypeVar

from ottla.coordinator.result import Result
from ottla.coordinator.runtime import CoordinatorRuntime
from ottla.coordinator.share.machine import ShareMachine, Summary
from ottla.coordinator.share.state import ShareKey, ShareState, StateChange
from ottla.model.ids import uuid_to_str
from ottla.model.pending import Pending

T = TypeVar("T")


class ShareCoordinator(Protocol):
    """Keeps what must last of share partitions. An answer that failed has the error code of the wire."""

    def initialize(self, key: ShareKey, state_epoch: int, start_offset: int) -> Pending[None]: ...
    def read(self, key: ShareKey, leader_epoch: int) -> Pending[ShareState]: ...
    def write(self, key: ShareKey, change: StateChange) -> Pending[None]: ...
    def delete(self, key: ShareKey) -> Pending[None]: ...
    def summary(self, key: ShareKey) -> Pending[Summary]: ...


class LocalShareCoordinator:
    """The shards of this broker; NOT_COORDINATOR for what others keep."""

    def __init__(self, runtime: CoordinatorRuntime[ShareMachine], timeout_ms: Callable[[], int]) -> None:
        self.runtime = runtime
        self._timeout_ms = timeout_ms

    def initialize(self, key: ShareKey, state_epoch: int, start_offset: int) -> Pending[None]:
        return self._write(
            key, lambda machine, now_ms: machine.initialize(key, state_epoch, start_offset, now_ms)
        )

    def read(self, key: ShareKey, leader_epoch: int) -> Pending[ShareState]:
        """A write too: the leader's epoch is noted, so that older leaders are refused."""
        return self._write(key, lambda machine, now_ms: machine.read(key, leader_epoch, now_ms))

    def write(self, key: ShareKey, change: StateChange) -> Pending[None]:
        return self._write(key, lambda machine, now_ms: machine.write(key, change, now_ms))

    def delete(self, key: ShareKey) -> Pending[None]:
        return self._write(key, lambda machine, _: machine.delete(key))

    def summary(self, key: ShareKey) -> Pending[Summary]:
        return self._write(key, lambda machine, _: machine.summary(key))

    def _write(self, key: ShareKey, decide: Callable[[ShareMachine, int], Result[T]]) -> Pending[T]:
        partition = self.runtime.partition_for(coordinator_key(key))
        return self.runtime.write(partition, decide, timeout_ms=self._timeout_ms())


def coordinator_key(key: ShareKey) -> str:
    """By which a share partition finds its coordinator."""
    return f"{key.group_id}:{uuid_to_str(key.topic_id)}:{key.partition}"
