"""Who asks, as brokers tell controllers (Kafka's KafkaPrincipalSerde): a version, then the message.

Rules: what another node wrote is read with suspicion. Stateless.
"""

import struct
from ipaddress import IPv6Address, ip_address
from typing import Final

from ottla.model.errors import ErrorCode, KafkaError
from ottla.wire.codec import decode, encode
from ottla.wire.messages.nodes.envelope import DefaultPrincipalData
from ottla.wire.primitives import WireError
from ottla.wire.schema import schema_of

# The version that principals are written in.
VERSION: Final = 0
# An IPv4 or IPv6 address.
ADDRESS_SIZES: Final = (4, 16)
_SHORT = struct.Struct(">h")


def write_principal(kind: str, name: str, *, token_authenticated: bool = False) -> bytes:
    data = DefaultPrincipalData(type=kind, name=name, token_authenticated=token_authenticated)
    return _SHORT.pack(VERSION) + encode(data, VERSION)


def read_principal(data: bytes | None) -> DefaultPrincipalData:
    """KafkaError if nobody can be read from it."""
    try:
        (version,) = _SHORT.unpack_from(data or b"")
        if version in schema_of(DefaultPrincipalData).versions:
            return decode(DefaultPrincipalData, data or b"", version, _SHORT.size)[0]
    except (struct.error, WireError) as error:
        raise KafkaError(ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE, str(error)) from None
    raise KafkaError(ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE, f"Invalid principal data version {version}")


# Whoever comes by a listener without authentication.
ANONYMOUS: Final = write_principal("User", "ANONYMOUS")


def address_bytes(host: str) -> bytes:
    """A peer's address as an envelope has it; that of an IPv4 client on an IPv6 socket has four bytes, as in Java."""
    try:
        address = ip_address(host)
    except ValueError:  # not the Internet's
        return bytes(ADDRESS_SIZES[0])
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address.packed
