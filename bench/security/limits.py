"""Whether quotas are kept: a producer and a consumer that go as fast as they are let, over half a minute."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from tests.interop.process import ServerProcess
from tests.interop.secured import ADMIN, SecureNode

from bench.frames import batch_of, fetch_frame, produce_frame
from bench.load import connection
from bench.raw import KB, KEPT
from bench.report import Report, Row
from bench.security.nodes import READ, USER, WRITE, both, create_quotas, create_rules, rule
from bench.servers import create_topic, now_ms

SECONDS: Final = 30.0
QUICK_SECONDS: Final = 10.0
# quota.window.num samples of quota.window.size.seconds each.
WINDOW_S: Final = 11.0
BYTES_A_SECOND: Final = 1_000_000
# Of the rate that is allowed.
AIM: Final = 0.1
TOPIC: Final = "limited"


def quotas(report: Report, where: Path, quick: bool = False) -> None:
    """How far from the quota the rate was."""
    seconds = QUICK_SECONDS if quick else SECONDS
    with both(where, "SASL_PLAINTEXT") as servers:
        for server in servers.values():
            assert isinstance(server, SecureNode)
            create_topic(server, TOPIC, 1, **KEPT)
            create_rules(server, [rule(USER, TOPIC, READ), rule(USER, TOPIC, WRITE)])
            create_quotas(
                server, {USER: dict.fromkeys(("producer_byte_rate", "consumer_byte_rate"), BYTES_A_SECOND)}
            )
        data = batch_of(64 * KB, 1000, now_ms())
        write = produce_frame(TOPIC, {0: data})
        read = fetch_frame(TOPIC, 0, 0, len(data))
        for name, frame in (("producer", write), ("consumer", read)):
            off = {kind: _off(server, frame, len(data), seconds) for kind, server in servers.items()}
            note = f"of {BYTES_A_SECOND:,} bytes a second over {seconds:.0f} s"
            title = f"quota, {name}: off by"
            report.add(Row(title, "share", off["apache"], off["ottla"], AIM, absolute=True, note=note))


def _off(server: ServerProcess, frame: bytes, size: int, seconds: float) -> float:
    """Of the rate that is allowed, by how much it was missed, either way. Throttled fetches are empty."""
    assert isinstance(server, SecureNode)
    server.connects_as = USER
    moved = 0
    with connection(server) as link:
        # What comes at first is let through at once, as much as a whole window allows.
        began = time.perf_counter()
        while time.perf_counter() - began < WINDOW_S:
            link.ask(frame)
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            answer = link.ask(frame)
            moved += size if len(answer) > size or len(frame) > size else 0
        took = time.perf_counter() - began
    server.connects_as = ADMIN
    return abs(moved / took / BYTES_A_SECOND - 1)
