"""From Kafka's keys to SASL exchanges (SaslChannelBuilder, on the side that connects).

Rules: whatever is wrong with the keys is ConfigError, in one line without a secret. Classes are import paths of
Python's, where Kafka's own names stand for what is here; a login module is one of Kafka's, whatever a JAAS text says.
"""

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from ottla.config.errors import ConfigError
from ottla.model.plugins import find_class
from ottla.security.sasl.jaas import JaasEntry, check_mechanism, parse_jaas
from ottla.security.sasl.mechanisms import GSSAPI, MECHANISMS, OAUTHBEARER, PLAIN, SaslClient, SaslError
from ottla.security.sasl.plain import PlainSaslClient
from ottla.security.sasl.scram import ScramSaslClient
from ottla.security.scram_credentials import MECHANISMS as SCRAM_MECHANISMS

# With the host that is connected to.
NewExchange = Callable[[str], SaslClient]
# From a key to its value, None where there is none.
Get = Callable[[str], Any]

LOGIN_KEY: Final = "sasl.login.class"
LOGIN_HANDLER_KEY: Final = "sasl.login.callback.handler.class"
CLIENT_HANDLER_KEY: Final = "sasl.client.callback.handler.class"
SERVICE_NAME_KEY: Final = "sasl.kerberos.service.name"
_KAFKA: Final = "org.apache.kafka.common.security."
_LOGINS: Final = (
    f"{_KAFKA}authenticator.DefaultLogin",
    f"{_KAFKA}kerberos.KerberosLogin",
    f"{_KAFKA}oauthbearer.internals.OAuthBearerRefreshingLogin",
)
_CLIENT_HANDLERS: Final = (
    f"{_KAFKA}authenticator.SaslClientCallbackHandler",
    f"{_KAFKA}oauthbearer.internals.OAuthBearerSaslClientCallbackHandler",
)
_LOGIN_HANDLERS: Final = (
    f"{_KAFKA}authenticator.AbstractLogin$DefaultLoginCallbackHandler",
    f"{_KAFKA}kerberos.KerberosClientCallbackHandler",
)


def sasl_exchanges(
    mechanism: str,
    jaas_key: str,
    jaas: str | None,
    login: tuple[str, str] | None = None,
    get: Get = lambda key: None,
    environ: Mapping[str, str] = os.environ,
) -> NewExchange:
    """What makes each exchange: who we are stands in a JAAS text (of `jaas_key`), or is a name and a password.

    `get` has the other keys. Where somebody else has to be asked for a token, a ticket or a password, the first step of
    an exchange does that, and is slow.
    """
    if mechanism not in MECHANISMS:
        raise ConfigError(f"SASL mechanism {mechanism} is not supported; {', '.join(MECHANISMS)} are")
    try:
        entry = None
        if jaas is not None:
            (entry,) = parse_jaas(jaas)
            check_mechanism(entry, mechanism)
    except ConfigError as error:
        raise ConfigError(f"{jaas_key}: {error}", jaas_key) from None
    if (own := own_class(LOGIN_KEY, get(LOGIN_KEY), _LOGINS)) is not None:
        options = {} if entry is None else entry.options
        return _deferred(mechanism, LOGIN_KEY, made(LOGIN_KEY, own, get, options))
    if mechanism == OAUTHBEARER:
        return _deferred(mechanism, "the login", _oauth(entry, get, environ))
    _refuse_handler(LOGIN_HANDLER_KEY, get(LOGIN_HANDLER_KEY), _LOGIN_HANDLERS, mechanism)
    if mechanism == GSSAPI:
        return _deferred(mechanism, "the login", _kerberos(entry, get))
    if (handler := own_class(CLIENT_HANDLER_KEY, get(CLIENT_HANDLER_KEY), _CLIENT_HANDLERS)) is not None:
        own = made(CLIENT_HANDLER_KEY, handler) if isinstance(handler, type) else handler
        return _deferred(mechanism, CLIENT_HANDLER_KEY, lambda host: _by_password(mechanism, *own()))
    if entry is None and login is None:
        raise ConfigError(f"{jaas_key} is not set: it says who this is to the other side", jaas_key)
    if entry is None:
        assert login is not None
        new_exchange: Callable[[], SaslClient] = partial(_by_password, mechanism, *login)
    else:
        new_exchange = partial(_by_jaas, mechanism, entry)
    try:
        new_exchange()  # what cannot be sent is told now
    except ConfigError as error:
        raise ConfigError(f"{jaas_key}: {error}" if entry else str(error), jaas_key) from None
    return lambda host: new_exchange()


