"""Scripts: describing and changing configurations of topics, brokers, groups and client metrics."""

from __future__ import annotations

from typing import Any

from tests.interop.process import wait_until
from tests.interop.scripts.script import Script

TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
DYNAMIC_TOPIC, DYNAMIC_BROKER, DYNAMIC_DEFAULT = 1, 2, 3
# What a machine or a run decides: the value is not compared, the rest of the entry is.
OWN_VALUES = {
    "log.dirs",
    "log.dir",
    "metadata.log.dir",
    "listeners",
    "advertised.listeners",
    "controller.quorum.bootstrap.servers",
    "controller.quorum.voters",
    "early.start.listeners",
}


def describe(
    s: Script, v: int, kind: int, name: str, case: str, keys: list[str] | None = None, **more: Any
) -> None:
    """DescribeConfigs with what the machine decides hidden."""
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
    body = {"resources": [resource], "include_synonyms": True, "include_documentation": True, **more}
    s.ask(32, v, body, case)
    label = next(reversed(s.record))
    s.record[label] = hide_own_values(s.record[label])


def hide_own_values(outcome: Any) -> Any:
    """Directories and addresses out of the described configs."""
    for result in outcome.get("results", []) if isinstance(outcome, dict) else []:
        for entry in result["configs"]:
            for row in [entry, *entry.get("synonyms", [])]:
                if row["name"] in OWN_VALUES and row["value"]:
                    row["value"] = "<own>"
    return outcome


def describe_configs(s: Script) -> None:
    """Every resource type, all keys and some, with and without synonyms and documentation."""
    s.create("conf-plain")
    s.create("conf-set", retention_ms=1000, cleanup_policy="compact", max_message_bytes=5000)
    for v in s.versions(32):
        describe(s, v, TOPIC, "conf-plain", "topic, all")
        describe(s, v, TOPIC, "conf-set", "topic with overrides")
        describe(s, v, TOPIC, "conf-set", "topic, two keys", ["retention.ms", "segment.bytes"])
        describe(s, v, TOPIC, "conf-set", "topic, unknown key", ["no.such.key"])
        describe(s, v, TOPIC, "conf-set", "topic, no keys", [])
        describe(s, v, TOPIC, "conf-set", "bare", None, include_synonyms=False, include_documentation=False)
        describe(s, v, TOPIC, "conf-nope", "unknown topic")
        describe(s, v, TOPIC, "", "no topic")
        describe(s, v, TOPIC, "a b", "illegal topic")
        describe(s, v, BROKER, "1", "broker, all")
        describe(s, v, BROKER, "1", "broker, some", ["log.retention.ms", "num.io.threads", "node.id"])
        describe(s, v, BROKER, "", "broker defaults")
        describe(s, v, BROKER, "99", "another broker")
        describe(s, v, BROKER, "one", "a broker that is no number")
        describe(s, v, CLIENT_METRICS, "sub-1", "client metrics")
        describe(s, v, CLIENT_METRICS, "", "client metrics without a name")
        describe(s, v, GROUP, "group-1", "group")
        describe(s, v, GROUP, "", "group without a name")
        describe(s, v, 77, "x", "unknown resource type")
        describe(s, v, 0, "x", "resource type zero")
        describe(s, v, LOGGER, "99", "loggers of another broker")
        describe(s, v, LOGGER, "", "loggers of nobody")
        describe(s, v, LOGGER, "1", "the root logger", ["root"])
        s.ask(32, v, {"resources": []}, "none")


def change(kind: int, name: str, *rows: tuple[str, int, str | None]) -> dict[str, Any]:
    """One resource of an IncrementalAlterConfigs request."""
    configs = [{"name": n, "config_operation": op, "value": value} for n, op, value in rows]
    return {"resource_type": kind, "resource_name": name, "configs": configs}


