"""Scripts: committed offsets and what is asked of groups by name (APIs 8, 9, 10, 16, 42, 47), and their records."""

from __future__ import annotations

import uuid
from typing import Any

from tests.interop.process import wait_until
from tests.interop.scripts.classic_groups import Member
from tests.interop.scripts.group_log import TOPIC, logged
from tests.interop.scripts.masks import clock
from tests.interop.scripts.script import Script

COMMIT, OFFSET_FETCH, FIND, DESCRIBE, LIST, DELETE_GROUPS, OFFSET_DELETE = 8, 9, 10, 15, 16, 42, 47
UNKNOWN_ID = uuid.UUID("12345678-1234-1234-1234-123456789abc")
GROUP = "offsets-group"
# One that has never been in use when a script begins.
NOBODY = "offsets-nobody"


def ready(s: Script, group: str) -> str:
    """A group whose coordinator answers."""

    def answers() -> bool:
        found = s.quiet(FIND, 4, {"key_type": 0, "coordinator_keys": [group]})["coordinators"][0]
        if found["error_code"] != "none":
            return False
        asked = {"groups": [{"group_id": group, "topics": []}], "require_stable": False}
        return bool(s.quiet(OFFSET_FETCH, 8, asked)["groups"][0]["error_code"] == "none")

    wait_until(answers, 60, f"the coordinator of {group}")
    return group


def commit_body(
    s: Script, version: int, group: str, topics: dict[str, dict[int, Any]], **more: Any
) -> dict[str, Any]:
    """Offsets by topic and partition: a number, or (number, leader epoch, metadata)."""
    rows = []
    for name, partitions in topics.items():
        row: dict[str, Any] = {"partitions": [_partition(p, value) for p, value in partitions.items()]}
        rows.append({**row, "topic_id": topic_id(s, name)} if version >= 10 else {**row, "name": name})
    body = {"group_id": group, "generation_id_or_member_epoch": -1, "member_id": "", "topics": rows, **more}
    if version <= 4:
        body.setdefault("retention_time", -1)
    return body


def _partition(index: int, value: Any) -> dict[str, Any]:
    offset, epoch, metadata = value if isinstance(value, tuple) else (value, -1, "")
    return {
        "partition_index": index,
        "committed_offset": offset,
        "committed_leader_epoch": epoch,
        "committed_metadata": metadata,
    }


def topic_id(s: Script, name: str) -> uuid.UUID:
    known = s.topic_ids.get(name)
    return UNKNOWN_ID if known is None else uuid.UUID(known)


def commit(
    s: Script, version: int, group: str, topics: dict[str, dict[int, Any]], case: str, **more: Any
) -> None:
    s.ask(COMMIT, version, commit_body(s, version, group, topics, **more), case)


def wanted(s: Script, version: int, topics: dict[str, list[int]] | None) -> Any:
    if topics is None:
        return None
    rows = []
    for name, partitions in topics.items():
        row: dict[str, Any] = {"partition_indexes": partitions}
        rows.append({**row, "topic_id": topic_id(s, name)} if version >= 10 else {**row, "name": name})
    return rows


def fetch(
    s: Script,
    version: int,
    groups: dict[str, dict[str, list[int]] | None],
    case: str,
    *,
    stable: bool = False,
    **more: Any,
) -> None:
    """What each group has committed; only one group before version 8."""
    body: dict[str, Any] = {"require_stable": stable} if version >= 7 else {}
    if version >= 8:
        body["groups"] = [
            {"group_id": group, "topics": wanted(s, version, topics), **more}
            for group, topics in groups.items()
        ]
        s.ask(OFFSET_FETCH, version, body, case)
        return
    for group, topics in groups.items():
        body.update({"group_id": group, "topics": wanted(s, version, topics)})
        s.ask(OFFSET_FETCH, version, body, f"{case} ({group})")


def records_of(s: Script, group: str) -> list[Any]:
    """The group's offsets and tombstones, as they are in the log."""
    return [
        _shown(s, record, len(raw.key or b""), raw.value)
        for raw, record in logged(s, group)
        if record.value is None or hasattr(record.value, "commit_timestamp")
    ]


