"""What every SASL mechanism looks like from outside: SaslServer, SaslClient, SaslError, and the table of mechanisms.

Rules: an exchange is bytes in, bytes out; it knows no socket, no file and no clock. Nothing but SaslError comes out of
`evaluate`, whatever a peer sends; after one, the exchange is over. One exchange belongs to one connection.
"""

from typing import Final, NamedTuple, Protocol

from ottla.model.errors import ErrorCode, KafkaError

PLAIN: Final = "PLAIN"
SCRAM_SHA_256: Final = "SCRAM-SHA-256"
SCRAM_SHA_512: Final = "SCRAM-SHA-512"
OAUTHBEARER: Final = "OAUTHBEARER"
GSSAPI: Final = "GSSAPI"

# Names that a stranger claims to have are in it.
MAX_REASON_LENGTH: Final = 500

_PLAIN_LOGIN: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
_SCRAM_LOGIN: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"
_OAUTH_LOGIN: Final = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
_KERBEROS_LOGIN: Final = "com.sun.security.auth.module.Krb5LoginModule"


class SaslMechanism(NamedTuple):
    """A mechanism by the name that SaslHandshake has, and the login module that a JAAS text names for it."""

    name: str
    login_module: str


MECHANISMS: Final = {
    mechanism.name: mechanism
    for mechanism in (
        SaslMechanism(PLAIN, _PLAIN_LOGIN),
        SaslMechanism(SCRAM_SHA_256, _SCRAM_LOGIN),
        SaslMechanism(SCRAM_SHA_512, _SCRAM_LOGIN),
        SaslMechanism(OAUTHBEARER, _OAUTH_LOGIN),
        SaslMechanism(GSSAPI, _KERBEROS_LOGIN),
    )
}
LOGIN_MODULES: Final = frozenset(mechanism.login_module for mechanism in MECHANISMS.values())


class SaslError(KafkaError):
    """An exchange that failed: SaslException, or SaslAuthenticationException where it has words of its own.

    The message is for the peer, and without words of its own tells it nothing: neither which part was wrong nor
    whether there is such a user. `reason` is for the log only, and has no secret in it either.
    """

    def __init__(
        self, mechanism: str, reason: str, words: str | None = None, *, retriable: bool = False
    ) -> None:
        super().__init__(ErrorCode.SASL_AUTHENTICATION_FAILED, words or _words(mechanism, "authentication"))
        self.mechanism = mechanism
        self.reason = reason if len(reason) <= MAX_REASON_LENGTH else reason[: MAX_REASON_LENGTH - 1] + "…"
        # Kerberos only: the same client may well succeed in a moment, so it is not to be told that it failed.
        self.retriable = retriable
        self._own_words = words

    def message_for(self, *, reauthenticating: bool) -> str:
        """What SaslAuthenticate answers; the common words say which of the two has failed (KIP-368)."""
        return self._own_words or _words(
            self.mechanism, "re-authentication" if reauthenticating else "authentication"
        )


def _words(mechanism: str, what: str) -> str:
    return f"Authentication failed during {what} due to invalid credentials with SASL mechanism {mechanism}"


class SaslServer(Protocol):
    """The broker's side of one exchange. Until `complete`, the other attributes say nothing about anybody."""

    @property
    def is_slow(self) -> bool:
        """The next `evaluate` may wait, or work for more than a millisecond: it is to be called in a thread."""

    complete: bool
    # The user's name.
    authorization_id: str
    # By a delegation token, which its owner is known by.
    token_authenticated: bool
    # When the token that was shown expires; None for credentials that do not.
    expires_at_ms: int | None

    def evaluate(self, response: bytes) -> bytes:
        """The challenge that answers a client's response, which may be empty."""


class SaslClient(Protocol):
    """The client's side of one exchange.

    What `evaluate` returns is sent, and its answer evaluated in turn, until the exchange is complete. It may be
    complete with a response still to be sent: the server's answer to that says no more than that it agrees.
    """

    @property
    def is_slow(self) -> bool:
        """As on the server."""

    @property
    def complete(self) -> bool: ...

    def evaluate(self, challenge: bytes | None) -> bytes | None:
        """The response to a challenge, None for the first; None if there is nothing more to say."""
