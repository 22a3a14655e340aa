"""ReplicaFetcherManager: which connections this broker follows others over, and the loop of each of them.

There are `num.replica.fetchers` for each broker that leads something of ours; a partition belongs to the one that
Kafka's hash of its name says. What a connection asks and makes of the answers is the ReplicaFetcher's; here are its
socket, its clock and its turns (Kafka's ReplicaFetcherThread and BrokerBlockingSender).

Rules: where a broker is says the newest image, by `inter.broker.listener.name`. Answers are appended in slices, of
which all fetchers together get one in a turn of the loop: catching up holds up neither clients nor heartbeats. After a
truncation nothing is appended before the checkpoints on the disk know of it: a recovery would trust what has gone. If
it has much to read, to know who has written what is left, a thread does that first, and the log is served meanwhile.
Where flush.messages is due the log is flushed before the next fetch, which tells the leader that this replica has it.

Owner: the broker, on its loop. A node that follows nobody makes no connection.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from math import inf
from typing import Any, Final, Protocol

from ottla.config.broker import BrokerConfig
from ottla.metadata.delta import Delta
from ottla.metadata.image import ClusterImage
from ottla.model.clock import Clock
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition, Uuid
from ottla.model.java_hash import java_hash_code
from ottla.model.pending import Pending
from ottla.model.tasks import spawn, spawn_restarting
from ottla.model.time_slice import SharedTimeSlice
from ottla.net.nodes import NodeClient, NodeClientSettings
from ottla.net.peers import Node
from ottla.replication.fetcher import FetcherSettings, ReplicaFetcher, Request
from ottla.replication.partition import Partition
from ottla.replication.quotas import ReplicationQuotaManager
from ottla.security.channels import PLAINTEXT, ChannelSecurity
from ottla.storage.errors import OutOfFilesError
from ottla.storage.log.log import Log, Truncation
from ottla.storage.log_manager import LogManager
from ottla.wire.messages.fetch import FetchRequest, ReplicaState

logger = logging.getLogger("ottla.replication")

OWNER: Final = "replica fetchers"
# A leader answers with one batch more than was asked for, and a batch is never larger than a segment.
LARGEST_BATCH_BYTES: Final = 1 << 30
MAX_FRAME_BYTES: Final = 2**31 - 1
# How long after a descriptor was missing another try is made to write the checkpoints of truncations.
SETTLE_AGAIN_S: Final = 1.0
RECEIVE_BUFFER: Final = "replica.socket.receive.buffer.bytes"

# From which metadata version on followers fetch, and look up offsets, by which version of the request.
FETCH_VERSIONS: Final = ((27, 18), (21, 17), (19, 16), (10, 15), (9, 14), (0, 13))
LIST_OFFSETS_VERSIONS: Final = ((29, 11), (25, 10), (21, 9), (9, 8), (0, 7))
# The first in which a follower says who it is together with the epoch of its registration (KIP-903).
REPLICA_STATE_VERSION: Final = 15


class Client(Protocol):
    """The NodeClient of one fetcher."""

    def ask(
        self, to: Node, request: Any, *, timeout_ms: float | None = None, at_most: int | None = None
    ) -> Pending[Any]: ...
    def forget(self, node_id: int) -> None: ...
    async def close(self) -> None: ...


def fetcher_id(topic_partition: TopicPartition, fetchers: int) -> int:
    """Which of a broker's fetchers a partition belongs to: Kafka's getFetcherId."""
    code = 31 * java_hash_code(topic_partition.topic) + topic_partition.partition
    code = (code + 2**31) % 2**32 - 2**31
    # Utils.abs: the one number without a counterpart counts as 0.
    return (0 if code == -(2**31) else abs(code)) % fetchers


def request_version(request: Request, metadata_version: int) -> int:
    """The version a broker uses for its own requests: that of the cluster's metadata version, not of the other node."""
    versions = FETCH_VERSIONS if isinstance(request, FetchRequest) else LIST_OFFSETS_VERSIONS
    return next(version for since, version in versions if metadata_version >= since)