def _shown(s: Script, record: Any, key_bytes: int, raw: bytes | None) -> Any:
    key = {name: getattr(record.key, name) for name in type(record.key).__slots__}
    if record.value is None:
        return {"key": key, "key bytes": key_bytes, "value": None}
    value = {name: getattr(record.value, name) for name in type(record.value).__slots__}
    for name in ("commit_timestamp", "expire_timestamp"):
        value[name] = clock(value[name])
    value["topic_id"] = s.symbols.get(str(uuid.UUID(bytes=value["topic_id"])), value["topic_id"].hex())
    size = len(raw or b"")
    return {
        "key": key,
        "key bytes": key_bytes,
        "version": record.value_version,
        "value": value,
        "bytes": size,
    }


# ---- commit and fetch -------------------------------------------------------------------------------------------


def offset_commit(s: Script) -> None:
    """Every version: what is taken, what is refused by partition, what is refused as a whole."""
    s.create("committed-a", 3)
    s.create("committed-b", 1)
    for v in s.versions(COMMIT):
        group = ready(s, f"{GROUP}-{v}")
        good: dict[str, dict[int, Any]] = {
            "committed-a": {0: 10, 2: (12, 3, "some metadata")},
            "committed-b": {0: (0, 0, None)},
        }
        commit(s, v, group, good, "two topics")
        commit(s, v, group, {"committed-a": {0: 5}}, "an offset before")
        commit(s, v, group, {"committed-a": {0: -1, 1: (-7, -2, "x")}}, "negative offsets and epochs")
        commit(s, v, group, {"committed-a": {0: (2**63 - 1, 2**31 - 1, "m")}}, "the largest offset")
        commit(s, v, group, {"committed-a": {0: 1, 3: 1, -1: 1}}, "partitions that there are not")
        commit(s, v, group, {"committed-nope": {0: 1}}, "a topic that there is not")
        commit(
            s, v, group, {"committed-nope": {0: 1, 1: 2}, "committed-a": {0: 4, 9: 1}}, "known and unknown"
        )
        commit(s, v, group, {}, "nothing")
        commit(s, v, group, {"committed-a": {}}, "a topic without partitions")
        sizes: dict[int, Any] = {0: (1, -1, "x" * 4096), 1: (1, -1, "x" * 4097), 2: (1, -1, "ü" * 4096)}
        commit(s, v, group, {"committed-a": sizes}, "metadata at its bound and beyond")
        commit(
            s, v, group, {"committed-a": {0: (1, -1, "\U0001f600" * 2048)}}, "metadata of pairs at its bound"
        )
        commit(s, v, group, {"committed-a": {0: (1, -1, "\U0001f600" * 2049)}}, "metadata of pairs beyond")
        fetch(s, 8, {group: None}, f"after the commits of version {v}")
        s.note(f"records of {group}", records_of(s, group))


def offset_commit_twice(s: Script) -> None:
    """A topic or a partition that stands in a request twice."""
    s.create("committed-a", 3)
    for v in s.versions(COMMIT):
        group = ready(s, f"{GROUP}-twice-{v}")
        for case, names in {
            "known": ("committed-a", "committed-a"),
            "unknown": ("committed-x", "committed-x"),
        }.items():
            body = commit_body(s, v, group, {names[0]: {0: 1, 1: 1}})
            body["topics"] += commit_body(s, v, group, {names[1]: {1: 2, 7: 1}})["topics"]
            s.ask(COMMIT, v, body, f"a topic twice, {case}")
        body = commit_body(s, v, group, {"committed-a": {0: 1}})
        body["topics"][0]["partitions"] *= 2
        s.ask(COMMIT, v, body, "a partition twice")
        fetch(s, 8, {group: None}, f"after version {v}")


