"""What DescribeConfigs answers for a resource: value, source, synonyms, type, for every key, as Kafka answers it.

Pure functions over a BrokerConfig and a resource's own settings. Entries are sorted by name. Passwords, and keys of
unknown type, never show a value. Synonyms are the keys that say the same in other units or for one listener (KIP-226).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.config.definitions import (
    BROKER_KEYS,
    BROKER_QUOTA_KEYS,
    CLIENT_METRICS_KEYS,
    GROUP_KEYS,
    TOPIC_KEYS,
)
from ottla.config.settings import base_key, synonyms_of
from ottla.config.types import Source, Type, parse_value, to_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ottla.config.broker import BrokerConfig
    from ottla.config.types import ConfigKey


class Synonym:
    """One layer's value of a key."""

    __slots__ = ("name", "source", "value")

    def __init__(self, name: str, value: str | None, source: Source) -> None:
        self.name = name
        self.value = value
        self.source = source

    def __repr__(self) -> str:
        return f"Synonym({self.name}={self.value}, {self.source.name})"


class Described:
    """One entry of a DescribeConfigs response."""

    __slots__ = ("key", "name", "read_only", "sensitive", "source", "synonyms", "type", "value")

    def __init__(
        self,
        name: str,
        value: str | None,
        key: ConfigKey | None,
        synonyms: list[Synonym],
        *,
        read_only: bool = False,
    ) -> None:
        self.name = name
        self.value = value
        self.read_only = read_only
        self.sensitive = _is_sensitive(key)
        self.source = synonyms[0].source if synonyms else Source.DEFAULT_CONFIG
        self.synonyms = synonyms
        self.type = Type.UNKNOWN if key is None else key.type
        self.key = key

    @property
    def documentation(self) -> str | None:
        """A sentence about the key; Kafka has none for a listener's own key or a quota of a broker."""
        if self.key is None or self.key.name != self.name or self.name in BROKER_QUOTA_KEYS:
            return None
        from ottla.config.keys.docs import documentation_of

        return documentation_of(self.name)


def describe_broker(config: BrokerConfig, names: Iterable[str] | None = None) -> list[Described]:
    """A broker: every key it knows, and whatever else was set."""
    shown = {name for name, key in BROKER_KEYS.items() if not key.internal} | config.originals.keys()
    return [_broker_entry(config, name, per_broker=True) for name in _wanted(shown, names)]


def describe_cluster_default(config: BrokerConfig, names: Iterable[str] | None = None) -> list[Described]:
    """The default of all brokers: only what was set there."""
    return [
        _broker_entry(config, name, per_broker=False)
        for name in _wanted(config.dynamic_default.keys(), names)
    ]


def describe_topic(
    config: BrokerConfig, overrides: Mapping[str, str], names: Iterable[str] | None = None
) -> list[Described]:
    """A topic, given its own settings."""
    shown = {name for name, key in TOPIC_KEYS.items() if not key.internal} | overrides.keys()
    return [_topic_entry(config, name, overrides) for name in _wanted(shown, names)]


def describe_group(
    config: BrokerConfig, overrides: Mapping[str, str], names: Iterable[str] | None = None
) -> list[Described]:
    """A group, given its own settings (KIP-848)."""
    return [_group_entry(config, name, overrides) for name in _wanted(GROUP_KEYS.keys(), names)]


def group_values(config: BrokerConfig, overrides: Mapping[str, str]) -> dict[str, Any]:
    """The typed settings of a group: its own, or what the broker says for all groups."""
    return {name: _group_value(config, name, overrides) for name in GROUP_KEYS}


def describe_client_metrics(
    overrides: Mapping[str, str], names: Iterable[str] | None = None
) -> list[Described]:
    """A client metrics subscription, given its own settings (KIP-714)."""
    entries = []
    for name in _wanted(CLIENT_METRICS_KEYS.keys(), names):
        key = CLIENT_METRICS_KEYS[name]
        value = to_text(key, parse_value(key, overrides[name]) if name in overrides else key.default)
        own = [Synonym(name, value, Source.CLIENT_METRICS_CONFIG)] if name in overrides else []
        entries.append(Described(name, value, key, own))
    return entries


