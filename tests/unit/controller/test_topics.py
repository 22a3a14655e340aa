"""Topics: created, grown and deleted, or refused with Kafka's codes and sentences."""

import pytest
from tests.unit.controller.support import CONTEXT, Cluster, directory, sources

from ottla.controller import result
from ottla.controller.result import RequestContext
from ottla.controller.topics import create_partitions, create_topics, delete_topics
from ottla.metadata import records as r
from ottla.metadata.image import ResourceType
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import ZERO_UUID
from ottla.model.time_slice import run_to_end
from ottla.wire.messages.admin import topics as m


def topic(name: str = "t", partitions: int = 1, factor: int = 1, **fields: object) -> m.CreatableTopic:
    defaults: dict[str, object] = {"assignments": [], "configs": []}
    return m.CreatableTopic(
        **{
            **defaults,
            "name": name,
            "num_partitions": partitions,
            "replication_factor": factor,
            **fields,
        }
    )


def create(
    cluster: Cluster, *topics: m.CreatableTopic, validate_only: bool = False
) -> list[m.CreatableTopicResult]:
    request = m.CreateTopicsRequest(topics=list(topics), validate_only=validate_only)
    result = run_to_end(create_topics(cluster.rules, request, CONTEXT, sources()))
    cluster.take(result)
    return result.response.topics


def assigned(*replicas: list[int]) -> list[m.CreatableReplicaAssignment]:
    return [m.CreatableReplicaAssignment(partition_index=n, broker_ids=ids) for n, ids in enumerate(replicas)]


def config(name: str, value: str | None) -> m.CreatableTopicConfig:
    return m.CreatableTopicConfig(name=name, value=value)


def test_a_topic_is_created_with_leaders_epochs_and_directories() -> None:
    cluster = Cluster(1)
    (answer,) = create(cluster, topic("t", 3, configs=[config("retention.ms", "5")]))
    assert (answer.error_code, answer.num_partitions, answer.replication_factor) == (0, 3, 1)
    created = cluster.image.topic("t")
    assert created is not None
    assert created.id == answer.topic_id
    assert list(created.partitions) == [0, 1, 2]
    state = created.partitions[2]
    assert (state.replicas, state.isr, state.leader) == ((1,), (1,), 1)
    assert (state.leader_epoch, state.partition_epoch) == (0, 0)
    assert state.directories == (directory(1),)
    assert cluster.image.config(ResourceType.TOPIC, "t") == {"retention.ms": "5"}
    assert answer.configs is not None
    shown = {entry.name: entry for entry in answer.configs}
    assert (shown["retention.ms"].value, shown["retention.ms"].config_source) == ("5", 1)
    assert shown["segment.bytes"].config_source == 5


def test_defaults_stand_for_minus_one() -> None:
    cluster = Cluster(1, 2, num_partitions=4, default_replication_factor=2)
    (answer,) = create(cluster, topic("t", -1, -1))
    assert (answer.num_partitions, answer.replication_factor) == (4, 2)


def test_validating_changes_nothing() -> None:
    cluster = Cluster(1)
    (answer,) = create(cluster, topic("t"), validate_only=True)
    assert answer.error_code == 0
    assert cluster.image.topic("t") is None


