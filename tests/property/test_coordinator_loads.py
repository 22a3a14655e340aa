"""Any records, however little sense they make together: the shard is loaded, serves, and its timers do not stop it."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.property.wire.strategies import messages
from tests.support.batches import set_offset_and_epoch
from tests.support.consumer_world import ConsumerWorld
from tests.support.group_world import MemoryLog

from ottla.coordinator.group.offsets.records import offset_record
from ottla.coordinator.group.serde import GROUP_RECORDS
from ottla.coordinator.runtime import CoordinatorState
from ottla.coordinator.shard import CoordinatorRecord, CoordinatorResult
from ottla.records.record import build_batch
from ottla.wire.messages.logs.offsets import OffsetCommitValue

NAMES = {"group": ("g", "h"), "group_id": ("g", "h"), "member_id": ("m", "n"), "topic": ("t",)}


def keys(cls: Any) -> st.SearchStrategy[Any]:
    """Keys of one type, of few groups and members, so that they meet."""

    def renamed(key: Any, choices: tuple[int, int]) -> Any:
        for (name, values), choice in zip(NAMES.items(), itertools.cycle(choices), strict=False):
            if hasattr(key, name):
                setattr(key, name, values[choice % len(values)])
        return key

    return st.builds(renamed, messages(cls, 0), st.tuples(st.integers(0, 1), st.integers(0, 1)))


def records() -> st.SearchStrategy[CoordinatorRecord]:
    kinds = []
    for kind in GROUP_RECORDS._types.values():
        version = kind.write_version
        kinds.append(
            st.builds(
                lambda key, value, version=version: CoordinatorRecord(key, value, version),
                keys(kind.key),
                st.none() | messages(kind.value, version),
            )
        )
    return st.one_of(kinds)


@settings(max_examples=100, deadline=None)
@given(st.lists(records(), max_size=12))
def test_a_shard_of_groups_serves_whatever_was_written(found: list[CoordinatorRecord]) -> None:
    data = bytearray()
    for offset, record in enumerate(found):
        key, value = GROUP_RECORDS.encode(record)
        batch = build_batch([(0, key, value, ())])
        set_offset_and_epoch(batch, 0, offset, 0)
        data += batch
    world = ConsumerWorld({"t": 3}, log=MemoryLog(bytes(data), len(found)))
    assert world.shard.state is CoordinatorState.ACTIVE
    world.pass_ms(120_000)
    assert world.shard.state is CoordinatorState.ACTIVE
    world.machine.list_groups((), ())
    value = OffsetCommitValue(offset=7, metadata="", commit_timestamp=0)
    done = world.decide(
        lambda machine, now_ms: CoordinatorResult("ok", [offset_record("kept", "t", 0, value)])
    )
    world.pass_ms(1)
    assert done.result() == "ok"
