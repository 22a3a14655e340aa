"""The swap of a directory with a streams group: whoever starts on it goes on with its members, epochs and tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.interop.apache import ApacheKafka
from tests.interop.ottla_node import OttlaNode
from tests.interop.process import ServerProcess, free_ports, wait_until
from tests.interop.scripts.script import Script, api_ranges
from tests.interop.scripts.streams_members import DESCRIBE, Member, commit, group_of, internal, sub, topology
from tests.interop.test_swap import SETTINGS, assert_no_complaint

pytestmark = pytest.mark.interop

FEW_PARTITIONS: dict[str, object] = {**SETTINGS, "offsets.topic.num.partitions": 2}
GROUP = "swapped"


def script(server: ServerProcess) -> Script:
    return Script(server, api_ranges(server), {})


def described(s: Script) -> dict[str, Any]:
    """The group, when its coordinator is ready."""
    found: dict[str, Any] = {}

    def there() -> bool:
        s.quiet(10, 4, {"key_type": 0, "coordinator_keys": [GROUP]})
        body = {"group_ids": [GROUP], "include_authorized_operations": False}
        found.update(s.quiet(DESCRIBE, 0, body)["groups"][0])
        return found["error_code"] == "none"

    wait_until(there, 30, "the coordinator")
    found["topology"] = None  # as it runs, or as it was said, until the first heartbeat
    found["members"] = sorted(found["members"], key=lambda member: str(member["member_id"]))
    return found


def move(member: Member, s: Script) -> None:
    member.s = s


def settle(*members: Member) -> None:
    for _ in range(5):
        for member in members:
            assert member.ack("goes on")["error_code"] == "none"


def swap(first: ServerProcess, second: ServerProcess) -> None:
    store = internal("swapped-store", cleanup_policy="compact")
    with first:
        s = script(first)
        topic = s.create("swapped-in", 4)
        s.create("swapped-store", 4)
        group_of(s, GROUP, streams_num_standby_replicas=1)
        said = topology(sub("0", [topic], changelogs=[store]))
        a, b, c = (Member(s, GROUP, name, said) for name in "abc")
        a.join(user_endpoint={"host": "here", "port": 80}, client_tags=[{"key": "k", "value": "v"}])
        b.join()
        settle(a, b)
        commit(s, a, topic, "before")
        before = described(s)
    with second:
        s = script(second)
        assert described(s) == before
        assert_no_complaint(second)
        for member in (a, b, c):
            move(member, s)
        settle(a, b)
        assert described(s) == before, "nothing has moved"
        c.join()
        settle(a, b, c)
        between = described(s)
        assert between["group_state"] == "Stable"
    with first:
        s = script(first)
        assert described(s) == between
        for member in (a, b, c):
            move(member, s)
        settle(a, b, c)
        assert described(s) == between
        a.leave()
        settle(b, c)
        assert described(s)["group_state"] == "Stable"


@pytest.mark.parametrize("first", ["apache", "ottla"])
def test_a_streams_group_is_kept(tmp_path: Path, first: str) -> None:
    port, controller_port = free_ports(2)
    data = tmp_path / "data"
    apache = ApacheKafka(data, FEW_PARTITIONS, port=port, controller_port=controller_port)
    ottla = OttlaNode(data, FEW_PARTITIONS, port=port, controller_port=controller_port)
    swap(*((apache, ottla) if first == "apache" else (ottla, apache)))
