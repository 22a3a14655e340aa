"""What must hold of the metadata on a simulated quorum, whatever has failed.

The image of every node is the replay of what is committed up to its offset, and goes on from the one before, with a
delta that tells all that differs; a controller that becomes active begins with all that is in its log; what was
answered is committed, in the epoch that it was decided in, and known to every controller that is active later; no
broker is fenced before its session is over.

What is committed is replayed here once for all nodes, batch by batch, so that looking at an image is one comparison.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING

from tests.simulation.stage import Violation
from tests.support.raft_log import Batch, batch_view

from ottla.controller.cluster_control import FENCE
from ottla.metadata import records as r
from ottla.metadata.delta import Delta, difference_in_steps
from ottla.metadata.image import EMPTY_IMAGE, ClusterImage
from ottla.metadata.loader import MetadataLoader
from ottla.metadata.serde import iter_record_batch
from ottla.model.time_slice import run_to_end
from ottla.records.batch import BatchView

if TYPE_CHECKING:
    from tests.simulation.quorum_process import Process


# What an image says; the rest is where it stands in the log.
content = attrgetter(
    *("features", "brokers", "controllers", "topics_by_id", "topics_by_name", "configs"),
    *("client_quotas", "next_producer_id", "acls", "scram", "delegation_tokens"),
)


def replay(loader: MetadataLoader, batch: BatchView) -> None:
    """Applies one batch of the log."""
    place = batch.partition_leader_epoch, batch.max_timestamp
    if not batch.is_control:
        for offset, record in iter_record_batch(batch):
            loader.apply(record, offset, *place)
    loader.advance(batch.last_offset, *place)


class MetadataChecker:
    """Knows the metadata at every offset that is committed, and what was answered."""

    def __init__(self, session_ms: int) -> None:
        self._session_ms = session_ms
        self.committed = MetadataLoader(EMPTY_IMAGE)
        # By the last offset of it; an open transaction adds none.
        self._images: dict[int, ClusterImage] = {}
        # Offset, epoch and record of all that is committed.
        self._records: list[tuple[int, int, r.MetadataRecord]] = []
        # The offset of the last decision of an epoch that was answered.
        self._answered: dict[int, int] = {}
        # When the controller of an epoch became active, by its own clock.
        self._active_since_ms: dict[int, int] = {}
        # Lives of brokers (id and epoch) that have asked to stop.
        self.stopping: set[tuple[int, int]] = set()
        self.blocks: set[int] = set()
        self.answers = 0

    # --- what is committed

    def follow(self, batch: Batch) -> None:
        """The next batch is committed."""
        view = batch_view(batch)
        loader, place = self.committed, (view.partition_leader_epoch, view.max_timestamp)
        for offset, record in [] if view.is_control else iter_record_batch(view):
            if isinstance(record, r.BeginTransactionRecord):
                self._keep_image()
            elif isinstance(record, r.BrokerRegistrationChangeRecord):
                self._check_session(record, *place)
            loader.apply(record, offset, *place)
            self._records.append((offset, view.partition_leader_epoch, record))
        loader.advance(view.last_offset, *place)
        self._keep_image()

    def _keep_image(self) -> None:
        """Of all so far, unless a transaction is open."""
        if self.committed.unpublished:
            self.committed.publish()
            self._images[self.committed.image.offset] = self.committed.image

    def _check_session(self, record: r.BrokerRegistrationChangeRecord, epoch: int, timestamp_ms: int) -> None:
        """Whoever becomes active gives every broker the time of a session."""
        if record.fenced != FENCE or (record.broker_id, record.broker_epoch) in self.stopping:
            return
        since_ms = self._active_since_ms.get(epoch)
        if since_ms is not None and timestamp_ms - since_ms < self._session_ms:
            raise Violation(
                f"broker {record.broker_id} is fenced {timestamp_ms - since_ms} ms after the controller of epoch "
                f"{epoch} has become active"
            )

    # --- what nodes show

    def published(self, process: Process, image: ClusterImage, delta: Delta) -> None:
        node_id, state = process.node.id, process.driver.state
        if image.offset >= state.high_watermark:
            raise Violation(
                f"node {node_id} shows an image of {image.offset}, but knows only {state.high_watermark} to be "
                "committed"
            )
        expected = self._images.get(image.offset)
        if expected is None or image.epoch != expected.epoch or content(image) != content(expected):
            raise Violation(f"the image of node {node_id} at {image.offset} is not the replay of the log")
        before, process.image = process.image, image
        # Not every place in the log is shown.
        goes_on = delta.before is before or content(delta.before) == content(before)
        if not goes_on or delta.after is not image:
            raise Violation(f"node {node_id} tells of another change than from one image to the next")
        if image.offset % 4 == 0:  # which costs more than all the rest
            _check_delta(node_id, before, image, delta)

    def look_at(self, process: Process) -> None:
        """After every turn of a process: has its controller become active?"""
        controller = process.controller
        if controller is None or not controller.active or controller._runtime.epoch == process.active_epoch:
            return
        runtime = controller._runtime
        process.active_epoch = runtime.epoch
        self._active_since_ms[runtime.epoch] = process.node.now_ms()
        self._check_answered_before(process, runtime.epoch, runtime._committed.next_offset)
        self._check_decides_on(process, runtime.epoch, runtime.image)

    def _check_answered_before(self, process: Process, epoch: int, end_offset: int) -> None:
        """Of a leadership, what an earlier one has answered."""
        answered = max((offset for other, offset in self._answered.items() if other < epoch), default=-1)
        if answered >= end_offset:
            raise Violation(
                f"controller {process.node.id} is active in epoch {epoch} with what is before {end_offset}, but the "
                f"decision at {answered} was answered"
            )

    def _check_decides_on(self, process: Process, epoch: int, image: ClusterImage) -> None:
        """All that its log says; one that is deposed without knowing it may have been overtaken."""
        node = process.node
        if epoch != max(node.cluster.checker.leaders, default=-1) or not process.driver.is_leader:
            return
        loader = self.committed.fork()
        for batch in node.log.committed(loader.next_offset, node.log.end.offset):
            replay(loader, batch_view(batch))
        loader.publish()
        if content(image) != content(loader.image):
            raise Violation(f"controller {node.id} decides on something else than what is in its log")

    # --- what clients hear

    def answered(self, epoch: int, is_it: Callable[[r.MetadataRecord], bool]) -> None:
        """A controller says that a decision of this epoch is made; `is_it` knows its record."""
        for offset, written_in, record in reversed(self._records):
            if is_it(record):
                if written_in != epoch:
                    raise Violation(
                        f"epoch {epoch} answers for what epoch {written_in} has written at {offset}"
                    )
                self._answered[epoch] = max(self._answered.get(epoch, -1), offset)
                self.answers += 1
                return
        raise Violation(f"epoch {epoch} answers for a decision that is not committed")

    def allocated(self, first: int) -> None:
        """A broker has been given a block of producer ids."""
        if first in self.blocks:
            raise Violation(f"the producer ids from {first} on are given twice")
        self.blocks.add(first)
        self.answers += 1


def _check_delta(node_id: int, before: ClusterImage, image: ClusterImage, delta: Delta) -> None:
    """It tells all that differs, and may tell more."""
    expected = run_to_end(difference_in_steps(before, image))
    topics_told = all(
        (told := delta.topics.get(topic_id)) is not None
        and (told.before, told.after) == (change.before, change.after)
        and change.partitions <= told.partitions
        for topic_id, change in expected.topics.items()
    )
    kinds = ("brokers", "controllers", "configs", "features", "client_quotas", "producer_ids", "acls")
    others_told = all(getattr(expected, kind) <= getattr(delta, kind) for kind in kinds)
    if not (topics_told and others_told):
        raise Violation(f"the delta of node {node_id} to {image.offset} does not tell all that differs")
