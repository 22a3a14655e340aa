"""How a node ends as a process, and what its log looks like."""

import asyncio
import subprocess
import sys
from typing import cast

import pytest

from ottla.node import main
from ottla.node.node import Node

HANGS = """
import sys, time
from ottla.config.broker import BrokerConfig
from ottla.node import main, node

main.LONGEST_STOP_S = 0.2

class Stuck(node.Node):
    async def start(self):
        self._fail(OSError(5, "disk is gone"))
    async def stop(self):
        time.sleep(60)
    def describe(self):
        return "stuck"

node.Node = Stuck
sys.exit(main.serve(BrokerConfig.of({})))
"""


def test_a_node_that_has_failed_ends_even_if_it_cannot_stop() -> None:
    ended = subprocess.run([sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=50)
    assert ended.returncode == 70
    last = ended.stderr.strip().splitlines()[-1]
    assert last.startswith("ottla: ended after 0 s without having stopped")
    assert "disk is gone" in last


TELLS = """
import logging
from ottla.config.broker import BrokerConfig
from ottla.node import main

def told(coroutine):
    coroutine.close()
    log = logging.getLogger("ottla.coordinator")
    log.info("group %s: nothing is heard of %s any more", "g\\n2026-01-01 CRITICAL forged", "m\\x1b[2J\\u202e\\udc80é")
    log.info("group %s", "x" * 30_000)
    try:
        raise ValueError("a trace has lines")
    except ValueError:
        log.exception("a bug")
    return 0

main._run = told
main.serve(BrokerConfig.of({}))
"""


def test_what_clients_call_themselves_writes_no_line_of_its_own() -> None:
    ended = subprocess.run([sys.executable, "-c", TELLS], capture_output=True, timeout=50)
    lines = ended.stderr.decode().splitlines()
    assert lines[0].endswith(
        r"INFO group g\n2026-01-01 CRITICAL forged: nothing is heard of m\x1b[2J\u202e\udc80é any more "
        "(ottla.coordinator)"
    )
    assert lines[1].endswith("xxx… (ottla.coordinator)")
    assert len(lines[1]) < 10_100
    assert lines[2].endswith("ERROR a bug (ottla.coordinator)")
    assert lines[3] == "Traceback (most recent call last):"
    assert lines[-1] == "ValueError: a trace has lines"


def test_a_renewed_certificate_that_was_not_taken_is_offered_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is due again weeks after the one that is served has expired."""
    monkeypatch.setattr(main, "RENEWAL_INTERVAL_S", 0)
    due = [True, False, False]
    taken = asyncio.Event()

    class Reluctant:
        offers = 0

        async def reload_stores(self) -> None:
            self.offers += 1
            if self.offers == 3:
                taken.set()

    async def serve() -> None:
        keeping = asyncio.create_task(
            main._keep_renewed(cast(Node, Reluctant()), lambda: due.pop(0) if due else False)
        )
        async with asyncio.timeout(30):
            await taken.wait()
        keeping.cancel()

    asyncio.run(serve())
