"""What a listener's security protocol comes to (Kafka's ChannelBuilders): its TLS, its SASL mechanisms, and principals.

Rules: settings of a listener win over those of the node (listener.name.<listener>.<key>), and those of a mechanism are
the listener's alone (listener.name.<listener>.<mechanism>.<key>), as in Kafka. Whatever is wrong with them is
ConfigError, in one line without a secret, before the node listens. Stores may change while it does (KIP-226): new
connections get the new ones, others keep what they have. Secrets are the configuration's, and go no further. It is
imported where there is something to secure: what it takes would slow every start down.

Owner: the node's SocketServer, on the broker's loop.
"""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, Final

from ottla.config.broker import BrokerConfig
from ottla.config.definitions import BROKER_KEYS, LISTENER_ONLY_KEYS, parse_value
from ottla.config.errors import ConfigError
from ottla.config.settings import LISTENER_PREFIX
from ottla.model.clock import Clock
from ottla.model.errors import ErrorCode, KafkaError
from ottla.security.channels import WITH_SASL, WITH_TLS, ChannelSecurity, NodeChannels
from ottla.security.principal import USER, KafkaPrincipal
from ottla.security.sasl.clients import made, own_class, sasl_exchanges
from ottla.security.sasl.jaas import JaasEntry, check_mechanism, parse_jaas
from ottla.security.sasl.mechanisms import GSSAPI, MECHANISMS, OAUTHBEARER, PLAIN, SaslError, SaslServer
from ottla.security.sasl.oauthbearer import TokenValidator
from ottla.security.sasl.plain import JaasUsers, PlainSaslServer
from ottla.security.sasl.scram import ScramSaslServer, ScramUsers
from ottla.security.scram_credentials import MECHANISMS as SCRAM_MECHANISMS
from ottla.security.scram_credentials import Mechanism
from ottla.security.tls.contexts import (
    certificate_changes,
    client_context,
    handshake_error,
    load_key_material,
    made_of,
    server_context,
    tls_settings,
)
from ottla.security.tls.der import DerError
from ottla.security.tls.mapping import NoMatchingRule, SslPrincipalMapper
from ottla.security.tls.names import Certificate, read_certificate

HANDLER_KEY: Final = "sasl.server.callback.handler.class"
CLIENT_AUTH_KEY: Final = "ssl.client.auth"
VALIDATOR_KEY: Final = "sasl.oauthbearer.jwt.validator.class"
# Of one listener. An exchange that is slow waits, or works for some milliseconds.
SASL_THREADS: Final = 4
# Steps that are made or wait for a thread: while nobody answers them, who else comes is closed, and may come again.
MAX_SASL_STEPS: Final = 2_000
_KAFKA: Final = "org.apache.kafka.common.security."
# Kafka's own, which are what is here anyway.
_HANDLERS: Final = (
    f"{_KAFKA}authenticator.SaslServerCallbackHandler",
    f"{_KAFKA}plain.internals.PlainServerCallbackHandler",
    f"{_KAFKA}scram.internals.ScramServerCallbackHandler",
    f"{_KAFKA}oauthbearer.OAuthBearerValidatorCallbackHandler",
    f"{_KAFKA}oauthbearer.secured.OAuthBearerValidatorCallbackHandler",
)
# Not ClientJwtValidator, which looks at no signature.
_VALIDATORS: Final = (
    f"{_KAFKA}oauthbearer.DefaultJwtValidator",
    f"{_KAFKA}oauthbearer.BrokerJwtValidator",
)


def node_channels(config: BrokerConfig) -> NodeChannels:
    """How this node reaches others: by listeners of theirs that have the name, protocol and settings of its own.

    Reads stores: off the loop.
    """
    controllers = _node_channel(
        config, config.controller_listener_names[0], "sasl.mechanism.controller.protocol"
    )
    if not config.is_broker:
        return NodeChannels(controllers)
    brokers = _node_channel(config, config.inter_broker_listener_name, "sasl.mechanism.inter.broker.protocol")
    return NodeChannels(controllers, brokers)


