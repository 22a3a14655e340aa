"""Scripts: consumer groups of the new protocol (APIs 68 and 69), their classic members, and the records they leave.

Members make their ids themselves, so both servers are told the same ones and must assign alike. Most groups have an
assignment interval of nothing, because what happens within an interval would depend on the clock.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from tests.interop.process import wait_until
from tests.interop.scripts.classic_groups import Member as ClassicMember
from tests.interop.scripts.classic_groups import coordinated
from tests.interop.scripts.group_log import logged
from tests.interop.scripts.masks import clock, masked
from tests.interop.scripts.script import Script

from ottla.coordinator.group.modern.metadata_hash import TopicHashes
from ottla.metadata.image import ClusterImage
from ottla.metadata.persistent import PMap
from ottla.metadata.registrations import TopicImage
from ottla.model.ids import Uuid
from ottla.wire.messages.logs.offsets import ConsumerGroupMetadataKey
from ottla.wire.messages.logs.streams_group import StreamsGroupMetadataKey

HEARTBEAT, DESCRIBE, ALTER, DELETE_TOPICS, CREATE_PARTITIONS = 68, 69, 44, 20, 37
COMMIT, OFFSET_FETCH, LIST_GROUPS, DELETE_GROUPS = 8, 9, 16, 42
GROUP_RESOURCE = 32
JOINS, LEAVES, LEAVES_FOR_A_WHILE = 0, -1, -2
NOTHING_SAID: dict[str, Any] = {
    "instance_id": None,
    "rack_id": None,
    "rebalance_timeout": -1,
    "subscribed_topic_names": None,
    "subscribed_topic_regex": None,
    "server_assignor": None,
    "topic_partitions": None,
}


class Member:
    """A member that remembers its epoch and what it has, as a client does."""

    def __init__(
        self, s: Script, group: str, name: str, version: int = 1, instance: str | None = None
    ) -> None:
        self.s = s
        self.group = group
        self.name = name
        self.version = version
        self.instance = instance
        self.member_id = f"{name}-of-{group}"
        self.epoch = 0
        self.owned: dict[str, list[int]] = {}

    def beat(self, case: str, **values: Any) -> dict[str, Any]:
        """A heartbeat with only what is given; what is assigned is owned from the next `ack` on."""
        body = {
            **NOTHING_SAID,
            "group_id": self.group,
            "member_id": self.member_id,
            "member_epoch": self.epoch,
            "instance_id": self.instance,
            **values,
        }
        answer = self.s.ask(HEARTBEAT, self.version, body, f"{self.group}, {self.name}, {case}")
        if answer.get("error_code") == "none":
            self._learn(answer)
        return answer

    def _learn(self, answer: dict[str, Any]) -> None:
        self.member_id = answer["member_id"]
        if answer["member_epoch"] >= 0:
            self.epoch = answer["member_epoch"]
        if answer["assignment"] is not None:
            rows = answer["assignment"]["topic_partitions"]
            self.owned = {str(row["topic_id"]): list(row["partitions"]) for row in rows}

    def join(self, *topics: str, case: str = "joins", **values: Any) -> dict[str, Any]:
        self.owned = {}
        given = {
            "member_epoch": JOINS,
            "rebalance_timeout": 30_000,
            "subscribed_topic_names": list(topics),
            "topic_partitions": [],
            **values,
        }
        return self.beat(case, **given)

    def rows(self) -> list[dict[str, Any]]:
        return [{"topic_id": UUID(t), "partitions": numbers} for t, numbers in self.owned.items()]

    def ack(self, case: str = "says what it has", **values: Any) -> dict[str, Any]:
        return self.beat(case, topic_partitions=self.rows(), **values)

    def full(self, *topics: str, case: str = "says everything", **values: Any) -> dict[str, Any]:
        names = {"subscribed_topic_names": list(topics)} if topics else {}
        return self.ack(case, rebalance_timeout=30_000, **names, **values)

    def await_epoch(self, epoch: int) -> None:
        """The coordinator may hear of a topic later than others do: ask, unrecorded, until it has."""

        def there() -> bool:
            body = {"group_id": self.group, "member_id": self.member_id, "member_epoch": self.epoch}
            answer = self.s.quiet(
                HEARTBEAT, self.version, {**NOTHING_SAID, **body, "topic_partitions": self.rows()}
            )
            self._learn(answer)
            return self.epoch >= epoch

        wait_until(there, 90, f"epoch {epoch} of {self.group}")

    def leave(self, case: str = "leaves", epoch: int = LEAVES) -> dict[str, Any]:
        return self.beat(case, member_epoch=epoch)


def group_of(s: Script, name: str, interval_ms: int | None = 0, **configs: object) -> str:
    """A group whose coordinator is ready, with settings of its own."""
    group = coordinated(s, name)
    settings = {key.replace("_", "."): value for key, value in configs.items()}
    if interval_ms is not None:
        settings["consumer.assignment.interval.ms"] = interval_ms
    if settings:
        rows = [{"name": k, "config_operation": 0, "value": str(v)} for k, v in settings.items()]
        resource = {"resource_type": GROUP_RESOURCE, "resource_name": group, "configs": rows}
        answer = s.quiet(ALTER, 1, {"resources": [resource], "validate_only": False})
        assert answer["responses"][0]["error_code"] == "none", answer
        wait_until(lambda: _has_settings(s, group, settings), 90, f"the settings of {group}")
    return group


def _has_settings(s: Script, group: str, settings: dict[str, object]) -> bool:
    resource = {"resource_type": GROUP_RESOURCE, "resource_name": group, "configuration_keys": None}
    answer = s.quiet(32, 4, {"resources": [resource], "include_synonyms": False})
    found = {c["name"]: c["value"] for c in answer["results"][0]["configs"]}
    return all(found.get(name) == str(value) for name, value in settings.items())


def describe(s: Script, group: str, case: str, *versions: int) -> None:
    for v in versions or s.versions(DESCRIBE):
        body = {"group_ids": [group], "include_authorized_operations": True}
        s.ask(DESCRIBE, v, body, f"{group}, {case}")


def settle(*members: Member, rounds: int = 4) -> None:
    """Heartbeats in turn, until everybody has what it shall have."""
    for number in range(rounds):
        for member in members:
            member.ack(f"round {number}")


# ---- the records ------------------------------------------------------------------------------------------------


def records_of(s: Script, group: str) -> dict[str, list[Any]]:
    """The group's records as they are in the log: of each key the values, the oldest first.

    In which order one decision writes its records is a hash table's; which decisions share a batch is the clock's.
    """
    found: dict[str, list[Any]] = {}
    for _, record in logged(s, group):
        row = _shown(s, record)
        found.setdefault(f"{row['type']} {row['key']}", []).append(row["value"])
    return found


def _shown(s: Script, record: Any) -> Any:
    shown = {
        "key": _fields(record.key),
        "value": None if record.value is None else _fields(record.value),
    }
    fields = shown["value"] or {}
    if "metadata_hash" in fields:
        fields["metadata_hash"] = "none" if not fields["metadata_hash"] else "<hash>"
    for name in ("assignment_timestamp", "timestamp", "current_state_timestamp"):
        if name in fields:
            fields[name] = clock(fields[name])
    if fields.get("leader"):
        fields["leader"] = "<the first in a hash table>"
    if "version" in fields:
        fields["version"] = "<metadata offset>"
    return _sorted({"type": type(record.key).__name__, **masked(0, shown, s.symbols)})


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _sorted(inner) for name, inner in value.items()}
    return sorted(map(_sorted, value), key=str) if isinstance(value, list) else value


def _fields(value: Any) -> Any:
    if hasattr(type(value), "__slots__"):
        return {name: _fields(getattr(value, name)) for name in type(value).__slots__}
    if isinstance(value, list):
        return [_fields(item) for item in value]
    if isinstance(value, bytes) and len(value) == 16:
        return _uuid_text(value)
    return value


def _uuid_text(value: bytes) -> str:
    return str(UUID(bytes=value))


def hash_of(s: Script, group: str, *topics: tuple[str, int]) -> None:
    """Is the last metadata hash of the group the one that these topics have?"""
    images = {}
    for name, partitions in topics:
        raw = Uuid(UUID(s.topic_ids[name]).bytes)
        images[name] = TopicImage(name, raw, dict.fromkeys(range(partitions), NO_RACK))
    expected = TopicHashes().group_hash(images, ClusterImage(topics_by_name=PMap.of(images)))
    found = _last_hash(s, group)
    assert found == expected, f"{group} has the hash {found}, its topics {expected}"
    s.note(f"the hash of {group} with {topics}", "as computed")


class _Partition:
    """One whose replicas are in no rack."""

    replicas: tuple[int, ...] = ()


NO_RACK: Any = _Partition()


def _last_hash(s: Script, group: str) -> int | None:
    last = None
    for _, record in logged(s, group):
        is_group = isinstance(record.key, ConsumerGroupMetadataKey | StreamsGroupMetadataKey)
        if is_group and record.value is not None:
            last = record.value.metadata_hash
    return last


# ---- lives ------------------------------------------------------------------------------------------------------


def lives(s: Script) -> None:
    """Members come, share, change their minds and go, in each version."""
    for v in s.versions(HEARTBEAT):
        topic = s.create(f"life-of-consumers-{v}", 5)
        group = group_of(s, f"consumer-life-{v}")
        a, b, c = (Member(s, group, name, v) for name in "abc")
        describe(s, group, "not there")
        a.join(topic)
        describe(s, group, "one member")
        a.beat("is alive")
        a.ack()
        a.full(topic)
        b.join(topic)
        describe(s, group, "two members")
        b.beat("is alive")
        a.beat("is alive")
        a.beat("is alive, and still has everything")
        describe(s, group, "one has to give up")
        a.ack("has given up")
        b.beat("gets what is free")
        describe(s, group, "stable again")
        c.join(topic, rack_id="here", server_assignor="range")
        settle(a, b, c)
        describe(s, group, "three members")
        b.full("other", case="wants another topic")
        settle(a, b, c)
        b.full(topic, "other", case="wants both")
        settle(a, b, c)
        describe(s, group, "different subscriptions")
        a.leave()
        a.beat("after it has left")
        a.leave("leaves again")
        settle(b, c)
        describe(s, group, "one has left")
        b.leave()
        c.leave()
        describe(s, group, "empty")
        a.epoch = 0
        a.join(topic, case="comes back")
        describe(s, group, "there again")
        a.leave("goes for good")
        s.note(f"records of {group}", records_of(s, group))


def hashes(s: Script) -> None:
    """The group's metadata hash, as topics come, grow and go."""
    group = group_of(s, "consumer-hashes")
    one, two = s.create("hashed-one", 3), s.create("hashed-two", 1)
    a = Member(s, group, "a")
    a.join(one)
    hash_of(s, group, (one, 3))
    a.full(one, two, case="wants two")
    hash_of(s, group, (one, 3), (two, 1))
    body = {"topics": [{"name": one, "count": 6, "assignments": None}], "timeout": 20000}
    assert s.quiet(CREATE_PARTITIONS, 3, body)
    wait_until(lambda: s.is_led(one, 6), 90, "six partitions")
    a.await_epoch(a.epoch + 1)
    a.full(one, two, case="after the topic has grown")
    settle(a, rounds=2)
    hash_of(s, group, (one, 6), (two, 1))
    describe(s, group, "with a larger topic")
    assert s.quiet(DELETE_TOPICS, 6, {"topics": [{"name": two}], "timeout": 20000})
    wait_until(lambda: not s.is_led(two, 1), 90, "the topic to be gone")
    a.await_epoch(a.epoch + 1)
    a.full(one, two, case="after a topic is gone")
    settle(a, rounds=2)
    hash_of(s, group, (one, 6))
    describe(s, group, "with a topic less")


