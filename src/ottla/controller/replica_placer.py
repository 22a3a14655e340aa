"""Kafka's StripedReplicaPlacer: replicas of a new partition go over brokers and racks in turn, from a random start.

Purpose: leaders spread evenly, replicas of a partition on different racks where
there are enough, fenced brokers only as followers. Rules: pure but for the Random it is given, so that a
simulation repeats itself.
"""

from collections.abc import Iterable, Iterator
from random import Random
from typing import NamedTuple

from ottla.metadata.image import ClusterImage
from ottla.model.errors import ErrorCode, KafkaError


class UsableBroker(NamedTuple):
    """A broker that may be given replicas."""

    id: int
    rack: str | None
    fenced: bool


def usable_brokers(image: ClusterImage) -> list[UsableBroker]:
    """Registered brokers that are not shutting down and have a directory that takes new partitions."""
    return [
        UsableBroker(broker.id, broker.rack, broker.fenced)
        for broker in image.brokers.values()
        if not broker.in_controlled_shutdown and broker.has_uncordoned_directory
    ]


class _Ring:
    """Brokers handed out in turn; each round (epoch) begins one further."""

    def __init__(self, brokers: list[int], random: Random) -> None:
        self._brokers = sorted(brokers)
        self._offset = random.randrange(len(brokers)) if brokers else 0
        self._index = 0
        self._epoch = 0

    def next(self, epoch: int) -> int | None:
        if not self._brokers:
            return None
        if self._epoch != epoch:
            self._epoch, self._index = epoch, 0
            self._offset = (self._offset + 1) % len(self._brokers)
        if self._index >= len(self._brokers):
            return None
        broker = self._brokers[(self._index + self._offset) % len(self._brokers)]
        self._index += 1
        return broker

    def shuffle(self, random: Random) -> None:
        random.shuffle(self._brokers)


class _Rack:
    def __init__(self, brokers: list[UsableBroker], random: Random) -> None:
        self.fenced = _Ring([b.id for b in brokers if b.fenced], random)
        self.unfenced = _Ring([b.id for b in brokers if not b.fenced], random)

    def next(self, epoch: int) -> int | None:
        broker = self.unfenced.next(epoch)
        return self.fenced.next(epoch) if broker is None else broker


class _Racks:
    """Hands out one partition's replicas at a time."""

    def __init__(self, brokers: list[UsableBroker], random: Random) -> None:
        self._random = random
        by_name: dict[str | None, list[UsableBroker]] = {}
        for broker in brokers:
            by_name.setdefault(broker.rack, []).append(broker)
        names = sorted(by_name, key=lambda name: (name is not None, name or ""))
        self._racks = [_Rack(by_name[name], random) for name in names]
        self._unfenced = sum(not broker.fenced for broker in brokers)
        self._offset = random.randrange(len(self._racks))
        self._epoch = 0

    def place(self, replication_factor: int) -> list[int]:
        if self._epoch == self._unfenced and self._unfenced > 1:
            self._shuffle()
        self._offset %= len(self._racks)
        leader_rack, leader = self._leader()
        replicas = [leader, *self._followers(leader_rack, replication_factor - 1)]
        self._epoch += 1
        self._offset += 1
        return replicas

    def _leader(self) -> tuple[int, int]:
        rack = self._offset
        while True:
            broker = self._racks[rack].unfenced.next(self._epoch)
            if broker is not None:
                return rack, broker
            rack = (rack + 1) % len(self._racks)

    def _followers(self, leader_rack: int, count: int) -> Iterable[int]:
        """From the racks in turn; the leader's rack sits out once, for it has already given one."""
        rack, skip = self._offset, leader_rack
        while count:
            if rack == skip:
                skip = -1
            else:
                broker = self._racks[rack].next(self._epoch)
                if broker is not None:
                    yield broker
                    count -= 1
            rack = (rack + 1) % len(self._racks)

    def _shuffle(self) -> None:
        self._random.shuffle(self._racks)
        for rack in self._racks:
            rack.fenced.shuffle(self._random)
            rack.unfenced.shuffle(self._random)
        self._epoch = 0


def place_replicas(
    brokers: list[UsableBroker], partitions: int, replication_factor: int, random: Random
) -> Iterator[list[int]]:
    """The replicas of each new partition, leader first; INVALID_REPLICATION_FACTOR, at once, if they cannot be had."""
    if replication_factor <= 0:
        raise _invalid(
            f"Invalid replication factor {replication_factor}: the replication factor must be positive."
        )
    if all(broker.fenced for broker in brokers):
        raise _invalid("All brokers are currently fenced, or have all their log directories cordoned.")
    if replication_factor > len(brokers):
        raise _invalid(
            f"The target replication factor of {replication_factor} cannot be reached because only "
            f"{len(brokers)} broker(s) are registered or some brokers have all their log directories "
            "cordoned."
        )
    racks = _Racks(brokers, random)
    return (racks.place(replication_factor) for _ in range(partitions))


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, message)
