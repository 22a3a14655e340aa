"""The tokens that a client shows: had from an identity provider or a file, and anew before they expire.

Kafka's retrievers by their names: client credentials with a secret or an assertion (KIP-768), jwt-bearer
(KIP-1139), a file; or a callable of one's own, by its import path. OAuthBearerLogin is Kafka's
OAuthBearerRefreshingLogin without its thread: a connection that logs in, or proves again who it is, has the token that
is current then, and whoever is the first to find it old enough fetches the next one.

Rules: tokens, secrets and keys are in no repr, log or exception. Everything here waits: it is called in threads.
Owned by a client, or by a node's connections to others; shared by their connections.
"""

import base64
import json
import logging
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from threading import Lock
from typing import Any, Final, NamedTuple
from urllib.parse import quote_plus

from ottla.config.errors import ConfigError
from ottla.model.plugins import find_class
from ottla.security.sasl.mechanisms import OAUTHBEARER, SaslError
from ottla.security.sasl.oauth.http import (
    Endpoint,
    FetchError,
    allowed_file,
    allowed_url,
    https_context,
    read_file,
    retrying,
)
from ottla.security.sasl.oauth.jwt import MAX_TOKEN_LENGTH, lifetime_of, require_packages, sign_jwt
from ottla.security.sasl.oauthbearer import InvalidTokenError, OAuthBearerSaslClient

logger = logging.getLogger("ottla.security")

URL_KEY: Final = "sasl.oauthbearer.token.endpoint.url"
RETRIEVER_KEY: Final = "sasl.oauthbearer.jwt.retriever.class"
HANDLER_KEY: Final = "sasl.login.callback.handler.class"
_KAFKA: Final = "org.apache.kafka.common.security.oauthbearer."
_LOGIN_HANDLERS: Final = (
    f"{_KAFKA}OAuthBearerLoginCallbackHandler",
    f"{_KAFKA}secured.OAuthBearerLoginCallbackHandler",
)
MAX_ANSWER_BYTES: Final = 1 << 20
MAX_FILE_BYTES: Final = 1 << 20
# When it failed, and the token that there is counts still.
RETRY_MS: Final = 10_000
_ASSERTION_TYPE: Final = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
_JWT_BEARER: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"

Get = Callable[[str], Any]
# A token, which may have to be waited for; FetchError. One that is no JWT comes with the time when it expires.
Retriever = Callable[[], "str | tuple[str, int]"]


class RefreshSettings(NamedTuple):
    """When a token is old enough (ExpiringCredentialRefreshConfig)."""

    window_factor: float = 0.8
    window_jitter: float = 0.05
    min_period_s: int = 60
    buffer_s: int = 300

    def refresh_at_ms(
        self, now_ms: int, starts_at_ms: int | None, expires_at_ms: int, random: Random
    ) -> float:
        """A share of its life; earlier if the buffer would be touched, later if it was had only just now."""
        life_ms = expires_at_ms - (now_ms if starts_at_ms is None else min(starts_at_ms, now_ms))
        at_ms = expires_at_ms - life_ms * (1 - self.window_factor - random.uniform(0, self.window_jitter))
        if expires_at_ms - now_ms <= (self.buffer_s + self.min_period_s) * 1000:
            return at_ms  # too short for either
        return max(min(at_ms, expires_at_ms - self.buffer_s * 1000), now_ms + self.min_period_s * 1000)


