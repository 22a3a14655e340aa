"""Asks a schema registry: schemas by their ids and subjects, and new ones under a subject.

Rules: ids mean the same for ever, so a schema that was found is kept; one that was not may be registered any moment,
so that is remembered for a short while only. A registry that is away (or answers nonsense) is a
`RegistryUnavailableError`, which may heal; a clear no is a `RegistryRefusedError`, and a schema that it does not have
an `UnknownSchemaError`: it says so itself, a 404 of anything else on the way is none. Addresses are tried in order.
What comes is bounded in size and time. Credentials are in no text and no repr. A client has no open connection
(questions are few, answers are kept), so threads share it; it pickles as its settings, and all of a process with the
same settings are one.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit

AVRO, PROTOBUF, JSON = "AVRO", "PROTOBUF", "JSON"
KINDS = (AVRO, PROTOBUF, JSON)

MAX_RESPONSE_BYTES = 16_000_000
MAX_SCHEMAS_KEPT = 10_000
MAX_REFERENCES = 200
MAX_SHOWN = 300
UNKNOWN_KEPT_S = 10.0
READ_BYTES = 64 * 1024
REQUEST_TIMEOUT_MS = 10_000

USER_INFO = "basic.auth.user.info"
TOKEN = "bearer.auth.token"
CA_LOCATION = "ssl.ca.location"
TIMEOUT = "request.timeout.ms"
AUTO_REGISTER = "auto.register"
# Some of Confluent's clients say every name with this before it.
PREFIX = "schema.registry."
OPTIONS = (USER_INFO, TOKEN, CA_LOCATION, TIMEOUT, AUTO_REGISTER)

_TYPE = "application/vnd.schemaregistry.v1+json"
_SUBJECT_UNKNOWN, _VERSION_UNKNOWN, _SCHEMA_UNKNOWN = 40401, 40402, 40403
_UNKNOWN: Final = (_SUBJECT_UNKNOWN, _VERSION_UNKNOWN, _SCHEMA_UNKNOWN)


class RegistryError(Exception):
    """A question to a registry that was not answered as it should; one line that says what to do."""


class RegistryUnavailableError(RegistryError):
    """Nobody answers, or not sensibly: it may be asked again."""


class RegistryRefusedError(RegistryError):
    """A clear no: credentials, a schema that does not fit those before it, one that it does not understand."""


class UnknownSchemaError(RegistryError):
    """The registry does not have this schema, subject or version, or has one that nobody here can use."""


class RegistrySettingsError(ValueError):
    """An address or an option that makes no sense."""


@dataclass(frozen=True)
class Reference:
    """A schema that another one uses: under which name there, and where it is."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True)
class Schema:
    """A schema as the registry has it; the id is 0 for one that has none yet."""

    kind: str
    text: str
    references: tuple[Reference, ...] = ()
    id: int = 0
    version: int = 0


@dataclass(frozen=True)
class RegistrySettings:
    """Where a registry is, and who asks."""

    urls: tuple[str, ...]
    user_info: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    ca_location: str | None = None
    timeout_ms: int = REQUEST_TIMEOUT_MS
    auto_register: bool = True

    @classmethod
    def of(cls, urls: str, options: Mapping[str, str] | None = None) -> RegistrySettings:
        """`http://a:8081,http://b:8081` and options by Confluent's names; RegistrySettingsError."""
        given = {key.removeprefix(PREFIX): value for key, value in (options or {}).items()}
        for name in given:
            if name not in OPTIONS:
                raise RegistrySettingsError(f"there is no option {name!r}; there are {', '.join(OPTIONS)}")
        if not isinstance(urls, str) or not urls.strip():
            raise RegistrySettingsError("takes an address, e.g. http://127.0.0.1:8081")
        addresses, inside = _addresses(urls)
        user_info, token = given.get(USER_INFO) or inside, given.get(TOKEN)
        if user_info and token:
            raise RegistrySettingsError(f"{USER_INFO} and {TOKEN} exclude each other")
        if user_info is not None and ":" not in user_info:
            raise RegistrySettingsError(f"{USER_INFO} is user:password")
        for name, text in ((USER_INFO, user_info), (TOKEN, token)):
            if text is not None and any(ord(char) < 32 or ord(char) == 127 for char in text):
                raise RegistrySettingsError(f"{name} has a line break or another control character in it")
        if token is not None and not token.isascii():
            raise RegistrySettingsError(f"{TOKEN} has characters that no token has")
        return cls(
            addresses,
            user_info,
            token,
            given.get(CA_LOCATION),
            _milliseconds(given.get(TIMEOUT, str(REQUEST_TIMEOUT_MS))),
            _boolean(AUTO_REGISTER, given.get(AUTO_REGISTER, "true")),
        )


