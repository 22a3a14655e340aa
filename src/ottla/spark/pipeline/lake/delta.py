"""Delta tables by the package `deltalake`: no jar, and exactly once by Delta's own application transactions.

A commit carries `txn {appId: ottla-<query id>, version: <batch id>}`; Delta keeps the newest version of each
application in the table's log, so looking it up costs nothing and cleaning up old versions does not lose it.

The tasks write the data files (files); here is the one commit that names them. An append that meets another writer's
commit is tried again on the table as it is then, with the same files; a merge, a replacement and a compaction have
looked at the table, so they are made for one version of it and nothing else, and start again from the next.

A table with features that files of ours would not respect (column mapping, constraints, a change feed, generated
columns; for merges also deletion vectors) is written by `deltalake` itself, in the driver, with the micro-batch in
its memory.
"""

from __future__ import annotations

import json
import logging
import os
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from ottla.spark.pipeline.declare import Delta, local_path
from ottla.spark.pipeline.lake import compaction, merge
from ottla.spark.pipeline.lake.common import (
    GIVEN_UP,
    QueryId,
    TableMismatchError,
    as_stored,
    hidden,
    is_written,
    rows_of,
    stored_type,
)
from ottla.spark.pipeline.lake.delta_log import delta_statistics, delta_text, delta_value, hive_path
from ottla.spark.pipeline.lake.files import Job, Written, discard, spread, width_for, write_files
from ottla.spark.pipeline.lake.spec import DEFAULT_TARGET_BYTES, parse_size, parse_sort

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)

APP_PREFIX: Final = "ottla-"
COMPACTED_APP: Final = "ottla-compaction"
ATTEMPTS: Final = 8
INDEXED_COLUMNS: Final = 32
# What a table may ask of writers that only add files (and take whole ones away).
HARMLESS: Final = frozenset(
    {
        "appendOnly",
        "timestampNtz",
        "v2Checkpoint",
        "vacuumProtocolCheck",
        "domainMetadata",
        "inCommitTimestamp",
        "invariants",
        "deletionVectors",
    }
)
HARMLESS_UNUSED: Final = frozenset(
    {"columnMapping", "changeDataFeed", "checkConstraints", "generatedColumns", "identityColumns"}
)
# In the metadata of a column: what a writer has to check or to compute.
COLUMN_MARKS: Final = ("delta.invariants", "delta.generationExpression", "delta.identity.")


def read_table(source: Delta) -> pa.Table:
    """A table as it is now."""
    import pyarrow as pa
    from deltalake import DeltaTable, QueryBuilder

    table = DeltaTable(source.path, storage_options=dict(source.options) or None)
    return as_stored(pa.table(QueryBuilder().register("t", table).execute("select * from t")))


@lru_cache(maxsize=16)
def _file_system(uri: str, options: tuple[tuple[str, str], ...]) -> Any:
    from deltalake.fs import DeltaStorageHandler
    from pyarrow.fs import PyFileSystem

    handler: Any = DeltaStorageHandler
    return PyFileSystem(handler(uri, dict(options) or None))


