"""Envelope: a broker passes a client's request on to the controller, together with who sent it (KIP-590).

Errors of the envelope itself are the envelope's: a principal that cannot be read, an address that is none, an API
that is not meant for forwarding. A request inside that cannot be parsed is UNSUPPORTED_VERSION, so that the broker
can tell it from a bad envelope. Whatever the request inside is answered, errors too, goes into the answer's envelope.

Only a broker may do this (CLUSTER_ACTION on the cluster): without an authorizer everybody counts as one.
"""

import struct

from ottla.model.errors import ErrorCode, KafkaError
from ottla.server.context import Context
from ottla.server.dispatch import respond
from ottla.server.output import Reply
from ottla.server.registry import Listener, Route, handles, routes
from ottla.wire.codec import decode
from ottla.wire.header import decode_request_header
from ottla.wire.messages.envelope import EnvelopeRequest, EnvelopeResponse
from ottla.wire.messages.principal import DefaultPrincipalData
from ottla.wire.primitives import WireError
from ottla.wire.registry import APIS
from ottla.wire.schema import schema_of

# What a broker leaves to the controller, by Kafka's list: changes of topics, configurations, ACLs, tokens,
# reassignments, quotas, credentials, features and voters.
FORWARDABLE = frozenset({19, 20, 30, 31, 33, 37, 38, 39, 40, 43, 44, 45, 46, 49, 51, 55, 57, 64, 67, 80, 81})
ADDRESS_SIZES = (4, 16)
FRAME_SIZE_BYTES = 4
_SHORT = struct.Struct(">h")


@handles(EnvelopeRequest, Listener.CONTROLLER)
async def envelope(ctx: Context, request: EnvelopeRequest) -> EnvelopeResponse:
    """Serve the request inside as if its client had sent it here."""
    read_principal(request.request_principal)
    if len(request.client_host_address) not in ADDRESS_SIZES:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Failed to parse client address from envelope")
    frame = memoryview(request.request_data)
    route = _route(frame)
    try:
        reply = await respond(ctx.node, ctx.connection, route, frame)
    except KafkaError as error:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION, f"Failed to parse forwarded request: {error}"
        ) from None
    return EnvelopeResponse(response_data=_payload(reply))


def _payload(reply: Reply | None) -> bytes:
    """A response without its size; none that may be forwarded is answered from a file, or not at all."""
    chunks = reply if isinstance(reply, list) else [reply]
    return b"".join(chunk for chunk in chunks if isinstance(chunk, bytes | bytearray))[FRAME_SIZE_BYTES:]


def read_principal(data: bytes | None) -> DefaultPrincipalData:
    """Who sent the request, as the default principal builder writes it: a version, then the message."""
    try:
        (version,) = _SHORT.unpack_from(data or b"")
        if version in schema_of(DefaultPrincipalData).versions:
            return decode(DefaultPrincipalData, data or b"", version, _SHORT.size)[0]
    except (struct.error, WireError) as error:
        raise KafkaError(ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE, str(error)) from None
    raise KafkaError(ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE, f"Invalid principal data version {version}")


def _route(view: memoryview) -> Route:
    """How the request inside is served."""
    try:
        header, _ = decode_request_header(view, 0, len(view))
    except KafkaError as error:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"Failed to parse request header: {error}") from None
    route = routes(Listener.CONTROLLER).get(header.api_key)
    if route is None or header.api_key not in FORWARDABLE:
        name = APIS[header.api_key].name
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"API {name} is not enabled or may not be forwarded")
    if not route.min_version <= header.api_version <= route.max_version:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"version {header.api_version} of the forwarded request is not served",
        )
    return route
