"""config.providers: values that are kept elsewhere, such as passwords in files (KIP-297, KIP-421, KIP-887).

    config.providers=file
    config.providers.file.class=org.apache.kafka.common.config.provider.FileConfigProvider
    config.providers.file.param.allowed.paths=/etc/kafka/secrets
    ssl.keystore.password=${file:/etc/kafka/secrets/keys.properties:keystore}

The three providers that come with Kafka, under its class names. A variable whose provider nobody set up, or whose
key is not there, stays as it is, as in Kafka. Read once, when a node's settings are put together.
"""

from __future__ import annotations

import os.path
import re
from pathlib import Path
from typing import TYPE_CHECKING

from ottla.config.errors import ConfigError
from ottla.config.properties import MAX_PROPERTIES_BYTES, VARIABLE, parse_properties

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Provider = Callable[[str, str], str | None]

PROVIDERS = "config.providers"
PACKAGE = "org.apache.kafka.common.config.provider."


class Providers:
    """The providers of a configuration, by name."""

    def __init__(self, settings: Mapping[str, str], environ: Mapping[str, str]) -> None:
        names = [name.strip() for name in settings.get(PROVIDERS, "").split(",")]
        self._providers = {
            name: _make(name, settings, environ)
            for name in names
            if name and f"{PROVIDERS}.{name}.class" in settings
        }

    def resolve(self, text: str) -> tuple[str, list[str]]:
        """The text with its variables replaced, and those for which there is no value."""
        missing: list[str] = []

        def value_of(found: re.Match[str]) -> str:
            provider = self._providers.get(found[1])
            value = provider(found[3] or "", found[4]) if provider is not None else None
            if value is None:
                missing.append(found[0])
            return found[0] if value is None else value

        return VARIABLE.sub(value_of, text), missing


def _make(name: str, settings: Mapping[str, str], environ: Mapping[str, str]) -> Provider:
    key = f"{PROVIDERS}.{name}.class"
    make = _CLASSES.get(settings[key].strip().removeprefix(PACKAGE))
    if make is None:
        known = ", ".join(PACKAGE + known for known in _CLASSES)
        raise ConfigError(f"{key}={settings[key]}: no such provider; there are {known}", key)
    prefix = f"{PROVIDERS}.{name}.param."
    parameters = {key[len(prefix) :]: value for key, value in settings.items() if key.startswith(prefix)}
    try:
        return make(parameters, environ)
    except ConfigError as error:
        raise ConfigError(f"{PROVIDERS}.{name}: {error}", key) from None


class AllowedPaths:
    """allowed.paths: outside of these nothing is read; without the parameter, anything may be."""

    def __init__(self, parameters: Mapping[str, str]) -> None:
        text = parameters.get("allowed.paths") or ""
        self._roots = [self._root(path) for path in text.split(",")] if text else None

    @staticmethod
    def _root(path: str) -> Path:
        root = Path(os.path.normpath(path))
        if not root.is_absolute():
            raise ConfigError(f"Path {root} is not absolute")
        if not root.exists():
            raise ConfigError(f"Path {root} does not exist")
        return root

    def find(self, path: str) -> Path | None:
        """The path, if it is not empty and may be read."""
        if not path:
            return None
        if self._roots is None:
            return Path(path)
        normal = Path(os.path.normpath(path))
        return normal if any(normal.is_relative_to(root) for root in self._roots) else None


def _file_provider(parameters: Mapping[str, str], environ: Mapping[str, str]) -> Provider:
    allowed = AllowedPaths(parameters)
    files: dict[Path, dict[str, str]] = {}

    def value_of(path: str, key: str) -> str | None:
        file = allowed.find(path)
        if file is None:
            return None
        if file not in files:
            files[file] = {name: value for name, value, _ in parse_properties(_read(file, "properties from"))}
        return files[file].get(key)

    return value_of


def _directory_provider(parameters: Mapping[str, str], environ: Mapping[str, str]) -> Provider:
    allowed = AllowedPaths(parameters)

    def value_of(path: str, key: str) -> str | None:
        directory = allowed.find(path)
        # A key is the name of a file in the directory, and no way out of it.
        if directory is None or not key or Path(key).name != key:
            return None
        file = directory / key
        return _read(file, "the value in") if file.is_file() else None

    return value_of


def _env_provider(parameters: Mapping[str, str], environ: Mapping[str, str]) -> Provider:
    try:
        pattern = re.compile(parameters.get("allowlist.pattern", ".*"), re.DOTALL)
    except re.error as error:
        raise ConfigError(f"allowlist.pattern: {error}") from None

    def value_of(path: str, key: str) -> str | None:
        if path:
            raise ConfigError(f"an environment variable has no path, but '{path}' was given")
        return environ.get(key) if pattern.fullmatch(key) else None

    return value_of


def _read(file: Path, what: str) -> str:
    try:
        with file.open("rb") as opened:
            raw = opened.read(MAX_PROPERTIES_BYTES + 1)
        if len(raw) > MAX_PROPERTIES_BYTES:
            raise ConfigError(f"Could not read {what} file {file}: larger than {MAX_PROPERTIES_BYTES} bytes")
        return raw.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"Could not read {what} file {file}: {error}") from None


_CLASSES = {
    "FileConfigProvider": _file_provider,
    "DirectoryConfigProvider": _directory_provider,
    "EnvVarConfigProvider": _env_provider,
}
