"""Classic groups: the broker's CPU for a heartbeat, the settling of a large group, and a thousand groups of ten.

Members are played: each has a connection, heartbeats as clients do by default, joins again when it is asked to, and
its group's leader hands the partitions round. A group has settled when everybody has fetched its assignment.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from statistics import median

from tests.interop.process import ServerProcess, wait_until
from tests.interop.scripts.entities import decode_response, encode_request

from bench.load import connection
from bench.raw import MB, WARM_UP, Load, measure
from bench.report import Report, Row
from bench.servers import both
from ottla.wire.codec import decode
from ottla.wire.framing import encode_request as frame_of
from ottla.wire.messages.groups.classic import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)

FIND_COORDINATOR, DESCRIBE_GROUPS = 10, 15
VERSIONS = {JoinGroupRequest: 9, HeartbeatRequest: 4, SyncGroupRequest: 5, LeaveGroupRequest: 5}
RESPONSES = {
    JoinGroupRequest: JoinGroupResponse,
    HeartbeatRequest: HeartbeatResponse,
    SyncGroupRequest: SyncGroupResponse,
    LeaveGroupRequest: LeaveGroupResponse,
}
# A response's correlation id and the tags of its header.
RESPONSE_HEADER_BYTES = 5
MEMBER_ID_REQUIRED, REBALANCE_IN_PROGRESS = 79, 27
SUBSCRIPTION = b"\x00\x01\x00\x00\x00\x01\x00\x05topic\xff\xff\xff\xff\x00\x00\x00\x00"
HEARTBEAT_S = 3.0
# Long: the first of many groups are not heard of while the last are formed.
SESSION_MS = 600_000
MEMBERS = 100
GROUPS, GROUP_MEMBERS, FORMED_AT_ONCE = 1_000, 10, 100
SETTLINGS = 3
PATIENCE_S = 120.0
SETTINGS: dict[str, object] = {
    "offsets.topic.num.partitions": 4,
    "offsets.topic.replication.factor": 1,
    "group.initial.rebalance.delay.ms": 500,
}
# Time enough for a thousand members to come before the first of them begin.
MANY_SETTINGS: dict[str, object] = {**SETTINGS, "group.initial.rebalance.delay.ms": 3_000}


class Link:
    """A connection that asks one thing at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def to(cls, server: ServerProcess) -> Link:
        return cls(*await asyncio.open_connection(server.host, server.port))

    async def ask(self, request: object) -> object:
        version = VERSIONS[type(request)]
        self._writer.write(frame_of(request, version, 7, "bench"))
        size = int.from_bytes(await self._reader.readexactly(4), "big")
        data = await self._reader.readexactly(size)
        return decode(RESPONSES[type(request)], data, version, RESPONSE_HEADER_BYTES)[0]

    def close(self) -> None:
        self._writer.close()


class Member:
    """One member; it may use any connection."""

    def __init__(self, group: str) -> None:
        self.group = group
        self.member_id = ""
        self.generation = -1
        self.synced = -1  # the generation whose assignment it has

    async def join(self, link: Link) -> None:
        """Until it has its assignment."""
        while self.synced != self.generation or self.generation < 0:
            answer = await link.ask(self._join_request())
            assert isinstance(answer, JoinGroupResponse)
            self.member_id = answer.member_id or self.member_id
            if answer.error_code == MEMBER_ID_REQUIRED:
                continue
            assert answer.error_code == 0, answer
            self.generation = answer.generation_id
            await self._sync(link, [member.member_id for member in answer.members])

    async def _sync(self, link: Link, members: list[str]) -> None:
        rows = [SyncGroupRequestAssignment(member_id=m, assignment=m.encode()) for m in members]
        request = SyncGroupRequest(
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.member_id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=rows,
        )
        answer = await link.ask(request)
        assert isinstance(answer, SyncGroupResponse)
        if answer.error_code == 0:
            self.synced = self.generation
        else:
            assert answer.error_code == REBALANCE_IN_PROGRESS, answer
            self.synced = -1

    def _join_request(self) -> JoinGroupRequest:
        return JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=60_000,
            member_id=self.member_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=SUBSCRIPTION)],
        )

    def heartbeat(self) -> HeartbeatRequest:
        return HeartbeatRequest(group_id=self.group, generation_id=self.generation, member_id=self.member_id)

    async def live(self, server: ServerProcess, changed: asyncio.Event, *, leaves: bool = True) -> None:
        """Join, and stay until cancelled; then leave, if it shall."""
        link = await Link.to(server)
        try:
            while True:
                await self.join(link)
                changed.set()
                await asyncio.sleep(HEARTBEAT_S)
                answer = await link.ask(self.heartbeat())
                assert isinstance(answer, HeartbeatResponse)
                if answer.error_code:
                    assert answer.error_code == REBALANCE_IN_PROGRESS, answer
                    self.synced = -1
        except asyncio.CancelledError:
            if leaves:
                identity = MemberIdentity(member_id=self.member_id)
                await link.ask(LeaveGroupRequest(group_id=self.group, members=[identity]))
            raise
        finally:
            link.close()


