"""Java's client logs in to Ottla: by a delegation token, which Kafka's own tool makes, and by OAUTHBEARER."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from tests.interop.apache import SMALL_HEAP, run_tool
from tests.interop.ottla_node import OTTLA, OttlaNode
from tests.interop.process import HOST, free_ports
from tests.support.certificates import Authority
from tests.support.identity_provider import AUDIENCE, ISSUER, IdentityProvider

pytestmark = pytest.mark.interop

KAFKA = "org.apache.kafka.common.security"
SCRAM = f"{KAFKA}.scram.ScramLoginModule"
OAUTH = f"{KAFKA}.oauthbearer.OAuthBearerLoginModule"


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IdentityProvider]:
    with IdentityProvider(Authority(tmp_path_factory.mktemp("idp"))) as made:
        yield made


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory, provider: IdentityProvider) -> Iterator[str]:
    (port,) = free_ports(1)
    node = OttlaNode(
        tmp_path_factory.mktemp("logins") / "data",
        {
            "listeners": f"PLAINTEXT://{HOST}:0,CONTROLLER://{HOST}:0,IN://{HOST}:{port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,IN:SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": "SCRAM-SHA-256,OAUTHBEARER",
            "delegation.token.secret.key": "of-all-nodes",
            "sasl.oauthbearer.jwks.endpoint.url": provider.jwks_url,
            "sasl.oauthbearer.expected.audience": AUDIENCE,
            "sasl.oauthbearer.expected.issuer": ISSUER,
            "listener.name.in.oauthbearer.sasl.jaas.config": f"{OAUTH} required {provider.trust};",
        },
        env=provider.environment(),
    )
    credential = ("--add-scram", "SCRAM-SHA-256=[name=admin,password=secret]")
    command = [str(OTTLA), "storage", "format", "--data-dir", str(node.data_dir), *credential]
    subprocess.run(command, check=True, capture_output=True, env=node.environment())
    with node:
        yield f"{HOST}:{port}"
    assert "Traceback" not in node.log_text()


def tool(where: Path, name: str, address: str, settings: Mapping[str, str], *words: str, **jvm: str) -> str:
    file = where / "client.properties"
    common = {"security.protocol": "SASL_PLAINTEXT", **settings}
    file.write_text("".join(f"{key}={value}\n" for key, value in common.items()))
    properties = [f"-D{key.replace('_', '.')}={value}" for key, value in jvm.items()]
    done = run_tool(
        name,
        *("--bootstrap-server", address, "--command-config", str(file)),
        *words,
        jvm=[*SMALL_HEAP, *properties],
    )
    return done.stdout


def by_scram(user: str, password: str, more: str = "") -> dict[str, str]:
    jaas = f'{SCRAM} required username="{user}" password="{password}" {more};'
    return {"sasl.mechanism": "SCRAM-SHA-256", "sasl.jaas.config": jaas}


def test_a_delegation_token_of_kafkas_own_tool(address: str, tmp_path: Path) -> None:
    admin = by_scram("admin", "secret")
    words = ("--create", "--max-life-time-period", "3600000", "--renewer-principal", "User:admin")
    made = tool(tmp_path, "DelegationTokenCommand", address, admin, *words)
    found = re.search(r"^(\S+)\s+([A-Za-z0-9+/]{80,}={0,2})\s", made, re.MULTILINE)
    assert found is not None, made
    by_token = by_scram(found[1], found[2], 'tokenauth="true"')
    create = ("--create", "--topic", "by-token", "--partitions", "1", "--replication-factor", "1")
    assert "Created topic by-token" in tool(tmp_path, "TopicCommand", address, by_token, *create)
    with pytest.raises(AssertionError, match=r"(?i)delegation token requests are not allowed"):
        tool(tmp_path, "DelegationTokenCommand", address, by_token, *words)
    hmac = ("--hmac", found[2])
    tool(tmp_path, "DelegationTokenCommand", address, admin, "--renew", "--renew-time-period", "-1", *hmac)
    tool(tmp_path, "DelegationTokenCommand", address, admin, "--expire", "--expiry-time-period", "-1", *hmac)


def test_oauthbearer_by_client_credentials(address: str, provider: IdentityProvider, tmp_path: Path) -> None:
    settings = {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": provider.token_url,
        "sasl.oauthbearer.client.credentials.client.id": "me",
        "sasl.oauthbearer.client.credentials.client.secret": "geheim",
        "sasl.login.callback.handler.class": f"{KAFKA}.oauthbearer.OAuthBearerLoginCallbackHandler",
        "sasl.jaas.config": f"{OAUTH} required {provider.trust};",
    }
    create = ("--create", "--topic", "by-oauth", "--partitions", "1", "--replication-factor", "1")
    allowed = {"org_apache_kafka_sasl_oauthbearer_allowed_urls": provider.token_url}
    assert "Created topic by-oauth" in tool(tmp_path, "TopicCommand", address, settings, *create, **allowed)
