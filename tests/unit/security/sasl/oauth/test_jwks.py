"""Keys that are fetched anew: in time, early for a key that is new, and not more often than their back-off."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.interop.process import wait_until
from tests.support.certificates import Authority
from tests.support.identity_provider import AUDIENCE, ISSUER, IdentityProvider

from ottla.config.broker import BrokerConfig
from ottla.config.errors import ConfigError
from ottla.security.sasl.oauth import jwks
from ottla.security.sasl.oauth.http import ALLOWED_URLS
from ottla.security.sasl.oauth.jwks import URL_KEY, RefreshingJwks, jwks_of, validator_of
from ottla.security.sasl.oauthbearer import InvalidTokenError

PATIENCE_S = 30.0


class Time:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def provider(tmp_path: Path) -> Iterator[IdentityProvider]:
    with IdentityProvider(Authority(tmp_path)) as made:
        yield made


@pytest.fixture
def started() -> Iterator[Callable[..., RefreshingJwks]]:
    made: list[RefreshingJwks] = []

    def start(provider: IdentityProvider, time: Time | None = None, **settings: Any) -> RefreshingJwks:
        get = settings_of(provider, **settings)
        options = {
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(provider.authority.certificate),
        }
        keys = jwks_of(get, options, provider.environment())
        if time is not None:
            keys._monotonic = time
        made.append(keys)
        keys.start()
        return keys

    yield start
    for keys in made:
        keys.close()


def settings_of(provider: IdentityProvider, **settings: Any) -> Callable[[str], Any]:
    given = {f"sasl.oauthbearer.{name.replace('_', '.')}": value for name, value in settings.items()}
    return BrokerConfig.of(
        {
            "log.dirs": "/d",
            URL_KEY: provider.jwks_url,
            "sasl.oauthbearer.expected.audience": AUDIENCE,
            "sasl.oauthbearer.expected.issuer": ISSUER,
            **given,
        }
    ).__getitem__


def fetched(keys: RefreshingJwks, before: int) -> Callable[[], bool]:
    return lambda: keys._fetches > before


def test_tokens_are_checked_by_them(
    provider: IdentityProvider, started: Callable[..., RefreshingJwks]
) -> None:
    keys = started(provider)
    validate = validator_of(settings_of(provider), keys, lambda: int(provider_now() * 1000))
    assert validate(provider.token()).principal_name == "alice"
    with pytest.raises(InvalidTokenError):
        validate(provider.token(aud="others"))
    assert provider.asked["/jwks"] == 1


def provider_now() -> float:
    import time

    return time.time()


def test_unknown_keys_by_the_thousand_cause_one_fetch(
    provider: IdentityProvider, started: Callable[..., RefreshingJwks]
) -> None:
    time = Time()
    keys = started(provider, time)
    time.now += 11  # the back-off of the first is over
    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(keys.key_for, [f"unknown-{number}" for number in range(2_000)])) == {None}
    wait_until(fetched(keys, 0), PATIENCE_S, "the one fetch")
    assert keys.key_for(provider.key_id) is not None
    assert provider.asked["/jwks"] == 2
    # Asked for, and due when its back-off is over: not before.
    time.now += 9
    with keys._changed:
        keys._changed.notify_all()
    assert keys.key_for("unknown") is None
    assert provider.asked["/jwks"] == 2
    time.now += 2
    assert keys.key_for("unknown") is None
    wait_until(fetched(keys, 1), PATIENCE_S, "the next one")
    assert provider.asked["/jwks"] == 3


def test_who_comes_with_a_new_key_waits_for_it(
    provider: IdentityProvider, started: Callable[..., RefreshingJwks]
) -> None:
    time = Time()
    keys = started(provider, time)
    time.now += 11
    assert keys.key_for(provider.new_key()) is not None


def test_few_wait_and_the_others_are_refused_at_once(
    provider: IdentityProvider, started: Callable[..., RefreshingJwks], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jwks, "MAX_WAIT_S", PATIENCE_S)
    time, go_on = Time(), threading.Event()
    keys = started(provider, time)

    def held() -> tuple[int, dict[str, Any]]:
        go_on.wait(PATIENCE_S)
        return 200, provider.jwks()

    provider.instead["/jwks"] = held
    time.now += 11
    with ThreadPoolExecutor(jwks.MAX_WAITING) as threads:
        waiting = [threads.submit(keys.key_for, "new") for _ in range(jwks.MAX_WAITING)]
        wait_until(lambda: keys._waiting == jwks.MAX_WAITING, PATIENCE_S, "two to wait")
        for number in range(100):
            assert keys.key_for(f"unknown-{number}") is None
        assert keys.key_for(provider.key_id) is not None  # who is known waits for nobody
        assert not any(each.done() for each in waiting)
        go_on.set()
        assert [each.result() for each in waiting] == [None, None]


def test_they_are_fetched_in_time_and_a_failure_leaves_those_that_are_known(
    provider: IdentityProvider, started: Callable[..., RefreshingJwks], caplog: pytest.LogCaptureFixture
) -> None:
    time = Time()
    keys = started(provider, time, jwks_endpoint_refresh_ms=60_000)
    first = provider.key_id
    provider.instead["/jwks"] = lambda: (500, b"")
    time.now += 61
    keys.key_for("x")  # the thread sleeps by the real clock: wake it
    wait_until(fetched(keys, 0), PATIENCE_S, "the refresh")
    assert "those that are known are used" in caplog.text
    assert keys.key_for(first) is not None
    provider.instead["/jwks"] = lambda: (200, b"no JSON")
    before = keys._fetches
    time.now += 61
    keys.key_for("x")
    wait_until(fetched(keys, before), PATIENCE_S, "the next refresh")
    assert keys.key_for(first) is not None
    del provider.instead["/jwks"]
    provider.keys.clear()
    second = provider.new_key()
    before = keys._fetches
    time.now += 61
    keys.key_for("x")
    wait_until(fetched(keys, before), PATIENCE_S, "the last refresh")
    assert keys.key_for(first) is None
    assert keys.key_for(second) is not None


@pytest.mark.parametrize("answer", [(404, b""), (200, b"no JSON"), (200, {"keys": []})])
def test_a_provider_without_keys_keeps_the_listener_closed(
    provider: IdentityProvider, started: Callable[..., RefreshingJwks], answer: tuple[int, Any]
) -> None:
    provider.instead["/jwks"] = lambda: answer
    with pytest.raises(ConfigError, match=URL_KEY):
        started(provider, jwks_endpoint_retry_backoff_max_ms=1)


def test_keys_of_a_file(provider: IdentityProvider, tmp_path: Path) -> None:
    import json

    file = tmp_path / "jwks.json"
    file.write_text(json.dumps(provider.jwks()))
    get = BrokerConfig.of({"log.dirs": "/d", URL_KEY: file.as_uri()}).__getitem__
    with pytest.raises(ConfigError, match=ALLOWED_URLS):
        jwks_of(get, {}, {})
    keys = jwks_of(get, {}, {ALLOWED_URLS: file.as_uri()})
    keys.start()
    try:
        assert keys.key_for(provider.key_id) is not None
    finally:
        keys.close()


def test_without_keys_nobody_is_believed() -> None:
    with pytest.raises(ConfigError, match=f"{URL_KEY} is not set"):
        jwks_of(BrokerConfig.of({"log.dirs": "/d"}).__getitem__, {}, {})


def test_keys_that_are_never_due_are_fetched_when_they_are_asked_for(
    provider: IdentityProvider, started: Callable[..., RefreshingJwks]
) -> None:
    time = Time()
    keys = started(provider, time, jwks_endpoint_refresh_ms=2**63 - 1)
    new = provider.new_key()
    time.now += 11
    assert keys.key_for(new) is not None
    assert provider.asked["/jwks"] == 2


@pytest.mark.parametrize("refresh_ms", [0, -1])
def test_keys_are_not_fetched_all_the_time(provider: IdentityProvider, refresh_ms: int) -> None:
    get = settings_of(provider, jwks_endpoint_refresh_ms=refresh_ms)
    with pytest.raises(ConfigError, match="is no time between two fetches"):
        jwks_of(get, {}, provider.environment())
