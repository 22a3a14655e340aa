"""Values by a registry's schemas: frames, two writers and one reader, subjects, and what is wrong with a value."""

from __future__ import annotations

import errno
import io
import json
import pickle
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark import cloudpickle
from tests.support.pipelines import order_class, order_descriptors

from ottla.client.registry.client import (
    PROTOBUF,
    Reference,
    RegistryClient,
    RegistryError,
    RegistrySettings,
    RegistryUnavailableError,
    Schema,
    UnknownSchemaError,
)
from ottla.client.registry.framing import frame
from ottla.spark.pipeline.declare import DeclarationError, topic
from ottla.spark.pipeline.quality import changes
from ottla.spark.pipeline.values import avro, codec, protobuf, registry
from ottla.spark.pipeline.values.ddl import parse_schema
from ottla.spark.pipeline.values.json_schema import columns_of, schema_of
from ottla.spark.pipeline.values.plain import Shown
from ottla.spark.pipeline.values.registry import (
    AvroFramed,
    JsonFramed,
    ProtobufFramed,
    _Decoding,
    _FrameErrors,
    self_contained,
)
from ottla.spark.pipeline.values.rows import encoded
from ottla.spark.pipeline.values.verdicts import Verdicts
from ottla.testing import Registry

HERE = Path()
ID = {"name": "id", "type": "long"}
WHO = {"name": "who", "type": "string", "default": "nobody"}


def record(*fields: Any, name: str = "Order") -> dict[str, Any]:
    return {"type": "record", "name": name, "namespace": "shop", "fields": list(fields)}


@pytest.fixture(autouse=True)
def no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "UNKNOWN_WAIT_S", 0.0)


@pytest.fixture(name="server")
def running() -> Iterator[Registry]:
    with Registry() as made:
        yield made


def codec_for(server: Registry, form: str, writing: bool = False, base: Path = HERE, **more: Any) -> Any:
    declared = topic("orders", format=form, registry=server.url, **more)
    return codec(declared, form, base, writing=writing)


def written(number: int, schema: Any, row: dict[str, Any]) -> bytes:
    from fastavro import schemaless_writer

    out = io.BytesIO(frame(number))
    out.seek(0, io.SEEK_END)
    schemaless_writer(out, schema, row)
    return out.getvalue()


def read(made: Any, *values: bytes | None) -> list[dict[str, Any]]:
    """As a worker does: the task's function is pickled on its way."""
    found = read_at(made, placed(*values))
    return [{"data": row["data"], "error": row["error"]} for row in found]


def placed(*values: bytes | None, start: int = 0) -> pa.Array:
    """Values as the records of partition 0 from an offset on."""
    rows = [{"value": value, "partition": 0, "offset": at} for at, value in enumerate(values, start)]
    kind = pa.struct([("value", pa.binary()), ("partition", pa.int32()), ("offset", pa.int64())])
    return pa.array(rows, kind)


def read_at(made: Any, records: pa.Array, verdicts: Verdicts | None = None) -> list[dict[str, Any]]:
    decoding = _Decoding(made._reading, made.columns, verdicts)
    return pickle.loads(cloudpickle.dumps(decoding))(records).to_pylist()  # type: ignore[no-any-return]


def test_records_of_two_writers_are_read_by_the_newest_schema(server: Registry) -> None:
    old, new = record(ID), record(ID, WHO)
    first, second = server.register("orders-value", old), server.register("orders-value", new)
    made = codec_for(server, "avro")
    assert made.columns.simpleString() == "struct<id:bigint,who:string>"
    got = read(made, written(first, old, {"id": 1}), written(second, new, {"id": 2, "who": "ada"}), None)
    assert got == [
        {"data": {"id": 1, "who": "nobody"}, "error": None},
        {"data": {"id": 2, "who": "ada"}, "error": None},
        {"data": None, "error": None},
    ]


def test_the_readers_schema_may_be_declared_under_another_name(server: Registry) -> None:
    writer = record({"name": "id", "type": "int"}, WHO, name="Writer")
    number = server.register("orders-value", writer)
    made = codec_for(server, "avro", schema=record(ID, name="Reader"))
    assert read(made, written(number, writer, {"id": 7, "who": "x"})) == [{"data": {"id": 7}, "error": None}]


def test_a_schema_is_asked_for_once_whatever_comes(server: Registry) -> None:
    number = server.register("orders-value", record(ID))
    made = codec_for(server, "avro", schema=record(ID))
    values = [written(number, record(ID), {"id": n}) for n in range(50)]
    read(made, *values)
    read(made, *values)
    assert server.questions == [f"GET /schemas/ids/{number}"]


def test_what_is_wrong_with_a_value_is_its_reason(server: Registry) -> None:
    number = server.register("orders-value", record(ID))
    other = server.register("other", '{"type": "object"}', "JSON")
    text = server.register("text", '"string"')
    made = codec_for(server, "avro", schema=record({"name": "id", "type": "string"}))
    good = codec_for(server, "avro", schema=record(ID))
    values = [b"{}", b'{"id": 1}', frame(99) + b"x", frame(other) + b"{}", frame(text) + b"\x02a"]
    reasons = [one["error"] for one in read(good, *values)]
    assert reasons[0] == "is not framed: a frame has 5 bytes and more, and this is 2"
    assert reasons[1] == "is not framed: it begins with 0x7b, not with the magic byte 0"
    assert reasons[2] == f"has schema id 99, which is unknown to the registry at {server.url}"
    assert reasons[3] == f"has schema id {other}, which is JSON in the registry, not AVRO"
    assert "a record is expected at the top" in reasons[4]
    assert [good.explain(value) for value in values] == reasons
    (short,) = read(good, frame(number))
    assert "ends within a field" in short["error"] or short["error"]
    (left,) = read(good, written(number, record(ID), {"id": 1}) + b"x")
    assert left["error"] == "1 bytes are left over after the record"
    (unfit,) = read(made, written(number, record(ID), {"id": 1}))
    assert unfit["error"].startswith(f"of schema id {number} cannot be read by the reader's schema: ")


def test_an_unknown_id_is_asked_for_twice_and_then_left_alone_for_a_while(server: Registry) -> None:
    made = codec_for(server, "avro", schema=record(ID))
    for _ in range(3):
        assert "unknown" in read(made, frame(5) + b"x")[0]["error"]
    assert server.questions == ["GET /schemas/ids/5"] * 2


def test_a_registry_that_is_away_is_no_fault_of_the_records(server: Registry) -> None:
    number = server.register("orders-value", record(ID))
    made = codec_for(server, "avro", schema=record(ID))
    value = written(number, record(ID), {"id": 1})
    server.down = True
    with pytest.raises(RegistryUnavailableError, match="cannot be asked for schema id 1"):
        read(made, value)
    with pytest.raises(RegistryUnavailableError):
        made.explain(value)
    server.down = False
    assert read(made, value) == [{"data": {"id": 1}, "error": None}]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(payload=st.binary(max_size=40), framed=st.booleans())
def test_garbage_never_raises(server: Registry, payload: bytes, framed: bool) -> None:
    server.register("orders-value", record(ID, WHO))
    made = codec_for(server, "avro", schema=record(ID))
    (one,) = read(made, frame(1) + payload if framed else payload)
    assert (one["data"] is None) == (one["error"] is not None)


def write(made: AvroFramed, columns: str, *rows: dict[str, Any]) -> list[dict[str, Any]]:
    schema, head = made.register(parse_schema(columns))
    make = pickle.loads(cloudpickle.dumps(avro.Make(avro.encoder, schema, head)))
    return encoded(rows, make()).to_pylist()  # type: ignore[no-any-return]


