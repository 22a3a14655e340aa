"""A broker that asks who one is: a listener with SASL_SSL, beside the plain one that tests prepare things by."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.interop.ottla_node import OTTLA
from tests.interop.process import HOST, free_ports
from tests.support.certificates import Authority
from tests.support.spark_world import Broker

USER, PASSWORD = "spark-user", "Tr0ub4dor&3"
SCRAM_LOGIN = "org.apache.kafka.common.security.scram.ScramLoginModule"
PLAIN_LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
# Sessions end while a test runs: what lives longer has proved itself again.
SESSION_MS = 3_000


class SecureBroker(Broker):
    """`secure` is its address for those who log in, `options` what Spark's sources and sinks need for it."""

    def __init__(self, folder: Path, *, tokens: bool = True, session_ms: int = SESSION_MS) -> None:
        self.authority = Authority(folder / "ca")
        identity = self.authority.issue()
        key_store = folder / "node.pem"
        key_store.write_bytes(identity.key.read_bytes() + identity.certificate.read_bytes())
        plain, secure = free_ports(2)
        self.secure = f"{HOST}:{secure}"
        settings = {
            "listeners": f"PLAINTEXT://{HOST}:{plain},CONTROLLER://{HOST}:0,SASL_SSL://{self.secure}",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL",
            "sasl.enabled.mechanisms": "SCRAM-SHA-512,PLAIN",
            "listener.name.sasl_ssl.plain.sasl.jaas.config": (
                f'{PLAIN_LOGIN} required username="x" password="x" user_{USER}="{PASSWORD}";'
            ),
            "connections.max.reauth.ms": session_ms,
            "connection.failed.authentication.delay.ms": 10,
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": key_store,
        }
        if tokens:
            settings["delegation.token.secret.key"] = "the brokers' own"
        super().__init__(folder / "data", settings)

    def format(self) -> None:
        """The user, put into the directory before the first start."""
        user = f"SCRAM-SHA-512=[name={USER},password={PASSWORD}]"
        subprocess.run(
            [str(OTTLA), "storage", "format", "--data-dir", str(self.data_dir), "--add-scram", user],
            check=True,
            capture_output=True,
            env=self.environment(),
        )

    def jaas(self, password: str = PASSWORD, module: str = SCRAM_LOGIN) -> str:
        return f'{module} required username="{USER}" password="{password}";'

    @property
    def options(self) -> dict[str, str]:
        return {
            "kafka.bootstrap.servers": self.secure,
            "kafka.security.protocol": "SASL_SSL",
            "kafka.ssl.truststore.type": "PEM",
            "kafka.ssl.truststore.location": str(self.authority.certificate),
            "kafka.sasl.mechanism": "SCRAM-SHA-512",
            "kafka.sasl.jaas.config": self.jaas(),
        }

    def properties(self, path: Path) -> Path:
        """The same as a file of settings."""
        lines = (f"{name.removeprefix('kafka.')}={value}\n" for name, value in self.options.items())
        path.write_text("".join(lines))
        path.chmod(0o600)
        return path
