"""Tokens of a client: how they are asked for, kept and had anew, and that no error tells a secret."""

import base64
import json
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
)
from hypothesis import given
from hypothesis import strategies as st
from tests.support.certificates import Authority
from tests.support.identity_provider import IdentityProvider

from ottla.client.config import ClientConfig
from ottla.config.errors import ConfigError
from ottla.model.errors import KafkaError
from ottla.security.sasl.oauth.http import ALLOWED_FILES, ALLOWED_URLS, FetchError
from ottla.security.sasl.oauth.login import RETRY_MS, OAuthBearerLogin, RefreshSettings, oauth_login

KAFKA = "org.apache.kafka.common.security.oauthbearer."
UNSECURED = f"{KAFKA}internals.unsecured.OAuthBearerUnsecuredLoginCallbackHandler"
SECRET = "geheim&=é"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("idp"))


@pytest.fixture
def provider(authority: Authority) -> Iterator[IdentityProvider]:
    with IdentityProvider(authority) as made:
        yield made


def login(
    provider: IdentityProvider, environ: dict[str, str] | None = None, **settings: Any
) -> OAuthBearerLogin:
    given = {f"sasl_oauthbearer_{name}": value for name, value in settings.items() if "sasl_" not in name}
    given |= {name: value for name, value in settings.items() if "sasl_" in name}
    given.setdefault("sasl_oauthbearer_token_endpoint_url", provider.token_url)
    # Without SASL itself: a configuration would look into this process's environment.
    config = ClientConfig(
        **{"sasl_login_retry_backoff_max_ms": 300} | {k: v for k, v in given.items() if "url" not in k}
    )

    def get(key: str) -> Any:
        name = key.replace(".", "_")
        return given[name] if name in given else getattr(config, name, None)

    options = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(provider.authority.certificate)}
    return oauth_login(get, options, {}, provider.environment() if environ is None else environ)


def by_secret(provider: IdentityProvider, **more: Any) -> OAuthBearerLogin:
    credentials = {"client_credentials_client_id": "me", "client_credentials_client_secret": SECRET}
    return login(provider, **credentials, **more)


def test_client_credentials(provider: IdentityProvider) -> None:
    one = by_secret(provider, scope="read write")
    assert jwt.decode(one.token(), options={"verify_signature": False})["sub"] == "alice"
    assert provider.forms == [{"grant_type": "client_credentials", "scope": "read write"}]
    scheme, _, words = provider.headers[0]["Authorization"].partition(" ")
    assert (scheme, base64.b64decode(words).decode()) == ("Basic", f"me:{SECRET}")
    by_secret(provider, header_urlencode=True).token()
    words = provider.headers[1]["Authorization"].partition(" ")[2]
    assert base64.b64decode(words) == b"me:geheim%26%3D%C3%A9"


def test_a_token_is_kept_until_it_is_old_enough(provider: IdentityProvider) -> None:
    one = by_secret(provider)
    first = one.token()
    assert [one.token() for _ in range(5)] == [first] * 5
    assert one.new_exchange("host").evaluate(None) == f"n,,\x01auth=Bearer {first}\x01\x01".encode()
    assert provider.asked["/token"] == 1


def pem(key: Any, encryption: KeySerializationEncryption | None = None) -> bytes:
    return bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption or NoEncryption()))


@pytest.mark.parametrize("algorithm", ["RS256", "ES256"])
def test_jwt_bearer(provider: IdentityProvider, tmp_path: Path, algorithm: str) -> None:
    key: Any = (
        rsa.generate_private_key(public_exponent=65537, key_size=2048)
        if algorithm == "RS256"
        else ec.generate_private_key(ec.SECP256R1())
    )
    file, template = tmp_path / "key.pem", tmp_path / "template.json"
    file.write_bytes(pem(key, BestAvailableEncryption(b"pass")))
    template.write_text(json.dumps({"header": {"kid": "k1"}, "payload": {"extra": 7, "sub": "other"}}))
    one = login(
        provider,
        provider.environment(file, template),
        jwt_retriever_class=f"{KAFKA}JwtBearerJwtRetriever",
        assertion_algorithm=algorithm,
        assertion_private_key_file=str(file),
        assertion_private_key_passphrase="pass",
        assertion_template_file=str(template),
        assertion_claim_iss="us",
        assertion_claim_sub="me",
        assertion_claim_aud="idp",
        assertion_claim_jti_include=True,
        scope="read",
    )
    one.token()
    (form,) = provider.forms
    assert form["grant_type"] == "urn:ietf:params:oauth:grant-type:jwt-bearer"
    assert form["scope"] == "read"
    assert jwt.get_unverified_header(form["assertion"]) == {"alg": algorithm, "typ": "JWT", "kid": "k1"}
    claims = jwt.decode(form["assertion"], key.public_key(), [algorithm], audience="idp")
    assert (claims["iss"], claims["sub"], claims["extra"]) == ("us", "other", 7)
    assert claims["exp"] - claims["iat"] == 300
    assert claims["iat"] - claims["nbf"] == 60
    assert claims["jti"]


