"""The fast path of Fetch gives the bytes of the general handler or none, and leaves a session as that would."""

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.partition_world import PartitionWorld
from tests.unit.storage.log_support import EPOCH, NOW, append, open_log

from ottla.metadata.image import ClusterImage
from ottla.metadata.registrations import PartitionRegistration
from ottla.model.ids import TopicPartition, Uuid
from ottla.records.control import end_txn_marker
from ottla.replication.partition import Partition
from ottla.replication.quotas import ReplicationQuotas
from ottla.replication.replica_manager import ReplicaManager
from ottla.replication.replica_selector import ReplicaSelection
from ottla.security.principal import ANONYMOUS
from ottla.server.fetch_sessions import FetchSessionCache
from ottla.server.handlers import fetch as handler
from ottla.server.network.output import SENDFILE_MIN_BYTES, Deferred
from ottla.server.quotas import QuotaManagers
from ottla.storage.config import LogConfig
from ottla.storage.validator import AppendOrigin
from ottla.wire.fast.fetch import Wanted
from ottla.wire.framing import encode_request
from ottla.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic

MANY = settings(max_examples=600, deadline=None, database=None, suppress_health_check=list(HealthCheck))
LANE_VERSIONS = range(11, 19)
NAME, TOPIC_ID = "orders", Uuid(bytes(range(16)))
OTHER = Uuid(bytes(range(16, 32)))
SESSION = 77


