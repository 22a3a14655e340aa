"""MIT's KDC with a realm of the test's own: Debian's krb5-kdc, started as `krb5kdc -n` on a free port.

Where it is not installed the tests that need it are skipped. The package gssapi has no wheel for Linux: it is built
into .interop/gssapi, against libkrb5-dev.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Self

import pytest
from tests.interop.maven import INTEROP_DIR
from tests.interop.process import HOST, free_ports, wait_until

REALM = "OTTLA.TEST"
# Not on every user's path.
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
PATIENCE_S = 60.0


def require_kerberos() -> Path:
    """The folder that has gssapi; skips the test if something of Kerberos is not installed."""
    for tool, package in (
        ("krb5kdc", "krb5-kdc"),
        ("kadmin.local", "krb5-admin-server"),
        ("kinit", "krb5-user"),
    ):
        if shutil.which(tool, path=_PATH) is None:
            pytest.skip(f"{tool} is not installed (Debian: {package})")
    place = INTEROP_DIR / "gssapi"
    if importlib.util.find_spec("gssapi") is None:
        if shutil.which("krb5-config") is None:
            pytest.skip("gssapi cannot be built without MIT's headers (Debian: libkrb5-dev)")
        INTEROP_DIR.mkdir(exist_ok=True)
        with (INTEROP_DIR / "gssapi.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (place / "gssapi").exists():
                install = [
                    sys.executable,
                    "-m",
                    "pip",
                    "install",
                    "--quiet",
                    "--target",
                    str(place),
                    "gssapi>=1.9",
                ]
                subprocess.run(install, check=True, capture_output=True, timeout=600)
    return place


class Kdc:
    """A realm and its KDC. A context manager."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        (self._port,) = free_ports(1)
        self.config = folder / "krb5.conf"
        self.config.write_text(
            f"""[libdefaults]
    default_realm = {REALM}
    dns_lookup_realm = false
    dns_lookup_kdc = false
    dns_canonicalize_hostname = false
    rdns = false
    udp_preference_limit = 1
[realms]
    {REALM} = {{
        kdc = {HOST}:{self._port}
    }}
"""
        )
        (folder / "kdc.conf").write_text(
            f"""[kdcdefaults]
    kdc_listen = ""
    kdc_tcp_listen = {HOST}:{self._port}
[realms]
    {REALM} = {{
        database_name = {folder}/principal
        key_stash_file = {folder}/stash
        acl_file = {folder}/kadm5.acl
        max_life = 1h
    }}
[logging]
    kdc = FILE:{folder}/kdc.log
    admin_server = FILE:{folder}/kadmin.log
"""
        )
        self._process: subprocess.Popen[bytes] | None = None

    def environment(self) -> dict[str, str]:
        """What has a process find this realm, and no tickets but its own."""
        return {
            "KRB5_CONFIG": str(self.config),
            "KRB5CCNAME": f"FILE:{self._folder}/nobodys-cache",
            "KRB5RCACHENAME": "none:",
        }

    def _run(self, *command: str, stdin: str = "") -> None:
        env = {
            **os.environ,
            **self.environment(),
            "KRB5_KDC_PROFILE": f"{self._folder}/kdc.conf",
            "PATH": _PATH,
        }
        done = subprocess.run(
            command, input=stdin, env=env, capture_output=True, text=True, timeout=PATIENCE_S
        )
        assert done.returncode == 0, f"{command[0]}: {done.stdout}\n{done.stderr}"

    def __enter__(self) -> Self:
        self._run("kdb5_util", "create", "-s", "-r", REALM, "-P", "master-of-the-test")
        env = {
            **os.environ,
            **self.environment(),
            "KRB5_KDC_PROFILE": f"{self._folder}/kdc.conf",
            "PATH": _PATH,
        }
        with (self._folder / "kdc.out").open("wb") as out:
            command = ["krb5kdc", "-n", "-r", REALM]
            self._process = subprocess.Popen(command, env=env, stdout=out, stderr=out)
        wait_until(self._is_there, PATIENCE_S, "the KDC")
        return self

    def _is_there(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "kdc.out").read_text()
        with socket.socket() as sock:
            return sock.connect_ex((HOST, self._port)) == 0

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(PATIENCE_S)

    def keytab(self, *principals: str) -> Path:
        """A key table of these, whom the KDC knows from now on."""
        path = self._folder / f"{principals[0].replace('/', '-')}.keytab"
        for principal in principals:
            self._run("kadmin.local", "-r", REALM, "-q", f"addprinc -randkey {principal}")
            self._run("kadmin.local", "-r", REALM, "-q", f"ktadd -k {path} {principal}")
        return path

    def delete(self, principal: str) -> None:
        self._run("kadmin.local", "-r", REALM, "-q", f"delprinc -force {principal}")
