"""The demo with Spark: its screen, its sample clicks, and what it makes of the lines that Spark's process tells."""

import io
import json
import random

import pytest
from rich.console import Console

from ottla.examples.demo.clicks import ClickBoard, Minutes, Visitors, progress_line, screen, summary
from ottla.examples.samples import PAGES

QUERIES = [
    {"name": "clickstream.per_minute", "batch": 12, "batch_ms": 230, "read": 900},
    {"name": "clickstream.sessions", "batch": 9, "batch_ms": 1230, "read": 700},
]


def _lines(board: ClickBoard, height: int = 40) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=80, height=height).print(screen(board, 10.0, height))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def _text(board: ClickBoard, height: int = 40) -> str:
    return "\n".join(_lines(board, height))


def _count(board: ClickBoard, minute: str, page: str, views: int) -> None:
    row = {"minute": f"2026-01-01T12:{minute}:00.000Z", "page": page, "views": views}
    board.result("clicks.per_minute", json.dumps(row).encode())


def _running() -> ClickBoard:
    board = ClickBoard(0.0)
    board.broker, board.address, board.acknowledged = "127.0.0.1:1234, up in 0.30 s", "127.0.0.1:1234", 1000
    board.heard({"phase": "java"}, 1.0)
    board.heard({"phase": "queries", "version": "4.3.0", "java": "25"}, 2.0)
    board.heard({"phase": "running"}, 3.0)
    board.heard({"queries": QUERIES}, 4.0)
    return board


def test_it_says_what_it_waits_for_while_spark_starts() -> None:
    board = ClickBoard(0.0)
    assert "waiting for the broker" in _text(board)
    board.heard({"phase": "java"}, 1.0)
    assert "starting Java and Spark ... 10 s" in _text(board)
    board.heard({"phase": "queries", "version": "4.3.0", "java": "25"}, 2.0)
    assert "starting the pipeline's queries ... 10 s\n           Spark 4.3.0, Java 25" in _text(board)
    board.heard({"phase": "running"}, 3.0)
    board.heard({"queries": [{"name": "clickstream.per_minute"}]}, 3.0)
    assert "waiting for the first micro-batch" in _text(board)
    assert not board.has_begun


def test_the_newest_minute_is_shown_with_its_last_figures() -> None:
    board = _running()
    _count(board, "00", "/", 500)
    _count(board, "01", "/", 10)
    _count(board, "01", "/letters", 20)
    _count(board, "01", "/", 40)
    shown = _text(board)
    assert "560 counted, each once   behind 300   (Spark 4.3.0, Java 25)" in shown
    assert "per_minute: batch 12 in 230 ms   sessions: batch 9 in 1,230 ms" in shown
    assert "Views this minute, by page, 12:01:00" in shown
    first, second = (line.split() for line in shown.splitlines() if "━" in line)
    assert first == ["/", "━" * 30, "40"]
    assert second == ["/letters", "━" * 15, "20"]


def test_sessions_come_newest_first() -> None:
    board = _running()
    for number in range(30):
        session = {"user": f"franz-{number}", "start": "2026-01-01T12:00:01Z", "end": "2026-01-01T12:00:31Z"}
        board.result("clicks.sessions", json.dumps({**session, "clicks": number}).encode())
    shown = _text(board)
    assert "Sessions that have ended: 30" in shown
    assert shown.index("franz-29") < shown.index("franz-28")
    assert "12:00:01 to 12:00:31   29 clicks" in shown


@pytest.mark.parametrize("height", [24, 30, 40, 60])
def test_it_fits_the_terminal_and_keeps_its_place(height: int) -> None:
    board = _running()
    for page in PAGES:
        _count(board, "01", page, 5)
    for number in range(30):
        session = {"user": f"franz-{number}", "start": "2026-01-01T12:00:01Z", "end": "2026-01-01T12:00:31Z"}
        board.result("clicks.sessions", json.dumps({**session, "clicks": number}).encode())
    lines = _lines(board, height)
    assert len(lines) == height
    assert lines[-1] == "  Ctrl-C ends it; nothing is kept."
    assert sum("━" in line for line in lines) == min(len(PAGES), 5 if height < 28 else 8)
    assert "franz-29" in "".join(lines)
    assert "franz-28" in "".join(lines)
    board.trouble = "the broker is gone"
    assert "trouble  the broker is gone" in _text(board, height)
    assert len(_lines(board, height)) == height


def test_a_line_for_each_step_and_then_for_the_figures() -> None:
    board = ClickBoard(0.0)
    board.heard({"phase": "java"}, 1.0)
    assert progress_line(board, 1.0) == "    1 s  clicks 0  spark: starting Java and Spark ..."
    assert progress_line(board, 2.0) == ""
    board = _running()
    _count(board, "01", "/", 40)
    assert (
        progress_line(board, 3.0)
        == "    3 s  clicks 1,000  counted 40  behind 300  sessions 0  12:01:00  / 40"
    )


def test_the_last_word_compares_what_went_in_with_what_was_counted() -> None:
    board = _running()
    _count(board, "01", "/", 990)
    assert "1,000 clicks acknowledged, 990 counted by Spark, 10 not yet counted; Spark" in summary(board)
    _count(board, "02", "/", 10)
    assert "1,000 counted by Spark, each of them once; Spark and the broker are stopped" in summary(board)
    _count(board, "02", "/", 11)
    assert "1,001 counted by Spark, 1 too many;" in summary(board)


def test_the_last_word_of_a_demo_that_was_ended_early() -> None:
    board = ClickBoard(0.0)
    board.acknowledged = 7
    assert summary(board).startswith("7 clicks acknowledged, before Spark had begun to count; Spark and")


def test_it_says_that_it_is_ending() -> None:
    board = _running()
    assert "Ctrl-C ends it; nothing is kept." in _text(board)
    board.stopping = True
    assert "Counting the last clicks" in _text(board)
    board.stopped = True
    assert "Ctrl-C" not in _text(board)


def test_an_empty_table_has_no_minute() -> None:
    assert Minutes().latest() == ("", [])


def test_visitors_click_and_leave() -> None:
    visitors = Visitors(random.Random(1))
    clicks = [visitors.click(1_767_225_600_000 + number) for number in range(5000)]
    users = {key for key, _ in clicks}
    assert len(users) > 300
    value = json.loads(clicks[0][1])
    assert value["at"] == "2026-01-01T00:00:00.000Z"
    assert value["page"] in PAGES
    assert value["user"].encode() == clicks[0][0]
