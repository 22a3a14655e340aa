"""WriteTxnMarkers on the leader of a partition with followers: a marker counts when it is committed, and only then."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.group_world import ManualScheduler
from tests.support.one_partition import OnePartition

from ottla.model.errors import ErrorCode
from ottla.model.pending import Pending
from ottla.replication.partition import Partition
from ottla.server.transaction.markers import MarkerWriter
from ottla.storage.config import LogConfig
from ottla.wire.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

TIMEOUT_MS = 30_000


class World(OnePartition):
    """Node 1 leads in epoch 5; two of three have to be in sync."""

    def __init__(self, dir: Path) -> None:
        super().__init__(dir, config=LogConfig(min_insync_replicas=2))
        self.elect(1, 5)
        self.scheduler = ManualScheduler()
        self.writer = MarkerWriter(self.replicas, {}, self.scheduler, lambda: TIMEOUT_MS)

    def write(self) -> Pending[WriteTxnMarkersResponse]:
        topics = [WritableTxnMarkerTopic(name="orders", partition_indexes=[0])]
        marker = WritableTxnMarker(
            producer_id=7, producer_epoch=1, transaction_result=True, coordinator_epoch=0, topics=topics
        )
        return self.writer.write(WriteTxnMarkersRequest(markers=[marker]))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def outcome(answer: Pending[WriteTxnMarkersResponse]) -> ErrorCode:
    (marker,) = answer.result().markers
    return ErrorCode(marker.topics[0].partitions[0].error_code)


def test_a_marker_is_written_when_all_in_sync_have_it(world: World) -> None:
    answer = world.write()
    world.fetched(1, brokers=(2,))
    assert not answer.done
    world.fetched(1, brokers=(3,))
    assert outcome(answer) is ErrorCode.NONE


def led_elsewhere(world: World) -> None:
    world.elect(2, 6)


def led_again(world: World) -> None:
    world.elect(1, 6)


def gone(world: World) -> None:
    world.partition.gone()


@pytest.mark.parametrize("ends", [led_elsewhere, led_again, gone])
def test_a_marker_that_may_be_cut_off_is_not_written(world: World, ends: Callable[[World], Any]) -> None:
    answer = world.write()
    ends(world)
    assert outcome(answer) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    # What the next leader commits at that offset is not about this marker.
    world.log.update_high_watermark(1)
    assert outcome(answer) is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_too_few_in_sync_take_no_marker(world: World) -> None:
    world.elect(1, 6, isr=(1,))
    assert outcome(world.write()) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert world.log.log_end_offset == 0


def test_a_marker_that_is_not_committed_in_time(world: World) -> None:
    answer = world.write()
    world.scheduler.pass_ms(TIMEOUT_MS - 1)
    assert not answer.done
    world.scheduler.pass_ms(1)
    assert outcome(answer) is ErrorCode.REQUEST_TIMED_OUT
    world.fetched(1)
    assert outcome(answer) is ErrorCode.REQUEST_TIMED_OUT


def test_nobody_is_left_waiting_for_markers_that_were_not_committed_in_time(world: World) -> None:
    """They are sent again and again as long as the watermark stands still."""
    for _ in range(8):
        answer = world.write()
        world.scheduler.pass_ms(TIMEOUT_MS)
        assert outcome(answer) is ErrorCode.REQUEST_TIMED_OUT
    assert not world.partition._awaiting_high_watermark


def test_a_marker_that_fails_as_nobody_thought_is_answered(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an answer this broker, which asks itself without a time-out, would never send it again."""

    def append(*args: object, **options: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(Partition, "append", append)
        assert outcome(world.write()) is ErrorCode.UNKNOWN_SERVER_ERROR
    answer = world.write()
    world.fetched(1)
    assert outcome(answer) is ErrorCode.NONE
