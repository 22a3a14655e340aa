"""What can be checked of a pipeline without Spark and without brokers. Pure: a pipeline in, problems out."""

from __future__ import annotations

import importlib.util
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

from ottla.model.install import install
from ottla.spark.pipeline.declare import (
    FORMATS,
    MODES,
    ON_ERROR,
    TOMBSTONES,
    Declared,
    Delta,
    Iceberg,
    Parquet,
    Stream,
    Topic,
    View,
)
from ottla.spark.pipeline.errors import DeclarationError, Problem, did_you_mean, listed
from ottla.spark.pipeline.graph import find_cycle
from ottla.spark.pipeline.model import SESSION_PARAMETER, Pipeline, parameters
from ottla.spark.pipeline.trigger import parse_trigger

LEGAL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
LEGAL_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
SOURCES = (Topic, Parquet, Delta, Iceberg, View)
SINKS = (Topic, Parquet, Delta, Iceberg)
START = ("earliest", "latest")

Report = Callable[[str, str], Problem]


def check(pipeline: Pipeline) -> list[Problem]:
    """Everything that is wrong, in the order of the file."""
    if not pipeline.streams:
        return [
            Problem(pipeline.path.name, "declares no stream; mark a function with @pipeline.stream(out=...)")
        ]
    found = [problem for stream in pipeline.streams for problem in _check_stream(pipeline, stream)]
    found += _doubles(pipeline)
    found += _cycles(pipeline)
    return list(dict.fromkeys(found))


def _check_stream(pipeline: Pipeline, stream: Stream) -> Iterator[Problem]:
    yield from _check_declaration(pipeline, stream)
    yield from _check_parameters(pipeline, stream, ())
    for declared, parameter, source in pipeline.inputs(stream):
        for what in _check_source(pipeline, source):
            yield pipeline.problem(declared, parameter, what)
    for what in _check_sink(pipeline, stream):
        yield pipeline.problem(stream, "out", what)
    for what in _check_dead_letter(stream.dead_letter):
        yield pipeline.problem(stream, "dead_letter", what)


def _check_declaration(pipeline: Pipeline, stream: Stream) -> Iterator[Problem]:
    if not LEGAL_NAME.fullmatch(stream.name):
        yield pipeline.problem(stream, "name", f"{stream.name!r}: letters, digits, '.', '_' and '-' only")
    if stream.mode not in MODES:
        yield pipeline.problem(stream, "mode", _choice(stream.mode, MODES))
    try:
        parse_trigger(stream.trigger)
    except DeclarationError as error:
        yield pipeline.problem(stream, "trigger", str(error))
    if not any(isinstance(source, Topic) and not source.table for _, _, source in pipeline.inputs(stream)):
        yield pipeline.problem(stream, "", "reads no topic: a stream needs at least one (table=True is none)")


def _check_parameters(pipeline: Pipeline, declared: Declared, path: tuple[View, ...]) -> Iterator[Problem]:
    for name, default in parameters(declared.function).items():
        if isinstance(default, View):
            if default in path:
                yield pipeline.problem(declared, name, f"view {default.name!r} is made of itself")
            else:
                yield from _check_parameters(pipeline, default, (*path, default))
        elif isinstance(default, Stream):
            hint = (
                f"; read what it writes: topic({default.out.name!r})"
                if isinstance(default.out, Topic)
                else ""
            )
            yield pipeline.problem(declared, name, f"{default.name!r} is a stream, not a view{hint}")
        elif name != SESSION_PARAMETER and default is inspect.Parameter.empty:
            yield pipeline.problem(declared, name, f"has no source; write {name}=topic(...)")
        elif name != SESSION_PARAMETER and not isinstance(default, SOURCES):
            kind = type(default).__name__
            yield pipeline.problem(
                declared, name, f"takes a topic, a table or a view, not {kind} {default!r}"
            )


def _check_source(pipeline: Pipeline, source: Any) -> Iterator[str]:
    if isinstance(source, Topic):
        yield from _check_topic(source)
        yield from _check_choices(source)
        yield from _check_reading(source)
        yield from _check_values(pipeline, source, source.read_format, writing=False)
    elif isinstance(source, Delta):
        yield from _check_package("deltalake")
    elif isinstance(source, Iceberg):
        yield from _check_iceberg(source)


def _check_topic(topic: Topic) -> Iterator[str]:
    if not isinstance(topic.name, str) or not LEGAL_TOPIC.fullmatch(topic.name) or topic.name in (".", ".."):
        yield f"{topic.name!r} is no name for a topic: letters, digits, '.', '_' and '-', at most 249"
    if topic.format is not None and topic.format not in FORMATS:
        yield f"format: {_choice(topic.format, FORMATS)}"
    if topic.partitions is not None and (not isinstance(topic.partitions, int) or topic.partitions < 1):
        yield f"partitions: {topic.partitions!r} is no number of partitions"


