"""The blocking clients: Producer, Consumer, Admin for plain scripts.

    with Producer(bootstrap_servers="localhost:9092") as producer:
        producer.send("topic", b"value", key=b"key")            # returns at once, unless the buffer is full
        producer.send("topic", b"more").result(timeout_ms=5000)  # waits for the broker

    with Consumer(bootstrap_servers="localhost:9092", group_id="readers") as consumer:
        consumer.subscribe(["topic"])
        for record in consumer: ...                             # commits as it goes, see enable_auto_commit

    with Producer(bootstrap_servers="localhost:9092", transactional_id="mover-1") as producer:
        producer.init_transactions()
        with producer.transaction():                            # all of it, or nothing
            producer.send("topic", b"value")

Each is its asyncio twin on a loop in a thread of its own, so that batches go out and fetches come in while the
application does something else. What the application does most (send, poll) happens in its own thread under
the lock it shares with the loop; the rest is handed to the loop. Constructing one connects, or raises.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ottla.client.admin.blocking import Admin as Admin
    from ottla.client.base import LoopThread as LoopThread
    from ottla.client.consumer.blocking import Consumer as Consumer
    from ottla.client.producer.blocking import BlockingDelivery as BlockingDelivery
    from ottla.client.producer.blocking import Producer as Producer

_HOMES = {
    "Admin": "ottla.client.admin.blocking",
    "BlockingDelivery": "ottla.client.producer.blocking",
    "Consumer": "ottla.client.consumer.blocking",
    "LoopThread": "ottla.client.base",
    "Producer": "ottla.client.producer.blocking",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    """Imported when first used: a command that only asks does not load what sends and reads."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
