"""Kafka's PartitionChangeBuilder: the next state of one partition: in-sync set, leader, reassignment (KIP-966).

Purpose: every change of a partition goes through here, whoever asks for it. Rules: pure; a PartitionChangeBuilder is
filled in, built once, and gives a PartitionChangeRecord or None when nothing would change.
"""

from collections.abc import Callable, Sequence
from enum import Enum

from ottla.metadata import features
from ottla.metadata.records import NO_LEADER, NO_LEADER_CHANGE, PartitionChangeRecord
from ottla.metadata.registrations import LeaderRecoveryState, PartitionRegistration
from ottla.model.ids import Uuid


class Election(Enum):
    """How far an election may go to find a leader."""

    PREFERRED = "preferred"
    ONLINE = "online"
    UNCLEAN = "unclean"


class PartitionChangeBuilder:
    """Targets for one partition, and the record that reaches them."""

    def __init__(
        self,
        partition: PartitionRegistration,
        topic_id: Uuid,
        partition_id: int,
        *,
        acceptable_leader: Callable[[int], bool],
        default_directory: Callable[[int], Uuid],
        metadata_version: int,
        min_isr: int,
        elr_enabled: bool,
    ) -> None:
        self.partition = partition
        self.topic_id = topic_id
        self.partition_id = partition_id
        self.election = Election.ONLINE
        self.isr: Sequence[int] = partition.isr
        self.replicas: Sequence[int] = partition.replicas
        self.removing: Sequence[int] = partition.removing_replicas
        self.adding: Sequence[int] = partition.adding_replicas
        self.leader_recovery_state: int = partition.leader_recovery_state
        self.unclean_shutdown_replicas: Sequence[int] = ()
        self.directories: dict[int, Uuid] = dict(zip(partition.replicas, partition.directories, strict=True))
        self._elr: Sequence[int] = partition.elr
        self._acceptable_leader = acceptable_leader
        self._default_directory = default_directory
        self._metadata_version = metadata_version
        self._min_isr = min_isr
        self._elr_enabled = elr_enabled

    def build(self) -> PartitionChangeRecord | None:
        """The record, or None if the partition is already where it should be."""
        record = PartitionChangeRecord(topic_id=self.topic_id, partition_id=self.partition_id)
        self._complete_reassignment()
        self._fill_elr()
        self._elect(record)
        self._bump_epoch_for_removed_replicas(record)
        self._record_elr(record)
        self._record_isr(record)
        self._bump_epoch_for_shrunk_isr(record)
        self._record_last_known_leader(record)
        self._record_assignment(record)
        if self.leader_recovery_state != self.partition.leader_recovery_state:
            record.leader_recovery_state = self.leader_recovery_state
        return None if _is_no_op(record) else record

    # --- reassignment

    def _complete_reassignment(self) -> None:
        done = completed_reassignment(self.replicas, self.removing, self.adding, self.isr)
        if done is not None:
            self.replicas, self.isr = done
            self.removing = self.adding = ()

    def _record_assignment(self, record: PartitionChangeRecord) -> None:
        before = self.partition
        if self.replicas:
            if features.directory_assignment_supported(self._metadata_version):
                directories = [self._directory(replica) for replica in self.replicas]
                if directories != list(before.directories):
                    record.directories = directories
            if tuple(self.replicas) != before.replicas:
                record.replicas = list(self.replicas)
        if tuple(self.removing) != before.removing_replicas:
            record.removing_replicas = list(self.removing)
        if tuple(self.adding) != before.adding_replicas:
            record.adding_replicas = list(self.adding)

    def _directory(self, replica: int) -> Uuid:
        known = self.directories.get(replica)
        return self._default_directory(replica) if known is None else known

    # --- election

    def _elect(self, record: PartitionChangeRecord) -> None:
        leader, unclean = self._choose_leader()
        if leader == self.partition.leader:
            return
        if leader in self._elr:
            self.isr = [leader]
            others = [replica for replica in self._elr if replica != leader]
            # Where it may commit alone, because the minimum is smaller than when they left, they soon lack something.
            self._elr = others if len(self.isr) < self._min_isr else []
        record.leader = leader
        if unclean:
            # What other replicas had and this one has not is lost: the ISR begins again.
            record.isr = [leader]
            if self.partition.leader_recovery_state != LeaderRecoveryState.RECOVERING:
                record.leader_recovery_state = LeaderRecoveryState.RECOVERING

    def _choose_leader(self) -> tuple[int, bool]:
        """The leader and whether its election is unclean."""
        current = self.partition.leader
        preferred = self.replicas[0] if self.election is Election.PREFERRED else NO_LEADER
        for replica in (preferred, current, *self.replicas):
            if replica != NO_LEADER and self._valid_leader(replica):
                return replica, False
        if self._can_elect_last_known_leader():
            return self.partition.last_known_elr[0], True
        if self.election is Election.UNCLEAN:
            for replica in self.replicas:
                if self._acceptable_leader(replica):
                    return replica, True
        return NO_LEADER, False

    def _valid_leader(self, replica: int) -> bool:
        in_sync = replica in self.isr or (not self.isr and replica in self._elr)
        return in_sync and self._acceptable_leader(replica)

    def _can_elect_last_known_leader(self) -> bool:
        """With nobody left who is surely complete, the last leader is the best there is, if it is back."""
        last = self.partition.last_known_elr
        if not self._elr_enabled or self._elr or self.isr or len(last) != 1:
            return False
        return last[0] in self.replicas and self._acceptable_leader(last[0])

    def _bump_epoch_for_removed_replicas(self, record: PartitionChangeRecord) -> None:
        """A replica that is taken away must notice: a new leader epoch fences its fetches."""
        if record.leader == NO_LEADER_CHANGE and not set(self.partition.replicas) <= set(self.replicas):
            record.leader = self.partition.leader

    def _bump_epoch_for_shrunk_isr(self, record: PartitionChangeRecord) -> None:
        """Before 3.6 brokers needed a new epoch to see that the ISR had shrunk (KAFKA-15021)."""
        if not features.leader_epoch_bump_on_isr_shrink(self._metadata_version):
            return
        if record.leader != NO_LEADER_CHANGE or record.isr is None:
            return
        if not set(self.partition.isr) <= set(record.isr):
            record.leader = self.partition.leader

    # --- in-sync and eligible replicas

    def _record_isr(self, record: PartitionChangeRecord) -> None:
        if record.isr is not None or tuple(self.isr) == self.partition.isr:
            return
        # Without ELR the last in-sync replica stays in the ISR: it is all that is known.
        if self.isr or self._elr_enabled:
            record.isr = list(self.isr)

    def _fill_elr(self) -> None:
        """Below the minimum ISR, who leaves it stays eligible: nothing was committed without it."""
        if not self._elr_enabled:
            return
        if len(self.isr) >= self._min_isr:
            self._elr = ()
            return
        candidates = sorted({*self._elr, *self.partition.isr})
        self._elr = [
            replica
            for replica in candidates
            if replica not in self.isr
            and replica not in self.unclean_shutdown_replicas
            # Whoever a move has left out deletes its log: it would only stand in the way of those who may lead.
            and replica in self.replicas
        ]

    def _record_elr(self, record: PartitionChangeRecord) -> None:
        if record.isr is not None or not self._elr_enabled:
            self._elr = ()
        if tuple(self._elr) != self.partition.elr:
            record.eligible_leader_replicas = list(self._elr)

    def _record_last_known_leader(self, record: PartitionChangeRecord) -> None:
        if not self._elr_enabled:
            return
        known = self.partition.last_known_elr
        if record.leader == NO_LEADER and not known and self.partition.has_leader:
            record.last_known_elr = [self.partition.leader]
        elif known and (record.leader >= 0 or not set(known) <= set(self.replicas)):
            # As in _fill_elr: with whoever is left out goes its log.
            record.last_known_elr = []


def completed_reassignment(
    replicas: Sequence[int], removing: Sequence[int], adding: Sequence[int], isr: Sequence[int]
) -> tuple[list[int], list[int]] | None:
    """The replicas and ISR with which a reassignment ends, or None while it is not done."""
    if not removing and not adding:
        return None
    new_isr = [replica for replica in isr if replica not in removing]
    new_replicas = [replica for replica in replicas if replica not in removing]
    if removing and (not new_isr or not new_replicas):
        return None
    if not set(adding) <= set(new_isr):
        return None
    if len(adding) < len(removing) and not set(new_replicas) <= set(new_isr):
        return None
    return new_replicas, new_isr


def _is_no_op(record: PartitionChangeRecord) -> bool:
    return record == PartitionChangeRecord(topic_id=record.topic_id, partition_id=record.partition_id)