def _check_choices(topic: Topic) -> Iterator[str]:
    for name, value, known in (
        ("start", topic.start, START),
        ("on_error", topic.on_error, ON_ERROR),
        ("tombstones", topic.tombstones, TOMBSTONES),
    ):
        if value not in known:
            yield f"{name}: {_choice(value, known)}"


def _check_reading(topic: Topic) -> Iterator[str]:
    if len(topic.key) > 1:
        yield f"key: an input has one column for the key, not {listed(topic.key)}"
    if topic.table and not topic.key:
        yield "table: needs key=, the column that the record's key goes into"
    if topic.read_format == "raw" and (topic.key or topic.headers or topic.meta or topic.table):
        yield "key, headers, meta and table need a format; without one the columns are those of format('ottla')"


def _check_values(pipeline: Pipeline, topic: Topic, form: str, writing: bool) -> Iterator[str]:
    from ottla.spark.pipeline.values import codec

    if form not in FORMATS:
        return
    try:
        codec(topic, form, pipeline.base_dir, writing=writing)
    except DeclarationError as error:
        yield str(error)


def _check_sink(pipeline: Pipeline, stream: Stream) -> Iterator[str]:
    sink = stream.out
    if not isinstance(sink, SINKS):
        yield f"takes topic(), parquet(), delta() or iceberg(), not {type(sink).__name__} {sink!r}"
    elif isinstance(sink, Topic):
        yield from _check_topic(sink)
        yield from _check_values(pipeline, sink, sink.write_format, writing=True)
        if sink.table:
            yield "table: only an input is read as a table"
    elif isinstance(sink, Parquet):
        if stream.mode != "append":
            yield f"a Parquet directory is only appended to: mode={stream.mode!r} needs a topic, delta or iceberg"
    else:
        yield from _check_lake(sink, stream.mode)


def _check_lake(sink: Delta | Iceberg, mode: str) -> Iterator[str]:
    if mode == "update" and not sink.key:
        yield "mode='update' gives a row again when it changes: key= says which row of the table that is"
    if mode == "append" and sink.key and not sink.order_by:
        yield "order_by: says which of several rows with the same key is the newest (an offset, a version, a time)"
    if (sink.delete or sink.order_by) and not sink.key:
        yield "delete and order_by are about rows with the same key: say key="
    if isinstance(sink, Iceberg):
        yield from _check_iceberg(sink)
    else:
        yield from _check_package("deltalake")


def _check_iceberg(sink: Iceberg) -> Iterator[str]:
    if not re.fullmatch(r"[^.\s]+(\.[^.\s]+)+", sink.table):
        yield f"{sink.table!r} is no table: namespace.name is"
    if not sink.catalog:
        yield "needs warehouse= (a directory) or catalog= (the properties of a catalog)"
    yield from _check_package("pyiceberg")


def _check_package(name: str) -> Iterator[str]:
    if importlib.util.find_spec(name) is None:
        yield f"needs the package {name}: {install('lake')}"


def _check_dead_letter(letters: Any) -> Iterator[str]:
    if letters is None:
        return
    if not isinstance(letters, Topic):
        yield f"takes a topic, not {type(letters).__name__} {letters!r}"
        return
    yield from _check_topic(letters)
    if letters.schema is not None or letters.format is not None or letters.key:
        yield "holds the records as they came: schema, format and key mean nothing here"


def _doubles(pipeline: Pipeline) -> Iterator[Problem]:
    seen: set[str] = set()
    for stream in pipeline.streams:
        if stream.name in seen:
            yield pipeline.problem(stream, "name", f"there are two streams named {stream.name!r}")
        seen.add(stream.name)


def _cycles(pipeline: Pipeline) -> Iterator[Problem]:
    edges: dict[str, set[str]] = {}
    for stream in pipeline.streams:
        written = {sink.name for sink in (stream.out, stream.dead_letter) if isinstance(sink, Topic)}
        node = f"stream {stream.name}"
        edges.setdefault(node, set()).update(f"topic {name}" for name in written)
        for _, _, source in pipeline.inputs(stream):
            if isinstance(source, Topic):
                edges.setdefault(f"topic {source.name}", set()).add(node)
    cycle = find_cycle({node: frozenset(following) for node, following in edges.items()})
    if cycle is not None:
        yield Problem(pipeline.path.name, f"the pipeline feeds itself: {' -> '.join(cycle)}")


def _choice(value: object, known: tuple[str, ...]) -> str:
    return f"{value!r} is none of {', '.join(known)}{did_you_mean(str(value), known)}"
