"""How ottla produce takes its input apart and ottla consume prints records: the pure parts."""

import io
import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.cli.args import CliError, UsageError, pairs
from ottla.cli.records.consume import Range
from ottla.cli.records.format import compile_format, json_envelope
from ottla.cli.records.produce import split_messages, unescape
from ottla.client.consumer.fetch import ConsumerRecord

RECORD = ConsumerRecord("t", 3, 42, 1700, 0, b"k", b"value", (("a", b"1"), ("b", None)), 7)
NULLS = RECORD._replace(key=None, value=None, headers=(), timestamp_type=1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("%t|%p|%o|%k|%s|%K|%S|%T|%h|%%", b"t|3|42|k|value|1|5|1700|a=1,b=NULL|%"),
        (r"%s\n\t\r\0\\\x41", b"value\n\t\r\0\\A"),
        ("%R", struct.pack(">i", 5)),
        (r"\q \xzz", rb"\q \xzz"),
        ("ü%s", "üvalue".encode()),
        ("\udcff%s", b"\xffvalue"),
    ],
)
def test_formats(text: str, expected: bytes) -> None:
    assert compile_format(text)(RECORD) == expected


def test_formats_of_nulls() -> None:
    assert compile_format("%k,%s,%K,%S,%h", b"NULL")(NULLS) == b"NULL,NULL,-1,-1,"
    assert compile_format("%R")(NULLS) == b"\xff\xff\xff\xff"


@pytest.mark.parametrize("text", ["%x", "100%"])
def test_an_unknown_format_is_named(text: str) -> None:
    with pytest.raises(UsageError, match="-f: %"):
        compile_format(text)


def test_the_envelope_has_kcats_names() -> None:
    assert json.loads(json_envelope(RECORD)) == {
        "topic": "t",
        "partition": 3,
        "offset": 42,
        "tstype": "create",
        "ts": 1700,
        "headers": ["a", "1", "b", None],
        "key": "k",
        "payload": "value",
    }
    bare = json.loads(json_envelope(NULLS))
    assert (bare["key"], bare["payload"], bare["tstype"], "headers" in bare) == (
        None,
        None,
        "logappend",
        False,
    )
    assert json.loads(json_envelope(RECORD._replace(value=b"\xff")))["payload"] == "\ufffd"


class _Dribble(io.BytesIO):
    """Gives a few bytes at a time, as a terminal or a slow pipe does."""

    def read1(self, size: int | None = -1) -> bytes:
        return super().read1(3)


@given(st.lists(st.text("ab\n", max_size=10), max_size=20), st.sampled_from(["::", ":", ":-:"]))
def test_messages_are_what_stands_between_delimiters(messages: list[str], delimiter: str) -> None:
    text = "".join(message + delimiter for message in messages).encode()
    expected = [message.encode() for message in messages]
    for stream in (io.BytesIO(text), _Dribble(text)):
        assert list(split_messages(stream, delimiter.encode())) == expected


def test_the_last_message_needs_no_delimiter() -> None:
    assert list(split_messages(io.BytesIO(b"a\nb"), b"\n")) == [b"a", b"b"]
    assert list(split_messages(io.BytesIO(b"a\n\nb\n"), b"\n")) == [b"a", b"", b"b"]


def test_input_without_delimiters_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.cli.records.produce._MAX_MESSAGE_BYTES", 100)
    with pytest.raises(CliError, match="-D"):
        list(split_messages(io.BytesIO(b"x" * 200), b"\n"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"\n", b"\n"),
        (r"\x00\xff", b"\x00\xff"),
        ("::", b"::"),
        (r"\\n", b"\\n"),
        ("\\", b"\\"),
        ("\udcff:", b"\xff:"),
    ],
)
def test_delimiters_are_unescaped(text: str, expected: bytes) -> None:
    assert unescape(text) == expected


@pytest.mark.parametrize(
    ("words", "kind", "start", "end"),
    [
        ([], "beginning", 0, None),
        (["end"], "end", 0, None),
        (["17"], "offset", 17, None),
        (["-10"], "tail", 10, None),
        (["@99"], "timestamp", 99, None),
        (["s@1", "e@9"], "timestamp", 1, 9),
    ],
)
def test_offsets(words: list[str], kind: str, start: int, end: int | None) -> None:
    limits = Range(words)
    assert (limits.kind, limits.start, limits.end_timestamp) == (kind, start, end)


@pytest.mark.parametrize("word", ["soon", "@soon", "-x", "e@", "", "9" * 20, "-" + "9" * 5000])
def test_a_wrong_offset_is_named(word: str) -> None:
    with pytest.raises(UsageError, match="-o "):
        Range([word])


def test_pairs() -> None:
    assert pairs(["a=1", "b=x=y", "c="], "-X") == [("a", "1"), ("b", "x=y"), ("c", "")]
    for word in ("a", "=1"):
        with pytest.raises(UsageError, match="-X takes KEY=VALUE"):
            pairs([word], "-X")
