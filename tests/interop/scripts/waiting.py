"""Scripts: long polls and what ends them; topics that are the brokers' own; more replicas wanted than there are."""

from __future__ import annotations

import socket
import struct
import threading
import uuid
from typing import Any

from tests.interop.process import receive_frame, wait_until
from tests.interop.scripts.batches import Batch, Rec
from tests.interop.scripts.entities import ZERO_ID, decode_response, encode_request, frame
from tests.interop.scripts.fetch import fetch_body, fetch_topic, part
from tests.interop.scripts.masks import masked
from tests.interop.scripts.produce import produce_body
from tests.interop.scripts.script import Script
from tests.interop.scripts.topics import topic

FETCH = 1
PATIENCE_MS = 15_000


def long_polls(s: Script) -> None:
    """A waiting fetch is ended by the bytes it waits for, and by errors, not before."""
    for v in (4, 11, s.newest(FETCH)):
        name = s.create(f"wait-{v}", 2)
        waits = fetch_body(fetch_topic(s, name, part(0), part(1)), max_wait=PATIENCE_MS, min_bytes=1)
        alone = fetch_body(fetch_topic(s, name, part(0)), max_wait=PATIENCE_MS, min_bytes=10**6)
        _while_waiting(s, v, waits, "one batch comes", lambda n=name: s.produce(n, 1, Batch()))
        more = fetch_body(fetch_topic(s, name, part(0)), max_wait=PATIENCE_MS, min_bytes=150)
        batches = [Batch(records=[Rec(b"x" * 20)])] * 2
        _while_waiting(s, v, more, "two batches come", lambda n=name, b=batches: s.produce(n, 0, b))
        idle = fetch_body(fetch_topic(s, name, part(0, 2)), max_wait=200, min_bytes=1)
        _while_waiting(s, v, idle, "nothing comes", lambda: None)
        _while_waiting(s, v, alone, "the topic goes", lambda n=name: _delete(s, n))


def _while_waiting(s: Script, v: int, body: dict[str, Any], case: str, act: Any) -> None:
    # The fetch goes out first on a connection of its own; what ends it is done on the script's.
    with s.fresh_connection() as sock:
        sock.sendall(encode_request(FETCH, v, body))
        answer: list[bytes] = []
        reader = threading.Thread(target=lambda: answer.append(receive_frame(sock)))
        reader.start()
        act()
        reader.join(PATIENCE_MS / 1000 + 5)
    s.asked.add((s.listener, FETCH, v))
    decoded = decode_response(FETCH, v, answer[0]) if answer else {}
    s.note(f"waiting fetch v{v}: {case}", masked(FETCH, decoded, s.symbols) if answer else "no answer")


def _delete(s: Script, name: str) -> None:
    gone = s.quiet(20, 6, {"topics": [{"name": name, "topic_id": ZERO_ID}], "timeout": 20000})
    assert gone["responses"][0]["error_code"] == "none", gone


def internal_topics(s: Script) -> None:
    """The coordinators' topics can be made by hand, are marked, and are closed to ordinary producers."""
    name = "__share_group_state"
    # Asked for like any topic, it is made as its coordinator wants it.
    s.ask(3, 12, {"topics": [{"name": name}], "allow_auto_topic_creation": True}, "to be made on demand")
    wait_until(lambda: s.is_led(name, 50), 90, f"{name} to be made")
    configs = {"resources": [{"resource_type": 2, "resource_name": name, "configuration_keys": None}]}
    s.ask(32, 4, configs, "made on demand")
    _delete(s, name)
    s.ask(19, 7, {"topics": [topic(name, 2)], "timeout": 20000}, "made by hand")
    wait_until(lambda: s.is_led(name, 2), 90, f"{name} to be led")
    for v in (1, 9, s.newest(3)):
        s.ask(3, v, {"topics": [{"name": name}], "allow_auto_topic_creation": False}, "internal")
    s.ask(75, 0, {"topics": [{"name": name}]}, "internal")
    keyed = Batch(records=[Rec(b"v", key=b"k")]).encode()
    for v in (3, 9, s.newest(0)):
        s.ask(0, v, produce_body(s, name, keyed), "to an internal topic")
        s.ask(
            0,
            v,
            produce_body(s, name, keyed),
            "to an internal topic, as an admin",
            client_id="__admin_client",
        )
    s.ask(21, 2, _empty(name), "records of an internal topic")
    s.ask(37, 3, {"topics": [{"name": name, "count": 3, "assignments": None}], "timeout": 20000}, "internal")
    # The coordinators make it as they need it: with other partitions, and without an ordinary producer's records.
    _delete(s, name)


