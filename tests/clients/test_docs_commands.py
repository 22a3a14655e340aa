"""The commands of README and docs, typed as they stand there, in a home and a directory of their own.

Fenced blocks are run in their order, each document against a broker that its own `ottla serve` has started; what is
in running text (`ottla ...`) is parsed, and so are blocks of `sh`, which need more than that: users and passwords
(test_secure_node.py). Only ports and the directories of somebody's server are put in other places.
Spark's documents and `ottla pipeline` have tests of their own (tests/spark).
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.interop.process import REPO, free_ports
from tests.unit.cli.test_serve import APACHE

from ottla.cli import args as arguments
from ottla.cli.main import COMMANDS, load
from ottla.client import Producer

DOCUMENTS = ["README.md", *sorted(str(path.relative_to(REPO)) for path in (REPO / "docs").glob("*.md"))]
OF_SPARK = re.compile(r"docs/(spark|pipelines)")
TIMEOUT_S = 120

# What is not run, and why.
NOT_RUN = {
    "ottla group lag clicks.per_minute": "the group of a pipeline: tests/spark",
}
# What ends with an error on a cluster without the trouble it is for, and what it says then.
IN_VAIN = {
    "ottla txn abort -t orders -p 0 --start-offset 4711": "4711",
}


class Typed(NamedTuple):
    """A command of a document."""

    document: str
    line: str


def blocks(document: str, wanted: str = "") -> list[list[str]]:
    """The commands of each fenced block that has any, continued lines joined and comments taken off."""
    text = (REPO / document).read_text().replace("\\\n", " ")
    found = []
    for language, body in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        if language != wanted:
            continue
        lines = [re.sub(r"\s+# .*$", "", line).strip() for line in body.splitlines()]
        commands = [" ".join(line.split()) for line in lines if re.search(r"(^|\| *)ottla [a-z]", line)]
        # The one line that a broker prints begins like a command.
        commands = [line for line in commands if not line.startswith(("ottla node ", "ottla pipeline "))]
        if commands:
            found.append(commands)
    return found


def spans(document: str) -> list[str]:
    """The commands in running text."""
    text = re.sub(r"^```.*?^```$", "", (REPO / document).read_text(), flags=re.MULTILINE | re.DOTALL)
    found = [" ".join(span.split()) for span in re.findall(r"`(ottla [a-z][^`]*)`", text)]
    return [span for span in found if not span.startswith("ottla pipeline ")]


def every_command() -> list[Typed]:
    return [
        Typed(document, line)
        for document in DOCUMENTS
        for line in [
            *spans(document),
            *(line for kind in ("", "sh") for block in blocks(document, kind) for line in block),
        ]
    ]


@pytest.mark.parametrize("typed", every_command(), ids=lambda typed: f"{typed.document}: {typed.line}")
def test_every_command_there_is_can_be_typed(typed: Typed) -> None:
    """Its words are commands and options of ours; values may stand for others."""
    words = shlex.split((typed.line.partition("| ")[2] or typed.line).removesuffix("&"))[1:]
    words = words[: words.index(">")] if ">" in words else words
    command, path = load(words[0]), ["ottla", words.pop(0)]
    while command.run is None and words and not words[0].startswith("-"):
        path.append(words[0])
        command = command.commands[words.pop(0)]
    # A group of commands may be spoken of as such, and a command without what it needs.
    given = {word.partition("=")[0] for word in words if word.startswith("-")}
    declared = {flag for each in command.arguments for flag in each.flags if each.is_option}
    short = {word for word in given if re.fullmatch(r"-[A-Za-z]+", word)}
    assert given - short <= declared, f"{' '.join(path)} has no {given - short - declared}"
    assert {word[:2] for word in short} <= declared
    if command.run is not None and words:
        arguments.parse(command, words, " ".join(path))


def test_the_documents_have_commands() -> None:
    found = [line for document in DOCUMENTS for block in blocks(document) for line in block]
    assert len(found) > 25
    assert {line.split()[1] for line in found if line.startswith("ottla ")} <= COMMANDS.keys()
    assert NOT_RUN.keys() | IN_VAIN.keys() <= set(found), "what is excused is still there"


class Shell:
    """A person with an empty home, a directory of their own and `ottla` on the path."""

    def __init__(self, where: Path) -> None:
        self.work, home = where / "work", where / "home"
        for directory in (self.work, home, where / "srv"):
            directory.mkdir()
        self.data = home / ".local" / "share" / "ottla"
        self._moved = {"/var/lib/kafka/data": str(self.data), "/srv/ottla": str(where / "srv" / "ottla")}
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("KAFKA_", "OTTLA_", "XDG_"))}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.environment = inherited | {"HOME": str(home), "PATH": path}
        self.broker: subprocess.Popen[str] | None = None
        self.address = ""
        port, controller = free_ports(2)
        properties = APACHE.replace("9092", str(port)).replace("9093", str(controller))
        properties = properties.replace("/tmp/kraft-combined-logs", str(where / "srv" / "kraft"))
        (self.work / "server.properties").write_text(
            properties + "offsets.topic.min.isr=1\nzookeeper.connect=z:1\n"
        )

    def type(self, line: str) -> None:
        """One command, as it stands in a document."""
        for there, here in self._moved.items():
            line = line.replace(there, here)
        line = line.replace("bootstrap.servers=127.0.0.1:9092", f"bootstrap.servers={self.address}")
        if line.startswith("ottla serve"):
            self._serve(line)
        elif re.search(r"\bottla consume\b", line) and not re.search(r" -(e|c)\b", line):
            self._read(line)
        else:
            done = self._start(line)
            out, err = done.communicate(timeout=TIMEOUT_S)
            assert "Traceback" not in err
            if line in IN_VAIN:
                assert (done.returncode, IN_VAIN[line] in err, err.count("\n")) == (1, True, 1), err
            else:
                assert done.returncode == 0, f"{line}\n{out}\n{err}"

    def _start(self, line: str) -> subprocess.Popen[str]:
        # `exec`, so that a signal is the command's and not the shell's; a pipe has no one to exec.
        words = line if "|" in line else f"exec {line}"
        return subprocess.Popen(
            ["bash", "-c", f"set -o pipefail; {words}"],
            cwd=self.work,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def _read(self, line: str) -> None:
        """A reader that goes on for ever is stopped when it has read something."""
        reader = self._start(line)
        assert reader.stdout is not None
        assert reader.stdout.readline()
        reader.send_signal(signal.SIGTERM)
        _, err = reader.communicate(timeout=TIMEOUT_S)
        assert reader.returncode == 128 + signal.SIGTERM, err

    def _serve(self, line: str) -> None:
        """A broker: the first of a document stays, where the others come and go."""
        port = str(free_ports(1)[0])
        if re.search(r"\b(1?9092)\b", line):
            line = re.sub(r"\b(1?9092)\b", port, line)
        elif "--config" not in line:
            line += f" --port {port}"  # instead of Kafka's own, which somebody may be using
        is_first = self.broker is None
        if str(self.data) in line:
            self.stop()
        broker = self._start(line + " 2>>broker.log")
        assert broker.stdout is not None
        said = broker.stdout.readline()
        assert " listening on " in said, (self.work / "broker.log").read_text()
        if is_first:
            self.broker, self.address = broker, said.split()[-1]
            self.environment["OTTLA_BOOTSTRAP_SERVER"] = self.address
        else:
            _end(broker)

    def stop(self) -> None:
        broker, self.broker = self.broker, None
        if broker is not None:
            _end(broker)

    def prepare(self) -> None:
        """What the documents speak of: a topic of some thousand orders, a group that reads it, a transaction."""
        self.type("ottla topic create orders --partitions 3 --if-not-exists")
        self.type("seq 5000 | ottla produce -q -t orders -p 0")
        self.type("ottla consume -t orders -g billing -q -e")
        with Producer(bootstrap_servers=self.address, transactional_id="mover-1") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("orders", b"moved", partition=0)
            producer.commit_transaction()


def _end(broker: subprocess.Popen[str]) -> None:
    broker.send_signal(signal.SIGTERM)
    broker.communicate(timeout=TIMEOUT_S)
    assert broker.returncode == 0


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    typing = Shell(tmp_path)
    yield typing
    typing.stop()


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "document", [name for name in DOCUMENTS if blocks(name) and not OF_SPARK.match(name)]
)
def test_the_commands_of_a_document_work_as_they_stand(document: str, shell: Shell) -> None:
    for block in blocks(document):
        if not block[0].startswith("ottla serve"):
            assert shell.broker is not None, f"{document} speaks of a broker that nobody has started"
            shell.prepare()
        for line in block:
            if line not in NOT_RUN:
                shell.type(line)
    log = (shell.work / "broker.log").read_text()
    assert "Traceback" not in log
