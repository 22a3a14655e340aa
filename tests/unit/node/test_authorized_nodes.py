"""Nodes with an authorizer: brokers, controllers and both; what counts when, and who may speak to whom."""

import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.interop.process import wait_until
from tests.support.logged_in import LoggedIn

from ottla.client.admin.types import NewTopic
from ottla.client.blocking import Admin, Producer
from ottla.config.errors import ConfigError
from ottla.model.errors import ErrorCode, KafkaError
from ottla.security.acls import (
    NODE_IS_REFUSED,
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    PatternType,
    ResourceType,
)
from ottla.security.authorizer import STANDARD, StandardAuthorizer
from ottla.security.principal import AuthenticationContext, KafkaPrincipal, write_principal
from ottla.server.authorization import MAX_LINES_PER_S
from ottla.testing import Broker, Cluster
from ottla.wire.framing import encode_request
from ottla.wire.messages.admin.cluster import DescribeClusterRequest
from ottla.wire.messages.admin.topics import CreatableTopic, CreateTopicsRequest
from ottla.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.wire.messages.nodes.envelope import EnvelopeRequest
from ottla.wire.messages.security.acls import AclCreation, CreateAclsRequest, DescribeAclsRequest

USERS = ("admin", "node", "alice", "stranger")
OPERATION, TOPIC, CLUSTER = AclOperation, ResourceType.TOPIC, ResourceType.CLUSTER
NO_TOPIC, NO_CLUSTER = ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def settings(node: str = "node", **more: object) -> dict[str, object]:
    """Everybody logs in, nodes too; a password is the user's name."""
    users = " ".join(f'user_{name}="{name}"' for name in USERS)
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    login = f'{module} required username="{node}" password="{node}" {users};'
    return {
        "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "sasl.mechanism.controller.protocol": "PLAIN",
        "listener.name.plaintext.plain.sasl.jaas.config": login,
        "listener.name.controller.plain.sasl.jaas.config": login,
        "authorizer.class.name": STANDARD,
        "super.users": "User:admin;User:node",
        "auto.create.topics.enable": "false",
    } | {name.replace("_", "."): value for name, value in more.items()}


def login(user: str) -> dict[str, Any]:
    return {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_username": user,
        "sasl_password": user,
    }


def admin_of(servers: str, user: str) -> Admin:
    return Admin(bootstrap_servers=servers, **login(user))


def rule(operation: AclOperation, kind: ResourceType, name: str, user: str = "alice") -> AclBinding:
    return AclBinding(
        kind, name, PatternType.LITERAL, f"User:{user}", "*", operation, AclPermissionType.ALLOW
    )


def grant(admin: Admin, *rules: AclBinding) -> None:
    assert set(admin.create_acls(rules).values()) == {None}


def revoke(admin: Admin, given: AclBinding) -> None:
    (found,) = admin.delete_acls([AclBindingFilter(*given)]).values()
    assert found == [given]


