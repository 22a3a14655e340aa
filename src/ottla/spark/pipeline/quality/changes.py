"""Changes in what an input's records hold: fields that are new, and fields that went missing, each told once.

How a record differs from the declared schema is a short text, `{"n":["color"],"m":["price"]}`: fields of the record
that the schema lacks, and fields of the schema that the record lacks (fields at the top, not those inside them). A
codec makes it (`Codec.difference`) for a few records: of JSON one in `ONE_IN`, chosen by offset, since reading the
names is parsing once more; of values with a registry's frame by the writer's schema, for the first of each schema and
the first `FIRST_OF_BATCH` of an Arrow batch. The most frequent texts of a micro-batch are in the query's metrics, with
their counts, in a sketch of bounded size.

Rules: a new field is told when it is first seen. A field is missing when it was there earlier in this run, and would
by now have been in `EXPECTED` of the records looked at since it was last seen, had it gone on as often as before: so a
field that all records had is missed soon, and one that is rare is not missed by chance. A run knows nothing of the
runs before it. Owner: the runner, in the stream's `Figures`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ottla.spark.progress import observed_metrics

if TYPE_CHECKING:
    from pyspark.sql import Column

# What the metric is called, before its topic's name.
PREFIX: Final = "ottla fields of "
# The column that a plan has for it.
DIFFERENCE: Final = "_ottla_difference"
ONE_IN: Final = 16
FIRST_OF_BATCH: Final = 100
EXPECTED: Final = 10
MAX_TEXTS: Final = 20
MAX_TRACKED: Final = 200
MAX_NEW_LETTERS: Final = 2_000
MAX_NAME: Final = 100
# Where names are data (one for each user, say), there is no end of new ones.
MAX_TOLD: Final = 100


# -- in the plan, and in tasks ---------------------------------------------------------------------------------------


def sampled() -> Column:
    """Whether a record is one of those that are looked at: by a hash, since offsets may have a rhythm of their own (the
    marker behind each transaction of fifteen records)."""
    from pyspark.sql import functions as F

    return F.pmod(F.xxhash64("partition", "offset"), F.lit(ONE_IN)) == 0


def of_object(text: Column, declared: Iterable[str]) -> Column:
    """How a JSON object differs from the fields declared; null where the text is none."""
    from pyspark.sql import functions as F

    names, keys = F.array(*map(F.lit, declared)), F.json_object_keys(text)
    new = F.array_except(keys, names)
    # An object with an endless number of names, or endless ones, tells nothing.
    told = F.when(F.length(F.array_join(new, "")) <= MAX_NEW_LETTERS, new).otherwise(F.slice(new, 1, 0))
    shown = F.struct(told.alias("n"), F.array_except(names, keys).alias("m"))
    return F.when(keys.isNotNull(), F.to_json(shown))


def of_names(new: Iterable[str], missing: Iterable[str]) -> str:
    """The same, of names that have been compared."""
    told = list(new)
    if sum(map(len, told)) > MAX_NEW_LETTERS:
        told = []
    return json.dumps({"n": told, "m": list(missing)}, separators=(",", ":"), ensure_ascii=False)


def counted(topic: str) -> Column:
    """The metric: how often which difference, as JSON, under the topic's name."""
    from pyspark.sql import functions as F

    return F.to_json(F.expr(f"approx_top_k({DIFFERENCE}, {MAX_TEXTS}, {MAX_TRACKED})")).alias(PREFIX + topic)


# -- in the driver ---------------------------------------------------------------------------------------------------


class Difference(NamedTuple):
    """A text that a micro-batch has counted."""

    new: list[str]
    missing: list[str]
    records: int


def observed(report: Mapping[str, Any]) -> dict[str, list[Difference]]:
    """What a micro-batch counted, by topic."""
    found: dict[str, list[Difference]] = {}
    for row in observed_metrics(report).values():
        for name, text in row.items():
            if name.startswith(PREFIX) and isinstance(text, str):
                found.setdefault(name.removeprefix(PREFIX), []).extend(_differences(text))
    return found


def _differences(text: str) -> Iterable[Difference]:
    for entry in json.loads(text):
        if entry.get("item") is not None:  # the others were not looked at
            item = json.loads(entry["item"])
            yield Difference(item["n"], item["m"], int(entry["count"]))


@dataclass
class _Topic:
    """What has been seen of one topic in this run."""

    looked_at: int = 0
    absent: dict[str, int] = field(default_factory=dict)  # records without a field, where there were such
    since: dict[str, int] = field(default_factory=dict)  # records since a field was last seen
    new: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def add(self, differences: Iterable[Difference]) -> Iterable[str]:
        """A micro-batch; what is to be told of it."""
        count, absent = 0, dict.fromkeys(self.since, 0)
        for one in differences:
            count += one.records
            for name in one.missing:
                absent[name] = absent.get(name, 0) + one.records
            for name in one.new:
                yield from self._found(name)
        self.looked_at += count
        for name, missed in absent.items():
            self.absent[name] = self.absent.get(name, 0) + missed
            self.since[name] = self.since.get(name, 0) + missed if missed == count else 0
            if self._is_missing(name):
                self.missing.append(name)
                yield (
                    f"the field {name!r} went missing: none of the last {self.since[name]:,} records that were looked "
                    "at has it"
                )

    def _found(self, name: str) -> Iterable[str]:
        name = name[:MAX_NAME]
        if name in self.new or len(self.new) > MAX_TOLD:
            return
        self.new.append(name)
        if len(self.new) > MAX_TOLD:
            yield f"more than {MAX_TOLD} new fields: their names seem to be data, and no more of them are told"
        else:
            yield f"a new field {name!r}, which the schema lacks"

    def _is_missing(self, name: str) -> bool:
        since, present = self.since[name], self.looked_at - self.absent[name]
        before = self.looked_at - since
        return name not in self.missing and present > 0 and since * present >= EXPECTED * before


@dataclass
class Changes:
    """The changes in all inputs of a stream since the run began."""

    topics: dict[str, _Topic] = field(default_factory=dict)
    untold: list[str] = field(default_factory=list)

    def add(self, report: Mapping[str, Any]) -> None:
        """A micro-batch that is new."""
        for topic, differences in observed(report).items():
            seen = self.topics.setdefault(topic, _Topic())
            self.untold += [f"{topic}: {what}" for what in seen.add(differences)]

    def news(self) -> list[str]:
        """What has not been told yet."""
        told, self.untold = self.untold, []
        return told

    def document(self) -> dict[str, dict[str, list[str]]]:
        """`{"orders": {"new": ["color"], "missing": []}}`: topics that have changed."""
        return {
            name: {"new": seen.new[:MAX_TOLD], "missing": list(seen.missing)}
            for name, seen in self.topics.items()
            if seen.new or seen.missing
        }
