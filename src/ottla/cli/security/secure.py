"""`ottla serve --secure`: a node that is encrypted, knows its users and holds them to access rules, from nothing.

Everything it takes is files in a directory beside the data, with Apache Kafka's keys, which Apache Kafka starts on too:

    server.properties   the node: SASL_SSL for clients, TLS with certificates for controllers, the authorizer
    ca.pem, ca.key      an authority of its own, as `ottla cert ca` makes it
    node.pem            the node's key and certificate; renewed before it expires, at a start or while the node runs
    client.properties   the user `admin`, for every tool that takes --command-config

Rules: passwords are made here, by chance, and stand in two files that only their owner can read; the cluster keeps what
proves them (SCRAM), in a directory that, if it is made here, only its owner can look into. What is there is never
written over but for node.pem. server.properties is written last: without it the directory is finished at the next
start. Owned by the process that serves; renewals run in a thread.
"""

from __future__ import annotations

import secrets
import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ottla.cli.args import CliError
from ottla.cli.output import say
from ottla.cli.security.cert import CA_CERTIFICATE, CA_KEY, authority_in, make_authority, write_secret
from ottla.cli.security.client_settings import jaas, properties

if TYPE_CHECKING:
    from ottla.config.broker import BrokerConfig
    from ottla.config.settings import Settings
    from ottla.metadata.records import UserScramCredentialRecord
    from ottla.security.tls.stores import KeyMaterial

SERVER, CLIENT, KEY_STORE = "server.properties", "client.properties", "node.pem"
LISTENER: Final = "SASL_SSL"
CONTROLLER: Final = "CONTROLLER"
MECHANISM: Final = "SCRAM-SHA-512"
ADMIN, BROKER = "admin", "broker"
NODE_NAME: Final = "ottla-node"
DEFAULT_PORT: Final = 9092
DAYS: Final = 90
LOOPBACK: Final = "127.0.0.1"
_JAAS_KEY: Final = f"listener.name.{LISTENER.lower()}.{MECHANISM.lower()}.sasl.jaas.config"
_PASSWORD_BYTES: Final = 24
_ITERATIONS: Final = 4096
# At which the node is always known, to whoever is on its machine.
_OWN_HOSTS: Final = ("localhost", LOOPBACK, "::1")
_ANY_HOST: Final = ("", "0.0.0.0", "::")


