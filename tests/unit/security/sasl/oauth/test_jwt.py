"""Tokens: who signed them, for whom, until when; and every way to forge one."""

import base64
import json
import sys
from contextlib import suppress
from typing import Any

import jwt as pyjwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from ottla.config.errors import ConfigError
from ottla.security.sasl.oauth.jwt import MAX_TOKEN_LENGTH, JwksError, JwkSet, JwtValidator, parse_jwks
from ottla.security.sasl.oauthbearer import InvalidTokenError, OAuthToken

NOW = 1_700_000_000
RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER_RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
CURVES = {
    "ES256": ec.generate_private_key(ec.SECP256R1()),
    "ES384": ec.generate_private_key(ec.SECP384R1()),
    "ES512": ec.generate_private_key(ec.SECP521R1()),
}


def jwk(key: Any, kid: str | None, **more: object) -> dict[str, object]:
    algorithm = RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey | rsa.RSAPublicKey) else ECAlgorithm
    return {**algorithm.to_jwk(key, as_dict=True), **({} if kid is None else {"kid": kid}), **more}


def jwks(*keys: dict[str, object]) -> JwkSet:
    return parse_jwks(json.dumps({"keys": keys}))


KEYS = jwks(jwk(RSA.public_key(), "rsa"), *(jwk(key.public_key(), name) for name, key in CURVES.items()))


def validator(keys: JwkSet = KEYS, **settings: Any) -> JwtValidator:
    wanted = {"expected_issuer": "https://idp", "expected_audiences": ["kafka", "other"]}
    return JwtValidator(keys.key_for, now_ms=lambda: NOW * 1000, **(wanted | settings))


def claims(**changed: object) -> dict[str, object]:
    """None takes a claim away."""
    usual = {"iss": "https://idp", "aud": "kafka", "sub": "alice", "exp": NOW + 300, "iat": NOW - 10}
    return {name: value for name, value in {**usual, **changed}.items() if value is not None}


def signed(
    payload: dict[str, object] | bytes | None = None, key: Any = RSA, algorithm: str = "RS256", **header: Any
) -> str:
    data = payload if isinstance(payload, bytes) else json.dumps(payload or claims()).encode()
    headers = {key: value for key, value in {"kid": "rsa", **header}.items() if value is not None}
    return pyjwt.PyJWS().encode(data, key, algorithm=algorithm, headers=headers)


def section(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def test_a_good_token() -> None:
    assert validator()(signed(claims(scope=["a", " b "], aud=["x", "other"]))) == OAuthToken(
        "alice", (NOW + 300) * 1000, frozenset({"a", "b"}), (NOW - 10) * 1000
    )


@pytest.mark.parametrize("algorithm", ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"])
def test_algorithms_of_rsa(algorithm: str) -> None:
    assert validator()(signed(algorithm=algorithm)).principal_name == "alice"


@pytest.mark.parametrize("algorithm", CURVES)
def test_algorithms_of_curves(algorithm: str) -> None:
    assert (
        validator()(signed(key=CURVES[algorithm], algorithm=algorithm, kid=algorithm)).principal_name
        == "alice"
    )


def test_claims_by_other_names() -> None:
    one = validator(sub_claim_name="client_id", scope_claim_name="scp")
    token = one(signed(claims(client_id=" bob\t", sub=None, scp="a b")))
    assert (token.principal_name, token.scope) == ("bob", frozenset({"a b"}))


def test_without_an_expected_issuer_or_audience() -> None:
    one = validator(expected_issuer=None, expected_audiences=())
    assert one(signed(claims(iss="https://else", aud=None))).principal_name == "alice"
    with pytest.raises(InvalidTokenError, match="audience"):
        one(signed())


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"iss": "https://evil"}, "issuer"),
        ({"iss": "https://idp/"}, "issuer"),
        ({"iss": ["https://idp"]}, "issuer"),
        ({"iss": None}, "issuer"),
        ({"aud": "Kafka"}, "audience"),
        ({"aud": []}, "audience"),
        ({"aud": [["kafka"]]}, "audience"),
        ({"aud": {"kafka": 1}}, "audience"),
        ({"aud": None}, "audience"),
        ({"exp": None}, "does not say"),
        ({"iat": None}, "does not say"),
        ({"exp": NOW - 30}, "expired"),
        ({"exp": 0}, "expired"),
        ({"exp": -1}, "exp is no time"),
        ({"exp": True}, "exp is no time"),
        ({"exp": "9999999999"}, "exp is no time"),
        ({"exp": [NOW + 300]}, "exp is no time"),
        ({"exp": 1e300}, "exp is no time"),
        ({"exp": 10**400}, "exp is no time"),
        ({"iat": NOW + 31}, "not valid yet"),
        ({"nbf": NOW + 31}, "not valid yet"),
        ({"nbf": "soon"}, "nbf is no time"),
        ({"exp": NOW - 20, "iat": NOW - 10}, "before iat"),
        ({"exp": NOW + 5, "nbf": NOW + 10}, "before nbf"),
        ({"sub": None}, "sub value"),
        ({"sub": ""}, "sub value"),
        ({"sub": " \t\x00"}, "sub value"),
        ({"sub": 7}, "sub value"),
        ({"sub": ["alice"]}, "sub value"),
        ({"sub": "\ud800"}, "sub value"),
        ({"scope": ""}, "scope value"),
        ({"scope": ["a", 1]}, "scope value"),
        ({"scope": ["a", "a "]}, "duplicates"),
    ],
)
def test_claims_that_are_not_believed(changed: dict[str, object], why: str) -> None:
    with pytest.raises(InvalidTokenError, match=why):
        validator()(signed(claims(**changed)))


