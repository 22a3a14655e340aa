"""Changes of configuration: what is allowed, and what Kafka says of what is not."""

import pytest

from ottla.config.alter import AlterOp, apply_operation, check_broker_change, check_resource
from ottla.config.broker import BrokerConfig
from ottla.config.types import ResourceType
from ottla.model.errors import ErrorCode, KafkaError

CONFIG = BrokerConfig.of({})
TOPIC, BROKER, GROUP, METRICS = (
    ResourceType.TOPIC,
    ResourceType.BROKER,
    ResourceType.GROUP,
    ResourceType.CLIENT_METRICS,
)


@pytest.mark.parametrize(
    ("operation", "current", "value", "result"),
    [
        (AlterOp.SET, "delete", "compact", "compact"),
        (AlterOp.DELETE, "compact", None, None),
        (AlterOp.APPEND, None, "compact", "delete,compact"),
        (AlterOp.APPEND, "compact", "compact", "compact"),
        (AlterOp.SUBTRACT, "compact,delete", "delete", "compact"),
        (AlterOp.SUBTRACT, None, "delete", ""),
    ],
)
def test_operations_on_a_list(
    operation: AlterOp, current: str | None, value: str | None, result: str | None
) -> None:
    assert apply_operation(TOPIC, "cleanup.policy", operation, current, value) == result


def test_only_lists_can_be_appended_to() -> None:
    with pytest.raises(
        KafkaError, match=r"Can't APPEND to key retention.ms because its type is not LIST."
    ) as caught:
        apply_operation(TOPIC, "retention.ms", AlterOp.APPEND, "1", "2")
    assert caught.value.code is ErrorCode.INVALID_CONFIG


