"""What a listener's security protocol comes to (Kafka's ChannelBuilders): its TLS, its SASL mechanisms, and principals.

Rules: settings of a listener win over those of the node (listener.name.<listener>.<key>), and those of a mechanism are
the listener's alone (listener.name.<listener>.<mechanism>.<key>), as in Kafka. Whatever is wrong with them is
ConfigError, in one line without a secret, before the node listens. Stores may change while it does (KIP-226): new
connections get the new ones, others keep what they have. Secrets are the configuration's, and go no further. It is
imported where there is something to secure: what it takes would slow every start down.

Owner: the node's SocketServer, on the broker's loop.
"""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from typing import Any

from ottla.config.broker import BrokerConfig
from ottla.config.definitions import LISTENER_ONLY_KEYS
from ottla.config.errors import ConfigError
from ottla.config.settings import LISTENER_PREFIX
from ottla.model.clock import Clock
from ottla.model.errors import ErrorCode, KafkaError
from ottla.security.channels import WITH_SASL, WITH_TLS, ChannelSecurity, NodeChannels
from ottla.security.principal import USER, KafkaPrincipal
from ottla.security.sasl.clients import sasl_exchanges
from ottla.security.sasl.jaas import JaasEntry, check_mechanism, parse_jaas
from ottla.security.sasl.mechanisms import PLAIN, SaslServer
from ottla.security.sasl.plain import JaasUsers, PlainSaslServer
from ottla.security.sasl.scram import ScramSaslServer
from ottla.security.scram_credentials import MECHANISMS as SCRAM_MECHANISMS
from ottla.security.scram_credentials import Mechanism, ScramCredential
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

# Of a user of the cluster, by mechanism and name.
ScramCredentials = Callable[[Mechanism, str], ScramCredential | None]


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
        exchanges = sasl_exchanges(mechanism, jaas_key, config.originals.get(jaas_key))
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
                return f"{what}: {why}"
        return None

    def principal_of(self, certificate: bytes) -> KafkaPrincipal:
        """KafkaError if its name is nobody's."""
        try:
            return KafkaPrincipal(USER, self._mapper.name(read_certificate(certificate).name))
        except (DerError, NoMatchingRule) as error:
            raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, str(error)) from None


class ListenerSasl:
    """The mechanisms of one listener (SaslListener)."""

    def __init__(
        self,
        config: BrokerConfig,
        listener: str,
        scram_credentials: ScramCredentials,
        clock: Clock,
        executor: Executor,
    ) -> None:
        self._prefix = f"{LISTENER_PREFIX}{listener.lower()}."
        self._clock = clock
        self._executor = executor
        self._exchanges: dict[str, Callable[[], SaslServer]] = {}
        try:
            for mechanism in config.for_listener(listener, "sasl.enabled.mechanisms"):
                self._exchanges[mechanism] = self._exchange(config, mechanism, scram_credentials)
        except ConfigError as error:
            raise ConfigError(f"listener {listener}: {error}", error.key) from None
        if not self._exchanges:
            raise ConfigError(
                f"listener {listener}: sasl.enabled.mechanisms is empty", "sasl.enabled.mechanisms"
            )
        self.mechanisms = tuple(self._exchanges)
        self.max_receive_bytes: int = config.for_listener(listener, "sasl.server.max.receive.size")
        self.failed_delay_ms: int = config["connection.failed.authentication.delay.ms"]
        self._max_reauth_ms = {each: self._reauth_of(config, listener, each) for each in self.mechanisms}

    def _exchange(
        self, config: BrokerConfig, mechanism: str, scram_credentials: ScramCredentials
    ) -> Callable[[], SaslServer]:
        key = f"{self._prefix}{mechanism.lower()}.sasl.jaas.config"
        entry = self._jaas(config, key, mechanism)
        if mechanism == PLAIN:
            if entry is None:
                raise ConfigError(f"{key} is not set: it names the users of PLAIN", key)
            return partial(PlainSaslServer, JaasUsers(entry))
        if (scram := SCRAM_MECHANISMS.get(mechanism)) is not None:
            return partial(ScramSaslServer, scram, partial(scram_credentials, scram))
        known = ", ".join((PLAIN, *SCRAM_MECHANISMS))
        raise ConfigError(
            f"sasl.enabled.mechanisms: {mechanism} is not served; {known} are", "sasl.enabled.mechanisms"
        )

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

    def in_thread(self, step: Callable[[], bytes]) -> Awaitable[bytes]:
        return asyncio.get_running_loop().run_in_executor(self._executor, step)
