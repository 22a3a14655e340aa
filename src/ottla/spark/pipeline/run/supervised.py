"""A query that is watched: its figures, and whether and when it is started again after it has failed.

A query that fails (a worker that did not come up, a broker that is away, a machine out of memory) is started again
from its checkpoint, after pauses that grow, for as long as `--give-up-after` says; the time begins anew when a
micro-batch has been finished. What would fail again the same way (a value that does not parse where that is to stop the
stream, data that is lost, a topic that is gone, a state that does not fit) is told at once and not tried again. A full
disk is told by its name.

Owned by the runner, on its own thread; `now` is its monotonic clock.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, Any

from ottla.spark.pipeline.run.full_disk import GOES_ON, MAKE_ROOM, Place, full_disk
from ottla.spark.pipeline.running import Figures, first_line

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

# The pause before what has failed is tried again: twice as long each time, up to the last.
FIRST_DELAY_S = 1.0
LAST_DELAY_S = 60.0
RAISED = "[USER_RAISED_EXCEPTION] "
# What fails the same way however often it is tried: the code, the options and the checkpoint do not fit together.
LASTING = (
    RAISED,
    "DataLossError",
    "RowsLostError",  # the same of rows that a micro-batch had written
    "OptionError",
    "RowError",
    "AnalysisException",
    "AuthenticationFailed",
    "UNKNOWN_TOPIC_OR_PARTITION",  # after the client has asked for as long as its time-outs allow
    "RegistryRefusedError",
    "TableMismatchError",  # a table that somebody else has changed
    "OlderCheckpointError",
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


class Patience:
    """How long something that fails is tried again, and after which pauses; progress begins it anew."""

    def __init__(self, give_up_after_s: float = inf) -> None:
        self._give_up_after_s = give_up_after_s
        self._failures = 0
        self._failing_since = 0.0
        self._failed_at = -1

    def delay(self, progress: int, now: float) -> float | None:
        """The pause after another failure, None if it was the last; `progress` has grown if something was done."""
        if progress > self._failed_at or not self._failures:
            self._failures, self._failing_since = 0, now
        self._failed_at = progress
        left = self._failing_since + self._give_up_after_s - now
        # Not beyond the time there is: it has its last chance at the end of it.
        delay = min(FIRST_DELAY_S * 2 ** min(self._failures, 16), LAST_DELAY_S, left)
        self._failures += 1
        return delay if left > 0 else None


class Supervised:
    """A query, its figures, and when it is to be started again.

    `is_gone` knows the failures that are not the query's but its server's: those are raised, and what becomes of the
    query then is said by `lost`, `found` or `give_up`.
    """

    def __init__(
        self,
        query: StreamingQuery,
        figures: Figures,
        restart: Callable[[], StreamingQuery],
        give_up_after_s: float = inf,
        hide: Callable[[str], str] = str,
        disks: Sequence[Place] = (),
        is_gone: Callable[[BaseException], bool] = lambda _: False,
    ) -> None:
        self.query = query
        self.figures = figures
        self._restart = restart
        self._patience = Patience(give_up_after_s)
        self._hide = hide
        self._disks = disks
        self._is_gone = is_gone
        self._failed_at_batch = -1
        self._restart_at: float | None = None  # inf: when its server is there again
        self._was_lost = False
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
        if self._restart_at is not None:
            self._is_over = True
            self._restart_at = None
        elif not self._is_over and self.query.isActive:
            self.query.stop()

    def lost(self, reason: str) -> None:
        """Its server is away, and the query with it, unless it was done before."""
        if self._restart_at is None and self._has_ended:
            self._is_over = True  # it has said all, and cannot be asked again
            return
        self._restart_at = inf
        self._was_lost = True
        self.figures.state = "restarting"
        self.figures.problem = reason
        self.figures.in_per_s = self.figures.out_per_s = 0.0

    def found(self, now: float) -> None:
        """Its server is there again: the next look starts it."""
        if self._restart_at == inf:
            self._restart_at = now

    def give_up(self, reason: str) -> None:
        """Its server is not waited for any longer."""
        if self._restart_at == inf:
            self._restart_at = None
            self._has_ended = self._is_over = True
            self.figures.state = "failed"
            self.figures.problem = reason

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
            except Exception as refused:  # Spark does not take it any more, or not now
                if self._is_gone(refused):
                    self._restart_at = now
                    raise
                return self._failed(refused, now, say)
            if self._was_lost:
                self._was_lost, self.figures.problem = False, ""
        # Asked in this order: a query that ends in between has reported all it did before it was seen to have ended.
        # And all is asked before anything is noted: if a server goes away in between, it is not known why it ended.
        active = self.query.isActive
        reports = self.query.recentProgress
        error = None if active else self.query.exception()
        self._has_ended = not active
        self.figures.add(reports, now)
        for news in self.figures.changes.news():
            say(f"{self.figures.name}: {news}")
        self.figures.state = "running" if active else "ended"
        if self.figures.batch_id > self._failed_at_batch:
            self.figures.problem = ""  # of a failure that it has got over
        return None if error is None else self._failed(error, now, say)

    def _failed(self, error: BaseException, now: float, say: Callable[[str], None]) -> str | None:
        full = full_disk(str(error), self._disks)
        # The whole of what Spark says is for its log, if that has room; people read the sentence.
        with suppress(OSError):
            print(f"{self.figures.name} failed:\n{error}", file=sys.stderr, flush=True)
        delay = self._delay("" if full else str(error), now)
        told = f"{full}: {MAKE_ROOM if delay is None else GOES_ON}" if full else sentence(error)
        self.figures.problem = reason = self._hide(told)
        self._was_lost = False
        if delay is None:
            self._is_over = self._has_ended = True
            self.figures.state = "failed"
            return f"{self.figures.name}: {reason}"
        self.figures.state = "restarting"
        self._restart_at = now + delay
        say(f"{self.figures.name}: failed, starts again in {delay:g} s: {reason}")
        return None

    def _delay(self, text: str, now: float) -> float | None:
        if self._is_stopping or any(mark in text for mark in LASTING):
            return None
        self._failed_at_batch = self.figures.batch_id
        return self._patience.delay(self.figures.batch_id, now)


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
