"""Every option of the sink, and the columns it takes, checked before anything runs. Pure.

Names and meanings are those of Spark's Kafka connector, plus `ottla.*`. Spark hands option names over in lower case.
"""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ottla.client.config import ProducerConfig
from ottla.client.errors import ConfigError
from ottla.records.compression import CODECS
from ottla.spark.connection import (
    PREFIX,
    KafkaOptions,
    OptionError,
    boolean,
    check_names,
    kafka_options,
    settings_of,
)
from ottla.spark.encryption import KEY, reference_of

EXACTLY_ONCE = "exactly_once"
AT_LEAST_ONCE = "at_least_once"
DELIVERIES = (EXACTLY_ONCE, AT_LEAST_ONCE)

# Those of a producer that mean something to a writer of whole batches.
_PRODUCER_KEYS = (
    "acks",
    "batch.size",
    "compression.type",
    "delivery.timeout.ms",
    "enable.idempotence",
    "max.request.size",
    "transaction.timeout.ms",
)
_LEVELS = {codec: f"compression.{codec}.level" for codec in ("gzip", "lz4", "zstd")}
_REFUSED = {
    "key.serializer": "keys are binary or string columns; encode them with DataFrame operations",
    "value.serializer": "values are binary or string columns; encode them with DataFrame operations",
    "interceptor.classes": "there is no Java here to run them",
    "transaction.two.phase.commit.enable": "the sink keeps its own decision and needs no broker that prepares",
}
DEFAULT_PREFIX = "ottla-spark"
# The brokers' default maximum: a transaction is open from a task's first row to the batch's commit.
DEFAULT_TRANSACTION_TIMEOUT_MS = 900_000
# A transactional id is taken over right after its last transaction was ended: that takes moments, not 100 ms.
_CLIENT_DEFAULTS = {f"{PREFIX}retry.backoff.ms": "10", f"{PREFIX}allow.auto.create.topics": "false"}
# The largest batch that a broker takes by default, less what the request around it takes.
DEFAULT_BATCH_BYTES = 1_000_000
_MIN_BATCH_BYTES = 1_024
_VALID_ID = re.compile(r"[A-Za-z0-9._:-]{1,200}")


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """What a write was asked for."""

    topic: str | None
    delivery: str
    prefix: str | None  # kafka.transactional.id; None: made of the query's id
    write_id: str | None
    write_version: int
    fail_on_data_loss: bool
    compression: int
    compression_level: int | None
    batch_bytes: int
    max_request_bytes: int
    delivery_timeout_ms: int
    transaction_timeout_ms: int
    kafka: KafkaOptions
    no_effect: tuple[str, ...]
    encryption_key: str | None = None  # a reference to the keyring by which tasks encrypt values

    @property
    def is_exactly_once(self) -> bool:
        return self.delivery == EXACTLY_ONCE


def sink_options(options: Mapping[str, str]) -> SinkOptions:
    """All options, in whatever case their names are; OptionError names the first that is wrong."""
    given = {name.lower(): value for name, value in options.items()}
    check_names(given)
    delivery = _delivery(given)
    used = (*_PRODUCER_KEYS, *_LEVELS.values(), "transactional.id", KEY)
    kafka = kafka_options({**_CLIENT_DEFAULTS, **given}, used=used, refused=_REFUSED)
    producer = _producer(kafka, delivery)
    version = _whole(given, "ottla.write.version", 0)
    if version and "ottla.write.id" not in given:
        raise OptionError(
            "the option ottla.write.version goes with ottla.write.id: a version of which write?"
        )
    return SinkOptions(
        topic=_topic(given),
        delivery=delivery,
        prefix=_id(kafka.used.get("transactional.id"), f"{PREFIX}transactional.id"),
        write_id=_id(given.get("ottla.write.id"), "ottla.write.id"),
        write_version=version,
        fail_on_data_loss=boolean(given, "failOnDataLoss", True),
        compression=_codec(producer.compression_type),
        compression_level=_level(kafka.used, producer.compression_type),
        batch_bytes=_batch_bytes(kafka.used, producer),
        max_request_bytes=producer.max_request_size,
        delivery_timeout_ms=producer.delivery_timeout_ms,
        transaction_timeout_ms=producer.transaction_timeout_ms,
        kafka=kafka,
        no_effect=kafka.ignored,
        encryption_key=reference_of(kafka.used),
    )


def for_stream(options: SinkOptions) -> SinkOptions:
    """Refuses what a stream cannot mean."""
    if options.write_id is not None:
        raise OptionError(
            "the option ottla.write.id is for df.write: a stream's batches have ids of their own"
        )
    return options


