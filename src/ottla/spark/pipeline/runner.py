"""The process that runs a pipeline: `python -m ottla.spark.pipeline.runner NAME`, started by `ottla pipeline run`.

What to run is the first line of its standard input: settings may be secret, and arguments are seen by everybody.
It is a process of its own, in a session of its own, whether somebody watches or not: so Ctrl-C in a terminal
reaches the one who watches, who asks this one to stop, instead of killing Spark's workers in the middle of a
batch. Its standard output and error are the Spark log. SIGTERM, SIGINT, or the end of standard input (the watcher
is gone) stop the queries cleanly. Everything else is reported through the pipeline's directory (state).

Streams live apart: one that fails for good leaves the others running. A query that fails (a worker that did not come
up, a broker that is away, a machine out of memory) is started again from its checkpoint, after pauses that grow, for as
long as `--give-up-after` says; the time begins anew when a micro-batch has been finished. What would fail again the
same way (a value that does not parse where that is to stop the stream, data that is lost, a topic that is gone, a state
that does not fit) is told at once and not tried again. A full disk is told by its name. Where it is the one with this
run's own files, the streams go on without them.

How far queries are behind, in records and in seconds since the first record not yet read, is asked in a thread of its
own: brokers that are away are waited for there. While they do not answer there is no figure, and `problem` says why.
"""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from ottla.client.config import SECRET_KEYS
from ottla.model.ids import TopicPartition
from ottla.spark.cluster.connect import EXECUTORS_PYTHON, close_session, furnish
from ottla.spark.cluster.environment import PackageError
from ottla.spark.cluster.package import Package, needs_package
from ottla.spark.cluster.preflight import ExecutorsDiffer, look_around
from ottla.spark.cluster.shelf import take
from ottla.spark.connection import PREFIX
from ottla.spark.pipeline import state
from ottla.spark.pipeline.checkpoints import savepoint
from ottla.spark.pipeline.checkpoints.checkpoint import claim, refuse_others
from ottla.spark.pipeline.contents import relative_paths, request_for
from ottla.spark.pipeline.declare import Parquet, PipelineError
from ottla.spark.pipeline.discreet import DiscreetStream, hiding
from ottla.spark.pipeline.full_disk import GOES_ON, MAKE_ROOM, Place, full_disk, places
from ottla.spark.pipeline.given import Given, Secrets, Source, shown
from ottla.spark.pipeline.lineage import OpenLineage
from ottla.spark.pipeline.load import Pipeline, load
from ottla.spark.pipeline.metrics import PATH as METRICS_PATH
from ottla.spark.pipeline.metrics import MetricsServer, page, parse_address
from ottla.spark.pipeline.replay import Replay, replayed
from ottla.spark.pipeline.running import Figures, first_line, plan, start
from ottla.spark.pipeline.topics import create_topics
from ottla.spark.session import SparkFailed, is_local, session, submitted_session

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from ottla.client.inline import InlineClient


log = logging.getLogger(__name__)

TICK_S = 0.5
LOG_EVERY_S = 10.0
LAST_LAG_TIMEOUT_S = 2.0
STOP_TIMEOUT_S = 30.0
MAX_SPEC_BYTES = 1 << 20
# Progress is read every half second: as many micro-batches as there can be until then are kept.
RECENT = "50"
# In the state directory, beside the pipelines' own.
PACKAGES = "packages"

