"""The handlers, one module an API family; `load` registers all of them.

The families of groups and queues bring in their state machines, a third of all that a broker imports: a start does
not wait for them. They are imported when the first request for one comes, or when the broker has nothing else to do.
"""

from functools import partial
from importlib import import_module

from ottla.server.registry import serve_later

FAMILIES = (
    "api_versions",
    "produce",
    "fetch",
    "list_offsets",
    "metadata",
    "topics",
    "configs",
    "cluster",
    "log_dirs",
    "producers",
    "transactions",
    "coordinators",
    "reassignments",
    "features",
    "quorum",
    "broker_lifecycle",
    "envelope",
)
# With the keys they serve on the broker's listeners.
LATER = {
    "offset_commit": (8, 28),
    "offset_fetch": (9,),
    "offset_delete": (47,),
    "group_directory": (16, 42),
    "classic_groups": (11, 12, 13, 14, 15),
    "consumer_groups": (68, 69),
    "streams_groups": (88, 89),
    "share_fetch": (78, 79),
    "share_groups": (76, 77, 90, 91, 92),
    "share_state": (83, 84, 85, 86, 87),
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