def metadata_changes(s: Script) -> None:
    """A topic that does not exist yet, and then does."""
    group = group_of(s, "consumer-waits-for-a-topic")
    a = Member(s, group, "a")
    a.join("comes-later")
    a.ack()
    describe(s, group, "nothing to assign")
    s.create("comes-later", 2)
    a.await_epoch(a.epoch + 1)
    a.full("comes-later", case="now there is one")
    settle(a, rounds=1)
    describe(s, group, "something to assign")
    nobody = Member(s, group, "nobody")
    nobody.join(case="joins without a subscription")
    settle(a, nobody, rounds=2)
    describe(s, group, "somebody without a subscription")


# ---- epochs -----------------------------------------------------------------------------------------------------


def epochs(s: Script) -> None:
    """Epochs that are too new, too old, or the one before."""
    topic = s.create("epochs-of-consumers", 4)
    for v in s.versions(HEARTBEAT):
        group = group_of(s, f"consumer-epochs-{v}")
        a, b = Member(s, group, "a", v), Member(s, group, "b", v)
        a.join(topic)
        for epoch in (1, 3, 99, 2**31 - 1):
            a.beat(f"in epoch {epoch}", member_epoch=epoch)
        first = a.epoch
        b.join(topic)
        a.beat("learns of the new epoch")
        a.ack("gives up")
        a.beat("in the epoch before, says nothing", member_epoch=first)
        a.beat("in the epoch before, with what it has", member_epoch=first, topic_partitions=a.rows())
        too_much = [{"topic_id": UUID(s.topic_ids[topic]), "partitions": [0, 1, 2, 3]}]
        a.beat("in the epoch before, with too much", member_epoch=first, topic_partitions=too_much)
        a.beat("in the epoch before, with nothing", member_epoch=first, topic_partitions=[])
        a.join(topic, case="joins again under the same id")
        b.ack()
        b.join(topic, "other", case="joins again with another subscription")
        settle(a, b)
        stranger = Member(s, group, "stranger", v)
        stranger.beat("is no member", member_epoch=1)
        stranger.leave()
        stranger.leave("leaves for a while", LEAVES_FOR_A_WHILE)
        elsewhere = Member(s, f"no-such-group-{v}", "a", v)
        elsewhere.beat("in no group", member_epoch=1)
        elsewhere.leave("leaves no group")
        describe(s, group, "after all that")


