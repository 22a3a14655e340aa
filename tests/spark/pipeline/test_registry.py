"""Pipelines whose values name schemas of a registry, on a real Spark: read, written, set aside, and tried again."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.pipelines import consume, figures_of, pipeline_of, write_pipeline
from tests.support.spark_world import QUERY_TIMEOUT_S, Broker

from ottla.client.registry.framing import FRAME_BYTES, frame, schema_id
from ottla.testing import Registry

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.usefixtures("queries")]

OLD: dict[str, Any] = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]}
NEW: dict[str, Any] = {
    **OLD,
    "fields": [{"name": "id", "type": "long"}, {"name": "who", "type": "string", "default": "nobody"}],
}


@pytest.fixture
def registry() -> Iterator[Registry]:
    with Registry() as made:
        yield made


def avro(number: int, schema: dict[str, Any], row: dict[str, Any]) -> bytes:
    from fastavro import schemaless_writer

    out = io.BytesIO()
    out.write(frame(number))
    schemaless_writer(out, schema, row)
    return out.getvalue()


def reasons(broker: Broker, topic: str) -> dict[int, str]:
    """Dead letters: where they came from, and why."""
    found = [dict(record.headers()) for record in consume(broker, topic)]
    return {int(one["ottla.error.offset"]): one["ottla.error.reason"].decode() for one in found}


def test_avro_of_two_writers_is_read_by_the_newest_schema_and_written_with_one_of_its_own(
    spark: Any, broker: Broker, registry: Registry, tmp_path: Path
) -> None:
    from fastavro import schemaless_reader

    source, target, bad = broker.topic(), broker.topic(), broker.topic()
    first = registry.register(f"{source}-value", OLD)
    second = registry.register(f"{source}-value", NEW)
    values = [
        avro(first, OLD, {"id": 1}),
        avro(second, NEW, {"id": 2, "who": "ada"}),
        frame(4711) + b"\x02",
        b'{"id": 3}',
    ]
    broker.produce(source, values)
    run = pipeline_of(
        tmp_path,
        f"""
        @pipeline.stream(out=topic({target!r}, format="avro", registry={registry.url!r}, key="who"),
                         dead_letter=topic({bad!r}))
        def copy(rows=topic({source!r}, format="avro", registry={registry.url!r})):
            return rows.selectExpr("id * 10 AS id", "who")
        """,
    )
    queries = run(spark, broker)
    assert figures_of(queries) == {"p.copy": (2, 0), "p.copy.dead_letter": (0, 2)}
    written = consume(broker, target)
    (number,) = registry.subjects()[f"{target}-value"]
    assert {schema_id(record.value()) for record in written} == {number}
    schema = json.loads(registry.schema(number))
    rows = [schemaless_reader(io.BytesIO(record.value()[FRAME_BYTES:]), schema, None) for record in written]
    assert sorted(rows, key=str) == [{"id": 10, "who": "nobody"}, {"id": 20, "who": "ada"}]
    assert sorted(record.key() for record in written) == [b"ada", b"nobody"]
    assert reasons(broker, bad) == {
        2: f"the value has schema id 4711, which is unknown to the registry at {registry.url}",
        3: "the value is not framed: it begins with 0x7b, not with the magic byte 0",
    }


def test_json_in_and_out_and_what_stops_it(
    spark: Any, broker: Broker, registry: Registry, tmp_path: Path
) -> None:
    source, target, bad = broker.topic(), broker.topic(), broker.topic()
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    number = registry.register(f"{source}-value", schema, "JSON")
    values = [
        frame(number) + b'{"n": 1}',
        frame(number) + b'{"n": "x"}',
        frame(number) + b"{}",
        frame(99) + b"{}",
        b"{}",
    ]
    broker.produce(source, values)
    text = f"""
        @pipeline.stream(out=topic({target!r}, format="json", registry={registry.url!r}){{}})
        def copy(rows=topic({source!r}, format="json", registry={registry.url!r})):
            return rows
        """
    run = pipeline_of(tmp_path, text.format(f", dead_letter=topic({bad!r})"))
    run(spark, broker)
    (record,) = consume(broker, target)
    (own,) = registry.subjects()[f"{target}-value"]
    assert record.value() == frame(own) + b'{"n":1}'
    assert reasons(broker, bad) == {
        1: "the value field 'n' is \"x\", not bigint",
        2: "the value field 'n' is missing or null",
        3: f"the value has schema id 99, which is unknown to the registry at {registry.url}",
        4: "the value is not framed: a frame has 5 bytes and more, and this is 2",
    }
    with pytest.raises(Exception, match=r"at offset 1: the value is not JSON of the schema"):
        pipeline_of(tmp_path, text.format(""), name="strict")(spark, broker)


def test_protobuf_by_the_text_that_the_registry_keeps(
    spark: Any, broker: Broker, registry: Registry, tmp_path: Path
) -> None:
    """Another message of the schema, and a cut one, are dead letters."""
    source, target, bad = broker.topic(), broker.topic(), broker.topic()
    text = """
        syntax = "proto3";
        message Note { string text = 1; }
        message Order { int64 id = 1; map<string, int32> items = 2; optional string who = 3; }
    """
    number = registry.register(f"{source}-value", text, "PROTOBUF")
    order = bytes([8, 7]) + bytes([18, 7, 10, 3]) + b"pen" + bytes([16, 2])
    values = [
        frame(number) + b"\x02\x02" + order,
        frame(number) + b"\0" + b"\x0a\x01x",
        frame(number) + b"\x02\x02" + order[:-1],
    ]
    broker.produce(source, values)
    (tmp_path / "count.proto").write_text(
        'syntax = "proto3"; message Count { int64 id = 1; int32 pens = 2; }'
    )
    run = pipeline_of(
        tmp_path,
        f"""
        @pipeline.stream(out=topic({target!r}, format="protobuf", schema="count.proto", registry={registry.url!r}),
                         dead_letter=topic({bad!r}))
        def count(rows=topic({source!r}, format="protobuf", message="Order", registry={registry.url!r})):
            return rows.selectExpr("id", "items['pen'] AS pens").where("who IS NULL")
        """,
    )
    run(spark, broker)
    (record,) = consume(broker, target)
    (own,) = registry.subjects()[f"{target}-value"]
    assert record.value() == frame(own) + b"\0" + bytes([8, 7, 16, 2])
    assert registry.schema(own).startswith('syntax = "proto3";')
    found = reasons(broker, bad)
    assert found.keys() == {1, 2}
    assert found[1] == "the value is a Note, not a Order"


def test_a_registry_that_is_away_stops_the_query_and_sets_nothing_aside(
    spark: Any, broker: Broker, registry: Registry, tmp_path: Path
) -> None:
    source, target, bad = broker.topic(), broker.topic(), broker.topic()
    number = registry.register(f"{source}-value", OLD)
    broker.produce(source, [avro(number, OLD, {"id": 1})])
    (tmp_path / "order.avsc").write_text(json.dumps(OLD))
    run = pipeline_of(
        tmp_path,
        f"""
        @pipeline.stream(out=topic({target!r}, partitions=1), dead_letter=topic({bad!r}))
        def copy(rows=topic({source!r}, format="avro", schema="order.avsc", registry={registry.url!r})):
            return rows
        """,
    )
    registry.down = True
    with pytest.raises(Exception, match=r"RegistryUnavailableError: the schema registry cannot be asked for"):
        run(spark, broker)
    for query in spark.streams.active:
        query.stop()
    assert consume(broker, bad) == []
    registry.down = False
    run(spark, broker)
    assert [json.loads(record.value()) for record in consume(broker, target)] == [{"id": 1}]
    assert consume(broker, bad) == []


def test_an_id_that_becomes_known_between_the_two_queries_is_in_the_dead_letters(
    spark: Any, broker: Broker, registry: Registry, tmp_path: Path
) -> None:
    from ottla.spark.pipeline import load
    from ottla.spark.pipeline.running import plan

    source, target, bad = broker.topic(), broker.topic(), broker.topic()
    unknown = registry.register("another", NEW) + 1
    broker.produce(source, [avro(unknown, OLD, {"id": 1})])

    def run(number: int, address: str) -> None:
        """The stream (0) or its dead letters (1); a worker that knows the address by another name knows nothing yet."""
        path = write_pipeline(
            tmp_path,
            f"""
            @pipeline.stream(out=topic({target!r}), dead_letter=topic({bad!r}))
            def copy(rows=topic({source!r}, format="avro", schema={json.dumps(OLD)!r}, registry={address!r})):
                return rows
            """,
        )
        plans = plan(load(path), spark, broker.bootstrap, str(tmp_path / "state"), available_now=True)
        query = plans[number].start()
        assert query.awaitTermination(QUERY_TIMEOUT_S), f"{query.name} has not ended"

    run(0, registry.url)
    assert registry.register(f"{source}-value", OLD) == unknown
    run(1, registry.url.replace("127.0.0.1", "localhost"))
    assert consume(broker, target) == []
    assert reasons(broker, bad) == {
        0: f"the value has schema id {unknown}, which was unknown to the registry when it came"
    }
    broker.produce(source, [avro(unknown, OLD, {"id": 2})])
    run(0, registry.url.replace("127.0.0.1", "localhost"))
    run(1, registry.url.replace("127.0.0.1", "localhost"))
    assert [json.loads(record.value()) for record in consume(broker, target)] == [{"id": 2}]
    assert list(reasons(broker, bad)) == [0]
