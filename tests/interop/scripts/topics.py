"""Scripts: creating, growing, emptying, deleting and describing topics; leaders and reassignments."""

from __future__ import annotations

import uuid
from typing import Any

from tests.interop.process import wait_until
from tests.interop.scripts.batches import Batch, Rec
from tests.interop.scripts.entities import ZERO_ID
from tests.interop.scripts.script import Script

UNKNOWN_ID = "0f0f0f0f-0000-0000-0000-000000000001"
LONG_NAME = "x" * 250
ILLEGAL_NAMES = ["", ".", "..", "a b", "sla/sh", "ünï", "col:on", LONG_NAME, "__cluster_metadata"]


def topic(name: str, partitions: int = 1, factor: int = 1, **more: Any) -> dict[str, Any]:
    """One topic of a CreateTopics request."""
    return {"name": name, "num_partitions": partitions, "replication_factor": factor, **more}


def config(name: str, value: str | None) -> dict[str, Any]:
    """One config of a CreateTopics request."""
    return {"name": name, "value": value}


def assignment(*replicas: list[int]) -> list[dict[str, Any]]:
    """Replicas by partition, from 0."""
    return [{"partition_index": i, "broker_ids": ids} for i, ids in enumerate(replicas)]


BAD_CONFIGS = [
    ("unknown.config", "1"),
    ("retention.ms", "soon"),
    ("retention.ms", "-2"),
    ("cleanup.policy", "burn"),
    ("cleanup.policy", ""),
    ("compression.type", "rar"),
    ("compression.gzip.level", "99"),
    ("segment.bytes", "10"),
    ("segment.bytes", None),
    ("min.insync.replicas", "0"),
    ("max.message.bytes", "-5"),
    ("message.timestamp.type", "Sometime"),
    ("preallocate", "perhaps"),
    ("min.cleanable.dirty.ratio", "1.5"),
    ("leader.replication.throttled.replicas", "nonsense"),
    ("remote.storage.enable", "true"),
    ("message.format.version", "2.0"),
    ("local.retention.ms", "99999999999999"),
]


def create_topics(s: Script) -> None:
    """CreateTopics: the good, the illegal, the doubled, and what validate_only says."""
    for v in s.versions(19):
        name = f"create-v{v}"
        configs = [config("retention.ms", "60000"), config("cleanup.policy", "compact,delete")]
        s.ask(
            19,
            v,
            {"topics": [topic(name, 3, 1, configs=configs)], "timeout": 20000},
            "three partitions, configs",
        )
        s.ask(19, v, {"topics": [topic(name)], "timeout": 20000}, "exists")
        s.ask(19, v, {"topics": [topic(f"{name}-d", -1, -1)], "timeout": 20000}, "defaults")
        assigned = topic(f"{name}-a", -1, -1, assignments=assignment([1], [1]))
        s.ask(19, v, {"topics": [assigned], "timeout": 20000}, "assigned")
        s.ask(19, v, {"topics": [], "timeout": 20000}, "none")
        s.ask(
            19,
            v,
            {"topics": [topic(f"{name}-only")], "timeout": 20000, "validate_only": True},
            "validate only",
        )
        s.ask(19, v, {"topics": [topic(f"{name}-t")], "timeout": -1}, "negative timeout")
    v = s.newest(19)
    for name in ILLEGAL_NAMES:
        s.ask(19, v, {"topics": [topic(name)], "timeout": 20000}, f"illegal name {name[:12]!r}")
    for name, value in BAD_CONFIGS:
        bad = topic("bad-config", configs=[config(name, value)])
        s.ask(19, v, {"topics": [bad], "timeout": 20000}, f"bad config {name}={value}")
    bad_shapes = {
        "zero partitions": topic("bad", 0),
        "minus two partitions": topic("bad", -2),
        "factor zero": topic("bad", 1, 0),
        "factor two": topic("bad", 1, 2),
        "assigned to nobody": topic("bad", -1, -1, assignments=assignment([])),
        "assigned to an unknown broker": topic("bad", -1, -1, assignments=assignment([99])),
        "assigned twice to one broker": topic("bad", -1, -1, assignments=assignment([1, 1])),
        "assigned and counted": topic("bad", 2, 1, assignments=assignment([1])),
        "assigned with a gap": topic("bad", -1, -1, assignments=[{"partition_index": 1, "broker_ids": [1]}]),
        "assigned one partition twice": topic(
            "bad", -1, -1, assignments=[{"partition_index": 0, "broker_ids": [1]}] * 2
        ),
        "the same config twice": topic(
            "bad-twice", configs=[config("retention.ms", "1"), config("retention.ms", "2")]
        ),
    }
    for case, bad in bad_shapes.items():
        s.ask(19, v, {"topics": [bad], "timeout": 20000, "validate_only": True}, case)
    s.ask(19, v, {"topics": [topic("twin"), topic("twin", 2)], "timeout": 20000}, "one name twice")
    s.ask(19, v, {"topics": [topic("dots.and_bars")], "timeout": 20000}, "a name with a dot")
    s.ask(19, v, {"topics": [topic("dots_and.bars")], "timeout": 20000}, "colliding with a dotted name")
    mixed = [topic("mixed-good"), topic("mixed bad"), topic("create-v7")]
    s.ask(19, v, {"topics": mixed, "timeout": 20000}, "good and bad together")


