"""Encoding and decoding: what goes where, and what is refused."""

from typing import Any

import pytest

from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import ZERO_UUID, Uuid
from ottla.wire.codec import WireError, decode, decoder_for, encode, encode_into
from ottla.wire.messages.api_versions import ApiVersionsRequest
from ottla.wire.messages.fetch import FetchRequest, FetchTopic
from ottla.wire.messages.groups.classic import HeartbeatRequest
from ottla.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.wire.schema import (
    Bool,
    Bytes,
    Float64,
    Int8,
    Int16,
    Int32,
    Int64,
    NullableBytes,
    NullableString,
    Records,
    String,
    UInt16,
    UuidField,
    data,
    since,
    struct,
    tagged,
)


@struct
class Inner:
    a: Int32
    b: NullableString = None


@data(versions="0-1", flexible="1+")
class Everything:
    """Every type there is, in both encodings."""

    flag: Bool
    i8: Int8
    i16: Int16
    u16: UInt16
    i32: Int32
    i64: Int64
    f64: Float64
    uuid: UuidField
    text: String
    no_text: NullableString
    raw: Bytes
    no_raw: NullableBytes
    records: Records
    inner: Inner
    no_inner: Inner | None = None
    numbers: list[Int16]
    texts: list[String]
    uuids: list[UuidField]
    inners: list[Inner] | None
    tagged_text: String = tagged(0, since=1, default="")
    tagged_inner: Inner | None = tagged(5, since=1, default=None)
    tagged_number: Int64 = tagged(300, since=1, default=-1)


def everything(**changes: Any) -> Everything:
    values: dict[str, Any] = {
        "flag": True,
        "i8": -2,
        "i16": -3,
        "u16": 65535,
        "i32": -4,
        "i64": -5,
        "f64": 0.5,
        "uuid": Uuid(b"0123456789abcdef"),
        "text": "é",
        "no_text": None,
        "raw": b"\x00",
        "no_raw": None,
        "records": b"rr",
        "inner": Inner(a=1),
        "numbers": [1, -1],
        "texts": ["a", ""],
        "uuids": [ZERO_UUID],
        "inners": [Inner(a=2, b="b")],
    }
    return Everything(**(values | changes))


FIXED = (
    b"\x01\xfe\xff\xfd\xff\xff\xff\xff\xff\xfc\xff\xff\xff\xff\xff\xff\xff\xfb"
    b"\x3f\xe0\x00\x00\x00\x00\x00\x000123456789abcdef"
)


def test_the_old_encoding() -> None:
    assert encode(everything(), 0) == (
        FIXED + b"\x00\x02\xc3\xa9"
        b"\xff\xff"
        b"\x00\x00\x00\x01\x00"
        b"\xff\xff\xff\xff"
        b"\x00\x00\x00\x02rr"
        b"\x00\x00\x00\x01\xff\xff"
        b"\xff"
        b"\x00\x00\x00\x02\x00\x01\xff\xff"
        b"\x00\x00\x00\x02\x00\x01a\x00\x00"
        b"\x00\x00\x00\x01" + bytes(16) + b"\x00\x00\x00\x01\x00\x00\x00\x02\x00\x01b"
    )


def test_the_flexible_encoding_with_tags() -> None:
    message = everything(tagged_text="t", tagged_inner=Inner(a=7), tagged_number=3)
    assert encode(message, 1) == (
        FIXED + b"\x03\xc3\xa9"
        b"\x00"
        b"\x02\x00"
        b"\x00"
        b"\x03rr"
        b"\x00\x00\x00\x01\x00\x00"
        b"\xff"
        b"\x03\x00\x01\xff\xff"
        b"\x03\x02a\x01"
        b"\x02" + bytes(16) + b"\x02\x00\x00\x00\x02\x02b\x00"
        b"\x03"
        b"\x00\x02\x02t"
        b"\x05\x07\x01\x00\x00\x00\x07\x00\x00"
        b"\xac\x02\x08\x00\x00\x00\x00\x00\x00\x00\x03"
    )
    assert decode(Everything, encode(message, 1), 1)[0] == message


def test_a_nullable_struct_that_is_there() -> None:
    encoded = encode(everything(no_inner=Inner(a=1)), 1)
    assert decode(Everything, encoded, 1)[0].no_inner == Inner(a=1)


def test_records_are_a_view_of_the_input_and_bytes_are_not() -> None:
    buffer = bytearray(encode(everything(), 1))
    decoded, _ = decode(Everything, buffer, 1)
    assert isinstance(decoded.records, memoryview)
    assert decoded.records.obj is buffer
    assert type(decoded.raw) is bytes
    assert type(decoded.uuid) is bytes


def test_encode_into_appends() -> None:
    out = bytearray(b"before")
    encode_into(out, HeartbeatRequest(group_id="g", generation_id=5, member_id="m"), 0)
    assert out == b"before\x00\x01g\x00\x00\x00\x05\x00\x01m"


def test_absent_fields_take_their_defaults() -> None:
    decoded, end = decode(HeartbeatRequest, b"\x00\x01g\x00\x00\x00\x05\x00\x01m", 0)
    assert decoded == HeartbeatRequest(group_id="g", generation_id=5, member_id="m", group_instance_id=None)
    assert end == 10


def test_a_value_the_version_cannot_carry_is_refused_unless_ignorable() -> None:
    static = HeartbeatRequest(group_id="g", generation_id=1, member_id="m", group_instance_id="i")
    with pytest.raises(WireError, match=r"HeartbeatRequest\.group_instance_id is set, but version 2"):
        encode(static, 2)
    named = FetchRequest(max_wait_ms=1, min_bytes=1, topics=[FetchTopic(topic="dropped", partitions=[])])
    assert decode(FetchRequest, encode(named, 13), 13)[0].topics[0].topic == ""


def test_null_is_refused_where_the_version_does_not_allow_it() -> None:
    everyone = MetadataRequest(topics=None)
    assert decode(MetadataRequest, encode(everyone, 1), 1)[0].topics is None
    with pytest.raises(WireError):
        encode(everyone, 0)
    with pytest.raises(WireError, match="topics may not be null"):
        decode(MetadataRequest, b"\xff\xff\xff\xff", 0)
    with pytest.raises(WireError, match="group_id may not be null"):
        decode(HeartbeatRequest, b"\xff\xff\x00\x00\x00\x05\x00\x01m", 0)


def test_unknown_tags_are_skipped() -> None:
    plain = encode(ApiVersionsRequest(client_software_name="n", client_software_version="1"), 3)
    tagged_bytes = plain[:-1] + b"\x02\x00\x01x\x81\x01\x02yz"
    assert decode(ApiVersionsRequest, tagged_bytes, 3) == (
        decode(ApiVersionsRequest, plain, 3)[0],
        len(tagged_bytes),
    )


def test_a_known_tag_of_the_wrong_size_is_refused() -> None:
    good = encode(everything(tagged_number=3), 1)
    assert good.endswith(b"\x01\xac\x02\x08" + b"\x00" * 7 + b"\x03")
    with pytest.raises(WireError, match="tagged_number"):
        decode(Everything, good[:-9] + b"\x09" + good[-8:] + b"\x00", 1)


