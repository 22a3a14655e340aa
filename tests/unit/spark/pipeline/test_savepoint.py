"""Copies of checkpoints: whole or not there, started from under another id, refused where one is there already."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.support.pipelines import write_pipeline
from tests.unit.spark.pipeline.test_checkpoint import write_checkpoint

from ottla.spark.pipeline.checkpoints import checkpoint, savepoint
from ottla.spark.pipeline.checkpoints.savepoint import SavepointError
from ottla.spark.pipeline.load import Pipeline, load

NOW_MS = 1_760_000_000_000


@pytest.fixture
def checkpoints(tmp_path: Path) -> Path:
    root = tmp_path / "state" / "p" / "checkpoints"
    write_checkpoint(root / "copy")
    write_checkpoint(root / "copy.dead_letter", batch=3, committed=2, schema=None)
    (root / "copy" / ".metadata.crc").write_text("of the old id")
    return root


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    text = """
        @pipeline.stream(out=topic("out"), dead_letter="bad")
        def copy(rows=topic("orders", schema="n int")):
            return rows

        @pipeline.stream(out=topic("out"))
        def fresh(rows=topic("orders", schema="n int")):
            return rows
        """
    return load(write_pipeline(tmp_path, text))


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_a_copy_is_what_was_there_and_starts_another_life(
    checkpoints: Path, pipeline: Pipeline, tmp_path: Path
) -> None:
    before = contents(checkpoints)
    made = savepoint.save("p", checkpoints, tmp_path / "saved", NOW_MS)
    assert {name: data for name, data in contents(made.path).items() if name != savepoint.MANIFEST} == before
    assert savepoint.read(made.path) == made
    saved = contents(made.path)
    target = tmp_path / "state" / "q" / "checkpoints"
    target.mkdir(parents=True)  # an empty directory is none
    words = savepoint.restore(made, pipeline, str(target))
    assert contents(checkpoints) == before
    assert contents(made.path) == saved
    started = contents(target)
    changed = {name for name in before if started.get(name) != before[name]}
    assert changed == {"copy/metadata", "copy/.metadata.crc", "copy.dead_letter/metadata"}
    ids = {checkpoint.query_id(root / "copy") for root in (checkpoints, target)}
    assert len(ids) == 2
    assert checkpoint.query_id(target / "copy") != checkpoint.query_id(target / "copy.dead_letter")
    assert checkpoint.owner_of(target / "copy") == ("p", "copy")
    assert "fresh: not in" in "\n".join(words)
    assert "copy.dead_letter: micro-batch 3 was begun and not finished" in "\n".join(words)
    assert sorted(path.name for path in target.parent.iterdir()) == ["checkpoints"]


def test_the_paths_that_spark_keeps_of_schema_files_are_those_of_the_new_place(
    checkpoints: Path, pipeline: Pipeline, tmp_path: Path
) -> None:
    place = checkpoints / "copy" / "state" / "0"
    (place / "_metadata" / "v2").mkdir()
    about = {
        "operatorInfo": {"operatorId": 0, "operatorName": "transformWithStateInPySparkExec"},
        "stateStoreInfo": [
            {
                "storeName": "default",
                "numPartitions": 1,
                "stateSchemaFilePaths": ["file:/gone/_stateSchema/default/0_a"],
            }
        ],
    }
    (place / "_metadata" / "v2" / "0").write_text("v2\n" + json.dumps(about))
    made = savepoint.save("p", checkpoints, tmp_path / "saved", NOW_MS)
    target = tmp_path / "jinde ž 100%"
    savepoint.restore(made, pipeline, str(target))
    found = (target / "copy" / "state" / "0" / "_metadata" / "v2" / "0").read_text()
    wanted = f"file:{target}/copy/state/0/_stateSchema/default/0_a"
    assert json.loads(found.partition("\n")[2])["stateStoreInfo"][0]["stateSchemaFilePaths"] == [wanted]
    assert found.startswith("v2\n")


def test_nothing_is_written_over(checkpoints: Path, pipeline: Pipeline, tmp_path: Path) -> None:
    made = savepoint.save("p", checkpoints, tmp_path / "saved", NOW_MS)
    with pytest.raises(SavepointError, match="is there already: a savepoint is never written over"):
        savepoint.save("p", checkpoints, tmp_path / "saved", NOW_MS)
    before = contents(checkpoints)
    with pytest.raises(SavepointError, match=r"there are checkpoints in .* already"):
        savepoint.restore(made, pipeline, str(checkpoints))
    assert contents(checkpoints) == before
    with pytest.raises(SavepointError, match="not to s3a://bucket/c"):
        savepoint.restore(made, pipeline, "s3a://bucket/c")


@pytest.mark.parametrize("fails", [1, 3, 8])
def test_a_disk_that_is_full_leaves_nothing_behind(
    fails: int, checkpoints: Path, pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = savepoint.save("p", checkpoints, tmp_path / "saved", NOW_MS)
    left = fails
    real = os.fsync

    def full(fd: int) -> None:
        nonlocal left
        left -= 1
        if left <= 0:
            raise OSError(28, "No space left on device")
        real(fd)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SavepointError, match=r"other cannot be written: .*No space left on device"):
        savepoint.save("p", checkpoints, tmp_path / "other", NOW_MS)
    left = fails
    with pytest.raises(SavepointError, match="No space left on device"):
        savepoint.restore(made, pipeline, str(tmp_path / "target"))
    monkeypatch.undo()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p.py", "saved", "state"]


def test_nothing_to_copy_and_no_stream_in_it_are_a_line(checkpoints: Path, tmp_path: Path) -> None:
    with pytest.raises(SavepointError, match="q has no checkpoints in"):
        savepoint.save("q", tmp_path / "nowhere", tmp_path / "saved", NOW_MS)
    made = savepoint.save("p", checkpoints, tmp_path / "saved", NOW_MS)
    text = """
        @pipeline.stream(out=topic("out"))
        def other(rows=topic("orders", schema="n int")):
            return rows
        """
    with pytest.raises(SavepointError, match=r"has no stream of this file: it has copy, copy\.dead_letter"):
        savepoint.restore(made, load(write_pipeline(tmp_path, text)), str(tmp_path / "c"))
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (None, "is no savepoint: savepoint.json: No such file"),
        ("{", "is not what `pipeline savepoint` writes"),
        ([], "is not what `pipeline savepoint` writes"),
        ({"format": 2}, "has the format 2; this version knows 1"),
        ({"format": 1, "pipeline": "p", "made_ms": 1, "queries": [{"name": "../x"}]}, "is not what"),
        (
            {
                "format": 1,
                "pipeline": "p",
                "made_ms": 1,
                "queries": [{"name": "gone", "query_id": None, "batch": 1, "committed": 1}],
            },
            "is not complete: it has no gone",
        ),
    ],
)
def test_what_is_no_savepoint_is_a_line(document: Any, said: str, tmp_path: Path) -> None:
    if document is not None:
        text = document if isinstance(document, str) else json.dumps(document)
        (tmp_path / savepoint.MANIFEST).write_text(text)
    with pytest.raises(SavepointError, match=said):
        savepoint.read(tmp_path)
