"""A partition with three replicas: what ends of brokers and disks, and settings, make of ISR, ELR and leader."""

from tests.unit.controller.support import directory, registration
from tests.unit.controller.test_cluster_control import Life

from ottla.controller import replication_control
from ottla.controller.cluster_control import BrokerControlState, fence_broker, unfence_broker
from ottla.controller.result import ControllerResult
from ottla.metadata import records as r
from ottla.metadata.registrations import LeaderRecoveryState, PartitionRegistration
from ottla.model.time_slice import run_to_end

UNCLEAN = "unclean.leader.election.enable"


def three(**configs: str) -> Life:
    life = Life(1, 2, 3)
    life.add_topic("t", [[1, 2, 3]], **{"min_insync_replicas": "2", **configs})
    return life


def fence(life: Life, *brokers: int) -> None:
    for broker_id in brokers:
        life.take(ControllerResult(None, fence_broker(life.rules, broker_id)))


def unfence(life: Life, broker_id: int) -> None:
    life.take(ControllerResult(None, unfence_broker(life.rules, life.image.brokers[broker_id])))


def crash(life: Life, broker_id: int) -> None:
    """A next life that cannot show that the last one ended cleanly."""
    life.now_ms += 1_000_000
    life.register(registration(broker_id, life.image.offset.to_bytes(16), previous_broker_epoch=-1))


def sets(partition: PartitionRegistration) -> tuple[int, set[int], set[int]]:
    return partition.leader, set(partition.isr), set(partition.elr)


def configure(life: Life, kind: int, name: str, value: str | None) -> None:
    life.apply(r.ConfigRecord(resource_type=kind, resource_name=name, name=UNCLEAN, value=value))


# --- ends of brokers


def test_below_the_minimum_the_last_ones_stay_eligible_and_the_first_back_leads() -> None:
    life = three()
    fence(life, 1)
    assert sets(life.state()) == (2, {2, 3}, set())
    fence(life, 2)
    assert sets(life.state()) == (3, {3}, {2})
    fence(life, 3)
    assert sets(life.state()) == (-1, set(), {2, 3})
    assert life.state().last_known_elr == (3,)
    unfence(life, 1)
    assert sets(life.state()) == (-1, set(), {2, 3}), "it may lack what the others have committed"
    unfence(life, 2)
    assert sets(life.state()) == (2, {2}, {3})
    assert life.state().leader_recovery_state == LeaderRecoveryState.RECOVERED


def test_lossy_restarts_leave_isr_and_elr_and_only_then_the_last_leader_recovers() -> None:
    life = three()
    fence(life, 1, 2, 3)
    crash(life, 2)
    assert sets(life.state()) == (-1, set(), {3})
    unfence(life, 2)
    assert life.state().leader == -1
    crash(life, 3)
    assert sets(life.state()) == (-1, set(), set())
    unfence(life, 1)
    assert life.state().leader == -1
    unfence(life, 3)
    state = life.state()
    assert (sets(state), state.leader_recovery_state) == ((3, {3}, set()), LeaderRecoveryState.RECOVERING)


def test_a_lossy_restart_of_a_leader_that_nobody_missed_hands_over() -> None:
    life = three()
    crash(life, 1)
    assert sets(life.state()) == (2, {2, 3}, set())
    assert life.image.brokers[1].fenced


def test_a_broker_goes_when_all_have_seen_that_it_leads_nothing() -> None:
    life = three()
    before = life.image.offset
    going = life.heartbeat(1, want_shut_down=True)
    assert going.response.state is BrokerControlState.CONTROLLED_SHUTDOWN
    assert sets(life.state()) == (2, {2, 3}, set())
    waiting = life.heartbeat(1, want_shut_down=True)
    assert waiting.response.state is BrokerControlState.CONTROLLED_SHUTDOWN
    life.heartbeat(2)
    life.heartbeat(3, current_metadata_offset=before)
    assert not life.heartbeat(1, want_shut_down=True).response.response.should_shut_down
    life.heartbeat(3)
    assert life.heartbeat(1, want_shut_down=True).response.response.should_shut_down
    assert life.image.brokers[1].fenced


def test_the_last_in_sync_replica_does_not_go_without_being_eligible() -> None:
    life = three()
    fence(life, 2, 3)
    assert sets(life.state()) == (1, {1}, {3})
    life.heartbeat(1, want_shut_down=True)
    assert sets(life.state()) == (-1, set(), {1, 3})


