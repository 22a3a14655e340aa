"""One number for all that a group's assignment depends on in its topics: when it changes, the group is assigned anew.

Kafka writes it into the group's record, so it is computed as Kafka does (KIP-1101): XXH3 over each topic's id, name,
partitions and their racks, then over the topics' hashes in the order of their names. Text goes in as UTF-16 with
its length behind it, numbers with their low byte first.

Owner: a TopicHashes belongs to one group shard's machine.
"""

import struct
from collections.abc import Iterable
from typing import Final

import xxhash

from ottla.metadata.image import ClusterImage
from ottla.metadata.registrations import TopicImage

_MAGIC: Final = b"\x00"
_INT: Final = struct.Struct("<i")
_LONG: Final = struct.Struct("<q")
_UNSIGNED: Final = struct.Struct("<Q")


def topic_hash(topic: TopicImage, image: ClusterImage) -> int:
    """The hash of one topic, as an unsigned number."""
    parts = [_MAGIC, topic.id[7::-1], topic.id[:7:-1], _text(topic.name)]
    parts.append(_INT.pack(len(topic.partitions)))
    # Partitions with the same replicas are many: what follows their numbers is made once.
    known: dict[tuple[int, ...], bytes] = {}
    for number in range(len(topic.partitions)):
        replicas = topic.partitions[number].replicas
        racks = known.get(replicas)
        if racks is None:
            racks = known[replicas] = _racks(replicas, image)
        parts.append(_INT.pack(number) + racks)
    return xxhash.xxh3_64_intdigest(b"".join(parts))


def _racks(replicas: tuple[int, ...], image: ClusterImage) -> bytes:
    brokers = (image.brokers.get(replica) for replica in replicas)
    racks = sorted(broker.rack for broker in brokers if broker is not None and broker.rack is not None)
    return b"".join(_INT.pack(_units(rack)) + _text(rack) for rack in racks)


def _units(text: str) -> int:
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def _text(text: str) -> bytes:
    return text.encode("utf-16-le", "surrogatepass") + _INT.pack(_units(text))


class TopicHashes:
    """The hashes of topics that groups subscribe to, kept until the topic changes."""

    def __init__(self) -> None:
        self._hashes: dict[str, int] = {}

    def forget(self, names: Iterable[str]) -> None:
        """These topics have changed."""
        for name in names:
            self._hashes.pop(name, None)

    def clear(self) -> None:
        self._hashes.clear()

    def group_hash(self, topics: Iterable[str], image: ClusterImage) -> int:
        """The hash of a subscription, as the signed number that the record holds; 0 if none of its topics exists."""
        hashes = [known for name in sorted(topics) if (known := self._hash(name, image)) is not None]
        if not hashes:
            return 0
        digest = xxhash.xxh3_64_intdigest(b"".join(map(_UNSIGNED.pack, hashes)))
        return int(_LONG.unpack(_UNSIGNED.pack(digest))[0])

    def _hash(self, name: str, image: ClusterImage) -> int | None:
        topic = image.topic(name)
        if topic is None:
            return None
        found = self._hashes.get(name)
        if found is None:
            found = self._hashes[name] = topic_hash(topic, image)
        return found