@pytest.mark.parametrize(
    "changed",
    [
        {"exp": NOW - 29, "iat": NOW - 40},
        {"iat": NOW + 30},
        {"nbf": NOW + 30},
        {"exp": NOW + 0.5},
        {"scope": 7},
        {"sub": "\u00a0alice"},
    ],
)
def test_claims_at_the_bounds(changed: dict[str, object]) -> None:
    assert validator()(signed(claims(**changed))).principal_name in ("alice", "\u00a0alice")


def test_the_skew_is_the_configured_one() -> None:
    with pytest.raises(InvalidTokenError, match="expired"):
        validator(clock_skew_seconds=0)(signed(claims(exp=NOW)))
    assert validator(clock_skew_seconds=1)(signed(claims(exp=NOW)))


def test_no_signature_at_all() -> None:
    for alg in ("none", "None", "NONE", None, "", 7, ["RS256"], {"RS256": 1}):
        header, payload = section({"alg": alg, "kid": "rsa"}), section(claims())
        for token in (f"{header}.{payload}.", f"{header}.{payload}.AAAA"):
            with pytest.raises(InvalidTokenError):
                validator()(token)
    with pytest.raises(InvalidTokenError, match="not allowed"):
        validator()(f"{section({'kid': 'rsa'})}.{section(claims())}.AAAA")


def test_a_public_key_is_no_secret_of_hmac() -> None:
    import hashlib
    import hmac

    public = RSA.public_key()
    secrets = [
        public.public_bytes(encoding, layout)
        for encoding in (Encoding.PEM, Encoding.DER)
        for layout in (PublicFormat.SubjectPublicKeyInfo, PublicFormat.PKCS1)
    ]
    text = f"{section({'alg': 'HS256', 'kid': 'rsa', 'typ': 'JWT'})}.{section(claims())}"
    for secret in secrets:
        mac = (
            base64.urlsafe_b64encode(hmac.digest(secret, text.encode(), hashlib.sha256)).decode().rstrip("=")
        )
        with pytest.raises(InvalidTokenError, match="HS256"):
            validator()(f"{text}.{mac}")


def test_a_key_is_for_its_own_algorithms_only() -> None:
    with pytest.raises(InvalidTokenError, match="is not for ES256"):
        validator()(signed(key=CURVES["ES256"], algorithm="ES256", kid="rsa"))
    with pytest.raises(InvalidTokenError, match="is not for RS256"):
        validator()(signed(kid="ES256"))
    with pytest.raises(InvalidTokenError, match="is not for ES256"):
        validator()(signed(key=CURVES["ES256"], algorithm="ES256", kid="ES384"))
    with pytest.raises(InvalidTokenError, match="is not for PS256"):
        validator(jwks(jwk(RSA.public_key(), "rsa", alg="RS256")))(signed(algorithm="PS256"))


