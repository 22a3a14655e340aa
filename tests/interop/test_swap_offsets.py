"""The swap of committed offsets: what one broker has committed, expired, deleted, in and out of transactions, is what
the other one started on the same directory answers; in both directions, and again after each has gone on.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.interop.apache import ApacheKafka
from tests.interop.ottla_node import OttlaNode
from tests.interop.process import ServerProcess, free_ports, wait_until
from tests.interop.scripts.offsets import (
    COMMIT,
    DELETE_GROUPS,
    LIST,
    OFFSET_DELETE,
    OFFSET_FETCH,
    commit_body,
    ready,
)
from tests.interop.scripts.script import Script

pytestmark = pytest.mark.interop

SETTINGS: dict[str, object] = {
    "offsets.topic.num.partitions": 3,
    "offsets.topic.replication.factor": 1,
    "transaction.state.log.num.partitions": 2,
    "transaction.state.log.replication.factor": 1,
    "group.initial.rebalance.delay.ms": 0,
}
GROUPS = [f"swap-{i}" for i in range(8)]
ADD_OFFSETS, INIT_PRODUCER, END_TXN, TXN_COMMIT, FIND = 25, 22, 26, 28, 10


def script(server: ServerProcess) -> Script:
    s = Script(server, {}, {})
    for group in GROUPS:
        ready(s, group)
    return s


def commit(s: Script, group: str, topics: dict[str, dict[int, Any]], version: int = 9, **more: Any) -> None:
    answer = s.quiet(COMMIT, version, commit_body(s, version, group, topics, **more))
    codes = {p["error_code"] for topic in answer["topics"] for p in topic["partitions"]}
    assert codes == {"none"}, answer


def in_transaction(s: Script, transactional_id: str, group: str, offset: int, *, end: bool | None) -> None:
    """Commit an offset in a transaction that is committed, aborted, or left open."""
    find = {"key_type": 1, "coordinator_keys": [transactional_id]}
    wait_until(
        lambda: s.quiet(FIND, 4, find)["coordinators"][0]["error_code"] == "none",
        60,
        "a transaction coordinator",
    )

    def init() -> dict[str, Any]:
        body = {"transactional_id": transactional_id, "transaction_timeout": 600_000}
        return s.quiet(INIT_PRODUCER, 4, body)

    wait_until(lambda: init()["error_code"] == "none", 60, "a producer id")
    who = init()
    producer = {"producer_id": who["producer_id"], "producer_epoch": who["producer_epoch"]}
    producer["transactional_id"] = transactional_id
    added = s.quiet(ADD_OFFSETS, 3, {**producer, "group_id": group})
    assert added["error_code"] == "none", added
    rows = [{"partition_index": 1, "committed_offset": offset, "committed_metadata": "in a transaction"}]
    body = {**producer, "group_id": group, "topics": [{"name": "swapped", "partitions": rows}]}
    answer = s.quiet(TXN_COMMIT, 3, body)
    assert answer["topics"][0]["partitions"][0]["error_code"] == "none", answer
    if end is not None:
        ended = s.quiet(END_TXN, 3, {**producer, "committed": end})
        assert ended["error_code"] == "none", ended
        # Apache answers before the markers are written.
        topic = {"name": "swapped", "partition_indexes": [1]}
        fetch = {"groups": [{"group_id": group, "topics": [topic]}], "require_stable": True}

        def is_decided() -> bool:
            (found,) = s.quiet(OFFSET_FETCH, 9, fetch)["groups"]
            return bool(found["topics"][0]["partitions"][0]["error_code"] == "none")

        wait_until(is_decided, 60, "the transaction's markers")


def write(s: Script, round_: int) -> None:
    """Offsets of every kind, on top of what is there."""
    base = 100 * round_
    commit(s, GROUPS[0], {"swapped": {0: base + 1, 2: (base + 2, 5, "metadata ü")}, "other": {0: base + 3}})
    commit(s, GROUPS[1], {"swapped": {0: base + 4}}, version=2, retention_time=3_600_000)
    commit(s, GROUPS[2], {"swapped": {0: base + 5, 1: base + 6}})
    rows = [{"name": "swapped", "partitions": [{"partition_index": 1}]}]
    assert s.quiet(OFFSET_DELETE, 0, {"group_id": GROUPS[2], "topics": rows})["error_code"] == "none"
    commit(s, GROUPS[3], {"swapped": {0: base + 7}})
    deleted = s.quiet(DELETE_GROUPS, 2, {"groups_names": [GROUPS[3]]})
    assert deleted["results"][0]["error_code"] == "none"
    in_transaction(s, f"committed-{round_}", GROUPS[4], base + 8, end=True)
    commit(s, GROUPS[5], {"swapped": {1: base + 9}})
    in_transaction(s, f"aborted-{round_}", GROUPS[5], base + 10, end=False)
    # Newer than what the transaction will have committed when it ends.
    commit(s, GROUPS[6], {"swapped": {0: base + 11}})
    in_transaction(s, f"open-{round_}", GROUPS[7], base + 12, end=None)


def observed(s: Script) -> dict[str, Any]:
    """All offsets, stable or not, and all groups."""
    seen: dict[str, Any] = {}
    for group in GROUPS:
        for stable in (False, True):
            topics = [{"name": name, "partition_indexes": [0, 1, 2]} for name in ("swapped", "other")]
            for asked in (topics, None):
                body = {"groups": [{"group_id": group, "topics": asked}], "require_stable": stable}
                (answer,) = s.quiet(OFFSET_FETCH, 9, body)["groups"]
                assert answer["error_code"] == "none"
                found = sorted(answer["topics"], key=lambda topic: topic["name"])
                for topic in found:
                    topic["partitions"].sort(key=lambda p: p["partition_index"])
                seen[f"{group} stable {stable} all {asked is None}"] = found
    listed = s.quiet(LIST, 5, {"states_filter": [], "types_filter": []})["groups"]
    seen["groups"] = sorted(listed, key=lambda row: row["group_id"])
    return seen


@pytest.mark.parametrize("first", ["ottla", "apache"])
def test_offsets_are_the_same_whoever_reads_them(tmp_path: Path, first: str) -> None:
    port, controller_port = free_ports(2)
    where: dict[str, Any] = {"port": port, "controller_port": controller_port}
    brokers: list[ServerProcess] = [
        OttlaNode(tmp_path / "data", SETTINGS, **where),
        ApacheKafka(tmp_path / "data", SETTINGS, **where),
    ]
    if first == "apache":
        brokers.reverse()
    before: dict[str, Any] | None = None
    for round_ in range(4):
        with brokers[round_ % 2] as server:
            s = script(server)
            if before is None:
                s.create("swapped", 3)
                s.create("other", 1)
            else:
                assert observed(s) == before
            write(s, round_)
            before = observed(s)
            s.close()
    assert before is not None
    unstable = before[f"{GROUPS[7]} stable True all False"][1]["partitions"][1]
    assert unstable["error_code"] == "unstable_offset_commit"
    assert before[f"{GROUPS[4]} stable True all False"][1]["partitions"][1]["committed_offset"] == 308
