"""What every API asks for, in one table, and the seam by which requests are judged (AuthHelper).

Purpose: ACCESS declares for each API which operation on which resource its sender must be allowed, as Kafka's
documentation does under "Operations and Resources on Protocols" (where that and 4.3.1 differ, as 4.3.1 does); a route
without an entry is not registered. What is asked of a request as a whole, which is always something of the cluster, the
Dispatcher judges before the handler is called, and answers with the API's own form of the error. What depends on the
topics, groups and ids that a request names is judged by its handler (Context.authorize, Context.authorized_names,
Context.require).

Rules: without an authorizer everybody may do everything, at the cost of finding that there is none. A forwarded request
is judged for the principal in its envelope, the envelope itself for the node that sends it. A broker judges too what it
passes on to the controller: whoever is refused here would be refused there, and the way to a controller of this process
leads past no other judge. Decisions about a connection are kept with it until the rules change.

Owned by the node's loop.
"""

import logging
from collections.abc import Callable, Iterable
from time import monotonic
from typing import TYPE_CHECKING, Final, NamedTuple
from weakref import WeakKeyDictionary

from ottla.model.errors import KafkaError
from ottla.model.ids import Uuid
from ottla.security.acls import (
    AUTHORIZATION_ERRORS,
    CLUSTER_NAME,
    SUPPORTED_OPERATIONS,
    AclOperation,
    ResourceType,
    operation_bits,
)
from ottla.security.authorizer import Authorizer, Decisions
from ottla.security.principal import KafkaPrincipal, address_bytes, host_address
from ottla.server.network.connection import Connection, Listener
from ottla.wire.registry import APIS

if TYPE_CHECKING:
    from ottla.metadata.image import ClusterImage
    from ottla.replication.replica_manager import ReplicaManager
    from ottla.security.audit import AuditLog
    from ottla.wire.fast.produce import TopicKey

log = logging.getLogger("ottla.authorizer")

# What one line of the log names.
MAX_TOLD_NAMES: Final = 10
MAX_TOLD_NAME_LENGTH: Final = 249
MAX_TOLD_REASON_LENGTH: Final = 1_000
# Lines in a second, whoever asks for what; the others are counted. A client may name another topic in every request, or
# come back after every denial.
MAX_LINES_PER_S: Final = 10

Asked = tuple[AclOperation, ResourceType]


class Access(NamedTuple):
    """What an API asks for."""

    # On the cluster, of everybody who asks; one of them is enough. Judged before the handler.
    cluster: tuple[AclOperation, ...] = ()
    # What its handler judges, by what the request names.
    by_handler: tuple[Asked, ...] = ()


def _cluster(*operations: AclOperation) -> Access:
    return Access(cluster=operations)


def _by_handler(*asked: Asked) -> Access:
    return Access(by_handler=asked)


# Part of finding out who somebody is, or asked only of what is somebody's own.
EVERYBODY: Final = Access()

READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, CLUSTER_ACTION = (
    AclOperation.READ,
    AclOperation.WRITE,
    AclOperation.CREATE,
    AclOperation.DELETE,
    AclOperation.ALTER,
    AclOperation.DESCRIBE,
    AclOperation.CLUSTER_ACTION,
)
DESCRIBE_CONFIGS, ALTER_CONFIGS = AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS
CLUSTER, TOPIC, GROUP, TRANSACTIONAL_ID, USER = (
    ResourceType.CLUSTER,
    ResourceType.TOPIC,
    ResourceType.GROUP,
    ResourceType.TRANSACTIONAL_ID,
    ResourceType.USER,
)

