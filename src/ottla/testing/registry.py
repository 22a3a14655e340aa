"""A small schema registry inside a test, in memory, on a free port of loopback.

    with Registry() as registry:
        topic("orders", format="avro", registry=registry.url)

It has what the serializers of Confluent's clients and Ottla ask: schemas by id and subject, registering, looking up,
references, compatibility by subject and for all (Avro's fields added and removed, with and without a default, and
changed types; others are always compatible), basic authentication and bearer tokens. `down` makes it answer 503,
`forget` takes a schema away, `questions` are those that came. Owned by the thread that serves it.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import unquote, urlsplit

COMPATIBILITIES = (
    "NONE",
    "BACKWARD",
    "BACKWARD_TRANSITIVE",
    "FORWARD",
    "FORWARD_TRANSITIVE",
    "FULL",
    "FULL_TRANSITIVE",
)
MAX_BODY_BYTES = 16_000_000
# From which type to which a reader may promote.
_PROMOTIONS = {
    "int": {"long", "float", "double"},
    "long": {"float", "double"},
    "float": {"double"},
    "string": {"bytes"},
    "bytes": {"string"},
}


@dataclass
class _Stored:
    id: int
    document: dict[str, Any]


@dataclass
class _Subject:
    versions: list[_Stored] = field(default_factory=list)
    compatibility: str | None = None


class _Refusal(Exception):
    def __init__(self, status: int, code: int, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


class Registry:
    """A registry, for as long as the `with` block."""

    def __init__(
        self, *, compatibility: str = "BACKWARD", user_info: str | None = None, token: str | None = None
    ) -> None:
        if compatibility not in COMPATIBILITIES:
            raise ValueError(f"{compatibility!r} is none of {', '.join(COMPATIBILITIES)}")
        self.down = False
        self.questions: list[str] = []
        self._compatibility = compatibility
        self._allowed = {
            "Basic " + base64.b64encode(user_info.encode()).decode() if user_info else None,
            f"Bearer {token}" if token else None,
        } - {None}
        self._lock = threading.Lock()
        self._subjects: dict[str, _Subject] = {}
        self._by_id: dict[int, dict[str, Any]] = {}
        self._last_id = 0
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.registry = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def start(self) -> Self:
        self._thread.start()
        return self

    def stop(self) -> None:
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def register(self, subject: str, schema: str | Mapping[str, Any], kind: str = "AVRO") -> int:
        """As a serializer would, without asking over HTTP; the id."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        with self._lock:
            return self._register(subject, {"schema": text, "schemaType": kind}).id

    def subjects(self) -> dict[str, list[int]]:
        """The ids of each subject's versions."""
        with self._lock:
            return {name: [one.id for one in found.versions] for name, found in self._subjects.items()}

    def schema(self, schema_id: int) -> str:
        """The text of a schema."""
        with self._lock:
            return str(self._by_id[schema_id]["schema"])

    def forget(self, schema_id: int) -> None:
        """Take a schema away, from everywhere."""
        with self._lock:
            del self._by_id[schema_id]
            for subject in self._subjects.values():
                subject.versions = [one for one in subject.versions if one.id != schema_id]

    def answer(self, method: str, target: str, authorization: str | None, body: bytes) -> tuple[int, Any]:
        """The status and document for a question."""
        try:
            if self.down:
                raise _Refusal(503, 50003, "down")
            if self._allowed and authorization not in self._allowed:
                raise _Refusal(401, 40101, "Unauthorized")
            path = [unquote(part) for part in urlsplit(target).path.strip("/").split("/")]
            with self._lock:
                self.questions.append(f"{method} {target}")
                return 200, self._route(method, path, _document(body))
        except _Refusal as refusal:
            return refusal.status, {"error_code": refusal.code, "message": str(refusal)}

    def _route(self, method: str, path: list[str], given: dict[str, Any]) -> Any:
        match method, path:
            case "GET", ["schemas", "ids", number]:
                return self._found_by_id(number)
            case "GET", ["subjects"]:
                return sorted(name for name, found in self._subjects.items() if found.versions)
            case "GET", ["subjects", subject, "versions"]:
                return [number for number, _ in enumerate(self._subject(subject).versions, 1)]
            case "GET", ["subjects", subject, "versions", version]:
                return self._found_version(subject, version)
            case "POST", ["subjects", subject, "versions"]:
                return {"id": self._register(subject, given).id}
            case "POST", ["subjects", subject]:
                return self._looked_up(subject, given)
            case "GET" | "PUT", ["config", *subject] if len(subject) < 2:
                return self._config(method, subject, given)
        raise _Refusal(404, 404, "HTTP 404 Not Found")

    def _found_by_id(self, number: str) -> dict[str, Any]:
        found = self._by_id.get(int(number)) if number.isdecimal() else None
        if found is None:
            raise _Refusal(404, 40403, f"Schema {number} not found")
        return found

    def _subject(self, name: str) -> _Subject:
        found = self._subjects.get(name)
        if found is None or not found.versions:
            raise _Refusal(404, 40401, f"Subject '{name}' not found.")
        return found

    def _found_version(self, name: str, version: str) -> dict[str, Any]:
        versions = self._subject(name).versions
        number = len(versions) if version == "latest" else int(version) if version.isdecimal() else 0
        if not 0 < number <= len(versions):
            raise _Refusal(404, 40402, f"Version {version} not found.")
        stored = versions[number - 1]
        return {"subject": name, "version": number, "id": stored.id, **stored.document}

    def _looked_up(self, name: str, given: dict[str, Any]) -> dict[str, Any]:
        wanted = _normalised(given)
        for number, stored in enumerate(self._subject(name).versions, 1):
            if stored.document == wanted:
                return {"subject": name, "version": number, "id": stored.id, **stored.document}
        raise _Refusal(404, 40403, "Schema not found")

    def _register(self, name: str, given: dict[str, Any]) -> _Stored:
        wanted = _normalised(given)
        subject = self._subjects.setdefault(name, _Subject())
        for stored in subject.versions:
            if stored.document == wanted:
                return stored
        self._check_references(wanted)
        self._check_compatible(name, subject, wanted)
        known = next((number for number, document in self._by_id.items() if document == wanted), None)
        if known is None:
            self._last_id += 1
            known = self._last_id
            self._by_id[known] = wanted
        stored = _Stored(known, wanted)
        subject.versions.append(stored)
        return stored

    def _check_references(self, document: dict[str, Any]) -> None:
        for one in document.get("references", []):
            self._found_version(str(one.get("subject")), str(one.get("version")))

    def _check_compatible(self, name: str, subject: _Subject, document: dict[str, Any]) -> None:
        level = subject.compatibility or self._compatibility
        if level == "NONE" or "schemaType" in document:
            return
        before = subject.versions if level.endswith("_TRANSITIVE") else subject.versions[-1:]
        new = json.loads(document["schema"])
        for stored in before:
            old = json.loads(stored.document["schema"])
            problems: list[str] = []
            if not level.startswith("FORWARD"):
                problems += unreadable(reader=new, writer=old)
            if not level.startswith("BACKWARD"):
                problems += unreadable(reader=old, writer=new)
            if problems:
                raise _Refusal(
                    409,
                    409,
                    f"Schema being registered is incompatible with an earlier schema for subject '{name}': "
                    f"{level}: {problems[0]}",
                )

    def _config(self, method: str, subject: list[str], given: dict[str, Any]) -> dict[str, Any]:
        held = self._subjects.setdefault(subject[0], _Subject()) if subject else None
        if method == "GET":
            return {"compatibilityLevel": (held and held.compatibility) or self._compatibility}
        level = given.get("compatibility")
        if level not in COMPATIBILITIES:
            raise _Refusal(422, 42203, "Invalid compatibility level")
        if held is None:
            self._compatibility = level
        else:
            held.compatibility = level
        return {"compatibility": level}


