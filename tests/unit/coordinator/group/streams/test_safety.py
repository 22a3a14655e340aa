"""Whatever members do, and whenever: no task is active twice, no process has one twice, and epochs only grow.

Members behave as Kafka Streams does, but heartbeats are late, lost or never come, topics grow, settings change, writes
fail and the coordinator moves. After every step what the members believe they run is held against each other.
"""

import random

import pytest
from tests.support.streams_world import Owned, StreamsWorld, internal, subtopology, told_tasks, topology

from ottla.coordinator.group.streams.group import TRANSITIONS, StreamsGroupState
from ottla.model.errors import ErrorCode
from ottla.wire.messages.groups.streams import StreamsGroupHeartbeatResponse

SAID = topology(
    subtopology("0", ["in"], changelogs=[internal("c0")]),
    subtopology("1", ["in", "more"]),
)
STORES = 8


class Client:
    """A member as it sees itself."""

    def __init__(self, member_id: str, process: str) -> None:
        self.member_id = member_id
        self.process = process
        self.epoch = 0
        self.runs = Owned()
        # Has it a session, as far as it knows? Without one it runs nothing.
        self.joined = False

    def tasks(self, kind: int) -> set[tuple[str, int]]:
        return {(s, p) for s, numbers in self.runs[kind].items() for p in numbers}


class Life:
    """A group, its members, and what befalls them."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        settings = {
            "group.streams.assignment.interval.ms": self.chance.choice([0, 0, 1_000]),
            "group.streams.initial.rebalance.delay.ms": self.chance.choice([0, 3_000]),
            "group.streams.num.standby.replicas": self.chance.choice([0, 1]),
        }
        self.topics = {"in": STORES, "more": 3, "c0": STORES}
        self.world = StreamsWorld(self.topics, settings)
        self.clients: dict[str, Client] = {}
        self.names = iter(range(10**6))
        self.epoch = 0
        self.state = StreamsGroupState.EMPTY

    def step(self) -> None:
        what = self.chance.random()
        if what < 0.12 or not self.clients:
            self.join(Client(f"m{next(self.names)}", self.chance.choice("pqr")))
        elif what < 0.17:
            self.leave(self.pick())
        elif what < 0.2:
            del self.clients[self.pick().member_id]  # it crashes, and nobody is told
        elif what < 0.23:
            self.world = self.world.next_coordinator()
        elif what < 0.26:
            self.topics["more"] = self.chance.randint(2, 9)
            self.world.set_topics(self.topics)
        elif what < 0.28:
            self.world.change_settings({"group.streams.num.standby.replicas": self.chance.randint(0, 2)})
        elif what < 0.32:
            self.world.log.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
            self.beat(self.pick())
            self.world.log.refuse(None)
        elif what < 0.36:
            self.join(self.pick())
        else:
            self.beat(self.pick())
        self.world.pass_ms(self.chance.choice([0, 10, 400, 3_000]))
        self.check()

    def pick(self) -> Client:
        return self.chance.choice(list(self.clients.values()))

    def join(self, client: Client) -> None:
        client.runs, client.epoch, client.joined = Owned(), 0, False
        self.clients[client.member_id] = client
        pending = self.world.come_later(client.member_id, SAID, process=client.process)
        if pending.error is None:
            self.hear(client, pending.result().response)

    def leave(self, client: Client) -> None:
        del self.clients[client.member_id]
        self.world.say_later(client.member_id, epoch=-1)

    def beat(self, client: Client) -> None:
        if not client.joined:
            self.join(client)
            return
        owned = client.runs if self.chance.random() < 0.7 else None
        pending = self.world.say_later(client.member_id, epoch=client.epoch, owned=owned)
        if pending.error is None:
            # Who does not hear the answer joins again: an answer that is not the last may be wrong by then.
            if self.chance.random() < 0.9:
                self.hear(client, pending.result().response)
            else:
                self.join(client)
        elif pending.error.code is not ErrorCode.COORDINATOR_NOT_AVAILABLE:
            self.join(client)

    def hear(self, client: Client, answer: StreamsGroupHeartbeatResponse) -> None:
        client.epoch, client.joined = answer.member_epoch, True
        told = told_tasks(answer)
        if told is not None:
            client.runs = told

    def check(self) -> None:
        group = self.world.streams_group()
        here = [client for client in self.clients.values() if client.member_id in group.members]
        active: set[tuple[str, int]] = set()
        for client in here:
            assert not active & client.tasks(0), f"{active & client.tasks(0)} run twice"
            active |= client.tasks(0)
        for process in "pqr":
            held = [task for c in here if c.process == process for kind in (0, 1) for task in c.tasks(kind)]
            assert len(held) == len(set(held)), f"{process} has a task in two roles"
        state = group.state(committed=True)
        assert state is self.state or state in TRANSITIONS[self.state], f"{self.state} to {state}"
        self.state = state
        assert group.epoch >= self.epoch
        assert all(member.member_epoch <= group.epoch for member in group.members.values())
        self.epoch = group.epoch

    def calm_down(self) -> None:
        """Everybody who is there does what it is told, and those who are not are found out."""
        for _ in range(14):
            for client in list(self.clients.values()):
                pending = self.world.say_later(client.member_id, epoch=client.epoch, owned=client.runs)
                if client.joined and pending.error is None:
                    self.hear(client, pending.result().response)
                else:
                    self.join(client)
            self.world.pass_ms(5_000)
            self.check()


@pytest.mark.parametrize("seed", range(40))
def test_no_task_is_active_twice(seed: int) -> None:
    life = Life(seed)
    for _ in range(120):
        life.step()
    if not life.clients:
        life.join(Client("last", "p"))
    life.calm_down()
    group = life.world.streams_group()
    assert set(group.members) == set(life.clients), f"seed {seed}"
    assert group.state_name() == "Stable", f"seed {seed}"
    expected = {("0", p) for p in range(STORES)} | {("1", p) for p in range(max(STORES, life.topics["more"]))}
    running = set().union(*(client.tasks(0) for client in life.clients.values()))
    assert running == expected, f"seed {seed}: every task runs"
