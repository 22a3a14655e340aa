"""Users' SCRAM credentials (KIP-554) and delegation tokens (KIP-48, KIP-373).

Changes are the controller's to decide; what there is, a broker says from its image, and never a secret but the HMAC of
a token to whoever may have it. Tokens are asked for by connections that prove who asks: not without authentication, and
not with a token, or whoever had one could have the next for ever.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Final

from ottla.controller.access.delegation_token_control import (
    REQUESTER_SINCE,
    SECRET_KEY,
    created_error,
    owner_of,
)
from ottla.metadata.image import ClusterImage
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.time_slice import Steps, TimeSlice
from ottla.security.acls import AclOperation, ResourceType
from ottla.security.delegation_tokens import ERROR_TIMESTAMP, Token, TokenHmacs, may_see
from ottla.security.principal import ANONYMOUS, USER, KafkaPrincipal
from ottla.server.context import Context
from ottla.server.errors import says_errors_by_item
from ottla.server.limits import MAX_DECIDED_ELEMENTS
from ottla.server.network.connection import Listener
from ottla.server.registry import handles
from ottla.wire.messages.security.scram import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)
from ottla.wire.messages.security.tokens import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    DescribedDelegationToken,
    DescribedDelegationTokenRenewer,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)

# Looked at in one step: some tenths of a millisecond.
CREDENTIALS_PER_STEP: Final = 1_000
TOKENS_PER_STEP: Final = 100


# ---- SCRAM --------------------------------------------------------------------------------------------------


@handles(
    AlterUserScramCredentialsRequest, Listener.BROKER, Listener.CONTROLLER, max_elements=MAX_DECIDED_ELEMENTS
)
async def alter_user_scram_credentials(
    ctx: Context, request: AlterUserScramCredentialsRequest
) -> AlterUserScramCredentialsResponse:
    """Set and delete credentials, each user with its own success or error."""
    response = await ctx.controller.alter_user_scram_credentials(request, ctx.decision(request))
    await ctx.caught_up()
    return response


@handles(DescribeUserScramCredentialsRequest, max_elements=MAX_DECIDED_ELEMENTS)
async def describe_user_scram_credentials(
    ctx: Context, request: DescribeUserScramCredentialsRequest
) -> DescribeUserScramCredentialsResponse:
    """Which mechanisms users have, and with how many iterations."""
    asked = [user.name for user in request.users or ()]
    return await TimeSlice().run(described_credentials(ctx.node.image(), asked))


def _nothing_described(
    request: DescribeUserScramCredentialsRequest, code: ErrorCode
) -> DescribeUserScramCredentialsResponse:
    """As Kafka does it: of the whole request and of each that is asked for, without a word and without their names."""
    return DescribeUserScramCredentialsResponse(
        error_code=int(code),
        error_message=None,
        results=[
            DescribeUserScramCredentialsResult(
                user="", error_code=int(code), error_message=None, credential_infos=[]
            )
            for _ in request.users or ()
        ],
    )


says_errors_by_item(DescribeUserScramCredentialsRequest, _nothing_described)


def described_credentials(
    image: ClusterImage, asked: list[str]
) -> Steps[DescribeUserScramCredentialsResponse]:
    """Of these users, or of all if none are named."""
    counts = Counter(asked)
    found: dict[str, list[CredentialInfo]] = {user: [] for user in counts}
    for count, ((mechanism, user), credential) in enumerate(image.scram.items(), 1):
        if not asked or user in found:
            info = CredentialInfo(mechanism=mechanism, iterations=credential.iterations)
            found.setdefault(user, []).append(info)
        if count % CREDENTIALS_PER_STEP == 0:
            yield
    results = []
    for count, (user, infos) in enumerate(found.items(), 1):
        result = DescribeUserScramCredentialsResult(
            user=user,
            error_message="",  # as Kafka says that there is none
            credential_infos=sorted(infos, key=lambda info: info.mechanism),
        )
        if counts[user] > 1:
            _fail(result, ErrorCode.DUPLICATE_RESOURCE, f"{_TWICE}{user}")
        elif not infos:
            _fail(result, ErrorCode.RESOURCE_NOT_FOUND, f"{_NOBODY}{user}")
        results.append(result)
        if count % CREDENTIALS_PER_STEP == 0:
            yield
    return DescribeUserScramCredentialsResponse(error_message="", results=results)


_TWICE = "Cannot describe SCRAM credentials for the same user twice in a single request: "
_NOBODY = "Attempt to describe a user credential that does not exist: "


def _fail(result: DescribeUserScramCredentialsResult, code: ErrorCode, message: str) -> None:
    result.error_code, result.error_message, result.credential_infos = int(code), message, []


# ---- delegation tokens --------------------------------------------------------------------------------------


def may_ask_for_tokens(ctx: Context) -> bool:
    """Does the connection prove who asks? What a broker has forwarded, it has looked at (allowTokenRequests)."""
    principal = ctx.sender.principal
    if principal.token_authenticated:
        return False
    if ctx.forwarded_for is not None:
        return True
    protocol = ctx.node.config().security_protocols.get(ctx.listener_name, "PLAINTEXT")
    return protocol != "PLAINTEXT" and not (protocol == "SSL" and principal == ANONYMOUS)


@handles(
    CreateDelegationTokenRequest, Listener.BROKER, Listener.CONTROLLER, max_elements=MAX_DECIDED_ELEMENTS
)
async def create_delegation_token(
    ctx: Context, request: CreateDelegationTokenRequest
) -> CreateDelegationTokenResponse:
    """A token for whoever asks, or for another user."""
    requester = ctx.sender.principal
    owner = owner_of(request, requester)
    if owner is None and request.owner_principal_type is None:
        # Kafka has no better word for an owner without a type.
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)
    if owner is None:
        return created_error(ctx.version, ErrorCode.INVALID_PRINCIPAL_TYPE, requester, requester)
    if not may_ask_for_tokens(ctx):
        return created_error(ctx.version, ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, owner, requester)
    if owner[:2] != requester[:2] and not ctx.authorize(
        AclOperation.CREATE_TOKENS, ResourceType.USER, str(owner)
    ):
        return created_error(ctx.version, ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED, owner, requester)
    if not ctx.on_controller_listener and any(each.principal_type != USER for each in request.renewers):
        return created_error(ctx.version, ErrorCode.INVALID_PRINCIPAL_TYPE, owner, requester)
    response = await ctx.controller.create_delegation_token(request, ctx.decision(request))
    await ctx.caught_up()
    return response


@handles(RenewDelegationTokenRequest, Listener.BROKER, Listener.CONTROLLER)
async def renew_delegation_token(
    ctx: Context, request: RenewDelegationTokenRequest
) -> RenewDelegationTokenResponse:
    """A token lasts longer."""
    if not may_ask_for_tokens(ctx):
        return RenewDelegationTokenResponse(
            error_code=ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, expiry_timestamp_ms=ERROR_TIMESTAMP
        )
    response = await ctx.controller.renew_delegation_token(request, ctx.decision(request))
    await ctx.caught_up()
    return response


@handles(ExpireDelegationTokenRequest, Listener.BROKER, Listener.CONTROLLER)
async def expire_delegation_token(
    ctx: Context, request: ExpireDelegationTokenRequest
) -> ExpireDelegationTokenResponse:
    """A token ends sooner, or at once."""
    if not may_ask_for_tokens(ctx):
        return ExpireDelegationTokenResponse(
            error_code=ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, expiry_timestamp_ms=ERROR_TIMESTAMP
        )
    response = await ctx.controller.expire_delegation_token(request, ctx.decision(request))
    await ctx.caught_up()
    return response


@handles(DescribeDelegationTokenRequest, max_elements=MAX_DECIDED_ELEMENTS)
async def describe_delegation_token(
    ctx: Context, request: DescribeDelegationTokenRequest
) -> DescribeDelegationTokenResponse:
    """The tokens that whoever asks may see; all of them, or those of owners."""
    secret_key = ctx.node.config()[SECRET_KEY]
    error = ErrorCode.NONE
    if not may_ask_for_tokens(ctx):
        error = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    elif not secret_key:
        error = ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
    if error:
        return DescribeDelegationTokenResponse(error_code=int(error), tokens=[])
    owners = None
    if request.owners is not None:
        owners = {f"{owner.principal_type}:{owner.principal_name}" for owner in request.owners}
    steps = described_tokens(
        ctx.node.image(), ctx.sender.principal, owners, TokenHmacs(secret_key), partial(_may_describe, ctx)
    )
    tokens = await TimeSlice().run(steps)
    if ctx.version < REQUESTER_SINCE:
        for token in tokens:
            token.token_requester_principal_type = token.token_requester_principal_name = ""
    return DescribeDelegationTokenResponse(tokens=tokens)


def _may_describe(ctx: Context, token: Token) -> bool:
    """A token of others: by itself, or because of whose it is."""
    return ctx.authorize(
        AclOperation.DESCRIBE, ResourceType.DELEGATION_TOKEN, token.token_id, log_if_denied=False
    ) or ctx.authorize(AclOperation.DESCRIBE_TOKENS, ResourceType.USER, token.owner, log_if_denied=False)


def described_tokens(
    image: ClusterImage,
    principal: KafkaPrincipal,
    owners: set[str] | None,
    hmacs: TokenHmacs,
    permitted: Callable[[Token], bool],
) -> Steps[list[DescribedDelegationToken]]:
    """Those of others as far as that is `permitted`."""
    found = []
    for count, token in enumerate(image.delegation_tokens.values(), 1):
        if may_see(token, principal, owners, permitted):
            owner, requester = _principal(token.owner), _principal(token.requester)
            found.append(
                DescribedDelegationToken(
                    principal_type=owner[0],
                    principal_name=owner[1],
                    token_requester_principal_type=requester[0],
                    token_requester_principal_name=requester[1],
                    issue_timestamp=token.issue_timestamp,
                    expiry_timestamp=token.expiration_timestamp,
                    max_timestamp=token.max_timestamp,
                    token_id=token.token_id,
                    hmac=hmacs.hmac_of(token.token_id),
                    renewers=[
                        DescribedDelegationTokenRenewer(principal_type=kind, principal_name=name)
                        for kind, name in map(_principal, token.renewers)
                    ],
                )
            )
        if count % TOKENS_PER_STEP == 0:
            yield
    return found


def _principal(text: str) -> tuple[str, str]:
    kind, _, name = text.partition(":")
    return kind, name
