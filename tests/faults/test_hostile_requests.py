"""Requests that become much more than they are: others are answered within a second, memory stays bounded.

The bounds are in docs/operations.md.
"""

from __future__ import annotations

import contextlib
import struct
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest
from tests.faults.conftest import MakeNode
from tests.faults.test_classic_floods import coordinated
from tests.faults.test_hostile_connections import started
from tests.faults.test_large_requests import metadata_names, uvarint
from tests.interop.ottla_node import OttlaNode
from tests.interop.process import wait_until
from tests.interop.scripts.entities import decode_response, encode_request, frame, header_bytes
from tests.support.control import ControlClient
from tests.support.raw_client import METADATA, RawClient

MIB = 1024 * 1024
# Just below what a request other than Produce may have.
GIANT_BYTES = 16 * MIB - 1000
OWN_BYTES = 32 * MIB
# Frames on their way, and their copies while they are decoded.
FRAMES_BYTES = 256 * MIB
# What 400,000 elements take, as a request and as its answer.
ELEMENTS_BYTES = 256 * MIB
# What members of one group may say of themselves, and of all.
GROUP_BYTES, ALL_GROUPS_BYTES = 32 * MIB, 128 * MIB
JOIN, LIST_OFFSETS, DELETE_GROUPS, SYNC = 11, 2, 42, 14

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is read from /proc")


def tiny_strings() -> bytes:
    """DeleteGroups of very many empty names."""
    count = GIANT_BYTES - 100
    return frame(
        header_bytes(DELETE_GROUPS, 2, 1, "x", True) + uvarint(count + 1) + b"\x01" * count + b"\x00"
    )


def tiny_structs() -> bytes:
    """Metadata of very many topics without a name."""
    count = GIANT_BYTES // 18 - 10
    topic = bytes(16) + b"\x00\x00"
    return frame(header_bytes(METADATA, 12, 1, "x", True) + uvarint(count + 1) + topic * count + bytes(3))


def nested_lists() -> bytes:
    """ListOffsets of very many topics, each with a few partitions."""
    partition = struct.pack(">iiqB", 0, -1, -1, 0)
    topic = b"\x02t" + uvarint(4) + partition * 3 + b"\x00"
    count = GIANT_BYTES // len(topic) - 10
    head = header_bytes(LIST_OFFSETS, 7, 1, "x", True) + struct.pack(">ib", -1, 0)
    return frame(head + uvarint(count + 1) + topic * count + b"\x00")


def unknown_tags() -> bytes:
    count = GIANT_BYTES // 3 - 10
    tags = uvarint(count) + b"\x7f\x01x" * count
    return frame(header_bytes(METADATA, 12, 1, "x", True) + b"\x01" + bytes(2) + tags)


def fetch_topics() -> bytes:
    """A fetch of very many topics, each with a few partitions."""
    partition = struct.pack(">iiqiqiB", 0, -1, 0, -1, -1, 100, 0)
    topic = b"\x02t" + uvarint(4) + partition * 3 + b"\x00"
    count = min(GIANT_BYTES // len(topic), 99_000)
    head = header_bytes(1, 12, 1, "x", True) + struct.pack(">iiiibii", -1, 0, 1, 1000, 0, 0, -1)
    return frame(head + uvarint(count + 1) + topic * count + b"\x01\x01\x00")


@pytest.mark.parametrize("make", [tiny_strings, tiny_structs, nested_lists, unknown_tags, fetch_topics])
def test_giant_lists(make_node: MakeNode, make: Callable[[], bytes]) -> None:
    """They are refused before they are made, however many come at once."""
    request = make()
    assert len(request) <= GIANT_BYTES + 4
    with started(make_node) as node, ControlClient(node) as control:
        control.still_works()
        before = node.rss_bytes()
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(RawClient(node, timeout_s=60)) for _ in range(8)]
            for client in clients:
                client.send(request)
            assert all(client.is_closed() for client in clients)
            control.was_served_promptly()
        assert node.peak_rss_bytes() - before <= FRAMES_BYTES + OWN_BYTES


def test_large_lists_at_once(make_node: MakeNode) -> None:
    """Each may be served: they wait for each other, so that few are there at a time."""
    request = metadata_names(90_000)
    with started(make_node) as node, ControlClient(node) as control:
        control.still_works()
        before = node.rss_bytes()
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(RawClient(node, timeout_s=120)) for _ in range(12)]
            for client in clients:
                client.send(request)
            for client in clients:
                assert len(client.receive()) > 1_000_000
            control.was_served_promptly()
        assert node.peak_rss_bytes() - before <= ELEMENTS_BYTES + OWN_BYTES


def join_frame(group: str, metadata: bytes) -> bytes:
    body = {
        "group_id": group,
        "session_timeout": 60_000,
        "rebalance_timeout": 60_000,
        "member_id": "",
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": metadata}],
    }
    return encode_request(JOIN, 3, body)


def flood_of_joins(node: OttlaNode, groups: list[str], size_bytes: int) -> Counter[str]:
    """One member after the other, each on a connection of its own; how those were answered that were turned away."""
    with contextlib.ExitStack() as stack:
        answers: Counter[str] = Counter()
        for group in groups:
            client = stack.enter_context(RawClient(node))
            client.send(join_frame(group, bytes(size_bytes)))
            client.sock.settimeout(0.05)
            with contextlib.suppress(TimeoutError):
                answers[decode_response(JOIN, 3, client.receive())["error_code"]] += 1
        return answers


@pytest.mark.parametrize("groups", [1, 400], ids=["into one group", "into many groups"])
def test_members_that_say_very_much(make_node: MakeNode, groups: int) -> None:
    settings = {"group.initial.rebalance.delay.ms": 60_000}
    with (
        started(partial(make_node, settings)) as node,
        ControlClient(node) as control,
        RawClient(node) as client,
    ):
        coordinated(client, "group-0")
        wait_until(lambda: coordinated(client, "other") == "other", 30, "the coordinators")
        control.still_works()
        before = node.rss_bytes()
        refused = flood_of_joins(node, [f"group-{n % groups}" for n in range(400)], MIB)
        control.was_served_promptly()
        held, code = (GROUP_BYTES, "group_max_size_reached") if groups == 1 else (ALL_GROUPS_BYTES, "")
        code = code or "coordinator_not_available"
        assert refused[code] >= (400 - held // MIB) * 3 // 4  # the others were not waited for
        assert node.peak_rss_bytes() - before <= 2 * held + OWN_BYTES
        # Who says little is let in all the same.
        with RawClient(node) as modest:
            modest.send(join_frame("other", bytes(100)))
            modest.sock.settimeout(0.5)
            with pytest.raises(TimeoutError):  # it waits for others to come
                modest.receive()
