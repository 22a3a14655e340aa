"""Small files are replaced whole, in an order that a crash cannot undo."""

import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.model.durable import fsync_dir, fsync_file, replace_file, unique_temporary


def test_the_directory_is_synced_after_the_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    real_replace = os.replace
    monkeypatch.setattr(
        os, "fsync", lambda fd: events.append("dir" if os.path.isdir(f"/dev/fd/{fd}") else "file")
    )
    monkeypatch.setattr(os, "replace", lambda a, b: (events.append("rename"), real_replace(a, b)))
    assert replace_file(tmp_path / "f", [b"x", bytearray(b"yz")]) == 3
    assert events == ["file", "rename", "dir"]
    assert [path.name for path in tmp_path.iterdir()] == ["f"]
    assert (tmp_path / "f").read_bytes() == b"xyz"


def test_without_sync_nothing_waits_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(fd: int) -> None:
        raise AssertionError("waits")

    monkeypatch.setattr(os, "fsync", never)
    replace_file(tmp_path / "f", [b"x"], sync=False)
    assert (tmp_path / "f").read_bytes() == b"x"


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
def test_a_failure_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    replace_file(tmp_path / "f", [b"old"])

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        with pytest.raises(OSError, match="No space"):
            replace_file(tmp_path / "f", [b"new"])
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("f", b"old")]


def test_content_that_cannot_be_made_leaves_the_old_file(tmp_path: Path) -> None:
    replace_file(tmp_path / "f", [b"old"])

    def pieces() -> Iterator[bytes]:
        yield b"new"
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        replace_file(tmp_path / "f", pieces())
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("f", b"old")]


def test_a_short_write_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, bytes(data)[:2]))
    replace_file(tmp_path / "f", [b"abcde"])
    assert (tmp_path / "f").read_bytes() == b"abcde"


def test_the_mode_is_there_before_the_name_is(tmp_path: Path) -> None:
    path = tmp_path / "f"
    replace_file(path, [b"x"], mode=0o600)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    replace_file(path, [b"x"], mode=0o600, final_mode=0o755)
    assert stat.S_IMODE(path.stat().st_mode) == 0o755


def test_writers_at_once_have_temporary_files_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "f"
    names = [unique_temporary(path)]
    other = threading.Thread(target=lambda: names.append(unique_temporary(path)))
    other.start()
    other.join()
    assert len(set(names)) == 2
    assert {name.parent for name in names} == {tmp_path}


def test_the_opener_is_asked_for_every_descriptor(tmp_path: Path) -> None:
    opened: list[str] = []

    def open_file(path: Path, flags: int, mode: int) -> int:
        opened.append(path.name)
        return os.open(path, flags, mode)

    path = tmp_path / "f"
    replace_file(path, [b"x"], open_file=open_file)
    fsync_file(path, open_file)
    fsync_dir(tmp_path, open_file)
    assert opened == ["f.tmp", tmp_path.name, "f", tmp_path.name]


def test_a_file_that_is_gone_needs_no_disk(tmp_path: Path) -> None:
    fsync_file(tmp_path / "f")
