"""Who may ask what: the table says it of every API, the dispatcher holds to it, and handlers have the means to."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from inspect import iscoroutine
from typing import Any

import pytest
from tests.support.controller_node import ControllerNode
from tests.support.controller_requests import ALL as CONTROLLER_REQUESTS
from tests.support.controller_requests import CREATE_TOPICS, FORWARDED

from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import ZERO_UUID, Uuid
from ottla.security.acls import (
    ALL_TOPIC_OPERATIONS,
    CLUSTER_NAME,
    AclBinding,
    AclOperation,
    AclPermissionType,
    PatternType,
    ResourceType,
    operation_bits,
)
from ottla.security.authorizer import StandardAuthorizer
from ottla.security.principal import KafkaPrincipal, write_principal
from ottla.server import handlers, registry
from ottla.server.authorization import ACCESS, CONTROLLER_ACCESS, EVERYBODY, access_of
from ottla.server.context import Context, Sender
from ottla.server.dispatch import Dispatcher
from ottla.server.network.connection import Listener
from ottla.server.network.output import Deferred
from ottla.server.registry import ADVERTISED, Route, routes
from ottla.wire.codec import decode
from ottla.wire.framing import RequestHeader, decode_response_header, request_frame
from ottla.wire.messages.admin.log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from ottla.wire.messages.groups import share_state
from ottla.wire.messages.nodes.envelope import EnvelopeRequest
from ottla.wire.messages.security.acls import DescribeAclsRequest
from ottla.wire.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from ottla.wire.registry import APIS, request_class, response_class

ALICE, BROKER = KafkaPrincipal("User", "alice"), KafkaPrincipal("User", "broker-2")
TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
READ, WRITE, DESCRIBE = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE
DENIED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED

handlers.load()
handlers.load_rest()


def rule(
    operation: AclOperation,
    kind: ResourceType = CLUSTER,
    name: str = CLUSTER_NAME,
    principal: KafkaPrincipal = ALICE,
    host: str = "*",
) -> AclBinding:
    return AclBinding(
        kind, name, PatternType.LITERAL, str(principal), host, operation, AclPermissionType.ALLOW
    )


def judging(*rules: AclBinding) -> StandardAuthorizer:
    made = StandardAuthorizer()
    made.apply([(Uuid(number.to_bytes(16, "big")), each) for number, each in enumerate(rules)])
    return made


def run(work: Callable[[ControllerNode], Awaitable[None]]) -> None:
    async def main() -> None:
        node = ControllerNode()
        try:
            await work(node)
        finally:
            node.close()

    asyncio.run(asyncio.wait_for(main(), 60))


# --- the table


def test_it_names_every_api_that_is_advertised() -> None:
    names = {api.name for api in APIS.values()}
    assert set(ACCESS) <= names
    assert set(CONTROLLER_ACCESS) <= set(ACCESS)
    assert [key for key in ADVERTISED if access_of(key, Listener.BROKER) is None] == []


@pytest.mark.parametrize("listener", list(Listener))
def test_every_route_has_its_entry(listener: Listener) -> None:
    assert {key: route.access for key, route in routes(listener).items()} == {
        key: access_of(key, listener) for key in routes(listener)
    }


def test_a_route_without_an_entry_is_not_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(ACCESS, "Heartbeat")
    monkeypatch.setattr(registry, "_routes", {Listener.BROKER: {}, Listener.CONTROLLER: {}})
    with pytest.raises(AssertionError, match="HeartbeatRequest: nothing says what it asks for"):
        registry.handles(request_class(12))(lambda ctx, request: None)


def test_only_what_comes_before_a_principal_and_ones_own_is_everybodys() -> None:
    assert {name for name, access in ACCESS.items() if access == EVERYBODY} == {
        *("ApiVersions", "SaslHandshake", "SaslAuthenticate"),
        *("RenewDelegationToken", "ExpireDelegationToken"),
    }


def test_what_nodes_say_to_one_another_asks_for_cluster_action() -> None:
    only_for_nodes = {key for key in routes(Listener.CONTROLLER) if key not in routes(Listener.BROKER)}
    asked = {APIS[key].name: access_of(key, Listener.CONTROLLER) for key in only_for_nodes}
    assert {name for name, access in asked.items() if access != ((AclOperation.CLUSTER_ACTION,), ())} == set()


# --- the dispatcher


def share_state_request(name: str) -> Any:
    request = getattr(share_state, f"{name}Request")
    topic = {
        "InitializeShareGroupState": share_state.InitializeStateData,
        "ReadShareGroupState": share_state.ReadStateData,
        "WriteShareGroupState": share_state.WriteStateData,
        "DeleteShareGroupState": share_state.DeleteStateData,
        "ReadShareGroupStateSummary": share_state.ReadStateSummaryData,
    }[name]
    partition = getattr(share_state, f"{name}RequestPartitionData")
    return request(group_id="g", topics=[topic(topic_id=ZERO_UUID, partitions=[partition(partition=3)])])


# Those that say an error at their items need some.
FILLED = {
    **{request.API_KEY: request for request in CONTROLLER_REQUESTS.values()},
    27: WriteTxnMarkersRequest(
        markers=[
            WritableTxnMarker(
                producer_id=1,
                producer_epoch=0,
                transaction_result=True,
                topics=[WritableTxnMarkerTopic(name="a", partition_indexes=[0])],
                coordinator_epoch=0,
            )
        ]
    ),
    34: AlterReplicaLogDirsRequest(
        dirs=[AlterReplicaLogDir(path="/d", topics=[AlterReplicaLogDirTopic(name="a", partitions=[0])])]
    ),
    # One that names what nobody knows would lose its connection.
    29: DescribeAclsRequest(
        resource_type_filter=1,
        resource_name_filter=None,
        pattern_type_filter=1,
        principal_filter=None,
        host_filter=None,
        operation=1,
        permission_type=1,
    ),
    **{key: share_state_request(APIS[key].name) for key in range(83, 88)},
}

JUDGED = [
    pytest.param(listener, route, id=f"{listener}-{APIS[key].name}")
    for listener in Listener
    for key, route in sorted(routes(listener).items())
    if route.access.cluster
]


async def ask(
    node: ControllerNode, listener: Listener, request: Any, version: int, connection: Any = None
) -> Any:
    """The response to a request, by the way that all requests go."""
    name = "CONTROLLER" if listener is Listener.CONTROLLER else "PLAINTEXT"
    frame = request_frame(request, version, 77, "client")[4:]
    connection = connection or alices(node, listener, name)
    answer: Any = Dispatcher(node.services, listener)(connection, memoryview(frame), 0, len(frame))
    if iscoroutine(answer):
        answer = await answer
    if isinstance(answer, Deferred):
        arrived: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        answer.then(arrived.set_result)
        answer = await arrived
    data = bytes(answer)[4:]
    _, offset = decode_response_header(data, 0, request.API_KEY, version)
    return decode(response_class(request.API_KEY), data, version, offset)[0]


def alices(node: ControllerNode, listener: Listener = Listener.CONTROLLER, name: str = "CONTROLLER") -> Any:
    connection = node.connection(listener, name)
    connection.principal = ALICE
    return connection


def codes(response: Any) -> list[int]:
    """Every error code in a response, however deep."""
    found: list[int] = []
    for name in type(response).__annotations__:
        value = getattr(response, name)
        if name == "error_code":
            found.append(value)
        elif isinstance(value, list):
            found += [
                code for each in value if hasattr(type(each), "__annotations__") for code in codes(each)
            ]
    return found


@pytest.mark.parametrize(("listener", "route"), JUDGED)
def test_whoever_may_not_ask_is_told_so_in_every_version(listener: Listener, route: Route) -> None:
    async def work(node: ControllerNode) -> None:
        node.services.authorizer = judging(rule(READ, TOPIC, "a"))
        request = FILLED.get(route.api_key) or route.request()
        for version in range(route.min_version, route.max_version + 1):
            response = await ask(node, listener, request, version)
            found = codes(response)
            # Where a response of an old version has no error at all, it is empty.
            assert set(found) <= {DENIED, 0}, version
            assert DENIED in found or (route.api_key, version) in SILENT, version
        assert node.controller.asked == []
        assert node.raft.asked == []

    run(work)


# DescribeLogDirs and Fetch say errors of their own from versions 3 and 7 on.
SILENT = {(35, 1), (35, 2), (1, 4), (1, 5), (1, 6)}


@pytest.mark.parametrize("name", FORWARDED)
def test_whoever_may_is_served_and_other_operations_do_not_help(name: str) -> None:
    async def work(node: ControllerNode) -> None:
        request = FORWARDED[name]
        access = access_of(request.API_KEY, Listener.CONTROLLER)
        assert access is not None
        version = ADVERTISED[request.API_KEY][1]
        for operation in access.cluster:
            node.services.authorizer = judging(rule(operation))
            assert DENIED not in codes(await ask(node, Listener.CONTROLLER, request, version))
        assert len(node.controller.asked) + len(node.raft.asked) == len(access.cluster)
        useless = set(AclOperation) - {*access.cluster, AclOperation.ALL}
        if access.cluster == (DESCRIBE,):
            useless -= {READ, WRITE, AclOperation.DELETE, AclOperation.ALTER}
        node.services.authorizer = judging(*(rule(operation) for operation in useless))
        if access.cluster:
            assert DENIED in codes(await ask(node, Listener.CONTROLLER, request, version))

    run(work)


@pytest.mark.parametrize(
    "route",
    [pytest.param(route, id=APIS[key].name) for key, route in sorted(routes(Listener.CONTROLLER).items())],
)
def test_a_controller_serves_whoever_may(route: Route) -> None:
    """What nodes ask of one another too; brokers are walked through in test_access_walk."""

    async def work(node: ControllerNode) -> None:
        request = FILLED.get(route.api_key) or route.request()
        for operation in route.access.cluster:
            node.services.authorizer = judging(rule(operation))
            answer = await ask(node, Listener.CONTROLLER, request, route.max_version)
            assert DENIED not in codes(answer)

    if route.access.cluster:
        run(work)


def test_a_large_request_is_judged_too() -> None:
    async def work(node: ControllerNode) -> None:
        node.services.authorizer = judging()
        (one,) = FORWARDED["delete_acls"].filters
        request = type(FORWARDED["delete_acls"])(filters=[one] * 9_000)
        response = await ask(node, Listener.CONTROLLER, request, 3)
        assert [result.error_code for result in response.filter_results] == [DENIED] * 9_000
        assert node.controller.asked == []

    run(work)


def test_a_host_counts_as_rules_spell_it() -> None:
    async def work(node: ControllerNode) -> None:
        request = FORWARDED["unregister_broker"]
        for peer, host in (("10.0.0.9", "10.0.0.9"), ("::1", "0:0:0:0:0:0:0:1")):
            connection = alices(node)
            connection.peer = (peer, 1)
            node.services.authorizer = judging(rule(AclOperation.ALTER, host=host))
            assert (await ask(node, Listener.CONTROLLER, request, 0, connection)).error_code == 0
            node.services.authorizer = judging(rule(AclOperation.ALTER, host="10.0.0.8"))
            assert (await ask(node, Listener.CONTROLLER, request, 0, connection)).error_code == DENIED

    run(work)


def test_an_authorizer_that_fails_is_no_permission() -> None:
    class Broken(StandardAuthorizer):
        def authorize(self, *asked: Any) -> bool:
            raise ZeroDivisionError

    async def work(node: ControllerNode) -> None:
        node.services.authorizer = Broken()
        response = await ask(node, Listener.CONTROLLER, FORWARDED["unregister_broker"], 0)
        assert response.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        assert node.controller.asked == []

    run(work)


# --- forwarded requests


async def forward(node: ControllerNode, request: Any, version: int, sender: Sender) -> Any:
    """The envelope's error, or the response inside."""
    connection = node.connection()
    connection.principal = BROKER
    sealed = EnvelopeRequest(
        request_data=bytes(request_frame(request, version, 5, "tool")[4:]),
        request_principal=write_principal(sender.principal),
        client_host_address=sender.address,
    )
    answer = await ask(node, Listener.CONTROLLER, sealed, 0, connection)
    if answer.error_code:
        return answer.error_code
    data = answer.response_data
    _, offset = decode_response_header(data, 0, request.API_KEY, version)
    return decode(response_class(request.API_KEY), data, version, offset)[0]


