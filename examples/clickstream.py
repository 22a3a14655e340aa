"""Clicks on a site: views by page and minute, and what each visitor did in a session.

    ottla pipeline run clickstream.py
    ottla consume -t clicks.per_minute

In:   clicks              {"user": "ada", "page": "/home", "at": "2026-01-01T12:00:00Z"}
Out:  clicks.per_minute   {"minute": ..., "page": ..., "views": 3}, a row again when its count changes
      clicks.sessions     {"user": ..., "start": ..., "end": ..., "clicks": 5, "first_page": ..., "last_page": ...}
A click that does not parse is left out and counted (`bad` in `ottla pipeline status`).
"""

from pyspark.sql import functions as F

from ottla.spark import pipeline, topic

# How long a visitor may be silent before the next click begins a new session. Half an hour is usual on the web; ten
# seconds let you see sessions end while you watch.
SESSION_GAP = "10 seconds"

clicks = topic(
    "clicks",
    schema="user string NOT NULL, page string NOT NULL, at timestamp NOT NULL",
    on_error="skip",
    partitions=2,
)


# "update" writes the row of a minute and page whenever its count changes, so that it can be watched as it grows; the
# last row of a key is the one that counts. A click for a minute that ended more than a minute ago is left out.
@pipeline.stream(
    out=topic("clicks.per_minute", key="page", partitions=2),
    mode="update",
)
def per_minute(clicks=clicks):
    counts = clicks.withWatermark("at", "1 minute").groupBy(F.window("at", "1 minute"), "page").count()
    return counts.select(
        F.col("window.start").alias("minute"),
        "page",
        F.col("count").alias("views"),
    )


# "append" (the default) writes a session once, when it is certain that no click of it can still come.
@pipeline.stream(out=topic("clicks.sessions", key="user", partitions=2))
def sessions(clicks=clicks):
    return (
        clicks.withWatermark("at", "10 seconds")
        .groupBy(F.session_window("at", SESSION_GAP), "user")
        .agg(
            F.min("at").alias("start"),
            F.max("at").alias("end"),
            F.count("*").alias("clicks"),
            F.min_by("page", "at").alias("first_page"),
            F.max_by("page", "at").alias("last_page"),
        )
        .drop("session_window")
    )
