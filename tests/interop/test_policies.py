"""Policies of topics and configurations: Ottla asks a Python class what Apache Kafka asks a Java class.

Both classes write down every question and object to the same things. Answers and questions must be the same.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.interop.apache import ApacheKafka, fetch_jars
from tests.interop.ottla_node import OttlaNode
from tests.interop.process import ServerProcess, free_ports, running
from tests.interop.scripts import configs
from tests.interop.scripts.compare import compare
from tests.interop.scripts.script import Script, api_ranges
from tests.interop.scripts.topics import topic
from tests.interop.test_side_by_side import symbols_of

pytestmark = pytest.mark.interop

JAVA = Path(__file__).resolve().parent / "java"
SHARED: dict[str, object] = {"broker.rack": "rack-1", "num.partitions": 3, "log.retention.ms": -1}


class ApacheWithPolicies(ApacheKafka):
    """Apache Kafka that finds the policies beside its own classes."""

    classes: Path

    def format(self) -> None:
        """The tool that formats does not find the policies, and does not need them."""
        with_policies, self.overrides = self.overrides, dict(SHARED)
        super().format()
        self.overrides = with_policies

    def command(self) -> list[str]:
        command = super().command()
        command[command.index("-cp") + 1] += f":{self.classes}"
        return command


def nodes(where: Path) -> list[ServerProcess]:
    """Both, with their policies."""
    classes = where / "classes"
    sources = [str(JAVA / "Policies.java")]
    subprocess.run(
        ["javac", "-cp", f"{fetch_jars()}/*", "-d", str(classes), *sources], check=True, timeout=120
    )
    keys = ("create.topic.policy.class.name", "alter.config.policy.class.name")
    apache = ApacheWithPolicies(
        where / "apache", {**SHARED, keys[0]: "Policies$Create", keys[1]: "Policies$Alter"}
    )
    apache.classes = classes
    port, controller_port = free_ports(2)
    settings = ApacheKafka(where / "ottla", SHARED, port=port, controller_port=controller_port).settings()
    ours = {keys[0]: "policies.Create", keys[1]: "policies:Alter"}
    ottla = OttlaNode(
        where / "ottla",
        {**settings, **ours},
        port=port,
        controller_port=controller_port,
        env={"PYTHONPATH": str(JAVA)},
    )
    return [apache, ottla]


def create(s: Script) -> None:
    """Topics that please and displease, for good and for a try."""
    for only in (True, False):
        for name in ("fine", "refused", "broken", "config", "factor"):
            rows = [topic(f"p-{name}", 2, configs=[{"name": "retention.ms", "value": "1000"}])]
            s.ask(19, 7, {"topics": rows, "timeout": 20000, "validate_only": only}, f"{name}, {only}")
    rows = [topic("p-a"), topic("p-refused-too"), topic("p-b", -1, -1)]
    s.ask(19, 7, {"topics": rows, "timeout": 20000}, "some of several")
    given = [{"partition_index": n, "broker_ids": [1]} for n in (1, 0)]
    s.ask(19, 7, {"topics": [topic("p-given", -1, -1, assignments=given)], "timeout": 20000}, "assigned")
    bad = {"name": "retention.ms", "value": "soon"}
    s.ask(19, 7, {"topics": [topic("p-bad", 1, configs=[bad])], "timeout": 20000}, "a bad value first")
    s.ask(19, 7, {"topics": [topic("p-fine", 1)], "timeout": 20000}, "one that exists")
    refused = {"name": "leader.replication.throttled.replicas", "value": "refused"}
    s.ask(19, 7, {"topics": [topic("p-conf", 1, configs=[refused])], "timeout": 20000}, "refused value")


def alter(s: Script) -> None:
    """Changes that please and displease."""
    rack = "sasl.kerberos.kinit.cmd"
    for kind, name, rows in (
        (configs.TOPIC, "p-fine", [("retention.ms", configs.SET, "2000"), ("flush.ms", configs.SET, "9")]),
        (configs.TOPIC, "p-fine", [("retention.ms", configs.SET, "2000")]),
        (
            configs.TOPIC,
            "p-fine",
            [("retention.ms", configs.DELETE, None), ("segment.ms", configs.SET, "99")],
        ),
        (configs.TOPIC, "p-fine", [("cleanup.policy", configs.APPEND, "compact")]),
        (configs.TOPIC, "p-fine", []),
        (configs.TOPIC, "p-fine", [("retention.ms", configs.SET, "soon")]),
        (configs.TOPIC, "p-nope", [("retention.ms", configs.SET, "1")]),
        (configs.BROKER, "1", [("log.retention.ms", configs.SET, "7200000")]),
        (configs.BROKER, "1", [("log.retention.ms", configs.SET, "7200000")]),
        (configs.BROKER, "", [(rack, configs.SET, "refused by us")]),
        (configs.BROKER, "1", [("listener.name.plaintext.ssl.keystore.location", configs.SET, "broken")]),
        (configs.GROUP, "g", [("share.auto.offset.reset", configs.SET, "earliest")]),
        (configs.CLIENT_METRICS, "m", [("metrics", configs.SET, "refused.metric")]),
        (configs.CLIENT_METRICS, "m", [("metrics", configs.SET, "config.metric")]),
        (configs.CLIENT_METRICS, "m", [("metrics", configs.SET, "broken.metric")]),
        (configs.CLIENT_METRICS, "m", [("metrics", configs.SET, "factor.metric")]),
    ):
        for only in (True, False):
            body = {"resources": [configs.change(kind, name, *rows)], "validate_only": only}
            s.ask(44, 1, body, f"{kind} {name!r} {rows}, {only}")
    for values in ({"segment.ms": "98"}, {}, {"retention.ms": "5"}):
        rows = [{"name": key, "value": value} for key, value in values.items()]
        resource = {"resource_type": configs.TOPIC, "resource_name": "p-fine", "configs": rows}
        s.ask(33, 2, {"resources": [resource], "validate_only": False}, f"replace by {values}")


def test_policies_are_asked_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTTLA_TEST_POLICIES", str(tmp_path))
    with running(nodes(tmp_path)) as servers:
        ranges = api_ranges(servers[0])
        scripts = [Script(server, ranges, symbols_of(server)) for server in servers]
        for script in scripts:
            create(script)
            alter(script)
            script.close()
    found = compare(scripts[0].record, scripts[1].record)
    assert not found, f"{len(found)} differences\n" + "\n".join(found)
    theirs, ours = ((tmp_path / f"{kind}.asked").read_text().splitlines() for kind in ("apache", "ottla"))
    assert ours == theirs
    assert len([line for line in theirs if line.startswith("alter ")]) > 10
    assert theirs[-1].startswith("close")
