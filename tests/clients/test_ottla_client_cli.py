"""ottla topic, config, produce and consume as a person uses them, against a broker in this process."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.testing.broker import Broker


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


def _as_from_a_terminal() -> None:
    """Also where the tests run in the background of a shell, or under nohup, which have them ignore these."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


class Cli:
    """Runs the command as its own process."""

    def __init__(self, servers: str) -> None:
        self.environment = {**os.environ, "OTTLA_BOOTSTRAP_SERVER": servers}

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "ottla.cli.main", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.environment,
            preexec_fn=_as_from_a_terminal,
        )

    def __call__(self, *words: str, stdin: bytes = b"", code: int = 0) -> tuple[str, str]:
        """(stdout, stderr), with the exit code checked."""
        process = self.start(*words)
        out, err = process.communicate(stdin, timeout=60)
        assert process.returncode == code, f"{words}: exit {process.returncode}\n{out!r}\n{err!r}"
        return out.decode(), err.decode()


@pytest.fixture
def cli(broker: Broker) -> Cli:
    return Cli(broker.bootstrap_servers)


def test_topics(cli: Cli) -> None:
    cli("topic", "create", "orders", "-p", "3", "--config", "retention.ms=60000")
    out, _ = cli("topic", "list")
    assert ["orders", "3", "1"] in [row.split() for row in out.splitlines()]
    _, err = cli("topic", "create", "orders", code=1)
    assert "already exists" in err
    assert "Traceback" not in err
    cli("topic", "create", "orders", "--if-not-exists")
    _, err = cli(
        *("topic", "alter", "orders", "-p", "4", "--unset", "retention.ms", "--config", "segment.ms=7200000")
    )
    assert err == "orders has 4 partitions now\norders: segment.ms=7200000 set, retention.ms taken back\n"
    document = json.loads(cli("topic", "describe", "orders", "-o", "json")[0])[0]
    assert len(document["partitions"]) == 4
    assert document["configs"] == {"segment.ms": "7200000"}
    assert document["partitions"][0]["isr"] == [document["partitions"][0]["leader"]]
    table, err = cli("topic", "describe", "orders", "absent", code=1)
    assert "LEADER" in table
    assert "'absent': does not exist" in err
    cli("topic", "delete", "orders")
    assert "orders" not in cli("topic", "list")[0]
    cli("topic", "delete", "orders", "--if-exists")
    cli("topic", "delete", "orders", code=1)


def test_configurations(cli: Cli) -> None:
    cli("topic", "create", "configured")
    _, err = cli("config", "set", "topic", "configured", "retention.ms=777", "cleanup.policy=compact")
    assert err == "topic configured: retention.ms=777 set, cleanup.policy=compact set\n"
    _, err = cli("config", "set", "topic", "configured", "retention.ms=778", "--validate-only")
    assert err == "topic configured: retention.ms=778 set (only validated, not done)\n"
    assert cli("config", "get", "topic", "configured", "retention.ms") == ("777\n", "")
    rows = json.loads(cli("config", "describe", "topic", "configured", "-o", "json")[0])
    assert {row["name"]: row["value"] for row in rows} == {"retention.ms": "777", "cleanup.policy": "compact"}
    _, err = cli("config", "set", "topic", "configured", "--append", "cleanup.policy=delete")
    assert err == "topic configured: delete added to cleanup.policy\n"
    assert cli("config", "get", "topic", "configured", "cleanup.policy")[0] == "compact,delete\n"
    _, err = cli("config", "unset", "topic", "configured", "retention.ms")
    assert err == "topic configured: retention.ms taken back\n"
    assert cli("config", "get", "topic", "configured", "retention.ms")[0] == "604800000\n"
    _, err = cli("config", "set", "topic", "configured", "retention.ms=soon", code=1)
    assert "retention.ms" in err
    for words in (
        ("config", "set", "topic", "configured", "retention.mss=1"),
        ("topic", "alter", "configured", "--config", "retention.mss=1"),
        ("topic", "create", "misspelt", "--config", "retention.mss=1"),
    ):
        _, err = cli(*words, code=1)
        assert (
            "Unknown topic config name: retention.mss (INVALID_CONFIG); did you mean 'retention.ms'?" in err
        )
        assert err.count("\n") == 1
    _, err = cli("config", "set", "topic", "configured", "zzz=1", code=1)
    assert err.endswith("Unknown topic config name: zzz (INVALID_CONFIG)\n")
    _, err = cli("config", "get", "topic", "configured", "retentionms", code=1)
    assert "did you mean 'retention.ms'" in err
    _, err = cli("config", "set", "cluster", "log.cleaner.threads=2")
    assert err == "cluster: log.cleaner.threads=2 set\n"
    name = "listener.name.plaintext.ssl.keystore.password"
    _, err = cli("config", "set", "broker", "1", f"{name}=geheim")
    assert err == f"broker 1: {name}=[hidden] set\n"
    cli("config", "unset", "broker", "1", name)
    assert "log.cleaner.threads" in cli("config", "describe", "cluster")[0]
    cli("config", "unset", "cluster", "log.cleaner.threads")
    assert "num.io.threads" in cli("config", "describe", "broker", "1", "--all")[0]
    assert cli("config", "describe", "logger", "1", "--all")[0].count("\n") > 1
    assert "did you mean 'topic'" in cli("config", "get", "topc", "x", "y", code=2)[1]
    assert "is a number" in cli("config", "get", "broker", "one", "y", code=2)[1]


