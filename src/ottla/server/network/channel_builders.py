"""What a listener's security protocol comes to (Kafka's ChannelBuilders): its TLS, its SASL mechanisms, and principals.

Rules: settings of a listener win over those of the node (listener.name.<listener>.<key>), and those of a mechanism are
the listener's alone (listener.name.<listener>.<mechanism>.<key>), as in Kafka. Whatever is wrong with them is
ConfigError, in one line without a secret, before the node listens. Secrets are read here and kept nowhere else. It is
imported where there is something to secure: what it takes would slow every start down.

Owner: the node's SocketServer, on the broker's loop.
"""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from functools import partial

from ottla.config.broker import BrokerConfig
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
from ottla.security.tls.contexts import client_context, server_context, tls_settings
from ottla.security.tls.der import DerError
from ottla.security.tls.mapping import NoMatchingRule, SslPrincipalMapper
from ottla.security.tls.names import read_certificate

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
        context = None
        if protocol in WITH_TLS:
            context = client_context(tls_settings(partial(config.for_listener, listener)))
        if protocol not in WITH_SASL:
            return ChannelSecurity(context)
        mechanism = config.for_listener(listener, mechanism_key)
        jaas_key = f"{LISTENER_PREFIX}{listener.lower()}.{mechanism.lower()}.sasl.jaas.config"
        exchanges = sasl_exchanges(mechanism, jaas_key, config.originals.get(jaas_key))
        return ChannelSecurity(context, mechanism, exchanges)
    except ConfigError as error:
        raise ConfigError(f"connections to listener {listener} of other nodes: {error}", error.key) from None


class ListenerTls:
    """The TLS of one listener (TlsIdentity)."""

    def __init__(self, config: BrokerConfig, listener: str) -> None:
        """Reads its stores, which takes a while: off the loop."""
        get = partial(config.for_listener, listener)
        try:
            self.context = server_context(tls_settings(get))
            self._mapper = SslPrincipalMapper(get("ssl.principal.mapping.rules"))
        except ConfigError as error:
            raise ConfigError(f"listener {listener}: {error}", error.key) from None

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
