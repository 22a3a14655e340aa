"""`ottla group`: list, describe, lag, reset and delete groups of every kind.

Owned by the process that runs one command.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.cli.args import OUTPUT, CliError, Command, UsageError, argument, switch
from ottla.cli.client import CLUSTER, admin, line, report
from ottla.cli.output import complain, emit, emit_json, say
from ottla.cli.selection import by_topic, chosen, require_groups, topic_partitions, with_guess, words

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Mapping, Sequence

    from ottla.client.admin.types import GroupDescription, MemberDescription
    from ottla.client.blocking import Admin
    from ottla.model.errors import KafkaError
    from ottla.model.ids import TopicPartition

_OFFSET_COLUMNS = (
    "group",
    "topic",
    "partition",
    "current_offset",
    "end_offset",
    "lag",
    "lag_seconds",
    "member",
    "client_id",
    "host",
)
_LONGEST_INTERVAL_S = 1_000_000
_MEMBER_COLUMNS = ("group", "member", "instance_id", "client_id", "host", "epoch", "partitions", "topics")
_STATE_COLUMNS = ("group", "type", "state", "coordinator", "assignor", "epoch", "members")


# Of every kind of group; a broker answers a word it does not know with no groups.
_STATES = (
    *("Stable", "Empty", "Dead", "PreparingRebalance", "CompletingRebalance"),
    *("Assigning", "Reconciling", "NotReady"),
)


def _list(args: argparse.Namespace) -> int:
    from ottla.client.admin.types import GROUP_TYPES

    states, types = words(args.state), words(args.type)
    _require_known("state", states, _STATES)
    _require_known("type", types, GROUP_TYPES)
    if "notready" in map(str.lower, states):
        states.append("not_ready")  # what brokers call it in a filter, and only there
    with admin(args) as client:
        rows = [
            {
                "group": group.group_id,
                "type": group.group_type or None,
                "state": group.state or None,
                "protocol": group.protocol_type or None,
                "coordinator": group.coordinator,
            }
            for group in client.list_groups(states=states, types=types)
        ]
    emit(rows, ("group", "type", "state", "protocol", "coordinator"), args.output)
    return 0


def _require_known(what: str, given: Sequence[str], known: Sequence[str]) -> None:
    plain = {word.lower() for word in known}
    for word in given:
        if word.lower() not in plain:
            raise UsageError(f"--{what} {word}: it is one of {', '.join(known)}")


# -- describe and lag -----------------------------------------------------------------------------------------


def _describe(args: argparse.Namespace) -> int:
    require_groups(args)
    if args.members + args.state + args.offsets > 1:
        raise UsageError("--members, --state and --offsets exclude each other")
    with admin(args) as client:
        groups, errors = chosen(client, args)
        if not groups and args.output == "table":
            return report(errors)
        if args.members:
            rows = [_member_row(group, member) for group in groups for member in group.members]
            _emit_members(rows, args)
        elif args.state:
            emit([_state_row(group) for group in groups], _STATE_COLUMNS, args.output)
        else:
            rows = offset_rows(client, args, groups)
            _print_offsets(groups, rows, args)
    return report(errors)


def _state_row(group: GroupDescription) -> dict[str, object]:
    return {
        "group": group.group_id,
        "type": group.group_type,
        "state": group.state,
        "protocol": group.protocol_type or None,
        "coordinator": group.coordinator,
        "assignor": group.assignor or None,
        "epoch": group.epoch,
        "target_epoch": group.target_epoch,
        "members": len(group.members),
    }


def _member_row(group: GroupDescription, member: MemberDescription) -> dict[str, Any]:
    return {
        "group": group.group_id,
        "member": member.member_id,
        "instance_id": member.group_instance_id,
        "client_id": member.client_id,
        "host": member.host.removeprefix("/"),
        "rack": member.rack,
        "epoch": member.epoch,
        "protocol": member.protocol,
        "topics": list(member.topics) or ([member.pattern] if member.pattern else None),
        "assignment": by_topic(member.assignment),
        "target": None if member.target is None else by_topic(member.target),
        "tasks": list(member.tasks) or None,
    }


def _emit_members(rows: list[dict[str, Any]], args: argparse.Namespace) -> None:
    if args.output == "json":
        emit_json(rows)
        return
    for row in rows:
        held = row["assignment"]
        row["partitions"] = sum(map(len, held.values())) or len(row["tasks"] or ())
        shown = [f"{topic}({','.join(map(str, numbers))})" for topic, numbers in held.items()]
        row["assignment"] = " ".join(shown + (row["tasks"] or [])) or None
    columns = (*_MEMBER_COLUMNS, "assignment") if args.verbose else _MEMBER_COLUMNS
    emit(rows, columns, "table")


def offset_rows(
    client: Admin, args: argparse.Namespace, groups: Sequence[GroupDescription]
) -> list[dict[str, Any]]:
    from ottla.cli.group.lag import Lags

    lags = Lags(client, args)
    for group in groups:
        lags.add(group)
    return lags.rows()


def _print_offsets(
    groups: Sequence[GroupDescription], rows: list[dict[str, Any]], args: argparse.Namespace
) -> None:
    if args.output == "json":
        documents = [
            {**_state_row(group), "partitions": [row for row in rows if row["group"] == group.group_id]}
            for group in groups
        ]
        emit_json(documents)
        return
    for group in groups:
        if not group.members:
            say(f"group {group.group_id!r} has no active members")
    emit(rows, _OFFSET_COLUMNS, "table")


def _lag(args: argparse.Namespace) -> int:
    require_groups(args)
    if not args.watch:
        return _show_lag(args)
    if not 0 < args.interval <= _LONGEST_INTERVAL_S:  # nor what is no number
        raise UsageError(f"--interval is more than 0 seconds, and {_LONGEST_INTERVAL_S} at most")
    import time

    while True:
        _print_time()
        try:
            _show_lag(args)
        except UsageError:
            raise
        except CliError as error:  # the brokers may be back by the next time
            complain(str(error))
        time.sleep(args.interval)  # between two tables


def _print_time() -> None:
    """The time of the next table, which on a terminal takes the place of the last one."""
    import sys
    from datetime import datetime

    if sys.stdout.isatty():
        print("\x1b[H\x1b[2J", end="")
    print(datetime.now().astimezone().isoformat(" ", "seconds"), flush=True)


def _show_lag(args: argparse.Namespace) -> int:
    from ottla.cli.group.lag import summary

    with admin(args) as client:
        groups, errors = chosen(client, args)
        if not groups and args.output == "table":
            return report(errors)
        rows = offset_rows(client, args, groups)
    if args.partitions:
        columns: tuple[str, ...] = _OFFSET_COLUMNS[:7]
        rows = [{column: row[column] for column in columns} for row in rows]
    else:
        rows, columns = summary(rows), ("group", "topic", "partitions", "lag", "lag_seconds")
    emit(rows, columns, args.output)
    return report(errors)


# -- delete ---------------------------------------------------------------------------------------------------


def _delete(args: argparse.Namespace) -> int:
    require_groups(args)
    with admin(args) as client:
        if args.topic:
            return _delete_offsets(client, args)
        names = args.group or [group.group_id for group in client.list_groups()]
        results = client.delete_groups(names)
        errors = []
        for name, error in results.items():
            if error is None:
                say(f"{name} deleted")
            else:
                errors.append(with_guess(client, name, error))
    return report(errors)


def _delete_offsets(client: Admin, args: argparse.Namespace) -> int:
    """Only what groups have committed for some topics."""
    from ottla.client.admin.types import SHARE

    groups, errors = chosen(client, args)
    code = report(errors)
    wanted = topic_partitions(client, args.topic)
    for group in groups:
        if group.group_type == SHARE:
            by_name = client.delete_share_group_offsets(group.group_id, sorted({tp.topic for tp in wanted}))
            results = {tp: by_name.get(tp.topic) for tp in wanted}
        else:
            results = client.delete_group_offsets(group.group_id, wanted)
        code |= _report_deleted(group.group_id, results)
    return code


def _report_deleted(group_id: str, results: Mapping[TopicPartition, KafkaError | None]) -> int:
    """Whose offsets are gone, and whose are still there and why; the exit code."""
    deleted = [tp for tp, error in results.items() if error is None]
    if deleted:
        say(f"{group_id}: offsets of {_names(deleted)} deleted")
    kept: dict[str, list[TopicPartition]] = {}
    for tp, error in results.items():
        if error is not None:
            kept.setdefault(line(error), []).append(tp)
    for why, partitions in kept.items():
        say(f"ottla: {group_id}: offsets of {_names(partitions)} not deleted: {why}")
    return 1 if kept else 0


def _names(partitions: Iterable[TopicPartition]) -> str:
    """orders:0,1 payments:0, as -t takes them."""
    named = by_topic(partitions)
    return " ".join(f"{topic}:{','.join(map(str, numbers))}" for topic, numbers in named.items())


# -- the command ----------------------------------------------------------------------------------------------

GROUPS = argument("group", nargs="*", metavar="GROUP", complete="group", help="its name")
ALL_GROUPS = switch("--all-groups", help="every group there is")
TOPIC = argument(
    "-t",
    "--topic",
    action="append",
    default=[],
    metavar="TOPIC[:P,P]",
    help="only this topic, or these of its partitions (may be repeated)",
)


def _reset(args: argparse.Namespace) -> int:
    from ottla.cli.group.reset import run

    return run(args)


COMMAND = Command(
    "group",
    "list, describe, reset and delete groups; how far behind they are",
    commands=(
        Command(
            "list",
            "list the groups of every kind",
            argument(
                "--state",
                action="append",
                default=[],
                metavar="STATE",
                help="only those in this state, e.g. stable,empty (may be repeated)",
            ),
            argument(
                "--type",
                action="append",
                default=[],
                metavar="TYPE",
                help="only those of this type: classic, consumer, share, streams (may be repeated)",
            ),
            *CLUSTER,
            OUTPUT,
            run=_list,
        ),
        Command(
            "describe",
            "show the offsets and the lag of groups, or their members, or their state",
            GROUPS,
            ALL_GROUPS,
            switch("--members", help="the members and what they have"),
            switch("--state", help="the state, the coordinator, the assignor"),
            switch("--offsets", help="offsets and lag of each partition (the default)"),
            switch("--verbose", help="with --members: which partitions each has"),
            *CLUSTER,
            OUTPUT,
            run=_describe,
        ),
        Command(
            "lag",
            "show how far groups are behind, in records and in seconds",
            GROUPS,
            ALL_GROUPS,
            switch("--partitions", help="a line for each partition, not for each topic"),
            switch("-w", "--watch", help="show it again and again, until Ctrl-C"),
            argument(
                "--interval",
                type=float,
                default=2.0,
                metavar="S",
                help="with --watch: how often (default: 2)",
            ),
            *CLUSTER,
            OUTPUT,
            run=_lag,
            details="""\