def delete_topics(s: Script) -> None:
    """DeleteTopics by name and by id."""
    for v in s.versions(20):
        name = s.create(f"delete-v{v}")
        body = {"topic_names": [name], "topics": [{"name": name, "topic_id": ZERO_ID}], "timeout": 20000}
        s.ask(20, v, body, "by name")
        s.ask(20, v, body, "again")
        missing = {
            "topic_names": ["nope"],
            "topics": [{"name": "nope", "topic_id": ZERO_ID}],
            "timeout": 20000,
        }
        s.ask(20, v, missing, "unknown name")
        s.ask(20, v, {"topic_names": [], "topics": [], "timeout": 20000}, "none")
    v = s.newest(20)
    by_id = s.create("delete-by-id")
    s.ask(20, v, {"topics": [{"name": None, "topic_id": _id(s, by_id)}], "timeout": 20000}, "by id")
    s.ask(20, v, {"topics": [{"name": None, "topic_id": _id(s, by_id)}], "timeout": 20000}, "by id again")
    both = s.create("delete-both")
    s.ask(20, v, {"topics": [{"name": both, "topic_id": _id(s, both)}], "timeout": 20000}, "by name and id")
    s.ask(20, v, {"topics": [{"name": None, "topic_id": ZERO_ID}], "timeout": 20000}, "by nothing")
    twice = [{"name": both, "topic_id": ZERO_ID}] * 2
    s.ask(20, v, {"topics": twice, "timeout": 20000}, "one name twice")
    s.ask(20, v, {"topics": [{"name": "a b", "topic_id": ZERO_ID}], "timeout": 20000}, "illegal name")
    s.ask(
        20, v, {"topics": [{"name": "__cluster_metadata", "topic_id": ZERO_ID}], "timeout": 20000}, "metadata"
    )
    gone = s.create("delete-gone")
    s.quiet(20, v, {"topics": [{"name": gone, "topic_id": ZERO_ID}], "timeout": 20000})
    query = {"topics": [{"topic_id": ZERO_ID, "name": gone}], "allow_auto_topic_creation": False}
    wait_until(
        lambda: s.quiet(3, 12, query)["topics"][0]["error_code"] == "unknown_topic_or_partition",
        20,
        "it to go",
    )
    s.ask(3, s.newest(3), query, "deleted topic by name")
    s.ask(3, s.newest(3), {"topics": [{"topic_id": _id(s, gone), "name": None}]}, "deleted topic by id")


def _id(s: Script, name: str) -> Any:
    return uuid.UUID(s.topic_ids[name])


def create_partitions(s: Script) -> None:
    """CreatePartitions: more, fewer, the same, assigned, validate_only."""
    for v in s.versions(37):
        name = s.create(f"grow-v{v}", 2)
        for case, more in {
            "more, validate only": {
                "topics": [{"name": name, "count": 4, "assignments": None}],
                "validate_only": True,
            },
            "more": {"topics": [{"name": name, "count": 3, "assignments": None}]},
            "the same": {"topics": [{"name": name, "count": 3, "assignments": None}]},
            "fewer": {"topics": [{"name": name, "count": 1, "assignments": None}]},
            "zero": {"topics": [{"name": name, "count": 0, "assignments": None}]},
            "assigned": {"topics": [{"name": name, "count": 4, "assignments": [{"broker_ids": [1]}]}]},
            "assigned badly": {"topics": [{"name": name, "count": 5, "assignments": [{"broker_ids": [9]}]}]},
            "assigned too many": {
                "topics": [{"name": name, "count": 5, "assignments": [{"broker_ids": [1]}] * 2}]
            },
            "assigned to nobody": {
                "topics": [{"name": name, "count": 5, "assignments": [{"broker_ids": []}]}]
            },
            "assigned twice": {
                "topics": [{"name": name, "count": 5, "assignments": [{"broker_ids": [1, 1]}]}]
            },
            "unknown topic": {"topics": [{"name": "nope", "count": 2, "assignments": None}]},
            "illegal topic": {"topics": [{"name": "a b", "count": 2, "assignments": None}]},
            "named twice": {"topics": [{"name": name, "count": 8, "assignments": None}] * 2},
            "none": {"topics": []},
        }.items():
            s.ask(37, v, {"timeout": 20000, "validate_only": False, **more}, case)


