"""A demo's terminal: a screen that is redrawn, or a line a second where there is no terminal.

The screen is the terminal's alternate one, so that what stood there before comes back, and a resize spoils nothing.
Colours are bold and dim only, none with NO_COLOR or on a dumb terminal. Owned by the demo's event loop.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

FRAME_S = 0.2
PROGRESS_S = 1.0

ENTER, LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
HOME, END_OF_LINE, END_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"
_STYLES = {"bold": "\x1b[1m", "dim": "\x1b[2m"}
_PLAIN = "\x1b[0m"


class Line(NamedTuple):
    """One line of the screen, without a line break: bold, dim or plain."""

    text: str
    style: str = ""


# What is to be seen now, in so many columns and rows; and the same as one line (none: nothing new).
Frame = Callable[[float, int, int], Sequence[Line]]
Progress = Callable[[float], str]


def coloured() -> bool:
    """Whether this terminal wants more than plain text (no-color.org)."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"


def has_screen() -> bool:
    """Whether there is a terminal that can be drawn on."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def own_command() -> str:
    """How this command is called from here: `make demo` runs one that is not on the PATH."""
    called = Path(sys.argv[0])
    if shutil.which("ottla") or called.name != "ottla":
        return "ottla"
    return os.path.relpath(called)


def painted(lines: Iterable[Line], width: int, colours: bool) -> list[str]:
    """Cut to the width, with the colours."""
    return [_painted(line, width, colours) for line in lines]


def _painted(line: Line, width: int, colours: bool) -> str:
    text = line.text[: max(width - 1, 0)]
    return f"{_STYLES[line.style]}{text}{_PLAIN}" if colours and line.style and text else text


async def show(frame: Frame, progress: Progress, done: asyncio.Event) -> None:
    """Until it is done; then what was last to be seen stays on the terminal."""
    if not has_screen():
        await _print_progress(progress, done)
        return
    sys.stdout.write(ENTER)
    try:
        while not done.is_set():
            _draw(frame)
            await pause(done, FRAME_S)
    finally:
        sys.stdout.write(LEAVE)
        sys.stdout.flush()
    size = shutil.get_terminal_size()
    print("\n".join(painted(frame(time.monotonic(), *size), size.columns, coloured())))


def _draw(frame: Frame) -> None:
    size = shutil.get_terminal_size()
    # One row less than there are: a line break in the last one would scroll.
    lines = frame(time.monotonic(), *size)[: max(size.lines - 1, 1)]
    shown = "".join(f"{line}{END_OF_LINE}\n" for line in painted(lines, size.columns, coloured()))
    sys.stdout.write(HOME + shown + END_OF_SCREEN)
    sys.stdout.flush()


async def _print_progress(progress: Progress, done: asyncio.Event) -> None:
    started = time.monotonic()
    while not done.is_set():
        await pause(done, PROGRESS_S)
        if line := progress(time.monotonic() - started):
            print(line, flush=True)


async def pause(event: asyncio.Event, seconds: float) -> None:
    """Sleep, but wake at once for the event."""
    with suppress(asyncio.TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)
