"""`ottla user`: list, describe, add, change and delete users who log in with SCRAM.

A password is asked for, or read from standard input or a file (passwords.py). Owned by the process of one command.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ottla.cli.args import OUTPUT, CliError, Command, UsageError, argument, switch
from ottla.cli.client import CLUSTER, admin, report, settings
from ottla.cli.output import emit, say
from ottla.cli.security.passwords import PASSWORD, password_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from ottla.client.admin.types import ScramCredentialInfo
    from ottla.client.blocking import Admin

_MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
_DEFAULT_ITERATIONS = 4096
_PEM_WITHIN_BYTES = 64 * 1024


def _list(args: argparse.Namespace) -> int:
    with admin(args) as client:
        found = _everybody(client)
    rows = [{"user": user, "mechanisms": [info.mechanism for info in infos]} for user, infos in found.items()]
    emit(rows, ("user", "mechanisms"), args.output)
    return 0


def _describe(args: argparse.Namespace) -> int:
    from ottla.model.errors import KafkaError

    with admin(args) as client:
        found = client.describe_user_scram_credentials(args.user)
    rows = [
        {"user": user, "mechanism": info.mechanism, "iterations": info.iterations}
        for user, infos in found.items()
        if not isinstance(infos, KafkaError)
        for info in infos
    ]
    emit(rows, ("user", "mechanism", "iterations"), args.output)
    return report(infos for infos in found.values() if isinstance(infos, KafkaError))


def _add(args: argparse.Namespace) -> int:
    return _set_password(args, exists=False)


def _alter(args: argparse.Namespace) -> int:
    return _set_password(args, exists=True)


def _set_password(args: argparse.Namespace, *, exists: bool) -> int:
    from ottla.client.admin.types import UserScramCredentialUpsertion

    if not args.user:
        raise UsageError("a user has a name")
    with admin(args) as client:
        known = [info.mechanism for info in _everybody(client).get(args.user, [])]
        mechanisms = args.mechanism or (known if exists else ["SCRAM-SHA-512"])
        if exists and not known:
            raise CliError(f"there is no user {args.user!r}; `ottla user add` makes one")
        already = [mechanism for mechanism in mechanisms if mechanism in known]
        if not exists and already:
            raise CliError(
                f"user {args.user!r} has {' and '.join(already)} already; `ottla user alter` changes the password"
            )
        password = password_of(args, args.user, is_new=True)
        for mechanism in mechanisms:
            # A user can be changed once in a request.
            change = UserScramCredentialUpsertion(args.user, password, mechanism, args.iterations)
            code = report(client.alter_user_scram_credentials([change]).values())
            if code:
                return code
    say(f"user {args.user}: {' and '.join(mechanisms)} {'changed' if exists else 'set'}")
    return 0


def _delete(args: argparse.Namespace) -> int:
    from ottla.client.admin.types import UserScramCredentialDeletion

    code = 0
    with admin(args) as client:
        everybody = _everybody(client)
        for user in dict.fromkeys(args.user):
            known = [info.mechanism for info in everybody.get(user, [])]
            mechanisms = args.mechanism or known
            if not known:
                if args.if_exists:
                    continue
                raise CliError(f"there is no user {user!r}")
            for mechanism in mechanisms:
                code |= report(
                    client.alter_user_scram_credentials(
                        [UserScramCredentialDeletion(user, mechanism)]
                    ).values()
                )
            if not code:
                say(f"user {user}: {' and '.join(mechanisms)} deleted")
    return code


def _everybody(client: Admin) -> dict[str, list[ScramCredentialInfo]]:
    from ottla.model.errors import KafkaError

    found = client.describe_user_scram_credentials()
    return {user: infos for user, infos in sorted(found.items()) if not isinstance(infos, KafkaError)}


def _settings(args: argparse.Namespace) -> None:
    from ottla.cli.security.client_settings import UserSettings, settings_for

    if not args.user:
        raise UsageError("a user has a name")
    # -X may have dots where a file's have none any more; it comes last, and wins.
    found = {name.replace(".", "_"): value for name, value in settings(args).items()}
    protocol = str(found.get("security_protocol") or "SASL_SSL")
    if protocol not in ("SASL_SSL", "SASL_PLAINTEXT"):
        raise UsageError(f"a password is for SASL_SSL or SASL_PLAINTEXT, and security.protocol is {protocol}")
    told = UserSettings(
        args.user,
        password_of(args, args.user, is_new=False),
        args.mechanism,
        str(found["bootstrap_servers"]),
        protocol,
        args.ca or _ca_of(found),
    )
    print(settings_for(args.kind, told))


def _ca_of(found: Mapping[str, object]) -> str | None:
    """The authorities that this command itself trusts, if they are in a file that every client can read."""
    for name in ("ssl_ca_location", "ssl_truststore_location"):
        location = found.get(name)
        if location is None:
            continue
        with open(str(location), "rb") as file:
            if b"-----BEGIN" not in file.read(_PEM_WITHIN_BYTES):
                raise CliError(
                    f"{location} is a store of Java's; name a PEM file with --ca (`keytool -exportcert -rfc` makes one)"
                )
        return str(Path(str(location)).absolute())
    return None


_USER = argument("user", metavar="USER", help="the name to log in with")
_USERS = argument("user", nargs="+", metavar="USER", help="their names")
_MECHANISM = argument(
    "-m",
    "--mechanism",
    action="append",
    choices=_MECHANISMS,
    default=[],
    help="with this (may be repeated; default: SCRAM-SHA-512, or all that the user has)",
)
_NEW_PASSWORD = (
    argument(
        "--iterations",
        type=int,
        default=_DEFAULT_ITERATIONS,
        metavar="N",
        help="rounds of hashing, 4096 to 16384 (default: 4096)",
    ),
    *PASSWORD,
)

_SETTINGS_DETAILS = """\
The broker and its authority come from the profile, --command-config or -b and --ca; nobody is asked whether
the password is right. The password is printed: mind where the output goes.

  ottla user settings alice --for java --command-config ./data-secure/client.properties > alice.properties
  ottla user settings alice --for librdkafka -b kafka:9092 --ca ca.pem --password-file alice.password"""

COMMAND = Command(
    "user",
    "list, add, change and delete users who log in with a password (SCRAM)",
    commands=(
        Command("list", "list users", *CLUSTER, OUTPUT, run=_list),
        Command("describe", "show how users can log in", _USERS, *CLUSTER, OUTPUT, run=_describe),
        Command(
            "add", "add a user; asks for the password", _USER, _MECHANISM, *_NEW_PASSWORD, *CLUSTER, run=_add
        ),
        Command(
            "alter", "change a password; asks for it", _USER, _MECHANISM, *_NEW_PASSWORD, *CLUSTER, run=_alter
        ),
        Command(
            "delete",
            "delete users, or one of their mechanisms",
            _USERS,
            _MECHANISM,
            switch("--if-exists", help="no error if there is no such user"),
            *CLUSTER,
            run=_delete,
        ),
        Command(
            "settings",
            "print what a client has to be told so that it logs in as a user; asks for the password",
            _USER,
            argument(
                "--for",
                dest="kind",
                required=True,
                choices=("java", "librdkafka", "kafka-python", "aiokafka", "spark"),
                help="which client: java is every tool of Kafka's, librdkafka also confluent-kafka and kcat",
            ),
            argument(
                "-m",
                "--mechanism",
                choices=(*_MECHANISMS, "PLAIN"),
                default="SCRAM-SHA-512",
                help="how the user logs in (default: SCRAM-SHA-512)",
            ),
            argument(
                "--ca",
                metavar="FILE",
                complete="file",
                help="the authority's certificate, PEM (default: what the profile or --command-config trusts)",
            ),
            *PASSWORD,
            *CLUSTER,
            run=_settings,
            details=_SETTINGS_DETAILS,
        ),
    ),
)
