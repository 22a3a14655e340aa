"""What is told of changes: every API that changes something, its results, and no secret."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ottla.controller.result import RequestContext
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import ZERO_UUID
from ottla.model.pending import Pending
from ottla.security.principal import KafkaPrincipal
from ottla.server.audit import (
    CHANGING,
    LARGE_REQUEST_WEIGHT,
    REQUEST_WEIGHT,
    AuditedTopicCreation,
    audited,
)
from ottla.server.authorization import ACCESS, EVERYBODY
from ottla.server.changes import CHANGES
from ottla.server.context import Context, Sender
from ottla.server.forwarding import FORWARDABLE
from ottla.wire.framing import RequestHeader
from ottla.wire.messages.admin import cluster, configs, log_dirs, quotas, topics
from ottla.wire.messages.groups import classic, share
from ottla.wire.messages.nodes import broker_lifecycle, raft, replication
from ottla.wire.messages.security import acls, scram, tokens
from ottla.wire.registry import APIS

ALICE = KafkaPrincipal("User", "alice")
SECRET = "hunter2"
SECRET_BYTES = b"\x13\x37" * 16
EXISTS = int(ErrorCode.TOPIC_ALREADY_EXISTS)
DENIED = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)


class Told:
    """In place of the audit log: what it would write."""

    def __init__(self) -> None:
        self.changes = True
        self.lines: list[dict[str, Any]] = []
        self.things: list[int] = []

    def changed(self, fields: Any, lines: Any, things: int) -> None:
        self.things.append(things)
        self.lines += [{**fields, **line} for line in lines()]


class World:
    def __init__(self) -> None:
        self.told = Told()
        self.forwarded_for: Sender | None = None
        self.is_large = False

    def context(self, api_key: int) -> Context:
        sender = self.forwarded_for or Sender(ALICE, bytes([10, 0, 0, 9]))
        return cast(
            Context,
            SimpleNamespace(
                connection=SimpleNamespace(audit=self.told),
                sender=sender,
                forwarded_for=self.forwarded_for,
                is_large=self.is_large,
                listener_name="SASL",
                header=RequestHeader(api_key, 0, 1, "tool"),
            ),
        )

    def ask(self, request: Any, response: Any) -> list[dict[str, Any]]:
        """What is told when a handler answers so, or raises that."""

        def handler(ctx: Context, asked: Any) -> Any:
            if isinstance(response, Exception):
                raise response
            return response

        wrapped = audited(request.API_KEY, handler)
        context = self.context(request.API_KEY)
        if isinstance(response, Exception):
            with pytest.raises(type(response)):
                wrapped(context, request)
        else:
            assert wrapped(context, request) is response
        lines, self.told.lines = self.told.lines, []
        return lines


@pytest.fixture
def world() -> World:
    return World()


def topic(name: str, **more: str) -> topics.CreatableTopic:
    given = [
        topics.CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in more.items()
    ]
    return topics.CreatableTopic(
        name=name, num_partitions=3, replication_factor=1, assignments=[], configs=given
    )


def created(**codes: int) -> topics.CreateTopicsResponse:
    return topics.CreateTopicsResponse(
        topics=[
            topics.CreatableTopicResult(name=name, error_code=code, error_message=None)
            for name, code in codes.items()
        ]
    )


def test_topics(world: World) -> None:
    request = topics.CreateTopicsRequest(
        topics=[topic("a", retention_ms="7", my_password=SECRET), topic("b"), topic("c")]
    )
    lines = world.ask(request, created(a=0, b=EXISTS, c=DENIED))
    assert lines[0] == {
        "principal": "User:alice",
        "address": "10.0.0.9",
        "listener": "SASL",
        "client_id": "tool",
        "api": "CreateTopics",
        "resource_type": "TOPIC",
        "resource": "a",
        "result": "NONE",
        "details": {
            "partitions": 3,
            "replication_factor": 1,
            "configs": {"retention.ms": "7", "my.password": "[hidden]"},
        },
    }
    # What was denied is a denial, told where it was denied.
    assert [(line["resource"], line["result"]) for line in lines] == [
        ("a", "NONE"),
        ("b", "TOPIC_ALREADY_EXISTS"),
    ]
    assert world.told.things == [3 + REQUEST_WEIGHT]
    world.is_large = True
    world.ask(request, created(a=0))
    assert world.told.things[1:] == [3 + LARGE_REQUEST_WEIGHT]


def test_a_request_that_fails_as_a_whole_says_so_of_each(world: World) -> None:
    request = topics.CreateTopicsRequest(topics=[topic("a"), topic("b")], validate_only=True)
    lines = world.ask(request, KafkaError(ErrorCode.REQUEST_TIMED_OUT))
    assert [(line["resource"], line["result"], line["validate_only"]) for line in lines] == [
        ("a", "REQUEST_TIMED_OUT", True),
        ("b", "REQUEST_TIMED_OUT", True),
    ]
    assert [line["result"] for line in world.ask(request, RuntimeError("a bug"))] == [
        "UNKNOWN_SERVER_ERROR"
    ] * 2


def test_deleted_topics(world: World) -> None:
    request = topics.DeleteTopicsRequest(
        topics=[topics.DeleteTopicState(name=None, topic_id=ZERO_UUID)], timeout_ms=1
    )
    answer = topics.DeleteTopicsResponse(responses=[topics.DeletableTopicResult(name="a")])
    (line,) = world.ask(request, answer)
    assert (line["resource"], line["details"]) == ("a", {"topic_id": "A" * 22})
    by_name = topics.DeleteTopicsRequest(topic_names=["x"], timeout_ms=1)
    assert [line["resource"] for line in world.ask(by_name, KafkaError(ErrorCode.INVALID_REQUEST))] == ["x"]


@pytest.mark.parametrize(
    ("kind", "name", "value", "shown"),
    [
        (2, "retention.ms", "7", "7"),
        (2, "nobody.knows.it", SECRET, "[hidden]"),
        (4, "log.cleaner.threads", "2", "2"),
        (4, "ssl.keystore.password", SECRET, "[hidden]"),
        (4, "listener.name.sasl_ssl.ssl.key.password", SECRET, "[hidden]"),
        (4, "listener.name.x.plain.sasl.jaas.config", SECRET, "[hidden]"),
        (4, "some.plugin.token", SECRET, "[hidden]"),
        (8, "kafka.server", "DEBUG", "DEBUG"),
        (16, "interval.ms", "100", "100"),
        (32, "consumer.session.timeout.ms", "5000", "5000"),
        (99, "what", SECRET, "[hidden]"),
        (2, "retention.ms", None, None),
    ],
)
def test_settings(world: World, kind: int, name: str, value: str | None, shown: str | None) -> None:
    answer = configs.AlterConfigsResourceResponse(resource_type=kind, resource_name="r", error_message=None)
    changed = configs.IncrementalAlterableConfig(name=name, config_operation=0, value=value)
    incremental = configs.IncrementalAlterConfigsRequest(
        resources=[
            configs.IncrementalAlterConfigsResource(resource_type=kind, resource_name="r", configs=[changed])
        ],
        validate_only=False,
    )
    (line,) = world.ask(incremental, configs.IncrementalAlterConfigsResponse(responses=[answer]))
    assert line["details"] == {"configs": [{"op": "SET", "name": name, "value": shown}]}
    assert line["result"] == "NONE"
    whole = configs.AlterConfigsRequest(
        resources=[
            configs.AlterConfigsResource(
                resource_type=kind,
                resource_name="r",
                configs=[configs.AlterableConfig(name=name, value=value)],
            )
        ],
        validate_only=False,
    )
    (line,) = world.ask(whole, configs.AlterConfigsResponse(responses=[answer]))
    assert line["details"] == {"replaced_by": {name: shown}}
    assert SECRET not in json.dumps(line)


def test_rules(world: World) -> None:
    creation = acls.AclCreation(
        resource_type=2,
        resource_name="t",
        resource_pattern_type=4,
        principal="User:bob",
        host="*",
        operation=3,
        permission_type=3,
    )
    request = acls.CreateAclsRequest(creations=[creation, creation])
    answer = acls.CreateAclsResponse(
        results=[
            acls.AclCreationResult(error_message=None),
            acls.AclCreationResult(error_code=int(ErrorCode.INVALID_REQUEST), error_message="no"),
        ]
    )
    rule = {
        "pattern_type": "PREFIXED",
        "principal": "User:bob",
        "host": "*",
        "operation": "READ",
        "permission": "ALLOW",
    }
    lines = world.ask(request, answer)
    assert [(line["result"], line["details"]) for line in lines] == [
        ("NONE", {"rule": rule}),
        ("INVALID_REQUEST", {"rule": rule}),
    ]
    wanted = acls.DeleteAclsFilter(
        resource_type_filter=1,
        resource_name_filter=None,
        pattern_type_filter=1,
        principal_filter=None,
        host_filter=None,
        operation=1,
        permission_type=1,
    )
    matching = acls.DeleteAclsMatchingAcl(
        error_message=None,
        resource_type=2,
        resource_name="t",
        pattern_type=4,
        principal="User:bob",
        host="*",
        operation=3,
        permission_type=3,
    )
    results = [
        acls.DeleteAclsFilterResult(error_message=None, matching_acls=[matching]),
        acls.DeleteAclsFilterResult(error_message=None, matching_acls=[]),
    ]
    lines = world.ask(
        acls.DeleteAclsRequest(filters=[wanted, wanted]), acls.DeleteAclsResponse(filter_results=results)
    )
    assert [(line["resource"], *line["details"]) for line in lines] == [("t", "rule"), (None, "filter")]


def test_users_without_what_proves_them(world: World) -> None:
    request = scram.AlterUserScramCredentialsRequest(
        deletions=[scram.ScramCredentialDeletion(name="old", mechanism=1)],
        upsertions=[
            scram.ScramCredentialUpsertion(
                name="bob", mechanism=2, iterations=4096, salt=SECRET_BYTES, salted_password=SECRET_BYTES
            )
        ],
    )
    results = [
        scram.AlterUserScramCredentialsResult(user=name, error_message=None) for name in ("old", "bob")
    ]
    lines = world.ask(request, scram.AlterUserScramCredentialsResponse(results=results))
    assert [(line["resource"], line["details"]) for line in lines] == [
        ("old", {"mechanism": "SCRAM-SHA-256", "removed": True}),
        ("bob", {"mechanism": "SCRAM-SHA-512", "iterations": 4096}),
    ]


def test_tokens_by_a_fingerprint(world: World) -> None:
    request = tokens.CreateDelegationTokenRequest(
        renewers=[tokens.CreatableRenewers(principal_type="User", principal_name="bob")], max_lifetime_ms=-1
    )
    answer = tokens.CreateDelegationTokenResponse(
        principal_type="User",
        principal_name="alice",
        issue_timestamp_ms=1,
        expiry_timestamp_ms=2,
        max_timestamp_ms=3,
        token_id="id-1",
        hmac=SECRET_BYTES,
    )
    (made,) = world.ask(request, answer)
    assert (made["resource"], made["details"]["owner"], made["details"]["renewers"]) == (
        "id-1",
        "User:alice",
        ["User:bob"],
    )
    renewed = tokens.RenewDelegationTokenRequest(hmac=SECRET_BYTES, renew_period_ms=5)
    (line,) = world.ask(renewed, tokens.RenewDelegationTokenResponse(expiry_timestamp_ms=9))
    assert line["details"] == {"token": made["details"]["token"], "expires_ms": 9}
    expired = tokens.ExpireDelegationTokenRequest(hmac=SECRET_BYTES, expiry_time_period_ms=-1)
    code = int(ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH)
    (line,) = world.ask(
        expired, tokens.ExpireDelegationTokenResponse(error_code=code, expiry_timestamp_ms=-1)
    )
    assert (line["result"], line["details"]) == (
        "DELEGATION_TOKEN_OWNER_MISMATCH",
        {"token": made["details"]["token"]},
    )
    refused = tokens.CreateDelegationTokenResponse(
        error_code=int(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED),
        principal_type="",
        principal_name="",
        issue_timestamp_ms=-1,
        expiry_timestamp_ms=-1,
        max_timestamp_ms=-1,
        token_id="",
        hmac=b"",
    )
    (line,) = world.ask(request, refused)
    assert (line["result"], line["resource"]) == ("DELEGATION_TOKEN_AUTH_DISABLED", None)
    for told in (made, line):
        assert SECRET_BYTES.hex() not in json.dumps(told)


def test_quotas(world: World) -> None:
    entity = [
        quotas.EntityData(entity_type="user", entity_name="bob"),
        quotas.EntityData(entity_type="client-id", entity_name=None),
    ]
    ops = [
        quotas.OpData(key="producer_byte_rate", value=5.0, remove=False),
        quotas.OpData(key="request_percentage", value=0.0, remove=True),
    ]
    request = quotas.AlterClientQuotasRequest(
        entries=[quotas.AlterClientQuotasRequestEntryData(entity=entity, ops=ops)], validate_only=True
    )
    answer = quotas.AlterClientQuotasResponse(
        entries=[quotas.AlterClientQuotasResponseEntryData(error_message=None, entity=entity)]
    )
    (line,) = world.ask(request, answer)
    assert (line["resource"], line["details"], line["validate_only"]) == (
        "client-id=<default>,user=bob",
        {"quotas": {"producer_byte_rate": 5.0, "request_percentage": None}},
        True,
    )


def test_partitions_and_the_cluster(world: World) -> None:
    moved = replication.AlterPartitionReassignmentsRequest(
        topics=[
            replication.ReassignableTopic(
                name="t",
                partitions=[
                    replication.ReassignablePartition(partition_index=0, replicas=[1, 2]),
                    replication.ReassignablePartition(partition_index=1, replicas=None),
                ],
            )
        ]
    )
    answered = replication.AlterPartitionReassignmentsResponse(
        error_message=None,
        responses=[
            replication.ReassignableTopicResponse(
                name="t",
                partitions=[
                    replication.ReassignablePartitionResponse(partition_index=0, error_message=None),
                    replication.ReassignablePartitionResponse(
                        partition_index=1,
                        error_code=int(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
                        error_message=None,
                    ),
                ],
            )
        ],
    )
    lines = world.ask(moved, answered)
    assert [(line["details"], line["result"]) for line in lines] == [
        ({"partition": 0, "replicas": [1, 2]}, "NONE"),
        ({"partition": 1, "replicas": None}, "NO_REASSIGNMENT_IN_PROGRESS"),
    ]
    elected = replication.ElectLeadersRequest(election_type=1, topic_partitions=None)
    (line,) = world.ask(elected, replication.ElectLeadersResponse(replica_election_results=[]))
    assert (line["resource"], line["details"]) == ("*", {"election": "UNCLEAN"})
    (line,) = world.ask(
        broker_lifecycle.UnregisterBrokerRequest(broker_id=5),
        broker_lifecycle.UnregisterBrokerResponse(error_message=None),
    )
    assert (line["resource_type"], line["resource"]) == ("BROKER", "5")
    (line,) = world.ask(
        cluster.UpdateFeaturesRequest(
            feature_updates=[cluster.FeatureUpdateKey(feature="metadata.version", max_version_level=25)]
        ),
        cluster.UpdateFeaturesResponse(error_message=None),
    )
    assert (line["resource"], line["details"]) == ("metadata.version", {"level": 25})
    (line,) = world.ask(
        raft.RemoveRaftVoterRequest(cluster_id=None, voter_id=3, voter_directory_id=ZERO_UUID),
        raft.RemoveRaftVoterResponse(error_message=None),
    )
    assert (line["api"], line["resource"]) == ("RemoveRaftVoter", "3")
    cut = topics.DeleteRecordsRequest(
        topics=[
            topics.DeleteRecordsTopic(
                name="t", partitions=[topics.DeleteRecordsPartition(partition_index=2, offset=9)]
            )
        ],
        timeout_ms=1,
    )
    (line,) = world.ask(cut, KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
    assert line["details"] == {"partition": 2, "before_offset": 9}
    directories = log_dirs.AlterReplicaLogDirsRequest(
        dirs=[
            log_dirs.AlterReplicaLogDir(
                path="/d", topics=[log_dirs.AlterReplicaLogDirTopic(name="t", partitions=[0, 1])]
            )
        ]
    )
    lines = world.ask(directories, KafkaError(ErrorCode.LOG_DIR_NOT_FOUND))
    assert [line["details"]["partition"] for line in lines] == [0, 1]
    (line,) = world.ask(
        classic.DeleteGroupsRequest(groups_names=["g"]),
        classic.DeleteGroupsResponse(results=[classic.DeletableGroupResult(group_id="g")]),
    )
    assert (line["resource_type"], line["resource"]) == ("GROUP", "g")


def test_offsets_of_a_group_by_what_came_of_them(world: World) -> None:
    subscribed, unknown = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def told(request: Any, response: Any) -> list[tuple[Any, ...]]:
        lines = world.ask(request, response)
        assert {(line["resource_type"], line["resource"]) for line in lines} == {("GROUP", "g")}
        return [(line["result"], line["details"]["offsets_of"]) for line in lines]

    def answered(name: str, *codes: int) -> classic.OffsetDeleteResponseTopic:
        partitions = [
            classic.OffsetDeleteResponsePartition(partition_index=index, error_code=int(code))
            for index, code in enumerate(codes)
        ]
        return classic.OffsetDeleteResponseTopic(name=name, partitions=partitions)

    # Handlers take out of a request what they refuse.
    deleted = classic.OffsetDeleteRequest(group_id="g", topics=[])
    topics_of = [
        answered("a", 0, unknown),
        answered("b", subscribed),
        answered("c", DENIED),
        answered("d", 0),
    ]
    assert told(deleted, classic.OffsetDeleteResponse(topics=topics_of)) == [
        ("NONE", ["a", "d"]),
        (unknown.name, ["a"]),
        (subscribed.name, ["b"]),
    ]
    asked = [classic.OffsetDeleteRequestTopic(name="a", partitions=[])]
    deleted = classic.OffsetDeleteRequest(group_id="g", topics=asked)
    assert told(deleted, KafkaError(ErrorCode.NON_EMPTY_GROUP)) == [("NON_EMPTY_GROUP", ["a"])]
    altered = share.AlterShareGroupOffsetsResponse(
        responses=[
            share.AlterShareGroupOffsetsResponseTopic(
                topic_name="a",
                topic_id=ZERO_UUID,
                partitions=[
                    share.AlterShareGroupOffsetsResponsePartition(partition_index=0, error_code=int(unknown))
                ],
            )
        ]
    )
    assert told(share.AlterShareGroupOffsetsRequest(group_id="g", topics=[]), altered) == [
        (unknown.name, ["a"])
    ]
    forgotten = share.DeleteShareGroupOffsetsResponse(
        responses=[
            share.DeleteShareGroupOffsetsResponseTopic(topic_name="a", topic_id=ZERO_UUID),
            share.DeleteShareGroupOffsetsResponseTopic(
                topic_name="b", topic_id=ZERO_UUID, error_code=int(unknown)
            ),
        ]
    )
    assert told(share.DeleteShareGroupOffsetsRequest(group_id="g", topics=[]), forgotten) == [
        ("NONE", ["a"]),
        (unknown.name, ["b"]),
    ]


# ---- telling ----------------------------------------------------------------------------------------------------


REQUEST = topics.CreateTopicsRequest(topics=[topic("a")])


def test_who_has_forwarded_it_is_not_who_did_it(world: World) -> None:
    world.forwarded_for = Sender(KafkaPrincipal("User", "bob"), bytes([10, 0, 0, 1]))
    (line,) = world.ask(REQUEST, created(a=0))
    assert (line["principal"], line["address"], line["forwarded"]) == ("User:bob", "10.0.0.1", True)


def test_a_controller_that_is_not_active_has_decided_nothing(world: World) -> None:
    answer = created(a=int(ErrorCode.NOT_CONTROLLER))
    assert world.ask(REQUEST, answer) == []
    world.forwarded_for = Sender(ALICE, bytes(4))
    assert world.ask(REQUEST, KafkaError(ErrorCode.NOT_CONTROLLER)) == []


def test_what_takes_long_is_told_when_it_is_done(world: World) -> None:
    async def run() -> None:
        async def answering(ctx: Context, request: Any) -> Any:
            await asyncio.sleep(0)
            return created(a=0)

        assert (await audited(19, answering)(world.context(19), REQUEST)).topics[0].name == "a"

        async def failing(ctx: Context, request: Any) -> Any:
            await asyncio.sleep(0)
            raise KafkaError(ErrorCode.INVALID_REQUEST)

        with pytest.raises(KafkaError):
            await audited(19, failing)(world.context(19), REQUEST)
        forever = asyncio.Event()

        async def waiting(ctx: Context, request: Any) -> Any:
            await forever.wait()

        task = asyncio.create_task(audited(19, waiting)(world.context(19), REQUEST))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert [line["result"] for line in world.told.lines] == ["NONE", "INVALID_REQUEST", "UNKNOWN"]


def test_an_answer_that_is_pending_stays_pending(world: World) -> None:
    for failed in (False, True):
        pending: Pending[Any] = Pending()
        result = audited(42, lambda ctx, request, pending=pending: pending)(
            world.context(42), classic.DeleteGroupsRequest(groups_names=["g"])
        )
        assert result is pending
        assert world.told.lines == []
        if failed:
            pending.fail(KafkaError(ErrorCode.NOT_COORDINATOR))
        else:
            pending.resolve(classic.DeleteGroupsResponse(results=[]))
        (line,) = world.told.lines
        assert line["result"] == ("NOT_COORDINATOR" if failed else "NONE")
        world.told.lines.clear()


def test_without_an_audit_log_the_handler_is_called_and_nothing_else(world: World) -> None:
    context = world.context(19)
    context.connection.audit = None
    answer = created(a=0)
    assert audited(19, lambda ctx, request: answer)(context, REQUEST) is answer
    world.told.changes = False
    assert audited(19, lambda ctx, request: answer)(world.context(19), REQUEST) is answer
    assert world.told.lines == []


def test_topics_that_are_made_on_demand(world: World) -> None:
    class Controller:
        async def create_topics(self, request: Any, context: RequestContext) -> Any:
            if request.topics[0].name == "bad":
                raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION)
            return created(a=0)

    creation = AuditedTopicCreation(Controller(), cast(Any, world.told))
    mine = RequestContext(7, principal=ALICE, client_id="c", client_address=bytes([10, 0, 0, 9]))
    asyncio.run(creation.create_topics(REQUEST, mine))
    asyncio.run(creation.create_topics(REQUEST, RequestContext(7)))
    with pytest.raises(KafkaError):
        asyncio.run(creation.create_topics(topics.CreateTopicsRequest(topics=[topic("bad")]), mine))
    assert [
        (line["principal"], line["address"], line["resource"], line["result"], line["on_demand"])
        for line in world.told.lines
    ] == [
        ("User:alice", "10.0.0.9", "a", "NONE", True),
        (None, None, "a", "NONE", True),
        ("User:alice", "10.0.0.9", "bad", "INVALID_TOPIC_EXCEPTION", True),
    ]
    world.told.lines.clear()
    world.told.changes = False
    asyncio.run(creation.create_topics(REQUEST, mine))
    assert world.told.lines == []


def test_handlers_of_what_changes_nothing_are_left_as_they_are() -> None:
    def handler(ctx: Context, request: Any) -> None: ...

    assert audited(3, handler) is handler


def test_a_bug_in_telling_is_not_the_clients(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.told.changed = None  # type: ignore[assignment, method-assign]
    answer = created(a=0)
    assert audited(19, lambda ctx, request: answer)(world.context(19), REQUEST) is answer
    assert "telling of a change" in caplog.text


def test_every_api_that_may_be_forwarded_is_told_of() -> None:
    """By Kafka's list of what only the controller decides; those between nodes and of other kinds are named."""
    of_nodes = {"ListPartitionReassignments", "AllocateProducerIds", "DescribeQuorum"}
    others = {"DeleteRecords", "AlterReplicaLogDirs", "DeleteGroups", "OffsetDelete"}
    others |= {"AlterShareGroupOffsets", "DeleteShareGroupOffsets"}
    assert {APIS[key].name for key in FORWARDABLE} - of_nodes | others == CHANGES.keys()
    assert CHANGES.keys() == CHANGING
    assert CHANGES.keys() <= ACCESS.keys()
    assert all(ACCESS[name] is not EVERYBODY or "Token" in name for name in CHANGES)
