"""Iceberg tables by the package `pyiceberg`: no jar, an SQLite catalog unless another is given, exactly once.

A commit carries the batch id twice: as a property of its snapshot, for those who ask where rows came from, and as a
property of the table (`ottla.batch.<query id>`), set in the same transaction, which stays when snapshots expire. A
commit that loses against another writer's is tried again on the table as it is then, after looking the batch up
again.

The tasks write the data files (files), by the table's own partition spec, properties and locations; here is the one
snapshot that names them. A table with delete files, or with types that Spark has not, is merged by `pyiceberg`
itself, in the driver, with the micro-batch in its memory.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import logging
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ottla.spark.pipeline.declare import DeclarationError, Iceberg, local_path
from ottla.spark.pipeline.lake import compaction, merge
from ottla.spark.pipeline.lake.common import (
    GIVEN_UP,
    QueryId,
    TableMismatchError,
    as_stored,
    hidden,
    is_written,
    rows_of,
    split_deleted,
    stored_type,
)
from ottla.spark.pipeline.lake.files import Job, Written, discard, spread, width_for, write_files
from ottla.spark.pipeline.lake.spec import (
    DEFAULT_TARGET_BYTES,
    TIME_TRANSFORMS,
    Part,
    parse_size,
    parse_sort,
    parts_of,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table import FileScanTask, Table, Transaction
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)

BATCH_PROPERTY: Final = "ottla.batch."
COMPACTED_PROPERTY: Final = "ottla.compacted-at"
SNAPSHOT_QUERY: Final = "ottla.query-id"
SNAPSHOT_BATCH: Final = "ottla.batch-id"
SNAPSHOT_COMPACTION: Final = "ottla.compaction"
RETRIES: Final = "commit.retry.num-retries"
TARGET_PROPERTY: Final = "write.target-file-size-bytes"
MANIFEST_MERGE: Final = "commit.manifest-merge.enabled"
ATTEMPTS: Final = 8
EPOCH: Final = date(1970, 1, 1)
# A name in a directory has 255 bytes on most file systems.
MAX_PATH_PART: Final = 200


def open_catalog(sink: Iceberg) -> Catalog:
    """The catalog that a declaration names."""
    from pyiceberg.catalog import load_catalog

    properties = dict(sink.catalog)
    if not {"type", "uri", "py-catalog-impl"} & properties.keys():
        warehouse = properties["warehouse"]
        place = (local_path(warehouse) or Path(warehouse)).absolute()
        place.mkdir(parents=True, exist_ok=True)
        properties |= {"type": "sql", "uri": f"sqlite:///{place}/catalog.db", "warehouse": f"file://{place}"}
    return load_catalog("ottla", **properties)


def read_table(source: Iceberg) -> pa.Table:
    """A table as it is now."""
    return as_stored(open_catalog(source).load_table(source.table).scan().to_arrow())


# -- in the tasks -----------------------------------------------------------------------------------------------------


@lru_cache(maxsize=16)
def _metadata(text: str) -> Any:
    from pyiceberg.table.metadata import TableMetadataUtil

    return TableMetadataUtil.parse_raw(text)


@lru_cache(maxsize=16)
def _file_io(location: str, properties: tuple[tuple[str, str], ...]) -> Any:
    from pyiceberg.io import load_file_io

    return load_file_io(dict(properties), location)


class _Place:
    """What a location provider asks of a partition."""

    def __init__(self, spec: PartitionSpec, schema: Schema, values: tuple[Any, ...]) -> None:
        self._spec, self._schema, self._values = spec, schema, values

    def to_path(self) -> str:
        from pyiceberg.typedef import Record

        path = self._spec.partition_to_path(Record(*self._values), self._schema)
        return "/".join(map(_shortened, path.split("/")))


def _shortened(part: str) -> str:
    """A name that a file system takes, whatever a column holds: tables go by the values, not by the path."""
    if len(part) <= MAX_PATH_PART:
        return part
    digest = hashlib.sha256(part.encode()).hexdigest()[:16]
    return f"{part[: MAX_PATH_PART // 2].rpartition('%')[0] or part[: MAX_PATH_PART // 2]}~{digest}"


@dataclass(frozen=True)
class IcebergStore:
    """An Iceberg table's place: its metadata without its history, and what opens its storage."""

    metadata: str
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def _table(self) -> Any:
        return _metadata(self.metadata)

    @property
    def _io(self) -> Any:
        return _file_io(self._table.location, tuple(sorted(self.properties.items())))

    @property
    def _fields(self) -> Sequence[PartitionField]:
        found: Sequence[PartitionField] = self._table.spec().fields
        return found

    def schema(self) -> pa.Schema:
        return arrow_schema_of(self._table.schema())

    def fit(self, rows: pa.Table) -> pa.Table:
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        from ottla.spark.pipeline.lake.fit import fit_rows

        # With the ids of fields, nested ones too: readers go by those.
        return fit_rows(rows, schema_to_pyarrow(self._table.schema()))

    def sources(self) -> Sequence[str]:
        schema = self._table.schema()
        return list(dict.fromkeys(_source_name(schema, one) for one in self._fields if not _is_void(one)))

    def values(self, row: Mapping[str, Any]) -> tuple[Any, ...]:
        schema = self._table.schema()
        return tuple(
            None if _is_void(one) else transformed(schema, one, row[_source_name(schema, one)])
            for one in self._fields
        )

    def key(self, rows: pa.Table) -> pa.Array:
        """Values are transformed once each; of times the hour is enough, but for buckets, which are of the whole."""
        import pyarrow as pa
        import pyarrow.compute as pc

        schema = self._table.schema()
        texts = []
        for one in self._fields:
            if _is_void(one):
                continue
            column = rows.column(_source_name(schema, one)).combine_chunks()
            if pa.types.is_timestamp(column.type) and str(one.transform) in TIME_TRANSFORMS:
                column = pc.floor_temporal(column, unit="hour")
            coded = column.dictionary_encode()
            words = [repr(transformed(schema, one, value)) for value in coded.dictionary.to_pylist()]
            made = pa.array(words, pa.string()).take(coded.indices)
            texts.append(pc.fill_null(made, "None"))
        return pc.binary_join_element_wise(*texts, "\x1f") if len(texts) > 1 else texts[0]

    def path(self, values: tuple[Any, ...], name: str) -> str:
        from pyiceberg.table.locations import load_location_provider

        table = self._table
        provider: Any = load_location_provider(table.location, table.properties)
        place = _Place(table.spec(), table.schema(), values) if self._fields else None
        return str(provider.new_data_location(name, place))

    def open_output(self, path: str) -> Any:
        return self._io.new_output(path).create(overwrite=True)

    def delete(self, path: str) -> None:
        self._io.delete(path)

    def parquet(self) -> Mapping[str, Any]:
        from pyiceberg.io.pyarrow import _get_parquet_writer_kwargs

        return {"store_decimal_as_integer": True, **_get_parquet_writer_kwargs(self._table.properties)}

    def info(self, values: tuple[Any, ...], rows: pa.Schema, metadata: Any, with_nan: frozenset[str]) -> str:
        from pyiceberg.io.pyarrow import (
            compute_statistics_plan,
            data_file_statistics_from_parquet_metadata,
            parquet_path_to_id_mapping,
        )

        schema = self._table.schema()
        columns = compute_statistics_plan(schema, self._table.properties)
        names = parquet_path_to_id_mapping(schema)
        try:
            made = data_file_statistics_from_parquet_metadata(metadata, columns, names)
        except (OverflowError, ValueError):  # times beyond the year 9999 or before 1, which Python has not
            made = data_file_statistics_from_parquet_metadata(metadata, _counting_times(columns), names)
        found = made.to_serialized_dict()
        # Parquet's bounds leave out what is no number: readers that ask for such rows must not skip the file.
        for name in with_nan:
            for bounds in (found["lower_bounds"], found["upper_bounds"]):
                bounds.pop(schema.find_field(name).field_id, None)
        return json.dumps(
            {
                "partition": [to_text(value) for value in values],
                "spec": self._table.default_spec_id,
                "stats": {key: _plain(value) for key, value in found.items()},
            }
        )

    def read(self, info: str, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """`info` is what `told` makes of a file."""
        import pyarrow as pa
        from pyiceberg.expressions import AlwaysTrue
        from pyiceberg.io.pyarrow import ArrowScan
        from pyiceberg.table import FileScanTask

        from ottla.spark.pipeline.lake.fit import fit_rows

        table = self._table
        schema = table.schema() if columns is None else table.schema().select(*columns)
        wanted = arrow_schema_of(schema)
        scan = ArrowScan(table, self._io, schema, AlwaysTrue())
        for batch in scan.to_record_batches([FileScanTask(_data_file_to_read(info))]):
            yield from fit_rows(as_stored(pa.Table.from_batches([batch])), wanted).to_batches()


def _counting_times(columns: Mapping[int, Any]) -> dict[int, Any]:
    """The plan of statistics without the bounds of dates and times."""
    from pyiceberg.io.pyarrow import MetricModeTypes, MetricsMode

    return {
        number: replace(one, mode=MetricsMode(MetricModeTypes.COUNTS))
        if str(one.iceberg_type).startswith(("date", "timestamp"))
        else one
        for number, one in columns.items()
    }


def arrow_schema_of(schema: Schema) -> pa.Schema:
    """A table's columns as Arrow has them, in the types that rows have."""
    import pyarrow as pa
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    given = schema_to_pyarrow(schema, include_field_ids=False)
    return pa.schema([pa.field(one.name, stored_type(one.type), one.nullable) for one in given])


def _source_name(schema: Schema, one: PartitionField) -> str:
    return str(schema.find_column_name(one.source_id))


def _is_void(one: PartitionField) -> bool:
    return str(one.transform) == "void"


def transformed(schema: Schema, one: PartitionField, value: Any) -> Any:
    """The partition value of a column's value, as Iceberg keeps it."""
    from pyiceberg.partitioning import partition_record_value

    if value is None:
        return None
    kind = schema.find_type(one.source_id)
    return one.transform.transform(kind)(partition_record_value(one, value, schema))


def to_text(value: Any) -> Any:
    """A partition value or a bound as JSON has it."""
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, Decimal):
        return {"decimal": str(value)}
    return {"uuid": str(value)} if isinstance(value, uuid.UUID) else value


