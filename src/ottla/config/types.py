"""What a configuration key is: its type, its default, who may change it while the broker runs.

Plain slotted classes, because some four hundred of them are made whenever `ottla` starts.
Immutable once the tables are built; shared by everything in the process.
"""

from __future__ import annotations

from enum import Enum, IntEnum

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ottla.config.validators import Check

    # What a parsed value may be; a list is a tuple, a password and a class name are strings.
    Value = bool | int | float | str | tuple[str, ...] | None

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
DOUBLE_MAX = 1.7976931348623157e308


class Type(IntEnum):
    """The types of values, by the numbers DescribeConfigs gives them."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class Source(IntEnum):
    """Where a value comes from, by the numbers DescribeConfigs gives the places (KIP-226)."""

    UNKNOWN = 0
    TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    CLIENT_METRICS_CONFIG = 7
    GROUP_CONFIG = 8


class ResourceType(IntEnum):
    """What has a configuration, by the protocol's numbers."""

    UNKNOWN = 0
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class Scope(Enum):
    """Who may change a broker's key while it runs (KIP-226)."""

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"


class ConfigKey:
    """One key: everything that is known about it before anybody sets it."""

    __slots__ = ("check", "default", "has_default", "internal", "name", "scope", "synonym", "type")

    def __init__(
        self,
        name: str,
        type: Type,
        default: Value,
        check: Check | None = None,
        scope: Scope = Scope.READ_ONLY,
        *,
        synonym: str | None = None,
        internal: bool = False,
        has_default: bool = True,
    ) -> None:
        self.name = name
        self.type = type
        self.default = default
        self.check = check
        self.scope = scope
        # The broker's key that gives a topic's or a group's key its default.
        self.synonym = synonym
        # Known and honoured, but never shown by DescribeConfigs unless somebody set it.
        self.internal = internal
        # node.id, process.roles and controller.listener.names have to come from somewhere.
        self.has_default = has_default

    @property
    def read_only(self) -> bool:
        return self.scope is Scope.READ_ONLY

    @property
    def sensitive(self) -> bool:
        return self.type is Type.PASSWORD

    @property
    def doc(self) -> str | None:
        """A sentence on what it does."""
        from ottla.config.docs import documentation_of

        return documentation_of(self.name)

    def __repr__(self) -> str:
        return f"ConfigKey({self.name}, {self.type.name})"


key = ConfigKey
