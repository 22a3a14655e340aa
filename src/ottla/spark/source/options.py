"""Every option of the source, checked before anything runs. Pure.

Names and meanings are those of Spark's Kafka connector. Spark hands option names over in lower case, whatever the
user wrote: errors name them as the documentation does. `source_options` checks what reading in batches and in streams
share; `for_batch` and `for_stream` add what only one of them may have.

`subscribePattern` is a Java regular expression in Spark's connector; `java_pattern` makes it Python's. What is only
spelt differently is translated. What Python does not have, or takes for something else, is refused: a pattern never
reads other topics than Spark's connector does.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from ottla.model.ids import TopicPartition
from ottla.spark.connection import (
    COLUMNS_OPTION,
    PREFIX,
    SOURCE_NO_MEANING,
    STRATEGIES,
    KafkaOptions,
    OptionError,
    boolean,
    check_names,
    kafka_options,
)
from ottla.spark.encryption import ALLOW_PLAIN, KEY, reference_of
from ottla.spark.source.plan import (
    EARLIEST,
    LATEST,
    AtEarliest,
    AtLatest,
    AtOffsets,
    AtTimestamp,
    AtTimestamps,
    Bound,
    named,
    parse_offsets,
    parse_partitions,
)

# Names of topics are made of ASCII letters, digits and . _ -, so that is all that Java's classes have to tell apart.
_LETTERS, _DIGITS, _PUNCTUATION = "a-zA-Z", "0-9", r"!-/:-@\[-`{-~"
_CLASSES = {
    **dict.fromkeys(("Lower", "Ll", "IsLl", "IsLowercase", "javaLowerCase"), "a-z"),
    **dict.fromkeys(("Upper", "Lu", "IsLu", "IsUppercase", "javaUpperCase"), "A-Z"),
    **dict.fromkeys(("Alpha", "L", "IsL", "IsAlphabetic", "IsLetter", "javaLetter"), _LETTERS),
    **dict.fromkeys(("Digit", "N", "IsN", "Nd", "IsNd", "IsDigit", "javaDigit"), _DIGITS),
    **dict.fromkeys(("Alnum", "javaLetterOrDigit"), _LETTERS + _DIGITS),
    "Punct": _PUNCTUATION,
    "Graph": "!-~",
    "Print": " -~",
    "ASCII": r"\x00-\x7f",
    "XDigit": "0-9a-fA-F",
    **dict.fromkeys(("Blank", "Space", "IsWhite_Space", "javaWhitespace"), r"\s"),
}
# Escapes that are not Python's, with those that are. Names have no line ends, so \z and \Z are the same.
_ESCAPES = {"z": r"\Z", "Z": r"\Z", "h": r"\s", "H": r"\S"}
_SAME = frozenset("dDwWsSbBAtnrfa")
_ESCAPE = re.compile(
    r"\\(?:Q(?P<literal>.*?)(?:\\E|\Z)|(?P<not>[pP])(?:\{(?P<class>\w+)\}|(?P<letter>\w))|k<(?P<back>\w+)>"
    r"|(?P<code>x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|[1-9])|(?P<one>.))",
    re.DOTALL,
)
_GROUP = re.compile(
    r"\(\?(?:(?P<kept>:|=|!|>|<=|<!)|<(?P<name>[a-zA-Z]\w*)>|(?P<flags>[a-zA-Z-]*)(?P<end>[:)]))"
)
USED_KAFKA_KEYS = (
    "group.id",
    "isolation.level",
    "fetch.max.bytes",
    "max.partition.fetch.bytes",
    "check.crcs",
    KEY,
    ALLOW_PLAIN,
)
REFUSED_KAFKA_KEYS = {
    "auto.offset.reset": "say with startingOffsets where a query begins",
    "enable.auto.commit": "Spark keeps the offsets, and ottla.group publishes them",
    "key.deserializer": "keys are binary columns; cast or decode them with DataFrame operations",
    "value.deserializer": "values are binary columns; cast or decode them with DataFrame operations",
    "interceptor.classes": "there is no Java here to run them",
}
# As Spark's connector has them, in its order.
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
HEADERS = "headers"
DEFAULT_GROUP_PREFIX = "ottla-spark"
DEFAULT_MAX_TRIGGER_DELAY_MS = 15 * 60 * 1000
NO_GROUP = "none"
MAX_GROUP_TOPICS_LENGTH = 120
# One answer's worth of a partition. Larger ones save round trips, smaller ones memory.
DEFAULT_FETCH_BYTES = 4 * 1024 * 1024
_OFFSETS_EXAMPLE = '{"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}'
_TIMES_EXAMPLE = '{"topicA":{"0":1000,"1":1000},"topicB":{"0":2000}}'
_WHAT_IS_READ = frozenset(
    name.lower()
    for name in (*STRATEGIES, "startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")
)
_UNITS_MS = {
    "": 1,
    "us": 0.001,
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}


class PatternError(ValueError):
    """A pattern that is none, or that only Java can read."""


def compile_java(pattern: str) -> re.Pattern[str]:
    """For `search`, as Spark's connector looks for it anywhere in a topic's name; PatternError."""
    try:
        return re.compile(_translated(pattern), re.ASCII)
    except re.error as error:
        raise PatternError(str(error)) from None


def _translated(pattern: str) -> str:
    made: list[str] = []
    at = 0
    in_class = False
    while at < len(pattern):
        if pattern[at] == "\\":
            found = _ESCAPE.match(pattern, at)
            if found is None:
                raise PatternError("it ends with a backslash")
            made.append(_escape(found, in_class))
            at = found.end()
        elif in_class:
            if pattern[at] == "[" or pattern.startswith("&&", at):
                raise PatternError(
                    "character classes within classes, and their intersections (&&), are Java's alone: "
                    "list the characters"
                )
            in_class = pattern[at] != "]"
            made.append(pattern[at])
            at += 1
        elif pattern[at] == "[":
            opened = re.compile(r"\[\^?\]?").match(pattern, at)
            assert opened is not None
            in_class = True
            made.append(opened[0])
            at = opened.end()
        elif pattern.startswith("(?", at):
            found = _GROUP.match(pattern, at)
            if found is None:
                raise PatternError(f"{pattern[at : at + 4]!r} begins no group")
            made.append(_translated_group(found, is_first=at == 0))
            at = found.end()
        else:
            made.append(pattern[at])
            at += 1
    return "".join(made)


def _escape(found: re.Match[str], in_class: bool) -> str:
    if found["literal"] is not None:
        return re.escape(found["literal"])
    if found["not"]:
        return _named_class(found["class"] or found["letter"], found["not"] == "P", in_class)
    if found["back"]:
        return f"(?P={found['back']})"
    one: str | None = found["one"]
    if one is None or one in _SAME or not (one.isascii() and one.isalnum()):
        return found[0]
    if one not in _ESCAPES:
        raise PatternError(f"{found[0]!r} is Java's alone")
    return _ESCAPES[one]


def _named_class(name: str, negated: bool, in_class: bool) -> str:
    if name not in _CLASSES:
        raise PatternError(f"the class {name!r} is not known here; known are {', '.join(sorted(_CLASSES))}")
    if in_class and negated:
        raise PatternError(f"\\P{{{name}}} within a class is Java's alone: list the characters")
    return _CLASSES[name] if in_class else f"[{'^' if negated else ''}{_CLASSES[name]}]"


def _translated_group(found: re.Match[str], is_first: bool) -> str:
    if found["kept"]:
        return found[0]
    if found["name"]:
        return f"(?P<{found['name']}>"
    flags = found["flags"].replace("d", "").replace("u", "").replace("U", "")  # of line ends and beyond ASCII
    if set(flags) - set("ims"):
        raise PatternError(f"the flags in {found[0]!r} are Java's alone")
    if found["end"] == ":":
        return f"(?{flags}:"
    if not is_first:
        raise PatternError(f"{found[0]!r} has to stand first, or around a part: (?{flags}:...)")
    return f"(?{flags})" if flags else ""


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Subscription:
    """Which topics: exactly one of the three is set."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What a read was asked for."""

    subscription: Subscription
    starting: Bound | None  # None: not said
    ending: Bound | None
    latest_if_no_match: bool  # startingOffsetsByTimestampStrategy
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int
    min_partitions: int | None
    max_records_per_partition: int | None
    fail_on_data_loss: bool
    columns: tuple[str, ...]
    group: str | None
    pushdown: bool
    read_committed: bool
    fetch_bytes: int
    check_crcs: bool
    kafka: KafkaOptions
    no_effect: tuple[str, ...]
    # A reference to the keyring by which tasks decrypt values.
    encryption_key: str | None = None
    allow_plaintext: bool = False

    @property
    def include_headers(self) -> bool:
        return HEADERS in self.columns


