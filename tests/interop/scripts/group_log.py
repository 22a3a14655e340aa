"""What the group coordinator has written, read from its topic as any consumer would."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.interop.scripts.fetch import fetch_body, fetch_topic, part
from tests.interop.scripts.script import Script

from ottla.coordinator.group.serde import GROUP_RECORDS
from ottla.coordinator.java_hash import partition_for
from ottla.records.batch import iter_batches
from ottla.records.record import Record, read_records

TOPIC, PARTITIONS = "__consumer_offsets", 50
FETCH = 1


class Logged(NamedTuple):
    """One record: its bytes, and what they mean."""

    raw: Record
    decoded: Any


def logged(s: Script, group: str) -> Iterator[Logged]:
    """The group's records, the oldest first. Transaction markers, which other scripts leave there, are none."""
    assert s.is_led(TOPIC, PARTITIONS)
    partition = partition_for(group, PARTITIONS)
    answer = s.quiet(FETCH, 12, fetch_body(fetch_topic(s, TOPIC, part(partition))))
    data = bytes(answer["responses"][0]["partitions"][0]["records"] or b"")
    for batch in iter_batches(data):
        for record in () if batch.is_control else read_records(batch):
            decoded = GROUP_RECORDS.decode(record.key, record.value)
            if decoded is not None and _group_of(decoded.key) == group:
                yield Logged(record, decoded)


def _group_of(key: Any) -> Any:
    return getattr(key, "group_id", getattr(key, "group", None))