def test_records_go_in_and_come_out(cli: Cli) -> None:
    _, err = cli("produce", "-t", "pairs", "-K", ":", "-H", "from=test", stdin=b"a:1\nb:2\nc:3")
    assert "3 records sent to pairs" in err
    out, err = cli("consume", "-t", "pairs", "-e", "-f", r"%t/%p/%o %k=%s [%K,%S] %h\n")
    assert out.splitlines() == [f"pairs/0/{n} {k}={n + 1} [1,1] from=test" for n, k in enumerate("abc")]
    assert "Reached end of topic pairs [0] at offset 3" in err
    envelopes = [json.loads(row) for row in cli("consume", "-t", "pairs", "-eqJ")[0].splitlines()]
    assert [(e["offset"], e["key"], e["payload"], e["headers"]) for e in envelopes] == [
        (n, k, str(n + 1), ["from", "test"]) for n, k in enumerate("abc")
    ]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("-o", "beginning"), "0123456789"),
        (("-o", "7"), "789"),
        (("-o", "-2"), "89"),
        (("-o", "-200"), "0123456789"),
        (("-o", "end"), ""),
        (("-o", "@1040"), "456789"),
        (("-o", "s@1020", "-o", "e@1050"), "234"),
        (("-c", "3"), "012"),
    ],
)
def test_where_reading_begins_and_ends(
    cli: Cli, broker: Broker, options: tuple[str, ...], expected: str
) -> None:
    from ottla.client import Producer

    name = "ranges" + "".join(options).replace("@", "-")
    # The records are as old as time itself: retention would take them while the tests run.
    cli("topic", "create", name, "--config", "retention.ms=-1")
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        for number in range(10):
            producer.send(name, b"%d" % number, timestamp_ms=1000 + number * 10)
    assert cli("consume", "-t", name, "-e", "-q", "-D", "", *options)[0] == expected


