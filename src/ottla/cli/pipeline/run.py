"""`ottla pipeline run`: checks, then a runner in a process of its own, watched until it ends or Ctrl-C.

The runner (ottla.spark.pipeline.run.runner) does the work and writes its state to disk; whoever watches reads it there,
so a run in the foreground is a run in the background with somebody looking on. Spark's noise goes to a file.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ottla.cli.args import EXIT_INTERRUPTED, CliError, UsageError, bootstrap_servers, pairs
from ottla.cli.client import command_config, explained
from ottla.cli.output import say
from ottla.cli.pipeline.given import given_by
from ottla.cli.profile import profile_file
from ottla.cli.selection import parse_duration_ms
from ottla.model.install import install

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Mapping

    from ottla.spark.pipeline.given import Given
    from ottla.spark.pipeline.load import Pipeline
    from ottla.spark.pipeline.run.spec import Spec
    from ottla.spark.pipeline.run.state import Home, Run

# As Spark takes them; some would be found out only by Java, which is then blamed.
MASTER = re.compile(r"local|local\[(\*|\d+)(\s*,\s*\d+)?\]|local-cluster\[.*\]|spark://.+|yarn|k8s://.+")
REDRAW_S = 0.5
PLAIN_EVERY_S = 10.0
KEEP_LOGS = 20


def run(args: argparse.Namespace, root: Path) -> int:
    """Check, start, watch."""
    if args.master and args.remote:
        raise UsageError("--master and --remote: one or the other")
    if args.master and not MASTER.fullmatch(args.master):
        raise UsageError(
            f"--master {args.master!r} is no master of Spark's: local, local[N], local[*], spark://HOST:PORT, yarn, "
            "k8s://…"
        )
    remote = spark_address(args.remote)
    require_spark(remote)
    pipeline = checked(args.file, args.name, given_by(args))
    options, bootstrap = client_options(args)
    conf = dict(pairs(args.conf, "--conf"))
    _give_up_after_s(args.give_up_after)
    _metrics(args.metrics)
    home = home_of(root, pipeline.name)
    _check_savepoint(args, home)
    check_topics(pipeline, bootstrap, options, create_all=args.create_topics)
    spec = _spec(args, pipeline, home, bootstrap, remote, conf, options)
    return detached(spec, home) if args.detach else watched(spec, home)


def spark_address(given: str | None) -> str | None:
    """The address of a Spark Connect server with the token that is to be used there, the environment's if it has none.

    So a token is known to be one wherever it comes from: hidden in what is said, and asked for by the next start.
    """
    if given is None:
        return None
    from ottla.spark.cluster.connect import TOKEN_VARIABLE, with_token, wrong_with

    if wrong := wrong_with(given):
        raise UsageError(f"--remote {wrong}")
    return with_token(given, os.environ.get(TOKEN_VARIABLE))


def _check_savepoint(args: argparse.Namespace, home: Home) -> None:
    """Said here rather than by the runner, which looks again with the lock in its hand."""
    from ottla.spark.pipeline.checkpoints import savepoint

    if args.from_savepoint is None:
        return
    if args.remote:
        raise UsageError(
            "--from-savepoint copies files of this machine: it goes with --master, not with --remote"
        )
    try:
        savepoint.read(Path(args.from_savepoint).absolute())
        savepoint.refuse(args.checkpoint_dir or str(home.checkpoints))
    except savepoint.SavepointError as error:
        raise CliError(str(error)) from None


def client_options(args: argparse.Namespace) -> tuple[dict[str, str], str]:
    """The options of every source and sink, and where the brokers are.

    A file of settings goes to Spark by its path, not by what is in it: --command-config, or else the profile.
    """
    from ottla.client.config import settings_file
    from ottla.client.errors import ConfigError
    from ottla.spark.connection import CONFIG_FILE

    options = {f"kafka.{key}": value for key, value in pairs(args.property, "-X")}
    named = options.pop("kafka.bootstrap.servers", None)
    file = command_config(args) or profile_file(args.profile)
    if file is not None:
        options[CONFIG_FILE] = str(Path(file).absolute())
        try:
            named = named or settings_file(file).taken.get("bootstrap.servers")
        except ConfigError as error:
            raise UsageError(str(error)) from None
    return options, args.bootstrap_server or named or bootstrap_servers(None)


def checked(file: str, name: str | None, given: Callable[[], Given] | None = None) -> Pipeline:
    """The pipeline of a file, or everything that is wrong with it; what it is given counts where it is to run."""
    from dataclasses import replace

    from ottla.spark.pipeline.declare import PipelineError
    from ottla.spark.pipeline.given import NOTHING
    from ottla.spark.pipeline.load import LEGAL_NAME, load

    _require_packages()
    try:
        pipeline = load(file, NOTHING if given is None else given())
    except PipelineError as error:
        raise refused(error) from None
    name = name or pipeline.name
    if not LEGAL_NAME.fullmatch(name):
        raise UsageError(f"{name!r}: the name of a pipeline is letters, digits, '.', '_' and '-'; see --name")
    return replace(pipeline, name=name)


def refused(error: Exception) -> CliError:
    """All that is wrong, one line each; the last line is the one that main prints."""
    lines = str(error).splitlines()
    for line in lines[:-1]:
        say(f"ottla: {line}")
    return CliError(lines[-1])


def require_spark(remote: str | None) -> None:
    """One sentence for what is missing, before anything else is tried."""
    _require_packages()
    if remote is not None:
        for package in ("grpc", "grpc_status", "pandas", "google.rpc"):
            if not _is_installed(package):
                raise CliError(f"--remote needs the package {package}: {install('spark-connect')}")
        return
    from ottla.spark.java import JavaMissing, find_java

    try:
        find_java()
    except JavaMissing as error:
        raise CliError(str(error)) from None


def _require_packages() -> None:
    """Schemas are Spark's, so a file cannot be read without its package."""
    for package in ("pyspark", "pyarrow"):
        if not _is_installed(package):
            raise CliError(f"pipelines need the package {package}: {install('spark')}")


def _is_installed(package: str) -> bool:
    import importlib.util

    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # of the package above it
        return False


def home_of(root: Path, name: str) -> Home:
    from ottla.spark.pipeline.run.state import Home

    home = Home(root, name)
    if home.is_running():
        raise CliError(
            f"{name} runs already, as process {home.pid()}; `ottla pipeline stop {name}` stops it, --name runs another"
        )
    return home


def check_topics(pipeline: Pipeline, bootstrap: str, options: dict[str, str], *, create_all: bool) -> None:
    from ottla.spark.connection import OptionError
    from ottla.spark.pipeline.declare import PipelineError
    from ottla.spark.pipeline.topics import check_topics

    try:
        with explained():
            check_topics(pipeline, bootstrap, options, create_all=create_all)
    except PipelineError as error:
        raise refused(error) from None
    except OptionError as error:
        raise UsageError(str(error)) from None


def _spec(
    args: argparse.Namespace,
    pipeline: Pipeline,
    home: Home,
    bootstrap: str,
    remote: str | None,
    conf: dict[str, str],
    options: dict[str, str],
) -> Spec:
    from ottla.spark.pipeline.run.spec import Spec

    log, spark_log = log_files(home)
    return Spec(
        file=str(pipeline.path),
        name=pipeline.name,
        bootstrap=bootstrap,
        state_dir=str(home.path.parent),
        log=log,
        spark_log=spark_log,
        master=args.master,
        remote=remote,
        checkpoint_dir=_checkpoint_dir(args),
        available_now=args.available_now,
        watched=not args.detach,
        create_topics=args.create_topics,
        from_savepoint=None if args.from_savepoint is None else str(Path(args.from_savepoint).absolute()),
        metrics=_metrics(args.metrics),
        give_up_after_s=_give_up_after_s(args.give_up_after),
        conf=conf,
        options=options,
        params=pipeline.texts,
        secrets=pipeline.secrets,
    )


def _checkpoint_dir(args: argparse.Namespace) -> str | None:
    """Whole, where it is a directory of this machine: `restart` and `replay` may be asked for in another one, and would
    begin anew there."""
    given: str | None = args.checkpoint_dir
    return given if not given or args.remote or ":" in given else os.path.abspath(given)


def log_files(home: Home) -> tuple[str, str]:
    """The logs of a run that begins now: for people, and Spark's."""
    home.logs.mkdir(parents=True, exist_ok=True)
    _drop_old_logs(home.logs)
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%f")[:-3]
    return str(home.logs / f"{stamp}.log"), str(home.logs / f"{stamp}.spark.log")


def _give_up_after_s(given: str | None) -> float | None:
    if given in (None, "never"):
        return None
    return parse_duration_ms(given) / 1000


def _metrics(given: str | None) -> str | None:
    from ottla.spark.pipeline.run.metrics import parse_address

    try:
        if given is not None:
            parse_address(given)
    except ValueError:
        raise UsageError(f"--metrics {given!r} is neither a port nor HOST:PORT") from None
    return given


def _drop_old_logs(logs: Path) -> None:
    """A pipeline that is restarted every hour would fill the disk with what it said."""
    for old in sorted(logs.glob("*.log*"))[: -2 * KEEP_LOGS]:
        old.unlink(missing_ok=True)


def _start(spec: Spec) -> subprocess.Popen[bytes]:
    """The runner, away from this terminal's signals. What it is to do is not for everybody's eyes, as arguments are."""
    from ottla.spark.pipeline.given import without_secret_variables
    from ottla.spark.worker_python import users_environment

    command = [sys.executable, "-m", "ottla.spark.pipeline.run.runner", spec.name]
    environment = without_secret_variables(users_environment(os.environ))
    with open(spec.spark_log, "ab") as noise:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=noise,
            stderr=noise,
            start_new_session=True,
            env=environment,
        )
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it has ended already, and its log says why
        process.stdin.write(spec.to_json().encode() + b"\n")
        process.stdin.flush()
        if not spec.watched:
            process.stdin.close()
    return process


def detached(spec: Spec, home: Home) -> int:
    """Start it and wait until it runs, so that what goes wrong at the start is said here."""
    from ottla.spark.pipeline.run.state import STARTING

    process = _start(spec)
    say(f"{spec.name}: starting as process {process.pid}")
    while process.poll() is None:
        found = _current(home, process.pid, spec)
        if found is not None and found.state != STARTING:
            break
        time.sleep(0.1)  # the runner writes its state to a file
    ended = _outcome(home, process, spec)
    if ended.problems or process.poll() not in (None, 0):
        return _report(ended, spec)
    say(f"{spec.name}: {ended.state}; `ottla pipeline status {spec.name}` shows it, log {spec.log}")
    return 0


def _current(home: Home, pid: int, spec: Spec) -> Run | None:
    """The run of this very process: an earlier one's file may still be there, and in a container each has this number.
    The log is one run's alone."""
    found = home.run()
    return found if found is not None and (found.pid, found.log) == (pid, spec.log) else None


def watched(spec: Spec, home: Home) -> int:
    process = _start(spec)
    interrupted = False
    try:
        with view() as show:
            while process.poll() is None:
                found = _current(home, process.pid, spec)
                if found is not None:
                    show(found, home.progress())
                time.sleep(REDRAW_S)  # between two frames
    except KeyboardInterrupt:
        interrupted = True
        _stop(process, spec)
    ended = _outcome(home, process, spec)
    print_summary(ended, home)
    if ended.problems or ended.state not in ("stopped", "finished"):
        return _report(ended, spec)
    return EXIT_INTERRUPTED if interrupted else 0


def _stop(process: subprocess.Popen[bytes], spec: Spec) -> None:
    """Ctrl-C: the runner stops when its standard input ends. A second one does not wait for it."""
    say(f"\n{spec.name}: stopping (Ctrl-C again kills it)")
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait()
    except KeyboardInterrupt:
        process.kill()
        process.wait()


def _outcome(home: Home, process: subprocess.Popen[bytes], spec: Spec) -> Run:
    from dataclasses import replace

    from ottla.spark.pipeline.discreet import hiding
    from ottla.spark.pipeline.run.full_disk import Place, fullest
    from ottla.spark.pipeline.run.state import DIED, FAILED, Run

    found = _current(home, process.pid, spec)
    if found is None:
        full = fullest([Place("", str(home.path))], share=0)
        reason = f"the disk of {home.path} is full" if full is not None else ""
        reason = _tail(spec.log) or _tail(spec.spark_log) or reason or f"it ended with code {process.poll()}"
        return Run(
            spec.name,
            spec.file,
            spec.bootstrap,
            spec.spark,
            FAILED,
            process.pid,
            problems=(hiding(spec.hidden)(reason),),
        )
    if found.state == DIED:
        return replace(found, problems=(f"the process ended unexpectedly (code {process.poll()})",))
    return found


def _tail(path: str) -> str:
    """The last line of a file, if there is one."""
    try:
        lines = Path(path).read_text(errors="replace").split("\n")
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _report(ended: Run, spec: Spec) -> int:
    for problem in ended.problems:
        say(f"ottla: {problem}")
    say(f"ottla: the log is {spec.log}, Spark's {spec.spark_log}")
    return 1


def print_summary(ended: Run, home: Home) -> None:
    from ottla.cli.pipeline.screen import elapsed, plain_lines

    took_ms = (ended.ended_ms or ended.started_ms) - ended.started_ms
    for line in plain_lines(home.progress(), took_ms / 1000):
        say(line)
    say(f"{ended.name}: {ended.state} after {elapsed(took_ms)}")


@contextlib.contextmanager
def view() -> Iterator[Callable[[Run, Mapping[str, Any]], None]]:
    """What shows a run, about twice a second: a table that is redrawn on a terminal, plain lines elsewhere."""
    if not sys.stderr.isatty() or not _is_installed("rich"):
        yield _Lines().show
        return
    from rich.console import Console
    from rich.live import Live

    from ottla.cli.pipeline.screen import screen

    console = Console(stderr=True, highlight=False)
    with Live(console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False) as live:
        yield lambda found, progress: live.update(screen(found, progress, _now_ms()), refresh=True)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class _Lines:
    """A line when the state changes, and now and then one for each stream."""

    def __init__(self) -> None:
        self._next = 0.0
        self._state = ""
        self._said_created = False

    def show(self, found: Run, progress: Mapping[str, Any]) -> None:
        from ottla.cli.pipeline.screen import created_line, plain_lines

        if found.state != self._state:
            self._state = found.state
            say(f"{found.name}: {found.state} (log {found.log})")
        if found.created and not self._said_created:
            self._said_created = True
            say(f"{found.name}: {created_line(found)}")
        now = time.monotonic()
        if now >= self._next and progress.get("streams"):
            self._next = now + PLAIN_EVERY_S
            for line in plain_lines(progress, (_now_ms() - found.started_ms) / 1000):
                say(line)
