"""The admin client's operations on groups of all kinds: list, describe, delete, and their offsets.

What belongs to a group is asked of its coordinator, each group by itself, several at once. Each operation is a function
whose first parameter is the client that asks; AsyncAdmin has them as methods.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from ottla.client.admin.types import (
    CLASSIC,
    CONSUMER,
    SHARE,
    STREAMS,
    GroupDescription,
    GroupListing,
    MemberDescription,
    ShareOffset,
)
from ottla.client.base import AsyncClient
from ottla.client.errors import UnsupportedVersion
from ottla.client.group.protocol import PROTOCOL_TYPE, decode_assignment, decode_subscription
from ottla.client.network import group_coordinator
from ottla.client.offsets import (
    BY_NAME,
    GroupMetadata,
    OffsetAndMetadata,
    by_topic,
    fetched_offsets,
    offset_commit_error,
    offset_commit_request,
    offset_commit_results,
    offset_fetch_error,
    offset_fetch_for_version,
    offset_fetch_request,
    to_commit,
)
from ottla.model.errors import ErrorCode, KafkaError, error_of
from ottla.model.ids import TopicPartition
from ottla.wire.messages.groups.classic import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    MemberIdentity,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from ottla.wire.messages.groups.consumer import ConsumerGroupDescribeRequest
from ottla.wire.messages.groups.share import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
    ShareGroupDescribeRequest,
)
from ottla.wire.messages.groups.streams import StreamsGroupDescribeRequest

_MEMBER_TYPES = {0: CLASSIC, 1: CONSUMER}


def describe_request(kind: str, group_id: str) -> Any:
    if kind == CLASSIC:
        return DescribeGroupsRequest(groups=[group_id])
    if kind == SHARE:
        return ShareGroupDescribeRequest(group_ids=[group_id], include_authorized_operations=False)
    if kind == STREAMS:
        return StreamsGroupDescribeRequest(group_ids=[group_id], include_authorized_operations=False)
    return ConsumerGroupDescribeRequest(group_ids=[group_id], include_authorized_operations=False)


def described(kind: str, group: Any, coordinator: int) -> GroupDescription:
    if kind == CLASSIC:
        return _classic(group, coordinator)
    member = {CONSUMER: _consumer_member, SHARE: _share_member, STREAMS: _streams_member}[kind]
    return GroupDescription(
        group.group_id,
        kind,
        group.group_state,
        PROTOCOL_TYPE if kind == CONSUMER else kind,
        getattr(group, "assignor_name", None) or "",
        coordinator,
        [member(m) for m in group.members],
        group.group_epoch,
        group.assignment_epoch,
        group.error_message,
    )


def _classic(group: Any, coordinator: int) -> GroupDescription:
    is_consumer = group.protocol_type in ("", PROTOCOL_TYPE)
    members = [_classic_member(m, is_consumer) for m in group.members]
    return GroupDescription(
        group.group_id,
        CLASSIC,
        group.group_state,
        group.protocol_type,
        group.protocol_data,
        coordinator,
        members,
        note=group.error_message,
    )


def _classic_member(member: Any, is_consumer: bool) -> MemberDescription:
    """Connect and registries put bytes of their own into a group; a damaged member should not hide the rest."""
    assignment: tuple[TopicPartition, ...] = ()
    topics: tuple[str, ...] = ()
    if is_consumer:
        try:
            assignment = tuple(decode_assignment(member.member_assignment))
            if member.member_metadata:
                topics = decode_subscription(member.member_metadata).topics
        except KafkaError:
            topics = ()
    return MemberDescription(
        member.member_id,
        member.client_id,
        member.client_host,
        member.group_instance_id,
        assignment=assignment,
        topics=topics,
    )


def _consumer_member(member: Any) -> MemberDescription:
    return MemberDescription(
        member.member_id,
        member.client_id,
        member.client_host,
        member.instance_id,
        member.rack_id,
        member.member_epoch,
        _partitions(member.assignment.topic_partitions),
        _partitions(member.target_assignment.topic_partitions),
        tuple(member.subscribed_topic_names),
        member.subscribed_topic_regex or None,
        _MEMBER_TYPES.get(member.member_type),
    )


def _share_member(member: Any) -> MemberDescription:
    return MemberDescription(
        member.member_id,
        member.client_id,
        member.client_host,
        rack=member.rack_id,
        epoch=member.member_epoch,
        assignment=_partitions(member.assignment.topic_partitions),
        topics=tuple(member.subscribed_topic_names),
    )


def _streams_member(member: Any) -> MemberDescription:
    tasks = [
        f"{kind}:{entry.subtopology_id}_{number}"
        for kind in ("active", "standby", "warmup")
        for entry in getattr(member.assignment, f"{kind}_tasks")
        for number in entry.partitions
    ]
    return MemberDescription(
        member.member_id,
        member.client_id,
        member.client_host,
        member.instance_id,
        member.rack_id,
        member.member_epoch,
        tasks=tuple(tasks),
    )


def _partitions(entries: Iterable[Any]) -> tuple[TopicPartition, ...]:
    return tuple(sorted(TopicPartition(e.topic_name, number) for e in entries for number in e.partitions))


T = TypeVar("T")
# How many groups are asked about at the same time.
AT_ONCE = 16
# DeleteGroups version 3 exists only in the 4.4 sources.
DELETE_AT_MOST = 2
_ORDER = (CONSUMER, CLASSIC, SHARE, STREAMS)


def group_error(code: ErrorCode, group_id: str, message: str | None = None) -> KafkaError:
    """The error of one group, with a sentence for the commonest."""
    words = {
        ErrorCode.GROUP_ID_NOT_FOUND: "does not exist",
        ErrorCode.NON_EMPTY_GROUP: "still has members",
        ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: "is subscribed to the topic",
        ErrorCode.UNKNOWN_MEMBER_ID: "has members: stop them first",
    }
    return KafkaError(code, f"group {group_id!r}: {words.get(code) or message or code.name}")


async def each(
    keys: Iterable[str], ask: Callable[[str], Coroutine[Any, Any, T]]
) -> dict[str, T | KafkaError]:
    """Ask about each key, some at once; the value for one that failed is its error."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(key: str) -> T | KafkaError:
        async with gate:
            try:
                return await ask(key)
            except KafkaError as error:
                return error

    unique = list(dict.fromkeys(keys))
    return dict(zip(unique, await asyncio.gather(*map(one, unique)), strict=True))


