"""What a pipeline file declares: topics and tables as data, and the decorators that make streams of functions.

Rules: nothing here needs Spark, reads a file or talks to a broker. Text that must be parsed (a schema) is kept
as it was written and parsed by the check, which knows the function and the parameter to name. A declaration
registers itself with whoever is loading a file (`collecting`); without one it is a plain object, so a pipeline
file can be imported by a test like any module. What is wrong with a file is a `Problem` that names the place.
"""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ottla.model.clock import moment_ms
from ottla.spark.pipeline.parameters import Param, Secret, with_defaults
from ottla.spark.pipeline.quality.expectations import Expect

# The parameter of a stream's function that is given the session.
SESSION_PARAMETER = "spark"

FORMATS = ("json", "avro", "protobuf", "string", "raw")
MODES = ("append", "update", "complete")
ON_ERROR = ("fail", "skip")
TOMBSTONES = ("skip", "keep")
EVOLVE = (False, True, "additive")
START = ("earliest", "latest")
META_COLUMN = "_meta"
AVAILABLE_NOW = "available now"
_INTERVAL = re.compile(r"\d+(\.\d+)?\s*(ms|milliseconds?|s|seconds?|m|minutes?|h|hours?|days?)")
_SHORT = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours"}


@dataclass(frozen=True)
class Topic:
    """A topic to read or to write, and how its values are to be understood."""

    name: str
    schema: Any = None
    format: str | None = None
    key: tuple[str, ...] = ()
    message: str | None = None
    headers: str | None = None
    meta: bool = False
    table: bool = False
    start: str = "earliest"
    on_error: str = "fail"
    tombstones: str = "skip"
    partitions: int | None = None
    config: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    registry: str | None = field(default=None, repr=False)  # a user and password may be in the address
    registry_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    subject: str | None = None
    expect: tuple[Expect, ...] = ()

    def __str__(self) -> str:
        return f"topic {self.name!r}"

    @property
    def read_format(self) -> str:
        """As what values are read: by their schema, else as they are."""
        return self.format or ("raw" if self.schema is None else "json")

    @property
    def write_format(self) -> str:
        """As what rows are written."""
        return self.format or "json"


def topic(
    name: str,
    *,
    schema: Any = None,
    format: str | None = None,
    key: str | Sequence[str] | None = None,
    message: str | None = None,
    headers: str | None = None,
    meta: bool = False,
    table: bool = False,
    start: str = "earliest",
    on_error: str = "fail",
    tombstones: str = "skip",
    partitions: int | None = None,
    config: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    registry: str | None = None,
    registry_options: Mapping[str, Any] | None = None,
    subject: str | None = None,
    expect: Sequence[Expect] | Expect = (),
) -> Topic:
    """A topic, as an input (`def f(clicks=topic(...))`), an output (`out=topic(...)`) or for dead letters.

    schema      JSON: a Spark schema string. Avro: a schema as JSON text, a dict or an .avsc file. Protobuf: a
                descriptor set (.desc), a .proto file or a generated class.
    format      json (default with a schema), avro, protobuf, string (one column `value`), raw (the columns of
                format("ottla"); the default of an input without a schema)
    key         output: the column (or columns, as a JSON object) to take the record's key from;
                input: the column to put the key into, as a string or as the schema's type of that name
    message     Protobuf: the full name of the message
    headers     output: the column with the headers; input: the column to put them into
    meta        input: add a column `_meta` (key, topic, partition, offset, timestamp, timestamp_type, tombstone)
    table       input: the newest value of each key as a table, re-read for each micro-batch, instead of a stream
    start       input: where a first run starts: "earliest", "latest", or a time: "2026-11-01T00:00" (UTC, or with a
                zone)
    on_error    input, for streams without a dead_letter: "fail" stops at a value that does not parse, "skip" counts
                it and goes on
    tombstones  input: records without a value: "skip", or "keep" as rows of nulls (with key= or meta=)
    partitions  output: create the topic with so many if it is missing (config= with these settings)
    options     passed to format("ottla") as they are
    registry    json, avro and protobuf: the address of a schema registry (several with commas); values are framed
                with the ids of its schemas. Without a schema an input is read by the newest of its subject
    registry_options  by Confluent's names: basic.auth.user.info, bearer.auth.token, ssl.ca.location,
                request.timeout.ms; output: auto.register (false only looks the schema up)
    subject     TopicNameStrategy (default: <topic>-value), RecordNameStrategy, TopicRecordNameStrategy, or a name
    expect      input: conditions that its rows have to meet: [expect("price > 0", action="dead_letter")]
    """
    return Topic(
        name=name,
        schema=schema,
        format=format,
        key=_names(key),
        message=message,
        headers=headers,
        meta=meta,
        table=table,
        start=start,
        on_error=on_error,
        tombstones=tombstones,
        partitions=partitions,
        config=_texts(config),
        options=_texts(options),
        registry=registry,
        registry_options=_texts(registry_options),
        subject=subject,
        expect=_expected(expect),
    )


