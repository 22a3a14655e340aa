"""How a node ends as a process."""

import subprocess
import sys

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
