"""The admin client's calls for transactions (KIP-664) and for the cluster's features (KIP-584)."""

import time
from collections.abc import Iterable, Mapping, Sequence

from ottla.client.admin_group_types import (
    FeatureDescription,
    OpenTransaction,
    TransactionDescription,
    TransactionListing,
)
from ottla.client.admin_groups import GroupAdmin
from ottla.client.calls import To
from ottla.client.connection import API_VERSIONS_AT_MOST, SOFTWARE_NAME
from ottla.client.coordinators import transaction_coordinator
from ottla.client.errors import UnsupportedVersion
from ottla.client.metadata import error_of
from ottla.client.partition_questions import abort_question, producers_question
from ottla.client.transaction_descriptions import describe_error, describe_request, described
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.wire.messages.api_versions import ApiVersionsRequest
from ottla.wire.messages.features import FeatureUpdateKey, UpdateFeaturesRequest
from ottla.wire.messages.producers import InitProducerIdRequest
from ottla.wire.messages.transactions import ListTransactionsRequest

# So many partitions are asked about at once, as kafka-transactions does.
PARTITIONS_AT_ONCE = 500
_UPGRADE, _SAFE_DOWNGRADE = 1, 2


class TransactionAdmin(GroupAdmin):
    """See the module."""

    async def list_transactions(
        self,
        *,
        states: Sequence[str] = (),
        producer_ids: Sequence[int] = (),
        min_duration_ms: int | None = None,
        id_pattern: str | None = None,
    ) -> list[TransactionListing]:
        """Every transactional id of every coordinator that passes the filters; the pattern is the broker's (RE2)."""
        request = ListTransactionsRequest(
            state_filters=list(states),
            producer_id_filters=list(producer_ids),
            duration_filter=-1 if min_duration_ms is None else min_duration_ms,
            transactional_id_pattern=id_pattern,
        )

        async def ask(node: str) -> list[TransactionListing]:
            response = await self.driver.call(request, int(node), adapt=_filters_are_known)
            code = error_of(response.error_code)
            if code is not None:
                raise KafkaError(code, f"broker {node}: transactions cannot be listed: {code.name}")
            if response.unknown_state_filters:
                unknown = ", ".join(response.unknown_state_filters)
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST, f"the broker knows no transaction state {unknown}"
                )
            return [
                TransactionListing(t.transactional_id, int(node), t.producer_id, t.transaction_state)
                for t in response.transaction_states
            ]

        answers = await self._each(map(str, self.core.metadata.nodes), ask)
        found: list[TransactionListing] = []
        for answer in answers.values():
            if isinstance(answer, KafkaError):
                raise answer
            found += answer
        return sorted(found)

    async def describe_transactions(
        self, transactional_ids: Iterable[str]
    ) -> dict[str, TransactionDescription | KafkaError]:
        async def ask(transactional_id: str) -> TransactionDescription:
            target = transaction_coordinator(transactional_id)
            response = await self.driver.call(
                describe_request(transactional_id), target, error_of=describe_error
            )
            told = described(response, transactional_id, self.core.coordinators.known(target))
            if isinstance(told, KafkaError):
                raise told
            return told

        return await self._each(transactional_ids, ask)

    async def fence_producers(self, transactional_ids: Iterable[str]) -> dict[str, KafkaError | None]:
        """Take transactional ids over: what is open is aborted, whoever has them is fenced."""

        async def ask(transactional_id: str) -> None:
            request = InitProducerIdRequest(
                transactional_id=transactional_id, transaction_timeout_ms=self.config.request_timeout_ms
            )
            response = await self.driver.call(request, transaction_coordinator(transactional_id))
            code = error_of(response.error_code)
            if code is not None:
                raise KafkaError(code, f"transactional id {transactional_id!r}: {code.name}")

        return await self._each(transactional_ids, ask)

    # -- hanging transactions -------------------------------------------------------------------------

    async def open_transactions(self, partitions: Iterable[TopicPartition]) -> list[OpenTransaction]:
        """Transactions that have begun and not ended, as the leaders of partitions see them."""
        wanted = sorted(partitions)
        found: list[OpenTransaction] = []
        for start in range(0, len(wanted), PARTITIONS_AT_ONCE):
            asked = wanted[start : start + PARTITIONS_AT_ONCE]
            for tp, producers in (await self.ask_leaders(asked, producers_question())).items():
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
        self, partitions: Iterable[TopicPartition], *, min_age_ms: int
    ) -> list[OpenTransaction]:
        """Those among them, older than this, that no coordinator will ever end."""
        now_ms = time.time_ns() // 1_000_000
        old = [t for t in await self.open_transactions(partitions) if now_ms - t.last_timestamp > min_age_ms]
        if not old:
            return []
        listed = await self.list_transactions(producer_ids=sorted({t.producer_id for t in old}))
        ids = {listing.producer_id: listing.transactional_id for listing in listed}
        described = await self.describe_transactions(ids.values())

        def is_cared_for(transaction: OpenTransaction) -> bool:
            state = described.get(ids.get(transaction.producer_id, ""))
            return isinstance(state, TransactionDescription) and transaction.partition in state.partitions

        for state in described.values():
            if isinstance(state, KafkaError) and state.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                raise state
        return [transaction for transaction in old if not is_cared_for(transaction)]

    async def abort_open_transaction(self, transaction: OpenTransaction) -> None:
        """Write the end of a transaction into one partition, past its coordinator: for hanging ones only."""
        question = abort_question(transaction)
        results = await self.ask_leaders([transaction.partition], question)
        error = results[transaction.partition]
        if isinstance(error, KafkaError):
            raise error

    # -- features -------------------------------------------------------------------------------------

    async def describe_features(self) -> list[FeatureDescription]:
        request = ApiVersionsRequest(client_software_name=SOFTWARE_NAME, client_software_version="admin")
        response = await self.driver.call(request, To.ANY, at_most=API_VERSIONS_AT_MOST)
        code = error_of(response.error_code)
        if code is not None:
            raise KafkaError(code, f"the features cannot be described: {code.name}")
        levels = {f.name: f.max_version_level for f in response.finalized_features}
        return sorted(
            FeatureDescription(f.name, f.min_version, f.max_version, levels.get(f.name, 0))
            for f in response.supported_features
        )

    async def update_features(
        self, levels: Mapping[str, int], *, validate_only: bool = False, allow_downgrade: bool = False
    ) -> None:
        """Raise (or lower, where that is allowed and safe) features of the cluster."""
        now = {feature.name: feature.finalized for feature in await self.describe_features()}
        lower = {name for name, level in levels.items() if allow_downgrade and level < now.get(name, 0)}
        request = UpdateFeaturesRequest(
            timeout_ms=self.config.request_timeout_ms,
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
        response = await self.driver.call(request, To.CONTROLLER)
        code = error_of(response.error_code)
        if code is not None:
            raise KafkaError(code, response.error_message or code.name)
        for result in response.results:
            failed = error_of(result.error_code)
            if failed is not None:
                raise KafkaError(failed, f"{result.feature}: {result.error_message or failed.name}")


def _filters_are_known(request: ListTransactionsRequest, version: int) -> ListTransactionsRequest:
    if (request.transactional_id_pattern is not None and version < 2) or (
        request.duration_filter >= 0 and version < 1
    ):
        raise UnsupportedVersion("this broker does not list transactions by duration or pattern")
    return request
