"""The fraud pipeline on a real Spark: alerts to the row, over restarts that keep the state."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from tests.support.pipelines import consume
from tests.support.six import Record, end, millis, only, prepare, produce, results
from tests.support.spark_world import Broker

from ottla.examples import samples

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("spark"), pytest.mark.usefixtures("queries")]


def kilometres(one: dict[str, Any], other: dict[str, Any]) -> float:
    """By the law of cosines on a sphere, not by the formula that the pipeline uses."""
    a, b = math.radians(one["lat"]), math.radians(other["lat"])
    turn = math.radians(one["lon"] - other["lon"])
    cosine = math.sin(a) * math.sin(b) + math.cos(a) * math.cos(b) * math.cos(turn)
    return 6371 * math.acos(min(cosine, 1.0))


def expected(payments: list[dict[str, Any]]) -> set[tuple[str, str]]:
    """(payment, rule), each looked up in the whole past of its card."""
    found = set()
    for card in {payment["card"] for payment in payments}:
        past = [payment for payment in payments if payment["card"] == card]
        tested_until = 0
        for n, payment in enumerate(past):
            at = millis(payment["at"])
            tries = [
                p for p in past[tested_until:n] if p["amount"] < 5 and at - millis(p["at"]) <= 10 * 60_000
            ]
            if payment["amount"] >= 500 and len(tries) >= 3:
                found.add((payment["id"], "card testing"))
                tested_until = n
            if n and (far := kilometres(past[n - 1], payment)) > 50:
                hours = (at - millis(past[n - 1]["at"])) / 3_600_000
                if far > 900 * hours:
                    found.add((payment["id"], "impossible travel"))
    return found


def test_alerts_to_the_row_however_the_batches_are_cut(
    spark: Any, own_broker: Broker, tmp_path: Path
) -> None:
    pipeline = prepare("fraud", own_broker)
    records = [Record("payments", *sample) for sample in samples.payments(300)]
    broken = Record("payments", b"4701", b'{"id": "x", "card": "4701", "amount": "a lot"}', samples.START_MS)
    # Cut in the middle of what a thief does, so that the second run needs what the first one remembered.
    for part in (records[:137], [broken, *records[137:]]):
        produce(own_broker, part)
        end(pipeline.start(spark, own_broker.bootstrap, tmp_path, available_now=True))
    wanted = expected([json.loads(record.value or b"") for record in records])
    alerts = results(own_broker, "payments.alerts")
    assert {rule for _, rule in wanted} == {"card testing", "impossible travel"}
    assert sorted((alert["payment"], alert["rule"]) for alert in alerts) == sorted(wanted)
    cards = {json.loads(record.value or b"")["id"]: (record.key or b"").decode() for record in records}
    assert all(alert["card"] == cards[alert["payment"]] for alert in alerts)
    (letter,) = consume(own_broker, "payments.bad")
    assert (
        dict(letter.headers())["ottla.error.reason"] == b"the value field 'amount' is \"a lot\", not double"
    )


def test_a_card_that_is_not_used_is_forgotten(spark: Any, own_broker: Broker, tmp_path: Path) -> None:
    pipeline = only(prepare("fraud", own_broker), "alerts")

    def payment(number: int, card: str, day: float) -> Record:
        at_ms = samples.START_MS + round(day * 86_400_000)
        value = {
            "id": f"p-{number}",
            "card": card,
            "amount": 1.0,
            "lat": 50,
            "lon": 14,
            "at": samples.iso(at_ms),
        }
        return Record("payments", card.encode(), json.dumps(value).encode(), at_ms)

    kept = []
    # "b" pays again before its day is over, so it is kept for a day longer; the watermark is a day behind.
    days = ([(0.0, "a"), (0.0, "b"), (0.5, "b")], [(2.2, "c")], [(2.6, "c")])
    for batch in days:
        produce(own_broker, [payment(n, card, day) for n, (day, card) in enumerate(batch)])
        (query,) = end(pipeline.start(spark, own_broker.bootstrap, tmp_path, available_now=True))
        (operator,) = query.lastProgress["stateOperators"]
        kept.append(operator["numRowsTotal"])
    # Two rows of state a card: where it was last, and its small payments.
    assert kept == [4, 4, 2]
