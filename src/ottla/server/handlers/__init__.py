"""The handlers, one module an API family; importing this package's `load` registers all of them."""

from importlib import import_module

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
    "offset_commit",
    "offset_fetch",
    "offset_delete",
    "group_directory",
    "classic_groups",
    "consumer_groups",
    "streams_groups",
    "share_fetch",
    "share_groups",
    "share_state",
    "reassignments",
    "features",
    "quorum",
    "broker_lifecycle",
    "envelope",
)


def load() -> None:
    """Register every handler."""
    for family in FAMILIES:
        import_module(f"{__name__}.{family}")
