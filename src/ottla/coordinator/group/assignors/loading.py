"""The assignors that group.consumer.assignors names: built-in ones by name, others by the import path of their class.

A class is named `package.module:ClassName` or `package.module.ClassName`. The names of Apache's own classes stand
for the built-in assignors, so that a configuration can be taken over as it is.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from ottla.config.errors import ConfigError
from ottla.coordinator.group.assignors.api import PartitionAssignor
from ottla.coordinator.group.assignors.range import RangeAssignor
from ottla.coordinator.group.assignors.uniform import UniformAssignor
from ottla.model.plugins import find_class

_APACHE: Final = "org.apache.kafka.coordinator.group.assignor"
BUILT_IN: Final[Mapping[str, type[PartitionAssignor]]] = {
    "uniform": UniformAssignor,
    "range": RangeAssignor,
    f"{_APACHE}.UniformAssignor": UniformAssignor,
    f"{_APACHE}.RangeAssignor": RangeAssignor,
}
KEY: Final = "group.consumer.assignors"


def load_assignors(names: Iterable[str]) -> dict[str, PartitionAssignor]:
    """The assignors by the names that consumers ask for, the first the default; ConfigError."""
    assignors: dict[str, PartitionAssignor] = {}
    for name in names:
        assignor = _load(name)
        if assignor.name in assignors:
            raise ConfigError(f"{KEY}: two of the assignors are called {assignor.name}", KEY)
        assignors[assignor.name] = assignor
    if not assignors:
        raise ConfigError(f"{KEY} names no assignor", KEY)
    return assignors


def _load(name: str) -> PartitionAssignor:
    try:
        if name not in BUILT_IN and "." not in name and ":" not in name:
            raise ImportError("there is no such assignor, and no module is named")
        kind = BUILT_IN.get(name) or find_class(name)
        if not (isinstance(kind, type) and issubclass(kind, PartitionAssignor)):
            raise TypeError("the class is not derived from PartitionAssignor")
        if not isinstance(getattr(kind, "name", None), str) or not kind.name:
            raise TypeError("the class has no name for consumers to ask for")
        return kind()
    except Exception as error:
        raise ConfigError(
            f"{KEY}={name}: {error or type(error).__name__} (a built-in assignor, uniform or range, or a Python "
            "class by its import path is expected, such as package.module.Class)",
            KEY,
        ) from error
