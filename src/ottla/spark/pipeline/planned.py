"""`check --plan`: what every stream of a file would read, keep and write, and whether its checkpoint goes with that.

The plan is the one that a run has, over inputs that have the columns of the real ones and no rows. What state it keeps
is asked of Spark itself: the plan is run for one micro-batch of nothing, into nothing, with a checkpoint in a temporary
directory, where Spark writes the schemas of the state; then that is deleted. Rules: nothing is made, neither topic,
table, subject, checkpoint, group nor directory; brokers are asked for metadata, registries for schemas that are there.
What is not reached is a note, what a run would fail on is a problem, each one line. A secret that is not given is
stood in for by a text of chance: no plan depends on it, and one that shows it is found out.
"""

from __future__ import annotations

import secrets as chance
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ottla.client.registry.client import RegistryError, UnknownSchemaError
from ottla.model.clock import moment_ms
from ottla.model.errors import KafkaError
from ottla.spark.connection import OptionError
from ottla.spark.pipeline.checkpoints import checkpoint
from ottla.spark.pipeline.checkpoints.checkpoint import Checkpoint, Operator
from ottla.spark.pipeline.declare import (
    START,
    DeclarationError,
    DeclaredPipeline,
    Delta,
    Iceberg,
    Parquet,
    PipelineError,
    Source,
    Stream,
    Topic,
    listed,
    local_path,
)
from ottla.spark.pipeline.discreet import discreetly
from ottla.spark.pipeline.frames import REFUSED, Context, encode, read, value_columns, with_secrets
from ottla.spark.pipeline.given import Secrets, declared_secrets, find_secrets
from ottla.spark.pipeline.running import first_line, look
from ottla.spark.pipeline.topics import admin
from ottla.spark.progress import CheckpointError
from ottla.spark.source.options import for_batch, for_stream, source_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from ottla.spark.pipeline.load import Pipeline

# Spark's own source of counted micro-batches: each stands for a topic, known by the time that it says it starts at.
COUNTING = "rate-micro-batch"
STEP_MS = 1_000_000
TIMEOUT_S = 300
Columns = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Input:
    """What a stream reads: under which name, what, and the columns that it has."""

    name: str
    what: str
    columns: Columns


@dataclass(frozen=True)
class Output:
    """What would be written, and how."""

    what: str
    how: str
    columns: Columns


@dataclass(frozen=True)
class Planned:
    """One stream as it would run."""

    stream: str
    inputs: tuple[Input, ...] = ()
    output: Output | None = None
    state: tuple[Operator, ...] = ()
    checkpoint: str = ""
    fits: bool | None = None  # None: there is nothing to compare with
    problems: tuple[str, ...] = field(default_factory=tuple)
    notes: tuple[str, ...] = field(default_factory=tuple)

    def document(self) -> dict[str, Any]:
        """As JSON."""
        made = asdict(self)
        for one in (*made["inputs"], *([made["output"]] if made["output"] else [])):
            one["columns"] = [{"name": name, "type": kind} for name, kind in one["columns"]]
        made["state"] = [_document(one) for one in self.state]
        made["inputs"], made["problems"], made["notes"] = (
            list(made[n]) for n in ("inputs", "problems", "notes")
        )
        return made


def _document(operator: Operator) -> dict[str, Any]:
    stores = [
        {
            "store": store.name,
            "rows": family.name,
            "key": [{"name": name, "type": kind} for name, kind in checkpoint.columns(family.key)],
            "value": [{"name": name, "type": kind} for name, kind in checkpoint.columns(family.value)],
        }
        for store in operator.stores
        for family in store.families
    ]
    return {"operator": operator.number, "name": operator.name, "kind": operator.kind, "stores": stores}