def from_text(value: Any) -> Any:
    """The opposite."""
    if not isinstance(value, dict):
        return value
    ((kind, text),) = value.items()
    if kind == "bytes":
        return base64.b64decode(text)
    return Decimal(text) if kind == "decimal" else uuid.UUID(text)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return [[key, to_text(one)] for key, one in value.items()]
    return value


def _data_file(one: Written) -> DataFile:
    """A file that a task has written, as the commit names it."""
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    told = json.loads(one.info)
    stats: dict[str, Any] = {
        key: {number: from_text(bound) for number, bound in value}
        if isinstance(value, list) and key != "split_offsets"
        else value
        for key, value in told["stats"].items()
    }
    make: Any = DataFile.from_args  # whose first parameter is none of a file's
    made: DataFile = make(
        content=DataFileContent.DATA,
        file_path=one.path,
        file_format=FileFormat.PARQUET,
        partition=Record(*[from_text(value) for value in told["partition"]]),
        file_size_in_bytes=one.size,
        sort_order_id=None,
        spec_id=told["spec"],
        equality_ids=None,
        key_metadata=None,
        **stats,
    )
    made.spec_id = told["spec"]
    return made


def told(file: DataFile) -> str:
    """What a task needs to read a file of the table."""
    return json.dumps(
        {
            "path": file.file_path,
            "format": str(file.file_format.value),
            "size": file.file_size_in_bytes,
            "rows": file.record_count,
            "spec": file.spec_id,
            "partition": [to_text(file.partition[n]) for n in range(len(file.partition))],
        }
    )


