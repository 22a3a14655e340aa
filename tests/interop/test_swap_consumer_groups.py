"""The swap of consumer groups: what either broker wrote of them, the other coordinates on, in the middle of everything.

Members are away, have to give up partitions, wait for others, subscribe by expression or speak the classic protocol
when the broker is stopped. The other one, started on the same directory, describes the same groups, and the members
go on from where they were.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.interop.apache import ApacheKafka
from tests.interop.ottla_node import OttlaNode
from tests.interop.process import ServerProcess, free_ports, wait_until
from tests.interop.scripts.classic_groups import Member as ClassicMember
from tests.interop.scripts.classic_groups import coordinated
from tests.interop.scripts.consumer_groups import LEAVES_FOR_A_WHILE, Member, group_of, settle, subscription
from tests.interop.scripts.masks import masked
from tests.interop.scripts.script import Script, api_ranges
from tests.interop.test_swap import SETTINGS, assert_no_complaint

pytestmark = pytest.mark.interop

DESCRIBE = 69
GROUPS = ("swap-static", "swap-halfway", "swap-regex", "swap-both", "swap-empty")
TOPICS = {"swap-topic": 6, "swap-other": 2}


class Cast:
    """The members, wherever their coordinator is."""

    def __init__(self, script: Script) -> None:
        self.away, self.there = (Member(script, "swap-static", n, instance=n) for n in ("away", "there"))
        self.giver, self.waiter = (Member(script, "swap-halfway", n) for n in ("giver", "waiter"))
        self.seeker = Member(script, "swap-regex", "seeker")
        self.new = Member(script, "swap-both", "new")
        self.gone = Member(script, "swap-empty", "gone")
        self.old_id, self.old_generation = "", -1

    def all(self) -> list[Member]:
        return [self.away, self.there, self.giver, self.waiter, self.seeker, self.new, self.gone]

    def move(self, script: Script) -> None:
        for member in self.all():
            member.s = script


def enact(script: Script, cast: Cast) -> None:
    """Bring every group into the middle of something."""
    for topic, partitions in TOPICS.items():
        script.create(topic, partitions)
    for group in GROUPS:
        group_of(script, group)
    topic = "swap-topic"
    for member in (cast.away, cast.there):
        member.join(topic, server_assignor="range")
    settle(cast.away, cast.there)
    cast.away.leave(epoch=LEAVES_FOR_A_WHILE)
    cast.giver.join(topic, rack_id="here")
    cast.waiter.join(topic)
    cast.giver.beat("is to give up")
    cast.seeker.join(subscribed_topic_names=None, subscribed_topic_regex="swap-(topic|other)")
    wait_until(lambda: _assigned(cast.seeker), 20, "the expression to be resolved")
    cast.new.join(topic)
    with ClassicMember(script, "swap-both", "old") as old:
        old.join(protocols=[("range", subscription(topic))])
        answer = old.join("with its id", protocols=[("range", subscription(topic))])
        cast.old_id, cast.old_generation = old.member_id, answer["generation_id"]
        old.sync()
    cast.gone.join(topic)
    cast.gone.leave()


def _assigned(member: Member) -> bool:
    member.ack("waits")
    return bool(member.owned)


def described(script: Script) -> Any:
    """All groups as the broker tells of them; in an order of their own."""
    answer = script.quiet(DESCRIBE, 1, {"group_ids": list(GROUPS), "include_authorized_operations": False})
    return masked(DESCRIBE, answer, {})


def go_on(script: Script, cast: Cast) -> None:
    """Everybody does what is to be done next, and nobody is fenced."""
    cast.move(script)
    answers = [cast.giver.ack("has given up"), cast.waiter.ack("gets what is free")]
    answers += [cast.there.ack(), cast.seeker.ack(), cast.new.ack()]
    assert [answer["error_code"] for answer in answers] == ["none"] * 5
    owned = sorted(p for member in (cast.giver, cast.waiter) for part in member.owned.values() for p in part)
    assert owned == [0, 1, 2, 3, 4, 5]
    body = {"group_id": "swap-both", "generation_id": cast.old_generation, "member_id": cast.old_id}
    heartbeat = script.quiet(12, 4, {**body, "group_instance_id": None})
    assert heartbeat["error_code"] in ("none", "rebalance_in_progress")
    back = Member(script, "swap-static", "back", instance="away")
    answer = back.join("swap-topic", server_assignor="range")
    assert answer["error_code"] == "none"
    assert back.owned == cast.away.owned
    back.leave(epoch=LEAVES_FOR_A_WHILE)
    cast.away = back


def script_of(server: ServerProcess) -> Script:
    script = Script(server, api_ranges(server), {})
    for group in GROUPS:
        coordinated(script, group)
    return script


@pytest.mark.parametrize("order", ["ottla first", "apache first"])
def test_consumer_groups_are_kept(tmp_path: Path, order: str) -> None:
    port, controller_port = free_ports(2)
    settings = {**SETTINGS, "offsets.topic.num.partitions": 50}
    where = {"port": port, "controller_port": controller_port}
    apache = ApacheKafka(tmp_path / "data", settings, **where)  # type: ignore[arg-type]
    ottla = OttlaNode(tmp_path / "data", apache.settings(), **where)  # type: ignore[arg-type]
    first, second = (ottla, apache) if order == "ottla first" else (apache, ottla)
    if first is ottla:
        with apache:  # it formats the directory
            pass
    with first:
        script = script_of(first)
        cast = Cast(script)
        enact(script, cast)
        before = described(script)
        script.close()
    for server in (second, first):
        with server:
            script = script_of(server)
            assert described(script) == before, f"{server.kind} sees other groups"
            cast.move(script)
            if server is second:
                go_on(script, cast)
                before = described(script)
            assert_no_complaint(server)
            script.close()