@dataclass(frozen=True)
class Parquet:
    """A directory of Parquet files: Spark's own sink, or a static input."""

    path: str
    partition_by: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        return f"parquet {self.path!r}"


def parquet(
    path: str, *, partition_by: str | Sequence[str] | None = None, options: Mapping[str, Any] | None = None
) -> Parquet:
    """A directory of Parquet files; as an output exactly once for those who read it through Spark."""
    return Parquet(path, _names(partition_by), _texts(options))


@dataclass(frozen=True)
class Delta:
    """A Delta table by its path."""

    path: str
    key: tuple[str, ...] = ()
    order_by: str | None = None
    delete: str | None = None
    partition_by: tuple[str, ...] = ()
    evolve: bool | str = False
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    sort_by: tuple[str, ...] = ()
    compact: str | None = None
    target_file_size: str | int | None = None
    adopt: bool = False

    def __str__(self) -> str:
        return f"delta table {self.path!r}"


def delta(
    path: str,
    *,
    key: str | Sequence[str] | None = None,
    order_by: str | None = None,
    delete: str | None = None,
    partition_by: str | Sequence[str] | None = None,
    sort_by: str | Sequence[str] | None = None,
    evolve: bool | str = False,
    compact: str | None = None,
    target_file_size: str | int | None = None,
    adopt: bool = False,
    options: Mapping[str, Any] | None = None,
) -> Delta:
    """A Delta table, written exactly once, its files by the executors.

    key       upsert by these columns instead of appending
    order_by  of several rows with one key in a micro-batch the one with the largest value here counts; a row that
              is older than the one in the table is left out; a row without a value here is of unknown age: it
              counts where the micro-batch has no other for its key, whatever is in the table
    delete    a boolean column: true deletes the row with that key; not stored
    partition_by      the columns that a new table is partitioned by; a table that is there has to be so, too
    sort_by           rows are sorted by these columns within files: "user", "at desc"
    evolve            "additive" (or True) adds columns that the table does not have
    compact           how often small files are merged, between micro-batches: "1 hour"
    target_file_size  how large files are to become: "128MB" (the default)
    adopt             go on in a table that does not know this query, though it has written before: one that was made
                      anew, or another one than before. Otherwise that is refused, since those rows are not in it
    options   storage options of the package `deltalake` (object store credentials and the like)
    """
    return Delta(
        path,
        _names(key),
        order_by,
        delete,
        _names(partition_by),
        evolve,
        _texts(options),
        _names(sort_by),
        compact,
        target_file_size,
        adopt,
    )


@dataclass(frozen=True)
class Iceberg:
    """An Iceberg table by its name in a catalog."""

    table: str
    catalog: Mapping[str, str] = field(default_factory=dict, repr=False)
    key: tuple[str, ...] = ()
    order_by: str | None = None
    delete: str | None = None
    evolve: bool | str = False
    partition_by: tuple[str, ...] = ()
    sort_by: tuple[str, ...] = ()
    compact: str | None = None
    target_file_size: str | int | None = None
    adopt: bool = False

    def __str__(self) -> str:
        return f"iceberg table {self.table!r}"


def iceberg(
    table: str,
    *,
    warehouse: str | None = None,
    catalog: Mapping[str, Any] | None = None,
    key: str | Sequence[str] | None = None,
    order_by: str | None = None,
    delete: str | None = None,
    partition_by: str | Sequence[str] | None = None,
    sort_by: str | Sequence[str] | None = None,
    evolve: bool | str = False,
    compact: str | None = None,
    target_file_size: str | int | None = None,
    adopt: bool = False,
) -> Iceberg:
    """An Iceberg table `namespace.name`, written exactly once, its files by the executors; all else as for delta().

    warehouse     a directory: the catalog is an SQLite file in it
    catalog       any catalog instead: the properties that PyIceberg's load_catalog takes ({"type": "rest", "uri": ...})
    partition_by  columns, and Iceberg's transforms of them: "day(at)" (year, month, hour), "bucket(16, id)",
                  "truncate(4, name)"
    """
    properties = _texts(catalog)
    if warehouse is not None:
        properties.setdefault("warehouse", warehouse)
    return Iceberg(
        table,
        properties,
        _names(key),
        order_by,
        delete,
        evolve,
        _names(partition_by),
        _names(sort_by),
        compact,
        target_file_size,
        adopt,
    )


@dataclass(frozen=True, eq=False)
class View:
    """A function whose result is the input of others; it has no query of its own."""

    function: Callable[..., Any]
    name: str

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **with_defaults(self.function, args, kwargs))