def source_options(options: Mapping[str, str]) -> SourceOptions:
    """All options, in whatever case their names are; OptionError names the first that is wrong."""
    given = {name.lower(): value for name, value in options.items()}
    check_names(given)
    kafka = kafka_options(given, used=USED_KAFKA_KEYS, refused=REFUSED_KAFKA_KEYS)
    subscription = _subscription(given)
    group = _group(given, subscription)
    min_offsets = _positive(given, "minOffsetsPerTrigger")
    max_offsets = _positive(given, "maxOffsetsPerTrigger")
    if min_offsets is not None and max_offsets is not None and min_offsets > max_offsets:
        raise OptionError(
            f"minOffsetsPerTrigger ({min_offsets}) is higher than maxOffsetsPerTrigger ({max_offsets})"
        )
    return SourceOptions(
        subscription=subscription,
        starting=_bound(given, "starting"),
        ending=_bound(given, "ending"),
        latest_if_no_match=_strategy(given),
        max_offsets_per_trigger=max_offsets,
        min_offsets_per_trigger=min_offsets,
        max_trigger_delay_ms=_duration(given, "maxTriggerDelay", DEFAULT_MAX_TRIGGER_DELAY_MS),
        min_partitions=_positive(given, "minPartitions"),
        max_records_per_partition=_positive(given, "maxRecordsPerPartition"),
        fail_on_data_loss=boolean(given, "failOnDataLoss", True),
        columns=columns_of(given),
        group=group,
        pushdown=boolean(given, "ottla.pushdown", False),
        read_committed=_isolation(kafka),
        fetch_bytes=_fetch_bytes(kafka),
        check_crcs=boolean(given, "kafka.check.crcs", True),
        kafka=kafka,
        no_effect=(*kafka.ignored, *(name for name in SOURCE_NO_MEANING if name.lower() in given)),
        encryption_key=reference_of(kafka.used),
        allow_plaintext=boolean(given, PREFIX + ALLOW_PLAIN, False),
    )


