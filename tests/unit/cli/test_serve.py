"""What `ottla serve` makes of its command line before a node starts, and `ottla storage`."""

import asyncio
import errno
import json
import os
import re
import shutil
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from ottla.cli.args import CliError, UsageError, parse
from ottla.cli.main import main
from ottla.cli.serve import (
    COMMAND,
    default_data_dir,
    load_config,
    read_settings,
    report_kernel,
    report_without_effect,
)
from ottla.config.broker import BrokerConfig
from ottla.config.effective import advice, check_protection
from ottla.config.errors import ConfigError
from ottla.model.clock import SystemClock
from ottla.node import formatting
from ottla.node.formatting import ensure_formatted, format_directory
from ottla.server.network.socket_server import Acceptor, SocketServer
from ottla.storage.dirs.meta_properties import MetaProperties, MetaPropertiesError, read_meta_properties

Capture = pytest.CaptureFixture[str]


def _load(words: list[str], environ: dict[str, str] | None = None) -> BrokerConfig:
    return load_config(parse(COMMAND, words, "ottla serve"), environ or {})


def test_a_list_that_names_the_data_directory_stands(tmp_path: Path) -> None:
    config = _load(["--data-dir", str(tmp_path), "-X", f"log.dirs={tmp_path},{tmp_path / 'more'}"])
    assert config.log_dirs == (str(tmp_path), str(tmp_path / "more"))


def test_the_data_directory_is_another_way_to_say_log_dirs(tmp_path: Path) -> None:
    config = _load(["--data-dir", str(tmp_path), "-X", "log.dirs=/elsewhere"])
    assert config.log_dirs == (str(tmp_path),)


def test_without_a_directory_the_data_is_kept_where_data_is_kept() -> None:
    assert default_data_dir({"XDG_DATA_HOME": "/x"}) == Path("/x/ottla")
    assert default_data_dir({"HOME": "/home/u"}) == Path("/home/u/.local/share/ottla")
    settings = read_settings(None, None, [], {"HOME": "/home/u"})
    assert settings.text("log.dirs") == "/home/u/.local/share/ottla"


def test_log_dir_alone_is_enough() -> None:
    assert _load(["-X", "log.dir=/d"]).log_dirs == ("/d",)


def test_file_environment_and_options_meet(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text(f"log.dirs={tmp_path}/a\nnum.partitions=2\nbroker.rack=r1\n")
    config = _load(
        ["-c", str(file), "-X", "num.partitions=4"], {"KAFKA_NUM_PARTITIONS": "3", "KAFKA_BROKER_RACK": "r2"}
    )
    assert (config["num.partitions"], config["broker.rack"], config.log_dirs) == (4, "r2", (f"{tmp_path}/a",))


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(UsageError, match="--config /no/such: there is no such file"):
        _load(["--config", "/no/such"])


def test_a_variable_that_means_nothing_is_said_so(tmp_path: Path, capsys: Capture) -> None:
    _load(["-d", str(tmp_path)], {"KAFKA_XYZZY_PLUGH": "1", "KAFKA_HEAP_OPTS": "-Xmx1g"})
    expected = "ottla: environment variable KAFKA_XYZZY_PLUGH is no broker setting; ignored\n"
    assert capsys.readouterr().err == expected


def test_keys_without_effect_are_told_of_once(tmp_path: Path, capsys: Capture) -> None:
    report_without_effect(_load(["-d", str(tmp_path), "-X", "num.io.threads=9", "-X", "num.partitions=2"]))
    assert capsys.readouterr().err == "ottla: known, but without effect yet: num.io.threads\n"
    report_without_effect(_load(["-d", str(tmp_path)]))
    assert capsys.readouterr().err == ""


def test_a_port_is_another_way_to_say_listeners(tmp_path: Path) -> None:
    config = _load(["-d", str(tmp_path), "--port", "19092"])
    assert [str(listener) for listener in config.listeners] == [
        "PLAINTEXT://127.0.0.1:19092",
        "CONTROLLER://127.0.0.1:19093",
    ]
    with pytest.raises(UsageError, match=r"--port and listeners \(-X\): one or the other"):
        _load(["-d", str(tmp_path), "--port", "0", "-X", "listeners=PLAINTEXT://:9092"])
    with pytest.raises(UsageError, match="--port 65536: a port is a number from 0 to 65535"):
        _load(["-d", str(tmp_path), "-p", "65536"])


def test_a_node_that_was_told_nothing_does_not_keep_groups_waiting(tmp_path: Path) -> None:
    key = "group.initial.rebalance.delay.ms"
    assert _load(["-d", str(tmp_path)])[key] == 0
    assert _load(["-d", str(tmp_path), "-X", f"{key}=1000"])[key] == 1000
    file = tmp_path / "server.properties"
    file.write_text(APACHE)
    assert _load(["-c", str(file)])[key] == 3000, (
        "whoever writes a cluster's configuration gets Kafka's default"
    )


def test_a_broker_on_the_slow_kernel_says_so(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr("ottla.records.kernel.KERNEL", "c")
    report_kernel()
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("ottla.records.kernel.KERNEL", "python")
    monkeypatch.delenv("OTTLA_KERNEL", raising=False)
    report_kernel()
    assert "not the compiled one: install a C compiler" in capsys.readouterr().err
    monkeypatch.setenv("OTTLA_KERNEL", "python")
    report_kernel()
    assert capsys.readouterr().err.endswith("not the compiled one: OTTLA_KERNEL=python asks for it\n")


# As the distribution of Apache Kafka 4.3.1 has it in config/server.properties.
APACHE = """\
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL
num.network.threads=3
num.io.threads=8
log.dirs=/tmp/kraft-combined-logs
num.recovery.threads.per.data.dir=2
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
"""


def test_a_file_that_apache_starts_with_is_taken(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "server.properties"
    file.write_text(APACHE + "offsets.topic.min.isr=1\nacme.agent=on\n")
    config = _load(["-c", str(file), "-d", str(tmp_path / "data")], {"KAFKA_NUM_PARTITION": "2"})
    check_protection(config)
    report_without_effect(config)
    assert (config.node_id, len(config.broker_listeners), len(config.controller_listeners)) == (1, 1, 1)
    warnings = capsys.readouterr().err.splitlines()
    assert [line.partition(" (")[0] for line in warnings] == [
        "ottla: ignored: unknown key offsets.topic.min.isr",
        "ottla: ignored: unknown key acme.agent",
        "ottla: ignored: unknown key num.partition",
        "ottla: known, but without effect yet: num.io.threads, num.network.threads",
    ]


def test_settings_that_promise_protection_keep_a_node_from_starting(tmp_path: Path, capsys: Capture) -> None:
    file, data = tmp_path / "server.properties", tmp_path / "data"
    file.write_text(APACHE + "sasl.server.callback.handler.class=com.example.Handler\n")
    words = ["-X", "sasl.jaas.config=geheim"]
    assert main(["serve", "-c", str(file), "-d", str(data), *words]) == 2
    error = capsys.readouterr().err
    assert f"sasl.jaas.config (-X), sasl.server.callback.handler.class ({file}, line 19)" in error
    assert "geheim" not in error
    assert error.count("\n") == 1
    assert not data.exists()


def test_formatting_gives_a_directory_its_ids(tmp_path: Path, capsys: Capture) -> None:
    data = tmp_path / "data"
    assert main(["storage", "format", "-d", str(data), "-t", "a-cluster", "-X", "node.id=7"]) == 0
    assert capsys.readouterr().err == f"formatted {data} for node 7 of cluster a-cluster\n"
    meta = read_meta_properties(data)
    assert meta is not None
    assert (meta.cluster_id, meta.node_id) == ("a-cluster", 7)
    assert _load(["-d", str(data)]).node_id == 7


def test_a_node_id_other_than_the_directorys_is_a_mistake(tmp_path: Path) -> None:
    main(["storage", "format", "-d", str(tmp_path), "-t", "c", "-X", "node.id=7"])
    with pytest.raises(CliError, match=r"node.id=8 \(-X\), but .* was formatted for node 7") as caught:
        _load(["-d", str(tmp_path), "-X", "node.id=8"])
    assert caught.value.exit_code == 1


def test_a_directory_is_formatted_once(tmp_path: Path, capsys: Capture) -> None:
    words = ["storage", "format", "-d", str(tmp_path)]
    assert main(words) == 0
    capsys.readouterr()
    assert main(words) == 1
    assert (
        capsys.readouterr().err
        == f"ottla: {tmp_path} is formatted already; --ignore-formatted passes over it\n"
    )
    assert main([*words, "-g"]) == 0
    assert capsys.readouterr().err == "every directory is formatted already\n"
    assert main([*words, "-g", "-t", "another"]) == 1
    assert "not another" in capsys.readouterr().err


def test_new_directories_join_the_cluster_of_the_old(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    main(["storage", "format", "-d", str(one), "-t", "c"])
    assert main(["storage", "format", "-X", f"log.dirs={one},{two}", "-g"]) == 0
    meta = read_meta_properties(two)
    assert meta is not None
    assert meta.cluster_id == "c"


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["-r", "9.9"], 2, "Unknown metadata.version '9.9'"),
        (["-f", "group.version"], 2, "--feature group.version: expected NAME=LEVEL"),
        (["-f", "group.version=9"], 1, "group.version"),
        (["-f", "nonsense=1"], 1, "nonsense"),
    ],
)
def test_wrong_releases_and_features(
    words: list[str], code: int, message: str, tmp_path: Path, capsys: Capture
) -> None:
    assert main(["storage", "format", "-d", str(tmp_path / "d"), *words]) == code
    captured = capsys.readouterr().err
    assert message in captured
    assert captured.count("\n") == 1
    assert read_meta_properties(tmp_path / "d") is None


def test_what_directories_say_of_themselves(tmp_path: Path, capsys: Capture) -> None:
    data, empty = tmp_path / "data", tmp_path / "empty"
    empty.mkdir()
    main(["storage", "format", "-d", str(data), "-t", "c", "-r", "4.1"])
    (data / "topic-0").mkdir()
    (data / "not a partition").mkdir()
    capsys.readouterr()
    dirs = f"log.dirs={data},{empty},{tmp_path / 'none'}"
    assert main(["storage", "info", "-X", dirs, "-o", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["state"] for row in rows] == ["formatted", "empty", "missing"]
    first = rows[0]
    assert (first["cluster_id"], first["node_id"], first["partitions"]) == ("c", 1, 1)
    assert (first["release"], first["quorum"], first["clean_stop"]) == ("4.1-IV1", "voters in the log", False)
    assert main(["storage", "info", "-X", dirs]) == 0
    assert capsys.readouterr().out.startswith("DIRECTORY")


def test_directories_that_do_not_belong_together(tmp_path: Path, capsys: Capture) -> None:
    for name in ("a", "b"):
        main(["storage", "format", "-d", str(tmp_path / name), "-t", name])
    capsys.readouterr()
    assert main(["storage", "info", "-X", f"log.dirs={tmp_path}/a,{tmp_path}/b"]) == 1
    assert capsys.readouterr().err == "ottla: the directories do not belong together: cluster.id is a, b\n"


def test_an_id_is_a_new_one_each_time(capsys: Capture) -> None:
    for _ in range(2):
        assert main(["storage", "random-uuid"]) == 0
    first, second = capsys.readouterr().out.split()
    assert len(first) == 22
    assert first != second


def test_a_cluster_id_that_contradicts_the_directory(tmp_path: Path, capsys: Capture) -> None:
    main(["storage", "format", "-d", str(tmp_path), "-t", "c"])
    capsys.readouterr()
    assert main(["serve", "-d", str(tmp_path), "--cluster-id", "d"]) == 1
    assert capsys.readouterr().err == f"ottla: --cluster-id d: {tmp_path} belongs to cluster c\n"


@pytest.mark.parametrize("variable", ["CLUSTER_ID", "KAFKA_CLUSTER_ID"])
def test_a_cluster_id_in_the_environment_gives_way(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    main(["storage", "format", "-d", str(tmp_path), "-t", "c"])
    capsys.readouterr()
    monkeypatch.setenv(variable, "d")
    monkeypatch.setattr("ottla.node.main.serve", lambda config, cluster_id: 0)
    assert main(["serve", "-d", str(tmp_path)]) == 0
    assert capsys.readouterr().err == f"ottla: {variable}=d is not used: {tmp_path} belongs to cluster c\n"


# -- a node of several ------------------------------------------------------------------------------------------

VOTERS = "controller.quorum.voters=1@127.0.0.1:19093,2@127.0.0.1:19094"
SERVERS = "controller.quorum.bootstrap.servers=127.0.0.1:19093,127.0.0.1:19094"
CONTROLLER = ("process.roles=controller", "listeners=CONTROLLER://127.0.0.1:0", "node.id=1")
BROKER = (
    "process.roles=broker",
    "controller.listener.names=CONTROLLER",
    "listeners=PLAINTEXT://127.0.0.1:0",
    "node.id=3",
)
BOTH = ("listeners=PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0", "node.id=1")


def _settings(*pairs: str) -> list[str]:
    return [word for pair in pairs for word in ("-X", pair)]


@pytest.mark.parametrize(
    ("settings", "options", "words"),
    [
        ((*CONTROLLER, VOTERS), [], "give each the same cluster id with --cluster-id ID or CLUSTER_ID=ID"),
        ((*BOTH, VOTERS), [], "give each the same cluster id"),
        ((*BROKER, VOTERS), [], "give each the same cluster id"),
        ((*BROKER, SERVERS), [], "give each the same cluster id"),
        ((*CONTROLLER, SERVERS), [], "--standalone (the first controller of a new quorum)"),
        ((*CONTROLLER, SERVERS), ["--cluster-id", "c"], "--no-initial-controllers (one that joins)"),
        ((*BOTH, SERVERS), [], "use `ottla storage format --cluster-id ID` with"),
    ],
)
def test_an_empty_directory_does_not_begin_a_second_cluster(
    tmp_path: Path, capsys: Capture, settings: tuple[str, ...], options: list[str], words: str
) -> None:
    data = tmp_path / "data"
    assert main(["serve", "-d", str(data), *options, *_settings(*settings)]) == 1
    said = capsys.readouterr().err
    assert f"{data} is not formatted" in said
    assert words in said
    assert said.count("\n") == 1
    assert not data.exists()


@pytest.mark.parametrize(
    "settings", [(*BOTH, VOTERS), (*CONTROLLER, VOTERS), (*BROKER, VOTERS), (*BROKER, SERVERS)]
)
def test_with_the_cluster_id_there_is_nothing_to_guess(tmp_path: Path, settings: tuple[str, ...]) -> None:
    config = _load(["-d", str(tmp_path), *_settings(*settings)])
    meta = ensure_formatted(config, (), 0, "c")
    assert (meta.cluster_id, meta.node_id) == ("c", config.node_id)
    assert not (tmp_path / "__cluster_metadata-0").exists(), (
        "the voters are the configuration's, or elsewhere"
    )


def test_a_voter_that_has_lost_its_metadata_log_is_not_formatted_unasked(tmp_path: Path) -> None:
    logs, metadata = tmp_path / "logs", tmp_path / "metadata"
    words = ["-d", str(logs), "-X", f"metadata.log.dir={metadata}", *_settings(*BOTH, VOTERS)]
    ensure_formatted(_load(words), (), 0, "c")
    shutil.rmtree(metadata)
    with pytest.raises(MetaPropertiesError, match="give each the same cluster id"):
        ensure_formatted(_load(words), (), 0)
    assert ensure_formatted(_load(words), (), 0, "c").cluster_id == "c"


@pytest.mark.parametrize("cluster_id", [None, "c"])
def test_a_node_by_itself_does_not_begin_anew_where_its_metadata_is_missing(
    tmp_path: Path, cluster_id: str | None
) -> None:
    """A disk that is not mounted is an empty directory, and all logs on the others would be nobody's."""
    one, two = tmp_path / "one", tmp_path / "two"
    words = ["-X", f"log.dirs={two},{one}", "-X", f"metadata.log.dir={one}"]
    ensure_formatted(_load(words), (), 0, "c")
    shutil.rmtree(one)
    with pytest.raises(MetaPropertiesError, match=f"{one} is not formatted, but {two} is"):
        ensure_formatted(_load(words), (), 0, cluster_id)
    assert not one.exists()
    assert main(["storage", "format", *words, "--ignore-formatted"]) == 0
    assert ensure_formatted(_load(words), (), 0).cluster_id == "c"
    shutil.rmtree(two)
    assert ensure_formatted(_load(words), (), 0).cluster_id == "c", "others may be empty"


def test_the_metadata_directory_is_formatted_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is interrupted after that goes on the next time."""
    one, two = tmp_path / "one", tmp_path / "two"
    words = ["-X", f"log.dirs={two}", "-X", f"metadata.log.dir={one}"]

    formatted: list[Path] = []

    def fails(directory: Path, *args: Any, **named: Any) -> MetaProperties:
        if formatted:
            raise OSError("no space")
        formatted.append(directory)
        return format_directory(directory, *args, **named)

    with monkeypatch.context() as patched:
        patched.setattr(formatting, "format_directory", fails)
        with pytest.raises(OSError, match="no space"):
            ensure_formatted(_load(words), (), 0)
    ensure_formatted(_load(words), (), 0)
    assert read_meta_properties(two) is not None


def test_a_broker_may_be_given_another_directory(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    ensure_formatted(_load(["-d", str(one), *_settings(*BROKER, SERVERS)]), (), 0, "c")
    config = _load(
        ["-X", f"log.dirs={two},{one}", "-X", f"metadata.log.dir={one}", *_settings(*BROKER, SERVERS)]
    )
    ensure_formatted(config, (), 0)
    meta = read_meta_properties(two)
    assert meta is not None
    assert meta.cluster_id == "c"


def test_a_metadata_log_in_the_wrong_place_is_not_passed_over(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    ensure_formatted(_load(["-d", str(one)]), (), 0)
    with pytest.raises(MetaPropertiesError, match="is a metadata log, but that of this node is in"):
        ensure_formatted(_load(["-X", f"log.dirs={two},{one}"]), (), 0)
    assert not two.exists()


def test_directories_of_another_cluster_or_node(tmp_path: Path, capsys: Capture) -> None:
    for name, node in (("a", 1), ("b", 1), ("c", 2)):
        main(["storage", "format", "-d", str(tmp_path / name), "-t", name, "-X", f"node.id={node}"])
    capsys.readouterr()
    for dirs in (f"{tmp_path}/a,{tmp_path}/b", f"{tmp_path}/a,{tmp_path}/c"):
        words = [f"log.dirs={dirs}", "listeners=PLAINTEXT://127.0.0.1:0", f"metadata.log.dir={tmp_path}/a"]
        assert main(["serve", *_settings(*words)]) == 1
        said = capsys.readouterr().err
        assert "belongs to another node or cluster" in said or "is a metadata log" in said
        assert said.count("\n") == 1


def test_a_node_of_several_has_an_id_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"node\.id is not set"):
        _load(["-d", str(tmp_path), *_settings(VOTERS)])
    assert _load(["-d", str(tmp_path), "-X", "controller.quorum.voters=1@127.0.0.1:9093"]).node_id == 1
    main(["storage", "format", "-d", str(tmp_path), "-t", "c", *_settings("node.id=2", VOTERS)])
    assert _load(["-d", str(tmp_path), *_settings(VOTERS)]).node_id == 2


def test_policies_and_heartbeats_that_are_hardly_meant(tmp_path: Path) -> None:
    words = [
        "create.topic.policy.class.name=a.B",
        "controller.listener.names=A,B",
        *BROKER[2:],
        BROKER[0],
        SERVERS,
    ]
    broker = _load(["-d", str(tmp_path), *_settings(*words, "broker.heartbeat.interval.ms=5000")])
    assert [line.partition(":")[0] for line in advice(broker)] == [
        "only a controller asks create.topic.policy.class.name",
        "controller.listener.names",
        "broker.heartbeat.interval.ms=5000 is more than half of broker.session.timeout.ms=9000",
    ]
    assert advice(_load(["-d", str(tmp_path)])) == []


@pytest.mark.parametrize("kept", ["notes.txt", "orders-0/00000000000000000000.log"])
def test_a_directory_that_holds_something_else_is_left_alone(
    tmp_path: Path, capsys: Capture, kept: str
) -> None:
    (tmp_path / kept).parent.mkdir(exist_ok=True)
    (tmp_path / kept).write_text("mine")
    assert main(["serve", "-d", str(tmp_path), "-X", "listeners=PLAINTEXT://127.0.0.1:0"]) == 1
    name = kept.partition("/")[0]
    assert f"has no meta.properties, but it is not empty ({name})" in capsys.readouterr().err
    assert [entry.name for entry in tmp_path.iterdir()] == [name]


def test_a_directory_half_formatted_counts_as_empty(tmp_path: Path) -> None:
    config = BrokerConfig.of({"log.dirs": str(tmp_path), "listeners": "PLAINTEXT://127.0.0.1:0"})
    (tmp_path / "lost+found").mkdir()
    ensure_formatted(config, (), 0)
    (tmp_path / "meta.properties").unlink()
    assert ensure_formatted(config, (), 0).node_id == 1


def test_an_address_that_is_not_ours_is_told_once(tmp_path: Path, capsys: Capture) -> None:
    # 192.0.2.0/24 is for documentation (RFC 5737).
    assert main(["serve", "-d", str(tmp_path / "d"), "-X", "listeners=PLAINTEXT://192.0.2.1:9092"]) == 2
    words = "ottla: cannot listen on PLAINTEXT://192.0.2.1:9092: cannot assign requested address\n"
    assert capsys.readouterr().err == words


@pytest.mark.parametrize("is_serving", [True, False])
def test_an_address_that_is_taken_is_told_once(tmp_path: Path, capsys: Capture, is_serving: bool) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        if is_serving:
            taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert main(["serve", "-d", str(tmp_path / "d"), "-X", f"listeners=PLAINTEXT://{address}"]) == 2
    words = f"ottla: cannot listen on PLAINTEXT://{address}: the address is in use\n"
    assert capsys.readouterr().err == words


def test_an_address_that_is_lost_before_it_is_served_is_told_once(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def start(self: Acceptor) -> None:
        raise OSError(errno.EADDRINUSE, "Address already in use")

    monkeypatch.setattr(Acceptor, "start", start)
    assert main(["serve", "-d", str(tmp_path / "d"), "-X", "listeners=PLAINTEXT://127.0.0.1:0"]) == 2
    *_, last = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"ottla: cannot listen on CONTROLLER://127\.0\.0\.1:\d+: the address is in use", last)


def test_an_empty_data_directory_name_is_not_the_working_directory() -> None:
    with pytest.raises(UsageError, match="the name is empty"):
        read_settings(None, "", [], {})


def test_a_pipe_is_a_file_too(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=("num.partitions=7\n",))
    writer.start()
    settings = read_settings(str(pipe), str(tmp_path), [], {})
    writer.join()
    assert settings.text("num.partitions") == "7"


async def _advertised(listeners: str, caplog: pytest.LogCaptureFixture) -> tuple[list[str], list[str]]:
    config = BrokerConfig.of({"log.dirs": "/nowhere", "listeners": listeners})
    sockets = SocketServer(config, clock=SystemClock())
    await sockets.bind()
    hosts = [endpoint.host for endpoint in sockets.advertised(config.advertised_broker_listeners)]
    sockets.close()
    return hosts, [record.getMessage() for record in caplog.records]


def test_an_address_nobody_else_can_use_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    hosts, warnings = asyncio.run(_advertised("PLAINTEXT://0.0.0.0:0", caplog))
    assert hosts == ["127.0.0.1"]
    assert len(warnings) == 1
    assert "set advertised.listeners" in warnings[0]
    caplog.clear()
    assert asyncio.run(_advertised("PLAINTEXT://127.0.0.1:0", caplog)) == (["127.0.0.1"], [])
