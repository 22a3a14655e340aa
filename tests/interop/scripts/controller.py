"""Scripts: the controller's listener: its own APIs, and the shared ones asked there."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from tests.interop.scripts import acls, cluster, configs
from tests.interop.scripts.entities import ZERO_ID, decode_response, encode_request, frame, header_bytes
from tests.interop.scripts.garbage import fate
from tests.interop.scripts.masks import masked
from tests.interop.scripts.script import Script
from tests.interop.scripts.topics import topic

METADATA_TOPIC = "__cluster_metadata"
METADATA_ID = uuid.UUID(int=1)
STRANGER = uuid.UUID(int=77)


def on_controller(script: Callable[[Script], None]) -> Callable[[Script], None]:
    """Run a script on the other listener."""

    def run(s: Script) -> None:
        s.listener = "controller"
        try:
            script(s)
        finally:
            s.listener = "broker"

    run.__doc__ = script.__doc__
    return run


@on_controller
def shared(s: Script) -> None:
    """The APIs that both listeners serve."""
    cluster.api_versions(s)
    cluster.describe_cluster(s)
    cluster.describe_quorum(s)
    cluster.unregister_broker(s)
    for v in s.versions(19):
        s.ask(19, v, {"topics": [topic(f"ctl-{v}", 2)], "timeout": 20000}, "create")
        s.ask(19, v, {"topics": [topic(f"ctl-{v}", 2)], "timeout": 20000}, "create again")
    for v in s.versions(37):
        body = {"topics": [{"name": "ctl-7", "count": 3 + v, "assignments": None}], "timeout": 20000}
        s.ask(37, v, body, "grow")
    for v in s.versions(43):
        body = {
            "election_type": 0,
            "topic_partitions": [{"topic": "ctl-7", "partitions": [0]}],
            "timeout": 9000,
        }
        s.ask(43, v, body, "elect")
    for v in s.versions(45):
        rows = [{"name": "ctl-7", "partitions": [{"partition_index": 0, "replicas": [9]}]}]
        s.ask(45, v, {"timeout": 20000, "topics": rows}, "move to an unknown broker")
    for v in s.versions(46):
        s.ask(46, v, {"timeout": 20000, "topics": None}, "moves")
    for v in s.versions(44):
        row = configs.change(configs.TOPIC, "ctl-7", ("retention.ms", configs.SET, "777"))
        s.ask(44, v, {"resources": [row], "validate_only": False}, "set")
        bad = configs.change(configs.TOPIC, "ctl-7", ("retention.ms", configs.SET, "soon"))
        s.ask(44, v, {"resources": [bad], "validate_only": False}, "set badly")
    for v in s.versions(33):
        rows = [{"resource_type": 2, "resource_name": "ctl-7", "configs": []}]
        s.ask(33, v, {"resources": rows, "validate_only": False}, "clear")
    for v in s.versions(57):
        rows = [{"feature": "no.such.feature", "max_version_level": 1}]
        s.ask(57, v, {"timeout": 20000, "feature_updates": rows, "validate_only": False}, "unknown feature")
    for v in s.versions(20):
        names = [f"ctl-{v}" if v in range(2, 8) else "ctl-nope"]
        rows = [{"name": n, "topic_id": ZERO_ID} for n in names]
        s.ask(20, v, {"topic_names": names, "topics": rows, "timeout": 20000}, "delete")
        s.ask(20, v, {"topic_names": names, "topics": rows, "timeout": 20000}, "delete again")


@on_controller
def controller_configs(s: Script) -> None:
    """DescribeConfigs on the controller's listener."""
    for v in s.versions(32):
        configs.describe(s, v, configs.BROKER, "", "defaults")
        configs.describe(s, v, configs.BROKER, "99", "another node")
        configs.describe(s, v, configs.TOPIC, "ctl-nope", "unknown topic")


@on_controller
def controller_acls(s: Script) -> None:
    """The rules' APIs on the controller's listener."""
    acls.acls(s)


