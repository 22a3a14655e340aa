"""Raw events, cleaned and typed, by day into a lake; what is bad is set aside, and nothing stops the stream.

    LAKE=/data/lake ottla pipeline run etl.py
    LAKE_FORMAT=delta ottla pipeline run etl.py          needs: pip install '.[spark,jre,lake]'

In:   events.raw        {"id": "e-1", "kind": " Purchase", "user": "ada", "at": "2026-...", "amount": "12.50", ...}
Out:  $LAKE/events      Parquet (or a Delta table), a directory a day: id, kind, user, at, amount, currency, day
      events.bad        what does not parse, as it came, with the reason in its headers
      events.rejected   what parses and makes no sense, with the reason in a column

A batch that is replayed after a crash is in the lake once: Spark's Parquet sink and Delta both know which batches they
have. Read Parquet through Spark (or through the list of files in $LAKE/events/_spark_metadata) to see only those.
"""

import os

from pyspark.sql import functions as F

from ottla.spark import delta, parquet, pipeline, topic

LAKE = os.environ.get("LAKE", "lake")
LAKE_FORMAT = os.environ.get("LAKE_FORMAT", "parquet")
KINDS = ("view", "cart", "purchase", "refund")
lake_table = delta if LAKE_FORMAT == "delta" else parquet

# Producers agree on little: amounts come as text and as numbers, so they are read as text and made a number here.
raw = topic(
    "events.raw",
    schema=(
        "id string NOT NULL, kind string NOT NULL, user string, at timestamp NOT NULL, "
        "amount string, currency string"
    ),
    on_error="skip",
    partitions=2,
)


@pipeline.view
def typed(raw=raw):
    """Every event with its columns cleaned, and in `reason` why it cannot be used, if it cannot."""
    event = raw.select(
        F.trim("id").alias("id"),
        F.lower(F.trim("kind")).alias("kind"),
        F.nullif(F.trim("user"), F.lit("")).alias("user"),
        "at",
        F.col("amount").alias("given"),
        F.expr("try_cast(replace(amount, ',', '.') AS decimal(12,2))").alias("amount"),
        F.upper(F.coalesce(F.nullif(F.trim("currency"), F.lit("")), F.lit("EUR"))).alias("currency"),
        F.to_date("at").alias("day"),
    )
    has_amount = F.col("kind").isin("purchase", "refund")
    reason = (
        F.when(~F.col("kind").isin(*KINDS), F.concat(F.lit("unknown kind "), "kind"))
        .when(F.col("given").isNotNull() & F.col("amount").isNull(), F.concat(F.lit("no number: "), "given"))
        .when(has_amount & F.col("amount").isNull(), "no amount")
        .when(F.col("amount") < 0, "negative amount")
    )
    return event.withColumn("reason", reason)


# Every 10 seconds, since each micro-batch is a file a day and partition, and small files are slow to read.
@pipeline.stream(
    out=lake_table(f"{LAKE}/events", partition_by="day"),
    dead_letter=topic("events.bad", partitions=1),
    trigger="10 seconds",
)
def to_lake(typed=typed):
    return typed.where("reason IS NULL").drop("reason", "given")


@pipeline.stream(out=topic("events.rejected", key="id", partitions=1), trigger="10 seconds")
def rejected(typed=typed):
    return typed.where("reason IS NOT NULL").select(
        "id", "kind", "user", "at", F.col("given").alias("amount"), "reason"
    )
