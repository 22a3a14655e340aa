"""A whole controller in a directory: its life, its own work, and that the log says what it says."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.support.clock import ManualClock
from tests.unit.controller.support import registration, settings
from tests.unit.raft.support import LISTENERS, driver, format_directory, image_in
from tests.unit.raft.test_driver import NEW, fetch_request

from ottla.controller.controller import Controller
from ottla.controller.result import MAX_RECORDS_PER_USER_OP, ControllerResult, RequestContext
from ottla.metadata.image import EMPTY_IMAGE, ClusterImage, image_records
from ottla.metadata.loader import MetadataLoader, MetadataPublisher
from ottla.metadata.records import NO_LEADER, FeatureLevelRecord, NoOpRecord
from ottla.metadata.serde import read_record_batch
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import random_uuid
from ottla.raft.image_loader import ImageLoader
from ottla.raft.metadata_log import MetadataLogConfig
from ottla.security.principal import KafkaPrincipal
from ottla.security.quotas import ClientQuotaManager, QuotaType
from ottla.wire.messages.admin import cluster as f
from ottla.wire.messages.admin import configs as c
from ottla.wire.messages.admin import topics as t
from ottla.wire.messages.nodes import broker_lifecycle as lifecycle
from ottla.wire.messages.nodes import replication
from ottla.wire.messages.nodes.replication import ElectLeadersRequest
from ottla.wire.messages.producers import AllocateProducerIdsRequest
from ottla.wire.messages.security import acls

CONTEXT = RequestContext(7)
Work = Callable[[Controller], Awaitable[None]]


def make_controller(
    directory: Path,
    clock: ManualClock,
    config: MetadataLogConfig | None = None,
    failures: list[Exception] | None = None,
    quotas: ClientQuotaManager | None = None,
) -> Controller:
    random = Random(7)
    raft = driver(directory, clock, config)
    loader = ImageLoader(
        raft,
        MetadataPublisher(),
        directory=directory / "__cluster_metadata-0",
        on_failure=failures.append if failures is not None else lambda error: None,
    )
    return Controller(
        raft,
        loader,
        settings(log_dirs=str(directory)),
        clock,
        metadata_dir=directory,
        listeners=LISTENERS,
        random=random,
        new_uuid=lambda: random.randbytes(16),
        quotas=quotas,
    )


async def with_controller(
    directory: Path,
    work: Work,
    clock: ManualClock | None = None,
    config: MetadataLogConfig | None = None,
    failures: list[Exception] | None = None,
    quotas: ClientQuotaManager | None = None,
) -> ClusterImage:
    controller = make_controller(directory, clock or ManualClock(1_000_000), config, failures, quotas)
    try:
        controller.raft.load()
        await controller.start()
        await work(controller)
    finally:
        await controller.stop()
    return controller.image


def run(directory: Path, work: Work, **options: object) -> ClusterImage:
    return asyncio.run(with_controller(directory, work, **options))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    format_directory(tmp_path)
    return tmp_path


async def nothing(controller: Controller) -> None:
    assert controller.active


async def broker_up(controller: Controller, previous_epoch: int = -1) -> int:
    request = registration(1, random_uuid(), previous_broker_epoch=previous_epoch)
    answer = await controller.register_broker(request, CONTEXT)
    assert answer.error_code == 0
    await heartbeat(controller, answer.broker_epoch)
    assert controller.image.broker_is_active(1)
    return answer.broker_epoch


async def heartbeat(
    controller: Controller, epoch: int, want_shut_down: bool = False
) -> lifecycle.BrokerHeartbeatResponse:
    request = lifecycle.BrokerHeartbeatRequest(
        broker_id=1,
        broker_epoch=epoch,
        current_metadata_offset=controller.image.offset,
        want_fence=False,
        want_shut_down=want_shut_down,
    )
    return await controller.broker_heartbeat(request, CONTEXT)


async def create(controller: Controller, *names: str, partitions: int = 1) -> list[int]:
    request = t.CreateTopicsRequest(
        topics=[
            t.CreatableTopic(
                name=name, num_partitions=partitions, replication_factor=1, assignments=[], configs=[]
            )
            for name in names
        ]
    )
    return [answer.error_code for answer in (await controller.create_topics(request, CONTEXT)).topics]


def from_snapshot(image: ClusterImage) -> ClusterImage:
    loader = MetadataLoader(EMPTY_IMAGE)
    loader.replay(list(image_records(image)), 0, 0, 0)
    loader.advance(image.offset, image.epoch, image.timestamp_ms)
    loader.publish()
    return loader.image


def same(first: ClusterImage, second: ClusterImage) -> bool:
    return list(image_records(first)) == list(image_records(second))


def test_a_fresh_cluster_has_its_features_and_its_controller(directory: Path) -> None:
    image = run(directory, nothing)
    assert image.metadata_version == 30
    assert image.elr_enabled
    assert image.controllers[1].listeners["CONTROLLER"].port == LISTENERS[0].port


def test_the_log_says_what_the_controller_said(directory: Path) -> None:
    async def work(controller: Controller) -> None:
        epoch = await broker_up(controller)
        assert await create(controller, "a", "b", partitions=3) == [0, 0]
        assert await create(controller, "a") == [ErrorCode.TOPIC_ALREADY_EXISTS]
        alter = c.IncrementalAlterConfigsRequest(
            resources=[
                c.IncrementalAlterConfigsResource(
                    resource_type=2,
                    resource_name="a",
                    configs=[
                        c.IncrementalAlterableConfig(name="retention.ms", config_operation=0, value="9")
                    ],
                )
            ],
            validate_only=False,
        )
        await controller.incremental_alter_configs(alter, CONTEXT)
        ids = await controller.allocate_producer_ids(
            AllocateProducerIdsRequest(broker_id=1, broker_epoch=epoch), CONTEXT
        )
        assert (ids.producer_id_start, ids.producer_id_len) == (0, 1000)
        delete = t.DeleteTopicsRequest(topic_names=["b"], timeout_ms=1)
        await controller.delete_topics(delete, CONTEXT)

    live = run(directory, work)

    async def compare(controller: Controller) -> None:
        loaded = image_in(controller.raft.log)
        assert {t.name: dict(t.partitions) for t in loaded.topics.values()} == {
            t.name: dict(t.partitions) for t in live.topics.values()
        }
        assert dict(loaded.configs) == dict(live.configs)
        assert loaded.next_producer_id == live.next_producer_id
        assert loaded.brokers == live.brokers

    run(directory, compare)
    assert same(from_snapshot(live), live)


def test_a_snapshot_and_the_log_after_it_give_the_live_image(directory: Path) -> None:
    config = MetadataLogConfig(snapshot_bytes=2_000, segment_bytes=1 << 20, retention_bytes=0)

    async def work(controller: Controller) -> None:
        await broker_up(controller)
        for number in range(40):
            assert await create(controller, f"t{number}", partitions=2) == [0]
            await controller.tick()
        await controller.raft.maintain()
        assert controller.raft.log.start_offset > 0
        assert len(controller.raft.log.snapshots) == 1
        await create(controller, "after")

    live = run(directory, work, config=config)

    async def compare(controller: Controller) -> None:
        loaded = image_in(controller.raft.log)
        # The controller that has just started has registered itself anew; all else is as it was.
        assert dict(loaded.topics) == dict(live.topics)
        assert loaded.brokers == live.brokers
        assert loaded.features == live.features

    run(directory, compare, config=config)


def test_a_clean_restart_keeps_leaders_without_recovery(directory: Path) -> None:
    epochs: list[int] = []

    async def first(controller: Controller) -> None:
        epochs.append(await broker_up(controller))
        await create(controller, "t")
        assert not (await heartbeat(controller, epochs[0], want_shut_down=True)).should_shut_down
        assert (await heartbeat(controller, epochs[0], want_shut_down=True)).should_shut_down

    async def second(controller: Controller) -> None:
        await broker_up(controller, epochs[0])
        partition = controller.image.partition("t", 0)
        assert partition is not None
        assert (partition.leader, partition.isr, partition.leader_recovery_state) == (1, (1,), 0)

    run(directory, first)
    run(directory, second)


def test_after_a_crash_the_broker_is_back_at_once(directory: Path) -> None:
    async def first(controller: Controller) -> None:
        await broker_up(controller)
        await create(controller, "t")

    async def second(controller: Controller) -> None:
        assert not controller.image.brokers[1].fenced, "nobody has fenced it"
        await broker_up(controller)
        partition = controller.image.partition("t", 0)
        assert partition is not None
        assert partition.leader == 1

    run(directory, first)
    run(directory, second)


def test_a_silent_broker_is_fenced(directory: Path) -> None:
    clock = ManualClock(1_000_000)

    async def work(controller: Controller) -> None:
        epoch = await broker_up(controller)
        await create(controller, "t")
        clock.advance(8_999)
        await controller.tick()
        assert controller.image.broker_is_active(1)
        clock.advance(1)
        await controller.tick()
        assert controller.image.brokers[1].fenced
        partition = controller.image.partition("t", 0)
        assert partition is not None
        assert partition.leader == -1
        await heartbeat(controller, epoch)
        assert controller.image.broker_is_active(1), "it is let in when it is heard from again"

    run(directory, work, clock=clock)


def test_an_idle_log_grows_only_if_somebody_follows_it(directory: Path) -> None:
    clock = ManualClock(1_000_000)

    async def work(controller: Controller) -> None:
        end = controller.raft.log.end_offset
        clock.advance(600)
        await controller.tick()
        assert controller.raft.log.end_offset == end
        await controller.raft.handle(fetch_request(controller.raft, end), NEW)
        clock.advance(600)
        await controller.tick()
        assert controller.raft.log.end_offset == end + 1
        (last,) = read_record_batch(next(iter(controller.raft.log.batches(end))))
        assert last == NoOpRecord()

    run(directory, work, clock=clock)


def test_subscribers_see_every_change_in_order(directory: Path) -> None:
    offsets: list[int] = []

    async def work(controller: Controller) -> None:
        controller.publisher.subscribe(lambda image, delta: offsets.append(image.offset))
        await broker_up(controller)
        await asyncio.gather(*(create(controller, f"t{n}") for n in range(20)))
        assert offsets == sorted(set(offsets))
        assert offsets[-1] == controller.image.offset

    run(directory, work)


def test_a_dead_disk_stops_the_controller_and_nothing_more_is_promised(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures: list[Exception] = []

    async def work(controller: Controller) -> None:
        await broker_up(controller)
        before = controller.image

        def failing(now_ms: int) -> None:
            raise OSError("disk is gone")

        monkeypatch.setattr(controller.raft.log, "flush", failing)
        assert await create(controller, "lost") == [ErrorCode.NOT_CONTROLLER]
        assert controller.image is before
        assert not controller.active
        assert len(failures) == 1
        assert await create(controller, "later") == [ErrorCode.NOT_CONTROLLER]
        answer = await controller.elect_leaders(ElectLeadersRequest(topic_partitions=None), CONTEXT)
        assert answer.error_code == ErrorCode.NOT_CONTROLLER

    run(directory, work, failures=failures)


def test_whole_requests_are_refused_in_their_own_form(directory: Path) -> None:
    async def work(controller: Controller) -> None:
        many = [
            t.CreatableTopic(
                name=f"t{n}", num_partitions=6000, replication_factor=1, assignments=[], configs=[]
            )
            for n in range(2)
        ]
        answer = await controller.create_topics(t.CreateTopicsRequest(topics=many), CONTEXT)
        assert {a.error_code for a in answer.topics} == {ErrorCode.POLICY_VIOLATION}
        hasty = t.CreateTopicsRequest(topics=many[:1], timeout_ms=0)
        answer = await controller.create_topics(hasty, CONTEXT)
        assert {a.error_code for a in answer.topics} == {ErrorCode.REQUEST_TIMED_OUT}
        unknown = lifecycle.UnregisterBrokerRequest(broker_id=9)
        gone = await controller.unregister_broker(unknown, CONTEXT)
        assert gone.error_code == ErrorCode.BROKER_ID_NOT_REGISTERED
        stale = await controller.allocate_producer_ids(
            AllocateProducerIdsRequest(broker_id=9, broker_epoch=1), CONTEXT
        )
        assert stale.error_code == ErrorCode.STALE_BROKER_EPOCH
        foreign = await controller.register_broker(registration(1, cluster_id="x"), CONTEXT)
        assert foreign.error_code == ErrorCode.INCONSISTENT_CLUSTER_ID

    run(directory, work)


def test_after_every_cut_of_the_log_the_image_is_one_that_was(directory: Path) -> None:
    """Crash anywhere: what was acknowledged by then is there, and no decision is there by half."""
    acknowledged: list[tuple[int, frozenset[tuple[str, int]]]] = []

    def shape(image: ClusterImage) -> frozenset[tuple[str, int]]:
        return frozenset((name, len(topic.partitions)) for name, topic in image.topics.items())

    async def work(controller: Controller) -> None:
        log = controller.raft.log.directory / "00000000000000000000.log"
        await broker_up(controller)
        acknowledged.append((log.stat().st_size, shape(controller.image)))
        for number in range(6):
            await create(controller, f"t{number}", partitions=4)
            acknowledged.append((log.stat().st_size, shape(controller.image)))
        await controller.delete_topics(t.DeleteTopicsRequest(topic_names=["t0"], timeout_ms=1), CONTEXT)
        acknowledged.append((log.stat().st_size, shape(controller.image)))

    run(directory, work)
    partition = directory / "__cluster_metadata-0"
    whole = (partition / "00000000000000000000.log").read_bytes()
    shapes = [s for _, s in acknowledged]
    start = acknowledged[0][0]
    for cut in range(start, len(whole), 11):
        for path in partition.iterdir():
            if path.suffix in (".index", ".timeindex", ".snapshot") or "leader-epoch" in path.name:
                path.unlink()
        (partition / "00000000000000000000.log").write_bytes(whole[:cut])
        raft = driver(directory)
        raft.load()
        found = shape(image_in(raft.log))
        raft.log.close()
        at_least = max(n for n, (size, _) in enumerate(acknowledged) if size <= cut)
        assert found in shapes
        assert shapes.index(found) >= at_least


def test_a_failed_snapshot_is_not_the_end(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock(1_000_000)

    async def work(controller: Controller) -> None:
        await broker_up(controller)

        def full(path: Path, batches: object) -> int:
            raise OSError("no space")

        monkeypatch.setattr("ottla.raft.snapshots.write_checkpoint", full)
        clock.advance(3_600_000)
        await heartbeat(controller, controller.image.brokers[1].epoch)
        await controller.tick()
        assert len(controller.raft.log.snapshots) == 1
        monkeypatch.undo()
        await controller.tick()
        assert len(controller.raft.log.snapshots) == 2

    run(directory, work, clock=clock)


def test_a_directory_of_a_newer_release_is_refused(directory: Path) -> None:
    async def upgrade(controller: Controller) -> None:
        newer = FeatureLevelRecord(name="metadata.version", feature_level=31)
        await controller._runtime.submit(lambda image: ControllerResult(None, [newer]))

    run(directory, upgrade)
    with pytest.raises(KafkaError, match=r"metadata\.version is at level 31; this release supports 7-30"):
        run(directory, nothing)


def test_a_controller_that_never_started_can_be_stopped(tmp_path: Path) -> None:
    async def main() -> None:
        controller = make_controller(tmp_path / "none", ManualClock(1))
        with pytest.raises(OSError, match="none"):
            controller.raft.load()
        await controller.stop()

    asyncio.run(main())


def test_the_version_of_the_quorum_is_tried_before_it_is_raised(directory: Path) -> None:
    async def work(controller: Controller) -> None:
        update = f.FeatureUpdateKey(feature="kraft.version", max_version_level=1, upgrade_type=1)
        request = f.UpdateFeaturesRequest(feature_updates=[update])
        answer = await controller.update_features(request, RequestContext(2))
        assert (answer.error_code, answer.error_message) == (0, None)

    run(directory, work)


async def led_by_one_of_two(controller: Controller) -> None:
    """Brokers 1 and 2 have partition t-0; 2 has fallen behind and 1 is gone."""
    epochs = {}
    for broker_id in (1, 2):
        answer = await controller.register_broker(registration(broker_id, random_uuid()), CONTEXT)
        epochs[broker_id] = answer.broker_epoch
        await heartbeat_of(controller, broker_id)
    assignment = t.CreatableReplicaAssignment(partition_index=0, broker_ids=[1, 2])
    topic = t.CreatableTopic(
        name="t", num_partitions=-1, replication_factor=-1, assignments=[assignment], configs=[]
    )
    created = await controller.create_topics(t.CreateTopicsRequest(topics=[topic]), CONTEXT)
    asked = replication.AlterPartitionRequestPartitionData(
        partition_index=0,
        leader_epoch=0,
        partition_epoch=0,
        new_isr_with_epochs=[replication.BrokerState(broker_id=1, broker_epoch=epochs[1])],
    )
    data = replication.AlterPartitionRequestTopicData(topic_id=created.topics[0].topic_id, partitions=[asked])
    request = replication.AlterPartitionRequest(broker_id=1, broker_epoch=epochs[1], topics=[data])
    await controller.alter_partition(request, RequestContext(3))
    heard_ms = controller.last_heard_ms(1, epochs[1])
    assert heard_ms is not None
    assert await controller.fence_gone(1, epochs[1], heard_ms)
    assert leader(controller) == NO_LEADER


def test_a_registration_that_no_batch_has_room_for_is_refused(directory: Path) -> None:
    failures: list[Exception] = []

    async def work(controller: Controller) -> None:
        listeners = [
            lifecycle.Listener(name=f"l{number}", host="h" * 32_000, port=1, security_protocol=0)
            for number in range(300)
        ]
        refused = await controller.register_broker(registration(1, listeners=listeners), CONTEXT)
        assert refused.error_code == ErrorCode.POLICY_VIOLATION
        taken = await controller.register_broker(registration(1), CONTEXT)
        assert taken.error_code == ErrorCode.NONE

    assert set(run(directory, work, failures=failures).brokers) == {1}
    assert failures == []


def leader(controller: Controller) -> int:
    return controller.image.topics_by_name["t"].partitions[0].leader


def permission(name: str, resource: tuple[int, str]) -> c.IncrementalAlterConfigsRequest:
    entry = c.IncrementalAlterableConfig(name=name, config_operation=0, value="true")
    change = c.IncrementalAlterConfigsResource(
        resource_type=resource[0], resource_name=resource[1], configs=[entry]
    )
    return c.IncrementalAlterConfigsRequest(resources=[change], validate_only=False)


@pytest.mark.parametrize("resource", [(2, "t"), (4, "")], ids=["topic", "cluster"])
def test_whoever_permits_unclean_elections_has_one_at_once(
    directory: Path, resource: tuple[int, str]
) -> None:
    async def work(controller: Controller) -> None:
        await led_by_one_of_two(controller)
        await controller.tick()
        assert leader(controller) == NO_LEADER
        request = permission("unclean.leader.election.enable", resource)
        await controller.incremental_alter_configs(request, CONTEXT)
        async with asyncio.timeout(120):
            while leader(controller) == NO_LEADER:
                await asyncio.sleep(0)
        assert leader(controller) == 2

    run(directory, work)


def test_partitions_without_a_leader_are_looked_at_from_time_to_time(directory: Path) -> None:
    """unclean.leader.election.interval.ms: a permission may also come where nobody was asked, from a file."""
    clock = ManualClock(1_000_000)

    async def work(controller: Controller) -> None:
        await led_by_one_of_two(controller)
        clock.advance(299_999)
        await heartbeat_of(controller, 2)
        permitted = settings(unclean_leader_election_enable="true", log_dirs=str(directory))
        controller.settings = permitted
        await controller.tick()
        assert leader(controller) == NO_LEADER
        clock.advance(1)
        await controller.tick()
        assert leader(controller) == 2

    run(directory, work, clock=clock)


async def heartbeat_of(controller: Controller, broker_id: int) -> None:
    request = lifecycle.BrokerHeartbeatRequest(
        broker_id=broker_id,
        broker_epoch=controller.image.brokers[broker_id].epoch,
        current_metadata_offset=controller.image.offset,
        want_fence=False,
        want_shut_down=False,
    )
    assert (await controller.broker_heartbeat(request, CONTEXT)).error_code == 0


def test_rules_are_written_found_again_and_removed(directory: Path) -> None:
    def rule(name: str) -> acls.AclCreation:
        return acls.AclCreation(
            resource_type=2,
            resource_name=name,
            principal="User:alice",
            host="*",
            operation=3,
            permission_type=3,
        )

    async def create_rules(controller: Controller, *names: str) -> set[int]:
        request = acls.CreateAclsRequest(creations=[rule(name) for name in names])
        response = await controller.create_acls(request, CONTEXT)
        assert len(response.results) == len(names)
        return {result.error_code for result in response.results}

    async def write(controller: Controller) -> None:
        assert await create_rules(controller, "a", "b", "a", "") == {0, ErrorCode.INVALID_REQUEST}
        too_many = (f"t{n}" for n in range(MAX_RECORDS_PER_USER_OP + 1))
        assert await create_rules(controller, *too_many) == {ErrorCode.POLICY_VIOLATION}
        assert await create_rules(controller, "b", "c") == {0}

    async def remove(controller: Controller) -> None:
        assert len(controller.image.acls) == 3
        wanted = acls.DeleteAclsFilter(
            resource_type_filter=1,
            resource_name_filter="b",
            pattern_type_filter=1,
            principal_filter=None,
            host_filter=None,
            operation=1,
            permission_type=1,
        )
        response = await controller.delete_acls(acls.DeleteAclsRequest(filters=[wanted]), CONTEXT)
        assert [acl.resource_name for acl in response.filter_results[0].matching_acls] == ["b"]

    run(directory, write)
    image = run(directory, remove)
    assert sorted(record.resource_name for record in image.acls.values()) == ["a", "c"]
    assert from_snapshot(image).acl_ids == image.acl_ids


# --- quotas (KIP-599)


def by(user: str | None, version: int) -> RequestContext:
    return RequestContext(
        version, principal=None if user is None else KafkaPrincipal("User", user), client_id="c"
    )


def creating(name: str, partitions: int) -> t.CreateTopicsRequest:
    topic = t.CreatableTopic(
        name=name, num_partitions=partitions, replication_factor=1, assignments=[], configs=[]
    )
    return t.CreateTopicsRequest(topics=[topic])


def test_changes_of_topics_have_a_quota_that_is_strict_by_version(directory: Path) -> None:
    clock = ManualClock(1_000_000)
    quotas = ClientQuotaManager(QuotaType.CONTROLLER_MUTATION)
    quotas.set_quota((("user", "alice"),), 1.0)  # eleven at once

    async def work(controller: Controller) -> None:
        await broker_up(controller)

        async def asked(answering: Any) -> tuple[int, int]:
            answer = await answering
            (item,) = getattr(answer, "topics", None) or getattr(answer, "results", None) or answer.responses
            return item.error_code, answer.throttle_time_ms

        refused = ErrorCode.THROTTLING_QUOTA_EXCEEDED
        assert await asked(controller.create_topics(creating("a", 14), by("alice", 6))) == (0, 0)
        assert await asked(controller.create_topics(creating("b", 1), by("alice", 6))) == (refused, 3_000)
        grow = t.CreatePartitionsRequest(
            topics=[t.CreatePartitionsTopic(name="a", count=15, assignments=None)], timeout_ms=1
        )
        delete = t.DeleteTopicsRequest(topic_names=["a"], timeout_ms=1)
        assert await asked(controller.create_partitions(grow, by("alice", 3))) == (refused, 3_000)
        assert await asked(controller.delete_topics(delete, by("alice", 5))) == (refused, 3_000)
        # Others are asked for nothing, nor are brokers in their own name.
        assert await asked(controller.create_topics(creating("c", 99), by("bob", 7))) == (0, 0)
        assert await asked(controller.create_topics(creating("d", 99), by(None, 7))) == (0, 0)
        # Whoever does not know that error is told to wait.
        assert await asked(controller.create_topics(creating("e", 1), by("alice", 5))) == (0, 4_000)
        assert await asked(controller.create_partitions(grow, by("alice", 2))) == (0, 5_000)
        assert await asked(controller.delete_topics(delete, by("alice", 4))) == (0, 20_000)
        clock.advance(20_000)
        assert await asked(controller.create_topics(creating("b", 1), by("alice", 6))) == (0, 0)

    image = run(directory, work, clock=clock, quotas=quotas)
    assert set(image.topics) == {"b", "c", "d", "e"}


def test_a_decision_that_has_to_wait_counts_once(directory: Path) -> None:
    """What is decided while another decision is under way is looked at before its turn comes."""
    quotas = ClientQuotaManager(QuotaType.CONTROLLER_MUTATION)
    quotas.set_quota((("user", "alice"),), 1.0)

    async def work(controller: Controller) -> None:
        await broker_up(controller)
        await controller.create_topics(creating("a", 4), by(None, 6))
        many = [
            asyncio.ensure_future(controller.create_topics(creating(f"m{n}", 2_000), by(None, 6)))
            for n in range(3)
        ]
        delete = t.DeleteTopicsRequest(topic_names=["a"], timeout_ms=1)
        await controller.delete_topics(delete, by("alice", 5))
        await asyncio.gather(*many)
        quota = quotas.mutation_quota(KafkaPrincipal("User", "alice"), "c", 1_000_000, strict=False)
        quota.record(11 - 4, 1_000_000)
        assert quota.throttle_ms(1_000_000) == 0
        quota.record(1, 1_000_000)
        assert quota.throttle_ms(1_000_000) == 1_000

    run(directory, work, quotas=quotas)
