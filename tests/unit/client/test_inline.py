"""The inline client over real sockets, with a broker that says what the test wants, as it wants it."""

import os
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.client.stub_broker import CLOSE, CLOSE_WITHIN, GARBAGE, StubBroker

from ottla.client.config import ClientConfig
from ottla.client.consumer.inline import RawFetcher, plain_sections
from ottla.client.errors import Closed, ConfigError, NoBrokersAvailable, StateError, TimedOut
from ottla.client.inline import InlineClient
from ottla.client.network import Ask, NetworkCore
from ottla.client.offsets import EARLIEST, LATEST
from ottla.client.producer.inline import RawProducer, Written
from ottla.client.transaction.by_id import init_producer_id
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition
from ottla.net import selector
from ottla.net.selector import InlineDriver, Link
from ottla.net.transport import monotonic_ms
from ottla.records.record import build_batch
from ottla.wire.messages.fetch import FetchRequest
from ottla.wire.messages.list_offsets import ListOffsetsRequest
from ottla.wire.messages.metadata import MetadataRequest
from ottla.wire.messages.produce import ProduceRequest

TP = TopicPartition("t", 0)
HOUR_MS = 3_600_000


@pytest.fixture
def broker() -> Iterator[StubBroker]:
    with StubBroker() as running:
        running.cluster.create("t", 2)
        yield running


@pytest.fixture
def client(broker: StubBroker) -> Iterator[InlineClient]:
    with InlineClient(bootstrap_servers=broker.address) as started:
        yield started


