"""`ottla serve`: reads the configuration and hands it to the node.

What the user typed is settled here, once: the file, the KAFKA_* variables, -X, --data-dir, and what an
already formatted directory says of itself. The node (ottla.node.main) does the rest and prints where it
listens.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ottla.cli.args import CliError, Command, UsageError, argument, switch
from ottla.cli.output import say
from ottla.config.errors import ConfigError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from ottla.cli.security.secure import SecureDirectory
    from ottla.config.broker import BrokerConfig
    from ottla.config.settings import Settings
    from ottla.metadata.records import UserScramCredentialRecord

CONFIG = argument(
    "-c", "--config", metavar="FILE", complete="file", help="a server.properties as Kafka has it"
)
DATA_DIR = argument(
    "-d",
    "--data-dir",
    metavar="DIR",
    complete="dir",
    help="where the data is, or is to be: log.dirs (default: $XDG_DATA_HOME/ottla)",
)
PORT = argument(
    "-p",
    "--port",
    type=int,
    metavar="PORT",
    help="listen there on 127.0.0.1 (0: on any free port): short for -X listeners=PLAINTEXT://127.0.0.1:PORT",
)
SETTINGS = argument(
    "-X",
    dest="overrides",
    action="append",
    default=[],
    metavar="KEY=VALUE",
    complete="broker-key",
    help="set one key; may be given many times, wins over the environment (KAFKA_*) and the file",
)


def load_config(args: argparse.Namespace, environ: Mapping[str, str]) -> BrokerConfig:
    """The configuration the user asked for, on the directories they asked for."""
    return _load(args, environ)[0]


def _load(args: argparse.Namespace, environ: Mapping[str, str]) -> tuple[BrokerConfig, Settings]:
    """The same, and what it was made of."""
    from ottla.config.broker import BrokerConfig

    settings = read_settings(args.config, args.data_dir, args.overrides, environ)
    if getattr(args, "port", None) is not None:
        _listen_on(settings, args.port, is_secure=getattr(args, "secure", None) is not None)
    for note in settings.notes:
        say(f"ottla: {note}")
    node_id = _node_id_of(settings)
    config = BrokerConfig.from_settings(settings, node_id)
    if node_id is None and "node.id" in config.filled_in and not config.is_quorum_by_itself:
        # Another node of this cluster may have the one that a cluster of one is given.
        raise ConfigError("node.id is not set: each node of a cluster has its own", "node.id")
    return config, settings


def read_settings(
    config: str | None, data_dir: str | None, overrides: Sequence[str], environ: Mapping[str, str]
) -> Settings:
    """File, environment and options, in order; --data-dir is another way to say log.dirs.

    A log.dirs that names the directory among others says more than --data-dir does, and stands.
    """
    from ottla.config.settings import Settings

    # A pipe will do: --config <(envsubst < server.properties).
    if config is not None and not Path(config).exists():
        raise UsageError(f"--config {config}: there is no such file")
    if config is not None and Path(config).is_dir():
        raise UsageError(f"--config {config}: this is a directory, not a file")
    if data_dir is not None and not data_dir.strip():
        raise UsageError("--data-dir: the name is empty")
    settings = Settings.read(file=Path(config) if config else None, environ=environ, overrides=overrides)
    if data_dir is not None and Path(data_dir).absolute() in log_dirs_of(settings):
        return settings
    if data_dir is not None:
        settings.put("log.dirs", str(Path(data_dir).absolute()), "--data-dir")
    elif settings.text("log.dirs") is None and settings.text("log.dir") is None:
        settings.put("log.dirs", str(default_data_dir(environ)), "the default data directory")
    return settings


def _listen_on(settings: Settings, port: int, *, is_secure: bool) -> None:
    """--port is another way to say listeners; who has said where to listen is not overruled by a number."""
    from ottla.config.listeners import MAX_PORT
    from ottla.config.standalone import LOOPBACK

    if not 0 <= port <= MAX_PORT:
        raise UsageError(f"--port {port}: a port is a number from 0 to {MAX_PORT}")
    if is_secure:
        from ottla.cli.security.secure import listen_on

        listen_on(settings, port)
        return
    if settings.text("listeners") is not None:
        raise UsageError(f"--port and listeners ({settings.origin('listeners')}): one or the other")
    settings.put("listeners", f"PLAINTEXT://{LOOPBACK}:{port}", "--port")


def default_data_dir(environ: Mapping[str, str]) -> Path:
    """A broker's data outlives the machine's next start, so it is not kept in /tmp."""
    base = environ.get("XDG_DATA_HOME") or os.path.join(environ.get("HOME") or "/var/lib", ".local", "share")
    return Path(base) / "ottla"


def log_dirs_of(settings: Settings) -> list[Path]:
    """The directories of the settings, before there is a configuration."""
    text = settings.text("log.dirs") or settings.text("log.dir") or ""
    return [Path(entry.strip()) for entry in text.split(",") if entry.strip()]


def _node_id_of(settings: Settings) -> int | None:
    """The node id of directories that are formatted; a setting that says otherwise is a mistake."""
    from ottla.storage.dirs.meta_properties import read_meta_properties

    for directory in log_dirs_of(settings):
        try:
            meta = read_meta_properties(directory)
        except OSError:
            continue  # the node knows what to do about a disk that failed
        if meta is None or meta.node_id is None:
            continue
        for key in ("node.id", "broker.id"):
            given = settings.text(key)
            if given is not None and int(given) != meta.node_id:
                raise CliError(
                    f"{key}={given} ({settings.origin(key)}), but {directory} was formatted for node "
                    f"{meta.node_id}; leave {key} out, or choose another --data-dir"
                )
        return meta.node_id
    return None


def report_without_effect(config: BrokerConfig) -> None:
    """Say once which of the user's keys do nothing yet."""
    from ottla.config.effective import without_effect

    idle = without_effect(config.static.keys() - config.filled_in - {"broker.id", "node.id"})
    if idle:
        say(f"ottla: known, but without effect yet: {', '.join(idle)}")


