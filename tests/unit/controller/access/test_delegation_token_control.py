"""Delegation tokens: who gets one, how long it lasts, and who may change that."""

from dataclasses import replace

import pytest
from tests.unit.controller.support import Cluster

from ottla.controller.access.delegation_token_control import (
    MAX_RECORDS_PER_EXPIRATION,
    TokenSettings,
    create_delegation_token,
    expire_delegation_token,
    renew_delegation_token,
    sweep_expired_tokens,
)
from ottla.controller.result import RequestContext
from ottla.metadata import records as r
from ottla.model.errors import ErrorCode
from ottla.model.time_slice import run_to_end
from ottla.security.delegation_tokens import TokenHmacs
from ottla.security.principal import KafkaPrincipal
from ottla.wire.codec import encode
from ottla.wire.messages.security import tokens as m

NOW = 1_000_000
HOUR = 3_600_000
KEY = "the-secret-key"
SETTINGS = TokenSettings(TokenHmacs(KEY), 10 * HOUR, 2 * HOUR, HOUR)
ALICE, BOB = KafkaPrincipal("User", "alice"), KafkaPrincipal("User", "bob")
CAROL = KafkaPrincipal("User", "carol")


def by(principal: KafkaPrincipal, version: int = 3) -> RequestContext:
    return RequestContext(version, principal=principal)


def create(
    cluster: Cluster,
    context: RequestContext | None = None,
    settings: TokenSettings = SETTINGS,
    *,
    token_id: str = "token-1",
    now_ms: int = NOW,
    renewers: tuple[tuple[str, str], ...] = (),
    max_lifetime_ms: int = -1,
    owner: tuple[str | None, str | None] = ("", ""),
) -> m.CreateDelegationTokenResponse:
    request = m.CreateDelegationTokenRequest(
        owner_principal_type=owner[0],
        owner_principal_name=owner[1],
        renewers=[m.CreatableRenewers(principal_type=t, principal_name=n) for t, n in renewers],
        max_lifetime_ms=max_lifetime_ms,
    )
    context = context or by(ALICE)
    result = create_delegation_token(cluster.rules, request, context, settings, token_id, now_ms)
    cluster.take(result)
    encode(result.response, context.api_version)  # every version can say it
    return result.response


def renew(
    cluster: Cluster, hmac: bytes, principal: KafkaPrincipal = ALICE, period_ms: int = -1, now_ms: int = NOW
) -> tuple[int, int]:
    request = m.RenewDelegationTokenRequest(hmac=hmac, renew_period_ms=period_ms)
    result = run_to_end(
        renew_delegation_token(cluster.rules, request, by(principal), SETTINGS, now_ms=now_ms)
    )
    cluster.take(result)
    return result.response.error_code, result.response.expiry_timestamp_ms


def expire(
    cluster: Cluster, hmac: bytes, principal: KafkaPrincipal = ALICE, period_ms: int = -1, now_ms: int = NOW
) -> tuple[int, int]:
    request = m.ExpireDelegationTokenRequest(hmac=hmac, expiry_time_period_ms=period_ms)
    result = run_to_end(
        expire_delegation_token(cluster.rules, request, by(principal), SETTINGS, now_ms=now_ms)
    )
    cluster.take(result)
    return result.response.error_code, result.response.expiry_timestamp_ms


def test_a_token_is_its_requesters() -> None:
    cluster = Cluster(1)
    token = create(cluster, renewers=(("User", "bob"),))
    assert (token.error_code, token.principal_type, token.principal_name) == (0, "User", "alice")
    assert (token.token_requester_principal_type, token.token_requester_principal_name) == ("User", "alice")
    assert (token.issue_timestamp_ms, token.expiry_timestamp_ms) == (NOW, NOW + 2 * HOUR)
    assert (token.max_timestamp_ms, token.token_id) == (NOW + 10 * HOUR, "token-1")
    assert cluster.image.delegation_tokens["token-1"] == r.DelegationTokenRecord(
        owner="User:alice",
        requester="User:alice",
        renewers=["User:bob"],
        issue_timestamp=NOW,
        max_timestamp=NOW + 10 * HOUR,
        expiration_timestamp=NOW + 2 * HOUR,
        token_id="token-1",
    )


def test_the_hmac_is_as_kafkas() -> None:
    """HmacSHA512 over the id, as `Mac.getInstance("HmacSHA512")` gives it."""
    assert TokenHmacs("key").hmac_of("The quick brown fox jumps over the lazy dog").hex() == (
        "b42af09057bac1e2d41708e48a902e09b5ff7f12ab428a4fe86653c73dd248fb"
        "82f948a549f7b791a5b41915ee4d1ec3935357e4e2317250d0372afa2ebeeb3a"
    )


