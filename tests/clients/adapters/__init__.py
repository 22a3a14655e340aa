"""The clients under test, behind one small interface."""

from tests.clients.adapters.aio_kafka import AioKafka
from tests.clients.adapters.kafka_python import KafkaPython
from tests.clients.adapters.librdkafka import Librdkafka
from tests.clients.adapters.model import (
    BEGINNING,
    END,
    KafkaClient,
    Message,
    Place,
    ReadSettings,
    Stored,
    WriteFailed,
    WriteSettings,
)

CLIENTS: tuple[KafkaClient, ...] = (Librdkafka(), KafkaPython(), AioKafka())

__all__ = [
    "BEGINNING",
    "CLIENTS",
    "END",
    "KafkaClient",
    "Message",
    "Place",
    "ReadSettings",
    "Stored",
    "WriteFailed",
    "WriteSettings",
]
