"""More connections than files may be open: the surplus is refused, and the logs have what they need."""

from __future__ import annotations

import contextlib

from tests.faults.conftest import MakeNode
from tests.interop.process import wait_until
from tests.support.control import ControlClient
from tests.support.raw_client import RawClient

FILES = 128


def test_connections_leave_descriptors_to_the_logs(make_node: MakeNode) -> None:
    limited = make_node(prefix=("bash", "-c", f'ulimit -n {FILES}; exec "$@"', "limited"))
    with limited as node, ControlClient(node) as control, RawClient(node) as client:
        control.still_works()
        with contextlib.ExitStack() as stack:
            for _ in range(2 * FILES):
                stack.enter_context(node.connect())
            wait_until(lambda: "ulimit" in node.log_text(), 20, "somebody to be refused")
            control.still_works()
            for n in range(10):  # each is a directory, files and a record of the metadata log
                assert client.write(client.create_topic(f"crowded-{n}"), 0, [b"x"]) == 0
        control.still_works()
        assert "offline" not in node.log_text()
    assert limited.exit_code == 0