def test_an_assertion_instead_of_a_secret(provider: IdentityProvider, tmp_path: Path) -> None:
    file = tmp_path / "assertion.jwt"
    file.write_text("a.b.c\n")
    one = login(
        provider,
        provider.environment(file),
        client_credentials_client_id="me",
        assertion_file=str(file),
    )
    one.token()
    (form,) = provider.forms
    assert form == {
        "client_assertion_type": "urn:ietf:params:oauth:client-assertion-type:jwt-bearer",
        "client_assertion": "a.b.c",
        "grant_type": "client_credentials",
        "client_id": "me",
    }
    assert "Authorization" not in provider.headers[0]


def test_a_token_out_of_a_file(provider: IdentityProvider, tmp_path: Path) -> None:
    file = tmp_path / "token"
    one = login(provider, {ALLOWED_URLS: file.as_uri()}, sasl_oauthbearer_token_endpoint_url=file.as_uri())
    with pytest.raises(KafkaError, match="No such file"):
        one.token()
    first = provider.token()
    file.write_text(first + "\n")
    assert one.token() == first


def test_a_file_that_is_read_half_written_is_read_again(provider: IdentityProvider, tmp_path: Path) -> None:
    """Most of a token looks like one: it would be shown, and refused, for most of its life."""
    file = tmp_path / "token"
    one = login(provider, {ALLOWED_URLS: file.as_uri()}, sasl_oauthbearer_token_endpoint_url=file.as_uri())
    whole = provider.token()
    file.write_text(whole[:-20])
    assert one.token() == whole[:-20], "nobody can tell"
    file.write_text(whole)
    assert one.token() == whole
    # What is no token leaves the one that there is, for as long as it counts.
    file.write_text(whole[:20])
    assert one.token() == whole
    file.unlink()
    assert one.token() == whole
    other = provider.token(jti="other")
    file.write_text(other)
    assert one.token() == other != whole


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "client.credentials.client.id is not set"),
        ({"client_credentials_client_id": "me"}, "client.credentials.client.secret is not set"),
        ({"sasl_oauthbearer_token_endpoint_url": "https://elsewhere/token"}, ALLOWED_URLS),
        ({"sasl_oauthbearer_token_endpoint_url": None}, "token.endpoint.url is not set"),
        ({"jwt_retriever_class": f"{KAFKA}JwtBearerJwtRetriever"}, "assertion.private.key.file is not set"),
        (
            {
                "jwt_retriever_class": f"{KAFKA}JwtBearerJwtRetriever",
                "assertion_private_key_file": "/etc/passwd",
            },
            ALLOWED_FILES,
        ),
        ({"jwt_retriever_class": f"{KAFKA}FileJwtRetriever"}, "by a file: URL"),
        ({"jwt_retriever_class": f"{KAFKA}SomethingElse"}, "is not supported"),
        ({"jwt_retriever_class": "no.such.module.Class"}, "cannot be imported"),
        ({"jwt_retriever_class": "ottla.security.sasl.oauth.login.KAFKA"}, "cannot be imported"),
        ({"jwt_retriever_class": "ottla.security.sasl.oauth.login.URL_KEY"}, "nothing that could be called"),
        (
            {"sasl_login_callback_handler_class": UNSECURED},
            "is not supported",
        ),
    ],
)
def test_what_cannot_work_is_told_at_once(
    provider: IdentityProvider, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        login(provider, **settings)


@pytest.mark.parametrize(
    "answer",
    [
        (401, {"error": "invalid_client", "secret": SECRET}),
        (200, b"no JSON"),
        (200, b"[" * 10_000),
        (200, {"token_type": "Bearer"}),
        (200, {"access_token": "opaque"}),
        (200, {"access_token": 7}),
        (200, {"access_token": "a.b.c"}),
        (200, {"access_token": "x" * 100_000}),
    ],
)
def test_answers_without_a_token(provider: IdentityProvider, answer: tuple[int, Any]) -> None:
    provider.instead["/token"] = lambda: answer
    one = by_secret(provider)
    with pytest.raises(KafkaError, match="no token could be had") as refused:
        one.token()
    assert "geheim" not in str(refused.value)
    assert SECRET not in repr(one)


def test_a_private_key_that_is_none(provider: IdentityProvider, tmp_path: Path) -> None:
    file = tmp_path / "key.pem"
    file.write_text("geheim")
    one = login(
        provider,
        provider.environment(file),
        jwt_retriever_class=f"{KAFKA}JwtBearerJwtRetriever",
        assertion_private_key_file=str(file),
    )
    with pytest.raises(KafkaError, match="it is no private key for RS256") as refused:
        one.token()
    assert "geheim" not in str(refused.value)


class Clock:
    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000

    def __call__(self) -> int:
        return self.now_ms


def of(retrieve: Callable[[], Any], clock: Clock, refresh: RefreshSettings | None = None) -> OAuthBearerLogin:
    return OAuthBearerLogin(retrieve, refresh, now_ms=clock, random=Random(1))


def test_it_is_had_anew_before_it_expires_and_the_old_one_does_until_then() -> None:
    clock, had, failing = Clock(), [], []

    def retrieve() -> tuple[str, int]:
        if failing:
            raise FetchError("the provider is away")
        had.append(clock.now_ms)
        return f"token-{len(had)}", clock.now_ms + 3_600_000

    one = of(retrieve, clock)
    assert one.token() == "token-1"
    clock.now_ms += 2_800_000  # of 3,600: less than four fifths
    assert one.token() == "token-1"
    clock.now_ms += 300_000
    failing.append(True)
    assert one.token() == "token-1"
    failing.clear()
    clock.now_ms += RETRY_MS
    assert one.token() == "token-2"
    failing.append(True)
    clock.now_ms += 3_600_000
    with pytest.raises(KafkaError, match="the provider is away"):
        one.token()


@pytest.mark.parametrize(
    "error", [FetchError("the provider is away"), ConnectionError("geheim"), KeyError(7)]
)
def test_while_none_can_be_had_the_one_there_is_does_and_it_is_seldom_asked_for(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    clock, asked = Clock(), []

    def retrieve() -> tuple[str, int]:
        asked.append(clock.now_ms)
        if len(asked) > 1:
            raise error
        return "token", clock.now_ms + 3_600_000

    one = of(retrieve, clock)
    assert one.token() == "token"
    clock.now_ms += 3_300_000
    assert {one.token() for _ in range(100)} == {"token"}
    assert len(asked) == 2
    clock.now_ms += RETRY_MS
    assert {one.token() for _ in range(100)} == {"token"}
    assert len(asked) == 3
    assert "geheim" not in caplog.text
    clock.now_ms = asked[0] + 3_600_000 - 1
    assert one.token() == "token"
    clock.now_ms += 1
    with pytest.raises(KafkaError):
        one.token()


def test_when_it_is_had_anew() -> None:
    random, hour = Random(1), 3_600_000
    usual = RefreshSettings()
    assert 0.8 * hour <= usual.refresh_at_ms(0, 0, hour, random) <= 0.85 * hour
    # The buffer wins over the share, the shortest time over the buffer; a short life has room for neither.
    assert RefreshSettings(1.0, 0.0).refresh_at_ms(0, 0, hour, random) == hour - 300_000
    assert RefreshSettings(0.5, 0.0).refresh_at_ms(hour // 2, 0, hour, random) == hour // 2 + 60_000
    assert RefreshSettings(0.8, 0.0).refresh_at_ms(0, None, 100_000, random) == pytest.approx(80_000)


@pytest.mark.parametrize(
    "found", [None, 7, ("token",), ("", 9_999_999_999_999), ("tök en", 9_999_999_999_999)]
)
def test_what_ones_own_retriever_may_do(found: object) -> None:
    one = of(lambda: found, Clock())
    with pytest.raises(KafkaError):
        one.new_exchange("host")


def test_one_that_has_expired_already() -> None:
    clock = Clock()
    with pytest.raises(KafkaError, match="expired already"):
        of(lambda: ("token", clock.now_ms), clock).token()


def own_token() -> tuple[str, int]:
    return "mine", int(time.time() * 1000) + 60_000


class OwnRetriever:
    def __call__(self) -> tuple[str, int]:
        return own_token()


@pytest.mark.parametrize("key", ["sasl_login_callback_handler_class", "sasl_oauthbearer_jwt_retriever_class"])
@pytest.mark.parametrize("named", [own_token, f"{__name__}.own_token", f"{__name__}:OwnRetriever"])
def test_ones_own_by_its_import_path(provider: IdentityProvider, key: str, named: Any) -> None:
    assert login(provider, **{key: named}).token() == "mine"


@given(st.text(max_size=200) | st.lists(st.binary(max_size=60), min_size=3, max_size=3))
def test_whatever_a_token_is_only_a_failed_login_comes_out(token: str | list[bytes]) -> None:
    text = (
        token if isinstance(token, str) else ".".join(base64.urlsafe_b64encode(one).decode() for one in token)
    )
    with suppress(KafkaError):
        of(lambda: text, Clock()).new_exchange("host").evaluate(None)


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=10,
)


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(("exp", "iat", "nbf", "sub"), json_values)))
def test_whatever_a_token_says_only_a_failed_login_comes_out(claims: dict[str, Any]) -> None:
    payload = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    with suppress(KafkaError):
        of(lambda: f"e30.{payload}.c2ln", Clock()).new_exchange("host").evaluate(None)
