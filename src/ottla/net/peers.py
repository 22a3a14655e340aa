"""The brokers a client talks to: one connection each, when it may be made again, and why it last failed.

Bootstrap addresses are peers with negative ids, as in the Java client: they serve until the first Metadata
answer names the real ones, and again when none of those can be reached (KIP-899). Owned by the network core.
"""

from collections.abc import Iterator, Sequence
from itertools import chain
from random import Random
from typing import NamedTuple

from ottla.model.errors import KafkaError
from ottla.net.connection import Connection, State

MULTIPLIER = 2.0
JITTER = 0.2


class Backoff:
    """How long to wait before trying again (KIP-580): times that double from `initial_ms` to `max_ms`, each off by up
    to a fifth, by chance from a generator the owner seeds."""

    __slots__ = ("_initial_ms", "_max_ms", "_random")

    def __init__(self, initial_ms: float, max_ms: float, random: Random) -> None:
        self._initial_ms = initial_ms
        self._max_ms = max(initial_ms, max_ms)
        self._random = random

    def delay_ms(self, failures: int) -> float:
        """The wait after so many failures in a row (1 is the first)."""
        if failures <= 0:
            return 0.0
        # The exponent is bounded before the power is taken: failures may count for days.
        term = self._initial_ms * MULTIPLIER ** min(failures - 1, 32)
        factor = self._random.uniform(1 - JITTER, 1 + JITTER)
        return min(term, self._max_ms) * factor


# A broker answers one connection in order, so a fetch that waits for records, or a join that waits for the other
# members, holds up what comes behind it: such requests have a connection of their own.
MAIN = 0
LONG_POLL = 1
JOIN = 2


class Node(NamedTuple):
    """A broker as the cluster advertises it."""

    node_id: int
    host: str
    port: int
    rack: str | None = None

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Peer:
    """One broker, connected or not."""

    __slots__ = (
        "connection",
        "failures",
        "is_no_broker",
        "last_error",
        "link",
        "node",
        "refusal",
        "retry_at_ms",
        "setup_deadline_ms",
    )

    def __init__(self, node: Node) -> None:
        self.node = node
        self.connection: Connection | None = None
        self.link = -1
        self.failures = 0
        self.retry_at_ms = float("-inf")
        self.setup_deadline_ms = float("inf")
        self.last_error: str | None = None
        self.is_no_broker = False  # what answered there last was something else
        self.refusal: KafkaError | None = None  # why it did not let us in, if that was it

    @property
    def is_ready(self) -> bool:
        return self.connection is not None and self.connection.state is State.READY

    @property
    def in_flight(self) -> int:
        return 0 if self.connection is None else len(self.connection.in_flight)

    def can_send(self, now: float, max_in_flight: int) -> bool:
        connection = self.connection
        return (
            connection is not None
            and connection.state is State.READY
            and len(connection.in_flight) < max_in_flight
            and connection.throttled_until_ms <= now
        )

    def can_connect(self, now: float) -> bool:
        return self.connection is None and self.retry_at_ms <= now

    def deadline_ms(self) -> float:
        """When something is due for this peer."""
        if self.connection is None:
            return self.retry_at_ms if self.failures else float("inf")
        connection = self.connection
        return min(self.setup_deadline_ms, connection.deadline_ms(), connection.reauthenticate_at_ms)


