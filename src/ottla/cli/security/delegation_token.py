"""`ottla token`: create, list, renew and expire delegation tokens.

A token's HMAC is its secret: it is printed when the token is created, or where it is asked for, and is no argument.
Tokens are named by their ids. Owned by the process that runs one command.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cli.args import OUTPUT, CliError, Command, argument, switch
from ottla.cli.client import CLUSTER, admin
from ottla.cli.output import emit, emit_json, say
from ottla.cli.selection import parse_duration_ms

if TYPE_CHECKING:
    import argparse

    from ottla.client.admin.types import DelegationToken
    from ottla.client.blocking import Admin

_COLUMNS = ("token_id", "owner", "requester", "renewers", "issued", "expires", "max")


def _create(args: argparse.Namespace) -> int:
    with admin(args) as client:
        token = client.create_delegation_token(
            owner=None if args.owner is None else _principal(args.owner),
            renewers=[_principal(each) for each in args.renewer],
            max_lifetime_ms=-1 if args.max_lifetime is None else parse_duration_ms(args.max_lifetime),
        )
    row = _row(token, with_hmac=True)
    if args.output == "json":
        emit_json(row)
    else:
        emit([row], (*_COLUMNS, "hmac"), args.output)
        say(
            "whoever has the HMAC can log in with it: user name TOKEN ID, password HMAC, SCRAM, tokenauth=true"
        )
    return 0


def _list(args: argparse.Namespace) -> int:
    owners = [_principal(each) for each in args.owner] or None
    with admin(args) as client:
        found = client.describe_delegation_tokens(owners)
    columns = (*_COLUMNS, "hmac") if args.show_hmac else _COLUMNS
    emit([_row(token, with_hmac=args.show_hmac) for token in found], columns, args.output)
    return 0


def _renew(args: argparse.Namespace) -> int:
    period_ms = -1 if args.period is None else parse_duration_ms(args.period)
    with admin(args) as client:
        expires_ms = client.renew_delegation_token(_hmac(client, args.token_id), period_ms=period_ms)
    say(f"token {args.token_id} expires {_time(expires_ms)}")
    return 0


def _expire(args: argparse.Namespace) -> int:
    period_ms = -1 if args.after is None else parse_duration_ms(args.after)
    with admin(args) as client:
        expires_ms = client.expire_delegation_token(_hmac(client, args.token_id), period_ms=period_ms)
    if args.after is None:
        say(f"token {args.token_id} is gone")
    else:
        say(f"token {args.token_id} expires {_time(expires_ms)}")
    return 0


def _hmac(client: Admin, token_id: str) -> bytes:
    for token in client.describe_delegation_tokens():
        if token.token_id == token_id:
            return token.hmac
    raise CliError(f"there is no token {token_id!r} that you may see")


def _principal(text: str) -> str:
    """A user may be named without saying that it is one."""
    return text if ":" in text else f"User:{text}"


def _row(token: DelegationToken, *, with_hmac: bool) -> dict[str, object]:
    import base64

    row: dict[str, object] = {
        "token_id": token.token_id,
        "owner": token.owner,
        "requester": token.requester,
        "renewers": list(token.renewers),
        "issued": _time(token.issue_timestamp_ms),
        "expires": _time(token.expiry_timestamp_ms),
        "max": _time(token.max_timestamp_ms),
    }
    if with_hmac:
        row["hmac"] = base64.b64encode(token.hmac).decode()
    return row


def _time(timestamp_ms: int) -> str:
    from datetime import UTC, datetime

    try:
        return datetime.fromtimestamp(timestamp_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, OSError, ValueError):  # for ever
        return str(timestamp_ms)


_TOKEN_ID = argument("token_id", metavar="TOKEN-ID", help="the token, as `ottla token list` names it")

COMMAND = Command(
    "token",
    "create, list, renew and expire delegation tokens",
    commands=(
        Command(
            "create",
            "create a token, and print its HMAC",
            argument("--owner", metavar="USER", help="whose it is to be (default: yours)"),
            argument(
                "--renewer",
                action="append",
                default=[],
                metavar="USER",
                help="who may renew and expire it, beside its owner (may be repeated)",
            ),
            argument(
                "--max-lifetime",
                metavar="DURATION",
                help="how long it may last at most, e.g. 12h (default: the cluster's delegation.token.max.lifetime.ms)",
            ),
            *CLUSTER,
            OUTPUT,
            run=_create,
        ),
        Command(
            "list",
            "list the tokens you may see",
            argument(
                "--owner",
                action="append",
                default=[],
                metavar="USER",
                help="only those of this user (may be repeated)",
            ),
            switch("--show-hmac", help="also print their HMACs, which are secrets"),
            *CLUSTER,
            OUTPUT,
            run=_list,
        ),
        Command(
            "renew",
            "make a token last longer",
            _TOKEN_ID,
            argument(
                "--period",
                metavar="DURATION",
                help="how long from now, e.g. 6h (default: the cluster's delegation.token.expiry.time.ms)",
            ),
            *CLUSTER,
            run=_renew,
        ),
        Command(
            "expire",
            "end a token, at once or after a while",
            _TOKEN_ID,
            argument("--after", metavar="DURATION", help="after so long, e.g. 10m (default: at once)"),
            *CLUSTER,
            run=_expire,
        ),
    ),
)