def for_batch(options: SourceOptions) -> SourceOptions:
    """Refuses what a batch cannot mean: a batch has a fixed beginning and a fixed end."""
    starting, ending = options.starting, options.ending
    if isinstance(starting, AtLatest):
        raise OptionError("startingOffsets cannot be latest in a batch read")
    if isinstance(ending, AtEarliest):
        raise OptionError("endingOffsets cannot be earliest in a batch read")
    _refuse_in(starting, LATEST, "startingOffsets cannot be latest (-1) in a batch read, it is for")
    _refuse_in(ending, EARLIEST, "endingOffsets cannot be earliest (-2) in a batch read, it is for")
    if isinstance(starting, AtOffsets) and isinstance(ending, AtOffsets):
        for tp, start in starting.offsets.items():
            end = ending.offsets.get(tp, start)
            if end >= 0 and start > end:
                raise OptionError(
                    f"startingOffsets ({start}) lies above endingOffsets ({end}) for {named([tp])}"
                )
    return options


def for_stream(options: SourceOptions) -> SourceOptions:
    """Refuses what a stream cannot mean: it has no end."""
    if options.ending is not None:
        raise OptionError(
            "endingOffsets, endingTimestamp and endingOffsetsByTimestamp are for batch reads: a stream has no end"
        )
    return options