def _data_file_to_read(info: str) -> DataFile:
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    given = json.loads(info)
    made = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=given["path"],
        file_format=FileFormat(given["format"]),
        partition=Record(*[from_text(value) for value in given["partition"]]),
        file_size_in_bytes=given["size"],
        record_count=given["rows"],
    )
    made.spec_id = given["spec"]
    return made


# -- in the driver ----------------------------------------------------------------------------------------------------


class IcebergWriter:
    """The function that Spark calls for each micro-batch."""

    def __init__(
        self, sink: Iceberg, mode: str, checkpoint: str, secrets: Mapping[str, str] | None = None
    ) -> None:
        self._sink = sink
        self._mode = mode
        self._query_id = QueryId(checkpoint)
        self._secrets = dict(secrets or {})
        self._width = 1
        self._compaction = compaction.Schedule(sink.compact)

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        query = self._query_id.of(batch)
        table = self._write(batch, batch_id, query)
        last = table.properties.get(COMPACTED_PROPERTY, "")
        if self._compaction.is_due(time.time(), int(last) if last.isdecimal() else None):
            self._compact(batch.sparkSession, query)

    def _write(self, batch: DataFrame, batch_id: int, query: str) -> Table:
        from ottla.spark.pipeline.lake.fit import arrow_schema

        sink = self._sink
        catalog = open_catalog(sink)
        table = _open(catalog, sink)
        mark = None if table is None else mark_of(table, query)
        if is_written(str(sink), mark, batch_id, adopt=sink.adopt):
            assert table is not None
            return table
        wanted = arrow_schema(batch.schema)
        if sink.delete:
            wanted = wanted.remove(wanted.get_field_index(sink.delete))
        table = _prepared(catalog, sink, table, wanted)
        # While it was made or got new columns, another driver of this query may have been faster.
        if is_written(str(sink), mark_of(table, query), batch_id, adopt=sink.adopt):
            return table
        if sink.key and self._mode != "complete":
            if _not_by_tasks(table):
                log.info("%s is merged in the driver: %s", sink, _not_by_tasks(table))
                rows = rows_of(batch, sink.key, sink.order_by)
                write(sink, self._mode, table, rows, query, batch_id)
                return table
            request = merge.Request(
                batch,
                sink.key,
                sink.order_by,
                sink.delete,
                null_is_a_key=True,
                sort_by=_sort_by(sink, table),
                transforms=has_transforms(table),
            )
            return merge.merged(request, _IcebergMerge(sink, wanted, query, batch_id, self._secrets), table)
        job = job_for(sink, table, query, str(batch_id), self._secrets)
        rows_in_order = spread(
            batch, job, _sort_by(sink, table), transforms=has_transforms(table), width=self._width
        )
        written = write_files(rows_in_order, job)
        self._width = width_for(written, partition_of, job.target_bytes)
        return _commit(sink, self._mode, table, wanted, written, job, query, batch_id)

    def _compact(self, spark: Any, query: str) -> None:
        """Small files merged. Whatever goes wrong here is told and no reason to stop: the rows are in the table."""
        try:
            compact(self._sink, spark, query, self._secrets)
        except Exception as error:  # noqa: BLE001 - any, see above
            log.warning("%s is not compacted this time: %s", self._sink, hidden(error, self._secrets))


