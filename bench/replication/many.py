"""Thousands of replicated partitions: what they cost when nothing happens, when one changes, and when a broker dies.

How long our loops are held is the lateness of a heartbeat of two milliseconds at p99.9, as in bench.stalls, of the
worst node; an idle node beside the cluster shows what of it is the machine.
"""

from __future__ import annotations

import os
import re
import signal
import struct
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from tests.interop.cluster import Cluster, ClusterNode
from tests.interop.process import receive_frame, wait_until
from tests.interop.scripts.entities import decode_response, encode_request

from bench.clusters import (
    PATIENCE_S,
    POLL_S,
    create_errors,
    metadata_frame,
    partitions_in,
    partitions_of,
    placed_frame,
)
from bench.frames import batch_of, produce_error, produce_frame
from bench.load import Connection, Cpu, connection
from bench.quorum import idle_percents
from bench.quorum_stalls import AFTERWARDS_S, MISSED, worst
from bench.replication.trio import KINDS, NODES, bystander, fill, in_sync, trio
from bench.report import Report, Row
from bench.servers import now_ms, ottla
from bench.stalls import row_of

IDLE_PARTITIONS, MOST_PARTITIONS = 3_000, 10_000
SESSION_PARTITIONS = 3_333
SETTLE_S, IDLE_S = 10.0, 20.0
FETCH, FETCH_VERSION = 1, 17
DESCRIBE_TOPICS, DESCRIBE_TOPICS_VERSION = 3, 12  # Metadata, the oldest that has topic ids
ELECT_LEADERS, ELECT_LEADERS_VERSION = 43, 2
SESSION_ROUNDS, SESSION_REQUESTS = 9, 2_000
WAIT_MS = 5_000
REGISTERED = re.compile(r"registered (?:as )?broker \d+ with (?:broker )?epoch (\d+)")
# A broker that stands still stays in every ISR.
PATIENT: dict[str, object] = {"broker.session.timeout.ms": 3_600_000, "replica.lag.time.max.ms": 3_600_000}


def idle(report: Report, where: Path, quick: bool) -> None:
    """One cluster after the other, so that neither shares the cores."""
    count = IDLE_PARTITIONS // 10 if quick else IDLE_PARTITIONS
    found: dict[str, dict[int, float]] = {}
    for kind in KINDS:
        with trio(kind, where) as cluster:
            found[kind] = idle_with(cluster, count, quick)
    theirs, ours = (max(found[kind].values()) for kind in KINDS)
    note = " and ".join(" ".join(f"{percent:.1f}" for percent in found[kind].values()) for kind in KINDS)
    report.add(Row(f"{count:,} x 3: idle CPU, busiest node", "% of a core", theirs, ours, 1.0, note=note))


def idle_with(cluster: Cluster, count: int, quick: bool) -> dict[int, float]:
    fill(cluster, count)
    time.sleep(SETTLE_S / 5 if quick else SETTLE_S)  # what is measured next is idleness
    return idle_percents(cluster, IDLE_S / 5 if quick else IDLE_S)


# ---- one changed partition ------------------------------------------------------------------------------------------


def session(report: Report, where: Path, quick: bool) -> None:
    """What it costs a leader that one partition changes in the fetch session of a follower of all of them.

    We are the follower, and in sync: its broker stands still, which nobody minds for an hour. As a follower does, each
    request names the partition whose records came last and waits on the broker for the next that changes. The same
    number of writes to a topic that nobody fetches is taken off.
    """
    count = SESSION_PARTITIONS // 10 if quick else SESSION_PARTITIONS
    found: dict[str, float] = {}
    for kind in KINDS:
        with trio(kind, where, PATIENT) as cluster:
            found[kind] = changed_us(cluster, count, quick)
    name = f"one change in a follower's session of {count:,}"
    note = "on the leader, on top of the write"
    report.add(Row(name, "us", found["apache"], found["ottla"], note=note))
    report.add(Row(f"{name}, ours", "us", None, found["ottla"], 150, absolute=True))


def changed_us(cluster: Cluster, count: int, quick: bool) -> float:
    follower = bystander(cluster)
    leader = next(node for node in NODES if node != follower)
    with connection(cluster[leader]) as link:
        for topic, partitions in (("followed", count), ("aside", count)):
            errors = create_errors(link.ask(placed_frame({topic: [[leader, follower]] * partitions})))
            assert not errors, errors
    in_sync(cluster, 2 * count)
    os.kill(cluster[follower].pid, signal.SIGSTOP)
    try:
        return _changed_us(cluster[leader], cluster[follower], count, quick)
    finally:
        cluster[follower].kill()  # it would not hear that it is to stop


