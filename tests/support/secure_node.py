"""A node that `ottla serve --secure` has made from nothing, and what its clients are told."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.interop.ottla_node import LISTENING, OTTLA, OttlaNode
from tests.interop.process import free_ports

from ottla.config.properties import parse_properties
from ottla.security.sasl.jaas import parse_jaas, username_and_password

# Looks five times a second whether a certificate is due, and not once in an hour.
HASTY = """
import sys
from ottla.cli.main import main
from ottla.node import main as node
node.RENEWAL_INTERVAL_S = 0.2
sys.exit(main(sys.argv[1:]))
"""


class SecureNode(OttlaNode):
    """Started as a user starts it; `hasty` ones renew their certificates as soon as they are due."""

    kind = "secure"

    def __init__(self, data_dir: Path, *, hasty: bool = False) -> None:
        super().__init__(data_dir)
        self.hasty = hasty
        # Two that follow each other are free as often as not: the controller's is the next one.
        (self.wanted_port,) = free_ports(1)

    @property
    def directory(self) -> Path:
        return self.data_dir.with_name(f"{self.data_dir.name}-secure")

    @property
    def client_properties(self) -> Path:
        return self.directory / "client.properties"

    def command(self) -> list[str]:
        ottla = [sys.executable, "-c", HASTY] if self.hasty else [str(OTTLA)]
        return [
            *ottla,
            "serve",
            "--secure",
            "--data-dir",
            str(self.data_dir),
            "--port",
            str(self.wanted_port),
        ]

    def is_ready(self) -> bool:
        said = LISTENING.search(self.log_text())
        self.port = 0 if said is None else int(said[2])
        return said is not None

    def properties(self) -> dict[str, str]:
        """What `admin` is told."""
        text = self.client_properties.read_text()
        return {name: value for name, value, _ in parse_properties(text)}

    def password(self) -> str:
        return username_and_password(parse_jaas(self.properties()["sasl.jaas.config"])[0])[1]
