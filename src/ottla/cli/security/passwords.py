"""Passwords that commands need: from standard input, from a file, or from whoever sits at the terminal.

Never an argument, which everybody on the machine could read, and never printed. Owned by the process that runs one
command.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ottla.cli.args import CliError, UsageError, argument, switch

if TYPE_CHECKING:
    import argparse

# More is no password.
_MAX_PASSWORD_BYTES = 64 * 1024

PASSWORD = (
    switch("--password-stdin", help="read the password from standard input"),
    argument("--password-file", metavar="FILE", complete="file", help="read the password from a file"),
)


def password_of(args: argparse.Namespace, of: str, *, is_new: bool) -> str:
    """From where it was said to be, else from whoever sits at the terminal; a new one is asked for twice."""
    if args.password_stdin:
        return _first_line(sys.stdin.buffer.read(_MAX_PASSWORD_BYTES + 1), "standard input")
    if args.password_file is not None:
        with open(args.password_file, "rb") as file:
            return _first_line(file.read(_MAX_PASSWORD_BYTES + 1), args.password_file)
    if not sys.stdin.isatty():
        raise UsageError(
            "there is no terminal to ask for the password: give --password-stdin or --password-file FILE"
        )
    from getpass import getpass

    password = getpass(f"Password of {of}: ")
    if is_new and password != getpass("Again: "):
        raise CliError("the two are not the same")
    return _checked(password)


def _first_line(data: bytes, where: str) -> str:
    if len(data) > _MAX_PASSWORD_BYTES:
        raise CliError(f"{where} is longer than any password")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise CliError(f"{where} is no text in UTF-8") from None
    line, _, rest = text.partition("\n")
    if rest:
        raise CliError(f"{where} has more than one line; a password is one")
    return _checked(line.removesuffix("\r"))


def _checked(password: str) -> str:
    if not password:
        raise CliError("the password is empty")
    return password