async def ask_group_coordinator(
    client: AsyncClient,
    group_id: str,
    request: Any,
    error: Callable[[Any], ErrorCode | None],
    *,
    at_most: int | None = None,
    adapt: Callable[[Any, int], Any] | None = None,
) -> Any:
    target = group_coordinator(group_id)
    return await client.request(request, target, error_of=error, at_most=at_most, adapt=adapt)


# -- groups ---------------------------------------------------------------------------------------


async def list_groups(
    client: AsyncClient, *, states: Sequence[str] = (), types: Sequence[str] = ()
) -> list[GroupListing]:
    """Every group of every coordinator, by state and type if wanted."""

    async def ask(node: str) -> list[GroupListing]:
        request = ListGroupsRequest(states_filter=list(states), types_filter=list(types))
        response = await client.request(request, int(node), adapt=_filters_are_known)
        code = error_of(response.error_code)
        if code is not None:
            raise KafkaError(code, f"broker {node}: the groups cannot be listed: {code.name}")
        return [
            GroupListing(g.group_id, g.group_type.lower(), g.group_state, g.protocol_type, int(node))
            for g in response.groups
        ]

    answers = await each(map(str, client.core.metadata.nodes), ask)
    found: dict[str, GroupListing] = {}
    for answer in answers.values():
        if isinstance(answer, KafkaError):
            raise answer
        for listing in answer:
            found[listing.group_id] = listing
            client.core.coordinators.learn(group_coordinator(listing.group_id), listing.coordinator)
    return sorted(found.values())


async def describe_groups(
    client: AsyncClient, group_ids: Iterable[str], *, types: Mapping[str, str] | None = None
) -> dict[str, GroupDescription | KafkaError]:
    """Groups of any kind and their members; `types` saves trying, where a listing has named the type."""
    known = types or {}
    return await each(group_ids, lambda group: _describe(client, group, known.get(group)))