def offset_commit_refused(s: Script) -> None:
    """Members that there are not, generations of groups that there are not, groups without a name."""
    s.create("committed-a", 3)
    topics: dict[str, dict[int, Any]] = {"committed-a": {0: 1}, "committed-nope": {0: 1}}
    for v in s.versions(COMMIT):
        group = ready(s, f"{GROUP}-refused-{v}")
        for epoch in (0, 1, 7):
            commit(s, v, group, topics, f"generation {epoch}", generation_id_or_member_epoch=epoch)
        commit(s, v, group, topics, "a member of no group", generation_id_or_member_epoch=1, member_id="m")
        fetch(s, 8, {group: None}, f"after the refusals of version {v}")
        commit(s, v, group, topics, "a member id without a generation", member_id="m")
        commit(s, v, group, topics, "a generation of a simple group", generation_id_or_member_epoch=0)
        commit(
            s, v, group, topics, "a member of a simple group", generation_id_or_member_epoch=0, member_id="m"
        )
        if v >= 7:
            commit(s, v, group, topics, "an instance", group_instance_id="i")
            instance = {"group_instance_id": "i", "generation_id_or_member_epoch": 0, "member_id": "m"}
            commit(s, v, group, topics, "an instance with a generation", **instance)
        fetch(s, 8, {group: None}, f"after version {v}")
        commit(s, v, ready(s, ""), topics, "a group without a name")
        fetch(s, 8, {"": None}, f"a group without a name after version {v}")
        s.quiet(DELETE_GROUPS, 2, {"groups_names": [""]})
        if v >= 8:
            commit(s, v, "l" * 32_768, topics, "a group with a name that is too long")
            longest = ready(s, "l" * 32_767)
            commit(s, v, longest, topics, "a group with the longest name")
            fetch(s, 8, {longest: None}, f"a group with the longest name after version {v}")


def retention_of_its_own(s: Script) -> None:
    """Versions 2 to 4 say how long an offset is kept, in a record of its own kind."""
    s.create("committed-a", 3)
    for v in s.versions(COMMIT, until=4):
        group = ready(s, f"{GROUP}-retention-{v}")
        for millis in (0, 1, 3_600_000_000):
            commit(
                s,
                v,
                group,
                {"committed-a": {0: (millis, 5, "m")}},
                f"kept {millis} ms",
                retention_time=millis,
            )
        fetch(s, 8, {group: None}, f"after version {v}")
        s.note(f"records of {group}", records_of(s, group))


def offset_fetch(s: Script) -> None:
    """Every version: one group and several, some partitions and all, stable or not, known and unknown."""
    s.create("committed-a", 3)
    s.create("committed-b", 1)
    for name in ("one", "two"):
        group = ready(s, f"{GROUP}-fetch-{name}")
        topics: dict[str, dict[int, Any]] = {"committed-a": {0: (1, 4, name), 2: 3}, "committed-b": {0: 9}}
        s.quiet(COMMIT, 9, commit_body(s, 9, group, topics))
    one, two, nobody = f"{GROUP}-fetch-one", f"{GROUP}-fetch-two", ready(s, NOBODY)
    some = {"committed-a": [0, 1, 2, 7, -1], "committed-b": [0], "committed-nope": [0, 3]}
    for v in s.versions(OFFSET_FETCH):
        for stable in (False, True) if v >= 7 else (False,):
            how = ", stable" if stable else ""
            fetch(s, v, {one: some}, f"some{how}", stable=stable)
            fetch(s, v, {nobody: some}, f"of nobody{how}", stable=stable)
            fetch(s, v, {one: {}}, f"no topics{how}", stable=stable)
            fetch(s, v, {one: {"committed-a": []}}, f"no partitions{how}", stable=stable)
            if v >= 2:
                fetch(s, v, {one: None}, f"all{how}", stable=stable)
                fetch(s, v, {nobody: None}, f"all of nobody{how}", stable=stable)
            if v >= 8:
                fetch(s, v, {one: some, nobody: some, two: None}, f"several{how}", stable=stable)
                fetch(s, v, {}, f"no groups{how}", stable=stable)
            if v >= 9:
                member = {"member_id": "m", "member_epoch": 3}
                fetch(s, v, {one: some}, f"of a member{how}", stable=stable, **member)
                fetch(s, v, {nobody: some}, f"of a member of nobody{how}", stable=stable, **member)
        if v >= 8:
            body = {"groups": [{"group_id": one, "topics": wanted(s, v, {"committed-b": [0]})}] * 2}
            s.ask(OFFSET_FETCH, v, body, "a group twice")
        topics_twice = (wanted(s, v, {"committed-a": [0]}) or []) + (
            wanted(s, v, {"committed-a": [0, 2, 2]}) or []
        )
        if v >= 8:
            s.ask(OFFSET_FETCH, v, {"groups": [{"group_id": one, "topics": topics_twice}]}, "a topic twice")
        else:
            s.ask(OFFSET_FETCH, v, {"group_id": one, "topics": topics_twice}, "a topic twice")


