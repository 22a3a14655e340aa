"""`ottla cert`: an authority of one's own, certificates that it signs, what is in a store, and renewing in place.

`ca` makes ca.pem, which everybody gets, and ca.key, which stays where certificates are made. `issue` makes a key store
for a node or a client, `renew` writes the same file again with a new key and the same names, which is what a running
node takes (KIP-226). Files with keys can be read by their owner alone, and are replaced whole. Owned by the process
that runs one command.
"""

from __future__ import annotations

import os
import secrets
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ottla.cli.args import EXIT_FAILED, OUTPUT, CliError, Command, UsageError, argument
from ottla.cli.output import emit, say
from ottla.cli.security.passwords import PASSWORD, password_of

if TYPE_CHECKING:
    import argparse

    from ottla.security.tls.authority import Authority, Issued
    from ottla.security.tls.names import Certificate

CA_CERTIFICATE, CA_KEY = "ca.pem", "ca.key"
DEFAULT_CA_DAYS, DEFAULT_DAYS = 3650, 365
# A certificate or a key; a store of a thousand authorities is no file of these.
_MAX_FILE_BYTES = 1 << 20
_COLUMNS = ("file", "name", "issuer", "hosts", "not_after", "days_left")


def _ca(args: argparse.Namespace) -> None:
    folder = Path(args.dir)
    make_authority(folder, args.name, args.days)
    say(f"{folder / CA_CERTIFICATE}: for everybody (ssl.truststore.location, of type PEM)")
    say(f"{folder / CA_KEY}: keep it to yourself; whoever has it can be anybody")


def make_authority(folder: Path, name: str, days: int = DEFAULT_CA_DAYS) -> None:
    """The two files of an authority, where there is none."""
    from ottla.security.tls.authority import new_authority

    for file in (CA_KEY, CA_CERTIFICATE):
        if (folder / file).exists():
            raise CliError(f"{folder / file} is there already, and certificates may rest on it")
    made = new_authority(name, days=days)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_secret(folder / CA_KEY, made.private_key)
    _write(folder / CA_CERTIFICATE, made.certificate, 0o644)


def authority_in(folder: Path) -> Authority:
    """The authority whose files are there."""
    from ottla.security.tls.authority import Authority, Issued

    for file in (CA_CERTIFICATE, CA_KEY):
        if not (folder / file).is_file():
            raise CliError(f"{folder / file} is not there; `ottla cert ca --dir {folder}` makes an authority")
    return Authority.of(Issued(_read(folder / CA_CERTIFICATE), _read(folder / CA_KEY)))


def _issue(args: argparse.Namespace) -> None:
    from ottla.security.tls.authority import require_cryptography

    require_cryptography()
    folder = Path(args.dir)
    out = (
        Path(args.out) if args.out else folder / f"{args.name}.{'p12' if args.format == 'pkcs12' else 'pem'}"
    )
    if out.exists():
        raise CliError(f"{out} is there already; `ottla cert renew {out}` renews it")
    if "/" in args.name and args.out is None:
        raise UsageError(f"{args.name!r} is no file's name: say with --out where it goes")
    issued = authority_in(folder).issue(args.name, hosts=args.host, days=args.days)
    password = password_of(args, str(out), is_new=True) if args.format == "pkcs12" else None
    _write_store(out, issued, password, args.name)
    kind = "PKCS12" if password is not None else "PEM"
    say(
        f"{out}: a key and its certificate (ssl.keystore.location, of type {kind}); only its owner can read it"
    )


def _write_store(path: Path, issued: Issued, password: str | None, alias: str) -> None:
    from ottla.security.tls.authority import key_store, pkcs12_key_store

    data = key_store(issued) if password is None else pkcs12_key_store(issued, password, alias)
    write_secret(path, data)


def _renew(args: argparse.Namespace) -> None:
    from ottla.security.tls.authority import require_cryptography

    require_cryptography()
    path = Path(args.file)
    data = _read(path)
    is_pem = b"-----BEGIN" in data
    password = None if is_pem else password_of(args, str(path), is_new=False)
    certificate = _own_certificate(path, password)
    authority = authority_in(Path(args.dir) if args.dir else path.parent)
    issued = authority.renew(certificate, days=args.days, more_hosts=args.host)
    _write_store(path, issued, password, _described(certificate).name)
    say(f"{path}: renewed; a running node takes it when it is told the same again:")
    say(f"  ottla config set broker ID listener.name.LISTENER.ssl.keystore.location={path.absolute()}")


def _own_certificate(path: Path, password: str | None) -> bytes:
    """The certificate that goes with the key of a store."""
    from ottla.config.errors import ConfigError
    from ottla.security.tls.stores import StoreSettings, read_key_store

    try:
        return read_key_store(StoreSettings("ssl.keystore", None, str(path), password)).chain[0]
    except ConfigError as error:
        raise CliError(str(error).removeprefix("ssl.keystore.location: ")) from None


def _show(args: argparse.Namespace) -> int:
    rows = [row for file in args.file for row in _rows(file, args)]
    emit(rows, _COLUMNS, args.output)
    late = [row for row in rows if isinstance(row["days_left"], int) and row["days_left"] < args.within]
    for row in late:
        left = row["days_left"]
        what = "has expired" if isinstance(left, int) and left < 0 else f"expires in {left} days"
        say(f"ottla: {row['file']}: the certificate of {row['name']} {what}")
    return EXIT_FAILED if late else 0