class ReplicaFetcherManager:
    """The fetchers of this broker."""

    def __init__(
        self,
        node_id: int,
        config: Callable[[], BrokerConfig],
        broker_epoch: Callable[[], int],
        logs: LogManager,
        clock: Clock,
        connect: Callable[[int], Client] | None = None,
        security: ChannelSecurity = PLAINTEXT,
        quota: ReplicationQuotaManager | None = None,
    ) -> None:
        """`broker_epoch` is that of this broker's registration; `connect` makes the client of a fetcher, by its id."""
        self._node_id = node_id
        self._config = config
        self._broker_epoch = broker_epoch
        self._logs = logs
        self.clock = clock
        self._connect = connect or self._node_client
        self._security = security
        # All fetchers together keep to it.
        self._quota = quota or ReplicationQuotaManager()
        self._quota.watchers.add(self._quota_changed)
        self.image = ClusterImage()
        # Where leaders are, and which version of a fetch they are asked by, as long as the image is the same.
        self._addresses: dict[int, Node | None] = {}
        self._fetch_version: int | None = None
        self.time_slice = SharedTimeSlice()
        self._fetchers: dict[tuple[int, int], _FetcherLoop] = {}
        self._followed: dict[tuple[Uuid, int], tuple[Partition, _FetcherLoop]] = {}
        self._count = config()["num.replica.fetchers"]
        self._ending: set[asyncio.Task[None]] = set()
        self._stopped = False

    def _node_client(self, fetcher: int) -> NodeClient:
        config = self._config()
        idle_ms = config["connections.max.idle.ms"]
        backoff_ms = config["replica.fetch.backoff.ms"]
        size = config["replica.fetch.response.max.bytes"]
        return NodeClient(
            NodeClientSettings(
                client_id=f"broker-{self._node_id}-fetcher-{fetcher}",
                request_timeout_ms=config["replica.socket.timeout.ms"],
                connection_setup_timeout_ms=config["socket.connection.setup.timeout.ms"],
                connection_setup_timeout_max_ms=config["socket.connection.setup.timeout.max.ms"],
                max_idle_ms=idle_ms if idle_ms >= 0 else inf,
                max_in_flight=1,
                max_response_bytes=min(size + LARGEST_BATCH_BYTES, MAX_FRAME_BYTES),
                # The fetcher waits by itself before it tries again.
                reconnect_backoff_ms=min(50, backoff_ms),
                reconnect_backoff_max_ms=min(50, backoff_ms),
                large_answers=True,
                # The system sizes buffers by itself, and better; only a user's own value counts.
                receive_buffer_bytes=(
                    config[RECEIVE_BUFFER]
                    if RECEIVE_BUFFER in config.originals and config[RECEIVE_BUFFER] > 0
                    else None
                ),
            ),
            security=self._security,
        )

    # ---- which partitions ---------------------------------------------------------------------------------

    def follow(self, partitions: Iterable[Partition]) -> None:
        """Follow the leaders that these partitions have now; one without a leader, or with a failed log, nobody."""
        for partition in partitions:
            key = partition.topic_id, partition.topic_partition.partition
            leader = partition.leader
            current = self._followed.get(key)
            if self._stopped or leader < 0 or leader == self._node_id or partition.log.failed:
                if current is not None:
                    self._unfollow(key)
                continue
            fetcher = fetcher_id(partition.topic_partition, self._count)
            loop = self._fetchers.get((leader, fetcher))
            if loop is None:
                loop = self._fetchers[leader, fetcher] = self._start(leader, fetcher)
            if current is not None and (current[1] is not loop or current[0] is not partition):
                self._unfollow(key)
            self._followed[key] = partition, loop
            loop.fetcher.add(partition)
            loop.wake()

    def unfollow(self, partitions: Iterable[Partition]) -> None:
        """This broker leads these, or does not have them any more."""
        for partition in partitions:
            key = partition.topic_id, partition.topic_partition.partition
            current = self._followed.get(key)
            if current is not None and current[0] is partition:
                self._unfollow(key)

    def _unfollow(self, key: tuple[Uuid, int]) -> None:
        partition, loop = self._followed.pop(key)
        loop.fetcher.remove(partition)
        loop.wake()

    def failed_logs(self) -> None:
        """A directory is offline: its replicas have nothing to write to."""
        for key, (partition, _) in list(self._followed.items()):
            if partition.log.failed:
                self._unfollow(key)
        self.end_idle()

    def on_image(self, delta: Delta) -> None:
        """The cluster has changed: a broker may be elsewhere now, or be there at last."""
        before, self.image = self.image, delta.after
        self._addresses.clear()
        self._fetch_version = None
        for node_id in delta.brokers:
            if self.address(before, node_id) != self.address(self.image, node_id):
                for (leader, _), loop in self._fetchers.items():
                    if leader == node_id:
                        loop.moved()

    def address(self, image: ClusterImage, node_id: int) -> Node | None:
        broker = image.brokers.get(node_id)
        at = None if broker is None else broker.listeners.get(self._config().inter_broker_listener_name)
        return None if at is None else Node(node_id, at.host, at.port)

    def address_of(self, leader: int) -> Node | None:
        """Where a leader is by the newest image."""
        try:
            return self._addresses[leader]
        except KeyError:
            found = self._addresses[leader] = self.address(self.image, leader)
            return found

    def version_of(self, request: Request) -> int:
        """The version of a request by the newest image."""
        if not isinstance(request, FetchRequest):
            return request_version(request, self.image.metadata_version or 0)
        if self._fetch_version is None:
            self._fetch_version = request_version(request, self.image.metadata_version or 0)
        return self._fetch_version

    def reconfigure(self) -> None:
        """num.replica.fetchers may change while the broker runs: all partitions find their places anew."""
        count = self._config()["num.replica.fetchers"]
        if count == self._count:
            return
        logger.info("following with %d fetchers for each broker instead of %d", count, self._count)
        self._count = count
        self.follow([partition for partition, _ in list(self._followed.values())])
        self.end_idle()

    def _quota_changed(self) -> None:
        for loop in self._fetchers.values():
            loop.fetcher.quota_changed()
            loop.wake()

    # ---- fetchers -----------------------------------------------------------------------------------------

    def _start(self, leader: int, fetcher: int) -> "_FetcherLoop":
        config = self._config()
        settings = FetcherSettings(
            backoff_ms=config["replica.fetch.backoff.ms"],
            wait_max_ms=config["replica.fetch.wait.max.ms"],
            min_bytes=config["replica.fetch.min.bytes"],
            max_bytes=config["replica.fetch.max.bytes"],
            response_max_bytes=config["replica.fetch.response.max.bytes"],
        )
        return _FetcherLoop(
            self,
            leader,
            ReplicaFetcher(self._node_id, leader, settings, self._broker_epoch, self._quota),
            self._connect(fetcher),
            config["replica.socket.timeout.ms"],
        )

    def end_idle(self) -> None:
        """Hang up on those of whom nothing is followed any more."""
        for place, loop in list(self._fetchers.items()):
            if loop.fetcher.is_idle:
                del self._fetchers[place]
                ending = spawn(loop.stop(), name="end of a fetcher", owner=OWNER)
                self._ending.add(ending)
                ending.add_done_callback(self._ending.discard)

    @property
    def has_truncations(self) -> bool:
        """Is there a log that was cut, and of which the checkpoints do not know yet?"""
        return self._logs.has_truncations

    async def settle(self) -> None:
        """Wait until the checkpoints know of all truncations so far."""
        await self._logs.checkpoint_truncations()

    async def prepare(self, truncation: Truncation) -> None:
        """Read in a thread what a truncation needs."""
        await asyncio.get_running_loop().run_in_executor(self._logs.pool, truncation.prepare)

    async def flush(self, log: Log) -> None:
        await self._logs.background.flush(log)

    async def stop(self) -> None:
        """Follow nobody any more: after this no log is written by a fetcher."""
        self._stopped = True
        self._quota.watchers.discard(self._quota_changed)
        loops = list(self._fetchers.values())
        self._fetchers.clear()
        self._followed.clear()
        for loop in loops:
            await loop.stop()
        await asyncio.gather(*self._ending, return_exceptions=True)


