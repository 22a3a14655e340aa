"""The enrichment pipeline on a real Spark: orders with payments and customers, and those nobody paid, to the row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.pipelines import consume
from tests.support.six import Record, end, millis, prepare, produce, results
from tests.support.spark_world import Broker

from ottla.examples import samples

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("spark"), pytest.mark.usefixtures("queries")]

COUNT = 120
HOUR_MS, LATENESS_MS = 3_600_000, 600_000


def rows(records: list[Record]) -> list[dict[str, Any]]:
    told = [json.loads(record.value or b"") for record in records]
    return [{**row, "at": millis(row["at"])} for row in told]


def expected_paid(
    orders: list[Record], payments: list[Record], customers: list[Record]
) -> list[tuple[Any, ...]]:
    table = {record.key: json.loads(record.value or b"{}") for record in customers}
    paid = {row["order_id"]: row for row in rows(payments)}
    found = []
    for order in rows(orders):
        payment = paid.get(order["order_id"])
        if payment is not None and order["at"] <= payment["at"] <= order["at"] + HOUR_MS:
            customer = table.get(order["customer"].encode(), {})
            found.append(
                (
                    *(order["order_id"], order["customer"], customer.get("name"), customer.get("country")),
                    *(order["total"], payment["paid"], payment["at"] - order["at"]),
                    payment["paid"] >= order["total"],
                )
            )
    return sorted(found)


def test_orders_with_payments_and_customers_and_orders_without_to_the_row(
    spark: Any, own_broker: Broker, tmp_path: Path
) -> None:
    pipeline = prepare("enrichment", own_broker)
    customers = [Record("customers", *sample) for sample in samples.customers(8)]
    orders = [Record("orders", *sample) for sample in samples.orders(COUNT)]
    payments = [Record("order.payments", *sample) for sample in samples.order_payments(COUNT)]
    # One order and one payment long after the rest, so that the watermarks pass all that went before.
    last_ms = payments[-1].timestamp_ms + 5 * HOUR_MS
    end_order = {"order_id": "end", "customer": "c-0", "total": 1.0, "at": samples.iso(last_ms)}
    end_payment = {"order_id": "none", "paid": 1.0, "at": samples.iso(last_ms)}
    ends = [
        Record("orders", b"end", json.dumps(end_order).encode(), last_ms),
        Record("order.payments", b"none", json.dumps(end_payment).encode(), last_ms),
        Record("order.payments", None, b'{"order_id": "o-1"}', last_ms),
    ]
    produce(own_broker, customers)
    middle = orders[COUNT // 2].timestamp_ms
    both = sorted([*orders, *payments], key=lambda record: record.timestamp_ms)
    for part in (
        [record for record in both if record.timestamp_ms < middle],
        [record for record in both if record.timestamp_ms >= middle] + ends,
    ):
        produce(own_broker, part)
        end(pipeline.start(spark, own_broker.bootstrap, tmp_path, available_now=True))
    wanted = expected_paid(orders, payments, customers)
    found = [
        (
            *(r["order_id"], r["customer"], r["name"], r["country"], r["total"], r["paid"]),
            *(round(r["paid_after_s"] * 1000), r["in_full"]),
        )
        for r in results(own_broker, "orders.paid")
    ]
    assert sorted(found) == wanted
    assert {None, "US"} < {row[3] for row in wanted}
    unpaid = {row["order_id"] for row in rows(orders)} - {row[0] for row in wanted}
    assert sorted(row["order_id"] for row in results(own_broker, "orders.unpaid")) == sorted(unpaid)
    assert len(unpaid) > 10
    (letter,) = consume(own_broker, "orders.bad")
    assert dict(letter.headers())["ottla.error.topic"] == b"order.payments"
