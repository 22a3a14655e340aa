"""The swap of a classic group: its members go on, under the other broker, in the generation they were in.

What one broker has written of a group the other loads: the members that are heard of, the instances that come back,
what everybody was assigned, and the group that is empty.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.interop.apache import ApacheKafka
from tests.interop.ottla_node import OttlaNode
from tests.interop.process import ServerProcess, free_ports
from tests.interop.scripts.classic_groups import DESCRIBE, Member, coordinated
from tests.interop.scripts.script import Script
from tests.interop.test_swap import SETTINGS, assert_no_complaint

pytestmark = pytest.mark.interop

FEW_PARTITIONS: dict[str, object] = {
    **SETTINGS,
    "offsets.topic.num.partitions": 2,
    "group.initial.rebalance.delay.ms": 500,
}
LONG_MS = 1_800_000


class World:
    """The members that live through it all; their connections do not."""

    def __init__(self) -> None:
        # name: (instance, member id, generation)
        self.members: dict[str, tuple[str | None, str, int]] = {}

    def member(self, s: Script, name: str) -> Member:
        instance, member_id, generation = self.members[name]
        member = Member(s, "swapped", name, 9, instance)
        member.member_id, member.generation = member_id, generation
        return member

    def keep(self, member: Member) -> None:
        self.members[member.name] = (member.instance, member.member_id, member.generation)


def described(s: Script, group: str) -> dict[str, Any]:
    answer: dict[str, Any] = s.quiet(DESCRIBE, 6, {"groups": [group]})["groups"][0]
    answer["members"].sort(key=lambda row: row["member_id"])
    return answer


def form(s: Script, world: World) -> None:
    """A group of two instances and somebody who is none, and one that everybody has left."""
    coordinated(s, "swapped")
    a, b, c = (
        Member(s, "swapped", "a", 9, "i-a"),
        Member(s, "swapped", "b", 9, "i-b"),
        Member(s, "swapped", "c", 9),
    )
    with a, b, c:
        for member in (a, b, c):
            member.come(session_timeout=LONG_MS)
        for member in (a, b, c):
            assert member.receive()["error_code"] == "none"
        a.lead(b, c)
        assert b.sync()["assignment"] == b"b"
        assert c.sync()["assignment"] == b"c"
        for member in (a, b, c):
            world.keep(member)
    with Member(s, coordinated(s, "left"), "d", 9) as d:
        d.come()
        d.receive()
        d.lead()
        d.leave()


def goes_on(s: Script, world: World) -> None:
    """Everybody is known, in the generation it was in, with what it was assigned."""
    for group in ("swapped", "left"):
        coordinated(s, group)
    for name in world.members:
        with world.member(s, name) as member:
            assert member.heartbeat()["error_code"] == "none"
            assert member.sync()["assignment"] == name.encode()


def replaced(s: Script, world: World, name: str) -> None:
    """An instance comes back under a new id, and the one before is fenced."""
    with world.member(s, name) as old, Member(s, "swapped", name, 9, old.instance) as new:
        assert new.join(session_timeout=LONG_MS)["generation_id"] == old.generation
        assert old.heartbeat()["error_code"] == "fenced_instance_id"
        assert new.sync()["assignment"] == name.encode()
        world.keep(new)


@pytest.mark.parametrize("first", ["ottla", "apache"])
def test_a_group_goes_on(tmp_path: Path, first: str) -> None:
    ports = free_ports(2)
    where = {"port": ports[0], "controller_port": ports[1]}
    apache = ApacheKafka(tmp_path / "data", FEW_PARTITIONS, **where)  # type: ignore[arg-type]
    ottla = OttlaNode(tmp_path / "data", FEW_PARTITIONS, **where)  # type: ignore[arg-type]
    order: list[ServerProcess] = [apache, ottla, apache] if first == "apache" else [ottla, apache, ottla]
    world = World()
    before: dict[str, Any] = {}
    for turn, server in enumerate(order):
        with server:
            s = Script(server, {}, {})
            if turn == 0:
                form(s, world)
            else:
                goes_on(s, world)
                assert {group: described(s, group) for group in before} == before
                assert_no_complaint(server)
                replaced(s, world, "ab"[turn - 1])
            before = {group: described(s, group) for group in ("swapped", "left")}
            assert (before["swapped"]["group_state"], before["left"]["group_state"]) == ("Stable", "Empty")
            s.close()
