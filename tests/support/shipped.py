"""The six pipelines that ship, as tests feed and judge them: records in parts, and what must have come of all so far.

What is wanted is computed from the records in plain Python, never by Spark and not by the formulas of the pipelines, so
that a run anywhere (one session, a cluster, Spark Connect, after kills) is held to the same rows.

    one = shipped("etl")
    for part in one.parts: produce, run
    one.check(one.records, broker, lake)      # each row once, in topics (read_committed) and in the lake
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pytest
from tests.support.pipelines import consume
from tests.support.six import Record, latest, millis, results
from tests.support.spark_world import Broker

from ottla.examples import samples

HOUR_MS = 3_600_000


@dataclass(frozen=True)
class Shipped:
    """A pipeline, its records in the parts that are produced one after the other, and the judge of its results."""

    name: str
    parts: tuple[list[Record], ...]
    check: Callable[[list[Record], Broker, Path], None]

    @property
    def records(self) -> list[Record]:
        return [record for part in self.parts for record in part]


def shipped(name: str, count: int | None = None) -> Shipped:
    """One of NAMES, with about so many records."""
    make, default = _ALL[name]
    return make(count or default)


# -- clickstream --------------------------------------------------------------------------------------------

GAP_MS, LATENESS_MS = 10_000, 10_000


def _clickstream(count: int) -> Shipped:
    clicks = [Record("clicks", *sample) for sample in samples.clicks(count, bad_share=0.03)]
    cut = count * 5 // 8
    return Shipped("clickstream", (clicks[:cut], clicks[cut:]), check_clickstream)


def check_clickstream(records: list[Record], broker: Broker, _lake: Path) -> None:
    good = clicks_of(records)
    assert len(records) * 7 / 8 < len(good) < len(records)
    assert views_of(broker) == expected_views(good)
    wanted = expected_sessions(good)
    assert sessions_of(broker) == wanted
    assert len(wanted) > len(records) / 10


def clicks_of(records: list[Record]) -> list[dict[str, Any]]:
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


# -- fraud --------------------------------------------------------------------------------------------------


def _fraud(count: int) -> Shipped:
    records = [Record("payments", *sample) for sample in samples.payments(count)]
    broken = Record("payments", b"4701", b'{"id": "x", "card": "4701", "amount": "a lot"}', samples.START_MS)
    # Cut in the middle of what a thief does, so that the second run needs what the first one remembered.
    cut = count * 137 // 300
    return Shipped("fraud", (records[:cut], [broken, *records[cut:]]), check_fraud)


def check_fraud(records: list[Record], broker: Broker, _lake: Path) -> None:
    told = [json.loads(record.value or b"") for record in records]
    payments = [payment for payment in told if not isinstance(payment["amount"], str)]
    wanted = expected_alerts(payments)
    alerts = results(broker, "payments.alerts")
    assert {rule for _, rule in wanted} == {"card testing", "impossible travel"}
    assert sorted((alert["payment"], alert["rule"]) for alert in alerts) == sorted(wanted)
    cards = {payment["id"]: payment["card"] for payment in payments}
    assert all(alert["card"] == cards[alert["payment"]] for alert in alerts)
    reasons = [dict(letter.headers())["ottla.error.reason"] for letter in consume(broker, "payments.bad")]
    assert reasons == [b"the value field 'amount' is \"a lot\", not double"] * (len(told) - len(payments))


def kilometres(one: dict[str, Any], other: dict[str, Any]) -> float:
    """By the law of cosines on a sphere, not by the formula that the pipeline uses."""
    a, b = math.radians(one["lat"]), math.radians(other["lat"])
    turn = math.radians(one["lon"] - other["lon"])
    cosine = math.sin(a) * math.sin(b) + math.cos(a) * math.cos(b) * math.cos(turn)
    return 6371 * math.acos(min(cosine, 1.0))


def expected_alerts(payments: list[dict[str, Any]]) -> set[tuple[str, str]]:
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
                hours = (at - millis(past[n - 1]["at"])) / HOUR_MS
                if far > 900 * hours:
                    found.add((payment["id"], "impossible travel"))
    return found


# -- etl ----------------------------------------------------------------------------------------------------

Clean = tuple[str, str, str | None, int, Decimal | None, str, str]


def _etl(count: int) -> Shipped:
    records = [Record("events.raw", *sample) for sample in samples.raw_events(count)]
    cut = count * 2 // 3
    return Shipped("etl", (records[:cut], records[cut:]), check_etl)


def check_etl(records: list[Record], broker: Broker, lake: Path) -> None:
    """Rejected rows, dead letters and the lake's files, each row once."""
    judged = verdicts(records)
    check_rejected(records, broker)
    clean = sorted(row for row in judged.values() if not isinstance(row, str))
    assert in_lake(committed_rows(lake / "events")) == clean


