"""Orders joined with what else is known of them: their payments, which are a stream, and their customers, a table.

    ottla pipeline run enrichment.py
    ottla consume -t orders.paid

In:   orders          {"order_id": "o-1", "customer": "c-7", "total": 99.9, "at": "2026-01-01T12:00:00Z"}
      order.payments  {"order_id": "o-1", "paid": 99.9, "at": "2026-01-01T12:03:00Z"}
      customers       {"name": "Ada", "country": "CZ"}, keyed by the customer; compacted: the newest value of a key is
                      the customer, and a key without a value is one who is gone
Out:  orders.paid     an order with its payment and its customer, when the payment has come
      orders.unpaid   an order without a payment, when none can come any more
      orders.bad      what does not parse, with the reason in its headers
"""

from pyspark.sql import functions as F

from ottla.spark import pipeline, topic

PAY_WITHIN = "1 hour"
LATENESS = "10 minutes"

orders = topic(
    "orders",
    schema="order_id string NOT NULL, customer string NOT NULL, total double NOT NULL, at timestamp NOT NULL",
    on_error="skip",
    partitions=2,
)
payments = topic(
    "order.payments",
    schema="order_id string NOT NULL, paid double NOT NULL, at timestamp NOT NULL",
    on_error="skip",
    partitions=2,
)
# A table: for each micro-batch the customers are read as they are then.
customers = topic(
    "customers",
    schema="name string NOT NULL, country string",
    key="customer",
    table=True,
    on_error="skip",
    partitions=1,
    config={"cleanup.policy": "compact"},
)


# Both sides have a watermark and the condition bounds the time between them, so Spark knows how long it has to keep an
# order that waits for its payment: without either, for ever.
@pipeline.view
def with_payment(orders=orders, payments=payments):
    paid = payments.withWatermark("at", LATENESS).select(
        F.col("order_id").alias("paid_order"), "paid", F.col("at").alias("paid_at")
    )
    matches = f"order_id = paid_order AND paid_at >= at AND paid_at <= at + INTERVAL {PAY_WITHIN}"
    return orders.withWatermark("at", LATENESS).join(paid, F.expr(matches), "left_outer")


# Delete this stream and "left_outer" above if you do not need the unpaid ones: an inner join keeps less.
@pipeline.stream(out=topic("orders.unpaid", key="order_id", partitions=2))
def unpaid(with_payment=with_payment):
    return with_payment.where("paid_at IS NULL").select("order_id", "customer", "total", "at")


@pipeline.stream(
    out=topic("orders.paid", key="order_id", partitions=2), dead_letter=topic("orders.bad", partitions=1)
)
def paid(with_payment=with_payment, customers=customers):
    return (
        with_payment.where("paid_at IS NOT NULL")
        .join(customers, "customer", "left_outer")
        .select(
            "order_id",
            "customer",
            "name",
            "country",
            "total",
            "paid",
            "at",
            F.round(F.unix_millis("paid_at") / 1000 - F.unix_millis("at") / 1000, 3).alias("paid_after_s"),
            (F.col("paid") >= F.col("total")).alias("in_full"),
        )
    )
