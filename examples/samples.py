"""Sample events for the example pipelines, made from a seed: the same seed always gives the same events.

    python -m ottla.examples.samples clickstream -b localhost:9092

Rules: generators are pure (no clock: the time of the first event is a parameter) and give records as they go into a
topic: key, value, timestamp in milliseconds. What real producers do wrong is in them, too: late, twice, broken.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple


class Sample(NamedTuple):
    """A record to produce."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: int


PAGES = {"/": 30, "/letters": 22, "/diaries": 14, "/search": 12, "/stories": 9, "/prague": 4, "/about": 3}
USERS = ("franz", "ottla", "milena", "max", "felice", "hermann", "julie", "grete", "josef", "karl")
CITIES = {
    "prague": (50.08, 14.43),
    "vienna": (48.21, 16.37),
    "berlin": (52.52, 13.40),
    "new york": (40.71, -74.01),
    "tokyo": (35.68, 139.69),
}
BROKEN = (b"{oops", b'{"user": "x"}', b"\xff\xfe", b"[1, 2]")
START_MS = 1_767_225_600_000  # 2026-01-01T00:00:00Z
MINUTE_MS = 60_000


def clicks(count: int, seed: int = 1, start_ms: int = START_MS, bad_share: float = 0.02) -> Iterator[Sample]:
    """Visitors of a site, a click every 1.5 seconds or so; each comes and goes, so that there are sessions."""
    dice = random.Random(seed)
    now_ms = start_ms
    here = [dice.choice(USERS) for _ in range(3)]
    for _ in range(count):
        now_ms += dice.randint(1, 3000)
        if dice.random() < 0.15:
            here[dice.randrange(len(here))] = dice.choice(USERS)
        user = dice.choice(here)
        if dice.random() < bad_share:
            yield Sample(user.encode(), dice.choice(BROKEN), now_ms)
            continue
        page = dice.choices(tuple(PAGES), tuple(PAGES.values()))[0]
        yield _sample(user, {"user": user, "page": page, "at": iso(now_ms)}, now_ms)


def payments(count: int, seed: int = 2, start_ms: int = START_MS) -> Iterator[Sample]:
    """Cards that pay where their owners live; now and then one is tried in small steps, or is on two continents."""
    dice = random.Random(seed)
    homes = {f"{4700 + n}": dice.choice(tuple(CITIES)) for n in range(12)}
    now_ms = start_ms
    planned: list[tuple[str, float, str]] = []
    for number in range(count):
        now_ms += dice.randint(5_000, 60_000)
        if not planned:
            planned = _shopping(dice, homes)
        card, amount, city = planned.pop()
        lat, lon = CITIES[city]
        payment = {
            "id": f"p-{number}",
            "card": card,
            "amount": amount,
            "lat": round(lat + dice.uniform(-0.05, 0.05), 4),
            "lon": round(lon + dice.uniform(-0.05, 0.05), 4),
            "at": iso(now_ms),
        }
        yield _sample(card, payment, now_ms)


def _shopping(dice: random.Random, homes: dict[str, str]) -> list[tuple[str, float, str]]:
    """The next payments, the last first: mostly one, sometimes what a thief does."""
    card = dice.choice(tuple(homes))
    home, what = homes[card], dice.random()
    if what < 0.1:
        tries = [(card, round(dice.uniform(0.5, 4.9), 2), home) for _ in range(dice.randint(2, 5))]
        return [(card, round(dice.uniform(500, 2000), 2), home), *tries]
    if what < 0.2:
        return [(card, round(dice.uniform(10, 90), 2), dice.choice(tuple(CITIES)))]
    return [(card, round(dice.uniform(1, 600), 2), home)]


