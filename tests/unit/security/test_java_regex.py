"""Java's regular expressions: what means something else in Python, and what has no equal."""

import re

import pytest

from ottla.security.java_regex import Untranslatable, compile_java, replaced, replacement, translated


def test_a_translation_is_a_pattern_of_pythons() -> None:
    assert re.fullmatch(translated("a.b$"), "a b")
    assert not re.fullmatch(translated("a.b$"), "a\rb")
    assert re.match(translated("a$"), "a\r\n")
    assert not re.match(translated("a\\z"), "a\n")


@pytest.mark.parametrize(
    ("pattern", "template", "count", "result"),
    [
        ("l", "L", 0, "aLLe"),
        ("l", "L", 1, "aLle"),
        ("(l)", "$1$1", 0, "alllle"),
        ("(?<x>l)", "<${x}>", 1, "a<l>le"),
        ("x*", "-", 0, "-a-l-l-e-"),
        ("x*", "-", 1, "-alle"),
        ("(x)?l", "[$1]", 0, "a[][]e"),
        ("l", "\\$1", 1, "a$1le"),
    ],
)
def test_replacing(pattern: str, template: str, count: int, result: str) -> None:
    compiled = compile_java(pattern)
    assert replaced(compiled, replacement(template, compiled), "alle", count) == result


@pytest.mark.parametrize(
    "pattern", ["(", ")", "[", "[a&&b]", "\\p{L}", "a**", "(?<=a*)b", "x{99999999}", "\\", "*"]
)
def test_what_has_no_equal(pattern: str) -> None:
    with pytest.raises(Untranslatable):
        compile_java(pattern)


@pytest.mark.parametrize("template", ["$", "$2", "${x}", "${", "\\", "$x"])
def test_replacements_of_groups_that_there_are_not(template: str) -> None:
    with pytest.raises(Untranslatable):
        replacement(template, compile_java("(a)"))