def check_rejected(records: list[Record], broker: Broker) -> None:
    reasons = {key: row for key, row in verdicts(records).items() if isinstance(row, str)}
    rejected = [(row["id"], row["reason"]) for row in results(broker, "events.rejected")]
    assert sorted(rejected) == sorted(reasons.items())
    assert {reason.split(":")[0].split(" kind")[0] for reason in reasons.values()} == {
        "unknown",
        "no number",
        "no amount",
        "negative amount",
    }
    letters = sorted(message.value() for message in consume(broker, "events.bad"))
    assert letters == sorted(record.value or b"" for record in records if parse(record) is None)
    assert len(set(letters)) > 2


def parse(record: Record) -> dict[str, Any] | None:
    try:
        found = json.loads(record.value or b"")
    except ValueError:
        return None
    return found if isinstance(found, dict) and {"id", "kind", "at"} <= found.keys() else None


def judge(event: dict[str, Any]) -> Clean | str:
    """The clean row, or why there is none."""
    kind = event["kind"].strip().lower()
    given = event.get("amount")
    try:
        amount = None if given is None else Decimal(str(given).replace(",", ".")).quantize(Decimal("0.01"))
    except InvalidOperation:
        amount = None
        if kind in ("view", "cart", "purchase", "refund"):
            return f"no number: {given}"
    if kind not in ("view", "cart", "purchase", "refund"):
        return f"unknown kind {kind}"
    if kind in ("purchase", "refund") and amount is None:
        return "no amount"
    if amount is not None and amount < 0:
        return "negative amount"
    user = (event.get("user") or "").strip() or None
    currency = (event.get("currency") or "").strip().upper() or "EUR"
    at = millis(event["at"])
    day = datetime.fromtimestamp(at / 1000, UTC).date().isoformat()
    return (event["id"], kind, user, at, amount, currency, day)


def verdicts(records: list[Record]) -> dict[str, Clean | str]:
    """By event; those that parse."""
    events = [event for record in records if (event := parse(record)) is not None]
    return {event["id"]: judge(event) for event in events}


def in_lake(rows: Iterable[dict[str, Any]]) -> list[Clean]:
    return sorted(
        (
            r["id"],
            r["kind"],
            r["user"],
            round(r["at"].timestamp() * 1000),
            r["amount"],
            r["currency"],
            str(r["day"]),
        )
        for r in rows
    )


def committed_rows(place: Path) -> list[dict[str, Any]]:
    """What Spark's Parquet sink has committed, read without Spark: the files that its log names, with their days."""
    import pyarrow.parquet as pq

    lines = [
        line for file in (place / "_spark_metadata").glob("[0-9]*") for line in file.read_text().splitlines()
    ]
    files = {json.loads(line)["path"] for line in lines if line.startswith("{")}
    rows: list[dict[str, Any]] = []
    for url in sorted(files):
        file = Path(unquote(urlparse(url).path))
        day = file.parent.name.removeprefix("day=")
        # One file, not a data set: the day is in the path alone.
        rows += [{**row, "day": day} for row in pq.ParquetFile(file).read().to_pylist()]
    return rows


# -- cdc ----------------------------------------------------------------------------------------------------

CHANGES = "shop.public.customers"
CDC_COLUMNS = ("id", "name", "email", "balance", "updated_at")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NO_CHANGE = Record(CHANGES, b'{"id": 1}', b"<change/>", samples.START_MS)


