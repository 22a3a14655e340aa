"""A node's configuration: gaps filled, listeners, the layers and what DescribeConfigs tells of them."""

from pathlib import Path

import pytest

from ottla.config.broker import BrokerConfig
from ottla.config.describe import (
    Described,
    describe_broker,
    describe_client_metrics,
    describe_cluster_default,
    describe_group,
)
from ottla.config.describe import describe_topic as topic_entries
from ottla.config.errors import ConfigError
from ottla.config.listeners import Listener
from ottla.config.settings import Settings
from ottla.config.types import Source, Type

SAMPLE = """
process.roles=broker,controller
node.id=7
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL
num.network.threads=3
log.dirs=/tmp/a,/tmp/b
log.retention.hours=24
"""


def _entry(entries: list[Described], name: str) -> Described:
    return next(entry for entry in entries if entry.name == name)


def _layers(entry: Described) -> list[tuple[str, str | None, Source]]:
    return [(synonym.name, synonym.value, synonym.source) for synonym in entry.synonyms]


# -- a cluster of one -------------------------------------------------------------------------------------------


def test_a_node_told_nothing_is_a_cluster_of_one_on_loopback() -> None:
    config = BrokerConfig.of({})
    assert config.node_id == 1
    assert config.process_roles == {"broker", "controller"}
    assert [str(listener) for listener in config.broker_listeners] == ["PLAINTEXT://127.0.0.1:9092"]
    assert [str(listener) for listener in config.controller_listeners] == ["CONTROLLER://127.0.0.1:9093"]
    assert config.controller_listener_is_implied


@pytest.mark.parametrize(
    "name",
    [
        "offsets.topic.replication.factor",
        "transaction.state.log.replication.factor",
        "transaction.state.log.min.isr",
        "share.coordinator.state.topic.replication.factor",
        "share.coordinator.state.topic.min.isr",
    ],
)
def test_its_internal_topics_have_one_replica_and_say_so(name: str) -> None:
    entry = _entry(describe_broker(BrokerConfig.of({})), name)
    assert (entry.value, entry.source, entry.read_only) == ("1", Source.STATIC_BROKER_CONFIG, True)


@pytest.mark.parametrize("roles", ["broker", "broker,controller"])
def test_in_a_cluster_they_have_as_many_as_with_kafka(roles: str) -> None:
    cluster = {
        "node.id": 1,
        "process.roles": roles,
        "listeners": ",".join(
            ["PLAINTEXT://a:9092", *(["CONTROLLER://a:9093"] if "controller" in roles else [])]
        ),
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": "1@a:9093,2@b:9093,3@c:9093" if "controller" in roles else "2@b:9093",
    }
    config = BrokerConfig.of(cluster)
    assert config["offsets.topic.replication.factor"] == 3
    assert (config["transaction.state.log.replication.factor"], config["transaction.state.log.min.isr"]) == (
        3,
        2,
    )
    share = "share.coordinator.state.topic"
    assert (config[f"{share}.replication.factor"], config[f"{share}.min.isr"]) == (3, 2)
    asked_for = {**cluster, "offsets.topic.replication.factor": 1}
    assert BrokerConfig.of(asked_for)["offsets.topic.replication.factor"] == 1


