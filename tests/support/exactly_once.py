"""Consume, transform, produce, exactly once: the application, run in a process of its own so that it can be killed.

    python -m tests.support.exactly_once ADDRESS INPUT OUTPUT

Reads numbers from INPUT as a static member of a group, writes "partition:number:square" to OUTPUT and commits both
in one transaction of a few records. Whatever fails, it exits and is started again: nothing is remembered outside
Kafka. So does a step that takes too long: librdkafka waits for ever for a group's coordinator that it knew before the
broker was killed, whoever's broker that is.
"""

from __future__ import annotations

import signal
import sys

import confluent_kafka as ck

BATCH = 20
PATIENCE_S = 10.0
GROUP = "squares"
# The longest that a step may take; the alarm's own way to tell is to end the process.
STEP_S = 4


def settings(address: str) -> dict[str, object]:
    return {
        "bootstrap.servers": address,
        "socket.timeout.ms": 5_000,
        "reconnect.backoff.max.ms": 200,
        "log_level": 0,
    }


def consumer(address: str) -> ck.Consumer:
    return ck.Consumer(
        {
            **settings(address),
            "group.id": GROUP,
            # The next process takes the place of a killed one at once.
            "group.instance.id": "the only one",
            "session.timeout.ms": 6_000,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )


def producer(address: str) -> ck.Producer:
    made = ck.Producer({**settings(address), "transactional.id": "squares", "transaction.timeout.ms": 20_000})
    made.init_transactions(PATIENCE_S)
    return made


def transform(source: ck.Consumer, sink: ck.Producer, messages: list[ck.Message], output: str) -> None:
    """One transaction: the results and how far they reach."""
    sink.begin_transaction()
    for message in messages:
        number = int(message.value())
        value = f"{message.partition()}:{number}:{number * number}"
        sink.produce(output, value, partition=message.partition())
    reached = {message.partition(): message.offset() + 1 for message in messages}
    places = [ck.TopicPartition(messages[0].topic(), p, offset) for p, offset in reached.items()]
    sink.send_offsets_to_transaction(places, source.consumer_group_metadata(), PATIENCE_S)
    sink.commit_transaction(PATIENCE_S)


def main(address: str, source_topic: str, output: str) -> None:
    signal.alarm(2 * STEP_S)
    sink = producer(address)
    source = consumer(address)
    source.subscribe([source_topic])
    while True:
        signal.alarm(STEP_S)
        found = source.consume(BATCH, timeout=0.2)
        messages = [message for message in found if message.error() is None]
        if messages:
            transform(source, sink, messages, output)


if __name__ == "__main__":
    main(*sys.argv[1:])
