"""`ottla --version`: what a bug report needs in one line. Imported only when asked for."""

import importlib.util
import platform

from ottla import __version__


def version_line() -> str:
    """Version, Python, record kernel (compiled or its Python twin), event loop."""
    return (
        f"ottla {__version__} (Python {platform.python_version()}, record kernel: {_kernel()}, "
        f"event loop: {_event_loop()}, {platform.system()} {platform.machine()})"
    )


def _kernel() -> str:
    from ottla.records.kernel import KERNEL

    return str(KERNEL)


def _event_loop() -> str:
    return "uvloop" if importlib.util.find_spec("uvloop") else "asyncio"
