"""Kafka's MetadataLoader (image.loader), on every node: what the quorum has committed becomes the node's image.

Purpose: hears of snapshots and of the high watermark, replays what is new, publishes images in the order of the log,
and has snapshots written of them when they are due. Rules: only what is committed is replayed, in slices that let the
loop run. Nothing is published before the log has been followed to its high watermark once, and nothing of an open
transaction. What cannot be replayed is the end of the node: going on would be serving a wrong image. While this node's
controller is active it makes the images itself: the loader hands over to it and takes back what is committed.
Owned by the node, on its loop.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Protocol

from ottla.metadata.delta import Delta, MetadataError, difference_in_steps
from ottla.metadata.features import unsupported_level
from ottla.metadata.image import EMPTY_IMAGE, ClusterImage
from ottla.metadata.loader import MetadataLoader, MetadataPublisher
from ottla.metadata.records import MetadataRecord
from ottla.metadata.serde import iter_record_batch
from ottla.metadata.snapshot import SnapshotId
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.tasks import report, spawn
from ottla.model.time_slice import TimeSlice
from ottla.records.batch import BatchView

logger = logging.getLogger(__name__)

OWNER = "metadata loader"
# Between two looks at the clock: some tenths of a millisecond.
RECORDS_PER_STEP = 16
# A node that is far behind shows an image after this many records at the latest, at the end of a batch.
RECORDS_PER_IMAGE = 1_000


class SnapshotsDue(Protocol):
    """Knows when a snapshot is to be written."""

    def due(self, image: ClusterImage, *, stopping: bool = False) -> bool: ...


class SnapshotRecords(Protocol):
    """A snapshot whose records are read while they are asked for."""

    @property
    def last_contained_log_timestamp_ms(self) -> int: ...
    @property
    def records(self) -> Iterable[MetadataRecord]: ...


class CommittedLog(Protocol):
    """What the loader needs of the quorum: the RaftDriver, or a simulation of it."""

    @property
    def snapshots(self) -> SnapshotsDue: ...

    def committed(self, offset: int) -> Iterator[BatchView]:
        """The batches from the one that holds `offset` up to the high watermark, with right checksums.

        It ends early if a snapshot replaces the log, which on_snapshot tells.
        """

    def read_checkpoint(self, snapshot: SnapshotId) -> SnapshotRecords:
        """A snapshot that on_snapshot has told of."""

    async def maybe_snapshot(self, image: ClusterImage, *, stopping: bool = False) -> bool:
        """Writes a snapshot of a committed image if one is due."""


class ImageLoader:
    """Follows the log of the quorum. Make it, start() it before the quorum, and at the end stop()."""

    def __init__(
        self,
        raft: CommittedLog,
        publisher: MetadataPublisher,
        *,
        directory: Path,
        on_failure: Callable[[Exception], None],
        time_slice: Callable[[], TimeSlice] = TimeSlice,
    ) -> None:
        """`directory` is where the log lies, for whoever has to be told what is wrong with it."""
        self._raft = raft
        self.publisher = publisher
        self._directory = directory
        self._on_failure = on_failure
        self.time_slice = time_slice
        self._loader = MetadataLoader(EMPTY_IMAGE)
        self._high_watermark = -1
        self._wanted_snapshot: SnapshotId | None = None
        # Has the log been followed to its end once?
        self._live = False
        self._records_since_image = 0
        self._handed_over = False
        self._failure: Exception | None = None
        self._stopped = False
        self._task: asyncio.Task[None] | None = None
        self._snapshot_task: asyncio.Task[None] | None = None
        self._when_caught_up: Callable[[], None] | None = None
        self._waiting: list[asyncio.Future[None]] = []

    # --- life

    def start(self) -> None:
        """Sees every image from now on, whoever makes it."""
        self.publisher.subscribe(self._image_published)

    async def stop(self) -> None:
        """Stops following; leaves a snapshot if much has happened since the last one."""
        self._stopped = True
        for task in (self._task, self._snapshot_task):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        if self._live and self._failure is None:
            await self._write_snapshot(stopping=True)

    # --- the quorum's events (RaftListener)

    def on_snapshot(self, snapshot: SnapshotId) -> None:
        """The state begins anew with this snapshot, unless it holds nothing that has not been replayed."""
        assert not self._handed_over, "whoever leads has the whole log"
        if snapshot.end_offset > self._loader.next_offset:
            self._wanted_snapshot = snapshot
            self._run()

    def on_commit(self, high_watermark: int) -> None:
        self._high_watermark = max(self._high_watermark, high_watermark)
        self._run()

    def on_leader(self, epoch: int) -> None:
        """Whoever leads is the controller's affair."""

    def on_resigned(self) -> None:
        """As above."""

    def on_leader_changed(self, leader_id: int, epoch: int) -> None:
        """As above."""

    def on_failure(self, error: Exception) -> None:
        """The log is lost: nothing more will be committed."""
        self._fail(error)

    # --- who waits for it

    async def caught_up(self) -> None:
        """Returns when everything is published that was committed when the quorum was first heard of."""
        if self._failure is not None:
            raise _gave_up(self._failure)
        if not self._live:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            await waiter

    def when_caught_up(self, call: Callable[[], None] | None) -> None:
        """Calls, once, when all that is committed by then is replayed, at once if it is; None: not any more."""
        self._when_caught_up = call
        self._tell_caught_up()

    # --- handing over to the controller

    def hand_over(self) -> MetadataLoader:
        """What is replayed and published; from now on somebody else goes on with it. It must not be changed."""
        assert not self._handed_over
        assert self._task is None, "nothing is half replayed"
        assert not self._loader.unpublished
        self._handed_over = True
        return self._loader

    def take_back(self, committed: MetadataLoader) -> None:
        """Goes on from what is committed and published."""
        assert self._handed_over
        self._handed_over = False
        self._loader = committed.fork()
        self._run()

    # --- following

    @property
    def _has_work(self) -> bool:
        if self._handed_over or self._is_over:
            return False
        behind = self._loader.next_offset < self._high_watermark
        return self._wanted_snapshot is not None or behind or self._image_is_due

    @property
    def _is_over(self) -> bool:
        return self._stopped or self._failure is not None

    @property
    def _image_is_due(self) -> bool:
        return self._loader.unpublished and 0 <= self._high_watermark <= self._loader.next_offset

    def _run(self) -> None:
        if self._task is None and self._has_work:
            self._task = spawn(
                self._follow(), name="following the metadata log", owner=OWNER, failed=self._fail
            )

    async def _follow(self) -> None:
        time_slice = self.time_slice()
        try:
            while self._has_work:
                if self._wanted_snapshot is not None:
                    await self._load_snapshot(self._wanted_snapshot, time_slice)
                elif self._image_is_due:
                    await self._publish(time_slice)
                elif not await self._load_committed(time_slice):
                    break  # it can be read with the next commit
            self._task = None
            self._tell_caught_up()
        except (KafkaError, OSError) as error:
            self._fail(error)  # a broken log or disk is one line, not a trace

    def _tell_caught_up(self) -> None:
        call, is_idle = self._when_caught_up, self._task is None and not self._has_work
        if call is not None and is_idle and self._high_watermark >= 0 and not self._is_over:
            self._when_caught_up = None
            call()

    async def _load_snapshot(self, snapshot: SnapshotId, time_slice: TimeSlice) -> None:
        checkpoint = self._raft.read_checkpoint(snapshot)
        loader = MetadataLoader(EMPTY_IMAGE)
        offset, timestamp_ms = snapshot.end_offset - 1, checkpoint.last_contained_log_timestamp_ms
        for number, record in enumerate(checkpoint.records):
            try:
                loader.apply(record, max(offset, 0), snapshot.epoch, timestamp_ms)
            except MetadataError as error:
                raise self._unusable(snapshot.file_name, f"metadata record {number}: {error}") from error
            if number % RECORDS_PER_STEP == 0:
                await time_slice.yield_to_loop()
                if self._wanted_snapshot != snapshot:
                    return  # another has come meanwhile
        loader.advance(offset, snapshot.epoch, timestamp_ms)
        self._wanted_snapshot = None
        self._loader = loader
        logger.info("the metadata is that of snapshot %s", snapshot.file_name)

    async def _load_committed(self, time_slice: TimeSlice) -> bool:
        """Replays what is there; False if there was nothing."""
        first = self._loader.next_offset
        for batch in self._raft.committed(first):
            await self._replay(batch, time_slice)
            if self._wanted_snapshot is not None:
                break
            many = self._records_since_image >= RECORDS_PER_IMAGE
            if self._live and many and self._loader.unpublished:
                await self._publish(time_slice)
        return self._wanted_snapshot is not None or self._loader.next_offset > first

    async def _replay(self, batch: BatchView, time_slice: TimeSlice) -> None:
        loader, epoch, timestamp_ms = self._loader, batch.partition_leader_epoch, batch.max_timestamp
        first = loader.next_offset
        if batch.base_offset > first:
            raise self._damaged(first, f"the records from {first} to {batch.base_offset - 1} are not there")
        if not batch.is_control:
            offset = batch.base_offset
            try:
                for offset, record in iter_record_batch(batch):
                    if offset >= first:
                        loader.apply(record, offset, epoch, timestamp_ms)
                    if offset % RECORDS_PER_STEP == 0:
                        await time_slice.yield_to_loop()
            except KafkaError as error:
                raise self._damaged(offset, str(error)) from error
            except MetadataError as error:
                raise self._damaged(offset, f"the metadata record at offset {offset}: {error}") from error
            self._records_since_image += batch.records_count
        loader.advance(batch.last_offset, epoch, timestamp_ms)

    async def _publish(self, time_slice: TimeSlice) -> None:
        self._records_since_image = 0
        loader = self._loader
        delta = await time_slice.run(loader.publish_in_steps())
        image = loader.image
        if delta.before is not self.publisher.image:
            # It does not go on from what was published: a snapshot came in between.
            delta = await time_slice.run(difference_in_steps(self.publisher.image, image))
        unsupported = unsupported_level(image.features) if delta.features else None
        if unsupported is not None:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"{self._directory.parent}: {unsupported}")
        # A log in which no controller has written yet is no cluster for anybody.
        if image.metadata_version is None:
            return
        self.publisher.publish(image, delta)

    # --- failing

    def _damaged(self, offset: int, what: str) -> KafkaError:
        segments = sorted(path for path in self._directory.glob("*.log") if path.stem.isdigit())
        before = [path.name for path in segments if int(path.stem) <= offset]
        return self._unusable(before[-1] if before else "", what)

    def _unusable(self, file_name: str, what: str) -> KafkaError:
        return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{self._directory / file_name}: {what}")

    def _fail(self, error: Exception) -> None:
        if self._failure is not None:
            return
        self._failure = error
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_exception(_gave_up(error))
        self._on_failure(error)

    # --- what is published, whoever has made it

    def _image_published(self, image: ClusterImage, delta: Delta) -> None:
        self._live = True
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)
        if not self._is_writing and self._raft.snapshots.due(image):
            self._snapshot_task = spawn(self._write_snapshot(), name="metadata snapshot", owner=OWNER)

    @property
    def _is_writing(self) -> bool:
        return self._snapshot_task is not None and not self._snapshot_task.done()

    async def maybe_snapshot(self) -> None:
        """Writes a snapshot of what is published, if one is due; waits for one that is being written."""
        if self._is_writing:
            assert self._snapshot_task is not None
            await asyncio.shield(self._snapshot_task)
        else:
            await self._write_snapshot()

    async def _write_snapshot(self, *, stopping: bool = False) -> None:
        goes_on = self._handed_over and self.publisher.image.offset > self._loader.image.offset
        if self._loader.transaction_start_offset >= 0 and not goes_on:
            return  # the image may end within a batch
        try:
            await self._raft.maybe_snapshot(self.publisher.image, stopping=stopping)
        except OSError as error:
            # The log itself is whole: the next snapshot may succeed.
            logger.error("no metadata snapshot: %s", error)
        except Exception as error:  # noqa: BLE001 - as above
            report(error, name="metadata snapshot", owner=OWNER)


def _gave_up(error: Exception) -> KafkaError:
    if isinstance(error, KafkaError):
        return error
    return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"The metadata log cannot be followed: {error}")
