"""What coordinators do that could hold the loop: the scenarios of `bench stalls` with groups and transactions in them.

Each is a function of a server that is up, as in bench.stalls, which runs them and reads what the node reports.
Requests are pipelined over a few connections, because the broker's loop is what is looked at, and not the clients.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from itertools import islice
from typing import Any

from tests.interop.ottla_node import OttlaNode
from tests.interop.process import receive_frame, wait_until

from bench import classic_groups, consumer_groups
from bench.load import Connection, connection
from bench.servers import create_topic, delete_topic
from ottla.wire.codec import decode
from ottla.wire.framing import encode_request as frame_of
from ottla.wire.messages.groups.classic import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)
from ottla.wire.messages.groups.share import ShareGroupHeartbeatRequest
from ottla.wire.messages.groups.streams import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatRequestSubtopology,
    StreamsGroupHeartbeatRequestTopology,
    TopicInfo,
)
from ottla.wire.messages.producers import InitProducerIdRequest, InitProducerIdResponse
from ottla.wire.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
)

COORDINATED = "coordinated"
SETTINGS: dict[str, object] = {
    "offsets.topic.num.partitions": 50,
    "offsets.topic.replication.factor": 1,
    "transaction.state.log.num.partitions": 50,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "share.coordinator.state.topic.num.partitions": 50,
    "share.coordinator.state.topic.replication.factor": 1,
    "share.coordinator.state.topic.min.isr": 1,
    "group.consumer.max.size": 5_000,
    "group.initial.rebalance.delay.ms": 3_000,
    # As often as it can be seen here: once in some minutes otherwise.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1_000,
    "transaction.remove.expired.transaction.cleanup.interval.ms": 2_000,
}
# Only where offsets are looked for: it removes a group whose first member has been given its id and comes again.
SWEEPS = {"offsets.retention.check.interval.ms": 5_000}
IN_FLIGHT = 50
# A larger one takes the controller too long to make.
TOPIC_PARTITIONS = 1_000
GROUP, TRANSACTION = 0, 1
VERSIONS: dict[type, int] = {
    FindCoordinatorRequest: 4,
    OffsetCommitRequest: 9,
    OffsetFetchRequest: 9,
    DeleteGroupsRequest: 2,
    DescribeGroupsRequest: 5,
    ListGroupsRequest: 5,
    ShareGroupHeartbeatRequest: 1,
    StreamsGroupHeartbeatRequest: 0,
    InitProducerIdRequest: 4,
    AddPartitionsToTxnRequest: 3,
    EndTxnRequest: 4,
}
# A response's correlation id and the tags of its header.
RESPONSE_HEADER_BYTES = 5


def settings_of(scenario: Callable[[OttlaNode, bool], None]) -> dict[str, object]:
    """What its broker is started with."""
    return {**SETTINGS, **SWEEPS} if scenario in (many_groups, reload) else SETTINGS


def framed(request: object) -> bytes:
    return frame_of(request, VERSIONS[type(request)], 7, "bench")


def send_all(link: Connection, requests: Iterable[object]) -> list[bytes]:
    """Every request, many in flight; their answers."""
    answers = []
    frames = map(framed, requests)
    while some := list(islice(frames, IN_FLIGHT)):
        link.sock.sendall(b"".join(some))
        answers += [receive_frame(link.sock) for _ in some]
    return answers


def find(link: Connection, key_type: int, keys: Sequence[str]) -> None:
    """Make the coordinators' topic, and wait until they answer for all keys."""
    request = framed(FindCoordinatorRequest(key_type=key_type, coordinator_keys=list(keys)))

    def found() -> bool:
        answer, _ = decode(FindCoordinatorResponse, link.ask(request), 4, RESPONSE_HEADER_BYTES)
        return all(row.error_code == 0 for row in answer.coordinators)

    wait_until(found, 60, "coordinators")
    time.sleep(1)  # its shards are loaded


def create_topics(server: OttlaNode, count: int) -> list[str]:
    """Some of them, with many partitions together."""
    topics = [f"{COORDINATED}-{number}" for number in range(count)]
    for topic in topics:
        create_topic(server, topic, TOPIC_PARTITIONS)
    return topics


# ---- offsets and many groups ------------------------------------------------------------------------------------