def invalid(s: Script) -> None:
    """What is refused whatever the group is."""
    topic = s.create("refused-by-consumers", 1)
    group = group_of(s, "consumer-refusals")
    id_of = {"topic_id": UUID(s.topic_ids[topic]), "partitions": [0]}
    cases: dict[str, dict[str, Any]] = {
        "no member id": {"member_id": ""},
        "a blank member id": {"member_id": "  "},
        "no group id": {"group_id": ""},
        "a blank group id": {"group_id": " "},
        "an empty instance id": {"instance_id": ""},
        "an empty rack id": {"rack_id": ""},
        "a blank rack id": {"rack_id": "   "},
        "no rebalance timeout": {"rebalance_timeout": -1},
        "a rebalance timeout of nothing": {"rebalance_timeout": 0},
        "partitions not said": {"topic_partitions": None},
        "partitions already": {"topic_partitions": [id_of]},
        "no subscription": {"subscribed_topic_names": None},
        "epoch -3": {"member_epoch": -3},
        "the least epoch": {"member_epoch": -(2**31)},
        "leaves for a while without an instance": {"member_epoch": -2},
        "leaves without a member id": {"member_epoch": -1, "member_id": ""},
        "stays without a member id": {"member_epoch": 1, "member_id": ""},
        "an unknown assignor": {"server_assignor": "mine"},
        "an empty assignor": {"server_assignor": ""},
        "an odd topic": {"subscribed_topic_names": ["no such/topic"]},
        "one topic twice": {"subscribed_topic_names": [topic, topic]},
        "an empty topic name": {"subscribed_topic_names": [""]},
    }
    joins = {"member_epoch": JOINS, "rebalance_timeout": 1, "subscribed_topic_names": [topic]}
    nameless = {"group_id": coordinated(s, "consumer-nameless"), "member_id": "", "topic_partitions": []}
    made = s.quiet(HEARTBEAT, 0, {**NOTHING_SAID, **joins, **nameless})
    s.note("an id that the coordinator made", (len(made["member_id"]), made["member_epoch"]))
    for v in s.versions(HEARTBEAT):
        for number, (case, values) in enumerate(cases.items()):
            if v == 0 and case == "no member id":
                continue
            member = Member(s, f"{group}-{number}-{v}", "a", v)
            coordinated(s, member.group)
            given = {"group_id": member.group, "member_id": member.member_id, **values}
            member.join(topic, case=case, **given)
    for v in s.versions(DESCRIBE):
        for group_ids in ([], [""], ["nobody"], [group, group], ["a", "", "b"]):
            s.ask(DESCRIBE, v, {"group_ids": group_ids}, f"groups {group_ids}")


