"""From Kafka's keys to SASL exchanges (SaslChannelBuilder, on the side that connects).

Rules: whatever is wrong with the keys is ConfigError, in one line without a secret.
"""

from collections.abc import Callable
from functools import partial

from ottla.config.errors import ConfigError
from ottla.security.sasl.jaas import JaasEntry, check_mechanism, parse_jaas
from ottla.security.sasl.mechanisms import PLAIN, SaslClient
from ottla.security.sasl.plain import PlainSaslClient
from ottla.security.sasl.scram import ScramSaslClient
from ottla.security.scram_credentials import MECHANISMS as SCRAM_MECHANISMS


def sasl_exchanges(
    mechanism: str, jaas_key: str, jaas: str | None, login: tuple[str, str] | None = None
) -> Callable[[], SaslClient]:
    """What makes each exchange: who we are stands in a JAAS text (of `jaas_key`), or is a name and a password."""
    if mechanism != PLAIN and mechanism not in SCRAM_MECHANISMS:
        known = ", ".join((PLAIN, *SCRAM_MECHANISMS))
        raise ConfigError(f"SASL mechanism {mechanism} is not supported; {known} are")
    if jaas is None and login is None:
        raise ConfigError(f"{jaas_key} is not set: it says who this is to the other side", jaas_key)
    if jaas is None:
        assert login is not None
        new_exchange: Callable[[], SaslClient] = partial(_by_password, mechanism, *login)
        new_exchange()  # what cannot be sent is told now
        return new_exchange
    try:
        (entry,) = parse_jaas(jaas)
        check_mechanism(entry, mechanism)
        new_exchange = partial(_by_jaas, mechanism, entry)
        new_exchange()
    except ConfigError as error:
        raise ConfigError(f"{jaas_key}: {error}", jaas_key) from None
    return new_exchange


def _by_password(mechanism: str, username: str, password: str) -> SaslClient:
    if mechanism == PLAIN:
        return PlainSaslClient(username, password)
    return ScramSaslClient(SCRAM_MECHANISMS[mechanism], username, password)


def _by_jaas(mechanism: str, entry: JaasEntry) -> SaslClient:
    if mechanism == PLAIN:
        return PlainSaslClient.from_jaas(entry)
    return ScramSaslClient.from_jaas(SCRAM_MECHANISMS[mechanism], entry)