@pytest.mark.parametrize(
    ("wanted", "code", "message"),
    [
        (topic("", 1), 17, "Topic name is invalid: the empty string is not allowed"),
        (topic("."), 17, "Topic name is invalid: '.' is not allowed"),
        (topic(".."), 17, "Topic name is invalid: '..' is not allowed"),
        (
            topic("a b"),
            17,
            "Topic name is invalid: 'a b' contains one or more characters other than ASCII alphanumerics, "
            "'.', '_' and '-'",
        ),
        (
            topic("x" * 250),
            17,
            f"Topic name is invalid: the length of '{'x' * 250}' is longer than the max allowed length 249",
        ),
        (topic("here"), 36, "Topic 'here' already exists."),
        (topic("a_b"), 17, "Topic 'a_b' collides with existing topic: a.b"),
        (topic(partitions=0), 37, "Number of partitions was set to an invalid non-positive value."),
        (topic(partitions=-2), 37, "Number of partitions was set to an invalid non-positive value."),
        (topic(factor=0), 38, "Replication factor must be larger than 0, or -1 to use the default value."),
        (
            topic(factor=5),
            38,
            "Unable to replicate the partition 5 time(s): The target replication factor of 5 cannot be "
            "reached because only 2 broker(s) are registered or some brokers have all their log directories "
            "cordoned.",
        ),
        (topic(configs=[config("nonsense", "1")]), 40, "Unknown topic config name: nonsense"),
        (topic(configs=[config("a", None)]), 40, "Null value not supported for topic configs: a"),
        (
            topic(assignments=assigned([1])),
            42,
            "A manual partition assignment was specified, but replication factor was not set to -1.",
        ),
        (
            topic(factor=-1, assignments=assigned([1])),
            42,
            "A manual partition assignment was specified, but numPartitions was not set to -1.",
        ),
        (
            topic(partitions=-1, factor=-1, assignments=assigned([1, 1])),
            39,
            "The manual partition assignment includes the broker 1 more than once.",
        ),
        (
            topic(partitions=-1, factor=-1, assignments=assigned([7])),
            39,
            "The manual partition assignment includes broker 7, but no such broker is registered.",
        ),
        (
            topic(partitions=-1, factor=-1, assignments=assigned([])),
            39,
            "The manual partition assignment includes an empty replica list.",
        ),
        (
            topic(partitions=-1, factor=-1, assignments=assigned([1], [1, 2])),
            39,
            "The manual partition assignment includes a partition with 2 replica(s), but this is not "
            "consistent with previous partitions, which have 1 replica(s).",
        ),
        (
            topic(
                partitions=-1,
                factor=-1,
                assignments=[m.CreatableReplicaAssignment(partition_index=1, broker_ids=[1])],
            ),
            39,
            "partitions should be a consecutive 0-based integer sequence",
        ),
        (topic("__cluster_metadata"), 42, "Creation of internal topic __cluster_metadata is prohibited."),
    ],
)
def test_a_topic_that_cannot_be_is_told_why(wanted: m.CreatableTopic, code: int, message: str) -> None:
    cluster = Cluster(1, 2)
    cluster.add_topic("here", [[1]])
    cluster.add_topic("a.b", [[1]])
    before = cluster.image
    (answer,) = create(cluster, wanted)
    assert (answer.error_code, answer.error_message) == (code, message)
    assert cluster.image is before


def test_a_topic_named_twice_is_not_created() -> None:
    cluster = Cluster(1)
    answers = create(cluster, topic("twice"), topic("once"), topic("twice"))
    assert {a.name: a.error_code for a in answers} == {"once": 0, "twice": ErrorCode.INVALID_REQUEST}
    assert set(cluster.image.topics) == {"once"}


def test_no_broker_up_is_no_place() -> None:
    cluster = Cluster()
    cluster.add_broker(1, fenced=True)
    (answer,) = create(cluster, topic())
    assert answer.error_code == ErrorCode.INVALID_REPLICATION_FACTOR
    assert answer.error_message is not None
    assert "All brokers are currently fenced" in answer.error_message


def test_a_fenced_broker_follows_but_does_not_lead() -> None:
    cluster = Cluster(1)
    cluster.add_broker(2, fenced=True)
    create(cluster, topic("t", 4, 2))
    for _, _, state in cluster.image.partitions():
        assert sorted(state.replicas) == [1, 2]
        assert (state.leader, state.isr) == (1, (1,))


def test_too_many_partitions_at_once_are_refused_as_a_whole() -> None:
    with pytest.raises(KafkaError, match="Excessively large") as error:
        create(Cluster(1), topic("a", 6000), topic("b", 6000))
    assert error.value.code is ErrorCode.POLICY_VIOLATION


def test_a_minimum_isr_of_its_own_clears_the_eligible_replicas() -> None:
    request = m.CreateTopicsRequest(topics=[topic(configs=[config("min.insync.replicas", "1")])])
    records = run_to_end(create_topics(Cluster(1).rules, request, CONTEXT, sources())).records
    kinds = [type(record) for record in records]
    assert kinds == [r.TopicRecord, r.ConfigRecord, r.ClearElrRecord, r.PartitionRecord]


# --- growing