def test_a_token_for_somebody_else() -> None:
    cluster = Cluster(1)
    token = create(cluster, owner=("User", "carol"))
    assert (token.principal_name, token.token_requester_principal_name) == ("carol", "alice")
    kept = cluster.image.delegation_tokens["token-1"]
    assert (kept.owner, kept.requester) == ("User:carol", "User:alice")
    # Whoever has asked for it has no more to say.
    assert renew(cluster, token.hmac)[0] == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
    assert renew(cluster, token.hmac, CAROL)[0] == 0


@pytest.mark.parametrize("version", [1, 2, 3])
def test_every_version_has_an_answer(version: int) -> None:
    token = create(Cluster(1), by(ALICE, version))
    assert token.error_code == 0
    assert token.token_requester_principal_name == ("alice" if version == 3 else "")


@pytest.mark.parametrize(
    ("asked_ms", "max_ms", "expires_ms"),
    [
        (-1, 10 * HOUR, 2 * HOUR),
        (0, 10 * HOUR, 2 * HOUR),
        (HOUR, HOUR, HOUR),
        (3 * HOUR, 3 * HOUR, 2 * HOUR),
        (2**63 - 1, 10 * HOUR, 2 * HOUR),
        (-(2**63), 10 * HOUR, 2 * HOUR),
    ],
)
def test_how_long_it_lasts(asked_ms: int, max_ms: int, expires_ms: int) -> None:
    token = create(Cluster(1), max_lifetime_ms=asked_ms)
    assert token.max_timestamp_ms == NOW + max_ms
    assert token.expiry_timestamp_ms == NOW + expires_ms


def test_for_ever_fits_into_a_timestamp() -> None:
    settings = replace(SETTINGS, max_lifetime_ms=2**63 - 1, expiry_time_ms=2**63 - 1)
    token = create(Cluster(1), settings=settings)
    assert (token.max_timestamp_ms, token.expiry_timestamp_ms) == (2**63 - 1, 2**63 - 1)


@pytest.mark.parametrize(
    ("context", "more", "code"),
    [
        (
            by(ALICE._replace(token_authenticated=True)),
            {},
            ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED,
        ),
        (by(ALICE), {"settings": replace(SETTINGS, hmacs=None)}, ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED),
        (by(ALICE), {"renewers": (("User", "bob"), ("Group", "g"))}, ErrorCode.INVALID_PRINCIPAL_TYPE),
        (by(ALICE), {"owner": (None, "carol")}, ErrorCode.INVALID_PRINCIPAL_TYPE),
        (by(ALICE), {"owner": ("a:b", "carol")}, ErrorCode.INVALID_PRINCIPAL_TYPE),
    ],
)
@pytest.mark.parametrize("version", [1, 3])
def test_who_gets_none(
    context: RequestContext, more: dict[str, object], code: ErrorCode, version: int
) -> None:
    cluster = Cluster(1)
    before = cluster.image
    answer = create(cluster, context._replace(api_version=version), **more)  # type: ignore[arg-type]
    assert (answer.error_code, answer.token_id, answer.hmac) == (code, "", b"")
    assert cluster.image is before


def test_an_old_metadata_version_knows_no_tokens() -> None:
    cluster = Cluster(1, elr=False)
    cluster.apply(r.FeatureLevelRecord(name="metadata.version", feature_level=13))
    assert create(cluster).error_code == ErrorCode.UNSUPPORTED_VERSION
    assert renew(cluster, b"x")[0] == expire(cluster, b"x")[0] == ErrorCode.UNSUPPORTED_VERSION
    cluster.apply(r.FeatureLevelRecord(name="metadata.version", feature_level=14))
    assert create(cluster).error_code == 0


def test_renewing() -> None:
    cluster = Cluster(1)
    token = create(cluster, renewers=(("User", "bob"),))
    later = NOW + HOUR
    assert renew(cluster, token.hmac, now_ms=later) == (0, later + 2 * HOUR)
    assert renew(cluster, token.hmac, BOB, period_ms=HOUR, now_ms=later) == (0, later + HOUR)
    assert renew(cluster, token.hmac, period_ms=9 * HOUR, now_ms=later) == (0, later + 2 * HOUR)
    kept = cluster.image.delegation_tokens["token-1"]
    assert (kept.expiration_timestamp, kept.renewers, kept.owner) == (
        later + 2 * HOUR,
        ["User:bob"],
        "User:alice",
    )
    # Step by step up to its maximum, and no further.
    now_ms = later
    while now_ms < NOW + 9 * HOUR:
        now_ms += HOUR
        code, expires_ms = renew(cluster, token.hmac, now_ms=now_ms)
        assert (code, expires_ms) == (0, min(now_ms + 2 * HOUR, NOW + 10 * HOUR))
    assert renew(cluster, token.hmac, now_ms=NOW + 10 * HOUR) == (0, NOW + 10 * HOUR)
    assert renew(cluster, token.hmac, now_ms=NOW + 10 * HOUR + 1)[0] == ErrorCode.DELEGATION_TOKEN_EXPIRED


