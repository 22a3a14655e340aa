"""Brokers: registering, being let in, shutting down, coming back clean or not."""

import pytest
from tests.unit.controller.support import Cluster, directory, registration

from ottla.controller import cluster_control
from ottla.controller.cluster_control import BrokerControlState, BrokerHeartbeatManager, HeartbeatDecision
from ottla.controller.result import ControllerResult
from ottla.metadata import records as r
from ottla.metadata.registrations import PartitionRegistration
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import ZERO_UUID
from ottla.wire.messages.nodes import broker_lifecycle as m

TIMEOUT_MS = 9000


class Life(Cluster):
    """A cluster whose brokers register and send heartbeats."""

    def __init__(self, *ids: int, **options: object) -> None:
        super().__init__(*ids, **options)
        self.heartbeats = BrokerHeartbeatManager(TIMEOUT_MS)
        self.now_ms = 0.0
        for broker_id in ids:
            self.heartbeats.touch(broker_id, self.epoch(broker_id), self.image.offset, 0)

    def register(self, request: m.BrokerRegistrationRequest, clean_detection: bool = True) -> int:
        result = cluster_control.register_broker(
            self.rules,
            request,
            self.heartbeats,
            new_epoch=self.image.offset + 1,
            kraft_version=1,
            clean_shutdown_detection=clean_detection,
            now_ms=self.now_ms,
        )
        self.take(result)
        self.heartbeats.register(request.broker_id, result.response.broker_epoch, self.now_ms)
        return result.response.broker_epoch

    def heartbeat(self, broker_id: int, **fields: object) -> ControllerResult[HeartbeatDecision]:
        defaults: dict[str, object] = {
            "broker_epoch": self.epoch(broker_id),
            "current_metadata_offset": self.image.offset,
            "want_fence": False,
            "want_shut_down": False,
        }
        request = m.BrokerHeartbeatRequest(broker_id=broker_id, **{**defaults, **fields})
        result = cluster_control.broker_heartbeat(self.rules, request, self.heartbeats)
        self.take(result)
        self.heartbeats.touch(broker_id, request.broker_epoch, request.current_metadata_offset, self.now_ms)
        if result.response.state is BrokerControlState.CONTROLLED_SHUTDOWN:
            self.heartbeats.set_controlled_shutdown_offset(broker_id, self.image.offset)
        elif result.response.state is BrokerControlState.SHUTDOWN_NOW:
            self.heartbeats.let_go(broker_id)
        return result

    def state(self, topic: str = "t", number: int = 0) -> PartitionRegistration:
        found = self.image.partition(topic, number)
        assert found is not None
        return found


def refused(life: Life, request: m.BrokerRegistrationRequest) -> KafkaError:
    with pytest.raises(KafkaError) as error:
        life.register(request)
    return error.value


def test_a_new_broker_is_fenced_until_it_has_read_its_own_registration() -> None:
    life = Life()
    epoch = life.register(registration(1))
    broker = life.image.brokers[1]
    assert broker.fenced
    assert broker.epoch == epoch == broker.registered_at_offset
    behind = life.heartbeat(1, current_metadata_offset=epoch - 1).response
    assert (behind.response.is_caught_up, behind.response.is_fenced) == (False, True)
    there = life.heartbeat(1).response
    assert (there.response.is_caught_up, there.response.is_fenced) == (True, False)
    assert life.image.broker_is_active(1)
    assert not life.heartbeat(1).records


def test_the_same_life_may_register_again() -> None:
    life = Life()
    epoch = life.register(registration(1))
    life.heartbeat(1)
    assert life.register(registration(1)) == epoch
    assert life.image.broker_is_active(1)


def test_another_life_must_wait_for_the_session() -> None:
    life = Life()
    first = life.register(registration(1))
    error = refused(life, registration(1, b"j" * 16))
    assert error.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    life.now_ms = TIMEOUT_MS
    assert life.register(registration(1, b"j" * 16)) > first


