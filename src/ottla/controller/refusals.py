"""Answers to requests that are refused as a whole: the error stands at every item, where clients look for it.

Rules: pure.
"""

from collections.abc import Sequence

from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import ZERO_UUID
from ottla.wire.messages import configs as c
from ottla.wire.messages import replication as r
from ottla.wire.messages import topics as t


def create_topics(request: t.CreateTopicsRequest, error: KafkaError) -> t.CreateTopicsResponse:
    return t.CreateTopicsResponse(
        topics=[
            t.CreatableTopicResult(name=topic.name, error_code=error.code, error_message=error.message)
            for topic in request.topics
        ]
    )


def delete_topics(request: t.DeleteTopicsRequest, error: KafkaError) -> t.DeleteTopicsResponse:
    named = [(topic.name, topic.topic_id) for topic in request.topics]
    named += [(name, ZERO_UUID) for name in request.topic_names]
    return t.DeleteTopicsResponse(
        responses=[
            t.DeletableTopicResult(name=name, topic_id=topic_id, error_code=error.code)
            for name, topic_id in named
        ]
    )


def create_partitions(request: t.CreatePartitionsRequest, error: KafkaError) -> t.CreatePartitionsResponse:
    return t.CreatePartitionsResponse(
        results=[
            t.CreatePartitionsTopicResult(name=topic.name, error_code=error.code, error_message=error.message)
            for topic in request.topics
        ]
    )


def resources(
    changes: Sequence[c.AlterConfigsResource | c.IncrementalAlterConfigsResource], error: KafkaError
) -> list[c.AlterConfigsResourceResponse]:
    return [
        c.AlterConfigsResourceResponse(
            error_code=error.code,
            error_message=error.message,
            resource_type=change.resource_type,
            resource_name=change.resource_name,
        )
        for change in changes
    ]


def elect_leaders(
    request: r.ElectLeadersRequest, error: KafkaError, api_version: int
) -> r.ElectLeadersResponse:
    return r.ElectLeadersResponse(
        error_code=error.code if api_version >= 1 else ErrorCode.NONE,
        replica_election_results=[
            r.ReplicaElectionResult(
                topic=topic.topic,
                partition_result=[
                    r.PartitionResult(partition_id=n, error_code=error.code, error_message=error.message)
                    for n in topic.partitions
                ],
            )
            for topic in request.topic_partitions or ()
        ],
    )


def alter_partition_reassignments(
    request: r.AlterPartitionReassignmentsRequest, error: KafkaError
) -> r.AlterPartitionReassignmentsResponse:
    return r.AlterPartitionReassignmentsResponse(
        error_code=error.code,
        error_message=error.message,
        responses=[
            r.ReassignableTopicResponse(
                name=topic.name,
                partitions=[
                    r.ReassignablePartitionResponse(
                        partition_index=p.partition_index,
                        error_code=error.code,
                        error_message=error.message,
                    )
                    for p in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )
