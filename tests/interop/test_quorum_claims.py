"""A stranger's claims of epochs: what the reference answers, and where Ottla holds out and it does not.

4.3.1 ends when BeginQuorumEpoch names a leader that is no voter, and when an election would go beyond the last
epoch; after a Vote of the last epoch but one it never starts again. Ottla refuses those claims and goes on.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.interop.apache import ApacheKafka
from tests.interop.ottla_node import OttlaNode
from tests.interop.process import ServerDied, ServerProcess, wait_until
from tests.support.quorum_claims import BEGIN_QUORUM_EPOCH, END_QUORUM_EPOCH, VOTE, claim, leader_epoch
from tests.support.raw_client import RawClient

pytestmark = pytest.mark.interop

LAST_EPOCH = 2_147_483_647


def answers(node: ServerProcess) -> list[object]:
    """To a higher epoch, and who leads afterwards; a sole voter stands for election again, each in its own time."""
    with RawClient(node, port=node.controller_port) as stranger:
        said: list[object] = [claim(stranger, VOTE, 0), claim(stranger, END_QUORUM_EPOCH, 0)]
        said.append(claim(stranger, VOTE, 1000))
        wait_until(lambda: leader_epoch(stranger) is not None, 30, "the sole voter to lead again")
        said.append(leader_epoch(stranger))
    return said


def test_a_higher_epoch_is_answered_alike(tmp_path: Path) -> None:
    with ApacheKafka(tmp_path / "apache") as apache:
        reference = answers(apache)
    with OttlaNode(tmp_path / "ottla") as ottla:
        assert answers(ottla) == reference
    assert reference[-1] == 1001


@pytest.mark.parametrize(
    ("api_key", "epoch", "starts_again"),
    [(VOTE, LAST_EPOCH, True), (VOTE, LAST_EPOCH - 1, False), (BEGIN_QUORUM_EPOCH, 1000, True)],
)
def test_what_ends_the_reference_does_not_end_ottla(
    tmp_path: Path, api_key: int, epoch: int, starts_again: bool
) -> None:
    apache = ApacheKafka(tmp_path / "apache")
    apache.start()
    with RawClient(apache, port=apache.controller_port) as stranger:
        try:
            answer = claim(stranger, api_key, epoch)
            assert (answer["error_code"], answer["leader_epoch"]) == ("none", epoch)
        except ConnectionError:
            assert api_key == BEGIN_QUORUM_EPOCH
        if epoch == LAST_EPOCH - 1:
            wait_until(lambda: leader_epoch(stranger) == LAST_EPOCH, 30, "it to lead the last epoch")
    if epoch != LAST_EPOCH - 1:
        assert apache.wait(60) != 0
    apache.kill()
    if starts_again:
        with apache:
            pass
    else:
        with pytest.raises(ServerDied):
            apache.start()
    with OttlaNode(tmp_path / "ottla") as ottla:
        with RawClient(ottla, port=ottla.controller_port) as stranger:
            claim(stranger, api_key, epoch)
            assert leader_epoch(stranger) is not None
        with RawClient(ottla) as client:
            client.create_topic("served")
        ottla.restart()
        with RawClient(ottla) as client:
            client.create_topic("served-again")
    assert ottla.exit_code == 0
