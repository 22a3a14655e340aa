"""What PySpark does for `format("ottla")` in the driver, so that a job of `format("kafka")` moves over by one word.

Spark treats a data source in Python differently from its own in three ways that no such source can change:

- `df.write.save()` without a mode asks a sink whether it exists, and refuses one that cannot tell. Spark's Kafka sink
  appends. So does this one: a mode of "error if it exists" becomes "append" before Java sees it.
- `outputMode("update")` is refused for all sinks in Python. Here each micro-batch of such a query becomes a write of
  its own, which the sink knows by the query's id and the batch's number and makes visible once.
- Spark finds sources by a Python that it starts itself, the first `python3` on the PATH. Where that one has no Ottla,
  Spark says DATA_SOURCE_NOT_FOUND; here it says what to set.

`adapt()` changes PySpark's four writers and four readers (classic and Spark Connect), now or when they are imported: it
imports nothing of PySpark. Importing ottla.spark calls it. Other formats are passed through untouched.
"""

from __future__ import annotations

import functools
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ottla.spark.worker_python import python_on_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FORMAT = "ottla"
# What DataFrameWriter.mode takes for "error if it exists", which is what it is when nothing is said.
_IF_ABSENT = ("error", "errorifexists", "default")
_QUERY_ID = "sql.streaming.queryId"


class SourceNotFound(RuntimeError):
    """Spark's own Python has no Ottla; the message says what to set."""


def is_ours(name: Any) -> bool:
    return isinstance(name, str) and name.lower() == FORMAT


# -- batch writes -------------------------------------------------------------------------------------------


