"""How far groups are behind: in records, and in seconds by the timestamp of the first record not read yet.

Owned by the process that runs one command.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.cli.client import line
from ottla.cli.output import say
from ottla.client.admin.types import SHARE

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping

    from ottla.client.admin.types import GroupDescription, MemberDescription
    from ottla.client.blocking import Admin, Consumer
    from ottla.model.ids import TopicPartition

# Records are read for the timestamps of so many partitions at once, one batch of each.
_PARTITIONS_AT_ONCE = 200
_READ_TIMEOUT_MS = 10_000.0
_POLL_MS = 500.0


class _Position(NamedTuple):
    """How far a group of any kind has come in a partition."""

    offset: int | None = None
    # What the broker says. Of a share group only it can tell: records after the first one open may be done with.
    lag: int | None = None

    def behind(self, group: GroupDescription, end: int | None) -> int | None:
        """The lag in records, if it can be known."""
        if group.group_type == SHARE:
            return self.lag
        return None if self.offset is None or end is None else max(end - self.offset, 0)


class Lags:
    """Collects groups, then asks for all their ends and timestamps together."""

    def __init__(self, client: Admin, args: argparse.Namespace) -> None:
        self._client = client
        self._args = args
        self._groups: list[tuple[GroupDescription, dict[TopicPartition, _Position]]] = []

    def add(self, group: GroupDescription) -> None:
        positions = _positions(self._client, group)
        for member in group.members:
            for tp in member.assignment:
                positions.setdefault(tp, _Position())
        self._groups.append((group, positions))

    def rows(self) -> list[dict[str, Any]]:
        """One for each group and partition."""
        partitions = {tp for _, positions in self._groups for tp in positions}
        ends = end_offsets(self._client, partitions)
        ages = self._ages(ends)
        out = []
        for group, positions in self._groups:
            owners = {tp: member for member in group.members for tp in member.assignment}
            out += [
                _row(group, tp, at, ends.get(tp), ages.get((tp, at.offset)), owners.get(tp))
                for tp, at in sorted(positions.items())
            ]
        return out

    def _ages(self, ends: Mapping[TopicPartition, int]) -> dict[tuple[TopicPartition, int | None], float]:
        """Seconds since the first unread record, by partition and offset: groups often stand at the same."""
        behind = {
            (tp, at.offset)
            for group, positions in self._groups
            for tp, at in positions.items()
            if at.offset is not None and tp in ends and at.offset < ends[tp] and at.behind(group, ends[tp])
        }
        if not behind:
            return {}
        now_ms = time.time_ns() // 1_000_000
        stamps = first_timestamps(self._args, sorted(behind), ends)
        return {place: max(now_ms - stamp, 0) / 1000 for place, stamp in stamps.items()}


def _row(
    group: GroupDescription,
    tp: TopicPartition,
    at: _Position,
    end: int | None,
    age: float | None,
    member: MemberDescription | None,
) -> dict[str, Any]:
    lag = at.behind(group, end)
    return {
        "group": group.group_id,
        "topic": tp.topic,
        "partition": tp.partition,
        "current_offset": at.offset,
        "end_offset": end,
        "lag": lag,
        "lag_seconds": 0.0 if lag == 0 else (None if age is None else round(age, 1)),
        "member": None if member is None else member.member_id,
        "client_id": None if member is None else member.client_id,
        "host": None if member is None else member.host.removeprefix("/"),
    }


def committed_offsets(client: Admin, group: GroupDescription) -> dict[TopicPartition, int | None]:
    """What a group of any kind has committed, or where a share group starts."""
    return {tp: at.offset for tp, at in _positions(client, group).items()}


def _positions(client: Admin, group: GroupDescription) -> dict[TopicPartition, _Position]:
    from ottla.model.errors import KafkaError

    if group.group_type == SHARE:
        found = client.list_share_group_offsets(group.group_id)
        return {
            tp: _Position() if isinstance(at, KafkaError) else _Position(at.start_offset, at.lag)
            for tp, at in found.items()
        }
    offsets = client.list_group_offsets(group.group_id)
    return {tp: _Position(None if at is None else at.offset) for tp, at in offsets.items()}


def end_offsets(client: Admin, partitions: set[TopicPartition]) -> dict[TopicPartition, int]:
    """One past the last record, for partitions that (still) exist."""
    from ottla.client.offsets import LATEST

    existing = existing_partitions(client, partitions)
    return {tp: at.offset for tp, at in client.list_offsets(dict.fromkeys(existing, LATEST)).items()}


def existing_partitions(client: Admin, partitions: set[TopicPartition]) -> list[TopicPartition]:
    """Those with a leader: a group may have committed offsets of a topic that is gone."""
    from ottla.model.errors import KafkaError

    described = client.describe_topics(sorted({tp.topic for tp in partitions}))
    out = []
    for tp in sorted(partitions):
        topic = described[tp.topic]
        info = None if isinstance(topic, KafkaError) else topic.partitions.get(tp.partition)
        if info is not None and info.leader >= 0:
            out.append(tp)
    return out


def first_timestamps(
    args: argparse.Namespace,
    places: list[tuple[TopicPartition, int]],
    ends: Mapping[TopicPartition, int],
) -> dict[tuple[TopicPartition, int], int]:
    """The timestamp of the first record at or after each place; nothing where there is none up to the end."""
    from ottla.cli.client import settings
    from ottla.client.blocking import Consumer
    from ottla.client.config import ConsumerConfig
    from ottla.security.encryption import LEAVE_SEALED, SETTING

    found: dict[tuple[TopicPartition, int], int] = {}
    fixed: dict[str, object] = {
        "auto_offset_reset": "earliest",
        "allow_auto_create_topics": False,
        "max_partition_fetch_bytes": 1,  # at least one batch comes all the same (KIP-74)
    }
    given = settings(args, ConsumerConfig, **fixed)
    # Only the timestamps count, and those are never encrypted.
    given.pop("encryption_key", None)
    given[SETTING] = LEAVE_SEALED
    left = list(places)
    while left:
        # A partition can be read at one place at a time.
        now = dict(reversed(left[:_PARTITIONS_AT_ONCE]))
        found.update(_read_what_can_be(lambda: Consumer(given), now, ends))
        left = [place for place in left if now.get(place[0]) != place[1]]
    return found


def _read_what_can_be(
    consumer: Callable[[], Consumer], places: dict[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> dict[tuple[TopicPartition, int], int]:
    """Whoever may know how far a group is need not be allowed to read, and a batch may be damaged: what cannot be read
    has no age, and is looked for by halves."""
    from ottla.client.errors import ClientError
    from ottla.model.errors import KafkaError

    try:
        with consumer() as reading:
            return _read(reading, places, ends)
    except ClientError:
        raise
    except KafkaError as error:
        sorted_places = sorted(places.items())
        half = len(sorted_places) // 2
        if not half:
            say(f"warning: the lag in seconds of {sorted_places[0][0]} is not known: {line(error)}")
            return {}
    first, second = dict(sorted_places[:half]), dict(sorted_places[half:])
    return {**_read_what_can_be(consumer, first, ends), **_read_what_can_be(consumer, second, ends)}


def _read(
    consumer: Consumer, places: dict[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> dict[tuple[TopicPartition, int], int]:
    found: dict[tuple[TopicPartition, int], int] = {}
    waiting = dict(places)
    consumer.assign([])
    consumer.assign(waiting)
    for tp, offset in waiting.items():
        consumer.seek(tp, offset)
    deadline = time.monotonic() * 1000 + _READ_TIMEOUT_MS
    while waiting and time.monotonic() * 1000 < deadline:
        for tp, records in consumer.poll(_POLL_MS).items():
            found[tp, waiting.pop(tp)] = records[0].timestamp
        # What is left of a partition may be markers only: then there is no record to be late for.
        for tp in [tp for tp in waiting if consumer.position(tp) >= ends[tp]]:
            del waiting[tp]
        if waiting.keys() != consumer.assignment():
            consumer.assign(waiting)
    return found


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of partitions as rows of topics: records add up, the oldest counts."""
    topics: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        topics.setdefault((row["group"], row["topic"]), []).append(row)
    return [
        {
            "group": group,
            "topic": topic,
            "partitions": len(found),
            "lag": _total([row["lag"] for row in found]),
            "lag_seconds": max(
                (row["lag_seconds"] for row in found if row["lag_seconds"] is not None), default=None
            ),
        }
        for (group, topic), found in topics.items()
    ]


def _total(lags: list[int | None]) -> int | None:
    known = [lag for lag in lags if lag is not None]
    return sum(known) if known else None
