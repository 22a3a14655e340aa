"""The command itself: help, versions, wrong words, errors as one line, exit codes."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ottla.cli import main as cli
from ottla.cli.args import (
    OUTPUT,
    CliError,
    Command,
    UsageError,
    argument,
    bootstrap_servers,
    parse,
    switch,
)
from ottla.cli.client import line
from ottla.cli.main import COMMANDS, load, main, run_command
from ottla.cli.output import complain, emit, say, size_text, table
from ottla.config.errors import ConfigError
from ottla.model.errors import ErrorCode, KafkaError

Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"], ["help"]])
def test_help_lists_every_command(words: list[str], capsys: Capture) -> None:
    assert main(words) == 0
    shown = capsys.readouterr().out
    for name, (_, summary) in COMMANDS.items():
        assert f"  {name} " in shown
        assert summary in shown


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_has_a_help_page(name: str, capsys: Capture) -> None:
    assert load(name).name == name
    assert main([name, "--help"]) == 0
    assert f"usage: ottla {name}" in capsys.readouterr().out


def test_help_imports_nothing_it_does_not_need() -> None:
    code = "import sys; from ottla.cli.main import main; main(['--help']); print(sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], capture_output=True, text=True, env=_source_path()
    )
    assert done.returncode == 0, done.stderr
    loaded = done.stdout.splitlines()[-1]
    for heavy in ("argparse", "asyncio", "ottla.config", "ottla.wire", "json", "typing"):
        assert f"'{heavy}'" not in loaded


def test_version_says_what_a_bug_report_needs(capsys: Capture) -> None:
    assert main(["--version"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("ottla ")
    for part in ("Python ", "record kernel: ", "event loop: "):
        assert part in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tpoic"], "unknown command 'tpoic'; did you mean 'topic'?"),
        (["xyzzy"], "unknown command 'xyzzy'; see `ottla --help`"),
        (["--verson"], "unknown option '--verson'; did you mean '--version'?"),
        (["storage", "fromat"], "unknown command 'fromat'; did you mean 'format'?"),
        (["serve", "--confg", "x"], "unknown option '--confg'; did you mean '--config'?"),
        (["serve", "extra"], "unexpected argument 'extra'; see `ottla serve --help`"),
        (["serve", "--config"], "argument -c/--config: expected one argument; see `ottla serve --help`"),
        (["completion", "tcsh"], "argument shell: invalid choice: 'tcsh'"),
    ],
)
def test_a_wrong_word_is_one_line_and_exit_code_2(words: list[str], message: str, capsys: Capture) -> None:
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"ottla: {message}")
    assert captured.err.count("\n") == 1


def test_a_group_without_a_command_shows_its_help_as_a_mistake(capsys: Capture) -> None:
    assert main(["storage"]) == 2
    assert "random-uuid" in capsys.readouterr().out


def _raising(error: BaseException) -> Callable[[object], int]:
    def run(_: object) -> int:
        raise error

    return run


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (CliError("no such thing"), 1, "ottla: no such thing\n"),
        (UsageError("not like that"), 2, "ottla: not like that\n"),
        (ConfigError("bad value"), 2, "ottla: bad value\n"),
        (
            KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, "Topic 't' exists."),
            1,
            "ottla: TOPIC_ALREADY_EXISTS: Topic 't' exists.\n",
        ),
        (KafkaError(ErrorCode.NOT_CONTROLLER), 1, "ottla: NOT_CONTROLLER\n"),
        (PermissionError(13, "Permission denied", "/data"), 1, "ottla: /data: Permission denied\n"),
        (KeyboardInterrupt(), 130, ""),
        (BrokenPipeError(), 0, ""),
    ],
)
def test_what_a_command_raises_becomes_a_line_and_a_code(
    error: BaseException, code: int, said: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = Command("boom", "fails", run=_raising(error))
    monkeypatch.setitem(cli.COMMANDS, "boom", ("x", "fails"))
    monkeypatch.setattr(cli, "load", lambda _: command)
    monkeypatch.setattr(os, "dup2", lambda *_: 0)
    assert main(["boom"]) == code
    assert capsys.readouterr().err == said


def test_a_bug_is_one_line_too_and_a_traceback_on_request(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = Command("boom", "fails", run=_raising(ZeroDivisionError("oh")))
    monkeypatch.setitem(cli.COMMANDS, "boom", ("x", "fails"))
    monkeypatch.setattr(cli, "load", lambda _: command)
    assert main(["boom"]) == 70
    said = "ottla: internal error, please report it: ZeroDivisionError: oh (OTTLA_DEBUG=1 shows where)\n"
    assert capsys.readouterr().err == said
    monkeypatch.setenv("OTTLA_DEBUG", "1")
    assert main(["boom"]) == 70
    assert "Traceback" in capsys.readouterr().err


def test_a_closed_pipe_is_no_error() -> None:
    script = f"{sys.executable} -m ottla.cli.main completion bash | head -1"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {script}"], capture_output=True, text=True, env=_source_path()
    )
    assert (done.returncode, done.stderr) == (0, "")


def _source_path() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[2])}


def test_options_may_stand_among_positional_arguments() -> None:
    seen = []
    command = Command(
        "c",
        "x",
        argument("names", nargs="+", help="n"),
        argument("--count", type=int, default=1, help="c"),
        switch("--fast", help="f"),
        OUTPUT,
        run=lambda args: seen.append((args.names, args.count, args.fast, args.output)),
    )
    assert run_command(command, ["a", "--count", "3", "b", "--fast", "-o", "json"], "ottla c") == 0
    assert seen == [(["a", "b"], 3, True, "json")]


def test_a_bad_type_names_the_option() -> None:
    command = Command("c", "x", argument("--count", type=int, help="c"), run=lambda args: None)
    with pytest.raises(UsageError, match=r"argument --count: invalid int value: 'x'; see `ottla c --help`"):
        parse(command, ["--count", "x"], "ottla c")


def test_the_bootstrap_server_comes_from_the_option_the_environment_or_nowhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OTTLA_BOOTSTRAP_SERVER", raising=False)
    assert bootstrap_servers(None) == "127.0.0.1:9092"
    monkeypatch.setenv("OTTLA_BOOTSTRAP_SERVER", "h:1")
    assert bootstrap_servers(None) == "h:1"
    assert bootstrap_servers("g:2") == "g:2"


def test_tables_are_aligned_and_numbers_stand_right() -> None:
    rows = [
        {"name": "a", "partitions": 3, "internal": False, "isr": [1, 2]},
        {"name": "longer", "partitions": 12, "internal": True, "isr": None},
    ]
    assert table(rows, ("name", "partitions", "internal", "isr")).splitlines() == [
        "NAME    PARTITIONS  INTERNAL  ISR",
        "a                3  no        1,2",
        "longer          12  yes       -",
    ]


def test_an_empty_table_keeps_its_headings(capsys: Capture) -> None:
    emit([], ("node_id", "host"), "table")
    assert capsys.readouterr().out == "NODE ID  HOST\n"
    emit([], ("node_id", "host"), "json")
    assert capsys.readouterr().out == "[]\n"


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 40, "3.0 TiB"), (1 << 62, "4096.0 PiB")],
)
def test_sizes_are_told_in_units(size: int, text: str) -> None:
    assert size_text(size) == text


WIDE = [
    {
        "group": "billing",
        "member": "consumer-billing-1-0123456789abcdef",
        "lag": 12_345_678,
        "host": "10.0.0.1",
    },
    {"group": "b", "member": "short", "lag": 1, "host": "10.0.0.2"},
]
COLUMNS = ("group", "member", "lag", "host")


def test_a_table_that_is_too_wide_is_cut_in_its_widest_texts() -> None:
    lines = table(WIDE, COLUMNS, 50).splitlines()
    assert all(len(line) <= 50 for line in lines)
    assert "12345678" in lines[1], "numbers are whole or wrong"
    assert "billing" in lines[1]
    assert lines[1].split()[1].startswith("consumer-")
    assert lines[1].split()[1].endswith("abcdef")
    assert table(WIDE, COLUMNS, 200) == table(WIDE, COLUMNS)
    # Where there is no room even for the least of each column, that is printed.
    assert "12345678" in table(WIDE, COLUMNS, 10)


def test_only_a_terminal_has_a_width(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    monkeypatch.setenv("NO_COLOR", "1")
    emit(WIDE, COLUMNS, "table")
    assert capsys.readouterr() == (table(WIDE, COLUMNS) + "\n", "")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    emit(WIDE, COLUMNS, "table")
    out, err = capsys.readouterr()
    assert out == table(WIDE, COLUMNS, 50) + "\n"
    assert err == "(.. is cut to the width of the terminal; -o json, or a pipe, shows all)\n"
    emit(WIDE, ("group", "lag"), "table")
    assert capsys.readouterr().err == ""


def test_only_a_terminal_has_colour(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for stream in (sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    emit([{"lag": 1}], ("lag",), "table")
    assert main(["nonsense"]) == 2
    out, err = capsys.readouterr()
    assert out == "\x1b[1mLAG\x1b[0m\n  1\n"
    assert err.startswith("\x1b[31mottla:\x1b[0m unknown command 'nonsense'")
    for name, value in (("NO_COLOR", "1"), ("TERM", "dumb")):
        with monkeypatch.context() as plain:
            plain.setenv(name, value)
            emit([{"lag": 1}], ("lag",), "table")
            assert capsys.readouterr().out == "LAG\n  1\n"


def test_a_time_out_says_what_it_means() -> None:
    error = KafkaError(ErrorCode.REQUEST_TIMED_OUT, "topic 'clicks': REQUEST_TIMED_OUT")
    expected = "the cluster has not answered in time, and whether it was done is not known"
    assert line(error) == f"topic 'clicks': REQUEST_TIMED_OUT: {expected}"


def test_a_name_that_somebody_thought_up_makes_no_terminal_do_anything(
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = "a\x1b[2J\x9b1m\x07\r\u202eb\n\tc"
    rows = [{"group": name, "members": [name]}]
    emit(rows, ("group", "members"), "table")
    emit(rows, ("group", "members"), "json")
    say(f"group {name} is gone")
    complain(f"there is no group {name}")
    out, err = capsys.readouterr()
    assert not set(out + err) & set("\x1b\x9b\x07\r\u202e")
    assert r"a\x1b[2J\x9b1m\x07\r\u202eb\n\tc" in out.splitlines()[1]
    assert json.loads(out.partition("\n")[2].partition("\n")[2]) == rows
    assert err.startswith(r"group a\x1b[2J\x9b1m\x07\r\u202eb")
