"""A node with TLS and those it does not want: old protocols, renegotiation, half handshakes, stores that are none."""

from __future__ import annotations

import contextlib
import shutil
import socket
import ssl
import subprocess
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
    pkcs12,
)
from tests.faults.conftest import ENVIRONMENT
from tests.interop.ottla_node import OTTLA, OttlaNode
from tests.interop.process import HOST, free_ports, wait_until
from tests.support.certificates import Authority, Identity

PATIENCE_S = 120.0
SECRET = "store-secret"
HALF_HANDSHAKES = 1_000
# The first bytes of a ClientHello, and no more of it.
HALF_A_HELLO = bytes.fromhex("16030100c8010000c40303")
API_VERSIONS = bytes.fromhex("0000000a0012000000000001ffff")


class TlsNode(OttlaNode):
    """A broker with a listener for TLS beside the plain one."""

    def __init__(self, where: Path, authority: Authority, identity: Identity) -> None:
        (self.tls_port,) = free_ports(1)
        store = where / "node.pem"
        store.write_bytes(identity.key.read_bytes() + identity.certificate.read_bytes())
        super().__init__(
            where / "data",
            {
                "listeners": f"PLAINTEXT://{HOST}:0,CONTROLLER://{HOST}:0,TLS://{HOST}:{self.tls_port}",
                "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,TLS:SSL",
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": store,
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": authority.certificate,
            },
            env=ENVIRONMENT,
        )


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def tls_node(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsNode]:
    node = TlsNode(tmp_path_factory.mktemp("tls"), authority, authority.issue())
    with node:
        yield node
    assert node.exit_code == 0
    assert "Traceback" not in node.log_text()


def ask(node: TlsNode, context: ssl.SSLContext) -> None:
    """Whoever speaks TLS as it should be is served."""
    with (
        socket.create_connection((HOST, node.tls_port), PATIENCE_S) as plain,
        context.wrap_socket(plain, server_hostname=HOST) as tls,
    ):
        tls.sendall(API_VERSIONS)
        assert int.from_bytes(tls.recv(4), "big") > 0


def test_old_protocols_are_refused(tls_node: TlsNode, authority: Authority) -> None:
    old = authority.client_context()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        old.minimum_version = ssl.TLSVersion.TLSv1
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    old.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.raises(ssl.SSLError):
        ask(tls_node, old)
    wait_until(
        lambda: "the TLS handshake failed: unsupported protocol" in tls_node.log_text(), PATIENCE_S, "a line"
    )
    ask(tls_node, authority.client_context())


@pytest.mark.skipif(shutil.which("openssl") is None, reason="only openssl's own client asks for it")
def test_renegotiation_is_refused(tls_node: TlsNode, authority: Authority) -> None:
    command = ["openssl", "s_client", "-tls1_2", "-connect", f"{HOST}:{tls_node.tls_port}"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as client:
        assert client.stdin is not None
        client.stdin.write(b"R\n")  # its word for it
        client.stdin.flush()
        said, _ = client.communicate(timeout=PATIENCE_S)
    assert b"RENEGOTIATING" in said
    assert b"no renegotiation" in said.lower()
    ask(tls_node, authority.client_context())


def test_half_handshakes_keep_nobody_out(tls_node: TlsNode, authority: Authority) -> None:
    with contextlib.ExitStack() as stack:
        for number in range(HALF_HANDSHAKES):
            half = stack.enter_context(socket.create_connection((HOST, tls_node.tls_port), PATIENCE_S))
            with contextlib.suppress(OSError):
                half.sendall(HALF_A_HELLO[: 1 + number % len(HALF_A_HELLO)])
            if number % 100 == 99:
                ask(tls_node, authority.client_context())
    ask(tls_node, authority.client_context())


def test_a_certificate_of_another_host_is_refused_by_our_client(authority: Authority, tmp_path: Path) -> None:
    node = TlsNode(tmp_path, authority, authority.issue(hosts=("elsewhere.example",)))
    with node:
        settings = ("-X", "security.protocol=SSL", "-X", f"ssl.ca.location={authority.certificate}")
        command = [str(OTTLA), "topic", "list", "-b", f"{HOST}:{node.tls_port}", *settings]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE_S, env=node.environment()
        )
    assert done.returncode == 1
    assert "not valid for" in done.stderr or "doesn't match" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


# ---- stores that are none, at the start -----------------------------------------------------------------------


def pkcs12_store(identity: Identity, password: str) -> bytes:
    key = load_pem_private_key(identity.key.read_bytes(), None)
    certificate = x509.load_pem_x509_certificate(identity.certificate.read_bytes())
    locked = BestAvailableEncryption(password.encode())
    return pkcs12.serialize_key_and_certificates(b"node", key, certificate, None, locked)  # type: ignore[arg-type]


def locked_key(identity: Identity, password: str) -> bytes:
    key = load_pem_private_key(identity.key.read_bytes(), None)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(password.encode()))


BAD: list[tuple[str, Callable[[Authority], bytes | None], dict[str, str], str]] = [
    ("missing", lambda _: None, {}, "No such file"),
    ("empty", lambda _: b"", {}, "no certificate in it"),
    ("garbage", lambda _: b"\0" * 1000, {}, ""),
    (
        "another's key",
        lambda ca: ca.issue().key.read_bytes() + ca.issue().certificate.read_bytes(),
        {},
        "the private key does not belong to the certificate",
    ),
    (
        "wrong password",
        lambda ca: pkcs12_store(ca.issue(), SECRET),
        {"ssl.keystore.type": "PKCS12", "ssl.keystore.password": "not-" + SECRET},
        "the password is wrong",
    ),
    (
        "no password",
        lambda ca: pkcs12_store(ca.issue(), SECRET),
        {"ssl.keystore.type": "PKCS12"},
        "ssl.keystore.password is not set",
    ),
    (
        "wrong key password",
        lambda ca: locked_key(identity := ca.issue(), SECRET) + identity.certificate.read_bytes(),
        {"ssl.key.password": "not-" + SECRET},
        "ssl.key.password",
    ),
    (
        "another kind",
        lambda ca: pkcs12_store(ca.issue(), SECRET),
        {"ssl.keystore.type": "PEM"},
        "set ssl.keystore.type=PKCS12 or JKS",
    ),
]


@pytest.mark.parametrize(("make", "settings", "words"), [bad[1:] for bad in BAD], ids=[bad[0] for bad in BAD])
def test_a_store_that_cannot_be_used_keeps_the_node_from_starting(
    authority: Authority,
    tmp_path: Path,
    make: Callable[[Authority], bytes | None],
    settings: dict[str, str],
    words: str,
) -> None:
    store = tmp_path / "store"
    if (data := make(authority)) is not None:
        store.write_bytes(data)
    file = tmp_path / "server.properties"
    given = {
        "listeners": f"SSL://{HOST}:0",
        "log.dirs": tmp_path / "data",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": store,
        **settings,
    }
    file.write_text("".join(f"{name}={value}\n" for name, value in given.items()))
    command = [str(OTTLA), "serve", "--config", str(file)]
    node = OttlaNode(tmp_path / "unused")
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, env=node.environment())
    assert done.returncode == 2
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("ottla: listener SSL: ssl.ke")
    assert words in line
    assert SECRET not in done.stdout + done.stderr