def test_the_schema_of_the_columns_is_registered_and_read_back(server: Registry) -> None:
    made = codec_for(server, "avro", writing=True)
    (one,) = write(made, "id bigint, at timestamp", {"id": 7, "at": None})
    assert one["value"].startswith(frame(1))
    assert server.subjects() == {"orders-value": [1]}
    assert json.loads(server.schema(1))["name"] == "orders"
    assert read(codec_for(server, "avro"), one["value"]) == [{"data": {"id": 7, "at": None}, "error": None}]
    write(codec_for(server, "avro", writing=True), "id bigint, at timestamp", {"id": 8, "at": None})
    assert server.subjects() == {"orders-value": [1]}
    write(codec_for(server, "avro", writing=True), "id bigint, who string", {"id": 8, "who": "x"})
    assert server.subjects() == {"orders-value": [1, 2]}


def test_a_declared_schema_is_registered_as_it_is(server: Registry) -> None:
    uuid = {"name": "u", "type": {"type": "string", "logicalType": "uuid"}}
    made = codec_for(server, "avro", writing=True, schema=record(ID, uuid))
    (one,) = write(made, "id bigint, u string", {"id": 1, "u": "not a uuid"})
    assert one["error"] is None
    assert json.loads(server.schema(1)) == record(ID, uuid)


@pytest.mark.parametrize(
    ("strategy", "subject"),
    [
        (None, "orders-value"),
        ("TopicNameStrategy", "orders-value"),
        ("RecordNameStrategy", "shop.Order"),
        ("TopicRecordNameStrategy", "orders-shop.Order"),
        ("mine", "mine"),
    ],
)
def test_subjects(server: Registry, strategy: str | None, subject: str) -> None:
    write(codec_for(server, "avro", writing=True, schema=record(ID), subject=strategy), "id bigint")
    assert list(server.subjects()) == [subject]


def test_a_schema_that_does_not_fit_those_before_it_is_refused_before_anything_runs(server: Registry) -> None:
    server.register("orders-value", record(ID))
    made = codec_for(server, "avro", writing=True, schema=record(ID, {"name": "n", "type": "int"}))
    with pytest.raises(RegistryError, match="not compatible with those before it"):
        made.register(parse_schema("id bigint, n int"))


def test_without_auto_register_the_schema_is_only_looked_up(server: Registry) -> None:
    options = {"auto.register": False}
    made = codec_for(server, "avro", writing=True, schema=record(ID), registry_options=options)
    with pytest.raises(UnknownSchemaError, match=r"auto.register is false"):
        made.register(parse_schema("id bigint"))
    number = server.register("orders-value", record(ID))
    assert made.register(parse_schema("id bigint"))[1] == frame(number)


def test_columns_that_make_no_avro_schema(server: Registry) -> None:
    made = codec_for(server, "avro", writing=True)
    assert made.refuse(parse_schema("`count(1)` bigint"))[0].startswith("'count(1)' is no name for a field")
    assert len(made.refuse(parse_schema("a struct<`b c`:int>, d array<struct<`e-f`:int>>"))) == 2
    assert made.refuse(parse_schema("a bigint")) == []
    assert server.questions == []


def test_no_subject_and_no_schema(server: Registry) -> None:
    with pytest.raises(UnknownSchemaError, match=r"subject 'orders-value' is unknown .*; give schema="):
        _ = codec_for(server, "avro").columns
    server.register("orders-value", "{}", "JSON")
    with pytest.raises(DeclarationError, match="is JSON in the registry, not AVRO"):
        _ = codec_for(server, "avro").columns


def test_references_are_part_of_the_schema() -> None:
    place = {
        "type": "record",
        "name": "Place",
        "namespace": "geo",
        "fields": [{"name": "city", "type": "string"}],
    }
    order = record({"name": "here", "type": "geo.Place"}, {"name": "there", "type": ["null", "geo.Place"]})
    made = self_contained(order, [place])
    row = {"here": {"city": "a"}, "there": {"city": "b"}}
    assert avro.decoder(made, start=5)(written(1, made, row)) == row


