"""`ottla token`: tokens are named by their ids, and their HMACs shown only where they are asked for."""

import base64
import json
from contextlib import nullcontext
from typing import Any

import pytest

from ottla.cli.main import main
from ottla.cli.security import delegation_token
from ottla.client.admin.types import DelegationToken

HMAC = b"\x00\xffsecret"
SHOWN = base64.b64encode(HMAC).decode()
TOKEN = DelegationToken("id-1", "User:alice", "User:bob", ("User:r",), 0, 3_600_000, 2**63 - 1, HMAC)


class Admin:
    """A cluster with one token; notes what it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any]] = []

    def create_delegation_token(self, **more: Any) -> DelegationToken:
        self.asked.append(("create", more))
        return TOKEN

    def describe_delegation_tokens(self, owners: list[str] | None = None) -> list[DelegationToken]:
        self.asked.append(("describe", owners))
        return [TOKEN]

    def renew_delegation_token(self, hmac: bytes, *, period_ms: int) -> int:
        self.asked.append(("renew", (hmac, period_ms)))
        return 7_200_000

    def expire_delegation_token(self, hmac: bytes, *, period_ms: int) -> int:
        self.asked.append(("expire", (hmac, period_ms)))
        return 0


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> Admin:
    made = Admin()
    monkeypatch.setattr(delegation_token, "admin", lambda args: nullcontext(made))
    return made


def test_a_token_is_created_and_its_hmac_printed(admin: Admin, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--owner", "carol", "--renewer", "User:r", "--max-lifetime", "12h"]
    assert main(["token", "create", *words]) == 0
    asked = {"owner": "User:carol", "renewers": ["User:r"], "max_lifetime_ms": 43_200_000}
    assert admin.asked == [("create", asked)]
    out, err = capsys.readouterr()
    assert SHOWN in out
    assert SHOWN not in err
    assert main(["token", "create", "-o", "json"]) == 0
    assert admin.asked[1] == ("create", {"owner": None, "renewers": [], "max_lifetime_ms": -1})
    assert json.loads(capsys.readouterr().out) == {
        "token_id": "id-1",
        "owner": "User:alice",
        "requester": "User:bob",
        "renewers": ["User:r"],
        "issued": "1970-01-01T00:00:00Z",
        "expires": "1970-01-01T01:00:00Z",
        "max": str(2**63 - 1),
        "hmac": SHOWN,
    }


def test_a_list_hides_what_is_secret(admin: Admin, capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["-o", "json"]):
        assert main(["token", "list", *words]) == 0
        out = capsys.readouterr().out
        assert "id-1" in out
        assert SHOWN not in out
    assert main(["token", "list", "--owner", "alice", "--show-hmac"]) == 0
    assert SHOWN in capsys.readouterr().out
    assert admin.asked == [("describe", None), ("describe", None), ("describe", ["User:alice"])]


def test_a_token_is_renewed_and_ended_by_its_id(admin: Admin, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["token", "renew", "id-1"]) == 0
    assert main(["token", "renew", "id-1", "--period", "1h"]) == 0
    assert main(["token", "expire", "id-1"]) == 0
    assert main(["token", "expire", "id-1", "--after", "0s"]) == 0
    changes = [asked for asked in admin.asked if asked[0] != "describe"]
    assert changes == [
        ("renew", (HMAC, -1)),
        ("renew", (HMAC, 3_600_000)),
        ("expire", (HMAC, -1)),
        ("expire", (HMAC, 0)),
    ]
    assert capsys.readouterr().err.splitlines() == [
        "token id-1 expires 1970-01-01T02:00:00Z",
        "token id-1 expires 1970-01-01T02:00:00Z",
        "token id-1 is gone",
        "token id-1 expires 1970-01-01T00:00:00Z",
    ]
    assert main(["token", "renew", "another"]) == 1
    assert "no token 'another'" in capsys.readouterr().err
