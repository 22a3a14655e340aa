"""AlterPartitionManager: what leaders propose as their partitions' ISR, told to the controller (KIP-497).

Rules: a partition has one proposal on its way at a time, and there is one request at a time, with all that has come
together meanwhile. A request is asked until there is an answer: whether one that was lost has been carried out is not
known, and a proposal that has been is taken by the controller as what it is, a proposal for an old partition epoch.
What the answer means for a partition is the partition's to know (`Partition.isr_answered`), also that it means nothing
any more. A proposal that the metadata has overtaken before it was sent is not sent.

Without I/O but for `_send_all`, which runs while there is something to send. Owner: the ReplicaManager, on the
broker's loop.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

from ottla.metadata.registrations import LeaderRecoveryState
from ottla.model.errors import ErrorCode, KafkaError, error_of
from ottla.model.ids import NodeId, Uuid
from ottla.model.tasks import report, spawn_restarting
from ottla.replication.partition import LeaderAndIsr, Partition
from ottla.wire.messages.nodes.replication import (
    AlterPartitionRequest,
    AlterPartitionRequestPartitionData,
    AlterPartitionRequestTopicData,
    AlterPartitionResponse,
    BrokerState,
)

log = logging.getLogger("ottla.replication")

OWNER: Final = "replicas"
# A partition is two, and one for each member of its ISR: a few milliseconds to make, and as many for the answer.
MAX_ELEMENTS_PER_REQUEST: Final = 1_000
# After a failure: Kafka's 50 ms, and longer while it goes on failing.
RETRY_BACKOFF_S: Final = 0.05
RETRY_BACKOFF_MAX_S: Final = 1.0

Key = tuple[Uuid, int]
Ask = Callable[[AlterPartitionRequest], Awaitable[AlterPartitionResponse]]


class Proposal(NamedTuple):
    """An ISR that a leader has proposed, and the epochs for which it has."""

    partition: Partition
    leader_epoch: int
    partition_epoch: int
    isr: Sequence[tuple[int, int]]
    recovery: int


class AlterPartitionManager:
    """Proposals of all partitions that this broker leads, on their way to the controller."""

    def __init__(self, node_id: NodeId, broker_epoch: Callable[[], int], ask: Ask) -> None:
        """`ask` asks the active controller, wherever it is by then."""
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._ask = ask
        # Until they are answered, in the order in which they came.
        self._unanswered: dict[Key, Proposal] = {}
        self._sent: list[Proposal] = []
        self._sending: asyncio.Task[None] | None = None
        # What the log has last said of requests that fail: a controller that is away is not news every second.
        self._complaint = ""
        self._stopped = False

    def submit(
        self,
        partition: Partition,
        leader_epoch: int,
        partition_epoch: int,
        isr: Sequence[tuple[int, int]],
        recovery: int,
    ) -> bool:
        """Tell the controller; False if it is being told something of this partition already."""
        key = _key(partition)
        if self._stopped or key in self._unanswered:
            return False
        self._unanswered[key] = Proposal(partition, leader_epoch, partition_epoch, isr, recovery)
        self._start_sending()
        return True

    # ---- without I/O --------------------------------------------------------------------------------------

    def next_request(self) -> AlterPartitionRequest | None:
        """All that is to be told, or as much as one request may have; None if that is nothing."""
        self._sent = []
        elements = 0
        topics: dict[Uuid, list[AlterPartitionRequestPartitionData]] = {}
        for key, proposal in list(self._unanswered.items()):
            partition = proposal.partition
            if not partition.is_proposed_in(proposal.leader_epoch, proposal.partition_epoch):
                del self._unanswered[key]
                continue
            elements += 2 + len(proposal.isr)
            if elements > MAX_ELEMENTS_PER_REQUEST and self._sent:
                break
            self._sent.append(proposal)
            data = AlterPartitionRequestPartitionData(
                partition_index=partition.topic_partition.partition,
                leader_epoch=proposal.leader_epoch,
                new_isr_with_epochs=[
                    BrokerState(broker_id=replica, broker_epoch=epoch) for replica, epoch in proposal.isr
                ],
                leader_recovery_state=proposal.recovery,
                partition_epoch=proposal.partition_epoch,
            )
            topics.setdefault(partition.topic_id, []).append(data)
        if not self._sent:
            return None
        return AlterPartitionRequest(
            broker_id=self._node_id,
            broker_epoch=self._broker_epoch(),
            topics=[
                AlterPartitionRequestTopicData(topic_id=topic_id, partitions=partitions)
                for topic_id, partitions in topics.items()
            ],
        )

    def on_response(self, response: AlterPartitionResponse) -> bool:
        """Give each partition its answer; is all well, so that the next request need not wait?"""
        sent, self._sent = self._sent, []
        refused = error_of(response.error_code)
        if refused is not None:
            # STALE_BROKER_EPOCH among them: the next try has the epoch that this broker is registered in by then.
            self._complain(refused.name, len(sent))
            return False
        answers: dict[Key, ErrorCode | LeaderAndIsr] = {}
        for topic in response.topics:
            for data in topic.partitions:
                error = error_of(data.error_code)
                if error is None and data.leader_recovery_state not in (
                    LeaderRecoveryState.RECOVERED,
                    LeaderRecoveryState.RECOVERING,
                ):
                    error = ErrorCode.UNKNOWN_SERVER_ERROR
                answers[Uuid(topic.topic_id), data.partition_index] = error or LeaderAndIsr(
                    data.leader_id,
                    data.leader_epoch,
                    tuple(data.isr),
                    data.leader_recovery_state,
                    data.partition_epoch,
                )
        is_well, left_out = True, 0
        for proposal in sent:
            key = _key(proposal.partition)
            answer = answers.get(key)
            if answer is None:
                left_out += 1
                is_well = False  # it is told again
                continue
            # The partition may propose again at once.
            if self._unanswered.get(key) is proposal:
                del self._unanswered[key]
            try:
                proposal.partition.isr_answered(answer)
            except Exception as error:  # noqa: BLE001 - the answers of the others are still to be given
                report(error, name="the answer about an ISR", owner=str(proposal.partition.topic_partition))
            if isinstance(answer, ErrorCode) and key in self._unanswered:
                is_well = False  # the same again: not as fast as the controller refuses it
        if left_out:
            self._complain("it leaves them out of its answer", left_out)
        else:
            self._complaint = ""
        return is_well

    def on_failure(self, error: KafkaError) -> None:
        """There is no answer: everything is told again."""
        self._complain(str(error), len(self._sent))
        self._sent = []

    def _complain(self, why: str, partitions: int) -> None:
        level = logging.DEBUG if why == self._complaint else logging.WARNING
        self._complaint = why
        log.log(level, "the controller could not be told the ISRs of %d partitions yet: %s", partitions, why)

    # ---- sending ------------------------------------------------------------------------------------------

    def _start_sending(self) -> None:
        if self._sending is None or self._sending.done():
            self._sending = spawn_restarting(
                self._send_all, name="telling the controller of ISRs", owner=OWNER
            )

    async def _send_all(self) -> None:
        pause_s = RETRY_BACKOFF_S
        while (request := self.next_request()) is not None:
            try:
                is_well = self.on_response(await self._ask(request))
            except KafkaError as error:
                self.on_failure(error)
                is_well = False
            if is_well:
                pause_s = RETRY_BACKOFF_S
            else:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, RETRY_BACKOFF_MAX_S)

    async def stop(self) -> None:
        """Tell no more: what the controller does not hear, it finds out by itself."""
        self._stopped = True
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)


def _key(partition: Partition) -> Key:
    return partition.topic_id, partition.topic_partition.partition