def test_keys_that_a_token_brings_along_are_not_looked_at() -> None:
    brought = jwk(OTHER_RSA.public_key(), "rsa")
    for header in (
        {"jwk": brought},
        {"jku": "https://evil/jwks"},
        {"x5u": "https://evil"},
        {"x5c": ["AAAA"]},
    ):
        with pytest.raises(InvalidTokenError, match="signature"):
            validator()(signed(key=OTHER_RSA, **header))


def test_another_key_or_an_unknown_one() -> None:
    with pytest.raises(InvalidTokenError, match="signature"):
        validator()(signed(key=OTHER_RSA))
    with pytest.raises(InvalidTokenError, match="no key has the id 'else'"):
        validator()(signed(kid="else"))
    with pytest.raises(InvalidTokenError, match="no key has the id None"):
        validator()(signed(kid=None))
    only = jwks(jwk(RSA.public_key(), "rsa"))
    assert validator(only)(signed(kid=None))
    for kid in (7, ["rsa"], "x" * 1025):
        with pytest.raises(InvalidTokenError, match="key id that is none"):
            validator(only)(f"{section({'alg': 'RS256', 'kid': kid})}.{section(claims())}.AAAA")


def test_what_was_signed_is_what_is_read() -> None:
    header, payload, signature = signed().split(".")
    for token in (
        f"{header}.{section(claims(sub='root'))}.{signature}",
        f"{section({'alg': 'RS512', 'kid': 'rsa'})}.{payload}.{signature}",
        f"{header}.{payload}.{signature[:-6]}",
        f"{header}.{payload}.{signature}AAAA",
    ):
        with pytest.raises(InvalidTokenError):
            validator()(token)


@pytest.mark.parametrize("signature", [b"", b"\0", bytes(64), bytes(63), b"\xff" * 64, bytes(1000)])
def test_signatures_of_curves_that_are_none(signature: bytes) -> None:
    text = f"{section({'alg': 'ES256', 'kid': 'ES256'})}.{section(claims())}"
    with pytest.raises(InvalidTokenError):
        validator()(f"{text}.{base64.urlsafe_b64encode(signature).decode().rstrip('=')}")


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"[]",
        b"null",
        b"{",
        b"\xff",
        b'{"exp":NaN}',
        b'{"exp":Infinity}',
        b'{"sub":"a","sub":"b"}',
        b'{"a":' * 5_000 + b"1" + b"}" * 5_000,
        b'{"exp":' + b"9" * 5_000 + b"}",
    ],
)
def test_a_payload_that_is_no_object(payload: bytes) -> None:
    token = pyjwt.PyJWS().encode(payload, RSA, algorithm="RS256", headers={"kid": "rsa"})
    with pytest.raises(InvalidTokenError):
        validator()(token)


def test_a_claim_that_is_there_twice() -> None:
    payload = json.dumps(claims()).replace('"sub": "alice"', '"sub": "root", "sub": "alice"').encode()
    with pytest.raises(InvalidTokenError, match="no JSON object"):
        validator()(signed(payload))


@pytest.mark.parametrize(
    "token",
    ["", ".", "..", "a.b", "a.b.c", "a.b.c.d", "a.b.c=", " a.b.c", "a.b.c\n", "a" * (MAX_TOKEN_LENGTH + 1)],
)
def test_what_is_no_token(token: str) -> None:
    with pytest.raises(InvalidTokenError):
        validator()(token)


def test_a_header_that_has_to_be_understood() -> None:
    with pytest.raises(InvalidTokenError, match="understood"):
        validator()(signed(crit=["b64"], b64=True))


def test_no_error_has_the_token() -> None:
    for token in (signed(key=OTHER_RSA), signed(claims(iss="https://evil")), signed(claims(exp=0))):
        with pytest.raises(InvalidTokenError) as raised:
            validator()(token)
        for part in token.split("."):
            assert part not in f"{raised.value} {raised.value.json}"


# --- keys


