"""`ottla profile`: settings of clusters under a name, so that nobody types -b and -X again and again.

A profile is a properties file of Kafka's own kind, `~/.config/ottla/NAME.properties` (or below $XDG_CONFIG_HOME), that
any Kafka tool takes as its --command-config. `--profile NAME` uses one, $OTTLA_PROFILE names one for a shell, and
`ottla profile use NAME` the one for all commands that name none. What is given by hand (-b, -X, --command-config)
comes before it, and a shell with $OTTLA_BOOTSTRAP_SERVER and no $OTTLA_PROFILE uses none.
Owned by the process that runs one command.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from ottla.cli.args import OUTPUT, CliError, Command, UsageError, argument, pairs, unknown
from ottla.cli.output import emit, say

if TYPE_CHECKING:
    import argparse

_SUFFIX = ".properties"
_CURRENT = "current"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
# Others may not read what may be a password.
_FILE_MODE, _DIRECTORY_MODE = 0o600, 0o700
_SECRET = re.compile(
    r"pass(word|phrase)|user[._]info|secret|jaas|token|credential|key[._]pem|[._]key$", re.IGNORECASE
)


def directory() -> Path:
    """Where the profiles are."""
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "ottla"


def names() -> list[str]:
    """The profiles there are."""
    return sorted(path.name.removesuffix(_SUFFIX) for path in directory().glob(f"*{_SUFFIX}"))


def current() -> str | None:
    """The profile of commands that name none."""
    given = os.environ.get("OTTLA_PROFILE")
    if given is not None:
        return given or None
    from ottla.config.properties import decode_properties

    try:
        return decode_properties((directory() / _CURRENT).read_bytes()).strip() or None
    except FileNotFoundError:
        return None


def read(name: str) -> dict[str, str]:
    """The settings of a profile."""
    from ottla.config.properties import decode_properties, parse_properties

    text = decode_properties(_existing(name).read_bytes())
    return {key: value for key, value, _ in parse_properties(text)}


def profile_file(given: str | None) -> str | None:
    """The file of the profile that --profile names, or of the current one; None if there is neither.

    Whoever names brokers by $OTTLA_BOOTSTRAP_SERVER does not mean the profile that is in use for others: its passwords
    are not for them.
    """
    name = given
    if name is None and ("OTTLA_PROFILE" in os.environ or "OTTLA_BOOTSTRAP_SERVER" not in os.environ):
        name = current()
    return None if name is None else str(_existing(name))


def _path(name: str) -> Path:
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} is no name of a profile: letters, digits, dots, dashes and underscores")
    return directory() / f"{name}{_SUFFIX}"


def _existing(name: str) -> Path:
    path = _path(name)
    if not path.is_file():
        if known := names():
            raise unknown("profile", name, known, "ottla profile list")
        raise UsageError(
            f"there is no profile {name!r}; make it with `ottla profile set {name} bootstrap.servers=…`"
        )
    return path


def _write(path: Path, text: str) -> None:
    """The whole file or none of it, and never readable by others, not even for a moment."""
    from ottla.model.durable import replace_file, unique_temporary

    try:
        data = text.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{path.name}: what is typed for a profile is text in UTF-8") from None
    path.parent.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
    replace_file(path, (data,), sync=False, mode=_FILE_MODE, temporary=unique_temporary(path))


def _escaped(text: str, special: str) -> str:
    """As a properties file has it: the parser reads back just this."""
    out = (
        re.sub(f"([\\\\{special}])", r"\\\1", text)
        .replace("\n", "\\n")
        .replace("\r", "\\r")
        .replace("\t", "\\t")
    )
    return f"\\{out}" if out.startswith(" ") else out


def _list(args: argparse.Namespace) -> None:
    used = current()
    rows = [
        {"profile": name, "current": name == used, "bootstrap_servers": read(name).get("bootstrap.servers")}
        for name in names()
    ]
    emit(rows, ("profile", "current", "bootstrap_servers"), args.output)


def _show(args: argparse.Namespace) -> None:
    name = args.name or current()
    if name is None:
        raise CliError("no profile is in use; see `ottla profile list`")
    rows = [
        {"key": key, "value": "********" if _SECRET.search(key) else value}
        for key, value in read(name).items()
    ]
    emit(rows, ("key", "value"), args.output)


def _set(args: argparse.Namespace) -> None:
    path = _path(args.name)
    is_new = not path.exists()
    settings = {} if is_new else read(args.name)
    for word in args.setting:
        if word.endswith("-") and "=" not in word:
            settings.pop(word[:-1], None)
        else:
            settings.update(pairs([word], "a setting"))
    lines = [f"{_escaped(key, ' =:#!')}={_escaped(value, '')}\n" for key, value in settings.items()]
    _write(path, "".join(lines))
    say(f"profile {args.name} {'made' if is_new else 'changed'}: {path}")
    if is_new and names() == [args.name]:
        _use(args)


def _use(args: argparse.Namespace) -> None:
    _existing(args.name)
    _write(directory() / _CURRENT, args.name + "\n")
    say(f"commands that name no profile use {args.name} now")


def _delete(args: argparse.Namespace) -> None:
    path = _existing(args.name)
    if current() == args.name:
        (directory() / _CURRENT).unlink(missing_ok=True)
    path.unlink()
    say(f"profile {args.name} deleted")


_NAME_OF_ONE = argument("name", metavar="PROFILE", complete="profile", help="its name")

COMMAND = Command(
    "profile",
    "keep the settings of clusters under names",
    commands=(
        Command("list", "the profiles there are, and which one is in use", OUTPUT, run=_list),
        Command(
            "show",
            "the settings of a profile, passwords hidden",
            argument(
                "name",
                nargs="?",
                metavar="PROFILE",
                complete="profile",
                help="its name (default: the current one)",
            ),
            OUTPUT,
            run=_show,
        ),
        Command(
            "set",
            "make a profile, or change settings of one",
            _NAME_OF_ONE,
            argument(
                "setting", nargs="+", metavar="KEY=VALUE", help="a setting of the client; KEY- takes one back"
            ),
            run=_set,
            details="""\
examples:
  ottla profile set staging bootstrap.servers=staging:9092 client.id=me
  ottla profile set staging client.id-
  ottla topic list --profile staging""",
        ),
        Command("use", "use a profile where none is named", _NAME_OF_ONE, run=_use),
        Command("delete", "delete a profile", _NAME_OF_ONE, run=_delete),
    ),
)
