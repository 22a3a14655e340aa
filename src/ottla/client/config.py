"""Settings of the clients, under Kafka's names with underscores for dots.

`ProducerConfig.of({"linger.ms": "5", "acks": "all"})` and `ProducerConfig.of({"linger_ms": 5})` mean the same:
dotted and underscored names, text and typed values are all taken, and a name nobody knows is refused with
the nearest one that is. Instances are immutable; defaults are those of the Java client unless said otherwise.
"""

import difflib
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from ottla.client.errors import ConfigError
from ottla.config.errors import ConfigError as BadSetting
from ottla.config.properties import MAX_PROPERTIES_BYTES, decode_properties, parse_properties
from ottla.config.types import INT_MAX, SECURITY_PROTOCOLS
from ottla.security.channels import WITH_SASL, WITH_TLS, ChannelSecurity
from ottla.wire.primitives import MAX_STRING_BYTES, is_string

if TYPE_CHECKING:
    from ottla.security.encryption import LeftSealed, Opener, Sealer
    from ottla.security.sasl.mechanisms import SaslClient
    from ottla.security.tls.contexts import TlsSettings

DEFAULT_PORT = 9092


class Address(NamedTuple):
    """Where a broker listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_addresses(value: str | list[str] | tuple[str, ...]) -> tuple[Address, ...]:
    """`host:port,host:port` (or a list of such) as addresses; a missing port is 9092."""
    parts = value.split(",") if isinstance(value, str) else list(value)
    addresses = tuple(_parse_address(part.strip()) for part in parts if part.strip())
    if not addresses:
        raise ConfigError("bootstrap_servers names no broker")
    return addresses


def _parse_address(text: str) -> Address:
    # kcat and librdkafka let a protocol stand before the address.
    bare = text.split("://", 1)[-1]
    if bare.startswith("["):
        host, _, rest = bare[1:].partition("]")
        port_text = rest.removeprefix(":")
    elif bare.count(":") > 1:
        host, port_text = bare, ""
    else:
        host, _, port_text = bare.partition(":")
    if not host or not (port_text == "" or port_text.isdecimal()):
        raise ConfigError(f"{text!r} is not an address like host:port")
    port = int(port_text) if port_text else DEFAULT_PORT
    if not 0 < port < 65536:
        raise ConfigError(f"{text!r} has no valid port")
    return Address(host, port)


_OF_SASL = (
    "sasl_mechanism",
    "sasl_jaas_config",
    "sasl_username",
    "sasl_password",
    "sasl_oauthbearer_token_endpoint_url",
)


# What requests carry: a value that does not fit there could never be sent, nor anything beside it.
_SENT_NUMBERS = frozenset(
    {
        *("request_timeout_ms", "transaction_timeout_ms", "session_timeout_ms", "max_poll_interval_ms"),
        *("fetch_min_bytes", "fetch_max_wait_ms", "fetch_max_bytes", "max_partition_fetch_bytes"),
    }
)
_SENT_TEXTS = frozenset({"client_id", "client_rack"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """What every client needs."""

    bootstrap_servers: str | list[str] | tuple[str, ...] = f"127.0.0.1:{DEFAULT_PORT}"
    client_id: str = "ottla"
    security_protocol: str = "PLAINTEXT"
    request_timeout_ms: int = 30_000
    # How long one call of the public face may take in all, its retries included.
    default_api_timeout_ms: int = 60_000
    # How long start() looks for a first broker; 0 means every address is tried once.
    bootstrap_timeout_ms: int = 10_000
    reconnect_backoff_ms: int = 50
    reconnect_backoff_max_ms: int = 1_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    socket_connection_setup_timeout_ms: int = 10_000
    connections_max_idle_ms: int = 540_000
    metadata_max_age_ms: int = 300_000
    metadata_max_idle_ms: int = 300_000
    max_in_flight_requests_per_connection: int = 5
    allow_auto_create_topics: bool = True
    # A frame larger than this is taken for garbage and closes the connection before anything is allocated.
    max_response_bytes: int = 512 * 1024 * 1024
    # TLS, by the broker's keys (ottla.security.tls). A store without a type is read as what it is, PEM too.
    ssl_truststore_type: str | None = None
    ssl_truststore_location: str | None = None
    ssl_truststore_password: str | None = field(default=None, repr=False)
    ssl_truststore_certificates: str | None = field(default=None, repr=False)
    ssl_keystore_type: str | None = None
    ssl_keystore_location: str | None = None
    ssl_keystore_password: str | None = field(default=None, repr=False)
    ssl_keystore_certificate_chain: str | None = field(default=None, repr=False)
    ssl_keystore_key: str | None = field(default=None, repr=False)
    ssl_key_password: str | None = field(default=None, repr=False)
    ssl_protocol: str | None = None
    ssl_enabled_protocols: str | list[str] | tuple[str, ...] | None = None
    ssl_cipher_suites: str | list[str] | tuple[str, ...] | None = None
    ssl_endpoint_identification_algorithm: str = "https"
    # PEM files by librdkafka's names.
    ssl_ca_location: str | None = None
    ssl_certificate_location: str | None = None
    ssl_key_location: str | None = None
    # SASL, by Kafka's keys; a name and a password, as librdkafka has them, will do for a JAAS text.
    sasl_mechanism: str | None = None
    sasl_jaas_config: str | None = field(default=None, repr=False)
    sasl_username: str | None = None
    sasl_password: str | None = field(default=None, repr=False)
    # Callables of one's own, or their import paths: a name and a password, or a token, for each login.
    sasl_client_callback_handler_class: Any = None
    sasl_login_callback_handler_class: Any = None
    sasl_login_class: Any = None
    # Tokens of OAUTHBEARER (KIP-768, KIP-1139): where they are had, and when anew.
    sasl_oauthbearer_token_endpoint_url: str | None = None
    sasl_oauthbearer_scope: str | None = None
    sasl_oauthbearer_client_credentials_client_id: str | None = None
    sasl_oauthbearer_client_credentials_client_secret: str | None = field(default=None, repr=False)
    sasl_oauthbearer_header_urlencode: bool = False
    sasl_oauthbearer_jwt_retriever_class: Any = None
    sasl_oauthbearer_assertion_algorithm: str = "RS256"
    sasl_oauthbearer_assertion_claim_aud: str | None = None
    sasl_oauthbearer_assertion_claim_exp_seconds: int = 300
    sasl_oauthbearer_assertion_claim_iss: str | None = None
    sasl_oauthbearer_assertion_claim_jti_include: bool = False
    sasl_oauthbearer_assertion_claim_nbf_seconds: int = 60
    sasl_oauthbearer_assertion_claim_sub: str | None = None
    sasl_oauthbearer_assertion_file: str | None = None
    sasl_oauthbearer_assertion_private_key_file: str | None = None
    sasl_oauthbearer_assertion_private_key_passphrase: str | None = field(default=None, repr=False)
    sasl_oauthbearer_assertion_template_file: str | None = None
    sasl_login_connect_timeout_ms: int | None = None
    sasl_login_read_timeout_ms: int | None = None
    sasl_login_retry_backoff_ms: int = 100
    sasl_login_retry_backoff_max_ms: int = 10_000
    sasl_login_refresh_window_factor: float = 0.8
    sasl_login_refresh_window_jitter: float = 0.05
    sasl_login_refresh_min_period_seconds: int = 60
    sasl_login_refresh_buffer_seconds: int = 300
    # Kerberos. MIT's library renews tickets by itself: the last four are taken, and change nothing.
    sasl_kerberos_service_name: str | None = None
    sasl_kerberos_kinit_cmd: str | None = None
    sasl_kerberos_min_time_before_relogin: int | None = None
    sasl_kerberos_ticket_renew_jitter: float | None = None
    sasl_kerberos_ticket_renew_window_factor: float | None = None
    # Parts of Java's: refused unless they name what there is.
    ssl_provider: str | None = None
    ssl_keymanager_algorithm: str | None = None
    ssl_trustmanager_algorithm: str | None = None
    ssl_secure_random_implementation: str | None = None
    ssl_engine_factory_class: str | None = None

    def __post_init__(self) -> None:
        parse_addresses(self.bootstrap_servers)
        if self.security_protocol not in SECURITY_PROTOCOLS:
            known = ", ".join(SECURITY_PROTOCOLS)
            raise ConfigError(f"security_protocol {self.security_protocol!r} is not one of {known}")
        for setting in fields(self):
            value = getattr(self, setting.name)
            if setting.name.endswith(("_ms", "_bytes")) and isinstance(value, int) and value < 0:
                raise ConfigError(f"{setting.name} must not be negative, it is {value}")
            if setting.name in _SENT_NUMBERS and not (isinstance(value, int) and value <= INT_MAX):
                raise ConfigError(f"{setting.name} must be a whole number up to {INT_MAX}, not {value!r}")
            if setting.name in _SENT_TEXTS and value is not None and not is_string(value):
                raise ConfigError(f"{setting.name} must be text of up to {MAX_STRING_BYTES} bytes in UTF-8")
        if self.max_in_flight_requests_per_connection < 1:
            raise ConfigError("max_in_flight_requests_per_connection must be at least 1")
        if self.security_protocol in WITH_TLS:
            self._tls_settings()
        self._exchanges()

    def security(self, given: ssl.SSLContext | None = None) -> ChannelSecurity:
        """What connections need on top of their sockets. Reads stores."""
        context, exchanges = self.tls_context(given), self._exchanges()
        return ChannelSecurity(context, self.sasl_mechanism or "", exchanges)

    def _exchanges(self) -> "Callable[[str], SaslClient] | None":
        if self.security_protocol not in WITH_SASL:
            given = [name for name in _OF_SASL if getattr(self, name) is not None]
            if given:
                raise ConfigError(
                    f"{given[0].replace('_', '.')} is for a security.protocol of SASL_SSL or SASL_PLAINTEXT, "
                    f"and it is {self.security_protocol}"
                )
            return None
        from ottla.security.sasl.clients import sasl_exchanges

        login = None
        if self.sasl_username is not None and self.sasl_password is not None:
            login = self.sasl_username, self.sasl_password
        try:
            if self.sasl_mechanism is None:
                from ottla.security.sasl.mechanisms import MECHANISMS

                raise BadSetting(f"sasl.mechanism is not set: one of {', '.join(MECHANISMS)}")
            return sasl_exchanges(
                self.sasl_mechanism, "sasl.jaas.config", self.sasl_jaas_config, login, self._sasl_setting
            )
        except BadSetting as error:
            raise ConfigError(str(error)) from None

    def _sasl_setting(self, key: str) -> Any:
        return getattr(self, key.replace(".", "_"), None)

    def tls_context(self, given: ssl.SSLContext | None = None) -> ssl.SSLContext | None:
        """The caller's context; without one, that of these settings if the protocol is one with TLS. Reads stores."""
        if given is not None or not self.security_protocol.endswith("SSL"):
            return given
        from ottla.security.tls.contexts import client_context

        try:
            return client_context(self._tls_settings())
        except BadSetting as error:
            raise ConfigError(str(error)) from None

    def _tls_settings(self) -> "TlsSettings":
        from ottla.security.tls.contexts import tls_settings

        try:
            return tls_settings(lambda key: getattr(self, key.replace(".", "_"), None), pem_files=True)
        except BadSetting as error:
            raise ConfigError(str(error)) from None

    @property
    def addresses(self) -> tuple[Address, ...]:
        return parse_addresses(self.bootstrap_servers)

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        """From names and values as a user gives them."""
        types = {setting.name: setting.type for setting in fields(cls)}
        known: dict[str, Any] = {}
        for name, value in settings.items():
            key = name.replace(".", "_")
            if key not in types:
                raise ConfigError(_unknown(name, list(types)))
            known[key] = _typed(name, value, str(types[key]))
        return cls(**known)


