"""What ottla cluster info says to whom."""

import json
from contextlib import nullcontext
from unittest.mock import MagicMock

import pytest

from ottla.cli.main import main
from ottla.client.admin.types import ClusterDescription
from ottla.model.errors import ErrorCode, KafkaError
from ottla.net.peers import Node


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> MagicMock:
    made = MagicMock()
    made.describe_cluster.return_value = ClusterDescription("c", 1, [Node(1, "h", 9092, None)])
    made.list_topics.return_value = []
    made.describe_topics.return_value = {}
    made.describe_features.return_value = []
    monkeypatch.setattr("ottla.cli.cluster.admin", lambda _: nullcontext(made))
    return made


def test_who_may_not_see_the_quorum_sees_the_rest(
    client: MagicMock, capsys: pytest.CaptureFixture[str]
) -> None:
    client.describe_quorum.side_effect = KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    assert main(["cluster", "info", "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["quorum"] is None
    assert [broker["broker"] for broker in document["brokers"]] == [1]


def test_a_quorum_that_does_not_answer_is_an_error(client: MagicMock) -> None:
    client.describe_quorum.side_effect = KafkaError(ErrorCode.REQUEST_TIMED_OUT)
    assert main(["cluster", "info"]) == 1
