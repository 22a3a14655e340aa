"""Values of records through pipelines on a real Spark: JSON, Avro and Protobuf in and out, and dead letters."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from tests.support.pipelines import consume, figures_of, pipeline_of
from tests.support.spark_world import Broker

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.usefixtures("queries")]

NOON = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
ORDER_AVRO: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "who", "type": ["null", "string"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        },
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["NEW", "OLD"]}},
    ],
}
ORDER = {"id": 7, "who": "ada", "at": NOON, "price": Decimal("12.50"), "tags": ["a", "b"], "kind": "OLD"}


def avro(schema: dict[str, Any], row: dict[str, Any]) -> bytes:
    from fastavro import schemaless_writer

    out = io.BytesIO()
    schemaless_writer(out, schema, row)
    return out.getvalue()


def test_json_in_and_out_with_key_headers_and_meta(spark: Any, broker: Broker, tmp_path: Path) -> None:
    source, target = broker.topic(), broker.topic()
    broker.produce(
        source, ['{"n": 1, "at": "2026-01-01T12:00:00Z", "in": {"x": [1, 2]}}'], key="k1", headers={"h": b"1"}
    )
    broker.produce(source, [None], key="gone")
    run = pipeline_of(
        tmp_path,
        f"""
        @pipeline.stream(out=topic({target!r}, key=("who", "n"), headers="hs"))
        def copy(rows=topic({source!r}, schema="n int, at timestamp, in struct<x array<int>>",
                            key="who", headers="hs", meta=True)):
            return rows.select("*", "_meta.offset").drop("_meta")
        """,
    )
    run(spark, broker)
    (record,) = consume(broker, target)
    assert json.loads(record.key()) == {"who": "k1", "n": 1}
    assert record.headers() == [("h", b"1")]
    assert json.loads(record.value()) == {
        "n": 1,
        "at": "2026-01-01T12:00:00.000Z",
        "in": {"x": [1, 2]},
        "who": "k1",
        "offset": 0,
    }


def test_what_does_not_parse_goes_to_the_dead_letters_with_its_place_and_the_reason(
    spark: Any, broker: Broker, tmp_path: Path
) -> None:
    source, target, bad = broker.topic(), broker.topic(), broker.topic()
    values = [
        '{"n": 1, "at": "2026-01-01T12:00:00Z"}',
        "{oops",
        '{"n": "x", "at": null}',
        "[1]",
        '{"at": null}',
        b"\xff",
        b'\x00\x00\x00\x00\x07{"n": 1}',
    ]
    broker.produce(source, values, key="k", headers={"trace": b"7"})
    run = pipeline_of(
        tmp_path,
        f"""
        @pipeline.stream(out=topic({target!r}), dead_letter=topic({bad!r}))
        def copy(rows=topic({source!r}, schema="n int NOT NULL, at timestamp")):
            return rows
        """,
    )
    queries = run(spark, broker)
    assert figures_of(queries) == {"p.copy": (1, 0), "p.copy.dead_letter": (0, 6)}
    assert [json.loads(record.value())["n"] for record in consume(broker, target)] == [1]
    letters = {dict(record.headers())["ottla.error.offset"]: record for record in consume(broker, bad)}
    assert sorted(letters) == [b"1", b"2", b"3", b"4", b"5", b"6"]
    first = dict(letters[b"1"].headers())
    assert first["trace"] == b"7"
    assert first["ottla.error.topic"] == source.encode()
    assert first["ottla.error.partition"] == b"0"
    assert first["ottla.error.stream"] == b"p.copy"
    assert (letters[b"1"].key(), letters[b"1"].value()) == (b"k", b"{oops")
    reasons = {at.decode(): dict(r.headers())["ottla.error.reason"].decode() for at, r in letters.items()}
    assert reasons["1"].startswith("the value is not JSON: Expecting property name")
    assert reasons["2"] == "the value field 'n' is \"x\", not int"
    assert reasons["3"] == "the value is [1], not an object"
    assert reasons["4"] == "the value field 'n' is missing or null"
    assert reasons["5"] == "the value is not UTF-8 text"
    assert reasons["6"].startswith(
        "the value begins like a Confluent-framed value (magic byte 0, schema id 7)"
    )


def test_a_key_that_is_not_of_its_columns_type_is_a_record_that_does_not_parse(
    spark: Any, broker: Broker, tmp_path: Path
) -> None:
    source, target, bad = broker.topic(), broker.topic(), broker.topic()
    for key in ("7", "x7", None):
        broker.produce(source, ['{"a": 1}'], key=key)
    broker.produce(source, [None], key="gone")
    text = """
        @pipeline.stream(out=topic({target!r}){letters})
        def copy(rows=topic({source!r}, schema="n int, a int", key="n", tombstones="keep")):
            return rows
        """
    letters = f", dead_letter=topic({bad!r})"
    run = pipeline_of(tmp_path, text.format(source=source, target=target, letters=letters))
    assert figures_of(run(spark, broker)) == {"p.copy": (3, 0), "p.copy.dead_letter": (0, 1)}
    rows = [{"n": None, "a": None}, {"n": None, "a": 1}, {"n": 7, "a": 1}]
    assert sorted((json.loads(one.value()) for one in consume(broker, target)), key=str) == sorted(
        rows, key=str
    )
    (letter,) = consume(broker, bad)
    assert letter.key() == b"x7"
    assert dict(letter.headers())["ottla.error.reason"] == b"the value comes with a key that is no int"
    failing = pipeline_of(
        tmp_path, text.format(source=source, target=broker.topic(), letters=""), name="failing"
    )
    with pytest.raises(
        Exception, match=f"{source}-0 at offset 1: the value comes with a key that is no int;"
    ):
        failing(spark, broker)


def test_a_topic_that_is_read_by_two_schemas_loses_no_record(
    spark: Any, broker: Broker, tmp_path: Path
) -> None:
    source, target, bad = broker.topic(), broker.topic(), broker.topic()
    run = pipeline_of(
        tmp_path,
        f"""
        @pipeline.stream(out=topic({target!r}), dead_letter={bad!r})
        def copy(
            xs=topic({source!r}, schema="x int NOT NULL"),
            ys=topic({source!r}, schema="y int NOT NULL"),
            again=topic({source!r}, schema="x int NOT NULL", meta=True),
        ):
            return xs.select("x").unionByName(ys.select("y"), allowMissingColumns=True)
        """,
    )
    broker.produce(source, ['{"x": 1, "y": 2}', '{"x": 3}', '{"y": 4}', "{}"])
    assert figures_of(run(spark, broker)) == {"p.copy": (4, 0), "p.copy.dead_letter": (0, 3)}
    letters = {
        record.value(): dict(record.headers())["ottla.error.reason"].decode()
        for record in consume(broker, bad)
    }
    assert letters == {
        b'{"x": 3}': "the value field 'y' is missing or null",
        b'{"y": 4}': "the value field 'x' is missing or null",
        b"{}": "the value field 'x' is missing or null",
    }


def test_without_dead_letters_a_bad_value_stops_the_query_by_name_or_is_skipped(
    spark: Any, broker: Broker, tmp_path: Path
) -> None:
    source, target = broker.topic(), broker.topic()
    broker.produce(source, ["{", '{"n": 2}'])
    text = """
        @pipeline.stream(out=topic({target!r}))
        def copy(rows=topic({source!r}, schema="n int", on_error={mode!r})):
            return rows
        """
    failing = pipeline_of(tmp_path, text.format(source=source, target=target, mode="fail"), name="failing")
    with pytest.raises(Exception, match=f"{source}-0 at offset 0: the value is not JSON of the schema"):
        failing(spark, broker)
    framed = broker.topic()
    broker.produce(framed, [b"\x00\x00\x00\x01\x02{}"])
    failing = pipeline_of(tmp_path, text.format(source=framed, target=target, mode="fail"), name="framed")
    with pytest.raises(
        Exception, match=r"at offset 0: the value begins like .* schema id 258\): .*format='raw'"
    ):
        failing(spark, broker)
    skipping = pipeline_of(tmp_path, text.format(source=source, target=target, mode="skip"), name="skipping")
    (query,) = skipping(spark, broker)
    assert [json.loads(record.value()) for record in consume(broker, target)] == [{"n": 2}]
    observed = query.lastProgress["observedMetrics"]
    assert {name: row.bad for name, row in observed.items() if name.startswith("ottla_in")} == {
        "ottla_in_0": 1
    }


def test_avro_in_and_out(spark: Any, broker: Broker, tmp_path: Path) -> None:
    from fastavro import schemaless_reader

    source, target, bad = broker.topic(), broker.topic(), broker.topic()
    good = avro(ORDER_AVRO, ORDER)
    broker.produce(source, [good, good[:-2], good + b"xx", b""])
    (tmp_path / "order.avsc").write_text(json.dumps(ORDER_AVRO))
    run = pipeline_of(
        tmp_path,
        f"""
        @pipeline.stream(out=topic({target!r}, format="avro", schema="order.avsc", key="id"), dead_letter={bad!r})
        def copy(orders=topic({source!r}, format="avro", schema="order.avsc")):
            return orders.where("price > 12")
        """,
    )
    run(spark, broker)
    (record,) = consume(broker, target)
    assert record.key() == b"7"
    assert schemaless_reader(io.BytesIO(record.value()), ORDER_AVRO, None) == ORDER
    reasons = sorted(dict(r.headers())["ottla.error.reason"].decode() for r in consume(broker, bad))
    assert len(reasons) == 3
    assert any("2 bytes are left over after the record" in reason for reason in reasons)


def test_a_row_that_does_not_fit_the_avro_schema_is_set_aside_by_the_same_query(
    spark: Any, broker: Broker, tmp_path: Path
) -> None:
    source, target, bad = broker.topic(), broker.topic(), broker.topic()
    broker.produce(source, ['{"id": 1}', '{"id": null}'], key="k")
    run = pipeline_of(
        tmp_path,
        f"""
        schema = {{"type": "record", "name": "R", "fields": [{{"name": "id", "type": "long"}}]}}

        @pipeline.stream(out=topic({target!r}, format="avro", schema=schema), dead_letter={bad!r})
        def copy(rows=topic({source!r}, schema="id bigint")):
            return rows
        """,
    )
    queries = run(spark, broker)
    assert figures_of(queries) == {"p.copy": (1, 1), "p.copy.dead_letter": (0, 0)}
    assert [record.value() for record in consume(broker, target)] == [b"\x02"]
    (letter,) = consume(broker, bad)
    headers = dict(letter.headers())
    assert headers["ottla.error.topic"] == target.encode()
    assert headers["ottla.error.reason"].startswith(b"cannot be written: ")
    assert letter.value() == b"{}"


def test_rows_that_changed_and_do_not_fit_the_schema_are_dead_letters_too(
    spark: Any, broker: Broker, tmp_path: Path
) -> None:
    """Behind an aggregation, and written by foreachBatch."""
    source, target, bad = broker.topic(), broker.topic(), broker.topic()
    run = pipeline_of(
        tmp_path,
        f"""
        fields = [{{"name": "id", "type": "long"}}, {{"name": "count", "type": "long"}}]
        out = topic({target!r}, format="avro", schema={{"type": "record", "name": "R", "fields": fields}})

        @pipeline.stream(out=out, mode="update", dead_letter={bad!r})
        def count(rows=topic({source!r}, schema="id bigint")):
            return rows.groupBy("id").count()
        """,
    )
    broker.produce(source, ['{"id": 1}', '{"id": null}', '{"id": 2}', '{"id": 1}', '{"id": null}', "oops"])
    assert figures_of(run(spark, broker)) == {"p.count": (2, 1), "p.count.dead_letter": (0, 1)}
    assert sorted(record.value() for record in consume(broker, target)) == [b"\x02\x04", b"\x04\x02"]
    broker.produce(source, ['{"id": 1}', '{"id": null}'])
    assert figures_of(run(spark, broker)) == {"p.count": (1, 1), "p.count.dead_letter": (0, 0)}
    own = [record.value() for record in consume(broker, bad) if record.value() != b"oops"]
    assert sorted(map(json.loads, own), key=str) == [{"count": 2}, {"count": 3}]


def test_avro_is_written_without_a_schema_by_the_columns(spark: Any, broker: Broker, tmp_path: Path) -> None:
    from fastavro import schemaless_reader

    from ottla.spark.pipeline.values.avro import avro_of
    from ottla.spark.pipeline.values.ddl import parse_schema

    source, target = broker.topic(), broker.topic()
    broker.produce(source, ['{"id": 1, "m": {"a": 2.5}, "at": "2026-01-01T12:00:00Z"}'])
    ddl = "id bigint, m map<string, double>, at timestamp"
    run = pipeline_of(
        tmp_path,
        f"""
        @pipeline.stream(out=topic({target!r}, format="avro"))
        def copy(rows=topic({source!r}, schema={ddl!r})):
            return rows
        """,
    )
    run(spark, broker)
    (record,) = consume(broker, target)
    read = schemaless_reader(io.BytesIO(record.value()), avro_of(parse_schema(ddl)), None)
    assert read == {"id": 1, "m": {"a": 2.5}, "at": NOON}


def test_protobuf_in_and_out(spark: Any, broker: Broker, tmp_path: Path) -> None:
    from tests.support.pipelines import order_class, order_descriptors

    source, target, bad = broker.topic(), broker.topic(), broker.topic()
    (tmp_path / "order.desc").write_bytes(order_descriptors())
    kind = order_class()
    order = kind(id=7, who="ada", big=2**64 - 1, kind="OLD", tags=["a"], counts={"x": 3})
    order.at.FromDatetime(NOON)
    order.place.city = "Praha"
    broker.produce(source, [order.SerializeToString(), b"\xff\xff\xff"])
    run = pipeline_of(
        tmp_path,
        f"""
        @pipeline.stream(
            out=topic({target!r}, format="protobuf", schema="order.desc", message="shop.Order"), dead_letter={bad!r}
        )
        def copy(orders=topic({source!r}, format="protobuf", schema="order.desc", message="shop.Order")):
            return orders.where("place.city = 'Praha' and at = timestamp '2026-01-01 12:00:00Z' and counts['x'] = 3")
        """,
    )
    run(spark, broker)
    (record,) = consume(broker, target)
    assert kind.FromString(record.value()) == order
    (letter,) = consume(broker, bad)
    assert dict(letter.headers())["ottla.error.reason"].startswith(b"the value is no shop.Order: ")


def test_text_values_and_raw_records(spark: Any, broker: Broker, tmp_path: Path) -> None:
    source, middle, target = broker.topic(), broker.topic(), broker.topic()
    broker.produce(source, ["a", "b"], key="k")
    run = pipeline_of(
        tmp_path,
        f"""
        from pyspark.sql.functions import upper

        @pipeline.stream(out=topic({middle!r}, format="string", key="who"))
        def shout(rows=topic({source!r}, format="string", key="who")):
            return rows.withColumn("value", upper("value"))

        @pipeline.stream(out=topic({target!r}, format="raw"))
        def copy(rows=topic({source!r})):
            return rows.select("key", "value")
        """,
    )
    run(spark, broker)
    assert [(r.key(), r.value()) for r in consume(broker, middle)] == [(b"k", b"A"), (b"k", b"B")]
    assert [(r.key(), r.value()) for r in consume(broker, target)] == [(b"k", b"a"), (b"k", b"b")]


def test_an_input_as_a_table_is_the_newest_of_each_key_at_each_batch(
    spark: Any, broker: Broker, tmp_path: Path
) -> None:
    source, users, target = broker.topic(), broker.topic(cleanup_policy="compact"), broker.topic()
    for key, value in (
        ("1", '{"name": "old"}'),
        ("1", '{"name": "ada"}'),
        ("2", '{"name": "gone"}'),
        ("2", None),
    ):
        broker.produce(users, [value], key=key)
    run = pipeline_of(
        tmp_path,
        f"""
        @pipeline.stream(out=topic({target!r}))
        def enrich(
            rows=topic({source!r}, schema="id string"),
            users=topic({users!r}, schema="name string", key="id", table=True),
        ):
            return rows.join(users, "id", "left")
        """,
    )
    broker.produce(source, ['{"id": "1"}', '{"id": "2"}'])
    run(spark, broker)
    broker.produce(users, ['{"name": "new"}'], key="2")
    broker.produce(source, ['{"id": "2"}'])
    run(spark, broker)
    got = [json.loads(record.value()) for record in consume(broker, target)]
    assert sorted(got, key=json.dumps) == sorted(
        [{"id": "1", "name": "ada"}, {"id": "2", "name": None}, {"id": "2", "name": "new"}], key=json.dumps
    )


def test_the_schema_parser_agrees_with_sparks_own(spark: Any) -> None:
    from pyspark.sql.types import StructType

    from ottla.spark.pipeline.values.ddl import parse_schema

    for text in (
        "a int, b: string, `c d` bigint not null comment 'x', _e double",
        "d decimal(5,2), dd dec, n numeric(3), v varchar(5), c char(2), b binary, bo boolean",
        "s struct<x:int, y: array<map<string, struct<z timestamp_ntz>>> not null>, t timestamp, dt date",
        "i interval day to second, j interval year to month, k interval hour, v variant, st short, l long",
        "ARR ARRAY<INT>, 1st int, select int",
    ):
        assert parse_schema(text).jsonValue() == StructType.fromDDL(text).jsonValue(), text
