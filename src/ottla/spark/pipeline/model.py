"""A loaded pipeline: its streams with their inputs, where each of them stands in the file.

Immutable; made by `load`, checked by `check`, started by `running`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ottla.spark.pipeline.declare import Declared, Source, Stream, Topic, View
from ottla.spark.pipeline.errors import Problem

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SESSION_PARAMETER = "spark"


@dataclass(frozen=True)
class Pipeline:
    """The streams of one file."""

    name: str
    path: Path
    streams: tuple[Stream, ...]

    def start(
        self,
        spark: SparkSession,
        bootstrap: str,
        state_dir: str | Path,
        *,
        checkpoint_dir: str | None = None,
        available_now: bool = False,
        options: Mapping[str, str] | None = None,
    ) -> list[StreamingQuery]:
        """Start every stream from its checkpoint; all plans are built and checked before the first one starts.

        `options` (kafka.security.protocol and the like) go to every source and sink.
        """
        from ottla.spark.pipeline.running import plan, start

        checkpoints = checkpoint_dir or str(Path(state_dir).absolute() / self.name / "checkpoints")
        return start(
            plan(self, spark, bootstrap, checkpoints, available_now=available_now, options=options or {})
        )

    @property
    def base_dir(self) -> Path:
        """What relative paths of schemas are relative to."""
        return self.path.parent

    def group_of(self, stream: Stream) -> str:
        """The consumer group that shows the stream's progress."""
        return f"{self.name}.{stream.name}"

    def where(self, declared: Declared, parameter: str = "") -> str:
        """`clicks.py:7: per_minute(clicks)`."""
        line = line_of(declared.function)
        shown = f"{declared.function.__name__}({parameter})" if parameter else declared.function.__name__
        return f"{self.path.name}:{line}: {shown}" if line else f"{self.path.name}: {shown}"

    def problem(self, declared: Declared, parameter: str, what: str) -> Problem:
        return Problem(self.where(declared, parameter), what)

    def inputs(self, stream: Stream) -> Iterator[tuple[Declared, str, Source]]:
        """All inputs of a stream, those of its views included: who declares them, under which name, what."""
        yield from _inputs(stream, set())

    def topics(self) -> dict[str, list[tuple[Stream, str, Topic]]]:
        """Every topic that is read or written, and by whom: the stream, the parameter (`out`, `dead_letter`)."""
        found: dict[str, list[tuple[Stream, str, Topic]]] = {}
        for stream in self.streams:
            for _, parameter, source in self.inputs(stream):
                if isinstance(source, Topic):
                    found.setdefault(source.name, []).append((stream, parameter, source))
            for parameter, sink in (("out", stream.out), ("dead_letter", stream.dead_letter)):
                if isinstance(sink, Topic):
                    found.setdefault(sink.name, []).append((stream, parameter, sink))
        return found


def _inputs(declared: Declared, seen: set[View]) -> Iterator[tuple[Declared, str, Source]]:
    for parameter, default in parameters(declared.function).items():
        if isinstance(default, View):
            if default not in seen:
                seen.add(default)
                yield from _inputs(default, seen)
        elif parameter != SESSION_PARAMETER and default is not inspect.Parameter.empty:
            yield declared, parameter, default


def parameters(function: Callable[..., Any]) -> dict[str, Any]:
    """Parameters and their defaults; Parameter.empty where there is none."""
    return {name: parameter.default for name, parameter in inspect.signature(function).parameters.items()}


def line_of(function: Callable[..., Any]) -> int | None:
    """The line of the `def` (or of its first decorator)."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return None if code is None else int(code.co_firstlineno)
