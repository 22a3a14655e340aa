"""ReplicaSelector: which replica a consumer had better read from (KIP-392), by the class that `replica.selector.class`
names.

A selector is a class with a constructor without arguments and these methods, of which only the last is a must:

    class NearestReplica:
        def configure(self, configs: Mapping[str, str]) -> None: ...      # the node's settings, once
        def close(self) -> None: ...                                      # when the node stops
        def select(
            self, topic_partition: TopicPartition, client: ClientMetadata, partition: PartitionView
        ) -> ReplicaView | None: ...

It is asked on the broker's loop, by the leader, for every partition that a consumer's fetch reads: it must not wait. It
chooses one of `partition.replicas`: the leader, and the followers that are in sync and have the offset. None and the
leader mean the same. The names of Apache's own classes stand for the built-in ones.

Owner: one ReplicaSelection a broker.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol

from ottla.config.errors import ConfigError
from ottla.metadata.image import ClusterImage
from ottla.model.ids import TopicPartition
from ottla.model.plugins import find_class
from ottla.replication.partition import FollowerReplica, Partition

log = logging.getLogger("ottla.replication")

KEY: Final = "replica.selector.class"
NO_PREFERENCE: Final = -1


class ReplicaEndpoint(NamedTuple):
    """Where a replica is reached by the client's listener; without host if it is not."""

    id: int
    host: str = ""
    port: int = -1
    rack: str | None = None


class ReplicaView(NamedTuple):
    """A replica as a selector sees it."""

    endpoint: ReplicaEndpoint
    log_end_offset: int
    time_since_last_caught_up_ms: int


class PartitionView(NamedTuple):
    """The replicas of a partition that can be chosen, the leader among them."""

    replicas: tuple[ReplicaView, ...]
    leader: ReplicaView


class ClientMetadata(NamedTuple):
    """Who reads."""

    rack_id: str
    client_id: str | None
    client_address: str
    principal: str
    listener_name: str


class ReplicaSelector(Protocol):
    """Asked for the replica to read from."""

    def select(
        self, topic_partition: TopicPartition, client: ClientMetadata, partition: PartitionView, /
    ) -> ReplicaView | None: ...


class LeaderSelector:
    """Everybody reads from the leader."""

    def select(
        self, topic_partition: TopicPartition, client: ClientMetadata, partition: PartitionView, /
    ) -> ReplicaView | None:
        return partition.leader


class RackAwareReplicaSelector:
    """A replica in the rack of the client: the leader if it is there, else the one that has most; else the leader."""

    def select(
        self, topic_partition: TopicPartition, client: ClientMetadata, partition: PartitionView, /
    ) -> ReplicaView | None:
        leader = partition.leader
        if not client.rack_id or leader.endpoint.rack == client.rack_id:
            return leader
        near = [replica for replica in partition.replicas if replica.endpoint.rack == client.rack_id]
        return max(near, key=_how_caught_up, default=leader)


def _how_caught_up(replica: ReplicaView) -> tuple[int, int, int]:
    return replica.log_end_offset, -replica.time_since_last_caught_up_ms, replica.endpoint.id


_APACHE: Final = "org.apache.kafka.common.replica"
BUILT_IN: Final[Mapping[str, type[ReplicaSelector]]] = {
    f"{_APACHE}.RackAwareReplicaSelector": RackAwareReplicaSelector,
    f"{_APACHE}.LeaderSelector": LeaderSelector,
}


def load_selector(path: str | None, configs: Mapping[str, str]) -> ReplicaSelector | None:
    """The selector of this name; ConfigError."""
    if not path:
        return None
    try:
        selector: Any = (BUILT_IN.get(path) or find_class(path))()
        configure = getattr(selector, "configure", None)
        if configure is not None:
            configure(dict(configs))
    except Exception as error:
        raise ConfigError(
            f"{KEY}={path}: {error or type(error).__name__} (Kafka's RackAwareReplicaSelector, or a Python class by "
            "its import path is expected, such as package.module.Class)",
            KEY,
        ) from error
    if not callable(getattr(selector, "select", None)):
        raise ConfigError(f"{KEY}={path}: the class has no method select", KEY)
    return selector  # type: ignore[no-any-return]