# --- ends of disks


def add_directory(life: Life) -> None:
    """Broker 1 has another one: without any it would end."""
    both = [directory(1), directory(9)]
    life.apply(r.BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=life.epoch(1), log_dirs=both))


def test_a_lost_directory_moves_its_leaders_and_lets_go_of_its_replicas() -> None:
    life = three()
    add_directory(life)
    life.add_topic("elsewhere", [[1, 2]])
    elsewhere = r.PartitionChangeRecord(
        topic_id=life.image.topics["elsewhere"].id, partition_id=0, directories=[directory(9), directory(2)]
    )
    life.apply(elsewhere)
    life.heartbeat(1, offline_log_dirs=[directory(1)])
    assert sets(life.state()) == (2, {2, 3}, set())
    assert sets(life.state("elsewhere")) == (1, {1, 2}, set())
    assert life.image.brokers[1].directories == (directory(9),)
    offset = life.image.offset
    life.heartbeat(1, offline_log_dirs=[directory(1)])
    assert life.image.offset == offset, "it is said with every heartbeat, and written once"


def test_who_has_lost_its_directory_is_not_elected_while_it_is_up() -> None:
    life = three()
    add_directory(life)
    fence(life, 2, 3)
    life.heartbeat(1, offline_log_dirs=[directory(1)])
    assert sets(life.state()) == (-1, set(), {1, 3})
    assert life.image.broker_is_active(1)
    progress = replication_control.RepairProgress()
    life.take(run_to_end(replication_control.repair_partitions(life.rules, progress)))
    assert life.state().leader == -1
    unfence(life, 3)
    assert sets(life.state()) == (3, {3}, {1})


def test_who_comes_back_without_a_directory_is_not_elected_in_it() -> None:
    life = three()
    add_directory(life)
    fence(life, 2, 3, 1)
    assert sets(life.state()) == (-1, set(), {1, 3})
    first = life.heartbeat(1, offline_log_dirs=[directory(1)])
    assert first.response.response.is_fenced
    second = life.heartbeat(1, offline_log_dirs=[directory(1)])
    assert not second.response.response.is_fenced
    assert sets(life.state()) == (-1, set(), {1, 3})


# --- unclean elections


def test_a_setting_that_changes_at_run_time_counts_from_then_on() -> None:
    life = three()
    fence(life, 2, 3, 1)
    crash(life, 1)
    crash(life, 3)
    unfence(life, 2)
    assert life.state().leader == -1
    for kind, name in ((2, "t"), (4, "")):
        configure(life, kind, name, "true")
        allowed = run_to_end(replication_control.elect_unclean_leaders(life.rules))
        assert [record.leader for record in allowed.records] == [2]
        configure(life, kind, name, None)
        assert not run_to_end(replication_control.elect_unclean_leaders(life.rules)).records
    configure(life, 4, "", "true")
    configure(life, 2, "t", "false")
    assert not run_to_end(replication_control.elect_unclean_leaders(life.rules)).records, (
        "the topic's own word counts"
    )


def test_an_unclean_leader_begins_alone_and_recovers() -> None:
    life = three(**{UNCLEAN.replace(".", "_"): "true"})
    fence(life, 3, 2)
    assert sets(life.state()) == (1, {1}, {2})
    unfence(life, 3)
    fence(life, 1)
    state = life.state()
    assert (sets(state), state.leader_recovery_state) == ((3, {3}, set()), LeaderRecoveryState.RECOVERING)


def test_a_clean_leader_is_preferred_to_an_unclean_one() -> None:
    life = three(**{UNCLEAN.replace(".", "_"): "true"})
    fence(life, 3, 2)
    unfence(life, 2)
    unfence(life, 3)
    fence(life, 1)
    assert sets(life.state()) == (2, {2}, {1})
    assert life.state().leader_recovery_state == LeaderRecoveryState.RECOVERED


# --- the minimum


def test_a_leader_that_may_commit_alone_leaves_nobody_eligible() -> None:
    life = three(min_insync_replicas="1")
    fence(life, 1, 2, 3)
    eligible = r.PartitionChangeRecord(
        topic_id=life.image.topics["t"].id, partition_id=0, eligible_leader_replicas=[2, 3]
    )
    life.apply(eligible)  # as they were with a larger minimum
    unfence(life, 2)
    assert sets(life.state()) == (2, {2}, set())
