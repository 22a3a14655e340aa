"""Kafka's AssignmentsManager: the controller hears in which log directory each replica of this broker lies (KIP-858).

What comes within a tenth of a second goes as one request; what fails is sent again, after longer and longer pauses, for
as long as it is still true. Owner: the node, on its loop.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from ottla.controller.channel import ControllerDecisions
from ottla.controller.result import RequestContext
from ottla.metadata.delta import Delta
from ottla.metadata.features import directory_assignment_supported
from ottla.metadata.image import ClusterImage
from ottla.model.errors import KafkaError, error_of
from ottla.model.ids import NodeId, Uuid
from ottla.model.tasks import spawn_restarting
from ottla.model.time_slice import TimeSlice
from ottla.wire.messages.nodes.broker_lifecycle import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
)
from ottla.wire.messages.nodes.broker_lifecycle import (
    AssignReplicasToDirsRequestDirectoryData as Directory,
)
from ottla.wire.messages.nodes.broker_lifecycle import (
    AssignReplicasToDirsRequestPartitionData as PartitionData,
)
from ottla.wire.messages.nodes.broker_lifecycle import (
    AssignReplicasToDirsRequestTopicData as TopicData,
)

log = logging.getLogger("ottla.node")

OWNER = "broker"
MAX_ASSIGNMENTS_PER_REQUEST: Final = 2_250
# What gathers before it is sent, and the wait after a failure: doubled up to the second.
LINGER_S: Final = 0.1
LONGEST_PAUSE_S: Final = 10.0

_CONTEXT = RequestContext(0)


class Replica(NamedTuple):
    """A partition of this broker."""

    topic_id: Uuid
    partition: int


# The directory in which this broker has a partition of a topic; None if it has none.
DirectoryOf = Callable[[Uuid, int], Uuid | None]


class AssignmentsManager:
    """Reports the directories of replicas to the controller."""

    def __init__(
        self,
        controller: ControllerDecisions,
        node_id: NodeId,
        broker_epoch: Callable[[], int],
        image: Callable[[], ClusterImage],
        directory_of: DirectoryOf,
    ) -> None:
        """`image` is the newest committed one: what is assigned while a change is applied is in none that is shown."""
        self._controller = controller
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._image = image
        self._directory_of = directory_of
        self._ready: dict[Replica, Uuid] = {}
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = spawn_restarting(
            self._send_forever, name="reporting the directories of replicas", owner=OWNER
        )

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def assign(self, topic_id: Uuid, partition: int, directory_id: Uuid) -> None:
        """A replica lies in this directory now."""
        self._ready[Replica(topic_id, partition)] = directory_id
        self._news.set()

    async def follow(self, delta: Delta) -> None:
        """Whatever the image says of replicas that lie elsewhere is put right."""
        image = delta.after
        if not directory_assignment_supported(image.metadata_version or 0):
            return
        time_slice = TimeSlice()
        for change in delta.topics.values():
            if change.after is None:
                continue
            for number in change.partitions:
                registration = change.after.partitions.get(number)
                if registration is not None and self._node_id in registration.replicas:
                    actual = self._directory_of(change.after.id, number)
                    if actual is not None and actual != registration.directory(self._node_id):
                        self.assign(change.after.id, number, actual)
                await time_slice.yield_to_loop()

    # ---- sending ------------------------------------------------------------------------------------------

    async def _send_forever(self) -> None:
        pause_s = LINGER_S
        while True:
            await self._news.wait()
            if len(self._ready) <= MAX_ASSIGNMENTS_PER_REQUEST or pause_s > LINGER_S:
                await asyncio.sleep(pause_s)
            self._news.clear()
            failed = await self._send_some()
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S) if failed else LINGER_S
            if self._ready:
                self._news.set()

    async def _send_some(self) -> bool:
        """Send one request of those that are ready; did anything of it fail?"""
        sent: dict[Replica, Uuid] = {}
        for replica in list(self._ready)[:MAX_ASSIGNMENTS_PER_REQUEST]:
            directory_id = self._ready.pop(replica)
            if self._is_here(replica):
                sent[replica] = directory_id
        if not sent:
            return False
        done: set[Replica] = set()
        try:
            done, why = await self._ask(sent)
        finally:
            # Whatever becomes of the request: what the controller has not taken is still to be said.
            failed = {replica: directory for replica, directory in sent.items() if replica not in done}
            for replica, directory_id in failed.items():
                self._ready.setdefault(replica, directory_id)
            if failed:
                self._news.set()
        if failed:
            log.warning(
                "the controller has not taken the directories of %d replicas yet: %s", len(failed), why
            )
        return bool(failed)

    def _is_here(self, replica: Replica) -> bool:
        topic = self._image().topic_by_id(replica.topic_id)
        registration = None if topic is None else topic.partitions.get(replica.partition)
        return registration is not None and self._node_id in registration.replicas

    async def _ask(self, sent: Mapping[Replica, Uuid]) -> tuple[set[Replica], str]:
        """Those that the controller has taken, and why not the others."""
        request = AssignReplicasToDirsRequest(
            broker_id=self._node_id, broker_epoch=self._broker_epoch(), directories=_by_directory(sent)
        )
        try:
            response = await self._controller.assign_replicas_to_dirs(request, _CONTEXT)
        except KafkaError as error:
            return set(), str(error)
        refused = error_of(response.error_code)
        return _taken(response) if refused is None else (set(), refused.name)


def _by_directory(replicas: Mapping[Replica, Uuid]) -> list[Directory]:
    grouped: dict[Uuid, dict[Uuid, list[PartitionData]]] = {}
    for (topic_id, partition), directory_id in replicas.items():
        topics = grouped.setdefault(directory_id, {})
        topics.setdefault(topic_id, []).append(PartitionData(partition_index=partition))
    return [
        Directory(
            id=directory_id,
            topics=[TopicData(topic_id=topic_id, partitions=parts) for topic_id, parts in topics.items()],
        )
        for directory_id, topics in grouped.items()
    ]


def _taken(response: AssignReplicasToDirsResponse) -> tuple[set[Replica], str]:
    taken: set[Replica] = set()
    why = "no result"
    for directory in response.directories:
        for topic in directory.topics:
            for partition in topic.partitions:
                refused = error_of(partition.error_code)
                if refused is not None:
                    why = refused.name
                else:
                    taken.add(Replica(topic.topic_id, partition.partition_index))
    return taken, why
