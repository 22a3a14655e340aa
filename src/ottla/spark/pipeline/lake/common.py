"""What the lake sinks share: which batch of which query this is, its rows as Arrow, the newest row of each key.

Exactly once into a table: (query id, batch id) is written in the very commit that adds the rows, and looked up
before the next; a batch that Spark replays after a crash is found there and left out. Both ids are Spark's own
and belong to the checkpoint, so a new checkpoint is a new writer. A micro-batch passes through the driver's memory
on its way; `maxOffsetsPerTrigger` on the input bounds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ottla.spark.driver import query_id_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


class QueryId:
    """Spark's id of a query: the same over all restarts from one checkpoint. Asked inside a micro-batch, kept after."""

    def __init__(self, checkpoint: str) -> None:
        self._checkpoint = checkpoint
        self._known: str | None = None

    def of(self, batch: DataFrame) -> str:
        if self._known is None:
            self._known = query_id_of(batch, self._checkpoint)
        return self._known


def rows_of(batch: DataFrame, key: Sequence[str], order_by: str | None) -> pa.Table:
    """The rows of a batch as Arrow; of those with one key only the newest."""
    chosen = batch if not key or order_by is None else _newest(batch, key, order_by)
    rows = as_stored(chosen.toArrow())
    if key and rows.num_rows != rows.select(list(key)).group_by(list(key)).aggregate([]).num_rows:
        raise ValueError(
            f"several rows of a micro-batch have the same {', '.join(key)}: order_by= says which is the newest"
        )
    return rows


def _newest(batch: DataFrame, key: Sequence[str], order_by: str) -> DataFrame:
    from pyspark.sql import functions as F

    columns = [F.col(f"`{name}`") for name in batch.columns]
    order = F.col(f"`{order_by}`")
    # max_by leaves out rows without an order: one of those counts, but only where there is no other.
    best = F.max_by(F.struct(*columns), F.struct(order.isNotNull(), order)).alias("row")
    newest = batch.groupBy(*[F.col(f"`{name}`") for name in key]).agg(best)
    return newest.select(*[F.col("row")[name].alias(name) for name in batch.columns])


def as_stored(table: pa.Table) -> pa.Table:
    """The types that tables have: instants in UTC, whatever the session's time zone, and no views of strings."""
    import pyarrow as pa

    fields = [pa.field(f.name, _stored_type(f.type), f.nullable) for f in table.schema]
    return table.cast(pa.schema(fields))


def _stored_type(kind: Any) -> Any:
    import pyarrow as pa

    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    if pa.types.is_string_view(kind) or pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_binary_view(kind) or pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, _stored_type(f.type), f.nullable) for f in kind])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(
            pa.field(kind.value_field.name, _stored_type(kind.value_type), kind.value_field.nullable)
        )
    if pa.types.is_map(kind):
        return pa.map_(_stored_type(kind.key_type), _stored_type(kind.item_type))
    return kind


def split_deleted(rows: pa.Table, delete: str | None) -> tuple[pa.Table, pa.Table]:
    """Rows to keep and rows to delete, both without the column that tells them apart."""
    import pyarrow.compute as pc

    if delete is None:
        return rows, rows.slice(0, 0)
    gone = pc.fill_null(rows.column(delete), False)
    kept = rows.drop_columns([delete])
    return kept.filter(pc.invert(gone)), kept.filter(gone)
