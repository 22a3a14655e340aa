"""`ottla pipeline package`: what a Spark cluster needs to run a pipeline, and the lines that run it there.

The command reads the pipeline as `check` does, hands its files to ottla.spark.cluster, and prints. It starts no Spark
and asks no broker.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ottla.cli.args import CliError, bootstrap_servers
from ottla.cli.output import emit_json, say
from ottla.cli.pipeline.run import checked

if TYPE_CHECKING:
    import argparse

    from ottla.spark.cluster.package import Package


def package(args: argparse.Namespace, root: Path) -> None:
    """Make the package, say what is in it and how it is run."""
    from ottla.spark.cluster.environment import PackageError
    from ottla.spark.cluster.package import package as make
    from ottla.spark.cluster.recipes import recipes
    from ottla.spark.pipeline.contents import request_for

    pipeline = checked(args.file, args.name)
    output = Path(args.output) if args.output else root / "packages"
    wheels = Path(args.wheels) if args.wheels else None
    request = request_for(pipeline, platform=args.platform, wheels=wheels, python=args.python)
    try:
        made = make(request, output)
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