def _node_channel(config: BrokerConfig, listener: str, mechanism_key: str) -> ChannelSecurity:
    protocol = config.security_protocols[listener]
    try:
        context, stores = None, None
        if protocol in WITH_TLS:
            settings = tls_settings(partial(config.for_listener, listener))
            stores = made_of(settings)
            context = client_context(settings)
        if protocol not in WITH_SASL:
            return ChannelSecurity(context, made_of=stores)
        mechanism = config.for_listener(listener, mechanism_key)
        jaas_key = f"{LISTENER_PREFIX}{listener.lower()}.{mechanism.lower()}.sasl.jaas.config"
        exchanges = sasl_exchanges(
            mechanism,
            jaas_key,
            config.originals.get(jaas_key),
            get=mechanism_getter(config, listener, mechanism),
        )
        return ChannelSecurity(context, mechanism, exchanges, stores)
    except ConfigError as error:
        raise ConfigError(f"connections to listener {listener} of other nodes: {error}", error.key) from None


def renew_node_channels(channels: NodeChannels, config: BrokerConfig) -> None:
    """Connections to other nodes that are made from now on use the stores of this configuration.

    ConfigError if they cannot, and those that they had are used on. Reads stores: off the loop.
    """
    listeners = {config.controller_listener_names[0]: channels.controllers}
    if config.is_broker:
        listeners[config.inter_broker_listener_name] = channels.brokers
    for listener, channel in listeners.items():
        if channel.ssl_context is None:
            continue
        try:
            settings = tls_settings(partial(config.for_listener, listener))
            stores = made_of(settings)
            if stores != channel.made_of:
                channel.ssl_context = client_context(settings)
                channel.made_of = stores
        except ConfigError as error:
            raise ConfigError(
                f"connections to listener {listener} of other nodes: {error}", error.key
            ) from None


def is_client_auth_ignored(config: BrokerConfig, listener: str) -> bool:
    """Clients of SASL_SSL show a certificate only where the listener itself asks for it, not the node (KIP-684)."""
    return (
        config.security_protocols[listener] == "SASL_SSL"
        and f"{LISTENER_PREFIX}{listener.lower()}.{CLIENT_AUTH_KEY}" not in config.originals
        and config[CLIENT_AUTH_KEY] != "none"
    )


class ListenerTls:
    """The TLS of one listener (TlsIdentity), by its stores as they are when it is made (SslFactory)."""

    def __init__(
        self, config: BrokerConfig, listener: str, *, started_with: BrokerConfig | None = None
    ) -> None:
        """Reads its stores, which takes a while: off the loop.

        While the node runs a listener may get other stores; everything else stays as it was when it was started.
        """
        self._config = config
        self._started_with = config if started_with is None else started_with
        self._listener = listener
        try:
            settings = tls_settings(partial(self._get, config))
            self._made_of = made_of(settings)
            material = load_key_material(settings)
            self.context = server_context(settings, material)
            self._mapper = SslPrincipalMapper(self._get(config, "ssl.principal.mapping.rules"))
            self._chain = material.chain
            self._has_trust_store = settings.trust_store.is_set
            # As another broker would have it, for trying the stores out; there is no name to check then.
            self._client_context = (
                client_context(replace(settings, endpoint_identification_algorithm=""), material)
                if config.is_broker and listener == config.inter_broker_listener_name
                else None
            )
        except ConfigError as error:
            raise ConfigError(f"listener {listener}: {error}", error.key) from None

    def _get(self, config: BrokerConfig, key: str) -> Any:
        of = config if key in LISTENER_ONLY_KEYS else self._started_with
        if key == CLIENT_AUTH_KEY and is_client_auth_ignored(of, self._listener):
            return "none"
        return of.for_listener(self._listener, key)

    @property
    def certificate(self) -> Certificate:
        """What it shows to others."""
        return read_certificate(self._chain[0])

    def renewed(self, config: BrokerConfig, *, is_serving: bool = True) -> "ListenerTls | None":
        """The same listener with the stores of a configuration, or with those it has, written again; None: as it is.

        ConfigError if they cannot be used, or not in the place of these while it is serving: whoever knows the
        certificate by its names must know the next one too, and brokers must trust one another, whether they have the
        old stores or the new. Reads stores: off the loop.
        """
        try:
            if made_of(tls_settings(partial(self._get, config))) == self._made_of:
                return None
        except ConfigError as error:
            raise ConfigError(f"listener {self._listener}: {error}", error.key) from None
        new = ListenerTls(config, self._listener, started_with=self._started_with)
        problem = self._problem_with(new) if is_serving else None
        if problem is not None:
            raise ConfigError(f"listener {self._listener}: {problem}", "ssl.keystore.location")
        return new

    def _problem_with(self, new: "ListenerTls") -> str | None:
        """Why these stores may not follow (SslFactory.createNewSslEngineFactory)."""
        allow_dn = self._get(self._config, "ssl.allow.dn.changes")
        allow_san = self._get(self._config, "ssl.allow.san.changes")
        if (problem := certificate_changes(self._chain, new._chain, allow_dn, allow_san)) is not None:
            return problem
        if new._has_trust_store and not self._has_trust_store:
            return "Cannot add SSL truststore to an existing listener for which no truststore was configured."
        if self._client_context is None or new._client_context is None:
            return None
        for server, client, what in (
            (
                self.context,
                new._client_context,
                "a broker with the new stores would not reach one with the old",
            ),
            (
                new.context,
                self._client_context,
                "a broker with the old stores would not reach one with the new",
            ),
        ):
            if (why := handshake_error(server, client)) is not None:
                # Where the old ones have expired, nobody with them reaches anybody, and there is nothing to go on with.
                is_cure = not self._reaches_its_like() and new._reaches_its_like()
                return None if is_cure else f"{what}: {why}"
        return None

    def _reaches_its_like(self) -> bool:
        """Would brokers that have these stores reach one another?"""
        assert self._client_context is not None
        return handshake_error(self.context, self._client_context) is None

    def principal_of(self, certificate: bytes) -> KafkaPrincipal:
        """KafkaError if its name is nobody's."""
        try:
            return KafkaPrincipal(USER, self._mapper.name(read_certificate(certificate).name))
        except (DerError, NoMatchingRule) as error:
            raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, str(error)) from None


