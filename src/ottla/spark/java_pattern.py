"""Java's regular expressions for topics' names, as Python's: `subscribePattern` is Java's in Spark's connector. Pure.

Both agree on nearly all that is written for topics (`orders\\..*`, `a|b`, `^x`, classes, groups, quantifiers). What is
only spelt differently is translated. What Python has no words for, or would silently take for something else, is
refused: a pattern never reads other topics than Spark's connector does.
"""

import re

# Names of topics are made of ASCII letters, digits and . _ -, so that is all that Java's classes have to tell apart.
_LETTERS, _DIGITS, _PUNCTUATION = "a-zA-Z", "0-9", r"!-/:-@\[-`{-~"
_CLASSES = {
    **dict.fromkeys(("Lower", "Ll", "IsLl", "IsLowercase", "javaLowerCase"), "a-z"),
    **dict.fromkeys(("Upper", "Lu", "IsLu", "IsUppercase", "javaUpperCase"), "A-Z"),
    **dict.fromkeys(("Alpha", "L", "IsL", "IsAlphabetic", "IsLetter", "javaLetter"), _LETTERS),
    **dict.fromkeys(("Digit", "N", "IsN", "Nd", "IsNd", "IsDigit", "javaDigit"), _DIGITS),
    **dict.fromkeys(("Alnum", "javaLetterOrDigit"), _LETTERS + _DIGITS),
    "Punct": _PUNCTUATION,
    "Graph": "!-~",
    "Print": " -~",
    "ASCII": r"\x00-\x7f",
    "XDigit": "0-9a-fA-F",
    **dict.fromkeys(("Blank", "Space", "IsWhite_Space", "javaWhitespace"), r"\s"),
}
# Escapes that are not Python's, with those that are. Names have no line ends, so \z and \Z are the same.
_ESCAPES = {"z": r"\Z", "Z": r"\Z", "h": r"\s", "H": r"\S"}
_SAME = frozenset("dDwWsSbBAtnrfa")
_ESCAPE = re.compile(
    r"\\(?:Q(?P<literal>.*?)(?:\\E|\Z)|(?P<not>[pP])(?:\{(?P<class>\w+)\}|(?P<letter>\w))|k<(?P<back>\w+)>"
    r"|(?P<code>x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|[1-9])|(?P<one>.))",
    re.DOTALL,
)
_GROUP = re.compile(
    r"\(\?(?:(?P<kept>:|=|!|>|<=|<!)|<(?P<name>[a-zA-Z]\w*)>|(?P<flags>[a-zA-Z-]*)(?P<end>[:)]))"
)


class PatternError(ValueError):
    """A pattern that is none, or that only Java can read."""


def compile_java(pattern: str) -> re.Pattern[str]:
    """For `search`, as Spark's connector looks for it anywhere in a topic's name; PatternError."""
    try:
        return re.compile(_translated(pattern), re.ASCII)
    except re.error as error:
        raise PatternError(str(error)) from None


def _translated(pattern: str) -> str:
    made: list[str] = []
    at = 0
    in_class = False
    while at < len(pattern):
        if pattern[at] == "\\":
            found = _ESCAPE.match(pattern, at)
            if found is None:
                raise PatternError("it ends with a backslash")
            made.append(_escape(found, in_class))
            at = found.end()
        elif in_class:
            if pattern[at] == "[" or pattern.startswith("&&", at):
                raise PatternError(
                    "character classes within classes, and their intersections (&&), are Java's alone: "
                    "list the characters"
                )
            in_class = pattern[at] != "]"
            made.append(pattern[at])
            at += 1
        elif pattern[at] == "[":
            opened = re.compile(r"\[\^?\]?").match(pattern, at)
            assert opened is not None
            in_class = True
            made.append(opened[0])
            at = opened.end()
        elif pattern.startswith("(?", at):
            found = _GROUP.match(pattern, at)
            if found is None:
                raise PatternError(f"{pattern[at : at + 4]!r} begins no group")
            made.append(_group(found, is_first=at == 0))
            at = found.end()
        else:
            made.append(pattern[at])
            at += 1
    return "".join(made)


def _escape(found: re.Match[str], in_class: bool) -> str:
    if found["literal"] is not None:
        return re.escape(found["literal"])
    if found["not"]:
        return _named_class(found["class"] or found["letter"], found["not"] == "P", in_class)
    if found["back"]:
        return f"(?P={found['back']})"
    one: str | None = found["one"]
    if one is None or one in _SAME or not (one.isascii() and one.isalnum()):
        return found[0]
    if one not in _ESCAPES:
        raise PatternError(f"{found[0]!r} is Java's alone")
    return _ESCAPES[one]


def _named_class(name: str, negated: bool, in_class: bool) -> str:
    if name not in _CLASSES:
        raise PatternError(f"the class {name!r} is not known here; known are {', '.join(sorted(_CLASSES))}")
    if in_class and negated:
        raise PatternError(f"\\P{{{name}}} within a class is Java's alone: list the characters")
    return _CLASSES[name] if in_class else f"[{'^' if negated else ''}{_CLASSES[name]}]"


def _group(found: re.Match[str], is_first: bool) -> str:
    if found["kept"]:
        return found[0]
    if found["name"]:
        return f"(?P<{found['name']}>"
    flags = found["flags"].replace("d", "").replace("u", "").replace("U", "")  # of line ends and beyond ASCII
    if set(flags) - set("ims"):
        raise PatternError(f"the flags in {found[0]!r} are Java's alone")
    if found["end"] == ":":
        return f"(?{flags}:"
    if not is_first:
        raise PatternError(f"{found[0]!r} has to stand first, or around a part: (?{flags}:...)")
    return f"(?{flags})" if flags else ""