class Empty:
    """Inputs without rows. In its streams each topic has a number, by which Spark's order of them is known."""

    def __init__(self, spark: SparkSession, secrets: Mapping[str, str]) -> None:
        self._spark = spark
        self._secrets = secrets
        self.topics: list[str] = []

    def records(self, topic: Topic, settings: Mapping[str, Any], *, stream: bool) -> DataFrame:
        from pyspark.sql import functions as F
        from pyspark.sql.types import DataType

        from ottla.spark.source.arrow import ddl

        options = source_options({name.lower(): str(value) for name, value in settings.items()})
        (for_stream if stream else for_batch)(options)
        columns: Any = DataType.fromDDL(ddl(options.columns))
        if not stream:
            return self._spark.createDataFrame([], columns)
        counted = self._spark.readStream.format(COUNTING).options(
            rowsPerBatch="1", numPartitions="1", startTimestamp=str(len(self.topics) * STEP_MS)
        )
        self.topics.append(topic.name)
        # Spark must not see that there will be nothing, nor that a column is always the same: it would plan otherwise.
        none = counted.load().where("value < 0")
        parsed = none.select(F.from_json(F.col("value").cast("string"), columns).alias("record"))
        return parsed.select("record.*")

    def table(self, source: Source) -> DataFrame:
        if isinstance(source, Parquet):
            columns: Any = self._spark.read.options(**source.options).parquet(source.path).schema
            return self._spark.createDataFrame([], columns)
        assert isinstance(source, Delta | Iceberg)
        with discreetly(self._secrets):
            return self._spark.createDataFrame(_without_rows(with_secrets(source, self._secrets)))


def _without_rows(source: Delta | Iceberg) -> Any:
    from ottla.spark.pipeline.lake.common import as_stored

    if isinstance(source, Delta):
        import pyarrow as pa
        from deltalake import DeltaTable, QueryBuilder

        table = DeltaTable(source.path, storage_options=dict(source.options) or None)
        found = pa.table(QueryBuilder().register("t", table).execute("select * from t limit 0"))
        return as_stored(found).slice(0, 0)
    from ottla.spark.pipeline.lake.iceberg import open_catalog

    warehouse = source.catalog.get("warehouse")
    place = None if warehouse is None else local_path(warehouse)
    is_ours = not {"type", "uri", "py-catalog-impl"} & source.catalog.keys()
    if is_ours and place is not None and not (place / "catalog.db").is_file():
        # To open it would make it.
        raise DeclarationError(f"there is no catalog in {place}, so no table {source.table}")
    return as_stored(open_catalog(source).load_table(source.table).schema().as_arrow().empty_table())


# -- all streams ------------------------------------------------------------------------------------------------------


def with_some_secrets(pipeline: Pipeline, secrets: Secrets) -> tuple[Pipeline, list[str]]:
    """The pipeline with those of its secrets that are to be had, and with something else for the others: notes."""
    found, missing = find_secrets(pipeline, secrets)
    stood_in = {one.name: f"not-given-{chance.token_hex(8)}" for _, _, one in declared_secrets(pipeline)}
    return replace(pipeline, secrets=stood_in | found), [f"{one} (the check does without)" for one in missing]


def look_at(
    pipeline: DeclaredPipeline,
    spark: SparkSession,
    bootstrap: str,
    checkpoints: str,
    options: Mapping[str, str] | None = None,
    state_dir: str | None = None,
) -> list[Planned]:
    """Every stream, whatever is wrong with the others. `state_dir`: as it has to be said in commands, if at all."""
    found = []
    for stream in pipeline.streams:
        empty = Empty(spark, pipeline.secrets)
        context = Context(pipeline, spark, bootstrap, options or {}, stand_in=empty)
        found.append(_Look(context, empty, stream, checkpoints, state_dir).made())
    return found


