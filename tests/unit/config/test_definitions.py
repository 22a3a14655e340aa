"""The tables against what a running 4.3.1 reported, as far as a repository may carry it: the shape of each key."""

import pytest

from ottla.config.definitions import (
    BROKER_KEYS,
    BROKER_QUOTA_KEYS,
    CLIENT_METRICS_KEYS,
    GROUP_KEYS,
    TOPIC_KEYS,
    ConfigError,
    Scope,
    Type,
    nearest_key,
    parse_value,
    to_text,
)
from ottla.config.effective import EFFECTIVE, without_effect
from ottla.config.keys.docs import documentation_of
from ottla.config.settings import PLUGIN_KEYS
from ottla.config.types import java_double

ALL_KEYS = [
    key for table in (BROKER_KEYS, TOPIC_KEYS, GROUP_KEYS, CLIENT_METRICS_KEYS) for key in table.values()
]


def test_every_key_of_the_release_is_there() -> None:
    counts = [
        sum(not key.internal for key in table.values())
        for table in (BROKER_KEYS, TOPIC_KEYS, GROUP_KEYS, CLIENT_METRICS_KEYS)
    ]
    assert counts == [340, 33, 17, 3]


def test_a_default_passes_its_own_check_and_survives_a_round_trip() -> None:
    for key in ALL_KEYS:
        text = to_text(key, key.default)
        assert text is None or parse_value(key, text) == key.default, key.name


def test_every_key_is_described_in_a_sentence() -> None:
    shown = [key.name for key in ALL_KEYS if not key.internal]
    without = [name for name in shown if not (documentation_of(name) or "").endswith(".")]
    assert without == []


def test_synonyms_name_broker_keys_of_the_same_type() -> None:
    for key in [*TOPIC_KEYS.values(), *GROUP_KEYS.values()]:
        if key.synonym is not None:
            assert BROKER_KEYS[key.synonym].type is key.type, key.name


@pytest.mark.parametrize(
    ("name", "type", "default", "scope"),
    [
        ("log.segment.bytes", Type.INT, "1073741824", Scope.CLUSTER_WIDE),
        ("log.retention.ms", Type.LONG, None, Scope.CLUSTER_WIDE),
        ("log.retention.hours", Type.INT, "168", Scope.READ_ONLY),
        ("listeners", Type.LIST, "PLAINTEXT://:9092", Scope.PER_BROKER),
        ("ssl.keystore.password", Type.PASSWORD, None, Scope.PER_BROKER),
        ("offsets.topic.replication.factor", Type.SHORT, "3", Scope.READ_ONLY),
        ("log.cleaner.io.max.bytes.per.second", Type.DOUBLE, "1.7976931348623157E308", Scope.CLUSTER_WIDE),
        ("group.coordinator.rebalance.protocols", Type.LIST, "classic,consumer,streams", Scope.READ_ONLY),
        ("metric.reporters", Type.LIST, "org.apache.kafka.common.metrics.JmxReporter", Scope.CLUSTER_WIDE),
        ("num.network.threads", Type.INT, "3", Scope.CLUSTER_WIDE),
    ],
)
def test_samples(name: str, type: Type, default: str | None, scope: Scope) -> None:
    key = BROKER_KEYS[name]
    assert (key.type, to_text(key, key.default), key.scope) == (type, default, scope)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "segment.bytes",
            "12",
            "Invalid value 12 for configuration segment.bytes: Value must be at least 1048576",
        ),
        (
            "min.cleanable.dirty.ratio",
            "2",
            "Invalid value 2.0 for configuration min.cleanable.dirty.ratio: Value must be no more than 1",
        ),
        ("retention.ms", "1s", "Invalid value 1s for configuration retention.ms: Not a number of type LONG"),
        (
            "segment.bytes",
            "2147483648",
            "Invalid value 2147483648 for configuration segment.bytes: Not a number of type INT",
        ),
        (
            "preallocate",
            "yes",
            "Invalid value yes for configuration preallocate: Expected value to be either true or false",
        ),
        (
            "compression.type",
            "GZIP",
            "Invalid value GZIP for configuration compression.type: String must be one of: "
            "uncompressed, zstd, lz4, snappy, gzip, producer",
        ),
        (
            "cleanup.policy",
            "delete,shrink",
            "Invalid value shrink for configuration cleanup.policy: String must be one of: compact, delete",
        ),
        ("cleanup.policy", "delete,,compact", "Configuration 'cleanup.policy' values must not be empty."),
        (
            "compression.gzip.level",
            "0",
            "Invalid value 0 for configuration compression.gzip.level: Value must be between 1 and 9 or equal to -1",
        ),
        (
            "leader.replication.throttled.replicas",
            "a,b",
            "Invalid value [a, b] for configuration leader.replication.throttled.replicas: "
            "leader.replication.throttled.replicas must be the literal '*' or a list of replicas in the following "
            "format: [partitionId]:[brokerId],[partitionId]:[brokerId],...",
        ),
    ],
)
def test_a_bad_value_is_answered_as_kafka_answers_it(name: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_value(TOPIC_KEYS[name], text)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("cleanup.policy", " compact , delete ", ("compact", "delete")),
        ("cleanup.policy", "compact,compact", ("compact",)),
        ("cleanup.policy", "", ()),
        ("preallocate", " TRUE ", True),
        ("retention.ms", " +5 ", 5),
        ("min.cleanable.dirty.ratio", ".25", 0.25),
        ("leader.replication.throttled.replicas", "*", ("*",)),
        ("leader.replication.throttled.replicas", "0:1,2:3", ("0:1", "2:3")),
        ("compression.zstd.level", "-5", -5),
    ],
)
def test_a_good_value_is_read_as_kafka_reads_it(name: str, text: str, value: object) -> None:
    assert parse_value(TOPIC_KEYS[name], text) == value


