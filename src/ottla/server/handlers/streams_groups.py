"""StreamsGroupHeartbeat and StreamsGroupDescribe: groups of Kafka Streams applications (KIP-1071).

What is wrong with a request whatever the group is refused here; the rest is the coordinator's to decide. Internal
topics that the coordinator finds missing are made by the controller meanwhile.
"""

import logging
from functools import partial
from typing import Final

from ottla.coordinator.group.classic.join import Caller
from ottla.coordinator.group.group import GroupType
from ottla.coordinator.group.machine import GroupMachine
from ottla.coordinator.group.streams.configured import StatusCode
from ottla.coordinator.group.streams.response import HeartbeatOutcome
from ottla.coordinator.group.streams.validation import validate
from ottla.coordinator.result import Result
from ottla.metadata.features import STREAMS_VERSION
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.pending import Pending
from ottla.server.context import Context
from ottla.server.group_requests import caller_of, describe_groups, is_enabled
from ottla.server.registry import handles
from ottla.wire.messages.streams_group import (
    DescribedGroup,
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
)

log = logging.getLogger("ottla.coordinator.streams")

# Refused topics that a status names before it only counts the others.
NAMED_FAILURES: Final = 3
# A topic that could not be made is asked for again after so many heartbeats.
RETRY_HEARTBEATS: Final = 2


@handles(StreamsGroupHeartbeatRequest)
def streams_group_heartbeat(
    ctx: Context, request: StreamsGroupHeartbeatRequest
) -> Pending[StreamsGroupHeartbeatResponse]:
    """A member joins, stays or leaves, and learns which tasks it shall have."""
    if not is_enabled(ctx, GroupType.STREAMS, STREAMS_VERSION):
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, "The streams group protocol is not switched on.")
    validate(request)
    groups = ctx.node.groups
    decided = groups.write(groups.partition_for(request.group_id), partial(_decide, caller_of(ctx), request))
    return decided.map(partial(_answer, ctx), _failed_heartbeat)


def _failed_heartbeat(error: KafkaError) -> StreamsGroupHeartbeatResponse:
    """What only the broker's own log should say stays there."""
    if error.code is not ErrorCode.UNKNOWN_SERVER_ERROR:
        raise error
    log.error("a heartbeat of a streams group failed: %s", error)
    raise KafkaError(error.code)


def _decide(
    caller: Caller, request: StreamsGroupHeartbeatRequest, machine: GroupMachine, now_ms: int
) -> Result[HeartbeatOutcome]:
    return machine.streams.heartbeat(caller, request, now_ms)


def _answer(ctx: Context, outcome: HeartbeatOutcome) -> StreamsGroupHeartbeatResponse:
    """Have the missing topics made, and say of which that did not work."""
    response, topics = outcome
    if topics:
        retry_ms = response.heartbeat_interval_ms * RETRY_HEARTBEATS
        ctx.node.streams_topics.create(ctx.node, topics, retry_ms, ctx.now_ms)
        failures = ctx.node.streams_topics.failures(topics, ctx.now_ms)
        if failures:
            _tell(response, failures)
    return response


def _tell(response: StreamsGroupHeartbeatResponse, failures: dict[str, str]) -> None:
    told = ", ".join(f"{name} ({why})" for name, why in list(failures.items())[:NAMED_FAILURES])
    more = len(failures) - NAMED_FAILURES
    for status in response.status or ():
        if status.status_code == StatusCode.MISSING_INTERNAL_TOPICS:
            others = f" and {more} more" if more > 0 else ""
            status.status_detail += f" They cannot be made: {told}{others}."
            return


@handles(StreamsGroupDescribeRequest)
async def streams_group_describe(
    ctx: Context, request: StreamsGroupDescribeRequest
) -> StreamsGroupDescribeResponse:
    """Streams groups, their topologies, their members, and what those have and shall have."""
    enabled = is_enabled(ctx, GroupType.STREAMS, STREAMS_VERSION)
    groups = await describe_groups(ctx, request, DescribedGroup, _describe, enabled=enabled)
    return StreamsGroupDescribeResponse(groups=groups)


def _describe(machine: GroupMachine, group_id: str) -> tuple[DescribedGroup, tuple[()]]:
    return machine.streams.describe(group_id), ()
