"""Encrypted values on Apache Kafka, to which they are bytes and a header: the tests of tests/clients once more."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.clients import test_encryption as encrypted
from tests.interop.apache import ApacheKafka

pytestmark = pytest.mark.interop


class Apache:
    """The reference, in the shape the tests expect a broker to have."""

    def __init__(self, kafka: ApacheKafka) -> None:
        self.bootstrap_servers = kafka.address
        self.data_dir = kafka.data_dir


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apache]:
    with ApacheKafka(tmp_path_factory.mktemp("apache") / "data") as kafka:
        yield Apache(kafka)


topic = encrypted.topic
keyring = encrypted.keyring

test_round_trip = encrypted.test_round_trip
test_the_broker_has_nothing_of_it = encrypted.test_the_broker_has_nothing_of_it
test_asyncio = encrypted.test_asyncio
test_a_consumer_without_the_key_is_told = encrypted.test_a_consumer_without_the_key_is_told
test_a_value_that_was_tampered_with = encrypted.test_a_value_that_was_tampered_with_is_refused_by_its_offset
test_mixed_topics_by_a_setting = encrypted.test_mixed_topics_by_a_setting
test_rotation = encrypted.test_rotation
test_transactions = encrypted.test_transactions
test_the_command_line = encrypted.test_the_command_line
