"""The client of schema registries against ours, and against peers that lie."""

from __future__ import annotations

import json
import pickle
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from ottla.client.registry import client as module
from ottla.client.registry.client import (
    Reference,
    RegistryClient,
    RegistryRefusedError,
    RegistrySettings,
    RegistrySettingsError,
    RegistryUnavailableError,
    Schema,
    UnknownSchemaError,
    registry_client,
)
from ottla.testing import Registry


@pytest.fixture
def registry() -> Iterator[Registry]:
    with Registry() as made:
        yield made


def client_of(url: str, **options: str) -> RegistryClient:
    return RegistryClient(RegistrySettings.of(url, {k.replace("_", "."): v for k, v in options.items()}))


def record(*fields: dict[str, object]) -> str:
    return json.dumps({"type": "record", "name": "R", "fields": list(fields)})


A = {"name": "a", "type": "int"}
B = {"name": "b", "type": "string", "default": ""}
B_NEEDED = {"name": "b", "type": "string"}


def test_registered_looked_up_and_found(registry: Registry) -> None:
    client = client_of(registry.url)
    first = client.register("orders-value", Schema("AVRO", record(A)))
    assert client.register("orders-value", Schema("AVRO", record(A))) == first
    second = client.register("orders-value", Schema("AVRO", record(A, B)))
    assert second != first
    latest = client.latest("orders-value")
    assert (latest.id, latest.version, latest.kind) == (second, 2, "AVRO")
    assert client.version("orders-value", 1).id == first
    assert json.loads(client.by_id(first).text) == json.loads(record(A))
    assert client.lookup("orders-value", Schema("AVRO", record(A))).version == 1


def test_a_subject_with_a_slash_and_a_kind(registry: Registry) -> None:
    client = client_of(registry.url)
    found = client.register("a/b c-value", Schema("JSON", '{"type": "object"}'))
    assert client.by_id(found).kind == "JSON"
    assert list(registry.subjects()) == ["a/b c-value"]


