"""How soon an event is a result: single events into a topic, through a streaming query, into another topic.

Measured by the clock of this process alone, from just before an event is handed to the producer to when a consumer of
committed data has the result; the producer's and the consumer's own way to the broker and back is part of it. Events
come at uneven moments, so that they do not fall into step with the micro-batches.
"""

from __future__ import annotations

import random
import statistics
import time
from itertools import count
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from tests.interop.process import ServerProcess

from bench.report import Report, Row
from bench.servers import create_topic, delete_topic
from bench.spark_runner import SparkProcess

EVENTS_A_SECOND = 5
RESULT_AIM_MS = 100.0
RESULT_TIMEOUT_S = 60.0
WARM_UP_EVENTS = 150
AT_LEAST_ONCE = {"ottla.delivery": "at_least_once"}

_numbers = count()


def latency(
    report: Report, server: ServerProcess, processes: dict[str, SparkProcess], seconds: float
) -> None:
    """The time of a micro-batch without a sink, then event to result with both guarantees."""
    floor = {name: micro_batch_ms(server, process, seconds) for name, process in processes.items()}
    report.add(Row("Spark micro-batch of single events, median", "ms", floor["apache"], floor["ottla"]))
    found = {name: result_ms(server, process, seconds, {}) for name, process in processes.items()}
    loose = result_ms(server, processes["ottla"], seconds, AT_LEAST_ONCE)
    for name, own in (("exactly once", found["ottla"]), ("at least once", loose)):
        theirs, ours = statistics.median(found["apache"]), statistics.median(own)
        report.add(Row(f"Spark event to result, {name}, median", "ms", theirs, ours))
        aim = f"Spark event to result, {name}, median: aim"
        report.add(Row(aim, "ms", None, ours, RESULT_AIM_MS, absolute=True))
        report.add(Row(f"Spark event to result, {name}, p95", "ms", p95(found["apache"]), p95(own)))


def p95(times: list[float]) -> float:
    """One in twenty takes longer."""
    return sorted(times)[int(len(times) * 0.95)]


def micro_batch_ms(server: ServerProcess, process: SparkProcess, seconds: float) -> float:
    """The median of what Spark says a micro-batch took, from trigger to commit."""
    topic = f"events-{next(_numbers)}"
    create_topic(server, topic)
    process.do("start", topic=topic, out=None, options={})
    events = Events(server, topic, None)
    for _ in range(int(seconds * EVENTS_A_SECOND) + WARM_UP_EVENTS):
        events.send()
        events.pause()
    deadline = time.perf_counter() + RESULT_TIMEOUT_S
    while (seen := process.do("seen")["rows"]) < events.sent:
        assert time.perf_counter() < deadline, f"the query saw {seen} of {events.sent} events"
        time.sleep(0.2)  # the query says how far it is only when asked
    assert seen == events.sent, f"the query saw {seen} events, there are {events.sent}"
    said = process.do("stop")
    events.close()
    delete_topic(server, topic)
    # Under load several events share a micro-batch: then there are fewer of these.
    warm = said["batches"][min(WARM_UP_EVENTS, len(said["batches"]) // 2) :]
    times: list[float] = [batch["triggerExecution"] for batch in warm]
    return statistics.median(times)


def result_ms(
    server: ServerProcess, process: SparkProcess, seconds: float, options: dict[str, str]
) -> list[float]:
    """From event to result, for each event after the first ones; none is lost or there twice."""
    topic, out = f"events-{next(_numbers)}", f"results-{next(_numbers)}"
    for name in (topic, out):
        create_topic(server, name)
    process.do("start", topic=topic, out=out, options=options)
    events = Events(server, topic, out)
    for _ in range(WARM_UP_EVENTS):
        # One by one: what waits for a cold start must not be waited for by those that are measured.
        events.send()
        events.await_results()
    for _ in range(int(seconds * EVENTS_A_SECOND)):
        events.send()
        events.pause()
    events.await_results()
    process.do("stop")
    events.close()
    for name in (topic, out):
        delete_topic(server, name)
    return [events.took_ms[number] for number in range(WARM_UP_EVENTS, events.sent)]


class Events:
    """Sends numbered events, and notes when their results are there."""

    def __init__(self, server: ServerProcess, topic: str, out: str | None) -> None:
        self.sent = 0
        self.took_ms: dict[int, float] = {}
        self._begun: list[float] = []
        self._topic = topic
        settings: dict[str, Any] = {"bootstrap.servers": server.address}
        self._producer = Producer({**settings, "linger.ms": 0, "acks": "all"})
        self._consumer = None
        if out is not None:
            waits = {
                "fetch.wait.max.ms": 100,
                "fetch.error.backoff.ms": 5,
                "isolation.level": "read_committed",
            }
            self._consumer = Consumer({**settings, **waits, "group.id": "bench", "enable.auto.commit": False})
            self._consumer.assign([TopicPartition(out, 0, 0)])

    def send(self) -> None:
        """The next event."""
        self._begun.append(time.perf_counter())
        self._producer.produce(self._topic, f"event {self.sent}")
        self._producer.poll(0)
        self.sent += 1

    def pause(self) -> None:
        """Until the next event is due, while results come in."""
        self._take_until(time.perf_counter() + random.uniform(0.5, 1.5) / EVENTS_A_SECOND)

    def await_results(self) -> None:
        """All of them."""
        deadline = time.perf_counter() + RESULT_TIMEOUT_S
        while len(self.took_ms) < self.sent:
            assert time.perf_counter() < deadline, f"{len(self.took_ms)} results of {self.sent}"
            self._take_until(time.perf_counter() + 0.1)

    def close(self) -> None:
        """Hang up."""
        self._producer.flush(RESULT_TIMEOUT_S)
        if self._consumer is not None:
            self._consumer.close()

    def _take_until(self, due: float) -> None:
        while (left := due - time.perf_counter()) > 0:
            if self._consumer is None:
                self._producer.poll(left)
                time.sleep(min(left, 0.005))  # an even pace of events
                continue
            message = self._consumer.poll(left)
            if message is not None:
                self._note(message)

    def _note(self, message: Any) -> None:
        assert message.error() is None, message.error()
        word, number = message.value().decode().split()
        assert word == "EVENT", "the query puts them in capitals"
        assert int(number) not in self.took_ms, f"the result of event {number} is there twice"
        self.took_ms[int(number)] = (time.perf_counter() - self._begun[int(number)]) * 1000
