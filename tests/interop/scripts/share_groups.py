"""Scripts: share groups (APIs 76 and 77), where they start to read (90 to 92), and the records they leave.

Members make their ids themselves, so both servers are told the same ones and must assign alike. The groups have an
assignment interval of nothing, because what happens within an interval would depend on the clock. Share partitions
are set up in the background: the scripts wait for that before they go on.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from tests.interop.process import wait_until
from tests.interop.scripts.batches import Batch, Rec
from tests.interop.scripts.classic_groups import coordinated
from tests.interop.scripts.consumer_groups import group_of, records_of
from tests.interop.scripts.group_log import logged
from tests.interop.scripts.script import Script
from tests.interop.scripts.share_state import share_coordinated, state_records

from ottla.coordinator.group.assignors.api import Assignment
from ottla.coordinator.group.share import assignor
from ottla.coordinator.group.share.group import subscription_type
from ottla.coordinator.java_hash import copied_capacity, hash_order, members_in_order
from ottla.model.ids import Uuid
from ottla.model.java_hash import java_hash_code
from ottla.wire.messages.logs import share_group as log

HEARTBEAT, DESCRIBE, OFFSETS, ALTER, DELETE_OFFSETS = 76, 77, 90, 91, 92
LIST_GROUPS, DELETE_GROUPS, DELETE_TOPICS, CREATE_PARTITIONS = 16, 42, 20, 37
COMMIT, OFFSET_FETCH, OFFSET_DELETE, CONSUMER_HEARTBEAT, JOIN = 8, 9, 47, 68, 11
JOINS, LEAVES = 0, -1


class Member:
    """A member that remembers its epoch, as a client does."""

    def __init__(self, s: Script, group: str, name: str, *, quiet: bool = False) -> None:
        self.s = s
        self.group = group
        self.name = name
        self.quiet = quiet
        self.member_id = f"{name}-of-{group}"[:36]
        self.epoch = 0

    def beat(self, case: str, **values: Any) -> dict[str, Any]:
        body = self.body(**values)
        if self.quiet:
            answer = self.s.quiet(HEARTBEAT, 1, body)
        else:
            answer = self.s.ask(HEARTBEAT, 1, body, f"{self.group}, {self.name}, {case}")
        self._learn(answer)
        return answer

    def body(self, **values: Any) -> dict[str, Any]:
        return {
            "group_id": self.group,
            "member_id": self.member_id,
            "member_epoch": self.epoch,
            "rack_id": None,
            "subscribed_topic_names": None,
            **values,
        }

    def _learn(self, answer: dict[str, Any]) -> None:
        if answer.get("error_code") == "none" and answer["member_epoch"] >= 0:
            self.epoch = answer["member_epoch"]

    def join(self, *topics: str, case: str = "joins", **values: Any) -> dict[str, Any]:
        return self.beat(case, member_epoch=JOINS, subscribed_topic_names=list(topics), **values)

    def leave(self, case: str = "leaves") -> dict[str, Any]:
        return self.beat(case, member_epoch=LEAVES)

    def await_epoch(self, epoch: int) -> None:
        """The coordinator may hear of a topic later than others do: ask, unrecorded, until it has."""

        def there() -> bool:
            self._learn(self.s.quiet(HEARTBEAT, 1, self.body()))
            return self.epoch >= epoch

        wait_until(there, 90, f"epoch {epoch} of {self.group}")


def share_group(s: Script, name: str, *topics: tuple[str, int], **configs: object) -> str:
    """A group whose coordinators are ready, with settings of its own."""
    group = group_of(s, name, None, share_assignment_interval_ms=0, **configs)
    for topic, partitions in topics:
        share_coordinated(s, group, topic, partitions)
    return group


def initialized(s: Script, group: str, **topics: int) -> None:
    """Wait until the share partitions of topics are set up."""

    def there() -> bool:
        answer = s.quiet(OFFSETS, 1, {"groups": [{"group_id": group, "topics": None}]})
        found = {t["topic_name"]: len(t["partitions"]) for t in answer["groups"][0]["topics"]}
        return found == {name.replace("_", "-"): count for name, count in topics.items()}

    wait_until(there, 90, f"the share partitions of {group} to be set up")


def describe(s: Script, group: str, case: str) -> None:
    for operations in (False, True):
        body = {"group_ids": [group], "include_authorized_operations": operations}
        s.ask(DESCRIBE, 1, body, f"{group}, {case}")


def offsets(s: Script, group: str, case: str, *topics: tuple[str, list[int]]) -> None:
    rows = [{"topic_name": name, "partitions": numbers} for name, numbers in topics] or None
    for v in s.versions(OFFSETS):
        s.ask(OFFSETS, v, {"groups": [{"group_id": group, "topics": rows}]}, f"{group}, {case}")


def alter(s: Script, group: str, case: str, **starts: dict[int, int]) -> None:
    topics = [
        {
            "topic_name": name.replace("_", "-"),
            "partitions": [{"partition_index": p, "start_offset": offset} for p, offset in offsets.items()],
        }
        for name, offsets in starts.items()
    ]
    s.ask(ALTER, 0, {"group_id": group, "topics": topics}, f"{group}, {case}")


def delete(s: Script, group: str, case: str, *topics: str) -> None:
    body = {"group_id": group, "topics": [{"topic_name": name} for name in topics]}
    s.ask(DELETE_OFFSETS, 0, body, f"{group}, {case}")


# ---- what the assignor does ---------------------------------------------------------------------------------


def assert_assigned(s: Script, group: str) -> int:
    """Is every target assignment in the group's log the one that our assignor makes? How many there are."""
    members: dict[str, frozenset[str]] = {}
    before: dict[str, Assignment] = {}
    target: dict[str, Assignment] = {}
    assignable: dict[Uuid, list[int]] = {}
    found = 0
    for key, value in raw_records_of(s, group):
        match key:
            case log.ShareGroupMemberMetadataKey(member_id=member_id):
                _put(members, member_id, value and frozenset(value.subscribed_topic_names))
            case log.ShareGroupTargetAssignmentMemberKey(member_id=member_id) if value is None:
                _put(target, member_id, None)
                _put(before, member_id, None)
            case log.ShareGroupTargetAssignmentMemberKey(member_id=member_id):
                target[member_id] = {t.topic_id: frozenset(t.partitions) for t in value.topic_partitions}
            case log.ShareGroupStatePartitionMetadataKey() if value is not None:
                assignable = {t.topic_id: sorted(t.partitions) for t in value.initialized_topics}
            case log.ShareGroupTargetAssignmentMetadataKey() if value is not None:
                expected = _assigned(s, members, before, assignable)
                assert target == expected, f"{group}: {target} of {members}, computed {expected}"
                before = dict(target)
                found += 1
    return found


