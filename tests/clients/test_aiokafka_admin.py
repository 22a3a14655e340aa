"""aiokafka's admin client: the oldest encodings."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiokafka
import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import InvalidPartitionsError
from tests.clients.adapters import Message
from tests.clients.adapters.aio_kafka import AioKafka
from tests.clients.conftest import MakeTopic, Wait

TOPIC_ALREADY_EXISTS, INVALID_TOPIC, INVALID_CONFIG = 36, 17, 40


@asynccontextmanager
async def connected(address: str) -> AsyncIterator[AIOKafkaAdminClient]:
    admin = AIOKafkaAdminClient(bootstrap_servers=address)
    await admin.start()
    try:
        yield admin
    finally:
        await admin.close()


def using(address: str, script: Callable[[AIOKafkaAdminClient], Awaitable[None]]) -> None:
    """Run a script with an admin client."""

    async def run() -> None:
        async with connected(address) as admin:
            await script(admin)

    asyncio.run(run())


@pytest.mark.three_nodes
def test_a_topic_s_life(address: str, nodes: dict[int, str], in_step: Wait) -> None:
    topic = f"aiokafka-{uuid.uuid4().hex[:12]}"

    async def script(admin: AIOKafkaAdminClient) -> None:
        created = await admin.create_topics([NewTopic(topic, 3, 1, topic_configs={"retention.ms": "1000"})])
        assert [error[:2] for error in created.topic_errors] == [(topic, 0)]
        in_step()
        again = await admin.create_topics([NewTopic(topic, 2, 1), NewTopic("a b", 1, 1)])
        assert {e[0]: e[1] for e in again.topic_errors} == {topic: TOPIC_ALREADY_EXISTS, "a b": INVALID_TOPIC}
        assert topic in await admin.list_topics()
        (found,) = await admin.describe_topics([topic])
        assert len(found["partitions"]) == 3
        assert {p["leader"] for p in found["partitions"]} == set(nodes)
        grown = await admin.create_partitions({topic: NewPartitions(4)})
        assert [error[1] for error in grown.topic_errors] == [0]
        in_step()
        with pytest.raises(InvalidPartitionsError):
            await admin.create_partitions({topic: NewPartitions(1)})
        (found,) = await admin.describe_topics([topic])
        assert len(found["partitions"]) == 4
        deleted = await admin.delete_topics([topic])
        assert deleted.topic_error_codes == [(topic, 0)]
        in_step()
        assert topic not in await admin.list_topics()

    using(address, script)


@pytest.mark.three_nodes
def test_configs(address: str, make_topic: MakeTopic, in_step: Wait) -> None:
    topic = make_topic()

    async def value(admin: AIOKafkaAdminClient, key: str) -> str:
        wanted = ConfigResource(ConfigResourceType.TOPIC, topic, {key: None})
        (answer,) = await admin.describe_configs([wanted])
        ((code, _, _, _, entries),) = answer.resources
        assert code == 0
        return str({entry[0]: entry[1] for entry in entries}[key])

    async def script(admin: AIOKafkaAdminClient) -> None:
        assert await value(admin, "retention.ms") == "604800000"
        change = ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": "777"})
        (answer,) = await admin.alter_configs([change])
        assert [resource[0] for resource in answer.resources] == [0]
        in_step()
        assert await value(admin, "retention.ms") == "777"
        wrong = ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": "soon"})
        (answer,) = await admin.alter_configs([wrong])
        assert [resource[0] for resource in answer.resources] == [INVALID_CONFIG]
        (answer,) = await admin.describe_configs([ConfigResource(ConfigResourceType.BROKER, "1")])
        entries = {entry[0]: entry[1] for entry in answer.resources[0][4]}
        assert entries["log.retention.hours"] == "168"

    using(address, script)


@pytest.mark.three_nodes
def test_records_and_the_cluster(address: str, make_topic: MakeTopic, nodes: dict[int, str]) -> None:
    topic = make_topic()
    AioKafka().write(address, topic, [Message(b"%d" % n) for n in range(6)])

    async def script(admin: AIOKafkaAdminClient) -> None:
        where = aiokafka.TopicPartition(topic, 0)
        assert await admin.delete_records({where: RecordsToDelete(before_offset=2)}) == {where: 2}
        cluster = await admin.describe_cluster()
        assert {b["node_id"]: f"{b['host']}:{b['port']}" for b in cluster["brokers"]} == nodes
        assert cluster["controller_id"] in nodes

    using(address, script)
    assert AioKafka().watermarks(address, topic, 0) == (2, 6)
