"""Which message has which API key, and where it is declared.

Purpose: everything that goes by the key rather than by the class: choosing the header's version, finding the
class of a request that has just arrived. Importing this imports no message; a family of messages is imported
when one of its members is asked for.

Rules: the table says what the declarations say, and a test holds the two together. Stateless.
"""

from functools import cache
from importlib import import_module
from typing import Any, NamedTuple


class Api(NamedTuple):
    """An API: its name, the module of `ottla.wire.messages` it is in, its first flexible version."""

    name: str
    family: str
    flexible_from: int | None


APIS: dict[int, Api] = {
    0: Api("Produce", "produce", 9),
    1: Api("Fetch", "fetch", 12),
    2: Api("ListOffsets", "list_offsets", 6),
    3: Api("Metadata", "metadata", 9),
    4: Api("LeaderAndIsr", "nodes.replication", None),
    5: Api("StopReplica", "nodes.replication", None),
    6: Api("UpdateMetadata", "nodes.replication", None),
    7: Api("ControlledShutdown", "nodes.broker_lifecycle", None),
    8: Api("OffsetCommit", "groups.classic", 8),
    9: Api("OffsetFetch", "groups.classic", 6),
    10: Api("FindCoordinator", "groups.classic", 3),
    11: Api("JoinGroup", "groups.classic", 6),
    12: Api("Heartbeat", "groups.classic", 4),
    13: Api("LeaveGroup", "groups.classic", 4),
    14: Api("SyncGroup", "groups.classic", 4),
    15: Api("DescribeGroups", "groups.classic", 5),
    16: Api("ListGroups", "groups.classic", 3),
    17: Api("SaslHandshake", "security.sasl", None),
    18: Api("ApiVersions", "api_versions", 3),
    19: Api("CreateTopics", "admin.topics", 5),
    20: Api("DeleteTopics", "admin.topics", 4),
    21: Api("DeleteRecords", "admin.topics", 2),
    22: Api("InitProducerId", "producers", 2),
    23: Api("OffsetForLeaderEpoch", "list_offsets", 4),
    24: Api("AddPartitionsToTxn", "transactions", 3),
    25: Api("AddOffsetsToTxn", "transactions", 3),
    26: Api("EndTxn", "transactions", 3),
    27: Api("WriteTxnMarkers", "transactions", 1),
    28: Api("TxnOffsetCommit", "transactions", 3),
    29: Api("DescribeAcls", "security.acls", 2),
    30: Api("CreateAcls", "security.acls", 2),
    31: Api("DeleteAcls", "security.acls", 2),
    32: Api("DescribeConfigs", "admin.configs", 4),
    33: Api("AlterConfigs", "admin.configs", 2),
    34: Api("AlterReplicaLogDirs", "admin.log_dirs", 2),
    35: Api("DescribeLogDirs", "admin.log_dirs", 2),
    36: Api("SaslAuthenticate", "security.sasl", 2),
    37: Api("CreatePartitions", "admin.topics", 2),
    38: Api("CreateDelegationToken", "security.tokens", 2),
    39: Api("RenewDelegationToken", "security.tokens", 2),
    40: Api("ExpireDelegationToken", "security.tokens", 2),
    41: Api("DescribeDelegationToken", "security.tokens", 2),
    42: Api("DeleteGroups", "groups.classic", 2),
    43: Api("ElectLeaders", "nodes.replication", 2),
    44: Api("IncrementalAlterConfigs", "admin.configs", 1),
    45: Api("AlterPartitionReassignments", "nodes.replication", 0),
    46: Api("ListPartitionReassignments", "nodes.replication", 0),
    47: Api("OffsetDelete", "groups.classic", None),
    48: Api("DescribeClientQuotas", "admin.quotas", 1),
    49: Api("AlterClientQuotas", "admin.quotas", 1),
    50: Api("DescribeUserScramCredentials", "security.scram", 0),
    51: Api("AlterUserScramCredentials", "security.scram", 0),
    52: Api("Vote", "nodes.raft", 0),
    53: Api("BeginQuorumEpoch", "nodes.raft", 1),
    54: Api("EndQuorumEpoch", "nodes.raft", 1),
    55: Api("DescribeQuorum", "nodes.raft", 0),
    56: Api("AlterPartition", "nodes.replication", 0),
    57: Api("UpdateFeatures", "admin.cluster", 0),
    58: Api("Envelope", "nodes.envelope", 0),
    59: Api("FetchSnapshot", "nodes.raft", 0),
    60: Api("DescribeCluster", "admin.cluster", 0),
    61: Api("DescribeProducers", "producers", 0),
    62: Api("BrokerRegistration", "nodes.broker_lifecycle", 0),
    63: Api("BrokerHeartbeat", "nodes.broker_lifecycle", 0),
    64: Api("UnregisterBroker", "nodes.broker_lifecycle", 0),
    65: Api("DescribeTransactions", "transactions", 0),
    66: Api("ListTransactions", "transactions", 0),
    67: Api("AllocateProducerIds", "producers", 0),
    68: Api("ConsumerGroupHeartbeat", "groups.consumer", 0),
    69: Api("ConsumerGroupDescribe", "groups.consumer", 0),
    70: Api("ControllerRegistration", "nodes.broker_lifecycle", 0),
    71: Api("GetTelemetrySubscriptions", "admin.telemetry", 0),
    72: Api("PushTelemetry", "admin.telemetry", 0),
    73: Api("AssignReplicasToDirs", "nodes.broker_lifecycle", 0),
    74: Api("ListConfigResources", "admin.configs", 0),
    75: Api("DescribeTopicPartitions", "metadata", 0),
    76: Api("ShareGroupHeartbeat", "groups.share", 0),
    77: Api("ShareGroupDescribe", "groups.share", 0),
    78: Api("ShareFetch", "groups.share", 0),
    79: Api("ShareAcknowledge", "groups.share", 0),
    80: Api("AddRaftVoter", "nodes.raft", 0),
    81: Api("RemoveRaftVoter", "nodes.raft", 0),
    82: Api("UpdateRaftVoter", "nodes.raft", 0),
    83: Api("InitializeShareGroupState", "groups.share_state", 0),
    84: Api("ReadShareGroupState", "groups.share_state", 0),
    85: Api("WriteShareGroupState", "groups.share_state", 0),
    86: Api("DeleteShareGroupState", "groups.share_state", 0),
    87: Api("ReadShareGroupStateSummary", "groups.share_state", 0),
    88: Api("StreamsGroupHeartbeat", "groups.streams", 0),
    89: Api("StreamsGroupDescribe", "groups.streams", 0),
    90: Api("DescribeShareGroupOffsets", "groups.share", 0),
    91: Api("AlterShareGroupOffsets", "groups.share", 0),
    92: Api("DeleteShareGroupOffsets", "groups.share", 0),
    93: Api("StreamsGroupTopologyDescriptionUpdate", "groups.streams", 0),
    94: Api("UnregisterController", "nodes.broker_lifecycle", 0),
}


def request_class(api_key: int) -> type[Any]:
    """The request of an API; KeyError if there is no such API."""
    api = APIS[api_key]
    return _find(api.family, api.name + "Request")


def response_class(api_key: int) -> type[Any]:
    """The response of an API; KeyError if there is no such API."""
    api = APIS[api_key]
    return _find(api.family, api.name + "Response")


@cache  # every answer to a request of ours is asked for here
def _find(family: str, name: str) -> type[Any]:
    found: type[Any] = getattr(import_module(f"ottla.wire.messages.{family}"), name)
    return found