# ---- static members ---------------------------------------------------------------------------------------------


def static_members(s: Script) -> None:
    """Members with an instance id: away for a while, replaced, fenced."""
    topic = s.create("static-consumers", 4)
    for v in s.versions(HEARTBEAT):
        group = group_of(s, f"consumer-static-{v}")
        a, b = Member(s, group, "a", v, "one"), Member(s, group, "b", v, "two")
        a.join(topic)
        b.join(topic)
        settle(a, b)
        describe(s, group, "two static members", 1)
        twin = Member(s, group, "twin", v, "one")
        twin.join(topic, case="takes an instance that is there")
        twin.beat("beats for another's instance", member_epoch=2)
        twin.leave("leaves another's instance")
        twin.leave("leaves another's instance for a while", LEAVES_FOR_A_WHILE)
        a.leave("leaves for a while", LEAVES_FOR_A_WHILE)
        describe(s, group, "one is away", 1)
        a.beat("beats while it is away")
        a.beat("beats in epoch -2's place", member_epoch=a.epoch)
        twin.join(topic, case="takes its place")
        describe(s, group, "it is replaced", 1)
        settle(twin, b)
        a.beat("the old one beats")
        a.join(topic, case="the old one joins")
        unknown = Member(s, group, "c", v, "three")
        unknown.beat("an instance nobody has", member_epoch=1)
        unknown.leave("an instance nobody has")
        unknown.leave("an instance nobody has, for a while", LEAVES_FOR_A_WHILE)
        twin.leave("leaves for a while", LEAVES_FOR_A_WHILE)
        again = Member(s, group, "again", v, "one")
        again.join(topic, "other", case="takes its place with another subscription")
        settle(again, b)
        twin.leave("the one before leaves")
        again.leave("leaves for good")
        settle(b, rounds=2)
        describe(s, group, "one is left", 1)
        s.note(f"records of {group}", records_of(s, group))