def test_ending() -> None:
    cluster = Cluster(1)
    token = create(cluster, renewers=(("User", "bob"),))
    assert expire(cluster, token.hmac, period_ms=HOUR) == (0, NOW + HOUR)
    assert expire(cluster, token.hmac, BOB, period_ms=2**63 - 1) == (0, NOW + 10 * HOUR)
    assert expire(cluster, token.hmac, period_ms=0) == (0, NOW)
    assert cluster.image.delegation_tokens["token-1"].expiration_timestamp == NOW
    assert expire(cluster, token.hmac, period_ms=5, now_ms=NOW + 1)[0] == ErrorCode.DELEGATION_TOKEN_EXPIRED
    # At once also what has expired.
    assert expire(cluster, token.hmac, now_ms=NOW + 1) == (0, NOW + 1)
    assert len(cluster.image.delegation_tokens) == 0
    assert expire(cluster, token.hmac)[0] == ErrorCode.DELEGATION_TOKEN_NOT_FOUND


def test_who_may_change_it() -> None:
    cluster = Cluster(1)
    token = create(cluster, renewers=(("User", "bob"),))
    before = cluster.image
    assert renew(cluster, token.hmac, CAROL) == (ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH, 0)
    assert expire(cluster, token.hmac, CAROL) == (ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH, 0)
    # Kafka looks at the time first where it renews, and at the owner where it ends.
    late = NOW + 20 * HOUR
    assert renew(cluster, token.hmac, CAROL, now_ms=late)[0] == ErrorCode.DELEGATION_TOKEN_EXPIRED
    assert expire(cluster, token.hmac, CAROL, 5, late)[0] == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
    for wrong in (b"", b"x", token.hmac[:-1], TokenHmacs("another").hmac_of("token-1")):
        assert renew(cluster, wrong)[0] == ErrorCode.DELEGATION_TOKEN_NOT_FOUND
        assert expire(cluster, wrong)[0] == ErrorCode.DELEGATION_TOKEN_NOT_FOUND
    with_token = ALICE._replace(token_authenticated=True)
    assert renew(cluster, token.hmac, with_token)[0] == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    assert expire(cluster, token.hmac, with_token)[0] == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    assert cluster.image is before


def test_a_token_of_another_leaders_is_found() -> None:
    """Whoever becomes active has computed nothing yet."""
    cluster = Cluster(1)
    found = [create(cluster, token_id=f"t{n}").hmac for n in range(500)]
    fresh = replace(SETTINGS, hmacs=TokenHmacs(KEY))
    request = m.RenewDelegationTokenRequest(hmac=found[123], renew_period_ms=-1)
    steps = renew_delegation_token(cluster.rules, request, by(ALICE), fresh, now_ms=NOW)
    assert next(steps) is None, "in steps"
    assert run_to_end(steps).response.error_code == 0


def test_what_is_remembered_is_bounded() -> None:
    hmacs = TokenHmacs(KEY)
    for n in range(5_000):
        hmacs.hmac_of(f"gone-{n}")
    assert run_to_end(hmacs.find(hmacs.hmac_of("gone-1"), ["there"])) is None
    assert run_to_end(hmacs.find(hmacs.hmac_of("there"), ["there"])) == "there"
    assert len(hmacs._by_id) == len(hmacs._ids) < 10


def test_the_expired_are_swept() -> None:
    cluster = Cluster(1)
    for n in range(3):
        create(cluster, token_id=f"t{n}", now_ms=NOW + n)
    swept = run_to_end(sweep_expired_tokens(cluster.rules, NOW + 2 * HOUR + 1))
    assert [record.token_id for record in swept.records] == ["t0"]  # type: ignore[union-attr]
    assert not swept.more
    cluster.take(swept)
    assert set(cluster.image.delegation_tokens) == {"t1", "t2"}
    assert run_to_end(sweep_expired_tokens(cluster.rules, NOW)).records == []


def test_many_are_swept_some_at_a_time() -> None:
    cluster = Cluster(1)
    for n in range(MAX_RECORDS_PER_EXPIRATION + 5):
        create(cluster, token_id=f"t{n}")
    rounds = []
    while True:
        swept = run_to_end(sweep_expired_tokens(cluster.rules, NOW + 20 * HOUR))
        cluster.take(swept)
        rounds.append(len(swept.records))
        if not swept.more:
            break
    assert rounds == [MAX_RECORDS_PER_EXPIRATION, 5]
    assert len(cluster.image.delegation_tokens) == 0


def test_no_secret_is_in_a_repr() -> None:
    token = create(Cluster(1))
    shown = repr([token, SETTINGS, m.RenewDelegationTokenRequest(hmac=token.hmac, renew_period_ms=1)])
    assert KEY not in shown
    assert repr(token.hmac) not in shown