NODE = {
    "type": "record",
    "name": "Node",
    "fields": [{"name": "v", "type": "int"}, {"name": "next", "type": ["null", "Node"]}],
}


@pytest.mark.parametrize("depth", [100, 100_000])
def test_a_value_as_deep_as_its_writer_liked_is_a_row_or_a_dead_letter(server: Registry, depth: int) -> None:
    """A process that ends here would end again at the same record, for ever."""
    number = server.register("orders-value", record(ID, {"name": "list", "type": NODE}))
    made = codec_for(server, "avro", schema=record(ID))
    deep = frame(number) + b"\x02" + b"\x02\x02" * depth + b"\x02\x00"
    shallow = frame(number) + b"\x04\x02\x00"
    first, second = read(made, deep, shallow)
    if depth == 100:
        assert first == {"data": {"id": 1}, "error": None}
    else:
        assert "recursion" in first["error"]
    assert second == {"data": {"id": 2}, "error": None}
    if depth > 1000:
        with pytest.raises(ValueError, match="recursion"):
            Shown(RegistryClient(RegistrySettings.of(server.url)))(deep)


@pytest.mark.parametrize(
    "items",
    [
        "null",
        {"type": "record", "name": "Z", "fields": []},
        {"type": "record", "name": "Z", "fields": [{"name": "n", "type": "null"}]},
        {"type": "fixed", "name": "F", "size": 0},
    ],
)
def test_arrays_of_nothing_are_not_counted_to_their_end(server: Registry, items: Any) -> None:
    """2^60 of them are nine bytes."""
    writer = record({"name": "a", "type": {"type": "array", "items": items}}, ID)
    number = server.register("orders-value", writer)
    made = codec_for(server, "avro", schema=record(ID))
    (found,) = read(made, frame(number) + b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f")
    assert "an array of items without bytes" in found["error"]


def test_references_that_lead_back_are_put_in_once(server: Registry) -> None:
    one = record(
        {"name": "b", "type": ["null", "shop.B"]}, {"name": "c", "type": ["null", "shop.B"]}, name="A"
    )
    two = record({"name": "a", "type": ["null", "shop.A"]}, name="B")
    made = self_contained({"type": "array", "items": "shop.A"}, [one, two])
    assert json.dumps(made).count('"fields"') == 2
    server.register("orders-value", '"order.avsc"')
    with pytest.raises(DeclarationError, match="is no record"):
        _ = codec_for(server, "avro").columns


def told(made: Any, *values: bytes) -> list[Any]:
    """How the writers' schemas differ from the reader's, of records that are looked at."""
    found = [row["difference"] for row in read_at(made, placed(*values))]
    return [None if text is None else tuple(json.loads(text).values()) for text in found]


def test_how_writers_differ_from_the_reader_is_told_for_the_first_of_each(server: Registry) -> None:
    price = {"name": "price", "type": "double", "default": 0.0}
    named = {"name": "customer", "type": "string", "default": "", "aliases": ["who"]}
    first, second = record(ID, WHO), record(ID, price)
    old, new = server.register("orders-value", first), server.register("other", second)
    made = codec_for(server, "avro", schema=record(ID, named))
    mine, other = written(old, first, {"id": 1, "who": "ada"}), written(new, second, {"id": 1, "price": 2.0})
    many = [mine] * changes.FIRST_OF_BATCH
    assert told(made, *many, mine, other, other, frame(99)) == [
        *[([], [])] * changes.FIRST_OF_BATCH,
        None,
        (["price"], ["customer"]),
        None,
        None,
    ]


def test_messages_differ_by_the_numbers_of_their_fields(server: Registry, tmp_path: Path) -> None:
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    made = FileDescriptorSet.FromString(order_descriptors())
    (tmp_path / "order.desc").write_bytes(made.SerializeToString())
    head = codec_for(
        server, "protobuf", writing=True, schema="order.desc", message="shop.Order", base=tmp_path
    ).register()
    order = next(one for one in made.file[-1].message_type if one.name == "Order")
    by_name = {field.name: field for field in order.field}
    by_name["who"].name = "customer"  # the same number: nothing has changed
    by_name["tags"].number = 99
    (tmp_path / "other.desc").write_bytes(made.SerializeToString())
    other = codec_for(server, "protobuf", schema="other.desc", message="shop.Order", base=tmp_path)
    assert told(other, head) == [(["tags"], ["tags"])]


def test_protobuf_with_its_message_indexes(server: Registry, tmp_path: Path) -> None:
    (tmp_path / "order.desc").write_bytes(order_descriptors())
    given = {"schema": "order.desc", "message": "shop.Order", "base": tmp_path}
    made = codec_for(server, "protobuf", writing=True, **given)
    head = made.register()
    assert head == frame(1) + b"\x02\x02"  # the second message of the file
    value = head + order_class()(id=7, who="ada").SerializeToString()
    (declared,) = read(codec_for(server, "protobuf", **given), value)
    (newest,) = read(codec_for(server, "protobuf", message="shop.Order"), value)
    assert declared == newest
    assert (declared["error"], declared["data"]["id"], declared["data"]["who"]) == (None, 7, "ada")
    (other,) = read(codec_for(server, "protobuf", **given), frame(1) + b"\0" + value[7:])
    assert other["error"] == "is a shop.Place, not a shop.Order"
    (none,) = read(codec_for(server, "protobuf", **given), frame(1) + b"\x02\x12")
    assert none["error"] == "names message 9 of a schema that has 2"
    (cut,) = read(codec_for(server, "protobuf", **given), frame(1))
    assert cut["error"] == "ends within its message indexes"
    (unknown,) = read(codec_for(server, "protobuf", **given), frame(9) + b"\0")
    assert "schema id 9" in unknown["error"]
    with pytest.raises(DeclarationError, match="has Place, Order; say which"):
        _ = codec_for(server, "protobuf").columns


def test_a_protobuf_schema_that_is_text(server: Registry) -> None:
    """As registries keep it, and people write it."""
    inner = 'syntax = "proto3"; package n; message In { string who = 1; }'
    text = 'syntax = "proto3"; import "in.proto"; message A { map<string, int32> m = 2; n.In in = 1; }'
    server.register("in.proto", inner, "PROTOBUF")
    schema = Schema(PROTOBUF, text, (Reference("in.proto", "in.proto", 1),))
    number = RegistryClient(RegistrySettings((server.url,))).register("orders-value", schema)
    made = codec_for(server, "protobuf")
    assert made.columns.simpleString() == "struct<m:map<string,int>,in:struct<who:string>>"
    (one,) = read(made, frame(number) + b"\0" + b"\x0a\x05\x0a\x03ada")
    assert (one["error"], one["data"]["in"]["who"]) == (None, "ada")


def test_a_protobuf_schema_that_only_protoc_reads(
    server: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without protoc it cannot be read; what is declared can, and only the id is asked for."""
    monkeypatch.setattr(registry.shutil, "which", lambda name: None)
    number = server.register("orders-value", 'edition = "2023"; message A {}', "PROTOBUF")
    with pytest.raises(
        DeclarationError, match="text that only protoc reads, and there is none here: give schema="
    ):
        _ = codec_for(server, "protobuf").columns
    (tmp_path / "order.desc").write_bytes(order_descriptors())
    made = codec_for(server, "protobuf", schema="order.desc", message="shop.Order", base=tmp_path)
    (one,) = read(made, frame(number) + b"\x02\x02" + order_class()(id=7).SerializeToString())
    assert (one["error"], one["data"]["id"]) == (None, 7)


def test_a_machine_that_cannot_read_a_schema_now_says_nothing_of_its_values(
    server: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task fails, and is tried again: nobody would have the record otherwise, if the other query can read it."""
    number = server.register("orders-value", 'syntax = "proto3"; message A { int32 n = 1; }', "PROTOBUF")
    made, value = codec_for(server, "protobuf"), frame(number) + b"\0" + b"\x08\x07"
    assert made.columns.simpleString() == "struct<n:int>"
    errors = [OSError(errno.ENOSPC, "No space left on device"), subprocess.TimeoutExpired("protoc", 60)]
    with monkeypatch.context() as patch:
        patch.setattr(registry, "descriptors_of", lambda *_: raising(errors[0]))
        while errors:
            with pytest.raises(type(errors[0])):
                read(made, value)
            del errors[0]
    (one,) = read(made, value)
    assert (one["error"], one["data"]["n"]) == (None, 7)


def raising(error: Exception) -> None:
    raise error


def test_a_schema_that_refers_to_what_is_no_name_of_a_file(
    server: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That is the schema's own, however the machine is."""
    monkeypatch.setattr(registry.shutil, "which", lambda name: name)
    server.register("long", 'edition = "2023";', "PROTOBUF")
    client = RegistryClient(RegistrySettings((server.url,)))
    text = 'edition = "2023"; message A {}'
    number = client.register("orders-value", Schema(PROTOBUF, text, (Reference("x" * 300, "long", 1),)))
    (one,) = read(codec_for(server, "protobuf", schema=order_class()), frame(number) + b"\0")
    assert "whose schema cannot be used: the registry's schema refers to 'xxx" in one["error"]


def test_a_protobuf_schema_that_is_broken(server: Registry) -> None:
    server.register("orders-value", "message A {", "PROTOBUF")
    with pytest.raises(
        DeclarationError, match=r"the registry's schema: schema-1\.proto:1: the end stands where"
    ):
        _ = codec_for(server, "protobuf").columns


def test_protobuf_imports_are_registered_under_their_own_names(server: Registry) -> None:
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorSet

    made = FileDescriptorSet()
    inner = made.file.add(name="inner.proto", package="n", syntax="proto3")
    inner.message_type.add(name="Inner").field.add(
        name="x", number=1, type=FieldDescriptorProto.TYPE_INT32, label=FieldDescriptorProto.LABEL_OPTIONAL
    )
    outer = made.file.add(name="outer.proto", package="n", syntax="proto3", dependency=["inner.proto"])
    outer.message_type.add(name="Outer").field.add(
        name="i",
        number=1,
        type=FieldDescriptorProto.TYPE_MESSAGE,
        type_name=".n.Inner",
        label=FieldDescriptorProto.LABEL_OPTIONAL,
    )
    data = made.SerializeToString()
    client = codec_for(server, "json", schema="a int")._client
    head = registry.register_protobuf(client, "orders-value", data, "n.Outer")
    assert list(server.subjects()) == ["inner.proto", "orders-value"]
    value = head + protobuf.message_class(data, "n.Outer")(i={"x": 3}).SerializeToString()
    assert read(codec_for(server, "protobuf"), value) == [{"data": {"i": {"x": 3}}, "error": None}]


def test_json_frames(server: Registry) -> None:
    made = codec_for(server, "json", writing=True)
    columns = parse_schema("n int, at timestamp, tags array<string>, more map<string, double>")
    head = made.register(columns)
    assert head == frame(1)
    again = codec_for(server, "json")
    assert again.columns.simpleString() == (
        "struct<n:bigint,at:timestamp,tags:array<string>,more:map<string,double>>"
    )
    errors = _FrameErrors(registry.JsonReading(again._client), None)
    heads = placed(head, b"{", frame(9), None)
    found = pickle.loads(cloudpickle.dumps(errors))(heads).to_pylist()
    assert (found[0], found[3]) == (None, None)
    assert found[1].startswith("is not framed")
    assert "schema id 9" in found[2]
    assert again.explain(head + b'{"n": "x"}') == "field 'n' is \"x\", not bigint"
    assert again.explain(b'{"n": 1}').startswith("is not framed")


def test_json_schema_as_columns() -> None:
    schema = {
        "type": "object",
        "required": ["a", "b"],
        "properties": {
            "a": {"type": "integer"},
            "b": {"type": ["null", "string"]},
            "c": {"$ref": "#/$defs/C"},
            "d": {"oneOf": [{"type": "null"}, {"type": "string", "format": "date"}]},
            "e": {"enum": ["X", "Y"]},
        },
        "$defs": {"C": {"type": "object", "properties": {"x": {"type": "number"}}}},
    }
    found = columns_of(json.dumps(schema))
    assert found.simpleString() == "struct<a:bigint,b:string,c:struct<x:double>,d:date,e:string>"
    assert [field.nullable for field in found.fields] == [False, True, True, True, True]
    assert columns_of(schema_of(found, "t")).simpleString() == found.simpleString()


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ('{"type": "string"}', "not that of an object"),
        ('{"type": "object"}', "has no properties"),
        ('{"properties": {"a": {}}}', "'a' of the registry's JSON Schema has no single type"),
        ('{"properties": {"a": true}}', "may be anything"),
        ('{"properties": {"a": {"type": {}}}}', "is none: give schema="),
        ('{"properties": {"a": {"enum": 5}}}', "is none: give schema="),
        ('{"properties": {"a": {"$ref": "other.json"}}}', "refers to 'other.json'"),
        ('{"properties": {"a": {"$ref": "#/no"}}}', "has no '#/no'"),
        ('{"properties": {"a": {"$ref": "#"}}}', "nested too deep|has no '#'"),
        ('{"properties": {"a": {"oneOf": [{"type": "string"}, {"type": "integer"}]}}}', "one of 2 types"),
    ],
)
def test_json_schema_that_makes_no_columns(schema: str, words: str) -> None:
    with pytest.raises(DeclarationError, match=words):
        columns_of(schema)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"format": "raw"}, "needs format='avro', 'protobuf' or 'json', not 'raw'"),
        ({"format": "avro", "registry": "a:1"}, "registry: 'a:1' is no address"),
        ({"format": "avro", "registry": 5}, "registry: takes an address"),
        ({"format": "avro", "registry_options": {"x": 1}}, "registry: there is no option 'x'"),
        ({"format": "avro", "subject": "RecordNameStrateg" + "yStrategy"}, "is none of TopicNameStrategy"),
        ({"format": "avro", "subject": "RecordNameStrategy"}, "needs schema="),
        ({"format": "avro", "schema": "{"}, "is not JSON"),
        ({"format": "json", "registry": None, "subject": "x"}, "say registry="),
    ],
)
def test_declarations_that_are_wrong_are_found_without_the_registry(given: Any, words: str) -> None:
    declared = topic("orders", **{"registry": "http://127.0.0.1:1", **given})
    with pytest.raises(DeclarationError, match=words):
        codec(declared, given["format"], HERE, writing=False)


def test_no_secret_is_shown() -> None:
    declared = topic(
        "o", registry="http://me:s3cret@h", registry_options={"bearer.auth.token": "s3cret"}, format="avro"
    )
    assert "s3cret" not in repr(declared) + str(declared)


def test_codecs_pickle(server: Registry) -> None:
    server.register("orders-value", record(ID))
    for form, kind in (("avro", AvroFramed), ("json", JsonFramed), ("protobuf", ProtobufFramed)):
        made = codec_for(server, form, schema=record(ID) if form == "avro" else None)
        assert isinstance(made, kind)
        assert pickle.loads(cloudpickle.dumps(made))._client is made._client