def broker_synonyms(config: BrokerConfig, name: str) -> list[Synonym]:
    """Every layer under every name of a key, in order; what stands before the name itself belongs to another key."""
    sensitive, names = _is_sensitive(broker_key(name)), synonyms_of(name)
    found = [
        Synonym(synonym, None if sensitive else text, source)
        for layer, source in _layers(config)
        for synonym in names
        if (text := layer.get(synonym)) is not None
    ]
    while found and found[0].name != name:
        del found[0]
    return found


def topic_synonyms(config: BrokerConfig, name: str, overrides: Mapping[str, str]) -> list[Synonym]:
    """The topic's own value, then the broker's for the key that gives it its default."""
    key = TOPIC_KEYS.get(name)
    found: list[Synonym] = []
    if name in overrides:
        value = None if key is None else to_text(key, parse_value(key, overrides[name]))
        found.append(Synonym(name, value, Source.TOPIC_CONFIG))
    if key is not None and key.synonym is not None:
        found += broker_synonyms(config, key.synonym)
    return found


def broker_key(name: str) -> ConfigKey | None:
    """The key a broker's setting is an instance of, if anybody knows."""
    return base_key(name) or BROKER_QUOTA_KEYS.get(name)


def is_read_only(name: str) -> bool:
    """May nobody change this while a broker runs? Kafka calls a listener's own key read-only too."""
    key = BROKER_KEYS.get(name) or BROKER_QUOTA_KEYS.get(name)
    return key is None or key.read_only


_default_texts: dict[str, str] = {}


def _defaults() -> dict[str, str]:
    """The default of every broker key that has one, as text; made when first asked for."""
    if not _default_texts:
        texts = {name: to_text(key, key.default) for name, key in BROKER_KEYS.items() if key.has_default}
        _default_texts.update({name: text for name, text in texts.items() if text is not None})
    return _default_texts


def _layers(config: BrokerConfig) -> tuple[tuple[Mapping[str, str], Source], ...]:
    return (
        (config.dynamic_broker, Source.DYNAMIC_BROKER_CONFIG),
        (config.dynamic_default, Source.DYNAMIC_DEFAULT_BROKER_CONFIG),
        (config.static, Source.STATIC_BROKER_CONFIG),
        (_defaults(), Source.DEFAULT_CONFIG),
    )


def _broker_entry(config: BrokerConfig, name: str, *, per_broker: bool) -> Described:
    key = broker_key(name)
    layers = broker_synonyms(config, name)
    if per_broker:
        value = _broker_value(config, name)
    else:
        value = config.dynamic_default[name]
        layers = [layer for layer in layers if layer.source is Source.DYNAMIC_DEFAULT_BROKER_CONFIG]
    if _is_sensitive(key):
        value = None
    return Described(name, value, key, layers, read_only=is_read_only(name))


def _broker_value(config: BrokerConfig, name: str) -> str | None:
    key = BROKER_KEYS.get(name)
    return config.originals[name] if key is None else to_text(key, config.values[name])


def _topic_entry(config: BrokerConfig, name: str, overrides: Mapping[str, str]) -> Described:
    key = TOPIC_KEYS.get(name)
    if key is None:
        return Described(name, None, None, topic_synonyms(config, name, overrides))
    value = parse_value(key, overrides[name]) if name in overrides else config.topic_defaults()[name]
    return Described(name, to_text(key, value), key, topic_synonyms(config, name, overrides))


def _group_entry(config: BrokerConfig, name: str, overrides: Mapping[str, str]) -> Described:
    key = GROUP_KEYS[name]
    value = to_text(key, _group_value(config, name, overrides))
    found = [Synonym(name, value, Source.GROUP_CONFIG)] if name in overrides else []
    if key.synonym is not None:
        found += broker_synonyms(config, key.synonym)
    else:
        found.append(Synonym(name, to_text(key, key.default), Source.DEFAULT_CONFIG))
    return Described(name, value, key, found)


def _group_value(config: BrokerConfig, name: str, overrides: Mapping[str, str]) -> Any:
    key = GROUP_KEYS[name]
    if name in overrides:
        return parse_value(key, overrides[name])
    return key.default if key.synonym is None else config.values[key.synonym]


def _is_sensitive(key: ConfigKey | None) -> bool:
    return key is None or key.sensitive


def _wanted(shown: Iterable[str], names: Iterable[str] | None) -> list[str]:
    """All of them, or those asked for; an empty list asks for all, as in Kafka."""
    asked = set(names or ())
    return sorted(name for name in shown if not asked or name in asked)
