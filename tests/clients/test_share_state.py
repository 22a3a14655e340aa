"""The share coordinator of a broker as a user starts it: its log stays short, and nothing is lost by that."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest
from tests.interop.ottla_node import OttlaNode
from tests.interop.process import wait_until
from tests.support.raw_client import RawClient

FIND, LIST_OFFSETS, INITIALIZE, READ, WRITE = 10, 2, 83, 84, 85
STATE_TOPIC = "__share_group_state"
EARLIEST = -2
SETTINGS: dict[str, object] = {
    "share.coordinator.state.topic.num.partitions": 1,
    "share.coordinator.state.topic.prune.interval.ms": 100,
    "share.coordinator.snapshot.update.records.per.snapshot": 5,
}


def ask(client: RawClient, api: int, topic_id: uuid.UUID, partition: int, **values: Any) -> dict[str, Any]:
    rows = [{"topic_id": topic_id, "partitions": [{"partition": partition, **values}]}]
    answer = client.ask(api, 0, {"group_id": "g", "topics": rows})
    result: dict[str, Any] = answer["results"][0]["partitions"][0]
    return result


def read(client: RawClient, topic_id: uuid.UUID, partition: int) -> dict[str, Any]:
    wait_until(
        lambda: ask(client, READ, topic_id, partition, leader_epoch=-1)["error_code"] == "none",
        20,
        "the share coordinator to answer",
    )
    return ask(client, READ, topic_id, partition, leader_epoch=-1)


def earliest(client: RawClient) -> int:
    row = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": EARLIEST}
    body = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": STATE_TOPIC, "partitions": [row]}]}
    offset: int = client.ask(LIST_OFFSETS, 7, body)["topics"][0]["partitions"][0]["offset"]
    return offset


def begin(client: RawClient) -> uuid.UUID:
    """A topic of two partitions whose share state is set up."""
    topic_id = client.create_topic_with_id("queue", 2)
    for partition in (0, 1):

        def initialized(partition: int = partition) -> bool:
            client.ask(FIND, 6, {"key_type": 2, "coordinator_keys": [f"g:{'A' * 22}:0"]})
            asked = ask(client, INITIALIZE, topic_id, partition, state_epoch=1, start_offset=partition)
            return bool(asked["error_code"] == "none")

        wait_until(initialized, 20, "the share coordinator to be there")
    return topic_id


def write(client: RawClient, topic_id: uuid.UUID, partition: int, number: int) -> None:
    batch = {"first_offset": number, "last_offset": number, "delivery_state": 2, "delivery_count": 1}
    written = ask(
        client,
        WRITE,
        topic_id,
        partition,
        state_epoch=1,
        leader_epoch=0,
        start_offset=max(0, number - 3),
        state_batches=[batch],
    )
    assert written["error_code"] == "none", written


@pytest.mark.parametrize("clean", [True, False], ids=["stop", "kill-9"])
def test_the_log_is_pruned_and_the_state_is_not(tmp_path: Path, clean: bool) -> None:
    node = OttlaNode(tmp_path / "data", SETTINGS)
    with node, RawClient(node) as client:
        topic_id = begin(client)
        for number in range(30):
            for partition in (0, 1):
                write(client, topic_id, partition, number)
        wait_until(lambda: earliest(client) > 30, 20, "old records to be deleted")
        states = [read(client, topic_id, partition) for partition in (0, 1)]
        assert [state["start_offset"] for state in states] == [26, 26]
        if not clean:
            node.kill()
    with OttlaNode(tmp_path / "data", SETTINGS) as again, RawClient(again) as client:
        assert [read(client, topic_id, partition) for partition in (0, 1)] == states
        wait_until(lambda: earliest(client) > 30, 20, "old records to stay deleted, or to be deleted again")
        write(client, topic_id, 0, 30)
        assert read(client, topic_id, 0)["start_offset"] == 27


def test_a_share_partition_that_is_quiet_does_not_keep_the_log_of_the_others(tmp_path: Path) -> None:
    settings = {**SETTINGS, "share.coordinator.cold.partition.snapshot.interval.ms": 300}
    with OttlaNode(tmp_path / "data", settings) as node, RawClient(node) as client:
        topic_id = begin(client)
        number = 0

        def pruned() -> bool:
            nonlocal number
            number += 1
            write(client, topic_id, 0, number)
            return earliest(client) > 10

        wait_until(pruned, 20, "old records to be deleted although partition 1 was written first")
        assert read(client, topic_id, 1)["start_offset"] == 1
