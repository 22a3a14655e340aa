"""Metadata responses encoded by hand, topic by topic, and kept while nothing changes.

Every client asks for metadata at its start and every few minutes, and a cluster of ten thousand partitions must not
hold the loop for it. A topic's part depends on the immutable TopicImage and on which brokers are alive, so its bytes
are kept and used again for as long as both are the same objects. On the wire this is what
`ottla.wire.messages.metadata` declares, and a test holds it to that.

Owner: the broker's loop.
"""

from collections.abc import Mapping
from struct import Struct
from typing import NamedTuple

from ottla.metadata.image import ClusterImage
from ottla.metadata.registrations import (
    BrokerRegistration,
    Directories,
    Endpoint,
    PartitionRegistration,
    Replicas,
    TopicImage,
)
from ottla.model.errors import ErrorCode
from ottla.model.ids import INTERNAL_TOPICS, ZERO_UUID
from ottla.security.acls import NOT_ASKED

# Up to this version replicas that cannot be reached are left out, and that is an error.
UNREACHABLE_HIDDEN_VERSION = 0
LISTENER_VERSION = 6
FLEXIBLE_VERSION = 9
INTERNAL_VERSION = 1
OFFLINE_VERSION = 5
EPOCH_VERSION = 7
OPERATIONS_VERSION = 8
TOPIC_ID_VERSION = 10
MAX_CACHED_TOPICS = 20_000

_H = Struct(">h").pack
_I = Struct(">i").pack
_HII = Struct(">hii").pack
_HIII = Struct(">hiii").pack


class View:
    """The image as one listener shows it: a replica that is not alive there counts as offline."""

    def __init__(self, image: ClusterImage, listener_name: str) -> None:
        self.image = image
        self.listener_name = listener_name
        self.alive: dict[int, Endpoint] = {
            broker_id: broker.listeners[listener_name]
            for broker_id, broker in image.brokers.items()
            if not broker.fenced and listener_name in broker.listeners
        }
        self._offline: dict[tuple[Replicas, Directories], Replicas] = {}

    def offline(self, partition: PartitionRegistration) -> Replicas:
        """Thousands of partitions have the same replicas in the same directories."""
        key = (partition.replicas, partition.directories)
        found = self._offline.get(key)
        if found is None:
            found = self._offline[key] = self._find_offline(partition)
        return found

    def _find_offline(self, partition: PartitionRegistration) -> Replicas:
        brokers = self.image.brokers
        return tuple(
            replica
            for replica, directory in zip(partition.replicas, partition.directories, strict=True)
            if replica not in self.alive or not brokers[replica].has_online_directory(directory)
        )

    def shown(self, replicas: Replicas, version: int) -> Replicas:
        """Those that clients of this version are told of: the first one wants only replicas that it can reach."""
        if version > UNREACHABLE_HIDDEN_VERSION:
            return replicas
        return tuple(replica for replica in replicas if replica in self.alive)

    def error(self, partition: PartitionRegistration, version: int) -> ErrorCode:
        """What is wrong with the partition; a leader that is registered and cannot be reached has no such listener."""
        if partition.leader not in self.alive:
            hidden = version >= LISTENER_VERSION and partition.leader in self.image.brokers
            return ErrorCode.LISTENER_NOT_FOUND if hidden else ErrorCode.LEADER_NOT_AVAILABLE
        if version > UNREACHABLE_HIDDEN_VERSION or self.alive.keys() >= {*partition.replicas, *partition.isr}:
            return ErrorCode.NONE
        return ErrorCode.REPLICA_NOT_AVAILABLE


class _Kept(NamedTuple):
    topic: TopicImage
    brokers: Mapping[int, BrokerRegistration]
    encoded: bytes