class _Look:
    """At one stream: what it finds wrong, and what is worth a word, comes together here."""

    def __init__(
        self, context: Context, empty: Empty, stream: Stream, checkpoints: str, state_dir: str | None
    ) -> None:
        self._context = context
        self._empty = empty
        self._stream = stream
        self._checkpoints = checkpoints
        self._state_dir = state_dir
        self._problems: list[str] = []
        self._notes: list[str] = []

    def made(self) -> Planned:
        pipeline, stream = self._context.pipeline, self._stream
        foreign = list(checkpoint.foreign(pipeline, stream, self._checkpoints))
        found = Planned(stream.name, inputs=tuple(self._inputs()))
        result = self._result() if not self._problems else None
        if result is not None:
            found = replace(
                found, output=Output(str(stream.out), _how(stream), _columns(result.drop(REFUSED).schema))
            )
            self._ask_registry(result)
            ran = self._ran(result)
            if ran is not None:
                found = replace(found, state=ran.operators)
                # Whether it fits says nothing where it is another's.
                found = found if foreign else self._compared(found, ran)
        if foreign:
            found = replace(found, checkpoint="is not one that this stream can go on from", fits=False)
            for what in foreign:
                self._problem(what)
        return replace(
            found, problems=tuple(dict.fromkeys(self._problems)), notes=tuple(dict.fromkeys(self._notes))
        )

    def _problem(self, what: str) -> None:
        self._problems.append(str(self._context.pipeline.problem(self._stream, "", what)))

    def _inputs(self) -> Iterator[Input]:
        pipeline = self._context.pipeline
        # Of its own: the numbers are those of the plan that is looked at later.
        group = pipeline.group_of(self._stream)
        context = replace(
            self._context.for_query(group), stand_in=Empty(self._context.spark, pipeline.secrets)
        )
        for declared, parameter, source in pipeline.inputs(self._stream):
            where = pipeline.where(declared, parameter)
            try:
                frame = read(context, source, tolerant=True, where=where)
                yield Input(parameter, _input_text(source), _columns(frame.schema))
            except PipelineError as error:
                self._problems += map(str, error.problems)
            except Exception as error:  # noqa: BLE001 - a table, a registry, options: whatever keeps it from being read
                self._problems.append(f"{where}: {source} cannot be read: {_said(error)}")

    def _result(self) -> DataFrame | None:
        try:
            return look(self._context, self._stream)
        except PipelineError as error:
            self._problems += map(str, error.problems)
        except Exception as error:  # noqa: BLE001 - the user's function may raise anything
            self._problem(f"{_said(error)} (in a check, inputs have no rows)")
        return None

    def _ask_registry(self, result: DataFrame) -> None:
        """Whether the schema that would be registered is there."""
        from ottla.spark.pipeline.values.registry import ProtobufFramed, registry_codec

        sink = self._stream.out
        if not isinstance(sink, Topic) or sink.registry is None:
            return
        asking = replace(sink, registry_options={**sink.registry_options, "auto.register": "false"})
        try:
            values = registry_codec(asking, sink.write_format, self._context.pipeline.base_dir, writing=True)
            if isinstance(values, ProtobufFramed):
                values.register()
            else:
                values.register(value_columns(sink, result.schema, values))
        except UnknownSchemaError as error:
            if sink.registry_options.get("auto.register") == "false":
                self._problem(str(error))
            else:
                self._notes.append(
                    "the registry does not have the schema of the result yet: a run registers it"
                )
        except (RegistryError, DeclarationError) as error:
            self._notes.append(f"whether the schema of the result is registered is not known: {error}")
        else:
            self._notes.append("the registry has the schema of the result")

    def _ran(self, result: DataFrame) -> Checkpoint | None:
        """What Spark has written of the plan, after a micro-batch of nothing."""
        stream, sink = self._stream, self._stream.out
        if not _is_of_ours(result):
            self._notes.append(
                "the function reads a stream of its own, so what state Spark keeps is not looked at"
            )
            return None
        if isinstance(sink, Topic):
            plain = replace(stream, out=replace(sink, registry=None, registry_options={}, subject=None))
            result = encode(self._context.pipeline, plain, result)
        with tempfile.TemporaryDirectory(prefix="ottla-plan-", ignore_cleanup_errors=True) as directory:
            writer = result.writeStream.format("noop").outputMode(stream.mode).trigger(availableNow=True)
            try:
                query = writer.option("checkpointLocation", directory).start()
                if not query.awaitTermination(TIMEOUT_S):
                    query.stop()
                    self._notes.append(
                        f"Spark has not planned it within {TIMEOUT_S} s: its state is not known"
                    )
                    return None
                error: Exception | None = query.exception()
                found = checkpoint.read(Path(directory))
            except Exception as refused:  # noqa: BLE001 - Spark refuses in many ways
                error, found = refused, None
            if error is not None or found is None:
                self._problem(f"Spark refuses it: {first_line(error) if error else 'it ran no micro-batch'}")
                return None
            return found

    def _compared(self, found: Planned, ran: Checkpoint) -> Planned:
        root = local_path(self._checkpoints)
        if root is None:
            return replace(
                found, checkpoint=f"in {self._checkpoints}, which only Spark reaches: not compared"
            )
        path = root / self._stream.name
        try:
            there = checkpoint.read(path)
        except CheckpointError as error:
            self._problem(str(error))
            return replace(found, checkpoint="cannot be read", fits=False)
        if there is None:
            return replace(found, checkpoint=f"{path}: none yet")
        wrong = [
            *_different_sources(there, self._topics_of(ran)),
            *checkpoint.differences(there.operators, ran.operators),
        ]
        if wrong:
            self._problem(self._ways_on(path, there, wrong))
            return replace(found, checkpoint=f"{path}: does not fit this code", fits=False)
        self._notes += [
            f"{what}: Spark goes on with it, and rows that the old code has left count as what the new one says"
            for what in checkpoint.renamed(there.operators, ran.operators)
        ]
        self._notes += _kept(there, self._context.spark)
        if not there.is_complete:
            self._notes.append(f"micro-batch {there.batch} was begun and not finished: a run begins with it")
        upto = (
            "nothing finished yet"
            if there.committed is None
            else f"finished up to micro-batch {there.committed}"
        )
        return replace(found, checkpoint=f"{path}: fits, {upto}", fits=True)

    def _topics_of(self, ran: Checkpoint) -> list[str]:
        """The topics of the plan's sources, in Spark's order of them."""
        stamps = [(offsets or {}).get("timestamp") for offsets in ran.sources]
        return [self._empty.topics[stamp // STEP_MS] for stamp in stamps if isinstance(stamp, int)]

    def _ways_on(self, path: Path, there: Checkpoint, wrong: list[str]) -> str:
        """The one message: what does not fit, and what can be done."""
        name, place = (
            self._context.pipeline.name,
            f" --state-dir {self._state_dir}" if self._state_dir else "",
        )
        stream = f" --stream {self._stream.name}"
        since = _since(self._context.pipeline, self._stream, there)
        return (
            f"the state in {path} does not fit this code, and Spark would refuse to go on: {'; '.join(wrong)}. "
            f"Ways on: (1) `ottla pipeline replay {name} --from {since}{stream}{place}` makes new state and a new "
            "output of what the topics still have, then point readers to it; (2) stop it, "
            f"`ottla pipeline reset {name}{stream}{place}`, and start it: it begins where start= says and writes its "
            "rows again; (3) go on with the code that this state is of. "
            f"`ottla pipeline savepoint {name}{place}` keeps a copy from which that code can start again"
        )


def _since(pipeline: DeclaredPipeline, stream: Stream, there: Checkpoint) -> str:
    """From when on a replay makes what this stream has made: its inputs' start."""
    starts = [one.start for _, _, one in pipeline.inputs(stream) if isinstance(one, Topic) and not one.table]
    if any(start == START[0] for start in starts) or not starts:
        return "1970-01-01T00:00"
    times = [moment_ms(start) for start in starts if start not in START]
    if len(times) < len(starts) and there.began_ms is not None:
        times.append(there.began_ms)  # from the end on, at that time
    at = datetime.fromtimestamp(min(times, default=0) // 1000, UTC)
    return at.strftime("%Y-%m-%dT%H:%M:%S")


def _different_sources(there: Checkpoint, topics: list[str]) -> Iterator[str]:
    """Spark gives offsets back by the sources' order alone."""
    if len(there.sources) != len(topics):
        yield f"the checkpoint is of {len(there.sources)} sources, and the code has {len(topics)} ({listed(topics)})"
        return
    for number, (was, now) in enumerate(zip(there.topics, topics, strict=True)):
        if was and now not in was:
            yield f"source {number} was topic {listed(sorted(was))} and is topic {now} now"


def _kept(there: Checkpoint, spark: SparkSession) -> Iterator[str]:
    """Settings that a checkpoint keeps, whatever a later run is told."""
    if not there.operators:
        return
    was, now = there.conf.get(checkpoint.PROVIDER), spark.conf.get(checkpoint.PROVIDER, None)
    if was is not None and now is not None and was != now:
        yield f"the checkpoint keeps {checkpoint.PROVIDER}={was}, not {now}"
    parts = {str(store.partitions) for one in there.operators for store in one.stores}
    yield (
        f"the checkpoint keeps {listed(sorted(parts))} partitions of state, whatever {checkpoint.PARTITIONS} says"
    )


def _is_of_ours(result: DataFrame) -> bool:
    """Whether all streams of a plan are those that stand for topics."""
    plan = result._jdf.queryExecution().analyzed().toString()
    streams = [line for line in plan.splitlines() if "StreamingRelation" in line]
    return bool(streams) and all(COUNTING in line for line in streams)


def _said(error: Exception) -> str:
    text = first_line(error)
    plain = isinstance(error, DeclarationError | RegistryError | OptionError)
    return text if plain else f"{type(error).__name__}: {text}"


def _columns(schema: StructType) -> Columns:
    return tuple(checkpoint.columns(schema.jsonValue()))


def _input_text(source: Source) -> str:
    if not isinstance(source, Topic):
        return str(source)
    if source.table:
        return f"{source} as a table ({source.read_format})"
    return f"{source} ({source.read_format}, from {source.start})"


def _how(stream: Stream) -> str:
    sink = stream.out
    parts = [stream.mode]
    if isinstance(sink, Topic):
        parts.append(f"values as {sink.write_format}" + (" of a registry" if sink.registry else ""))
        parts.append(f"key {', '.join(sink.key)}" if sink.key else "no key")
    elif isinstance(sink, Delta | Iceberg) and sink.key:
        parts.append(f"upserts by {', '.join(sink.key)}")
    if isinstance(sink, Parquet | Delta) and sink.partition_by:
        parts.append(f"partitioned by {', '.join(sink.partition_by)}")
    if stream.dead_letter is not None:
        parts.append(f"dead letters to {stream.dead_letter}")
    return ", ".join(parts)


# -- brokers ----------------------------------------------------------------------------------------------------------


def topic_notes(
    pipeline: Pipeline, bootstrap: str, options: Mapping[str, str], *, create_all: bool = False
) -> list[str]:
    """Topics that are not there, one line each; brokers that do not answer are one line, too."""
    from ottla.client.errors import ConfigError

    names = sorted(pipeline.topics())
    try:
        with admin(bootstrap, options) as client:
            described = client.describe_topics(names)
    except (KafkaError, ConfigError, OptionError, OSError) as error:
        return [f"whether the topics are there is not known: {first_line(error)}"]
    return [
        _missing(pipeline, name, create_all)
        for name, found in described.items()
        if isinstance(found, KafkaError)
    ]


def _missing(pipeline: Pipeline, name: str, create_all: bool) -> str:
    uses = pipeline.topics()[name]
    stream, parameter, _ = uses[0]
    declared = next((topic.partitions for _, _, topic in uses if topic.partitions is not None), None)
    where = pipeline.where(stream, parameter)
    if declared is not None:
        return f"{where}: there is no topic {name!r}; a run makes it with partitions={declared}"
    means = "a run makes it" if create_all else "create it, declare partitions=, or run with --create-topics"
    return f"{where}: there is no topic {name!r}: {means}"
