"""JAAS texts: read as Java reads them, one login module of ours, and no secret in any error."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.config.errors import ConfigError
from ottla.security.sasl.jaas import (
    MAX_JAAS_LENGTH,
    JaasEntry,
    check_mechanism,
    parse_jaas,
    username_and_password,
)

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


def options(text: str) -> dict[str, str]:
    (entry,) = parse_jaas(f"{PLAIN} required {text}")
    return dict(entry.options)


def test_the_text_of_the_manual() -> None:
    text = f"""{PLAIN} required
        username="admin"
        password="admin-secret"
        user_admin="admin-secret"
        user_alice="alice-secret";"""
    assert parse_jaas(text) == [
        JaasEntry(
            PLAIN,
            "REQUIRED",
            {
                "username": "admin",
                "password": "admin-secret",
                "user_admin": "admin-secret",
                "user_alice": "alice-secret",
            },
        )
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [  # Each as Java 17's StreamTokenizer reads it.
        (";", {}),
        ("a=b;", {"a": "b"}),
        ("a=b c='d';", {"a": "b", "c": "d"}),
        ("a = b;", {"a": "b"}),
        ("a=b-c_d.e$f1;", {"a": "b-c_d.e$f1"}),
        ("a=true;", {"a": "true"}),
        ("a=é€😀;", {"a": "é€😀"}),
        ('"a b"="c d";', {"a b": "c d"}),
        ("a=b a=c;", {"a": "c"}),
        ('a="";', {"a": ""}),
        (r'a="\"\\\'\q";', {"a": "\"\\'q"}),
        (r'a="\a\b\f\n\r\t\v";', {"a": "\a\b\f\n\r\t\v"}),
        (r'a="\1\12\123\1234\477\8";', {"a": "\x01\nSS4'78"}),
        ("a='\"';", {"a": '"'}),
        ('a="b\n;', {"a": "b"}),
        ('a="b\\\nc";', {"a": "b\nc"}),
        ("a=b // c\n;", {"a": "b"}),
        ("a=b /* ; \n */ ;", {"a": "b"}),
        ("a=b / c\n;", {"a": "b"}),
        ("a=kafka/host@REALM\n;", {"a": "kafka"}),
        ("a=b /\nc=d;\n;", {"a": "b"}),
        ("a='//';", {"a": "//"}),
        ("; // the end", {}),
        ("\x00\t a\x1f=\x0bb\r\n;\n", {"a": "b"}),
    ],
)
def test_words_quotes_escapes_and_comments(text: str, expected: dict[str, str]) -> None:
    assert options(text) == expected


def test_a_control_flag_in_any_case() -> None:
    assert parse_jaas(f"{PLAIN} Sufficient;")[0].control_flag == "SUFFICIENT"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Login module not specified"),
        (" // nothing\n", "Login module not specified"),
        ("7 required;", "Login module not specified"),
        ('"" required;', "Login module not specified"),
        (PLAIN, "control flag not specified"),
        (f"{PLAIN};", "Invalid login module control flag"),
        (f"{PLAIN} username=a;", "Invalid login module control flag"),
        (f"{PLAIN} required", "semi-colon"),
        (f"{PLAIN} required a=b", "semi-colon"),
        (f"{PLAIN} required a=b /* ;", "semi-colon"),
        (f"{PLAIN} required a;", "1. option"),
        (f"{PLAIN} required a=;", "1. option"),
        (f"{PLAIN} required a=b\n c=1;", "2. option, line 2"),
        (f"{PLAIN} required a=b 1=c;", "2. option"),
        (f"{PLAIN} required a==b;", "1. option"),
        (f"{PLAIN} required a'='b;", "1. option"),
        (f"{PLAIN} required; {PLAIN} required;", "2 login modules, should be 1"),
        (f"{PLAIN} required;" + " " * MAX_JAAS_LENGTH, "longer than"),
    ],
)
def test_what_is_no_jaas_text(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        parse_jaas(text)
    assert raised.value.key == "sasl.jaas.config"


@pytest.mark.parametrize(
    "module",
    [
        "com.sun.security.auth.module.JndiLoginModule",
        "com.sun.security.auth.module.LdapLoginModule",
        "com.ibm.security.auth.module.LdapLoginModule",
        "org.eclipse.jetty.jaas.spi.LdapLoginModule",
        "com.example.OwnLoginModule",
    ],
)
def test_other_login_modules_are_refused(module: str) -> None:
    """CVE-2023-25194, CVE-2025-27818; and quoting makes no difference."""
    for name in (module, f'"{module}"'):
        with pytest.raises(ConfigError, match=f"{module} is not allowed"):
            parse_jaas(f'{name} required user.provider.url="ldap://evil";')
    with pytest.raises(ConfigError, match="is not allowed"):
        parse_jaas(f'" {PLAIN}" required;')


@pytest.mark.parametrize(
    "text",
    [
        "hunter2 hunter2;",
        "hunter2 required;",
        f"{PLAIN} hunter2;",
        f"{PLAIN} required password=hunter2",
        f"{PLAIN} required password=my hunter2;",
        f'{PLAIN} required password="my" "hunter2";',
        f'{PLAIN} required password=1 "hunter2";',
    ],
)
def test_no_error_has_a_secret(text: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_jaas(text)
    assert "hunter2" not in f"{raised.value} {raised.value.reason} {raised.value.value}"


def test_no_repr_has_a_secret() -> None:
    assert "secret" not in repr(parse_jaas(f"{PLAIN} required password=secret;"))


def test_what_a_client_logs_in_with() -> None:
    (entry,) = parse_jaas(f"{PLAIN} required username=a password=b;")
    assert username_and_password(entry) == ("a", "b")
    check_mechanism(entry, "PLAIN")
    with pytest.raises(ConfigError, match="SCRAM-SHA-256 needs"):
        check_mechanism(entry, "SCRAM-SHA-256")
    with pytest.raises(ConfigError, match="no password"):
        username_and_password(parse_jaas(f"{PLAIN} required username=a password='';")[0])


@given(
    st.dictionaries(st.text(st.characters(codec="utf-8"), min_size=1), st.text(st.characters(codec="utf-8")))
)
def test_every_option_can_be_written(wanted: dict[str, str]) -> None:
    def quoted(text: str) -> str:
        return '"' + "".join(f"\\{ord(c):03o}" if c in '"\\\r\n' else c for c in text) + '"'

    assert options(" ".join(f"{quoted(k)}={quoted(v)}" for k, v in wanted.items()) + ";") == wanted


pieces = st.lists(
    st.sampled_from(
        [PLAIN, " required ", " ", "\n", "=", ";", "a", '"', "'", "\\", "/", "*", "1", "-", "\\1", "é"]
    )
    | st.characters(),
).map("".join)


@given(pieces | pieces.map(lambda text: f"{PLAIN} required {text}"))
def test_whatever_it_is_only_a_configuration_error_comes_out(text: str) -> None:
    try:
        (entry,) = parse_jaas(text)
    except ConfigError:
        return
    assert entry.login_module == PLAIN
