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
from ottla.cli.output import emit, emit_json, say
from ottla.cli.pipeline.given import PARAMETERS, SECRETS
from ottla.examples import PIPELINES, source_of

if TYPE_CHECKING:
    import argparse

    from ottla.spark.pipeline.run.state import Home


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
FILE = argument("file", complete="file", help="the pipeline: a Python file, or an importable module's name")
NAME = argument("name", complete="pipeline", help="the pipeline's name, as `ottla pipeline list` shows it")
CLIENT = (
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
)
CONF = argument(
    "--conf",
    action="append",
    default=[],
    metavar="KEY=VALUE",
    help="a setting of Spark (may be given many times); others on this machine see it: passwords belong into Spark's "
    "spark-defaults.conf",
)
REMOTE = argument(
    "--remote",
    metavar="URL",
    help="a Spark Connect server: sc://host:port; a token belongs into $SPARK_CONNECT_AUTHENTICATE_TOKEN",
)
# For those who start what has run before: what was secret was not kept.
AGAIN = (REMOTE, CONF)
STOPPING = (
    argument("--timeout", type=float, default=60.0, metavar="S", help="how long to wait (default: 60)"),
    switch("--force", help="kill it if it has not stopped by then"),
)
_POLL_S = 0.1


def _count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError(text)
    return number


def state_root(args: argparse.Namespace) -> Path:
    """The directory of all pipelines."""
    from ottla.spark.pipeline.run.state import default_state_dir

    return Path(args.state_dir) if args.state_dir else default_state_dir(os.environ)


def find(args: argparse.Namespace) -> Home:
    """The pipeline that a name means."""
    from ottla.spark.pipeline.run.state import homes

    root = state_root(args)
    known = {home.name: home for home in homes(root)}
    name = args.name.removesuffix(".py")
    if name not in known:
        if not known:
            raise CliError(f"no pipeline has run yet with its state in {root}")
        raise unknown("pipeline", name, list(known), "ottla pipeline list")
    if known[name].run() is None:
        raise CliError(
            f"{known[name].path / 'run.json'} is not what a run has written, or only a part of it; the next `ottla "
            "pipeline run` writes it anew, and goes on from the checkpoints"
        )
    return known[name]


def _new(args: argparse.Namespace) -> None:
    create(args.name, template=args.template, force=args.force)


def _run(args: argparse.Namespace) -> int:
    from ottla.cli.pipeline.run import run

    return run(args, state_root(args))


def _check(args: argparse.Namespace) -> int:
    from ottla.cli.pipeline.check import check

    return check(args, state_root(args))


def _graph(args: argparse.Namespace) -> None:
    from ottla.cli.pipeline.run import checked
    from ottla.spark.pipeline.lineage import DRAWN, graph_of

    print(DRAWN[args.format](graph_of(checked(file, None) for file in args.files)))


def _list(args: argparse.Namespace) -> None:
    from ottla.spark.pipeline.run.state import homes

    rows = [row for home in homes(state_root(args)) if (row := _summary(home)) is not None]
    emit(rows, ("name", "state", "pid", "started", "streams", "lag", "file"), args.output)


def _summary(home: Home) -> dict[str, Any] | None:
    from ottla.cli.pipeline.screen import timestamp
    from ottla.spark.pipeline.run.state import ALIVE

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
    from ottla.spark.pipeline.run.state import DIED, FAILED

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
    from ottla.spark.pipeline.run.state import ALIVE

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


def _logs(args: argparse.Namespace) -> int:
    from ottla.cli.pipeline.life import logs

    return logs(args, find(args))


def _attach(args: argparse.Namespace) -> int:
    from ottla.cli.pipeline.life import attach

    return attach(find(args))


def _restart(args: argparse.Namespace) -> int:
    from ottla.cli.pipeline.life import restart

    return restart(args, find(args), lambda: _stop(args))


def _replay(args: argparse.Namespace) -> int:
    from ottla.cli.pipeline.life import replay

    return replay(args, find(args), state_root(args))


def _reset(args: argparse.Namespace) -> int:
    from ottla.cli.pipeline.life import reset

    return reset(args, find(args))


def _savepoint(args: argparse.Namespace) -> int:
    from ottla.cli.pipeline.life import savepoint

    return savepoint(args, find(args))


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


def _package(args: argparse.Namespace) -> None:
    from ottla.cli.pipeline.cluster import package

    package(args, state_root(args))


def _deploy(args: argparse.Namespace) -> None:
    from ottla.cli.pipeline.cluster import deploy

    deploy(args)


_DEPLOY_DETAILS = """\
A systemd unit runs the file where it is, with this Python. The others run an image that has Spark, Java and Ottla with
its extra `spark`: a Job in one pod, a SparkApplication with executors. Secrets are named, never given.

  ottla pipeline deploy clicks.py --to systemd --output /etc/ottla
  ottla pipeline deploy clicks.py --to kubernetes --image IMAGE --checkpoint-dir s3a://bucket/checkpoints
  ottla pipeline deploy clicks.py --to spark-operator --image IMAGE --secret DB_PASSWORD=db/password"""

