"""`ottla pipeline package` and `deploy`: what a cluster needs to run a pipeline, and what keeps it running there.

Both read the pipeline as `check` does, hand its files to ottla.spark.cluster, and print or write. They start
no Spark and ask no broker.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ottla.cli.args import CliError, UsageError, bootstrap_servers, pairs
from ottla.cli.output import emit_json, say
from ottla.cli.pipeline.run import checked

if TYPE_CHECKING:
    import argparse

    from ottla.spark.cluster.deploy import Deployment
    from ottla.spark.cluster.package import Package
    from ottla.spark.pipeline.load import Pipeline


def package(args: argparse.Namespace, root: Path) -> None:
    """Make the package, say what is in it and how it is run."""
    from ottla.spark.cluster.environment import PackageError
    from ottla.spark.cluster.package import package as make
    from ottla.spark.cluster.recipes import recipes
    from ottla.spark.cluster.shelf import take
    from ottla.spark.pipeline.contents import request_for
    from ottla.spark.pipeline.run.runner import PACKAGES

    pipeline = checked(args.file, args.name)
    wheels = Path(args.wheels) if args.wheels else None
    request = request_for(pipeline, platform=args.platform, wheels=wheels, python=args.python)
    try:
        # Old packages are dropped where `run` keeps its own; a directory of the user's is the user's.
        made = make(request, Path(args.output)) if args.output else take(request, root / PACKAGES)
    except PackageError as error:
        raise CliError(str(error)) from None
    found = recipes(made.path, pipeline.name, pipeline.path, bootstrap_servers(args.bootstrap_server))
    if args.json:
        shown = [
            {"kind": one.kind, "title": one.title, "lines": one.lines, "note": one.note} for one in found
        ]
        emit_json({"path": str(made.path), "manifest": made.manifest, "recipes": shown})
        return
    _say_contents(made)
    for one in found:
        print(f"\n{one.title}" + (f": {one.note}" if one.note else ""))
        print("".join(f"  {line}\n" for line in one.lines), end="")


def _say_contents(made: Package) -> None:
    manifest = made.manifest
    say(f"{made.path}{'' if made.is_new else ' (was there already)'}")
    say(
        f"for {manifest['platform']} with Python {manifest['python']}: ottla {manifest['ottla']}, "
        f"pyarrow {manifest['pyarrow']} and {len(manifest['packages']) - 2} more; "
        f"{', '.join(manifest['pipeline_files'])}"
    )
    if not manifest["kernel"]:
        say("it has no compiled kernel: executors will decode records in Python, which is slower")


def deploy(args: argparse.Namespace) -> None:
    """Write what keeps the pipeline running, and say what is left to do."""
    from ottla.spark.cluster.deploy import job, spark_application
    from ottla.spark.cluster.environment import PackageError

    pipeline = checked(args.file, args.name)
    output = Path(args.output)
    if not output.is_dir():
        raise UsageError(f"--output {output}: there is no such directory")
    try:
        deployment = _deployment(args, pipeline)
        if args.to == "systemd":
            _write_unit(deployment, output)
            return
        made = job(deployment) if args.to == "kubernetes" else spark_application(deployment)
    except PackageError as error:
        raise CliError(str(error)) from None
    kind = "job" if args.to == "kubernetes" else "sparkapplication"
    path = output / f"{deployment.name}-{kind}.json"
    _write(path, json.dumps(made, indent=2) + "\n", 0o644)
    say(f"wrote {path}; `kubectl apply -f {path}` starts it")


def _deployment(args: argparse.Namespace, pipeline: Pipeline) -> Deployment:
    import importlib.metadata

    from ottla.spark.cluster.deploy import Deployment, secrets, variables
    from ottla.spark.cluster.package import pipeline_files
    from ottla.spark.pipeline.contents import request_for

    is_unit = args.to == "systemd"
    return Deployment(
        name=pipeline.name,
        file=str(pipeline.path) if is_unit else pipeline.path.name,
        bootstrap=bootstrap_servers(args.bootstrap_server),
        checkpoint_dir=args.checkpoint_dir,
        variables=variables(list(pairs(args.env, "--env"))),
        secrets=secrets(list(pairs(args.secret, "--secret"))),
        client_secret=args.client_secret,
        image=args.image,
        namespace=args.namespace,
        executors=args.executors,
        spark_version=importlib.metadata.version("pyspark") if args.to == "spark-operator" else "",
        files=() if is_unit else tuple(pipeline_files(request_for(pipeline))),
    )


def _write_unit(deployment: Deployment, output: Path) -> None:
    """The unit and the file of its environment; the latter is written once, since secrets are put into it."""
    import getpass

    from ottla.spark.cluster.deploy import env_file, unit

    name = f"ottla-{deployment.name}"
    environment = output.absolute() / f"{name}.env"
    user = getpass.getuser() if os.geteuid() else None
    text = unit(deployment, sys.executable, str(Path(deployment.file).parent), str(environment), user)
    _write(output / f"{name}.service", text, 0o644)
    if environment.exists():
        say(f"{environment} is there already and stays as it is")
    else:
        _write(environment, env_file(deployment), 0o600)
    path = (output / f"{name}.service").absolute()
    say(f"wrote {path}; `systemctl link {path} && systemctl enable --now {name}` starts it")


def _write(path: Path, text: str, mode: int) -> None:
    from ottla.model.durable import replace_file, unique_temporary

    try:
        replace_file(path, (text.encode(),), mode=mode, temporary=unique_temporary(path))
    except OSError as error:
        raise CliError(f"{path} cannot be written: {error.strerror or error}") from None
