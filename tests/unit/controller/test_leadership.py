"""Controllers that come to lead and lose it again: what waits, what comes back, what begins anew."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import cycle
from pathlib import Path
from random import Random

import pytest
from tests.support.simulated_quorum import LoopClock, Quorum, SeededSlice, SimulatedRaft, VirtualLoop
from tests.unit.controller.support import registration, settings

from ottla.controller.controller import Controller
from ottla.controller.result import ControllerResult, RequestContext
from ottla.controller.rules import MAX_RECORDS_PER_SLICE
from ottla.metadata import records as r
from ottla.metadata.image import ClusterImage
from ottla.metadata.loader import MetadataPublisher
from ottla.metadata.serde import encode_records, iter_record_batch
from ottla.metadata.snapshot import bootstrap_records, write_bootstrap
from ottla.model.errors import ErrorCode, KafkaError
from ottla.raft.image_loader import ImageLoader
from ottla.wire.messages.admin import cluster as f
from ottla.wire.messages.admin import topics as t
from ottla.wire.messages.nodes import broker_lifecycle as lifecycle
from ottla.wire.messages.nodes import replication

CONTEXT = RequestContext(7)
VOTERS = (1, 2, 3)


class Node:
    """A controller and what is under it."""

    def __init__(self, world: World, node_id: int) -> None:
        self.raft = world.make_raft(world.quorum, world.quorum.replicas[node_id])
        self.publisher = MetadataPublisher()
        world.lives += 1
        random = Random(world.lives)
        loader = ImageLoader(
            self.raft,
            self.publisher,
            directory=world.place,
            on_failure=world.failures.append,
            time_slice=lambda: SeededSlice(random),
        )
        self.controller = Controller(
            self.raft,
            loader,
            settings(node_id=node_id),
            LoopClock(),
            metadata_dir=world.place,
            channel=world,  # type: ignore[arg-type]
            random=random,
            new_uuid=lambda: random.randbytes(16),
        )

    @property
    def image(self) -> ClusterImage:
        return self.publisher.image


class World:
    """Three controllers; nothing is replicated, committed or told unless the test says so."""

    make_raft = SimulatedRaft

    def __init__(self, place: Path) -> None:
        self.place = place
        self.failures: list[Exception] = []
        self.quorum = Quorum(Random(1), VOTERS, ())
        self.nodes: dict[int, Node] = {}
        self.lives = 0

    async def start(self, node_id: int) -> None:
        self.nodes[node_id] = Node(self, node_id)
        await self.nodes[node_id].controller.start()

    def controller(self, node_id: int) -> Controller:
        return self.nodes[node_id].controller

    async def agree(self, *, without: int = 0) -> None:
        """All have what the leader has, and know that it is committed."""
        for _ in range(5):
            if self.quorum.leader is not None:
                self.quorum.leader.replica.flushed = self.quorum.leader.replica.end
            for node_id in self.quorum.lives:
                if node_id != without:
                    self.quorum.replicate(node_id, everything=True)
            self.quorum.flush()
            await asyncio.sleep(0)
        assert not self.failures, self.failures

    async def pass_time(self, seconds: float) -> None:
        """Everybody goes on meanwhile."""
        for _ in range(round(seconds * 10)):
            await self.agree()
            await asyncio.sleep(0.1)

    async def lead(self, node_id: int, *, without: int = 0) -> Controller:
        self.quorum.elect(node_id)
        while not self.controller(node_id).active:
            await self.agree(without=without)
        await self.agree(without=without)
        return self.controller(node_id)

    async def same_images(self) -> None:
        """All have replayed what is committed, which may take them some turns of the loop."""
        newest = self.quorum.high_watermark - 1
        while any(node.image.offset < newest for node in self.nodes.values()):
            await self.agree()
        first, *others = (node.image for node in self.nodes.values())
        assert all(image == first for image in others)

    async def agreed(self, answer: Awaitable[object]) -> object:
        """The answer to a request whose records are committed."""
        asked = asyncio.ensure_future(answer)
        while not asked.done():
            await self.agree()
        return asked.result()

    async def register_controller(
        self, request: lifecycle.ControllerRegistrationRequest, context: RequestContext
    ) -> lifecycle.ControllerRegistrationResponse:
        """The ControllerChannel of all."""
        active = next((n.controller for n in self.nodes.values() if n.controller.active), None)
        if active is None:
            return lifecycle.ControllerRegistrationResponse(error_code=ErrorCode.NOT_CONTROLLER)
        return await active.register_controller(request, context)

    async def broker_up(self, controller: Controller, broker_id: int, incarnation: bytes = b"i" * 16) -> int:
        request = registration(broker_id, incarnation)
        answer = await self.agreed(controller.register_broker(request, CONTEXT))
        assert isinstance(answer, lifecycle.BrokerRegistrationResponse)
        assert answer.error_code == 0
        await self.agreed(heartbeat(controller, broker_id, answer.broker_epoch))
        assert controller.image.broker_is_active(broker_id)
        return answer.broker_epoch


async def heartbeat(
    controller: Controller, broker_id: int, epoch: int, **fields: object
) -> lifecycle.BrokerHeartbeatResponse:
    defaults: dict[str, object] = {
        "current_metadata_offset": controller.image.offset,
        "want_fence": False,
        "want_shut_down": False,
    }
    request = lifecycle.BrokerHeartbeatRequest(
        broker_id=broker_id, broker_epoch=epoch, **{**defaults, **fields}
    )
    return await controller.broker_heartbeat(request, RequestContext(2))


async def create(controller: Controller, name: str, partitions: int = 1, factor: int = 1) -> int:
    topic = t.CreatableTopic(
        name=name, num_partitions=partitions, replication_factor=factor, assignments=[], configs=[]
    )
    answer = await controller.create_topics(t.CreateTopicsRequest(topics=[topic]), CONTEXT)
    return int(answer.topics[0].error_code)


Work = Callable[[World], Awaitable[None]]
Run = Callable[..., None]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    write_bootstrap(tmp_path, bootstrap_records(), 1)

    def run(work: Work, world_type: type[World] = World) -> None:
        async def main() -> None:
            world = world_type(tmp_path)
            for node_id in VOTERS:
                await world.start(node_id)
            await work(world)
            for node in world.nodes.values():
                await node.controller.stop()
            assert not world.failures

        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.run(main())

    return run


def test_a_standby_decides_nothing_and_follows(run: Run) -> None:
    async def work(world: World) -> None:
        standby = world.controller(2)
        assert not standby.active
        assert await create(standby, "t") == ErrorCode.NOT_CONTROLLER
        leader = await world.lead(1)
        await world.broker_up(leader, 1)
        assert await world.agreed(create(leader, "t")) == 0
        assert set(standby.image.topics) == {"t"}
        assert standby.image == leader.image
        refused = await standby.register_broker(registration(2), CONTEXT)
        assert refused.error_code == ErrorCode.NOT_CONTROLLER
        assert (await heartbeat(standby, 1, 5)).error_code == ErrorCode.NOT_CONTROLLER

    run(work)


def test_it_is_active_with_its_first_commit(run: Run) -> None:
    async def work(world: World) -> None:
        first = await world.lead(1)
        await world.broker_up(first, 1)
        await world.agreed(create(first, "before"))
        second = await world.lead(2)
        assert not first.active
        assert second.epoch == 2
        assert await world.agreed(create(second, "after")) == 0
        assert set(second.image.topics) == {"before", "after"} == set(first.image.topics)
        again = await world.lead(1)
        assert await world.agreed(create(again, "again")) == 0
        assert "again" in world.nodes[3].image.topics

    run(work)


def test_what_was_due_is_the_work_of_the_next_one(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    """A leader that loses the quorum within its periodic work has nothing to warn of: it says that it has lost it."""

    async def work(world: World) -> None:
        first = await world.lead(1)
        await world.broker_up(first, 1)
        # Nothing is committed any more, and the broker is silent: whatever is due then waits for its commit.
        await asyncio.sleep(60)
        assert first.image.broker_is_active(1)
        second = await world.lead(2)
        await world.pass_time(60)
        assert not second.image.broker_is_active(1)

    run(work)
    assert "periodic work" not in caplog.text


def test_what_waits_fails_and_comes_back_if_others_commit_it(run: Run) -> None:
    async def work(world: World) -> None:
        old = await world.lead(1)
        await world.broker_up(old, 1)
        pending = asyncio.ensure_future(create(old, "kept"))
        await asyncio.sleep(0)
        # One follower has it: nobody can say yet what will become of it.
        world.quorum.replicate(2, everything=True)
        world.quorum.elect(2)
        late = asyncio.ensure_future(create(old, "lost"))
        await asyncio.sleep(0)
        assert not pending.done()
        assert not late.done()
        await world.pass_time(0.5)
        assert await pending == await late == ErrorCode.NOT_CONTROLLER
        assert set(old.image.topics) == {"kept"}, "like anybody's record"
        assert set(world.controller(2).image.topics) == {"kept"}
        assert not old.active

    run(work)


def test_a_deposed_leader_answers_nobody_with_success(run: Run) -> None:
    async def work(world: World) -> None:
        old = await world.lead(1)
        await world.broker_up(old, 1)
        new = await world.lead(2, without=1)
        assert old.active, "it has not heard of it"
        pending = asyncio.ensure_future(create(old, "t", partitions=3))
        await asyncio.sleep(0)
        asked = asyncio.ensure_future(create(new, "t"))
        while not asked.done():
            await world.agree(without=1)
        assert await asked == 0
        assert not pending.done()
        await world.pass_time(0.5)
        assert await pending == ErrorCode.NOT_CONTROLLER
        assert len(old.image.topics["t"].partitions) == 1

    run(work)


def test_every_broker_has_a_fresh_session_at_each_activation(run: Run) -> None:
    async def work(world: World) -> None:
        first = await world.lead(1)
        epoch = await world.broker_up(first, 1)
        await world.pass_time(8.0)
        second = await world.lead(2)
        await world.pass_time(5.0)
        assert second.image.broker_is_active(1), "it has had five of its nine seconds"
        await world.pass_time(6.0)
        assert not second.image.broker_is_active(1)
        await world.agreed(heartbeat(second, 1, epoch))
        assert second.image.broker_is_active(1)

    run(work)


def test_one_broker_id_is_one_process_also_after_a_failover(run: Run) -> None:
    async def work(world: World) -> None:
        first = await world.lead(1)
        # The registration is not committed yet.
        asked = asyncio.ensure_future(first.register_broker(registration(1, b"a" * 16), CONTEXT))
        await asyncio.sleep(0)
        other = await world.agreed(first.register_broker(registration(1, b"b" * 16), CONTEXT))
        assert isinstance(other, lifecycle.BrokerRegistrationResponse)
        assert other.error_code == ErrorCode.DUPLICATE_BROKER_REGISTRATION
        epoch = (await asked).broker_epoch
        await world.agreed(heartbeat(first, 1, epoch))
        second = await world.lead(2)
        other = await world.agreed(second.register_broker(registration(1, b"b" * 16), CONTEXT))
        assert isinstance(other, lifecycle.BrokerRegistrationResponse)
        assert other.error_code == ErrorCode.DUPLICATE_BROKER_REGISTRATION
        await world.pass_time(12.0)
        new_epoch = await world.broker_up(second, 1, b"b" * 16)
        assert new_epoch > epoch
        stale = await heartbeat(second, 1, epoch)
        assert stale.error_code == ErrorCode.STALE_BROKER_EPOCH

    run(work)


def test_every_controller_says_who_it_is_to_whichever_is_active(run: Run) -> None:
    async def work(world: World) -> None:
        await asyncio.sleep(30.0)
        await world.lead(2)
        await world.pass_time(1.0)
        image = world.nodes[2].image
        assert set(image.controllers) == set(VOTERS)
        before = image.controllers[3].incarnation_id
        world.quorum.crash(3)
        await world.controller(3).stop()
        await world.start(3)
        await world.pass_time(1.0)
        assert world.nodes[2].image.controllers[3].incarnation_id != before, "another life"

    run(work)


def test_an_idle_log_is_kept_alive_by_whoever_leads(run: Run) -> None:
    async def work(world: World) -> None:
        await world.lead(1)
        await world.pass_time(2.0)
        end = world.nodes[1].raft.next_offset
        await world.pass_time(5.0)
        written = world.nodes[1].raft.next_offset - end
        assert 8 <= written <= 11, "one every half second, and nobody else writes any"
        for batch in world.nodes[1].raft.replica.log:
            if batch.base_offset >= end:
                assert [record for _, record in iter_record_batch(batch)] == [r.NoOpRecord()]

    run(work)


def test_a_standby_writes_snapshots_too(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimulatedRaft, "due", lambda self, image, stopping=False: not stopping)

    async def work(world: World) -> None:
        leader = await world.lead(1)
        await world.broker_up(leader, 1)
        await world.agreed(create(leader, "t"))
        await world.agree()
        for node in world.nodes.values():
            snapshot = node.raft.replica.snapshot
            assert snapshot is not None
            assert snapshot.id.end_offset == node.image.offset + 1

    run(work)


def test_a_transaction_that_its_leader_left_open_is_aborted(run: Run) -> None:
    async def work(world: World) -> None:
        leader = await world.lead(1)
        await world.broker_up(leader, 1)
        open_ = [r.BeginTransactionRecord(), r.TopicRecord(name="half", topic_id=b"h" * 16)]
        raft = world.nodes[1].raft
        # As if the process had died in the middle of it: its own controller knows nothing.
        raft.append([encode_records(open_, 30)])
        await world.pass_time(0.2)
        assert not world.nodes[2].image.topics
        second = await world.lead(2)
        assert await world.agreed(create(second, "whole")) == 0
        assert set(second.image.topics) == {"whole"}
        records = [
            record
            for batch in world.quorum.committed
            if not batch.is_control
            for _, record in iter_record_batch(batch)
        ]
        assert r.AbortTransactionRecord(reason="Controller failover") in records

    run(work)


# --- thousands of partitions


async def three_brokers(world: World, controller: Controller, partitions: int) -> dict[int, int]:
    epochs = {broker_id: await world.broker_up(controller, broker_id) for broker_id in (1, 2, 3)}
    for number in range(partitions // 500):
        assert await world.agreed(create(controller, f"t{number}", partitions=500, factor=2)) == 0
    return epochs


def largest_batch(world: World, since: int) -> int:
    # Of the quorum: a node's own log may begin after a snapshot.
    return max(batch.records_count for batch in world.quorum.committed if batch.base_offset >= since)


def leaderships(image: ClusterImage, broker_id: int) -> int:
    return sum(p.leader == broker_id for _, _, p in image.partitions())


def memberships(image: ClusterImage, broker_id: int) -> int:
    return sum(broker_id in p.isr for _, _, p in image.partitions())


def test_a_broker_with_many_leaderships_is_fenced_in_slices(run: Run) -> None:
    async def work(world: World) -> None:
        leader = await world.lead(1)
        epochs = await three_brokers(world, leader, 2_500)
        assert memberships(leader.image, 1) > 3 * MAX_RECORDS_PER_SLICE
        since = world.nodes[1].raft.next_offset
        asked = asyncio.ensure_future(heartbeat(leader, 1, epochs[1], want_fence=True))
        await asyncio.sleep(0)
        assert await world.agreed(create(leader, "meanwhile")) == 0
        fenced = await world.agreed(asked)
        assert isinstance(fenced, lifecycle.BrokerHeartbeatResponse)
        assert fenced.is_fenced
        assert largest_batch(world, since) <= MAX_RECORDS_PER_SLICE + 1
        assert leaderships(leader.image, 1) == memberships(leader.image, 1) == 0
        await world.agreed(heartbeat(leader, 1, epochs[1]))
        assert leader.image.broker_is_active(1)

    run(work)


def test_another_controller_finishes_what_one_has_begun(run: Run) -> None:
    async def work(world: World) -> None:
        leader = await world.lead(1)
        epochs = await three_brokers(world, leader, 2_500)
        since = world.nodes[1].raft.next_offset
        asked = asyncio.ensure_future(heartbeat(leader, 1, epochs[1], want_shut_down=True))
        while world.nodes[1].raft.next_offset == since:
            await asyncio.sleep(0)
        # The first slice gets through, the others do not.
        world.quorum.replicate(2, everything=True)
        await asyncio.sleep(0)
        world.quorum.elect(2)
        await world.pass_time(1.0)
        assert (await asked).error_code == ErrorCode.NOT_CONTROLLER
        second = world.controller(2)
        assert second.image.brokers[1].in_controlled_shutdown
        assert leaderships(second.image, 1) == memberships(second.image, 1) == 0
        for broker_id in (2, 3):
            await world.agreed(heartbeat(second, broker_id, epochs[broker_id]))
        gone = await world.agreed(heartbeat(second, 1, epochs[1], want_shut_down=True))
        assert isinstance(gone, lifecycle.BrokerHeartbeatResponse)
        assert gone.should_shut_down

    run(work)


def test_a_shutdown_waits_until_others_have_seen_its_last_slice(run: Run) -> None:
    async def work(world: World) -> None:
        leader = await world.lead(1)
        epochs = await three_brokers(world, leader, 2_500)
        asked = await world.agreed(heartbeat(leader, 1, epochs[1], want_shut_down=True))
        assert isinstance(asked, lifecycle.BrokerHeartbeatResponse)
        assert not asked.should_shut_down
        assert leaderships(leader.image, 1) == 0
        last = leader.image.offset
        for broker_id in (2, 3):
            await world.agreed(
                heartbeat(leader, broker_id, epochs[broker_id], current_metadata_offset=last - 1)
            )
        assert not (await heartbeat(leader, 1, epochs[1], want_shut_down=True)).should_shut_down
        for broker_id in (2, 3):
            await world.agreed(heartbeat(leader, broker_id, epochs[broker_id], current_metadata_offset=last))
        gone = await world.agreed(heartbeat(leader, 1, epochs[1], want_shut_down=True))
        assert isinstance(gone, lifecycle.BrokerHeartbeatResponse)
        assert gone.should_shut_down

    run(work)


@pytest.mark.parametrize("clean", [True, False])
def test_a_new_life_of_a_broker_with_many_partitions(run: Run, clean: bool) -> None:
    async def work(world: World) -> None:
        leader = await world.lead(1)
        epochs = await three_brokers(world, leader, 2_500)
        # Its session is over, and nobody has fenced it yet.
        leader.heartbeats.remove(1)
        since = world.nodes[1].raft.next_offset
        previous = epochs[1] if clean else -1
        request = registration(1, b"n" * 16, previous_broker_epoch=previous)
        answer = await world.agreed(leader.register_broker(request, CONTEXT))
        assert isinstance(answer, lifecycle.BrokerRegistrationResponse)
        assert answer.error_code == 0
        assert largest_batch(world, since) <= MAX_RECORDS_PER_SLICE + 1
        assert memberships(leader.image, 1) == 0
        broker = leader.image.brokers[1]
        assert (broker.fenced, broker.incarnation_id) == (True, b"n" * 16)
        assert broker.epoch == answer.broker_epoch > epochs[1]

    run(work)


def test_a_broker_with_many_partitions_is_struck_off(run: Run) -> None:
    async def work(world: World) -> None:
        leader = await world.lead(1)
        await three_brokers(world, leader, 2_500)
        since = world.nodes[1].raft.next_offset
        request = lifecycle.UnregisterBrokerRequest(broker_id=1)
        answer = await world.agreed(leader.unregister_broker(request, CONTEXT))
        assert isinstance(answer, lifecycle.UnregisterBrokerResponse)
        assert answer.error_code == 0
        assert largest_batch(world, since) <= MAX_RECORDS_PER_SLICE + 1
        assert 1 not in leader.image.brokers
        assert leaderships(leader.image, 1) == memberships(leader.image, 1) == 0

    run(work)


def test_whoever_asked_may_leave_and_the_rest_is_done_all_the_same(run: Run) -> None:
    async def work(world: World) -> None:
        leader = await world.lead(1)
        epochs = await three_brokers(world, leader, 2_500)
        asked = asyncio.ensure_future(heartbeat(leader, 1, epochs[1], want_fence=True))
        await asyncio.sleep(0)
        asked.cancel()
        await world.pass_time(1.0)
        assert leader.image.brokers[1].fenced
        assert memberships(leader.image, 1) == 0

    run(work)


def test_leaders_of_all_partitions_are_elected_in_pieces(run: Run) -> None:
    async def work(world: World) -> None:
        leader = await world.lead(1)
        epochs = await three_brokers(world, leader, 1_500)
        preferred = {
            (topic.name, number): partition.preferred_replica
            for topic, number, partition in leader.image.partitions()
        }
        await world.agreed(heartbeat(leader, 1, epochs[1], want_fence=True))
        await world.agreed(heartbeat(leader, 1, epochs[1]))
        # Broker 1 is in no ISR, so nothing of it can be elected; what others lead for it stays.
        request = replication.ElectLeadersRequest(election_type=0, topic_partitions=None, timeout_ms=60_000)
        answer = await world.agreed(leader.elect_leaders(request, CONTEXT))
        assert isinstance(answer, replication.ElectLeadersResponse)
        assert [result.topic for result in answer.replica_election_results] == list(leader.image.topics)
        outcomes = {
            (result.topic, partition.partition_id): partition.error_code
            for result in answer.replica_election_results
            for partition in result.partition_result
        }
        assert outcomes == {
            place: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
            for place, broker in preferred.items()
            if broker == 1
        }
        # Now it is back in sync everywhere.
        changes = [
            r.PartitionChangeRecord(topic_id=topic.id, partition_id=number, isr=list(partition.replicas))
            for topic, number, partition in leader.image.partitions()
        ]
        await world.agreed(leader._runtime.submit(lambda image: ControllerResult(None, changes)))
        since = world.nodes[1].raft.next_offset
        answer = await world.agreed(leader.elect_leaders(request, CONTEXT))
        assert isinstance(answer, replication.ElectLeadersResponse)
        assert {
            (topic.name, number): partition.leader for topic, number, partition in leader.image.partitions()
        } == preferred
        assert largest_batch(world, since) <= MAX_RECORDS_PER_SLICE

    run(work)


def test_brokers_are_answered_while_a_topic_of_thousands_is_made_and_standbys_see_it_whole(run: Run) -> None:
    async def work(world: World) -> None:
        leader = await world.lead(1)
        epochs = await three_brokers(world, leader, 500)
        await world.same_images()
        since = world.nodes[1].raft.next_offset
        seen: set[int] = set()
        for node in world.nodes.values():
            node.publisher.subscribe(lambda image, _: seen.add(len(image.topics["big"].partitions)))
        asked = asyncio.ensure_future(create(leader, "big", partitions=9_000, factor=2))
        answered = 0
        await asyncio.sleep(0)
        for broker_id in cycle(epochs):
            beat = asyncio.ensure_future(heartbeat(leader, broker_id, epochs[broker_id]))
            await asyncio.sleep(0)
            if world.nodes[1].raft.next_offset > since:
                break
            assert beat.done(), "in the next turn of the loop"
            assert beat.result().error_code == 0
            assert "big" not in leader.image.topics
            answered += 1
        assert answered > 100
        assert await world.agreed(asked) == 0
        await world.same_images()
        assert largest_batch(world, since) == 9_001, "one batch, as in Kafka"
        assert seen == {9_000}

    run(work)


def test_a_topic_of_thousands_whose_controller_loses_its_leadership_is_not_made_at_all(run: Run) -> None:
    async def work(world: World) -> None:
        leader = await world.lead(1)
        await three_brokers(world, leader, 500)
        await world.same_images()
        since = world.nodes[1].raft.next_offset
        asked = [asyncio.ensure_future(create(leader, name, 4_000, 2)) for name in ("a", "b")]
        for _ in range(20):
            await asyncio.sleep(0)
        assert world.nodes[1].raft.next_offset == since, "it is being made"
        second = await world.lead(2)
        assert [await each for each in asked] == [ErrorCode.NOT_CONTROLLER] * 2
        assert await world.agreed(create(second, "c", 4_000, 2)) == 0
        await world.same_images()
        assert set(second.image.topics) == {"t0", "c"}

    run(work)


# --- kraft.version


class UpgradableRaft(SimulatedRaft):
    kraft_version = 0
    refuses = False

    async def upgrade_kraft_version(self, level: int, *, validate_only: bool = False) -> int | None:
        await asyncio.sleep(0)
        if self.refuses:
            raise KafkaError(ErrorCode.INVALID_UPDATE_VERSION, "not all of the voters support it")
        if not validate_only:
            self.asked_at = self.next_offset
            self.kraft_version = level
        return None


class UpgradableWorld(World):
    make_raft = UpgradableRaft


def test_kraft_version_goes_up_through_the_quorum(run: Run) -> None:
    async def work(world: World) -> None:
        leader = await world.lead(1)
        raft = world.nodes[1].raft
        assert isinstance(raft, UpgradableRaft)

        async def update(name: str, level: int, *, validate_only: bool = False) -> tuple[int, str | None]:
            wanted = [
                f.FeatureUpdateKey(feature="kraft.version", max_version_level=1, upgrade_type=1),
                f.FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=1),
            ]
            request = f.UpdateFeaturesRequest(feature_updates=wanted, validate_only=validate_only)
            answer = await world.agreed(leader.update_features(request, RequestContext(2)))
            assert isinstance(answer, f.UpdateFeaturesResponse)
            return answer.error_code, answer.error_message

        raft.refuses = True
        code, message = await update("group.version", 1)
        assert code == ErrorCode.INVALID_UPDATE_VERSION
        assert message is not None
        assert message.endswith("not all of the voters support it")
        raft.refuses = False
        assert (await update("group.version", 9))[0] == ErrorCode.INVALID_UPDATE_VERSION
        assert (await update("group.version", 1, validate_only=True))[0] == 0
        assert raft.kraft_version == 0, "all or none"
        assert (await update("group.version", 1))[0] == 0
        assert raft.kraft_version == 1
        assert raft.asked_at <= leader.image.offset, "the answer waits for a record behind it"
        refused = await world.controller(2).update_features(
            f.UpdateFeaturesRequest(feature_updates=[]), RequestContext(2)
        )
        assert refused.error_code == ErrorCode.NOT_CONTROLLER

    run(work, UpgradableWorld)


def test_a_decision_of_the_last_leadership_is_not_in_the_way_of_the_next(run: Run) -> None:
    async def work(world: World) -> None:
        leader = await world.lead(1)
        runtime = leader._runtime
        pending = runtime.submit(lambda image: ControllerResult("old", [r.NoOpRecord()]))
        read = runtime.submit(lambda image: ControllerResult("read"))
        again = await world.lead(1)
        assert again.active
        for future in (pending, read):
            with pytest.raises(KafkaError):
                await future

    run(work)
