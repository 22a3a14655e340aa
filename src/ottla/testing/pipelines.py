"""Tests of pipelines, in seconds: their functions on given rows, as a batch and as a stream, or whole with a broker.

    pytest_plugins = ["ottla.testing.pipelines"]

    def test_counts(pipelines):
        rows = [{"page": "/home", "at": "2026-11-01T12:00:10Z"}]
        assert pipelines.batch(per_minute, clicks=rows)[0]["count"] == 1

The rows of an input have the columns that its topic declares, as JSON has them (times as text, or datetimes; bytes as
bytes), so what a test gives is parsed as records are. One Spark session serves all tests of a process; without a broker
none is started.

Owner: the fixtures are pytest's, for the session.
"""

from __future__ import annotations

import base64
import inspect
import json
import os
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ottla.model.ids import TopicPartition
from ottla.spark.pipeline.declare import (
    SESSION_PARAMETER,
    Declared,
    DeclaredPipeline,
    Stream,
    Topic,
    View,
    parameters,
)
from ottla.spark.pipeline.parameters import Param, Secret
from ottla.testing.broker import Broker

Row = Mapping[str, Any]
Rows = Sequence[Row]
QUERY_TIMEOUT_S = 120
READ_TIMEOUT_S = 30


class Record(NamedTuple):
    """What a topic holds: the value as it was written, and as JSON if it is that."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]

    def json(self) -> Any:
        return None if self.value is None else json.loads(self.value)


class Pipelines:
    """Runs functions of pipelines on rows."""

    def __init__(self, spark: Any) -> None:
        self.spark = spark

    def batch(self, declared: Declared, /, **inputs: Any) -> list[dict[str, Any]]:
        """The rows that a stream or view makes of these inputs, taken as a whole.

        An input is a list of rows, or a DataFrame; those of views that the function reads are named as there. What is
        not given of parameters (`param`) is their default.
        """
        with tempfile.TemporaryDirectory(prefix="ottla-") as directory:
            files = Path(directory)

            def read(source: Any, name: str) -> Any:
                return self._static(declared, source, name, inputs[name], files)

            return _dicts(self._call(declared, inputs, read).collect())

    def stream(self, declared: Declared, /, **inputs: Any) -> list[dict[str, Any]]:
        """The rows that it writes when these micro-batches come one after the other: an input is a list of them, each
        a list of rows. What the watermark holds back at the end has not been written.

        Inputs that are no topics, and topics with `table=True`, are tables: plain rows.
        """
        mode = declared.mode if isinstance(declared, Stream) else "append"
        with tempfile.TemporaryDirectory(prefix="ottla-") as directory:
            files = Path(directory)

            def read(source: Any, name: str) -> Any:
                given = inputs[name]
                if not isinstance(source, Topic) or source.table or not isinstance(given, list | tuple):
                    return self._static(declared, source, name, given, files)
                return self._streamed(declared, source, name, given, files)

            result = self._call(declared, inputs, read)
            table = f"ottla_{uuid.uuid4().hex}"
            query = result.writeStream.format("memory").queryName(table).outputMode(mode).start()
            try:
                query.processAllAvailable()
            finally:
                query.stop()
            return _dicts(self.spark.table(table).collect())

    def run(
        self, pipeline: DeclaredPipeline | str | Path, topics: Mapping[str, Iterable[Any]]
    ) -> dict[str, list[Record]]:
        """A whole pipeline over what is in topics, with a broker of its own; what its output topics hold afterwards.

        A value is bytes, text, None, or anything that is written as JSON; a tuple is a key and a value.
        """
        from ottla.spark.pipeline.load import Pipeline, load
        from ottla.spark.pipeline.topics import create_topics

        loaded = pipeline if isinstance(pipeline, DeclaredPipeline) else load(pipeline)
        assert isinstance(loaded, Pipeline), "made by load()"
        with Broker() as broker, tempfile.TemporaryDirectory(prefix="ottla-") as state:
            address = broker.bootstrap_servers
            create_topics(loaded, address, {}, create_all=True)
            _produce(address, topics)
            for query in loaded.start(self.spark, address, state, available_now=True):
                if not query.awaitTermination(QUERY_TIMEOUT_S):
                    query.stop()
                    raise TimeoutError(f"{query.name} has not ended within {QUERY_TIMEOUT_S} s")
            written = {
                sink.name
                for stream in loaded.streams
                for sink in (stream.out, stream.dead_letter)
                if isinstance(sink, Topic)
            }
            return {name: _read(address, name) for name in sorted(written)}

    def _call(self, declared: Declared, inputs: Mapping[str, Any], read: Callable[[Any, str], Any]) -> Any:
        given: dict[str, Any] = {}
        used: set[str] = set()
        self._gather(declared, inputs, read, given, used)
        unknown = set(inputs) - used
        if unknown:
            wrong, known = ", ".join(sorted(unknown)), ", ".join(sorted(used))
            raise TypeError(f"{declared.name} has no input {wrong}; it has {known}")
        return declared.function(**given)

    def _gather(
        self,
        declared: Declared,
        inputs: Mapping[str, Any],
        read: Callable[[Any, str], Any],
        given: dict[str, Any],
        used: set[str],
    ) -> None:
        for name, default in parameters(declared.function).items():
            if name == SESSION_PARAMETER:
                given[name] = self.spark
            elif isinstance(default, Param | Secret):
                if name in inputs:
                    used.add(name)
                given[name] = inputs[name] if name in inputs else _standing(declared, name, default)
            elif name in inputs:
                used.add(name)
                given[name] = read(default, name)
            elif isinstance(default, View):
                theirs: dict[str, Any] = {}
                self._gather(default, inputs, read, theirs, used)
                given[name] = default.function(**theirs)
            else:
                raise TypeError(f"{declared.name}({name}): there are no rows for it")

    def _static(self, declared: Declared, source: Any, name: str, given: Any, files: Path) -> Any:
        if not isinstance(given, list | tuple):
            return given  # a DataFrame of theirs
        place = files / f"{name}.json"
        place.write_text(_lines(given))
        reader = self.spark.read
        if isinstance(source, Topic):
            reader = reader.schema(_columns(declared, source))
        return reader.json(str(place))

    def _streamed(
        self, declared: Declared, source: Topic, name: str, batches: Sequence[Rows], files: Path
    ) -> Any:
        place = files / name
        place.mkdir()
        for number, rows in enumerate(batches):
            if not isinstance(rows, list | tuple):
                raise TypeError(
                    f"{declared.name}({name}): a stream is a list of micro-batches, each a list of rows"
                )
            file = place / f"{number:06d}.json"
            file.write_text(_lines(rows))
            os.utime(file, (1_000_000_000 + number,) * 2)  # Spark reads the oldest first
        columns = _columns(declared, source)
        return self.spark.readStream.schema(columns).option("maxFilesPerTrigger", 1).json(str(place))


def _standing(declared: Declared, name: str, default: Param | Secret) -> Any:
    if isinstance(default, Param) and not default.is_required:
        return default.standing()
    raise TypeError(f"{declared.name}({name}): there is no value for it")


def _columns(declared: Declared, source: Topic) -> Any:
    from ottla.spark.pipeline.frames import input_columns

    file = inspect.getsourcefile(inspect.unwrap(declared.function))
    return input_columns(source, Path(file).parent if file else Path())


def _lines(rows: Iterable[Row]) -> str:
    return "".join(json.dumps(row, default=_as_json) + "\n" for row in rows)


def _as_json(value: Any) -> Any:
    """What Spark's JSON has these as."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, date | Decimal):
        return str(value)
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode()
    raise TypeError(f"{value!r} is nothing that a row can have")


