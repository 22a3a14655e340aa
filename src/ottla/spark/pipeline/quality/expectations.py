"""Expectations: SQL conditions that rows have to meet, of an input or of a stream's result.

    topic("orders", schema="id string, price double", expect=[expect("price > 0", action="dead_letter")])

A row meets a condition that is true for it; false and null are the same. The first one that a row does not meet is
the one that counts: `drop` leaves the row out, `dead_letter` sends it to the stream's dead-letter topic, `fail` stops
the stream with a line that says which and where. Each is counted under its name. Of a record without a value (a
tombstone) nothing is expected.

Rules: a declaration is data, and checked without Spark as far as that goes (`refused`). Whether Spark understands the
condition is asked when the plan is built (`misunderstood`), before any query starts. The verdict on a row is one
column, computed once; the count is observed right behind it, where Spark's optimizer stops moving filters about.
Used by `frames`, which knows inputs, results and dead letters.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ottla.spark.progress import observed_metrics

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

DROP: Final = "drop"
DEAD_LETTER: Final = "dead_letter"
FAIL: Final = "fail"
ACTIONS: Final = (DROP, DEAD_LETTER, FAIL)
MAX_EXPECTATIONS: Final = 100
MAX_NAME: Final = 200
_FICKLE = re.compile(
    r"\b(current_timestamp|current_date|localtimestamp|(now|curdate|rand|randn|random|randstr|uniform|uuid|shuffle|"
    r"monotonically_increasing_id|spark_partition_id|input_file_name|current_time)\s*\()",
    re.IGNORECASE,
)

# The number of the first expectation that a row does not meet; null where it meets all.
VERDICT: Final = "_ottla_verdict"
METRICS: Final = "ottla_expect"


@dataclass(frozen=True)
class Expect:
    """A condition, what to do with rows that do not meet it, and the name to count them under."""

    condition: str
    action: str
    name: str

    @property
    def reason(self) -> str:
        said = "" if self.name == self.condition else f": {self.condition}"
        return f"the expectation {self.name!r} is not met{said}"


def expect(condition: str, action: str = FAIL, *, name: str | None = None) -> Expect:
    """A condition in Spark's SQL that every row has to meet; one for which it is false or null does not.

    action  fail (default) stops the stream, drop leaves the row out, dead_letter sends it to the stream's dead_letter
    name    for the figures and the reason (default: the condition)
    """
    return Expect(condition, action, condition if name is None else name)


def refused(expected: Any, *, has_dead_letter: bool, of_input: bool) -> Iterator[str]:
    """What is wrong with expectations, as far as that is to be seen without Spark."""
    if not isinstance(expected, tuple):
        yield f"expect: takes a list of expect(...), not {type(expected).__name__} {expected!r}"
        return
    if len(expected) > MAX_EXPECTATIONS:
        yield f"expect: {len(expected)} are too many: {MAX_EXPECTATIONS} at most"
    seen: set[str] = set()
    for one in expected:
        if not isinstance(one, Expect):
            yield f"expect: takes expect(...), not {type(one).__name__} {one!r}"
            continue
        yield from _refused(one, has_dead_letter=has_dead_letter)
        found = _FICKLE.search(one.condition) if isinstance(one.condition, str) else None
        if of_input and one.action == DEAD_LETTER and found is not None:
            # Two queries ask, each at its own time: neither, or both, may take the row.
            yield (
                f"expect({one.name!r}): {found[0].rstrip('( ')!r} is another one each time, and dead letters of inputs "
                "are found by a query of their own: drop or fail, or expect it of the result"
            )
        if one.name in seen:
            yield f"expect: there are two named {one.name!r}; name= tells them apart"
        seen.add(one.name)


def _refused(one: Expect, *, has_dead_letter: bool) -> Iterator[str]:
    if not isinstance(one.condition, str) or not one.condition.strip():
        yield f"expect: {one.condition!r} is no condition: text in Spark's SQL is, 'price > 0'"
        return
    if not isinstance(one.name, str) or not one.name.strip() or not one.name.isprintable():
        yield f"expect({one.condition!r}): {one.name!r} is no name: printable text is"
    elif len(one.name) > MAX_NAME:
        yield f"expect({one.condition[:40]!r}...): the name is longer than {MAX_NAME} letters; say name="
    if one.action not in ACTIONS:
        near = difflib.get_close_matches(str(one.action), ACTIONS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        yield f"expect({one.name!r}): action: {one.action!r} is none of {', '.join(ACTIONS)}{hint}"
    if one.action == DEAD_LETTER and not has_dead_letter:
        yield f"expect({one.name!r}): action='dead_letter' needs a topic for it: @pipeline.stream(dead_letter=...)"


def misunderstood(frame: DataFrame, expected: Iterable[Expect]) -> Iterator[str]:
    """What Spark does not understand: a condition that does not parse, an unknown column, what is no condition."""
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as F

    for one in expected:
        try:
            frame.where(F.expr(one.condition)).schema  # noqa: B018 - Spark Connect asks for the plan only here
        except PySparkException as error:
            said = str(error).strip().split("\n", 1)[0].split(" SQLSTATE:")[0].removesuffix(";").strip()
            yield f"expect({one.name!r}): Spark refuses it: {said}"


def judged(frame: DataFrame, expected: Sequence[Expect], spared: Column | None = None) -> DataFrame:
    """The rows with the number of the first expectation that each does not meet; `spared` are rows that meet all."""
    from pyspark.sql import functions as F

    verdict = F.lit(None).cast("int")
    for number, one in reversed(list(enumerate(expected))):
        met = F.coalesce(F.expr(one.condition), F.lit(False))
        verdict = F.when(met, verdict).otherwise(F.lit(number))
    return frame.withColumn(VERDICT, verdict if spared is None else F.when(~spared, verdict))


def counted(frame: DataFrame, expected: Sequence[Expect], metrics: str) -> DataFrame:
    """Judged rows, and how many did not meet which expectation in the query's metrics."""
    from pyspark.sql import functions as F

    counts = [
        F.count(F.when(F.col(VERDICT) == number, F.lit(1))).alias(one.name)
        for number, one in enumerate(expected)
    ]
    return frame.observe(metrics, *counts)


