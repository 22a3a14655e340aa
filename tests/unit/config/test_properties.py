"""Java's properties syntax."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


_CHARACTERS = st.characters(exclude_categories=["Cs"])


def _escaped(text: str) -> str:
    """As java.util.Properties writes it."""
    special = {"\\": "\\\\", " ": "\\ ", "\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f"}
    special |= {char: "\\" + char for char in "=:#!"}
    out = []
    for char in text:
        if char in special:
            out.append(special[char])
        elif 0x20 <= ord(char) < 0x7F:
            out.append(char)
        else:
            units = char.encode("utf-16-be")
            out += [f"\\u{int.from_bytes(units[at : at + 2], 'big'):04x}" for at in range(0, len(units), 2)]
    return "".join(out)


@given(st.dictionaries(st.text(_CHARACTERS, min_size=1), st.text(_CHARACTERS)))
def test_what_java_writes_is_read_back(properties: dict[str, str]) -> None:
    text = "".join(f"{_escaped(name)}={_escaped(value)}\n" for name, value in properties.items())
    assert _parse(text) == properties


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        entries = list(parse_properties(text))
    except ConfigError:
        assert "\\u" in text
        return
    assert all(1 <= line <= text.count("\n") + text.count("\r") + 1 for _, _, line in entries)