def raft_partition(**fields: Any) -> list[dict[str, Any]]:
    """The one partition of the quorum."""
    return [{"topic_name": METADATA_TOPIC, "partitions": [{"partition_index": 0, **fields}]}]


@on_controller
def raft(s: Script) -> None:
    """Votes, epochs and fetches of strangers to the quorum."""
    for v in s.versions(52):
        vote = {"replica_epoch": 0, "replica_id": 9, "last_offset_epoch": 0, "last_offset": 0}
        for case, body in {
            "an old epoch": {"topics": raft_partition(**vote)},
            "another cluster": {"cluster_id": "someone-else", "topics": raft_partition(**vote)},
            "another topic": {
                "topics": [{"topic_name": "nope", "partitions": [{"partition_index": 0, **vote}]}]
            },
            "no topics": {"topics": []},
            "a negative last offset": {"topics": raft_partition(**{**vote, "last_offset": -1})},
        }.items():
            s.ask(52, v, {"voter_id": 1, **body}, case)
    for v in s.versions(53):
        old = {"leader_id": 9, "leader_epoch": 0}
        s.ask(53, v, {"voter_id": 1, "topics": raft_partition(**old)}, "an old leader")
        s.ask(53, v, {"cluster_id": "someone-else", "topics": raft_partition(**old)}, "another cluster")
    for v in s.versions(54):
        old = {"leader_id": 9, "leader_epoch": 0}
        s.ask(54, v, {"topics": raft_partition(**old)}, "an old leader")
        s.ask(54, v, {"cluster_id": "someone-else", "topics": raft_partition(**old)}, "another cluster")
    _raft_fetch(s)


def _raft_fetch(s: Script) -> None:
    for v in s.versions(1):
        for case, (offset, epoch, cluster_id) in {
            "another cluster": (0, 0, "someone-else"),
            "an epoch ahead": (0, 9999, None),
            "an old epoch": (0, 0, None),
        }.items():
            row = {
                "partition": 0,
                "fetch_offset": offset,
                "current_leader_epoch": epoch,
                "last_fetched_epoch": 0,
            }
            topics = [{"topic": METADATA_TOPIC, "topic_id": METADATA_ID, "partitions": [row]}]
            body = {"cluster_id": cluster_id, "max_wait": 0, "topics": topics}
            answer = s.quiet(1, v, body)
            s.asked.add((s.listener, 1, v))
            s.note(f"controller fetch v{v}: {case}", _fetch_errors(answer))
    for v in s.versions(59):
        snapshot = {"end_offset": 999999, "epoch": 0}
        row = {"partition": 0, "current_leader_epoch": 9999, "snapshot_id": snapshot, "position": 0}
        topics = [{"name": METADATA_TOPIC, "partitions": [row]}]
        s.ask(59, v, {"topics": topics}, "an epoch ahead")
        s.ask(59, v, {"cluster_id": "someone-else", "topics": topics}, "another cluster")
        other = [{"name": "nope", "partitions": [row]}]
        s.ask(59, v, {"topics": other}, "another topic")
        # A request without a topic or without a partition is not asked: it ends Apache's controller.
        leads = s.quiet(
            55, 0, {"topics": [{"topic_name": METADATA_TOPIC, "partitions": [{"partition_index": 0}]}]}
        )
        epoch = leads["topics"][0]["partitions"][0]["leader_epoch"]
        for case, changes in {
            "no such snapshot": {"current_leader_epoch": epoch},
            "the bootstrap snapshot": {
                "current_leader_epoch": epoch,
                "snapshot_id": {"end_offset": 0, "epoch": 0},
            },
            "an old epoch": {"current_leader_epoch": 0},
            "another partition": {"current_leader_epoch": epoch, "partition": 1},
        }.items():
            s.ask(59, v, {"topics": [{"name": METADATA_TOPIC, "partitions": [{**row, **changes}]}]}, case)


def _fetch_errors(answer: dict[str, Any]) -> Any:
    rows = [p["error_code"] for t in answer.get("responses", []) for p in t["partitions"]]
    return {"error_code": answer.get("error_code"), "partitions": rows}


