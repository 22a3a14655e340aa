"""What the broker's configuration tells the log manager and the cleaner, typed, with Kafka 4.3's defaults.

The node builds these from `server.properties`; nothing below reads a configuration file. Like LogConfig
they never change: a dynamic change is a new object given to LogManager.reconfigure.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Final, Self, TypeVar

MAX_LONG: Final = (1 << 63) - 1

_D = TypeVar("_D")


def _chosen(cls: type[_D], values: Mapping[str, object]) -> dict[str, object]:
    """The constructor's arguments among Kafka's names: each field says in its metadata which key it is."""
    keys = {f.name: f.metadata["key"] for f in fields(cls) if "key" in f.metadata}  # type: ignore[arg-type]
    return {name: values[key] for name, key in keys.items() if values.get(key) is not None}


def _key(name: str, default: _D) -> _D:
    result: _D = field(default=default, metadata={"key": name})
    return result


@dataclass(frozen=True, slots=True)
class CleanerSettings:
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
    max_transaction_timeout_ms: int = _key("transaction.max.timeout.ms", 900_000)
    cleaner: CleanerSettings = field(default_factory=CleanerSettings)

    @classmethod
    def from_values(cls, values: Mapping[str, object]) -> Self:
        """From typed values by Kafka's names; unknown names are left out."""
        return cls(cleaner=CleanerSettings.from_values(values), **_chosen(cls, values))  # type: ignore[arg-type]
