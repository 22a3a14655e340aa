"""What a run leaves on disk, and how one that died is told from one that lives."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ottla.spark.pipeline.run.state import (
    DIED,
    RUNNING,
    STOPPED,
    AlreadyRunning,
    Home,
    Run,
    default_state_dir,
    homes,
)

RUN = Run("p", "/p.py", "b:1", "local[*]", RUNNING, pid=1, started_ms=5)
HOLD = """
import sys
from pathlib import Path
from ottla.spark.pipeline.run.state import Home
with Home(Path(sys.argv[1]), "p").locked():
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_run_is_read_back_as_written(tmp_path: Path) -> None:
    home = Home(tmp_path, "p")
    assert home.run() is None
    assert home.progress() == {}
    home.write_run(Run("p", "/p.py", "b:1", "yarn", STOPPED, ended_ms=9))
    home.write_progress({"streams": [{"lag": 1}]})
    assert home.run() == Run("p", "/p.py", "b:1", "yarn", STOPPED, ended_ms=9, problems=[], created=[])  # type: ignore[arg-type]
    assert home.progress()["streams"] == [{"lag": 1}]
    assert [found.name for found in homes(tmp_path)] == ["p"]


def test_one_process_at_a_time_and_a_dead_one_is_known_by_its_lock(tmp_path: Path) -> None:
    home = Home(tmp_path, "p")
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        home.write_run(RUN)
        found = home.run()
        assert home.is_running()
        assert home.pid() == other.pid
        assert found is not None
        assert found.state == RUNNING
        with pytest.raises(AlreadyRunning, match=f"p runs already, as process {other.pid}"), home.locked():
            pass
    finally:
        other.kill()
        other.communicate()
    assert not home.is_running()
    assert home.pid() == other.pid  # the stale number is still there, and means nothing
    died = home.run()
    assert died is not None
    assert died.state == DIED
    with home.locked():
        assert home.pid() == os.getpid()
    assert home.pid() is None


def test_who_only_asks_whether_it_runs_keeps_nobody_from_running(tmp_path: Path) -> None:
    home = Home(tmp_path, "p")
    with home.locked():
        pass
    looking, held = threading.Event(), threading.Event()

    def look() -> None:
        with open(tmp_path / "p" / "pid") as file:
            fcntl.flock(file, fcntl.LOCK_SH)  # as is_running has it, for longer
            held.set()
            looking.wait(0.1)

    other = threading.Thread(target=look)
    other.start()
    held.wait()
    try:
        assert not home.is_running(), "one who looks is none who runs"
        with home.locked():
            assert home.is_running()
    finally:
        other.join()


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "{}", '{"name": "p", "state": "running"}'])
def test_a_file_that_is_not_ours_is_as_good_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "run.json").write_text(text)
    assert Home(tmp_path, "p").run() is None


def test_unknown_members_of_a_later_version_are_let_be(tmp_path: Path) -> None:
    home = Home(tmp_path, "p")
    home.write_run(Run("p", "/p.py", "b:1", "local", STOPPED))
    path = tmp_path / "p" / "run.json"
    path.write_text(path.read_text().replace("{", '{"colour": "red",', 1))
    found = home.run()
    assert found is not None
    assert found.state == STOPPED


def test_where_state_is_kept_by_default() -> None:
    assert default_state_dir({"HOME": "/h"}) == Path("/h/.local/state/ottla/pipelines")
    assert default_state_dir({"XDG_STATE_HOME": "/s", "HOME": "/h"}) == Path("/s/ottla/pipelines")
    assert default_state_dir({"OTTLA_STATE_DIR": "/o"}) == Path("/o")
    assert homes(Path("/nowhere/at/all")) == []