def _rows(file: str, args: argparse.Namespace) -> list[dict[str, object]]:
    from ottla.config.errors import ConfigError
    from ottla.security.tls.stores import StoreSettings, read_trust_store

    # Without a password a store of Java's shows its trusted certificates alone, if they are not encrypted.
    asked = args.password_stdin or args.password_file is not None
    password = (
        password_of(args, file, is_new=False) if asked and b"-----BEGIN" not in _read(Path(file)) else None
    )
    try:
        found = read_trust_store(StoreSettings("ssl.truststore", None, file, password)).trusted
    except ConfigError as error:
        raise CliError(str(error).removeprefix("ssl.truststore.location: ")) from None
    if not found:
        say(
            f"ottla: {file}: no certificate in it that can be read without its password (--password-file FILE)"
        )
    return [{"file": file, **_row(_described(each))} for each in found]


def _row(certificate: Certificate) -> dict[str, object]:
    from ottla.security.tls.names import name_of

    return {
        "name": certificate.name,
        "issuer": name_of(certificate.issuer),
        "hosts": sorted(str(value) for _, value in certificate.alt_names),
        "not_before": certificate.not_before.isoformat(),
        "not_after": certificate.not_after.isoformat(),
        "days_left": (certificate.not_after - datetime.now(UTC)).days,
        "serial": f"{certificate.serial:x}",
    }


def _described(certificate: bytes) -> Certificate:
    from ottla.security.tls.names import read_certificate

    return read_certificate(certificate)


def write_secret(path: Path, data: bytes) -> None:
    """A file that only its owner can read, whole or not at all."""
    _write(path, data, 0o600)


def _write(path: Path, data: bytes, mode: int) -> None:
    from ottla.model.durable import replace_file

    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    # Not even for a moment readable by others, nor where somebody else has made a file or a link of that name.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    replace_file(
        path,
        [data],
        mode=0o600,
        final_mode=mode,
        keep_owner=True,  # root may renew what a broker's own user reads
        temporary=temporary,
        open_file=_open_new,
    )


def _open_new(path: Path, flags: int, mode: int) -> int:
    return os.open(path, flags | (os.O_EXCL | os.O_NOFOLLOW if flags & os.O_CREAT else 0), mode)


def _read(path: Path) -> bytes:
    with open(path, "rb") as file:
        data = file.read(_MAX_FILE_BYTES + 1)
    if len(data) > _MAX_FILE_BYTES:
        raise CliError(f"{path} is larger than any key or certificate")
    return data


_DIR = argument(
    "-d",
    "--dir",
    metavar="DIR",
    default=os.curdir,
    complete="dir",
    help=f"where the authority's {CA_CERTIFICATE} and {CA_KEY} are (default: this directory)",
)
_HOST = argument(
    "--host",
    action="append",
    default=[],
    metavar="HOST",
    help="a name or an address that it is to be known at; may be given many times",
)
_DAYS = argument(
    "--days",
    type=int,
    default=DEFAULT_DAYS,
    metavar="N",
    help=f"how long it is valid (default: {DEFAULT_DAYS})",
)

COMMAND = Command(
    "cert",
    "make an authority and certificates, show and renew them",
    commands=(
        Command(
            "ca",
            "make an authority that signs certificates",
            _DIR,
            argument("--name", default="Ottla CA", metavar="NAME", help="its name (default: Ottla CA)"),
            argument(
                "--days",
                type=int,
                default=DEFAULT_CA_DAYS,
                metavar="N",
                help=f"how long it is valid (default: {DEFAULT_CA_DAYS})",
            ),
            run=_ca,
        ),
        Command(
            "issue",
            "make a key and a certificate for a node, or for a client",
            argument("name", metavar="NAME", help="its name: User:CN=NAME, if a client logs in with it"),
            _HOST,
            _DIR,
            _DAYS,
            argument(
                "--format",
                choices=("pem", "pkcs12"),
                default="pem",
                help="pkcs12 has a password, which is asked for (default: pem)",
            ),
            argument(
                "--out", metavar="FILE", complete="file", help="where it goes (default: DIR/NAME.pem or .p12)"
            ),
            *PASSWORD,
            run=_issue,
        ),
        Command(
            "show",
            "show the certificates in files: PEM, PKCS12 or JKS",
            argument("file", nargs="+", metavar="FILE", complete="file", help="a certificate or a store"),
            argument(
                "--within",
                type=int,
                default=0,
                metavar="DAYS",
                help="end with 1 if one expires within so many days (default: if one has expired)",
            ),
            *PASSWORD,
            OUTPUT,
            run=_show,
        ),
        Command(
            "renew",
            "write a key store again: a new key, the same names",
            argument("file", metavar="FILE", complete="file", help="a key store that `issue` has made"),
            argument(
                "-d",
                "--dir",
                metavar="DIR",
                complete="dir",
                help="where the authority is (default: the directory of the file)",
            ),
            _HOST,
            _DAYS,
            *PASSWORD,
            run=_renew,
        ),
    ),
)
