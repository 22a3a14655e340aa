"""Profiles: properties files under names, one of them in use."""

import stat
from pathlib import Path

import pytest

from ottla.cli import profile
from ottla.cli.main import main


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("OTTLA_PROFILE", "OTTLA_BOOTSTRAP_SERVER"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "ottla"


def in_use(given: str | None = None) -> dict[str, str]:
    file = profile.profile_file(given)
    return {} if file is None else profile.read(Path(file).stem)


def test_a_profile_is_made_changed_and_read_back(home: Path) -> None:
    assert main(["profile", "set", "staging", "bootstrap.servers=a:1,b:2", "client.id=me"]) == 0
    assert main(["profile", "set", "staging", "client.id-", "linger.ms=5"]) == 0
    assert profile.read("staging") == {"bootstrap.servers": "a:1,b:2", "linger.ms": "5"}
    assert stat.S_IMODE((home / "staging.properties").stat().st_mode) == 0o600


@pytest.mark.parametrize("value", ["a b", " leading", "tab\tand\nline", "back\\slash", "#x!y=z:", "ž", ""])
def test_any_value_comes_back(value: str) -> None:
    assert main(["profile", "set", "p", f"ssl.keystore.password={value}"]) == 0
    assert profile.read("p") == {"ssl.keystore.password": value}


def test_a_profile_in_an_older_encoding_is_read_as_java_reads_it(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home.mkdir()
    (home / "old.properties").write_bytes("bootstrap.servers=a:1\nclient.id=müde\n".encode("iso-8859-1"))
    assert profile.read("old")["client.id"] == "müde"
    (home / "current").write_bytes(b"\xff")
    assert main(["topic", "list"]) == 2
    assert "is no name of a profile" in capsys.readouterr().err


def test_what_is_no_text_makes_no_profile(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "set", "p", "client.id=\udcff"]) == 2
    assert "text in UTF-8" in capsys.readouterr().err
    assert not home.exists()


def test_the_first_is_in_use_until_another_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert in_use() == {}
    main(["profile", "set", "one", "client.id=1"])
    main(["profile", "set", "two", "client.id=2"])
    assert in_use() == {"client.id": "1"}
    assert main(["profile", "use", "two"]) == 0
    assert in_use() == {"client.id": "2"}
    assert in_use("one") == {"client.id": "1"}
    monkeypatch.setenv("OTTLA_PROFILE", "one")
    assert in_use() == {"client.id": "1"}
    monkeypatch.setenv("OTTLA_PROFILE", "")
    assert in_use() == {}
    monkeypatch.delenv("OTTLA_PROFILE")
    monkeypatch.setenv("OTTLA_BOOTSTRAP_SERVER", "elsewhere:9092")
    assert in_use() == {}
    assert in_use("one") == {"client.id": "1"}
    monkeypatch.delenv("OTTLA_BOOTSTRAP_SERVER")
    assert main(["profile", "delete", "two"]) == 0
    assert in_use() == {}


def test_secrets_are_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    main(["profile", "set", "p", "sasl.jaas.config=user x", "ssl.key.password=hush", "client.id=me"])
    capsys.readouterr()
    assert main(["profile", "show"]) == 0
    shown = capsys.readouterr().out
    assert "me" in shown
    assert "hush" not in shown
    assert "user x" not in shown


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["use", "stagin"], "did you mean 'staging'?"),
        (["show", "nothing-like-it"], "ottla profile list"),
        (["set", "../etc/x", "a=b"], "no name of a profile"),
        (["set", "x", "noequals"], "KEY=VALUE"),
        (["delete", "zzz"], "unknown profile"),
    ],
)
def test_wrong_words_are_one_line(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["profile", "set", "staging", "client.id=me"])
    capsys.readouterr()
    assert main(["profile", *words]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1
