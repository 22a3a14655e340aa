"""A node in a thread: one that does not stop is not waited for without end."""

import asyncio
from pathlib import Path

import pytest

from ottla.node.node import Node
from ottla.testing import Broker, running_node


def test_a_node_that_does_not_stop_is_left_and_says_where_it_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running_node, "STOP_TIMEOUT_S", 0.2)
    go_on, stop = asyncio.Event(), Node.stop

    async def never(node: Node) -> None:
        await go_on.wait()
        await stop(node)

    monkeypatch.setattr(Node, "stop", never)
    broker = Broker(data_dir=tmp_path).start()
    thread, loop = broker._running._thread, broker._running._loop
    assert thread is not None
    assert loop is not None
    with pytest.raises(
        TimeoutError, match=r"node 1 did not stop within 0 s: it stands at .*test_running_node.py:\d+"
    ):
        broker.stop()
    broker.stop()  # nothing is there to be stopped any more
    loop.call_soon_threadsafe(go_on.set)
    thread.join(60)
    assert not thread.is_alive()
