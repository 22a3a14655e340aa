"""What the scripts about streams groups are made of: topologies, members, groups with settings of their own."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from tests.interop.process import wait_until
from tests.interop.scripts.classic_groups import coordinated
from tests.interop.scripts.consumer_groups import GROUP_RESOURCE
from tests.interop.scripts.script import Script

HEARTBEAT, DESCRIBE, ALTER, DESCRIBE_CONFIGS = 88, 89, 44, 32
COMMIT, OFFSET_FETCH, LIST_GROUPS, DELETE_GROUPS, OFFSET_DELETE = 8, 9, 16, 42, 47
CREATE_PARTITIONS, DELETE_TOPICS = 37, 20
JOINS, LEAVES, LEAVES_FOR_A_WHILE = 0, -1, -2
NOTHING_SAID: dict[str, Any] = {
    "endpoint_information_epoch": 0,
    "instance_id": None,
    "rack_id": None,
    "rebalance_timeout": -1,
    "topology": None,
    "active_tasks": None,
    "standby_tasks": None,
    "warmup_tasks": None,
    "process_id": None,
    "user_endpoint": None,
    "client_tags": None,
    "task_offsets": None,
    "task_end_offsets": None,
    "shutdown_application": False,
}
Rows = list[dict[str, Any]]


def internal(name: str, partitions: int = 0, replication: int = 0, **configs: object) -> dict[str, Any]:
    """A repartition or changelog topic."""
    return {
        "name": name,
        "partitions": partitions,
        "replication_factor": replication,
        "topic_configs": [{"key": k.replace("_", "."), "value": str(v)} for k, v in configs.items()],
    }


def sub(
    name: str,
    sources: Sequence[str],
    *,
    changelogs: Sequence[dict[str, Any]] = (),
    sinks: Sequence[str] = (),
    repartition: Sequence[dict[str, Any]] = (),
    together: Sequence[tuple[Sequence[int], Sequence[int]]] = (),
    regex: Sequence[str] = (),
) -> dict[str, Any]:
    """A subtopology; `together` are places of source and repartition topics that are joined."""
    return {
        "subtopology_id": name,
        "source_topics": list(sources),
        "source_topic_regex": list(regex),
        "state_changelog_topics": list(changelogs),
        "repartition_sink_topics": list(sinks),
        "repartition_source_topics": list(repartition),
        "copartition_groups": [
            {"source_topics": list(a), "source_topic_regex": [], "repartition_source_topics": list(b)}
            for a, b in together
        ],
    }


def topology(*subtopologies: dict[str, Any], epoch: int = 0) -> dict[str, Any]:
    return {"epoch": epoch, "subtopologies": list(subtopologies)}


def rows(**tasks: Sequence[int]) -> Rows:
    """Tasks by subtopology, whose names begin with an s here because a keyword cannot be a number."""
    return [{"subtopology_id": name[1:], "partitions": list(numbers)} for name, numbers in tasks.items()]


class Member:
    """A member that remembers its epoch and what it has, as a client does."""

    def __init__(
        self, s: Script, group: str, name: str, said: dict[str, Any], process: str | None = None
    ) -> None:
        self.s = s
        self.group = group
        self.name = name
        self.said = said
        self.process = process or f"process of {name}"
        self.member_id = f"{name}-of-{group}"
        self.epoch = 0
        self.active: Rows = []
        self.standby: Rows = []

    def body(self, **values: Any) -> dict[str, Any]:
        return {
            **NOTHING_SAID,
            "group_id": self.group,
            "member_id": self.member_id,
            "member_epoch": self.epoch,
            **values,
        }

    def beat(self, case: str, **values: Any) -> dict[str, Any]:
        """A heartbeat with only what is given; what is assigned is owned from the next `ack` on."""
        answer = self.s.ask(HEARTBEAT, 0, self.body(**values), f"{self.group}, {self.name}, {case}")
        self._learn(answer)
        return answer

    def _learn(self, answer: dict[str, Any]) -> None:
        if answer.get("error_code") != "none":
            return
        if answer["member_epoch"] >= 0:
            self.epoch = answer["member_epoch"]
        if answer["active_tasks"] is not None:
            self.active, self.standby = answer["active_tasks"], answer["standby_tasks"]

    def join_body(self, **values: Any) -> dict[str, Any]:
        given = {
            "member_epoch": JOINS,
            "rebalance_timeout": 30_000,
            "topology": self.said,
            "process_id": self.process,
            "active_tasks": [],
            "standby_tasks": [],
            "warmup_tasks": [],
        }
        return self.body(**{**given, **values})

    def join(self, case: str = "joins", **values: Any) -> dict[str, Any]:
        self.active, self.standby = [], []
        return self.beat(case, **self.join_body(**values))

    def owned(self) -> dict[str, Any]:
        return {"active_tasks": self.active, "standby_tasks": self.standby, "warmup_tasks": []}

    def ack(self, case: str = "says what it has", **values: Any) -> dict[str, Any]:
        return self.beat(case, **{**self.owned(), **values})

    def leave(self, case: str = "leaves", epoch: int = LEAVES, **values: Any) -> dict[str, Any]:
        return self.beat(case, member_epoch=epoch, **values)

    def await_epoch(self, epoch: int) -> None:
        """The coordinator may hear of a topic later than others do: ask, unrecorded, until it has."""

        def there() -> bool:
            self._learn(self.s.quiet(HEARTBEAT, 0, self.body(**self.owned())))
            return self.epoch >= epoch

        wait_until(there, 90, f"epoch {epoch} of {self.group}")


def group_of(s: Script, name: str, *, delay_ms: int = 0, interval_ms: int = 0, **configs: object) -> str:
    """A group whose coordinator is ready, with settings of its own."""
    group = coordinated(s, name)
    waits = {"streams_initial_rebalance_delay_ms": delay_ms, "streams_assignment_interval_ms": interval_ms}
    configure(s, group, **waits, **configs)
    return group


def configure(s: Script, group: str, **configs: object) -> None:
    """Settings that are in force when this returns.

    A broker shows a change before it heeds it, but takes up one change after the other: when it shows the next one, the
    first is in force.
    """
    _alter(s, group, **configs)
    _alter(s, group, streams_session_timeout_ms=next(_SESSIONS))


_SESSIONS = itertools.cycle(range(45_001, 46_000))


def _alter(s: Script, group: str, **configs: object) -> None:
    settings = {key.replace("_", "."): str(value) for key, value in configs.items()}
    given = [{"name": k, "config_operation": 0, "value": v} for k, v in settings.items()]
    resource = {"resource_type": GROUP_RESOURCE, "resource_name": group, "configs": given}
    answer = s.quiet(ALTER, 1, {"resources": [resource], "validate_only": False})
    assert answer["responses"][0]["error_code"] == "none", answer
    asked = {"resource_type": GROUP_RESOURCE, "resource_name": group, "configuration_keys": None}

    def there() -> bool:
        shown = s.quiet(DESCRIBE_CONFIGS, 4, {"resources": [asked], "include_synonyms": False})
        found = {c["name"]: c["value"] for c in shown["results"][0]["configs"]}
        return all(found.get(name) == value for name, value in settings.items())

    wait_until(there, 90, f"the settings of {group}")


def describe(s: Script, group: str, case: str) -> None:
    body = {"group_ids": [group], "include_authorized_operations": True}
    s.ask(DESCRIBE, 0, body, f"{group}, {case}")


def settle(*members: Member, rounds: int = 4) -> None:
    """Heartbeats in turn, until everybody has what it shall have."""
    for number in range(rounds):
        for member in members:
            member.ack(f"round {number}")


def commit(
    s: Script,
    member: Member,
    topic: str,
    case: str,
    *,
    epoch: int | None = None,
    member_id: str | None = None,
    version: int = 9,
) -> None:
    partitions = [
        {
            "partition_index": p,
            "committed_offset": 10 + p,
            "committed_leader_epoch": -1,
            "committed_metadata": "",
        }
        for p in range(4)
    ]
    body = {
        "group_id": member.group,
        "generation_id_or_member_epoch": member.epoch if epoch is None else epoch,
        "member_id": member.member_id if member_id is None else member_id,
        "group_instance_id": None,
        "topics": [{"name": topic, "partitions": partitions}],
    }
    s.ask(COMMIT, version, body, f"{member.group}, {member.name}, {case}")
