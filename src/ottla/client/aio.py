"""The asyncio clients: AsyncProducer and AsyncConsumer (AsyncAdmin is in ottla.client.admin.aio).

    async with AsyncProducer(bootstrap_servers="localhost:9092") as producer:
        delivery = await producer.send("topic", b"value", key=b"key")   # waits only for room in the buffer
        metadata = await delivery                                       # waits for the broker

    async with AsyncConsumer(bootstrap_servers="localhost:9092", group_id="readers") as consumer:
        consumer.subscribe(["topic"])
        async for record in consumer: ...                               # commits as it goes, see enable_auto_commit

    async with AsyncProducer(bootstrap_servers="localhost:9092", transactional_id="mover-1") as producer:
        await producer.init_transactions()
        async with producer.transaction():                              # all of it, or nothing
            await producer.send("topic", b"value")

Settings are keyword arguments under Kafka's names with underscores (ottla.client.config), or dotted ones in
`settings`. A client belongs to the loop it was started in.
"""

from ottla.client.consumer.aio import AsyncConsumer
from ottla.client.producer.aio import AsyncDelivery, AsyncProducer, Text, as_bytes, prepare

__all__ = ["AsyncConsumer", "AsyncDelivery", "AsyncProducer", "Text", "as_bytes", "prepare"]
