"""The admin client's operations on users: SCRAM credentials (KIP-554), client quotas (KIP-546), tokens (KIP-48).

Each is a function whose first parameter is the client that asks; AsyncAdmin has them as methods. A password is salted
in a thread, and only what comes of that is sent.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ottla.client.admin.types import (
    ANY_NAME,
    DelegationToken,
    QuotaEntity,
    QuotaFilter,
    ScramCredentialInfo,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from ottla.client.base import AsyncClient
from ottla.client.network import ErrorOf, To
from ottla.model.errors import ErrorCode, KafkaError, error_of
from ottla.security.scram_credentials import MECHANISM_TYPES, MECHANISMS, random_salt, salted_password
from ottla.wire.messages.admin.quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    ComponentData,
    DescribeClientQuotasRequest,
    EntityData,
    OpData,
)
from ottla.wire.messages.security.scram import (
    AlterUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
    UserName,
)
from ottla.wire.messages.security.tokens import (
    CreatableRenewers,
    CreateDelegationTokenRequest,
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
)

ScramAlteration = UserScramCredentialUpsertion | UserScramCredentialDeletion

_EXACT, _DEFAULT, _SPECIFIED = 0, 1, 2
# Brokers send only codes where tokens are concerned.
_SENTENCES = {
    ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED: "the cluster has no delegation tokens: it has no secret key for them",
    ErrorCode.DELEGATION_TOKEN_NOT_FOUND: "there is no such token",
    ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH: "only its owner and its renewers may change a token",
    ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: "tokens are given only to who has logged in, and not with a token",
    ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED: "it is not permitted to have a token for that owner",
    ErrorCode.DELEGATION_TOKEN_EXPIRED: "the token has expired",
    ErrorCode.INVALID_PRINCIPAL_TYPE: "owners and renewers are users, such as User:alice",
}


# -- SCRAM ----------------------------------------------------------------------------------------


async def describe_user_scram_credentials(
    client: AsyncClient, users: Iterable[str] = ()
) -> dict[str, list[ScramCredentialInfo] | KafkaError]:
    """With which mechanisms, in their order, users can log in; of all users if none are named."""
    names = [UserName(name=name) for name in dict.fromkeys(users)]
    response = await client.request(DescribeUserScramCredentialsRequest(users=names or None))
    _raise(response, "the users cannot be described")
    return {
        result.user: _failure(result, f"user {result.user!r}")
        or [
            ScramCredentialInfo(_mechanism_name(info.mechanism), info.iterations)
            for info in sorted(result.credential_infos, key=lambda info: info.mechanism)
        ]
        for result in response.results
    }


async def alter_user_scram_credentials(
    client: AsyncClient, alterations: Sequence[ScramAlteration]
) -> dict[str, KafkaError | None]:
    """Sets and deletes credentials; a user may be named once."""
    request = await asyncio.to_thread(_scram_request, alterations)
    response = await client.request(request, To.CONTROLLER, error_of=_moved_controller("results"))
    return {result.user: _failure(result, f"user {result.user!r}") for result in response.results}


def _scram_request(alterations: Sequence[ScramAlteration]) -> AlterUserScramCredentialsRequest:
    request = AlterUserScramCredentialsRequest(deletions=[], upsertions=[])
    for each in alterations:
        mechanism = MECHANISMS.get(each.mechanism)
        if mechanism is None:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_SASL_MECHANISM,
                f"{each.mechanism!r} is none of {', '.join(MECHANISMS)}",
            )
        if isinstance(each, UserScramCredentialDeletion):
            request.deletions.append(ScramCredentialDeletion(name=each.user, mechanism=mechanism.type))
            continue
        salt = random_salt() if each.salt is None else each.salt
        # A broker refuses more than a few thousand; whoever asks for less than one has not been heard by it.
        rounds = min(max(each.iterations, 1), _MOST_ITERATIONS)
        request.upsertions.append(
            ScramCredentialUpsertion(
                name=each.user,
                mechanism=mechanism.type,
                iterations=each.iterations,
                salt=salt,
                salted_password=salted_password(mechanism, each.password, salt, rounds),
            )
        )
    return request


# Computing more would take seconds, only for a broker to refuse it.
_MOST_ITERATIONS = 1_000_000


def _mechanism_name(number: int) -> str:
    known = MECHANISM_TYPES.get(number)
    return f"UNKNOWN ({number})" if known is None else known.name


# -- quotas ---------------------------------------------------------------------------------------


async def describe_client_quotas(
    client: AsyncClient, wanted: QuotaFilter | None = None
) -> dict[QuotaEntity, dict[str, float]]:
    """The quotas of the entities that match; all of them without a filter."""
    wanted = wanted or QuotaFilter()
    components = [
        ComponentData(
            entity_type=kind,
            match_type=_DEFAULT if name is None else _SPECIFIED if name == ANY_NAME else _EXACT,
            match=None if name == ANY_NAME else name,
        )
        for kind, name in wanted.parts.items()
    ]
    request = DescribeClientQuotasRequest(components=components, strict=wanted.strict)
    response = await client.request(request)
    _raise(response, "the quotas cannot be described")
    return {
        _entity(entry.entity): {value.key: value.value for value in entry.values}
        for entry in response.entries or ()
    }


async def alter_client_quotas(
    client: AsyncClient,
    alterations: Mapping[QuotaEntity, Mapping[str, float | None]],
    *,
    validate_only: bool = False,
) -> dict[QuotaEntity, KafkaError | None]:
    """Sets quotas of entities, or removes them (None)."""
    entries = [
        AlterClientQuotasRequestEntryData(
            entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
            ops=[
                OpData(key=key, value=0.0 if value is None else float(value), remove=value is None)
                for key, value in values.items()
            ],
        )
        for entity, values in alterations.items()
    ]
    request = AlterClientQuotasRequest(entries=entries, validate_only=validate_only)
    response = await client.request(request, To.CONTROLLER, error_of=_moved_controller("entries"))
    return {
        _entity(entry.entity): _failure(entry, described_entity(_entity(entry.entity)))
        for entry in response.entries
    }


def described_entity(entity: QuotaEntity) -> str:
    """`user alice, default client-id`."""
    return ", ".join(f"default {kind}" if name is None else f"{kind} {name}" for kind, name in entity)


def _entity(parts: Iterable[Any]) -> QuotaEntity:
    return tuple(sorted(((part.entity_type, part.entity_name) for part in parts), key=lambda part: part[0]))


# -- delegation tokens ----------------------------------------------------------------------------


async def create_delegation_token(
    client: AsyncClient,
    *,
    owner: str | None = None,
    renewers: Iterable[str] = (),
    max_lifetime_ms: int = -1,
) -> DelegationToken:
    """A token for whoever asks, or for `owner` ("User:alice"); -1: as long as the cluster lets it last."""
    kind, name = ("", "") if owner is None else _principal(owner)
    named = tuple(dict.fromkeys(renewers))
    request = CreateDelegationTokenRequest(
        owner_principal_type=kind,
        owner_principal_name=name,
        renewers=[
            CreatableRenewers(principal_type=kind, principal_name=name)
            for kind, name in map(_principal, named)
        ],
        max_lifetime_ms=max_lifetime_ms,
    )
    token = await client.request(request)
    _raise(token, "no token was created")
    owned_by = f"{token.principal_type}:{token.principal_name}"
    asked_by = f"{token.token_requester_principal_type}:{token.token_requester_principal_name}"
    return DelegationToken(
        token.token_id,
        owned_by,
        # Brokers before 3.3 do not tell: it is the same.
        asked_by if token.token_requester_principal_type else owned_by,
        named,
        token.issue_timestamp_ms,
        token.expiry_timestamp_ms,
        token.max_timestamp_ms,
        token.hmac,
    )


async def describe_delegation_tokens(
    client: AsyncClient, owners: Iterable[str] | None = None
) -> list[DelegationToken]:
    """The tokens that may be seen, of all owners or of these."""
    asked = None
    if owners is not None:
        asked = [
            DescribeDelegationTokenOwner(principal_type=kind, principal_name=name)
            for kind, name in map(_principal, owners)
        ]
    response = await client.request(DescribeDelegationTokenRequest(owners=asked))
    _raise(response, "the tokens cannot be described")
    found = []
    for token in response.tokens:
        owner = f"{token.principal_type}:{token.principal_name}"
        requester = f"{token.token_requester_principal_type}:{token.token_requester_principal_name}"
        found.append(
            DelegationToken(
                token.token_id,
                owner,
                requester if token.token_requester_principal_type else owner,
                tuple(f"{each.principal_type}:{each.principal_name}" for each in token.renewers),
                token.issue_timestamp,
                token.expiry_timestamp,
                token.max_timestamp,
                token.hmac,
            )
        )
    return sorted(found, key=lambda token: (token.owner, token.issue_timestamp_ms, token.token_id))


async def renew_delegation_token(client: AsyncClient, hmac: bytes, *, period_ms: int = -1) -> int:
    """A token lasts so much longer, or as long as the cluster's setting says; until when, in milliseconds."""
    response = await client.request(RenewDelegationTokenRequest(hmac=hmac, renew_period_ms=period_ms))
    _raise(response, "the token was not renewed")
    return int(response.expiry_timestamp_ms)


