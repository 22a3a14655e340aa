"""What one client writes every other reads, byte for byte, in every codec."""

from __future__ import annotations

import itertools
import time

import pytest
from tests.clients.adapters import BEGINNING, CLIENTS, KafkaClient, Message, WriteSettings
from tests.clients.conftest import MakeTopic

PAIRS = [(writer, codec) for writer in CLIENTS for codec in writer.codecs]


def corpus(timestamp_ms: int) -> list[Message]:
    """Records of every shape: empty, null, binary, compressible, with headers."""
    keys = (None, b"", b"key", bytes(range(256)))
    values = (None, b"", b"value", bytes(range(256)) * 40, b"\x00" * 30_000)
    headers = ((), (("name", b"value"),), (("a", b""), ("a", bytes(range(128))), ("ž", b"\xff")))
    # A record without key and value is one that some of the clients refuse to send.
    shapes = [s for s in itertools.product(keys, values, headers) if s[:2] != (None, None)]
    return [Message(value, key, 0, timestamp_ms + n, header) for n, (key, value, header) in enumerate(shapes)]


@pytest.mark.parametrize(("writer", "codec"), PAIRS, ids=lambda item: getattr(item, "name", item))
def test_what_one_writes_all_read(
    address: str, make_topic: MakeTopic, writer: KafkaClient, codec: str
) -> None:
    topic = make_topic()
    messages = corpus(int(time.time() * 1000) - 1_000_000)
    writer.write(address, topic, messages, WriteSettings(codec=codec, linger_ms=50))
    expected = [(n, m.timestamp_ms, m.key, m.value, m.headers) for n, m in enumerate(messages)]
    for reader in CLIENTS:
        found = reader.read(address, topic, {0: BEGINNING}, len(messages))
        assert [tuple(record)[1:] for record in found] == expected, reader.name


def test_all_write_into_one_partition(address: str, make_topic: MakeTopic) -> None:
    topic = make_topic()
    expected = []
    for n, (writer, codec) in enumerate(PAIRS):
        messages = [Message(b"%s %s %d" % (writer.name.encode(), codec.encode(), i)) for i in range(5)]
        settings = WriteSettings(codec=codec, idempotent=n % 2 == 0)
        places = writer.write(address, topic, messages, settings)
        assert [place.offset for place in places] == list(range(n * 5, n * 5 + 5))
        expected += [m.value for m in messages]
    for reader in CLIENTS:
        found = reader.read(address, topic, {0: BEGINNING}, len(expected))
        assert [record.value for record in found] == expected, reader.name
