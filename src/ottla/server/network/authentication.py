"""SaslServerAuthenticator: who a connection of a SASL listener is, before anything else is served, and again (KIP-368).

    ApiVersions -> SaslHandshake -> tokens, in SaslAuthenticate or (handshake version 0) bare -> served

Rules: until it is through, a client may send nothing else, in frames of sasl.server.max.receive.size at most, and has
AUTHENTICATION_S for it. Whoever fails is told after connection.failed.authentication.delay.ms, in the same words
whatever was wrong, and closed. Later a client may prove once more who it is, as the same principal and by the same
mechanism; where its session has an end, it has to, or is closed with its next request.

Owner: its connection, on the broker's loop; an exchange that is slow makes its step in a thread.
"""

import asyncio
import struct
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, ClassVar, Final, Protocol

from ottla.model.errors import ErrorCode, KafkaError
from ottla.security.principal import KafkaPrincipal
from ottla.security.sasl.mechanisms import SaslError, SaslServer
from ottla.server.network.connection import Connection, Principals
from ottla.server.network.output import Answer, Reply
from ottla.wire.codec import decode
from ottla.wire.framing import API_VERSIONS, RequestHeader, decode_request_header, encode_response
from ottla.wire.messages.api_versions import ApiVersionsRequest
from ottla.wire.messages.security.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from ottla.wire.schema import schema_of

# How long a client may take to prove who it is.
AUTHENTICATION_S: Final = 30.0
# Nobody begins to prove it again more often; who tries is answered as one who is through already.
MIN_REAUTHENTICATION_S: Final = 1.0

_API_KEY = struct.Struct(">h")
_SIZE = struct.Struct(">i")
_HANDSHAKE: Final = 17


class SaslListener(Protocol):
    """What a listener with SASL offers; its settings may change any time."""

    # Of the mechanisms that are enabled.
    mechanisms: tuple[str, ...]
    max_receive_bytes: int
    failed_delay_ms: int

    def server(self, mechanism: str) -> SaslServer:
        """A new exchange."""

    def max_reauth_ms(self, mechanism: str) -> int:
        """How long somebody may be served before they prove again who they are; 0 if for ever."""

    def principal_of(self, mechanism: str, exchange: SaslServer) -> KafkaPrincipal:
        """Whom a complete exchange has proved."""

    def now_ms(self) -> int:
        """The time of day, which credentials expire by."""

    def in_thread(self, step: Callable[[], bytes]) -> Awaitable[bytes]:
        """Make a slow step."""