ACCESS: Final[dict[str, Access]] = {
    # --- before anybody is known
    "ApiVersions": EVERYBODY,
    "SaslHandshake": EVERYBODY,
    "SaslAuthenticate": EVERYBODY,
    # --- records
    "Produce": _by_handler((WRITE, TRANSACTIONAL_ID), (WRITE, TOPIC)),
    # Followers need CLUSTER_ACTION, consumers READ.
    "Fetch": _by_handler((CLUSTER_ACTION, CLUSTER), (READ, TOPIC)),
    "ListOffsets": _by_handler((DESCRIBE, TOPIC)),
    "DeleteRecords": _by_handler((DELETE, TOPIC)),
    "OffsetForLeaderEpoch": _by_handler((CLUSTER_ACTION, CLUSTER), (DESCRIBE, TOPIC)),
    "DescribeProducers": _by_handler((READ, TOPIC)),
    # --- topics and configurations
    # CREATE for topics that are made because somebody asks for them; DESCRIBE of the cluster for authorized operations.
    "Metadata": _by_handler((DESCRIBE, TOPIC), (CREATE, CLUSTER), (CREATE, TOPIC), (DESCRIBE, CLUSTER)),
    "DescribeTopicPartitions": _by_handler((DESCRIBE, TOPIC)),
    "CreateTopics": _by_handler((CREATE, CLUSTER), (CREATE, TOPIC), (DESCRIBE_CONFIGS, TOPIC)),
    "DeleteTopics": _by_handler((DELETE, CLUSTER), (DESCRIBE, TOPIC), (DELETE, TOPIC)),
    "CreatePartitions": _by_handler((ALTER, TOPIC)),
    "DescribeConfigs": _by_handler(
        (DESCRIBE_CONFIGS, CLUSTER), (DESCRIBE_CONFIGS, TOPIC), (DESCRIBE_CONFIGS, GROUP)
    ),
    "AlterConfigs": _by_handler((ALTER_CONFIGS, CLUSTER), (ALTER_CONFIGS, TOPIC), (ALTER_CONFIGS, GROUP)),
    # Loggers of a controller ask for CLUSTER_ACTION.
    "IncrementalAlterConfigs": _by_handler(
        (ALTER_CONFIGS, CLUSTER), (ALTER_CONFIGS, TOPIC), (ALTER_CONFIGS, GROUP), (CLUSTER_ACTION, CLUSTER)
    ),
    "ListConfigResources": _cluster(DESCRIBE_CONFIGS),
    # --- groups
    # CLUSTER_ACTION for the coordinators of share partitions.
    "FindCoordinator": _by_handler(
        (DESCRIBE, GROUP), (DESCRIBE, TRANSACTIONAL_ID), (CLUSTER_ACTION, CLUSTER)
    ),
    "JoinGroup": _by_handler((READ, GROUP)),
    "SyncGroup": _by_handler((READ, GROUP)),
    "Heartbeat": _by_handler((READ, GROUP)),
    "LeaveGroup": _by_handler((READ, GROUP)),
    "DescribeGroups": _by_handler((DESCRIBE, GROUP)),
    "ListGroups": _by_handler((DESCRIBE, CLUSTER), (DESCRIBE, GROUP)),
    "DeleteGroups": _by_handler((DELETE, GROUP)),
    "OffsetCommit": _by_handler((READ, GROUP), (READ, TOPIC)),
    "OffsetFetch": _by_handler((DESCRIBE, GROUP), (DESCRIBE, TOPIC)),
    "OffsetDelete": _by_handler((DELETE, GROUP), (READ, TOPIC)),
    "ConsumerGroupHeartbeat": _by_handler((READ, GROUP), (DESCRIBE, TOPIC)),
    "ConsumerGroupDescribe": _by_handler((DESCRIBE, GROUP), (DESCRIBE, TOPIC)),
    "StreamsGroupHeartbeat": _by_handler(
        (READ, GROUP), (DESCRIBE, TOPIC), (CREATE, CLUSTER), (CREATE, TOPIC)
    ),
    "StreamsGroupDescribe": _by_handler((DESCRIBE, GROUP), (DESCRIBE, TOPIC)),
    "ShareGroupHeartbeat": _by_handler((READ, GROUP), (DESCRIBE, TOPIC)),
    "ShareGroupDescribe": _by_handler((DESCRIBE, GROUP), (DESCRIBE, TOPIC)),
    "ShareFetch": _by_handler((READ, GROUP), (READ, TOPIC)),
    "ShareAcknowledge": _by_handler((READ, GROUP), (READ, TOPIC)),
    "DescribeShareGroupOffsets": _by_handler((DESCRIBE, GROUP), (DESCRIBE, TOPIC)),
    "AlterShareGroupOffsets": _by_handler((READ, GROUP), (READ, TOPIC)),
    "DeleteShareGroupOffsets": _by_handler((DELETE, GROUP), (READ, TOPIC)),
    # --- transactions
    # Without a transactional id: IDEMPOTENT_WRITE, or WRITE to any topic.
    "InitProducerId": _by_handler(
        (WRITE, TRANSACTIONAL_ID),
        (AclOperation.TWO_PHASE_COMMIT, TRANSACTIONAL_ID),
        (AclOperation.IDEMPOTENT_WRITE, CLUSTER),
        (WRITE, TOPIC),
    ),
    # Versions from 4 on are the brokers'.
    "AddPartitionsToTxn": _by_handler((CLUSTER_ACTION, CLUSTER), (WRITE, TRANSACTIONAL_ID), (WRITE, TOPIC)),
    "AddOffsetsToTxn": _by_handler((WRITE, TRANSACTIONAL_ID), (READ, GROUP)),
    "TxnOffsetCommit": _by_handler((WRITE, TRANSACTIONAL_ID), (READ, GROUP), (READ, TOPIC)),
    "EndTxn": _by_handler((WRITE, TRANSACTIONAL_ID)),
    "WriteTxnMarkers": _cluster(ALTER, CLUSTER_ACTION),
    "DescribeTransactions": _by_handler((DESCRIBE, TRANSACTIONAL_ID), (DESCRIBE, TOPIC)),
    "ListTransactions": _by_handler((DESCRIBE, TRANSACTIONAL_ID)),
    # --- the cluster, for administrators
    # For authorized operations.
    "DescribeCluster": _by_handler((DESCRIBE, CLUSTER)),
    "DescribeLogDirs": _cluster(DESCRIBE),
    "AlterReplicaLogDirs": _cluster(ALTER),
    "ElectLeaders": _cluster(ALTER),
    "AlterPartitionReassignments": _cluster(ALTER),
    "ListPartitionReassignments": _cluster(DESCRIBE),
    "UpdateFeatures": _cluster(ALTER),
    "UnregisterBroker": _cluster(ALTER),
    "DescribeQuorum": _cluster(DESCRIBE),
    "AddRaftVoter": _cluster(ALTER),
    "RemoveRaftVoter": _cluster(ALTER),
    # --- who may do what, and how much
    "DescribeAcls": _by_handler((DESCRIBE, CLUSTER)),
    "CreateAcls": _by_handler((ALTER, CLUSTER)),
    "DeleteAcls": _by_handler((ALTER, CLUSTER)),
    "DescribeClientQuotas": _cluster(DESCRIBE_CONFIGS),
    "AlterClientQuotas": _cluster(ALTER_CONFIGS),
    "DescribeUserScramCredentials": _cluster(DESCRIBE),
    "AlterUserScramCredentials": _cluster(ALTER),
    # For another owner than whoever asks.
    "CreateDelegationToken": _by_handler((AclOperation.CREATE_TOKENS, USER)),
    # Owners and renewers may, nobody else.
    "RenewDelegationToken": EVERYBODY,
    "ExpireDelegationToken": EVERYBODY,
    # Of others.
    "DescribeDelegationToken": _by_handler(
        (DESCRIBE, ResourceType.DELEGATION_TOKEN), (AclOperation.DESCRIBE_TOKENS, USER)
    ),
    # --- between nodes
    "Vote": _cluster(CLUSTER_ACTION),
    "BeginQuorumEpoch": _cluster(CLUSTER_ACTION),
    "EndQuorumEpoch": _cluster(CLUSTER_ACTION),
    "FetchSnapshot": _cluster(CLUSTER_ACTION),
    "UpdateRaftVoter": _cluster(CLUSTER_ACTION),
    "Envelope": _cluster(CLUSTER_ACTION),
    "AlterPartition": _cluster(CLUSTER_ACTION),
    "BrokerRegistration": _cluster(CLUSTER_ACTION),
    "BrokerHeartbeat": _cluster(CLUSTER_ACTION),
    "ControllerRegistration": _cluster(CLUSTER_ACTION),
    "AllocateProducerIds": _cluster(CLUSTER_ACTION),
    "AssignReplicasToDirs": _cluster(CLUSTER_ACTION),
    "InitializeShareGroupState": _cluster(CLUSTER_ACTION),
    "ReadShareGroupState": _cluster(CLUSTER_ACTION),
    "WriteShareGroupState": _cluster(CLUSTER_ACTION),
    "DeleteShareGroupState": _cluster(CLUSTER_ACTION),
    "ReadShareGroupStateSummary": _cluster(CLUSTER_ACTION),
}

