"""The same questions as plain SQL over tables: what every stream of queries.py has to come to.

Written from what a query asks, not from how its stream is made: window functions and `count(distinct ...)`, which
streams cannot have, are what they are here. `answer()` asks them of Parquet files that hold the events.

A stream that waits for the watermark (`WAITS`) never tells of the events that close the topics, so its answer is
without them; `KEYS` names the columns by which the newest row of a stream in update mode is found.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from bench.nexmark.events import CLOSING, KINDS
from ottla.spark.pipeline.declare import DeclaredPipeline

WAITS: Final = frozenset({"q4", "q5", "q6", "q7", "q8", "q9", "q11"})
KEYS: Final = {
    "q4": ("category",),
    "q6": ("seller",),
    "q12": ("bidder", "starttime"),
    "q15": ("day",),
    "q16": ("channel", "day"),
    "q17": ("auction", "day"),
    "q18": ("bidder", "auction"),
    "q19": ("auction", "rank"),
}

_WON = """
    SELECT * FROM (
        SELECT A.*, bidder, price, B.dateTime AS bid_dateTime, B.extra AS bid_extra,
            row_number() OVER (PARTITION BY A.id ORDER BY price DESC, B.dateTime) AS place
        FROM auction A JOIN bid B ON A.id = B.auction AND B.dateTime BETWEEN A.dateTime AND A.expires
    ) WHERE place = 1
