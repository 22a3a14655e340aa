"""What others say, without secrets: texts, exceptions, streams, and what Python workers tell Java of an exception.

A function of a pipeline gets a secret as text, and whatever it raises with that text in it (in a UDF: in a task) would
be in Spark's log, its event log and its screens. A worker can know a secret only by the function that brings it along;
so functions that hold one are pickled with the secrets' values beside them (`guard`, in the driver), and unpickling
such a function tells the worker what to leave out from then on (`know`): of the text of exceptions, which PySpark sends
to Java, and of standard output and error. This holds wherever the function runs, executors of a cluster included.

Rules: a secret is found as it is, line by line, and as Python's and JSON's quotes, URLs and base64 write it; those of
less than four letters are words that are everywhere, and stay. Nothing here fails for what it cannot hide.
"""

from __future__ import annotations

import base64
import functools
import json
import pickle
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final, TextIO
from urllib.parse import quote, quote_plus

HIDDEN: Final = "***"
# Shorter ones are words that are everywhere; a line of a longer text (a key in PEM) is one by itself.
MIN_HIDDEN: Final = 4


def _itself(text: str) -> str:
    return text


def hiding(values: Iterable[str]) -> Callable[[str], str]:
    """A function that takes secrets out of a text."""
    parts = {form for value in values for part in (value, *value.splitlines()) for form in forms(part)}
    if not parts:
        return _itself
    longest_first = sorted(parts, key=lambda part: (-len(part), part))
    pattern = re.compile("|".join(map(re.escape, longest_first)))
    return lambda text: pattern.sub(HIDDEN, text)


def forms(part: str) -> set[str]:
    """How a text is written by those who quote it; nothing of one that is too short to be told from others."""
    if len(part) < MIN_HIDDEN:
        return set()
    data = part.encode("utf-8", "surrogatepass")
    return {
        part,
        repr(part)[1:-1],
        json.dumps(part)[1:-1],
        json.dumps(part, ensure_ascii=False)[1:-1],
        quote(data, safe=""),
        quote(data),
        quote_plus(data),
        base64.b64encode(data).decode(),
    }


@contextmanager
def discreetly(secrets: Mapping[str, str]) -> Iterator[None]:
    """What is raised here names no secret: an exception that does becomes one that says the same without it."""
    try:
        yield
    except Exception as error:
        said = "\n".join([str(error), *map(str, _chain(error))])
        hide = hiding(secrets.values())
        if hide(said) == said:
            raise
        hidden = RuntimeError(f"{type(error).__name__}: {hide(str(error))}")
    else:
        return
    raise hidden from None


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = {id(error)}
    following = error.__cause__ or error.__context__
    while following is not None and id(following) not in seen:
        seen.add(id(following))
        yield following
        following = following.__cause__ or following.__context__


class DiscreetWriter:
    """A function for each micro-batch, whose exceptions (Spark writes them to its log) name no secret."""

    def __init__(self, write: Callable[[Any, int], None], secrets: Mapping[str, str]) -> None:
        self._write = write
        self._secrets = secrets

    def __call__(self, batch: Any, batch_id: int) -> None:
        with discreetly(self._secrets):
            self._write(batch, batch_id)


class DiscreetStream:
    """Standard output or error, without secrets."""

    def __init__(self, stream: TextIO, hide: Callable[[str], str]) -> None:
        self._stream = stream
        self._hide = hide

    def write(self, text: str) -> int:
        return self._stream.write(self._hide(text))

    def writelines(self, lines: Iterable[str]) -> None:
        self.write("".join(lines))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


# -- in the driver ----------------------------------------------------------------------------------------------------

_guarded: set[str] = set()


def guard(values: Iterable[str]) -> None:
    """From now on functions that hold one of these texts tell the workers that run them what to leave out."""
    _guarded.update(value for value in values if len(value) >= MIN_HIDDEN)
    if not _guarded:
        return
    from pyspark.serializers import CloudPickleSerializer

    dumps: Any = CloudPickleSerializer.dumps
    if hasattr(dumps, "__wrapped__"):
        return

    @functools.wraps(dumps)
    def guarded(self: Any, obj: Any) -> bytes:
        return accompanied(dumps(self, obj), _guarded)

    CloudPickleSerializer.dumps = guarded  # type: ignore[method-assign]


def accompanied(pickled: bytes, values: Iterable[str]) -> bytes:
    """What was pickled, with those of the secrets beside it that it holds."""
    held = sorted(value for value in values if _is_in(pickled, value))
    return pickle.dumps(_Accompanied(held, pickled)) if held else pickled


def _is_in(pickled: bytes, value: str) -> bool:
    parts = (part for part in (value, *value.splitlines()) if len(part) >= MIN_HIDDEN)
    return any(form.encode("utf-8", "surrogatepass") in pickled for part in parts for form in forms(part))


class _Accompanied:
    """Becomes what was pickled when it is unpickled, wherever that is."""

    def __init__(self, values: list[str], pickled: bytes) -> None:
        self._values = values
        self._pickled = pickled

    def __reduce__(self) -> tuple[Any, ...]:
        return _opened, (self._values, self._pickled)


# -- in the workers ---------------------------------------------------------------------------------------------------

_known: set[str] = set()


def _opened(values: list[str], pickled: bytes) -> Any:
    know(values)
    return pickle.loads(pickled, encoding="bytes")


def know(values: Iterable[str]) -> None:
    """This process says none of these texts any more, in exceptions that PySpark passes on and on its own streams."""
    new = set(values) - _known
    if not new:
        return
    _known.update(new)
    hide = hiding(_known)
    sys.stdout, sys.stderr = _stream(sys.stdout, hide), _stream(sys.stderr, hide)
    with suppress(ImportError):
        from pyspark import util

        vars(util)["traceback"] = DiscreetTraceback(hide)


def _stream(stream: Any, hide: Callable[[str], str]) -> Any:
    return stream if stream is None else DiscreetStream(getattr(stream, "_stream", stream), hide)


class DiscreetTraceback:
    """The module `traceback`, whose texts name no secret: PySpark's words for an exception are all made by it."""

    def __init__(self, hide: Callable[[str], str]) -> None:
        base: Any = traceback.TracebackException

        class TracebackException(base):  # type: ignore[misc]
            def format(self, **given: Any) -> Iterator[str]:
                yield hide("".join(super().format(**given)))

            def format_exception_only(self, **given: Any) -> Iterator[str]:
                yield hide("".join(super().format_exception_only(**given)))

        self._hide = hide
        self.TracebackException = TracebackException

    def format_exc(self, *given: Any, **named: Any) -> str:
        return self._hide(traceback.format_exc(*given, **named))

    def format_exception(self, *given: Any, **named: Any) -> list[str]:
        return [self._hide("".join(traceback.format_exception(*given, **named)))]

    def format_exception_only(self, *given: Any, **named: Any) -> list[str]:
        return [self._hide("".join(traceback.format_exception_only(*given, **named)))]

    def __getattr__(self, name: str) -> Any:
        return getattr(traceback, name)
