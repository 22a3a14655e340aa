"""The share coordinator's APIs: initialize, read, write, delete and summarize share partitions (KIP-932).

One request may ask about many share partitions; each is decided by itself and has its own error.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ottla.model.errors import ErrorCode
from ottla.model.ids import Uuid
from ottla.model.pending import Pending
from ottla.server.context import Context
from ottla.server.errors import says_errors_by_item
from ottla.server.registry import handles
from ottla.share.coordinator import ShareGroupOffset, StateChange, Summary
from ottla.share.persister import sweep
from ottla.share.state import PersisterStateBatch, SharePartitionKey
from ottla.wire.messages.groups import share_state as wire

T = TypeVar("T")
R = TypeVar("R")


def _is_incomplete(request: Any) -> bool:
    """A request with anything missing is answered with nothing, as Kafka does."""
    return not request.group_id or not request.topics or any(not topic.partitions for topic in request.topics)


def _is_empty(request: Any) -> bool:
    return not request.group_id or not request.topics


@dataclass(frozen=True, slots=True)
class _Api(Generic[R]):
    """The response of one API and its parts; `asks_nothing` says which requests have an empty one."""

    response: Callable[..., R]
    topic: Callable[..., Any]
    partition: Callable[..., Any]
    asks_nothing: Callable[[Any], bool] = _is_incomplete

    def answer(
        self,
        ctx: Context,
        request: Any,
        ask: Callable[[SharePartitionKey, Any], Pending[T]],
        fill: Callable[[Any, T], None] | None = None,
    ) -> Pending[R]:
        """Ask about every partition; of one that is named twice the last answer counts."""
        if self.asks_nothing(request):
            return Pending.of(self.response(results=[]))
        asked = [
            (SharePartitionKey(request.group_id, topic.topic_id, partition.partition), partition)
            for topic in request.topics
            for partition in topic.partitions
        ]

        def respond(answers: dict[int, Pending[T]]) -> R:
            results: dict[Uuid, dict[int, Any]] = {}
            for (key, _), answer in zip(asked, answers.values(), strict=True):
                results.setdefault(key.topic_id, {})[key.partition] = self._result(key, answer, fill)
            return self.response(results=[self._topic(*found) for found in results.items()])

        return sweep(range(len(asked)), lambda number: ask(*asked[number]), ctx.node.loop.call_soon).map(
            respond
        )

    def refused(self, request: Any, code: ErrorCode) -> R:
        """An error of the whole request, at every partition."""
        return self.response(
            results=[
                self.topic(
                    topic_id=topic.topic_id,
                    partitions=[
                        self.partition(
                            partition=p.partition, error_code=int(code), error_message=_sentence(code)
                        )
                        for p in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    def _topic(self, topic_id: Uuid, found: dict[int, Any]) -> Any:
        return self.topic(topic_id=topic_id, partitions=[found[partition] for partition in sorted(found)])

    def _result(
        self, key: SharePartitionKey, answer: Pending[T], fill: Callable[[Any, T], None] | None
    ) -> Any:
        result = self.partition(partition=key.partition)
        if answer.error is not None:
            result.error_code, result.error_message = int(answer.error.code), str(answer.error)
        elif fill is not None:
            fill(result, answer.result())
        return result


def _sentence(code: ErrorCode) -> str | None:
    """Kafka's own, for what is refused before the coordinator is asked."""
    return "Cluster authorization failed." if code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED else None


_INITIALIZE = _Api(
    wire.InitializeShareGroupStateResponse,
    wire.InitializeStateResult,
    wire.InitializeShareGroupStateResponsePartitionResult,
    asks_nothing=_is_empty,
)
_READ = _Api(
    wire.ReadShareGroupStateResponse, wire.ReadStateResult, wire.ReadShareGroupStateResponsePartitionResult
)
_WRITE = _Api(
    wire.WriteShareGroupStateResponse,
    wire.WriteStateResult,
    wire.WriteShareGroupStateResponsePartitionResult,
)
_DELETE = _Api(
    wire.DeleteShareGroupStateResponse,
    wire.DeleteStateResult,
    wire.DeleteShareGroupStateResponsePartitionResult,
)
_SUMMARY = _Api(
    wire.ReadShareGroupStateSummaryResponse,
    wire.ReadStateSummaryResult,
    wire.ReadShareGroupStateSummaryResponsePartitionResult,
)


