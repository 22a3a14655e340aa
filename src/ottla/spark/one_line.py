"""What a user did wrong, or a broker refused, as one line: Spark passes on all that its Python processes say.

A process that Spark starts to plan a read or a write tells Spark of an exception and ends. By default that is the whole
traceback, inside of Spark's own words; PySpark leaves it away where SPARK_HIDE_TRACEBACK is set, which it reads when
the exception has reached it. So it is set here, for errors whose words say all, in the process that ends with them.
Errors that nobody foresaw keep their tracebacks.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from ottla.model.errors import KafkaError
from ottla.spark.cluster import DataLossError
from ottla.spark.kafka_options import OptionError


@contextmanager
def in_one_line() -> Iterator[None]:
    """Around (or as a decorator of) what Spark calls in a process of its own; elsewhere it changes nothing."""
    try:
        yield
    except (OptionError, KafkaError, DataLossError):
        if os.environ.get("SPARK_PYTHON_RUNTIME") == "PYTHON_WORKER":
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise
