"""subscribePattern: Java's regular expressions, looked for anywhere in a topic's name; what only Java reads is refused.

tests/interop/test_spark_source.py asks Spark's own connector about these.
"""

import pytest

from ottla.spark.source.options import PatternError, compile_java

TOPICS = ("a", "m.a", "mm.big", "m-b", "Orders", "orders.eu", "orders.us.2", "x_1")


def found(pattern: str) -> list[str]:
    return [name for name in TOPICS if compile_java(pattern).search(name)]


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        (r"m\.[ab]", ["m.a", "mm.big"]),
        (r"^m\.[ab]$", ["m.a"]),
        (r"\Am\.[ab]\z", ["m.a"]),
        (r"m\.[ab]\Z", ["m.a"]),
        ("a|x", ["a", "m.a", "x_1"]),
        ("(?i)ORDERS", ["Orders", "orders.eu", "orders.us.2"]),
        ("(?i:ORDERS)$", ["Orders"]),
        (r"\Qm.\E.", ["m.a", "mm.big"]),
        (r"[\Qx_\E]+1", ["x_1"]),
        (r"(?<first>m)\k<first>", ["mm.big"]),
        (r"(m)\1", ["mm.big"]),
        (r"\p{Upper}", ["Orders"]),
        (r"^[\p{Lower}.]+$", ["a", "m.a", "mm.big", "orders.eu"]),
        (r"\P{Alpha}\p{Digit}", ["orders.us.2", "x_1"]),
        (r"\p{Punct}\pL+\p{Punct}", ["orders.us.2"]),
        ("m*+b", ["m-b", "mm.big"]),
        ("(?>m|mm)\\.big", ["mm.big"]),
        ("orders(?!.*eu)", ["orders.us.2"]),
        ("(?<=us)\\.", ["orders.us.2"]),
        ("[]x]_", ["x_1"]),
        (r"\x6d\u002e", ["m.a", "mm.big"]),
        (r"\W\w$", ["m.a", "m-b", "orders.us.2"]),
        ("", list(TOPICS)),
    ],
)
def test_what_is_found(pattern: str, names: list[str]) -> None:
    assert sorted(found(pattern)) == sorted(names)


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("(a", "unterminated"),
        ("a\\", "backslash"),
        ("[a-z&&[^b]]", "list the characters"),
        ("[a[bc]]", "list the characters"),
        (r"\p{Script=Latin}", "Java's alone"),
        (r"\p{IsGreek}", "IsGreek"),
        (r"[\P{Alpha}]", "list the characters"),
        (r"\Ga", "Java's alone"),
        (r"\R", "Java's alone"),
        ("a(?i)b", "stand first"),
        ("(?x)a b", "Java's alone"),
        ("(?i-s)a", "Java's alone"),
        ("(?P<name>a)", "begins no group"),
    ],
)
def test_what_is_refused(pattern: str, said: str) -> None:
    with pytest.raises(PatternError, match=said):
        compile_java(pattern)
