"""Queues over a plain socket, on a broker as a user starts it: acquire, answer, leave, and go on after a restart."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.clients.conftest import Wait
from tests.clients.test_ottla_client_cli import Cli
from tests.interop.ottla_node import OttlaNode
from tests.support.raw_client import Endpoint, RawClient
from tests.support.share_closing import NOTHING, WHILE_CLOSING, close_elsewhere, told, told_while_closing
from tests.support.share_member import ACCEPT, RELEASE, ShareMember, configure


class Queue:
    """A topic, a group that reads it from the beginning, and a client at the topic's leader."""

    def __init__(self, somewhere: Endpoint, in_step: Wait) -> None:
        self.topic, self.group = f"q-{uuid.uuid4().hex[:8]}", f"g-{uuid.uuid4().hex[:8]}"
        with RawClient(somewhere) as client:
            # What the raw client writes is stamped years ago.
            self._topic_id = client.create_topic_with_id(self.topic, retention_ms=-1)
            configure(client, self.group, auto_offset_reset="earliest")
            in_step()
            self._leader = client.leader(self.topic)
        self.client = RawClient(self._leader)

    def write(self, *values: bytes) -> None:
        self.client.write(self.topic, 0, values)

    def member(self) -> ShareMember:
        return ShareMember(self._leader, self.group, self.topic, self._topic_id)


@pytest.fixture
def queue(nodes: dict[int, str], in_step: Wait) -> Iterator[Queue]:
    made = Queue(Endpoint.of(nodes[1]), in_step)
    with made.client:
        yield made


@pytest.mark.three_nodes
def test_records_are_shared_out_and_accepted_ones_are_done(queue: Queue) -> None:
    queue.write(b"a", b"b", b"c")
    first = queue.member().join()
    assert first.take() == {0: [[(0, 2, 1)], [b"a", b"b", b"c"]]}
    second = queue.member().join()
    queue.write(b"d")
    assert second.take() == {0: [[(3, 3, 1)], [b"d"]]}
    assert first.acknowledge({0: [(0, 1, ACCEPT), (2, 2, RELEASE)]}) == {0: "none"}
    assert second.take({0: [(3, 3, ACCEPT)]})[0][0] == [(2, 2, 2)]
    assert first.acknowledge({0: [(2, 2, ACCEPT)]}) == {0: "invalid_record_state"}
    assert second.acknowledge({0: [(2, 2, ACCEPT)]}) == {0: "none"}
    queue.write(b"e")
    assert first.take()[0][0] == [(4, 4, 1)]


@pytest.mark.three_nodes
def test_a_member_that_vanishes_leaves_its_records_to_others(queue: Queue) -> None:
    queue.write(b"a", b"b")
    first = queue.member().join()
    second = queue.member().join()
    first.take()
    first.close()
    assert second.take()[0][0] == [(0, 1, 2)]


@pytest.mark.three_nodes
def test_a_member_that_closes_its_session_leaves_its_records_to_others(queue: Queue) -> None:
    queue.write(b"a", b"b")
    first = queue.member().join()
    second = queue.member().join()
    first.take()
    first.fetch({0: [(0, 0, ACCEPT)]}, close=True)
    assert second.take()[0][0] == [(1, 1, 2)]


def test_what_a_member_is_told_that_closes_when_it_is_assigned(node: OttlaNode) -> None:
    """As Apache tells it: tests/interop/test_share_consumers.py asks both."""
    assert told_while_closing(node) == WHILE_CLOSING


@pytest.mark.three_nodes
@pytest.mark.parametrize("alone", [True, False])
def test_a_fetch_that_waits_acquires_nothing_for_a_closed_session(queue: Queue, alone: bool) -> None:
    """Else the group would do without the records until their lock ends, as it does with Apache."""
    other = queue.member()
    if not alone:
        other.join().fetch(wait_ms=0)
    member = queue.member().join()
    member.begin_fetch(60_000)
    assert close_elsewhere(queue.client, member) == "none"
    # Answered by the close and by nothing else: neither the time nor a record is there yet.
    assert told(member.end_fetch()) == NOTHING
    queue.write(b"a")
    if alone:
        other.join()
    assert other.take()[0][0] == [(0, 0, 1)]


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
        # Released: its count is kept. Held when the broker stopped: no delivery that failed, as in Kafka.
        assert member.take()[0][0] == [(1, 1, 2), (3, 3, 1)]


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


@pytest.mark.three_nodes
def test_the_lag_of_a_group_is_what_nobody_is_done_with(address: str, queue: Queue) -> None:
    queue.write(b"a", b"b", b"c")
    member = queue.member().join()
    member.take()
    assert member.acknowledge({0: [(1, 2, ACCEPT)]}) == {0: "none"}
    # The first is still open, so the group starts there; the two behind it are done with.
    described, lag = told_of(address, queue.group)
    assert described[queue.topic][:3] == [0, 3, 1]
    assert described[queue.topic][3] is not None
    assert lag[queue.topic] == 1
    assert member.acknowledge({0: [(0, 0, ACCEPT)]}) == {0: "none"}
    described, lag = told_of(address, queue.group)
    assert described[queue.topic][2:] == [0, 0.0]
    assert lag[queue.topic] == 0


def told_of(address: str, group: str) -> tuple[dict[str, list[Any]], dict[str, int]]:
    """What `ottla group describe` and `ottla group lag` say."""
    cli = Cli(address)
    columns = ("current_offset", "end_offset", "lag", "lag_seconds")
    described = json.loads(cli("group", "describe", group, "-o", "json")[0])[0]["partitions"]
    lags = json.loads(cli("group", "lag", group, "-o", "json")[0])
    shown = {row["topic"]: [row[column] for column in columns] for row in described}
    return shown, {row["topic"]: row["lag"] for row in lags}
