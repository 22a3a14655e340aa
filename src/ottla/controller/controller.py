"""Kafka's QuorumController: answers every admin and broker request, and acts by itself on what brokers do.

Purpose: ties the pure decisions to the runtime. Rules: a response leaves only when its records are committed; a
request that is refused as a whole is answered in its own form, never with an exception. All on the loop.
Make it, start(), and at the end stop(). Owned by the node.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import TypeVar

from ottla.controller import (
    cluster_control,
    configuration_control,
    feature_control,
    replication_control,
    topics,
)
from ottla.controller.cluster_control import BrokerControlState, BrokerHeartbeatManager, HeartbeatDecision
from ottla.controller.feature_control import activation_records
from ottla.controller.result import ControllerResult, RequestContext
from ottla.controller.rules import MIN_ISR, ClusterRules, ControllerSettings
from ottla.controller.runtime import ControllerRuntime
from ottla.controller.topics import Sources
from ottla.metadata import features
from ottla.metadata.delta import Delta
from ottla.metadata.features import SUPPORTED_FEATURES
from ottla.metadata.image import EMPTY_IMAGE, ClusterImage
from ottla.metadata.loader import MetadataLoader, MetadataPublisher
from ottla.metadata.records import NoOpRecord
from ottla.metadata.registrations import Endpoint
from ottla.metadata.snapshot import read_bootstrap
from ottla.model.clock import Clock
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import ZERO_UUID, Uuid, random_uuid
from ottla.model.tasks import report, spawn, spawn_restarting
from ottla.raft.driver import RaftDriver
from ottla.wire.messages import producers
from ottla.wire.messages.admin import cluster as feature_messages
from ottla.wire.messages.admin import configs as config_messages
from ottla.wire.messages.admin import topics as topic_messages
from ottla.wire.messages.nodes import broker_lifecycle as lifecycle
from ottla.wire.messages.nodes import replication

logger = logging.getLogger(__name__)

T = TypeVar("T")

OWNER = "controller"
TICK_INTERVAL_S = 1.0


class Controller:
    """The controller of a quorum of one voter, which this node is."""

    def __init__(
        self,
        raft: RaftDriver,
        settings: ControllerSettings,
        clock: Clock,
        *,
        metadata_dir: Path,
        listeners: tuple[Endpoint, ...] = (),
        on_failure: Callable[[Exception], None] | None = None,
        random: Random | None = None,
        new_uuid: Callable[[], Uuid] = random_uuid,
    ) -> None:
        self.raft = raft
        self.settings = settings
        self.publisher = MetadataPublisher()
        self.heartbeats = BrokerHeartbeatManager(settings.static["broker.session.timeout.ms"])
        self._clock = clock
        self._metadata_dir = metadata_dir
        self._listeners = listeners
        self._on_failure = on_failure
        self._sources = Sources(random or Random(), new_uuid)  # placement, not security
        self._runtime = ControllerRuntime(raft, MetadataLoader(EMPTY_IMAGE), self.publisher, clock)
        self._tasks: list[asyncio.Task[None]] = []
        self._snapshot: asyncio.Task[None] | None = None
        self._balance_interval_ms = settings.static["leader.imbalance.check.interval.seconds"] * 1000
        self._next_balance_ms = clock.monotonic_ms() + self._balance_interval_ms
        self._last_write_ms = clock.monotonic_ms()

    # --- life

    async def start(self) -> None:
        """Loads the log, becomes active, and has said so in the log when this returns."""
        loader, delta = self.raft.load()
        self._runtime = ControllerRuntime(self.raft, loader, self.publisher, self._clock)
        await self.raft.start(self)
        self.publisher.publish(loader.image, delta)
        await self._activate()
        await self._register_itself()
        self.publisher.subscribe(self._image_published)
        self._tasks = [spawn_restarting(self._tick_forever, name="periodic work", owner=OWNER)]

    async def stop(self) -> None:
        """Stops deciding, and closes the log with everything in it on disk."""
        for task in [*self._tasks, *([self._snapshot] if self._snapshot is not None else [])]:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if self._runtime.active and self.raft.is_leader:
            await self._write_snapshot(stopping=True)
        self._runtime.resign()
        try:
            await self.raft.stop()
        finally:
            self.settings.policies.close()

    async def _activate(self) -> None:
        runtime = self._runtime
        bootstrap = [] if runtime.image.metadata_version is not None else read_bootstrap(self._metadata_dir)
        records = activation_records(
            runtime.image, runtime.transaction_start_offset, bootstrap, self.settings.static[MIN_ISR]
        )
        if records:
            await runtime.submit(lambda image: ControllerResult(None, records))

    async def _register_itself(self) -> None:
        if not features.controller_registration_supported(self._runtime.image.metadata_version_or_throw):
            return
        request = lifecycle.ControllerRegistrationRequest(
            controller_id=self.settings.node_id,
            incarnation_id=self._sources.new_uuid(),
            zk_migration_ready=False,
            listeners=[
                lifecycle.Listener(
                    name=e.listener, host=e.host, port=e.port, security_protocol=e.security_protocol
                )
                for e in self._listeners
            ],
            features=[
                lifecycle.Feature(name=name, min_supported_version=r.min, max_supported_version=r.max)
                for name, r in SUPPORTED_FEATURES.items()
            ],
        )
        await self._decide(cluster_control.register_controller, request)

    # --- the quorum's events (RaftListener)

    def on_commit(self, high_watermark: int) -> None:
        self._runtime.on_commit(high_watermark)

    def on_leader(self, epoch: int) -> None:
        self._runtime.activate()
        if not self._tasks:
            self.heartbeats.start(self._runtime.image, self.settings.node_id, self._clock.monotonic_ms())

    def on_resigned(self) -> None:
        self._runtime.resign()

    def on_failure(self, error: Exception) -> None:
        self._runtime.fail()
        if self._on_failure is not None:
            self._on_failure(error)

    # --- deciding

    @property
    def image(self) -> ClusterImage:
        """The newest committed image."""
        return self.publisher.image

    @property
    def active(self) -> bool:
        return self._runtime.active

    @property
    def epoch(self) -> int:
        return self.raft.epoch

    def _submit(self, decide: Callable[[ClusterRules], ControllerResult[T]]) -> "asyncio.Future[T]":
        self._last_write_ms = self._clock.monotonic_ms()
        return self._runtime.submit(lambda image: decide(ClusterRules(image, self.settings)))

    async def _decide(
        self, decide: Callable[..., ControllerResult[T]], *arguments: object, **named: object
    ) -> T:
        return await self._submit(lambda rules: decide(rules, *arguments, **named))

    # --- topics

    async def create_topics(
        self, request: topic_messages.CreateTopicsRequest, context: RequestContext
    ) -> topic_messages.CreateTopicsResponse:
        try:
            _check_time(request.timeout_ms)
            if request.topics:
                _require_time(request.timeout_ms)
            return await self._decide(topics.create_topics, request, context, self._sources)
        except KafkaError as error:
            return _refuse_create_topics(request, error)

    async def delete_topics(
        self, request: topic_messages.DeleteTopicsRequest, context: RequestContext
    ) -> topic_messages.DeleteTopicsResponse:
        try:
            _check_time(request.timeout_ms)
            if request.topics or request.topic_names:
                _require_time(request.timeout_ms)
            return await self._decide(topics.delete_topics, request, context)
        except KafkaError as error:
            return _refuse_delete_topics(request, error)

    async def create_partitions(
        self, request: topic_messages.CreatePartitionsRequest, context: RequestContext
    ) -> topic_messages.CreatePartitionsResponse:
        try:
            _check_time(request.timeout_ms)
            if request.topics:
                _require_time(request.timeout_ms)
            return await self._decide(topics.create_partitions, request, self._sources)
        except KafkaError as error:
            return _refuse_create_partitions(request, error)

    # --- configuration and features

    async def incremental_alter_configs(
        self, request: config_messages.IncrementalAlterConfigsRequest, context: RequestContext
    ) -> config_messages.IncrementalAlterConfigsResponse:
        try:
            return await self._decide(configuration_control.incremental_alter_configs, request, context)
        except KafkaError as error:
            responses = _refuse_resources(request.resources, error)
            return config_messages.IncrementalAlterConfigsResponse(responses=responses)

    async def alter_configs(
        self, request: config_messages.AlterConfigsRequest, context: RequestContext
    ) -> config_messages.AlterConfigsResponse:
        try:
            return await self._decide(configuration_control.alter_configs, request, context)
        except KafkaError as error:
            responses = _refuse_resources(request.resources, error)
            return config_messages.AlterConfigsResponse(responses=responses)

    async def update_features(
        self, request: feature_messages.UpdateFeaturesRequest, context: RequestContext
    ) -> feature_messages.UpdateFeaturesResponse:
        try:
            return await self._decide(
                feature_control.update_features, request, context, self.raft.kraft_version
            )
        except KafkaError as error:
            return feature_messages.UpdateFeaturesResponse(error_code=error.code, error_message=error.message)

    # --- brokers

    async def register_broker(
        self, request: lifecycle.BrokerRegistrationRequest, context: RequestContext
    ) -> lifecycle.BrokerRegistrationResponse:
        now_ms = self._clock.monotonic_ms()

        def decide(rules: ClusterRules) -> ControllerResult[lifecycle.BrokerRegistrationResponse]:
            return cluster_control.register_broker(
                rules,
                request,
                self.heartbeats,
                new_epoch=self._runtime.next_offset,
                kraft_version=self.raft.kraft_version,
                clean_shutdown_detection=context.api_version >= 3,
                now_ms=now_ms,
            )

        try:
            response = await self._submit(decide)
        except KafkaError as error:
            logger.warning("broker %d is not registered: %s", request.broker_id, error)
            return lifecycle.BrokerRegistrationResponse(error_code=error.code)
        self.heartbeats.register(request.broker_id, response.broker_epoch, now_ms)
        logger.info("broker %d is registered with epoch %d", request.broker_id, response.broker_epoch)
        return response

    async def broker_heartbeat(
        self, request: lifecycle.BrokerHeartbeatRequest, context: RequestContext
    ) -> lifecycle.BrokerHeartbeatResponse:
        try:
            decision = await self._submit(partial(self._heartbeat, request))
        except KafkaError as error:
            return lifecycle.BrokerHeartbeatResponse(error_code=error.code, should_shut_down=False)
        if decision.state is BrokerControlState.CONTROLLED_SHUTDOWN:
            self.heartbeats.set_controlled_shutdown_offset(request.broker_id, self.image.offset)
        return decision.response

    def _heartbeat(
        self, request: lifecycle.BrokerHeartbeatRequest, rules: ClusterRules
    ) -> ControllerResult[HeartbeatDecision]:
        result = cluster_control.broker_heartbeat(rules, request, self.heartbeats)
        self.heartbeats.touch(
            request.broker_id,
            request.broker_epoch,
            request.current_metadata_offset,
            self._clock.monotonic_ms(),
        )
        return result

    async def unregister_broker(
        self, request: lifecycle.UnregisterBrokerRequest, context: RequestContext
    ) -> lifecycle.UnregisterBrokerResponse:
        try:
            response = await self._decide(cluster_control.unregister_broker, request)
        except KafkaError as error:
            return lifecycle.UnregisterBrokerResponse(error_code=error.code, error_message=error.message)
        self.heartbeats.remove(request.broker_id)
        return response

    async def register_controller(
        self, request: lifecycle.ControllerRegistrationRequest, context: RequestContext
    ) -> lifecycle.ControllerRegistrationResponse:
        try:
            return await self._decide(cluster_control.register_controller, request)
        except KafkaError as error:
            return lifecycle.ControllerRegistrationResponse(
                error_code=error.code, error_message=error.message
            )

    async def assign_replicas_to_dirs(
        self, request: lifecycle.AssignReplicasToDirsRequest, context: RequestContext
    ) -> lifecycle.AssignReplicasToDirsResponse:
        try:
            return await self._decide(cluster_control.assign_replicas_to_dirs, request)
        except KafkaError as error:
            return lifecycle.AssignReplicasToDirsResponse(error_code=error.code, directories=[])

    async def allocate_producer_ids(
        self, request: producers.AllocateProducerIdsRequest, context: RequestContext
    ) -> producers.AllocateProducerIdsResponse:
        try:
            return await self._decide(cluster_control.allocate_producer_ids, request)
        except KafkaError as error:
            return producers.AllocateProducerIdsResponse(
                error_code=error.code, producer_id_start=0, producer_id_len=0
            )

    # --- partitions

    async def alter_partition(
        self, request: replication.AlterPartitionRequest, context: RequestContext
    ) -> replication.AlterPartitionResponse:
        try:
            return await self._decide(replication_control.alter_partition, request, context)
        except KafkaError as error:
            return replication.AlterPartitionResponse(error_code=error.code, topics=[])

    async def elect_leaders(
        self, request: replication.ElectLeadersRequest, context: RequestContext
    ) -> replication.ElectLeadersResponse:
        try:
            if request.topic_partitions != []:
                _check_time(request.timeout_ms)
            if request.topic_partitions is None or request.topic_partitions:
                _require_time(request.timeout_ms)
            return await self._decide(replication_control.elect_leaders, request)
        except KafkaError as error:
            return _refuse_elect_leaders(request, error, context.api_version)

    async def alter_partition_reassignments(
        self, request: replication.AlterPartitionReassignmentsRequest, context: RequestContext
    ) -> replication.AlterPartitionReassignmentsResponse:
        try:
            if request.topics:
                _check_time(request.timeout_ms)
            if request.topics:
                _require_time(request.timeout_ms)
            return await self._decide(replication_control.alter_partition_reassignments, request)
        except KafkaError as error:
            return _refuse_alter_partition_reassignments(request, error)

    async def list_partition_reassignments(
        self, request: replication.ListPartitionReassignmentsRequest, context: RequestContext
    ) -> replication.ListPartitionReassignmentsResponse:
        return replication_control.list_partition_reassignments(self.image, request)

    # --- by itself

    def _image_published(self, image: ClusterImage, delta: Delta) -> None:
        if self._snapshot is None and self.raft.snapshots.due(image):
            self._snapshot = spawn(self._write_snapshot(), name="metadata snapshot", owner=OWNER)

    async def _write_snapshot(self, *, stopping: bool = False) -> None:
        try:
            await self.raft.maybe_snapshot(self.image, stopping=stopping)
        except OSError as error:
            # The log itself is whole: the next snapshot may succeed.
            logger.error("no metadata snapshot: %s", error)
        except Exception as error:  # noqa: BLE001 - as above
            report(error, name="metadata snapshot", owner=OWNER)
        finally:
            self._snapshot = None

    async def _tick_forever(self) -> None:
        while True:
            await asyncio.sleep(self._tick_interval_s())
            try:
                await self.tick()
            except KafkaError as error:
                logger.warning("periodic work of the controller failed: %s", error)

    def _tick_interval_s(self) -> float:
        idle_ms = self.raft.log.config.max_idle_interval_ms
        return min(TICK_INTERVAL_S, idle_ms / 1000) if self._wants_no_ops() else TICK_INTERVAL_S

    async def tick(self) -> None:
        """Everything that is due by time."""
        if not self.active:
            return
        await self._fence_expired()
        await self._balance()
        await self._write_no_op()
        if self._snapshot is None:
            await self._write_snapshot()

    async def _fence_expired(self) -> None:
        for broker_id in self.heartbeats.expired(self.image, self._clock.monotonic_ms()):
            logger.warning("broker %d has not been heard from: it is fenced", broker_id)
            await self._submit(partial(self._fence, broker_id))

    def _fence(self, broker_id: int, rules: ClusterRules) -> ControllerResult[None]:
        return ControllerResult(None, cluster_control.fence_broker(rules, broker_id))

    async def _balance(self) -> None:
        now_ms, static = self._clock.monotonic_ms(), self.settings.static
        if now_ms < self._next_balance_ms:
            return
        self._next_balance_ms = now_ms + self._balance_interval_ms
        if static["auto.leader.rebalance.enable"] and await self._submit(replication_control.balance_leaders):
            self._next_balance_ms = now_ms
        await self._submit(replication_control.elect_unclean_leaders)

    def _wants_no_ops(self) -> bool:
        """Kafka writes one every half second; here only if somebody on the network follows the log.

        A NoOpRecord shows followers that the log is alive. A node by itself has none, and an idle disk is
        worth more to it than a log that grows.
        """
        return self.raft.log.config.max_idle_interval_ms > 0 and self.raft.has_observers

    async def _write_no_op(self) -> None:
        idle_ms = self._clock.monotonic_ms() - self._last_write_ms
        if self._wants_no_ops() and idle_ms >= self.raft.log.config.max_idle_interval_ms:
            await self._submit(lambda rules: ControllerResult(None, [NoOpRecord()]))


def _check_time(timeout_ms: int) -> None:
    """Who gives no time has run out of it before anything is done, as with Kafka."""
    if timeout_ms <= 0:
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT)


def _require_time(timeout_ms: int) -> None:
    """Whoever gives no time is too late already, and nothing is decided."""
    if timeout_ms <= 0:
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT)


# --- requests that are refused as a whole: the error stands at every item, where clients look for it


def _refuse_create_topics(
    request: topic_messages.CreateTopicsRequest, error: KafkaError
) -> topic_messages.CreateTopicsResponse:
    return topic_messages.CreateTopicsResponse(
        topics=[
            topic_messages.CreatableTopicResult(
                name=topic.name, error_code=error.code, error_message=error.message
            )
            for topic in request.topics
        ]
    )


def _refuse_delete_topics(
    request: topic_messages.DeleteTopicsRequest, error: KafkaError
) -> topic_messages.DeleteTopicsResponse:
    named = [(topic.name, topic.topic_id) for topic in request.topics]
    named += [(name, ZERO_UUID) for name in request.topic_names]
    return topic_messages.DeleteTopicsResponse(
        responses=[
            topic_messages.DeletableTopicResult(name=name, topic_id=topic_id, error_code=error.code)
            for name, topic_id in named
        ]
    )


def _refuse_create_partitions(
    request: topic_messages.CreatePartitionsRequest, error: KafkaError
) -> topic_messages.CreatePartitionsResponse:
    return topic_messages.CreatePartitionsResponse(
        results=[
            topic_messages.CreatePartitionsTopicResult(
                name=topic.name, error_code=error.code, error_message=error.message
            )
            for topic in request.topics
        ]
    )


def _refuse_resources(
    changes: Sequence[config_messages.AlterConfigsResource | config_messages.IncrementalAlterConfigsResource],
    error: KafkaError,
) -> list[config_messages.AlterConfigsResourceResponse]:
    return [
        config_messages.AlterConfigsResourceResponse(
            error_code=error.code,
            error_message=error.message,
            resource_type=change.resource_type,
            resource_name=change.resource_name,
        )
        for change in changes
    ]


def _refuse_elect_leaders(
    request: replication.ElectLeadersRequest, error: KafkaError, api_version: int
) -> replication.ElectLeadersResponse:
    return replication.ElectLeadersResponse(
        error_code=error.code if api_version >= 1 else ErrorCode.NONE,
        replica_election_results=[
            replication.ReplicaElectionResult(
                topic=topic.topic,
                partition_result=[
                    replication.PartitionResult(
                        partition_id=n, error_code=error.code, error_message=error.message
                    )
                    for n in topic.partitions
                ],
            )
            for topic in request.topic_partitions or ()
        ],
    )


def _refuse_alter_partition_reassignments(
    request: replication.AlterPartitionReassignmentsRequest, error: KafkaError
) -> replication.AlterPartitionReassignmentsResponse:
    return replication.AlterPartitionReassignmentsResponse(
        error_code=error.code,
        error_message=error.message,
        responses=[
            replication.ReassignableTopicResponse(
                name=topic.name,
                partitions=[
                    replication.ReassignablePartitionResponse(
                        partition_index=p.partition_index,
                        error_code=error.code,
                        error_message=error.message,
                    )
                    for p in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )
