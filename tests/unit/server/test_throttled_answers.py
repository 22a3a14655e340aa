"""A whole broker with quotas: every answer that can says how long to wait, and whoever does not wait is not read."""

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.interop.process import receive_frame
from tests.unit.storage.log_support import batch

from ottla.client.admin.types import NewTopic, quota_entity
from ottla.client.blocking import Admin
from ottla.model.errors import ErrorCode
from ottla.server import handlers
from ottla.server.dispatch import _begins_with_throttle_time
from ottla.server.network.connection import Listener
from ottla.server.registry import routes
from ottla.testing import Broker
from ottla.wire.codec import decode, encode
from ottla.wire.framing import decode_response_header, encode_request
from ottla.wire.messages.admin import topics as t
from ottla.wire.messages.admin.cluster import DescribeClusterRequest
from ottla.wire.messages.admin.configs import DescribeConfigsRequest, DescribeConfigsResource
from ottla.wire.messages.admin.quotas import DescribeClientQuotasRequest
from ottla.wire.messages.api_versions import ApiVersionsRequest
from ottla.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.wire.messages.groups import classic, share
from ottla.wire.messages.list_offsets import ListOffsetsRequest
from ottla.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.wire.messages.producers import InitProducerIdRequest
from ottla.wire.messages.security.acls import CreateAclsRequest
from ottla.wire.registry import response_class
from ottla.wire.schema import schema_of

TOPIC = "orders"
CLIENTS = quota_entity(client_id=None)


