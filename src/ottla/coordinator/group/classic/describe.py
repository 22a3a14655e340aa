"""DescribeGroups: a classic group and its members, as it is."""

from ottla.coordinator.group.classic.group import ClassicGroup
from ottla.coordinator.group.classic.member import Member
from ottla.coordinator.group.classic.state import DEAD, STABLE
from ottla.coordinator.group.group import Group
from ottla.model.errors import ErrorCode
from ottla.wire.messages.groups import DescribedGroup, DescribedGroupMember

# Before, a group that is not there is described as dead, without an error (KIP-1043).
FIRST_NOT_FOUND_VERSION = 6


def describe(group_id: str, group: Group | None, version: int) -> DescribedGroup:
    """What is committed of it; dead if there is no such classic group."""
    if not isinstance(group, ClassicGroup):
        why = "not found." if group is None else "is not a classic group."
        return _not_there(group_id, f"Group {group_id} {why}", version)
    stable = group.state is STABLE
    return DescribedGroup(
        group_id=group_id,
        group_state=group.state_name(),
        protocol_type=group.protocol_type,
        protocol_data=(group.protocol_name or "") if stable else "",
        members=[_member(group, member, stable) for member in group.members.values()],
    )


def _not_there(group_id: str, message: str, version: int) -> DescribedGroup:
    described = DescribedGroup(
        group_id=group_id, group_state=DEAD.value, protocol_type="", protocol_data="", members=[]
    )
    if version >= FIRST_NOT_FOUND_VERSION:
        described.error_code = int(ErrorCode.GROUP_ID_NOT_FOUND)
        described.error_message = message
    return described


def _member(group: ClassicGroup, member: Member, stable: bool) -> DescribedGroupMember:
    return DescribedGroupMember(
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_metadata=member.metadata[group.protocol_name] if stable and group.protocol_name else b"",
        member_assignment=member.assignment,
    )
