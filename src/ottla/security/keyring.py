"""Keyrings by which values are encrypted (ottla.security.encryption): those in files, and those of one's own.

What `encryption.key` names is a reference, never a key: it may stand in a plan, a log or a command line.

Rules: a file is small and is checked before it is believed; nothing of what is in it is in a message. A keyring of
one's own is somebody else's code: what it raises is told by its kind, and in its words only where they are said to be
for people (LookupError, ValueError). Owner: whoever encrypts or decrypts; a FileKeyring may be shared by threads.
"""

import base64
import binascii
import json
import logging
import os
import re
import stat
from pathlib import Path
from typing import Any, Final, TypeGuard, cast

from ottla.config.errors import ConfigError
from ottla.model.durable import locked_directory, replace_file, unique_temporary
from ottla.model.install import install
from ottla.model.plugins import find_class
from ottla.security.encryption import (
    KEY_BYTES,
    LEAVE_SEALED,
    MAX_KEY_ID_BYTES,
    SETTING,
    Keyring,
    LeftSealed,
    Opener,
    Sealer,
)

log = logging.getLogger("ottla.encryption")

MAX_KEYRING_BYTES: Final = 1 << 20
_IMPORT_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


class FileKeyring:
    """A keyring in a file, JSON or TOML: a list `keys` of `id` and `key`, 32 bytes as base64; the last one wraps.

    It is read again when somebody asks for a key that was not in it, or wraps, if it has changed by then.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._read_at: tuple[int, int, int] | None = None
        # From the oldest to the newest. Replaced whole: another thread may be in the middle of using it.
        self._keys: dict[str, bytes] = {}
        self._read()

    def __repr__(self) -> str:
        return f"FileKeyring({str(self._path)!r})"

    @property
    def key_ids(self) -> list[str]:
        """From the oldest to the newest."""
        return list(self._keys)

    def wrap(self, data_key: bytes) -> tuple[str, bytes]:
        from cryptography.hazmat.primitives.keywrap import aes_key_wrap

        self._read_if_changed()
        key_id, key = next(reversed(self._keys.items()))
        return key_id, aes_key_wrap(key, data_key)

    def unwrap(self, key_id: str, wrapped: bytes) -> bytes:
        from cryptography.hazmat.primitives.keywrap import InvalidUnwrap, aes_key_unwrap

        if key_id not in self._keys:
            self._read_if_changed()
        key = self._keys.get(key_id)
        if key is None:
            raise LookupError(f"{self._path} has no key {key_id!r}")
        try:
            return aes_key_unwrap(key, wrapped)
        except (InvalidUnwrap, ValueError):
            raise ValueError(f"the data key was not wrapped by the key {key_id!r} of {self._path}") from None

    def _read_if_changed(self) -> None:
        """A file that is gone, or half written, leaves the keys that were read before."""
        try:
            if self._read_at != _stamp(self._path.stat()):
                self._read()
        except (OSError, ConfigError) as error:
            log.warning("the keyring is used as it was: %s", error)

    def _read(self) -> None:
        data, status = _bytes_of(self._path)
        if stat.S_ISREG(status.st_mode) and status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            log.warning("the keyring %s can be read by others: chmod 600 keeps it to its owner", self._path)
        keys = _parse_keys(data, self._path)
        self._keys, self._read_at = keys, _stamp(status)


def _stamp(status: os.stat_result) -> tuple[int, int, int]:
    return (status.st_ino, status.st_mtime_ns, status.st_size)


def _bytes_of(path: Path) -> tuple[bytes, os.stat_result]:
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            data = file.read(MAX_KEYRING_BYTES + 1)
    except OSError as error:
        raise _bad(f"{path} cannot be read: {error.strerror or error}") from None
    if len(data) > MAX_KEYRING_BYTES:
        raise _bad(f"{path} has more than {MAX_KEYRING_BYTES} bytes")
    return data, status


def _is_key_id(text: Any) -> TypeGuard[str]:
    # Half a character, which JSON has a way to write, is no text of UTF-8.
    try:
        return isinstance(text, str) and 0 < len(text.encode()) <= MAX_KEY_ID_BYTES
    except UnicodeEncodeError:
        return False


def _parse_keys(data: bytes, path: Path) -> dict[str, bytes]:
    """ConfigError, which shows nothing of what is in it, if it is no keyring."""
    try:
        text = data.decode()
        if path.suffix == ".toml":
            import tomllib

            content: Any = tomllib.loads(text)
        else:
            content = json.loads(text)
    except (ValueError, RecursionError):
        kind = "TOML" if path.suffix == ".toml" else "JSON"
        raise _bad(f"{path} is not {kind}") from None
    entries = content.get("keys") if isinstance(content, dict) else None
    if not isinstance(entries, list) or not entries:
        raise _bad(f"{path} has no list 'keys' with at least one key")
    keys: dict[str, bytes] = {}
    for number, entry in enumerate(entries, 1):
        key_id, key = (entry.get("id"), entry.get("key")) if isinstance(entry, dict) else (None, None)
        if not _is_key_id(key_id):
            raise _bad(f"key {number} of {path} has no 'id' of 1 to {MAX_KEY_ID_BYTES} bytes")
        if key_id in keys:
            raise _bad(f"{path} has the key {key_id!r} twice")
        try:
            keys[key_id] = base64.b64decode(key if isinstance(key, str) else "", validate=True)
        except (binascii.Error, ValueError):
            keys[key_id] = b""
        if len(keys[key_id]) != KEY_BYTES:
            raise _bad(f"the key {key_id!r} of {path} is not {KEY_BYTES} bytes in base64")
    return keys


def add_key(path: Path, key_id: str) -> None:
    """A key at random behind those of a file, which is made if it is not there; ConfigError if it is no keyring."""
    # What two add at once must both be there: somebody may have encrypted with either by then.
    with locked_directory(path.parent):
        _add_key(path, key_id)


def _add_key(path: Path, key_id: str) -> None:
    keys = _parse_keys(_bytes_of(path)[0], path) if path.exists() else {}
    if path.suffix == ".toml":
        raise _bad(
            f"{path} is TOML, which is not written here: add the key by hand, or keep the keyring as JSON"
        )
    if not _is_key_id(key_id):
        raise _bad(f"the id of a key has 1 to {MAX_KEY_ID_BYTES} bytes")
    if key_id in keys:
        raise _bad(f"{path} has a key {key_id!r} already")
    keys[key_id] = os.urandom(KEY_BYTES)
    entries = [{"id": name, "key": base64.b64encode(key).decode()} for name, key in keys.items()]
    text = json.dumps({"keys": entries}, indent=2) + "\n"
    # Whole or not at all: what it has wrapped before is lost with a key.
    replace_file(path, [text.encode()], mode=0o600, final_mode=0o600, temporary=unique_temporary(path))


def load_keyring(given: Any) -> Keyring:
    """What `encryption.key` names: a keyring's file, an import path `package.module:name`, or a Keyring itself.

    What the import path names is a Keyring, or is called without arguments to make one. ConfigError if it cannot be
    had.
    """
    _require_cryptography()
    if not isinstance(given, str):
        return _checked(given, type(given).__name__)
    text = given.strip()
    if not text:
        raise _bad("it is empty")
    if _IMPORT_PATH.fullmatch(text) is None:
        return FileKeyring(text.removeprefix("file:"))
    try:
        found = find_class(text)
        if isinstance(found, type) or not hasattr(found, "unwrap"):
            found = found()
    except Exception as error:
        # Its words may be about anything that somebody else's code knows.
        raise _bad(f"{text} cannot be had: {type(error).__name__}") from error
    return _checked(found, text)


def load_sealer(given: Any) -> Sealer | None:
    """Who seals, as `encryption.key` says; None if nobody does. It takes its first data key at once."""
    return None if given == LEAVE_SEALED else Sealer(load_keyring(given))


def load_opener(given: Any, *, allow_plain: bool = False) -> Opener | LeftSealed:
    """Who opens, as `encryption.key` says."""
    return LeftSealed() if given == LEAVE_SEALED else Opener(load_keyring(given), allow_plain=allow_plain)


def _checked(found: Any, name: str) -> Keyring:
    if not callable(getattr(found, "wrap", None)) or not callable(getattr(found, "unwrap", None)):
        raise _bad(f"{name} is no keyring: it has no wrap() and unwrap()")
    return cast(Keyring, found)


def _bad(what: str) -> ConfigError:
    return ConfigError(f"{SETTING}: {what}", SETTING)


def _require_cryptography() -> None:
    try:
        import cryptography  # noqa: F401
    except ImportError:
        raise _bad(f"it needs the package cryptography: {install('security')}") from None
