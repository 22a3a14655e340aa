"""Dispatcher: from a frame to the handler of its API and back to a frame (KafkaApis.handle).

What cannot be parsed has no answer in the protocol: it raises, and the connection closes it with one log line.
An unknown ApiVersions version is the exception that lets old and new clients find each other (KIP-511).

Where there is an authorizer, what an API asks of everybody is judged here, before the handler: the table of
server/authorization.py. Where any quota is set it is found here whose request it is, and an answer says how long
its client has to wait, and the connection is not read for so long (server/quotas.py). How long requests take is
measured by their connection.

Owner: one Dispatcher per listener, on the broker's loop.
"""

import logging
import struct
from collections.abc import Callable, Coroutine
from copy import copy
from functools import cache, partial
from inspect import iscoroutine
from time import monotonic
from typing import Any, cast

from ottla.controller.refusals import is_not_controller
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.pending import Pending
from ottla.model.tasks import report
from ottla.server.authorization import check_access
from ottla.server.context import Context, ControllerServices, Sender, Services
from ottla.server.errors import CloseConnection, error_response, has_errors_by_item
from ottla.server.limits import MAX_DECODED_BYTES, MAX_ENVELOPE_BYTES, check_size
from ottla.server.network.connection import Connection, Listener
from ottla.server.network.output import Answer, Deferred, Reply
from ottla.server.quotas import ClientSensors
from ottla.server.registry import Route, late_route, routes
from ottla.wire.codec import WireError, decode, decode_bounded
from ottla.wire.framing import RequestHeader, decode_request_header, encode_response, encode_response_header
from ottla.wire.registry import response_class
from ottla.wire.schema import schema_of

log = logging.getLogger("ottla.server")

API_VERSIONS_KEY = 18
ENVELOPE_KEY = 58
# Decoding more than this takes longer than a few milliseconds and is done in a thread.
INLINE_REQUEST_BYTES = 64 * 1024
_HEAD = struct.Struct(">hhi")


class Encoded:
    """A response whose body a handler has encoded itself, in chunks; it begins with a throttle time, if it has one."""

    __slots__ = ("chunks", "response", "throttle_time_ms")

    def __init__(self, chunks: list[bytes], throttle_time_ms: int = 0, response: Any = None) -> None:
        self.chunks = chunks
        # As it is in there.
        self.throttle_time_ms = throttle_time_ms
        # What is in there, where the audit log has to tell of it.
        self.response = response


class Dispatcher:
    """Serves the frames of one listener."""

    def __init__(self, services: ControllerServices, listener: Listener) -> None:
        # A node without brokers' services has no listener but the controllers', whose handlers need no others.
        self._services = cast(Services, services)
        self._quotas = services.quotas
        self._listener = listener
        self._routes = routes(listener)

    def __call__(self, connection: Connection, view: memoryview, start: int, stop: int) -> Answer:
        api_key, version, correlation_id = _HEAD.unpack_from(view, start)
        route = self._routes.get(api_key) or late_route(self._listener, api_key)
        if route is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"api key {api_key} is not served here")
        if not route.min_version <= version <= route.max_version:
            return self._unsupported(connection, route, view, start, stop)
        quotas = self._quotas
        if quotas.enabled:
            # As few steps as can be: every request of everybody takes them.
            client: ClientSensors | None = connection.quotas
            if client is None or client.holds_for != quotas.clients.version:
                self._find_client(connection, route, view, start, stop)
        raw = route.quick
        if raw is not None:
            return raw(self._services, connection, view, version, correlation_id, start, stop)
        if route.has_quota or not quotas.measures_time:
            return self._slowly(connection, route, view, start, stop)
        # Its time counts for nobody, and that of what was read with it does.
        if connection.quotas is not None:
            connection.quotas.served(connection, monotonic())
            connection.quotas = None
        answer = self._slowly(connection, route, view, start, stop)
        connection.last_active = monotonic()
        return answer

    def _find_client(
        self, connection: Connection, route: Route, view: memoryview, start: int, stop: int
    ) -> None:
        """It is not certain whose request it is: what was read with it, and served before it, may be another's."""
        if not route.has_quota:
            return
        before: ClientSensors | None = connection.quotas
        client = self._quotas.find_client(connection, view, start, stop)
        if before is not None and before is not client:
            before.served(connection, monotonic())
        client.now_ms = connection.last_active * 1000.0

    def _unsupported(
        self, connection: Connection, route: Route, view: memoryview, start: int, stop: int
    ) -> Answer:
        _, version, correlation_id = _HEAD.unpack_from(view, start)
        if route.api_key != API_VERSIONS_KEY:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"version {version} of {route.request.__name__} is not served "
                f"({route.min_version} to {route.max_version} are)",
            )
        assert route.handler is not None
        context = self._context(connection, RequestHeader(route.api_key, version, correlation_id, None))
        return encode_response(route.handler(context, None), 0, correlation_id)

    def _slowly(
        self, connection: Connection, route: Route, view: memoryview, start: int, stop: int
    ) -> Answer:
        if route.raw is not None:
            _, version, correlation_id = _HEAD.unpack_from(view, start)
            return route.raw(self._services, connection, view, version, correlation_id, start, stop)
        if stop - start <= INLINE_REQUEST_BYTES:
            return self._handle(connection, route, *_parse(route, view, start, stop))
        check_size(stop - start, MAX_ENVELOPE_BYTES if route.api_key == ENVELOPE_KEY else MAX_DECODED_BYTES)
        return respond(self._services, connection, route, memoryview(bytes(view[start:stop])))

    def _handle(self, connection: Connection, route: Route, header: RequestHeader, request: Any) -> Answer:
        connection.client_id = header.client_id
        assert route.handler is not None
        context = self._context(connection, header)
        try:
            if self._services.authorizer is not None:
                _judge(context, route)
            result = route.handler(context, request)
        except Exception as error:  # noqa: BLE001 - a broker never dies of a request
            return _failed(route, request, context, error)
        if isinstance(result, Pending):
            return _answered(route, request, context, result)
        if iscoroutine(result):
            return _awaited(route, request, context, result)
        if self._quotas.enabled:
            result = _throttled(context, route, result)
        return _encoded(route, request, header, result)

    def _context(self, connection: Connection, header: RequestHeader) -> Context:
        return Context(self._services, connection, header, self._services.clock.now_ms())


class NotController(KafkaError):
    """A forwarded request met with a controller that is not active: the broker has to ask another one."""

    def __init__(self) -> None:
        super().__init__(ErrorCode.NOT_CONTROLLER)


async def respond_forwarded(
    services: Services, connection: Connection, route: Route, frame: memoryview, sender: Sender
) -> Reply | None:
    """A request in an envelope: its answer, or NotController; another KafkaError if it cannot be parsed."""
    if not services.quotas.measures_time:
        return await _respond_forwarded(services, connection, route, frame, sender)
    client_id = decode_request_header(frame, 0, len(frame))[0].client_id
    answering = _respond_forwarded(services, connection, route, frame, sender)
    return await services.quotas.measured(answering, sender.principal, client_id)


async def _respond_forwarded(
    services: Services, connection: Connection, route: Route, frame: memoryview, sender: Sender
) -> Reply | None:
    if len(frame) > INLINE_REQUEST_BYTES:
        return await respond(services, connection, route, frame, sender)
    header, request = _parse(route, frame, 0, len(frame))
    assert route.handler is not None
    context = Context(services, connection, header, services.clock.now_ms(), forwarded_for=sender)
    try:
        if services.authorizer is not None:
            _judge(context, route)
        result = route.handler(context, request)
        if iscoroutine(result) or isinstance(result, Pending):
            result = await result
    except Exception as error:  # noqa: BLE001 - a broker never dies of a request
        return _failed(route, request, context, error, _encode_forwarded)
    return _encoded(route, request, header, _throttled(context, route, result), _encode_forwarded)


async def respond(
    services: Services,
    connection: Connection,
    route: Route,
    frame: memoryview,
    forwarded_for: Sender | None = None,
) -> Reply | None:
    """A request whose decoding and whose answer's encoding would hold the loop: both are done in a thread."""
    budget = services.elements
    in_thread = partial(budget.in_thread, services.loop, services.executor)
    elements = min(len(frame), route.max_elements)
    await budget.take(elements)
    try:
        header, request, listed = await in_thread(_parse_large, route, frame)
        del frame
        connection.frame_decoded()
        budget.give_back(elements - listed)
        elements = listed
        if forwarded_for is None:
            connection.client_id = header.client_id
        assert route.handler is not None
        # What an error is answered to: the request, or only its kind.
        failing = request if has_errors_by_item(request) else route.request
        encode = _encode if forwarded_for is None else _encode_forwarded
        now_ms = services.clock.now_ms()
        context = Context(services, connection, header, now_ms, forwarded_for=forwarded_for, is_large=True)
        try:
            if services.authorizer is not None:
                _judge(context, route)
            result = route.handler(context, request)
            if isinstance(result, Pending) and not result.done:
                # It is decided: what happens now happens whoever waits. That may take as long as members of a group
                # need to come together.
                del request
                if failing is route.request:
                    budget.give_back(elements)
                    elements = 0
                connection.only_answers()
            if iscoroutine(result) or isinstance(result, Pending):
                result = await result
        except Exception as error:  # noqa: BLE001 - a broker never dies of a request
            result = await in_thread(_error, route, failing, header, error)
        result = _throttled(context, route, result)
        return await in_thread(_encoded, route, failing, header, result, encode)
    finally:
        budget.give_back(elements)


def _judge(context: Context, route: Route) -> None:
    """KafkaError if whoever asks may not ask this at all; what depends on the request is its handler's to judge."""
    authorizer = context.node.authorizer
    if authorizer is not None and route.access.cluster:
        check_access(context.decisions(authorizer), route.access, route.api_key)


def _parse(route: Route, view: memoryview, start: int, stop: int) -> tuple[RequestHeader, Any]:
    header, offset = decode_request_header(view, start, stop)
    request, end = decode(route.request, view[:stop], header.api_version, offset)
    if end != stop:
        log.debug("%d bytes after the end of a %s", stop - end, route.request.__name__)
    return header, request


def _parse_large(route: Route, frame: memoryview) -> tuple[RequestHeader, Any, int]:
    """Also how many things it lists; WireError, which is an INVALID_REQUEST, if those are too many."""
    header, offset = decode_request_header(frame, 0, len(frame))
    request, _, listed = decode_bounded(route.request, frame, header.api_version, offset, route.max_elements)
    return header, request, listed


async def _awaited(
    route: Route, request: Any, context: Context, coroutine: Coroutine[Any, Any, Any]
) -> Reply | None:
    try:
        result = await coroutine
    except Exception as error:  # noqa: BLE001 - a broker never dies of a request
        return _failed(route, request, context, error)
    return _encoded(route, request, context.header, _throttled(context, route, result))


def _answered(route: Route, request: Any, context: Context, pending: Pending[Any]) -> Answer:
    """A coordinator's answer: it may be there already, and otherwise does not hold the connection's line."""
    if pending.done:
        return _reply(route, request, context, pending)
    connection = context.connection
    deferred = Deferred()

    def answer(done: Pending[Any]) -> None:
        """Never raises: the coordinator, which calls, has others to answer."""
        try:
            reply = _reply(route, request, context, done)
        except KafkaError as error:
            connection.close(f"{error.code.name}: {error}")
        except Exception as error:  # noqa: BLE001 - a request ends one connection at most
            what = f"answering a {route.request.__name__}"
            report(error, name=what, owner=connection.name, failed=connection.fail)
        else:
            deferred.resolve(reply)

    pending.then(answer)
    return deferred


def _reply(route: Route, request: Any, context: Context, pending: Pending[Any]) -> Reply | None:
    if pending.error is not None:
        return _failed(route, request, context, pending.error)
    return _encoded(route, request, context.header, _throttled(context, route, pending.result()))


# --- quotas


def _throttled(context: Context, route: Route, result: Any) -> Any:
    """The result, which says how long its client has to wait, if it has to: its connection is not read for so long.

    Of a forwarded request the broker's connection is not the client's: the broker does that, by what the answer says.
    """
    quotas, connection = context.node.quotas, context.connection
    if not quotas.enabled or result is None:
        return result
    said_ms = getattr(result, "throttle_time_ms", 0)
    throttle_ms = said_ms
    sender = context.forwarded_for
    if quotas.measures_time and route.has_quota and not (connection.is_of_node and sender is None):
        principal = connection.principal if sender is None else sender.principal
        throttle_ms = max(throttle_ms, quotas.throttle_ms(principal, context.header.client_id))
    if not throttle_ms:
        return result
    if context.forwarded_for is None and not connection.is_of_node:
        connection.throttle(throttle_ms)
    return result if throttle_ms == said_ms else _with_throttle_time(result, context.header, throttle_ms)


def _with_throttle_time(result: Any, header: RequestHeader, throttle_ms: int) -> Any:
    if isinstance(result, Encoded):
        if not _begins_with_throttle_time(header.api_key, header.api_version):
            return result
        first, *others = result.chunks
        return Encoded([throttle_ms.to_bytes(4, "big") + first[4:], *others], throttle_ms)
    if hasattr(result, "throttle_time_ms"):
        result = copy(result)
        result.throttle_time_ms = throttle_ms
    return result


@cache
def _begins_with_throttle_time(api_key: int, version: int) -> bool:
    fields = (field for field in schema_of(response_class(api_key)).fields if field.is_in(version))
    return next(fields).name == "throttle_time_ms"


# --- encoding


def _encode_forwarded(result: Any, header: RequestHeader) -> Reply | None:
    if is_not_controller(result):
        raise NotController
    return _encode(result, header)


def _encode(result: Any, header: RequestHeader) -> Reply | None:
    if result is None:
        return None
    if not isinstance(result, Encoded):
        return encode_response(result, header.api_version, header.correlation_id)
    head = bytearray(4)
    encode_response_header(head, header.api_key, header.api_version, header.correlation_id)
    size = len(head) - 4 + sum(map(len, result.chunks))
    head[:4] = size.to_bytes(4, "big")
    return [bytes(head), *result.chunks]


def _encoded(
    route: Route,
    request: Any,
    header: RequestHeader,
    result: Any,
    encode: Callable[[Any, RequestHeader], Reply | None] = _encode,
) -> Reply | None:
    """The answer. One with something in it that is longer than the protocol's strings is an error, as Kafka's is."""
    try:
        return encode(result, header)
    except WireError as error:
        log.warning("a %s cannot be answered: %s", route.request.__name__, error)
        failure = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)
        return encode(_error(route, request, header, failure), header)


def _failed(
    route: Route,
    request: Any,
    context: Context,
    error: Exception,
    encode: Callable[[Any, RequestHeader], Reply | None] = _encode,
) -> Reply | None:
    """A handler gave up."""
    header = context.header
    return encode(_throttled(context, route, _error(route, request, header, error)), header)


def _error(route: Route, request: Any, header: RequestHeader, error: Exception) -> Any:
    """The request's own shape of error, and a trace only for what is our fault."""
    if isinstance(error, CloseConnection):
        raise error
    if isinstance(error, KafkaError):
        code, message = error.code, error.message
    else:
        log.exception("handling a %s failed", route.request.__name__, exc_info=error)
        code, message = ErrorCode.UNKNOWN_SERVER_ERROR, None
    return error_response(request, header.api_version, code, message)
