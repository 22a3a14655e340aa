"""The raw load generator: requests encoded once, sent on one connection, five in flight.

It costs the broker nothing that a real client would not, and itself almost nothing, so that what is measured is the
broker's processor time.
"""

import socket
import struct
import time
from dataclasses import dataclass

from ottla.records.record import build_batch
from ottla.wire.framing import encode_request
from ottla.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.interop.process import ServerProcess

IN_FLIGHT = 5
ROUNDS = 4
TOPIC = "bench"
PARTITIONS = 8
TIMESTAMP_MS = 1_700_000_000_000
PRODUCE_VERSION = 9
FETCH_VERSION = 12
RECORD_BYTES = 1000


@dataclass(frozen=True)
class Load:
    """One kind of request, and how many of them make a round."""

    name: str
    frame: bytes
    requests: int


@dataclass(frozen=True)
class Cost:
    """What a request cost the broker, in microseconds; the best of some rounds."""

    user_us: float
    system_us: float
    wall_us: float

    @property
    def cpu_us(self) -> float:
        return self.user_us + self.system_us


class Connection:
    """A blocking connection that sends whole frames and skims over the answers."""

    def __init__(self, server: ServerProcess) -> None:
        self._socket = socket.create_connection(("127.0.0.1", server.port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = memoryview(bytearray(2 << 20))

    def send(self, frame: bytes) -> None:
        self._socket.sendall(frame)

    def receive(self) -> memoryview:
        """The beginning of an answer: as much of it as the buffer holds."""
        self._read_into(self._buffer[:4])
        (size,) = struct.unpack(">i", self._buffer[:4])
        view = self._buffer[:size]
        self._read_into(view)
        left = size - len(view)
        while left:
            left -= self._socket.recv_into(self._buffer[: min(left, len(self._buffer))])
        return view

    def _read_into(self, view: memoryview) -> None:
        got = 0
        while got < len(view):
            read = self._socket.recv_into(view[got:])
            if read == 0:
                raise ConnectionError("the broker closed the connection")
            got += read

    def run(self, frame: bytes, requests: int, in_flight: int = IN_FLIGHT) -> None:
        outstanding = 0
        for _ in range(requests):
            self.send(frame)
            outstanding += 1
            if outstanding == in_flight:
                self.receive()
                outstanding -= 1
        for _ in range(outstanding):
            self.receive()

    def close(self) -> None:
        self._socket.close()


def produce_frame(batch_bytes: int, partitions: int = 1, acks: int = -1) -> bytes:
    """A produce request with a batch of about this size for each of the first partitions."""
    size = 100 if batch_bytes == 100 else RECORD_BYTES
    count = max(1, batch_bytes // (size + 10))
    batch = bytes(build_batch([(TIMESTAMP_MS, None, b"x" * size, ())] * count))
    request = ProduceRequest(
        acks=acks,
        timeout_ms=30_000,
        topic_data=[
            TopicProduceData(
                name=TOPIC,
                partition_data=[PartitionProduceData(index=i, records=batch) for i in range(partitions)],
            )
        ],
    )
    return encode_request(request, PRODUCE_VERSION, 7, "bench")


def fetch_frame(max_bytes: int, offset: int = 0, max_wait_ms: int = 500) -> bytes:
    """A fetch of the first partition without a session."""
    wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=max_bytes)
    request = FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=max_bytes,
        topics=[FetchTopic(topic=TOPIC, partitions=[wanted])],
        forgotten_topics_data=[],
    )
    return encode_request(request, FETCH_VERSION, 7, "bench")


PRODUCE_LOADS = (
    Load("produce, 1 record of 100 B", produce_frame(100), 10_000),
    Load("produce, 16 KB batch", produce_frame(16_384), 8_000),
    Load("produce, 8 partitions x 16 KB", produce_frame(16_384, PARTITIONS), 1_500),
    Load("produce, 1 MB batch", produce_frame(1_000_000), 300),
)
FETCH_LOADS = (
    Load("fetch, 20 KB", fetch_frame(20_000), 8_000),
    Load("fetch, 66 KB", fetch_frame(66_000), 8_000),
    Load("fetch, 1 MB", fetch_frame(1_000_000), 1_000),
)
# A cold JVM costs 5 to 8 times as much for its first requests.
WARM_UP = (Load("", produce_frame(100), 30_000), Load("", produce_frame(16_384), 6_000))
FETCH_WARM_UP = (Load("", fetch_frame(20_000), 20_000),)


def warm_up(server: ServerProcess, loads: tuple[Load, ...]) -> None:
    connection = Connection(server)
    for load in loads:
        connection.run(load.frame, load.requests)
    connection.close()


def measure(server: ServerProcess, load: Load) -> Cost:
    """The broker's cost of one request of this load."""
    connection = Connection(server)
    best: Cost | None = None
    for _ in range(ROUNDS):
        user, system = server.cpu_split()
        begin = time.perf_counter()
        connection.run(load.frame, load.requests)
        wall = time.perf_counter() - begin
        user_after, system_after = server.cpu_split()
        each = 1e6 / load.requests
        cost = Cost((user_after - user) * each, (system_after - system) * each, wall * each)
        if best is None or cost.cpu_us < best.cpu_us:
            best = cost
    connection.close()
    assert best is not None
    return best
