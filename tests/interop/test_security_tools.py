"""Kafka's own tools for users, rules, quotas and tokens do their work on Ottla, over SASL_SSL."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from tests.interop.process import wait_until
from tests.interop.secured import SCRAM, SecureCluster, Security

pytestmark = pytest.mark.interop

ALICE, PASSWORD = "alice", "a secret"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureCluster]:
    where = tmp_path_factory.mktemp("tools")
    settings = {"delegation.token.secret.key": "shared by all nodes"}
    nodes = {1: ("ottla", "broker,controller")}
    with SecureCluster(where, nodes, Security(where, {"bob": "bob's"}, "SASL_SSL"), settings) as running:
        yield running


def test_acls(cluster: SecureCluster) -> None:
    add = ("--add", "--allow-principal", "User:bob")
    cluster.tool("AclCommand", *add, "--operation", "READ", "--operation", "WRITE", "--topic", "acl-topic")
    cluster.tool(
        "AclCommand",
        *add,
        "--consumer",
        "--topic",
        "acl-",
        "--group",
        "*",
        "--resource-pattern-type",
        "prefixed",
    )
    cluster.tool(
        "AclCommand", "--add", "--deny-principal", "User:bob", "--deny-host", "10.0.0.1", "--cluster"
    )
    said = cluster.tool("AclCommand", "--list", "--principal", "User:bob").stdout
    assert re.search(r"name=acl-topic, patternType=LITERAL", said)
    assert "(principal=User:bob, host=*, operation=WRITE, permissionType=ALLOW)" in said
    assert re.search(r"resourceType=GROUP, name=\*, patternType=PREFIXED", said)
    assert "(principal=User:bob, host=10.0.0.1, operation=ALL, permissionType=DENY)" in said
    topic = ("--topic", "acl-topic", "--resource-pattern-type", "match")
    said = cluster.tool("AclCommand", "--list", *topic).stdout
    assert "name=acl-topic, patternType=LITERAL" in said
    assert "name=acl-, patternType=PREFIXED" in said
    assert "resourceType=CLUSTER" not in said
    cluster.tool("AclCommand", "--remove", "--force", "--topic", "acl-topic")
    said = cluster.tool("AclCommand", "--list", "--topic", "acl-topic").stdout
    assert "User:bob" not in said


def test_rules_are_only_changed_by_who_may(cluster: SecureCluster) -> None:
    bob = cluster.security.client_file("bob")
    add = ("--add", "--allow-principal", "User:bob", "--operation", "ALL", "--cluster")
    done = cluster.tool_of(bob, "AclCommand", *add, check=False)
    assert "ClusterAuthorizationException" in done.stdout + done.stderr


def test_scram_users(cluster: SecureCluster) -> None:
    whom = ("--entity-type", "users", "--entity-name", ALICE)
    for mechanism in ("SCRAM-SHA-256", SCRAM):
        add = f"{mechanism}=[iterations=8192,password={PASSWORD}]"
        cluster.tool("ConfigCommand", "--alter", *whom, "--add-config", add)
    said = cluster.tool("ConfigCommand", "--describe", *whom).stdout
    assert "SCRAM-SHA-256=iterations=8192" in said
    assert f"{SCRAM}=iterations=8192" in said
    alice = cluster.security.client_file(ALICE, PASSWORD, SCRAM)
    cluster.tool_of(alice, "org.apache.kafka.tools.TopicCommand", "--list")
    cluster.tool("ConfigCommand", "--alter", *whom, "--delete-config", SCRAM)
    refused = cluster.tool_of(alice, "TopicCommand", "--list", check=False)
    assert "SaslAuthenticationException" in refused.stdout + refused.stderr
    assert PASSWORD not in cluster[1].printed()


def test_quotas(cluster: SecureCluster) -> None:
    rates = "producer_byte_rate=1000000,consumer_byte_rate=2000000,request_percentage=50.0"
    for whom in (
        ("--entity-type", "users", "--entity-name", "bob"),
        ("--entity-type", "clients", "--entity-default"),
        ("--entity-type", "users", "--entity-name", "bob", "--entity-type", "clients", "--entity-default"),
    ):
        cluster.tool("ConfigCommand", "--alter", *whom, "--add-config", rates)
        said = cluster.tool("ConfigCommand", "--describe", *whom).stdout
        for each in (
            "producer_byte_rate=1000000.0",
            "consumer_byte_rate=2000000.0",
            "request_percentage=50.0",
        ):
            assert each in said, said
        cluster.tool("ConfigCommand", "--alter", *whom, "--delete-config", "request_percentage")
        assert "request_percentage" not in cluster.tool("ConfigCommand", "--describe", *whom).stdout
    address = ("--entity-type", "ips", "--entity-name", "10.1.2.3")
    cluster.tool("ConfigCommand", "--alter", *address, "--add-config", "connection_creation_rate=10")
    assert "connection_creation_rate=10.0" in cluster.tool("ConfigCommand", "--describe", *address).stdout


def test_delegation_tokens(cluster: SecureCluster) -> None:
    bob = cluster.security.client_file("bob")
    renewer = ("--renewer-principal", f"User:{ALICE}")
    # Without an owner the tool asks for those of nobody.
    shown = ("--describe", "--owner-principal", "User:bob")
    made = cluster.tool_of(
        bob, "DelegationTokenCommand", "--create", "--max-life-time-period", "-1", *renewer
    ).stdout
    token_id, hmac = re.search(r"^(\S{22})\s+(\S+)\s+User:bob", made, re.M).groups()  # type: ignore[union-attr]
    assert f"User:{ALICE}" in made
    described = cluster.tool_of(bob, "DelegationTokenCommand", *shown).stdout
    assert token_id in described
    renewed = cluster.tool_of(
        bob, "DelegationTokenCommand", "--renew", "--renew-time-period", "3600000", "--hmac", hmac
    )
    assert "renew token operation" in renewed.stdout
    refused = cluster.tool_of(
        cluster.security.client_file("broker"), "DelegationTokenCommand", "--expire", "--hmac", hmac,
        *("--expiry-time-period", "-1"), check=False,
    )  # fmt: skip
    assert "DelegationTokenOwnerMismatchException" in refused.stdout + refused.stderr
    # By the token instead of a password.
    client = cluster.security.client_settings(token_id, hmac, SCRAM)
    client["sasl.jaas.config"] = str(client["sasl.jaas.config"]).replace(";", ' tokenauth="true";')
    file = cluster.security.written("token", client)
    cluster.tool("AclCommand", "--add", "--allow-principal", "User:bob", "--operation", "CREATE", "--cluster")
    cluster.tool_of(file, "TopicCommand", "--create", "--topic", "made-by-token")
    refused = cluster.tool_of(
        file, "DelegationTokenCommand", "--create", "--max-life-time-period", "-1", check=False
    )
    assert (
        "DelegationTokenDisabledException" in refused.stdout + refused.stderr
        or "UnsupportedBy" in refused.stderr
    )
    cluster.tool_of(bob, "DelegationTokenCommand", "--expire", "--hmac", hmac, "--expiry-time-period", "-1")

    def gone() -> bool:
        return token_id not in cluster.tool_of(bob, "DelegationTokenCommand", *shown).stdout

    wait_until(gone, 60, "the token to be gone")
    refused = cluster.tool_of(file, "TopicCommand", "--list", check=False)
    assert "SaslAuthenticationException" in refused.stdout + refused.stderr
    assert hmac not in cluster[1].printed()