def columns_of(options: Mapping[str, str]) -> tuple[str, ...]:
    """What the schema is, by the two options that it depends on; in any order they are asked for, it has its own."""
    given = {name.lower(): value for name, value in options.items()}
    has_headers = boolean(given, "includeHeaders", False)
    there = (*COLUMNS, HEADERS) if has_headers else COLUMNS
    if COLUMNS_OPTION not in given:
        return there
    asked = {name.strip().lower() for name in given[COLUMNS_OPTION].split(",")} - {""}
    unknown = sorted(asked - {name.lower() for name in there})
    if unknown == [HEADERS]:
        raise OptionError(
            f"the option {COLUMNS_OPTION} names headers, which are read with includeHeaders=true only"
        )
    if unknown or not asked:
        what = f"{', '.join(map(repr, unknown))}, no column of a topic" if unknown else "no column"
        raise OptionError(f"the option {COLUMNS_OPTION} names {what}: there are {', '.join(there)}")
    return tuple(name for name in there if name.lower() in asked)


def _refuse_in(bound: Bound | None, what: int, words: str) -> None:
    if isinstance(bound, AtOffsets):
        wrong = [tp for tp, offset in bound.offsets.items() if offset == what]
        if wrong:
            raise OptionError(f"{words} {named(wrong)}")


def _subscription(given: Mapping[str, str]) -> Subscription:
    asked = [name for name in STRATEGIES if name.lower() in given]
    if len(asked) != 1:
        which = f"there are {' and '.join(asked)}" if asked else "there is none"
        raise OptionError(f"exactly one of the options {', '.join(STRATEGIES)} says what to read; {which}")
    name, value = asked[0], given[asked[0].lower()]
    if name == "subscribe":
        topics = tuple(sorted({topic.strip() for topic in value.split(",")} - {""}))
        if not topics:
            raise OptionError(f"the option subscribe names no topic: {value!r}")
        return Subscription(topics=topics)
    if name == "subscribePattern":
        return Subscription(pattern=_pattern(value))
    partitions = _json("assign", value, parse_partitions, '{"topicA":[0,1],"topicB":[2,4]}')
    if not partitions:
        raise OptionError(f"the option assign names no partition: {value!r}")
    return Subscription(partitions=partitions)


def _pattern(value: str) -> str:
    pattern = value.strip()
    if not pattern:
        raise OptionError("the option subscribePattern is empty")
    try:
        compile_java(pattern)
    except PatternError as error:
        raise OptionError(
            f"the option subscribePattern cannot be read as a regular expression: {error}: {pattern!r}"
        ) from None
    return pattern


def _bound(given: Mapping[str, str], side: str) -> Bound | None:
    """Where a read begins or ends. A time for all goes before times by partition, and these before offsets."""
    time, times, offsets = f"{side}Timestamp", f"{side}OffsetsByTimestamp", f"{side}Offsets"
    if time.lower() in given:
        return AtTimestamp(_time(time, _number(time, given[time.lower()])))
    if times.lower() in given:
        found = _json(times, given[times.lower()], parse_offsets, _TIMES_EXAMPLE)
        return AtTimestamps({tp: _time(times, at) for tp, at in found.items()})
    if offsets.lower() not in given:
        return None
    value = given[offsets.lower()].strip()
    if value.lower() == "earliest":
        return AtEarliest()
    if value.lower() == "latest":
        return AtLatest()
    found = _json(offsets, value, parse_offsets, f"earliest, latest or {_OFFSETS_EXAMPLE}")
    wrong = [tp for tp, offset in found.items() if offset < EARLIEST]
    if wrong:
        raise OptionError(f"the option {offsets} holds an offset below -2 (earliest) for {named(wrong)}")
    return AtOffsets(found)


