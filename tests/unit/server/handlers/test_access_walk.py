"""The table of who may ask what, right by right: without it refused, as 4.3.1 refuses, and with it served.

For every API that leaves something to its handler, and for each right that the table names there, somebody asks who has
all the others, and then who has this one too. What the table has and the walk has not is a failure, and the reverse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from tests.interop.process import wait_until
from tests.support.judged_broker import Judge, JudgedBroker, codes, rule
from tests.unit.server.handlers import test_handler_access as given
from tests.unit.server.test_authorization import FILLED

from ottla.model.errors import ErrorCode
from ottla.model.ids import ZERO_UUID
from ottla.records.record import build_batch
from ottla.security.acls import CLUSTER_NAME, AclOperation, ResourceType
from ottla.server import dispatch, handlers
from ottla.server.authorization import ACCESS
from ottla.server.network.connection import Listener
from ottla.server.registry import ADVERTISED, routes
from ottla.wire.messages import fetch, list_offsets, metadata, produce, producers
from ottla.wire.messages import transactions as txn
from ottla.wire.messages.admin import cluster, configs, topics
from ottla.wire.messages.groups import classic, consumer, share, streams
from ottla.wire.messages.security import acls
from ottla.wire.registry import APIS

Op, Kind = AclOperation, ResourceType
TOPIC, GROUP, CLUSTER, TXN = Kind.TOPIC, Kind.GROUP, Kind.CLUSTER, Kind.TRANSACTIONAL_ID
NO_TOPIC, NO_GROUP, NO_CLUSTER, NO_TXN = given.NO_TOPIC, given.NO_GROUP, given.NO_CLUSTER, given.NO_TXN
DENIALS = {NO_TOPIC, NO_GROUP, NO_CLUSTER, NO_TXN, int(ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED)}
NOW = 1_700_000_000_000

handlers.load()
handlers.load_rest()

Right = tuple[AclOperation, ResourceType, str]
Ask = Callable[[JudgedBroker], Any]


class Case(NamedTuple):
    """One right of one API."""

    api: str
    right: Right
    request: Ask
    version: int
    # The error without the right; or what is then said of an answer in which that is no error.
    refusal: int | Callable[[Any], bool]
    others: tuple[Right, ...] = ()
    at_controller: bool = False

    @property
    def name(self) -> str:
        where = "-controller" if self.at_controller else ""
        return f"{self.api}-{self.right[0].name}-{self.right[1].name}{where}"


def walk() -> Iterator[Case]:
    yield from _records()
    yield from _topics()
    yield from _configs()
    yield from _groups()
    yield from _share()
    yield from _transactions()
    yield from _rules()


WHOLE = CLUSTER_NAME


# ---- records ------------------------------------------------------------------------------------------------


def producing(transactional_id: str | None) -> produce.ProduceRequest:
    options: dict[str, Any] = {}
    if transactional_id is not None:
        options = {"transactional": True, "producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    data = bytes(build_batch([(NOW, None, b"v", ())], **options))
    partition = produce.PartitionProduceData(index=0, records=data)
    return produce.ProduceRequest(
        transactional_id=transactional_id,
        acks=1,
        timeout_ms=10_000,
        topic_data=[produce.TopicProduceData(name="a", partition_data=[partition])],
    )


def fetching(replica_id: int) -> fetch.FetchRequest:
    partition = fetch.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
    return fetch.FetchRequest(
        replica_id=replica_id,
        max_wait_ms=0,
        min_bytes=0,
        topics=[fetch.FetchTopic(topic="a", partitions=[partition])],
    )


def _records() -> Iterator[Case]:
    write_a = (Op.WRITE, TOPIC, "a")
    write_tx = (Op.WRITE, TXN, "tx")
    yield Case("Produce", write_a, lambda _: producing(None), 9, NO_TOPIC)
    yield Case("Produce", write_tx, lambda _: producing("tx"), 9, NO_TXN, (write_a,))
    yield Case("Fetch", (Op.READ, TOPIC, "a"), lambda _: fetching(-1), 12, NO_TOPIC)
    # A client that says it is a follower (CVE-2018-1288).
    yield Case("Fetch", (Op.CLUSTER_ACTION, CLUSTER, WHOLE), lambda _: fetching(9), 12, NO_TOPIC)
    yield Case(
        "ListOffsets",
        (Op.DESCRIBE, TOPIC, "a"),
        lambda _: list_offsets.ListOffsetsRequest(
            replica_id=-1,
            topics=[
                list_offsets.ListOffsetsTopic(
                    name="a",
                    partitions=[list_offsets.ListOffsetsPartition(partition_index=0, timestamp=-1)],
                )
            ],
        ),
        7,
        NO_TOPIC,
    )
    yield Case(
        "DeleteRecords",
        (Op.DELETE, TOPIC, "a"),
        lambda _: topics.DeleteRecordsRequest(
            topics=[
                topics.DeleteRecordsTopic(
                    name="a", partitions=[topics.DeleteRecordsPartition(partition_index=0, offset=0)]
                )
            ],
            timeout_ms=10_000,
        ),
        2,
        NO_TOPIC,
    )
    for right in ((Op.DESCRIBE, TOPIC, "a"), (Op.CLUSTER_ACTION, CLUSTER, WHOLE)):
        yield Case(
            "OffsetForLeaderEpoch",
            right,
            lambda _: list_offsets.OffsetForLeaderEpochRequest(
                topics=[
                    list_offsets.OffsetForLeaderTopic(
                        topic="a",
                        partitions=[list_offsets.OffsetForLeaderPartition(partition=0, leader_epoch=0)],
                    )
                ]
            ),
            4,
            NO_TOPIC,
        )
    yield Case(
        "DescribeProducers",
        (Op.READ, TOPIC, "a"),
        lambda _: producers.DescribeProducersRequest(
            topics=[producers.TopicRequest(name="a", partition_indexes=[0])]
        ),
        0,
        NO_TOPIC,
    )


# ---- topics -------------------------------------------------------------------------------------------------


def looking(name: str, *, create: bool = False) -> metadata.MetadataRequest:
    return metadata.MetadataRequest(
        topics=[metadata.MetadataRequestTopic(name=name)], allow_auto_topic_creation=create
    )


def creating(name: str) -> topics.CreateTopicsRequest:
    return topics.CreateTopicsRequest(
        topics=[
            topics.CreatableTopic(
                name=name, num_partitions=1, replication_factor=1, assignments=[], configs=[]
            )
        ],
        validate_only=True,
    )


def deleting(name: str) -> topics.DeleteTopicsRequest:
    return topics.DeleteTopicsRequest(
        topics=[topics.DeleteTopicState(name=name, topic_id=ZERO_UUID)], timeout_ms=10_000
    )


def _topics() -> Iterator[Case]:
    describe_a = (Op.DESCRIBE, TOPIC, "a")
    yield Case("Metadata", describe_a, lambda _: looking("a"), 9, NO_TOPIC)
    for number, kind in enumerate((TOPIC, CLUSTER)):
        new = f"made-{number}"
        yield Case(
            "Metadata",
            (Op.CREATE, kind, new if kind is TOPIC else WHOLE),
            lambda _, new=new: looking(new, create=True),
            9,
            NO_TOPIC,
            ((Op.DESCRIBE, TOPIC, new),),
        )
    yield Case(
        "Metadata",
        (Op.DESCRIBE, CLUSTER, WHOLE),
        lambda _: metadata.MetadataRequest(topics=[], include_cluster_authorized_operations=True),
        9,
        lambda answer: answer.cluster_authorized_operations == 0,
    )
    yield Case(
        "DescribeTopicPartitions",
        describe_a,
        lambda _: metadata.DescribeTopicPartitionsRequest(topics=[metadata.TopicRequest(name="a")]),
        0,
        NO_TOPIC,
    )
    for at_controller in (False, True):
        yield Case(
            "CreateTopics",
            (Op.CREATE, TOPIC, "new"),
            lambda _: creating("new"),
            7,
            NO_TOPIC,
            ((Op.DESCRIBE_CONFIGS, TOPIC, "new"),),
            at_controller,
        )
        yield Case(
            "CreateTopics",
            (Op.CREATE, CLUSTER, WHOLE),
            lambda _: creating("new"),
            7,
            NO_TOPIC,
            ((Op.DESCRIBE_CONFIGS, TOPIC, "new"),),
            at_controller,
        )
        # It is created, and its configuration is not shown.
        yield Case(
            "CreateTopics",
            (Op.DESCRIBE_CONFIGS, TOPIC, "new"),
            lambda _: creating("new"),
            7,
            lambda answer: (
                (answer.topics[0].error_code, answer.topics[0].topic_config_error_code) == (0, NO_TOPIC)
            ),
            ((Op.CREATE, TOPIC, "new"),),
            at_controller,
        )
        # Of a topic that is not there, so that nothing is lost.
        yield Case(
            "DeleteTopics",
            (Op.DESCRIBE, TOPIC, "no"),
            lambda _: deleting("no"),
            6,
            NO_TOPIC,
            (),
            at_controller,
        )
        yield Case(
            "DeleteTopics",
            (Op.DELETE, CLUSTER, WHOLE),
            lambda _: deleting("no"),
            6,
            NO_TOPIC,
            (),
            at_controller,
        )
        yield Case(
            "CreatePartitions",
            (Op.ALTER, TOPIC, "a"),
            lambda _: topics.CreatePartitionsRequest(
                topics=[topics.CreatePartitionsTopic(name="a", count=9, assignments=None)],
                timeout_ms=10_000,
                validate_only=True,
            ),
            3,
            NO_TOPIC,
            (),
            at_controller,
        )
    yield Case(
        "DeleteTopics",
        (Op.DELETE, TOPIC, "doomed"),
        lambda _: deleting("doomed"),
        6,
        NO_TOPIC,
        ((Op.DESCRIBE, TOPIC, "doomed"),),
    )
    yield Case(
        "DescribeCluster",
        (Op.DESCRIBE, CLUSTER, WHOLE),
        lambda _: cluster.DescribeClusterRequest(include_cluster_authorized_operations=True),
        1,
        lambda answer: answer.cluster_authorized_operations == 0,
    )


# ---- configurations -----------------------------------------------------------------------------------------

_RESOURCES = (
    (TOPIC, "a", 2, "a", NO_TOPIC, "retention.ms", "1000"),
    (CLUSTER, WHOLE, 4, "1", NO_CLUSTER, "log.cleaner.threads", "1"),
    (GROUP, "g", 32, "g", NO_GROUP, "consumer.heartbeat.interval.ms", "5000"),
)


def _configs() -> Iterator[Case]:
    for kind, resource, number, name, refusal, key, value in _RESOURCES:
        for at_controller in (False, True):
            yield Case(
                "DescribeConfigs",
                (Op.DESCRIBE_CONFIGS, kind, resource),
                lambda _, number=number, name=name: configs.DescribeConfigsRequest(
                    resources=[
                        configs.DescribeConfigsResource(
                            resource_type=number, resource_name=name, configuration_keys=None
                        )
                    ]
                ),
                4,
                refusal,
                (),
                at_controller,
            )
            yield Case(
                "AlterConfigs",
                (Op.ALTER_CONFIGS, kind, resource),
                lambda _, number=number, name=name, key=key, value=value: configs.AlterConfigsRequest(
                    resources=[
                        configs.AlterConfigsResource(
                            resource_type=number,
                            resource_name=name,
                            configs=[configs.AlterableConfig(name=key, value=value)],
                        )
                    ],
                    validate_only=True,
                ),
                2,
                refusal,
                (),
                at_controller,
            )
            yield Case(
                "IncrementalAlterConfigs",
                (Op.ALTER_CONFIGS, kind, resource),
                lambda _, number=number, name=name, key=key, value=value: incremental(
                    number, name, key, value
                ),
                1,
                refusal,
                (),
                at_controller,
            )
    yield Case(
        "IncrementalAlterConfigs",
        (Op.CLUSTER_ACTION, CLUSTER, WHOLE),
        lambda _: incremental(8, "1", "ottla.walk", "INFO"),
        1,
        NO_CLUSTER,
        (),
        True,
    )


def incremental(number: int, name: str, key: str, value: str) -> configs.IncrementalAlterConfigsRequest:
    change = configs.IncrementalAlterableConfig(name=key, config_operation=0, value=value)
    return configs.IncrementalAlterConfigsRequest(
        resources=[
            configs.IncrementalAlterConfigsResource(
                resource_type=number, resource_name=name, configs=[change]
            )
        ],
        validate_only=True,
    )


# ---- groups -------------------------------------------------------------------------------------------------


def _groups() -> Iterator[Case]:
    read_g, describe_g = (Op.READ, GROUP, "g"), (Op.DESCRIBE, GROUP, "g")
    read_a, describe_a = (Op.READ, TOPIC, "a"), (Op.DESCRIBE, TOPIC, "a")
    yield Case("FindCoordinator", describe_g, lambda _: given.find(0, "g"), 6, NO_GROUP)
    yield Case("FindCoordinator", (Op.DESCRIBE, TXN, "tx"), lambda _: given.find(1, "tx"), 6, NO_TXN)
    yield Case(
        "FindCoordinator",
        (Op.CLUSTER_ACTION, CLUSTER, WHOLE),
        lambda _: given.find(2, "g:AAAAAAAAAAAAAAAAAAAAAQ:3"),
        6,
        NO_CLUSTER,
    )
    for api, request in (
        ("JoinGroup", given.JOIN),
        ("SyncGroup", given.SYNC),
        ("Heartbeat", given.BEAT),
        ("LeaveGroup", given.LEAVE),
    ):
        yield Case(api, read_g, lambda _, request=request: request, ADVERTISED[request.API_KEY][1], NO_GROUP)
    yield Case(
        "DescribeGroups", describe_g, lambda _: classic.DescribeGroupsRequest(groups=["g"]), 5, NO_GROUP
    )
    for right in ((Op.DESCRIBE, GROUP, "g"), (Op.DESCRIBE, CLUSTER, WHOLE)):
        yield Case("ListGroups", right, lambda _: given.LIST_GROUPS, 5, _lists_not("groups", "group_id", "g"))
    yield Case(
        "DeleteGroups",
        (Op.DELETE, GROUP, "none"),
        lambda _: classic.DeleteGroupsRequest(groups_names=["none"]),
        2,
        NO_GROUP,
    )
    yield Case("OffsetCommit", read_g, lambda _: given.commit("a"), 9, NO_GROUP, (read_a,))
    yield Case("OffsetCommit", read_a, lambda _: given.commit("a"), 9, NO_TOPIC, (read_g,))
    yield Case("OffsetFetch", describe_g, lambda _: given.fetch_offsets("a"), 9, NO_GROUP, (describe_a,))
    yield Case("OffsetFetch", describe_a, lambda _: given.fetch_offsets("a"), 9, NO_TOPIC, (describe_g,))
    delete_g = (Op.DELETE, GROUP, "g")
    yield Case(
        "OffsetDelete", delete_g, lambda _: given.delete_offsets("c"), 0, NO_GROUP, ((Op.READ, TOPIC, "c"),)
    )
    yield Case(
        "OffsetDelete", (Op.READ, TOPIC, "c"), lambda _: given.delete_offsets("c"), 0, NO_TOPIC, (delete_g,)
    )
    read_h, describe_h = (Op.READ, GROUP, "h"), (Op.DESCRIBE, GROUP, "h")
    beat = "ConsumerGroupHeartbeat"
    yield Case(beat, read_h, lambda _: given.join_consumer("a"), 1, NO_GROUP, (describe_a,))
    yield Case(beat, describe_a, lambda _: given.join_consumer("a"), 1, NO_TOPIC, (read_h,))
    describing = consumer.ConsumerGroupDescribeRequest(group_ids=["h"], include_authorized_operations=False)
    yield Case("ConsumerGroupDescribe", describe_h, lambda _: describing, 1, NO_GROUP, (describe_a,))
    yield Case("ConsumerGroupDescribe", describe_a, lambda _: describing, 1, NO_TOPIC, (describe_h,))
    yield from _streams()


def _lists_not(rows: str, key: str, name: str) -> Callable[[Any], bool]:
    return lambda answer: name not in {getattr(row, key) for row in getattr(answer, rows)}


def _streams() -> Iterator[Case]:
    describe_a = (Op.DESCRIBE, TOPIC, "a")
    read_st, describe_st = (Op.READ, GROUP, "st"), (Op.DESCRIBE, GROUP, "st")
    internal = (Op.DESCRIBE, TOPIC, "st-x-changelog")
    beat = "StreamsGroupHeartbeat"
    yield Case(beat, read_st, lambda _: given.join_streams(), 0, NO_GROUP, (describe_a, internal))
    yield Case(beat, describe_a, lambda _: given.join_streams(), 0, NO_TOPIC, (read_st, internal))
    for number, kind in enumerate((TOPIC, CLUSTER)):
        group = f"st{number}"
        log = f"{group}-x-changelog"
        yield Case(
            beat,
            (Op.CREATE, kind, log if kind is TOPIC else WHOLE),
            lambda _, group=group, log=log: joining_streams(group, log),
            0,
            lambda answer: any("Unauthorized to CREATE" in row.status_detail for row in answer.status or ()),
            ((Op.READ, GROUP, group), describe_a, (Op.DESCRIBE, TOPIC, log)),
        )
    describing = streams.StreamsGroupDescribeRequest(group_ids=["st"], include_authorized_operations=False)
    seen = (describe_a, internal)
    yield Case("StreamsGroupDescribe", describe_st, lambda _: describing, 0, NO_GROUP, seen)
    yield Case("StreamsGroupDescribe", describe_a, lambda _: describing, 0, NO_TOPIC, (describe_st, internal))


def joining_streams(group: str, changelog: str) -> Any:
    request = given.join_streams(changelog=changelog)
    request.group_id = group
    return request


# ---- share groups -------------------------------------------------------------------------------------------


def _share() -> Iterator[Case]:
    read_s, describe_s = (Op.READ, GROUP, "s"), (Op.DESCRIBE, GROUP, "s")
    read_a, describe_a = (Op.READ, TOPIC, "a"), (Op.DESCRIBE, TOPIC, "a")
    beat = "ShareGroupHeartbeat"
    yield Case(beat, read_s, lambda _: given.share_beat("a"), 1, NO_GROUP, (describe_a,))
    yield Case(beat, describe_a, lambda _: given.share_beat("a"), 1, NO_TOPIC, (read_s,))
    describing = share.ShareGroupDescribeRequest(group_ids=["s"], include_authorized_operations=False)
    yield Case("ShareGroupDescribe", describe_s, lambda _: describing, 1, NO_GROUP, (describe_a,))
    yield Case("ShareGroupDescribe", describe_a, lambda _: describing, 1, NO_TOPIC, (describe_s,))

    def fetching_a(broker: JudgedBroker) -> Any:
        return given.share_fetch(broker.topic_id("a"))

    yield Case("ShareFetch", read_s, fetching_a, 2, NO_GROUP, (read_a,))
    yield Case("ShareFetch", read_a, fetching_a, 2, NO_TOPIC, (read_s,))

    def acknowledging(broker: JudgedBroker) -> Any:
        """In a session that somebody has opened who might."""
        judged = broker.judge.inner
        broker.may_all()
        assert broker.ask(fetching_a(broker), 2).error_code == 0
        broker.judge.set(judged)
        return given.share_acknowledge(broker.topic_id("a"), epoch=1)

    yield Case("ShareAcknowledge", read_s, acknowledging, 2, NO_GROUP, (read_a,))
    yield Case("ShareAcknowledge", read_a, acknowledging, 2, NO_TOPIC, (read_s,))
    describe = given.describe_share_offsets("a")
    yield Case("DescribeShareGroupOffsets", describe_s, lambda _: describe, 1, NO_GROUP, (describe_a,))
    yield Case("DescribeShareGroupOffsets", describe_a, lambda _: describe, 1, NO_TOPIC, (describe_s,))
    # Of a group that nobody is in.
    for api, first, second, request in (
        ("AlterShareGroupOffsets", (Op.READ, GROUP, "e"), read_a, given.alter_share_offsets("a")),
        ("DeleteShareGroupOffsets", (Op.DELETE, GROUP, "e"), read_a, given.delete_share_offsets("a")),
    ):
        request.group_id = "e"
        version = ADVERTISED[request.API_KEY][1]
        yield Case(api, first, lambda _, request=request: request, version, NO_GROUP, (second,))
        yield Case(api, second, lambda _, request=request: request, version, NO_TOPIC, (first,))


# ---- transactions -------------------------------------------------------------------------------------------


def _transactions() -> Iterator[Case]:
    write_tx, write_a = (Op.WRITE, TXN, "tx"), (Op.WRITE, TOPIC, "a")
    read_g, read_a = (Op.READ, GROUP, "g"), (Op.READ, TOPIC, "a")
    # A producer id without any right to write (CVE-2018-17196).
    yield Case(
        "InitProducerId", (Op.IDEMPOTENT_WRITE, CLUSTER, WHOLE), lambda _: given.init(None), 5, NO_CLUSTER
    )
    yield Case("InitProducerId", (Op.WRITE, TOPIC, "any"), lambda _: given.init(None), 5, NO_CLUSTER)
    yield Case("InitProducerId", (Op.WRITE, TXN, "ty"), lambda _: given.init("ty"), 5, NO_TXN)
    add = "AddPartitionsToTxn"
    yield Case(add, write_tx, lambda _: given.add_partitions("a"), 3, NO_TXN, (write_a,))
    yield Case(add, write_a, lambda _: given.add_partitions("a"), 3, NO_TOPIC, (write_tx,))
    yield Case(
        add, (Op.CLUSTER_ACTION, CLUSTER, WHOLE), lambda _: given.add_partitions_of_many("a"), 5, NO_CLUSTER
    )
    yield Case("AddOffsetsToTxn", write_tx, lambda _: given.ADD_OFFSETS, 4, NO_TXN, (read_g,))
    yield Case("AddOffsetsToTxn", read_g, lambda _: given.ADD_OFFSETS, 4, NO_GROUP, (write_tx,))
    commit = "TxnOffsetCommit"
    yield Case(commit, write_tx, lambda _: given.txn_commit("a"), 3, NO_TXN, (read_g, read_a))
    yield Case(commit, read_g, lambda _: given.txn_commit("a"), 3, NO_GROUP, (write_tx, read_a))
    yield Case(commit, read_a, lambda _: given.txn_commit("a"), 3, NO_TOPIC, (write_tx, read_g))
    yield Case("EndTxn", write_tx, lambda _: given.END, 4, NO_TXN)
    describing = txn.DescribeTransactionsRequest(transactional_ids=["tx"])
    describe_tx = (Op.DESCRIBE, TXN, "tx")
    yield Case(
        "DescribeTransactions", describe_tx, lambda _: describing, 0, NO_TXN, ((Op.DESCRIBE, TOPIC, "a"),)
    )
    yield Case(
        "DescribeTransactions",
        (Op.DESCRIBE, TOPIC, "a"),
        lambda _: describing,
        0,
        lambda answer: [row.topic for row in answer.transaction_states[0].topics] == [],
        (describe_tx,),
    )
    yield Case(
        "ListTransactions",
        describe_tx,
        lambda _: given.LIST_TXNS,
        2,
        _lists_not("transaction_states", "transactional_id", "tx"),
    )


# ---- the walk -----------------------------------------------------------------------------------------------

# What another test shows: a version that is not advertised yet, and tokens, of which a listener without
# authentication has none (test_handler_access, test_users).
ELSEWHERE = {
    ("InitProducerId", (Op.TWO_PHASE_COMMIT, TXN)),
    ("CreateDelegationToken", (Op.CREATE_TOKENS, Kind.USER)),
    ("DescribeDelegationToken", (Op.DESCRIBE, Kind.DELEGATION_TOKEN)),
    ("DescribeDelegationToken", (Op.DESCRIBE_TOKENS, Kind.USER)),
}
# ---- rules --------------------------------------------------------------------------------------------------


def _rules() -> Iterator[Case]:
    describe, alter = (Op.DESCRIBE, CLUSTER, WHOLE), (Op.ALTER, CLUSTER, WHOLE)
    any_of_it = {
        "resource_type_filter": Kind.ANY,
        "pattern_type_filter": 1,
        "operation": 1,
        "permission_type": 1,
    }
    yield Case("DescribeAcls", describe, lambda _: acls.DescribeAclsRequest(**any_of_it), 3, NO_CLUSTER)
    given_away = acls.AclCreation(
        resource_type=TOPIC,
        resource_name="walked",
        principal="User:nobody",
        host="*",
        operation=Op.READ,
        permission_type=3,
    )
    yield Case("CreateAcls", alter, lambda _: acls.CreateAclsRequest(creations=[given_away]), 3, NO_CLUSTER)
    one = acls.DeleteAclsFilter(
        **{**any_of_it, "resource_name_filter": "nowhere", "principal_filter": "User:nobody"}
    )
    yield Case("DeleteAcls", alter, lambda _: acls.DeleteAclsRequest(filters=[one]), 3, NO_CLUSTER)


CASES = list(walk())


def test_the_walk_is_the_table() -> None:
    table = {(api, asked) for api, access in ACCESS.items() for asked in access.by_handler}
    assert {(case.api, case.right[:2]) for case in CASES} | ELSEWHERE == table


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JudgedBroker]:
    """Topics, a transaction that has begun, and a member of a group of each kind."""
    path = tmp_path_factory.mktemp("walked")
    with JudgedBroker(path, {"a": 1, "b": 1, "c": 1, "doomed": 1}) as judged:
        judged.ready("g", "h", "s", "e", "st", "st0", "st1", "none", transactional_ids=("tx", "ty"))
        assert set(codes(judged.ask(given.commit("a", "b", "c"), 9))) == {0}
        begun = judged.ask(given.init("tx"), 4)
        adding = given.add_partitions("a")
        adding.v3_and_below_producer_id = begun.producer_id
        adding.v3_and_below_producer_epoch = begun.producer_epoch
        assert set(codes(judged.ask(adding, 3))) == {0}
        assert judged.ask(given.join_consumer("a"), 1).error_code == 0

        def shares() -> bool:
            """Who has nothing to share yet shows no topic that could be refused."""
            answer = judged.ask(given.share_beat("a"), 1)
            return answer.error_code == 0 and bool(answer.assignment and answer.assignment.topic_partitions)

        wait_until(shares, 20, "the share group")
        for epoch in (0, -1):
            coming_and_going = given.share_beat(*(() if epoch else ("a",)), epoch=epoch)
            coming_and_going.group_id = "e"
            assert judged.ask(coming_and_going, 1).error_code == 0
        assert judged.ask(given.join_streams(), 0).error_code == 0
        wait_until(lambda: judged.services.image().topic("st-x-changelog") is not None, 20, "the changelog")
        yield judged


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_without_the_right_it_is_refused_and_with_it_served(broker: JudgedBroker, case: Case) -> None:
    ask = broker.ask_controller if case.at_controller else broker.ask
    others = [rule(*right) for right in case.others]

    def asked() -> Any:
        return ask(case.request(broker), case.version)

    def is_refused(answer: Any) -> bool:
        if callable(case.refusal):
            return case.refusal(answer)
        found = set(codes(answer))
        assert found & DENIALS <= {case.refusal}, "another error than 4.3.1's"
        return case.refusal in found

    try:
        before = state(broker, case)
        broker.may(*others)
        assert is_refused(asked())
        # Another operation on the same resource, and the same on another, are not enough.
        useless = [
            Op.DESCRIBE,
            Op.READ,
            Op.WRITE,
            Op.CREATE,
            Op.DELETE,
            Op.ALTER,
            Op.CLUSTER_ACTION,
            Op.IDEMPOTENT_WRITE,
        ]
        operation, kind, name = case.right
        implied = {Op.READ, Op.WRITE, Op.DELETE, Op.ALTER} if operation is Op.DESCRIBE else set()
        left = [
            op for op in useless if op != operation and op not in implied and not _decides(case, op, kind)
        ]
        broker.may(*others, *(rule(op, kind, name) for op in left), rule(operation, kind, f"{name}-not"))
        if not (case.api == "InitProducerId" and kind is TOPIC):  # there any topic will do
            assert is_refused(asked())
        assert state(broker, case) == before, "a request that is refused changes nothing"
        # And it is there with the next request, and gone with the one after.
        broker.may(*others, rule(*case.right))
        answer = asked()
        assert not is_refused(answer)
        assert not set(codes(answer)) & DENIALS
        if case.right[2] != "doomed" and not case.right[2].endswith("-changelog"):
            broker.may(*others)
            assert is_refused(asked()) or case.api in ("Metadata", "StreamsGroupHeartbeat")
    finally:
        broker.may_all()


def state(broker: JudgedBroker, case: Case) -> tuple[dict[str, int], list[bool]]:
    """What is in the topics, and which of those that the case names there are; others are made while it is looked."""
    written = {
        name: end for name, end in broker.written().items() if name.partition("-")[0] in ("a", "b", "c")
    }
    named = [name for _, kind, name in (case.right, *case.others) if kind is TOPIC]
    return written, [broker.services.image().topic(name) is not None for name in named]


def _decides(case: Case, operation: AclOperation, kind: ResourceType) -> bool:
    """Is this enough, too?"""
    return (operation, kind) in ACCESS[case.api].by_handler


# ---- what is asked of a request as a whole ------------------------------------------------------------------


@pytest.mark.parametrize(
    "key",
    [key for key, route in sorted(routes(Listener.BROKER).items()) if route.access.cluster],
    ids=lambda key: APIS[key].name,
)
def test_one_right_on_the_cluster_is_enough_at_a_broker(broker: JudgedBroker, key: int) -> None:
    route = routes(Listener.BROKER)[key]
    request = FILLED.get(key) or route.request()
    try:
        for operation in route.access.cluster:
            broker.may(rule(operation, CLUSTER, WHOLE))
            assert NO_CLUSTER not in codes(broker.ask(request, route.max_version)), operation.name
        useless = set(AclOperation) - {*route.access.cluster, Op.ALL}
        if Op.DESCRIBE in route.access.cluster:
            useless -= {Op.READ, Op.WRITE, Op.DELETE, Op.ALTER}
        if Op.DESCRIBE_CONFIGS in route.access.cluster:
            useless -= {Op.ALTER_CONFIGS}
        broker.may(*(rule(operation, CLUSTER, WHOLE) for operation in useless))
        assert NO_CLUSTER in codes(broker.ask(request, route.max_version))
    finally:
        broker.may_all()


# ---- planted bugs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_an_api_that_is_not_checked_is_found(
    broker: JudgedBroker, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if its handler did not ask for this right: the walk notices, for each of them."""
    operation, kind, _ = case.right
    authorize = Judge.authorize

    def unchecked(judge: Judge, *asked: Any) -> bool:
        return asked[2:4] == (operation, kind) or authorize(judge, *asked)

    def by_type(judge: Judge, *asked: Any) -> bool:
        return asked[2:4] == (operation, kind) or judge.inner.authorize_by_resource_type(*asked)

    monkeypatch.setattr(Judge, "authorize", unchecked)
    monkeypatch.setattr(Judge, "authorize_by_resource_type", by_type)
    with pytest.raises(AssertionError):
        test_without_the_right_it_is_refused_and_with_it_served(broker, case)


@pytest.mark.parametrize(
    "key",
    [key for key, route in sorted(routes(Listener.BROKER).items()) if route.access.cluster],
    ids=lambda key: APIS[key].name,
)
def test_one_that_is_not_checked_as_a_whole_is_found(
    broker: JudgedBroker, key: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "check_access", lambda *asked: None)
    with pytest.raises(AssertionError):
        test_one_right_on_the_cluster_is_enough_at_a_broker(broker, key)
