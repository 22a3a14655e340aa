"""`ottla pipeline` without Spark: the starter, what is refused, and what list, status and stop say of runs."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console, RenderableType

from ottla.cli.main import main
from ottla.cli.pipeline import run as runs
from ottla.spark.pipeline.run.spec import Spec
from ottla.spark.pipeline.run.state import FAILED, FINISHED, RUNNING, Home, Run

RUN = Run(
    "clicks", "/clicks.py", "b:9092", "local[2]", FINISHED, 7, 1_700_000_000_000, 1_700_000_060_000, "l.log"
)
STREAM = {
    "stream": "per_minute",
    "state": "running",
    "batch": 12,
    "rows_in": 1_234_567,
    "rows_out": 89,
    "bad": 2,
    "late": 3,
    "dead_lettered": 4,
    "in_per_s": 1000.4,
    "out_per_s": 1.0,
    "lag": 1500,
    "lag_seconds": 2.5,
    "batch_ms": 120,
    "state_rows": 40,
    "state_bytes": 1_200_000,
    "problem": "",
}
# A process that runs a pipeline as far as anybody can see, and ends when asked to.
STAND_IN = """
import signal, sys
from pathlib import Path
from ottla.spark.pipeline.run.state import Home, Run, RUNNING, STOPPED
import os
home = Home(Path(sys.argv[1]), "clicks")
def stop(*_):
    home.write_run(Run("clicks", "/clicks.py", "b:9092", "local", STOPPED, os.getpid(), 1, 2))
    raise SystemExit
with home.locked():
    signal.signal(signal.SIGTERM, stop if sys.argv[2] == "polite" else signal.SIG_IGN)
    home.write_run(Run("clicks", "/clicks.py", "b:9092", "local", RUNNING, os.getpid(), 1))
    print("ready", flush=True)
    signal.pause()
    while True:
        signal.pause()
"""


@pytest.fixture
def state(tmp_path: Path) -> Path:
    home = Home(tmp_path, "clicks")
    home.write_run(RUN)
    home.write_progress({"at_ms": 1, "streams": [STREAM]})
    return tmp_path


class Ended:
    """A runner that has ended before it could say anything; the number of its process is an earlier one's."""

    pid = RUN.pid

    def poll(self) -> int:
        return 1