def _cdc(count: int) -> Shipped:
    records = [Record(CHANGES, *sample) for sample in samples.changes(count)]
    cut = count * 5 // 12
    return Shipped("cdc", ([*records[:cut], NO_CHANGE], [*records[cut:], NO_CHANGE]), check_cdc)


def check_cdc(records: list[Record], broker: Broker, lake: Path) -> None:
    changes = [record for record in records if record.value != NO_CHANGE.value]
    wanted = expected_customers(changes)
    assert cdc_tables(lake) == (wanted, wanted)
    assert len(wanted) > 10
    assert sum(record.value is None for record in changes) > len(changes) / 20
    broken = [NO_CHANGE.value] * (len(records) - len(changes))
    assert [message.value() for message in consume(broker, f"{CHANGES}.bad")] == broken


def _payload(data: bytes) -> dict[str, Any]:
    found = json.loads(data)
    return dict(found.get("payload", found))


def expected_customers(records: Iterable[Record]) -> list[tuple[Any, ...]]:
    """The table after all changes, each row as its last event by lsn left it."""
    newest: dict[int, tuple[int, dict[str, Any] | None]] = {}
    for record in records:
        if record.value is not None:
            change, key = _payload(record.value), _payload(record.key or b"")["id"]
            if change["source"]["lsn"] >= newest.get(key, (0, None))[0]:
                newest[key] = (change["source"]["lsn"], change["after"])
    rows = [row for _, row in newest.values() if row is not None]
    return sorted(
        (
            row["id"],
            row["name"],
            row["email"],
            Decimal(row["balance"]),
            EPOCH + timedelta(microseconds=row["updated_at"]),
        )
        for row in rows
    )


def cdc_tables(lake: Path) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """What Delta and Iceberg hold."""
    import pyarrow as pa
    from deltalake import DeltaTable, QueryBuilder

    from ottla.spark.pipeline.declare import iceberg
    from ottla.spark.pipeline.lake.iceberg import read_table

    table = DeltaTable(str(lake / "customers"))
    in_delta = pa.table(QueryBuilder().register("t", table).execute("select * from t"))
    in_iceberg = read_table(iceberg("shop.customers", warehouse=str(lake / "iceberg")))
    assert "deleted" not in in_delta.column_names + in_iceberg.column_names
    one, other = (
        sorted(tuple(row[name] for name in CDC_COLUMNS) for row in found.to_pylist())
        for found in (in_delta, in_iceberg)
    )
    return one, other


# -- enrichment ---------------------------------------------------------------------------------------------


