"""The options by which a pipeline's parameters and secrets are given."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ottla.cli.args import UsageError, argument, pairs

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from ottla.spark.pipeline.given import Given, Secrets

PARAMETERS = (
    argument(
        "--param",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a parameter of the file, or of one stream: STREAM.NAME=VALUE (may be given many times); before "
        "$OTTLA_PARAM_NAME and --param-file",
    ),
    argument("--param-file", metavar="FILE", complete="file", help="parameters in TOML or JSON"),
)
SECRETS = (
    argument(
        "--secrets-dir",
        metavar="DIR",
        complete="dir",
        help="a directory with a file for each secret, as Kubernetes mounts them; after $OTTLA_SECRET_NAME and "
        "$OTTLA_SECRET_NAME_FILE",
    ),
    argument(
        "--secret-command",
        metavar="COMMAND",
        help="a command that prints the secret {name}, run without a shell: 'pass show {name}'",
    ),
)


def given_by(args: argparse.Namespace, *, asks: bool = True) -> Callable[[], Given]:
    """What the options and the environment give, found when the file is loaded; `check` does not ask for secrets."""
    values = dict(pairs(args.param, "--param"))
    directory = args.secrets_dir
    if directory is not None and not os.path.isdir(directory):
        raise UsageError(f"--secrets-dir {directory}: there is no such directory")

    def find() -> Given:
        from ottla.spark.pipeline.given import Given, Source, environment, param_file

        sources = [Source("--param", values), environment(os.environ)]
        if args.param_file is not None:
            sources.append(param_file(args.param_file))
        return Given(tuple(sources), secrets_by(args) if asks else None)

    return find


def secrets_by(args: argparse.Namespace) -> Secrets:
    """Where secrets are looked for."""
    from ottla.spark.pipeline.given import Secrets

    return Secrets(os.environ, args.secrets_dir, args.secret_command)
