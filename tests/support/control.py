"""A client that only wants to work: it writes and reads back all the time while others misbehave.

It has one connection and never tries again, so an answer that is late, wrong or missing is a failure of the
test, raised where the test leaves the `with` block or asks for more round trips.
"""

from __future__ import annotations

import threading
import time
import uuid
from types import TracebackType
from typing import Self

from tests.interop.process import ServerProcess
from tests.support.raw_client import RawClient

PATIENCE_S = 180.0
PAUSE_S = 0.005
# Whatever others do to a broker, somebody who behaves has each answer within this (docs/operations.md). Counted is the
# time in which the broker was at work: for how long a busy machine let it wait says nothing of it.
PROMPT_S = 1.0


class ControlClient:
    """Round trips in a thread, counted."""

    def __init__(self, node: ServerProcess, body_bytes: int = 100) -> None:
        self._node = node
        self._client = RawClient(node, PATIENCE_S)
        # Its records bear a time of long ago, and the first look at retention comes half a minute after the start.
        self._topic = self._client.create_topic(f"control-{uuid.uuid4().hex[:8]}", retention_ms=-1)
        self._body = b"." * body_bytes
        self._stop = threading.Event()
        self._turned = threading.Condition()
        # The first round trip imports what the client itself needs: its time is nobody's.
        self._round_trip(0)
        self._count = 1
        self._failure: BaseException | None = None
        self._slowest_s = 0.0
        self._overslept_s = 0.0
        self._thread = threading.Thread(target=self._run, name="control-client")

    def _run(self) -> None:
        try:
            while not self._pause():
                begin, worked = time.monotonic(), self._node.cpu_seconds()
                self._round_trip(self._count)
                took_s = min(time.monotonic() - begin, self._node.cpu_seconds() - worked)
                self._slowest_s = max(self._slowest_s, took_s)
                with self._turned:
                    self._count += 1
                    self._turned.notify_all()
        except BaseException as failure:  # noqa: BLE001  handed to the test
            with self._turned:
                self._failure = failure
                self._turned.notify_all()

    def _pause(self) -> bool:
        """Waits a little; how much longer than asked for is the doing of the machine, not of the broker."""
        begin = time.monotonic()
        stopped = self._stop.wait(PAUSE_S)
        self._overslept_s = max(self._overslept_s, time.monotonic() - begin - PAUSE_S)
        return stopped

    def _round_trip(self, number: int) -> None:
        value = b"%d" % number + self._body
        offset = self._client.write(self._topic, 0, [value])
        assert offset == number, f"the record went to {offset}, not to {number}"
        assert self._client.read(self._topic, 0, offset) == [value]

    def still_works(self, turns: int = 3) -> None:
        """Wait for round trips that begin after this call."""
        with self._turned:
            wanted = self._count + turns + 1  # the one under way does not count
            done = self._turned.wait_for(lambda: self._count >= wanted or self._failure, PATIENCE_S)
        if self._failure is not None:
            raise AssertionError("the control client was disturbed") from self._failure
        assert done, f"the control client has not made {turns} round trips within {PATIENCE_S} s"

    def was_served_promptly(self, turns: int = 3) -> None:
        """Wait for more round trips; none since the start took longer than a client has to bear."""
        self.still_works(turns)
        assert self._slowest_s < PROMPT_S + self._overslept_s, (
            f"the broker worked {self._slowest_s:.2f} s before it served a round trip; "
            f"the machine itself was {self._overslept_s:.2f} s late"
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.still_works()
        finally:
            self._stop.set()
            self._thread.join()
            self._client.close()