class _FetcherLoop:
    """One connection: asks what its fetcher wants to know, again and again."""

    def __init__(
        self,
        manager: ReplicaFetcherManager,
        leader: int,
        fetcher: ReplicaFetcher,
        client: Client,
        timeout_ms: int,
    ) -> None:
        self._manager = manager
        self._leader = leader
        self.fetcher = fetcher
        self._client = client
        self._timeout_ms = timeout_ms
        self._woken = asyncio.Event()
        # From a request until the last step of its answer: only then the fetcher knows what the leader's session is.
        self._is_asking = False
        # What a truncation needs is read, one after the other.
        self._preparing: asyncio.Task[None] | None = None
        self._task = spawn_restarting(self._run, name=f"follow broker {leader}", owner=OWNER)

    def wake(self) -> None:
        """Something has changed: there may be something to ask."""
        self._woken.set()

    def moved(self) -> None:
        """The broker has another address, or none."""
        self._client.forget(self._leader)
        self._woken.set()

    async def stop(self) -> None:
        tasks = [self._task] if self._preparing is None else [self._task, self._preparing]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._client.close()

    async def _run(self) -> None:
        fetcher, monotonic_ms = self.fetcher, self._manager.clock.monotonic_ms
        if self._is_asking:
            # The one before failed with a request or its answer, and what came of it is not known: ask for all again.
            self._is_asking = False
            fetcher.on_failure(
                KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "a fetch has failed"),
                monotonic_ms(),
            )
        while True:
            self._woken.clear()
            fetcher.cut_again(monotonic_ms())
            if self._preparing is None and (cuts := fetcher.to_cut()):
                self._preparing = spawn(self._prepare(*cuts[0]), name="prepare a truncation", owner=OWNER)
            if due := fetcher.to_flush():
                await asyncio.gather(*map(self._flush, due))
            if self._manager.has_truncations:
                # Whoever was added may have been cut, and an earlier try to wait for the disk may have failed. Others
                # may be added during this one: nothing is asked unless there is nothing to wait for.
                await self._settle()
                continue
            request = fetcher.next_request(monotonic_ms())
            if request is None:
                await self._wait_until(fetcher.next_due_ms())
            else:
                await self._ask(request)

    async def _settle(self) -> None:
        try:
            await self._manager.settle()
        except OutOfFilesError as error:
            logger.error("broker %d is not followed for now: %s", self._leader, error)
            await asyncio.sleep(SETTLE_AGAIN_S)

    async def _prepare(self, partition: Partition, truncation: Truncation) -> None:
        """The others are followed meanwhile."""
        try:
            try:
                await self._manager.prepare(truncation)
            except Exception as error:  # noqa: BLE001 - the truncation reads the same, and takes the consequences
                logger.info("%s: a truncation was not prepared: %s", partition.topic_partition, error)
            self.fetcher.cut(partition, truncation)
        finally:
            truncation.is_abandoned = True
            self._preparing = None
            self.wake()

    async def _flush(self, partition: Partition) -> None:
        try:
            await self._manager.flush(partition.log)
        except Exception as error:  # noqa: BLE001 - the boundary of one partition: the others go on
            self.fetcher.flush_failed(partition, error, self._manager.clock.monotonic_ms())

    async def _wait_until(self, due_ms: float) -> None:
        wait_ms = due_ms - self._manager.clock.monotonic_ms()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if wait_ms == inf else max(wait_ms, 0) / 1000):
                await self._woken.wait()

    async def _ask(self, request: Request) -> None:
        manager, fetcher = self._manager, self.fetcher
        clock = manager.clock
        to = manager.address_of(self._leader)
        if to is None:
            fetcher.on_failure(
                KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, "it is not registered"), clock.monotonic_ms()
            )
            return
        version = manager.version_of(request)
        if version < REPLICA_STATE_VERSION and isinstance(request, FetchRequest):
            request.replica_id, request.replica_state = request.replica_state.replica_id, ReplicaState()
        self._is_asking = True
        try:
            response = await self._client.ask(to, request, timeout_ms=self._timeout_ms, at_most=version)
        except KafkaError as error:
            self._is_asking = False
            fetcher.on_failure(error, clock.monotonic_ms())
            return
        time_slice = manager.time_slice
        async with time_slice:
            for _ in fetcher.on_response(response, clock.monotonic_ms()):
                await time_slice.yield_to_loop()
        self._is_asking = False