@dataclass(frozen=True)
class DeltaStore:
    """A Delta table's place: paths are relative to it."""

    uri: str
    rows: pa.Schema
    partition_by: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def _files(self) -> Any:
        return _file_system(self.uri, tuple(sorted(self.options.items())))

    def schema(self) -> pa.Schema:
        return self.rows

    def fit(self, rows: pa.Table) -> pa.Table:
        import pyarrow as pa

        from ottla.spark.pipeline.lake.fit import fit_rows

        fields = [one for one in self.rows if one.name not in self.partition_by]
        return fit_rows(rows, pa.schema(fields))

    def sources(self) -> Sequence[str]:
        return self.partition_by

    def values(self, row: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(delta_text(row[name]) for name in self.partition_by)

    def key(self, rows: pa.Table) -> pa.Array:
        raise AssertionError("a Delta table is partitioned by columns")

    def path(self, values: tuple[Any, ...], name: str) -> str:
        return hive_path(self.partition_by, values, name)

    def open_output(self, path: str) -> Any:
        return self._files.open_output_stream(path)

    def delete(self, path: str) -> None:
        self._files.delete_file(path)

    def parquet(self) -> Mapping[str, Any]:
        return {"compression": "snappy"}

    def info(self, values: tuple[Any, ...], rows: pa.Schema, metadata: Any, with_nan: frozenset[str]) -> str:
        partition = dict(zip(self.partition_by, values, strict=True))
        return json.dumps(
            {"partition": partition, "stats": delta_statistics(rows, metadata, with_nan, INDEXED_COLUMNS)}
        )

    def read(self, info: str, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """`info` is {"path": ..., "partition": ...}, as `active_files` makes it."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        from ottla.spark.pipeline.lake.fit import fit_rows

        told = json.loads(info)
        schema = pa.schema([one for one in self.rows if columns is None or one.name in columns])
        with self._files.open_input_file(told["path"]) as file:
            # Spark's own files have times as INT96: nanoseconds, as Arrow takes them, end in the year 2262.
            parquet = pq.ParquetFile(file, coerce_int96_timestamp_unit="us")
            there = [name for name in parquet.schema_arrow.names if name in schema.names]
            # Partition columns are not in the file: where only they are asked for, another tells how many rows it has.
            for batch in parquet.iter_batches(columns=there or parquet.schema_arrow.names[:1]):
                rows = as_stored(pa.Table.from_batches([batch]))
                for name, value in told["partition"].items():
                    if name in schema.names:
                        kind = schema.field(name).type
                        constant = pa.scalar(delta_value(value, kind), kind)
                        rows = rows.append_column(name, pa.repeat(constant, batch.num_rows))
                yield from fit_rows(rows, schema).to_batches()


class DeltaWriter:
    """The function that Spark calls for each micro-batch."""

    def __init__(
        self, sink: Delta, mode: str, checkpoint: str, secrets: Mapping[str, str] | None = None
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
        last = None if table is None else table.transaction_version(COMPACTED_APP)
        if self._compaction.is_due(time.time(), last):
            self._compact(batch.sparkSession, query)

    def _write(self, batch: DataFrame, batch_id: int, query: str) -> DeltaTable | None:
        app = APP_PREFIX + query
        table = _open(self._sink)
        mark = None if table is None else table.transaction_version(app)
        if is_written(str(self._sink), mark, batch_id, adopt=self._sink.adopt):
            return table
        obstacles = [] if table is None else _obstacles(table, merging=self._takes_files_away)
        if obstacles:
            log.info("%s has %s: written in the driver", self._sink, ", ".join(obstacles))
            rows = rows_of(batch, self._sink.key, self._sink.order_by)
            write(self._sink, self._mode, table, rows, app, batch_id)
            return _open(self._sink)
        return self._write_by_tasks(batch, batch_id, query, table)

    def _write_by_tasks(
        self, batch: DataFrame, batch_id: int, query: str, table: DeltaTable | None
    ) -> DeltaTable:
        from ottla.spark.pipeline.lake.fit import arrow_schema

        sink, app = self._sink, APP_PREFIX + query
        wanted = arrow_schema(batch.schema)
        if sink.delete:
            wanted = wanted.remove(wanted.get_field_index(sink.delete))
        table = _prepared(sink, table, wanted)
        # While it was made or got new columns, another driver of this query may have been faster.
        if is_written(str(sink), table.transaction_version(app), batch_id, adopt=sink.adopt):
            return table
        if sink.key and self._mode != "complete":
            return merge.merged(
                merge.Request(
                    batch, sink.key, sink.order_by, sink.delete, null_is_a_key=False, sort_by=self._sort_by()
                ),
                _DeltaMerge(sink, wanted, app, batch_id, self._secrets, query),
                table,
            )
        job = self._job(table, query, str(batch_id))
        rows = spread(batch, job, self._sort_by(), transforms=False, width=self._width)
        written = write_files(rows, job)
        self._width = width_for(written, partition_of, job.target_bytes)
        return _commit(sink, self._mode, table, wanted, written, job, app, batch_id)

    @property
    def _takes_files_away(self) -> bool:
        return bool(self._sink.key) or self._mode == "complete"

    def _job(self, table: DeltaTable, query: str, what: str) -> Job:
        return job_for(self._sink, table, query, what, self._secrets)

    def _sort_by(self) -> list[tuple[str, bool]]:
        return [parse_sort(text) for text in self._sink.sort_by]

    def _compact(self, spark: Any, query: str) -> None:
        """Small files merged. Whatever goes wrong here is told and no reason to stop: the rows are in the table."""
        try:
            compact(self._sink, spark, query, self._sort_by(), self._secrets)
        except Exception as error:  # noqa: BLE001 - any, see above
            log.warning("%s is not compacted this time: %s", self._sink, hidden(error, self._secrets))


def job_for(sink: Delta, table: DeltaTable, query: str, what: str, secrets: Mapping[str, str]) -> Job:
    """What tasks need to write files into a table as it is."""
    options = dict(sink.options)
    # Tasks have a directory of their own.
    local = local_path(sink.path)
    uri = sink.path if local is None else os.path.abspath(local)
    store = DeltaStore(uri, schema_of(table), tuple(table.metadata().partition_columns), options)
    target = DEFAULT_TARGET_BYTES if sink.target_file_size is None else parse_size(sink.target_file_size)
    return Job(store, f"ottla-{query}-{what}-{uuid.uuid4().hex[:8]}", target, secrets)


def partition_of(one: Written) -> tuple[Any, ...]:
    """The partition of a file."""
    return tuple(json.loads(one.info)["partition"].values())


def _open(sink: Delta) -> DeltaTable | None:
    from deltalake import DeltaTable

    options = dict(sink.options) or None
    if not DeltaTable.is_deltatable(sink.path, storage_options=options):
        return None
    return DeltaTable(sink.path, storage_options=options)


def schema_of(table: DeltaTable) -> pa.Schema:
    """A table's columns as Arrow has them."""
    import pyarrow as pa

    given: Any = table.schema().to_arrow()
    return pa.schema([pa.field(one.name, stored_type(one.type), one.nullable) for one in pa.schema(given)])


def _obstacles(table: DeltaTable, *, merging: bool) -> list[str]:
    """What the table asks of its writers that tasks' files, or taking files away (`merging`), would not respect."""
    protocol, metadata = table.protocol(), table.metadata()
    return obstacles(
        list(protocol.writer_features or ()),
        list(protocol.reader_features or ()),
        metadata.configuration,
        table.schema().to_json(),
        merging=merging,
    )


def obstacles(
    writer: Sequence[str],
    reader: Sequence[str],
    configuration: Mapping[str, str],
    schema: str,
    *,
    merging: bool,
) -> list[str]:
    """The same of what a table says of itself. Some features stand in the way only where they are used."""
    found = sorted({*writer, *reader} - HARMLESS - HARMLESS_UNUSED)
    if configuration.get("delta.columnMapping.mode", "none") != "none":
        found.append("columnMapping")
    if configuration.get("delta.enableChangeDataFeed", "").lower() == "true":
        found.append("changeDataFeed")
    found += [key for key in configuration if key.startswith("delta.constraints.")]
    found += [mark for mark in COLUMN_MARKS if f'"{mark}' in schema]
    if merging and "deletionVectors" in (*writer, *reader):
        found.append("deletionVectors")
    return found


def _prepared(sink: Delta, table: DeltaTable | None, wanted: pa.Schema) -> DeltaTable:
    """The table, made or with new columns where that is to be: a crash after this leaves a table and no batch."""
    from deltalake import DeltaTable, write_deltalake

    from ottla.spark.pipeline.lake.fit import fitted, refuse_nothing_typed

    options = dict(sink.options) or None
    if table is None:
        refuse_nothing_typed(str(sink), wanted)
        _refuse_all_partitions(sink, wanted.names, sink.partition_by)
        put: Any = DeltaTable.create
        put(
            sink.path,
            wanted,
            mode="ignore",
            partition_by=list(sink.partition_by) or None,
            storage_options=options,
        )
        table = DeltaTable(sink.path, storage_options=options)
    for _ in range(ATTEMPTS):
        _check_partitions(sink, table)
        fit = fitted(str(sink), schema_of(table), wanted, additive=bool(sink.evolve))
        if not fit.changes:
            return table
        refuse_nothing_typed(str(sink), wanted)
        log.info("%s: adds %s", sink, ", ".join(fit.added))
        try:
            write_deltalake(
                table,
                wanted.empty_table(),
                mode="append",
                schema_mode="merge",
                storage_options=options,
            )
        except Exception as error:
            if not _is_conflict(error):
                raise
        table = DeltaTable(sink.path, storage_options=options)
    raise RuntimeError(f"{sink}: other writers change it all the time")


def _check_partitions(sink: Delta, table: DeltaTable) -> None:
    there = tuple(table.metadata().partition_columns)
    if sink.partition_by and sink.partition_by != there:
        raise TableMismatchError(
            f"the {sink} is partitioned by {', '.join(there) or 'nothing'} and partition_by says "
            f"{', '.join(sink.partition_by)}: say what it is, or write into a new table"
        )
    _refuse_all_partitions(sink, [one.name for one in table.schema().fields], there)


def _refuse_all_partitions(sink: Delta, columns: Sequence[str], parts: Sequence[str]) -> None:
    """Partition columns are not in the files: without others there is nothing that holds a row."""
    if not set(columns) - set(parts):
        raise TableMismatchError(
            f"the {sink} would be partitioned by all of its columns, and its files hold nothing: leave one of "
            f"{', '.join(columns)} out of partition_by, or add a column"
        )


def _is_conflict(error: BaseException) -> bool:
    """Whether another writer was faster: then nothing was committed."""
    from deltalake.exceptions import CommitFailedError

    return isinstance(error, CommitFailedError)


def _transact(sink: Delta, table: DeltaTable, actions: list[Any], properties: Any) -> None:
    """One commit of these files, to a table whose columns and partitions stay as they are."""
    _refuse_another(sink, table)
    table.create_write_transaction(
        actions,
        "append",
        table.schema(),
        list(table.metadata().partition_columns),
        commit_properties=properties,
    )


def _refuse_another(sink: Delta, table: DeltaTable) -> None:
    """A table that was deleted and made anew has other versions by the same numbers, and none of the files."""
    from deltalake import DeltaTable

    options = dict(sink.options) or None
    is_there = DeltaTable.is_deltatable(sink.path, storage_options=options)
    now = DeltaTable(sink.path, storage_options=options) if is_there else None
    if now is None or now.metadata().id != table.metadata().id:
        raise RuntimeError(f"somebody deleted the {sink} while a batch was written: it is tried again")


def add_actions(written: Sequence[Written], *, data_change: bool = True) -> list[Any]:
    """Delta's words for new files."""
    from deltalake.transaction import AddAction

    now_ms = time.time_ns() // 1_000_000
    actions = []
    for one in written:
        told = json.loads(one.info)
        actions.append(
            AddAction(one.path, one.size, told["partition"], now_ms, data_change, json.dumps(told["stats"]))
        )
    return actions


def remove_actions(files: Sequence[Mapping[str, Any]], *, data_change: bool = True) -> list[Any]:
    """Delta's words for files that are no longer in the table."""
    from deltalake.transaction import RemoveAction

    now_ms = time.time_ns() // 1_000_000
    return [
        RemoveAction(one["path"], data_change, now_ms, one["size"], dict(one["partition"])) for one in files
    ]


def active_files(table: DeltaTable) -> list[dict[str, Any]]:
    """The files of a table: path, size, rows, partition as text, and the statistics of columns."""
    import pyarrow as pa

    found = pa.table(table.get_add_actions(flatten=True))
    schema, parts = schema_of(table), table.metadata().partition_columns
    names = [one.name for one in schema if one.name not in parts]
    bounds = [name for name in found.column_names if name.startswith(("min.", "max."))]
    known = {name: [_bound(one) for one in found.column(name)] for name in bounds}
    files = []
    for number, row in enumerate(found.drop_columns(bounds).to_pylist()):
        row |= {name: values[number] for name, values in known.items()}
        # The log has paths as URLs have them.
        files.append(
            {
                "path": unquote(row["path"]),
                "size": row["size_bytes"],
                "rows": row["num_records"],
                "partition": {name: delta_text(row[f"partition.{name}"]) for name in parts},
                "values": {name: row[f"partition.{name}"] for name in parts},
                "least": {name: row[f"min.{name}"] for name in names if row.get(f"min.{name}") is not None},
                "most": {name: row[f"max.{name}"] for name in names if row.get(f"max.{name}") is not None},
                "nulls": {
                    name: row[f"null_count.{name}"]
                    for name in names
                    if row.get(f"null_count.{name}") is not None
                },
            }
        )
    return files


def _bound(value: Any) -> Any:
    """None, which is any, for a date that Python has not: `deltalake` and other writers have bounds of these, too."""
    try:
        return value.as_py()
    except (OverflowError, ValueError):
        return None


def _named(sink: Delta) -> set[str]:
    """The paths of all files that are in the table now."""
    table = _open(sink)
    return set() if table is None else {one["path"] for one in active_files(table)}


def _commit(
    sink: Delta,
    mode: str,
    table: DeltaTable,
    wanted: pa.Schema,
    written: Sequence[Written],
    job: Job,
    app: str,
    batch_id: int,
) -> DeltaTable:
    """Files of an append or a replacement into the table. Files of a batch that is not to be are taken away."""
    from deltalake import CommitProperties, DeltaTable, Transaction

    for attempt in range(ATTEMPTS):
        mark = table.transaction_version(app)
        if attempt:
            try:
                written_by_another = is_written(str(sink), mark, batch_id, adopt=sink.adopt)
                _still_fits(sink, table, wanted, job, merging=mode == "complete")
            except Exception:
                discard(job.store, written, lambda: _named(sink))
                raise
            if written_by_another:
                discard(job.store, written, lambda: _named(sink))
                return table
        if not written and mark is not None and mode != "complete":
            return table
        actions = add_actions(written)
        replaces = mode == "complete"
        if replaces:
            actions += remove_actions(active_files(table))
        # What replaces has looked at the table; what is added goes beside whatever others have added.
        properties = CommitProperties(
            app_transactions=[Transaction(app, batch_id)], max_commit_retries=0 if replaces else None
        )
        try:
            _transact(sink, table, actions, properties)
            return table
        except Exception as error:
            if not _is_conflict(error):
                raise  # it may be in the table: the files stay, and the next try looks
            if attempt == ATTEMPTS - 1:
                discard(job.store, written, lambda: _named(sink))
                raise
        table = DeltaTable(sink.path, storage_options=dict(sink.options) or None)
    raise AssertionError("unreachable")


def _still_fits(sink: Delta, table: DeltaTable, wanted: pa.Schema, job: Job, *, merging: bool) -> None:
    """Files that were written for the table as it was have to be right for it as it is."""
    from ottla.spark.pipeline.lake.fit import fitted

    fit = fitted(str(sink), schema_of(table), wanted, additive=bool(sink.evolve))
    parts = tuple(table.metadata().partition_columns)
    if fit.changes or parts != tuple(job.store.sources()) or _obstacles(table, merging=merging):
        raise RuntimeError(f"somebody changed the {sink} while a batch was written: it is tried again")


class _DeltaMerge:
    """What merging asks of a Delta table."""

    def __init__(
        self, sink: Delta, wanted: pa.Schema, app: str, batch_id: int, secrets: Mapping[str, str], query: str
    ) -> None:
        self._sink = sink
        self._wanted = wanted
        self._app = app
        self._batch_id = batch_id
        self._secrets = secrets
        self._query = query

    def reopen(self) -> DeltaTable | None:
        """The table as it is now, None if the batch is in it."""
        table = _open(self._sink)
        mark = None if table is None else table.transaction_version(self._app)
        if is_written(str(self._sink), mark, self._batch_id, adopt=self._sink.adopt):
            return None
        return _prepared(self._sink, table, self._wanted)

    def current(self) -> DeltaTable:
        table = _open(self._sink)
        assert table is not None
        return table

    def is_new(self, table: DeltaTable) -> bool:
        return table.transaction_version(self._app) is None

    def job(self, table: DeltaTable) -> Job:
        return job_for(self._sink, table, self._query, str(self._batch_id), self._secrets)

    def files(self, table: DeltaTable) -> list[merge.Candidate]:
        return [
            merge.Candidate(
                one["path"],
                json.dumps({"path": one["path"], "partition": one["partition"]}),
                {
                    **{
                        name: (one["least"][name], one["most"][name])
                        for name in one["least"]
                        if name in one["most"]
                    },
                    **{name: (value, value) for name, value in one["values"].items() if value is not None},
                },
                one,
            )
            for one in active_files(table)
        ]

    def is_small(self, table: DeltaTable) -> bool:
        return sum(int(one["size"]) for one in active_files(table)) <= merge.SMALL_TABLE_BYTES

    def merge_here(self, table: DeltaTable, rows: pa.Table) -> bool:
        try:
            write(self._sink, "append", table, self._whole(table, rows), self._app, self._batch_id)
        except Exception as error:
            if _is_conflict(error):
                return False
            raise
        return True

    def _whole(self, table: DeltaTable, rows: pa.Table) -> pa.Table:
        """What the batch lacks, be it in a struct, is null in its rows, as in those that tasks merge: `deltalake` would
        leave the old value of a column, and refuses a struct. Rows that delete may lack what must not be null."""
        import pyarrow as pa

        from ottla.spark.pipeline.lake.fit import fit_rows

        columns = [one.with_nullable(True) for one in schema_of(table)]
        whole, delete = fit_rows(rows, pa.schema(columns)), self._sink.delete
        if delete is None or delete in whole.column_names:
            return whole
        return whole.append_column(delete, rows.column(delete))

    def commit(self, table: DeltaTable, gone: Sequence[merge.Candidate], written: Sequence[Written]) -> bool:
        """One commit, on just this version of the table; False if another writer was faster."""
        from deltalake import CommitProperties, Transaction

        actions = [*add_actions(written), *remove_actions([one.file for one in gone])]
        properties = CommitProperties(
            app_transactions=[Transaction(self._app, self._batch_id)], max_commit_retries=0
        )
        try:
            _transact(self._sink, table, actions, properties)
        except Exception as error:
            if _is_conflict(error):
                return False
            raise
        return True


def compact(
    sink: Delta, spark: Any, query: str, sort_by: Sequence[tuple[str, bool]], secrets: Mapping[str, str]
) -> int:
    """Small files of each partition become large ones, in one commit that changes no row; how many went."""
    from deltalake import CommitProperties, Transaction

    table = _open(sink)
    if table is None or _obstacles(table, merging=True):
        return 0
    job = job_for(sink, table, query, "compact", secrets)
    files = active_files(table)
    bins = compaction.plan(
        [compaction.Small(n, one["size"], tuple(one["partition"].values())) for n, one in enumerate(files)],
        job.target_bytes,
    )
    if not bins:
        return 0
    told = [
        [json.dumps({"path": files[n]["path"], "partition": files[n]["partition"]}) for n in one]
        for one in bins
    ]
    written = compaction.rewrite(spark, job, told, sort_by)
    gone = [files[n] for one in bins for n in one]
    if all(one["rows"] is not None for one in gone):
        compaction.check_rows(str(sink), sum(one["rows"] for one in gone), written, job)
    properties = CommitProperties(
        custom_metadata={"ottla.compaction": "true"},
        app_transactions=[Transaction(COMPACTED_APP, int(time.time()))],
        max_commit_retries=0,
    )
    try:
        _transact(
            sink,
            table,
            [*add_actions(written, data_change=False), *remove_actions(gone, data_change=False)],
            properties,
        )
    except Exception as error:
        if _is_conflict(error):
            discard(job.store, written, lambda: _named(sink))
        raise
    return len(gone)


# -- in the driver, by deltalake itself: tables with features that files of ours would not respect --------------------


def give_up(sink: Delta, query: str) -> bool:
    """Let no driver of this query write any more; False if there is no such table."""
    for attempt in range(ATTEMPTS):
        table = _open(sink)
        if table is None:
            return False
        if table.transaction_version(APP_PREFIX + query) == GIVEN_UP:
            return True
        try:
            _mark(sink, table, APP_PREFIX + query, GIVEN_UP)
        except Exception as error:
            if not _is_conflict(error) or attempt == ATTEMPTS - 1:
                raise
        else:
            return True
    raise AssertionError("unreachable")


def already_written(table: DeltaTable | None, app: str, batch_id: int) -> bool:
    """Whether this batch, or a later one of the same query, is in the table."""
    newest = None if table is None else table.transaction_version(app)
    return newest is not None and newest >= batch_id


def write(sink: Delta, mode: str, table: DeltaTable | None, rows: pa.Table, app: str, batch_id: int) -> None:
    """One batch, one commit."""
    from deltalake import CommitProperties, Transaction

    if not rows.num_rows and mode != "complete" and table is not None:
        if table.transaction_version(app) is None:
            _mark(sink, table, app, batch_id)
        return
    commit = CommitProperties(app_transactions=[Transaction(app, batch_id)])
    if not sink.key or mode == "complete":
        _put(sink, "overwrite" if mode == "complete" else "append", table, rows, commit)
        return
    if table is None:
        table = _create(sink, rows)
    _merge(sink, table, rows, commit)


def _mark(sink: Delta, table: DeltaTable, app: str, batch_id: int) -> None:
    """The first batch of a query is told to the table even if it has no rows: a table without a mark has seen none."""
    from deltalake import CommitProperties, Transaction

    _transact(sink, table, [], CommitProperties(app_transactions=[Transaction(app, batch_id)]))


def _put(sink: Delta, mode: str, table: DeltaTable | None, rows: pa.Table, commit: Any) -> None:
    import deltalake

    put: Any = deltalake.write_deltalake  # its overloads tell the modes apart
    more: dict[str, Any] = {"schema_mode": "merge"} if sink.evolve and table is not None else {}
    put(
        table if table is not None else sink.path,
        rows,
        mode=mode,
        partition_by=list(sink.partition_by) or None if table is None else None,
        storage_options=dict(sink.options) or None,
        commit_properties=commit,
        **more,
    )


def _create(sink: Delta, rows: pa.Table) -> DeltaTable:
    """An empty table for rows to be merged into: a crash before the merge leaves a table and no batch."""
    from deltalake import DeltaTable, write_deltalake

    stored = rows.drop_columns([sink.delete]) if sink.delete else rows
    options = dict(sink.options) or None
    partitions = list(sink.partition_by) or None
    write_deltalake(
        sink.path, stored.slice(0, 0), mode="ignore", partition_by=partitions, storage_options=options
    )
    return DeltaTable(sink.path, storage_options=options)


def _merge(sink: Delta, table: DeltaTable, rows: pa.Table, commit: Any) -> None:
    values = {f"`{name}`": f"s.`{name}`" for name in rows.column_names if name != sink.delete}
    same_key = " AND ".join(f"t.`{name}` = s.`{name}`" for name in sink.key)
    newer = f"coalesce(s.`{sink.order_by}` >= t.`{sink.order_by}`, true)" if sink.order_by else "true"
    merge = table.merge(
        rows,
        same_key,
        source_alias="s",
        target_alias="t",
        merge_schema=bool(sink.evolve),
        commit_properties=commit,
    )
    gone = f"coalesce(s.`{sink.delete}`, false)" if sink.delete else "false"
    if sink.delete:
        merge = merge.when_matched_delete(predicate=f"{gone} AND {newer}")
    merge = merge.when_matched_update(updates=values, predicate=f"NOT {gone} AND {newer}")
    merge.when_not_matched_insert(updates=values, predicate=f"NOT {gone}").execute()