class Replicas(ReplicaManager):
    """One hosted partition, found by name and id."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._image = ClusterImage()
        self.quotas = ReplicationQuotas(1)

    def hosted(self, topic: str | bytes, index: int) -> Partition | None:
        return self._partition if topic in (NAME, TOPIC_ID) and index == 0 else None


class Broker:
    """A log of every kind of batch, and the services around it."""

    def __init__(self, dir: Path) -> None:
        self.log = open_log(dir, LogConfig(segment_bytes=400_000))
        for size in (1, 30, 20, 5000, 20_000, SENDFILE_MIN_BYTES, 100_000, 50, 300_000, 200_000):
            append(self.log, bytes(size), b"second")
        self._transaction(commit=True)
        self._transaction(commit=False)
        append(self.log, bytes(20_000))
        append(self.log, b"open", producer_id=9, transactional=True)
        self.log.maybe_increment_log_start_offset(2, "some were deleted")
        self.partition = Partition(TopicPartition(NAME, 0), TOPIC_ID, self.log, PartitionWorld())
        self.partition.become(PartitionRegistration((1,), (), (1,), (), (), 1, 0, EPOCH, 0))
        self.executor = ThreadPoolExecutor(1)
        self.quotas = QuotaManagers()

    def _transaction(self, *, commit: bool) -> None:
        append(self.log, b"within", producer_id=5, transactional=True, sequence=0 if commit else 1)
        marker = end_txn_marker(
            committed=commit, producer_id=5, producer_epoch=0, coordinator_epoch=1, timestamp_ms=NOW
        )
        self.log.append_as_leader(marker, EPOCH, NOW, origin=AppendOrigin.COORDINATOR)
        self.log.update_high_watermark(self.log.log_end_offset)

    def services(self, sessions: FetchSessionCache) -> Any:
        timer = SimpleNamespace(cancel=lambda: None)
        return SimpleNamespace(
            replicas=Replicas(self.partition),
            fetch_sessions=sessions,
            replica_selection=ReplicaSelection(),
            clock=SimpleNamespace(monotonic_ms=lambda: NOW),
            config=lambda: {"fetch.max.bytes": 250_000},
            loop=SimpleNamespace(call_later=lambda *_: timer),
            executor=self.executor,
            image=ClusterImage,
            authorizer=None,
            quotas=self.quotas,
        )


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    broker = Broker(tmp_path_factory.mktemp("log") / "orders-0")
    yield broker
    broker.log.close()
    broker.executor.shutdown()


def ask(broker: Broker, sessions: FetchSessionCache, frame: bytes, version: int, fast: bool) -> bytes | str:
    """What the handler answers, with the fast path or without."""
    connection = cast(
        "Any",
        SimpleNamespace(
            host=SimpleNamespace(listener_name="PLAINTEXT"),
            principal=ANONYMOUS,
            quotas=None,
            throttle=lambda _: None,
        ),
    )
    view = memoryview(frame)
    if broker.quotas.enabled:  # as the Dispatcher does
        broker.quotas.client_of(connection, view, 4, len(frame))
    with pytest.MonkeyPatch.context() as patch:
        if not fast:
            patch.setattr(handler, "answer_one", lambda *_: None)
        reply = handler.fetch(broker.services(sessions), connection, view, version, 5, 4, len(frame))
    if isinstance(reply, Deferred):
        reply.abandon()
        return "waits"
    assert isinstance(reply, bytes | bytearray | list)
    if not isinstance(reply, list):
        return bytes(reply)
    return b"".join(chunk if isinstance(chunk, bytes) else chunk.read() for chunk in reply)


def goes_by_lane(broker: Broker, sessions: FetchSessionCache, frame: bytes, version: int) -> bool:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(handler, "_serve", lambda *_: pytest.fail("not by the fast path"))
        try:
            ask(broker, sessions, frame, version, fast=True)
        except pytest.fail.Exception:
            return False
    return True


def state(sessions: FetchSessionCache) -> list[Any]:
    return [
        (
            session.id,
            session.epoch,
            session.last_used_ms,
            session.reader,
            [
                (cached.wanted, cached.answered, cached in session.news)
                for cached in session.in_order(only_news=False)
            ],
        )
        for session in sessions._sessions.values()
    ]


def with_session(version: int, *indexes: int) -> FetchSessionCache:
    """A cache with one session that expects epoch 1, and an older one that nobody asks for."""
    topic = TOPIC_ID if version >= 13 else NAME
    ids = iter((99, SESSION))
    rng = random.Random(1)
    rng.randrange = lambda *_: next(ids)  # type: ignore[method-assign]
    sessions = FetchSessionCache(rng=rng)
    for partitions in ([0], indexes):
        wanted = [Wanted(topic, index, -1, 3, -1, -1, 1000) for index in partitions]
        sessions.new_context(0, 0, wanted, (), version >= 13, NOW - 5)
    return sessions


def request(version: int, partition: FetchPartition, **fields: Any) -> FetchRequest:
    key: dict[str, Any] = {"topic_id": TOPIC_ID} if version >= 13 else {"topic": NAME}
    topics = [FetchTopic(**key, partitions=[partition])]
    return FetchRequest(**{"max_wait_ms": 500, "min_bytes": 1, "topics": topics, **fields})


def plain(version: int, offset: int = 4, max_bytes: int = 1 << 20, **fields: Any) -> bytes:
    asked = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=max_bytes)
    return encode_request(request(version, asked, **fields), version, 5, "client")


# What a request may have that is not plain; most draws have one or two of these.
ODD: dict[str, list[Any]] = {
    "partition": [1],
    "fetch_offset": [-1, 0, 1, 10_000],
    "current_leader_epoch": [EPOCH, EPOCH - 1, EPOCH + 1],
    "last_fetched_epoch": [EPOCH, EPOCH + 1],
    "log_start_offset": [0],
    "max_wait_ms": [0],
    "min_bytes": [0, 100, 50_000, 10_000_000],
    "max_bytes": [2**31 - 1, 0, 50, 40_000],
    "isolation_level": [1, 2],
    "session": [(SESSION, 2), (SESSION, -1), (0, 0), (5, 1)],
    "shape": ["topic", "twice", "none", "rack", "forgotten", "replica"],
}
SIZES = [-1, 0, 1, 100, 6000, 30_000, 60_000, 1 << 20, 2**31 - 1]


@st.composite
def requests(draw: st.DrawFn, version: int, end: int) -> FetchRequest:
    odd = draw(st.sets(st.sampled_from(sorted(ODD)), max_size=2))

    def pick(name: str, usual: Any) -> Any:
        return draw(st.sampled_from(ODD[name])) if name in odd else usual

    partition = FetchPartition(
        partition=pick("partition", 0),
        current_leader_epoch=pick("current_leader_epoch", -1),
        fetch_offset=pick("fetch_offset", draw(st.integers(2, end))),
        last_fetched_epoch=pick("last_fetched_epoch", -1) if version >= 12 else -1,
        log_start_offset=pick("log_start_offset", -1),
        partition_max_bytes=draw(st.sampled_from(SIZES)),
    )
    made = request(
        version,
        partition,
        max_wait_ms=pick("max_wait_ms", 500),
        min_bytes=pick("min_bytes", 1),
        max_bytes=pick("max_bytes", 1 << 20),
        isolation_level=pick("isolation_level", draw(st.sampled_from([0, 1]))),
    )
    if version >= 7:
        usual = draw(st.sampled_from([(0, -1), (SESSION, 1)]))
        made.session_id, made.session_epoch = pick("session", usual)
    _reshape(made, version, pick("shape", ""))
    return made


def _reshape(made: FetchRequest, version: int, what: str) -> None:
    """Something that the fast path does not serve."""
    (topic,) = made.topics
    if what == "topic":
        topic.topic_id, topic.topic = OTHER, "unheard-of" * 20
    elif what == "twice":
        topic.partitions *= 2
    elif what == "none":
        made.topics = []
    elif what == "rack":
        made.rack_id = "b"
    elif what == "forgotten" and version >= 7:
        key: dict[str, Any] = {"topic_id": TOPIC_ID} if version >= 13 else {"topic": NAME}
        made.forgotten_topics_data = [ForgottenTopic(**key, partitions=[0])]
    elif what == "replica" and version < 15:
        made.replica_id = 2


@MANY
@given(data=st.data(), version=st.integers(4, 18), indexes=st.sampled_from([(0,), (0,), (0, 1), (1,), ()]))
def test_the_lane_answers_as_the_general_handler_does(
    broker: Broker, data: st.DataObject, version: int, indexes: tuple[int, ...]
) -> None:
    asked = data.draw(requests(version, broker.log.log_end_offset))
    frame = encode_request(asked, version, 5, data.draw(st.sampled_from([None, "", "client"])))
    by_fast_path, general = with_session(version, *indexes), with_session(version, *indexes)
    for sessions in (by_fast_path, general):  # a session that opens has the same id in both
        sessions._rng = random.Random(2)
    assert ask(broker, by_fast_path, frame, version, fast=True) == ask(
        broker, general, frame, version, fast=False
    )
    assert state(by_fast_path) == state(general)


def limited(limit: float, used: int) -> QuotaManagers:
    """Quotas of a consumer that has fetched so much already."""
    quotas = QuotaManagers(clock=SimpleNamespace(monotonic_ms=lambda: NOW))  # type: ignore[arg-type]
    quotas.clients.fetch.set_quota((("user", None),), limit)
    quotas.clients.fetch.record(ANONYMOUS, "client", used, NOW)
    quotas.enabled = True
    return quotas


@MANY
@given(
    data=st.data(),
    version=st.integers(4, 18),
    indexes=st.sampled_from([(0,), (0,), (0, 1)]),
    limit=st.sampled_from([1.0, 500.0, 5_000.0, 1e9]),
    used=st.sampled_from([0, 1, 4_999, 60_000]),
)
def test_so_it_does_where_there_is_a_quota(
    broker: Broker, data: st.DataObject, version: int, indexes: tuple[int, ...], limit: float, used: int
) -> None:
    asked = data.draw(requests(version, broker.log.log_end_offset))
    frame = encode_request(asked, version, 5, "client")
    answers, left, states = [], [], []
    for fast in (True, False):
        sessions, broker.quotas = with_session(version, *indexes), limited(limit, used)
        sessions._rng = random.Random(2)
        try:
            answers.append(ask(broker, sessions, frame, version, fast=fast))
            left.append(broker.quotas.clients.fetch.record_and_throttle_ms(ANONYMOUS, "client", 0, NOW))
        finally:
            broker.quotas = QuotaManagers()
        states.append(state(sessions))
    assert answers[0] == answers[1]
    assert left[0] == left[1], "what was recorded"
    assert states[0] == states[1]


@pytest.mark.parametrize("version", LANE_VERSIONS)
def test_a_throttled_fetch_goes_by_the_lane_too(broker: Broker, version: int) -> None:
    broker.quotas = limited(1.0, 60_000)
    try:
        sessions = with_session(version, 0)
        frame = plain(version, session_id=SESSION, session_epoch=1)
        assert goes_by_lane(broker, sessions, frame, version)
    finally:
        broker.quotas = QuotaManagers()


@pytest.mark.parametrize("version", LANE_VERSIONS)
@pytest.mark.parametrize("offset", range(2, 18))
@pytest.mark.parametrize("isolation_level", [0, 1])
def test_one_partition_that_has_something_goes_by_the_lane(
    broker: Broker, version: int, offset: int, isolation_level: int
) -> None:
    frame = plain(version, offset, isolation_level=isolation_level)
    assert goes_by_lane(broker, FetchSessionCache(), frame, version)


@pytest.mark.parametrize("version", LANE_VERSIONS)
def test_so_does_the_only_partition_of_a_session(broker: Broker, version: int) -> None:
    sessions = with_session(version, 0)
    for epoch in (1, 2, 3):
        frame = plain(version, session_id=SESSION, session_epoch=epoch)
        assert goes_by_lane(broker, sessions, frame, version)


@pytest.mark.parametrize("version", LANE_VERSIONS)
@pytest.mark.parametrize(
    "why",
    [
        {"session_id": SESSION, "session_epoch": 2},
        {"session_id": SESSION, "session_epoch": -1},
        {"session_id": 0, "session_epoch": 0},
        {"isolation_level": 2},
        {"offset": 1},
        {"offset": 1000},
        {"min_bytes": 10_000_000},
        {"rack_id": "b"},
    ],
)
def test_what_is_not_plain_is_left_to_the_general_handler_untouched(
    broker: Broker, version: int, why: dict[str, Any]
) -> None:
    sessions = with_session(version, 0)
    before = deepcopy(state(sessions))
    assert not goes_by_lane(broker, sessions, plain(version, **why), version)
    assert state(sessions) == before


@pytest.mark.parametrize("version", LANE_VERSIONS)
def test_aborted_transactions_are_left_to_the_general_handler(broker: Broker, version: int) -> None:
    aborted = broker.log.aborted_transactions(0, broker.log.log_end_offset)
    offset = aborted[0].first_offset
    assert goes_by_lane(broker, FetchSessionCache(), plain(version, offset), version)
    assert not goes_by_lane(broker, FetchSessionCache(), plain(version, offset, isolation_level=1), version)


def test_a_log_that_failed_is_left_to_the_general_handler(broker: Broker) -> None:
    broker.log.failed = True
    try:
        assert not goes_by_lane(broker, FetchSessionCache(), plain(17), 17)
    finally:
        broker.log.failed = False
