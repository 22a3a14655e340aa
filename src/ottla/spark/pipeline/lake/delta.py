"""Delta tables by the package `deltalake`: no jar, and exactly once by Delta's own application transactions.

A commit carries `txn {appId: ottla-<query id>, version: <batch id>}`; Delta keeps the newest version of each
application in the table's log, so looking it up costs nothing and cleaning up old versions does not lose it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.spark.pipeline.declare import Delta
from ottla.spark.pipeline.lake.common import QueryId, as_stored, rows_of

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame

APP_PREFIX = "ottla-"


def read_table(source: Delta) -> pa.Table:
    """A table as it is now."""
    import pyarrow as pa
    from deltalake import DeltaTable, QueryBuilder

    table = DeltaTable(source.path, storage_options=dict(source.options) or None)
    return as_stored(pa.table(QueryBuilder().register("t", table).execute("select * from t")))


class DeltaWriter:
    """The function that Spark calls for each micro-batch."""

    def __init__(self, sink: Delta, mode: str, checkpoint: str) -> None:
        self._sink = sink
        self._mode = mode
        self._query_id = QueryId(checkpoint)

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        app = APP_PREFIX + self._query_id.of(batch)
        table = _open(self._sink)
        if already_written(table, app, batch_id):
            return
        rows = rows_of(batch, self._sink.key, self._sink.order_by)
        write(self._sink, self._mode, table, rows, app, batch_id)


def _open(sink: Delta) -> DeltaTable | None:
    from deltalake import DeltaTable

    options = dict(sink.options) or None
    if not DeltaTable.is_deltatable(sink.path, storage_options=options):
        return None
    return DeltaTable(sink.path, storage_options=options)


def already_written(table: DeltaTable | None, app: str, batch_id: int) -> bool:
    """Whether this batch, or a later one of the same query, is in the table."""
    newest = None if table is None else table.transaction_version(app)
    return newest is not None and newest >= batch_id


def write(sink: Delta, mode: str, table: DeltaTable | None, rows: pa.Table, app: str, batch_id: int) -> None:
    """One batch, one commit."""
    from deltalake import CommitProperties, Transaction

    if table is not None and not rows.num_rows and mode != "complete":
        return
    commit = CommitProperties(app_transactions=[Transaction(app, batch_id)])
    if not sink.key or mode == "complete":
        _put(sink, "overwrite" if mode == "complete" else "append", table, rows, commit)
        return
    if table is None:
        table = _create(sink, rows)
    _merge(sink, table, rows, commit)


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
        merge_schema=sink.evolve,
        commit_properties=commit,
    )
    gone = f"coalesce(s.`{sink.delete}`, false)" if sink.delete else "false"
    if sink.delete:
        merge = merge.when_matched_delete(predicate=f"{gone} AND {newer}")
    merge = merge.when_matched_update(updates=values, predicate=f"NOT {gone} AND {newer}")
    merge.when_not_matched_insert(updates=values, predicate=f"NOT {gone}").execute()
