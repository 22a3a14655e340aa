"""No command repeats a password: not in its help, not in what it says of wrong settings, not where a broker is away."""

from __future__ import annotations

import contextlib
from pathlib import Path

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
    from ottla.spark.pipeline.runner import Spec, read_spec

    said, arguments = tmp_path / "said", tmp_path / "arguments"
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\ncat > {said}\necho "$@" > {arguments}\n')
    python.chmod(0o755)
    monkeypatch.setattr(run.sys, "executable", str(python))
    log = str(tmp_path / "log")
    options = {f"kafka.{key}": value for key, value in LOGIN.items()}
    spec = Spec("f.py", "clicks", "b:1", str(tmp_path), log, log, conf={"spark.x": SECRET}, options=options)
    assert run._start(spec).wait(60) == 0
    assert arguments.read_text() == "-m ottla.spark.pipeline.runner clicks\n"
    assert SECRET not in repr(spec)
    with said.open("rb") as given:
        assert read_spec(given.fileno()) == spec
        assert not given.read(), "the rest is what says that nobody watches any more"
