"""Consume, transform, produce, exactly once: the application, run in a process of its own so that it can be killed.

    python -m tests.support.exactly_once ADDRESS INPUT OUTPUT [GROUP TRANSACTIONAL_ID STEP_S]

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
GROUP = TRANSACTIONAL_ID = "squares"
# The longest that a step may take; the alarm's own way to tell is to end the process.
STEP_S = 4


def settings(address: str) -> dict[str, object]:
    return {
        "bootstrap.servers": address,
        "socket.timeout.ms": 5_000,
        "reconnect.backoff.max.ms": 200,
        "log_level": 0,
    }


def consumer(address: str, group: str) -> ck.Consumer:
    return ck.Consumer(
        {
            **settings(address),
            "group.id": group,
            # The next process takes the place of a killed one at once.
            "group.instance.id": "the only one",
            "session.timeout.ms": 6_000,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )


def producer(address: str, transactional_id: str, step_s: int) -> ck.Producer:
    own = {"transactional.id": transactional_id, "transaction.timeout.ms": 5_000 * step_s}
    made = ck.Producer({**settings(address), **own})
    made.init_transactions(2 * step_s)
    return made


def transform(
    source: ck.Consumer, sink: ck.Producer, messages: list[ck.Message], output: str, step_s: int
) -> None:
    """One transaction: the results and how far they reach."""
    sink.begin_transaction()
    for message in messages:
        number = int(message.value())
        value = f"{message.partition()}:{number}:{number * number}"
        sink.produce(output, value, partition=message.partition())
    reached = {message.partition(): message.offset() + 1 for message in messages}
    places = [ck.TopicPartition(messages[0].topic(), p, offset) for p, offset in reached.items()]
    sink.send_offsets_to_transaction(places, source.consumer_group_metadata(), step_s)
    sink.commit_transaction(step_s)


def is_record(message: ck.Message) -> bool:
    """Or an error: after most of them the consumer goes on by itself.

    Fatal is that it was fenced as a static member, which it is by its own second join, when the answer to the first
    one was lost with the coordinator, whoever's broker that was.
    """
    error = message.error()
    if error is not None and error.code() == ck.KafkaError._FATAL:
        raise ck.KafkaException(error)
    return error is None


def main(
    address: str,
    source_topic: str,
    output: str,
    group: str = GROUP,
    transactional_id: str = TRANSACTIONAL_ID,
    step: str = str(STEP_S),
) -> None:
    step_s = int(step)
    signal.alarm(2 * step_s)
    sink = producer(address, transactional_id, step_s)
    source = consumer(address, group)
    source.subscribe([source_topic])
    while True:
        signal.alarm(step_s)
        found = source.consume(BATCH, timeout=0.2)
        messages = [message for message in found if is_record(message)]
        if messages:
            transform(source, sink, messages, output, step_s)


if __name__ == "__main__":
    main(*sys.argv[1:])
