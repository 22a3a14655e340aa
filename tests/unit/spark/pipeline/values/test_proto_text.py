"""The text of .proto files: held against what protoc made of Google's own, and against its own writing."""

from __future__ import annotations

import importlib
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ottla.spark.pipeline.values.proto_text import ProtoError, Unsupported, parse_proto, write_proto

google = pytest.importorskip("google.protobuf")

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto  # noqa: E402
from google.protobuf.descriptor_pool import DescriptorPool  # noqa: E402

# Files that are installed as text and as what protoc made of it. The one that is left out bears another's name.
PLACES = [Path(place) for place in importlib.import_module("google").__path__]
OTHER_NAME = "google/longrunning/operations_proto.proto"
TEXTS = sorted(
    {
        f"google/{file.relative_to(place)}": file
        for place in PLACES
        for file in place.rglob("*.proto")
        if file.with_name(f"{file.stem}_pb2.py").exists()
    }.items()
)


def generated(name: str) -> Any:
    return importlib.import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2").DESCRIPTOR


def resolved(file: Any) -> Any:
    """As the pool has it: with the types that names stand for."""
    pool = DescriptorPool()
    added: set[str] = set()

    def add(name: str) -> None:
        if name not in added:
            added.add(name)
            for dependency in generated(name).dependencies:
                add(dependency.name)
            pool.AddSerializedFile(generated(name).serialized_pb)

    for name in file.dependency:
        add(name)
    pool.AddSerializedFile(file.SerializeToString())
    made = FileDescriptorProto()
    pool.FindFileByName(file.name).CopyToProto(made)
    return made


def parts(message: Any) -> Iterator[Any]:
    yield message
    for nested in message.nested_type:
        yield from parts(nested)


def reduced(file: Any) -> Any:
    """Without what is passed over."""
    for name in ("options", "service", "extension", "source_code_info"):
        file.ClearField(name)
    messages = [part for message in file.message_type for part in parts(message)]
    for message in messages:
        is_map = message.options.map_entry
        message.ClearField("options")
        message.ClearField("extension")
        if is_map:
            message.options.map_entry = True
        for holder in (*message.oneof_decl, *message.extension_range):
            holder.ClearField("options")
        for field in message.field:
            kept = {
                name: getattr(field.options, name)
                for name in ("packed", "deprecated")
                if field.options.HasField(name)
            }
            field.ClearField("options")
            for name, value in kept.items():
                setattr(field.options, name, value)
    for enum in (*file.enum_type, *(enum for message in messages for enum in message.enum_type)):
        may_repeat = enum.options.allow_alias
        enum.ClearField("options")
        if may_repeat:
            enum.options.allow_alias = True
        for value in enum.value:
            value.ClearField("options")
    return file


@pytest.mark.parametrize(
    ("name", "file"), [one for one in TEXTS if one[0] != OTHER_NAME], ids=lambda one: str(one)
)
def test_what_protoc_made_of_the_same_text(name: str, file: Path) -> None:
    wanted = reduced(resolved(FileDescriptorProto.FromString(generated(name).serialized_pb)))
    assert reduced(resolved(parse_proto(file.read_text(), name))) == wanted
    assert reduced(resolved(parse_proto(write_proto(wanted), name))) == wanted


def test_there_are_such_files() -> None:
    assert len(TEXTS) > 50


SHOP = r"""
syntax = 'proto2';  /* old, and
in use */
package shop.orders;
import public "google/protobuf/timestamp.proto";
option java_package = "com.example" "orders";
enum Kind {
  option allow_alias = true; NEW = 0; FRESH = 0x0; GONE = -1 [deprecated = true];
  reserved 5 to 9, 011; reserved "OLD";
}
message Order {
  required int64 id = 1;
  optional string who = 2 [default = "no\"body\n", (mine).of = {a: [1, 2] b: "}"}, json_name = 'WHO'];
  optional bytes raw = 3 [default = "\x00\377a"];
  optional double rate = 4 [default = -1.5e3];
  optional sint32 step = 5 [default = -0x10];
  optional Kind kind = 6 [default = GONE];
  repeated fixed32 sizes = 7 [packed = true];
  optional Inner.Deep deep = 8;
  map<string, Inner> inners = 9;
  message Inner { optional Deep deep = 1; message Deep { optional bool message = 1 [default = true]; } }
  oneof way { option (said) = "so"; string post = 10; .shop.orders.Kind other = 11; };
  extensions 100 to 199, 1000 to max [declaration = {number: 100}];
  reserved 20, 30 to 40;
  reserved "old", "older";
  extend Order { optional int32 more = 150; }
  optional google.protobuf.Timestamp at = 12;
}
service Orders { rpc Get(Order) returns (stream Order) { option (a.b) = {c: "}"}; } }
"""


