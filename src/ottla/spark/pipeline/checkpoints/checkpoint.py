"""What a checkpoint of Spark's says, read without Spark: how far it is, what state it holds, and whose it is.

    <checkpoint>/metadata                             the query's id, the same over all restarts
    <checkpoint>/offsets/N, commits/N                 micro-batch N was begun with these ends, was finished
    <checkpoint>/state/<operator>/_metadata/          the operator: its name, stores, number of partitions
    <checkpoint>/state/<operator>/0/.../schema        key and value of a store; `_stateSchema/` for transformWithState
    <checkpoint>/ottla.json                           ours: the pipeline and the stream that it belongs to

Rules: nothing of Spark's is changed here. Lengths that a file gives are checked before they are used; what cannot be
understood is a `CheckpointError`, one line with the file's name. Whether a state fits is judged as Spark judges it
when a query is started again (it was tried: tests/spark/pipeline/test_planned.py): the same operators in the same
places, the same types in the same order; names may change, and what may be null may become what may not. Owned by the
process that holds the pipeline's lock; whoever checks only reads.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ottla.model.durable import replace_file, unique_temporary
from ottla.spark.pipeline.declare import (
    DeclaredPipeline,
    Parquet,
    PipelineError,
    Stream,
    Topic,
    listed,
    local_path,
)
from ottla.spark.pipeline.frames import DEAD_LETTER_SUFFIX
from ottla.spark.progress import CheckpointError

OWNER = "ottla.json"
# Far more than any schema or list of offsets takes.
MAX_FILE_BYTES = 64_000_000
MAX_CHUNKS = 10_000
SERIALIZED_VOID = "-"
_LOGGED = re.compile(r"(\d{1,18})(\.compact)?")
PARTITIONS = "spark.sql.shuffle.partitions"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
# Where the value says nothing, Spark does not compare it.
KEY_ONLY = ("dedupe", "dedupeWithinWatermark")
KINDS = {
    "stateStoreSave": "aggregation",
    "sessionWindowStateStoreSaveExec": "session windows",
    "dedupe": "dropDuplicates",
    "dedupeWithinWatermark": "dropDuplicatesWithinWatermark",
    "symmetricHashJoin": "stream-stream join",
    "globalLimit": "limit",
    "flatMapGroupsWithState": "flatMapGroupsWithState",
    "applyInPandasWithState": "applyInPandasWithState",
    "transformWithStateExec": "transformWithState",
    "transformWithStateInPandasExec": "transformWithStateInPandas",
    "transformWithStateInPySparkExec": "transformWithState",
}


@dataclass(frozen=True)
class Family:
    """Rows of one kind in a store (a column family; without a name the whole store): Spark's schemas, as JSON."""

    name: str
    key: Any
    value: Any


@dataclass(frozen=True)
class Store:
    name: str
    partitions: int
    families: tuple[Family, ...]


