"""`ottla keyring`: make the files that `encryption.key` names, and add keys to them.

A key is drawn at random and goes into the file alone; it is no argument and is not printed. Owned by the process that
runs one command.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cli.args import OUTPUT, Command, argument
from ottla.cli.output import emit, say

if TYPE_CHECKING:
    import argparse

_FILE = argument("file", metavar="FILE", complete="file", help="the keyring, JSON")


def _add(args: argparse.Namespace) -> int:
    from pathlib import Path

    from ottla.security.keyring import add_key

    path = Path(args.file)
    is_new = not path.exists()
    key_id = args.id or _today()
    add_key(path, key_id)
    if is_new:
        say(f"{path} is made, with the key {key_id}; whoever has lost it cannot read what it has encrypted")
    else:
        say(f"{path} has the key {key_id}, which is used to write from now on; give it to all readers first")
    return 0


def _today() -> str:
    from datetime import UTC, datetime

    return datetime.now(UTC).strftime("%Y-%m-%d")


def _list(args: argparse.Namespace) -> int:
    from ottla.security.keyring import FileKeyring

    ids = FileKeyring(args.file).key_ids
    rows = [{"id": key_id, "writes": key_id == ids[-1]} for key_id in ids]
    emit(rows, ("id", "writes"), args.output)
    return 0


COMMAND = Command(
    "keyring",
    "make keyrings for values that brokers cannot read (encryption.key)",
    commands=(
        Command(
            "add",
            "add a key to a keyring, or make one with it",
            _FILE,
            argument("--id", metavar="ID", help="how records name the key (default: today's date)"),
            run=_add,
        ),
        Command("list", "list the ids of the keys, from the oldest to the newest", _FILE, OUTPUT, run=_list),
    ),
)
