"""One run of the scripts against one server: frames out, outcomes recorded under labels.

A script is a function that takes a `Script` and asks it things; it must do exactly the same whichever
server is behind, so everything that a server chooses (topic ids, session ids, producer ids) is looked up
through the script and replaced by a name before it is recorded.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from typing import Any

from kio.schema.index import api_key_map
from tests.interop.process import ServerProcess, receive_frame, wait_until
from tests.interop.scripts.batches import Batch
from tests.interop.scripts.entities import ZERO_ID, decode_response, encode_request
from tests.interop.scripts.masks import masked

ANSWER_TIMEOUT_S = 20.0
Outcome = Any
Ranges = dict[str, dict[int, tuple[int, int]]]
METADATA, API_VERSIONS, CREATE_TOPICS, PRODUCE = 3, 18, 19, 0


class Script:
    """Connections to one server, the names of its ids, and what was recorded."""

    def __init__(self, server: ServerProcess, ranges: Ranges, symbols: dict[str, str]) -> None:
        self.server = server
        self.ranges = ranges
        self.symbols = symbols
        self.record: dict[str, Outcome] = {}
        self.asked: set[tuple[str, int, int]] = set()
        self.topic_ids: dict[str, str] = {}
        self._sockets: dict[str, socket.socket] = {}
        self.listener = "broker"

    # Asking.
    def versions(self, api_key: int, since: int = 0, until: int = 99) -> Iterator[int]:
        """The versions that the reference serves on the current listener, within bounds."""
        low, high = self.ranges[self.listener][api_key]
        return iter(range(max(low, since), min(high, until) + 1))

    def newest(self, api_key: int) -> int:
        """The newest version that the reference serves."""
        return self.ranges[self.listener][api_key][1]

    def ask(
        self, api_key: int, version: int, body: dict[str, Any], case: str, **header: Any
    ) -> dict[str, Any]:
        """Send one request and record its answer; returns it unmasked (empty if there was none)."""
        request = encode_request(api_key, version, body, **header)
        return self.put(api_key, version, request, case, header.get("correlation_id", 7))

    def put(
        self, api_key: int, version: int, request: bytes, case: str, correlation_id: int = 7
    ) -> dict[str, Any]:
        """As `ask`, with a request that is encoded already."""
        self.asked.add((self.listener, api_key, version))
        label = f"{self.listener} {api_key_map[api_key]} v{version}: {case}"
        answer = self.exchange(request)
        if isinstance(answer, str):
            self.note(label, answer)
            return {}
        decoded = self.decoded(api_key, version, answer, correlation_id)
        self.note(label, masked(api_key, decoded, self.symbols))
        return decoded

    def decoded(self, api_key: int, version: int, payload: bytes, correlation_id: int) -> dict[str, Any]:
        """What is in an answer, and if that cannot be read, its bytes."""
        try:
            return decode_response(api_key, version, payload, correlation_id)
        except Exception as unreadable:  # noqa: BLE001  whatever kio cannot read is the finding
            return {"!unreadable": f"{type(unreadable).__name__}: {unreadable}", "!bytes": payload.hex()}

    def quiet(self, api_key: int, version: int, body: dict[str, Any]) -> dict[str, Any]:
        """Ask without recording: for what only prepares or looks up."""
        answer = self.exchange(encode_request(api_key, version, body))
        return decode_response(api_key, version, answer) if isinstance(answer, bytes) else {}

    def note(self, label: str, outcome: Outcome) -> None:
        """Record an outcome under its label, numbered when the label repeats."""
        unique, number = label, 1
        while unique in self.record:
            number += 1
            unique = f"{label} #{number}"
        self.record[unique] = outcome

    # Sockets.
    @property
    def who(self) -> str:
        """Those of one name share a connection."""
        return self.listener

    def connection(self) -> socket.socket:
        """The open connection to the current listener."""
        if self.who not in self._sockets:
            self._sockets[self.who] = self.fresh_connection()
        return self._sockets[self.who]

    def fresh_connection(self) -> socket.socket:
        """A new connection to the current listener."""
        if self.listener == "broker":
            return self.server.connect(ANSWER_TIMEOUT_S)
        at = (self.server.host, self.server.controller_port)
        return socket.create_connection(at, timeout=ANSWER_TIMEOUT_S)

    def exchange(self, data: bytes) -> bytes | str:
        """One frame out, one in; "closed" or "no answer" otherwise, and then a new connection."""
        sock = self.connection()
        try:
            sock.sendall(data)
            return receive_frame(sock)
        except TimeoutError:
            self.disconnect()
            return "no answer"
        except ConnectionError:
            self.disconnect()
            return "closed"

    def disconnect(self) -> None:
        """Drop the connection to the current listener."""
        sock = self._sockets.pop(self.who, None)
        if sock is not None:
            sock.close()

    def close(self) -> None:
        """Drop all connections."""
        for sock in self._sockets.values():
            sock.close()
        self._sockets.clear()

    # Preparing.
    def create(self, name: str, partitions: int = 1, **configs: object) -> str:
        """A topic that the script needs, with dotted config names written with underscores; its name."""
        settings = [{"name": k.replace("_", "."), "value": str(v)} for k, v in configs.items()]
        topic = {"name": name, "num_partitions": partitions, "replication_factor": 1, "configs": settings}
        answer = self.quiet(CREATE_TOPICS, 7, {"topics": [topic], "timeout": 20000})
        assert answer, f"the connection was closed on creating {name}"
        assert answer["topics"][0]["error_code"] in ("none", "topic_already_exists"), answer
        wait_until(lambda: self.is_led(name, partitions), 90, f"{name} to have leaders")
        return name

    def is_led(self, name: str, partitions: int) -> bool:
        """Whether every partition of the topic is there and can be written; remembers the topic's id."""
        query = {"topics": [{"topic_id": ZERO_ID, "name": name}], "allow_auto_topic_creation": False}
        topic = (self.quiet(METADATA, 12, query).get("topics") or [{}])[0]
        if topic.get("error_code") != "none" or len(topic["partitions"]) < partitions:
            return False
        if any(p["leader_id"] < 0 or p["error_code"] != "none" for p in topic["partitions"]):
            return False
        self.topic_ids[name] = topic["topic_id"]
        self.symbols[topic["topic_id"]] = f"<id of {name}>"
        return self._has_logs(name, partitions)

    def _has_logs(self, name: str, partitions: int) -> bool:
        # Metadata may be ahead of the replicas: a list-offsets answer proves that the leader is there.
        wanted = [
            {"partition_index": p, "current_leader_epoch": -1, "timestamp": -1} for p in range(partitions)
        ]
        body = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": name, "partitions": wanted}]}
        topics = self.quiet(2, 7, body).get("topics") or [{"partitions": [{"error_code": "none yet"}]}]
        return all(p["error_code"] == "none" for t in topics for p in t["partitions"])

    def produce(self, topic: str, partition: int, batches: Batch | Sequence[Batch]) -> dict[str, Any]:
        """Write batches, one request each, and expect them to be taken."""
        answer: dict[str, Any] = {}
        for batch in [batches] if isinstance(batches, Batch) else batches:
            data = [{"index": partition, "records": batch.encode()}]
            body = {"acks": -1, "timeout": 20000, "topic_data": [{"name": topic, "partition_data": data}]}
            answer = self.quiet(PRODUCE, 9, body)["responses"][0]["partition_responses"][0]
            assert answer["error_code"] == "none", (topic, answer)
        return answer


def api_ranges(server: ServerProcess, controller_port: int | None = None) -> Ranges:
    """What each listener of a server says in ApiVersions v0; its controller's, or that of another process."""
    ranges: Ranges = {}
    for listener, port in (
        ("broker", server.port),
        ("controller", controller_port or server.controller_port),
    ):
        with socket.create_connection((server.host, port), timeout=ANSWER_TIMEOUT_S) as sock:
            sock.sendall(encode_request(API_VERSIONS, 0, {}))
            rows = decode_response(API_VERSIONS, 0, receive_frame(sock))["api_keys"]
        ranges[listener] = {row["api_key"]: (row["min_version"], row["max_version"]) for row in rows}
    return ranges
