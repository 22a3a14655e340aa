"""Whatever members do, and whenever: no partition has two owners, and epochs only grow.

Members behave as clients do, but heartbeats are late, lost, doubled or never come, topics come and go, writes fail
and the coordinator moves. After every step what the members believe they own is held against each other.
"""

import random
from typing import Any

import pytest
from tests.support.consumer_world import ConsumerWorld

from ottla.coordinator.group.assignors import UniformAssignor
from ottla.coordinator.group.consumer.group import TRANSITIONS, ConsumerGroupState
from ottla.model.errors import ErrorCode
from ottla.model.pending import Pending
from ottla.wire.messages.groups.consumer import ConsumerGroupHeartbeatResponse

Assigned = dict[str, list[int]]


class Mine(UniformAssignor):
    """As somebody's own, it is never asked on the loop."""


class Client:
    """A member as it sees itself."""

    def __init__(self, member_id: str) -> None:
        self.member_id = member_id
        self.epoch = 0
        self.topics: list[str] = []
        self.owns: Assigned = {}
        # An answer was lost: it says everything, to be told everything.
        self.unsure = False
        # Its request is parked while the target assignment is made elsewhere.
        self.waits_for: Pending[Any] | None = None

    def partitions(self) -> set[tuple[str, int]]:
        return {(topic, number) for topic, numbers in self.owns.items() for number in numbers}


class Life:
    """A group, its members, and what befalls them."""

    def __init__(self, seed: int, elsewhere: bool) -> None:
        self.chance = random.Random(seed)
        interval = self.chance.choice([0, 0, 1_000])
        self.world = ConsumerWorld(
            {"t": 7, "u": 3, "v": 1},
            {"group.consumer.assignment.interval.ms": interval},
            assignors={"uniform": Mine()} if elsewhere else ("uniform",),
            background=elsewhere,
        )
        self.clients: dict[str, Client] = {}
        self.names = iter(range(10**6))
        self.epoch = 0
        self.state = ConsumerGroupState.EMPTY

    def step(self) -> None:
        if self.chance.random() < 0.3:
            self.world.background.run()
        self.hear_late()
        what = self.chance.random()
        if what < 0.15 or not self.clients:
            self.join(Client(f"m{next(self.names)}"))
        elif what < 0.2:
            self.leave(self.pick())
        elif what < 0.24:
            del self.clients[self.pick().member_id]  # it crashes, and nobody is told
        elif what < 0.27:
            self.world = self.world.reloaded()
        elif what < 0.3:
            self.world.set_topics({"t": self.chance.randint(5, 9), "u": 3, "w": self.chance.randint(1, 2)})
        elif what < 0.34:
            self.world.log.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
            self.beat(self.pick())
            self.world.log.refuse(None)
        elif what < 0.4:
            self.join(self.pick())
        else:
            self.beat(self.pick())
        self.world.pass_ms(self.chance.choice([0, 10, 400, 3_000]))
        self.check()

    def pick(self) -> Client:
        return self.chance.choice(list(self.clients.values()))

    def subscription(self) -> list[str]:
        return self.chance.sample(["t", "u", "v", "w"], self.chance.randint(1, 4))

    def join(self, client: Client) -> None:
        client.owns, client.epoch, client.topics, client.waits_for = {}, 0, self.subscription(), None
        self.clients[client.member_id] = client
        pending = self.world.enter_later(client.member_id, client.topics)
        self.expect(client, pending)

    def expect(self, client: Client, pending: Pending[Any]) -> None:
        if not pending.done:
            client.waits_for = pending
        elif pending.error is None:
            self.hear(client, pending.result())
        else:
            client.unsure = True

    def hear_late(self) -> None:
        """Who waited for an assignment may have been answered."""
        for client in self.clients.values():
            if client.waits_for is not None and client.waits_for.done:
                pending, client.waits_for = client.waits_for, None
                self.expect(client, pending)

    def leave(self, client: Client) -> None:
        del self.clients[client.member_id]
        self.world.beat_later(client.member_id, epoch=-1)

    def beat(self, client: Client) -> None:
        if client.waits_for is not None:
            return  # one request at a time
        fields: dict[str, object] = {}
        if client.unsure or self.chance.random() < 0.1:
            client.topics = client.topics if client.unsure else self.subscription()
            fields["subscribed_topic_names"] = client.topics
        if client.unsure:
            fields["rebalance_timeout_ms"] = 60_000
        owned = client.owns if client.unsure or self.chance.random() < 0.7 else None
        pending = self.world.beat_later(client.member_id, epoch=client.epoch, owned=owned, **fields)
        if not pending.done:
            client.waits_for = pending
        elif pending.error is not None:
            if pending.error.code in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID):
                self.join(client)
            client.unsure = True
        elif self.chance.random() < 0.85:
            self.hear(client, pending.result())
        else:
            client.unsure = True

    def hear(self, client: Client, answer: ConsumerGroupHeartbeatResponse) -> None:
        client.epoch = answer.member_epoch
        client.unsure = False
        told = self.world.told(answer)
        if told is not None:
            client.owns = told

    def check(self) -> None:
        group = self.world.consumer_group()
        taken: set[tuple[str, int]] = set()
        for client in self.clients.values():
            if client.member_id in group.members:
                mine = client.partitions()
                assert not mine & taken, f"{mine & taken} have two owners"
                taken |= mine
        held = [
            (topic_id, number)
            for member in group.members.values()
            for part in (member.assigned, member.pending_revocation)
            for topic_id, numbers in part.items()
            for number in numbers
        ]
        assert len(held) == len(set(held)), "the coordinator thinks so too"
        state = group.state(committed=True)
        assert state is self.state or state in TRANSITIONS[self.state], f"{self.state} to {state}"
        self.state = state
        assert group.epoch >= self.epoch
        assert all(member.member_epoch <= group.epoch for member in group.members.values())
        self.epoch = group.epoch

    def calm_down(self) -> None:
        """Everybody who is there does what it is told, and those who are not are found out."""
        self.world.set_topics({"t": 7, "u": 3, "v": 1, "w": 2})
        for _ in range(16):
            self.world.background.run()
            self.hear_late()
            for client in list(self.clients.values()):
                pending = self.world.beat_later(
                    client.member_id, epoch=client.epoch, owned=client.owns,
                    rebalance_timeout_ms=60_000, subscribed_topic_names=client.topics,
                )  # fmt: skip
                if pending.error is None:
                    self.expect(client, pending)
                else:
                    self.join(client)
            self.world.pass_ms(5_000)
        self.check()


@pytest.mark.parametrize("elsewhere", [False, True], ids=["on the loop", "elsewhere"])
@pytest.mark.parametrize("seed", range(30))
def test_no_partition_has_two_owners(seed: int, elsewhere: bool) -> None:
    life = Life(seed, elsewhere)
    for _ in range(120):
        life.step()
    if not life.clients:
        life.join(Client("last"))
    life.calm_down()
    group = life.world.consumer_group()
    assert set(group.members) == set(life.clients), f"seed {seed}"
    assert group.state_name() == "Stable", f"seed {seed}"
    wanted = {topic for client in life.clients.values() for topic in client.topics}
    expected = {
        (t, n) for t, size in {"t": 7, "u": 3, "v": 1, "w": 2}.items() if t in wanted for n in range(size)
    }
    owned = set().union(*(client.partitions() for client in life.clients.values()))
    assert owned == expected, f"seed {seed}: every partition that somebody wants has an owner"
