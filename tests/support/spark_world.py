"""What the tests on a real Spark share: a broker with what they do to topics, and waiting for a query."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from tests.interop.ottla_node import OttlaNode
from tests.interop.process import wait_until

ADMIN_TIMEOUT_S = 30
QUERY_TIMEOUT_S = 300


class Broker(OttlaNode):
    """A broker as a user starts it, with what Spark tests do to topics."""

    @property
    def bootstrap(self) -> str:
        """kafka.bootstrap.servers."""
        return self.address

    def admin(self) -> AdminClient:
        """Keep it until its futures are done: it takes them along when it goes."""
        return AdminClient({"bootstrap.servers": self.address})

    def topic(self, partitions: int = 1, name: str | None = None, **configs: object) -> str:
        """Creates a topic that nobody else uses (or the one named), with configs as keywords; gives its name."""
        name = name or f"t-{uuid.uuid4().hex[:12]}"
        settings = {key.replace("_", "."): str(value) for key, value in configs.items()}
        admin = self.admin()
        admin.create_topics([NewTopic(name, partitions, config=settings)])[name].result(ADMIN_TIMEOUT_S)
        # Apache's broker hears of it a moment after its controller has answered.
        wait_until(lambda: name in admin.list_topics(timeout=ADMIN_TIMEOUT_S).topics, ADMIN_TIMEOUT_S, name)
        return name

    def add_partitions(self, topic: str, total: int) -> None:
        admin = self.admin()
        admin.create_partitions([NewPartitions(topic, total)])[topic].result(ADMIN_TIMEOUT_S)

    def delete_topic(self, topic: str) -> None:
        admin = self.admin()
        admin.delete_topics([topic])[topic].result(ADMIN_TIMEOUT_S)

    def produce(self, topic: str, values: Iterable[Any], **message: Any) -> None:
        """Writes values (text, bytes or None), each with the same further arguments (key, partition, headers...)."""
        producer = Producer({"bootstrap.servers": self.address})
        for value in values:
            producer.produce(topic, value, **message)
            producer.poll(0)
        assert producer.flush(ADMIN_TIMEOUT_S) == 0


def wait_for(condition: Callable[[], bool], query: Any = None, what: str = "it") -> None:
    """Polls until the condition holds; a query that fails meanwhile raises its error at once."""
    deadline = time.monotonic() + QUERY_TIMEOUT_S
    while not condition():
        if query is not None and query.exception() is not None:
            raise AssertionError(str(query.exception()))
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {QUERY_TIMEOUT_S} s")
        time.sleep(0.05)
