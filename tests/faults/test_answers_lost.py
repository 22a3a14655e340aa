"""A broker has written what producers sent, and stops before they hear of it: each record is there once.

They have several batches on their way and send every one of them again when the broker is back. A snapshot of
producers, which is Kafka's and so has only the last batch of each, is not enough to tell. (kafka-python and aiokafka
have one batch of a partition on its way at a time.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import pytest
from tests.interop.process import wait_until
from tests.support.proxies import CLIENTS
from tests.support.raw_client import RawClient
from tests.support.replicated import Replicated

from ottla.client.blocking import Consumer, Producer
from ottla.model.ids import TopicPartition

PATIENCE_S = 120.0
# As many as an idempotent producer may have on their way.
VALUES = [f"value {n}".encode() for n in range(5)]

Send = Callable[[bytes], object]
Flush = Callable[[], object]


def librdkafka(address: str) -> tuple[Send, Flush, Callable[[], object]]:
    producer = ck.Producer(
        {
            "bootstrap.servers": address,
            "enable.idempotence": True,
            "linger.ms": 0,
            "batch.num.messages": 1,
            "reconnect.backoff.max.ms": 500,
        }
    )

    def flush() -> None:
        assert producer.flush(PATIENCE_S) == 0

    return lambda value: producer.produce("t", value, partition=0), flush, flush


def ours(address: str) -> tuple[Send, Flush, Callable[[], object]]:
    producer = Producer(bootstrap_servers=address, linger_ms=0, batch_size=1)
    return (
        lambda value: producer.send("t", value, partition=0),
        lambda: producer.flush(PATIENCE_S * 1000),
        lambda: producer.close(PATIENCE_S * 1000),
    )


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Replicated]:
    with Replicated(tmp_path, combined=1, replicas=1, min_isr=1) as running:
        yield running


@pytest.mark.timeout(300)
@pytest.mark.parametrize("ends", ["stopped", "killed"])
@pytest.mark.parametrize("client", [librdkafka, ours])
def test_each_record_is_there_once(cluster: Replicated, client: Any, ends: str) -> None:
    cluster.create_topic("t", 1)
    node = cluster.nodes[1]
    send, flush, close = client(cluster.bootstrap_servers)
    try:
        send(b"before")
        flush()
        cluster.links.cut(1, CLIENTS, both=False)  # it hears its clients, and they do not hear it
        for value in VALUES:
            send(value)

        def is_written() -> bool:
            with RawClient(node) as raw:
                return raw.end_offset("t") == 1 + len(VALUES)

        wait_until(is_written, PATIENCE_S, "all to be in the log")
        if ends == "stopped":
            assert cluster.stop(1) == 0
        else:
            cluster.kill(1)
        cluster.links.refuse(1, CLIENTS)  # what it said is lost with its connections
        cluster.links.heal()
        cluster.start(1)
        send(b"after")
        flush()
    finally:
        close()
    assert read(cluster) == [b"before", *VALUES, b"after"]


def read(cluster: Replicated) -> list[bytes]:
    where = TopicPartition("t", 0)
    with Consumer(bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([where])
        end = consumer.end_offsets([where])[where]
        found: list[bytes] = []
        while consumer.position(where) < end:
            found += [record.value for record in consumer.poll(1000).get(where, ())]
    return found
