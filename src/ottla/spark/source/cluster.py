"""What the driver asks of the brokers: which partitions there are, and where they begin and end.

A broker that is away is waited for, up to kafka.default.api.timeout.ms: an exception here ends a streaming query. A
topic counts as gone only when the brokers keep saying so for a while, since one that has just started may not know
it yet. One thread: Spark's planner, or a stream's source runner, owns it.
"""

import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from ottla.client.inline import InlineClient
from ottla.client.offsets import EARLIEST, LATEST
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition, Uuid
from ottla.spark.connection import OptionError, connect
from ottla.spark.source.options import SourceOptions, compile_java
from ottla.spark.source.plan import (
    AtEarliest,
    AtLatest,
    AtOffsets,
    AtTimestamp,
    AtTimestamps,
    Bound,
    Offsets,
    named,
)

CONFIRM_GONE_S = 3.0
CONFIRM_PAUSE_S = 0.2
# A stream asks many times a second where its partitions end, and so often whether there are new ones.
PARTITIONS_AGE_S = 1.0
# A partition that was there a moment ago and has no leader now: ask for the topics again before long.
OFFSETS_TIMEOUT_MS = 3_000.0
NO_MATCH = -1

log = logging.getLogger(__name__)

Partitions = dict[TopicPartition, Uuid]


