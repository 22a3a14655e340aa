"""Queues over a plain socket, on a broker as a user starts it: acquire, answer, leave, and go on after a restart."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.interop.ottla_node import OttlaNode
from tests.support.raw_client import RawClient, uncompressed_batches

FIND_COORDINATOR, HEARTBEAT, FETCH, ACKNOWLEDGE, ALTER_CONFIGS = 10, 76, 78, 79, 44
GROUP_RESOURCE = 32
ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4
DEADLINE_S = 30.0

Runs = list[tuple[int, int, int]]


class ShareMember:
    """A member of a share group on a connection of its own."""

    def __init__(
        self, node: OttlaNode, group: str, topic: str, topic_id: uuid.UUID, partitions: int = 1
    ) -> None:
        self.client = RawClient(node)
        self.group = group
        self.topic = topic
        self.topic_id = topic_id
        self.partitions = partitions
        self.member_id = str(uuid.uuid4())
        self.member_epoch = 0
        self.epoch = 0

    def join(self) -> ShareMember:
        """Until every partition is assigned."""
        deadline = time.monotonic() + DEADLINE_S
        self.client.ask(FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": [self.group]})
        while time.monotonic() < deadline:
            answer = self.client.ask(
                HEARTBEAT,
                1,
                {
                    "group_id": self.group,
                    "member_id": self.member_id,
                    "member_epoch": self.member_epoch,
                    "rack_id": None,
                    "subscribed_topic_names": [self.topic],
                },
            )
            if answer["error_code"] == "none":
                self.member_epoch = answer["member_epoch"]
                assigned = (answer["assignment"] or {}).get("topic_partitions") or []
                if sum(len(entry["partitions"]) for entry in assigned) == self.partitions:
                    return self
            time.sleep(0.05)
        raise AssertionError(f"not assigned: {answer}")

    def fetch(
        self,
        acks: dict[int, Runs] | None = None,
        *,
        wait_ms: int = 5_000,
        records: int = 500,
        close: bool = False,
    ) -> dict[str, Any]:
        named = range(self.partitions) if self.epoch == 0 else sorted(acks or {})
        answer = self.client.ask(
            FETCH,
            2,
            {
                "group_id": self.group,
                "member_id": self.member_id,
                "share_session_epoch": -1 if close else self.epoch,
                "max_wait": wait_ms,
                "min_bytes": 1,
                "max_bytes": 1 << 20,
                "max_records": records,
                "batch_size": 500,
                "share_acquire_mode": 0,
                "is_renew_ack": False,
                "topics": [
                    {
                        "topic_id": self.topic_id,
                        "partitions": [
                            {
                                "partition_index": p,
                                "acknowledgement_batches": _batches((acks or {}).get(p, [])),
                            }
                            for p in named
                        ],
                    }
                ]
                if named
                else [],
                "forgotten_topics_data": [],
            },
        )
        assert answer["error_code"] == "none", answer
        self.epoch += 1
        return answer

    def take(self, acks: dict[int, Runs] | None = None, **options: Any) -> dict[int, list[Any]]:
        """Fetch until there is something: partition, [(first, last, delivery count), ...] and the values."""
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            answer = self.fetch(acks, **options)
            acks = None
            found = {
                p["partition_index"]: [_runs(p), _values(p)]
                for topic in answer["responses"]
                for p in topic["partitions"]
                if p["acquired_records"]
            }
            if found:
                return found
        raise AssertionError(f"nothing to take: {answer}")

    def acknowledge(self, acks: dict[int, Runs], *, renew: bool = False) -> dict[int, str]:
        answer = self.client.ask(
            ACKNOWLEDGE,
            2,
            {
                "group_id": self.group,
                "member_id": self.member_id,
                "share_session_epoch": self.epoch,
                "is_renew_ack": renew,
                "topics": [
                    {
                        "topic_id": self.topic_id,
                        "partitions": [
                            {"partition_index": p, "acknowledgement_batches": _batches(said)}
                            for p, said in acks.items()
                        ],
                    }
                ],
            },
        )
        assert answer["error_code"] == "none", answer
        self.epoch += 1
        return {p["partition_index"]: p["error_code"] for t in answer["responses"] for p in t["partitions"]}


def _batches(said: Runs) -> list[dict[str, Any]]:
    return [
        {"first_offset": first, "last_offset": last, "acknowledge_types": [kind]}
        for first, last, kind in said
    ]


def _runs(partition: dict[str, Any]) -> Runs:
    return [(r["first_offset"], r["last_offset"], r["delivery_count"]) for r in partition["acquired_records"]]


def _values(partition: dict[str, Any]) -> list[bytes | None]:
    return [value for _, _, values in uncompressed_batches(partition["records"]) for value in values]


def configure(client: RawClient, group: str, **values: object) -> None:
    configs = [
        {"name": f"share.{key.replace('_', '.')}", "config_operation": 0, "value": str(value)}
        for key, value in values.items()
    ]
    resource = {"resource_type": GROUP_RESOURCE, "resource_name": group, "configs": configs}
    answer = client.ask(ALTER_CONFIGS, 1, {"resources": [resource], "validate_only": False})
    assert answer["responses"][0]["error_code"] == "none", answer


@pytest.fixture
def queue(node: OttlaNode) -> Iterator[tuple[RawClient, str, str, uuid.UUID]]:
    """A client, a group that reads from the beginning, a topic and its id."""
    topic, group = f"q-{uuid.uuid4().hex[:8]}", f"g-{uuid.uuid4().hex[:8]}"
    with RawClient(node) as client:
        topic_id = client.create_topic_with_id(topic)
        configure(client, group, auto_offset_reset="earliest")
        yield client, group, topic, topic_id


def test_records_are_shared_out_and_accepted_ones_are_done(node: OttlaNode, queue: Any) -> None:
    client, group, topic, topic_id = queue
    client.write(topic, 0, [b"a", b"b", b"c"])
    first = ShareMember(node, group, topic, topic_id).join()
    assert first.take() == {0: [[(0, 2, 1)], [b"a", b"b", b"c"]]}
    second = ShareMember(node, group, topic, topic_id).join()
    client.write(topic, 0, [b"d"])
    assert second.take() == {0: [[(3, 3, 1)], [b"d"]]}
    assert first.acknowledge({0: [(0, 1, ACCEPT), (2, 2, RELEASE)]}) == {0: "none"}
    assert second.take({0: [(3, 3, ACCEPT)]})[0][0] == [(2, 2, 2)]
    assert first.acknowledge({0: [(2, 2, ACCEPT)]}) == {0: "invalid_record_state"}
    assert second.acknowledge({0: [(2, 2, ACCEPT)]}) == {0: "none"}
    client.write(topic, 0, [b"e"])
    assert first.take()[0][0] == [(4, 4, 1)]


def test_a_member_that_vanishes_leaves_its_records_to_others(node: OttlaNode, queue: Any) -> None:
    client, group, topic, topic_id = queue
    client.write(topic, 0, [b"a", b"b"])
    first = ShareMember(node, group, topic, topic_id).join()
    second = ShareMember(node, group, topic, topic_id).join()
    first.take()
    first.client.close()
    assert second.take()[0][0] == [(0, 1, 2)]


def test_a_member_that_closes_its_session_leaves_its_records_to_others(node: OttlaNode, queue: Any) -> None:
    client, group, topic, topic_id = queue
    client.write(topic, 0, [b"a", b"b"])
    first = ShareMember(node, group, topic, topic_id).join()
    second = ShareMember(node, group, topic, topic_id).join()
    first.take()
    first.fetch({0: [(0, 0, ACCEPT)]}, close=True)
    assert second.take()[0][0] == [(1, 1, 2)]


def test_a_group_goes_on_after_a_restart(tmp_path: Path) -> None:
    node = OttlaNode(tmp_path / "data")
    with node, RawClient(node) as client:
        topic_id = client.create_topic_with_id("q")
        configure(client, "g", auto_offset_reset="earliest")
        client.write("q", 0, [b"a", b"b", b"c", b"d"])
        member = ShareMember(node, "g", "q", topic_id).join()
        member.take()
        assert member.acknowledge({0: [(0, 0, ACCEPT), (1, 1, RELEASE), (2, 2, ACCEPT)]}) == {0: "none"}
    again = OttlaNode(tmp_path / "data")
    with again:
        member = ShareMember(again, "g", "q", topic_id).join()
        # Released: its count is kept. Held when the broker stopped: released by the end of the connection.
        assert member.take()[0][0] == [(1, 1, 2), (3, 3, 2)]


def test_a_killed_broker_forgets_who_held_what_and_nothing_else(tmp_path: Path) -> None:
    node = OttlaNode(tmp_path / "data")
    with node, RawClient(node) as client:
        topic_id = client.create_topic_with_id("q")
        configure(client, "g", auto_offset_reset="earliest")
        client.write("q", 0, [b"a", b"b", b"c", b"d"])
        member = ShareMember(node, "g", "q", topic_id).join()
        member.take()
        assert member.acknowledge({0: [(0, 0, ACCEPT), (1, 1, RELEASE), (2, 2, ACCEPT)]}) == {0: "none"}
        node.kill()
    again = OttlaNode(tmp_path / "data")
    with again:
        member = ShareMember(again, "g", "q", topic_id).join()
        assert member.take()[0][0] == [(1, 1, 2), (3, 3, 1)]
