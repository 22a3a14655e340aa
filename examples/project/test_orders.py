"""Tests of orders.py: `pytest` in this directory; Spark starts once, and a broker only where one is asked for."""

from orders import paid, revenue


def order(number, shop="a", cents=100, minute=0, paid=True):
    return {
        "id": f"o{number}",
        "shop": shop,
        "cents": cents,
        "paid": paid,
        "at": f"2026-11-01T12:{minute:02d}:00Z",
    }


def test_only_what_is_paid_counts_and_once(pipelines):
    rows = [order(1), order(1), order(2, paid=False), order(3, cents=50)]
    assert sorted(row["id"] for row in pipelines.batch(paid, orders=rows)) == ["o1", "o3"]


def test_an_hour_is_told_when_it_is_over(pipelines):
    first = [order(1), order(2, cents=50)]
    closing = [{**order(3), "at": "2026-11-01T13:30:00Z"}]
    late = [order(4, cents=7)]
    found = pipelines.stream(revenue, orders=[first, closing, closing, late])
    assert [(row["shop"], row["cents"]) for row in found] == [("a", 150)]


def test_what_does_not_parse_is_set_aside(pipelines):
    found = pipelines.run("orders.py", {"orders": [order(1), {**order(2), "cents": "many"}]})
    assert len(found["orders.bad"]) == 1
    assert found["revenue"] == [], "its hour is not over"
