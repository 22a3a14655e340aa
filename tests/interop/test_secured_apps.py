"""Kafka Streams, exactly once, and Connect over SASL_SSL: what the rules allow they do, and otherwise they say why not.

Their users log in with SCRAM-SHA-512 and do so again when their sessions end. Streams has the rules of
`ottla acl add --streams`; those of Connect are in Kafka's documentation under "Security" of its workers.
"""

from __future__ import annotations

import random
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.interop.connect.worker import FILE, ConnectWorker
from tests.interop.ottla_node import OTTLA
from tests.interop.process import wait_until
from tests.interop.secured import ADMIN, SCRAM, SecureCluster, Security
from tests.interop.security_world import make_user
from tests.interop.streams.app import WordCountApp, compile_app
from tests.interop.test_connect import copied, lines
from tests.interop.test_streams import PARTITIONS, WordWorld

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

PASSWORD = "nobody else's"
PATIENCE_S = 120
# Sessions end while a test runs, but not within the seconds that a login may take on a busy machine.
SETTINGS = {"connections.max.reauth.ms": 20_000, "auto.create.topics.enable": False}


class Guarded:
    """A node where nobody may do anything but by its rules."""

    def __init__(self, cluster: SecureCluster) -> None:
        self.cluster = cluster
        self.node = cluster[1]
        self.security = cluster.security

    def user(self, name: str) -> dict[str, object]:
        """Somebody new: what a client of theirs is told."""
        make_user(self.node, name, PASSWORD)
        return self.security.client_settings(name, PASSWORD, SCRAM)

    def acl(self, *words: str) -> None:
        """`ottla acl`, as the administrator."""
        who = ("-b", self.node.address, "--command-config", str(self.security.client_file(ADMIN)))
        done = subprocess.run([str(OTTLA), "acl", *words, *who], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr

    def make_topics(self, topics: dict[str, int]) -> None:
        with self.node.client() as admin:
            for name, partitions in topics.items():
                admin.create_topic(name, partitions)


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    nodes = {1: ("ottla", "broker,controller")}
    with SecureCluster(tmp_path, nodes, Security(tmp_path, protocol="SASL_SSL"), SETTINGS) as cluster:
        yield Guarded(cluster)
        assert PASSWORD not in cluster[1].printed()


# ---- Streams


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_app(tmp_path_factory.mktemp("classes"))


class GuardedWords(WordWorld):
    """Lines that the administrator writes, and counts that they read."""

    def __init__(self, guarded: Guarded) -> None:
        self.node = guarded.node
        self.words: Counter[str] = Counter()
        self._random = random.Random(1)
        self._login = guarded.security.librdkafka_settings(ADMIN)
        guarded.make_topics(PARTITIONS)

    def client(self) -> dict[str, object]:
        return {**super().client(), **self._login}


STREAMS = ("--streams", "--topic", "lines", "--topic", "counts", "--group", "wc")


@pytest.mark.parametrize("protocol", ["classic", "streams"])
def test_streams_counts_by_its_rights_until_one_is_taken_away(
    guarded: Guarded, classes: Path, tmp_path: Path, protocol: str
) -> None:
    words = GuardedWords(guarded)
    client = guarded.user("counter")
    guarded.acl("add", "--user", "counter", *STREAMS)
    address = guarded.node.address
    app = WordCountApp(tmp_path / "app", classes, address, "wc", protocol=protocol, client=client)
    try:
        app.start()
        app.wait_running()
        words.write(200)
        words.check_counts()
        guarded.node.kill()
        guarded.node.start()
        words.write(100)
        words.check_counts()
        app.check()
        guarded.acl("remove", "--user", "counter", "--op", "write", "--topic", "counts")
        words.write(10)
        said = app.wait_death()
        assert "TopicAuthorizationException" in said
        assert PASSWORD not in said
    finally:
        app.kill()


MISSING = {
    "GroupAuthorizationException": ("read", "--group", "wc"),
    "TopicAuthorizationException": ("read", "--topic", "lines"),
    "TransactionalIdAuthorizationException": ("write", "--transactional-id", "wc-", "--prefixed"),
}


@pytest.mark.parametrize("exception", MISSING)
@pytest.mark.parametrize("protocol", ["classic", "streams"])
def test_streams_says_which_right_it_has_not(
    guarded: Guarded, classes: Path, tmp_path: Path, protocol: str, exception: str
) -> None:
    words = GuardedWords(guarded)
    client = guarded.user("counter")
    guarded.acl("add", "--user", "counter", *STREAMS)
    operation, *resource = MISSING[exception]
    guarded.acl("add", "--user", "counter", "--op", operation, *resource, "--deny")
    words.write(10)
    address = guarded.node.address
    app = WordCountApp(tmp_path / "app", classes, address, "wc", protocol=protocol, client=client, threads=1)
    try:
        app.start()
        said = app.wait_death()
        assert exception in said
        assert PASSWORD not in said
    finally:
        app.kill()


# ---- Connect

CLIENTS = ("", "producer.", "consumer.", "admin.")
OVERRIDES = ("producer.override.", "consumer.override.", "admin.override.")
WORKERS_OWN = ("read", "write", "create", "describe_configs")


def of_all_clients(settings: dict[str, object], prefixes: tuple[str, ...] = CLIENTS) -> dict[str, object]:
    """What each of a worker's clients is told, or each of a connector's."""
    return {f"{prefix}{key}": str(value) for prefix in prefixes for key, value in settings.items()}


def let_work(guarded: Guarded, user: str) -> None:
    """The workers' own group and topics."""
    operations = [word for operation in WORKERS_OWN for word in ("--op", operation)]
    guarded.acl("add", "--user", user, *operations, "--topic", "connect-", "--prefixed")
    guarded.acl("add", "--user", user, "--op", "read", "--group", "connect", "--prefixed")


def test_connect_copies_by_its_rights_and_a_connector_has_those_of_its_own_user(
    guarded: Guarded, tmp_path: Path
) -> None:
    source, sink = tmp_path / "source.txt", tmp_path / "sink.txt"
    source.write_text("".join(f"line {i}\n" for i in range(500)))
    guarded.make_topics({"text": 1})
    client, stranger = guarded.user("worker"), guarded.user("stranger")
    let_work(guarded, "worker")
    guarded.acl("add", "--user", "worker", "--op", "read", "--op", "write", "--topic", "text")
    settings = {**of_all_clients(client), "connector.client.config.override.policy": "All"}
    worker = ConnectWorker(tmp_path / "one", guarded.node.address, "connect", settings)
    read = {"connector.class": f"{FILE}SourceConnector", "file": str(source), "topic": "text"}
    write = {"connector.class": f"{FILE}SinkConnector", "file": str(sink), "topics": "text"}
    as_stranger = of_all_clients(stranger, OVERRIDES)
    try:
        worker.start()
        worker.put("read", read)
        worker.put("write", write)
        worker.wait(lambda: copied(source, sink), "the file to be copied", PATIENCE_S)
        assert Counter(lines(sink)) == Counter(lines(source)), "each once: nothing has failed"
        worker.put("written-by-stranger", {**read, **as_stranger})
        worker.put("read-by-stranger", {**write, "file": str(tmp_path / "never.txt"), **as_stranger})
        assert "TopicAuthorizationException" in failure(worker, "written-by-stranger")
        assert "AuthorizationException" in failure(worker, "read-by-stranger")
        assert not lines(tmp_path / "never.txt")
        # The others go on, and again after the node was away.
        guarded.node.kill()
        guarded.node.start()
        with source.open("a") as more:
            more.writelines(f"line {i}\n" for i in range(500, 700))
        worker.wait(lambda: copied(source, sink), "the rest to be copied", PATIENCE_S)
        assert PASSWORD not in worker.log_text()
    finally:
        worker.kill()


def failure(worker: ConnectWorker, name: str) -> str:
    """Why a connector's task has failed, once it has."""
    worker.wait(lambda: worker.task_states(name) == ["FAILED"], f"{name} to fail", PATIENCE_S)
    return str(worker.tasks(name)[0]["trace"])


def test_a_worker_without_rights_does_not_work(guarded: Guarded, tmp_path: Path) -> None:
    client = guarded.user("nobody")
    worker = ConnectWorker(tmp_path / "one", guarded.node.address, "connect", of_all_clients(client))
    try:
        worker.launch()
        said = worker.wait_end()
        assert "AuthorizationException" in said
        assert PASSWORD not in said
    finally:
        worker.kill()


def test_a_wrong_password_is_said_to_be_wrong(guarded: Guarded, tmp_path: Path, classes: Path) -> None:
    words = GuardedWords(guarded)
    guarded.user("counter")
    client = guarded.security.client_settings("counter", "another's", SCRAM)
    app = WordCountApp(tmp_path / "app", classes, words.node.address, "wc", protocol="classic", client=client)
    try:
        app.start()
        wait_until(lambda: "SaslAuthenticationException" in app.log_text(), PATIENCE_S, "the reason")
    finally:
        app.kill()
