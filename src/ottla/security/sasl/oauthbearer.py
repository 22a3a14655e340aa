"""OAUTHBEARER (RFC 7628, KIP-255): a client shows a token that somebody else has signed.

Rules: whether a token is good is a validator's to say, `ottla.security.sasl.oauth.jwt`; nothing here looks into one,
and no error has any of it. A client whose token is refused is told so in JSON, replies with a single byte, and only
then has failed. Pure.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import ClassVar, Final, NamedTuple

from ottla.config.errors import ConfigError
from ottla.security.sasl.jaas import JaasEntry, check_mechanism
from ottla.security.sasl.mechanisms import OAUTHBEARER, SaslError

# Tokens with many groups or roles in them are the longest.
MAX_MESSAGE_BYTES: Final = 1 << 17
AUTH_KEY: Final = "auth"
EXTENSION_PREFIX: Final = "extension_"

_SEPARATOR: Final = "\x01"
_REPLY_TO_ERROR: Final = b"\x01"
_MAX_SHOWN: Final = 500
_SASL_NAME: Final = r"(?:[^\x00=,]|=2C|=3D)+"
_KEY: Final = r"[A-Za-z]+"
_VALUE: Final = r"[!-~ \t\r\n]+"
_INITIAL_RESPONSE: Final = re.compile(
    rf"n,(?:a=(?P<authzid>{_SASL_NAME}))?,\x01(?P<pairs>(?:{_KEY}={_VALUE}\x01)*)\x01"
)
_TOKEN: Final = re.compile(r"[-_~+/.a-zA-Z0-9]+=*")
_AUTH: Final = re.compile(rf"(?P<scheme>\w+) +(?P<token>{_TOKEN.pattern})", re.ASCII)
_EXTENSION_NAME: Final = re.compile(_KEY)
_EXTENSION_VALUE: Final = re.compile(_VALUE)


class OAuthToken(NamedTuple):
    """What a validated token says (OAuthBearerToken); not the token itself, with which anybody could log in."""

    principal_name: str
    # When it expires, milliseconds since the epoch.
    lifetime_ms: int
    scope: frozenset[str] = frozenset()
    start_time_ms: int | None = None


class InvalidTokenError(Exception):
    """A token that is not to be trusted; `reason` is for the log, the others are what RFC 7628 has the client told."""

    def __init__(
        self,
        reason: str,
        status: str = "invalid_token",
        scope: str | None = None,
        openid_configuration: str | None = None,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        told = {"status": status, "scope": scope, "openid-configuration": openid_configuration}
        self.json = json.dumps(
            {key: value for key, value in told.items() if value is not None}, separators=(", ", ":")
        )


# From a token to what it says; InvalidTokenError for one that is not to be trusted. It may wait for keys.
TokenValidator = Callable[[str], OAuthToken]


def checked_validator(validate: TokenValidator) -> TokenValidator:
    """One of the operator's own, held to what it returns."""

    def checked(token: str) -> OAuthToken:
        found = validate(token)
        if not isinstance(found, OAuthToken) or not found.principal_name:
            raise TypeError("a validator that returns no OAuthToken")
        return found

    return checked


class OAuthBearerSaslServer:
    """One exchange of the broker's side."""

    is_slow: ClassVar[bool] = True

    def __init__(self, validate: TokenValidator) -> None:
        self.complete = False
        self.authorization_id = ""
        self.token_authenticated = False
        self.expires_at_ms: int | None = None
        # What else the client said of itself, which nothing vouches for.
        self.extensions: Mapping[str, str] = {}
        # Why the token was refused, from then on: a client that does not reply has failed, too.
        self.refused: InvalidTokenError | None = None
        self._validate = validate
        self._step = self._initial_response

    def evaluate(self, response: bytes) -> bytes:
        # The exchange is over unless the step says what comes next.
        step, self._step = self._step, self._over
        return step(response)

    def _over(self, response: bytes) -> bytes:
        raise SaslError(OAUTHBEARER, "a message after the end of the exchange")

    def _initial_response(self, response: bytes) -> bytes:
        authzid, value, extensions = _parse(response)
        try:
            token = self._validate(value)
        except InvalidTokenError as error:
            self.refused, self._step = error, self._reply_to_error
            return error.json.encode()
        except Exception as error:
            raise SaslError(OAUTHBEARER, f"the token could not be checked: {type(error).__name__}") from error
        if authzid and authzid != token.principal_name:
            words = (
                f"Authentication failed: Client requested an authorization id ({authzid}) that is different from "
                f"the token's principal name ({token.principal_name})"
            )
            raise SaslError(OAUTHBEARER, words, words)
        self.authorization_id = token.principal_name
        self.expires_at_ms = token.lifetime_ms
        self.extensions = extensions
        self.complete = True
        return b""

    def _reply_to_error(self, response: bytes) -> bytes:
        # Whatever the reply is; another token wants another exchange.
        assert self.refused is not None
        raise SaslError(OAUTHBEARER, self.refused.reason, self.refused.json)


def _parse(response: bytes) -> tuple[str, str, dict[str, str]]:
    """Who the client wants to be, its token, its extensions (OAuthBearerClientInitialResponse)."""
    if len(response) > MAX_MESSAGE_BYTES:
        raise SaslError(OAUTHBEARER, f"a client first message of {len(response)} bytes")
    try:
        match = _INITIAL_RESPONSE.fullmatch(response.decode())
    except UnicodeDecodeError:
        match = None
    if match is None:
        raise SaslError(OAUTHBEARER, "invalid OAUTHBEARER client first message")
    pairs = [pair.split("=", 1) for pair in match["pairs"].split(_SEPARATOR)[:-1]]
    extensions = dict(pairs)
    if len(extensions) != len(pairs):
        raise SaslError(OAUTHBEARER, "a client first message that has a key twice")
    auth = _AUTH.fullmatch(extensions.pop(AUTH_KEY, ""))
    if auth is None or auth["scheme"].lower() != "bearer":
        raise SaslError(OAUTHBEARER, "a client first message without a bearer token as its 'auth'")
    authzid = (match["authzid"] or "").replace("=2C", ",").replace("=3D", "=")
    return authzid, auth["token"], extensions


class OAuthBearerSaslClient:
    """One exchange of the client's side, with the token that is current when it begins."""

    is_slow: ClassVar[bool] = False

    def __init__(self, token: str, extensions: Mapping[str, str] | None = None) -> None:
        self.complete = False
        if not _TOKEN.fullmatch(token):
            raise ConfigError("a bearer token that is empty, or has characters that no token has")
        pairs = {AUTH_KEY: f"Bearer {token}"} | check_extensions(extensions or {})
        self._message = "".join(f"{key}={value}{_SEPARATOR}" for key, value in pairs.items())
        self._step: Callable[[bytes], bytes | None] = self._initial_response

    def evaluate(self, challenge: bytes | None) -> bytes | None:
        step, self._step = self._step, self._over
        return step(challenge or b"")

    def _over(self, challenge: bytes) -> bytes | None:
        raise _client_error("a challenge after the end of the exchange")

    def _initial_response(self, challenge: bytes) -> bytes:
        if challenge:
            raise _client_error("a challenge before the first message")
        self._step = self._answer
        return f"n,,{_SEPARATOR}{self._message}{_SEPARATOR}".encode()

    def _answer(self, challenge: bytes) -> bytes | None:
        if not challenge:
            self.complete = True
            return None
        self._refused = challenge[:_MAX_SHOWN].decode(errors="replace")
        self._step = self._after_error
        return _REPLY_TO_ERROR

    def _after_error(self, challenge: bytes) -> bytes | None:
        raise _client_error(f"the server refuses the token: {self._refused!r}")


def _client_error(what: str) -> SaslError:
    return SaslError(OAUTHBEARER, what, f"{OAUTHBEARER} with the server failed: {what}")


def check_extensions(extensions: Mapping[str, str]) -> dict[str, str]:
    """ConfigError for what the protocol has no way to say (SaslExtensions)."""
    for name, value in extensions.items():
        if name == AUTH_KEY or not _EXTENSION_NAME.fullmatch(name):
            raise ConfigError(f"Extension name {name} is invalid")
        if not _EXTENSION_VALUE.fullmatch(value):
            raise ConfigError(f"Extension value for extension {name} is invalid")
    return dict(extensions)


def jaas_extensions(entry: JaasEntry) -> dict[str, str]:
    """The extensions that a client's JAAS text names: extension_traceId="123"."""
    check_mechanism(entry, OAUTHBEARER)
    return check_extensions(
        {
            name.removeprefix(EXTENSION_PREFIX): value
            for name, value in entry.options.items()
            if name.startswith(EXTENSION_PREFIX)
        }
    )
