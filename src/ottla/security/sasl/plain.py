"""PLAIN (RFC 4616): a name and a password, for connections that are encrypted already.

Rules: what a client may ask to be is itself (CVE-2017-12610); which of name and password is wrong nobody is told, and
the time it takes does not say it either. Stateless but for the exchange.
"""

import hashlib
import hmac
import secrets
from collections.abc import Callable
from typing import ClassVar, Final

from ottla.config.errors import ConfigError
from ottla.security.sasl.jaas import JaasEntry, check_mechanism, username_and_password, utf8
from ottla.security.sasl.mechanisms import PLAIN, SaslError

# (name, password) -> True if they belong together, and whatever else if not. It compares in constant time.
PlainCredentials = Callable[[str, str], bool]

# A name, twice, and a password; tokens that are passed as passwords are the longest.
MAX_RESPONSE_BYTES: Final = 1 << 16
USER_PREFIX: Final = "user_"
_TOKENS: Final = 3
_UTF8_NUL: Final = b"\0"


class PlainSaslServer:
    """One exchange: a message, and the answer is empty."""

    def __init__(self, credentials: PlainCredentials, *, is_slow: bool = False) -> None:
        """`is_slow` says that whoever knows the credentials may take a while."""
        self.complete = False
        self.is_slow = is_slow
        self.authorization_id = ""
        self.token_authenticated = False
        self.expires_at_ms: int | None = None
        self._credentials = credentials
        self._over = False

    def evaluate(self, response: bytes) -> bytes:
        if self._over:
            raise SaslError(PLAIN, "a response after the end of the exchange")
        self._over = True
        authzid, username, password = _split(response)
        if not username:
            raise _failed("username not specified")
        if not password:
            raise _failed("password not specified")
        try:
            known = self._credentials(username, password)
        except Exception as error:
            raise _failed("credentials for user could not be verified", type(error).__name__) from error
        if known is not True:  # a coroutine of an operator's own code would be a yes to everybody
            raise _failed("Invalid username or password", f"wrong password or unknown user {username!r}")
        # Only now: whoever does not know the password learns nothing about names.
        if authzid and authzid != username:
            words = "Client requested an authorization id that is different from username"
            raise _failed(words, f"{username!r} asked to be {authzid!r}")
        self.authorization_id = username
        self.complete = True
        return b""


def _split(response: bytes) -> list[str]:
    if len(response) > MAX_RESPONSE_BYTES:
        raise _failed("Invalid username or password", f"a response of {len(response)} bytes")
    tokens = response.split(_UTF8_NUL, _TOKENS)
    if len(tokens) != _TOKENS:
        words = f"Invalid SASL/PLAIN response: expected {_TOKENS} tokens, got {len(tokens)}"
        raise SaslError(PLAIN, words, words)
    try:
        return [token.decode() for token in tokens]
    except UnicodeDecodeError:
        raise _failed("Invalid username or password", "a response that is not UTF-8") from None


def _failed(what: str, reason: str | None = None) -> SaslError:
    return SaslError(PLAIN, reason or what, f"Authentication failed: {what}")


class JaasUsers:
    """The users that a broker's JAAS text names: user_alice="secret" (PlainServerCallbackHandler)."""

    def __init__(self, entry: JaasEntry) -> None:
        check_mechanism(entry, PLAIN)
        # Digests under a key of this process: all are of one length, and no password is kept.
        self._key = secrets.token_bytes()
        self._digests = {
            name.removeprefix(USER_PREFIX): self._digest(password)
            for name, password in entry.options.items()
            if name.startswith(USER_PREFIX)
        }
        self._nobody = secrets.token_bytes(hashlib.sha256().digest_size)

    def __call__(self, username: str, password: str) -> bool:
        expected = self._digests.get(username, self._nobody)
        return hmac.compare_digest(expected, self._digest(password))

    def _digest(self, password: str) -> bytes:
        return hmac.digest(self._key, password.encode(errors="surrogatepass"), "sha256")


class PlainSaslClient:
    """The client's side, complete with its only message."""

    is_slow: ClassVar[bool] = False

    def __init__(self, username: str, password: str) -> None:
        if "\0" in username or "\0" in password:
            raise ConfigError("a user name or password of PLAIN with a NUL in it cannot be sent")
        self.complete = False
        self._message = _UTF8_NUL.join((b"", utf8("user name", username), utf8("password", password)))

    @classmethod
    def from_jaas(cls, entry: JaasEntry) -> "PlainSaslClient":
        check_mechanism(entry, PLAIN)
        return cls(*username_and_password(entry))

    def evaluate(self, challenge: bytes | None) -> bytes | None:
        if challenge or self.complete:
            raise SaslError(PLAIN, "a challenge", "The server of PLAIN sent a challenge, which it has not to")
        self.complete = True
        return self._message
