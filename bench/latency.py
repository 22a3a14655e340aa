"""Latency at a fixed rate: one record of 1 KB per request, acks=all, from the time it was due."""

import time

from bench.load import WARM_UP, Connection, produce_frame, warm_up
from bench.report import Row
from bench.servers import APACHE, OTTLA, SIDES, create_topic, server

RATE_PER_S = 500
SECONDS = 8


def latency() -> list[Row]:
    found = {side: _measure(side) for side in SIDES}
    return [
        Row(f"produce latency at {RATE_PER_S}/s, {name}", "ms", found[APACHE][name], found[OTTLA][name])
        for name in ("p50", "p99")
    ]


def _measure(side: str) -> dict[str, float]:
    with server(side) as it:
        create_topic(it)
        warm_up(it, WARM_UP)
        connection = Connection(it)
        frame = produce_frame(1000)
        taken = sorted(_one(connection, frame, due) for due in _schedule())
        connection.close()
    return {"p50": taken[len(taken) // 2], "p99": taken[len(taken) * 99 // 100]}


def _schedule() -> list[float]:
    begin = time.perf_counter() + 0.1
    return [begin + number / RATE_PER_S for number in range(RATE_PER_S * SECONDS)]


def _one(connection: Connection, frame: bytes, due: float) -> float:
    while (wait := due - time.perf_counter()) > 0:
        time.sleep(wait)
    connection.send(frame)
    connection.receive()
    return (time.perf_counter() - due) * 1000