# Certificates are long, which is why they are in no repr, and public.
_PUBLIC = frozenset({"ssl_truststore_certificates", "ssl_keystore_certificate_chain"})
# By Kafka's names: what nobody else may see, in no repr, log, plan or message.
SECRET_KEYS = frozenset(
    setting.name.replace("_", ".")
    for setting in fields(ClientConfig)
    if not setting.repr and setting.name not in _PUBLIC
)


class SettingsFile(NamedTuple):
    """What a client's properties file says, by Kafka's names; values may be secret."""

    taken: dict[str, str]
    ignored: list[tuple[str, int]]  # names that no client of ours has, with their lines

    def __repr__(self) -> str:
        return f"SettingsFile({', '.join(sorted(self.taken))})"


def settings_file(path: str, kind: type[ClientConfig] = ClientConfig) -> SettingsFile:
    """The settings in a file that is for Kafka's own tools too: those of `kind`; ConfigError, OSError.

    What others of our clients have is left out, and what none has is reported. Of `ssl.` and `sasl.` neither is done:
    whoever wrote it counts on being known to the broker, or on its being known.
    """
    known = {setting.name for setting in fields(kind)}
    anybodys = {
        setting.name for each in (AdminConfig, ConsumerConfig, ProducerConfig) for setting in fields(each)
    }
    found = SettingsFile({}, [])
    try:
        for name, value, number in parse_properties(properties_text(path)):
            key = name.replace(".", "_")
            if key in known:
                found.taken[key.replace("_", ".")] = value
            elif name.startswith(("sasl.", "ssl.")):
                raise ConfigError(f"{name} ({path}, line {number}) is not supported by this client yet")
            elif key not in anybodys:
                found.ignored.append((name, number))
    except BadSetting as error:
        raise ConfigError(f"{path}: {error}") from None
    return found