def job_for(sink: Iceberg, table: Table, query: str, what: str, secrets: Mapping[str, str]) -> Job:
    """What tasks need to write files into a table as it is."""
    target = DEFAULT_TARGET_BYTES if sink.target_file_size is None else parse_size(sink.target_file_size)
    if sink.target_file_size is None and TARGET_PROPERTY in table.properties:
        with contextlib.suppress(DeclarationError):  # one that is none is the table's
            target = parse_size(table.properties[TARGET_PROPERTY])
    lean = table.metadata.model_copy(
        update={
            "snapshots": [],
            "snapshot_log": [],
            "metadata_log": [],
            "refs": {},
            "current_snapshot_id": None,
            "statistics": [],
        }
    )
    store = IcebergStore(lean.model_dump_json(), dict(table.io.properties))
    return Job(store, f"ottla-{query}-{what}-{uuid.uuid4().hex[:8]}", target, secrets)


def partition_of(one: Written) -> str:
    """The partition of a file."""
    return json.dumps(json.loads(one.info)["partition"])


def has_transforms(table: Table) -> bool:
    """Whether partitions are made of something else than columns."""
    return any(str(one.transform) != "identity" for one in table.spec().fields)


def _sort_by(sink: Iceberg, table: Table) -> list[tuple[str, bool]]:
    """As declared, else as the table says, as far as that are columns."""
    if sink.sort_by:
        return [parse_sort(text) for text in sink.sort_by]
    schema = table.schema()
    return [
        (str(schema.find_column_name(one.source_id)), str(one.direction.value).lower() == "desc")
        for one in table.sort_order().fields
        if str(one.transform) == "identity"
    ]


def mark_of(table: Table, query: str) -> int | None:
    """The newest batch of a query that is in the table."""
    found = table.properties.get(BATCH_PROPERTY + query)
    return None if found is None else int(found)


def _open(catalog: Catalog, sink: Iceberg) -> Table | None:
    from pyiceberg.exceptions import NoSuchTableError

    try:
        return catalog.load_table(sink.table)
    except NoSuchTableError:
        return None


def _create(catalog: Catalog, sink: Iceberg, wanted: pa.Schema) -> Table:
    from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids
    from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
    from pyiceberg.schema import assign_fresh_schema_ids
    from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
    from pyiceberg.transforms import IdentityTransform, parse_transform

    schema = assign_fresh_schema_ids(_pyarrow_to_schema_without_ids(wanted))
    fields = [
        PartitionField(
            source_id=schema.find_field(part.column).field_id,
            field_id=PARTITION_FIELD_ID_START + n,
            transform=parse_transform(_transform_text(part)),
            name=_field_name(part),
        )
        for n, part in enumerate(parts_of(sink.partition_by))
    ]
    for one in fields:
        kind = schema.find_type(one.source_id)
        if not one.transform.can_transform(kind):
            raise TableMismatchError(
                f"partition_by of the {sink}: {one.transform} takes no column of type {kind}"
            )
    order = [
        SortField(
            source_id=schema.find_field(name).field_id,
            transform=IdentityTransform(),
            direction=SortDirection.DESC if down else SortDirection.ASC,
            null_order=NullOrder.NULLS_LAST if down else NullOrder.NULLS_FIRST,
        )
        for name, down in map(parse_sort, sink.sort_by)
    ]
    catalog.create_namespace_if_not_exists(sink.table.rpartition(".")[0])
    more: dict[str, Any] = {"sort_order": SortOrder(*order)} if order else {}
    return catalog.create_table_if_not_exists(
        sink.table, schema, partition_spec=PartitionSpec(*fields), **more
    )


