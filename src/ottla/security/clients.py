"""From Kafka's keys to what a connection needs (SslChannelBuilder and SaslChannelBuilder, on the side that connects).

Rules: whatever is wrong with the keys is ConfigError, in one line without a secret. Stores are read: off the loop.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from ottla.config.errors import ConfigError
from ottla.security.channels import WITH_SASL, WITH_TLS, ChannelSecurity
from ottla.security.sasl.jaas import JaasEntry, check_mechanism, parse_jaas
from ottla.security.sasl.mechanisms import PLAIN, SaslClient
from ottla.security.sasl.plain import PlainSaslClient
from ottla.security.sasl.scram import ScramSaslClient
from ottla.security.scram_credentials import MECHANISMS as SCRAM_MECHANISMS
from ottla.security.tls.contexts import client_context, tls_settings


def channel_security(
    protocol: str, get: Callable[[str], Any], mechanism: str, jaas_key: str, jaas: str | None
) -> ChannelSecurity:
    """By a security protocol: `get` gives the values of ssl.*, and `jaas` (of `jaas_key`) who we are."""
    context = client_context(tls_settings(get)) if protocol in WITH_TLS else None
    if protocol not in WITH_SASL:
        return ChannelSecurity(context)
    if mechanism != PLAIN and mechanism not in SCRAM_MECHANISMS:
        known = ", ".join((PLAIN, *SCRAM_MECHANISMS))
        raise ConfigError(f"SASL mechanism {mechanism} is not supported; {known} are")
    if jaas is None:
        raise ConfigError(f"{jaas_key} is not set: it says who this is to the other side", jaas_key)
    try:
        (entry,) = parse_jaas(jaas)
        check_mechanism(entry, mechanism)
        new_exchange = partial(_exchange, mechanism, entry)
        new_exchange()  # what is missing is told now
    except ConfigError as error:
        raise ConfigError(f"{jaas_key}: {error}", jaas_key) from None
    return ChannelSecurity(context, mechanism, new_exchange)


def _exchange(mechanism: str, entry: JaasEntry) -> SaslClient:
    if mechanism == PLAIN:
        return PlainSaslClient.from_jaas(entry)
    return ScramSaslClient.from_jaas(SCRAM_MECHANISMS[mechanism], entry)
