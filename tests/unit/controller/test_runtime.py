"""The runtime: responses wait for the commit, failures leave no trace, readers see only what is committed."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest
from tests.support.clock import ManualClock

from ottla.controller.result import ControllerResult
from ottla.controller.runtime import MAX_PENDING_DECISIONS, ControllerRuntime
from ottla.metadata import records as r
from ottla.metadata.delta import Delta, MetadataError
from ottla.metadata.image import EMPTY_IMAGE, ClusterImage
from ottla.metadata.loader import MetadataLoader, MetadataPublisher
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.time_slice import Steps, TimeSlice


class Log:
    """Holds what is appended; nothing is committed before the test says so."""

    def __init__(self) -> None:
        self.batches: list[list[bytes]] = []
        self.next_offset = 0
        self.epoch = 1
        self.is_leader = True
        self.fails = False

    def append(self, groups: Sequence[Sequence[bytes]]) -> int:
        if self.fails:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "no space")
        for group in groups:
            self.batches.append(list(group))
            self.next_offset += len(group)
        return self.next_offset - 1


class OneStep(TimeSlice):
    """Over as soon as it has begun."""

    is_over = True


class World:
    def __init__(self) -> None:
        self.log = Log()
        self.publisher = MetadataPublisher()
        self.new_slice: Callable[[], TimeSlice] = TimeSlice
        self.runtime = ControllerRuntime(self.log, self.publisher, ManualClock(5), lambda: self.new_slice())
        self.runtime.activate(self.log.epoch, MetadataLoader(EMPTY_IMAGE))
        self.seen: list[tuple[ClusterImage, Delta]] = []
        self.publisher.subscribe(lambda image, delta: self.seen.append((image, delta)))

    def write(self, *records: r.MetadataRecord, atomic: bool = False) -> "asyncio.Future[str]":
        return self.runtime.submit(lambda image: ControllerResult("done", list(records), atomic))

    def commit(self) -> None:
        self.runtime.on_commit(self.log.next_offset)

    async def appended(self, since: int) -> None:
        """A decision that takes several turns of the loop is in the log."""
        for _ in range(100_000):
            if len(self.log.batches) > since:
                return
            await asyncio.sleep(0)
        raise AssertionError("nothing is appended")


MV = r.FeatureLevelRecord(name="metadata.version", feature_level=30)


def topic(name: str) -> r.TopicRecord:
    return r.TopicRecord(name=name, topic_id=name.encode().ljust(16, b"\0"))


def world_test(work: Callable[[World], Awaitable[None]]) -> Callable[[], None]:
    def test() -> None:
        async def main() -> None:
            world = World()
            world.write(MV)
            world.commit()
            await work(world)

        asyncio.run(asyncio.wait_for(main(), 60))

    test.__doc__ = work.__doc__
    return test


@world_test
async def test_a_response_waits_for_the_commit(world: World) -> None:
    future = world.write(topic("a"))
    await asyncio.sleep(0)
    assert not future.done()
    assert set(world.runtime.image.topics) == {"a"}, "decisions go on from it"
    assert not world.publisher.image.topics, "nobody else sees it"
    world.commit()
    assert await future == "done"
    assert set(world.publisher.image.topics) == {"a"}
    assert [t.name for t in world.seen[-1][1].created_topics] == ["a"]


@world_test
async def test_the_image_is_shown_before_the_answer(world: World) -> None:
    order: list[str] = []
    world.publisher.subscribe(lambda image, delta: order.append("image"))
    future = world.write(topic("a"))
    future.add_done_callback(lambda _: order.append("answer"))
    world.commit()
    await future
    await asyncio.sleep(0)
    assert order == ["image", "answer"]


@world_test
async def test_an_answer_that_rests_on_what_is_pending_waits_with_it(world: World) -> None:
    write = world.write(topic("a"))
    read = world.runtime.submit(lambda image: ControllerResult("a" in image.topics))
    await asyncio.sleep(0)
    assert not read.done()
    world.commit()
    assert (await write, await read) == ("done", True)
    alone = world.runtime.submit(lambda image: ControllerResult(len(image.topics)))
    assert alone.done()


@world_test
async def test_commits_come_in_order_and_in_part(world: World) -> None:
    first, second = world.write(topic("a")), world.write(topic("b"))
    world.runtime.on_commit(world.log.next_offset - 1)
    assert first.done()
    assert not second.done()
    assert set(world.publisher.image.topics) == {"a"}
    world.commit()
    assert second.done()


@world_test
async def test_a_refusal_appends_nothing(world: World) -> None:
    def refuse(image: ClusterImage) -> ControllerResult[None]:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "no")

    before = len(world.log.batches)
    with pytest.raises(KafkaError, match="no"):
        await world.runtime.submit(refuse)
    assert len(world.log.batches) == before


@world_test
async def test_a_record_that_cannot_be_replayed_is_never_appended(world: World) -> None:
    before = len(world.log.batches)
    with pytest.raises(MetadataError):
        world.write(topic("a"), topic("a"))
    assert len(world.log.batches) == before
    assert not world.runtime.image.topics, "not even the first half"


@world_test
async def test_a_failed_append_changes_nothing(world: World) -> None:
    world.log.fails = True
    with pytest.raises(KafkaError) as error:
        await world.write(topic("a"))
    assert error.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert not world.runtime.image.topics
    world.log.fails = False
    later = world.write(topic("b"))
    world.commit()
    await later
    assert set(world.publisher.image.topics) == {"b"}


@world_test
async def test_a_failed_commit_takes_everything_pending_back(world: World) -> None:
    done = world.write(topic("a"))
    world.commit()
    lost = [world.write(topic("b")), world.write(topic("c"))]
    world.runtime.resign()
    assert await done == "done"
    for future in lost:
        with pytest.raises(KafkaError) as error:
            await future
        assert error.value.code is ErrorCode.NOT_CONTROLLER
    assert set(world.runtime.image.topics) == {"a"}
    assert set(world.publisher.image.topics) == {"a"}
    with pytest.raises(KafkaError):
        await world.write(topic("d"))


@world_test
async def test_who_does_not_lead_decides_nothing(world: World) -> None:
    world.log.is_leader = False
    with pytest.raises(KafkaError) as error:
        await world.write(topic("a"))
    assert error.value.code is ErrorCode.NOT_CONTROLLER
    world.log.is_leader = True
    world.runtime.resign()
    with pytest.raises(KafkaError):
        await world.write(topic("a"))


@world_test
async def test_atomic_records_are_one_batch_and_others_are_split(world: World) -> None:
    names = [topic(f"t{number}") for number in range(10_500)]
    before = len(world.log.batches)
    world.write(*names)
    await world.appended(before)
    assert [len(batch) for batch in world.log.batches[before:]] == [10_000, 500]
    world.commit()
    large = r.ConfigRecord(resource_type=32, resource_name="g", name="x", value="v" * 30_000)
    with pytest.raises(KafkaError) as error:
        await world.write(*[large] * 300, atomic=True)
    assert error.value.code is ErrorCode.POLICY_VIOLATION


@world_test
async def test_there_is_an_end_to_what_may_wait(world: World) -> None:
    waiting = [
        world.runtime.submit(lambda image: ControllerResult(None, [r.NoOpRecord()])) for _ in range(10_000)
    ]
    assert len(waiting) == MAX_PENDING_DECISIONS
    with pytest.raises(KafkaError) as error:
        await world.write(topic("a"))
    assert error.value.code is ErrorCode.REQUEST_TIMED_OUT
    world.commit()
    assert all(future.done() for future in waiting)


@world_test
async def test_a_transaction_that_was_left_open_can_be_aborted(world: World) -> None:
    world.write(r.BeginTransactionRecord(), topic("half"))
    world.commit()
    assert world.runtime.transaction_start_offset >= 0
    assert not world.runtime.image.topics
    world.write(r.AbortTransactionRecord(), topic("whole"))
    world.commit()
    assert set(world.publisher.image.topics) == {"whole"}


# --- leaderships


@world_test
async def test_a_leadership_that_is_over_answers_nobody_with_success(world: World) -> None:
    done = world.write(topic("a"))
    world.commit()
    lost = world.write(topic("b"))
    committed = world.runtime.resign()
    assert not world.runtime.active
    assert set(committed.image.topics) == {"a"}
    assert committed.image is world.publisher.image
    # Another leader commits it after all: that is for the ImageLoader to tell.
    world.runtime.on_commit(world.log.next_offset)
    assert set(world.publisher.image.topics) == {"a"}
    world.log.epoch = 2
    world.runtime.activate(2, committed)
    world.runtime.on_commit(world.log.next_offset)
    assert await done == "done"
    with pytest.raises(KafkaError) as error:
        await lost
    assert error.value.code is ErrorCode.NOT_CONTROLLER


@world_test
async def test_commits_of_a_later_epoch_release_nothing(world: World) -> None:
    """The quorum knows of it before the controller has been told."""
    pending = world.write(topic("a"))
    world.log.epoch = 2
    world.commit()
    assert not pending.done()
    assert not world.publisher.image.topics
    with pytest.raises(KafkaError) as error:
        await world.write(topic("b"))
    assert error.value.code is ErrorCode.NOT_CONTROLLER
    world.runtime.resign()
    with pytest.raises(KafkaError):
        await pending


@world_test
async def test_another_leadership_goes_on_from_what_it_is_given(world: World) -> None:
    world.write(topic("lost"))
    state = world.runtime.resign().fork()
    state.replay([topic("others")], world.log.next_offset, 2, 5)
    state.publish()
    world.log.epoch, world.log.next_offset = 2, state.next_offset
    world.publisher.publish(state.image, Delta(world.publisher.image, state.image))
    world.runtime.activate(2, state)
    future = world.write(topic("mine"))
    world.commit()
    assert await future == "done"
    assert set(world.publisher.image.topics) == {"others", "mine"}
    assert world.publisher.image.epoch == 2


# --- slices


def in_slices(names: list[str], size: int = 2) -> Callable[[ClusterImage], ControllerResult[str]]:
    def decide(image: ClusterImage) -> ControllerResult[str]:
        missing = [name for name in names if name not in image.topics]
        return ControllerResult("all", [topic(n) for n in missing[:size]], more=len(missing) > size)

    return decide


@world_test
async def test_a_decision_in_slices_lets_others_decide_in_between(world: World) -> None:
    names = [f"t{n}" for n in range(7)]
    future = world.runtime.submit(in_slices(names))
    before = len(world.log.batches)
    assert set(world.runtime.image.topics) == {"t0", "t1"}
    other = world.write(topic("t2"))
    for _ in range(5):
        await asyncio.sleep(0)
    assert [len(batch) for batch in world.log.batches[before:]] == [1, 2, 2], "over what is true by then"
    assert not future.done()
    world.commit()
    assert (await future, await other) == ("all", "done")
    assert set(world.publisher.image.topics) == set(names)
    assert len(world.seen) > 4, "readers see each slice"


@world_test
async def test_slices_end_with_their_leadership(world: World) -> None:
    future = world.runtime.submit(in_slices([f"t{n}" for n in range(7)]))
    world.commit()
    committed = world.runtime.resign()
    world.log.epoch = 2
    world.runtime.activate(2, committed)
    for _ in range(5):
        await asyncio.sleep(0)
    assert set(world.runtime.image.topics) == {"t0", "t1"}, "a later leadership begins its own"
    with pytest.raises(KafkaError) as error:
        await future
    assert error.value.code is ErrorCode.NOT_CONTROLLER


@world_test
async def test_a_slice_that_is_refused_or_fails_ends_the_decision(world: World) -> None:
    def refuse_second(error: Exception) -> Callable[[ClusterImage], ControllerResult[None]]:
        def decide(image: ClusterImage) -> ControllerResult[None]:
            if image.topics:
                raise error
            return ControllerResult(None, [topic("a")], more=True)

        return decide

    refused = world.runtime.submit(refuse_second(KafkaError(ErrorCode.STALE_BROKER_EPOCH, "gone")))
    with pytest.raises(KafkaError, match="gone"):
        await refused
    world.write(r.RemoveTopicRecord(topic_id=topic("a").topic_id))
    broken = world.runtime.submit(refuse_second(RuntimeError("a bug")))
    with pytest.raises(KafkaError) as error:
        await broken
    assert error.value.code is ErrorCode.UNKNOWN_SERVER_ERROR


@world_test
async def test_whoever_leaves_between_slices_stops_them(world: World) -> None:
    future = world.runtime.submit(in_slices([f"t{n}" for n in range(7)]))
    future.cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    assert set(world.runtime.image.topics) == {"t0", "t1"}
    world.commit()
    assert set(world.publisher.image.topics) == {"t0", "t1"}


# --- decisions that take several turns of the loop


def in_steps(
    *names: str, then: Callable[[], object] | None = None
) -> Callable[[ClusterImage], Steps[ControllerResult[int]]]:
    """Topics, one in a step; the response is how many there were before."""

    def decide(image: ClusterImage) -> Steps[ControllerResult[int]]:
        records = []
        for name in names:
            if name in image.topics:
                raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, name)
            records.append(topic(name))
            yield
        return ControllerResult(len(image.topics), records, atomic=True, then=then)

    return decide


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@world_test
async def test_a_long_decision_is_appended_whole_and_whoever_would_change_something_waits(
    world: World,
) -> None:
    world.new_slice = OneStep
    before = len(world.log.batches)
    followed: list[str] = []
    long = world.runtime.submit(in_steps("a", "b", "c", then=lambda: followed.append("abc")))
    short = world.runtime.submit(lambda image: ControllerResult(len(image.topics), [topic("d")]))
    second = world.runtime.submit(in_steps("e", "f"))
    await asyncio.sleep(0)
    assert len(world.log.batches) == before
    assert not world.runtime.image.topics, "nothing of it is seen"
    assert not followed
    await turns(20)
    assert [len(batch) for batch in world.log.batches[before:]] == [3, 1, 2], "whole, and in their order"
    assert followed == ["abc"]
    assert not long.done()
    world.commit()
    assert (await long, await short, await second) == (0, 3, 4), "each over what was true before it"
    assert set(world.publisher.image.topics) == set("abcdef")
    assert [len(delta.created_topics) for _, delta in world.seen[-3:]] == [3, 1, 2]


@world_test
async def test_what_changes_nothing_is_answered_while_a_long_decision_is_made(world: World) -> None:
    def refuse(image: ClusterImage) -> ControllerResult[int]:
        raise KafkaError(ErrorCode.STALE_BROKER_EPOCH)

    world.new_slice = OneStep
    before = len(world.log.batches)
    long = world.runtime.submit(in_steps(*(f"t{n}" for n in range(50))))
    for _ in range(20):
        read = world.runtime.submit(lambda image: ControllerResult(len(image.topics)))
        assert read.done()
        assert read.result() == 0
        refused = world.runtime.submit(refuse)
        assert refused.done()
        assert isinstance(refused.exception(), KafkaError)
        await asyncio.sleep(0)
    assert len(world.log.batches) == before, "it is still under way"
    await world.appended(before)
    world.commit()
    assert await long == 0


@world_test
async def test_an_answer_in_between_rests_on_what_is_not_yet_committed(world: World) -> None:
    world.new_slice = OneStep
    world.write(topic("pending"))
    world.runtime.submit(in_steps("a", "b"))
    read = world.runtime.submit(lambda image: ControllerResult(set(image.topics)))
    assert not read.done()
    world.commit()
    assert await read == {"pending"}


@world_test
async def test_a_leadership_that_ends_while_a_decision_is_made_leaves_nothing_of_it(world: World) -> None:
    world.new_slice = OneStep
    before = len(world.log.batches)
    asked = [world.runtime.submit(in_steps("a", "b", "c")), world.write(topic("d"))]
    await turns(2)
    committed = world.runtime.resign()
    for future in asked:
        with pytest.raises(KafkaError) as error:
            await future
        assert error.value.code is ErrorCode.NOT_CONTROLLER
    world.log.epoch = 2
    world.runtime.activate(2, committed)
    await turns(10)
    assert len(world.log.batches) == before
    assert not world.runtime.image.topics
    assert world.runtime.submit(in_steps("a")) is not None, "and the next leadership decides"
    await world.appended(before)
    assert set(world.runtime.image.topics) == {"a"}


@world_test
async def test_a_decision_is_not_appended_in_an_epoch_that_is_over(world: World) -> None:
    """The quorum knows of it before the controller has been told."""
    world.new_slice = OneStep
    before = len(world.log.batches)
    long = world.runtime.submit(in_steps("a", "b", "c"))
    world.log.epoch = 2
    with pytest.raises(KafkaError) as error:
        await long
    assert error.value.code is ErrorCode.NOT_CONTROLLER
    assert len(world.log.batches) == before


@world_test
async def test_what_the_quorum_writes_meanwhile_comes_first(world: World) -> None:
    world.new_slice = OneStep
    since = len(world.log.batches)
    names = [f"t{n}" for n in range(100)]
    long = world.runtime.submit(lambda image: ControllerResult("done", [topic(n) for n in names]))
    await turns(5)
    world.log.next_offset += 1  # voters, say
    await world.appended(since)
    assert world.runtime.image.offset == world.log.next_offset - 1
    world.commit()
    assert await long == "done"
    assert set(world.publisher.image.topics) == set(names)


@world_test
async def test_a_decision_that_is_refused_or_breaks_on_its_way_lets_the_others_go_on(world: World) -> None:
    def broken(image: ClusterImage) -> Steps[ControllerResult[int]]:
        yield
        raise RuntimeError("a bug")

    world.new_slice = OneStep
    since = len(world.log.batches)
    asked = [
        world.runtime.submit(in_steps("a", "b")),
        world.runtime.submit(broken),
        world.runtime.submit(in_steps("c", "a")),
        world.runtime.submit(lambda image: ControllerResult(0, [topic("b")])),
        world.runtime.submit(in_steps("d")),
    ]
    await turns(30)
    assert [len(batch) for batch in world.log.batches[since:]] == [2, 1]
    world.commit()
    answers = await asyncio.gather(*asked, return_exceptions=True)
    codes = [answer.code if isinstance(answer, KafkaError) else answer for answer in answers]
    unknown = ErrorCode.UNKNOWN_SERVER_ERROR
    assert codes == [0, unknown, ErrorCode.TOPIC_ALREADY_EXISTS, unknown, 2]
    assert set(world.publisher.image.topics) == {"a", "b", "d"}


@world_test
async def test_whoever_has_left_is_decided_for_all_the_same(world: World) -> None:
    world.new_slice = OneStep
    since = len(world.log.batches)
    world.runtime.submit(in_steps("a", "b")).cancel()
    world.write(topic("c")).cancel()
    await world.appended(since + 1)
    world.commit()
    assert set(world.publisher.image.topics) == {"a", "b", "c"}


@world_test
async def test_those_who_wait_for_a_long_decision_have_their_bound(world: World) -> None:
    world.new_slice = OneStep
    world.runtime.submit(in_steps("a", "b"))
    waiting = [world.write(r.NoOpRecord()) for _ in range(MAX_PENDING_DECISIONS)]
    with pytest.raises(KafkaError) as error:
        await world.write(topic("c"))
    assert error.value.code is ErrorCode.REQUEST_TIMED_OUT
    world.runtime.resign()
    assert all(future.done() for future in waiting)
    await asyncio.gather(*waiting, return_exceptions=True)
