"""What is wrong with a StreamsGroupHeartbeat whatever the state of its group."""

from collections.abc import Iterator, Sequence
from typing import Final

from ottla.coordinator.group.modern_member import JOIN_EPOCH
from ottla.coordinator.group.modern_validation import NOT_GIVEN, require, require_possible_epoch, require_text
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.topic_names import INTERNAL_TOPICS, topic_name_problem
from ottla.wire.messages.streams_group import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatRequestTopology,
)

# Subtopologies, and topics of them, that a topology may have: more would hold up everybody else on the broker.
MAX_TOPOLOGY_SIZE: Final = 5_000


def validate(request: StreamsGroupHeartbeatRequest) -> None:
    """STREAMS_INVALID_TOPOLOGY or INVALID_REQUEST."""
    if request.topology is not None:
        _require_topic_names(request.topology)
    _require_supported(request)
    require_text(request.member_id, "MemberId")
    require_text(request.group_id, "GroupId")
    require_text(request.rack_id, "RackId")
    epoch = request.member_epoch
    if epoch == JOIN_EPOCH:
        _validate_join(request)
    require_possible_epoch(epoch, request.instance_id)
    said = [tasks is not None for tasks in _tasks(request)]
    require(all(said) or not any(said), "A request says all kinds of tasks or none.")
    require(epoch == JOIN_EPOCH or request.topology is None, "Only a member that joins says a Topology.")


def _tasks(request: StreamsGroupHeartbeatRequest) -> tuple[Sequence[object] | None, ...]:
    return request.active_tasks, request.standby_tasks, request.warmup_tasks


def _require_topic_names(topology: StreamsGroupHeartbeatRequestTopology) -> None:
    listed = list(_topics(topology))
    if len(topology.subtopologies) + len(listed) > MAX_TOPOLOGY_SIZE:
        raise _invalid_topology(f"A topology has {MAX_TOPOLOGY_SIZE} subtopologies and topics at most.")
    names = dict.fromkeys(listed)
    internal = [name for name in names if name in INTERNAL_TOPICS]
    if internal:
        raise _invalid_topology(f"The topology uses Kafka's own topics {', '.join(internal)}.")
    impossible = [name for name in names if topic_name_problem(name) is not None]
    if impossible:
        raise _invalid_topology(f"No topic can be called {', '.join(impossible)}.")


def _topics(topology: StreamsGroupHeartbeatRequestTopology) -> Iterator[str]:
    for subtopology in topology.subtopologies:
        yield from subtopology.source_topics
        yield from subtopology.repartition_sink_topics
        yield from (topic.name for topic in subtopology.repartition_source_topics)
        yield from (topic.name for topic in subtopology.state_changelog_topics)


def _require_supported(request: StreamsGroupHeartbeatRequest) -> None:
    """What the protocol has room for, and 4.3 does not do yet."""
    require(request.instance_id is None, "Static members are not supported.")
    require(request.task_offsets is None, "TaskOffsets are not supported.")
    require(request.task_end_offsets is None, "TaskEndOffsets are not supported.")
    require(not request.warmup_tasks, "WarmupTasks are not supported.")
    for subtopology in request.topology.subtopologies if request.topology is not None else ():
        require(not subtopology.source_topic_regex, "Expressions for source topics are not supported.")


def _validate_join(request: StreamsGroupHeartbeatRequest) -> None:
    require(request.rebalance_timeout_ms != NOT_GIVEN, "A member that joins says its RebalanceTimeoutMs.")
    for tasks in _tasks(request):
        require(tasks is not None and not tasks, "A member that joins has no tasks and says so.")
    require(request.topology is not None, "A member that joins says its Topology.")
    for subtopology in request.topology.subtopologies if request.topology is not None else ():
        for topic in subtopology.state_changelog_topics:
            if topic.partitions:
                raise _invalid_topology(f"Changelog topic {topic.name} says how many partitions it has.")


def _invalid_topology(message: str) -> KafkaError:
    return KafkaError(ErrorCode.STREAMS_INVALID_TOPOLOGY, message)
