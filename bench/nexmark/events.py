"""Nexmark's events: people who register, auctions that they open, bids on those; the same for the same seed, always.

What the benchmark fixes is kept: of 50 events one is a person, three are auctions and 46 are bids; event time advances
at a rate; half of the bids are for the hot auction of the moment and three of four are of its hot bidder, three of four
auctions are of the hot seller; others refer to people and auctions that are recent, and a few to such as come next. The
values are our own. Rules:

- Every event has a microsecond of its own, so "the last bid" is one bid. `expires` has whole milliseconds, which is
  what Spark's JSON keeps of a time.
- Within a group of `disorder` events the order is mixed: no event comes later than that after those that it precedes.
- `closing()` is what comes after all: one event of each kind a partition, weeks later, for watermarks to pass the rest.

Plain Python with the pieces of strings prepared: a million events take a few seconds.
"""

from __future__ import annotations

import random
import string
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

KINDS: Final = ("person", "auction", "bid")
CYCLE: Final = 50
PERSONS: Final = 1
AUCTIONS: Final = 3
BEGIN: Final = datetime(2026, 11, 1, tzinfo=UTC)
CLOSING: Final = datetime(2027, 1, 1, tzinfo=UTC)
SECOND_US: Final = 1_000_000

FIRST_ID: Final = 1000
FIRST_CATEGORY: Final = 10
CATEGORIES: Final = 5
# Whom others refer to: those who came last, and a few who come next.
ACTIVE_PEOPLE: Final = 1000
OPEN_AUCTIONS: Final = 100
AHEAD: Final = 10
# The hot one is the last whose number is a multiple of this.
HOT_EVERY: Final = 100
HOT_AUCTION_SHARE: Final = 0.5
HOT_PERSON_SHARE: Final = 0.75
HOT_CHANNEL_SHARE: Final = 0.5

HOT_CHANNELS: Final = ("Google", "Facebook", "Baidu", "Apple")
CHANNELS: Final = 10_000
FIRST_NAMES: Final = ("Ada", "Bo", "Cleo", "Dag", "Edda", "Finn", "Gro", "Hal", "Ines", "Jon", "Kaja")
LAST_NAMES: Final = ("Abel", "Berg", "Curie", "Dahl", "Euler", "Falk", "Gauss", "Hahn", "Ibsen")
PLACES: Final = (
    ("Phoenix", "AZ"),
    ("Los Angeles", "CA"),
    ("Sacramento", "CA"),
    ("Boise", "ID"),
    ("Portland", "OR"),
    ("Salem", "OR"),
    ("Seattle", "WA"),
    ("Spokane", "WA"),
    ("Cheyenne", "WY"),
)


@dataclass(frozen=True)
class Shape:
    """Which events: how many, how many a second of event time, how far out of order, from which seed."""

    events: int
    rate: int = 1000
    disorder: int = 20
    seed: int = 16

    def __post_init__(self) -> None:
        assert self.events > 0, "no events"
        assert 0 < self.rate <= SECOND_US, "every event has a microsecond of its own"
        assert self.disorder > 0, "1 is: in order"

    def count(self, kind: str) -> int:
        """How many of a kind there are, without those that close."""
        whole, rest = divmod(self.events, CYCLE)
        people = whole * PERSONS + min(rest, PERSONS)
        auctions = whole * AUCTIONS + min(max(rest - PERSONS, 0), AUCTIONS)
        return {"person": people, "auction": auctions, "bid": self.events - people - auctions}[kind]

    @property
    def longest_us(self) -> int:
        """The longest time that an auction is open: as long as twice the open auctions take to come."""
        return 2 * OPEN_AUCTIONS * CYCLE // AUCTIONS * SECOND_US // self.rate


def events(shape: Shape) -> Iterator[tuple[str, str]]:
    """All events in the order in which they come: kind and JSON."""
    made = _Maker(shape)
    order = list(range(shape.disorder))
    for first in range(0, shape.events, shape.disorder):
        made.rng.shuffle(order)
        for place in order:
            number = first + place
            if number < shape.events:
                yield made.event(number)


def closing(partition: int) -> dict[str, str]:
    """The last event of each kind in a partition."""
    time = f"{CLOSING:%Y-%m-%dT%H:%M:%S}.{partition:06d}Z"
    end = f"{CLOSING.replace(day=2):%Y-%m-%dT%H:%M:%S}.000Z"
    return {
        "person": f'{{"id":{partition},"name":"","emailAddress":"","creditCard":"","city":"","state":"",'
        f'"dateTime":"{time}","extra":""}}',
        "auction": f'{{"id":{partition},"itemName":"","description":"","initialBid":0,"reserve":0,'
        f'"dateTime":"{time}","expires":"{end}","seller":{partition},"category":0,"extra":""}}',
        "bid": f'{{"auction":{partition},"bidder":{partition},"price":0,"channel":"","url":"",'
        f'"dateTime":"{time}","extra":""}}',
    }


