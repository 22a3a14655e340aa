"""What requests use is recorded for whom they are from, and says how long they wait; changes of quotas hold at once."""

import asyncio
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.clock import ManualClock

from ottla.config.broker import BrokerConfig
from ottla.config.errors import ConfigError
from ottla.metadata import records as r
from ottla.metadata.delta import ImageBuilder
from ottla.metadata.image import EMPTY_IMAGE, ClusterImage
from ottla.security.principal import ANONYMOUS, KafkaPrincipal
from ottla.security.quotas import ClientQuotas, QuotaWindows
from ottla.server import dispatch, handlers, quotas
from ottla.server.dispatch import Dispatcher
from ottla.server.network.connection import Listener
from ottla.server.quotas import ClientSensors, QuotaManagers
from ottla.server.registry import routes
from ottla.wire.framing import encode_request
from ottla.wire.messages.groups.classic import HeartbeatRequest
from ottla.wire.messages.produce import ProduceRequest

handlers.load()

ALICE = KafkaPrincipal("User", "alice")
T0 = 1_000_000


def entity(**parts: str | None) -> list[r.EntityData]:
    return [
        r.EntityData(entity_type=kind.replace("_", "-"), entity_name=name) for kind, name in parts.items()
    ]


class World:
    """The quotas of a node, a clock, and the metadata that says what they are."""

    def __init__(self) -> None:
        self.clock = ManualClock(T0)
        windows = QuotaWindows()
        self.quotas = QuotaManagers(ClientQuotas(windows, windows), self.clock)
        self.image: ClusterImage = EMPTY_IMAGE

    def set(self, key: str, value: float | None, **parts: str | None) -> None:
        builder = ImageBuilder(self.image)
        builder.apply(
            r.ClientQuotaRecord(entity=entity(**parts), key=key, value=value or 0.0, remove=value is None)
        )
        self.image, delta = builder.build(self.image.offset + 1, 1, 1)
        self.quotas.follow(self.image, delta)


class Connection:
    """Notes how long it is not to be read."""

    def __init__(self, principal: KafkaPrincipal = ALICE) -> None:
        self.principal = principal
        self.quotas: ClientSensors | None = None
        self.throttled: list[int] = []

    def throttle(self, throttle_ms: int) -> None:
        self.throttled.append(throttle_ms)


def request(client_id: str | None = "app") -> memoryview:
    return memoryview(encode_request(ProduceRequest(acks=1, timeout_ms=1, topic_data=[]), 9, 5, client_id))


def produced(world: World, connection: Any, size: int, acks: int = 1, client_id: str | None = "app") -> int:
    frame = request(client_id)
    world.quotas.client_of(connection, frame, 4, len(frame))
    return world.quotas.produced(connection, size, acks)


# --- the metadata


def test_without_a_quota_nothing_is_asked() -> None:
    world = World()
    assert (world.quotas.enabled, world.quotas.measures_time) == (False, False)
    connection: Any = Connection()
    assert produced(world, connection, 10**9) == 0
    assert not world.quotas.client_of(connection, request(), 4, len(request())).limits_fetches
    assert world.quotas.share_fetched(world.quotas.sensors_of(ALICE, "app"), 10**9, 1) == 0
    assert connection.throttled == []


def test_a_change_holds_at_once() -> None:
    world = World()
    connection: Any = Connection()
    world.set("producer_byte_rate", 100.0, user="alice")
    assert (world.quotas.enabled, world.quotas.measures_time) == (True, False)
    assert produced(world, connection, 2_000) == 10_000
    world.set("producer_byte_rate", 300.0, user="alice")
    assert produced(world, connection, 100) == 0
    world.set("producer_byte_rate", None, user="alice")
    assert not world.quotas.enabled
    assert produced(world, connection, 10**9) == 0
    world.set("request_percentage", 1.0, user=None)
    assert (world.quotas.enabled, world.quotas.measures_time) == (True, True)


