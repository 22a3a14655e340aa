"""InterBroker: what this broker asks of the brokers of the cluster (Kafka's InterBrokerSendThread).

Purpose: transactions, share groups and their lag need answers of whoever leads a partition. A broker is asked by its
id, at the address it has registered for `inter.broker.listener.name`; this broker itself is answered in the process, by
the functions that its handlers use.

Rules: who leads what, and where brokers are, is said by the newest metadata that this broker has, also while the rest
of it is still being brought in line. A broker that is not registered or is fenced is not asked. One that goes, moves
or is fenced is forgotten: what waits for its answer fails, and whoever asked asks again where the leader is by then.
A broker answers one connection in order, so every kind of question has connections of its own, as in Kafka: a marker
that waits for its replicas must not hold up the verification of other transactions.

Owner: the coordinators of the node, on the broker's loop. A node that asks nobody else makes no connection.
"""

from collections.abc import Callable
from typing import Any, Final, Protocol

from ottla.config.broker import BrokerConfig
from ottla.metadata.delta import Delta
from ottla.metadata.image import ClusterImage
from ottla.metadata.records import NO_LEADER
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.pending import Pending
from ottla.net.nodes import NodeClient, NodeClientSettings
from ottla.net.peers import Node
from ottla.security.channels import PLAINTEXT, ChannelSecurity
from ottla.wire.messages.groups import share_state
from ottla.wire.messages.list_offsets import ListOffsetsRequest
from ottla.wire.messages.transactions import AddPartitionsToTxnRequest, WriteTxnMarkersRequest

# Kinds of questions: the requests, and the name by which other brokers know who asks.
SENDERS: Final[dict[type[Any], str]] = {
    AddPartitionsToTxnRequest: "add-partitions-to-txn",
    WriteTxnMarkersRequest: "txn-marker-sender",
    ListOffsetsRequest: "partition-metadata",
    share_state.InitializeShareGroupStateRequest: "share-state",
    share_state.ReadShareGroupStateRequest: "share-state",
    share_state.WriteShareGroupStateRequest: "share-state",
    share_state.DeleteShareGroupStateRequest: "share-state",
    share_state.ReadShareGroupStateSummaryRequest: "share-state",
}


class Client(Protocol):
    """The NodeClient of one kind of questions."""

    def ask(self, to: Node, request: Any, *, timeout_ms: float | None = None) -> Pending[Any]: ...
    def forget(self, node_id: int) -> None: ...
    async def close(self) -> None: ...


class InterBroker:
    """The brokers of the cluster, as the coordinators of one of them see and ask them."""

    def __init__(
        self,
        node_id: int,
        config: Callable[[], BrokerConfig],
        connect: Callable[[str], Client] | None = None,
        security: ChannelSecurity = PLAINTEXT,
    ) -> None:
        """`connect` makes the client of a kind of questions, by its name; NodeClients if nothing else is said."""
        self.node_id = node_id
        self.image = ClusterImage()
        self._config = config
        self._connect = connect or self._node_client
        self._security = security
        self._clients: dict[str, Client] = {}
        self._closed = False
        self._own: dict[type[Any], Callable[[Any], Pending[Any]]] = {}

    def _node_client(self, sender: str) -> NodeClient:
        config = self._config()
        idle_ms = config["connections.max.idle.ms"]
        return NodeClient(
            NodeClientSettings(
                client_id=f"broker-{self.node_id}-{sender}",
                request_timeout_ms=config["request.timeout.ms"],
                connection_setup_timeout_ms=config["socket.connection.setup.timeout.ms"],
                connection_setup_timeout_max_ms=config["socket.connection.setup.timeout.max.ms"],
                max_idle_ms=idle_ms if idle_ms >= 0 else float("inf"),
            ),
            security=self._security,
        )

    # ---- the cluster ------------------------------------------------------------------------------------

    def on_image(self, delta: Delta) -> None:
        """The cluster has changed: who cannot be asked any more, or only elsewhere, is forgotten."""
        before, self.image = self.image, delta.after
        for node_id in delta.brokers:
            if self._node(before, node_id) != self._node(self.image, node_id):
                for client in self._clients.values():
                    client.forget(node_id)

    def _node(self, image: ClusterImage, node_id: int) -> Node | None:
        broker = image.brokers.get(node_id)
        if broker is None or broker.fenced:
            return None
        at = broker.listeners.get(self._config().inter_broker_listener_name)
        return None if at is None else Node(node_id, at.host, at.port)

    def leader_of(self, topic: str, partition: int) -> int | None:
        """Who leads a partition: NO_LEADER while nobody does who can be asked, None if there is no such partition."""
        found = self.image.partition(topic, partition)
        if found is None:
            return None
        leader = found.leader
        return leader if leader == self.node_id or self._node(self.image, leader) is not None else NO_LEADER

    # ---- questions --------------------------------------------------------------------------------------

    def serve(self, request: type[Any], answer: Callable[[Any], Pending[Any]]) -> None:
        """How this broker answers what it asks of itself."""
        self._own[request] = answer

    def ask(self, node_id: int, request: Any, timeout_ms: float) -> Pending[Any]:
        """The response of a broker; errors of the connection, and of one that cannot be asked, are worth a retry.

        Whether a request whose answer was lost has been carried out is not known.
        """
        if node_id == self.node_id:
            return self._own[type(request)](request)
        to = self._node(self.image, node_id)
        if to is None:
            return _unreachable(f"broker {node_id} is fenced, or not registered")
        if self._closed:
            return _unreachable("this broker is stopping")
        sender = SENDERS[type(request)]
        if sender not in self._clients:
            self._clients[sender] = self._connect(sender)
        return self._clients[sender].ask(to, request, timeout_ms=timeout_ms)

    async def close(self) -> None:
        """Hang up on everybody; what waits fails."""
        self._closed = True
        for client in self._clients.values():
            await client.close()


def _unreachable(why: str) -> Pending[Any]:
    return Pending.failed(KafkaError(ErrorCode.NETWORK_EXCEPTION, why))
