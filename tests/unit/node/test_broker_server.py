"""What a broker makes of the image, as far as that needs no node around it."""

from types import SimpleNamespace
from typing import Any

import pytest

from ottla.config.broker import BrokerConfig
from ottla.metadata import records as r
from ottla.metadata.delta import ImageBuilder
from ottla.metadata.image import ClusterImage, ResourceType
from ottla.node.broker_server import BrokerServer


def test_settings_of_another_version_do_not_keep_a_topic_from_being_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    builder = ImageBuilder(ClusterImage())
    settings = {"later.key": "1", "retention.ms": "77", "another.key": "x", "segment.bytes": "large"}
    for name, value in settings.items():
        builder.apply(
            r.ConfigRecord(resource_type=ResourceType.TOPIC, resource_name="orders", name=name, value=value)
        )
    image, _ = builder.build(1, 1, 0)
    broker: Any = SimpleNamespace(config=BrokerConfig.of({"log.dirs": "unused"}))
    config = BrokerServer._log_config(broker, image, "orders")
    assert (config.retention_ms, config.segment_bytes) == (77, 1 << 30)
    assert len(caplog.records) == 3
