"""Scripts: ApiVersions, DescribeCluster, DescribeQuorum, features, log directories, broker registrations."""

from __future__ import annotations

from typing import Any

from tests.interop.process import wait_until
from tests.interop.scripts.batches import Batch, Rec
from tests.interop.scripts.script import Script

METADATA_TOPIC = "__cluster_metadata"


def api_versions(s: Script) -> None:
    """ApiVersions: every version, odd client names; only the APIs that both serve are compared."""
    for v in s.versions(18):
        names = {"client_software_name": "script", "client_software_version": "1.0"}
        s.ask(18, v, names, "asked")
        if v >= 3:
            for bad in ("", "spa ce", "-dash", "ünï", "x" * 300):
                s.ask(18, v, {**names, "client_software_name": bad}, f"client name {bad[:8]!r}")
                s.ask(18, v, {**names, "client_software_version": bad}, f"client version {bad[:8]!r}")
            s.ask(18, v, names, "without a client id", client_id=None)


def describe_cluster(s: Script) -> None:
    """DescribeCluster with every endpoint type."""
    for v in s.versions(60):
        s.ask(60, v, {"include_cluster_authorized_operations": False}, "plain")
        s.ask(60, v, {"include_cluster_authorized_operations": True}, "with authorized operations")
        if v >= 1:
            for kind in (0, 1, 2, 3, -1):
                s.ask(60, v, {"endpoint_type": kind}, f"endpoint type {kind}")
        if v >= 2:
            s.ask(60, v, {"include_fenced_brokers": True}, "with fenced brokers")


def describe_quorum(s: Script) -> None:
    """DescribeQuorum of the metadata partition, and of what is none."""
    for v in s.versions(55):
        for case, rows in {
            "metadata": [(METADATA_TOPIC, 0)],
            "another partition": [(METADATA_TOPIC, 1)],
            "another topic": [("nope", 0)],
            "none": [],
        }.items():
            topics = [{"topic_name": t, "partitions": [{"partition_index": p}]} for t, p in rows]
            s.ask(55, v, {"topics": topics}, case)


def features(s: Script) -> None:
    """UpdateFeatures: what changes nothing, and what must be refused."""
    for v in s.versions(57):
        for case, updates in {
            "unknown feature": [("no.such.feature", 1, 1)],
            "unknown feature to zero": [("no.such.feature", 0, 1)],
            "same metadata version": [("metadata.version", None, 1)],
            "metadata version too new": [("metadata.version", 99, 1)],
            "metadata version too old": [("metadata.version", 1, 2)],
            "downgrade not asked for": [("metadata.version", 26, 1)],
            "negative level": [("metadata.version", -1, 1)],
            "kraft version down": [("kraft.version", 0, 2)],
            "kraft version too new": [("kraft.version", 9, 1)],
            "group version the same": [("group.version", 1, 1)],
            "group version too new": [("group.version", 99, 1)],
            "unknown upgrade type": [("group.version", 1, 9)],
            "an empty name": [("", 1, 1)],
            "none": [],
        }.items():
            level = _finalized(s, "metadata.version")
            rows = [
                {
                    "feature": f,
                    "max_version_level": level if m is None else m,
                    "upgrade_type": t,
                    "allow_downgrade": t != 1,
                }
                for f, m, t in updates
            ]
            for only in (True, False) if v >= 1 else (False,):
                body = {"timeout": 20000, "feature_updates": rows, "validate_only": only}
                s.ask(57, v, body, case + (", validate only" if only else ""))


def _finalized(s: Script, name: str) -> int:
    listener, s.listener = s.listener, "broker"
    rows = s.quiet(18, 3, {"client_software_name": "s", "client_software_version": "1"})["finalized_features"]
    s.listener = listener
    return next(row["max_version_level"] for row in rows if row["name"] == name)


