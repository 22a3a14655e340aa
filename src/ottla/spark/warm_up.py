"""Java's first steps into Spark SQL, taken while the SparkContext starts: a first query finds them done.

What a first query costs is mostly Java doing things for the first time. Three of them need no SparkContext: the parser
of schemas, the analyzer, and Janino, which compiles generated code and whose classes no archive can hold (its jar is
signed). A thread has Java do each of them once, on the core that the SparkContext's start leaves idle. It is what the
first query would have to do anyway, so that the sum of both takes no more CPU.

Rules:

- No session, no job and no query: nothing of this is ever seen in the UI, by a listener or in metrics.
- Nothing that reads a setting once and for all: the settings are not known to Java yet.
- What is Spark's is done before the SparkSession is made: two threads that make the same Scala objects could wait for
  each other. Janino, which shares none with Spark, goes on beside the program's first lines.
- What fails is left out, since the first query does it anyway. With one core it would only delay the session.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

log = logging.getLogger(__name__)

POLL_S = 0.02
SCHEMA = "a BINARY, b STRING, c INT, d BIGINT, e TIMESTAMP, f ARRAY<STRUCT<g: STRING, h: BINARY>>"
QUERY = """
    SELECT a, upper(cast(a AS string)) AS b, c + 1 AS c
    FROM VALUES (binary('x'), 'y', 1, 2L) AS t(a, b, c, d) WHERE c > 0
"""
# As generated code looks: a class within a class, fields, loops, casts and exceptions.
JAVA = """
    public Object generate(Object[] references) { return new Rows(references); }

    final class Rows extends java.util.AbstractList {
        private final Object[] references;
        private final int[] counts = new int[2];
        private boolean isNull;
        private byte[] value;

        public Rows(Object[] references) { this.references = references; }

        public int size() { return references.length; }

        public Object get(int index) {
            long sum = 1L;
            for (int i = 0; i < index; i++) {
                sum += (long) i * 31;
                if ((sum & 1L) == 0 || isNull) { isNull = !isNull; } else { counts[0] = (int) sum; }
            }
            try {
                value = isNull ? null : String.valueOf(sum).getBytes();
            } catch (RuntimeException e) {
                throw new IllegalStateException("at " + index, e);
            }
            return references[index] == null ? value : references[index];
        }
    }
"""


class WarmUp:
    """One thread, which waits for Java and then has it do its first steps."""

    def __init__(self, find_java: Callable[[], Any | None]) -> None:
        """`find_java`: PySpark's way to Java, None while there is none."""
        self._find_java = find_java
        self._is_over = threading.Event()
        self._is_spark_warm = threading.Event()
        self._thread = threading.Thread(target=self._run, name="spark-warm-up", daemon=True)

    def __enter__(self) -> WarmUp:
        if cores() > 1:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Wait for the steps that are Spark's; a Java that never came is waited for no longer."""
        self._is_over.set()
        if self._thread.ident is not None:
            self._is_spark_warm.wait()

    def _run(self) -> None:
        try:
            while (jvm := self._find_java()) is None:
                if self._is_over.wait(POLL_S):
                    return
            warm(jvm, SPARKS)
            self._is_spark_warm.set()
            warm(jvm, OTHERS)
        except Exception:
            log.debug("no warm-up", exc_info=True)
        finally:
            self._is_spark_warm.set()


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def warm(jvm: Any, steps: Mapping[str, Callable[[Any], None]]) -> list[str]:
    """Every step once; the names of those that failed."""
    failed = []
    for name, step in steps.items():
        begin = time.perf_counter()
        try:
            step(jvm)
        except Exception as error:  # noqa: BLE001 - another Spark may have other classes
            log.debug("no warm-up of the %s: %s", name, error)
            failed.append(name)
        else:
            log.debug("the %s is warm after %.2f s", name, time.perf_counter() - begin)
    return failed


def _parser(jvm: Any) -> None:
    jvm.org.apache.spark.sql.types.StructType.fromDDL(SCHEMA)


def _analyzer(jvm: Any) -> None:
    catalyst = jvm.org.apache.spark.sql.catalyst
    parser = getattr(getattr(catalyst.parser, "CatalystSqlParser$"), "MODULE$")
    catalyst.analysis.SimpleAnalyzer.execute(parser.parsePlan(QUERY))


def _janino(jvm: Any) -> None:
    evaluator = jvm.org.codehaus.janino.ClassBodyEvaluator()
    evaluator.setClassName("ottla.WarmUp")
    evaluator.cook(JAVA)


SPARKS = {"parser": _parser, "analyzer": _analyzer}
OTHERS = {"compiler": _janino}
