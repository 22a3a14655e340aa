"""The enrichment pipeline on a real Spark: orders with payments and customers, and those nobody paid, to the row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.shipped import shipped
from tests.support.six import end, prepare, produce
from tests.support.spark_world import Broker

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("spark"), pytest.mark.usefixtures("queries")]


def test_orders_with_payments_and_customers_and_orders_without_to_the_row(
    spark: Any, own_broker: Broker, tmp_path: Path
) -> None:
    pipeline, orders = prepare("enrichment", own_broker), shipped("enrichment")
    for part in orders.parts:
        produce(own_broker, part)
        end(pipeline.start(spark, own_broker.bootstrap, tmp_path, available_now=True))
    orders.check(orders.records, own_broker, tmp_path)
