"""The sink's options and columns: what is refused is named before anything runs."""

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from ottla.records.compression import LZ4, ZSTD
from ottla.spark.connection import OptionError
from ottla.spark.sink.options import (
    DEFAULT_BATCH_BYTES,
    SinkOptions,
    check_schema,
    for_batch,
    for_stream,
    sink_options,
)

BASE = {"kafka.bootstrap.servers": "127.0.0.1:9092", "topic": "out"}


def options(**more: str) -> SinkOptions:
    return sink_options({**BASE, **{name.replace("__", "."): value for name, value in more.items()}})


HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
KINDS: dict[str, DataType] = {
    "string": StringType(),
    "binary": BinaryType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "headers": ArrayType(HEADER),
    "strings": ArrayType(StringType()),
}


def schema(columns: str) -> StructType:
    pairs = (column.split() for column in columns.split(", "))
    return StructType([StructField(name, KINDS[kind]) for name, kind in pairs])


def test_defaults() -> None:
    found = options()
    assert found.is_exactly_once
    assert found.topic == "out"
    assert found.transaction_timeout_ms == 900_000
    assert found.batch_bytes == DEFAULT_BATCH_BYTES
    assert found.prefix is None
    assert found.fail_on_data_loss


def test_names_are_known_in_any_case() -> None:
    found = sink_options({**BASE, "OTTLA.Delivery": "At-Least-Once", "Topic": "t", "failondataloss": "FALSE"})
    assert not found.is_exactly_once
    assert not found.fail_on_data_loss


def test_what_a_producer_has_is_passed_on() -> None:
    found = options(
        kafka__compression__type="zstd",
        kafka__compression__zstd__level="7",
        kafka__compression__lz4__level="3",
        kafka__transaction__timeout__ms="30000",
        kafka__delivery__timeout__ms="99000",
        kafka__max__request__size="2000000",
        kafka__batch__size="65536",
        kafka__acks="-1",
        kafka__transactional__id="mine",
    )
    assert (found.compression, found.compression_level) == (ZSTD, 7)
    assert found.transaction_timeout_ms == 30_000
    assert found.delivery_timeout_ms == 99_000
    assert found.max_request_bytes == 2_000_000
    assert found.batch_bytes == 65_536
    assert found.prefix == "mine"


def test_a_level_goes_with_its_codec_only() -> None:
    found = options(kafka__compression__type="lz4", kafka__compression__zstd__level="7")
    assert (found.compression, found.compression_level) == (LZ4, None)


def test_settings_of_java_producers_without_a_meaning_here_are_named() -> None:
    assert options(kafka__linger__ms="5", kafka__metrics__num__samples="2").no_effect == (
        "kafka.linger.ms",
        "kafka.metrics.num.samples",
    )


def test_what_only_a_read_has_is_passed_over() -> None:
    """Jobs hand the same options to their reads and their writes; Spark's connector lets them."""
    found = options(
        subscribe=" ",
        subscribePattern="(",
        assign="{",
        startingOffsets="foo",
        endingTimestamp="x",
        maxOffsetsPerTrigger="0",
        minPartitions="-1",
        includeHeaders="maybe",
        ottla__group="",
        ottla__pushdown="x",
        kafkaConsumer__pollTimeoutMs="x",
        checkpointLocation="/c",
        kafka__group__id="g",
        kafka__auto__offset__reset="earliest",
        kafka__enable__auto__commit="true",
        kafka__key__deserializer="x",
        kafka__value__deserializer="x",
        kafka__isolation__level="read_committed",
    )
    assert found.topic == "out"
    assert found.kafka.client == options().kafka.client


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("ottla.delivery", "twice", "exactly_once or at_least_once"),
        ("topic", " ", "empty"),
        ("topics", "x", "nearest one is topic"),
        ("kafka.acks", "1", "must be all"),
        ("kafka.enable.idempotence", "false", "must be true"),
        ("kafka.compression.type", "rar", "none, gzip, snappy, lz4, zstd"),
        ("kafka.compression.typ", "lz4", "nearest one is kafka.compression.type"),
        ("kafka.key.serializer", "x", "binary or string columns"),
        ("kafka.value.serializer", "x", "binary or string columns"),
        ("kafka.transactional.id", "a b", "letters, digits"),
        ("kafka.transaction.timeout.ms", "soon", "whole number"),
        ("kafka.bootstrap.servers", "", "is missing"),
        ("ottla.write.version", "1", "goes with ottla.write.id"),
        ("ottla.write.id", "", "letters, digits"),
        ("failOnDataLoss", "maybe", "true or false"),
    ],
)
def test_what_cannot_be_meant_is_refused(name: str, value: str, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        sink_options({**BASE, name: value})


def test_a_compression_level_is_a_number() -> None:
    with pytest.raises(OptionError, match="whole number"):
        options(kafka__compression__type="gzip", kafka__compression__gzip__level="best")


def test_write_ids_are_for_batches() -> None:
    found = options(ottla__write__id="nightly", ottla__write__version="3")
    assert (for_batch(found).write_id, found.write_version) == ("nightly", 3)
    with pytest.raises(OptionError, match=r"df\.write"):
        for_stream(found)
    with pytest.raises(OptionError, match=r"needs ottla\.delivery"):
        for_batch(options(ottla__write__id="nightly", ottla__delivery="at_least_once"))


@pytest.mark.parametrize(
    "ddl",
    [
        "value string",
        "key binary, value binary, headers headers, topic string, partition int",
        "key string, value string, more bigint",
    ],
)
def test_good_columns(ddl: str) -> None:
    check_schema(schema(ddl), options())


@pytest.mark.parametrize(
    ("ddl", "words"),
    [
        ("key string, values string", "'value' is missing .*'values' is not it"),
        ("key string, value bigint", "'value' is bigint: it must be string or binary"),
        ("key int, value string", "'key' is int"),
        ("value string, topic binary", "'topic' is binary: it must be string"),
        ("value string, partition bigint", "'partition' is bigint: it must be int"),
        ("value string, headers strings", "'headers' is array<string>: it must be array<struct<"),
        ("value string, value string", "'value' is there twice"),
    ],
)
def test_bad_columns_are_named(ddl: str, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        check_schema(schema(ddl), options())


def test_a_topic_is_said_somewhere() -> None:
    nowhere = sink_options({"kafka.bootstrap.servers": "127.0.0.1:9092"})
    check_schema(schema("value string, topic string"), nowhere)
    with pytest.raises(OptionError, match="option 'topic', or with a column"):
        check_schema(schema("value string"), nowhere)