def _addresses(urls: str) -> tuple[tuple[str, ...], str | None]:
    """The addresses without the user and password that the first may have in it."""
    found: list[str] = []
    user_info: str | None = None
    for url in urls.split(","):
        try:
            parts = urlsplit(url.strip())
            port = parts.port
        except ValueError:
            raise RegistrySettingsError("an address is http://host:port, and this is none") from None
        host = parts.hostname or ""
        legal = host.isascii() and all(33 <= ord(char) < 127 for char in host + parts.path)
        if parts.scheme not in ("http", "https") or not host or not legal or parts.query or parts.fragment:
            # A comma in a password cuts it in two: what may be a part of one is not shown.
            shown = "what has an @ in it" if "@" in urls else repr(url.strip())
            raise RegistrySettingsError(f"{shown} is no address of a registry: http://host:port is")
        if parts.username is not None and user_info is None:
            user_info = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        shown_host = f"[{host}]" if ":" in host else host
        found.append(
            f"{parts.scheme}://{shown_host}{'' if port is None else f':{port}'}{parts.path.rstrip('/')}"
        )
    return tuple(found), user_info


def _milliseconds(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= 600_000:
        raise RegistrySettingsError(f"{TIMEOUT}: {text!r} is none of 1 to 600000")
    return int(text)


def _boolean(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise RegistrySettingsError(f"{name}: {text!r} is neither true nor false")
    return text.lower() == "true"


_clients: dict[RegistrySettings, RegistryClient] = {}
_clients_lock = threading.Lock()


def registry_client(settings: RegistrySettings) -> RegistryClient:
    """The process's client of these settings: what it has learnt serves all that ask."""
    with _clients_lock:
        found = _clients.get(settings)
        if found is None:
            found = _clients[settings] = RegistryClient(settings)
        return found


class RegistryClient:
    """One registry."""

    def __init__(self, settings: RegistrySettings) -> None:
        self.settings = settings
        self._lock = threading.Lock()
        self._schemas: dict[tuple[int, bool], Schema] = {}
        self._unknown: dict[int, float] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return registry_client, (self.settings,)

    def __repr__(self) -> str:
        return f"RegistryClient({', '.join(self.settings.urls)})"

    def by_id(self, schema_id: int, *, serialized: bool = False, again: bool = False) -> Schema:
        """The schema of an id; `serialized` asks for Protobuf's as a descriptor, where the registry can give that.

        With `again` one that was unknown a moment ago is asked for nevertheless.
        """
        key = (schema_id, serialized)
        with self._lock:
            found = self._schemas.get(key)
            until = self._unknown.get(schema_id, 0.0)
        if found is not None:
            return found
        what = f"schema id {schema_id}"
        if not again and time.monotonic() < until:
            raise UnknownSchemaError(f"{what} is unknown to the registry at {self._place}")
        try:
            answer = self._ask(
                "GET", f"/schemas/ids/{schema_id}{'?format=serialized' if serialized else ''}", what
            )
        except UnknownSchemaError:
            with self._lock:
                if len(self._unknown) >= MAX_SCHEMAS_KEPT:
                    self._unknown.clear()
                self._unknown[schema_id] = time.monotonic() + UNKNOWN_KEPT_S
            raise
        found = self._schema(answer, what, schema_id)
        with self._lock:
            if len(self._schemas) >= MAX_SCHEMAS_KEPT:
                self._schemas.clear()
            self._schemas[key] = found
        return found

    def is_unknown(self, schema_id: int) -> bool:
        """Whether it was asked for a moment ago, in vain."""
        with self._lock:
            return time.monotonic() < self._unknown.get(schema_id, 0.0)

    def latest(self, subject: str) -> Schema:
        """The newest schema of a subject."""
        return self._version(subject, "latest")

    def version(self, subject: str, version: int) -> Schema:
        """A certain schema of a subject, as references name it."""
        return self._version(subject, str(version))

    def _version(self, subject: str, version: str) -> Schema:
        what = f"subject {subject!r}" + ("" if version == "latest" else f" version {version}")
        return self._schema(self._ask("GET", f"/subjects/{_quoted(subject)}/versions/{version}", what), what)

    def register(self, subject: str, schema: Schema) -> int:
        """Put a schema under a subject; the id that it has now, or had already."""
        what = f"the schema under subject {subject!r}"
        answer = self._ask("POST", f"/subjects/{_quoted(subject)}/versions", what, _document(schema))
        return self._number(answer, "id", what)

    def lookup(self, subject: str, schema: Schema) -> Schema:
        """The same schema as the subject has it; UnknownSchemaError where it does not."""
        what = f"the schema under subject {subject!r}"
        answer = self._ask("POST", f"/subjects/{_quoted(subject)}", what, _document(schema))
        return Schema(
            schema.kind,
            schema.text,
            schema.references,
            self._number(answer, "id", what),
            self._number(answer, "version", what),
        )

    def referenced(self, schema: Schema, *, serialized: bool = False) -> dict[str, Schema]:
        """All that a schema refers to, and that refers to, by name, what is needed first before what needs it."""
        found: dict[str, Schema] = {}
        self._add_references(schema, found, {}, serialized)
        return found

    def _add_references(
        self, schema: Schema, found: dict[str, Schema], open_: dict[str, None], serialized: bool
    ) -> None:
        for reference in schema.references:
            if reference.name in found or reference.name in open_:
                continue
            if len(found) + len(open_) >= MAX_REFERENCES:
                raise UnknownSchemaError(f"a schema refers to more than {MAX_REFERENCES} others")
            open_[reference.name] = None
            one = self.version(reference.subject, reference.version)
            if serialized and one.id:
                one = self.by_id(one.id, serialized=True)
            self._add_references(one, found, open_, serialized)
            del open_[reference.name]
            found[reference.name] = one

    @property
    def _place(self) -> str:
        return ", ".join(self.settings.urls)

    def _ask(
        self, method: str, path: str, what: str, document: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        problem = ""
        for url in self.settings.urls:
            try:
                status, data = self._exchange(url, method, path, document)
            except ssl.SSLError as error:
                problem = f"{url}: TLS: {error.reason or error}"
            except TimeoutError:
                problem = f"{url}: no answer within {self.settings.timeout_ms} ms"
            except (OSError, http.client.HTTPException) as error:
                problem = f"{url}: {getattr(error, 'strerror', None) or str(error) or type(error).__name__}"
            else:
                if status < 500 and status != 429:
                    return self._answer(url, status, data, what)
                problem = f"{url}: it answers {status} {_said(data)}".rstrip()
        raise RegistryUnavailableError(f"the schema registry cannot be asked for {what}: {problem}")

    def _exchange(
        self, url: str, method: str, path: str, document: dict[str, Any] | None
    ) -> tuple[int, bytes]:
        parts = urlsplit(url)
        timeout_s = self.settings.timeout_ms / 1000
        deadline = time.monotonic() + timeout_s
        connection: http.client.HTTPConnection
        if parts.scheme == "https":
            # Read each time: a file that has been replaced counts.
            context = self._context()
            connection = http.client.HTTPSConnection(
                parts.hostname or "", parts.port, timeout=timeout_s, context=context
            )
        else:
            connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout_s)
        try:
            body = None if document is None else json.dumps(document).encode()
            connection.request(method, parts.path + path, body, self._headers(body is not None))
            response = connection.getresponse()
            return response.status, _read(response, deadline)
        finally:
            connection.close()

    def _context(self) -> ssl.SSLContext:
        try:
            return ssl.create_default_context(cafile=self.settings.ca_location)
        except OSError as error:
            raise RegistryRefusedError(
                f"{CA_LOCATION} {self.settings.ca_location}: {error.strerror or 'has no certificate'}"
            ) from None

    def _headers(self, has_body: bool) -> dict[str, str]:
        made = {"Accept": f"{_TYPE}, application/json"}
        if has_body:
            made["Content-Type"] = _TYPE
        if self.settings.user_info is not None:
            made["Authorization"] = "Basic " + base64.b64encode(self.settings.user_info.encode()).decode()
        elif self.settings.token is not None:
            made["Authorization"] = f"Bearer {self.settings.token}"
        return made

    def _answer(self, url: str, status: int, data: bytes, what: str) -> dict[str, Any]:
        try:
            found = json.loads(data)
        except (ValueError, RecursionError):
            found = None
        if status == 200 and isinstance(found, dict):
            return found
        if status == 200 or 300 <= status < 400:
            raise RegistryUnavailableError(
                f"{url} does not answer as a schema registry does (status {status})"
            )
        code = found.get("error_code") if isinstance(found, dict) else None
        if status == 404 and code in _UNKNOWN:
            raise UnknownSchemaError(f"{what} is unknown to the registry at {url}")
        if status == 404:
            raise RegistryUnavailableError(f"{url} is no schema registry: it has nothing there (status 404)")
        if status in (401, 403):
            raise RegistryRefusedError(
                f"the schema registry at {url} refuses access (status {status}); see {USER_INFO} and {TOKEN}"
            )
        said = _said(data)
        if status == 409:
            raise RegistryRefusedError(
                f"the schema registry at {url} refuses {what}: it is not compatible with those before it"
                f"{': ' + said if said else ''}; give a new field a default, or change the subject's compatibility"
            )
        raise RegistryRefusedError(
            f"the schema registry at {url} refuses {what} (status {status}){': ' * bool(said)}{said}"
        )

    def _schema(self, answer: dict[str, Any], what: str, schema_id: int = 0) -> Schema:
        text, kind = answer.get("schema"), answer.get("schemaType") or AVRO
        references, version = answer.get("references") or [], answer.get("version") or 0
        given_id = answer.get("id") or 0
        if (
            not isinstance(text, str)
            or not isinstance(kind, str)
            or not isinstance(references, list)
            or not isinstance(version, int)
            or not isinstance(given_id, int)
        ):
            raise self._nonsense(what)
        if kind not in KINDS:
            raise UnknownSchemaError(
                f"{what} is of the type {kind[:40]!r}, which is none of {', '.join(KINDS)}"
            )
        return Schema(
            kind,
            text,
            tuple(self._reference(one, what) for one in references),
            schema_id or given_id,
            version,
        )

    def _reference(self, given: Any, what: str) -> Reference:
        if not isinstance(given, dict):
            raise self._nonsense(what)
        name, subject, version = given.get("name"), given.get("subject"), given.get("version")
        if not isinstance(name, str) or not isinstance(subject, str) or not isinstance(version, int):
            raise self._nonsense(what)
        return Reference(name, subject, version)

    def _number(self, answer: dict[str, Any], name: str, what: str) -> int:
        found = answer.get(name)
        if not isinstance(found, int) or isinstance(found, bool) or not 0 < found < 2**31:
            raise self._nonsense(what)
        return found

    def _nonsense(self, what: str) -> RegistryUnavailableError:
        return RegistryUnavailableError(
            f"the schema registry at {self._place} answers what cannot be for {what}"
        )


def _read(response: http.client.HTTPResponse, deadline: float) -> bytes:
    """The body, as far as it may be long and may take."""
    if response.length is not None and response.length > MAX_RESPONSE_BYTES:
        raise http.client.HTTPException(f"answers with {response.length:,} bytes")
    found = bytearray()
    while chunk := response.read1(READ_BYTES):
        found += chunk
        if len(found) > MAX_RESPONSE_BYTES:
            raise http.client.HTTPException(f"answers with more than {MAX_RESPONSE_BYTES:,} bytes")
        if time.monotonic() > deadline:
            raise TimeoutError
    if response.length:
        raise http.client.HTTPException("the answer ends in the middle")
    return bytes(found)


def _said(data: bytes) -> str:
    """The registry's own words, in one line and not too long."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return ""
    message = found.get("message") if isinstance(found, dict) else None
    text = " ".join(message.split()) if isinstance(message, str) else ""
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."


def _document(schema: Schema) -> dict[str, Any]:
    made: dict[str, Any] = {"schema": schema.text}
    if schema.kind != AVRO:
        made["schemaType"] = schema.kind
    if schema.references:
        made["references"] = [
            {"name": one.name, "subject": one.subject, "version": one.version} for one in schema.references
        ]
    return made


def _quoted(subject: str) -> str:
    return quote(subject, safe="")
