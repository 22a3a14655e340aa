"""The records of the `__cluster_metadata` log: everything the controller decides is one of these.

Purpose: declarations only, one class a record; the bytes are the codec compiler's. Rules: a record says what
has become true, never what somebody asked for; fields of type list are not changed after construction.
"""

from ottla.wire.schema import (
    Bool,
    Bytes,
    Float64,
    Int8,
    Int16,
    Int32,
    Int64,
    NullableString,
    String,
    UInt16,
    UuidField,
    data,
    since,
    struct,
    tagged,
)

# PartitionChangeRecord.leader: the leader stays who it is. NO_LEADER is a value like any other.
NO_LEADER_CHANGE = -2
NO_LEADER = -1


@struct
class BrokerEndpoint:
    """Where clients reach a broker on one listener."""

    name: String
    host: String
    port: UInt16
    security_protocol: Int16


@struct
class BrokerFeature:
    """The levels of one feature that a broker can run with."""

    name: String
    min_supported_version: Int16
    max_supported_version: Int16


@data(versions="0-4", flexible="0+", api_key=0)
class RegisterBrokerRecord:
    """A broker process has announced itself; until it is unfenced it leads nothing."""

    broker_id: Int32
    is_migrating_zk_broker: Bool = since(2, default=False)
    incarnation_id: UuidField
    broker_epoch: Int64
    end_points: list[BrokerEndpoint]
    features: list[BrokerFeature]
    rack: NullableString
    fenced: Bool = True
    in_controlled_shutdown: Bool = since(1, default=False)
    log_dirs: list[UuidField] = tagged(0, since=3, default=[])
    cordoned_log_dirs: list[UuidField] | None = tagged(1, since=4, default=None)


@data(versions="0", flexible="0+", api_key=1)
class UnregisterBrokerRecord:
    """A broker is gone for good."""

    broker_id: Int32
    broker_epoch: Int64


@data(versions="0", flexible="0+", api_key=2)
class TopicRecord:
    """A topic exists; its partitions follow in records of their own."""

    name: String
    topic_id: UuidField


@data(versions="0-2", flexible="0+", api_key=3)
class PartitionRecord:
    """The whole state of a partition: when it is made, and in snapshots."""

    partition_id: Int32 = -1
    topic_id: UuidField
    replicas: list[Int32]
    isr: list[Int32]
    removing_replicas: list[Int32]
    adding_replicas: list[Int32]
    leader: Int32 = -1
    leader_recovery_state: Int8 = tagged(0, default=0)
    leader_epoch: Int32 = -1
    partition_epoch: Int32 = -1
    directories: list[UuidField] = since(1, default=[])
    eligible_leader_replicas: list[Int32] | None = tagged(1, since=2, default=None)
    last_known_elr: list[Int32] | None = tagged(2, since=2, default=None)


@data(versions="0", flexible="0+", api_key=4)
class ConfigRecord:
    """A configuration of a resource is set, or, with a null value, no longer set."""

    resource_type: Int8
    resource_name: String
    name: String
    value: NullableString


@data(versions="0-2", flexible="0+", api_key=5)
class PartitionChangeRecord:
    """What has changed about a partition; what is absent stays. A leader, even the same, is a new epoch."""

    partition_id: Int32 = -1
    topic_id: UuidField
    isr: list[Int32] | None = tagged(0, default=None)
    leader: Int32 = tagged(1, default=NO_LEADER_CHANGE)
    replicas: list[Int32] | None = tagged(2, default=None)
    removing_replicas: list[Int32] | None = tagged(3, default=None)
    adding_replicas: list[Int32] | None = tagged(4, default=None)
    leader_recovery_state: Int8 = tagged(5, default=-1)
    directories: list[UuidField] | None = tagged(8, since=1, default=None)
    eligible_leader_replicas: list[Int32] | None = tagged(6, since=2, default=None)
    last_known_elr: list[Int32] | None = tagged(7, since=2, default=None)


@data(versions="0", flexible="0+", api_key=7)
class FenceBrokerRecord:
    """A broker is cut off (old form; BrokerRegistrationChangeRecord today)."""

    id: Int32
    epoch: Int64


@data(versions="0", flexible="0+", api_key=8)
class UnfenceBrokerRecord:
    """A broker is let in (old form; BrokerRegistrationChangeRecord today)."""

    id: Int32
    epoch: Int64


@data(versions="0", flexible="0+", api_key=9)
class RemoveTopicRecord:
    """A topic is deleted, with its partitions and its configuration."""

    topic_id: UuidField


@data(versions="0", flexible="0+", api_key=10)
class DelegationTokenRecord:
    """A delegation token exists or has been renewed (KIP-900)."""

    owner: String
    requester: String
    renewers: list[String]
    issue_timestamp: Int64
    max_timestamp: Int64
    expiration_timestamp: Int64
    token_id: String


@data(versions="0", flexible="0+", api_key=11)
class UserScramCredentialRecord:
    """What SCRAM needs to know of a user (KIP-900)."""

    name: String
    mechanism: Int8
    salt: Bytes
    stored_key: Bytes
    server_key: Bytes
    iterations: Int32


@data(versions="0", flexible="0+", api_key=12)
class FeatureLevelRecord:
    """A feature is in use at this level; 0 is off."""

    name: String
    feature_level: Int16


@struct
class EntityData:
    """One part of what a quota applies to; a null name is the default entity."""

    entity_type: String
    entity_name: NullableString