def _document(body: bytes) -> dict[str, Any]:
    if not body:
        return {}
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        raise _Refusal(400, 400, "the body is not JSON") from None
    if not isinstance(found, dict):
        raise _Refusal(400, 400, "the body is no object")
    return found


def _normalised(given: dict[str, Any]) -> dict[str, Any]:
    """A schema as it is kept: equal ones are equal however they were written."""
    text, kind = given.get("schema"), given.get("schemaType") or "AVRO"
    if not isinstance(text, str) or kind not in ("AVRO", "JSON", "PROTOBUF"):
        raise _Refusal(422, 42201, "Invalid schema")
    if kind != "PROTOBUF":
        try:
            text = json.dumps(json.loads(text), separators=(",", ":"))
        except (ValueError, RecursionError):
            raise _Refusal(422, 42201, f"Invalid schema: no {kind}") from None
    made: dict[str, Any] = {"schema": text}
    if kind != "AVRO":
        made["schemaType"] = kind
    if given.get("references"):
        made["references"] = given["references"]
    return made


def unreadable(reader: Any, writer: Any, path: str = "") -> list[str]:
    """Why records of the writer's Avro schema cannot be read by the reader's; nothing if they can."""
    return list(_unreadable(reader, writer, path))


def _unreadable(reader: Any, writer: Any, path: str) -> Iterator[str]:
    writers = writer if isinstance(writer, list) else [writer]
    readers = reader if isinstance(reader, list) else [reader]
    if isinstance(reader, list) or isinstance(writer, list):
        for branch in writers:
            if not any(not unreadable(one, branch, path) for one in readers):
                yield f"{path or 'the value'} may be {_name(branch)}, which the reader has no type for"
        return
    kinds = _name(reader), _name(writer)
    if kinds == ("record", "record"):
        yield from _unreadable_record(reader, writer, path)
    elif kinds == ("array", "array"):
        yield from _unreadable(reader["items"], writer["items"], f"{path}[]")
    elif kinds == ("map", "map"):
        yield from _unreadable(reader["values"], writer["values"], f"{path}{{}}")
    elif kinds == ("enum", "enum"):
        missing = [symbol for symbol in writer["symbols"] if symbol not in reader["symbols"]]
        if missing and "default" not in reader:
            yield f"{path}: the reader lacks the symbol {missing[0]}"
    elif kinds[0] != kinds[1] and kinds[0] not in _PROMOTIONS.get(kinds[1], set()):
        yield f"{path or 'the value'} is {kinds[1]}, and the reader's is {kinds[0]}"


