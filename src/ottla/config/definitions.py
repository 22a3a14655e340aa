"""All keys of Kafka 4.3.1, by resource: BROKER_KEYS, TOPIC_KEYS, GROUP_KEYS, CLIENT_METRICS_KEYS.

The tables are in ottla.config.keys, a file for each family. Immutable, built once when this is imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.config.errors import ConfigError
from ottla.config.keys.groups import CLIENT_METRICS, GROUP, GROUPS, SHARE, TRANSACTIONS
from ottla.config.keys.log import CLEANER, LOG, REMOTE, REPLICATION, TOPIC
from ottla.config.keys.security import SASL, SSL
from ottla.config.keys.server import BROKER_QUOTAS, NETWORK, QUORUM, QUOTAS
from ottla.config.types import ConfigKey, ResourceType, Scope, Source, Type, parse_value, to_text

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "BROKER_KEYS",
    "BROKER_QUOTA_KEYS",
    "CLIENT_METRICS_KEYS",
    "GROUP_KEYS",
    "KEYS_OF",
    "LISTENER_ONLY_KEYS",
    "TOPIC_KEYS",
    "ConfigError",
    "ConfigKey",
    "ResourceType",
    "Scope",
    "Source",
    "Type",
    "nearest_key",
    "parse_value",
    "to_text",
]


def _by_name(*tables: Iterable[ConfigKey]) -> dict[str, ConfigKey]:
    return {key.name: key for table in tables for key in table}


BROKER_KEYS = _by_name(
    QUORUM,
    NETWORK,
    LOG,
    CLEANER,
    REPLICATION,
    GROUPS,
    SHARE,
    TRANSACTIONS,
    QUOTAS,
    SSL,
    SASL,
    REMOTE,
)
TOPIC_KEYS = _by_name(TOPIC)
GROUP_KEYS = _by_name(GROUP)
CLIENT_METRICS_KEYS = _by_name(CLIENT_METRICS)
# Set only while a broker runs, so they are no part of what a file may say.
BROKER_QUOTA_KEYS = _by_name(BROKER_QUOTAS)

KEYS_OF = {
    ResourceType.TOPIC: TOPIC_KEYS,
    ResourceType.BROKER: BROKER_KEYS,
    ResourceType.GROUP: GROUP_KEYS,
    ResourceType.CLIENT_METRICS: CLIENT_METRICS_KEYS,
}

# Key and trust store settings may change while a broker runs, but only for one listener at a time (KIP-226).
LISTENER_ONLY_KEYS = frozenset(
    {
        "ssl.key.password",
        "ssl.keystore.certificate.chain",
        "ssl.keystore.key",
        "ssl.keystore.location",
        "ssl.keystore.password",
        "ssl.keystore.type",
        "ssl.truststore.certificates",
        "ssl.truststore.location",
        "ssl.truststore.password",
        "ssl.truststore.type",
    }
)


def nearest_key(name: str, known: Iterable[str], closeness: float = 0.6) -> str | None:
    """The known key that somebody who wrote this one most likely meant."""
    import difflib

    found = difflib.get_close_matches(name.lower(), list(known), n=1, cutoff=closeness)
    return found[0] if found else None
