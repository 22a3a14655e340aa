"""ReplicationQuotaManager: how many bytes a second are copied between replicas that an operator has throttled (KIP-73),
and between the directories of one broker (KIP-113).

Which partitions are throttled here is said by two lists of each topic, one for their leaders and one for those that
follow; how much all of them together may have, by a rate of the broker's. Their bytes count whoever gets them; held
back is only who is not in sync, so that a throttle takes nobody out of an ISR. The rate is Kafka's SimpleRate: what
was more than there is room for is waited for afterwards.

Rules: no clock, no I/O; `now_ms` is a parameter, of a clock that does not go back. Without a throttled partition
nothing is asked but `is_on`. Whoever holds something back looks again at `room_ms`, and is among `watchers`, who are
called whenever the rate or a list is another.

Owner: the ReplicaManager, on the broker's loop.
"""

import re
from collections.abc import Callable, Mapping
from math import inf
from typing import Final

from ottla.model.ids import TopicPartition
from ottla.security.quotas import QuotaWindows, SimpleRate

LEADER_THROTTLED_REPLICAS: Final = "leader.replication.throttled.replicas"
FOLLOWER_THROTTLED_REPLICAS: Final = "follower.replication.throttled.replicas"
LEADER_THROTTLED_RATE: Final = "leader.replication.throttled.rate"
FOLLOWER_THROTTLED_RATE: Final = "follower.replication.throttled.rate"
ALTER_LOG_DIRS_RATE: Final = "replica.alter.log.dirs.io.max.bytes.per.second"

# What throttles all replicas of a topic, and what throttles one: a partition, on a broker. Int32s, so no longer.
ALL_REPLICAS: Final = "*"
_REPLICA: Final = re.compile(r"([0-9]{1,10}):([0-9]{1,10})")
# Nobody who waits for room looks again earlier than after this.
SHORTEST_WAIT_MS: Final = 1.0


class ReplicationQuotaManager:
    """What is throttled of one kind, by how much, and what it has had lately."""

    def __init__(self, windows: QuotaWindows | None = None) -> None:
        self._rate = SimpleRate(windows or QuotaWindows(), 0.0)
        self._limit = inf
        # By topic; None for all of its partitions.
        self._throttled: dict[str, frozenset[int] | None] = {}
        # Is there a throttled partition? What it gets is recorded, also while there is no limit.
        self.is_on = False
        # Called when somebody who was held back may not be any more, or the other way round.
        self.watchers: set[Callable[[], None]] = set()

    # ---- what is throttled --------------------------------------------------------------------------------

    def update_quota(self, limit: float) -> None:
        """So many bytes a second from now on; `inf` for no limit."""
        if limit != self._limit:
            self._limit = limit
            self._changed()

    def mark_throttled(self, topic: str, partitions: frozenset[int] | None = None) -> None:
        """These partitions of a topic and no others of it; None for all."""
        if partitions is not None and not partitions:
            self.remove_throttle(topic)
        elif topic not in self._throttled or self._throttled[topic] != partitions:
            self._throttled[topic] = partitions
            self.is_on = True
            self._changed()

    def remove_throttle(self, topic: str) -> None:
        if topic in self._throttled:
            del self._throttled[topic]
            self.is_on = bool(self._throttled)
            self._changed()

    def is_throttled(self, topic_partition: TopicPartition) -> bool:
        topic, index = topic_partition
        if topic not in self._throttled:
            return False
        partitions = self._throttled[topic]
        return partitions is None or index in partitions

    def _changed(self) -> None:
        for tell in list(self.watchers):
            tell()

    # ---- what it has had ----------------------------------------------------------------------------------

    def record(self, size_bytes: int, now_ms: float) -> None:
        """So much is sent, was fetched, or is copied, whether there was room for it or not."""
        self._rate.record(size_bytes, now_ms)

    def is_quota_exceeded(self, now_ms: float) -> bool:
        return self._limit != inf and self._rate.measure(now_ms) > self._limit

    def room_ms(self, now_ms: float) -> float:
        """When to look again, while the quota is exceeded: there is no room earlier, and perhaps not yet then."""
        return max(self._rate.within_ms(self._limit, now_ms), now_ms + SHORTEST_WAIT_MS)


class ReplicationQuotas:
    """The three of a broker, and where they are set (of Kafka's QuotaManagers and ConfigHandlers)."""

    def __init__(
        self,
        node_id: int,
        windows: QuotaWindows | None = None,
        alter_log_dirs_windows: QuotaWindows | None = None,
    ) -> None:
        self._node_id = node_id
        self.leader = ReplicationQuotaManager(windows)
        self.follower = ReplicationQuotaManager(windows)
        # All moves between directories count.
        self.alter_log_dirs = ReplicationQuotaManager(alter_log_dirs_windows)

    def rates_changed(self, rate_of: Callable[[str], float]) -> None:
        """The broker's settings may be others; `rate_of` a key is `inf` where it is not set."""
        self.leader.update_quota(rate_of(LEADER_THROTTLED_RATE))
        self.follower.update_quota(rate_of(FOLLOWER_THROTTLED_RATE))
        self.alter_log_dirs.update_quota(rate_of(ALTER_LOG_DIRS_RATE))

    def topic_changed(self, topic: str, settings: Mapping[str, str]) -> None:
        """What is set for a topic, which is nothing when it is deleted."""
        for key, quota in (
            (LEADER_THROTTLED_REPLICAS, self.leader),
            (FOLLOWER_THROTTLED_REPLICAS, self.follower),
        ):
            quota.mark_throttled(topic, throttled_partitions(settings.get(key, ""), self._node_id))


def throttled_partitions(replicas: str, node_id: int) -> frozenset[int] | None:
    """Which partitions a list `partition:broker,...` throttles on a broker; None for all of them.

    An entry that is no such pair, which whoever wrote it should have refused, throttles nothing.
    """
    entries = [entry.strip() for entry in replicas.split(",")]
    if "".join(entries) == ALL_REPLICAS:
        return None
    found = filter(None, map(_REPLICA.fullmatch, entries))
    return frozenset(int(each[1]) for each in found if int(each[2]) == node_id)