class OAuthBearerLogin:
    """The token of the moment."""

    def __init__(
        self,
        retrieve: Retriever,
        refresh: RefreshSettings | None = None,
        *,
        extensions: Mapping[str, str] | None = None,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        random: Random | None = None,
    ) -> None:
        self._retrieve = retrieve
        # Of a retriever that can tell that there is another one.
        self._is_stale: Callable[[], bool] = getattr(retrieve, "is_stale", lambda: False)
        self._refresh = refresh or RefreshSettings()
        self._extensions = dict(extensions or {})
        self._now_ms = now_ms
        self._random = random or Random()  # jitter, not security
        self._lock = Lock()
        self._token = ""
        self._refresh_at_ms = self._expires_at_ms = float("-inf")

    def new_exchange(self, host: str) -> OAuthBearerSaslClient:
        """SaslError if there is no token to be had."""
        try:
            return OAuthBearerSaslClient(self.token(), self._extensions)
        except ConfigError as error:
            raise _failed(str(error)) from None

    def token(self) -> str:
        """One that has not expired. Whoever comes while another one fetches the next waits for that."""
        with self._lock:
            now_ms = self._now_ms()
            if now_ms >= self._refresh_at_ms or self._is_stale():
                try:
                    self._renew(now_ms)
                except (FetchError, InvalidTokenError) as error:
                    self._use_on(_failed(str(error)))
                except Exception as error:  # noqa: BLE001 - somebody else's code: no login needs it while a token counts
                    self._use_on(_failed(f"the retriever failed: {type(error).__name__}"), error)
            return self._token

    def _use_on(self, failure: SaslError, cause: Exception | None = None) -> None:
        """The token that there is will do for as long as it counts; then there is none.

        It is not asked for with every login meanwhile: each would have to wait until nobody answers.
        """
        now_ms = self._now_ms()
        if now_ms >= self._expires_at_ms:
            raise failure from cause
        self._refresh_at_ms = min(now_ms + RETRY_MS, self._expires_at_ms)
        logger.warning("no other token could be had, the one that there is is used on: %s", failure.reason)

    def _renew(self, now_ms: int) -> None:
        found = self._retrieve()
        if isinstance(found, str):
            token = found.strip()
            starts_at_ms, expires_at_ms = lifetime_of(token)
        else:
            token, expires_at_ms, starts_at_ms = found[0].strip(), found[1], None
        if expires_at_ms <= now_ms:
            raise InvalidTokenError("the token that was had has expired already")
        self._token, self._expires_at_ms = token, expires_at_ms
        self._refresh_at_ms = self._refresh.refresh_at_ms(now_ms, starts_at_ms, expires_at_ms, self._random)


def _failed(what: str) -> SaslError:
    return SaslError(OAUTHBEARER, what, f"no token could be had: {what}")


# ---- from Kafka's keys ----------------------------------------------------------------------------------------


def oauth_login(
    get: Get, options: Mapping[str, str], extensions: Mapping[str, str], environ: Mapping[str, str]
) -> OAuthBearerLogin:
    """Who asks for tokens, and where; ConfigError. `options` are those of the JAAS text. Reads trust stores."""
    return OAuthBearerLogin(
        _retriever(get, options, environ),
        RefreshSettings(
            get("sasl.login.refresh.window.factor"),
            get("sasl.login.refresh.window.jitter"),
            get("sasl.login.refresh.min.period.seconds"),
            get("sasl.login.refresh.buffer.seconds"),
        ),
        extensions=extensions,
    )


def _retriever(get: Get, options: Mapping[str, str], environ: Mapping[str, str]) -> Retriever:
    handler = get(HANDLER_KEY)
    if handler is not None and handler not in _LOGIN_HANDLERS:
        return _own(HANDLER_KEY, handler)
    name = get(RETRIEVER_KEY) or f"{_KAFKA}DefaultJwtRetriever"
    made = _RETRIEVERS.get(name.removeprefix(_KAFKA)) if isinstance(name, str) else None
    if made is None:
        return _own(RETRIEVER_KEY, name)
    return made(get, options, environ)


def _own(key: str, named: Any) -> Retriever:
    """A callable without arguments, or a class of such, by its import path."""
    if isinstance(named, str):
        if named.startswith("org.apache.kafka."):
            raise ConfigError(f"{key}: {named} is not supported", key)
        try:
            named = find_class(named)
        except (ImportError, AttributeError, ValueError) as error:
            raise ConfigError(f"{key}: {named} cannot be imported: {error}", key) from None
        except Exception as error:
            raise ConfigError(f"{key}: {named} cannot be imported: {type(error).__name__}", key) from error
    try:
        found: Any = named() if isinstance(named, type) else named
    except Exception as error:
        # Its words may be about anything that somebody else's code knows.
        raise ConfigError(f"{key}: {named.__qualname__} failed: {type(error).__name__}", key) from error
    if not callable(found):
        raise ConfigError(f"{key}: it is nothing that could be called for a token", key)
    own: Retriever = found
    return own


def _text(get: Get, key: str) -> str | None:
    value = get(key)
    return str(value).strip() or None if value is not None else None