class ListenerSasl:
    """The mechanisms of one listener (SaslListener)."""

    def __init__(self, config: BrokerConfig, listener: str, scram_users: ScramUsers, clock: Clock) -> None:
        """Reads key tables and fetches an identity provider's keys, where there are any: off the loop."""
        self._config = config
        self._listener = listener
        self._prefix = f"{LISTENER_PREFIX}{listener.lower()}."
        self._clock = clock
        self._scram_users = scram_users
        self._executor: ThreadPoolExecutor | None = None
        self._steps = 0
        self._closes: list[Callable[[], None]] = []
        self._exchanges: dict[str, Callable[[], SaslServer]] = {}
        try:
            if f"{self._prefix}{HANDLER_KEY}" in config.originals:
                raise ConfigError(f"{HANDLER_KEY} is for one mechanism of a listener", HANDLER_KEY)
            for mechanism in config.for_listener(listener, "sasl.enabled.mechanisms"):
                self._exchanges[mechanism] = self._exchange(mechanism)
        except ConfigError as error:
            self.close()
            raise ConfigError(f"listener {listener}: {error}", error.key) from None
        if not self._exchanges:
            raise ConfigError(
                f"listener {listener}: sasl.enabled.mechanisms is empty", "sasl.enabled.mechanisms"
            )
        self.mechanisms = tuple(self._exchanges)
        self.max_receive_bytes: int = config.for_listener(listener, "sasl.server.max.receive.size")
        self.failed_delay_ms: int = config["connection.failed.authentication.delay.ms"]
        self._max_reauth_ms = {each: self._reauth_of(config, listener, each) for each in self.mechanisms}

    def close(self) -> None:
        """Fetch nothing any more, and let threads end."""
        for close in self._closes:
            close()
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)

    def _exchange(self, mechanism: str) -> Callable[[], SaslServer]:
        key = f"{self._prefix}{mechanism.lower()}.sasl.jaas.config"
        if mechanism not in MECHANISMS:
            raise ConfigError(
                f"sasl.enabled.mechanisms: {mechanism} is not served; {', '.join(MECHANISMS)} are",
                "sasl.enabled.mechanisms",
            )
        entry = self._jaas(self._config, key, mechanism)
        own = own_class(
            HANDLER_KEY, mechanism_getter(self._config, self._listener, mechanism)(HANDLER_KEY), _HANDLERS
        )
        own = made(HANDLER_KEY, own) if isinstance(own, type) else own
        if mechanism == PLAIN:
            if own is not None:
                return partial(PlainSaslServer, own, is_slow=True)
            if entry is None:
                raise ConfigError(f"{key} is not set: it names the users of PLAIN", key)
            return partial(PlainSaslServer, JaasUsers(entry))
        if mechanism == OAUTHBEARER:
            return self._oauth(entry, own)
        if own is not None:
            raise ConfigError(f"{HANDLER_KEY}: {mechanism} has none but its own", HANDLER_KEY)
        if mechanism == GSSAPI:
            return self._kerberos(entry)
        return partial(_scram_exchange, SCRAM_MECHANISMS[mechanism], self._scram_users)

    def _oauth(self, entry: JaasEntry | None, own: TokenValidator | None) -> Callable[[], SaslServer]:
        from ottla.security.sasl.oauth.jwks import jwks_of, validator_of
        from ottla.security.sasl.oauthbearer import OAuthBearerSaslServer, checked_validator

        if own is not None:
            return partial(OAuthBearerSaslServer, checked_validator(own))
        get = mechanism_getter(self._config, self._listener, OAUTHBEARER)
        if (named := own_class(VALIDATOR_KEY, get(VALIDATOR_KEY), _VALIDATORS)) is not None:
            own = made(VALIDATOR_KEY, named) if isinstance(named, type) else named
            return partial(OAuthBearerSaslServer, checked_validator(own))
        keys = jwks_of(get, {} if entry is None else entry.options, os.environ)
        validator = validator_of(get, keys, self._clock.now_ms)
        self._closes.append(keys.close)
        keys.start()
        return partial(OAuthBearerSaslServer, validator)

    def _kerberos(self, entry: JaasEntry | None) -> Callable[[], SaslServer]:
        from ottla.security.sasl import gssapi
        from ottla.security.sasl.kerberos import KEY as RULES_KEY
        from ottla.security.sasl.kerberos import KerberosShortNamer

        login = gssapi.NO_LOGIN if entry is None else gssapi.kerberos_login(entry)
        rules = self._config.for_listener(self._listener, RULES_KEY)
        namer = KerberosShortNamer(gssapi.default_realm(), rules)
        try:
            gssapi.accept_context(login)  # what cannot be used is told now
        except SaslError as error:
            raise ConfigError(f"{GSSAPI}: {error.reason}") from None
        return partial(gssapi.GssapiSaslServer, partial(gssapi.accept_context, login), namer)

    @staticmethod
    def _jaas(config: BrokerConfig, key: str, mechanism: str) -> JaasEntry | None:
        text = config.originals.get(key)
        if text is None:
            return None
        try:
            (entry,) = parse_jaas(text)
            check_mechanism(entry, mechanism)
        except ConfigError as error:
            raise ConfigError(f"{key}: {error}", key) from None
        return entry

    def _reauth_of(self, config: BrokerConfig, listener: str, mechanism: str) -> int:
        own = config.originals.get(f"{self._prefix}{mechanism.lower()}.connections.max.reauth.ms")
        return int(config.for_listener(listener, "connections.max.reauth.ms") if own is None else own)

    def server(self, mechanism: str) -> SaslServer:
        return self._exchanges[mechanism]()

    def max_reauth_ms(self, mechanism: str) -> int:
        return self._max_reauth_ms[mechanism]

    def principal_of(self, mechanism: str, exchange: SaslServer) -> KafkaPrincipal:
        return KafkaPrincipal(USER, exchange.authorization_id, exchange.token_authenticated)

    def now_ms(self) -> int:
        return self._clock.now_ms()

    async def in_thread(self, step: Callable[[], bytes]) -> bytes:
        if self._executor is None:
            # Their own: whoever waits for a KDC, or for keys, keeps nobody from a disk.
            self._executor = ThreadPoolExecutor(SASL_THREADS, thread_name_prefix="ottla-sasl")
        if self._steps >= MAX_SASL_STEPS:
            raise KafkaError(ErrorCode.SASL_AUTHENTICATION_FAILED, "too many logins wait for a thread")
        self._steps += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, step)
        finally:
            self._steps -= 1


def mechanism_getter(config: BrokerConfig, listener: str, mechanism: str) -> Callable[[str], Any]:
    """From a key to its value for a mechanism of a listener, for the listener, or for the node."""
    prefix = f"{LISTENER_PREFIX}{listener.lower()}.{mechanism.lower()}."

    def get(key: str) -> Any:
        text = config.originals.get(prefix + key)
        if text is not None:
            return parse_value(BROKER_KEYS[key], text)
        return config.for_listener(listener, key) if key in BROKER_KEYS else None

    return get


def _scram_exchange(mechanism: Mechanism, users: ScramUsers) -> ScramSaslServer:
    return ScramSaslServer(
        mechanism,
        partial(users.user, mechanism),
        partial(users.token, mechanism),
        unknown_secret=users.unknown_secret(),
        unknown_iterations=users.unknown_iterations(mechanism),
    )
