"""What configuration raises: one line that names the key, where it came from and what would be right."""

from __future__ import annotations


class ConfigError(ValueError):
    """A configuration that cannot be used.

    The message is Kafka's own, fit for a client; `key` is the one at fault, `value` what it was set to and
    `reason` what would have been allowed, from which the command line makes its own sentence.
    """

    def __init__(
        self, message: str, key: str | None = None, *, reason: str | None = None, value: str | None = None
    ) -> None:
        super().__init__(message)
        self.key = key
        self.reason = reason
        self.value = value
