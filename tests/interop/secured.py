"""Nodes of either kind that know who asks: SASL over plain connections or TLS, StandardAuthorizer, the same settings.

    security = Security(tmp_path, {"alice": "alice-secret"}, protocol="SASL_SSL")
    with SecureCluster(tmp_path, {1: ("apache", "broker,controller")}, security) as cluster:
        with cluster[1].client() as admin: ...                # who may do everything
        with cluster[1].client_of("alice") as client: ...     # who may do what the rules say
        cluster.tool("AclCommand", "--list")                  # as the administrator
        cluster[1].stop(); cluster[1].kind = "ottla"; cluster[1].start()   # the other kind on the same directory

Users are PLAIN's, in the nodes' JAAS texts: they are there before the metadata is. Those of SCRAM are made while the
cluster runs, by whom a test wants to make them. Nodes know each other as the user `broker`. Certificates are of an
authority of the test's own.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import socket
import ssl
import struct
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

from tests.interop.apache import run_tool, write_properties
from tests.interop.cluster import Cluster, ClusterNode
from tests.interop.process import ServerProcess, receive_frame
from tests.support.certificates import Authority
from tests.support.raw_client import Endpoint, RawClient

SASL_HANDSHAKE, SASL_AUTHENTICATE = 17, 36
ADMIN, BROKER = "admin", "broker"
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
PLAIN, SCRAM = "PLAIN", "SCRAM-SHA-512"


class Login(NamedTuple):
    """Who asks, how they prove it, and whose certificates are trusted; None: no TLS."""

    user: str
    password: str
    context: ssl.SSLContext | None = None
    mechanism: str = PLAIN
    by_token: bool = False

    def __repr__(self) -> str:
        return f"Login({self.user!r}, {self.mechanism})"


class Refused(ConnectionError):
    """The node does not believe it."""


def logged_in(sock: socket.socket, login: Login, host: str) -> socket.socket:
    """The connection, once it is known whose it is; Refused if it is not to be.

    By hand: none of it is the code under test.
    """
    try:
        if login.context is not None:
            sock = login.context.wrap_socket(sock, server_hostname=host)
        name = login.mechanism.encode()
        _ask(sock, struct.pack(">hhihh", SASL_HANDSHAKE, 1, 1, -1, len(name)) + name)
        if login.mechanism == PLAIN:
            _authenticate(sock, b"\0" + login.user.encode() + b"\0" + login.password.encode())
        else:
            _prove(sock, login)
    except BaseException:
        sock.close()
        raise
    return sock


def _prove(sock: socket.socket, login: Login) -> None:
    """RFC 5802, with the extension by which Kafka's tokens are told from users (KIP-48)."""
    digest = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}[login.mechanism]
    first = f"n={login.user},r={base64.b64encode(os.urandom(18)).decode()}"
    first += ",tokenauth=true" if login.by_token else ""
    said = _authenticate(sock, b"n,," + first.encode()).decode()
    parts = dict(part.split("=", 1) for part in said.split(","))
    salted = hashlib.pbkdf2_hmac(
        digest, login.password.encode(), base64.b64decode(parts["s"]), int(parts["i"])
    )
    key = hmac.digest(salted, b"Client Key", digest)
    bare = f"c=biws,r={parts['r']}"
    signed = hmac.digest(hashlib.new(digest, key).digest(), f"{first},{said},{bare}".encode(), digest)
    proof = base64.b64encode(bytes(a ^ b for a, b in zip(key, signed, strict=True))).decode()
    _authenticate(sock, f"{bare},p={proof}".encode())


def _authenticate(sock: socket.socket, said: bytes) -> bytes:
    """What the node says to it."""
    answer = _ask(sock, struct.pack(">hhihi", SASL_AUTHENTICATE, 1, 2, -1, len(said)) + said)
    error, length = struct.unpack_from(">hh", answer, 4)
    if error:
        raise Refused(f"error {error}: {answer[8 : 8 + max(length, 0)].decode()}")
    position = 8 + max(length, 0)
    (size,) = struct.unpack_from(">i", answer, position)
    return answer[position + 4 : position + 4 + size]


def _ask(sock: socket.socket, payload: bytes) -> bytes:
    sock.sendall(struct.pack(">i", len(payload)) + payload)
    return receive_frame(sock)


class SecureClient(RawClient):
    """One connection to a broker, of somebody."""

    def __init__(
        self, node: ServerProcess | Endpoint, login: Login, timeout_s: float = 90.0, port: int | None = None
    ) -> None:
        super().__init__(node, timeout_s, port)
        self.sock = logged_in(self.sock, login, node.host)