@pytest.mark.parametrize(
    ("cls", "version", "encoded"),
    [
        pytest.param(MetadataRequest, 1, b"\x7f\xff\xff\xff", id="array"),
        pytest.param(MetadataRequest, 9, b"\xff\xff\xff\xff\x0f", id="compact array"),
        pytest.param(ApiVersionsRequest, 3, b"\x02n\x021\xff\xff\xff\xff\x07", id="tag count"),
        pytest.param(ApiVersionsRequest, 3, b"\x02n\x021\x01\x00\xff\xff\xff\xff\x07", id="tag size"),
        pytest.param(HeartbeatRequest, 0, b"\x7f\xffg", id="string"),
        pytest.param(HeartbeatRequest, 4, b"\x80\x80\x80\x80\x01g", id="compact string"),
        pytest.param(HeartbeatRequest, 4, b"\x80\x80\x80\x80\x80\x01g", id="endless varint"),
    ],
)
def test_lengths_beyond_the_input_are_refused(cls: type, version: int, encoded: bytes) -> None:
    with pytest.raises(WireError) as refused:
        decode(cls, encoded, version)
    assert refused.value.code == ErrorCode.INVALID_REQUEST


def test_an_error_is_a_kafka_error() -> None:
    with pytest.raises(KafkaError):
        decode(HeartbeatRequest, b"", 0)


def test_strings_end_at_32767_bytes() -> None:
    longest = MetadataRequest(topics=[MetadataRequestTopic(name="x" * 32767)])
    for version in (1, 9):
        assert decode(MetadataRequest, encode(longest, version), version)[0] == longest
        with pytest.raises(WireError):
            encode(MetadataRequest(topics=[MetadataRequestTopic(name="x" * 32768)]), version)
    too_long = b"\x02\x81\x80\x02" + b"x" * 32768 + b"\x00\x00\x00\x00"
    with pytest.raises(WireError, match="32768 bytes"):
        decode(MetadataRequest, too_long, 9)


def test_what_is_not_utf8_becomes_replacement_characters() -> None:
    decoded, _ = decode(HeartbeatRequest, b"\x00\x02\xff\xfe\x00\x00\x00\x05\x00\x00", 0)
    assert decoded.group_id == "��"


def test_a_version_that_does_not_exist() -> None:
    with pytest.raises(WireError, match="HeartbeatRequest has no version 5"):
        decode(HeartbeatRequest, b"", 5)
    with pytest.raises(WireError, match="no version -1"):
        encode(HeartbeatRequest(group_id="", generation_id=0, member_id=""), -1)


@pytest.mark.parametrize(
    "broken",
    [
        HeartbeatRequest(group_id=None, generation_id=0, member_id=""),  # type: ignore[arg-type]
        HeartbeatRequest(group_id="", generation_id=2**31, member_id=""),
        HeartbeatRequest(group_id="\ud800", generation_id=0, member_id=""),
        ProduceRequest(acks=0, timeout_ms=0, topic_data=None),  # type: ignore[arg-type]
        ProduceRequest(
            acks=0,
            timeout_ms=0,
            topic_data=[TopicProduceData(partition_data=[PartitionProduceData(index=0, records="str")])],  # type: ignore[arg-type]
        ),
    ],
)
def test_values_of_the_wrong_kind_are_wire_errors(broken: Any) -> None:
    with pytest.raises(WireError, match="cannot be encoded"):
        encode(broken, 3)


def test_decoding_stops_at_the_end_it_is_given() -> None:
    encoded = encode(HeartbeatRequest(group_id="g", generation_id=5, member_id="member"), 0)
    for buffer in (encoded, bytearray(encoded), memoryview(encoded)):
        with pytest.raises(WireError):
            decode(HeartbeatRequest, buffer, 0, end=len(encoded) - 1)
        assert decode(HeartbeatRequest, buffer, 0, end=len(encoded))[1] == len(encoded)


def test_compiled_code_can_be_read() -> None:
    assert "def codec(buf, p, end):" in decoder_for(HeartbeatRequest, 0).__doc__


@data(versions="0")
class Nothing:
    """A message without fields."""


@data(versions="0-1")
class Later:
    """A message whose first version is empty."""

    number: Int32 = since(1, default=0)


def test_messages_without_bytes() -> None:
    assert encode(Nothing(), 0) == b""
    assert decode(Nothing, b"", 0) == (Nothing(), 0)
    assert encode(Later(), 0) == b""
    assert decode(Later, b"\x00", 0) == (Later(), 0)
