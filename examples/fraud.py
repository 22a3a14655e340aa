"""Card payments: alerts by two rules that remember what a card did before.

    ottla pipeline run fraud.py
    ottla consume -t payments.alerts

In:   payments          {"id": "p-1", "card": "4711", "amount": 12.5, "lat": 50.08, "lon": 14.43, "at": "2026-..."},
                        keyed by the card: a card's payments are in one partition, and so in order
Out:  payments.alerts   {"card": ..., "payment": "p-9", "rule": "card testing", "detail": ..., "at": ...}
      payments.bad      what does not parse, with the reason in its headers

Card testing: whoever has stolen a number tries it with small amounts, then takes a large one.
Impossible travel: two payments, so far apart that nobody could have travelled from one to the other.
"""

import math

from pyspark.sql import Row
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from ottla.spark import pipeline, topic

SMALL, LARGE = 5.0, 500.0
TRIES = 3  # so many small amounts
WITHIN_S = 600.0  # in so many seconds before the large one
MAX_SPEED_KMH = 900.0  # an airliner's
MIN_DISTANCE_KM = 50.0  # the next town is no travel
# What is known of a card is forgotten when it has not been used for so long: nobody travels for longer than that.
FORGET_AFTER_S = 24 * 3600.0
# How late a payment may be, compared with the newest: what is later is not looked at.
LATENESS = "1 day"

payments = topic(
    "payments",
    schema=(
        "id string NOT NULL, card string NOT NULL, amount double NOT NULL, "
        "lat double NOT NULL, lon double NOT NULL, at timestamp NOT NULL"
    ),
    meta=True,
    partitions=2,
)


def distance_km(lat1, lon1, lat2, lon2):
    """Along a great circle."""
    lat1, lon1, lat2, lon2 = map(math.radians, (lat1, lon1, lat2, lon2))
    a = math.sin((lat2 - lat1) / 2) ** 2 + math.cos(lat1) * math.cos(lat2) * math.sin((lon2 - lon1) / 2) ** 2
    return 2 * 6371 * math.asin(math.sqrt(a))


class Watch(StatefulProcessor):
    """What is remembered of each card: where it was last, and its small payments of the last minutes.

    Spark keeps both in RocksDB and commits them with the micro-batch, and the alerts are written in the transaction of
    the same micro-batch: whatever fails, each alert is there once.
    """

    def init(self, handle):
        self.handle = handle
        self.last = handle.getValueState("last", "at double, lat double, lon double")
        self.small = handle.getListState("small", "at double")

    def handleInputRows(self, key, rows, timerValues):
        # Spark gives a card's rows of a micro-batch in any order; by offset they are in the order of arrival, and the
        # alerts do not depend on where one micro-batch ends and the next begins.
        payments = sorted(rows, key=lambda row: row.offset)
        last = self.last.get()
        small = [at for (at,) in self.small.get()]
        if last is None:
            self.look_again(payments[0].seconds)
        for payment in payments:
            at = payment.seconds
            small = [before for before in small if at - before <= WITHIN_S]
            if payment.amount >= LARGE and len(small) >= TRIES:
                yield alert(
                    payment, "card testing", f"{len(small)} small payments, then {payment.amount:.2f}"
                )
                small = []
            if payment.amount < SMALL:
                small.append(at)
            if last is not None:
                distance = distance_km(last[1], last[2], payment.lat, payment.lon)
                hours = abs(at - last[0]) / 3600
                if distance > MIN_DISTANCE_KM and distance > MAX_SPEED_KMH * hours:
                    yield alert(payment, "impossible travel", f"{distance:.0f} km in {hours * 60:.0f} min")
            last = (at, payment.lat, payment.lon)
        self.last.update(last)
        if small:
            self.small.put([(at,) for at in small])
        else:
            self.small.clear()

    # One timer a card: it goes off a day after some payment, and is set again if there was another one meanwhile. It
    # goes by the time of the payments (the watermark), so a replay of old ones gives the same alerts.
    def look_again(self, at):
        self.handle.registerTimer(int((at + FORGET_AFTER_S) * 1000))

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        last = self.last.get()
        if last is not None and (last[0] + FORGET_AFTER_S) * 1000 > timerValues.getCurrentWatermarkInMs():
            self.look_again(last[0])
        else:
            self.last.clear()
            self.small.clear()
        return iter(())

    def close(self):
        pass


def alert(payment, rule, detail):
    return Row(card=payment.card, payment=payment.id, rule=rule, detail=detail, at=payment.at)


@pipeline.stream(
    out=topic("payments.alerts", key="card", partitions=2),
    dead_letter=topic("payments.bad", partitions=1),
)
def alerts(payments=payments):
    return (
        payments.withColumn("offset", F.col("_meta.offset"))
        .withColumn("seconds", F.unix_millis("at") / 1000)
        .drop("_meta")
        .withWatermark("at", LATENESS)
        .groupBy("card")
        .transformWithState(
            Watch(),
            outputStructType="card string, payment string, rule string, detail string, at timestamp",
            outputMode="Append",
            timeMode="EventTime",
        )
    )