# ---- assignors --------------------------------------------------------------------------------------------------


def assignors(s: Script) -> None:
    """Who gets what, with both assignors, as members come and go."""
    for assignor in ("uniform", "range"):
        for partitions in (1, 7, 40):
            topic = s.create(f"assigned-{assignor}-{partitions}", partitions)
            group = group_of(s, f"consumer-{assignor}-{partitions}")
            members = [Member(s, group, f"m{i}") for i in range(9)]
            for member in members:
                member.join(topic, server_assignor=assignor)
            settle(*members, rounds=3)
            describe(s, group, "nine members", 1)
            for member in members[2:5]:
                member.leave()
            rest = members[:2] + members[5:]
            settle(*rest, rounds=3)
            describe(s, group, "six members", 1)
            for member in members[2:5]:
                member.epoch = 0
                member.join(topic, server_assignor=assignor, case="comes back")
            settle(*members, rounds=3)
            describe(s, group, "nine members again", 1)


def heterogeneous(s: Script) -> None:
    """Different subscriptions; topics of such sizes that their order does not depend on their ids."""
    topics = [s.create(f"uneven-{n}", n) for n in (2, 5, 11, 23)]
    for assignor in ("uniform", "range"):
        group = group_of(s, f"consumer-uneven-{assignor}")
        members = [Member(s, group, f"m{i}") for i in range(7)]
        for number, member in enumerate(members):
            wanted = [topic for i, topic in enumerate(topics) if (number + 1) >> (i % 3) & 1 or i == 3]
            member.join(*wanted, server_assignor=assignor)
        settle(*members, rounds=3)
        describe(s, group, "seven members", 1)
        members[3].leave()
        settle(*members[:3], *members[4:], rounds=3)
        describe(s, group, "six members", 1)
        members[0].full(topics[0], case="wants one topic only")
        settle(*members[:3], *members[4:], rounds=3)
        describe(s, group, "six members, one of them modest", 1)


def assignor_votes(s: Script) -> None:
    """The assignor that most members ask for; the default if none asks."""
    topic = s.create("voted-assignors", 3)
    group = group_of(s, "consumer-votes")
    members = [Member(s, group, f"m{i}") for i in range(4)]
    for member, wanted in zip(members, (None, "range", "uniform", "range"), strict=True):
        member.join(topic, server_assignor=wanted)
        describe(s, group, f"{member.name} asks for {wanted}", 1)
    members[3].full(topic, server_assignor="uniform")
    describe(s, group, "one has changed its mind", 1)


def interval(s: Script) -> None:
    """A new target assignment is made only so often."""
    topic = s.create("assigned-now-and-then", 6)
    group = group_of(s, "consumer-interval", 15_000, consumer_heartbeat_interval_ms=6_000)
    a, b = Member(s, group, "a"), Member(s, group, "b")
    a.join(topic)
    b.join(topic, case="joins within the interval")
    describe(s, group, "b waits")
    settle(a, b, rounds=2)
    a.full("other", case="wants another topic within the interval")
    a.ack("has given up")
    describe(s, group, "a has given up")
    settle(a, b, rounds=2)
    b.leave("leaves within the interval")
    describe(s, group, "b has left")
    a.beat("is alive")


# ---- regular expressions ----------------------------------------------------------------------------------------


def regexes(s: Script) -> None:
    """Subscriptions by regular expression; by range, which does not look at the topics' ids."""
    for name, partitions in (("re-alpha", 2), ("re-beta", 1), ("re-alphabet", 1), ("xre-alpha", 1)):
        s.create(name, partitions)
    group = group_of(s, "consumer-regex")
    a, b = Member(s, group, "a"), Member(s, group, "b")
    a.join(subscribed_topic_names=None, subscribed_topic_regex="re-alpha.*", server_assignor="range")
    _await_resolution(s, group, 1)
    settle(a, rounds=2)
    describe(s, group, "an expression", 1)
    b.join(subscribed_topic_names=None, subscribed_topic_regex="re-alpha.*", case="the same expression")
    settle(a, b)
    describe(s, group, "two with the same expression", 1)
    b.full(subscribed_topic_regex="", subscribed_topic_names=["re-beta"], case="a name instead")
    settle(a, b)
    describe(s, group, "an expression and a name", 1)
    b.full(subscribed_topic_regex="re-alpha.*", case="both")
    settle(a, b)
    describe(s, group, "one with both", 1)
    a.full(subscribed_topic_regex="nothing.at.all", case="another expression within ten seconds")
    a.ack("has given up")
    describe(s, group, "an expression that is not resolved", 1)
    b.leave()
    a.leave()
    describe(s, group, "empty", 1)
    s.note(f"records of {group}", records_of(s, group))


