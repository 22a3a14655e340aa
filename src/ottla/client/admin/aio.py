"""The admin client: topics, partitions, configurations, offsets, records, directories; groups, transactions, users.

Operations on several things return a dict with, for each, its value or the KafkaError that befell it; an error
of the whole operation is raised. `request` (from AsyncClient) sends anything else there is no method for.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ottla.client.admin import acls, groups, transactions, users
from ottla.client.admin.types import (
    CONFIG_TYPES,
    ActiveProducer,
    ClusterDescription,
    ConfigChange,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ConfigSynonym,
    CreatedTopic,
    LogDirDescription,
    NewTopic,
    QuorumDescription,
    QuorumReplica,
    ReplicaInfo,
    ResourceType,
    TopicDescription,
    TopicListing,
)
from ottla.client.base import AsyncClient
from ottla.client.config import AdminConfig
from ottla.client.errors import ProtocolError, UnsupportedVersion
from ottla.client.lookups import Question
from ottla.client.metadata import partition_info
from ottla.client.network import ErrorOf, Target, To
from ottla.client.offsets import by_topic
from ottla.model.errors import ErrorCode, KafkaError, error_of
from ottla.model.ids import TopicPartition, Uuid
from ottla.net.peers import Node
from ottla.wire.messages.admin.cluster import DescribeClusterRequest
from ottla.wire.messages.admin.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    ListConfigResourcesRequest,
)
from ottla.wire.messages.admin.log_dirs import DescribeLogDirsRequest
from ottla.wire.messages.admin.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
)
from ottla.wire.messages.metadata import (
    Cursor,
    DescribeTopicPartitionsRequest,
    MetadataRequest,
    MetadataRequestTopic,
    TopicRequest,
)
from ottla.wire.messages.nodes.raft import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
)

# Up to this version topics are deleted by name, which every broker understands.
_DELETE_TOPICS_BY_NAME = 5
_METADATA_TOPIC = "__cluster_metadata"
# Only a broker itself knows its loggers and its own settings (KIP-412).
_ON_ONE_BROKER = (ResourceType.BROKER, ResourceType.BROKER_LOGGER)


def moved_controller(items: str) -> ErrorOf:
    """Worth another try if any of the answer's items says that another node is the controller now."""

    def error(response: Any) -> ErrorCode | None:
        codes = [error_of(item.error_code) for item in getattr(response, items)]
        return ErrorCode.NOT_CONTROLLER if ErrorCode.NOT_CONTROLLER in codes else None

    return error


def failure(item: Any, what: str) -> KafkaError | None:
    """The error of one item of an answer."""
    code = error_of(item.error_code)
    if code is None:
        return None
    return KafkaError(code, f"{what}: {getattr(item, 'error_message', None) or explain(code)}")


def explain(code: ErrorCode) -> str:
    """A broker that sends only a code still deserves a sentence for the commonest of them."""
    return "does not exist" if code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION else code.name


class AsyncAdmin(AsyncClient):
    """Kafka's Admin: an AsyncClient with a method for each operation."""

    CONFIG = AdminConfig

    # -- groups (ottla.client.admin.groups) -----------------------------------------------------------

    list_groups = groups.list_groups
    describe_groups = groups.describe_groups
    delete_groups = groups.delete_groups
    remove_members = groups.remove_members
    list_group_offsets = groups.list_group_offsets
    alter_group_offsets = groups.alter_group_offsets
    delete_group_offsets = groups.delete_group_offsets
    list_share_group_offsets = groups.list_share_group_offsets
    alter_share_group_offsets = groups.alter_share_group_offsets
    delete_share_group_offsets = groups.delete_share_group_offsets

    # -- transactions and features (ottla.client.admin.transactions) ----------------------------------

    list_transactions = transactions.list_transactions
    describe_transactions = transactions.describe_transactions
    fence_producers = transactions.fence_producers
    open_transactions = transactions.open_transactions
    find_hanging_transactions = transactions.find_hanging_transactions
    abort_open_transaction = transactions.abort_open_transaction
    describe_features = transactions.describe_features
    update_features = transactions.update_features

    # -- access rules (ottla.client.admin.acls) -------------------------------------------------------

    describe_acls = acls.describe_acls
    create_acls = acls.create_acls
    delete_acls = acls.delete_acls

    # -- users (ottla.client.admin.users) -------------------------------------------------------------

    describe_user_scram_credentials = users.describe_user_scram_credentials
    alter_user_scram_credentials = users.alter_user_scram_credentials
    describe_client_quotas = users.describe_client_quotas
    alter_client_quotas = users.alter_client_quotas
    create_delegation_token = users.create_delegation_token
    describe_delegation_tokens = users.describe_delegation_tokens
    renew_delegation_token = users.renew_delegation_token
    expire_delegation_token = users.expire_delegation_token

    # -- topics ---------------------------------------------------------------------------------------

    async def create_topics(
        self, topics: Sequence[NewTopic], *, timeout_ms: int = 30_000, validate_only: bool = False
    ) -> dict[str, CreatedTopic | KafkaError]:
        request = CreateTopicsRequest(
            topics=[_creatable(topic) for topic in topics], timeout_ms=timeout_ms, validate_only=validate_only
        )
        response = await self.request(request, To.CONTROLLER, error_of=moved_controller("topics"))
        results: dict[str, CreatedTopic | KafkaError] = {}
        for topic in response.topics:
            configs = {config.name: config.value for config in topic.configs or ()}
            created = CreatedTopic(
                topic.name, Uuid(topic.topic_id), topic.num_partitions, topic.replication_factor, configs
            )
            results[topic.name] = failure(topic, f"topic {topic.name!r}") or created
        return results

    async def delete_topics(
        self, names: Iterable[str], *, timeout_ms: int = 30_000
    ) -> dict[str, KafkaError | None]:
        request = DeleteTopicsRequest(topic_names=list(names), timeout_ms=timeout_ms)
        response = await self.request(
            request,
            To.CONTROLLER,
            error_of=moved_controller("responses"),
            at_most=_DELETE_TOPICS_BY_NAME,
        )
        return {topic.name: failure(topic, f"topic {topic.name!r}") for topic in response.responses}

    async def create_partitions(
        self, counts: Mapping[str, int], *, timeout_ms: int = 30_000, validate_only: bool = False
    ) -> dict[str, KafkaError | None]:
        """Give topics more partitions, up to these counts."""
        topics = [
            CreatePartitionsTopic(name=name, count=count, assignments=None) for name, count in counts.items()
        ]
        request = CreatePartitionsRequest(topics=topics, timeout_ms=timeout_ms, validate_only=validate_only)
        response = await self.request(request, To.CONTROLLER, error_of=moved_controller("results"))
        return {topic.name: failure(topic, f"topic {topic.name!r}") for topic in response.results}

    async def list_topics(self) -> list[TopicListing]:
        """Every topic, by name."""
        response = await self.request(MetadataRequest(topics=None, allow_auto_topic_creation=False))
        listings = [
            TopicListing(
                topic.name,
                Uuid(topic.topic_id),
                topic.is_internal,
                len(topic.partitions),
                max((len(p.replica_nodes) for p in topic.partitions), default=0),
            )
            for topic in response.topics
        ]
        return sorted(listings)

    async def describe_topics(self, names: Iterable[str]) -> dict[str, TopicDescription | KafkaError]:
        """Topics and their partitions; which replicas are eligible (KIP-966) is not known of brokers before 3.8."""
        wanted = list(dict.fromkeys(names))
        if not wanted:
            return {}
        try:
            topics = await self._describe_page_by_page(wanted)
        except UnsupportedVersion:
            asked = [MetadataRequestTopic(name=name) for name in wanted]
            response = await self.request(MetadataRequest(topics=asked, allow_auto_topic_creation=False))
            topics = response.topics
        found: dict[str, TopicDescription | KafkaError] = {}
        for topic in topics:
            partitions = {p.partition_index: partition_info(p) for p in topic.partitions}
            before = found.get(topic.name)
            if isinstance(before, TopicDescription):  # began on the page before
                partitions = before.partitions | partitions
            found[topic.name] = failure(topic, f"topic {topic.name!r}") or TopicDescription(
                topic.name, Uuid(topic.topic_id), topic.is_internal, dict(sorted(partitions.items()))
            )
        return {name: found[name] for name in wanted if name in found}

    async def _describe_page_by_page(self, names: Sequence[str]) -> list[Any]:
        topics: list[Any] = []
        cursor: Cursor | None = None
        while True:
            # Sorted as the broker goes through them: what comes before the cursor has been described.
            left = sorted(name for name in names if cursor is None or name >= cursor.topic_name)
            request = DescribeTopicPartitionsRequest(
                topics=[TopicRequest(name=name) for name in left], cursor=cursor
            )
            response = await self.request(request)
            topics += response.topics
            if response.next_cursor is None:
                return topics
            if cursor is not None and _place(response.next_cursor) <= _place(cursor):
                raise ProtocolError("DescribeTopicPartitions does not come to an end")
            cursor = response.next_cursor

    # -- configurations -------------------------------------------------------------------------------

    async def describe_configs(
        self,
        resources: Iterable[ConfigResource],
        *,
        keys: Sequence[str] | None = None,
        synonyms: bool = False,
        documentation: bool = False,
    ) -> dict[ConfigResource, dict[str, ConfigEntry] | KafkaError]:
        """What is set and in force; `keys` narrows it."""
        results: dict[ConfigResource, dict[str, ConfigEntry] | KafkaError] = {}
        for target, group in _by_target(resources).items():
            request = DescribeConfigsRequest(
                resources=[
                    DescribeConfigsResource(
                        resource_type=resource.resource_type,
                        resource_name=resource.name,
                        configuration_keys=None if keys is None else list(keys),
                    )
                    for resource in group
                ],
                include_synonyms=synonyms,
                include_documentation=documentation,
            )
            response = await self.request(request, target)
            for result in response.results:
                resource = ConfigResource(ResourceType(result.resource_type), result.resource_name)
                entries = {config.name: _config_entry(config) for config in result.configs}
                results[resource] = failure(result, describe_resource(resource)) or entries
        return results

    async def incremental_alter_configs(
        self, changes: Mapping[ConfigResource, Sequence[ConfigChange]], *, validate_only: bool = False
    ) -> dict[ConfigResource, KafkaError | None]:
        """Change single keys (KIP-339)."""
        results: dict[ConfigResource, KafkaError | None] = {}
        for target, group in _by_target(changes).items():
            request = IncrementalAlterConfigsRequest(
                resources=[
                    IncrementalAlterConfigsResource(
                        resource_type=resource.resource_type,
                        resource_name=resource.name,
                        configs=[
                            IncrementalAlterableConfig(name=name, config_operation=operation, value=value)
                            for name, value, operation in changes[resource]
                        ],
                    )
                    for resource in group
                ],
                validate_only=validate_only,
            )
            response = await self.request(request, target, error_of=moved_controller("responses"))
            for result in response.responses:
                resource = ConfigResource(ResourceType(result.resource_type), result.resource_name)
                results[resource] = failure(result, describe_resource(resource))
        return results

    async def list_config_resources(self, types: Iterable[ResourceType] = ()) -> list[ConfigResource]:
        """Which resources have a configuration of their own (KIP-1142); no types means all of them."""
        response = await self.request(ListConfigResourcesRequest(resource_types=list(types)))
        error = failure(response, "the resources cannot be listed")
        if error is not None:
            raise error
        return [
            ConfigResource(ResourceType(r.resource_type), r.resource_name) for r in response.config_resources
        ]

    # -- the cluster ----------------------------------------------------------------------------------

    async def describe_cluster(self) -> ClusterDescription:
        response = await self.request(DescribeClusterRequest(include_cluster_authorized_operations=False))
        error = failure(response, "the cluster cannot be described")
        if error is not None:
            raise error
        nodes = [Node(b.broker_id, b.host, b.port, b.rack) for b in response.brokers]
        return ClusterDescription(response.cluster_id, response.controller_id, sorted(nodes))

    async def describe_quorum(self) -> QuorumDescription:
        """Who votes on the metadata log, who leads and how far each has come (KIP-595)."""
        asked = DescribeQuorumRequestTopicData(
            topic_name=_METADATA_TOPIC, partitions=[DescribeQuorumRequestPartitionData(partition_index=0)]
        )
        response = await self.request(DescribeQuorumRequest(topics=[asked]))
        answers = [response, *(p for topic in response.topics for p in topic.partitions)]
        for answer in answers:
            error = failure(answer, "the quorum cannot be described")
            if error is not None:
                raise error
        quorum = answers[1]
        voters, observers = (
            [QuorumReplica(each.replica_id, each.log_end_offset) for each in replicas]
            for replicas in (quorum.current_voters, quorum.observers)
        )
        return QuorumDescription(
            quorum.leader_id, quorum.leader_epoch, quorum.high_watermark, voters, observers
        )

    async def describe_log_dirs(
        self, brokers: Iterable[int] | None = None
    ) -> dict[int, list[LogDirDescription] | KafkaError]:
        """The log directories of brokers (all that are known by default) and what lies in them."""
        results: dict[int, list[LogDirDescription] | KafkaError] = {}
        for broker in sorted(self.core.metadata.nodes) if brokers is None else brokers:
            response = await self.request(DescribeLogDirsRequest(topics=None), broker)
            error = failure(response, f"broker {broker}")
            results[broker] = error or [_log_dir(result) for result in response.results]
        return results

    # -- partitions -----------------------------------------------------------------------------------

    async def delete_records(
        self, before: Mapping[TopicPartition, int], *, timeout_ms: int = 30_000
    ) -> dict[TopicPartition, int | KafkaError]:
        """Forget what lies below an offset (-1: below the high watermark); the value is the new beginning."""
        return await self.ask_leaders(before, delete_records_question(before, timeout_ms))

    async def describe_producers(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, list[ActiveProducer] | KafkaError]:
        """Which producers the leaders remember (KIP-664)."""
        return await self.ask_leaders(partitions, transactions.producers_question())