def prepare(server: ServerProcess, *groups: str) -> None:
    """Coordinators that answer."""
    with connection(server) as link:
        for group in groups:
            find = encode_request(FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": [group]})
            ask = encode_request(DESCRIBE_GROUPS, 5, {"groups": [group]})

            def ready(find: bytes = find, ask: bytes = ask) -> bool:
                link.ask(find)
                answer = decode_response(DESCRIBE_GROUPS, 5, link.ask(ask))
                return bool(answer["groups"][0]["error_code"] == "none")

            wait_until(ready, 60, f"{server.kind} to coordinate {group}")


# ---- a heartbeat ------------------------------------------------------------------------------------------------


def heartbeats(report: Report, where: Path, quick: bool = False) -> None:
    """CPU of a broker for a heartbeat, of one member among ten."""
    load = Load("classic group heartbeat", 1, 0, 0, 8000, WARM_UP, 0.5)
    with both(where / "classic-heartbeats", SETTINGS) as servers:
        frames = {}
        for kind, server in servers.items():
            prepare(server, "beats")
            (member, *_) = asyncio.run(_formed(server, ["beats"]))
            frames[kind] = frame_of(member.heartbeat(), VERSIONS[HeartbeatRequest], 7, "bench")
        measure(report, servers, load, lambda kind: frames[kind], len(frames["ottla"]), quick)


async def _formed(server: ServerProcess, groups: list[str]) -> list[Member]:
    """Groups of ten, each member on a connection of its own until its group has settled."""
    formed = await asyncio.gather(*(_form(server, group) for group in groups))
    return [member for members in formed for member in members]


async def _form(server: ServerProcess, group: str) -> list[Member]:
    members = [Member(group) for _ in range(GROUP_MEMBERS)]
    changed = asyncio.Event()
    tasks = [asyncio.create_task(member.live(server, changed, leaves=False)) for member in members]
    await asyncio.wait_for(_settled(members, changed, 0), PATIENCE_S)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return members


# ---- a large group ----------------------------------------------------------------------------------------------


def settle(report: Report, where: Path, quick: bool = False) -> None:
    """The time until a group of a hundred has settled: the median of three groups, after one that does not count."""
    joined: dict[str, list[float]] = {"apache": [], "ottla": []}
    left: dict[str, list[float]] = {"apache": [], "ottla": []}
    cpu: dict[str, list[float]] = {"apache": [], "ottla": []}
    with both(where / "classic-settle", SETTINGS) as servers:
        for number in range(2 if quick else 1 + SETTLINGS):
            for kind, server in servers.items():
                prepare(server, f"settles-{number}")
                before = server.cpu_seconds()
                joined_s, left_s = asyncio.run(_settling(server, f"settles-{number}"))
                if number:
                    joined[kind].append(joined_s)
                    left[kind].append(left_s)
                    cpu[kind].append(server.cpu_seconds() - before)
    name = f"classic group of {MEMBERS}"
    for what, found in (
        ("settled after all join", joined),
        ("settled after one leaves", left),
        ("broker CPU for both", cpu),
    ):
        report.add(Row(f"{name}: {what}", "s", median(found["apache"]), median(found["ottla"])))


async def _settling(server: ServerProcess, group: str) -> tuple[float, float]:
    members = [Member(group) for _ in range(MEMBERS)]
    changed = asyncio.Event()
    began = time.perf_counter()
    tasks = [asyncio.create_task(member.live(server, changed)) for member in members]
    await asyncio.wait_for(_settled(members, changed, 0), PATIENCE_S)
    joined_s = time.perf_counter() - began
    generation = members[0].generation
    began = time.perf_counter()
    tasks[0].cancel()
    await asyncio.gather(tasks[0], return_exceptions=True)
    await asyncio.wait_for(_settled(members[1:], changed, generation), PATIENCE_S)
    left_s = time.perf_counter() - began
    for task in tasks[1:]:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return joined_s, left_s


async def _settled(members: list[Member], changed: asyncio.Event, after: int) -> None:
    """Has everybody its assignment in one generation that came after?"""
    while len({m.synced for m in members}) != 1 or members[0].synced <= after:
        await changed.wait()
        changed.clear()


# ---- many groups ------------------------------------------------------------------------------------------------


def many(report: Report, where: Path, quick: bool = False) -> None:
    """A thousand groups of ten, all of which heartbeat as clients do."""
    count = GROUPS // 10 if quick else GROUPS
    seconds = 6.0 if quick else 15.0
    formed: dict[str, float] = {}
    busy: dict[str, float] = {}
    memory: dict[str, float] = {}
    with both(where / "classic-many", MANY_SETTINGS) as servers:
        for kind, server in servers.items():
            prepare(server, *(f"many-{number}" for number in range(8)))
            rss = server.rss_bytes()
            began = time.perf_counter()
            members = asyncio.run(_form_many(server, count))
            formed[kind] = time.perf_counter() - began
            memory[kind] = (server.rss_bytes() - rss) / MB
            busy[kind] = asyncio.run(_beating(server, members, seconds))
    name = f"{count} classic groups of {GROUP_MEMBERS}"
    report.add(Row(f"{name}: formed", "s", formed["apache"], formed["ottla"]))
    report.add(Row(f"{name}: memory more than before", "MB", memory["apache"], memory["ottla"]))
    report.add(Row(f"{name}: CPU while all heartbeat", "% of a core", busy["apache"], busy["ottla"]))


async def _form_many(server: ServerProcess, count: int) -> list[Member]:
    members: list[Member] = []
    for first in range(0, count, FORMED_AT_ONCE):
        last = min(first + FORMED_AT_ONCE, count)
        members += await _formed(server, [f"many-{number}" for number in range(first, last)])
    return members


async def _beating(server: ServerProcess, members: list[Member], seconds: float) -> float:
    """The broker's share of a core while every member heartbeats in turn, over a few connections."""
    links = [await Link.to(server) for _ in range(16)]
    shares = [members[index :: len(links)] for index in range(len(links))]
    await asyncio.gather(*(_beat_all(link, share, 0.0) for link, share in zip(links, shares, strict=True)))
    before, began = server.cpu_seconds(), time.perf_counter()
    while time.perf_counter() - began < seconds:
        await asyncio.gather(
            *(_beat_all(link, share, HEARTBEAT_S) for link, share in zip(links, shares, strict=True))
        )
    busy = (server.cpu_seconds() - before) / (time.perf_counter() - began) * 100
    for link in links:
        link.close()
    return busy


async def _beat_all(link: Link, members: list[Member], during_s: float) -> None:
    """Every member once, spread over the time."""
    began = time.perf_counter()
    for number, member in enumerate(members):
        answer = await link.ask(member.heartbeat())
        assert isinstance(answer, HeartbeatResponse)
        assert answer.error_code == 0, answer
        await asyncio.sleep(max(began + during_s * (number + 1) / len(members) - time.perf_counter(), 0))
