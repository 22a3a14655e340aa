"""`ottla pipeline logs | attach | restart | reset`, without Spark."""

from __future__ import annotations

import errno
import json
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.cli.pipeline.test_pipeline import RUN, stand_in

from ottla.cli.main import main
from ottla.cli.pipeline import run as runs
from ottla.client import Producer
from ottla.client.errors import ProducerFenced
from ottla.spark.pipeline.checkpoints.checkpoint import write_owner
from ottla.spark.pipeline.lake.common import GIVEN_UP
from ottla.spark.pipeline.replay import Replay
from ottla.spark.pipeline.run.spec import Spec
from ottla.spark.pipeline.run.state import FAILED, RUNNING, STOPPED, Home
from ottla.testing.broker import Broker

__all__ = ["stand_in"]
QUERY_ID = "3b0cf5b5-0f0e-4f6f-9f5c-7f2c1f6a5f11"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home(tmp_path, "clicks")
    made.logs.mkdir(parents=True)
    log, spark_log = made.logs / "1.log", made.logs / "1.spark.log"
    log.write_text("".join(f"line {number}\n" for number in range(1, 6)))
    spark_log.write_text("WARN noise\n")
    made.write_run(
        replace(RUN, state=STOPPED, log=str(log), spark_log=str(spark_log), checkpoints=str(made.checkpoints))
    )
    return made


def pipeline(home: Home, *words: str) -> int:
    return main(["pipeline", *words, "--state-dir", str(home.path.parent)])


