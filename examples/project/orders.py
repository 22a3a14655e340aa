"""Revenue by shop and hour, of orders that are paid.

ottla pipeline run orders.py
"""

from pyspark.sql import functions as F

from ottla.spark import pipeline, topic

orders = topic(
    "orders",
    schema="id string NOT NULL, shop string NOT NULL, cents bigint NOT NULL, paid boolean, at timestamp NOT NULL",
    partitions=1,
)


@pipeline.view
def paid(orders=orders):
    return orders.where("paid").withWatermark("at", "10 minutes").dropDuplicates(["id", "at"])


@pipeline.stream(
    out=topic("revenue", key="shop", partitions=1),
    dead_letter=topic("orders.bad", partitions=1),
)
def revenue(paid=paid):
    hours = paid.groupBy(F.window("at", "1 hour"), "shop").agg(F.sum("cents").alias("cents"))
    return hours.select("shop", "cents", F.col("window.start").alias("hour"))
