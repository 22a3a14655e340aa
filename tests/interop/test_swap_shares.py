"""The swap of queues: what one broker has accepted, released and archived, the other knows on the same directory."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.interop.apache import ApacheKafka
from tests.interop.ottla_node import OttlaNode
from tests.interop.process import ServerProcess, free_ports
from tests.support.raw_client import RawClient
from tests.support.share_member import ACCEPT, REJECT, RELEASE, ShareMember, configure

pytestmark = pytest.mark.interop

SETTINGS: dict[str, object] = {
    "offsets.topic.num.partitions": 2,
    "share.coordinator.state.topic.num.partitions": 2,
}


@pytest.mark.parametrize("first", ["apache", "ottla"])
def test_a_queue_goes_on_at_the_other_broker(tmp_path: Path, first: str) -> None:
    port, controller_port = free_ports(2)
    brokers: list[ServerProcess] = [
        ApacheKafka(tmp_path / "data", SETTINGS, port=port, controller_port=controller_port),
        OttlaNode(tmp_path / "data", SETTINGS, port=port, controller_port=controller_port),
    ]
    one, other = brokers if first == "apache" else reversed(brokers)
    with one, RawClient(one) as client:
        topic_id = client.create_topic_with_id("q")
        configure(client, "g", auto_offset_reset="earliest")
        client.write("q", 0, [b"%d" % number for number in range(10)])
        member = ShareMember(one, "g", "q", topic_id).join()
        assert member.take()[0][0] == [(0, 9, 1)]
        said = [(0, 1, ACCEPT), (2, 2, RELEASE), (3, 3, REJECT), (4, 4, ACCEPT), (8, 9, RELEASE)]
        assert member.acknowledge({0: said}) == {0: "none"}
        member.fetch({0: [(5, 7, RELEASE)]}, close=True)
    with other, RawClient(other) as client:
        member = ShareMember(other, "g", "q", topic_id).join()
        assert member.take()[0][0] == [(2, 2, 2), (5, 9, 2)]
        assert member.acknowledge({0: [(2, 2, ACCEPT), (5, 7, RELEASE), (8, 9, ACCEPT)]}) == {0: "none"}
        client.write("q", 0, [b"a", b"b"])
        member.fetch(close=True)
    with one, RawClient(one) as client:
        member = ShareMember(one, "g", "q", topic_id).join()
        # Delivered three times without success: in a portion of its own.
        found = member.take()[0][0]
        assert found[0][0] == 5
        assert found[0][2] == 3
        seen = {offset for run in found for offset in range(run[0], run[1] + 1)}
        while 11 not in seen:
            acks = {0: [(first_offset, last, ACCEPT) for first_offset, last, _ in found]}
            found = member.take(acks)[0][0]
            seen |= {offset for run in found for offset in range(run[0], run[1] + 1)}
        assert seen == {5, 6, 7, 10, 11}
