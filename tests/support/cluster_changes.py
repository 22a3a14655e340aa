"""Clients that change topics, partitions and configs of a cluster, and know of each change whether it must be there.

Each client owns its topics, and asks one thing at a time over a plain connection. What was acknowledged must be found
as it was asked for; what was not may be there or not, but whole, and its topic is left alone from then on.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from random import Random
from typing import Any, NamedTuple

from tests.interop.process import wait_until
from tests.support.cluster import ClusterNode, Processes
from tests.support.raw_client import CREATE_TOPICS, METADATA, RawClient

DELETE_TOPICS, DESCRIBE_CONFIGS, CREATE_PARTITIONS, INCREMENTAL_ALTER_CONFIGS = 20, 32, 37, 44
TOPIC_RESOURCE, SET = 2, 0
RETENTION = "retention.ms"
TIMED_OUT = "request_timed_out"
NO_ANSWER = "no answer"
# An earlier attempt of the broker's was committed, and the controller died before it said so.
DONE_BEFORE = frozenset({"topic_already_exists", "invalid_partitions", "unknown_topic_or_partition"})


class Topic(NamedTuple):
    """What is asked for."""

    partitions: int
    retention_ms: str


class Changes:
    """One client."""

    def __init__(
        self,
        cluster: Processes,
        name: str,
        rng: Random,
        *,
        broker: ClusterNode | None = None,
        timeout_ms: int = 20_000,
        answer_s: float = 30.0,
    ) -> None:
        """It asks one broker, or another one after every failure."""
        self._cluster = cluster
        self._name = name
        self._rng = rng
        self._broker = broker
        self._timeout_ms = timeout_ms
        self._answer_s = answer_s
        self._client: RawClient | None = None
        self._made = 0
        self._sure: dict[str, Topic] = {}
        self.expected: dict[str, set[Topic | None]] = {}
        self.acknowledged = 0
        self.outcomes: list[str] = []

    @property
    def topics(self) -> list[str]:
        """Those that are there for sure."""
        return sorted(self._sure)

    # ---- one change --------------------------------------------------------------------------------------

    def create(self) -> str:
        topic = Topic(self._rng.randint(1, 9), str(self._rng.randint(10**6, 10**8)))
        self._made += 1
        name = f"{self._name}-{self._made}"
        row = {"name": name, "num_partitions": topic.partitions, "replication_factor": 1}
        row["configs"] = [{"name": RETENTION, "value": topic.retention_ms}]
        return self._change(name, topic, CREATE_TOPICS, 7, {"topics": [row]})

    def grow(self, name: str) -> str:
        topic = self._sure[name]._replace(partitions=self._sure[name].partitions + self._rng.randint(1, 5))
        row = {"name": name, "count": topic.partitions, "assignments": None}
        return self._change(name, topic, CREATE_PARTITIONS, 3, {"topics": [row]})

    def configure(self, name: str) -> str:
        topic = self._sure[name]._replace(retention_ms=str(self._rng.randint(10**6, 10**8)))
        config = {"name": RETENTION, "config_operation": SET, "value": topic.retention_ms}
        row = {"resource_type": TOPIC_RESOURCE, "resource_name": name, "configs": [config]}
        return self._change(name, topic, INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [row]})

    def delete(self, name: str) -> str:
        return self._change(name, None, DELETE_TOPICS, 5, {"topic_names": [name]})

    def any_change(self) -> str:
        kinds = [self.create, self.grow, self.grow, self.configure, self.configure, self.delete]
        kind: Any = self._rng.choice(kinds)
        if kind == self.create or not self.topics:
            return self.create()
        result: str = kind(self._rng.choice(self.topics))
        return result

    def _change(
        self, name: str, topic: Topic | None, api_key: int, version: int, body: dict[str, Any]
    ) -> str:
        if api_key != INCREMENTAL_ALTER_CONFIGS:
            body["timeout"] = self._timeout_ms
        before = self._sure.pop(name, None)
        self.expected[name] = {before, topic}
        outcome = self._ask(api_key, version, body)
        self.outcomes.append(outcome)
        if outcome == "none":
            self.expected[name] = {topic}
            self.acknowledged += 1
            if topic is not None:
                self._sure[name] = topic
        else:
            assert outcome in (TIMED_OUT, NO_ANSWER) or outcome in DONE_BEFORE, (name, api_key, outcome)
        return outcome

    def _ask(self, api_key: int, version: int, body: dict[str, Any]) -> str:
        try:
            if self._client is None:
                self._client = RawClient(self._broker or self._any_broker(), timeout_s=self._answer_s)
            answer = self._client.ask(api_key, version, body)
        except OSError:
            self.close()
            return NO_ANSWER
        (row,) = next(answer[key] for key in ("topics", "results", "responses") if key in answer)
        error: str = row["error_code"]
        return error

    def _any_broker(self) -> ClusterNode:
        return self._rng.choice([node for node in self._cluster.nodes.values() if node.is_broker])

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
        self._client = None


@contextlib.contextmanager
def changing(clients: list[Changes]) -> Iterator[None]:
    """The clients are at work, each in a thread of its own; what fails in one is raised here."""
    stop = threading.Event()
    failures: list[BaseException] = []

    def work(client: Changes) -> None:
        try:
            while not stop.is_set():
                client.any_change()
        except BaseException as error:  # noqa: BLE001 - raised below
            failures.append(error)
        finally:
            client.close()

    threads = [threading.Thread(target=work, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    try:
        yield
    except BaseException as error:
        # Clients that have failed make no changes, and that is what the test may have waited for.
        for failure in failures:
            error.add_note(f"a client: {failure!r}")
        raise
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    if failures:
        raise failures[0]


# ---- what there is ---------------------------------------------------------------------------------------


def led_by(client: RawClient, topic: str) -> int:
    """Who leads the first partition of a topic; -1 if nobody does."""
    row = client.ask(METADATA, 12, {"topics": [{"name": topic, "topic_id": None}]})["topics"][0]
    leaders = [part["leader_id"] for part in row["partitions"] if part["partition_index"] == 0]
    return leaders[0] if leaders else -1


def topics_of(broker: ClusterNode) -> dict[str, Topic]:
    """Every topic, as one broker tells it."""
    with RawClient(broker) as client:
        answer = client.ask(METADATA, 12, {"topics": None})
        found = {row["name"]: row["partitions"] for row in answer["topics"]}
        assert all(row["error_code"] == "none" for row in answer["topics"]), answer
        wanted = [
            {"resource_type": TOPIC_RESOURCE, "resource_name": name, "configuration_keys": [RETENTION]}
            for name in found
        ]
        described = client.ask(DESCRIBE_CONFIGS, 4, {"resources": wanted})["results"] if wanted else []
    for name, partitions in found.items():
        assert sorted(row["partition_index"] for row in partitions) == list(range(len(partitions))), name
    return {
        row["resource_name"]: Topic(len(found[row["resource_name"]]), row["configs"][0]["value"])
        for row in described
        if row["error_code"] == "none"
    }


def check_changes(cluster: Processes, clients: list[Changes], timeout_s: float = 180.0) -> dict[str, Topic]:
    """Every node tells the same, with all that was acknowledged and nothing half; what it is."""
    brokers = [node for node in cluster.nodes.values() if node.is_broker]
    last = Changes(cluster, f"last-{len(clients)}-{sum(len(c.outcomes) for c in clients)}", Random(0))
    wait_until(lambda: last.create() == "none", timeout_s, "a change")
    last.close()
    newest = next(name for name, allowed in last.expected.items() if None not in allowed)
    for node in brokers:
        wait_until(lambda node=node: newest in topics_of(node), timeout_s, f"{node.kind} to have {newest}")
    told = {node.node_id: topics_of(node) for node in brokers}
    first = told[brokers[0].node_id]
    for node_id, topics in told.items():
        assert topics == first, {node_id: topics.items() ^ first.items()}
    for client in clients:
        for name, allowed in client.expected.items():
            assert first.get(name) in allowed, (name, first.get(name), allowed)
    return first
