"""Three drivers over sockets and a NodeClient each: what the network in memory does not show."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.unit.raft.quorum import LISTENER, TIMEOUTS, is_committed, key, until
from tests.unit.raft.support import CLUSTER_ID, MV, Listener, frames, topic

from ottla.metadata.records import TopicRecord
from ottla.metadata.registrations import Endpoint
from ottla.model.clock import SystemClock
from ottla.model.errors import ErrorCode, KafkaError
from ottla.net.nodes import NodeClient, NodeClientSettings
from ottla.raft.answers import Asked
from ottla.raft.driver import RaftDriver, RaftOptions
from ottla.raft.formatting import format_metadata
from ottla.raft.voters import SUPPORTED_KRAFT_VERSIONS, VoterNode, VoterSet
from ottla.wire.codec import decode
from ottla.wire.framing import decode_request_header, encode_response
from ottla.wire.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from ottla.wire.registry import request_class
from ottla.wire.schema import schema_of

APIS = (1, 18, 52, 53, 54, 55, 59, 80, 81, 82)


class SocketNode:
    """A driver with a listener of its own and connections to the others."""

    def __init__(self, node_id: int, directory: Path) -> None:
        self.node_id = node_id
        self.directory = directory
        self.raft: RaftDriver
        self.listener: Listener
        self._port = 0
        self._server: asyncio.Server | None = None
        self._client: NodeClient | None = None
        self._connections: set[asyncio.StreamWriter] = set()
        # What becomes of an answer on its way; of one that is not whole nothing more comes.
        self.spoil: Callable[[bytes], bytes] | None = None
        self.spoilt = 0

    @property
    def voter(self) -> VoterNode:
        return VoterNode(
            key(self.node_id), (Endpoint(LISTENER, "127.0.0.1", self._port),), SUPPORTED_KRAFT_VERSIONS
        )

    async def listen(self) -> None:
        """On any port that is free: the voters are formatted with it, or hear of it later."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._port = self._server.sockets[0].getsockname()[1]

    async def start(self) -> None:
        if self._server is None:
            await self.listen()
        options = RaftOptions(CLUSTER_ID, self.directory, self.voter, timeouts=TIMEOUTS)
        self._client = NodeClient(NodeClientSettings(f"raft-client-{self.node_id}"), random=Random(1))
        self.raft = RaftDriver(options, SystemClock(), self._client, random=Random(self.node_id))
        self.listener = Listener(self.raft)
        self.raft.load()
        await self.raft.start(self.listener)

    async def stop(self) -> None:
        assert self._server is not None
        assert self._client is not None
        self._server.close()
        for writer in list(self._connections):
            writer.close()
        self._server = None
        await self.raft.stop()
        await self._client.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(writer)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                try:
                    answer = await self._answer(await reader.readexactly(size))
                except KafkaError as error:
                    if error.code is not ErrorCode.BROKER_NOT_AVAILABLE:
                        raise
                    break  # the node stops, and hangs up
                if self.spoil is not None:
                    whole, answer = len(answer), self.spoil(answer)
                    self.spoilt += 1
                    if len(answer) < whole:
                        writer.write(answer)
                        break
                writer.write(answer)
        self._connections.discard(writer)
        writer.close()

    async def _answer(self, frame: bytes) -> bytes:
        header, body = decode_request_header(frame, 0, len(frame))
        request, _ = decode(request_class(header.api_key), frame, header.api_version, body)
        response: Any
        if isinstance(request, ApiVersionsRequest):
            response = ApiVersionsResponse(api_keys=[_range(api_key) for api_key in APIS])
        else:
            response = await self.raft.handle(request, Asked(header.api_version, LISTENER))
        return bytes(encode_response(response, header.api_version, header.correlation_id))


def _range(api_key: int) -> ApiVersion:
    versions = schema_of(request_class(api_key)).versions
    return ApiVersion(api_key=api_key, min_version=min(versions), max_version=max(versions))


def test_a_quorum_over_sockets_survives_its_leader(tmp_path: Path) -> None:
    async def work() -> None:
        nodes = [SocketNode(n, tmp_path / f"node-{n}") for n in (1, 2, 3)]
        for node in nodes:
            await node.listen()
        voters = VoterSet.of(*(node.voter for node in nodes))
        for node in nodes:
            format_metadata(node.directory, now_ms=1, voters=voters)
            await node.start()
        first = await written(nodes, [MV, topic("a")])
        await first.stop()
        others = [node for node in nodes if node is not first]
        second = await written(others, [topic("b")])
        assert second.raft.epoch > first.raft.epoch
        await first.start()
        await until(lambda: all(set(node.listener.image.topics) == {"a", "b"} for node in nodes))
        # It has come back at another port, and the log says so.
        await until(lambda: all(n.raft.state.voters.voters[first.node_id] == first.voter for n in nodes))
        for node in nodes:
            await node.stop()

    asyncio.run(work())


def cut(answer: bytes) -> bytes:
    return answer[: len(answer) // 2]


def twice(answer: bytes) -> bytes:
    return answer + answer


def of_another_request(answer: bytes) -> bytes:
    return answer[:4] + bytes([answer[4] ^ 1]) + answer[5:]


def endless(answer: bytes) -> bytes:
    return b"\x7f\xff\xff\xff" + answer[4:]


def negative(answer: bytes) -> bytes:
    return b"\xff\xff\xff\xff" + answer[4:]


def noise(answer: bytes) -> bytes:
    return answer[:8] + Random(len(answer)).randbytes(len(answer) - 8)


@pytest.mark.parametrize("spoil", [cut, twice, of_another_request, endless, negative, noise])
def test_answers_that_are_spoilt_on_their_way(
    tmp_path: Path, spoil: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    """Of one of three: the other two go on, and it takes part again afterwards."""

    async def work() -> None:
        nodes = [SocketNode(n, tmp_path / f"node-{n}") for n in (1, 2, 3)]
        for node in nodes:
            await node.listen()
        voters = VoterSet.of(*(node.voter for node in nodes))
        for node in nodes:
            format_metadata(node.directory, now_ms=1, voters=voters)
            await node.start()
        liar = await written(nodes, [MV])
        liar.spoil = spoil
        others = [node for node in nodes if node is not liar]
        await until(lambda: any(node.raft.is_leader for node in others))
        await written(others, [topic("meanwhile")])
        assert liar.spoilt
        liar.spoil = None
        await until(lambda: all("meanwhile" in node.listener.image.topics for node in nodes))
        assert not any(node.listener.failures for node in nodes)
        for node in nodes:
            await node.stop()

    asyncio.run(work())
    assert not [r for r in caplog.records if r.exc_info]


async def written(nodes: list[SocketNode], records: list[Any]) -> SocketNode:
    """Appended by the leader among these, once there is one, and committed."""
    found: list[SocketNode] = []

    def led() -> bool:
        found[:] = [node for node in nodes if node.raft.is_leader]
        return bool(found)

    topics = {record.name for record in records if isinstance(record, TopicRecord)}
    while True:
        await until(led)
        if topics and topics <= found[0].listener.image.topics.keys():
            return found[0]  # an attempt before was not in vain: its leader did not live to see it
        last = found[0].raft.append(frames(*records))
        if await is_committed(found[0].raft, last):
            return found[0]
