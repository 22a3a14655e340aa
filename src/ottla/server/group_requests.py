"""What the handlers of groups of different kinds share: who asks, what is switched on, and describing many groups."""

from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol, TypeVar

from ottla.coordinator.group.classic.join import Caller
from ottla.coordinator.group.group import GroupType
from ottla.coordinator.group.machine import GroupMachine
from ottla.model.breath import Breath
from ottla.model.errors import ErrorCode, KafkaError
from ottla.server.authorized import ALL_GROUP_OPERATIONS
from ottla.server.context import Context


class DescribeRequest(Protocol):
    """A request to describe groups of one kind."""

    group_ids: list[str]
    include_authorized_operations: bool


class Described(Protocol):
    """A group of one kind in the answer."""

    error_code: int
    error_message: str | None
    authorized_operations: int
    members: list[Any]

    def __init__(self, *, error_code: int, error_message: str | None, group_id: str) -> None: ...


D = TypeVar("D", bound=Described)

# Answers of a coordinator that knows its groups: they tell, in words, what it could not read of the one asked for.
TELL_SKIPPED: Final = (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND)


def caller_of(ctx: Context) -> Caller:
    # Java prints an address with the name it was resolved from, of which there is none, before a slash.
    return Caller(ctx.header.client_id or "", f"/{ctx.connection.peer[0]}", ctx.version)


def is_enabled(ctx: Context, kind: GroupType, feature: str) -> bool:
    """Is the kind's protocol switched on, by the cluster's features and by this broker's configuration?"""
    protocols = ctx.node.config()["group.coordinator.rebalance.protocols"]
    return ctx.node.image().features.get(feature, 0) >= 1 and kind in protocols


async def describe_groups(
    ctx: Context,
    request: DescribeRequest,
    answer: type[D],
    describe: Callable[[GroupMachine, str], tuple[D, Iterable[Any]]],
    *,
    enabled: bool,
) -> list[D]:
    """Every group that is asked for. `describe` gives one and the members to be put in, of which there may be many."""
    breath = Breath()
    described = []
    for group_id in request.group_ids:
        try:
            group, members = _read(ctx, group_id, describe, enabled=enabled)
        except KafkaError as error:
            # Only that there is no such group is told in words.
            words = error.message if error.code is ErrorCode.GROUP_ID_NOT_FOUND else None
            group, members = answer(error_code=int(error.code), error_message=words, group_id=group_id), ()
        if group.error_code in TELL_SKIPPED:
            group.error_message = with_skipped(ctx, group_id, group.error_message)
        for member in members:
            group.members.append(member)
            await breath.take()
        if request.include_authorized_operations and group.error_code == ErrorCode.NONE:
            group.authorized_operations = ALL_GROUP_OPERATIONS
        described.append(group)
        await breath.take()
    return described


def with_skipped(ctx: Context, group_id: str, message: str | None) -> str | None:
    """What is told of a group in words, with what of it the coordinator's load could not read."""
    groups = ctx.node.groups
    skipped = groups.read(
        groups.partition_for(group_id), lambda machine, _: machine.context.skipped.about(group_id)
    )
    return message if skipped is None else f"{message} {skipped}" if message else skipped


def _read(
    ctx: Context,
    group_id: str,
    describe: Callable[[GroupMachine, str], tuple[D, Iterable[Any]]],
    *,
    enabled: bool,
) -> tuple[D, Iterable[Any]]:
    if not enabled:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
    if not group_id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID)
    groups = ctx.node.groups
    return groups.read(groups.partition_for(group_id), lambda machine, _: describe(machine, group_id))
