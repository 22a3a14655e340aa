"""What the user set, before it is checked: server.properties, then KAFKA_* variables, then -X; the last wins.

Every setting remembers where it came from, so that a mistake can be answered with one line that names the file,
variable or option to mend. Variables are mapped to keys as the Apache Docker image maps them: KAFKA_LOG_DIRS is
log.dirs, two underscores are one, three a dash; those meant for the JVM, for the image's own scripts or for clients are
ignored. Built once at start, by the command line or a test; the environment is a parameter.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ottla.config.definitions import BROKER_KEYS, nearest_key, parse_value
from ottla.config.errors import ConfigError
from ottla.config.properties import MAX_PROPERTIES_BYTES, VARIABLE, decode_properties, parse_properties

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from ottla.config.types import ConfigKey


PREFIX = "KAFKA_"

# The image keeps these from server.properties ...
_JVM = frozenset(
    {
        "KAFKA_GC_LOG_OPTS",
        "KAFKA_HEAP_OPTS",
        "KAFKA_JMX_HOSTNAME",
        "KAFKA_JMX_OPTS",
        "KAFKA_JVM_PERFORMANCE_OPTS",
        "KAFKA_LOG4J_LOGGERS",
        "KAFKA_LOG4J_OPTS",
        "KAFKA_LOG4J_ROOT_LOGLEVEL",
        "KAFKA_OPTS",
        "KAFKA_TOOLS_LOG4J_LOGLEVEL",
        "KAFKA_VERSION",
    }
)
# ... these are used by its scripts and by those in bin/ ...
_SCRIPTS = frozenset(
    {
        "KAFKA_CLUSTER_ID",
        "KAFKA_DEBUG",
        "KAFKA_HOME",
        "KAFKA_JMX_PORT",
        "KAFKA_LOG4J_CMD_OPTS",
        "KAFKA_LOG4J2_OPTS",
        "KAFKA_MODE",
        "KAFKA_SSL_KEYSTORE_CREDENTIALS",
        "KAFKA_SSL_KEYSTORE_FILENAME",
        "KAFKA_SSL_KEY_CREDENTIALS",
        "KAFKA_SSL_TRUSTSTORE_CREDENTIALS",
        "KAFKA_SSL_TRUSTSTORE_FILENAME",
    }
)
# ... and these are what applications commonly call their own settings, so they say nothing to a broker.
_CLIENTS = frozenset(
    {
        "KAFKA_BOOTSTRAP",
        "KAFKA_BOOTSTRAP_SERVER",
        "KAFKA_BOOTSTRAP_SERVERS",
        "KAFKA_BROKER",
        "KAFKA_BROKERS",
        "KAFKA_BROKER_LIST",
        "KAFKA_CLIENT_ID",
        "KAFKA_CONSUMER_GROUP",
        "KAFKA_GROUP_ID",
        "KAFKA_HOST",
        "KAFKA_PASSWORD",
        "KAFKA_PORT",
        "KAFKA_TOPIC",
        "KAFKA_TOPICS",
        "KAFKA_URL",
        "KAFKA_USERNAME",
    }
)
IGNORED = _JVM | _SCRIPTS | _CLIENTS
LISTENER_PREFIX = "listener.name."
# These are set for one SASL mechanism of a listener: listener.name.<listener>.<mechanism>.<key>.
MECHANISM_KEYS = (
    "sasl.jaas.config",
    "sasl.login.callback.handler.class",
    "sasl.login.class",
    "sasl.server.callback.handler.class",
    "connections.max.reauth.ms",
)
# And all of OAUTHBEARER's may be.
OAUTHBEARER = "oauthbearer."
_OF_OAUTHBEARER = (f"{OAUTHBEARER}sasl.oauthbearer.", f"{OAUTHBEARER}sasl.login.")
# Read by the authorizer and other plugins rather than by the broker, so Kafka's own table does not have them.
PLUGIN_KEYS = frozenset({"allow.everyone.if.no.acl.found", "super.users"})
PLUGIN_PREFIXES = ("config.providers.", "rlmm.config.", "rsm.config.")
_ZOOKEEPER = "ZooKeeper is gone since Kafka 4.0"
_OLD_FORMATS = "there is only one message format since Kafka 4.0"
REMOVED_KEYS = {
    "broker.id.generation.enable": _ZOOKEEPER,
    "control.plane.listener.name": _ZOOKEEPER,
    "delegation.token.master.key": "it is delegation.token.secret.key since Kafka 4.0",
    "inter.broker.protocol.version": "features took its place in Kafka 4.0",
    "log.message.downconversion.enable": _OLD_FORMATS,
    "log.message.format.version": _OLD_FORMATS,
    "log.message.timestamp.difference.max.ms": "log.message.timestamp.before.max.ms took its place",
    "offsets.commit.required.acks": "commits always wait for all replicas since Kafka 4.0",
    "password.encoder.secret": _ZOOKEEPER,
    "reserved.broker.max.id": _ZOOKEEPER,
    "zookeeper.connect": _ZOOKEEPER,
    "zookeeper.connection.timeout.ms": _ZOOKEEPER,
    "zookeeper.session.timeout.ms": _ZOOKEEPER,
}
# Keys that say the same in other units, in order of precedence.
_ROLL = ("log.roll.ms", "log.roll.hours")
_JITTER = ("log.roll.jitter.ms", "log.roll.jitter.hours")
_RETENTION = ("log.retention.ms", "log.retention.minutes", "log.retention.hours")
# Only one way: the scheduler's interval is the default of the flush interval, not another name of it.
_FLUSH = ("log.flush.interval.ms", "log.flush.scheduler.interval.ms")
_SYNONYMS = {
    **dict.fromkeys(_ROLL, _ROLL),
    **dict.fromkeys(_JITTER, _JITTER),
    **dict.fromkeys(_RETENTION, _RETENTION),
    "log.flush.interval.ms": _FLUSH,
}
# Somebody's KAFKA_SOMETHING may have nothing to do with a broker; one this close to a key is meant for it.
TYPO_CLOSENESS = 0.85


def key_of(variable: str) -> str:
    """The key a KAFKA_* variable stands for."""
    dotted = variable[len(PREFIX) :].lower().replace("_", ".")
    return dotted.replace("...", "-").replace("..", "_")


def settings_of(environ: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Key, value and variable for every KAFKA_* variable that is a setting."""
    for name in sorted(name for name in environ if name.startswith(PREFIX) and name not in IGNORED):
        yield key_of(name), environ[name], name


