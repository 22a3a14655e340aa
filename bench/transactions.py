"""Transactions: the broker's CPU for a whole one, from its first record to its end, in both versions.

Version 2 (KIP-890) is a produce request and an end; version 1 announces its partitions first. Several producers take
turns, as the markers of one transaction are still being written when the client hears of its end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.interop.process import ServerProcess, wait_until
from tests.interop.scripts.entities import decode_response, encode_request

from bench.load import Connection, Cost, connection, costs_of
from bench.raw import add
from bench.report import Report
from bench.rounds import in_rounds
from bench.servers import both, create_topic, now_ms
from ottla.records.record import build_batch

PRODUCE, FIND_COORDINATOR, INIT, ADD_PARTITIONS, END, COMMIT_OFFSETS = 0, 10, 22, 24, 26, 28
TOPIC = "transactions"
PRODUCERS = 20
RECORD_BYTES = 100
# The generator takes a millisecond for each: fewer than of single requests, and still until nothing is gained.
WARM_UP = 30_000
BUSY = "concurrent_transactions"
SETTINGS: dict[str, object] = {
    "offsets.topic.num.partitions": 10,
    "offsets.topic.replication.factor": 1,
    "transaction.state.log.num.partitions": 10,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
}


@dataclass(frozen=True)
class Kind:
    """One shape of transaction."""

    name: str
    version: int
    partitions: int
    offsets: bool = False
    aim: float = 0.5


KINDS = [
    Kind("transaction v2, 1 partition", 2, 1),
    Kind("transaction v2, 8 partitions", 2, 8),
    Kind("transaction v2, 1 partition and offsets", 2, 1, offsets=True),
    Kind("transaction v1, 1 partition", 1, 1),
]


@dataclass
class Producer:
    """One transactional id, and as whom it is known."""

    name: str
    producer_id: int = -1
    epoch: int = -1
    sequence: int = 0
    fields: dict[str, Any] = field(default_factory=dict)

    def known_as(self, producer_id: int, epoch: int) -> None:
        if (producer_id, epoch) != (self.producer_id, self.epoch):
            self.sequence = 0
        self.producer_id, self.epoch = producer_id, epoch
        self.fields = {"transactional_id": self.name, "producer_id": producer_id, "producer_epoch": epoch}


def ask(link: Connection, api_key: int, version: int, body: dict[str, Any]) -> dict[str, Any]:
    return decode_response(api_key, version, link.ask(encode_request(api_key, version, body)))


def started(link: Connection, name: str) -> Producer:
    """A producer of a transactional id."""
    find = {"key_type": 1, "coordinator_keys": [name]}
    wait_until(
        lambda: ask(link, FIND_COORDINATOR, 4, find)["coordinators"][0]["error_code"] == "none",
        60,
        "a coordinator",
    )
    producer = Producer(name)

    def given() -> bool:
        answer = ask(link, INIT, 4, {"transactional_id": name, "transaction_timeout": 60_000})
        producer.known_as(answer["producer_id"], answer["producer_epoch"])
        return bool(answer["error_code"] == "none")

    wait_until(given, 60, "a producer id")
    return producer


def transact(link: Connection, producer: Producer, kind: Kind) -> None:
    """One transaction, from its first record to the answer to its end."""
    if kind.version == 1:
        announce(link, producer, kind)
    write(link, producer, kind)
    if kind.offsets:
        commit_offsets(link, producer)
    answer = ask(link, END, 5 if kind.version == 2 else 4, {**producer.fields, "committed": True})
    assert answer["error_code"] == "none", answer
    if kind.version == 2:
        producer.known_as(answer["producer_id"], answer["producer_epoch"])


def announce(link: Connection, producer: Producer, kind: Kind) -> None:
    body = {
        "v3_and_below_transactional_id": producer.name,
        "v3_and_below_producer_id": producer.producer_id,
        "v3_and_below_producer_epoch": producer.epoch,
        "v3_and_below_topics": [{"name": TOPIC, "partitions": list(range(kind.partitions))}],
    }
    while True:
        (topic,) = ask(link, ADD_PARTITIONS, 3, body)["results_by_topic_v3_and_below"]
        error = topic["results_by_partition"][0]["partition_error_code"]
        if error != BUSY:
            assert error == "none", error
            return


def write(link: Connection, producer: Producer, kind: Kind) -> None:
    records = build_batch(
        [(now_ms(), b"key", b"x" * RECORD_BYTES, ())],
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        base_sequence=producer.sequence,
        transactional=True,
    )
    rows = [{"index": p, "records": bytes(records)} for p in range(kind.partitions)]
    body = {
        "transactional_id": producer.name,
        "acks": -1,
        "timeout": 20_000,
        "topic_data": [{"name": TOPIC, "partition_data": rows}],
    }
    while True:
        (topic,) = ask(link, PRODUCE, 12 if kind.version == 2 else 11, body)["responses"]
        errors = {row["error_code"] for row in topic["partition_responses"]}
        if BUSY not in errors:
            assert errors == {"none"}, errors
            producer.sequence += 1
            return


def commit_offsets(link: Connection, producer: Producer) -> None:
    partition = {"partition_index": 0, "committed_offset": 7, "committed_metadata": ""}
    body = {
        **producer.fields,
        "group_id": producer.name,
        "generation_id": -1,
        "topics": [{"name": TOPIC, "partitions": [partition]}],
    }
    while True:
        (topic,) = ask(link, COMMIT_OFFSETS, 5, body)["topics"]
        error = topic["partitions"][0]["error_code"]
        if error not in (BUSY, "coordinator_load_in_progress", "not_coordinator"):
            assert error == "none", error
            return


def run(server: ServerProcess, producers: list[Producer], kind: Kind, count: int) -> Cost:
    """So many transactions, by the producers in turn; what they cost the broker."""
    with connection(server) as link, costs_of(server, count, count * kind.partitions * RECORD_BYTES) as found:
        for number in range(count):
            transact(link, producers[number % len(producers)], kind)
    return found[0]


def prepare(server: ServerProcess, kind: Kind) -> list[Producer]:
    with connection(server) as link:
        producers = [started(link, f"{kind.name}-{number}") for number in range(PRODUCERS)]
        for producer in producers if kind.offsets else ():
            find = {"key_type": 0, "coordinator_keys": [producer.name]}
            wait_until(
                lambda find=find: (
                    ask(link, FIND_COORDINATOR, 4, find)["coordinators"][0]["error_code"] == "none"
                ),
                60,
                "a group's coordinator",
            )
    return producers


def transactions(report: Report, where: Path, quick: bool = False) -> None:
    """CPU of a broker for a transaction."""
    count = 300 if quick else 1_000
    with both(where / "transactions", SETTINGS) as servers:
        for server in servers.values():
            create_topic(server, TOPIC, 8)
        for kind in KINDS:
            producers = {name: prepare(server, kind) for name, server in servers.items()}
            found = in_rounds(
                servers,
                lambda name, k=kind, p=producers: run(servers[name], p[name], k, count),
                WARM_UP,
                quick=quick,
            )
            add(report, kind.name, found, kind.aim)
