"""An Apache broker that takes its metadata from our controller: registering, fetching the log, fetching a snapshot.

Everything that passes between a broker and a controller does so over the network here, in Kafka's own words, also what
a broker forwards for its clients (Envelope). Replication between brokers is not part of it.
"""

import socket
from pathlib import Path
from typing import Any

import pytest
from tests.interop.apache import ApacheKafka, run_tool, write_properties
from tests.interop.ottla_node import OttlaNode
from tests.interop.process import HOST, ServerProcess, receive_frame, wait_until

from ottla.wire.codec import decode
from ottla.wire.framing import encode_request
from ottla.wire.messages import metadata
from ottla.wire.messages.admin import configs, topics
from ottla.wire.messages.nodes import broker_lifecycle, raft

pytestmark = pytest.mark.interop

PATIENCE_S = 30.0


class ApacheBroker(ApacheKafka):
    """An Apache node with the role of a broker only."""

    def settings(self) -> dict[str, object]:
        return {
            **super().settings(),
            "process.roles": "broker",
            "listeners": f"PLAINTEXT://{HOST}:{self.port}",
            "advertised.listeners": f"PLAINTEXT://{HOST}:{self.port}",
        }

    def format(self) -> None:
        if self.is_formatted():
            return
        write_properties(self.config_path, self.settings())
        run_tool("StorageTool", "format", "-t", self.cluster_id, "-c", str(self.config_path))


def broker_of(node: OttlaNode, directory: Path) -> ApacheBroker:
    lines = (node.data_dir / "meta.properties").read_text().splitlines()
    cluster_id = next(line.partition("=")[2] for line in lines if line.startswith("cluster.id="))
    return ApacheBroker(directory, node_id=2, cluster_id=cluster_id, controller_port=node.controller_port)


def ask(server: ServerProcess, request: Any, response: type[Any], version: int) -> Any:
    """One request to a broker, in a version whose response header has tagged fields."""
    with socket.create_connection((HOST, server.port)) as connection:
        connection.sendall(encode_request(request, version, 1, "test"))
        answer, _ = decode(response, receive_frame(connection), version, 5)
        return answer


def create(node: OttlaNode, name: str, broker_id: int) -> None:
    assignment = topics.CreatableReplicaAssignment(partition_index=0, broker_ids=[broker_id])
    wanted = topics.CreatableTopic(
        name=name, num_partitions=-1, replication_factor=-1, assignments=[assignment], configs=[]
    )
    answer = ask(node, topics.CreateTopicsRequest(topics=[wanted]), topics.CreateTopicsResponse, 7)
    assert answer.topics[0].error_code == 0, answer


def observers(node: OttlaNode) -> list[int]:
    partition = raft.DescribeQuorumRequestPartitionData(partition_index=0)
    topic = raft.DescribeQuorumRequestTopicData(topic_name="__cluster_metadata", partitions=[partition])
    request = raft.DescribeQuorumRequest(topics=[topic])
    answer = ask(node, request, raft.DescribeQuorumResponse, 2)
    return [observer.replica_id for observer in answer.topics[0].partitions[0].observers]


def leaders(server: ServerProcess) -> dict[str, int]:
    """Who leads partition 0 of each topic, as the broker knows it."""
    answer = ask(server, metadata.MetadataRequest(topics=None), metadata.MetadataResponse, 12)
    return {topic.name: topic.partitions[0].leader_id for topic in answer.topics}


def retention_ms(server: ServerProcess, topic: str) -> str | None:
    wanted = configs.DescribeConfigsResource(
        resource_type=2, resource_name=topic, configuration_keys=["retention.ms"]
    )
    request = configs.DescribeConfigsRequest(resources=[wanted])
    answer = ask(server, request, configs.DescribeConfigsResponse, 4)
    value: str | None = answer.results[0].configs[0].value
    return value