def _transform_text(part: Part) -> str:
    return part.transform if part.size is None else f"{part.transform}[{part.size}]"


def _field_name(part: Part) -> str:
    """As Iceberg's own tools name them."""
    if part.transform == "identity":
        return part.column
    word = {"truncate": "trunc"}.get(part.transform, part.transform)
    return f"{part.column}_{word}" + ("" if part.size is None else f"_{part.size}")


def _prepared(catalog: Catalog, sink: Iceberg, table: Table | None, wanted: pa.Schema) -> Table:
    """The table, made or with new columns where that is to be: a crash after this leaves a table and no batch."""
    from pyiceberg.exceptions import CommitFailedException

    from ottla.spark.pipeline.lake.fit import fitted, refuse_nothing_typed

    if table is None:
        refuse_nothing_typed(str(sink), wanted)
        table = _create(catalog, sink, wanted)
    form = table.properties.get("write.format.default", "parquet").lower()
    if form != "parquet":
        raise TableMismatchError(f"the {sink} wants files of {form}: only Parquet is written here")
    for _ in range(ATTEMPTS):
        _check_partitions(sink, table)
        fit = fitted(
            str(sink), arrow_schema_of(table.schema()), wanted, additive=bool(sink.evolve), can_widen=True
        )
        if not fit.changes:
            return table
        refuse_nothing_typed(str(sink), wanted)
        log.info("%s: adds %s", sink, ", ".join((*fit.added, *fit.widened)))
        try:
            with table.update_schema() as update:
                update.union_by_name(wanted)
            return table
        except CommitFailedException:
            table.refresh()
    raise RuntimeError(f"{sink}: other writers change it all the time")


def _check_partitions(sink: Iceberg, table: Table) -> None:
    schema = table.schema()
    top = {one.field_id for one in schema.fields}
    for one in table.spec().fields:
        if one.source_id not in top or str(one.transform).startswith("unknown"):
            raise TableMismatchError(
                f"the {sink} is partitioned by {one.name!r}, which is no column or an unknown transform of one: it is "
                "not written from here"
            )
    there = [
        (_source_name(schema, one), str(one.transform)) for one in table.spec().fields if not _is_void(one)
    ]
    wanted = [(part.column, _transform_text(part)) for part in parts_of(sink.partition_by)]
    if wanted and wanted != there:
        shown = ", ".join(name if how == "identity" else f"{how}({name})" for name, how in there)
        raise TableMismatchError(
            f"the {sink} is partitioned by {shown or 'nothing'} and partition_by says {', '.join(sink.partition_by)}: "
            "say what it is, or write into a new table"
        )


def _not_by_tasks(table: Table) -> str | None:
    """Why tasks cannot rewrite files of this table, if they cannot."""
    try:
        merge.spark_schema(arrow_schema_of(table.schema()))
    except merge.NotForSparkError as error:
        return f"Spark has no type {error}"
    snapshot = table.current_snapshot()
    if snapshot is None:
        return None
    from pyiceberg.manifest import ManifestContent

    deletes = any(one.content == ManifestContent.DELETES for one in snapshot.manifests(table.io))
    return "it has delete files" if deletes else None


def _files(table: Table) -> list[FileScanTask]:
    return [] if table.current_snapshot() is None else list(table.scan().plan_files())


def _named(sink: Iceberg) -> set[str]:
    """The paths of all files that are in the table now."""
    table = _open(open_catalog(sink), sink)
    return set() if table is None else {one.file.file_path for one in _files(table)}


def _commit(
    sink: Iceberg,
    mode: str,
    table: Table,
    wanted: pa.Schema,
    written: Sequence[Written],
    job: Job,
    query: str,
    batch_id: int,
) -> Table:
    """Files of an append or a replacement into the table. Files of a batch that is not to be are taken away."""
    from pyiceberg.exceptions import CommitFailedException

    schema, spec = table.metadata.current_schema_id, table.metadata.default_spec_id
    for attempt in range(ATTEMPTS):
        mark = mark_of(table, query)
        if attempt:
            try:
                is_there = is_written(str(sink), mark, batch_id, adopt=sink.adopt)
                if not is_there:
                    _still_fits(sink, table, wanted, schema, spec)
            except Exception:
                discard(job.store, written, lambda: _named(sink))
                raise
            if is_there:
                discard(job.store, written, lambda: _named(sink))
                return table
        if not written and mark is not None and mode != "complete":
            return table
        try:
            gone = [one.file for one in _files(table)] if mode == "complete" else []
            _put(table, gone, [_data_file(one) for one in written], query, batch_id)
            return table
        except CommitFailedException:
            if attempt == ATTEMPTS - 1:
                discard(job.store, written, lambda: _named(sink))
                raise
            table.refresh()
    raise AssertionError("unreachable")


