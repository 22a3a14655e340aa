"""Kerberos names and the rules that make users of them, as KerberosShortNamer of Kafka 4.3.1 on Java 17 answers."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.config.errors import ConfigError
from ottla.security.sasl.kerberos import (
    MAX_NAME_LENGTH,
    MAX_RULE_LENGTH,
    KerberosName,
    KerberosShortNamer,
    NoMatchingRule,
    parse_kerberos_name,
)


def short(name: str, *rules: str, realm: str = "REALM.COM") -> str:
    return KerberosShortNamer(realm, rules or ("DEFAULT",)).short_name(parse_kerberos_name(name))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("alice@R", ("alice", None, "R")),
        ("kafka/host@R", ("kafka", "host", "R")),
        ("alice", ("alice", None, None)),
        ("a/b", ("a/b", None, None)),
        ("/@", ("", "", "")),
        ("a\n@R", ("a\n", None, "R")),
    ],
)
def test_names(text: str, name: tuple[str, str | None, str | None]) -> None:
    assert parse_kerberos_name(text) == KerberosName(*name)
    assert str(parse_kerberos_name(text)) == text


@pytest.mark.parametrize("text", ["a@b@c", "a/b/c@R", "a@R/b", "a" * (MAX_NAME_LENGTH + 1)])
def test_what_is_no_name(text: str) -> None:
    with pytest.raises(ValueError, match="Kerberos name"):
        parse_kerberos_name(text)


CASES = [
    ("alice@REALM.COM", ["DEFAULT"], "alice"),
    ("kafka/host@REALM.COM", ["DEFAULT"], "kafka"),
    ("alice", ["RULE:[1:x]"], "alice"),
    ("alice@OTHER", ["DEFAULT", "RULE:[1:$1.$0]"], "alice.OTHER"),
    ("App.service-name/example.com@R", ["RULE:[2:$1](App\\..*)s/App\\.(.*)/$1/g"], "service-name"),
    ("User@REALM.COM", ["RULE:[1:$1]/L"], "user"),
    ("User@REALM.COM", ["RULE:[1:$1]U"], "USER"),
    ("User@REALM.COM", ["RULE:[1:$1]/"], "User"),
    ("TestABC/host@FOO", ["RULE:[2:$1](Test.*)s/ABC///L"], "test"),
    ("ABC_User_ABC/host@FOO", ["RULE:[2:$1](ABC.*)s/ABC/XYZ/g/L"], "xyz_user_xyz"),
    ("ABC_User_ABC/host@FOO", ["RULE:[2:$1](ABC.*)s/ABC/XYZ/"], "XYZ_User_ABC"),
    ("a/b@R", ["RULE:[1:$1]", "RULE:[2:$2;$1]"], "b;a"),
    ("a@R", ["RULE:[01:$01]"], "a"),
    ("a@R", ["RULE:[1:$1](b)", "RULE:[1:c]"], "c"),
    ("ab@R", ["RULE:[1:$1-](a)", "RULE:[1:$1](ab)"], "ab"),
    ("alice@R", ["RULE:[1:$1@$0](.*@R)s/@.*//"], "alice"),
    ("ab@R", [r"RULE:[1:$1]s/(?<n>a)(b)/$2${n}\$1$0/"], "ba$1ab"),
    ("ab@R", ["RULE:[1:$1]s/(a)(c)?/$2x$13/"], "xa3b"),
    ("abc@R", ["RULE:[1:$1]s/x*/-/g"], "-a-b-c-"),
    ("aab@R", [r"RULE:[1:$1]s/(a)\1/x/"], "xb"),
    ("a\nb@R", ["RULE:[1:$1](a.b)", "RULE:[1:dot]"], "dot"),
    ("a\rb@R", ["RULE:[1:$1](a.b)", "RULE:[1:dot]"], "dot"),
    ("ab\r@R", ["RULE:[1:$1]s/b$/x/"], "ax\r"),
    ("é@R", [r"RULE:[1:$1](\w)", "RULE:[1:other]"], "other"),
    ("aaa@R", ["RULE:[1:$1](a{2,3})"], "aaa"),
    ("a-b@R", [r"RULE:[1:$1]([a\-b\w]+)"], "a-b"),
    ("xa@R", ["RULE:[1:$1]s/(?<=x)a/b/"], "xb"),
]


@pytest.mark.parametrize(("name", "rules", "expected"), CASES)
def test_rules(name: str, rules: list[str], expected: str) -> None:
    assert short(name, *rules) == expected


@pytest.mark.parametrize(
    ("name", "rules"),
    [
        ("alice@OTHER", ["DEFAULT"]),
        ("alice@REALM.COM", ["RULE:[2:$1]"]),
        ("alice@REALM.COM", ["RULE:[1:$1](bob)"]),
        ("alice@REALM.COM", ["RULE:[1:$1@$0]", "DEFAULT"]),
        ("alice@REALM.COM", ["RULE:[1:$1]s/i/$0@/", "DEFAULT"]),
    ],
)
def test_names_that_stand_for_no_user(name: str, rules: list[str]) -> None:
    with pytest.raises(NoMatchingRule):
        short(name, *rules)


@pytest.mark.parametrize(
    ("rule", "short"),
    [
        (r"RULE:[1:$1](\p{Lower}+)", "alice"),
        (r"RULE:[1:$1](\Qalice\E)", "alice"),
        (r"RULE:[1:$1](alice\Z)", "alice"),
        ("RULE:[1:$1]s/(?i)AL//", "ice"),
        (r"RULE:[1:$1-ll2]s/(l).*\12/l2/", "al2"),
        ("RULE:[1:$1]s/x*/-/g", "-a-l-i-c-e-"),
        ("RULE:[1:$1]s/x*/-/", "-alice"),
    ],
)
def test_more_of_javas_regular_expressions(rule: str, short: str) -> None:
    try:
        found = KerberosShortNamer("R", [rule]).short_name(KerberosName("alice", None, "R"))
    except NoMatchingRule as error:
        found = str(error)
    assert short in found


@pytest.mark.parametrize(
    "rule",
    [  # Java refuses these, too.
        "",
        "default",
        "DEFAUL",
        "DEFAULT/L",
        "DEFAULT\n",
        "rule:[1:$1]",
        "RULE:[1:$1]/L/U",
        "RULE:[1:$1]/LU",
        "RULE:[1:$1/L",
        "RULE:[1:$1]/l",
        "RULE:[2:$1](ABC.*)s/ABC/XYZ/L/g",
        "RULE:[:$1]",
        "RULE:[99999999999:$1]",
        "RULE:[1:$1]({)",
        "RULE:[1:$1](a{,2})",
        "RULE:[1:$1](*)",
        "RULE:[1:$1]([a)",
        "RULE:[1:$1]s/(//",
        # Java takes these, and fails on each name that they apply to.
        "RULE:[1:$2]",
        "RULE:[1:$]",
        "RULE:[1:$x]",
        "RULE:[1:$1]s/a/$1/",
        "RULE:[1:$1]s/a/$/",
        "RULE:[1:$1]s/a/${n}/",
        "RULE:[1:$1]s/a/\\/",
        # These mean something there that nothing means here.
        "RULE:[1:$1]([a&&b])",
        "RULE:[1:$1]([a[b]])",
        r"RULE:[1:$1]([\\[a])",
        "RULE:[1:$1]s/(?P<n>a)//",
        "RULE:[1:$1](" + "x" * MAX_RULE_LENGTH + ")",
    ],
)
def test_rules_that_are_refused(rule: str) -> None:
    with pytest.raises(ConfigError, match="Invalid rule") as raised:
        KerberosShortNamer("R", [rule])
    assert raised.value.key == "sasl.kerberos.principal.to.local.rules"


SIGNS = [
    "RULE:[",
    "1",
    "2",
    ":",
    "$1",
    "$",
    "]",
    "(",
    ")",
    "s/",
    "/",
    "g",
    "L",
    "a",
    ".",
    "*",
    "\\",
    "[",
    "{",
]
pieces = st.lists(st.sampled_from(SIGNS) | st.characters()).map("".join)


@given(st.text(), pieces | pieces.map(lambda text: f"RULE:[1:$1]({text})s/(a)/{text}/"))
def test_whatever_it_is_only_a_value_error_comes_out(name: str, rule: str) -> None:
    with suppress(ValueError):
        parse_kerberos_name(name)
    try:
        namer = KerberosShortNamer("R", [rule, "DEFAULT"])
    except ConfigError:
        return
    try:
        made = namer.short_name(KerberosName(name, None, "R"))
    except NoMatchingRule:
        return
    assert not {"/", "@"} & set(made)