@pytest.mark.parametrize(
    "quorum",
    [
        {"controller.quorum.voters": "1@127.0.0.1:9093"},
        {"controller.quorum.bootstrap.servers": "127.0.0.1:9093"},
        {"controller.quorum.bootstrap.servers": "elsewhere:9093"},
    ],
)
def test_who_says_where_the_quorum_is_has_more_nodes_in_mind(quorum: dict[str, object]) -> None:
    config = BrokerConfig.of(quorum)
    assert config["group.initial.rebalance.delay.ms"] == 3000


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, True),
        ({"controller.quorum.voters": "1@a:9093"}, True),
        ({"controller.quorum.voters": "1@a:9093,2@b:9093"}, False),
        ({"controller.quorum.bootstrap.servers": "localhost:9093"}, True),
        ({"controller.quorum.bootstrap.servers": "localhost:9094"}, False),
        ({"controller.quorum.bootstrap.servers": "elsewhere:9093"}, False),
        ({"controller.quorum.bootstrap.servers": "localhost:9093,elsewhere:9093"}, False),
        (
            {
                "controller.quorum.bootstrap.servers": "here:9093",
                "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
                "advertised.listeners": "PLAINTEXT://here:9092,CONTROLLER://here:9093",
            },
            True,
        ),
        (
            {
                "process.roles": "broker",
                "node.id": 4,
                "controller.listener.names": "CONTROLLER",
                "controller.quorum.bootstrap.servers": "localhost:9093",
            },
            False,
        ),
    ],
)
def test_whether_a_node_is_a_quorum_by_itself(settings: dict[str, object], expected: bool) -> None:
    assert BrokerConfig.of(settings).is_quorum_by_itself is expected


def test_what_the_user_says_of_replicas_stands() -> None:
    assert BrokerConfig.of({"offsets.topic.replication.factor": 2})["offsets.topic.replication.factor"] == 2


def test_the_node_id_of_a_formatted_directory_is_taken() -> None:
    assert BrokerConfig.of({}, directory_node_id=42).node_id == 42
    assert BrokerConfig.of({"broker.id": 3}).node_id == 3


@pytest.mark.parametrize(
    ("listeners", "controller"),
    [
        ("PLAINTEXT://:19092", "CONTROLLER://127.0.0.1:19093"),
        ("PLAINTEXT://127.0.0.1:0", "CONTROLLER://127.0.0.1:0"),
        ("PLAINTEXT://:9092,SSL://:9093", "CONTROLLER://127.0.0.1:9094"),
        ("PLAINTEXT://:65535", "CONTROLLER://127.0.0.1:0"),
    ],
)
def test_a_controller_listener_is_put_beside_the_brokers(listeners: str, controller: str) -> None:
    config = BrokerConfig.of({"listeners": listeners})
    assert [str(listener) for listener in config.controller_listeners] == [controller]


def test_a_lone_secured_listener_serves_brokers_too() -> None:
    config = BrokerConfig.of({"listeners": "SSL://:9092"})
    assert config.inter_broker_listener_name == "SSL"
    assert config.controller_listeners[0].security_protocol == "PLAINTEXT"


def test_kafkas_own_sample_is_taken_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text(SAMPLE)
    config = BrokerConfig.from_settings(Settings.read(file=file))
    assert config.node_id == 7
    assert config.log_dirs == ("/tmp/a", "/tmp/b")
    assert config.metadata_log_dir == "/tmp/a"
    assert config.log_retention_ms == 24 * 3_600_000
    assert not config.controller_listener_is_implied
    assert [str(listener) for listener in config.advertised_broker_listeners] == [
        "PLAINTEXT://localhost:9092"
    ]
    assert [str(entry) for entry in config.advertised_controller_listeners] == ["CONTROLLER://localhost:9093"]


# -- listeners --------------------------------------------------------------------------------------------------


def test_listeners_are_parsed_with_their_protocols() -> None:
    config = BrokerConfig.of(
        {
            "listeners": "internal://[::1]:9092,EXTERNAL://0.0.0.0:9094",
            "listener.security.protocol.map": "INTERNAL:PLAINTEXT,EXTERNAL:SASL_SSL,CONTROLLER:SSL",
            "inter.broker.listener.name": "internal",
        }
    )
    assert config.broker_listeners == (
        Listener("INTERNAL", "PLAINTEXT", "::1", 9092),
        Listener("EXTERNAL", "SASL_SSL", "0.0.0.0", 9094),
    )
    assert str(config.broker_listeners[0]) == "INTERNAL://[::1]:9092"
    assert config.controller_listeners[0].security_protocol == "SSL"
    assert config.inter_broker_listener_name == "INTERNAL"


