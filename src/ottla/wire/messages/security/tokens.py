"""Delegation tokens.

Declarations only, in the language of `ottla.wire.schema`.
"""

from ottla.wire.schema import Bytes, Int16, Int32, Int64, NullableString, String, message, since, struct


@struct
class CreatableRenewers:
    """Who may renew the token."""

    principal_type: String
    principal_name: String


@message(api_key=38, versions="1-3", flexible="2+")
class CreateDelegationTokenRequest:
    """Asks for a token to authenticate with (KIP-48)."""

    owner_principal_type: NullableString = since(3, default="")
    owner_principal_name: NullableString = since(3, default="")
    renewers: list[CreatableRenewers]
    max_lifetime_ms: Int64


@message(api_key=38, versions="1-3", flexible="2+")
class CreateDelegationTokenResponse:
    """The token."""

    error_code: Int16 = 0
    principal_type: String
    principal_name: String
    token_requester_principal_type: String = since(3, default="")
    token_requester_principal_name: String = since(3, default="")
    issue_timestamp_ms: Int64
    expiry_timestamp_ms: Int64
    max_timestamp_ms: Int64
    token_id: String
    hmac: Bytes
    throttle_time_ms: Int32 = 0


@message(api_key=39, versions="1-2", flexible="2+")
class RenewDelegationTokenRequest:
    """Makes a token last longer."""

    hmac: Bytes
    renew_period_ms: Int64


@message(api_key=39, versions="1-2", flexible="2+")
class RenewDelegationTokenResponse:
    """How long it lasts now."""

    error_code: Int16 = 0
    expiry_timestamp_ms: Int64
    throttle_time_ms: Int32 = 0


@message(api_key=40, versions="1-2", flexible="2+")
class ExpireDelegationTokenRequest:
    """Makes a token end sooner."""

    hmac: Bytes
    expiry_time_period_ms: Int64


@message(api_key=40, versions="1-2", flexible="2+")
class ExpireDelegationTokenResponse:
    """When it ends now."""

    error_code: Int16 = 0
    expiry_timestamp_ms: Int64
    throttle_time_ms: Int32 = 0


@struct
class DescribeDelegationTokenOwner:
    """An owner of tokens."""

    principal_type: String
    principal_name: String


@message(api_key=41, versions="1-3", flexible="2+")
class DescribeDelegationTokenRequest:
    """Asks for the tokens of owners; null asks for all that may be seen."""

    owners: list[DescribeDelegationTokenOwner] | None


@struct
class DescribedDelegationTokenRenewer:
    """Who may renew the token."""

    principal_type: String
    principal_name: String


@struct
class DescribedDelegationToken:
    """A token in full."""

    principal_type: String
    principal_name: String
    token_requester_principal_type: String = since(3, default="")
    token_requester_principal_name: String = since(3, default="")
    issue_timestamp: Int64
    expiry_timestamp: Int64
    max_timestamp: Int64
    token_id: String
    hmac: Bytes
    renewers: list[DescribedDelegationTokenRenewer]


@message(api_key=41, versions="1-3", flexible="2+")
class DescribeDelegationTokenResponse:
    """The tokens."""

    error_code: Int16 = 0
    tokens: list[DescribedDelegationToken]
    throttle_time_ms: Int32 = 0
