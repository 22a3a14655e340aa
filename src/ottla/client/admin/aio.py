"""The admin client: topics, partitions, configurations, offsets, records, directories; groups and transactions.

Operations on several things return a dict with, for each, its value or the KafkaError that befell it; an error
of the whole operation is raised. `request` (from AsyncClient) sends anything else there is no method for.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ottla.client.admin.groups import GroupAdmin
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
    FeatureDescription,
    LogDirDescription,
    NewTopic,
    OpenTransaction,
    QuorumDescription,
    QuorumReplica,
    ReplicaInfo,
    ResourceType,
    TopicDescription,
    TopicListing,
    TransactionDescription,
    TransactionListing,
)
from ottla.client.config import AdminConfig
from ottla.client.lookups import Question
from ottla.client.metadata import partition_info
from ottla.client.network import ErrorOf, Target, To, transaction_coordinator
from ottla.client.offsets import by_topic
from ottla.client.transaction import messages
from ottla.model.errors import ErrorCode, KafkaError, error_of
from ottla.model.ids import TopicPartition, Uuid
from ottla.net.connection import API_VERSIONS_AT_MOST, SOFTWARE_NAME
from ottla.net.peers import Node
from ottla.wire.messages.api_versions import ApiVersionsRequest
from ottla.wire.messages.cluster import DescribeClusterRequest
from ottla.wire.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    ListConfigResourcesRequest,
)
from ottla.wire.messages.features import FeatureUpdateKey, UpdateFeaturesRequest
from ottla.wire.messages.log_dirs import DescribeLogDirsRequest
from ottla.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.wire.messages.producers import DescribeProducersRequest
from ottla.wire.messages.producers import TopicRequest as ProducersTopic
from ottla.wire.messages.raft import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
)
from ottla.wire.messages.topics import (
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
from ottla.wire.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)

# ----------------------------------------
# Questions the admin client asks the leaders of partitions (see ottla.client.lookups).


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


# ----------------------------------------
# The admin client's calls for transactions (KIP-664) and for the cluster's features (KIP-584).


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

        async def ask(node: str) -> list[TransactionListing]:
            return await self.ask(
                messages.list_transactions(
                    int(node),
                    states=states,
                    producer_ids=producer_ids,
                    min_duration_ms=min_duration_ms,
                    id_pattern=id_pattern,
                )
            )

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
            found = await self.ask(messages.describe_transaction(transactional_id))
            node = self.core.coordinators.known(transaction_coordinator(transactional_id))
            return found if node is None else found._replace(coordinator=node)

        return await self._each(transactional_ids, ask)

    async def fence_producers(self, transactional_ids: Iterable[str]) -> dict[str, KafkaError | None]:
        """Take transactional ids over: what is open is aborted, whoever has them is fenced."""

        async def ask(transactional_id: str) -> None:
            await self.ask(messages.init_producer_id(transactional_id, self.config.request_timeout_ms))

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
        response = await self.request(request, To.ANY, at_most=API_VERSIONS_AT_MOST)
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
        response = await self.request(request, To.CONTROLLER)
        code = error_of(response.error_code)
        if code is not None:
            raise KafkaError(code, response.error_message or code.name)
        for result in response.results:
            failed = error_of(result.error_code)
            if failed is not None:
                raise KafkaError(failed, f"{result.feature}: {result.error_message or failed.name}")


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


class AsyncAdmin(TransactionAdmin):
    """See the module."""

    CONFIG = AdminConfig

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
        wanted = [MetadataRequestTopic(name=name) for name in names]
        if not wanted:
            return {}
        response = await self.request(MetadataRequest(topics=wanted, allow_auto_topic_creation=False))
        return {
            topic.name: failure(topic, f"topic {topic.name!r}")
            or TopicDescription(
                topic.name,
                Uuid(topic.topic_id),
                topic.is_internal,
                {
                    p.partition_index: partition_info(p)
                    for p in sorted(topic.partitions, key=_partition_index)
                },
            )
            for topic in response.topics
        }

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
        return await self.ask_leaders(partitions, producers_question())


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


def _partition_index(partition: Any) -> int:
    return int(partition.partition_index)
