"""How brokers and controllers come, stay and go.

Declarations only, in the language of `ottla.wire.schema`.
"""

from ottla.wire.schema import (
    Bool,
    Int16,
    Int32,
    Int64,
    NullableString,
    String,
    UInt16,
    UuidField,
    message,
    since,
    struct,
    tagged,
)


@message(api_key=7, versions="none")
class ControlledShutdownRequest:
    """Gone with ZooKeeper: a broker asks in its heartbeat. The key stays taken."""


@message(api_key=7, versions="none")
class ControlledShutdownResponse:
    """Gone with its request."""


@struct
class Listener:
    """An address a node can be reached at."""

    name: String
    host: String
    port: UInt16
    security_protocol: Int16


@struct
class Feature:
    """A feature and the levels of it that the node can do."""

    name: String
    min_supported_version: Int16
    max_supported_version: Int16


@message(api_key=62, versions="0-4", flexible="0+")
class BrokerRegistrationRequest:
    """A broker announces itself to the controller (KIP-631)."""

    broker_id: Int32
    cluster_id: String
    incarnation_id: UuidField
    listeners: list[Listener]
    features: list[Feature]
    rack: NullableString
    is_migrating_zk_broker: Bool = since(1, default=False)
    log_dirs: list[UuidField] = since(2, default=[], ignorable=True)
    previous_broker_epoch: Int64 = since(3, default=-1, ignorable=True)


@message(api_key=62, versions="0-4", flexible="0+")
class BrokerRegistrationResponse:
    """The epoch under which the broker is registered."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    broker_epoch: Int64 = -1


@message(api_key=63, versions="0-2", flexible="0+")
class BrokerHeartbeatRequest:
    """A broker keeps its registration alive, and says what it wants."""

    broker_id: Int32
    broker_epoch: Int64 = -1
    current_metadata_offset: Int64
    want_fence: Bool
    want_shut_down: Bool
    offline_log_dirs: list[UuidField] = tagged(0, since=1, default=[])
    cordoned_log_dirs: list[UuidField] | None = tagged(1, since=2, default=None)


@message(api_key=63, versions="0-2", flexible="0+")
class BrokerHeartbeatResponse:
    """What the controller makes of the broker."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    is_caught_up: Bool = False
    is_fenced: Bool = True
    should_shut_down: Bool


@message(api_key=64, versions="0", flexible="0+")
class UnregisterBrokerRequest:
    """Strikes a broker that is gone for good off the list."""

    broker_id: Int32


@message(api_key=64, versions="0", flexible="0+")
class UnregisterBrokerResponse:
    """Whether it was struck off."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: NullableString


@message(api_key=70, versions="0", flexible="0+")
class ControllerRegistrationRequest:
    """A controller announces its listeners and features (KIP-919)."""

    controller_id: Int32
    incarnation_id: UuidField
    zk_migration_ready: Bool
    listeners: list[Listener]
    features: list[Feature]


@message(api_key=70, versions="0", flexible="0+")
class ControllerRegistrationResponse:
    """Whether the controller is registered."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: NullableString


@struct
class AssignReplicasToDirsRequestPartitionData:
    """A partition in the directory."""

    partition_index: Int32


@struct
class AssignReplicasToDirsRequestTopicData:
    """The partitions of one topic in the directory."""

    topic_id: UuidField
    partitions: list[AssignReplicasToDirsRequestPartitionData]


@struct
class AssignReplicasToDirsRequestDirectoryData:
    """A directory and what is in it."""

    id: UuidField
    topics: list[AssignReplicasToDirsRequestTopicData]


@message(api_key=73, versions="0", flexible="0+")
class AssignReplicasToDirsRequest:
    """A broker says in which of its directories replicas live (KIP-858)."""

    broker_id: Int32
    broker_epoch: Int64 = -1
    directories: list[AssignReplicasToDirsRequestDirectoryData]


@struct
class AssignReplicasToDirsResponsePartitionData:
    """Whether one partition's assignment was taken."""

    partition_index: Int32
    error_code: Int16 = 0


@struct
class AssignReplicasToDirsResponseTopicData:
    """The answer for one topic."""

    topic_id: UuidField
    partitions: list[AssignReplicasToDirsResponsePartitionData]


@struct
class AssignReplicasToDirsResponseDirectoryData:
    """The answer for one directory."""

    id: UuidField
    topics: list[AssignReplicasToDirsResponseTopicData]


@message(api_key=73, versions="0", flexible="0+")
class AssignReplicasToDirsResponse:
    """Which assignments were taken."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    directories: list[AssignReplicasToDirsResponseDirectoryData]


@message(api_key=94, versions="0", flexible="0+")
class UnregisterControllerRequest:
    """Strikes a controller that is gone for good off the list."""

    controller_id: Int32


@message(api_key=94, versions="0", flexible="0+")
class UnregisterControllerResponse:
    """Whether it was struck off."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: NullableString