@dataclass(frozen=True, eq=False)
class Stream:
    """A function whose result is written to `out`: one streaming query."""

    function: Callable[..., Any]
    name: str
    out: Any
    mode: str = "append"
    trigger: str | None = None
    dead_letter: Any = None
    expect: tuple[Expect, ...] = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The plain function, for tests that bring their own DataFrames."""
        return self.function(*args, **with_defaults(self.function, args, kwargs))


Sink = Topic | Parquet | Delta | Iceberg
Source = Topic | Parquet | Delta | Iceberg | View
Declared = Stream | View
D = TypeVar("D", Stream, View)

_collector: ContextVar[list[Declared] | None] = ContextVar("ottla_pipeline_collector", default=None)


@contextmanager
def collecting() -> Iterator[list[Declared]]:
    """Everything that is declared in the meantime, in order."""
    found: list[Declared] = []
    token = _collector.set(found)
    try:
        yield found
    finally:
        _collector.reset(token)


def stream(
    *,
    out: Sink,
    name: str | None = None,
    mode: str = "append",
    trigger: str | None = None,
    dead_letter: Topic | str | None = None,
    expect: Sequence[Expect] | Expect = (),
) -> Callable[[Callable[..., Any]], Stream]:
    """Make a function a stream: its parameters' defaults are the inputs, its result goes to `out`.

    name         of the query, its checkpoint and its group (default: the function's)
    mode         append, update or complete, as Spark has them
    trigger      how often: "10 seconds", "available now", or nothing for as fast as it goes
    dead_letter  the topic for records that do not parse
    expect       conditions that rows of the result have to meet: [expect("total >= 0", action="drop")]
    """
    letters = topic(dead_letter) if isinstance(dead_letter, str) else dead_letter

    def declare(function: Callable[..., Any]) -> Stream:
        made = Stream(function, name or function.__name__, out, mode, trigger, letters, _expected(expect))
        return _declared(made)

    return declare


def view(function: Callable[..., Any]) -> View:
    """Make a function the input of other streams: `def f(sessions=sessions)`."""
    return _declared(View(function, function.__name__))


def _declared(made: D) -> D:
    collector = _collector.get()
    if collector is not None:
        collector.append(made)
    return made


def _names(given: str | Sequence[str] | None) -> tuple[str, ...]:
    if given is None:
        return ()
    return (given,) if isinstance(given, str) else tuple(given)


def _expected(given: Any) -> Any:
    """As a tuple; what is none is left for the check to name."""
    return (
        (given,) if isinstance(given, Expect) else tuple(given) if isinstance(given, list | tuple) else given
    )


def _texts(given: Mapping[str, Any] | None) -> dict[str, str]:
    """Options are text to Spark and to the stores; True is `true` there. A secret stays one until it is used."""
    return {
        key: value
        if isinstance(value, Secret)
        else str(value).lower()
        if isinstance(value, bool)
        else str(value)
        for key, value in (given or {}).items()
    }


def parameters(function: Callable[..., Any]) -> dict[str, Any]:
    """Parameters and their defaults; Parameter.empty where there is none."""
    return {name: parameter.default for name, parameter in inspect.signature(function).parameters.items()}


class Problem(NamedTuple):
    """One thing that is wrong: `where` names file, line, function and parameter as far as they are known."""

    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}" if self.where else self.what


class PipelineError(Exception):
    """A pipeline that cannot run, with everything that is wrong with it, not only the first."""

    def __init__(self, problems: Problem | Iterable[Problem]) -> None:
        self.problems = (problems,) if isinstance(problems, Problem) else tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))

    def __reduce__(self) -> tuple[type[PipelineError], tuple[tuple[Problem, ...]]]:
        return (type(self), (self.problems,))


@dataclass(frozen=True)
class DeclaredPipeline:
    """The streams of one file: what each of them reads, and where it stands in the file."""

    name: str
    path: Path
    streams: tuple[Stream, ...]
    values: Mapping[str, Any] = field(
        default_factory=dict
    )  # of parameters: STREAM.NAME, and NAME of the file's own
    texts: Mapping[str, str] = field(
        default_factory=dict
    )  # those of them that were given, as they were given
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)

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

    def functions(self) -> Iterator[Declared]:
        """All streams, and before each the views that it is made of, each once."""
        seen: set[Declared] = set()
        for stream in self.streams:
            yield from _functions(stream, seen)

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
        elif parameter != SESSION_PARAMETER and not _is_no_input(default):
            yield declared, parameter, default


def _is_no_input(default: Any) -> bool:
    return default is inspect.Parameter.empty or isinstance(default, Param | Secret)


def _functions(declared: Declared, seen: set[Declared]) -> Iterator[Declared]:
    if declared in seen:
        return
    seen.add(declared)
    for default in parameters(declared.function).values():
        if isinstance(default, View):
            yield from _functions(default, seen)
    yield declared


def line_of(function: Callable[..., Any]) -> int | None:
    """The line of the `def` (or of its first decorator)."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return None if code is None else int(code.co_firstlineno)


class DeclarationError(Exception):
    """A declaration that is wrong in itself; whoever knows its place makes a Problem of it."""


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """`; did you mean 'x'?` where a known word is close, else nothing."""
    found = difflib.get_close_matches(word.lower(), known, n=1, cutoff=0.6)
    return f"; did you mean {found[0]!r}?" if found else ""


def listed(names: Iterable[str]) -> str:
    """`a, b, c`, or `none`."""
    return ", ".join(names) or "none"


def local_path(place: str) -> Path | None:
    """A directory of this machine, however it is spelt (`/a`, `file:/a`, `file:///a`); None if it is elsewhere."""
    if place.startswith("file:"):
        return Path("/" + place.removeprefix("file:").lstrip("/"))
    return None if "://" in place else Path(place)


def parse_start(text: str) -> dict[str, str]:
    """The options of format("ottla") that say where a first run starts."""
    if text in START:
        return {"startingOffsets": text}
    try:
        timestamp_ms = moment_ms(text)
    except (TypeError, ValueError):
        raise DeclarationError(
            f"{text!r} is neither {' nor '.join(map(repr, START))} nor a time like '2026-11-01T00:00'"
            f"{did_you_mean(str(text), START)}"
        ) from None
    if timestamp_ms < 0:
        raise DeclarationError(f"{text!r} is before 1970")
    return from_moment(timestamp_ms)


def from_moment(timestamp_ms: int) -> dict[str, str]:
    """The same from a time on; of a partition without a record since then what comes next is read."""
    return {"startingTimestamp": str(timestamp_ms), "startingOffsetsByTimestampStrategy": "latest"}


def parse_trigger(text: str | None) -> dict[str, Any]:
    """The keywords of DataStreamWriter.trigger; none for as fast as it goes."""
    if text is None:
        return {}
    if not isinstance(text, str):
        raise DeclarationError(f"takes text such as '10 seconds', not {text!r}")
    words = " ".join(text.lower().replace("_", " ").split())
    if words in (AVAILABLE_NOW, "availablenow", "once"):
        return {"availableNow": True}
    found = _INTERVAL.fullmatch(words)
    if found is None:
        raise DeclarationError(f"{text!r} is neither an interval ('10 seconds') nor 'available now'")
    unit = found[2]
    return {"processingTime": f"{words.removesuffix(unit).strip()} {_SHORT.get(unit, unit)}"}
