"""Publishing the progress: only what changed, never in the query's way."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.spark.source.stream import REPEAT_AFTER_S, RETRY_AFTER_S, Progress
from ottla.wire.messages.groups.classic import OffsetCommitResponse

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


class FakeClient:
    """Notes what is committed; fails while `error` is set."""

    def __init__(self) -> None:
        self.core = SimpleNamespace(metadata=SimpleNamespace(topic_id=lambda name: b"\0" * 16))
        self.commits: list[dict[int, int]] = []
        self.error: KafkaError | None = None

    def ask(self, ask: Any, timeout_ms: float) -> Any:
        if self.error is not None:
            raise self.error
        request = ask.request
        assert request.group_id == "g"
        offsets = {p.partition_index: p.committed_offset for t in request.topics for p in t.partitions}
        self.commits.append(offsets)
        return ask.read(OffsetCommitResponse())


def test_only_changes_are_committed() -> None:
    client, progress = FakeClient(), Progress("g")
    progress.publish(client, {A0: 1, A1: 2}, 0.0)  # type: ignore[arg-type]
    progress.publish(client, {A0: 1, A1: 2}, 1.0)  # type: ignore[arg-type]
    progress.publish(client, {A0: 1, A1: 5}, 2.0)  # type: ignore[arg-type]
    progress.publish(client, {}, 3.0)  # type: ignore[arg-type]
    assert client.commits == [{0: 1, 1: 2}, {1: 5}]


def test_a_quiet_topic_is_said_again_before_brokers_forget_it() -> None:
    client, progress = FakeClient(), Progress("g")
    progress.publish(client, {A0: 1}, 0.0)  # type: ignore[arg-type]
    progress.publish(client, {A0: 1}, REPEAT_AFTER_S - 1)  # type: ignore[arg-type]
    progress.publish(client, {A0: 1}, REPEAT_AFTER_S)  # type: ignore[arg-type]
    assert client.commits == [{0: 1}, {0: 1}]


def test_an_error_is_told_once_and_tried_again_later(caplog: pytest.LogCaptureFixture) -> None:
    client, progress = FakeClient(), Progress("g")
    client.error = KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED, "no")
    with caplog.at_level(logging.WARNING):
        for at in (0.0, RETRY_AFTER_S / 2, RETRY_AFTER_S, RETRY_AFTER_S * 2):
            progress.publish(client, {A0: 1}, at)  # type: ignore[arg-type]
    assert len(caplog.records) == 1
    client.error = None
    progress.publish(client, {A0: 1}, RETRY_AFTER_S * 2.5)  # type: ignore[arg-type]
    assert client.commits == []
    progress.publish(client, {A0: 1}, RETRY_AFTER_S * 3)  # type: ignore[arg-type]
    assert client.commits == [{0: 1}]
