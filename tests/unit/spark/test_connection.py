"""Clients of Spark's processes: kept for their settings, one's own after a fork, TLS from PEM files."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.client.errors import NoBrokersAvailable
from ottla.spark import connection
from ottla.spark.connection import KafkaOptions, connect, kafka_options, shared_client
from ottla.testing.broker import Broker


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as node:
        yield node


def options(broker: Broker, **more: str) -> KafkaOptions:
    given = {"kafka.bootstrap.servers": broker.bootstrap_servers}
    return kafka_options(given | {f"kafka.{name.replace('_', '.')}": value for name, value in more.items()})


def test_a_client_is_kept_for_its_settings(broker: Broker) -> None:
    first = shared_client(options(broker))
    assert shared_client(options(broker)) is first
    assert first.config.client_id == "ottla-spark"
    assert first.config.bootstrap_timeout_ms == first.config.default_api_timeout_ms
    other = shared_client(options(broker, client_id="other", bootstrap_timeout_ms="77000"))
    assert other is not first
    assert (other.config.client_id, other.config.bootstrap_timeout_ms) == ("other", 77_000)


def test_there_are_never_too_many(broker: Broker) -> None:
    for number in range(connection.MAX_CLIENTS + 3):
        shared_client(options(broker, client_id=f"c{number}"))
    assert len(connection._clients) == connection.MAX_CLIENTS


def test_a_child_makes_its_own(broker: Broker) -> None:
    ours = shared_client(options(broker))
    child = os.fork()
    if child == 0:
        try:
            theirs = shared_client(options(broker))
            os._exit(0 if theirs is not ours and theirs.topics() is not None else 1)
        except BaseException:  # noqa: BLE001 - whatever it is, the parent hears of it
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert ours.topics() is not None, "the child has not touched the parent's connections"


class TlsProxy:
    """Ends TLS and passes everything on to a broker, a thread a direction."""

    def __init__(self, certificate: Path, target: str) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate, certificate.with_name("key.pem"))
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                raw, _ = self._listener.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._connect, args=(raw,), daemon=True).start()

    def _connect(self, raw: socket.socket) -> None:
        try:
            outer = self._context.wrap_socket(raw, server_side=True)
        except OSError:
            raw.close()
            return
        inner = socket.create_connection(self._target)
        threading.Thread(target=self._copy, args=(inner, outer), daemon=True).start()
        self._copy(outer, inner)

    @staticmethod
    def _copy(source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                target.sendall(data)
        except OSError:
            return

    def close(self) -> None:
        self._listener.close()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate")
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-keyout", folder / "key.pem", "-out", folder / "cert.pem", "-days", "2"),
            *("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"),
        ],
        check=True,
        capture_output=True,
    )
    return folder / "cert.pem"


def test_tls_from_pem_files(broker: Broker, certificate: Path) -> None:
    proxy = TlsProxy(certificate, broker.bootstrap_servers)
    given = {"kafka.bootstrap.servers": proxy.address, "kafka.security.protocol": "SSL"}
    for trust in (
        {"kafka.ssl.truststore.location": str(certificate)},
        {"kafka.ssl.ca.location": str(certificate)},
        {"kafka.ssl.truststore.type": "PEM", "kafka.ssl.truststore.certificates": certificate.read_text()},
    ):
        with connect(kafka_options(given | trust)) as client:
            assert client.core.metadata.cluster_id is not None
    with pytest.raises(NoBrokersAvailable):
        connect(kafka_options({**given, "kafka.bootstrap.timeout.ms": "0"}))
    proxy.close()
