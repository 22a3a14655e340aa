"""`ottla pipeline`: create, start, watch and stop data pipelines on Spark.

Only `new` and `run` know about pipelines' files; the other commands read what runs left in the state directory, and
so need neither Spark nor a broker. `new` writes a starter file that runs as it is, or a copy of one of the examples.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ottla.cli.args import BOOTSTRAP, OUTPUT, CliError, Command, UsageError, argument, switch, unknown
from ottla.cli.client import COMMAND_CONFIG, PROFILE
from ottla.cli.output import counted, emit, emit_json, say
from ottla.cli.pipeline.given import PARAMETERS, SECRETS, given_by
from ottla.examples import PIPELINES, source_of

if TYPE_CHECKING:
    import argparse

    from ottla.spark.pipeline.state import Home


_TEMPLATE = '''\
"""{name}: page views counted by minute.

    ottla pipeline run {file}          check it, run it, watch it; Ctrl-C stops it
    ottla pipeline status {name}

Send it something:

    echo '{{"page": "/home", "user": "ada", "at": "2026-01-01T12:00:00Z"}}' | ottla produce -t {name}
    ottla consume -t {name}.per_minute -o beginning
"""

from pyspark.sql.functions import window

from ottla.spark import pipeline, topic

# An input: a topic, and what its values are. JSON by a Spark schema here; format="avro" and format="protobuf" take
# an Avro schema or a Protobuf descriptor. `partitions` creates the topic if it is missing.
views = topic(
    "{name}",
    schema="page string NOT NULL, user string, at timestamp NOT NULL",
    partitions=1,
)


# A stream: its parameters are its inputs, what it returns goes to `out`. Records that do not parse go to
# `dead_letter`, with the reason in their headers, and never stop the stream.
@pipeline.stream(
    out=topic("{name}.per_minute", key="page", partitions=1),
    mode="update",
    dead_letter=topic("{name}.bad", partitions=1),
)
def per_minute(views=views):
    # A DataFrame like any other: this is plain PySpark. The watermark says how late a record may be; what is older
    # is forgotten, so that the state does not grow for ever.
    return views.withWatermark("at", "10 minutes").groupBy(window("at", "1 minute"), "page").count()


# Other outputs, each exactly once:
#   from ottla.spark import delta, iceberg, parquet
#   out=parquet("lake/views")
#   out=delta("lake/views", key="id", order_by="version")      upserts by a key
#   out=iceberg("web.views", warehouse="lake")
'''


def create(name: str, *, template: str | None, force: bool) -> None:
    """Write NAME.py here."""
    stem = name.removesuffix(".py")
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9._-]*", Path(stem).name):
        raise UsageError(f"{name!r}: the name of a pipeline is letters, digits, '.', '_' and '-'")
    path = Path(f"{stem}.py")
    if path.exists() and not force:
        raise CliError(f"{path} is there already; --force overwrites it")
    if not path.parent.is_dir():
        raise CliError(f"{path.parent}: there is no such directory")
    path.write_text(_text(path, template), encoding="utf-8")
    say(f"wrote {path}; run it with `ottla pipeline run {path}`")


def _text(path: Path, template: str | None) -> str:
    if template is None:
        return _TEMPLATE.format(name=path.stem, file=path)
    return source_of(template).replace(f"{template}.py", str(path))


STATE_DIR = argument(
    "--state-dir",
    metavar="DIR",
    complete="dir",
    help="where checkpoints, logs and progress are kept (default: $OTTLA_STATE_DIR or $XDG_STATE_HOME/ottla/pipelines)",
)
NAME = argument("name", complete="pipeline", help="the pipeline's name, as `ottla pipeline list` shows it")
_POLL_S = 0.1


def state_root(args: argparse.Namespace) -> Path:
    """The directory of all pipelines."""
    from ottla.spark.pipeline.state import default_state_dir

    return Path(args.state_dir) if args.state_dir else default_state_dir(os.environ)


def find(args: argparse.Namespace) -> Home:
    """The pipeline that a name means."""
    from ottla.spark.pipeline.state import homes

    root = state_root(args)
    known = {home.name: home for home in homes(root)}
    name = args.name.removesuffix(".py")
    if name not in known:
        if not known:
            raise CliError(f"no pipeline has run yet with its state in {root}")
        raise unknown("pipeline", name, list(known), "ottla pipeline list")
    return known[name]


def _new(args: argparse.Namespace) -> None:
    create(args.name, template=args.template, force=args.force)


def _run(args: argparse.Namespace) -> int:
    from ottla.cli.pipeline.run import run

    return run(args, state_root(args))


def _check(args: argparse.Namespace) -> None:
    from ottla.cli.pipeline.run import checked

    pipeline = checked(args.file, None, given_by(args))
    say(f"{pipeline.path.name} is fine: {counted(len(pipeline.streams), 'stream')}")


def _list(args: argparse.Namespace) -> None:
    from ottla.spark.pipeline.state import homes

    rows = [row for home in homes(state_root(args)) if (row := _summary(home)) is not None]
    emit(rows, ("name", "state", "pid", "started", "streams", "lag", "file"), args.output)


def _summary(home: Home) -> dict[str, Any] | None:
    from ottla.cli.pipeline.screen import timestamp
    from ottla.spark.pipeline.state import ALIVE

    run = home.run()
    if run is None:
        return None
    streams = home.progress().get("streams", [])
    lags = [stream["lag"] for stream in streams if stream.get("lag") is not None]
    return {
        "name": home.name,
        "state": run.state,
        "pid": run.pid if run.state in ALIVE else None,
        "started": timestamp(run.started_ms),
        "streams": len(streams),
        "lag": sum(lags) if lags else None,
        "file": run.file,
    }


def _status(args: argparse.Namespace) -> int:
    from dataclasses import asdict

    from ottla.cli.pipeline.screen import status_lines
    from ottla.spark.pipeline.state import DIED, FAILED

    home = find(args)
    run = home.run()
    assert run is not None
    progress = home.progress()
    if args.json or args.output == "json":
        emit_json({**asdict(run), "at_ms": progress.get("at_ms"), "streams": progress.get("streams", [])})
    else:
        print("\n".join(status_lines(run, progress)))
    return 1 if run.state in (FAILED, DIED) else 0


def _stop(args: argparse.Namespace) -> int:
    from ottla.spark.pipeline.state import ALIVE

    home = find(args)
    run = home.run()
    assert run is not None
    pid = home.pid()
    if not home.is_running() or pid is None:
        left = f" (process {pid}, which its pid file names, is no longer it)" if pid is not None else ""
        say(f"{home.name} does not run{left}: {run.state}")
        return 0 if run.state not in ALIVE else 1
    stop_process(home, pid, args.timeout, force=args.force)
    ended = home.run()
    say(f"{home.name}: {ended.state if ended else 'gone'}")
    return 0


def stop_process(home: Home, pid: int, timeout_s: float, *, force: bool) -> None:
    """Ask the process that holds the lock to end, and wait until it has let go."""
    import signal
    import time

    _signal(pid, signal.SIGTERM)
    deadline = time.monotonic() + timeout_s
    while home.is_running():
        if time.monotonic() > deadline:
            if not force:
                raise CliError(
                    f"{home.name} (process {pid}) has not stopped within {timeout_s:g} s; --force kills it"
                )
            _signal(pid, signal.SIGKILL)
            force, deadline = False, deadline + timeout_s
        time.sleep(_POLL_S)  # another process's end shows only by its lock on a file


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return  # it ended by itself meanwhile, as the lock shows


_NEW_DETAILS = "Templates:\n\n" + "\n".join(f"  {name:<12} {what}" for name, what in PIPELINES.items())

_RUN_DETAILS = """\
The file is checked first; Spark starts only if nothing is wrong. A run goes on where the last one with the same name
stopped, from the checkpoint in the state directory. Ctrl-C stops cleanly.

  ottla pipeline run clicks.py
  ottla pipeline run clicks.py --master spark://host:7077 -b broker:9092 --detach
  ottla pipeline run clicks.py --command-config client.properties
  ottla pipeline run clicks.py --param limit=10 --param-file prod.toml --secrets-dir /run/secrets
  ottla pipeline run clicks.py --remote sc://host:15002 --checkpoint-dir s3a://bucket/checkpoints"""

