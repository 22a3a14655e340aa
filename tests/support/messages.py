"""Every message that is declared under `ottla.wire.messages`, found by walking its modules."""

from importlib import import_module
from pkgutil import walk_packages
from typing import Any

from ottla.wire import messages
from ottla.wire.schema import schema_of


def every_message() -> list[type[Any]]:
    """Requests, responses and what is stored, without the structs inside of them, module by module."""
    found = []
    for info in walk_packages(messages.__path__, messages.__name__ + "."):
        module = import_module(info.name)
        declared = [cls for cls in vars(module).values() if getattr(cls, "__module__", "") == info.name]
        found += [cls for cls in declared if schema_of(cls).role != "struct"]
    return found