def test_all_that_the_language_has() -> None:
    made = reduced(resolved(parse_proto(SHOP, "shop.proto")))
    (kind,), (order,) = made.enum_type, made.message_type
    assert [(value.name, value.number) for value in kind.value] == [("NEW", 0), ("FRESH", 0), ("GONE", -1)]
    assert [(one.start, one.end) for one in kind.reserved_range] == [(5, 9), (9, 9)]
    fields = {field.name: field for field in order.field}
    assert {name: fields[name].default_value for name in ("who", "raw", "rate", "step", "kind")} == {
        "who": 'no"body\n',
        "raw": "\\000\\377a",
        "rate": "-1500",
        "step": "-16",
        "kind": "GONE",
    }
    assert fields["who"].json_name == "WHO"
    assert fields["deep"].type_name == ".shop.orders.Order.Inner.Deep"
    assert fields["other"].type == FieldDescriptorProto.TYPE_ENUM
    assert [nested.name for nested in order.nested_type] == ["InnersEntry", "Inner"]
    assert [(one.start, one.end) for one in order.extension_range] == [(100, 200), (1000, 536_870_912)]
    assert list(order.reserved_name) == ["old", "older"]
    assert reduced(resolved(parse_proto(write_proto(made), "shop.proto"))) == made


def test_what_is_optional_in_proto3_is_in_a_oneof_of_its_own() -> None:
    text = (
        'syntax = "proto3"; message A { optional int32 a = 1; oneof b { int32 c = 2; } optional A _a = 3; }'
    )
    made = resolved(parse_proto(text, "a.proto"))
    (message,) = made.message_type
    assert [one.name for one in message.oneof_decl] == ["b", "X_a", "__a"]
    assert [field.oneof_index for field in message.field] == [1, 0, 2]
    assert resolved(parse_proto(write_proto(made), "a.proto")) == made


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", None),
        ("message A {", "a.proto:1: the end stands where a field should"),
        ("message A { int32 a = 1; }", "a.proto:1: a stands where optional, required or repeated should"),
        ('syntax = "proto4";', "syntax 'proto4' is neither proto2 nor proto3"),
        (
            'syntax = "proto3";\nmessage A { required int32 a = 1; }',
            "a.proto:2: int32 stands where a label of proto3",
        ),
        (
            'syntax = "proto3"; message A { int32 a = 0; }',
            "0 stands where the number of a field of 1 to 536,870,911",
        ),
        ('syntax = "proto3"; message A { int32 a = 99999999999; }', "of 1 to 536,870,911"),
        ('syntax = "proto3"; message A { int32 a = 09; }', "09 is no number"),
        (
            'syntax = "proto3"; message A { map<float, int32> a = 1; }',
            "float stands where a type that a key may have",
        ),
        ('syntax = "proto3"; message A.B {}', "A.B stands where the name of a message should"),
        ('message A { optional string a = 1 [default = "\\xff"]; }', "a default in UTF-8"),
        ('message A { optional string a = 1 [default = "\\U00200000"]; }', "a default in UTF-8"),
        ("/* for ever", "a.proto:1: '*' is not understood"),
        ("message A { reserved 1 to", "the end stands where a number should"),
        ("message A { optional string a = 1 [x", "the end stands where"),
        ("message A { oneof b { optional string a = 1; } }", "a field without a label"),
        ("what is this", "what stands where a message, an enum or another declaration should"),
        ("option a = [1, 2}; message A {}", "} stands where ']' should"),
    ],
)
def test_what_is_no_such_text(text: str, words: str | None) -> None:
    if words is None:
        assert parse_proto(text, "a.proto") == FileDescriptorProto(name="a.proto")
        return
    with pytest.raises(ProtoError) as raised:
        parse_proto(text, "a.proto")
    assert words in str(raised.value)


@pytest.mark.parametrize(
    "text",
    [
        'edition = "2023"; message A {}',
        "message A { repeated group B = 1 { optional int32 c = 2; } }",
        "message A {" * 100,
    ],
)
def test_what_only_protoc_reads(text: str) -> None:
    with pytest.raises(Unsupported):
        parse_proto(text, "a.proto")


def test_what_nobody_writes() -> None:
    file = FileDescriptorProto(name="a.proto", syntax="editions")
    with pytest.raises(Unsupported):
        write_proto(file)
    file = FileDescriptorProto(name="a.proto")
    file.message_type.add(name="A").field.add(name="b", number=1, type=FieldDescriptorProto.TYPE_GROUP)
    with pytest.raises(Unsupported):
        write_proto(file)


WORDS = """message enum oneof map < > { } [ ] = ; , ( ) 1 - 0x max to reserved extensions optional option syntax
"proto3" " ' \\ // /* int32 A import package a.b . default bytes group"""
PIECES = st.sampled_from([*WORDS.split(), "\n", "9" * 5000])


@given(st.lists(PIECES, max_size=40).map(" ".join) | st.text(string.printable, max_size=60))
@example("message A { optional int32 a = 1 [default")
def test_any_text_is_a_file_or_none(text: str) -> None:
    try:
        file = parse_proto(text, "a.proto")
    except ProtoError:
        return
    parse_proto(write_proto(file), "a.proto")
