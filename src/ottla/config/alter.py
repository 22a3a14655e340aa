"""Changes to the settings of a resource: what an operation makes of a value, and whether the result is allowed.

`apply_operation` and `check_resource` are Kafka's ConfigurationControlManager: the controller calls them before it
writes records (KIP-133, KIP-339). `check_broker_change` is DynamicBrokerConfig's validation: the broker that gets the
request calls it first, as Kafka's ConfigAdminManager does (KIP-226). Pure functions. Refusals are KafkaError with
Kafka's code and sentence.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any

from ottla.config.definitions import BROKER_KEYS, CLIENT_METRICS_KEYS, GROUP_KEYS, KEYS_OF, TOPIC_KEYS
from ottla.config.dynamic import check_dynamic
from ottla.config.effective import OF_SECURITY
from ottla.config.errors import ConfigError
from ottla.config.settings import LISTENER_PREFIX, base_key
from ottla.config.types import ResourceType, Type, parse_value, to_text
from ottla.model.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ottla.config.broker import BrokerConfig

MAX_VALUE_LENGTH = 32767
_MIN_PUSH_INTERVAL_MS = 100
_MAX_PUSH_INTERVAL_MS = 3_600_000
_MATCH_PARAMETERS = frozenset(
    {
        "client_instance_id",
        "client_id",
        "client_software_name",
        "client_software_version",
        "client_source_address",
        "client_source_port",
    }
)
# Pools that may at most double or halve at once.
_POOLS = (
    "num.io.threads",
    "num.replica.fetchers",
    "num.recovery.threads.per.data.dir",
    "background.threads",
)


class AlterOp(IntEnum):
    """What IncrementalAlterConfigs may do to a key."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


def apply_operation(
    resource: ResourceType, name: str, operation: AlterOp, current: str | None, value: str | None
) -> str | None:
    """The text a key has afterwards, None if it is no longer set: as the controller does it."""
    if operation is AlterOp.SET:
        return value
    if operation is AlterOp.DELETE:
        return None
    key = KEYS_OF.get(resource, {}).get(name)
    if key is None or key.type is not Type.LIST:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG, f"Can't {operation.name} to key {name} because its type is not LIST."
        )
    text = current if current is not None else to_text(key, key.default)
    return ",".join(_edit([part for part in (text or "").split(",") if part], operation, value or ""))


def _edit(parts: list[str], operation: AlterOp, value: str) -> list[str]:
    for entry in value.split(","):
        if operation is AlterOp.APPEND and entry not in parts:
            parts.append(entry)
        elif operation is AlterOp.SUBTRACT and entry in parts:
            parts.remove(entry)
    return parts


def check_resource(
    config: BrokerConfig,
    resource: ResourceType,
    name: str,
    settings: Mapping[str, str | None],
    existing: Mapping[str, str],
) -> None:
    """May this resource have these settings? `settings` is all it would have, `existing` what it has now."""
    for value in settings.values():
        if value is not None and len(value) > MAX_VALUE_LENGTH:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                "The configuration value cannot be added because it exceeds the maximum value size of "
                f"{MAX_VALUE_LENGTH} bytes.",
            )
    try:
        if resource is ResourceType.TOPIC:
            _require(bool(name), "Default topic resources are not allowed.")
            check_topic(config, _without_nulls(settings, "topic"), existing)
        elif resource is ResourceType.BROKER:
            _check_broker_name(name)
        elif resource is ResourceType.GROUP:
            _require(bool(name), "Default group resources are not allowed.")
            _check_group(config, _without_nulls(settings, "group"))
        elif resource is ResourceType.CLIENT_METRICS:
            _require(bool(name), "Subscription name can't be empty")
            _check_client_metrics(_without_nulls(settings, "client metrics"))
        else:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {resource.name}")
    except ConfigError as error:
        raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None


def check_topic(config: BrokerConfig, settings: Mapping[str, str], existing: Mapping[str, str]) -> None:
    """A topic's settings: ConfigError if a name is unknown, a value bad or two of them at odds."""
    for name in settings:
        if name not in TOPIC_KEYS:
            raise ConfigError(f"Unknown topic config name: {name}", name)
    values = {**config.topic_defaults(), **{n: parse_value(TOPIC_KEYS[n], t) for n, t in settings.items()}}
    low, high = values["min.compaction.lag.ms"], values["max.compaction.lag.ms"]
    if low > high:
        raise ConfigError(
            f"conflict topic config setting min.compaction.lag.ms ({low}) > max.compaction.lag.ms ({high})",
            "min.compaction.lag.ms",
        )
    if values["remote.storage.enable"]:
        _check_remote(config, values)
    elif existing.get("remote.storage.enable", "").strip().lower() == "true":
        _check_remote_disabled(values)