def _enrichment(count: int) -> Shipped:
    customers = [Record("customers", *sample) for sample in samples.customers(8)]
    orders = [Record("orders", *sample) for sample in samples.orders(count)]
    payments = [Record("order.payments", *sample) for sample in samples.order_payments(count)]
    # One order and one payment long after the rest, so that the watermarks pass all that went before.
    last_ms = payments[-1].timestamp_ms + 5 * HOUR_MS
    end_order = {"order_id": "end", "customer": "c-0", "total": 1.0, "at": samples.iso(last_ms)}
    end_payment = {"order_id": "none", "paid": 1.0, "at": samples.iso(last_ms)}
    ends = [
        Record("orders", b"end", json.dumps(end_order).encode(), last_ms),
        Record("order.payments", b"none", json.dumps(end_payment).encode(), last_ms),
        Record("order.payments", None, b'{"order_id": "o-1"}', last_ms),
    ]
    middle = orders[count // 2].timestamp_ms
    both = sorted([*orders, *payments], key=lambda record: record.timestamp_ms)
    first = [record for record in both if record.timestamp_ms < middle]
    second = [record for record in both if record.timestamp_ms >= middle]
    return Shipped("enrichment", ([*customers, *first], [*second, *ends]), check_enrichment)


def check_enrichment(records: list[Record], broker: Broker, _lake: Path) -> None:
    orders = [order for order in _rows(records, "orders") if order["order_id"] != "end"]
    wanted = expected_paid(records)
    found = [
        (
            *(r["order_id"], r["customer"], r["name"], r["country"], r["total"], r["paid"]),
            *(round(r["paid_after_s"] * 1000), r["in_full"]),
        )
        for r in results(broker, "orders.paid")
    ]
    assert sorted(found) == wanted
    assert {None, "US"} < {row[3] for row in wanted}
    unpaid = {order["order_id"] for order in orders} - {row[0] for row in wanted}
    assert sorted(row["order_id"] for row in results(broker, "orders.unpaid")) == sorted(unpaid)
    assert len(unpaid) > 10
    (letter,) = consume(broker, "orders.bad")
    assert dict(letter.headers())["ottla.error.topic"] == b"order.payments"


def _rows(records: list[Record], topic: str) -> list[dict[str, Any]]:
    """The records of one topic that are whole."""
    told = [json.loads(record.value or b"") for record in records if record.topic == topic]
    return [{**row, "at": millis(row["at"])} for row in told if "at" in row]


def expected_paid(records: list[Record]) -> list[tuple[Any, ...]]:
    table = {
        record.key: json.loads(record.value or b"{}") for record in records if record.topic == "customers"
    }
    paid = {row["order_id"]: row for row in _rows(records, "order.payments")}
    found = []
    for order in _rows(records, "orders"):
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


# -- iot ----------------------------------------------------------------------------------------------------

READING_LATENESS_MS, WATERMARK_MS, MINUTE_MS = 120_000, 240_000, 60_000


def _iot(count: int) -> Shipped:
    records = [Record("telemetry", *sample) for sample in samples.telemetry(count)]
    cut = count * 5 // 8
    return Shipped("iot", (records[:cut], records[cut:]), check_iot)


def check_iot(records: list[Record], broker: Broker, _lake: Path) -> None:
    wanted = expected_minutes(records)
    assert minutes_of(broker) == wanted
    assert len(wanted) > len(records) / 14
    late = [r for r in readings(records) if r[3] - r[1] > READING_LATENESS_MS]
    found = [
        (r["device"], millis(r["at"]), r["temperature"], millis(r["at"]) + round(r["seconds_late"] * 1000))
        for r in results(broker, "telemetry.late")
    ]
    assert sorted(found) == sorted(late)
    assert len(late) > len(records) / 14


def readings(records: list[Record]) -> list[tuple[str, int, float, int]]:
    """Device, when it was measured, what, and when it came."""
    told = [(json.loads(record.value or b""), record.timestamp_ms) for record in records]
    return [(r["device"], millis(r["at"]), r["temperature"], came_ms) for r, came_ms in told]


def expected_minutes(records: list[Record]) -> list[tuple[Any, ...]]:
    """Of the minutes that the watermark has passed."""
    counted = [reading for reading in readings(records) if reading[3] - reading[1] <= READING_LATENESS_MS]
    watermark = max(at for _, at, _, _ in counted) - WATERMARK_MS
    minutes: dict[tuple[str, int], list[float]] = defaultdict(list)
    for device, at, temperature, _ in counted:
        minutes[device, at // MINUTE_MS * MINUTE_MS].append(temperature)
    return sorted(
        (device, minute, len(all_), min(all_), max(all_), round(sum(all_) / len(all_), 3))
        for (device, minute), all_ in minutes.items()
        if minute + MINUTE_MS <= watermark
    )


def minutes_of(broker: Broker) -> list[tuple[Any, ...]]:
    return sorted(
        (
            r["device"],
            millis(r["minute"]),
            r["readings"],
            r["min"],
            r["max"],
            pytest.approx(r["avg"], abs=0.0011),
        )
        for r in results(broker, "telemetry.per_minute")
    )


_ALL: dict[str, tuple[Callable[[int], Shipped], int]] = {
    "clickstream": (_clickstream, 400),
    "fraud": (_fraud, 300),
    "etl": (_etl, 300),
    "cdc": (_cdc, 240),
    "enrichment": (_enrichment, 120),
    "iot": (_iot, 400),
}
NAMES = tuple(_ALL)
