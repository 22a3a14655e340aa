"""Topics for Spark: filled fast with batches that are built once, and counted without any connector.

The batches are encoded by hand, so both connectors read the same bytes, which neither has written.
"""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass

from tests.interop.process import ServerProcess
from tests.interop.scripts.batches import Batch, Rec

from bench.frames import produce_error, produce_frame
from bench.load import connection
from bench.servers import create_topic, now_ms
from ottla.client.consumer.inline import RawFetcher, plain_sections
from ottla.client.inline import InlineClient
from ottla.client.offsets import LATEST
from ottla.model.ids import TopicPartition

VALUE_BYTES = 100
KEY_BYTES = 8
# About what a producer with default settings (batch.size 16 KB) puts into a batch.
BATCH_ROWS = 125


@dataclass(frozen=True)
class Data:
    """A topic and what a reader has to find in it."""

    topic: str
    partitions: int
    rows: int
    value_bytes: int
    crc_sum: int

    def check(self, found: dict[str, int], who: str) -> None:
        """To the row and the byte."""
        wanted = {"rows": self.rows, "value_bytes": self.value_bytes, "crc_sum": self.crc_sum}
        got = {name: found[name] for name in wanted}
        assert got == wanted, f"{who} found {got} in {self.topic}, there is {wanted}"


def fill(server: ServerProcess, topic: str, partitions: int, rows: int, batch_rows: int = BATCH_ROWS) -> Data:
    """Create a topic with so many rows, spread evenly."""
    assert rows % batch_rows == 0, "whole batches only"
    values = [random.randbytes(VALUE_BYTES) for _ in range(batch_rows)]
    records = [Rec(value, random.randbytes(KEY_BYTES)) for value in values]
    batch = Batch(records=records, base_timestamp=now_ms()).encode()
    batches = rows // batch_rows
    create_topic(server, topic, partitions)
    with connection(server) as link:
        for partition in range(partitions):
            count = batches // partitions + (partition < batches % partitions)
            frame = produce_frame(topic, {partition: batch})
            if count:
                error = produce_error(link.ask(frame))
                assert error == 0, f"the broker refuses the data: error {error}"
            if count > 1:
                link.pump(frame, count - 1)
    crc_sum = sum(map(zlib.crc32, values)) * batches
    return Data(topic, partitions, rows, rows * VALUE_BYTES, crc_sum)


def count_rows(server: ServerProcess, topic: str, partitions: int) -> int:
    """The rows that a reader of committed data sees, CRCs checked: offsets would count transactions' markers too."""
    places = [TopicPartition(topic, partition) for partition in range(partitions)]
    with InlineClient(bootstrap_servers=server.address) as client:
        ends = client.list_offsets(dict.fromkeys(places, LATEST), read_committed=True)
        return sum(
            section.records_count
            for tp in places
            for chunk in RawFetcher(client, tp, 0, ends[tp].offset)
            for section in plain_sections(chunk)
        )
