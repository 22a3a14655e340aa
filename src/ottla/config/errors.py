"""What configuration raises: one line that names the key, where it came from and what would be right."""

from __future__ import annotations


class ConfigError(ValueError):
    """A configuration that cannot be used; `key` is the one at fault, if one is."""

    def __init__(self, message: str, key: str | None = None) -> None:
        super().__init__(message)
        self.key = key
