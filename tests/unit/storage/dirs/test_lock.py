"""The .lock file excludes other processes, and this one."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ottla.storage.dirs.log_dir import DirLock, DirLockedError

HOLDER = """
import sys
from pathlib import Path
from ottla.storage.dirs.log_dir import DirLock
DirLock(Path(sys.argv[1])).acquire()
print("locked", flush=True)
sys.stdin.read()
"""


def test_another_process_is_kept_out_until_the_first_ends(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(DirLockedError, match=r"another process runs a broker on [^\n]*$"):
            DirLock(tmp_path).acquire()
        holder.kill()
    lock = DirLock(tmp_path)
    lock.acquire()
    lock.release()


def test_a_second_broker_of_this_process_is_kept_out_and_the_first_keeps_its_lock(tmp_path: Path) -> None:
    first = DirLock(tmp_path)
    first.acquire()
    with pytest.raises(DirLockedError, match="this process"):
        DirLock(tmp_path).acquire()
    probe = (
        "import fcntl, os, sys\nfd = os.open(sys.argv[1], os.O_RDWR)\n"
        "try:\n    fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)\nexcept OSError:\n    sys.exit(7)\n"
    )
    assert subprocess.run([sys.executable, "-c", probe, str(first.path)], check=False).returncode == 7
    first.release()
    assert not first.path.exists()
    first.release()


def test_a_lock_on_a_file_removed_meanwhile_is_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = DirLock(tmp_path)
    real = fcntl.lockf
    removed: list[Path] = []

    def removing_once(fd: int, operation: int) -> None:
        if not removed:
            removed.append(lock.path)
            lock.path.unlink()
        real(fd, operation)

    monkeypatch.setattr(fcntl, "lockf", removing_once)
    lock.acquire()
    assert os.stat(lock.path).st_nlink == 1
    lock.release()
