"""JAAS texts, `sasl.jaas.config`: which login module, with which options (JaasConfig, JaasContext).

Rules: a text is read as Java's StreamTokenizer reads it, and never executed: what a login module's name stands for here
is in the table of mechanisms, and any other name is refused (CVE-2023-25194, CVE-2025-27818). Options are passwords as
often as not: no error and no repr has any of a text's words but the names that are known. Pure.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ottla.config.errors import ConfigError
from ottla.security.sasl.mechanisms import LOGIN_MODULES, MECHANISMS

KEY: Final = "sasl.jaas.config"
MAX_JAAS_LENGTH: Final = 1 << 20
CONTROL_FLAGS: Final = ("REQUIRED", "REQUISITE", "SUFFICIENT", "OPTIONAL")

# As StreamTokenizer is told: letters, '-', '_' and '$' make words, as does everything beyond Latin-1; // and /* */ are
# comments, and a '/' alone begins one too, which takes the next character along, even if that ends the line. A number
# has no text. A quoted text may end with its line.
_LETTER: Final = r"A-Za-z_$\u00a0-\U0010ffff"
_TOKEN: Final = re.compile(
    r"(?P<blank>[\x00-\x20]+|/\*(?:.*?\*/|.*)|//[^\r\n]*|/.?[^\r\n]*)"
    r"|(?P<number>-?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]*))"
    rf"|(?P<word>[{_LETTER}][{_LETTER}0-9.\-]*)"
    r"|(?P<quote>[\"'])"
    r"|(?P<symbol>.)",
    re.DOTALL,
)
_QUOTED: Final = {
    quote: re.compile(rf"((?:\\.|[^\\\r\n{quote}])*){quote}?", re.DOTALL) for quote in ('"', "'")
}
_ESCAPE: Final = re.compile(r"\\([0-3][0-7][0-7]|[0-7][0-7]?|.)", re.DOTALL)
_ESCAPES: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_CLASS_NAME: Final = re.compile(r"[A-Za-z_$][\w$]*(?:\.[A-Za-z_$][\w$]*)+", re.ASCII)


@dataclass(frozen=True, slots=True)
class JaasEntry:
    """One login module and its options (AppConfigurationEntry)."""

    login_module: str
    control_flag: str
    options: Mapping[str, str] = field(repr=False)


class _Token(NamedTuple):
    # Of a word or a quoted text; None for a number and for a symbol.
    text: str | None
    symbol: str
    line: int


def parse_jaas(text: str) -> list[JaasEntry]:
    """The entries of a `sasl.jaas.config`, which has to have exactly one; ConfigError for anything else."""
    if len(text) > MAX_JAAS_LENGTH:
        raise _error(f"JAAS config is longer than {MAX_JAAS_LENGTH} characters")
    tokens = _tokens(text)
    entries = [_entry(token, tokens) for token in tokens]
    if not entries:
        raise _error("Login module not specified in JAAS config")
    if len(entries) > 1:
        raise _error(f"JAAS config property contains {len(entries)} login modules, should be 1 module")
    _check_login_module(entries[0].login_module)
    return entries


def check_mechanism(entry: JaasEntry, mechanism: str) -> None:
    """ConfigError if the login module is another mechanism's."""
    expected = MECHANISMS[mechanism].login_module
    if entry.login_module != expected:
        raise _error(f"JAAS config has the login module {entry.login_module}, {mechanism} needs {expected}")


def username_and_password(entry: JaasEntry) -> tuple[str, str]:
    """What a client of PLAIN and SCRAM says of itself."""
    for option in ("username", "password"):
        if not entry.options.get(option):
            raise _error(f"JAAS config has no {option} for {entry.login_module}")
    return entry.options["username"], entry.options["password"]


def utf8(what: str, text: str) -> bytes:
    """A name or a password as it is sent; ConfigError for half a character, as a damaged environment has them."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"a {what} that cannot be written in UTF-8") from None


def _error(message: str) -> ConfigError:
    return ConfigError(message, KEY)


def _tokens(text: str) -> Iterator[_Token]:
    position, line = 0, 1
    while position < len(text):
        match = _TOKEN.match(text, position)
        assert match is not None, "every character is a symbol at least"
        if match["quote"]:
            match = _QUOTED[match["quote"]].match(text, match.end())
            assert match is not None, "a quoted text may be empty"
            yield _Token(_ESCAPE.sub(_unescaped, match[1]), "", line)
        elif not match["blank"]:
            yield _Token(match["word"], match["symbol"] or "", line)
        line += text.count("\n", position, match.end())
        position = match.end()


def _unescaped(match: re.Match[str]) -> str:
    escaped = match[1]
    return chr(int(escaped, 8)) if escaped[0] in "01234567" else _ESCAPES.get(escaped, escaped)


def _entry(first: _Token, tokens: Iterator[_Token]) -> JaasEntry:
    if not first.text:
        raise _error(f"Login module not specified in JAAS config, line {first.line}")
    flag = next(tokens, None)
    if flag is None:
        raise _error("Login module control flag not specified in JAAS config")
    if flag.text is None or flag.text.upper() not in CONTROL_FLAGS:
        known = ", ".join(CONTROL_FLAGS).lower()
        raise _error(f"Invalid login module control flag in JAAS config, line {flag.line}; there are {known}")
    options: dict[str, str] = {}
    for token in tokens:
        if token.symbol == ";":
            return JaasEntry(first.text, flag.text.upper(), options)
        equals, value = next(tokens, None), next(tokens, None)
        if (
            token.text is None
            or equals is None
            or equals.symbol != "="
            or value is None
            or value.text is None
        ):
            # Not the name: where a quote is missing, it is a piece of a password.
            where = f"the {len(options) + 1}. option, line {token.line}"
            raise _error(f"Value not specified for {where} in JAAS config; it may have to be quoted")
        options[token.text] = value.text
    raise _error("JAAS config entry not terminated by semi-colon")


def _check_login_module(name: str) -> None:
    if name not in LOGIN_MODULES:
        shown = name if _CLASS_NAME.fullmatch(name) else "The login module"
        raise _error(f"{shown} is not allowed in JAAS config; allowed are {', '.join(sorted(LOGIN_MODULES))}")
