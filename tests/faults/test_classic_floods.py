"""Ten thousand clients that all want into one classic group, and members that never were or are no more.

Who is refused is told so, at once and with the right code; the group is as it was; others are not disturbed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from tests.interop.ottla_node import OttlaNode
from tests.interop.process import wait_until
from tests.interop.scripts.entities import decode_response, encode_request
from tests.support.control import ControlClient
from tests.support.raw_client import RawClient

FIND, JOIN, HEARTBEAT, LEAVE, SYNC, DESCRIBE = 10, 11, 12, 13, 14, 15
CLIENTS = 10_000
MOST = 20
AT_ONCE = 50
# What one client that waits, or was given an id, may cost the broker.
MOST_BYTES_EACH = 4_096


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OttlaNode]:
    settings = {"group.max.size": MOST, "group.initial.rebalance.delay.ms": 100}
    broker = OttlaNode(tmp_path_factory.mktemp("floods") / "data", settings)
    with broker:
        yield broker
    assert "Traceback" not in broker.log_text()


def join_frame(group: str, member_id: str = "") -> bytes:
    body = {
        "group_id": group,
        "session_timeout": 60_000,
        "rebalance_timeout": 60_000,
        "member_id": member_id,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b"\x00\x00" + bytes(8)}],
    }
    return encode_request(JOIN, 9, body)


def answers(client: RawClient, api_key: int, version: int, frames: list[bytes]) -> Iterator[dict[str, Any]]:
    """To many requests, some of them under way at once."""
    for begin in range(0, len(frames), AT_ONCE):
        some = frames[begin : begin + AT_ONCE]
        client.send(b"".join(some))
        for _ in some:
            yield decode_response(api_key, version, client.receive())


def coordinated(client: RawClient, group: str) -> str:
    def ready() -> bool:
        client.ask(FIND, 4, {"key_type": 0, "coordinator_keys": [group]})
        return bool(described(client, group)["error_code"] == "none")

    wait_until(ready, 30, "a coordinator")
    return group


def described(client: RawClient, group: str) -> dict[str, Any]:
    answer: dict[str, Any] = client.ask(DESCRIBE, 5, {"groups": [group]})["groups"][0]
    return answer


def stable(node: OttlaNode, client: RawClient, group: str) -> tuple[str, int]:
    """A stable group of one."""
    coordinated(client, group)
    member = next(answers(client, JOIN, 9, [join_frame(group)]))
    joined = next(answers(client, JOIN, 9, [join_frame(group, member["member_id"])]))
    assert joined["error_code"] == "none"
    generation: int = joined["generation_id"]
    synced = client.ask(
        SYNC,
        5,
        {
            "group_id": group,
            "generation_id": generation,
            "member_id": joined["member_id"],
            "protocol_type": "consumer",
            "protocol_name": "range",
            "assignments": [{"member_id": joined["member_id"], "assignment": b"all"}],
        },
    )
    assert synced["assignment"] == b"all"
    return joined["member_id"], generation


def test_ten_thousand_want_to_join(node: OttlaNode) -> None:
    group = "everybody"
    with ControlClient(node) as control, RawClient(node) as client:
        coordinated(client, group)
        before = node.rss_bytes()
        given = list(answers(client, JOIN, 9, [join_frame(group)] * CLIENTS))
        assert {answer["error_code"] for answer in given} == {"member_id_required"}
        ids = [answer["member_id"] for answer in given]
        assert len(set(ids)) == CLIENTS
        control.still_works()
        waiting = [RawClient(node) for _ in range(MOST)]
        try:
            for member, connection in zip(ids, waiting, strict=False):
                connection.send(join_frame(group, member))
            wait_until(lambda: len(described(client, group)["members"]) == MOST, 30, "the first to wait")
            late = list(answers(client, JOIN, 9, [join_frame(group, member) for member in ids[MOST:]]))
            assert Counter(answer["error_code"] for answer in late) == {
                "group_max_size_reached": CLIENTS - MOST
            }
            joined = [decode_response(JOIN, 9, connection.receive()) for connection in waiting]
        finally:
            for connection in waiting:
                connection.close()
        assert Counter((answer["error_code"], answer["generation_id"]) for answer in joined) == {
            ("none", 1): MOST
        }
        assert (node.rss_bytes() - before) / CLIENTS < MOST_BYTES_EACH
        control.still_works()


def test_strangers_change_nothing(node: OttlaNode) -> None:
    group = "closed"
    with RawClient(node) as client:
        member, generation = stable(node, client, group)
        before = described(client, group)
        refused: list[tuple[str, str]] = []
        for other, number in (("who", generation), (member, generation + 1), (member, -1), ("", generation)):
            body = {"group_id": group, "generation_id": number, "member_id": other, "group_instance_id": None}
            refused.append((client.ask(HEARTBEAT, 4, body)["error_code"], "heartbeat"))
            wrong = [{"member_id": member, "assignment": b"nothing"}]
            sync = {**body, "protocol_type": "consumer", "protocol_name": "range", "assignments": wrong}
            refused.append((client.ask(SYNC, 5, sync)["error_code"], "sync"))
        unknown, illegal = "unknown_member_id", "illegal_generation"
        assert [code for code, _ in refused] == [unknown] * 2 + [illegal] * 4 + [unknown] * 2
        for identity in ({"member_id": "who"}, {"member_id": "", "group_instance_id": "i"}):
            left = client.ask(LEAVE, 5, {"group_id": group, "members": [identity]})
            assert [row["error_code"] for row in left["members"]] == [unknown]
        assert described(client, group) == before
        alive = {"group_id": group, "generation_id": generation, "member_id": member}
        assert client.ask(HEARTBEAT, 4, alive)["error_code"] == "none"


def test_ten_thousand_leave_at_once(node: OttlaNode) -> None:
    group = "leaving"
    with RawClient(node) as client:
        member, generation = stable(node, client, group)
        rows = [{"member_id": f"who-{n}", "group_instance_id": None} for n in range(CLIENTS)]
        left = client.ask(LEAVE, 5, {"group_id": group, "members": rows})
        assert Counter(row["error_code"] for row in left["members"]) == {"unknown_member_id": CLIENTS}
        alive = {"group_id": group, "generation_id": generation, "member_id": member}
        assert client.ask(HEARTBEAT, 4, alive)["error_code"] == "none"
        left = client.ask(LEAVE, 5, {"group_id": group, "members": [*rows, {"member_id": member}]})
        assert left["members"][-1]["error_code"] == "none"
        assert described(client, group)["group_state"] == "Empty"
