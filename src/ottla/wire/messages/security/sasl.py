"""Authentication.

Declarations only, in the language of `ottla.wire.schema`.
"""

from ottla.wire.schema import Bytes, Int16, Int64, NullableString, String, message, since


@message(api_key=17, versions="0-1")
class SaslHandshakeRequest:
    """Chooses the mechanism to authenticate with."""

    mechanism: String


@message(api_key=17, versions="0-1")
class SaslHandshakeResponse:
    """Whether the mechanism is there, and which are."""

    error_code: Int16 = 0
    mechanisms: list[String]


@message(api_key=36, versions="0-2", flexible="2+")
class SaslAuthenticateRequest:
    """A step of the authentication."""

    auth_bytes: Bytes


@message(api_key=36, versions="0-2", flexible="2+")
class SaslAuthenticateResponse:
    """The broker's side of the step."""

    error_code: Int16 = 0
    error_message: NullableString
    auth_bytes: Bytes
    session_lifetime_ms: Int64 = since(1, default=0, ignorable=True)
