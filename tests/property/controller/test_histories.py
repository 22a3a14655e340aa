"""What the controller may never write, whatever brokers, leaders and administrators ask of it in whatever order.

Several partitions and more brokers than replicas; every change is seen before and after. Where test_elections.py
follows the records of one partition, this one follows the rules:

- who leads is a replica in the ISR, is up and has its directory; nobody is in an ISR who is not up;
- a new leader was in the ISR, or in the ELR if all of that have gone; or it was the last one, with nobody else left; or
  the topic permits unclean elections, or somebody has asked for one: then it says that it recovers, alone in its ISR;
- a broker that comes back is in no ISR, and in no ELR if its last life did not end with a clean shutdown;
- epochs only grow, and the leader epoch with every change of the leader;
- AlterPartition is answered as Kafka answers it, and what is refused changes nothing.

A failure names its seed and the steps that led there; `Histories(seed, elr).run()` repeats it.
"""

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from tests.unit.controller.support import CONTEXT, directory, registration, work_by_itself
from tests.unit.controller.test_cluster_control import Life

from ottla.controller import replication_control
from ottla.controller.cluster_control import BrokerControlState, fence_broker, unregister_broker
from ottla.controller.configuration_control import incremental_alter_configs
from ottla.controller.result import ControllerResult, RequestContext
from ottla.metadata.image import ClusterImage
from ottla.metadata.records import NO_LEADER, BrokerRegistrationChangeRecord
from ottla.metadata.registrations import LeaderRecoveryState, PartitionRegistration
from ottla.model.errors import ErrorCode
from ottla.model.time_slice import run_to_end
from ottla.wire.messages.admin import configs
from ottla.wire.messages.nodes import broker_lifecycle as lifecycle
from ottla.wire.messages.nodes import replication as m

BROKERS = (1, 2, 3, 4)
ASSIGNMENT = ([1, 2, 3], [2, 3, 4], [4, 1])
SET = 0
TOPIC, BROKER = 2, 4
UNCLEAN = "unclean.leader.election.enable"
MIN_ISR = "min.insync.replicas"
RECOVERED, RECOVERING = LeaderRecoveryState.RECOVERED, LeaderRecoveryState.RECOVERING

SEEDS = 150
STEPS = 60


def two_directories(broker: int) -> list[bytes]:
    """One for the replicas and another: a broker without any ends."""
    return [directory(broker), directory(100 + broker)]