def delete_records_question(before: Mapping[TopicPartition, int], timeout_ms: int) -> Question:
    """Forget what lies below offsets; results are the new beginnings."""

    def build(partitions: list[TopicPartition]) -> DeleteRecordsRequest:
        return DeleteRecordsRequest(
            topics=[
                DeleteRecordsTopic(
                    name=topic,
                    partitions=[
                        DeleteRecordsPartition(partition_index=p, offset=before[TopicPartition(topic, p)])
                        for p in numbers
                    ],
                )
                for topic, numbers in by_topic(partitions)
            ],
            timeout_ms=timeout_ms,
        )

    def parse(response: Any) -> Iterable[tuple[TopicPartition, int, Any]]:
        for topic in response.topics:
            for p in topic.partitions:
                yield TopicPartition(topic.name, p.partition_index), p.error_code, p.low_watermark

    return Question(DeleteRecordsRequest, build, parse)


def describe_resource(resource: ConfigResource) -> str:
    kind = resource.resource_type.name.lower().replace("_", " ")
    return f"{kind} {resource.name!r}" if resource.name else f"the default of every {kind}"


def _by_target(resources: Iterable[ConfigResource]) -> dict[Target, list[ConfigResource]]:
    """Resources of one broker go to that broker, others to anyone."""
    grouped: dict[Target, list[ConfigResource]] = {}
    for resource in resources:
        on_broker = resource.resource_type in _ON_ONE_BROKER and resource.name.lstrip("-").isdecimal()
        grouped.setdefault(int(resource.name) if on_broker else To.ANY, []).append(resource)
    return grouped


