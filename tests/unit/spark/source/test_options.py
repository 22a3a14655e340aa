"""Every option of the source: what it means, and what is said when it is wrong."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from ottla.model.ids import TopicPartition
from ottla.spark.connection import OptionError
from ottla.spark.source.options import (
    COLUMNS,
    DEFAULT_MAX_TRIGGER_DELAY_MS,
    SourceOptions,
    Subscription,
    for_batch,
    for_stream,
    source_options,
)
from ottla.spark.source.plan import AtEarliest, AtLatest, AtOffsets, AtTimestamp, AtTimestamps

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


def parsed(**more: Any) -> SourceOptions:
    """The least that works, and what a test adds; None takes an option away. `__` stands for a dot."""
    options = {"kafka.bootstrap.servers": "127.0.0.1:9092", "subscribe": "a"}
    options |= {name.replace("__", "."): value for name, value in more.items()}
    # Spark hands names over in lower case.
    return source_options({name.lower(): value for name, value in options.items() if value is not None})


def test_defaults() -> None:
    options = parsed()
    assert options.subscription == Subscription(topics=("a",))
    assert options.starting is None
    assert options.ending is None
    assert options.read_committed
    assert options.fail_on_data_loss
    assert not options.include_headers
    assert not options.pushdown
    assert options.max_trigger_delay_ms == DEFAULT_MAX_TRIGGER_DELAY_MS
    assert dict(options.kafka.client) == {"bootstrap.servers": "127.0.0.1:9092"}
    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"subscribe": " b ,a, "}, Subscription(topics=("a", "b"))),
        ({"subscribe": None, "subscribePattern": "a.*"}, Subscription(pattern="a.*")),
        ({"subscribe": None, "assign": '{"a":[1,0]}'}, Subscription(partitions=(A0, A1))),
    ],
)
def test_what_is_read(given: dict[str, Any], expected: Subscription) -> None:
    assert parsed(**given).subscription == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"startingOffsets": "EARLIEST"}, AtEarliest()),
        ({"startingOffsets": "latest"}, AtLatest()),
        ({"startingOffsets": '{"a":{"0":5,"1":-2}}'}, AtOffsets({A0: 5, A1: -2})),
        ({"startingTimestamp": "17"}, AtTimestamp(17)),
        ({"startingOffsetsByTimestamp": '{"a":{"0":5}}'}, AtTimestamps({A0: 5})),
        ({"startingTimestamp": "17", "startingOffsets": "latest"}, AtTimestamp(17)),
        ({"startingOffsetsByTimestamp": '{"a":{"0":5}}', "startingOffsets": "latest"}, AtTimestamps({A0: 5})),
        ({"startingTimestamp": "1", "startingOffsetsByTimestamp": '{"a":{"0":5}}'}, AtTimestamp(1)),
    ],
)
def test_where_it_starts(given: dict[str, Any], expected: object) -> None:
    assert parsed(**given).starting == expected
    ending = {name.replace("starting", "ending"): value for name, value in given.items()}
    assert parsed(**ending).ending == expected


def test_numbers_and_switches() -> None:
    options = parsed(
        maxOffsetsPerTrigger="100",
        minOffsetsPerTrigger="10",
        maxTriggerDelay="90s",
        minPartitions="7",
        maxRecordsPerPartition="1000",
        failOnDataLoss="False",
        includeHeaders="true",
        startingOffsetsByTimestampStrategy="LATEST",
        ottla__pushdown="true",
        kafka__isolation__level="read_uncommitted",
        kafka__max__partition__fetch__bytes="1048576",
        kafka__check__crcs="false",
    )
    assert (options.max_offsets_per_trigger, options.min_offsets_per_trigger) == (100, 10)
    assert options.max_trigger_delay_ms == 90_000
    assert (options.min_partitions, options.max_records_per_partition) == (7, 1000)
    assert not options.fail_on_data_loss
    assert options.include_headers
    assert options.latest_if_no_match
    assert options.pushdown
    assert not options.read_committed
    assert options.fetch_bytes == 1_048_576
    assert not options.check_crcs


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, COLUMNS),
        ({"includeHeaders": "true"}, (*COLUMNS, "headers")),
        ({"ottla__columns": "key,value"}, ("key", "value")),
        ({"ottla__columns": " TIMESTAMPTYPE , ,value,value,"}, ("value", "timestampType")),
        ({"ottla__columns": "headers,offset", "includeHeaders": "true"}, ("offset", "headers")),
        ({"ottla__columns": "offset", "includeHeaders": "true"}, ("offset",)),
    ],
)
def test_which_columns(given: dict[str, Any], expected: tuple[str, ...]) -> None:
    options = parsed(**given)
    assert options.columns == expected, "in the order of Spark's connector"
    assert options.include_headers == ("headers" in expected)


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("15", 15),
        ("500ms", 500),
        ("2000us", 2),
        ("3s", 3000),
        ("2m", 120_000),
        ("2min", 120_000),
        ("1h", 3_600_000),
    ],
)
def test_times(text: str, milliseconds: int) -> None:
    assert parsed(maxTriggerDelay=text).max_trigger_delay_ms == milliseconds


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"subscribe": None}, "exactly one of the options subscribe, subscribePattern, assign"),
        ({"assign": '{"a":[0]}'}, "subscribe and assign"),
        ({"subscribe": " , "}, "subscribe names no topic"),
        ({"subscribe": None, "subscribePattern": " "}, "subscribePattern is empty"),
        (
            {"subscribe": None, "subscribePattern": "(a"},
            "subscribePattern cannot be read as a regular expression",
        ),
        ({"subscribe": None, "subscribePattern": "[a-z&&[^b]]"}, "Java's alone"),
        ({"subscribe": None, "assign": "a:0"}, "option assign is 'a:0'"),
        ({"subscribe": None, "assign": "{}"}, "assign names no partition"),
        ({"subscribe": None, "assign": '{"a":[-1]}'}, "option assign"),
        (
            {"ottla__columns": "value,vlaue"},
            "ottla.columns names 'vlaue', no column of a topic: there are key, value",
        ),
        ({"ottla__columns": " , "}, "ottla.columns names no column: there are key, value, topic"),
        ({"ottla__columns": "headers"}, "names headers, which are read with includeHeaders=true only"),
        ({"kafka__bootstrap__servers": None}, "kafka.bootstrap.servers is missing"),
        ({"kafka__bootstrap__servers": "host:port"}, "not an address"),
        ({"startingOffsets": "foo"}, "option startingOffsets is 'foo'"),
        ({"startingOffsets": "{a"}, "it is no JSON"),
        ({"startingOffsets": '{"a":{"0":-3}}'}, "startingOffsets holds an offset below -2"),
        ({"startingOffsets": '{"a":[0]}'}, "option startingOffsets"),
        ({"endingOffsets": '{"a":{"x":0}}'}, "option endingOffsets"),
        ({"startingTimestamp": "abc"}, "startingTimestamp must be a whole number"),
        ({"startingTimestamp": "-5"}, "startingTimestamp holds -5"),
        ({"startingOffsetsByTimestamp": "[]"}, "startingOffsetsByTimestamp"),
        (
            {"startingOffsetsByTimestampStrategy": "foo"},
            "startingOffsetsByTimestampStrategy must be error or latest",
        ),
        ({"minPartitions": "0"}, "minPartitions must be positive"),
        ({"maxRecordsPerPartition": "x"}, "maxRecordsPerPartition must be a whole number"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger must be positive"),
        (
            {"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"},
            r"minOffsetsPerTrigger \(9\) is higher than maxOffsetsPerTrigger \(8\)",
        ),
        ({"maxTriggerDelay": "soon"}, "maxTriggerDelay must be a time"),
        ({"failOnDataLoss": "foo"}, "failOnDataLoss must be true or false"),
        ({"includeHeaders": "1"}, "includeHeaders must be true or false"),
        ({"ottla__group": " "}, "ottla.group is empty"),
        ({"startingOffset": "earliest"}, "the nearest one is startingOffsets"),
        ({"ottla__grup": "x"}, "the nearest one is ottla.group"),
        (
            {"kafka__fetch__max__bites": "1"},
            "kafka.fetch.max.bites; the nearest one is kafka.fetch.max.bytes",
        ),
        ({"kafka__request__timeout__ms": "x"}, "request.timeout.ms must be a whole number"),
        ({"kafka__isolation__level": "dirty"}, "kafka.isolation.level must be"),
        (
            {"kafka__auto__offset__reset": "earliest"},
            "kafka.auto.offset.reset is not supported.*startingOffsets",
        ),
        ({"kafka__key__deserializer": "x"}, "kafka.key.deserializer is not supported"),
        ({"kafka__value__deserializer": "x"}, "kafka.value.deserializer is not supported"),
        ({"kafka__enable__auto__commit": "true"}, "kafka.enable.auto.commit is not supported"),
        ({"kafka__interceptor__classes": "x"}, "kafka.interceptor.classes is not supported"),
        ({"kafka__sasl__mechanism": "PLAIN"}, "sasl.mechanism is for a security.protocol of SASL_SSL"),
        ({"kafka__security__protocol": "SASL_SSL"}, "sasl.mechanism is not set"),
        ({"ottla__config": "/no/such/file"}, "ottla.config: /no/such/file: No such file or directory"),
        ({"kafka__ssl__truststore__typ": "JKS"}, "the nearest one is kafka.ssl.truststore.type"),
        (
            {"kafka__security__protocol": "SSL", "kafka__ssl__engine__factory__class": "x"},
            "ssl.engine.factory.class: 'x' is not supported",
        ),
        (
            {"kafka__security__protocol": "SSL", "kafka__ssl__enabled__protocols": "TLSv1.1"},
            "ssl.enabled.protocols: 'TLSv1.1' is out of use",
        ),
    ],
)
def test_wrong_options_are_named(given: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        parsed(**given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"startingOffsets": "latest"}, "startingOffsets cannot be latest"),
        ({"endingOffsets": "earliest"}, "endingOffsets cannot be earliest"),
        ({"startingOffsets": '{"a":{"0":-1}}'}, r"startingOffsets cannot be latest \(-1\).*a-0"),
        ({"endingOffsets": '{"a":{"1":-2}}'}, r"endingOffsets cannot be earliest \(-2\).*a-1"),
        ({"startingOffsets": '{"a":{"0":5}}', "endingOffsets": '{"a":{"0":2}}'}, "lies above endingOffsets"),
    ],
)
def test_what_a_batch_cannot_mean(given: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        for_batch(parsed(**given))


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_a_stream_has_no_end(name: str) -> None:
    value = {"endingOffsets": "latest", "endingTimestamp": "1"}.get(name, '{"a":{"0":1}}')
    with pytest.raises(OptionError, match=name):
        for_stream(parsed(**{name: value}))
    assert for_batch(parsed(**{name: value})).ending is not None


def test_options_without_a_meaning_here_are_named() -> None:
    options = parsed(
        kafka__max__poll__records="10", kafka__metric__reporters="x", kafkaConsumer__pollTimeoutMs="1000"
    )
    assert options.no_effect == (
        "kafka.max.poll.records",
        "kafka.metric.reporters",
        "kafkaConsumer.pollTimeoutMs",
    )
    assert dict(parsed(kafka__client__id="me").kafka.client)["client.id"] == "me"


def test_what_only_a_write_has_is_passed_over() -> None:
    """Jobs hand the same options to their reads and their writes; Spark's connector lets them."""
    plain = parsed()
    shared = parsed(
        topic="",
        ottla__delivery="whatever",
        ottla__write__id=" ",
        ottla__write__version="x",
        checkpointLocation="/c",
        path="p",
        queryName="q",
        kafka__acks="1",
        kafka__key__serializer="x",
        kafka__value__serializer="x",
        kafka__transactional__id="a b",
    )
    assert shared.subscription == plain.subscription
    assert shared.kafka.client == plain.kafka.client
    assert shared.group == plain.group


def test_tls_is_the_clients() -> None:
    options = parsed(
        kafka__security__protocol="SSL",
        kafka__ssl__truststore__location="/ca.jks",
        kafka__ssl__truststore__password="secret",
        kafka__ssl__endpoint__identification__algorithm="",
    )
    assert dict(options.kafka.client)["ssl.truststore.location"] == "/ca.jks"
    assert dict(options.kafka.client)["ssl.truststore.password"] == "secret"
    assert "secret" not in repr(options)
    assert options.no_effect == ()


def test_the_group() -> None:
    assert parsed(ottla__group="mine", kafka__group__id="other").group == "mine"
    assert parsed(kafka__group__id="other").group == "other"
    assert parsed(ottla__group="none").group is None
    by_default = parsed(subscribe="b,a").group
    assert by_default is not None
    assert by_default.startswith("ottla-spark-a+b-")
    assert parsed(subscribe="b,a", maxOffsetsPerTrigger="5", failOnDataLoss="false").group == by_default
    assert parsed(subscribe="b,a", startingOffsets="earliest").group != by_default
    prefixed = parsed(groupIdPrefix="team").group
    assert prefixed is not None
    assert prefixed.startswith("team-a-")
