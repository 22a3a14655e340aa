"""DelayedShareFetch: acquires records as soon as there are enough, at the latest when its time is up.

Reading the log and acquiring what was read are one step of the loop, so nobody comes between them. Only batch headers
are read, and no more of them than the member can acquire; the slice that is answered is cut to the batches with
acquired records. What is not in memory is first read in a thread, and then looked for again.

Owner: one DelayedShareFetch a request, on the broker's loop; a Watcher of its partitions while it waits.
"""

import asyncio
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from typing import Final, NamedTuple

from ottla.coordinator.shard import Handle, Scheduler
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.pending import Pending
from ottla.model.tasks import report
from ottla.records.batch import CONTROL_FLAG, LOG_OVERHEAD, TRANSACTIONAL_FLAG
from ottla.replication.partition import Partition
from ottla.replication.replica_manager import ReplicaManager
from ottla.share.leader import SharePartitionCache, SharePartitionLeader
from ottla.share.sessions import CachedSharePartition, ShareSessionKey
from ottla.share.state import Acquired, AcquireParams, Fetched, SharePartitionKey
from ottla.storage.log.log import Log
from ottla.storage.segment.file_records import (
    ColdDataError,
    ColdSliceError,
    LogSlice,
    Pread,
    is_cold,
    pread_warm,
    scan_headers,
    warm_up,
)
from ottla.storage.segment.indexes import AbortedTransaction

# How often headers are read in a thread for one fetch before the disk is waited for.
MAX_WARMINGS: Final = 8


class ShareFetchParams(NamedTuple):
    """What a share fetch asks for; `acquire` says how much each partition is asked for."""

    group_id: str
    acquire: AcquireParams
    max_wait_ms: int
    min_bytes: int
    max_bytes: int


class ShareRead(NamedTuple):
    """What a share fetch found in one partition."""

    partition: CachedSharePartition
    error_code: int = ErrorCode.NONE
    acquired: Sequence[Acquired] = ()
    slice: LogSlice | None = None


class Found(NamedTuple):
    """What there is to acquire at an offset."""

    slice: LogSlice
    batches: list[Fetched]
    has_more: bool


class _Look(NamedTuple):
    """What one attempt found in one partition."""

    partition: CachedSharePartition
    hosted: SharePartitionLeader
    offset: int
    found: Found | None
    error: KafkaError | None = None


