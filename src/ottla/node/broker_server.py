"""A node's broker role (Kafka's BrokerServer): the parts of a broker, started in order, stopped in reverse.

Start: the broker registers with the controller, and follows the metadata log until it knows of that registration. Only
then are logs loaded, with the configuration the image gives them: an older image would take partitions that are this
broker's for strays. Partitions are hosted, the broker is unfenced, and clients are served.

Stop: the controller is asked to give what this broker leads to others, while clients are still served. Then connections
are closed, and logs are flushed and marked as cleanly stopped with the broker's epoch.

Owner: the node, on its loop.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import lru_cache, partial
from pathlib import Path

from ottla.config.broker import BrokerConfig
from ottla.config.errors import ConfigError
from ottla.controller.channel import ControllerChannel
from ottla.controller.controller import Controller
from ottla.controller.result import RequestContext
from ottla.coordinator.shard import Scheduler
from ottla.metadata.delta import Delta
from ottla.metadata.features import cordoned_dirs_supported
from ottla.metadata.image import CLUSTER_DEFAULT, ClusterImage, ConfigResource, ResourceType
from ottla.model.clock import Clock
from ottla.model.errors import ErrorCode, KafkaError, error_of
from ottla.model.ids import NodeId, TopicPartition, Uuid, random_uuid
from ottla.model.pending import Pending
from ottla.model.tasks import guarded, spawn, spawn_restarting
from ottla.node.acl_publisher import AclPublisher
from ottla.node.assignments_manager import AssignmentsManager
from ottla.node.broker_lifecycle import BrokerIdentity, BrokerLifecycleManager, LifecycleTimes
from ottla.node.coordinators import Coordinators, LoopScheduler
from ottla.node.publisher import Publisher
from ottla.node.shared_server import SharedServer
from ottla.replication.alter_partition import AlterPartitionManager
from ottla.replication.fetcher_manager import ReplicaFetcherManager
from ottla.replication.partition import Partition
from ottla.replication.quotas import ReplicationQuotas
from ottla.replication.replica_manager import ReplicaManager, is_stray
from ottla.replication.replica_selector import ReplicaSelection, load_selector
from ottla.security.authorizer import Authorizer
from ottla.security.quotas import QuotaWindows
from ottla.server import handlers
from ottla.server.audit import AuditedTopicCreation
from ottla.server.context import Services
from ottla.server.dispatch import Dispatcher
from ottla.server.fetch_sessions import FetchSessionCache
from ottla.server.limits import Unpacking
from ottla.server.network.connection import Listener
from ottla.server.network.socket_server import SocketServer
from ottla.server.quotas import QuotaManagers
from ottla.server.topic_creation import SHARE_GROUP_STATE, AutoTopicCreationManager, StreamsInternalTopics
from ottla.server.transaction.producer_ids import ProducerIdBlock, ProducerIdSource
from ottla.server.transaction.verification import AddPartitionsToTxnManager
from ottla.share.manager import SharePartitionManager
from ottla.share.persister import Persister
from ottla.storage.config import LogConfig, LogManagerSettings
from ottla.storage.log.log import Log
from ottla.storage.log_manager import LogManager
from ottla.wire.messages.producers import AllocateProducerIdsRequest

log = logging.getLogger("ottla.node")

OWNER = "node"
# The first that tells the controller of which life each member of an ISR is (KIP-903).
ALTER_PARTITION_VERSION = 3
# Long enough for whoever waited for the node to be served first.
LOAD_REST_AFTER_S = 0.5


class BrokerServer:
    """One broker of the cluster."""

    def __init__(
        self,
        shared: SharedServer,
        config: BrokerConfig,
        logs: LogManager,
        sockets: SocketServer,
        channel: ControllerChannel,
        local_controller: Controller | None,
        clock: Clock,
        executor: ThreadPoolExecutor,
        on_failure: Callable[[BaseException], None],
        quotas: QuotaManagers,
        authorizer: Authorizer | None = None,
        acls: AclPublisher | None = None,
    ) -> None:
        """`channel` leads to the active controller, which may be `local_controller`."""
        self._authorizer = authorizer
        self._acls = acls
        self._shared = shared
        self._static_config = config
        self.config = config
        self.node_id = NodeId(config.node_id)
        self.logs = logs
        self._sockets = sockets
        self._channel = channel
        self._local_controller = local_controller
        self._clock = clock
        self._executor = executor
        self._quotas = quotas
        self._replication_quotas = ReplicationQuotas(
            self.node_id,
            QuotaWindows(
                config["replication.quota.window.num"],
                config["replication.quota.window.size.seconds"] * 1000,
            ),
            QuotaWindows(
                config["alter.log.dirs.replication.quota.window.num"],
                config["alter.log.dirs.replication.quota.window.size.seconds"] * 1000,
            ),
        )
        self._unpacking = Unpacking(executor)
        self._publisher = Publisher(on_failure)
        shared.metadata.subscribe(self._publisher.publish)
        self._producer_ids = ProducerIdSource(self._allocate_producer_ids)
        self.lifecycle = BrokerLifecycleManager(
            channel,
            lambda: self._publisher.image.offset,
            lambda: [d.id for d in self.logs.dirs.offline if d.id is not None],
            self._cordoned_directories,
            LifecycleTimes(
                config["broker.heartbeat.interval.ms"],
                config["initial.broker.registration.timeout.ms"],
                config["log.dir.failure.timeout.ms"],
            ),
            on_failure,
            self._why_no_controller,
        )
        self._replica_selection = ReplicaSelection(
            load_selector(config["replica.selector.class"], config.originals),
            lambda: self.image,
            config["broker.rack"],
        )
        self._assignments = AssignmentsManager(
            channel,
            self.node_id,
            lambda: self.lifecycle.broker_epoch,
            lambda: self._publisher.newest,
            self._directory_of,
        )
        # What has been started, as the ways to stop it; the last one is stopped first.
        self._stops: list[Callable[[], Awaitable[None]]] = [self._abandon_logs]
        self._loading = False
        self._interrupted = False
        self._hosts = False
        self._serving = False
        self._hw_task: asyncio.Task[None] | None = None
        self._rest: asyncio.TimerHandle | None = None
        self.replicas: ReplicaManager
        self.fetchers: ReplicaFetcherManager | None = None
        self.coordinators: Coordinators
        self.share: SharePartitionManager

    # ---- life ---------------------------------------------------------------------------------------------

    async def start(self) -> None:
        await self._register()
        await self._load_logs()
        await self._follow_metadata()
        await self._serve()

    def interrupt(self) -> bool:
        """End a recovery of logs that is under way: `start` then raises RecoveryAbortedError. Is there one?"""
        self._interrupted = True
        if self._loading:
            self.logs.stop_loading()
        return self._loading

    async def stop(self, *, hand_over: bool) -> None:
        """Stop in the reverse order; a part that fails to stop does not keep the others from stopping."""
        if hand_over and self.config["controlled.shutdown.enable"]:
            await self.lifecycle.begin_controlled_shutdown()
        await self.lifecycle.stop()
        while self._stops:
            stop = self._stops.pop()
            try:
                await stop()
            except Exception as error:
                log.error("while stopping: %s", error, exc_info=not isinstance(error, KafkaError))

    async def _register(self) -> None:
        """Register, and follow the log up to there: from then on the image is fresh enough to act on."""
        await self.lifecycle.register(
            BrokerIdentity(
                node_id=self.node_id,
                cluster_id=self._shared.cluster_id,
                incarnation_id=random_uuid(),
                listeners=self._sockets.advertised(self.config.advertised_broker_listeners),
                rack=self.config["broker.rack"],
                directories=[d.id for d in self.logs.dirs.online if d.id is not None],
                previous_epoch=self.logs.previous_broker_epoch,
            )
        )
        await self._publisher.knows(lambda image: self._epoch_in(image) >= self.lifecycle.broker_epoch)
        self._apply_dynamic_config(self._publisher.newest)
        self.lifecycle.caught_up()

    def _why_no_controller(self) -> str | None:
        others = self._shared.raft.other_clusters
        return f"INCONSISTENT_CLUSTER_ID: {', '.join(others)} of another cluster" if others else None

    def _epoch_in(self, image: ClusterImage) -> int:
        registration = image.brokers.get(self.node_id)
        return -1 if registration is None else registration.epoch

    async def _load_logs(self) -> None:
        image = self._publisher.newest
        self.logs.set_topic_defaults(LogConfig.from_values(self.config.topic_defaults()))
        # One configuration for all partitions of a topic: a start opens ten thousand.
        topic_config = lru_cache(maxsize=None)(partial(self._log_config, image))
        self._loading = True
        if self._interrupted:
            self.logs.stop_loading()
        await self.logs.load(topic_config, partial(is_stray, self.node_id, image))
        await self.logs.adopt_futures(partial(self._is_assigned, image))
        self._loading = False
        self._restore_high_watermarks()

    def _restore_high_watermarks(self) -> None:
        for topic_partition, offset in self.logs.read_high_watermarks().items():
            found = self.logs.get(topic_partition)
            if found is not None:
                found.update_high_watermark(min(offset, found.log_end_offset))

    async def _follow_metadata(self) -> None:
        self.replicas = ReplicaManager(
            self.node_id,
            self.logs,
            self._log_config,
            self._clock,
            self._executor,
            self._replica_moved,
            lambda: self.config["replica.lag.time.max.ms"],
            AlterPartitionManager(
                self.node_id,
                lambda: self.lifecycle.broker_epoch,
                lambda request: self._channel.alter_partition(
                    request, RequestContext(ALTER_PARTITION_VERSION)
                ),
            ),
            self._replication_quotas,
        )
        self._hosts = True
        self.replicas.start()
        self._stops.append(self.replicas.stop)
        self.fetchers = self.replicas.fetchers = ReplicaFetcherManager(
            self.node_id,
            lambda: self.config,
            lambda: self.lifecycle.broker_epoch,
            self.logs,
            self._clock,
            security=self._shared.channels.brokers,
            quota=self._replication_quotas.follower,
        )
        self._stops.append(self.fetchers.stop)
        # From here on logs are written: a stop puts them on disk and says so.
        self._stops[self._stops.index(self._abandon_logs)] = self._stop_logs
        if self._acls is not None:
            self._publisher.follow(self._acls.follow)
        self._publisher.follow(self._follow_config)
        self._publisher.follow(self.replicas.apply)
        self.coordinators = Coordinators(
            self.replicas,
            self._executor,
            self._clock,
            lambda: self.config,
            lambda: self.image,
            self._producer_ids,
            self._shared.channels.brokers,
        )
        self._stops.append(self.coordinators.stop)
        self._publisher.follow(self.coordinators.apply)
        self.share = make_share_partition_manager(
            self.replicas,
            self.coordinators.share.persister,
            LoopScheduler(self._clock, asyncio.get_running_loop()),
            self._executor,
            self._unpacking,
            lambda: self.config,
            lambda: self.image,
        )
        self._stops.append(self.share.stop)
        self._publisher.follow(self.share.apply)
        self._publisher.follow(self.lifecycle.follow)
        self._publisher.follow(self._assignments.follow)
        self._assignments.start()
        self._stops.append(self._assignments.stop)
        self._stops.append(self._publisher.stop)
        self._publisher.begin()
        await self._publisher.reached(self._publisher.newest.offset)

    async def _serve(self) -> None:
        handlers.load()
        services = self._services()
        self.logs.start()
        self._stops.append(self._leave)
        await self.lifecycle.unfence()
        await self._publisher.shows(lambda image: not image.brokers[self.node_id].fenced)
        await self.caught_up()
        await self._sockets.serve(Listener.BROKER, Dispatcher(services, Listener.BROKER))
        self._serving = True
        self._hw_task = spawn_restarting(
            self._checkpoint_high_watermarks, name="checkpoints of high watermarks", owner=OWNER
        )
        # What the start did not wait for is imported in a thread, so that no first request has to.
        import_rest = guarded(handlers.load_rest, name="importing handlers", owner=OWNER)
        submit = guarded(self._executor.submit, name="importing handlers", owner=OWNER)
        self._rest = asyncio.get_running_loop().call_later(LOAD_REST_AFTER_S, submit, import_rest)

    def _services(self) -> Services:
        audit = self._sockets.audit
        creator = self._channel if audit is None else AuditedTopicCreation(self._channel, audit)
        topic_creation = AutoTopicCreationManager(
            lambda: self.config, lambda: self.image, creator, self.caught_up
        )
        self.coordinators.create_share_topic = partial(topic_creation.create_internal, SHARE_GROUP_STATE)
        return Services(
            node_id=self.node_id,
            cluster_id=self._shared.cluster_id,
            clock=self._clock,
            loop=asyncio.get_running_loop(),
            executor=self._executor,
            unpacking=self._unpacking,
            config=lambda: self.config,
            image=lambda: self.image,
            logs=self.logs,
            replicas=self.replicas,
            raft=self._shared.raft,
            local_controller=self._local_controller,
            authorizer=self._authorizer,
            controller=self._channel,
            quotas=self._quotas,
            producer_ids=self._producer_ids,
            fetch_sessions=FetchSessionCache(
                self.config["max.incremental.fetch.session.cache.slots"],
            ),
            replica_selection=self._replica_selection,
            caught_up=self.caught_up,
            groups=self.coordinators.groups,
            group_assignors=self.coordinators.group_assignors,
            transactions=self.coordinators.transactions,
            verification=AddPartitionsToTxnManager(
                lambda: self.config, self._clock, self.replicas, self.coordinators.transactions
            ),
            share_state=self.coordinators.share.coordinator,
            share_groups=self.coordinators.share.groups,
            share=self.share,
            topic_creation=topic_creation,
            streams_topics=StreamsInternalTopics(lambda: self.config, creator, self._clock),
            check_stores=self._sockets.check_stores,
        )

    # ---- stopping -----------------------------------------------------------------------------------------

    async def _leave(self) -> None:
        if self._hw_task is not None:
            self._hw_task.cancel()
        if self._rest is not None:
            self._rest.cancel()
        self.share.leave()
        self._sockets.close(Listener.BROKER)
        await self._sockets.finish(Listener.BROKER)
        guarded(self._replica_selection.close, name="closing the replica selector", owner=OWNER)()

    async def _abandon_logs(self) -> None:
        self.logs.abandon()

    async def _stop_logs(self) -> None:
        try:
            await self.logs.checkpoint_high_watermarks(self.replicas.high_watermark_of)
        finally:
            await self._shut_down_logs()

    async def _shut_down_logs(self) -> None:
        try:
            await self.logs.shutdown(self.lifecycle.broker_epoch)
        except Exception:
            # The next start finds no mark of a clean stop and looks; it must not find the directories locked.
            self.logs.abandon()
            raise

    # ---- following the metadata log -----------------------------------------------------------------------

    @property
    def image(self) -> ClusterImage:
        """What this broker shows to clients."""
        return self._publisher.image

    async def caught_up(self) -> None:
        """Wait until what this process' controller has committed by now is in force here, if it is the active one."""
        if self._local_controller is not None and self._local_controller.active:
            await self._publisher.reached(self._publisher.newest.offset)

    async def _follow_config(self, delta: Delta) -> None:
        own = {CLUSTER_DEFAULT, ConfigResource(ResourceType.BROKER, str(self.config.node_id))}
        if not own & delta.configs:
            return
        self._apply_dynamic_config(delta.after)
        self.logs.set_topic_defaults(LogConfig.from_values(self.config.topic_defaults()))
        self.logs.reconfigure(LogManagerSettings.from_values(self.config.values))
        await self._sockets.reconfigure(self.config, is_serving=self._serving)
        await self._shared.reconfigure(self.config)
        await self.replicas.refresh_all_configs(delta.after)
        if self.fetchers is not None:
            self.fetchers.reconfigure()
        self.lifecycle.beat_now()

    def _apply_dynamic_config(self, image: ClusterImage) -> None:
        """Settings that this node cannot run with (another version may have written them) leave it as it is."""
        try:
            self.config = self._static_config.with_dynamic(
                image.config(*CLUSTER_DEFAULT),
                image.config(ResourceType.BROKER, str(self._static_config.node_id)),
            )
        except ConfigError as error:
            log.error("dynamic broker settings are not applied: %s", error)

        self._replication_quotas.rates_changed(self.config.replication_rate)
        self.logs.dirs.set_cordoned([Path(path) for path in self.config.cordoned_log_dirs])

    def _cordoned_directories(self) -> list[Uuid] | None:
        """The cordoned directories that heartbeats report (KIP-1066); None below the metadata version that has them."""
        if not cordoned_dirs_supported(self._publisher.newest.metadata_version or 0):
            return None
        return [d.id for d in self.logs.dirs if d.id is not None and self.logs.dirs.is_cordoned(d)]

    def _log_config(self, image: ClusterImage, topic: str) -> LogConfig:
        overrides = dict(image.config(ResourceType.TOPIC, topic))
        while True:
            try:
                return LogConfig.from_values(self.config.topic_values(overrides))
            except ConfigError as error:
                if not overrides:
                    raise  # it is the broker's own
                # Another version may know keys that this one does not: the topic is served without them.
                log.error("a setting of topic %s is not applied: %s", topic, error)
                if error.key is None or overrides.pop(error.key, None) is None:
                    overrides.clear()

    def _is_assigned(self, image: ClusterImage, where: TopicPartition, directory_id: Uuid) -> bool:
        """Does the cluster have this broker's replica in that directory?"""
        registration = image.partition(*where)
        return registration is not None and registration.directory(self.node_id) == directory_id

    # ---- requests to the controller -----------------------------------------------------------------------

    async def _allocate_producer_ids(self) -> ProducerIdBlock:
        request = AllocateProducerIdsRequest(broker_id=self.node_id, broker_epoch=self.lifecycle.broker_epoch)
        response = await self._channel.allocate_producer_ids(request, RequestContext(0))
        refused = error_of(response.error_code)
        if refused is not None:
            raise KafkaError(refused)
        return ProducerIdBlock(response.producer_id_start, response.producer_id_len)

    def _directory_of(self, topic_id: Uuid, partition: int) -> Uuid | None:
        hosted = self.replicas.hosted(topic_id, partition)
        return None if hosted is None else self.logs.directory_id(hosted.log)

    def _replica_moved(self, partition: Partition) -> None:
        directory_id = self.logs.directory_id(partition.log)
        if directory_id is not None:
            self._assignments.assign(partition.topic_id, partition.topic_partition.partition, directory_id)

    def directory_failed(self, directory_id: Uuid | None) -> None:
        """A log directory is offline."""
        if self._hosts:
            self.replicas.dir_failed()
        if self.fetchers is not None:
            self.fetchers.failed_logs()
        if directory_id is not None and self.lifecycle.broker_epoch >= 0:
            self.lifecycle.directory_failed(directory_id)

    async def _checkpoint_high_watermarks(self) -> None:
        while True:
            await asyncio.sleep(self.config["replica.high.watermark.checkpoint.interval.ms"] / 1000)
            await self.logs.checkpoint_high_watermarks(self.replicas.high_watermark_of)


def make_share_partition_manager(
    replicas: ReplicaManager,
    persister: Persister,
    scheduler: Scheduler,
    executor: Executor,
    unpacking: Unpacking,
    config: Callable[[], BrokerConfig],
    image: Callable[[], ClusterImage],
) -> SharePartitionManager:
    """Share groups where the partitions are led; searches for timestamps run in threads."""

    def search(log: Log, timestamp: int) -> Pending[int | None]:
        found: Pending[int | None] = Pending()
        spawn(
            _search(unpacking, log, timestamp, found),
            name=f"search for timestamp {timestamp}",
            owner=str(log.topic_partition),
            failed=lambda error: found.fail(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error))),
        )
        return found

    return SharePartitionManager(replicas, persister, scheduler, executor, search, config, image)


async def _search(unpacking: Unpacking, log: Log, timestamp: int, found: Pending[int | None]) -> None:
    try:
        at = await unpacking.run(partial(log.offset_for_timestamp, timestamp))
    except KafkaError as error:
        found.fail(error)
        return
    found.resolve(None if at is None else at.offset)
