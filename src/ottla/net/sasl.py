"""SaslClientAuthenticator: a connection proves who it is, and again before its session ends (KIP-368).

Rules: as everything of a connection, without I/O and without a clock; what takes long, or waits for a KDC or an
identity provider, is given to the driver as a SlowStep. What the other side refuses is KafkaError in its own words;
secrets are the exchange's, and come out of it only as tokens.
"""

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, Final, NamedTuple

from ottla.model.errors import ErrorCode, KafkaError, error_of
from ottla.net.connection import ApiRanges, SlowStep, Step
from ottla.security.channels import ChannelSecurity
from ottla.security.sasl.mechanisms import SaslClient
from ottla.wire.messages.security.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

# When it is proved again, as a share of the session: not all of a cluster's connections at once.
REAUTHENTICATE_FROM: Final = 0.85
REAUTHENTICATE_TO: Final = 0.95
# An exchange of any mechanism has fewer steps: a node that goes on for ever is not one.
MAX_STEPS: Final = 16


class _Worked(NamedTuple):
    """What a slow step has come to."""

    exchange: SaslClient
    token: bytes | None


class SaslClientAuthenticator:
    """Proves by one mechanism, as often as it is asked to, who this connection is (Authenticator)."""

    def __init__(
        self, mechanism: str, new_exchange: Callable[[], SaslClient], random: Random | None = None
    ) -> None:
        """`new_exchange` has the credentials of the moment: they may be others the next time. It waits for nothing."""
        self._mechanism = mechanism
        self._new_exchange = new_exchange
        self._random = random or Random()  # jitter, not security
        self._ranges = ApiRanges({})
        self._exchange: SaslClient | None = None
        self._steps = 0
        self._lifetime_ms = 0
        self.reauthenticate_after_ms: float | None = None

    def begin(self, ranges: ApiRanges) -> tuple[Any, int]:
        self._ranges = ranges
        self._exchange = None
        self._steps = 0
        request = SaslHandshakeRequest(mechanism=self._mechanism)
        version = ranges.version_for(SaslHandshakeRequest)
        if version < 1:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                "it takes SASL tokens without requests only, as before Kafka 1.0",
            )
        return request, version

    def step(self, response: Any) -> Step:
        if isinstance(response, SaslHandshakeResponse):
            return self._after_handshake(response)
        return self._after_token(response)

    def worked(self, result: _Worked) -> Step:
        return self._after_evaluation(result.exchange, result.token)

    def _after_handshake(self, response: SaslHandshakeResponse) -> Step:
        if response.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
            known = ", ".join(response.mechanisms) or "none"
            raise KafkaError(
                ErrorCode.UNSUPPORTED_SASL_MECHANISM,
                f"SASL mechanism {self._mechanism} is not enabled there; these are: {known}",
            )
        if response.error_code:
            raise _refused(self._mechanism, response.error_code, None)
        exchange = self._exchange = self._new_exchange()
        return self._evaluate(exchange, None)

    def _after_token(self, response: SaslAuthenticateResponse) -> Step:
        if response.error_code:
            raise _refused(self._mechanism, response.error_code, response.error_message)
        exchange = self._exchange
        assert exchange is not None
        self._lifetime_ms = response.session_lifetime_ms
        if exchange.complete:
            self._through()
            return None
        return self._evaluate(exchange, bytes(response.auth_bytes))

    def _evaluate(self, exchange: SaslClient, challenge: bytes | None) -> Step:
        if exchange.is_slow:
            return SlowStep(lambda: _Worked(exchange, exchange.evaluate(challenge)))
        return self._after_evaluation(exchange, exchange.evaluate(challenge))

    def _after_evaluation(self, exchange: SaslClient, token: bytes | None) -> Step:
        if token is not None:
            return self._send(token)
        if not exchange.complete:
            raise KafkaError(
                ErrorCode.SASL_AUTHENTICATION_FAILED, f"{self._mechanism} came to no end on this side"
            )
        self._through()
        return None

    def _through(self) -> None:
        self._exchange = None
        share = self._random.uniform(REAUTHENTICATE_FROM, REAUTHENTICATE_TO)
        self.reauthenticate_after_ms = self._lifetime_ms * share if self._lifetime_ms > 0 else None

    def _send(self, token: bytes) -> tuple[Any, int]:
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise KafkaError(
                ErrorCode.SASL_AUTHENTICATION_FAILED, f"{self._mechanism} comes to no end: {MAX_STEPS} steps"
            )
        request = SaslAuthenticateRequest(auth_bytes=token)
        return request, self._ranges.version_for(SaslAuthenticateRequest)


def authenticator_of(security: ChannelSecurity) -> Callable[[str], SaslClientAuthenticator] | None:
    """What makes the authenticator of a connection to a host; None where nobody asks who it is."""
    new_exchange = security.new_exchange
    if new_exchange is None:
        return None
    return lambda host: SaslClientAuthenticator(security.mechanism, partial(new_exchange, host))


def _refused(mechanism: str, code: int, message: str | None) -> KafkaError:
    """In the words of the other side, where it has any."""
    error = error_of(code)
    words = message or f"{mechanism} authentication failed with error {code if error is None else error.name}"
    return KafkaError(error or ErrorCode.UNKNOWN_SERVER_ERROR, words)
