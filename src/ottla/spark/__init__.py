"""Data pipelines on Apache Spark: `format("ottla")` to read and write topics, and pipelines declared in a file.

    from ottla.spark import pipeline, topic, parquet, delta, iceberg, expect, param, secret, session

Rules: importing this package imports neither PySpark nor PyArrow; each name is fetched when it is first used,
so that the command line can say what is missing instead of failing. Spark finds the data source by itself
(the module `pyspark_ottla`). Importing this package in a driver does what is left to do for a job of Spark's Kafka
connector (ottla.spark.driver), and lets Spark's Python be this one. Nothing here is owned by a broker; a Spark driver
and its executors are.
"""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ottla.spark.driver import adapt
from ottla.spark.worker_python import offer_this_python

if TYPE_CHECKING:
    from ottla.spark import pipeline as pipeline
    from ottla.spark.pipeline.declare import delta as delta
    from ottla.spark.pipeline.declare import iceberg as iceberg
    from ottla.spark.pipeline.declare import parquet as parquet
    from ottla.spark.pipeline.declare import topic as topic
    from ottla.spark.pipeline.parameters import param as param
    from ottla.spark.pipeline.parameters import secret as secret
    from ottla.spark.pipeline.quality.expectations import expect as expect
    from ottla.spark.session import session as session

__all__ = ["delta", "expect", "iceberg", "param", "parquet", "pipeline", "secret", "session", "topic"]

_DECLARE = "ottla.spark.pipeline.declare"
_HOMES = {"delta": _DECLARE, "iceberg": _DECLARE, "parquet": _DECLARE, "topic": _DECLARE}
_HOMES["expect"] = "ottla.spark.pipeline.quality.expectations"
_HOMES |= dict.fromkeys(("param", "secret"), "ottla.spark.pipeline.parameters")


def __getattr__(name: str) -> Any:
    if name in ("pipeline", "session"):
        importlib.import_module(f"{__name__}.{name}")  # which leaves it here, under its name
        return globals()[name]
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """`session` is the function, though the module that holds it has the same name and is left here on import."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "session" and isinstance(value, ModuleType):
            value = value.session
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
adapt()
offer_this_python(os.environ)
