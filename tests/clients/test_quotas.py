"""Client quotas by Ottla's admin client and by `ottla quota`."""

from __future__ import annotations

import json
import uuid

import pytest
from tests.clients.conftest import Wait
from tests.clients.test_ottla_client_cli import Cli

from ottla.client import Admin
from ottla.client.admin.types import ANY_NAME, QuotaFilter, quota_entity
from ottla.model.errors import ErrorCode


def name() -> str:
    return f"user-{uuid.uuid4().hex[:12]}"


@pytest.mark.three_nodes
def test_the_admin_client(address: str, in_step: Wait) -> None:
    user = name()
    own, clients = quota_entity(user=user), quota_entity(user=user, client_id=None)
    with Admin(bootstrap_servers=address) as admin:
        changes = {own: {"producer_byte_rate": 1024.0}, clients: {"request_percentage": 12.5}}
        assert admin.alter_client_quotas(changes) == {own: None, clients: None}
        in_step()
        assert admin.describe_client_quotas(QuotaFilter({"user": user})) == changes
        assert admin.describe_client_quotas(QuotaFilter({"user": user}, strict=True)) == {own: changes[own]}
        both = admin.describe_client_quotas(QuotaFilter({"user": user, "client-id": ANY_NAME}))
        assert both == {clients: changes[clients]}
        refused = admin.alter_client_quotas({own: {"producer_byte_rate": 0.0}})[own]
        assert refused is not None
        assert refused.code is ErrorCode.INVALID_REQUEST
        gone = {own: {"producer_byte_rate": None}, clients: {"request_percentage": None}}
        assert admin.alter_client_quotas(gone) == {own: None, clients: None}
        in_step()
        assert admin.describe_client_quotas(QuotaFilter({"user": user})) == {}


def test_the_command(address: str) -> None:
    cli, user = Cli(address), name()
    _, err = cli("quota", "set", "--user", user, "producer_byte_rate=1048576", "request_percentage=2.5")
    assert err == f"user {user}: producer_byte_rate=1048576 set, request_percentage=2.5 set\n"
    cli("quota", "set", "--user", user, "--default-client-id", "consumer_byte_rate=10")
    rows = json.loads(cli("quota", "list", "--user", user, "-o", "json")[0])
    assert rows == [
        {"client-id": None, "user": user, "key": "consumer_byte_rate", "value": 10},
        {"user": user, "key": "producer_byte_rate", "value": 1048576},
        {"user": user, "key": "request_percentage", "value": 2.5},
    ]
    table = [line.split() for line in cli("quota", "list", "--user", user)[0].splitlines()]
    assert [user, "<default>", "-", "consumer_byte_rate", "10"] in table
    strict = json.loads(cli("quota", "list", "--user", user, "--strict", "-o", "json")[0])
    assert len(strict) == 2
    _, err = cli("quota", "set", "--user", user, "producer_byte_rate=1", "--validate-only")
    assert "only validated" in err
    cli("quota", "delete", "--user", user, "producer_byte_rate")
    cli("quota", "delete", "--user", user, "--all")
    cli("quota", "delete", "--user", user, "--default-client-id", "--all")
    assert json.loads(cli("quota", "list", "--user", user, "-o", "json")[0]) == []
    _, err = cli("quota", "delete", "--user", user, "--all", code=1)
    assert "no such quota" in err
    cli("quota", "set", "--ip", "10.1.2.3", "connection_creation_rate=5")
    cli("quota", "delete", "--ip", "10.1.2.3", "--all")


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("set", "producer_byte_rate=1"), 2, "whose quota?"),
        (("set", "--user", "u", "producer_byte_rate=many"), 2, "a quota is a number"),
        (("set", "--user", "u", "producer_byte_rate"), 2, "KEY=VALUE"),
        (("set", "--user", "u", "producer_byterate=1"), 2, "did you mean 'producer_byte_rate'?"),
        (("set", "--user", "u", "zzz=1"), 1, "Invalid configuration key zzz"),
        (("set", "--user", "u", "producer_byte_rate=0"), 1, "must be greater than 0"),
        (("set", "--user", "u", "producer_byte_rate=nan"), 1, "INVALID_REQUEST"),
        (("set", "--user", "u", "--default-user", "producer_byte_rate=1"), 2, "either --user or"),
        (("set", "--user", "", "producer_byte_rate=1"), 2, "needs a name"),
        (("set", "--ip", "10.0.0.1", "--user", "u", "producer_byte_rate=1"), 2, "--ip goes with neither"),
        (("delete", "--user", "u"), 2, "what is to be deleted?"),
        (("delete", "--user", "u", "--all", "producer_byte_rate"), 2, "what is to be deleted?"),
    ],
)
def test_what_is_no_quota(address: str, words: tuple[str, ...], code: int, text: str) -> None:
    _, err = Cli(address)("quota", *words, code=code)
    assert text in err
    assert err.count("\n") == 1
