"""The notebook in which the compiler writes a codec: lines, fresh names, constants.

Purpose: shared by the compilers of decoders and encoders. They gather runs of fixed-size values into one
`struct` call each, which is where most of a compiled codec's speed comes from.

Rules: writes text only; `build` is the one place where text becomes a function. One a codec.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from struct import Struct
from typing import Any

SMALL = 16  # arrays of numbers below this length (replicas, in-sync replicas) have a packer for each length


@cache
def small_structs(method: str, length_format: str, format: str) -> tuple[Any, ...]:
    """`pack` or `unpack_from` for arrays of 0 to SMALL - 1 numbers, after a length if one is packed with them."""
    return tuple(getattr(Struct(f">{length_format}{n}{format}"), method) for n in range(SMALL))


class Source:
    """Lines of one function, its constants, and fresh local names."""

    def __init__(self, signature: str) -> None:
        self._lines = [f"def codec({signature}):"]
        self._depth = 1
        self._names = 0
        self.constants: dict[str, Any] = {}

    def add(self, *lines: str) -> None:
        self._lines += ["    " * self._depth + line for line in lines]

    @contextmanager
    def block(self, opening: str) -> Iterator[None]:
        """Lines added inside are indented under `opening`; an empty block gets its `pass`."""
        self.add(opening)
        self._depth += 1
        before = len(self._lines)
        yield
        if len(self._lines) == before:
            self.add("pass")
        self._depth -= 1

    def name(self, prefix: str) -> str:
        self._names += 1
        return f"{prefix}{self._names}"

    def constant(self, prefix: str, value: Any) -> str:
        """A name for a value that the function uses."""
        for name, known in self.constants.items():
            if known is value:
                return name
        name = self.name(prefix.upper() + "_")
        self.constants[name] = value
        return name

    def struct_method(self, method: str, format: str) -> str:
        """A name for `Struct(format).pack` or `.unpack_from`, one for each format."""
        name = f"{method}_{format.replace('?', 'T')}"
        self.constants.setdefault(name, getattr(Struct(">" + format), method))
        return name

    def build(self, title: str, helpers: dict[str, Any]) -> Callable[..., Any]:
        text = "\n".join(self._lines)
        scope = {**helpers, **self.constants}
        exec(compile(text, f"<{title}>", "exec"), scope)
        function: Callable[..., Any] = scope["codec"]
        function.__doc__ = text  # to read what was compiled: print(codec.__doc__)
        return function
