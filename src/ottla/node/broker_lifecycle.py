"""The broker's standing with the controller (Kafka's BrokerLifecycleManager).

Registering, heartbeats, being unfenced, and the controlled shutdown.

Owner: the node, on its loop.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from ottla.controller.controller import Controller
from ottla.controller.result import RequestContext
from ottla.metadata.features import SUPPORTED_FEATURES
from ottla.metadata.registrations import Endpoint
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import NodeId, Uuid
from ottla.model.tasks import spawn, spawn_restarting
from ottla.wire.messages.nodes.broker_lifecycle import (
    AssignReplicasToDirsRequest,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    Feature,
    Listener,
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
# A broker that the controller does not let go stops anyway after a while.
SHUTDOWN_PATIENCE_S = 10.0
SHUTDOWN_RETRY_S = 0.02

_REGISTRATION = RequestContext(4)
_HEARTBEAT = RequestContext(2)
_ASSIGNMENT = RequestContext(0)


class BrokerLifecycle:
    """Registers the broker with the controller and sends its heartbeats."""

    def __init__(
        self,
        controller: Controller,
        node_id: NodeId,
        incarnation_id: Uuid,
        metadata_offset: Callable[[], int],
        offline_dirs: Callable[[], list[Uuid]],
        cordoned_dirs: Callable[[], list[Uuid] | None],
        interval_ms: int,
    ) -> None:
        self._controller = controller
        self._node_id = node_id
        self._incarnation_id = incarnation_id
        self._metadata_offset = metadata_offset
        self._offline_dirs = offline_dirs
        self._cordoned_dirs = cordoned_dirs
        self._interval_s = interval_ms / 1000
        self._task: asyncio.Task[None] | None = None
        self.broker_epoch = -1

    async def register(
        self,
        cluster_id: str,
        listeners: Sequence[Endpoint],
        rack: str | None,
        directories: list[Uuid],
        previous_epoch: int,
    ) -> None:
        """Register this run of the broker; its epoch distinguishes it from earlier ones."""
        request = BrokerRegistrationRequest(
            broker_id=self._node_id,
            cluster_id=cluster_id,
            incarnation_id=self._incarnation_id,
            listeners=[
                Listener(name=e.listener, host=e.host, port=e.port, security_protocol=e.security_protocol)
                for e in listeners
            ],
            features=[
                Feature(name=name, min_supported_version=span.min, max_supported_version=span.max)
                for name, span in SUPPORTED_FEATURES.items()
            ],
            rack=rack,
            log_dirs=directories,
            previous_broker_epoch=previous_epoch,
        )
        response = await self._controller.register_broker(request, _REGISTRATION)
        _check(response.error_code, "the controller refuses to register this broker")
        self.broker_epoch = response.broker_epoch

    async def unfence(self) -> None:
        """Everything is in place: let clients be sent here."""
        while (await self._heartbeat()).is_fenced:
            await asyncio.sleep(self._interval_s)
        self._task = spawn_restarting(self._beat, name="heartbeats", owner=OWNER)

    async def leave(self) -> None:
        """Hand over what is led, as far as there is anyone to take it."""
        if self._task is None:
            return
        self._task.cancel()
        try:
            async with asyncio.timeout(SHUTDOWN_PATIENCE_S):
                while not (await self._heartbeat(want_shut_down=True)).should_shut_down:
                    await asyncio.sleep(SHUTDOWN_RETRY_S)
        except (KafkaError, TimeoutError) as error:
            log.warning("stopping without the controller's leave: %s", error or "it did not answer in time")

    async def assign_directory(self, topic_id: Uuid, partition: int, directory_id: Uuid) -> None:
        """Report to the controller in which directory a replica has its log (KIP-858)."""
        where = Directory(
            id=directory_id,
            topics=[TopicData(topic_id=topic_id, partitions=[PartitionData(partition_index=partition)])],
        )
        request = AssignReplicasToDirsRequest(
            broker_id=self._node_id, broker_epoch=self.broker_epoch, directories=[where]
        )
        response = await self._controller.assign_replicas_to_dirs(request, _ASSIGNMENT)
        if response.error_code:
            log.warning(
                "the controller was not told in which directory a replica is: %s",
                ErrorCode(response.error_code).name,
            )

    def beat_now(self) -> None:
        """Something has changed that the controller should hear of before the next heartbeat is due."""
        if self._task is not None and not self._task.done():
            spawn(self._try_heartbeat(), name="heartbeat", owner=OWNER)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            await self._try_heartbeat()

    async def _try_heartbeat(self) -> None:
        try:
            await self._heartbeat()
        except KafkaError as error:
            log.warning("heartbeat failed: %s", error)

    async def _heartbeat(self, want_shut_down: bool = False) -> BrokerHeartbeatResponse:
        request = BrokerHeartbeatRequest(
            broker_id=self._node_id,
            broker_epoch=self.broker_epoch,
            current_metadata_offset=self._metadata_offset(),
            want_fence=False,
            want_shut_down=want_shut_down,
            offline_log_dirs=self._offline_dirs(),
            cordoned_log_dirs=self._cordoned_dirs(),
        )
        response = await self._controller.broker_heartbeat(request, _HEARTBEAT)
        _check(response.error_code, "the controller refuses a heartbeat")
        return response


def _check(error_code: int, what: str) -> None:
    if error_code:
        code = ErrorCode(error_code)
        raise KafkaError(code, f"{what}: {code.name}")
