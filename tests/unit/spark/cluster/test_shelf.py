"""Packages of a state directory: which are dropped, and that none is that somebody runs with."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ottla.spark.cluster import shelf as module
from ottla.spark.cluster.package import Package, Request
from ottla.spark.cluster.shelf import KEEP, UNFINISHED_S, UNUSED_S, drop_unused, hold, take

NOW_S = 2_000_000_000.0
HOLDER = """
import sys
from pathlib import Path
from ottla.spark.cluster.shelf import hold
hold(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def put(shelf: Path, name: str, age_s: float, environment: str = "e") -> Path:
    """A package as it lies there, last used so long ago."""
    archive = shelf / "environments" / f"{environment}.tar.gz"
    archive.parent.mkdir(parents=True, exist_ok=True)
    archive.touch()
    made = shelf / name
    made.mkdir()
    (made / "manifest.json").write_text("{}")
    (made / "environment.tar.gz").symlink_to(f"../environments/{environment}.tar.gz")
    os.utime(made / "manifest.json", (NOW_S - age_s, NOW_S - age_s))
    return made


def names(shelf: Path) -> set[str]:
    return {entry.name for entry in shelf.iterdir()} - {"environments"}


def test_only_what_is_old_and_not_among_the_last_of_its_pipeline_goes(tmp_path: Path) -> None:
    for number in range(KEEP + 2):
        put(tmp_path, f"a-{number}", UNUSED_S + 10 + number, f"e{number}")
    put(tmp_path, "b-c-1", UNUSED_S * 9, "other")
    put(tmp_path, "young-1", 1.0)
    assert drop_unused(tmp_path, NOW_S) == [f"a-{KEEP}", f"a-{KEEP + 1}"]
    assert names(tmp_path) == {*(f"a-{number}" for number in range(KEEP)), "b-c-1", "young-1"}
    kept = {archive.name.partition(".")[0] for archive in (tmp_path / "environments").iterdir()}
    assert kept == {*(f"e{number}" for number in range(KEEP)), "other", "e"}


def test_many_young_ones_stay(tmp_path: Path) -> None:
    for number in range(KEEP + 5):
        put(tmp_path, f"a-{number}", UNUSED_S - 10)
    assert drop_unused(tmp_path, NOW_S) == []
    assert len(names(tmp_path)) == KEEP + 5


def test_one_that_a_process_runs_with_stays_until_that_has_died(tmp_path: Path) -> None:
    packages = [put(tmp_path, f"a-{number}", UNUSED_S + 10 + number) for number in range(KEEP + 1)]
    oldest = packages[-1]
    before = (oldest / "manifest.json").stat().st_mtime
    command = [sys.executable, "-c", HOLDER, str(oldest)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert (oldest / "manifest.json").stat().st_mtime != before
        # Taken long ago by its time, and held all the same: runs last for years.
        os.utime(oldest / "manifest.json", (before, before))
        assert drop_unused(tmp_path, NOW_S) == []
        holder.kill()
    assert drop_unused(tmp_path, NOW_S) == [oldest.name]
    assert not oldest.exists()


@pytest.mark.skipif(
    not Path("/proc/self/cwd").exists(), reason="the system does not tell where processes are"
)
def test_one_that_a_server_was_started_in_stays(tmp_path: Path) -> None:
    packages = [put(tmp_path, f"a-{number}", UNUSED_S + 10 + number) for number in range(KEEP + 1)]
    command = [sys.executable, "-c", "import sys; print(1, flush=True); sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=packages[-1]) as server:
        assert server.stdout is not None
        server.stdout.readline()
        assert drop_unused(tmp_path, NOW_S) == []
        server.kill()
    assert drop_unused(tmp_path, NOW_S) == [packages[-1].name]


def test_what_a_dead_process_left_unfinished_goes_after_a_day(tmp_path: Path) -> None:
    put(tmp_path, "a-1", 1.0)
    young = f".a-3.{'b' * 32}"
    for name, age_s in ((f".a-2.{'a' * 32}", UNFINISHED_S + 1), (young, 1.0), (".a-b.c-1", UNFINISHED_S + 1)):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (NOW_S - age_s, NOW_S - age_s))
    left = tmp_path / "environments" / f".x.tar.gz.{'c' * 32}"
    left.touch()
    os.utime(left, (0, 0))
    (tmp_path / "notes").mkdir()  # not ours
    drop_unused(tmp_path, NOW_S)
    assert names(tmp_path) == {"a-1", young, "notes", ".a-b.c-1"}
    assert not left.exists()


def test_taking_one_makes_holds_and_drops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = tmp_path / "packages"
    shelf.mkdir()
    for number in range(KEEP + 1):
        put(shelf, f"p-{number}", UNUSED_S * 2 + number + NOW_S - time.time())

    def make(_request: Request, output: Path) -> Package:
        return Package(put(output, "p-new", 0.0), {}, True)

    monkeypatch.setattr(module, "package", make)
    made = take(Request(tmp_path / "p.py", "p"), shelf)
    assert abs((made.path / "manifest.json").stat().st_mtime - time.time()) < 600
    assert names(shelf) == {"p-new", "p-0", "p-1"}


def test_holding_what_is_no_package_is_nothing(tmp_path: Path) -> None:
    hold(tmp_path)