@dataclass(frozen=True)
class Operator:
    """A stateful operator of a plan, by its place there."""

    number: int
    name: str
    stores: tuple[Store, ...] = ()
    properties: Mapping[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        return KINDS.get(self.name, self.name)

    def __str__(self) -> str:
        return f"{self.kind} (operator {self.number})"


@dataclass(frozen=True)
class Checkpoint:
    """One query's."""

    path: Path
    query_id: str | None
    batch: int | None  # the newest that was begun
    committed: int | None  # the newest that was finished
    began_ms: int | None  # when the oldest batch of those that are kept was begun
    sources: tuple[Mapping[str, Any] | None, ...]
    conf: Mapping[str, str]
    operators: tuple[Operator, ...]

    @property
    def is_complete(self) -> bool:
        """No micro-batch is begun and not finished."""
        return self.batch == self.committed

    @property
    def topics(self) -> tuple[frozenset[str], ...]:
        """The topics of each source, in Spark's order; empty for one that has none, or is not of ours."""
        return tuple(frozenset(_topics(offsets)) for offsets in self.sources)


def read(path: Path) -> Checkpoint | None:
    """What is there; None where no micro-batch has been begun yet. CheckpointError if that is not Spark's."""
    began = _batches(path / "offsets")
    if not began:
        return None
    finished = _batches(path / "commits")
    newest, oldest = path / "offsets" / str(began[-1]), path / "offsets" / str(began[0])
    return Checkpoint(
        path,
        query_id(path),
        began[-1],
        finished[-1] if finished else None,
        _time_of(oldest),
        tuple(_offsets(line) for line in _lines(newest)[2:]),
        {str(key): str(value) for key, value in dict(_head(newest).get("conf") or {}).items()},
        operators(path),
    )


def _head(file: Path) -> dict[str, Any]:
    """What stands before the offsets: a line with the format's version, one with the batch's time and settings."""
    lines = _lines(file)
    return _object(file, lines[1] if len(lines) > 1 else "")


def query_id(path: Path) -> str | None:
    """Spark's id of the query, of which transactional ids are made; none before its first start."""
    file = path / "metadata"
    try:
        found = _object(file, _text(file))
    except FileNotFoundError:
        return None
    if not isinstance(found.get("id"), str):
        raise CheckpointError(f"{file} cannot be read: is that a checkpoint of Spark's?")
    return str(found["id"])


def _batches(directory: Path) -> list[int]:
    if not directory.is_dir():
        return []
    return sorted(int(entry.name) for entry in directory.iterdir() if re.fullmatch(r"\d{1,18}", entry.name))


def _offsets(line: str) -> Mapping[str, Any] | None:
    if line.strip() in ("", SERIALIZED_VOID):
        return None
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _topics(offsets: Mapping[str, Any] | None) -> Iterator[str]:
    for topic, places in (offsets or {}).items():
        if isinstance(places, Mapping):
            yield topic


def _time_of(file: Path) -> int | None:
    """When a micro-batch was begun; unknown where a running query has just dropped the file."""
    try:
        found = _head(file).get("batchTimestampMs")
    except CheckpointError:
        return None
    return found if isinstance(found, int) else None


# -- files of Spark's -------------------------------------------------------------------------------------------------


def _text(path: Path) -> str:
    return _bytes(path).decode("utf-8", "replace")


def _bytes(path: Path) -> bytes:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise CheckpointError(
                f"{path} has more than {MAX_FILE_BYTES:,} bytes: is that a checkpoint of Spark's?"
            )
        return path.read_bytes()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror or error}") from None


def _lines(path: Path) -> list[str]:
    try:
        return _text(path).split("\n")
    except FileNotFoundError:
        raise CheckpointError(f"{path} went away while it was read: does the pipeline run?") from None


