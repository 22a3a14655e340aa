"""SIGTERM while clients are at work: a clean end, a marker, and a next start that has nothing to read."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import struct
import threading
from pathlib import Path

import pytest
from tests.faults.conftest import MakeNode
from tests.interop.ottla_node import OttlaNode
from tests.interop.process import wait_until
from tests.interop.scripts.batches import Batch, Rec
from tests.interop.scripts.entities import encode_request
from tests.support.log_files import disk_batches
from tests.support.raw_client import RawClient

MARKER = ".kafka_cleanshutdown"
BATCHES = 400_000  # which take seconds to check
# Under nohup the tests, and with them the broker, are to outlive the terminal.
SIGNALS = [signal.SIGTERM, signal.SIGINT] + (
    [signal.SIGHUP] if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN else []
)


class BusyWriter:
    """Writes until the broker goes; what it was promised."""

    def __init__(self, node: OttlaNode, topic: str, partition: int) -> None:
        self._client = RawClient(node)
        self._topic, self._partition = topic, partition
        self.acknowledged = 0
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with contextlib.suppress(ConnectionError):
            while True:
                answer = self._client.produce(
                    self._topic, self._partition, Batch([Rec(b"%d" % self.acknowledged)]).encode()
                )
                if answer["error_code"] != "none":
                    break
                self.acknowledged += 1
        self._client.close()


@pytest.mark.parametrize("number", SIGNALS)
def test_a_clean_stop_under_load(make_node: MakeNode, number: signal.Signals) -> None:
    node = make_node()
    node.start()
    with RawClient(node) as client:
        topic = client.create_topic("orders", 4)
    writers = [BusyWriter(node, topic, partition) for partition in range(4)]
    for writer in writers:
        writer.thread.start()
    idle = [RawClient(node) for _ in range(20)]
    waiting = RawClient(node)
    waiting.send(long_poll(topic))
    half = RawClient(node)
    half.send(b"\x00\x10\x00\x00half a frame")
    wait_until(lambda: all(w.acknowledged > 50 for w in writers), 30, "the writers to get on")
    os.kill(node.pid, number)
    assert node.wait(30) == 0
    for writer in writers:
        writer.thread.join()
    for client in (*idle, half):
        assert client.is_closed()
        client.close()
    # The long poll may have been answered first that nobody leads the partition: it is served until the controller has
    # taken the leaderships.
    while not waiting.is_closed():
        pass
    waiting.close()
    marker = json.loads((node.data_dir / MARKER).read_text())
    assert marker["brokerEpoch"] >= 0
    with node.start(), RawClient(node) as client:
        assert "after a clean stop" in node.log_text()
        assert "recovering segment" not in of_partitions(node.log_text())
        assert not (node.data_dir / MARKER).exists()  # it is good for one start
        for writer, partition in zip(writers, range(4), strict=True):
            found = client.read(topic, partition)
            assert found == [b"%d" % n for n in range(len(found))]
            assert len(found) >= writer.acknowledged
    for partition in range(4):
        assert all(batch.crc_ok for batch in disk_batches(node.data_dir, topic, partition))


def long_poll(topic: str) -> bytes:
    """A fetch that would wait for half a minute."""
    wanted = {"partition": 3, "fetch_offset": 0, "partition_max_bytes": 1000}
    body = {"max_wait": 30_000, "min_bytes": 1 << 30, "max_bytes": 1000}
    return encode_request(1, 11, {**body, "topics": [{"topic": topic, "partitions": [wanted]}]})


def of_partitions(text: str) -> str:
    """The log without the metadata log, which is read at every start."""
    return "\n".join(line for line in text.splitlines() if "__cluster_metadata" not in line)


def test_a_signal_while_it_starts(make_node: MakeNode) -> None:
    node = make_node()
    node.start()
    with RawClient(node) as client:
        client.write(client.create_topic("orders"), 0, [b"kept"])
    node.kill()
    node.launch()
    wait_until(lambda: "leader of the metadata quorum" in node.log_text(), 30, "the start to be under way")
    os.kill(node.pid, signal.SIGTERM)
    assert node.wait(30) == 0
    with node.start(), RawClient(node) as client:
        assert client.read("orders") == [b"kept"]


def test_a_second_signal_does_no_harm(make_node: MakeNode) -> None:
    node = make_node()
    node.start()
    with RawClient(node) as client:
        client.write(client.create_topic("orders"), 0, [b"kept"])
    pid = node.pid
    for _ in range(3):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    assert node.wait(30) == 0
    with node.start(), RawClient(node) as client:
        assert "after a clean stop" in node.log_text()
        assert client.read("orders") == [b"kept"]


def test_stopping_and_starting_changes_nothing(make_node: MakeNode) -> None:
    """Five times: the same records, the same files, no growth but the metadata log's."""
    node = make_node()
    with node.start(), RawClient(node) as client:
        topic = client.create_topic("orders")
        for n in range(20):
            client.write(topic, 0, [b"%d" % n])
    before = content(node.data_dir / "orders-0")
    for _ in range(5):
        with node.start(), RawClient(node) as client:
            assert client.read(topic) == [b"%d" % n for n in range(20)]
    assert content(node.data_dir / "orders-0") == before


def content(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_a_stop_does_not_wait_for_a_recovery(make_node: MakeNode) -> None:
    """What was not read is read by the next start, and nothing says that the stop was a clean one."""
    node = make_node()
    with node, RawClient(node) as client:
        topic = client.create_topic("long")
        client.write(topic, 0, [b"x"])
    where = node.data_dir / "long-0"
    (segment,) = where.glob("*.log")
    (index,) = where.glob("*.index")
    one = bytearray(segment.read_bytes())
    with segment.open("wb") as file:
        for offset in range(BATCHES):  # the checksum does not cover the offset
            struct.pack_into(">q", one, 0, offset)
            file.write(one)
    index.write_bytes(bytes(8))  # a recovery empties it first
    (node.data_dir / MARKER).unlink()
    for path in (node.data_dir / "recovery-point-offset-checkpoint", *where.glob("*.snapshot")):
        path.unlink()
    before = segment.read_bytes()
    node.launch()
    wait_until(lambda: index.stat().st_size == 0, 30, "the recovery to begin")
    os.kill(node.pid, signal.SIGTERM)
    assert node.wait(60) == 0
    assert "loaded" not in node.log_text()
    assert not (node.data_dir / MARKER).exists()
    assert segment.read_bytes() == before
    with node.start(), RawClient(node) as client:
        assert client.end_offset(topic) == BATCHES
