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


@pytest.mark.parametrize("resource", [["broker", "1"], ["cluster"]])
def test_a_key_that_no_broker_knows_is_named_with_the_nearest(
    resource: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Brokers take any key, because it may be a plugin's: a misspelt one was said to be set, and changed nothing."""
    client = MagicMock()
    client.describe_cluster.return_value = ClusterDescription("c", 1, [Node(1, "h", 9092, None)])
    client.incremental_alter_configs.return_value = {}
    monkeypatch.setattr("ottla.cli.config.admin", lambda _: nullcontext(client))
    good = ["log.retention.ms=1", "listener.name.in.max.connections=9", "leader.replication.throttled.rate=9"]
    assert main(["config", "set", *resource, *good]) == 0
    assert "unknown" not in capsys.readouterr().err
    assert main(["config", "set", *resource, "log.retention.mss=1"]) == 0
    said = capsys.readouterr().err
    assert "log.retention.mss" in said
    assert "did you mean log.retention.ms?" in said
    # To take it away again needs no advice.
    assert main(["config", "unset", *resource, "log.retention.mss"]) == 0
    assert "did you mean" not in capsys.readouterr().err
