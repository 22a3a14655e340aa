"""Questions of this node to other nodes (Kafka's InterBrokerSendThread and NodeToControllerChannelManager's transport).

Purpose: the quorum, forwarding and everything brokers ask of one another go through a NodeClient. A question is a
request with a time to live; its answer is a Pending. Questions to one node share a connection, answered in order.

Where only one question may be on its way to a node, as with a fetcher's, it is written when it is asked, and an answer
gives the core no turn unless something waits for one: a turn looks at everything, and costs more than the question.

Rules: a question to a node whose connection has just failed fails at once, and so does everything that waits for that
connection: whoever asks decides when to ask again, and whom. Nothing is asked twice by itself. How many wait for one
node is bounded. NodeCore has no socket, clock or await; NodeClient gives it those of asyncio. Owned by the node's loop.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, NamedTuple

from ottla import __version__
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.pending import Pending
from ottla.net.aio import Driver
from ottla.net.client import NetworkClient, NetworkSettings
from ottla.net.connection import ApiRanges, Authenticator
from ottla.net.errors import ClientError, ConnectionLost
from ottla.net.peers import Node
from ottla.net.sasl import authenticator_of
from ottla.net.transport import Action, monotonic_ms
from ottla.security.channels import PLAINTEXT, ChannelSecurity
from ottla.wire.messages.api_versions import ApiVersionsRequest

REFUSED: Final = "connection refused"
# Questions that wait for one node; more than this is a node that no longer answers.
MAX_WAITING: Final = 1_000


class ConnectionRefused(ConnectionLost):
    """Nobody listens there: no process, rather than a slow one."""


class TimedOut(ClientError):
    """The question's time was over before it could be asked."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.REQUEST_TIMED_OUT, message)


@dataclass(frozen=True, slots=True)
class NodeClientSettings:
    """How a node connects to others; the names are Kafka's keys."""

    client_id: str
    request_timeout_ms: int = 30_000
    connection_setup_timeout_ms: float = 10_000
    connection_setup_timeout_max_ms: float = 30_000
    max_idle_ms: float = 540_000
    max_in_flight: int = 5
    max_response_bytes: int = 100 * 1024 * 1024
    reconnect_backoff_ms: float = 50
    reconnect_backoff_max_ms: float = 1_000
    # Are answers so large that they are worth buffers of their own?
    large_answers: bool = False
    # SO_RCVBUF; None leaves it to the system.
    receive_buffer_bytes: int | None = None
    # The request that a node must serve to be of use; all serve this one.
    required: Any = ApiVersionsRequest


class _Question(NamedTuple):
    request: Any
    at_most: int | None
    # When it must have been sent, and when its answer must be there.
    send_by_ms: float
    deadline_ms: float
    answer: Pending[Any]


@dataclass(slots=True)
class _Waiting:
    """What waits for one node's connection."""

    node: Node
    questions: deque[_Question] = field(default_factory=deque)

    def deadline_ms(self) -> float:
        return min((question.send_by_ms for question in self.questions), default=float("inf"))


