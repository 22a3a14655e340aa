"""`ottla cert`: an authority, what it signs, what is in a store, and renewing it in place."""

import io
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.tls_stores import keytool

from ottla.cli.main import main
from ottla.security.tls.contexts import certificate_changes, verifies
from ottla.security.tls.stores import StoreSettings, read_key_store, read_trust_store

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def ca(tmp_path: Path) -> Path:
    assert main(["cert", "ca", "--dir", str(tmp_path / "ca")]) == 0
    return tmp_path / "ca"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def key_material(path: Path, password: str | None = None) -> tuple[bytes, ...]:
    return read_key_store(StoreSettings("ssl.keystore", None, str(path), password)).chain


def test_an_authority_signs_what_those_trust_who_have_its_certificate(ca: Path, capsys: Capture) -> None:
    assert main(["cert", "issue", "node-1", "--host", "a.example", "--dir", str(ca)]) == 0
    store = ca / "node-1.pem"
    assert (mode(ca / "ca.key"), mode(store), mode(ca / "ca.pem")) == (0o600, 0o600, 0o644)
    trusted = read_trust_store(StoreSettings("ssl.truststore", "PEM", str(ca / "ca.pem"))).trusted
    assert verifies(read_key_store(StoreSettings("ssl.keystore", "PEM", str(store))), trusted)
    said = capsys.readouterr()
    assert "PRIVATE" not in said.out + said.err


def test_nothing_is_written_over(ca: Path, capsys: Capture) -> None:
    assert main(["cert", "ca", "--dir", str(ca)]) == 1
    assert "is there already" in capsys.readouterr().err
    words = ["cert", "issue", "node-1", "--dir", str(ca)]
    assert main(words) == 0
    before = (ca / "node-1.pem").read_bytes()
    assert main(words) == 1
    assert (ca / "node-1.pem").read_bytes() == before
    assert main(["cert", "issue", "a/b", "--dir", str(ca)]) == 2
    assert main(["cert", "issue", "node-2", "--dir", str(ca.parent)]) == 1
    assert "`ottla cert ca --dir" in capsys.readouterr().err


def test_a_store_is_renewed_in_place(ca: Path, capsys: Capture) -> None:
    main(["cert", "issue", "node-1", "--host", "a.example", "--days", "3", "--dir", str(ca)])
    store = ca / "node-1.pem"
    old = key_material(store)
    assert main(["cert", "renew", str(store)]) == 0
    new = key_material(store)
    assert new != old
    assert certificate_changes(old, new, False, False) is None
    assert mode(store) == 0o600
    assert "listener.name.LISTENER.ssl.keystore.location" in capsys.readouterr().err
    assert [entry.name for entry in ca.iterdir() if entry.name.startswith(".")] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to others")
def test_what_root_renews_stays_its_owners(ca: Path) -> None:
    """A broker that runs as a user of its own could not read its key any more."""
    main(["cert", "issue", "node-1", "--host", "a.example", "--dir", str(ca)])
    store = ca / "node-1.pem"
    os.chown(store, 12345, 23456)
    assert main(["cert", "renew", str(store)]) == 0
    assert (store.stat().st_uid, store.stat().st_gid, mode(store)) == (12345, 23456, 0o600)


def test_a_store_with_a_password(ca: Path, tmp_path: Path, capsys: Capture) -> None:
    password = tmp_path / "password"
    password.write_text("geheim\n")
    asked = ["--password-file", str(password)]
    assert main(["cert", "issue", "alice", "--format", "pkcs12", "--dir", str(ca), *asked]) == 0
    store = ca / "alice.p12"
    old = key_material(store, "geheim")
    assert main(["cert", "renew", str(store), *asked]) == 0
    assert key_material(store, "geheim") != old
    assert main(["cert", "show", str(store), "-o", "json", *asked]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)[0]["name"] == "CN=alice"
    password.write_text("guess\n")
    assert main(["cert", "renew", str(store), *asked]) == 1
    said = capsys.readouterr()
    assert "the password is wrong" in said.err
    assert "guess" not in said.err
    assert "geheim" not in said.out + said.err


def test_keytool_reads_what_was_issued(ca: Path, tmp_path: Path) -> None:
    tool = keytool()
    if tool is None:
        pytest.skip("there is no keytool")
    password = tmp_path / "password"
    password.write_text("geheim\n")
    words = ["--format", "pkcs12", "--dir", str(ca), "--password-file", str(password)]
    assert main(["cert", "issue", "alice", *words]) == 0
    listed = subprocess.run(
        [tool, "-list", "-v", "-keystore", str(ca / "alice.p12"), "-storepass:file", str(password)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert listed.returncode == 0, listed.stdout
    assert "PrivateKeyEntry" in listed.stdout
    assert "Owner: CN=alice" in listed.stdout


def test_a_password_has_to_come_from_somewhere(
    ca: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert main(["cert", "issue", "alice", "--format", "pkcs12", "--dir", str(ca)]) == 2
    assert "--password-file" in capsys.readouterr().err
    assert not (ca / "alice.p12").exists()


def test_what_is_in_a_file_is_shown(ca: Path, capsys: Capture) -> None:
    main(["cert", "issue", "node-1", "--host", "a.example", "--days", "5", "--dir", str(ca)])
    files = [str(ca / "ca.pem"), str(ca / "node-1.pem")]
    capsys.readouterr()
    assert main(["cert", "show", *files, "-o", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == ["CN=Ottla CA", "CN=node-1"]
    assert rows[1]["issuer"] == "CN=Ottla CA"
    assert rows[1]["hosts"] == ["a.example"]
    assert rows[1]["days_left"] == 4
    assert main(["cert", "show", *files, "--within", "30"]) == 1
    assert "CN=node-1 expires in 4 days" in capsys.readouterr().err


@pytest.mark.parametrize("content", [None, b"", b"garbage", b"\x30\x82\x01", b"\xfe\xed\xfe\xed\0\0\0\2"])
def test_what_is_no_store_is_one_line(tmp_path: Path, capsys: Capture, content: bytes | None) -> None:
    path = tmp_path / "store"
    if content is not None:
        path.write_bytes(content)
    for command in ("show", "renew"):
        assert main(["cert", command, str(path)]) in (1, 2)
        said = capsys.readouterr().err.strip()
        assert "\n" not in said
        assert "internal error" not in said
