"""The raw client on Apache Kafka: the tests of tests/clients once more, with the reference for a broker.

Both versions of transactions, ranges and batches over the death of the broker, transactions that another ends.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.clients import test_raw_client as batches
from tests.clients import test_raw_transactions as transactions
from tests.clients.conftest import MakeTopic
from tests.clients.raw_writer import SETTINGS, quiet_port
from tests.interop.apache import ApacheKafka
from tests.interop.process import wait_until

from ottla.client import Admin, NewTopic
from ottla.model.errors import KafkaError

pytestmark = pytest.mark.interop

KNOWN_TIMEOUT_S = 60


class Apache:
    """The reference, in the shape the tests expect a broker to have."""

    def __init__(self, kafka: ApacheKafka) -> None:
        self.bootstrap_servers = kafka.address


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    where = tmp_path_factory.mktemp("apache") / "data"
    settings = {**SETTINGS, "transaction.abort.timed.out.transaction.cleanup.interval.ms": "50"}
    with ApacheKafka(where, settings, port=quiet_port()) as kafka:
        yield kafka


@pytest.fixture
def address(mortal: ApacheKafka) -> str:
    return mortal.address


@pytest.fixture(scope="module", params=[1, 2], ids=["v1", "v2"])
def broker(request: pytest.FixtureRequest, mortal: ApacheKafka) -> Apache:
    with Admin(bootstrap_servers=mortal.address) as admin:
        admin.update_features({"transaction.version": request.param}, allow_downgrade=True)
    return Apache(mortal)


@pytest.fixture
def make_topic(address: str) -> MakeTopic:
    """Apache answers when its controller has made a topic: its broker hears of it a moment later."""

    def make(partitions: int = 1, **configs: object) -> str:
        name = f"t-{next(_NUMBERS)}"
        # The raw client's records are years old: when Apache next looks, they would meet with the retention of a week.
        given = {"retention_ms": -1, **configs}
        settings = {key.replace("_", "."): str(value) for key, value in given.items()}
        with Admin(bootstrap_servers=address) as admin:
            created = admin.create_topics([NewTopic(name, partitions, configs=settings)])[name]
            assert not isinstance(created, KafkaError), created

            def is_known() -> bool:
                found = admin.describe_topics([name])[name]
                return not isinstance(found, KafkaError) and len(found.partitions) == partitions

            wait_until(is_known, KNOWN_TIMEOUT_S, f"topic {name}")
        return name

    return make


_NUMBERS = iter(range(1_000_000))

client = batches.client
driver = transactions.driver
tp = transactions.tp

test_topics_and_offsets = batches.test_topics_and_offsets
test_asking_for_a_topic_does_not_create_it = batches.test_asking_for_a_topic_does_not_create_it
test_what_a_producer_wrote_is_read_whatever_its_codec = (
    batches.test_what_a_producer_wrote_is_read_whatever_its_codec
)
test_an_offset_out_of_range_comes_with_the_log_as_it_is = (
    batches.test_an_offset_out_of_range_comes_with_the_log_as_it_is
)
test_a_range_beyond_the_end_is_told = batches.test_a_range_beyond_the_end_is_told
test_a_topic_that_is_deleted_is_told = batches.test_a_topic_that_is_deleted_is_told
test_written_batches_are_there_once_and_in_order = batches.test_written_batches_are_there_once_and_in_order
test_what_is_too_large_is_refused_by_name = batches.test_what_is_too_large_is_refused_by_name
test_a_record_without_a_key_is_refused_by_name = batches.test_a_record_without_a_key_is_refused_by_name
test_a_range_is_read_though_the_broker_dies = batches.test_a_range_is_read_though_the_broker_dies
test_everything_is_written_once_though_the_broker_dies = (
    batches.test_everything_is_written_once_though_the_broker_dies
)
test_transactions_are_ended_though_the_broker_dies = (
    batches.test_transactions_are_ended_though_the_broker_dies
)

test_one_client_writes_and_another_ends = transactions.test_one_client_writes_and_another_ends
test_what_never_began_ends_as_aborted = transactions.test_what_never_began_ends_as_aborted
test_init_fences_and_aborts_what_was_open = transactions.test_init_fences_and_aborts_what_was_open
test_a_transaction_past_its_timeout_is_over = transactions.test_a_transaction_past_its_timeout_is_over
test_an_id_nobody_knows_is_told = transactions.test_an_id_nobody_knows_is_told
test_an_open_transaction_holds_readers_up_and_is_named = (
    transactions.test_an_open_transaction_holds_readers_up_and_is_named
)
test_aborted_and_committed_data_side_by_side = transactions.test_aborted_and_committed_data_side_by_side
test_many_transactions_end_at_once = transactions.test_many_transactions_end_at_once
test_offsets_are_part_of_a_transaction = transactions.test_offsets_are_part_of_a_transaction
test_who_is_fenced_commits_no_offsets = transactions.test_who_is_fenced_commits_no_offsets
test_describe_says_who_and_what = transactions.test_describe_says_who_and_what
test_forked_workers_write_and_their_parent_commits = (
    transactions.test_forked_workers_write_and_their_parent_commits
)