def _await_resolution(s: Script, group: str, count: int) -> None:
    def resolved() -> bool:
        shown = records_of(s, group).items()
        return sum(len(v) for k, v in shown if k.startswith("ConsumerGroupRegularExpressionKey")) >= count

    wait_until(resolved, 90, "the expression to be resolved")


def bad_regexes(s: Script) -> None:
    """What RE2 takes and what it does not."""
    group = group_of(s, "consumer-bad-regex")
    patterns = [
        *("(a", "[a", "*a", "a**", "a{1001}", "\\", "(?<n", "[b-a]", "\\8", "(?=a)", "(?!a)", "(?<=a)b"),
        *("\\p{Foo}", "[[:foo:]]", ")", "a++", "x{2,1}", "(?i", "(?P<n", "(?P<1-a>b)", "(a)\\1", "(?>a)"),
        *(
            "",
            "a",
            "^a$",
            ".*",
            "a|b",
            "(?i)A",
            "[[:alpha:]]+",
            "\\d+",
            "\\w*",
            "\\pL",
            "\\p{Greek}",
            "\\bx\\b",
        ),
        *(
            "a{1000}",
            "(?:a)",
            "(?P<n>a)",
            "(?<n>a)",
            "\\Qa.b\\E",
            "\\x41",
            "ü",
            "[^a]",
            "(?s).",
            "a?b+?",
            "\\C",
        ),
        *(
            "(?P<n>a)(?P<n>b)",
            "\\z",
            "\\Z",
            "[\\d-z]",
            "(?x)a b",
            "\\012",
            "\\u0041",
            "[a-\\d]",
            "a{,5}",
        ),
    ]
    for number, pattern in enumerate(patterns):
        member = Member(s, f"{group}-{number}", "a")
        coordinated(s, member.group)
        member.join(subscribed_topic_names=None, subscribed_topic_regex=pattern, case=f"{pattern!r}")


# ---- both protocols ---------------------------------------------------------------------------------------------


def subscription(*topics: str, owned: dict[str, list[int]] | None = None, version: int = 1) -> bytes:
    """What a classic consumer says in its join."""
    out = version.to_bytes(2, "big") + len(topics).to_bytes(4, "big")
    for topic in topics:
        out += len(topic).to_bytes(2, "big") + topic.encode()
    out += b"\xff\xff\xff\xff"
    if version >= 1:
        out += len(owned or {}).to_bytes(4, "big")
        for topic, numbers in (owned or {}).items():
            out += len(topic).to_bytes(2, "big") + topic.encode() + len(numbers).to_bytes(4, "big")
            out += b"".join(n.to_bytes(4, "big") for n in numbers)
    return out


def assignment(topic: str, *numbers: int) -> bytes:
    """What a leader assigns."""
    out = (1).to_bytes(2, "big") + (1).to_bytes(4, "big") + len(topic).to_bytes(2, "big") + topic.encode()
    out += len(numbers).to_bytes(4, "big") + b"".join(n.to_bytes(4, "big") for n in numbers)
    return out + b"\xff\xff\xff\xff"