def implied_listeners(environ: Mapping[str, str]) -> str | None:
    """The image listens on all interfaces where only the advertised listeners are set."""
    advertised = environ.get("KAFKA_ADVERTISED_LISTENERS")
    if not advertised or "KAFKA_LISTENERS" in environ or environ.get("KAFKA_PROCESS_ROLES") == "controller":
        return None
    return re.sub(r"://[^:]*:", "://0.0.0.0:", advertised)


class Setting:
    """A value as it was written, and where."""

    __slots__ = ("origin", "text")

    def __init__(self, text: str, origin: str) -> None:
        self.text = text
        self.origin = origin

    def __repr__(self) -> str:
        return f"Setting({self.origin})"


class Settings:
    """All settings by key, the winning one of each; `notes` are lines for the user."""

    __slots__ = ("by_key", "notes")

    def __init__(self) -> None:
        self.by_key: dict[str, Setting] = {}
        self.notes: list[str] = []

    @classmethod
    def of(cls, values: Mapping[str, object], origin: str = "the program") -> Settings:
        """Settings that a program or a test gives as a mapping."""
        settings = cls()
        for name, value in values.items():
            settings.put(name, _as_text(value), origin)
        settings.resolve({})
        return settings

    @classmethod
    def read(
        cls,
        *,
        file: Path | None = None,
        environ: Mapping[str, str] | None = None,
        overrides: Iterable[str] = (),
    ) -> Settings:
        """The three places, in order of precedence."""
        settings = cls()
        if file is not None:
            settings.read_file(file)
        settings.read_environment(environ or {})
        settings.read_overrides(overrides)
        settings.resolve(environ or {})
        return settings

    def resolve(self, environ: Mapping[str, str]) -> None:
        """Put what files, directories and variables say in the place of ${provider:path:key} (KIP-297)."""
        waiting = {name: setting for name, setting in self.by_key.items() if VARIABLE.search(setting.text)}
        if not waiting:
            return
        from ottla.config.providers import Providers

        providers = Providers({name: setting.text for name, setting in self.by_key.items()}, environ)
        for name, setting in waiting.items():
            text, missing = providers.resolve(setting.text)
            self.notes += [f"{name} ({setting.origin}): there is no {variable}" for variable in missing]
            # Said as it was written: what a provider gave may be a secret.
            check_value(name, text, setting.origin, shown=setting.text)
            self.by_key[name] = Setting(text, setting.origin)

    def read_file(self, file: Path) -> None:
        """A server.properties. It may be another release's, or have a plugin's keys: unknown keys are reported only."""
        if file.stat().st_size > MAX_PROPERTIES_BYTES:
            raise ConfigError(
                f"{file}: larger than {MAX_PROPERTIES_BYTES} bytes, so hardly a configuration file"
            )
        try:
            for name, value, line in parse_properties(decode_properties(file.read_bytes())):
                self.put(name, value, f"{file}, line {line}", is_typed=False)
        except ConfigError as error:
            raise error if error.key else ConfigError(f"{file}: {error}") from None

    def read_environment(self, environ: Mapping[str, str]) -> None:
        """KAFKA_* variables; one that is no key is reported, with the key that was probably meant."""
        for name, value, variable in settings_of(environ):
            origin = f"environment variable {variable}"
            is_close = nearest_key(name, BROKER_KEYS, TYPO_CLOSENESS) is not None
            if is_known(name) or name in REMOVED_KEYS or is_close:
                self.put(name, value, origin, is_typed=False)
            else:
                self.notes.append(f"{origin} is no broker setting; ignored")
        listeners = implied_listeners(environ)
        if listeners is not None and "listeners" not in self.by_key:
            self.put("listeners", listeners, "environment variable KAFKA_ADVERTISED_LISTENERS")

    def read_overrides(self, overrides: Iterable[str]) -> None:
        """-X key=value, as often as the user likes; the last of a key wins."""
        for pair in overrides:
            name, equals, value = pair.partition("=")
            if not equals or not name.strip():
                raise ConfigError(f"-X {pair}: expected key=value")
            self.put(name.strip(), value, "-X")

    def put(self, name: str, text: str, origin: str, *, is_typed: bool = True) -> None:
        """Take one setting, after checking that its key exists and its value is one, or will be.

        An unknown key is a mistake where somebody has just typed it; elsewhere, as in Kafka, it is reported and kept.
        """
        if not is_known(name):
            error = unknown_key(name, origin)
            if is_typed:
                raise error
            self.notes.append(f"ignored: {error}")
        elif not VARIABLE.search(text):
            check_value(name, text, origin)
        self.by_key[name] = Setting(text, origin)

    def text(self, name: str) -> str | None:
        """The text of a key, if it was set."""
        setting = self.by_key.get(name)
        return setting.text if setting else None

    def origin(self, name: str) -> str:
        """Where a key was set."""
        return self.by_key[name].origin