def test_it_is_judged_for_whoever_sent_it_and_the_envelope_for_the_broker() -> None:
    async def work(node: ControllerNode) -> None:
        request = FORWARDED["unregister_broker"]
        at = Sender(ALICE, b"\x0a\0\0\1")
        action = rule(AclOperation.CLUSTER_ACTION, principal=BROKER)
        alter = rule(AclOperation.ALTER, host="10.0.0.1")
        # A client that forges an envelope.
        node.services.authorizer = judging(alter)
        assert await forward(node, request, 0, at) == DENIED
        # A broker may not, for that, do in a client's name what the client may not.
        node.services.authorizer = judging(action, rule(AclOperation.ALTER, principal=BROKER))
        assert (await forward(node, request, 0, at)).error_code == DENIED
        assert node.controller.asked == []
        node.services.authorizer = judging(action, alter)
        assert (await forward(node, request, 0, at)).error_code == 0
        assert (await forward(node, request, 0, at._replace(address=b"\x0a\0\0\2"))).error_code == DENIED
        assert len(node.controller.asked) == 1

    run(work)


def test_what_its_handler_judges_is_not_judged_before_it() -> None:
    async def work(node: ControllerNode) -> None:
        action = rule(AclOperation.CLUSTER_ACTION, principal=BROKER)
        node.services.authorizer = judging(action)
        response = await forward(node, CREATE_TOPICS, 7, Sender(ALICE, bytes(4)))
        by_topic = [topic.error_code for topic in response.topics]
        assert by_topic == [ErrorCode.TOPIC_AUTHORIZATION_FAILED] * 2
        node.services.authorizer = judging(action, rule(AclOperation.CREATE))
        response = await forward(node, CREATE_TOPICS, 7, Sender(ALICE, bytes(4)))
        assert [topic.error_code for topic in response.topics] == [0, 0]

    run(work)


