"""`ottla user`: list, describe, add, change and delete users who log in with SCRAM.

A password is asked for, or read from standard input or a file: it is never an argument, which everybody on the machine
could read, and never printed. Owned by the process that runs one command.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ottla.cli.args import OUTPUT, CliError, Command, UsageError, argument, switch
from ottla.cli.client import CLUSTER, admin, report
from ottla.cli.output import emit, say

if TYPE_CHECKING:
    import argparse

    from ottla.client.admin.types import ScramCredentialInfo
    from ottla.client.blocking import Admin

_MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
_DEFAULT_ITERATIONS = 4096
# More is no password.
_MAX_PASSWORD_BYTES = 64 * 1024


def _list(args: argparse.Namespace) -> int:
    with admin(args) as client:
        found = _everybody(client)
    rows = [{"user": user, "mechanisms": [info.mechanism for info in infos]} for user, infos in found.items()]
    emit(rows, ("user", "mechanisms"), args.output)
    return 0


def _describe(args: argparse.Namespace) -> int:
    from ottla.model.errors import KafkaError

    with admin(args) as client:
        found = client.describe_user_scram_credentials(args.user)
    rows = [
        {"user": user, "mechanism": info.mechanism, "iterations": info.iterations}
        for user, infos in found.items()
        if not isinstance(infos, KafkaError)
        for info in infos
    ]
    emit(rows, ("user", "mechanism", "iterations"), args.output)
    return report(infos for infos in found.values() if isinstance(infos, KafkaError))


def _add(args: argparse.Namespace) -> int:
    return _set_password(args, exists=False)


def _alter(args: argparse.Namespace) -> int:
    return _set_password(args, exists=True)


def _set_password(args: argparse.Namespace, *, exists: bool) -> int:
    from ottla.client.admin.types import UserScramCredentialUpsertion

    if not args.user:
        raise UsageError("a user has a name")
    with admin(args) as client:
        known = [info.mechanism for info in _everybody(client).get(args.user, [])]
        mechanisms = args.mechanism or (known if exists else ["SCRAM-SHA-512"])
        if exists and not known:
            raise CliError(f"there is no user {args.user!r}; `ottla user add` makes one")
        already = [mechanism for mechanism in mechanisms if mechanism in known]
        if not exists and already:
            raise CliError(
                f"user {args.user!r} has {' and '.join(already)} already; `ottla user alter` changes the password"
            )
        password = _password(args)
        for mechanism in mechanisms:
            # A user can be changed once in a request.
            change = UserScramCredentialUpsertion(args.user, password, mechanism, args.iterations)
            code = report(client.alter_user_scram_credentials([change]).values())
            if code:
                return code
    say(f"user {args.user}: {' and '.join(mechanisms)} {'changed' if exists else 'set'}")
    return 0


def _delete(args: argparse.Namespace) -> int:
    from ottla.client.admin.types import UserScramCredentialDeletion

    code = 0
    with admin(args) as client:
        everybody = _everybody(client)
        for user in dict.fromkeys(args.user):
            known = [info.mechanism for info in everybody.get(user, [])]
            mechanisms = args.mechanism or known
            if not known:
                if args.if_exists:
                    continue
                raise CliError(f"there is no user {user!r}")
            for mechanism in mechanisms:
                code |= report(
                    client.alter_user_scram_credentials(
                        [UserScramCredentialDeletion(user, mechanism)]
                    ).values()
                )
            if not code:
                say(f"user {user}: {' and '.join(mechanisms)} deleted")
    return code


def _everybody(client: Admin) -> dict[str, list[ScramCredentialInfo]]:
    from ottla.model.errors import KafkaError

    found = client.describe_user_scram_credentials()
    return {user: infos for user, infos in sorted(found.items()) if not isinstance(infos, KafkaError)}


def _password(args: argparse.Namespace) -> str:
    """From where it was said to be, else from whoever sits at the terminal."""
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

    password = getpass(f"Password of {args.user}: ")
    if password != getpass("Again: "):
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


_USER = argument("user", metavar="USER", help="the name to log in with")
_USERS = argument("user", nargs="+", metavar="USER", help="their names")
_MECHANISM = argument(
    "-m",
    "--mechanism",
    action="append",
    choices=_MECHANISMS,
    default=[],
    help="with this (may be repeated; default: SCRAM-SHA-512, or all that the user has)",
)
_PASSWORD = (
    argument(
        "--iterations",
        type=int,
        default=_DEFAULT_ITERATIONS,
        metavar="N",
        help="rounds of hashing, 4096 to 16384 (default: 4096)",
    ),
    switch("--password-stdin", help="read the password from standard input"),
    argument("--password-file", metavar="FILE", complete="file", help="read the password from a file"),
)

COMMAND = Command(
    "user",
    "list, add, change and delete users who log in with a password (SCRAM)",
    commands=(
        Command("list", "list users", *CLUSTER, OUTPUT, run=_list),
        Command("describe", "show how users can log in", _USERS, *CLUSTER, OUTPUT, run=_describe),
        Command(
            "add", "add a user; asks for the password", _USER, _MECHANISM, *_PASSWORD, *CLUSTER, run=_add
        ),
        Command(
            "alter", "change a password; asks for it", _USER, _MECHANISM, *_PASSWORD, *CLUSTER, run=_alter
        ),
        Command(
            "delete",
            "delete users, or one of their mechanisms",
            _USERS,
            _MECHANISM,
            switch("--if-exists", help="no error if there is no such user"),
            *CLUSTER,
            run=_delete,
        ),
    ),
)
