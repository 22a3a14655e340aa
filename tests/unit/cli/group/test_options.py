"""How ottla group, ottla txn and ottla consume --group read what they are given."""

import argparse
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from ottla.cli.args import CliError, UsageError
from ottla.cli.completion import script
from ottla.cli.group.lag import summary
from ottla.cli.group.reset import parse_csv
from ottla.cli.main import main
from ottla.cli.output import table
from ottla.cli.selection import parse_datetime_ms, parse_duration_ms, parse_topic
from ottla.model.ids import TopicPartition

MINUTE_MS = 60_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("PT1H30M", 90 * MINUTE_MS),
        ("P2D", 2 * 24 * 60 * MINUTE_MS),
        ("P1DT1S", 24 * 60 * MINUTE_MS + 1000),
        ("PT0.25S", 250),
        ("pt5m", 5 * MINUTE_MS),
        ("90s", 90_000),
        ("15m", 15 * MINUTE_MS),
        ("2h", 120 * MINUTE_MS),
        ("7d", 7 * 24 * 60 * MINUTE_MS),
        ("500ms", 500),
        ("0s", 0),
    ],
)
def test_durations(text: str, expected: int) -> None:
    assert parse_duration_ms(text) == expected


@pytest.mark.parametrize("text", ["", "P", "PT", "5", "1.5h", "-1h", "P1Y", "P1M", "an hour", "PT1H1D"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(UsageError, match="is no duration"):
        parse_duration_ms(text)


@pytest.mark.parametrize("form", ["{}d", "P{}D"])
def test_a_number_that_python_does_not_read_is_no_duration(form: str) -> None:
    with pytest.raises(UsageError, match="is no duration"):
        parse_duration_ms(form.format("9" * 5_000))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1970-01-01T00:00:00.000", 0),
        ("1970-01-01T00:00:01.234Z", 1234),
        ("1970-01-01T01:00:00.000+01:00", 0),
        ("2026-01-31T12:00:00", 1_769_860_800_000),
        ("2026-01-31", 1_769_817_600_000),
        ("1969-12-31T23:59:59.999", -1),
    ],
)
def test_times(text: str, expected: int) -> None:
    assert parse_datetime_ms(text) == expected


def test_what_is_no_time() -> None:
    for text in ("", "soon", "12:00", "2026-13-01T00:00:00"):
        with pytest.raises(UsageError, match="is no time"):
            parse_datetime_ms(text)


def test_topics_with_partitions() -> None:
    assert parse_topic("orders") == ("orders", None)
    assert parse_topic("orders:0,12") == ("orders", [0, 12])
    for wrong in ("orders:", "orders:a", ":1", "orders:1,", "orders:-1", "orders:" + "9" * 5_000):
        with pytest.raises(UsageError, match="TOPIC:0,1,2"):
            parse_topic(wrong)


def arguments(*groups: str) -> argparse.Namespace:
    return argparse.Namespace(group=list(groups), all_groups=not groups)


def test_files_of_offsets() -> None:
    lines = ["t,0,5\n", "\n", '"odd,name",1,6\n']
    assert parse_csv(lines, "f", arguments("g")) == {
        None: {TopicPartition("t", 0): 5, TopicPartition("odd,name", 1): 6}
    }
    assert parse_csv(["g,t,0,5\n", "h,t,0,6\n"], "f", arguments()) == {
        "g": {TopicPartition("t", 0): 5},
        "h": {TopicPartition("t", 0): 6},
    }
    with pytest.raises(CliError, match="one group only"):
        parse_csv(["t,0,5\n"], "f", arguments("g", "h"))
    for wrong in ("t,0", "t,0,x", "t,x,0", "t,0,-5", "a,b,c,d,e", "t,0," + "9" * 5_000):
        with pytest.raises(CliError, match="f, line 1: it is"):
            parse_csv([wrong], "f", arguments("g"))
    with pytest.raises(CliError, match="f: it is no CSV file"):
        parse_csv(['"t,0,5\n', "x" * 200_000], "f", arguments("g"))
    last = 2**63 - 1
    assert parse_csv([f"t,0,{last}"], "f", arguments("g")) == {None: {TopicPartition("t", 0): last}}


def test_a_file_of_offsets_is_utf8_as_spreadsheets_write_it_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    saved: list[dict[str | None, dict[TopicPartition, int]]] = []

    def plan(_client: object, _args: object, _way: str, _group: object, found: Any) -> dict[object, object]:
        saved.append(found)
        return {}

    monkeypatch.setattr("ottla.cli.group.reset.admin", lambda _: nullcontext(MagicMock()))
    monkeypatch.setattr("ottla.cli.group.reset.chosen", lambda *_: ([], []))
    monkeypatch.setattr("ottla.cli.group.reset._plan", plan)
    file = tmp_path / "saved.csv"
    file.write_bytes(b"\xef\xbb\xbft,0,5\r\n")
    assert main(["group", "reset", "g", "--from-file", str(file)]) == 0, capsys.readouterr().err
    assert saved == [{None: {TopicPartition("t", 0): 5}}]
    file.write_bytes(b"t\xff,0,5\n")
    capsys.readouterr()
    assert main(["group", "reset", "g", "--from-file", str(file)]) == 1
    assert capsys.readouterr().err == f"ottla: {file}: it is no text in UTF-8\n"