def properties_text(path: str) -> str:
    """A properties file, if it is not too long to be one; ConfigError, OSError."""
    with open(Path(path).expanduser(), "rb") as file:
        data = file.read(MAX_PROPERTIES_BYTES + 1)
    if len(data) > MAX_PROPERTIES_BYTES:
        raise ConfigError(f"{path}: more than {MAX_PROPERTIES_BYTES} bytes, and no file of settings")
    return decode_properties(data)


def _unknown(name: str, names: list[str]) -> str:
    dotted = "_" not in name
    near = difflib.get_close_matches(name.replace(".", "_"), names, n=1)
    if not near:
        return f"unknown setting {name!r}"
    hint = near[0].replace("_", ".") if dotted else near[0]
    return f"unknown setting {name!r}; the nearest known one is {hint!r}"


def _typed(name: str, value: Any, type_name: str) -> Any:
    """Text becomes what the field wants; anything else is passed on as it is."""
    if not isinstance(value, str):
        return value
    if "bool" in type_name:
        if value.lower() not in ("true", "false"):
            raise ConfigError(f"{name} must be true or false, not {value!r}")
        return value.lower() == "true"
    if "int" in type_name and "str" not in type_name:
        try:
            return int(value)
        except ValueError:
            raise ConfigError(f"{name} must be a whole number, not {value!r}") from None
    if "float" in type_name:
        try:
            return float(value)
        except ValueError:
            raise ConfigError(f"{name} must be a number, not {value!r}") from None
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminConfig(ClientConfig):
    """What an admin client needs: asking about a topic must not create it."""

    allow_auto_create_topics: bool = False


