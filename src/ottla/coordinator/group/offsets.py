"""Committed offsets: commit, fetch, delete, expire, inside transactions and outside."""

from collections.abc import Mapping
from typing import Any

from ottla.coordinator.group.context import GroupContext, Replay
from ottla.coordinator.result import Effect
from ottla.metadata.delta import Delta
from ottla.model.errors import KafkaError


class OffsetManager:
    """The offsets of one shard."""

    def __init__(self, context: GroupContext) -> None:
        self._context = context

    def replays(self) -> Mapping[type[Any], Replay]:
        return {}

    def replay_transactional(self, key: Any, value: Any, producer_id: int) -> None:
        """An offset that counts when its transaction does."""

    def replay_end_transaction(self, producer_id: int, committed: bool) -> None:
        """The end of a transaction."""

    def on_loaded(self, now_ms: int) -> list[Effect]:
        return []

    def on_image(self, delta: Delta, now_ms: int) -> list[Effect]:
        return []

    def on_unloaded(self, error: KafkaError) -> None:
        """Nothing is parked here."""
