"""Whichever path a produce request takes inside, the answers and their order are those of the requests."""

import random
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.client.admin.types import NewTopic
from ottla.client.blocking import Admin
from ottla.model.errors import ErrorCode
from ottla.records.record import build_batch
from ottla.testing import Broker
from ottla.wire.codec import decode
from ottla.wire.framing import encode_request
from ottla.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

VERSION = 9
NOW = 1_700_000_000_000
NOISE = random.Random(5).randbytes(200_000)  # it does not compress

# Each takes another path: on the loop, in a thread for what it is, in a thread for what comes out of it.
SMALL, LARGE, SWELLING = b"v" * 100, NOISE, bytes(400_000)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(data_dir=tmp_path / "data") as running:
        with Admin(bootstrap_servers=running.bootstrap_servers) as admin:
            admin.create_topics(
                [NewTopic("orders", 1), NewTopic("keyed", 1, configs={"cleanup.policy": "compact"})]
            )
        yield running


def batch(value: bytes, compression: int = 0, **options: object) -> bytes:
    records = [(NOW, None, value, ())] * 2
    return bytes(build_batch(records, compression=compression, **options))  # type: ignore[arg-type]


def frame(topic: str, records: bytes, number: int, version: int = VERSION) -> bytes:
    data = PartitionProduceData(index=0, records=memoryview(records))
    request = ProduceRequest(
        acks=-1, timeout_ms=20_000, topic_data=[TopicProduceData(name=topic, partition_data=[data])]
    )
    return encode_request(request, version, number, "test")


def exchange(broker: Broker, *frames: bytes) -> list[PartitionProduceResponse]:
    """Send all at once, and read the answers in the order they come."""
    host, port = broker.bootstrap_servers.rsplit(":", 1)
    answers = []
    with socket.create_connection((host, int(port)), timeout=20) as sock, sock.makefile("rb") as stream:
        sock.sendall(b"".join(frames))
        for number in range(len(frames)):
            (size,) = struct.unpack(">i", stream.read(4))
            payload = stream.read(size)
            assert struct.unpack_from(">i", payload)[0] == number
            response, _ = decode(ProduceResponse, payload, VERSION, 5)
            answers.append(response.responses[0].partition_responses[0])
    return answers


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_answers_come_in_the_order_of_the_requests(broker: Broker, codec: int) -> None:
    values = [LARGE, SMALL, SWELLING, SMALL, LARGE, SMALL]
    frames = [frame("orders", batch(value, codec), number) for number, value in enumerate(values)]
    assert [(a.error_code, a.base_offset) for a in exchange(broker, *frames)] == [
        (ErrorCode.NONE, 2 * number) for number in range(len(values))
    ]


@pytest.mark.parametrize("value", [SMALL, LARGE, SWELLING])
def test_records_are_named_whichever_road_finds_them(broker: Broker, value: bytes) -> None:
    (answer,) = exchange(broker, frame("keyed", batch(value, 4), 0))
    assert answer.error_code == ErrorCode.INVALID_RECORD
    assert [error.batch_index for error in answer.record_errors] == [0, 1]
    assert answer.log_start_offset == 0


def test_a_transaction_that_nobody_coordinates_is_not_begun(broker: Broker) -> None:
    data = batch(SMALL, transactional=True, producer_id=1, producer_epoch=0, base_sequence=0)
    (answer, after) = exchange(broker, frame("orders", data, 0), frame("orders", batch(SMALL), 1))
    assert answer.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert (after.error_code, after.base_offset) == (ErrorCode.NONE, 0)


@pytest.mark.parametrize("version", [3, 7])
def test_versions_that_are_only_advertised_close_the_connection(broker: Broker, version: int) -> None:
    host, port = broker.bootstrap_servers.rsplit(":", 1)
    request = bytearray(frame("orders", batch(SMALL), 0, version))
    request[6:8] = struct.pack(">h", 2)  # the same in a version that is not served
    with socket.create_connection((host, int(port)), timeout=20) as sock:
        sock.sendall(request)
        assert sock.recv(1) == b""