def changes(count: int, seed: int = 3, start_ms: int = START_MS) -> Iterator[Sample]:
    """A table's changes as Debezium writes them: with and without the schema envelope, and some of it twice."""
    dice = random.Random(seed)
    table: dict[int, dict[str, Any]] = {}
    sent: list[Sample] = []
    for number in range(count):
        now_ms = start_ms + number * 1000
        key = dice.randint(1, max(count // 8, 2))
        before = table.get(key)
        if before is not None and dice.random() < 0.25:
            del table[key]
            events = [
                _change(dice, "d", key, before, None, number, now_ms),
                Sample(_change_key(key), None, now_ms),
            ]
        else:
            after = table[key] = _customer(dice, key, now_ms)
            events = [_change(dice, "u" if before else "c", key, before, after, number, now_ms)]
        yield from events
        sent += events
        if dice.random() < 0.05:
            # Everything since some point, once more and in order: that is how Debezium repeats itself.
            yield from sent[-dice.randint(1, 6) :]


def _customer(dice: random.Random, key: int, now_ms: int) -> dict[str, Any]:
    name = dice.choice(USERS)
    return {
        "id": key,
        "name": name,
        "email": dice.choice((f"{name}@example.org", None)),
        "balance": f"{dice.randint(-9999, 99999) / 100:.2f}",
        "updated_at": now_ms * 1000 + dice.randint(0, 999),
    }


def _change(
    dice: random.Random,
    op: str,
    key: int,
    before: dict[str, Any] | None,
    after: dict[str, Any] | None,
    number: int,
    now_ms: int,
) -> Sample:
    source = {
        "connector": "postgresql",
        "table": "customers",
        "lsn": 24_000_000 + number * 56,
        "ts_ms": now_ms,
    }
    # Without REPLICA IDENTITY FULL the database remembers no more than the key of what it deletes or changes.
    known = before if before is None or dice.random() < 0.5 else {"id": key}
    change = {"before": known, "after": after, "source": source, "op": op, "ts_ms": now_ms + 5}
    return Sample(_change_key(key), _enveloped(change, dice.random() < 0.5), now_ms)


def _change_key(key: int) -> bytes:
    """The same bytes for the same row, always: compaction goes by them."""
    return _enveloped({"id": key}, key % 2 == 0)


def _enveloped(payload: dict[str, Any], with_schema: bool) -> bytes:
    """With the schema around it or without, as the converter is set."""
    schema = {"type": "struct", "optional": False}
    return json.dumps({"schema": schema, "payload": payload} if with_schema else payload).encode()


def raw_events(
    count: int, seed: int = 4, start_ms: int = START_MS, bad_share: float = 0.05
) -> Iterator[Sample]:
    """Events of a shop over some days, by producers that agree on little."""
    dice = random.Random(seed)
    now_ms = start_ms
    for number in range(count):
        now_ms += dice.randint(1, 60 * MINUTE_MS)
        user = dice.choice(USERS)
        if dice.random() < bad_share:
            yield Sample(user.encode(), dice.choice(BROKEN), now_ms)
            continue
        event: dict[str, Any] = {
            "id": f"e-{number}",
            "kind": dice.choice(("view", "View ", "cart", "purchase", " PURCHASE", "refund", "dance")),
            "user": dice.choice((user, f" {user}", "", None)),
            "at": iso(now_ms),
        }
        amount = dice.choice((None, 12, 7.5, "19.90", "3,50", "-1", "free"))
        if amount is not None:
            event |= {"amount": amount, "currency": dice.choice(("EUR", "czk", "", None))}
        yield _sample(user, event, now_ms)


def telemetry(count: int, seed: int = 5, start_ms: int = START_MS) -> Iterator[Sample]:
    """Devices that measure every few seconds; some lose the network and send what they have when it is back."""
    dice = random.Random(seed)
    now_ms = start_ms
    for _ in range(count):
        now_ms += dice.randint(200, 4000)
        device = f"d-{dice.randint(1, 5)}"
        kept_ms = dice.choice((0, 0, 0, 0, dice.randint(0, MINUTE_MS), dice.randint(0, 6 * MINUTE_MS)))
        reading = {
            "device": device,
            "temperature": round(dice.gauss(21, 3), 2),
            "at": iso(now_ms - kept_ms),
        }
        yield _sample(device, reading, now_ms)


def orders(count: int, seed: int = 6, start_ms: int = START_MS) -> Iterator[Sample]:
    """Orders of customers c-0 to c-9, a few minutes apart."""
    dice = random.Random(seed)
    now_ms = start_ms
    for number in range(count):
        now_ms += dice.randint(1, 5 * MINUTE_MS)
        customer = f"c-{dice.randint(0, 9)}"
        order = {
            "order_id": f"o-{number}",
            "customer": customer,
            "total": dice.randint(100, 9999) / 100,
            "at": iso(now_ms),
        }
        yield _sample(f"o-{number}", order, now_ms)


def order_payments(count: int, seed: int = 6, start_ms: int = START_MS) -> Iterator[Sample]:
    """What is paid for the orders of the same seed: most within the hour, some too late, some not, some not enough."""
    dice = random.Random(seed + 1)
    paid = []
    for order in orders(count, seed, start_ms):
        ordered = json.loads(order.value or b"")
        what = dice.random()
        after_ms = dice.randint(60, 120) * MINUTE_MS if what < 0.1 else dice.randint(0, 59 * MINUTE_MS)
        if what < 0.8:
            amount = ordered["total"] if what < 0.7 else ordered["total"] - 1
            paid.append((order.timestamp_ms + after_ms, ordered["order_id"], round(amount, 2)))
    for at_ms, order_id, amount in sorted(paid):
        yield _sample(order_id, {"order_id": order_id, "paid": amount, "at": iso(at_ms)}, at_ms)


def customers(count: int = 10, seed: int = 6, start_ms: int = START_MS) -> Iterator[Sample]:
    """The customers' table as a compacted topic has it: who changed is there twice, who left has a tombstone."""
    dice = random.Random(seed + 2)
    for number in range(count):
        key = f"c-{number}"
        name = f"{dice.choice(USERS)} {number}"
        yield _sample(key, {"name": name, "country": dice.choice(("CZ", "AT", "DE"))}, start_ms)
        if dice.random() < 0.3:
            yield _sample(key, {"name": name, "country": "US"}, start_ms)
        elif dice.random() < 0.2:
            yield Sample(key.encode(), None, start_ms)


def iso(timestamp_ms: int) -> str:
    """2026-01-01T00:00:00.000Z, as Spark writes it, too."""
    at = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _sample(key: str, value: Any, timestamp_ms: int) -> Sample:
    return Sample(key.encode(), json.dumps(value).encode(), timestamp_ms)


FEEDS: dict[str, dict[str, Callable[..., Iterator[Sample]]]] = {
    "clickstream": {"clicks": clicks},
    "fraud": {"payments": payments},
    "cdc": {"shop.public.customers": changes},
    "etl": {"events.raw": raw_events},
    "iot": {"telemetry": telemetry},
    "enrichment": {"customers": customers, "orders": orders, "order.payments": order_payments},
}


def main(argv: list[str]) -> int:
    """Produce the samples of one pipeline, the last events about now."""
    from ottla.client.blocking import Producer
    from ottla.client.producer.accumulator import Delivery
    from ottla.model.errors import KafkaError

    parser = argparse.ArgumentParser(prog="python -m ottla.examples.samples")
    parser.add_argument("pipeline", choices=sorted(FEEDS))
    parser.add_argument("-b", "--bootstrap-server", default="localhost:9092")
    parser.add_argument("-n", "--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(argv)
    feeds = FEEDS[args.pipeline]
    last_ms = max(sample.timestamp_ms for feed in feeds.values() for sample in feed(args.count, args.seed))
    start_ms = START_MS + time.time_ns() // 1_000_000 - last_ms
    sent: dict[str, list[Delivery]] = {topic: [] for topic in feeds}
    try:
        with Producer(bootstrap_servers=args.bootstrap_server, client_id="ottla-samples") as producer:
            for topic, feed in feeds.items():
                for sample in feed(args.count, args.seed, start_ms):
                    sent[topic].append(
                        producer.send(topic, sample.value, sample.key, timestamp_ms=sample.timestamp_ms)
                    )
            producer.flush()
        for topic, deliveries in sent.items():
            for delivery in deliveries:
                delivery.metadata()  # raises what went wrong
            print(f"{len(deliveries)} records sent to {topic}", file=sys.stderr)
    except KafkaError as error:
        print(f"samples: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