def upgrade(s: Script) -> None:
    """A classic group that a member of the new protocol joins, and that is classic again when it leaves."""
    topic = s.create("both-protocols", 4)
    for v in (3, 5, s.newest(11)):
        group = group_of(s, f"consumer-upgrade-{v}")
        with ClassicMember(s, group, "old", v) as old:
            says = [("cooperative-sticky", subscription(topic)), ("range", subscription(topic))]
            old.come(protocols=says)
            old.receive()
            everything = [{"member_id": old.member_id, "assignment": assignment(topic, 0, 1, 2, 3)}]
            old.sync("assigns", protocol_name="cooperative-sticky", assignments=everything)
            new = Member(s, group, "new")
            new.join(topic)
            describe(s, group, "upgraded")
            s.ask(15, s.newest(15), {"groups": [group]}, f"{group}, upgraded")
            old.heartbeat("is to join again")
            old.sync("before it has joined again", protocol_name="cooperative-sticky")
            mine = {topic: [0, 1, 2, 3]}
            says = [
                ("cooperative-sticky", subscription(topic, owned=mine)),
                ("range", subscription(topic, owned=mine)),
            ]
            old.join("joins again with all it has", protocols=says)
            old.sync(protocol_name="cooperative-sticky")
            describe(s, group, "the classic one has to give up", 1)
            old.heartbeat("is to join again, to give up")
            new.ack()
            mine = {topic: [0, 1]}
            says = [
                ("cooperative-sticky", subscription(topic, owned=mine)),
                ("range", subscription(topic, owned=mine)),
            ]
            old.join("joins again with half", protocols=says)
            old.sync(protocol_name="cooperative-sticky")
            old.heartbeat("is alive")
            new.ack("gets the other half")
            new.ack()
            describe(s, group, "both have their halves", 1)
            _refused_classic(s, group, old)
            s.note(f"records of {group} before", records_of(s, group))
            new.leave()
            s.ask(15, s.newest(15), {"groups": [group]}, f"{group}, downgraded")
            describe(s, group, "downgraded", 1)
            old.heartbeat("after the downgrade")
            old.join("joins the classic group", protocols=says)
            old.sync("assigns", protocol_name="cooperative-sticky", assignments=everything)
            old.leave()
            s.note(f"records of {group} after", records_of(s, group))


def _refused_classic(s: Script, group: str, old: ClassicMember) -> None:
    """Requests of classic members that a consumer group refuses."""
    old.sync("a wrong generation", generation_id=99, protocol_name="cooperative-sticky")
    old.sync("a wrong protocol", protocol_name="nonsense")
    old.sync("a wrong type", protocol_type="connect", protocol_name="cooperative-sticky")
    old.heartbeat("a wrong generation", generation_id=99)
    old.heartbeat("an unknown member", member_id="who")
    old.sync("an unknown member", member_id="who")
    old.sync("a member of the new protocol", member_id=f"new-of-{group}", protocol_name="cooperative-sticky")
    old.heartbeat("a member of the new protocol", member_id=f"new-of-{group}")
    old.leave("nobody", members=[("who", None), ("who", "i"), ("", "i")])
    with ClassicMember(s, group, "odd", old.version) as odd:
        odd.join("no common protocol", protocols=[("sticky", subscription("t"))])
        odd.join("another type", protocol_type="connect", protocols=[("range", b"")])
        odd.join("no protocol at all", protocols=[])
        odd.join("comes", protocols=[("range", subscription("t"))])
        odd.join("nonsense for a subscription", protocols=[("range", b"\x00")])


def classic_joins(s: Script) -> None:
    """Classic members, dynamic and static, join a consumer group; the last new one leaves or is replaced."""
    topic = s.create("classic-joins-consumer", 3)
    group = group_of(s, "consumer-and-classic")
    new = Member(s, group, "new", instance="x")
    new.join(topic)
    with ClassicMember(s, group, "one") as one, ClassicMember(s, group, "two", instance="y") as two:
        says = [("range", subscription(topic))]
        one.join("comes", protocols=says)
        one.join("comes with its id", protocols=says)
        one.sync()
        one.heartbeat()
        two.join("comes", protocols=says)
        two.sync()
        describe(s, group, "three members", 1)
        new.ack()
        new.owned = {t: p[:1] for t, p in new.owned.items()}
        for _ in range(3):
            new.ack()
            one.heartbeat()
            two.heartbeat()
        twin = ClassicMember(s, group, "twin", instance="y")
        with twin:
            twin.join("takes the place of two", protocols=says)
            twin.sync()
            two.heartbeat("is fenced")
            two.sync("is fenced")
            describe(s, group, "two is replaced", 1)
            last = ClassicMember(s, group, "last", instance="x")
            with last:
                last.join("takes the place of the new one", protocols=says)
                s.ask(15, s.newest(15), {"groups": [group]}, f"{group}, downgraded")
                describe(s, group, "downgraded", 1)
                new.ack("is gone")
    s.note(f"records of {group}", records_of(s, group))