def delete_records(s: Script) -> None:
    """DeleteRecords up to an offset, to the high watermark, past it, and where it is not allowed."""
    for v in s.versions(21):
        name = s.create(f"empty-v{v}", 2)
        s.produce(name, 0, [Batch(records=[Rec()] * 3) for _ in range(3)])
        compacted = s.create(f"empty-compact-v{v}", cleanup_policy="compact")
        s.produce(compacted, 0, Batch(records=[Rec(key=b"k")]))
        for case, rows in {
            "inside a batch": [(name, 0, 4)],
            "back again": [(name, 0, 2)],
            "past the end": [(name, 0, 10)],
            "negative": [(name, 0, -5)],
            "to the high watermark": [(name, 0, -1)],
            "empty partition": [(name, 1, 0)],
            "unknown partition": [(name, 9, 0)],
            "unknown topic": [("nope", 0, 0)],
            "compacted topic": [(compacted, 0, 1)],
        }.items():
            topics = [{"name": t, "partitions": [{"partition_index": p, "offset": o}]} for t, p, o in rows]
            s.ask(21, v, {"topics": topics, "timeout": 20000}, case)
        s.ask(21, v, {"topics": [], "timeout": 20000}, "none")
        offsets = [{"partition_index": 0, "current_leader_epoch": -1, "timestamp": -2}]
        s.ask(
            2,
            7,
            {"replica_id": -1, "topics": [{"name": name, "partitions": offsets}]},
            f"earliest after v{v}",
        )


def metadata(s: Script) -> None:
    """Metadata: none, by name, by id, unknown, illegal, auto-created.

    Neither name nor id is left out: the reference answers that with an unknown server error.
    """
    s.create("meta-a", 3)
    s.create("meta-b")
    for v in s.versions(3):
        named = {"topics": [{"name": "meta-a"}, {"name": "meta-b"}], "allow_auto_topic_creation": False}
        s.ask(3, v, named, "two by name")
        s.ask(3, v, {**named, "topics": [{"name": "meta-b"}] * 2}, "one twice")
        if v >= 1:
            s.ask(3, v, {"topics": [], "allow_auto_topic_creation": False}, "none")
        for bad in ("a b", "", "..", LONG_NAME):
            body = {"topics": [{"name": bad}], "allow_auto_topic_creation": True}
            s.ask(3, v, body, f"illegal name {bad[:5]!r}")
        if v >= 4:
            unknown = {"topics": [{"name": "meta-nope"}], "allow_auto_topic_creation": False}
            s.ask(3, v, unknown, "unknown, not created")
        if v >= 8:
            operations = {
                "include_topic_authorized_operations": True,
                "include_cluster_authorized_operations": True,
            }
            s.ask(3, v, {**named, **operations}, "with authorized operations")
        if v >= 10:
            by_id = {
                "topics": [{"topic_id": _id(s, "meta-a"), "name": None}],
                "allow_auto_topic_creation": False,
            }
            s.ask(3, v, by_id, "by id")
            s.ask(3, v, {"topics": [{"topic_id": _uuid(UNKNOWN_ID), "name": None}]}, "by unknown id")
            s.ask(3, v, {"topics": [{"topic_id": _id(s, "meta-a"), "name": "meta-b"}]}, "by id and name")
        _auto_create(s, v)


def _auto_create(s: Script, v: int) -> None:
    # The first answer is always that there is none; the topic itself must come into being.
    name = f"meta-auto-v{v}"
    asked = {"topics": [{"name": name}], "allow_auto_topic_creation": True}
    s.ask(3, v, asked, "to be auto-created")
    wait_until(lambda: s.is_led(name, 1), 90, f"{name} to be created")
    s.ask(3, v, asked, "auto-created")


def _uuid(text: str) -> Any:
    return uuid.UUID(text)


