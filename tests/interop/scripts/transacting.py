"""What the scripts about transactions share: producers by their transactional ids, and waiting for ends.

A transaction's markers are written after its end is answered: before anything else is asked, a script waits until
the transactional id is free again.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.interop.process import wait_until
from tests.interop.scripts.batches import Batch, Rec
from tests.interop.scripts.produce import produce_body
from tests.interop.scripts.script import Script

PRODUCE, FETCH, LIST_OFFSETS, FIND_COORDINATOR = 0, 1, 2, 10
INIT, ADD_PARTITIONS, ADD_OFFSETS, END, WRITE_MARKERS, TXN_OFFSET_COMMIT = 22, 24, 25, 26, 27, 28
OFFSET_FETCH, UPDATE_FEATURES, DESCRIBE_PRODUCERS, DESCRIBE, LIST = 9, 57, 61, 65, 66
TRANSACTIONAL = 0x10
BUSY = ("PrepareCommit", "PrepareAbort")


class Producer(NamedTuple):
    """A producer as its server knows it."""

    transactional_id: str
    producer_id: int
    producer_epoch: int

    @property
    def fields(self) -> dict[str, Any]:
        return self._asdict()


def coordinators(s: Script) -> None:
    """Wait until groups and transactions have theirs."""
    for kind in (0, 1):
        body = {"key_type": kind, "coordinator_keys": ["someone"]}
        wait_until(
            lambda body=body: s.quiet(FIND_COORDINATOR, 4, body)["coordinators"][0]["error_code"] == "none",
            60,
            "a coordinator",
        )


def init_body(transactional_id: str | None, timeout: int = 60000, **more: Any) -> dict[str, Any]:
    return {"transactional_id": transactional_id, "transaction_timeout": timeout, **more}


def producer(s: Script, transactional_id: str, **more: Any) -> Producer:
    """A new producer of a transactional id; whatever was open is aborted."""
    found: dict[str, Any] = {}

    def there() -> bool:
        found.update(s.quiet(INIT, 4, init_body(transactional_id, **more)))
        return found.get("error_code") == "none"

    wait_until(there, 90, f"a producer id for {transactional_id}")
    return Producer(transactional_id, found["producer_id"], found["producer_epoch"])


def state_of(s: Script, transactional_id: str) -> dict[str, Any]:
    answer = s.quiet(DESCRIBE, 0, {"transactional_ids": [transactional_id]})
    state: dict[str, Any] = answer["transaction_states"][0]
    return state


def settled(s: Script, transactional_id: str) -> None:
    """Wait until its markers are written; note where it stands."""
    wait_until(
        lambda: state_of(s, transactional_id)["transaction_state"] not in BUSY,
        20,
        f"{transactional_id} to end",
    )


def told(s: Script, transactional_id: str, case: str) -> None:
    """Record where a transactional id stands."""
    settled(s, transactional_id)
    s.ask(DESCRIBE, 0, {"transactional_ids": [transactional_id]}, case)


def add_body(version: int, who: Producer, topics: dict[str, list[int]], **more: Any) -> dict[str, Any]:
    rows = [{"name": name, "partitions": partitions} for name, partitions in topics.items()]
    if version >= 4:
        return {"transactions": [{**who.fields, "topics": rows, **more}]}
    return {
        "v3_and_below_transactional_id": who.transactional_id,
        "v3_and_below_producer_id": who.producer_id,
        "v3_and_below_producer_epoch": who.producer_epoch,
        "v3_and_below_topics": rows,
    }


def add(s: Script, who: Producer, topics: dict[str, list[int]]) -> None:
    s.quiet(ADD_PARTITIONS, 3, add_body(3, who, topics))


def end(s: Script, who: Producer, *, committed: bool, version: int = 4) -> Producer:
    """End quietly; as whom the producer goes on."""
    answer = s.quiet(END, version, {**who.fields, "committed": committed})
    assert answer["error_code"] == "none", answer
    settled(s, who.transactional_id)
    if version < 5:
        return who
    return Producer(who.transactional_id, answer["producer_id"], answer["producer_epoch"])


def batch(who: Producer, sequence: int = 0, count: int = 1, **more: Any) -> bytes:
    records = [Rec(b"v%d" % (sequence + i), key=b"k") for i in range(count)]
    return Batch(
        records=records,
        attributes=TRANSACTIONAL,
        producer_id=who.producer_id,
        producer_epoch=who.producer_epoch,
        base_sequence=sequence,
        **more,
    ).encode()


def send(
    s: Script, version: int, who: Producer, topic: str, case: str, sequence: int = 0, **more: Any
) -> None:
    body = produce_body(s, topic, batch(who, sequence), transactional_id=who.transactional_id, **more)
    s.ask(PRODUCE, version, body, case)


def describe_producers(s: Script, topic: str, case: str) -> None:
    body = {"topics": [{"name": topic, "partition_indexes": [0, 1]}]}
    s.ask(DESCRIBE_PRODUCERS, 0, body, case)
