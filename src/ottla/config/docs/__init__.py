"""A sentence about each key, for DescribeConfigs and the command line. Loaded only when somebody asks."""

from __future__ import annotations

_loaded: dict[str, str] = {}


def documentation_of(name: str) -> str | None:
    """What a key does, or None for one of the few that only tests use."""
    if not _loaded:
        from ottla.config.docs import broker, broker_more, resources

        # Where a topic's key and a broker's have the same name they say the same.
        _loaded.update(resources.DOCS | broker_more.DOCS | broker.DOCS)
    return _loaded.get(name)
