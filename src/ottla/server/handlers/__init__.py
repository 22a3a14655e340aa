"""Kafka's KafkaApis: the handlers, one module an API family; `load` registers all of them.

The families of groups and queues bring in their state machines, a third of all that a broker imports: a start does
not wait for them. They are imported when the first request for one comes, or when the broker has nothing else to do.
"""

from functools import partial
from importlib import import_module

from ottla.server.registry import serve_later

FAMILIES = (
    *("api_versions", "sasl", "produce", "fetch", "logs", "metadata", "controller", "configs"),
    *("transactions", "acls", "users", "quotas"),
)
# With the keys they serve on the broker's listeners.
LATER = {
    "offsets": (8, 28, 9, 47),
    "groups": (16, 42, 11, 12, 13, 14, 15, 68, 69, 88, 89),
    "share.fetch": (78, 79),
    "share.groups": (76, 77, 90, 91, 92),
    "share.state": (83, 84, 85, 86, 87),
}


def load() -> None:
    """Register every handler; those of LATER when they are needed."""
    for family in FAMILIES:
        _load(family)
    for family, api_keys in LATER.items():
        serve_later(api_keys, partial(_load, family))


def load_rest() -> None:
    """Import what `load` left for later. May run in a thread, beside the loop."""
    for family in LATER:
        _load(family)


def _load(family: str) -> None:
    import_module(f"{__name__}.{family}")
