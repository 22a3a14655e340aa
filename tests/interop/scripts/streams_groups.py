"""Scripts: streams groups (APIs 88 and 89), the internal topics made for them, and the records they leave.

Most groups have neither an assignment interval nor a wait before the first assignment, because what happens within
them would depend on the clock.
"""

from __future__ import annotations

from typing import Any

from tests.interop.process import wait_until
from tests.interop.scripts.classic_groups import Member as ClassicMember
from tests.interop.scripts.consumer_groups import Member as ConsumerMember
from tests.interop.scripts.consumer_groups import hash_of, records_of
from tests.interop.scripts.entities import ZERO_ID
from tests.interop.scripts.script import Script
from tests.interop.scripts.streams_members import (
    DELETE_GROUPS,
    DELETE_TOPICS,
    DESCRIBE,
    DESCRIBE_CONFIGS,
    HEARTBEAT,
    LEAVES,
    LEAVES_FOR_A_WHILE,
    LIST_GROUPS,
    OFFSET_DELETE,
    OFFSET_FETCH,
    Member,
    commit,
    configure,
    describe,
    group_of,
    internal,
    rows,
    settle,
    sub,
    topology,
)

# ---- lives --------------------------------------------------------------------------------------------------


def lives(s: Script) -> None:
    """Members come, share and go."""
    topic, store = s.create("streams-life-in", 5), s.create("streams-life-store", 5)
    group = group_of(s, "streams-life")
    said = topology(sub("0", [topic], changelogs=[internal(store, cleanup_policy="compact", retention_ms=5)]))
    a, b, c = (Member(s, group, name, said) for name in "abc")
    describe(s, group, "not there")
    a.join(rack_id="here", client_tags=[{"key": "zone", "value": "z"}, {"key": "a", "value": "b"}])
    hash_of(s, group, (topic, 5), (store, 5))
    describe(s, group, "one member")
    a.beat("is alive")
    a.ack()
    describe(s, group, "one member that was heard of again")
    b.join()
    describe(s, group, "two members")
    b.beat("is alive")
    a.beat("is alive")
    a.beat(
        "is alive, and still has everything",
        active_tasks=rows(s0=[0, 1, 2, 3, 4]),
        standby_tasks=[],
        warmup_tasks=[],
    )
    describe(s, group, "one has to give up")
    a.ack("has given up")
    b.beat("gets what is free")
    describe(s, group, "stable again")
    c.join()
    settle(a, b, c)
    describe(s, group, "three members")
    b.ack("has another rack", rack_id="there")
    b.ack("has other tags", client_tags=[])
    b.ack("is another process", process_id="new process")
    b.ack("has another timeout", rebalance_timeout=40_000)
    settle(a, b, c)
    describe(s, group, "one that has changed")
    a.leave()
    a.beat("after it has left")
    a.leave("leaves again")
    settle(b, c)
    describe(s, group, "one has left")
    b.leave()
    c.leave()
    describe(s, group, "empty")
    a.epoch = 0
    a.join("comes back")
    describe(s, group, "there again")
    a.leave("goes for good")
    s.note(f"records of {group}", records_of(s, group))


def several(s: Script) -> None:
    """Several subtopologies, processes with several threads, standbys, and a setting that changes."""
    wide, narrow = s.create("streams-several-wide", 6), s.create("streams-several-narrow", 2)
    stores = [s.create("streams-several-store-0", 6), s.create("streams-several-store-2", 2)]
    group = group_of(s, "streams-several", streams_num_standby_replicas=1)
    said = topology(
        sub("0", [wide], changelogs=[internal(stores[0])]),
        sub("1", [wide, narrow]),
        sub("2", [narrow], changelogs=[internal(stores[1])]),
    )
    members = [
        Member(s, group, name, said, process=f"p{number // 2}") for number, name in enumerate("abcdef")
    ]
    for number, member in enumerate(members):
        member.join()
        settle(*members[: number + 1], rounds=3)
    describe(s, group, "six threads of three processes")
    members[0].leave()
    settle(*members[1:])
    describe(s, group, "one thread less")
    members[2].leave()
    members[3].leave()
    settle(members[1], *members[4:])
    describe(s, group, "a process less")
    configure(s, group, streams_num_standby_replicas=2)
    before = members[1].epoch
    members[1].await_epoch(before + 1)
    settle(members[1], *members[4:], rounds=5)
    describe(s, group, "more standbys than processes")
    s.note(f"records of {group}", len(records_of(s, group)) > 0)