async def _describe(client: AsyncClient, group_id: str, group_type: str | None) -> GroupDescription:
    error: KafkaError = group_error(ErrorCode.GROUP_ID_NOT_FOUND, group_id)
    for kind in [group_type] if group_type else _ORDER:
        try:
            response = await ask_group_coordinator(
                client, group_id, describe_request(kind, group_id), lambda r: error_of(r.groups[0].error_code)
            )
        except UnsupportedVersion:
            continue  # an older broker: it has no such groups
        code = error_of(response.groups[0].error_code)
        if code is None:
            node = client.core.coordinators.known(group_coordinator(group_id))
            found = described(kind, response.groups[0], -1 if node is None else node)
            if found.state != "Dead":  # what brokers before 3.9 say of a group that is not there
                return found
        elif code is not ErrorCode.GROUP_ID_NOT_FOUND:
            raise group_error(code, group_id, response.groups[0].error_message)
        else:
            _, _, more = (response.groups[0].error_message or "").partition(" not found. ")
            if more:  # why it is not: the coordinator could not read its records
                error = KafkaError(code, f"group {group_id!r} does not exist. {more}")
    raise error


async def delete_groups(client: AsyncClient, group_ids: Iterable[str]) -> dict[str, KafkaError | None]:
    async def ask(group_id: str) -> None:
        response = await ask_group_coordinator(
            client,
            group_id,
            DeleteGroupsRequest(groups_names=[group_id]),
            lambda r: error_of(r.results[0].error_code),
            at_most=DELETE_AT_MOST,
        )
        code = error_of(response.results[0].error_code)
        if code is not None:
            raise group_error(code, group_id)

    return await each(group_ids, ask)


async def remove_members(
    client: AsyncClient, group_id: str, *, member_ids: Sequence[str] = (), instance_ids: Sequence[str] = ()
) -> None:
    """Take members out of a classic or consumer group (KIP-345)."""
    members = [MemberIdentity(member_id=member, reason="removed by an admin") for member in member_ids]
    members += [MemberIdentity(member_id="", group_instance_id=instance) for instance in instance_ids]
    response = await ask_group_coordinator(
        client, group_id, LeaveGroupRequest(group_id=group_id, members=members), _top_error
    )
    codes = [error_of(response.error_code), *(error_of(m.error_code) for m in response.members)]
    for code in codes:
        if code is not None:
            raise group_error(code, group_id)


# -- offsets --------------------------------------------------------------------------------------


async def list_group_offsets(
    client: AsyncClient,
    group_id: str,
    partitions: Iterable[TopicPartition] | None = None,
    *,
    require_stable: bool = False,
) -> dict[TopicPartition, OffsetAndMetadata | None]:
    """What a group has committed: for these partitions, or all there is."""
    wanted = None if partitions is None else list(partitions)
    response = await ask_group_coordinator(
        client,
        group_id,
        offset_fetch_request(
            GroupMetadata(group_id), wanted, client.core.metadata, require_stable=require_stable
        ),
        offset_fetch_error,
        at_most=BY_NAME,
        adapt=offset_fetch_for_version,
    )
    code = offset_fetch_error(response)
    if code is not None:
        raise group_error(code, group_id)
    found: dict[TopicPartition, OffsetAndMetadata | None] = {}
    for tp, value in fetched_offsets(response, client.core.metadata).items():
        if isinstance(value, ErrorCode):
            raise group_error(value, group_id, f"{tp}: {value.name}")
        found[tp] = value
    return found


async def alter_group_offsets(
    client: AsyncClient, group_id: str, offsets: Mapping[TopicPartition, int | OffsetAndMetadata]
) -> dict[TopicPartition, KafkaError | None]:
    """Set what a group without members has committed; the group is made if there is none."""
    if not offsets:
        return {}
    wanted = to_commit(offsets)
    request = offset_commit_request(wanted, GroupMetadata(group_id), client.core.metadata)
    response = await ask_group_coordinator(
        client, group_id, request, _passing(offset_commit_error), at_most=BY_NAME
    )
    return {
        tp: None if code is None else group_error(code, group_id, f"{tp.topic}-{tp.partition}: {code.name}")
        for tp, code in offset_commit_results(response, client.core.metadata).items()
    }


async def delete_group_offsets(
    client: AsyncClient, group_id: str, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, KafkaError | None]:
    """Forget what a group has committed for partitions nobody in it is subscribed to (KIP-496)."""
    request = OffsetDeleteRequest(
        group_id=group_id,
        topics=[
            OffsetDeleteRequestTopic(
                name=topic, partitions=[OffsetDeleteRequestPartition(partition_index=p) for p in numbers]
            )
            for topic, numbers in by_topic(partitions)
        ],
    )
    response = await ask_group_coordinator(client, group_id, request, _top_error)
    code = error_of(response.error_code)
    if code is not None:
        raise group_error(code, group_id)
    return {
        TopicPartition(topic.name, p.partition_index): _partition_error(p, group_id, topic.name)
        for topic in response.topics
        for p in topic.partitions
    }


