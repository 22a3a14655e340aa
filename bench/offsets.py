"""Offsets: the broker's CPU for a commit and a fetch of them, and the load of a million after a restart.

The million is committed by requests, so that each broker loads what it wrote itself, and all of it lies in one
partition of __consumer_offsets; somebody whose group lies in another one asks all the while. What is measured is the
time from the first answer of the broker to the first answer about the million, and how long that other one waited.
"""

from __future__ import annotations

import time
from pathlib import Path

from tests.interop.process import ServerProcess, running, wait_until
from tests.interop.scripts.entities import decode_response, encode_request

from bench.load import Connection, connection
from bench.raw import WARM_UP, Load, measure
from bench.report import Report, Row
from bench.servers import apache, both, create_topic, ottla

OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR = 8, 9, 10
COMMIT_VERSION, FETCH_VERSION, FIND_VERSION = 9, 9, 4
TOPIC = "offsets"
SHARDS = 10
SETTINGS: dict[str, object] = {"offsets.topic.num.partitions": SHARDS, "offsets.topic.replication.factor": 1}
OFFSETS_A_GROUP = 200
MILLION = 1_000_000
AIM_S, AIM_STALL_MS = 10.0, 20.0
LOADING = "coordinator_load_in_progress"

COMMITS = [
    Load("commit 1 offset", 1, 0, 0, 8000, WARM_UP, 1.0),
    Load("commit 10 offsets", 10, 0, 0, 4000, WARM_UP, 1.5),
]
FETCHES = [
    Load("fetch 1 offset", 1, 0, 0, 8000, WARM_UP, 1.5),
    Load("fetch 10 offsets", 10, 0, 0, 4000, WARM_UP, 1.5),
]


def commit_frame(group: str, partitions: int, offset: int = 42) -> bytes:
    """A commit of one topic's partitions, by somebody who manages partitions himself."""
    rows = [
        {
            "partition_index": p,
            "committed_offset": offset + p,
            "committed_leader_epoch": 0,
            "committed_metadata": "",
        }
        for p in range(partitions)
    ]
    body = {
        "group_id": group,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "topics": [{"name": TOPIC, "partitions": rows}],
    }
    return encode_request(OFFSET_COMMIT, COMMIT_VERSION, body, client_id="bench")


def fetch_frame(group: str, partitions: int) -> bytes:
    """A fetch of as many."""
    topics = [{"name": TOPIC, "partition_indexes": list(range(partitions))}]
    body = {"groups": [{"group_id": group, "topics": topics}], "require_stable": True}
    return encode_request(OFFSET_FETCH, FETCH_VERSION, body, client_id="bench")


def error_of_fetch(link: Connection, group: str) -> str:
    """The group's error in the answer to a fetch; "none" if it is answered."""
    answer = decode_response(OFFSET_FETCH, FETCH_VERSION, link.ask(fetch_frame(group, 1)))
    return str(answer["groups"][0]["error_code"])


def error_of_commit(link: Connection, frame: bytes) -> str:
    answer = decode_response(OFFSET_COMMIT, COMMIT_VERSION, link.ask(frame))
    return str(answer["topics"][0]["partitions"][0]["error_code"])


def prepare(server: ServerProcess, partitions: int, groups: list[str]) -> None:
    """The topic, and coordinators that answer."""
    create_topic(server, TOPIC, partitions)
    with connection(server) as link:
        for group in groups:
            body = {"key_type": 0, "coordinator_keys": [group]}
            find = encode_request(FIND_COORDINATOR, FIND_VERSION, body)
            frame = commit_frame(group, 1)
            wait_until(
                lambda f=find, c=frame: _found(link, f) and error_of_commit(link, c) == "none",
                60,
                f"{server.kind} to coordinate {group}",
            )


def _found(link: Connection, find: bytes) -> bool:
    answer = decode_response(FIND_COORDINATOR, FIND_VERSION, link.ask(find))
    return bool(answer["coordinators"][0]["error_code"] == "none")


