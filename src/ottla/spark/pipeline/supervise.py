"""One query of a run, kept going: what ends it by accident ends it for a moment only.

A worker that did not come up, a broker that was away for too long, a machine out of memory: the query is started
again from its checkpoint, after a while, and not for ever: the count begins anew only when a micro-batch has been
finished in between. What would fail again the same way (a value that does not parse where that is to stop the
stream, data that is lost) is not tried again. Owned by the runner.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from ottla.spark.pipeline.errors import PipelineError
from ottla.spark.pipeline.progress import Figures
from ottla.spark.pipeline.running import first_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql.streaming.query import StreamingQuery

DELAYS_S = (1.0, 5.0, 20.0)
RAISED = "[USER_RAISED_EXCEPTION] "
# What fails the same way however often it is tried: the code, the options and the checkpoint do not fit together.
LASTING = (
    RAISED,
    "DataLossError",
    "OptionError",
    "RowError",
    "AnalysisException",
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


class Supervised:
    """A query, its figures, and when it is to be started again."""

    def __init__(
        self, query: StreamingQuery, figures: Figures, restart: Callable[[], StreamingQuery]
    ) -> None:
        self.query = query
        self.figures = figures
        self._restart = restart
        self._failures = 0
        self._failed_at_batch = -1
        self._restart_at: float | None = None
        self._is_stopping = False
        self._is_over = False

    @property
    def is_done(self) -> bool:
        """Ended, and not to be started again."""
        return self._restart_at is None and not self.query.isActive

    def stop(self) -> None:
        """For good. One that waited to be started again is over without a problem: the next run goes on with it."""
        self._is_stopping = True
        self._is_over = self._restart_at is not None
        self._restart_at = None
        if self.query.isActive:
            self.query.stop()

    def look(self, now: float, say: Callable[[str], None]) -> str | None:
        """Take in what is new; why the query is over, if it failed for good: this is told once."""
        if self._is_over:
            return None
        if self._restart_at is not None:
            if now < self._restart_at:
                return None
            self._restart_at = None
            try:
                self.query = self._restart()
            except PipelineError as refused:  # Spark does not take it any more
                return self._failed(refused, now, say)
        # Asked in this order: a query that ends in between has reported all it did before it was seen to have ended.
        active = self.query.isActive
        self.figures.add(self.query.recentProgress, now)
        self.figures.state = "running" if active else "ended"
        error = None if active else self.query.exception()
        return None if error is None else self._failed(error, now, say)

    def _failed(self, error: BaseException, now: float, say: Callable[[str], None]) -> str | None:
        told = sentence(error)
        # The whole of what Spark says is for its log; people read the sentence.
        print(f"{self.figures.name} failed:\n{error}", file=sys.stderr, flush=True)
        delay = self._delay(str(error))
        if delay is None:
            self._is_over = True
            self.figures.state, self.figures.problem = "failed", told
            return f"{self.figures.name}: {told}"
        self.figures.state = "restarting"
        self._restart_at = now + delay
        say(f"{self.figures.name}: failed, starts again in {delay:g} s: {told}")
        return None

    def _delay(self, text: str) -> float | None:
        if self._is_stopping or any(mark in text for mark in LASTING):
            return None
        if self.figures.batch_id > self._failed_at_batch:
            self._failures = 0
        self._failed_at_batch = self.figures.batch_id
        self._failures += 1
        return DELAYS_S[self._failures - 1] if self._failures <= len(DELAYS_S) else None


def sentence(error: BaseException | Any) -> str:
    """What went wrong in a query, without Spark's wrapping: the innermost message that says something."""
    lines = [line for line in str(error).splitlines() if not line.lstrip().startswith("at ")]
    for line in lines:
        if RAISED in line:
            return _clean(line.split(RAISED, 1)[1])
    for mark in ("Error: ", "Exception: "):
        told = [line for line in lines if mark in line and not line.startswith("Caused by")]
        if told and ": " in told[-1]:
            return _clean(told[-1].strip())
    return _clean(first_line(error))


def _clean(text: str) -> str:
    return text.split(" SQLSTATE:")[0].split(" == DataFrame ==")[0].strip()