class DelayedShareFetch:
    """One share fetch, from its first look at the partitions to its answer."""

    def __init__(
        self,
        params: ShareFetchParams,
        partitions: list[CachedSharePartition],
        shares: SharePartitionCache,
        replicas: ReplicaManager,
        scheduler: Scheduler,
        executor: Executor,
    ) -> None:
        self._params = params
        self._partitions = partitions
        self._shares = shares
        self._replicas = replicas
        self._scheduler = scheduler
        self._executor = executor
        self._hosted: dict[CachedSharePartition, SharePartitionLeader] = {}
        self._errors: dict[CachedSharePartition, KafkaError] = {}
        self._answer: Pending[list[ShareRead]] = Pending()
        self._timer: Handle | None = None
        self._woken = False
        self._warming = False
        self._time_is_up = False
        self._warmings = 0
        self._stopped = False

    def start(self) -> Pending[list[ShareRead]]:
        params = self._params
        if not self._partitions or params.acquire.max_records == 0 or params.max_bytes == 0:
            self._answer.resolve([])
            return self._answer
        for partition in self._partitions:
            self._open(partition)
        if params.max_bytes < 0:
            error = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "Request max bytes must be greater than 0")
            self._errors = dict.fromkeys(self._partitions, error)
        if len(self._errors) == len(self._partitions):
            self._finish([])
            return self._answer
        self._try()
        if not self._stopped:
            self._watch()
        return self._answer

    def _open(self, partition: CachedSharePartition) -> None:
        key = self._key(partition)
        try:
            hosted = self._shares.find_or_host(key)
        except KafkaError as error:
            self._errors[partition] = error
            return
        self._hosted[partition] = hosted
        loading = hosted.initialize()
        if loading is not None:
            loading.then(lambda done: self._loaded(partition, hosted, done))

    def _loaded(
        self, partition: CachedSharePartition, hosted: SharePartitionLeader, done: Pending[None]
    ) -> None:
        if done.error is not None:
            self._shares.remove_this(hosted)
            self._errors[partition] = done.error

    def _key(self, partition: CachedSharePartition) -> SharePartitionKey:
        return SharePartitionKey(self._params.group_id, partition.topic_id, partition.partition)

    # ---- waiting ------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        for hosted in self._hosted.values():
            hosted.watch(self)
        self._timer = self._scheduler.call_later(max(self._params.max_wait_ms, 0), self._expire)

    @property
    def session_key(self) -> ShareSessionKey:
        """Whose fetch it is."""
        return ShareSessionKey(self._params.group_id, self._params.acquire.member_id)

    def end(self) -> None:
        """Its session is closed: answer with nothing, and acquire nothing any more."""
        if not self._stopped:
            self.stop()
            found = [ShareRead(partition) for partition in self._hosted if partition not in self._errors]
            self._answer.resolve(found + self._failures())

    def stop(self) -> None:
        """The client is gone, or has its answer."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        for hosted in self._hosted.values():
            hosted.unwatch(self)

    def progressed(self, partition: Partition) -> None:
        if not self._woken:
            self._woken = True
            self._scheduler.call_soon(self._look_again)

    def _look_again(self) -> None:
        self._woken = False
        if not self._stopped and not self._warming:
            self._try()

    def _expire(self) -> None:
        self._time_is_up = True
        if not self._stopped and not self._warming:
            self._try()

    # ---- looking ------------------------------------------------------------------------------------------

    def _try(self) -> None:
        """Answer, if there is enough or no time left; never raises, since whoever made progress calls it."""
        try:
            self._look_and_answer()
        except Exception as error:  # noqa: BLE001 - the boundary itself
            report(error, name="looking for records", owner="share fetch", failed=lambda _: self._finish([]))

    def _look_and_answer(self) -> None:
        try:
            looks = self._look()
        except ColdSliceError as error:
            self._warm_up([error.slice], self._warmed)
            return
        if self._time_is_up or (looks and self._is_enough(looks)):
            self._finish(looks)

    def _look(self) -> list[_Look]:
        ready = [
            (partition, hosted, offset)
            for partition, hosted in self._hosted.items()
            if partition not in self._errors and (offset := hosted.fetch_offset()) is not None
        ]
        looks: list[_Look] = []
        budget = self._params.max_bytes
        found_any = False
        for (partition, hosted, offset), size in zip(ready, uniform_sizes(budget, len(ready)), strict=True):
            look = self._look_at(partition, hosted, offset, min(size, budget), not found_any)
            looks.append(look)
            if look.found is not None and look.found.slice.length:
                found_any = True
                budget = max(0, budget - look.found.slice.length)
        return looks

    def _look_at(
        self,
        partition: CachedSharePartition,
        hosted: SharePartitionLeader,
        offset: int,
        size: int,
        at_least_one: bool,
    ) -> _Look:
        try:
            leading = self._replicas.leader(partition.topic_id, partition.partition)
            found = read(
                leading.log,
                offset,
                size,
                leading.read_bound(hosted.settings.read_committed),
                hosted.machine.horizon(offset, self._params.acquire.max_records),
                at_least_one=at_least_one,
                pread=pread_warm if self._warmings < MAX_WARMINGS else os.pread,
            )
        except KafkaError as error:
            return _Look(partition, hosted, offset, None, error)
        return _Look(partition, hosted, offset, found)

    def _is_enough(self, looks: list[_Look]) -> bool:
        """As with a fetch: bytes there are, not bytes acquired. What cannot wait is enough as well."""
        total = 0
        for look in looks:
            if look.found is None or look.found.has_more:
                return True
            total += look.found.slice.length
            if look.offset > look.hosted.partition.read_bound(look.hosted.settings.read_committed):
                return True
        return total >= self._params.min_bytes

    # ---- cold data ----------------------------------------------------------------------------------------

    def _warm_up(self, cold: list[LogSlice], then: Callable[["asyncio.Future[None]"], None]) -> None:
        self._warming = True
        self._warmings += 1
        loop = asyncio.get_running_loop()
        loop.run_in_executor(self._executor, warm_up, cold).add_done_callback(then)

    def _warmed(self, done: "asyncio.Future[None]") -> None:
        self._warming = False
        if done.cancelled() or self._stopped:
            return
        if done.exception() is not None:
            self._warmings = MAX_WARMINGS  # the read itself will say what is wrong
        self._try()

    # ---- answering ----------------------------------------------------------------------------------------

    def _finish(self, looks: list[_Look]) -> None:
        self.stop()
        reads: list[ShareRead] = []
        taken = 0
        for look in looks:
            answer = self._acquire(look, self._params.acquire.max_records - taken)
            taken += sum(acquired.size for acquired in answer.acquired)
            reads.append(answer)
        reads += self._failures()
        cold = [entry.slice for entry in reads if entry.slice is not None and is_cold(entry.slice)]
        if cold:
            self._warm_up(cold, lambda done: self._sendable(done, reads))
        else:
            self._answer.resolve(reads)

    def _failures(self) -> list[ShareRead]:
        return [ShareRead(partition, error.code) for partition, error in self._errors.items()]

    def _sendable(self, done: "asyncio.Future[None]", reads: list[ShareRead]) -> None:
        if done.cancelled():
            return
        if done.exception() is not None:
            reads = [
                ShareRead(entry.partition, ErrorCode.KAFKA_STORAGE_ERROR)
                if entry.slice is not None
                else entry
                for entry in reads
            ]
        self._answer.resolve(reads)

    def _acquire(self, look: _Look, max_records: int) -> ShareRead:
        """What the member gets of what was found."""
        if look.error is not None:
            return self._failed(look, look.error)
        found, hosted = look.found, look.hosted
        assert found is not None
        if max_records <= 0 or not found.batches:
            return ShareRead(look.partition)
        aborted: list[tuple[int, int]] = []
        if hosted.settings.read_committed:
            end = found.batches[-1].last_offset + 1
            aborted = aborted_ranges(
                found.batches, hosted.partition.log.aborted_transactions(look.offset, end)
            )
        params = self._params.acquire._replace(max_records=max_records)
        acquired = hosted.acquire(params, look.offset, found.batches, aborted)
        if not acquired:
            return ShareRead(look.partition)
        return ShareRead(look.partition, ErrorCode.NONE, acquired, acquired_part(found, acquired))

    def _failed(self, look: _Look, error: KafkaError) -> ShareRead:
        if error.code == ErrorCode.OFFSET_OUT_OF_RANGE:
            look.hosted.move_start()  # the log has lost what was to be read: the next fetch finds what is there
            return ShareRead(look.partition)
        code = error.code
        if code == ErrorCode.UNKNOWN_TOPIC_ID:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        self._shares.remove_if_fenced(look.hosted, KafkaError(code))
        return ShareRead(look.partition, code)


def uniform_sizes(max_bytes: int, partitions: int) -> list[int]:
    """How much each partition may give: the same for all, and what is left over to the first."""
    if not partitions:
        return []
    if max_bytes < partitions:
        return [1] * max(max_bytes, 0) + [0] * (partitions - max(max_bytes, 0))
    share, rest = divmod(max_bytes, partitions)
    return [share + rest] + [share] * (partitions - 1)


def read(
    log: Log,
    offset: int,
    max_bytes: int,
    bound: int,
    horizon: int,
    *,
    at_least_one: bool,
    pread: Pread = pread_warm,
) -> Found:
    """Read from `offset`: KafkaError if it is not in the log, ColdSliceError for what must be in memory first."""
    found = log.read(offset, max_bytes, bound, min_one_message=at_least_one, wait=pread is not pread_warm)
    if found.length == 0:
        return Found(found, [], has_more=False)
    return Found(found, _batches(found, horizon, pread), found.next_offset < bound)


def _batches(found: LogSlice, horizon: int, pread: Pread) -> list[Fetched]:
    batches: list[Fetched] = []
    end = found.position + found.length
    try:
        for position, header in scan_headers(found.fd, found.position, end, pread, keep=found):
            base_offset, length, attributes, delta, producer_id = (*header[:2], *header[5:7], header[9])
            if base_offset > horizon:
                break
            batches.append(
                Fetched(
                    base_offset,
                    base_offset + delta,
                    position,
                    LOG_OVERHEAD + length,
                    producer_id,
                    attributes,
                )
            )
    except ColdDataError as cold:
        raise ColdSliceError(found.part(cold.position, min(cold.length, end - cold.position))) from None
    return batches


def aborted_ranges(
    batches: Iterable[Fetched], transactions: Sequence[AbortedTransaction]
) -> list[tuple[int, int]]:
    """The offsets of those batches that were written in transactions that were aborted."""
    if not transactions:
        return []
    by_producer: dict[int, list[AbortedTransaction]] = defaultdict(list)
    for transaction in transactions:
        by_producer[transaction.producer_id].append(transaction)
    return [
        (batch.base_offset, batch.last_offset)
        for batch in batches
        if batch.attributes & TRANSACTIONAL_FLAG
        and not batch.attributes & CONTROL_FLAG
        and any(
            aborted.first_offset <= batch.last_offset and batch.base_offset <= aborted.last_offset
            for aborted in by_producer.get(batch.producer_id, ())
        )
    ]


def acquired_part(found: Found, acquired: Sequence[Acquired]) -> LogSlice:
    """The slice from the batch of the first acquired record to that of the last."""
    first, last = acquired[0].first_offset, acquired[-1].last_offset
    wanted = [b for b in found.batches if b.last_offset >= first and b.base_offset <= last]
    begin, end = wanted[0].position, wanted[-1].position + wanted[-1].size_bytes
    return found.slice.part(begin, end - begin)
