"""What KIP-966 promises of the controller's side, whatever happens to the replicas of a partition in whatever order.

A partition of three replicas: the controller's decisions are the real ones, the replicas' logs are lists of numbers.
Records are committed as 4.3.1 commits them: when all of the ISR have them, and these are not fewer than the minimum.
After every step, without unclean elections:

- leader candidate completeness: whoever is in the ISR or the ELR has all that is committed;
- there is such a replica, unless all that there were have lost their page cache, which takes as many lossy restarts as
  the minimum ISR asks for replicas;
- who leads is in the ISR, is up, and has its directory.
"""

from typing import Any, NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.unit.controller.support import CONTEXT, directory, registration, work_by_itself
from tests.unit.controller.test_cluster_control import Life

from ottla.controller import replication_control
from ottla.controller.cluster_control import BrokerControlState, fence_broker
from ottla.controller.configuration_control import incremental_alter_configs
from ottla.controller.result import ControllerResult
from ottla.metadata.records import NO_LEADER, BrokerRegistrationChangeRecord
from ottla.metadata.registrations import LeaderRecoveryState, PartitionRegistration
from ottla.model.time_slice import run_to_end
from ottla.wire.messages.admin import configs
from ottla.wire.messages.nodes import replication as m

BROKERS = (1, 2, 3)
SPARE = 4
SET = 0
TOPIC = 2
NEVER_CLEAN = -1

brokers = st.sampled_from((*BROKERS, SPARE))


def directories(broker: int) -> list[bytes]:
    """One for the replica and another: a broker without any ends."""
    return [directory(broker), directory(100 + broker)]


class Noted(NamedTuple):
    """How far a follower was: in which epoch of the leader, in which life of its own."""

    leader_epoch: int
    broker_epoch: int
    end: int


