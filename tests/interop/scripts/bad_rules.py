"""Scripts: rules that cannot be, where there is an authorizer; and too many of them at once."""

from __future__ import annotations

from tests.interop.process import wait_until
from tests.interop.scripts.acls import (
    ALLOW,
    CLUSTER,
    CREATION_KINDS,
    FILTER_KINDS,
    FUTURE,
    LITERAL,
    PREFIXED,
    READ,
    UNKNOWN,
    creation,
    matching,
)
from tests.interop.scripts.judged import JudgedScript

DESCRIBE_ACLS, CREATE_ACLS, DELETE_ACLS = 29, 30, 31
# Nothing but what this script asks about has such a name.
NAME = "ruled"
TOO_MANY = 10_001
GONE_WITHIN_S = 30.0
ALTER_CONFIGS, IDEMPOTENT_WRITE, DENY = 11, 12, 2

# Not here: kinds that only filters have (ANY, MATCH). Of a request with one such rule Apache says of all of its rules
# that they met with an unknown error; Ottla says of that one that it is invalid.
BAD = {
    "an empty name": creation(""),
    "another cluster": creation(NAME, resource_type=CLUSTER),
    "a prefix of clusters": creation("kafka", resource_type=CLUSTER, resource_pattern_type=PREFIXED),
    "a principal without a type": creation(NAME, principal="alice"),
    "a principal without a name": creation(NAME, principal="User:"),
    "a principal with an empty type": creation(NAME, principal=":alice"),
    "no principal": creation(NAME, principal=""),
    "a principal of another type": creation(NAME, principal="Group:a:b"),
    "no host": creation(NAME, host=""),
    "a host that is none": creation(NAME, host="not a host"),
    "an operation that topics do not have": creation(NAME, operation=IDEMPOTENT_WRITE),
    "one that transactional ids do not have": creation(NAME, resource_type=5, operation=ALTER_CONFIGS),
    "a denial": creation(NAME, permission_type=DENY),
    "a wildcard as a prefix": creation("*", resource_pattern_type=PREFIXED, principal="User:nobody-at-all"),
    "a long name": creation(NAME * 100),
    **{f"{field} of the future": creation(NAME, **{field: FUTURE}) for field in CREATION_KINDS},
}


def bad_rules(s: JudgedScript) -> None:
    """Each alone, all together with good ones, and what is there afterwards."""
    for v in s.versions(CREATE_ACLS):
        for case, row in BAD.items():
            s.ask(CREATE_ACLS, v, {"creations": [row]}, case)
        for field in CREATION_KINDS:
            s.ask(CREATE_ACLS, v, {"creations": [creation(NAME, **{field: UNKNOWN})]}, f"{field} unknown")
        s.ask(CREATE_ACLS, v, {"creations": [creation(NAME), *BAD.values(), creation(NAME)]}, "all of them")
        _clean(s, v)
    for v in s.versions(DELETE_ACLS):
        for field in FILTER_KINDS:
            s.ask(DELETE_ACLS, v, {"filters": [matching(NAME, **{field: FUTURE})]}, f"{field} of the future")
            s.ask(DELETE_ACLS, v, {"filters": [matching(NAME, **{field: UNKNOWN})]}, f"{field} unknown")
        s.ask(DELETE_ACLS, v, {"filters": [matching("")]}, "an empty name")


def _clean(s: JudgedScript, version: int) -> None:
    about = [
        matching(NAME, pattern_type_filter=LITERAL),
        matching(NAME * 100),
        matching(principal_filter="User:nobody-at-all"),
    ]
    s.quiet(DELETE_ACLS, version, {"filters": about})
    # An Apache broker hears of it a moment after its controller has answered.
    wait_until(
        lambda: not s.quiet(DESCRIBE_ACLS, version, matching(NAME))["resources"],
        GONE_WITHIN_S,
        "rules are gone",
    )
    s.ask(DESCRIBE_ACLS, version, matching(NAME), "nothing is left")


def too_many_rules(s: JudgedScript) -> None:
    """More than one change of the metadata may have: none of them is there."""
    v = s.newest(CREATE_ACLS)
    rows = [creation(f"{NAME}-{number}", operation=READ, permission_type=ALLOW) for number in range(TOO_MANY)]
    s.ask(CREATE_ACLS, v, {"creations": rows}, "too many")
    s.ask(DESCRIBE_ACLS, s.newest(DESCRIBE_ACLS), matching(f"{NAME}-0"), "the first of them")
