"""Finding a consumer's positions: what its group committed, else by timestamp; and checking them after a change
of leader (KIP-320). Owned by the consumer core, which gives it its turns.
"""

from collections.abc import Callable
from typing import Any

from ottla.client.config import ConsumerConfig
from ottla.client.errors import NoOffsetForPartition, UnsupportedVersion
from ottla.client.fanout import LeaderFanout
from ottla.client.network import NetworkCore
from ottla.client.offsets import LATEST, epoch_end_question, list_offsets_question
from ottla.client.positions import RESET_TIMESTAMPS, PartitionPosition
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition

# The group is about to take the partition from us, or has: the question answers itself.
_NOT_OURS = frozenset(
    {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.FENCED_MEMBER_EPOCH}
)


class PositionFinder:
    """See the module. Shares the positions with the consumer core, and tells it what went wrong."""

    def __init__(
        self,
        network: NetworkCore,
        config: ConsumerConfig,
        positions: dict[TopicPartition, PartitionPosition],
        report: Callable[[KafkaError], None],
        discard: Callable[[TopicPartition], None],
    ) -> None:
        self._network = network
        self._metadata = network.metadata
        self._config = config
        self._positions = positions
        self._report = report
        self._discard = discard
        # Set by the group: asks what was committed for partitions, and calls on_committed for each.
        self.committed_source: Callable[[list[TopicPartition], float], None] | None = None

    def look_up(self, now: float) -> None:
        """Ask for the positions that are not known."""
        timestamps: dict[TopicPartition, int] = {}
        committed: list[TopicPartition] = []
        for tp, state in self._positions.items():
            if state.position is not None or state.looking_up:
                continue
            if state.needs_committed:
                state.looking_up = True
                committed.append(tp)
                continue
            timestamp = state.reset if state.reset is not None else self._reset_policy(state)
            if timestamp is not None:
                state.reset, state.looking_up = timestamp, True
                timestamps[tp] = timestamp
        if committed and self.committed_source is not None:
            self.committed_source(committed, now)
        if not timestamps:
            return
        question = list_offsets_question(
            timestamps, self._network, read_committed=self._config.read_committed
        )

        def found(tp: TopicPartition, result: Any, error: KafkaError | None, now: float) -> None:
            self._on_position(tp, timestamps[tp], result, error, now)

        LeaderFanout(self._network, timestamps, question, found, float("inf"))

    def on_committed(
        self, tp: TopicPartition, at: tuple[int, int] | None, error: KafkaError | None, now: float
    ) -> None:
        """The group has said where it stopped (offset and epoch); None: it never read this partition."""
        state = self._positions.get(tp)
        if state is None or not state.needs_committed:
            return  # moved or unassigned meanwhile
        state.looking_up = False
        if error is not None:
            if error.code not in _NOT_OURS:
                state.looking_up = True  # told once; a seek starts it again
                self._report(error)
            return
        state.needs_committed = False
        if at is not None:
            state.seek(*at)

    def _reset_policy(self, state: PartitionPosition) -> int | None:
        timestamp = RESET_TIMESTAMPS.get(self._config.auto_offset_reset)
        if timestamp is None:
            state.looking_up = True  # told once; a seek starts it again
            self._report(NoOffsetForPartition(f"{state.tp} has no position and auto_offset_reset is none"))
        return timestamp

    def _on_position(
        self, tp: TopicPartition, asked: int, result: Any, error: KafkaError | None, now: float
    ) -> None:
        state = self._positions.get(tp)
        if state is None or state.reset != asked or state.position is not None:
            return  # moved or unassigned meanwhile
        if error is not None:
            self._report(error)
            return
        if result.offset < 0:
            # No record at or after the timestamp: the end is where the next one will be.
            state.need_reset(LATEST)
            return
        state.seek(result.offset)
        state.validated_epoch = result.leader_epoch

    def validate(self, now: float) -> None:
        """After a change of leader, see that the log still holds what we have read (KIP-320)."""
        epochs: dict[TopicPartition, int] = {}
        for tp, state in self._positions.items():
            current = self._metadata.leader_epoch(tp)
            if state.position is None or state.validating or current <= state.validated_epoch:
                continue
            if state.offset_epoch < 0:
                state.validated_epoch = current  # nothing read yet, nothing to check
                continue
            state.validating = True
            epochs[tp] = state.offset_epoch
        if epochs:
            question = epoch_end_question(epochs, self._metadata)
            LeaderFanout(self._network, epochs, question, self._on_epoch_end, float("inf"))

    def _on_epoch_end(self, tp: TopicPartition, end: Any, error: KafkaError | None, now: float) -> None:
        state = self._positions.get(tp)
        if state is None or not state.validating:
            return
        state.validating = False
        state.validated_epoch = self._metadata.leader_epoch(tp)
        if error is not None:
            if not isinstance(error, UnsupportedVersion):
                self._report(error)
            return
        if state.position is None or end.end_offset < 0 or end.end_offset >= state.position:
            return
        self._discard(tp)
        if self._config.auto_offset_reset == "none":
            self._report(
                KafkaError(
                    ErrorCode.OFFSET_OUT_OF_RANGE,
                    f"{tp}: the log was truncated to {end.end_offset}, the position was {state.position}",
                )
            )
        state.seek(end.end_offset, end.leader_epoch)