class DataLossError(RuntimeError):
    """Data that was to be read is not there any more, and failOnDataLoss is true."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what}. Some data may have been missed: it was deleted by retention, or its topic was deleted, before "
            "the query read it. With the option failOnDataLoss=false the query goes on with what there is."
        )


class Losses:
    """What becomes of lost data: the end of the query, or a line in the log, once for each loss."""

    def __init__(self, fail: bool) -> None:
        self._fail = fail
        self._told: set[str] = set()

    def report(self, what: str) -> None:
        if self._fail:
            raise DataLossError(what)
        if what not in self._told:
            self._told.add(what)
            log.warning("%s; failOnDataLoss is false, the query goes on", what)


class Cluster:
    """Answers about the partitions of one subscription. Its client starts at the first question."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._client: InlineClient | None = None
        self._known: Partitions = {}
        self._known_until_s = 0.0
        self.losses = Losses(options.fail_on_data_loss)

    @property
    def client(self) -> InlineClient:
        if self._client is None:
            self._client = connect(self._options.kafka)
        return self._client

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    # -- partitions -----------------------------------------------------------------------------------

    def partitions(self, expected: Iterable[TopicPartition] = ()) -> Partitions:
        """The partitions there are now, with their topics' ids. Those expected and not there are asked for again."""
        must = {*expected, *self._options.subscription.partitions}
        topics = {*self._options.subscription.topics, *(tp.topic for tp in must)}
        deadline = time.monotonic() + CONFIRM_GONE_S
        while True:
            found = self._ask_partitions()
            complete = must <= found.keys() and topics <= {tp.topic for tp in found}
            if complete or time.monotonic() > deadline:
                return found
            time.sleep(CONFIRM_PAUSE_S)

    def all_partitions(self) -> Partitions:
        """The same, where nothing may be missing: at the start of a query."""
        found = self.partitions()
        asked = self._options.subscription
        missing = set(asked.topics) - {tp.topic for tp in found}
        if missing:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"there is no topic {', '.join(sorted(missing))} to read",
            )
        absent = set(asked.partitions) - found.keys()
        if absent:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"the option assign names {named(absent)}: there is none",
            )
        return found

    def _ask_partitions(self) -> Partitions:
        asked = self._options.subscription
        if asked.pattern is not None:
            # Anywhere in the name, as Spark's connector looks for it.
            matches = compile_java(asked.pattern).search
            topics = self.client.topics(None)
            wanted = [info for name, info in topics.items() if not info.is_internal and matches(name)]
        else:
            names = asked.topics or sorted({tp.topic for tp in asked.partitions})
            wanted = list(self.client.topics(names).values())
        found = {
            TopicPartition(info.name, partition): info.topic_id
            for info in wanted
            if info.error is None
            for partition in info.partitions
        }
        if asked.partitions:
            return {tp: found[tp] for tp in asked.partitions if tp in found}
        return found

    # -- offsets --------------------------------------------------------------------------------------

    def earliest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        return self._list(dict.fromkeys(partitions, EARLIEST))

    def latest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """The ends; for read_committed, the ends of what is decided (last stable offsets)."""
        return self._list(dict.fromkeys(partitions, LATEST))

    def at_times(self, times_ms: Mapping[TopicPartition, int]) -> Offsets:
        """Where the first record as late as that is; NO_MATCH if there is none."""
        return self._list(times_ms)

    def latest_now(self, expected: Iterable[TopicPartition] = ()) -> tuple[Offsets, Partitions]:
        """The partitions (as of a second ago) and their ends; one that goes in between is asked for again."""
        deadline_s = time.monotonic() + self.client.config.default_api_timeout_ms / 1000
        while True:
            if time.monotonic() >= self._known_until_s or not self._known.keys() >= set(expected):
                self._known = self.partitions(expected)
                self._known_until_s = time.monotonic() + PARTITIONS_AGE_S
            try:
                return self._list(dict.fromkeys(self._known, LATEST), OFFSETS_TIMEOUT_MS), self._known
            except KafkaError as error:
                if not error.code.retriable or time.monotonic() > deadline_s:
                    raise
                self._known_until_s = 0.0

    def _list(self, timestamps: Mapping[TopicPartition, int], timeout_ms: float | None = None) -> Offsets:
        if not timestamps:
            return {}
        committed = self._options.read_committed
        found = self.client.list_offsets(timestamps, read_committed=committed, timeout_ms=timeout_ms)
        return {tp: at.offset for tp, at in found.items()}

    # -- where a read begins and ends -----------------------------------------------------------------

    def starting(self, bound: Bound, partitions: Iterable[TopicPartition]) -> Offsets:
        """Offsets of the option startingOffsets and its kin."""
        found = self._resolve(bound, set(partitions), "starting")
        unmatched = [tp for tp, offset in found.items() if offset == NO_MATCH]
        if unmatched and not self._options.latest_if_no_match:
            raise OptionError(
                f"{named(unmatched)} has no record at or after the starting timestamp; the option "
                "startingOffsetsByTimestampStrategy=latest starts such a partition at its end"
            )
        if isinstance(bound, AtOffsets):
            return self._within_log(found, "startingOffsets")
        return {**found, **self.latest(unmatched)}

    def ending(self, bound: Bound, partitions: Iterable[TopicPartition]) -> Offsets:
        """Offsets of the option endingOffsets and its kin."""
        found = self._resolve(bound, set(partitions), "ending")
        if isinstance(bound, AtOffsets):
            return self._within_log(found, "endingOffsets")
        return {**found, **self.latest([tp for tp, offset in found.items() if offset == NO_MATCH])}

    def _within_log(self, offsets: Offsets, option: str) -> Offsets:
        """Offsets that a user wrote may lie where there is nothing (any more)."""
        low, high = self.earliest(offsets), self.latest(offsets)
        before = {tp for tp, offset in offsets.items() if offset < low[tp]}
        behind = {tp for tp, offset in offsets.items() if offset > high[tp]}
        if before:
            self.losses.report(f"{option} lies before the earliest offset: {_gaps(offsets, before, low)}")
        if behind:
            self.losses.report(f"{option} lies behind the end: {_gaps(offsets, behind, high)}")
        return {tp: min(max(offset, low[tp]), high[tp]) for tp, offset in offsets.items()}

    def _resolve(self, bound: Bound, partitions: set[TopicPartition], side: str) -> Offsets:
        match bound:
            case AtEarliest():
                return self.earliest(partitions)
            case AtLatest():
                return self.latest(partitions)
            case AtTimestamp(timestamp_ms):
                return self.at_times(dict.fromkeys(partitions, timestamp_ms))
            case AtTimestamps(timestamps_ms):
                _check_same(timestamps_ms, partitions, f"{side}OffsetsByTimestamp")
                return self.at_times(timestamps_ms)
            case AtOffsets(offsets):
                _check_same(offsets, partitions, f"{side}Offsets")
                special = {tp: offset for tp, offset in offsets.items() if offset < 0}
                return {**offsets, **self._list(special)}


def _gaps(asked: Offsets, partitions: set[TopicPartition], there: Offsets) -> str:
    return ", ".join(f"{named([tp])} {asked[tp]} for {there[tp]}" for tp in sorted(partitions))


def _check_same(given: Mapping[TopicPartition, int], there: set[TopicPartition], option: str) -> None:
    if given.keys() != there:
        raise OptionError(
            f"the option {option} must name every partition that is read, and no other (-1 is the latest, -2 the "
            f"earliest offset). It names {named(given)}; there are {named(there) or 'none'}"
        )


@contextmanager
def in_one_line() -> Iterator[None]:
    """Around (or as a decorator of) what Spark calls in a process of its own: errors whose words say all are one line.

    Such a process passes an exception on to Spark and ends. By default that is the whole traceback, inside of Spark's
    own words; PySpark leaves it away where SPARK_HIDE_TRACEBACK is set, which it reads when the exception has reached
    it. So it is set here, in the process that ends. Errors that nobody foresaw keep their tracebacks.
    """
    try:
        yield
    except (OptionError, KafkaError, DataLossError):
        if os.environ.get("SPARK_PYTHON_RUNTIME") == "PYTHON_WORKER":
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise
