"""Signed JSON Web Tokens (RFC 7519, 7515, 7517, KIP-768): who signed, for whom, until when (BrokerJwtValidator).

Rules: a signature is by a public key of the identity provider, RSA or elliptic curve: `none` and HMAC are no choice, a
key says itself which algorithms it is for, and keys that a token brings along are not looked at. Nothing of a token is
believed before its signature. No error has the token. Pure: keys are given as data or by a callable, `now_ms` likewise;
PyJWT and cryptography (extra `security`) do the arithmetic, and are imported when first used.
"""

import base64
import json
import re
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

from ottla.config.errors import ConfigError
from ottla.model.install import install
from ottla.security.sasl.oauthbearer import InvalidTokenError, OAuthToken

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

MAX_TOKEN_LENGTH: Final = 1 << 16
MAX_KEY_ID_LENGTH: Final = 1 << 10
MAX_JWKS_LENGTH: Final = 1 << 20
MAX_KEYS: Final = 1_000
# Shorter ones are unsafe, longer ones keep the broker busy.
RSA_BITS: Final = range(2048, 16384 + 1)
# The year 9999, in seconds since the epoch.
MAX_NUMERIC_DATE: Final = 253_402_300_799

RSA_ALGORITHMS: Final = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"})
CURVE_ALGORITHMS: Final = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512"}
ALGORITHMS: Final = RSA_ALGORITHMS | frozenset(CURVE_ALGORITHMS.values())

_MAX_SHOWN: Final = 100
# What String.trim takes away. Python's strip takes more, and would make one user of two.
_JAVA_BLANK: Final = "".join(map(chr, range(33)))
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_SECTION: Final = r"([A-Za-z0-9_-]+)"
_COMPACT: Final = re.compile(rf"{_SECTION}\.{_SECTION}\.{_SECTION}")
# What makes a key, by its type; whatever else there is, a private part above all, is left out.
_MAX_MEMBER_LENGTH: Final = 4096
_MEMBERS: Final = {"RSA": ("kty", "n", "e"), "EC": ("kty", "crv", "x", "y")}


class VerificationKey(NamedTuple):
    """A public key of the identity provider, and the algorithms that it is for."""

    key: "RSAPublicKey | EllipticCurvePublicKey"
    algorithms: frozenset[str]


# From a token's key id, None if it has none, to the key; None if there is no such key. It may wait for keys.
KeyFor = Callable[[str | None], VerificationKey | None]


class JwksError(ValueError):
    """A document that is no set of keys, or has none that can be used."""


class JwkSet:
    """The keys of a JWKS document, by their ids."""

    def __init__(self, keys: Iterable[tuple[str | None, VerificationKey]]) -> None:
        self._keys = list(keys)

    def key_for(self, key_id: str | None) -> VerificationKey | None:
        """The first key of that id; a token that names none is for a provider that has only one key."""
        if key_id is None:
            return self._keys[0][1] if len(self._keys) == 1 else None
        return next((key for other, key in self._keys if other == key_id), None)


def parse_jwks(document: str | bytes) -> JwkSet:
    """Keys that cannot be used here are passed over: those to encrypt with, secret ones, unknown kinds."""
    _algorithm("RS256")  # at once if the extra is missing, not with the first token
    if len(document) > MAX_JWKS_LENGTH:
        raise JwksError(f"a JWKS document of {len(document)} bytes, more than {MAX_JWKS_LENGTH}")
    try:
        found = _json(document.encode() if isinstance(document, str) else document)
    except ValueError:
        raise JwksError("a JWKS document that is not JSON") from None
    entries = found.get("keys") if isinstance(found, dict) else None
    if not isinstance(entries, list):
        raise JwksError("a JWKS document without a list of keys")
    if len(entries) > MAX_KEYS:
        raise JwksError(f"a JWKS document of {len(entries)} keys, more than {MAX_KEYS}")
    keys = [(_key_id(entry), key) for entry in entries if (key := _key(entry)) is not None]
    if not keys:
        raise JwksError("a JWKS document without a key that signatures can be checked with")
    return JwkSet(keys)


def _key_id(entry: dict[str, Any]) -> str | None:
    key_id = entry.get("kid")
    return key_id if isinstance(key_id, str) else None


