"""Electing leaders on request, and by itself: preferred leaders, and unclean ones where a topic permits them.

Rules: pure decisions over an image.
"""

from ottla.controller.partition_change import Election
from ottla.controller.result import OK, ApiError, Result, check_record_count, standard_error
from ottla.controller.rules import ClusterRules
from ottla.metadata.records import MetadataRecord
from ottla.model.errors import ErrorCode, KafkaError
from ottla.wire.messages import replication as m

PREFERRED, UNCLEAN = 0, 1
MAX_ELECTIONS_PER_IMBALANCE = 1_000


def elect_leaders(rules: ClusterRules, request: m.ElectLeadersRequest) -> Result[m.ElectLeadersResponse]:
    """Elects leaders of the partitions named; of all that need one if none are."""
    if request.election_type not in (PREFERRED, UNCLEAN):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown election type {request.election_type}")
    records: list[MetadataRecord] = []
    results = []
    for topic, numbers in _asked(rules, request):
        outcomes = [(n, _elect(rules, topic, n, request.election_type, records)) for n in numbers]
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
    return Result(m.ElectLeadersResponse(replica_election_results=results), records)


def _asked(rules: ClusterRules, request: m.ElectLeadersRequest) -> list[tuple[str, list[int]]]:
    if request.topic_partitions is None:
        return [(name, list(topic.partitions)) for name, topic in rules.image.topics_by_name.items()]
    return [(topic.topic, list(topic.partitions)) for topic in request.topic_partitions]


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


def balance_leaders(rules: ClusterRules) -> Result[bool]:
    """Gives partitions back to their preferred leaders; True if there is more to do."""
    records: list[MetadataRecord] = []
    for topic, number, partition in rules.image.partitions():
        if partition.leader == partition.preferred_replica:
            continue
        change = rules.change(topic, number, partition)
        change.election = Election.PREFERRED
        record = change.build()
        if record is not None:
            records.append(record)
        if len(records) >= MAX_ELECTIONS_PER_IMBALANCE:
            return Result(True, records)
    return Result(False, records)


def elect_unclean_leaders(rules: ClusterRules) -> Result[bool]:
    """Finds leaders for partitions without, at the price of records, where their topics permit it."""
    records: list[MetadataRecord] = []
    for topic, number, _ in rules.partitions_without_leader():
        if rules.unclean_election_enabled(topic):
            _elect(rules, topic.name, number, UNCLEAN, records)
        if len(records) >= MAX_ELECTIONS_PER_IMBALANCE:
            return Result(True, records)
    return Result(False, records)
