"""Scripts: what is no request: lengths, headers and bodies that lie. Recorded is only closed or answered."""

from __future__ import annotations

import socket
import struct

from kio.schema.index import api_key_map
from tests.interop.process import receive_frame
from tests.interop.scripts.entities import encode_request, frame, header_bytes, request_type
from tests.interop.scripts.script import API_VERSIONS, Script

GIANT = 100 * 1024 * 1024 + 1
SETTLE_S = 3.0
# The APIs whose bodies are cut and stretched, on the broker's listener.
SERVED = (
    *(0, 1, 2, 3, 18, 19, 20, 21, 22, 23, 32, 33, 34, 35, 37, 43, 44, 45, 46, 55, 57, 60, 61, 64, 74, 75),
    *(38, 39, 40, 41, 48, 49, 50, 51),
)


def fate(s: Script, data: bytes) -> str:
    """What becomes of a fresh connection that sends this: answered, closed, or neither within a while."""
    with s.fresh_connection() as sock:
        sock.settimeout(SETTLE_S)
        try:
            sock.sendall(data)
            receive_frame(sock)
            return "answered"
        except TimeoutError:
            return "waits"
        except ConnectionError:
            return "closed"


def frames(s: Script) -> None:
    """Lengths and first bytes that no client sends."""
    request = encode_request(API_VERSIONS, 0, {})
    for case, data in {
        "length zero": frame(b""),
        "length -1": struct.pack(">i", -1),
        "length minimum": struct.pack(">i", -(2**31)),
        "length one over the limit": struct.pack(">i", GIANT),
        "length maximum": struct.pack(">i", 2**31 - 1),
        "three bytes": frame(b"\x00\x12\x00"),
        "a header cut short": frame(request[4:10]),
        "half a frame": request[:7],
        "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "tls hello": bytes.fromhex("16030100c8010000c40303") + bytes(180),
        "zeros": bytes(64),
        "ones": b"\xff" * 64,
    }.items():
        s.note(f"frame: {case}", fate(s, data))


def headers(s: Script) -> None:
    """Unknown keys and versions, client ids that lie about their length."""
    for key in (-1, 4, 5, 6, 7, 93, 94, 500, 32767):
        s.note(
            f"header: unknown key {key}", fate(s, frame(header_bytes(key, 0, 1, "x", False) + b"\x00" * 8))
        )
    for key in (52, 53, 54, 56, 58, 59, 62, 63, 67, 70):
        s.note(
            f"header: controller's key {key}",
            fate(s, frame(header_bytes(key, 0, 1, "x", True) + b"\x00" * 8)),
        )
    for key in SERVED:
        low, high = s.ranges["broker"][key]
        for version in (low - 1, high + 1, 99, -1):
            body = header_bytes(key, version, 1, "x", True) + b"\x00" * 16
            s.note(f"header: {api_key_map[key]} v{version} of {low}-{high}", fate(s, frame(body)))
    for case, length in {"longer than the frame": 500, "negative": -2, "minimum": -32768}.items():
        body = struct.pack(">hhih", API_VERSIONS, 0, 1, length) + b"abc"
        s.note(f"header: client id {case}", fate(s, frame(body)))
    invalid = struct.pack(">hhih", API_VERSIONS, 0, 1, 2) + b"\xff\xfe"
    s.note("header: client id not utf-8", fate(s, frame(invalid)))


def bodies(s: Script) -> None:
    """Each request cut off, empty, stretched and with a count that cannot be."""
    for key in SERVED:
        low, high = s.ranges["broker"][key]
        for version in {max(low, 3) if key == 0 else low, high}:
            if key == API_VERSIONS and version == 0:
                continue
            flexible = request_type(key, version).__flexible__
            head = header_bytes(key, version, 1, "x", flexible)
            whole = encode_request(key, version, {}, client_id="x")[4:]
            name = f"body: {api_key_map[key]} v{version}"
            s.note(f"{name} empty", fate(s, frame(head)))
            s.note(f"{name} cut", fate(s, frame(whole[:-1])))
            s.note(f"{name} all ones", fate(s, frame(head + b"\xff" * 40)))
            s.note(f"{name} all sevens", fate(s, frame(head + b"\x7f" * 40)))


def pipelined(s: Script) -> None:
    """Answers come in the order of the requests, whatever one waits for; a bad one ends the connection."""
    name = s.create("pipelined")
    wait = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}
    slow = {"max_wait": 300, "min_bytes": 1, "topics": [{"topic": name, "partitions": [wait]}]}
    requests = [
        encode_request(1, 11, slow, correlation_id=1),
        encode_request(API_VERSIONS, 0, {}, correlation_id=2),
        encode_request(3, 1, {"topics": []}, correlation_id=3),
    ]
    with s.fresh_connection() as sock:
        sock.sendall(b"".join(requests))
        order = [struct.unpack(">i", receive_frame(sock)[:4])[0] for _ in requests]
    s.note("pipelined: order of answers", order)
    with s.fresh_connection() as sock:
        sock.sendall(requests[1] + frame(header_bytes(500, 0, 1, "x", False)) + requests[2])
        s.note("pipelined: good, bad, good", _answers(sock))


def _answers(sock: socket.socket) -> int:
    count = 0
    try:
        while True:
            receive_frame(sock)
            count += 1
    except OSError:
        return count
