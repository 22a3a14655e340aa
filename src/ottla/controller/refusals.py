"""Answers to requests of the controller that are refused as a whole (AbstractRequest.getErrorResponse), and what tells
such an answer of a controller that is not active.

Purpose: where a response has no error of its own, the error stands at every item, where clients look for it. Rules:
what is refused here was decided by nobody: no controller was found in time, or the one that was asked does not lead.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any, Final

from ottla.controller.access.delegation_token_control import created_error
from ottla.model.errors import ErrorCode
from ottla.model.ids import ZERO_UUID
from ottla.security.principal import ANONYMOUS
from ottla.wire.messages.admin import configs, quotas, topics
from ottla.wire.messages.nodes import raft, replication
from ottla.wire.messages.nodes.broker_lifecycle import ControllerRegistrationRequest
from ottla.wire.messages.security import acls, scram, tokens
from ottla.wire.registry import response_class

# Kafka's own sentences, for the APIs that always say one.
_SENTENCES: Final = {
    ErrorCode.REQUEST_TIMED_OUT: "The request timed out.",
    ErrorCode.UNKNOWN_SERVER_ERROR: "The server experienced an unexpected error when processing the request.",
}
_ALWAYS_SAY_WHY: Final = (
    raft.DescribeQuorumRequest,
    raft.AddRaftVoterRequest,
    raft.RemoveRaftVoterRequest,
    ControllerRegistrationRequest,
)


def refusal(request: Any, version: int, code: ErrorCode, message: str | None = None) -> Any:
    """The response that says so; for every request that a controller is sent by brokers and clients."""
    shape = _SHAPES.get(type(request))
    if shape is not None:
        return shape(request, version, code, message)
    response = response_class(request.API_KEY)()
    response.error_code = int(code)
    if message is None and isinstance(request, _ALWAYS_SAY_WHY):
        message = _SENTENCES.get(code)
    if hasattr(response, "error_message"):
        response.error_message = message
    return response


def has_errors_by_item(request: Any) -> bool:
    """Must the request be at hand to refuse it?"""
    return type(request) in _SHAPES


# --- the forms


def _create_topics(
    request: topics.CreateTopicsRequest, version: int, code: ErrorCode, message: str | None
) -> topics.CreateTopicsResponse:
    return topics.CreateTopicsResponse(
        topics=[
            topics.CreatableTopicResult(name=topic.name, error_code=int(code), error_message=message)
            for topic in request.topics
        ]
    )


def _delete_topics(
    request: topics.DeleteTopicsRequest, version: int, code: ErrorCode, message: str | None
) -> topics.DeleteTopicsResponse:
    named = [(topic.name, topic.topic_id) for topic in request.topics]
    named += [(name, ZERO_UUID) for name in request.topic_names]
    return topics.DeleteTopicsResponse(
        responses=[
            topics.DeletableTopicResult(name=name, topic_id=topic_id, error_code=int(code))
            for name, topic_id in named
        ]
    )


def _create_partitions(
    request: topics.CreatePartitionsRequest, version: int, code: ErrorCode, message: str | None
) -> topics.CreatePartitionsResponse:
    return topics.CreatePartitionsResponse(
        results=[
            topics.CreatePartitionsTopicResult(name=topic.name, error_code=int(code), error_message=message)
            for topic in request.topics
        ]
    )


def _resources(
    request: configs.AlterConfigsRequest | configs.IncrementalAlterConfigsRequest,
    code: ErrorCode,
    message: str | None,
) -> list[configs.AlterConfigsResourceResponse]:
    return [
        configs.AlterConfigsResourceResponse(
            error_code=int(code),
            error_message=message,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )
        for resource in request.resources
    ]


def _alter_configs(
    request: configs.AlterConfigsRequest, version: int, code: ErrorCode, message: str | None
) -> configs.AlterConfigsResponse:
    return configs.AlterConfigsResponse(responses=_resources(request, code, message))


def _incremental_alter_configs(
    request: configs.IncrementalAlterConfigsRequest, version: int, code: ErrorCode, message: str | None
) -> configs.IncrementalAlterConfigsResponse:
    return configs.IncrementalAlterConfigsResponse(responses=_resources(request, code, message))


def _create_acls(
    request: acls.CreateAclsRequest, version: int, code: ErrorCode, message: str | None
) -> acls.CreateAclsResponse:
    return acls.CreateAclsResponse(
        results=[acls.AclCreationResult(error_code=int(code), error_message=message)] * len(request.creations)
    )


def _delete_acls(
    request: acls.DeleteAclsRequest, version: int, code: ErrorCode, message: str | None
) -> acls.DeleteAclsResponse:
    refused = acls.DeleteAclsFilterResult(error_code=int(code), error_message=message, matching_acls=[])
    return acls.DeleteAclsResponse(filter_results=[refused] * len(request.filters))


def _elect_leaders(
    request: replication.ElectLeadersRequest, version: int, code: ErrorCode, message: str | None
) -> replication.ElectLeadersResponse:
    return replication.ElectLeadersResponse(
        error_code=int(code) if version >= 1 else ErrorCode.NONE,
        replica_election_results=[
            replication.ReplicaElectionResult(
                topic=topic.topic,
                partition_result=[
                    replication.PartitionResult(
                        partition_id=index, error_code=int(code), error_message=message
                    )
                    for index in topic.partitions
                ],
            )
            for topic in request.topic_partitions or ()
        ],
    )


def _alter_partition_reassignments(
    request: replication.AlterPartitionReassignmentsRequest,
    version: int,
    code: ErrorCode,
    message: str | None,
) -> replication.AlterPartitionReassignmentsResponse:
    return replication.AlterPartitionReassignmentsResponse(
        error_code=int(code),
        error_message=message,
        responses=[
            replication.ReassignableTopicResponse(
                name=topic.name,
                partitions=[
                    replication.ReassignablePartitionResponse(
                        partition_index=partition.partition_index,
                        error_code=int(code),
                        error_message=message,
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )


def _list_partition_reassignments(
    request: replication.ListPartitionReassignmentsRequest,
    version: int,
    code: ErrorCode,
    message: str | None,
) -> replication.ListPartitionReassignmentsResponse:
    return replication.ListPartitionReassignmentsResponse(
        error_code=int(code),
        error_message=message,
        topics=[
            replication.OngoingTopicReassignment(
                name=topic.name,
                partitions=[
                    replication.OngoingPartitionReassignment(
                        partition_index=index, replicas=[], adding_replicas=[], removing_replicas=[]
                    )
                    for index in topic.partition_indexes
                ],
            )
            for topic in request.topics or ()
        ],
    )


def _alter_user_scram_credentials(
    request: scram.AlterUserScramCredentialsRequest, version: int, code: ErrorCode, message: str | None
) -> scram.AlterUserScramCredentialsResponse:
    users = {deletion.name for deletion in request.deletions}
    users.update(upsertion.name for upsertion in request.upsertions)
    return scram.AlterUserScramCredentialsResponse(
        results=[
            scram.AlterUserScramCredentialsResult(user=user, error_code=int(code), error_message=message)
            for user in sorted(users)
        ]
    )


def _alter_client_quotas(
    request: quotas.AlterClientQuotasRequest, version: int, code: ErrorCode, message: str | None
) -> quotas.AlterClientQuotasResponse:
    return quotas.AlterClientQuotasResponse(
        entries=[
            quotas.AlterClientQuotasResponseEntryData(
                error_code=int(code), error_message=message, entity=entry.entity
            )
            for entry in request.entries
        ]
    )


def _create_delegation_token(
    request: tokens.CreateDelegationTokenRequest, version: int, code: ErrorCode, message: str | None
) -> tokens.CreateDelegationTokenResponse:
    return created_error(version, code, ANONYMOUS, ANONYMOUS)


_SHAPES: Final[dict[type, Callable[[Any, int, ErrorCode, str | None], Any]]] = {
    topics.CreateTopicsRequest: _create_topics,
    topics.DeleteTopicsRequest: _delete_topics,
    topics.CreatePartitionsRequest: _create_partitions,
    configs.AlterConfigsRequest: _alter_configs,
    configs.IncrementalAlterConfigsRequest: _incremental_alter_configs,
    acls.CreateAclsRequest: _create_acls,
    acls.DeleteAclsRequest: _delete_acls,
    replication.ElectLeadersRequest: _elect_leaders,
    replication.AlterPartitionReassignmentsRequest: _alter_partition_reassignments,
    replication.ListPartitionReassignmentsRequest: _list_partition_reassignments,
    scram.AlterUserScramCredentialsRequest: _alter_user_scram_credentials,
    quotas.AlterClientQuotasRequest: _alter_client_quotas,
    tokens.CreateDelegationTokenRequest: _create_delegation_token,
}


# --- a controller that is not active


def is_not_controller(response: Any) -> bool:
    """Does the controller that answered say that it is not the active one? (RequestChannel.shouldReturnNotController)

    The quorum says so in its own words when it is asked to describe itself, and is asked again elsewhere; what it says
    of voters is for the client.
    """
    if isinstance(response, raft.DescribeQuorumResponse):
        return ErrorCode.NOT_LEADER_OR_FOLLOWER in _errors(response)
    return ErrorCode.NOT_CONTROLLER in _errors(response)


def _errors(response: Any) -> Iterator[int]:
    """Every error in a response of the controller: its own, and those of its items."""
    yield getattr(response, "error_code", ErrorCode.NONE)
    items = _ITEMS.get(type(response))
    if items is not None:
        yield from (item.error_code for item in items(response))


_ITEMS: Final[dict[type, Callable[[Any], Iterable[Any]]]] = {
    topics.CreateTopicsResponse: lambda response: response.topics,
    topics.DeleteTopicsResponse: lambda response: response.responses,
    topics.CreatePartitionsResponse: lambda response: response.results,
    configs.AlterConfigsResponse: lambda response: response.responses,
    configs.IncrementalAlterConfigsResponse: lambda response: response.responses,
    acls.CreateAclsResponse: lambda response: response.results,
    acls.DeleteAclsResponse: lambda response: response.filter_results,
    replication.ElectLeadersResponse: lambda response: chain.from_iterable(
        topic.partition_result for topic in response.replica_election_results
    ),
    replication.AlterPartitionReassignmentsResponse: lambda response: chain.from_iterable(
        topic.partitions for topic in response.responses
    ),
    scram.AlterUserScramCredentialsResponse: lambda response: response.results,
    quotas.AlterClientQuotasResponse: lambda response: response.entries,
    raft.DescribeQuorumResponse: lambda response: chain.from_iterable(
        topic.partitions for topic in response.topics
    ),
}