# ---- topologies ---------------------------------------------------------------------------------------------


def topics_made(s: Script) -> None:
    """Internal topics are made by the broker, with the partitions and settings they need."""
    topic = s.create("streams-made-in", 3)
    group = group_of(s, "streams-made")
    configs = {"cleanup_policy": "compact", "segment_bytes": 1048576}
    said = topology(sub("0", [topic], changelogs=[internal("streams-made-store", **configs)]))
    a = Member(s, group, "a", said)
    a.join()
    wait_until(lambda: s.is_led("streams-made-store", 3), 90, "the changelog topic")
    a.await_epoch(a.epoch + 1)
    a.ack("runs")
    describe(s, group, "with its topic")
    shown_topic(s, "streams-made-store")
    a.leave()
    s.note(f"records of {group}", records_of(s, group))

    group = group_of(s, "streams-made-more")
    fixed = internal("streams-made-fixed", 2, 1, cleanup_policy="delete", retention_ms=-1)
    said = topology(
        sub("0", [topic], sinks=["streams-made-flexible", "streams-made-fixed"]),
        sub(
            "1",
            [],
            repartition=[internal("streams-made-flexible")],
            changelogs=[internal("streams-made-log")],
        ),
        sub("2", [], repartition=[fixed]),
    )
    a = Member(s, group, "a", said)
    a.join()
    for name, count in (("streams-made-flexible", 3), ("streams-made-log", 3), ("streams-made-fixed", 2)):
        wait_until(lambda name=name, count=count: s.is_led(name, count), 90, name)
        shown_topic(s, name)
    wait_until(lambda: _has_tasks(a), 90, "the tasks")
    s.note(f"tasks of {group}", sorted((row["subtopology_id"], row["partitions"]) for row in a.active))


def _has_tasks(member: Member) -> bool:
    member._learn(member.s.quiet(HEARTBEAT, 0, member.body(**member.owned())))
    return bool(member.active)


def shown_topic(s: Script, name: str) -> None:
    """How a topic was made."""
    asked = {"resource_type": 2, "resource_name": name, "configuration_keys": None}
    s.ask(DESCRIBE_CONFIGS, 4, {"resources": [asked], "include_synonyms": False}, f"the settings of {name}")
    query = {"topics": [{"topic_id": ZERO_ID, "name": name}]}
    found = s.quiet(3, 12, {**query, "allow_auto_topic_creation": False})["topics"][0]
    s.note(f"partitions of {name}", [len(p["replica_nodes"]) for p in found["partitions"]])


def topologies(s: Script) -> None:
    """What does not fit the topics there are, and what fits none."""
    two, three = s.create("streams-two", 2), s.create("streams-three", 3)
    s.create("streams-wrong-store", 7)
    inner = internal("streams-inner")
    cases: dict[str, dict[str, Any]] = {
        "no subtopologies": topology(),
        "a source that is missing": topology(sub("0", ["streams-nowhere"])),
        "many sources that are missing": topology(sub("0", [f"streams-nowhere-{n}" for n in range(5)])),
        "one of two is missing": topology(sub("0", [two]), sub("1", ["streams-nowhere"])),
        "no source": topology(sub("0", [])),
        "a changelog of another size": topology(
            sub("0", [two], changelogs=[internal("streams-wrong-store")])
        ),
        "sources that are joined and differ": topology(sub("0", [two, three], together=[([0, 1], [])])),
        "a repartition topic that nobody writes": topology(sub("0", [two], repartition=[inner])),
        "a loop": topology(
            sub("0", [], repartition=[inner], sinks=["streams-inner"]), sub("1", [two], sinks=[])
        ),
        "a fixed repartition topic of another size": topology(
            sub("0", [two], sinks=["streams-five"]),
            sub("1", [three], repartition=[internal("streams-five", 5)], together=[([0], [0])]),
        ),
        "a place that there is not": topology(sub("0", [two], together=[([3], [])])),
        "a place before the first": topology(sub("0", [two], together=[([-1], [])])),
        "an empty group of joined topics": topology(sub("0", [two], together=[([], [])])),
        "a changelog that says its partitions": topology(sub("0", [two], changelogs=[internal("x", 3)])),
        "a repartition topic of less than nothing": topology(
            sub("0", [two], sinks=["streams-minus"]),
            sub("1", [], repartition=[internal("streams-minus", -2)]),
        ),
        "one subtopology twice": topology(sub("0", [two]), sub("0", [three])),
        "one changelog twice": topology(sub("0", [two], changelogs=[internal("x"), internal("x")])),
        "a setting twice": topology(sub("0", [two], changelogs=[{**internal("x"), "topic_configs": TWICE}])),
        "an epoch before the first": topology(sub("0", [two]), epoch=-1),
        "Kafka's own topic": topology(sub("0", ["__consumer_offsets"])),
        "Kafka's own topic as a sink": topology(sub("0", [two], sinks=["__transaction_state"])),
        "a name that no topic has": topology(sub("0", ["a/b"])),
        "an empty name": topology(sub("0", [""])),
        "a changelog with a name that no topic has": topology(sub("0", [two], changelogs=[internal("a b")])),
        "an expression": topology(sub("0", [], regex=["in.*"])),
    }
    for number, (case, said) in enumerate(cases.items()):
        member = Member(s, group_of(s, f"streams-topologies-{number}"), "a", said)
        member.join(case)
        describe(s, member.group, case)


TWICE = [{"key": "cleanup.policy", "value": "compact"}, {"key": "cleanup.policy", "value": "delete"}]


def other_topologies(s: Script) -> None:
    """Members whose topology is not the group's."""
    topic = s.create("streams-updates", 2)
    group = group_of(s, "streams-updates")
    first, second = sub("0", [topic]), sub("1", [topic])
    a = Member(s, group, "a", topology(first, second, epoch=3))
    a.join()
    for name, said in {
        "same": topology(first, second, epoch=3),
        "other order": topology(second, first, epoch=3),
        "older": topology(first, epoch=2),
        "newer": topology(first, second, epoch=4),
        "other": topology(first, epoch=3),
    }.items():
        Member(s, group, name, said).join()
    a.ack("is alive")
    describe(s, group, "with members of several topologies")
    settle(a, rounds=2)
    assert s.quiet(DELETE_TOPICS, 6, {"topics": [{"name": topic}], "timeout": 20000})
    wait_until(lambda: not s.is_led(topic, 2), 90, "the topic to be gone")
    a.await_epoch(a.epoch + 1)
    a.ack("without its topic")
    describe(s, group, "without its topic")
    s.create(topic, 4)
    a.await_epoch(a.epoch + 1)
    a.ack("with a new topic")
    describe(s, group, "with a new topic")


# ---- epochs and refusals ------------------------------------------------------------------------------------


def epochs(s: Script) -> None:
    """Epochs that are too new, too old, or the one before."""
    topic = s.create("streams-epochs", 4)
    group = group_of(s, "streams-epochs")
    said = topology(sub("0", [topic]))
    a, b = Member(s, group, "a", said), Member(s, group, "b", said)
    a.join()
    for epoch in (1, 3, 99, 2**31 - 1):
        a.beat(f"in epoch {epoch}", member_epoch=epoch)
    first = a.epoch
    b.join()
    a.beat("learns of the new epoch")
    a.ack("gives up")
    a.beat("in the epoch before, says nothing", member_epoch=first)
    a.ack("in the epoch before, with what it has", member_epoch=first)
    too_much = rows(s0=[0, 1, 2, 3])
    a.ack("in the epoch before, with too much", member_epoch=first, active_tasks=too_much)
    a.ack("in the epoch before, with nothing", member_epoch=first, active_tasks=[])
    a.ack("in the epoch before, with another subtopology", member_epoch=first, active_tasks=rows(s9=[]))
    a.ack("with a task that there is not", active_tasks=rows(s0=[9]))
    a.ack("with a subtopology that there is not", active_tasks=rows(s7=[0]))
    a.ack("with a negative task", active_tasks=rows(s0=[-1]))
    a.ack("with a standby that there is not", standby_tasks=rows(s0=[4]))
    a.join("joins again under the same id")
    b.ack()
    b.join("joins again with a rack", rack_id="r")
    settle(a, b)
    stranger = Member(s, group, "stranger", said)
    stranger.beat("is no member", member_epoch=1)
    stranger.leave()
    elsewhere = Member(s, "streams-no-such-group", "a", said)
    elsewhere.beat("in no group", member_epoch=1)
    elsewhere.leave("leaves no group")
    describe(s, group, "after all that")
    s.note(f"records of {group}", records_of(s, group))


def invalid(s: Script) -> None:
    """What is refused whatever the group is."""
    topic = s.create("streams-refused", 1)
    said = topology(sub("0", [topic]))
    offsets = [{"subtopology_id": "0", "partition": 0, "offset": 1}]
    cases: dict[str, dict[str, Any]] = {
        "no member id": {"member_id": ""},
        "a blank member id": {"member_id": "  "},
        "no group id": {"group_id": ""},
        "a blank group id": {"group_id": " "},
        "an instance id": {"instance_id": "i"},
        "an empty instance id": {"instance_id": ""},
        "an empty rack id": {"rack_id": ""},
        "a blank rack id": {"rack_id": "   "},
        "no rebalance timeout": {"rebalance_timeout": -1},
        "a rebalance timeout of nothing": {"rebalance_timeout": 0},
        "no topology": {"topology": None},
        "active tasks not said": {"active_tasks": None},
        "standby tasks not said": {"standby_tasks": None},
        "warm-up tasks not said": {"warmup_tasks": None},
        "active tasks already": {"active_tasks": rows(s0=[0])},
        "standby tasks already": {"standby_tasks": rows(s0=[0])},
        "warm-up tasks already": {"warmup_tasks": rows(s0=[0])},
        "epoch -3": {"member_epoch": -3},
        "the least epoch": {"member_epoch": -(2**31)},
        "leaves for a while": {"member_epoch": LEAVES_FOR_A_WHILE},
        "leaves for a while with an instance": {"member_epoch": LEAVES_FOR_A_WHILE, "instance_id": "i"},
        "leaves with a topology": {"member_epoch": LEAVES},
        "stays with a topology": {"member_epoch": 1},
        "task offsets": {"task_offsets": offsets},
        "no task offsets": {"task_offsets": []},
        "task end offsets": {"task_end_offsets": offsets},
        "no process id": {"process_id": None},
        "an empty process id": {"process_id": ""},
        "a tag twice": {"client_tags": [{"key": "a", "value": "b"}, {"key": "a", "value": "c"}]},
        "no endpoint's port": {"user_endpoint": {"host": "", "port": 0}},
    }
    for number, (case, values) in enumerate(cases.items()):
        member = Member(s, group_of(s, f"streams-refusals-{number}"), "a", said)
        member.join(case, **values)
    group = group_of(s, "streams-refused-later")
    a = Member(s, group, "a", said)
    a.join()
    for case, values in {
        "only active tasks": {"active_tasks": rows(s0=[0])},
        "no warm-up tasks": {"active_tasks": [], "standby_tasks": []},
        "warm-up tasks": {"active_tasks": [], "standby_tasks": [], "warmup_tasks": rows(s0=[0])},
        "an empty rack": {"rack_id": ""},
    }.items():
        a.beat(case, **values)
    for group_ids in ([], [""], ["nobody"], [group, group], ["streams-x", "", "streams-y"]):
        for operations in (False, True):
            body = {"group_ids": group_ids, "include_authorized_operations": operations}
            s.ask(DESCRIBE, 0, body, f"groups {group_ids}, operations {operations}")


# ---- what a group waits for, and tells ----------------------------------------------------------------------


def delays(s: Script) -> None:
    """The first assignment waits for more members, the next ones for the interval."""
    topic = s.create("streams-delays", 4)
    said = topology(sub("0", [topic]))
    group = group_of(s, "streams-first", delay_ms=3_600_000)
    a, b = Member(s, group, "a", said), Member(s, group, "b", said)
    a.join()
    b.join()
    a.ack("waits")
    b.ack("waits")
    describe(s, group, "before the first assignment")
    a.leave()
    b.leave()
    s.note(f"records of {group}", records_of(s, group))
    group = group_of(s, "streams-interval", interval_ms=15_000)
    a, b = Member(s, group, "a", said), Member(s, group, "b", said)
    a.join()
    b.join()
    a.ack("waits for the interval")
    b.ack("waits for the interval")
    describe(s, group, "within the interval")
    a.leave()
    b.ack("another one has left")
    describe(s, group, "within the interval, with one member")


def shutdowns(s: Script) -> None:
    """A member asks the whole application to stop."""
    topic = s.create("streams-stops", 2)
    said = topology(sub("0", [topic]))
    group = group_of(s, "streams-stops")
    a, b = Member(s, group, "a", said), Member(s, group, "b", said)
    a.join("asks for it with its first words", shutdown_application=True)
    b.join("hears of it or not")
    a.ack("asks for it", shutdown_application=True)
    b.ack("hears of it")
    b.ack("asks as well", shutdown_application=True)
    a.ack("hears who was first")
    a.leave("leaves and asks", shutdown_application=True)
    b.ack("hears it still")
    b.leave()
    a.epoch = b.epoch = 0
    a.join("in a new life")
    b.join("in a new life")
    b.leave("leaves and asks", shutdown_application=True)
    a.ack("hears of it")
    Member(s, group, "stranger", said).leave("leaves a group that it is not in", shutdown_application=True)
    a.ack("hears who was first")


def endpoints(s: Script) -> None:
    """Where tasks can be queried."""
    topic, store = s.create("streams-asked", 4), s.create("streams-asked-store", 4)
    group = group_of(s, "streams-asked", streams_num_standby_replicas=1)
    said = topology(sub("0", [topic], changelogs=[internal(store)]))
    a, b, c = (Member(s, group, name, said) for name in "abc")
    a.join(user_endpoint={"host": "here", "port": 80}, endpoint_information_epoch=-1)
    a.ack(endpoint_information_epoch=0)
    b.join(user_endpoint={"host": "there", "port": 65_535})
    for number in range(4):
        for member in (a, b):
            member.ack(f"round {number}", endpoint_information_epoch=number)
    c.join("joins without an endpoint")
    for number in range(4):
        for member in (a, b, c):
            member.ack(f"round {number} of three", endpoint_information_epoch=-1)
    a.ack("moves", user_endpoint={"host": "elsewhere", "port": 1})
    for number in range(3):
        for member in (a, b, c):
            member.ack(f"round {number} after that", endpoint_information_epoch=-1)
    describe(s, group, "with endpoints")
    b.leave()
    for member in (a, c):
        member.ack("one has left", endpoint_information_epoch=-1)


# ---- beside others ------------------------------------------------------------------------------------------


def other_kinds(s: Script) -> None:
    """Groups of other kinds under the same name, lists, deletions."""
    topic = s.create("streams-kinds", 2)
    said = topology(sub("0", [topic]))
    group = group_of(s, "streams-was-classic")
    a = Member(s, group, "a", said)
    with ClassicMember(s, group, "classic") as classic:
        classic.come()
        classic.receive()
        classic.lead()
        a.join("while there is a classic member")
        a.beat("in a classic group", member_epoch=1)
        a.leave("a classic group")
        describe(s, group, "which is classic")
        classic.leave()
    a.join("when the classic members are gone")
    describe(s, group, "which was classic")
    listed(s, group, "with a member")
    with ClassicMember(s, group, "late") as late:
        late.join("while there is a member of streams")
        a.leave()
        listed(s, group, "empty")
        late.come()
        late.receive()
        late.lead()
        describe(s, group, "which is classic again")
        late.leave()
    s.note(f"records of {group}", records_of(s, group))

    group = group_of(s, "streams-was-consumer")
    consumer = ConsumerMember(s, group, "consumer")
    consumer.join(topic)
    a = Member(s, group, "a", said)
    a.join("while there is a consumer")
    consumer.leave()
    a.join("when the consumer is gone")
    describe(s, group, "which is a consumer group")

    group = group_of(s, "streams-deleted")
    a = Member(s, group, "a", said)
    a.join()
    s.ask(DELETE_GROUPS, 2, {"groups_names": [group]}, f"{group}, with a member")
    a.leave()
    s.ask(DELETE_GROUPS, 2, {"groups_names": [group]}, f"{group}, empty")
    s.ask(DELETE_GROUPS, 2, {"groups_names": [group]}, f"{group}, again")
    describe(s, group, "deleted")
    s.note(f"records of {group}", records_of(s, group))


def listed(s: Script, group: str, case: str) -> None:
    for states in ([], ["NotReady"], ["not_ready"], ["Stable"], ["stable"], ["Empty"], ["Assigning"]):
        for types in ([], ["streams"], ["Streams"], ["classic"]):
            body = {"states_filter": states, "types_filter": types}
            rows_found = s.quiet(LIST_GROUPS, 5, body)["groups"]
            mine = [row for row in rows_found if row["group_id"] == group]
            s.note(f"{group} in the list, {case}, states {states}, types {types}", mine)


def offsets(s: Script) -> None:
    """Offsets of members, of strangers, and of epochs that are over."""
    topic = s.create("streams-offsets", 4)
    group = group_of(s, "streams-offsets")
    said = topology(sub("0", [topic]))
    a, b = Member(s, group, "a", said), Member(s, group, "b", said)
    a.join()
    first = a.epoch
    commit(s, a, topic, "its epoch")
    for version in (2, 5, 8, 9):
        commit(s, a, topic, f"in version {version}", version=version)
    commit(s, a, topic, "a newer epoch", epoch=a.epoch + 1)
    commit(s, a, topic, "an older epoch", epoch=a.epoch - 1)
    commit(s, a, topic, "no epoch", epoch=-1)
    commit(s, a, topic, "no member", epoch=-1, member_id="")
    commit(s, a, topic, "a stranger", member_id="nobody")
    b.join()
    settle(a, b, rounds=3)
    commit(s, a, topic, "of the epoch before", epoch=first)
    commit(s, b, topic, "of the epoch before", epoch=first)
    commit(s, a, "streams-epochs", "a topic that it does not read", epoch=first)
    for case, member_id, epoch in (
        ("nobody in particular", None, -1),
        ("its own", a.member_id, a.epoch),
        ("too old", a.member_id, a.epoch - 1),
        ("a stranger", "nobody", 1),
    ):
        groups = [{"group_id": group, "member_id": member_id, "member_epoch": epoch, "topics": None}]
        s.ask(OFFSET_FETCH, 9, {"groups": groups, "require_stable": False}, f"{group}, {case}")
    gone = {"group_id": group, "topics": [{"name": topic, "partitions": [{"partition_index": 0}]}]}
    s.ask(OFFSET_DELETE, 0, gone, f"{group}, while it reads the topic")
    a.leave()
    b.leave()
    commit(s, a, topic, "an empty group", epoch=-1, member_id="")
    s.ask(OFFSET_DELETE, 0, gone, f"{group}, when it is empty")
