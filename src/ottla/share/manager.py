"""SharePartitionManager: share groups on the broker that leads the partitions.

It brings sessions, share partitions and the groups' settings together, and keeps the fetches that wait.
A member's session is closed by the member or by the end of its connection; then what it held is released. If it
opens another, that takes its place, and the locks of what it held run out, as in Kafka. What no session of a group
needs any more is forgotten.

Owner: the node, on the broker's loop; a follower of the metadata log, after the replicas.
"""

import logging
from collections.abc import Callable, Hashable
from concurrent.futures import Executor
from typing import TypeVar

from ottla.config.broker import BrokerConfig
from ottla.coordinator.shard import Scheduler
from ottla.metadata.delta import Delta
from ottla.metadata.image import ClusterImage
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.pending import Pending
from ottla.replication.replica_manager import ReplicaManager
from ottla.share.fetch import DelayedShareFetch, ShareFetchParams, ShareRead
from ottla.share.leader import SharePartitionCache, TimestampSearch
from ottla.share.persister import Persister
from ottla.share.sessions import CachedSharePartition, ShareSessionCache, ShareSessionKey
from ottla.share.settings import ShareGroupConfigProvider
from ottla.share.state import SharePartitionKey

log = logging.getLogger("ottla.server")

SHARE_VERSION = "share.version"
K = TypeVar("K", bound=Hashable)


class SharePartitionManager:
    """The entrance to share groups for the handlers of ShareFetch and ShareAcknowledge."""

    def __init__(
        self,
        replicas: ReplicaManager,
        persister: Persister,
        scheduler: Scheduler,
        executor: Executor,
        search: TimestampSearch,
        config: Callable[[], BrokerConfig],
        image: Callable[[], ClusterImage],
    ) -> None:
        self._replicas = replicas
        self._scheduler = scheduler
        self._executor = executor
        self._image = image
        self.settings = ShareGroupConfigProvider(config, image)
        self.sessions = ShareSessionCache()
        self.partitions = SharePartitionCache(replicas, persister, self.settings, scheduler, search)
        self._leaving = False
        # Fetches that wait, by the connection that their answer goes to, and by whose session they belong to.
        self._waiting: dict[Hashable, dict[DelayedShareFetch, None]] = {}
        self._waiting_of: dict[ShareSessionKey, dict[DelayedShareFetch, None]] = {}

    @property
    def enabled(self) -> bool:
        """Does the cluster have share groups (share.version)?"""
        return self._image().features.get(SHARE_VERSION, 0) >= 1

    # ---- fetching -----------------------------------------------------------------------------------------

    def fetch(
        self, params: ShareFetchParams, partitions: list[CachedSharePartition], connection: Hashable
    ) -> Pending[list[ShareRead]]:
        """Acquire records; answered at once or when there are enough."""
        fetching = DelayedShareFetch(
            params, partitions, self.partitions, self._replicas, self._scheduler, self._executor
        )
        answer = fetching.start()
        if not answer.done:
            key = fetching.session_key
            self._waiting.setdefault(connection, {})[fetching] = None
            self._waiting_of.setdefault(key, {})[fetching] = None
            answer.then(lambda _: self._answered(connection, key, fetching))
        return answer

    def _answered(self, connection: Hashable, key: ShareSessionKey, fetching: DelayedShareFetch) -> None:
        _forget(self._waiting, connection, fetching)
        _forget(self._waiting_of, key, fetching)

    def after(self, delay_ms: float) -> Pending[None]:
        """Done after a delay."""
        answer: Pending[None] = Pending()
        self._scheduler.call_later(max(delay_ms, 0), lambda: answer.resolve(None))
        return answer

    # ---- sessions -----------------------------------------------------------------------------------------

    def close_session(self, key: ShareSessionKey) -> None:
        """A member's session is over: what it held is released, and what nobody needs is forgotten.

        A fetch of it that still waits is answered at once: what it would acquire now nobody would ever acknowledge
        or release, and the group would do without until the lock's end.
        """
        for fetching in list(self._waiting_of.get(key, ())):
            fetching.end()
        session = self.sessions.remove(key)
        if session is None:
            log.info("%s has no share session to close", key)
            return
        group_id, member_id = key
        releasing = self.partitions.release(
            member_id, [SharePartitionKey(group_id, *place) for place in session.partitions]
        )
        releasing.then(lambda done: _log_failures(key, done.result()))
        if not self.sessions.has_members(group_id):
            self.partitions.remove_group(group_id)

    def disconnected(self, connection: Hashable) -> None:
        """A connection is closed: nobody waits on it, and its sessions are closed too."""
        for fetching in self._waiting.pop(connection, ()):
            fetching.stop()
            _forget(self._waiting_of, fetching.session_key, fetching)
        if self._leaving:
            return
        for key in self.sessions.opened_on(connection):
            self.close_session(key)

    def leave(self) -> None:
        """The broker is about to close its connections: what members hold is not released any more.

        That would count as a delivery that failed, and archive what is at its last. The locks end with this process.
        """
        self._leaving = True

    # ---- the cluster --------------------------------------------------------------------------------------

    async def apply(self, delta: Delta) -> None:
        """Forget everything if there are to be no share groups."""
        if delta.after.features.get(SHARE_VERSION, 0) < 1:
            self.sessions.clear()
            self.partitions.remove_all()

    async def stop(self) -> None:
        self.partitions.remove_all()


def _forget(waiting: dict[K, dict[DelayedShareFetch, None]], key: K, fetching: DelayedShareFetch) -> None:
    of_one = waiting.get(key)
    if of_one is not None:
        of_one.pop(fetching, None)
        if not of_one:
            del waiting[key]


def _log_failures(key: ShareSessionKey, outcomes: dict[SharePartitionKey, KafkaError | None]) -> None:
    for share_key, error in outcomes.items():
        if error is not None and error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            log.info("releasing what %s held of %s failed: %s", key, share_key, error)
