"""Key stores and trust stores as keytool makes them: an authority, a node and a client that it vouches for, a stranger.

keytool comes with every Java runtime; each call starts a JVM, so tests share what is made.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
from pathlib import Path

import pytest

from ottla.spark.java import JavaMissing, find_java

PASSWORD = "store-secret"
KEY_PASSWORD = "key-secret"
NODE_NAME = "CN=node-1.example.org, OU=Brokers, O=Ottla\\, Inc., C=CZ"


@functools.cache
def keytool() -> str | None:
    """keytool of the Java that Spark would use."""
    try:
        home = find_java().home
    except JavaMissing:
        return shutil.which("keytool")
    for place in (home, (home / "bin" / "java").resolve().parents[1]):
        if (place / "bin" / "keytool").exists():
            return str(place / "bin" / "keytool")
    return shutil.which("keytool")


def run_keytool(*words: str | Path) -> str:
    command = keytool()
    assert command is not None
    done = subprocess.run(
        [command, "-J-XX:TieredStopAtLevel=1", "-J-Xshare:auto", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Stores:
    """Files of one folder."""

    def __init__(self, folder: Path) -> None:
        if keytool() is None:
            pytest.skip("keytool makes the stores")
        self.folder = folder
        self.everything = folder / "everything.p12"
        self._make("ca", "CN=Authority", "-ext", "bc:c")
        self._make("node", NODE_NAME, "-signer", "ca", "-ext", "san=dns:localhost,ip:127.0.0.1")
        self._make("client", "CN=alice, O=Users", "-signer", "ca")
        self._make("stranger", "CN=stranger", "-ext", "san=dns:localhost,ip:127.0.0.1")

    def _make(self, alias: str, name: str, *more: str) -> None:
        run_keytool(
            *("-genkeypair", "-alias", alias, "-dname", name, "-keyalg", "EC", "-groupname", "secp256r1"),
            *("-validity", "30", "-keystore", self.everything, "-storetype", "PKCS12"),
            *("-storepass", PASSWORD, *more),
        )

    def key_store(self, alias: str, kind: str, *, key_password: str = PASSWORD, legacy: bool = False) -> Path:
        """A store with one key, and the chain it has."""
        path = self.folder / f"{alias}-{kind}-{key_password == PASSWORD}-{legacy}"
        if not path.exists():
            run_keytool(
                *(("-J-Dkeystore.pkcs12.legacy",) if legacy else ()),
                *("-importkeystore", "-srckeystore", self.everything, "-srcstorepass", PASSWORD),
                *("-srcalias", alias, "-destkeystore", path, "-deststoretype", kind),
                *("-deststorepass", PASSWORD, "-destkeypass", key_password, "-noprompt"),
            )
        return path

    def trust_store(self, alias: str, kind: str) -> Path:
        """A store that trusts one certificate."""
        path = self.folder / f"trust-{alias}-{kind}"
        if not path.exists():
            certificate = self.certificate(alias)
            run_keytool(
                *("-importcert", "-noprompt", "-alias", alias, "-file", certificate),
                *("-keystore", path, "-storetype", kind, "-storepass", PASSWORD),
            )
        return path

    def certificate(self, alias: str) -> Path:
        """A certificate in PEM."""
        path = self.folder / f"{alias}.pem"
        if not path.exists():
            run_keytool(
                *("-exportcert", "-rfc", "-alias", alias, "-file", path),
                *("-keystore", self.everything, "-storepass", PASSWORD),
            )
        return path