class ReplicaSelection:
    """A broker's selector, and what it is shown."""

    def __init__(
        self,
        selector: ReplicaSelector | None = None,
        image: Callable[[], ClusterImage] = ClusterImage,
        own_rack: str | None = None,
    ) -> None:
        self._selector = selector
        self._image = image
        self._own_rack = own_rack
        self._is_by_rack = isinstance(selector, RackAwareReplicaSelector)
        # May any client be sent elsewhere, and may one that says no rack?
        self.is_on = selector is not None and not isinstance(selector, LeaderSelector)
        self.is_for_clients_without_rack = self.is_on and not self._is_by_rack

    def is_for(self, rack_id: str) -> bool:
        """May a client of this rack be sent elsewhere, by some partition?"""
        return self.is_on if rack_id else self.is_for_clients_without_rack

    def may_change(self, rack_id: str) -> bool:
        """May a client that reads from this leader be sent elsewhere although the partition stays as it is?

        The selector looks at the other replicas, and one of the operator's own at whatever it likes. Only a leader in
        the client's rack is certain to stay the one.
        """
        return self.is_for(rack_id) and not (self._is_by_rack and self._own_rack == rack_id)

    def find(self, partition: Partition, client: ClientMetadata, fetch_offset: int, now_ms: float) -> int:
        """The replica to read from, or NO_PREFERENCE for this leader: Kafka's findPreferredReadReplica.

        `now_ms` is time that never goes back, as partitions have it.
        """
        selector = self._selector
        if selector is None or not partition.is_leader:
            return NO_PREFERENCE
        view = self._view(partition, client.listener_name, fetch_offset, now_ms)
        try:
            chosen = selector.select(partition.topic_partition, client, view)
            if chosen is None or chosen == view.leader or not chosen.endpoint.host:
                return NO_PREFERENCE
            return chosen.endpoint.id
        except Exception as error:  # noqa: BLE001 - the operator's own code: the leader serves instead
            log.error(
                "%s failed for %s: %s",
                type(selector).__name__,
                partition.topic_partition,
                str(error) or type(error).__name__,
            )
            return NO_PREFERENCE

    def _view(self, partition: Partition, listener_name: str, offset: int, now_ms: float) -> PartitionView:
        leader = ReplicaView(self._endpoint(partition.leader, listener_name), partition.log.log_end_offset, 0)
        # One that is not in sync may fall behind further, and the consumer with it.
        followers = [
            ReplicaView(
                self._endpoint(replica_id, listener_name),
                replica.log_end_offset,
                _since_ms(now_ms, _last_caught_up_ms(replica, partition.log.log_end_offset)),
            )
            for replica_id, replica in partition.followers.items()
            if replica_id in partition.isr and replica.log_start_offset <= offset <= replica.log_end_offset
        ]
        return PartitionView((*followers, leader), leader)

    def _endpoint(self, broker_id: int, listener_name: str) -> ReplicaEndpoint:
        broker = self._image().brokers.get(broker_id)
        if broker is None or broker.fenced or listener_name not in broker.listeners:
            return ReplicaEndpoint(broker_id)
        at = broker.listeners[listener_name]
        return ReplicaEndpoint(broker_id, at.host, at.port, broker.rack)

    def close(self) -> None:
        close = getattr(self._selector, "close", None)
        if close is not None:
            close()


def _last_caught_up_ms(replica: FollowerReplica, leader_end: int) -> float:
    """A follower at the log's end was caught up when its session last fetched."""
    if replica.session is not None and replica.log_end_offset >= leader_end:
        return max(replica.last_caught_up_ms, replica.session.last_fetch_ms)
    return replica.last_caught_up_ms


def _since_ms(now_ms: float, then_ms: float) -> int:
    """How long ago that was; one that has never been is as long ago as can be said."""
    return int(min(now_ms - then_ms, 2**63 - 1))