TOPIC_CHANGES: dict[str, list[tuple[str, int, str | None]]] = {
    "set": [("retention.ms", SET, "5000")],
    "set two": [("retention.ms", SET, "6000"), ("segment.ms", SET, "100000")],
    "append to a list": [("cleanup.policy", APPEND, "compact")],
    "append again": [("cleanup.policy", APPEND, "compact")],
    "subtract from a list": [("cleanup.policy", SUBTRACT, "delete")],
    "subtract the last": [("cleanup.policy", SUBTRACT, "compact")],
    "append to what is no list": [("retention.ms", APPEND, "1")],
    "delete": [("retention.ms", DELETE, None)],
    "delete what is not set": [("flush.ms", DELETE, None)],
    "delete with a value": [("segment.ms", DELETE, "100000")],
    "set null": [("retention.ms", SET, None)],
    "append null": [("cleanup.policy", APPEND, None)],
    "set twice": [("retention.ms", SET, "1"), ("retention.ms", SET, "2")],
    "unknown key": [("no.such.key", SET, "1")],
    "delete an unknown key": [("no.such.key", DELETE, None)],
    "bad value": [("retention.ms", SET, "soon")],
    "value out of range": [("min.insync.replicas", SET, "0")],
    "good and bad": [("flush.ms", SET, "1000"), ("retention.ms", SET, "soon")],
    "unknown operation": [("retention.ms", 9, "1")],
    "no changes": [],
    "empty value": [("retention.ms", SET, "")],
    "spaces": [("retention.ms", SET, " 7000 ")],
    "throttled replicas": [("leader.replication.throttled.replicas", SET, "0:1")],
    "bad throttled replicas": [("leader.replication.throttled.replicas", SET, "zero")],
    "local over whole retention": [("retention.ms", SET, "1000"), ("local.retention.ms", SET, "2000")],
    "remote storage": [("remote.storage.enable", SET, "true")],
}
BROKER_CHANGES: dict[str, list[tuple[str, int, str | None]]] = {
    "set": [("log.retention.ms", SET, "7200000")],
    "set threads": [("log.cleaner.threads", SET, "2")],
    "too many threads": [("log.cleaner.threads", SET, "9")],
    "read only": [("node.id", SET, "5")],
    "read only, deleted": [("auto.create.topics.enable", DELETE, None)],
    "unknown key": [("no.such.key", SET, "1")],
    "bad value": [("log.retention.ms", SET, "soon")],
    "message size": [("message.max.bytes", SET, "2000000")],
    "append to a list": [("log.cleanup.policy", APPEND, "compact")],
    "delete": [("log.retention.ms", DELETE, None)],
    "delete the rest": [("message.max.bytes", DELETE, None), ("log.cleaner.threads", DELETE, None)],
    "delete the list": [("log.cleanup.policy", DELETE, None)],
    "per broker only": [("listener.name.plaintext.ssl.keystore.location", SET, "/nowhere")],
}


def incremental_alter(s: Script) -> None:
    """IncrementalAlterConfigs on every resource type, with what DescribeConfigs shows after it."""
    for v in s.versions(44):
        name = s.create(f"alter-v{v}")
        for case, rows in TOPIC_CHANGES.items():
            for only in (True, False):
                body = {"resources": [change(TOPIC, name, *rows)], "validate_only": only}
                s.ask(44, v, body, f"topic: {case}" + (", validate only" if only else ""))
        _settle_topic(s, name)
        describe(s, 4, TOPIC, name, f"after the topic's changes v{v}")
        for broker in ("1", ""):
            for case, rows in BROKER_CHANGES.items():
                for only in (True, False):
                    body = {"resources": [change(BROKER, broker, *rows)], "validate_only": only}
                    s.ask(44, v, body, f"broker {broker!r}: {case}" + (", validate only" if only else ""))
                if case in ("set", "delete the list"):
                    _await_changes(s, {"log.retention.ms": "7200000"} if case == "set" else {}, broker)
                    describe(s, 4, BROKER, "1", f"after broker {broker!r}: {case} v{v}", CHANGED_KEYS)
        _odd_resources(s, v, name)


CHANGED_KEYS = ["log.retention.ms", "log.cleaner.threads", "message.max.bytes", "log.cleanup.policy"]


def _await_changes(s: Script, wanted: dict[str, str], broker: str) -> None:
    # A broker applies its own changes when it has read them from the metadata log, a moment after the answer.
    source = DYNAMIC_BROKER if broker else DYNAMIC_DEFAULT

    def applied() -> bool:
        resource = {"resource_type": BROKER, "resource_name": "1", "configuration_keys": CHANGED_KEYS}
        answer = s.quiet(32, 4, {"resources": [resource], "include_synonyms": True})
        rows = [row for entry in answer["results"][0]["configs"] for row in entry["synonyms"]]
        return {row["name"]: row["value"] for row in rows if row["source"] == source} == wanted

    wait_until(applied, 90, f"broker {broker!r} to apply {wanted}")


def _await_topic(s: Script, name: str, wanted: dict[str, str]) -> None:
    # It is answered when the controller has it, and shown when the broker has it too.
    wait_until(lambda: _set_on(s, name) == wanted, 90, f"topic {name} to have {wanted}")


def _settle_topic(s: Script, name: str) -> None:
    # As above, where nobody has counted what the changes come to: with the last one all are shown.
    last = ("flush.ms", SET, "4711")
    s.quiet(44, 1, {"resources": [change(TOPIC, name, last)], "validate_only": False})
    wait_until(lambda: _set_on(s, name).get("flush.ms") == "4711", 90, f"topic {name} to have {last}")


def _set_on(s: Script, name: str) -> dict[str, str]:
    resource = {"resource_type": TOPIC, "resource_name": name, "configuration_keys": None}
    answer = s.quiet(32, 4, {"resources": [resource], "include_synonyms": False})
    rows = answer["results"][0]["configs"]
    return {row["name"]: row["value"] for row in rows if row["config_source"] == DYNAMIC_TOPIC}


