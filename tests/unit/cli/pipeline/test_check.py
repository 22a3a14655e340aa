"""`ottla pipeline check` and `savepoint` without Spark: whose checkpoints are, what is copied, what is refused."""

from __future__ import annotations

import importlib
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.pipelines import write_pipeline
from tests.unit.cli.pipeline.test_pipeline import RUN, stand_in
from tests.unit.spark.pipeline.test_checkpoint import write_checkpoint

from ottla.cli.main import main
from ottla.cli.pipeline import run as runs
from ottla.spark.pipeline.checkpoints import checkpoint, savepoint
from ottla.spark.pipeline.run.spec import Spec
from ottla.spark.pipeline.run.state import STOPPED, Home
from ottla.spark.session import SparkFailed

__all__ = ["stand_in"]
TEXT = """
    @pipeline.stream(out=topic("out"))
    def copy(rows=topic("orders", schema="n int")):
        return rows
    """


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home(tmp_path, "clicks")
    made.write_run(replace(RUN, state=STOPPED, checkpoints=str(made.checkpoints)))
    return made


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_pipeline(tmp_path, TEXT, "clicks")


def check(home: Home, file: Path, *words: str) -> int:
    return main(["pipeline", "check", str(file), "--state-dir", str(home.path.parent), *words])


def test_check_is_fine_and_says_where_state_is_to_be_compared(
    home: Home, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(home, file) == 0
    assert capsys.readouterr().err == "clicks.py is fine: 1 stream\n"
    write_checkpoint(home.checkpoints / "copy")
    assert check(home, file) == 0
    assert (
        "copy: there is state of an earlier run; --plan compares it with this code" in capsys.readouterr().err
    )
    assert check(home, file, "--name", "other") == 0
    assert "earlier run" not in capsys.readouterr().err


def test_check_finds_a_checkpoint_of_another(
    home: Home, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_checkpoint(home.checkpoints / "copy")
    checkpoint.write_owner(home.checkpoints / "copy", "orders", "copy")
    assert check(home, file) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "is that of stream 'copy' of pipeline 'orders'" in line
    (home.checkpoints / "copy" / checkpoint.OWNER).write_text("?")
    assert check(home, file) == 1
    assert "ottla.json cannot be read" in capsys.readouterr().err


def test_restart_stops_nothing_where_the_checkpoint_is_anothers(
    file: Path,
    tmp_path: Path,
    stand_in: subprocess.Popen[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runs, "check_topics", lambda *_, **__: None)
    home = Home(tmp_path, "clicks")
    home.write_spec(Spec(str(file), "clicks", "b:9092", str(tmp_path), "l", "s").to_keep())
    write_checkpoint(home.checkpoints / "copy", sources=({"other": {"0": 1}},))
    assert main(["pipeline", "restart", "clicks", "--state-dir", str(tmp_path)]) == 1
    assert "has read other, and the stream reads orders" in capsys.readouterr().err
    assert stand_in.poll() is None


def test_json_is_for_the_plan(home: Home, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(home, file, "--json") == 2
    assert "--json is how --plan shows it" in capsys.readouterr().err


def test_check_does_not_ask_for_secrets(home: Home, tmp_path: Path) -> None:
    text = TEXT.replace('schema="n int")', 'schema="n int"), token=secret("TOKEN")')
    made = write_pipeline(
        tmp_path, "from ottla.spark import secret\n" + text.replace("\n    ", "\n"), "clicks"
    )
    assert check(home, made) == 0


def test_why_there_is_no_plan_is_said_without_secret_settings(
    home: Home, file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def session(*given: Any, log_file: Path, **_: Any) -> Any:
        log_file.write_text(f"Error: {given[3]['spark.hadoop.fs.s3a.secret.key']} is refused\n")
        raise SparkFailed("Spark did not start")

    monkeypatch.setattr(importlib.import_module("ottla.spark.session"), "session", session)
    monkeypatch.setattr("ottla.cli.pipeline.check.require_spark", lambda _: None)
    monkeypatch.setattr("ottla.spark.pipeline.planned.topic_notes", lambda *_: [])
    assert check(home, file, "--plan", "--conf", "spark.hadoop.fs.s3a.secret.key=hush") == 1
    assert capsys.readouterr().err == "ottla: Spark did not start: Error: *** is refused\n"


def test_savepoint_copies_what_is_stopped(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    write_checkpoint(home.checkpoints / "copy", batch=5, committed=4)
    assert main(["pipeline", "savepoint", "clicks", "--state-dir", str(home.path.parent)]) == 0
    said = capsys.readouterr().err
    (made,) = home.savepoints.iterdir()
    assert (
        f"clicks: copied to {made}; `ottla pipeline run FILE --from-savepoint {made}` starts from it" in said
    )
    assert "copy: micro-batch 4; 5 was begun, and will be run again" in said
    assert [one.name for one in savepoint.read(made).queries] == ["copy"]
    words = ["pipeline", "savepoint", "clicks", "--state-dir", str(home.path.parent), "--to", str(made)]
    assert main(words) == 1
    assert "is there already" in capsys.readouterr().err


def test_savepoint_refuses_one_that_runs(
    tmp_path: Path, stand_in: subprocess.Popen[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pipeline", "savepoint", "clicks", "--state-dir", str(tmp_path)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "runs already" in line
    assert "`ottla pipeline stop clicks` stops it" in line
    assert not Home(tmp_path, "clicks").savepoints.exists()


def test_savepoint_of_checkpoints_elsewhere_is_refused(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    home.write_run(replace(RUN, state=STOPPED, checkpoints="s3a://bucket/c"))
    assert main(["pipeline", "savepoint", "clicks", "--state-dir", str(home.path.parent)]) == 1
    assert "are in s3a://bucket/c, which is not of this machine" in capsys.readouterr().err


def test_savepoint_of_a_replay_that_ended_before_the_end_is_refused(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    write_checkpoint(home.checkpoints / "copy")
    home.write_spec({"replay": {"from_ms": 0, "to_ms": 5}})
    assert main(["pipeline", "savepoint", "clicks", "--state-dir", str(home.path.parent)]) == 1
    assert "has left out what is newer than its --to" in capsys.readouterr().err
    assert not home.savepoints.exists()


def test_a_run_starts_from_a_savepoint_only_where_there_is_no_checkpoint(
    home: Home, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "pipeline",
        "run",
        str(file),
        "-b",
        "127.0.0.1:1",
        "--state-dir",
        str(tmp_path),
        "--from-savepoint",
    ]
    assert main([*words, str(tmp_path / "none")]) == 1
    assert "none is no savepoint" in capsys.readouterr().err
    write_checkpoint(home.checkpoints / "copy")
    savepoint.save("clicks", home.checkpoints, tmp_path / "saved", 1)
    assert main([*words, str(tmp_path / "saved")]) == 1
    assert "there are checkpoints in" in capsys.readouterr().err