class Histories:
    """A topic of three partitions, and all that may happen to it."""

    def __init__(self, seed: int, elr: bool) -> None:
        self.random = Random(seed)
        self.elr = elr
        self.unclean = self.flip()
        self.life = Life(*BROKERS, elr=elr)
        self.life.add_topic(
            "t",
            [list(replicas) for replicas in ASSIGNMENT],
            min_insync_replicas=str(self.random.randint(1, 3)),
            unclean_leader_election_enable=str(self.unclean).lower(),
        )
        for broker in BROKERS:
            self.life.apply(
                BrokerRegistrationChangeRecord(
                    broker_id=broker,
                    broker_epoch=self.life.epoch(broker),
                    log_dirs=two_directories(broker),
                )
            )
        self.incarnation = 0
        self.clean_epochs: dict[int, int] = {}
        self.steps: list[str] = []

    def flip(self) -> bool:
        return self.random.random() < 0.5

    def run(self) -> None:
        """Half of the steps are those of leaders, which else would seldom come to more than a refusal."""
        others = [
            *(self.fence, self.beat, self.beat, self.register, self.strike_off, self.elect),
            *(self.work_by_itself, self.change_minimum, self.permit_unclean, self.move),
        ]
        for _ in range(STEPS):
            step = self.alter_partition if self.flip() else self.random.choice(others)
            step()

    # --- every change, before and after

    def take(
        self, result: ControllerResult[Any], *, asked_for_unclean: bool = False, joined: Sequence[int] = ()
    ) -> None:
        before = self.life.image
        self.steps.append(f"{result.records}")
        self.life.take(result)
        self.check_change(before, may_lose=self.unclean or asked_for_unclean, joined=joined)

    def check_change(self, before: ClusterImage, *, may_lose: bool, joined: Sequence[int] = ()) -> None:
        """`joined`: a leader has just said that these are in sync."""
        image = self.life.image
        for number, now in image.topics_by_name["t"].partitions.items():
            self._check_state(now)
            then = before.partition("t", number)
            assert then is not None
            self._check_step(then, now, may_lose, joined)

    def _check_state(self, now: PartitionRegistration) -> None:
        image = self.life.image
        assert set(now.isr) <= set(now.replicas)
        assert set(now.elr) <= set(now.replicas)
        assert not set(now.isr) & set(now.elr)
        assert self.elr or (not now.elr and not now.last_known_elr and now.isr)
        if now.leader == NO_LEADER:
            # Without ELR the last member stays in the ISR: it is all that is known.
            assert len(now.isr) == (0 if self.elr else 1)
        else:
            assert now.leader in now.isr
            for replica in now.isr:
                assert image.broker_is_active(replica)
                assert image.brokers[replica].has_online_directory(now.directory(replica))
        assert now.leader_recovery_state == RECOVERED or now.leader == NO_LEADER or now.isr == (now.leader,)

    def _check_step(
        self, then: PartitionRegistration, now: PartitionRegistration, may_lose: bool, joined: Sequence[int]
    ) -> None:
        assert now.partition_epoch >= then.partition_epoch
        assert now.leader_epoch >= then.leader_epoch
        if now == then:
            return
        assert now._replace(partition_epoch=then.partition_epoch) == then or (
            now.partition_epoch > then.partition_epoch
        )
        if now.leader == then.leader:
            return
        assert now.leader_epoch > then.leader_epoch
        if now.leader == NO_LEADER or now.leader in (*then.isr, *joined):
            return
        if now.leader in then.elr:
            # All of the ISR have gone, the last of them perhaps just now.
            assert now.isr == (now.leader,)
            assert not self._able(now, then.isr)
            return
        # It may lack what is committed, and says so.
        assert now.leader_recovery_state == RECOVERING
        assert now.isr == (now.leader,)
        if not may_lose:
            assert now.leader in then.last_known_elr
            assert not then.isr
            assert not then.elr

    # --- brokers

    def fence(self) -> None:
        broker = self.random.choice(BROKERS)
        registered = self.life.image.brokers.get(broker)
        if registered is not None and not registered.fenced:
            self.take(ControllerResult(None, fence_broker(self.life.rules, broker)))

    def beat(self) -> None:
        broker = self.random.choice(BROKERS)
        if broker not in self.life.image.brokers:
            return
        before = self.life.image
        result = self.life.heartbeat(
            broker,
            want_fence=self.random.random() < 0.2,
            # Who has begun to go does not change its mind.
            want_shut_down=before.brokers[broker].in_controlled_shutdown or self.random.random() < 0.2,
            offline_log_dirs=[directory(broker)] if self.random.random() < 0.2 else [],
        )
        self.steps.append(f"{result.records}")
        if result.response.state is BrokerControlState.SHUTDOWN_NOW:
            self.clean_epochs[broker] = self.life.epoch(broker)
        self.check_change(before, may_lose=self.unclean)

    def register(self) -> None:
        broker, clean = self.random.choice(BROKERS), self.flip()
        self.steps.append(f"register {broker}")
        self.incarnation += 1
        self.life.now_ms += 1_000_000  # nobody waits for a session here
        before = self.life.image
        known, previous = before.brokers.get(broker), self.clean_epochs.get(broker, -1) if clean else -1
        self.life.register(
            registration(
                broker,
                self.incarnation.to_bytes(16),
                previous_broker_epoch=previous,
                log_dirs=two_directories(broker),
            )
        )
        self.check_change(before, may_lose=self.unclean)
        is_lossy = known is None or known.epoch != previous
        for state in self.life.image.topics_by_name["t"].partitions.values():
            assert broker not in state.isr or not self.elr
            assert broker not in state.elr or not is_lossy

    def strike_off(self) -> None:
        """Only one that is not there, as an administrator should."""
        broker = self.random.choice(BROKERS)
        registered = self.life.image.brokers.get(broker)
        if registered is not None and registered.fenced:
            request = lifecycle.UnregisterBrokerRequest(broker_id=broker)
            self.take(unregister_broker(self.life.rules, request))

    # --- leaders

    def alter_partition(self) -> None:
        """As leaders ask, and as those do who are wrong."""
        random = self.random
        number, version = random.randrange(len(ASSIGNMENT)), random.choice((2, 3))
        state = self.life.state("t", number)
        wrong = random.random() < 0.3
        sender = random.choice(BROKERS) if wrong or state.leader == NO_LEADER else state.leader
        if sender not in self.life.image.brokers:
            return
        among = (*BROKERS, 9, sender) if wrong else state.replicas
        isr = random.sample(among, random.randint(0, len(among)))
        if not wrong:
            isr = [replica for replica in isr if self.life.image.broker_is_active(replica) or self.flip()]
        if not wrong and sender not in isr:
            isr = [sender, *isr]
        life = random.choice(("known", "known", "earlier", "unsaid"))
        recovery = RECOVERING if wrong and self.flip() else RECOVERED
        members = [m.BrokerState(broker_id=b, broker_epoch=self._life_of(b, life)) for b in isr]
        asked = m.AlterPartitionRequestPartitionData(
            partition_index=number,
            leader_epoch=state.leader_epoch + (random.randint(-1, 1) if wrong else 0),
            partition_epoch=state.partition_epoch + (random.randint(-1, 1) if wrong else 0),
            new_isr=isr if version < 3 else [],
            new_isr_with_epochs=members if version >= 3 else [],
            leader_recovery_state=recovery,
        )
        request = m.AlterPartitionRequest(
            broker_id=sender,
            broker_epoch=self.life.epoch(sender),
            topics=[
                m.AlterPartitionRequestTopicData(topic_id=self.life.image.topics["t"].id, partitions=[asked])
            ],
        )
        wanted = self._expected(state, sender, asked, members, version)
        result = run_to_end(
            replication_control.alter_partition(self.life.rules, request, RequestContext(version))
        )
        answer = result.response.topics[0].partitions[0]
        if wanted is not None:
            assert (answer.error_code, result.records) == (wanted, [])
            return
        self.take(result, joined=isr)
        after = self.life.state("t", number)
        if after.leader != sender:
            # Only the end of a move takes the leader's place while it is up.
            assert answer.error_code == ErrorCode.NEW_LEADER_ELECTED
            assert state.removing_replicas
            assert not after.removing_replicas
            return
        assert (answer.error_code, answer.leader_id, answer.leader_epoch, answer.partition_epoch) == (
            ErrorCode.NONE,
            sender,
            after.leader_epoch,
            after.partition_epoch,
        )
        assert tuple(answer.isr) == after.isr
        if not state.removing_replicas:
            assert after.isr == tuple(isr)
        assert answer.leader_recovery_state == after.leader_recovery_state == recovery

    def _life_of(self, broker: int, which: str) -> int:
        registered = self.life.image.brokers.get(broker)
        if which == "unsaid" or registered is None:
            return -1
        return registered.epoch - (which == "earlier")

    def _expected(
        self,
        state: PartitionRegistration,
        sender: int,
        asked: m.AlterPartitionRequestPartitionData,
        members: list[m.BrokerState],
        version: int,
    ) -> ErrorCode | None:
        """Kafka's answer, in the order in which it looks; None if it agrees."""
        ids = [member.broker_id for member in members]
        recovering = asked.leader_recovery_state == RECOVERING
        refusals = [
            (asked.leader_epoch > state.leader_epoch, ErrorCode.NOT_CONTROLLER),
            (asked.partition_epoch > state.partition_epoch, ErrorCode.NOT_CONTROLLER),
            (asked.leader_epoch < state.leader_epoch, ErrorCode.FENCED_LEADER_EPOCH),
            (sender != state.leader, ErrorCode.INVALID_REQUEST),
            (asked.partition_epoch < state.partition_epoch, ErrorCode.INVALID_UPDATE_VERSION),
            (not ids or len(set(ids)) < len(ids), ErrorCode.INVALID_REQUEST),
            (not set(ids) <= set(state.replicas), ErrorCode.INVALID_REQUEST),
            (sender not in ids, ErrorCode.INVALID_REQUEST),
            (recovering and len(ids) > 1, ErrorCode.INVALID_REQUEST),
            (recovering and state.leader_recovery_state == RECOVERED, ErrorCode.INVALID_REQUEST),
        ]
        for member in members:
            registered = self.life.image.brokers.get(member.broker_id)
            if registered is None or registered.fenced or registered.in_controlled_shutdown:
                refusals.append((True, ErrorCode.INELIGIBLE_REPLICA))
            elif member.broker_id in state.replicas and not registered.has_online_directory(
                state.directory(member.broker_id)
            ):
                # Kafka does not look at directories here.
                refusals.append((True, ErrorCode.INELIGIBLE_REPLICA))
            elif version >= 3 and member.broker_epoch not in (-1, registered.epoch):
                refusals.append((True, ErrorCode.INELIGIBLE_REPLICA))
        return next((code for applies, code in refusals if applies), None)

    # --- administrators, and the controller by itself

    def elect(self) -> None:
        unclean = self.flip()
        request = m.ElectLeadersRequest(election_type=int(unclean), topic_partitions=None)
        result = run_to_end(replication_control.elect_leaders(self.life.rules, request))
        self.take(result, asked_for_unclean=unclean)

    def work_by_itself(self) -> None:
        work_by_itself(lambda: self.life.rules, self.take)
        for state in self.life.image.topics_by_name["t"].partitions.values():
            if state.leader == NO_LEADER:
                assert not self._could_lead(state)

    def _could_lead(self, state: PartitionRegistration) -> list[int]:
        """Who should not have been left waiting."""
        if self.unclean:
            return self._able(state, state.replicas)
        return self._able(state, state.isr or state.elr or state.last_known_elr)

    def _able(self, state: PartitionRegistration, among: Sequence[int]) -> list[int]:
        """Replicas that are up and have their directory."""
        image = self.life.image
        return [
            replica
            for replica in state.replicas
            if replica in among
            and image.broker_is_active(replica)
            and image.brokers[replica].has_online_directory(state.directory(replica))
        ]

    def change_minimum(self) -> None:
        self._set(MIN_ISR, str(self.random.randint(1, 3)))

    def permit_unclean(self) -> None:
        """Of the topic, or of all that say nothing themselves: this one does."""
        unclean, on_cluster = self.flip(), self.flip()
        if not on_cluster:
            self.unclean = unclean
        self._set(UNCLEAN, str(unclean).lower(), on_cluster=on_cluster)

    def _set(self, name: str, value: str, *, on_cluster: bool = False) -> None:
        entry = configs.IncrementalAlterableConfig(name=name, config_operation=SET, value=value)
        kind, resource = (BROKER, "") if on_cluster else (TOPIC, "t")
        change = configs.IncrementalAlterConfigsResource(
            resource_type=kind, resource_name=resource, configs=[entry]
        )
        request = configs.IncrementalAlterConfigsRequest(resources=[change], validate_only=False)
        self.take(run_to_end(incremental_alter_configs(self.life.rules, request, CONTEXT)))

    def move(self) -> None:
        known = list(self.life.image.brokers)
        target = self.random.sample(known, self.random.randint(1, len(known))) if known else None
        asked = m.ReassignablePartition(
            partition_index=self.random.randrange(len(ASSIGNMENT)), replicas=target if self.flip() else None
        )
        topics = [m.ReassignableTopic(name="t", partitions=[asked])]
        request = m.AlterPartitionReassignmentsRequest(topics=topics)
        self.take(run_to_end(replication_control.alter_partition_reassignments(self.life.rules, request)))


@pytest.mark.parametrize("elr", [True, False], ids=["with-elr", "without-elr"])
def test_histories(elr: bool) -> None:
    for seed in range(SEEDS):
        history = Histories(seed, elr)
        try:
            history.run()
        except BaseException as failure:
            failure.add_note(f"Histories({seed}, {elr}).run()\n" + "\n".join(history.steps[-6:]))
            raise
