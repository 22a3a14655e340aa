"""A thousand clients that come at once, each with a TLS handshake and SCRAM-SHA-512."""

from __future__ import annotations

import asyncio
import base64
import functools
import hashlib
import hmac
import os
import ssl
import struct
from pathlib import Path
from typing import Final

from tests.interop.secured import SCRAM, SecureNode
from tests.interop.security_world import make_user

from bench.load import Cost, costs_of
from bench.report import Report, Row
from bench.rounds import in_rounds
from bench.security.nodes import both

CLIENTS: Final = 1_000
QUICK_CLIENTS: Final = 100
AIM: Final = 0.7
# Rounds of a thousand: what a JVM has seen before a figure counts.
WARM_UP: Final = 10_000
PASSWORD: Final = "bench-secret"
NAME: Final = "scram-bench"


def logins(report: Report, where: Path, quick: bool = False) -> None:
    """From the first SYN to the last client that is let in; the broker's CPU for it."""
    count = QUICK_CLIENTS if quick else CLIENTS
    with both(where, "SASL_SSL") as servers:
        for server in servers.values():
            assert isinstance(server, SecureNode)
            make_user(server, NAME, PASSWORD)

        def one_round(kind: str) -> Cost:
            server = servers[kind]
            assert isinstance(server, SecureNode)
            context = server.cluster.security.context
            assert context is not None
            with costs_of(server, count, 0) as found:
                asyncio.run(_come(server.host, server.port, context, count))
            return found[0]

        found = in_rounds(servers, one_round, WARM_UP, quick=quick)
    title = f"{count:,} clients log in at once"
    apache, ottla = found["apache"].warm, found["ottla"].warm
    note = f"after {found['apache'].warm_up_requests:,} logins"
    report.add(Row(f"{title}: broker CPU", "us/client", apache.cpu_us, ottla.cpu_us, AIM, note=note))
    report.add(
        Row(f"{title}: time", "s", apache.seconds, ottla.seconds, AIM, note="the clients' own CPU in it")
    )
    cold = found["apache"].cold, found["ottla"].cold
    report.add(Row(f"{title}: broker CPU, cold", "us/client", cold[0].cpu_us, cold[1].cpu_us))


async def _come(host: str, port: int, context: ssl.SSLContext, count: int) -> None:
    """All of them are there before the first one leaves."""
    streams = await asyncio.gather(*(_log_in(host, port, context) for _ in range(count)))
    for writer in streams:
        writer.transport.abort()


async def _log_in(host: str, port: int, context: ssl.SSLContext) -> asyncio.StreamWriter:
    reader, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname=host)
    mechanism = SCRAM.encode()
    await _ask(reader, writer, struct.pack(">hhihh", 17, 1, 1, -1, len(mechanism)) + mechanism)
    first = f"n={NAME},r={base64.b64encode(os.urandom(18)).decode()}"
    said = (await _authenticate(reader, writer, f"n,,{first}".encode())).decode()
    parts = dict(part.split("=", 1) for part in said.split(","))
    key, stored = _keys(parts["s"], int(parts["i"]))
    bare = f"c=biws,r={parts['r']}"
    signed = hmac.digest(stored, f"{first},{said},{bare}".encode(), "sha512")
    proof = base64.b64encode(bytes(a ^ b for a, b in zip(key, signed, strict=True))).decode()
    await _authenticate(reader, writer, f"{bare},p={proof}".encode())
    return writer


@functools.cache
def _keys(salt: str, iterations: int) -> tuple[bytes, bytes]:
    """A client keeps them: what hashing a password costs it is not the broker's."""
    salted = hashlib.pbkdf2_hmac("sha512", PASSWORD.encode(), base64.b64decode(salt), iterations)
    key = hmac.digest(salted, b"Client Key", "sha512")
    return key, hashlib.sha512(key).digest()


async def _authenticate(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, said: bytes) -> bytes:
    answer = await _ask(reader, writer, struct.pack(">hhihi", 36, 1, 2, -1, len(said)) + said)
    error, length = struct.unpack_from(">hh", answer, 4)
    assert error == 0, f"not let in: error {error}"
    position = 8 + max(length, 0)
    (size,) = struct.unpack_from(">i", answer, position)
    return answer[position + 4 : position + 4 + size]


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, payload: bytes) -> bytes:
    writer.write(struct.pack(">i", len(payload)) + payload)
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    return await reader.readexactly(size)
