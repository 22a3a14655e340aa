"""Which message has which API key, and where it is declared.

Purpose: everything that goes by the key rather than by the class: choosing the header's version, finding the
class of a request that has just arrived. Importing this imports no message; a family of messages is imported
when one of its members is asked for.

Rules: the table says what the declarations say, and a test holds the two together. Stateless.
"""

from collections.abc import Callable, Iterator, Mapping
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
    4: Api("LeaderAndIsr", "replication", None),
    5: Api("StopReplica", "replication", None),
    6: Api("UpdateMetadata", "replication", None),
    7: Api("ControlledShutdown", "broker_lifecycle", None),
    8: Api("OffsetCommit", "groups", 8),
    9: Api("OffsetFetch", "groups", 6),
    10: Api("FindCoordinator", "groups", 3),
    11: Api("JoinGroup", "groups", 6),
    12: Api("Heartbeat", "groups", 4),
    13: Api("LeaveGroup", "groups", 4),
    14: Api("SyncGroup", "groups", 4),
    15: Api("DescribeGroups", "groups", 5),
    16: Api("ListGroups", "groups", 3),
    17: Api("SaslHandshake", "sasl", None),
    18: Api("ApiVersions", "api_versions", 3),
    19: Api("CreateTopics", "topics", 5),
    20: Api("DeleteTopics", "topics", 4),
    21: Api("DeleteRecords", "topics", 2),
    22: Api("InitProducerId", "producers", 2),
    23: Api("OffsetForLeaderEpoch", "list_offsets", 4),
    24: Api("AddPartitionsToTxn", "transactions", 3),
    25: Api("AddOffsetsToTxn", "transactions", 3),
    26: Api("EndTxn", "transactions", 3),
    27: Api("WriteTxnMarkers", "transactions", 1),
    28: Api("TxnOffsetCommit", "transactions", 3),
    29: Api("DescribeAcls", "acls", 2),
    30: Api("CreateAcls", "acls", 2),
    31: Api("DeleteAcls", "acls", 2),
    32: Api("DescribeConfigs", "configs", 4),
    33: Api("AlterConfigs", "configs", 2),
    34: Api("AlterReplicaLogDirs", "log_dirs", 2),
    35: Api("DescribeLogDirs", "log_dirs", 2),
    36: Api("SaslAuthenticate", "sasl", 2),
    37: Api("CreatePartitions", "topics", 2),
    38: Api("CreateDelegationToken", "tokens", 2),
    39: Api("RenewDelegationToken", "tokens", 2),
    40: Api("ExpireDelegationToken", "tokens", 2),
    41: Api("DescribeDelegationToken", "tokens", 2),
    42: Api("DeleteGroups", "groups", 2),
    43: Api("ElectLeaders", "replication", 2),
    44: Api("IncrementalAlterConfigs", "configs", 1),
    45: Api("AlterPartitionReassignments", "replication", 0),
    46: Api("ListPartitionReassignments", "replication", 0),
    47: Api("OffsetDelete", "groups", None),
    48: Api("DescribeClientQuotas", "quotas", 1),
    49: Api("AlterClientQuotas", "quotas", 1),
    50: Api("DescribeUserScramCredentials", "scram", 0),
    51: Api("AlterUserScramCredentials", "scram", 0),
    52: Api("Vote", "raft", 0),
    53: Api("BeginQuorumEpoch", "raft", 1),
    54: Api("EndQuorumEpoch", "raft", 1),
    55: Api("DescribeQuorum", "raft", 0),
    56: Api("AlterPartition", "replication", 0),
    57: Api("UpdateFeatures", "features", 0),
    58: Api("Envelope", "envelope", 0),
    59: Api("FetchSnapshot", "raft", 0),
    60: Api("DescribeCluster", "cluster", 0),
    61: Api("DescribeProducers", "producers", 0),
    62: Api("BrokerRegistration", "broker_lifecycle", 0),
    63: Api("BrokerHeartbeat", "broker_lifecycle", 0),
    64: Api("UnregisterBroker", "broker_lifecycle", 0),
    65: Api("DescribeTransactions", "transactions", 0),
    66: Api("ListTransactions", "transactions", 0),
    67: Api("AllocateProducerIds", "producers", 0),
    68: Api("ConsumerGroupHeartbeat", "consumer_group", 0),
    69: Api("ConsumerGroupDescribe", "consumer_group", 0),
    70: Api("ControllerRegistration", "broker_lifecycle", 0),
    71: Api("GetTelemetrySubscriptions", "telemetry", 0),
    72: Api("PushTelemetry", "telemetry", 0),
    73: Api("AssignReplicasToDirs", "broker_lifecycle", 0),
    74: Api("ListConfigResources", "configs", 0),
    75: Api("DescribeTopicPartitions", "metadata", 0),
    76: Api("ShareGroupHeartbeat", "share_group", 0),
    77: Api("ShareGroupDescribe", "share_group", 0),
    78: Api("ShareFetch", "share_group", 0),
    79: Api("ShareAcknowledge", "share_group", 0),
    80: Api("AddRaftVoter", "raft", 0),
    81: Api("RemoveRaftVoter", "raft", 0),
    82: Api("UpdateRaftVoter", "raft", 0),
    83: Api("InitializeShareGroupState", "share_state", 0),
    84: Api("ReadShareGroupState", "share_state", 0),
    85: Api("WriteShareGroupState", "share_state", 0),
    86: Api("DeleteShareGroupState", "share_state", 0),
    87: Api("ReadShareGroupStateSummary", "share_state", 0),
    88: Api("StreamsGroupHeartbeat", "streams_group", 0),
    89: Api("StreamsGroupDescribe", "streams_group", 0),
    90: Api("DescribeShareGroupOffsets", "share_group", 0),
    91: Api("AlterShareGroupOffsets", "share_group", 0),
    92: Api("DeleteShareGroupOffsets", "share_group", 0),
    93: Api("StreamsGroupTopologyDescriptionUpdate", "streams_group", 0),
    94: Api("UnregisterController", "broker_lifecycle", 0),
}

