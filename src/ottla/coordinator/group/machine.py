"""The machine of one shard of __consumer_offsets: all kinds of groups, and the offsets of all of them.

It only puts the managers together: a record goes to the manager whose key it has, an event goes to all of them.

Owner: a Shard of the group coordinator's runtime.
"""

from collections.abc import Iterable
from typing import Any

from ottla.coordinator.group.classic.manager import ClassicManager
from ottla.coordinator.group.consumer.manager import ConsumerManager
from ottla.coordinator.group.context import GroupContext, Manager, Replay
from ottla.coordinator.group.directory import GroupDirectory
from ottla.coordinator.group.offsets import OffsetManager
from ottla.coordinator.group.share.manager import ShareManager
from ottla.coordinator.group.streams.manager import StreamsManager
from ottla.coordinator.result import CoordinatorRecord, Effect
from ottla.metadata.delta import Delta
from ottla.metadata.image import ClusterImage
from ottla.model.errors import KafkaError
from ottla.wire.messages.offsets_log import OffsetCommitKey


class GroupMachine:
    """See the module."""

    def __init__(self, context: GroupContext) -> None:
        self.context = context
        self.classic = ClassicManager(context)
        self.consumer = ConsumerManager(context, self.classic)
        self.share = ShareManager(context)
        self.streams = StreamsManager(context)
        self.offsets = OffsetManager(context, self.classic)
        # The short way of a load.
        self.replay_bytes = self.offsets.loader.replay
        self.directory = GroupDirectory(context, self.offsets)
        self._managers: list[Manager] = [
            self.offsets,
            self.classic,
            self.consumer,
            self.share,
            self.streams,
        ]
        self._replays: dict[type[Any], Replay] = {}
        for manager in self._managers:
            self._replays.update(manager.replays())

    def replay(self, record: CoordinatorRecord, producer_id: int, producer_epoch: int) -> None:
        key = record.key
        if type(key) is OffsetCommitKey and producer_id >= 0:
            self.offsets.replay_transactional(key, record.value, producer_id)
            return
        self._replays[type(key)](key, record.value)

    def replay_end_transaction(self, producer_id: int, producer_epoch: int, committed: bool) -> None:
        self.offsets.replay_end_transaction(producer_id, committed)

    def on_skipped(self, key: Any | None, what: str) -> None:
        self.context.skipped.add(key, what)

    def on_loaded(self, image: ClusterImage, now_ms: int) -> Iterable[Effect]:
        self.context.image = image
        return [effect for manager in self._managers for effect in manager.on_loaded(now_ms)]

    def on_image(self, image: ClusterImage, delta: Delta, now_ms: int) -> Iterable[Effect]:
        self.context.image = image
        return [effect for manager in self._managers for effect in manager.on_image(delta, now_ms)]

    def on_unloaded(self, error: KafkaError) -> None:
        for manager in self._managers:
            manager.on_unloaded(error)
        self.directory.unloaded(error)