# Where the controller's listener asks for something else.
CONTROLLER_ACCESS: Final[dict[str, Access]] = {
    # It is the metadata log that is fetched there.
    "Fetch": _cluster(CLUSTER_ACTION),
    "DescribeCluster": Access(cluster=(ALTER,), by_handler=((DESCRIBE, CLUSTER),)),
}


def access_of(api_key: int, listener: Listener) -> Access | None:
    """What an API asks for; None if nobody has said so."""
    name = APIS[api_key].name
    if listener is Listener.CONTROLLER and name in CONTROLLER_ACCESS:
        return CONTROLLER_ACCESS[name]
    return ACCESS.get(name)


# --- judging


def decisions_about(authorizer: Authorizer, connection: Connection) -> Decisions:
    """Decisions about whoever is at the other end, as far as they are made; its principal may change."""
    kept = connection.decisions
    if kept is None or kept.authorizer is not authorizer or kept.principal is not connection.principal:
        host = host_address(address_bytes(connection.peer[0]))
        kept = connection.decisions = Decisions(authorizer, connection.principal, host, connection.audit)
    return kept


def decisions_about_forwarded(
    authorizer: Authorizer, principal: KafkaPrincipal, address: bytes, audit: "AuditLog | None" = None
) -> Decisions:
    """Decisions about whoever a broker has forwarded a request for: those who come by one connection are many."""
    return Decisions(authorizer, principal, host_address(address), audit)


