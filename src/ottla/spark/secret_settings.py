"""Which settings of Spark are secret: those that Spark and Hadoop hide from their own screens and logs.

Spark goes by names (`spark.redaction.regex`, whose default is repeated here), Hadoop has a list of its own
(`hadoop.security.sensitive-config-keys`), and both are followed, because `spark.hadoop.` settings belong to both. Spark
looks for the same words in values, too: Java's options and addresses of databases have passwords in them.

Rules: a value that says on, off or how much is no secret, whatever the name (`…token.enabled=true`); a number is one
where the name ends with what it is (`…password=1234`). In doubt a setting is secret: that costs no more than to
give it again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

REDACTION: Final = "spark.redaction.regex"
_SPARKS: Final = r"secret|password|token|access[.]?key"
_HADOOPS: Final = r"account[.]key(?:[.]|$)|(?:encryption|private)[.]key$|credential$|[.]pass$"
_NAME: Final = re.compile(rf"{_SPARKS}|{_HADOOPS}", re.IGNORECASE)
_NAME_OF_VALUE: Final = re.compile(rf"(?:{_SPARKS}|(?:secret|private)[.]?key|[.]pass)$", re.IGNORECASE)
_WORD: Final = re.compile(r"|true|false|yes|no|on|off|none|null|auto|default", re.IGNORECASE)
_AMOUNT: Final = re.compile(r"[+-]?\d+(?:\.\d+)?\s*[a-z]{0,3}", re.IGNORECASE)
# -Djavax.net.ssl.trustStorePassword=…, jdbc:…?user=…&password=…
_WITHIN: Final = re.compile(r"""([\w.-]+)=([^\s&;,"']+)""")


def is_secret(name: str, value: str) -> bool:
    """Whether a value is to be hidden, by its name."""
    if _NAME.search(name) is None or _WORD.fullmatch(value):
        return False
    return _AMOUNT.fullmatch(value) is None or _NAME_OF_VALUE.search(name) is not None


def secret_settings(conf: Mapping[str, str]) -> dict[str, list[str]]:
    """The settings that are secret, and the texts of each that are not to be read anywhere."""
    found = {name: list(_texts(name, value, _own(conf))) for name, value in conf.items()}
    return {name: texts for name, texts in found.items() if texts}


def _texts(name: str, value: str, own: re.Pattern[str] | None) -> Iterator[str]:
    if is_secret(name, value) or (own is not None and name != REDACTION and _hides(own, name, value)):
        yield value
    else:
        yield from (text for within, text in _WITHIN.findall(value) if is_secret(within, text))


def _hides(own: re.Pattern[str], name: str, value: str) -> bool:
    return not _WORD.fullmatch(value) and bool(own.search(name) or own.search(value))


def _own(conf: Mapping[str, str]) -> re.Pattern[str] | None:
    """The user's words for what is secret. One that only Java understands is Spark's alone."""
    try:
        return re.compile(conf[REDACTION]) if conf.get(REDACTION) else None
    except re.error:
        return None