def own_class(key: str, named: Any, known: tuple[str, ...]) -> Any:
    """What an import path names; None where nothing is named, or what is here by Kafka's name. ConfigError."""
    if not named or named in known:
        return None
    if not isinstance(named, str):
        return named
    if named.startswith("org.apache.kafka."):
        raise ConfigError(f"{key}: {named} is not supported; known are {', '.join(known)}", key)
    try:
        return find_class(named)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{key}: {named} cannot be imported: {error}", key) from None
    except Exception as error:
        raise ConfigError(f"{key}: {named} cannot be imported: {type(error).__name__}", key) from error


def made(key: str, own: Any, *arguments: Any) -> Any:
    """What an operator's own class or function makes. ConfigError, without its words, which may be about a secret."""
    try:
        return own(*arguments)
    except ConfigError:
        raise
    except Exception as error:
        name = getattr(own, "__qualname__", type(own).__name__)
        raise ConfigError(f"{key}: {name} failed: {type(error).__name__}", key) from error


def _refuse_handler(key: str, named: Any, known: tuple[str, ...], mechanism: str) -> None:
    if named and named not in known:
        raise ConfigError(f"{key}: {mechanism} has none but its own", key)


def _by_password(mechanism: str, username: str, password: str) -> SaslClient:
    if mechanism == PLAIN:
        return PlainSaslClient(username, password)
    return ScramSaslClient(SCRAM_MECHANISMS[mechanism], username, password)


def _by_jaas(mechanism: str, entry: JaasEntry) -> SaslClient:
    if mechanism == PLAIN:
        return PlainSaslClient.from_jaas(entry)
    return ScramSaslClient.from_jaas(SCRAM_MECHANISMS[mechanism], entry)


class DeferredExchange:
    """An exchange that is made with its first step, in a thread: whoever makes it may have to wait."""

    def __init__(self, make: Callable[[], SaslClient]) -> None:
        self._make = make
        self._made: SaslClient | None = None

    @property
    def is_slow(self) -> bool:
        return self._made is None or self._made.is_slow

    @property
    def complete(self) -> bool:
        return self._made is not None and self._made.complete

    def evaluate(self, challenge: bytes | None) -> bytes | None:
        if self._made is None:
            self._made = self._make()
        return self._made.evaluate(challenge)


def _deferred(mechanism: str, what: str, new_exchange: NewExchange) -> NewExchange:
    """Whatever an operator's own code does is this login's failure, and tells nothing but what it was."""

    def make(host: str) -> SaslClient:
        try:
            return new_exchange(host)
        except SaslError:
            raise
        except Exception as error:
            words = f"{what} failed: {type(error).__name__}"
            raise SaslError(mechanism, words, words) from error

    return lambda host: DeferredExchange(partial(make, host))


def _oauth(entry: JaasEntry | None, get: Get, environ: Mapping[str, str]) -> NewExchange:
    from ottla.security.sasl.oauth.login import oauth_login
    from ottla.security.sasl.oauthbearer import jaas_extensions

    _refuse_handler(CLIENT_HANDLER_KEY, get(CLIENT_HANDLER_KEY), _CLIENT_HANDLERS, OAUTHBEARER)
    options = {} if entry is None else entry.options
    extensions = {} if entry is None else jaas_extensions(entry)
    return oauth_login(get, options, extensions, environ).new_exchange


def _kerberos(entry: JaasEntry | None, get: Get) -> NewExchange:
    from ottla.security.sasl.gssapi import (
        NO_LOGIN,
        GssapiSaslClient,
        initiate_context,
        kerberos_login,
        require_package,
    )

    _refuse_handler(CLIENT_HANDLER_KEY, get(CLIENT_HANDLER_KEY), _CLIENT_HANDLERS, GSSAPI)
    login = NO_LOGIN if entry is None else kerberos_login(entry)
    named = get(SERVICE_NAME_KEY) or None
    if named and login.service_name and named != login.service_name:
        raise ConfigError(
            f"{SERVICE_NAME_KEY} is {named}, and the JAAS text says {login.service_name}", SERVICE_NAME_KEY
        )
    service_name = login.service_name or named
    if service_name is None:
        raise ConfigError(
            f"{SERVICE_NAME_KEY} is not set: the name of the brokers, kafka mostly", SERVICE_NAME_KEY
        )
    require_package()
    return lambda host: GssapiSaslClient(initiate_context(login, service_name, host))
