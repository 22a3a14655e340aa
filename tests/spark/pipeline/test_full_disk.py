"""Disks that fill up under a running pipeline: told in one line, waited out, and each row is there once in the end.

The disks are small ones in memory, which only root can mount. A Spark of its own: one of the long tests.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.interop.process import wait_until
from tests.support.pipelines import consume, write_pipeline
from tests.support.spark_world import Broker

from ottla.spark.pipeline.run.state import Home
from ottla.spark.session import SHORT_LIVED

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("spark"), pytest.mark.timeout(1800)]

COMMAND_TIMEOUT_S = 600
WAIT_S = 600
MEGABYTE = 1 << 20


class Disk:
    """A small one, that can be filled to its last byte."""

    def __init__(self, path: Path, size_mb: int) -> None:
        path.mkdir()
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size_mb}m", "tmpfs", str(path)],
            capture_output=True,
            text=True,
            check=False,
        )
        if mounted.returncode:
            pytest.skip(f"no disk of its own: {mounted.stderr.strip()}")
        self.path = path
        self._filler = path / "filler"

    def fill(self) -> None:
        try:
            with open(self._filler, "ab", buffering=0) as file:
                for size in (MEGABYTE, 4096, 1):
                    try:
                        while file.write(b"\0" * size):
                            pass
                    except OSError:
                        continue
        except OSError:
            pass  # full already

    def make_room(self) -> None:
        self._filler.unlink(missing_ok=True)

    def unmount(self) -> None:
        subprocess.run(["umount", "-l", str(self.path)], check=False)


@pytest.fixture
def disk_of(tmp_path: Path) -> Iterator[Callable[[int], Disk]]:
    made: list[Disk] = []

    def make(size_mb: int) -> Disk:
        if os.geteuid() or (not Path("/sbin/mount.tmpfs").exists() and not Path("/bin/mount").exists()):
            pytest.skip("only root can mount a small disk")
        made.append(Disk(tmp_path / "disk", size_mb))
        return made[-1]

    yield make
    for disk in made:
        disk.unmount()


class Run:
    """A pipeline with a stream that keeps nothing and one with state, in the background."""

    def __init__(self, broker: Broker, place: Path, *options: str, state: Path | None = None) -> None:
        self.source, self.copies, self.counts = (broker.topic() for _ in range(3))
        self.broker, self._place = broker, place
        self.state = state or place / "state"
        self.home = Home(self.state, "p")
        self.produced = 0
        self._file = write_pipeline(
            place,
            f"""
            rows = topic({self.source!r}, schema="n int")

            @pipeline.stream(out=topic({self.copies!r}))
            def copy(rows=rows):
                return rows

            @pipeline.stream(out=topic({self.counts!r}), mode="update")
            def count(rows=rows):
                return rows.groupBy((rows.n % 3).alias("k")).count()
            """,
        )
        self._options = options

    def start(self, *more: str) -> None:
        small = {"spark.driver.memory": "768m", "spark.driver.extraJavaOptions": SHORT_LIVED}
        small["spark.sql.shuffle.partitions"] = "1"
        words = ["run", str(self._file), "-b", self.broker.bootstrap, "--master", "local[2]", *more]
        words += [word for key, value in small.items() for word in ("--conf", f"{key}={value}")]
        done = self._command(*words, *self._options)
        assert done.returncode == 0, f"{done.stderr}\n{self.log()}"

    def stop(self) -> None:
        done = self._command("stop", "p")
        assert done.returncode == 0, done.stderr

    def produce(self, count: int) -> None:
        self.broker.produce(
            self.source, [json.dumps({"n": n}) for n in range(self.produced, self.produced + count)]
        )
        self.produced += count

    def is_through(self) -> bool:
        return len(consume(self.broker, self.copies)) == self.produced and self.counted() == self.produced

    def counted(self) -> int:
        """By the last count of each key."""
        rows = [json.loads(message.value()) for message in consume(self.broker, self.counts)]
        return sum({row["k"]: row["count"] for row in rows}.values())

    def check(self) -> None:
        copies = [json.loads(message.value())["n"] for message in consume(self.broker, self.copies)]
        assert sorted(copies) == list(range(self.produced))
        assert self.counted() == self.produced

    def log(self) -> str:
        files = [file for file in self.home.logs.glob("*.log") if not file.name.endswith(".spark.log")]
        return "\n".join(file.read_text() for file in sorted(files))

    def _command(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "ottla.cli.main", "pipeline", *words, "--state-dir", str(self.state)],
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            cwd=self._place,
            check=False,
        )


@pytest.mark.parametrize("which", ["the checkpoints", "Spark's local files"])
def test_a_full_disk_is_told_and_waited_out(
    which: str, broker: Broker, tmp_path: Path, disk_of: Callable[[int], Disk]
) -> None:
    disk = disk_of(32)
    place = disk.path / "p"
    options = (
        ["--checkpoint-dir", str(place)]
        if which == "the checkpoints"
        else ["--conf", f"spark.local.dir={place}"]
    )
    run = Run(broker, tmp_path, *options)
    run.start("--detach")
    try:
        run.produce(10)
        wait_until(run.is_through, WAIT_S, "the first rows")
        disk.fill()
        run.produce(10)
        wanted = "is full: nothing is lost, and it goes on by itself once there is room"
        wait_until(lambda: wanted in run.log(), WAIT_S, "the line that the disk is full")
        (line, *_) = [line for line in run.log().splitlines() if wanted in line]
        assert f"the disk of {place} ({which}) is full" in line
        # Not the first time only: it is tried again, and again there is no room.
        disk.fill()
        wait_until(lambda: run.log().count("count: failed, starts again") > 1, WAIT_S, "another try")
        assert run.home.is_running()
        disk.make_room()
        wait_until(run.is_through, WAIT_S, "the rows that had waited")
        run.produce(10)
        wait_until(run.is_through, WAIT_S, "the last rows")
    finally:
        disk.make_room()
        run.stop()
    run.start("--available-now")
    run.check()


def test_a_run_lives_on_without_its_own_files(
    broker: Broker, tmp_path: Path, disk_of: Callable[[int], Disk]
) -> None:
    """Logs, figures and states are on the full disk; the checkpoints are not."""
    disk = disk_of(4)
    run = Run(broker, tmp_path, "--checkpoint-dir", str(tmp_path / "checkpoints"), state=disk.path / "state")
    run.start("--detach")
    try:
        run.produce(10)
        wait_until(run.is_through, WAIT_S, "the first rows")
        disk.fill()
        before = run.home.progress()["at_ms"]
        run.produce(10)
        wait_until(run.is_through, WAIT_S, "rows while the disk is full")
        disk.fill()
        assert run.home.is_running()
        disk.make_room()
        wait_until(lambda: run.home.progress().get("at_ms", 0) > before, WAIT_S, "figures again")
        wait_until(lambda: "written again" in run.log(), WAIT_S, "a word about it")
    finally:
        disk.make_room()
        run.stop()
    run.check()
    found = run.home.run()
    assert found is not None
    assert found.state == "stopped"


def test_a_disk_that_is_full_before_the_start_is_one_line(
    broker: Broker, tmp_path: Path, disk_of: Callable[[int], Disk]
) -> None:
    disk = disk_of(1)
    run = Run(broker, tmp_path, state=disk.path / "state")
    disk.fill()
    done = run._command("run", str(run._file), "-b", broker.bootstrap, "--available-now")
    assert done.returncode == 1
    assert "No space left on device" in done.stderr or "is full" in done.stderr
    assert str(disk.path) in done.stderr
    assert "Traceback" not in done.stderr