@data(versions="0", flexible="0+", api_key=14)
class ClientQuotaRecord:
    """A quota of an entity is set or removed."""

    entity: list[EntityData]
    key: String
    value: Float64
    remove: Bool


@data(versions="0", flexible="0+", api_key=15)
class ProducerIdsRecord:
    """Producer ids below the next one have been given away, the last block to this broker."""

    broker_id: Int32
    broker_epoch: Int64 = -1
    next_producer_id: Int64


@data(versions="0-3", flexible="0+", api_key=17)
class BrokerRegistrationChangeRecord:
    """A broker was fenced (1) or unfenced (-1), began to shut down, or its directories have changed."""

    broker_id: Int32
    broker_epoch: Int64
    fenced: Int8 = tagged(0, default=0)
    in_controlled_shutdown: Int8 = tagged(1, since=1, default=0)
    log_dirs: list[UuidField] = tagged(2, since=2, default=[])
    cordoned_log_dirs: list[UuidField] | None = tagged(3, since=3, default=None)


@data(versions="0", flexible="0+", api_key=18)
class AccessControlEntryRecord:
    """An ACL exists."""

    id: UuidField
    resource_type: Int8
    resource_name: String
    pattern_type: Int8
    principal: String
    host: String
    operation: Int8
    permission_type: Int8


@data(versions="0", flexible="0+", api_key=19)
class RemoveAccessControlEntryRecord:
    """An ACL is gone."""

    id: UuidField


@data(versions="0", flexible="0+", api_key=20)
class NoOpRecord:
    """Nothing has changed: lets those who follow the log see that it is alive (KIP-835)."""


@data(versions="0", flexible="0+", api_key=21)
class ZkMigrationStateRecord:
    """How far the move away from ZooKeeper is; only older logs hold it."""

    zk_migration_state: Int8


@data(versions="0", flexible="0+", api_key=22)
class RemoveUserScramCredentialRecord:
    """A user's SCRAM credential is gone."""

    name: String
    mechanism: Int8


@data(versions="0", flexible="0+", api_key=23)
class BeginTransactionRecord:
    """From here on records count only if an EndTransactionRecord follows (KIP-866)."""

    name: NullableString = tagged(0, default=None)


@data(versions="0", flexible="0+", api_key=24)
class EndTransactionRecord:
    """The records since BeginTransactionRecord count."""


@data(versions="0", flexible="0+", api_key=25)
class AbortTransactionRecord:
    """The records since BeginTransactionRecord never happened."""

    reason: NullableString = tagged(0, default=None)


@data(versions="0", flexible="0+", api_key=26)
class RemoveDelegationTokenRecord:
    """A delegation token is gone."""

    token_id: String


@struct
class ControllerEndpoint:
    """Where a controller is reached on one listener."""

    name: String
    host: String
    port: UInt16
    security_protocol: Int16


@struct
class ControllerFeature:
    """The levels of one feature that a controller can run with."""

    name: String
    min_supported_version: Int16
    max_supported_version: Int16


@data(versions="0", flexible="0+", api_key=27)
class RegisterControllerRecord:
    """A controller process has announced itself (KIP-919)."""

    controller_id: Int32
    incarnation_id: UuidField
    zk_migration_ready: Bool
    end_points: list[ControllerEndpoint]
    features: list[ControllerFeature]


@data(versions="0", flexible="0+", api_key=28)
class ClearElrRecord:
    """The eligible leader replicas of a topic (of all topics: no name) are forgotten (KIP-966)."""

    topic_name: String


MetadataRecord = (
    RegisterBrokerRecord
    | UnregisterBrokerRecord
    | TopicRecord
    | PartitionRecord
    | ConfigRecord
    | PartitionChangeRecord
    | FenceBrokerRecord
    | UnfenceBrokerRecord
    | RemoveTopicRecord
    | DelegationTokenRecord
    | UserScramCredentialRecord
    | FeatureLevelRecord
    | ClientQuotaRecord
    | ProducerIdsRecord
    | BrokerRegistrationChangeRecord
    | AccessControlEntryRecord
    | RemoveAccessControlEntryRecord
    | NoOpRecord
    | ZkMigrationStateRecord
    | RemoveUserScramCredentialRecord
    | BeginTransactionRecord
    | EndTransactionRecord
    | AbortTransactionRecord
    | RemoveDelegationTokenRecord
    | RegisterControllerRecord
    | ClearElrRecord
)

RECORD_TYPES: dict[int, type[MetadataRecord]] = {
    0: RegisterBrokerRecord,
    1: UnregisterBrokerRecord,
    2: TopicRecord,
    3: PartitionRecord,
    4: ConfigRecord,
    5: PartitionChangeRecord,
    7: FenceBrokerRecord,
    8: UnfenceBrokerRecord,
    9: RemoveTopicRecord,
    10: DelegationTokenRecord,
    11: UserScramCredentialRecord,
    12: FeatureLevelRecord,
    14: ClientQuotaRecord,
    15: ProducerIdsRecord,
    17: BrokerRegistrationChangeRecord,
    18: AccessControlEntryRecord,
    19: RemoveAccessControlEntryRecord,
    20: NoOpRecord,
    21: ZkMigrationStateRecord,
    22: RemoveUserScramCredentialRecord,
    23: BeginTransactionRecord,
    24: EndTransactionRecord,
    25: AbortTransactionRecord,
    26: RemoveDelegationTokenRecord,
    27: RegisterControllerRecord,
    28: ClearElrRecord,
}
RECORD_KEYS: dict[type[MetadataRecord], int] = {cls: key for key, cls in RECORD_TYPES.items()}
