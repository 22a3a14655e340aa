"""Pipelines declared in a Python file: functions from topics to a topic, a Parquet directory or a lake table.

    from ottla.spark import pipeline, topic

    @pipeline.stream(out=topic("clicks.per_minute", key="page"))
    def per_minute(clicks=topic("clicks", schema="page string, user string, at timestamp")):
        return clicks.withWatermark("at", "30 seconds").groupBy(window("at", "1 minute"), "page").count()

`load(path)` reads and checks such a file without Spark; `Pipeline.start(spark, bootstrap, state_dir)` starts
one Structured Streaming query a stream. `ottla pipeline run` does both and shows the progress.

Rules: declarations (declare) are data, and checks (check, graph) are pure: both run before there is a Spark.
What needs the plan is checked when the DataFrame is built, before its query starts (reading, writing).
Owned by the process that runs the pipeline, the driver.
"""

from __future__ import annotations

from ottla.spark.pipeline.declare import PipelineError, Problem, delta, iceberg, parquet, stream, topic, view
from ottla.spark.pipeline.load import Pipeline, load
from ottla.spark.pipeline.parameters import param, secret
from ottla.spark.pipeline.quality.expectations import expect

__all__ = [
    "Pipeline",
    "PipelineError",
    "Problem",
    "delta",
    "expect",
    "iceberg",
    "load",
    "param",
    "parquet",
    "secret",
    "stream",
    "topic",
    "view",
]
