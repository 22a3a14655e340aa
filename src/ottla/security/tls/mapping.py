"""SslPrincipalMapper: `ssl.principal.mapping.rules`, which turn a certificate's name into that of a user.

Rules are DEFAULT or RULE:pattern/replacement/[LU], separated by commas; the first that fits the whole name decides. A
pattern is a regular expression of Java's, as is its replacement (ottla.security.java_regex); what has no equal here is
refused when the rules are read. Names are as long as a certificate lets them be. Rules are compiled once for a
listener; pure after that.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from ottla.config.errors import ConfigError
from ottla.security.java_regex import Untranslatable, compile_java, replaced, replacement

KEY: Final = "ssl.principal.mapping.rules"
DEFAULT_RULES: Final = "DEFAULT"
MAX_RULES_CHARS: Final = 8_192
_RULE: Final = r"(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?).*?|(.*?)"
_SPLIT: Final = re.compile(rf"\s*({_RULE})\s*(?:,\s*|$)", re.ASCII)
_PARSE: Final = re.compile(_RULE, re.ASCII)
_BACK_REFERENCE: Final = re.compile(r"\$(\d+)", re.ASCII)
# What java.lang.String.trim takes away.
_BLANK: Final = "".join(map(chr, range(33)))


class NoMatchingRule(ValueError):
    """No rule says what a name stands for: whoever bears it is let in nowhere."""


class SslPrincipalMapper:
    """Names of certificates to names of users, by rules."""

    def __init__(self, rules: str | None) -> None:
        text = DEFAULT_RULES if rules is None else rules
        if len(text) > MAX_RULES_CHARS:
            raise ConfigError(f"{KEY}: {len(text)} characters, more than {MAX_RULES_CHARS}", KEY)
        self._rules = [rule for found in _SPLIT.finditer(text.strip(_BLANK)) for rule in _rules_of(found[1])]

    def name(self, distinguished_name: str) -> str:
        """The user that a name stands for (SslPrincipalMapper.getName); NoMatchingRule."""
        for rule in self._rules:
            found = rule(distinguished_name)
            if found is not None:
                return found
        raise NoMatchingRule(f"no rule of {KEY} applies to {distinguished_name!r}")


Rule = Callable[[str], str | None]


def _rules_of(text: str) -> list[Rule]:
    found = _PARSE.match(text)
    if found is None or found.end() != len(text):
        raise ConfigError(f"{KEY}: invalid rule {text!r}", KEY)
    if found[1] is not None:
        return [lambda name: name]
    if found[2] is None:
        return []  # an empty one
    return [_rule(found[2], found[3], found[4])]


def _rule(pattern: str, template: str, case: str) -> Rule:
    try:
        compiled = compile_java(pattern)
        pieces = replacement(_with_literal_references(template, compiled.groups), compiled)
    except Untranslatable as error:
        raise ConfigError(f"{KEY}: RULE:{pattern}/{template}/{case}: {error}", KEY) from None

    def apply(name: str) -> str | None:
        if compiled.fullmatch(name) is None:
            return None
        result = replaced(compiled, pieces, name)
        return result.lower() if case == "L" else result.upper() if case == "U" else result

    return apply


def _with_literal_references(text: str, groups: int) -> str:
    """References to groups that the pattern does not have are made literal, just as Kafka does it.

    The places are those in the text before any was changed, so that a second one is missed; it is refused then.
    """
    if groups == 0:
        return text
    value = text
    for found in _BACK_REFERENCE.finditer(text):
        digits = found[1]
        if digits.startswith("0"):
            continue
        if len(digits) > 9:
            raise Untranslatable(f"there is no group {digits}")
        number = int(digits)
        while number > groups and number >= 10:
            number //= 10
        if number > groups:
            value = value[: found.start()] + "\\" + value[found.start() :]
    return value