says_errors_by_item(wire.InitializeShareGroupStateRequest, _INITIALIZE.refused)
says_errors_by_item(wire.ReadShareGroupStateRequest, _READ.refused)
says_errors_by_item(wire.WriteShareGroupStateRequest, _WRITE.refused)
says_errors_by_item(wire.DeleteShareGroupStateRequest, _DELETE.refused)
says_errors_by_item(wire.ReadShareGroupStateSummaryRequest, _SUMMARY.refused)


@handles(wire.InitializeShareGroupStateRequest)
def initialize_share_group_state(
    ctx: Context, request: wire.InitializeShareGroupStateRequest
) -> Pending[wire.InitializeShareGroupStateResponse]:
    """Set the state of share partitions anew."""
    initialize = ctx.node.share_state.initialize
    return _INITIALIZE.answer(
        ctx, request, lambda key, asked: initialize(key, asked.state_epoch, asked.start_offset)
    )


@handles(wire.ReadShareGroupStateRequest)
def read_share_group_state(
    ctx: Context, request: wire.ReadShareGroupStateRequest
) -> Pending[wire.ReadShareGroupStateResponse]:
    """The state of share partitions, for the leaders of their partitions."""
    return _READ.answer(
        ctx, request, lambda key, asked: ctx.node.share_state.read(key, asked.leader_epoch), _read
    )


@handles(wire.WriteShareGroupStateRequest)
def write_share_group_state(
    ctx: Context, request: wire.WriteShareGroupStateRequest
) -> Pending[wire.WriteShareGroupStateResponse]:
    """What has changed in share partitions, from the leaders of their partitions."""
    return _WRITE.answer(ctx, request, lambda key, asked: ctx.node.share_state.write(key, _change(asked)))


@handles(wire.DeleteShareGroupStateRequest)
def delete_share_group_state(
    ctx: Context, request: wire.DeleteShareGroupStateRequest
) -> Pending[wire.DeleteShareGroupStateResponse]:
    """Forget share partitions."""
    return _DELETE.answer(ctx, request, lambda key, _: ctx.node.share_state.delete(key))


@handles(wire.ReadShareGroupStateSummaryRequest)
def read_share_group_state_summary(
    ctx: Context, request: wire.ReadShareGroupStateSummaryRequest
) -> Pending[wire.ReadShareGroupStateSummaryResponse]:
    """How far groups are in partitions."""
    return _SUMMARY.answer(ctx, request, lambda key, _: ctx.node.share_state.summary(key), _summary)


def _change(asked: wire.WriteShareGroupStateRequestPartitionData) -> StateChange:
    return StateChange(
        asked.state_epoch,
        asked.leader_epoch,
        asked.start_offset,
        asked.delivery_complete_count,
        _batches(asked.state_batches),
    )


def _batches(batches: Iterable[wire.StateBatch]) -> tuple[PersisterStateBatch, ...]:
    return tuple(
        PersisterStateBatch(batch.first_offset, batch.last_offset, batch.delivery_count, batch.delivery_state)
        for batch in batches
    )


def _read(result: wire.ReadShareGroupStateResponsePartitionResult, state: ShareGroupOffset) -> None:
    result.state_epoch = state.state_epoch
    result.start_offset = state.start_offset
    result.state_batches = [
        wire.StateBatch(first_offset=first, last_offset=last, delivery_state=kind, delivery_count=count)
        for first, last, count, kind in state.batches
    ]


def _summary(result: wire.ReadShareGroupStateSummaryResponsePartitionResult, summary: Summary) -> None:
    result.start_offset, result.delivery_complete_count = (
        summary.start_offset,
        summary.delivery_complete_count,
    )
    result.leader_epoch, result.state_epoch = summary.leader_epoch, summary.state_epoch
