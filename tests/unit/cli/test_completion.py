"""Shell completion: made from the declarations, and the shells that are here run it."""

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.cli.completion import SHELLS, _namespace, script, whole_parser

SCRIPTS = {shell: script(shell) for shell in SHELLS}


def _parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                yield from _parsers(child)


@pytest.mark.parametrize("shell", SHELLS)
def test_every_command_and_long_option_is_in_the_script(shell: str) -> None:
    for parser in _parsers(whole_parser()):
        assert all(word in SCRIPTS[shell] for word in parser.prog.split())
        for action in parser._actions:
            for flag in action.option_strings:
                assert flag.lstrip("-") in SCRIPTS[shell], (parser.prog, flag)


@pytest.mark.parametrize("shell", [name for name in SHELLS if shutil.which(name)])
def test_the_shell_can_read_its_script(shell: str) -> None:
    checked = subprocess.run([shell, "-n"], input=SCRIPTS[shell], capture_output=True, text=True)
    assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (["se"], ["serve"]),
        (
            ["storage", ""],
            ["format", "info", "version-mapping", "feature-dependencies", "random-uuid"],
        ),
        (["storage", "format", "--cl"], ["--cluster-id"]),
        (["serve", "-X", "log.segment."], ["log.segment.bytes=", "log.segment.delete.delay.ms="]),
        (["log", "dump", "-o", ""], ["table", "json"]),
        (["completion", ""], ["bash", "zsh", "fish"]),
        (["completion", "--h"], ["--help"]),
    ],
)
def test_bash_offers_what_fits(typed: list[str], offered: list[str]) -> None:
    words = " ".join(f"'{word}'" for word in ["ottla", *typed])
    script = (
        SCRIPTS["bash"]
        + f"\nCOMP_WORDS=({words}); COMP_CWORD={len(typed)}; _ottla; printf '%s\\n' \"${{COMPREPLY[@]}}\"\n"
    )
    done = subprocess.run(["bash"], input=script, capture_output=True, text=True)
    assert done.stdout.split() == offered


@pytest.fixture
def names(tmp_path: Path) -> Path:
    """A directory with files in it and an `ottla` that knows two topics, and writes down what it was asked."""
    command = tmp_path / "bin" / "ottla"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\necho "$@" >> "{tmp_path}/asked"\nprintf \'orders\\npayments\\n\'\n')
    command.chmod(0o755)
    (tmp_path / "orders.txt").touch()
    return tmp_path


@pytest.mark.skipif(shutil.which("fish") is None, reason="needs fish")
@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("consume -t ", ["orders", "payments"]),
        ("topic describe -b h:1 o", ["orders"]),
        ("log dump -o ", ["table", "json"]),
        ("serve -X log.segment.b", ["log.segment.bytes="]),
        ("log dump o", ["orders.txt"]),
    ],
)
def test_fish_offers_what_fits_and_no_files_among_it(names: Path, typed: str, offered: list[str]) -> None:
    done = subprocess.run(
        ["fish", "--no-config", "-c", f"{SCRIPTS['fish']}\ncomplete -C 'ottla {typed}'"],
        capture_output=True,
        text=True,
        cwd=names,
        env={**os.environ, "PATH": f"{names / 'bin'}:{os.environ['PATH']}"},
    )
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == offered


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_names_are_asked_where_the_command_line_says(names: Path) -> None:
    # Bash breaks words at colons.
    words = f"'{names}/bin/ottla' topic describe -b h : 1 ord"
    bash = f'{SCRIPTS["bash"]}\nCOMP_WORDS=({words}); COMP_CWORD=7; _ottla; echo "${{COMPREPLY[@]}}"\n'
    done = subprocess.run(["bash"], input=bash, capture_output=True, text=True)
    assert done.stdout.split() == ["orders"]
    asked = (names / "asked").read_text().split()
    assert asked == ["__names", "topic", "topic", "describe", "-b", "h", ":", "1"]
    assert _namespace(asked[2:]).bootstrap_server == "h:1"


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_runs_no_name(names: Path, tmp_path: Path) -> None:
    mark = tmp_path / "run"
    (names / "bin" / "ottla").write_text(
        f"#!/bin/sh\necho 'orders'\necho 'or$(touch {mark})`touch {mark}`'\n"
    )
    words = f"'{names}/bin/ottla' group describe or"
    bash = f'{SCRIPTS["bash"]}\nCOMP_WORDS=({words}); COMP_CWORD=3; _ottla; echo "${{COMPREPLY[0]}}"\n'
    done = subprocess.run(["bash"], input=bash, capture_output=True, text=True)
    assert (done.stdout, mark.exists()) == ("orders\n", False)


def test_what_means_something_to_a_shell_is_not_offered() -> None:
    good = ["orders", "a.b-c_d", "app:1@host", "50%", "x=1"]
    bad = [
        "$(id)",
        "`id`",
        "a b",
        "a\nb",
        "a;id",
        "a|id",
        "a&",
        "~root",
        "*",
        "?",
        "[a]",
        "{a,b}",
        "-rf",
        "=ls",
        "!1",
    ]
    bad += ["a'b", 'a"b', "a\\b", "a<b", "a#b", "é", "\x1b[2J", "", "a(b)", "^a^b"]
    # In a process of its own, which it ends when it takes too long.
    asked = (
        "from ottla.cli import completion; "
        f"completion._names = lambda kind, args: {[*good, *bad]!r}; completion.print_names(['group'])"
    )
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == good


def test_zsh_completes_every_one_of_many_words() -> None:
    assert '"*:its name (default\\: all):_ottla_topic"' in SCRIPTS["zsh"]


@pytest.mark.parametrize("way", ['eval "$(cat {})"', "source {}"])
def test_zsh_registers_it_also_when_it_is_sourced(tmp_path: Path, way: str) -> None:
    if shutil.which("zsh") is None:
        pytest.skip("zsh is not installed")
    made = tmp_path / "ottla.zsh"
    made.write_text(SCRIPTS["zsh"])
    begin = f"autoload -Uz compinit; compinit -u -d {tmp_path}/dump"
    words = ["zsh", "-fc", f"{begin}; {way.format(made)}; print $_comps[ottla]"]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "_shtab_ottla\n"
