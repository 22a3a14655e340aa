"""Which broker coordinates a group or a transactional id: looked up when first needed, forgotten when it moved.

A call may be for "the coordinator of group g" (CoordinatorOf); the network core asks here which node that is.
A lookup is one FindCoordinator, tried again while the broker says that it is not ready; what a broker refuses
for good fails the calls that wait for it. Owned by the network core.
"""

from collections.abc import Callable
from enum import IntEnum
from typing import Any, NamedTuple

from ottla.client.metadata import error_of
from ottla.model.errors import ErrorCode, KafkaError
from ottla.wire.messages.groups import FindCoordinatorRequest

# From this version on a request asks for several keys (KIP-699).
FIND_MANY_KEYS = 4
# After these the coordinator is looked up again; while it loads, it is still the right one.
MOVED_COORDINATOR = frozenset(
    {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NETWORK_EXCEPTION}
)


class CoordinatorType(IntEnum):
    """What a coordinator is for."""

    GROUP = 0
    TRANSACTION = 1


class CoordinatorOf(NamedTuple):
    """The broker that coordinates a group or a transactional id, as the addressee of a call."""

    kind: CoordinatorType
    key: str

    def __str__(self) -> str:
        what = "group" if self.kind is CoordinatorType.GROUP else "transactional id"
        return f"the coordinator of {what} {self.key!r}"


def group_coordinator(group_id: str) -> CoordinatorOf:
    return CoordinatorOf(CoordinatorType.GROUP, group_id)


def transaction_coordinator(transactional_id: str) -> CoordinatorOf:
    return CoordinatorOf(CoordinatorType.TRANSACTION, transactional_id)


# How a lookup is sent: the request, the function that finds its error, what to do with the outcome, the time.
Ask = Callable[
    [
        FindCoordinatorRequest,
        Callable[[Any], ErrorCode | None],
        Callable[[Any, KafkaError | None, float], None],
        float,
    ],
    None,
]


class Coordinators:
    """See the module."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._nodes: dict[CoordinatorOf, int] = {}
        self._asking: set[CoordinatorOf] = set()
        self._refused: dict[CoordinatorOf, KafkaError] = {}

    def node(self, of: CoordinatorOf, now: float) -> int | None:
        """The node, if it is known; if not it is asked for. Raises what the lookup was refused with, once."""
        refusal = self._refused.pop(of, None)
        if refusal is not None:
            raise refusal
        node_id = self._nodes.get(of)
        if node_id is None and of not in self._asking:
            self._look_up(of, now)
        return node_id

    def known(self, of: CoordinatorOf) -> int | None:
        return self._nodes.get(of)

    def learn(self, of: CoordinatorOf, node_id: int) -> None:
        """Somebody who must know has said it, such as the broker that lists a group."""
        self._nodes[of] = node_id

    def forget(self, of: CoordinatorOf) -> None:
        self._nodes.pop(of, None)

    def _look_up(self, of: CoordinatorOf, now: float) -> None:
        self._asking.add(of)

        def answered(response: Any, error: KafkaError | None, now: float) -> None:
            self._asking.discard(of)
            code = None if response is None else _lookup_error(response)
            if code is not None:
                error = KafkaError(code, f"{of}: {_message(response) or code.name}")
            if error is None:
                self._nodes[of] = _node_id(response)
            elif not error.code.retriable:
                self._refused[of] = error

        self._ask(FindCoordinatorRequest(key=of.key, key_type=of.kind), _lookup_error, answered, now)


def for_version(request: FindCoordinatorRequest, version: int) -> FindCoordinatorRequest:
    """The one key moved to where the version wants it."""
    if version < FIND_MANY_KEYS:
        return request
    return FindCoordinatorRequest(key_type=request.key_type, coordinator_keys=[request.key])


def _lookup_error(response: Any) -> ErrorCode | None:
    found = response.coordinators[0] if response.coordinators else response
    return error_of(found.error_code)


def _message(response: Any) -> str | None:
    found = response.coordinators[0] if response.coordinators else response
    message: str | None = found.error_message
    return message


def _node_id(response: Any) -> int:
    return int(response.coordinators[0].node_id if response.coordinators else response.node_id)