# ---- logs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ((), "line 1\nline 2\nline 3\nline 4\nline 5\n"),
        (("-n", "2"), "line 4\nline 5\n"),
        (("-n", "0"), ""),
        (("-n", "99"), "line 1\nline 2\nline 3\nline 4\nline 5\n"),
        (("--spark",), "WARN noise\n"),
        (
            ("-f",),
            "line 1\nline 2\nline 3\nline 4\nline 5\n",
        ),  # it does not run: there is nothing to wait for
    ],
)
def test_logs_shows_what_the_last_run_said(
    home: Home, words: tuple[str, ...], shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pipeline(home, "logs", "clicks", *words) == 0
    assert capsys.readouterr().out == shown


def test_logs_follows_until_the_run_ends(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    may_end = threading.Event()
    running = threading.Event()

    def run() -> None:
        with home.locked():
            running.set()
            may_end.wait(60)
            with open(home.logs / "1.log", "a") as file:
                file.write("the last word\n")

    other = threading.Thread(target=run)
    other.start()
    assert running.wait(60)
    follower = threading.Thread(target=pipeline, args=(home, "logs", "clicks", "-f"))
    follower.start()
    may_end.set()
    for thread in (other, follower):
        thread.join(60)
        assert not thread.is_alive()
    assert capsys.readouterr().out.endswith("line 5\nthe last word\n")


def test_a_log_that_somebody_cuts_is_followed_from_its_beginning(
    home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def cut(_: Home) -> bool:
        (home.logs / "1.log").write_text("anew\n")
        return False

    monkeypatch.setattr(Home, "is_running", cut)
    assert pipeline(home, "logs", "clicks", "-f") == 0
    assert capsys.readouterr().out.endswith("line 5\nanew\n")


def test_a_run_that_was_half_written_is_one_line(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    """As a machine that loses its power leaves it."""
    (home.path / "run.json").write_text("")
    for command in ("status", "stop", "logs", "attach", "restart", "reset", "savepoint"):
        assert pipeline(home, command, "clicks") == 1
        assert "run.json is not what a run has written" in capsys.readouterr().err
    assert pipeline(home, "list") == 0


def test_a_log_that_is_gone_is_one_line(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    (home.logs / "1.log").unlink()
    assert pipeline(home, "logs", "clicks") == 1
    assert "1.log: No such file or directory" in capsys.readouterr().err
    assert pipeline(home, "logs", "clicks", "-n", "-3") == 2


# ---- attach -----------------------------------------------------------------------------------------------------


def test_attach_shows_a_run_to_its_end(
    tmp_path: Path,
    stand_in: subprocess.Popen[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown: list[str] = []

    class View:
        def __enter__(self) -> Any:
            def show(found: Any, _: Any) -> None:
                shown.append(found.state)
                stand_in.terminate()

            return show

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(runs, "view", View)
    monkeypatch.setattr(runs, "REDRAW_S", 0.01)
    assert main(["pipeline", "attach", "clicks", "--state-dir", str(tmp_path)]) == 0
    assert shown[0] == RUNNING
    assert "clicks: stopped after" in capsys.readouterr().err


def test_ctrl_c_leaves_the_run_alone(
    tmp_path: Path,
    stand_in: subprocess.Popen[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ottla.cli.pipeline.life.time.sleep", interrupted)
    assert main(["pipeline", "attach", "clicks", "--state-dir", str(tmp_path)]) == 0
    assert "clicks goes on; `ottla pipeline stop clicks` stops it" in capsys.readouterr().err
    assert stand_in.poll() is None


def test_attach_needs_a_run(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    assert pipeline(home, "attach", "clicks") == 1
    assert "clicks does not run: stopped" in capsys.readouterr().err


# ---- restart ----------------------------------------------------------------------------------------------------


def spec_of(home: Home, **more: Any) -> Spec:
    return Spec(
        **{
            "file": "/clicks.py",
            "name": "clicks",
            "bootstrap": "b:9092",
            "state_dir": str(home.path.parent),
            "log": "old.log",
            "spark_log": "old.spark.log",
            **more,
        }
    )


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Spec]:
    """What would have been started."""
    started: list[Spec] = []

    def detached(spec: Spec, _: Home) -> int:
        started.append(spec)
        return 0

    monkeypatch.setattr(runs, "checked", lambda *_: SimpleNamespace(texts={}, secrets={}, streams=()))
    monkeypatch.setattr(runs, "check_topics", lambda *_, **__: None)
    monkeypatch.setattr(runs, "detached", detached)
    return started


def test_restart_asks_for_the_same_in_the_background(home: Home, asked: list[Spec]) -> None:
    last = spec_of(
        home, master="local[2]", give_up_after_s=90.0, watched=True, options={"kafka.client.id": "x"}
    )
    home.write_spec(last.to_keep())
    assert pipeline(home, "restart", "clicks") == 0
    (spec,) = asked
    assert spec == replace(last, watched=False, log=spec.log, spark_log=spec.spark_log)
    assert spec.log.startswith(str(home.logs))


def test_restart_in_another_directory_goes_on_from_the_same_checkpoints(
    home: Home, asked: list[Spec], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = SimpleNamespace(name="clicks", path=Path("/clicks.py"), texts={}, secrets={}, streams=())
    monkeypatch.setattr(runs, "checked", lambda *_: there)
    monkeypatch.setattr(runs, "require_spark", lambda _: None)
    monkeypatch.chdir(tmp_path)
    assert pipeline(home, "run", "clicks.py", "--checkpoint-dir", "kept", "--detach") == 0
    home.write_spec(asked[0].to_keep())
    monkeypatch.chdir("/")
    assert pipeline(home, "restart", "clicks") == 0
    assert [spec.checkpoint_dir for spec in asked] == [str(tmp_path / "kept")] * 2


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        (("--checkpoint-dir", "s3a://bucket/kept"), "s3a://bucket/kept"),
        (("--checkpoint-dir", "kept", "--remote", "sc://host"), "kept"),  # the server's
        ((), None),
    ],
)
def test_checkpoints_that_are_elsewhere_are_named_as_they_were(
    home: Home, asked: list[Spec], monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], kept: str | None
) -> None:
    there = SimpleNamespace(name="clicks", path=Path("/clicks.py"), texts={}, secrets={}, streams=())
    monkeypatch.setattr(runs, "checked", lambda *_: there)
    monkeypatch.setattr(runs, "require_spark", lambda _: None)
    assert pipeline(home, "run", "clicks.py", "--detach", *words) == 0
    assert asked[0].checkpoint_dir == kept


def test_restart_stops_what_runs(tmp_path: Path, stand_in: subprocess.Popen[str], asked: list[Spec]) -> None:
    home = Home(tmp_path, "clicks")
    home.write_spec(spec_of(home).to_keep())
    assert pipeline(home, "restart", "clicks") == 0
    assert stand_in.wait(30) == 0
    assert len(asked) == 1


def test_what_is_wrong_with_the_file_stops_nothing(
    tmp_path: Path, stand_in: subprocess.Popen[str], capsys: pytest.CaptureFixture[str]
) -> None:
    home = Home(tmp_path, "clicks")
    home.write_spec(spec_of(home, file=str(tmp_path / "gone.py")).to_keep())
    assert pipeline(home, "restart", "clicks") == 1
    assert "gone.py" in capsys.readouterr().err
    assert stand_in.poll() is None


def test_parameters_are_kept_unless_they_are_given_and_secrets_are_asked_for_anew(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[Spec] = []
    monkeypatch.setattr(runs, "check_topics", lambda *_, **__: None)
    monkeypatch.setattr(runs, "detached", lambda spec, _: started.append(spec) or 0)
    file = tmp_path / "clicks.py"
    file.write_text(
        "from ottla.spark import param, pipeline, secret, topic\n"
        "@pipeline.stream(out=topic('out'))\n"
        "def copy(rows=topic('in', schema='n int'), least=param(int), most=param(int, 9), token=secret('TOKEN')):\n"
        "    return rows\n"
    )
    last = spec_of(
        home, file=str(file), params={"copy.least": "3", "copy.most": "5"}, secrets={"TOKEN": "hush"}
    )
    home.write_spec(last.to_keep())
    assert "hush" not in (home.path / "spec.json").read_text()
    assert pipeline(home, "restart", "clicks") == 1
    assert "secret('TOKEN') is nowhere" in capsys.readouterr().err
    monkeypatch.setenv("OTTLA_SECRET_TOKEN", "another")
    assert pipeline(home, "restart", "clicks", "--param", "least=4") == 0
    (spec,) = started
    assert (spec.params, spec.secrets) == ({"copy.least": "4", "copy.most": "5"}, {"TOKEN": "another"})


def test_secrets_are_kept_nowhere(home: Home, asked: list[Spec], capsys: pytest.CaptureFixture[str]) -> None:
    options = {
        "kafka.sasl.password": "hush",
        "kafka.sasl.jaas.config": "hush",
        "kafka.sasl.mechanism": "PLAIN",
    }
    home.write_spec(spec_of(home, options=options).to_keep())
    assert "hush" not in (home.path / "spec.json").read_text()
    assert pipeline(home, "restart", "clicks") == 1
    said = capsys.readouterr().err
    assert (
        "clicks was given sasl.password, sasl.jaas.config on the command line, which is kept nowhere" in said
    )
    assert not asked


REMOTE = "sc://host:443/;token=hush;user_id=x"
S3_KEY = "spark.hadoop.fs.s3a.secret.key"
CONF = {S3_KEY: "hush", "spark.security.credentials.hive.token.enabled": "true", "spark.a": "b"}
KEPT_CONF = {key: value for key, value in CONF.items() if value != "hush"}


def test_a_token_is_kept_nowhere_and_given_again(
    home: Home, asked: list[Spec], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARK_CONNECT_AUTHENTICATE_TOKEN", raising=False)
    home.write_spec(spec_of(home, remote=REMOTE).to_keep())
    assert "hush" not in (home.path / "spec.json").read_text()
    assert home.spec() == {
        **spec_of(home, remote="sc://host:443/;user_id=x").to_keep(),
        "remote_not_kept": ["token"],
    }
    assert pipeline(home, "restart", "clicks") == 1
    assert capsys.readouterr().err == (
        "ottla: clicks was given what is secret, which is kept nowhere; give it again: --remote "
        "'sc://host:443/;user_id=x;token=…' (or set SPARK_CONNECT_AUTHENTICATE_TOKEN)\n"
    )
    assert not asked
    assert pipeline(home, "restart", "clicks", "--remote", "sc://host:443/;token=new;user_id=x") == 0
    monkeypatch.setenv("SPARK_CONNECT_AUTHENTICATE_TOKEN", "ne/w")
    assert pipeline(home, "restart", "clicks") == 0
    assert [spec.remote for spec in asked] == [
        "sc://host:443/;token=new;user_id=x",
        "sc://host:443/;user_id=x;token=ne%2Fw",
    ]
    for spec in asked:
        assert spec.to_keep()["remote_not_kept"] == ["token"], "the next start asks for it again"


def test_secret_settings_of_spark_are_kept_nowhere_and_given_again(
    home: Home, asked: list[Spec], capsys: pytest.CaptureFixture[str]
) -> None:
    home.write_spec(spec_of(home, conf=CONF).to_keep())
    assert "hush" not in (home.path / "spec.json").read_text()
    assert (home.spec() or {})["conf"] == KEPT_CONF
    assert pipeline(home, "restart", "clicks", "--conf", "spark.a=c") == 1
    assert capsys.readouterr().err == (
        "ottla: clicks was given what is secret, which is kept nowhere; give it again: --conf "
        "spark.hadoop.fs.s3a.secret.key=… (or put it into Spark's spark-defaults.conf, and use `ottla pipeline run`)\n"
    )
    assert not asked
    assert pipeline(home, "restart", "clicks", "--conf", f"{S3_KEY}=new", "--conf", "spark.a=c") == 0
    (spec,) = asked
    assert spec.conf == {**KEPT_CONF, S3_KEY: "new", "spark.a": "c"}


def test_what_is_not_given_again_stops_nothing(
    tmp_path: Path, stand_in: subprocess.Popen[str], capsys: pytest.CaptureFixture[str]
) -> None:
    home = Home(tmp_path, "clicks")
    home.write_spec(spec_of(home, remote=REMOTE, conf=CONF).to_keep())
    assert pipeline(home, "restart", "clicks") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "--remote 'sc://host:443/;user_id=x;token=…'" in line
    assert f"--conf {S3_KEY}=…" in line
    assert stand_in.poll() is None


@pytest.mark.parametrize(
    ("last", "words", "said"),
    [
        ({"master": "local[2]"}, ["--remote", "sc://h"], "clicks was started on local[2], without --remote"),
        ({"remote": "sc://h"}, ["--remote", "h:1"], "--remote is no address of a Spark Connect server"),
        ({"remote": "sc://h"}, ["--remote", "sc://h/;token=hush="], "--remote has '=' in its token"),
        ({}, ["--conf", "spark.authenticate.secret:hush"], "--conf takes KEY=VALUE"),
    ],
)
def test_what_is_given_wrongly_to_a_restart_is_one_line(
    home: Home,
    asked: list[Spec],
    last: dict[str, Any],
    words: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    home.write_spec(spec_of(home, **last).to_keep())
    assert pipeline(home, "restart", "clicks", *words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert "hush" not in line
    assert not asked


@pytest.mark.parametrize("kept", [None, {}, {"file": "x"}])
def test_a_run_that_left_no_spec_cannot_be_restarted(
    home: Home, kept: dict[str, Any] | None, asked: list[Spec], capsys: pytest.CaptureFixture[str]
) -> None:
    if kept is not None:
        home.write_spec(kept)
    assert pipeline(home, "restart", "clicks") == 1
    assert "use `ottla pipeline run`" in capsys.readouterr().err
    assert not asked


# ---- replay ---------------------------------------------------------------------------------------------------


@pytest.fixture
def replayable(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    file = tmp_path / "clicks.py"
    file.write_text(
        "from ottla.spark import pipeline, topic\n"
        "@pipeline.stream(out=topic('out'))\n"
        "def copy(rows=topic('in', schema='n int')):\n    return rows\n"
    )
    home.write_spec(spec_of(home, file=str(file), master="local[2]").to_keep())
    monkeypatch.setattr("ottla.cli.pipeline.life._partitions", lambda *_: 3)
    monkeypatch.setattr(runs, "check_topics", lambda *_, **__: None)
    return home


def test_a_replay_is_a_run_of_its_own(
    replayable: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[Spec] = []
    monkeypatch.setattr(runs, "detached", lambda spec, _: started.append(spec) or 0)
    words = ("replay", "clicks", "--from", "2026-11-01T00:00", "--to", "2026-11-02T00:00", "--detach")
    assert pipeline(replayable, *words) == 0
    (spec,) = started
    assert (spec.name, spec.available_now, spec.master) == ("clicks.replay", True, "local[2]")
    assert spec.replay == Replay(1_793_491_200_000, 1_793_577_600_000, None, None, 3)
    assert Spec.of(json.loads(spec.to_json())) == spec
    assert "clicks.replay: copy goes into topic 'out.replay'" in capsys.readouterr().err
    there = Home(replayable.path.parent, "clicks.replay")
    there.write_spec(spec.to_keep())
    (there.checkpoints / "copy").mkdir(parents=True)
    assert pipeline(replayable, *words) == 0, "it goes on"
    assert pipeline(replayable, *words[:3], "2026-10-31", "--detach") == 1
    assert "`ottla pipeline reset clicks.replay` sets it aside" in capsys.readouterr().err


def test_a_replay_is_given_again_what_was_not_kept(
    replayable: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[Spec] = []
    monkeypatch.setattr(runs, "detached", lambda spec, _: started.append(spec) or 0)
    monkeypatch.delenv("SPARK_CONNECT_AUTHENTICATE_TOKEN", raising=False)
    last = spec_of(replayable, file=str(tmp_path / "clicks.py"), remote=REMOTE, conf=CONF)
    replayable.write_spec(last.to_keep())
    words = ("replay", "clicks", "--from", "2h", "--detach")
    assert pipeline(replayable, *words, "--conf", f"{S3_KEY}=new") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "give it again: --remote 'sc://host:443/;user_id=x;token=…'" in line
    assert S3_KEY not in line
    assert pipeline(replayable, *words, "--conf", f"{S3_KEY}=new", "--remote", REMOTE) == 0
    (spec,) = started
    assert (spec.remote, spec.conf) == (REMOTE, {**KEPT_CONF, S3_KEY: "new"})


@pytest.mark.parametrize(
    ("more", "place"),
    [
        ({"checkpoint_dir": "{there}/mine/"}, "{there}/mine.replay"),
        ({"checkpoint_dir": "s3a://bucket/c"}, "s3a://bucket/c.replay-"),
        ({"remote": "sc://h:1", "master": None}, "{there}/clicks.replay/checkpoints-"),
    ],
)
def test_another_replay_never_goes_on_from_the_checkpoints_of_one_before(
    replayable: Home, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, more: dict[str, Any], place: str
) -> None:
    """It would take what that has read for done."""
    started: list[Spec] = []
    monkeypatch.setattr(runs, "detached", lambda spec, _: started.append(spec) or 0)
    given = {key: value and value.format(there=tmp_path) for key, value in more.items()}
    replayable.write_spec(spec_of(replayable, file=str(tmp_path / "clicks.py"), **given).to_keep())
    first, second = "2026-11-01T00:00", "2026-11-02T00:00"
    words = ("replay", "clicks", "--detach", "--from")
    assert pipeline(replayable, *words, first) == 0
    there = Home(tmp_path, "clicks.replay")
    there.write_spec(started[0].to_keep())
    found = started[0].checkpoint_dir
    assert found is not None
    assert found.startswith(place.format(there=tmp_path))
    if "://" not in found and started[0].remote is None:
        (Path(found) / "copy").mkdir(parents=True)
        assert pipeline(replayable, *words, second) == 1, "it is refused"
    else:
        assert pipeline(replayable, *words, second) == 0
        assert started[1].checkpoint_dir != found
    assert pipeline(replayable, *words, first) == 0
    assert started[-1].checkpoint_dir == found, "the same one goes on"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (
            ("--from", "2h", "--into", "out"),
            1,
            "would write into topic 'out', which the pipeline itself writes",
        ),
        (("--from", "2h", "--to", "3h"), 2, "--to is not after --from"),
        (("--from", "yesterday"), 2, "'yesterday' is no time"),
        (
            ("--from", "2h", "--stream", "cpoy"),
            1,
            "there is no stream 'cpoy'; it has copy; did you mean 'copy'?",
        ),
        (("--from", "2h", "--into", "in"), 1, "the pipeline feeds itself"),
        (("--from", "2h", "--into", "a b"), 1, "clicks.py"),
        ((), 2, "--from"),
    ],
)
def test_what_cannot_be_replayed_is_one_line(
    replayable: Home, words: tuple[str, ...], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pipeline(replayable, "replay", "clicks", "--detach", *words) == code
    assert said in capsys.readouterr().err


# ---- reset ------------------------------------------------------------------------------------------------------


def checkpoint(home: Home, stream: str, query_id: str | None = None) -> Path:
    made = home.checkpoints / stream
    (made / "offsets").mkdir(parents=True)
    (made / "offsets" / "0").write_text("v1")
    if query_id is not None:
        (made / "metadata").write_text(json.dumps({"id": query_id}))
    return made


def aside(home: Home) -> list[str]:
    return sorted(str(path.relative_to(path.parents[2])) for path in home.set_aside.glob("*/*/offsets/0"))


def test_reset_sets_checkpoints_aside_and_deletes_none(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    for stream in ("copy", "copy.dead_letter", "other"):
        checkpoint(home, stream)
    assert pipeline(home, "reset", "clicks", "--stream", "copy") == 0
    assert aside(home) == ["copy.dead_letter/offsets/0", "copy/offsets/0"]
    assert [path.name for path in home.checkpoints.iterdir()] == ["other"]
    assert "copy, copy.dead_letter set aside in" in capsys.readouterr().err
    assert pipeline(home, "reset", "clicks") == 0
    assert aside(home) == ["copy.dead_letter/offsets/0", "copy/offsets/0", "other/offsets/0"]
    assert pipeline(home, "reset", "clicks") == 1
    assert "there is nothing to reset" in capsys.readouterr().err


def test_reset_and_savepoint_leave_alone_what_is_not_theirs(
    home: Home, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A directory for checkpoints that others use as well, with --checkpoint-dir."""
    for stream in ("copy", "orders", "noted"):
        checkpoint(home, stream)
    write_owner(home.checkpoints / "orders", "another", "orders")
    write_owner(home.checkpoints / "noted", "clicks", "noted")
    (home.checkpoints / "lake" / "_delta_log").mkdir(parents=True)
    (home.checkpoints / "empty").mkdir()
    assert pipeline(home, "savepoint", "clicks", "--to", str(tmp_path / "saved")) == 1
    assert "orders" not in capsys.readouterr().err, "it is not even looked at"
    assert pipeline(home, "reset", "clicks", "--stream", "orders") == 2
    assert pipeline(home, "reset", "clicks") == 0
    assert aside(home) == ["copy/offsets/0", "noted/offsets/0"]
    assert sorted(path.name for path in home.checkpoints.iterdir()) == ["lake", "orders"]
    assert pipeline(home, "reset", "clicks") == 1
    assert "there is nothing to reset" in capsys.readouterr().err


def test_checkpoints_of_another_disk_are_set_aside_there(
    home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint(home, "copy")
    move = Path.rename

    def rename(self: Path, to: Path) -> Path:
        if home.set_aside in Path(to).parents:
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        return move(self, to)

    monkeypatch.setattr(Path, "rename", rename)
    assert pipeline(home, "reset", "clicks") == 0
    (found,) = home.path.glob("checkpoints.set-aside/*/copy/offsets/0")
    assert str(found.parents[2]) in capsys.readouterr().err
    assert not list(home.set_aside.iterdir())


def test_reset_of_an_unknown_stream_or_one_that_runs_does_nothing(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint(home, "copy")
    assert pipeline(home, "reset", "clicks", "--stream", "cpoy") == 2
    assert "unknown stream 'cpoy'; did you mean 'copy'?" in capsys.readouterr().err
    with home.locked():
        assert pipeline(home, "reset", "clicks") == 1
    assert "clicks runs already" in capsys.readouterr().err
    home.write_run(replace(RUN, state=FAILED, checkpoints="s3a://bucket/checkpoints"))
    assert pipeline(home, "reset", "clicks") == 1
    assert "which is not of this machine" in capsys.readouterr().err
    assert not aside(home)


def test_reset_without_the_brokers_moves_nothing(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    there = checkpoint(home, "copy", QUERY_ID)
    home.write_spec(
        spec_of(home, bootstrap="127.0.0.1:1", options={"kafka.request.timeout.ms": "100"}).to_keep()
    )
    assert pipeline(home, "reset", "clicks", "-X", "default.api.timeout.ms=300", "-b", "127.0.0.1:1") == 1
    assert "127.0.0.1:1" in capsys.readouterr().err
    assert there.is_dir()
    (there / "metadata").write_text("no json")
    assert pipeline(home, "reset", "clicks") == 1
    assert "is that a checkpoint of Spark's?" in capsys.readouterr().err


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as made:
        yield made


def test_the_life_that_was_reset_can_write_nothing_more(
    home: Home, broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint(home, "copy", QUERY_ID)
    home.write_spec(spec_of(home, bootstrap=broker.bootstrap_servers).to_keep())
    settings: dict[str, Any] = {"bootstrap_servers": broker.bootstrap_servers}
    with Producer(**settings, transactional_id=f"ottla-spark-{QUERY_ID}-0-0") as left:
        left.init_transactions()
        left.begin_transaction()
        left.send("t", value=b"half")
        left.flush()
        assert pipeline(home, "reset", "clicks") == 0
        assert "1 transaction that nobody will commit aborted" in capsys.readouterr().err
        with pytest.raises(ProducerFenced):
            left.commit_transaction()
    assert aside(home) == ["copy/offsets/0"]


def table_of(home: Home, broker: Broker, text: str) -> Path:
    """A pipeline with one stream into a table, whose first life has written."""
    file = home.path / "into_a_table.py"
    file.write_text(f"""
from ottla.spark import delta, pipeline, topic


@pipeline.stream(out={text})
def copy(rows=topic("t", schema="n int")):
    return rows
""")
    checkpoint(home, "copy", QUERY_ID)
    home.write_spec(spec_of(home, file=str(file), bootstrap=broker.bootstrap_servers).to_keep())
    return file


def test_the_life_that_was_reset_writes_nothing_more_into_its_table(
    home: Home, broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from deltalake import DeltaTable, write_deltalake

    place = str(tmp_path / "lake")
    write_deltalake(place, pa.table({"n": pa.array([1], pa.int32())}))
    file = table_of(home, broker, f"delta({place!r})")
    assert pipeline(home, "reset", "clicks") == 0
    assert DeltaTable(place).transaction_version(f"ottla-{QUERY_ID}") == GIVEN_UP
    assert aside(home) == ["copy/offsets/0"]
    # A table that is not there has nobody who could write into it unseen; one that nobody can open is no table.
    table_of(home, broker, f"delta({str(tmp_path / 'none')!r})")
    assert pipeline(home, "reset", "clicks") == 0
    (tmp_path / "broken" / "_delta_log").mkdir(parents=True)
    (tmp_path / "broken" / "_delta_log" / "00000000000000000000.json").write_text("{}")
    table_of(home, broker, f"delta({str(tmp_path / 'broken')!r})")
    capsys.readouterr()
    assert pipeline(home, "reset", "clicks") == 1
    assert "could not be told that copy is given up, so nothing was set aside" in capsys.readouterr().err
    assert (home.checkpoints / "copy").is_dir()
    # Whoever has taken the file away can begin anew all the same.
    file.unlink()
    assert pipeline(home, "reset", "clicks") == 0
    assert "which tables it writes into is not known" in capsys.readouterr().err


def test_a_spec_is_kept_as_it_was_but_for_secrets(home: Home) -> None:
    spec = spec_of(
        home, options={"kafka.sasl.mechanism": "PLAIN"}, remote="sc://h/;user_id=x", conf=KEPT_CONF
    )
    assert spec.to_keep() == {**asdict(spec), "not_kept": [], "conf_not_kept": [], "remote_not_kept": []}


def test_reset_needs_no_secret_of_sparks(home: Home, broker: Broker) -> None:
    checkpoint(home, "copy", QUERY_ID)
    home.write_spec(spec_of(home, bootstrap=broker.bootstrap_servers, remote=REMOTE, conf=CONF).to_keep())
    assert pipeline(home, "reset", "clicks") == 0
    assert aside(home) == ["copy/offsets/0"]
