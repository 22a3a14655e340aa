"""`ottla group reset`: what the new offsets are, and putting them in place.

All of kafka-consumer-groups' ways. The plan is made first, for every group, and shown; only --execute carries it
out. Owned by the process that runs one command.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ottla.cli.args import CliError, UsageError
from ottla.cli.client import admin, report
from ottla.cli.output import counted, emit, say
from ottla.cli.selection import (
    LONGEST_DIGITS,
    chosen,
    is_number,
    parse_datetime_ms,
    parse_duration_ms,
    require_groups,
    topic_partitions,
)

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

    from ottla.client.admin.types import GroupDescription
    from ottla.client.blocking import Admin
    from ottla.model.errors import KafkaError
    from ottla.model.ids import TopicPartition

    Offsets = dict[TopicPartition, int]
    Plan = dict[str, Offsets]

_WAYS = (
    "to_earliest",
    "to_latest",
    "to_current",
    "to_offset",
    "shift_by",
    "to_datetime",
    "by_duration",
    "from_file",
)
_COLUMNS = ("group", "topic", "partition", "current_offset", "new_offset", "difference")


def run(args: argparse.Namespace) -> int:
    way = _check(args)
    with admin(args) as client:
        saved = _read_file(args) if way == "from_file" else {}
        groups = _groups(client, args)
        plans = {group.group_id: _plan(client, args, way, group, saved) for group in groups}
        current = {group.group_id: _committed(client, group) for group in groups}
        busy = [group for group in groups if group.members]
        for group in busy:
            if args.execute:
                raise CliError(
                    f"group {group.group_id!r} is {group.state} with {counted(len(group.members), 'member')}: "
                    "stop them first, offsets can only be reset while nobody reads"
                )
            say(f"group {group.group_id!r} is {group.state}: --execute refuses while it has members")
        errors = _execute(client, groups, plans) if args.execute else []
    _show(args, plans, current)
    if not args.execute:
        say("nothing was changed: this is what --execute would do")
    return report(errors)


def _check(args: argparse.Namespace) -> str:
    """Exactly one way, a scope, and no contradictions."""
    # An offset of 0 is a way, too, though it equals False.
    given = [way for way in _WAYS if getattr(args, way) is not None and getattr(args, way) is not False]
    names = ", ".join("--" + way.replace("_", "-") for way in _WAYS)
    if len(given) != 1:
        raise UsageError(f"{'no' if not given else 'more than one'} way to reset; give one of {names}")
    if args.dry_run and args.execute:
        raise UsageError("--dry-run and --execute exclude each other")
    require_groups(args)
    if given[0] != "from_file" and bool(args.topic) == args.all_topics:
        raise UsageError("which topics? give --topic TOPIC[:0,1] or --all-topics")
    return given[0]


def _groups(client: Admin, args: argparse.Namespace) -> list[GroupDescription]:
    """The groups; one that is not there yet will be made by its first offsets."""
    from ottla.client.admin.types import CLASSIC, GroupDescription
    from ottla.model.errors import ErrorCode

    groups, errors = chosen(client, args)
    for error in errors:
        if error.code is not ErrorCode.GROUP_ID_NOT_FOUND:
            raise error
    known = {group.group_id for group in groups}
    new = [name for name in args.group if name not in known]
    return groups + [GroupDescription(name, CLASSIC, "Dead", "", "", -1, []) for name in new]


# -- the plan -------------------------------------------------------------------------------------------------


def _committed(client: Admin, group: GroupDescription) -> dict[TopicPartition, int | None]:
    from ottla.cli.group.lag import committed_offsets

    return {} if group.state == "Dead" else committed_offsets(client, group)


def _plan(
    client: Admin,
    args: argparse.Namespace,
    way: str,
    group: GroupDescription,
    saved: dict[str | None, Offsets],
) -> Offsets:
    from ottla.cli.group.lag import existing_partitions

    committed = {tp: at for tp, at in _committed(client, group).items() if at is not None}
    if way == "from_file":
        wanted = saved.get(group.group_id, saved.get(None, {}))
        return _within(client, wanted)
    if args.all_topics:
        partitions = existing_partitions(client, set(committed))
    else:
        partitions = topic_partitions(client, args.topic)
    return _new_offsets(client, args, way, partitions, committed)


def _new_offsets(
    client: Admin,
    args: argparse.Namespace,
    way: str,
    partitions: list[TopicPartition],
    committed: Offsets,
) -> Offsets:
    from ottla.client.offsets import EARLIEST, LATEST

    if way == "to_earliest":
        return _look_up(client, partitions, EARLIEST)
    if way == "to_latest":
        return _look_up(client, partitions, LATEST)
    if way == "to_offset":
        return _within(client, dict.fromkeys(partitions, args.to_offset))
    if way == "shift_by":
        for tp in partitions:
            if tp not in committed:
                raise CliError(f"{tp.topic}-{tp.partition} has no committed offset to shift")
        return _within(client, {tp: committed[tp] + args.shift_by for tp in partitions})
    if way == "to_current":
        missing = [tp for tp in partitions if tp not in committed]
        have = {tp: committed[tp] for tp in partitions if tp in committed}
        return {**_within(client, have), **_look_up(client, missing, LATEST)}
    if way == "by_duration":
        return _at_time(client, partitions, time.time_ns() // 1_000_000 - parse_duration_ms(args.by_duration))
    return _at_time(client, partitions, parse_datetime_ms(args.to_datetime))


def _look_up(client: Admin, partitions: Iterable[TopicPartition], which: int) -> Offsets:
    found = client.list_offsets(dict.fromkeys(partitions, which))
    return {tp: at.offset for tp, at in found.items()}


def _at_time(client: Admin, partitions: list[TopicPartition], timestamp_ms: int) -> Offsets:
    """The first record at or after a time; the end where there is none."""
    from ottla.client.offsets import LATEST

    found = _look_up(client, partitions, max(timestamp_ms, 0))
    late = [tp for tp, offset in found.items() if offset < 0]
    return {**found, **_look_up(client, late, LATEST)}


def _within(client: Admin, wanted: Offsets) -> Offsets:
    """An offset outside of what the log holds becomes the nearest that is in it."""
    from ottla.client.offsets import EARLIEST, LATEST

    begins, ends = _look_up(client, wanted, EARLIEST), _look_up(client, wanted, LATEST)
    out: Offsets = {}
    for tp, offset in wanted.items():
        out[tp] = min(max(offset, begins[tp]), ends[tp])
        if out[tp] != offset:
            say(f"{tp.topic}-{tp.partition}: {offset} is not in the log, {out[tp]} is the nearest")
    return out


# -- files ----------------------------------------------------------------------------------------------------


def _read_file(args: argparse.Namespace) -> dict[str | None, Offsets]:
    """Offsets by group; under None those of a file that names no groups."""
    import sys

    name = "standard input" if args.from_file == "-" else args.from_file
    try:
        if args.from_file == "-":
            lines = sys.stdin.readlines()
        else:
            with open(name, encoding="utf-8", newline="") as file:
                lines = file.readlines()
    except UnicodeDecodeError:
        raise CliError(f"{name}: it is no text in UTF-8") from None
    # Spreadsheets begin a file with a mark of its encoding.
    lines[:1] = [line.removeprefix("\ufeff") for line in lines[:1]]
    return parse_csv(lines, name, args)


def parse_csv(lines: list[str], name: str, args: argparse.Namespace) -> dict[str | None, Offsets]:
    import csv

    from ottla.model.ids import TopicPartition

    out: dict[str | None, Offsets] = {}
    try:
        rows = list(csv.reader(lines))
    except csv.Error as error:  # a field that is too long, because a quotation mark is missing
        raise CliError(f"{name}: it is no CSV file: {error}") from None
    for number, fields in enumerate(rows, 1):
        if not fields:
            continue
        group, rest = (fields[0], fields[1:]) if len(fields) == 4 else (None, fields)
        if len(rest) != 3 or not is_number(rest[1]) or not is_number(rest[2], LONGEST_DIGITS):
            raise CliError(f"{name}, line {number}: it is [group,]topic,partition,offset")
        out.setdefault(group, {})[TopicPartition(rest[0], int(rest[1]))] = int(rest[2])
    if None in out and (len(args.group) != 1 or args.all_groups):
        raise CliError(f"{name} names no groups: it can be used for one group only")
    return out


# -- showing and doing ----------------------------------------------------------------------------------------


def _show(
    args: argparse.Namespace, plans: Plan, current: dict[str, dict[TopicPartition, int | None]]
) -> None:
    rows = []
    for group_id, plan in plans.items():
        for tp, offset in sorted(plan.items()):
            before = current[group_id].get(tp)
            rows.append(
                {
                    "group": group_id,
                    "topic": tp.topic,
                    "partition": tp.partition,
                    "current_offset": before,
                    "new_offset": offset,
                    "difference": None if before is None else offset - before,
                }
            )
    if args.export:
        _export(rows, several=len(plans) > 1 or args.all_groups)
    else:
        emit(rows, _COLUMNS, args.output)


def _export(rows: list[dict[str, object]], *, several: bool) -> None:
    """As kafka-consumer-groups writes it, and as --from-file reads it."""
    import csv
    import sys

    columns = ("group", "topic", "partition", "new_offset")
    writer = csv.writer(sys.stdout, lineterminator="\n")
    for row in rows:
        writer.writerow([row[column] for column in columns[0 if several else 1 :]])


def _execute(client: Admin, groups: list[GroupDescription], plans: Plan) -> list[KafkaError | None]:
    from ottla.client.admin.types import SHARE

    errors: list[KafkaError | None] = []
    for group in groups:
        plan = plans[group.group_id]
        if not plan:
            continue
        if group.group_type == SHARE:
            errors += client.alter_share_group_offsets(group.group_id, plan).values()
        else:
            errors += client.alter_group_offsets(group.group_id, plan).values()
    return errors
