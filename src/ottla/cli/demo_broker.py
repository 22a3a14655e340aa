"""The broker of a demo: a process as `ottla serve` runs it, in a directory of its own, on a free port.

However the demo ends, the broker does: it is stopped, or it sees the end of its standard input and stops by itself.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from ottla.cli.args import CliError

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 15.0


class Broker:
    """The broker's process and its directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process: asyncio.subprocess.Process | None = None
        self.address = ""

    async def start(self) -> None:
        """Start it and wait until it says where it listens."""
        self._log = self._directory / "broker.log"
        with self._log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "ottla.cli.main", "serve", "--data-dir", str(self._directory / "data")),
                *("-X", "listeners=PLAINTEXT://127.0.0.1:0"),
                # Were the demo killed, the broker would see the end of this and stop.
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=environment(),
                # Ctrl-C is for the demo, which stops its clients before it stops the broker.
                start_new_session=True,
            )
        assert self._process.stdout is not None
        try:
            raw = await asyncio.wait_for(self._process.stdout.readline(), START_TIMEOUT_S)
        except TimeoutError:
            raise CliError(f"the broker has not started within {START_TIMEOUT_S:.0f} s") from None
        line = raw.decode("utf-8", "replace").strip()
        if " listening on " not in line:
            raise CliError(f"the broker did not start: {self._last_words()}")
        self.address = line.rpartition(" listening on ")[2].split()[0].rstrip(",")

    def _last_words(self) -> str:
        words = self._log.read_text("utf-8", "replace").strip().splitlines()
        return words[-1] if words else "it said nothing"

    async def exited(self) -> None:
        """Returns never, unless the broker ends by itself: that is an error."""
        assert self._process is not None
        code = await self._process.wait()
        raise CliError(f"the broker ended by itself with exit code {code}: {self._last_words()}")

    async def stop(self) -> None:
        """Ask it to stop, and insist if it does not."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), STOP_TIMEOUT_S)
            except TimeoutError:
                process.kill()
                await process.wait()


def environment() -> dict[str, str]:
    """What the demo's processes inherit: no Kafka settings of this shell, and the wish to stop at the end of input."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("KAFKA_")}
    return {**inherited, "OTTLA_STOP_AT_EOF": "1"}


async def create_topics(
    address: str, topics: Iterable[str], partitions: int, settings: Mapping[str, str]
) -> None:
    """Make them, all alike."""
    from ottla.client.admin import AsyncAdmin
    from ottla.client.admin_types import NewTopic
    from ottla.model.errors import KafkaError

    async with AsyncAdmin(bootstrap_servers=address, client_id="demo-admin") as admin:
        made = await admin.create_topics([NewTopic(name, partitions, 1, dict(settings)) for name in topics])
    for result in made.values():
        if isinstance(result, KafkaError):
            raise result