class SecureDirectory:
    """The files of one secure node."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()

    @property
    def server_properties(self) -> Path:
        return self.folder / SERVER

    @property
    def client_properties(self) -> Path:
        return self.folder / CLIENT

    def prepare(self, data_dir: Path, port: int | None) -> None:
        """Make what is missing. A directory with data but without these files has no users yet, and stays as it is."""
        if self.server_properties.exists():
            return
        from ottla.model.durable import locked_directory
        from ottla.security.tls.authority import require_cryptography
        from ottla.storage.dirs.meta_properties import read_meta_properties

        require_cryptography()
        if read_meta_properties(data_dir) is not None:
            raise CliError(
                f"{data_dir} is formatted already, without the users of a secure node; choose an empty --data-dir, or "
                "add them with `ottla user add` and follow docs/security.md"
            )
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with locked_directory(self.folder):
            self._prepare(data_dir, port)

    def _prepare(self, data_dir: Path, port: int | None) -> None:
        if self.server_properties.exists():  # somebody else has made it meanwhile
            return
        if not (self.folder / CA_CERTIFICATE).exists() or not (self.folder / CA_KEY).exists():
            for left in (CA_CERTIFICATE, CA_KEY):  # of a start that came to no end
                (self.folder / left).unlink(missing_ok=True)
            make_authority(self.folder, f"Ottla CA of {_own_name()}"[:64])
        # What records hold, and what proves passwords, is kept from whoever else is on this machine.
        data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        port = port or DEFAULT_PORT
        write_secret(self.client_properties, properties(self._client_settings(port)))
        write_secret(self.server_properties, properties(self._server_settings(data_dir, port)))
        say(f"ottla: made {self.folder}: an authority, the users {ADMIN} and {BROKER}, {SERVER}")
        say(f"ottla: begin with `ottla topic list --command-config {self.client_properties}`")

    def _client_settings(self, port: int) -> dict[str, str]:
        return {
            "bootstrap.servers": f"{LOOPBACK}:{port}",
            "security.protocol": LISTENER,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.folder / CA_CERTIFICATE),
            "sasl.mechanism": MECHANISM,
            "sasl.jaas.config": jaas(MECHANISM, ADMIN, secrets.token_urlsafe(_PASSWORD_BYTES)),
        }

    def _server_settings(self, data_dir: Path, port: int) -> dict[str, str]:
        from ottla.config.standalone import ALONE, DEFAULT_NODE_ID

        return {
            "process.roles": "broker,controller",
            "node.id": str(DEFAULT_NODE_ID),
            "log.dirs": str(data_dir.absolute()),
            **_addresses(port),
            "controller.listener.names": CONTROLLER,
            "listener.security.protocol.map": f"{LISTENER}:{LISTENER},{CONTROLLER}:SSL",
            "security.inter.broker.protocol": LISTENER,
            "sasl.enabled.mechanisms": MECHANISM,
            "sasl.mechanism.inter.broker.protocol": MECHANISM,
            _JAAS_KEY: jaas(MECHANISM, BROKER, secrets.token_urlsafe(_PASSWORD_BYTES)),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.folder / KEY_STORE),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.folder / CA_CERTIFICATE),
            f"listener.name.{CONTROLLER.lower()}.ssl.client.auth": "required",
            **_authorization(),
            # Spark's workers log in by tokens.
            "delegation.token.secret.key": secrets.token_urlsafe(_PASSWORD_BYTES),
            **ALONE,
        }

    # ---- the certificate ------------------------------------------------------------------------------------

    def renew(self, config: BrokerConfig | None = None) -> bool:
        """Write node.pem where it is missing, due, or no longer of ca.pem; whether it was written.

        With `config`, before the node serves, also where a host at which it is advertised is not in it.
        """
        hosts = _hosts(config) if config is not None else []
        path = self.folder / KEY_STORE
        material = self._material()
        if material is None:
            self._write_key_store(None, hosts)
            return True
        from ottla.security.tls.authority import is_due
        from ottla.security.tls.names import read_certificate

        found = read_certificate(material.chain[0])
        known = {str(value).lower() for _, value in found.alt_names}
        is_known = all(_as_java(host) in known for host in hosts)
        if is_known and not is_due(found.not_before, found.not_after) and self._is_trusted(material):
            return False
        left = (found.not_after - datetime.now(UTC)).days
        self._write_key_store(material.chain[0], hosts)
        say(f"ottla: {path}: renewed, {max(left, 0)} days before it would have expired")
        return True

    def renew_while_running(self) -> bool:
        """The same for a node that serves: what is in the way is said, and looked at again the next time."""
        from ottla.config.errors import ConfigError
        from ottla.security.tls.authority import AuthorityError

        try:
            return self.renew()
        except (CliError, ConfigError, AuthorityError, OSError) as error:
            say(f"ottla: the certificate cannot be renewed: {error}")
            return False

    def _material(self) -> KeyMaterial | None:
        from ottla.security.tls.stores import StoreSettings, read_key_store

        path = self.folder / KEY_STORE
        return read_key_store(StoreSettings("ssl.keystore", "PEM", str(path))) if path.exists() else None

    def _is_trusted(self, material: KeyMaterial) -> bool:
        from ottla.security.tls.contexts import verifies
        from ottla.security.tls.stores import StoreSettings, read_trust_store

        ca = StoreSettings("ssl.truststore", "PEM", str(self.folder / CA_CERTIFICATE))
        return verifies(material, read_trust_store(ca).trusted)

    def _write_key_store(self, old: bytes | None, hosts: list[str]) -> None:
        from ottla.security.tls.authority import key_store

        authority = authority_in(self.folder)
        if old is None:
            issued = authority.issue(NODE_NAME, hosts=hosts or _OWN_HOSTS, days=DAYS)
        else:
            issued = authority.renew(old, days=DAYS, more_hosts=hosts)
        write_secret(self.folder / KEY_STORE, key_store(issued))

    # ---- the users ------------------------------------------------------------------------------------------

    def first_users(self) -> list[UserScramCredentialRecord]:
        """The users that a new cluster begins with, by what stands in the two files."""
        from ottla.metadata.scram import credential_record
        from ottla.security.sasl.jaas import parse_jaas, username_and_password
        from ottla.security.scram_credentials import MECHANISMS, random_salt, salted_password

        users = []
        mechanism = MECHANISMS[MECHANISM]
        for file, key in ((self.server_properties, _JAAS_KEY), (self.client_properties, "sasl.jaas.config")):
            text = _read_properties(file).get(key)
            if text is None:
                raise CliError(
                    f"{file}: {key} is not there any more, and the cluster has no users without it"
                )
            name, password = username_and_password(parse_jaas(text)[0])
            salt = random_salt()
            salted = salted_password(mechanism, password, salt, _ITERATIONS)
            users.append(credential_record(mechanism, name, salted, salt, _ITERATIONS))
        return users


def listen_on(settings: Settings, port: int) -> None:
    """--port, for this start: the controller is beside it, on any port where the broker is."""
    for key, text in _addresses(port).items():
        settings.put(key, text, "--port")
    if not port:
        # Known only when it is bound; a quorum of one asks nobody.
        settings.by_key.pop("controller.quorum.bootstrap.servers", None)


def _addresses(port: int) -> dict[str, str]:
    controller = f"{LOOPBACK}:{port + 1 if port else 0}"
    return {
        "listeners": f"{LISTENER}://{LOOPBACK}:{port},{CONTROLLER}://{controller}",
        "controller.quorum.bootstrap.servers": controller,
    }


def _authorization() -> dict[str, str]:
    """Whoever is not named may do what access rules allow: nothing, to begin with."""
    return {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:{ADMIN};User:{BROKER};User:CN={NODE_NAME}",
    }


def _hosts(config: BrokerConfig) -> list[str]:
    """Where the node is reached, as far as anybody can know."""
    listeners = (*config.listeners, *config.advertised_listeners)
    named = [listener.host for listener in listeners if listener.host not in _ANY_HOST]
    return list(dict.fromkeys([*_OWN_HOSTS, _own_name(), *named]))


def _own_name() -> str:
    """The machine's, if it can be written into a certificate."""
    name = socket.gethostname()
    return name if name and name.isascii() and not set(name) & set("/: ") else "localhost"


def _as_java(host: str) -> str:
    """An address as Java writes those of certificates."""
    import ipaddress

    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host.lower()
    if address.version == 4:
        return str(address)
    return ":".join(f"{int(group, 16):x}" for group in address.exploded.split(":"))


def _read_properties(path: Path) -> dict[str, str]:
    from ottla.config.properties import parse_properties

    return {name: value for name, value, _ in parse_properties(path.read_text("utf-8", "replace"))}
