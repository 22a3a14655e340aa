"""A pipeline that others start: spark-submit (`submit.py` of a package calls `main`), systemd, a pod of Kubernetes.

The work is the runner's, with the session that spark-submit has prepared, or one of its own where a master is named:
same queries, checkpoints, retries and clean end on SIGTERM. What it has to say goes to standard output, since the pod
or journal that it runs in is all there is.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from ottla.spark.cluster.shelf import hold
from ottla.spark.connection import CONFIG_FILE
from ottla.spark.pipeline.declare import PipelineError
from ottla.spark.pipeline.load import load
from ottla.spark.pipeline.run import state
from ottla.spark.pipeline.run.runner import RunLog, Runner
from ottla.spark.pipeline.run.spec import Spec, quieted


def parser() -> argparse.ArgumentParser:
    """The options of `submit.py`: those of `ottla pipeline run` that mean something there."""
    made = argparse.ArgumentParser(prog="submit.py", description="Run a packaged pipeline.")
    made.add_argument("file")
    made.add_argument("-b", "--bootstrap-server", default=os.environ.get("OTTLA_BOOTSTRAP_SERVER"))
    made.add_argument("--name", help="of the pipeline: its queries and groups (default: the file's)")
    made.add_argument(
        "--checkpoint-dir", help="where Spark keeps the checkpoints; all executors have to reach it"
    )
    made.add_argument("--state-dir", default=os.environ.get("OTTLA_STATE_DIR") or "state")
    made.add_argument(
        "--master", help="start Spark with this master; without it, spark-submit has chosen one"
    )
    made.add_argument(
        "--command-config", default=os.environ.get("OTTLA_CONFIG"), help="a file with the client's settings"
    )
    made.add_argument("--available-now", action="store_true", help="process what is there, then end")
    made.add_argument("--create-topics", action="store_true", help="create topics that are missing")
    return made


def main(arguments: Sequence[str]) -> int:
    """Run the pipeline until it ends or is stopped; the exit code."""
    args = parser().parse_args(arguments)
    if not args.bootstrap_server:
        print("ottla: where are the brokers? -b HOST:PORT or $OTTLA_BOOTSTRAP_SERVER", file=sys.stderr)
        return 2
    try:
        pipeline = load(args.file)
    except PipelineError as error:
        print("".join(f"ottla: {line}\n" for line in str(error).splitlines()), end="", file=sys.stderr)
        return 1
    hold(Path.cwd())  # the package, where spark-submit was started in one
    name = args.name or pipeline.name
    options = {CONFIG_FILE: str(Path(args.command_config).absolute())} if args.command_config else {}
    home = state.Home(Path(args.state_dir), name)
    spec = Spec(
        file=str(pipeline.path),
        name=name,
        bootstrap=args.bootstrap_server,
        state_dir=str(Path(args.state_dir).absolute()),
        log="",
        spark_log=str(home.path / "spark.log"),
        master=args.master,
        checkpoint_dir=args.checkpoint_dir,
        available_now=args.available_now,
        create_topics=args.create_topics,
        options=options,
        params=pipeline.texts,
        secrets=pipeline.secrets,
        submitted=args.master is None,
    )
    log = RunLog(sys.stdout, quieted(spec))
    try:
        return Runner(spec, log).run()
    except state.AlreadyRunning as error:
        print(f"ottla: {error}", file=sys.stderr)
        return 1
    except OSError as error:  # before anything has begun: this run cannot keep its own files
        print(f"ottla: {home.path} cannot be written: {error.strerror or error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