def test_what_else_changes_in_the_metadata_changes_nothing() -> None:
    world = World()
    world.set("producer_byte_rate", 100.0, user="alice")
    builder = ImageBuilder(world.image)
    builder.apply(r.FeatureLevelRecord(name="share.version", feature_level=1))
    image, delta = builder.build(9, 1, 1)
    world.quotas.follow(image, delta)
    assert produced(world, Connection(), 2_000) == 10_000


# --- produce


def test_a_produce_is_waited_for_and_its_connection_not_read() -> None:
    world, connection = World(), Connection()
    world.set("producer_byte_rate", 100.0, user="alice")
    assert produced(world, connection, 1_000) == 0
    assert produced(world, connection, 500) == 5_000
    assert connection.throttled == [5_000]
    world.clock.advance(60_000)
    assert produced(world, connection, 500) == 0


def test_by_user_and_client_id() -> None:
    world = World()
    world.set("producer_byte_rate", 100.0, user="alice", client_id="slow")
    assert produced(world, Connection(), 10**6, client_id="app") == 0
    assert produced(world, Connection(ANONYMOUS), 10**6, client_id="slow") == 0
    assert produced(world, Connection(), 2_000, client_id="slow") == 10_000


def test_acks_0_waits_for_bytes_and_not_for_time() -> None:
    world, connection = World(), Connection()
    world.set("request_percentage", 1.0, user="alice")
    world.quotas.record_time(ALICE, "app", 10**9)
    assert produced(world, connection, 1_000, acks=0) == 0
    assert produced(world, connection, 1_000, acks=1) == 1_000
    assert produced(world, connection, 1_000, acks=-1) == 1_000
    world.set("producer_byte_rate", 10.0, user="alice")
    assert produced(world, connection, 1_000, acks=0) == 90_000
    assert connection.throttled == [1_000, 1_000, 90_000]


# --- fetch


def fetched(world: World, connection: Any, records_bytes: int, client_id: str = "app") -> int:
    client = world.quotas.client_of(connection, request(client_id), 4, len(request(client_id)))
    if not client.limits_fetches:
        return 0
    return world.quotas.fetched(connection, client, records_bytes, 1, client.now_ms)


def test_a_fetch_that_is_too_much_is_not_sent_and_not_counted() -> None:
    world, connection = World(), Connection()
    world.set("consumer_byte_rate", 1_000.0, user="alice")
    assert world.quotas.sensors_of(ALICE, "app").max_fetch_bytes == 250, "a quarter of a window"
    size = 1_000 - quotas.ANSWER_BYTES - quotas.PARTITION_BYTES
    assert [fetched(world, connection, size) for _ in range(12)] == [0] * 10 + [1_000] * 2
    assert connection.throttled == [1_000] * 2
    world.clock.advance(1_000)
    assert fetched(world, connection, size) > 0, "windows are ten seconds at least"
    world.clock.advance(10_001)
    assert fetched(world, connection, size) == 0


def test_a_fetch_waits_for_the_time_of_requests_too_and_then_counts_no_bytes() -> None:
    world, connection = World(), Connection()
    world.set("request_percentage", 1.0, user="alice")
    world.set("consumer_byte_rate", 1_000.0, user="alice")
    world.quotas.record_time(ALICE, "app", 5 * 10**9)
    assert [fetched(world, connection, 900) for _ in range(100)] == [1_000] * 100
    world.set("request_percentage", None, user="alice")
    assert fetched(world, connection, 900) == 0


def test_a_fetch_without_a_quota_of_its_own_is_as_large_as_it_likes() -> None:
    world, connection = World(), Connection()
    world.set("consumer_byte_rate", 1_000.0, user="bob")
    assert not world.quotas.sensors_of(ALICE, "app").limits_fetches
    world.set("request_percentage", 1.0, user="alice")
    quota = world.quotas.sensors_of(ALICE, "app")
    assert (quota.limits_fetches, quota.max_fetch_bytes) == (True, 2**31 - 1)
    assert fetched(world, connection, 2**40) == 0


