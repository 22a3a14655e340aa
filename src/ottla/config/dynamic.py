"""Which settings of a broker may change while it runs, and whether a change would be accepted.

Pure functions, called by the broker that gets the request (as Kafka's ConfigAdminManager is) and by whoever
applies the metadata log. Refusals are KafkaError with Kafka's code and sentence.
"""

from __future__ import annotations

from ottla.config.definitions import BROKER_KEYS, BROKER_QUOTA_KEYS, LISTENER_ONLY_KEYS, Scope
from ottla.config.effective import unserved_listeners
from ottla.config.errors import ConfigError
from ottla.config.settings import LISTENER_PREFIX
from ottla.config.values import parse_value
from ottla.model.errors import ErrorCode, KafkaError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ottla.config.broker import BrokerConfig

# These have a cluster-wide meaning even when they are set for one listener.
_CLUSTER_LISTENER_KEYS = frozenset({"max.connections", "max.connection.creation.rate", "num.network.threads"})
# Pools that may at most double or halve at once.
_POOLS = (
    "num.io.threads",
    "num.replica.fetchers",
    "num.recovery.threads.per.data.dir",
    "background.threads",
)


def check_broker_change(config: BrokerConfig, settings: Mapping[str, str], *, per_broker: bool) -> None:
    """Would these be good dynamic settings of this broker (or, not per broker, of all)? KafkaError if not."""
    try:
        check_dynamic(settings, per_broker=per_broker)
        changed = _changed(config, settings, per_broker=per_broker)
        _check_reconfiguration(config, changed)
    except ConfigError as error:
        # Kafka answers INVALID_REQUEST where INVALID_CONFIG would be meant (KAFKA-13609).
        raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from None


def check_dynamic(settings: Mapping[str, str], *, per_broker: bool) -> None:
    """Names, scopes and types of dynamic settings; ConfigError if one is out of place."""
    _refuse(filter(_is_static, settings), "Cannot update these configs dynamically")
    _refuse(
        filter(LISTENER_ONLY_KEYS.__contains__, settings),
        "These security configs can be dynamically updated only per-listener using the listener prefix",
    )
    for name, text in settings.items():
        _check_type(name, text)
    if not per_broker:
        _refuse(
            filter(_is_per_broker, settings),
            "Cannot update these configs at default cluster level, broker id must be specified",
        )


def applicable(settings: Mapping[str, str], *, per_broker: bool) -> dict[str, str]:
    """Those dynamic settings a broker can apply: one that another version wrote must not stop it."""
    return {
        name: text
        for name, text in settings.items()
        if _accepts(lambda entry: check_dynamic(entry, per_broker=per_broker), {name: text})
    }


def _accepts(check: Callable[[Mapping[str, str]], None], entry: Mapping[str, str]) -> bool:
    try:
        check(entry)
    except ConfigError:
        return False
    return True


def _changed(config: BrokerConfig, settings: Mapping[str, str], *, per_broker: bool) -> BrokerConfig:
    """The configuration as it would be; building it checks the rules between keys."""
    from ottla.config.broker import BrokerConfig

    return BrokerConfig(
        config.static,
        dynamic_default=config.dynamic_default if per_broker else settings,
        dynamic_broker=settings if per_broker else config.dynamic_broker,
        filled_in=config.filled_in,
    )


def _check_reconfiguration(before: BrokerConfig, after: BrokerConfig) -> None:
    """What the parts of a running broker would refuse; Kafka tells the client no more than this."""
    _check_listeners(after)
    for name in (*_POOLS, "log.cleaner.threads"):
        problem = _pool_problem(name, before[name], after[name])
        if problem:
            raise _refused_by_part(name, problem)
    _check_local_retention(after, "ms", after.log_retention_ms)
    _check_local_retention(after, "bytes", after["log.retention.bytes"])


def _check_listeners(config: BrokerConfig) -> None:
    """A listener that promises more than it gives is refused here as it is at start.

    Key stores and SASL settings of other listeners may change: without a listener that uses them they promise nothing,
    on Kafka neither.
    """
    for name, protocol in unserved_listeners(config):
        raise _refused_by_part("listeners", f"listener {name} asks for {protocol}, which is not served yet")
    builder = "principal.builder.class"
    if config[builder] != BROKER_KEYS[builder].default:
        raise _refused_by_part(
            builder, f"{config[builder]} cannot be loaded: connections have no principals yet"
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
    """Kafka wraps what a part of the broker says in this curious sentence, and clients see it."""
    return ConfigError(
        f"Invalid value org.apache.kafka.common.config.ConfigException: {problem} "
        "for configuration Invalid dynamic configuration",
        name,
    )


def _is_static(name: str) -> bool:
    key = BROKER_KEYS.get(name)
    return key is not None and key.read_only


def _is_per_broker(name: str) -> bool:
    key = BROKER_KEYS.get(name)
    if key is not None:
        return key.scope is Scope.PER_BROKER
    base = _listener_base(name)
    return base is not None and base not in _CLUSTER_LISTENER_KEYS


def _check_type(name: str, text: str) -> None:
    key = BROKER_KEYS.get(_listener_base(name) or name) or BROKER_QUOTA_KEYS.get(name)
    # A read-only key under a listener's prefix is a plugin's own affair, as are keys nobody knows.
    if key is not None and not key.read_only:
        parse_value(key, text)


def _listener_base(name: str) -> str | None:
    if not name.startswith(LISTENER_PREFIX):
        return None
    return name[len(LISTENER_PREFIX) :].partition(".")[2] or None


def _refuse(names: Iterable[str], why: str) -> None:
    refused = sorted(names)
    if refused:
        raise ConfigError(f"{why}: [{', '.join(refused)}]", refused[0])
