"""The process that runs a pipeline: `python -m ottla.spark.pipeline.run.runner NAME`, started by `ottla pipeline run`.

What to run is the first line of its standard input: settings may be secret, and arguments are seen by everybody.
It is a process of its own, in a session of its own, whether somebody watches or not: so Ctrl-C in a terminal
reaches the one who watches, who asks this one to stop, instead of killing Spark's workers in the middle of a
batch. Its standard output and error are the Spark log. SIGTERM, SIGINT, or the end of standard input (the watcher
is gone) stop the queries cleanly. Everything else is reported through the pipeline's directory (state).

Streams live apart: one that fails for good leaves the others running (supervised says when that is). Where the disk
with this run's own files is full, the streams go on without them.

A Spark Connect server that does not answer any more, or has forgotten the session, is waited for by the same rule; then
there is a new session, and all streams that have not failed for good start there from their checkpoints. One that does
not answer at the start is told at once.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from ottla.spark.cluster.connect import (
    EXECUTORS_PYTHON,
    close_session,
    furnish,
    without_token,
)
from ottla.spark.cluster.connect_server import ServerAway, abandon, gone, hurry, named, open_session, reach
from ottla.spark.cluster.environment import PackageError
from ottla.spark.cluster.package import Package, needs_package
from ottla.spark.cluster.preflight import ExecutorsDiffer, look_around
from ottla.spark.cluster.shelf import take
from ottla.spark.pipeline.checkpoints import savepoint
from ottla.spark.pipeline.checkpoints.checkpoint import claim, refuse_others
from ottla.spark.pipeline.contents import relative_paths, request_for
from ottla.spark.pipeline.declare import Parquet, PipelineError
from ottla.spark.pipeline.discreet import hiding
from ottla.spark.pipeline.given import shown
from ottla.spark.pipeline.lineage import OpenLineage
from ottla.spark.pipeline.load import Pipeline, load
from ottla.spark.pipeline.replay import replayed
from ottla.spark.pipeline.run import state
from ottla.spark.pipeline.run.full_disk import MAKE_ROOM, Place, full_disk, places
from ottla.spark.pipeline.run.lags import Lags, LagWatch
from ottla.spark.pipeline.run.metrics import PATH as METRICS_PATH
from ottla.spark.pipeline.run.metrics import MetricsServer, page, parse_address
from ottla.spark.pipeline.run.spec import Spec, quieted, read_spec, secret_texts
from ottla.spark.pipeline.run.supervised import Patience, Supervised, sentence
from ottla.spark.pipeline.running import Figures, Plan, first_line, plan, start
from ottla.spark.pipeline.topics import create_topics
from ottla.spark.session import SparkFailed, is_local, session, submitted_session

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


log = logging.getLogger(__name__)

TICK_S = 0.5
LOG_EVERY_S = 10.0
LAST_LAG_TIMEOUT_S = 2.0
STOP_TIMEOUT_S = 30.0
# Progress is read every half second: as many micro-batches as there can be until then are kept.
RECENT = "50"
# In the state directory, beside the pipelines' own.
PACKAGES = "packages"


@dataclass(frozen=True)
class Away:
    """A Spark Connect server that is waited for."""

    reason: str
    until: float  # then it is looked for again


class RunLog:
    """The log for people: one line for what happened, with its time."""

    def __init__(self, file: TextIO, hide: Callable[[str], str] = str) -> None:
        self._file = file
        self._hide = hide

    def say(self, text: str) -> None:
        stamp = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
        # What a full disk does not take waits in the file's buffer, or is lost: the streams matter more.
        with suppress(OSError):
            for line in self._hide(text).splitlines() or [""]:
                print(f"{stamp}Z {line}", file=self._file, flush=True)


class Runner:
    """One run, from the lock to the last word."""

    def __init__(self, spec: Spec, log: RunLog) -> None:
        self._spec = spec
        self._log = log
        self._home = state.Home(Path(spec.state_dir), spec.name)
        self._stop = threading.Event()
        checkpoints = spec.checkpoint_dir or str(self._home.checkpoints)
        if spec.remote is None and ":" not in checkpoints:
            checkpoints = os.path.abspath(checkpoints)
        self._run = state.Run(
            name=spec.name,
            file=spec.file,
            bootstrap=spec.bootstrap,
            spark=spec.spark,
            pid=os.getpid(),
            started_ms=_now_ms(),
            log=spec.log,
            spark_log=spec.spark_log,
            checkpoints=checkpoints,
        )
        self._hide = hiding(secret_texts(spec))
        give_up_after_s = inf if spec.give_up_after_s is None else spec.give_up_after_s
        self._give_up_after_s = give_up_after_s
        self._spark: SparkSession | None = None
        self._away: Away | None = None
        self._patience = Patience(give_up_after_s)  # with the server
        self._plans: dict[str, Plan] = {}  # by their queries' names, in the session that there is now
        self._queries: list[Supervised] = []
        self._streams: list[dict[str, Any]] = []  # as they were last published
        self._problems: list[str] = []
        self._unwritten = ""  # why this run's own files were not written the last time
        self._lineage = OpenLineage.from_environment(os.environ, log.say)
        self._nothing_begun = (
            False  # Spark is starting: whoever does not want it any more need not wait for it
        )

    def run(self) -> int:
        """Until it ends, is stopped or fails; the exit code."""
        with self._home.locked(), self._metrics():
            self._run = replace(self._run, session=self._left_behind())
            self._write_state(state.STARTING)
            self._home.write_progress({})
            self._home.write_spec(self._spec.to_keep())
            signal.signal(signal.SIGTERM, self._asked)
            signal.signal(signal.SIGINT, self._asked)
            if self._spec.watched:
                threading.Thread(target=self._until_unwatched, daemon=True).start()
            try:
                problems = self._with_spark()
            except PipelineError as error:
                problems = [str(problem) for problem in error.problems]
            except ExecutorsDiffer as error:
                problems = error.problems
            except (PackageError, savepoint.SavepointError, ServerAway) as error:
                problems = [str(error)]
            except SparkFailed as error:
                problems = [f"Spark did not start: {_spark_said(self._spec.spark_log) or error}"]
            except Exception as error:  # noqa: BLE001 - whatever ends a run is reported to whoever watches it
                self._log_stack()
                problems = [f"{type(error).__name__}: {first_line(error)}"]
            problems = [self._hide(problem) for problem in problems]
            ended = state.FAILED if problems else state.STOPPED if self._stop.is_set() else state.FINISHED
            for problem in problems:
                self._log.say(f"failed: {problem}")
            if not problems:
                self._run = replace(self._run, session="")  # it has ended, with Spark
            with self._without_files():
                self._write_state(ended, problems=tuple(problems), ended_ms=_now_ms())
            return 1 if problems else 0

    @contextmanager
    def _metrics(self) -> Iterator[None]:
        """The figures on a port. One that is not to be had is told, and is no reason not to run."""
        if self._spec.metrics is None:
            yield
            return
        try:
            server = MetricsServer(*parse_address(self._spec.metrics), self._metrics_page)
        except OSError as error:
            self._log.say(f"no metrics at {self._spec.metrics}: {error.strerror or error}")
            yield
            return
        self._run = replace(self._run, metrics=server.address)
        self._log.say(f"metrics at http://{server.address}{METRICS_PATH}")
        try:
            yield
        finally:
            server.close()

    def _metrics_page(self) -> str:
        return page(self._spec.name, self._streams)

    def _with_spark(self) -> list[str]:
        pipeline = self._loaded()
        self._nothing_begun = True
        self._log.say(f"starting Spark ({self._run.spark})")
        try:
            self._open(pipeline)
            plans = self._plan(pipeline)
            self._nothing_begun = False
            if self._stop.is_set():
                return []
            self._create_topics(pipeline)
            disks = self._disks(pipeline)
            try:
                started = start(plans)
            except Exception as error:
                full = full_disk(str(error), disks)
                if full is None:
                    raise
                return [f"{full}: {MAKE_ROOM}"]
            if self._spec.remote is None and (not_noted := claim(pipeline, self._run.checkpoints)):
                self._log.say(not_noted)
            self._queries = [
                self._supervised(pipeline, one, query, disks)
                for one, query in zip(plans, started, strict=True)
            ]
            if self._lineage is not None:
                self._lineage.started(pipeline, self._spec.bootstrap)
            with self._without_files():
                self._write_state(state.RUNNING)
            for one, query in zip(self._queries, started, strict=True):
                self._log.say(f"{one.figures.name}: query {query.id}")
            try:
                return self._watch(pipeline)
            finally:
                self._tell_end(pipeline)
        except Exception as error:
            away = self._gone(error)
            if away is None:
                raise
            self._abandon()
            raise away from error
        finally:
            if self._spark is not None:
                _stop_spark(self._spark)

    def _loaded(self) -> Pipeline:
        """The pipeline, with what this run was given for it, and checkpoints that are its own."""
        spec = self._spec
        pipeline = replace(load(spec.file, spec.given()), name=spec.name)
        if spec.replay is not None:
            pipeline = replayed(pipeline, spec.replay)
        self._run = replace(self._run, params=shown(pipeline.values))
        if spec.from_savepoint is not None:
            found = savepoint.read(Path(spec.from_savepoint))
            for word in savepoint.restore(found, pipeline, self._run.checkpoints):
                self._log.say(word)
        if spec.remote is None:  # else they are the server's
            refuse_others(pipeline, self._run.checkpoints)
        return pipeline

    def _open(self, pipeline: Pipeline) -> None:
        """Spark, with executors that can run what they get."""
        self._plans = {}
        self._spark, packed = self._session(pipeline)
        if self._spec.remote is not None:
            self._take_over(self._spark)
        for warning in self._seen_to(self._spark, pipeline, packed):
            self._log.say(warning)

    def _plan(self, pipeline: Pipeline) -> list[Plan]:
        """In the session that there is now."""
        spec = self._spec
        assert self._spark is not None
        plans = plan(
            pipeline,
            self._spark,
            spec.bootstrap,
            self._run.checkpoints,
            available_now=spec.available_now,
            options=spec.options,
            replay=spec.replay,
        )
        self._plans.update({one.name: one for one in plans})
        return plans

    def _create_topics(self, pipeline: Pipeline) -> None:
        spec = self._spec
        created = create_topics(pipeline, spec.bootstrap, spec.options, create_all=spec.create_topics)
        if created:
            self._log.say(f"created topics: {', '.join(created)}")
            self._run = replace(self._run, created=tuple(created))

    def _supervised(
        self, pipeline: Pipeline, one: Plan, query: StreamingQuery, disks: Sequence[Place]
    ) -> Supervised:
        return Supervised(
            query,
            Figures(self._short(one.name)),
            lambda: self._start_again(pipeline, one),
            self._give_up_after_s,
            self._hide,
            disks,
            lambda error: self._gone(error) is not None,
        )

    def _start_again(self, pipeline: Pipeline, one: Plan) -> StreamingQuery:
        """In a new session its stream is planned anew, by itself: what is wrong with that is no other stream's."""
        if one.name in self._plans:
            return self._plans[one.name].start()
        self._plan(replace(pipeline, streams=(one.stream,)))
        return self._plans[one.name].start_in_turn()

    def _disks(self, pipeline: Pipeline) -> list[Place]:
        """Where it writes on this machine; a Spark Connect server writes elsewhere."""
        if self._spec.remote is not None:
            return []
        outputs = [stream.out.path for stream in pipeline.streams if isinstance(stream.out, Parquet)]
        return places(self._run.checkpoints, self._home.path, self._spec.conf, os.environ, outputs)

    @contextmanager
    def _without_files(self) -> Iterator[None]:
        """What is written within is for whoever looks on; a disk that does not take it is no reason to end streams."""
        try:
            yield
        except OSError as error:
            if not self._unwritten:
                self._unwritten = f"{self._home.path}: {error.strerror or error}"
                self._log.say(f"the figures and the state of this run cannot be written to {self._unwritten}")
        else:
            if self._unwritten:
                self._log.say(f"the figures and the state of this run are written again ({self._unwritten})")
                self._unwritten = ""

    def _tell_end(self, pipeline: Pipeline) -> None:
        if self._lineage is not None:
            problems = {
                one.figures.name: one.figures.problem
                for one in self._queries
                if one.figures.state == "failed"
            }
            self._lineage.ended(pipeline, self._spec.bootstrap, problems, finished=not self._stop.is_set())
            self._lineage.close()

    def _session(self, pipeline: Pipeline) -> tuple[SparkSession, bool]:
        """Spark, and whether the executors' Python came with the job."""
        spec = self._spec
        conf = {"spark.sql.streaming.numRecentProgressUpdates": RECENT, **spec.conf}
        if spec.submitted:
            return submitted_session(f"ottla {spec.name}", conf), True
        if spec.remote is None:
            conf.setdefault("spark.ui.enabled", "false")
        else:
            reach(spec.remote)
            self._spark = open_session(spec.remote)  # which gets its settings below
        environment = self._packed(pipeline)
        if environment is None:
            return session(
                f"ottla {spec.name}",
                spec.master,
                spec.remote,
                conf,
                log_file=spec.spark_log,
                learn_classes=True,
            ), False
        conf["spark.archives"] = environment.archives
        with environment.as_working_directory():
            return session(f"ottla {spec.name}", spec.master, None, conf, log_file=spec.spark_log), True

    def _left_behind(self) -> str:
        """The session on the same Spark Connect server that the runs before have not ended."""
        before = self._home.run()
        # Tokens change, and are not kept: the server is the same one.
        if self._spec.remote is None or before is None or without_token(before.spark) != self._spec.spark:
            return ""
        return before.session

    def _take_over(self, spark: SparkSession) -> None:
        """Note this session, for the next run; end the one of a run that died: its queries go on without it."""
        session: Any = spark  # of Spark Connect
        left, remote = self._run.session, self._spec.remote
        assert remote is not None
        whose = "this run" if self._queries else "the run before"
        if left and left != session.session_id:  # one that the user has named is used again
            try:
                close_session(remote, left)
            except Exception as error:  # noqa: BLE001 - queries that are started anew are stopped there by Spark
                self._log.say(f"the session that {whose} left behind is not closed: {first_line(error)}")
            else:
                self._log.say(f"closed the session that {whose} left behind")
        self._run = replace(self._run, session=session.session_id)
        with self._without_files():
            self._home.write_run(self._run)

    def _seen_to(self, spark: SparkSession, pipeline: Pipeline, packed: bool) -> list[str]:
        """Executors that are elsewhere can run what they get; warnings, or ExecutorsDiffer."""
        spec = self._spec
        if spec.remote is not None:
            its_own = EXECUTORS_PYTHON in spec.conf
            return furnish(spark, None if its_own else lambda: self._package(pipeline))
        if spec.submitted or not is_local(spec.master or "local"):
            return look_around(spark, packed)
        return []

    def _packed(self, pipeline: Pipeline) -> Package | None:
        """The environment for executors elsewhere, unless the user has seen to it."""
        spec = self._spec
        if spec.remote is not None or not needs_package(spec.master, spec.conf, os.environ):
            return None
        relative = relative_paths(pipeline)
        if relative:
            raise PackageError(
                f"{relative[0]} is relative to a machine: for a cluster say it whole, as a path or URL "
                "that all executors reach"
            )
        return self._package(pipeline)

    def _package(self, pipeline: Pipeline) -> Package:
        self._log.say("packing the Python environment for the executors (once for each version)")
        made = take(request_for(pipeline), self._home.path.parent / PACKAGES)
        self._log.say(f"the executors get {made.path}")
        return made

    def _watch(self, pipeline: Pipeline) -> list[str]:
        """Until it is to stop or no stream is left. A stream that failed for good leaves the others running."""
        lags = LagWatch(Lags(self._spec.bootstrap, self._spec.options))
        next_log = 0.0
        try:
            while True:
                now = time.monotonic()
                if self._is_there(pipeline, now):
                    self._look(now)
                self._publish(lags)
                if now >= next_log:
                    self._log_figures()
                    next_log = now + LOG_EVERY_S
                if self._stop.is_set() or all(one.is_done for one in self._queries):
                    break
                self._stop.wait(TICK_S)
            self._end()
            if self._away is None:
                self._look(time.monotonic())
            self._publish(lags)
            lags.refresh(LAST_LAG_TIMEOUT_S)
            self._publish(lags)
            self._log_figures(final=True)
            if self._away is not None and self._stop.is_set():
                # A problem, so that the next run ends the session: it may still be there, and its queries run.
                self._problems.append(f"stopped while it was away: {self._away.reason}")
            return self._problems
        finally:
            lags.close()

    def _end(self) -> None:
        """Stop what still runs; a batch that is cut short is replayed from the checkpoint by the next run."""
        if not all(one.is_done for one in self._queries):
            with self._without_files():
                self._write_state(state.STOPPING)
        for one in self._queries:
            with self._noticing():
                one.stop()

    def _look(self, now: float) -> None:
        """New figures of all queries; what ended one of them for good, if something did, is reported at once."""
        with self._noticing():
            for one in self._queries:
                problem = one.look(now, self._log.say)
                if problem is not None and problem not in self._problems:
                    self._failed_for_good(problem)

    def _failed_for_good(self, problem: str) -> None:
        self._problems.append(problem)
        self._log.say(f"failed for good: {problem}")
        with self._without_files():
            self._write_state(self._run.state, problems=tuple(self._problems))

    def _gone(self, error: BaseException) -> ServerAway | None:
        """What became of the Spark Connect server, if that is why something has failed. A server that dies fails calls
        in many ways: so it is looked for, too."""
        remote = self._spec.remote
        if remote is None:
            return None
        away = gone(error, remote)
        if away is None:
            try:
                reach(remote)
            except ServerAway as unanswered:
                away = unanswered
        return away

    @contextmanager
    def _noticing(self) -> Iterator[None]:
        """What is asked of Spark within may find that the server is gone."""
        try:
            yield
        except Exception as error:
            away = self._gone(error)
            if away is None:
                raise
            self._lose(str(away))

    def _lose(self, reason: str) -> None:
        """The streams wait for the server, for as long as they may."""
        self._abandon()
        reason, now = self._hide(reason), time.monotonic()  # the call that failed may have taken its time
        is_over = self._stop.is_set() or all(one.is_done for one in self._queries)
        progress = sum(one.figures.batch_id for one in self._queries)
        delay = None if is_over else self._patience.delay(progress, now)
        self._away = Away(reason, inf if delay is None else now + delay)
        for one in self._queries:
            one.lost(reason)
        if delay is not None:
            self._log.say(f"{reason}; it is looked for again in {delay:g} s")
        elif is_over:
            for one in self._queries:
                one.stop()
        else:
            for one in self._queries:
                one.give_up(reason)
            self._failed_for_good(reason)

    def _is_there(self, pipeline: Pipeline, now: float) -> bool:
        """Whether Spark is. A server that was away is looked for when it is time, and given a new session."""
        if self._away is None:
            return True
        if now < self._away.until or self._stop.is_set():
            return False
        try:
            self._open(pipeline)
        except (PipelineError, ExecutorsDiffer, PackageError) as error:
            if (away := self._gone(error)) is None:
                raise  # it would be the same the next time
            self._lose(str(away))
        except Exception as error:  # noqa: BLE001 - a server that has just come up may fail in many ways
            away = self._gone(error)
            if away is None:
                self._log_stack()
                away = ServerAway(f"{named(self._run.spark)} fails: {sentence(error)}")
            self._lose(str(away))
        else:
            self._log.say("the server is there again: the streams go on from their checkpoints")
            self._away = None
            for one in self._queries:
                one.found(now)
        return self._away is None and not self._stop.is_set()

    def _abandon(self) -> None:
        if self._spark is not None:
            abandon(self._spark)
            self._spark = None

    def _publish(self, lags: LagWatch) -> None:
        for one in self._queries:
            one.figures.lag, one.figures.lag_seconds = lags.want(one.figures.name, one.figures.offsets)
        self._streams = [one.figures.document() for one in self._queries]
        with self._without_files():
            if self._unwritten:
                self._home.write_run(self._run)
            self._home.write_progress(
                {
                    "at_ms": _now_ms(),
                    "brokers_problem": lags.problem and self._hide(lags.problem),
                    "streams": self._streams,
                }
            )

    def _log_figures(self, final: bool = False) -> None:
        for one in self._queries:
            if one.figures.batch_id >= 0:
                self._log.say(figures_line(one.figures, final))

    def _log_stack(self) -> None:
        import traceback

        with suppress(OSError):
            traceback.print_exc()

    def _short(self, query: str | None) -> str:
        return (query or "").removeprefix(f"{self._spec.name}.")

    def _write_state(self, new: str, **more: Any) -> None:
        self._run = replace(self._run, state=new, **more)
        self._log.say(new)
        self._home.write_run(self._run)

    def _asked(self, *_: object) -> None:
        self._stop.set()
        if self._spark is not None and self._spec.remote is not None:
            hurry(self._spark)  # a server that is away is not waited for
        if self._nothing_begun:
            # Java, which PySpark started, ends when its standard input does: with this process.
            with self._without_files():
                self._write_state(state.STOPPED, ended_ms=_now_ms())
            os._exit(0)

    def _until_unwatched(self) -> None:
        while os.read(0, 1024):
            continue
        self._asked()


def figures_line(figures: Figures, final: bool = False) -> str:
    """One line of the log for people."""
    lag = "" if figures.lag is None else f", {figures.lag:,} records ({figures.lag_seconds:g} s) behind"
    bad = f", {figures.bad:,} did not parse" if figures.bad else ""
    late = f", {figures.late:,} came too late" if figures.late else ""
    unmet = "".join(f", {count:,} not {name!r}" for name, count in figures.unmet.items() if count)
    dead = f", {figures.dead_lettered:,} dead-lettered" if figures.dead_lettered else ""
    state_rows = f", {figures.state_rows:,} rows of state" if figures.state_rows else ""
    speed = "" if final else f" ({figures.in_per_s:,.0f}/s)"
    return (
        f"{figures.name}: batch {figures.batch_id}, {figures.rows_in:,} rows in{speed}, {figures.rows_out:,} out"
        f"{bad}{late}{unmet}{dead}{lag}{state_rows}, {figures.batch_ms or 0:,} ms the last batch"
    )


def _spark_said(path: str) -> str | None:
    """Why Spark did not start, in its own words: its launcher and Java wrote them to standard error."""
    try:
        lines = Path(path).read_text(errors="replace").splitlines()
    except OSError:
        return None
    found = [line.strip() for line in lines if re.search(r"(Exception|Error)\b.*?: |^Error", line)]
    return re.sub(r'^Exception in thread "[^"]*" ', "", found[0]) if found else None


def _stop_spark(spark: SparkSession) -> None:
    """Stop, but not for ever: the process ends in any case, and Java with it."""
    done = threading.Thread(target=spark.stop, daemon=True)
    done.start()
    done.join(STOP_TIMEOUT_S)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def main() -> int:
    spec = read_spec(0)
    file = open(spec.log, "a")  # noqa: SIM115 - closed below, where a full disk is no reason for another end
    log = RunLog(file, quieted(spec))
    try:
        return Runner(spec, log).run()
    except state.AlreadyRunning as error:
        log.say(str(error))
        return 1
    except OSError as error:  # before anything has begun: this run cannot keep its own files
        log.say(f"{Path(spec.state_dir) / spec.name} cannot be written: {error.strerror or error}")
        return 1
    finally:
        with suppress(OSError):
            file.close()


if __name__ == "__main__":
    sys.exit(main())
