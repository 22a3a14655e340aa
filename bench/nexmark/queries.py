"""Nexmark's queries as a pipeline: each is a stream over the topics of people, auctions and bids, into a topic.

    ottla pipeline run bench/nexmark/queries.py --create-topics

What each asks is the benchmark's, how it asks is Spark's: state is bounded by watermarks where the question has a time,
and where it has none ("the last ten", "the top ten", "so far") an aggregate in update mode tells every change, so that
the newest row of a key is the answer. Rules:

- All are Spark's own expressions: nothing of a row passes through Python.
- Two aggregates in a row need the append mode, in which every one needs a time. q4 and q6, which have none, are streams
  over the topic of q9, which tells the winning bids once.
- Where SQL would have `count(distinct ...)`, which Spark refuses a stream, the distinct values are collected.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import functions as F

from ottla.spark import param, parquet, pipeline, topic

# Rows of a topic in a micro-batch, at most.
limit = param(int, 300_000, name="limit")
# Where q10 writes its files.
files = param(str, "nexmark-q10", name="files")

# How late a row may be, and how long an auction is open at most.
DELAY = "4 seconds"
LONGEST = "1 minute"
LONGEST_AND_DELAY = "64 seconds"

IN = {"maxOffsetsPerTrigger": limit}
PERSON = topic(
    "nexmark.person",
    schema="id bigint, name string, emailAddress string, creditCard string, city string, state string, "
    "dateTime timestamp, extra string",
    options=IN,
)
AUCTION = topic(
    "nexmark.auction",
    schema="id bigint, itemName string, description string, initialBid bigint, reserve bigint, "
    "dateTime timestamp, expires timestamp, seller bigint, category bigint, extra string",
    options=IN,
)
BID = topic(
    "nexmark.bid",
    schema="auction bigint, bidder bigint, price bigint, channel string, url string, dateTime timestamp, "
    "extra string",
    options=IN,
)
SIDE = topic("nexmark.side", schema="key bigint, value string", key="key", table=True)
WON = topic("nexmark.q9", schema="id bigint, seller bigint, category bigint, expires timestamp, price bigint")

# -- one row at a time ------------------------------------------------------------------------------------


@pipeline.stream(out=topic("nexmark.q0"))
def q0(bid: Any = BID) -> Any:
    """Pass through: what reading and writing cost by themselves."""
    return bid.select("auction", "bidder", "price", "dateTime", "extra")


@pipeline.stream(out=topic("nexmark.q1"))
def q1(bid: Any = BID) -> Any:
    """Currency conversion: prices in euros."""
    return bid.selectExpr("auction", "bidder", "0.908 * price AS price", "dateTime", "extra")


@pipeline.stream(out=topic("nexmark.q2"))
def q2(bid: Any = BID) -> Any:
    """Selection: the bids for some auctions."""
    return bid.where("auction % 123 = 0").select("auction", "price")


@pipeline.stream(out=parquet(files, partition_by=["dt", "hm"]))
def q10(bid: Any = BID) -> Any:
    """Log to the file system: all bids into files, by day and minute."""
    return bid.selectExpr(
        "auction",
        "bidder",
        "price",
        "dateTime",
        "extra",
        "date_format(dateTime, 'yyyy-MM-dd') AS dt",
        "date_format(dateTime, 'HH-mm') AS hm",
    )


@pipeline.stream(out=topic("nexmark.q13"))
def q13(bid: Any = BID, side: Any = SIDE) -> Any:
    """Bounded side input: every bid with what a table has for its auction."""
    keyed = bid.withColumn("key", F.expr("auction % 10000"))
    return keyed.join(side, "key").select("auction", "bidder", "price", "dateTime", "value")


@pipeline.stream(out=topic("nexmark.q14"))
def q14(bid: Any = BID) -> Any:
    """Calculation: a price converted and selected by, the time of day by cases, letters counted."""
    euros = bid.withColumn("price", F.expr("0.908 * price")).where("price > 1000000 AND price < 50000000")
    hour = F.hour("dateTime")
    return euros.select(
        "auction",
        "bidder",
        "price",
        F.when((hour >= 8) & (hour <= 18), "dayTime")
        .when((hour <= 6) | (hour >= 20), "nightTime")
        .otherwise("otherTime")
        .alias("bidTimeType"),
        "dateTime",
        "extra",
        F.expr("length(extra) - length(replace(extra, 'c', ''))").alias("c_counts"),
    )


@pipeline.stream(out=topic("nexmark.q21"))
def q21(bid: Any = BID) -> Any:
    """Add channel id: known channels by their name, others by their address; those without one are left out."""
    name = F.lower("channel")
    known = F.when(name == "apple", "0").when(name == "google", "1")
    known = known.when(name == "facebook", "2").when(name == "baidu", "3")
    named = F.nullif(F.regexp_extract("url", "(&|^)channel_id=([^&]*)", 2), F.lit(""))
    found = bid.withColumn("channel_id", F.coalesce(known, named)).where("channel_id IS NOT NULL")
    return found.select("auction", "bidder", "price", "channel", "channel_id")


@pipeline.stream(out=topic("nexmark.q22"))
def q22(bid: Any = BID) -> Any:
    """Directories of addresses."""
    parts = F.split("url", "/")
    found = [F.get(parts, F.lit(place)).alias(f"dir{place - 2}") for place in (3, 4, 5)]
    return bid.select("auction", "bidder", "price", "channel", *found)


# -- joins ------------------------------------------------------------------------------------------------


@pipeline.stream(out=topic("nexmark.q3"))
def q3(person: Any = PERSON, auction: Any = AUCTION) -> Any:
    """Local item suggestion: who of three states sells in a category. For ever: there is no bound in the question."""
    sellers = person.where("state IN ('OR', 'ID', 'CA')").select(
        F.col("id").alias("person"), "name", "city", "state"
    )
    items = auction.where("category = 10").select("id", "seller")
    return items.join(sellers, items.seller == sellers.person).select("name", "city", "state", "id")


@pipeline.stream(out=topic("nexmark.q20"))
def q20(bid: Any = BID, auction: Any = AUCTION) -> Any:
    """Expand bid with auction, in one category.

    A bid may come before its auction, by much less than the bound that lets bids go.
    """
    items = auction.where("category = 10").withWatermark("dateTime", DELAY).alias("A")
    bids = bid.withWatermark("dateTime", DELAY).alias("B")
    near = F.expr("B.auction = A.id AND A.dateTime <= B.dateTime + INTERVAL 10 SECONDS")
    return bids.join(items, near).selectExpr(
        "auction",
        "bidder",
        "price",
        "channel",
        "url",
        "B.dateTime AS bid_dateTime",
        "B.extra AS bid_extra",
        "itemName",
        "description",
        "initialBid",
        "reserve",
        "A.dateTime AS auction_dateTime",
        "expires",
        "seller",
        "category",
        "A.extra AS auction_extra",
    )


@pipeline.stream(out=topic("nexmark.q9"))
def q9(bid: Any = BID, auction: Any = AUCTION) -> Any:
    """Winning bids: the highest bid of each auction while it was open, once it is over."""
    items = auction.withWatermark("expires", LONGEST_AND_DELAY).alias("A")
    bids = bid.withWatermark("dateTime", DELAY).alias("B")
    # The last condition is true of every auction; by it Spark knows when a bid may be forgotten.
    while_open = F.expr(
        "B.auction = A.id AND B.dateTime >= A.dateTime AND B.dateTime <= A.expires "
        f"AND B.dateTime >= A.expires - INTERVAL {LONGEST}"
    )
    highest = F.expr(
        "max_by(struct(bidder, price, B.dateTime AS time, B.extra AS more), "
        "struct(price, -unix_micros(B.dateTime)))"
    )
    item = F.expr(
        "first(struct(itemName, description, initialBid, reserve, A.dateTime, seller, category, A.extra))"
    )
    won = bids.join(items, while_open).groupBy("id", "expires").agg(item.alias("A"), highest.alias("B"))
    return won.selectExpr(
        "id",
        "A.itemName",
        "A.description",
        "A.initialBid",
        "A.reserve",
        "A.dateTime",
        "expires",
        "A.seller",
        "A.category",
        "A.extra",
        "B.bidder",
        "B.price",
        "B.time AS bid_dateTime",
        "B.more AS bid_extra",
    )


@pipeline.stream(out=topic("nexmark.q4", key="category"), mode="update")
def q4(won: Any = WON) -> Any:
    """Average price for a category, of the winning bids."""
    return won.groupBy("category").agg(F.avg("price").alias("final"))


@pipeline.stream(out=topic("nexmark.q6", key="seller"), mode="update")
def q6(won: Any = WON) -> Any:
    """Average selling price by seller, of the last ten auctions of each."""
    last = won.groupBy("seller").agg(F.expr("max_by(price, struct(expires, id), 10)").alias("prices"))
    total = "aggregate(prices, 0D, (sum, price) -> sum + price)"
    return last.selectExpr("seller", f"{total} / size(prices) AS average")


# -- windows ----------------------------------------------------------------------------------------------


@pipeline.stream(out=topic("nexmark.q5"))
def q5(bid: Any = BID) -> Any:
    """Hot items: the auctions with the most bids of ten seconds, every two seconds."""
    sliding = F.window("dateTime", "10 seconds", "2 seconds")
    counts = bid.withWatermark("dateTime", DELAY).groupBy(sliding, "auction").agg(F.count("*").alias("num"))
    most = counts.groupBy("window").agg(
        F.max("num").alias("most"), F.collect_list(F.struct("auction", "num")).alias("all")
    )
    return most.selectExpr(
        "window.start AS starttime",
        "window.end AS endtime",
        "inline(filter(all, each -> each.num = most))",
    )


@pipeline.stream(out=topic("nexmark.q7"))
def q7(bid: Any = BID) -> Any:
    """Highest bid of every ten seconds; of several with the same price, the first."""
    highest = F.expr(
        "max_by(struct(auction, price, bidder, dateTime, extra), struct(price, -unix_micros(dateTime)))"
    )
    tumbling = bid.withWatermark("dateTime", DELAY).groupBy(F.window("dateTime", "10 seconds"))
    return tumbling.agg(highest.alias("bid")).select("bid.*")


@pipeline.stream(out=topic("nexmark.q8"))
def q8(person: Any = PERSON, auction: Any = AUCTION) -> Any:
    """Monitor new users: who opened an auction in the ten seconds in which he registered."""
    tumbling = F.window("dateTime", "10 seconds")
    people = person.withWatermark("dateTime", DELAY).groupBy(tumbling, "id", "name").agg(F.count("*"))
    sellers = auction.withWatermark("dateTime", DELAY).groupBy(tumbling, "seller").agg(F.count("*"))
    both = people.alias("P").join(sellers.alias("A"), F.expr("P.window = A.window AND id = seller"))
    return both.selectExpr("id", "name", "P.window.start AS starttime")


@pipeline.stream(out=topic("nexmark.q11"))
def q11(bid: Any = BID) -> Any:
    """User sessions: how many bids each bidder makes before a pause of ten seconds."""
    session = F.session_window("dateTime", "10 seconds")
    counts = bid.withWatermark("dateTime", DELAY).groupBy(session, "bidder").agg(F.count("*").alias("bids"))
    return counts.selectExpr(
        "bidder", "bids", "session_window.start AS starttime", "session_window.end AS endtime"
    )


@pipeline.stream(out=topic("nexmark.q12", key=["bidder", "starttime"]), mode="update")
def q12(bid: Any = BID) -> Any:
    """Processing-time windows: bids of each bidder by the clock of the run, so no two runs say the same."""
    by_clock = bid.withColumn("now", F.current_timestamp()).groupBy(F.window("now", "10 seconds"), "bidder")
    counts = by_clock.agg(F.count("*").alias("bids"))
    return counts.selectExpr("bidder", "bids", "window.start AS starttime", "window.end AS endtime")


# -- so far -----------------------------------------------------------------------------------------------

RANKS = {"rank1": "price < 10000", "rank2": "price >= 10000 AND price < 1000000", "rank3": "price >= 1000000"}


def _by_rank(named: str, column: str) -> list[Any]:
    """How many different values there are, in all and of each rank of prices."""
    every = [F.size(F.collect_set(column)).alias(f"total_{named}")]
    return every + [
        F.size(F.collect_set(F.expr(f"CASE WHEN {of} THEN {column} END"))).alias(f"{rank}_{named}")
        for rank, of in RANKS.items()
    ]


def _counts() -> list[Any]:
    return [
        F.count("*").alias("total_bids"),
        *(F.count_if(F.expr(of)).alias(f"{r}_bids") for r, of in RANKS.items()),
    ]


def _day() -> Any:
    return F.date_format("dateTime", "yyyy-MM-dd").alias("day")


@pipeline.stream(out=topic("nexmark.q15", key="day"), mode="update")
def q15(bid: Any = BID) -> Any:
    """Bidding statistics of a day: bids, bidders and auctions by rank of price."""
    return bid.groupBy(_day()).agg(
        *_counts(), *_by_rank("bidders", "bidder"), *_by_rank("auctions", "auction")
    )


@pipeline.stream(out=topic("nexmark.q16", key=["channel", "day"]), mode="update")
def q16(bid: Any = BID) -> Any:
    """Channel statistics of a day: the same for each channel, and its last minute."""
    minute = F.max(F.date_format("dateTime", "HH:mm")).alias("minute")
    found = [minute, *_counts(), *_by_rank("bidders", "bidder"), *_by_rank("auctions", "auction")]
    return bid.groupBy("channel", _day()).agg(*found)


@pipeline.stream(out=topic("nexmark.q17", key=["auction", "day"]), mode="update")
def q17(bid: Any = BID) -> Any:
    """Auction statistics of a day: bids by rank of price, and the least, highest, average and total price."""
    prices = [getattr(F, name)("price").alias(f"{name}_price") for name in ("min", "max", "avg", "sum")]
    return bid.groupBy("auction", _day()).agg(*_counts(), *prices)


@pipeline.stream(out=topic("nexmark.q18", key=["bidder", "auction"]), mode="update")
def q18(bid: Any = BID) -> Any:
    """Find last bid of each bidder in each auction."""
    last = F.expr("max_by(struct(price, channel, url, dateTime, extra), dateTime)")
    return bid.groupBy("bidder", "auction").agg(last.alias("bid")).select("bidder", "auction", "bid.*")


@pipeline.stream(out=topic("nexmark.q19", key=["auction", "rank"]), mode="update")
def q19(bid: Any = BID) -> Any:
    """Auction top 10: the highest bids of each auction, with their rank."""
    highest = F.expr(
        "max_by(struct(bidder, price, channel, url, dateTime, extra), "
        "struct(price, -unix_micros(dateTime)), 10)"
    )
    top = bid.groupBy("auction").agg(highest.alias("bids"))
    ranked = top.selectExpr("auction", "posexplode(bids) AS (place, bid)")
    return ranked.selectExpr("auction", "place + 1 AS rank", "bid.*")