The lag in seconds is the age of the first record that is not read yet, by the record's own timestamp; of a topic
it is the largest of its partitions.""",
        ),
        Command(
            "reset",
            "move the committed offsets of groups (only shown, unless --execute is given)",
            GROUPS,
            ALL_GROUPS,
            TOPIC,
            switch("--all-topics", help="every topic the group has committed offsets for"),
            switch("--to-earliest", help="to the first record there is"),
            switch("--to-latest", help="to the end"),
            switch("--to-current", help="to what is committed; to the end where nothing is"),
            argument("--to-offset", type=int, metavar="N", help="to this offset"),
            argument("--shift-by", type=int, metavar="N", help="by so many records, back if negative"),
            argument("--to-datetime", metavar="TIME", help="to a time, e.g. 2026-01-31T12:00:00.000 (UTC)"),
            argument("--by-duration", metavar="DURATION", help="to so long ago, e.g. PT1H30M or 90m"),
            argument(
                "--from-file",
                metavar="FILE",
                complete="file",
                help="to what a CSV file says: [group,]topic,partition,offset (-: standard input)",
            ),
            switch("--export", help="print the new offsets as such a CSV file"),
            switch("--dry-run", help="only show what would be done (the default)"),
            switch("--execute", help="do it; the group must have no members"),
            *CLUSTER,
            OUTPUT,
            run=_reset,
            details="""examples:
  ottla group reset billing --to-earliest --topic orders              what would happen
  ottla group reset billing --by-duration PT2H --all-topics --execute  read the last two hours again
  ottla group reset billing --to-current --all-topics --export > saved.csv
  ottla group reset billing --from-file saved.csv --execute""",
        ),
        Command(
            "delete",
            "delete groups without members, or (with -t) only their offsets for topics",
            GROUPS,
            ALL_GROUPS,
            TOPIC,
            *CLUSTER,
            run=_delete,
        ),
    ),
)
