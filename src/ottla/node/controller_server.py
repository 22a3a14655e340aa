"""A node's controller role (Kafka's ControllerServer): a controller, and the listener that other nodes ask.

The listener is served before the quorum is joined: whoever starts needs the votes of others, and they need its own.
Where there are ACLs, that is before they are known: only super users are served until then, and a listener that is not
one of `early.start.listeners` waits for them.
Stopping, it leaves the quorum first, so that another controller is active when its listener closes.

Owner: the node, on its loop.
"""

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor

from ottla.config.broker import BrokerConfig
from ottla.controller.controller import Controller
from ottla.controller.gone_brokers import GoneBrokers
from ottla.controller.rules import ControllerSettings, Policies
from ottla.metadata.delta import Delta
from ottla.metadata.image import CLUSTER_DEFAULT, ClusterImage, ConfigResource, ResourceType
from ottla.metadata.registrations import Endpoint
from ottla.model.clock import Clock
from ottla.model.ids import NodeId
from ottla.model.tasks import spawn
from ottla.node.acl_publisher import AclPublisher
from ottla.node.shared_server import SharedServer
from ottla.security.authorizer import Authorizer
from ottla.server.context import ControllerServices
from ottla.server.dispatch import Dispatcher
from ottla.server.forwarding import ActiveController
from ottla.server.network.connection import Listener
from ottla.server.network.socket_server import SocketServer
from ottla.server.quotas import QuotaManagers

log = logging.getLogger("ottla.node")


class ControllerServer:
    """One controller of the quorum: standby, or active."""

    def __init__(
        self,
        shared: SharedServer,
        config: BrokerConfig,
        endpoints: tuple[Endpoint, ...],
        sockets: SocketServer,
        clock: Clock,
        executor: ThreadPoolExecutor,
        quotas: QuotaManagers,
        authorizer: Authorizer | None = None,
        acls: AclPublisher | None = None,
    ) -> None:
        self._shared = shared
        self._config = config
        self._sockets = sockets
        self._clock = clock
        self._executor = executor
        self._authorizer = authorizer
        self._acls = acls
        self._quotas = quotas
        self._settings = ControllerSettings(config, shared.cluster_id, Policies.of(config))
        self.controller = Controller(
            shared.raft,
            shared.loader,
            self._settings,
            clock,
            metadata_dir=shared.metadata_dir,
            listeners=endpoints,
            quotas=quotas.clients.controller_mutation,
        )
        # Wherever the active controller is: here, while this is the one.
        self.channel = ActiveController(self.controller, shared.raft, shared.remote)
        self.controller.register_through(self.channel)
        self._gone_brokers: GoneBrokers | None = None
        if config["ottla.fence.refused.brokers.enable"]:
            self._gone_brokers = GoneBrokers(
                self.controller, config.node_id, config.inter_broker_listener_name
            )
            self.controller.on_active = self._gone_brokers.look_at_all
        self._started = False
        self._reconfiguring = asyncio.Lock()
        if not config.is_broker:
            # A broker does it for its node.
            shared.metadata.subscribe(self._follow_config)

    async def start(self) -> None:
        """Answer other nodes, then join the quorum. A sole voter is active when this returns."""
        dispatch = Dispatcher(self._services(), Listener.CONTROLLER)
        own = self._config.controller_listener_names
        early = own if self._acls is None else self._config.early_start_listeners
        await self._sockets.serve(Listener.CONTROLLER, dispatch, early)
        await self.controller.start()
        late = [name for name in own if name not in early]
        if self._acls is not None and late:
            log.info("waiting for the ACLs before %s is served (early.start.listeners)", ", ".join(late))
            await self._acls.loaded()
            await self._sockets.serve(Listener.CONTROLLER, dispatch, late)
        self._started = True

    def _follow_config(self, image: ClusterImage, delta: Delta) -> None:
        own = ConfigResource(ResourceType.BROKER, str(self._config.node_id))
        if not {CLUSTER_DEFAULT, own}.isdisjoint(delta.configs):
            spawn(self._reconfigure(), name="taking other settings", owner="controller")

    async def _reconfigure(self) -> None:
        async with self._reconfiguring:
            config = self._settings.effective(self._shared.metadata.image)
            await self._sockets.reconfigure(config, is_serving=self._started)
            await self._shared.reconfigure(config)

    def _services(self) -> ControllerServices:
        return ControllerServices(
            node_id=NodeId(self._config.node_id),
            cluster_id=self._shared.cluster_id,
            clock=self._clock,
            loop=asyncio.get_running_loop(),
            executor=self._executor,
            config=lambda: self._settings.effective(self._shared.metadata.image),
            image=lambda: self._shared.metadata.image,
            raft=self._shared.raft,
            local_controller=self.controller,
            gone_brokers=self._gone_brokers,
            authorizer=self._authorizer,
            quotas=self._quotas,
            check_stores=self._sockets.check_stores,
        )

    async def stop(self) -> None:
        """Hand over, then close the listener."""
        try:
            await self.controller.stop()
            if self._gone_brokers is not None:
                await self._gone_brokers.stop()
        finally:
            self._sockets.close(Listener.CONTROLLER)
            await self._sockets.finish(Listener.CONTROLLER)