def _check_remote(config: BrokerConfig, values: Mapping[str, Any]) -> None:
    if not config["remote.log.storage.system.enable"]:
        raise ConfigError(
            "Tiered Storage functionality is disabled in the broker. "
            "Topic cannot be configured with remote log storage.",
            "remote.storage.enable",
        )
    if values["cleanup.policy"] not in ((), ("delete",)):
        raise ConfigError(
            "Remote log storage only supports topics with cleanup.policy=delete or cleanup.policy being an "
            "empty list.",
            "cleanup.policy",
        )
    for unit in ("bytes", "ms"):
        whole, local = values[f"retention.{unit}"], values[f"local.retention.{unit}"]
        if whole == -1 or local == -2:
            continue
        name = f"local.retention.{unit}"
        if local == -1:
            why = f"Value must not be -1 as retention.{unit} value is set as {whole}."
            raise ConfigError(f"Invalid value {local} for configuration {name}: {why}", name)
        if local > whole:
            why = f"Value must not be more than retention.{unit} property value: {whole}"
            raise ConfigError(f"Invalid value {local} for configuration {name}: {why}", name)


def _check_remote_disabled(values: Mapping[str, Any]) -> None:
    if not values["remote.log.delete.on.disable"]:
        raise ConfigError(
            "It is invalid to disable remote storage without deleting remote data. If you want to keep the "
            "remote data and turn to read only, please set "
            "`remote.storage.enable=true,remote.log.copy.disable=true`. If you want to disable remote "
            "storage "
            "and delete all remote data, please set "
            "`remote.storage.enable=false,remote.log.delete.on.disable=true`.",
            "remote.storage.enable",
        )


def _check_broker_name(name: str) -> None:
    if not name:
        return
    try:
        broker_id = int(name)
    except ValueError:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, "Unable to parse broker name as a base 10 number."
        ) from None
    _require(broker_id >= 0, "Invalid negative broker ID.")


def _check_group(config: BrokerConfig, settings: Mapping[str, str]) -> None:
    for name in settings:
        if name not in GROUP_KEYS:
            raise ConfigError(f"Unknown group config name: {name}", name)
    values: dict[str, Any] = {}
    for name, key in GROUP_KEYS.items():
        default = key.default if key.synonym is None else config[key.synonym]
        values[name] = parse_value(key, settings[name]) if name in settings else default
    for name, key in GROUP_KEYS.items():
        if key.synonym is not None:
            _check_group_bounds(config, name, key.synonym, values[name])
    for kind in ("consumer", "share", "streams"):
        session, heartbeat = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"
        if values[session] <= values[heartbeat]:
            raise ConfigError(f"{session} must be greater than {heartbeat}", session)


def _check_group_bounds(config: BrokerConfig, name: str, synonym: str, value: int) -> None:
    """A broker sets a least and a most: group.share.min.session.timeout.ms for share.session.timeout.ms."""
    kind, _, rest = synonym.removeprefix("group.").partition(".")
    least, most = f"group.{kind}.min.{rest}", f"group.{kind}.max.{rest.removeprefix('num.')}"
    if least in BROKER_KEYS and value < config[least]:
        raise ConfigError(f"{name} must be greater than or equal to {least}", name)
    if most in BROKER_KEYS and value > config[most]:
        raise ConfigError(f"{name} must be less than or equal to {most}", name)


def _check_client_metrics(settings: Mapping[str, str]) -> None:
    for name in settings:
        _require(name in CLIENT_METRICS_KEYS, f"Unknown client metrics configuration: {name}")
    values: dict[str, Any] = {n: parse_value(CLIENT_METRICS_KEYS[n], t) for n, t in settings.items()}
    interval_ms = values.get("interval.ms", _MIN_PUSH_INTERVAL_MS)
    _require(
        _MIN_PUSH_INTERVAL_MS <= interval_ms <= _MAX_PUSH_INTERVAL_MS,
        f"Invalid value {interval_ms} for interval.ms, interval must be between 100 and 3600000 (1 hour)",
    )
    for pattern in values.get("match", ()):
        if not _is_match_pattern(pattern):
            raise ConfigError(f"Illegal client matching pattern: {pattern}", "match")


def _is_match_pattern(pattern: str) -> bool:
    import re

    parts = pattern.split("=")
    if len(parts) != 2 or parts[0].strip() not in _MATCH_PARAMETERS:
        return False
    try:
        re.compile(parts[1].strip())
    except re.error:
        return False
    return True


def _without_nulls(settings: Mapping[str, str | None], kind: str) -> dict[str, str]:
    nulls = [name for name, value in settings.items() if value is None]
    if nulls:
        raise ConfigError(f"Null value not supported for {kind} configs: {','.join(nulls)}", nulls[0])
    return {name: value for name, value in settings.items() if value is not None}


def _require(good: bool, message: str) -> None:
    if not good:
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)


