"""BrokerConfig (Kafka's KafkaConfig): every broker setting, typed, with the layers that may change while it runs.

Precedence, as in Kafka (KIP-226): set for this broker while it runs, set for all brokers, the static
configuration (file, environment, -X and what a cluster of one fills in), the default. A BrokerConfig never
changes; a dynamic change is a new one from `with_dynamic`. Owned by the node, read by everything above.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

from ottla.config.definitions import BROKER_KEYS, TOPIC_KEYS, parse_value
from ottla.config.dynamic import applicable
from ottla.config.errors import ConfigError
from ottla.config.listeners import (
    Listener,
    listener_name_of,
    parse_listeners,
    parse_protocol_map,
    split_address,
)
from ottla.config.settings import LISTENER_PREFIX, Settings, base_key, in_users_words, synonyms_of
from ottla.config.standalone import fill_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ottla.config.types import Value

_DEFAULTS: dict[str, Any] = {name: key.default for name, key in BROKER_KEYS.items()}
_MINUTE_MS = 60_000
_HOUR_MS = 3_600_000
_MB = 1 << 20
# Hosts that stand for every interface: nobody can connect to them.
_WILDCARDS = ("", "0.0.0.0", "::")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class BrokerConfig:
    """The configuration of one node at one moment."""

    __slots__ = (
        "_topic_defaults",
        "advertised_listeners",
        "controller_listener_names",
        "dynamic_broker",
        "dynamic_default",
        "filled_in",
        "listeners",
        "originals",
        "security_protocols",
        "static",
        "values",
    )

    def __init__(
        self,
        static: Mapping[str, str],
        *,
        dynamic_default: Mapping[str, str] | None = None,
        dynamic_broker: Mapping[str, str] | None = None,
        filled_in: Iterable[str] = (),
    ) -> None:
        # What the node was started with, what was set for all brokers, and for this one: texts by key.
        self.static = _with_both_ids(static)
        self.dynamic_default = dict(dynamic_default or {})
        self.dynamic_broker = dict(dynamic_broker or {})
        # The static keys that the user never wrote: the node is a cluster of one.
        self.filled_in = frozenset(filled_in)
        self.originals = _overlay(self.static, self.dynamic_default, self.dynamic_broker)
        self.values: dict[str, Any] = _DEFAULTS | _typed(self.originals)
        self._topic_defaults: dict[str, Any] | None = None
        self.controller_listener_names = tuple(n.upper() for n in self["controller.listener.names"] or ())
        self.security_protocols = self._protocols()
        self.listeners = parse_listeners(
            "listeners", self["listeners"], self.security_protocols, distinct_ports=True
        )
        self.advertised_listeners = self._advertised()
        _check_rules(self)

    # -- making one ----------------------------------------------------------------------------------------

    @classmethod
    def from_settings(cls, settings: Settings, directory_node_id: int | None = None) -> BrokerConfig:
        """The configuration of a node about to start, gaps filled; ConfigError is one line for the user."""
        given = {name: setting.text for name, setting in settings.by_key.items()}
        try:
            added = fill_in(given, directory_node_id)
            return cls({**given, **added}, filled_in=added)
        except ConfigError as error:
            raise _for_user(error, settings) from None

    @classmethod
    def of(cls, values: Mapping[str, object], directory_node_id: int | None = None) -> BrokerConfig:
        """The same from a plain mapping: for tests, and for programs that start a node."""
        return cls.from_settings(Settings.of(values), directory_node_id)

    def with_dynamic(self, cluster_default: Mapping[str, str], broker: Mapping[str, str]) -> BrokerConfig:
        """This configuration with other dynamic layers; entries no broker could apply are left out."""
        return self.with_layers(
            applicable(cluster_default, per_broker=False), applicable(broker, per_broker=True)
        )

    def with_layers(self, cluster_default: Mapping[str, str], broker: Mapping[str, str]) -> BrokerConfig:
        """The same, with every entry: ConfigError if one cannot be applied."""
        return BrokerConfig(
            self.static,
            dynamic_default=cluster_default,
            dynamic_broker=broker,
            filled_in=self.filled_in,
        )

    # -- reading it ----------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def get(self, name: str, default: Any = None) -> Any:
        """The typed value, or `default` where the key is unknown or has no value."""
        value = self.values.get(name)
        return default if value is None else value

    def for_listener(self, listener: str, name: str) -> Any:
        """The value of a key for one listener: listener.name.<listener>.<key> if that is set."""
        text = self.originals.get(f"{LISTENER_PREFIX}{listener.lower()}.{name}")
        return self.values[name] if text is None else parse_value(BROKER_KEYS[name], text)

    def replication_rate(self, name: str) -> float:
        """A rate that is set while the broker runs, for it or for all (KIP-73); `inf` where it is not."""
        text = self.dynamic_broker.get(name, self.dynamic_default.get(name))
        return inf if text is None else int(text)

    @property
    def early_start_listeners(self) -> frozenset[str]:
        """The listeners that are served before the authorizer has its rules: the controller's, if nobody says."""
        names = self["early.start.listeners"]
        return frozenset(self.controller_listener_names if names is None else filter(None, names))

    @property
    def node_id(self) -> int:
        return int(self["node.id"])

    @property
    def process_roles(self) -> frozenset[str]:
        return frozenset(self["process.roles"])

    @property
    def is_broker(self) -> bool:
        return "broker" in self["process.roles"]

    @property
    def is_controller(self) -> bool:
        return "controller" in self["process.roles"]

    @property
    def log_dirs(self) -> tuple[str, ...]:
        return tuple(self["log.dirs"] or self["log.dir"])

    @property
    def cordoned_log_dirs(self) -> tuple[str, ...]:
        """The directories that get no new partitions (KIP-1066)."""
        named = tuple(self["cordoned.log.dirs"] or ())
        return self.log_dirs if "*" in named else named

    @property
    def metadata_log_dir(self) -> str:
        return str(self["metadata.log.dir"] or self.log_dirs[0])

    @property
    def broker_listeners(self) -> tuple[Listener, ...]:
        return tuple(entry for entry in self.listeners if entry.name not in self.controller_listener_names)

    @property
    def controller_listeners(self) -> tuple[Listener, ...]:
        return tuple(entry for entry in self.listeners if entry.name in self.controller_listener_names)

    @property
    def advertised_broker_listeners(self) -> tuple[Listener, ...]:
        names = self.controller_listener_names
        return tuple(entry for entry in self.advertised_listeners if entry.name not in names)

    @property
    def advertised_controller_listeners(self) -> tuple[Listener, ...]:
        """Advertised ones where the user gave them, else where the controller listens, or is said to by the voters."""
        given = {} if self["advertised.listeners"] is None else {e.name: e for e in self.advertised_listeners}
        listening = {entry.name: entry for entry in self.controller_listeners}
        first = self.controller_listener_names[:1]
        if first and first[0] in listening and listening[first[0]].host in ("", "0.0.0.0"):
            listening[first[0]] = self._as_voters_say(listening[first[0]])
        return tuple(given.get(name, entry) for name, entry in listening.items())

    def _as_voters_say(self, listener: Listener) -> Listener:
        """An address for a listener on every interface, if controller.quorum.voters has one for this node."""
        address = self.quorum_voters.get(self.node_id)
        return listener if address is None else Listener(listener.name, listener.security_protocol, *address)

    @property
    def controller_listener_is_implied(self) -> bool:
        """Nobody asked for that port: if it is taken, any other will do."""
        return "listeners" in self.filled_in

    @property
    def inter_broker_listener_name(self) -> str:
        return str(self["inter.broker.listener.name"] or self["security.inter.broker.protocol"]).upper()

    @property
    def quorum_voters(self) -> dict[int, tuple[str, int]]:
        """controller.quorum.voters: node id to host and port."""
        voters = {}
        for entry in self["controller.quorum.voters"]:
            voter, _, address = entry.partition("@")
            voters[int(voter)] = split_address(address)
        return voters

    @property
    def quorum_bootstrap_servers(self) -> tuple[tuple[str, int], ...]:
        """controller.quorum.bootstrap.servers: where controllers may be asked who leads."""
        return tuple(split_address(entry) for entry in self["controller.quorum.bootstrap.servers"])

    @property
    def is_quorum_by_itself(self) -> bool:
        """Does no setting speak of another controller than this node's?"""
        if not self.is_controller:
            return False
        voters = self.quorum_voters
        if voters:
            return set(voters) == {self.node_id}
        if "controller.quorum.bootstrap.servers" in self.filled_in:
            return True
        return all(self._is_own(host, port) for host, port in self.quorum_bootstrap_servers)

    def _is_own(self, host: str, port: int) -> bool:
        """Is this an address of this node's controller? A name that only a lookup could tell is not."""
        for listener in (*self.controller_listeners, *self.advertised_controller_listeners):
            if listener.port == port and (
                listener.host == host or (host in _LOOPBACK and listener.host in (*_LOOPBACK, *_WILDCARDS))
            ):
                return True
        return False

    @property
    def max_connections_per_ip_overrides(self) -> dict[str, int]:
        """max.connections.per.ip.overrides: address to limit."""
        pairs = (pair.rpartition(":") for pair in self["max.connections.per.ip.overrides"].split(",") if pair)
        return {host.strip(): int(limit) for host, _, limit in pairs}

    @property
    def log_retention_ms(self) -> int:
        """log.retention.ms, else .minutes, else .hours; -1 for ever."""
        if self["log.retention.ms"] is not None:
            millis = self["log.retention.ms"]
        elif self["log.retention.minutes"] is not None:
            millis = self["log.retention.minutes"] * _MINUTE_MS
        else:
            millis = self["log.retention.hours"] * _HOUR_MS
        return -1 if millis < 0 else int(millis)

    @property
    def log_roll_ms(self) -> int:
        millis = self["log.roll.ms"]
        return int(self["log.roll.hours"] * _HOUR_MS if millis is None else millis)

    @property
    def log_roll_jitter_ms(self) -> int:
        millis = self["log.roll.jitter.ms"]
        return int(self["log.roll.jitter.hours"] * _HOUR_MS if millis is None else millis)

    @property
    def log_flush_interval_ms(self) -> int:
        millis = self["log.flush.interval.ms"]
        return int(self["log.flush.scheduler.interval.ms"] if millis is None else millis)

    # -- topics --------------------------------------------------------------------------------------------

    def topic_defaults(self) -> dict[str, Any]:
        """What a topic without settings of its own has, typed, by the topic's key names."""
        if self._topic_defaults is None:
            defaults: dict[str, Any] = {}
            for name, key in TOPIC_KEYS.items():
                defaults[name] = key.default if key.synonym is None else self.values[key.synonym]
            defaults["retention.ms"] = self.log_retention_ms
            defaults["segment.ms"] = self.log_roll_ms
            defaults["segment.jitter.ms"] = self.log_roll_jitter_ms
            defaults["flush.ms"] = self.log_flush_interval_ms
            self._topic_defaults = defaults
        return self._topic_defaults

    def topic_values(self, overrides: Mapping[str, str]) -> dict[str, Any]:
        """A topic's settings, typed: what LogConfig.from_values takes. Unknown or bad overrides raise."""
        values = dict(self.topic_defaults())
        for name, text in overrides.items():
            key = TOPIC_KEYS.get(name)
            if key is None:
                raise ConfigError(f"Unknown topic config name: {name}", name)
            values[name] = parse_value(key, text)
        if values["internal.segment.bytes"] is not None:
            values["segment.bytes"] = values["internal.segment.bytes"]
        return values

    def _protocols(self) -> dict[str, str]:
        """The security protocol of each listener: PLAINTEXT for a controller's unless a map says else."""
        protocols = parse_protocol_map(self["listener.security.protocol.map"])
        if "listener.security.protocol.map" in self.originals:
            return protocols
        secured = {"SSL", "SASL_SSL", "SASL_PLAINTEXT"}
        names = [*self.controller_listener_names, *map(listener_name_of, self["listeners"])]
        if not secured.intersection(names):
            for name in self.controller_listener_names:
                protocols.setdefault(name, "PLAINTEXT")
        return protocols

    def _advertised(self) -> tuple[Listener, ...]:
        if self["advertised.listeners"] is None:
            return self.listeners
        entries = self["advertised.listeners"]
        return parse_listeners("advertised.listeners", entries, self.security_protocols, distinct_ports=False)


