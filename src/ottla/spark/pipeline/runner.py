"""The process that runs a pipeline: `python -m ottla.spark.pipeline.runner SPEC`, started by `ottla pipeline run`.

It is a process of its own, in a session of its own, whether somebody watches or not: so Ctrl-C in a terminal
reaches the one who watches, who asks this one to stop, instead of killing Spark's workers in the middle of a
batch. Its standard output and error are the Spark log. SIGTERM, SIGINT, or the end of standard input (the watcher
is gone) stop the queries cleanly. Everything else is told through the pipeline's directory (state).
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from ottla.spark.pipeline import state
from ottla.spark.pipeline.errors import PipelineError
from ottla.spark.pipeline.lag import Lags, LagWatch
from ottla.spark.pipeline.load import load
from ottla.spark.pipeline.progress import Figures
from ottla.spark.pipeline.running import first_line, plan, start
from ottla.spark.pipeline.supervise import Supervised
from ottla.spark.pipeline.topics import create_topics
from ottla.spark.session import SparkFailed, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TICK_S = 0.5
LOG_EVERY_S = 10.0
LAST_LAG_TIMEOUT_S = 2.0
STOP_TIMEOUT_S = 30.0
# Progress is read every half second: as many micro-batches as there can be until then are kept.
RECENT = "50"


@dataclass(frozen=True)
class Spec:
    """What to run, as `ottla pipeline run` was asked to."""

    file: str
    name: str
    bootstrap: str
    state_dir: str
    log: str
    spark_log: str
    master: str | None = None
    remote: str | None = None
    checkpoint_dir: str | None = None
    available_now: bool = False
    watched: bool = False
    create_topics: bool = False
    conf: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps(asdict(self))


class RunLog:
    """The log for people: one line for what happened, with its time."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def say(self, text: str) -> None:
        stamp = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
        for line in text.splitlines() or [""]:
            print(f"{stamp}Z {line}", file=self._file, flush=True)


class Runner:
    """One run, from the lock to the last word."""

    def __init__(self, spec: Spec, log: RunLog) -> None:
        self._spec = spec
        self._log = log
        self._home = state.Home(Path(spec.state_dir), spec.name)
        self._stop = threading.Event()
        checkpoints = spec.checkpoint_dir or str(self._home.checkpoints)
        self._run = state.Run(
            name=spec.name,
            file=spec.file,
            bootstrap=spec.bootstrap,
            spark=spec.remote or spec.master or "local[*]",
            pid=os.getpid(),
            started_ms=_now_ms(),
            log=spec.log,
            spark_log=spec.spark_log,
            checkpoints=checkpoints,
        )
        self._queries: list[Supervised] = []
        self._problems: list[str] = []
        self._nothing_begun = (
            False  # Spark is starting: whoever does not want it any more need not wait for it
        )

    def run(self) -> int:
        """Until it ends, is stopped or fails; the exit code."""
        with self._home.locked():
            self._tell(state.STARTING)
            self._home.write_progress({})
            signal.signal(signal.SIGTERM, self._asked)
            signal.signal(signal.SIGINT, self._asked)
            if self._spec.watched:
                threading.Thread(target=self._until_unwatched, daemon=True).start()
            try:
                problems = self._with_spark()
            except PipelineError as error:
                problems = [str(problem) for problem in error.problems]
            except SparkFailed as error:
                problems = [f"Spark did not start: {_spark_said(self._spec.spark_log) or error}"]
            except Exception as error:  # noqa: BLE001 - whatever ends a run is told to whoever watches it
                self._log_stack()
                problems = [f"{type(error).__name__}: {first_line(error)}"]
            ended = state.FAILED if problems else state.STOPPED if self._stop.is_set() else state.FINISHED
            for problem in problems:
                self._log.say(f"failed: {problem}")
            self._tell(ended, problems=tuple(problems), ended_ms=_now_ms())
            return 1 if problems else 0

    def _with_spark(self) -> list[str]:
        spec = self._spec
        pipeline = replace(load(spec.file), name=spec.name)
        self._nothing_begun = True
        self._log.say(f"starting Spark ({self._run.spark})")
        conf = {"spark.sql.streaming.numRecentProgressUpdates": RECENT, **spec.conf}
        if spec.remote is None:
            conf.setdefault("spark.ui.enabled", "false")
        spark = session(f"ottla {spec.name}", spec.master, spec.remote, conf, log_file=spec.spark_log)
        try:
            plans = plan(
                pipeline,
                spark,
                spec.bootstrap,
                self._run.checkpoints,
                available_now=spec.available_now,
                options=spec.options,
            )
            self._nothing_begun = False
            if self._stop.is_set():
                return []
            created = create_topics(pipeline, spec.bootstrap, spec.options, create_all=spec.create_topics)
            if created:
                self._log.say(f"created topics: {', '.join(created)}")
                self._run = replace(self._run, created=tuple(created))
            started = start(plans)
            self._queries = [
                Supervised(query, Figures(self._short(one.name)), one.start)
                for one, query in zip(plans, started, strict=True)
            ]
            self._tell(state.RUNNING)
            for one, query in zip(self._queries, started, strict=True):
                self._log.say(f"{one.figures.name}: query {query.id}")
            return self._watch()
        finally:
            _stop_spark(spark)

    def _watch(self) -> list[str]:
        """Until it is to stop or no stream is left. A stream that failed for good leaves the others running."""
        lags = LagWatch(Lags(self._spec.bootstrap, self._spec.options))
        next_log = 0.0
        try:
            while True:
                now = time.monotonic()
                self._look(now)
                self._publish(lags)
                if now >= next_log:
                    self._log_figures()
                    next_log = now + LOG_EVERY_S
                if self._stop.is_set() or all(one.is_done for one in self._queries):
                    break
                self._stop.wait(TICK_S)
            self._end()
            self._look(time.monotonic())
            self._publish(lags)
            lags.refresh(LAST_LAG_TIMEOUT_S)
            self._publish(lags)
            self._log_figures(final=True)
            return self._problems
        finally:
            lags.close()

    def _end(self) -> None:
        """Stop what still runs; a batch that is cut short is replayed from the checkpoint by the next run."""
        if not all(one.is_done for one in self._queries):
            self._tell(state.STOPPING)
        for one in self._queries:
            one.stop()

    def _look(self, now: float) -> None:
        """New figures of all queries; what ended one of them for good, if something did, is told at once."""
        found = [one.look(now, self._log.say) for one in self._queries]
        new = [problem for problem in found if problem is not None and problem not in self._problems]
        if new:
            self._problems += new
            for problem in new:
                self._log.say(f"failed for good: {problem}")
            self._tell(self._run.state, problems=tuple(self._problems))

    def _publish(self, lags: LagWatch) -> None:
        for one in self._queries:
            one.figures.lag, one.figures.lag_seconds = lags.want(one.figures.name, one.figures.offsets)
        streams = [one.figures.document() for one in self._queries]
        self._home.write_progress({"at_ms": _now_ms(), "brokers_problem": lags.problem, "streams": streams})

    def _log_figures(self, final: bool = False) -> None:
        for one in self._queries:
            if one.figures.batch_id >= 0:
                self._log.say(figures_line(one.figures, final))

    def _log_stack(self) -> None:
        import traceback

        traceback.print_exc()

    def _short(self, query: str | None) -> str:
        return (query or "").removeprefix(f"{self._spec.name}.")

    def _tell(self, new: str, **more: Any) -> None:
        self._run = replace(self._run, state=new, **more)
        self._log.say(new)
        self._home.write_run(self._run)

    def _asked(self, *_: object) -> None:
        self._stop.set()
        if self._nothing_begun:
            # Java, which PySpark started, ends when its standard input does: with this process.
            self._tell(state.STOPPED, ended_ms=_now_ms())
            os._exit(0)

    def _until_unwatched(self) -> None:
        while os.read(0, 1024):
            continue
        self._asked()


def figures_line(figures: Figures, final: bool = False) -> str:
    """One line of the log for people."""
    lag = "" if figures.lag is None else f", {figures.lag:,} records ({figures.lag_seconds:g} s) behind"
    bad = f", {figures.bad:,} did not parse" if figures.bad else ""
    state_rows = f", {figures.state_rows:,} rows of state" if figures.state_rows else ""
    speed = "" if final else f" ({figures.in_per_s:,.0f}/s)"
    return (
        f"{figures.name}: batch {figures.batch_id}, {figures.rows_in:,} rows in{speed}, {figures.rows_out:,} out"
        f"{bad}{lag}{state_rows}, {figures.batch_ms or 0:,} ms the last batch"
    )


def _spark_said(path: str) -> str | None:
    """Why Spark did not start, in its own words: its launcher and Java wrote them to standard error."""
    try:
        lines = Path(path).read_text(errors="replace").splitlines()
    except OSError:
        return None
    told = [line.strip() for line in lines if re.search(r"(Exception|Error)\b.*?: |^Error", line)]
    return re.sub(r'^Exception in thread "[^"]*" ', "", told[0]) if told else None


def _stop_spark(spark: SparkSession) -> None:
    """Stop, but not for ever: the process ends in any case, and Java with it."""
    done = threading.Thread(target=spark.stop, daemon=True)
    done.start()
    done.join(STOP_TIMEOUT_S)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def main(argv: list[str]) -> int:
    spec = Spec(**json.loads(argv[0]))
    with open(spec.log, "a") as file:
        log = RunLog(file)
        try:
            return Runner(spec, log).run()
        except state.AlreadyRunning as error:
            log.say(str(error))
            return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
