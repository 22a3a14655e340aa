"""Kerberos names, and the users that they stand for: `sasl.kerberos.principal.to.local.rules` (KerberosShortNamer).

A rule is DEFAULT (a name of the default realm is its first component) or RULE:[n:string](regexp)s/pattern/new/g/L, for
names of n components: $0 in the string is the realm, $1 and $2 are components; what it makes has to fit the whole
regexp, and then patterns are replaced in it, the first one or with g all; L and U change the case. The first rule that
fits decides; what it makes is a user's name if it has no / and no @ in it.

Rules: regular expressions are Java's (ottla.security.java_regex); those that have no equal here are refused when the
rules are read, as is what would fail on each name in Java. Pure.
"""

import re
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from ottla.config.errors import ConfigError
from ottla.security.java_regex import compile_java, replaced, replacement

KEY: Final = "sasl.kerberos.principal.to.local.rules"
MAX_NAME_LENGTH: Final = 4096
MAX_RULE_LENGTH: Final = 4096

_NAME: Final = re.compile(r"([^/@]*)(?:/([^/@]*))?@([^/@]*)")
_RULE: Final = re.compile(
    r"DEFAULT|RULE:\[(?P<components>[0-9]*):(?P<format>[^\]]*)\](?:\((?P<match>[^)]*)\))?"
    r"(?P<substitution>s/(?P<pattern>[^/]*)/(?P<replacement>[^/]*)/(?P<repeat>g)?)?/?(?P<case>[LU])?"
)
_PARAMETER: Final = re.compile(r"\$([0-9]*)")
_NON_SIMPLE: Final = re.compile(r"[/@]")
_MAX_DIGITS: Final = 9


class NoMatchingRule(ValueError):
    """A name that stands for no user."""


class KerberosName(NamedTuple):
    """service/host@REALM; a user has no host, and a name that is short already has no realm."""

    service_name: str
    host_name: str | None
    realm: str | None

    def __str__(self) -> str:
        host = "" if self.host_name is None else f"/{self.host_name}"
        return f"{self.service_name}{host}" + ("" if self.realm is None else f"@{self.realm}")


def parse_kerberos_name(name: str) -> KerberosName:
    """ValueError for what is no name of at most two components."""
    if len(name) > MAX_NAME_LENGTH:
        raise ValueError(f"a Kerberos name of {len(name)} characters")
    match = _NAME.fullmatch(name)
    if match is None:
        if "@" in name:
            raise ValueError(f"Malformed Kerberos name: {name!r}")
        return KerberosName(name, None, None)
    return KerberosName(match[1], match[2], match[3])


class KerberosShortNamer:
    """Names of Kerberos to names of users, by rules in their order."""

    def __init__(self, default_realm: str, rules: Sequence[str] = ("DEFAULT",)) -> None:
        """ConfigError for rules that cannot be used."""
        self._rules = [_parse_rule(default_realm, rule) for rule in rules]

    def short_name(self, name: KerberosName) -> str:
        """NoMatchingRule if no rule applies, or the one that does makes no simple name."""
        if name.realm is None:
            if name.host_name is None:
                return name.service_name
            raise NoMatchingRule(f"{str(name)!r} has no realm")
        components = [name.service_name] + ([] if name.host_name is None else [name.host_name])
        for rule in self._rules:
            short = rule([name.realm, *components])
            if short is not None:
                return short
        raise NoMatchingRule(f"No rules apply to {str(name)!r}")


# From realm and components to a user's name, None if the rule does not apply.
_Rule = Callable[[list[str]], str | None]


def _parse_rule(default_realm: str, text: str) -> _Rule:
    if len(text) > MAX_RULE_LENGTH:
        raise ConfigError(f"Invalid rule of {KEY}: {len(text)} characters", KEY)
    found = _RULE.fullmatch(text)
    if found is None:
        raise ConfigError(f"Invalid rule of {KEY}: {text}", KEY)
    if text == "DEFAULT":
        return lambda parameters: _simple(parameters[1], text) if parameters[0] == default_realm else None
    try:
        return _rule(found, text)
    except ValueError as error:
        raise ConfigError(f"Invalid rule of {KEY}: {text}: {error}", KEY) from None


def _rule(found: re.Match[str], text: str) -> _Rule:
    if not 0 < len(found["components"]) <= _MAX_DIGITS:
        raise ValueError("no number of components")
    components, pieces = int(found["components"]), _format(found["format"], int(found["components"]))
    match = None if found["match"] is None else compile_java(found["match"])
    pattern = None if found["substitution"] is None else compile_java(found["pattern"])
    template = [] if pattern is None else replacement(found["replacement"], pattern)
    count = 0 if found["repeat"] else 1

    def apply(parameters: list[str]) -> str | None:
        if len(parameters) - 1 != components:
            return None
        base = "".join(piece if isinstance(piece, str) else parameters[piece] for piece in pieces)
        if match is not None and match.fullmatch(base) is None:
            return None
        short = _simple(base if pattern is None else replaced(pattern, template, base, count), text)
        return short.lower() if found["case"] == "L" else short.upper() if found["case"] == "U" else short

    return apply


def _simple(name: str, rule: str) -> str:
    if _NON_SIMPLE.search(name):
        raise NoMatchingRule(f"Non-simple name {name!r} after auth_to_local rule {rule}")
    return name


def _format(text: str, components: int) -> list[str | int]:
    """Texts, and numbers of parameters."""
    pieces: list[str | int] = []
    end = 0
    for found in _PARAMETER.finditer(text):
        if not found[1]:
            raise ValueError("a $ without the number of a component")
        if len(found[1]) > _MAX_DIGITS or int(found[1]) > components:
            raise ValueError(f"index {found[1]} is outside of the valid range 0 to {components}")
        pieces += [text[end : found.start()], int(found[1])]
        end = found.end()
    return [*pieces, text[end:]]