def _save(save: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(save)
    def appends(
        self: Any,
        path: str | None = None,
        format: str | None = None,
        mode: str | None = None,
        partitionBy: Any = None,
        **options: Any,
    ) -> Any:
        if is_ours(format or _format_of(self)) and (mode or _mode_of(self)).lower() in _IF_ABSENT:
            mode = "append"
        with _explained():
            return save(self, path, format, mode, partitionBy, **options)

    return appends


def _format_of(writer: Any) -> str | None:
    """Classic writers keep their settings in Java, those of Spark Connect in themselves."""
    found: str | None = writer._jwrite.source() if hasattr(writer, "_jwrite") else writer._write.source
    return found


def _mode_of(writer: Any) -> str:
    mode = writer._jwrite.curmode().name() if hasattr(writer, "_jwrite") else writer._write.mode
    return mode or "error"


# -- streaming writes -----------------------------------------------------------------------------------------


def _start(start: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(start)
    def starts(
        self: Any,
        path: str | None = None,
        format: str | None = None,
        outputMode: str | None = None,
        partitionBy: Any = None,
        queryName: str | None = None,
        **options: Any,
    ) -> Any:
        given = _settings_of(self)
        mode = outputMode or given["mode"]
        if is_ours(format or given["format"]) and str(mode).lower() == "update":
            settings = {
                **given["options"],
                **{name: value for name, value in options.items() if value is not None},
            }
            self.foreachBatch(UpdateWriter(settings))
            format = None  # saying it again would undo foreachBatch
        with _explained():
            return start(self, path, format, outputMode, partitionBy, queryName, **options)

    return starts


def _settings_of(writer: Any) -> dict[str, Any]:
    """The settings of a streaming writer, which cannot be read back from Java."""
    found: dict[str, Any] = writer.__dict__.setdefault(
        "_ottla_settings", {"format": None, "mode": None, "options": {}}
    )
    return found


def _noting(method: Callable[..., Any], note: Callable[..., None]) -> Callable[..., Any]:
    @functools.wraps(method)
    def noted(self: Any, *values: Any, **named: Any) -> Any:
        made = method(self, *values, **named)
        note(_settings_of(self), *values, **named)
        return made

    return noted


def _note_format(given: dict[str, Any], source: str) -> None:
    given["format"] = source


def _note_mode(given: dict[str, Any], outputMode: str) -> None:
    given["mode"] = outputMode


def _note_option(given: dict[str, Any], key: str, value: Any) -> None:
    if value is not None:
        given["options"][key] = value


def _note_options(given: dict[str, Any], **options: Any) -> None:
    for name, value in options.items():
        _note_option(given, name, value)


def _note_other_sink(given: dict[str, Any], *_: Any, **__: Any) -> None:
    """foreach and foreachBatch are sinks of their own, whatever the format was before."""
    given["format"] = None


class UpdateWriter:
    """Rows that changed, into a topic: each micro-batch is a write of its own, by the query's id and its number.

    A function of foreachBatch. It is called in the driver, or, with Spark Connect, in a process of the server.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._query_id: str | None = None

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        given = {name.lower(): value for name, value in self._settings.items()}
        writer = batch.write.format(FORMAT).mode("append").options(**self._settings)
        if str(given.get("ottla.delivery", "exactly_once")).lower().replace("-", "_") == "exactly_once":
            self._query_id = self._query_id or query_id_of(batch, given.get("checkpointlocation"))
            writer = writer.option("ottla.write.id", self._query_id)
            writer = writer.option("ottla.write.version", str(batch_id))
        writer.save()


def query_id_of(batch: DataFrame, checkpoint: str | None) -> str:
    """Spark's id of the query whose micro-batch this is: the same over all restarts from one checkpoint."""
    session: Any = batch.sparkSession
    if hasattr(session, "_jsparkSession"):
        found = session.sparkContext.getLocalProperty(_QUERY_ID)
    elif checkpoint is not None:
        # Spark Connect gives a batch a session of its own, which knows neither the context nor the query.
        found = read_query_id(session, checkpoint)
    else:
        found = None
    if not found:
        raise RuntimeError(
            f"Spark does not say which query this is, so nothing is written (checkpointLocation is {checkpoint!r})"
        )
    return str(found)


def read_query_id(session: Any, checkpoint: str) -> str:
    """The id as Spark keeps it in a checkpoint, read by Spark, since it may be where only Spark can read."""
    (row,) = session.read.text(f"{checkpoint}/metadata").collect()
    return str(json.loads(row[0])["id"])


# -- a Python without Ottla -----------------------------------------------------------------------------------


def _load(load: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(load)
    def loads(self: Any, *values: Any, **named: Any) -> Any:
        with _explained():
            return load(self, *values, **named)

    return loads


@contextmanager
def _explained() -> Iterator[None]:
    """Where Spark does not find the source, or its Python lacks a package: what to set."""
    try:
        yield
    except Exception as error:  # PySpark's, or py4j's where it has none of its own for the one in Java
        what = _NOT_FOUND.search(str(error))
        if what is None:
            raise
        raise SourceNotFound(f'format("{FORMAT}"): {what[1] or what[2]}. {_advice()}') from None


_NOT_FOUND = re.compile(
    rf"\[DATA_SOURCE_NOT_FOUND\] (Failed to find the data source: {FORMAT})\b"
    r"|\[PYTHON_DATA_SOURCE_ERROR\](?s:.*)(No module named '(?:ottla|pyarrow)\b[\w.]*')"
)


def _advice() -> str:
    asked = os.environ.get("PYSPARK_DRIVER_PYTHON") or os.environ.get("PYSPARK_PYTHON")
    used = (
        f"PYSPARK_PYTHON={asked}"
        if asked
        else f"the first python3 on the PATH ({python_on_path() or 'none'})"
    )
    return (
        f"Spark looks for data sources with {used}. Set PYSPARK_PYTHON, before Spark starts, to a Python that has "
        f"Ottla, PySpark and PyArrow, on every machine of the cluster; here that is {sys.executable}"
    )


# -- where it is put in -----------------------------------------------------------------------------------------


def _adapt_batch(module: ModuleType) -> None:
    module.DataFrameWriter.save = _save(module.DataFrameWriter.save)
    module.DataFrameReader.load = _load(module.DataFrameReader.load)


def _adapt_stream(module: ModuleType) -> None:
    writer = module.DataStreamWriter
    writer.format = _noting(writer.format, _note_format)
    writer.outputMode = _noting(writer.outputMode, _note_mode)
    writer.option = _noting(writer.option, _note_option)
    writer.options = _noting(writer.options, _note_options)
    writer.foreach = _noting(writer.foreach, _note_other_sink)
    writer.foreachBatch = _noting(writer.foreachBatch, _note_other_sink)
    writer.start = _start(writer.start)
    module.DataStreamReader.load = _load(module.DataStreamReader.load)


_ADAPTED: dict[str, Callable[[ModuleType], None]] = {
    "pyspark.sql.readwriter": _adapt_batch,
    "pyspark.sql.connect.readwriter": _adapt_batch,
    "pyspark.sql.streaming.readwriter": _adapt_stream,
    "pyspark.sql.connect.streaming.readwriter": _adapt_stream,
}


def adapt() -> None:
    """Once a process, before or after PySpark is imported."""
    if any(isinstance(finder, _AfterImport) for finder in sys.meta_path):
        return
    for name, change in _ADAPTED.items():
        if name in sys.modules:
            change(sys.modules[name])
    sys.meta_path.insert(0, _AfterImport())


class _AfterImport(MetaPathFinder):
    """Finds those modules as Python does, and changes them when they have been executed."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        change = _ADAPTED.get(fullname)
        spec = PathFinder.find_spec(fullname, path, target) if change is not None else None
        if change is not None and spec is not None and spec.loader is not None:
            spec.loader = _ChangingLoader(spec.loader, change)
        return spec


class _ChangingLoader(Loader):
    def __init__(self, loader: Loader, change: Callable[[ModuleType], None]) -> None:
        self._loader = loader
        self._change = change

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._change(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)  # its source, for tracebacks
