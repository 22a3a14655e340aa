"""No command repeats a password: not in its help, not in what it says of wrong settings, not where a broker is away."""

from __future__ import annotations

import contextlib
import io
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.cli.main import main
from ottla.client.config import SECRET_KEYS

SECRET = "Tr0ub4dor&3"
JAAS = (
    f'org.apache.kafka.common.security.scram.ScramLoginModule required username="alice" password="{SECRET}";'
)
NOBODY = ["-b", "127.0.0.1:1"]
LOGIN = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512", "sasl.jaas.config": JAAS}


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("OTTLA_DEBUG", "1")
    file = tmp_path / "client.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in LOGIN.items()))
    return file


def settings(**more: str) -> list[str]:
    given = LOGIN | {name.replace("_", "."): value for name, value in more.items()}
    return [word for key, value in given.items() for word in ("-X", f"{key}={value}")]


@pytest.mark.parametrize(
    "words",
    [
        ["topic", "list", *NOBODY, *settings()],
        ["topic", "list", *NOBODY, *settings(sasl_mechanism="NONE-SUCH")],
        ["topic", "list", *NOBODY, *settings(sasl_jaas_config=f"x required password={SECRET};")],
        ["topic", "list", *NOBODY, *settings(sasl_jaas_config=SECRET)],
        ["topic", "list", *NOBODY, *settings(security_protocol="PLAINTEXT")],
        ["topic", "list", *NOBODY, "-X", f"sasl.pasword={SECRET}"],
        ["consume", "-t", "t", *NOBODY, *settings()],
        ["produce", "-t", "t", *NOBODY, *settings(), "-X", "linger.ms=soon"],
        ["topic", "list", "--help"],
        ["pipeline", "run", "--help"],
        ["pipeline", "run", "none.py", *NOBODY, *settings()],
        ["pipeline", "run", "none.py", *NOBODY, "--remote", f"sc://h/;token={SECRET}"],
        ["pipeline", "run", "none.py", *NOBODY, "--remote", f"sc://h;token={SECRET}"],
        ["pipeline", "run", "none.py", *NOBODY, "--conf", f"spark.authenticate.secret={SECRET}"],
        ["pipeline", "run", "none.py", *NOBODY, "--conf", f"spark.authenticate.secret:{SECRET}"],
    ],
)
def test_nothing_that_is_said_has_it(
    config: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with contextlib.suppress(SystemExit):  # of --help
        main(words)
    said = capsys.readouterr()
    assert said.out or said.err
    assert SECRET not in said.out + said.err


@pytest.mark.parametrize("how", ["--command-config", "OTTLA_CONFIG"])
def test_a_file_is_read_and_not_repeated(
    config: Path, how: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["topic", "list", *NOBODY]
    if how == "OTTLA_CONFIG":
        monkeypatch.setenv("OTTLA_CONFIG", str(config))
    else:
        monkeypatch.setenv("OTTLA_CONFIG", "/no/such/file")  # what is named by hand comes before it
        words += ["--command-config", str(config)]
    assert main(words) == 1
    said = capsys.readouterr().err
    assert "no broker can be reached" in said
    config.write_text(f"{config.read_text()}sasl.mechanism=NONE-SUCH\n")
    assert main(words) == 2
    said += capsys.readouterr().err
    assert "NONE-SUCH" in said, "the file was read"
    assert SECRET not in said


def test_a_profile_hides_it(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = [f"{key}={value}" for key, value in LOGIN.items()]
    assert (
        main(["profile", "set", "p", *given, f"ssl.key.password={SECRET}", "bootstrap.servers=127.0.0.1:1"])
        == 0
    )
    for words in (["profile", "list"], ["profile", "show", "p"], ["topic", "list", "--profile", "p"]):
        main(words)
    said = capsys.readouterr()
    assert "********" in said.out
    assert SECRET not in said.out + said.err


@pytest.mark.parametrize("key", sorted(SECRET_KEYS))
def test_a_profile_hides_every_key_that_is_a_secret(
    config: Path, capsys: pytest.CaptureFixture[str], key: str
) -> None:
    for spelled in (key, key.replace(".", "_")):
        assert main(["profile", "set", "p", f"{spelled}={SECRET}"]) == 0
        main(["profile", "show", "p"])
        said = capsys.readouterr()
        assert "********" in said.out
        assert SECRET not in said.out + said.err


def test_a_pipelines_runner_is_told_by_its_standard_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ottla.cli.pipeline import run
    from ottla.spark.pipeline.run.spec import Spec, read_spec

    said, arguments = tmp_path / "said", tmp_path / "arguments"
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\ncat > {said}\necho "$@" > {arguments}\n')
    python.chmod(0o755)
    monkeypatch.setattr(run.sys, "executable", str(python))
    log = str(tmp_path / "log")
    options = {f"kafka.{key}": value for key, value in LOGIN.items()}
    spec = Spec(
        "f.py", "clicks", "b:1", str(tmp_path), log, log,
        remote=f"sc://h/;token={SECRET}", conf={"spark.x": SECRET}, options=options,
    )  # fmt: skip
    assert run._start(spec).wait(60) == 0
    assert arguments.read_text() == "-m ottla.spark.pipeline.run.runner clicks\n"
    assert SECRET not in repr(spec)
    with said.open("rb") as given:
        assert read_spec(given.fileno()) == spec
        assert not given.read(), "the rest is what says that nobody watches any more"


TOKEN, KEY, LOGGED_IN = "t0k/n-of-ada", "AKIA-s3cr3t", "p4ssw0rd"
ADDRESS = "sc://host:443/;token=t0k%2Fn-of-ada;user_id=x"


@pytest.mark.parametrize("remote", [ADDRESS, None])
def test_a_run_writes_no_secret_of_sparks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], remote: str | None
) -> None:
    """It uses them; what Spark says of them is written and shown without."""
    from ottla.spark.pipeline.run import runner
    from ottla.spark.pipeline.run.spec import Spec
    from ottla.spark.pipeline.run.state import Home

    file = tmp_path / "clicks.py"
    file.write_text(
        "from ottla.spark import pipeline, topic\n"
        "@pipeline.stream(out=topic('out'))\n"
        "def copy(rows=topic('in', schema='n int')):\n    return rows\n"
    )
    used: list[Any] = []

    def session(_name: str, _master: Any, remote: str | None, conf: dict[str, str], **_: Any) -> Any:
        used.append((remote, conf["spark.hadoop.fs.s3a.secret.key"]))
        print(f"connecting to {remote} with {KEY}")
        said = f"no session at {remote}: {remote and TOKEN} {KEY} {LOGGED_IN} sc://other/;token=of-the-environment"
        raise RuntimeError(f"{said}\n{said}")

    monkeypatch.setattr(runner, "session", session)
    monkeypatch.setattr(runner, "reach", lambda _: None)  # a server is there
    monkeypatch.setattr(runner, "open_session", lambda _: SimpleNamespace(stop=lambda: None))
    monkeypatch.setattr(runner.signal, "signal", lambda *_: None)
    monkeypatch.setenv("SPARK_REMOTE", "sc://other/;token=of-the-environment")
    noise = io.StringIO()
    monkeypatch.setattr(sys, "stdout", noise)
    monkeypatch.setattr(sys, "stderr", noise)
    home = Home(tmp_path / "state", "clicks")
    home.logs.mkdir(parents=True)
    spec = Spec(
        str(file), "clicks", "b:1", str(tmp_path / "state"), str(home.logs / "1.log"), str(home.logs / "1.spark.log"),
        remote=remote,
        conf={"spark.hadoop.fs.s3a.secret.key": KEY, "spark.kerberos.token.enabled": "true"},
        options={"kafka.sasl.password": LOGGED_IN},
    )  # fmt: skip
    monkeypatch.setattr(runner, "read_spec", lambda _: spec)
    assert runner.main() == 1
    assert used == [(remote, KEY)]
    texts = {path.name: path.read_text() for path in home.path.rglob("*") if path.is_file()}
    assert {"run.json", "spec.json", "1.log"} <= texts.keys()
    monkeypatch.undo()
    for words in (["status", "clicks"], ["status", "clicks", "--json"], ["logs", "clicks"], ["list"]):
        main(["pipeline", *words, "--state-dir", str(tmp_path / "state")])
    said = capsys.readouterr()
    texts |= {"what Spark's log gets": noise.getvalue(), "out": said.out, "err": said.err, "repr": repr(spec)}
    for name, text in texts.items():
        for secret in (TOKEN, "t0k%2Fn-of-ada", KEY, LOGGED_IN, "of-the-environment"):
            assert secret not in text, name
    assert "no session at" in texts["1.log"]
    assert "no session at" in noise.getvalue()
    assert '"spark.kerberos.token.enabled": "true"' in texts["spec.json"]
    if remote is not None:
        assert "sc://host:443/;user_id=x" in said.out
        assert "sc://host:443/;user_id=x" in texts["1.log"]


def test_a_run_that_ends_before_it_has_said_why_is_shown_without_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is shown then is the last line of a log, that of a Java which is nobody's to quiet."""
    from ottla.cli.pipeline import run
    from ottla.spark.pipeline.run.spec import Spec
    from ottla.spark.pipeline.run.state import Home

    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\ncat > /dev/null\necho 'no, not with {KEY}' >&2\nexit 3\n")
    python.chmod(0o755)
    monkeypatch.setattr(run.sys, "executable", str(python))
    log = str(tmp_path / "log")
    conf = {"spark.hadoop.fs.s3a.secret.key": KEY}
    spec = Spec("f.py", "clicks", "b:1", str(tmp_path), log, f"{log}.spark", remote=ADDRESS, conf=conf)
    assert run.detached(spec, Home(tmp_path, "clicks")) == 1
    said = capsys.readouterr().err
    assert "no, not with ***" in said
    assert KEY not in said
