"""Telling a client that came to the wrong broker where the leader is (KIP-951)."""

from collections.abc import Iterable

from ottla.model.errors import ErrorCode
from ottla.model.ids import Uuid
from ottla.server.context import Services
from ottla.wire.fast_produce import Endpoint

# The errors that say so.
MISDIRECTED = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)
NO_LEADER = (-1, -1)


def current_leader(services: Services, topic: str | bytes, index: int) -> tuple[int, int]:
    """Who leads a partition, and since which epoch, as far as this broker knows."""
    hosted = services.replicas.hosted(topic, index)
    if hosted is not None:
        return hosted.leader, hosted.leader_epoch
    image = services.image()
    known = image.topic(topic) if isinstance(topic, str) else image.topic_by_id(Uuid(topic))
    partition = known.partitions.get(index) if known is not None else None
    return NO_LEADER if partition is None else (partition.leader, partition.leader_epoch)


def endpoints(services: Services, listener_name: str, leaders: Iterable[int]) -> list[Endpoint]:
    """Where those of the leaders that are alive are reached on the client's listener."""
    brokers = services.image().brokers
    found: list[Endpoint] = []
    for leader in dict.fromkeys(leaders):
        broker = brokers.get(leader)
        if broker is not None and not broker.fenced and listener_name in broker.listeners:
            at = broker.listeners[listener_name]
            found.append((leader, at.host, at.port, broker.rack))
    return found
