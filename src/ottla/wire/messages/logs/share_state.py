"""The records of __share_group_state.

Declarations only, in the language of `ottla.wire.schema`.
"""

from ottla.wire.schema import Int8, Int16, Int32, Int64, String, UuidField, data, struct, tagged


@data(versions="0", api_key=0)
class ShareSnapshotKey:
    """The key of a share partition's snapshot."""

    group_id: String
    topic_id: UuidField
    partition: Int32


@struct
class StateBatch:
    """A run of records in one delivery state."""

    first_offset: Int64
    last_offset: Int64
    delivery_state: Int8
    delivery_count: Int16


@data(versions="0", flexible="0+", api_key=0)
class ShareSnapshotValue:
    """The whole state of a share partition."""

    snapshot_epoch: Int32
    state_epoch: Int32
    leader_epoch: Int32
    start_offset: Int64
    delivery_complete_count: Int32 = tagged(0, default=-1)
    create_timestamp: Int64
    write_timestamp: Int64
    state_batches: list[StateBatch]


@data(versions="0", api_key=1)
class ShareUpdateKey:
    """The key of a share partition's update."""

    group_id: String
    topic_id: UuidField
    partition: Int32


@data(versions="0", flexible="0+", api_key=1)
class ShareUpdateValue:
    """What has changed in a share partition since its snapshot."""

    snapshot_epoch: Int32
    leader_epoch: Int32
    start_offset: Int64
    delivery_complete_count: Int32 = tagged(0, default=-1)
    state_batches: list[StateBatch]
