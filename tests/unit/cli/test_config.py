"""What ottla config makes of the names of resources, and of files."""

from contextlib import nullcontext
from pathlib import Path
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


@pytest.mark.parametrize("encoding", ["utf-8", "iso-8859-1"])
def test_a_file_is_read_as_java_and_serve_read_it(
    encoding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A password in the older encoding was set to one that nobody has."""
    client = MagicMock()
    client.describe_cluster.return_value = ClusterDescription("c", 1, [Node(1, "h", 9092, None)])
    client.incremental_alter_configs.return_value = {}
    monkeypatch.setattr("ottla.cli.config.admin", lambda _: nullcontext(client))
    file = tmp_path / "secret.properties"
    file.write_text("ssl.key.password=gr\u00fc\u00dfe\n", encoding=encoding)
    assert main(["config", "set", "broker", "1", "--from-file", str(file)]) == 0
    (changed,) = client.incremental_alter_configs.call_args.args
    assert [change.value for changes in changed.values() for change in changes] == ["gr\u00fc\u00dfe"]