@pytest.mark.parametrize(("option", "way"), [("--to-offset", "to_offset"), ("--shift-by", "shift_by")])
def test_zero_is_an_offset_and_a_shift(
    option: str, way: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def plan(client: object, args: argparse.Namespace, chosen: str, *_: object) -> dict[TopicPartition, int]:
        asked.append((chosen, getattr(args, way)))
        return {}

    monkeypatch.setattr("ottla.cli.group.reset.admin", lambda _: nullcontext(MagicMock()))
    monkeypatch.setattr("ottla.cli.group.reset.chosen", lambda *_: ([], []))
    monkeypatch.setattr("ottla.cli.group.reset._plan", plan)
    assert main(["group", "reset", "g", option, "0", "-t", "t"]) == 0, capsys.readouterr().err
    assert asked == [(way, 0)]


def test_lags_of_partitions_add_up_and_the_oldest_counts() -> None:
    def row(partition: int, lag: int | None, seconds: float | None) -> dict[str, object]:
        return {"group": "g", "topic": "t", "partition": partition, "lag": lag, "lag_seconds": seconds}

    rows = [row(0, 5, 1.5), row(1, None, None), row(2, 7, 9.0), row(3, 0, 0.0)]
    assert summary(rows) == [{"group": "g", "topic": "t", "partitions": 4, "lag": 12, "lag_seconds": 9.0}]
    assert summary([row(0, None, None)]) == [
        {"group": "g", "topic": "t", "partitions": 1, "lag": None, "lag_seconds": None}
    ]


def test_numbers_stand_right_though_some_are_missing() -> None:
    assert table([{"lag": 5}, {"lag": None}, {"lag": 100}], ("lag",)).splitlines() == [
        "LAG",
        "  5",
        "  -",
        "100",
    ]


@pytest.mark.parametrize(
    "words",
    [
        ("group", "list", "--state", "stable,stabel"),
        ("group", "list", "--type", "consumers"),
        ("group", "describe"),
        ("group", "describe", "g", "--all-groups"),
        ("group", "reset", "g", "--to-latest"),
        ("group", "reset", "g", "--to-latest", "--to-earliest", "-t", "t"),
        ("group", "reset", "g", "--execute", "--dry-run", "--to-latest", "-t", "t"),
        ("group", "delete"),
        ("txn", "abort"),
        ("txn", "abort", "x", "-t", "t"),
        ("consume", "-t", "t", "-g", "g", "-p", "1"),
        ("consume", "-t", "t", "-g", "g", "-o", "-5"),
        ("consume", "-t", "t", "--instance-id", "me"),
        ("consume", "-t", "t", "-c", "-5"),
        ("consume", "-t", "t", "-g", "g", "-c", "-5"),
        ("produce", "-t", "t", "-c", "-5"),
    ],
    ids=" ".join,
)
def test_a_wrong_command_line_is_told_before_anybody_is_asked(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTTLA_BOOTSTRAP_SERVER", "127.0.0.1:1")
    code = main(list(words))
    err = capsys.readouterr().err
    assert (code, err.count("\n"), err[:7]) == (2, 1, "ottla: "), err


def test_groups_that_are_not_ready_are_asked_for_by_the_name_that_brokers_know(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = MagicMock()
    client.list_groups.return_value = []
    monkeypatch.setattr("ottla.cli.group.command.admin", lambda _: nullcontext(client))
    assert main(["group", "list", "--state", "NotReady", "--type", "streams"]) == 0
    client.list_groups.assert_called_once_with(states=["NotReady", "not_ready"], types=["streams"])


def test_help_and_completion_know_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    options = {
        line.partition("=")[0]: line for line in script("bash").splitlines() if "_option_strings=(" in line
    }
    for path, option in (
        ("group_reset", "--by-duration"),
        ("group_describe", "--members"),
        ("group_lag", "--partitions"),
        ("txn_find_hanging", "--max-transaction-timeout"),
        ("consume", "--instance-id"),
    ):
        assert option in options[f"_shtab_ottla_{path}_option_strings"], path
    assert main(["group", "reset", "--help"]) == 0
    page = capsys.readouterr().out
    assert "--from-file" in page
    assert "examples:" in page
    assert main(["group"]) == 2
    assert "find-hanging" not in capsys.readouterr().out
    assert main(["txn", "--help"]) == 0
    assert "find-hanging" in capsys.readouterr().out


@pytest.mark.parametrize("interval", ["0", "-1", "nan", "inf", "1e300"])
def test_an_interval_that_nobody_can_wait_for(interval: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["group", "lag", "g", "--watch", "--interval", interval]) == 2
    assert "--interval is more than 0 seconds" in capsys.readouterr().err