_PACKAGE_DETAILS = """\
Makes an archive of the Python environment (Ottla, PyArrow and what the pipeline imports; PySpark is Spark's own), one
of the pipeline's file with the modules and schemas beside it, and prints the lines that run them on each kind of
master. The same content has the same name, and is made once. `ottla pipeline run --master` does this by itself.

  ottla pipeline package clicks.py -b broker:9092
  ottla pipeline package clicks.py --platform linux-aarch64 --wheels wheels"""

_NEW_DETAILS = "Templates:\n\n" + "\n".join(f"  {name:<12} {what}" for name, what in PIPELINES.items())

_RUN_DETAILS = """\
The file is checked first; Spark starts only if nothing is wrong. A run goes on where the last one with the same name
stopped, from the checkpoint in the state directory. Ctrl-C stops cleanly.

  ottla pipeline run clicks.py
  ottla pipeline run clicks.py --master spark://host:7077 -b broker:9092 --detach
  ottla pipeline run clicks.py --command-config client.properties
  ottla pipeline run clicks.py --param limit=10 --param-file prod.toml --secrets-dir /run/secrets
  ottla pipeline run clicks.py --remote sc://host:15002 --checkpoint-dir s3a://bucket/checkpoints"""

_CHECK_DETAILS = """\
Nothing is made: no topic, table, subject, checkpoint or group. Brokers that are away, topics that are missing and
secrets that are not given are lines, and no hindrance; the exit code is 1 where a plan cannot be made, or a run could
not go on with the state that is there.

  ottla pipeline check clicks.py
  ottla pipeline check clicks.py --plan -b broker:9092"""

_REPLAY_DETAILS = """\
The pipeline is run as NAME.replay, in its file as it is now and with the settings of its last run, and ends when all is
done; one that was stopped goes on when it is asked for again. What the pipeline itself writes is left alone, and it may
run meanwhile.

  ottla pipeline replay clicks --from 2026-11-01T00:00 --into clicks.per_minute.v2
  ottla pipeline replay orders --from 7d --to 1d --stream to_lake --into /lake/orders_new"""

_SAVEPOINT_DETAILS = """\
Of a pipeline that does not run: its checkpoints with offsets and state, as they are. A run that starts from the copy is
a life of its own: what the pipeline wrote after the copy is written again, into the outputs that its file names.

  ottla pipeline savepoint clicks --to /backup/clicks-before-v2
  ottla pipeline run clicks_v2.py --from-savepoint /backup/clicks-before-v2"""

_RESET_DETAILS = """\
Nothing is deleted: checkpoints with their state and offsets move to set-aside/ in the pipeline's directory. What the
queries left open in topics is aborted first, and whoever still runs them elsewhere can write nothing more, neither
into topics nor into tables. Parameters that are not given are as they were."""

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
            FILE,
            BOOTSTRAP,
            argument("--name", help="of the pipeline: its state, queries and groups (default: the file's)"),
            argument(
                "--master",
                metavar="URL",
                help="the Spark to use: local[N], spark://..., yarn, k8s://... (default: local[*])",
            ),
            REMOTE,
            STATE_DIR,
            argument(
                "--checkpoint-dir",
                metavar="URL",
                help="where Spark keeps the checkpoints, if not in the state directory",
            ),
            argument(
                "--from-savepoint",
                metavar="DIR",
                complete="dir",
                help="start from this copy (see savepoint); only where there is no checkpoint yet",
            ),
            switch("--available-now", help="process what is there, then end"),
            switch("--detach", help="run in the background; see status and stop"),
            switch("--create-topics", help="create topics that are missing, with the broker's defaults"),
            argument(
                "--metrics",
                metavar="[HOST:]PORT",
                help="serve the figures as OpenMetrics, at /metrics (0: a free port, which the log and status name)",
            ),
            argument(
                "--give-up-after",
                metavar="DURATION",
                help="how long a stream that fails, as while brokers are away, is started again: 90s, 15m, 2h "
                "(default: never give up)",
            ),
            CONF,
            *PARAMETERS,
            *SECRETS,
            *CLIENT,
            run=_run,
            details=_RUN_DETAILS,
        ),
        Command(
            "check",
            "check a pipeline's file without running it",
            FILE,
            switch(
                "--plan",
                help="build the plans with a local Spark, show them, compare state with the checkpoints",
            ),
            switch("--json", help="with --plan: as JSON"),
            argument("--name", help="of the pipeline (default: the file's)"),
            BOOTSTRAP,
            STATE_DIR,
            argument(
                "--checkpoint-dir",
                metavar="DIR",
                help="where the checkpoints are, if not in the state directory",
            ),
            CONF,
            *PARAMETERS,
            *SECRETS,
            *CLIENT,
            run=_check,
            details=_CHECK_DETAILS,
        ),
        Command(
            "graph",
            "what feeds what: the topics, tables and streams of some pipelines",
            argument("files", nargs="+", metavar="file", complete="file", help="pipelines"),
            argument(
                "--format",
                choices=("text", "dot", "mermaid"),
                default="text",
                help="for people, Graphviz or Markdown",
            ),
            run=_graph,
        ),
        Command(
            "package",
            "make what a Spark cluster needs to run a pipeline, and print how",
            FILE,
            BOOTSTRAP,
            argument("--name", help="of the pipeline (default: the file's)"),
            argument(
                "--output",
                metavar="DIR",
                complete="dir",
                help="where to (default: packages in the state directory)",
            ),
            argument(
                "--platform",
                metavar="PLATFORM",
                help="the executors': linux-x86_64 or linux-aarch64 (default: this machine's)",
            ),
            argument(
                "--wheels",
                metavar="DIR",
                complete="dir",
                help="take the environment from these wheels, not from what is installed",
            ),
            argument(
                "--python",
                metavar="COMMAND",
                help="the executors' Python, as a path or a name there (default: the one of this version)",
            ),
            STATE_DIR,
            switch("--json", help="manifest and lines as JSON"),
            run=_package,
            details=_PACKAGE_DETAILS,
        ),
        Command(
            "deploy",
            "write what keeps a pipeline running: a systemd unit or a Kubernetes manifest",
            FILE,
            argument(
                "--to",
                required=True,
                choices=("systemd", "kubernetes", "spark-operator"),
                help="what to write",
            ),
            BOOTSTRAP,
            argument("--name", help="of the pipeline (default: the file's)"),
            argument("--output", metavar="DIR", complete="dir", default=".", help="where to (default: here)"),
            argument("--image", help="of the pods: with Spark, Java and Ottla"),
            argument("--namespace", help="of Kubernetes (default: the one that kubectl uses)"),
            argument(
                "--executors", type=int, default=2, metavar="N", help="of a SparkApplication (default: 2)"
            ),
            argument("--checkpoint-dir", metavar="URL", help="where Spark keeps the checkpoints"),
            argument(
                "--env",
                action="append",
                default=[],
                metavar="NAME=VALUE",
                help="a parameter (may be given many times)",
            ),
            argument(
                "--secret",
                action="append",
                default=[],
                metavar="NAME=SECRET/KEY",
                help="a variable whose value is in a Secret of Kubernetes (may be given many times)",
            ),
            argument(
                "--client-secret",
                metavar="SECRET",
                help="a Secret of Kubernetes with the client's settings, as client.properties",
            ),
            run=_deploy,
            details=_DEPLOY_DETAILS,
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
            *STOPPING,
            run=_stop,
        ),
        Command(
            "attach", "watch a pipeline that runs; Ctrl-C leaves it running", NAME, STATE_DIR, run=_attach
        ),
        Command(
            "logs",
            "what the last run said",
            NAME,
            STATE_DIR,
            switch("-f", "--follow", help="go on until the run ends"),
            argument(
                "-n", "--lines", type=_count, metavar="N", help="only the last N lines of what is there"
            ),
            switch("--spark", help="Spark's own log instead"),
            run=_logs,
        ),
        Command(
            "restart",
            "stop a pipeline, and start it as it was last started, in the background",
            NAME,
            STATE_DIR,
            *STOPPING,
            *AGAIN,
            *PARAMETERS,
            *SECRETS,
            run=_restart,
            details="The file is read and checked anew before anything is stopped. Parameters and settings not "
            "given are as they were; secrets are kept nowhere, and asked for anew.",
        ),
        Command(
            "replay",
            "run streams once more over what their topics have of some time, into outputs of their own",
            NAME,
            STATE_DIR,
            argument(
                "--from",
                dest="since",
                required=True,
                metavar="TIME",
                help="2026-11-01T00:00 (UTC, or with a zone), milliseconds, or 2h, 7d for so long ago; by the records' "
                "timestamps",
            ),
            argument(
                "--to", metavar="TIME", help="only what is older (default: to the end that is there now)"
            ),
            argument("--stream", metavar="NAME", help="one stream only"),
            argument(
                "--into",
                metavar="TOPIC|PATH|TABLE",
                help="the output (default: that of the stream with .replay behind its name)",
            ),
            switch("--detach", help="run in the background; see status and stop"),
            *AGAIN,
            *PARAMETERS,
            *SECRETS,
            run=_replay,
            details=_REPLAY_DETAILS,
        ),
        Command(
            "reset",
            "set the checkpoints of a pipeline that does not run aside: its next run begins anew",
            NAME,
            STATE_DIR,
            argument("--stream", metavar="NAME", help="of one stream only"),
            BOOTSTRAP,
            *PARAMETERS,
            *SECRETS,
            *CLIENT,
            run=_reset,
            details=_RESET_DETAILS,
        ),
        Command(
            "savepoint",
            "copy the checkpoints and the state of a pipeline that does not run, to start from",
            NAME,
            STATE_DIR,
            argument(
                "--to",
                metavar="DIR",
                complete="dir",
                help="where to; it must not be there (default: savepoints/ in the pipeline's directory)",
            ),
            run=_savepoint,
            details=_SAVEPOINT_DETAILS,
        ),
    ),
)
