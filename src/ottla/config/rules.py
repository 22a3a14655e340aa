"""What keys have to be to each other: the rules Kafka checks when a node starts and when a setting changes.

Pure checks over a BrokerConfig. Each raises ConfigError with Kafka's sentence and the key to look at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.config.errors import ConfigError

if TYPE_CHECKING:
    from ottla.config.broker import BrokerConfig

_MB = 1 << 20


def check_rules(config: BrokerConfig) -> None:
    """Raise for the first rule that is broken."""
    _check_ids(config)
    _check_logs(config)
    _check_replication(config)
    _check_quorum(config)
    _check_listeners(config)
    _check_connections(config)
    _check_groups(config)


def _require(good: bool, key: str, message: str) -> None:
    if not good:
        raise ConfigError(message, key)


def _check_ids(config: BrokerConfig) -> None:
    for key in ("node.id", "process.roles", "controller.listener.names"):
        _require(
            config[key] is not None,
            key,
            f'Missing required configuration "{key}" which has no default value.',
        )
    _require(
        config["node.id"] == config["broker.id"],
        "node.id",
        "You must set `node.id` to the same value as `broker.id`.",
    )


def _check_logs(config: BrokerConfig) -> None:
    _require(config.log_roll_ms >= 1, "log.roll.ms", "log.roll.ms must be greater than or equal to 1")
    _require(
        config.log_roll_jitter_ms >= 0,
        "log.roll.jitter.ms",
        "log.roll.jitter.ms must be greater than or equal to 0",
    )
    _require(
        config.log_retention_ms >= 1 or config.log_retention_ms == -1,
        "log.retention.ms",
        "log.retention.ms must be unlimited (-1) or, greater than or equal to 1",
    )
    threads = config["log.cleaner.threads"]
    _require(
        threads > 0 and config["log.cleaner.dedupe.buffer.size"] // threads > _MB,
        "log.cleaner.dedupe.buffer.size",
        "log.cleaner.dedupe.buffer.size must be at least 1MB per cleaner thread.",
    )
    cordoned = config["cordoned.log.dirs"] or ()
    if "*" in cordoned:
        _require(
            len(cordoned) == 1,
            "cordoned.log.dirs",
            "When cordoned.log.dirs is set to *, it must not contain other values",
        )
        return
    missing = [entry for entry in cordoned if entry not in config.log_dirs]
    _require(
        not missing,
        "cordoned.log.dirs",
        "All entries in cordoned.log.dirs must be present in log.dirs or log.dir. "
        f"Missing entries : {', '.join(missing)}",
    )


def _check_replication(config: BrokerConfig) -> None:
    wait_ms = config["replica.fetch.wait.max.ms"]
    _require(
        wait_ms <= config["replica.socket.timeout.ms"],
        "replica.socket.timeout.ms",
        "replica.socket.timeout.ms should always be at least replica.fetch.wait.max.ms"
        " to prevent unnecessary socket timeouts",
    )
    _require(
        wait_ms <= config["replica.lag.time.max.ms"],
        "replica.fetch.wait.max.ms",
        "replica.fetch.wait.max.ms should always be less than or equal to replica.lag.time.max.ms"
        " to prevent frequent changes in ISR",
    )


def _check_quorum(config: BrokerConfig) -> None:
    voters = config.quorum_voters
    _require(
        bool(voters or config["controller.quorum.bootstrap.servers"]),
        "controller.quorum.bootstrap.servers",
        "If using process.roles, either controller.quorum.bootstrap.servers must contain the set of "
        "bootstrap "
        "controllers or controller.quorum.voters must contain a parseable set of controllers.",
    )
    if "controller" in config.process_roles:
        _check_controller(config, voters)
    else:
        _check_broker_only(config, voters)


def _check_controller(config: BrokerConfig, voters: dict[int, tuple[str, int]]) -> None:
    listening = {listener.name for listener in config.listeners}
    _require(
        not voters or config.node_id in voters,
        "controller.quorum.voters",
        f"If process.roles contains the 'controller' role, the node id {config.node_id} must be included "
        "in the "
        f"set of voters controller.quorum.voters={_ids(voters)}",
    )
    _require(
        all(name in listening for name in config.controller_listener_names),
        "controller.listener.names",
        "controller.listener.names must only contain values appearing in the 'listeners' configuration when "
        "running the KRaft controller role",
    )
    if "broker" not in config.process_roles:
        _require(
            len(config.controller_listeners) == len(config.listeners),
            "listeners",
            "The listeners config must only contain KRaft controller listeners from "
            "controller.listener.names "
            "when process.roles=controller",
        )


def _check_broker_only(config: BrokerConfig, voters: dict[int, tuple[str, int]]) -> None:
    _require(
        config.node_id not in voters,
        "controller.quorum.voters",
        f"If process.roles contains just the 'broker' role, the node id {config.node_id} must not be "
        "included "
        f"in the set of voters controller.quorum.voters={_ids(voters)}",
    )
    _require(
        not config.controller_listeners,
        "controller.listener.names",
        "controller.listener.names must not contain a value appearing in the 'listeners' configuration when "
        "running KRaft with just the broker role",
    )
    for name in config.controller_listener_names:
        _require(
            name in config.security_protocols,
            "listener.security.protocol.map",
            f"Controller listener with name {name} defined in controller.listener.names not found in "
            "listener.security.protocol.map",
        )
    _require(
        not config["controller.quorum.auto.join.enable"],
        "controller.quorum.auto.join.enable",
        "controller.quorum.auto.join.enable is only supported when process.roles contains the "
        "'controller' role.",
    )


def _check_listeners(config: BrokerConfig) -> None:
    for listener in (*config.advertised_broker_listeners, *config.advertised_controller_listeners):
        _require(
            listener.host != "0.0.0.0" or config["advertised.listeners"] is None,
            "advertised.listeners",
            "advertised.listeners cannot use the nonroutable meta-address 0.0.0.0. Use a routable IP "
            "address.",
        )
    if config["inter.broker.listener.name"] is not None:
        _require(
            "security.inter.broker.protocol" not in config.originals,
            "inter.broker.listener.name",
            "Only one of inter.broker.listener.name and security.inter.broker.protocol should be set.",
        )
        name = config.inter_broker_listener_name
        _require(
            name in config.security_protocols,
            "inter.broker.listener.name",
            f"Listener with name {name} defined in inter.broker.listener.name not found in "
            "listener.security.protocol.map.",
        )
    if "broker" in config.process_roles:
        _check_broker_listeners(config)
    _check_early_start(config)


def _check_broker_listeners(config: BrokerConfig) -> None:
    advertised = [listener.name for listener in config.advertised_broker_listeners]
    listening = [listener.name for listener in config.listeners]
    _require(
        bool(advertised),
        "listeners",
        "There must be at least one broker advertised listener. "
        "Perhaps all listeners appear in controller.listener.names?",
    )
    _require(
        config.inter_broker_listener_name in advertised,
        "inter.broker.listener.name",
        "inter.broker.listener.name must be a listener name defined in advertised.listeners. The valid "
        "options "
        f"based on currently configured listeners are {','.join(advertised)}",
    )
    _require(
        set(advertised) <= set(listening),
        "advertised.listeners",
        "advertised.listeners listener names must be equal to or a subset of the ones defined in listeners. "
        f"Found {','.join(advertised)}. The valid options based on the current configuration are "
        f"{','.join(listening)}",
    )


def _check_early_start(config: BrokerConfig) -> None:
    known = {listener.name for listener in config.listeners} | set(config.controller_listener_names)
    for name in filter(None, config["early.start.listeners"] or ()):
        _require(
            name in known,
            "early.start.listeners",
            f"early.start.listeners contains listener {name}, but this is not contained in listeners or "
            "controller.listener.names",
        )


def _check_connections(config: BrokerConfig) -> None:
    queued = config["queued.max.request.bytes"]
    _require(
        queued <= 0 or queued >= config["socket.request.max.bytes"],
        "queued.max.request.bytes",
        "queued.max.request.bytes must be larger or equal to socket.request.max.bytes",
    )
    overrides = _per_ip_overrides(config)
    if config["max.connections.per.ip"] == 0:
        _require(
            bool(overrides),
            "max.connections.per.ip",
            "max.connections.per.ip can be set to zero only if max.connections.per.ip.overrides property "
            "is set.",
        )
    idle_ms = config["connections.max.idle.ms"]
    delay_ms = config["connection.failed.authentication.delay.ms"]
    _require(
        idle_ms < 0 or delay_ms < idle_ms,
        "connection.failed.authentication.delay.ms",
        f"connection.failed.authentication.delay.ms={delay_ms} should always be less than "
        f"connections.max.idle.ms={idle_ms} to prevent failed authentication responses from timing out",
    )


def _per_ip_overrides(config: BrokerConfig) -> dict[str, int]:
    try:
        return config.max_connections_per_ip_overrides
    except ValueError:
        raise ConfigError(
            "Error parsing configuration property 'max.connections.per.ip.overrides': "
            f"{config['max.connections.per.ip.overrides']}",
            "max.connections.per.ip.overrides",
            reason="a list of address:limit",
        ) from None


def _check_groups(config: BrokerConfig) -> None:
    _require(
        "classic" in config["group.coordinator.rebalance.protocols"],
        "group.coordinator.rebalance.protocols",
        "Disabling the 'classic' protocol is not supported.",
    )


def _ids(voters: dict[int, tuple[str, int]]) -> str:
    return f"Set({', '.join(str(voter) for voter in sorted(voters))})"