def _with_both_ids(static: Mapping[str, str]) -> dict[str, str]:
    """broker.id and node.id are one: whichever is set, Kafka's static configuration shows both."""
    settings = dict(static)
    if "node.id" in settings:
        settings.setdefault("broker.id", settings["node.id"])
    elif "broker.id" in settings:
        settings["node.id"] = settings["broker.id"]
    return settings


def _overlay(static: Mapping[str, str], *layers: Mapping[str, str]) -> dict[str, str]:
    """A dynamic setting hides every synonym of it below, even one that would come first by its name."""
    merged = dict(static)
    for layer in layers:
        for name, text in layer.items():
            for synonym in synonyms_of(name, listener_too=False):
                merged.pop(synonym, None)
            merged[name] = text
    return merged


def _typed(texts: Mapping[str, str]) -> dict[str, Value]:
    typed: dict[str, Value] = {}
    for name, text in texts.items():
        key = BROKER_KEYS.get(name)
        if key is not None:
            typed[name] = parse_value(key, text)
    return typed


def _for_user(error: ConfigError, settings: Settings) -> ConfigError:
    """Add where the key at fault was set, if it was the user who set it."""
    setting = settings.by_key.get(error.key or "listeners")
    if setting is None:
        return error
    name = error.key or "listeners"
    if error.reason and base_key(name) is not None:
        return in_users_words(error, name, setting.text, setting.origin)
    return ConfigError(f"{error} ({name} comes from {setting.origin})", name)