def _time(name: str, timestamp_ms: int) -> int:
    if timestamp_ms < 0:
        raise OptionError(f"the option {name} holds {timestamp_ms}: times are milliseconds since 1970")
    return timestamp_ms


def _json(name: str, value: str, parse: Callable[[str], T], example: str) -> T:
    try:
        return parse(value)
    except ValueError as error:
        why = "it is no JSON" if isinstance(error, json.JSONDecodeError) else str(error)
        raise OptionError(f"the option {name} is {value!r}: {why}; expected e.g. {example}") from None


def _strategy(given: Mapping[str, str]) -> bool:
    name = "startingOffsetsByTimestampStrategy"
    value = given.get(name.lower(), "error").strip().lower()
    if value not in ("error", "latest"):
        raise OptionError(f"the option {name} must be error or latest, not {value!r}")
    return value == "latest"


def _isolation(kafka: KafkaOptions) -> bool:
    value = kafka.used.get("isolation.level", "read_committed").strip().lower()
    if value not in ("read_committed", "read_uncommitted"):
        raise OptionError(
            f"the option kafka.isolation.level must be read_committed or read_uncommitted, not {value!r}"
        )
    return value == "read_committed"


def _fetch_bytes(kafka: KafkaOptions) -> int:
    """A task reads one partition, so the smaller of Kafka's two bounds holds."""
    asked = [
        _number(PREFIX + name, kafka.used[name])
        for name in ("max.partition.fetch.bytes", "fetch.max.bytes")
        if name in kafka.used
    ]
    if any(value < 1 for value in asked):
        raise OptionError("kafka.max.partition.fetch.bytes and kafka.fetch.max.bytes must be at least 1")
    return min(asked, default=DEFAULT_FETCH_BYTES)


def _group(given: Mapping[str, str], subscription: Subscription) -> str | None:
    """The group that shows the progress; one of its own for each set of options that say what is read."""
    chosen = given.get("ottla.group", given.get("kafka.group.id", "")).strip()
    if chosen.lower() == NO_GROUP:
        return None
    if chosen:
        return chosen
    for name in ("ottla.group", "kafka.group.id"):
        if name in given:
            raise OptionError(f"the option {name} is empty; {NO_GROUP!r} turns the group off")
    what = sorted((name, value) for name, value in given.items() if name in _WHAT_IS_READ)
    digest = hashlib.sha256(json.dumps(what).encode()).hexdigest()[:8]
    topics = subscription.topics or sorted({tp.topic for tp in subscription.partitions}) or ("pattern",)
    prefix = given.get("groupidprefix", "").strip() or DEFAULT_GROUP_PREFIX
    return f"{prefix}-{'+'.join(topics)[:MAX_GROUP_TOPICS_LENGTH]}-{digest}"


def _number(name: str, value: str) -> int:
    try:
        return int(value.strip())
    except ValueError:
        raise OptionError(f"the option {name} must be a whole number, not {value!r}") from None


def _positive(given: Mapping[str, str], name: str) -> int | None:
    if name.lower() not in given:
        return None
    value = _number(name, given[name.lower()])
    if value < 1:
        raise OptionError(f"the option {name} must be positive, not {value}")
    return value


def _duration(given: Mapping[str, str], name: str, default_ms: int) -> int:
    """Spark's time strings: 500ms, 30s, 15m, 1h; a bare number is milliseconds."""
    if name.lower() not in given:
        return default_ms
    value = given[name.lower()].strip().lower()
    match = re.fullmatch(r"(\d+)\s*([a-z]*)", value)
    if match is None or match[2] not in _UNITS_MS:
        raise OptionError(f"the option {name} must be a time like 500ms, 30s, 15m or 1h, not {value!r}")
    return int(int(match[1]) * _UNITS_MS[match[2]])
