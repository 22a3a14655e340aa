"""What a command line selects: topics and partitions (`orders`, `orders:0,3`), groups, points in time, durations.

Owned by the process that runs one command.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.cli.args import CliError, UsageError, nearest
from ottla.cli.output import say

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Sequence

    from ottla.client.admin.types import GroupDescription
    from ottla.client.blocking import Admin
    from ottla.model.errors import KafkaError
    from ottla.model.ids import TopicPartition
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
# Those of numbers of 63 bits, as Kafka's are. Python reads none of some thousand digits.
MAX_DIGITS = 18
LONGEST_DIGITS = 19


def is_number(text: str, digits: int = MAX_DIGITS) -> bool:
    """A number that can be an offset, a partition or a time; with LONGEST_DIGITS, or a little more than one."""
    return text.isdecimal() and len(text) <= digits


def parse_topic(word: str) -> tuple[str, list[int] | None]:
    """The topic, and its partitions if any are named. A topic's name has no colon."""
    topic, colon, numbers = word.partition(":")
    if not colon:
        return topic, None
    parts = numbers.split(",")
    if not topic or not all(map(is_number, parts)):
        raise UsageError(f"{word}: it is TOPIC or TOPIC:0,1,2")
    return topic, [int(part) for part in parts]


def topic_partitions(client: Admin, named: Iterable[str]) -> list[TopicPartition]:
    """All partitions that are meant; CliError for one that is not there."""
    from ottla.model.errors import KafkaError
    from ottla.model.ids import TopicPartition

    wanted = [parse_topic(word) for word in named]
    described = client.describe_topics(dict.fromkeys(topic for topic, _ in wanted))
    out: dict[TopicPartition, None] = {}
    for topic, numbers in wanted:
        found = described[topic]
        if isinstance(found, KafkaError):
            raise found
        known = found.partitions
        for number in known if numbers is None else numbers:
            if number not in known:
                raise CliError(f"topic {topic!r} has partitions 0 to {len(known) - 1}, not {number}")
            out[TopicPartition(topic, number)] = None
    return sorted(out)


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    out: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        out.setdefault(topic, []).append(number)
    return out


def words(given: Sequence[str]) -> list[str]:
    """Words given one by one or with commas between them."""
    return [word.strip() for text in given for word in text.split(",") if word.strip()]


def require_groups(args: argparse.Namespace) -> None:
    """Either groups are named or all are meant: said before any broker is asked."""
    if bool(args.group) == args.all_groups:
        raise UsageError("name one group or more, or give --all-groups")


def chosen(client: Admin, args: argparse.Namespace) -> tuple[list[GroupDescription], list[KafkaError]]:
    """The groups the command is about, described, and an error for each that is not there."""
    from ottla.model.errors import KafkaError

    types = None
    names = list(args.group)
    if args.all_groups:
        listed = client.list_groups()
        names = [group.group_id for group in listed]
        types = {group.group_id: group.group_type for group in listed if group.group_type}
    found = client.describe_groups(names, types=types)
    errors = [
        with_guess(client, name, error) for name, error in found.items() if isinstance(error, KafkaError)
    ]
    groups = [group for group in found.values() if not isinstance(group, KafkaError)]
    for group in groups:
        if group.note:
            say(f"warning: group {group.group_id!r}: {group.note}")
    return groups, errors


def with_guess(client: Admin, name: str, error: KafkaError) -> KafkaError:
    """The error, with the group that was probably meant."""
    from ottla.model.errors import ErrorCode, KafkaError

    if error.code is not ErrorCode.GROUP_ID_NOT_FOUND:
        return error
    guess = nearest(name, [group.group_id for group in client.list_groups()])
    return KafkaError(error.code, f"{error.message}; did you mean {guess!r}?") if guess else error


def parse_datetime_ms(text: str) -> int:
    """ISO 8601, e.g. 2026-01-31T12:00:00.000; without a zone it is UTC, as kafka-consumer-groups has it."""
    from ottla.model.clock import moment_ms

    try:
        return moment_ms(text)
    except ValueError:
        raise UsageError(
            f"{text!r} is no time like 2026-01-31T12:00:00.000 or 2026-01-31T12:00:00+01:00"
        ) from None


def parse_duration_ms(text: str) -> int:
    """ISO 8601 (PnDTnHnMnS) or short, e.g. 90s, 15m, 2h, 7d."""
    import re

    iso = re.fullmatch(
        r"P(?:(\d{1,18})D)?(?:T(?=\d)(?:(\d{1,18})H)?(?:(\d{1,18})M)?(?:(\d{1,18})(?:\.(\d{1,9}))?S)?)?",
        text,
        re.IGNORECASE,
    )
    if iso and any(iso.groups()):
        days, hours, minutes, seconds = (int(part or 0) for part in iso.groups()[:4])
        millis = int((iso[5] or "").ljust(3, "0")[:3] or 0)
        return ((days * 24 + hours) * 60 + minutes) * 60_000 + seconds * 1000 + millis
    short = re.fullmatch(r"(\d{1,18})(ms|s|m|h|d)", text)
    if short:
        return int(short[1]) * _UNITS_MS[short[2]]
    raise UsageError(f"{text!r} is no duration like PT1H30M, P2D, 90s, 15m, 2h")


def parse_moment_ms(text: str) -> int:
    """Milliseconds since 1970, a time as above, `now`, or a duration before it (15m and -15m are the same)."""
    import time

    if is_number(text):
        return int(text)
    now_ms = time.time_ns() // 1_000_000
    if text == "now":
        return now_ms
    try:
        return max(now_ms - parse_duration_ms(text.removeprefix("-")), 0)
    except UsageError:
        pass  # then it is a time
    try:
        return parse_datetime_ms(text)
    except UsageError:
        raise UsageError(
            f"{text!r} is no time: milliseconds, 2026-01-31T12:00:00 (UTC, or with a zone), "
            "or 15m, 2h, 7d for so long ago"
        ) from None