def _required(get: Get, key: str) -> str:
    value = _text(get, key)
    if value is None:
        raise ConfigError(f"{key} is not set", key)
    return value


def _option(get: Get, key: str, options: Mapping[str, str], name: str) -> str | None:
    """By its key, or as it was in JAAS texts before there was one."""
    return _text(get, key) or options.get(name, "").strip() or None


class _TokenEndpoint:
    """HttpJwtRetriever."""

    def __init__(self, get: Get, options: Mapping[str, str], environ: Mapping[str, str]) -> None:
        url = allowed_url(URL_KEY, _required(get, URL_KEY), environ)
        if url.scheme == "file":
            raise ConfigError(
                f"{URL_KEY}: a token is asked for by http or https here, not of a file", URL_KEY
            )
        context = https_context(options) if url.scheme == "https" else None
        timeouts = get("sasl.login.connect.timeout.ms"), get("sasl.login.read.timeout.ms")
        self._endpoint = Endpoint(url, context, *timeouts)
        self._backoff_ms = get("sasl.login.retry.backoff.ms")
        self._backoff_max_ms = get("sasl.login.retry.backoff.max.ms")

    def ask(self, body: str, authorization: str | None = None) -> str:
        headers = {
            "Accept": "application/json",
            "Cache-Control": "no-cache",
            "Content-Type": "application/x-www-form-urlencoded",
        }
        if authorization is not None:
            headers["Authorization"] = authorization
        sent = body.encode()
        answer = retrying(
            lambda: self._endpoint.post(sent, headers, MAX_ANSWER_BYTES),
            self._backoff_ms,
            self._backoff_max_ms,
        )
        try:
            found = json.loads(answer)
        except (ValueError, RecursionError):
            found = None
        for name in ("access_token", "id_token"):
            token = found.get(name) if isinstance(found, dict) else None
            if isinstance(token, str) and token.strip():
                return token.strip()
        raise FetchError(f"{self._endpoint}: its answer has no token")


def _client_credentials(get: Get, options: Mapping[str, str], environ: Mapping[str, str]) -> Retriever:
    """ClientCredentialsJwtRetriever: by a secret, or by an assertion that stands for it."""
    endpoint = _TokenEndpoint(get, options, environ)
    client_id = _option(get, "sasl.oauthbearer.client.credentials.client.id", options, "clientId")
    scope = _option(get, "sasl.oauthbearer.scope", options, "scope")
    if _text(get, "sasl.oauthbearer.assertion.claim.iss") or _text(get, "sasl.oauthbearer.assertion.file"):
        assertion = _assertion(get, environ)

        def by_assertion() -> str:
            fields = {
                "client_assertion_type": _ASSERTION_TYPE,
                "client_assertion": assertion(),
                "grant_type": "client_credentials",
                "client_id": client_id,
                "scope": scope,
            }
            return endpoint.ask(_form(fields))

        return by_assertion
    secret_key = "sasl.oauthbearer.client.credentials.client.secret"
    secret = _option(get, secret_key, options, "clientSecret")
    for key, value in (("sasl.oauthbearer.client.credentials.client.id", client_id), (secret_key, secret)):
        if value is None:
            raise ConfigError(f"{key} is not set", key)
    assert client_id is not None
    assert secret is not None
    if get("sasl.oauthbearer.header.urlencode"):
        client_id, secret = quote_plus(client_id), quote_plus(secret)
    authorization = f"Basic {base64.b64encode(f'{client_id}:{secret}'.encode()).decode()}"
    return lambda: endpoint.ask(_form({"grant_type": "client_credentials", "scope": scope}), authorization)


def _jwt_bearer(get: Get, options: Mapping[str, str], environ: Mapping[str, str]) -> Retriever:
    """JwtBearerJwtRetriever (KIP-1139)."""
    endpoint, assertion = _TokenEndpoint(get, options, environ), _assertion(get, environ)
    scope = _text(get, "sasl.oauthbearer.scope")
    return lambda: endpoint.ask(_form({"grant_type": _JWT_BEARER, "assertion": assertion(), "scope": scope}))


def _form(fields: Mapping[str, str | None]) -> str:
    return "&".join(f"{name}={quote_plus(value)}" for name, value in fields.items() if value is not None)


