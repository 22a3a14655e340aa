"""The admin client's operations on transactions (KIP-664) and on the cluster's features (KIP-584).

Each is a function whose first parameter is the client that asks; AsyncAdmin has them as methods.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ottla.client.admin.groups import each
from ottla.client.admin.types import (
    ActiveProducer,
    FeatureDescription,
    OpenTransaction,
)
from ottla.client.base import AsyncClient
from ottla.client.lookups import Question
from ottla.client.network import To, transaction_coordinator
from ottla.client.offsets import by_topic
from ottla.client.transaction import messages
from ottla.client.transaction.messages import TransactionDescription, TransactionListing
from ottla.model.errors import ErrorCode, KafkaError, error_of
from ottla.model.ids import TopicPartition
from ottla.net.connection import API_VERSIONS_AT_MOST, SOFTWARE_NAME
from ottla.wire.messages.admin.cluster import FeatureUpdateKey, UpdateFeaturesRequest
from ottla.wire.messages.api_versions import ApiVersionsRequest
from ottla.wire.messages.producers import DescribeProducersRequest
from ottla.wire.messages.producers import TopicRequest as ProducersTopic
from ottla.wire.messages.transactions import WritableTxnMarker, WritableTxnMarkerTopic, WriteTxnMarkersRequest

# So many partitions are asked about at once, as kafka-transactions does.
PARTITIONS_AT_ONCE = 500
_UPGRADE, _SAFE_DOWNGRADE = 1, 2


async def list_transactions(
    client: AsyncClient,
    *,
    states: Sequence[str] = (),
    producer_ids: Sequence[int] = (),
    min_duration_ms: int | None = None,
    id_pattern: str | None = None,
) -> list[TransactionListing]:
    """Every transactional id of every coordinator that passes the filters; the pattern is the broker's (RE2)."""

    async def ask(node: str) -> list[TransactionListing]:
        return await client.ask(
            messages.list_transactions(
                int(node),
                states=states,
                producer_ids=producer_ids,
                min_duration_ms=min_duration_ms,
                id_pattern=id_pattern,
            )
        )

    answers = await each(map(str, client.core.metadata.nodes), ask)
    found: list[TransactionListing] = []
    for answer in answers.values():
        if isinstance(answer, KafkaError):
            raise answer
        found += answer
    return sorted(found)


async def describe_transactions(
    client: AsyncClient, transactional_ids: Iterable[str]
) -> dict[str, TransactionDescription | KafkaError]:
    async def ask(transactional_id: str) -> TransactionDescription:
        found = await client.ask(messages.describe_transaction(transactional_id))
        node = client.core.coordinators.known(transaction_coordinator(transactional_id))
        return found if node is None else found._replace(coordinator=node)

    return await each(transactional_ids, ask)


async def fence_producers(
    client: AsyncClient, transactional_ids: Iterable[str]
) -> dict[str, KafkaError | None]:
    """Take transactional ids over: what is open is aborted, whoever has them is fenced."""

    async def ask(transactional_id: str) -> None:
        await client.ask(messages.init_producer_id(transactional_id, client.config.request_timeout_ms))

    return await each(transactional_ids, ask)


# -- hanging transactions -------------------------------------------------------------------------


async def open_transactions(
    client: AsyncClient, partitions: Iterable[TopicPartition]
) -> list[OpenTransaction]:
    """Transactions that have begun and not ended, as the leaders of partitions see them."""
    wanted = sorted(partitions)
    found: list[OpenTransaction] = []
    for start in range(0, len(wanted), PARTITIONS_AT_ONCE):
        asked = wanted[start : start + PARTITIONS_AT_ONCE]
        for tp, producers in (await client.ask_leaders(asked, producers_question())).items():
            if isinstance(producers, KafkaError):
                raise producers
            found += [
                OpenTransaction(
                    tp,
                    p.producer_id,
                    p.producer_epoch,
                    p.coordinator_epoch,
                    p.current_txn_start_offset,
                    p.last_timestamp,
                )
                for p in producers
                if p.current_txn_start_offset >= 0
            ]
    return sorted(found)