def test_a_controllers_own_broker_need_not_wait_after_a_crash() -> None:
    life = Life(1, 2)
    life.heartbeats.start(life.image, 0)
    assert refused(life, registration(1)).code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    life.heartbeats.begins_anew(1)
    life.register(registration(1))
    assert refused(life, registration(2)).code is ErrorCode.DUPLICATE_BROKER_REGISTRATION


def test_another_process_with_the_controllers_id_that_lives_keeps_it() -> None:
    life = Life(1)
    life.heartbeats.start(life.image, 0)
    life.heartbeats.touch(1, life.image.brokers[1].epoch, 10, 0)
    life.heartbeats.begins_anew(1)
    assert refused(life, registration(1)).code is ErrorCode.DUPLICATE_BROKER_REGISTRATION


@pytest.mark.parametrize(
    ("request_", "code", "text"),
    [
        (registration(cluster_id="x"), 104, "Expected cluster ID cluster, but got cluster ID x"),
        (registration(is_migrating_zk_broker=True), 102, "does not support registering ZK brokers"),
        (registration(log_dirs=[]), 119, "No directories specified in request"),
        (registration(log_dirs=[ZERO_UUID]), 119, "Reserved directory ID in request"),
        (registration(log_dirs=[directory(1)] * 2), 119, "Duplicate directory ID in request"),
        (registration(log_dirs=[directory(2)]), 119, "Broker 2 is already registered"),
        (registration(features=[]), 119, "Request features do not contain 'metadata.version'"),
        (
            registration(
                features=[
                    m.Feature(name="metadata.version", min_supported_version=7, max_supported_version=29)
                ]
            ),
            35,
            "does not support finalized version 30 of metadata.version",
        ),
    ],
)
def test_a_broker_that_does_not_fit_is_refused(
    request_: m.BrokerRegistrationRequest, code: int, text: str
) -> None:
    error = refused(Life(2), request_)
    assert error.code == code
    assert text in str(error)


def test_a_stale_life_is_not_listened_to() -> None:
    life = Life(1)
    with pytest.raises(KafkaError) as error:
        life.heartbeat(1, broker_epoch=99)
    assert error.value.code is ErrorCode.STALE_BROKER_EPOCH


def test_the_only_broker_shuts_down_and_comes_back_clean() -> None:
    life = Life(1)
    life.add_topic("t", [[1]])
    epoch = life.epoch(1)
    first = life.heartbeat(1, want_shut_down=True).response
    assert first.state is BrokerControlState.CONTROLLED_SHUTDOWN
    assert not first.response.should_shut_down
    state = life.state()
    assert (state.leader, state.isr, state.elr, state.last_known_elr) == (-1, (), (1,), (1,))
    second = life.heartbeat(1, want_shut_down=True).response
    assert second.response.should_shut_down
    assert second.response.is_fenced
    assert life.image.brokers[1].fenced
    life.now_ms = 20_000
    life.register(registration(1, previous_broker_epoch=epoch))
    life.heartbeat(1)
    state = life.state()
    assert (state.leader, state.isr, state.elr, state.last_known_elr) == (1, (1,), (), ())
    assert state.leader_recovery_state == 0, "a clean end leaves nothing to recover"


@pytest.mark.parametrize("leads", [True, False])
def test_a_broker_that_was_let_go_may_come_back_at_once(leads: bool) -> None:
    life = Life(1)
    if leads:
        life.add_topic("t", [[1]])
    another = registration(1, b"j" * 16, previous_broker_epoch=life.epoch(1))
    assert refused(life, another).code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    while not life.heartbeat(1, want_shut_down=True).response.response.should_shut_down:
        pass
    life.register(another)
    assert life.image.brokers[1].incarnation_id == b"j" * 16
    assert refused(life, registration(1, b"k" * 16)).code is ErrorCode.DUPLICATE_BROKER_REGISTRATION


