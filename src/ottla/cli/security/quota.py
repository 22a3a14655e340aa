"""`ottla quota`: list, set and delete quotas of users, client ids and addresses.

Owned by the process that runs one command.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cli.args import OUTPUT, CliError, Command, UsageError, argument, nearest, pairs, switch
from ottla.cli.client import CLUSTER, admin, report
from ottla.cli.output import emit, say

if TYPE_CHECKING:
    import argparse

    from ottla.client.admin.types import QuotaEntity

_KEYS = (
    "producer_byte_rate",
    "consumer_byte_rate",
    "request_percentage",
    "controller_mutation_rate",
    "connection_creation_rate",
)
_DETAILS = """keys:
  producer_byte_rate        bytes a second to each broker
  consumer_byte_rate        bytes a second from each broker
  request_percentage        time of a broker, in per cent of one thread
  controller_mutation_rate  partitions created and deleted a second
  connection_creation_rate  connections a second, of an address (--ip)

The most specific quota counts: of a user's client, of a user, of a client, each before its default."""


def _named(args: argparse.Namespace) -> dict[str, str | None]:
    """The parts of the entity that the options name; None for a default."""
    named: dict[str, str | None] = {}
    for kind, name, default in (
        ("user", args.user, args.default_user),
        ("client-id", args.client_id, args.default_client_id),
        ("ip", args.ip, args.default_ip),
    ):
        if name is not None and default:
            raise UsageError(f"either --{kind} or --default-{kind}")
        if name == "":
            raise UsageError(f"--{kind} needs a name")
        if name is not None or default:
            named[kind] = name
    if "ip" in named and len(named) > 1:
        raise UsageError("an address has a quota of its own: --ip goes with neither --user nor --client-id")
    return named


def _entity(args: argparse.Namespace) -> QuotaEntity:
    named = _named(args)
    if not named:
        raise UsageError("whose quota? give --user, --client-id or --ip, or --default-...")
    return tuple(sorted(named.items(), key=lambda part: part[0]))


def _list(args: argparse.Namespace) -> int:
    from ottla.client.admin.types import QuotaFilter

    with admin(args) as client:
        found = client.describe_client_quotas(QuotaFilter(_named(args), strict=args.strict))
    rows = []
    for entity, values in sorted(found.items(), key=lambda entry: repr(entry[0])):
        # A default has no name: in a table it is written so that nobody can be called that.
        shown = {
            kind: name if name is not None or args.output == "json" else "<default>" for kind, name in entity
        }
        for key, value in sorted(values.items()):
            rows.append({**shown, "key": key, "value": _number(value)})
    emit(rows, ("user", "client-id", "ip", "key", "value"), args.output)
    return 0


def _set(args: argparse.Namespace) -> int:
    values: dict[str, float | None] = {}
    for key, text in pairs(args.quota, "quota set"):
        try:
            values[key] = float(text)
        except ValueError:
            raise UsageError(f"{key}={text}: a quota is a number") from None
    return _alter(args, values)


def _delete(args: argparse.Namespace) -> int:
    if bool(args.key) is args.all:
        raise UsageError("what is to be deleted? give one KEY or more, or --all")
    if not args.all:
        return _alter(args, dict.fromkeys(args.key))
    from ottla.client.admin.types import QuotaFilter

    entity = _entity(args)
    with admin(args) as client:
        found = client.describe_client_quotas(QuotaFilter(dict(entity), strict=True)).get(entity)
    if not found:
        raise CliError("there is no such quota")
    return _alter(args, dict.fromkeys(found))


def _alter(args: argparse.Namespace, values: dict[str, float | None]) -> int:
    from ottla.client.admin.users import described_entity

    entity = _entity(args)
    for key, value in values.items():
        if value is not None and key not in _KEYS and (guess := nearest(key, _KEYS)) is not None:
            raise UsageError(f"unknown quota {key!r}; did you mean {guess!r}?")
    with admin(args) as client:
        results = client.alter_client_quotas({entity: values}, validate_only=args.validate_only)
    code = report(results.values())
    if not code:
        changes = ", ".join(
            f"{k} deleted" if v is None else f"{k}={_number(v)} set" for k, v in values.items()
        )
        only = " (only validated, not done)" if args.validate_only else ""
        say(f"{described_entity(entity)}: {changes}{only}")
    return code


def _number(value: float) -> int | float:
    """Without a fraction where there is none; Apache Kafka's controller also takes what is no number."""
    return int(value) if value.is_integer() else value


_ENTITY = (
    argument("--user", metavar="NAME", help="of this user"),
    switch("--default-user", help="of users that have none of their own"),
    argument("--client-id", metavar="ID", help="of this client"),
    switch("--default-client-id", help="of clients that have none of their own"),
    argument("--ip", metavar="ADDRESS", help="of this address, or of this host"),
    switch("--default-ip", help="of addresses that have none of their own"),
)
_VALIDATE = switch("--validate-only", help="only say whether it could be changed")

COMMAND = Command(
    "quota",
    "list, set and delete quotas of users, clients and addresses",
    commands=(
        Command(
            "list",
            "list quotas: all of them, or those of who is named",
            *_ENTITY,
            switch("--strict", help="only of exactly who is named, and not also of their clients"),
            *CLUSTER,
            OUTPUT,
            run=_list,
            details=_DETAILS,
        ),
        Command(
            "set",
            "set quotas",
            argument("quota", nargs="+", metavar="KEY=VALUE", help="see below"),
            *_ENTITY,
            _VALIDATE,
            *CLUSTER,
            run=_set,
            details=_DETAILS,
        ),
        Command(
            "delete",
            "delete quotas, so that the next less specific one counts",
            argument("key", nargs="*", metavar="KEY", help="see below"),
            switch("--all", help="all that were set"),
            *_ENTITY,
            _VALIDATE,
            *CLUSTER,
            run=_delete,
            details=_DETAILS,
        ),
    ),
)
