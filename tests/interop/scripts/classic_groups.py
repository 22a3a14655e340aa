"""Scripts: classic groups, their members' requests (APIs 11 to 15) and the records that they leave.

A join is parked until the others have come, so every member has a connection of its own, and groups that have to
wait are formed side by side.
"""

from __future__ import annotations

import socket
from typing import Any, Self

from tests.interop.process import receive_frame, wait_until
from tests.interop.scripts.entities import decode_response, encode_request
from tests.interop.scripts.group_log import logged
from tests.interop.scripts.masks import clock, masked
from tests.interop.scripts.script import Script

FIND, JOIN, HEARTBEAT, LEAVE, SYNC, DESCRIBE = 10, 11, 12, 13, 14, 15
# What each version of JoinGroup goes with, as clients of its time spoke.
SYNC_OF = (0, 0, 1, 1, 2, 3, 4, 5, 5, 5)
HEARTBEAT_OF = (0, 0, 1, 1, 2, 3, 4, 4, 4, 4)
LEAVE_OF = (0, 0, 1, 1, 2, 3, 4, 4, 5, 5)
SUBSCRIPTION = b"\x00\x01\x00\x00\x00\x01\x00\x01t" + b"\xff\xff\xff\xff" + bytes(4)
RANGE = [("range", SUBSCRIPTION)]


