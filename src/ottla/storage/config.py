"""The settings of logs, log manager and cleaner, typed, with Kafka 4.3's names and defaults.

A LogConfig is one topic's: what a broker overrides (log.segment.bytes and so on) is resolved before it gets here.
CleanerConfig and LogManagerSettings are the broker's; the node builds them from `server.properties`, and nothing below
reads a configuration file. None of them ever changes: a change is a new object given to Log.update_config or
LogManager.reconfigure.
"""

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Final, Self, TypeVar

MAX_LONG: Final = (1 << 63) - 1

CREATE_TIME: Final = "CreateTime"
LOG_APPEND_TIME: Final = "LogAppendTime"
PRODUCER_COMPRESSION: Final = "producer"
UNCOMPRESSED: Final = "uncompressed"

_D = TypeVar("_D")


@dataclass(frozen=True, slots=True)
class LogConfig:
    """Every topic configuration that the storage or replication layer reads."""

    segment_bytes: int = 1 << 30
    segment_ms: int = 604_800_000
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = 4096
    flush_messages: int = MAX_LONG
    flush_ms: int = MAX_LONG
    retention_bytes: int = -1
    retention_ms: int = 604_800_000
    local_retention_bytes: int = -2
    local_retention_ms: int = -2
    max_message_bytes: int = 1_048_588
    message_timestamp_type: str = CREATE_TIME
    message_timestamp_before_max_ms: int = MAX_LONG
    message_timestamp_after_max_ms: int = 3_600_000
    cleanup_policy: frozenset[str] = frozenset({"delete"})
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = MAX_LONG
    delete_retention_ms: int = 86_400_000
    file_delete_delay_ms: int = 60_000
    compression_type: str = PRODUCER_COMPRESSION
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3
    preallocate: bool = False
    min_insync_replicas: int = 1
    unclean_leader_election_enable: bool = False
    leader_replication_throttled_replicas: tuple[str, ...] = ()
    follower_replication_throttled_replicas: tuple[str, ...] = ()
    remote_storage_enable: bool = False
    remote_log_copy_disable: bool = False
    remote_log_delete_on_disable: bool = False

    @classmethod
    def from_values(cls, values: Mapping[str, object]) -> Self:
        """From typed values by Kafka's names; a name that is no topic configuration is left out."""
        known = {field.name for field in fields(cls)}
        named = {name.replace(".", "_"): value for name, value in values.items() if value is not None}
        chosen = {name: value for name, value in named.items() if name in known}
        for name in ("leader_replication_throttled_replicas", "follower_replication_throttled_replicas"):
            if name in chosen:
                chosen[name] = tuple(_words(chosen[name]))
        if "cleanup_policy" in chosen:
            chosen["cleanup_policy"] = frozenset(_words(chosen["cleanup_policy"]))
        return cls(**chosen)  # type: ignore[arg-type]  # the configuration layer has checked the types

    @property
    def compact(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def delete(self) -> bool:
        return "delete" in self.cleanup_policy

    @property
    def uses_log_append_time(self) -> bool:
        return self.message_timestamp_type == LOG_APPEND_TIME

    @property
    def max_segment_ms(self) -> int:
        """A compacted topic rolls early enough for the cleaner to keep max.compaction.lag.ms (KIP-354)."""
        if self.compact and self.max_compaction_lag_ms > 0:
            return min(self.max_compaction_lag_ms, self.segment_ms)
        return self.segment_ms

    def random_segment_jitter_ms(self) -> int:
        """Keeps segments that were created together from rolling together."""
        if self.segment_jitter_ms == 0:
            return 0
        return random.randrange(min(self.segment_jitter_ms, self.segment_ms))


def _words(value: object) -> Iterable[str]:
    if isinstance(value, str):
        return [word for word in (part.strip() for part in value.split(",")) if word]
    assert isinstance(value, Iterable)
    return [str(word) for word in value]


# -- the broker's own settings


def _chosen(cls: type[_D], values: Mapping[str, object]) -> dict[str, object]:
    """The constructor's arguments among Kafka's names: each field says in its metadata which key it is."""
    keys = {f.name: f.metadata["key"] for f in fields(cls) if "key" in f.metadata}  # type: ignore[arg-type]
    return {name: values[key] for name, key in keys.items() if values.get(key) is not None}


def _key(name: str, default: _D) -> _D:
    result: _D = field(default=default, metadata={"key": name})
    return result


@dataclass(frozen=True, slots=True)
class CleanerConfig:
    """log.cleaner.*, but for io.buffer.size: segments are read in pieces of a megabyte."""

    enable: bool = _key("log.cleaner.enable", True)
    threads: int = _key("log.cleaner.threads", 1)
    dedupe_buffer_size_bytes: int = _key("log.cleaner.dedupe.buffer.size", 134_217_728)
    io_buffer_load_factor: float = _key("log.cleaner.io.buffer.load.factor", 0.9)
    io_max_bytes_per_second: float = _key("log.cleaner.io.max.bytes.per.second", 1.7976931348623157e308)
    backoff_ms: int = _key("log.cleaner.backoff.ms", 15_000)

    @classmethod
    def from_values(cls, values: Mapping[str, object]) -> Self:
        return cls(**_chosen(cls, values))  # type: ignore[arg-type]  # the configuration layer has checked the types


@dataclass(frozen=True, slots=True)
class LogManagerSettings:
    """The intervals of the background work and the size of its pools."""

    recovery_threads_per_data_dir: int = _key("num.recovery.threads.per.data.dir", 2)
    background_threads: int = _key("background.threads", 10)
    initial_task_delay_ms: int = _key("log.initial.task.delay.ms", 30_000)
    retention_check_interval_ms: int = _key("log.retention.check.interval.ms", 300_000)
    flush_scheduler_interval_ms: int = _key("log.flush.scheduler.interval.ms", MAX_LONG)
    recovery_point_checkpoint_interval_ms: int = _key("log.flush.offset.checkpoint.interval.ms", 60_000)
    log_start_offset_checkpoint_interval_ms: int = _key(
        "log.flush.start.offset.checkpoint.interval.ms", 60_000
    )
    producer_id_expiration_ms: int = _key("producer.id.expiration.ms", 86_400_000)
    producer_id_expiration_check_interval_ms: int = _key("producer.id.expiration.check.interval.ms", 600_000)
    cleaner: CleanerConfig = field(default_factory=CleanerConfig)

    @classmethod
    def from_values(cls, values: Mapping[str, object]) -> Self:
        """From typed values by Kafka's names; unknown names are left out."""
        return cls(cleaner=CleanerConfig.from_values(values), **_chosen(cls, values))  # type: ignore[arg-type]