def _file(get: Get, options: Mapping[str, str], environ: Mapping[str, str]) -> Retriever:
    """FileJwtRetriever: somebody else puts tokens there."""
    url = allowed_url(URL_KEY, _required(get, URL_KEY), environ)
    if url.scheme != "file":
        raise ConfigError(f"{URL_KEY}: a token is read from a file here, by a file: URL", URL_KEY)
    return _TokenFile(Path(url.path))


class _TokenFile:
    """A file that others write. What was read in the middle of that is not used on: it may look like a token."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_at: tuple[int, int, int] | None = None

    def __call__(self) -> str:
        self._read_at = self._stamp()  # before it is read: what is written meanwhile is read again
        return _text_of(self._path, MAX_TOKEN_LENGTH)

    def is_stale(self) -> bool:
        return self._stamp() != self._read_at

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size


def _default(get: Get, options: Mapping[str, str], environ: Mapping[str, str]) -> Retriever:
    """DefaultJwtRetriever."""
    is_file = (_text(get, URL_KEY) or "").startswith("file:")
    return (_file if is_file else _client_credentials)(get, options, environ)


_RETRIEVERS: Final = {
    "DefaultJwtRetriever": _default,
    "ClientCredentialsJwtRetriever": _client_credentials,
    "JwtBearerJwtRetriever": _jwt_bearer,
    "FileJwtRetriever": _file,
}


def _text_of(path: Path, max_bytes: int) -> str:
    try:
        return read_file(path, max_bytes).decode().strip()
    except UnicodeDecodeError:
        raise FetchError(f"{path}: it is no text", retriable=False) from None


# ---- assertions -----------------------------------------------------------------------------------------------


def _assertion(get: Get, environ: Mapping[str, str]) -> Callable[[], str]:
    """What stands for a client: out of a file, or signed here for each request (AssertionSupplierFactory)."""
    key = "sasl.oauthbearer.assertion.file"
    if (given := _text(get, key)) is not None:
        ready = allowed_file(key, given, environ)
        return lambda: _text_of(ready, MAX_TOKEN_LENGTH)
    require_packages()
    key = "sasl.oauthbearer.assertion.private.key.file"
    key_file = allowed_file(key, _required(get, key), environ)
    passphrase = _text(get, "sasl.oauthbearer.assertion.private.key.passphrase")
    algorithm = _required(get, "sasl.oauthbearer.assertion.algorithm").upper()
    key = "sasl.oauthbearer.assertion.template.file"
    given = _text(get, key)
    template = None if given is None else allowed_file(key, given, environ)
    said = {
        "aud": _text(get, "sasl.oauthbearer.assertion.claim.aud"),
        "iss": _text(get, "sasl.oauthbearer.assertion.claim.iss"),
        "sub": _text(get, "sasl.oauthbearer.assertion.claim.sub"),
    }
    expires_s, not_before_s = (
        get("sasl.oauthbearer.assertion.claim.exp.seconds"),
        get("sasl.oauthbearer.assertion.claim.nbf.seconds"),
    )
    with_id = bool(get("sasl.oauthbearer.assertion.claim.jti.include"))

    def made() -> str:
        header, payload = _template(template)
        now = time.time_ns() // 1_000_000_000
        payload = {
            **{name: value for name, value in said.items() if value is not None},
            **payload,
            "iat": now,
            "exp": now + expires_s,
            "nbf": now - not_before_s,
            **({"jti": str(uuid.uuid4())} if with_id else {}),
        }
        try:
            pem = read_file(key_file, MAX_FILE_BYTES)
            return sign_jwt({**header, "alg": algorithm, "typ": "JWT"}, payload, algorithm, pem, passphrase)
        except ValueError as error:
            raise FetchError(f"{key_file}: {error}", retriable=False) from None

    return made


def _template(path: Path | None) -> tuple[dict[str, Any], dict[str, Any]]:
    if path is None:
        return {}, {}
    try:
        found = json.loads(_text_of(path, MAX_FILE_BYTES))
        header, payload = found.get("header", {}), found.get("payload", {})
    except (ValueError, AttributeError, RecursionError):
        header = payload = None
    if not isinstance(header, dict) or not isinstance(payload, dict):
        raise FetchError(f"{path}: it has no header and payload in JSON", retriable=False)
    return header, payload