# What is stored rather than sent, by family.
DATA: dict[str, tuple[str, ...]] = {
    "consumer_protocol": ("ConsumerProtocolAssignment", "ConsumerProtocolSubscription"),
    "envelope": ("DefaultPrincipalData",),
    "records_control": (
        "AbortedTxn",
        "ControlRecordTypeSchema",
        "EndTxnMarker",
        "KRaftVersionRecord",
        "LeaderChangeMessage",
        "SnapshotFooterRecord",
        "SnapshotHeaderRecord",
        "VotersRecord",
    ),
    "offsets_log": (
        "LegacyOffsetCommitKey",
        "LegacyOffsetCommitValue",
        "OffsetCommitKey",
        "OffsetCommitValue",
        "GroupMetadataKey",
        "GroupMetadataValue",
        "ConsumerGroupMetadataKey",
        "ConsumerGroupMetadataValue",
        "ConsumerGroupPartitionMetadataKey",
        "ConsumerGroupPartitionMetadataValue",
        "ConsumerGroupMemberMetadataKey",
        "ConsumerGroupMemberMetadataValue",
        "ConsumerGroupTargetAssignmentMetadataKey",
        "ConsumerGroupTargetAssignmentMetadataValue",
        "ConsumerGroupTargetAssignmentMemberKey",
        "ConsumerGroupTargetAssignmentMemberValue",
        "ConsumerGroupCurrentMemberAssignmentKey",
        "ConsumerGroupCurrentMemberAssignmentValue",
        "ConsumerGroupRegularExpressionKey",
        "ConsumerGroupRegularExpressionValue",
    ),
    "share_group_log": (
        "ShareGroupMemberMetadataKey",
        "ShareGroupMemberMetadataValue",
        "ShareGroupMetadataKey",
        "ShareGroupMetadataValue",
        "ShareGroupTargetAssignmentMetadataKey",
        "ShareGroupTargetAssignmentMetadataValue",
        "ShareGroupTargetAssignmentMemberKey",
        "ShareGroupTargetAssignmentMemberValue",
        "ShareGroupCurrentMemberAssignmentKey",
        "ShareGroupCurrentMemberAssignmentValue",
        "ShareGroupStatePartitionMetadataKey",
        "ShareGroupStatePartitionMetadataValue",
    ),
    "share_state_log": (
        "ShareSnapshotKey",
        "ShareSnapshotValue",
        "ShareUpdateKey",
        "ShareUpdateValue",
    ),
    "streams_group_log": (
        "StreamsGroupMetadataKey",
        "StreamsGroupMetadataValue",
        "StreamsGroupMemberMetadataKey",
        "StreamsGroupMemberMetadataValue",
        "StreamsGroupTargetAssignmentMetadataKey",
        "StreamsGroupTargetAssignmentMetadataValue",
        "StreamsGroupTargetAssignmentMemberKey",
        "StreamsGroupTargetAssignmentMemberValue",
        "StreamsGroupCurrentMemberAssignmentKey",
        "StreamsGroupCurrentMemberAssignmentValue",
        "StreamsGroupTopologyKey",
        "StreamsGroupTopologyValue",
    ),
    "transaction_log": (
        "TransactionLogKey",
        "TransactionLogValue",
    ),
}


def request_class(api_key: int) -> type[Any]:
    """The request of an API; KeyError if there is no such API."""
    api = APIS[api_key]
    return _find(api.family, api.name + "Request")


def response_class(api_key: int) -> type[Any]:
    """The response of an API; KeyError if there is no such API."""
    api = APIS[api_key]
    return _find(api.family, api.name + "Response")


def message_class(name: str) -> type[Any]:
    """A request, a response or a stored message by its Kafka name; KeyError if there is none."""
    return _find(_families()[name], name)


def message_names() -> list[str]:
    """The name of every message, in the order of the API keys and then of the families."""
    return list(_families())


def _families() -> dict[str, str]:
    found = {}
    for api in APIS.values():
        found[api.name + "Request"] = found[api.name + "Response"] = api.family
    for family, names in DATA.items():
        found.update(dict.fromkeys(names, family))
    return found


def _find(family: str, name: str) -> type[Any]:
    found: type[Any] = getattr(import_module(f"ottla.wire.messages.{family}"), name)
    return found


class _Classes(Mapping[int, type[Any]]):
    """API key to class, importing on demand."""

    def __init__(self, find: Callable[[int], type[Any]]) -> None:
        self._find = find

    def __getitem__(self, api_key: int) -> type[Any]:
        return self._find(api_key)

    def __iter__(self) -> Iterator[int]:
        return iter(APIS)

    def __len__(self) -> int:
        return len(APIS)

    def __contains__(self, api_key: object) -> bool:
        return api_key in APIS


REQUESTS: Mapping[int, type[Any]] = _Classes(request_class)
RESPONSES: Mapping[int, type[Any]] = _Classes(response_class)