def test_a_broker_that_came_down_hard_leads_again_but_recovers() -> None:
    life = Life(1)
    life.add_topic("t", [[1]])
    life.now_ms = 20_000
    life.register(registration(1, previous_broker_epoch=-1))
    assert (life.state().leader, life.state().elr) == (-1, ())
    life.heartbeat(1)
    state = life.state()
    assert (state.leader, state.isr) == (1, (1,))
    assert state.leader_recovery_state == 1


def test_an_old_broker_cannot_prove_that_it_ended_clean() -> None:
    life = Life(1)
    life.add_topic("t", [[1]])
    life.now_ms = 20_000
    life.register(registration(1, previous_broker_epoch=life.epoch(1)), clean_detection=False)
    life.heartbeat(1)
    assert life.state().leader_recovery_state == 1


def test_leadership_moves_before_a_broker_goes() -> None:
    life = Life(1, 2)
    life.add_topic("t", [[1, 2]])
    life.heartbeat(1, want_shut_down=True)
    state = life.state()
    assert (state.leader, state.isr, state.leader_epoch) == (2, (2,), 1)
    waiting = life.heartbeat(1, want_shut_down=True).response
    assert not waiting.response.should_shut_down, "broker 2 has not seen that it leads"
    life.heartbeat(2)
    assert life.heartbeat(1, want_shut_down=True).response.response.should_shut_down


def test_a_broker_without_leaderships_goes_at_once() -> None:
    life = Life(1)
    assert life.heartbeat(1, want_shut_down=True).response.response.should_shut_down


def test_a_broker_may_want_to_be_fenced() -> None:
    life = Life(1)
    life.add_topic("t", [[1]])
    assert life.heartbeat(1, want_fence=True).response.response.is_fenced
    assert life.state().leader == -1


def test_a_silent_broker_is_found_out() -> None:
    life = Life(1, 2)
    assert life.heartbeats.expired(life.image, TIMEOUT_MS - 1) == []
    life.heartbeats.touch(2, life.epoch(2), 0, TIMEOUT_MS)
    assert life.heartbeats.expired(life.image, TIMEOUT_MS) == [1]
    life.apply(*cluster_control.fence_broker(life.rules, 1))
    assert life.heartbeats.expired(life.image, TIMEOUT_MS) == []


def test_a_lost_directory_takes_its_leaders_away() -> None:
    life = Life(1, 2)
    life.add_topic("t", [[1, 2]])
    life.heartbeat(1, offline_log_dirs=[directory(1)])
    state = life.state()
    assert (state.leader, state.isr) == (2, (2,))
    assert life.heartbeat(1, offline_log_dirs=[b"?" * 16]).records == []


def test_cordoned_directories_are_written_once() -> None:
    life = Life(1)
    assert len(life.heartbeat(1, cordoned_log_dirs=[]).records) == 1
    assert len(life.heartbeat(1, cordoned_log_dirs=[]).records) == 0
    life.heartbeat(1, cordoned_log_dirs=[directory(1)])
    assert not life.image.brokers[1].has_uncordoned_directory


def test_a_broker_is_struck_off() -> None:
    life = Life(1, 2)
    life.add_topic("t", [[1, 2]])
    life.take(cluster_control.unregister_broker(life.rules, m.UnregisterBrokerRequest(broker_id=1)))
    assert set(life.image.brokers) == {2}
    assert life.state().leader == 2
    with pytest.raises(KafkaError) as error:
        cluster_control.unregister_broker(life.rules, m.UnregisterBrokerRequest(broker_id=1))
    assert error.value.code is ErrorCode.BROKER_ID_NOT_REGISTERED


def test_a_controller_registers() -> None:
    cluster = Cluster()
    request = m.ControllerRegistrationRequest(
        controller_id=1, incarnation_id=b"c" * 16, zk_migration_ready=False, listeners=[], features=[]
    )
    cluster.take(cluster_control.register_controller(cluster.rules, request))
    assert cluster.image.controllers[1].incarnation_id == b"c" * 16
    cluster.apply(r.FeatureLevelRecord(name="metadata.version", feature_level=14))
    with pytest.raises(KafkaError, match="too old"):
        cluster_control.register_controller(cluster.rules, request)
