"""The share coordinator's APIs: initialize, read, write, delete and summarize share partitions (KIP-932).

One request may ask about many share partitions; each is decided by itself and has its own error.
"""

from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any, TypeVar

from ottla.coordinator.share.batches import StateBatch as KeptBatch
from ottla.coordinator.share.machine import Summary
from ottla.coordinator.share.state import ShareKey, ShareState, StateChange
from ottla.model.errors import KafkaError
from ottla.model.ids import Uuid
from ottla.model.pending import Pending, gather
from ottla.server.context import Context
from ottla.server.registry import handles
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
    request: Any,
    ask: Callable[[ShareKey, Any], Pending[T]],
    partition_result: Callable[..., Any],
    topic_result: Callable[..., R],
    tell: Callable[[Any, T], None] | None = None,
) -> Pending[list[R]]:
    """Ask about every partition; a partition that is named twice is asked twice and answered once."""
    asked: dict[Uuid, dict[int, Pending[Any]]] = {}
    for topic in request.topics:
        for partition in topic.partitions:
            key = ShareKey(request.group_id, topic.topic_id, partition.partition)
            answer = _answered(ask(key, partition), key, partition_result, tell)
            asked.setdefault(topic.topic_id, {})[partition.partition] = answer
    pendings = list(chain.from_iterable(answers.values() for answers in asked.values()))
    return gather(pendings).map(lambda _: [_topic(topic_result, *item) for item in asked.items()])


def _answered(
    asked: Pending[T],
    key: ShareKey,
    partition_result: Callable[..., Any],
    tell: Callable[[Any, T], None] | None,
) -> Pending[Any]:
    def succeeded(value: T) -> Any:
        result = partition_result(partition=key.partition)
        if tell is not None:
            tell(result, value)
        return result

    def failed(error: KafkaError) -> Any:
        return partition_result(partition=key.partition, error_code=int(error.code), error_message=str(error))

    return asked.map(succeeded, failed)


def _topic(topic_result: Callable[..., R], topic_id: Uuid, answers: dict[int, Pending[Any]]) -> R:
    return topic_result(topic_id=topic_id, partitions=[answers[p].result() for p in sorted(answers)])


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