def check_broker_change(config: BrokerConfig, settings: Mapping[str, str], *, per_broker: bool) -> None:
    """Would these be good dynamic settings of this broker (or, not per broker, of all)? KafkaError if not."""
    try:
        check_dynamic(settings, per_broker=per_broker)
        changed = _changed(config, settings, per_broker=per_broker)
        _check_reconfiguration(config, changed)
    except ConfigError as error:
        # Kafka answers INVALID_REQUEST where INVALID_CONFIG would be meant (KAFKA-13609).
        raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from None


def _changed(config: BrokerConfig, settings: Mapping[str, str], *, per_broker: bool) -> BrokerConfig:
    """The configuration as it would be; building it checks the rules between keys."""
    if per_broker:
        return config.with_layers(config.dynamic_default, settings)
    return config.with_layers(settings, config.dynamic_broker)


def _check_reconfiguration(before: BrokerConfig, after: BrokerConfig) -> None:
    """What the parts of a running broker would refuse; Kafka answers a client with no more than this."""
    _check_listeners(before, after)
    _check_logins(before, after)
    for name in (*_POOLS, "log.cleaner.threads"):
        problem = _pool_problem(name, before[name], after[name])
        if problem:
            raise _refused_by_part(name, problem)
    _check_local_retention(after, "ms", after.log_retention_ms)
    _check_local_retention(after, "bytes", after["log.retention.bytes"])


def _check_listeners(before: BrokerConfig, config: BrokerConfig) -> None:
    """What secures a listener cannot be changed while it runs yet.

    Key stores and SASL settings of other listeners may change: without a listener that uses them they have no effect,
    on Kafka neither.
    """
    protocols = {listener.name: listener.security_protocol for listener in before.listeners}
    for listener in config.listeners:
        if listener.security_protocol != protocols.get(listener.name, "PLAINTEXT"):
            what = f"listener {listener.name} cannot become one with {listener.security_protocol} while it runs yet"
            raise _refused_by_part("listeners", f"{what}: restart the node")
        if listener.security_protocol == "PLAINTEXT":
            continue
        for key in sorted(OF_SECURITY):
            if before.for_listener(listener.name, key) != config.for_listener(listener.name, key):
                raise _refused_by_part(
                    key,
                    f"listener {listener.name} cannot take another {key} while it runs yet: restart the node",
                )
    builder = "principal.builder.class"
    if config[builder] != BROKER_KEYS[builder].default:
        raise _refused_by_part(
            builder, f"{config[builder]} cannot be loaded: connections have no principals yet"
        )


def _check_logins(before: BrokerConfig, after: BrokerConfig) -> None:
    """Code is named by the static configuration alone, and what a mechanism of a listener is told stays as it is."""
    secured = {
        f"{LISTENER_PREFIX}{listener.name.lower()}."
        for listener in before.listeners
        if listener.security_protocol != "PLAINTEXT"
    }
    for name in sorted(before.originals.keys() | after.originals.keys()):
        key = base_key(name)
        if key is None or key.name == name or before.originals.get(name) == after.originals.get(name):
            continue
        if key.name.startswith("sasl.") and key.name.endswith(".class"):
            raise _refused_by_part(name, f"{name} names code, which only the static configuration does")
        prefix, _, rest = name.removeprefix(LISTENER_PREFIX).partition(".")
        if rest != key.name and f"{LISTENER_PREFIX}{prefix}." in secured:
            raise _refused_by_part(
                name, f"listener {prefix} cannot take another {rest} while it runs yet: restart the node"
            )


def _pool_problem(name: str, old: int, new: int) -> str | None:
    cleaner = name == "log.cleaner.threads"
    failed = f"Dynamic thread count update validation failed for {name}={new}, value should"
    if new == old:
        return None
    if new < 1:
        return "Log cleaner threads should be at least 1" if cleaner else f"{failed} be at least 1"
    if new < old // 2:
        if cleaner:
            return f"Log cleaner threads cannot be reduced to less than half the current value {old}"
        return f"{failed} be at least half the current value {old}"
    if new > old * 2:
        if cleaner:
            return f"Log cleaner threads cannot be increased to more than double the current value {old}"
        return f"{failed} not be greater than double the current value {old}"
    return None


def _check_local_retention(config: BrokerConfig, unit: str, whole: int) -> None:
    name, local = f"log.local.retention.{unit}", config[f"log.local.retention.{unit}"]
    if whole == -1 or local == -2:
        return
    problem = None
    if local == -1:
        problem = f"Value must not be -1 as log.retention.{unit} value is set as {whole}."
    elif local > whole:
        problem = f"Value must not be more than log.retention.{unit} property value: {whole}"
    if problem:
        raise _refused_by_part(name, f"Invalid value {local} for configuration {name}: {problem}")


def _refused_by_part(name: str, problem: str) -> ConfigError:
    """Kafka's sentence around what a part of the broker says; clients see it."""
    return ConfigError(
        f"Invalid value org.apache.kafka.common.config.ConfigException: {problem} "
        "for configuration Invalid dynamic configuration",
        name,
    )
