"""The clickstream pipeline on a real Spark, against the same figures computed in plain Python."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from tests.support.pipelines import consume
from tests.support.shipped import shipped
from tests.support.six import end, prepare, produce
from tests.support.spark_world import Broker, wait_for

from ottla.examples import samples

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.usefixtures("queries")]


def test_views_and_sessions_to_the_row_over_two_runs(spark: Any, own_broker: Broker, tmp_path: Path) -> None:
    pipeline, clicks = prepare("clickstream", own_broker), shipped("clickstream")
    for part in clicks.parts:
        produce(own_broker, part)
        end(pipeline.start(spark, own_broker.bootstrap, tmp_path, available_now=True))
    clicks.check(clicks.records, own_broker, tmp_path)


def test_it_goes_on_after_a_restart_and_when_the_broker_goes_down_meanwhile(
    spark: Any, own_broker: Broker, tmp_path: Path
) -> None:
    pipeline, judged = prepare("clickstream", own_broker), shipped("clickstream", 300)
    clicks = judged.records
    queries = pipeline.start(spark, own_broker.bootstrap, tmp_path)
    produce(own_broker, clicks[:100])
    for query in queries:
        query.processAllAvailable()
        query.stop()
    produce(own_broker, clicks[100:200])
    queries = pipeline.start(spark, own_broker.bootstrap, tmp_path)
    for query in queries:
        wait_for(lambda query=query: query.lastProgress is not None, query, f"a batch of {query.name}")
    own_broker.kill()
    own_broker.start()
    produce(own_broker, clicks[200:])
    for query in queries:
        query.processAllAvailable()
        query.stop()
    judged.check(clicks, own_broker, tmp_path)


def test_samples_for_those_who_try_it_out_end_about_now(own_broker: Broker) -> None:
    before_ms = time.time_ns() // 1_000_000
    for name in ("clickstream", "enrichment"):
        prepare(name, own_broker)
        assert samples.main([name, "-b", own_broker.bootstrap, "-n", "30"]) == 0
    after_ms = time.time_ns() // 1_000_000
    assert len(consume(own_broker, "clicks")) == 30
    found = {topic: consume(own_broker, topic) for topic in ("clicks", "orders", "order.payments")}
    newest = {topic: max(message.timestamp()[1] for message in found[topic]) for topic in found}
    assert before_ms <= newest["clicks"] <= after_ms
    assert before_ms <= max(newest["orders"], newest["order.payments"]) <= after_ms
    orders = {message.key() for message in found["orders"]}
    assert {message.key() for message in found["order.payments"]} < orders
