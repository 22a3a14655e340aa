"""What an application may want to hear of its group."""

from collections.abc import Awaitable

from ottla.model.ids import TopicPartition


class RebalanceListener:
    """Hears what the group gives and takes; override what is of interest. Called from within poll and close.

    A listener of an AsyncConsumer may have coroutines. Partitions revoked are still the consumer's while it is
    told: it may commit. Lost ones are not: somebody else may have them already.
    """

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> Awaitable[None] | None:
        return None

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> Awaitable[None] | None:
        return None

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> Awaitable[None] | None:
        return self.on_partitions_revoked(partitions)
