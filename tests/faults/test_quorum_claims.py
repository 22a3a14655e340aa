"""Whoever reaches the controller's listener may claim any epoch: the node leads on and starts again afterwards."""

from __future__ import annotations

import json

import pytest
from tests.faults.conftest import MakeNode
from tests.support.quorum_claims import CLAIMS, claim, leader_epoch
from tests.support.raw_client import RawClient

LAST_EPOCH = 2_147_483_647


@pytest.mark.parametrize("name", CLAIMS)
def test_no_claim_bricks_the_node(make_node: MakeNode, name: str) -> None:
    node = make_node()
    with node, RawClient(node) as client, RawClient(node, port=node.controller_port) as stranger:
        client.write(client.create_topic("before"), 0, [b"kept"])
        for epoch in (LAST_EPOCH, LAST_EPOCH - 1):
            assert claim(stranger, CLAIMS[name], epoch)["error_code"] == "invalid_request"
            assert leader_epoch(stranger) == 1
        # As high as it gets: the next is the node's own, and after it there are enough for every start to come.
        highest = LAST_EPOCH - (1 << 24)
        assert claim(stranger, CLAIMS[name], highest)["error_code"] == "none"
        assert leader_epoch(stranger) == highest + 1
        for epoch in (highest, highest + 1, highest + 2, LAST_EPOCH):
            claim(stranger, CLAIMS[name], epoch)
            assert leader_epoch(stranger) == highest + 1
        client.create_topic("after")
    assert node.exit_code == 0
    stored = json.loads((node.data_dir / "__cluster_metadata-0" / "quorum-state").read_text())
    assert stored["leaderEpoch"] == highest + 1
    for starts in (1, 2):
        with node.start(), RawClient(node) as client, RawClient(node, port=node.controller_port) as stranger:
            assert leader_epoch(stranger) == highest + 1 + starts
            assert client.read("before") == [b"kept"]
            client.create_topic(f"again-{starts}")


def test_a_quorum_state_out_of_range_is_one_line_with_what_to_do(make_node: MakeNode) -> None:
    node = make_node()
    with node, RawClient(node) as client:
        client.write(client.create_topic("orders"), 0, [b"kept"])
    file = node.data_dir / "__cluster_metadata-0" / "quorum-state"
    stored = json.loads(file.read_text())
    for epoch in (LAST_EPOCH + 1, LAST_EPOCH):
        file.write_text(json.dumps({**stored, "leaderEpoch": epoch}))
        node.launch()
        assert node.wait(30) == 1
        last = node.log_text().strip().splitlines()[-1]
        assert last.startswith(f"ottla: {file}: ")
        assert str(epoch) in last
        assert "move the file away and start again" in last
    file.rename(file.with_suffix(".damaged"))
    with node.start(), RawClient(node) as client:
        assert client.read("orders") == [b"kept"]
        client.create_topic("more")