def metadata(connection: LoggedIn, topic: str) -> int:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
    (row,) = connection.ask(request, 9).topics
    return int(row.error_code)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Both roles, alone."""
    made = Broker(settings(), data_dir=tmp_path_factory.mktemp("judged"))
    with made:
        with admin_of(made.bootstrap_servers, "admin") as admin:
            admin.create_topics([NewTopic("t", 1)])
        yield made


# ---- a node of both roles -----------------------------------------------------------------------------------


def test_rights_come_and_go_with_the_next_request(broker: Broker) -> None:
    given = rule(OPERATION.DESCRIBE, TOPIC, "t")
    with (
        admin_of(broker.bootstrap_servers, "admin") as admin,
        LoggedIn(broker.bootstrap_servers, "alice", "alice") as alice,
    ):
        assert metadata(alice, "t") == metadata(alice, "nowhere") == NO_TOPIC
        for _ in range(3):
            grant(admin, given)
            assert metadata(alice, "t") == 0
            revoke(admin, given)
            assert metadata(alice, "t") == NO_TOPIC


def test_who_may_not_is_not_shown_the_rules(broker: Broker) -> None:
    with admin_of(broker.bootstrap_servers, "alice") as alice:
        with pytest.raises(KafkaError) as refused:
            alice.describe_acls()
        assert refused.value.code is NO_CLUSTER
        wanted = rule(OPERATION.ALL, TOPIC, "*")
        refusal = alice.create_acls([wanted])[wanted]
        assert refusal is not None
        assert refusal.code is NO_CLUSTER
        outcome = alice.delete_acls([AclBindingFilter()])[AclBindingFilter()]
        assert isinstance(outcome, KafkaError)
        assert outcome.code is NO_CLUSTER


def test_rules_by_the_client(broker: Broker) -> None:
    with admin_of(broker.bootstrap_servers, "admin") as admin:
        first, second = rule(OPERATION.READ, TOPIC, "x"), rule(OPERATION.WRITE, TOPIC, "x")
        wrong = rule(OPERATION.READ, CLUSTER, "another")
        results = admin.create_acls([first, second, first, wrong])
        refusal = results.pop(wrong)
        assert results == {first: None, second: None}
        assert refusal is not None
        assert refusal.code is ErrorCode.INVALID_REQUEST
        about = AclBindingFilter(resource_type=TOPIC, name="x")
        assert admin.describe_acls(about) == [first, second]
        nothing = AclBindingFilter(name="y")
        assert admin.delete_acls([about, nothing]) == {about: [first, second], nothing: []}
        assert admin.describe_acls(about) == []


def test_they_survive_a_restart_and_count_before_anybody_is_served(tmp_path: Path) -> None:
    given = [rule(OPERATION.DESCRIBE, TOPIC, f"t{number}") for number in range(300)]
    made = Broker(settings(), data_dir=tmp_path)
    with made, admin_of(made.bootstrap_servers, "admin") as admin:
        admin.create_topics([NewTopic("t1", 1), NewTopic("hidden", 1)])
        grant(admin, *given)
        with LoggedIn(made.bootstrap_servers, "alice", "alice") as alice:
            assert metadata(alice, "t1") == 0
    with made:
        assert isinstance(made.node.authorizer, StandardAuthorizer)
        assert len(made.node.authorizer) == 300
        with LoggedIn(made.bootstrap_servers, "alice", "alice") as alice:
            assert metadata(alice, "t1") == 0
            everything = alice.ask(MetadataRequest(topics=None), 9)
            assert [topic.name for topic in everything.topics] == ["t1"]
        with LoggedIn(made.node.controller_address, "admin", "admin") as admin_there:
            request = DescribeAclsRequest(
                resource_type_filter=1,
                resource_name_filter=None,
                pattern_type_filter=1,
                principal_filter=None,
                host_filter=None,
                operation=1,
                permission_type=1,
            )
            assert len(admin_there.ask(request, 3).resources) == 300


def test_the_authorizer_is_not_changed_while_the_node_runs(broker: Broker) -> None:
    from ottla.client.admin.types import ConfigChange, ConfigResource
    from ottla.client.admin.types import ResourceType as ConfigType

    node, everybody = ConfigResource(ConfigType.BROKER, "1"), ConfigResource(ConfigType.BROKER, "")
    with admin_of(broker.bootstrap_servers, "admin") as admin:
        for resource in (node, everybody):
            for key, value in (
                ("authorizer.class.name", ""),
                ("early.start.listeners", "PLAINTEXT"),
                ("principal.builder.class", "some.where.Builder"),
                ("listener.name.plaintext.principal.builder.class", "some.where.Builder"),
            ):
                refusal = admin.incremental_alter_configs({resource: [ConfigChange(key, value)]})[resource]
                assert refusal is not None, key
                assert refusal.code is ErrorCode.INVALID_REQUEST
        # What only plugins read may be written, as with Kafka, and changes nothing.
        admin.incremental_alter_configs({node: [ConfigChange("super.users", "User:stranger")]})
    with LoggedIn(broker.bootstrap_servers, "stranger", "stranger") as stranger:
        assert metadata(stranger, "t") == NO_TOPIC


# ---- a node that is refused ---------------------------------------------------------------------------------


def envelope(request: Any, version: int, user: str) -> EnvelopeRequest:
    frame = encode_request(request, version, 3, "forged")
    return EnvelopeRequest(
        request_data=bytes(frame[4:]),
        request_principal=write_principal(KafkaPrincipal("User", user)),
        client_host_address=bytes([127, 0, 0, 1]),
    )


def test_only_nodes_may_speak_for_others(broker: Broker) -> None:
    making = CreateTopicsRequest(
        topics=[CreatableTopic(name="forged", num_partitions=1, replication_factor=1)]
    )
    with LoggedIn(broker.node.controller_address, "alice", "alice") as alice:
        answer = alice.ask(envelope(making, 7, "admin"), 0)
        assert (answer.error_code, answer.response_data) == (NO_CLUSTER, None)
        # What is asked of everybody on the controller's listener is asked there too.
        assert alice.ask(DescribeClusterRequest(endpoint_type=2), 1).error_code == NO_CLUSTER
    assert broker.node.broker.image.topic("forged") is None
    # A node may, and what is inside is judged for whom it names.
    with LoggedIn(broker.node.controller_address, "node", "node") as node:
        assert node.ask(envelope(making, 7, "alice"), 0).error_code == 0
        assert broker.node.broker.image.topic("forged") is None
        assert node.ask(envelope(making, 7, "admin"), 0).error_code == 0
    wait_until(lambda: broker.node.broker.image.topic("forged") is not None, 20, "the topic")


def test_a_broker_that_is_nobody_there_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    given = settings("stranger", initial_broker_registration_timeout_ms=1_500, super_users="User:admin")
    cluster = Cluster(brokers=1, controllers=1, settings=given, data_dir=tmp_path)
    with caplog.at_level(logging.WARNING), pytest.raises(KafkaError) as refused:
        cluster.start()
    cluster.stop()
    assert refused.value.code is ErrorCode.REQUEST_TIMED_OUT
    told = "\n".join(caplog.messages)
    assert NODE_IS_REFUSED in told
    assert "'User:stranger' from host 127.0.0.1 is denied CLUSTER_ACTION on CLUSTER 'kafka-cluster'" in told


# ---- brokers and controllers of their own -------------------------------------------------------------------


def test_what_is_forwarded_is_judged_for_its_sender(tmp_path: Path) -> None:
    given = settings()
    with Cluster(brokers=2, controllers=1, settings=given, data_dir=tmp_path) as cluster:
        servers = cluster.bootstrap_servers
        with admin_of(servers, "admin") as admin, admin_of(servers, "alice") as alice:
            refusal = alice.create_topics([NewTopic("x", 1)])["x"]
            assert isinstance(refusal, KafkaError)
            assert refusal.code is NO_TOPIC
            grant(admin, rule(OPERATION.CREATE, TOPIC, "x"))

            def made() -> bool:
                # A broker may hear of the rule a moment later.
                outcome = alice.create_topics([NewTopic("x", 1)])["x"]
                return not isinstance(outcome, KafkaError) or outcome.code is ErrorCode.TOPIC_ALREADY_EXISTS

            wait_until(made, 20, "the right to create")
            # Replicas follow one another by CLUSTER_ACTION: a record counts when both have it.
            admin.create_topics([NewTopic("replicated", 1, 2)])
            with Producer(bootstrap_servers=servers, acks="all", **login("admin")) as producer:
                assert producer.send("replicated", b"v").result(timeout_ms=30_000).offset == 0


# ---- when listeners open ------------------------------------------------------------------------------------


@pytest.mark.parametrize("early", ["", "PLAINTEXT", "CONTROLLER"])
def test_listeners_that_are_not_early_wait_for_the_rules(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, early: str
) -> None:
    given = settings(early_start_listeners=early)
    with caplog.at_level(logging.INFO), Broker(given, data_dir=tmp_path) as made:
        with LoggedIn(made.node.controller_address, "admin", "admin") as admin:
            assert admin.ask(DescribeClusterRequest(endpoint_type=2), 1).error_code == 0
        waited = "waiting for the ACLs before CONTROLLER is served" in "\n".join(caplog.messages)
        assert waited == (early != "CONTROLLER")


# ---- classes of the operator's own --------------------------------------------------------------------------


class OnlyAlice:
    """Lets one in."""

    version = 0

    def authorize(self, principal: KafkaPrincipal, *asked: object) -> bool:
        return principal.name in ("alice", "node")


class InCapitals:
    """Whoever comes is called in capitals."""

    def build(self, context: AuthenticationContext) -> KafkaPrincipal:
        if context.principal.name == "stranger":
            raise ValueError("no such person")
        return context.principal._replace(name=context.principal.name.upper())


def test_an_authorizer_by_its_import_path(tmp_path: Path) -> None:
    given = settings(authorizer_class_name=f"{__name__}.OnlyAlice")
    with Broker(given, data_dir=tmp_path) as made:
        with admin_of(made.bootstrap_servers, "alice") as alice:
            alice.create_topics([NewTopic("t", 1)])
            with pytest.raises(KafkaError) as refused:
                alice.describe_acls()
            assert refused.value.code is ErrorCode.SECURITY_DISABLED
        with LoggedIn(made.bootstrap_servers, "admin", "admin") as admin:
            assert metadata(admin, "t") == NO_TOPIC


def test_a_principal_builder_by_its_import_path(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    given = settings(super_users="User:ADMIN;User:node")
    given["listener.name.plaintext.principal.builder.class"] = f"{__name__}:InCapitals"
    with Broker(given, data_dir=tmp_path) as made:
        with LoggedIn(made.bootstrap_servers, "admin", "admin") as admin:
            assert metadata(admin, "t") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        # The other listener has Kafka's own.
        with LoggedIn(made.node.controller_address, "admin", "admin") as admin:
            assert admin.ask(DescribeClusterRequest(endpoint_type=2), 1).error_code == NO_CLUSTER
        with pytest.raises(AssertionError):
            LoggedIn(made.bootstrap_servers, "stranger", "stranger")
    assert "InCapitals failed: no such person" in "\n".join(caplog.messages)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        (
            "authorizer.class.name",
            "kafka.security.authorizer.AclAuthorizer",
            "No module named 'kafka.security'",
        ),
        ("super.users", "admin", "principalType:principalName"),
        ("principal.builder.class", "com.example.Builder", "No module named 'com'"),
        ("principal.builder.class", f"{__name__}.OnlyAlice", "no method build"),
    ],
)
def test_what_cannot_be_keeps_a_node_from_starting(tmp_path: Path, key: str, value: str, words: str) -> None:
    given = settings() | {key: value}
    made = Broker(given, data_dir=tmp_path / "data")
    with pytest.raises(ConfigError) as refused:
        made.start()
    assert words in str(refused.value)
    assert key in str(refused.value)
    assert "\n" not in str(refused.value)


# ---- rules that cannot be, and denials by the thousand ------------------------------------------------------


def creations(*names: str, kind: int = TOPIC) -> CreateAclsRequest:
    return CreateAclsRequest(
        creations=[
            AclCreation(
                resource_type=kind,
                resource_name=name,
                principal="User:alice",
                host="*",
                operation=OPERATION.READ,
                permission_type=AclPermissionType.ALLOW,
            )
            for name in names
        ]
    )


def test_what_can_be_no_rule_is_refused_and_the_rest_is_added(broker: Broker) -> None:
    judge = broker.node.authorizer
    assert isinstance(judge, StandardAuthorizer)
    before = len(judge)
    with LoggedIn(broker.bootstrap_servers, "admin", "admin") as admin:
        results = admin.ask(creations("limits", "", "limits-2"), 3).results
        assert [row.error_code for row in results] == [0, ErrorCode.INVALID_REQUEST, 0]
        (unknown,) = admin.ask(creations("x", kind=99), 3).results
        assert unknown.error_code == ErrorCode.INVALID_REQUEST
        assert len(judge) == before + 2
        # Too many for one change of the metadata: none of them is added.
        too_many = admin.ask(creations(*(f"limit-{number}" for number in range(10_001))), 3).results
        assert len(too_many) == 10_001
        assert 0 not in {row.error_code for row in too_many}
        assert len(judge) == before + 2
        # What not even its sender knows loses the connection, and others are served.
        with pytest.raises((AssertionError, OSError, EOFError)):
            admin.ask(creations("x", kind=0), 3)
    with LoggedIn(broker.bootstrap_servers, "admin", "admin") as admin:
        assert metadata(admin, "t") == 0


def test_a_client_that_is_no_follower_moves_nothing(broker: Broker) -> None:
    """CVE-2018-1288: a fetch in a replica's name, by who may read the topic."""
    with admin_of(broker.bootstrap_servers, "admin") as admin:
        grant(admin, rule(OPERATION.READ, TOPIC, "t"))
        with LoggedIn(broker.bootstrap_servers, "alice", "alice") as alice:
            partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
            request = FetchRequest(
                replica_id=1,
                max_wait_ms=0,
                min_bytes=0,
                topics=[FetchTopic(topic="t", partitions=[partition])],
            )
            answer = alice.ask(request, 12)
            assert answer.responses[0].partitions[0].error_code == NO_TOPIC
            request.replica_id = -1
            assert alice.ask(request, 12).responses[0].partitions[0].error_code == 0
        revoke(admin, rule(OPERATION.READ, TOPIC, "t"))


def test_denials_fill_no_log(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    names = [f"flood-{number}" for number in range(2_000)]
    with (
        caplog.at_level(logging.INFO, "ottla.authorizer"),
        LoggedIn(broker.bootstrap_servers, "alice", "alice") as alice,
    ):
        begin = time.monotonic()
        for name in names:
            assert metadata(alice, name) == NO_TOPIC
        seconds = time.monotonic() - begin
    lines = [line for line in caplog.messages if "flood-" in line]
    assert 0 < len(lines) <= (seconds + 2) * MAX_LINES_PER_S
    assert all("\n" not in line and len(line) < 2_000 for line in lines)