# The pause before a failed query is started again: twice as long each time, up to the last.
FIRST_DELAY_S = 1.0
LAST_DELAY_S = 60.0
RAISED = "[USER_RAISED_EXCEPTION] "
# What fails the same way however often it is tried: the code, the options and the checkpoint do not fit together.
LASTING = (
    RAISED,
    "DataLossError",
    "OptionError",
    "RowError",
    "AnalysisException",
    "AuthenticationFailed",
    "UNKNOWN_TOPIC_OR_PARTITION",  # after the client has asked for as long as its time-outs allow
    "RegistryRefusedError",
    "TableMismatchError",  # a table that somebody else has changed
    "STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE",
    "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE",
    "STATE_STORE_COLUMN_FAMILY_SCHEMA_INCOMPATIBLE",
    "STATE_STORE_INVALID_CONFIG_AFTER_RESTART",
    "STATE_STORE_INVALID_VALUE_SCHEMA_EVOLUTION",
    "STATE_STORE_INVALID_VARIABLE_TYPE_CHANGE",
    "STATE_STORE_KEY_ROW_FORMAT_VALIDATION_FAILURE",
    "STATE_STORE_VALUE_ROW_FORMAT_VALIDATION_FAILURE",
    "STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA",
    "STREAMING_STATEFUL_OPERATOR_MISSING_STATE_DIRECTORY",
    "STREAMING_CHECKPOINT_MISSING_METADATA_FILE",
    "STREAM_STREAM_JOIN_INCOMPATIBLE_STATE_STORE_CONFIGS",
    "CONCURRENT_STREAM_LOG_UPDATE",
    "TRANSFORM_WITH_STATE_USER_FUNCTION_ERROR",
    "sources in the checkpoint offsets",  # a source more or less than before
)

Offsets = Mapping[str, Mapping[str, int]]
Lag = tuple[int | None, float | None]
UNKNOWN_LAG: Lag = (None, None)
LAG_INTERVAL_S = 2.0
LAG_TIMEOUT_MS = 2_000.0
LAG_FETCH_BYTES = 1
# Timestamps are read for so many of the partitions that are behind: the oldest is among the furthest, mostly.
MAX_TIMESTAMPS = 16


class Supervised:
    """A query, its figures, and when it is to be started again."""

    def __init__(
        self,
        query: StreamingQuery,
        figures: Figures,
        restart: Callable[[], StreamingQuery],
        give_up_after_s: float = inf,
        hide: Callable[[str], str] = str,
        disks: Sequence[Place] = (),
    ) -> None:
        self.query = query
        self.figures = figures
        self._restart = restart
        self._give_up_after_s = give_up_after_s
        self._hide = hide
        self._disks = disks
        self._failures = 0
        self._failing_since = 0.0
        self._failed_at_batch = -1
        self._restart_at: float | None = None
        self._is_stopping = False
        self._has_ended = False
        self._is_over = False

    @property
    def is_done(self) -> bool:
        """Ended, and not to be started again: as of the last look, since one that has died after it may come again."""
        return self._restart_at is None and self._has_ended

    def stop(self) -> None:
        """For good. One that waited to be started again is over without a problem: the next run goes on with it."""
        self._is_stopping = True
        self._is_over = self._restart_at is not None
        self._restart_at = None
        if self.query.isActive:
            self.query.stop()

    def look(self, now: float, say: Callable[[str], None]) -> str | None:
        """Take in what is new; why the query is over, if it failed for good: this is reported once."""
        if self._is_over:
            return None
        if self._restart_at is not None:
            if now < self._restart_at:
                return None
            self._restart_at = None
            try:
                self.query = self._restart()
            except Exception as refused:  # noqa: BLE001 - Spark does not take it any more, or not now
                return self._failed(refused, now, say)
        # Asked in this order: a query that ends in between has reported all it did before it was seen to have ended.
        active = self.query.isActive
        self._has_ended = not active
        self.figures.add(self.query.recentProgress, now)
        for news in self.figures.changes.news():
            say(f"{self.figures.name}: {news}")
        self.figures.state = "running" if active else "ended"
        if self.figures.batch_id > self._failed_at_batch:
            self.figures.problem = ""  # of a failure that it has got over
        error = None if active else self.query.exception()
        return None if error is None else self._failed(error, now, say)

    def _failed(self, error: BaseException, now: float, say: Callable[[str], None]) -> str | None:
        full = full_disk(str(error), self._disks)
        # The whole of what Spark says is for its log, if that has room; people read the sentence.
        with suppress(OSError):
            print(f"{self.figures.name} failed:\n{error}", file=sys.stderr, flush=True)
        delay = self._delay("" if full else str(error), now)
        told = f"{full}: {MAKE_ROOM if delay is None else GOES_ON}" if full else sentence(error)
        self.figures.problem = reason = self._hide(told)
        if delay is None:
            self._is_over = True
            self.figures.state = "failed"
            return f"{self.figures.name}: {reason}"
        self.figures.state = "restarting"
        self._restart_at = now + delay
        say(f"{self.figures.name}: failed, starts again in {delay:g} s: {reason}")
        return None

    def _delay(self, text: str, now: float) -> float | None:
        if self._is_stopping or any(mark in text for mark in LASTING):
            return None
        if self.figures.batch_id > self._failed_at_batch or not self._failures:
            self._failures, self._failing_since = 0, now
        self._failed_at_batch = self.figures.batch_id
        left = self._failing_since + self._give_up_after_s - now
        # Not beyond the time there is: it has its last chance at the end of it.
        delay = min(FIRST_DELAY_S * 2 ** min(self._failures, 16), LAST_DELAY_S, left)
        self._failures += 1
        return delay if left > 0 else None


