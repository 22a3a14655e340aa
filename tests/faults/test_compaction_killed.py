"""kill -9 while logs are appended to and compacted at once: what was written is the newest of its key, or newer."""

import asyncio
import random
import subprocess
import sys
from pathlib import Path

from tests.unit.storage.cleaner.test_manager import compacted
from tests.unit.storage.manager_support import formatted, records, run, running

from ottla.model.ids import TopicPartition
from ottla.storage.log.log import Log

TP = TopicPartition("state", 0)
KILLS = 6
KEYS = 12

WRITER = """
import asyncio, random, sys
from pathlib import Path
from tests.faults.test_compaction_killed import KEYS, TP
from tests.unit.storage.manager_support import NOW_MS, TOPIC_ID, append, quiet, running
from tests.unit.storage.cleaner.test_manager import compacted
from ottla.storage.config import CleanerConfig

async def main(dir, seed, version):
    rng = random.Random(seed)
    settings = quiet(cleaner=CleanerConfig(backoff_ms=0))
    async with running(dir, settings=settings, load={"topic_config": lambda topic: compacted()}) as manager:
        log = manager.get_or_create(TP, TOPIC_ID, compacted())
        log.update_high_watermark(log.log_end_offset)
        manager.start()
        while True:
            version += 1
            key = rng.randrange(KEYS)
            append(log, (b"key-%d" % key, b"%d" % version))
            print(key, version, flush=True)
            if version % 10 == 0:
                log.roll(NOW_MS)
            await asyncio.sleep(0.001)

asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
"""


def write_until_killed(dir: Path, seed: int, version: int, lines: int) -> dict[int, int]:
    """Runs the writer, kills it after so many records; the newest version of each key it said it had written."""
    written: dict[int, int] = {}
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(dir), str(seed), str(version)], stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        for _ in range(lines):
            key, newest = map(int, writer.stdout.readline().split())
            written[key] = newest
        writer.kill()
        for line in writer.stdout:
            if line.endswith("\n"):
                key, newest = map(int, line.split())
                written[key] = newest
    return written


def found(log: Log) -> dict[int, int]:
    newest: dict[int, int] = {}
    for record in records(log):
        assert record.key is not None
        assert record.value is not None
        key, version = int(record.key.removeprefix(b"key-")), int(record.value)
        assert newest.get(key, -1) < version, "newer versions come later in the log"
        newest[key] = version
    return newest


def test_nothing_written_is_lost_and_nothing_old_comes_back(tmp_path: Path) -> None:
    dir = formatted(tmp_path)
    rng = random.Random(11)
    expected: dict[int, int] = {}
    cleaned = 0

    async def check() -> None:
        nonlocal cleaned
        async with running(dir, load={"topic_config": lambda topic: compacted()}) as manager:
            log = manager.current_logs[TP]
            versions = found(log)
            for key, version in expected.items():
                assert versions[key] >= version
            expected.update(versions)
            cleaned = max(cleaned, manager.cleaner.clean_offset(TP) or 0)
            assert {path.suffix for path in log.dir.iterdir()} <= {
                ".log",
                ".index",
                ".timeindex",
                ".snapshot",
                ".metadata",
                "",
            }
            await asyncio.sleep(0)

    for kill in range(KILLS):
        expected |= write_until_killed(dir, kill, max(expected.values(), default=0), rng.randrange(50, 300))
        run(check)
    assert cleaned > 0, "the cleaner worked meanwhile"