def _unreadable_record(reader: Any, writer: Any, path: str) -> Iterator[str]:
    written = {one["name"]: one for one in writer["fields"]}
    for one in reader["fields"]:
        place = f"{path}.{one['name']}" if path else one["name"]
        names = [one["name"], *one.get("aliases", [])]
        found = next((written[name] for name in names if name in written), None)
        if found is not None:
            yield from _unreadable(one["type"], found["type"], place)
        elif "default" not in one:
            yield f"the reader's field {place} has no default, and the writer lacks it"


def _name(schema: Any) -> str:
    if isinstance(schema, str):
        return schema
    kind = schema.get("type")
    return kind if isinstance(kind, str) else _name(kind)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    registry: Registry


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = 30

    def do_GET(self) -> None:
        self._answer(b"")

    def do_POST(self) -> None:
        self._answer(self._body())

    do_PUT = do_POST

    def _body(self) -> bytes | None:
        length = self.headers.get("Content-Length", "0")
        if not length.isdecimal() or int(length) > MAX_BODY_BYTES:
            return None
        return self.rfile.read(int(length))

    def _answer(self, body: bytes | None) -> None:
        if body is None:
            status, document = 413, {"error_code": 413, "message": "too large"}
        else:
            status, document = self.server.registry.answer(
                self.command, self.path, self.headers.get("Authorization"), body
            )
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """A test's output is its own."""