def test_a_share_fetch_waits_afterwards() -> None:
    world = World()
    world.set("consumer_byte_rate", 1_000.0, user="alice")
    client = world.quotas.sensors_of(ALICE, "app")
    assert world.quotas.share_fetched(client) == 0
    size = 20_000 - quotas.ANSWER_BYTES - quotas.PARTITION_BYTES
    assert world.quotas.share_fetched(client, size, 1) == 10_000
    assert world.quotas.share_fetched(client) == 10_000
    world.clock.advance(11_000)
    assert world.quotas.share_fetched(client) == 0


# --- over a while

LIMIT = 100_000.0


def seconds_of(kind: str, size: int, seconds: int) -> list[int]:
    """Bytes of each second, of a client that does as much as it may and waits as long as it is told."""
    world, connection = World(), Connection()
    world.set(f"{kind}r_byte_rate", LIMIT, user="alice")
    found = [0] * seconds
    while (now_ms := world.clock.now_ms() - T0) < seconds * 1_000:
        if kind == "produce":
            throttle_ms, is_used = produced(world, connection, size), True
        else:
            throttle_ms = fetched(world, connection, size - quotas.ANSWER_BYTES - quotas.PARTITION_BYTES)
            is_used = not throttle_ms
        found[now_ms // 1_000] += size if is_used else 0
        world.clock.advance(max(throttle_ms, 1))
    return found


@pytest.mark.parametrize(
    ("kind", "size"),
    [(kind, size) for kind in ("produce", "consume") for size in (1_000, 10_000, 30_000)]
    + [("consume", int(LIMIT) // quotas.FETCHES_PER_WINDOW)],
)
def test_a_quota_is_kept_within_a_tenth(kind: str, size: int) -> None:
    found = seconds_of(kind, size, 99)
    assert found[0] >= 10 * LIMIT * 0.9, "whoever was silent has something left"
    assert sum(found[33:]) / 66 == pytest.approx(LIMIT, rel=0.1)
    # Any half a minute, the first too, but for the time in which what was used at the beginning is waited for.
    for start in (0, *range(11, 70)):
        assert sum(found[start : start + 30]) / 30 == pytest.approx(LIMIT, rel=0.1), start
    assert max(found[11:]) <= 2 * LIMIT + size, "and it comes evenly"


def test_who_is_within_its_quota_waits_for_no_pace() -> None:
    """Three seconds' worth every four seconds: nothing to wait for, in Kafka as well."""
    world, connection = World(), Connection()
    world.set("producer_byte_rate", LIMIT, user="alice")
    for _ in range(20):
        assert produced(world, connection, int(3 * LIMIT)) == 0
        world.clock.advance(4_000)
    # Too much, once: for as long as that counts, what is used at once is waited for.
    assert produced(world, connection, int(11 * LIMIT)) > 0
    world.clock.advance(10_500)
    assert produced(world, connection, int(3 * LIMIT)) > 0
    world.clock.advance(15_000)
    assert produced(world, connection, int(3 * LIMIT)) == 0


# --- time


def test_time_is_per_cent_of_one_thread() -> None:
    world = World()
    world.set("request_percentage", 50.0, client_id="app")
    world.quotas.record_time(ALICE, "app", 5 * 10**9)
    assert world.quotas.throttle_ms(ALICE, "app") == 0, "five of ten seconds"
    world.quotas.record_time(ALICE, "app", 10**8)
    assert world.quotas.throttle_ms(ALICE, "app") == 200
    world.quotas.record_time(ALICE, "app", 10**11)
    assert world.quotas.throttle_ms(ALICE, "app") == 1_000, "no longer than a window"
    assert world.quotas.throttle_ms(ALICE, "other") == 0


class Ticks:
    """A clock that goes on by a second whenever it is looked at."""

    def __init__(self) -> None:
        self.ns = 0

    def __call__(self) -> int:
        self.ns += 10**9
        return self.ns


def measured(monkeypatch: pytest.MonkeyPatch, coroutine: Coroutine[Any, Any, Any]) -> tuple[Any, list[int]]:
    monkeypatch.setattr(quotas, "perf_counter_ns", Ticks())
    world = World()
    recorded: list[int] = []
    world.quotas.record_time = lambda *args: recorded.append(args[2])  # type: ignore[method-assign]

    async def main() -> Any:
        try:
            return await asyncio.wait_for(world.quotas.measured(coroutine, ALICE, "app"), 10)
        except Exception as error:  # noqa: BLE001 - what came of it
            return error

    return asyncio.run(main()), recorded


def test_the_steps_of_a_coroutine_are_measured_and_not_its_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> str:
        await asyncio.sleep(0)
        await asyncio.sleep(0.001)
        return "done"

    assert measured(monkeypatch, work()) == ("done", [10**9] * 3)


def test_what_is_raised_in_it_and_into_it_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> str:
        try:
            await asyncio.wait_for(asyncio.get_running_loop().create_future(), 0.001)
        except TimeoutError:
            raise ZeroDivisionError from None
        return "not reached"

    result, recorded = measured(monkeypatch, work())
    assert isinstance(result, ZeroDivisionError)
    assert len(recorded) >= 2


def test_one_that_is_cancelled_ends() -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.append("ended")

    async def main() -> None:
        task = asyncio.ensure_future(World().quotas.measured(work(), ALICE, "app"))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert ended == ["ended"]


# --- who asks


@pytest.mark.parametrize(
    "names",
    [("a", "a", "b", "ab", "a"), (None, "", "a", None), ("x" * 5_000, "x", "x" * 5_000), ("\u00e4", "a")],
)
def test_the_client_is_who_the_request_says(names: tuple[str | None, ...]) -> None:
    world, connection = World(), Connection()
    heartbeat = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    world.set("producer_byte_rate", 5.0, client_id="a")
    for name in names:
        for frame in (request(name), encode_request(heartbeat, 4, 5, name)):
            view = memoryview(b"before" + frame)
            for _ in range(2):
                found = world.quotas.client_of(connection, view, 10, len(view))  # type: ignore[arg-type]
                assert (found.client_id, found.principal) == (name, ALICE)
                assert (found.produce is None) == (name != "a")
    assert connection.quotas is not None
    assert len(connection.quotas.raw or b"") < 300


def test_what_was_found_for_a_client_is_kept_until_something_changes() -> None:
    world, connection = World(), Connection()
    world.set("producer_byte_rate", 5.0, user="alice")

    def found() -> ClientSensors:
        return world.quotas.client_of(connection, request(), 4, len(request()))  # type: ignore[arg-type]

    first = found()
    assert found() is first
    connection.principal = KafkaPrincipal("User", "bob")  # it has authenticated again, as another
    assert found().produce is None
    connection.principal = ALICE
    again = found()
    assert again.produce is first.produce
    world.set("producer_byte_rate", None, user="alice")
    assert found().produce is None


def test_how_a_client_calls_itself_is_looked_at_where_it_makes_a_difference() -> None:
    world, connection = World(), Connection()

    def found(client_id: str) -> ClientSensors:
        frame = request(client_id)
        return world.quotas.client_of(connection, frame, 4, len(frame))  # type: ignore[arg-type]

    world.set("producer_byte_rate", 5.0, user="alice")
    assert found("a") is found("b")
    world.set("request_percentage", 5.0, user="alice", client_id="b")
    assert found("a").request is None
    assert found("b").request is not None
    assert found("a").request is None
    world.set("request_percentage", None, user="alice", client_id="b")
    assert found("a") is found("b")


# --- by the dispatcher


class Dispatched:
    """A dispatcher whose one API takes as long as it is told, and the time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, world: World) -> None:
        self.now = 1_000.0
        self.takes = 0.0
        self.world = world
        monkeypatch.setattr(dispatch, "monotonic", lambda: self.now)
        services: Any = SimpleNamespace(quotas=world.quotas, authorizer=None)
        self.dispatcher = Dispatcher(services, Listener.BROKER)
        route = routes(Listener.BROKER)[ProduceRequest.API_KEY]
        self.route = replace(route, raw=self._serve)
        self.unlimited = replace(route, raw=self._serve, has_quota=False)
        self.connection: Any = Connection()
        self.connection.is_of_node = False
        self.answer: Any = b"answer"

    def _serve(self, *_: Any) -> Any:
        self.now += self.takes
        return self.answer

    def ask(
        self, takes: float, *, has_quota: bool = True, client_id: str = "app", is_last: bool = True
    ) -> Any:
        """A request, which may be the last of those that were read at once."""
        self.takes = takes
        self.dispatcher._routes = {0: self.route if has_quota else self.unlimited}
        frame = request(client_id)
        answer = self.dispatcher(self.connection, frame, 4, len(frame))
        client = self.connection.quotas
        if client is not None:  # as the Connection does
            if asyncio.iscoroutine(answer):
                answer = client.measured(self.connection, answer)
            if is_last:
                client.served(self.connection, self.now)
        return answer

    def used(self, client_id: str = "app") -> float:
        """Seconds, as recorded."""
        sensor = self.world.quotas.clients.request.sensor(ALICE, client_id, self.now * 1000.0)
        now_ms = self.now * 1000.0
        if sensor is None:
            return 0.0
        return sensor.rate.measure(now_ms) * sensor.rate.window_size_ms(now_ms) / 1e5


def test_each_request_is_measured_from_the_end_of_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.set("request_percentage", 1e6, user="alice")
    asked = Dispatched(monkeypatch, world)
    asked.connection.last_active = asked.now
    for takes in (0.125, 0.25):
        assert asked.ask(takes) == b"answer"
    assert asked.used() == pytest.approx(0.375)
    asked.now += 0.5  # nobody asks
    asked.connection.last_active = asked.now
    asked.ask(0.125)
    assert asked.used() == pytest.approx(0.5), "what was between them counts for nobody"


@pytest.mark.parametrize("client_ids", [("app", "app"), ("other", "app")])
def test_what_counts_for_no_quota_counts_for_no_other_request(
    monkeypatch: pytest.MonkeyPatch, client_ids: tuple[str, str]
) -> None:
    world = World()
    world.set("request_percentage", 1e6, client_id="app")
    asked = Dispatched(monkeypatch, world)
    asked.connection.last_active = asked.now
    asked.ask(0.5, has_quota=client_ids[0] == "other", client_id=client_ids[0])
    asked.ask(0.125, client_id=client_ids[1])
    assert asked.used() == pytest.approx(0.125)
    asked.connection.is_of_node = True
    asked.ask(0.5)
    assert asked.used() == pytest.approx(0.125)


def test_what_was_read_at_once_counts_for_whom_it_is_from(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.set("request_percentage", 1e6, client_id="app")
    world.set("request_percentage", 1e6, client_id="other")
    asked = Dispatched(monkeypatch, world)
    asked.connection.last_active = asked.now
    for takes in (0.125, 0.25):
        asked.ask(takes, is_last=False)
    asked.ask(1.0, client_id="other", is_last=False)
    asked.ask(4.0, has_quota=False, is_last=False)
    asked.ask(2.0, client_id="other")
    assert asked.used("app") == pytest.approx(0.375)
    assert asked.used("other") == pytest.approx(3.0)


def test_a_coroutine_is_measured_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> bytes:
        return b"done"

    world = World()
    world.set("request_percentage", 1e6, user="alice")
    recorded: list[Any] = []
    world.quotas.record_time = lambda *args: recorded.append(args[:2])  # type: ignore[method-assign]
    asked = Dispatched(monkeypatch, world)
    asked.connection.last_active = asked.now
    asked.answer = work()
    assert asyncio.run(asked.ask(0.0)) == b"done"
    assert recorded == [(ALICE, "app")]
    world.set("request_percentage", None, user="alice")
    world.set("producer_byte_rate", 1e6, user="alice")
    asked.answer = work()
    assert asyncio.run(asked.ask(0.0)) == b"done"
    assert len(recorded) == 1


# --- hosts


def test_a_host_has_the_quota_of_its_address(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    addresses = {"one.example": "10.0.0.1", "two.example": "10.0.0.2"}
    asked: list[str] = []

    async def find(host: str, _port: object) -> list[Any]:
        asked.append(host)
        await asyncio.sleep(0)
        if host not in addresses:
            raise OSError("no such host")
        return [(0, 0, 0, "", (addresses[host], 0))]

    async def main() -> None:
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", find)
        world = World()
        limits = world.quotas.clients.connections._ip_limits
        for host, limit in (
            ("one.example", 5.0),
            ("none.example", 1.0),
            ("one.example", 6.0),
            ("10.9.9.9", 2.0),
        ):
            world.set("connection_creation_rate", limit, ip=host)
        assert world.quotas._finding is not None
        await world.quotas._finding
        assert limits == {"10.0.0.1": 6.0, "10.9.9.9": 2.0}
        assert "none.example" in caplog.text
        addresses["one.example"] = "10.0.0.7"
        world.set("connection_creation_rate", 7.0, ip="one.example")
        await world.quotas._finding
        assert limits == {"10.0.0.7": 7.0, "10.9.9.9": 2.0}
        world.set("connection_creation_rate", None, ip="one.example")
        await world.quotas._finding
        assert limits == {"10.9.9.9": 2.0}
        assert not world.quotas.enabled, "they are no quotas of requests"
        world.quotas.close()

    asyncio.run(main())


# --- settings


class Callback:
    """Limits everybody to one byte."""

    def __init__(self) -> None:
        self.closed = False

    def quota_metric_tags(
        self, quota_type: Any, principal: KafkaPrincipal, client_id: str
    ) -> Mapping[str, str]:
        return {"user": principal.name}

    def quota_limit(self, quota_type: Any, tags: Mapping[str, str]) -> float | None:
        return 1.0

    def update_quota(self, quota_type: Any, entity: Any, value: float) -> None:
        """Of no interest."""

    def remove_quota(self, quota_type: Any, entity: Any) -> None:
        """Of no interest."""

    def quota_reset_required(self, quota_type: Any) -> bool:
        return False

    def close(self) -> None:
        self.closed = True


def test_settings() -> None:
    config = BrokerConfig.of(
        {
            "log.dirs": "/d",
            "quota.window.num": 3,
            "quota.window.size.seconds": 2,
            "controller.quota.window.num": 4,
            "controller.quota.window.size.seconds": 5,
            "client.quota.callback.class": f"{__name__}.Callback",
        }
    )
    found = QuotaManagers.of(config, ManualClock(), ())
    clients = found.clients
    assert (
        clients.produce.windows == clients.fetch.windows == clients.request.windows == QuotaWindows(3, 2_000)
    )
    assert clients.controller_mutation.windows == QuotaWindows(4, 5_000)
    assert (found.enabled, found.measures_time) == (True, True)
    connection: Any = Connection()
    first, second = (found.client_of(connection, request(), 4, len(request())) for _ in range(2))
    assert first is not second, "the operator's class is asked about each request"
    callback = found._callback
    assert isinstance(callback, Callback)
    found.close()
    assert callback.closed
    nothing = QuotaManagers.of(BrokerConfig.of({"log.dirs": "/d"}), ManualClock(), ())
    assert not nothing.enabled
    nothing.close()
    with pytest.raises(ConfigError, match=r"client\.quota\.callback\.class"):
        QuotaManagers.of(
            BrokerConfig.of({"log.dirs": "/d", "client.quota.callback.class": "no.such.Class"}),
            ManualClock(),
            (),
        )