@on_controller
def brokers(s: Script) -> None:
    """Registrations, heartbeats and partition changes of brokers that are not what they say."""
    for v in s.versions(63):
        for case, broker, epoch in (
            ("unknown broker", 99, 5),
            ("a stale epoch", 1, 0),
            ("an epoch ahead", 1, 1 << 40),
        ):
            body = {"broker_id": broker, "broker_epoch": epoch, "current_metadata_offset": 1}
            s.ask(63, v, body, case)
    for v in s.versions(56):
        for case, broker, epoch in (("unknown broker", 99, 5), ("a stale epoch", 1, 0)):
            s.ask(56, v, {"broker_id": broker, "broker_epoch": epoch, "topics": []}, case)
    for v in s.versions(67):
        for case, broker, epoch in (("unknown broker", 99, 5), ("a stale epoch", 1, 0)):
            s.ask(67, v, {"broker_id": broker, "broker_epoch": epoch}, case)
    for v in s.versions(73):
        for case, broker, epoch in (("unknown broker", 99, 5), ("a stale epoch", 1, 0)):
            s.ask(73, v, {"broker_id": broker, "broker_epoch": epoch, "directories": []}, case)
    for v in s.versions(62):
        listener = {"name": "PLAINTEXT", "host": "127.0.0.1", "port": 1, "security_protocol": 0}
        body = {
            "broker_id": 55,
            "cluster_id": "someone-else",
            "incarnation_id": STRANGER,
            "listeners": [listener],
        }
        s.ask(62, v, body, "another cluster")
        mine = next(k for k, name in s.symbols.items() if name == "<cluster>")
        s.ask(62, v, {**body, "cluster_id": mine}, "no features")
        s.ask(62, v, {**body, "cluster_id": mine, "broker_id": 1}, "an id that is taken")
    for v in s.versions(70):
        listener = {"name": "CONTROLLER", "host": "127.0.0.1", "port": 1, "security_protocol": 0}
        body = {"controller_id": 55, "incarnation_id": STRANGER, "listeners": [listener], "features": []}
        s.ask(70, v, body, "a controller without features")


@on_controller
def voters(s: Script) -> None:
    """Changes of the voter set that a quorum of one must refuse."""
    change_voters(s)
    cluster_id = next(k for k, name in s.symbols.items() if name == "<cluster>")
    for v in s.versions(82):
        features = {"min_supported_version": 0, "max_supported_version": 1}
        endpoint = {"name": "CONTROLLER", "host": "127.0.0.1", "port": 1}
        body = {
            "cluster_id": cluster_id,
            "current_leader_epoch": 0,
            "voter_id": 9,
            "voter_directory_id": STRANGER,
            "listeners": [endpoint],
            "k_raft_version_feature": features,
        }
        s.ask(82, v, body, "update, an old epoch")
        s.ask(82, v, {**body, "cluster_id": "someone-else"}, "update, another cluster")


def change_voters(s: Script) -> None:
    """Adding and removing voters, asked of either listener: a broker passes it on."""
    cluster_id = next(k for k, name in s.symbols.items() if name == "<cluster>")
    for v in s.versions(80):
        endpoint = {"name": "CONTROLLER", "host": "127.0.0.1", "port": 1}
        body = {
            "cluster_id": "someone-else",
            "voter_id": 9,
            "voter_directory_id": STRANGER,
            "listeners": [endpoint],
        }
        s.ask(80, v, {**body, "timeout": 1000}, "add, another cluster")
    for v in s.versions(81):
        body = {"cluster_id": cluster_id, "voter_id": 9, "voter_directory_id": STRANGER}
        s.ask(81, v, body, "remove a stranger")
        s.ask(81, v, {**body, "cluster_id": "someone-else"}, "remove, another cluster")


# Version 0 of who a client is: type, name, whether a token made it known.
PRINCIPAL = b"\x00\x00\x05User\x0aANONYMOUS\x00\x00"
ADDRESS = b"\x7f\x00\x00\x01"


