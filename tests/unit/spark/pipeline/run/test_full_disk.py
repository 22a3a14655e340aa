"""Which disk is full, in one line; and a run whose own files a full disk does not take."""

from __future__ import annotations

import errno
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ottla.spark.pipeline.run import full_disk as module
from ottla.spark.pipeline.run.full_disk import Place, full_disk, fullest, places
from ottla.spark.pipeline.run.runner import RunLog, Runner
from ottla.spark.pipeline.run.spec import Spec

JAVA = "[STREAM_FAILED] Query [id = 1] terminated\njava.io.IOException: No space left on device\n\tat java.base/x"


def test_an_error_of_another_kind_is_none_of_it() -> None:
    assert full_disk("java.io.IOException: Connection reset", [Place("the checkpoints", "/")]) is None


def test_the_place_that_is_full_is_found_where_the_error_names_none(monkeypatch: pytest.MonkeyPatch) -> None:
    known = [Place("the checkpoints", "/a"), Place("Spark's local files", "/b")]
    monkeypatch.setattr(module, "_room", lambda path, _share: {"/b": 4096}.get(path))
    assert full_disk(JAVA, known) == "the disk of /b (Spark's local files) is full"
    monkeypatch.setattr(module, "_room", lambda _path, _share: None)
    assert (
        full_disk(JAVA, known) == "one of the disks of /a (the checkpoints), /b (Spark's local files) is full"
    )


@pytest.mark.parametrize(
    "error",
    [
        "OSError: [Errno 28] No space left on device: '/a/b/x.parquet'",
        "java.io.FileNotFoundException: /a/b/0 (No space left on device)",
        "org.rocksdb.RocksDBException: While appending to file: /a/b/000012.sst: No space left on device",
    ],
)
def test_a_path_in_the_error_is_believed(error: str) -> None:
    assert full_disk(error, [Place("the checkpoints", "/a")]) == "the disk of /a (the checkpoints) is full"
    assert full_disk(error, [Place("the checkpoints", "/ab")]) is not None
    assert "/a/b/" in str(full_disk(error, []))


def test_a_disk_of_another_machine_is_named_with_it() -> None:
    lost = "Lost task 0.3 in stage 4.0 (TID 12) (w7 executor 3): java.io.IOException: No space left on device"
    known = [Place("the checkpoints", "/shared")]
    assert full_disk(lost, known) == "the disk that executor 3 on w7 uses is full"
    rocks = f"{lost.partition(': ')[0]}\norg.rocksdb.RocksDBException: /data/1.sst: No space left on device"
    assert full_disk(rocks, known) == "the disk of /data/1.sst on w7 is full"


def test_places_are_those_of_this_machine(tmp_path: Path) -> None:
    found = places("hdfs://n/c", tmp_path, {"spark.local.dir": "/x, /y"}, {}, ["file:///lake", "s3a://b/t"])
    assert [one.path for one in found] == ["/x", "/y", "/lake", str(tmp_path)]


def test_a_disk_with_room_is_not_full(tmp_path: Path) -> None:
    assert fullest([Place("", str(tmp_path / "not" / "made"))]) is None


class Full(io.StringIO):
    """A file on a disk that has no room, until it has."""

    has_room = False

    def flush(self) -> None:
        if not self.has_room:
            raise OSError(errno.ENOSPC, "No space left on device")


def test_the_log_and_the_files_of_a_run_are_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = Full()
    log = RunLog(text)
    log.say("one")
    spec = Spec("p.py", "p", "b:1", str(tmp_path), "", "")
    runner = Runner(spec, log)
    written: list[Any] = []

    def write(what: str) -> Callable[[Any], None]:
        def take(document: Any) -> None:
            if not text.has_room:
                raise OSError(errno.ENOSPC, "No space left on device")
            written.append((what, document))

        return take

    monkeypatch.setattr(runner._home, "write_progress", write("progress"))
    monkeypatch.setattr(runner._home, "write_run", write("run"))

    class NoLags:
        problem = None

    with runner._without_files():
        runner._write_state("running")
    for _ in range(3):
        runner._publish(NoLags())  # type: ignore[arg-type]
    assert not written
    text.has_room = True
    runner._publish(NoLags())  # type: ignore[arg-type]
    assert [what for what, _ in written] == ["run", "progress"]
    assert written[0][1].state == "running"
    runner._publish(NoLags())  # type: ignore[arg-type]
    assert [what for what, _ in written] == ["run", "progress", "progress"]
    said = [line for line in text.getvalue().splitlines() if "cannot be written" in line]
    assert len(said) == 1
    assert str(tmp_path / "p") in said[0]
