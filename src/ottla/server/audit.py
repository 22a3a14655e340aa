"""Where the audit log is told of changes: by the handlers of those APIs that change something.

Purpose: the registry has handlers wrapped by `audited`; those of other APIs stay as they are. What is shown of a change
is in server/changes.py.

Rules: a change is told where the client asked, and once more, as `forwarded`, by the controller that a broker has
passed it on to; not by a controller that does not lead. Telling never fails a request. Owned by the node's loop.
"""

from collections.abc import Callable
from functools import partial, wraps
from inspect import iscoroutine
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ottla.controller.refusals import is_not_controller
from ottla.controller.result import RequestContext
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.pending import Pending
from ottla.model.tasks import guarded
from ottla.security.principal import host_address
from ottla.server.context import Context
from ottla.wire.messages.admin.topics import CreateTopicsRequest, CreateTopicsResponse
from ottla.wire.registry import APIS

if TYPE_CHECKING:
    from ottla.security.audit import AuditLog
    from ottla.server.topic_creation import TopicCreator

# By Kafka's names; the table in server/changes.py has an entry for each.
CHANGING: Final = frozenset(
    [
        "CreateTopics",
        "DeleteTopics",
        "CreatePartitions",
        "DeleteRecords",
        "AlterPartitionReassignments",
        "ElectLeaders",
        "AlterReplicaLogDirs",
        "AlterConfigs",
        "IncrementalAlterConfigs",
        "CreateAcls",
        "DeleteAcls",
        "AlterUserScramCredentials",
        "CreateDelegationToken",
        "RenewDelegationToken",
        "ExpireDelegationToken",
        "AlterClientQuotas",
        "DeleteGroups",
        "OffsetDelete",
        "AlterShareGroupOffsets",
        "DeleteShareGroupOffsets",
        "UpdateFeatures",
        "UnregisterBroker",
        "AddRaftVoter",
        "RemoveRaftVoter",
    ]
)
# When a node stops in the midst of it.
_UNKNOWN: Final = "UNKNOWN"
# What a request weighs in the audit log's queue beside the things that it names, because it is kept there whole.
REQUEST_WEIGHT: Final = 20
LARGE_REQUEST_WEIGHT: Final = 2_000

Handler = Callable[[Context, Any], Any]
H = TypeVar("H", bound=Handler)


def audited(api_key: int, handler: H) -> H:
    """The handler of an API, and what it has changed is told; the handler itself where that changes nothing."""
    if APIS[api_key].name not in CHANGING:
        return handler

    @wraps(handler)
    def handle(ctx: Context, request: Any) -> Any:
        audit = ctx.connection.audit
        if audit is None or not audit.changes:
            return handler(ctx, request)
        tell = guarded(partial(_tell, audit, ctx, request), name="telling of a change", owner="audit")
        try:
            result = handler(ctx, request)
        except Exception as error:
            tell(None, _code_of(error))
            raise
        if isinstance(result, Pending):
            result.then(lambda done: _tell_done(tell, done))
            return result
        if iscoroutine(result):
            return _awaited(tell, result)
        tell(result, None)
        return result

    return handle  # type: ignore[return-value]


async def _awaited(tell: Callable[[Any, str | None], None], coroutine: Any) -> Any:
    told = False
    try:
        result = await coroutine
        told = True
        tell(result, None)
        return result
    except Exception as error:
        told = True
        tell(None, _code_of(error))
        raise
    finally:
        if not told:  # it was cancelled
            tell(None, _UNKNOWN)


def _tell_done(tell: Callable[[Any, str | None], None], done: "Pending[Any]") -> None:
    if done.error is not None:
        tell(None, _code_of(done.error))
    else:
        tell(done.result(), None)


def _code_of(error: Exception) -> str:
    return error.code.name if isinstance(error, KafkaError) else ErrorCode.UNKNOWN_SERVER_ERROR.name


def _tell(audit: "AuditLog", ctx: Context, request: Any, response: Any, failed: str | None) -> None:
    sender = ctx.sender
    fields: dict[str, Any] = {
        "principal": str(sender.principal),
        "address": host_address(sender.address),
        "listener": ctx.listener_name,
        "client_id": ctx.header.client_id,
        "api": APIS[ctx.header.api_key].name,
    }
    if ctx.forwarded_for is not None:
        fields["forwarded"] = True
    response = getattr(response, "response", response)  # a large one is encoded already
    _tell_change(audit, fields, request, response, failed, is_large=ctx.is_large)


def _tell_change(
    audit: "AuditLog",
    fields: dict[str, Any],
    request: Any,
    response: Any,
    failed: str | None,
    *,
    is_large: bool,
) -> None:
    from ottla.server.changes import CHANGES, lines_of

    if failed == ErrorCode.NOT_CONTROLLER.name or (response is not None and is_not_controller(response)):
        return  # nobody has decided: another one is asked
    if getattr(request, "validate_only", False):
        fields["validate_only"] = True
    change = CHANGES[fields["api"]]
    things = sum(len(getattr(request, name) or ()) for name in change.lists)
    weight = things + (LARGE_REQUEST_WEIGHT if is_large else REQUEST_WEIGHT)
    audit.changed(fields, partial(lines_of, change, request, response, failed), weight)


class AuditedTopicCreation:
    """In place of the controller, for topics that are made on demand: whoever needs them has made them."""

    def __init__(self, controller: "TopicCreator", audit: "AuditLog") -> None:
        self._controller = controller
        self._audit = audit

    async def create_topics(
        self, request: CreateTopicsRequest, context: RequestContext
    ) -> CreateTopicsResponse:
        fields: dict[str, Any] = {
            # Without a client it is for the broker's own coordinators.
            "principal": None if context.principal is None else str(context.principal),
            "address": host_address(context.client_address) if context.client_address else None,
            "listener": None,
            "client_id": context.client_id,
            "api": "CreateTopics",
            "on_demand": True,
        }

        def tell(response: Any, failed: str | None) -> None:
            _tell_change(self._audit, fields, request, response, failed, is_large=context.is_large)

        told = guarded(tell, name="telling of a change", owner="audit")
        if not self._audit.changes:
            return await self._controller.create_topics(request, context)
        answered: CreateTopicsResponse = await _awaited(
            told, self._controller.create_topics(request, context)
        )
        return answered