def _dicts(rows: Iterable[Any]) -> list[dict[str, Any]]:
    return [row.asDict(recursive=True) for row in rows]


def _produce(address: str, topics: Mapping[str, Iterable[Any]]) -> None:
    from ottla.client import Producer

    with Producer(bootstrap_servers=address) as producer:
        for topic, values in topics.items():
            for given in values:
                key, value = given if isinstance(given, tuple) else (None, given)
                producer.send(topic, value=_bytes(value), key=_bytes(key))
        producer.flush()


def _bytes(value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else json.dumps(value, default=_as_json).encode()


def _read(address: str, topic: str) -> list[Record]:
    """All that is committed."""
    from ottla.client import Consumer

    settings = {"bootstrap.servers": address, "isolation.level": "read_committed"}
    with Consumer(settings) as consumer:
        partitions = [TopicPartition(topic, number) for number in consumer.partitions_for(topic)]
        consumer.assign(partitions)
        consumer.seek_to_beginning(partitions)
        ends = consumer.end_offsets(partitions)
        found: list[Record] = []
        deadline = time.monotonic() + READ_TIMEOUT_S
        while any(consumer.position(partition) < ends[partition] for partition in partitions):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{topic} could not be read within {READ_TIMEOUT_S} s")
            for records in consumer.poll(100.0).values():
                found += [Record(each.key, each.value, tuple(each.headers)) for each in records]
        return found


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """A session of this process alone, as small as it gets."""
    from ottla.spark.session import SHORT_LIVED, session

    made = session(
        "tests",
        "local[2]",
        conf={
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "1",
            "spark.driver.extraJavaOptions": SHORT_LIVED,
        },
    )
    yield made
    made.stop()


@pytest.fixture(scope="session")
def pipelines(spark: Any) -> Pipelines:
    """What tests of pipelines ask."""
    return Pipelines(spark)