def test_one_port_may_be_shared_by_the_two_internet_protocols() -> None:
    config = BrokerConfig.of(
        {
            "listeners": "PLAINTEXT://127.0.0.1:9092,V6://[::1]:9092",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,V6:PLAINTEXT",
        }
    )
    assert len(config.broker_listeners) == 2


def test_a_listener_may_have_settings_of_its_own() -> None:
    config = BrokerConfig.of({"max.connections": 100, "listener.name.plaintext.max.connections": 7})
    assert config.for_listener("PLAINTEXT", "max.connections") == 7
    assert config.for_listener("CONTROLLER", "max.connections") == 100


def test_a_controller_on_every_interface_is_where_the_voters_say() -> None:
    settings = {
        "process.roles": "controller",
        "node.id": 1,
        "listeners": "CONTROLLER://:9093",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": "1@[::1]:19093,2@other:9093",
    }
    config = BrokerConfig.of(settings)
    assert config.quorum_voters == {1: ("::1", 19093), 2: ("other", 9093)}
    assert [str(e) for e in config.advertised_controller_listeners] == ["CONTROLLER://[::1]:19093"]
    advertised = BrokerConfig.of(settings | {"advertised.listeners": "CONTROLLER://me:9093"})
    assert [str(e) for e in advertised.advertised_controller_listeners] == ["CONTROLLER://me:9093"]
    bound = BrokerConfig.of(settings | {"listeners": "CONTROLLER://10.0.0.1:9093"})
    assert [str(e) for e in bound.advertised_controller_listeners] == ["CONTROLLER://10.0.0.1:9093"]


def test_where_controllers_may_be_asked() -> None:
    config = BrokerConfig.of({"controller.quorum.bootstrap.servers": "a:1,[::1]:2,CONTROLLER://b:3"})
    assert config.quorum_bootstrap_servers == (("a", 1), ("::1", 2), ("b", 3))


# -- rules between keys -----------------------------------------------------------------------------------------