def topic_name(
    topic: "TopicKey", replicas: "ReplicaManager", image: Callable[[], "ClusterImage"]
) -> str | None:
    """The name by which a topic is judged; None for an id of which nothing is known, and of which nothing is here."""
    if isinstance(topic, str):
        return topic
    for partition in (replicas.hosted_of(topic) or {}).values():
        return partition.topic_partition.topic
    known = image().topic_by_id(Uuid(topic))
    return None if known is None else known.name


def allowed(
    decisions: Decisions,
    operation: AclOperation,
    resource_type: ResourceType,
    name: str,
    *,
    log_if_denied: bool = True,
    api_key: int | None = None,
) -> bool:
    """One decision; a denial of what was asked for is told of in the log, and which API asked in the audit log."""
    may = decisions.allows(operation, resource_type, name)
    if not may and log_if_denied:
        _audit(decisions, operation, resource_type, name, api_key)
        if decisions.is_news(operation, resource_type, name):
            _tell(decisions, operation, resource_type, [name])
    return may


def allowed_names(
    decisions: Decisions,
    operation: AclOperation,
    resource_type: ResourceType,
    names: Iterable[str],
    *,
    log_if_denied: bool = True,
    api_key: int | None = None,
) -> set[str]:
    """Those of the resources on which it may be done."""
    may: set[str] = set()
    news: list[str] = []
    for name in names:
        if decisions.allows(operation, resource_type, name):
            may.add(name)
        elif log_if_denied:
            _audit(decisions, operation, resource_type, name, api_key)
            if decisions.is_news(operation, resource_type, name):
                news.append(name)
    if news:
        _tell(decisions, operation, resource_type, news)
    return may


def allowed_operations(decisions: Decisions, resource_type: ResourceType, name: str) -> int:
    """Everything that may be done with a resource, as responses say it (KIP-430)."""
    return operation_bits(
        operation
        for operation in SUPPORTED_OPERATIONS[resource_type]
        if decisions.allows(operation, resource_type, name)
    )


def check_access(decisions: Decisions, access: Access, api_key: int) -> None:
    """KafkaError if a request may not be asked at all."""
    *others, last = access.cluster
    if any(decisions.allows(operation, CLUSTER, CLUSTER_NAME) for operation in others):
        return
    if not allowed(decisions, last, CLUSTER, CLUSTER_NAME, api_key=api_key):
        raise KafkaError(AUTHORIZATION_ERRORS[CLUSTER], f"{APIS[api_key].name} needs {last.name} permission.")


def _audit(
    decisions: Decisions,
    operation: AclOperation,
    resource_type: ResourceType,
    name: str,
    api_key: int | None,
) -> None:
    if decisions.audit is not None:
        who = (decisions.principal, decisions.host)
        api = None if api_key is None else APIS[api_key].name
        decisions.audit.denied(
            *(*who, operation, resource_type, name),
            api=api,
            why=lambda: decisions.authorizer.explain(*who, operation, resource_type, name).why,
        )


class _Lines:
    """How many lines the log has had in this second."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._second = 0
        self._written = 0
        self._left_out = 0

    def next(self) -> int | None:
        """May one more be written? Then how many have been left out since the last one; otherwise None."""
        second = int(self._clock())
        if second != self._second:
            self._second, self._written = second, 0
        if self._written >= MAX_LINES_PER_S:
            self._left_out += 1
            return None
        self._written += 1
        left_out, self._left_out = self._left_out, 0
        return left_out


# Of each node of this process, by its authorizer.
_lines: WeakKeyDictionary[Authorizer, _Lines] = WeakKeyDictionary()


def _tell(
    decisions: Decisions, operation: AclOperation, resource_type: ResourceType, names: list[str]
) -> None:
    left_out = _lines.setdefault(decisions.authorizer, _Lines()).next()
    if left_out is None:
        return
    if left_out:
        log.info("%d denials are not told of: there were too many at once", left_out)
    why = decisions.authorizer.explain(
        decisions.principal, decisions.host, operation, resource_type, names[0]
    ).why
    # A client's words may have line ends in them.
    told = ", ".join(ascii(name[:MAX_TOLD_NAME_LENGTH]) for name in names[:MAX_TOLD_NAMES])
    more = f" and {len(names) - MAX_TOLD_NAMES} more" if len(names) > MAX_TOLD_NAMES else ""
    # What only nodes ask for may mean that one of them cannot do its work.
    level = logging.WARNING if operation is CLUSTER_ACTION else logging.INFO
    log.log(
        level,
        "%a from host %s is denied %s on %s %s%s: %s",
        str(decisions.principal)[:MAX_TOLD_NAME_LENGTH],
        decisions.host,
        operation.name,
        resource_type.name,
        told,
        more,
        ascii(why[:MAX_TOLD_REASON_LENGTH])[1:-1],
    )