def offsets_of_members(s: Script) -> None:
    """A group with a member: who may commit, what may be deleted, how it is listed, in every state."""
    s.create("committed-a", 3)
    s.create("t", 2)  # what members of classic_groups subscribe to
    topics: dict[str, dict[int, Any]] = {"t": {0: 7}, "committed-a": {1: 8}}
    group = ready(s, f"{GROUP}-members")
    with Member(s, group, "one") as one, Member(s, group, "two") as two:
        commit(s, 9, group, topics, "before anybody has joined")
        one.come()
        _everything(s, one, topics, "while the first one waits", generation=0)
        one.receive()
        _everything(s, one, topics, "while it has to assign")
        one.lead()
        _everything(s, one, topics, "when it is stable")
        two.come()
        _everything(s, one, topics, "while another one waits")
        one.join("joins again")
        two.receive()
        two.leave("leaves")
        one.join("alone again")
        one.lead()
        one.leave("leaves too")
        _everything(s, one, topics, "when everybody has left")
    s.note(f"records of {group}", records_of(s, group))


def _everything(
    s: Script, member: Member, topics: dict[str, dict[int, Any]], case: str, generation: int | None = None
) -> None:
    """All that can be done to offsets, and to the group by its name."""
    group, epoch = member.group, member.generation if generation is None else generation
    for v in s.versions(COMMIT):
        mine = {"generation_id_or_member_epoch": epoch, "member_id": member.member_id}
        commit(s, v, group, topics, f"by the member {case}", **mine)
        for name, other in {
            "an older generation": {"generation_id_or_member_epoch": epoch - 1},
            "a newer generation": {"generation_id_or_member_epoch": epoch + 1},
            "no generation": {"generation_id_or_member_epoch": -1},
            "a stranger": {"member_id": "stranger"},
            "nobody": {"generation_id_or_member_epoch": -1, "member_id": ""},
        }.items():
            commit(s, v, group, topics, f"by {name} {case}", **{**mine, **other})
        if v >= 7:
            commit(s, v, group, topics, f"by an unknown instance {case}", **mine, group_instance_id="i")
    for stable in (False, True):
        fetch(s, 9, {group: None}, f"{case}, stable {stable}", stable=stable, member_id=member.member_id)
    for name in ("t", "committed-a", "nope"):
        rows = [{"name": name, "partitions": [{"partition_index": 1}]}]
        s.ask(OFFSET_DELETE, 0, {"group_id": group, "topics": rows}, f"of {name} {case}")
    if "left" not in case:
        s.ask(DELETE_GROUPS, 2, {"groups_names": [group]}, case)
    listed = s.quiet(LIST, 5, {"states_filter": [], "types_filter": []})["groups"]
    s.note(f"listed {case}", [row for row in listed if row["group_id"] == group])


def deleted_topics(s: Script) -> None:
    """Offsets go with their topic; those of one that has its name are others."""
    group = ready(s, f"{GROUP}-deleted")
    for again in range(2):
        s.create("committed-gone", 2)
        s.create("committed-stays", 1)
        old_id = topic_id(s, "committed-gone")
        commit(
            s,
            9,
            group,
            {"committed-gone": {0: 1, 1: 2}, "committed-stays": {0: 3}},
            f"before the deletion {again}",
        )
        s.quiet(20, 5, {"topic_names": ["committed-gone"], "timeout": 20000})

        def forgotten() -> bool:
            found = s.quiet(OFFSET_FETCH, 8, {"groups": [{"group_id": group, "topics": None}]})
            return len(found["groups"][0]["topics"]) == 1

        wait_until(forgotten, 90, "the offsets of a deleted topic to go")
        for v in s.versions(OFFSET_FETCH, since=2):
            fetch(s, v, {group: None}, f"after the deletion {again}")
        s.topic_ids["committed-gone"] = str(old_id)
        fetch(s, 10, {group: {"committed-gone": [0, 1]}}, f"by the old id {again}")
        commit(s, 10, group, {"committed-gone": {0: 1}}, f"by the old id {again}")
        del s.topic_ids["committed-gone"]
    s.note(f"records of {group}", sorted(records_of(s, group), key=str))


# ---- groups by name ---------------------------------------------------------------------------------------------


def offset_delete(s: Script) -> None:
    """Single offsets of a group: there, not there, of topics that there are not."""
    s.create("committed-a", 3)
    group = ready(s, f"{GROUP}-delete")
    s.quiet(COMMIT, 9, commit_body(s, 9, group, {"committed-a": {0: 1, 1: 2, 2: 3}}))

    def delete(topics: dict[str, list[int]], case: str, of: str = group) -> None:
        rows = [
            {"name": name, "partitions": [{"partition_index": p} for p in partitions]}
            for name, partitions in topics.items()
        ]
        s.ask(OFFSET_DELETE, 0, {"group_id": of, "topics": rows}, case)
        fetch(s, 8, {of: None}, f"after {case}")

    delete({"committed-a": [0]}, "one")
    delete({"committed-a": [0]}, "one again")
    delete({"committed-a": [1, 7, -1], "committed-nope": [0]}, "known and unknown")
    delete({"committed-a": []}, "no partitions")
    delete({"committed-nope": []}, "no partitions of no topic")
    delete({}, "nothing")
    delete({"committed-a": [0], "committed-nope": [1]}, "of nobody", ready(s, NOBODY))
    delete({"committed-a": [0], "committed-nope": [1]}, "of no name", ready(s, ""))
    delete({"committed-a": [2]}, "the last one")
    s.ask(DESCRIBE, 5, {"groups": [group]}, "a group without offsets")
    s.note(f"records of {group}", records_of(s, group))


def list_groups(s: Script) -> None:
    """Every version, with filters of all kinds; only the groups of this script are looked at."""
    s.create("committed-a", 3)
    names = [ready(s, f"listed-{i}") for i in range(3)]
    for name in names:
        s.quiet(COMMIT, 9, commit_body(s, 9, name, {"committed-a": {0: 1}}))
    states: list[list[str]] = [
        [],
        ["Empty"],
        ["empty"],
        [" EMPTY "],
        ["Stable"],
        ["nope"],
        ["Stable", "Empty"],
        [""],
    ]
    types: list[list[str]] = [
        [],
        ["classic"],
        ["Classic"],
        ["consumer"],
        ["nope"],
        ["share", "classic"],
        [" classic"],
    ]
    for v in s.versions(LIST):
        for wanted_states in states if v >= 4 else [[]]:
            for wanted_types in types if v >= 5 else [[]]:
                body: dict[str, Any] = {"states_filter": wanted_states} if v >= 4 else {}
                body |= {"types_filter": wanted_types} if v >= 5 else {}
                answer = s.quiet(LIST, v, body)
                s.asked.add((s.listener, LIST, v))
                rows = [row for row in answer["groups"] if row["group_id"].startswith("listed-")]
                answer["groups"] = sorted(rows, key=lambda row: row["group_id"])
                s.note(f"list v{v}: states {wanted_states} types {wanted_types}", answer)


