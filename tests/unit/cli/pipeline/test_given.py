"""`ottla pipeline check` and `run` with parameters and secrets: told before Spark starts; `status` shows values."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ottla.cli.main import main
from ottla.spark.pipeline.run.state import FINISHED, Home, Run

TEXT = """\
from ottla.spark import param, pipeline, secret, topic
@pipeline.stream(out=topic("out"))
def copy(rows=topic("in", schema="n int"), limit=param(int), token=secret("TOKEN")):
    return rows
"""
RUN = Run("orders", "/orders.py", "b:9092", "local[2]", FINISHED, 7, 1_700_000_000_000, 1_700_000_060_000)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OTTLA_PARAM_LIMIT", raising=False)
    monkeypatch.delenv("OTTLA_SECRET_TOKEN", raising=False)
    (tmp_path / "orders.py").write_text(TEXT)
    return tmp_path


def test_check_tells_of_parameters_and_asks_for_no_secrets(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["pipeline", "check", "orders.py"]) == 1
    assert "orders.py:2: copy(limit): a value is missing" in capsys.readouterr().err
    assert main(["pipeline", "check", "orders.py", "--param", "limit=x"]) == 1
    assert "orders.py:2: copy(limit): --param limit: 'x' is no int\n" in capsys.readouterr().err
    assert main(["pipeline", "check", "orders.py", "--param", "limit"]) == 2
    assert main(["pipeline", "check", "orders.py", "--param", "copy.limit=5"]) == 0
    (here / "p.toml").write_text("limit = 5\n")
    assert main(["pipeline", "check", "orders.py", "--param-file", "p.toml"]) == 0
    assert main(["pipeline", "check", "orders.py", "--param-file", "q.toml"]) == 1
    assert "ottla: q.toml: No such file or directory" in capsys.readouterr().err
    monkeypatch.setenv("OTTLA_PARAM_LIMIT", "7")
    assert main(["pipeline", "check", "orders.py"]) == 0


def test_run_tells_of_secrets_that_are_missing_and_starts_nothing(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["pipeline", "run", "orders.py", "--state-dir", "st", "-b", "127.0.0.1:1", "--param", "limit=1"]
    assert main(command) == 1
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith(
        "ottla: orders.py:2: copy(token): secret('TOKEN') is nowhere: set OTTLA_SECRET_TOKEN or"
    )
    assert main([*command, "--secrets-dir", "nowhere"]) == 2
    assert "--secrets-dir nowhere: there is no such directory" in capsys.readouterr().err
    (here / "TOKEN").write_text("s3cr3t")
    assert main([*command, "--secrets-dir", "."]) == 1
    said = capsys.readouterr().err
    assert "start one with `ottla serve`" in said, "only the brokers are missing now"
    assert "s3cr3t" not in said
    assert not (here / "st").exists()


def test_status_shows_the_values_of_the_run(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Home(here, "orders").write_run(replace(RUN, params={"copy.limit": 5, "source": "in"}))
    assert main(["pipeline", "status", "orders", "--state-dir", str(here)]) == 0
    assert "  parameter    copy.limit = 5\n  parameter    source = in\n" in capsys.readouterr().out
    assert main(["pipeline", "status", "orders", "--json", "--state-dir", str(here)]) == 0
    assert json.loads(capsys.readouterr().out)["params"] == {"copy.limit": 5, "source": "in"}