class Elections(RuleBasedStateMachine):
    """One partition: what the controller decides, and what its replicas have."""

    # May the minimum ISR change, and replicas move? Then one lossy restart can be too many, as it is with Kafka.
    changes_minimum = False

    @initialize(min_isr=st.integers(1, 3))
    def begin(self, min_isr: int) -> None:
        self.min_isr = min_isr
        self.life = Life(*BROKERS, SPARE, **{"unclean.leader.election.enable": "false"})
        self.life.add_topic("t", [list(BROKERS)], min_insync_replicas=str(min_isr))
        for broker in (*BROKERS, SPARE):
            self.life.apply(
                BrokerRegistrationChangeRecord(
                    broker_id=broker, broker_epoch=self.life.epoch(broker), log_dirs=directories(broker)
                )
            )
        self.logs: dict[int, list[int]] = {broker: [] for broker in (*BROKERS, SPARE)}
        # What leaders know of followers, by their fetches.
        self.noted: dict[int, Noted] = {}
        self.clean_epochs = dict.fromkeys((*BROKERS, SPARE), NEVER_CLEAN)
        self.committed: list[int] = []
        self.next_value = 0
        self.lossy_restarts = 0
        self.incarnation = 0
        # Was anybody in the ISR or the ELR after the last step?
        self.had_candidates = True

    @property
    def state(self) -> PartitionRegistration:
        return self.life.state()

    @property
    def candidates(self) -> set[int]:
        return {*self.state.isr, *self.state.elr}

    def is_up(self, broker: int) -> bool:
        return self.life.image.broker_is_active(broker)

    def take(self, result: ControllerResult[Any]) -> None:
        self.life.take(result)

    # --- the replicas

    @precondition(lambda self: self.state.leader != NO_LEADER)
    @rule()
    def produce(self) -> None:
        self.logs[self.state.leader].append(self.next_value)
        self.next_value += 1

    @precondition(lambda self: self.state.leader != NO_LEADER)
    @rule(broker=brokers, behind=st.integers(0, 2))
    def replicate(self, broker: int, behind: int) -> None:
        """A follower cuts what its leader has not, and copies it up to somewhere."""
        leader = self.state.leader
        if broker == leader or broker not in self.state.replicas or not self.is_up(broker):
            return
        source = self.logs[leader]
        shared = 0
        for mine, theirs in zip(self.logs[broker], source, strict=False):
            if mine != theirs:
                break
            shared += 1
        self.logs[broker] = source[: max(shared, len(source) - behind)]
        self.noted[broker] = Noted(self.state.leader_epoch, self.life.epoch(broker), len(self.logs[broker]))

    @precondition(lambda self: self.state.leader != NO_LEADER)
    @rule()
    def commit(self) -> None:
        if len(self.state.isr) >= self.min_isr:
            end = min(len(self.logs[broker]) for broker in self.state.isr)
            if end > len(self.committed):
                self.committed = self.logs[self.state.leader][:end]

    @precondition(lambda self: self.state.leader != NO_LEADER)
    @rule(broker=brokers)
    def join(self, broker: int) -> None:
        """The leader wants a follower in that had all that is committed in this epoch; it may have crashed since."""
        state, noted = self.state, self.noted.get(broker)
        if noted is None or noted.leader_epoch != state.leader_epoch or noted.end < len(self.committed):
            return
        if broker in state.replicas and broker not in state.isr:
            self._alter([*state.isr, broker], {broker: noted.broker_epoch})

    @precondition(lambda self: self.state.leader != NO_LEADER)
    @rule(broker=brokers)
    def drop(self, broker: int) -> None:
        state = self.state
        if broker in state.isr and broker != state.leader:
            self._alter([replica for replica in state.isr if replica != broker])

    def _alter(self, isr: list[int], lives: dict[int, int] | None = None) -> None:
        state, leader = self.state, self.state.leader
        asked = m.AlterPartitionRequestPartitionData(
            partition_index=0,
            leader_epoch=state.leader_epoch,
            partition_epoch=state.partition_epoch,
            new_isr_with_epochs=[
                m.BrokerState(broker_id=b, broker_epoch=(lives or {}).get(b, self.life.epoch(b))) for b in isr
            ],
            leader_recovery_state=LeaderRecoveryState.RECOVERED,
        )
        topic = m.AlterPartitionRequestTopicData(topic_id=self.life.image.topics["t"].id, partitions=[asked])
        request = m.AlterPartitionRequest(
            broker_id=leader, broker_epoch=self.life.epoch(leader), topics=[topic]
        )
        self.take(run_to_end(replication_control.alter_partition(self.life.rules, request, CONTEXT)))

    # --- the brokers

    @rule(broker=brokers)
    def fence(self, broker: int) -> None:
        if not self.life.image.brokers[broker].fenced:
            self.take(ControllerResult(None, fence_broker(self.life.rules, broker)))

    @rule(broker=brokers)
    def beat(self, broker: int) -> None:
        """A broker that was cut off is heard again."""
        if not self.life.image.brokers[broker].in_controlled_shutdown:
            self.life.heartbeat(broker)

    @rule(broker=brokers)
    def lose_directory(self, broker: int) -> None:
        if not self.life.image.brokers[broker].in_controlled_shutdown:
            self.life.heartbeat(broker, offline_log_dirs=[directory(broker)])

    @rule(broker=brokers)
    def shut_down(self, broker: int) -> None:
        """As far as it can: others have to see that it leads nothing any more."""
        result = self.life.heartbeat(broker, want_shut_down=True)
        if result.response.state is BrokerControlState.SHUTDOWN_NOW:
            self.clean_epochs[broker] = self.life.epoch(broker)

    @rule(broker=brokers)
    def start_after_a_clean_stop(self, broker: int) -> None:
        if self.clean_epochs[broker] == self.life.epoch(broker):
            self._register(broker, self.clean_epochs[broker])

    @rule(broker=brokers, kept=st.integers(0, 3))
    def start_after_a_crash(self, broker: int, kept: int) -> None:
        """The process or the host has died, and with that what was not on disk."""
        if self.clean_epochs[broker] == self.life.epoch(broker):
            return
        if broker in self.candidates:
            self.lossy_restarts += 1
        self.logs[broker] = self.logs[broker][:kept]
        self._register(broker, NEVER_CLEAN)

    def _register(self, broker: int, previous_epoch: int) -> None:
        self.incarnation += 1
        self.life.now_ms += 1_000_000  # nobody waits for a session here
        request = registration(
            broker,
            self.incarnation.to_bytes(16),
            previous_broker_epoch=previous_epoch,
            log_dirs=directories(broker),
        )
        self.life.register(request)
        self.clean_epochs[broker] = NEVER_CLEAN

    # --- the controller and whoever asks it

    @rule()
    def elect_preferred(self) -> None:
        request = m.ElectLeadersRequest(election_type=0, topic_partitions=None)
        self.take(run_to_end(replication_control.elect_leaders(self.life.rules, request)))

    @rule()
    def work_by_itself(self) -> None:
        work_by_itself(lambda: self.life.rules, self.take)

    @precondition(lambda self: self.changes_minimum)
    @rule(min_isr=st.integers(1, 3), whole_cluster=st.booleans())
    def change_minimum(self, min_isr: int, whole_cluster: bool) -> None:
        before = self.candidates
        resources = [
            configs.IncrementalAlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=[
                    configs.IncrementalAlterableConfig(
                        name="min.insync.replicas", config_operation=SET, value=str(min_isr)
                    )
                ],
            )
            for kind, name in ([(4, "")] if whole_cluster else []) + [(TOPIC, "t")]
        ]
        request = configs.IncrementalAlterConfigsRequest(resources=resources, validate_only=False)
        self.take(run_to_end(incremental_alter_configs(self.life.rules, request, CONTEXT)))
        self.min_isr = min_isr
        assert self.candidates or not before

    @precondition(lambda self: self.changes_minimum)
    @rule(replicas=st.permutations((*BROKERS, SPARE)), call_off=st.booleans())
    def move(self, replicas: list[int], call_off: bool) -> None:
        asked = m.ReassignablePartition(partition_index=0, replicas=None if call_off else replicas[:3])
        topic = m.ReassignableTopic(name="t", partitions=[asked])
        request = m.AlterPartitionReassignmentsRequest(topics=[topic])
        self.take(run_to_end(replication_control.alter_partition_reassignments(self.life.rules, request)))

    # --- what must be true

    @invariant()
    def what_is_committed_is_with_whoever_may_lead(self) -> None:
        state = self.state
        if state.leader != NO_LEADER:
            leader = self.life.image.brokers[state.leader]
            assert leader.id in state.isr
            assert leader.active
            assert leader.has_online_directory(state.directory(leader.id))
            if not self.had_candidates:
                # Nobody complete was left, and the last leader is back: what it has not is lost, and said to be.
                assert state.leader_recovery_state == LeaderRecoveryState.RECOVERING
                self.committed = self.logs[leader.id][: len(self.committed)]
        assert not set(state.isr) & set(state.elr)
        assert set(state.isr) <= set(state.replicas)
        assert not state.elr or len(state.isr) < self.min_isr
        for broker in self.candidates:
            assert self.logs[broker][: len(self.committed)] == self.committed
        if not self.candidates:
            assert self.lossy_restarts >= (1 if self.changes_minimum else self.min_isr)
        self.had_candidates = bool(self.candidates)


class ElectionsWithChanges(Elections):
    """The same while the minimum ISR changes and replicas move."""

    changes_minimum = True


Elections.TestCase.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
ElectionsWithChanges.TestCase.settings = Elections.TestCase.settings
TestElections = Elections.TestCase
TestElectionsWithChanges = ElectionsWithChanges.TestCase
