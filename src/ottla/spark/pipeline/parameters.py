"""What a pipeline's file leaves open: parameters (`param`) and secrets (`secret`), as data.

    def large(orders=topic("orders", schema="..."), limit=param(int, 5), token=secret("TOKEN")): ...

    source = param(str, "orders", name="source")      at the file's top, with a name: the value itself, for a topic's
    day = topic(f"{source}.daily")                    name, a trigger, a path

Rules: nothing here reads an environment, a file or a clock; what a run gives is found by `given`. The value of a
parameter is text until here, whoever gave it, and is shown to everybody. A secret's value is never in these objects: a
Secret is the text `secret('NAME')`, so that whoever prints or forwards one by mistake has printed or forwarded that.
Owned by the file that declares them.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

KINDS: Final = (int, float, str, bool, datetime, timedelta)
LEGAL_NAME: Final = re.compile(r"[A-Za-z_]\w{0,99}", re.ASCII)
LEGAL_SECRET: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,99}")
_BOOLEANS: Final = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_TIME = re.compile(
    r"(\d{1,15}(?:\.\d{1,9})?)\s*(ms|milliseconds?|s|seconds?|m|minutes?|h|hours?|d|days?)", re.IGNORECASE
)
_EXAMPLES: Final = {
    bool: "true or false",
    datetime: "a time such as 2026-11-01T00:00",
    timedelta: "a time span such as '10 minutes'",
}
MAX_SHOWN: Final = 80


class ParameterError(Exception):
    """A parameter or a secret that is declared wrongly, or a value that is none of its type."""


class _Required:
    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED: Final = _Required()


@dataclass(frozen=True, eq=False)
class Param:
    """A value that each run may choose."""

    kind: Any
    default: Any = REQUIRED
    help: str = ""

    @property
    def is_required(self) -> bool:
        return self.default is REQUIRED

    @property
    def kind_name(self) -> str:
        return getattr(self.kind, "__name__", repr(self.kind))

    def standing(self) -> Any:
        """The default as a value of the type, None where there is none; ParameterError if they do not fit."""
        if self.kind not in KINDS:
            known = ", ".join(kind.__name__ for kind in KINDS)
            raise ParameterError(f"param() takes one of the types {known}, not {self.kind_name}")
        if self.is_required:
            return None
        if isinstance(self.default, str) and self.kind in (datetime, timedelta):
            return self.of(self.default)
        is_number = self.kind is float and type(self.default) is int
        if type(self.default) is not self.kind and not is_number:
            raise ParameterError(f"the default {_shown(self.default)} is no {self.kind_name}")
        if self.kind is datetime and self.default.tzinfo is None:
            # As one that is given: Spark would take it for local time.
            return self.default.replace(tzinfo=UTC)
        return float(self.default) if is_number else self.default

    def of(self, text: str) -> Any:
        """A value from text; ParameterError."""
        try:
            return _converted(self.kind, text)
        except (ValueError, KeyError, OverflowError):
            meant = _EXAMPLES.get(self.kind, self.kind_name)
            raise ParameterError(f"{_shown(text)} is no {self.kind_name}" + _unless(meant, self)) from None


def _unless(meant: str, param: Param) -> str:
    return f": {meant}" if meant != param.kind_name else ""


def _converted(kind: Any, text: str) -> Any:
    if kind is str:
        return text
    word = text.strip()
    if kind is bool:
        return _BOOLEANS[word.lower()]
    if kind is float:
        value = float(word)
        if not math.isfinite(value):
            raise ValueError(word)
        return value
    if kind is datetime:
        found = datetime.fromisoformat(word)
        return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
    if kind is timedelta:
        span = _TIME.fullmatch(word)
        if span is None:
            raise ValueError(word)
        unit = span[2].lower()
        return timedelta(seconds=float(span[1]) * _UNITS["ms" if unit.startswith(("ms", "mil")) else unit[0]])
    return int(word)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "…"


class Secret(str):
    """A value that only the run knows, by its name; as text it is `secret('NAME')`, everywhere."""

    __slots__ = ("name",)
    name: str

    def __new__(cls, name: str) -> Secret:
        made = super().__new__(cls, f"secret({name!r})")
        made.name = name
        return made

    def __repr__(self) -> str:
        return str(self)

    def __reduce__(self) -> tuple[type[Secret], tuple[str]]:
        return (type(self), (self.name,))


def secret(name: str) -> Any:
    """A secret: the default of a function's parameter, or the value of an option of topic(), delta() or iceberg().

    It comes from the environment (OTTLA_SECRET_NAME, or OTTLA_SECRET_NAME_FILE with a file's path), from a directory of
    files (--secrets-dir) or from a command (--secret-command).
    """
    if not isinstance(name, str) or not LEGAL_SECRET.fullmatch(name):
        raise ParameterError(f"secret({name!r}): a name is letters, digits, '_', '.' and '-', a letter first")
    return Secret(name)


Answer = Callable[[str, Param], Any]
_answer: ContextVar[Answer | None] = ContextVar("ottla_pipeline_answer", default=None)


@contextmanager
def answering(answer: Answer) -> Iterator[None]:
    """Parameters that have a name get their values from here in the meantime."""
    token = _answer.set(answer)
    try:
        yield
    finally:
        _answer.reset(token)


def param(kind: Any, default: Any = REQUIRED, help: str = "", *, name: str | None = None) -> Any:
    """A value that each run may choose: --param NAME=VALUE, OTTLA_PARAM_NAME, or --param-file.

    kind     int, float, str, bool, datetime or timedelta; a datetime without a zone is UTC
    default  what it is where nothing is given; without one it has to be given
    name     nothing for the default of a function's parameter, whose name it is. With a name this is not a
             declaration but the value, for use at the file's top: topic(param(str, "orders", name="source"))
    """
    made = Param(kind, default, help)
    if name is None:
        return made
    if not isinstance(name, str) or not LEGAL_NAME.fullmatch(name):
        raise ParameterError(f"param(name={name!r}): a name is letters, digits and '_'")
    answer = _answer.get()
    if answer is not None:
        return answer(name, made)
    if made.is_required:
        raise ParameterError(f"the parameter {name!r} has no default, and nobody runs this file")
    return made.standing()


def with_defaults(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """The keywords of a plain call of a function (a test's): parameters that are not given are their defaults."""
    signature = inspect.signature(function)
    given = signature.bind_partial(*args, **kwargs).arguments
    found = dict(kwargs)
    for name, parameter in signature.parameters.items():
        if name not in given and isinstance(parameter.default, Param):
            if parameter.default.is_required:
                raise TypeError(f"{function.__name__}() needs {name}=: the parameter has no default")
            found[name] = parameter.default.standing()
    return found
