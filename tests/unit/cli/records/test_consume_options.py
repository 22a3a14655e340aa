"""How `ottla consume` reads times, filters and encodings."""

import time

import pytest

from ottla.cli.args import UsageError
from ottla.cli.records.consume import Range
from ottla.cli.records.format import compile_filter, compile_format, decode, encode, encoded
from ottla.cli.selection import parse_moment_ms
from ottla.client.consumer.fetch import ConsumerRecord


def record(key: bytes | None = b"alice", value: bytes | None = b"hello", **fields: object) -> ConsumerRecord:
    given = {"topic": "t", "partition": 3, "offset": 7, "timestamp": 1000, "timestamp_type": 0}
    given |= {"headers": (("kind", b"new"), ("empty", None)), "leader_epoch": 0, **fields}
    return ConsumerRecord(key=key, value=value, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("word", "kind", "start"),
    [
        ("@1700000000000", "timestamp", 1_700_000_000_000),
        ("s@2023-11-14T22:13:20", "timestamp", 1_700_000_000_000),
        ("@2023-11-14T23:13:20+01:00", "timestamp", 1_700_000_000_000),
        ("-10", "tail", 10),
        ("42", "offset", 42),
        ("end", "end", 0),
    ],
)
def test_where_to_begin(word: str, kind: str, start: int) -> None:
    limits = Range([word])
    assert (limits.kind, limits.start) == (kind, start)


@pytest.mark.parametrize("text", ["15m", "-15m", "PT15M", "900s"])
def test_a_duration_is_so_long_ago(text: str) -> None:
    before = time.time_ns() // 1_000_000
    assert before - 900_000 <= parse_moment_ms(text) <= time.time_ns() // 1_000_000 - 900_000


@pytest.mark.parametrize(
    "text", ["9" * 20, "9" * 5000, "2026-02-30", "2026-11-01T25:00", "", "²", "2026-11-01T00:00+99:00"]
)
def test_what_is_no_moment_is_one_line(text: str) -> None:
    with pytest.raises(UsageError, match="is no time"):
        parse_moment_ms(text)


def test_an_end_may_be_relative_too() -> None:
    limits = Range(["@2h", "e@1h"])
    assert limits.kind == "timestamp"
    assert limits.end_timestamp is not None
    assert 3_600_000 - 60_000 < limits.end_timestamp - limits.start < 3_600_000 + 60_000


@pytest.mark.parametrize("time_", ["1960-01-01", "1969-12-31T23:59:59.999", "1969-12-31T23:59:59.998"])
def test_a_time_before_1970_is_no_special_one(time_: str) -> None:
    limits = Range([f"@{time_}", f"e@{time_}"])
    assert (limits.kind, limits.start, limits.end_timestamp) == ("timestamp", 0, 0)


@pytest.mark.parametrize("word", ["@", "@soon", "@15x", "e@2026-13-01", "--5", "seven", "-15m"])
def test_what_is_no_place_is_refused(word: str) -> None:
    with pytest.raises(UsageError):
        Range([word])


@pytest.mark.parametrize(
    ("expression", "fits"),
    [
        ("key = alice", True),
        ("key=alice", True),
        ("key = bob", False),
        ("key != bob", True),
        ("key ~ ^a.*e$", True),
        ("key !~ ^a", False),
        ("value ~ ell", True),
        ("header.kind = new", True),
        ("header.other = new", False),
        ("header.other != new", True),
        ("header.empty ~ .", False),
        ("partition = 3", True),
        ("offset >= 7", True),
        ("offset < 7", False),
        ("timestamp < 1970-01-01T00:00:02", True),
        ("timestamp > 1h", False),
    ],
)
def test_a_filter_of_a_plain_record(expression: str, fits: bool) -> None:
    keep = compile_filter([expression])
    assert keep is not None
    assert keep(record()) is fits


@pytest.mark.parametrize(
    ("expression", "fits"),
    [
        ("value.age >= 18", True),
        ("value.age = 30", True),
        ("value.age = 30.0", True),
        ("value.age < 5", False),
        ("value.age = old", False),
        ("value.address.city = Prague", True),
        ("value.address.city ~ ^P", True),
        ("value.tags.1 = b", True),
        ("value.tags.9 = b", False),
        pytest.param(f"value.tags.{'9' * 5_000} = b", False, id="no place in a list"),
        ("value.member = true", True),
        ("value.nothing = x", False),
        ("value.nothing != x", True),
        ("value.address.city.deeper = x", False),
    ],
)
def test_a_filter_looks_into_json(expression: str, fits: bool) -> None:
    value = b'{"age": 30, "address": {"city": "Prague"}, "tags": ["a", "b"], "member": true}'
    keep = compile_filter([expression])
    assert keep is not None
    assert keep(record(value=value)) is fits


@pytest.mark.parametrize(
    ("expression", "fits"),
    [
        ("value.id = 9007199254740993", True),
        ("value.id != 9007199254740993", False),
        ("value.id = 9007199254740992", False),
        ("value.id > 9007199254740992", True),
        ("value.id < 1e16", True),
        ("value.id < " + "9" * 5000, True),
    ],
    ids=range(6),
)
def test_a_filter_tells_numbers_of_64_bits_apart(expression: str, fits: bool) -> None:
    keep = compile_filter([expression])
    assert keep is not None
    assert keep(record(value=b'{"id": 9007199254740993}')) is fits


@pytest.mark.parametrize(
    "value", [None, b"", b"not json", b"\xff\xfe", b"[1]", b"7", b"[" * 100_000], ids=range(7)
)
def test_what_is_not_such_json_does_not_fit(value: bytes | None) -> None:
    fits, differs = compile_filter(["value.age >= 18"]), compile_filter(["value.age != 18"])
    assert fits is not None
    assert differs is not None
    assert not fits(record(value=value))
    assert differs(record(value=value))


def test_all_filters_must_fit_and_none_is_none() -> None:
    keep = compile_filter(["key = alice", "value = hello"])
    assert keep is not None
    assert keep(record())
    assert not keep(record(value=b"other"))
    assert compile_filter([]) is None


@pytest.mark.parametrize(
    "expression",
    [
        *("", "key", "=alice", "color = red", "key ~ (", "offset = first", "timestamp > soon", "header. = x"),
        pytest.param("offset = " + "9" * 5_000, id="no offset"),
    ],
)
def test_what_is_no_filter_is_refused(expression: str) -> None:
    with pytest.raises(UsageError):
        compile_filter([expression])


def test_encodings_go_both_ways() -> None:
    data = bytes(range(256))
    for encoding in ("raw", "hex", "base64"):
        assert decode(encode(data, encoding), encoding) == data
    shown = encoded(compile_format("%k %s"), key="hex", value="base64")
    assert shown(record(b"\x00\xff", b"\x01")) == b"00ff AQ=="
    assert shown(record(None, b"\x01")) == b" AQ=="


@pytest.mark.parametrize(
    ("text", "encoding"), [(b"0g", "hex"), (b"\xff", "hex"), (b"a", "base64"), (b"\xe9=", "base64")]
)
def test_what_is_not_in_its_encoding_is_refused(text: bytes, encoding: str) -> None:
    with pytest.raises(UsageError, match=encoding):
        decode(text, encoding)
