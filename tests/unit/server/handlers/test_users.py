"""Users and tokens at a broker's listener: who may ask, and what is shown."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.support.authorizers import judging, rule
from tests.support.controller_node import ControllerNode

from ottla.metadata import records as r
from ottla.metadata.delta import ImageBuilder
from ottla.metadata.image import EMPTY_IMAGE, ClusterImage
from ottla.model.errors import ErrorCode, KafkaError
from ottla.security.acls import AclOperation, ResourceType
from ottla.security.delegation_tokens import TokenHmacs
from ottla.security.principal import ANONYMOUS, KafkaPrincipal
from ottla.server import handlers
from ottla.server.context import Context, Sender
from ottla.server.handlers import users
from ottla.server.network.connection import Listener
from ottla.wire.codec import encode
from ottla.wire.framing import RequestHeader
from ottla.wire.messages.security import scram, tokens

ALICE, BOB = KafkaPrincipal("User", "alice"), KafkaPrincipal("User", "bob")
KEY = "the-secret-key"
PROTECTED = {
    "listeners": "CLIENTS://:9092,TLS://:9094,OPEN://:9095",
    "listener.security.protocol.map": "CLIENTS:SASL_PLAINTEXT,TLS:SSL,OPEN:PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
    "inter.broker.listener.name": "OPEN",
}
NOT_ALLOWED = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED


def run(work: Callable[[ControllerNode], Awaitable[None]], **settings: Any) -> None:
    async def main() -> None:
        handlers.load()
        node = ControllerNode(**settings)
        try:
            await work(node)
        finally:
            node.close()

    asyncio.run(asyncio.wait_for(main(), 60))


class BrokerServices:
    """A broker's services, as far as these handlers need them."""

    def __init__(self, node: ControllerNode) -> None:
        self._node = node
        self.controller = node.controller

    async def caught_up(self) -> None: ...

    def __getattr__(self, name: str) -> Any:
        return getattr(self._node.services, name)


def context(
    node: ControllerNode,
    listener: str,
    principal: KafkaPrincipal = ALICE,
    *,
    version: int = 3,
    forwarded_for: Sender | None = None,
) -> Context:
    kind = Listener.CONTROLLER if listener == "CONTROLLER" else Listener.BROKER
    connection = node.connection(kind, listener)
    connection.principal = principal
    services: Any = node.services if kind is Listener.CONTROLLER else BrokerServices(node)
    return Context(
        services, connection, RequestHeader(38, version, 1, "tool"), 0, forwarded_for=forwarded_for
    )


def image(*records: r.MetadataRecord) -> ClusterImage:
    builder = ImageBuilder(EMPTY_IMAGE)
    for record in records:
        builder.apply(record)
    return builder.build(1, 1, 1)[0]


# --- SCRAM


def credential(name: str, mechanism: int, iterations: int = 4096) -> r.UserScramCredentialRecord:
    return r.UserScramCredentialRecord(
        name=name,
        mechanism=mechanism,
        salt=b"the-salt",
        stored_key=b"the-stored-key",
        server_key=b"the-server-key",
        iterations=iterations,
    )


USERS = image(credential("bob", 2, 8192), credential("alice", 2), credential("alice", 1, 5000))


async def described(node: ControllerNode, *names: str, everybody: bool = False) -> dict[str, Any]:
    request = scram.DescribeUserScramCredentialsRequest(
        users=None if everybody else [scram.UserName(name=name) for name in names]
    )
    answer = await users.describe_user_scram_credentials(context(node, "PLAINTEXT"), request)
    assert answer.error_code == 0
    data = encode(answer, 0)
    assert not any(secret in data for secret in (b"the-salt", b"the-stored-key", b"the-server-key"))
    return {
        result.user: [(info.mechanism, info.iterations) for info in result.credential_infos]
        or ErrorCode(result.error_code)
        for result in answer.results
    }


def test_users_are_described_without_their_secrets() -> None:
    async def work(node: ControllerNode) -> None:
        node.image = USERS
        everybody = {"alice": [(1, 5000), (2, 4096)], "bob": [(2, 8192)]}
        assert await described(node, everybody=True) == await described(node) == everybody
        assert await described(node, "bob") == {"bob": [(2, 8192)]}
        assert await described(node, "bob", "nobody", "alice", "alice", "", "alice") == {
            "bob": [(2, 8192)],
            "nobody": ErrorCode.RESOURCE_NOT_FOUND,
            "": ErrorCode.RESOURCE_NOT_FOUND,
            "alice": ErrorCode.DUPLICATE_RESOURCE,
        }

    run(work)


