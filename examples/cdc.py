"""A table's changes as Debezium writes them, and the table itself kept up in a lake: in Delta and in Iceberg.

    pip install '.[spark,jre,lake]'
    LAKE=/data/lake ottla pipeline run cdc.py

In:   shop.public.customers       Debezium's change events (JSON, with or without the schema envelope), keyed by the
                                  table's key; compacted, so that it holds the whole table for as long as it lives
Out:  $LAKE/customers             a Delta table
      shop.customers              an Iceberg table, with its catalog in $LAKE/iceberg
      shop.public.customers.bad   what does not parse, with the reason in its headers

A row is inserted, replaced and deleted by its key. Events can come again or out of order (Debezium sends again what it
is not sure of, after a restart): the position in the database's log decides, then the offset. Delete streams you do
not want. A TRUNCATE of the table is no change of a row, and is not followed.
"""

import os

from pyspark.sql import functions as F

from ottla.spark import delta, iceberg, pipeline, topic

LAKE = os.environ.get("LAKE", "lake")

# The table's columns as Debezium's JSON converter writes them: timestamps in microseconds (adaptive), decimals as text
# (decimal.handling.mode=string).
ROW = "struct<id bigint, name string, email string, balance string, updated_at bigint>"
SOURCE = "struct<lsn bigint, file string, pos bigint>"  # Postgres has lsn, MySQL file and pos
CHANGE = f"before {ROW}, after {ROW}, source {SOURCE}, op string, ts_ms bigint"

changes = topic(
    "shop.public.customers",
    # With the schema envelope (value.converter.schemas.enable, the default) the change is in `payload`.
    schema=f"payload struct<{CHANGE}>, {CHANGE}",
    key="key",
    on_error="skip",
    tombstones="keep",
    meta=True,
    partitions=1,
    config={"cleanup.policy": "compact"},
)
bad = topic("shop.public.customers.bad", partitions=1)


@pipeline.view
def customers(changes=changes):
    """The newest state of a row for each change of it: its columns, `position` and `deleted`."""
    change = changes.select(
        F.from_json("key", "payload struct<id bigint>, id bigint").alias("key"),
        *[F.coalesce(f"payload.{name}", name).alias(name) for name in ("before", "after", "source", "op")],
        "_meta.offset",
        "_meta.tombstone",
    )
    # A tombstone, a key without a value, follows each delete, for the cleaner of the compacted topic. Once that has
    # removed the delete itself, the tombstone alone is left.
    rows = change.where("tombstone OR op IN ('c', 'u', 'd', 'r')").select(
        F.coalesce("after.id", "before.id", "key.payload.id", "key.id").alias("id"),
        "after.name",
        "after.email",
        F.col("after.balance").cast("decimal(18,2)").alias("balance"),
        F.timestamp_micros("after.updated_at").alias("updated_at"),
        # As text of a fixed width, which all tables can compare; null where there is none: a tombstone has no place
        # in the database's log, and counts if nothing else is known.
        F.when(
            ~F.col("tombstone"),
            F.concat_ws(
                "/",
                F.col("source.file"),
                F.lpad(F.coalesce("source.lsn", "source.pos", F.lit(0)).cast("string"), 20, "0"),
                F.lpad(F.col("offset").cast("string"), 20, "0"),
            ),
        ).alias("position"),
        (F.col("tombstone") | (F.col("op") == "d")).alias("deleted"),
    )
    return rows.where("id IS NOT NULL")


@pipeline.stream(
    out=delta(f"{LAKE}/customers", key="id", order_by="position", delete="deleted"), dead_letter=bad
)
def to_delta(customers=customers):
    return customers


@pipeline.stream(
    out=iceberg(
        "shop.customers", warehouse=f"{LAKE}/iceberg", key="id", order_by="position", delete="deleted"
    )
)
def to_iceberg(customers=customers):
    return customers
