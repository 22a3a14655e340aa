"""Six pipelines that ship with Ottla, each in a file that stands alone: run it as it is, or copy it and change it.

    ottla pipeline run ottla.examples.clickstream
    ottla pipeline new mine --template clickstream

`samples` makes events for them, `demo` is what `ottla demo` runs. The files are in `examples/` at the top of the
repository; the package `ottla.examples` is a link to it.

Rules: a pipeline's file imports `ottla.spark`, PySpark and the standard library only, so that a copy of it runs
anywhere. It is written as its reader would write it, without annotations on the functions that Spark calls.
"""

from __future__ import annotations

from pathlib import Path

PIPELINES = {
    "clickstream": "clicks: views by page and minute, and what each visitor did in a session",
    "fraud": "card payments: alerts by rules that remember (transformWithState)",
    "cdc": "a table's changes from Debezium: the table itself, in Delta and in Iceberg",
    "etl": "raw events: cleaned, typed, by day into a lake, what is bad to dead letters",
    "iot": "telemetry: minimum, maximum and average by device and minute, late readings aside",
    "enrichment": "orders: joined with their payments and with the customers' table",
}


def source_of(name: str) -> str:
    """The text of a pipeline's file."""
    assert name in PIPELINES, name
    return (Path(__file__).parent / f"{name}.py").read_text("utf-8")
