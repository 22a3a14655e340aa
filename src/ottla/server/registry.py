"""Which APIs are served, in which versions, by which function: ApiVersions is read off this table.

A handler registers itself by decorator, for the broker's listeners, the controller's, or both; nothing is
advertised that has no handler, and none is registered for which server/authorization.py does not say what its API asks
for. The version ranges are those Apache Kafka 4.3.1 advertises, because clients infer
from them what a broker can do.

Produce and JoinGroup are advertised from version 0 although their oldest versions are long gone: librdkafka
turns compression and groups off otherwise (KAFKA-18659, KAFKA-19444).
"""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from ottla.security.acls import AclOperation
from ottla.server.audit import audited
from ottla.server.authorization import Access, access_of
from ottla.server.context import Context, Services
from ottla.server.limits import MAX_ELEMENTS
from ottla.server.network.connection import Connection, Listener
from ottla.server.network.output import Answer

# api key : lowest version - highest version, as 4.3.1 advertises them.
_RANGES = """
    0:0-13 1:4-18 2:1-11 3:0-13 8:2-10 9:1-10 10:0-6 11:0-9 12:0-4 13:0-5 14:0-5 15:0-6 16:0-5 17:0-1 18:0-4
    19:2-7 20:1-6 21:0-2 22:0-5 23:2-4 24:0-5 25:0-4 26:0-5 27:1-2 28:0-5 29:1-3 30:1-3 31:1-3 32:1-4 33:0-2
    34:1-2 35:1-5 36:0-2 37:0-3 38:1-3 39:1-2 40:1-2 41:1-3 42:0-2 43:0-2 44:0-1 45:0-1 46:0-0 47:0-0 48:0-1
    49:0-1 50:0-0 51:0-0 52:0-2 53:0-1 54:0-1 55:0-2 56:2-3 57:0-2 58:0-0 59:0-1 60:0-2 61:0-0 62:0-4 63:0-2
    64:0-0 65:0-0 66:0-2 67:0-0 68:0-1 69:0-1 70:0-0 73:0-0 74:0-1 75:0-0 76:1-1 77:1-1 78:1-2 79:1-2 80:0-1
    81:0-0 82:0-0 83:0-0 84:0-0 85:0-1 86:0-0 87:0-1 88:0-0 89:0-0 90:0-1 91:0-0 92:0-0
"""


def _parse(ranges: str) -> dict[int, tuple[int, int]]:
    entries = (entry.replace(":", " ").replace("-", " ").split() for entry in ranges.split())
    return {int(key): (int(low), int(high)) for key, low, high in entries}


ADVERTISED = _parse(_RANGES)


class RawHandler(Protocol):
    """A hand-tuned path: works on the frame itself and gives back a whole response frame."""

    def __call__(
        self,
        services: Services,
        connection: Connection,
        view: memoryview,
        version: int,
        correlation_id: int,
        start: int,
        stop: int,
    ) -> Answer: ...


Handler = Callable[[Context, Any], Any | Awaitable[Any]]
H = TypeVar("H", bound=Handler)
R = TypeVar("R", bound=RawHandler)


@dataclass(frozen=True, slots=True)
class Route:
    """How one API is served on one kind of listener."""

    api_key: int
    min_version: int
    max_version: int
    request: type[Any]
    handler: Handler | None
    raw: RawHandler | None
    max_elements: int
    access: Access
    # Does its time count for a quota? What nodes ask of each other does not.
    has_quota: bool
    # The raw handler of an API whose time does: nothing else is to be asked before it is called.
    quick: RawHandler | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "quick", self.raw if self.has_quota else None)


_routes: dict[Listener, dict[int, Route]] = {Listener.BROKER: {}, Listener.CONTROLLER: {}}
# What brings in the handlers of an API on the broker's listeners that is served, but not imported yet.
_later: dict[int, Callable[[], object]] = {}


def handles(request: type[Any], *listeners: Listener, max_elements: int = MAX_ELEMENTS) -> Callable[[H], H]:
    """Register a handler of decoded requests; on the broker's listeners if none are named."""

    def register(handler: H) -> H:
        _add(request, listeners, audited(request.API_KEY, handler), None, max_elements)
        return handler

    return register


def handles_raw(request: type[Any], *listeners: Listener) -> Callable[[R], R]:
    """Register a hand-tuned handler of raw frames."""

    def register(handler: R) -> R:
        _add(request, listeners, None, handler)
        return handler

    return register


def serve_later(api_keys: Iterable[int], load: Callable[[], object]) -> None:
    """These APIs are the broker's too; `load` brings in their handlers when the first of them is asked for."""
    _later.update((key, load) for key in api_keys if key not in _routes[Listener.BROKER])


def routes(listener: Listener) -> dict[int, Route]:
    """The API set of a listener, as far as it is imported."""
    return _routes[listener]


def late_route(listener: Listener, api_key: int) -> Route | None:
    """The route of an API whose handlers nobody needed so far; None if it is not served."""
    if listener is Listener.BROKER and api_key in _later:
        _later[api_key]()
    return _routes[listener].get(api_key)


def served(listener: Listener) -> list[tuple[int, int, int]]:
    """Every API of a listener, imported or not: its key, lowest and highest version."""
    later = _later if listener is Listener.BROKER else {}
    return [(key, *ADVERTISED[key]) for key in sorted(_routes[listener].keys() | later.keys())]


def _add(
    request: type[Any],
    listeners: tuple[Listener, ...],
    handler: Handler | None,
    raw: RawHandler | None,
    max_elements: int = MAX_ELEMENTS,
) -> None:
    low, high = ADVERTISED[request.API_KEY]
    for listener in listeners or (Listener.BROKER,):
        table = _routes[listener]
        assert request.API_KEY not in table, f"{request.__name__} has two handlers on {listener}"
        access = access_of(request.API_KEY, listener)
        assert access is not None, f"{request.__name__}: nothing says what it asks for"
        has_quota = AclOperation.CLUSTER_ACTION not in access.cluster
        table[request.API_KEY] = Route(
            request.API_KEY, low, high, request, handler, raw, max_elements, access, has_quota
        )