def _key(entry: object) -> VerificationKey | None:
    if not isinstance(entry, dict) or entry.get("use", "sig") != "sig":
        return None
    operations = entry.get("key_ops", ["verify"])
    if not isinstance(operations, list) or "verify" not in operations:
        return None
    kind, curve = entry.get("kty"), entry.get("crv")
    if kind == "RSA":
        algorithms = RSA_ALGORITHMS
    elif kind == "EC" and isinstance(curve, str) and curve in CURVE_ALGORITHMS:
        algorithms = frozenset({CURVE_ALGORITHMS[curve]})
    else:
        return None
    if (only := entry.get("alg")) is not None:
        algorithms &= {str(only)}
    members = {name: entry.get(name) for name in _MEMBERS[kind]}
    if not all(isinstance(value, str) and len(value) <= _MAX_MEMBER_LENGTH for value in members.values()):
        return None
    if not algorithms:
        return None
    try:
        key = _algorithm(min(algorithms)).from_jwk(members)
    except (ValueError, TypeError, _package().PyJWTError):
        return None
    if kind == "RSA" and key.key_size not in RSA_BITS:
        return None
    return VerificationKey(key, algorithms)


def require_packages() -> None:
    """ConfigError if what checks and makes signatures is not installed."""
    _package()


class TokenLifetime(NamedTuple):
    """From when to when a token counts, in milliseconds since the epoch."""

    starts_at_ms: int | None
    expires_at_ms: int


def lifetime_of(token: str) -> TokenLifetime:
    """What a client's own token says of itself (ClientJwtValidator): whoever it is shown to checks its signature."""
    if len(token) > MAX_TOKEN_LENGTH:
        raise InvalidTokenError(f"a token of {len(token)} characters, more than {MAX_TOKEN_LENGTH}")
    sections = _COMPACT.fullmatch(token)
    if sections is None:
        raise InvalidTokenError("a token that is no JWT: it has not three sections")
    claims = _object(sections[2], "payload")
    expires_at, issued_at = _numeric_date(claims, "exp"), _numeric_date(claims, "iat")
    if expires_at is None:
        raise InvalidTokenError("a token that does not say when it expires")
    return TokenLifetime(None if issued_at is None else issued_at * 1000, expires_at * 1000)


def sign_jwt(
    header: dict[str, Any], payload: dict[str, Any], algorithm: str, pem: bytes, passphrase: str | None
) -> str:
    """A token of our own, by a private key; ValueError for one that cannot be used, without any of it."""
    package = _package()
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(pem, None if passphrase is None else passphrase.encode())
        return str(package.encode(payload, key, algorithm=algorithm, headers=header))
    except (ValueError, TypeError, package.PyJWTError) as error:
        raise ValueError(f"it is no private key for {algorithm}, or has another passphrase") from error