def _changed_us(leader: ClusterNode, follower: ClusterNode, count: int, quick: bool) -> float:
    with connection(leader) as fetches, connection(leader) as writes:
        following = Following(fetches, writes, leader, follower, count)
        following.begin()
        costs: dict[str, list[float]] = {"followed": [], "aside": []}
        requests = SESSION_REQUESTS // 10 if quick else SESSION_REQUESTS
        for number in range(3 if quick else 2 * SESSION_ROUNDS):
            for topic, found in costs.items():
                before = Cpu.of(leader.pid).total_ns
                following.run(topic, requests)
                if quick or number >= SESSION_ROUNDS:  # the others warm up
                    found.append((Cpu.of(leader.pid).total_ns - before) / requests / 1000)
    return median(costs["followed"]) - median(costs["aside"])


class Following:
    """A follower's fetch session over every partition of a topic, and a writer beside it."""

    _INDEX, _OFFSET, _EPOCH = 0x7A7A7A7A, 0x7B7B7B7B7B7B7B7B, 0x7C7C7C7C

    def __init__(
        self,
        fetches: Connection,
        writes: Connection,
        leader: ClusterNode,
        follower: ClusterNode,
        partitions: int,
    ) -> None:
        self._fetches = fetches
        self._writes = writes
        self._follower = {"replica_id": follower.node_id, "replica_epoch": broker_epoch(follower)}
        self._partitions = partitions
        self._topic_id = topic_id(leader, "followed")
        data = batch_of(100, 100, now_ms())
        # acks=1: the write itself waits for nobody.
        self._produce = {
            topic: Patched(produce_frame(topic, {self._INDEX: data}, acks=1), {"index": (">i", self._INDEX)})
            for topic in ("followed", "aside")
        }
        self._ends = [1] * partitions
        self._session_epoch = 0
        self._last = 0
        self._next = 0

    def begin(self) -> None:
        """A full fetch of partitions of one record, from their ends: the session."""
        for topic in self._produce:  # the first write to a partition is dearer than those that follow
            for index in range(self._partitions):
                self._write_first(topic, index)
        rows = [self._row(index, self._ends[index]) for index in range(self._partitions)]
        answer = self._fetches.ask(self._frame(0, 0, rows, wait_ms=0))
        decoded = decode_response(FETCH, FETCH_VERSION, answer)
        assert decoded["error_code"] == "none", decoded["error_code"]
        assert decoded["session_id"], "there is no session"
        errors = {row["error_code"] for topic in decoded["responses"] for row in topic["partitions"]} - {
            "none"
        }
        assert not errors, errors
        frame = self._frame(
            decoded["session_id"], self._EPOCH, [self._row(self._INDEX, self._OFFSET)], WAIT_MS
        )
        marks = {
            "epoch": (">i", self._EPOCH),
            "index": (">i", self._INDEX),
            "offset": (">q", self._OFFSET),
        }
        self._fetch = Patched(frame, marks)

    def _row(self, index: int, offset: int) -> dict[str, object]:
        return {
            "partition": index,
            "current_leader_epoch": -1,
            "fetch_offset": offset,
            "last_fetched_epoch": -1,
            "log_start_offset": 0,
            "partition_max_bytes": 1 << 20,
        }

    def _frame(self, session_id: int, epoch: int, rows: list[dict[str, object]], wait_ms: int) -> bytes:
        body = {
            "replica_state": self._follower,
            "max_wait": wait_ms,
            "min_bytes": 1,
            "max_bytes": 10 << 20,
            "session_id": session_id,
            "session_epoch": epoch,
            "topics": [{"topic_id": self._topic_id, "partitions": rows}],
        }
        return encode_request(FETCH, FETCH_VERSION, body, client_id="bench")

    def _write_first(self, topic: str, index: int) -> None:
        """A partition is in the metadata a little before its broker leads it."""
        frame = self._produce[topic].with_(index=index)
        what = f"{topic}-{index} to be written"
        wait_until(lambda: produce_error(self._writes.ask(frame)) == 0, PATIENCE_S, what)

    def run(self, topic: str, requests: int) -> None:
        """So many writes to one partition after the other; with each, if the topic is followed, a fetch of it."""
        for _ in range(requests):
            index = self._next = (self._next + 1) % self._partitions
            write = self._produce[topic].with_(index=index)
            if topic == "aside":
                self._writes.ask(write)
                continue
            self._session_epoch += 1
            fetch = self._fetch.with_(
                epoch=self._session_epoch, index=self._last, offset=self._ends[self._last]
            )
            self._fetches.sock.sendall(fetch)
            self._writes.ask(write)
            answer = receive_frame(self._fetches.sock)
            assert len(answer) > 100, f"nothing of the write is in an answer of {len(answer)} bytes"
            self._ends[index] += 1
            self._last = index