class Peers:
    """All of them, by node id and by link (the driver's name for one attempt to connect)."""

    def __init__(self, bootstrap: Sequence[tuple[str, int]], backoff: Backoff, random: Random) -> None:
        """`bootstrap` are addresses of nodes whose ids are not known yet; `backoff` is for connecting again."""
        self._random = random
        self._backoff = backoff
        self._bootstrap = {
            -1 - index: Peer(Node(-1 - index, host, port)) for index, (host, port) in enumerate(bootstrap)
        }
        self._known: dict[int, Peer] = {}
        self._side: dict[tuple[int, int], Peer] = {}  # by node and channel, for channels beside MAIN
        self._retired: list[Peer] = []
        self._by_link: dict[int, Peer] = {}
        self._next_link = 0

    def __iter__(self) -> Iterator[Peer]:
        return chain(self._bootstrap.values(), self._known.values(), self._side.values())

    def get(self, node_id: int, channel: int = MAIN) -> Peer | None:
        peer = self._known.get(node_id) or self._bootstrap.get(node_id)
        if channel == MAIN or peer is None:
            return peer
        if (node_id, channel) not in self._side:
            self._side[node_id, channel] = Peer(peer.node)
        return self._side[node_id, channel]

    def by_link(self, link: int) -> Peer | None:
        return self._by_link.get(link)

    def adopt(self, nodes: dict[int, Node]) -> None:
        """The cluster's own list of brokers has come: drop those that went, note those that moved."""
        for node_id, peer in list(self._known.items()):
            if _has_moved(peer, nodes):
                self._retired.append(self._known.pop(node_id))
        for key, peer in list(self._side.items()):
            if _has_moved(peer, nodes):
                self._retired.append(self._side.pop(key))
        for node_id, node in nodes.items():
            if node_id in self._known:
                self._known[node_id].node = node
            else:
                self._known[node_id] = self._promote(Peer(node))

    def _promote(self, peer: Peer) -> Peer:
        """If a bootstrap connection goes to this very broker, it becomes the broker's own."""
        for bootstrap in self._bootstrap.values():
            if bootstrap.node[1:3] == peer.node[1:3] and bootstrap.is_ready:
                peer.connection, peer.link = bootstrap.connection, bootstrap.link
                bootstrap.connection, bootstrap.link = None, -1
                self._by_link[peer.link] = peer
                break
        return peer

    def idle_bootstrap(self) -> list[Peer]:
        """Bootstrap connections that have done their work."""
        idle = []
        for peer in self._bootstrap.values():  # mostly none of them is connected
            if peer.connection is not None and peer.is_ready and not peer.in_flight:
                idle.append(peer)
        return idle if idle and any(peer.is_ready for peer in self._known.values()) else []

    def take_retired(self) -> list[Peer]:
        """Peers whose connections are to be closed."""
        retired, self._retired = self._retired, []
        return retired

    def linked(self, peer: Peer, connection: Connection, now: float, setup_timeout_ms: float) -> int:
        link = self._next_link
        self._next_link += 1
        peer.connection, peer.link = connection, link
        peer.setup_deadline_ms = now + setup_timeout_ms
        self._by_link[link] = peer
        return link

    def unlinked(
        self,
        peer: Peer,
        reason: str | None,
        now: float,
        *,
        is_no_broker: bool = False,
        refusal: KafkaError | None = None,
    ) -> None:
        """The connection is gone; a reason means that it failed and the next attempt has to wait."""
        self._by_link.pop(peer.link, None)
        peer.connection, peer.link = None, -1
        peer.setup_deadline_ms = float("inf")
        if reason is not None:
            peer.failures += 1
            peer.is_no_broker = is_no_broker
            peer.refusal = refusal
            peer.last_error = reason
            peer.retry_at_ms = now + self._backoff.delay_ms(peer.failures)

    def settled(self, peer: Peer) -> None:
        """The connection is ready for requests: earlier failures do not count any more."""
        peer.failures = 0
        peer.last_error = peer.refusal = None
        peer.retry_at_ms = float("-inf")
        peer.setup_deadline_ms = float("inf")

    def least_loaded(self, now: float, max_in_flight: int) -> Peer | None:
        """Whom to ask what anyone can answer; None if nobody can be asked or called up now."""
        candidates = self._candidates()
        sendable = [peer for peer in candidates if peer.can_send(now, max_in_flight)]
        if sendable:
            # Not always the same one: it may be cut off from the cluster, and tell what was true before that.
            fewest = min(peer.in_flight for peer in sendable)
            return self._random.choice([peer for peer in sendable if peer.in_flight == fewest])
        if any(peer.connection is not None and not peer.is_ready for peer in candidates):
            return None  # one is on its way up
        callable_ = [peer for peer in candidates if peer.can_connect(now)]
        return self._random.choice(callable_) if callable_ else None

    def another(self, now: float) -> Peer | None:
        """One that nobody is connected to and that can be called up, for a second opinion."""
        callable_ = [peer for peer in self._known.values() if peer.can_connect(now)]
        return self._random.choice(callable_) if callable_ else None

    def _candidates(self) -> list[Peer]:
        known = list(self._known.values())
        if not known or all(peer.failures and peer.connection is None for peer in known):
            return known + list(self._bootstrap.values())
        return known

    def all_bootstrap_failed(self) -> bool:
        return all(peer.failures for peer in self._bootstrap.values())

    def no_bootstrap_is_broker(self) -> bool:
        """At every address something answered that is no broker: there is nothing to wait for."""
        return all(peer.failures and peer.is_no_broker for peer in self._bootstrap.values())

    def bootstrap_refusal(self) -> tuple[Node, KafkaError] | None:
        """Who did not let us in, and why: the others of the cluster will not either."""
        for peer in self._bootstrap.values():
            if peer.failures and peer.refusal is not None:
                return peer.node, peer.refusal
        return None

    def describe_failures(self) -> str:
        """Who could not be reached and why, for an error message."""
        failed = [peer for peer in self if peer.last_error is not None]
        return "; ".join(dict.fromkeys(f"{peer.node.address}: {peer.last_error}" for peer in failed))


def _has_moved(peer: Peer, nodes: dict[int, Node]) -> bool:
    node = nodes.get(peer.node.node_id)
    return node is None or node[1:3] != peer.node[1:3]
