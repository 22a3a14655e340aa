"""FindCoordinator: which broker is responsible for a group, a transactional id or a share partition.

The first question makes the topic that the coordinators write to, and waits for it, within a bound: Apache says at once
that there is no coordinator yet, and clients that give up soon (librdkafka asks for a transaction's three times within
300 ms) may never find it on a busy machine.
"""

import asyncio
import re
from contextlib import suppress
from typing import Any, Final

from ottla.coordinator.partitioning import partition_for
from ottla.coordinator.runtime import CoordinatorRuntime
from ottla.metadata.cluster import Endpoint
from ottla.model.breath import Breath
from ottla.model.errors import ErrorCode
from ottla.model.ids import uuid_from_str, uuid_to_str
from ottla.server.context import Context, Services
from ottla.server.registry import handles
from ottla.server.topic_creation import (
    GROUP_METADATA,
    SHARE_GROUP_STATE,
    TRANSACTION_STATE,
    InternalTopic,
)
from ottla.wire.messages.groups import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

GROUP, TRANSACTION, SHARE = 0, 1, 2
_TOPICS: Final[dict[int, InternalTopic]] = {
    GROUP: GROUP_METADATA,
    TRANSACTION: TRANSACTION_STATE,
    SHARE: SHARE_GROUP_STATE,
}
# The first versions with several keys (KIP-699) and with share coordinators (KIP-932).
FIRST_BATCHED_VERSION = 4
FIRST_SHARE_VERSION = 6
# How long a request waits at most for a coordinator that is being made.
MAX_WAIT_S: Final = 1.0
_INT = re.compile(r"[+-]?\d{1,10}")
_MESSAGES: Final = {
    ErrorCode.NONE: "NONE",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "The coordinator is not available.",
    ErrorCode.INVALID_REQUEST: (
        "This most likely occurs because of a request being malformed by the client library or the message was "
        "sent to an incompatible broker. See the broker logs for more details."
    ),
}


@handles(FindCoordinatorRequest)
async def find_coordinator(ctx: Context, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
    """The coordinator of each key."""
    await _made(ctx, request)
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
        error_message=_MESSAGES[ErrorCode(found.error_code)],
        node_id=found.node_id,
        host=found.host,
        port=found.port,
    )


async def _made(ctx: Context, request: FindCoordinatorRequest) -> None:
    """If nobody has needed these coordinators yet, have them made; wait until they serve, or for as long as we may."""
    topic = _TOPICS.get(request.key_type)
    keys = request.coordinator_keys if ctx.version >= FIRST_BATCHED_VERSION else [request.key]
    if topic is None or ctx.node.image().topic(topic.name) is not None:
        return
    if topic is SHARE_GROUP_STATE:
        keys = [normal for key in keys if (normal := _share_key(ctx, key)) is not None]
    if not keys:
        return
    with suppress(TimeoutError):
        async with asyncio.timeout(MAX_WAIT_S):
            # Whoever else waits for it goes on waiting when this one's time is up.
            await asyncio.shield(ctx.node.topic_creation.create_internal(ctx.node, topic))
            runtime = _runtime(ctx.node, topic)
            for partition in {runtime.partition_for(key) for key in keys}:
                await runtime.settled(partition)


def _runtime(node: Services, topic: InternalTopic) -> CoordinatorRuntime[Any]:
    if topic is GROUP_METADATA:
        return node.groups
    return node.transactions.runtime if topic is TRANSACTION_STATE else node.share_state.runtime


def _share_key(ctx: Context, key: str) -> str | None:
    return None if ctx.version < FIRST_SHARE_VERSION else normal_share_key(key)


def _coordinator(ctx: Context, key_type: int, key: str) -> Coordinator:
    topic = _TOPICS.get(key_type)
    if topic is None:
        return _nobody(key, ErrorCode.INVALID_REQUEST, _MESSAGES[ErrorCode.INVALID_REQUEST])
    if topic is SHARE_GROUP_STATE:
        normal = _share_key(ctx, key)
        if normal is None:
            return _nobody(key, ErrorCode.INVALID_REQUEST)
        found = _find(ctx, topic, normal)
    else:
        found = _find(ctx, topic, key)
    if found is None:
        return _nobody(key, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    node_id, here = found
    return Coordinator(key=key, node_id=node_id, host=here.host, port=here.port, error_message="")


def _find(ctx: Context, topic: InternalTopic, key: str) -> tuple[int, Endpoint] | None:
    """The broker that leads the key's partition, if it can be reached on this listener."""
    image = ctx.node.image()
    partition = image.partition(topic.name, partition_for(key, topic.partitions(ctx)))
    broker = None if partition is None else image.brokers.get(partition.leader)
    if broker is None or broker.fenced:
        return None
    here = broker.listeners.get(ctx.listener_name)
    return None if here is None else (broker.id, here)


def _nobody(key: str, code: ErrorCode, message: str = "") -> Coordinator:
    return Coordinator(key=key, node_id=-1, host="", port=-1, error_code=int(code), error_message=message)


def normal_share_key(key: str) -> str | None:
    """group:topic id:partition, as the share coordinator hashes it; None if it is something else.

    It is read from the right, because a group's name may have colons in it.
    """
    parts = key.rstrip(":").split(":")
    if len(parts) < 3 or _INT.fullmatch(parts[-1]) is None:
        return None
    group_id, topic_id, partition = ":".join(parts[:-2]), parts[-2], int(parts[-1])
    if not group_id.strip() or not -(1 << 31) <= partition < 1 << 31:
        return None
    try:
        raw_id = uuid_from_str(topic_id.removesuffix("=="))
    except ValueError:
        return None
    return f"{group_id}:{uuid_to_str(raw_id)}:{partition}"
