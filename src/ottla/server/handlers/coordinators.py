"""FindCoordinator: which broker is responsible for a group, a transactional id or a share partition.

This broker has no coordinators yet, and advertises nothing that only they could answer, so a client that wants
one learns from ApiVersions what it cannot do. The question itself is answered as a cluster of one answers it,
because librdkafka takes a broker that does not know it for one that cannot read lz4, and stores what its user
asked to compress as it is.
"""

import re

from ottla.model.breath import Breath
from ottla.model.errors import ErrorCode
from ottla.server.context import Context
from ottla.server.registry import handles
from ottla.wire.messages.groups import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

GROUP, TRANSACTION, SHARE = 0, 1, 2
# The first versions with several keys (KIP-699) and with share coordinators (KIP-932).
FIRST_BATCHED_VERSION = 4
FIRST_SHARE_VERSION = 6
SHARE_KEY = re.compile(r"[^:]+:[A-Za-z0-9_-]{22}:\d+")


@handles(FindCoordinatorRequest)
async def find_coordinator(ctx: Context, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
    """This broker, for every key that could have a coordinator."""
    if ctx.version >= FIRST_BATCHED_VERSION:
        breath = Breath()
        coordinators = []
        for key in request.coordinator_keys:
            coordinators.append(_coordinator(ctx, request.key_type, key))
            await breath.take()
        return FindCoordinatorResponse(coordinators=coordinators)
    found = _coordinator(ctx, request.key_type, request.key)
    return FindCoordinatorResponse(
        error_code=found.error_code,
        error_message=ErrorCode(found.error_code).name,
        node_id=found.node_id,
        host=found.host,
        port=found.port,
    )


def _coordinator(ctx: Context, key_type: int, key: str) -> Coordinator:
    if key_type not in (GROUP, TRANSACTION, SHARE):
        return _refused(key, f"There is no coordinator of type {key_type}")
    if key_type == SHARE and (ctx.version < FIRST_SHARE_VERSION or SHARE_KEY.fullmatch(key) is None):
        return _refused(key, "")
    broker = ctx.node.image().brokers[ctx.node.node_id]
    here = broker.listeners[ctx.listener_name]
    return Coordinator(key=key, node_id=broker.id, host=here.host, port=here.port, error_message="")


def _refused(key: str, why: str) -> Coordinator:
    code = int(ErrorCode.INVALID_REQUEST)
    return Coordinator(key=key, node_id=-1, host="", port=-1, error_code=code, error_message=why)