def test_keys_that_cannot_be_used_are_passed_over() -> None:
    public = RSA.public_key()
    good = jwk(public, "good")
    keys = jwks(
        jwk(public, "enc", use="enc"),
        jwk(public, "ops", key_ops=["sign"]),
        jwk(public, "no ops", key_ops="verify"),
        jwk(public, "hmac", alg="HS256"),
        jwk(public, "no alg", alg=["RS256"]),
        {"kty": "oct", "k": "AAAA", "kid": "oct", "alg": "HS256"},
        {"kty": "RSA", "kid": "bare"},
        {"kty": "RSA", "kid": "odd", "n": 7, "e": "AQAB"},
        {"kty": "RSA", "kid": "huge", "n": "A" * 100_000, "e": "AQAB"},
        {"kty": "RSA", "kid": "not base64", "n": "é", "e": "AQAB"},
        jwk(rsa.generate_private_key(public_exponent=65537, key_size=1024).public_key(), "short"),
        {"kty": "EC", "crv": "P-256", "x": "AAAA", "y": "AAAA", "kid": "no point"},
        {"kty": "EC", "crv": "secp256k1", "x": "AAAA", "y": "AAAA", "kid": "curve"},
        {"kty": "EC", "crv": ["P-256"], "kid": "no curve"},
        {"kty": ["RSA"], "kid": "no kind"},
        {"kty": "OKP", "crv": "Ed25519", "x": "AAAA", "kid": "okp"},
        7,  # type: ignore[arg-type]
        good,
    )
    assert len(keys._keys) == 1
    assert keys.key_for("good") is not None


def test_the_private_part_of_a_key_is_left_out() -> None:
    key = jwks(jwk(RSA, "mistake", key_ops=["sign", "verify"])).key_for("mistake")
    assert key is not None
    assert isinstance(key.key, rsa.RSAPublicKey)


@pytest.mark.parametrize(
    "document",
    [
        "",
        "[]",
        "{}",
        '{"keys":7}',
        '{"keys":[]}',
        '{"keys":[{}]}',
        b"\xff",
        "[" * 100_000,
        "x" * (1 << 20) + "x",
    ],
)
def test_what_is_no_set_of_keys(document: str | bytes) -> None:
    with pytest.raises(JwksError):
        parse_jwks(document)


def test_too_many_keys() -> None:
    with pytest.raises(JwksError, match="1001 keys"):
        parse_jwks(json.dumps({"keys": [{}] * 1001}))


@pytest.mark.parametrize("missing", ["jwt", "cryptography"])
def test_without_the_extra_it_says_so(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if missing == "jwt":
        monkeypatch.setitem(sys.modules, "jwt", None)
    else:
        monkeypatch.setattr("jwt.algorithms.has_crypto", False)
    with pytest.raises(ConfigError, match=r"\.\[security\]"):
        JwtValidator(KEYS.key_for, now_ms=lambda: NOW)
    with pytest.raises(ConfigError, match=r"\.\[security\]"):
        parse_jwks("{}")


# --- whatever is sent

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
NAMES = ["iss", "aud", "sub", "exp", "iat", "nbf", "scope", "alg", "kid", "crit", "typ"]


@given(
    st.dictionaries(st.sampled_from(NAMES), json_values), st.dictionaries(st.sampled_from(NAMES), json_values)
)
def test_whatever_is_signed_only_an_invalid_token_comes_out(
    changed: dict[str, Any], header: dict[str, Any]
) -> None:
    one = validator()
    with suppress(InvalidTokenError):
        one(f"{section({'alg': 'RS256', 'kid': 'rsa', **header})}.{section(claims())}.AAAA")
    text = f"{section({'alg': 'RS256', 'kid': 'rsa'})}.{section({**claims(), **changed})}"
    signature = RSAAlgorithm(RSAAlgorithm.SHA256).sign(text.encode(), RSA)
    with suppress(InvalidTokenError):
        one(f"{text}.{base64.urlsafe_b64encode(signature).decode().rstrip('=')}")


@given(st.text() | st.lists(st.text("ey.J0-_="), min_size=3, max_size=3).map(".".join))
def test_whatever_is_sent_only_an_invalid_token_comes_out(token: str) -> None:
    with pytest.raises(InvalidTokenError):
        validator()(token)


@given(st.dictionaries(st.sampled_from(["keys", "x"]), json_values) | json_values)
def test_whatever_a_document_has_only_a_jwks_error_comes_out(document: Any) -> None:
    with suppress(JwksError):
        parse_jwks(json.dumps(document))


@given(
    st.dictionaries(
        st.sampled_from(["kty", "n", "e", "crv", "x", "y", "use", "alg", "kid", "key_ops"]), json_values
    )
)
def test_whatever_a_key_has_only_a_jwks_error_comes_out(changed: dict[str, Any]) -> None:
    for key in (RSA, CURVES["ES256"]):
        with suppress(JwksError):
            parse_jwks(json.dumps({"keys": [{**jwk(key.public_key(), "a"), **changed}]}))
