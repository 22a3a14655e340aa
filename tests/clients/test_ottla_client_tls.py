"""The client over TLS: through a proxy that ends it, since what is tried here is the client's side."""

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.support.tls_stores import PASSWORD, keytool, run_keytool

from ottla.client import AsyncClient
from ottla.client.errors import ConfigError, NoBrokersAvailable
from ottla.testing.broker import Broker

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for 127.0.0.1 that nobody but the test trusts; its key beside it."""
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


@asynccontextmanager
async def tls_proxy(certificate: Path, target: str) -> AsyncIterator[str]:
    """An address that speaks TLS and passes everything on to `target`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_name("key.pem"))
    host, _, port = target.rpartition(":")

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                writer.write(data)
        except ConnectionError:
            return
        finally:
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection(host, int(port))
        await asyncio.gather(copy(reader, inner_writer), copy(inner_reader, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield "{}:{}".format(*server.sockets[0].getsockname()[:2])
    finally:
        server.close()


def test_a_trusted_certificate_lets_the_client_in(certificate: Path) -> None:
    async def scenario(target: str) -> str | None:
        trusting = ssl.create_default_context(cafile=str(certificate))
        async with (
            tls_proxy(certificate, target) as address,
            AsyncClient(bootstrap_servers=address, ssl_context=trusting) as client,
        ):
            return client.core.metadata.cluster_id

    with Broker() as broker:
        assert asyncio.run(scenario(broker.bootstrap_servers)) is not None


@pytest.mark.parametrize("kind", ["JKS", "PKCS12"])
def test_a_trust_store_of_javas(certificate: Path, kind: str, tmp_path: Path) -> None:
    if keytool() is None:
        pytest.skip("keytool makes the store")
    store = tmp_path / "trust"
    run_keytool(
        *("-importcert", "-noprompt", "-alias", "ca", "-file", certificate),
        *("-keystore", store, "-storetype", kind, "-storepass", PASSWORD),
    )
    given = {"security.protocol": "SSL", "ssl.truststore.location": str(store), "ssl.truststore.type": kind}

    async def scenario(target: str) -> str | None:
        async with tls_proxy(certificate, target) as address:
            settings = {**given, "bootstrap.servers": address, "ssl.truststore.password": PASSWORD}
            async with AsyncClient(settings) as client:
                return client.core.metadata.cluster_id

    with Broker() as broker:
        assert asyncio.run(scenario(broker.bootstrap_servers)) is not None
    with pytest.raises(ConfigError, match=r"ssl.truststore.location: .*: the password is wrong"):
        AsyncClient({**given, "ssl.truststore.password": "other-secret"})


def test_an_unknown_certificate_is_refused(certificate: Path) -> None:
    async def scenario() -> None:
        async with tls_proxy(certificate, "127.0.0.1:1") as address:
            await AsyncClient(
                bootstrap_servers=address, security_protocol="SSL", bootstrap_timeout_ms=0
            ).start()

    with pytest.raises(NoBrokersAvailable, match="TLS: certificate verify failed"):
        asyncio.run(scenario())


def test_plain_text_at_a_tls_listener_gets_a_hint(certificate: Path) -> None:
    async def scenario() -> None:
        async with tls_proxy(certificate, "127.0.0.1:1") as address:
            await AsyncClient(bootstrap_servers=address, bootstrap_timeout_ms=0).start()

    with pytest.raises(NoBrokersAvailable, match="a listener with TLS"):
        asyncio.run(scenario())
