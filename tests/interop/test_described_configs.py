"""Everything a node says of its configuration, key by key, beside Apache Kafka 4.3.1.

The side-by-side scripts describe nodes that were told little. Here both are told much: settings under several
synonyms, values that are kept elsewhere (config.providers), passwords, listeners' own keys, dynamic settings of one
broker and of all, and every key of a topic, a group and a client metrics subscription. Value, type, source,
synonyms, read-only, sensitive and whether there is documentation must agree for each.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.interop.apache import ApacheKafka
from tests.interop.ottla_node import OttlaNode
from tests.interop.process import ServerProcess, free_ports, running, wait_until
from tests.interop.scripts import configs
from tests.interop.scripts.compare import compare
from tests.interop.scripts.script import Script, api_ranges
from tests.interop.test_side_by_side import symbols_of

from ottla.config.broker import BrokerConfig
from ottla.config.describe import Described, describe_broker
from ottla.config.effective import check_protection
from ottla.config.errors import ConfigError
from ottla.config.settings import Settings

pytestmark = pytest.mark.interop

STATIC: dict[str, object] = {
    "log.retention.hours": 5,
    "log.retention.minutes": 200,
    "log.roll.hours": 20,
    "log.roll.jitter.ms": 1000,
    "log.flush.interval.ms": 60000,
    "log.cleanup.policy": "compact,delete",
    "log.message.timestamp.type": "LogAppendTime",
    "compression.type": "zstd",
    "compression.gzip.level": 3,
    "message.max.bytes": 2000000,
    "auto.create.topics.enable": "FALSE",
    "num.network.threads": "4",
    "min.insync.replicas": 1,
    "max.connections.per.ip.overrides": "127.0.0.1:500,127.0.0.2:7",
    "listener.name.plaintext.max.connections": 700,
    "listener.name.plaintext.num.network.threads": 2,
    "listener.name.plaintext.ssl.endpoint.identification.algorithm": "",
    "group.consumer.session.timeout.ms": 50000,
    "group.consumer.assignors": "range,uniform",
    "group.share.record.lock.duration.ms": 20000,
    "log.cleaner.min.cleanable.ratio": "0.25",
    "log.cleaner.io.max.bytes.per.second": "1.5E8",
    "quota.window.num": 12,
    "background.threads": 5,
    "broker.rack": "rack-1",
    "remote.log.manager.copier.thread.pool.size": 3,
    "log.dir.failure.timeout.ms": 20000,
}
# Ottla does not start with these, so its answer is asked of the configuration alone.
PROTECTING: dict[str, object] = {
    "ssl.keystore.password": "keystore-secret",
    "ssl.key.password": "key-secret",
    "ssl.truststore.password": "truststore-secret",
    "sasl.jaas.config": 'org.example.Login required username="a" password="b";',
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
    "sasl.kerberos.service.name": "${nobody:a:b}",
    "listener.name.plaintext.ssl.truststore.password": "listener-secret",
    "connections.max.reauth.ms": 10,
    "delegation.token.secret.key": "token-secret",
    "super.users": "User:admin",
    # What nobody knows is described, too.
    "offsets.topic.min.isr": 1,
    "zookeeper.connect": "localhost:2181",
}
TOPIC_VALUES = {
    "cleanup.policy": "compact",
    "compression.type": "gzip",
    "compression.gzip.level": "9",
    "compression.lz4.level": "3",
    "compression.zstd.level": "5",
    "delete.retention.ms": "1000",
    "file.delete.delay.ms": "1001",
    "flush.messages": "100",
    "flush.ms": "1002",
    "follower.replication.throttled.replicas": "0:1",
    "index.interval.bytes": "1003",
    "leader.replication.throttled.replicas": "*",
    "local.retention.bytes": "-2",
    "local.retention.ms": "-2",
    "max.compaction.lag.ms": "1000000",
    "max.message.bytes": "1004",
    "message.timestamp.after.max.ms": "1005",
    "message.timestamp.before.max.ms": "1006",
    "message.timestamp.type": "CreateTime",
    "min.cleanable.dirty.ratio": "0.75",
    "min.compaction.lag.ms": "1007",
    "min.insync.replicas": "1",
    "preallocate": "true",
    "remote.log.copy.disable": "false",
    "remote.log.delete.on.disable": "false",
    "retention.bytes": "1008",
    "retention.ms": "1009",
    "segment.bytes": "1048576",
    "segment.index.bytes": "1010",
    "segment.jitter.ms": "10",
    "segment.ms": "1011",
    "unclean.leader.election.enable": "true",
}
GROUP_VALUES = {
    "consumer.heartbeat.interval.ms": "6000",
    "consumer.session.timeout.ms": "55000",
    "share.auto.offset.reset": "earliest",
    "share.heartbeat.interval.ms": "7000",
    "share.isolation.level": "read_committed",
    "share.record.lock.duration.ms": "25000",
    "share.session.timeout.ms": "56000",
    "streams.heartbeat.interval.ms": "8000",
    "streams.num.standby.replicas": "1",
    "streams.session.timeout.ms": "57000",
}
METRICS_VALUES = {
    "interval.ms": "5000",
    "match": "client_id=app.*",
    "metrics": "org.apache.kafka.producer.,org.apache.kafka.consumer.",
}
DYNAMIC_BROKER = {
    "log.retention.ms": "7200000",
    "log.cleaner.threads": "2",
    "listener.name.plaintext.max.connections": "600",
    "max.connection.creation.rate": "5000",
    "leader.replication.throttled.rate": "1000000",
    "background.threads": "6",
}
DYNAMIC_DEFAULT = {
    "log.retention.ms": "8200000",
    "log.segment.bytes": "2000000",
    "message.max.bytes": "3000000",
    "follower.replication.throttled.rate": "2000000",
}


def from_elsewhere(where: Path) -> dict[str, object]:
    """Settings whose values are kept in files, in a directory and in a variable."""
    secrets = where / "secrets"
    secrets.mkdir(exist_ok=True)
    (secrets / "keys.properties").write_text("threads = 7\nrack=rack\\u002d9\n")
    (secrets / "zone").write_text("zone-1")
    package = "org.apache.kafka.common.config.provider"
    keys = f"${{file:{secrets}/keys.properties"
    return {
        "config.providers": "file,dir,env",
        "config.providers.file.class": f"{package}.FileConfigProvider",
        "config.providers.file.param.allowed.paths": secrets,
        "config.providers.dir.class": f"{package}.DirectoryConfigProvider",
        "config.providers.env.class": f"{package}.EnvVarConfigProvider",
        "config.providers.env.param.allowlist.pattern": "OTTLA_TEST_.*",
        "num.io.threads": f"{keys}:threads}}",
        "broker.rack": f"<{keys}:rack}}/${{dir:{secrets}:zone}}/${{env:OTTLA_TEST_ROW}}/${{env:HOME}}/{keys}:nope}}>",
        "remote.log.metadata.manager.class.path": f"${{file:{where}/not-allowed:key}}",
    }


def node(kind: str, where: Path) -> ServerProcess:
    """Either kind on the same settings."""
    port, controller_port = free_ports(2)
    settings = {**STATIC, **from_elsewhere(where.parent)}
    reference = ApacheKafka(where / "data", settings, port=port, controller_port=controller_port)
    if kind == "apache":
        return reference
    return OttlaNode(where / "data", reference.settings(), port=port, controller_port=controller_port)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Script, Script]]:
    where = tmp_path_factory.mktemp("described")
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setenv("OTTLA_TEST_ROW", "row 3")
    with running([node("apache", where / "apache"), node("ottla", where / "ottla")]) as (reference, subject):
        ranges = api_ranges(reference)
        scripts = [Script(server, ranges, symbols_of(server)) for server in (reference, subject)]
        yield scripts[0], scripts[1]
        for script in scripts:
            script.close()
    monkeypatch.undo()


def put(s: Script, kind: int, name: str, values: dict[str, str]) -> None:
    """Set values of a resource; both must take them."""
    rows = [(key, configs.SET, value) for key, value in values.items()]
    s.ask(44, 1, {"resources": [configs.change(kind, name, *rows)]}, f"set {kind} {name!r}")
    wait_until(lambda: values.keys() <= own_keys(s, kind, name), 20, f"{kind} {name!r} to have its settings")


def own_keys(s: Script, kind: int, name: str) -> set[str]:
    """The keys that a resource has settings of its own for."""
    row = {"resource_type": kind, "resource_name": name, "configuration_keys": None}
    answer = s.quiet(32, 4, {"resources": [row], "include_synonyms": True})
    own = {configs.TOPIC: (1,), configs.BROKER: (2, 3), configs.GROUP: (8,), configs.CLIENT_METRICS: (7,)}
    return {
        synonym["name"]
        for entry in answer["results"][0]["configs"]
        for synonym in entry["synonyms"] or [{"name": entry["name"], "source": entry["config_source"]}]
        if synonym["source"] in own[kind]
    }


def describe_all(s: Script, case: str) -> None:
    """Every resource, in the oldest and the newest version, with and without the long parts."""
    for v in (1, s.newest(32)):
        for kind, name in (
            (configs.BROKER, "1"),
            (configs.BROKER, ""),
            (configs.TOPIC, "described"),
            (configs.GROUP, "described"),
            (configs.CLIENT_METRICS, "described"),
        ):
            configs.describe(s, v, kind, name, f"{case}: {kind} {name!r}")
            bare = {"include_synonyms": False, "include_documentation": False}
            configs.describe(s, v, kind, name, f"{case}, bare: {kind} {name!r}", None, **bare)


def told_much(s: Script) -> dict[str, object]:
    """Describe all, change all, describe all; what was recorded."""
    s.create("described")
    describe_all(s, "before")
    put(s, configs.TOPIC, "described", TOPIC_VALUES)
    put(s, configs.GROUP, "described", GROUP_VALUES)
    put(s, configs.CLIENT_METRICS, "described", METRICS_VALUES)
    put(s, configs.BROKER, "1", DYNAMIC_BROKER)
    put(s, configs.BROKER, "", DYNAMIC_DEFAULT)
    describe_all(s, "after")
    return s.record


def test_every_key_is_described_alike(nodes: tuple[Script, Script]) -> None:
    reference, subject = (told_much(script) for script in nodes)
    broker = reference["broker describe_configs v4: after: 4 '1'"]
    assert isinstance(broker, dict)
    assert len(broker["results"][0]["configs"]) > 300
    found = compare(reference, subject)
    assert not found, f"{len(found)} differences in {len(reference)} answers\n" + "\n".join(found[:60])


def test_settings_of_security_are_described_alike(tmp_path: Path) -> None:
    reference = ApacheKafka(tmp_path / "data", PROTECTING)
    with reference:
        script = Script(reference, api_ranges(reference), symbols_of(reference))
        row = {"resource_type": configs.BROKER, "resource_name": "1", "configuration_keys": None}
        body = {"resources": [row], "include_synonyms": True, "include_documentation": True}
        answer = script.quiet(32, 4, body)
        script.close()
        file = tmp_path / "server.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in reference.settings().items()))
        ours = BrokerConfig.from_settings(Settings.read(file=file))
    theirs = {entry["name"]: _of_apache(entry) for entry in answer["results"][0]["configs"]}
    named = {*PROTECTING, *(name for name in theirs if name.startswith(("ssl.", "sasl.")))}
    assert {entry.name: _of_ottla(entry) for entry in describe_broker(ours) if entry.name in named} == {
        name: theirs[name] for name in named
    }
    with pytest.raises(ConfigError) as refused:
        check_protection(ours)
    # It is of one mechanism of a listener, and of no use alone.
    assert "sasl.jaas.config" in str(refused.value)


def _of_apache(entry: dict[str, Any]) -> tuple[object, ...]:
    synonyms = [(synonym["name"], synonym["value"], synonym["source"]) for synonym in entry["synonyms"]]
    kind = (
        entry["value"],
        entry["config_type"],
        entry["config_source"],
        entry["read_only"],
        entry["is_sensitive"],
    )
    return (*kind, synonyms, bool(entry["documentation"]))


def _of_ottla(entry: Described) -> tuple[object, ...]:
    synonyms = [(synonym.name, synonym.value, synonym.source) for synonym in entry.synonyms]
    kind = (entry.value, entry.type, entry.source, entry.read_only, entry.sensitive)
    return (*kind, synonyms, bool(entry.documentation))
