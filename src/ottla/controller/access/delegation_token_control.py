"""Kafka's DelegationTokenControlManager: tokens are made, renewed, ended, and swept when they expire (KIP-48, 373).

Rules: pure; `now_ms` is a parameter, as is the id of a new token. Without a secret key there are no tokens. A token
lasts until its expiration, which renewing moves on, at most up to its maximum.
"""

from dataclasses import dataclass
from typing import Final

from ottla.config.broker import BrokerConfig
from ottla.controller.result import ControllerResult, RequestContext
from ottla.controller.rules import ClusterRules
from ottla.metadata import features
from ottla.metadata.records import DelegationTokenRecord, MetadataRecord, RemoveDelegationTokenRecord
from ottla.model.errors import ErrorCode
from ottla.model.time_slice import Steps
from ottla.security.delegation_tokens import ERROR_TIMESTAMP, TokenHmacs, is_expired, may_renew
from ottla.security.principal import ANONYMOUS, USER, KafkaPrincipal
from ottla.wire.messages.security import tokens as m

SECRET_KEY: Final = "delegation.token.secret.key"
# The version of CreateDelegationToken and DescribeDelegationToken since which they tell who has asked for the token.
REQUESTER_SINCE: Final = 3
# What one sweep removes before others have their turn.
MAX_RECORDS_PER_EXPIRATION: Final = 1_000
# What it looks at in one step.
TOKENS_PER_STEP: Final = 1_000
_LAST_MS: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class TokenSettings:
    """How long tokens last, and how their HMACs are made; no HMACs: there are no tokens here."""

    hmacs: TokenHmacs | None
    max_lifetime_ms: int
    expiry_time_ms: int
    check_interval_ms: int

    @classmethod
    def from_config(cls, config: BrokerConfig) -> "TokenSettings":
        secret_key = config[SECRET_KEY]
        return cls(
            TokenHmacs(secret_key) if secret_key else None,
            config["delegation.token.max.lifetime.ms"],
            config["delegation.token.expiry.time.ms"],
            config["delegation.token.expiry.check.interval.ms"],
        )


def create_delegation_token(
    rules: ClusterRules,
    request: m.CreateDelegationTokenRequest,
    context: RequestContext,
    settings: TokenSettings,
    token_id: str,
    now_ms: int,
) -> ControllerResult[m.CreateDelegationTokenResponse]:
    """A new token, for whoever asks or, if one is named, another owner."""
    requester = context.principal or ANONYMOUS
    owner = owner_of(request, requester)
    if owner is None:
        return ControllerResult(
            created_error(context.api_version, ErrorCode.INVALID_PRINCIPAL_TYPE, requester, requester)
        )
    refused = _refused(rules, context, settings)
    if not refused and any(renewer.principal_type != USER for renewer in request.renewers):
        refused = ErrorCode.INVALID_PRINCIPAL_TYPE
    if refused or settings.hmacs is None:
        return ControllerResult(created_error(context.api_version, refused, owner, requester, timestamp=0))
    lifetime_ms = settings.max_lifetime_ms
    if request.max_lifetime_ms > 0:
        lifetime_ms = min(lifetime_ms, request.max_lifetime_ms)
    max_timestamp = _later(now_ms, lifetime_ms)
    record = DelegationTokenRecord(
        owner=str(owner),
        requester=str(requester),
        renewers=[f"{renewer.principal_type}:{renewer.principal_name}" for renewer in request.renewers],
        issue_timestamp=now_ms,
        max_timestamp=max_timestamp,
        expiration_timestamp=min(max_timestamp, _later(now_ms, settings.expiry_time_ms)),
        token_id=token_id,
    )
    response = created_error(context.api_version, ErrorCode.NONE, owner, requester)
    response.issue_timestamp_ms = now_ms
    response.expiry_timestamp_ms = record.expiration_timestamp
    response.max_timestamp_ms = max_timestamp
    response.token_id = token_id
    response.hmac = settings.hmacs.hmac_of(token_id)
    return ControllerResult(response, [record], atomic=True)


def owner_of(request: m.CreateDelegationTokenRequest, requester: KafkaPrincipal) -> KafkaPrincipal | None:
    """Whose the token will be; None if nobody can be called that, and be found again in the log."""
    if not request.owner_principal_name:
        return requester
    kind = request.owner_principal_type
    return None if kind is None or ":" in kind else KafkaPrincipal(kind, request.owner_principal_name)


def created_error(
    version: int,
    code: ErrorCode,
    owner: KafkaPrincipal,
    requester: KafkaPrincipal,
    timestamp: int = ERROR_TIMESTAMP,
) -> m.CreateDelegationTokenResponse:
    """The answer without a token."""
    response = m.CreateDelegationTokenResponse(
        error_code=int(code),
        principal_type=owner.type,
        principal_name=owner.name,
        issue_timestamp_ms=timestamp,
        expiry_timestamp_ms=timestamp,
        max_timestamp_ms=timestamp,
        token_id="",
        hmac=b"",
    )
    if version >= REQUESTER_SINCE:
        response.token_requester_principal_type = requester.type
        response.token_requester_principal_name = requester.name
    return response


def renew_delegation_token(
    rules: ClusterRules,
    request: m.RenewDelegationTokenRequest,
    context: RequestContext,
    settings: TokenSettings,
    now_ms: int,
) -> Steps[ControllerResult[m.RenewDelegationTokenResponse]]:
    """Moves a token's expiration on."""
    token, error = yield from _found(rules, request.hmac, context, settings)
    if token is not None and is_expired(token, now_ms):
        error = ErrorCode.DELEGATION_TOKEN_EXPIRED
    if token is None or error:
        return ControllerResult(m.RenewDelegationTokenResponse(error_code=int(error), expiry_timestamp_ms=0))
    period_ms = settings.expiry_time_ms
    if request.renew_period_ms > 0:
        period_ms = min(period_ms, request.renew_period_ms)
    expires_ms = min(token.max_timestamp, _later(now_ms, period_ms))
    response = m.RenewDelegationTokenResponse(expiry_timestamp_ms=expires_ms)
    return ControllerResult(response, [_until(token, expires_ms)], atomic=True)


def expire_delegation_token(
    rules: ClusterRules,
    request: m.ExpireDelegationTokenRequest,
    context: RequestContext,
    settings: TokenSettings,
    now_ms: int,
) -> Steps[ControllerResult[m.ExpireDelegationTokenResponse]]:
    """Ends a token after a while; at once if that is negative, also one whose time is over."""
    token, error = yield from _found(rules, request.hmac, context, settings)
    at_once = request.expiry_time_period_ms < 0
    if token is not None and not error and not at_once and is_expired(token, now_ms):
        error = ErrorCode.DELEGATION_TOKEN_EXPIRED
    if token is None or error:
        return ControllerResult(m.ExpireDelegationTokenResponse(error_code=int(error), expiry_timestamp_ms=0))
    record: MetadataRecord
    if at_once:
        expires_ms = now_ms
        record = RemoveDelegationTokenRecord(token_id=token.token_id)
    else:
        expires_ms = min(token.max_timestamp, _later(now_ms, request.expiry_time_period_ms))
        record = _until(token, expires_ms)
    return ControllerResult(
        m.ExpireDelegationTokenResponse(expiry_timestamp_ms=expires_ms), [record], atomic=True
    )


def sweep_expired_tokens(rules: ClusterRules, now_ms: int) -> Steps[ControllerResult[None]]:
    """Removes what has expired, so many at a time; also where tokens have been turned off since."""
    records: list[MetadataRecord] = []
    for count, token in enumerate(rules.image.delegation_tokens.values(), 1):
        if is_expired(token, now_ms):
            records.append(RemoveDelegationTokenRecord(token_id=token.token_id))
            if len(records) >= MAX_RECORDS_PER_EXPIRATION:
                return ControllerResult(None, records, more=True)
        if count % TOKENS_PER_STEP == 0:
            yield
    return ControllerResult(None, records)


def _refused(rules: ClusterRules, context: RequestContext, settings: TokenSettings) -> ErrorCode:
    """Why nobody gets anything; NONE if they may."""
    if context.principal is not None and context.principal.token_authenticated:
        return ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    if settings.hmacs is None:
        return ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
    if not features.delegation_token_supported(rules.metadata_version):
        return ErrorCode.UNSUPPORTED_VERSION
    return ErrorCode.NONE


def _found(
    rules: ClusterRules, token_hmac: bytes, context: RequestContext, settings: TokenSettings
) -> Steps[tuple[DelegationTokenRecord | None, ErrorCode]]:
    """The token that is meant, and whether whoever asks may change it."""
    refused = _refused(rules, context, settings)
    if refused or settings.hmacs is None:
        return None, refused
    tokens = rules.image.delegation_tokens
    token_id = yield from settings.hmacs.find(token_hmac, tokens)
    if token_id is None:
        return None, ErrorCode.DELEGATION_TOKEN_NOT_FOUND
    token = tokens[token_id]
    if not may_renew(token, context.principal or ANONYMOUS):
        return token, ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
    return token, ErrorCode.NONE


def _until(token: DelegationTokenRecord, expires_ms: int) -> DelegationTokenRecord:
    """The same token with another expiration; records are shared by images and never changed."""
    return DelegationTokenRecord(
        owner=token.owner,
        requester=token.requester,
        renewers=list(token.renewers),
        issue_timestamp=token.issue_timestamp,
        max_timestamp=token.max_timestamp,
        expiration_timestamp=expires_ms,
        token_id=token.token_id,
    )


def _later(now_ms: int, duration_ms: int) -> int:
    return min(now_ms + duration_ms, _LAST_MS)