def delete_groups(s: Script) -> None:
    """Groups with and without offsets, twice, by no name, by an unknown one."""
    s.create("committed-a", 3)
    for v in s.versions(DELETE_GROUPS):
        names = [ready(s, f"deleted-{v}-{i}") for i in range(3)]
        for name in names:
            s.quiet(COMMIT, 9, commit_body(s, 9, name, {"committed-a": {0: 1, 2: 5}}))
        s.ask(DELETE_GROUPS, v, {"groups_names": [names[0]]}, "one")
        s.ask(DELETE_GROUPS, v, {"groups_names": [names[0]]}, "one again")
        s.ask(DELETE_GROUPS, v, {"groups_names": [names[1], NOBODY, names[2], names[1]]}, "several")
        s.ask(DELETE_GROUPS, v, {"groups_names": []}, "none")
        s.ask(DELETE_GROUPS, v, {"groups_names": [ready(s, "")]}, "of no name")
        fetch(s, 8, dict.fromkeys(names), f"after the deletions of version {v}")
        s.note(f"records of {names[0]}", sorted(records_of(s, names[0]), key=str))


def find_coordinators(s: Script) -> None:
    """Share partitions by their keys, many keys at once, types that there are not."""
    share_keys = {
        "good": "g:AAAAAAAAAAAAAAAAAAAAAQ:0",
        "colons in the group": "a:b:c:AAAAAAAAAAAAAAAAAAAAAQ:12",
        "negative": "g:AAAAAAAAAAAAAAAAAAAAAQ:-1",
        "signed": "g:AAAAAAAAAAAAAAAAAAAAAQ:+1",
        "no partition": "g:AAAAAAAAAAAAAAAAAAAAAQ:",
        "padded": "g:AAAAAAAAAAAAAAAAAAAAAQ==:0",
        "too short": "g:AAAAAAAAAAAAAAAAAAAAA:0",
        "too long": "g:AAAAAAAAAAAAAAAAAAAAAQAAAAA:0",
        "no group": ":AAAAAAAAAAAAAAAAAAAAAQ:0",
        "blank group": "  :AAAAAAAAAAAAAAAAAAAAAQ:0",
        "too large": "g:AAAAAAAAAAAAAAAAAAAAAQ:99999999999",
        "trailing colons": "g:AAAAAAAAAAAAAAAAAAAAAQ:0:::",
        "not base64": "g:AAAAAAAAAAAAAAAAAAAA!!:0",
    }
    first = {"key_type": 2, "coordinator_keys": [share_keys["good"]]}
    wait_until(
        lambda: s.quiet(FIND, 6, first)["coordinators"][0]["error_code"] == "none", 60, "a share coordinator"
    )
    for v in s.versions(FIND, since=4):
        for case, key in share_keys.items():
            s.ask(FIND, v, {"key_type": 2, "coordinator_keys": [key]}, f"share partition, {case}")
        for kind in (0, 1):
            keys = [f"key-{i}" for i in range(40)] + ["", "key-0"]
            s.ask(FIND, v, {"key_type": kind, "coordinator_keys": keys}, f"many of type {kind}")
        for kind in (0, 1, 2, 3, -1):
            s.ask(FIND, v, {"key_type": kind, "coordinator_keys": []}, f"none of type {kind}")
            s.ask(FIND, v, {"key_type": kind, "coordinator_keys": ["a", "b"]}, f"two of type {kind}")
    topics = [TOPIC, "__transaction_state", "__share_group_state"]
    keys = ("cleanup.policy", "compression.type", "segment.bytes", "min.insync.replicas", "retention.ms")
    names = [*keys, "unclean.leader.election.enable"]
    resources = [{"resource_type": 2, "resource_name": t, "configuration_keys": names} for t in topics]
    s.ask(32, 4, {"resources": resources}, "the internal topics")
    s.ask(
        3, 12, {"topics": [{"name": t, "topic_id": uuid.UUID(int=0)} for t in topics]}, "the internal topics"
    )
