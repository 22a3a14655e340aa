"""Rules from names to users; the same cases are asked of Apache's mapper in tests/interop/test_java_names.py."""

from __future__ import annotations

import pytest

from ottla.config.errors import ConfigError
from ottla.security.tls.mapping import MAX_RULES_CHARS, NoMatchingRule, SslPrincipalMapper

SEVERAL = ", ".join(
    (
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L",
        "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L",
        "RULE:^cn=(.*?),ou=(.*?),dc=(.*?),dc=(.*?)$/$1@$2/U",
        "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U",
        "DEFAULT",
    )
)
# Rules, a name, and the user; None if no rule applies.
CASES = [
    ("DEFAULT", "CN=a,O=b", "CN=a,O=b"),
    ("", "CN=a", None),
    (",  , ,", "CN=a", None),
    (SEVERAL, "CN=Duke,OU=ServiceUsers,O=Org,C=US", "duke"),
    (SEVERAL, "CN=Duke,OU=SME,O=mycp,L=Fulton,ST=MD,C=US", "duke@sme"),
    (SEVERAL, "cn=duke,ou=sme,dc=mycp,dc=com", "DUKE@SME"),
    (SEVERAL, "cN=duke,OU=JavaSoft,O=Sun Microsystems", "DUKE"),
    (SEVERAL, "OU=JavaSoft,O=Sun Microsystems,C=US", "OU=JavaSoft,O=Sun Microsystems,C=US"),
    ("RULE:^CN=((\\\\, *|\\w)+)(,.*|$)/$1/,DEFAULT", "CN=Tkac\\, Adam,OU=ITZ", "Tkac\\, Adam"),
    ("RULE:^CN=([^,ADEFLTU,]+)(,.*|$)/$1/", "CN=bob,O=x", "bob"),
    ("RULE:CN=(.*)/$1/", "O=x,CN=bob", None),  # the whole name has to fit
    ("RULE:.*/x/", "CN=a", "xx"),  # replaceAll finds the empty end, too
    ("RULE:\\w*?/x/", "ab", "xaxbx"),  # after an empty match it goes on behind the next character
    ("RULE:CN=a|CN=ab/x/", "CN=ab", "xb"),  # and the first alternative, which is not what fitted
    ("RULE:CN=(a)(b)?/$1-$2/", "CN=a", "a-"),
    ("RULE:CN=(.)(.)/$2$1$3/", "CN=ab", "ba$3"),  # there is no group 3
    ("RULE:CN=(.)(.)/$12/", "CN=ab", "a2"),
    ("RULE:CN=(.)/$0!/", "CN=a", "CN=a!"),
    ("RULE:CN=(.)/\\$1\\/\\\\/", "CN=a", "$1/\\"),
    ("RULE:CN=(?<user>.*)/${user}@x/U", "CN=a", "A@X"),
    ("RULE:CN=\\/(.*)/$1/", "CN=/a", "a"),
    ("RULE:(?i)cn=(.*)/$1/", "CN=Aa", "Aa"),
    ("RULE:(?i:cn)=(.*)/$1/", "Cn=Aa", "Aa"),
    ("RULE:CN=(?:a|b)+(?=c)(.)/$1/", "CN=abc", "c"),
    ("RULE:CN=(\\w+)[-.](\\w+)\\1/$2/", "CN=ab-cdab", "cd"),
    ("RULE:CN=([\\w-.]+)/$1/", "CN=a-b.c", "a-b.c"),
    ("RULE:CN=[\\p{Alpha}\\d]{2,3}\\Q.*\\E/ok/", "CN=a1b.*", "ok"),
    ("RULE:CN=\\p{Upper}\\p{Punct}/ok/", "CN=A?", "ok"),
    ("RULE:CN=\\x41\\x{1F728}\\u0042\\0103\\t/ok/", "CN=A\U0001f728BC\t", "ok"),
    ("RULE:CN=.*/ok/", "CN=a\u2028b", None),  # a dot is no line's end
    ("RULE:(?s)CN=.*/ok/", "CN=a\u2028b", "ok"),
    ("RULE:CN=a$/ok/", "CN=a", "ok"),
    ("RULE:CN=\\w/ok/", "CN=\u00e9", None),  # ASCII only
    ("RULE:CN=(a++)b/$1/", "CN=aab", "aa"),
    ("RULE:CN=([^a-c&]+)/$1/", "CN=x-y", "x-y"),
    ("RULE:CN=([a\\]\\[\\\\^-]+)/$1/", "CN=]a[\\^-", "]a[\\^-"),
    ("RULE:CN=(?>a|ab)c/ok/", "CN=abc", None),
    ("RULE:,RULE:,/,RULE:,\\//U,DEFAULT", ",RULE:,", ",RULE:,/"),
]


@pytest.mark.parametrize(("rules", "name", "user"), CASES)
def test_rules(rules: str, name: str, user: str | None) -> None:
    mapper = SslPrincipalMapper(rules)
    if user is not None:
        assert mapper.name(name) == user
        return
    with pytest.raises(NoMatchingRule):
        mapper.name(name)


def test_nothing_set_is_the_whole_name() -> None:
    assert SslPrincipalMapper(None).name("CN=x") == "CN=x"


# What Apache refuses when it reads the rules.
REFUSED_BY_ALL = [
    "default",
    "DEFAUL",
    "DEFAULT/L",
    "RULE:CN=(.*?),OU=ServiceUsers.*/$1",
    "rule:^CN=(.*?),OU=ServiceUsers.*$/$1/",
    "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L/U",
    "RULE:^CN=(.*?)$/LU",
    "RULE:CN=(/x/",
    "RULE:CN=)/x/",
    "RULE:CN=[a/x/",
    "RULE:*/x/",
    "RULE:a{x/y/",
    "RULE:\\y/x/",
    "RULE:(?P<n>a)/x/",
    "RULE:a{3,2}/x/",
    "RULE:\\k<n>/x/",
]


@pytest.mark.parametrize(
    "rules",
    [
        *REFUSED_BY_ALL,
        # Java takes these and then fails on each name, or they mean what has no equal here.
        *(
            "RULE:.*/$1/",
            "RULE:(.)/$x/",
            "RULE:(.)/${n}/",
            "RULE:(.)/$8$9/",
            "RULE:(.)/$99999999999/",
            "RULE:a/$/",
        ),
        *("RULE:[a[bc]]/x/", "RULE:[a-z&&[^b]]/x/", "RULE:\\p{L}/x/", "RULE:a(?i)b/x/", "RULE:(?x)a/x/"),
        *("RULE:(?<=a+)b/x/", "RULE:\\X/x/", "RULE:\\2(a)/x/", "RULE:a{999999}/x/", "RULE:\\P{Alpha}/x/"),
        *(
            "RULE:(?u)a/x/",
            "RULE:a**/x/",
            "RULE:[]a]/x/",
            "RULE:\\x{110000}/x/",
            "RULE:" + "(" * 60 + ")" * 60 + "/x/",
        ),
        "A" * (MAX_RULES_CHARS + 1),
    ],
)
def test_bad_rules(rules: str) -> None:
    with pytest.raises(ConfigError, match=r"ssl.principal.mapping.rules"):
        SslPrincipalMapper(rules)
