"""Who may write what: by the topic, and in a transaction by its id first."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.authorizers import ALICE, BOB, judging, rule
from tests.support.fetch_world import NAME, World

from ottla.model.errors import ErrorCode
from ottla.model.ids import Uuid
from ottla.records.record import build_batch
from ottla.security.acls import AclOperation, ResourceType
from ottla.server.handlers import produce as handler
from ottla.wire.codec import decode
from ottla.wire.framing import encode_request
from ottla.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

NOW = 1_700_000_000_000
DENIED, NONE = ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.NONE
DENIED_ID = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
HIDDEN, ABSENT = "hidden", "absent"
IDS = {NAME: World.topic_id(0), HIDDEN: World.topic_id(1), ABSENT: World.topic_id(7)}
WRITE_ORDERS = rule(AclOperation.WRITE, NAME)
TRANSACTION = rule(AclOperation.WRITE, "tx", kind=ResourceType.TRANSACTIONAL_ID)


class Verification:
    """Notes what is asked about."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def begin_produce(self, request: Any, view: memoryview, version: int) -> None:
        self.asked.append([topic for topic, _ in request.topics])


class Broker:
    """Two topics, of which alice may write to one."""

    def __init__(self, dir: Path, executor: ThreadPoolExecutor) -> None:
        self.world = World(dir, replicas=(1,), executor=executor)
        self.logs = {NAME: self.world.host(0).log, HIDDEN: self.world.host(0, topic=1, name=HIDDEN).log}
        self.verification = Verification()
        self.closed: list[str] = []
        self.services = self.world.services
        self.services.clock.now_ms = lambda: NOW
        self.services.verification = self.verification
        self.services.unpacking = SimpleNamespace()
        self.services.authorizer = judging(WRITE_ORDERS)
        self.connection = self.world.connection
        self.connection.principal = ALICE
        self.connection.close = self.closed.append

    def produce(
        self, *names: str, version: int = 13, acks: int = 1, records: bytes | None = None, **fields: Any
    ) -> dict[Any, int] | None:
        """The error of each topic."""
        data = PartitionProduceData(index=0, records=batch() if records is None else records)
        topics = [
            TopicProduceData(name=name, partition_data=[data])
            if version < 13
            else TopicProduceData(topic_id=IDS[name], partition_data=[data])
            for name in names
        ]
        request = ProduceRequest(acks=acks, timeout_ms=100, topic_data=topics, **fields)
        frame = bytearray(encode_request(request, version, 5, "client"))
        reply: Any = handler.produce(
            self.services, self.connection, memoryview(frame), version, 5, 4, len(frame)
        )
        if asyncio.iscoroutine(reply):
            reply = self.wait_for(reply)
        if reply is None:
            return None
        response, _ = decode(ProduceResponse, reply, version, 9 if version >= 9 else 8)
        by_id = {topic_id: name for name, topic_id in IDS.items()}
        return {
            (topic.name if version < 13 else by_id[topic.topic_id]): partition.error_code
            for topic in response.responses
            for partition in topic.partition_responses
        }

    def wait_for(self, reply: Any) -> Any:
        async def main() -> Any:
            self.services.loop = asyncio.get_running_loop()
            return await reply

        return asyncio.run(main())

    def written(self) -> dict[str, int]:
        return {name: log.log_end_offset for name, log in self.logs.items()}


def batch(**options: Any) -> bytes:
    return bytes(build_batch([(NOW, None, b"v", ())], **options))


def transactional() -> bytes:
    return batch(transactional=True, producer_id=7, producer_epoch=0, base_sequence=0)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with ThreadPoolExecutor(1) as executor:
        yield Broker(tmp_path, executor)


@pytest.mark.parametrize("version", [3, 9, 12, 13])
def test_only_what_may_be_written_to_is(broker: Broker, version: int) -> None:
    assert broker.produce(HIDDEN, version=version) == {HIDDEN: DENIED}
    assert broker.produce(NAME, version=version) == {NAME: NONE}
    assert broker.produce(HIDDEN, NAME, version=version) == {NAME: NONE, HIDDEN: DENIED}
    assert broker.written() == {NAME: 2, HIDDEN: 0}


