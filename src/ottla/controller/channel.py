"""What a broker needs of the active controller, wherever that runs.

Purpose: the way brokers speak to the controller, so that one on another node (over the network, by the very same
requests) can take the place of the one in this process.
Rules: every call gives the response of its API; errors are in it.
"""

from typing import Protocol

from ottla.controller.result import RequestContext
from ottla.wire.messages import producers
from ottla.wire.messages.admin import cluster as features
from ottla.wire.messages.admin import configs, topics
from ottla.wire.messages.nodes import broker_lifecycle as lifecycle
from ottla.wire.messages.nodes import replication


class ControllerChannel(Protocol):
    """The active controller."""

    async def register_broker(
        self, request: lifecycle.BrokerRegistrationRequest, context: RequestContext
    ) -> lifecycle.BrokerRegistrationResponse: ...
    async def broker_heartbeat(
        self, request: lifecycle.BrokerHeartbeatRequest, context: RequestContext
    ) -> lifecycle.BrokerHeartbeatResponse: ...
    async def unregister_broker(
        self, request: lifecycle.UnregisterBrokerRequest, context: RequestContext
    ) -> lifecycle.UnregisterBrokerResponse: ...
    async def register_controller(
        self, request: lifecycle.ControllerRegistrationRequest, context: RequestContext
    ) -> lifecycle.ControllerRegistrationResponse: ...
    async def assign_replicas_to_dirs(
        self, request: lifecycle.AssignReplicasToDirsRequest, context: RequestContext
    ) -> lifecycle.AssignReplicasToDirsResponse: ...
    async def allocate_producer_ids(
        self, request: producers.AllocateProducerIdsRequest, context: RequestContext
    ) -> producers.AllocateProducerIdsResponse: ...
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
    async def update_features(
        self, request: features.UpdateFeaturesRequest, context: RequestContext
    ) -> features.UpdateFeaturesResponse: ...
    async def alter_partition(
        self, request: replication.AlterPartitionRequest, context: RequestContext
    ) -> replication.AlterPartitionResponse: ...
    async def elect_leaders(
        self, request: replication.ElectLeadersRequest, context: RequestContext
    ) -> replication.ElectLeadersResponse: ...
    async def alter_partition_reassignments(
        self, request: replication.AlterPartitionReassignmentsRequest, context: RequestContext
    ) -> replication.AlterPartitionReassignmentsResponse: ...
    async def list_partition_reassignments(
        self, request: replication.ListPartitionReassignmentsRequest, context: RequestContext
    ) -> replication.ListPartitionReassignmentsResponse: ...
