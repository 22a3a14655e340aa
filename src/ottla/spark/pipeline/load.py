"""A pipeline file read and checked, without Spark: what is wrong is said before anything is started.

The file is run as a module of its own name, kept in `sys.modules` (classes need it) but pickled by value, since
executors do not have the file. `load` makes a `Pipeline`, immutable: its streams with their inputs, and where each of
them stands in the file. `check` finds what can be found without Spark and brokers, among it streams that feed
themselves through their topics; `running` starts it.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import re
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

from ottla.model.install import install
from ottla.spark.pipeline.declare import (
    EVOLVE,
    FORMATS,
    MODES,
    ON_ERROR,
    SESSION_PARAMETER,
    TOMBSTONES,
    DeclarationError,
    Declared,
    DeclaredPipeline,
    Delta,
    Iceberg,
    Parquet,
    PipelineError,
    Problem,
    Stream,
    Topic,
    View,
    collecting,
    did_you_mean,
    listed,
    local_path,
    parameters,
    parse_start,
    parse_trigger,
)
from ottla.spark.pipeline.given import Answers, Given, find_secrets, of_environment, refused_secrets
from ottla.spark.pipeline.lake.spec import parse_every, parse_part, parse_size
from ottla.spark.pipeline.parameters import Param, ParameterError, Secret, answering
from ottla.spark.pipeline.quality.expectations import DEAD_LETTER
from ottla.spark.pipeline.quality.expectations import refused as refused_expectations

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
Edges = Mapping[str, frozenset[str]]
LEGAL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
LEGAL_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
DELTA_UNSAFE, ICEBERG_UNSAFE = "%\\", "%?#"
SOURCES = (Topic, Parquet, Delta, Iceberg, View)
SINKS = (Topic, Parquet, Delta, Iceberg)
MODULE_PREFIX = "ottla_pipeline_"
MAX_FILE_BYTES = 4_000_000
_UNEXPECTED = re.compile(r"(\w+)\(\) got an unexpected keyword argument '(\w+)'")
_MISSING = re.compile(r"(\w+)\(\) missing \d+ required .*argument")


@dataclass(frozen=True)
class Pipeline(DeclaredPipeline):
    """The streams of one file, checked and ready to start."""

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
        from ottla.spark.pipeline.checkpoints.checkpoint import claim, refuse_others
        from ottla.spark.pipeline.running import plan, start

        checkpoints = checkpoint_dir or str(Path(state_dir).absolute() / self.name / "checkpoints")
        is_here = hasattr(spark, "_jsparkSession")  # else they are a Spark Connect server's
        if is_here:
            refuse_others(self, checkpoints)
        started = start(
            plan(self, spark, bootstrap, checkpoints, available_now=available_now, options=options or {})
        )
        if is_here:
            claim(self, checkpoints)
        return started


def find_cycle(edges: Edges) -> list[str] | None:
    """One way round (first and last are the same), or None. Names in order, so that the answer is always the same."""
    done: set[str] = set()
    for start in sorted(edges):
        found = _walk(start, edges, done)
        if found is not None:
            return found
    return None


def _walk(start: str, edges: Edges, done: set[str]) -> list[str] | None:
    """Depth first, without recursion: the open path is the stack."""
    path: list[str] = [start]
    waiting: list[Iterable[str]] = [iter(sorted(edges.get(start, ())))]
    while path:
        following = next(iter(waiting[-1]), None)
        if following is None:
            done.add(path.pop())
            waiting.pop()
        elif following in path:
            return [*path[path.index(following) :], following]
        elif following not in done:
            path.append(following)
            waiting.append(iter(sorted(edges.get(following, ()))))
    return None


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
    yield from _check_expectations(pipeline, stream)
    for declared, parameter, source in pipeline.inputs(stream):
        for what in (*_check_source(pipeline, source), *refused_secrets(source)):
            yield pipeline.problem(declared, parameter, what)
    for what in (*_check_sink(pipeline, stream), *refused_secrets(stream.out)):
        yield pipeline.problem(stream, "out", what)
    for what in (*_check_dead_letter(stream.dead_letter), *refused_secrets(stream.dead_letter)):
        yield pipeline.problem(stream, "dead_letter", what)


def _check_expectations(pipeline: Pipeline, stream: Stream) -> Iterator[Problem]:
    has_dead_letter = stream.dead_letter is not None
    for declared, parameter, source in pipeline.inputs(stream):
        if isinstance(source, Topic):
            for what in refused_expectations(source.expect, has_dead_letter=has_dead_letter, of_input=True):
                yield pipeline.problem(declared, parameter, what)
            if source.table and _wants_dead_letters(source.expect):
                what = "expect: a table is read again and again, and its rows cannot be dead letters: drop or fail"
                yield pipeline.problem(declared, parameter, what)
    for what in refused_expectations(stream.expect, has_dead_letter=has_dead_letter, of_input=False):
        yield pipeline.problem(stream, "expect", what.removeprefix("expect: "))
    if not isinstance(stream.out, Topic) and _wants_dead_letters(stream.expect):
        what = "action='dead_letter' of a result needs out=topic(...): both are written in one transaction"
        yield pipeline.problem(stream, "expect", what)
    for parameter, sink in (("out", stream.out), ("dead_letter", stream.dead_letter)):
        if isinstance(sink, Topic) and sink.expect:
            what = "expect: is for an input; for the result there is @pipeline.stream(expect=[...])"
            yield pipeline.problem(stream, parameter, what)


def _wants_dead_letters(expected: Any) -> bool:
    return isinstance(expected, tuple) and any(
        getattr(one, "action", None) == DEAD_LETTER for one in expected
    )


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
        elif name != SESSION_PARAMETER and not isinstance(default, (*SOURCES, Param, Secret)):
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
        ("on_error", topic.on_error, ON_ERROR),
        ("tombstones", topic.tombstones, TOMBSTONES),
    ):
        if value not in known:
            yield f"{name}: {_choice(value, known)}"
    try:
        parse_start(topic.start)
    except DeclarationError as error:
        yield f"start: {error}"


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
    yield from _check_layout(sink)
    if isinstance(sink, Iceberg):
        yield from _check_iceberg(sink)
    else:
        yield from _check_place("path", sink.path, DELTA_UNSAFE)
        yield from _check_package("deltalake")


def _check_place(name: str, path: str, unsafe: str) -> Iterator[str]:
    """What the packages of lakes take for a part of a URL in a path: they write in one place and read in another."""
    found = [char for char in unsafe if char in path]
    if found and "://" not in path:
        yield f"{name}: {path!r} has a {found[0]!r} in it, which tables of a lake cannot have: name another directory"


def _check_layout(sink: Delta | Iceberg) -> Iterator[str]:
    if sink.evolve not in EVOLVE:
        yield f"evolve: {_choice(str(sink.evolve), ('additive',))}"
    for text in sink.partition_by:
        try:
            part = parse_part(text)
        except DeclarationError as error:
            yield f"partition_by: {error}"
            continue
        if isinstance(sink, Delta) and part.transform != "identity":
            yield f"partition_by: {text!r}: Delta is partitioned by columns; make one in the result"
    try:
        if sink.compact is not None:
            parse_every(sink.compact)
        if sink.target_file_size is not None:
            parse_size(sink.target_file_size)
    except DeclarationError as error:
        yield f"{'target_file_size' if 'size' in str(error) else 'compact'}: {error}"


def _check_iceberg(sink: Iceberg) -> Iterator[str]:
    if not re.fullmatch(r"[^.\s]+(\.[^.\s]+)+", sink.table):
        yield f"{sink.table!r} is no table: namespace.name is"
    if not {"type", "uri", "py-catalog-impl"} & sink.catalog.keys():
        yield from _check_place("warehouse", str(sink.catalog.get("warehouse", "")), ICEBERG_UNSAFE)
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
    if (
        letters.schema is not None
        or letters.format is not None
        or letters.key
        or letters.registry is not None
    ):
        yield "holds the records as they came: schema, format, key and registry mean nothing here"


def _doubles(pipeline: Pipeline) -> Iterator[Problem]:
    from ottla.spark.pipeline.frames import DEAD_LETTER_SUFFIX

    seen: set[str] = set()
    for stream in pipeline.streams:
        if stream.name in seen:
            yield pipeline.problem(stream, "name", f"there are two streams named {stream.name!r}")
        seen.add(stream.name)
    for stream in pipeline.streams:
        if stream.dead_letter is not None and stream.name + DEAD_LETTER_SUFFIX in seen:
            other = stream.name + DEAD_LETTER_SUFFIX
            what = f"its dead letters have the name of the stream {other!r}, and its checkpoint"
            yield pipeline.problem(stream, "dead_letter", what)
    directories: dict[str, str] = {}
    for stream in pipeline.streams:
        if isinstance(stream.out, Parquet):
            other = directories.setdefault(_directory(stream.out), stream.name)
            if other != stream.name:
                what = (
                    f"{stream.out} is what {other!r} writes into: Spark knows what is there by the numbers of "
                    "micro-batches alone, and would take rows of one for those of the other. Name another directory"
                )
                yield pipeline.problem(stream, "out", what)


def _directory(sink: Parquet) -> str:
    """However it is spelt."""
    found = local_path(str(sink.path))
    return str(sink.path).rstrip("/") if found is None else os.path.abspath(found)


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


def load(path: str | Path, given: Given | None = None) -> Pipeline:
    """The pipeline of a file (or of an importable module, by its dotted name); PipelineError if it cannot run.

    `given` is what its parameters and secrets are; nothing: what the environment says.
    """
    file = find(str(path))
    given = of_environment() if given is None else given
    answers = Answers(given, file)
    try:
        with answering(answers.named):
            declared = _execute(file)
    except PipelineError as error:
        # A value that is missing at the file's top may be all that is wrong further down.
        raise (PipelineError(answers.problems) if answers.problems else error) from None
    streams = tuple(found for found in declared if isinstance(found, Stream))
    pipeline = Pipeline(file.stem, file, streams)
    found = [] if answers.problems else check(pipeline)
    answers.of_functions(pipeline)
    secrets, missing = ({}, []) if given.secrets is None else find_secrets(pipeline, given.secrets)
    problems = [*found, *answers.problems, *missing]
    if problems:
        raise PipelineError(dict.fromkeys(problems))
    return replace(pipeline, values=answers.values, texts=answers.texts, secrets=secrets)


def find(path: str) -> Path:
    """The file that is meant."""
    file = Path(path)
    if file.is_file():
        return file.absolute()
    if re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", path) and not path.endswith(".py"):
        try:
            spec = importlib.util.find_spec(path)
        except ImportError:
            spec = None
        if spec is not None and spec.origin is not None:
            return Path(spec.origin)
    kind = "this is a directory, not a file" if file.is_dir() else "there is no such file"
    raise PipelineError(Problem(path, kind))


def _execute(file: Path) -> list[Declared]:
    """Run the file and collect what it declares."""
    code = _compile(file)
    module = ModuleType(MODULE_PREFIX + re.sub(r"\W", "_", file.stem))
    module.__file__ = str(file)
    sys.modules[module.__name__] = module
    sys.path.insert(0, str(file.parent))
    try:
        with collecting() as declared:
            exec(code, module.__dict__)
    except PipelineError:
        raise
    except Exception as error:
        raise PipelineError(_explain(file, error)) from error
    finally:
        sys.path.remove(str(file.parent))
    _pickle_by_value(module)
    return declared


def _compile(file: Path) -> CodeType:
    if file.stat().st_size > MAX_FILE_BYTES:
        raise PipelineError(Problem(file.name, f"larger than {MAX_FILE_BYTES:,} bytes: this is no pipeline"))
    try:
        return compile(file.read_bytes(), str(file), "exec")
    except SyntaxError as error:
        place = f"{file.name}:{error.lineno}:{error.offset}" if error.lineno else file.name
        raise PipelineError(Problem(place, f"syntax error: {error.msg}")) from None
    except (UnicodeDecodeError, ValueError) as error:
        raise PipelineError(Problem(file.name, f"this is no Python source: {error}")) from None


def _explain(file: Path, error: Exception) -> Problem:
    """What the file raised, at the file's own line."""
    lines = [
        frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)
    ]
    where = f"{file.name}:{lines[-1]}" if lines else file.name
    if isinstance(error, ModuleNotFoundError):
        package = (error.name or "").partition(".")[0]
        remedy = f"; {install('spark')}" if package in ("pyspark", "pyarrow") else ""
        return Problem(where, f"the package {package!r} is not installed{remedy}")
    if isinstance(error, DeclarationError | ParameterError):
        return Problem(where, str(error))
    if isinstance(error, TypeError):
        return Problem(where, _explain_call(str(error)))
    return Problem(where, f"{type(error).__name__}: {error}")


def _explain_call(message: str) -> str:
    """Python's words for a wrong argument, with the name that was meant."""
    from ottla.spark import pipeline

    found = _UNEXPECTED.search(message)
    function = getattr(pipeline, found[1], None) if found else None
    if found is None or function is None:
        return message if _MISSING.search(message) else f"TypeError: {message}"
    import inspect

    known = list(inspect.signature(function).parameters)
    hint = did_you_mean(found[2], known) or f"; it has {', '.join(known)}"
    return f"{found[1]}() has no parameter {found[2]!r}{hint}"


def _pickle_by_value(module: ModuleType) -> None:
    """Executors get the file's own functions and classes inside the job."""
    try:
        from pyspark import cloudpickle
    except ImportError:
        return  # a pipeline without Spark can be checked, not run; the runner says what to install
    register: Any = cloudpickle.register_pickle_by_value
    register(module)
