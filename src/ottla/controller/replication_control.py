"""Kafka's ReplicationControlManager, as far as partitions go (for topics see topics.py).

AlterPartition: a leader reports who is in sync (KIP-497, KIP-704, KIP-903); epochs decide whose view is the newer one.
Elections, on request and by the controller itself: preferred leaders, and unclean ones where a topic permits them.
Reassignments: moving partitions to other brokers (KIP-455). A move is replicas, adding and removing in the partition's
own state, and ends by itself when an AlterPartition shows that those added are in sync (partition_change_builder.py).

Rules: pure decisions over an image.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ottla.controller.partition_change_builder import Election
from ottla.controller.result import (
    ITEMS_PER_STEP,
    OK,
    ApiError,
    ControllerResult,
    RequestContext,
    check_record_count,
    error_of,
    standard_error,
)
from ottla.controller.rules import ClusterRules
from ottla.controller.topics import check_manual_assignment
from ottla.metadata.image import ClusterImage
from ottla.metadata.records import NO_LEADER_CHANGE, MetadataRecord, PartitionChangeRecord
from ottla.metadata.registrations import LeaderRecoveryState, PartitionRegistration, TopicImage
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.time_slice import Steps
from ottla.wire.messages.nodes import replication as m

# ElectLeadersRequest.election_type.
PREFERRED, UNCLEAN = 0, 1


def alter_partition(
    rules: ClusterRules, request: m.AlterPartitionRequest, context: RequestContext
) -> Steps[ControllerResult[m.AlterPartitionResponse]]:
    """Takes over the in-sync sets that leaders report."""
    if not request.topics:
        return ControllerResult(m.AlterPartitionResponse(topics=[]))
    rules.check_broker_epoch(request.broker_id, request.broker_epoch)
    records: list[MetadataRecord] = []
    topics = []
    for asked_topic in request.topics:
        topic = rules.image.topic_by_id(asked_topic.topic_id)
        partitions = []
        for number, asked in enumerate(asked_topic.partitions):
            partitions.append(_alter_isr(rules, request.broker_id, topic, asked, context, records))
            if number % ITEMS_PER_STEP == 0:
                yield
        topics.append(m.AlterPartitionResponseTopicData(topic_id=asked_topic.topic_id, partitions=partitions))
    return ControllerResult(m.AlterPartitionResponse(topics=topics), records)


def _alter_isr(
    rules: ClusterRules,
    broker_id: int,
    topic: TopicImage | None,
    asked: m.AlterPartitionRequestPartitionData,
    context: RequestContext,
    records: list[MetadataRecord],
) -> m.AlterPartitionResponsePartitionData:
    if topic is None:
        return _refused(asked, ErrorCode.UNKNOWN_TOPIC_ID)
    partition = topic.partitions.get(asked.partition_index)
    if partition is None:
        return _refused(asked, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    isr = _new_isr(asked, context)
    error = _epoch_error(broker_id, partition, asked) or _isr_error(rules, partition, asked, isr)
    if error is not None:
        return _refused(asked, error)
    change = rules.allowing_unclean(rules.change(topic, asked.partition_index, partition), topic)
    change.isr = tuple(member.broker_id for member in isr)
    change.leader_recovery_state = asked.leader_recovery_state
    record = change.build()
    if record is not None:
        records.append(record)
        partition = partition.merge(record)
        if record.leader not in (broker_id, NO_LEADER_CHANGE):
            # The change has ended a reassignment that leaves the leader out: it must look again.
            return _refused(asked, ErrorCode.NEW_LEADER_ELECTED)
    return _current(asked.partition_index, partition)


def _new_isr(asked: m.AlterPartitionRequestPartitionData, context: RequestContext) -> list[m.BrokerState]:
    if context.api_version >= 3:
        return asked.new_isr_with_epochs
    return [m.BrokerState(broker_id=broker_id) for broker_id in asked.new_isr]


def _epoch_error(
    broker_id: int, partition: PartitionRegistration, asked: m.AlterPartitionRequestPartitionData
) -> ErrorCode | None:
    # A leader that knows more than this controller has heard from a newer one.
    if asked.leader_epoch > partition.leader_epoch or asked.partition_epoch > partition.partition_epoch:
        return ErrorCode.NOT_CONTROLLER
    if asked.leader_epoch < partition.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if broker_id != partition.leader:
        return ErrorCode.INVALID_REQUEST
    if asked.partition_epoch < partition.partition_epoch:
        return ErrorCode.INVALID_UPDATE_VERSION
    return None


def _isr_error(
    rules: ClusterRules,
    partition: PartitionRegistration,
    asked: m.AlterPartitionRequestPartitionData,
    isr: list[m.BrokerState],
) -> ErrorCode | None:
    ids = [member.broker_id for member in isr]
    recovering = asked.leader_recovery_state == LeaderRecoveryState.RECOVERING
    if not recovering and asked.leader_recovery_state != LeaderRecoveryState.RECOVERED:
        # In the log it would be the end of every node of Kafka's that reads it.
        return ErrorCode.INVALID_REQUEST
    if not ids or len(set(ids)) != len(ids) or not set(ids) <= set(partition.replicas):
        return ErrorCode.INVALID_REQUEST
    if partition.leader not in ids or (recovering and len(ids) > 1):
        return ErrorCode.INVALID_REQUEST
    if recovering and partition.leader_recovery_state == LeaderRecoveryState.RECOVERED:
        return ErrorCode.INVALID_REQUEST
    if not all(_eligible(rules, partition, member) for member in isr):
        return ErrorCode.INELIGIBLE_REPLICA
    return None


def _eligible(rules: ClusterRules, partition: PartitionRegistration, member: m.BrokerState) -> bool:
    """Only a broker that is up, in the life the leader knows, may join an ISR.

    And only with a directory: a fetch that was under way when that failed would bring the replica back. Kafka takes it.
    """
    broker = rules.image.brokers.get(member.broker_id)
    if broker is None or not broker.active:
        return False
    if not broker.has_online_directory(partition.directory(member.broker_id)):
        return False
    return member.broker_epoch in (-1, broker.epoch)


def _refused(
    asked: m.AlterPartitionRequestPartitionData, error: ErrorCode
) -> m.AlterPartitionResponsePartitionData:
    return m.AlterPartitionResponsePartitionData(
        partition_index=asked.partition_index,
        error_code=error,
        leader_id=0,
        leader_epoch=0,
        isr=[],
        partition_epoch=0,
    )


def _current(number: int, partition: PartitionRegistration) -> m.AlterPartitionResponsePartitionData:
    return m.AlterPartitionResponsePartitionData(
        partition_index=number,
        leader_id=partition.leader,
        leader_epoch=partition.leader_epoch,
        isr=list(partition.isr),
        leader_recovery_state=partition.leader_recovery_state,
        partition_epoch=partition.partition_epoch,
    )


# --- elections


Asked = list[tuple[str, list[int]]]


def elect_leaders(
    rules: ClusterRules, request: m.ElectLeadersRequest, asked: Asked | None = None
) -> Steps[ControllerResult[m.ElectLeadersResponse]]:
    """Elects leaders of the partitions named; of all that need one if none are. `asked`: of these of them alone."""
    if request.election_type not in (PREFERRED, UNCLEAN):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown election type {request.election_type}")
    records: list[MetadataRecord] = []
    results = []
    for topic, numbers in asked_elections(rules.image, request) if asked is None else asked:
        outcomes = []
        for n in numbers:
            outcomes.append((n, _elect(rules, topic, n, request.election_type, records)))
            yield
        if request.topic_partitions is None:
            outcomes = [(n, e) for n, e in outcomes if e.code != ErrorCode.ELECTION_NOT_NEEDED]
        results.append(
            m.ReplicaElectionResult(
                topic=topic,
                partition_result=[
                    m.PartitionResult(partition_id=n, error_code=e.code, error_message=e.message)
                    for n, e in outcomes
                ],
            )
        )
    check_record_count(records)
    return ControllerResult(m.ElectLeadersResponse(replica_election_results=results), records)


def asked_elections(image: ClusterImage, request: m.ElectLeadersRequest) -> Asked:
    """The partitions that a request names; all there are if it names none."""
    if request.topic_partitions is None:
        return [(name, list(topic.partitions)) for name, topic in image.topics_by_name.items()]
    return [(topic.topic, list(topic.partitions)) for topic in request.topic_partitions]


def elections_in_pieces(asked: Asked, size: int) -> Iterator[Asked]:
    """The same, not more than so many partitions at a time."""
    piece: Asked = []
    room = size
    for topic, numbers in asked:
        for begin in range(0, max(len(numbers), 1), size):
            some = numbers[begin : begin + size]
            if piece and len(some) > room:
                yield piece
                piece, room = [], size
            piece.append((topic, some))
            room -= len(some)
    if piece:
        yield piece


def joined_elections(responses: Sequence[m.ElectLeadersResponse]) -> m.ElectLeadersResponse:
    """The answers to the pieces, as one."""
    results: dict[str, m.ReplicaElectionResult] = {}
    for response in responses:
        for result in response.replica_election_results:
            known = results.setdefault(result.topic, result)
            if known is not result:
                known.partition_result.extend(result.partition_result)
    return m.ElectLeadersResponse(replica_election_results=list(results.values()))


def _elect(
    rules: ClusterRules, name: str, number: int, election_type: int, records: list[MetadataRecord]
) -> ApiError:
    topic = rules.image.topic(name)
    if topic is None:
        return ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {name}")
    partition = topic.partitions.get(number)
    if partition is None:
        return ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {name}-{number}")
    preferred = election_type == PREFERRED
    has_one = partition.leader == partition.preferred_replica if preferred else partition.has_leader
    if has_one:
        return standard_error(ErrorCode.ELECTION_NOT_NEEDED)
    change = rules.change(topic, number, partition)
    change.election = Election.PREFERRED if preferred else Election.UNCLEAN
    record = change.build()
    if record is None:
        return standard_error(
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
            if preferred
            else ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
        )
    records.append(record)
    return OK


def balance_leaders(rules: ClusterRules) -> Steps[ControllerResult[None]]:
    """Gives partitions back to their preferred leaders."""
    records: list[MetadataRecord] = []
    for piece in rules.pieces():
        yield
        if not rules.has_room(records):
            break
        for topic, number, partition in rules.imbalanced_partitions(piece):
            change = rules.change(topic, number, partition)
            change.election = Election.PREFERRED
            record = change.build()
            if record is not None:
                records.append(record)
    return _elected(rules, records)


def elect_unclean_leaders(rules: ClusterRules) -> Steps[ControllerResult[None]]:
    """Finds leaders for partitions without, at the price of records, where their topics permit it."""
    records: list[MetadataRecord] = []
    for piece in rules.pieces():
        yield
        if not rules.has_room(records):
            break
        for topic, number, _ in rules.leaderless_partitions(among=piece):
            if rules.unclean_election_enabled(topic):
                _elect(rules, topic.name, number, UNCLEAN, records)
    return _elected(rules, records)


@dataclass(slots=True)
class RepairProgress:
    """How far a repair in slices has come: this many partitions need nothing, and whether others did."""

    settled: int = 0
    has_changed: bool = False


def repair_partitions(rules: ClusterRules, progress: RepairProgress) -> Steps[ControllerResult[None]]:
    """Whoever is not up leaves the ISR, and who can be led is: what a change of a broker has left to do.

    It rests on the image alone, so that a controller can finish what another has begun. A slice goes on where the one
    before it has ended, and looks again at what that one has changed; as topics may have come and gone meanwhile, the
    last round is one over everything in which nothing is left to do.
    """
    records: list[MetadataRecord] = []
    while True:
        for piece in rules.pieces(progress.settled):
            yield
            records += rules.repairs(piece)
            if not records:
                progress.settled += len(piece)
            elif not rules.has_room(records):
                break
        if records:
            progress.has_changed = True
            return ControllerResult(None, records, more=True)
        if not progress.has_changed:
            return ControllerResult(None)
        progress.settled, progress.has_changed = 0, False


def _elected(rules: ClusterRules, records: list[MetadataRecord]) -> ControllerResult[None]:
    return ControllerResult(None, records, more=not rules.has_room(records))


# --- reassignments


def alter_partition_reassignments(
    rules: ClusterRules, request: m.AlterPartitionReassignmentsRequest
) -> Steps[ControllerResult[m.AlterPartitionReassignmentsResponse]]:
    """Begins, changes or calls off moves."""
    if not request.topics:
        return ControllerResult(m.AlterPartitionReassignmentsResponse(error_message="", responses=[]))
    records: list[MetadataRecord] = []
    responses = []
    for topic in request.topics:
        partitions = []
        for number, asked in enumerate(topic.partitions):
            if number % ITEMS_PER_STEP == 0:
                yield
            error = OK
            try:
                record = _reassign(rules, topic.name, asked, request.allow_replication_factor_change)
                if record is not None:
                    records.append(record)
            except KafkaError as refusal:
                error = error_of(refusal)
            partitions.append(
                m.ReassignablePartitionResponse(
                    partition_index=asked.partition_index, error_code=error.code, error_message=error.message
                )
            )
        responses.append(m.ReassignableTopicResponse(name=topic.name, partitions=partitions))
    check_record_count(records)
    response = m.AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_message=None,
        responses=responses,
    )
    return ControllerResult(response, records, atomic=True)


def _reassign(
    rules: ClusterRules, name: str, asked: m.ReassignablePartition, allow_factor_change: bool
) -> PartitionChangeRecord | None:
    topic = rules.image.topic(name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {name}.")
    partition = topic.partitions.get(asked.partition_index)
    if partition is None:
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"Unable to find partition {name}:{asked.partition_index}.",
        )
    if asked.replicas is None:
        return _cancel(rules, topic, asked.partition_index, partition)
    check_manual_assignment(rules, asked.replicas, None)
    if not allow_factor_change:
        _check_factor_unchanged(partition, len(asked.replicas))
    return _move(rules, topic, asked.partition_index, partition, asked.replicas)


def _cancel(
    rules: ClusterRules, topic: TopicImage, number: int, partition: PartitionRegistration
) -> PartitionChangeRecord | None:
    if not partition.reassigning:
        raise KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, None)
    replicas = [r for r in partition.replicas if r not in partition.adding_replicas]
    isr = [r for r in partition.isr if r not in partition.adding_replicas]
    if not replicas:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "Invalid replica assignment: addingReplicas contains all replicas.",
        )
    if not isr:
        if not rules.unclean_election_enabled(topic):
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Unable to revert partition assignment for {topic.name}:{number} because it would require an "
                "unclean leader election.",
            )
        # With ELR, who is eligible stays so, and if need be an unclean election says what it is. Kafka takes the first.
        isr = [] if rules.image.elr_enabled else [replicas[0]]
    change = rules.allowing_unclean(rules.change(topic, number, partition), topic)
    change.isr, change.replicas, change.removing, change.adding = isr, replicas, (), ()
    return change.build()


def _move(
    rules: ClusterRules,
    topic: TopicImage,
    number: int,
    partition: PartitionRegistration,
    target: list[int],
) -> PartitionChangeRecord | None:
    # Kafka leaves the lists of a move that is under way where the new one has nothing for them: what it no longer adds
    # is then waited for and removed at once, for ever, and what it removes goes although it is wanted again.
    removing = set(partition.replicas) - set(target)
    adding = (set(target) - set(partition.replicas)) | (set(target) & set(partition.adding_replicas))
    change = rules.change(topic, number, partition)
    change.replicas = [*target, *sorted(removing)]
    if removing != set(partition.removing_replicas):
        change.removing = sorted(removing)
    if adding != set(partition.adding_replicas):
        change.adding = sorted(adding)
    return change.build()


def _check_factor_unchanged(partition: PartitionRegistration, target: int) -> None:
    current = len(
        {*partition.replicas, *partition.adding_replicas} - set(partition.removing_replicas)
        if partition.reassigning
        else partition.replicas
    )
    if current != target:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The replication factor is changed from {current} to {target}",
        )


def list_partition_reassignments(
    image: ClusterImage, request: m.ListPartitionReassignmentsRequest
) -> Steps[m.ListPartitionReassignmentsResponse]:
    """The moves under way, of all topics or of those named."""
    topics = []
    for topic, numbers in _asked_reassignments(image, request):
        ongoing = []
        for number in numbers:
            partition = topic.partitions.get(number)
            if partition is not None and partition.reassigning:
                ongoing.append(
                    m.OngoingPartitionReassignment(
                        partition_index=number,
                        replicas=list(partition.replicas),
                        adding_replicas=list(partition.adding_replicas),
                        removing_replicas=list(partition.removing_replicas),
                    )
                )
                if len(ongoing) % ITEMS_PER_STEP == 0:
                    yield
        if ongoing:
            topics.append(m.OngoingTopicReassignment(name=topic.name, partitions=ongoing))
        yield
    return m.ListPartitionReassignmentsResponse(error_message=None, topics=topics)


def _asked_reassignments(
    image: ClusterImage, request: m.ListPartitionReassignmentsRequest
) -> list[tuple[TopicImage, list[int]]]:
    if request.topics is None:
        return [(topic, list(topic.partitions)) for topic in image.topics_by_name.values()]
    found = [(image.topic(asked.name), asked.partition_indexes) for asked in request.topics]
    return [(topic, list(numbers)) for topic, numbers in found if topic is not None]