async def expire_delegation_token(client: AsyncClient, hmac: bytes, *, period_ms: int = -1) -> int:
    """A token ends after so long, or at once; when, in milliseconds."""
    response = await client.request(ExpireDelegationTokenRequest(hmac=hmac, expiry_time_period_ms=period_ms))
    _raise(response, "the token was not ended")
    return int(response.expiry_timestamp_ms)


def _principal(text: str) -> tuple[str, str]:
    kind, colon, name = text.partition(":")
    if not (kind and colon and name):
        raise KafkaError(
            ErrorCode.INVALID_PRINCIPAL_TYPE, f"{text!r} is nobody; a user is written User:alice"
        )
    return kind, name


# -- errors ---------------------------------------------------------------------------------------


def _moved_controller(items: str) -> ErrorOf:
    def error(response: Any) -> ErrorCode | None:
        codes = [error_of(item.error_code) for item in getattr(response, items)]
        return ErrorCode.NOT_CONTROLLER if ErrorCode.NOT_CONTROLLER in codes else None

    return error


def _failure(item: Any, what: str) -> KafkaError | None:
    code = error_of(item.error_code)
    if code is None:
        return None
    words = getattr(item, "error_message", None) or _SENTENCES.get(code, code.name)
    return KafkaError(code, f"{what}: {words}")


def _raise(response: Any, what: str) -> None:
    error = _failure(response, what)
    if error is not None:
        raise error
