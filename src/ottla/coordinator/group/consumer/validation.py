"""What is wrong with a ConsumerGroupHeartbeat whatever the state of its group."""

from collections.abc import Mapping
from typing import Any, Final

from ottla.coordinator.group.modern_member import JOIN_EPOCH, LEAVE_EPOCH
from ottla.coordinator.group.modern_validation import NOT_GIVEN, require, require_possible_epoch, require_text
from ottla.model.errors import ErrorCode, KafkaError
from ottla.wire.messages.consumer_group import ConsumerGroupHeartbeatRequest

# Since this version members make their ids themselves (KIP-1082).
MEMBER_ID_REQUIRED_VERSION: Final = 1


def validate(request: ConsumerGroupHeartbeatRequest, version: int, assignors: Mapping[str, Any]) -> None:
    """INVALID_REQUEST or UNSUPPORTED_ASSIGNOR for what no state of the group could make right."""
    epoch = request.member_epoch
    if epoch > 0 and _says_who_it_is_and_nothing_else(request):
        return  # nearly every heartbeat
    must_have_id = version >= MEMBER_ID_REQUIRED_VERSION or epoch > 0 or epoch == LEAVE_EPOCH
    if must_have_id:
        require_text(request.member_id, "MemberId")
    require_text(request.group_id, "GroupId")
    require_text(request.instance_id, "InstanceId")
    require_text(request.rack_id, "RackId")
    if epoch == JOIN_EPOCH:
        _validate_join(request)
    require_possible_epoch(epoch, request.instance_id)
    if request.server_assignor is not None and request.server_assignor not in assignors:
        known = ", ".join(assignors)
        raise KafkaError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"There is no assignor {request.server_assignor}; there are {known}.",
        )


def _says_who_it_is_and_nothing_else(request: ConsumerGroupHeartbeatRequest) -> bool:
    return (
        request.instance_id is None
        and request.rack_id is None
        and request.server_assignor is None
        and bool(request.member_id.strip() and request.group_id.strip())
    )


def _validate_join(request: ConsumerGroupHeartbeatRequest) -> None:
    require(request.rebalance_timeout_ms != NOT_GIVEN, "A member that joins says its RebalanceTimeoutMs.")
    nothing = request.topic_partitions is not None and not request.topic_partitions
    require(nothing, "A member that joins has no partitions and says so.")
    subscribes = request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None
    require(subscribes, "A member that joins says SubscribedTopicNames or SubscribedTopicRegex.")
