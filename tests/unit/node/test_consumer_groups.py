"""Consumer groups on a whole node: what is switched on, what outlives a stop, and assignors that cannot be used."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.interop.process import receive_frame, wait_until
from tests.interop.scripts.entities import decode_response, encode_request

from ottla.client.admin.types import ConfigChange, ConfigResource, NewTopic, ResourceType
from ottla.client.blocking import Admin
from ottla.config.errors import ConfigError
from ottla.coordinator.group.context import Caller
from ottla.metadata.delta import Delta
from ottla.model.pending import Pending
from ottla.testing import Broker
from ottla.wire.messages.groups.consumer import ConsumerGroupHeartbeatRequest

HEARTBEAT, DESCRIBE, FIND = 68, 69, 10
NOT_YET = ("coordinator_not_available", "not_coordinator", "coordinator_load_in_progress")


class Link:
    """A connection that waits for its coordinator."""

    def __init__(self, broker: Broker) -> None:
        host, port = broker.bootstrap_servers.split(":")
        self._socket = socket.create_connection((host, int(port)), timeout=20)

    def ask(self, api_key: int, version: int, body: dict[str, Any]) -> dict[str, Any]:
        self._socket.sendall(encode_request(api_key, version, body))
        return decode_response(api_key, version, receive_frame(self._socket))

    def beat(self, **values: Any) -> dict[str, Any]:
        body = {
            "group_id": "g", "member_id": "m", "member_epoch": 0, "instance_id": None, "rack_id": None,
            "rebalance_timeout": 60_000, "subscribed_topic_names": ["t"], "subscribed_topic_regex": None,
            "server_assignor": None, "topic_partitions": [], **values,
        }  # fmt: skip
        answer: dict[str, Any] = {}

        def answered() -> bool:
            self.ask(FIND, 4, {"key_type": 0, "coordinator_keys": ["g"]})
            answer.update(self.ask(HEARTBEAT, 1, body))
            return answer["error_code"] not in NOT_YET

        wait_until(answered, 20, "a coordinator")
        return answer

    def describe(self) -> dict[str, Any]:
        found: dict[str, Any] = self.ask(DESCRIBE, 1, {"group_ids": ["g"]})["groups"][0]
        return found

    def close(self) -> None:
        self._socket.close()


@contextmanager
def linked(broker: Broker) -> Iterator[Link]:
    link = Link(broker)
    yield link
    link.close()


def create(broker: Broker, partitions: int) -> None:
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.create_topics([NewTopic("t", partitions)])


def test_members_outlive_a_stop(tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path) as broker:
        create(broker, 3)
        with linked(broker) as link:
            answer = link.beat()
            assert answer["assignment"]["topic_partitions"][0]["partitions"] == [0, 1, 2]
            before = link.describe()
    with Broker(data_dir=tmp_path) as broker, linked(broker) as link:
        stays = {"rebalance_timeout": -1, "subscribed_topic_names": None, "topic_partitions": None}
        again = link.beat(member_epoch=answer["member_epoch"], **stays)
        assert (again["error_code"], again["member_epoch"]) == ("none", answer["member_epoch"])
        assert link.describe() == before


def test_the_protocol_may_be_switched_off(tmp_path: Path) -> None:
    settings = {"group.coordinator.rebalance.protocols": "classic"}
    with Broker(settings, tmp_path) as broker, linked(broker) as link:
        assert link.beat()["error_code"] == "unsupported_version"
        assert link.describe()["error_code"] == "unsupported_version"


def test_a_setting_of_a_group_holds_also_for_who_asks_while_it_is_applied(tmp_path: Path) -> None:
    group = ConfigResource(ResourceType.GROUP, "g")
    key = "consumer.heartbeat.interval.ms"
    stays = {"rebalance_timeout": -1, "subscribed_topic_names": None, "topic_partitions": None}
    settings = {"offsets.topic.num.partitions": 1}
    with Broker(settings, tmp_path) as broker, linked(broker) as link:
        epoch = link.beat()["member_epoch"]
        beat = ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=epoch)
        asked: list[Pending[Any]] = []

        async def ask(delta: Delta) -> None:
            groups, caller = broker.node.coordinators.groups, Caller("client", "/127.0.0.1", 1)
            asked.append(groups.write(0, lambda machine, now: machine.consumer.heartbeat(caller, beat, now)))

        # After the coordinators have applied a change, before it is shown.
        broker.node.broker._publisher.follow(ask)
        with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
            admin.incremental_alter_configs({group: [ConfigChange(key, "7000")]})
        assert asked
        again = link.beat(member_epoch=epoch, **stays)
        assert again["heartbeat_interval"] == 7_000


@pytest.mark.parametrize(
    ("assignors", "why"),
    [
        ("mine", "no module is named"),
        ("no.such.Assignor", "No module named"),
        ("pathlib.NoSuchPath", "NoSuchPath"),
        ("pathlib:Path", "not derived from PartitionAssignor"),
        ("ottla.coordinator.group.assignors.PartitionAssignor", "no name"),
        ("uniform,org.apache.kafka.coordinator.group.assignor.UniformAssignor", "two of the assignors"),
    ],
)
def test_a_broker_does_not_start_with_an_assignor_that_it_cannot_use(
    tmp_path: Path, assignors: str, why: str
) -> None:
    broker = Broker({"group.consumer.assignors": assignors}, tmp_path)
    with pytest.raises(ConfigError, match=why):
        broker.start()
