"""Workers as forks of one process: what they are from the outside, and what is left when one of the two ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.spark import fork_client
from ottla.spark.fork_server import MAX_REQUEST_BYTES, VARIABLE, ForkServer, receive

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are forks on Linux only")

# A program that a worker may be: says what it is, does as it is told.
PROGRAM = """
import json, os, sys
print(json.dumps([sys.argv, os.getcwd(), os.environ.get("WHO"), os.environ.get("PATH"), __name__, os.getpid()]))
told = sys.stdin.readline().strip()
if told == "fail":
    sys.exit(7)
if told == "wait":
    print("waiting", flush=True)
    sys.stdin.read()
    import time
    time.sleep(600)
print(told, file=sys.stderr)
"""


def listening(server: ForkServer) -> ForkServer:
    deadline = time.monotonic() + 60
    while not Path(server.address).exists():
        assert time.monotonic() < deadline
    return server


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    made = listening(ForkServer(os.environ))
    yield made
    assert made._process.stdin is not None
    made._process.stdin.close()
    assert made._process.wait(30) == 0
    assert not Path(made.address).parent.exists()


class Worker:
    def __init__(self, address: str, place: Path, python: str = sys.executable) -> None:
        (place / "program.py").write_text(PROGRAM)
        command = [
            sys.executable,
            "-I",
            "-S",
            fork_client.__file__,
            address,
            python,
            "-m",
            "program",
            "a b",
            "*",
        ]
        self.process = subprocess.Popen(
            command,
            cwd=place,
            env={"WHO": "jörg \udcff", "PYTHONPATH": str(place)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def told(self, word: str) -> tuple[list[object], bytes, int]:
        import json

        out, errors = self.process.communicate(word.encode() + b"\n", timeout=60)
        return json.loads(out.splitlines()[0]), errors, self.process.returncode


def test_a_fork_is_what_python_would_have_been(server: ForkServer, tmp_path: Path) -> None:
    worker = Worker(server.address, tmp_path)
    (argv, cwd, who, path, name, pid), errors, code = worker.told("hello")
    assert argv == [str(tmp_path / "program.py"), "a b", "*"]
    assert (cwd, who, path, name) == (str(tmp_path), "jörg \udcff", None, "__main__")
    assert (errors, code) == (b"hello\n", 0)
    plain, *_ = Worker("/nowhere", tmp_path).told("hello")
    assert plain[:-1] == [argv, cwd, who, path, name]
    assert pid != worker.process.pid


def test_its_code_is_the_forks(server: ForkServer, tmp_path: Path) -> None:
    assert Worker(server.address, tmp_path).told("fail")[2] == 7


def test_without_a_server_it_is_a_python_of_its_own(tmp_path: Path) -> None:
    worker = Worker(str(tmp_path / "none"), tmp_path)
    (*_, pid), errors, code = worker.told("alone")
    assert (pid, errors, code) == (worker.process.pid, b"alone\n", 0)


def test_a_server_that_says_nothing_understood_is_done_without(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        listening.listen()
        worker = Worker(str(tmp_path / "s"), tmp_path)
        listening.accept()[0].close()
        assert worker.told("alone")[1:] == (b"alone\n", 0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_who_ends_the_worker_ends_the_fork(server: ForkServer, tmp_path: Path, number: int) -> None:
    worker = Worker(server.address, tmp_path)
    assert worker.process.stdin is not None
    assert worker.process.stdout is not None
    worker.process.stdin.write(b"wait\n")
    worker.process.stdin.flush()
    import json

    pid = json.loads(worker.process.stdout.readline())[-1]
    assert Path(f"/proc/{pid}/comm").read_text() == "*\n"  # its last argument
    assert worker.process.stdout.readline() == b"waiting\n"
    worker.process.send_signal(number)
    worker.process.wait(30)
    # The fork held the other end of this pipe: it ends when that one is gone.
    assert worker.process.stdout.read() == b""
    deadline = time.monotonic() + 30
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline
    for pipe in (worker.process.stdin, worker.process.stdout, worker.process.stderr):
        assert pipe is not None
        pipe.close()


def ended(client: socket.socket) -> bool:
    try:
        return client.recv(100) == b""
    except ConnectionResetError:  # it did not read all that there was
        return True


def test_what_is_no_order_is_refused(server: ForkServer, tmp_path: Path) -> None:
    for nonsense in (b"", b"GET / HTTP/1.1\r\n\r\n", (MAX_REQUEST_BYTES + 1).to_bytes(4, "big") + b"x" * 100):
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(server.address)
            client.sendall(nonsense)
            client.shutdown(socket.SHUT_WR)
            assert ended(client)
    assert Worker(server.address, tmp_path).told("hello")[2] == 0


def test_an_order_longer_than_allowed_is_not_read() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, open(os.devnull) as file:
        socket.send_fds(ours, [(MAX_REQUEST_BYTES + 1).to_bytes(4, "big")], [file.fileno()] * 3)
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(ValueError, match="too many"):
            receive(theirs)
        assert len(os.listdir("/proc/self/fd")) == before


def test_one_is_offered_unless_the_user_wants_none(monkeypatch: pytest.MonkeyPatch) -> None:
    class Made:
        address, is_alive = "/here", True

    monkeypatch.setattr(ForkServer, "_mine", Made())
    environ = {VARIABLE: "/an/older/one"}
    ForkServer.offer(environ)
    assert environ == {VARIABLE: "/here"}
    none = {VARIABLE: ""}
    ForkServer.offer(none)
    assert none == {VARIABLE: ""}


def test_a_machine_without_room_for_one_does_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ForkServer, "_mine", None)
    monkeypatch.setattr("tempfile.mkdtemp", refused)
    environ: dict[str, str] = {}
    ForkServer.offer(environ)
    assert environ == {}


def test_a_long_way_to_the_temporary_files_is_gone_round(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    far = tmp_path / ("a" * 100)
    far.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(far))
    made = listening(ForkServer(os.environ))
    try:
        assert len(made.address) < 108
        assert list(far.iterdir()) == []
        worker = Worker(made.address, tmp_path)
        assert worker.told("hello")[0][-1] != worker.process.pid
    finally:
        assert made._process.stdin is not None
        made._process.stdin.close()
        made._process.wait(30)
