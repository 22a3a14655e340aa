"""What may be asked of an identity provider, and what becomes of answers that are none."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.support.certificates import Authority
from tests.support.identity_provider import IdentityProvider

from ottla.config.errors import ConfigError
from ottla.security.sasl.oauth.http import (
    ALLOWED_FILES,
    ALLOWED_URLS,
    Endpoint,
    FetchError,
    allowed_file,
    allowed_url,
    https_context,
    read_file,
    retrying,
)

KEY = "sasl.oauthbearer.jwks.endpoint.url"
GOOD = "https://idp.example/keys"


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IdentityProvider]:
    with IdentityProvider(Authority(tmp_path_factory.mktemp("idp"))) as made:
        yield made


def endpoint(provider: IdentityProvider, path: str = "/jwks") -> Endpoint:
    options = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(provider.authority.certificate)}
    return Endpoint(urlsplit(provider.url + path), https_context(options), 5_000, 5_000)


def test_a_url_has_to_be_allowed_letter_by_letter() -> None:
    environ = {ALLOWED_URLS: f"http://a, {GOOD} ,file:/etc/jwks.json"}
    assert allowed_url(KEY, GOOD, environ).hostname == "idp.example"
    assert allowed_url(KEY, "file:/etc/jwks.json", environ).path == "/etc/jwks.json"
    for other in (
        GOOD + "/",
        GOOD + "?x",
        "https://idp.example",
        "HTTPS://idp.example/keys",
        "file:/etc/jwks.jso",
    ):
        with pytest.raises(ConfigError, match=ALLOWED_URLS):
            allowed_url(KEY, other, environ)
    with pytest.raises(ConfigError, match=ALLOWED_URLS):
        allowed_url(KEY, GOOD, {})


@pytest.mark.parametrize(
    "value",
    ["", "idp", "ftp://idp/keys", "https://", "https://[", "https://h:port/", "https://me:geheim@idp/"],
)
def test_what_is_no_url_is_refused_whatever_is_allowed(value: str) -> None:
    with pytest.raises(ConfigError, match=KEY):
        allowed_url(KEY, value, {ALLOWED_URLS: value})


def test_a_file_has_to_be_allowed(tmp_path: Path) -> None:
    file = tmp_path / "key.pem"
    assert allowed_file("k", str(file), {ALLOWED_FILES: str(file)}) == file
    assert allowed_file("k", f"{tmp_path}/x/../key.pem", {ALLOWED_FILES: str(file)}) == file
    with pytest.raises(ConfigError, match=ALLOWED_FILES):
        allowed_file("k", str(file), {ALLOWED_URLS: str(file)})


def test_a_document_is_had(provider: IdentityProvider) -> None:
    assert b'"keys"' in endpoint(provider).get(100_000)
    assert b"access_token" in endpoint(provider, "/token").post(b"grant_type=x", {}, 100_000)


def test_a_longer_one_is_not_read(provider: IdentityProvider) -> None:
    provider.instead["/long"] = lambda: (200, b"x" * 300_000)
    with pytest.raises(FetchError, match="more than 1000 bytes") as refused:
        endpoint(provider, "/long").get(1000)
    assert not refused.value.retriable


@pytest.mark.parametrize("status", [301, 302, 307])
def test_redirects_are_not_followed(provider: IdentityProvider, status: int) -> None:
    provider.instead["/moved"] = lambda: (status, b"")
    with pytest.raises(FetchError, match=f"it answers {status}") as refused:
        endpoint(provider, "/moved").get(1000)
    assert not refused.value.retriable
    assert provider.asked["/elsewhere"] == 0


@pytest.mark.parametrize(("status", "retriable"), [(400, False), (401, False), (500, True), (503, True)])
def test_an_error_is_told_by_its_code_only(provider: IdentityProvider, status: int, retriable: bool) -> None:
    document = {"error": "invalid_client\n", "error_description": "geheim", "echo": "geheim"}
    provider.instead["/bad"] = lambda: (status, document)
    with pytest.raises(FetchError) as refused:
        endpoint(provider, "/bad").post(b"geheim", {"Authorization": "geheim"}, 1000)
    assert f"it answers {status} (invalid_client?)" in str(refused.value)
    assert refused.value.retriable is retriable
    assert "geheim" not in str(refused.value)


@pytest.mark.parametrize("document", [b"", b"[1]", b'{"error": 7}', b"[" * 10_000])
def test_an_error_without_words(provider: IdentityProvider, document: bytes) -> None:
    provider.instead["/odd"] = lambda: (500, document)
    with pytest.raises(FetchError, match=r"it answers 500$"):
        endpoint(provider, "/odd").get(100_000)


def test_a_certificate_of_somebody_else_is_not_trusted(provider: IdentityProvider, tmp_path: Path) -> None:
    foreign = Authority(tmp_path, "Foreign")
    options = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(foreign.certificate)}
    for context in (https_context(options), https_context({}), None):
        with pytest.raises(FetchError, match="its certificate is not trusted"):
            Endpoint(urlsplit(provider.jwks_url), context).get(1000)


def test_nobody_there() -> None:
    with pytest.raises(FetchError) as refused:
        Endpoint(urlsplit("http://127.0.0.1:1/keys?secret=geheim")).get(1000)
    assert refused.value.retriable
    assert "geheim" not in str(refused.value)


def test_files(tmp_path: Path) -> None:
    file = tmp_path / "jwks.json"
    with pytest.raises(FetchError, match="No such file"):
        read_file(file, 10)
    file.write_text("x" * 11)
    with pytest.raises(FetchError, match="more than 10 bytes"):
        read_file(file, 10)
    assert Endpoint(urlsplit(file.as_uri())).get(11) == b"x" * 11
    with pytest.raises(FetchError):
        read_file(tmp_path, 10)


def test_it_is_tried_again_after_pauses_that_double() -> None:
    now, pauses, attempts = [0.0], [], []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        now[0] += seconds

    def attempt() -> int:
        attempts.append(now[0])
        if len(attempts) < 4:
            raise FetchError("not now")
        return 7

    assert retrying(attempt, 100, 10_000, sleep=sleep, monotonic=lambda: now[0]) == 7
    assert pauses == pytest.approx([0.1, 0.2, 0.4])
    attempts.clear()
    with pytest.raises(FetchError):
        retrying(attempt, 100, 250, sleep=sleep, monotonic=lambda: now[0])
    assert len(attempts) == 2

    def final() -> int:
        attempts.append(0)
        raise FetchError("never", retriable=False)

    attempts.clear()
    with pytest.raises(FetchError):
        retrying(final, 100, 10_000, sleep=sleep, monotonic=lambda: now[0])
    assert len(attempts) == 1


@contextmanager
def speaking(speak: Callable[[socket.socket], None]) -> Iterator[Endpoint]:
    """Somebody who is no web server, or a bad one."""
    accepted: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with suppress(OSError):
                accepted.append(listening.accept()[0])
                with accepted[0] as peer:
                    peer.recv(65536)
                    speak(peer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        port = listening.getsockname()[1]
        yield Endpoint(urlsplit(f"http://127.0.0.1:{port}/keys"), None, 5_000, 100)
        with suppress(OSError):
            accepted[0].shutdown(socket.SHUT_RDWR)
        thread.join(30)
        assert not thread.is_alive()


def without_end(piece: bytes) -> Callable[[socket.socket], None]:
    def speak(peer: socket.socket) -> None:
        while True:
            peer.sendall(piece)

    return speak


@pytest.mark.parametrize(
    "piece",
    [
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\nX: " + b"y" * 60_000 + b"\r\n\r\n",
    ],
)
def test_an_answer_that_never_begins_is_given_up(piece: bytes) -> None:
    with speaking(without_end(piece)) as bad, pytest.raises(FetchError, match="its answer takes too long"):
        bad.get(1000)


@pytest.mark.parametrize(
    "answer",
    [
        b'HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"keys":[]}',
        b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\n{"keys":[]}',
        b"\x15\x03\x03",
        b"",
    ],
)
def test_half_an_answer_is_none(answer: bytes) -> None:
    with speaking(lambda peer: peer.sendall(answer)) as bad, pytest.raises(FetchError):
        bad.get(1000)


def test_who_does_not_hang_up_after_its_answer_has_answered() -> None:
    done = threading.Event()

    def speak(peer: socket.socket) -> None:
        peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        assert done.wait(30)

    with speaking(speak) as kept_open:
        assert kept_open.get(1000) == b"ok"
        done.set()