# ---- what a request costs -------------------------------------------------------------------------------------


def commits(report: Report, where: Path, quick: bool = False) -> None:
    """CPU of a broker for OffsetCommit and OffsetFetch."""
    with both(where / "commits", SETTINGS) as servers:
        for server in servers.values():
            prepare(server, 10, ["commits"])
        for load in COMMITS:
            frame = commit_frame("commits", load.partitions)
            measure(report, servers, load, lambda _, f=frame: f, len(frame), quick)
        for load in FETCHES:
            frame = fetch_frame("commits", load.partitions)
            measure(report, servers, load, lambda _, f=frame: f, len(frame), quick)


# ---- a restart with a million ---------------------------------------------------------------------------------


def shard_of(group: str) -> int:
    """Where a group lies: Java's hash of its name."""
    code = 0
    for char in group:
        code = (31 * code + ord(char)) & 0xFFFFFFFF
    signed = code - (1 << 32) if code > 0x7FFFFFFF else code
    return abs(signed) % SHARDS


def groups_of_shard(shard: int, count: int) -> list[str]:
    names = (f"load-{number:06}" for number in range(count * SHARDS * 2))
    return [name for name in names if shard_of(name) == shard][:count]


def load(report: Report, where: Path, quick: bool = False) -> None:
    """The time until a million offsets are loaded, and what others wait meanwhile."""
    total = MILLION // (10 if quick else 1)
    groups = groups_of_shard(0, total // OFFSETS_A_GROUP)
    (other,) = groups_of_shard(1, 1)
    seconds: dict[str, float] = {}
    waits: dict[str, float] = {}
    stalls: dict[str, float] | None = None
    for server in (apache(where, SETTINGS), ottla(where, SETTINGS, watch_stalls=True)):
        with running([server]):
            fill(server, groups, other)
        with running([server]):
            seconds[server.kind], waits[server.kind] = loading_time(server, groups[-1], other)
            memory_mb = server.rss_bytes() / (1 << 20)
        if server.kind == "ottla":
            stalls = server.stalls()  # type: ignore[attr-defined]
    name = f"load of {total:,} offsets"
    report.add(
        Row(
            name,
            "s",
            seconds["apache"],
            seconds["ottla"],
            AIM_S,
            absolute=True,
            note=f"then {memory_mb:.0f} MB",
        )
    )
    report.add(Row(f"{name}: longest wait of another group", "ms", waits["apache"], waits["ottla"]))
    if stalls is not None:
        # Without the time in which the system ran others: only that is the load's doing.
        own = stalls["own_max_ms"]
        note = f"longest {stalls['max_ms']:.1f} with what else the machine did"
        report.add(Row(f"{name}: longest stall", "ms", None, own, AIM_STALL_MS, absolute=True, note=note))


def fill(server: ServerProcess, groups: list[str], other: str) -> None:
    """Commit for every group."""
    prepare(server, OFFSETS_A_GROUP, [groups[0], other])
    # The names are of one length: only they differ between the requests.
    frame = commit_frame(groups[0], OFFSETS_A_GROUP)
    with connection(server) as link:
        for group in groups:
            link.pump(frame.replace(groups[0].encode(), group.encode()), 1)
        assert error_of_commit(link, commit_frame(groups[-1], 1)) == "none"


def loading_time(server: ServerProcess, group: str, other: str) -> tuple[float, float]:
    """Seconds until the group's offsets can be read; milliseconds that the other one waited at most."""
    began = time.perf_counter()
    longest = 0.0
    with connection(server) as link:
        while error_of_fetch(link, group) != "none":
            asked = time.perf_counter()
            found = error_of_fetch(link, other)
            if found == "none":
                longest = max(longest, time.perf_counter() - asked)
            assert time.perf_counter() - began < 120, f"{server.kind} does not load: {found}"
    return time.perf_counter() - began, longest * 1000
