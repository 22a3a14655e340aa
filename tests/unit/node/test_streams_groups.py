"""Streams groups on a whole node: internal topics that are made or cannot be, what is switched off, and a restart."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.interop.process import receive_frame, wait_until
from tests.interop.scripts.entities import ZERO_ID, decode_response, encode_request
from tests.interop.scripts.streams_members import NOTHING_SAID, internal, sub, topology

from ottla.client.admin.types import NewTopic
from ottla.client.blocking import Admin
from ottla.controller.controller import Controller
from ottla.controller.result import RequestContext
from ottla.testing import Broker

HEARTBEAT, DESCRIBE, FIND, METADATA, UPDATE_FEATURES = 88, 89, 10, 3, 57
NOT_YET = ("coordinator_not_available", "not_coordinator", "coordinator_load_in_progress")
QUICK = {"group.streams.initial.rebalance.delay.ms": 0, "group.streams.assignment.interval.ms": 0}
MISSING_INTERNAL_TOPICS = 3


class Link:
    """A connection that waits for its coordinator."""

    def __init__(self, broker: Broker) -> None:
        host, port = broker.bootstrap_servers.split(":")
        self._socket = socket.create_connection((host, int(port)), timeout=20)

    def ask(self, api_key: int, version: int, body: dict[str, Any]) -> dict[str, Any]:
        self._socket.sendall(encode_request(api_key, version, body))
        return decode_response(api_key, version, receive_frame(self._socket))

    def beat(self, **values: Any) -> dict[str, Any]:
        body = {**NOTHING_SAID, "group_id": "g", "member_id": "m", "member_epoch": 0, **values}
        answer: dict[str, Any] = {}

        def answered() -> bool:
            self.ask(FIND, 4, {"key_type": 0, "coordinator_keys": ["g"]})
            answer.update(self.ask(HEARTBEAT, 0, body))
            return answer["error_code"] not in NOT_YET

        wait_until(answered, 20, "a coordinator")
        return answer

    def join(self, said: dict[str, Any]) -> dict[str, Any]:
        tasks: dict[str, Any] = {"active_tasks": [], "standby_tasks": [], "warmup_tasks": []}
        return self.beat(topology=said, rebalance_timeout=60_000, process_id="p", **tasks)

    def stay(self, epoch: int) -> dict[str, Any]:
        return self.beat(member_epoch=epoch, active_tasks=[], standby_tasks=[], warmup_tasks=[])

    def describe(self) -> dict[str, Any]:
        found: dict[str, Any] = self.ask(
            DESCRIBE, 0, {"group_ids": ["g"], "include_authorized_operations": False}
        )["groups"][0]
        return found

    def partitions(self, topic: str) -> int:
        query = {"topics": [{"topic_id": ZERO_ID, "name": topic}], "allow_auto_topic_creation": False}
        return len(self.ask(METADATA, 12, query)["topics"][0]["partitions"])

    def close(self) -> None:
        self._socket.close()


@contextmanager
def linked(broker: Broker) -> Iterator[Link]:
    link = Link(broker)
    yield link
    link.close()


def create(broker: Broker, partitions: int) -> None:
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.create_topics([NewTopic("in", partitions)])


def test_internal_topics_are_made_and_the_group_outlives_a_stop(tmp_path: Path) -> None:
    said = topology(
        sub("0", ["in"], sinks=["g-words-repartition"]),
        sub(
            "1",
            [],
            repartition=[internal("g-words-repartition")],
            changelogs=[internal("g-counts-changelog")],
        ),
    )
    with Broker(QUICK, tmp_path) as broker:
        create(broker, 3)
        with linked(broker) as link:
            answer = link.join(said)
            assert [status["status_code"] for status in answer["status"]] == [MISSING_INTERNAL_TOPICS]
            for name in ("g-words-repartition", "g-counts-changelog"):
                wait_until(lambda name=name: link.partitions(name) == 3, 20, name)
            told: dict[str, Any] = {"member_epoch": answer["member_epoch"]}

            def has_tasks() -> bool:
                told.update(link.stay(told["member_epoch"]))
                return bool(told["active_tasks"])

            wait_until(has_tasks, 20, "the tasks")
            assert [row["partitions"] for row in told["active_tasks"]] == [[0, 1, 2], [0, 1, 2]]
            before = link.describe()
            assert before["group_state"] == "Stable"
    with Broker(QUICK, tmp_path) as broker, linked(broker) as link:
        again = link.beat(member_epoch=told["member_epoch"])
        assert (again["error_code"], again["member_epoch"]) == ("none", told["member_epoch"])
        assert again["status"] == []
        after = link.describe()
        assert (after["members"], after["group_epoch"]) == (before["members"], before["group_epoch"])


def test_internal_topics_are_asked_for_in_the_name_of_the_member(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a principal it goes in an envelope, and is asked again over a change of controller."""
    asked: list[RequestContext] = []
    create_topics = Controller.create_topics

    async def noted(controller: Controller, request: Any, context: RequestContext) -> Any:
        asked.extend(context for topic in request.topics if topic.name == "g-store-changelog")
        return await create_topics(controller, request, context)

    monkeypatch.setattr(Controller, "create_topics", noted)
    with Broker(QUICK, tmp_path) as broker:
        create(broker, 1)
        with linked(broker) as link:
            link.join(topology(sub("0", ["in"], changelogs=[internal("g-store-changelog")])))
            wait_until(lambda: link.partitions("g-store-changelog") == 1, 20, "the topic")
    (context,) = asked
    assert context.principal is not None
    assert context.client_address == bytes([127, 0, 0, 1])


def test_a_topic_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    said = topology(sub("0", ["in"], changelogs=[internal("g-store-changelog", 0, 3)]))
    with Broker(QUICK, tmp_path) as broker:
        create(broker, 1)
        with linked(broker) as link:
            epoch = link.join(said)["member_epoch"]

            def is_told() -> bool:
                (status,) = link.stay(epoch)["status"]
                assert status["status_code"] == MISSING_INTERNAL_TOPICS
                return "cannot be made" in status["status_detail"]

            wait_until(is_told, 20, "that the topic cannot be made")
            assert link.describe()["group_state"] == "NotReady"


def test_the_protocol_may_be_switched_off(tmp_path: Path) -> None:
    settings = {"group.coordinator.rebalance.protocols": "classic,consumer"}
    with Broker(settings, tmp_path) as broker, linked(broker) as link:
        assert link.beat()["error_code"] == "unsupported_version"
        assert link.describe()["error_code"] == "unsupported_version"


def test_the_cluster_may_not_be_ready_for_it(tmp_path: Path) -> None:
    with Broker(QUICK, tmp_path) as broker, linked(broker) as link:
        update = {"feature": "streams.version", "max_version_level": 0, "upgrade_type": 2}
        asked = {"timeout": 10_000, "feature_updates": [update], "validate_only": False}
        assert link.ask(UPDATE_FEATURES, 1, asked)["error_code"] == "none"
        wait_until(
            lambda: link.describe()["error_code"] == "unsupported_version", 20, "the feature to be gone"
        )
        assert link.beat()["error_code"] == "unsupported_version"
