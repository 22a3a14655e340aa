"""Scripts: the share coordinator's APIs (83 to 87), and the records they leave in __share_group_state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from tests.interop.process import wait_until
from tests.interop.scripts.consumer_groups import _fields, _sorted
from tests.interop.scripts.entities import ZERO_ID
from tests.interop.scripts.fetch import fetch_body, fetch_topic, part
from tests.interop.scripts.masks import clock, masked
from tests.interop.scripts.script import Script

from ottla.coordinator.java_hash import partition_for
from ottla.model.ids import Uuid, uuid_to_str
from ottla.records.batch import iter_batches
from ottla.records.record import read_records
from ottla.share.coordinator import SHARE_RECORDS

INITIALIZE, READ, WRITE, DELETE, SUMMARY = 83, 84, 85, 86, 87
FIND, FETCH, DELETE_TOPICS = 10, 1, 20
SHARE = 2
UNKNOWN_ID = "0f0f0f0f-0000-4000-8000-000000000001"
AVAILABLE, ACKNOWLEDGED, ARCHIVED = 0, 2, 4

Runs = Sequence[tuple[int, int, int, int]]  # first offset, last offset, state, delivery count


class SharePartition:
    """One share partition, asked about one at a time."""

    def __init__(self, s: Script, group: str, topic: str, partition: int = 0) -> None:
        self.s = s
        self.group = group
        self.topic = topic
        self.partition = partition

    def ask(self, api: int, case: str, version: int | None = None, **values: Any) -> dict[str, Any]:
        topic_id = UUID(self.s.topic_ids[self.topic])
        row = {"partition": self.partition, **values}
        body = {"group_id": self.group, "topics": [{"topic_id": topic_id, "partitions": [row]}]}
        version = self.s.newest(api) if version is None else version
        return self.s.ask(api, version, body, f"{self.group}, {case}")

    def initialize(self, case: str, state_epoch: int = 1, start_offset: int = -1) -> None:
        self.ask(INITIALIZE, case, state_epoch=state_epoch, start_offset=start_offset)

    def read(self, case: str = "read", leader_epoch: int = -1) -> None:
        self.ask(READ, case, leader_epoch=leader_epoch)

    def wait_for_deliveries(self, count: int) -> None:
        """Until the first run that is kept says so many: what a closed session held is written after its answer."""
        row = {"partition": self.partition, "leader_epoch": -1}
        topics = [{"topic_id": UUID(self.s.topic_ids[self.topic]), "partitions": [row]}]

        def there() -> bool:
            answer = self.s.quiet(READ, 0, {"group_id": self.group, "topics": topics})
            runs = answer["results"][0]["partitions"][0]["state_batches"]
            return bool(runs) and runs[0]["delivery_count"] == count

        wait_until(there, 90, f"{count} deliveries in {self.group}")

    def write(
        self,
        case: str,
        runs: Runs = (),
        *,
        state_epoch: int = 1,
        leader_epoch: int = 0,
        start_offset: int = -1,
        complete: int = 0,
        version: int | None = None,
    ) -> None:
        batches = [
            {"first_offset": first, "last_offset": last, "delivery_state": state, "delivery_count": count}
            for first, last, state, count in runs
        ]
        self.ask(
            WRITE,
            case,
            version,
            state_epoch=state_epoch,
            leader_epoch=leader_epoch,
            start_offset=start_offset,
            delivery_complete_count=complete,
            state_batches=batches,
        )

    def summary(self, case: str = "summary") -> None:
        for version in self.s.versions(SUMMARY):
            self.ask(SUMMARY, case, version, leader_epoch=-1)


def share_coordinated(s: Script, group: str, topic: str, partitions: int = 1) -> None:
    """Wait until the share partitions of a group have a coordinator that answers."""
    topic_id = UUID(s.topic_ids[topic])
    keys = [f"{group}:{uuid_to_str(Uuid(topic_id.bytes))}:{number}" for number in range(partitions)]
    rows = [{"partition": number, "leader_epoch": -1} for number in range(partitions)]
    body = {"group_id": group, "topics": [{"topic_id": topic_id, "partitions": rows}]}

    def ready() -> bool:
        s.quiet(FIND, 6, {"key_type": SHARE, "coordinator_keys": keys})
        answer = s.quiet(SUMMARY, 1, body)
        return bool(answer) and all(
            p["error_code"] == "none" for t in answer["results"] for p in t["partitions"]
        )

    wait_until(ready, 90, f"share coordinators of {group}")


def state_records(s: Script, group: str, topic: str, partition: int = 0) -> list[Any]:
    """The records of a share partition as they are in the log."""
    assert s.is_led("__share_group_state", 50)
    raw = Uuid(UUID(s.topic_ids[topic]).bytes)
    index = partition_for(f"{group}:{uuid_to_str(raw)}:{partition}", 50)
    answer = s.quiet(FETCH, 12, fetch_body(fetch_topic(s, "__share_group_state", part(index))))
    data = answer["responses"][0]["partitions"][0]["records"] or b""
    shown = []
    for batch in iter_batches(bytes(data)):
        for record in read_records(batch):
            decoded = SHARE_RECORDS.decode(record.key, record.value)
            assert decoded is not None
            key = decoded.key
            if (key.group_id, key.topic_id, key.partition) == (group, raw, partition):
                shown.append(_shown(s, key, decoded.value))
    return shown


def _shown(s: Script, key: Any, value: Any) -> Any:
    fields = None if value is None else _fields(value)
    for name in ("create_timestamp", "write_timestamp"):
        if fields and name in fields:
            fields[name] = clock(fields[name])
    row = {"type": type(key).__name__, "value": fields, "key": _fields(key)}
    return _sorted(masked(0, row, s.symbols))


# ---- the scripts ------------------------------------------------------------------------------------------------


def life(s: Script) -> None:
    """A share partition from its first state to its last."""
    topic = s.create("share-state", 2)
    group = "share-state-life"
    share_coordinated(s, group, topic, 2)
    p = SharePartition(s, group, topic)
    p.summary("before anything")
    p.read("before anything")
    p.write("before anything", [(0, 1, ACKNOWLEDGED, 1)])
    p.ask(DELETE, "before anything")
    p.initialize("first")
    p.summary("initialized")
    p.read("initialized")
    p.read("by a leader", leader_epoch=2)
    p.read("by the same leader", leader_epoch=2)
    p.read("by an older leader", leader_epoch=1)
    p.summary("read by a leader")
    p.write("by an older leader", leader_epoch=1)
    p.write("of an older state", leader_epoch=2, state_epoch=0)
    p.write("of a newer state", leader_epoch=2, state_epoch=5)
    for version in s.versions(WRITE):
        p.write("start offset", leader_epoch=2, start_offset=10 + version, complete=3, version=version)
        p.read(f"after v{version}")
        p.summary(f"after v{version}")
    p.write("without a leader's epoch", [(20, 29, AVAILABLE, 1)], leader_epoch=-1, state_epoch=-1)
    p.write("by a newer leader", [(30, 39, ACKNOWLEDGED, 1)], leader_epoch=7)
    p.read("after that")
    p.read("by the leader before", leader_epoch=3)
    p.summary("after that")
    p.initialize("with an older state", state_epoch=0, start_offset=3)
    p.initialize("with the same state", state_epoch=1, start_offset=5)
    p.read("anew")
    p.summary("anew")
    p.initialize("without an epoch", state_epoch=-1, start_offset=6)
    p.read("without an epoch")
    p.initialize("with a newer state", state_epoch=9, start_offset=7)
    p.read("with a newer state")
    p.write("of the state before", state_epoch=1)
    p.ask(DELETE, "now")
    p.ask(DELETE, "again")
    p.summary("deleted")
    p.read("deleted")
    p.initialize("after its deletion", state_epoch=0)
    p.read("after its deletion")
    s.note("records of a share partition's life", state_records(s, group, topic))


MERGES: list[tuple[str, list[Runs]]] = [
    ("the same twice", [[(0, 9, ACKNOWLEDGED, 1)], [(0, 9, ACKNOWLEDGED, 1)]]),
    ("neighbours", [[(0, 9, ACKNOWLEDGED, 1)], [(10, 19, ACKNOWLEDGED, 1)]]),
    ("neighbours of different counts", [[(0, 9, AVAILABLE, 1)], [(10, 19, AVAILABLE, 2)]]),
    ("a part acknowledged", [[(0, 9, AVAILABLE, 1)], [(3, 5, ACKNOWLEDGED, 1)]]),
    ("a late release", [[(0, 9, ACKNOWLEDGED, 2)], [(3, 5, AVAILABLE, 1)]]),
    ("an overlap of the same kind", [[(0, 9, AVAILABLE, 1)], [(5, 14, AVAILABLE, 1)]]),
    ("an overlap, the newer counts", [[(0, 9, AVAILABLE, 1)], [(5, 14, AVAILABLE, 2)]]),
    ("an overlap, the older counts", [[(0, 9, AVAILABLE, 2)], [(5, 14, AVAILABLE, 1)]]),
    ("the same beginning, a longer one", [[(0, 4, AVAILABLE, 2)], [(0, 9, AVAILABLE, 1)]]),
    ("the same beginning, a longer one counts", [[(0, 4, AVAILABLE, 1)], [(0, 9, AVAILABLE, 2)]]),
    ("the same end", [[(0, 9, AVAILABLE, 1)], [(5, 9, ARCHIVED, 5)]]),
    ("over several", [[(0, 1, 2, 1), (4, 5, 0, 1), (8, 9, 4, 1)], [(1, 8, AVAILABLE, 1)]]),
    ("over several, counting", [[(0, 1, 2, 1), (4, 5, 0, 1), (8, 9, 4, 1)], [(1, 8, AVAILABLE, 3)]]),
    ("overlaps within a write", [[(0, 9, 0, 1), (5, 14, 2, 1), (7, 8, 4, 3), (0, 20, 0, 1)]]),
    ("joined over a short one", [[(0, 5, 0, 2), (6, 10, 0, 1)], [(6, 20, 0, 2)]]),
    ("out of order", [[(20, 29, 2, 1), (0, 9, 2, 1), (10, 19, 2, 1)]]),
]


def merges(s: Script) -> None:
    """Runs of records over each other."""
    topic = s.create("share-merges", len(MERGES))
    group = "share-merges"
    share_coordinated(s, group, topic, len(MERGES))
    for number, (case, writes) in enumerate(MERGES):
        p = SharePartition(s, group, topic, number)
        p.initialize(case, start_offset=0)
        for runs in writes:
            p.write(case, runs)
            p.read(case)
        p.write(f"{case}, a new start", start_offset=7, complete=1)
        p.read(f"{case}, a new start")
        s.note(f"records: {case}", state_records(s, group, topic, number))


def snapshots(s: Script) -> None:
    """So many updates that a snapshot is written."""
    topic = s.create("share-snapshots", 1)
    group = "share-snapshots"
    share_coordinated(s, group, topic)
    p = SharePartition(s, group, topic)
    p.initialize("first", start_offset=0)
    body = {"group_id": group, "topics": [{"topic_id": UUID(s.topic_ids[topic]), "partitions": [None]}]}
    for number in range(505):
        batch = {"first_offset": number, "last_offset": number, "delivery_state": 2, "delivery_count": 1}
        body["topics"][0]["partitions"] = [  # type: ignore[index]
            {
                "partition": 0,
                "state_epoch": 1,
                "leader_epoch": 0,
                "start_offset": 0 if number < 300 else 250,
                "delivery_complete_count": number,
                "state_batches": [batch],
            }
        ]
        assert s.quiet(WRITE, 1, body)["results"][0]["partitions"][0]["error_code"] == "none"
    p.read("after many writes")
    p.summary("after many writes")
    rows = state_records(s, group, topic)
    s.note("kinds of records", [row["type"] for row in rows])
    s.note("the snapshots", [row for row in rows if row["type"] == "ShareSnapshotKey"])
    s.note("the last record", rows[-1])


def refusals(s: Script) -> None:
    """What is missing, negative or unknown."""
    topic = s.create("share-refusals", 2)
    group = "share-refusals"
    share_coordinated(s, group, topic, 2)
    topic_id = UUID(s.topic_ids[topic])
    good: dict[int, dict[str, Any]] = {
        INITIALIZE: {"state_epoch": 1, "start_offset": 0},
        READ: {"leader_epoch": 0},
        WRITE: {"state_epoch": 1, "leader_epoch": 0, "start_offset": 0, "state_batches": []},
        DELETE: {},
        SUMMARY: {"leader_epoch": 0},
    }
    for api, values in good.items():
        for v in s.versions(api):

            def ask(case: str, topics: list[Any], group: str = group) -> None:
                s.ask(api, v, {"group_id": group, "topics": topics}, case)  # noqa: B023 - called at once

            row = {"partition": 0, **values}
            ask("no group", [{"topic_id": topic_id, "partitions": [row]}], "")
            ask("no topics", [])
            ask("no partitions", [{"topic_id": topic_id, "partitions": []}])
            empty = {"topic_id": topic_id, "partitions": []}
            ask("no partitions of one", [{"topic_id": UUID(UNKNOWN_ID), "partitions": [row]}, empty])
            ask("an unknown topic", [{"topic_id": UUID(UNKNOWN_ID), "partitions": [row]}])
            ask("no topic's id", [{"topic_id": ZERO_ID, "partitions": [row]}])
            ask("an unknown partition", [{"topic_id": topic_id, "partitions": [{**row, "partition": 2}]}])
            ask("a negative partition", [{"topic_id": topic_id, "partitions": [{**row, "partition": -1}]}])
            both = [{**row, "partition": number} for number in (1, 0)]
            ask("two partitions", [{"topic_id": topic_id, "partitions": both}])
            ask("the same twice", [{"topic_id": topic_id, "partitions": [row, row]}])
            one = {"topic_id": topic_id, "partitions": [row]}
            ask("a topic twice", [one, {"topic_id": topic_id, "partitions": [{**row, "partition": 1}]}])


def deleted_topics(s: Script) -> None:
    """What becomes of the state when the topic is deleted."""
    topic = s.create("share-deleted", 1)
    group = "share-deleted"
    share_coordinated(s, group, topic)
    p = SharePartition(s, group, topic)
    p.initialize("first", start_offset=4)
    p.summary("initialized")
    topic_id = s.topic_ids[topic]
    assert s.quiet(DELETE_TOPICS, 6, {"topics": [{"name": topic}], "timeout": 20000})
    wait_until(lambda: not s.is_led(topic, 1), 90, "the topic to be gone")
    s.topic_ids[topic] = topic_id
    wait_until(lambda: len(state_records(s, group, topic)) == 2, 90, "a tombstone")
    p.summary("its topic is deleted")
    p.read("its topic is deleted")
    p.initialize("its topic is deleted")
    p.ask(DELETE, "its topic is deleted")
    s.note("records of a deleted topic", state_records(s, group, topic))