@pytest.mark.parametrize("way", [runs.watched, runs.detached])
def test_a_run_that_ended_at_once_is_not_taken_for_an_earlier_one_with_its_number(
    way: Callable[[Spec, Home], int],
    state: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As in containers, where the first processes have the same numbers each time."""
    log = state / "new.log"
    log.write_text("2026-11-18 23:40:00.000Z /state/clicks cannot be written: No space left on device\n")
    spec = Spec("/clicks.py", "clicks", "b:9092", str(state), str(log), str(state / "spark.log"))
    monkeypatch.setattr(runs, "_start", lambda _: Ended())
    assert way(spec, Home(state, "clicks")) == 1
    assert "cannot be written: No space left on device" in capsys.readouterr().err


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def stand_in(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    manner = getattr(request, "param", "polite")
    process = subprocess.Popen(
        [sys.executable, "-c", STAND_IN, str(tmp_path), manner], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    yield process
    process.kill()
    process.communicate()


def test_new_writes_a_file_that_passes_the_check(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", "new", "views"]) == 0
    assert "wrote views.py; run it with `ottla pipeline run views.py`" in capsys.readouterr().err
    assert main(["pipeline", "check", "views.py"]) == 0
    assert "views.py is fine: 1 stream" in capsys.readouterr().err
    assert main(["pipeline", "new", "views"]) == 1
    assert "views.py is there already; --force overwrites it" in capsys.readouterr().err
    assert main(["pipeline", "new", "views.py", "--force"]) == 0


@pytest.mark.parametrize(
    ("name", "words", "code"),
    [
        ("1st", "the name of a pipeline", 2),
        ("nowhere/views", "there is no such directory", 1),
        ("", "the name", 2),
    ],
)
def test_new_refuses(
    here: Path, capsys: pytest.CaptureFixture[str], name: str, words: str, code: int
) -> None:
    assert main(["pipeline", "new", name]) == code
    assert words in capsys.readouterr().err


def test_run_says_all_that_is_wrong_and_starts_nothing(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "bad.py").write_text(
        "from ottla.spark import pipeline, topic\n"
        "@pipeline.stream(out=topic('o o'), mode='apend')\n"
        "def copy(rows=topic('in', schema='a itn')):\n    return rows\n"
    )
    assert main(["pipeline", "run", "bad.py", "--state-dir", "st"]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "ottla: bad.py:2: copy(mode): 'apend' is none of append, update, complete; did you mean 'append'?",
        "ottla: bad.py:2: copy(rows): schema, position 3: there is no type 'itn'; did you mean 'int'? in 'a itn'",
        "ottla: bad.py:2: copy(out): 'o o' is no name for a topic: letters, digits, '.', '_' and '-', at most 249",
    ]
    assert not (here / "st").exists()


def test_run_needs_a_broker_before_it_starts_spark(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", "new", "views"]) == 0
    assert main(["pipeline", "run", "views.py", "-b", "127.0.0.1:1", "--state-dir", "st"]) == 1
    assert "start one with `ottla serve`, or name another with -b HOST:PORT" in capsys.readouterr().err
    assert not (here / "st").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--master", "local", "--remote", "sc://x"], "--master and --remote: one or the other"),
        (["--conf", "x"], "--conf takes KEY=VALUE, not 'x'"),
        (["--conf", "spark.authenticate.secret:hush"], "not 'spark.authenticate.secret:…'"),
        (["--remote", "localhost:15002"], "--remote is no address of a Spark Connect server: sc://HOST:PORT"),
        (["--remote", "sc://x/;token=hush="], "--remote has '=' in its token: write it as %3D"),
        (["-X", "x"], "-X takes KEY=VALUE, not 'x'"),
        (["--name", "a/b"], "the name of a pipeline"),
        (
            ["-X", "sasl.mechanism=PLAIN"],
            "sasl.mechanism is for a security.protocol of SASL_SSL or SASL_PLAINTEXT",
        ),
        (
            ["-X", "sasl.mechanizm=PLAIN"],
            "unknown option kafka.sasl.mechanizm; the nearest one is kafka.sasl.mechanism",
        ),
    ],
)
def test_a_wrong_command_line(
    here: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert main(["pipeline", "new", "views"]) == 0
    capsys.readouterr()
    assert main(["pipeline", "run", "views.py", "-b", "127.0.0.1:1", "--state-dir", "st", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert "hush" not in line


@pytest.mark.parametrize(
    ("package", "words", "said"),
    [
        ("pyspark", [], "pipelines need the package pyspark: pip install '.[spark]' in Ottla's checkout"),
        ("pyarrow", [], "pipelines need the package pyarrow: pip install '.[spark]' in Ottla's checkout"),
        (
            "grpc",
            ["--remote", "sc://x"],
            "--remote needs the package grpc: pip install '.[spark-connect]' in Ottla's checkout",
        ),
    ],
)
def test_what_is_not_installed_is_one_sentence(
    here: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    package: str,
    words: list[str],
    said: str,
) -> None:
    from ottla.cli.pipeline import run

    real = run._is_installed
    monkeypatch.setattr(run, "_is_installed", lambda name: name != package and real(name))
    assert main(["pipeline", "run", "views.py", *words]) == 1
    assert capsys.readouterr().err == f"ottla: {said}\n"


@pytest.mark.parametrize("command", ["check", "graph", "package", "deploy"])
def test_a_file_cannot_be_read_without_sparks_package(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    from ottla.cli.pipeline import run

    assert main(["pipeline", "new", "views"]) == 0
    capsys.readouterr()
    monkeypatch.setattr(run, "_is_installed", lambda name: name != "pyspark")
    more = ["--to", "systemd"] if command == "deploy" else []
    assert main(["pipeline", command, "views.py", *more]) == 1
    assert capsys.readouterr().err.startswith("ottla: pipelines need the package pyspark: pip install")


def test_no_java_is_one_sentence(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from ottla.spark import java

    def none() -> java.Java:
        raise java.JavaMissing("no Java, install one")

    monkeypatch.setattr(java, "find_java", none)
    assert main(["pipeline", "run", "views.py"]) == 1
    assert capsys.readouterr().err == "ottla: no Java, install one\n"


def test_list_shows_pipelines_and_their_lag(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", "list", "--state-dir", str(state)]) == 0
    heading, row = capsys.readouterr().out.splitlines()
    assert heading.split() == ["NAME", "STATE", "PID", "STARTED", "STREAMS", "LAG", "FILE"]
    assert row.split()[:3] == ["clicks", "finished", "-"]
    assert row.split()[-3:] == ["1", "1500", "/clicks.py"]
    assert main(["pipeline", "list", "--state-dir", str(state / "none"), "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_status_shows_figures_as_a_table_or_json(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", "status", "clicks", "--state-dir", str(state)]) == 0
    text = capsys.readouterr().out
    assert "clicks: finished, started " in text
    assert (
        "per_minute  running     12  1,234,567  1,000        89      1    2     3     4  1,500    2.5       120"
        in text
    )
    assert "  LATE  DEAD    LAG" in text
    assert "1.2 MB" in text
    assert main(["pipeline", "status", "clicks", "--json", "--state-dir", str(state)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["name"], found["state"], found["streams"]) == ("clicks", "finished", [STREAM])


def test_status_of_a_run_that_did_not_count_dead_letters_yet(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stream = {name: value for name, value in STREAM.items() if name != "dead_lettered"}
    Home(state, "clicks").write_progress({"at_ms": 1, "streams": [stream]})
    assert main(["pipeline", "status", "clicks", "--state-dir", str(state)]) == 0
    assert "    2     3     0  1,500 " in capsys.readouterr().out


def test_status_of_what_failed_or_died_is_an_error_code(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = Home(state, "clicks")
    home.write_run(Run("clicks", "/c.py", "b:1", "local", FAILED, problems=("per_minute: oops",)))
    assert main(["pipeline", "status", "clicks", "--state-dir", str(state)]) == 1
    assert "problem      per_minute: oops" in capsys.readouterr().out
    home.write_run(Run("clicks", "/c.py", "b:1", "local", RUNNING, pid=1))
    assert main(["pipeline", "status", "clicks", "--state-dir", str(state)]) == 1
    assert "clicks: died" in capsys.readouterr().out


def test_an_unknown_name_is_told_with_the_nearest(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", "status", "clikcs", "--state-dir", str(state)]) == 2
    assert "unknown pipeline 'clikcs'; did you mean 'clicks'?" in capsys.readouterr().err
    assert main(["pipeline", "stop", "clicks", "--state-dir", str(state / "none")]) == 1
    assert "no pipeline has run yet with its state in" in capsys.readouterr().err


def test_stop_ends_a_running_one(
    tmp_path: Path, stand_in: subprocess.Popen[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pipeline", "list", "--state-dir", str(tmp_path)]) == 0
    assert f"clicks  running  {stand_in.pid}" in capsys.readouterr().out
    assert main(["pipeline", "stop", "clicks", "--state-dir", str(tmp_path)]) == 0
    assert capsys.readouterr().err == "clicks: stopped\n"
    assert stand_in.wait(30) == 0


@pytest.mark.parametrize("stand_in", ["deaf"], indirect=True)
def test_stop_waits_and_kills_only_when_told_to(
    tmp_path: Path, stand_in: subprocess.Popen[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pipeline", "stop", "clicks", "--timeout", "0.2", "--state-dir", str(tmp_path)]) == 1
    assert "has not stopped within 0.2 s; --force kills it" in capsys.readouterr().err
    assert (
        main(["pipeline", "stop", "clicks", "--timeout", "0.2", "--force", "--state-dir", str(tmp_path)]) == 0
    )
    assert capsys.readouterr().err == "clicks: died\n"


def test_stop_knows_a_stale_pid(
    tmp_path: Path, stand_in: subprocess.Popen[str], capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in.kill()
    stand_in.wait()
    assert main(["pipeline", "stop", "clicks", "--state-dir", str(tmp_path)]) == 0
    said = capsys.readouterr().err
    assert said == (
        f"clicks does not run (process {stand_in.pid}, which its pid file names, is no longer it): died\n"
    )


def test_run_refuses_a_second_one(
    here: Path, stand_in: subprocess.Popen[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pipeline", "new", "clicks"]) == 0
    assert main(["pipeline", "run", "clicks.py", "--state-dir", str(here)]) == 1
    assert f"clicks runs already, as process {stand_in.pid};" in capsys.readouterr().err


def _drawn(shown: RenderableType, width: int) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width).print(shown)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_the_screen_fits_the_terminal_and_says_what_it_shows() -> None:
    from ottla.cli.pipeline.screen import elapsed, plain_lines, screen, size

    progress = {"streams": [STREAM]}
    lines = _drawn(screen(RUN, progress, RUN.started_ms + 125_000), 140)
    assert lines[0] == "clicks: finished for 2 min 05 s on local[2], brokers b:9092"
    assert lines[2].split()[:4] == ["STREAM", "STATE", "BATCH", "ROWS"]
    assert "1,234,567" in lines[3]
    narrow = _drawn(screen(RUN, progress, RUN.started_ms + 125_000), 40)
    assert len(narrow) == len(lines), "nothing is broken in two"
    assert max(map(len, narrow)) <= 40
    assert _drawn(screen(RUN, {}, RUN.started_ms), 80)[2] == "no figures yet"
    (line,) = plain_lines(progress, 61)
    assert line == (
        "    61 s  per_minute: batch 12, 1,234,567 in (1,000/s), 89 out (1/s), 2 bad, lag 1,500 (2.5 s), "
        "120 ms a batch, 40 rows of state"
    )
    assert [elapsed(ms) for ms in (-1, 59_999, 3_600_000)] == ["0 s", "59 s", "1 h 00 min"]
    assert [size(number) for number in (1, 1500, 2_500_000, 3e12)] == ["1 B", "2 kB", "2.5 MB", "3.0 TB"]


def test_what_has_not_begun_has_no_line_and_brokers_that_are_away_are_told() -> None:
    from ottla.cli.pipeline.screen import plain_lines, screen, status_lines

    assert plain_lines({"streams": [{**STREAM, "batch": None}]}, 1) == []
    running = replace(RUN, state=RUNNING, ended_ms=None, created=("a", "b"))
    progress = {"streams": [STREAM], "brokers_problem": "connection refused"}
    told = "the brokers at b:9092 do not answer: connection refused"
    assert f"  problem      {told}" in status_lines(running, progress)
    assert f"problem: {told}" in _drawn(screen(running, progress, RUN.started_ms), 100)
    assert "created 2 topics: a, b" in _drawn(screen(running, progress, RUN.started_ms), 100)
    assert told not in "".join(status_lines(RUN, progress)), "of a run that is over nobody asks"


@pytest.mark.parametrize("master", ["foo", "local[", "local[x]", "Spark://h:7077", "spark://"])
def test_what_is_no_master_is_said_before_anything_starts(
    master: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["pipeline", "new", "views"])
    capsys.readouterr()
    assert main(["pipeline", "run", "views.py", "--master", master]) == 2
    assert f"--master '{master}' is no master of Spark's: local" in capsys.readouterr().err


def test_old_logs_are_dropped(tmp_path: Path) -> None:
    from ottla.cli.pipeline.run import KEEP_LOGS, _drop_old_logs

    for number in range(3 * KEEP_LOGS):
        (tmp_path / f"{number:04}.log").write_text("")
    _drop_old_logs(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2 * KEEP_LOGS
    assert (tmp_path / f"{3 * KEEP_LOGS - 1:04}.log").exists()