class NodeCore:
    """Questions in, answers out, over connections that a driver makes."""

    def __init__(
        self,
        settings: NodeClientSettings,
        random: Random,
        authenticator: Callable[[str], Authenticator] | None = None,
    ) -> None:
        self._network = NetworkClient(
            NetworkSettings(
                client_id=settings.client_id,
                request_timeout_ms=settings.request_timeout_ms,
                connection_setup_timeout_ms=settings.connection_setup_timeout_ms,
                connection_setup_timeout_max_ms=settings.connection_setup_timeout_max_ms,
                max_idle_ms=settings.max_idle_ms,
                max_in_flight=settings.max_in_flight,
                max_response_bytes=settings.max_response_bytes,
                reconnect_backoff_ms=settings.reconnect_backoff_ms,
                reconnect_backoff_max_ms=settings.reconnect_backoff_max_ms,
                required=settings.required,
            ),
            (),
            random,
            on_stale=lambda: None,
            software_version=__version__,
            authenticator=authenticator,
        )
        # With one in flight there is nothing that it could be written together with.
        self.sends_at_once = settings.max_in_flight == 1
        self._nodes: dict[int, Node] = {}
        self._waiting: dict[int, _Waiting] = {}

    # -- questions ------------------------------------------------------------------------------------

    def ask(
        self,
        to: Node,
        request: Any,
        now: float,
        timeout_ms: float,
        at_most: int | None = None,
        send_within_ms: float | None = None,
    ) -> Pending[Any]:
        """Sent as soon as the node's connection takes it: by the next turn, or by `take_output` if that is now."""
        if self._nodes.get(to.node_id) != to:
            self._nodes[to.node_id] = to
            self._network.peers.adopt(self._nodes)
        elif self.sends_at_once and not self._waiting:
            peer = self._network.peers.get(to.node_id)
            if peer is not None and peer.can_send(now, 1):
                deadline_ms = now + timeout_ms
                question = _Question(request, at_most, deadline_ms, deadline_ms, Pending())
                self._send_one(to.node_id, question, now)
                return question.answer
        waiting = self._waiting.setdefault(to.node_id, _Waiting(to))
        waiting.node = to
        if len(waiting.questions) >= MAX_WAITING:
            return Pending.failed(TimedOut(f"{MAX_WAITING} requests wait for {to.address} already"))
        within_ms = timeout_ms if send_within_ms is None else min(send_within_ms, timeout_ms)
        question = _Question(request, at_most, now + within_ms, now + timeout_ms, Pending())
        waiting.questions.append(question)
        return question.answer

    def forget(self, node_id: int) -> None:
        """The node has left: its connection is closed, and what waits for it fails."""
        if self._nodes.pop(node_id, None) is not None:
            self._network.peers.adopt(self._nodes)

    def ranges(self, node_id: int) -> ApiRanges | None:
        """What the node serves; None while there is no connection to it."""
        peer = self._network.peers.get(node_id)
        return peer.connection.ranges if peer is not None and peer.connection and peer.is_ready else None

    def take_output(self) -> list[Action] | None:
        """What was sent at once, to be written; None if something waits for a turn."""
        if self._waiting:
            return None
        self._network.flush()
        return self._network.take_actions()

    def poll(self, now: float) -> list[Action]:
        self._network.expire(now)
        for node_id, waiting in list(self._waiting.items()):
            self._send(node_id, waiting, now)
            if not waiting.questions:
                del self._waiting[node_id]
        self._network.flush()
        return self._network.take_actions()

    def _send(self, node_id: int, waiting: _Waiting, now: float) -> None:
        if waiting.deadline_ms() <= now:
            late = [question for question in waiting.questions if question.send_by_ms <= now]
            waiting.questions = deque(q for q in waiting.questions if q.send_by_ms > now)
            for question in late:
                question.answer.fail(TimedOut(f"{waiting.node.address} could not be asked in time"))
        questions = waiting.questions
        while questions:
            if node_id in self._nodes and self._network.ready(node_id, now):
                self._send_one(node_id, questions.popleft(), now)
                continue
            peer = self._network.peers.get(node_id)
            if peer is None or (peer.connection is None and peer.failures):
                self._fail_all(waiting, None if peer is None else peer.last_error)
            return

    def _send_one(self, node_id: int, question: _Question, now: float) -> None:
        try:
            version = self._network.version_for(node_id, question.request, question.at_most)
        except KafkaError as error:
            question.answer.fail(error)
            return

        def answered(response: Any, error: KafkaError | None, now: float) -> None:
            if error is not None:
                question.answer.fail(error)
            else:
                question.answer.resolve(response)

        timeout_ms = question.deadline_ms - now
        try:
            self._network.send(node_id, question.request, version, answered, now, timeout_ms)
        except KafkaError as error:
            # It has no such bytes in this version: whoever asked has to hear of it, and the others go on.
            question.answer.fail(error)

    def _fail_all(self, waiting: _Waiting, reason: str | None) -> None:
        address = waiting.node.address
        failed, waiting.questions = waiting.questions, deque()
        for question in failed:
            if reason == REFUSED:
                question.answer.fail(ConnectionRefused(f"{address}: {reason}"))
            else:
                question.answer.fail(ConnectionLost(f"{address}: {reason or 'the node has left'}"))

    # -- what the driver reports ----------------------------------------------------------------------

    def on_connected(self, link: int, now: float) -> bool:
        return self._network.on_connected(link, now)

    def on_data(self, link: int, data: bytes, now: float) -> None:
        self._network.on_data(link, data, now)

    def buffer(self, link: int) -> memoryview | None:
        return self._network.buffer(link)

    def on_filled(self, link: int, count: int, now: float) -> bool:
        self._network.on_filled(link, count, now)
        peer = self._network.peers.by_link(link)
        return bool(self._waiting) or not self.sends_at_once or peer is None or not peer.is_ready

    def on_disconnected(self, link: int, reason: str, now: float) -> None:
        self._network.on_disconnected(link, reason, now)

    def on_worked(self, link: int, result: Any, error: Exception | None, now: float) -> None:
        self._network.on_worked(link, result, error, now)

    def next_deadline(self, now: float) -> float:
        due = [waiting.deadline_ms() for waiting in self._waiting.values()]
        due += self._network.deadlines()
        return min((at for at in due if at > now), default=float("inf"))

    def close(self, now: float) -> list[Action]:
        for waiting in self._waiting.values():
            self._fail_all(waiting, "this node is closing its connections")
        self._network.close(now)
        return self._network.take_actions()


