"""`python -m bench.encryption`: what encrypted values cost a client, beside the same without; a broker of Ottla.

The client's CPU for a record, produced and consumed, in rounds that take turns, the medians of them and their ratio.
The broker is a process of its own and does not count: to it they are longer values.
"""

from __future__ import annotations

import base64
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.interop.ottla_node import OttlaNode

from ottla.client.admin.types import NewTopic
from ottla.client.blocking import Admin, Consumer, Producer
from ottla.model.ids import TopicPartition

RECORDS = 20_000
ROUNDS = 7
SIZES = (100, 1_000, 10_000)


def produce(address: str, topic: str, size: int, count: int, settings: dict[str, Any]) -> None:
    value = os.urandom(size)
    with Producer(bootstrap_servers=address, linger_ms=5, batch_size=256 * 1024, **settings) as producer:
        for number in range(count):
            producer.send(topic, value, b"%d" % number)


def consume(address: str, topic: str, size: int, count: int, settings: dict[str, Any]) -> None:
    with Consumer(bootstrap_servers=address, max_poll_records=5_000, **settings) as consumer:
        where = TopicPartition(topic, 0)
        consumer.assign([where])
        consumer.seek(where, 0)
        found = 0
        while found < count:
            found += sum(map(len, consumer.poll(1_000).values()))


def cpu_us(work: Callable[..., None], *args: Any) -> float:
    """Of this process, threads and all, for each record."""
    before = time.process_time()
    work(*args)
    return (time.process_time() - before) / args[3] * 1e6


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="ottla-bench-") as place:
        keyring = Path(place) / "keys.json"
        key = base64.b64encode(os.urandom(32)).decode()
        keyring.write_text(json.dumps({"keys": [{"id": "bench", "key": key}]}))
        keyring.chmod(0o600)
        ways: dict[str, dict[str, Any]] = {"plain": {}, "encrypted": {"encryption_key": str(keyring)}}
        with OttlaNode(Path(place) / "data") as node, Admin(bootstrap_servers=node.address) as admin:
            print(f"{'value':>7}  {'':8} {'plain':>9} {'encrypted':>10}  ratio of CPU a record")
            for size in SIZES:
                measured: dict[tuple[str, str], list[float]] = {}
                count = RECORDS if size < 10_000 else RECORDS // 4
                for turn in range(ROUNDS):
                    for way, settings in ways.items():
                        topic = f"{way}-{size}-{turn}"
                        admin.create_topics([NewTopic(topic, 1)])
                        for name, work in (("produce", produce), ("consume", consume)):
                            took = cpu_us(work, node.address, topic, size, count, settings)
                            measured.setdefault((name, way), []).append(took)
                        admin.delete_topics([topic])
                for name in ("produce", "consume"):
                    plain, sealed = (statistics.median(measured[name, way]) for way in ways)
                    print(f"{size:>7}  {name:8} {plain:>6.2f} µs {sealed:>7.2f} µs  {sealed / plain:.2f}")


if __name__ == "__main__":
    main()
