"""From starting the process to the first acknowledged record, and what it holds in memory."""

import tempfile
import time
from pathlib import Path

from tests.interop.apache import ApacheKafka

from bench.load import PRODUCE_LOADS, Connection, produce_frame
from bench.report import Row
from bench.servers import APACHE, OTTLA, SIDES, create_topic, make, server

START_AIM = 0.1
MEMORY_AIM = 0.2
TIMES = 3
MEGABYTE = 1e6


def start() -> list[Row]:
    """An existing directory with one topic: the best of some starts."""
    seconds = {side: min(_start_once(side) for _ in range(TIMES)) for side in SIDES}
    fresh = {side: _fresh_start(side) for side in SIDES}
    return [
        Row("start to the first acknowledged record", "s", seconds[APACHE], seconds[OTTLA], START_AIM),
        Row("the same from an empty directory", "s", fresh[APACHE], fresh[OTTLA], note="formatting included"),
    ]


def _start_once(side: str) -> float:
    with tempfile.TemporaryDirectory(prefix="bench-start-") as where:
        it = make(side, Path(where))
        with it:
            create_topic(it)
        begin = time.perf_counter()
        with it:
            _first_record(it)
            return time.perf_counter() - begin


def _fresh_start(side: str) -> float:
    with tempfile.TemporaryDirectory(prefix="bench-start-") as where:
        begin = time.perf_counter()
        it = make(side, Path(where))
        if isinstance(it, ApacheKafka):
            it.format()
        with it:
            create_topic(it)
            _first_record(it)
            return time.perf_counter() - begin


def _first_record(it: object) -> None:
    frame = produce_frame(100)
    while True:
        connection = Connection(it)  # type: ignore[arg-type]
        connection.send(frame)
        answer = bytes(connection.receive())
        connection.close()
        # Correlation id, tags, one topic, its name, one partition, its index: then the error code.
        if answer[17:19] == b"\0\0":
            return


def memory() -> list[Row]:
    """Resident memory fresh, and after a few gigabytes of traffic."""
    fresh: dict[str, float] = {}
    used: dict[str, float] = {}
    for side in SIDES:
        with server(side, {"log.retention.bytes": 200_000_000}) as it:
            create_topic(it)
            fresh[side] = it.rss_bytes() / MEGABYTE
            connection = Connection(it)
            connection.run(PRODUCE_LOADS[-1].frame, 2_000)
            connection.close()
            used[side] = it.rss_bytes() / MEGABYTE
    return [
        Row("resident memory, fresh", "MB", fresh[APACHE], fresh[OTTLA], MEMORY_AIM),
        Row("resident memory after 2 GB produced", "MB", used[APACHE], used[OTTLA], MEMORY_AIM),
    ]