def log_dirs(s: Script) -> None:
    """DescribeLogDirs and AlterReplicaLogDirs; sizes are those of the files."""
    name = s.create("dirs-a", 2)
    s.produce(name, 0, Batch(records=[Rec(b"x" * 100)] * 5))
    for v in s.versions(35):
        for case, topics in {
            "one topic": [{"topic": name, "partitions": [0, 1]}],
            "one partition": [{"topic": name, "partitions": [0]}],
            "unknown topic": [{"topic": "nope", "partitions": [0]}],
            "unknown partition": [{"topic": name, "partitions": [9]}],
            "no topics": [],
        }.items():
            answer = s.quiet(35, v, {"topics": topics})
            s.asked.add((s.listener, 35, v))
            s.note(f"describe_log_dirs v{v}: {case}", summed(s, answer))
    for v in s.versions(34):
        for case, body in {
            "unknown directory": [{"path": "/nowhere", "topics": [{"name": name, "partitions": [0]}]}],
            "relative directory": [{"path": "here", "topics": [{"name": name, "partitions": [0]}]}],
            "unknown topic": [{"path": _directory(s), "topics": [{"name": "nope", "partitions": [0]}]}],
            "unknown partition": [{"path": _directory(s), "topics": [{"name": name, "partitions": [9]}]}],
            "none": [],
        }.items():
            s.ask(34, v, {"dirs": body}, case)


def summed(s: Script, answer: dict[str, Any]) -> dict[str, Any]:
    """The partitions of all directories together: where one landed is the broker's choice."""
    results = answer.get("results", [])
    rows = [
        (t["name"], p["partition_index"], p["partition_size"], p["offset_lag"], p["is_future_key"])
        for r in results
        for t in r["topics"]
        for p in t["partitions"]
    ]
    others = {k: v for k, v in answer.items() if k != "results"}
    shapes = [{k: v for k, v in r.items() if k not in ("topics", "log_dir")} for r in results]
    for shape in shapes:
        for name in ("total_bytes", "usable_bytes"):
            if name in shape:
                shape[name] = shape[name] > 0
    names = sorted(s.symbols.get(r["log_dir"], r["log_dir"]) for r in results)
    return {**others, "dirs": names, "shapes": shapes, "partitions": sorted(rows)}


def _directory(s: Script) -> str:
    return next(path for path, name in s.symbols.items() if name == "<log dir 0>")


def move_between_dirs(s: Script) -> None:
    """AlterReplicaLogDirs moves a partition to the other directory; its records stay."""
    name = s.create("dirs-move")
    s.produce(name, 0, [Batch(records=[Rec(b"m%d" % i)]) for i in range(4)])
    paths = [path for path, symbol in s.symbols.items() if symbol.startswith("<log dir")]
    here = _home(s, name)
    there = next(path for path in paths if path != here)
    body = {"dirs": [{"path": there, "topics": [{"name": name, "partitions": [0]}]}]}
    s.ask(34, s.newest(34), body, "moved")
    wait_until(lambda: _home(s, name) == there, 90, f"{name} to move")
    s.ask(34, s.newest(34), body, "where it already is")
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    topics = [{"topic": name, "partitions": [partition]}]
    s.ask(
        1, 11, {"max_wait": 0, "min_bytes": 0, "max_bytes": 1 << 20, "topics": topics}, "read after the move"
    )


def _home(s: Script, name: str) -> str:
    rows = s.quiet(35, 4, {"topics": [{"topic": name, "partitions": [0]}]})["results"]
    homes = [r["log_dir"] for r in rows for t in r["topics"] if not t["partitions"][0]["is_future_key"]]
    moving = any(t["partitions"][0]["is_future_key"] for r in rows for t in r["topics"])
    return "" if moving or len(homes) != 1 else str(homes[0])


def unregister_broker(s: Script) -> None:
    """UnregisterBroker of brokers that are not there (the one that is must not go)."""
    for v in s.versions(64):
        for broker in (99, -1):
            s.ask(64, v, {"broker_id": broker}, f"broker {broker}")


def find_coordinator(s: Script) -> None:
    """FindCoordinator: who is responsible, once the reference has made its internal topics."""
    for kind in (0, 1):
        first = {"key_type": kind, "coordinator_keys": ["someone"]}
        wait_until(
            lambda first=first: s.quiet(10, 4, first)["coordinators"][0]["error_code"] == "none",
            60,
            "a coordinator",
        )
    for v in s.versions(10):
        for kind in (0, 1, 2, 9) if v >= 1 else (0,):
            for key in ("someone", "", "g:AAAAAAAAAAAAAAAAAAAAAQ", "a:b:0", "g:AAAAAAAAAAAAAAAAAAAAAQ:x"):
                keys = {"coordinator_keys": [key, "another"]} if v >= 4 else {"key": key}
                s.ask(10, v, {"key_type": kind, **keys} if v >= 1 else keys, f"type {kind} key {key!r}")