async def find_hanging_transactions(
    client: AsyncClient, partitions: Iterable[TopicPartition], *, min_age_ms: int
) -> list[OpenTransaction]:
    """Those among them, older than this, that no coordinator will ever end."""
    now_ms = time.time_ns() // 1_000_000
    old = [t for t in await open_transactions(client, partitions) if now_ms - t.last_timestamp > min_age_ms]
    if not old:
        return []
    listed = await list_transactions(client, producer_ids=sorted({t.producer_id for t in old}))
    ids = {listing.producer_id: listing.transactional_id for listing in listed}
    described = await describe_transactions(client, ids.values())

    def is_known_to_coordinator(transaction: OpenTransaction) -> bool:
        state = described.get(ids.get(transaction.producer_id, ""))
        return isinstance(state, TransactionDescription) and transaction.partition in state.partitions

    for state in described.values():
        if isinstance(state, KafkaError) and state.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            raise state
    return [transaction for transaction in old if not is_known_to_coordinator(transaction)]


async def abort_open_transaction(client: AsyncClient, transaction: OpenTransaction) -> None:
    """Write the end of a transaction into one partition, past its coordinator: for hanging ones only."""
    question = abort_question(transaction)
    results = await client.ask_leaders([transaction.partition], question)
    error = results[transaction.partition]
    if isinstance(error, KafkaError):
        raise error


# -- features -------------------------------------------------------------------------------------


async def describe_features(client: AsyncClient) -> list[FeatureDescription]:
    request = ApiVersionsRequest(client_software_name=SOFTWARE_NAME, client_software_version="admin")
    response = await client.request(request, To.ANY, at_most=API_VERSIONS_AT_MOST)
    code = error_of(response.error_code)
    if code is not None:
        raise KafkaError(code, f"the features cannot be described: {code.name}")
    levels = {f.name: f.max_version_level for f in response.finalized_features}
    return sorted(
        FeatureDescription(f.name, f.min_version, f.max_version, levels.get(f.name, 0))
        for f in response.supported_features
    )


async def update_features(
    client: AsyncClient,
    levels: Mapping[str, int],
    *,
    validate_only: bool = False,
    allow_downgrade: bool = False,
) -> None:
    """Raise (or lower, where that is allowed and safe) features of the cluster."""
    now = {feature.name: feature.finalized for feature in await describe_features(client)}
    lower = {name for name, level in levels.items() if allow_downgrade and level < now.get(name, 0)}
    request = UpdateFeaturesRequest(
        timeout_ms=client.config.request_timeout_ms,
        feature_updates=[
            FeatureUpdateKey(
                feature=name,
                max_version_level=level,
                upgrade_type=_SAFE_DOWNGRADE if name in lower else _UPGRADE,
            )
            for name, level in levels.items()
        ],
        validate_only=validate_only,
    )
    response = await client.request(request, To.CONTROLLER)
    code = error_of(response.error_code)
    if code is not None:
        raise KafkaError(code, response.error_message or code.name)
    for result in response.results:
        failed = error_of(result.error_code)
        if failed is not None:
            raise KafkaError(failed, f"{result.feature}: {result.error_message or failed.name}")


# -- questions to the leaders of partitions ---------------------------------------------------------------


def producers_question() -> Question:
    """Which producers the leaders remember (KIP-664); results are lists of ActiveProducer."""

    def build(wanted: list[TopicPartition]) -> DescribeProducersRequest:
        topics = [
            ProducersTopic(name=topic, partition_indexes=numbers) for topic, numbers in by_topic(wanted)
        ]
        return DescribeProducersRequest(topics=topics)

    def parse(response: Any) -> Iterable[tuple[TopicPartition, int, Any]]:
        for topic in response.topics:
            for p in topic.partitions:
                producers = [
                    ActiveProducer(*(getattr(s, f) for f in ActiveProducer._fields))
                    for s in p.active_producers
                ]
                yield TopicPartition(topic.name, p.partition_index), p.error_code, producers

    return Question(DescribeProducersRequest, build, parse)


def abort_question(transaction: OpenTransaction) -> Question:
    """Write the abort marker of a transaction."""

    def build(partitions: list[TopicPartition]) -> WriteTxnMarkersRequest:
        marker = WritableTxnMarker(
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
            transaction_result=False,
            topics=[
                WritableTxnMarkerTopic(name=topic, partition_indexes=numbers)
                for topic, numbers in by_topic(partitions)
            ],
            # A transaction that hung before any end shows -1: no leader of the coordinator is older than 0.
            coordinator_epoch=max(transaction.coordinator_epoch, 0),
        )
        return WriteTxnMarkersRequest(markers=[marker])

    def parse(response: Any) -> Iterable[tuple[TopicPartition, int, Any]]:
        for marker in response.markers:
            for topic in marker.topics:
                for p in topic.partitions:
                    yield TopicPartition(topic.name, p.partition_index), p.error_code, None

    return Question(WriteTxnMarkersRequest, build, parse)
