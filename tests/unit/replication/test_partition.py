"""A partition's high watermark where a topic asks for flushes: nobody sees what a crash of the machine may take."""

from pathlib import Path

import pytest
from tests.support.partition_world import PartitionWorld
from tests.unit.storage.log_support import NOW, batch, open_log

from ottla.metadata.registrations import PartitionRegistration
from ottla.model.errors import ErrorCode
from ottla.model.ids import TopicPartition, Uuid
from ottla.replication.partition import Partition
from ottla.storage.config import LogConfig
from ottla.storage.log.log import Log

NODE = 1
TOPIC_ID = Uuid(bytes(range(16)))


def registration(leader: int = NODE, epoch: int = 0) -> PartitionRegistration:
    return PartitionRegistration(
        (NODE,),
        (TOPIC_ID,),
        (NODE,),
        (),
        (),
        leader=leader,
        leader_recovery_state=0,
        leader_epoch=epoch,
        partition_epoch=0,
    )


def led(log: Log, epoch: int = 0) -> Partition:
    partition = Partition(TopicPartition("orders", 0), TOPIC_ID, log, PartitionWorld(NODE))
    partition.become(registration(epoch=epoch))
    return partition


def write(partition: Partition) -> int:
    """Append without a flush, as a request does that has to flush first; the end offset."""
    partition.append(batch(b"x"), -1, NOW, commits=False)
    return partition.log.log_end_offset


def test_a_flush_shows_what_it_put_on_the_disk_and_no_more(tmp_path: Path) -> None:
    partition = led(open_log(tmp_path, LogConfig(flush_messages=1)))
    mine = write(partition)
    write(partition)  # another's, while mine is flushed
    partition.log.flush(mine, now_ms=NOW)
    partition.maybe_advance_high_watermark()
    assert partition.log.high_watermark == mine
    partition.log.flush(now_ms=NOW)
    partition.maybe_advance_high_watermark()
    assert partition.log.high_watermark == 2


@pytest.mark.parametrize(("unflushed", "shown"), [(1, 1), (2, 2), (3, 0), (4, 0)])
def test_fewer_than_flush_messages_are_shown_at_once(tmp_path: Path, unflushed: int, shown: int) -> None:
    partition = led(open_log(tmp_path, LogConfig(flush_messages=3)))
    for _ in range(unflushed):
        write(partition)
    partition.maybe_advance_high_watermark()
    assert partition.log.high_watermark == shown


def test_what_a_start_finds_is_shown(tmp_path: Path) -> None:
    """The checkpoint of what was flushed is a minute old after a crash."""
    write(led(open_log(tmp_path, LogConfig(flush_messages=1))))
    found = open_log(tmp_path, LogConfig(flush_messages=1))
    assert found.recovery_point == 0
    assert led(found, epoch=1).log.high_watermark == 1


@pytest.mark.parametrize("how", ["gone", "led by another"])
def test_who_waits_for_a_commit_hears_when_it_will_not_come(tmp_path: Path, how: str) -> None:
    partition = led(open_log(tmp_path, LogConfig(flush_messages=1)))
    end = write(partition)
    heard: list[ErrorCode] = []
    partition.when_committed(end, heard.append)
    partition.become(registration())
    assert heard == []
    if how == "gone":
        partition.gone()
    else:
        partition.become(registration(leader=NODE + 1, epoch=1))
    assert heard == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
