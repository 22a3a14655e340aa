"""`ottla demo` with Spark: every click is counted once, and nothing is left of it, however it ends."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.interop.process import wait_until

pytestmark = [
    pytest.mark.long,
    pytest.mark.xdist_group("spark"),
    pytest.mark.skipif(sys.platform != "linux", reason="finds the processes in /proc"),
]

ENDS_WITHIN_S = 300


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A demo, with its temporary directory under tmp_path."""
    process = subprocess.Popen(
        [sys.executable, "-m", "ottla.cli.main", "demo", "--rate", "100"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _wait_for(demo: subprocess.Popen[str], words: str) -> None:
    assert demo.stdout is not None
    said = []
    for line in demo.stdout:
        said.append(line)
        if words in line:
            return
    raise AssertionError("".join(said) + (demo.stderr.read() if demo.stderr else ""))


def _processes(place: Path) -> list[str]:
    """What still runs of a demo: all its processes have its directory in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if str(place).encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_text().replace("\0", " ")[:200])
        except (OSError, UnicodeDecodeError):
            continue
    return found


@pytest.mark.timeout(900)
def test_every_click_is_counted_once_and_an_interrupt_leaves_nothing_behind(
    demo: subprocess.Popen[str], tmp_path: Path
) -> None:
    _wait_for(demo, " counted ")
    assert any("bin/java" in process for process in _processes(tmp_path))
    demo.send_signal(signal.SIGINT)
    out, err = demo.communicate()
    assert demo.returncode == 0, out + err
    assert "counted by Spark, each of them once; Spark and the broker are stopped" in out
    assert list(tmp_path.iterdir()) == []
    wait_until(lambda: not _processes(tmp_path), ENDS_WITHIN_S, "all of its processes to end")


@pytest.mark.timeout(900)
def test_no_process_outlives_a_demo_that_is_killed(demo: subprocess.Popen[str], tmp_path: Path) -> None:
    _wait_for(demo, "waiting for the first micro-batch")
    demo.kill()
    demo.wait()
    wait_until(lambda: not _processes(tmp_path), ENDS_WITHIN_S, "all of its processes to end")
    (directory,) = tmp_path.iterdir()
    assert (directory / "data" / ".kafka_cleanshutdown").exists()