def _put(table: dict[str, Any], key: str, value: Any) -> None:
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value


def _assigned(
    s: Script,
    members: dict[str, frozenset[str]],
    target: dict[str, Assignment],
    assignable: dict[Uuid, list[int]],
) -> dict[str, Assignment]:
    names = {name for subscribed in members.values() for name in subscribed}
    counts = {name: sum(name in subscribed for subscribed in members.values()) for name in names}
    specs = {}
    for member_id in members_in_order(list(members)):
        ordered = hash_order(
            sorted(members[member_id]), java_hash_code, copied_capacity(len(members[member_id]))
        )
        ids = [Uuid(UUID(s.topic_ids[name]).bytes) for name in ordered if name in s.topic_ids]
        specs[member_id] = assignor.ShareMember(ids, target.get(member_id, {}))
    return assignor.assign(specs, subscription_type(counts, len(members)), assignable)


def shown_records(s: Script, group: str) -> dict[str, list[Any]]:
    """The group's records; of what members shall have and have, how much it is."""
    found = records_of(s, group)
    for value in (value for values in found.values() for value in values if value):
        for name in ("topic_partitions", "assigned_partitions"):
            for topic in value.get(name, ()):
                topic["partitions"] = len(topic["partitions"])
    return found


def raw_records_of(s: Script, group: str) -> list[tuple[Any, Any]]:
    """The records of a share group, the oldest first."""
    return [(row.key, row.value) for _, row in logged(s, group)]


# ---- the scripts --------------------------------------------------------------------------------------------