def write(client: InlineClient, count: int, size_bytes: int = 100, tp: TopicPartition = TP) -> Written:
    """Batches of one record each."""
    producer_id, epoch = init_producer_id(client, None)
    with RawProducer(client, producer_id=producer_id, producer_epoch=epoch) as producer:
        for number in range(count):
            value = b"%d" % number * (1 + size_bytes // 4)
            producer.send(tp, 1, build_batch([(1000, None, value, ())]))
        return producer.flush()[tp]


def once(kind: type, how: str) -> Any:
    """A script for the first request of a kind."""
    done: list[Any] = []

    def script(request: Any) -> str | None:
        if isinstance(request, kind) and not done:
            done.append(request)
            return how
        return None

    return script


def offsets(client: InlineClient, end: int, **more: Any) -> list[int]:
    chunks = RawFetcher(client, TP, 0, end, **more)
    return [section.base_offset for chunk in chunks for section in plain_sections(chunk)]


# -- asking ---------------------------------------------------------------------------------------------


def test_it_finds_the_cluster_and_answers(client: InlineClient) -> None:
    assert client.core.metadata.cluster_id == "fake"
    assert sorted(client.topic("t").partitions) == [0, 1]
    assert client.list_offsets({TP: LATEST})[TP].offset == 0
    assert client.list_offsets({TP: EARLIEST}, read_committed=True)[TP].offset == 0


def test_several_requests_at_once_come_back_in_their_order(client: InlineClient, broker: StubBroker) -> None:
    names = [[], None]
    requests = [MetadataRequest(topics=topics) for topics in names]

    def ask(request: MetadataRequest, node_id: int) -> Ask[Any]:
        return Ask(request, node_id, lambda response: response)

    known, everything, lost = client.ask_all(
        [ask(requests[0], 1), ask(requests[1], 1), ask(requests[0], 99)], timeout_ms=300
    )
    assert [len(answer.topics) for answer in (known, everything)] == [0, 1]
    assert isinstance(lost, TimedOut)
    assert "node 99 is not in the cluster" in str(lost)


def test_a_request_that_fails_raises(client: InlineClient) -> None:
    with pytest.raises(TimedOut, match="node 99"):
        client.request(MetadataRequest(topics=[]), 99, timeout_ms=200)


def test_topics_by_name_and_all(client: InlineClient, broker: StubBroker) -> None:
    broker.cluster.create("u", 3)
    assert sorted(client.topics()) == ["t", "u"]
    known = client.topics(["u", "v"])
    assert len(known["u"].partitions) == 3
    assert known["v"].error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    with pytest.raises(KafkaError, match="'v': does not exist"):
        client.topic("v")


def test_a_topic_is_looked_at_anew_each_time(client: InlineClient, broker: StubBroker) -> None:
    assert len(client.topic("t").partitions) == 2
    broker.cluster.create("t", 5)
    assert len(client.topic("t").partitions) == 5
    broker.cluster.topics.pop("t")
    with pytest.raises(KafkaError, match="'t': does not exist"):
        client.topic("t")


def test_the_first_error_of_list_offsets_is_raised(client: InlineClient) -> None:
    with pytest.raises(KafkaError, match="t-7 does not exist"):
        client.list_offsets({TP: LATEST, TopicPartition("t", 7): LATEST})


def test_until_gives_up_in_time(client: InlineClient) -> None:
    before = client.now_ms()
    assert not client.until(lambda: False, 30)
    assert client.now_ms() - before >= 30
    assert client.until(lambda: True, 0)


def test_the_clock_stands_still_while_nobody_turns(
    client: InlineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a caller does between two calls takes nothing from the time of a request in flight."""
    before = client.now_ms()
    monkeypatch.setattr(selector, "monotonic_ms", lambda: monotonic_ms() + HOUR_MS)
    assert client.now_ms() == before
    client.turn()
    assert 0 <= client.now_ms() - before < HOUR_MS


def test_a_call_within_a_call_is_refused(client: InlineClient) -> None:
    """As it would happen with two threads."""
    with pytest.raises(StateError, match="one thread at a time"):
        client.until(lambda: bool(client.topics()), 1000)
    assert client.topics()


def test_settings_nobody_knows_are_refused() -> None:
    with pytest.raises(ConfigError, match="unknown setting"):
        InlineClient({"no.such.setting": 1})


# -- life -----------------------------------------------------------------------------------------------


def test_a_closed_client_says_so(broker: StubBroker) -> None:
    client = InlineClient(bootstrap_servers=broker.address)
    with pytest.raises(Closed, match="not started"):
        client.topics()
    client.start()
    client.close()
    client.close()
    with pytest.raises(Closed):
        client.topics()


def test_closing_leaves_no_socket_open(broker: StubBroker) -> None:
    with InlineClient(bootstrap_servers=broker.address) as client:
        client.list_offsets({TP: LATEST})
        open_now = [link.sock for link in client.driver._links.values()]
        assert open_now
    assert all(sock is not None and sock.fileno() == -1 for sock in open_now)


def test_nobody_at_the_address() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        client = InlineClient(bootstrap_servers=f"127.0.0.1:{port}", bootstrap_timeout_ms=0)
        with pytest.raises(NoBrokersAvailable, match=f"127.0.0.1:{port}: connection refused"):
            client.start()


def test_a_name_that_cannot_be_resolved() -> None:
    client = InlineClient(bootstrap_servers="no-such-host.invalid:9092", bootstrap_timeout_ms=0)
    with pytest.raises(NoBrokersAvailable, match=r"no-such-host.invalid:9092: \w+"):
        client.start()


@pytest.mark.parametrize("host", ["broker..example", "b" * 64])
def test_what_cannot_be_a_name_is_an_address_that_fails(host: str, broker: StubBroker) -> None:
    """A broker may advertise anything, and no resolver gets to see this."""
    client = InlineClient(bootstrap_servers=f"{host}:9092", bootstrap_timeout_ms=0)
    with pytest.raises(NoBrokersAvailable, match=rf"{host}:9092: .*label"):
        client.start()
    with InlineClient(
        bootstrap_servers=f"{host}:9092,{broker.address}", bootstrap_timeout_ms=20_000
    ) as reached:
        assert reached.topics()


def test_the_next_address_is_tried(broker: StubBroker) -> None:
    with InlineClient(
        bootstrap_servers=f"127.0.0.1:1,{broker.address}", bootstrap_timeout_ms=20_000
    ) as client:
        assert client.topics()


def test_a_host_with_two_addresses(broker: StubBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody listens on the first, the second is called."""
    port = int(broker.address.rpartition(":")[2])
    plain = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
    found = [(*plain, ("127.0.0.2", port)), (*plain, ("127.0.0.1", port))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    with InlineClient(bootstrap_servers=f"two:{port}", bootstrap_timeout_ms=0) as client:
        assert client.topics()


def test_a_connection_to_itself_is_no_connection() -> None:
    """On a port nobody listens on, TCP may connect a caller with itself; the broker could not come back there."""
    driver = InlineDriver(NetworkCore(ClientConfig()))
    with socket.socket() as ours:
        ours.bind(("127.0.0.1", 0))
        ours.connect(ours.getsockname())
        link = Link(0, "127.0.0.1", [])
        link.sock = ours.dup()
        told: list[str] = []
        driver._lost = lambda number, reason: told.append(reason)  # type: ignore[method-assign]
        driver._on_connected(link)
    assert told == ["connection refused"]
    driver.close()


def test_a_fork_is_noticed(client: InlineClient, broker: StubBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: pid + 1)
    words = f"made in process {pid} and is used in {pid + 1}, after a fork"
    for call in (client.topics, client.turn, lambda: offsets(client, 1), lambda: client.until(bool, 1)):
        with pytest.raises(StateError, match=words):
            call()
    producer = RawProducer(client, producer_id=1, producer_epoch=0)
    with pytest.raises(StateError, match=words):
        producer.send(TP, 1, bytearray())


# -- bytes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pieces", [1, 3, 1000])
def test_answers_in_any_pieces(broker: StubBroker, pieces: int) -> None:
    broker.pieces = pieces
    with InlineClient(bootstrap_servers=broker.address) as client:
        assert write(client, 20) == Written(0, 19, 20)
        assert offsets(client, 20) == list(range(20))


def test_large_answers_and_large_requests(client: InlineClient, broker: StubBroker) -> None:
    write(client, 40, size_bytes=500_000)
    chunks = list(RawFetcher(client, TP, 0, 40, max_bytes=6_000_000))
    assert max(len(chunk.data) for chunk in chunks) > 4_000_000
    assert sum(len([*plain_sections(chunk)]) for chunk in chunks) == 40


def test_a_chunk_is_a_view_of_what_the_socket_was_read_into(client: InlineClient) -> None:
    """No copy between the two: only the chunk keeps the buffer alive."""
    write(client, 4, size_bytes=200_000)
    chunk, *_ = RawFetcher(client, TP, 0, 4)
    assert isinstance(chunk.data.obj, bytearray)
    assert len(chunk.data) < len(chunk.data.obj) < len(chunk.data) + 1000


@pytest.mark.parametrize("how", [CLOSE, CLOSE_WITHIN, GARBAGE])
@pytest.mark.parametrize("kind", [FetchRequest, ListOffsetsRequest, ProduceRequest])
def test_connections_that_end_at_any_moment(
    client: InlineClient, broker: StubBroker, how: str, kind: type
) -> None:
    broker.script = once(kind, how)
    assert write(client, 10) == Written(0, 9, 10)
    assert client.list_offsets({TP: LATEST})[TP].offset == 10
    assert offsets(client, 10) == list(range(10))


def test_a_broker_that_hung_up_between_two_calls(client: InlineClient, broker: StubBroker) -> None:
    client.list_offsets({TP: LATEST})
    accepted = broker.accepted
    broker.hang_up()
    assert client.list_offsets({TP: LATEST})[TP].offset == 0
    assert broker.accepted > accepted


def test_a_reader_that_stops_in_the_middle_leaves_the_client_usable(
    client: InlineClient, broker: StubBroker
) -> None:
    write(client, 50)
    for _ in range(3):
        for chunk in RawFetcher(client, TP, 0, 50, max_bytes=500):
            assert chunk.fetch_offset == 0
            break
    assert offsets(client, 50, max_bytes=500) == list(range(50))
    assert client.core.request_managers == []


def test_two_readers_take_turns(client: InlineClient) -> None:
    write(client, 30)
    write(client, 30, tp=TopicPartition("t", 1))
    one, other = (iter(RawFetcher(client, TopicPartition("t", p), 0, 30, max_bytes=500)) for p in (0, 1))
    pairs = list(zip(one, other, strict=True))
    assert len(pairs) > 3
    assert all(left.next_offset == right.next_offset for left, right in pairs)


# -- TLS ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for 127.0.0.1 that nobody but the test trusts; its key beside it."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate")
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-keyout", folder / "key.pem", "-out", folder / "cert.pem", "-days", "2"),
            *("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"),
        ],
        check=True,
        capture_output=True,
    )
    return folder / "cert.pem"


@pytest.fixture
def secret(certificate: Path) -> Iterator[StubBroker]:
    """A broker behind TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_name("key.pem"))
    with StubBroker(context) as running:
        running.cluster.create("t", 1)
        yield running


def test_everything_over_tls(secret: StubBroker, certificate: Path) -> None:
    trusting = ssl.create_default_context(cafile=str(certificate))
    with InlineClient(bootstrap_servers=secret.address, ssl_context=trusting) as client:
        write(client, 20, size_bytes=200_000)
        assert offsets(client, 20) == list(range(20))
        secret.script = once(FetchRequest, CLOSE_WITHIN)
        assert offsets(client, 20) == list(range(20))


def test_an_unknown_certificate_is_refused(secret: StubBroker) -> None:
    client = InlineClient(bootstrap_servers=secret.address, security_protocol="SSL", bootstrap_timeout_ms=0)
    with pytest.raises(NoBrokersAvailable, match="TLS: certificate verify failed"):
        client.start()


def test_plain_text_at_a_tls_listener_gets_a_hint(secret: StubBroker) -> None:
    client = InlineClient(bootstrap_servers=secret.address, bootstrap_timeout_ms=0)
    with pytest.raises(NoBrokersAvailable, match="a listener with TLS"):
        client.start()


def test_tls_at_a_listener_that_waits_for_more_is_given_up(broker: StubBroker, certificate: Path) -> None:
    trusting = ssl.create_default_context(cafile=str(certificate))
    client = InlineClient(
        bootstrap_servers=broker.address,
        ssl_context=trusting,
        bootstrap_timeout_ms=0,
        socket_connection_setup_timeout_ms=300,
    )
    with pytest.raises(NoBrokersAvailable, match="could not be set up in time"):
        client.start()
