"""The swap of a directory with share groups: what one broker's queues have done, the other's do not do again.

Members, epochs, assignments, where a group starts, what was accepted, released and rejected, how often each record
was delivered: Ottla writes it and Apache goes on, and the reverse, after a clean stop and after kill -9.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest
from tests.interop.apache import ApacheKafka
from tests.interop.ottla_node import OttlaNode
from tests.interop.process import ServerProcess, free_ports, wait_until
from tests.interop.test_swap import SETTINGS, assert_no_complaint, end
from tests.support.raw_client import RawClient
from tests.support.share_member import ACCEPT, REJECT, RELEASE, ShareMember, configure

pytestmark = pytest.mark.interop

FIND, LIST, HEARTBEAT, DESCRIBE, READ, OFFSETS, ALTER = 10, 16, 76, 77, 84, 90, 91
ACKNOWLEDGED = 2
FEW_PARTITIONS: dict[str, object] = {
    **SETTINGS,
    "offsets.topic.num.partitions": 2,
    "share.coordinator.state.topic.num.partitions": 2,
}


def observe(client: RawClient, topic_id: uuid.UUID) -> dict[str, Any]:
    """Everything that can be asked about the groups."""

    def described() -> list[dict[str, Any]]:
        client.ask(FIND, 4, {"key_type": 0, "coordinator_keys": ["readers", "moved"]})
        body = {"group_ids": ["readers", "moved"], "include_authorized_operations": False}
        answer: list[dict[str, Any]] = client.ask(DESCRIBE, 1, body)["groups"]
        return sorted(answer, key=lambda group: group["group_id"])

    def states() -> list[dict[str, Any]]:
        topics = [{"topic_id": topic_id, "partitions": [{"partition": 0, "leader_epoch": -1}]}]
        asked = [client.ask(READ, 0, {"group_id": g, "topics": topics}) for g in ("readers", "moved")]
        return [answer["results"][0]["partitions"][0] for answer in asked]

    wait_until(lambda: all(g["error_code"] == "none" for g in described()), 30, "the groups to be loaded")
    wait_until(lambda: all(s["error_code"] == "none" for s in states()), 30, "their state to be loaded")
    listed = client.ask(LIST, 5, {"states_filter": [], "types_filter": ["share"]})["groups"]
    groups = [{"group_id": group, "topics": None} for group in ("readers", "moved")]
    return {
        "groups": described(),
        "states": states(),
        "offsets": client.ask(OFFSETS, 1, {"groups": groups})["groups"],
        "listed": sorted(listed, key=lambda group: group["group_id"]),
    }


def leave(member: ShareMember) -> None:
    body = {"group_id": member.group, "member_id": member.member_id, "member_epoch": -1}
    answer = member.client.ask(HEARTBEAT, 1, {**body, "rack_id": None, "subscribed_topic_names": None})
    assert answer["error_code"] == "none", answer
    member.client.close()


def begin(server: ServerProcess) -> tuple[uuid.UUID, dict[str, Any]]:
    """Ten records: some accepted, one rejected, some released twice; another group set to an offset."""
    with RawClient(server) as client:
        topic_id = client.create_topic_with_id("queue")
        configure(client, "readers", auto_offset_reset="earliest")
        client.write("queue", 0, [b"%d" % number for number in range(10)])
        member = ShareMember(server, "readers", "queue", topic_id).join()  # type: ignore[arg-type]
        assert member.take()[0][0] == [(0, 9, 1)]
        said = [(0, 2, ACCEPT), (3, 3, REJECT), (4, 5, RELEASE), (6, 6, ACCEPT), (7, 9, RELEASE)]
        assert member.acknowledge({0: said}) == {0: "none"}
        topics = [{"topic_name": "queue", "partitions": [{"partition_index": 0, "start_offset": 4}]}]
        wait_until(lambda: _altered(client, topics), 30, "the other group to be set")
        return topic_id, observe(client, topic_id)


def _altered(client: RawClient, topics: list[dict[str, Any]]) -> bool:
    client.ask(FIND, 4, {"key_type": 0, "coordinator_keys": ["moved"]})
    answer = client.ask(ALTER, 0, {"group_id": "moved", "topics": topics})
    return bool(
        answer["error_code"] == "none" and answer["responses"][0]["partitions"][0]["error_code"] == "none"
    )


def go_on(server: ServerProcess, topic_id: uuid.UUID, expected: Any, said: Any) -> dict[str, Any]:
    """A new member gets what is left, and says something of it."""
    with RawClient(server) as client:
        member = ShareMember(server, "readers", "queue", topic_id).join()  # type: ignore[arg-type]
        assert member.take()[0][0] == expected
        assert member.acknowledge({0: said}) == {0: "none"}
        leave(member)
        return observe(client, topic_id)


@pytest.mark.parametrize("clean", [True, False], ids=["stop", "kill-9"])
@pytest.mark.parametrize("ottla_first", [True, False], ids=["ottla", "apache"])
def test_share_groups_are_kept(tmp_path: Path, ottla_first: bool, clean: bool) -> None:
    ports = free_ports(2)
    where: dict[str, Any] = {"port": ports[0], "controller_port": ports[1]}
    apache = ApacheKafka(tmp_path / "data", FEW_PARTITIONS, **where)
    ottla = OttlaNode(tmp_path / "data", FEW_PARTITIONS, **where)
    first, second = (ottla, apache) if ottla_first else (apache, ottla)
    with first:
        topic_id, before = begin(first)
        end(first, clean)
    with second:
        with RawClient(second) as client:
            assert observe(client, topic_id) == before
        said = [(4, 4, ACCEPT), (5, 5, RELEASE), (7, 9, RELEASE)]
        between = go_on(second, topic_id, [(4, 5, 2), (7, 9, 2)], said)
        if clean:
            assert_no_complaint(second)
        end(second, clean)
    with first:
        with RawClient(first) as client:
            assert observe(client, topic_id) == between
        last = go_on(first, topic_id, [(5, 5, 3), (7, 9, 3)], [(5, 5, ACCEPT), (7, 9, ACCEPT)])
        assert all(run["delivery_state"] == ACKNOWLEDGED for run in last["states"][0]["state_batches"])
        end(first, clean)
    with second, RawClient(second) as client:
        assert observe(client, topic_id) == last
