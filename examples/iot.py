"""Telemetry of devices: minimum, maximum and average by device and minute; readings that come too late are set aside.

    ottla pipeline run iot.py
    ottla consume -t telemetry.per_minute

In:   telemetry              {"device": "d-1", "temperature": 21.5, "at": "2026-01-01T12:00:00Z"}, keyed by the device
Out:  telemetry.per_minute   {"device": ..., "minute": ..., "readings": 12, "min": ..., "max": ..., "avg": ...}, once,
                             when the minute is over and what is late for it has had its time
      telemetry.late         readings that came too late to be counted, with how late they were
      telemetry.bad          what does not parse, with the reason in its headers

A device without a network keeps its readings and sends them when it is back. What came into the topic more than
LATENESS after it was measured is late: it is a matter of the record alone, so each reading is either counted or set
aside, and the same again after a restart. The watermark is twice that, for partitions that are read unevenly; what
Spark still leaves out for it is counted in the progress (`numRowsDroppedByWatermark`).
"""

from pyspark.sql import functions as F

from ottla.spark import pipeline, topic

LATENESS = "2 minutes"
WATERMARK = "4 minutes"

telemetry = topic(
    "telemetry",
    schema="device string NOT NULL, temperature double NOT NULL, at timestamp NOT NULL",
    on_error="skip",
    meta=True,
    partitions=2,
)

is_late = f"_meta.timestamp > at + INTERVAL {LATENESS}"


@pipeline.stream(
    out=topic("telemetry.per_minute", key="device", partitions=2),
    dead_letter=topic("telemetry.bad", partitions=1),
)
def per_minute(telemetry=telemetry):
    return (
        telemetry.where(f"NOT ({is_late})")
        .withWatermark("at", WATERMARK)
        .groupBy("device", F.window("at", "1 minute"))
        .agg(
            F.count("*").alias("readings"),
            F.min("temperature").alias("min"),
            F.max("temperature").alias("max"),
            F.round(F.avg("temperature"), 3).alias("avg"),
        )
        .select("device", F.col("window.start").alias("minute"), "readings", "min", "max", "avg")
    )


@pipeline.stream(out=topic("telemetry.late", key="device", partitions=1))
def late(telemetry=telemetry):
    seconds_late = F.unix_millis("_meta.timestamp") / 1000 - F.unix_millis("at") / 1000
    return telemetry.where(is_late).select(
        "device", "temperature", "at", F.round(seconds_late, 3).alias("seconds_late")
    )
