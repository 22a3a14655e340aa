"""Five nodes with both roles, replication 5, min ISR 3: any two may fail at once, and nothing is lost or refused.

Three nodes cannot show this: with one of them gone, one more fault is one too many.
"""

from __future__ import annotations

import pytest
from tests.chaos.checker import Outcome, Send
from tests.chaos.workload import PATIENCE_S, Workload
from tests.interop.scripts.batches import Batch, Rec
from tests.interop.scripts.entities import decode_response
from tests.support.raw_client import PRODUCE, RawClient, produce_frame
from tests.support.replicated import Replicated

from ottla.model.ids import TopicPartition

pytestmark = [pytest.mark.xdist_group("replication"), pytest.mark.timeout(900)]

CLUSTER = {
    "combined": 5,
    "replicas": 5,
    "min_isr": 3,
    "settings": {
        "broker.session.timeout.ms": 6_000,
        "broker.heartbeat.interval.ms": 1_000,
        "replica.lag.time.max.ms": 4_000,
        # A request over a cut link is given up, and asked again over a new connection.
        "replica.socket.timeout.ms": 5_000,
        "controller.socket.timeout.ms": 5_000,
    },
}


@pytest.mark.long
def test_two_of_five_die_at_once(cluster: Replicated, topic: str) -> None:
    """The worst two: a leader and the active controller, and then whoever has taken over."""
    cluster.create_topic(topic, partitions=1)
    with Workload(cluster, topic, 1) as load:
        for _ in range(2):
            load.wait_for_writes()
            leader, active = cluster.leader(topic), cluster.active_controller()
            other = next(n for n in cluster.nodes if n != leader) if active == leader else active
            for node_id in (leader, other):
                cluster.kill(node_id)
            mark = load.mark()
            load.wait_for_writes(since=mark)
            load.wait_for_transactions()
            print(f"{leader} and {other} killed: written again after {load.gap_s(mark, 0):.2f} s")
            assert cluster.leader(topic) not in (leader, other)
            cluster.recover()
            cluster.wait_for_full_isr(topic)
        load.wait_for_writes()
        load.wait_for_reads()
    load.verify()


def test_two_that_are_cut_off_acknowledge_nothing(cluster: Replicated, topic: str) -> None:
    """A leader and one follower keep each other and all clients, and lose the other three."""
    cluster.create_topic(topic, partitions=1)
    leader = cluster.leader(topic)
    few = (leader, next(n for n in cluster.nodes if n != leader))
    many = [node_id for node_id in cluster.nodes if node_id not in few]
    with Workload(cluster, topic, 1) as load:
        load.wait_for_writes()
        with RawClient(cluster.nodes[leader], timeout_s=PATIENCE_S) as client:
            for one in few:
                for other in many:
                    cluster.links.cut(one, other)
            now = load.history.tick()
            where = TopicPartition(topic, 0)
            load.history.add(Send("test", where, "cut off", now, now, Outcome.UNKNOWN, idempotent=False))
            client.send(produce_frame(topic, 0, Batch([Rec(b"cut off")]).encode(), acks=-1))
            cluster.wait_for_leader(topic, other_than=few, seen_by=many)
            load.wait_for_writes()
            cluster.links.heal()
            answer = decode_response(PRODUCE, 9, client.receive())
            assert answer["responses"][0]["partition_responses"][0]["error_code"] != "none"
        cluster.wait_for_full_isr(topic)
        load.wait_for_writes()
        load.wait_for_reads()
    load.verify()
