"""What is done to a cluster by chance: nodes killed, stopped, restarted, links cut or slow, and all made whole again.

An episode is up to three faults, each left for a while before the next, and ends with everything undone and every
replica in sync. Who leads and who controls is looked up when a fault strikes, for those are whom it hurts most. With
the same seed the choices are the same, as far as the cluster's own are. Every step is said.

A lost page cache is an episode of its own: what min.insync.replicas=2 promises holds while fewer than two replicas
restart without a clean end, and a node that is killed is one of them as well.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Final

from tests.support.cluster import ClusterNode
from tests.support.proxies import Links
from tests.support.raw_client import RawClient
from tests.support.replicated import Replicated

DESCRIBE_QUORUM: Final = 55
METADATA_LOG: Final = {"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}
MOST_FAULTS: Final = 3
# Shorter and longer than the sessions of brokers, so that a fault is seen by the controllers or is over before.
LASTS_S: Final = (0.5, 12.0)
CALM_S: Final = (0.5, 3.0)
ANSWER_S: Final = 2.0
SLOW_S: Final = (0.02, 0.1, 0.5)
# How many episodes are about a lost page cache.
LOSSY: Final = 0.15
# Those whose records are lost or found with the clients' own.
INTERNAL_TOPICS: Final = ("__consumer_offsets", "__transaction_state")


class Nemesis:
    """Strikes one cluster; `say` takes a line about each step."""

    def __init__(self, cluster: Replicated, chance: random.Random, say: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._chance = chance
        self._say = say
        self._topic = ""
        # What may happen, and how often in proportion.
        self._faults: dict[Callable[[], str], int] = {
            self._kill: 6,
            self._pause: 4,
            self._cut_pair: 3,
            self._cut_leader_from_followers: 4,
            self._cut_controllers: 3,
            self._cut_halves: 2,
            self._restart: 3,
            self._kill_all: 1,
        }
        if isinstance(cluster.links, Links):
            self._faults[self._slow_down] = 3  # only proxies can

    def episode(self, topic: str) -> None:
        """Some faults against the leaders of a topic, then none, until all its replicas are in sync again."""
        self._topic = topic
        if self._chance.random() < LOSSY:
            self._strike(self._lose_page_cache)
        else:
            for _ in range(self._chance.randint(1, MOST_FAULTS)):
                self._strike(self._chance.choices(list(self._faults), list(self._faults.values()))[0])
                if self._chance.random() < 0.2:
                    self._cluster.links.heal()
                    self._say("the network is whole")
        began = time.monotonic()
        self._cluster.recover()
        self._say("all is undone")
        self._cluster.wait_for_full_isr(topic, *INTERNAL_TOPICS)
        self._say(f"all replicas are in sync, {time.monotonic() - began:.1f} s after the faults")
        time.sleep(self._chance.uniform(*CALM_S))

    def _strike(self, fault: Callable[[], str]) -> None:
        self._say(fault())
        time.sleep(self._chance.uniform(*LASTS_S))

    # ---- who ----------------------------------------------------------------------------------------------

    def _brokers(self) -> list[int]:
        return [node.node_id for node in self._cluster.nodes.values() if node.is_broker]

    def _controllers(self) -> list[int]:
        return [node.node_id for node in self._cluster.nodes.values() if node.is_controller]

    def _alive(self) -> list[int]:
        return [node.node_id for node in self._cluster.running() if node.node_id not in self._cluster.paused]

    def _leader(self) -> int:
        """Of one partition of the topic, as a broker that answers has it; or any broker, if nobody leads it."""
        serving = [node.node_id for node in self._cluster.serving()]
        self._chance.shuffle(serving)
        for node_id in serving:
            leaders = [row.leader for row in self._cluster.view(node_id, self._topic).values()]
            if leaders and (leader := self._chance.choice(leaders)) >= 0:
                return leader
        return self._chance.choice(self._brokers())

    def _controller(self) -> int:
        """The active one, or any if none says that it is."""
        for node_id in self._alive():
            if node_id in self._controllers() and _leads_quorum(self._cluster.nodes[node_id]):
                return node_id
        return self._chance.choice(self._controllers())

    def _victim(self) -> tuple[int, str] | None:
        """A node that is alive, and what it is."""
        kind = self._chance.choice(["leader", "controller", "any"])
        alive = self._alive()
        if not alive:
            return None
        found = {"leader": self._leader, "controller": self._controller}.get(kind, lambda: -1)()
        if found not in alive:
            found, kind = self._chance.choice(alive), "any"
        return found, f"node {found}" + {"leader": ", a leader", "controller": ", the controller"}.get(
            kind, ""
        )

    # ---- what ---------------------------------------------------------------------------------------------

    def _kill(self) -> str:
        victim = self._victim()
        if victim is None:
            return "nobody is left to be killed"
        self._cluster.kill(victim[0])
        return f"kill -9 of {victim[1]}"

    def _lose_page_cache(self) -> str:
        victim = self._victim()
        assert victim is not None, "an episode begins with all nodes"
        self._cluster.kill(victim[0])
        self._cluster.lose_page_cache(victim[0])
        return f"kill -9 of {victim[1]}, which loses its page cache"

    def _kill_all(self) -> str:
        for node_id in self._alive():
            self._cluster.kill(node_id)
        return "kill -9 of all nodes"

    def _pause(self) -> str:
        victim = self._victim()
        if victim is None:
            return "nobody is left to be stopped"
        self._cluster.pause(victim[0])
        return f"SIGSTOP of {victim[1]}"

    def _restart(self) -> str:
        """A clean one: it needs the others to take over its leaders."""
        if not self._cluster.links.is_whole or len(self._alive()) < len(self._cluster.nodes):
            return self._kill()
        node_id = self._chance.choice(self._alive())
        code = self._cluster.stop(node_id)
        assert code == 0, f"node {node_id} ended with {code}"
        self._cluster.start(node_id)
        return f"clean restart of node {node_id}"

    def _cut_pair(self) -> str:
        one, other = self._chance.sample(list(self._cluster.nodes), 2)
        return self._cut([one], [other])

    def _cut_leader_from_followers(self) -> str:
        leader = self._leader()
        others = [node_id for node_id in self._brokers() if node_id != leader]
        some = self._chance.sample(others, self._chance.randint(1, len(others)))
        return self._cut([leader], some)

    def _cut_controllers(self) -> str:
        """A leader from all controllers but itself, or the active controller from all other nodes."""
        if self._chance.random() < 0.5:
            leader = self._leader()
            return self._cut([leader], [node_id for node_id in self._controllers() if node_id != leader])
        controller = self._controller()
        return self._cut([controller], [node_id for node_id in self._cluster.nodes if node_id != controller])

    def _cut_halves(self) -> str:
        nodes = list(self._cluster.nodes)
        self._chance.shuffle(nodes)
        middle = len(nodes) // 2
        return self._cut(nodes[:middle], nodes[middle:])

    def _slow_down(self) -> str:
        """One node's links, in both directions."""
        node_id, delay_s = self._chance.choice(list(self._cluster.nodes)), self._chance.choice(SLOW_S)
        for other in self._cluster.nodes:
            if other != node_id:
                self._cluster.links.slow(node_id, other, delay_s=delay_s)
        return f"node {node_id} is {delay_s:g} s away from all others"

    def _cut(self, some: list[int], others: list[int]) -> str:
        """Both ways, or one, or the other; clients reach everybody still."""
        way = self._chance.choice(["<->", "<->", "->", "<-"])
        for one in some:
            for other in others:
                pair = (other, one) if way == "<-" else (one, other)
                self._cluster.links.cut(*pair, both=way == "<->")
        return f"cut {_names(some)} {way} {_names(others)}"


def _names(nodes: list[int]) -> str:
    return ",".join(map(str, sorted(nodes)))


def _leads_quorum(node: ClusterNode) -> bool:
    try:
        with RawClient(node, timeout_s=ANSWER_S, port=node.controller_port) as client:
            answer = client.ask(DESCRIBE_QUORUM, 2, {"topics": [METADATA_LOG]})
    except OSError:
        return False
    return bool(
        answer["error_code"] == "none" and answer["topics"][0]["partitions"][0]["error_code"] == "none"
    )
