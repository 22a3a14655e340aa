"""Where the tasks of a group can be queried: the endpoints of its members, with the partitions their tasks read.

Only instances that say an endpoint are told, to all members, whenever their epoch of this is not the group's. It is
soft: a new coordinator begins to count again.
"""

from collections.abc import Iterable, Iterator, Mapping

from ottla.coordinator.group.assignors.java_order import copied_capacity, hash_order, timeline_order
from ottla.coordinator.group.streams.configured import ConfiguredSubtopology
from ottla.coordinator.group.streams.group import StreamsGroup
from ottla.coordinator.group.streams.member import StreamsGroupMember
from ottla.coordinator.partitioning import java_hash_code
from ottla.metadata.image import ClusterImage
from ottla.wire.messages.streams_group import Endpoint, EndpointToPartitions, TopicPartition


def all_endpoints(
    group: StreamsGroup, updated: StreamsGroupMember, image: ClusterImage
) -> list[EndpointToPartitions]:
    """Those of all members, the one who asks last, as it will be."""
    others = (
        group.members[member_id]
        for member_id in timeline_order(list(group.members))
        if member_id != updated.member_id
    )
    found = (_endpoint(group, member, image) for member in (*others, updated))
    return [endpoint for endpoint in found if endpoint is not None]


def _endpoint(
    group: StreamsGroup, member: StreamsGroupMember, image: ClusterImage
) -> EndpointToPartitions | None:
    if member.user_endpoint is None:
        return None
    known = group.endpoints.get(member.member_id)
    if known is None:
        host, port = member.user_endpoint
        known = group.endpoints[member.member_id] = EndpointToPartitions(
            user_endpoint=Endpoint(host=host, port=port),
            active_partitions=list(_partitions(group, member.assigned.active, image)),
            standby_partitions=list(_partitions(group, member.assigned.standby, image)),
        )
    return known


def _partitions(
    group: StreamsGroup, tasks: Mapping[str, Iterable[int]], image: ClusterImage
) -> Iterator[TopicPartition]:
    """The partitions that tasks read, of the topics that exist."""
    configured = group.configured
    subtopologies = (configured.subtopologies if configured is not None else None) or {}
    for subtopology_id, numbers in tasks.items():
        subtopology = subtopologies.get(subtopology_id)
        for name in () if subtopology is None else _topics(subtopology):
            topic = image.topic(name)
            count = 0 if topic is None else len(topic.partitions)
            partitions = sorted(number for number in numbers if number < count)
            if partitions:
                yield TopicPartition(topic=name, partitions=partitions)


def _topics(subtopology: ConfiguredSubtopology) -> list[str]:
    names = subtopology.source_topics | subtopology.repartition_source_topics.keys()
    return hash_order(sorted(names), java_hash_code, copied_capacity(len(names)))
