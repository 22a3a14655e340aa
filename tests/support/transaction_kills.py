"""What a transactional producer is told after its broker was killed: the same questions for Apache and for Ottla.

    assert told_after_a_kill(node) == AFTER_A_KILL

A client that loses requests with its broker and goes on as if they had arrived (librdkafka does, when it aborts) is
told a fatal error by either. Every other producer goes on, and a new one of the same transactional id always begins.

The node is running, keeps its port over a restart, and looks for timed out transactions several times a second.
Errors that every client repeats its request for are not noted.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Final

from tests.interop.process import ServerProcess, wait_until
from tests.interop.scripts.batches import Batch, Rec
from tests.support.raw_client import PRODUCE, RawClient

FIND_COORDINATOR, INIT, ADD_PARTITIONS, END, DESCRIBE = 10, 22, 24, 26, 65
TRANSACTIONAL: Final = 0x10
TOPIC: Final = "killed"
V1, V2 = 3, 5  # the versions of EndTxn that stand for the versions of transactions
SHORT_TIMEOUT_MS: Final = 1_000
REPEATED: Final = frozenset(
    {
        "concurrent_transactions",
        "coordinator_load_in_progress",
        "coordinator_not_available",
        "not_coordinator",
        "not_leader_or_follower",
        "not_enough_replicas",
        "unknown_topic_or_partition",
    }
)
# By question: every error in turn, and by how much the epoch grew where a new one was told.
AFTER_A_KILL: Final[dict[str, list[object]]] = {
    "a new producer, while a transaction was open": ["none", 2],
    "a transaction that was open goes on": ["none", "none"],
    "the end of version 1 again": ["none", "invalid_txn_state"],
    "the end of version 2 again": ["none", 1, "invalid_txn_state"],
    "the abort of version 1 of what never arrived": ["invalid_txn_state"],
    "the abort of version 2 of what never arrived": ["none", 1],
    "a batch after one that never arrived": ["out_of_order_sequence_number"],
    "a batch again": ["none"],
    "a new epoch again": ["none", 1, "producer_fenced"],
    "a transaction that timed out meanwhile": ["producer_fenced"],
}


class Producer:
    """A transactional producer by hand, which asks again what every client asks again, and nothing else."""

    def __init__(self, node: ServerProcess, name: str, version: int = V1, timeout_ms: int = 60_000) -> None:
        self._node, self._name, self._version, self._timeout_ms = node, name, version, timeout_ms
        self.producer_id, self.epoch = -1, -1
        self.init()

    def _ask(
        self, api_key: int, version: int, body: dict[str, Any], error_of: Callable[[Any], str]
    ) -> tuple[str, dict[str, Any]]:
        found: list[tuple[str, dict[str, Any]]] = []

        def answered() -> bool:
            with RawClient(self._node) as client:
                answer = client.ask(api_key, version, body)
            found[:] = [(error_of(answer), answer)]
            return found[0][0] not in REPEATED

        wait_until(answered, 60, f"an answer to {api_key} of {self._name}")
        return found[0]

    def init(self, *, known: bool = False) -> tuple[str, int]:
        """Begin; `known` says who it was (KIP-360). The error, and by how much the epoch has grown."""
        coordinator = {"key_type": 1, "coordinator_keys": [self._name]}
        self._ask(FIND_COORDINATOR, 4, coordinator, lambda answer: answer["coordinators"][0]["error_code"])
        who = {"producer_id": self.producer_id, "producer_epoch": self.epoch} if known else {}
        body = {"transactional_id": self._name, "transaction_timeout": self._timeout_ms, **who}
        error, answer = self._ask(INIT, 4, body, lambda answer: answer["error_code"])
        before = self.epoch
        if error == "none" and not known:
            self.producer_id, self.epoch = answer["producer_id"], answer["producer_epoch"]
        return error, answer["producer_epoch"] - before

    def write(self, sequence: int) -> str:
        """One batch; with version 1 its partition is announced."""
        if self._version == V1:
            body = {
                "v3_and_below_transactional_id": self._name,
                "v3_and_below_producer_id": self.producer_id,
                "v3_and_below_producer_epoch": self.epoch,
                "v3_and_below_topics": [{"name": TOPIC, "partitions": [0]}],
            }
            error, _ = self._ask(ADD_PARTITIONS, 3, body, _added)
            assert error == "none", error
        batch = Batch(
            records=[Rec(self._name.encode())],
            attributes=TRANSACTIONAL,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
        )
        rows = [{"index": 0, "records": batch.encode()}]
        topics = [{"name": TOPIC, "partition_data": rows}]
        body = {"transactional_id": self._name, "acks": -1, "timeout": 20_000, "topic_data": topics}
        return self._ask(PRODUCE, 12 if self._version == V2 else 11, body, _produced)[0]

    def end(self, *, committed: bool) -> tuple[str, int]:
        """The error, and by how much the epoch has grown if it is told."""
        body = {
            "transactional_id": self._name,
            "producer_id": self.producer_id,
            "producer_epoch": self.epoch,
            "committed": committed,
        }
        error, answer = self._ask(END, self._version, body, lambda answer: answer["error_code"])
        return error, answer.get("producer_epoch", -1) - self.epoch

    def commit(self) -> None:
        """Begin and commit a transaction, and hear of it."""
        assert self.write(0) == "none"
        error, grown = self.end(committed=True)
        assert error == "none", error
        if self._version == V2:
            self.epoch += grown
        self.wait_for("CompleteCommit")

    def wait_for(self, state: str) -> None:
        def reached() -> bool:
            body = {"transactional_ids": [self._name]}
            _, answer = self._ask(DESCRIBE, 0, body, lambda told: told["transaction_states"][0]["error_code"])
            found: bool = answer["transaction_states"][0]["transaction_state"] == state
            return found

        wait_until(reached, 60, f"{state} of {self._name}")


def _added(answer: dict[str, Any]) -> str:
    code: str = answer["results_by_topic_v3_and_below"][0]["results_by_partition"][0]["partition_error_code"]
    return code


def _produced(answer: dict[str, Any]) -> str:
    code: str = answer["responses"][0]["partition_responses"][0]["error_code"]
    return code


# A question prepares what it is about, yields, and asks when the broker is there again.
Question = Generator[None, None, list[object]]


def _new_producer(node: ServerProcess) -> Question:
    producer = Producer(node, "new producer", V2)
    assert producer.write(0) == "none"
    yield
    return list(producer.init())


def _goes_on(node: ServerProcess) -> Question:
    producer = Producer(node, "goes on")
    assert producer.write(0) == "none"
    yield
    return [producer.write(1), producer.end(committed=True)[0]]


def _end_again_v1(node: ServerProcess) -> Question:
    producer = Producer(node, "end again v1")
    producer.commit()
    yield
    return [producer.end(committed=True)[0], producer.end(committed=False)[0]]


def _end_again_v2(node: ServerProcess) -> Question:
    producer = Producer(node, "end again v2", V2)
    assert producer.write(0) == "none"
    assert producer.end(committed=True) == ("none", 1)  # of which it never hears
    yield
    return [*producer.end(committed=True), producer.end(committed=False)[0]]


def _abort_of_nothing_v1(node: ServerProcess) -> Question:
    producer = Producer(node, "abort of nothing v1")
    producer.commit()
    yield
    return [producer.end(committed=False)[0]]


def _abort_of_nothing_v2(node: ServerProcess) -> Question:
    producer = Producer(node, "abort of nothing v2", V2)
    producer.commit()
    yield
    return list(producer.end(committed=False))


def _after_a_lost_batch(node: ServerProcess) -> Question:
    producer = Producer(node, "after a lost batch")
    assert producer.write(0) == "none"
    yield
    return [producer.write(2)]


def _batch_again(node: ServerProcess) -> Question:
    producer = Producer(node, "batch again")
    assert producer.write(0) == "none"  # of which it never hears
    yield
    return [producer.write(0)]


def _epoch_again(node: ServerProcess) -> Question:
    producer = Producer(node, "epoch again")
    assert producer.init(known=True) == ("none", 1)
    repeated = producer.init(known=True)  # without a kill: the answer that it did not hear
    yield
    # Who was told what is not in Kafka's log: to a new coordinator this one has been replaced.
    return [*repeated, producer.init(known=True)[0]]


def _timed_out(node: ServerProcess) -> Question:
    producer = Producer(node, "timed out", timeout_ms=SHORT_TIMEOUT_MS)
    assert producer.write(0) == "none"
    yield
    producer.wait_for("CompleteAbort")
    return [producer.end(committed=True)[0]]


QUESTIONS: Final = dict(
    zip(
        AFTER_A_KILL,
        (
            _new_producer,
            _goes_on,
            _end_again_v1,
            _end_again_v2,
            _abort_of_nothing_v1,
            _abort_of_nothing_v2,
            _after_a_lost_batch,
            _batch_again,
            _epoch_again,
            _timed_out,
        ),
        strict=True,
    )
)


def told_after_a_kill(node: ServerProcess) -> dict[str, list[object]]:
    """Prepare every question, kill the broker and start it again, and ask them."""
    with RawClient(node) as client:
        client.create_topic(TOPIC)
    asked = {name: question(node) for name, question in QUESTIONS.items()}
    for question in asked.values():
        next(question)
    node.kill()
    node.start()
    return {name: _answered(question) for name, question in asked.items()}


def _answered(question: Question) -> list[object]:
    try:
        next(question)
    except StopIteration as told:
        answers: list[object] = told.value
        return answers
    raise AssertionError("a question is asked once")
