"""Offsets and groups by name on a whole node, request by request: what only handlers and shards together do."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.interop.process import receive_frame, wait_until

from ottla.client.admin.types import NewTopic
from ottla.client.blocking import Admin
from ottla.coordinator.java_hash import partition_for
from ottla.model.errors import ErrorCode
from ottla.model.ids import Uuid, uuid_to_str
from ottla.server.handlers.metadata import normal_share_key
from ottla.testing import Broker
from ottla.wire.codec import decode
from ottla.wire.framing import decode_response_header, encode_request
from ottla.wire.messages.groups.classic import (
    DeleteGroupsRequest,
    FindCoordinatorRequest,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from ottla.wire.messages.producers import InitProducerIdRequest
from ottla.wire.registry import response_class

UNKNOWN_ID = Uuid(b"nobody's id-----")
UNKNOWN = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


class Client:
    """One connection, one question at a time."""

    def __init__(self, broker: Broker) -> None:
        host, port = broker.bootstrap_servers.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout=20)

    def close(self) -> None:
        self._socket.close()

    def ask(self, request: Any, version: int) -> Any:
        self.send(request, version)
        return self.receive(type(request), version)

    def send(self, request: Any, version: int) -> None:
        self._socket.sendall(encode_request(request, version, 7, "test"))

    def receive(self, asked: Any, version: int) -> Any:
        answer = receive_frame(self._socket)
        _, start = decode_response_header(answer, 0, asked.API_KEY, version)
        return decode(response_class(asked.API_KEY), answer, version, start)[0]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(data_dir=tmp_path / "data") as running:
        with Admin(bootstrap_servers=running.bootstrap_servers) as admin:
            admin.create_topics([NewTopic("t", 3), NewTopic("u", 1)])
        yield running


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    link = Client(broker)
    ready(link, "g", "h")
    yield link
    link.close()


def ready(client: Client, *groups: str) -> None:
    """Wait until these groups have coordinators that answer."""

    def found() -> bool:
        request = FindCoordinatorRequest(key_type=0, coordinator_keys=list(groups))
        if any(row.error_code for row in client.ask(request, 4).coordinators):
            return False
        asked = [OffsetFetchRequestGroup(group_id=group, topics=[]) for group in groups]
        return not any(row.error_code for row in client.ask(OffsetFetchRequest(groups=asked), 8).groups)

    wait_until(found, 20, "coordinators")


def commit(
    client: Client, topics: dict[str | Uuid, dict[int, int]], version: int = 9, group: str = "g"
) -> Any:
    rows = []
    for topic, offsets in topics.items():
        partitions = [
            OffsetCommitRequestPartition(partition_index=p, committed_offset=o, committed_metadata="")
            for p, o in offsets.items()
        ]
        named = {"name": topic} if isinstance(topic, str) else {"topic_id": topic}
        rows.append(OffsetCommitRequestTopic(**named, partitions=partitions))
    return client.ask(OffsetCommitRequest(group_id=group, member_id="", topics=rows), version)


def errors(response: Any) -> dict[tuple[Any, int], int]:
    return {
        (topic.name or topic.topic_id, p.partition_index): p.error_code
        for topic in response.topics
        for p in topic.partitions
    }


def offsets(
    client: Client, group: str = "g", version: int = 9, *, stable: bool = False
) -> dict[tuple[str, int], int]:
    asked = [OffsetFetchRequestGroup(group_id=group, topics=None)]
    (found,) = client.ask(OffsetFetchRequest(groups=asked, require_stable=stable), version).groups
    return {
        (topic.name, p.partition_index): p.committed_offset
        for topic in found.topics
        for p in topic.partitions
    }


def topic_id(broker: Broker, name: str) -> Uuid:
    topic = broker.node.controller.image.topic(name)
    assert topic is not None
    return topic.id


@pytest.mark.parametrize(("key_type", "version"), [(0, 1), (0, 4), (0, 6), (1, 1), (1, 6), (2, 6)])
def test_the_first_question_waits_until_the_coordinator_serves(
    broker: Broker, key_type: int, version: int
) -> None:
    key = f"g:{uuid_to_str(topic_id(broker, 't'))}:0" if key_type == 2 else "g"
    link = Client(broker)
    if version < 4:
        found = link.ask(FindCoordinatorRequest(key_type=key_type, key=key), version)
    else:
        request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])
        (found,) = link.ask(request, version).coordinators
    assert (found.error_code, found.node_id) == (0, broker.node.node_id)
    if key_type == 0:
        asked = [OffsetFetchRequestGroup(group_id="g", topics=[])]
        assert [row.error_code for row in link.ask(OffsetFetchRequest(groups=asked), 8).groups] == [0]
    if key_type == 1:
        begun = link.ask(InitProducerIdRequest(transactional_id="g", transaction_timeout_ms=1_000), 4)
        assert begun.error_code == 0
    link.close()


def test_nobody_waits_for_a_coordinator_that_cannot_be_made(tmp_path: Path) -> None:
    with Broker({"offsets.topic.replication.factor": 3}, tmp_path / "data") as broker:
        link = Client(broker)
        for _ in range(2):
            (found,) = link.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4).coordinators
            assert found.error_code == int(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            assert (found.node_id, found.host, found.port) == (-1, "", -1)
        link.close()


def test_a_coordinator_that_takes_long_is_not_waited_for_for_ever(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    create, released = broker.node.controller.create_topics, threading.Event()

    async def slow(*given: Any) -> Any:
        while not released.is_set():
            await asyncio.sleep(0.01)
        return await create(*given)

    monkeypatch.setattr(broker.node.controller, "create_topics", slow)
    monkeypatch.setattr("ottla.server.handlers.metadata.MAX_WAIT_S", 0.05)
    link = Client(broker)
    asked = FindCoordinatorRequest(key_type=0, coordinator_keys=["g"])
    for _ in range(2):
        (found,) = link.ask(asked, 4).coordinators
        assert found.error_code == int(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    released.set()
    monkeypatch.setattr("ottla.server.handlers.metadata.MAX_WAIT_S", 20)
    (found,) = link.ask(asked, 4).coordinators
    assert found.error_code == 0
    link.close()


def test_the_first_question_makes_the_topic_as_apache_does(broker: Broker) -> None:
    link = Client(broker)
    asked = FindCoordinatorRequest(key_type=0, coordinator_keys=["g"])
    (found,) = link.ask(asked, 4).coordinators
    assert found.error_code == 0
    assert f"{found.host}:{found.port}" == broker.bootstrap_servers
    image = broker.node.controller.image
    topic = image.topic("__consumer_offsets")
    assert topic is not None
    assert len(topic.partitions) == 50
    assert dict(image.config(2, "__consumer_offsets")) == {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": "104857600",
    }
    old = link.ask(FindCoordinatorRequest(key="g"), 0)
    assert (old.error_code, old.node_id) == (0, found.node_id)
    link.close()


def test_what_does_not_exist_is_refused_and_the_rest_committed(client: Client) -> None:
    answer = commit(client, {"nope": {0: 1}, "t": {0: 5, 9: 1}, "u": {0: 6}})
    assert errors(answer) == {("nope", 0): UNKNOWN, ("t", 9): UNKNOWN, ("t", 0): 0, ("u", 0): 0}
    assert [topic.name for topic in answer.topics] == ["nope", "t", "u"]
    assert offsets(client) == {("t", 0): 5, ("u", 0): 6}
    assert offsets(client, stable=True) == {("t", 0): 5, ("u", 0): 6}


def test_nothing_that_exists_is_nothing_to_decide(client: Client) -> None:
    assert errors(commit(client, {"nope": {0: 1}}, group="other")) == {("nope", 0): UNKNOWN}
    assert [row.group_id for row in client.ask(ListGroupsRequest(), 5).groups] == []


def test_topics_by_their_ids(broker: Broker, client: Client) -> None:
    known = topic_id(broker, "t")
    answer = commit(client, {UNKNOWN_ID: {0: 1}, known: {1: 7, 4: 1}}, version=10)
    assert errors(answer) == {
        (UNKNOWN_ID, 0): int(ErrorCode.UNKNOWN_TOPIC_ID),
        (known, 1): 0,
        (known, 4): UNKNOWN,
    }
    topics = [OffsetFetchRequestTopics(topic_id=i, partition_indexes=[1]) for i in (known, UNKNOWN_ID)]
    asked = [OffsetFetchRequestGroup(group_id="g", topics=topics)]
    (found,) = client.ask(OffsetFetchRequest(groups=asked), 10).groups
    assert [
        (t.topic_id, t.partitions[0].committed_offset, t.partitions[0].error_code) for t in found.topics
    ] == [
        (known, 7, 0),
        (UNKNOWN_ID, -1, int(ErrorCode.UNKNOWN_TOPIC_ID)),
    ]
    (everything,) = client.ask(
        OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=None)]), 10
    ).groups
    assert [topic.topic_id for topic in everything.topics] == [known]


def test_a_refusal_as_a_whole_stands_at_every_partition(client: Client) -> None:
    request = OffsetCommitRequest(
        group_id="g",
        member_id="m",
        generation_id_or_member_epoch=3,
        topics=[
            OffsetCommitRequestTopic(
                name=name,
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=p, committed_offset=1, committed_metadata=None
                    )
                    for p in (0, 1)
                ],
            )
            for name in ("t", "u")
        ],
    )
    refused = int(ErrorCode.ILLEGAL_GENERATION)
    assert errors(client.ask(request, 8)) == {
        ("u", 1): UNKNOWN,
        ("u", 0): refused,
        ("t", 0): refused,
        ("t", 1): refused,
    }


def test_more_offsets_than_any_batch_holds_are_refused(client: Client) -> None:
    many = commit(client, {"t": dict.fromkeys(range(20_001), 1)})
    assert set(errors(many).values()) == {int(ErrorCode.UNKNOWN_SERVER_ERROR)}
    assert offsets(client) == {}


@pytest.mark.parametrize("version", range(1, 8))
def test_older_versions_ask_about_one_group(client: Client, version: int) -> None:
    commit(client, {"t": {0: 5}})
    request = OffsetFetchRequest(
        group_id="g", topics=[OffsetFetchRequestTopic(name="t", partition_indexes=[0, 1])]
    )
    answer = client.ask(request, version)
    assert answer.error_code == 0
    assert [p.committed_offset for p in answer.topics[0].partitions] == [5, -1]


def test_several_groups_at_once_stable_or_not(client: Client) -> None:
    commit(client, {"t": {0: 5}}, group="g")
    commit(client, {"t": {0: 6}}, group="h")
    asked = [OffsetFetchRequestGroup(group_id=group, topics=None) for group in ("g", "nobody", "h")]
    for stable in (False, True):
        found = client.ask(OffsetFetchRequest(groups=asked, require_stable=stable), 9).groups
        assert [
            (g.group_id, [p.committed_offset for t in g.topics for p in t.partitions]) for g in found
        ] == [
            ("g", [5]),
            ("nobody", []),
            ("h", [6]),
        ]


def test_groups_are_listed_and_deleted(client: Client) -> None:
    ready(client, "")
    for group in ("g", "h"):
        commit(client, {"t": {0: 1}}, group=group)
    listed = client.ask(ListGroupsRequest(states_filter=["empty"], types_filter=["Classic"]), 5).groups
    assert sorted((row.group_id, row.group_state, row.group_type) for row in listed) == [
        ("g", "Empty", "classic"),
        ("h", "Empty", "classic"),
    ]
    results = client.ask(DeleteGroupsRequest(groups_names=["g", "nobody", "g"]), 2).results
    assert sorted((row.group_id, row.error_code) for row in results) == [
        ("g", 0),
        ("nobody", int(ErrorCode.GROUP_ID_NOT_FOUND)),
    ]
    assert offsets(client, "g") == {}
    assert offsets(client, "h") == {("t", 0): 1}


def test_single_offsets_are_deleted(client: Client) -> None:
    commit(client, {"t": {0: 1, 1: 2}})
    rows = {"t": [0, 7], "nope": [0]}
    request = OffsetDeleteRequest(
        group_id="g",
        topics=[
            OffsetDeleteRequestTopic(
                name=name, partitions=[OffsetDeleteRequestPartition(partition_index=p) for p in partitions]
            )
            for name, partitions in rows.items()
        ],
    )
    answer = client.ask(request, 0)
    assert errors(answer) == {("t", 7): UNKNOWN, ("nope", 0): UNKNOWN, ("t", 0): 0}
    assert offsets(client) == {("t", 1): 2}
    assert client.ask(OffsetDeleteRequest(group_id="", topics=[]), 0).error_code == int(
        ErrorCode.INVALID_GROUP_ID
    )
    request.group_id = "nobody"
    assert client.ask(request, 0).error_code == int(ErrorCode.GROUP_ID_NOT_FOUND)


def test_offsets_go_with_their_topic(broker: Broker, client: Client) -> None:
    commit(client, {"t": {0: 1, 1: 2}, "u": {0: 3}})
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.delete_topics(["t"])
    wait_until(lambda: offsets(client) == {("u", 0): 3}, 20, "the offsets to go")


def test_offsets_outlive_a_stop_and_are_not_read_before_they_are_loaded(tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path) as broker:
        with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
            admin.create_topics([NewTopic("t", 3)])
        link = Client(broker)
        ready(link, "g")
        commit(link, {"t": {0: 41, 2: 42}})
        link.close()
    with Broker(data_dir=tmp_path) as broker:
        link = Client(broker)
        ready(link, "g")
        assert offsets(link) == {("t", 0): 41, ("t", 2): 42}
        link.close()


def test_a_coordinator_s_log_that_somebody_else_wrote_to_is_loaded_again(
    broker: Broker, client: Client
) -> None:
    commit(client, {"t": {0: 1}})
    index = partition_for("g", 50)
    runtime = broker.node.coordinators.groups
    lost = runtime.active(index)
    lost._next_offset += 1  # as if the log had been moved under its feet
    lost._batch_offset += 1
    refused = commit(client, {"t": {0: 2}})
    assert errors(refused) == {("t", 0): int(ErrorCode.NOT_COORDINATOR)}
    ready(client, "g")
    assert runtime.active(index) is not lost
    assert offsets(client) == {("t", 0): 2}  # it is in the log, whatever was told
    assert errors(commit(client, {"t": {0: 3}})) == {("t", 0): 0}


@pytest.mark.parametrize(
    ("key", "normal"),
    [
        ("g:AAAAAAAAAAAAAAAAAAAAAQ:0", "g:AAAAAAAAAAAAAAAAAAAAAQ:0"),
        ("a:b:AAAAAAAAAAAAAAAAAAAAAQ:+07", "a:b:AAAAAAAAAAAAAAAAAAAAAQ:7"),
        ("g:AAAAAAAAAAAAAAAAAAAAAQ==:0", "g:AAAAAAAAAAAAAAAAAAAAAQ:0"),
        ("g:AAAAAAAAAAAAAAAAAAAAAQ:0::", "g:AAAAAAAAAAAAAAAAAAAAAQ:0"),
        ("g:AAAAAAAAAAAAAAAAAAAAAQ", None),
        (":AAAAAAAAAAAAAAAAAAAAAQ:0", None),
        ("g:AAAAAAAAAAAAAAAAAAAAAQ:2147483648", None),
        ("g:not-an-id:0", None),
        ("", None),
    ],
)
def test_keys_of_share_partitions(key: str, normal: str | None) -> None:
    assert normal_share_key(key) == normal


def test_the_frame_of_a_request_is_read_to_its_end(client: Client) -> None:
    """A commit that ends in the middle of a partition closes the connection; the group is as it was."""
    commit(client, {"t": {0: 1}})
    frame = bytearray(
        encode_request(OffsetCommitRequest(group_id="g", member_id="", topics=[]), 9, 7, "test")
    )
    frame[-2:] = b"\x7f\x00"  # very many topics, none of them there
    frame[:4] = struct.pack(">i", len(frame) - 4)
    client._socket.sendall(frame)
    assert client._socket.recv(1) == b""