def test_an_apache_broker_lives_under_our_controller(tmp_path: Path) -> None:
    with OttlaNode(tmp_path / "ottla") as node, broker_of(node, tmp_path / "apache") as broker:
        assert observers(node) == [2]
        create(node, "theirs", 2)
        create(node, "ours", 1)
        both = {"theirs": 2, "ours": 1}
        wait_until(lambda: leaders(broker) == both, PATIENCE_S, "the topics are known")
        assert leaders(node) == both
        change = configs.IncrementalAlterableConfig(name="retention.ms", config_operation=0, value="4321")
        resource = configs.IncrementalAlterConfigsResource(
            resource_type=2, resource_name="theirs", configs=[change]
        )
        request = configs.IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
        ask(node, request, configs.IncrementalAlterConfigsResponse, 1)
        wait_until(lambda: retention_ms(broker, "theirs") == "4321", PATIENCE_S, "the change is known")
        broker.stop()
        assert leaders(node) == {"theirs": -1, "ours": 1}, "it has handed over"
        broker.start()
        wait_until(lambda: leaders(node) == both, PATIENCE_S, "it leads again")
        broker.stop()
        gone = broker_lifecycle.UnregisterBrokerRequest(broker_id=2)
        assert ask(node, gone, broker_lifecycle.UnregisterBrokerResponse, 0).error_code == 0


def test_an_apache_broker_forwards_to_our_controller(tmp_path: Path) -> None:
    """Clients that know only the Apache broker change the cluster: it puts what they ask into envelopes."""
    with OttlaNode(tmp_path / "ottla") as node, broker_of(node, tmp_path / "apache") as broker:
        created = ("--create", "--topic", "forwarded", "--replica-assignment", "2")
        broker.tool("TopicCommand", *created, "--config", "retention.ms=1234")
        wait_until(lambda: leaders(node) == {"forwarded": 2}, PATIENCE_S, "the topic is there")
        again = broker.tool("TopicCommand", *created, check=False)
        assert "already exists" in again.stdout + again.stderr
        topic = ("--entity-type", "topics", "--entity-name", "forwarded")
        broker.tool("ConfigCommand", *topic, "--alter", "--add-config", "retention.ms=4321")
        wait_until(lambda: retention_ms(broker, "forwarded") == "4321", PATIENCE_S, "the change is known")
        bad = broker.tool(
            "ConfigCommand", *topic, "--alter", "--add-config", "retention.ms=soon", check=False
        )
        assert bad.returncode != 0
        status = broker.tool("MetadataQuorumCommand", "describe", "--status").stdout
        assert status.splitlines()[1].split() == ["LeaderId:", "1"]
        broker.tool("TopicCommand", "--delete", "--topic", "forwarded")
        wait_until(lambda: leaders(node) == {}, PATIENCE_S, "the topic is gone")


def test_a_late_apache_broker_begins_with_our_snapshot(tmp_path: Path) -> None:
    often = {"metadata.log.max.record.bytes.between.snapshots": 1000}
    with OttlaNode(tmp_path / "ottla", often) as node:
        for number in range(12):
            create(node, f"t{number}", 1)
        ours = node.data_dir / "__cluster_metadata-0"
        wait_until(lambda: bool(snapshots(ours)), PATIENCE_S, "a snapshot is written")
        with broker_of(node, tmp_path / "apache") as broker:
            assert leaders(broker) == {f"t{number}": 1 for number in range(12)}
            theirs = broker.data_dir / "__cluster_metadata-0"
            fetched = set(snapshots(theirs)) & set(snapshots(ours))
            assert fetched, "it was fetched whole, not record by record"
            for name in fetched:
                assert (theirs / name).read_bytes() == (ours / name).read_bytes()


def snapshots(directory: Path) -> list[str]:
    """The snapshots beside the log, but for the one that formatting writes."""
    return [path.name for path in directory.glob("*.checkpoint") if not path.name.startswith("0" * 20)]
