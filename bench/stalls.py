"""How long Ottla's loop is held while the broker does what could hold it; one broker and one row a scenario.

A light load (a small produce and a fetch every few milliseconds) runs beside each scenario, and an idle node beside
the broker: what that one shows is the machine, not the work. The figure is the lateness of a heartbeat of two
milliseconds at p99.9; the note gives the longest, the same without the time in which the system ran others, and the
idle node's.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.interop.ottla_node import OttlaNode
from tests.interop.process import ServerProcess, running, wait_until
from tests.interop.scripts.batches import Batch, Rec
from tests.interop.scripts.entities import encode_request

from bench import coordinator_stalls
from bench.frames import batch_of, fetch_frame, produce_frame
from bench.load import connection
from bench.report import Report, Row
from bench.servers import create_topic, delete_topic, now_ms, ottla

MB = 1 << 20
AIM_MS = 20
LIGHT_PAUSE_S = 0.005
BIG_TOPIC_PARTITIONS = 2_500
SETTINGS = {
    "log.retention.check.interval.ms": 1000,
    "log.cleaner.backoff.ms": 500,
    "log.segment.delete.delay.ms": 500,
    "log.retention.ms": 604800000,
}


def stalls(report: Report, where: Path, quick: bool = False) -> None:
    """Every scenario with a broker of its own."""
    for name, scenario in {**SCENARIOS, **coordinator_stalls.SCENARIOS}.items():
        settings = {**SETTINGS, **coordinator_stalls.settings_of(scenario)}
        loaded = ottla(where / scenario.__name__, settings, watch_stalls=True)
        idle = ottla(where / f"{scenario.__name__}-idle", watch_stalls=True)
        # The load's connection would not outlive a restart.
        beside = contextlib.nullcontext() if scenario is coordinator_stalls.reload else light_load(loaded)
        with running([loaded, idle]), beside:
            scenario(loaded, quick)
        report.add(row_of(name, loaded.stalls(), idle.stalls()))


def row_of(name: str, found: dict[str, float] | None, idle: dict[str, float] | None) -> Row:
    """The scenario's row."""
    title = f"stall p99.9: {name}"
    if found is None or idle is None:
        return Row(title, "ms", None, None, AIM_MS, absolute=True, note="the node wrote no report")
    note = (
        f"longest {found['max_ms']:.0f}; own {found['own_p999_ms']:.1f}, longest {found['own_max_ms']:.0f}; "
        f"idle node {idle['p999_ms']:.1f}, longest {idle['max_ms']:.0f}"
    )
    return Row(title, "ms", None, found["p999_ms"], AIM_MS, absolute=True, note=note)


@contextlib.contextmanager
def light_load(server: ServerProcess) -> Iterator[None]:
    """Somebody else's small requests, for the length of the block."""
    create_topic(server, "light")
    produce = produce_frame("light", {0: batch_of(100, 100, now_ms())})
    fetch = fetch_frame("light", 0, 0, 4096)
    over = threading.Event()

    def run() -> None:
        with connection(server) as link:
            while not over.wait(LIGHT_PAUSE_S):
                link.ask(produce)
                link.ask(fetch)

    thread = threading.Thread(target=run, name="light-load")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def recompress(server: OttlaNode, quick: bool) -> None:
    """Batches of 1 MB in another codec than the topic's."""
    create_topic(server, "recompress", compression_type="zstd")
    text = (b"all work and no play makes a log a dull file " * 25)[:1000]
    batch = Batch(records=[Rec(text + os.urandom(8)) for _ in range(1000)], base_timestamp=now_ms())
    with connection(server) as link:
        for codec in ("none", "gzip"):
            frame = produce_frame("recompress", {0: batch.with_(codec=codec).encode()})
            link.pump(frame, 50 if quick else 300, 2)


def clean(server: OttlaNode, quick: bool) -> None:
    """A compacted topic of a few hundred megabytes, cleaned while it grows and after."""
    create_topic(
        server, "clean", segment_bytes=8 * MB, min_cleanable_dirty_ratio=0.01, cleanup_policy="compact"
    )
    rounds = [
        [Rec(os.urandom(90), key=b"key-%d" % (i * 7 % 50_000)) for i in range(start, start + 9000)]
        for start in range(0, 72_000, 9000)
    ]
    frames = [
        produce_frame("clean", {0: Batch(records=records, base_timestamp=now_ms()).encode()})
        for records in rounds
    ]
    with connection(server) as link:
        for i in range(40 if quick else 250):
            link.ask(frames[i % len(frames)])
            if i % 40 == 39:
                time.sleep(1)  # give the cleaner its turns
    time.sleep(2 if quick else 10)  # cleaning goes on when nothing is written


def roll_and_delete(server: OttlaNode, quick: bool) -> None:
    """Small segments filled by hundreds, and deleted by retention."""
    create_topic(server, "roll", segment_bytes=MB, retention_bytes=4 * MB)
    data = batch_of(500_000, 1000, now_ms())
    with connection(server) as link:
        link.pump(produce_frame("roll", {0: data}), 80 if quick else 600)
    time.sleep(3)  # two retention checks and the delayed deletion


def read_cold(server: OttlaNode, quick: bool) -> None:
    """Fetches of what the page cache has lost."""
    create_topic(server, "cold", segment_bytes=16 * MB)
    count = 50 if quick else 250
    data = batch_of(900_000, 1000, now_ms())
    with connection(server) as link:
        link.pump(produce_frame("cold", {0: data}), count)
        for _ in range(2):
            for path in server.data_dir.glob("cold-0/*.log"):
                forget_pages(path)
            for offset in range(0, count * round(900_000 / 1010), 900):
                link.ask(fetch_frame("cold", 0, offset, MB))


def forget_pages(path: Path) -> None:
    """Drop a file from the page cache."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def create_and_delete(server: OttlaNode, quick: bool) -> None:
    """A topic of 2,500 partitions, made and taken away again."""
    for round_ in range(1 if quick else 3):
        name = f"big-{round_}"
        create_topic(server, name, BIG_TOPIC_PARTITIONS)
        delete_topic(server, name)
    wait_until(lambda: not any(server.data_dir.glob("big-*")), 60, "the partitions to be deleted")


def metadata(server: OttlaNode, quick: bool) -> None:
    """Everything about 10,000 partitions, again and again, and after each change."""
    for i in range(4):
        create_topic(server, f"many-{i}", BIG_TOPIC_PARTITIONS)
    ask = encode_request(3, 12, {"topics": None})
    with connection(server) as link:
        for i in range(2 if quick else 10):
            link.pump(ask, 10, 2)
            create_topic(server, f"small-{i}")
            link.pump(ask, 2, 1)


SCENARIOS: dict[str, Callable[[OttlaNode, bool], None]] = {
    "recompressing 1 MB": recompress,
    "cleaning": clean,
    "rolling and deleting": roll_and_delete,
    "reading cold data": read_cold,
    "2,500 partitions made and deleted": create_and_delete,
    "Metadata of 10,000 partitions": metadata,
}