def test_delimiters_nulls_and_whole_files(cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("files")
    (folder / "one").write_bytes(b"first\nfile")
    (folder / "two").write_bytes(b"second")
    cli("produce", "-q", "-t", "files", "--whole", str(folder / "one"), str(folder / "two"))
    assert cli("consume", "-t", "files", "-eq", "-D", "|")[0] == "first\nfile|second|"
    cli("produce", "-t", "nulls", "-Z", "-K", "=", "-D", ";", stdin=b"k=;=v;plain")
    out, _ = cli("consume", "-t", "nulls", "-eq", "-Z", "NULL", "-f", r"%k,%s\x0a")
    assert out == "k,NULL\nNULL,v\nNULL,plain\n"
    assert cli("produce", "-q", "-t", "tee", "-T", stdin=b"x\ny\n")[0] == "x\ny\n"


def test_a_line_goes_out_when_it_is_typed_and_is_printed_when_it_comes(cli: Cli) -> None:
    cli("topic", "create", "live")
    reader = cli.start("consume", "-t", "live", "-q", "-c", "2")
    writer = cli.start("produce", "-t", "live", "-q")
    assert writer.stdin is not None
    assert reader.stdout is not None
    writer.stdin.write(b"one\n")
    writer.stdin.flush()
    assert reader.stdout.readline() == b"one\n"
    writer.communicate(b"two\n", timeout=60)
    assert reader.communicate(timeout=60)[0] == b"two\n"
    assert (reader.returncode, writer.returncode) == (0, 0)


def test_ctrl_c_is_quiet(cli: Cli) -> None:
    cli("produce", "-t", "stopped", "-q", stdin=b"x\n")
    reader = cli.start("consume", "-t", "stopped", "-q")
    assert reader.stdout is not None
    assert reader.stdout.readline() == b"x\n"
    reader.send_signal(signal.SIGINT)
    out, err = reader.communicate(timeout=60)
    assert (reader.returncode, out, err) == (130, b"", b"")


def test_a_closed_pipe_is_quiet(cli: Cli) -> None:
    cli("produce", "-t", "much", "-q", stdin=b"some text on a line\n" * 50_000)
    reader = cli.start("consume", "-t", "much", "-e", "-q")
    assert reader.stdout is not None
    assert reader.stdout.readline() == b"some text on a line\n"
    reader.stdout.close()
    assert reader.wait(timeout=60) == 0
    assert reader.stderr is not None
    assert reader.stderr.read() == b""


def test_errors_are_one_line_that_helps(cli: Cli) -> None:
    _, err = cli("topic", "list", "-b", "127.0.0.1:1", code=1)
    assert err.splitlines() == [
        "ottla: no broker can be reached: 127.0.0.1:1: connection refused; "
        "start one with `ottla serve`, or name another with -b HOST:PORT"
    ]
    assert cli("consume", "-t", "absent", code=1)[1] == (
        "ottla: topic 'absent': does not exist (UNKNOWN_TOPIC_OR_PARTITION)\n"
    )
    assert "-o soon" in cli("consume", "-t", "x", "-o", "soon", code=2)[1]
    assert "%z" in cli("consume", "-t", "x", "-f", "%z", code=2)[1]
    assert "'linger.ms'" in cli("produce", "-t", "x", "-X", "linger.msec=1", code=2)[1]
    assert "KEY=VALUE" in cli("produce", "-t", "x", "-X", "linger.ms", code=2)[1]
    assert cli("produce", "-t", "x", "/no/such/file", code=1)[1] == (
        "ottla: /no/such/file: No such file or directory\n"
    )


def test_settings_of_the_client_come_from_a_file_and_the_command_line(
    cli: Cli, broker: Broker, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("client") / "client.properties"
    file.write_text(
        f"bootstrap.servers={broker.bootstrap_servers}\nrequest.timeout.ms=20000\nlinger.ms=3\ngroup.id=x\n"
        "security.protocol=PLAINTEXT\nacme.interceptor=y\n"
    )
    elsewhere = Cli("127.0.0.1:1")  # the file says where the broker is
    for words in (
        *(("topic", "list"), ("topic", "create", "from-a-file", "--if-not-exists"), ("group", "list")),
        *(("config", "describe", "cluster"), ("txn", "list"), ("consume", "-t", "from-a-file", "-e")),
        ("produce", "-t", "from-a-file"),
    ):
        _, err = elsewhere(*words, "--command-config", str(file))
        assert f"ottla: ignored: acme.interceptor ({file}, line 6) is no setting of this client\n" in err
        assert "linger" not in err
    # Each wins over the one before: the variable, the file, -X, -b.
    named = ("-X", f"bootstrap.servers={broker.bootstrap_servers}")
    elsewhere("topic", "list", *named)
    _, err = elsewhere("topic", "list", *named, "-b", "127.0.0.1:2", code=1)
    assert "127.0.0.1:2: connection refused" in err
    assert "'request.timeout.ms'" in cli("topic", "list", "-X", "request.timeout=1", code=2)[1]
    file.write_text("ssl.no.such=x\n")
    _, err = cli("topic", "list", "--command-config", str(file), code=2)
    assert err == f"ottla: ssl.no.such ({file}, line 1) is not supported by this client yet\n"
    file.write_text("sasl.mechanism=PLAIN\n")
    _, err = cli("topic", "list", "--command-config", str(file), code=2)
    assert "sasl.mechanism is for a security.protocol of SASL_SSL or SASL_PLAINTEXT" in err
    _, err = cli("topic", "list", "--command-config", "/no/such/file", code=1)
    assert err == "ottla: /no/such/file: No such file or directory\n"


def test_a_broker_that_is_not_there_is_not_waited_for(cli: Cli) -> None:
    for words in (("describe", "broker", "77"), ("set", "broker", "77", "log.cleaner.threads=2")):
        _, err = cli("config", *words, code=1)
        assert err == "ottla: there is no broker 77 in the cluster; it has 1\n"


def test_null_is_shown_as_kcat_shows_it(cli: Cli) -> None:
    cli("topic", "create", "no-values")
    _, err = cli("produce", "-t", "no-values", "-K", ":", "-Z", stdin=b"k:\n")
    assert err == "1 record sent to no-values\n"
    assert cli("consume", "-t", "no-values", "-Z", "-e")[0] == "NULL\n"
    assert cli("consume", "-t", "no-values", "-Z", "-", "-e")[0] == "-\n"


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_is_nobody_elses(cli: Cli, closed: str) -> None:
    words = f"{sys.executable} -m ottla.cli.main topic list {closed}"
    done = subprocess.run(["sh", "-c", words], env=cli.environment, timeout=60, capture_output=True)
    assert done.returncode == 0, done.stderr


def test_the_samples_of_the_pipelines_say_what_they_sent(cli: Cli, broker: Broker) -> None:
    def samples(address: str) -> subprocess.CompletedProcess[str]:
        words = ("-m", "ottla.examples.samples", "enrichment", "-n", "10", "-b", address)
        return subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=60)

    done = samples(broker.bootstrap_servers)
    sent = {row.split()[-1]: int(row.split()[0]) for row in done.stderr.splitlines()}
    assert (done.returncode, set(sent)) == (0, {"customers", "orders", "order.payments"})
    for topic, count in sent.items():
        assert len(cli("consume", "-t", topic, "-e", "-q")[0].splitlines()) == count
    closed = samples("127.0.0.1:1")
    assert closed.returncode == 1
    assert closed.stderr == "samples: no broker can be reached: 127.0.0.1:1: connection refused\n"


def test_a_misspelt_topic_is_guessed_at(cli: Cli) -> None:
    cli("topic", "create", "letters-to-milena")
    for words in (
        ("topic", "describe", "letters-to-milana"),
        ("topic", "delete", "letters-to-milana"),
        ("consume", "-t", "letters-to-milana"),
        ("consume", "-t", "letters-to-milana", "-g", "readers"),
    ):
        _, err = cli(*words, code=1)
        assert "did you mean 'letters-to-milena'?" in err, words
    _, err = cli("topic", "describe", "nothing-like-it-at-all", code=1)
    assert "did you mean" not in err


def test_filters_encodings_and_times(cli: Cli) -> None:
    cli("topic", "create", "filtered")
    people = b'a:{"age": 17}\nb:{"age": 30}\nc:nothing\n'
    cli("produce", "-t", "filtered", "-K", ":", stdin=people)
    shown, _ = cli("consume", "-t", "filtered", "-e", "-K", "=", "--filter", "value.age >= 18")
    assert shown == 'b={"age": 30}\n'
    shown, _ = cli("consume", "-t", "filtered", "-c", "1", "-q", "--filter", "key ~ [bc]", "-f", "%k\\n")
    assert shown == "b\n"
    assert cli("consume", "-t", "filtered", "-e", "-q", "-o", "@1h", "-f", "%k ")[0] == "a b c "
    assert cli("consume", "-t", "filtered", "-e", "-q", "-o", "e@1h", "-f", "%k ")[0] == ""
    cli("produce", "-t", "filtered", "--value-encoding", "hex", stdin=b"00ff\n")
    shown, _ = cli("consume", "-t", "filtered", "-e", "-q", "-o", "-1", "--value-encoding", "base64")
    assert shown == "AP8=\n"
    _, err = cli("produce", "-t", "filtered", "--value-encoding", "hex", stdin=b"0g\n", code=2)
    assert err == "ottla: '0g' is not hex\n"


def test_a_profile_says_where_the_brokers_are(broker: Broker, tmp_path: Path) -> None:
    cli = Cli("127.0.0.1:1")
    cli.environment["XDG_CONFIG_HOME"] = str(tmp_path)
    cli("topic", "list", code=1)
    del cli.environment["OTTLA_BOOTSTRAP_SERVER"], cli.environment["OTTLA_PROFILE"]
    cli("profile", "set", "here", f"bootstrap.servers={broker.bootstrap_servers}", "linger.ms=5")
    cli("topic", "create", "by-profile")
    cli("produce", "-t", "by-profile", "--profile", "here", stdin=b"hello\n")
    assert cli("consume", "-t", "by-profile", "-e", "-q")[0] == "hello\n"
    _, err = cli("topic", "list", "--profile", "their", code=2)
    assert "did you mean 'here'?" in err


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_the_shell_completes_names(cli: Cli, tmp_path: Path) -> None:
    cli("topic", "create", "completed-one", "completed-two")
    command = tmp_path / "ottla"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ottla.cli.main "$@"\n')
    command.chmod(0o755)
    script, _ = cli("completion", "bash")
    script += f"""
        COMP_WORDS=('{command}' topic describe completed-o); COMP_CWORD=3
        for attempt in 1 2 3 4 5 6 7 8 9; do _ottla; [ -n "$COMPREPLY" ] && break; done
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """  # again, because a machine that is busy may take longer than somebody at a keyboard waits
    done = subprocess.run(["bash"], input=script, capture_output=True, text=True, env=cli.environment)
    assert (done.stdout.split(), done.stderr) == (["completed-one"], "")