class Client:
    """One connection, on which nothing is retried."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=60)

    def send(self, request: Any, version: int, client_id: str = "test") -> None:
        self.socket.sendall(encode_request(request, version, 7, client_id))

    def receive(self, request: Any, version: int) -> Any:
        answer = receive_frame(self.socket)
        _, start = decode_response_header(answer, 0, request.API_KEY, version)
        return decode(response_class(request.API_KEY), answer, version, start)[0]

    def ask(self, request: Any, version: int, client_id: str = "test") -> Any:
        self.send(request, version, client_id)
        return self.receive(request, version)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


class Limited:
    """The broker, and an administrator who is called otherwise and so not limited."""

    def __init__(self, address: str, admin: Admin) -> None:
        self.address = address
        self.admin = admin

    def limit(self, **values: float | None) -> None:
        errors = self.admin.alter_client_quotas({quota_entity(client_id="test"): dict(values)})
        assert set(errors.values()) == {None}

    def client(self) -> Client:
        return Client(self.address)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Limited]:
    data_dir: Path = tmp_path_factory.mktemp("quotas")
    with (
        Broker({"group.share.assignment.interval.ms": 0}, data_dir=data_dir) as running,
        Admin(bootstrap_servers=running.bootstrap_servers) as admin,
    ):
        # The records of these tests are years old, and the first look at what has expired comes after half a minute.
        admin.create_topics([NewTopic(TOPIC, 1, configs={"retention.ms": "-1"})])
        yield Limited(running.bootstrap_servers, admin)


@pytest.fixture
def limited(broker: Limited) -> Iterator[Limited]:
    yield broker
    keys = ("producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate")
    broker.limit(**dict.fromkeys(keys))


def produce(size: int = 10, acks: int = 1, topic: str = TOPIC) -> ProduceRequest:
    data = PartitionProduceData(index=0, records=bytes(batch(bytes(size))))
    return ProduceRequest(
        acks=acks, timeout_ms=5_000, topic_data=[TopicProduceData(name=topic, partition_data=[data])]
    )


def fetch(max_bytes: int = 1 << 20) -> FetchRequest:
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=max_bytes)
    return FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=max_bytes,
        topics=[FetchTopic(topic=TOPIC, partitions=[partition])],
    )


ASKED: list[tuple[Any, int]] = [
    (ApiVersionsRequest(client_software_name="a", client_software_version="1"), 4),
    (MetadataRequest(topics=None), 3),
    (MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)]), 13),
    (produce(), 3),
    (produce(), 9),
    (produce(acks=-1), 12),
    (produce(acks=7), 12),
    (produce(topic="none"), 11),
    (fetch(), 4),
    (fetch(), 12),
    (ListOffsetsRequest(replica_id=-1, topics=[]), 5),
    (DescribeConfigsRequest(resources=[DescribeConfigsResource(resource_type=2, resource_name=TOPIC)]), 4),
    (DescribeClusterRequest(), 1),
    (DescribeClientQuotasRequest(components=[], strict=False), 1),
    (InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1_000), 4),
    (CreateAclsRequest(creations=[]), 2),
    (t.CreateTopicsRequest(topics=[], timeout_ms=1_000), 7),
    (t.DeleteTopicsRequest(topics=[], timeout_ms=1_000), 6),
    (classic.FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4),
    (classic.ListGroupsRequest(), 4),
    (classic.HeartbeatRequest(group_id="g", generation_id=1, member_id="m"), 4),
    (classic.OffsetFetchRequest(groups=[classic.OffsetFetchRequestGroup(group_id="g", topics=None)]), 8),
    (classic.OffsetDeleteRequest(group_id="g", topics=[]), 0),
    (share.ShareFetchRequest(group_id="g", member_id="m", share_session_epoch=0), 1),
    (share.ShareGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=5), 1),
]


@pytest.mark.parametrize(("request_", "version"), ASKED, ids=lambda each: type(each).__name__)
def test_an_answer_says_how_long_to_wait_for_the_time_of_requests(
    limited: Limited, request_: Any, version: int
) -> None:
    limited.limit(request_percentage=1e-6)
    with limited.client() as client:
        client.ask(ASKED[0][0], ASKED[0][1])
    with limited.client() as client:
        answer = client.ask(request_, version)
    assert 0 < answer.throttle_time_ms <= 1_000
    with limited.client() as client:
        assert client.ask(request_, version, "other").throttle_time_ms == 0


def test_a_large_request_is_measured_and_told_too(limited: Limited) -> None:
    limited.limit(request_percentage=1e-6)
    names = [f"{'x' * 200}-{number}" for number in range(1_000)]
    wanted = MetadataRequest(
        topics=[MetadataRequestTopic(name=name) for name in names], allow_auto_topic_creation=False
    )
    for _ in range(2):
        with limited.client() as client:
            answer = client.ask(wanted, 12)
    assert answer.throttle_time_ms > 0
    assert len(answer.topics) == 1_000
    limited.limit(request_percentage=None)
    with limited.client() as client:
        assert client.ask(wanted, 12).throttle_time_ms == 0


def test_an_old_version_that_has_no_such_field_is_answered_as_ever(limited: Limited) -> None:
    limited.limit(request_percentage=1e-6)
    with limited.client() as client:
        client.ask(MetadataRequest(topics=None), 1)
    with limited.client() as client:
        answer = client.ask(MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)]), 1)
    assert [topic.name for topic in answer.topics] == [TOPIC]


def test_a_client_that_does_not_wait_is_not_served_meanwhile(limited: Limited) -> None:
    limited.limit(producer_byte_rate=20_000.0)
    with limited.client() as client:
        began = time.monotonic()
        for _ in range(3):
            client.send(produce(100_000), 9)
        answers = [client.receive(produce(), 9) for _ in range(3)]
        took_s = time.monotonic() - began
    throttled = [answer.throttle_time_ms for answer in answers]
    assert throttled[0] == 0
    assert throttled[2] > 0
    assert took_s * 1_000 >= sum(throttled[:2]) * 0.99, "the third had to wait for the first two"
    assert all(
        not p.error_code for answer in answers for r in answer.responses for p in r.partition_responses
    )


def test_acks_0_is_held_without_an_answer(limited: Limited) -> None:
    limited.limit(producer_byte_rate=50_000.0)
    with limited.client() as client:
        client.send(produce(550_000, acks=0), 9)  # a second too much, more or less
        began = time.monotonic()
        assert client.ask(ASKED[0][0], ASKED[0][1]).throttle_time_ms == 0
        assert time.monotonic() - began >= 0.8


def test_a_fetch_that_is_too_much_is_empty_and_the_next_after_the_wait_is_not(limited: Limited) -> None:
    with limited.client() as client:
        assert client.ask(produce(90_000), 9).responses
        limited.limit(consumer_byte_rate=20_000.0)
        sizes, throttles, began = [], [], time.monotonic()
        for _ in range(4):
            answer = client.ask(fetch(), 12)
            throttles.append(answer.throttle_time_ms)
            sizes.append(sum(len(p.records or b"") for topic in answer.responses for p in topic.partitions))
        took_s = time.monotonic() - began
    assert sizes[0] > 0
    for size, throttle_ms in zip(sizes, throttles, strict=True):
        assert (size == 0) == (throttle_ms > 0)
    assert took_s * 1_000 >= sum(throttles[:-1]) * 0.99


def test_changes_of_topics_are_refused_and_waited_for(limited: Limited) -> None:
    limited.limit(controller_mutation_rate=1.0)

    def creating(name: str, partitions: int) -> t.CreateTopicsRequest:
        topic = t.CreatableTopic(
            name=name, num_partitions=partitions, replication_factor=1, assignments=[], configs=[]
        )
        return t.CreateTopicsRequest(topics=[topic], timeout_ms=5_000)

    with limited.client() as client:
        answer = client.ask(creating("first", 12), 7)
        assert (answer.topics[0].error_code, answer.throttle_time_ms) == (0, 0)
        answer = client.ask(creating("second", 1), 7)
        assert answer.topics[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        assert 0 < answer.throttle_time_ms <= 1_000
        # It is not read before it may be: then it is let in.
        answer = client.ask(creating("second", 1), 7)
        assert (answer.topics[0].error_code, answer.throttle_time_ms) == (0, 0)
    with limited.client() as client:
        answer = client.ask(creating("third", 3), 5)
        assert answer.topics[0].error_code == 0, "an old client is let in"
        assert answer.throttle_time_ms > 1_000


def test_quotas_hold_again_after_a_restart(tmp_path: Path) -> None:
    entity = quota_entity(user="ANONYMOUS", client_id="test")
    with Broker(data_dir=tmp_path) as broker, Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        # The records of these tests are years old, and the first look at what has expired comes after half a minute.
        admin.create_topics([NewTopic(TOPIC, 1, configs={"retention.ms": "-1"})])
        assert admin.alter_client_quotas({entity: {"producer_byte_rate": 10.0}}) == {entity: None}
    with Broker(data_dir=tmp_path) as broker, Client(broker.bootstrap_servers) as client:
        assert client.ask(produce(1_000), 9).throttle_time_ms > 0


def test_every_response_can_carry_it_or_leaves_it_out() -> None:
    handlers.load()
    handlers.load_rest()
    served = routes(Listener.BROKER) | routes(Listener.CONTROLLER)
    carried = 0
    for api_key, route in served.items():
        response = response_class(api_key)
        schema = schema_of(response)
        fields = {field.name: field for field in schema.fields}
        field = fields.get("throttle_time_ms")
        if field is None:
            continue
        carried += 1
        for version in range(max(route.min_version, schema.versions[0]), route.max_version + 1):
            made = response()
            made.throttle_time_ms = 4711
            encoded = bytes(encode(made, version))
            if field.is_in(version):
                assert decode(response, encoded, version, 0)[0].throttle_time_ms == 4711
            assert _begins_with_throttle_time(api_key, version) == encoded.startswith(
                (4711).to_bytes(4, "big")
            )
    assert carried > 50
