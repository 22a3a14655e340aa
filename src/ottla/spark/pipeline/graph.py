"""Which stream feeds which, through their topics; a pipeline that feeds itself would never end. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

Edges = Mapping[str, frozenset[str]]


def find_cycle(edges: Edges) -> list[str] | None:
    """One way round (first and last are the same), or None. Names in order, so that the answer is always the same."""
    done: set[str] = set()
    for start in sorted(edges):
        found = _walk(start, edges, done)
        if found is not None:
            return found
    return None


def _walk(start: str, edges: Edges, done: set[str]) -> list[str] | None:
    """Depth first, without recursion: the open path is the stack."""
    path: list[str] = [start]
    waiting: list[Iterable[str]] = [iter(sorted(edges.get(start, ())))]
    while path:
        following = next(iter(waiting[-1]), None)
        if following is None:
            done.add(path.pop())
            waiting.pop()
        elif following in path:
            return [*path[path.index(following) :], following]
        elif following not in done:
            path.append(following)
            waiting.append(iter(sorted(edges.get(following, ()))))
    return None
