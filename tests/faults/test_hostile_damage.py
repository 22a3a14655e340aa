"""Log files that were cut, grown or overwritten after a clean stop: what is acknowledged later stays, and nobody else
waits while somebody reads where the damage is."""

from __future__ import annotations

from collections.abc import Callable

from tests.faults.conftest import MakeNode
from tests.support.control import ControlClient
from tests.support.log_files import DiskBatch, disk_batches
from tests.support.raw_client import RawClient

TOPIC = "orders"
BATCHES = 100
MORE = 100
POLLS = 200
GROWTH_BYTES = 64 << 20


def truncate(batch: DiskBatch, size: int) -> None:
    with batch.path.open("r+b") as file:
        file.truncate(size)


def zero(batch: DiskBatch) -> None:
    with batch.path.open("r+b") as file:
        file.seek(batch.position)
        file.write(bytes(batch.size_bytes))


DAMAGE: dict[str, tuple[int, Callable[[DiskBatch], None]]] = {
    # how many batches are gone, and what happens to the last
    "half of the last batch is cut off": (1, lambda b: truncate(b, b.position + b.size_bytes // 2)),
    "the last batch is cut off": (1, lambda b: truncate(b, b.position)),
    "all is cut off": (BATCHES, lambda b: truncate(b, 0)),
    "a few zeros follow": (0, lambda b: truncate(b, b.position + b.size_bytes + 20)),
    "many zeros follow": (0, lambda b: truncate(b, b.position + b.size_bytes + 100_000)),
    "the last batch is zeros": (1, zero),
}


def values(first: int, count: int) -> list[bytes]:
    return [b"%d" % n + b"." * 1000 for n in range(first, first + count)]


def test_what_is_acknowledged_after_a_damaged_tail_stays(make_node: MakeNode) -> None:
    node = make_node()
    topics = {case: f"{TOPIC}-{number}" for number, case in enumerate(DAMAGE)}
    with node, RawClient(node) as client:
        for topic in topics.values():
            client.create_topic(topic)
            for value in values(0, BATCHES):
                client.write(topic, 0, [value])
    for case, topic in topics.items():
        DAMAGE[case][1](disk_batches(node.data_dir, topic)[-1])
    with node.start(), ControlClient(node) as other, RawClient(node) as client:
        assert "after a clean stop" in node.log_text()
        before = node.peak_rss_bytes()
        for case, topic in topics.items():
            left = BATCHES - DAMAGE[case][0]
            for number, value in enumerate(values(left, MORE)):
                assert client.write(topic, 0, [value]) == left + number
            assert client.read(topic) == values(0, left + MORE), case
        other.was_served_promptly(20)
        assert node.peak_rss_bytes() - before < GROWTH_BYTES
    node.start()
    node.kill()
    with node.start(), RawClient(node) as client:
        for case, topic in topics.items():
            assert client.read(topic) == values(0, BATCHES - DAMAGE[case][0] + MORE), case


def test_polls_past_damage_are_told_so_and_cost_nobody_anything(make_node: MakeNode) -> None:
    node = make_node()
    with node, RawClient(node) as client:
        client.create_topic(TOPIC)
        for value in values(0, BATCHES):
            client.write(TOPIC, 0, [value])
    damaged = BATCHES // 2
    zero(disk_batches(node.data_dir, TOPIC)[damaged])
    with node.start(), ControlClient(node) as other, RawClient(node) as client:
        lines = len(node.log_text().splitlines())
        for _ in range(POLLS):
            for offset in (damaged, damaged + 1):
                assert client.fetch(TOPIC, 0, offset)["error_code"] == "corrupt_message"
        other.was_served_promptly(20)
        # One line of the segment, whatever else the broker has to say.
        said = [line for line in node.log_text().splitlines()[lines:] if "damaged" in line]
        assert len(said) == 1, said
        assert client.write(TOPIC, 0, [b"more"]) == BATCHES
        assert client.read(TOPIC, 0, BATCHES) == [b"more"]