BROKER: dict[str, object] = {
    "process.roles": "broker",
    "node.id": 4,
    "listeners": "PLAINTEXT://:9092",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "controller.quorum.voters": "1@a:9093,2@b:9093,3@c:9093",
}
CONTROLLER = BROKER | {"process.roles": "controller", "node.id": 1, "listeners": "CONTROLLER://:9093"}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"listeners": "PLAINTEXT:9092"}, "expected a list of NAME://host:port"),
        ({"listeners": "PLAINTEXT://:99999"}, "expected a port from 0 to 65535"),
        ({"listeners": "FOO://:9092"}, "expected FOO in listener.security.protocol.map too"),
        ({"listeners": "PLAINTEXT://a:1,PLAINTEXT://b:2"}, "a different name for each listener"),
        ({"listeners": "PLAINTEXT://a:9092,SSL://b:9092"}, "9092 is there 2 times"),
        (
            {"listener.security.protocol.map": "A:TLS"},
            "a protocol among PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL",
        ),
        ({"listener.security.protocol.map": "A"}, "a list of NAME:PROTOCOL"),
        ({"advertised.listeners": "PLAINTEXT://0.0.0.0:9092"}, "nonroutable meta-address 0.0.0.0"),
        ({"advertised.listeners": "SSL://h:9092"}, "must be a listener name defined in advertised.listeners"),
        (
            {"advertised.listeners": "PLAINTEXT://h:1,SSL://h:2"},
            "equal to or a subset of the ones defined in listeners",
        ),
        ({"inter.broker.listener.name": "NOPE"}, "not found in listener.security.protocol.map"),
        (
            {"inter.broker.listener.name": "PLAINTEXT", "security.inter.broker.protocol": "PLAINTEXT"},
            "Only one of inter.broker.listener.name and security.inter.broker.protocol",
        ),
        ({"node.id": 1, "broker.id": 2}, "You must set `node.id` to the same value as `broker.id`."),
        ({"process.roles": "broker"}, 'Missing required configuration "controller.listener.names"'),
        ({"process.roles": "observer"}, "expected a list of broker, controller"),
        ({"controller.quorum.voters": "9@h:9093"}, "the node id 1 must be included in the set of voters"),
        ({"controller.quorum.voters": "1@0.0.0.0:9093"}, "nobody can connect to voter 1 at 0.0.0.0"),
        (BROKER | {"node.id": 1}, "the node id 1 must not be included in the set of voters"),
        (
            BROKER | {"listeners": "CONTROLLER://:9093"},
            "must not contain a value appearing in the 'listeners'",
        ),
        (BROKER | {"controller.quorum.auto.join.enable": True}, "only supported when process.roles contains"),
        (
            BROKER | {"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT"},
            "Controller listener with name CONTROLLER defined in controller.listener.names not found",
        ),
        (
            BROKER | {"controller.quorum.voters": ""},
            "either controller.quorum.bootstrap.servers must contain the set of bootstrap controllers",
        ),
        (
            CONTROLLER | {"listeners": "CONTROLLER://:9093,PLAINTEXT://:9092"},
            "must only contain KRaft controller listeners",
        ),
        (
            CONTROLLER | {"listeners": "PLAINTEXT://:9092"},
            "must only contain values appearing in the 'listeners'",
        ),
        (
            CONTROLLER | {"inter.broker.listener.name": "CONTROLLER"},
            "must not contain an explicitly set inter.broker.listener.name",
        ),
        (CONTROLLER | {"node.id": 7}, "the node id 7 must be included in the set of voters"),
        (
            CONTROLLER | {"advertised.listeners": "CONTROLLER://0.0.0.0:9093"},
            "nonroutable meta-address 0.0.0.0",
        ),
        ({"log.retention.ms": 0}, "log.retention.ms must be unlimited (-1) or"),
        ({"log.roll.ms": 0}, "log.roll.ms must be greater than or equal to 1"),
        ({"log.cleaner.dedupe.buffer.size": 1000}, "must be at least 1MB per cleaner thread"),
        ({"log.cleaner.threads": 0}, "must be at least 1MB per cleaner thread"),
        ({"queued.max.request.bytes": 5}, "larger or equal to socket.request.max.bytes"),
        ({"max.connections.per.ip": 0}, "can be set to zero only if"),
        ({"max.connections.per.ip.overrides": "host"}, "expected a list of address:limit"),
        ({"connections.max.idle.ms": 50}, "should always be less than connections.max.idle.ms=50"),
        ({"replica.fetch.wait.max.ms": 40000}, "replica.socket.timeout.ms should always be at least"),
        ({"group.coordinator.rebalance.protocols": "consumer"}, "Disabling the 'classic' protocol"),
        ({"early.start.listeners": "NOPE"}, "early.start.listeners contains listener NOPE"),
        ({"cordoned.log.dirs": "/nowhere"}, "Missing entries : /nowhere"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        BrokerConfig.of(settings)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("settings", [BROKER, CONTROLLER])
def test_a_node_may_have_one_role(settings: dict[str, object]) -> None:
    config = BrokerConfig.of(settings)
    assert (config.is_broker, config.is_controller) == (settings is BROKER, settings is CONTROLLER)
    # A controller that is told to is no broker's: what only brokers keep to does not concern it.
    assert BrokerConfig.of(CONTROLLER | {"cordoned.log.dirs": "/nowhere"})


def test_a_refusal_says_where_the_key_was_set() -> None:
    with pytest.raises(ConfigError, match=r"\(log.retention.ms comes from -X\)"):
        BrokerConfig.from_settings(Settings.read(overrides=["log.retention.ms=0"]))


@pytest.mark.parametrize(
    ("settings", "millis"),
    [
        ({}, 604_800_000),
        ({"log.retention.hours": 1}, 3_600_000),
        ({"log.retention.hours": 1, "log.retention.minutes": 2}, 120_000),
        ({"log.retention.hours": 1, "log.retention.minutes": 2, "log.retention.ms": 3}, 3),
        ({"log.retention.minutes": -1}, -1),
    ],
)
def test_the_finest_unit_of_retention_wins(settings: dict[str, object], millis: int) -> None:
    assert BrokerConfig.of(settings).log_retention_ms == millis
    assert BrokerConfig.of(settings).topic_values({})["retention.ms"] == millis


# -- topics -----------------------------------------------------------------------------------------------------


def test_a_topic_takes_the_brokers_values_and_then_its_own() -> None:
    config = BrokerConfig.of({"log.segment.bytes": 2 << 20, "log.roll.hours": 2, "message.max.bytes": 5})
    values = config.topic_values({"cleanup.policy": "compact", "retention.ms": "9"})
    assert values["segment.bytes"] == 2 << 20
    assert values["segment.ms"] == 7_200_000
    assert values["max.message.bytes"] == 5
    assert values["cleanup.policy"] == ("compact",)
    assert values["retention.ms"] == 9
    assert values["flush.ms"] == 2**63 - 1


def test_an_unknown_key_of_a_topic_is_refused() -> None:
    with pytest.raises(ConfigError, match="Unknown topic config name: retention"):
        BrokerConfig.of({}).topic_values({"retention": "9"})


def test_the_internal_segment_size_stands_in_for_the_public_one() -> None:
    assert BrokerConfig.of({}).topic_values({"internal.segment.bytes": "100"})["segment.bytes"] == 100


# -- layers and descriptions ------------------------------------------------------------------------------------


def test_layers_are_listed_in_order_of_precedence() -> None:
    config = BrokerConfig.of({"log.segment.bytes": 3 << 20}).with_dynamic(
        {"log.segment.bytes": "4194304"}, {"log.segment.bytes": "5242880"}
    )
    assert config["log.segment.bytes"] == 5 << 20
    entry = _entry(describe_broker(config, ["log.segment.bytes"]), "log.segment.bytes")
    assert _layers(entry) == [
        ("log.segment.bytes", "5242880", Source.DYNAMIC_BROKER_CONFIG),
        ("log.segment.bytes", "4194304", Source.DYNAMIC_DEFAULT_BROKER_CONFIG),
        ("log.segment.bytes", "3145728", Source.STATIC_BROKER_CONFIG),
        ("log.segment.bytes", "1073741824", Source.DEFAULT_CONFIG),
    ]
    assert (entry.value, entry.source, entry.read_only) == ("5242880", Source.DYNAMIC_BROKER_CONFIG, False)
    assert (entry.type, entry.sensitive) == (Type.INT, False)


def test_a_topic_shows_its_own_value_before_the_brokers() -> None:
    config = BrokerConfig.of({}).with_dynamic({"log.segment.bytes": "4194304"}, {})
    entry = _entry(topic_entries(config, {"segment.bytes": " 2097152 "}), "segment.bytes")
    assert _layers(entry) == [
        ("segment.bytes", "2097152", Source.TOPIC_CONFIG),
        ("log.segment.bytes", "4194304", Source.DYNAMIC_DEFAULT_BROKER_CONFIG),
        ("log.segment.bytes", "1073741824", Source.DEFAULT_CONFIG),
    ]
    assert entry.value == "2097152"


def test_synonyms_in_other_units_are_listed_only_after_the_key_itself() -> None:
    """Kafka drops what stands before the key's own name: hours alone leave retention.ms without synonyms."""
    config = BrokerConfig.of({"log.retention.hours": 24})
    entry = _entry(topic_entries(config, {}), "retention.ms")
    assert (entry.value, entry.source, entry.synonyms) == ("86400000", Source.DEFAULT_CONFIG, [])
    entry = _entry(topic_entries(config.with_dynamic({}, {"log.retention.ms": "5"}), {}), "retention.ms")
    assert _layers(entry) == [
        ("log.retention.ms", "5", Source.DYNAMIC_BROKER_CONFIG),
        ("log.retention.hours", "24", Source.STATIC_BROKER_CONFIG),
        ("log.retention.hours", "168", Source.DEFAULT_CONFIG),
    ]


def test_a_dynamic_setting_hides_its_synonyms_below() -> None:
    config = BrokerConfig.of({"log.retention.minutes": 5}).with_dynamic({"log.retention.ms": "7"}, {})
    assert config.log_retention_ms == 7
    assert config["log.retention.minutes"] is None


def test_passwords_are_never_shown() -> None:
    config = BrokerConfig.of(
        {"ssl.key.password": "geheim", "listener.name.plaintext.ssl.key.password": "geheim"}
    )
    for name in ("ssl.key.password", "listener.name.plaintext.ssl.key.password"):
        entry = _entry(describe_broker(config), name)
        assert entry.sensitive
        assert entry.value is None
        assert {synonym.value for synonym in entry.synonyms} == {None}
    assert "geheim" not in repr(describe_broker(config))


def test_settings_of_plugins_are_shown_without_value_or_type() -> None:
    entry = _entry(describe_broker(BrokerConfig.of({"super.users": "User:a"})), "super.users")
    assert (entry.value, entry.sensitive, entry.type, entry.read_only) == (None, True, Type.UNKNOWN, True)
    assert entry.documentation is None


def test_internal_keys_are_shown_only_when_set() -> None:
    shown = [entry.name for entry in describe_broker(BrokerConfig.of({}))]
    assert len(shown) == 340
    assert "log.initial.task.delay.ms" not in shown
    told = BrokerConfig.of({"log.initial.task.delay.ms": 1})
    (entry,) = describe_broker(told, ["log.initial.task.delay.ms"])
    assert entry.value == "1"


def test_names_choose_entries_and_no_names_choose_all() -> None:
    config = BrokerConfig.of({})
    assert [entry.name for entry in describe_broker(config, ["node.id", "no.such.key"])] == ["node.id"]
    assert len(describe_broker(config, [])) == 340


def test_the_default_of_all_brokers_shows_only_what_was_set_there() -> None:
    config = BrokerConfig.of({"log.segment.bytes": 3 << 20}).with_dynamic(
        {"log.segment.bytes": "4194304"}, {}
    )
    entries = describe_cluster_default(config)
    assert [(entry.name, entry.value) for entry in entries] == [("log.segment.bytes", "4194304")]
    assert _layers(entries[0]) == [("log.segment.bytes", "4194304", Source.DYNAMIC_DEFAULT_BROKER_CONFIG)]


def test_dynamic_settings_no_broker_can_apply_are_left_out() -> None:
    config = BrokerConfig.of({}).with_dynamic(
        {"log.segment.bytes": "1", "node.id": "5", "listeners": "PLAINTEXT://:1", "log.retention.ms": "6"},
        {"ssl.key.password": "x", "max.connections": "8"},
    )
    assert config.dynamic_default == {"log.retention.ms": "6"}
    assert config.dynamic_broker == {"max.connections": "8"}


def test_groups_fall_back_on_the_broker() -> None:
    config = BrokerConfig.of({"group.consumer.session.timeout.ms": 50000})
    entries = describe_group(config, {"consumer.heartbeat.interval.ms": "6000"})
    own = _entry(entries, "consumer.heartbeat.interval.ms")
    assert (own.value, own.source) == ("6000", Source.GROUP_CONFIG)
    inherited = _entry(entries, "consumer.session.timeout.ms")
    assert (inherited.value, inherited.source) == ("50000", Source.STATIC_BROKER_CONFIG)
    plain = _entry(entries, "share.isolation.level")
    assert _layers(plain) == [("share.isolation.level", "read_uncommitted", Source.DEFAULT_CONFIG)]


def test_client_metrics_subscriptions() -> None:
    entries = describe_client_metrics({"interval.ms": "1000"})
    assert [(entry.name, entry.value, entry.source) for entry in entries] == [
        ("interval.ms", "1000", Source.CLIENT_METRICS_CONFIG),
        ("match", "", Source.DEFAULT_CONFIG),
        ("metrics", "", Source.DEFAULT_CONFIG),
    ]
