"""What ends in the very turn in which a broker stops leading a partition."""

from pathlib import Path

import pytest
from tests.support.one_partition import OnePartition
from tests.unit.storage.log_support import NOW

from ottla.model.errors import ErrorCode, KafkaError
from ottla.replication.partition import Partition


def test_everybody_hears_of_it_even_if_one_fails(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    world = OnePartition(tmp_path)
    heard: list[tuple[bool, int]] = []

    def fail(partition: Partition) -> None:
        raise RuntimeError("nobody expected this")

    def hear(partition: Partition) -> None:
        heard.append((partition.is_leader, partition.leader_epoch))

    world.replicas.role_listeners += [fail, hear]
    for leader, epoch in ((1, 5), (1, 6), (2, 7), (3, 8)):
        world.elect(leader, epoch)
        assert heard[-1] == (leader == 1, epoch)
    world.elect(3, 8)
    assert len(heard) == 4, "nothing has changed"
    world.partition.gone()
    assert heard[-1] == (False, 8)
    assert caplog.text.count("orders-0: the end of a leadership failed: nobody expected this") == 5


def test_what_was_verified_of_a_transaction_ends_with_the_leadership(tmp_path: Path) -> None:
    """It may be over when this replica leads again: its batch would begin another that nobody ends (KIP-890)."""
    world = OnePartition(tmp_path)
    world.elect(1, 5)
    log = world.log
    proof = log.start_verification(7, 0, 1, supports_epoch_bump=True, now_ms=NOW)
    world.elect(1, 6)
    log.check_verified(7, 1, proof)
    world.elect(2, 7)
    world.elect(1, 8)
    with pytest.raises(KafkaError) as refused:
        log.check_verified(7, 1, proof)
    assert refused.value.code is ErrorCode.INVALID_TXN_STATE


def test_a_replica_is_found_whoever_leads(tmp_path: Path) -> None:
    world = OnePartition(tmp_path)
    world.elect(2, 5)
    assert world.replicas.replica("orders", 0) is world.partition
    with pytest.raises(KafkaError) as unknown:
        world.replicas.replica("orders", 1)
    assert unknown.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