def test_names_are_judged_before_it_is_looked_whether_they_exist(broker: Broker) -> None:
    assert broker.produce(ABSENT, HIDDEN, version=12) == {ABSENT: DENIED, HIDDEN: DENIED}
    broker.services.authorizer = judging(WRITE_ORDERS, rule(AclOperation.WRITE, ABSENT))
    assert broker.produce(ABSENT, version=12) == {ABSENT: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


def test_an_id_that_nobody_knows_is_unknown(broker: Broker) -> None:
    assert broker.produce(ABSENT, NAME) == {ABSENT: ErrorCode.UNKNOWN_TOPIC_ID, NAME: NONE}


@pytest.mark.parametrize("operation", [AclOperation.READ, AclOperation.DESCRIBE, AclOperation.CREATE])
def test_another_operation_is_not_enough(broker: Broker, operation: AclOperation) -> None:
    broker.services.authorizer = judging(rule(operation, NAME))
    assert broker.produce(NAME) == {NAME: DENIED}


@pytest.mark.parametrize("version", [12, 13])
def test_what_is_known_of_a_connection_holds_until_rules_or_principal_change(
    broker: Broker, version: int
) -> None:
    for _ in range(3):
        assert broker.produce(NAME, version=version) == {NAME: NONE}
    assert broker.produce(HIDDEN, version=version) == {HIDDEN: DENIED}
    broker.services.authorizer.apply([], removed=[Uuid(bytes(16))])
    assert broker.produce(NAME, version=version) == {NAME: DENIED}, "the next request"
    broker.services.authorizer.apply([(Uuid(bytes(16)), WRITE_ORDERS)])
    for _ in range(2):
        assert broker.produce(NAME, version=version) == {NAME: NONE}
    broker.connection.principal = BOB
    assert broker.produce(NAME, version=version) == {NAME: DENIED}
    broker.connection.principal = ALICE
    assert broker.produce(NAME, version=version) == {NAME: NONE}
    another = judging(rule(AclOperation.READ, NAME))
    another.version = broker.services.authorizer.version
    broker.services.authorizer = another
    assert broker.produce(NAME, version=version) == {NAME: DENIED}


def test_transactional_records_for_a_topic_that_is_known_need_the_transactional_id_too(
    broker: Broker,
) -> None:
    for _ in range(2):
        assert broker.produce(NAME) == {NAME: NONE}
    assert broker.produce(NAME, records=transactional(), transactional_id="tx") == {NAME: DENIED_ID}


def test_without_an_answer_the_connection_ends(broker: Broker) -> None:
    assert broker.produce(HIDDEN, acks=0) is None
    assert len(broker.closed) == 1
    assert "TOPIC_AUTHORIZATION_FAILED" in broker.closed[0]
    assert broker.written() == {NAME: 0, HIDDEN: 0}


def test_what_is_wrong_with_the_request_is_said_of_what_may_be_written_to(broker: Broker) -> None:
    found = broker.produce(HIDDEN, NAME, acks=7)
    assert found == {NAME: ErrorCode.INVALID_REQUIRED_ACKS, HIDDEN: DENIED}


@pytest.mark.parametrize("transactional_id", [None, "other"])
def test_transactional_records_need_the_transactional_id(
    broker: Broker, transactional_id: str | None
) -> None:
    """Whatever else is in the request (CVE-2018-17196), and whatever the topics are."""
    broker.services.authorizer = judging(WRITE_ORDERS, TRANSACTION)
    found = broker.produce(NAME, HIDDEN, records=transactional(), transactional_id=transactional_id)
    assert found == {NAME: DENIED_ID, HIDDEN: DENIED_ID}
    assert broker.verification.asked == []
    assert broker.written() == {NAME: 0, HIDDEN: 0}


def test_with_it_topics_are_judged_and_only_theirs_are_verified(broker: Broker) -> None:
    broker.services.authorizer = judging(WRITE_ORDERS, TRANSACTION)
    found = broker.produce(HIDDEN, NAME, records=transactional(), transactional_id="tx")
    assert found == {NAME: NONE, HIDDEN: DENIED}
    assert broker.verification.asked == [[IDS[NAME]]]


def test_a_transactional_id_without_such_records_is_not_asked_about(broker: Broker) -> None:
    assert broker.produce(NAME, transactional_id="other") == {NAME: NONE}
    idempotent = batch(producer_id=7, producer_epoch=0, base_sequence=0)
    assert broker.produce(NAME, records=idempotent) == {NAME: NONE}


@pytest.mark.parametrize("records", [batch(), transactional()], ids=["plain", "transactional"])
def test_very_many_topics_are_judged_too(broker: Broker, records: bytes) -> None:
    broker.services.authorizer = judging(WRITE_ORDERS, TRANSACTION)
    others = [f"other-{number}" for number in range(handler.INLINE_PARTITIONS)]
    found = broker.produce(HIDDEN, *others, NAME, version=12, records=records, transactional_id="tx")
    assert found == {NAME: NONE, HIDDEN: DENIED, **dict.fromkeys(others, DENIED)}
    assert broker.written() == {NAME: 1, HIDDEN: 0}
    broker.services.authorizer = judging(WRITE_ORDERS)
    again = broker.produce(*others, NAME, version=12, records=transactional(), transactional_id="tx")
    assert again == {NAME: DENIED_ID, **dict.fromkeys(others, DENIED_ID)}


def test_a_compressed_batch_for_a_topic_that_is_denied_is_not_unpacked(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def inspect(*_: Any) -> Any:
        raise AssertionError("it is looked into")

    monkeypatch.setattr(type(broker.logs[HIDDEN]), "inspect", inspect)
    broker.services.unpacking = SimpleNamespace(run=inspect)
    assert broker.produce(HIDDEN, records=batch(compression=1)) == {HIDDEN: DENIED}
