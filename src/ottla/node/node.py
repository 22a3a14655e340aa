"""A node (Kafka's BrokerServer and ControllerServer): every part put together, started in order, stopped in reverse.

Start: sockets are bound (so that ports are known), empty directories are formatted, the controller loads the
metadata log and leads it, the broker registers itself, logs are loaded with the configuration the image gives them,
partitions are hosted, the broker is unfenced, and only then are clients served.

Stop: connections are closed, the controller is asked for a controlled shutdown, logs are flushed and marked as cleanly
stopped with the broker's epoch, and the metadata log is closed last.

Owner: the process (node.main) or a test.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import lru_cache, partial
from pathlib import Path

from ottla.config.broker import BrokerConfig
from ottla.config.errors import ConfigError
from ottla.controller.controller import Controller
from ottla.controller.result import RequestContext
from ottla.controller.rules import ControllerSettings, Policies
from ottla.coordinator.shard import Scheduler
from ottla.metadata.delta import Delta
from ottla.metadata.features import cordoned_dirs_supported
from ottla.metadata.image import CLUSTER_DEFAULT, ClusterImage, ConfigResource, ResourceType
from ottla.metadata.registrations import Endpoint
from ottla.model.clock import Clock, SystemClock
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import ZERO_UUID, NodeId, Uuid, random_uuid
from ottla.model.pending import Pending
from ottla.model.tasks import guarded, spawn, spawn_restarting
from ottla.node.broker_lifecycle import BrokerLifecycle
from ottla.node.coordinators import Coordinators, LoopScheduler
from ottla.node.formatting import ensure_formatted
from ottla.node.publisher import Publisher
from ottla.node.stalls import StallMonitor
from ottla.raft.driver import RaftDriver, RaftOptions
from ottla.raft.metadata_log import MetadataLogConfig
from ottla.raft.voters import SUPPORTED_KRAFT_VERSIONS, ReplicaKey, VoterNode, VoterSet
from ottla.replication.partition import Partition
from ottla.replication.replica_manager import ReplicaManager
from ottla.server import handlers
from ottla.server.context import Services
from ottla.server.dispatch import Dispatcher
from ottla.server.fetch_sessions import FetchSessionCache
from ottla.server.limits import Unpacking
from ottla.server.network.socket_server import SocketServer
from ottla.server.topic_creation import SHARE_GROUP_STATE, AutoTopicCreationManager, StreamsInternalTopics
from ottla.server.transaction.producer_ids import ProducerIdBlock, ProducerIdSource
from ottla.server.transaction.verification import AddPartitionsToTxnManager
from ottla.share.manager import SharePartitionManager
from ottla.share.persister import Persister
from ottla.storage.config import LogConfig, LogManagerSettings
from ottla.storage.dirs.meta_properties import MetaProperties
from ottla.storage.log.log import Log
from ottla.storage.log_manager import LogManager
from ottla.wire.messages.producers import AllocateProducerIdsRequest

log = logging.getLogger("ottla.node")

OWNER = "node"
# Waiting for disks: recompression, flushes before an acknowledgement, cold reads, searches by timestamp.
THREADS = 8
# Long enough for whoever waited for the node to be served first.
LOAD_REST_AFTER_S = 0.5


class Node:
    """One process of a cluster: a broker and a controller."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        clock: Clock | None = None,
        cluster_id: str | None = None,
        on_fatal: Callable[[BaseException], None] | None = None,
        stall_report: Path | None = None,
    ) -> None:
        self._static_config = config
        self.config = config
        self._clock = clock or SystemClock()
        self._wanted_cluster_id = cluster_id
        self._on_fatal = on_fatal
        self.failure: BaseException | None = None
        self._stalls = StallMonitor(stall_report)
        self._executor = ThreadPoolExecutor(THREADS, thread_name_prefix="ottla")
        self._unpacking = Unpacking(self._executor)
        self._publisher = Publisher(self._fail)
        self._producer_ids = ProducerIdSource(self._allocate_producer_ids)
        # What has been started, as the ways to stop it; the last one is stopped first.
        self._stops: list[Callable[[], Awaitable[None]]] = []
        self._hw_task: asyncio.Task[None] | None = None
        self._rest: asyncio.TimerHandle | None = None
        self._interrupted = False
        self._loading = False
        self.sockets: SocketServer
        self.controller: Controller
        self.logs: LogManager
        self.replicas: ReplicaManager
        self.coordinators: Coordinators
        self.share: SharePartitionManager
        self._lifecycle: BrokerLifecycle

    # ---- life ---------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Bring the node up; on failure everything that was started is stopped again."""
        try:
            await self._start()
        except BaseException as error:
            await self.stop()
            if self.failure is not None and isinstance(error, KafkaError):
                raise self.failure from error  # what came of it says less than what happened
            raise

    async def _start(self) -> None:
        self._stops.append(self._stop_basics)
        await self._bind()
        await self._start_controller()
        await self._start_logs()
        await self._follow_metadata()
        await self._serve()

    def interrupt(self) -> None:
        """Whoever starts the node wants it to stop: a recovery of logs is not waited for, all else is short.

        `start` then raises RecoveryAbortedError.
        """
        self._interrupted = True
        if self._loading:
            self.logs.stop_loading()

    async def stop(self) -> None:
        """Stop in the reverse order; a part that fails to stop does not keep the others from stopping."""
        while self._stops:
            stop = self._stops.pop()
            try:
                await stop()
            except Exception as error:
                log.error("while stopping: %s", error, exc_info=not isinstance(error, KafkaError))

    async def _bind(self) -> None:
        self.sockets = SocketServer(self.config)
        self._stops.append(self._close_sockets)
        await self.sockets.bind()

    async def _start_controller(self) -> None:
        endpoints = tuple(self.sockets.advertised(self.config.advertised_controller_listeners))
        now_ms = self._clock.now_ms()
        meta = ensure_formatted(self.config, endpoints, now_ms, self._wanted_cluster_id)
        assert meta.cluster_id is not None
        self.cluster_id = meta.cluster_id
        self.node_id = NodeId(self.config.node_id)
        self.logs = LogManager(
            [Path(path) for path in self.config.log_dirs],
            self._clock,
            settings=LogManagerSettings.from_values(self.config.values),
            on_dir_failure=self._dir_failed,
            on_all_dirs_failed=lambda: self._fail(
                KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "all log.dirs failed")
            ),
        )
        self._stops.append(self._abandon_logs)
        self.controller = make_controller(self.config, meta, endpoints, self._clock, self._fail)
        self._stops.append(self.controller.stop)
        self.controller.publisher.subscribe(self._publisher.publish)
        await self.controller.start()

    async def _start_logs(self) -> None:
        image = self.controller.image
        self._apply_dynamic_config(image)
        self.logs.set_topic_defaults(LogConfig.from_values(self.config.topic_defaults()))
        # One configuration for all partitions of a topic: a start opens ten thousand.
        topic_config = lru_cache(maxsize=None)(partial(self._log_config, image))
        self._loading = True
        if self._interrupted:
            self.logs.stop_loading()
        await self.logs.load(topic_config, partial(self._is_stray, image))
        self._loading = False
        self._restore_high_watermarks()

    def _restore_high_watermarks(self) -> None:
        for topic_partition, offset in self.logs.read_high_watermarks().items():
            found = self.logs.get(topic_partition)
            if found is not None:
                found.update_high_watermark(min(offset, found.log_end_offset))

    async def _follow_metadata(self) -> None:
        self.replicas = ReplicaManager(
            self.node_id, self.logs, self._log_config, self._clock, self._executor, self._replica_moved
        )
        self._stops.append(self.replicas.stop)
        self._lifecycle = BrokerLifecycle(
            self.controller,
            self.node_id,
            random_uuid(),
            lambda: self._publisher.image.offset,
            lambda: [d.id for d in self.logs.dirs.offline if d.id is not None],
            self._cordoned_directories,
            self.config["broker.heartbeat.interval.ms"],
        )
        # From here on logs are written: a stop puts them on disk and says so.
        self._stops[self._stops.index(self._abandon_logs)] = self._stop_logs
        self._publisher.follow(self._follow_config)
        self._publisher.follow(self.replicas.apply)
        self.coordinators = Coordinators(
            self.replicas,
            self._executor,
            self._clock,
            lambda: self.config,
            lambda: self._publisher.image,
            self._producer_ids,
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
            lambda: self._publisher.image,
        )
        self._stops.append(self.share.stop)
        self._publisher.follow(self.share.apply)
        self._publisher.begin()
        directories = [d.id for d in self.logs.dirs.online if d.id is not None]
        listeners = self.sockets.advertised(self.config.advertised_broker_listeners)
        await self._lifecycle.register(
            self.cluster_id,
            listeners,
            self.config["broker.rack"],
            directories,
            self.logs.previous_broker_epoch,
        )
        await self.caught_up()

    async def _serve(self) -> None:
        handlers.load()
        self.logs.start()
        self._stops.append(self._leave)
        await self._lifecycle.unfence()
        await self.caught_up()
        await self.sockets.serve(partial(Dispatcher, self._services()))
        self._hw_task = spawn_restarting(
            self._checkpoint_high_watermarks, name="checkpoints of high watermarks", owner=OWNER
        )
        # What the start did not wait for is imported in a thread, so that no first request has to.
        import_rest = guarded(handlers.load_rest, name="importing handlers", owner=OWNER)
        submit = guarded(self._executor.submit, name="importing handlers", owner=OWNER)
        self._rest = asyncio.get_running_loop().call_later(LOAD_REST_AFTER_S, submit, import_rest)
        self._stalls.start()

    def _services(self) -> Services:
        topic_creation = AutoTopicCreationManager(
            lambda: self.config, lambda: self._publisher.image, self.controller, self.caught_up
        )
        self.coordinators.create_share_topic = partial(topic_creation.create_internal, SHARE_GROUP_STATE)
        return Services(
            node_id=self.node_id,
            cluster_id=self.cluster_id,
            clock=self._clock,
            loop=asyncio.get_running_loop(),
            executor=self._executor,
            unpacking=self._unpacking,
            config=lambda: self.config,
            image=lambda: self._publisher.image,
            logs=self.logs,
            replicas=self.replicas,
            controller=self.controller,
            producer_ids=self._producer_ids,
            fetch_sessions=FetchSessionCache(
                self.config["max.incremental.fetch.session.cache.slots"],
            ),
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
            streams_topics=StreamsInternalTopics(lambda: self.config, self.controller, self._clock),
        )

    # ---- stopping -----------------------------------------------------------------------------------------

    async def _stop_basics(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def _close_sockets(self) -> None:
        self.sockets.close()

    async def _abandon_logs(self) -> None:
        self.logs.abandon()

    async def _stop_logs(self) -> None:
        try:
            await self.logs.checkpoint_high_watermarks(self.replicas.high_watermarks())
        finally:
            await self._shut_down_logs()

    async def _shut_down_logs(self) -> None:
        try:
            await self.logs.shutdown(self._lifecycle.broker_epoch)
        except Exception:
            # The next start finds no mark of a clean stop and looks; it must not find the directories locked.
            self.logs.abandon()
            raise

    async def _leave(self) -> None:
        self._stalls.stop()
        if self._hw_task is not None:
            self._hw_task.cancel()
        if self._rest is not None:
            self._rest.cancel()
        self.share.leave()
        self.sockets.close()
        await self.sockets.finish()
        await self._lifecycle.leave()

    # ---- failing ------------------------------------------------------------------------------------------

    def _fail(self, error: BaseException) -> None:
        """Something without which the node must not go on."""
        if self.failure is None:
            self.failure = error
            log.critical("stopping: %s", describe_error(error))
            if self._on_fatal is not None:
                self._on_fatal(error)

    def _dir_failed(self, directory_id: Uuid | None, error: Exception) -> None:
        log.error("a log directory is offline: %s", error)

    # ---- following the metadata log -----------------------------------------------------------------------

    async def caught_up(self) -> None:
        """Wait until what the controller has committed by now is in force here."""
        await self._publisher.reached(self.controller.image.offset)

    async def _follow_config(self, delta: Delta) -> None:
        own = {CLUSTER_DEFAULT, ConfigResource(ResourceType.BROKER, str(self.config.node_id))}
        if not own & delta.configs:
            return
        self._apply_dynamic_config(delta.after)
        self.logs.set_topic_defaults(LogConfig.from_values(self.config.topic_defaults()))
        self.logs.reconfigure(LogManagerSettings.from_values(self.config.values))
        self.sockets.reconfigure(self.config)
        self.replicas.refresh_all_configs()
        self._lifecycle.beat_now()

    def _apply_dynamic_config(self, image: ClusterImage) -> None:
        """Settings that this node cannot run with (another version may have written them) leave it as it is."""
        try:
            self.config = self._static_config.with_dynamic(
                image.config(*CLUSTER_DEFAULT),
                image.config(ResourceType.BROKER, str(self._static_config.node_id)),
            )
        except ConfigError as error:
            log.error("dynamic broker settings are not applied: %s", error)

        self.logs.dirs.set_cordoned([Path(path) for path in self.config.cordoned_log_dirs])

    def _cordoned_directories(self) -> list[Uuid] | None:
        """The cordoned directories that heartbeats report (KIP-1066); None below the metadata version that has them."""
        if not cordoned_dirs_supported(self._publisher.image.metadata_version or 0):
            return None
        return [d.id for d in self.logs.dirs if d.id is not None and self.logs.dirs.is_cordoned(d)]

    def _log_config(self, image: ClusterImage, topic: str) -> LogConfig:
        overrides = image.config(ResourceType.TOPIC, topic)
        try:
            return LogConfig.from_values(self.config.topic_values(overrides))
        except ConfigError as error:
            # Another version may know a key that this one does not: the topic is served without it.
            log.error("a setting of topic %s is not applied: %s", topic, error)
            known = {name: text for name, text in overrides.items() if name != error.key}
            return LogConfig.from_values(self.config.topic_values(known))

    def _is_stray(self, image: ClusterImage, found: Log) -> bool:
        """Is this a log of a partition that is not (or no longer) this broker's?"""
        topic = image.topic(found.topic_partition.topic)
        if topic is None or (found.topic_id is not None and found.topic_id != topic.id):
            return True
        registration = topic.partitions.get(found.topic_partition.partition)
        return registration is None or self.node_id not in registration.replicas

    # ---- requests to the controller -----------------------------------------------------------------------

    async def _allocate_producer_ids(self) -> ProducerIdBlock:
        request = AllocateProducerIdsRequest(
            broker_id=self.node_id, broker_epoch=self._lifecycle.broker_epoch
        )
        response = await self.controller.allocate_producer_ids(request, RequestContext(0))
        if response.error_code:
            raise KafkaError(ErrorCode(response.error_code))
        return ProducerIdBlock(response.producer_id_start, response.producer_id_len)

    def _replica_moved(self, partition: Partition) -> None:
        directory_id = self.logs.directory_id(partition.log)
        if directory_id is not None:
            assigning = self._lifecycle.assign_directory(
                partition.topic_id, partition.topic_partition.partition, directory_id
            )
            spawn(assigning, name=f"reporting the directory of {partition.topic_partition}", owner=OWNER)

    async def _checkpoint_high_watermarks(self) -> None:
        while True:
            await asyncio.sleep(self.config["replica.high.watermark.checkpoint.interval.ms"] / 1000)
            await self.logs.checkpoint_high_watermarks(self.replicas.high_watermarks())

    # ---- describing ---------------------------------------------------------------------------------------

    def describe(self) -> str:
        """Where the node is: the line that `ottla serve` prints."""
        addresses = (self.sockets.address(listener.name) for listener in self.config.broker_listeners)
        where = ", ".join(f"{host}:{port}" for host, port in addresses)
        return f"node {self.node_id} of cluster {self.cluster_id} listening on {where}"

    @property
    def bootstrap_servers(self) -> str:
        broker = next(iter(self.config.broker_listeners))
        return "{}:{}".format(*self.sockets.address(broker.name))


def describe_error(error: BaseException) -> str:
    """One line: what happened, with its kind where that is not a sentence for users."""
    text = str(error) or type(error).__name__
    return text if isinstance(error, KafkaError | OSError) else f"{type(error).__name__}: {text}"


def make_controller(
    config: BrokerConfig,
    meta: MetaProperties,
    endpoints: tuple[Endpoint, ...],
    clock: Clock,
    on_failure: Callable[[BaseException], None],
) -> Controller:
    """A controller that has yet to be started."""
    assert meta.cluster_id is not None
    metadata_dir = Path(config.metadata_log_dir)
    key = ReplicaKey(config.node_id, meta.directory_id or ZERO_UUID)
    options = RaftOptions(
        cluster_id=meta.cluster_id,
        metadata_dir=metadata_dir,
        local=VoterNode(key, endpoints, SUPPORTED_KRAFT_VERSIONS),
        static_voters=_static_voters(config),
        log_config=MetadataLogConfig.from_config(config.values.__getitem__),
    )
    return Controller(
        RaftDriver(options, clock),
        ControllerSettings(config, meta.cluster_id, Policies.of(config)),
        clock,
        metadata_dir=metadata_dir,
        listeners=endpoints,
        on_failure=on_failure,
    )


def _static_voters(config: BrokerConfig) -> VoterSet | None:
    """controller.quorum.voters, if that is how this quorum is known."""
    if not config.quorum_voters:
        return None
    name = config.controller_listener_names[0]
    return VoterSet.static(
        {node: (Endpoint(name, host, port),) for node, (host, port) in config.quorum_voters.items()}
    )


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
