"""Keyrings: files and import paths, good and bad."""

import base64
import json
import logging
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ottla.config.errors import ConfigError
from ottla.model.install import install
from ottla.security.encryption import LeftSealed, Opener, Sealer
from ottla.security.keyring import (
    MAX_KEYRING_BYTES,
    FileKeyring,
    add_key,
    load_keyring,
    load_opener,
    load_sealer,
)

KEY = base64.b64encode(bytes(range(32))).decode()
SHORT = base64.b64encode(bytes(31)).decode()


def write(path: Path, content: Any) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    path.chmod(0o600)
    return path


class Ring:
    def wrap(self, data_key: bytes) -> tuple[str, bytes]:
        return "mine", data_key[::-1]

    def unwrap(self, key_id: str, wrapped: bytes) -> bytes:
        return wrapped[::-1]


RING = Ring()


def make_ring() -> Ring:
    return Ring()


def broken() -> Ring:
    raise RuntimeError("password hunter2")


NO_RING = object


def test_json_and_toml(tmp_path: Path) -> None:
    as_json = write(tmp_path / "keys.json", {"keys": [{"id": "a", "key": KEY}, {"id": "b", "key": KEY}]})
    as_toml = write(
        tmp_path / "keys.toml", f'[[keys]]\nid = "a"\nkey = "{KEY}"\n[[keys]]\nid = "b"\nkey = "{KEY}"\n'
    )
    for given in (str(as_json), f"file:{as_json}", str(as_toml)):
        ring = load_keyring(given)
        assert isinstance(ring, FileKeyring)
        assert ring.key_ids == ["a", "b"]
        key_id, wrapped = ring.wrap(bytes(32))
        assert key_id == "b"
        assert ring.unwrap("b", wrapped) == bytes(32)
        assert KEY not in repr(ring)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "is not JSON"),
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "no list 'keys'"),
        ({"keys": []}, "no list 'keys'"),
        ({"keys": {}}, "no list 'keys'"),
        ({"keys": ["a"]}, "key 1 of .* has no 'id'"),
        ({"keys": [{"id": "", "key": KEY}]}, "key 1 of .* has no 'id'"),
        ({"keys": [{"id": "é" * 128, "key": KEY}]}, "no 'id' of 1 to 255 bytes"),
        ({"keys": [{"id": 7, "key": KEY}]}, "has no 'id'"),
        ({"keys": [{"id": "\ud800", "key": KEY}]}, "has no 'id'"),
        ({"keys": [{"id": "a"}]}, "'a' of .* is not 32 bytes in base64"),
        ({"keys": [{"id": "a", "key": SHORT}]}, "is not 32 bytes"),
        ({"keys": [{"id": "a", "key": KEY[:-1]}]}, "is not 32 bytes"),
        ({"keys": [{"id": "a", "key": "ü" + KEY}]}, "is not 32 bytes"),
        ({"keys": [{"id": "a", "key": [KEY]}]}, "is not 32 bytes"),
        ({"keys": [{"id": "a", "key": KEY}, {"id": "a", "key": KEY}]}, "'a' twice"),
        (" " * (MAX_KEYRING_BYTES + 1), "more than"),
    ],
)
def test_files_that_are_no_keyring(tmp_path: Path, content: Any, words: str) -> None:
    path = write(tmp_path / "keys.json", content)
    with pytest.raises(ConfigError, match=words) as caught:
        load_keyring(str(path))
    assert str(caught.value).startswith("encryption.key: ")
    assert KEY[:20] not in str(caught.value)


def test_other_files(tmp_path: Path) -> None:
    for path, words in (
        (tmp_path / "missing.json", "No such file"),
        (tmp_path, "Is a directory"),
        (write(tmp_path / "bad.toml", "x = ["), "is not TOML"),
    ):
        with pytest.raises(ConfigError, match=words):
            load_keyring(str(path))
    binary = tmp_path / "binary.json"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="is not JSON"):
        load_keyring(str(binary))
    with pytest.raises(ConfigError, match="it is empty"):
        load_keyring("  ")


def test_a_file_that_others_may_read_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    path = write(tmp_path / "keys.json", {"keys": [{"id": "a", "key": KEY}]})
    load_keyring(str(path))
    assert caplog.text == ""
    path.chmod(0o644)
    load_keyring(str(path))
    assert "chmod 600" in caplog.text


def test_a_file_that_is_half_written_leaves_the_keys_as_they_were(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path / "keys.json", {"keys": [{"id": "a", "key": KEY}]})
    ring = FileKeyring(path)
    for spoil in (lambda: write(path, '{"keys": [{"id"'), path.unlink):
        spoil()
        key_id, wrapped = ring.wrap(bytes(32))
        assert ring.unwrap(key_id, wrapped) == bytes(32)
        with pytest.raises(LookupError, match="no key 'b'"):
            ring.unwrap("b", wrapped)
    assert "used as it was" in caplog.text


def test_import_paths() -> None:
    here = __name__
    sys.modules.setdefault(here, sys.modules[Ring.__module__])
    for name in ("RING", "Ring", "make_ring"):
        assert load_keyring(f"{here}:{name}").wrap(b"ab") == ("mine", b"ba")
    for given, words in (
        (f"{here}:nothing", "cannot be had: AttributeError"),
        ("no_such_module:ring", "cannot be had: ModuleNotFoundError"),
        (f"{here}:broken", "cannot be had: RuntimeError"),
        (f"{here}:NO_RING", "is no keyring"),
    ):
        with pytest.raises(ConfigError, match=words) as caught:
            load_keyring(given)
        assert "hunter2" not in str(caught.value)


def test_a_keyring_itself() -> None:
    assert load_keyring(RING) is RING
    with pytest.raises(ConfigError, match="int is no keyring"):
        load_keyring(7)


def test_none_is_no_keyring() -> None:
    assert load_sealer("none") is None
    assert isinstance(load_opener("none"), LeftSealed)
    assert isinstance(load_sealer(RING), Sealer)
    assert isinstance(load_opener(RING), Opener)


def test_without_the_extra_it_is_said_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    for given in ("/etc/ottla/keys.json", f"{__name__}:RING", RING):
        with pytest.raises(ConfigError, match=re.escape(install("security"))):
            load_keyring(given)


# ---- two at once ------------------------------------------------------------------------------------------------


def test_what_two_add_at_once_is_all_there(tmp_path: Path) -> None:
    """Somebody may have encrypted with either by then: a key that is lost is all that it has encrypted."""
    path = tmp_path / "keys.json"
    ids = [f"key-{number}" for number in range(24)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda key_id: add_key(path, key_id), ids))
    assert sorted(FileKeyring(path).key_ids) == sorted(ids)
    assert [each.name for each in tmp_path.iterdir()] == ["keys.json"]