def grow(cluster: Cluster, *topics: m.CreatePartitionsTopic) -> dict[str, tuple[int, str | None]]:
    request = m.CreatePartitionsRequest(topics=list(topics), timeout_ms=1, validate_only=False)
    result = run_to_end(create_partitions(cluster.rules, request, sources()))
    cluster.take(result)
    return {a.name: (a.error_code, a.error_message) for a in result.response.results}


def more(name: str, count: int, assignments: list[list[int]] | None = None) -> m.CreatePartitionsTopic:
    given = None
    if assignments is not None:
        given = [m.CreatePartitionsAssignment(broker_ids=ids) for ids in assignments]
    return m.CreatePartitionsTopic(name=name, count=count, assignments=given)


def test_a_topic_grows() -> None:
    cluster = Cluster(1, 2)
    cluster.add_topic("t", [[1, 2]])
    assert grow(cluster, more("t", 3)) == {"t": (0, None)}
    assert grow(cluster, more("t", 4, [[2, 1]])) == {"t": (0, None)}
    grown = cluster.image.topic("t")
    assert grown is not None
    assert len(grown.partitions) == 4
    assert grown.partitions[3].replicas == (2, 1)
    assert all(len(state.replicas) == 2 for state in grown.partitions.values())


@pytest.mark.parametrize(
    ("wanted", "code", "message"),
    [
        (more("none", 2), 3, None),
        (more("t", 2), 37, "Topic already has 2 partition(s)."),
        (more("t", 1), 37, "The topic t currently has 2 partition(s); 1 would not be an increase."),
        (
            more("t", 4, [[1]]),
            39,
            "Attempted to add 2 additional partition(s), but only 1 assignment(s) were specified.",
        ),
        (
            more("t", 3, [[1, 2]]),
            39,
            "The manual partition assignment includes a partition with 2 replica(s), but this is not "
            "consistent with previous partitions, which have 1 replica(s).",
        ),
    ],
)
def test_a_topic_that_cannot_grow_is_told_why(
    wanted: m.CreatePartitionsTopic, code: int, message: str | None
) -> None:
    cluster = Cluster(1, 2)
    cluster.add_topic("t", [[1], [1]])
    assert grow(cluster, wanted) == {wanted.name: (code, message)}


def test_a_topic_named_twice_does_not_grow() -> None:
    cluster = Cluster(1)
    cluster.add_topic("t", [[1]])
    assert grow(cluster, more("t", 2), more("t", 3)) == {"t": (42, "Duplicate topic name.")}


# --- deleting


def delete(
    cluster: Cluster, *states: m.DeleteTopicState, names: tuple[str, ...] = ()
) -> list[tuple[str | None, bytes, int]]:
    request = m.DeleteTopicsRequest(topics=list(states), topic_names=list(names), timeout_ms=1)
    result = run_to_end(delete_topics(cluster.rules, request, CONTEXT))
    cluster.take(result)
    return [(a.name, a.topic_id, a.error_code) for a in result.response.responses]


def test_topics_are_deleted_by_name_and_by_id() -> None:
    cluster = Cluster(1)
    a, b, c = (cluster.add_topic(name, [[1]]) for name in "abc")
    by_id = m.DeleteTopicState(name=None, topic_id=a)
    by_name = m.DeleteTopicState(name="b", topic_id=ZERO_UUID)
    assert sorted(delete(cluster, by_id, by_name), key=str) == [("a", a, 0), ("b", b, 0)]
    assert delete(cluster, names=("c",)) == [("c", c, 0)]
    assert not cluster.image.topics


def test_what_cannot_be_deleted_is_told() -> None:
    cluster = Cluster(1)
    a = cluster.add_topic("a", [[1]])
    unknown = b"u" * 16
    assert delete(cluster, m.DeleteTopicState(name=None, topic_id=ZERO_UUID)) == [(None, ZERO_UUID, 42)]
    assert delete(cluster, m.DeleteTopicState(name="a", topic_id=a)) == [("a", a, 42)]
    assert delete(cluster, m.DeleteTopicState(name=None, topic_id=unknown)) == [(None, unknown, 100)]
    assert delete(cluster, names=("none",)) == [("none", ZERO_UUID, 3)]
    assert delete(cluster, names=("a", "a")) == [("a", ZERO_UUID, 42)]
    twice = m.DeleteTopicState(name=None, topic_id=a)
    assert delete(cluster, twice, twice) == [(None, a, 42)]
    assert delete(cluster, twice, names=("a",)) == [("a", a, 42)]
    assert set(cluster.image.topics) == {"a"}