def _empty(name: str) -> dict[str, Any]:
    rows = [{"partition_index": 0, "offset": 0}]
    return {"topics": [{"name": name, "partitions": rows}], "timeout": 20000}


def too_few_replicas(s: Script) -> None:
    """min.insync.replicas of two on a cluster of one: acks=all is refused, less is not."""
    name = s.create("replicas-two", min_insync_replicas=2)
    for v in (3, 8, s.newest(0)):
        for acks in (-1, 1):
            s.ask(
                0, v, produce_body(s, name, Batch().encode(), acks=acks), f"two replicas wanted, acks {acks}"
            )
    s.ask(1, s.newest(1), fetch_body(fetch_topic(s, name, part())), "two replicas wanted")
    row = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
    s.ask(2, 7, {"replica_id": -1, "topics": [{"name": name, "partitions": [row]}]}, "two replicas wanted")


def tagged_fields(s: Script) -> None:
    """Tagged fields that nobody knows are skipped, in the header and in the body; a lying length is refused."""
    body = b"\x05test" + b"\x041.0"  # ApiVersions v3: name and version as compact strings
    fixed = struct.pack(">hhih", 18, 3, 7, 1) + b"x"
    for case, header_tags, body_tags in (
        ("none", b"\x00", b"\x00"),
        ("in the header", b"\x01\x63\x03abc", b"\x00"),
        ("in the body", b"\x00", b"\x01\x63\x03abc"),
        ("two", b"\x00", b"\x02\x07\x01a\x63\x01b"),
        ("out of order", b"\x00", b"\x02\x63\x01a\x07\x01b"),
        ("one twice", b"\x00", b"\x02\x07\x01a\x07\x01b"),
        ("longer than the frame", b"\x00", b"\x01\x63\x7fabc"),
        ("a count that cannot be", b"\x00", b"\xff\xff\xff\xff\x07"),
        ("a negative length", b"\x00", b"\x01\x63\xff\xff\xff\xff\x0f"),
    ):
        answer = s.exchange(frame(fixed + header_tags + body + body_tags))
        s.note(f"tagged fields: {case}", "answered" if isinstance(answer, bytes) else answer)
        s.disconnect()


def all_topics(s: Script) -> None:
    """Metadata and log directories of everything; only the script's own topics are compared."""
    name = s.create("everything", 2)
    for v in s.versions(3):
        everything = [] if v == 0 else None
        answer = s.quiet(3, v, {"topics": everything, "allow_auto_topic_creation": False})
        own = [t for t in answer["topics"] if t["name"] == name]
        s.note(f"metadata v{v}: all topics", masked(3, {**answer, "topics": own}, s.symbols))
    for v in s.versions(35):
        answer = s.quiet(35, v, {"topics": None})
        own = sorted(
            (t["name"], p["partition_index"], p["partition_size"], p["is_future_key"])
            for r in answer["results"]
            for t in r["topics"]
            if t["name"] == name
            for p in t["partitions"]
        )
        s.note(f"log dirs v{v}: all topics", own)


def client_ids(s: Script) -> None:
    """Absent, empty, long and odd client ids are all served."""
    for case, client_id in {"absent": None, "empty": "", "long": "x" * 30_000, "odd": "a b/ü"}.items():
        for key, v, body in ((3, 1, {"topics": []}), (3, 12, {"topics": []}), (60, 0, {})):
            s.ask(key, v, body, f"client id {case}", client_id=client_id)


def half_closed(s: Script) -> None:
    """A client that has said all it wants still gets its answers."""
    name = s.create("half-closed")
    request = encode_request(0, 9, produce_body(s, name, Batch().encode()))
    with s.fresh_connection() as sock:
        sock.sendall(request + encode_request(18, 0, {}))
        sock.shutdown(socket.SHUT_WR)
        try:
            answers = len([receive_frame(sock) for _ in range(2)])
        except OSError:
            answers = 0
    s.note("half closed: answers", "some" if answers else "none")


def unknown_topic_id(s: Script) -> None:
    """Ids that belong to no topic, beside ones that do."""
    name = s.create("known-id")
    stranger = {"topic_id": uuid.UUID(int=5), "partitions": [part()]}
    for v in s.versions(1, since=13):
        s.ask(1, v, fetch_body(stranger, fetch_topic(s, name, part())), "a stranger's id beside a known one")