class _Maker:
    """Events by their number. `rng` is used in the order of the calls, so the order is part of the seed's result."""

    def __init__(self, shape: Shape) -> None:
        self.rng = random.Random(shape.seed)
        self._random = self.rng.random
        self._begin_us = int(BEGIN.timestamp()) * SECOND_US
        self._step = SECOND_US / shape.rate
        self._longest_ms = max(shape.longest_us // 1000, 1)
        self._second = -1
        self._prefix = ""
        letters = string.ascii_lowercase
        self._text = "".join(self.rng.choices(letters, k=4096))
        words = ["".join(self.rng.choices(letters, k=5)) for _ in range(200)]
        self._paths = [f"https://nexmark.test/{'/'.join(words[at : at + 3])}" for at in range(150)]

    def event(self, number: int) -> tuple[str, str]:
        cycle, offset = divmod(number, CYCLE)
        time_us = self._begin_us + int(number * self._step)
        if offset < PERSONS:
            return "person", self._person(cycle, time_us)
        if offset < PERSONS + AUCTIONS:
            return "auction", self._auction(cycle, cycle * AUCTIONS + offset - PERSONS, time_us)
        return "bid", self._bid(cycle, cycle * AUCTIONS + AUCTIONS - 1, time_us)

    def _person(self, number: int, time_us: int) -> str:
        first = FIRST_NAMES[self._below(len(FIRST_NAMES))]
        last = LAST_NAMES[self._below(len(LAST_NAMES))]
        city, state = PLACES[self._below(len(PLACES))]
        card = f"{self._below(10**16):016d}"
        return (
            f'{{"id":{FIRST_ID + number},"name":"{first} {last}",'
            f'"emailAddress":"{first.lower()}@{last.lower()}.test",'
            f'"creditCard":"{card[:4]} {card[4:8]} {card[8:12]} {card[12:]}","city":"{city}","state":"{state}",'
            f'"dateTime":"{self._time(time_us)}","extra":"{self._letters(40, 80)}"}}'
        )

    def _auction(self, last_person: int, number: int, time_us: int) -> str:
        first_bid = self._price()
        length_ms = 1 + self._below(self._longest_ms)
        expires_us = (time_us // 1000 + length_ms) * 1000
        seller = self._person_number(last_person, hot=0)
        return (
            f'{{"id":{FIRST_ID + number},"itemName":"{self._letters(10, 20)}",'
            f'"description":"{self._letters(60, 100)}","initialBid":{first_bid},'
            f'"reserve":{first_bid + self._price()},"dateTime":"{self._time(time_us)}",'
            f'"expires":"{self._time(expires_us)}","seller":{FIRST_ID + seller},'
            f'"category":{FIRST_CATEGORY + self._below(CATEGORIES)},"extra":"{self._letters(200, 300)}"}}'
        )

    def _bid(self, last_person: int, last_auction: int, time_us: int) -> str:
        if self._random() < HOT_AUCTION_SHARE:
            auction = last_auction // HOT_EVERY * HOT_EVERY
        else:
            oldest = max(last_auction - OPEN_AUCTIONS, 0)
            auction = oldest + self._below(last_auction - oldest + 1 + AHEAD)
        bidder = self._person_number(last_person, hot=1)
        path = self._paths[self._below(len(self._paths))]
        if self._random() < HOT_CHANNEL_SHARE:
            channel, url = HOT_CHANNELS[self._below(len(HOT_CHANNELS))], f"{path}/item.htm?query=1"
        else:
            number = self._below(CHANNELS)
            channel = f"channel-{number}"
            # One channel of ten has no id in its addresses.
            more = f"&channel_id={number * 7919 % 1_000_003}" if number % 10 else ""
            url = f"{path}/item.htm?query=1{more}"
        return (
            f'{{"auction":{FIRST_ID + auction},"bidder":{FIRST_ID + bidder},"price":{self._price()},'
            f'"channel":"{channel}","url":"{url}","dateTime":"{self._time(time_us)}",'
            f'"extra":"{self._letters(30, 70)}"}}'
        )

    def _person_number(self, last: int, hot: int) -> int:
        """A seller or bidder; the hot bidder is not the hot seller."""
        if self._random() < HOT_PERSON_SHARE:
            return last // HOT_EVERY * HOT_EVERY + hot
        oldest = max(last - ACTIVE_PEOPLE, 0)
        return oldest + self._below(last - oldest + 1 + AHEAD)

    def _price(self) -> int:
        """In cents: from one to a million, every power of ten as likely as the next."""
        return round(10 ** (self._random() * 6) * 100)

    def _below(self, end: int) -> int:
        return int(self._random() * end)

    def _letters(self, least: int, most: int) -> str:
        begin = self._below(4096 - most)
        return self._text[begin : begin + least + begin % (most - least + 1)]

    def _time(self, time_us: int) -> str:
        second, rest = divmod(time_us, SECOND_US)
        if second != self._second:
            self._second = second
            self._prefix = f"{datetime.fromtimestamp(second, UTC):%Y-%m-%dT%H:%M:%S}"
        return f"{self._prefix}.{rest:06d}Z"