"""


def _statistics(group: str, more: str) -> str:
    ranks = {
        "rank1": "price < 10000",
        "rank2": "price BETWEEN 10000 AND 999999",
        "rank3": "NOT price < 1000000",
    }
    columns = ["count(*) AS total_bids"]
    columns += [f"count(*) FILTER (WHERE {of}) AS {rank}_bids" for rank, of in ranks.items()]
    for named, column in (("bidders", "bidder"), ("auctions", "auction")):
        columns.append(f"count(DISTINCT {column}) AS total_{named}")
        columns += [
            f"count(DISTINCT {column}) FILTER (WHERE {of}) AS {rank}_{named}" for rank, of in ranks.items()
        ]
    return f"SELECT {group}, {more} {', '.join(columns)} FROM day_bid GROUP BY {group}"


SQL: Final = {
    "q0": "SELECT auction, bidder, price, dateTime, extra FROM bid",
    "q1": "SELECT auction, bidder, 0.908 * price AS price, dateTime, extra FROM bid",
    "q2": "SELECT auction, price FROM bid WHERE mod(auction, 123) = 0",
    "q3": """
        SELECT P.name, P.city, P.state, A.id FROM auction A JOIN person P ON A.seller = P.id
        WHERE A.category = 10 AND (P.state = 'OR' OR P.state = 'ID' OR P.state = 'CA')
    """,
    "q4": f"SELECT category, avg(price) AS final FROM ({_WON}) GROUP BY category",
    "q5": """
        SELECT starttime, endtime, auction, num FROM (
            SELECT window.start AS starttime, window.end AS endtime, auction, count(*) AS num,
                rank() OVER (PARTITION BY window ORDER BY count(*) DESC) AS place
            FROM (SELECT window(dateTime, '10 seconds', '2 seconds') AS window, auction FROM bid)
            GROUP BY window, auction
        ) WHERE place = 1
    """,
    "q6": f"""
        SELECT seller, avg(price) AS average FROM (
            SELECT seller, price, row_number() OVER (PARTITION BY seller ORDER BY expires DESC, id DESC) AS age
            FROM ({_WON})
        ) WHERE age <= 10 GROUP BY seller
    """,
    "q7": """
        SELECT auction, price, bidder, dateTime, extra FROM (
            SELECT *, row_number() OVER (PARTITION BY window ORDER BY price DESC, dateTime) AS place
            FROM (SELECT *, date_trunc('second', dateTime) - make_dt_interval(0, 0, 0, second(dateTime) % 10)
                AS window FROM bid)
        ) WHERE place = 1
    """,
    "q8": """
        SELECT DISTINCT P.id, P.name, P.window.start AS starttime
        FROM (SELECT id, name, window(dateTime, '10 seconds') AS window FROM person) P
        JOIN (SELECT seller, window(dateTime, '10 seconds') AS window FROM auction) A
        ON P.id = A.seller AND P.window.start = A.window.start
    """,
    "q9": f"""
        SELECT id, itemName, description, initialBid, reserve, dateTime, expires, seller, category, extra, bidder,
            price, bid_dateTime, bid_extra
        FROM ({_WON})
    """,
    "q10": """
        SELECT auction, bidder, price, dateTime, extra, date_format(dateTime, 'yyyy-MM-dd') AS dt,
            date_format(dateTime, 'HH-mm') AS hm
        FROM bid
    """,
    # A session begins where the bid before is over ten seconds ago, or there is none: Spark joins those that touch.
    "q11": """
        SELECT bidder, count(*) AS bids, min(dateTime) AS starttime,
            max(dateTime) + INTERVAL 10 SECONDS AS endtime
        FROM (
            SELECT bidder, dateTime, sum(is_first) OVER (PARTITION BY bidder ORDER BY dateTime) AS number
            FROM (
                SELECT bidder, dateTime, int(coalesce(dateTime > lag(dateTime)
                    OVER (PARTITION BY bidder ORDER BY dateTime) + INTERVAL 10 SECONDS, true)) AS is_first
                FROM bid
            )
        ) GROUP BY bidder, number
    """,
    # Windows are by the clock of the run: what they sum up to is all that can be foretold.
    "q12": "SELECT bidder, count(*) AS bids FROM bid GROUP BY bidder",
    "q13": """
        SELECT auction, bidder, price, dateTime, value FROM bid JOIN side ON mod(auction, 10000) = side.key
    """,
    "q14": """
        SELECT auction, bidder, 0.908 * price AS price,
            CASE WHEN hour(dateTime) BETWEEN 8 AND 18 THEN 'dayTime' WHEN hour(dateTime) IN (7, 19) THEN 'otherTime'
                ELSE 'nightTime' END AS bidTimeType,
            dateTime, extra, size(split(extra, 'c')) - 1 AS c_counts
        FROM bid WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000
    """,
    "q15": _statistics("day", ""),
    "q16": _statistics("channel, day", "date_format(max(dateTime), 'HH:mm') AS minute,"),
    "q17": """
        SELECT auction, day, count(*) AS total_bids, count(*) FILTER (WHERE price < 10000) AS rank1_bids,
            count(*) FILTER (WHERE price BETWEEN 10000 AND 999999) AS rank2_bids,
            count(*) FILTER (WHERE price >= 1000000) AS rank3_bids, min(price) AS min_price,
            max(price) AS max_price, avg(price) AS avg_price, sum(price) AS sum_price
        FROM day_bid GROUP BY auction, day
    """,
    "q18": """
        SELECT bidder, auction, price, channel, url, dateTime, extra FROM (
            SELECT *, row_number() OVER (PARTITION BY bidder, auction ORDER BY dateTime DESC) AS age FROM bid
        ) WHERE age = 1
    """,
    "q19": """
        SELECT auction, rank, bidder, price, channel, url, dateTime, extra FROM (
            SELECT *, row_number() OVER (PARTITION BY auction ORDER BY price DESC, dateTime) AS rank FROM bid
        ) WHERE rank <= 10
    """,
    "q20": """
        SELECT auction, bidder, price, channel, url, B.dateTime AS bid_dateTime, B.extra AS bid_extra, itemName,
            description, initialBid, reserve, A.dateTime AS auction_dateTime, expires, seller, category,
            A.extra AS auction_extra
        FROM bid B JOIN auction A ON B.auction = A.id WHERE category = 10
    """,
    "q21": """
        SELECT * FROM (
            SELECT auction, bidder, price, channel, CASE channel WHEN 'Apple' THEN '0' WHEN 'Google' THEN '1'
                WHEN 'Facebook' THEN '2' WHEN 'Baidu' THEN '3'
                ELSE nullif(substring_index(url, 'channel_id=', -1), url) END AS channel_id
            FROM bid
        ) WHERE channel_id IS NOT NULL
    """,
    "q22": """
        SELECT auction, bidder, price, channel, nullif(split_part(url, '/', 4), '') AS dir1,
            nullif(split_part(url, '/', 5), '') AS dir2, nullif(split_part(url, '/', 6), '') AS dir3
        FROM bid
    """,
}


def write_tables(spark: Any, pipeline: DeclaredPipeline, place: Path) -> None:
    """The events, which lie in `place` as lines of JSON (person.json ...), as Parquet files, by the topics' schemas."""
    topics = pipeline.topics()
    for kind in KINDS:
        (_, _, topic), *_ = topics[f"nexmark.{kind}"]
        spark.read.schema(topic.schema).json(str(place / f"{kind}.json")).write.parquet(str(place / kind))


def answer(spark: Any, name: str, place: Path, side: Any = None) -> Any:
    """A query's rows as a DataFrame; `place` has a directory of Parquet files for each kind of event."""
    for kind in KINDS:
        rows = spark.read.parquet(str(place / kind))
        if name in WAITS:
            rows = rows.where(rows.dateTime < CLOSING)
        rows.createOrReplaceTempView(kind)
    spark.table("bid").selectExpr("*", "date_format(dateTime, 'yyyy-MM-dd') AS day").createOrReplaceTempView(
        "day_bid"
    )
    if side is not None:
        side.createOrReplaceTempView("side")
    return spark.sql(SQL[name])
