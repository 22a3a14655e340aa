"""Forwarding to the controller, with who sent the request.

Declarations only, in the language of `ottla.wire.schema`.
"""

from ottla.wire.schema import Bool, Bytes, Int16, NullableBytes, String, data, message


@message(api_key=58, versions="0", flexible="0+")
class EnvelopeRequest:
    """A broker forwards a client's request to the controller, with who sent it (KIP-590)."""

    request_data: Bytes
    request_principal: NullableBytes
    client_host_address: Bytes


@message(api_key=58, versions="0", flexible="0+")
class EnvelopeResponse:
    """The forwarded request's response."""

    response_data: NullableBytes = None
    error_code: Int16 = 0


@data(versions="0", flexible="0+")
class DefaultPrincipalData:
    """Who sent a forwarded request."""

    type: String
    name: String
    token_authenticated: Bool