def _put(table: Table, gone: Sequence[DataFile], come: Sequence[DataFile], query: str, batch_id: int) -> None:
    """One snapshot, and the mark of the batch, in one transaction on just this state of the table."""
    _replace(
        table,
        gone,
        come,
        {SNAPSHOT_QUERY: query, SNAPSHOT_BATCH: str(batch_id)},
        {BATCH_PROPERTY + query: str(batch_id)},
    )


def _replace(
    table: Table,
    gone: Sequence[DataFile],
    come: Sequence[DataFile],
    snapshot: dict[str, str],
    properties: dict[str, str],
) -> None:
    # Retries are ours, since they look the batch up first. Set in this copy of the metadata, not in the table.
    table.metadata.properties[RETRIES] = "0"
    with table.transaction() as transaction:
        if gone or come:
            update = transaction.update_snapshot(snapshot_properties=snapshot)
            producer: Any
            if gone:
                producer = update.overwrite()
            elif table.properties.get(MANIFEST_MERGE, "false").lower() == "true":
                producer = update.merge_append()
            else:
                producer = update.fast_append()
            with producer:
                for one in gone:
                    producer.delete_data_file(one)
                for one in come:
                    producer.append_data_file(one)
        _mark(transaction, properties)


def _mark(transaction: Transaction, properties: dict[str, str]) -> None:
    """Properties of just the table that was looked at. For them alone a catalog does not ask what has been committed
    meanwhile: a driver that looked before its query was given up would put its own mark in the place of that."""
    from pyiceberg.table.refs import MAIN_BRANCH
    from pyiceberg.table.update import AssertRefSnapshotId

    # One that brings a snapshot asks so by itself.
    if not any(isinstance(one, AssertRefSnapshotId) for one in transaction._requirements):
        main = transaction.table_metadata.refs.get(MAIN_BRANCH)
        expected: Any = {"ref": MAIN_BRANCH, "snapshot-id": None if main is None else main.snapshot_id}
        transaction._stage((), (AssertRefSnapshotId(**expected),))
    transaction.set_properties(properties)


def _still_fits(sink: Iceberg, table: Table, wanted: pa.Schema, schema: int, spec: int) -> None:
    """Files that were written for the table as it was have to be right for it as it is."""
    from ottla.spark.pipeline.lake.fit import fitted

    fit = fitted(
        str(sink), arrow_schema_of(table.schema()), wanted, additive=bool(sink.evolve), can_widen=True
    )
    metadata = table.metadata
    if fit.changes or metadata.default_spec_id != spec or metadata.current_schema_id != schema:
        raise RuntimeError(f"somebody changed the {sink} while a batch was written: it is tried again")


class _IcebergMerge:
    """What merging asks of an Iceberg table."""

    def __init__(
        self, sink: Iceberg, wanted: pa.Schema, query: str, batch_id: int, secrets: Mapping[str, str]
    ) -> None:
        self._sink = sink
        self._wanted = wanted
        self._query = query
        self._batch_id = batch_id
        self._secrets = secrets

    def reopen(self) -> Table | None:
        """The table as it is now, None if the batch is in it."""
        catalog = open_catalog(self._sink)
        table = _open(catalog, self._sink)
        mark = None if table is None else mark_of(table, self._query)
        if is_written(str(self._sink), mark, self._batch_id, adopt=self._sink.adopt):
            return None
        return _prepared(catalog, self._sink, table, self._wanted)

    def current(self) -> Table:
        return open_catalog(self._sink).load_table(self._sink.table)

    def is_new(self, table: Table) -> bool:
        return mark_of(table, self._query) is None

    def job(self, table: Table) -> Job:
        return job_for(self._sink, table, self._query, str(self._batch_id), self._secrets)

    def files(self, table: Table) -> list[merge.Candidate]:
        schema = table.schema()
        return [
            merge.Candidate(
                one.file.file_path, told(one.file), _bounds(schema, one.file, self._sink.key), one.file
            )
            for one in _files(table)
        ]

    def is_small(self, table: Table) -> bool:
        # PyIceberg itself transforms partition values only with a package that it does not require.
        if has_transforms(table):
            return False
        return sum(one.file.file_size_in_bytes for one in _files(table)) <= merge.SMALL_TABLE_BYTES

    def merge_here(self, table: Table, rows: pa.Table) -> bool:
        try:
            write(self._sink, "append", table, rows, self._query, self._batch_id)
        except (OverflowError, ValueError) as error:
            # PyIceberg looks for no NaN, and Python has no time before the year 1 or beyond 9999.
            raise merge.NotHereError(hidden(error, self._secrets)) from None
        return True

    def commit(self, table: Table, gone: Sequence[merge.Candidate], written: Sequence[Written]) -> bool:
        """One snapshot, on just this state of the table; False if another writer was faster."""
        from pyiceberg.exceptions import CommitFailedException

        try:
            files = [_data_file(one) for one in written]
            _put(table, [one.file for one in gone], files, self._query, self._batch_id)
        except CommitFailedException:
            return False
        return True


