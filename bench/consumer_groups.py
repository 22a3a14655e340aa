"""Consumer groups of the new protocol: the broker's CPU for a heartbeat, and the time until a large group has settled.

Members are played: each has a connection, sends heartbeats at the interval the broker gives, and says at once when
it has given up or taken what it was assigned, as clients do. A group has settled when every partition has one owner and
the members have as many as each other. How long that takes is mostly the heartbeat interval, on both brokers alike.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from tests.interop.process import ServerProcess, wait_until
from tests.interop.scripts.entities import decode_response, encode_request

from bench.load import connection
from bench.raw import WARM_UP, Load, measure
from bench.report import Report, Row
from bench.servers import both, create_topic
from ottla.wire.codec import decode
from ottla.wire.framing import encode_request as frame_of
from ottla.wire.messages.groups.consumer import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatRequestTopicPartitions,
    ConsumerGroupHeartbeatResponse,
)

HEARTBEAT, FIND_COORDINATOR, VERSION = 68, 10, 1
TOPIC = "shared-out"
MEMBERS, PARTITIONS = 100, 400
SETTINGS: dict[str, object] = {"offsets.topic.num.partitions": 4, "offsets.topic.replication.factor": 1}
SETTLINGS = 3
PATIENCE_S = 120.0
# A response's correlation id and the tags of its header.
RESPONSE_HEADER_BYTES = 5


class Member:
    """One member and its connection."""

    def __init__(self, group: str, number: int, topics: Sequence[str] = (TOPIC,)) -> None:
        self.group = group
        self.topics = list(topics)
        self.member_id = f"member-{number:04}"
        self.epoch = 0
        self.owned: dict[bytes, list[int]] = {}
        self.beats = 0

    async def live(self, server: ServerProcess, changed: asyncio.Event) -> None:
        """Join, and stay until cancelled; then leave."""
        reader, writer = await asyncio.open_connection(server.host, server.port)
        try:
            interval_ms, news = await self._beat(reader, writer, joins=True), True
            while True:
                if news:
                    changed.set()
                else:
                    await asyncio.sleep(interval_ms / 1000)
                before = self.owned
                interval_ms = await self._beat(reader, writer, owned=news)
                news = self.owned is not before
        except asyncio.CancelledError:
            self.epoch = -1
            await self._beat(reader, writer)
            raise
        finally:
            writer.close()

    async def _beat(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        joins: bool = False,
        owned: bool = False,
    ) -> int:
        rows = [
            ConsumerGroupHeartbeatRequestTopicPartitions(topic_id=t, partitions=p)
            for t, p in self.owned.items()
        ]
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group,
            member_id=self.member_id,
            member_epoch=self.epoch,
            rebalance_timeout_ms=60_000 if joins else -1,
            subscribed_topic_names=self.topics if joins else None,
            topic_partitions=rows if joins or owned else None,
        )
        writer.write(frame_of(request, VERSION, 7, "bench"))
        size = int.from_bytes(await reader.readexactly(4), "big")
        data = await reader.readexactly(size)
        answer, _ = decode(ConsumerGroupHeartbeatResponse, data, VERSION, RESPONSE_HEADER_BYTES)
        assert answer.error_code == 0, answer
        self.beats += 1
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            assigned = {row.topic_id: list(row.partitions) for row in answer.assignment.topic_partitions}
            if assigned != self.owned:
                self.owned = assigned
        return answer.heartbeat_interval_ms


def is_settled(members: list[Member]) -> bool:
    """Has every partition one owner, and everybody its share?"""
    counts = [sum(map(len, member.owned.values())) for member in members]
    owned = [(t, p) for member in members for t, part in member.owned.items() for p in part]
    return len(set(owned)) == len(owned) == PARTITIONS and max(counts) - min(counts) <= 1


async def settling(server: ServerProcess, group: str) -> tuple[float, float]:
    """Seconds until a group of new members has settled, and again after one has left."""
    members = [Member(group, number) for number in range(MEMBERS)]
    changed = asyncio.Event()
    began = time.perf_counter()
    tasks = [asyncio.create_task(member.live(server, changed)) for member in members]
    await asyncio.wait_for(_settled(members, changed), PATIENCE_S)
    joined_s = time.perf_counter() - began
    await asyncio.sleep(6)  # everybody has been heard of since
    began = time.perf_counter()
    tasks[0].cancel()
    await asyncio.gather(tasks[0], return_exceptions=True)
    await asyncio.wait_for(_settled(members[1:], changed), PATIENCE_S)
    left_s = time.perf_counter() - began
    for task in tasks[1:]:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return joined_s, left_s


async def _settled(members: list[Member], changed: asyncio.Event) -> None:
    while not is_settled(members):
        await changed.wait()
        changed.clear()


def settle(report: Report, where: Path, quick: bool = False) -> None:
    """The time until a group of a hundred has settled: the median of three groups, after one that does not count."""
    joined: dict[str, list[float]] = {"apache": [], "ottla": []}
    left: dict[str, list[float]] = {"apache": [], "ottla": []}
    with both(where / "settle", SETTINGS) as servers:
        for server in servers.values():
            prepare(server, "settles")
        for number in range(2 if quick else 1 + SETTLINGS):
            for kind, server in servers.items():
                joined_s, left_s = asyncio.run(settling(server, f"settles-{number}"))
                if number:
                    joined[kind].append(joined_s)
                    left[kind].append(left_s)
    name = f"consumer group of {MEMBERS} with {PARTITIONS} partitions"
    for what, found in (("settled after all join", joined), ("settled after one leaves", left)):
        report.add(Row(f"{name}: {what}", "s", median(found["apache"]), median(found["ottla"])))


def prepare(server: ServerProcess, group: str) -> None:
    """The topic, and a coordinator that answers."""
    create_topic(server, TOPIC, PARTITIONS)
    with connection(server) as link:
        find = encode_request(FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": [group]})
        leave = heartbeat_frame(group, "nobody", -1)

        def ready() -> bool:
            link.ask(find)
            answer: dict[str, Any] = decode_response(HEARTBEAT, VERSION, link.ask(leave))
            return bool(answer["error_code"] in ("group_id_not_found", "unknown_member_id"))

        wait_until(ready, 60, f"{server.kind} to coordinate {group}")


def heartbeat_frame(group: str, member_id: str, epoch: int, **fields: Any) -> bytes:
    body = {
        "group_id": group, "member_id": member_id, "member_epoch": epoch, "instance_id": None, "rack_id": None,
        "rebalance_timeout": -1, "subscribed_topic_names": None, "subscribed_topic_regex": None,
        "server_assignor": None, "topic_partitions": None, **fields,
    }  # fmt: skip
    return encode_request(HEARTBEAT, VERSION, body, client_id="bench")


def heartbeats(report: Report, where: Path, quick: bool = False) -> None:
    """CPU of a broker for a heartbeat that changes nothing, of one member among ten."""
    load = Load("consumer group heartbeat", 1, 0, 0, 8000, WARM_UP, 0.5)
    with both(where / "heartbeats", SETTINGS) as servers:
        frames = {}
        for kind, server in servers.items():
            prepare(server, "beats")
            with connection(server) as link:
                frames[kind] = joined_frame(link)
        assert len(set(frames.values())) == 1, "both are in the same epoch"
        frame = frames["ottla"]
        measure(report, servers, load, lambda _: frame, len(frame), quick)


def joined_frame(link: Any) -> bytes:
    """The heartbeat of a member that has all it shall have."""
    joins = {"rebalance_timeout": 60_000, "subscribed_topic_names": [TOPIC], "topic_partitions": []}
    answer = decode_response(HEARTBEAT, VERSION, link.ask(heartbeat_frame("beats", "one", 0, **joins)))
    return heartbeat_frame("beats", "one", answer["member_epoch"])
