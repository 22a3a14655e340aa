"""What a broker needs of the active controller, wherever that runs.

Purpose: the way brokers speak to the controller, so that one on another node (over the network, by the very same
requests) can take the place of the one in this process: `server/forwarding.py` has the ways to it. Rules: every call
gives the response of its API; errors are in it.
"""

from typing import Any, Final, Protocol

from ottla.controller.result import RequestContext
from ottla.wire.messages import producers
from ottla.wire.messages.admin import cluster as features
from ottla.wire.messages.admin import configs, quotas, topics
from ottla.wire.messages.nodes import broker_lifecycle as lifecycle
from ottla.wire.messages.nodes import raft, replication
from ottla.wire.messages.security import acls, scram, tokens

# What is left of a client's time when its request is passed on. Whoever gives a millisecond, or none, hears what the
# controller made of it all the same; whoever gives a day is told after a while that there is no controller (as with
# Kafka, whose brokers try for a minute whatever a client gives).
MIN_TIME_MS: Final = 1_000
MAX_TIME_MS: Final = 60_000


def time_for(request: Any, otherwise_ms: int) -> int:
    """How long the controller may take for a request; `otherwise_ms` for one that does not say."""
    return min(max(getattr(request, "timeout_ms", otherwise_ms), MIN_TIME_MS), MAX_TIME_MS)


class ControllerDecisions(Protocol):
    """What the controller decides."""

    # --- brokers and controllers, in their own name

    async def register_broker(
        self, request: lifecycle.BrokerRegistrationRequest, context: RequestContext
    ) -> lifecycle.BrokerRegistrationResponse: ...
    async def broker_heartbeat(
        self, request: lifecycle.BrokerHeartbeatRequest, context: RequestContext
    ) -> lifecycle.BrokerHeartbeatResponse: ...
    async def register_controller(
        self, request: lifecycle.ControllerRegistrationRequest, context: RequestContext
    ) -> lifecycle.ControllerRegistrationResponse: ...
    async def assign_replicas_to_dirs(
        self, request: lifecycle.AssignReplicasToDirsRequest, context: RequestContext
    ) -> lifecycle.AssignReplicasToDirsResponse: ...
    async def allocate_producer_ids(
        self, request: producers.AllocateProducerIdsRequest, context: RequestContext
    ) -> producers.AllocateProducerIdsResponse: ...
    async def alter_partition(
        self, request: replication.AlterPartitionRequest, context: RequestContext
    ) -> replication.AlterPartitionResponse: ...

    # --- clients, through a broker or not

    async def create_topics(
        self, request: topics.CreateTopicsRequest, context: RequestContext
    ) -> topics.CreateTopicsResponse: ...
    async def delete_topics(
        self, request: topics.DeleteTopicsRequest, context: RequestContext
    ) -> topics.DeleteTopicsResponse: ...
    async def create_partitions(
        self, request: topics.CreatePartitionsRequest, context: RequestContext
    ) -> topics.CreatePartitionsResponse: ...
    async def incremental_alter_configs(
        self, request: configs.IncrementalAlterConfigsRequest, context: RequestContext
    ) -> configs.IncrementalAlterConfigsResponse: ...
    async def alter_configs(
        self, request: configs.AlterConfigsRequest, context: RequestContext
    ) -> configs.AlterConfigsResponse: ...
    async def create_acls(
        self, request: acls.CreateAclsRequest, context: RequestContext
    ) -> acls.CreateAclsResponse: ...
    async def delete_acls(
        self, request: acls.DeleteAclsRequest, context: RequestContext
    ) -> acls.DeleteAclsResponse: ...
    async def update_features(
        self, request: features.UpdateFeaturesRequest, context: RequestContext
    ) -> features.UpdateFeaturesResponse: ...
    async def alter_user_scram_credentials(
        self, request: scram.AlterUserScramCredentialsRequest, context: RequestContext
    ) -> scram.AlterUserScramCredentialsResponse: ...
    async def alter_client_quotas(
        self, request: quotas.AlterClientQuotasRequest, context: RequestContext
    ) -> quotas.AlterClientQuotasResponse: ...
    async def create_delegation_token(
        self, request: tokens.CreateDelegationTokenRequest, context: RequestContext
    ) -> tokens.CreateDelegationTokenResponse: ...
    async def renew_delegation_token(
        self, request: tokens.RenewDelegationTokenRequest, context: RequestContext
    ) -> tokens.RenewDelegationTokenResponse: ...
    async def expire_delegation_token(
        self, request: tokens.ExpireDelegationTokenRequest, context: RequestContext
    ) -> tokens.ExpireDelegationTokenResponse: ...
    async def unregister_broker(
        self, request: lifecycle.UnregisterBrokerRequest, context: RequestContext
    ) -> lifecycle.UnregisterBrokerResponse: ...
    async def elect_leaders(
        self, request: replication.ElectLeadersRequest, context: RequestContext
    ) -> replication.ElectLeadersResponse: ...
    async def alter_partition_reassignments(
        self, request: replication.AlterPartitionReassignmentsRequest, context: RequestContext
    ) -> replication.AlterPartitionReassignmentsResponse: ...
    async def list_partition_reassignments(
        self, request: replication.ListPartitionReassignmentsRequest, context: RequestContext
    ) -> replication.ListPartitionReassignmentsResponse: ...


class ControllerChannel(ControllerDecisions, Protocol):
    """The active controller: what it decides, and what the quorum that it leads is asked by clients."""

    async def describe_quorum(
        self, request: raft.DescribeQuorumRequest, context: RequestContext
    ) -> raft.DescribeQuorumResponse: ...
    async def add_raft_voter(
        self, request: raft.AddRaftVoterRequest, context: RequestContext
    ) -> raft.AddRaftVoterResponse: ...
    async def remove_raft_voter(
        self, request: raft.RemoveRaftVoterRequest, context: RequestContext
    ) -> raft.RemoveRaftVoterResponse: ...

    def versions_of(self, api_key: int) -> tuple[int, int] | None:
        """The lowest and the highest version of an API that the active controller serves, as far as it has said so."""