def inside(key: int, version: int, body: dict[str, Any]) -> bytes:
    """A request without its size, as an envelope carries it."""
    return encode_request(key, version, body, correlation_id=99)[4:]


def forward(
    s: Script,
    case: str,
    data: bytes,
    key: int = 19,
    version: int = 7,
    principal: bytes | None = PRINCIPAL,
    address: bytes = ADDRESS,
) -> None:
    """Ask with an envelope; the answer inside is compared too."""
    body = {"request_data": data, "request_principal": principal, "client_host_address": address}
    for v in s.versions(58):
        answer = s.ask(58, v, body, case)
        label = next(reversed(s.record))
        inner = answer.get("response_data")
        if inner:
            decoded = decode_response(key, version, inner, 99)
            s.record[label]["response_data"] = masked(key, decoded, s.symbols)


@on_controller
def envelope(s: Script) -> None:
    """Requests that a broker passes on for a client, good and bad ones, in good and bad envelopes."""
    for version in (2, 5, 7):
        data = inside(19, version, {"topics": [topic(f"env-{version}", 2)], "timeout": 20000})
        forward(s, f"create v{version}", data, 19, version)
        forward(s, f"create v{version} again", data, 19, version)
    for name, value in (("retention.ms", "777"), ("retention.ms", "soon"), ("no.such.key", "1")):
        row = configs.change(configs.TOPIC, "env-7", (name, configs.SET, value))
        data = inside(44, 1, {"resources": [row], "validate_only": False})
        forward(s, f"set {name}={value}", data, 44, 1)
    forward(s, "quorum", inside(55, 2, {"topics": raft_partition()}), 55, 2)
    forward(s, "moves", inside(46, 0, {"timeout": 20000, "topics": None}), 46, 0)
    good = inside(19, 7, {"topics": [topic("env-never", 1)], "timeout": 20000, "validate_only": True})
    forward(s, "IPv6", good, address=bytes(15) + b"\x01")
    for size in (0, 3, 5, 17):
        forward(s, f"an address of {size} bytes", good, address=bytes(size))
    for case, principal in {
        "no principal": None,
        "an empty principal": b"",
        "half a version": b"\x00",
        "a principal of another version": b"\x00\x09" + PRINCIPAL[2:],
        "a negative version": b"\xff\xff" + PRINCIPAL[2:],
        "half a principal": PRINCIPAL[:8],
        "a principal and more": PRINCIPAL + b"more",
        "a principal without a type": b"\x00\x00\x00\x0aANONYMOUS\x00\x00",
    }.items():
        forward(s, case, good, principal=principal)
    for case, data in {
        "nothing": b"",
        "half a header": good[:5],
        "an unknown key": b"\x01\xf4" + good[2:],
        "a negative key": b"\xff\xff" + good[2:],
        "an unknown version": good[:2] + b"\x00\x63" + good[4:],
        "a version that is gone": good[:2] + b"\x00\x00" + good[4:],
        "half a body": good[: len(good) // 2],
        "more than a body": good + b"more",
        "an envelope": inside(58, 0, {"request_data": good, "request_principal": PRINCIPAL}),
        "api versions": inside(18, 3, {}),
        "metadata": inside(3, 12, {"topics": None}),
        "a vote": inside(52, 0, {"topics": []}),
        "a heartbeat": inside(63, 0, {"broker_id": 1, "broker_epoch": 1}),
        "describe configs": inside(32, 4, {"resources": []}),
        "half a body and a bad principal": good[:20],
    }.items():
        bad = b"" if case.endswith("bad principal") else PRINCIPAL
        forward(s, f"inside: {case}", data, principal=bad)


@on_controller
def unknown(s: Script) -> None:
    """Requests that only a broker serves close the connection."""
    for key in (0, 2, 3, 21, 22, 23, 35, 61, 74, 75, 500, -1):
        flexible = key not in (500, -1)
        s.note(
            f"controller: key {key}", fate(s, frame(header_bytes(key, 3, 1, "x", flexible) + b"\x00" * 16))
        )