def kept(frame: DataFrame, expected: Sequence[Expect], place: Column, *, letters: bool = False) -> DataFrame:
    """The rows that meet all, and with `letters` those for the dead letters; one that is to stop the stream does so."""
    from pyspark.sql import functions as F

    verdict = F.col(VERDICT)
    good = verdict.isNull()
    if letters:
        good = F.coalesce(verdict.isin(numbers(expected, DEAD_LETTER)), F.lit(True))
    failing = numbers(expected, FAIL)
    if not failing:
        return frame.where(good)
    text = F.concat_ws("", place, reason(expected))
    stop = F.raise_error(text).cast("boolean")
    return frame.where(F.when(verdict.isin(failing), stop).otherwise(good))


def numbers(expected: Sequence[Expect], action: str) -> list[int]:
    return [number for number, one in enumerate(expected) if one.action == action]


def reason(expected: Sequence[Expect]) -> Column:
    """Why a judged row is refused."""
    from pyspark.sql import functions as F

    text = F.lit(None).cast("string")
    for number, one in enumerate(expected):
        text = F.when(F.col(VERDICT) == number, F.lit(one.reason)).otherwise(text)
    return text


def observed(report: Mapping[str, Any]) -> dict[str, int]:
    """What a micro-batch counted, by name."""
    found: dict[str, int] = {}
    for metrics, row in observed_metrics(report).items():
        if metrics.startswith(METRICS):
            for name, count in row.items():
                found[name] = found.get(name, 0) + int(count or 0)
    return found
