"""Kafka Connect in distributed mode on Ottla: a file into a topic and the topic into a file, by two workers.

The workers' group has a protocol type of its own ("connect"), and their state lives in compacted topics.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from tests.interop.connect.worker import FILE, ConnectWorker
from tests.interop.ottla_node import OttlaNode
from tests.interop.process import free_ports

pytestmark = pytest.mark.interop

COPY_TIMEOUT_S = 90


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def copied(source: Path, sink: Path) -> bool:
    """Is every line of the source in the sink? (More than once is allowed after a kill.)"""
    return set(lines(source)) == set(lines(sink))


@pytest.mark.timeout(600)
def test_a_file_goes_through_a_topic_into_another_while_workers_and_the_broker_come_and_go(
    tmp_path: Path,
) -> None:
    source, sink = tmp_path / "source.txt", tmp_path / "sink.txt"
    source.write_text("".join(f"line {i}\n" for i in range(500)))
    with OttlaNode(tmp_path / "data", port=free_ports(1)[0]) as node:
        workers = [ConnectWorker(tmp_path / name, node.address, "connect") for name in ("one", "two")]
        one, two = workers
        try:
            one.start()
            one.put(
                "read", {"connector.class": f"{FILE}SourceConnector", "file": str(source), "topic": "text"}
            )
            one.put("write", {"connector.class": f"{FILE}SinkConnector", "file": str(sink), "topics": "text"})
            one.wait(lambda: copied(source, sink), "the file is copied", COPY_TIMEOUT_S)
            assert Counter(lines(sink)) == Counter(lines(source)), "each once: nothing has failed so far"

            described = node.tool(
                "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand", "--list", "--state"
            ).stdout
            assert "connect-write" in described, described

            two.start()
            two.wait(
                lambda: two.task_states("read") == ["RUNNING"] and two.task_states("write") == ["RUNNING"],
                "the tasks run",
                COPY_TIMEOUT_S,
            )
            one.kill()
            with source.open("a") as more:
                more.writelines(f"line {i}\n" for i in range(500, 800))
            two.wait(lambda: copied(source, sink), "the file is copied", COPY_TIMEOUT_S)

            node.restart()
            with source.open("a") as more:
                more.writelines(f"line {i}\n" for i in range(800, 1000))
            two.wait(lambda: copied(source, sink), "the file is copied", COPY_TIMEOUT_S)
        finally:
            for worker in workers:
                worker.kill()
