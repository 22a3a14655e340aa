"""The state of one share partition, and the records it is written as.

A snapshot says everything; an update says what has changed since the snapshot whose epoch it names. A tombstone of
the snapshot's key forgets the share partition.
"""

from typing import Final, NamedTuple

from ottla.coordinator.result import CoordinatorRecord
from ottla.coordinator.serde import RecordSerde, RecordType
from ottla.coordinator.share.batches import StateBatch, combine
from ottla.model.ids import Uuid
from ottla.wire.messages import share_state_log as log

# What has not been decided yet, or is not said: offsets, counts and epochs alike.
UNKNOWN: Final = -1
NO_TIMESTAMP: Final = 0
FIRST_EPOCH: Final = 0

SHARE_RECORDS: Final = RecordSerde(
    {
        0: RecordType(log.ShareSnapshotKey, log.ShareSnapshotValue, 0),
        1: RecordType(log.ShareUpdateKey, log.ShareUpdateValue, 0),
    }
)


class ShareKey(NamedTuple):
    """A share partition: a group's view of a partition."""

    group_id: str
    topic_id: Uuid
    partition: int


class ShareState(NamedTuple):
    """What lasts of a share partition."""

    snapshot_epoch: int
    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    batches: tuple[StateBatch, ...]
    created_ms: int
    written_ms: int


class StateChange(NamedTuple):
    """What a partition's leader wants written. A start offset or leader epoch of -1 leaves it as it is."""

    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    batches: tuple[StateBatch, ...]


def snapshot_record(key: ShareKey, state: ShareState) -> CoordinatorRecord:
    return CoordinatorRecord(
        log.ShareSnapshotKey(group_id=key.group_id, topic_id=key.topic_id, partition=key.partition),
        log.ShareSnapshotValue(
            snapshot_epoch=state.snapshot_epoch,
            state_epoch=state.state_epoch,
            leader_epoch=state.leader_epoch,
            start_offset=state.start_offset,
            delivery_complete_count=state.delivery_complete_count,
            create_timestamp=state.created_ms,
            write_timestamp=state.written_ms,
            state_batches=_to_log(state.batches),
        ),
    )


def update_record(
    key: ShareKey, snapshot_epoch: int, leader_epoch: int, change: StateChange
) -> CoordinatorRecord:
    return CoordinatorRecord(
        log.ShareUpdateKey(group_id=key.group_id, topic_id=key.topic_id, partition=key.partition),
        log.ShareUpdateValue(
            snapshot_epoch=snapshot_epoch,
            leader_epoch=leader_epoch,
            start_offset=change.start_offset,
            delivery_complete_count=change.delivery_complete_count,
            state_batches=_to_log(combine((), change.batches, change.start_offset)),
        ),
    )


def tombstone(key: ShareKey) -> CoordinatorRecord:
    return CoordinatorRecord(
        log.ShareSnapshotKey(group_id=key.group_id, topic_id=key.topic_id, partition=key.partition), None
    )


def from_snapshot(value: log.ShareSnapshotValue) -> ShareState:
    return ShareState(
        value.snapshot_epoch,
        value.state_epoch,
        value.leader_epoch,
        value.start_offset,
        value.delivery_complete_count,
        _from_log(value.state_batches),
        value.create_timestamp,
        value.write_timestamp,
    )


def after_update(state: ShareState | None, value: log.ShareUpdateValue) -> ShareState:
    """The state with an update on top; without its snapshot (it was lost) the update is all there is."""
    if state is None:
        return ShareState(
            value.snapshot_epoch,
            FIRST_EPOCH,
            value.leader_epoch,
            value.start_offset,
            value.delivery_complete_count,
            _from_log(value.state_batches),
            NO_TIMESTAMP,
            NO_TIMESTAMP,
        )
    start_offset = state.start_offset if value.start_offset == UNKNOWN else value.start_offset
    return state._replace(
        start_offset=start_offset,
        delivery_complete_count=value.delivery_complete_count,
        leader_epoch=state.leader_epoch if value.leader_epoch == UNKNOWN else value.leader_epoch,
        batches=combine(state.batches, _from_log(value.state_batches), start_offset),
    )


def _to_log(batches: tuple[StateBatch, ...]) -> list[log.StateBatch]:
    return [
        log.StateBatch(
            first_offset=first, last_offset=last, delivery_state=delivery_state, delivery_count=count
        )
        for first, last, count, delivery_state in batches
    ]


def _from_log(batches: list[log.StateBatch]) -> tuple[StateBatch, ...]:
    return tuple(
        StateBatch(batch.first_offset, batch.last_offset, batch.delivery_count, batch.delivery_state)
        for batch in batches
    )
