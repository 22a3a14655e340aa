"""The offsets of a load, from their bytes.

The kind of record that __consumer_offsets has most of (see offset_bytes) is replayed here without a message object in
between, four times as fast; everything else goes the ordinary way. Both ways leave the same state, and a test holds
them to it.

Owner: the OffsetManager of a shard.
"""

from collections.abc import Callable
from typing import Final

from ottla.coordinator.group.offset_bytes import (
    KEY_TYPE,
    LENGTH,
    NO_METADATA,
    PARTITION,
    TOPIC_ID_TAG,
    VALUE,
    VALUE_VERSION,
)
from ottla.coordinator.group.offset_store import NO_EXPIRE_TIMESTAMP, OffsetAndMetadata, OffsetStore
from ottla.model.ids import Uuid

_KEY_TYPE: Final = LENGTH.pack(KEY_TYPE)
# Names that are remembered at most: the log may have any number of groups.
MAX_REMEMBERED: Final = 100_000

_new_row = OffsetAndMetadata._make


class OffsetLoader:
    """See the module."""

    def __init__(self, store: OffsetStore, ensure_group: Callable[[str], None]) -> None:
        self._store = store
        self._ensure_group = ensure_group
        # What stands before the partition in a key: the group and the topic it names.
        self._names: dict[bytes, tuple[str, str]] = {}
        # One object for each id and name, however many offsets have it.
        self._ids: dict[bytes, Uuid] = {}
        self._topics: dict[str, str] = {}

    def replay(self, record_offset: int, key: bytes | None, value: bytes | None) -> bool:
        """Replay such an offset; False if it is anything else."""
        if value is None or len(value) != VALUE.size or key is None:
            return False
        version, offset, leader_epoch, length, timestamp_ms, tags, tag, size, topic_id = VALUE.unpack(value)
        if version != VALUE_VERSION or length != NO_METADATA or (tags, tag, size) != TOPIC_ID_TAG:
            return False
        names = self._names.get(key[:-4])
        if names is None:
            names = self._read_names(key)
            if names is None:
                return False
        group_id, topic = names
        offsets = self._store.by_group.get(group_id)
        if offsets is None:
            offsets = self._store.new_group(group_id)
        self._ensure_group(group_id)
        offsets[(topic, PARTITION.unpack_from(key, len(key) - 4)[0])] = _new_row(
            (
                offset,
                leader_epoch,
                "",
                timestamp_ms,
                NO_EXPIRE_TIMESTAMP,
                self._ids.setdefault(topic_id, topic_id),
                record_offset,
            )
        )
        return True

    def _read_names(self, key: bytes) -> tuple[str, str] | None:
        """The group and the topic of an offset's key; None if it is another key or a broken one."""
        if key[:2] != _KEY_TYPE or len(key) < 4:
            return None
        topic_at = 4 + LENGTH.unpack_from(key, 2)[0]
        if not 4 <= topic_at <= len(key) - 6:
            return None
        if topic_at + 2 + LENGTH.unpack_from(key, topic_at)[0] != len(key) - 4:
            return None
        try:
            group_id, topic = key[4:topic_at].decode(), key[topic_at + 2 : -4].decode()
        except UnicodeDecodeError:
            return None
        if len(self._names) >= MAX_REMEMBERED:
            self.forget()
        names = (group_id, self._topics.setdefault(topic, topic))
        self._names[key[:-4]] = names
        return names

    def forget(self) -> None:
        """What was remembered is of no use any more."""
        self._names.clear()
        self._ids.clear()
        self._topics.clear()