class TopicEncoder:
    """Encodes topics for Metadata responses and remembers the results."""

    def __init__(self) -> None:
        self._kept: dict[tuple[bytes, int, str, int], _Kept] = {}

    def encode(self, view: View, topic: TopicImage, version: int, operations: int = NOT_ASKED) -> bytes:
        """A topic that exists."""
        key = (topic.id, version, view.listener_name, operations)
        kept = self._kept.get(key)
        if kept is not None and kept.topic is topic and kept.brokers is view.image.brokers:
            return kept.encoded
        count = len(topic.partitions)
        partitions = encode_partitions(view, topic.partitions, version)
        encoded = encode_topic(version, ErrorCode.NONE, topic.name, topic.id, count, partitions, operations)
        if len(self._kept) >= MAX_CACHED_TOPICS:
            self._kept.clear()
        self._kept[key] = _Kept(topic, view.image.brokers, encoded)
        return encoded


def encode_topic(
    version: int,
    error: ErrorCode,
    name: str | None,
    topic_id: bytes = ZERO_UUID,
    count: int = 0,
    partitions: bytes = b"",
    operations: int = NOT_ASKED,
) -> bytes:
    """A topic's part of a response; `partitions` are `count` partitions that are encoded already."""
    flexible = version >= FLEXIBLE_VERSION
    out = bytearray(_H(error))
    out += _string(name, flexible)
    if version >= TOPIC_ID_VERSION:
        out += topic_id
    if version >= INTERNAL_VERSION:
        out.append(name in INTERNAL_TOPICS)
    out += _uvarint(count + 1) if flexible else _I(count)
    out += partitions
    if version >= OPERATIONS_VERSION:
        out += _I(operations)
    if flexible:
        out.append(0)
    return bytes(out)


def encode_partitions(view: View, partitions: Mapping[int, PartitionRegistration], version: int) -> bytes:
    """All partitions of a topic, in their order."""
    nodes = _NodeLists(version >= FLEXIBLE_VERSION)
    end = b"\0" if version >= FLEXIBLE_VERSION else b""
    parts: list[bytes] = []
    for index, partition in partitions.items():
        error = view.error(partition, version)
        leader = partition.leader if partition.leader in view.alive else -1
        if version >= EPOCH_VERSION:
            parts.append(_HIII(error, index, leader, partition.leader_epoch))
        else:
            parts.append(_HII(error, index, leader))
        parts.append(nodes[view.shown(partition.replicas, version)])
        parts.append(nodes[view.shown(partition.isr, version)])
        if version >= OFFLINE_VERSION:
            parts.append(nodes[view.offline(partition)])
        parts.append(end)
    return b"".join(parts)


class _NodeLists(dict[tuple[int, ...], bytes]):
    """Encoded lists of node ids: thousands of partitions share a few."""

    def __init__(self, flexible: bool) -> None:
        super().__init__()
        self._flexible = flexible

    def __missing__(self, nodes: tuple[int, ...]) -> bytes:
        count = _uvarint(len(nodes) + 1) if self._flexible else _I(len(nodes))
        encoded = self[nodes] = count + b"".join(_I(node) for node in nodes)
        return encoded


def _string(text: str | None, flexible: bool) -> bytes:
    if text is None:
        return b"\0" if flexible else b"\xff\xff"
    raw = text.encode()
    return (_uvarint(len(raw) + 1) if flexible else _H(len(raw))) + raw


def _uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def splice_topics(encoded: bytes, version: int, topics: list[bytes]) -> list[bytes]:
    """Put topics into a response that was encoded without any: chunks of the whole.

    After the topics come only fields of a fixed size, so where they belong is known from the end.
    """
    after = _bytes_after_topics(version)
    count_bytes = 1 if version >= FLEXIBLE_VERSION else 4
    cut = len(encoded) - after - count_bytes
    count = _uvarint(len(topics) + 1) if version >= FLEXIBLE_VERSION else _I(len(topics))
    return [encoded[:cut] + count, *topics, encoded[len(encoded) - after :]]


def _bytes_after_topics(version: int) -> int:
    tags = 1 if version >= FLEXIBLE_VERSION else 0
    if 8 <= version <= 10:
        return tags + 4  # cluster authorized operations
    return tags + (2 if version >= 13 else 0)  # error code