# -- the rules Kafka checks when a node starts and when a setting changes -------------------------------------


def _check_rules(config: BrokerConfig) -> None:
    """What keys have to be to each other: ConfigError with Kafka's sentence, and the key to look at."""
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
    if config.is_broker:
        _check_cordoned(config)


def _check_cordoned(config: BrokerConfig) -> None:
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
    for voter, (host, _) in voters.items():
        _require(
            host != "0.0.0.0",
            "controller.quorum.voters",
            f"controller.quorum.voters: nobody can connect to voter {voter} at 0.0.0.0",
        )
    if config.is_controller:
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
    if not config.is_broker:
        _require(
            len(config.controller_listeners) == len(config.listeners),
            "listeners",
            "The listeners config must only contain KRaft controller listeners from "
            "controller.listener.names "
            "when process.roles=controller",
        )
        _require(
            config["inter.broker.listener.name"] is None
            or config.inter_broker_listener_name not in config.controller_listener_names,
            "inter.broker.listener.name",
            "controller.listener.names must not contain an explicitly set inter.broker.listener.name "
            "configuration value when process.roles=controller",
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
            "listener.security.protocol.map (an explicit security mapping for each controller listener is required if "
            "listener.security.protocol.map is non-empty, or if there are security protocols other than PLAINTEXT in "
            "use)",
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
    if config.is_broker:
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
