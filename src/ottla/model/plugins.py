"""Classes of the operator's own, which the configuration names by their import path."""

from importlib import import_module
from typing import Any


def find_class(path: str) -> Any:
    """What `package.module.Class` or `package.module:Class` names; ImportError or AttributeError if it is nothing."""
    module, separator, name = path.rpartition(":" if ":" in path else ".")
    if not separator:
        raise ImportError("no module is named")
    return getattr(import_module(module), name)