def test_a_change_goes_to_the_controller_with_who_asks() -> None:
    async def work(node: ControllerNode) -> None:
        request = scram.AlterUserScramCredentialsRequest(
            deletions=[scram.ScramCredentialDeletion(name="a", mechanism=1)], upsertions=[]
        )
        await users.alter_user_scram_credentials(context(node, "PLAINTEXT", BOB), request)
        ((name, asked, how),) = node.controller.asked
        assert (name, asked, how.principal) == ("alter_user_scram_credentials", request, BOB)

    run(work)


# --- tokens


def creating(**more: Any) -> tokens.CreateDelegationTokenRequest:
    return tokens.CreateDelegationTokenRequest(**{"renewers": [], "max_lifetime_ms": -1, **more})


@pytest.mark.parametrize(
    ("listener", "principal", "forwarded", "allowed"),
    [
        ("OPEN", ANONYMOUS, False, False),
        ("OPEN", ALICE, False, False),
        ("TLS", ANONYMOUS, False, False),
        ("TLS", ALICE, False, True),
        ("CLIENTS", ALICE, False, True),
        ("CLIENTS", ALICE._replace(token_authenticated=True), False, False),
        ("CONTROLLER", ALICE, False, True),
        ("CONTROLLER", ALICE, True, True),
        ("CONTROLLER", ANONYMOUS, True, True),
        ("CONTROLLER", ALICE._replace(token_authenticated=True), True, False),
    ],
)
def test_who_may_ask_for_tokens(
    listener: str, principal: KafkaPrincipal, forwarded: bool, allowed: bool
) -> None:
    async def work(node: ControllerNode) -> None:
        sender = Sender(principal, b"\x0a\0\0\1") if forwarded else None
        ctx = context(node, listener, BOB if forwarded else principal, forwarded_for=sender)
        made = await users.create_delegation_token(ctx, creating())
        renewed = await users.renew_delegation_token(
            ctx, tokens.RenewDelegationTokenRequest(hmac=b"x", renew_period_ms=1)
        )
        ended = await users.expire_delegation_token(
            ctx, tokens.ExpireDelegationTokenRequest(hmac=b"x", expiry_time_period_ms=1)
        )
        codes = [made.error_code, renewed.error_code, ended.error_code]
        assert codes == ([0] * 3 if allowed else [NOT_ALLOWED] * 3)
        assert len(node.controller.asked) == (3 if allowed else 0)
        if not allowed:
            assert (made.principal_name, made.max_timestamp_ms) == (principal.name, -1)
            assert (renewed.expiry_timestamp_ms, ended.expiry_timestamp_ms) == (-1, -1)

    run(work, **PROTECTED)


def test_owners_and_renewers_have_to_be_somebody() -> None:
    async def work(node: ControllerNode) -> None:
        ctx = context(node, "CLIENTS")
        group = tokens.CreatableRenewers(principal_type="Group", principal_name="g")
        refused = await users.create_delegation_token(ctx, creating(renewers=[group]))
        assert refused.error_code == ErrorCode.INVALID_PRINCIPAL_TYPE
        odd = creating(owner_principal_type="a:b", owner_principal_name="c")
        assert (await users.create_delegation_token(ctx, odd)).error_code == ErrorCode.INVALID_PRINCIPAL_TYPE
        with pytest.raises(KafkaError) as untyped:
            await users.create_delegation_token(
                ctx, creating(owner_principal_type=None, owner_principal_name="c")
            )
        assert untyped.value.code is ErrorCode.UNKNOWN_SERVER_ERROR
        assert node.controller.asked == []

    run(work, **PROTECTED)


def token(token_id: str, owner: str, requester: str | None = None, *renewers: str) -> r.DelegationTokenRecord:
    return r.DelegationTokenRecord(
        owner=f"User:{owner}",
        requester=f"User:{requester or owner}",
        renewers=[f"User:{renewer}" for renewer in renewers],
        issue_timestamp=1,
        max_timestamp=3,
        expiration_timestamp=2,
        token_id=token_id,
    )


TOKENS = image(
    token("of-alice", "alice", None, "bob"), token("of-bob", "bob"), token("of-carol", "carol", "alice")
)


async def shown(
    node: ControllerNode, listener: str, *owners: str, everybodys: bool = False, version: int = 3
) -> tuple[int, set[str]]:
    request = tokens.DescribeDelegationTokenRequest(
        owners=None
        if everybodys
        else [
            tokens.DescribeDelegationTokenOwner(principal_type="User", principal_name=name) for name in owners
        ]
    )
    answer = await users.describe_delegation_token(context(node, listener, version=version), request)
    encode(answer, version)
    assert all(each.hmac == TokenHmacs(KEY).hmac_of(each.token_id) for each in answer.tokens)
    return answer.error_code, {each.token_id for each in answer.tokens}


def test_tokens_are_shown_by_owner() -> None:
    async def work(node: ControllerNode) -> None:
        node.image = TOKENS
        everyone = {"of-alice", "of-bob", "of-carol"}
        for version in (1, 2, 3):
            assert await shown(node, "CLIENTS", everybodys=True, version=version) == (0, everyone)
        assert await shown(node, "CLIENTS") == (0, set())
        assert await shown(node, "CLIENTS", "carol") == (0, {"of-carol"})
        # Whoever may renew it, or has asked for it, counts as well.
        assert await shown(node, "CLIENTS", "bob") == (0, {"of-alice", "of-bob"})
        assert await shown(node, "CLIENTS", "alice", "nobody") == (0, {"of-alice", "of-carol"})
        assert await shown(node, "OPEN", everybodys=True) == (NOT_ALLOWED, set())

    run(work, **PROTECTED, **{"delegation.token.secret.key": KEY})


@pytest.mark.parametrize(
    ("operation", "kind", "name", "seen"),
    [
        (AclOperation.DESCRIBE, ResourceType.DELEGATION_TOKEN, "of-bob", {"of-bob"}),
        (AclOperation.DESCRIBE_TOKENS, ResourceType.USER, "User:bob", {"of-bob"}),
        (AclOperation.DESCRIBE_TOKENS, ResourceType.USER, "User:carol", set()),
        (AclOperation.CREATE_TOKENS, ResourceType.USER, "User:bob", set()),
    ],
)
def test_with_an_authorizer_ones_own_and_those_one_may_describe(
    operation: AclOperation, kind: ResourceType, name: str, seen: set[str]
) -> None:
    async def work(node: ControllerNode) -> None:
        node.image = TOKENS
        node.services.authorizer = judging(rule(operation, name, kind=kind))
        own = {"of-alice", "of-carol"}
        assert await shown(node, "CLIENTS", everybodys=True) == (0, own | seen)
        assert await shown(node, "CLIENTS", "bob") == (0, {"of-alice"} | seen)

    run(work, **PROTECTED, **{"delegation.token.secret.key": KEY})


@pytest.mark.parametrize("listener", ["CLIENTS", "CONTROLLER"])
def test_a_token_for_another_needs_a_right(listener: str) -> None:
    async def work(node: ControllerNode) -> None:
        asked = creating(owner_principal_type="User", owner_principal_name="carol")
        for name, code in (("User:carol", 0), ("User:dora", ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED)):
            node.controller.asked.clear()
            node.services.authorizer = judging(rule(AclOperation.CREATE_TOKENS, name, kind=ResourceType.USER))
            answer = await users.create_delegation_token(context(node, listener), asked)
            assert answer.error_code == code
            assert len(node.controller.asked) == (0 if code else 1)
        # One's own needs none.
        assert (await users.create_delegation_token(context(node, listener), creating())).error_code == 0
        own = creating(owner_principal_type="User", owner_principal_name="alice")
        assert (await users.create_delegation_token(context(node, listener), own)).error_code == 0

    run(work, **PROTECTED)


def test_without_a_key_none_are_shown() -> None:
    async def work(node: ControllerNode) -> None:
        node.image = TOKENS
        disabled = ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
        assert await shown(node, "CLIENTS", everybodys=True) == (disabled, set())
        assert await shown(node, "OPEN", everybodys=True) == (NOT_ALLOWED, set())

    run(work, **PROTECTED)
