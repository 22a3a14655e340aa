"""Iceberg tables by the package `pyiceberg`: no jar, an SQLite catalog unless another is given, exactly once.

A commit carries the batch id twice: as a property of its snapshot, for those who ask where rows came from, and as
a property of the table (`ottla.batch.<query id>`), set in the same transaction, which stays when snapshots expire.
A commit that loses against another writer's is tried again on the table as it is then, after looking the batch
up again.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ottla.spark.pipeline.declare import Iceberg
from ottla.spark.pipeline.lake.common import QueryId, as_stored, rows_of, split_deleted

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table, Transaction
    from pyspark.sql import DataFrame

BATCH_PROPERTY = "ottla.batch."
SNAPSHOT_QUERY = "ottla.query-id"
SNAPSHOT_BATCH = "ottla.batch-id"
RETRIES = "commit.retry.num-retries"
ATTEMPTS = 8


def open_catalog(sink: Iceberg) -> Catalog:
    """The catalog that a declaration names."""
    from pyiceberg.catalog import load_catalog

    properties = dict(sink.catalog)
    if not {"type", "uri", "py-catalog-impl"} & properties.keys():
        place = Path(properties["warehouse"].removeprefix("file://")).absolute()
        place.mkdir(parents=True, exist_ok=True)
        properties |= {"type": "sql", "uri": f"sqlite:///{place}/catalog.db", "warehouse": f"file://{place}"}
    return load_catalog("ottla", **properties)


def read_table(source: Iceberg) -> pa.Table:
    """A table as it is now."""
    return as_stored(open_catalog(source).load_table(source.table).scan().to_arrow())


class IcebergWriter:
    """The function that Spark calls for each micro-batch."""

    def __init__(self, sink: Iceberg, mode: str, checkpoint: str) -> None:
        self._sink = sink
        self._mode = mode
        self._query_id = QueryId(checkpoint)

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        query = self._query_id.of(batch)
        catalog = open_catalog(self._sink)
        table = _open(catalog, self._sink)
        if table is not None and already_written(table, query, batch_id):
            return
        rows = rows_of(batch, self._sink.key, self._sink.order_by)
        write(self._sink, self._mode, table or _create(catalog, self._sink, rows), rows, query, batch_id)


def _open(catalog: Catalog, sink: Iceberg) -> Table | None:
    from pyiceberg.exceptions import NoSuchTableError

    try:
        return catalog.load_table(sink.table)
    except NoSuchTableError:
        return None


def _create(catalog: Catalog, sink: Iceberg, rows: pa.Table) -> Table:
    stored = rows.drop_columns([sink.delete]) if sink.delete else rows
    catalog.create_namespace_if_not_exists(sink.table.rpartition(".")[0])
    return catalog.create_table_if_not_exists(sink.table, stored.schema)


def already_written(table: Table, query: str, batch_id: int) -> bool:
    """Whether this batch, or a later one of the same query, is in the table."""
    newest = table.properties.get(BATCH_PROPERTY + query)
    return newest is not None and int(newest) >= batch_id


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
                transaction.set_properties({BATCH_PROPERTY + query: str(batch_id)})
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
    if mode == "complete" and table.current_snapshot() is not None:
        transaction.overwrite(kept, snapshot_properties=properties)
    elif not sink.key or mode == "complete":
        if kept.num_rows:
            transaction.append(kept, snapshot_properties=properties)
    elif rows.num_rows:
        _upsert(sink, table, transaction, kept, gone, properties)


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
