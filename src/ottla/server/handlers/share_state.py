"""The share coordinator's APIs: initialize, read, write, delete and summarize share partitions (KIP-932).

One request may ask about many share partitions; each is decided by itself and has its own error.
"""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from ottla.coordinator.share.batches import StateBatch as KeptBatch
from ottla.coordinator.share.machine import Summary
from ottla.coordinator.share.state import ShareKey, ShareState, StateChange
from ottla.model.ids import Uuid
from ottla.model.pending import Pending
from ottla.server.context import Context
from ottla.server.registry import handles
from ottla.server.share_sweep import sweep
from ottla.wire.messages import share_state as wire

T = TypeVar("T")
R = TypeVar("R")


@handles(wire.InitializeShareGroupStateRequest)
def initialize_share_group_state(
    ctx: Context, request: wire.InitializeShareGroupStateRequest
) -> Pending[wire.InitializeShareGroupStateResponse]:
    """Set the state of share partitions anew."""
    coordinator = ctx.node.share_state
    if not request.group_id or not request.topics:
        return Pending.of(wire.InitializeShareGroupStateResponse(results=[]))
    return _each(
        ctx,
        request,
        lambda key, asked: coordinator.initialize(key, asked.state_epoch, asked.start_offset),
        wire.InitializeShareGroupStateResponsePartitionResult,
        wire.InitializeStateResult,
    ).map(lambda results: wire.InitializeShareGroupStateResponse(results=results))


@handles(wire.ReadShareGroupStateRequest)
def read_share_group_state(
    ctx: Context, request: wire.ReadShareGroupStateRequest
) -> Pending[wire.ReadShareGroupStateResponse]:
    """The state of share partitions, for the leaders of their partitions."""
    coordinator = ctx.node.share_state
    if _asks_nothing(request):
        return Pending.of(wire.ReadShareGroupStateResponse(results=[]))
    return _each(
        ctx,
        request,
        lambda key, asked: coordinator.read(key, asked.leader_epoch),
        wire.ReadShareGroupStateResponsePartitionResult,
        wire.ReadStateResult,
        _read,
    ).map(lambda results: wire.ReadShareGroupStateResponse(results=results))


@handles(wire.WriteShareGroupStateRequest)
def write_share_group_state(
    ctx: Context, request: wire.WriteShareGroupStateRequest
) -> Pending[wire.WriteShareGroupStateResponse]:
    """What has changed in share partitions, from the leaders of their partitions."""
    coordinator = ctx.node.share_state
    if _asks_nothing(request):
        return Pending.of(wire.WriteShareGroupStateResponse(results=[]))
    return _each(
        ctx,
        request,
        lambda key, asked: coordinator.write(key, _change(asked)),
        wire.WriteShareGroupStateResponsePartitionResult,
        wire.WriteStateResult,
    ).map(lambda results: wire.WriteShareGroupStateResponse(results=results))


@handles(wire.DeleteShareGroupStateRequest)
def delete_share_group_state(
    ctx: Context, request: wire.DeleteShareGroupStateRequest
) -> Pending[wire.DeleteShareGroupStateResponse]:
    """Forget share partitions."""
    coordinator = ctx.node.share_state
    if _asks_nothing(request):
        return Pending.of(wire.DeleteShareGroupStateResponse(results=[]))
    return _each(
        ctx,
        request,
        lambda key, _: coordinator.delete(key),
        wire.DeleteShareGroupStateResponsePartitionResult,
        wire.DeleteStateResult,
    ).map(lambda results: wire.DeleteShareGroupStateResponse(results=results))


@handles(wire.ReadShareGroupStateSummaryRequest)
def read_share_group_state_summary(
    ctx: Context, request: wire.ReadShareGroupStateSummaryRequest
) -> Pending[wire.ReadShareGroupStateSummaryResponse]:
    """How far groups are in partitions."""
    coordinator = ctx.node.share_state
    if _asks_nothing(request):
        return Pending.of(wire.ReadShareGroupStateSummaryResponse(results=[]))
    return _each(
        ctx,
        request,
        lambda key, _: coordinator.summary(key),
        wire.ReadShareGroupStateSummaryResponsePartitionResult,
        wire.ReadStateSummaryResult,
        _summary,
    ).map(lambda results: wire.ReadShareGroupStateSummaryResponse(results=results))


def _asks_nothing(request: Any) -> bool:
    """A request with anything missing is answered with nothing, as Kafka does."""
    return not request.group_id or not request.topics or any(not topic.partitions for topic in request.topics)


def _each(
    ctx: Context,
    request: Any,
    ask: Callable[[ShareKey, Any], Pending[T]],
    partition_result: Callable[..., Any],
    topic_result: Callable[..., R],
    tell: Callable[[Any, T], None] | None = None,
) -> Pending[list[R]]:
    """Ask about every partition; of one that is named twice the last answer counts."""
    asked = [
        (ShareKey(request.group_id, topic.topic_id, partition.partition), partition)
        for topic in request.topics
        for partition in topic.partitions
    ]

    def told(answers: dict[int, Pending[T]]) -> list[R]:
        results: dict[Uuid, dict[int, Any]] = {}
        for (key, _), answer in zip(asked, answers.values(), strict=True):
            results.setdefault(key.topic_id, {})[key.partition] = _result(key, answer, partition_result, tell)
        return [
            topic_result(topic_id=topic_id, partitions=[found[p] for p in sorted(found)])
            for topic_id, found in results.items()
        ]

    return sweep(range(len(asked)), lambda number: ask(*asked[number]), ctx.node.loop.call_soon).map(told)


def _result(
    key: ShareKey,
    answer: Pending[T],
    partition_result: Callable[..., Any],
    tell: Callable[[Any, T], None] | None,
) -> Any:
    result = partition_result(partition=key.partition)
    if answer.error is not None:
        result.error_code, result.error_message = int(answer.error.code), str(answer.error)
    elif tell is not None:
        tell(result, answer.result())
    return result


def _change(asked: wire.WriteShareGroupStateRequestPartitionData) -> StateChange:
    return StateChange(
        asked.state_epoch,
        asked.leader_epoch,
        asked.start_offset,
        asked.delivery_complete_count,
        _kept(asked.state_batches),
    )


def _kept(batches: Iterable[wire.StateBatch]) -> tuple[KeptBatch, ...]:
    return tuple(
        KeptBatch(batch.first_offset, batch.last_offset, batch.delivery_count, batch.delivery_state)
        for batch in batches
    )


def _read(result: wire.ReadShareGroupStateResponsePartitionResult, state: ShareState) -> None:
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
