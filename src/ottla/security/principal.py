"""KafkaPrincipal, who asks; how brokers tell controllers (KafkaPrincipalSerde): a version, then the message.

`principal.builder.class` names Kafka's DefaultKafkaPrincipalBuilder, or a Python class by its import path, in the
configuration file alone. Such a class has a constructor without arguments, may have `configure(configs)`, which is
given the node's settings once, and has `build(context: AuthenticationContext) -> KafkaPrincipal`. It is asked on the
node's loop when somebody has proved who they are, and must not wait. Whoever it raises an exception about is not let
in.

Rules: what another node wrote is read with suspicion. Stateless.
"""

import logging
import struct
from collections.abc import Mapping
from ipaddress import IPv6Address, ip_address
from typing import Any, Final, NamedTuple, Protocol

from ottla.config.errors import ConfigError
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.plugins import find_class
from ottla.wire.codec import decode, encode
from ottla.wire.messages.nodes.envelope import DefaultPrincipalData
from ottla.wire.primitives import WireError
from ottla.wire.schema import schema_of

log = logging.getLogger("ottla.server")

USER: Final = "User"
# The version that principals are written in.
VERSION: Final = 0
# An IPv4 or IPv6 address.
ADDRESS_SIZES: Final = (4, 16)
_SHORT = struct.Struct(">h")


class KafkaPrincipal(NamedTuple):
    """Somebody, as rules name them: User:alice."""

    type: str
    name: str
    # By a delegation token, with which no other token may be had; it is the same user all the same.
    token_authenticated: bool = False

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


# Whoever comes by a listener without authentication.
ANONYMOUS: Final = KafkaPrincipal(USER, "ANONYMOUS")


def write_principal(principal: KafkaPrincipal) -> bytes:
    return _SHORT.pack(VERSION) + encode(DefaultPrincipalData(**principal._asdict()), VERSION)


def read_principal(data: bytes | None) -> KafkaPrincipal:
    """KafkaError if nobody can be read from it."""
    try:
        (version,) = _SHORT.unpack_from(data or b"")
        if version in schema_of(DefaultPrincipalData).versions:
            found = decode(DefaultPrincipalData, data or b"", version, _SHORT.size)[0]
            return KafkaPrincipal(found.type, found.name, found.token_authenticated)
    except (struct.error, WireError) as error:
        raise KafkaError(ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE, str(error)) from None
    raise KafkaError(ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE, f"Invalid principal data version {version}")


def is_address(text: str) -> bool:
    """Is it one, and no name of a host?"""
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def address_bytes(host: str) -> bytes:
    """A peer's address as an envelope has it; that of an IPv4 client on an IPv6 socket has four bytes, as in Java."""
    try:
        address = ip_address(host)
    except ValueError:  # not the Internet's
        return bytes(ADDRESS_SIZES[0])
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address.packed


def parse_principal(text: str) -> KafkaPrincipal | None:
    """Somebody as rules and super.users name them, `Type:name`; None if there is no colon."""
    kind, colon, name = text.partition(":")
    return KafkaPrincipal(kind, name) if colon else None


def host_address(address: bytes) -> str:
    """An address of 4 or 16 bytes as rules spell it, which is Java's way: IPv6 with all of its eight numbers."""
    if len(address) == ADDRESS_SIZES[0]:
        return ".".join(map(str, address))
    return ":".join(f"{address[i] << 8 | address[i + 1]:x}" for i in range(0, len(address), 2))


# --- principal.builder.class

BUILDER_CLASS: Final = "principal.builder.class"
DEFAULT_BUILDER: Final = "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder"


# The classes of which it has been told, with a trace, that they fail: anybody may come again and again.
_failed: set[type] = set()


class AuthenticationContext(NamedTuple):
    """What is known of somebody who has come in."""

    listener_name: str
    security_protocol: str
    client_address: str
    # Whom Kafka's own builder takes them for.
    principal: KafkaPrincipal
    # In DER, of a client that has shown one.
    certificate: bytes | None = None
    sasl_mechanism: str | None = None


class KafkaPrincipalBuilder(Protocol):
    """Says who somebody is."""

    def build(self, context: AuthenticationContext, /) -> KafkaPrincipal: ...


def load_principal_builder(path: str, configs: Mapping[str, str]) -> KafkaPrincipalBuilder | None:
    """The builder of this name; None for Kafka's own. ConfigError."""
    if path == DEFAULT_BUILDER:
        return None
    try:
        builder: Any = find_class(path)()
        if (configure := getattr(builder, "configure", None)) is not None:
            configure(dict(configs))
    except Exception as error:
        raise ConfigError(
            f"{BUILDER_CLASS}={path}: {error or type(error).__name__} ({DEFAULT_BUILDER}, or a Python class by its "
            "import path is expected, such as package.module.Class)",
            BUILDER_CLASS,
        ) from error
    if not callable(getattr(builder, "build", None)):
        raise ConfigError(f"{BUILDER_CLASS}={path}: the class has no method build", BUILDER_CLASS)
    return builder  # type: ignore[no-any-return]


def build_principal(builder: KafkaPrincipalBuilder, context: AuthenticationContext) -> KafkaPrincipal:
    """Who somebody is; KafkaError if the builder does not say."""
    try:
        built = builder.build(context)
    except Exception as error:
        if type(builder) not in _failed:
            _failed.add(type(builder))
            log.error("%s failed: %s", type(builder).__name__, error, exc_info=error)
        built = None
    if not isinstance(built, KafkaPrincipal) or not (
        isinstance(built.type, str) and isinstance(built.name, str)
    ):
        raise KafkaError(
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED, f"{type(builder).__name__} does not say who this is"
        )
    return built
