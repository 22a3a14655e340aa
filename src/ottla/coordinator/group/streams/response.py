"""The answer to a heartbeat: the member's epoch, its tasks if they are news, where others are, what is the matter."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ottla.coordinator.group.assignors.java_order import grown_capacity, hash_order
from ottla.coordinator.group.streams.configured import (
    ConfiguredInternalTopic,
    ConfiguredTopology,
    StatusCode,
)
from ottla.coordinator.group.streams.endpoints import all_endpoints
from ottla.coordinator.group.streams.group import StreamsGroup
from ottla.coordinator.group.streams.member import StreamsGroupMember
from ottla.coordinator.partitioning import java_hash_code
from ottla.metadata.image import ClusterImage
from ottla.wire.messages.streams_group import Status, StreamsGroupHeartbeatResponse, TaskIds


class HeartbeatOutcome(NamedTuple):
    """The answer, and the internal topics that the application still needs."""

    response: StreamsGroupHeartbeatResponse
    topics_to_create: Mapping[str, ConfiguredInternalTopic] = {}


class Statuses:
    """What is the matter, in the order in which it was found."""

    __slots__ = ("listed",)

    def __init__(self) -> None:
        self.listed: list[Status] = []

    def add(self, code: StatusCode, detail: str) -> None:
        self.listed.append(Status(status_code=int(code), status_detail=detail))


def answer(
    group: StreamsGroup,
    member: StreamsGroupMember,
    image: ClusterImage,
    statuses: Statuses,
    configured: ConfiguredTopology,
    *,
    heartbeat_interval_ms: int,
    tell_tasks: bool,
    endpoint_epoch: int,
    is_new: bool,
) -> HeartbeatOutcome:
    """`endpoint_epoch` is the one of which the member has heard last."""
    response = StreamsGroupHeartbeatResponse(
        member_id=member.member_id,
        member_epoch=member.member_epoch,
        heartbeat_interval_ms=heartbeat_interval_ms,
        task_offset_interval_ms=0,  # members do not say their offsets yet
        status=statuses.listed,
        # What a group that is only about to be has counted is forgotten with it.
        endpoint_information_epoch=0,
    )
    if tell_tasks:
        _tell_tasks(response, member)
        group.endpoints.pop(member.member_id, None)
        if member.user_endpoint is not None:
            group.endpoint_epoch += 1
    if group.endpoint_epoch != endpoint_epoch:
        response.partitions_by_user_endpoint = all_endpoints(group, member, image)
    if not is_new:
        response.endpoint_information_epoch = group.endpoint_epoch
    if configured.problem is not None:
        statuses.add(configured.problem.status, configured.problem.detail)
    if group.shutdown_member_id is not None:
        statuses.add(
            StatusCode.SHUTDOWN_APPLICATION,
            f"Member {group.shutdown_member_id} has asked the whole application to stop.",
        )
    return HeartbeatOutcome(response, configured.topics_to_create)


def _tell_tasks(response: StreamsGroupHeartbeatResponse, member: StreamsGroupMember) -> None:
    response.active_tasks = _rows(member.assigned.active)
    response.standby_tasks = _rows(member.assigned.standby)
    response.warmup_tasks = _rows(member.assigned.warmup)


def _rows(tasks: Mapping[str, Iterable[Any]]) -> list[TaskIds]:
    order = hash_order(sorted(tasks), java_hash_code, grown_capacity(len(tasks)))
    return [
        TaskIds(subtopology_id=subtopology_id, partitions=sorted(tasks[subtopology_id]))
        for subtopology_id in order
    ]