def lives(s: Script) -> None:
    """Members come, share, change their minds and go."""
    s.create("life-of-shares", 5)
    group = share_group(s, "share-life", ("life-of-shares", 5))
    a, b, c = (Member(s, group, name) for name in "abc")
    describe(s, group, "not there")
    a.beat("before it has joined", member_epoch=3)
    a.leave("before there is a group")
    a.join("life-of-shares")
    initialized(s, group, life_of_shares=5)
    describe(s, group, "one member")
    a.beat("is alive, and gets everything")
    a.beat("is alive")
    a.beat("says again what it wants", subscribed_topic_names=["life-of-shares"])
    describe(s, group, "one member has everything")
    b.join("life-of-shares", rack_id="here")
    a.beat("is alive after another has come")
    describe(s, group, "two members")
    c.join("life-of-shares")
    for member in (a, b, c):
        member.beat("round")
    describe(s, group, "three members")
    b.beat("comes with the epoch before", member_epoch=b.epoch - 1)
    b.beat("comes with an old epoch", member_epoch=1)
    b.beat("comes with a future epoch", member_epoch=b.epoch + 1)
    b.beat("wants another topic", subscribed_topic_names=["life-of-others"])
    a.beat("after another wants something else")
    c.beat("after another wants something else")
    describe(s, group, "different subscriptions")
    b.beat("wants nothing", subscribed_topic_names=[])
    b.beat("is alive")
    b.join("life-of-shares", case="joins again")
    c.beat("after another has joined again")
    a.leave()
    a.beat("after it has left", member_epoch=5)
    a.leave("leaves again")
    for member in (b, c):
        member.beat("after one has left")
    describe(s, group, "one has left")
    b.leave()
    c.leave()
    describe(s, group, "empty")
    a.join("life-of-shares", case="comes back")
    describe(s, group, "there again")
    a.leave("goes for good")
    s.note(f"assignments of {group}", f"{assert_assigned(s, group)} as computed")
    s.note(f"records of {group}", shown_records(s, group))


def many_members(s: Script) -> None:
    """More members than partitions, and fewer again: who shares what depends on the topics' ids, so it is computed."""
    s.create("shared-by-many", 3)
    s.create("shared-by-some", 4)
    group = share_group(s, "share-many", ("shared-by-many", 3), ("shared-by-some", 4))
    members = [Member(s, group, f"m{number}", quiet=True) for number in range(9)]
    members[0].join("shared-by-many")
    initialized(s, group, shared_by_many=3)
    for member in members[1:]:
        member.join("shared-by-many")
    for member in members[::2]:
        member.leave()
    members[1].beat("both", subscribed_topic_names=["shared-by-many", "shared-by-some"])
    initialized(s, group, shared_by_many=3, shared_by_some=4)
    members[3].beat("the other", subscribed_topic_names=["shared-by-some"])
    for _ in range(2):
        for member in members[1::2]:
            member.beat("different wishes")
    for member in members[1::2]:
        member.beat("both too", subscribed_topic_names=["shared-by-some", "shared-by-many"])
    for member in members[1::2]:
        member.beat("all want both")
    for member in members[::2]:
        member.join("shared-by-some", "shared-by-many")
    for member in members[:6]:
        member.leave()
    for member in members[6:]:
        member.beat("three are left")
    count = assert_assigned(s, group)
    assert count >= 15, count
    s.note(f"assignments of {group}", f"{count} as computed")


def refusals(s: Script) -> None:
    """What is wrong with a request, whatever the group is."""
    s.create("share-heartbeats", 1)
    group = share_group(s, "share-heartbeats-refused", ("share-heartbeats", 1))
    m = Member(s, group, "m")
    cases: dict[str, dict[str, Any]] = {
        "no group": {"group_id": ""},
        "a blank group": {"group_id": "  "},
        "no member": {"member_id": ""},
        "a blank member": {"member_id": "   "},
        "a long member id": {"member_id": "x" * 37},
        "a blank rack": {"rack_id": " "},
        "an empty rack": {"rack_id": ""},
        "nothing subscribed to": {"subscribed_topic_names": []},
        "no subscription": {"subscribed_topic_names": None},
        "epoch -2": {"member_epoch": -2},
        "epoch 7": {"member_epoch": 7},
    }
    for case, values in cases.items():
        m.beat(case, **{"subscribed_topic_names": ["share-heartbeats"], **values})
    m.join("no-such-topic", case="a topic that does not exist")
    m.beat("a member that is not there", member_id="somebody")
    m.leave()
    for group_ids in ([], [""], [group, "no-such-group", group]):
        body = {"group_ids": group_ids, "include_authorized_operations": False}
        s.ask(DESCRIBE, 1, body, f"describe {group_ids}")