def _odd_resources(s: Script, v: int, topic: str) -> None:
    row = ("retention.ms", SET, "1")
    for case, resources in {
        "unknown topic": [change(TOPIC, "alter-nope", row)],
        "no topic": [change(TOPIC, "", row)],
        "illegal topic": [change(TOPIC, "a b", row)],
        "another broker": [change(BROKER, "99", ("log.retention.ms", SET, "1"))],
        "a broker that is no number": [change(BROKER, "one", ("log.retention.ms", SET, "1"))],
        "unknown resource type": [change(77, "x", row)],
        "a resource twice": [change(TOPIC, topic, row), change(TOPIC, topic, ("retention.ms", SET, "2"))],
        "two resources, one bad": [change(TOPIC, topic, row), change(TOPIC, "alter-nope", row)],
        "client metrics": [change(CLIENT_METRICS, "sub-1", ("interval.ms", SET, "1000"))],
        "client metrics, bad": [change(CLIENT_METRICS, "sub-1", ("interval.ms", SET, "1"))],
        "client metrics, unknown": [change(CLIENT_METRICS, "sub-1", ("no.such.key", SET, "1"))],
        "client metrics, match": [change(CLIENT_METRICS, "sub-1", ("match", SET, "client_id=(["))],
        "client metrics, deleted": [change(CLIENT_METRICS, "sub-1", ("interval.ms", DELETE, None))],
        "group": [change(GROUP, "group-1", ("consumer.session.timeout.ms", SET, "50000"))],
        "group, out of range": [change(GROUP, "group-1", ("consumer.session.timeout.ms", SET, "1"))],
        "group, unknown": [change(GROUP, "group-1", ("no.such.key", SET, "1"))],
        "group, deleted": [change(GROUP, "group-1", ("consumer.session.timeout.ms", DELETE, None))],
        "group without a name": [change(GROUP, "", ("consumer.session.timeout.ms", SET, "50000"))],
        "logger of another broker": [change(LOGGER, "99", ("root", SET, "INFO"))],
        "logger, bad level": [change(LOGGER, "1", ("root", SET, "LOUD"))],
        "logger, unknown": [change(LOGGER, "1", ("no.such.logger.at.all", SET, "INFO"))],
        "logger, append": [change(LOGGER, "1", ("root", APPEND, "INFO"))],
        "logger, root deleted": [change(LOGGER, "1", ("root", DELETE, None))],
        "logger, set": [change(LOGGER, "1", ("root", SET, "INFO"))],
        "none": [],
    }.items():
        s.ask(44, v, {"resources": resources, "validate_only": False}, case)


def legacy_alter(s: Script) -> None:
    """AlterConfigs, which replaces all configs of a resource.

    One resource twice in one request is left out: the reference never answers that.
    """

    def resource(kind: int, name: str, **configs: str | None) -> dict[str, Any]:
        rows = [{"name": k.replace("_", "."), "value": v} for k, v in configs.items()]
        return {"resource_type": kind, "resource_name": name, "configs": rows}

    for v in s.versions(33):
        name = s.create(f"legacy-v{v}", retention_ms=1)
        for case, resources in {
            "replace": [resource(TOPIC, name, segment_ms="100000")],
            "bad value": [resource(TOPIC, name, segment_ms="soon")],
            "unknown key": [resource(TOPIC, name, no_such_key="1")],
            "null value": [resource(TOPIC, name, segment_ms=None)],
            "clear": [resource(TOPIC, name)],
            "unknown topic": [resource(TOPIC, "legacy-nope", segment_ms="1")],
            "unknown type": [resource(77, "x", segment_ms="1")],
            "logger": [resource(LOGGER, "1", root="INFO")],
            "another broker": [resource(BROKER, "99", log_retention_ms="1")],
            "read only": [resource(BROKER, "1", node_id="7")],
            "none": [],
        }.items():
            for only in (True, False):
                s.ask(
                    33, v, {"resources": resources, "validate_only": only}, case + (", dry" if only else "")
                )
            if case in ("replace", "clear"):
                _await_topic(s, name, {"segment.ms": "100000"} if case == "replace" else {})
                describe(s, 4, TOPIC, name, f"after {case} v{v}", ["retention.ms", "segment.ms"])


def list_resources(s: Script) -> None:
    """ListConfigResources (KIP-1142): resources that have configs, by type."""
    s.create("list-conf", retention_ms=5)
    s.quiet(44, 1, {"resources": [change(CLIENT_METRICS, "list-sub", ("interval.ms", SET, "1000"))]})
    s.quiet(
        44, 1, {"resources": [change(GROUP, "list-group", ("consumer.session.timeout.ms", SET, "50000"))]}
    )

    def listed() -> bool:
        rows = s.quiet(74, 1, {"resource_types": [CLIENT_METRICS, GROUP]})["config_resources"]
        return {"list-sub", "list-group"} <= {row["resource_name"] for row in rows}

    wait_until(listed, 90, "the resources to be listed")
    for v in s.versions(74):
        s.ask(74, v, {}, "client metrics" if v == 0 else "all")
        if v >= 1:
            for kinds in ([CLIENT_METRICS], [GROUP], [BROKER], [LOGGER], [77], [0], [GROUP, 77]):
                s.ask(74, v, {"resource_types": kinds}, f"types {kinds}")