def sentence(error: BaseException | Any) -> str:
    """What went wrong in a query, without Spark's wrapping: the innermost message that says something."""
    lines = [line for line in str(error).splitlines() if not line.lstrip().startswith("at ")]
    for line in lines:
        if RAISED in line:
            return _clean(line.split(RAISED, 1)[1])
    for mark in ("Error: ", "Exception: "):
        found = [line for line in lines if mark in line and not line.startswith("Caused by")]
        if found and ": " in found[-1]:
            return _clean(found[-1].strip())
    return _clean(first_line(error))


def _clean(text: str) -> str:
    return text.split(" SQLSTATE:")[0].split(" == DataFrame ==")[0].strip()


class LagWatch:
    """Asks for the lags of all queries again and again, in a thread."""

    def __init__(self, lags: Lags, interval_s: float = LAG_INTERVAL_S) -> None:
        self._lags = lags
        self._interval_s = interval_s
        self._changed = threading.Condition()
        self._wanted: dict[str, Offsets] = {}
        self._found: dict[str, Lag] = {}
        self._rounds = self._hurry_until = 0
        self._is_over = False
        threading.Thread(target=self._run, name="lags", daemon=True).start()

    @property
    def problem(self) -> str | None:
        """Why the brokers gave no answer the last time they were asked."""
        return self._lags.problem

    def want(self, name: str, offsets: Offsets) -> Lag:
        """What was found out last, records and seconds; from now on it is asked for these offsets."""
        with self._changed:
            self._wanted[name] = offsets
            return self._found.get(name, UNKNOWN_LAG)

    def refresh(self, timeout_s: float) -> None:
        """Wait, not for ever, until everything that is wanted by now has been asked for."""
        with self._changed:
            # The round that is under way may have begun before.
            self._hurry_until = wanted = self._rounds + 2
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._rounds >= wanted, timeout_s)

    def close(self) -> None:
        """No more questions. One that is under way ends by itself: nobody waits for brokers that are away."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def _run(self) -> None:
        while not self._is_over:
            with self._changed:
                wanted = dict(self._wanted)
            found = {name: self._lags.of(offsets, _now_ms()) for name, offsets in wanted.items()}
            with self._changed:
                self._found = found
                self._rounds += 1
                self._changed.notify_all()
                self._changed.wait_for(
                    lambda: self._is_over or self._hurry_until > self._rounds, self._interval_s
                )
        self._lags.close()


class Lags:
    """Asks the brokers, on one connection."""

    def __init__(self, bootstrap: str, options: Mapping[str, str]) -> None:
        from ottla.spark.connection import kafka_options

        self._kafka = kafka_options({"kafka.bootstrap.servers": bootstrap, **options})
        self._client: InlineClient | None = None
        self.problem: str | None = None

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def of(self, offsets: Offsets, now_ms: int) -> Lag:
        """Records and seconds behind."""
        from ottla.model.errors import KafkaError

        places = {
            TopicPartition(topic, int(partition)): at
            for topic, there in offsets.items()
            for partition, at in there.items()
        }
        if not places:
            return UNKNOWN_LAG
        try:
            found = self._ask(places, now_ms)
        except (KafkaError, OSError) as error:
            self.problem = str(error) or type(error).__name__
        except Exception as error:  # the next time it is asked anew; the figures do without
            log.exception("no lag")
            self.problem = f"{type(error).__name__}: {error}"
        else:
            self.problem = None
            return found
        self.close()
        return UNKNOWN_LAG

    def _ask(self, places: Mapping[TopicPartition, int], now_ms: int) -> tuple[int, float]:
        from ottla.client.offsets import LATEST

        client = self._connected()
        found = client.list_offsets(
            dict.fromkeys(places, LATEST), read_committed=True, timeout_ms=LAG_TIMEOUT_MS
        )
        behind = {tp: found[tp].offset - at for tp, at in places.items() if found[tp].offset > at}
        stamps = [
            stamp
            for tp in sorted(behind, key=lambda tp: -behind[tp])[:MAX_TIMESTAMPS]
            if (stamp := _first_timestamp(client, tp, places[tp], places[tp] + behind[tp])) is not None
        ]
        oldest = min(stamps, default=None)
        return sum(behind.values()), 0.0 if oldest is None else round(max(now_ms - oldest, 0) / 1000, 1)

    def _connected(self) -> InlineClient:
        from ottla.spark.connection import connect

        if self._client is None:
            self._client = connect(self._kafka)
        return self._client


def _first_timestamp(client: InlineClient, tp: TopicPartition, start: int, end: int) -> int | None:
    """The timestamp of the batch that holds the first unread record."""
    from ottla.client.consumer.inline import RawFetcher
    from ottla.records.batch import iter_batches

    fetcher = RawFetcher(client, tp, start, end, max_bytes=LAG_FETCH_BYTES, timeout_ms=LAG_TIMEOUT_MS)
    for chunk in fetcher:
        for batch in iter_batches(chunk.data):
            if batch.last_offset >= start and not batch.is_control:
                return int(batch.max_timestamp if batch.base_timestamp < 0 else batch.base_timestamp)
    return None


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
    give_up_after_s: float | None = None  # for ever
    replay: Replay | None = None
    from_savepoint: str | None = None
    metrics: str | None = None
    submitted: bool = False  # by spark-submit, which has chosen the master and the settings
    conf: Mapping[str, str] = field(default_factory=dict, repr=False)
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    params: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)

    def given(self) -> Given:
        """What the one who started this has found."""
        return Given((Source("--param", self.params),), Secrets(known=self.secrets))

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Spec:
        """From what `to_json` or `to_keep` made; TypeError if it is something else."""
        known = {entry.name for entry in fields(cls)}
        given = {name: value for name, value in document.items() if name in known}
        if given.get("replay") is not None:
            given["replay"] = Replay(**given["replay"])
        return cls(**given)

    def to_json(self) -> str:
        """In one line."""
        return json.dumps(asdict(self))

    def to_keep(self) -> dict[str, Any]:
        """For the next start: what is secret is kept nowhere, only that there was something."""
        secret = [key for key in self.options if key.removeprefix(PREFIX) in SECRET_KEYS]
        options = {key: value for key, value in self.options.items() if key not in secret}
        once = {"from_savepoint": None}  # the next start has a checkpoint
        return {**asdict(self), **once, "options": options, "secrets": {}, "not_kept": secret}


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
            spark=spec.remote or spec.master or ("spark-submit" if spec.submitted else "local[*]"),
            pid=os.getpid(),
            started_ms=_now_ms(),
            log=spec.log,
            spark_log=spec.spark_log,
            checkpoints=checkpoints,
        )
        self._hide = hiding(spec.secrets.values())
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
            except (PackageError, savepoint.SavepointError) as error:
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
        self._nothing_begun = True
        self._log.say(f"starting Spark ({self._run.spark})")
        spark, packed = self._session(pipeline)
        try:
            if spec.remote is not None:
                self._take_over(spark)
            for warning in self._seen_to(spark, pipeline, packed):
                self._log.say(warning)
            plans = plan(
                pipeline,
                spark,
                spec.bootstrap,
                self._run.checkpoints,
                available_now=spec.available_now,
                options=spec.options,
                replay=spec.replay,
            )
            self._nothing_begun = False
            if self._stop.is_set():
                return []
            created = create_topics(pipeline, spec.bootstrap, spec.options, create_all=spec.create_topics)
            if created:
                self._log.say(f"created topics: {', '.join(created)}")
                self._run = replace(self._run, created=tuple(created))
            disks = self._disks(pipeline)
            try:
                started = start(plans)
            except Exception as error:
                full = full_disk(str(error), disks)
                if full is None:
                    raise
                return [f"{full}: {MAKE_ROOM}"]
            if spec.remote is None and (not_noted := claim(pipeline, self._run.checkpoints)):
                self._log.say(not_noted)
            self._queries = [
                Supervised(
                    query,
                    Figures(self._short(one.name)),
                    one.start,
                    inf if spec.give_up_after_s is None else spec.give_up_after_s,
                    self._hide,
                    disks,
                )
                for one, query in zip(plans, started, strict=True)
            ]
            if self._lineage is not None:
                self._lineage.started(pipeline, spec.bootstrap)
            with self._without_files():
                self._write_state(state.RUNNING)
            for one, query in zip(self._queries, started, strict=True):
                self._log.say(f"{one.figures.name}: query {query.id}")
            try:
                return self._watch()
            finally:
                self._tell_end(pipeline)
        finally:
            _stop_spark(spark)

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
        """The session of the run before on the same Spark Connect server, unless that run has ended it."""
        before = self._home.run()
        if before is None or before.spark != self._spec.remote:
            return ""
        return "" if before.state in (state.STOPPED, state.FINISHED) else before.session

    def _take_over(self, spark: SparkSession) -> None:
        """Note this session, for the next run; end the one of a run that died: its queries go on without it."""
        session: Any = spark  # of Spark Connect
        left = self._run.session
        if left and left != session.session_id:  # one that the user has named is used again
            try:
                close_session(self._run.spark, left)
            except Exception as error:  # noqa: BLE001 - queries that are started anew are stopped there by Spark
                self._log.say(
                    f"the session that the run before left behind is not closed: {first_line(error)}"
                )
            else:
                self._log.say("closed the session that the run before left behind")
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
            with self._without_files():
                self._write_state(state.STOPPING)
        for one in self._queries:
            one.stop()

    def _look(self, now: float) -> None:
        """New figures of all queries; what ended one of them for good, if something did, is reported at once."""
        found = [one.look(now, self._log.say) for one in self._queries]
        new = [problem for problem in found if problem is not None and problem not in self._problems]
        if new:
            self._problems += new
            for problem in new:
                self._log.say(f"failed for good: {problem}")
            with self._without_files():
                self._write_state(self._run.state, problems=tuple(self._problems))

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
    state_rows = f", {figures.state_rows:,} rows of state" if figures.state_rows else ""
    speed = "" if final else f" ({figures.in_per_s:,.0f}/s)"
    return (
        f"{figures.name}: batch {figures.batch_id}, {figures.rows_in:,} rows in{speed}, {figures.rows_out:,} out"
        f"{bad}{late}{unmet}{lag}{state_rows}, {figures.batch_ms or 0:,} ms the last batch"
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


def read_spec(fd: int) -> Spec:
    """The first line of what whoever started this has to say; byte by byte, for the rest is read by others."""
    line = bytearray()
    while len(line) < MAX_SPEC_BYTES and (byte := os.read(fd, 1)) not in (b"", b"\n"):
        line += byte
    return Spec.of(json.loads(line))


def quieted(spec: Spec) -> Callable[[str], str]:
    """What takes this run's secrets out of a text; from now on this process's own streams are without them."""
    hide = hiding(spec.secrets.values())
    if spec.secrets:
        sys.stderr, sys.stdout = DiscreetStream(sys.stderr, hide), DiscreetStream(sys.stdout, hide)
    return hide


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
