"""What a share member is told that closes as soon as it is assigned: the same questions for Apache and for Ottla.

    assert told_while_closing(node) == WHILE_CLOSING

librdkafka (2.15 and 2.16) now and then waits for ever when it is closed in that moment: it takes over an assignment
after it has left, on Apache as on Ottla, with every request answered. So what is kept is that both answer alike.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any, Final

from tests.interop.process import ServerProcess, wait_until
from tests.interop.scripts.entities import decode_response, encode_request
from tests.support.raw_client import RawClient
from tests.support.share_member import ACKNOWLEDGE, FETCH, ShareMember, configure

SHORT_MS: Final = 500
LONG_MS: Final = 3_000
# What a fetch is told that finds nothing: the error of the whole, and of each partition with its acquired records.
NOTHING: Final[list[object]] = ["none", [(0, "none", [])]]
WHILE_CLOSING: Final[dict[str, list[object]]] = {
    "it has no session yet": ["share_session_not_found", "share_session_not_found"],
    "it leaves": ["none", "unknown_member_id", "unknown_member_id"],
    "its first fetch waits, the close is behind it": ["none", *NOTHING, "none"],
    "its first fetch waits, the close comes on another connection": ["none", *NOTHING],
    "it leaves while its first fetch waits": ["none", "none", [(0, "none", [(0, 0, 1)])], "none"],
    "another one gets what it held": ["none", [(0, "none", [(0, 0, 2)])]],
    "its first fetch comes when it has left": NOTHING,
}


def told(answer: dict[str, Any]) -> list[object]:
    """The error of a share fetch, and of each partition with its acquired records."""
    partitions = [
        (
            partition["partition_index"],
            partition["error_code"],
            [
                (r["first_offset"], r["last_offset"], r["delivery_count"])
                for r in partition["acquired_records"]
            ],
        )
        for topic in answer["responses"]
        for partition in topic["partitions"]
    ]
    return [answer["error_code"], partitions]


def close_elsewhere(client: RawClient, member: ShareMember) -> str:
    """Close the session of a fetch that is on its way, once it has opened it."""
    found: list[str] = []

    def closed() -> bool:
        found[:] = [client.ask(ACKNOWLEDGE, 2, member.close_body())["error_code"]]
        return found[0] != "share_session_not_found"

    wait_until(closed, 20, "a session to close")
    return found[0]


def told_while_closing(node: ServerProcess) -> dict[str, list[object]]:
    """Ask everything, with a member and a topic of its own each time."""
    with RawClient(node) as client:

        def assigned() -> ShareMember:
            name = f"closing-{uuid.uuid4().hex[:8]}"
            topic_id = client.create_topic_with_id(name)
            configure(client, name, auto_offset_reset="earliest")
            return ShareMember(node, name, name, topic_id).join()

        return _ask(node, client, assigned)


def _ask(
    node: ServerProcess, client: RawClient, assigned: Callable[[], ShareMember]
) -> dict[str, list[object]]:
    answers: dict[str, list[object]] = {}

    member = assigned()
    acknowledged = client.ask(ACKNOWLEDGE, 2, member.close_body())["error_code"]
    member.client.send(encode_request(FETCH, 2, member.fetch_body(close=True)))
    answers["it has no session yet"] = [acknowledged, member.end_fetch()["error_code"]]
    answers["it leaves"] = [member.beat(client, epoch) for epoch in (-1, -1, member.member_epoch)]

    member = assigned()
    member.begin_fetch(SHORT_MS)
    member.client.send(encode_request(ACKNOWLEDGE, 2, member.close_body()))
    left = member.beat(client, -1)
    fetched = told(member.end_fetch())
    closed = decode_response(ACKNOWLEDGE, 2, member.client.receive())["error_code"]
    answers["its first fetch waits, the close is behind it"] = [left, *fetched, closed]

    member = assigned()
    member.begin_fetch(LONG_MS)
    closed = close_elsewhere(client, member)
    fetched = told(member.end_fetch())
    answers["its first fetch waits, the close comes on another connection"] = [closed, *fetched]

    member = assigned()
    member.begin_fetch(LONG_MS)
    left = member.beat(client, -1)
    client.write(member.topic, 0, [b"a"])
    fetched = told(member.end_fetch())
    closed = client.ask(ACKNOWLEDGE, 2, member.close_body())["error_code"]
    answers["it leaves while its first fetch waits"] = [left, *fetched, closed]
    other = ShareMember(node, member.group, member.topic, member.topic_id).join()
    other.begin_fetch(LONG_MS)
    answers["another one gets what it held"] = told(other.end_fetch())

    member = assigned()
    member.beat(client, -1)
    member.begin_fetch(SHORT_MS)
    answers["its first fetch comes when it has left"] = told(member.end_fetch())
    return answers
