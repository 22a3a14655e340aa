"""What must hold of replication after every event, whatever has failed: the properties of KIP-966's specification.

What any leader has ever taken for committed is kept here, batch by batch, and every replica is held to it:

- leader completeness: whoever the controller has elected has all that is committed;
- leader candidate completeness: so has every member of the ISR and of the ELR that the controller has committed;
- replication quorum superset: the leader waits for everybody whom the controller counts as in sync;
- log matching: below their high watermarks all replicas have the same, and nobody's is beyond what is committed;
- what a consumer saw stays, at its offset; what was acknowledged with acks=all is committed where the answer says;
- offsets are handed out once: in one leader epoch there is one batch at an offset, whoever has led in it, and an
  idempotent producer's batch is committed once.

A broker that has lost what it had not flushed is excused until the controller hears of its new life: before that the
controller cannot know. The script sees to it that fewer than min ISR of a partition's replicas are in that state.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from tests.simulation.stage import Violation
from tests.support.memory_log import LogDisk, MemoryLog

from ottla.metadata.image import EMPTY_IMAGE, ClusterImage
from ottla.metadata.registrations import PartitionRegistration
from ottla.model.ids import TopicPartition
from ottla.records.batch import BatchView
from ottla.replication.partition import Partition

if TYPE_CHECKING:
    from tests.simulation.replication_stage import Broker, Process, Stage

# What a leader writes into a batch lies before: offset, length and epoch.
CONTENT = 16


class Excused(Exception):
    """A change of min.insync.replicas takes the promise from a partition, as with Kafka: the life ends.

    A leader that has not heard of a larger one commits with fewer. Whoever leaves the ISR then is eligible for the
    controller, and lacks what was committed without it. And with every change the controller forgets who is eligible:
    where fewer are in sync than the new one asks for, what is committed is then in those few only.
    """


class Committed:
    """All of a partition that is committed."""

    def __init__(self) -> None:
        self.stored: list[bytes] = []
        self.bases: list[int] = []
        # Records below were deleted.
        self.start = 0
        self.end = 0
        # Where a producer's batch is: by producer, its epoch and sequence.
        self.places: dict[tuple[int, int, int], int] = {}
        self.contents: dict[bytes, int] = {}

    def add(self, key: TopicPartition, stored: bytes) -> None:
        view = BatchView(stored, 0)
        if view.base_offset != self.end:
            raise Violation(f"{key}: {view.base_offset} is committed after {self.end}")
        if view.producer_id >= 0:
            place = view.producer_id, view.producer_epoch, view.base_sequence
            before = self.places.setdefault(place, view.base_offset)
            if before != view.base_offset:
                raise Violation(f"{key}: batch {place} is committed at {before} and at {view.base_offset}")
        self.contents[stored[CONTENT:]] = view.base_offset
        self.stored.append(stored)
        self.bases.append(view.base_offset)
        self.end = view.next_offset


class ReplicationChecker:
    """Knows all that is committed, and looks at every replica that has changed."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.committed: dict[TopicPartition, Committed] = {}
        self._image: ClusterImage = EMPTY_IMAGE
        self._told: dict[TopicPartition, PartitionRegistration] = {}
        self._seen: dict[tuple[int, TopicPartition], tuple[object, ...]] = {}
        # What leaders have put where, by epoch and offset.
        self._appended: dict[tuple[TopicPartition, int, int], bytes] = {}
        self.acknowledged: list[tuple[TopicPartition, int]] = []
        self.read = 0

    def of(self, key: TopicPartition) -> Committed:
        found = self.committed.get(key)
        if found is None:
            found = self.committed[key] = Committed()
        return found

    # --- replicas

    def look_at(self, process: Process) -> None:
        """Something has happened to this process."""
        self.look_at_image()
        broker_id = process.broker.id
        for key, partition in process.partitions.items():
            log = partition.log
            assert isinstance(log, MemoryLog)
            state = (
                log.log_end_offset,
                log.high_watermark,
                log.truncations,
                partition.leader_epoch,
                partition.is_leader,
                partition.maximal_isr,
                partition.partition_epoch,
                log,
            )
            before = self._seen.get((broker_id, key))
            if state != before:
                self._seen[broker_id, key] = state
                self._check(process, key, log)
                if before is None or before[2:] != state[2:]:
                    self._check_candidates(key)

    def _check(self, process: Process, key: TopicPartition, log: MemoryLog) -> None:
        committed, high_watermark = self.of(key), log.high_watermark
        if self._stage.traces:
            self._stage.note(
                "has", process.broker.id, f"{key} to {log.log_end_offset}, {high_watermark} committed"
            )
        agreed = self.agree(key, log)
        if high_watermark > committed.end:
            partition = process.partitions[key]
            if not partition.is_leader:
                raise Violation(
                    f"{key}: follower {process.broker.id} takes what is below {high_watermark} for committed, but that "
                    f"is only what is below {committed.end}"
                )
            if agreed < committed.end:
                raise Violation(
                    f"{key}: {process.broker.id} commits {high_watermark} on another log than the one that is "
                    f"committed to {committed.end}: it agrees to {agreed}"
                )
            segment = log.memory
            number = bisect_right(segment.nexts, committed.end)
            while number < len(segment.nexts) and segment.nexts[number] <= high_watermark:
                committed.add(key, segment.stored[number])
                number += 1
            agreed = log.agreed = committed.end
            self._check_promise(key, partition)
            self._check_candidates(key)
        if agreed < high_watermark:
            raise Violation(
                f"{key}: the log of {process.broker.id} is another one below its high watermark {high_watermark}: it "
                f"agrees to {agreed} with what is committed"
            )

    def _check_promise(self, key: TopicPartition, partition: Partition) -> None:
        """See Excused."""
        told = self._told.get(key)
        wanted = self._stage.min_isr(self._image, key.topic)
        if told is None or partition.min_insync_replicas >= wanted:
            return
        if len(told.isr) < min(wanted, len(told.replicas)):
            raise Excused(f"{key}: {told.leader} has not heard that the minimum ISR is {wanted}")

    def agree(self, key: TopicPartition, log: MemoryLog | LogDisk) -> int:
        """Up to where a log has what is committed."""
        committed, segment = self.of(key), log.memory
        if log.log_start_offset > committed.start:
            return committed.start
        end = min(committed.end, log.log_end_offset)
        if log.agreed < end:
            theirs = bisect_right(segment.nexts, log.agreed)
            ours = bisect_right(committed.bases, log.agreed) - 1
            while (
                log.agreed < end
                and theirs < len(segment.stored)
                and committed.stored[ours] == segment.stored[theirs]
            ):
                log.agreed = segment.nexts[theirs]
                theirs += 1
                ours += 1
        return log.agreed

    def ended(self, broker: Broker) -> None:
        """A process is gone; what is left of its logs is on its disk."""
        for seen in [seen for seen in self._seen if seen[0] == broker.id]:
            del self._seen[seen]
        for key in broker.disks:
            self._check_candidates(key)

    # --- what the controller says

    def look_at_image(self) -> None:
        image = self._stage.image
        if image is self._image:
            return
        is_other_config = image.configs is not self._image.configs
        self._image = image
        for topic, index, told in image.partitions():
            key = TopicPartition(topic.name, index)
            before = self._told.get(key)
            if before is not told:
                self._told[key] = told
                if before is not None and is_other_config:
                    self._check_forgotten(key, before, told)
                self._stage.note(
                    "is decided", 0, f"{key} {told.leader}@{told.leader_epoch} isr {told.isr} elr {told.elr}"
                )
            self._check_candidates(key)

    def _check_forgotten(
        self, key: TopicPartition, before: PartitionRegistration, told: PartitionRegistration
    ) -> None:
        """See Excused."""
        wanted = min(self._stage.min_isr(self._image, key.topic), len(told.replicas))
        if before.elr and not told.elr and len(told.isr) < wanted:
            raise Excused(f"{key}: with another minimum ISR, {before.elr} are not eligible any more")

    def _check_candidates(self, key: TopicPartition) -> None:
        """Whoever may be elected has everything; the leader waits for whoever is in sync."""
        told, committed = self._told.get(key), self.of(key)
        if told is None:
            return
        if told.leader >= 0 and told.leader not in told.isr:
            raise Violation(f"{key}: {told.leader} leads in epoch {told.leader_epoch} without being in sync")
        for broker_id in {*told.isr, *told.elr}:
            broker = self._stage.brokers[broker_id]
            if broker.has_lost:
                registered = self._image.brokers.get(broker_id)
                if registered is None or registered.incarnation_id != broker.incarnation:
                    continue
                broker.has_lost = False
            has = self.extent(broker, key)
            if has < committed.end:
                what = "in the ISR" if broker_id in told.isr else "in the ELR"
                raise Violation(
                    f"{key}: {broker_id} is {what} of {told.leader}@{told.leader_epoch} and has what is below {has}, "
                    f"but what is below {committed.end} is committed"
                )
        self._check_superset(key, told)

    def extent(self, broker: Broker, key: TopicPartition) -> int:
        """Up to where a broker, dead or alive, has what is committed."""
        process = broker.process
        partition = None if process is None else process.partitions.get(key)
        if partition is not None:
            assert isinstance(partition.log, MemoryLog)
            return self.agree(key, partition.log)
        disk = broker.disks.get(key)
        return 0 if disk is None else self.agree(key, disk)

    def _check_superset(self, key: TopicPartition, told: PartitionRegistration) -> None:
        leader = self._stage.brokers.get(told.leader)
        if leader is None or leader.process is None:
            return
        partition = leader.process.partitions.get(key)
        if partition is None or not partition.is_leader or partition.leader_epoch != told.leader_epoch:
            return
        if not set(told.isr) <= partition.maximal_isr:
            raise Violation(
                f"{key}: leader {told.leader} waits for {sorted(partition.maximal_isr)} only, but for the "
                f"controller {list(told.isr)} are in sync"
            )

    # --- what clients see

    def handed_out(
        self, key: TopicPartition, leader_epoch: int, first: int, last: int, content: bytes
    ) -> None:
        """A leader has appended a batch, or found that it had it already."""
        for offset in range(first, last + 1):
            if self._appended.setdefault((key, leader_epoch, offset), content) != content:
                raise Violation(f"{key}: {offset} is handed out twice in epoch {leader_epoch}")

    def acknowledged_all(self, key: TopicPartition, base_offset: int, content: bytes) -> None:
        """A producer hears that its batch is committed."""
        at = self.of(key).contents.get(content)
        if at is None:
            raise Violation(f"{key}: a batch is acknowledged at {base_offset}, but is not committed")
        if at != base_offset:
            raise Violation(f"{key}: a batch is acknowledged at {base_offset}, but is committed at {at}")
        self.acknowledged.append((key, base_offset))

    def consumed(self, key: TopicPartition, stored: bytes) -> None:
        """A consumer has read a batch."""
        committed, base = self.of(key), int.from_bytes(stored[:8], "big")
        number = bisect_right(committed.bases, base) - 1
        if base >= committed.end or committed.stored[number] != stored:
            raise Violation(f"{key}: a consumer reads something else at {base} than what is committed")
        self.read += 1