def test_deletion_can_be_switched_off() -> None:
    cluster = Cluster(1, delete_topic_enable="false")
    request = m.DeleteTopicsRequest(topic_names=["a"], timeout_ms=1)
    for version, code in ((2, ErrorCode.INVALID_REQUEST), (6, ErrorCode.TOPIC_DELETION_DISABLED)):
        with pytest.raises(KafkaError) as error:
            run_to_end(delete_topics(cluster.rules, request, RequestContext(version)))
        assert error.value.code is code


def test_a_deletion_of_too_many_topics_is_refused_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result, "MAX_RECORDS_PER_USER_OP", 2)
    cluster = Cluster(1)
    for name in ("a", "b", "c"):
        cluster.add_topic(name, [[1]])
    request = m.DeleteTopicsRequest(topics=[m.DeleteTopicState(name=name) for name in ("a", "b", "c")])
    with pytest.raises(KafkaError) as error:
        run_to_end(delete_topics(cluster.rules, request, CONTEXT))
    assert error.value.code is ErrorCode.POLICY_VIOLATION
    request.topics.pop()
    assert len(run_to_end(delete_topics(cluster.rules, request, CONTEXT)).records) == 2


# --- quotas (KIP-599)


class Permits:
    """Permits so many changes, one topic after the other, and notes what it was asked."""

    def __init__(self, permitted: int) -> None:
        self.permitted = permitted
        self.asked: list[int] = []

    def __call__(self, partitions: int) -> None:
        self.asked.append(partitions)
        if len(self.asked) > self.permitted:
            raise KafkaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "The throttling quota has been exceeded.")


def test_a_topic_that_may_not_be_created_now_is_not() -> None:
    cluster, permits = Cluster(1), Permits(1)
    wanted = [topic("bad!"), topic("a", 3), topic("b", 2), topic("c", factor=9)]
    request = m.CreateTopicsRequest(topics=wanted)
    found = run_to_end(create_topics(cluster.rules, request, CONTEXT, sources(), permits))
    cluster.take(found)
    codes = {answer.name: answer.error_code for answer in found.response.topics}
    assert codes["a"] == 0
    assert codes["b"] == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert permits.asked == [3, 2], "only for what nothing else is wrong with"
    assert set(cluster.image.topics) == {"a"}
    (message,) = [answer.error_message for answer in found.response.topics if answer.name == "b"]
    assert message == "The throttling quota has been exceeded."


def test_validating_counts_too() -> None:
    permits = Permits(1)
    request = m.CreateTopicsRequest(topics=[topic("a", 3)], validate_only=True)
    run_to_end(create_topics(Cluster(1).rules, request, CONTEXT, sources(), permits))
    assert permits.asked == [3]


def test_a_topic_that_may_not_grow_or_be_deleted_now_does_not() -> None:
    cluster = Cluster(1)
    for name in "abc":
        cluster.add_topic(name, [[1], [1]])
    permits = Permits(1)
    growth = [m.CreatePartitionsTopic(name=name, count=5, assignments=None) for name in "abc"]
    growth[2].assignments = [m.CreatePartitionsAssignment(broker_ids=[1])]
    grown = run_to_end(
        create_partitions(cluster.rules, m.CreatePartitionsRequest(topics=growth), sources(), permits)
    )
    cluster.take(grown)
    assert [result.error_code for result in grown.response.results] == [
        0,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
    ]
    assert permits.asked == [3, 3]
    permits = Permits(2)
    request = m.DeleteTopicsRequest(topic_names=["a", "none", "b", "c"], timeout_ms=1)
    gone = run_to_end(delete_topics(cluster.rules, request, CONTEXT, permits))
    cluster.take(gone)
    assert permits.asked == [5, 2, 2]
    assert set(cluster.image.topics) == {"c"}
    by_name = {answer.name: answer.error_code for answer in gone.response.responses}
    assert by_name["c"] == ErrorCode.THROTTLING_QUOTA_EXCEEDED