def _bounds(schema: Schema, file: DataFile, names: Sequence[str]) -> dict[str, tuple[Any, Any]]:
    """Between which values columns are, as Python has them."""
    from pyiceberg.conversions import from_bytes

    found: dict[str, tuple[Any, Any]] = {}
    for name in names:
        one = schema.find_field(name)
        least, most = (file.lower_bounds or {}).get(one.field_id), (file.upper_bounds or {}).get(one.field_id)
        if least is not None and most is not None and one.field_type.is_primitive:
            kind: Any = one.field_type
            found[name] = (_value(kind, from_bytes(kind, least)), _value(kind, from_bytes(kind, most)))
    return found


def _value(kind: Any, value: Any) -> Any:
    """None, which is no bound, for a date that Python has not: other writers have bounds of these, too."""
    if str(kind) != "date" or not isinstance(value, int):
        return value
    try:
        return EPOCH + timedelta(days=value)
    except OverflowError:
        return None


def compact(sink: Iceberg, spark: Any, query: str, secrets: Mapping[str, str]) -> int:
    """Small files of each partition become large ones, in one snapshot that changes no row; how many went.

    PyIceberg writes no snapshot of the kind `replace`, so it is an `overwrite`, which says so in its summary.
    """
    from pyiceberg.exceptions import CommitFailedException

    table = _open(open_catalog(sink), sink)
    if table is None or _not_by_tasks(table):
        return 0
    job = job_for(sink, table, query, "compact", secrets)
    files = [one.file for one in _files(table) if one.file.spec_id == table.metadata.default_spec_id]
    bins = compaction.plan(
        [
            compaction.Small(
                n, one.file_size_in_bytes, tuple(one.partition[i] for i in range(len(one.partition)))
            )
            for n, one in enumerate(files)
        ],
        job.target_bytes,
    )
    if not bins:
        return 0
    written = compaction.rewrite(
        spark, job, [[told(files[n]) for n in one] for one in bins], _sort_by(sink, table)
    )
    gone = [files[n] for one in bins for n in one]
    compaction.check_rows(str(sink), sum(one.record_count for one in gone), written, job)
    try:
        _replace(
            table,
            gone,
            [_data_file(one) for one in written],
            {SNAPSHOT_COMPACTION: "true"},
            {COMPACTED_PROPERTY: str(int(time.time()))},
        )
    except CommitFailedException:
        discard(job.store, written, lambda: _named(sink))
        raise
    return len(gone)


# -- in the driver, by pyiceberg itself: tables with delete files, or with types that Spark has not --------------------


def give_up(sink: Iceberg, query: str) -> bool:
    """Let no driver of this query write any more; False if there is no such table."""
    from pyiceberg.exceptions import CommitFailedException

    catalog = open_catalog(sink)
    for attempt in range(ATTEMPTS):
        table = _open(catalog, sink)
        if table is None:
            return False
        if mark_of(table, query) == GIVEN_UP:
            return True
        # In this copy of the metadata, not in the table: what another writer has committed is looked at.
        table.metadata.properties[RETRIES] = "0"
        try:
            with table.transaction() as transaction:
                # A snapshot without files: catalogs compare snapshots and not properties, so this is what makes the
                # commit fail of whoever has looked at the table before.
                with transaction.update_snapshot(snapshot_properties={SNAPSHOT_QUERY: query}).fast_append():
                    pass
                _mark(transaction, {BATCH_PROPERTY + query: str(GIVEN_UP)})
        except CommitFailedException:
            if attempt == ATTEMPTS - 1:
                raise
        else:
            return True
    raise AssertionError("unreachable")


def already_written(table: Table, query: str, batch_id: int) -> bool:
    """Whether this batch, or a later one of the same query, is in the table."""
    newest = mark_of(table, query)
    return newest is not None and newest >= batch_id


