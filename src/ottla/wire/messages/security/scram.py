"""SCRAM credentials of users.

Declarations only, in the language of `ottla.wire.schema`.
"""

from ottla.wire.schema import Bytes, Int8, Int16, Int32, NullableString, String, message, struct


@struct
class UserName:
    """A user to describe."""

    name: String


@message(api_key=50, versions="0", flexible="0+")
class DescribeUserScramCredentialsRequest:
    """Asks which SCRAM mechanisms users have credentials for; null for all users."""

    users: list[UserName] | None


@struct
class CredentialInfo:
    """A mechanism, and its iterations."""

    mechanism: Int8
    iterations: Int32


@struct
class DescribeUserScramCredentialsResult:
    """The answer for one user."""

    user: String
    error_code: Int16 = 0
    error_message: NullableString
    credential_infos: list[CredentialInfo]


@message(api_key=50, versions="0", flexible="0+")
class DescribeUserScramCredentialsResponse:
    """The users and their mechanisms."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: NullableString
    results: list[DescribeUserScramCredentialsResult]


@struct
class ScramCredentialDeletion:
    """A credential to remove."""

    name: String
    mechanism: Int8


@struct
class ScramCredentialUpsertion:
    """A credential to set; the password itself never travels."""

    name: String
    mechanism: Int8
    iterations: Int32
    salt: Bytes
    salted_password: Bytes


@message(api_key=51, versions="0", flexible="0+")
class AlterUserScramCredentialsRequest:
    """Sets and removes SCRAM credentials."""

    deletions: list[ScramCredentialDeletion]
    upsertions: list[ScramCredentialUpsertion]


@struct
class AlterUserScramCredentialsResult:
    """Whether one user was changed."""

    user: String
    error_code: Int16 = 0
    error_message: NullableString


@message(api_key=51, versions="0", flexible="0+")
class AlterUserScramCredentialsResponse:
    """Which users were changed."""

    throttle_time_ms: Int32 = 0
    results: list[AlterUserScramCredentialsResult]
