"""A node (Kafka's KafkaRaftServer): its roles, started in order, stopped in reverse.

Start: sockets are bound (so that ports are known), empty directories are formatted, the metadata log is opened, the
controller joins the quorum, then the broker registers, catches up and serves (see controller_server and broker_server).
A node without the controller role follows the quorum as an observer.

Stop: the broker first, because it may need this node's controller to be let go; the quorum last.

Owner: the process (node.main) or a test.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from ottla.config.broker import BrokerConfig
from ottla.config.definitions import LISTENER_ONLY_KEYS
from ottla.config.errors import ConfigError
from ottla.config.settings import LISTENER_PREFIX
from ottla.controller.access.delegation_token_control import SECRET_KEY
from ottla.controller.controller import Controller
from ottla.metadata.image import ConfigResource, ResourceType
from ottla.metadata.registrations import Endpoint
from ottla.model.clock import Clock, SystemClock
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import NodeId, Uuid
from ottla.model.tasks import guarded
from ottla.node.acl_publisher import AclPublisher
from ottla.node.broker_server import BrokerServer
from ottla.node.controller_server import ControllerServer
from ottla.node.coordinators import Coordinators
from ottla.node.formatting import ensure_formatted
from ottla.node.shared_server import SharedServer
from ottla.node.stalls import FreezeImages, StallMonitor
from ottla.replication.replica_manager import ReplicaManager
from ottla.security.authorizer import CLASS_NAME, CustomAuthorizer, StandardAuthorizer, make_authorizer
from ottla.security.channels import PLAIN_CHANNELS, NodeChannels
from ottla.server import handlers
from ottla.server.network.socket_server import SocketServer, protected_listeners
from ottla.server.quotas import QuotaManagers
from ottla.storage.config import LogManagerSettings
from ottla.storage.log_manager import LogManager

if TYPE_CHECKING:
    from ottla.metadata.records import UserScramCredentialRecord
    from ottla.security.audit import AuditLog
    from ottla.security.sasl.scram import ScramUsers

log = logging.getLogger("ottla.node")

# Waiting for disks: recompression, flushes before an acknowledgement, cold reads, searches by timestamp.
THREADS = 8
# Settings of a listener that may change while it runs.
_STORES = tuple(f".{key}" for key in LISTENER_ONLY_KEYS)
# A longer time than this is no limit.
LONGEST_START_MS = 1 << 48


class StartInterrupted(Exception):
    """The node was told to stop before it had started."""


class Node:
    """One process of a cluster: a broker, a controller, or both."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        clock: Clock | None = None,
        cluster_id: str | None = None,
        first_users: "Sequence[UserScramCredentialRecord]" = (),
        on_fatal: Callable[[BaseException], None] | None = None,
        stall_report: Path | None = None,
    ) -> None:
        self._static_config = config
        # Whose stores are used until the metadata is known.
        self._bound_config = config
        self._clock = clock or SystemClock()
        self._wanted_cluster_id = cluster_id
        self._first_users = first_users
        self._on_fatal = on_fatal
        self.failure: BaseException | None = None
        self.node_id = NodeId(config.node_id)
        self._stalls = StallMonitor(stall_report)
        self._executor = ThreadPoolExecutor(THREADS, thread_name_prefix="ottla")
        # What has been started, as the ways to stop it; the last one is stopped first.
        self._stops: list[Callable[[], Awaitable[None]]] = []
        self._starting: asyncio.Task[object] | None = None
        self._interrupted = False
        self._controller_server: ControllerServer | None = None
        self._broker_server: BrokerServer | None = None
        # Who judges requests, for both roles; None if everybody may do everything.
        self.authorizer: StandardAuthorizer | CustomAuthorizer | None = None
        self._acls: AclPublisher | None = None
        self.sockets: SocketServer
        self.cluster_id: str

    # ---- life ---------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Bring the node up; on failure everything that was started is stopped again."""
        self._starting = asyncio.current_task()
        try:
            async with asyncio.timeout(self._longest_start_s()):
                await self._start()
        except BaseException as error:
            self._starting = None
            if isinstance(error, asyncio.CancelledError) and (self._interrupted or self.failure is not None):
                # It was this node that cancelled it, and what is left to do is to stop.
                self._uncancel()
            await self.stop()
            raise self._reason(error) from error
        finally:
            self._starting = None

    async def _start(self) -> None:
        self._stops.append(self._stop_basics)
        if self._interrupted:
            raise asyncio.CancelledError
        config = self._static_config
        self._audit = self._open_audit_log()
        self.authorizer = make_authorizer(config[CLASS_NAME], config.static)
        self._quotas = QuotaManagers.of(config, self._clock, protected_listeners(config))
        self._stops.append(self._close_quotas)
        await self._bind()
        endpoints = tuple(self.sockets.advertised(self._static_config.advertised_controller_listeners))
        handlers.load()
        logs = self._open_directories(endpoints)
        await self._join_quorum(endpoints)
        if logs is not None:
            await self._start_broker(logs)
        self._stalls.start()
        self._stops.append(self._stop_measuring)

    async def _bind(self) -> None:
        self.sockets = self._socket_server()
        self._stops.append(self._close_sockets)
        try:
            await self.sockets.bind()
        except ConfigError:
            # The stores may have been changed while it ran last, and those of the start be gone since then.
            stored = await asyncio.to_thread(with_stored_stores, self._static_config)
            if stored is None:
                raise
            self.sockets.close()
            self._bound_config = stored
            self.sockets = self._socket_server()
            await self.sockets.bind()

    def _socket_server(self) -> SocketServer:
        return SocketServer(
            self._bound_config,
            clock=self._clock,
            scram_users=self._scram_users,
            audit=self._audit,
            rates=self._quotas.clients.connections,
        )

    def interrupt(self) -> None:
        """Whoever starts the node wants it to stop: what the start waits for is not waited for any longer.

        `start` then raises StartInterrupted, or RecoveryAbortedError if it was logs that it read.
        """
        self._interrupted = True
        recovering = self._broker_server is not None and self._broker_server.interrupt()
        if self._starting is not None and not recovering:
            self._starting.cancel()

    def _uncancel(self) -> None:
        task = asyncio.current_task()
        if task is not None:
            task.uncancel()

    def _reason(self, error: BaseException) -> BaseException:
        if self.failure is not None and isinstance(error, KafkaError | asyncio.CancelledError):
            return self.failure  # what came of it says less than what happened
        if isinstance(error, asyncio.CancelledError) and self._interrupted:
            return StartInterrupted()
        if isinstance(error, TimeoutError):
            limit_ms = self._static_config["server.max.startup.time.ms"]
            what = f"the start took longer than {limit_ms} ms (server.max.startup.time.ms)"
            return KafkaError(ErrorCode.REQUEST_TIMED_OUT, what)
        return error

    def _longest_start_s(self) -> float | None:
        limit_ms: int = self._static_config["server.max.startup.time.ms"]
        return None if limit_ms > LONGEST_START_MS else limit_ms / 1000

    async def stop(self) -> None:
        """Stop in the reverse order; a part that fails to stop does not keep the others from stopping."""
        while self._stops:
            stop = self._stops.pop()
            try:
                await stop()
            except Exception as error:
                log.error("while stopping: %s", error, exc_info=not isinstance(error, KafkaError))

    async def stop_broker(self) -> None:
        """Stop the broker role alone: when a whole cluster stops, its quorum is needed until every broker is let go."""
        if self._stop_broker in self._stops:
            self._stops.remove(self._stop_broker)
            await self._stop_broker()

    async def reload_stores(self) -> None:
        """Key and trust stores whose files were written again are taken, for new connections."""
        await self.sockets.reconfigure(self.config)
        await self._shared.reconfigure(self.config)

    # ---- the parts ----------------------------------------------------------------------------------------

    def _open_audit_log(self) -> "AuditLog | None":
        config = self._static_config
        if not config["ottla.audit.log"]:
            return None
        from ottla.security.audit import open_audit_log  # only where somebody wants one

        audit = open_audit_log(
            config.values,
            node_id=config.node_id,
            now_ms=self._clock.now_ms,
            call_later=asyncio.get_running_loop().call_later,
        )

        async def close() -> None:
            audit.end()
            await asyncio.to_thread(audit.close)

        self._stops.append(close)
        return audit

    def _open_directories(self, endpoints: tuple[Endpoint, ...]) -> LogManager | None:
        """Find out whose the directories are, and take those of a broker."""
        config = self._static_config
        now_ms = self._clock.now_ms()
        self._meta = ensure_formatted(config, endpoints, now_ms, self._wanted_cluster_id, self._first_users)
        assert self._meta.cluster_id is not None
        self.cluster_id = self._meta.cluster_id
        if not config.is_broker:
            return None
        logs = LogManager(
            [Path(path) for path in config.log_dirs],
            self._clock,
            settings=LogManagerSettings.from_values(config.values),
            on_dir_failure=self._dir_failed,
            on_all_dirs_failed=lambda: self._fail(
                KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "all log.dirs failed")
            ),
        )

        async def abandon() -> None:
            if self._broker_server is None:
                logs.abandon()

        self._stops.append(abandon)
        return logs

    async def _join_quorum(self, endpoints: tuple[Endpoint, ...]) -> None:
        config = self._static_config
        self._shared = SharedServer(
            config,
            self._meta,
            endpoints,
            self._clock,
            self._executor,
            self._fail,
            await self._channels(),
        )
        if self.authorizer is not None:
            # The first of all: whoever hears of an image is judged by its rules.
            self._acls = AclPublisher(self.authorizer, self._fail)
            self._shared.metadata.subscribe(self._acls)
            self._stops.append(self._acls.stop)
        self._shared.metadata.subscribe(FreezeImages())
        self._shared.metadata.subscribe(self._quotas.follow)
        self._stops.append(self._shared.close)
        if config.is_controller:
            self._controller_server = ControllerServer(
                self._shared,
                config,
                endpoints,
                self.sockets,
                self._clock,
                self._executor,
                self._quotas,
                self.authorizer,
                self._acls,
            )
            self._stops.append(self._controller_server.stop)
        else:
            self._stops.append(self._shared.leave)
        self._shared.load()
        if self._controller_server is not None:
            await self._controller_server.start()
        else:
            await self._shared.observe()

    def _scram_users(self) -> "ScramUsers":
        from ottla.metadata.cluster_credentials import ClusterCredentials  # only where somebody logs in

        return ClusterCredentials(
            lambda: self._shared.metadata.image,
            lambda: self.cluster_id,
            self._clock.now_ms,
            self._static_config[SECRET_KEY],
        )

    async def _channels(self) -> NodeChannels:
        config = self._bound_config
        listeners = {config.controller_listener_names[0], config.inter_broker_listener_name}
        if all(config.security_protocols.get(name, "PLAINTEXT") == "PLAINTEXT" for name in listeners):
            return PLAIN_CHANNELS
        from ottla.server.network.channel_builders import node_channels

        return await asyncio.to_thread(node_channels, config)

    async def _start_broker(self, logs: LogManager) -> None:
        controllers = self._controller_server
        self._broker_server = BrokerServer(
            self._shared,
            self._static_config,
            logs,
            self.sockets,
            self._shared.remote if controllers is None else controllers.channel,
            None if controllers is None else controllers.controller,
            self._clock,
            self._executor,
            self._fail,
            self._quotas,
            self.authorizer,
            self._acls,
        )
        self._stops.append(self._stop_broker)
        await self._broker_server.start()

    # ---- stopping -----------------------------------------------------------------------------------------

    async def _stop_basics(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def _close_quotas(self) -> None:
        self._quotas.close()

    async def _close_sockets(self) -> None:
        self.sockets.close()

    async def _stop_measuring(self) -> None:
        self._stalls.stop()

    async def _stop_broker(self) -> None:
        assert self._broker_server is not None
        await self._broker_server.stop(hand_over=self.failure is None)

    # ---- failing ------------------------------------------------------------------------------------------

    def _fail(self, error: BaseException) -> None:
        """Something without which the node must not go on."""
        if self.failure is None:
            self.failure = error
            log.critical("stopping: %s", describe_error(error))
            if self._broker_server is not None:
                self._broker_server.lifecycle.give_up_controlled_shutdown()
            if self._on_fatal is not None:
                self._on_fatal(error)
            if self._starting is not None:
                # What the start waits for will never be. Not from within it: it may be about to say so itself.
                give_up = guarded(self._give_up_start, name="giving up the start", owner="node")
                asyncio.get_running_loop().call_soon(give_up)

    def _give_up_start(self) -> None:
        if self._starting is not None:
            self._starting.cancel()

    def _dir_failed(self, directory_id: Uuid | None, _error: Exception) -> None:
        """The log manager has said which one, and why."""
        if self._broker_server is not None:
            self._broker_server.directory_failed(directory_id)

    # ---- looking inside -----------------------------------------------------------------------------------

    @property
    def config(self) -> BrokerConfig:
        """As it is now, with what was set while the broker runs."""
        return self._static_config if self._broker_server is None else self._broker_server.config

    @property
    def is_broker(self) -> bool:
        return self._static_config.is_broker

    @property
    def known_brokers(self) -> set[int]:
        """The brokers of the cluster that this node's broker counts on."""
        return {broker.id for broker in self.broker.image.brokers.values() if not broker.fenced}

    @property
    def controller(self) -> Controller:
        """This node's controller, active or not; only of one that has the role."""
        assert self._controller_server is not None, "this node is no controller"
        return self._controller_server.controller

    @property
    def broker(self) -> BrokerServer:
        """This node's broker; only of one that has the role."""
        assert self._broker_server is not None, "this node is no broker"
        return self._broker_server

    @property
    def logs(self) -> LogManager:
        return self.broker.logs

    @property
    def replicas(self) -> ReplicaManager:
        return self.broker.replicas

    @property
    def coordinators(self) -> Coordinators:
        return self.broker.coordinators

    def describe(self) -> str:
        """Where the node is: the line that `ottla serve` prints."""
        config = self._static_config
        listeners = config.broker_listeners if config.is_broker else config.controller_listeners
        where = ", ".join("{}:{}".format(*self.sockets.address(listener.name)) for listener in listeners)
        what = "listening" if config.is_broker else "controller listening"
        return f"node {self.node_id} of cluster {self.cluster_id} {what} on {where}"

    @property
    def bootstrap_servers(self) -> str:
        """Where clients begin: the broker's first listener."""
        broker = next(iter(self._static_config.broker_listeners))
        return "{}:{}".format(*self.sockets.address(broker.name))

    @property
    def controller_address(self) -> tuple[str, int]:
        """Where other nodes begin: the controller's first listener."""
        return self.sockets.address(self._static_config.controller_listener_names[0])


def with_stored_stores(config: BrokerConfig) -> BrokerConfig | None:
    """The configuration with the stores that were set for this node while it ran; None if there were none.

    By its own copy of the metadata log (DynamicBrokerConfig.readDynamicBrokerConfigsFromSnapshot). Reads files: off the
    loop.
    """
    from ottla.metadata.records import ConfigRecord
    from ottla.raft.stored_records import stored_records

    own = ConfigResource(ResourceType.BROKER, str(config.node_id))
    found: dict[str, str | None] = {}
    try:
        for record in stored_records(Path(config.metadata_log_dir)):
            if isinstance(record, ConfigRecord) and (record.resource_type, record.resource_name) == own:
                found[record.name] = record.value
        stores = {
            name: text
            for name, text in found.items()
            if text is not None and name.startswith(LISTENER_PREFIX) and name.endswith(_STORES)
        }
        return config.with_dynamic({}, stores) if stores else None
    except (ConfigError, KafkaError, OSError):
        return None  # what is wrong with the settings, or the log, is said by whoever needs them


def describe_error(error: BaseException) -> str:
    """One line: what happened, with its kind where that is not a sentence for users."""
    text = str(error) or type(error).__name__
    return text if isinstance(error, KafkaError | OSError) else f"{type(error).__name__}: {text}"