# --- what handlers have


def context(node: ControllerNode, forwarded_for: Sender | None = None, connection: Any = None) -> Context:
    header = RequestHeader(3, 12, 1, None)
    return Context(node.services, connection or alices(node), header, 0, forwarded_for=forwarded_for)


def test_without_an_authorizer_everybody_may() -> None:
    async def work(node: ControllerNode) -> None:
        ctx = context(node)
        assert ctx.authorize(READ, TOPIC, "a")
        assert ctx.authorized_names(READ, TOPIC, ["a", "b", "a"]) == {"a", "b"}
        assert ctx.authorized_by_type(WRITE, TOPIC)
        assert ctx.authorized_operations(TOPIC, "a") == ALL_TOPIC_OPERATIONS
        ctx.require(READ, TOPIC, "a")
        assert ctx.connection.decisions is None

    run(work)


def test_with_one_by_the_rules() -> None:
    async def work(node: ControllerNode) -> None:
        node.services.authorizer = judging(rule(READ, TOPIC, "a"), rule(WRITE, TOPIC, "b"))
        for ctx in (
            context(node),
            context(node, Sender(ALICE, bytes(4)), node.connection()),
        ):
            assert ctx.authorize(READ, TOPIC, "a")
            assert not ctx.authorize(READ, TOPIC, "b")
            assert ctx.authorized_names(DESCRIBE, TOPIC, ["a", "b", "c"]) == {"a", "b"}
            assert ctx.authorized_by_type(WRITE, TOPIC)
            assert not ctx.authorized_by_type(WRITE, GROUP)
            assert ctx.authorized_operations(TOPIC, "a") == operation_bits((READ, DESCRIBE))
            ctx.require(READ, TOPIC, "a")

    run(work)


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (TOPIC, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        (GROUP, ErrorCode.GROUP_AUTHORIZATION_FAILED),
        (CLUSTER, ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
        (ResourceType.TRANSACTIONAL_ID, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        (ResourceType.DELEGATION_TOKEN, ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED),
    ],
)
def test_what_is_required_and_not_there_is_the_resources_error(kind: ResourceType, code: ErrorCode) -> None:
    async def work(node: ControllerNode) -> None:
        node.services.authorizer = judging()
        with pytest.raises(KafkaError) as refused:
            context(node).require(DESCRIBE, kind, "x")
        assert refused.value.code is code

    run(work)


def test_what_is_kept_with_a_connection_is_its_principals() -> None:
    async def work(node: ControllerNode) -> None:
        node.services.authorizer = judging(rule(READ, TOPIC, "a"))
        connection = alices(node)
        assert context(node, connection=connection).authorize(READ, TOPIC, "a")
        kept = connection.decisions
        assert context(node, connection=connection).authorize(READ, TOPIC, "a")
        assert connection.decisions is kept
        # A request that is forwarded by this connection is another's.
        bob = Sender(KafkaPrincipal("User", "bob"), bytes(4))
        assert not context(node, bob, connection).authorize(READ, TOPIC, "a")
        connection.principal = bob.principal
        assert not context(node, connection=connection).authorize(READ, TOPIC, "a")
        connection.principal = ALICE
        assert context(node, connection=connection).authorize(READ, TOPIC, "a")
        # Another authorizer knows nothing of what this one has said.
        node.services.authorizer = judging()
        assert not context(node, connection=connection).authorize(READ, TOPIC, "a")

    run(work)


def test_a_right_that_is_taken_away_is_gone_with_the_next_request() -> None:
    async def work(node: ControllerNode) -> None:
        node.services.authorizer = judge = judging(rule(AclOperation.ALTER))
        connection = alices(node)
        request = FORWARDED["unregister_broker"]
        assert (await ask(node, Listener.CONTROLLER, request, 0, connection)).error_code == 0
        judge.apply((), [Uuid(bytes(16))])
        assert (await ask(node, Listener.CONTROLLER, request, 0, connection)).error_code == DENIED

    run(work)


# --- the log


def test_denials_are_told_of_once_and_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    async def work(node: ControllerNode) -> None:
        node.services.authorizer = judging(rule(READ, TOPIC, "a"))
        connection = alices(node)
        ctx = context(node, connection=connection)
        with caplog.at_level(logging.INFO, "ottla.authorizer"):
            ctx.authorize(READ, TOPIC, "a")
            ctx.authorize(READ, TOPIC, "b", log_if_denied=False)
            assert caplog.messages == []
            for _ in range(3):
                ctx.authorize(READ, TOPIC, "b")
            assert caplog.messages == [
                "'User:alice' from host 10.0.0.9 is denied READ on TOPIC 'b': no rule is about this resource, and "
                "allow.everyone.if.no.acl.found=false"
            ]
            ctx.authorized_names(READ, TOPIC, [f"t{n}\nforged" for n in range(100)])
            assert len(caplog.messages) == 2
            assert "'t9\\nforged' and 90 more" in caplog.messages[1]
            assert "\n" not in caplog.messages[1]

    run(work)
