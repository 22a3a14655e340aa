"""Topics are described page by page with who may lead, and by Metadata where a broker knows nothing better."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from ottla.client.admin.aio import AsyncAdmin
from ottla.client.admin.types import TopicDescription
from ottla.client.errors import ProtocolError, UnsupportedVersion
from ottla.model.errors import ErrorCode, KafkaError
from ottla.wire.messages.metadata import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
    MetadataRequest,
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

TOPIC_ID = b"0123456789abcdef"
Described = dict[str, TopicDescription | KafkaError]


class Admin(AsyncAdmin):
    """One whose brokers are a function of the test."""

    def __init__(self, answer: Callable[[Any], Any]) -> None:
        self.asked: list[Any] = []
        self._answer = answer

    async def request(self, request: Any, *args: Any, **more: Any) -> Any:
        self.asked.append(request)
        return self._answer(request)

    def describe(self, *names: str) -> Described:
        return asyncio.run(self.describe_topics(names))


def topic(name: str, *indexes: int, elr: list[int] | None = None) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        name=name,
        topic_id=TOPIC_ID,
        partitions=[
            DescribeTopicPartitionsResponsePartition(
                partition_index=index,
                leader_id=-1 if elr else 1,
                replica_nodes=[1, 2, 3],
                isr_nodes=[] if elr else [1, 2, 3],
                eligible_leader_replicas=elr,
                last_known_elr=[3] if elr else None,
                offline_replicas=[],
            )
            for index in indexes
        ],
    )


def test_pages_are_put_together_and_say_who_may_lead() -> None:
    pages = [
        DescribeTopicPartitionsResponse(
            topics=[topic("a", 0), topic("b", 0, 1, elr=[2])],
            next_cursor=Cursor(topic_name="b", partition_index=2),
        ),
        DescribeTopicPartitionsResponse(
            topics=[
                topic("b", 2),
                DescribeTopicPartitionsResponseTopic(
                    error_code=3, name="c", topic_id=bytes(16), partitions=[]
                ),
            ]
        ),
    ]
    admin = Admin(lambda request: pages[len(admin.asked) - 1])
    found = admin.describe("c", "b", "a", "b")
    assert list(found) == ["c", "b", "a"]
    b, c = found["b"], found["c"]
    assert isinstance(b, TopicDescription)
    assert [(n, p.leader, p.elr, p.last_known_elr) for n, p in b.partitions.items()] == [
        (0, -1, (2,), (3,)),
        (1, -1, (2,), (3,)),
        (2, 1, (), ()),
    ]
    assert isinstance(c, KafkaError)
    assert c.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    first, second = admin.asked
    assert [each.name for each in first.topics] == ["a", "b", "c"]
    assert [each.name for each in second.topics] == ["b", "c"]
    assert second.cursor == Cursor(topic_name="b", partition_index=2)


def test_pages_that_do_not_go_on_are_an_error() -> None:
    page = DescribeTopicPartitionsResponse(
        topics=[topic("a", 0)], next_cursor=Cursor(topic_name="a", partition_index=1)
    )
    with pytest.raises(ProtocolError, match="does not come to an end"):
        Admin(lambda request: page).describe("a")


def test_an_older_broker_is_asked_for_its_metadata() -> None:
    def answer(request: Any) -> MetadataResponse:
        if isinstance(request, DescribeTopicPartitionsRequest):
            raise UnsupportedVersion("this broker does not know it")
        assert isinstance(request, MetadataRequest)
        assert not request.allow_auto_topic_creation
        partition = MetadataResponsePartition(
            partition_index=0, leader_id=2, leader_epoch=5, replica_nodes=[2, 1], isr_nodes=[2]
        )
        return MetadataResponse(
            brokers=[],
            topics=[MetadataResponseTopic(name="a", topic_id=TOPIC_ID, partitions=[partition])],
        )

    found = Admin(answer).describe("a")["a"]
    assert isinstance(found, TopicDescription)
    assert (found.partitions[0].leader, found.partitions[0].isr, found.partitions[0].elr) == (2, (2,), ())