@pytest.mark.parametrize(
    ("resource", "name", "settings", "code", "message"),
    [
        (TOPIC, "t", {"retenton.ms": "1"}, "INVALID_CONFIG", "Unknown topic config name: retenton.ms"),
        (
            TOPIC,
            "t",
            {"segment.bytes": "1"},
            "INVALID_CONFIG",
            "Invalid value 1 for configuration segment.bytes: Value must be at least 1048576",
        ),
        (
            TOPIC,
            "t",
            {"retention.ms": None},
            "INVALID_CONFIG",
            "Null value not supported for topic configs: retention.ms",
        ),
        (TOPIC, "", {}, "INVALID_REQUEST", "Default topic resources are not allowed."),
        (
            TOPIC,
            "t",
            {"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "4"},
            "INVALID_CONFIG",
            "conflict topic config setting min.compaction.lag.ms (5) > max.compaction.lag.ms (4)",
        ),
        (
            TOPIC,
            "t",
            {"remote.storage.enable": "true"},
            "INVALID_CONFIG",
            "Tiered Storage functionality is disabled in the broker. "
            "Topic cannot be configured with remote log storage.",
        ),
        (
            TOPIC,
            "t",
            {"retention.ms": "1" * 40000},
            "INVALID_CONFIG",
            "The configuration value cannot be added because it exceeds the maximum value size of 32767 bytes.",
        ),
        (BROKER, "one", {}, "INVALID_REQUEST", "Unable to parse broker name as a base 10 number."),
        (BROKER, "-1", {}, "INVALID_REQUEST", "Invalid negative broker ID."),
        (
            GROUP,
            "g",
            {"consumer.sesion": "1"},
            "INVALID_CONFIG",
            "Unknown group config name: consumer.sesion",
        ),
        (
            GROUP,
            "g",
            {"consumer.session.timeout.ms": "100"},
            "INVALID_CONFIG",
            "consumer.session.timeout.ms must be greater than or equal to group.consumer.min.session.timeout.ms",
        ),
        (
            GROUP,
            "g",
            {"streams.num.standby.replicas": "9"},
            "INVALID_CONFIG",
            "streams.num.standby.replicas must be less than or equal to group.streams.max.standby.replicas",
        ),
        (
            METRICS,
            "m",
            {"interval": "1"},
            "INVALID_REQUEST",
            "Unknown client metrics configuration: interval",
        ),
        (
            METRICS,
            "m",
            {"interval.ms": "1"},
            "INVALID_REQUEST",
            "Invalid value 1 for interval.ms, interval must be between 100 and 3600000 (1 hour)",
        ),
        (
            METRICS,
            "m",
            {"match": "colour=red"},
            "INVALID_CONFIG",
            "Illegal client matching pattern: colour=red",
        ),
        (METRICS, "", {}, "INVALID_REQUEST", "Subscription name can't be empty"),
        (ResourceType.BROKER_LOGGER, "1", {}, "INVALID_REQUEST", "Unknown resource type BROKER_LOGGER"),
    ],
)
def test_the_controller_refuses(
    resource: ResourceType, name: str, settings: dict[str, str | None], code: str, message: str
) -> None:
    with pytest.raises(KafkaError) as caught:
        check_resource(CONFIG, resource, name, settings, {})
    assert (caught.value.code.name, str(caught.value)) == (code, message)


@pytest.mark.parametrize(
    ("resource", "name", "settings"),
    [
        (TOPIC, "t", {"retention.ms": "-1", "cleanup.policy": "compact,delete"}),
        (BROKER, "", {}),
        (BROKER, "3", {"whatever.a.plugin": "wants"}),
        (GROUP, "g", {"consumer.session.timeout.ms": "50000", "share.auto.offset.reset": "by_duration:PT5M"}),
        (
            METRICS,
            "m",
            {"interval.ms": "100", "metrics": "*", "match": "client_id=a.*,client_software_name=x"},
        ),
    ],
)
def test_the_controller_accepts(resource: ResourceType, name: str, settings: dict[str, str | None]) -> None:
    check_resource(CONFIG, resource, name, settings, {})


def test_tiered_storage_is_not_left_without_a_word_on_its_data() -> None:
    before = {"remote.storage.enable": "true"}
    with pytest.raises(KafkaError, match="invalid to disable remote storage without deleting remote data"):
        check_resource(CONFIG, TOPIC, "t", {}, before)
    check_resource(CONFIG, TOPIC, "t", {"remote.log.delete.on.disable": "true"}, before)


@pytest.mark.parametrize(
    ("settings", "per_broker", "message"),
    [
        ({"node.id": "3"}, True, "Cannot update these configs dynamically: [node.id]"),
        (
            {"ssl.keystore.location": "x"},
            True,
            "These security configs can be dynamically updated only per-listener using the listener prefix: "
            "[ssl.keystore.location]",
        ),
        (
            {"listener.name.a.ssl.keystore.location": "x"},
            False,
            "Cannot update these configs at default cluster level, broker id must be specified: "
            "[listener.name.a.ssl.keystore.location]",
        ),
        (
            {"listeners": "PLAINTEXT://:9092"},
            False,
            "Cannot update these configs at default cluster level, broker id must be specified: [listeners]",
        ),
        (
            {"listener.security.protocol.map": "PLAINTEXT:SSL,CONTROLLER:PLAINTEXT"},
            True,
            "Invalid value org.apache.kafka.common.config.ConfigException: listener PLAINTEXT cannot become one "
            "with SSL while it runs yet: restart the node for configuration Invalid dynamic configuration",
        ),
        (
            {"principal.builder.class": "com.example.Builder"},
            True,
            "Invalid value org.apache.kafka.common.config.ConfigException: com.example.Builder cannot be loaded: "
            "connections have no principals yet for configuration Invalid dynamic configuration",
        ),
        (
            {"log.segment.bytes": "1"},
            False,
            "Invalid value 1 for configuration log.segment.bytes: Value must be at least 1048576",
        ),
        (
            {"num.io.threads": "100"},
            True,
            "Invalid value org.apache.kafka.common.config.ConfigException: Dynamic thread count update validation "
            "failed for num.io.threads=100, value should not be greater than double the current value 8 "
            "for configuration Invalid dynamic configuration",
        ),
        (
            {"log.retention.ms": "0"},
            False,
            "log.retention.ms must be unlimited (-1) or, greater than or equal to 1",
        ),
        (
            {"leader.replication.throttled.rate": "-1"},
            True,
            "Invalid value -1 for configuration leader.replication.throttled.rate: Value must be at least 0",
        ),
    ],
)
def test_a_broker_refuses_a_change_of_its_own(
    settings: dict[str, str], per_broker: bool, message: str
) -> None:
    with pytest.raises(KafkaError) as caught:
        check_broker_change(CONFIG, settings, per_broker=per_broker)
    assert (caught.value.code, str(caught.value)) == (ErrorCode.INVALID_REQUEST, message)


@pytest.mark.parametrize(
    ("settings", "per_broker"),
    [
        ({"log.segment.bytes": "1048576"}, False),
        ({"num.io.threads": "16"}, True),
        ({"listener.name.a.max.connections": "5"}, False),
        ({"leader.replication.throttled.rate": "5"}, True),
        ({"some.plugins.key": "x"}, True),
        ({}, True),
    ],
)
def test_a_broker_accepts_a_change_of_its_own(settings: dict[str, str], per_broker: bool) -> None:
    check_broker_change(CONFIG, settings, per_broker=per_broker)


SASL = BrokerConfig.of(
    {
        "listeners": "IN://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
        "inter.broker.listener.name": "IN",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "IN:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "listener.name.in.plain.sasl.jaas.config": "x",
    }
)


@pytest.mark.parametrize(
    "name",
    [
        "sasl.login.class",
        "sasl.client.callback.handler.class",
        "sasl.oauthbearer.jwt.retriever.class",
        "listener.name.in.sasl.login.class",
        "listener.name.in.plain.sasl.server.callback.handler.class",
        "listener.name.in.oauthbearer.sasl.oauthbearer.jwt.validator.class",
        "listener.name.other.plain.sasl.login.callback.handler.class",
        # Not code, and still what a login stands on.
        "listener.name.in.plain.sasl.jaas.config",
        "listener.name.in.oauthbearer.sasl.oauthbearer.jwks.endpoint.url",
        "listener.name.in.sasl.oauthbearer.jwks.endpoint.url",
        "delegation.token.secret.key",
    ],
)
@pytest.mark.parametrize("value", ["os.system", "${file:/etc/passwd:x}"])
def test_nobody_brings_code_or_a_login_by_a_request(name: str, value: str) -> None:
    with pytest.raises(KafkaError) as caught:
        check_broker_change(SASL, {name: value}, per_broker=True)
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    assert "/etc/passwd" not in str(caught.value)