def test_an_id_is_asked_for_once_and_an_unknown_one_again_after_a_while(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    client = client_of(registry.url)
    known = registry.register("s", record(A))
    client.by_id(known)
    client.by_id(known)
    for _ in range(3):
        with pytest.raises(UnknownSchemaError, match="schema id 2 is unknown to the registry at http://127"):
            client.by_id(2)
    assert len(registry.questions) == 2
    assert registry.register("s", record(A, B)) == 2
    now[0] += module.UNKNOWN_KEPT_S + 1
    assert client.by_id(2).id == 2


def test_what_does_not_fit_is_one_line_that_says_why(registry: Registry) -> None:
    client = client_of(registry.url)
    client.register("s", Schema("AVRO", record(A)))
    with pytest.raises(
        RegistryRefusedError, match=r"not compatible with those before it: .*BACKWARD: .*field b"
    ):
        client.register("s", Schema("AVRO", record(A, B_NEEDED)))
    with pytest.raises(
        RegistryRefusedError, match=r"refuses the schema under subject 's' .status 422.: Invalid"
    ):
        client.register("s", Schema("AVRO", "{"))
    with pytest.raises(UnknownSchemaError, match="the schema under subject 's' is unknown"):
        client.lookup("s", Schema("AVRO", record(B)))
    with pytest.raises(UnknownSchemaError, match="subject 'none' is unknown"):
        client.latest("none")


def test_references_come_before_what_needs_them(registry: Registry) -> None:
    client = client_of(registry.url)
    client.register("inner", Schema("AVRO", record(A)))
    client.register("middle", Schema("AVRO", record(A, B), (Reference("I", "inner", 1),)))
    outer = Schema("AVRO", record(B), (Reference("M", "middle", 1), Reference("I", "inner", 1)))
    found = client.by_id(client.register("outer", outer))
    assert list(client.referenced(found)) == ["I", "M"]


def test_references_in_a_circle_end(registry: Registry) -> None:
    client = client_of(registry.url)
    number = client.register("s", Schema("AVRO", record(A)))
    registry._by_id[number]["references"] = [{"name": "S", "subject": "s", "version": 1}]
    assert list(client.referenced(client.latest("s"))) == ["S"]


@pytest.mark.parametrize("options", [{"basic_auth_user_info": "me:s3cret"}, {"bearer_auth_token": "s3cret"}])
def test_credentials_are_shown_to_the_registry_alone(options: dict[str, str]) -> None:
    with Registry(user_info="me:s3cret", token="s3cret") as registry:
        client = client_of(registry.url, **options)
        client.register("s", Schema("AVRO", record(A)))
        wrong = dict.fromkeys(options, "me:wr0ng")
        with pytest.raises(RegistryRefusedError, match=r"refuses access .status 401") as caught:
            client_of(registry.url, **wrong).latest("s")
        assert "wr0ng" not in str(caught.value)
    assert "s3cret" not in repr(client) + repr(client.settings)


def test_credentials_in_the_address_are_taken_out_of_it() -> None:
    with Registry(user_info="me:p@ss") as registry:
        client = client_of(registry.url.replace("//", "//me:p%40ss@"))
        assert client.register("s", Schema("AVRO", record(A))) == 1
        assert "p@ss" not in repr(client) + repr(client.settings)
        assert client.settings.urls == (registry.url,)


def test_it_pickles_as_its_settings_and_a_process_has_one(registry: Registry) -> None:
    client = registry_client(RegistrySettings.of(registry.url, {"bearer.auth.token": "t"}))
    assert pickle.loads(pickle.dumps(client)) is client


def test_the_next_address_is_asked_where_one_is_away(registry: Registry) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        away = f"http://127.0.0.1:{unused.getsockname()[1]}"
        assert client_of(f"{away},{registry.url}").register("s", Schema("AVRO", record(A))) == 1
        with pytest.raises(RegistryUnavailableError, match=f"cannot be asked for subject 's': {away}: "):
            client_of(away).latest("s")
    registry.down = True
    with pytest.raises(RegistryUnavailableError, match="it answers 503 down"):
        client_of(registry.url).latest("s")


def test_an_unavailable_registry_is_no_unknown_schema(registry: Registry) -> None:
    client = client_of(registry.url)
    number = registry.register("s", record(A))
    registry.down = True
    with pytest.raises(RegistryUnavailableError):
        client.by_id(number)
    registry.down = False
    assert client.by_id(number).id == number


@contextmanager
def peer(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """Something that listens, and answers as it likes."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                try:
                    connection.recv(65536)
                    answer(connection)
                except OSError:
                    pass

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def http(status: int, body: str, length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    return f"HTTP/1.1 {status} X\r\nContent-Length: {size}\r\n\r\n{body}".encode()


@pytest.mark.parametrize(
    ("sent", "kind", "words"),
    [
        (b"", RegistryUnavailableError, "cannot be asked for schema id 7"),
        (b"SSH-2.0-x\r\n", RegistryUnavailableError, "cannot be asked"),
        (http(200, "<html>"), RegistryUnavailableError, "does not answer as a schema registry does"),
        (http(200, "[" * 100_000), RegistryUnavailableError, "does not answer as a schema registry does"),
        (http(302, ""), RegistryUnavailableError, "does not answer as a schema registry does"),
        (http(404, "<html>"), RegistryUnavailableError, "is no schema registry"),
        (http(404, '{"error_code": 404}'), RegistryUnavailableError, "is no schema registry"),
        (http(200, "{}"), RegistryUnavailableError, "answers what cannot be for schema id 7"),
        (http(200, '{"schema": 1}'), RegistryUnavailableError, "answers what cannot be"),
        (http(200, '{"schema": "", "references": [1]}'), RegistryUnavailableError, "answers what cannot be"),
        (http(200, '{"schema": "", "schemaType": "XML"}'), UnknownSchemaError, "of the type 'XML'"),
        (http(200, "{", 17_000_000), RegistryUnavailableError, "answers with 17,000,000 bytes"),
        (http(200, '{"schema": "x"}', 99), RegistryUnavailableError, "cannot be asked"),
    ],
)
def test_a_peer_that_lies(sent: bytes, kind: type[Exception], words: str) -> None:
    with peer(lambda connection: connection.sendall(sent)) as url, pytest.raises(kind, match=words):
        client_of(url).by_id(7)


def test_a_peer_that_says_nothing_is_not_waited_for_for_ever() -> None:
    held: list[socket.socket] = []
    with (
        peer(lambda connection: held.append(connection.dup())) as url,
        pytest.raises(RegistryUnavailableError, match="no answer within 50 ms"),
    ):
        client_of(url, request_timeout_ms="50").by_id(7)
    for connection in held:
        connection.close()


@pytest.mark.parametrize(
    ("url", "options", "words"),
    [
        ("", {}, "takes an address"),
        ("localhost:8081", {}, "is no address of a registry"),
        ("ftp://a", {}, "is no address"),
        ("http://a:x", {}, "this is none"),
        ("http://a/b?c", {}, "is no address"),
        ("ftp://me:s3cret@a", {}, "what has an @ in it is no address"),
        ("http://me:1,s3cret@a", {}, "what has an @ in it is no address"),
        ("http://a", {"basic.auth": "x"}, "there is no option 'basic.auth'"),
        ("http://a", {"basic.auth.user.info": "x"}, "is user:password"),
        ("http://a", {"basic.auth.user.info": "x:y", "bearer.auth.token": "z"}, "exclude each other"),
        ("http://a", {"bearer.auth.token": "z\r\nX: y"}, "control character"),
        ("http://a", {"request.timeout.ms": "soon"}, "none of 1 to 600000"),
        ("http://a", {"auto.register": "maybe"}, "neither true nor false"),
    ],
)
def test_settings_that_are_wrong(url: str, options: dict[str, str], words: str) -> None:
    with pytest.raises(RegistrySettingsError, match=words) as caught:
        RegistrySettings.of(url, options)
    assert "s3cret" not in str(caught.value)


def test_the_long_names_of_confluents_clients() -> None:
    found = RegistrySettings.of("https://a", {"schema.registry.ssl.ca.location": "ca.pem"})
    assert found.ca_location == "ca.pem"
    with pytest.raises(RegistryRefusedError, match=r"ssl.ca.location ca.pem: No such file"):
        RegistryClient(found).latest("s")