def describe_topic_partitions(s: Script) -> None:
    """DescribeTopicPartitions: names, limits, cursors."""
    s.create("dtp-a", 3)
    s.create("dtp-b", 2)
    for v in s.versions(75):
        for case, body in {
            "two": {"topics": [{"name": "dtp-b"}, {"name": "dtp-a"}]},
            "unknown": {"topics": [{"name": "dtp-nope"}, {"name": "dtp-a"}]},
            "illegal": {"topics": [{"name": "a b"}]},
            "one twice": {"topics": [{"name": "dtp-a"}, {"name": "dtp-a"}]},
            "limited": {"topics": [{"name": "dtp-a"}, {"name": "dtp-b"}], "response_partition_limit": 2},
            "limit zero": {"topics": [{"name": "dtp-a"}], "response_partition_limit": 0},
            "limit negative": {"topics": [{"name": "dtp-a"}], "response_partition_limit": -1},
            "from a cursor": {
                "topics": [{"name": "dtp-a"}, {"name": "dtp-b"}],
                "cursor": {"topic_name": "dtp-a", "partition_index": 1},
            },
            "from a later topic": {
                "topics": [{"name": "dtp-a"}, {"name": "dtp-b"}],
                "cursor": {"topic_name": "dtp-b", "partition_index": 0},
            },
            "from a cursor past the end": {
                "topics": [{"name": "dtp-a"}, {"name": "dtp-b"}],
                "cursor": {"topic_name": "dtp-a", "partition_index": 7},
            },
            "from a cursor of a topic not asked": {
                "topics": [{"name": "dtp-a"}, {"name": "dtp-b"}],
                "cursor": {"topic_name": "dtp-aa", "partition_index": 1},
            },
            "from a negative cursor": {
                "topics": [{"name": "dtp-a"}],
                "cursor": {"topic_name": "dtp-a", "partition_index": -1},
            },
        }.items():
            s.ask(75, v, body, case)


def elect_leaders(s: Script) -> None:
    """ElectLeaders where the leader is already the preferred one."""
    s.create("elect-a", 2)
    for v in s.versions(43):
        for case, body in {
            "preferred": {
                "election_type": 0,
                "topic_partitions": [{"topic": "elect-a", "partitions": [0, 1]}],
            },
            "unclean": {"election_type": 1, "topic_partitions": [{"topic": "elect-a", "partitions": [0]}]},
            "unknown type": {
                "election_type": 7,
                "topic_partitions": [{"topic": "elect-a", "partitions": [0]}],
            },
            "unknown partition": {
                "election_type": 0,
                "topic_partitions": [{"topic": "elect-a", "partitions": [5]}],
            },
            "unknown topic": {"election_type": 0, "topic_partitions": [{"topic": "nope", "partitions": [0]}]},
            "none": {"election_type": 0, "topic_partitions": []},
            "all": {"election_type": 0, "topic_partitions": None},
            "all unclean": {"election_type": 1, "topic_partitions": None},
        }.items():
            if v == 0 and "unclean" in case:
                continue
            if v == 0 and case == "unknown type":
                continue
            s.ask(43, v, {"timeout": 20000, **body}, case)
            _keep_own_topic(s)


def _keep_own_topic(s: Script) -> None:
    # "All" names every topic of the cluster, also those of other scripts.
    label, outcome = next(reversed(s.record.items()))
    if isinstance(outcome, dict):
        rows = outcome["replica_election_results"]
        s.record[label] = {
            **outcome,
            "replica_election_results": [r for r in rows if r["topic"] in OWN_TOPICS],
        }


OWN_TOPICS = ("elect-a", "nope")


def reassignments(s: Script) -> None:
    """AlterPartitionReassignments and ListPartitionReassignments on a cluster of one."""
    s.create("move-a", 2)
    for v in s.versions(45):
        for case, rows in {
            "where it is": [("move-a", 0, [1])],
            "to an unknown broker": [("move-a", 0, [9])],
            "to nobody": [("move-a", 0, [])],
            "twice to one broker": [("move-a", 0, [1, 1])],
            "to a negative broker": [("move-a", 0, [-1])],
            "cancel what is not": [("move-a", 0, None)],
            "unknown partition": [("move-a", 9, [1])],
            "unknown topic": [("nope", 0, [1])],
            "none": [],
        }.items():
            topics = [{"name": t, "partitions": [{"partition_index": p, "replicas": r}]} for t, p, r in rows]
            s.ask(45, v, {"timeout": 20000, "topics": topics}, case)
            if v >= 1:
                body = {"timeout": 20000, "topics": topics, "allow_replication_factor_change": False}
                s.ask(45, v, body, f"{case}, factor kept")
    for v in s.versions(46):
        for case, topics in {
            "all": None,
            "one": [{"name": "move-a", "partition_indexes": [0, 1]}],
            "unknown topic": [{"name": "nope", "partition_indexes": [0]}],
            "unknown partition": [{"name": "move-a", "partition_indexes": [7]}],
            "none": [],
        }.items():
            s.ask(46, v, {"timeout": 20000, "topics": topics}, case)