def commit(group: str, topic: str, count: int) -> OffsetCommitRequest:
    """Offsets of a topic's first partitions."""
    rows = [
        OffsetCommitRequestPartition(partition_index=i, committed_offset=42, committed_metadata="")
        for i in range(count)
    ]
    topics = [OffsetCommitRequestTopic(name=topic, partitions=rows)]
    return OffsetCommitRequest(group_id=group, generation_id_or_member_epoch=-1, member_id="", topics=topics)


def many_offsets(server: OttlaNode, quick: bool) -> None:
    """A group with 20,000 offsets: all of them committed, fetched and deleted with it."""
    topics = create_topics(server, 5 if quick else 20)
    with connection(server) as link:
        find(link, GROUP, ["big"])
        send_all(link, (commit("big", topic, TOPIC_PARTITIONS) for topic in topics))
        every = OffsetFetchRequestGroup(group_id="big", topics=None)
        for stable in (False, True):
            send_all(link, [OffsetFetchRequest(groups=[every], require_stable=stable)] * 2)
        send_all(link, [DeleteGroupsRequest(groups_names=["big"])])
    time.sleep(1)  # what is put off is measured too


def many_groups(server: OttlaNode, quick: bool) -> None:
    """10,000 groups listed and described at once, while topics come and go; and a sweep for what has expired."""
    create_topic(server, COORDINATED)
    names = [f"group-{number}" for number in range(2_000 if quick else 10_000)]
    with connection(server) as link:
        find(link, GROUP, names[:1])
        send_all(link, (commit(name, COORDINATED, 1) for name in names))
        for round_ in range(2 if quick else 5):
            send_all(link, [ListGroupsRequest(states_filter=[], types_filter=[])])
            send_all(link, [DescribeGroupsRequest(groups=names)])
            create_topic(server, f"come-{round_}")
            delete_topic(server, f"come-{round_}")
        time.sleep(10)  # sweeps for expired offsets come meanwhile
        send_all(link, [DeleteGroupsRequest(groups_names=names)])


def reload(server: OttlaNode, quick: bool) -> None:
    """A start with fifty shards to load: 10,000 groups, and 20,000 transactional ids beside them."""
    ids = transactional_ids(2_000 if quick else 20_000)
    names = [f"group-{number}" for number in range(2_000 if quick else 10_000)]
    create_topic(server, COORDINATED, 10)
    with connection(server) as link:
        find(link, GROUP, names[:1])
        send_all(link, (commit(name, COORDINATED, 10) for name in names))
        find(link, TRANSACTION, ids[:1])
        begin(link, ids)
    server.restart()
    time.sleep(12)  # all shards are loaded by then


# ---- rebalances ---------------------------------------------------------------------------------------------------


def large_group(server: OttlaNode, quick: bool) -> None:
    """1,000 members of the new protocol join one group at once, for 5,000 partitions."""
    count = 200 if quick else 1_000
    topics = create_topics(server, 1 if quick else 5)
    with connection(server) as link:
        find(link, GROUP, ["large"])
    members = [consumer_groups.Member("large", number, topics) for number in range(count)]
    asyncio.run(_live(server, [member.live for member in members], 10 if quick else 25))


def many_rebalances(server: OttlaNode, quick: bool) -> None:
    """800 classic groups of ten members, all formed at once: the broker has two files open for a connection."""
    count = 100 if quick else 800
    groups = [f"classic-{number}" for number in range(count)]
    with connection(server) as link:
        find(link, GROUP, groups[:1])
    members = [classic_groups.Member(group) for group in groups for _ in range(classic_groups.GROUP_MEMBERS)]
    asyncio.run(_join_all(server, members))


async def _live(
    server: OttlaNode, lives: Sequence[Callable[..., Coroutine[Any, Any, None]]], seconds: float
) -> None:
    changed = asyncio.Event()
    tasks = [asyncio.create_task(live(server, changed)) for live in lives]
    await asyncio.sleep(seconds)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _join_all(server: OttlaNode, members: list[classic_groups.Member]) -> None:
    """Every member with a connection of its own, as few as that can be."""

    async def join(member: classic_groups.Member) -> None:
        async with gate:
            link = await classic_groups.Link.to(server)
        with contextlib.closing(link):
            await member.join(link)

    gate = asyncio.Semaphore(200)
    await asyncio.gather(*map(join, members))