def report_kernel() -> None:
    """The Python twin of the record kernel is right, but a broker on it is many times slower: nobody should guess."""
    from ottla.records.kernel import KERNEL

    if KERNEL == "c":
        return
    if os.environ.get("OTTLA_KERNEL") == KERNEL:
        cure = "OTTLA_KERNEL=python asks for it"
    else:
        cure = "install a C compiler and Python's headers, and then Ottla again (pip install --force-reinstall .)"
    say(f"ottla: the record kernel is the slow one, in Python, not the compiled one: {cure}")


def _serve(args: argparse.Namespace) -> int:
    from ottla.config.effective import advice, check_protection

    secure = _secure_directory(args, os.environ) if args.secure is not None else None
    config, settings = _load(args, os.environ)
    if args.check_security:
        from ottla.cli.security.check_security import report

        return report(config, settings)
    check_protection(config, settings.origin)
    report_without_effect(config)
    for line in advice(config):
        say(f"ottla: {line}")
    report_kernel()
    cluster_id = _wanted_cluster_id(config, args.cluster_id, os.environ)
    from ottla.node.main import serve

    if secure is None:
        return serve(config, cluster_id)
    secure.renew(config)
    return serve(
        config, cluster_id, first_users=_first_users(secure, config), renew=secure.renew_while_running
    )


def _secure_directory(args: argparse.Namespace, environ: Mapping[str, str]) -> SecureDirectory:
    """The directory of a secure node, made where there is none; its server.properties is the node's --config."""
    from ottla.cli.security.secure import SecureDirectory

    if args.config is not None:
        raise UsageError("--secure has a server.properties of its own: leave --config out")
    settings = read_settings(None, args.data_dir, args.overrides, environ)
    data_dir = log_dirs_of(settings)[0].absolute()
    # Beside the data: Apache Kafka does not start on a log directory with anything else in it.
    folder = Path(args.secure) if args.secure else data_dir.with_name(f"{data_dir.name}-secure")
    secure = SecureDirectory(folder)
    if args.check_security and not secure.server_properties.exists():
        raise CliError(f"{secure.folder}: there is no secure node yet; `ottla serve --secure` makes one")
    secure.prepare(data_dir, args.port)
    args.config = str(secure.server_properties)
    return secure


def _first_users(secure: SecureDirectory, config: BrokerConfig) -> Sequence[UserScramCredentialRecord]:
    """Those that empty directories are formatted with."""
    from ottla.storage.dirs.meta_properties import read_meta_properties

    return secure.first_users() if read_meta_properties(Path(config.metadata_log_dir)) is None else ()


def cluster_id_of(environ: Mapping[str, str]) -> tuple[str, str] | None:
    """The variable that names the cluster, as for Apache's Docker image, and what it says."""
    for name in ("CLUSTER_ID", "KAFKA_CLUSTER_ID"):
        if environ.get(name):
            return name, environ[name]
    return None


def _wanted_cluster_id(config: BrokerConfig, asked: str | None, environ: Mapping[str, str]) -> str | None:
    """The cluster id somebody chose for empty directories; what formatted ones say stands."""
    variable, wanted = ("", asked) if asked else cluster_id_of(environ) or ("", None)
    if not wanted:
        return None
    from ottla.storage.dirs.meta_properties import read_meta_properties

    for directory in map(Path, config.log_dirs):
        meta = read_meta_properties(directory)
        if meta is None or meta.cluster_id == wanted:
            continue
        if asked:
            raise CliError(f"--cluster-id {asked}: {directory} belongs to cluster {meta.cluster_id}")
        say(f"ottla: {variable}={wanted} is not used: {directory} belongs to cluster {meta.cluster_id}")
        break
    return wanted


_DETAILS = """\
An empty directory is formatted as a cluster of one; for a node of a larger cluster the cluster id has to
be given, or `ottla storage format` used. One that Ottla or Apache Kafka formatted keeps its cluster id and
node id. Without `listeners` the broker is at 127.0.0.1:9092. SIGTERM or Ctrl-C stops it cleanly.

  ottla serve
  ottla serve --port 19092 --data-dir ./data
  ottla serve --data-dir ./data -X listeners=PLAINTEXT://0.0.0.0:9092 -X num.partitions=3
  ottla serve --config /etc/kafka/server.properties
  ottla serve --secure --data-dir ./data
  ottla serve --check-security --config /etc/kafka/server.properties

--secure makes, at the first start, a directory beside the data (DATA_DIR-secure, or the one named) with an
authority, the node's certificate, a server.properties and a client.properties with the password of `admin`;
with TLS, SCRAM and access rules. Certificates are renewed by themselves. It needs the extra `security`.
--check-security serves nothing: it prints what is weak, one line each, and ends with 1 if anything is."""

COMMAND = Command(
    "serve",
    "run a node (broker, controller or both) on a data directory",
    CONFIG,
    DATA_DIR,
    PORT,
    SETTINGS,
    argument(
        "--cluster-id",
        metavar="ID",
        help="the cluster id to format an empty directory with (default: $CLUSTER_ID or a new one)",
    ),
    argument(
        "--secure",
        nargs="?",
        const="",
        metavar="DIR",
        complete="dir",
        help="with TLS, users, access rules and certificates of its own, made in DIR (default: DATA_DIR-secure)",
    ),
    switch("--check-security", help="only say what is weak about the node's security"),
    run=_serve,
    details=_DETAILS,
)