_ACKS = {"all": -1, "-1": -1, -1: -1, "0": 0, 0: 0, "1": 1, 1: 1}
# KIP-98: the broker remembers five batches of a producer, so no more may be on their way at once.
MAX_IN_FLIGHT_WITH_IDEMPOTENCE = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig(ClientConfig):
    """What a producer needs besides."""

    acks: str | int = "all"
    # None: on unless another setting rules it out, as in the Java client.
    enable_idempotence: bool | None = None
    compression_type: str = "none"
    compression_level: int | None = None
    batch_size: int = 16_384
    linger_ms: int = 5
    max_request_size: int = 1_048_576
    buffer_memory: int = 33_554_432
    max_block_ms: int = 60_000
    delivery_timeout_ms: int = 120_000
    retries: int = 2_147_483_647
    partitioner: str = "default"
    partitioner_ignore_keys: bool = False
    partitioner_adaptive_partitioning_enable: bool = True
    # With a transactional_id the producer writes in transactions: see init_transactions.
    transactional_id: str | None = None
    transaction_timeout_ms: int = 60_000
    # Values are encrypted: a keyring's file, its import path or a Keyring (ottla.security.encryption).
    encryption_key: Any = field(default=None, repr=False)

    def __post_init__(self) -> None:
        # Zero-argument super() breaks under slots=True, which makes the class anew.
        ClientConfig.__post_init__(self)
        if self.acks not in _ACKS:
            raise ConfigError(f"acks must be 0, 1 or all, not {self.acks!r}")
        if self.batch_size < 1 or self.max_request_size < 1 or self.buffer_memory < 1:
            raise ConfigError("batch_size, max_request_size and buffer_memory must be at least 1")
        if self.transactional_id is not None and (not self.transactional_id or not self.idempotent):
            raise ConfigError(
                "transactional_id must not be empty, and needs what enable_idempotence needs: acks=all, retries "
                f"above 0, at most {MAX_IN_FLIGHT_WITH_IDEMPOTENCE} max_in_flight_requests_per_connection"
            )
        if self.enable_idempotence and not self._allows_idempotence:
            raise ConfigError(
                "enable_idempotence needs acks=all, retries above 0 and at most "
                f"{MAX_IN_FLIGHT_WITH_IDEMPOTENCE} max_in_flight_requests_per_connection"
            )

    @property
    def required_acks(self) -> int:
        return _ACKS[self.acks]

    def sealer(self) -> "Sealer | None":
        """Who encrypts values. Reads the keyring, which may be far away."""
        if self.encryption_key is None:
            return None
        from ottla.security.keyring import load_sealer

        try:
            return load_sealer(self.encryption_key)
        except BadSetting as error:
            raise ConfigError(str(error)) from None

    @property
    def _allows_idempotence(self) -> bool:
        in_flight_ok = self.max_in_flight_requests_per_connection <= MAX_IN_FLIGHT_WITH_IDEMPOTENCE
        return self.required_acks == -1 and in_flight_ok and self.retries > 0

    @property
    def idempotent(self) -> bool:
        return self._allows_idempotence if self.enable_idempotence is None else self.enable_idempotence


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig(ClientConfig):
    """What a consumer needs besides."""

    auto_offset_reset: str = "latest"
    isolation_level: str = "read_uncommitted"
    fetch_min_bytes: int = 1
    fetch_max_wait_ms: int = 500
    fetch_max_bytes: int = 52_428_800
    max_partition_fetch_bytes: int = 1_048_576
    max_poll_records: int = 500
    check_crcs: bool = True
    client_rack: str = ""
    # Groups. Without a group_id a consumer reads what it is assigned by hand and commits nothing.
    group_id: str | None = None
    group_instance_id: str | None = None
    group_protocol: str = "classic"
    group_remote_assignor: str | None = None
    # Names of assignors, in order of preference, or objects of one's own (ottla.client.group.assignors).
    partition_assignment_strategy: str | list[Any] | tuple[Any, ...] = "range,cooperative-sticky"
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    max_poll_interval_ms: int = 300_000
    enable_auto_commit: bool = True
    auto_commit_interval_ms: int = 5_000
    exclude_internal_topics: bool = True
    # Values are decrypted, as a producer's; with the second, also those are read that are not encrypted.
    encryption_key: Any = field(default=None, repr=False)
    encryption_allow_plaintext: bool = False

    def __post_init__(self) -> None:
        ClientConfig.__post_init__(self)
        self._check_group()
        if self.auto_offset_reset not in ("earliest", "latest", "none"):
            raise ConfigError(
                f"auto_offset_reset must be earliest, latest or none, not {self.auto_offset_reset!r}"
            )
        if self.isolation_level not in ("read_uncommitted", "read_committed"):
            raise ConfigError(
                f"isolation_level must be read_uncommitted or read_committed, not {self.isolation_level!r}"
            )
        if self.max_poll_records < 1:
            raise ConfigError("max_poll_records must be at least 1")

    def _check_group(self) -> None:
        if self.group_protocol not in ("classic", "consumer"):
            raise ConfigError(f"group_protocol must be classic or consumer, not {self.group_protocol!r}")
        if self.group_id == "":
            raise ConfigError("group_id must not be empty")
        if self.group_instance_id == "":
            raise ConfigError("group_instance_id must not be empty")
        if self.group_protocol == "classic" and self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise ConfigError("heartbeat_interval_ms must be below session_timeout_ms")
        if self.group_remote_assignor is not None and self.group_protocol == "classic":
            raise ConfigError("group_remote_assignor needs group_protocol=consumer")

    def opener(self) -> "Opener | LeftSealed | None":
        """Who decrypts values. Reads the keyring, which may be far away."""
        if self.encryption_key is None:
            return None
        from ottla.security.keyring import load_opener

        try:
            return load_opener(self.encryption_key, allow_plain=self.encryption_allow_plaintext)
        except BadSetting as error:
            raise ConfigError(str(error)) from None

    @property
    def read_committed(self) -> bool:
        return self.isolation_level == "read_committed"
