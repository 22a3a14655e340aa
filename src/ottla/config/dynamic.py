"""DynamicBrokerConfig: which settings a broker takes while it runs, for one broker and for all (KIP-226).

Pure functions over names and texts; what the rest of the configuration makes of them is checked in ottla.config.alter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.config.definitions import BROKER_KEYS, BROKER_QUOTA_KEYS, LISTENER_ONLY_KEYS, Scope, parse_value
from ottla.config.errors import ConfigError
from ottla.config.settings import LISTENER_PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# These have a cluster-wide meaning even when they are set for one listener.
_CLUSTER_LISTENER_KEYS = frozenset({"max.connections", "max.connection.creation.rate", "num.network.threads"})


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
    return {name: text for name, text in settings.items() if _accepts(name, text, per_broker=per_broker)}


def _accepts(name: str, text: str, *, per_broker: bool) -> bool:
    try:
        check_dynamic({name: text}, per_broker=per_broker)
    except ConfigError:
        return False
    return True


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
    # A read-only key under a listener's prefix is the plugin's to check, as are unknown keys.
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
