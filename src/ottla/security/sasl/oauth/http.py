"""What an identity provider is asked for (as HttpJwtRetriever does): one document, bounded in size and time.

Rules: what may be asked is said by the environment of the process and not by whoever writes its configuration
(CVE-2025-27817): a URL, or a file, has to stand in OTTLA_SASL_OAUTHBEARER_ALLOWED_URLS or _ALLOWED_FILES letter by
letter, which are Kafka's system properties org.apache.kafka.sasl.oauthbearer.allowed.urls and .allowed.files. Redirects
are not followed and no proxy is asked: what was allowed is what is asked. No error has what was sent, nor a document.
Called in threads: everything here waits. Stateless.
"""

import http.client
import json
import os
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import SplitResult, urlsplit

from ottla.config.errors import ConfigError
from ottla.security.tls.contexts import client_context, tls_settings

ALLOWED_URLS: Final = "OTTLA_SASL_OAUTHBEARER_ALLOWED_URLS"
ALLOWED_FILES: Final = "OTTLA_SASL_OAUTHBEARER_ALLOWED_FILES"
# Where nothing is said; Kafka would wait for ever.
DEFAULT_TIMEOUT_MS: Final = 10_000
# An answer has to be there after so many times of its read timeout, however often a piece of it comes.
_PIECES: Final = 3
_PIECE_BYTES: Final = 1 << 14
_MAX_SHOWN: Final = 200
_TOO_LATE: Final = "its answer takes too long"
_SCHEMES: Final = ("http", "https", "file")
_OK: Final = (200, 201)
# What will be no better the next time.
_FINAL: Final = frozenset(
    {
        301,
        302,
        303,
        307,
        308,
        400,
        401,
        402,
        403,
        404,
        405,
        406,
        407,
        409,
        410,
        411,
        412,
        413,
        414,
        415,
        501,
        505,
    }
)
_PRINTABLE: Final = re.compile(r"[^ -~]")

_T = TypeVar("_T")


class FetchError(Exception):
    """A document that cannot be had; the message is one line without a secret."""

    def __init__(self, message: str, *, retriable: bool = True) -> None:
        super().__init__(message)
        self.retriable = retriable


def allowed_url(key: str, value: str, environ: Mapping[str, str] = os.environ) -> SplitResult:
    """ConfigError for what is no URL, or is not on the allow list."""
    try:
        url = urlsplit(value)
        _ = url.port
    except ValueError:
        raise ConfigError(f"{key}: {value!r} is no URL", key) from None
    if url.scheme not in _SCHEMES:
        raise ConfigError(f"{key}: {value!r} is no URL of {', '.join(_SCHEMES)}", key)
    if url.username is not None or not (url.path if url.scheme == "file" else url.hostname):
        raise ConfigError(f"{key}: the URL has no host or file, or a user in it", key)
    _check_allowed(key, value, ALLOWED_URLS, environ)
    return url


def allowed_file(key: str, value: str, environ: Mapping[str, str] = os.environ) -> Path:
    """ConfigError for a file that is not on the allow list."""
    path = os.path.abspath(value)
    _check_allowed(key, path, ALLOWED_FILES, environ)
    return Path(path)


def _check_allowed(key: str, value: str, variable: str, environ: Mapping[str, str]) -> None:
    if value not in {each.strip() for each in environ.get(variable, "").split(",")}:
        raise ConfigError(
            f"{key}: {value} is not among those that the environment variable {variable} allows; it names them, "
            "separated by commas, so that no configuration can have others asked",
            key,
        )


def https_context(options: Mapping[str, str]) -> ssl.SSLContext:
    """By the ssl.* options of a JAAS text, as in Kafka; without any, what this system trusts."""
    if not any(name.startswith("ssl.") for name in options):
        return ssl.create_default_context()
    return client_context(tls_settings(options.get))


