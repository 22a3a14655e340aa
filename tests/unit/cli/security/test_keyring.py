"""ottla keyring: files are made, keys are added behind the others, and no key is shown."""

import json
from pathlib import Path

import pytest

from ottla.cli.main import main
from ottla.security.encryption import Opener, Sealer, parse_header
from ottla.security.keyring import FileKeyring


def run(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> tuple[str, str]:
    assert main(["keyring", *words]) == code
    said = capsys.readouterr()
    return said.out, said.err


def keys_of(path: Path) -> list[str]:
    return [entry["key"] for entry in json.loads(path.read_text())["keys"]]


def test_keys_are_added_and_rotated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "keys.json"
    out, err = run(capsys, "add", str(path), "--id", "first")
    assert (out, "the key first" in err) == ("", True)
    assert path.stat().st_mode & 0o777 == 0o600
    sealed = Sealer(FileKeyring(path)).seal("t", None, b"v")
    _, more = run(capsys, "add", str(path), "--id", "second")
    assert "used to write from now on" in more
    for key in keys_of(path):
        assert key not in err + more
    assert len(set(keys_of(path))) == 2
    assert Opener(FileKeyring(path)).open("t", None, *sealed)[0] == b"v"
    header = Sealer(FileKeyring(path)).seal("t", None, b"v")[1][0][1]
    assert parse_header(header).key_id == "second"
    out, _ = run(capsys, "list", str(path), "-o", "json")
    assert json.loads(out) == [{"id": "first", "writes": False}, {"id": "second", "writes": True}]
    assert [each.name for each in tmp_path.iterdir()] == ["keys.json"]


def test_the_date_is_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "add", str(tmp_path / "keys.json"))
    out, _ = run(capsys, "list", str(tmp_path / "keys.json"))
    assert "20" in out


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("keys.json", '{"keys": []}', "no list 'keys'"),
        ("keys.json", "nonsense", "is not JSON"),
        ("keys.toml", None, "is TOML"),
        ("missing/keys.json", None, "No such file"),
    ],
)
def test_what_is_no_keyring_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: str | None, words: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_text(content)
    assert main(["keyring", "add", str(path)]) in (1, 2)
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
    assert not path.exists() or path.read_text() == content


def test_an_id_is_there_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "keys.json"
    run(capsys, "add", str(path), "--id", "a")
    before = path.read_bytes()
    _, err = run(capsys, "add", str(path), "--id", "a", code=2)
    assert "has a key 'a' already" in err
    _, err = run(capsys, "add", str(path), "--id", "x" * 256, code=2)
    assert "1 to 255 bytes" in err
    assert path.read_bytes() == before
