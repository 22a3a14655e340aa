"""Members of a classic group, one for each client: each polls in a thread of its own, as an application does.

The clients differ in what may be called from where; here everything a consumer does happens in its thread, and a
test looks at what it has seen and asks for what it shall do.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, Self

import aiokafka
import confluent_kafka
import kafka
from tests.interop.process import wait_until

PATIENCE_S = 180.0
POLL_MS = 50


class Seen(NamedTuple):
    """A record that a member got."""

    partition: int
    offset: int
    value: bytes


class Member(ABC):
    """A consumer in a group."""

    name: str

    def __init__(
        self, address: str, group: str, topic: str, *, instance: str | None = None, session_ms: int = 10_000
    ) -> None:
        self.address = address
        self.group = group
        self.topic = topic
        self.instance = instance
        self.session_ms = session_ms
        self.seen: list[Seen] = []
        self.assigned: frozenset[int] = frozenset()
        self._wishes: SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = SimpleQueue()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"{self.name} in {group}")
        self._failure: BaseException | None = None
        self._thread.start()

    # ---- for the tests ------------------------------------------------------------------------------------

    def commit(self) -> None:
        """Commit what was seen."""
        self._wish(self.commit_all)

    def close(self) -> None:
        """Leave as an application does that ends."""
        if not self._ended.is_set():
            self._ended.set()
            self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), f"{self.name} does not end"
        if self._failure is not None:
            raise AssertionError(f"{self.name} failed") from self._failure

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wish(self, call: Callable[[], Any]) -> Any:
        future: Future[Any] = Future()
        self._wishes.put((call, future))
        return future.result(PATIENCE_S)

    # ---- in its thread ------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self.open()
            while not self._ended.is_set():
                self.seen.extend(self.poll())
                self.assigned = frozenset(self.assignment())
                self._grant()
            self.shut()
        except BaseException as failure:  # noqa: BLE001  handed to the test
            self._failure = failure

    def _grant(self) -> None:
        try:
            call, future = self._wishes.get_nowait()
        except Empty:
            return
        try:
            future.set_result(call())
        except BaseException as failure:  # noqa: BLE001  handed to the test
            future.set_exception(failure)

    @abstractmethod
    def open(self) -> None: ...

    @abstractmethod
    def poll(self) -> list[Seen]: ...

    @abstractmethod
    def assignment(self) -> set[int]: ...

    @abstractmethod
    def commit_all(self) -> None: ...

    @abstractmethod
    def shut(self) -> None: ...


def commit_read(consumer: confluent_kafka.Consumer) -> None:
    """What it has read; to one that has read nothing since its partitions came, librdkafka says so as an error."""
    try:
        consumer.commit(asynchronous=False)
    except confluent_kafka.KafkaException as error:
        if error.args[0].code() != confluent_kafka.KafkaError._NO_OFFSET:
            raise


class Librdkafka(Member):
    """confluent-kafka."""

    name = "confluent-kafka"
    # More settings, what happened to the assignment, and what it was told.
    settings: dict[str, Any]
    changes: list[tuple[str, frozenset[int]]]
    errors: list[confluent_kafka.KafkaError]

    def __init__(self, *args: Any, settings: dict[str, Any] | None = None, **options: Any) -> None:
        self.settings = settings or {}
        self.changes = []
        self.errors = []
        super().__init__(*args, **options)

    def open(self) -> None:
        static = {} if self.instance is None else {"group.instance.id": self.instance}
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.address,
                "group.id": self.group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": self.session_ms,
                "heartbeat.interval.ms": 200,
                "topic.metadata.refresh.interval.ms": 1_000,
                **static,
                **self.settings,
            }
        )
        self._consumer.subscribe(
            [self.topic],
            on_assign=lambda _, places: self._note("assigned", places),
            on_revoke=lambda _, places: self._note("revoked", places),
        )

    def _note(self, what: str, places: list[confluent_kafka.TopicPartition]) -> None:
        self.changes.append((what, frozenset(place.partition for place in places)))

    def poll(self) -> list[Seen]:
        messages = self._consumer.consume(100, POLL_MS / 1000)
        self.errors += [m.error() for m in messages if m.error() is not None]
        return [Seen(m.partition(), m.offset(), m.value()) for m in messages if m.error() is None]

    def assignment(self) -> set[int]:
        return {place.partition for place in self._consumer.assignment()}

    def commit_all(self) -> None:
        commit_read(self._consumer)

    def shut(self) -> None:
        self._consumer.close()


class KafkaPython(Member):
    """kafka-python."""

    name = "kafka-python"

    def open(self) -> None:
        self._consumer = kafka.KafkaConsumer(
            self.topic,
            bootstrap_servers=self.address,
            group_id=self.group,
            group_instance_id=self.instance,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=self.session_ms,
            heartbeat_interval_ms=200,
            retry_backoff_ms=50,
        )

    def poll(self) -> list[Seen]:
        found = self._consumer.poll(timeout_ms=POLL_MS, max_records=100)
        return [Seen(r.partition, r.offset, r.value) for records in found.values() for r in records]

    def assignment(self) -> set[int]:
        return {place.partition for place in self._consumer.assignment()}

    def commit_all(self) -> None:
        self._consumer.commit()

    def shut(self) -> None:
        self._consumer.close(autocommit=False)


class AioKafka(Member):
    """aiokafka, whose loop runs while it polls."""

    name = "aiokafka"

    def open(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.run_until_complete(self._start())

    async def _start(self) -> None:
        self._consumer = aiokafka.AIOKafkaConsumer(
            self.topic,
            bootstrap_servers=self.address,
            group_id=self.group,
            group_instance_id=self.instance,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=self.session_ms,
            heartbeat_interval_ms=200,
            retry_backoff_ms=50,
        )
        await self._consumer.start()

    def poll(self) -> list[Seen]:
        found = self._loop.run_until_complete(self._consumer.getmany(timeout_ms=POLL_MS))
        return [Seen(r.partition, r.offset, r.value) for records in found.values() for r in records]

    def assignment(self) -> set[int]:
        return {place.partition for place in self._consumer.assignment()}

    def commit_all(self) -> None:
        self._loop.run_until_complete(self._consumer.commit())

    def shut(self) -> None:
        self._loop.run_until_complete(self._consumer.stop())
        self._loop.close()


MEMBERS: tuple[type[Member], ...] = (Librdkafka, KafkaPython, AioKafka)


def settled(members: list[Member], partitions: int) -> bool:
    """Has everybody something, nobody the same, and all together everything?"""
    shares = [member.assigned for member in members]
    return all(shares) and sorted(p for share in shares for p in share) == list(range(partitions))


def wait_settled(members: list[Member], partitions: int) -> None:
    wait_until(
        lambda: settled(members, partitions), PATIENCE_S, f"{len(members)} members to share {partitions}"
    )