def empty_groups(s: Script) -> None:
    """An empty group of one kind becomes one of the other."""
    topic = s.create("empty-groups-convert", 1)
    group = group_of(s, "consumer-then-classic")
    new = Member(s, group, "new")
    new.join(topic)
    new.leave()
    s.ask(15, s.newest(15), {"groups": [group]}, f"{group}, an empty consumer group")
    with ClassicMember(s, group, "old") as old:
        old.come(protocols=[("range", subscription(topic))])
        old.receive()
        old.lead()
        describe(s, group, "a classic group now")
        old.leave()
    new.epoch = 0
    new.join(topic, case="comes back")
    describe(s, group, "a consumer group again", 1)
    listed = s.quiet(
        LIST_GROUPS, s.newest(LIST_GROUPS), {"states_filter": ["Stable"], "types_filter": ["consumer"]}
    )
    s.note(f"{group} as listed", [row for row in listed["groups"] if row["group_id"] == group])
    s.ask(DELETE_GROUPS, s.newest(DELETE_GROUPS), {"groups_names": [group]}, f"{group}, with a member")
    new.leave()
    s.ask(DELETE_GROUPS, s.newest(DELETE_GROUPS), {"groups_names": [group]}, f"{group}, empty")
    describe(s, group, "deleted")
    s.note(f"records of {group}", records_of(s, group))


def no_upgrade(s: Script) -> None:
    """Classic groups that cannot be upgraded: not of consumers, or nobody understands what they say."""
    group = group_of(s, "connect-is-no-consumer")
    with ClassicMember(s, group, "worker") as worker:
        worker.come(protocol_type="connect", protocols=[("default", b"x")])
        worker.receive()
        Member(s, group, "new").join("t")
        worker.heartbeat()
    group = group_of(s, "nonsense-is-no-consumer")
    with ClassicMember(s, group, "odd") as odd:
        odd.come(protocols=[("range", b"\x00")])
        odd.receive()
        odd.lead()
        Member(s, group, "new").join("t")
        odd.heartbeat()
    group = group_of(s, "user-data-is-no-consumer")
    with ClassicMember(s, group, "custom") as custom:
        custom.come(protocols=[("range", subscription("t"))])
        custom.receive()
        rows = [{"member_id": custom.member_id, "assignment": assignment("t", 0)[:-4] + b"\x00\x00\x00\x01x"}]
        custom.sync("assigns", assignments=rows)
        Member(s, group, "new").join("t")
        custom.heartbeat()


# ---- offsets ----------------------------------------------------------------------------------------------------


def offsets(s: Script) -> None:
    """Commits and fetches of members, by their epochs."""
    topic = s.create("offsets-of-consumers", 2)
    group = group_of(s, "consumer-offsets")
    a, b = Member(s, group, "a"), Member(s, group, "b")
    a.join(topic)
    first = a.epoch
    for v in s.versions(COMMIT, since=7):
        _commit(s, a, topic, v, "its epoch")
        _commit(s, a, topic, v, "a newer epoch", epoch=99)
        _commit(s, a, topic, v, "no epoch", epoch=-1)
        _commit(s, a, topic, v, "an unknown member", member_id="who")
        _commit(s, a, topic, v, "an administrator", epoch=-1, member_id="")
    b.join(topic)
    settle(a, b)
    for v in s.versions(COMMIT, since=9):
        _commit(s, a, topic, v, "an old epoch", epoch=first)
        _commit(s, b, topic, v, "an old epoch", epoch=first)
    for v in s.versions(OFFSET_FETCH, since=8):
        for case, epoch, member in (
            ("its epoch", a.epoch, a.member_id),
            ("an old epoch", first, a.member_id),
            ("a newer epoch", 99, a.member_id),
            ("an unknown member", a.epoch, "who"),
            ("an administrator", -1, None),
        ):
            if v < 9 and member is not None:
                continue
            rows = [{"name": topic, "topic_id": UUID(s.topic_ids[topic]), "partition_indexes": [0, 1]}]
            row = {"group_id": group, "member_id": member, "member_epoch": epoch, "topics": rows}
            s.ask(OFFSET_FETCH, v, {"groups": [row], "require_stable": False}, f"{group}, {case}")


def _commit(
    s: Script,
    member: Member,
    topic: str,
    version: int,
    case: str,
    epoch: int | None = None,
    member_id: str | None = None,
) -> None:
    rows = [
        {"partition_index": p, "committed_offset": 5, "committed_leader_epoch": -1, "committed_metadata": ""}
        for p in (0, 1)
    ]
    body = {
        "group_id": member.group,
        "generation_id_or_member_epoch": member.epoch if epoch is None else epoch,
        "member_id": member.member_id if member_id is None else member_id,
        "group_instance_id": None,
        "topics": [{"name": topic, "topic_id": UUID(s.topic_ids[topic]), "partitions": rows}],
    }
    s.ask(COMMIT, version, body, f"{member.group}, {member.name}, {case}")
