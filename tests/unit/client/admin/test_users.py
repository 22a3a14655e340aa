"""Credentials, quotas and tokens as the admin client asks for them, and what it makes of the answers."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from ottla.client.admin import types as t
from ottla.client.admin.aio import AsyncAdmin
from ottla.client.admin.users import described_entity
from ottla.model.errors import ErrorCode, KafkaError
from ottla.security.scram_credentials import MECHANISMS, salted_password
from ottla.wire.messages.admin import quotas as q
from ottla.wire.messages.security import scram, tokens

ALICE = t.quota_entity(user="alice", client_id=None)


class Admin(AsyncAdmin):
    """One whose brokers are a function of the test."""

    def __init__(self, answer: Callable[[Any], Any]) -> None:
        self.asked: list[Any] = []
        self._answer = answer

    async def request(self, request: Any, *args: Any, **more: Any) -> Any:
        self.asked.append(request)
        answer = self._answer(request)
        error_of = more.get("error_of")
        assert error_of is None or error_of(answer) is None
        return answer


def only(admin: Admin) -> Any:
    (request,) = admin.asked
    return request


# --- SCRAM


def test_a_password_never_travels() -> None:
    def answer(request: scram.AlterUserScramCredentialsRequest) -> Any:
        names = [c.name for c in (*request.deletions, *request.upsertions)]
        return scram.AlterUserScramCredentialsResponse(
            results=[scram.AlterUserScramCredentialsResult(user=each, error_message=None) for each in names]
        )

    admin = Admin(answer)
    change = t.UserScramCredentialUpsertion("alice", "pencil", "SCRAM-SHA-256", 8192, b"salt")
    fresh = t.UserScramCredentialUpsertion("bob", "pencil")
    gone = t.UserScramCredentialDeletion("carol")
    results = asyncio.run(admin.alter_user_scram_credentials([change, fresh, gone]))
    assert results == {"carol": None, "alice": None, "bob": None}
    request = only(admin)
    assert [(each.name, each.mechanism) for each in request.deletions] == [("carol", 2)]
    first, second = request.upsertions
    assert (first.mechanism, first.iterations, first.salt) == (1, 8192, b"salt")
    assert first.salted_password == salted_password(MECHANISMS["SCRAM-SHA-256"], "pencil", b"salt", 8192)
    assert (second.mechanism, second.iterations) == (2, 4096)
    assert 20 <= len(second.salt) <= 26  # 130 bits in digits and letters
    assert "pencil" not in repr([change, fresh, request])


@pytest.mark.parametrize("iterations", [0, -1, 2**31 - 1])
def test_nonsense_is_for_the_broker_to_refuse(iterations: int) -> None:
    def answer(request: scram.AlterUserScramCredentialsRequest) -> Any:
        assert request.upsertions[0].iterations == iterations
        result = scram.AlterUserScramCredentialsResult(
            user="alice", error_code=ErrorCode.UNACCEPTABLE_CREDENTIAL, error_message="Too many iterations"
        )
        return scram.AlterUserScramCredentialsResponse(results=[result])

    change = t.UserScramCredentialUpsertion("alice", "pencil", iterations=iterations)
    error = asyncio.run(Admin(answer).alter_user_scram_credentials([change]))["alice"]
    assert error is not None
    assert (error.code, error.message) == (
        ErrorCode.UNACCEPTABLE_CREDENTIAL,
        "user 'alice': Too many iterations",
    )


def test_users_are_described() -> None:
    def answer(request: scram.DescribeUserScramCredentialsRequest) -> Any:
        return scram.DescribeUserScramCredentialsResponse(
            error_message=None,
            results=[
                scram.DescribeUserScramCredentialsResult(
                    user="alice",
                    error_message=None,
                    credential_infos=[
                        scram.CredentialInfo(mechanism=1, iterations=4096),
                        scram.CredentialInfo(mechanism=9, iterations=1),
                    ],
                ),
                scram.DescribeUserScramCredentialsResult(
                    user="bob",
                    error_code=ErrorCode.RESOURCE_NOT_FOUND,
                    error_message="no such",
                    credential_infos=[],
                ),
            ],
        )

    admin = Admin(answer)
    found = asyncio.run(admin.describe_user_scram_credentials(["alice", "bob", "alice"]))
    assert [user.name for user in only(admin).users] == ["alice", "bob"]
    assert found["alice"] == [
        t.ScramCredentialInfo("SCRAM-SHA-256", 4096),
        t.ScramCredentialInfo("UNKNOWN (9)", 1),
    ]
    assert isinstance(found["bob"], KafkaError)
    everybody = Admin(answer)
    asyncio.run(everybody.describe_user_scram_credentials())
    assert only(everybody).users is None


def test_an_error_of_the_whole_is_raised() -> None:
    def answer(request: Any) -> Any:
        return scram.DescribeUserScramCredentialsResponse(
            error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, error_message=None, results=[]
        )

    with pytest.raises(KafkaError) as refused:
        asyncio.run(Admin(answer).describe_user_scram_credentials())
    assert refused.value.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED


# --- quotas


def test_quotas_are_asked_for_by_name_default_or_any() -> None:
    def answer(request: q.DescribeClientQuotasRequest) -> Any:
        entity = [
            q.EntityData(entity_type="user", entity_name="alice"),
            q.EntityData(entity_type="client-id", entity_name=None),
        ]
        entry = q.DescribeClientQuotasResponseEntryData(
            entity=entity, values=[q.ValueData(key="producer_byte_rate", value=5.0)]
        )
        return q.DescribeClientQuotasResponse(error_message=None, entries=[entry])

    admin = Admin(answer)
    wanted = t.QuotaFilter({"user": "alice", "client-id": None, "ip": t.ANY_NAME}, strict=True)
    assert asyncio.run(admin.describe_client_quotas(wanted)) == {ALICE: {"producer_byte_rate": 5.0}}
    request = only(admin)
    assert [(c.entity_type, c.match_type, c.match) for c in request.components] == [
        ("user", 0, "alice"),
        ("client-id", 1, None),
        ("ip", 2, None),
    ]
    assert request.strict


def test_quotas_that_cannot_be_described() -> None:
    def answer(request: Any) -> Any:
        return q.DescribeClientQuotasResponse(
            error_code=ErrorCode.INVALID_REQUEST, error_message="why", entries=None
        )

    with pytest.raises(KafkaError, match="why"):
        asyncio.run(Admin(answer).describe_client_quotas())


def test_quotas_are_altered() -> None:
    def answer(request: q.AlterClientQuotasRequest) -> Any:
        return q.AlterClientQuotasResponse(
            entries=[
                q.AlterClientQuotasResponseEntryData(
                    error_code=ErrorCode.INVALID_REQUEST, error_message="why", entity=entry.entity[::-1]
                )
                for entry in request.entries
            ]
        )

    admin = Admin(answer)
    results = asyncio.run(
        admin.alter_client_quotas({ALICE: {"producer_byte_rate": 5, "x": None}}, validate_only=True)
    )
    error = results[ALICE]
    assert error is not None
    assert error.message == "default client-id, user alice: why"
    (entry,) = only(admin).entries
    assert [(op.key, op.value, op.remove) for op in entry.ops] == [
        ("producer_byte_rate", 5.0, False),
        ("x", 0.0, True),
    ]
    assert only(admin).validate_only
    assert described_entity(t.quota_entity(ip="10.0.0.1")) == "ip 10.0.0.1"


# --- tokens


def test_a_token_is_created() -> None:
    def answer(request: tokens.CreateDelegationTokenRequest) -> Any:
        return tokens.CreateDelegationTokenResponse(
            principal_type="User",
            principal_name=request.owner_principal_name or "me",
            issue_timestamp_ms=1,
            expiry_timestamp_ms=2,
            max_timestamp_ms=3,
            token_id="id",
            hmac=b"the-hmac",
        )

    admin = Admin(answer)
    token = asyncio.run(
        admin.create_delegation_token(owner="User:carol", renewers=["User:bob"], max_lifetime_ms=7)
    )
    assert (token.token_id, token.owner, token.requester, token.hmac) == (
        "id",
        "User:carol",
        "User:carol",
        b"the-hmac",
    )
    assert "the-hmac" not in repr(token)
    request = only(admin)
    assert (request.owner_principal_type, request.owner_principal_name) == ("User", "carol")
    assert [(r.principal_type, r.principal_name) for r in request.renewers] == [("User", "bob")]
    assert request.max_lifetime_ms == 7
    own = Admin(answer)
    assert asyncio.run(own.create_delegation_token()).owner == "User:me"
    assert only(own).owner_principal_name == ""


@pytest.mark.parametrize("nobody", ["alice", ":alice", "User:", ""])
def test_a_principal_has_a_type_and_a_name(nobody: str) -> None:
    admin = Admin(lambda request: None)
    for asked in (admin.create_delegation_token(owner=nobody), admin.describe_delegation_tokens([nobody])):
        with pytest.raises(KafkaError) as refused:
            asyncio.run(asked)
        assert refused.value.code is ErrorCode.INVALID_PRINCIPAL_TYPE
    assert admin.asked == []


def test_tokens_are_described_renewed_and_ended() -> None:
    described = tokens.DescribedDelegationToken(
        principal_type="User",
        principal_name="a:b",
        token_requester_principal_type="User",
        token_requester_principal_name="bob",
        issue_timestamp=1,
        expiry_timestamp=2,
        max_timestamp=3,
        token_id="id",
        hmac=b"h",
        renewers=[tokens.DescribedDelegationTokenRenewer(principal_type="User", principal_name="r")],
    )

    def answer(request: Any) -> Any:
        if isinstance(request, tokens.DescribeDelegationTokenRequest):
            return tokens.DescribeDelegationTokenResponse(tokens=[described])
        if isinstance(request, tokens.RenewDelegationTokenRequest):
            return tokens.RenewDelegationTokenResponse(expiry_timestamp_ms=9)
        return tokens.ExpireDelegationTokenResponse(
            error_code=ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH, expiry_timestamp_ms=0
        )

    admin = Admin(answer)
    (token,) = asyncio.run(admin.describe_delegation_tokens(["User:x"]))
    assert (token.owner, token.requester, token.renewers) == ("User:a:b", "User:bob", ("User:r",))
    assert asyncio.run(admin.renew_delegation_token(token.hmac, period_ms=5)) == 9
    with pytest.raises(KafkaError, match="only its owner"):
        asyncio.run(admin.expire_delegation_token(token.hmac))
    asked = admin.asked
    assert [(o.principal_type, o.principal_name) for o in asked[0].owners] == [("User", "x")]
    assert (asked[1].hmac, asked[1].renew_period_ms) == (b"h", 5)
    assert (asked[2].hmac, asked[2].expiry_time_period_ms) == (b"h", -1)
