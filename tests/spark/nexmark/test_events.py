"""Nexmark's events: as many of each kind as there have to be, the same for a seed, and never later than promised."""

from __future__ import annotations

import json
from collections import Counter
from datetime import datetime, timedelta
from typing import Any

import pytest
from bench.nexmark.events import CLOSING, KINDS, Shape, closing, events


def made(shape: Shape) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
    for kind, text in events(shape):
        event = json.loads(text)
        event["dateTime"] = datetime.fromisoformat(event["dateTime"])
        found[kind].append(event)
    return found


@pytest.mark.parametrize("number", [1, 2, 4, 5, 49, 50, 51, 1234])
def test_one_person_three_auctions_and_46_bids_of_fifty(number: int) -> None:
    shape = Shape(number)
    found = made(shape)
    assert {kind: len(rows) for kind, rows in found.items()} == {kind: shape.count(kind) for kind in KINDS}
    assert sum(map(shape.count, KINDS)) == number


def test_the_proportions() -> None:
    assert [Shape(5000).count(kind) for kind in KINDS] == [100, 300, 4600]


def test_a_seed_is_always_the_same_and_another_is_not() -> None:
    assert list(events(Shape(500))) == list(events(Shape(500)))
    assert list(events(Shape(500))) != list(events(Shape(500, seed=17)))


def test_times_are_all_different_and_out_of_order_within_a_bound() -> None:
    shape = Shape(5000, rate=100, disorder=20)
    times = [datetime.fromisoformat(json.loads(text)["dateTime"]) for _, text in events(shape)]
    assert len(set(times)) == len(times)
    assert times != sorted(times)
    newest = times[0]
    for time in times:
        assert newest - time < timedelta(seconds=shape.disorder / shape.rate)
        newest = max(newest, time)
    in_order = [json.loads(text)["dateTime"] for _, text in events(Shape(500, disorder=1))]
    assert in_order == sorted(in_order)


def test_auctions_are_open_for_no_longer_than_said_and_end_at_whole_milliseconds() -> None:
    shape = Shape(5000, rate=100)
    for auction in made(shape)["auction"]:
        expires = datetime.fromisoformat(auction["expires"])
        assert timedelta(0) < expires - auction["dateTime"] <= timedelta(microseconds=shape.longest_us)
        assert expires.microsecond % 1000 == 0


def test_some_are_hot_and_some_come_before_what_they_refer_to() -> None:
    found = made(Shape(20_000))
    (_, hottest), *_ = Counter(bid["bidder"] for bid in found["bid"]).most_common(1)
    assert hottest > len(found["bid"]) / 20, "a hundred people later there is another hot bidder"
    opened = {auction["id"]: auction["dateTime"] for auction in found["auction"]}
    known = [bid for bid in found["bid"] if bid["auction"] in opened]
    early = [bid for bid in known if bid["dateTime"] < opened[bid["auction"]]]
    assert 0 < len(early) < len(known) / 10
    assert all("channel_id" not in bid["url"] for bid in found["bid"] if bid["channel"] == "Apple")


def test_what_closes_comes_after_all_and_differs_by_partition() -> None:
    texts = {text for partition in range(3) for text in closing(partition).values()}
    assert len(texts) == 9
    assert all(datetime.fromisoformat(json.loads(text)["dateTime"]) >= CLOSING for text in texts)
    last = max(bid["dateTime"] for bid in made(Shape(5000, rate=100))["bid"])
    assert last < CLOSING
