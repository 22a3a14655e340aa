"""What is wrong with a pipeline, said so that a person finds the place: the file, the function, the parameter."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Problem(NamedTuple):
    """One thing that is wrong: `where` names file, line, function and parameter as far as they are known."""

    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}" if self.where else self.what


class PipelineError(Exception):
    """A pipeline that cannot run, with everything that is wrong with it, not only the first."""

    def __init__(self, problems: Problem | Iterable[Problem]) -> None:
        self.problems = (problems,) if isinstance(problems, Problem) else tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))

    def __reduce__(self) -> tuple[type[PipelineError], tuple[tuple[Problem, ...]]]:
        return (type(self), (self.problems,))


class DeclarationError(Exception):
    """A declaration that is wrong in itself; whoever knows its place makes a Problem of it."""


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """`; did you mean 'x'?` where a known word is close, else nothing."""
    found = difflib.get_close_matches(word.lower(), known, n=1, cutoff=0.6)
    return f"; did you mean {found[0]!r}?" if found else ""


def listed(names: Iterable[str]) -> str:
    """`a, b, c`, or `none`."""
    return ", ".join(names) or "none"
