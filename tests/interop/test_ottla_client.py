"""Ottla's own clients and commands on Apache Kafka, and beside the Java consumer in one group.

The tests of tests/clients run here once more, with the reference for a broker; then members of the Java client
and ours share groups of every assignor.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.clients import test_ottla_client_cli_groups as commands
from tests.clients import test_ottla_groups as groups
from tests.clients import test_ottla_transactions as transactions
from tests.clients import test_quotas as quotas
from tests.clients import test_users as users
from tests.clients.adapters.model import Patience
from tests.clients.test_ottla_client_cli_groups import InProcess
from tests.clients.test_ottla_groups import PARTITIONS, Ours, poll_until, produce
from tests.interop.apache import ApacheKafka, java_command

from ottla.client import Admin
from ottla.client.errors import NotABroker
from ottla.testing.broker import Broker

pytestmark = pytest.mark.interop

TIMEOUT_S = 60


class Apache:
    """The reference, in the shape the tests expect a broker to have."""

    def __init__(self, kafka: ApacheKafka) -> None:
        self.bootstrap_servers = kafka.address
        self.controller = f"127.0.0.1:{kafka.controller_port}"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apache]:
    where = tmp_path_factory.mktemp("apache") / "data"
    settings = {**groups.SETTINGS, **commands.SETTINGS, **transactions.SETTINGS}
    settings["group.consumer.min.heartbeat.interval.ms"] = "50"
    with ApacheKafka(where, settings) as kafka:
        yield Apache(kafka)


@pytest.fixture
def servers(broker: Apache) -> str:
    return broker.bootstrap_servers


def in_step() -> None:
    """The only broker has every change when it answers."""


@pytest.fixture
def topic(servers: str) -> str:
    return str(groups.topic.__wrapped__(servers, in_step))  # type: ignore[attr-defined]


test_members_share_a_topic_come_and_go = groups.test_members_share_a_topic_come_and_go
test_members_of_librdkafka_and_ours_in_one_group = groups.test_members_of_librdkafka_and_ours_in_one_group
test_a_classic_member_and_a_new_one = groups.test_a_classic_member_and_one_of_the_new_protocol_in_one_group
test_a_static_member_comes_back_to_what_it_had = groups.test_a_static_member_comes_back_to_what_it_had
test_commits_positions_and_replay = groups.test_commits_positions_and_replay
test_a_pattern_follows_new_topics = groups.test_a_pattern_follows_new_topics
test_whoever_does_not_poll_loses_its_partitions = groups.test_whoever_does_not_poll_loses_its_partitions


def test_users_by_the_command(servers: str, tmp_path: Path) -> None:
    users.test_the_command(servers, tmp_path)
    users.test_tokens_by_the_command(servers)
    users.test_tokens_are_for_who_has_logged_in(servers)


def test_quotas_by_the_command(servers: str) -> None:
    quotas.test_the_command(servers)


@pytest.mark.parametrize("level", [1, 2])
class TestTransactions:
    """Transactions of both versions."""

    @pytest.fixture(autouse=True)
    def version(self, servers: str, level: int) -> None:
        with Admin(bootstrap_servers=servers) as admin:
            admin.update_features({"transaction.version": level}, allow_downgrade=True)

    def test_the_version_in_force_is_spoken(self, servers: str, topic: str) -> None:
        transactions.test_the_version_in_force_is_spoken(servers, topic)

    def test_all_or_nothing(self, servers: str, topic: str) -> None:
        transactions.test_all_or_nothing(servers, topic)

    def test_a_newer_producer_fences_an_older_one(self, servers: str, topic: str) -> None:
        transactions.test_a_newer_producer_fences_an_older_one(servers, topic)

    def test_offsets_of_a_stranger(self, servers: str, topic: str) -> None:
        transactions.test_offsets_of_a_stranger_abort_the_transaction_and_no_more(servers, topic)

    @pytest.mark.parametrize("protocol", ["classic", "consumer"])
    def test_read_transform_write(self, servers: str, topic: str, protocol: str) -> None:
        transactions.test_read_transform_write_exactly_once(servers, topic, in_step, protocol)


class TestCommands:
    """ottla group, txn, topic trim, log dirs, cluster info and consume --group."""

    @pytest.fixture
    def cli(
        self, broker: Apache, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> InProcess:
        monkeypatch.setenv("OTTLA_BOOTSTRAP_SERVER", broker.bootstrap_servers)
        return InProcess(capsys, monkeypatch)

    @pytest.fixture
    def admin(self, broker: Apache) -> Iterator[Admin]:
        with Admin(bootstrap_servers=broker.bootstrap_servers) as client:
            yield client

    @pytest.fixture
    def topic(self, broker: Any, admin: Admin) -> str:
        return str(commands.topic.__wrapped__(broker, admin))  # type: ignore[attr-defined]

    def test_list_describe_delete(self, cli: InProcess, admin: Admin, broker: Any, topic: str) -> None:
        commands.test_list_describe_delete(cli, admin, broker, topic)

    def test_lag(self, cli: InProcess, admin: Admin, topic: str) -> None:
        commands.test_lag_in_records_and_seconds(cli, admin, topic)

    def test_resets(self, cli: InProcess, admin: Admin, topic: str, tmp_path: Path) -> None:
        commands.test_scopes_shifts_and_files(cli, admin, topic, tmp_path)

    def test_share_groups(self, cli: InProcess, admin: Admin, topic: str) -> None:
        commands.test_share_groups_too(cli, admin, topic)

    @pytest.mark.parametrize("protocol", ["classic", "consumer"])
    def test_consume(self, cli: InProcess, admin: Admin, topic: str, protocol: str) -> None:
        commands.test_consume_in_a_group_goes_on_where_it_stopped(cli, admin, topic, protocol)

    def test_trim(self, cli: InProcess, admin: Admin, topic: str) -> None:
        commands.test_trim_shows_first_and_forgets_when_told(cli, admin, topic)

    def test_a_compacted_topic_is_not_trimmed(self, cli: InProcess, admin: Admin, topic: str) -> None:
        commands.test_a_compacted_topic_is_not_trimmed(cli, admin, topic)

    def test_log_dirs(self, cli: InProcess, admin: Admin, topic: str) -> None:
        commands.test_log_dirs_add_up(cli, admin, topic)

    def test_cluster_info(self, cli: InProcess, admin: Admin, broker: Any, topic: str) -> None:
        commands.test_cluster_info(cli, admin, broker, topic)

    def test_the_controllers_port(self, broker: Apache) -> None:
        with pytest.raises(NotABroker, match="this is the port of a controller"):
            Admin(bootstrap_servers=broker.controller)

    def test_transactions(self, cli: InProcess, broker: Any, topic: str) -> None:
        commands.test_transactions_are_listed_described_and_aborted(cli, broker, topic)

    @pytest.mark.parametrize("how", ["found", "named", "by hand"])
    def test_hanging(self, cli: InProcess, admin: Admin, broker: Any, topic: str, how: str) -> None:
        commands.test_hanging_transactions_are_found_and_aborted(cli, admin, broker, topic, how)


# -- beside the Java consumer ---------------------------------------------------------------------------------


class Java:
    """The verifiable consumer in a process of its own, as a member of a group."""

    def __init__(self, where: Path, servers: str, group: str, topic: str, assignor: str) -> None:
        self._path = where / f"java-{id(self)}"
        options = ["--bootstrap-server", servers, "--topic", topic, "--group-id", group, "--verbose"]
        options += ["--reset-policy", "earliest"]
        if assignor == "consumer":
            options += ["--group-protocol", "consumer"]
        else:
            options += ["--assignment-strategy", f"org.apache.kafka.clients.consumer.{assignor}"]
        with self._path.open("wb") as out:
            command = java_command("VerifiableConsumer", log_level="ERROR")
            self._process = subprocess.Popen([*command, *options], stdout=out, stderr=subprocess.STDOUT)

    def _events(self) -> list[dict[str, Any]]:
        lines = self._path.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n")]

    def poll(self) -> None:
        assert self._process.poll() is None, self._path.read_text()

    def partitions(self) -> set[int]:
        held: set[int] = set()
        for event in self._events():
            numbers = {entry["partition"] for entry in event.get("partitions", ()) if isinstance(entry, dict)}
            if event["name"] == "partitions_assigned":
                held |= numbers
            elif event["name"] == "partitions_revoked":
                held -= numbers
        return held

    def values(self) -> set[bytes]:
        return {str(event["value"]).encode() for event in self._events() if event["name"] == "record_data"}

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(TIMEOUT_S)


WAYS = {
    "range": "RangeAssignor",
    "roundrobin": "RoundRobinAssignor",
    "sticky": "StickyAssignor",
    "cooperative-sticky": "CooperativeStickyAssignor",
    "consumer": "consumer",
}


@pytest.mark.parametrize("first", ["ours", "theirs"])
@pytest.mark.parametrize("way", list(WAYS))
def test_members_of_the_java_client_and_ours_in_one_group_on_ottla(
    tmp_path: Path, way: str, first: str
) -> None:
    with Broker(groups.SETTINGS) as broker, ExitStack() as stack:
        servers = broker.bootstrap_servers
        name = str(groups.topic.__wrapped__(servers, in_step))  # type: ignore[attr-defined]
        expected = produce(servers, name, 60)
        ours: dict[str, Any] = {"partition_assignment_strategy": way}
        if way == "consumer":
            ours = {"group_protocol": "consumer"}
        members: list[Any] = []
        for kind in ("ours", "theirs", "ours") if first == "ours" else ("theirs", "ours"):
            member: Any = (
                Ours(servers, "g", name, **ours)
                if kind == "ours"
                else Java(tmp_path, servers, "g", name, WAYS[way])
            )
            stack.callback(member.close)
            members.append(member)
            poll_until(lambda: groups.is_shared(*members), *members)
        before = {id(m): m.partitions() for m in members}
        joined = Ours(servers, "g", name, **ours)
        stack.callback(joined.close)
        poll_until(lambda: groups.is_shared(*members, joined), *members, joined)
        if "sticky" in way:
            # Each of the two clients' leaders understands what the other's members say they had.
            assert all(m.partitions() <= before[id(m)] for m in members)
        assert sum(len(m.partitions()) for m in [*members, joined]) == PARTITIONS
        patience = Patience("all is read")
        while len(_read([*members, joined])) < 60:
            patience.check(len(_read([*members, joined])))
            for m in [*members, joined]:
                m.poll()
        assert _read([*members, joined]) == set(expected)


def _read(members: list[Any]) -> set[bytes]:
    return set().union(*(m.values() if isinstance(m, Java) else set(m.values) for m in members))
