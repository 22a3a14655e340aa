"""LogConfig: from typed values by Kafka's names."""

from ottla.storage.config import LogConfig


def test_values_by_kafkas_names() -> None:
    config = LogConfig.from_values(
        {
            "segment.bytes": 1 << 20,
            "cleanup.policy": ["compact", "delete"],
            "message.timestamp.type": "LogAppendTime",
            "min.cleanable.dirty.ratio": 0.1,
            "follower.replication.throttled.replicas": "0:1,0:2",
            "retention.ms": None,
            "no.such.key": 1,
        }
    )
    assert config.segment_bytes == 1 << 20
    assert config.compact
    assert config.delete
    assert config.uses_log_append_time
    assert config.min_cleanable_dirty_ratio == 0.1
    assert config.follower_replication_throttled_replicas == ("0:1", "0:2")
    assert config.retention_ms == LogConfig().retention_ms


def test_cleanup_policy_as_text_and_empty() -> None:
    assert LogConfig.from_values({"cleanup.policy": "compact"}).cleanup_policy == {"compact"}
    neither = LogConfig.from_values({"cleanup.policy": ""})
    assert not neither.compact
    assert not neither.delete


def test_a_compacted_topic_rolls_for_its_compaction_lag() -> None:
    values = {"cleanup.policy": "compact", "max.compaction.lag.ms": 50, "segment.ms": 100}
    assert LogConfig.from_values(values).max_segment_ms == 50
    assert LogConfig.from_values(values | {"cleanup.policy": "delete"}).max_segment_ms == 100


def test_jitter_stays_within_its_bounds() -> None:
    assert LogConfig().random_segment_jitter_ms() == 0
    config = LogConfig(segment_jitter_ms=100, segment_ms=10)
    assert all(0 <= config.random_segment_jitter_ms() < 10 for _ in range(100))