def sizes(s: Script) -> None:
    """As many members as a group may have, and one more."""
    s.create("share-sizes", 1)
    group = share_group(s, "share-sizes", ("share-sizes", 1))
    for number in range(200):
        body = Member(s, group, f"m{number}").body(subscribed_topic_names=["share-sizes"])
        assert s.quiet(HEARTBEAT, 1, body)["error_code"] == "none"
    Member(s, group, "one-too-many").join("share-sizes")
    Member(s, group, "m7").join("share-sizes", case="is there already")


def topics_change(s: Script) -> None:
    """Topics that come, grow and go."""
    group = share_group(s, "share-topics-change")
    a = Member(s, group, "a")
    a.join("share-comes-later")
    a.beat("its topic is not there")
    s.create("share-comes-later", 2)
    share_coordinated(s, group, "share-comes-later", 2)
    a.await_epoch(a.epoch + 1)
    initialized(s, group, share_comes_later=2)
    a.await_epoch(a.epoch + 1)
    a.beat("its topic is there", subscribed_topic_names=["share-comes-later"])
    describe(s, group, "its topic is there")
    body = {"topics": [{"name": "share-comes-later", "count": 4, "assignments": None}], "timeout": 20000}
    assert s.quiet(CREATE_PARTITIONS, 3, body)
    wait_until(lambda: s.is_led("share-comes-later", 4), 90, "four partitions")
    share_coordinated(s, group, "share-comes-later", 4)
    a.await_epoch(a.epoch + 1)
    initialized(s, group, share_comes_later=4)
    a.await_epoch(a.epoch + 1)
    a.beat("its topic has grown", subscribed_topic_names=["share-comes-later"])
    describe(s, group, "its topic has grown")
    # Before the topic is deleted: the coordinator hears of that before or after the member does.
    s.note(f"records of {group}", shown_records(s, group))
    assert s.quiet(DELETE_TOPICS, 6, {"topics": [{"name": "share-comes-later"}], "timeout": 20000})
    wait_until(lambda: not s.is_led("share-comes-later", 4), 90, "the topic to be gone")
    a.await_epoch(a.epoch + 1)
    a.beat("its topic is gone", subscribed_topic_names=["share-comes-later"])
    describe(s, group, "its topic is gone")
    offsets(s, group, "its topic is gone")
    a.leave()


def start_offsets(s: Script) -> None:
    """Setting, telling and forgetting where a group starts."""
    for name, partitions in (("share-starts", 2), ("share-starts-too", 1)):
        s.create(name, partitions)
        s.produce(name, 0, Batch([Rec(b"x")] * 10))
    topics = ("share-starts", 2), ("share-starts-too", 1)
    group = share_group(s, "share-starts", *topics)
    offsets(s, group, "not there")
    offsets(s, group, "of topics", ("share-starts", [0, 1]), ("no-such-topic", [0, 3]))
    delete(s, group, "not there", "share-starts")
    alter(s, group, "a new group", share_starts={0: 3})
    initialized(s, group, share_starts=1)
    offsets(s, group, "set")
    describe(s, group, "made by its offsets")
    alter(s, group, "again, and more", share_starts={0: 5, 1: 0}, share_starts_too={0: 2})
    initialized(s, group, share_starts=2, share_starts_too=1)
    offsets(s, group, "set again")
    offsets(s, group, "some", ("share-starts", [1]), ("share-starts-too", [0]))
    alter(s, group, "what does not exist", share_starts={7: 0, 0: 6}, no_such_topic={0: 1, 1: 1})
    alter(s, group, "nothing")
    alter(s, group, "no partitions", share_starts={})
    alter(s, group, "not decided", share_starts={1: -1})
    # A group of its own: Kafka makes it nevertheless, and can never delete it.
    alter(s, coordinated(s, "share-negative"), "a negative partition", share_starts={-1: 5})
    offsets(s, group, "after that")
    offsets(s, group, "no partitions", ("share-starts", []))
    offsets(s, group, "a negative partition", ("share-starts", [-1]))
    offsets(s, "", "no group", ("share-starts", [0]))
    offsets(s, "", "no group, everything")
    s.ask(OFFSETS, 1, {"groups": []}, "no groups")
    s.ask(OFFSETS, 1, {"groups": [{"group_id": group, "topics": []}]}, "no topics")
    alter(s, "", "no group", share_starts={0: 1})
    delete(s, "", "no group", "share-starts")
    m = Member(s, group, "m")
    m.join("share-starts")
    m.beat("has what is set up")
    alter(s, group, "with a member", share_starts={0: 0})
    delete(s, group, "with a member", "share-starts")
    s.ask(DELETE_GROUPS, 2, {"groups_names": [group]}, "with a member")
    m.leave()
    delete(s, group, "some", "share-starts-too", "no-such-topic")
    delete(s, group, "the same again", "share-starts-too")
    delete(s, group, "nothing")
    offsets(s, group, "one forgotten")
    delete(s, group, "the other", "share-starts")
    offsets(s, group, "all forgotten")
    describe(s, group, "all forgotten")
    alter(s, group, "once more", share_starts={0: 9})
    initialized(s, group, share_starts=1)
    s.ask(DELETE_GROUPS, 2, {"groups_names": [group, "no-such-group"]}, "without members")
    describe(s, group, "deleted")
    offsets(s, group, "deleted")
    offsets(s, group, "deleted, of a topic", ("share-starts", [0]))
    s.note(f"records of {group}", shown_records(s, group))
    s.note(f"state of {group}", state_records(s, group, "share-starts"))