COMMAND = Command(
    "pipeline",
    "start, watch and stop data pipelines on Spark",
    commands=(
        Command(
            "new",
            "write a starter file, with comments, that runs as it is",
            argument("name", help="of the pipeline; the file is NAME.py"),
            argument(
                "--template", choices=tuple(PIPELINES), help="begin with a copy of a pipeline that ships"
            ),
            switch("--force", help="overwrite a file that is there"),
            run=_new,
            details=_NEW_DETAILS,
        ),
        Command(
            "run",
            "check a pipeline's file, run it and show its progress",
            argument(
                "file", complete="file", help="the pipeline: a Python file, or an importable module's name"
            ),
            BOOTSTRAP,
            argument("--name", help="of the pipeline: its state, queries and groups (default: the file's)"),
            argument(
                "--master",
                metavar="URL",
                help="the Spark to use: local[N], spark://..., yarn, k8s://... (default: local[*])",
            ),
            argument("--remote", metavar="URL", help="a Spark Connect server: sc://host:port"),
            STATE_DIR,
            argument(
                "--checkpoint-dir",
                metavar="URL",
                help="where Spark keeps the checkpoints, if not in the state directory",
            ),
            switch("--available-now", help="process what is there, then end"),
            switch("--detach", help="run in the background; see status and stop"),
            switch("--create-topics", help="create topics that are missing, with the broker's defaults"),
            argument(
                "--conf",
                action="append",
                default=[],
                metavar="KEY=VALUE",
                help="a setting of Spark (may be given many times)",
            ),
            *PARAMETERS,
            *SECRETS,
            PROFILE,
            COMMAND_CONFIG,
            argument(
                "-X",
                "--property",
                action="append",
                default=[],
                metavar="KEY=VALUE",
                help="a setting of the client, e.g. security.protocol=SSL (may be given many times); others on this "
                "machine see it: passwords belong into a file",
            ),
            run=_run,
            details=_RUN_DETAILS,
        ),
        Command(
            "check",
            "check a pipeline's file without running it",
            argument("file", complete="file", help="the pipeline"),
            *PARAMETERS,
            run=_check,
        ),
        Command("list", "the pipelines that have run here, and how they are", STATE_DIR, OUTPUT, run=_list),
        Command(
            "status",
            "the figures of one pipeline",
            NAME,
            STATE_DIR,
            OUTPUT,
            switch("--json", help="the same as -o json"),
            run=_status,
        ),
        Command(
            "stop",
            "stop a pipeline cleanly",
            NAME,
            STATE_DIR,
            argument(
                "--timeout", type=float, default=60.0, metavar="S", help="how long to wait (default: 60)"
            ),
            switch("--force", help="kill it if it has not stopped by then"),
            run=_stop,
        ),
    ),
)
