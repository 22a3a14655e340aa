"""Apache's own assignors and ours are given the same groups: every member must get the same partitions.

Groups of random shape live through random changes, each assignment resting on the one before, because what a
sticky assignor does depends on what it did. The metadata hash is asked of the library that Apache uses for it.
"""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.interop.apache import fetch_jars

from ottla.coordinator.group.assignors import (
    GroupSpec,
    MemberSpec,
    PartitionAssignor,
    RangeAssignor,
    SubscriptionType,
    UniformAssignor,
)
from ottla.coordinator.group.assignors.api import Partitions, SubscribedTopics
from ottla.coordinator.group.modern.metadata_hash import topic_hash
from ottla.coordinator.java_hash import grown_capacity, hash_order
from ottla.metadata.image import ClusterImage
from ottla.metadata.registrations import BrokerRegistration, PartitionRegistration, TopicImage
from ottla.model.ids import ZERO_UUID, Uuid, uuid_from_str, uuid_to_str
from ottla.model.java_hash import java_hash_code

pytestmark = pytest.mark.interop

JAVA = Path(__file__).resolve().parent / "java" / "Assignments.java"
ASSIGNORS = {"uniform": UniformAssignor(), "range": RangeAssignor()}
Held = dict[Uuid, Partitions]


class Apache:
    """A JVM that answers questions, a few lines each."""

    def __init__(self, where: Path) -> None:
        jars = f"{fetch_jars()}/*"
        subprocess.run(["javac", "-cp", jars, "-d", str(where), str(JAVA)], check=True, timeout=120)
        self._process = subprocess.Popen(
            ["java", "-XX:TieredStopAtLevel=1", "-cp", f"{where}:{jars}", "Assignments"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, *lines: str) -> list[str]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n".join(lines) + "\n\n")
        self._process.stdin.flush()
        answer = []
        while line := self._process.stdout.readline().rstrip("\n"):
            answer.append(line)
        return answer

    def close(self) -> None:
        self._process.communicate(timeout=20)


@pytest.fixture(scope="module")
def apache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apache]:
    asked = Apache(tmp_path_factory.mktemp("classes"))
    yield asked
    asked.close()


class Topics(SubscribedTopics):
    def __init__(self, sizes: dict[Uuid, int]) -> None:
        self._sizes = sizes

    def name(self, topic_id: Uuid) -> str | None:
        return uuid_to_str(topic_id)

    def num_partitions(self, topic_id: Uuid) -> int:
        return self._sizes.get(topic_id, -1)

    def racks(self, topic_id: Uuid, partition: int) -> frozenset[str]:
        return frozenset()


class Member:
    def __init__(self, instance: str | None, topics: frozenset[Uuid]) -> None:
        self.instance = instance
        self.topics = topics
        self.held: Held = {}


class World:
    """A group and its topics, which change at random."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.sizes = {
            Uuid(self.random.randbytes(16)): self.random.choice((1, 2, 3, 7, 16, 33, 100))
            for _ in range(self.random.choice((1, 1, 2, 5, 14)))
        }
        self.alike = self.random.random() < 0.6
        self.members: dict[str, Member] = {}
        for _ in range(self.random.choice((1, 2, 3, 8, 20, 50))):
            self.join()

    def subscription(self) -> frozenset[Uuid]:
        topics = sorted(self.sizes)
        if self.alike:
            return frozenset(topics)
        return frozenset(self.random.sample(topics, self.random.randint(0, len(topics))))

    def join(self) -> None:
        name = f"{self.random.choice(('member', 'm', 'ü'))}-{self.random.randbytes(8).hex()}"
        instance = f"i{self.random.randrange(10**6)}" if self.random.random() < 0.3 else None
        self.members[name] = Member(instance, self.subscription())

    def change(self) -> None:
        for _ in range(self.random.randint(1, 3)):
            what = self.random.random()
            if what < 0.4 or not self.members:
                self.join()
            elif what < 0.8 and len(self.members) > 1:
                del self.members[self.random.choice(list(self.members))]
            else:
                topic = self.random.choice(list(self.sizes))
                self.sizes[topic] += self.random.randint(0, 9)
                if not self.alike:
                    self.members[self.random.choice(list(self.members))].topics = self.subscription()

    @property
    def kind(self) -> SubscriptionType:
        same = len({member.topics for member in self.members.values()}) <= 1
        return SubscriptionType.HOMOGENEOUS if same else SubscriptionType.HETEROGENEOUS

    def ours(self, assignor: PartitionAssignor) -> dict[str, Held]:
        order = hash_order(self.members, java_hash_code, grown_capacity(len(self.members)))
        specs = {
            name: MemberSpec(m.topics, m.held, m.instance)
            for name, m in ((name, self.members[name]) for name in order)
        }
        found = assignor.assign(GroupSpec(specs, self.kind), Topics(self.sizes))
        return {
            name: {t: Partitions(p) for t, p in found.get(name, {}).items() if p} for name in self.members
        }

    def theirs(self, apache: Apache, assignor: str) -> dict[str, Held]:
        lines = [f"assign {assignor} {self.kind.upper()}"]
        lines += [f"topic {uuid_to_str(t)} {size}" for t, size in self.sizes.items()]
        lines += [
            f"member {name} {m.instance or '-'} {','.join(sorted(map(uuid_to_str, m.topics))) or '-'} {_text(m.held)}"
            for name, m in self.members.items()
        ]
        found = dict(line.split(" ") for line in apache.ask(*lines))
        return {name: _parsed(found.get(name, "-")) for name in self.members}


def _text(held: Held) -> str:
    return ";".join(f"{uuid_to_str(t)}:{'.'.join(map(str, p.order))}" for t, p in held.items()) or "-"


def _parsed(text: str) -> Held:
    parts = [] if text == "-" else [part.split(":") for part in text.split(";")]
    return {uuid_from_str(t): Partitions(map(int, numbers.split("."))) for t, numbers in parts}


@pytest.mark.parametrize("assignor", sorted(ASSIGNORS))
@pytest.mark.parametrize("seed", range(60))
def test_every_member_gets_what_apache_gives_it(apache: Apache, assignor: str, seed: int) -> None:
    world = World(seed)
    for step in range(8):
        theirs = world.theirs(apache, assignor)
        ours = world.ours(ASSIGNORS[assignor])
        assert ours == theirs, f"seed {seed}, step {step}, {world.kind}, {len(world.members)} members"
        for name, held in theirs.items():
            world.members[name].held = held
        world.change()


@pytest.mark.parametrize(
    ("name", "partitions", "racks"),
    [("t", 0, ()), ("topic", 3, ()), ("a.b_c-d", 200, ("a",)), ("x" * 249, 17, ("zone/1", "rack-ü"))],
)
def test_the_hash_of_a_topic_is_that_of_apaches_library(
    apache: Apache, name: str, partitions: int, racks: tuple[str, ...]
) -> None:
    topic_id = uuid_from_str("kSSJXIyQQ0e2wUBRdTb1aQ")
    brokers = {n: BrokerRegistration(n, 0, ZERO_UUID, {}, {}, rack) for n, rack in enumerate(racks)}
    partition = PartitionRegistration(tuple(brokers), (), (), (), (), 0, 0, 0, 0)
    topic = TopicImage(name, topic_id, dict.fromkeys(range(partitions), partition))
    found = topic_hash(topic, ClusterImage(brokers=brokers))
    shown = ",".join(sorted(racks)) or "-"
    (theirs,) = apache.ask(f"hash {uuid_to_str(topic_id)} {name} {partitions} {shown}")
    assert found == int(theirs) % 2**64