def other_kinds(s: Script) -> None:
    """A share group is no other group, and no other group is one."""
    s.create("share-and-others", 1)
    group = share_group(s, "share-no-other", ("share-and-others", 1))
    m = Member(s, group, "m")
    m.join("share-and-others")
    initialized(s, group, share_and_others=1)
    for types in ([], ["share"], ["Share"], ["consumer"], ["nonsense"]):
        body = {"states_filter": ["stable"], "types_filter": types}
        answer = s.quiet(LIST_GROUPS, 5, body)
        found = [row for row in answer["groups"] if row["group_id"] == group]
        s.note(f"groups of types {types}", [answer["error_code"], found])
    consumer = {"member_id": "c-of-share-no-other", "member_epoch": 0, "rebalance_timeout": 30_000}
    names = {"subscribed_topic_names": ["share-and-others"], "topic_partitions": []}
    nothing = {"instance_id": None, "rack_id": None, "server_assignor": None, "subscribed_topic_regex": None}
    body = {"group_id": group, **consumer, **names, **nothing}
    s.ask(CONSUMER_HEARTBEAT, 1, body, "in a share group")
    protocols = [{"name": "range", "metadata": b""}]
    joining = {"session_timeout": 30_000, "rebalance_timeout": 30_000, "member_id": "", "reason": None}
    classic = {"protocol_type": "consumer", "protocols": protocols, "group_instance_id": None}
    s.ask(JOIN, 5, {"group_id": group, **joining, **classic}, "in a share group")
    s.ask(15, 5, {"groups": [group]}, "a share group")
    topic = {"name": "share-and-others", "partitions": [{"partition_index": 0, "committed_offset": 1}]}
    commit = {"group_id": group, "generation_id_or_member_epoch": -1, "member_id": "", "topics": [topic]}
    s.ask(COMMIT, 8, commit, "to a share group")
    fetch = {"group_id": group, "topics": [{"name": "share-and-others", "partition_indexes": [0]}]}
    s.ask(OFFSET_FETCH, 8, {"groups": [{**fetch, "member_id": None}], "require_stable": False}, "share group")
    gone = {
        "group_id": group,
        "topics": [{"name": "share-and-others", "partitions": [{"partition_index": 0}]}],
    }
    s.ask(OFFSET_DELETE, 0, gone, "of a share group")
    m.leave()
    classic_group = coordinated(s, "share-is-classic")
    s.ask(JOIN, 3, {"group_id": classic_group, **joining, **classic}, "a classic member")
    other = Member(s, classic_group, "m")
    other.join("share-and-others")
    other.beat("not there", member_epoch=4)
    other.leave()
    describe(s, classic_group, "a classic group")
    offsets(s, classic_group, "a classic group")
    alter(s, classic_group, "a classic group", share_and_others={0: 1})
    delete(s, classic_group, "a classic group", "share-and-others")
