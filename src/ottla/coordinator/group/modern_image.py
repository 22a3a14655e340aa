"""What a change of the cluster means for consumer, share and streams groups alike."""

from typing import Any

from ottla.coordinator.group.metadata_hash import TopicHashes
from ottla.coordinator.group.modern_settings import SettingsCache
from ottla.metadata.delta import Delta


def forget_changed(delta: Delta, settings: SettingsCache[Any], hashes: TopicHashes) -> set[str]:
    """Forget what may not be true any more; the names of the topics that have changed."""
    if delta.configs:
        settings.clear()
    if delta.brokers:
        hashes.clear()  # their racks may be others
    names = {t.name for change in delta.topics.values() for t in (change.before, change.after) if t}
    hashes.forget(names)
    return names