class Patched:
    """A frame made once, in which a few numbers are written anew before each use."""

    def __init__(self, frame: bytes, marks: dict[str, tuple[str, int]]) -> None:
        self._frame = bytearray(frame)
        self._places: dict[str, tuple[str, int]] = {}
        for name, (form, mark) in marks.items():
            packed = struct.pack(form, mark)
            assert frame.count(packed) == 1, f"{name} is not in the frame once"
            self._places[name] = (form, frame.index(packed))

    def with_(self, **values: int) -> bytearray:
        for name, value in values.items():
            form, place = self._places[name]
            struct.pack_into(form, self._frame, place, value)
        return self._frame


def broker_epoch(node: ClusterNode) -> int:
    """The epoch of its life, without which nobody is taken for it; either kind says it when it has registered."""
    said = REGISTERED.findall(node.log_text())
    assert said, f"{node.kind} has not said under which epoch it is registered"
    return int(said[-1])


def topic_id(node: ClusterNode, topic: str) -> uuid.UUID:
    with connection(node) as link:
        body = {"topics": [{"name": topic}]}
        payload = link.ask(encode_request(DESCRIBE_TOPICS, DESCRIBE_TOPICS_VERSION, body))
    return uuid.UUID(
        decode_response(DESCRIBE_TOPICS, DESCRIBE_TOPICS_VERSION, payload)["topics"][0]["topic_id"]
    )


# ---- ours alone -----------------------------------------------------------------------------------------------------


def ten_thousand(report: Report, where: Path, quick: bool) -> None:
    """Idle CPU; then the same cluster watched, while it starts, a broker is killed and comes back."""
    count = MOST_PARTITIONS // 10 if quick else MOST_PARTITIONS
    cluster = trio("ottla", where)
    with cluster:
        percents = idle_with(cluster, count, quick)
    note = " ".join(f"{percent:.1f}" for percent in percents.values())
    name = f"{count:,} x 3"
    report.add(
        Row(
            f"{name}: idle CPU, busiest node",
            "% of a core",
            None,
            max(percents.values()),
            3,
            absolute=True,
            note=note,
        )
    )
    for row in watched_rows(cluster, where, count, name):
        report.add(row)


def watched_rows(cluster: Cluster, where: Path, count: int, name: str) -> Iterator[Row]:
    cluster.watch_stalls = True
    beside = ottla(where / "beside", watch_stalls=True)
    with beside, cluster:
        in_sync(cluster, count)
        elect_preferred(cluster)
        moved_s, leaders = leaders_moved_s(cluster, bystander(cluster))
        in_sync(cluster, count)
        time.sleep(AFTERWARDS_S)  # what is put off is measured too
        # Before they stop: the last of them has no majority to hear its heartbeats.
        missed = sum(len(MISSED.findall(node.log_text())) for node in cluster.nodes.values())
    yield Row(f"{name}: {leaders:,} leaders of a killed broker moved", "s", None, moved_s, 2, absolute=True)
    reports = [report for node in cluster.nodes.values() for report in node.stalls()]
    yield row_of(f"{name}: starts, a broker is killed and back", worst(reports), beside.stalls())
    yield Row(f"{name}: heartbeats missed, brokers fenced unasked", "times", None, missed, 0, absolute=True)


def elect_preferred(cluster: Cluster) -> None:
    """A start leaves the leaders with whoever came first: each node gets its own third back."""
    body = {"election_type": 0, "topic_partitions": None, "timeout": int(1000 * PATIENCE_S)}
    node = cluster.brokers()[0]
    with connection(node) as link:
        link.sock.settimeout(PATIENCE_S)
        link.ask(encode_request(ELECT_LEADERS, ELECT_LEADERS_VERSION, body, client_id="bench"))
    wait_until(
        lambda: all(row.leader_id == row.replica_nodes[0] for row in partitions_of(node)),
        PATIENCE_S,
        "the preferred leaders",
        POLL_S,
    )


def leaders_moved_s(cluster: Cluster, victim: int) -> tuple[float, int]:
    """Until every survivor shows all partitions led by survivors, and how many the victim had led; it is back after."""
    survivors = [cluster[node] for node in NODES if node != victim]
    ask = metadata_frame()
    links = [Connection(node) for node in survivors]
    try:
        led = sum(row.leader_id == victim for row in partitions_of(survivors[0]))
        began = time.perf_counter()
        os.kill(cluster[victim].pid, signal.SIGKILL)
        took_s = max(moved_at(link, ask, victim) for link in links) - began
    finally:
        for link in links:
            link.close()
    cluster[victim].wait()
    cluster[victim].start()
    return took_s, led


def moved_at(link: Connection, ask: bytes, victim: int) -> float:
    """When an answer that shows no partition without a leader, or led by the victim, had arrived."""
    deadline = time.perf_counter() + PATIENCE_S
    while True:
        answer = link.ask(ask)
        arrived = time.perf_counter()
        if not any(row.leader_id in (victim, -1) for row in partitions_in(answer)):
            return arrived
        assert arrived < deadline, "leaders have not moved"
        time.sleep(POLL_S / 5)  # the answer is everything there is
