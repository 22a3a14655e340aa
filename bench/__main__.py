"""Runs the parts that are asked for, or all, and prints one table."""

import sys
from collections.abc import Callable
from importlib import import_module

from bench.report import Row, save, table

# part -> module and function
PARTS = {
    "produce": ("bench.requests", "produce"),
    "fetch": ("bench.requests", "fetch"),
    "latency": ("bench.latency", "latency"),
    "start": ("bench.start", "start"),
    "memory": ("bench.start", "memory"),
    "tools": ("bench.tools", "tools"),
    "partitions": ("bench.partitions", "partitions"),
    "stalls": ("bench.stalls", "stalls"),
}


def main(wanted: list[str]) -> int:
    unknown = [part for part in wanted if part not in PARTS]
    if unknown:
        print(f"bench: no part {', '.join(unknown)}; there are {', '.join(PARTS)}", file=sys.stderr)
        return 2
    rows: list[Row] = []
    for part in wanted or PARTS:
        print(f"bench: {part} ...", file=sys.stderr, flush=True)
        found = _run(part)
        save(part, found)
        rows += found
    print(table(rows))
    return 0


def _run(part: str) -> list[Row]:
    module, name = PARTS[part]
    run: Callable[[], list[Row]] = getattr(import_module(module), name)
    return run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
