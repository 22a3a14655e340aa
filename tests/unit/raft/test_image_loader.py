"""Following the committed log: snapshots, transactions, damage, and handing over to a controller and back."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from ottla.metadata import records as r
from ottla.metadata.delta import Delta
from ottla.metadata.image import EMPTY_IMAGE, ClusterImage, image_records
from ottla.metadata.loader import MetadataLoader, MetadataPublisher
from ottla.metadata.serde import build_record_batch, encode_records
from ottla.metadata.snapshot import SnapshotId
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.time_slice import TimeSlice
from ottla.raft.image_loader import RECORDS_PER_IMAGE, RECORDS_PER_STEP, ImageLoader
from ottla.records.batch import BatchView, iter_batches
from ottla.records.control import ControlType, control_batch

MV = r.FeatureLevelRecord(name="metadata.version", feature_level=30)
BEGIN, END, ABORT = r.BeginTransactionRecord(), r.EndTransactionRecord(), r.AbortTransactionRecord()


def topic(name: str) -> r.TopicRecord:
    return r.TopicRecord(name=name, topic_id=name.encode().ljust(16, b"\0"))


def partition(name: str, number: int = 0, leader: int = 1) -> r.PartitionRecord:
    return r.PartitionRecord(
        partition_id=number,
        topic_id=topic(name).topic_id,
        replicas=[leader],
        isr=[leader],
        leader=leader,
        leader_epoch=0,
        partition_epoch=0,
        directories=[b"d" * 16],
    )


class Log:
    """A committed log in memory, and its snapshots."""

    def __init__(self) -> None:
        self.batches: list[BatchView] = []
        self.end = 0
        self.images: dict[SnapshotId, list[r.MetadataRecord]] = {}
        self.last_contained_log_timestamp_ms = 7
        self.records: list[r.MetadataRecord] = []
        self.is_due = False
        self.written: list[tuple[int, bool]] = []

    def append(self, *records: r.MetadataRecord) -> int:
        return self.append_frames(encode_records(records, 30))

    def append_frames(self, frames: list[bytes]) -> int:
        batch = build_record_batch(frames, base_offset=self.end, leader_epoch=3, now_ms=5)
        return self._add(batch)

    def append_control(self) -> int:
        batch = control_batch(
            [(ControlType.LEADER_CHANGE, b"\0\0")], timestamp_ms=5, base_offset=self.end, leader_epoch=3
        )
        return self._add(batch)

    def _add(self, batch: bytearray) -> int:
        view = next(iter_batches(bytes(batch)))
        self.batches.append(view)
        self.end = view.next_offset
        return self.end

    def committed(self, offset: int) -> Iterator[BatchView]:
        return iter([batch for batch in self.batches if batch.next_offset > offset])

    def read_checkpoint(self, snapshot: SnapshotId) -> "Log":
        self.records = self.images[snapshot]
        return self

    @property
    def snapshots(self) -> "Log":
        return self

    def due(self, image: ClusterImage, *, stopping: bool = False) -> bool:
        return self.is_due

    async def maybe_snapshot(self, image: ClusterImage, *, stopping: bool = False) -> bool:
        self.written.append((image.offset, stopping))
        return True


class CountingSlice(TimeSlice):
    """Counts how often it lets the loop run."""

    turns = 0

    async def yield_to_loop(self) -> None:
        CountingSlice.turns += 1
        await asyncio.sleep(0)


class World:
    def __init__(self, directory: Path) -> None:
        self.log = Log()
        self.publisher = MetadataPublisher()
        self.failures: list[Exception] = []
        self.loader = ImageLoader(
            self.log,
            self.publisher,
            directory=directory / "__cluster_metadata-0",
            on_failure=self.failures.append,
            time_slice=CountingSlice,
        )
        self.seen: list[tuple[ClusterImage, Delta]] = []
        self.publisher.subscribe(lambda image, delta: self.seen.append((image, delta)))
        self.loader.start()

    @property
    def topics(self) -> set[str]:
        return set(self.publisher.image.topics)

    async def follow(self) -> None:
        """Everything in the log is committed."""
        self.loader.on_commit(self.log.end)
        await self.settle()

    async def settle(self) -> None:
        while self.loader._task is not None and not self.failures:
            await asyncio.sleep(0)


@pytest.fixture
def run(tmp_path: Path) -> Callable[[Callable[[World], Awaitable[None]]], None]:
    def run(work: Callable[[World], Awaitable[None]]) -> None:
        async def main() -> None:
            world = World(tmp_path)
            await work(world)
            await world.loader.stop()

        asyncio.run(main())

    return run


Run = Callable[[Callable[[World], Awaitable[None]]], None]


def test_what_is_committed_is_shown_once_in_order(run: Run) -> None:
    async def work(world: World) -> None:
        world.log.append_control()
        world.log.append(MV, topic("a"))
        await world.follow()
        assert world.topics == {"a"}
        assert [image.offset for image, _ in world.seen] == [2]
        world.log.append(topic("b"))
        await world.follow()
        assert [t.name for t in world.seen[-1][1].created_topics] == ["b"]
        world.log.append_control()
        await world.follow()
        assert [image.offset for image, _ in world.seen] == [2, 3, 4], (
            "a control batch moves the offset alone"
        )
        assert world.seen[-1][1].empty
        await world.loader.caught_up()

    run(work)


def test_nothing_is_shown_before_the_log_was_followed_to_its_end(run: Run) -> None:
    async def work(world: World) -> None:
        waiting = asyncio.ensure_future(world.loader.caught_up())
        world.log.append(MV)
        for number in range(3 * RECORDS_PER_IMAGE):
            world.log.append(topic(f"t{number}"))
        await world.follow()
        assert len(world.seen) == 1
        await waiting
        for number in range(3 * RECORDS_PER_IMAGE):
            world.log.append(topic(f"u{number}"))
        await world.follow()
        assert 3 <= len(world.seen) - 1 <= 4, "later in pieces"

    run(work)


def test_a_log_without_a_cluster_is_not_shown(run: Run) -> None:
    async def work(world: World) -> None:
        world.log.append_control()
        await world.follow()
        assert not world.seen
        called: list[bool] = []
        world.loader.when_caught_up(lambda: called.append(True))
        assert called, "but whoever leads may begin one"

    run(work)


def test_a_snapshot_begins_and_the_log_goes_on(run: Run) -> None:
    async def work(world: World) -> None:
        snapshot = SnapshotId(10, 2)
        world.log.images[snapshot] = [MV, topic("a"), partition("a")]
        world.log.end = 10
        world.loader.on_snapshot(snapshot)
        await world.settle()
        assert not world.seen, "nobody has said yet how far the log goes"
        world.log.append(topic("b"))
        await world.follow()
        assert world.topics == {"a", "b"}
        image, delta = world.seen[0]
        assert (image.offset, len(world.seen)) == (10, 1)
        assert delta.before is EMPTY_IMAGE
        world.loader.on_snapshot(SnapshotId(11, 3))
        await world.settle()
        assert len(world.seen) == 1, "it holds nothing new"

    run(work)


def test_a_snapshot_in_the_middle_tells_what_went_and_what_came(run: Run) -> None:
    async def work(world: World) -> None:
        config = r.ConfigRecord(resource_type=2, resource_name="gone", name="retention.ms", value="1")
        world.log.append(MV, topic("gone"), partition("gone"), config, topic("stays"), topic("moves"))
        world.log.append(partition("stays"), partition("moves"), partition("moves", 1))
        await world.follow()
        before = world.publisher.image
        snapshot = SnapshotId(100, 4)
        world.log.images[snapshot] = [
            MV,
            r.FeatureLevelRecord(name="group.version", feature_level=1),
            *(topic("stays"), partition("stays"), topic("moves"), partition("moves")),
            *(partition("moves", 1, leader=2), topic("new"), partition("new")),
            r.ProducerIdsRecord(broker_id=1, broker_epoch=1, next_producer_id=1000),
        ]
        world.log.batches, world.log.end = [], 100
        world.loader.on_snapshot(snapshot)
        await world.follow()
        image, delta = world.seen[-1]
        assert (image.offset, image.epoch) == (99, 4)
        assert (delta.before, delta.after) == (before, image)
        assert {t.name for t in delta.created_topics} == {"new"}
        assert {t.name for t in delta.deleted_topics} == {"gone"}
        moved = delta.topics[topic("moves").topic_id]
        assert moved.partitions == {1}
        assert topic("stays").topic_id not in delta.topics
        assert {resource.name for resource in delta.configs} == {"gone"}
        assert delta.features == {"group.version"}
        assert delta.producer_ids
        world.log.append(topic("after"))
        await world.follow()
        assert [t.name for t in world.seen[-1][1].created_topics] == ["after"]

    run(work)


def test_a_transaction_is_shown_when_it_has_ended(run: Run) -> None:
    async def work(world: World) -> None:
        world.log.append(MV, topic("a"), BEGIN, topic("b"))
        await world.follow()
        assert world.topics == {"a"}
        assert world.publisher.image.offset == 1, "a snapshot of it would not lose the transaction"
        world.log.is_due = True
        await world.loader.maybe_snapshot()
        assert not world.log.written
        world.log.append(topic("c"))
        await world.follow()
        assert world.publisher.image.offset == 1
        world.log.append(END, BEGIN, topic("never"), ABORT, topic("d"))
        await world.follow()
        assert world.topics == {"a", "b", "c", "d"}
        assert world.publisher.image.offset == world.log.end - 1

    run(work)


def test_no_snapshot_ends_within_a_batch_while_the_controller_ends_a_transaction(run: Run) -> None:
    async def work(world: World) -> None:
        world.log.append(MV, topic("a"), BEGIN, topic("b"))
        await world.follow()
        state = world.loader.hand_over().fork()
        world.log.is_due = True
        await world.loader.maybe_snapshot()
        assert not world.log.written, "what would end the transaction is not committed"
        state.replay([ABORT], world.log.append(ABORT) - 1, 3, 5)
        delta = state.publish()
        world.publisher.publish(state.image, delta)
        await world.loader.maybe_snapshot()
        assert world.log.written == [(state.image.offset, False)]

    run(work)


def test_long_replays_let_the_loop_run(run: Run) -> None:
    async def work(world: World) -> None:
        records = [record for n in range(2_000) for record in (topic(f"t{n}"), partition(f"t{n}"))]
        CountingSlice.turns = 0
        world.log.append(MV, *records)
        await world.follow()
        assert CountingSlice.turns >= len(records) // RECORDS_PER_STEP, "while one batch is replayed"
        snapshot = SnapshotId(world.log.end + 1, 5)
        world.log.images[snapshot] = [MV, *records, topic("more")]
        CountingSlice.turns = 0
        world.loader.on_snapshot(snapshot)
        await world.settle()
        world.loader.on_commit(world.log.end + 1)
        await world.settle()
        assert CountingSlice.turns >= len(records) // RECORDS_PER_STEP, "while a snapshot takes its place"
        assert "more" in world.topics

    run(work)


def test_an_unknown_record_is_the_end_and_the_message_says_where(run: Run, tmp_path: Path) -> None:
    directory = tmp_path / "__cluster_metadata-0"
    directory.mkdir()
    for name in ("00000000000000000000.log", "00000000000000000002.log", "00000000000000000900.log"):
        (directory / name).touch()

    async def work(world: World) -> None:
        world.log.append(MV, topic("a"))
        world.log.append(topic("b"))
        world.log.append_frames([b"\x01\x7b\x00nonsense"])
        waiting = asyncio.ensure_future(world.loader.caught_up())
        await asyncio.sleep(0)
        await world.follow()
        (error,) = world.failures
        assert isinstance(error, KafkaError)
        assert error.code is ErrorCode.CORRUPT_MESSAGE
        where = directory / "00000000000000000002.log"
        assert error.message == (
            f"{where}: The metadata record at 3 cannot be read: Unknown metadata record type 123"
        )
        assert "\n" not in str(error)
        assert not world.seen, "nothing is served from half a log"
        with pytest.raises(KafkaError, match="Unknown metadata record type 123"):
            await waiting
        with pytest.raises(KafkaError, match="Unknown metadata record type 123"):
            await world.loader.caught_up()
        world.log.append(topic("c"))
        await world.follow()
        assert len(world.failures) == 1

    run(work)


@pytest.mark.parametrize(
    ("records", "message"),
    [
        (
            [r.RemoveTopicRecord(topic_id=b"?" * 16)],
            "the metadata record at offset 1: RemoveTopicRecord for an",
        ),
        ([END], "the metadata record at offset 1: a transaction ends at 1 that has not begun"),
        ([r.FeatureLevelRecord(name="metadata.version", feature_level=31)], "this release supports 7-30"),
    ],
)
def test_what_cannot_be_is_the_end(run: Run, records: list[r.MetadataRecord], message: str) -> None:
    async def work(world: World) -> None:
        world.log.append(MV, *records)
        await world.follow()
        assert message in str(world.failures[0])

    run(work)


def test_a_snapshot_that_cannot_be_is_the_end(run: Run) -> None:
    async def work(world: World) -> None:
        snapshot = SnapshotId(3, 1)
        world.log.images[snapshot] = [MV, partition("nowhere")]
        world.loader.on_snapshot(snapshot)
        await world.settle()
        assert f"{snapshot.file_name}: metadata record 1: a partition record for an" in str(world.failures[0])

    run(work)


def test_a_hole_in_the_log_is_the_end(run: Run) -> None:
    async def work(world: World) -> None:
        world.log.append(MV)
        world.log.end = 5
        world.log.append(topic("a"))
        await world.follow()
        assert "the records from 1 to 4 are not there" in str(world.failures[0])

    run(work)


def test_what_cannot_be_read_yet_is_read_with_the_next_commit(run: Run) -> None:
    async def work(world: World) -> None:
        world.log.append(MV)
        world.loader.on_commit(2)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await world.settle()
        called: list[bool] = []
        world.loader.when_caught_up(lambda: called.append(True))
        assert not called
        assert not world.failures
        world.log.append(topic("a"))
        await world.follow()
        assert called
        assert world.topics == {"a"}

    run(work)


def test_a_controller_goes_on_from_it_and_gives_back_what_is_committed(run: Run) -> None:
    async def work(world: World) -> None:
        world.log.append(MV)
        handed: list[MetadataLoader] = []
        world.loader.on_commit(world.log.end)
        world.loader.when_caught_up(lambda: handed.append(world.loader.hand_over()))
        assert not handed, "not before everything is replayed"
        await world.settle()
        (state,) = handed
        # The controller decides, appends and publishes; then something of it is never committed.
        mine = state.fork()
        mine.replay([topic("mine")], world.log.append(topic("mine")) - 1, 3, 5)
        delta = mine.publish()
        world.publisher.publish(mine.image, delta)
        await world.follow()
        assert len(world.seen) == 2, "the loader does not tell it again"
        world.log.append(topic("others"))
        world.loader.take_back(mine)
        await world.follow()
        assert world.topics == {"mine", "others"}
        assert [t.name for t in world.seen[-1][1].created_topics] == ["others"]
        assert list(image_records(state.image)) == [MV], "what was handed over is as it was"

    run(work)


def test_whoever_does_not_want_to_know_any_more_is_not_told(run: Run) -> None:
    async def work(world: World) -> None:
        called: list[str] = []
        world.log.append(MV)
        world.loader.on_commit(world.log.end)
        world.loader.when_caught_up(lambda: called.append("old"))
        world.loader.when_caught_up(None)
        await world.settle()
        assert not called
        world.loader.when_caught_up(lambda: called.append("new"))
        assert called == ["new"], "there is nothing to wait for"

    run(work)


def test_snapshots_are_written_when_due_and_at_the_end(run: Run) -> None:
    worlds: list[World] = []

    async def work(world: World) -> None:
        worlds.append(world)
        world.log.append(MV)
        await world.follow()
        assert not world.log.written
        world.log.is_due = True
        world.log.append(topic("a"))
        await world.follow()
        await asyncio.sleep(0)
        assert world.log.written == [(1, False)]

    run(work)
    assert worlds[0].log.written == [(1, False), (1, True)]


def test_a_newer_snapshot_takes_the_place_of_one_that_is_being_read(run: Run) -> None:
    async def work(world: World) -> None:
        older, newer = SnapshotId(10, 2), SnapshotId(20, 2)
        world.log.images[older] = [MV, *(topic(f"t{n}") for n in range(100))]
        world.log.images[newer] = [MV, topic("new")]
        world.loader.on_snapshot(older)
        await asyncio.sleep(0)
        world.loader.on_snapshot(newer)
        world.loader.on_commit(20)
        await world.settle()
        assert world.topics == {"new"}
        assert [image.offset for image, _ in world.seen] == [19]

    run(work)


def test_nothing_is_followed_after_the_end(run: Run) -> None:
    async def work(world: World) -> None:
        world.log.append(MV)
        await world.follow()
        await world.loader.stop()
        world.log.append(topic("late"))
        world.loader.on_commit(world.log.end)
        called: list[bool] = []
        world.loader.when_caught_up(lambda: called.append(True))
        await asyncio.sleep(0)
        assert not world.topics
        assert not called

    run(work)
