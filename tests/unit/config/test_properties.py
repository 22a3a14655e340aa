"""Java's properties syntax."""

import pytest

from ottla.config.errors import ConfigError
from ottla.config.properties import parse_properties


def _parse(text: str) -> dict[str, str]:
    return {name: value for name, value, _ in parse_properties(text)}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=b", {"a": "b"}),
        ("a:b", {"a": "b"}),
        ("a b", {"a": "b"}),
        ("a", {"a": ""}),
        ("a=", {"a": ""}),
        ("  a  =  b  ", {"a": "b  "}),
        ("a\t:\tb", {"a": "b"}),
        ("a==b", {"a": "=b"}),
        ("a = = b", {"a": "= b"}),
        ("a b=c", {"a": "b=c"}),
        ("# x=y\n! z=w\n\n   \na=b", {"a": "b"}),
        ("a=b#c", {"a": "b#c"}),
        ("a=b\\\n  c", {"a": "bc"}),
        ("a=b\\\r\n  c\r\nd=e", {"a": "bc", "d": "e"}),
        ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
        ("a=b\\", {"a": "b"}),
        ("a\\=b=c", {"a=b": "c"}),
        ("a\\:b\\ c=d", {"a:b c": "d"}),
        ("a=\\u0041\\u00e9", {"a": "Aé"}),
        ("a=\\ud83d\\ude00", {"a": "😀"}),
        ("a=\\t\\n\\q", {"a": "\t\nq"}),
        ("a=C:\\\\temp", {"a": "C:\\temp"}),
        ("a=1\na=2", {"a": "2"}),
        ("a=b\\\n# no comment here", {"a": "b# no comment here"}),
        ("a=b\rc=d", {"a": "b", "c": "d"}),
    ],
)
def test_syntax(text: str, expected: dict[str, str]) -> None:
    assert _parse(text) == expected


def test_entries_know_their_line() -> None:
    assert list(parse_properties("# one\na=b\\\nc\n\nd=e")) == [("a", "bc", 2), ("d", "e", 5)]


@pytest.mark.parametrize("text", ["a=\\u12", "a=\\u12x4", "\\u=1"])
def test_a_broken_unicode_escape_names_its_line(text: str) -> None:
    with pytest.raises(ConfigError, match=r"line 1: .*four hexadecimal digits"):
        _parse(text)
