"""What ottla config makes of the names of resources."""

from contextlib import nullcontext
from unittest.mock import MagicMock

import pytest

from ottla.cli.main import main
from ottla.client.admin.types import ClusterDescription, ConfigResource, ResourceType
from ottla.net.peers import Node


@pytest.mark.parametrize("broker", ["1", "01", "0001"])
def test_a_brokers_id_is_a_number_however_it_is_written(broker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    client = MagicMock()
    client.describe_cluster.return_value = ClusterDescription("c", 1, [Node(1, "h", 9092, None)])
    client.incremental_alter_configs.return_value = {}
    monkeypatch.setattr("ottla.cli.config.admin", lambda _: nullcontext(client))
    assert main(["config", "set", "broker", broker, "log.cleaner.threads=1"]) == 0
    (changed,) = client.incremental_alter_configs.call_args.args
    assert list(changed) == [ConfigResource(ResourceType.BROKER, "1")]
