"""Which replica a consumer is sent to, and what a selector is shown."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.fetch_world import FOLLOWER, NODE, OTHER, World, asked, fetch_request
from tests.unit.server.handlers.test_fetch_followers import answer, only, partitions, show

from ottla.config.errors import ConfigError
from ottla.metadata.image import ClusterImage
from ottla.metadata.registrations import BrokerRegistration, Endpoint
from ottla.model.ids import TopicPartition, Uuid
from ottla.replication.replica_selector import (
    ClientMetadata,
    LeaderSelector,
    PartitionView,
    RackAwareReplicaSelector,
    ReplicaSelection,
    ReplicaSelector,
    ReplicaView,
    load_selector,
)

APACHE = "org.apache.kafka.common.replica"
RACKS = {NODE: "a", FOLLOWER: "b", OTHER: "b"}


def image(fenced: tuple[int, ...] = ()) -> ClusterImage:
    brokers = {
        broker: BrokerRegistration(
            broker,
            7,
            Uuid(bytes(16)),
            {"PLAINTEXT": Endpoint("PLAINTEXT", f"host{broker}", 9092, 0)},
            {},
            rack=rack,
            fenced=broker in fenced,
        )
        for broker, rack in RACKS.items()
    }
    return replace(ClusterImage(), brokers=brokers)


class Seen:
    """A selector of the operator's own."""

    asked: list[tuple[TopicPartition, ClientMetadata, PartitionView]]
    configs: Mapping[str, str]

    def __init__(self) -> None:
        self.asked = []

    def configure(self, configs: Mapping[str, str]) -> None:
        self.configs = configs

    def select(
        self, topic_partition: TopicPartition, client: ClientMetadata, partition: PartitionView
    ) -> ReplicaView | None:
        self.asked.append((topic_partition, client, partition))
        if client.rack_id == "broken":
            raise LookupError("no such rack")
        return max(partition.replicas, key=lambda replica: replica.endpoint.id)


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A partition with one committed record, and followers of which one lags."""
    world = World(tmp_path)
    partition = world.host(0)
    world.append(partition)
    show(partition, OTHER, 1)
    show(partition, FOLLOWER, 1)
    world.append(partition)
    show(partition, OTHER, 2)
    return world


def use(world: World, selector: ReplicaSelector, fenced: tuple[int, ...] = ()) -> None:
    world.services.replica_selection = ReplicaSelection(selector, lambda: image(fenced), RACKS[NODE])


def preferred(world: World, rack_id: str, offset: int = 0, version: int = 17) -> int:
    request = fetch_request(asked(0, offset), session_epoch=-1, rack_id=rack_id, max_wait_ms=0)
    found = only(answer(world, request, version))
    assert bool(found.records) == (found.preferred_read_replica < 0 and offset < 1)
    assert (found.high_watermark, found.log_start_offset) == (1, 0)
    return found.preferred_read_replica


def test_by_rack_it_is_the_replica_there_that_has_most(world: World) -> None:
    use(world, RackAwareReplicaSelector())
    assert preferred(world, "b") == OTHER
    assert preferred(world, "b", offset=2) == OTHER
    assert preferred(world, "a") == -1  # this leader's own
    assert preferred(world, "c") == -1
    assert preferred(world, "") == -1


def test_one_that_is_fenced_or_not_in_sync_or_does_not_have_the_offset_is_not_chosen(world: World) -> None:
    use(world, RackAwareReplicaSelector(), fenced=(OTHER,))
    assert preferred(world, "b") == FOLLOWER
    assert preferred(world, "b", offset=2) == -1
    use(world, RackAwareReplicaSelector())
    partition = world.replicas.hosted("orders", 0)
    assert partition is not None
    world.become(partition, NODE, (NODE, FOLLOWER))
    assert preferred(world, "b") == FOLLOWER


def test_a_selector_sees_who_reads_and_what_there_is(world: World) -> None:
    selector = Seen()
    use(world, selector)
    assert preferred(world, "") == OTHER  # also without a rack, and not by the fast path
    ((topic_partition, client, view),) = selector.asked
    assert topic_partition == TopicPartition("orders", 0)
    assert client == ClientMetadata("", "client", "127.0.0.1", "User:ANONYMOUS", "PLAINTEXT")
    assert {replica.endpoint.id: replica.log_end_offset for replica in view.replicas} == {
        NODE: 2,
        FOLLOWER: 1,
        OTHER: 2,
    }
    assert view.leader.time_since_last_caught_up_ms == 0
    assert view.leader.endpoint.host == "host1"


def test_a_selector_that_raises_leaves_the_consumer_to_the_leader(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    use(world, Seen())
    with caplog.at_level(logging.ERROR, "ottla.replication"):
        assert preferred(world, "broken") == -1
    (line,) = caplog.records
    assert line.getMessage() == "Seen failed for orders-0: no such rack"


def test_only_consumers_that_understand_it_are_sent_elsewhere(world: World) -> None:
    selector = Seen()
    use(world, selector)
    request = fetch_request(asked(0), session_epoch=-1, max_wait_ms=0)
    request.topics[0].topic = "orders"
    assert only(answer(world, request, 10)).records
    follower = fetch_request(asked(0), session_epoch=-1, replica=FOLLOWER)
    assert only(answer(world, follower)).records
    assert not selector.asked


def test_a_session_is_told_with_every_fetch_and_at_once(world: World) -> None:
    use(world, RackAwareReplicaSelector())
    request = fetch_request(asked(0, 2), session_epoch=0, rack_id="b")
    opened = answer(world, request)
    assert only(opened).preferred_read_replica == OTHER
    again = fetch_request(session_id=opened.session_id, session_epoch=1, rack_id="b")
    assert only(answer(world, again)).preferred_read_replica == OTHER
    # For a moment there is nobody, and nothing of the partition has moved when there is again.
    use(world, RackAwareReplicaSelector(), fenced=(OTHER,))
    third = fetch_request(session_id=opened.session_id, session_epoch=2, rack_id="b", max_wait_ms=0)
    told = only(answer(world, third))
    assert (told.preferred_read_replica, bool(told.records), told.high_watermark) == (-1, False, 1)
    use(world, RackAwareReplicaSelector())
    fourth = fetch_request(session_id=opened.session_id, session_epoch=3, rack_id="b")
    assert only(answer(world, fourth)).preferred_read_replica == OTHER


def test_with_its_leader_in_the_rack_a_session_looks_at_news_only(world: World) -> None:
    use(world, RackAwareReplicaSelector())
    opened = answer(world, fetch_request(asked(0, 2), session_epoch=0, rack_id="a", max_wait_ms=0))
    session = world.sessions.session(opened.session_id)
    assert session is not None
    assert not session.news
    again = fetch_request(session_id=opened.session_id, session_epoch=1, rack_id="a", max_wait_ms=0)
    assert not partitions(answer(world, again))


def test_selectors_are_named_as_in_kafka_or_by_import_path() -> None:
    assert load_selector(None, {}) is None
    assert isinstance(load_selector(f"{APACHE}.RackAwareReplicaSelector", {}), RackAwareReplicaSelector)
    assert isinstance(load_selector(f"{APACHE}.LeaderSelector", {}), LeaderSelector)
    own = load_selector(f"{__name__}:Seen", {"broker.rack": "a"})
    assert type(own).__name__ == "Seen"
    assert getattr(own, "configs", None) == {"broker.rack": "a"}


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("Nearest", "no module is named"),
        ("no.such.Selector", "No module named 'no'"),
        ("pathlib:PurePath", "the class has no method select"),
    ],
)
def test_a_class_that_is_no_selector_is_an_error_of_the_configuration(path: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        load_selector(path, {})