class Member:
    """Somebody with a connection; what it is answered is recorded under its name."""

    def __init__(
        self, s: Script, group: str, name: str, version: int = 9, instance: str | None = None
    ) -> None:
        self.s = s
        self.group = group
        self.name = name
        self.version = version
        self.instance = instance
        self.member_id = ""
        self.generation = -1
        self._socket: socket.socket = s.fresh_connection()
        self._sent: tuple[int, int, str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    # ---- requests -----------------------------------------------------------------------------------------

    def send(self, api_key: int, version: int, body: dict[str, Any], case: str, **header: Any) -> None:
        """A request whose answer is taken by `receive`."""
        self._sent = (api_key, version, case)
        self.s.asked.add((self.s.listener, api_key, version))
        self._socket.sendall(encode_request(api_key, version, body, **header))

    def receive(self) -> dict[str, Any]:
        """The answer, recorded."""
        assert self._sent is not None
        api_key, version, case = self._sent
        try:
            answer = decode_response(api_key, version, receive_frame(self._socket))
        except (ConnectionError, TimeoutError) as failure:
            self.s.note(self._label(api_key, version, case), type(failure).__name__)
            self._socket.close()
            self._socket = self.s.fresh_connection()
            return {}
        self._learn(api_key, answer)
        self.s.note(self._label(api_key, version, case), masked(api_key, answer, self.s.symbols))
        return answer

    def _label(self, api_key: int, version: int, case: str) -> str:
        return f"{api_key} v{version}: {self.group}, {self.name}, {case}"

    def _learn(self, api_key: int, answer: dict[str, Any]) -> None:
        if api_key == JOIN and answer["member_id"]:
            self.member_id = answer["member_id"]
            self.s.symbols.setdefault(self.member_id, f"<{self.name} of {self.group}>")
        if api_key == JOIN and answer["generation_id"] >= 0:
            self.generation = answer["generation_id"]

    def ask(
        self, api_key: int, version: int, body: dict[str, Any], case: str, **header: Any
    ) -> dict[str, Any]:
        self.send(api_key, version, body, case, **header)
        return self.receive()

    def send_join(self, case: str = "joins", **values: Any) -> None:
        header = {"client_id": values.pop("client_id")} if "client_id" in values else {}
        self.send(JOIN, self.version, join_body(self, **values), case, **header)

    def join(self, case: str = "joins", **values: Any) -> dict[str, Any]:
        self.send_join(case, **values)
        return self.receive()

    def come(self, **values: Any) -> None:
        """Join as far as waiting for the others: it is a member when this returns, and the next one comes later."""
        if self.version >= 4 and self.instance is None:
            self.join("comes", **values)
        before = members_of(self.s, self.group)
        self.send_join("comes with its id", **values)
        wait_until(lambda: members_of(self.s, self.group) > before, 90, f"{self.name} to wait")

    def sync(self, case: str = "syncs", version: int | None = None, **values: Any) -> dict[str, Any]:
        self.send_sync(case, version, **values)
        return self.receive()

    def send_sync(self, case: str = "syncs", version: int | None = None, **values: Any) -> None:
        version = SYNC_OF[self.version] if version is None else version
        body = {
            "group_id": self.group,
            "generation_id": self.generation,
            "member_id": self.member_id,
            "group_instance_id": self.instance if version >= 3 else None,
            "protocol_type": "consumer",
            "protocol_name": "range",
            "assignments": [],
            **values,
        }
        self.send(SYNC, version, body, case)

    def lead(self, *others: Member, case: str = "assigns") -> dict[str, Any]:
        """The leader's sync: everybody gets its own name."""
        rows = [{"member_id": m.member_id, "assignment": m.name.encode()} for m in (self, *others)]
        return self.sync(case, assignments=rows)

    def heartbeat(self, case: str = "is alive", version: int | None = None, **values: Any) -> dict[str, Any]:
        version = HEARTBEAT_OF[self.version] if version is None else version
        body = {
            "group_id": self.group,
            "generation_id": self.generation,
            "member_id": self.member_id,
            "group_instance_id": self.instance if version >= 3 else None,
            **values,
        }
        return self.ask(HEARTBEAT, version, body, case)

    def leave(
        self,
        case: str = "leaves",
        version: int | None = None,
        members: list[Any] | None = None,
        **values: Any,
    ) -> dict[str, Any]:
        version = LEAVE_OF[self.version] if version is None else version
        rows = [(self.member_id, self.instance)] if members is None else members
        body = {
            "group_id": self.group,
            "member_id": self.member_id,
            "members": [{"member_id": m, "group_instance_id": i, "reason": "because"} for m, i in rows],
            **values,
        }
        return self.ask(LEAVE, version, body, case)


def join_body(member: Member, **values: Any) -> dict[str, Any]:
    protocols = values.pop("protocols", RANGE)
    return {
        "group_id": member.group,
        "session_timeout": 30_000,
        "rebalance_timeout": 20_000,
        "member_id": member.member_id,
        "group_instance_id": member.instance if member.version >= 5 else None,
        "protocol_type": "consumer",
        "protocols": [{"name": name, "metadata": metadata} for name, metadata in protocols],
        "reason": "a script",
        **values,
    }


def coordinated(s: Script, group: str) -> str:
    """A group whose coordinator is ready."""

    def ready() -> bool:
        s.quiet(FIND, 4, {"key_type": 0, "coordinator_keys": [group]})
        answer = s.quiet(DESCRIBE, 5, {"groups": [group]})
        return bool(answer) and answer["groups"][0]["error_code"] == "none"

    wait_until(ready, 90, f"a coordinator of {group}")
    return group


def members_of(s: Script, group: str) -> int:
    answer = s.quiet(DESCRIBE, 5, {"groups": [group]})
    return len(answer["groups"][0]["members"])


def describe(s: Script, group: str, case: str, *versions: int) -> None:
    for v in versions or s.versions(DESCRIBE):
        body = {"groups": [group], "include_authorized_operations": True}
        s.ask(DESCRIBE, v, body, f"{group}, {case}")


# ---- a life -----------------------------------------------------------------------------------------------------


def lives(s: Script) -> None:
    """A group of one for each version: join, sync, heartbeat, describe, join again, leave."""
    members = [Member(s, coordinated(s, f"life-{v}"), "one", v) for v in s.versions(JOIN)]
    for member in members:
        member.come()
    for member in members:
        _live(s, member)


def _live(s: Script, member: Member) -> None:
    with member:
        member.receive()
        describe(s, member.group, "has to be assigned", 0, 6)
        member.heartbeat("while it has to assign")
        member.join("again while it has to assign")
        member.lead()
        member.sync("again")
        member.heartbeat()
        describe(s, member.group, "stable")
        member.join("again as the leader of a stable group")
        member.heartbeat("after that")
        member.lead(case="assigns again")
        member.leave()
        member.leave("leaves again")
        member.heartbeat("after it has left")
        describe(s, member.group, "empty")
        s.note(f"records of {member.group}", records_of(s, member.group))


def records_of(s: Script, group: str) -> list[Any]:
    """The group's records, as they are in the log."""
    return [_shown(s, record) for _, record in logged(s, group)]


def _shown(s: Script, record: Any) -> Any:
    value = record.value
    if value is None:
        return "tombstone"
    value.current_state_timestamp = clock(value.current_state_timestamp)
    rows = {name: getattr(value, name) for name in type(value).__slots__ if name != "members"}
    members = [{name: getattr(m, name) for name in type(m).__slots__} for m in value.members]
    shown = masked(0, {"version": record.value_version, **rows, "members": members}, s.symbols)
    shown["members"].sort(key=str)
    return shown


# ---- several members --------------------------------------------------------------------------------------------


def rebalances(s: Script) -> None:
    """Three members come, one leaves, one comes back, the leader goes."""
    for v in (3, 5, s.newest(JOIN)):
        group = coordinated(s, f"rebalance-{v}")
        a, b, c = (Member(s, group, name, v) for name in "abc")
        with a, b, c:
            a.come()
            b.come()
            describe(s, group, "the first members come", 6)
            a.receive()
            b.receive()
            b.send_sync("before the leader")
            a.lead(b)
            b.receive()
            c.come()
            a.heartbeat("when a third has come")
            a.sync("when a third has come")
            a.send_join("again")
            b.send_join("again")
            for member in (a, b, c):
                member.receive()
            b.heartbeat("with the generation before", generation_id=1)
            b.sync("with the generation before", generation_id=1)
            a.lead(b, c, case="assigns to three")
            b.sync()
            c.sync()
            b.join("again, unchanged")
            b.heartbeat("after it joined again, unchanged")
            c.leave("a follower leaves")
            b.heartbeat("after one has left")
            describe(s, group, "one has left", 6)
            a.leave("the leader leaves")
            b.join("after the leader has left")
            b.lead()
            b.leave("the last one leaves")


def votes(s: Script) -> None:
    """The protocol that most want; on a tie, Kafka's choice."""
    # No two in one place of a small hash table: there, Kafka's choice depends on the members' random ids.
    names = ("range", "roundrobin", "sticky", "cooperative-sticky", "compatible", "eager")
    pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
    waiting = []
    for a, b in pairs:
        group = coordinated(s, f"votes-{a}-{b}")
        for name, order in (("one", (a, b)), ("two", (b, a))):
            member = Member(s, group, name, 3)
            member.come(protocols=[(protocol, SUBSCRIPTION) for protocol in order])
            waiting.append(member)
    for member in waiting:
        with member:
            member.receive()


def protocol_types(s: Script) -> None:
    """Any protocol type; who does not share it, or no protocol, stays outside."""
    for kind in ("connect", "sr", "consumer"):
        group = coordinated(s, f"type-{kind}")
        a, b, c = (Member(s, group, name, 9) for name in "abc")
        with a, b, c:
            a.come(protocol_type=kind, protocols=[("p", b"1"), ("q", b"2")])
            b.join("another type", protocol_type="other")
            b.join("no type", protocol_type="")
            b.join("no protocols", protocol_type=kind, protocols=[])
            b.join("another protocol", protocol_type=kind, protocols=[("z", b"")])
            b.join("a common protocol", protocol_type=kind, protocols=[("z", b""), ("q", b"3")])
            b.send_join(
                "a common protocol, with its id", protocol_type=kind, protocols=[("z", b""), ("q", b"3")]
            )
            a.receive()
            b.receive()
            a.sync("another type", protocol_type="other", protocol_name="q")
            a.sync("another protocol", protocol_type=kind, protocol_name="p")
            a.sync("no type", protocol_type=None, protocol_name="q")
            rows = [{"member_id": a.member_id, "assignment": b"A"}, {"member_id": "who", "assignment": b"W"}]
            a.sync("assigns", protocol_type=kind, protocol_name="q", assignments=rows)
            b.sync("gets nothing", protocol_type=kind, protocol_name="q")
            a.sync("as before version 5", version=4)
            describe(s, group, "stable", 6)
            a.join("with a protocol the other has not", protocol_type=kind, protocols=[("p", b"")])
            c.join("an id nobody gave", member_id="who", protocol_type=kind, protocols=[("q", b"")])
            b.leave("two leave", members=[(a.member_id, None), ("who", None), (b.member_id, None)])
            describe(s, group, "empty", 6)
            s.note(f"records of {group}", records_of(s, group))


# ---- static members ---------------------------------------------------------------------------------------------


def static_members(s: Script) -> None:
    """Instances come, are replaced and fenced, and are removed by name."""
    for v in s.versions(JOIN, since=5):
        group = coordinated(s, f"static-{v}")
        a, b, c = (Member(s, group, name, v, instance=f"i-{name}") for name in "abc")
        with a, b, c, Member(s, group, "administrator", v) as administrator:
            a.come()
            b.come()
            a.receive()
            b.receive()
            a.lead(b)
            b.sync()
            describe(s, group, "stable", 3, 4, 6)
            _replace(s, v, group, b)
            _replace(s, v, group, a)
            c.come()
            a.heartbeat("when another instance has come")
            administrator.leave(
                "an administrator removes instances",
                members=[("", "i-c"), ("", "i-none"), ("", None), ("who", "i-a"), ("who", None)],
            )
            c.receive()
            s.note(f"records of {group}", records_of(s, group))


def _replace(s: Script, v: int, group: str, old: Member) -> None:
    with Member(s, group, f"the next {old.name}", v, instance=old.instance) as new:
        new.join("comes back")
        old.heartbeat("after it was replaced")
        old.sync("after it was replaced")
        old.join("after it was replaced")
        old.leave("after it was replaced")
        old.heartbeat("after it was replaced, without its instance", group_instance_id=None)
        new.heartbeat()
        new.sync("fetches what its predecessor had")
        describe(s, group, f"{old.name} was replaced", 6)
        old.name, old.member_id = new.name, new.member_id


def static_while_waiting(s: Script) -> None:
    """An instance that comes twice before the group is formed, and while its leader assigns."""
    group = coordinated(s, "static-twice")
    first, second, third = (Member(s, group, name, 9, instance="i") for name in ("first", "second", "third"))
    with first, second, third:
        first.come()
        second.send_join()
        first.receive()
        second.receive()
        third.send_join("while the one before has to assign")
        third.receive()
        second.sync("after it was replaced")
        third.lead()


# ---- refusals ---------------------------------------------------------------------------------------------------


def refusals(s: Script) -> None:
    """Requests of strangers, of no group, with impossible sessions: every version, every code."""
    group = coordinated(s, "refusals")
    with Member(s, group, "stranger") as stranger:
        for v in s.versions(JOIN):
            stranger.version, stranger.member_id = v, ""
            stranger.join("no group", group_id="")
            stranger.join("an id in a group that is not there", member_id="who")
            for session in (-1, 0, 5_999, 1_800_001):
                stranger.join(f"a session of {session}", session_timeout=session, member_id="who")
        for v in s.versions(HEARTBEAT):
            stranger.heartbeat("no group", v, group_id="", member_id="who", generation_id=1)
            stranger.heartbeat("a group that is not there", v, member_id="who", generation_id=1)
        for v in s.versions(SYNC):
            stranger.sync("no group", v, group_id="", member_id="who", generation_id=1)
            stranger.sync("a group that is not there", v, member_id="who", generation_id=1)
        for v in s.versions(LEAVE):
            stranger.leave("no group", v, group_id="", member_id="who", members=[("who", None)])
            stranger.leave(
                "a group that is not there", v, member_id="who", members=[("who", None), ("", "i")]
            )
            stranger.leave("nobody", v, member_id="", members=[])
        stranger.sync("neither type nor protocol", 5, protocol_type=None, protocol_name=None)
    describe(s, group, "is not there")
    s.ask(DESCRIBE, 6, {"groups": []}, "no groups")
    s.ask(DESCRIBE, 6, {"groups": [""]}, "the group without a name")
    s.note("records of refusals", records_of(s, group))


def refusals_in_a_group(s: Script) -> None:
    """Requests of strangers and of the past to a group that is there."""
    group = coordinated(s, "refusals-inside")
    member, stranger = Member(s, group, "member"), Member(s, group, "stranger")
    with member, stranger:
        # Not described here: of a group that has given out an id and nothing else Apache says Empty or Dead.
        member.join("comes")
        stranger.heartbeat("an id that has not joined", member_id=member.member_id, generation_id=0)
        stranger.sync("an id that has not joined", member_id=member.member_id, generation_id=0)
        stranger.leave("an id is given back", members=[(member.member_id, None)])
        member.join("with an id that was given back")
        member.member_id = ""
        member.come()
        stranger.heartbeat("while it waits", member_id=member.member_id, generation_id=0)
        stranger.sync("while it waits", member_id=member.member_id, generation_id=0)
        member.receive()
        member.lead()
        for v in s.versions(HEARTBEAT):
            member.heartbeat("a generation to come", v, generation_id=99)
            member.heartbeat("no generation", v, generation_id=-1)
            stranger.heartbeat("an id nobody gave", v, member_id="who", generation_id=1)
            stranger.heartbeat("an instance nobody is", v, member_id=member.member_id, group_instance_id="i")
        for v in s.versions(SYNC):
            member.sync("a generation to come", v, generation_id=99)
            stranger.sync("an id nobody gave", v, member_id="who", generation_id=1)
            stranger.sync("an instance nobody is", v, member_id=member.member_id, group_instance_id="i")
        for v in s.versions(LEAVE):
            stranger.leave("an id nobody gave", v, member_id="who", members=[("who", None), ("who", "i")])
        for v in s.versions(JOIN):
            stranger.version, stranger.member_id = v, ""
            stranger.join("an id nobody gave", member_id="who")
        member.heartbeat("after all that")
        describe(s, group, "after all that", 6)


def odd_names(s: Script) -> None:
    """Client ids of all kinds become part of the members' ids; groups may be called anything."""
    for case, client_id in {"none": None, "empty": "", "odd": "a b/ü", "a long one": "x" * 1_000}.items():
        with Member(s, coordinated(s, f"client {case} ü/"), "one") as member:
            answer = member.join("comes", client_id=client_id)
            prefix = answer["member_id"][:-36] if answer else None
            s.note(f"the id of a client whose name is {case}", prefix)


def large_assignments(s: Script) -> None:
    """Metadata of many sizes; an assignment that no record can hold."""
    group = coordinated(s, "large")
    with Member(s, group, "one") as member:
        member.come(protocols=[("range", bytes(200_000))])
        member.receive()
        rows = [{"member_id": member.member_id, "assignment": bytes(1_200_000)}]
        member.sync("a large assignment", assignments=rows)
        member.heartbeat("after that")
        member.join("after that", protocols=[("range", b"small")])
        member.lead()
