"""Admin: the admin client for plain threads. See ottla.client.admin.aio."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ottla.client.admin.aio import AsyncAdmin
from ottla.client.admin.types import (
    ActiveProducer,
    ClusterDescription,
    ConfigChange,
    ConfigEntry,
    ConfigResource,
    CreatedTopic,
    DelegationToken,
    FeatureDescription,
    GroupDescription,
    GroupListing,
    LogDirDescription,
    NewTopic,
    OpenTransaction,
    QuorumDescription,
    QuotaEntity,
    QuotaFilter,
    ResourceType,
    ScramCredentialInfo,
    ShareOffset,
    TopicDescription,
    TopicListing,
)
from ottla.client.admin.users import ScramAlteration
from ottla.client.base import Blocking
from ottla.client.offsets import OffsetAndMetadata, OffsetAndTimestamp
from ottla.client.transaction.messages import TransactionDescription, TransactionListing
from ottla.model.errors import KafkaError
from ottla.model.ids import TopicPartition
from ottla.security.acls import AclBinding, AclBindingFilter


class Admin(Blocking):
    """Topics, partitions, configurations, offsets, records, directories: see AsyncAdmin."""

    _twin: AsyncAdmin

    def __init__(self, settings: Mapping[str, Any] | None = None, **more: Any) -> None:
        super().__init__(lambda lock: AsyncAdmin(settings, lock=lock, **more))

    def create_topics(self, topics: Sequence[NewTopic], **more: Any) -> dict[str, CreatedTopic | KafkaError]:
        return self._run(self._twin.create_topics(topics, **more))

    def delete_topics(self, names: Iterable[str], **more: Any) -> dict[str, KafkaError | None]:
        return self._run(self._twin.delete_topics(names, **more))

    def create_partitions(self, counts: Mapping[str, int], **more: Any) -> dict[str, KafkaError | None]:
        return self._run(self._twin.create_partitions(counts, **more))

    def list_topics(self) -> list[TopicListing]:
        return self._run(self._twin.list_topics())

    def describe_topics(self, names: Iterable[str]) -> dict[str, TopicDescription | KafkaError]:
        return self._run(self._twin.describe_topics(names))

    def describe_configs(
        self, resources: Iterable[ConfigResource], **more: Any
    ) -> dict[ConfigResource, dict[str, ConfigEntry] | KafkaError]:
        return self._run(self._twin.describe_configs(resources, **more))

    def incremental_alter_configs(
        self, changes: Mapping[ConfigResource, Sequence[ConfigChange]], **more: Any
    ) -> dict[ConfigResource, KafkaError | None]:
        return self._run(self._twin.incremental_alter_configs(changes, **more))

    def list_config_resources(self, types: Iterable[ResourceType] = ()) -> list[ConfigResource]:
        return self._run(self._twin.list_config_resources(types))

    def describe_cluster(self) -> ClusterDescription:
        return self._run(self._twin.describe_cluster())

    def describe_quorum(self) -> QuorumDescription:
        return self._run(self._twin.describe_quorum())

    def describe_log_dirs(
        self, brokers: Iterable[int] | None = None
    ) -> dict[int, list[LogDirDescription] | KafkaError]:
        return self._run(self._twin.describe_log_dirs(brokers))

    def delete_records(
        self, before: Mapping[TopicPartition, int], **more: Any
    ) -> dict[TopicPartition, int | KafkaError]:
        return self._run(self._twin.delete_records(before, **more))

    def list_offsets(
        self, timestamps: Mapping[TopicPartition, int], **more: Any
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        return self._run(self._twin.list_offsets(timestamps, **more))

    def describe_producers(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, list[ActiveProducer] | KafkaError]:
        return self._run(self._twin.describe_producers(partitions))

    # Groups: see ottla.client.admin.groups.

    def list_groups(self, **more: Any) -> list[GroupListing]:
        return self._run(self._twin.list_groups(**more))

    def describe_groups(
        self, group_ids: Iterable[str], **more: Any
    ) -> dict[str, GroupDescription | KafkaError]:
        return self._run(self._twin.describe_groups(group_ids, **more))

    def delete_groups(self, group_ids: Iterable[str]) -> dict[str, KafkaError | None]:
        return self._run(self._twin.delete_groups(group_ids))

    def remove_members(self, group_id: str, **more: Any) -> None:
        self._run(self._twin.remove_members(group_id, **more))

    def list_group_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition] | None = None, **more: Any
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        return self._run(self._twin.list_group_offsets(group_id, partitions, **more))

    def alter_group_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, int | OffsetAndMetadata]
    ) -> dict[TopicPartition, KafkaError | None]:
        return self._run(self._twin.alter_group_offsets(group_id, offsets))

    def delete_group_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, KafkaError | None]:
        return self._run(self._twin.delete_group_offsets(group_id, partitions))

    def list_share_group_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, ShareOffset | KafkaError]:
        return self._run(self._twin.list_share_group_offsets(group_id, partitions))

    def alter_share_group_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, KafkaError | None]:
        return self._run(self._twin.alter_share_group_offsets(group_id, offsets))

    def delete_share_group_offsets(
        self, group_id: str, topics: Iterable[str]
    ) -> dict[str, KafkaError | None]:
        return self._run(self._twin.delete_share_group_offsets(group_id, topics))

    # Transactions and features: see ottla.client.admin.aio.

    def list_transactions(self, **more: Any) -> list[TransactionListing]:
        return self._run(self._twin.list_transactions(**more))

    def describe_transactions(
        self, transactional_ids: Iterable[str]
    ) -> dict[str, TransactionDescription | KafkaError]:
        return self._run(self._twin.describe_transactions(transactional_ids))

    def fence_producers(self, transactional_ids: Iterable[str]) -> dict[str, KafkaError | None]:
        return self._run(self._twin.fence_producers(transactional_ids))

    def open_transactions(self, partitions: Iterable[TopicPartition]) -> list[OpenTransaction]:
        return self._run(self._twin.open_transactions(partitions))

    def find_hanging_transactions(
        self, partitions: Iterable[TopicPartition], *, min_age_ms: int
    ) -> list[OpenTransaction]:
        return self._run(self._twin.find_hanging_transactions(partitions, min_age_ms=min_age_ms))

    def abort_open_transaction(self, transaction: OpenTransaction) -> None:
        self._run(self._twin.abort_open_transaction(transaction))

    def describe_features(self) -> list[FeatureDescription]:
        return self._run(self._twin.describe_features())

    def update_features(self, levels: Mapping[str, int], **more: Any) -> None:
        self._run(self._twin.update_features(levels, **more))

    # Access rules: see ottla.client.admin.acls.

    def describe_acls(self, wanted: AclBindingFilter = AclBindingFilter()) -> list[AclBinding]:  # noqa: B008 - a value
        return self._run(self._twin.describe_acls(wanted))

    def create_acls(self, bindings: Sequence[AclBinding]) -> dict[AclBinding, KafkaError | None]:
        return self._run(self._twin.create_acls(bindings))

    def delete_acls(
        self, filters: Sequence[AclBindingFilter]
    ) -> dict[AclBindingFilter, list[AclBinding] | KafkaError]:
        return self._run(self._twin.delete_acls(filters))

    # Users: see ottla.client.admin.users.

    def describe_user_scram_credentials(
        self, users: Iterable[str] = ()
    ) -> dict[str, list[ScramCredentialInfo] | KafkaError]:
        return self._run(self._twin.describe_user_scram_credentials(users))

    def alter_user_scram_credentials(
        self, alterations: Sequence[ScramAlteration]
    ) -> dict[str, KafkaError | None]:
        return self._run(self._twin.alter_user_scram_credentials(alterations))

    def describe_client_quotas(
        self, wanted: QuotaFilter | None = None
    ) -> dict[QuotaEntity, dict[str, float]]:
        return self._run(self._twin.describe_client_quotas(wanted))

    def alter_client_quotas(
        self, alterations: Mapping[QuotaEntity, Mapping[str, float | None]], **more: Any
    ) -> dict[QuotaEntity, KafkaError | None]:
        return self._run(self._twin.alter_client_quotas(alterations, **more))

    def create_delegation_token(self, **more: Any) -> DelegationToken:
        return self._run(self._twin.create_delegation_token(**more))

    def describe_delegation_tokens(self, owners: Iterable[str] | None = None) -> list[DelegationToken]:
        return self._run(self._twin.describe_delegation_tokens(owners))

    def renew_delegation_token(self, hmac: bytes, *, period_ms: int = -1) -> int:
        return self._run(self._twin.renew_delegation_token(hmac, period_ms=period_ms))

    def expire_delegation_token(self, hmac: bytes, *, period_ms: int = -1) -> int:
        return self._run(self._twin.expire_delegation_token(hmac, period_ms=period_ms))