def streams(server: OttlaNode, quick: bool) -> None:
    """The first heartbeat of a streams application with 1,000 subtopologies, and those after it."""
    count = 200 if quick else 1_000
    create_topic(server, COORDINATED, 4)
    topology = StreamsGroupHeartbeatRequestTopology(
        epoch=1, subtopologies=[_subtopology(number) for number in range(count)]
    )
    with connection(server) as link:
        find(link, GROUP, ["streams"])
        for member in ("one", "two"):
            request = StreamsGroupHeartbeatRequest(
                group_id="streams", member_id=member, member_epoch=0, endpoint_information_epoch=0,
                rebalance_timeout_ms=60_000, topology=topology, process_id=member, active_tasks=[],
                standby_tasks=[], warmup_tasks=[], client_tags=[],
            )  # fmt: skip
            send_all(link, [request])
            time.sleep(1)  # topics are made and tasks assigned in the background


def _subtopology(number: int) -> StreamsGroupHeartbeatRequestSubtopology:
    changelog = TopicInfo(
        name=f"store-{number}-changelog", partitions=0, replication_factor=1, topic_configs=[]
    )
    return StreamsGroupHeartbeatRequestSubtopology(
        subtopology_id=str(number), source_topics=[COORDINATED], source_topic_regex=[],
        state_changelog_topics=[changelog] if number < 5 else [], repartition_sink_topics=[],
        repartition_source_topics=[], copartition_groups=[],
    )  # fmt: skip


def share(server: OttlaNode, quick: bool) -> None:
    """A share group begins with a topic of 1,000 partitions, and goes."""
    create_topic(server, COORDINATED, 200 if quick else 1_000)
    with connection(server) as link:
        find(link, GROUP, ["queue"])
        for beat in range(6):
            request = ShareGroupHeartbeatRequest(
                group_id="queue", member_id="one", member_epoch=beat and -2,
                subscribed_topic_names=[COORDINATED],
            )  # fmt: skip
            if beat == 0:
                send_all(link, [request])
            time.sleep(1)  # its partitions are set up in the background
        request = ShareGroupHeartbeatRequest(group_id="queue", member_id="one", member_epoch=-1)
        send_all(link, [request, DeleteGroupsRequest(groups_names=["queue"])])


# ---- transactions ---------------------------------------------------------------------------------------------------


def transactional_ids(count: int) -> list[str]:
    return [f"transactional-{number}" for number in range(count)]


def begin(link: Connection, ids: Sequence[str]) -> list[InitProducerIdResponse]:
    """Producers of these transactional ids."""
    requests = (InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000) for name in ids)
    return [
        decode(InitProducerIdResponse, data, 4, RESPONSE_HEADER_BYTES)[0] for data in send_all(link, requests)
    ]


def many_transactions(server: OttlaNode, quick: bool) -> None:
    """1,000 transactions that end at once, among 20,000 transactional ids whose time is looked at."""
    create_topic(server, COORDINATED, 8)
    ids = transactional_ids(2_000 if quick else 20_000)
    with connection(server) as link:
        find(link, TRANSACTION, ids[:1])
        producers = dict(zip(ids, begin(link, ids), strict=True))
        busy = ids[:1_000]
        send_all(link, (_add(name, producers[name]) for name in busy))
        ends = [framed(_end(name, producers[name])) for name in busy]
    _at_once(server, ends)
    time.sleep(3)  # the markers are written after the answers


def _add(name: str, producer: InitProducerIdResponse) -> AddPartitionsToTxnRequest:
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=name,
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.producer_epoch,
        v3_and_below_topics=[AddPartitionsToTxnTopic(name=COORDINATED, partitions=list(range(8)))],
    )


def _end(name: str, producer: InitProducerIdResponse) -> EndTxnRequest:
    return EndTxnRequest(
        transactional_id=name,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        committed=True,
    )


def _at_once(server: OttlaNode, frames: list[bytes]) -> None:
    """Each frame on a connection of its own, all sent before an answer is read."""
    with contextlib.ExitStack() as stack:
        links = [stack.enter_context(connection(server)) for _ in frames]
        for link, frame in zip(links, frames, strict=True):
            link.sock.sendall(frame)
        for link in links:
            receive_frame(link.sock)


SCENARIOS: dict[str, Callable[[OttlaNode, bool], None]] = {
    "a group of 20,000 offsets": many_offsets,
    "10,000 groups": many_groups,
    "1,000 members, 5,000 partitions": large_group,
    "800 classic groups formed at once": many_rebalances,
    "1,000 subtopologies": streams,
    "a share group of 1,000 partitions": share,
    "1,000 transactions end at once": many_transactions,
    "a start with 10,000 groups": reload,
}
