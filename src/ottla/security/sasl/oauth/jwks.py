"""The keys of an identity provider, kept up to date (RefreshingHttpsJwks, JwksFileVerificationKeyResolver).

Rules: keys are fetched before the listener opens, then every sasl.oauthbearer.jwks.endpoint.refresh.ms, by one thread;
what cannot be fetched leaves the keys that are known. A token of a key that is not known has them fetched early, but
not before the last attempt is as old as its back-off: thousands of such tokens cause one fetch. A few of those who ask
wait for it, a moment, since the provider may just have changed its keys; the others are refused at once.

Owner: a listener with OAUTHBEARER; key_for is called in its threads.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from ottla.config.errors import ConfigError
from ottla.model.tasks import guarded, report
from ottla.security.sasl.oauth.http import Endpoint, FetchError, allowed_url, https_context, retrying
from ottla.security.sasl.oauth.jwt import (
    MAX_JWKS_LENGTH,
    JwksError,
    JwkSet,
    JwtValidator,
    VerificationKey,
    parse_jwks,
)

logger = logging.getLogger("ottla.security")

URL_KEY: Final = "sasl.oauthbearer.jwks.endpoint.url"
REFRESH_KEY: Final = "sasl.oauthbearer.jwks.endpoint.refresh.ms"
# How many wait for a fetch that was asked for early, and how long.
MAX_WAITING: Final = 2
MAX_WAIT_S: Final = 2.0
# For which a thread waits at once: a refresh that is due in centuries is more than the system can wait for.
LONGEST_WAIT_S: Final = 3600.0
_OWNER: Final = "an identity provider's keys"


class RefreshingJwks:
    """A JwkSet that is fetched anew."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        refresh_ms: int,
        backoff_ms: int,
        backoff_max_ms: int,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._endpoint = endpoint
        self._refresh_s = refresh_ms / 1000
        self._backoff_ms = backoff_ms
        self._backoff_max_ms = backoff_max_ms
        self._monotonic = monotonic
        self._keys = JwkSet([])
        self._changed = threading.Condition()
        self._asked = self._closed = False
        self._waiting = self._fetches = self._failures = 0
        self._fetched_at = float("-inf")

    def start(self) -> None:
        """Fetch them, and keep at it; ConfigError if they cannot be had."""
        try:
            self._keys = retrying(self._fetch, self._backoff_ms, self._backoff_max_ms)
        except FetchError as error:
            raise ConfigError(f"{URL_KEY}: {error}", URL_KEY) from None
        self._fetched_at = self._monotonic()
        run = guarded(self._run, name="fetching them", owner=_OWNER)
        threading.Thread(target=run, name="ottla-jwks", daemon=True).start()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def key_for(self, key_id: str | None) -> VerificationKey | None:
        """KeyFor: of the keys that are known, or of those that there are now."""
        found = self._keys.key_for(key_id)
        if found is not None or key_id is None:
            return found
        with self._changed:
            self._asked = True
            self._changed.notify_all()
            if self._closed or self._waiting >= MAX_WAITING or self._due_in_s() > 0:
                return self._keys.key_for(key_id)
            self._waiting += 1
            before = self._fetches
            self._changed.wait_for(lambda: self._closed or self._fetches != before, MAX_WAIT_S)
            self._waiting -= 1
        return self._keys.key_for(key_id)

    def _due_in_s(self) -> float:
        """Until the next fetch; one that was asked for early may begin when the back-off of the last is over."""
        pause_s = self._refresh_s
        if self._asked:
            pause_s = min(pause_s, self._backoff_max_ms / 1000)
        if self._failures:
            backoff_s = self._backoff_ms / 1000 * 2 ** min(self._failures - 1, 32)
            pause_s = min(self._refresh_s, backoff_s, self._backoff_max_ms / 1000)
        return self._fetched_at + pause_s - self._monotonic()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._closed and (due_s := self._due_in_s()) > 0:
                    self._changed.wait(min(due_s, LONGEST_WAIT_S))
                if self._closed:
                    return
            self._refresh()

    def _refresh(self) -> None:
        keys = None
        try:
            keys = self._fetch()
        except FetchError as error:
            logger.warning("the keys could not be fetched, those that are known are used: %s", error)
        except Exception as error:  # noqa: BLE001 - the thread's own boundary
            report(error, name="fetching them", owner=_OWNER)
        with self._changed:
            if keys is not None:
                self._keys = keys
            self._failures = 0 if keys is not None else self._failures + 1
            self._asked = False
            self._fetched_at = self._monotonic()
            self._fetches += 1
            self._changed.notify_all()

    def _fetch(self) -> JwkSet:
        try:
            return parse_jwks(self._endpoint.get(MAX_JWKS_LENGTH))
        except JwksError as error:
            raise FetchError(f"{self._endpoint}: {error}") from None


def jwks_of(
    get: Callable[[str], Any], options: Mapping[str, str], environ: Mapping[str, str]
) -> RefreshingJwks:
    """The keys that a broker's settings name, not fetched yet; ConfigError. `options` are those of its JAAS text."""
    url = get(URL_KEY)
    if not url:
        raise ConfigError(
            f"{URL_KEY} is not set: without an identity provider's keys, anybody's token would be believed",
            URL_KEY,
        )
    checked = allowed_url(URL_KEY, url.strip(), environ)
    refresh_ms = get(REFRESH_KEY)
    if refresh_ms <= 0:
        raise ConfigError(f"{REFRESH_KEY}: {refresh_ms} is no time between two fetches", REFRESH_KEY)
    context = https_context(options) if checked.scheme == "https" else None
    timeouts = get("sasl.login.connect.timeout.ms"), get("sasl.login.read.timeout.ms")
    return RefreshingJwks(
        Endpoint(checked, context, *timeouts),
        refresh_ms=refresh_ms,
        backoff_ms=get("sasl.oauthbearer.jwks.endpoint.retry.backoff.ms"),
        backoff_max_ms=get("sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms"),
    )


def validator_of(get: Callable[[str], Any], keys: RefreshingJwks, now_ms: Callable[[], int]) -> JwtValidator:
    """BrokerJwtValidator, by a broker's settings."""
    return JwtValidator(
        keys.key_for,
        now_ms=now_ms,
        expected_issuer=get("sasl.oauthbearer.expected.issuer") or None,
        expected_audiences=get("sasl.oauthbearer.expected.audience"),
        clock_skew_seconds=get("sasl.oauthbearer.clock.skew.seconds"),
        scope_claim_name=get("sasl.oauthbearer.scope.claim.name"),
        sub_claim_name=get("sasl.oauthbearer.sub.claim.name"),
    )