def write(sink: Iceberg, mode: str, table: Table, rows: pa.Table, query: str, batch_id: int) -> None:
    """One batch, one commit."""
    from pyiceberg.exceptions import CommitFailedException

    for attempt in range(ATTEMPTS):
        if already_written(table, query, batch_id):
            return
        # Retries are ours, since they look the batch up first. Set in this copy of the metadata, not in the table.
        table.metadata.properties[RETRIES] = "0"
        try:
            with table.transaction() as transaction:
                _fill(
                    sink,
                    mode,
                    table,
                    transaction,
                    rows,
                    {SNAPSHOT_QUERY: query, SNAPSHOT_BATCH: str(batch_id)},
                )
                _mark(transaction, {BATCH_PROPERTY + query: str(batch_id)})
            return
        except CommitFailedException:
            if attempt == ATTEMPTS - 1:
                raise
            table.refresh()


def _fill(
    sink: Iceberg,
    mode: str,
    table: Table,
    transaction: Transaction,
    rows: pa.Table,
    properties: dict[str, str],
) -> None:
    kept, gone = split_deleted(rows, sink.delete)
    if sink.evolve:
        with transaction.update_schema() as update:
            update.union_by_name(kept.schema)
    kept = _without_null(kept, transaction.table_metadata.schema())
    if mode == "complete" and table.current_snapshot() is not None:
        transaction.overwrite(kept, snapshot_properties=properties)
    elif not sink.key or mode == "complete":
        if kept.num_rows:
            transaction.append(kept, snapshot_properties=properties)
    elif rows.num_rows:
        _upsert(sink, table, transaction, kept, gone, properties)


def _without_null(rows: pa.Table, schema: Schema) -> pa.Table:
    """Rows as they are, in columns that may be null only where the table's may: PyIceberg refuses others, even if none
    of their rows is null. What they lack it fills in itself."""
    import pyarrow as pa

    from ottla.spark.pipeline.lake.fit import fit_rows

    return fit_rows(
        rows, pa.schema([one for one in arrow_schema_of(schema) if one.name in rows.column_names])
    )


def _upsert(
    sink: Iceberg,
    table: Table,
    transaction: Transaction,
    kept: pa.Table,
    gone: pa.Table,
    properties: dict[str, str],
) -> None:
    """Rows of these keys replaced; what is in the table and newer stays."""
    stored = _stored(sink, table, kept, gone)
    kept, gone = _not_older(sink, kept, stored), _not_older(sink, gone, stored)
    replaced = [key for key in stored if key in {*_keys(sink, kept), *_keys(sink, gone)}]
    if replaced:
        transaction.delete(_filter(sink, replaced), snapshot_properties=properties)
    if kept.num_rows:
        transaction.append(kept, snapshot_properties=properties)


def _stored(sink: Iceberg, table: Table, *given: pa.Table) -> dict[tuple[Any, ...], Any]:
    """The keys among those given that are in the table, and how new their rows are."""
    keys = [key for rows in given for key in _keys(sink, rows)]
    if not keys or table.current_snapshot() is None:
        return {}
    columns = (*sink.key, *((sink.order_by,) if sink.order_by and sink.order_by not in sink.key else ()))
    found = as_stored(table.scan(row_filter=_filter(sink, keys), selected_fields=columns).to_arrow())
    order = found.column(sink.order_by).to_pylist() if sink.order_by else [None] * found.num_rows
    return dict(zip(_keys(sink, found), order, strict=True))


def _not_older(sink: Iceberg, rows: pa.Table, stored: dict[tuple[Any, ...], Any]) -> pa.Table:
    if not sink.order_by or not rows.num_rows:
        return rows
    order = rows.column(sink.order_by).to_pylist()
    newer = [
        stored.get(key) is None or at is None or at >= stored[key]
        for key, at in zip(_keys(sink, rows), order, strict=True)
    ]
    import pyarrow as pa

    return rows.filter(pa.array(newer, pa.bool_()))


def _keys(sink: Iceberg, rows: pa.Table) -> list[tuple[Any, ...]]:
    return list(zip(*[rows.column(name).to_pylist() for name in sink.key], strict=True))


def _filter(sink: Iceberg, keys: list[tuple[Any, ...]]) -> Any:
    """Rows with one of these keys."""
    from pyiceberg import expressions

    made: Any = expressions  # their constructors are not typed as they are called
    if len(sink.key) == 1:
        name = sink.key[0]
        known = {key[0] for key in keys if key[0] is not None}
        parts: list[Any] = [made.In(name, known)] if known else []
        parts += [made.IsNull(name)] if any(key[0] is None for key in keys) else []
    else:
        parts = [
            made.And(
                *[
                    made.IsNull(n) if v is None else made.EqualTo(n, v)
                    for n, v in zip(sink.key, key, strict=True)
                ]
            )
            for key in dict.fromkeys(keys)
        ]
    return parts[0] if len(parts) == 1 else made.Or(*parts)
