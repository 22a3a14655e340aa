"""SASL where it has no place: on listeners without it, and after authentication (see network/authentication.py)."""

from ottla.model.errors import ErrorCode
from ottla.server.context import Context
from ottla.server.network.connection import Listener
from ottla.server.registry import handles
from ottla.wire.messages.security.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)


@handles(SaslHandshakeRequest, Listener.BROKER, Listener.CONTROLLER)
def sasl_handshake(ctx: Context, request: SaslHandshakeRequest) -> SaslHandshakeResponse:
    """Nobody is asked who they are here."""
    return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=[])


@handles(SaslAuthenticateRequest, Listener.BROKER, Listener.CONTROLLER)
def sasl_authenticate(ctx: Context, request: SaslAuthenticateRequest) -> SaslAuthenticateResponse:
    """Whoever is served has been authenticated, or does not have to be."""
    return SaslAuthenticateResponse(
        error_code=ErrorCode.ILLEGAL_SASL_STATE,
        error_message="SaslAuthenticate request received after successful authentication",
        auth_bytes=b"",
        session_lifetime_ms=0,
    )
