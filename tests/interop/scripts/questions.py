"""What is asked of every API when rights are judged: requests that reach the judge, and change as little as can be.

Every API has the specimens of tests/support/specimens.py, with all names `seen`, `hidden`, `ghost` or `void`
(scripts/rights.py). Those with more than one thing to judge, or whose specimen is refused before it is judged, have
questions of their own here: several resources in one request, some of which the rules are about and some not, by name
and by id. A question whose right answer would be a long story (a member that joins, a transaction that goes on) is
asked in a way that is refused right after the judge, if it is not refused by it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.interop.scripts import acls, configs
from tests.interop.scripts.batches import Batch
from tests.interop.scripts.entities import ZERO_ID, encode_request
from tests.interop.scripts.rights import (
    BOTH,
    DOOMED,
    GHOST,
    HIDDEN,
    KINDS,
    SEEN,
    VOID,
    WORDS,
    own_topic,
)
from tests.interop.scripts.streams_members import NOTHING_SAID, internal, sub, topology
from tests.interop.scripts.users import (
    BYTES,
    EXACT,
    MUCH,
    SHA_512,
    SPECIFIED,
    alteration,
    change,
    upsertion,
)

Body = dict[str, Any]
# Ids that nobody has.
UNKNOWN_IDS = {GHOST: uuid.UUID(int=77), VOID: uuid.UUID(int=78)}
# The first batch of every log, and so many bytes of it as one fetch shall bring.
FIRST = Batch().encode()
TIMEOUT_MS = 20_000
TRANSACTIONAL = 0x10
INCREMENTAL_ALTER_CONFIGS = 44
METADATA_TOPIC = "__cluster_metadata"
# Whose quota is so large that nobody is held up by it.
LIMITED = "limited"
DAY_MS = 86_400_000


@dataclass
class Asking:
    """Who asks what, the ids of the topics that are there, and the HMACs of the tokens by their owners."""

    api_key: int
    version: int
    newest: bool
    user: str
    ids: Mapping[str, uuid.UUID]
    hmacs: Mapping[str, bytes]

    def topics(self, key: str = "name", words: tuple[str, ...] = WORDS, **more: Any) -> list[Body]:
        """A row for every topic, with its name; its id too, for the versions that have one."""
        return [{key: word, **more} for word in words]

    def topics_or_ids(self, key: str = "name", **more: Any) -> list[Body]:
        """The same for APIs that have named topics once, and have their ids now."""
        return [{key: word, "topic_id": self.ids[word], **more} for word in WORDS]

    def by_id(self, **more: Any) -> list[Body]:
        return [{"topic_id": self.ids[word], **more} for word in WORDS]


Questions = Callable[[Asking], dict[str, Body]]
QUESTIONS: dict[int, Questions] = {}


def about(*api_keys: int) -> Callable[[Questions], Questions]:
    """These questions are asked of these APIs."""

    def register(questions: Questions) -> Questions:
        QUESTIONS.update(dict.fromkeys(api_keys, questions))
        return questions

    return register


def asked_of(asking: Asking) -> dict[str, bytes]:
    """The questions of an API, beside its specimens, as frames."""
    questions = QUESTIONS.get(asking.api_key)
    if questions is None:
        return {}
    return {
        case: encode_request(asking.api_key, asking.version, body) for case, body in questions(asking).items()
    }


# ---- records


@about(0)
def produce(a: Asking) -> dict[str, Body]:
    def body(batch: Batch, rows: list[Body], transactional_id: str | None = None) -> Body:
        data = [{**row, "partition_data": [{"index": 0, "records": batch.encode()}]} for row in rows]
        return {"transactional_id": transactional_id, "acks": -1, "timeout": TIMEOUT_MS, "topic_data": data}

    # Of a transaction that nobody has begun.
    marked = Batch(attributes=TRANSACTIONAL, producer_id=999, producer_epoch=0, base_sequence=0)
    rows = a.topics_or_ids()
    return {
        "all four": body(Batch(), rows),
        **{f"in a transaction of {word}": body(marked, rows[:2], word) for word in WORDS if a.version >= 3},
    }


@about(1)
def fetch(a: Asking) -> dict[str, Body]:
    row = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": len(FIRST), "current_leader_epoch": -1}
    rows = a.topics_or_ids("topic", partitions=[row])

    def body(replica: int, **more: Any) -> Body:
        state = {"replica_id": replica, "replica_epoch": -1}
        limits = {"max_wait": 0, "min_bytes": 0, "max_bytes": 1 << 20}
        return {"replica_id": replica, "replica_state": state, **limits, "topics": rows, **more}

    return {
        "a consumer": body(-1, session_epoch=-1),
        "a follower": body(1, session_epoch=-1),
        "a session": body(-1, session_epoch=0),
        "somebody's session": body(-1, session_id=4711, session_epoch=1),
    }


@about(2)
def list_offsets(a: Asking) -> dict[str, Body]:
    row = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -2}
    body = {"isolation_level": 0, "topics": a.topics(partitions=[row]), "timeout": 1000}
    return {"a consumer": {"replica_id": -1, **body}, "a follower": {"replica_id": 1, **body}}


@about(21)
def delete_records(a: Asking) -> dict[str, Body]:
    rows = a.topics(partitions=[{"partition_index": 0, "offset": 0}])
    return {"all four": {"topics": rows, "timeout": TIMEOUT_MS}}


@about(23)
def leader_epochs(a: Asking) -> dict[str, Body]:
    rows = a.topics("topic", partitions=[{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}])
    return {
        "a consumer": {"replica_id": -1, "topics": rows},
        "a follower": {"replica_id": 1, "topics": rows},
        "a debugger": {"replica_id": -2, "topics": rows},
    }


@about(61)
def describe_producers(a: Asking) -> dict[str, Body]:
    return {"all four": {"topics": a.topics(partition_indexes=[0])}}


# ---- topics and configurations


@about(3)
def metadata(a: Asking) -> dict[str, Body]:
    shown = {"include_topic_authorized_operations": True, "include_cluster_authorized_operations": True}
    asked: dict[str, Body] = {
        "all four": {"topics": a.topics(topic_id=ZERO_ID), "allow_auto_topic_creation": False, **shown},
        "all there are": {"topics": None if a.version else [], "allow_auto_topic_creation": False, **shown},
    }
    if a.version >= 12:
        asked["by id"] = {"topics": a.by_id(name=None), "allow_auto_topic_creation": False, **shown}
    return asked


@about(75)
def describe_topic_partitions(a: Asking) -> dict[str, Body]:
    def body(rows: list[Body], **more: Any) -> Body:
        return {"topics": rows, "response_partition_limit": 100, "cursor": None, **more}

    return {
        "all four": body(a.topics()),
        "all there are": body([]),
        "from where the last answer ended": body(
            a.topics(), cursor={"topic_name": HIDDEN, "partition_index": 0}
        ),
    }


@about(19)
def create_topics(a: Asking) -> dict[str, Body]:
    def body(rows: list[Body], only: bool) -> Body:
        return {"topics": rows, "timeout": TIMEOUT_MS, "validate_only": only}

    how = {"num_partitions": 1, "replication_factor": 1}
    asked = {
        "all four": body(a.topics(**how), True),
        "twice, and the metadata's": body(
            [{"name": name, **how} for name in (GHOST, VOID, VOID, METADATA_TOPIC)], True
        ),
    }
    if a.newest:
        asked["for real"] = body([{"name": own_topic(a.user), **how}], False)
    return asked


@about(20)
def delete_topics(a: Asking) -> dict[str, Body]:
    def body(names: tuple[str, ...]) -> Body:
        rows = [{"name": name, "topic_id": ZERO_ID} for name in names]
        return {"topic_names": list(names), "topics": rows, "timeout": TIMEOUT_MS}

    asked = {"those that are not": body((GHOST, VOID)), "those that are": body((DOOMED, f"{DOOMED}-too"))}
    if a.version >= 6:
        rows = [{"name": None, "topic_id": a.ids[word]} for word in (GHOST, VOID)]
        asked["by ids that are not"] = {"topics": rows, "timeout": TIMEOUT_MS}
        rows = [{"name": None, "topic_id": a.ids[word]} for word in (DOOMED, f"{DOOMED}-too")]
        asked["by ids that are"] = {"topics": rows, "timeout": TIMEOUT_MS}
    return asked


@about(37)
def create_partitions(a: Asking) -> dict[str, Body]:
    rows = a.topics(count=2, assignments=None)
    return {"all four": {"topics": rows, "timeout": TIMEOUT_MS, "validate_only": True}}


RESOURCES = [
    *((configs.TOPIC, word) for word in WORDS),
    *((configs.GROUP, word) for word in WORDS),
    (configs.BROKER, "1"),
    (configs.BROKER, ""),
    (configs.LOGGER, "1"),
    (configs.CLIENT_METRICS, SEEN),
    (99, SEEN),
]


@about(32)
def describe_configs(a: Asking) -> dict[str, Body]:
    # Few keys: what else is configured belongs to the machine.
    keys = ["retention.ms", "group.max.size", "consumer.session.timeout.ms", "metrics", "root"]
    rows = [
        {"resource_type": kind, "resource_name": name, "configuration_keys": keys} for kind, name in RESOURCES
    ]
    return {
        "of all kinds": {"resources": rows[:-1], "include_synonyms": False},
        "of no kind": {"resources": rows[-1:], "include_synonyms": False},
    }


@about(33, 44)
def alter_configs(a: Asking) -> dict[str, Body]:
    keys = {
        configs.TOPIC: ("retention.ms", "777"),
        configs.GROUP: ("consumer.session.timeout.ms", "50000"),
        configs.BROKER: ("log.cleaner.threads", "1"),
        configs.LOGGER: ("kafka.no.such.logger", "INFO"),
        configs.CLIENT_METRICS: ("interval.ms", "1000"),
        99: ("a.key", "1"),
    }
    how = {"config_operation": configs.SET} if a.api_key == INCREMENTAL_ALTER_CONFIGS else {}
    rows = [
        {
            "resource_type": kind,
            "resource_name": name,
            "configs": [{"name": keys[kind][0], "value": keys[kind][1], **how}],
        }
        for kind, name in RESOURCES
    ]
    return {
        "of topics and groups": {"resources": rows[:8], "validate_only": True},
        "of brokers": {"resources": rows[8:10], "validate_only": True},
        "of metrics": {"resources": rows[11:12], "validate_only": True},
        "of no kind": {"resources": rows[12:], "validate_only": True},
    }


# ---- groups


def _groups(make: Callable[[str], Body], *more: str) -> dict[str, Body]:
    return {f"group {name}": make(name) for name in (SEEN, HIDDEN, *more)}


@about(10)
def find_coordinator(a: Asking) -> dict[str, Body]:
    topic_id = "AAAAAAAAAAAAAAAAAAAAAQ"
    keys = {
        0: list(WORDS),
        1: list(WORDS),
        2: [f"{word}:{topic_id}:0" for word in (SEEN, HIDDEN)],
    }
    if a.version >= 4:
        return {f"type {kind}": {"key_type": kind, "coordinator_keys": each} for kind, each in keys.items()}
    return {
        f"type {kind} {key}": {"key_type": kind, "key": key}
        for kind, each in keys.items()
        if a.version or not kind
        for key in each
    }


@about(11)
def join_group(a: Asking) -> dict[str, Body]:
    def body(group: str) -> Body:
        protocols = [{"name": "range", "metadata": b""}]
        times = {"session_timeout": 1, "rebalance_timeout": 1}
        return {
            "group_id": group,
            **times,
            "member_id": "",
            "protocol_type": "consumer",
            "protocols": protocols,
        }

    return _groups(body, "")


@about(12)
def heartbeat(a: Asking) -> dict[str, Body]:
    return _groups(lambda group: {"group_id": group, "generation_id": 1, "member_id": "stranger"}, "")


@about(13)
def leave_group(a: Asking) -> dict[str, Body]:
    who = {"member_id": "stranger"}
    return _groups(lambda group: {"group_id": group, **who, "members": [who]}, "")


@about(14)
def sync_group(a: Asking) -> dict[str, Body]:
    what = {"protocol_type": "consumer", "protocol_name": "range", "assignments": []}
    return _groups(lambda group: {"group_id": group, "generation_id": 1, "member_id": "stranger", **what}, "")


@about(15)
def describe_groups(a: Asking) -> dict[str, Body]:
    return {"all four": {"groups": list(WORDS), "include_authorized_operations": True}}


@about(16)
def list_groups(a: Asking) -> dict[str, Body]:
    return {"all": {}}


@about(42)
def delete_groups(a: Asking) -> dict[str, Body]:
    return {"those that are not": {"groups_names": [GHOST, VOID]}}


@about(8)
def offset_commit(a: Asking) -> dict[str, Body]:
    row = {"partition_index": 0, "committed_offset": 5, "committed_leader_epoch": -1}
    nobody = {"generation_id_or_member_epoch": -1, "member_id": ""}
    return _groups(lambda group: {"group_id": group, **nobody, "topics": a.topics_or_ids(partitions=[row])})


@about(9)
def offset_fetch(a: Asking) -> dict[str, Body]:
    rows = a.topics_or_ids(partition_indexes=[0])
    if a.version >= 8:
        groups = [{"group_id": group, "topics": rows, "member_epoch": -1} for group in (SEEN, HIDDEN)]
        everything = [{"group_id": group, "topics": None, "member_epoch": -1} for group in (SEEN, HIDDEN)]
        return {"all four": {"groups": groups}, "all there are": {"groups": everything}}
    asked = {f"all four, {group}": {"group_id": group, "topics": rows} for group in (SEEN, HIDDEN)}
    if a.version >= 2:
        asked |= {f"all there are, {group}": {"group_id": group, "topics": None} for group in (SEEN, HIDDEN)}
    return asked


@about(47)
def offset_delete(a: Asking) -> dict[str, Body]:
    rows = a.topics(words=(HIDDEN, GHOST, VOID), partitions=[{"partition_index": 7}])
    rows += a.topics(words=(SEEN,), partitions=[{"partition_index": 7}])
    return _groups(lambda group: {"group_id": group, "topics": rows}, GHOST, VOID)


@about(68)
def consumer_group_heartbeat(a: Asking) -> dict[str, Body]:
    def body(group: str, **subscribed: Any) -> Body:
        # A member that is not known: that is found after everything has been judged.
        who = {"member_id": str(uuid.UUID(int=5)), "member_epoch": 3, "rebalance_timeout": 1000}
        nothing = {"instance_id": None, "rack_id": None, "server_assignor": None, "topic_partitions": None}
        other = {"subscribed_topic_names": None, "subscribed_topic_regex": None}
        return {"group_id": group, **who, **nothing, **other, **subscribed}

    asked = {
        f"{group}, {case}": body(group, subscribed_topic_names=names)
        for group in (f"{SEEN}-consumer", f"{HIDDEN}-consumer", f"{GHOST}-consumer")
        for case, names in (("no topics", None), ("seen ones", [SEEN, GHOST]), ("all", list(WORDS)))
    }
    if a.version >= 1:
        asked["a pattern"] = body(f"{SEEN}-consumer", subscribed_topic_regex="seen|hidden")
    return asked


@about(76)
def share_group_heartbeat(a: Asking) -> dict[str, Body]:
    def body(group: str, names: list[str] | None) -> Body:
        who = {"member_id": str(uuid.UUID(int=5)), "member_epoch": 3, "rack_id": None}
        return {"group_id": group, **who, "subscribed_topic_names": names}

    return {
        f"{group}, {case}": body(group, names)
        for group in (f"{SEEN}-share", f"{HIDDEN}-share", f"{GHOST}-share")
        for case, names in (("no topics", None), ("seen ones", [SEEN, GHOST]), ("all", list(WORDS)))
    }


@about(88)
def streams_group_heartbeat(a: Asking) -> dict[str, Body]:
    def body(group: str, **more: Any) -> Body:
        who = {"member_id": str(uuid.UUID(int=5)), "member_epoch": 3}
        return {**NOTHING_SAID, "group_id": group, **who, **more}

    joins = {"member_epoch": 0, "process_id": "p", "rebalance_timeout": 1000}
    tasks: Body = {"active_tasks": [], "standby_tasks": [], "warmup_tasks": []}

    def reads(*names: str, **more: Any) -> Body:
        return {**joins, **tasks, "topology": topology(sub("0", list(names), **more))}

    return {
        "no topology": body(f"{SEEN}-streams"),
        "hidden": body(f"{HIDDEN}-streams"),
        "hidden sources": body(f"{GHOST}-streams", **reads(SEEN, HIDDEN)),
        "hidden repartition topics": body(
            f"{GHOST}-streams", **reads(SEEN, repartition=[internal(HIDDEN, 1)], sinks=[VOID])
        ),
        "hidden changelogs": body(f"{GHOST}-streams", **reads(SEEN, changelogs=[internal(VOID)])),
    }


@about(69, 77, 89)
def describe_new_groups(a: Asking) -> dict[str, Body]:
    return {
        kind: {
            "group_ids": [f"{word}-{kind}" for word in (SEEN, HIDDEN, BOTH, GHOST, VOID)],
            "include_authorized_operations": True,
        }
        for kind in KINDS
    }


@about(78)
def share_fetch(a: Asking) -> dict[str, Body]:
    def body(group: str, epoch: int) -> Body:
        rows = a.by_id(partitions=[{"partition_index": 0, "acknowledgement_batches": []}])
        limits = {"max_wait": 0, "min_bytes": 0, "max_bytes": 1, "max_records": 1, "batch_size": 1}
        who = {"group_id": group, "member_id": str(uuid.UUID(int=6)), "share_session_epoch": epoch}
        return {**who, **limits, "topics": rows, "forgotten_topics_data": []}

    return {
        f"{word}, epoch {epoch}": body(f"{word}-share", epoch) for word in (SEEN, HIDDEN) for epoch in (3, -1)
    }


@about(79)
def share_acknowledge(a: Asking) -> dict[str, Body]:
    batches = [{"first_offset": 0, "last_offset": 0, "acknowledge_types": [1]}]
    rows = a.by_id(partitions=[{"partition_index": 0, "acknowledgement_batches": batches}])
    who = {"member_id": str(uuid.UUID(int=6)), "share_session_epoch": 3, "topics": rows}
    return {word: {"group_id": f"{word}-share", **who} for word in (SEEN, HIDDEN)}


@about(90)
def describe_share_group_offsets(a: Asking) -> dict[str, Body]:
    rows = a.topics("topic_name", partitions=[0])
    names = [f"{word}-share" for word in (SEEN, HIDDEN, BOTH)]
    return {
        "all four": {"groups": [{"group_id": name, "topics": rows} for name in names]},
        "all there are": {"groups": [{"group_id": name, "topics": None} for name in names]},
    }


@about(91)
def alter_share_group_offsets(a: Asking) -> dict[str, Body]:
    rows = a.topics("topic_name", partitions=[{"partition_index": 7, "start_offset": 0}])
    return {word: {"group_id": f"{word}-share", "topics": rows} for word in (SEEN, HIDDEN, GHOST)}


@about(92)
def delete_share_group_offsets(a: Asking) -> dict[str, Body]:
    rows = a.topics("topic_name", words=(GHOST, VOID))
    asked = {word: {"group_id": f"{word}-share", "topics": rows} for word in (SEEN, HIDDEN, GHOST)}
    # The group has members: nothing is deleted of it.
    asked[BOTH] = {"group_id": f"{BOTH}-share", "topics": a.topics("topic_name")}
    return asked


# ---- transactions

STRANGER = {"producer_id": 999, "producer_epoch": 0}


@about(22)
def init_producer_id(a: Asking) -> dict[str, Body]:
    new = {"transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1}
    asked = {f"transactional id {word}": {"transactional_id": word, **new} for word in (None, SEEN, HIDDEN)}
    if a.version >= 6:
        asked["two phases"] = {"transactional_id": SEEN, **new, "enable2_pc": True}
    return asked


@about(24)
def add_partitions(a: Asking) -> dict[str, Body]:
    rows = a.topics(partitions=[0])
    if a.version >= 4:
        return {
            f"verify only {only}": {
                "transactions": [
                    {"transactional_id": word, **STRANGER, "verify_only": only, "topics": rows}
                    for word in (SEEN, HIDDEN)
                ]
            }
            for only in (False, True)
        }
    old = {f"v3_and_below_{name}": value for name, value in STRANGER.items()}
    asked = {
        f"{word}, all four": {"v3_and_below_transactional_id": word, **old, "v3_and_below_topics": rows}
        for word in (SEEN, HIDDEN)
    }
    seen = a.topics(words=(SEEN,), partitions=[0])
    asked["seen ones"] = {"v3_and_below_transactional_id": SEEN, **old, "v3_and_below_topics": seen}
    return asked


@about(25)
def add_offsets(a: Asking) -> dict[str, Body]:
    return {
        f"{word}, group {group}": {"transactional_id": word, **STRANGER, "group_id": group}
        for word in (SEEN, HIDDEN)
        for group in (SEEN, HIDDEN)
    }


@about(26)
def end_txn(a: Asking) -> dict[str, Body]:
    return {word: {"transactional_id": word, **STRANGER, "committed": True} for word in (SEEN, HIDDEN)}


@about(28)
def txn_offset_commit(a: Asking) -> dict[str, Body]:
    row = {"partition_index": 0, "committed_offset": 5, "committed_leader_epoch": -1}
    who = {**STRANGER, "generation_id": -1, "member_id": ""}
    return {
        f"{word}, group {group}": {
            "transactional_id": word,
            "group_id": group,
            **who,
            "topics": a.topics(partitions=[row]),
        }
        for word in (SEEN, HIDDEN)
        for group in (SEEN, HIDDEN)
    }


@about(65)
def describe_transactions(a: Asking) -> dict[str, Body]:
    return {"all four": {"transactional_ids": list(WORDS)}}


@about(66)
def list_transactions(a: Asking) -> dict[str, Body]:
    return {"all": {"duration_filter": -1, "transactional_id_pattern": None}}


# ---- the cluster


@about(60)
def describe_cluster(a: Asking) -> dict[str, Body]:
    shown = {"include_cluster_authorized_operations": True}
    return {f"endpoint type {kind}": {**shown, "endpoint_type": kind} for kind in (1, 2)}


@about(35)
def describe_log_dirs(a: Asking) -> dict[str, Body]:
    return {"one that is not": {"topics": [{"topic": GHOST, "partitions": [0]}]}}


@about(43)
def elect_leaders(a: Asking) -> dict[str, Body]:
    rows = a.topics("topic", partitions=[0])
    return {"all four": {"election_type": 0, "topic_partitions": rows, "timeout": TIMEOUT_MS}}


@about(45)
def reassign(a: Asking) -> dict[str, Body]:
    rows = a.topics(partitions=[{"partition_index": 0, "replicas": None}])
    return {"cancelled": {"timeout": TIMEOUT_MS, "topics": rows}}


@about(46)
def list_reassignments(a: Asking) -> dict[str, Body]:
    rows = a.topics(partition_indexes=[0])
    return {
        "all four": {"timeout": TIMEOUT_MS, "topics": rows},
        "all": {"timeout": TIMEOUT_MS, "topics": None},
    }


@about(70)
def controller_registration(a: Asking) -> dict[str, Body]:
    listener = {"name": "CONTROLLER", "host": "127.0.0.1", "port": 1, "security_protocol": 0}
    who = {"controller_id": 55, "incarnation_id": uuid.UUID(int=77)}
    return {"without features": {**who, "listeners": [listener], "features": []}}


@about(55)
def describe_quorum(a: Asking) -> dict[str, Body]:
    return {"metadata": {"topics": [{"topic_name": METADATA_TOPIC, "partitions": [{"partition_index": 0}]}]}}


@about(74)
def list_config_resources(a: Asking) -> dict[str, Body]:
    return {"all": {"resource_types": []}, "groups": {"resource_types": [configs.GROUP] if a.version else []}}


# ---- who may do what, and how much


@about(29)
def describe_acls(a: Asking) -> dict[str, Body]:
    return {"somebody's": acls.matching(principal_filter="User:only-READ-TOPIC")}


@about(30)
def create_acls(a: Asking) -> dict[str, Body]:
    return {
        "one": {"creations": [acls.creation(principal="User:made")]},
        "a bad one": {
            "creations": [acls.creation(principal="made"), acls.creation("", principal="User:made")]
        },
    }


@about(31)
def delete_acls(a: Asking) -> dict[str, Body]:
    filters = [acls.matching(principal_filter=f"User:{name}") for name in ("never", "made")]
    return {"somebody's": {"filters": filters}}


@about(48)
def describe_quotas(a: Asking) -> dict[str, Body]:
    def of(match: int, user: str | None) -> list[Body]:
        return [{"entity_type": "user", "match_type": match, "match": user}]

    return {
        "somebody's": {"components": of(EXACT, LIMITED), "strict": True},
        "nobody's": {"components": of(EXACT, GHOST), "strict": True},
        "any user's": {"components": of(SPECIFIED, None), "strict": False},
        "all": {"components": [], "strict": False},
        "a bad one": {"components": of(EXACT, None), "strict": False},
    }


@about(49)
def alter_quotas(a: Asking) -> dict[str, Body]:
    good = change({"user": LIMITED}, (BYTES, MUCH))
    bad = change({"user": GHOST}, (BYTES, -1.0))
    return {
        "somebody's": {"entries": [good], "validate_only": True},
        # It is what it was.
        "for real": {"entries": [good], "validate_only": False},
        "good and bad": {"entries": [good, bad], "validate_only": True},
        "nobody's": {"entries": [], "validate_only": True},
    }


@about(50)
def describe_scram(a: Asking) -> dict[str, Body]:
    # Not of everybody: Apache never answers that to who may not ask.
    return {"somebody": {"users": [{"name": "scram-somebody"}, {"name": "scram-nobody"}]}}


@about(51)
def alter_scram(a: Asking) -> dict[str, Body]:
    return {"somebody": alteration(upsertions=[upsertion("scram-somebody", SHA_512, 4096)])}


@about(38)
def create_token(a: Asking) -> dict[str, Body]:
    mine: Body = {"renewers": [], "max_lifetime": -1}
    asked = {"for oneself": mine}
    if a.version >= 3:
        owner = {"owner_principal_type": "User"}
        asked |= {f"for {word}": {**mine, **owner, "owner_principal_name": word} for word in (SEEN, HIDDEN)}
    return asked


@about(39)
def renew_token(a: Asking) -> dict[str, Body]:
    return {
        whose: {"hmac": hmac, "renew_period": DAY_MS}
        for whose, hmac in {"nobody's": b"no such", "nothing": b"", **a.hmacs}.items()
    }


@about(40)
def expire_token(a: Asking) -> dict[str, Body]:
    return {
        whose: {"hmac": hmac, "expiry_time_period": DAY_MS}
        for whose, hmac in {"nobody's": b"no such", "nothing": b"", **a.hmacs}.items()
    }


@about(41)
def describe_tokens(a: Asking) -> dict[str, Body]:
    owners = [{"principal_type": "User", "principal_name": name} for name in (*a.hmacs, VOID)]
    one_each = {f"of {owner['principal_name']}": {"owners": [owner]} for owner in owners}
    return {"all": {"owners": None}, "nobody's": {"owners": []}, "of many": {"owners": owners}, **one_each}