@pytest.mark.parametrize("text", ["latest", "earliest", "by_duration:PT1H", "by_duration:P1DT2H3M4.5S"])
def test_share_offset_reset_strategies(text: str) -> None:
    assert parse_value(GROUP_KEYS["share.auto.offset.reset"], text) == text


@pytest.mark.parametrize(
    "text", ["newest", "by_duration:", "by_duration:P", "by_duration:PT", "by_duration:1h"]
)
def test_other_share_offset_reset_strategies_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="by_duration"):
        parse_value(GROUP_KEYS["share.auto.offset.reset"], text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.5, "0.5"),
        (1.0, "1.0"),
        (0.0, "0.0"),
        (1e7, "1.0E7"),
        (123456789.0, "1.23456789E8"),
        (0.001, "0.001"),
        (0.0001, "1.0E-4"),
        (-2.5e-7, "-2.5E-7"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
        (float("inf"), "Infinity"),
    ],
)
def test_doubles_are_spelt_as_java_spells_them(value: float, text: str) -> None:
    assert java_double(value) == text


def test_the_nearest_key_is_found_or_not() -> None:
    assert nearest_key("log.segment.byte", BROKER_KEYS) == "log.segment.bytes"
    assert nearest_key("LISTNERS", BROKER_KEYS) == "listeners"
    assert nearest_key("qqqqqqqq", BROKER_KEYS) is None


def test_effective_keys_exist() -> None:
    assert BROKER_KEYS.keys() | PLUGIN_KEYS >= EFFECTIVE


def test_keys_without_effect_are_named() -> None:
    names = [
        "log.dirs",
        "num.io.threads",
        "listener.name.a.ssl.keystore.type",
        "listener.name.a.max.connection.creation.rate",
        "listener.name.a.socket.request.max.bytes",
    ]
    assert without_effect(names) == [
        "listener.name.a.max.connection.creation.rate",
        "num.io.threads",
    ]


def test_broker_quotas_are_no_part_of_a_file() -> None:
    assert not BROKER_QUOTA_KEYS.keys() & BROKER_KEYS.keys()