def check_value(name: str, text: str, origin: str, shown: str | None = None) -> None:
    """One clear line if the value is none for this key; a plugin's values are the plugin's to check."""
    key = base_key(name)
    if key is None:
        return
    try:
        parse_value(key, text)
    except ConfigError as error:
        raise in_users_words(error, name, text if shown is None else shown, origin) from None


def is_known(name: str) -> bool:
    """Is this a key of Kafka's broker, or of the plugins that come with it?"""
    return base_key(name) is not None or is_plugin_key(name)


def base_key(name: str) -> ConfigKey | None:
    """The key behind a name, which may be prefixed for one listener and one SASL mechanism of it."""
    key = BROKER_KEYS.get(name)
    if key is None and name.startswith(LISTENER_PREFIX):
        base = name[len(LISTENER_PREFIX) :].partition(".")[2]
        key = BROKER_KEYS.get(base)
        if key is None:
            key = next((BROKER_KEYS[end] for end in MECHANISM_KEYS if base.endswith("." + end)), None)
        if key is None and base.startswith(_OF_OAUTHBEARER):
            key = BROKER_KEYS.get(base.removeprefix(OAUTHBEARER))
    return key


def synonyms_of(name: str, *, listener_too: bool = True) -> tuple[str, ...]:
    """All names of a broker's key in order of precedence, itself among them."""
    known = _SYNONYMS.get(name)
    if known is not None:
        return known
    if listener_too and name.startswith(LISTENER_PREFIX):
        base = name[len(LISTENER_PREFIX) :].partition(".")[2]
        if base:
            return (name, next((end for end in MECHANISM_KEYS if base.endswith(end)), base))
    return (name,)


def is_plugin_key(name: str) -> bool:
    """Is this for a plugin, and not for the broker?"""
    return name in PLUGIN_KEYS or name.startswith(PLUGIN_PREFIXES)


def unknown_key(name: str, origin: str) -> ConfigError:
    """The line for a key that does not exist."""
    if name in REMOVED_KEYS:
        return ConfigError(f"{name} ({origin}) is no longer a key: {REMOVED_KEYS[name]}", name)
    base = name
    prefix = ""
    if name.startswith(LISTENER_PREFIX) and name.count(".") > 2:
        listener, _, base = name[len(LISTENER_PREFIX) :].partition(".")
        prefix = f"{LISTENER_PREFIX}{listener}."
    guess = nearest_key(base, BROKER_KEYS)
    hint = f"; did you mean {prefix}{guess}?" if guess else "; it is none of Kafka 4.3's broker keys"
    return ConfigError(f"unknown key {name} ({origin}){hint}", name)


def in_users_words(error: ConfigError, name: str, text: str, origin: str) -> ConfigError:
    """The same error, worded for the person who set the value."""
    key = base_key(name)
    shown = "[hidden]" if key is not None and key.sensitive else text
    expected = f"expected {error.reason}" if error.reason else str(error)
    return ConfigError(
        f"bad value {shown!r} for {name} ({origin}): {expected}", name, reason=error.reason, value=text
    )


def _as_text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return ",".join(str(entry) for entry in value)
    return str(value)
