"""The clickstream pipeline on a real Spark, against the same figures computed in plain Python."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.support.pipelines import consume
from tests.support.six import Record, end, latest, millis, prepare, produce, results
from tests.support.spark_world import Broker, wait_for

from ottla.examples import samples

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.usefixtures("queries")]

GAP_MS, LATENESS_MS = 10_000, 10_000


def parsed(records: list[Record]) -> list[dict[str, Any]]:
    """The clicks that are clicks."""
    good = [record for record in records if record.value and record.value.startswith(b'{"user"')]
    found = [json.loads(record.value or b"") for record in good]
    return [{**click, "at": millis(click["at"])} for click in found if "at" in click]


def expected_views(clicks: list[dict[str, Any]]) -> Counter[tuple[int, str]]:
    return Counter((click["at"] // 60_000 * 60_000, click["page"]) for click in clicks)


def expected_sessions(clicks: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Clicks of a user with less than the gap between them; those that the watermark has passed."""
    watermark = max(click["at"] for click in clicks) - LATENESS_MS
    sessions: list[list[dict[str, Any]]] = []
    for click in sorted(clicks, key=lambda click: (click["user"], click["at"])):
        last = sessions[-1][-1] if sessions else None
        if last is None or last["user"] != click["user"] or click["at"] - last["at"] >= GAP_MS:
            sessions.append([])
        sessions[-1].append(click)
    return sorted(
        (s[0]["user"], s[0]["at"], s[-1]["at"], len(s), s[0]["page"], s[-1]["page"])
        for s in sessions
        if s[-1]["at"] + GAP_MS <= watermark
    )


def views_of(broker: Broker) -> dict[tuple[int, str], int]:
    rows = latest(results(broker, "clicks.per_minute"), "minute", "page")
    return {(millis(row["minute"]), row["page"]): row["views"] for row in rows}


def sessions_of(broker: Broker) -> list[tuple[Any, ...]]:
    return sorted(
        (r["user"], millis(r["start"]), millis(r["end"]), r["clicks"], r["first_page"], r["last_page"])
        for r in results(broker, "clicks.sessions")
    )


def test_views_and_sessions_to_the_row_over_two_runs(spark: Any, own_broker: Broker, tmp_path: Path) -> None:
    pipeline = prepare("clickstream", own_broker)
    clicks = [Record("clicks", *sample) for sample in samples.clicks(400, bad_share=0.03)]
    for part in (clicks[:250], clicks[250:]):
        produce(own_broker, part)
        end(pipeline.start(spark, own_broker.bootstrap, tmp_path, available_now=True))
    good = parsed(clicks)
    assert 350 < len(good) < 400
    assert views_of(own_broker) == expected_views(good)
    assert sessions_of(own_broker) == expected_sessions(good)
    assert len(expected_sessions(good)) > 40


def test_it_goes_on_after_a_restart_and_when_the_broker_goes_down_meanwhile(
    spark: Any, own_broker: Broker, tmp_path: Path
) -> None:
    pipeline = prepare("clickstream", own_broker)
    clicks = [Record("clicks", *sample) for sample in samples.clicks(300)]
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
    good = parsed(clicks)
    assert views_of(own_broker) == expected_views(good)
    assert sessions_of(own_broker) == expected_sessions(good)


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