# -- share groups (KIP-932) -----------------------------------------------------------------------


async def list_share_group_offsets(
    client: AsyncClient, group_id: str, partitions: Iterable[TopicPartition] | None = None
) -> dict[TopicPartition, ShareOffset | KafkaError]:
    """Where a share group starts in its partitions."""
    topics = None
    if partitions is not None:
        topics = [
            DescribeShareGroupOffsetsRequestTopic(topic_name=topic, partitions=numbers)
            for topic, numbers in by_topic(partitions)
        ]
    group = DescribeShareGroupOffsetsRequestGroup(group_id=group_id, topics=topics)
    response = await ask_group_coordinator(
        client,
        group_id,
        DescribeShareGroupOffsetsRequest(groups=[group]),
        lambda r: error_of(r.groups[0].error_code),
    )
    answer = response.groups[0]
    code = error_of(answer.error_code)
    if code is not None:
        raise group_error(code, group_id, answer.error_message)
    return {
        TopicPartition(topic.topic_name, p.partition_index): _partition_error(p, group_id, topic.topic_name)
        or ShareOffset(_or_none(p.start_offset), p.leader_epoch, _or_none(p.lag))
        for topic in answer.topics
        for p in topic.partitions
    }


async def alter_share_group_offsets(
    client: AsyncClient, group_id: str, offsets: Mapping[TopicPartition, int]
) -> dict[TopicPartition, KafkaError | None]:
    """Set where a share group without members starts."""
    topics = [
        AlterShareGroupOffsetsRequestTopic(
            topic_name=topic,
            partitions=[
                AlterShareGroupOffsetsRequestPartition(
                    partition_index=p, start_offset=offsets[TopicPartition(topic, p)]
                )
                for p in numbers
            ],
        )
        for topic, numbers in by_topic(offsets)
    ]
    request = AlterShareGroupOffsetsRequest(group_id=group_id, topics=topics)
    response = await ask_group_coordinator(client, group_id, request, _top_error)
    code = error_of(response.error_code)
    if code is not None:
        raise group_error(code, group_id, response.error_message)
    return {
        TopicPartition(topic.topic_name, p.partition_index): _partition_error(p, group_id, topic.topic_name)
        for topic in response.responses
        for p in topic.partitions
    }


async def delete_share_group_offsets(
    client: AsyncClient, group_id: str, topics: Iterable[str]
) -> dict[str, KafkaError | None]:
    """Forget where a share group without members was in whole topics."""
    request = DeleteShareGroupOffsetsRequest(
        group_id=group_id,
        topics=[DeleteShareGroupOffsetsRequestTopic(topic_name=topic) for topic in topics],
    )
    response = await ask_group_coordinator(client, group_id, request, _top_error)
    code = error_of(response.error_code)
    if code is not None:
        raise group_error(code, group_id, response.error_message)
    return {
        topic.topic_name: _partition_error(topic, group_id, topic.topic_name) for topic in response.responses
    }


def _top_error(response: Any) -> ErrorCode | None:
    return error_of(response.error_code)


def _passing(error: Callable[[Any], ErrorCode | None]) -> Callable[[Any], ErrorCode | None]:
    """Only a coordinator's errors are worth another try: an unknown topic is an answer."""

    def found(response: Any) -> ErrorCode | None:
        code = error(response)
        return None if code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION else code

    return found


def _partition_error(item: Any, group_id: str, topic: str) -> KafkaError | None:
    code = error_of(item.error_code)
    if code is None:
        return None
    number = getattr(item, "partition_index", None)
    where = topic if number is None else f"{topic}-{number}"
    return group_error(code, group_id, f"{where}: {getattr(item, 'error_message', None) or code.name}")


def _or_none(number: int) -> int | None:
    return None if number < 0 else number


def _filters_are_known(request: ListGroupsRequest, version: int) -> ListGroupsRequest:
    if (request.types_filter and version < 5) or (request.states_filter and version < 4):
        raise UnsupportedVersion("this broker does not list groups by state or type")
    return request
