"""librdkafka's consumers in tests in which brokers die, and the one thing that a test must not wait for without end.

`Consumer.close()` now and then does not return when a broker has died in the consumer's life: every request has been
answered or has run out of time, its connections are idle, and it waits for something of its own. In C, where neither a
signal nor a time-out of the test's reaches it. It was seen twice in some thousands of closes.
"""

from __future__ import annotations

import threading
import warnings
from typing import Final, Protocol

PATIENCE_S: Final = 120.0


class Closes(Protocol):
    """A consumer."""

    def close(self) -> None: ...


def close_or_leave(consumer: Closes, patience_s: float = PATIENCE_S) -> None:
    """Close it; one that does not come back is left where it stands, with a warning. What it raises is raised."""
    raised: list[BaseException] = []

    def close() -> None:
        try:
            consumer.close()
        except BaseException as error:  # noqa: BLE001  handed to the test
            raised.append(error)

    thread = threading.Thread(target=close, name="closing", daemon=True)
    thread.start()
    thread.join(patience_s)
    if thread.is_alive():
        warnings.warn(f"librdkafka's close() did not return within {patience_s:g} s", stacklevel=2)
    if raised:
        raise raised[0]