def read_file(path: Path, max_bytes: int) -> bytes:
    """FetchError for what cannot be read, or is longer."""
    try:
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
    except OSError as error:
        raise FetchError(f"{path}: {error.strerror or error}") from None
    if len(data) > max_bytes:
        raise FetchError(f"{path}: more than {max_bytes} bytes", retriable=False)
    return data


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a document is to be had."""

    url: SplitResult
    context: ssl.SSLContext | None = field(default=None, repr=False)
    connect_timeout_ms: int | None = None
    read_timeout_ms: int | None = None

    def __str__(self) -> str:
        return f"{self.url.scheme}://{self.url.netloc}{self.url.path}"

    @property
    def is_file(self) -> bool:
        return self.url.scheme == "file"

    def get(self, max_bytes: int) -> bytes:
        if self.is_file:
            return read_file(Path(self.url.path), max_bytes)
        return self._ask("GET", None, {"Accept": "application/json"}, max_bytes)

    def post(self, body: bytes, headers: Mapping[str, str], max_bytes: int) -> bytes:
        return self._ask("POST", body, headers, max_bytes)

    def _ask(self, method: str, body: bytes | None, headers: Mapping[str, str], max_bytes: int) -> bytes:
        read_s = (self.read_timeout_ms or DEFAULT_TIMEOUT_MS) / 1000
        connection = self._connection()
        deadline: _Deadline | None = None
        try:
            connection.connect()
            connection.sock.settimeout(read_s)
            deadline = _Deadline(connection.sock, _PIECES * read_s)
            path = (self.url.path or "/") + (f"?{self.url.query}" if self.url.query else "")
            connection.request(method, path, body, {**headers, "Connection": "close"})
            response = connection.getresponse()
            data = self._read(response, max_bytes)
            if deadline.is_over:  # what was cut off has come to its end
                raise TimeoutError
        except (OSError, http.client.HTTPException, ValueError) as error:
            late = deadline is not None and deadline.is_over
            raise FetchError(f"{self}: {_TOO_LATE if late else _reason(error)}") from None
        finally:
            if deadline is not None:
                deadline.cancel()
            connection.close()
        if response.status not in _OK:
            raise FetchError(
                f"{self}: it answers {response.status}{_words_of(data)}",
                retriable=response.status not in _FINAL,
            )
        return data

    def _connection(self) -> http.client.HTTPConnection:
        host, port = self.url.hostname or "", self.url.port
        timeout_s = (self.connect_timeout_ms or DEFAULT_TIMEOUT_MS) / 1000
        if self.url.scheme == "https":
            context = self.context or ssl.create_default_context()
            return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=context)
        return http.client.HTTPConnection(host, port, timeout=timeout_s)

    def _read(self, response: http.client.HTTPResponse, max_bytes: int) -> bytes:
        """All of it: what is cut off may look like a whole document."""
        pieces: list[bytes] = []
        size, announced = 0, response.length
        while size != announced and (piece := response.read1(_PIECE_BYTES)):
            size += len(piece)
            if size > max_bytes:
                raise FetchError(f"{self}: it answers with more than {max_bytes} bytes", retriable=False)
            pieces.append(piece)
        if announced is not None and size < announced:
            raise http.client.IncompleteRead(b"", announced - size)
        return b"".join(pieces)


class _Deadline:
    """Ends a connection when its time is over: a line of an answer's head may come letter by letter, without end."""

    def __init__(self, sock: socket.socket, seconds: float) -> None:
        self.is_over = False
        self._sock = sock
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True
        self._timer.start()

    def cancel(self) -> None:
        self._timer.cancel()

    def _end(self) -> None:
        self.is_over = True
        with suppress(OSError):
            # The socket below TLS, whose own way to end is for the thread that reads.
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, TimeoutError):
        return "it does not answer in time"
    if isinstance(error, OSError):
        return str(error.strerror or error)
    return "it does not answer as HTTP has it"


def _words_of(document: bytes) -> str:
    """What OAuth has it say (RFC 6749, 5.2), and nothing else of the document: it may repeat what was sent."""
    try:
        found: Any = json.loads(document)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(found, dict):
        return ""
    words = [found[name] for name in ("error", "errorCode") if isinstance(found.get(name), str)]
    return f" ({_PRINTABLE.sub('?', words[0])[:_MAX_SHOWN]})" if words else ""


def retrying(
    attempt: Callable[[], _T],
    backoff_ms: int,
    backoff_max_ms: int,
    *,
    sleep: Callable[[float], object] = time.sleep,
    monotonic: Callable[[], float] = time.monotonic,
) -> _T:
    """Kafka's Retry: again after pauses that double, for `backoff_max_ms` in all."""
    until, pause_s = monotonic() + backoff_max_ms / 1000, max(backoff_ms, 1) / 1000
    while True:
        try:
            return attempt()
        except FetchError as error:
            if not error.retriable or monotonic() + pause_s > until:
                raise
        sleep(pause_s)
        pause_s *= 2