def for_batch(options: SinkOptions) -> SinkOptions:
    """Refuses what a write of one batch cannot mean."""
    if options.write_id is not None and not options.is_exactly_once:
        raise OptionError(f"the option ottla.write.id needs ottla.delivery={EXACTLY_ONCE}")
    return options


# -- columns ----------------------------------------------------------------------------------------------

_KINDS = {
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "topic": ("string",),
    "partition": ("int",),
}
_HEADERS = "array<struct<key:string,value:binary>>"


def check_schema(schema: Any, options: SinkOptions) -> None:
    """The columns that become records. `schema` is Spark's StructType; other columns are let be, as in Spark's sink."""
    kinds = {field.name: field.dataType.simpleString() for field in schema.fields}
    if "value" not in kinds:
        near = difflib.get_close_matches("value", list(kinds), n=1, cutoff=0.4)
        hint = f" ({near[0]!r} is not it: rename it)" if near else ""
        raise OptionError(
            f"the column 'value' is missing{hint}; there are {', '.join(map(repr, kinds)) or 'none'}"
        )
    for name, allowed in _KINDS.items():
        if name in kinds and kinds[name] not in allowed:
            raise OptionError(f"the column {name!r} is {kinds[name]}: it must be {' or '.join(allowed)}")
    if "headers" in kinds and kinds["headers"] != _HEADERS:
        raise OptionError(f"the column 'headers' is {kinds['headers']}: it must be {_HEADERS}")
    if options.topic is None and "topic" not in kinds:
        raise OptionError("say where to write to: with the option 'topic', or with a column 'topic'")
    names = [field.name for field in schema.fields]
    twice = sorted({name for name in names if names.count(name) > 1 and name in (*_KINDS, "headers")})
    if twice:
        raise OptionError(f"the column {twice[0]!r} is there twice")


# -- single options ---------------------------------------------------------------------------------------


def _delivery(given: Mapping[str, str]) -> str:
    value = given.get("ottla.delivery", EXACTLY_ONCE).strip().lower().replace("-", "_")
    if value not in DELIVERIES:
        raise OptionError(f"the option ottla.delivery is {value!r}: it must be {' or '.join(DELIVERIES)}")
    return value


def _topic(given: Mapping[str, str]) -> str | None:
    topic = given.get("topic")
    if topic is not None and not topic.strip():
        raise OptionError("the option topic is empty")
    return topic


def _producer(kafka: KafkaOptions, delivery: str) -> ProducerConfig:
    """The settings that a producer has, by its own rules."""
    if kafka.used.get("acks", "all") not in ("all", "-1"):
        raise OptionError(
            f"the option {PREFIX}acks is {kafka.used['acks']!r}: a row counts as written when all in-sync replicas "
            "have it, so it must be all"
        )
    if kafka.used.get("enable.idempotence", "true").lower() != "true":
        raise OptionError(
            f"the option {PREFIX}enable.idempotence must be true: a retry must not write rows twice"
        )
    settings = {"transaction.timeout.ms": str(DEFAULT_TRANSACTION_TIMEOUT_MS)}
    settings |= {name: kafka.used[name] for name in _PRODUCER_KEYS if name in kafka.used}
    try:
        return ProducerConfig.of({**settings_of(kafka), **settings})
    except ConfigError as error:
        raise OptionError(f"kafka.*: {error}") from None


def _codec(name: str) -> int:
    if name not in CODECS:
        raise OptionError(f"the option {PREFIX}compression.type is {name!r}: it must be {', '.join(CODECS)}")
    return CODECS[name]


def _level(used: Mapping[str, str], codec: str) -> int | None:
    key = _LEVELS.get(codec)
    if key is None or key not in used:
        return None
    try:
        return int(used[key])
    except ValueError:
        raise OptionError(f"the option {PREFIX}{key} must be a whole number, not {used[key]!r}") from None


def _batch_bytes(used: Mapping[str, str], producer: ProducerConfig) -> int:
    """A batch's limit: as large as a request may be, unless the user says less."""
    asked = producer.batch_size if "batch.size" in used else DEFAULT_BATCH_BYTES
    return max(_MIN_BATCH_BYTES, min(asked, producer.max_request_size))


def _id(value: str | None, option: str) -> str | None:
    if value is not None and not _VALID_ID.fullmatch(value):
        raise OptionError(
            f"the option {option} is {value!r}: up to 200 letters, digits and any of . _ : - make a name"
        )
    return value


def _whole(given: Mapping[str, str], name: str, default: int) -> int:
    text = given.get(name.lower(), str(default)).strip()
    if not text.isdecimal():
        raise OptionError(f"the option {name} is {text!r}: it must be a whole number, 0 or more")
    return int(text)
