"""`ottla pipeline logs | attach | restart | replay | reset | savepoint`: what is done with a pipeline later on.

All work on what a run has left in the state directory. `restart` asks for what the last run was asked for, in the file
as it is now. Secrets are kept nowhere: a token for a Spark Connect server and secret settings of Spark are given again
to `restart` and `replay`; a run that was given a client's password on the command line has to be asked for again.
`reset` gives a pipeline's checkpoints up: they are set aside and never deleted, and only after the life that they
belong to can write nothing any more.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import time
from contextlib import closing, suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ottla.cli.args import CliError, UsageError, pairs, unknown
from ottla.cli.client import explained
from ottla.cli.output import counted, say
from ottla.cli.pipeline import run as runs
from ottla.cli.pipeline.given import given_by
from ottla.cli.selection import parse_moment_ms

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Mapping

    from ottla.spark.pipeline.given import Given
    from ottla.spark.pipeline.load import Pipeline
    from ottla.spark.pipeline.replay import Replay
    from ottla.spark.pipeline.run.spec import Spec
    from ottla.spark.pipeline.run.state import Home, Run

POLL_S = 0.2
MAX_TAIL_BYTES = 1 << 20
_OR_DEFAULTS = " (or put it into Spark's spark-defaults.conf, and use `ottla pipeline run`)"


def logs(args: argparse.Namespace, home: Home) -> int:
    """The log of the last run; with -f as it grows, until the run ends."""
    found = _last_run(home)
    path = Path(found.spark_log if args.spark else found.log)
    try:
        file = path.open("rb")
    except OSError as error:
        raise CliError(f"{path}: {error.strerror}") from None
    with file:
        _print_tail(file, args.lines)
        while args.follow:
            is_over = not home.is_running()  # asked first: what it said before its end is there then
            if os.fstat(file.fileno()).st_size < file.tell():
                file.seek(0)  # somebody has cut it, to go on from the beginning
            _print_rest(file)
            if is_over:
                break
            time.sleep(POLL_S)  # another process writes the file
    return 0


def _print_tail(file: Any, lines: int | None) -> None:
    if lines is not None:
        file.seek(max(os.fstat(file.fileno()).st_size - MAX_TAIL_BYTES, 0))
        kept = file.read().splitlines(keepends=True)
        _write(b"".join(kept[len(kept) - min(lines, len(kept)) :]))
    else:
        _print_rest(file)


def _print_rest(file: Any) -> None:
    while chunk := file.read(MAX_TAIL_BYTES):
        _write(chunk)


def _write(data: bytes) -> None:
    import sys

    sys.stdout.write(data.decode(errors="replace"))
    sys.stdout.flush()


def attach(home: Home) -> int:
    """Watch a run that somebody else has started; Ctrl-C leaves it alone."""
    if not home.is_running():
        raise CliError(f"{home.name} does not run: {_last_run(home).state}")
    try:
        with runs.view() as show:
            while home.is_running():
                found = home.run()
                if found is not None:
                    show(found, home.progress())
                time.sleep(runs.REDRAW_S)  # between two frames
    except KeyboardInterrupt:
        say(f"\n{home.name} goes on; `ottla pipeline stop {home.name}` stops it")
        return 0
    ended = _last_run(home)
    runs.print_summary(ended, home)
    for problem in ended.problems:
        say(f"ottla: {problem}")
    return 0 if ended.state in ("stopped", "finished") else 1


def restart(args: argparse.Namespace, home: Home, stop: Callable[[], object]) -> int:
    """Stop it, if it runs, and start it again in the background, as it was last asked for."""
    spec = _complete(_kept_spec(home), args, home)
    # What is wrong with the file by now is found out before anything is stopped.
    pipeline = runs.checked(spec.file, spec.name, _given(args, spec))
    runs.check_topics(pipeline, spec.bootstrap, dict(spec.options), create_all=spec.create_topics)
    if spec.remote is None:
        _check_checkpoints(pipeline, spec.checkpoint_dir or str(home.checkpoints))
    if home.is_running():
        stop()
    log, spark_log = runs.log_files(home)
    fresh = replace(
        spec, watched=False, log=log, spark_log=spark_log, params=pipeline.texts, secrets=pipeline.secrets
    )
    return runs.detached(fresh, home)


def _check_checkpoints(pipeline: Pipeline, checkpoints: str) -> None:
    from ottla.spark.pipeline.checkpoints.checkpoint import refuse_others
    from ottla.spark.pipeline.declare import PipelineError

    try:
        refuse_others(pipeline, checkpoints)
    except PipelineError as error:
        raise runs.refused(error) from None


def _given(args: argparse.Namespace, last: Spec) -> Callable[[], Given]:
    """What is given now; of parameters that are not, what the last run had."""
    from ottla.spark.pipeline.given import Source

    now = given_by(args)

    def find() -> Given:
        found = now()
        kept = Source("the last run", last.params, is_own=False)
        return replace(found, sources=(*found.sources, kept))

    return find


def _kept_spec(home: Home) -> Spec:
    from ottla.spark.pipeline.run.spec import Spec

    kept = home.spec()
    if kept is None:
        raise CliError(f"{home.name}: it is not known how it was started; use `ottla pipeline run`")
    if kept.get("not_kept"):
        names = ", ".join(name.removeprefix("kafka.") for name in kept["not_kept"])
        raise CliError(
            f"{home.name} was given {names} on the command line, which is kept nowhere: say it again (`run`, "
            "`reset`), or put it into a file for --command-config"
        )
    try:
        return Spec.of(kept)
    except TypeError:
        raise CliError(
            f"{home.path / 'spec.json'} is not what a run has written; use `ottla pipeline run`"
        ) from None


def _complete(spec: Spec, args: argparse.Namespace, home: Home) -> Spec:
    """How the last run was asked for, with what is given now: at least what was secret then, and so was not kept."""
    from ottla.spark.cluster.connect import secrets_of

    remote = runs.spark_address(args.remote)
    if remote is not None and spec.remote is None:
        raise UsageError(
            f"{home.name} was started on {spec.spark}, without --remote: use `ottla pipeline run`"
        )
    conf = {**spec.conf, **dict(pairs(args.conf, "--conf"))}
    kept = home.spec() or {}
    lacks = []
    if remote is None:
        remote = runs.spark_address(spec.remote)
        names = [name for name in kept.get("remote_not_kept") or () if name not in secrets_of(remote or "")]
        lacks += [_address_again(spec.spark, names)] if names else []
    names = [name for name in kept.get("conf_not_kept") or () if name not in conf]
    lacks += [" ".join(f"--conf {name}=…" for name in names) + _OR_DEFAULTS] if names else []
    if lacks:
        raise CliError(
            f"{home.name} was given what is secret, which is kept nowhere; give it again: {', '.join(lacks)}"
        )
    return replace(spec, remote=remote, conf=conf)


def _address_again(address: str, names: list[str]) -> str:
    from ottla.spark.cluster.connect import TOKEN_VARIABLE

    server, *parameters = address.split(";")
    whole = ";".join([server.rstrip("/") + "/", *parameters, *(f"{name}=…" for name in names)])
    otherwise = f" (or set {TOKEN_VARIABLE})" if names == ["token"] else ""
    return f"--remote '{whole}'{otherwise}"


def replay(args: argparse.Namespace, home: Home, root: Path) -> int:
    """Streams once more, from a time on, into outputs of their own."""
    from ottla.spark.pipeline.declare import PipelineError
    from ottla.spark.pipeline.load import check
    from ottla.spark.pipeline.replay import SUFFIX, Replay, replayed

    last = _kept_spec(home)
    if last.replay is not None:
        raise CliError(f"{home.name} is a replay itself: name the pipeline")
    last = _complete(last, args, home)
    from_ms, to_ms = parse_moment_ms(args.since), None if args.to is None else parse_moment_ms(args.to)
    if to_ms is not None and to_ms <= from_ms:
        raise UsageError("--to is not after --from")
    pipeline = runs.checked(last.file, last.name + SUFFIX, _given(args, last))
    wanted = Replay(from_ms, to_ms, args.stream, args.into)
    try:
        streams = replayed(pipeline, wanted).streams
        wanted = replace(wanted, partitions=_partitions(last, pipeline, [one.name for one in streams]))
        made = replayed(pipeline, wanted)
        if problems := check(made):
            raise PipelineError(problems)
    except PipelineError as error:
        raise runs.refused(error) from None
    there = runs.home_of(root, made.name)
    kept = there.spec()
    place, is_begun = _replays_checkpoints(last, there, wanted)
    if kept is not None and kept.get("replay") != asdict(wanted) and is_begun:
        raise CliError(
            f"another replay of {home.name} has been here: `ottla pipeline reset {there.name}` sets it aside (what it "
            "has written stays)"
        )
    runs.check_topics(made, last.bootstrap, dict(last.options), create_all=False)
    log, spark_log = runs.log_files(there)
    for stream in made.streams:
        say(f"{there.name}: {stream.name} goes into {stream.out}")
    spec = replace(
        last, name=made.name, log=log, spark_log=spark_log, available_now=True, create_topics=False,
        watched=not args.detach, checkpoint_dir=place, replay=wanted,
        params=pipeline.texts,
        secrets=pipeline.secrets,
    )  # fmt: skip
    return runs.detached(spec, there) if args.detach else runs.watched(spec, there)


def _replays_checkpoints(last: Spec, there: Home, wanted: Replay) -> tuple[str | None, bool]:
    """Where a replay keeps its checkpoints, and whether another may have begun there. Where that cannot be looked at
    from here each replay has a place of its own: on another's checkpoints it would leave out what that has read."""
    from ottla.spark.pipeline.declare import local_path
    from ottla.spark.pipeline.replay import SUFFIX

    place = None if last.checkpoint_dir is None else last.checkpoint_dir.rstrip("/") + SUFFIX
    local = local_path(place or str(there.checkpoints))
    if last.remote is None and local is not None:
        return place, local.is_dir() and any(local.iterdir())  # what was reset has left it empty
    digest = hashlib.sha256(json.dumps(asdict(wanted), sort_keys=True).encode()).hexdigest()[:8]
    return f"{place or there.checkpoints}-{digest}", False


def _partitions(last: Spec, pipeline: Pipeline, names: list[str]) -> int | None:
    """The most that any of the topics has that are written to now."""
    from ottla.model.errors import KafkaError
    from ottla.spark.pipeline.declare import Topic
    from ottla.spark.pipeline.topics import admin

    topics = [one.out.name for one in pipeline.streams if one.name in names and isinstance(one.out, Topic)]
    if not topics:
        return None
    with explained(), admin(last.bootstrap, last.options) as client:
        found = client.describe_topics(topics)
    return max(
        (len(one.partitions) for one in found.values() if not isinstance(one, KafkaError)), default=None
    )


def reset(args: argparse.Namespace, home: Home) -> int:
    """Set the checkpoints of a pipeline, or of one of its streams, aside: the next run begins anew."""
    from ottla.spark.pipeline.run.state import AlreadyRunning

    try:
        with home.locked():
            return _reset(args, home)
    except AlreadyRunning as error:
        raise CliError(f"{error}; `ottla pipeline stop {home.name}` stops it") from None


def savepoint(args: argparse.Namespace, home: Home) -> int:
    """Copy the checkpoints of a pipeline that does not run, with their state: a run can start from the copy."""
    from ottla.spark.pipeline.checkpoints.savepoint import SavepointError, save
    from ottla.spark.pipeline.run.state import AlreadyRunning

    replay = (home.spec() or {}).get("replay")
    if isinstance(replay, dict) and replay.get("to_ms") is not None:
        raise CliError(
            f"{home.name} has left out what is newer than its --to, and a run from its checkpoints would never have "
            "it: replay without --to"
        )
    now = datetime.now(UTC)
    to = Path(args.to).absolute() if args.to else home.savepoints / now.strftime("%Y%m%dT%H%M%S.%f")[:-3]
    try:
        with home.locked():
            root = _local_checkpoints(home, "copy them there while it is stopped")
            made = save(home.name, root, to, int(now.timestamp() * 1000))
    except AlreadyRunning as error:
        raise CliError(
            f"{error}, and a copy of a running one would not fit together; `ottla pipeline stop {home.name}` stops it"
        ) from None
    except SavepointError as error:
        raise CliError(str(error)) from None
    for query in made.queries:
        upto = "nothing finished yet" if query.committed is None else f"micro-batch {query.committed}"
        begun = "" if query.is_complete else f"; {query.batch} was begun, and will be run again"
        say(f"{query.name}: {upto}{begun}")
    say(
        f"{home.name}: copied to {made.path}; `ottla pipeline run FILE --from-savepoint {made.path}` starts from it"
    )
    return 0


def _local_checkpoints(home: Home, otherwise: str) -> Path:
    from ottla.spark.pipeline.declare import local_path

    found = _last_run(home)
    root = local_path(found.checkpoints)
    if root is None:
        raise CliError(
            f"the checkpoints of {home.name} are in {found.checkpoints}, which is not of this machine: {otherwise}"
        )
    return root


def _reset(args: argparse.Namespace, home: Home) -> int:
    root = _local_checkpoints(home, "move them there, or give the next run another --checkpoint-dir")
    chosen = _chosen(root, home, args.stream)
    ids = {checkpoint.name: query_id for checkpoint in chosen for query_id in _query_ids(checkpoint)}
    if ids:
        _fence(args, home, list(ids.values()))
        _fence_tables(args, home, ids)
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%f")
    # Checkpoints that are on another disk are set aside there: a directory is moved as a whole, or not at all.
    aside = _moved(chosen, home.set_aside / stamp) or _moved(
        chosen, root.with_name(f"{root.name}.set-aside") / stamp
    )
    if aside is None:
        raise CliError(
            f"{root} is a disk of its own: move {', '.join(one.name for one in chosen)} in it elsewhere by hand, "
            "nothing is lost"
        )
    streams = [one.name for one in chosen]
    say(f"{home.name}: {', '.join(streams)} set aside in {aside}")
    say(
        f"the next run of {home.name} begins where its topics' start= says, and writes its rows again: see replay in "
        "docs/pipelines-operations.md"
    )
    return 0


def _moved(checkpoints: list[Path], to: Path) -> Path | None:
    """Where they are now; None, with nothing moved, where that is another disk."""
    for checkpoint in checkpoints:
        try:
            to.mkdir(parents=True, exist_ok=True)
            checkpoint.rename(to / checkpoint.name)
        except OSError as error:
            if error.errno == errno.EXDEV:
                with suppress(OSError):
                    to.rmdir()
                return None
            raise CliError(
                f"{checkpoint} could not be moved to {to}: {error.strerror}; move it by hand, nothing is lost"
            ) from None
    return to


def _chosen(root: Path, home: Home, stream: str | None) -> list[Path]:
    from ottla.spark.pipeline.checkpoints.checkpoint import checkpoints_of
    from ottla.spark.pipeline.frames import DEAD_LETTER_SUFFIX
    from ottla.spark.progress import CheckpointError

    try:
        there = checkpoints_of(home.name, root)
    except (CheckpointError, OSError) as error:
        raise CliError(f"{root} cannot be read: {error}") from None
    if not there:
        raise CliError(f"{home.name} has no checkpoints in {root}: there is nothing to reset")
    if stream is None:
        return there
    chosen = [path for path in there if path.name in (stream, stream + DEAD_LETTER_SUFFIX)]
    if not chosen:
        names = [path.name for path in there if not path.name.endswith(DEAD_LETTER_SUFFIX)]
        raise unknown("stream", stream, names, f"ottla pipeline status {home.name}")
    return chosen


def _query_ids(checkpoint: Path) -> Iterator[str]:
    """Spark's id of the query, of which transactional ids are made; none before its first start."""
    try:
        yield str(json.loads((checkpoint / "metadata").read_text())["id"])
    except FileNotFoundError:
        return
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise CliError(
            f"{checkpoint / 'metadata'} cannot be read ({error}): is that a checkpoint of Spark's?"
        ) from None


def _fence(args: argparse.Namespace, home: Home, ids: list[str]) -> None:
    """Before anything is moved: a driver that runs on somewhere, as after a lost machine, writes nothing any more."""
    from ottla.spark.connection import connect, kafka_options
    from ottla.spark.sink.cluster import fence_query

    options, bootstrap = _connection(args, home)
    with explained():
        client = connect(kafka_options({"kafka.bootstrap.servers": bootstrap, **options}))
        with closing(client):
            aborted = sum(fence_query(client, query_id) for query_id in ids)
    if aborted:
        say(f"{home.name}: {counted(aborted, 'transaction')} that nobody will commit aborted")


def _fence_tables(args: argparse.Namespace, home: Home, ids: Mapping[str, str]) -> None:
    """The same for the tables that the streams go into, as the file names them now."""
    from ottla.spark.pipeline.declare import Delta, Iceberg, PipelineError
    from ottla.spark.pipeline.lake.common import hidden
    from ottla.spark.pipeline.running import give_up

    kept = home.spec()
    if kept is None:
        return  # started by an earlier version, or by hand
    try:
        pipeline = _as_it_ran(args, home, kept)
    except PipelineError as error:
        say(
            f"{home.name}: which tables it writes into is not known ({str(error).splitlines()[0]}): see that no driver "
            "of it is left"
        )
        return
    for stream in pipeline.streams:
        if stream.name in ids and isinstance(stream.out, Delta | Iceberg):
            try:
                give_up(stream.out, ids[stream.name], pipeline.secrets)
            except Exception as error:  # noqa: BLE001 - catalogs and stores raise what they like
                raise CliError(
                    f"the {stream.out} could not be told that {stream.name} is given up, so nothing was set aside: "
                    f"{hidden(error, pipeline.secrets)}"
                ) from None


def _as_it_ran(args: argparse.Namespace, home: Home, kept: dict[str, Any]) -> Pipeline:
    from ottla.spark.pipeline.load import load
    from ottla.spark.pipeline.replay import replayed
    from ottla.spark.pipeline.run.spec import Spec

    spec = Spec.of(kept)
    pipeline = replace(load(spec.file, _given(args, spec)()), name=home.name)
    return pipeline if spec.replay is None else replayed(pipeline, spec.replay)


def _connection(args: argparse.Namespace, home: Home) -> tuple[dict[str, str], str]:
    """As it is given now, else as the last run had it."""
    given, bootstrap = runs.client_options(args)
    if given or args.bootstrap_server:
        return given, bootstrap
    spec = _kept_spec(home)
    return dict(spec.options), spec.bootstrap


def _last_run(home: Home) -> Run:
    found = home.run()
    assert found is not None, "it is listed by its run"
    return found
