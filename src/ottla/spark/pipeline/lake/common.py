"""What the lake sinks share: which batch of which query this is, whether it is written, the newest row of each key.

Exactly once into a table: (query id, batch id) is written in the very commit that adds the rows, and looked up
before the next; a batch that Spark replays after a crash is found there and left out. Both ids are Spark's own
and belong to the checkpoint, so a new checkpoint is a new writer. Between batches the mark in the table is that of the
batch before; where it is another one, somebody has changed the table or writes from a copy of the checkpoint, and
nothing is written: going on would lose rows or write them twice. A query that was given up (reset) has a mark
beyond all batches: a driver of it that still runs somewhere writes nothing more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from ottla.spark.driver import query_id_of
from ottla.spark.pipeline.discreet import hiding

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


# The mark of a query that was given up. Larger than any batch, and Delta's versions have 63 bits.
GIVEN_UP: Final = 1 << 62


class TableMismatchError(Exception):
    """A table that a batch must not go into as things are: one line that says why. Trying again does not help."""


class QueryId:
    """Spark's id of a query: the same over all restarts from one checkpoint. Asked inside a micro-batch, kept after."""

    def __init__(self, checkpoint: str) -> None:
        self._checkpoint = checkpoint
        self._known: str | None = None

    def of(self, batch: DataFrame) -> str:
        if self._known is None:
            self._known = query_id_of(batch, self._checkpoint)
        return self._known


def is_written(where: str, mark: int | None, batch_id: int, *, adopt: bool = False) -> bool:
    """Whether a batch is in the table, by the mark of its query there; TableMismatchError if the table is not the one
    that the batches before went into.

    The mark is that of the newest batch with rows, and of the first whether it had some: so a table without one has
    seen no batch, and a mark beyond the batch was made by somebody else with the same checkpoint.
    """
    if mark is None:
        if batch_id == 0 or adopt:
            return False
        raise TableMismatchError(
            f"the {where} does not know this query, which has written {batch_id} batches: it was made anew, or it is "
            "another one than before. What was written then is not in it. `ottla pipeline reset` and a new run write "
            "everything again; adopt=True goes on without what was written before"
        )
    if mark == GIVEN_UP:
        raise TableMismatchError(
            f"this query was given up (`ottla pipeline reset`), and the {where} takes nothing of it any more: a new "
            "run starts a query of its own"
        )
    if mark > batch_id:
        raise TableMismatchError(
            f"the {where} has batch {mark} of this query, which is at batch {batch_id}: another run writes from the "
            "same checkpoint or a copy of it, or the checkpoint is an older one. Nothing is written: `ottla pipeline "
            "reset` starts a query of its own"
        )
    return mark == batch_id


def hidden(error: BaseException, secrets: Mapping[str, str]) -> str:
    """What went wrong, in a line without secrets."""
    said = str(error).strip().splitlines()
    return hiding(secrets.values())(f"{type(error).__name__}: {said[0] if said else ''}")


def rows_of(batch: DataFrame, key: Sequence[str], order_by: str | None) -> pa.Table:
    """The rows of a batch as Arrow; of those with one key only the newest."""
    rows = as_stored(chosen_rows(batch, key, order_by).toArrow())
    refuse_doubles(rows, key)
    return rows


def refuse_doubles(rows: pa.Table, key: Sequence[str]) -> None:
    """ValueError if there are several rows with one key."""
    if key and rows.num_rows != rows.select(list(key)).group_by(list(key)).aggregate([]).num_rows:
        raise several(key)


def several(key: Sequence[str]) -> ValueError:
    """What is wrong with such rows."""
    return ValueError(
        f"several rows of a micro-batch have the same {', '.join(key)}: order_by= says which is the newest"
    )


def chosen_rows(batch: DataFrame, key: Sequence[str], order_by: str | None) -> DataFrame:
    """The rows that count: all, or the newest of each key."""
    return batch if not key or order_by is None else _newest(batch, key, order_by)


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

    fields = [pa.field(f.name, stored_type(f.type), f.nullable) for f in table.schema]
    return table.cast(pa.schema(fields))


def stored_type(kind: Any) -> Any:
    """A type as tables have it."""
    import pyarrow as pa

    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    if pa.types.is_string_view(kind) or pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_binary_view(kind) or pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, stored_type(f.type), f.nullable) for f in kind])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(pa.field("element", stored_type(kind.value_type), kind.value_field.nullable))
    if pa.types.is_map(kind):
        return pa.map_(stored_type(kind.key_type), stored_type(kind.item_type))
    return kind


def split_deleted(rows: pa.Table, delete: str | None) -> tuple[pa.Table, pa.Table]:
    """Rows to keep and rows to delete, both without the column that tells them apart."""
    import pyarrow.compute as pc

    if delete is None:
        return rows, rows.slice(0, 0)
    gone = pc.fill_null(rows.column(delete), False)
    kept = rows.drop_columns([delete])
    return kept.filter(pc.invert(gone)), kept.filter(gone)