class Security:
    """What all nodes of a cluster are told, and who its users are."""

    def __init__(
        self, folder: Path, users: Mapping[str, str] | None = None, protocol: str = "SASL_PLAINTEXT"
    ) -> None:
        self.protocol = protocol
        self.passwords = {ADMIN: "admin-secret", BROKER: "broker-secret", **(users or {})}
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.context: ssl.SSLContext | None = None
        self.stores: dict[str, object] = {}
        if protocol == "SASL_SSL":
            self.authority = Authority(folder / "certificates")
            self.context = self.authority.client_context()
            node = self.authority.issue("node")
            key_store = folder / "node.pem"
            key_store.write_bytes(node.key.read_bytes() + node.certificate.read_bytes())
            self.stores = {
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": key_store,
                **self.trust,
            }

    @property
    def trust(self) -> dict[str, object]:
        """The keys by which Java's and Ottla's clients trust the nodes."""
        if self.context is None:
            return {}
        return {"ssl.truststore.type": "PEM", "ssl.truststore.location": self.authority.certificate}

    def login(self, user: str) -> Login:
        """A user of PLAIN."""
        return Login(user, self.passwords[user], self.context)

    def scram_login(self, user: str, password: str, *, by_token: bool = False) -> Login:
        """A user that was made while the cluster ran, or a token's id and secret."""
        return Login(user, password, self.context, SCRAM, by_token)

    def settings(self, node: ClusterNode) -> dict[str, object]:
        """What of a node's server.properties is about security."""
        name = self.protocol
        listeners = [f"{name}://{node.address}"] if node.is_broker else []
        listeners += [f"CONTROLLER://{node.controller_address}"] if node.is_controller else []
        users = " ".join(f'user_{user}="{password}"' for user, password in self.passwords.items())
        plain = f'{PLAIN_MODULE} required username="{BROKER}" password="{self.passwords[BROKER]}" {users};'
        on_brokers = {
            f"listener.name.{name.lower()}.plain.sasl.jaas.config": plain,
            f"listener.name.{name.lower()}.{SCRAM.lower()}.sasl.jaas.config": f"{SCRAM_MODULE} required;",
            f"listener.name.{name.lower()}.sasl.enabled.mechanisms": f"PLAIN,{SCRAM}",
            "inter.broker.listener.name": name,
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
        }
        return {
            "listeners": ",".join(listeners),
            "listener.security.protocol.map": f"CONTROLLER:{name},{name}:{name}",
            "listener.name.controller.plain.sasl.jaas.config": plain,
            "listener.name.controller.sasl.enabled.mechanisms": "PLAIN",
            "sasl.mechanism.controller.protocol": "PLAIN",
            "authorizer.class.name": AUTHORIZER,
            "super.users": f"User:{ADMIN};User:{BROKER}",
            **(on_brokers if node.is_broker else {}),
            **self.stores,
        }

    def client_settings(self, user: str, password: str = "", mechanism: str = PLAIN) -> dict[str, object]:
        """A client's properties, for Java's and ours."""
        module = PLAIN_MODULE if mechanism == PLAIN else SCRAM_MODULE
        secret = password or self.passwords[user]
        return {
            "security.protocol": self.protocol,
            "sasl.mechanism": mechanism,
            "sasl.jaas.config": f'{module} required username="{user}" password="{secret}";',
            **self.trust,
        }

    def librdkafka_settings(self, user: str) -> dict[str, object]:
        """The same for librdkafka; a user of PLAIN."""
        trust = {} if self.context is None else {"ssl.ca.location": str(self.authority.certificate)}
        return {
            "security.protocol": self.protocol,
            "sasl.mechanism": PLAIN,
            "sasl.username": user,
            "sasl.password": self.passwords[user],
            **trust,
        }

    def client_file(self, user: str, password: str = "", mechanism: str = PLAIN) -> Path:
        """The same as a file."""
        return self.written(f"{user}-{mechanism}", self.client_settings(user, password, mechanism))

    def written(self, name: str, settings: Mapping[str, object]) -> Path:
        """Settings of a client as a file."""
        path = self.folder / f"{name}.properties"
        write_properties(path, settings)
        return path


class SecureNode(ClusterNode):
    """One node of such a cluster."""

    cluster: SecureCluster
    # Who comes by `connect`.
    connects_as: str | Login = ADMIN

    def settings(self) -> dict[str, object]:
        secured = self.cluster.security.settings(self)
        settings = {**super().settings(), **secured, **self.cluster.overrides, **self.overrides}
        # None takes away what is there otherwise.
        return {key: value for key, value in settings.items() if value is not None}

    def login(self, user: str | Login) -> Login:
        return self.cluster.security.login(user) if isinstance(user, str) else user

    def connect(self, timeout_s: float = 60.0) -> socket.socket:
        return logged_in(super().connect(timeout_s), self.login(self.connects_as), self.host)

    def client(self, timeout_s: float = 90.0, port: int | None = None) -> RawClient:
        return self.client_of(ADMIN, timeout_s, port)

    def client_of(self, user: str | Login, timeout_s: float = 90.0, port: int | None = None) -> SecureClient:
        """A connection of this user's."""
        return SecureClient(self, self.login(user), timeout_s, port)


class SecureCluster(Cluster):
    """A cluster whose nodes are all told the same about security."""

    node_type = SecureNode

    def __init__(
        self,
        directory: Path,
        nodes: Mapping[int, tuple[str, str]],
        security: Security,
        overrides: Mapping[str, object] | None = None,
        **how: Any,
    ) -> None:
        self.security = security
        super().__init__(directory, nodes, overrides, **how)

    def __getitem__(self, node_id: int) -> SecureNode:
        return cast(SecureNode, self.nodes[node_id])

    def tool(self, name: str, *args: str, **how: Any) -> subprocess.CompletedProcess[str]:
        """One of Kafka's Java tools against the brokers, as the administrator."""
        return self.tool_of(self.security.client_file(ADMIN), name, *args, **how)

    def tool_of(self, client: Path, name: str, *args: str, **how: Any) -> subprocess.CompletedProcess[str]:
        """As whoever a client's file makes it."""
        whom = ("--bootstrap-server", self.bootstrap_servers, "--command-config", str(client))
        return run_tool(name, *whom, *args, **how)
