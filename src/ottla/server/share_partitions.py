"""The share partitions that this broker leads: found by group and partition, made by the first fetch.

A share partition is forgotten when its partition is led elsewhere, deleted or offline, when the share coordinator
fences it, and when its group has no sessions left here. The next fetch loads it again from what was written down.

Owner: the ShareService, on the broker's loop.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from ottla.coordinator.ports import Scheduler
from ottla.metadata.delta import Delta
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.pending import Pending
from ottla.replication.partition import Partition
from ottla.replication.replica_manager import ReplicaManager
from ottla.replication.share_state import Acknowledgement, ShareKey
from ottla.server.share_hosting import HostedShare, TimestampSearch
from ottla.server.share_ports import Persister
from ottla.server.share_settings import ShareSettings

# After these there is no use in going on with what is known here.
_FENCING: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_STATE_EPOCH,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)

NOT_HOSTED: Final = "This server does not host this topic-partition."

# How each of several share partitions took it.
Outcomes = dict[ShareKey, KafkaError | None]


class SharePartitions:
    """See the module."""

    def __init__(
        self,
        replicas: ReplicaManager,
        persister: Persister,
        settings: Callable[[str], ShareSettings],
        scheduler: Scheduler,
        search: TimestampSearch,
    ) -> None:
        self._replicas = replicas
        self._persister = persister
        self._settings = settings
        self._scheduler = scheduler
        self._search = search
        self._hosted: dict[ShareKey, HostedShare] = {}
        self._by_group: dict[str, dict[ShareKey, None]] = {}
        # What was forgotten while it still wrote: who comes next reads when that is done.
        self._draining: dict[ShareKey, Pending[None]] = {}

    def __len__(self) -> int:
        return len(self._hosted)

    # ---- finding ------------------------------------------------------------------------------------------

    def get(self, key: ShareKey) -> HostedShare | None:
        return self._hosted.get(key)

    def find_or_host(self, key: ShareKey) -> HostedShare:
        """The share partition; KafkaError if this broker does not lead its partition."""
        hosted = self._hosted.get(key)
        if hosted is None:
            partition = self._leader(key)
            hosted = HostedShare(
                key,
                partition,
                self._persister,
                self._settings,
                self._scheduler,
                self._search,
                self._draining.get(key),
            )
            self._hosted[key] = hosted
            self._by_group.setdefault(key.group_id, {})[key] = None
        return hosted

    def _leader(self, key: ShareKey) -> Partition:
        try:
            return self._replicas.leader(key.topic_id, key.partition)
        except KafkaError as error:
            if error.code != ErrorCode.UNKNOWN_TOPIC_ID:
                raise
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, NOT_HOSTED) from error

    def remove(self, key: ShareKey) -> None:
        """Forget a share partition: what was on its way is fenced."""
        hosted = self._hosted.pop(key, None)
        if hosted is None:
            return
        keys = self._by_group[key.group_id]
        keys.pop(key, None)
        if not keys:
            del self._by_group[key.group_id]
        hosted.fence()
        drained = hosted.drained()
        if drained is not None:
            self._draining[key] = drained
            drained.then(lambda done: self._drained(key, done))

    def _drained(self, key: ShareKey, done: Pending[None]) -> None:
        if self._draining.get(key) is done:
            del self._draining[key]

    def remove_if_fenced(self, key: ShareKey, error: KafkaError) -> None:
        if error.code in _FENCING:
            self.remove(key)

    def remove_group(self, group_id: str) -> None:
        """Nobody of the group fetches here any more."""
        for key in list(self._by_group.get(group_id, ())):
            self.remove(key)

    def remove_all(self) -> None:
        for key in list(self._hosted):
            self.remove(key)

    def apply(self, delta: Delta) -> None:
        """Forget what this broker leads no more."""
        topic_ids = {
            topic.id
            for change in delta.topics.values()
            for topic in (change.before, change.after)
            if topic is not None
        }
        for key, hosted in list(self._hosted.items()) if topic_ids else ():
            if key.topic_id in topic_ids and not self._leads(key, hosted):
                self.remove(key)

    def _leads(self, key: ShareKey, hosted: HostedShare) -> bool:
        partition = self._replicas.hosted(key.topic_id, key.partition)
        return partition is hosted.partition and partition.is_leader

    # ---- for many at once ---------------------------------------------------------------------------------

    def acknowledge(
        self, member_id: str, said: Mapping[ShareKey, Sequence[Acknowledgement]]
    ) -> Pending[Outcomes]:
        """What a member says of records in several share partitions."""
        return self._each(said, lambda hosted: hosted.acknowledge(member_id, said[hosted.key]))

    def release(self, member_id: str, keys: Iterable[ShareKey]) -> Pending[Outcomes]:
        """A member is gone."""
        return self._each(keys, lambda hosted: hosted.release(member_id))

    def _each(
        self, keys: Iterable[ShareKey], act: Callable[[HostedShare], Pending[None]]
    ) -> Pending[Outcomes]:
        gathered: Pending[Outcomes] = Pending()
        outcomes: Outcomes = {}
        waiting = dict.fromkeys(keys)

        def finished(key: ShareKey, error: KafkaError | None) -> None:
            if error is not None:
                self.remove_if_fenced(key, error)
            outcomes[key] = error
            del waiting[key]
            if not waiting:
                gathered.resolve(outcomes)

        if not waiting:
            gathered.resolve(outcomes)
        for key in list(waiting):
            hosted = self._hosted.get(key)
            if hosted is None:
                finished(key, KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, NOT_HOSTED))
            else:
                act(hosted).then(lambda done, key=key: finished(key, done.error))  # type: ignore[misc]
        return gathered