def _object(path: Path, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise CheckpointError(f"{path} cannot be read: is that a checkpoint of Spark's?")
    return found


def operators(path: Path) -> tuple[Operator, ...]:
    """The stateful operators, in the order of their numbers."""
    state = path / "state"
    numbers = (
        sorted(int(entry.name) for entry in state.iterdir() if entry.name.isdecimal())
        if state.is_dir()
        else []
    )
    found = (_operator(state / str(number)) for number in numbers)
    return tuple(one for one in found if one is not None)


def _operator(directory: Path) -> Operator | None:
    versions = _batches(directory / "_metadata" / "v2")
    file = (
        directory / "_metadata" / "v2" / str(versions[-1])
        if versions
        else directory / "_metadata" / "metadata"
    )
    try:
        lines = _text(file).split("\n")
    except FileNotFoundError:
        return None  # of a Spark that wrote none: then it does not compare either
    found = _object(file, lines[1] if len(lines) > 1 else "")
    try:
        about = found["operatorInfo"]
        stores = tuple(_store(directory, store) for store in found["stateStoreInfo"])
        properties = json.loads(found.get("operatorPropertiesJson") or "{}")
        made = Operator(int(about["operatorId"]), str(about["operatorName"]), stores, properties)
        _variables(made)
        return made
    except (KeyError, TypeError, ValueError, AttributeError):
        raise CheckpointError(f"{file} cannot be read: it is not what Spark 4 writes") from None


def _store(directory: Path, about: Mapping[str, Any]) -> Store:
    name = str(about["storeName"])
    paths = about.get("stateSchemaFilePaths") or []
    if paths:
        # It is named by where it was made; the checkpoint may have been moved.
        file = directory / "_stateSchema" / name / str(paths[-1]).rsplit("/", 1)[-1]
    else:
        file = directory / "0" / ("" if name == "default" else name) / "_metadata" / "schema"
    try:
        families = tuple(schema_file(_bytes(file)))
    except FileNotFoundError:
        families = ()
    except (CheckpointError, ValueError, struct.error) as error:
        raise CheckpointError(f"{file} cannot be read: {error}") from None
    return Store(name, int(about["numPartitions"]), families)


def schema_file(data: bytes) -> Iterator[Family]:
    """A file of state schemas, in any of the three ways in which Spark has written them."""
    reader = _Reader(data)
    version = reader.text()
    if version == "v1":
        yield Family("", json.loads(reader.text()), json.loads(reader.text()))
    elif version == "v2":
        yield Family("", json.loads(reader.chunks()), json.loads(reader.chunks()))
    elif version == "v3":
        for _ in range(reader.count(MAX_CHUNKS)):
            name = reader.text()
            reader.take(2)
            key = json.loads(reader.chunks())
            reader.take(2)
            value = json.loads(reader.chunks())
            reader.chunks(), reader.chunks()  # how keys are encoded
            yield Family(name, key, value)
    else:
        raise CheckpointError(f"state schemas of version {version!r} are not known here")


class _Reader:
    """Java's DataInput, of which Spark's schema files are made."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int) -> bytes:
        if size > len(self._data) - self._at:
            raise CheckpointError("it ends too early")
        self._at += size
        return self._data[self._at - size : self._at]

    def text(self) -> str:
        return self.take(struct.unpack(">H", self.take(2))[0]).decode("utf-8", "replace")

    def count(self, limit: int) -> int:
        number = int(struct.unpack(">i", self.take(4))[0])
        if not 0 <= number <= limit:
            raise CheckpointError(f"{number} is no number of pieces")
        return number

    def chunks(self) -> str:
        return "".join(self.text() for _ in range(self.count(MAX_CHUNKS)))


# -- does a state fit -------------------------------------------------------------------------------------------------


def differences(stored: Sequence[Operator], planned: Sequence[Operator]) -> list[str]:
    """Why a query of these operators could not go on with that state; none if Spark takes it."""
    old, new = {one.number: one for one in stored}, {one.number: one for one in planned}
    if {number: one.name for number, one in old.items()} != {number: one.name for number, one in new.items()}:
        return [f"the state is of {_named(stored)}, and the code has {_named(planned)}"]
    return [what for number in sorted(old) for what in _different_stores(old[number], new[number])]


def _named(found: Sequence[Operator]) -> str:
    return listed(one.kind for one in sorted(found, key=lambda one: one.number)).replace(
        "none", "no operator"
    )


def _different_stores(old: Operator, new: Operator) -> Iterator[str]:
    """A store that only one of them has is none that a row of the other is looked for in."""
    known = {store.name: store for store in old.stores}
    for name in ("timeMode", "outputMode"):
        before, after = old.properties.get(name), new.properties.get(name)
        if before is not None and after is not None and before != after:
            yield f"{new}: its {name} was {before} and is {after} now"
    kinds = _variables(old)
    for name, kind in _variables(new).items():
        if kinds.get(name, kind) != kind:
            yield f"{new}: its variable {name} was a {kinds[name]} and is a {kind} now"
    for store in new.stores:
        if store.name in known:
            yield from _different_families(old, known[store.name], store)
        else:
            yield f"{new}: the state has no store {store.name}"


def _variables(operator: Operator) -> dict[str, str]:
    """Of transformWithState: the names of its variables, and of what kind they are."""
    found = operator.properties.get("stateVariables") or []
    return {str(one.get("stateName")): str(one.get("stateVariableType")) for one in found}


def _different_families(operator: Operator, old: Store, new: Store) -> Iterator[str]:
    known = {family.name: family for family in old.families}
    for family in new.families:
        before = known.get(family.name)
        if before is None:
            continue  # a variable that is new begins empty
        sides = [("key", before.key, family.key)]
        if operator.name not in KEY_ONLY:
            sides.append(("value", before.value, family.value))
        for side, stored, planned in sides:
            if not fits(planned, stored):
                place = ", ".join(
                    part for part in (old.name if old.name != "default" else "", family.name) if part
                )
                where = f"{operator}{f', {place}' if place else ''}"
                yield f"{where}: its {side} was {columns_text(stored)} and is {columns_text(planned)} now"


def renamed(stored: Sequence[Operator], planned: Sequence[Operator]) -> list[str]:
    """What Spark goes on with though it may mean something else: columns of state with other names, same types."""
    old = {(one.number, store.name, family.name): family for one, store, family in _families(stored)}
    found = []
    for one, store, family in _families(planned):
        before = old.get((one.number, store.name, family.name))
        for side in ("key", "value"):
            was, now = getattr(before, side, None), getattr(family, side)
            if was is not None and fits(now, was) and _names(was) != _names(now):
                found.append(f"{one}: its {side} was {columns_text(was)} and is {columns_text(now)} now")
    return list(dict.fromkeys(found))


def _families(found: Iterable[Operator]) -> Iterator[tuple[Operator, Store, Family]]:
    for one in found:
        for store in one.stores:
            for family in store.families:
                yield one, store, family


def _names(schema: Any) -> list[str]:
    return (
        [str(entry.get("name")) for entry in schema.get("fields", ())] if isinstance(schema, Mapping) else []
    )


def fits(new: Any, stored: Any) -> bool:
    """Whether rows of a schema can be kept as those of another: types and order, not names; no null where none was."""
    if not isinstance(new, Mapping) or not isinstance(stored, Mapping):
        return bool(new == stored)
    kind = new.get("type")
    if kind != stored.get("type"):
        return False
    if kind == "struct":
        pairs = list(zip(new["fields"], stored["fields"], strict=False))
        return len(new["fields"]) == len(stored["fields"]) and all(
            fits(a["type"], b["type"]) and (b["nullable"] or not a["nullable"]) for a, b in pairs
        )
    if kind == "array":
        return fits(new["elementType"], stored["elementType"]) and (
            stored["containsNull"] or not new["containsNull"]
        )
    if kind == "map":
        return (
            fits(new["keyType"], stored["keyType"])
            and fits(new["valueType"], stored["valueType"])
            and (stored["valueContainsNull"] or not new["valueContainsNull"])
        )
    return bool(new == stored)


def columns_text(schema: Any) -> str:
    """`(n int, s string)`, as Spark's SQL names types."""
    return f"({', '.join(f'{name} {kind}' for name, kind in columns(schema))})"


def columns(schema: Any) -> list[tuple[str, str]]:
    """Names and types of a schema in Spark's JSON; NOT NULL where nothing may be missing."""
    from pyspark.sql.types import StructType

    return [
        (entry.name, entry.dataType.simpleString() + ("" if entry.nullable else " not null"))
        for entry in StructType.fromJson(dict(schema)).fields
    ]


# -- whose it is ------------------------------------------------------------------------------------------------------


def refuse_others(pipeline: DeclaredPipeline, checkpoints: str) -> None:
    """PipelineError where a stream would go on from a checkpoint that is not its own; nothing is changed."""
    problems = [
        pipeline.problem(stream, "", what)
        for stream in pipeline.streams
        for what in foreign(pipeline, stream, checkpoints)
    ]
    if problems:
        raise PipelineError(problems)


def foreign(pipeline: DeclaredPipeline, stream: Stream, checkpoints: str) -> Iterator[str]:
    """Why a stream's checkpoint is not its own; nothing where it is, or where only Spark could read it."""
    root = local_path(checkpoints)
    if root is None:
        return
    letters = [stream.name + DEAD_LETTER_SUFFIX] if stream.dead_letter is not None else []
    for name in (stream.name, *letters):
        path = root / name
        try:
            yield from _foreign(pipeline, stream, name, path)
            if name == stream.name:
                yield from _other_life(stream.out, path)
        except CheckpointError as error:
            yield str(error)
        except OSError as error:
            yield f"{path} cannot be read: {error.strerror or error}"


def _foreign(pipeline: DeclaredPipeline, stream: Stream, name: str, path: Path) -> Iterator[str]:
    owner = owner_of(path)
    if owner is not None and owner != (pipeline.name, name):
        yield (
            f"the checkpoint {path} is that of stream {owner[1]!r} of pipeline {owner[0]!r}: run that one (--name), "
            f"give another --state-dir or --checkpoint-dir, or, if the pipeline was renamed, delete {path / OWNER}"
        )
        return
    found = read(path)
    if found is None:
        return
    declared = {one.name for _, _, one in pipeline.inputs(stream) if isinstance(one, Topic) and not one.table}
    others = sorted(frozenset().union(*found.topics) - declared)
    if others:
        yield (
            f"the checkpoint {path} has read {listed(others)}, and the stream reads {listed(sorted(declared))}: is it "
            f"another's? `ottla pipeline reset {pipeline.name} --stream {stream.name}` sets it aside"
        )


def _other_life(sink: Any, path: Path) -> Iterator[str]:
    """Spark knows what a Parquet directory has by the numbers of micro-batches alone, whichever query wrote them."""
    if not isinstance(sink, Parquet) or (directory := local_path(sink.path)) is None:
        return
    log = directory / "_spark_metadata"
    # In this order: while it runs, a batch is begun, then written, then finished.
    finished = max(_batches(path / "commits"), default=-1)
    names = [entry.name for entry in log.iterdir()] if log.is_dir() else []
    written = max((int(found[1]) for name in names if (found := _LOGGED.fullmatch(name))), default=-1)
    begun = max(_batches(path / "offsets"), default=-1)
    if written > begun:
        yield (
            f"{directory} has micro-batches up to {written} of another checkpoint, by whose numbers Spark would take "
            "new rows for written: let out= name another directory, or move this one away"
        )
    elif written < finished:
        yield (
            f"{directory} is not what this checkpoint has written, which goes on after micro-batch {finished}: Spark "
            "can read no directory that lacks the ones before. Bring it back, or begin anew (reset)"
        )


def checkpoints_of(pipeline: str, root: Path) -> list[Path]:
    """The checkpoints of a pipeline in a directory, which may hold those of others and quite other things, too."""
    found = sorted(path for path in root.iterdir() if path.is_dir()) if root.is_dir() else []
    return [path for path in found if _is_checkpoint(path) and (owner_of(path) or (pipeline,))[0] == pipeline]


def _is_checkpoint(path: Path) -> bool:
    """Or what is there of one that was never begun: an empty directory."""
    names = {entry.name for entry in path.iterdir()}
    return not names or OWNER in names or "offsets" in names or (path / "metadata").is_file()


def owner_of(path: Path) -> tuple[str, str] | None:
    """The pipeline and the query that a checkpoint belongs to; None for one that was made before this was noted."""
    file = path / OWNER
    try:
        found = _object(file, _text(file))
    except FileNotFoundError:
        return None
    return str(found.get("pipeline")), str(found.get("stream"))


def claim(pipeline: DeclaredPipeline, checkpoints: str) -> str | None:
    """Note whose the checkpoints are, where they are there and nobody has; why not, which is no reason not to run."""
    root = local_path(checkpoints)
    if root is None:
        return None
    names = [name for stream in pipeline.streams for name in (stream.name, stream.name + DEAD_LETTER_SUFFIX)]
    try:
        for path in (root / name for name in names):
            if path.is_dir() and owner_of(path) is None:
                write_owner(path, pipeline.name, path.name)
    except (OSError, CheckpointError) as error:
        return (
            f"whose the checkpoints in {root} are is not noted: {getattr(error, 'strerror', None) or error}"
        )
    return None


def write_owner(path: Path, pipeline: str, stream: str, first_batch: int = 0) -> None:
    """`first_batch`: the number that the query's first micro-batch has, where it goes on from a copy of another's."""
    file = path / OWNER
    content = json.dumps({"pipeline": pipeline, "stream": stream, "first_batch": first_batch}).encode()
    replace_file(file, (content,), temporary=unique_temporary(file))


def first_batch_of(checkpoint: str) -> int:
    """The number of the first micro-batch under this query's id: 0, unless it began with a copy."""
    path = local_path(checkpoint)
    if path is None:
        return 0
    try:
        number = _object(path / OWNER, _text(path / OWNER)).get("first_batch")
    except (FileNotFoundError, CheckpointError):
        return 0  # made before this was noted; what is not ours has been refused by now
    return number if isinstance(number, int) else 0
