"""One request of every kind that a controller is sent by brokers, each with items where it can have any."""

from typing import Any

from ottla.model.ids import ZERO_UUID
from ottla.wire.messages import producers
from ottla.wire.messages.admin import cluster, configs, quotas, topics
from ottla.wire.messages.nodes import broker_lifecycle as lifecycle
from ottla.wire.messages.nodes import raft, replication
from ottla.wire.messages.security import acls, scram, tokens

CREATE_TOPICS = topics.CreateTopicsRequest(
    topics=[
        topics.CreatableTopic(name=name, num_partitions=1, replication_factor=1, assignments=[], configs=[])
        for name in ("a", "b")
    ],
    timeout_ms=30_000,
)
DELETE_TOPICS = topics.DeleteTopicsRequest(topic_names=["a", "b"], timeout_ms=30_000)
DESCRIBE_QUORUM = raft.DescribeQuorumRequest(
    topics=[
        raft.DescribeQuorumRequestTopicData(
            topic_name="__cluster_metadata",
            partitions=[raft.DescribeQuorumRequestPartitionData(partition_index=0)],
        )
    ]
)
ADD_VOTER = raft.AddRaftVoterRequest(
    cluster_id=None, timeout_ms=30_000, voter_id=2, voter_directory_id=ZERO_UUID, listeners=[]
)
HEARTBEAT = lifecycle.BrokerHeartbeatRequest(
    broker_id=1, current_metadata_offset=0, want_fence=False, want_shut_down=False
)

# By the method of ControllerChannel that takes it.
FORWARDED: dict[str, Any] = {
    "create_topics": CREATE_TOPICS,
    "delete_topics": DELETE_TOPICS,
    "create_partitions": topics.CreatePartitionsRequest(
        topics=[topics.CreatePartitionsTopic(name="a", count=2)], timeout_ms=30_000, validate_only=False
    ),
    "alter_configs": configs.AlterConfigsRequest(
        resources=[configs.AlterConfigsResource(resource_type=2, resource_name="a", configs=[])],
        validate_only=False,
    ),
    "incremental_alter_configs": configs.IncrementalAlterConfigsRequest(
        resources=[configs.IncrementalAlterConfigsResource(resource_type=2, resource_name="a", configs=[])],
        validate_only=False,
    ),
    "create_acls": acls.CreateAclsRequest(
        creations=[
            acls.AclCreation(
                resource_type=2,
                resource_name=name,
                principal="User:alice",
                host="*",
                operation=3,
                permission_type=3,
            )
            for name in ("a", "b")
        ]
    ),
    "delete_acls": acls.DeleteAclsRequest(
        filters=[
            acls.DeleteAclsFilter(
                resource_type_filter=1,
                resource_name_filter=None,
                pattern_type_filter=1,
                principal_filter=None,
                host_filter=None,
                operation=1,
                permission_type=1,
            )
        ]
    ),
    "elect_leaders": replication.ElectLeadersRequest(
        topic_partitions=[replication.TopicPartitions(topic="a", partitions=[0, 1])]
    ),
    "alter_partition_reassignments": replication.AlterPartitionReassignmentsRequest(
        topics=[
            replication.ReassignableTopic(
                name="a", partitions=[replication.ReassignablePartition(partition_index=0, replicas=[1])]
            )
        ]
    ),
    "list_partition_reassignments": replication.ListPartitionReassignmentsRequest(
        topics=[replication.ListPartitionReassignmentsTopics(name="a", partition_indexes=[0])]
    ),
    "update_features": cluster.UpdateFeaturesRequest(
        feature_updates=[cluster.FeatureUpdateKey(feature="group.version", max_version_level=1)]
    ),
    "alter_user_scram_credentials": scram.AlterUserScramCredentialsRequest(
        deletions=[scram.ScramCredentialDeletion(name="a", mechanism=1)],
        upsertions=[
            scram.ScramCredentialUpsertion(
                name="b", mechanism=2, iterations=4096, salt=b"salt", salted_password=b"salted"
            )
        ],
    ),
    "alter_client_quotas": quotas.AlterClientQuotasRequest(
        entries=[
            quotas.AlterClientQuotasRequestEntryData(
                entity=[quotas.EntityData(entity_type="user", entity_name="a")],
                ops=[quotas.OpData(key="producer_byte_rate", value=1.0, remove=False)],
            )
        ],
        validate_only=False,
    ),
    "create_delegation_token": tokens.CreateDelegationTokenRequest(renewers=[], max_lifetime_ms=-1),
    "renew_delegation_token": tokens.RenewDelegationTokenRequest(hmac=b"secret", renew_period_ms=-1),
    "expire_delegation_token": tokens.ExpireDelegationTokenRequest(hmac=b"secret", expiry_time_period_ms=-1),
    "unregister_broker": lifecycle.UnregisterBrokerRequest(broker_id=3),
    "describe_quorum": DESCRIBE_QUORUM,
    "add_raft_voter": ADD_VOTER,
    "remove_raft_voter": raft.RemoveRaftVoterRequest(
        cluster_id=None, voter_id=2, voter_directory_id=ZERO_UUID
    ),
}
OWN: dict[str, Any] = {
    "register_broker": lifecycle.BrokerRegistrationRequest(
        broker_id=1, cluster_id="c", incarnation_id=ZERO_UUID, listeners=[], features=[], rack=None
    ),
    "broker_heartbeat": HEARTBEAT,
    "register_controller": lifecycle.ControllerRegistrationRequest(
        controller_id=1, incarnation_id=ZERO_UUID, zk_migration_ready=False, listeners=[], features=[]
    ),
    "assign_replicas_to_dirs": lifecycle.AssignReplicasToDirsRequest(broker_id=1, directories=[]),
    "alter_partition": replication.AlterPartitionRequest(broker_id=1, topics=[]),
    "allocate_producer_ids": producers.AllocateProducerIdsRequest(broker_id=1),
}
ALL = {**FORWARDED, **OWN}