class NodeClient:
    """Asks other nodes. Made inside a running loop; `close` leaves nothing behind."""

    def __init__(
        self,
        settings: NodeClientSettings,
        *,
        random: Random | None = None,
        security: ChannelSecurity = PLAINTEXT,
    ) -> None:
        self.settings = settings
        # Jitter, not security.
        self._core = NodeCore(settings, random or Random(), authenticator_of(security))
        self._driver = Driver(
            self._core,
            ssl_context=security.current_context,
            large_answers=settings.large_answers,
            receive_buffer_bytes=settings.receive_buffer_bytes,
        )
        self._closed = False

    def ask(
        self,
        to: Node,
        request: Any,
        *,
        timeout_ms: float | None = None,
        at_most: int | None = None,
        send_within_ms: float | None = None,
    ) -> Pending[Any]:
        """The response to a request in the highest version that both sides know (`at_most` bounds it).

        Behind an answer that is not there in time none will come, and the connection is given up. Whoever stops waiting
        earlier says by `send_within_ms` how long it may still be sent.

        Fails with ConnectionRefused, ConnectionLost, UnsupportedVersion or TimedOut: all of them KafkaErrors. Whether
        a request that was lost has been carried out is not known.
        """
        if self._closed:
            return Pending.failed(ConnectionLost(f"{to.address}: this node has closed its connections"))
        given_ms = self.settings.request_timeout_ms if timeout_ms is None else timeout_ms
        core, now = self._core, monotonic_ms()
        answer = core.ask(to, request, now, given_ms, at_most, send_within_ms)
        output = core.take_output() if core.sends_at_once else None
        if output is None:
            self._driver.wake()
        else:
            self._driver.write(output, now + given_ms, now)
        return answer

    def ranges(self, node_id: int) -> ApiRanges | None:
        """What the node serves, in which versions; None while there is no connection to it."""
        return self._core.ranges(node_id)

    def forget(self, node_id: int) -> None:
        """A node that has left the cluster, or whose id another one has now."""
        self._core.forget(node_id)
        self._driver.wake()

    async def close(self) -> None:
        """Hang up on everybody; what waits fails."""
        self._closed = True
        await self._driver.close()