class JwtValidator:
    """Checks tokens by the keys `sasl.oauthbearer.*` of a broker; itself a TokenValidator."""

    def __init__(
        self,
        key_for: KeyFor,
        *,
        now_ms: Callable[[], int],
        expected_issuer: str | None = None,
        expected_audiences: Collection[str] = (),
        clock_skew_seconds: int = 30,
        scope_claim_name: str = "scope",
        sub_claim_name: str = "sub",
    ) -> None:
        _algorithm("RS256")  # at once if the extra is missing, not with the first token
        self._key_for = key_for
        self._now_ms = now_ms
        self._expected_issuer = expected_issuer
        self._expected_audiences = frozenset(expected_audiences)
        self._clock_skew_seconds = clock_skew_seconds
        self._scope_claim_name = scope_claim_name
        self._sub_claim_name = sub_claim_name

    def __call__(self, token: str) -> OAuthToken:
        claims = self._signed_claims(token)
        self._check_issuer(claims)
        self._check_audience(claims)
        expires_at, issued_at = self._check_times(claims)
        subject = _text(claims.get(self._sub_claim_name), self._sub_claim_name)
        return OAuthToken(subject, expires_at * 1000, self._scope(claims), issued_at * 1000)

    def _signed_claims(self, token: str) -> dict[str, Any]:
        if len(token) > MAX_TOKEN_LENGTH:
            raise InvalidTokenError(f"a token of {len(token)} characters, more than {MAX_TOKEN_LENGTH}")
        sections = _COMPACT.fullmatch(token)
        if sections is None:
            raise InvalidTokenError(
                "Malformed JWT provided; expected three sections (header, payload, and signature)"
            )
        header = _object(sections[1], "header")
        algorithm, key_id = header.get("alg"), header.get("kid")
        if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
            raise InvalidTokenError(f"the algorithm {_shown(algorithm)} is not allowed")
        if "crit" in header:
            raise InvalidTokenError("a header with extensions that have to be understood, and are not")
        if key_id is not None and not (isinstance(key_id, str) and len(key_id) <= MAX_KEY_ID_LENGTH):
            raise InvalidTokenError("a key id that is none")
        key = self._key_for(key_id)
        if key is None:
            raise InvalidTokenError(f"no key has the id {_shown(key_id)}")
        if algorithm not in key.algorithms:
            raise InvalidTokenError(f"the key {_shown(key_id)} is not for {algorithm}")
        signed = f"{sections[1]}.{sections[2]}".encode()
        if not _algorithm(algorithm).verify(signed, key.key, _base64url(sections[3], "signature")):
            raise InvalidTokenError("the signature is not that of the key")
        return _object(sections[2], "payload")

    def _check_issuer(self, claims: dict[str, Any]) -> None:
        if self._expected_issuer is not None and claims.get("iss") != self._expected_issuer:
            raise InvalidTokenError(f"the issuer {_shown(claims.get('iss'))} is not the expected one")

    def _check_audience(self, claims: dict[str, Any]) -> None:
        """A token for somebody is not for a broker that does not know who it is, which is what 4.3.1 says, too."""
        audience = claims.get("aud")
        if audience is None and not self._expected_audiences:
            return
        named = [audience] if isinstance(audience, str) else audience
        if not isinstance(named, list) or not all(isinstance(name, str) for name in named):
            raise InvalidTokenError("an audience that is missing or no list of names")
        if self._expected_audiences.isdisjoint(named):
            raise InvalidTokenError(f"the audience {_shown(audience)} is not the expected one")

    def _check_times(self, claims: dict[str, Any]) -> tuple[int, int]:
        """Seconds, when the token expires and when it was issued; both it has to say."""
        now, skew = self._now_ms() // 1000, self._clock_skew_seconds
        expires_at, issued_at = _numeric_date(claims, "exp"), _numeric_date(claims, "iat")
        not_before = _numeric_date(claims, "nbf")
        if expires_at is None or issued_at is None:
            raise InvalidTokenError("a token that does not say when it expires and when it was issued")
        if now - skew >= expires_at:
            raise InvalidTokenError(f"expired at {expires_at}, it is {now}")
        for name, time in (("iat", issued_at), ("nbf", not_before)):
            if time is not None and now + skew < time:
                raise InvalidTokenError(f"not valid yet: {name} is {time}, it is {now}")
            if time is not None and expires_at < time:
                raise InvalidTokenError(f"expires at {expires_at}, before {name}, {time}")
        return expires_at, issued_at

    def _scope(self, claims: dict[str, Any]) -> frozenset[str]:
        """A text is one scope, as Kafka has it."""
        name, found = self._scope_claim_name, claims.get(self._scope_claim_name)
        if not isinstance(found, str | list):
            return frozenset()
        scopes = [_text(scope, name) for scope in ([found] if isinstance(found, str) else found)]
        if len(set(scopes)) != len(scopes):
            raise InvalidTokenError(f"{name} value must not contain duplicates")
        return frozenset(scopes)


def _text(value: object, name: str) -> str:
    text = value.strip(_JAVA_BLANK) if isinstance(value, str) else ""
    # JSON has a way to write half a character, and nothing else has.
    if not text or _SURROGATE.search(text):
        raise InvalidTokenError(f"{name} value must be a text that is not empty")
    return text


def _numeric_date(claims: dict[str, Any], name: str) -> int | None:
    value = claims.get(name)
    if value is None:
        return None
    # A bool is an int in Python. NaN is no JSON, and what is beyond the bounds compares so.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_NUMERIC_DATE:
        raise InvalidTokenError(f"{name} is no time")
    return int(value)


def _shown(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= _MAX_SHOWN else shown[:_MAX_SHOWN] + "…"


def _base64url(section: str, what: str) -> bytes:
    try:
        return base64.urlsafe_b64decode(section + "=" * (-len(section) % 4))
    except ValueError:
        raise InvalidTokenError(f"a {what} that is not base64url") from None


def _object(section: str, what: str) -> dict[str, Any]:
    try:
        found = _json(_base64url(section, what))
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise InvalidTokenError(f"a {what} that is no JSON object")
    return found


def _json(data: bytes) -> Any:
    """ValueError for what is not JSON, or names something twice, of which readers take one or the other."""
    try:
        return json.loads(data.decode(), object_pairs_hook=_unique, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name twice")
    return found


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


def _package() -> Any:
    try:
        import jwt
        import jwt.algorithms
    except ImportError:
        jwt = None  # type: ignore[assignment]
    if jwt is None or not jwt.algorithms.has_crypto:
        needs = "OAUTHBEARER needs the packages PyJWT and cryptography"
        raise ConfigError(f"{needs} to check tokens: {install('security')}")
    return jwt


def _algorithm(name: str) -> Any:
    return _package().get_algorithm_by_name(name)
