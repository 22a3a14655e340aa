"""How a command is declared, and how its arguments are parsed.

A command is data: its name, one line of summary, its arguments and the function that runs it. One table
therefore feeds the parser, the help pages and the shell completion. argparse does the parsing but is imported
only when a command has been chosen, so `ottla --help` does not pay for it.

Owned by the process that runs one command; nothing here outlives it.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any, NoReturn

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERNAL = 70
EXIT_SIGNALLED = 128  # and the signal's number, as shells count
EXIT_INTERRUPTED = 130

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"


class CliError(Exception):
    """Something the user should read: one line, and the exit code that goes with it."""

    def __init__(self, message: str, exit_code: int = EXIT_FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class UsageError(CliError):
    """The command line itself is wrong."""

    def __init__(self, message: str) -> None:
        super().__init__(message, EXIT_USAGE)


class Argument:
    """An option or a positional argument; `complete` says what a shell may offer for its value."""

    __slots__ = ("complete", "flags", "help", "kwargs")

    def __init__(self, flags: tuple[str, ...], help: str, complete: str, kwargs: dict[str, Any]) -> None:
        self.flags = flags
        self.help = help
        self.complete = complete
        self.kwargs = kwargs

    @property
    def is_option(self) -> bool:
        return self.flags[0].startswith("-")


def argument(*flags: str, help: str, complete: str = "", **kwargs: Any) -> Argument:
    """Declare an argument: names as argparse takes them, `complete` one of "", "file", "dir",
    "broker-key", "topic-key", "topic", "group", "pipeline", "profile"."""
    return Argument(flags, help, complete, kwargs)


def switch(*flags: str, help: str, **kwargs: Any) -> Argument:
    """Declare an option that is there or not."""
    return Argument(flags, help, "", {"action": "store_true", **kwargs})


class Command:
    """A command with arguments and a `run`, or a group of such commands."""

    __slots__ = ("arguments", "commands", "details", "name", "run", "summary")

    def __init__(
        self,
        name: str,
        summary: str,
        *arguments: Argument,
        run: Callable[[argparse.Namespace], int | None] | None = None,
        commands: Sequence[Command] = (),
        details: str = "",
    ) -> None:
        assert (run is None) != (not commands), f"{name} needs either a function or commands under it"
        self.name = name
        self.summary = summary
        self.arguments = arguments
        self.run = run
        self.commands = {command.name: command for command in commands}
        self.details = details


OUTPUT = argument(
    "-o",
    "--output",
    choices=("table", "json"),
    default="table",
    help="how to print the data (default: table)",
)
BOOTSTRAP = argument(
    "-b",
    "--bootstrap-server",
    metavar="HOST:PORT",
    default=None,
    help=f"brokers to ask first (default: $OTTLA_BOOTSTRAP_SERVER or {DEFAULT_BOOTSTRAP})",
)


def bootstrap_servers(given: str | None) -> str:
    """The brokers a client command talks to first."""
    return given or os.environ.get("OTTLA_BOOTSTRAP_SERVER") or DEFAULT_BOOTSTRAP


def nearest(word: str, known: Sequence[str]) -> str | None:
    """The known word the user most likely meant, if any is close."""
    import difflib

    for name in known:
        if name.startswith(word) and len(word) >= 3:
            return name
    found = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return found[0] if found else None


def unknown(kind: str, word: str, known: Sequence[str], help_hint: str) -> UsageError:
    """One line for a word that is not in a list: what it may have been, else where the list is."""
    guess = nearest(word, known)
    hint = f"did you mean {guess!r}?" if guess else f"see `{help_hint}`"
    return UsageError(f"unknown {kind} {word!r}; {hint}")


def build_parser(command: Command, prog: str) -> argparse.ArgumentParser:
    """The argparse parser of one command."""
    import argparse

    class Parser(argparse.ArgumentParser):
        def error(self, message: str) -> NoReturn:
            raise UsageError(f"{message}; see `{prog} --help`")

    parser = Parser(
        prog=prog,
        description=command.summary[:1].upper() + command.summary[1:] + ".",
        epilog=command.details or None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    for declared in command.arguments:
        parser.add_argument(*declared.flags, help=declared.help, **declared.kwargs)
    return parser


def parse(command: Command, argv: Sequence[str], prog: str) -> argparse.Namespace:
    """Parse the arguments of one command; UsageError names the option that is nearest to a wrong one."""
    parser = build_parser(command, prog)
    namespace, extra = parser.parse_known_intermixed_args(argv)
    if extra:
        flags = [flag for declared in command.arguments if declared.is_option for flag in declared.flags]
        word = next((word for word in extra if word.startswith("-") and len(word) > 1), None)
        if word is not None:
            raise unknown("option", word.split("=", 1)[0], [*flags, "--help"], f"{prog} --help")
        raise UsageError(f"unexpected argument {extra[0]!r}; see `{prog} --help`")
    return namespace


def render_group_help(prog: str, summary: str, commands: Sequence[tuple[str, str]], tail: str = "") -> str:
    """The help page of `ottla` and of every command that only groups others."""
    width = max(len(name) for name, _ in commands)
    lines = [f"usage: {prog} <command> [options]", "", summary, "", "commands:"]
    lines += [f"  {name:<{width}}  {text}" for name, text in commands]
    lines += ["", tail or f"`{prog} <command> --help` tells more about one."]
    return "\n".join(lines)


def pairs(words: Iterable[str], option: str) -> list[tuple[str, str]]:
    """`key=value` words taken apart."""
    import re

    out = []
    for word in words:
        key, equals, value = word.partition("=")
        if not key or not equals:
            # Not more than its beginning: what is meant to be the value may be a password.
            shown = re.split(r"(?<=[\s:=])", word, maxsplit=1)
            raise UsageError(f"{option} takes KEY=VALUE, not {shown[0] + '…' * (len(shown) > 1)!r}")
        out.append((key, value))
    return out
