"""`ottla pipeline check`: the file and whose its checkpoints are, without Spark; with --plan what it would do.

Spark talks on standard output and error, in this process and those that it starts; while it does, both go to a file,
which is shown where Spark did not start. Nothing outlives the check but what it prints.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ottla.cli.args import CliError, UsageError, pairs
from ottla.cli.output import complain, counted, emit_json, say
from ottla.cli.pipeline.given import given_by, secrets_by
from ottla.cli.pipeline.run import checked, client_options, require_spark

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

    from ottla.spark.pipeline.checkpoints.checkpoint import Operator
    from ottla.spark.pipeline.load import Pipeline
    from ottla.spark.pipeline.planned import Planned

MASTER = "local[2]"


def check(args: argparse.Namespace, root: Path) -> int:
    """What is wrong, one line each; 1 if a run would fail."""
    from ottla.spark.pipeline.run.state import Home

    if args.json and not args.plan:
        raise UsageError("--json is how --plan shows it: say both")
    pipeline = checked(args.file, args.name, given_by(args, asks=False))
    home = Home(root, pipeline.name)
    last = home.run()
    checkpoints = args.checkpoint_dir or (last.checkpoints if last else "") or str(home.checkpoints)
    if args.plan:
        return _with_plan(args, pipeline, checkpoints)
    problems, has_state = _of_checkpoints(pipeline, checkpoints)
    for problem in problems:
        complain(problem)
    if problems:
        return 1
    say(f"{pipeline.path.name} is fine: {counted(len(pipeline.streams), 'stream')}")
    if has_state:
        say(f"{', '.join(has_state)}: there is state of an earlier run; --plan compares it with this code")
    return 0


def _of_checkpoints(pipeline: Pipeline, checkpoints: str) -> tuple[list[str], list[str]]:
    """What is wrong with them as far as their files tell, and the streams that keep state."""
    from ottla.spark.pipeline.checkpoints import checkpoint
    from ottla.spark.pipeline.declare import local_path

    problems: list[str] = []
    has_state: list[str] = []
    root = local_path(checkpoints)
    for stream in pipeline.streams:
        wrong = list(checkpoint.foreign(pipeline, stream, checkpoints))
        problems += [str(pipeline.problem(stream, "", what)) for what in wrong]
        found = checkpoint.read(root / stream.name) if root is not None and not wrong else None
        if found is not None and found.operators:
            has_state.append(stream.name)
    return problems, has_state


def _with_plan(args: argparse.Namespace, pipeline: Pipeline, checkpoints: str) -> int:
    from ottla.spark.pipeline.discreet import hiding
    from ottla.spark.pipeline.planned import topic_notes, with_some_secrets
    from ottla.spark.secret_settings import secret_settings

    require_spark(None)
    options, bootstrap = client_options(args)
    conf = dict(pairs(args.conf, "--conf"))
    pipeline, notes = with_some_secrets(pipeline, secrets_by(args))
    notes += topic_notes(pipeline, bootstrap, options)
    hide = hiding(
        [*pipeline.secrets.values(), *(text for one in secret_settings(conf).values() for text in one)]
    )
    streams = _planned(args, pipeline, bootstrap, checkpoints, options, conf, hide)
    problems = [hide(problem) for one in streams for problem in one.problems]
    if args.json:
        documents = [one.document() for one in streams]
        emit_json(_hidden({"pipeline": pipeline.name, "streams": documents, "notes": notes}, hide))
    else:
        print(hide("\n".join(line for one in streams for line in _shown(one))))
        for note in notes:
            say(f"note: {hide(note)}")
    for problem in problems:
        complain(problem)
    return 1 if problems else 0


def _hidden(document: Any, hide: Any) -> Any:
    if isinstance(document, str):
        return hide(document)
    if isinstance(document, dict):
        return {key: _hidden(value, hide) for key, value in document.items()}
    if isinstance(document, list | tuple):
        return [_hidden(value, hide) for value in document]
    return document


def _planned(
    args: argparse.Namespace,
    pipeline: Pipeline,
    bootstrap: str,
    checkpoints: str,
    options: dict[str, str],
    conf: dict[str, str],
    hide: Callable[[str], str],
) -> list[Planned]:
    from ottla.spark.pipeline.planned import look_at
    from ottla.spark.session import SHORT_LIVED, SparkFailed, session

    with tempfile.TemporaryDirectory(prefix="ottla-check-", ignore_cleanup_errors=True) as directory:
        noise = Path(directory) / "spark.log"
        settings = {
            "spark.ui.enabled": "false",
            "spark.driver.extraJavaOptions": SHORT_LIVED,
            "spark.sql.shuffle.partitions": "1",  # of the micro-batch of nothing; a checkpoint keeps its own
            "spark.sql.warehouse.dir": str(Path(directory) / "warehouse"),
            "spark.local.dir": str(Path(directory) / "local"),
            **conf,
        }
        try:
            with _aside(noise):
                spark = session(f"ottla check {pipeline.name}", MASTER, None, settings, log_file=noise)
                try:
                    return look_at(pipeline, spark, bootstrap, checkpoints, options, args.state_dir)
                finally:
                    spark.stop()
        except SparkFailed as error:
            said = noise.read_text(errors="replace").strip().splitlines()
            raise CliError(f"{error}: {hide(said[-1]) if said else 'it said nothing'}") from None


@contextlib.contextmanager
def _aside(path: Path) -> Iterator[None]:
    """Standard output and error of this process, and of those that it starts meanwhile, go to a file."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = os.dup(1), os.dup(2)
    with open(path, "ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, fd in enumerate(kept, 1):
            os.dup2(fd, number)
            os.close(fd)


def _shown(one: Planned) -> Iterator[str]:
    yield one.stream
    for entry in one.inputs:
        yield f"  reads {entry.name}: {entry.what}"
        yield from _columns(entry.columns)
    if one.output is not None:
        yield f"  writes {one.output.what}: {one.output.how}"
        yield from _columns(one.output.columns)
    if one.output is not None and not one.state:
        yield "  keeps no state"
    for operator in one.state:
        yield f"  keeps state: {operator}"
        yield from _stores(operator)
    if one.checkpoint:
        yield f"  checkpoint {one.checkpoint}"
    for note in one.notes:
        yield f"  note: {note}"


def _columns(columns: tuple[tuple[str, str], ...]) -> Iterator[str]:
    width = max((len(name) for name, _ in columns), default=0)
    for name, kind in columns:
        yield f"    {name:<{width}}  {kind}"


def _stores(operator: Operator) -> Iterator[str]:
    from ottla.spark.pipeline.checkpoints.checkpoint import columns_text

    for store in operator.stores:
        for family in store.families:
            place = " ".join(
                part for part in (store.name if store.name != "default" else "", family.name) if part
            )
            shown = f"{place}: " if place else ""
            yield f"    {shown}key {columns_text(family.key)}, value {columns_text(family.value)}"
