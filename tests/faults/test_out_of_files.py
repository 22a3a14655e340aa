"""More connections or more partitions than files may be open: the surplus of connections is refused, segments that are
not in use are closed for others, and everybody is served."""

from __future__ import annotations

import contextlib

from tests.faults.conftest import MakeNode
from tests.interop.ottla_node import OttlaNode
from tests.interop.process import wait_until
from tests.support.control import ControlClient
from tests.support.raw_client import FETCH, RawClient, uncompressed_batches

FILES = 128
MORE_FILES = 256
PARTITIONS = 600
GROWTH_BYTES = 100 << 20


def limited_to(files: int) -> tuple[str, ...]:
    return ("bash", "-c", f'ulimit -n {files}; exec "$@"', "limited")


def test_connections_leave_descriptors_to_the_logs(make_node: MakeNode) -> None:
    limited = make_node(prefix=limited_to(FILES))
    with limited as node, ControlClient(node) as control, RawClient(node) as client:
        control.still_works()
        with contextlib.ExitStack() as stack:
            for _ in range(2 * FILES):
                stack.enter_context(node.connect())
                # Who is refused has a descriptor until the loop's next turn: several at once would have the last ones.
                control.still_works(1)
            wait_until(lambda: "ulimit" in node.log_text(), 180, "somebody to be refused")
            control.still_works()
            for n in range(10):  # each is a directory, files and a record of the metadata log
                assert client.write(client.create_topic(f"crowded-{n}"), 0, [b"x"]) == 0
        control.still_works()
        assert "offline" not in node.log_text()
    assert limited.exit_code == 0


def fetch_all(client: RawClient, topic: str, offsets: dict[int, int]) -> dict[int, list[bytes | None]]:
    """One fetch of many partitions; what came of each."""
    wanted = [
        {"partition": index, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
        for index, offset in offsets.items()
    ]
    body: dict[str, object] = {"max_wait": 0, "min_bytes": 0, "max_bytes": 50 << 20}
    body["topics"] = [{"topic": topic, "partitions": wanted}]
    answers = client.ask(FETCH, 11, body)["responses"][0]["partitions"]
    assert {answer["error_code"] for answer in answers} == {"none"}
    return {
        answer["partition_index"]: [
            value for _, _, values in uncompressed_batches(answer["records"] or b"") for value in values
        ]
        for answer in answers
    }


def test_more_partitions_than_files_are_written_and_read(make_node: MakeNode) -> None:
    limited = make_node({"log.index.interval.bytes": 100}, prefix=limited_to(MORE_FILES))
    with limited as node, RawClient(node) as client, contextlib.ExitStack() as beside:
        topic = client.create_topic("many", PARTITIONS)
        other = beside.enter_context(ControlClient(node))
        before = node.peak_rss_bytes()
        for turn in range(3):
            for index in range(PARTITIONS):
                assert client.write(topic, index, [b"%d" % index + b"." * 300]) == turn
        told = [line for line in node.log_text().splitlines() if "ulimit -n" in line]
        assert len(told) == 1, told
        for index in range(0, PARTITIONS, 7):
            assert client.read(topic, index) == [b"%d" % index + b"." * 300] * 3
        left = dict.fromkeys(range(PARTITIONS), 0)
        while left:
            found = {index: values for index, values in fetch_all(client, topic, left).items() if values}
            assert found, f"nothing more comes of {len(left)} partitions"
            for index, values in found.items():
                assert values == [b"%d" % index + b"." * 300] * len(values)
                left[index] += len(values)
                if left[index] == 3:
                    del left[index]
        other.was_served_promptly(20)
        for _ in range(2):  # those who left make room for others
            with contextlib.ExitStack() as stack:
                for _ in range(2 * MORE_FILES):
                    stack.enter_context(node.connect())
                other.still_works()
                for index in range(PARTITIONS):
                    client.write(topic, index, [b"more"])
            wait_until(lambda: _is_served(node), 20, "a new client to be served")
        assert client.read(topic, PARTITIONS - 1, 3) == [b"more"] * 2
        assert node.peak_rss_bytes() - before < GROWTH_BYTES
        assert "offline" not in node.log_text()
        assert "cannot be hosted" not in node.log_text()
    assert limited.exit_code == 0
    limited.start()
    limited.kill()
    with limited.start(), RawClient(limited) as client:
        assert "with recovery" in limited.log_text()
        assert [client.end_offset(topic, index) for index in range(0, PARTITIONS, 50)] == [5] * 12


def _is_served(node: OttlaNode) -> bool:
    try:
        with RawClient(node) as client:
            client.end_offset("many", 0)
    except OSError:
        return False
    return True