class SaslServerAuthenticator:
    """Serves a connection until it has proved who it is, and passes its requests on from then on."""

    def __init__(
        self, connection: Connection, listener: SaslListener, principals: Principals | None = None
    ) -> None:
        self._connection = connection
        self._listener = listener
        self._principals = principals
        self._monotonic = connection.host.monotonic
        self._asked_versions = False
        self._mechanism = ""
        self._exchange: SaslServer | None = None
        self._in_requests = False  # tokens come in SaslAuthenticate, not bare
        self._reauthenticating = False
        self._began_again = float("-inf")  # when it did so last
        self._session_ends: float | None = None
        connection.is_authenticated = False
        connection.must_be_ready_by = min(connection.must_be_ready_by, self._monotonic() + AUTHENTICATION_S)
        connection.serve_by(self._authenticate, (0, listener.max_receive_bytes))

    # ---- before, and while it proves it again -----------------------------------------------------------------

    def _authenticate(self, connection: Connection, view: memoryview, start: int, stop: int) -> Answer:
        if self._exchange is not None and not self._in_requests:
            return self._evaluate(self._exchange, bytes(view[start:stop]), None)
        try:
            header, offset = decode_request_header(view, start, stop)
        except KafkaError as error:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"{error}: it speaks no SASL; is its security.protocol right, and is it a Kafka client?",
            ) from None
        if self._exchange is not None:
            return self._next_token(self._exchange, header, view[:stop], offset)
        if header.api_key == API_VERSIONS and not self._asked_versions:
            # One that has to ask in another version may do so.
            self._asked_versions = header.api_version in schema_of(ApiVersionsRequest).versions
            return connection.host.dispatch(connection, view, start, stop)
        return self._handshake(header, view[:stop], offset)

    def _handshake(self, header: RequestHeader, view: memoryview, offset: int) -> Answer:
        _expect(header, SaslHandshakeRequest, "SASL handshake")
        request = decode(SaslHandshakeRequest, view, header.api_version, offset)[0]
        response = SaslHandshakeResponse(mechanisms=list(self._listener.mechanisms))
        if request.mechanism not in self._listener.mechanisms:
            response.error_code = ErrorCode.UNSUPPORTED_SASL_MECHANISM
            why = f"it asks for SASL mechanism {request.mechanism!r}, which is not enabled"
            self._audit(self._known(), why, again=self._reauthenticating)
            return self._failed(_reply(response, header), why)
        if self._reauthenticating and request.mechanism != self._mechanism:
            # As 4.3.1: the handshake is answered, and whatever follows fails.
            self._exchange = _OtherMechanism(request.mechanism, self._mechanism)
        else:
            self._mechanism = request.mechanism
            self._exchange = self._listener.server(request.mechanism)
        self._in_requests = header.api_version >= 1
        return _reply(response, header)

    def _next_token(
        self, exchange: SaslServer, header: RequestHeader, view: memoryview, offset: int
    ) -> Answer:
        _expect(header, SaslAuthenticateRequest, "SASL authentication")
        request = decode(SaslAuthenticateRequest, view, header.api_version, offset)[0]
        return self._evaluate(exchange, bytes(request.auth_bytes), header)

    def _evaluate(self, exchange: SaslServer, token: bytes, header: RequestHeader | None) -> Answer:
        if exchange.is_slow:
            return self._evaluate_slowly(exchange, token, header)
        try:
            return self._answer(exchange, exchange.evaluate(token), header)
        except SaslError as error:
            return self._refused(error, header)

    async def _evaluate_slowly(
        self, exchange: SaslServer, token: bytes, header: RequestHeader | None
    ) -> Reply | None:
        try:
            challenge = await self._listener.in_thread(lambda: exchange.evaluate(token))
            return self._answer(exchange, challenge, header)
        except SaslError as error:
            return await self._refused(error, header)

    def _answer(self, exchange: SaslServer, challenge: bytes, header: RequestHeader | None) -> Reply:
        lifetime_ms = self._complete(exchange) if exchange.complete else 0
        if header is None:
            return _SIZE.pack(len(challenge)) + challenge
        return _reply(
            SaslAuthenticateResponse(
                error_message=None, auth_bytes=challenge, session_lifetime_ms=lifetime_ms
            ),
            header,
        )

    def _complete(self, exchange: SaslServer) -> int:
        """For how long it is served now; 0 if for ever."""
        connection, listener = self._connection, self._listener
        principal = self._principal_of(exchange)
        if self._reauthenticating and principal[:2] != connection.principal[:2]:
            words = (
                "Cannot change principals during re-authentication from "
                f"{connection.principal.type}.{connection.principal.name}: {principal.type}.{principal.name}"
            )
            raise SaslError(self._mechanism, words, words)
        now = self._monotonic()
        ends_after_ms = [max(0, exchange.expires_at_ms - listener.now_ms())] if exchange.expires_at_ms else []
        if (max_reauth_ms := listener.max_reauth_ms(self._mechanism)) > 0:
            ends_after_ms.append(max_reauth_ms)
        self._session_ends = now + min(ends_after_ms) / 1000 if ends_after_ms else None
        was_known = self._reauthenticating
        self._exchange = None
        self._reauthenticating = False
        connection.principal = principal
        connection.decisions = connection.quotas = None
        connection.is_authenticated = True
        connection.must_be_ready_by = float("inf")
        connection.serve_by(self._serve)
        self._audit(principal, again=was_known)
        return min(ends_after_ms, default=0)

    def _principal_of(self, exchange: SaslServer) -> KafkaPrincipal:
        principal = self._listener.principal_of(self._mechanism, exchange)
        if self._principals is None:
            return principal
        try:
            return self._principals.build(
                self._connection,
                principal,
                certificate=self._connection.certificate,
                sasl_mechanism=self._mechanism,
            )
        except KafkaError as error:
            raise SaslError(self._mechanism, str(error)) from None

    # ---- failing --------------------------------------------------------------------------------------------

    def _refused(self, error: SaslError, header: RequestHeader | None) -> Coroutine[Any, Any, Reply | None]:
        why = f"{self._mechanism} authentication failed: {error.reason}"
        self._audit(self._known(), error.reason, again=self._reauthenticating)
        if error.retriable:
            # As after a broken connection, it may try again: it is not to be told that it failed.
            raise KafkaError(ErrorCode.SASL_AUTHENTICATION_FAILED, why)
        reply = None
        if header is not None:
            words = error.message_for(reauthenticating=self._reauthenticating)
            response = SaslAuthenticateResponse(
                error_code=error.code, error_message=words, auth_bytes=b"", session_lifetime_ms=0
            )
            reply = _reply(response, header)
        return self._failed(reply, why)

    def _known(self) -> KafkaPrincipal | None:
        """Who it has proved to be before."""
        return self._connection.principal if self._reauthenticating else None

    def _audit(self, principal: KafkaPrincipal | None, why: str | None = None, *, again: bool) -> None:
        connection = self._connection
        if connection.audit is not None:
            connection.audit.login(
                principal,
                mechanism=self._mechanism or None,
                listener=connection.host.listener_name,
                address=connection.peer[0],
                why=why,
                again=again,
            )

    async def _failed(self, reply: Reply | None, why: str) -> Reply | None:
        """Whoever guesses has to wait for each answer."""
        await asyncio.sleep(self._listener.failed_delay_ms / 1000)
        self._connection.send_last(reply, why)
        return None

    # ---- afterwards -----------------------------------------------------------------------------------------

    def _serve(self, connection: Connection, view: memoryview, start: int, stop: int) -> Answer:
        (api_key,) = _API_KEY.unpack_from(view, start)
        if api_key == _HANDSHAKE and self._may_begin_again():
            self._reauthenticating = True
            self._began_again = self._monotonic()
            connection.serve_by(self._authenticate)
            return self._authenticate(connection, view, start, stop)
        if self._session_ends is not None and self._monotonic() > self._session_ends:
            raise KafkaError(
                ErrorCode.SASL_AUTHENTICATION_FAILED,
                f"the session of {connection.principal} has ended, and it has not proved again who it is",
            )
        return connection.host.dispatch(connection, view, start, stop)

    def _may_begin_again(self) -> bool:
        """Where sessions do not end nobody proves twice who they are: the handshake is served as any other request.

        The first time may be at once: a credential may have expired by the end of the first second.
        """
        if self._session_ends is None:
            return False
        return self._monotonic() - self._began_again >= MIN_REAUTHENTICATION_S


class _OtherMechanism:
    """What a client that proves again who it is may not do: take another mechanism."""

    is_slow: ClassVar[bool] = False

    def __init__(self, asked: str, before: str) -> None:
        self.complete = False
        self.authorization_id = ""
        self.token_authenticated = False
        self.expires_at_ms: int | None = None
        self._mechanism = before
        self._words = (
            f"SASL mechanism '{asked}' requested by client is not supported for re-authentication of mechanism "
            f"'{before}'"
        )

    def evaluate(self, response: bytes) -> bytes:
        raise SaslError(self._mechanism, self._words, self._words)


def _expect(header: RequestHeader, request: type[Any], during: str) -> None:
    """KafkaError, which closes the connection, if it is not that request in a version that there is."""
    if header.api_key != request.API_KEY:
        raise KafkaError(
            ErrorCode.ILLEGAL_SASL_STATE, f"Unexpected Kafka request of type {header.api_key} during {during}"
        )
    if header.api_version not in schema_of(request).versions:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION, f"version {header.api_version} of {request.__name__} is not served"
        )


def _reply(response: SaslHandshakeResponse | SaslAuthenticateResponse, header: RequestHeader) -> bytes:
    return encode_response(response, header.api_version, header.correlation_id)
