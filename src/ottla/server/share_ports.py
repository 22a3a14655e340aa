"""What the leader of a share partition needs of the share coordinator: the state that must last (KIP-932).

An answer that failed carries the share coordinator's own error code (NOT_COORDINATOR, FENCED_STATE_EPOCH, ...); what
that means for a client is decided by who asked. `ottla.server.share_persister` is the one that a node has.
"""

from collections.abc import Sequence
from typing import Protocol

from ottla.model.ids import Uuid
from ottla.model.pending import Pending
from ottla.replication.share_state import PersistedState, StateBatch


class Persister(Protocol):
    """Keeps the state of share partitions."""

    def read_state(
        self, group_id: str, topic_id: Uuid, partition: int, leader_epoch: int
    ) -> Pending[PersistedState]:
        """What is known of a share partition, and this leader's epoch noted: older ones may write no more."""
        ...

    def write_state(
        self,
        group_id: str,
        topic_id: Uuid,
        partition: int,
        *,
        state_epoch: int,
        leader_epoch: int,
        start_offset: int,
        delivery_complete_count: int,
        batches: Sequence[StateBatch],
    ) -> Pending[None]:
        """What has changed: done when it is committed."""
        ...