def _creatable(topic: NewTopic) -> CreatableTopic:
    by_hand = bool(topic.assignments)
    return CreatableTopic(
        name=topic.name,
        num_partitions=-1 if by_hand else topic.num_partitions,
        replication_factor=-1 if by_hand else topic.replication_factor,
        assignments=[
            CreatableReplicaAssignment(partition_index=partition, broker_ids=list(brokers))
            for partition, brokers in topic.assignments.items()
        ],
        configs=[CreatableTopicConfig(name=name, value=value) for name, value in topic.configs.items()],
    )


def _config_entry(config: Any) -> ConfigEntry:
    known = 0 <= config.config_type < len(CONFIG_TYPES)
    return ConfigEntry(
        config.name,
        config.value,
        ConfigSource.of(config.config_source),
        config.read_only,
        config.is_sensitive,
        CONFIG_TYPES[config.config_type] if known else CONFIG_TYPES[0],
        config.documentation,
        tuple(ConfigSynonym(s.name, s.value, ConfigSource.of(s.source)) for s in config.synonyms),
    )


def _log_dir(result: Any) -> LogDirDescription:
    replicas = {
        (topic.name, p.partition_index): ReplicaInfo(p.partition_size, p.offset_lag, p.is_future_key)
        for topic in result.topics
        for p in topic.partitions
    }
    error = failure(result, result.log_dir)
    return LogDirDescription(result.log_dir, result.total_bytes, result.usable_bytes, replicas, error)


def _place(cursor: Cursor) -> tuple[str, int]:
    return cursor.topic_name, cursor.partition_index
