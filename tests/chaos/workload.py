"""Clients at work on a cluster while it is harmed: what they do and see becomes a history for the checker.

    with Workload(cluster, topic) as load:
        load.wait_for_writes(10)        # so many new ones in every partition
        cluster.kill(...)
        load.wait_for_writes(10)
    load.verify()                       # reads everything to the end, and asserts that the checker finds nothing

Producers with acks=all and idempotence, transactional producers and consumers, of ottla.client and of librdkafka. Each
runs in a thread of its own, is bounded in what it has on its way and in all that it sends, and notes an operation when
its outcome is known. A record whose answer never came is noted as UNKNOWN when its client is closed. What a client may
not raise under any fault ends its thread, and the test.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple, Self

import confluent_kafka as ck
from tests.chaos.checker import Anomaly, Assign, Committed, End, History, Outcome, Poll, Send, check
from tests.interop.process import wait_until
from tests.support.librdkafka import close_or_leave
from tests.support.log_files import disk_batches
from tests.support.replicated import Replicated

from ottla.client.blocking import Consumer, Producer
from ottla.client.errors import (
    NoOffsetForPartition,
    TimedOut,
    TransactionAbortable,
    TransactionAborted,
)
from ottla.client.producer.accumulator import Delivery
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition

MAX_SENDS: Final = 20_000
MAX_OUTSTANDING: Final = 30
PAUSE_S: Final = 0.01
POLL_S: Final = 0.2
SENDS_OF_A_TRANSACTION: Final = 4
# Every so many transactions are aborted.
ABORTED: Final = 5
# Long enough for a whole cluster to be started on a machine that is busy with other things.
PATIENCE_S: Final = 300.0
REQUEST_TIMEOUT_MS: Final = 4_000
DELIVERY_TIMEOUT_MS: Final = 60_000
TRANSACTION_TIMEOUT_MS: Final = 30_000
STEP_S: Final = 10.0
# Of the group whose progress transactions commit: the topic needs to be there, and nothing in it is read.
GROUP: Final = "movers"


class Mark(NamedTuple):
    """A moment, in the history's time and in seconds."""

    tick: int
    seconds: float


@dataclass(slots=True)
class _Pending:
    where: TopicPartition
    began: int
    transaction: str | None


@dataclass(eq=False)
class Recorder:
    """The history, and when what was acknowledged."""

    history: History = field(default_factory=History)
    acknowledged: dict[TopicPartition, list[Mark]] = field(default_factory=lambda: defaultdict(list))
    committed: list[int] = field(default_factory=list)  # when the commits began that were acknowledged

    def sent(self, send: Send) -> None:
        self.history.add(send)
        if send.outcome is Outcome.OK and send.transaction is None:
            self.acknowledged[send.where].append(Mark(send.began, time.monotonic()))

    def ended(self, end: End) -> None:
        self.history.add(end)
        if end.outcome is Outcome.OK and end.committing:
            self.committed.append(end.began)


class Client:
    """A thread that does one step after the other until it is told to stop."""

    def __init__(self, name: str, recorder: Recorder) -> None:
        self.name = name
        self.recorder = recorder
        self.history = recorder.history
        self.failure: BaseException | None = None
        self._stop = threading.Event()
        # A client that does not end fails the test; it does not hold up the end of the process.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        try:
            try:
                self.open()
                while not self._stop.wait(PAUSE_S):
                    self.step()
            finally:
                self.close()
        except BaseException as failure:  # noqa: BLE001  handed to the test
            self.failure = failure

    def tell_to_stop(self) -> None:
        self._stop.set()

    def join(self, timeout_s: float) -> None:
        if self._thread.ident is None:
            return
        self._thread.join(timeout_s)
        assert not self._thread.is_alive(), f"{self.name} did not end within {timeout_s} s"

    def open(self) -> None:
        raise NotImplementedError

    def step(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


class Sender(Client):
    """Sends values that nobody else sends, to all partitions in turn, and notes how each has ended."""

    def __init__(
        self, name: str, recorder: Recorder, partitions: Iterable[TopicPartition], address: str
    ) -> None:
        super().__init__(name, recorder)
        self.partitions = list(partitions)
        self.address = address
        self._count = 0
        self._lock = threading.Lock()
        self._pending: dict[str, _Pending] = {}

    def begin(self, where: TopicPartition, transaction: str | None = None) -> str:
        self._count += 1
        value = f"{self.name}:{self._count}"
        with self._lock:
            self._pending[value] = _Pending(where, self.history.tick(), transaction)
        return value

    def has_room(self, where: TopicPartition) -> bool:
        """A partition that does not answer must not hold up the others."""
        with self._lock:
            outstanding = sum(pending.where == where for pending in self._pending.values())
        return outstanding < MAX_OUTSTANDING and self._count < MAX_SENDS

    def finish(self, value: str, outcome: Outcome, offset: int | None = None) -> None:
        with self._lock:
            pending = self._pending.pop(value, None)
        if pending is not None:
            ended = self.history.tick()
            self.recorder.sent(
                Send(
                    self.name,
                    pending.where,
                    value,
                    pending.began,
                    ended,
                    outcome,
                    offset,
                    pending.transaction,
                )
            )

    def finish_all(self) -> None:
        """Nobody will say what has become of the rest."""
        with self._lock:
            values = list(self._pending)
        for value in values:
            self.finish(value, Outcome.UNKNOWN)


def _note_delivery(sender: Sender, value: str, delivery: Delivery) -> None:
    """What ottla.client's producer says of a record."""
    try:
        offset = delivery.metadata().offset
    except TransactionAborted:
        sender.finish(value, Outcome.FAILED)  # it was never sent
    except KafkaError:
        # Whatever the last attempt was told, an earlier one may have been written.
        sender.finish(value, Outcome.UNKNOWN)
    else:
        sender.finish(value, Outcome.OK, offset if offset >= 0 else None)


# ---- idempotent producers -------------------------------------------------------------------------------


class OttlaProducer(Sender):
    """ottla.client's producer with acks=all."""

    def open(self) -> None:
        self._producer = Producer(
            bootstrap_servers=self.address,
            client_id=self.name,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            delivery_timeout_ms=DELIVERY_TIMEOUT_MS,
            max_block_ms=int(PATIENCE_S * 1000),
            bootstrap_timeout_ms=int(PATIENCE_S * 1000),
        )
        self._turns = itertools.cycle(self.partitions)

    def step(self) -> None:
        where = next(self._turns)
        if self.has_room(where):
            value = self.begin(where)
            self._producer.send(
                where.topic,
                value.encode(),
                partition=where.partition,
                on_delivery=partial(_note_delivery, self, value),
            )

    def close(self) -> None:
        if hasattr(self, "_producer"):
            self._producer.close(PATIENCE_S * 1000)
        self.finish_all()


class RdkafkaProducer(Sender):
    """librdkafka's, with its own idempotence."""

    def settings(self) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.address,
            "client.id": self.name,
            "enable.idempotence": True,
            "request.timeout.ms": REQUEST_TIMEOUT_MS,
            "socket.timeout.ms": REQUEST_TIMEOUT_MS,
            "message.timeout.ms": DELIVERY_TIMEOUT_MS,
            "reconnect.backoff.max.ms": 500,
            "retry.backoff.max.ms": 500,
            "log_level": 0,
        }

    def open(self) -> None:
        self._producer = ck.Producer(self.settings())
        self._turns = itertools.cycle(self.partitions)

    def step(self) -> None:
        self._producer.poll(0)
        where = next(self._turns)
        if self.has_room(where):
            self.produce(self.begin(where), where)

    def produce(self, value: str, where: TopicPartition) -> None:
        def delivered(error: ck.KafkaError | None, message: ck.Message) -> None:
            if error is None:
                self.finish(value, Outcome.OK, message.offset())
            else:
                self.finish(value, Outcome.UNKNOWN)

        self._producer.produce(where.topic, value, partition=where.partition, on_delivery=delivered)

    def close(self) -> None:
        if hasattr(self, "_producer"):
            self._producer.flush(PATIENCE_S)
        self.finish_all()


# ---- transactional producers ----------------------------------------------------------------------------


class Transactional(Sender):
    """One transaction after the other, a few sends each, and how far a group has got."""

    def open(self) -> None:
        self._transactions = itertools.count(1)
        self._ended: set[str] = set()
        self._progress = TopicPartition(self.partitions[0].topic, self.partitions[0].partition)
        self.renew()

    def step(self) -> None:
        number = next(self._transactions)
        name = f"{self.name} {number}"
        first = self.history.tick()
        try:
            self.do(name, number)
        except (KafkaError, ck.KafkaException, BufferError):
            # What is left open is aborted by the next producer of this id.
            self.finish_all()
            if name not in self._ended:
                self.end(name, committing=False, began=first, outcome=Outcome.UNKNOWN)
            self.renew()

    def end(
        self, name: str, *, committing: bool, began: int, outcome: Outcome, reached: int | None = None
    ) -> None:
        self._ended.add(name)
        offsets = {} if reached is None else {self._progress: reached}
        group = f"{GROUP}-{self.name}"
        self.recorder.ended(End(name, committing, began, self.history.tick(), outcome, group, offsets))

    def chosen(self, number: int) -> list[TopicPartition]:
        return [self.partitions[(number + n) % len(self.partitions)] for n in range(SENDS_OF_A_TRANSACTION)]

    def renew(self) -> None:
        """Another producer with the same id."""
        raise NotImplementedError

    def do(self, name: str, number: int) -> None:
        """One transaction; raises what is not to be settled with this producer."""
        raise NotImplementedError


class OttlaTransactional(Transactional):
    """ottla.client's transactions."""

    _producer: Producer | None = None

    def renew(self) -> None:
        """A new producer with the id, however long the coordinator is away."""
        if self._producer is not None:
            self._producer.close(0)
        self._producer = None
        deadline = time.monotonic() + PATIENCE_S
        while self._producer is None:
            producer = Producer(
                bootstrap_servers=self.address,
                client_id=self.name,
                transactional_id=self.name,
                transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
                request_timeout_ms=REQUEST_TIMEOUT_MS,
                delivery_timeout_ms=DELIVERY_TIMEOUT_MS,
                bootstrap_timeout_ms=int(PATIENCE_S * 1000),
            )
            try:
                producer.init_transactions(STEP_S * 1000)
                self._producer = producer
            except KafkaError:
                producer.close(0)
                if time.monotonic() > deadline:
                    raise

    def do(self, name: str, number: int) -> None:
        producer = self._producer
        assert producer is not None
        producer.begin_transaction()
        for where in self.chosen(number):
            value = self.begin(where, name)
            producer.send(
                where.topic,
                value.encode(),
                partition=where.partition,
                on_delivery=partial(_note_delivery, self, value),
            )
        if number % ABORTED == 0:
            began = self.history.tick()
            self._again(producer.abort_transaction)
            self.finish_all()
            self.end(name, committing=False, began=began, outcome=Outcome.OK)
            return
        try:
            producer.send_offsets_to_transaction(
                {self._progress: number}, f"{GROUP}-{self.name}", STEP_S * 1000
            )
        except TransactionAbortable:
            self._abort(name)
            return
        began = self.history.tick()
        try:
            self._again(producer.commit_transaction)
        except TransactionAbortable:
            self._abort(name)
        except KafkaError:
            self.finish_all()
            self.end(name, committing=True, began=began, outcome=Outcome.UNKNOWN, reached=number)
            raise
        else:
            self.end(name, committing=True, began=began, outcome=Outcome.OK, reached=number)

    def _abort(self, name: str) -> None:
        assert self._producer is not None
        began = self.history.tick()
        self._again(self._producer.abort_transaction)
        self.finish_all()
        self.end(name, committing=False, began=began, outcome=Outcome.OK)

    def _again(self, call: Callable[[float], None]) -> None:
        """What timed out is to be called again."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                call(STEP_S * 1000)
                return
            except TimedOut:
                if time.monotonic() > deadline:
                    raise

    def close(self) -> None:
        """Nothing is left open: who reads committed records only would wait for it."""
        if self._producer is not None:
            self._producer.close(PATIENCE_S * 1000)
        self.finish_all()


class RdkafkaTransactional(Transactional, RdkafkaProducer):
    """librdkafka's transactions."""

    def renew(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            own = {"transactional.id": self.name, "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS}
            self._producer = ck.Producer(
                {**self.settings(), **own, "message.timeout.ms": TRANSACTION_TIMEOUT_MS}
            )
            try:
                self._producer.init_transactions(STEP_S)
                return
            except ck.KafkaException:
                if time.monotonic() > deadline:
                    raise

    def do(self, name: str, number: int) -> None:
        self._producer.begin_transaction()
        for where in self.chosen(number):
            self.produce(self.begin(where, name), where)
        aborting = number % ABORTED == 0
        began = self.history.tick()
        try:
            if not aborting:
                self._again(self._producer.commit_transaction)
        except ck.KafkaException as failure:
            if not failure.args[0].txn_requires_abort():
                self.finish_all()
                self.end(name, committing=True, began=began, outcome=Outcome.UNKNOWN)
                raise
            aborting = True
        if aborting:
            self._again(self._producer.abort_transaction)
        self._producer.flush(STEP_S)  # has it say what has become of each record
        self.finish_all()
        self.end(name, committing=not aborting, began=began, outcome=Outcome.OK)

    def _again(self, call: Callable[[float], None]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                call(STEP_S)
                return
            except ck.KafkaException as failure:
                if not failure.args[0].retriable() or time.monotonic() > deadline:
                    raise

    def close(self) -> None:
        self.finish_all()


# ---- consumers ------------------------------------------------------------------------------------------


class Reader(Client):
    """Reads all partitions from their starts, as it goes."""

    committed_only = False

    def __init__(
        self, name: str, recorder: Recorder, partitions: Iterable[TopicPartition], address: str
    ) -> None:
        super().__init__(name, recorder)
        self.partitions = list(partitions)
        self.address = address
        self.positions = dict.fromkeys(self.partitions, 0)

    def note(self, records: dict[TopicPartition, tuple[tuple[int, str], ...]], began: int) -> None:
        if records:
            self.history.add(Poll(self.name, records, began, self.history.tick(), self.committed_only))
            for where, found in records.items():
                self.positions[where] = found[-1][0] + 1

    def begin(self) -> None:
        self.history.add(Assign(self.name, dict(self.positions), self.history.tick()))

    def finish(self, ends: dict[TopicPartition, int]) -> None:
        """It has read to here; nobody reads after it."""
        self.history.final.add(self.name)
        now = self.history.tick()
        self.history.add(Poll(self.name, {}, now, now, self.committed_only, ends))

    def read_all(self, ends: dict[TopicPartition, int]) -> None:
        """To the end, in the caller's thread."""
        deadline = time.monotonic() + PATIENCE_S
        self.open()
        try:
            while not self.has_reached(ends):
                assert time.monotonic() < deadline, f"{self.name} is at {self.reached()}, not at {ends}"
                self.step()
        finally:
            self.close()
        self.finish(ends)

    def reached(self) -> dict[TopicPartition, int]:
        return {}

    def has_reached(self, ends: dict[TopicPartition, int]) -> bool:
        reached = self.reached()
        return all(reached.get(where, 0) >= end for where, end in ends.items())


class OttlaReader(Reader):
    """ottla.client's consumer."""

    committed_only = True

    def open(self) -> None:
        isolation = "read_committed" if self.committed_only else "read_uncommitted"
        self._consumer = Consumer(
            bootstrap_servers=self.address,
            client_id=self.name,
            isolation_level=isolation,
            # A position that is gone is an error, and an anomaly: it must not be passed over in silence.
            auto_offset_reset="none",
            enable_auto_commit=False,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            bootstrap_timeout_ms=int(PATIENCE_S * 1000),
        )
        self._consumer.assign(self.partitions)
        for where, offset in self.positions.items():
            self._consumer.seek(where, offset)
        self.begin()

    def step(self) -> None:
        began = self.history.tick()
        try:
            found = self._consumer.poll(POLL_S * 1000)
        except NoOffsetForPartition:
            raise
        except KafkaError as error:  # the next poll tries again
            if error.code is ErrorCode.CORRUPT_MESSAGE:
                raise
            return
        records = {
            where: tuple((record.offset, bytes(record.value or b"").decode()) for record in records)
            for where, records in found.items()
            if records
        }
        self.note(records, began)

    def reached(self) -> dict[TopicPartition, int]:
        return {where: self._consumer.position(where, PATIENCE_S * 1000) for where in self.partitions}

    def close(self) -> None:
        if hasattr(self, "_consumer"):
            self._consumer.close(PATIENCE_S * 1000)


class RdkafkaReader(Reader):
    """librdkafka's consumer."""

    def open(self) -> None:
        self._ends: dict[TopicPartition, int] = {}
        self._consumer = ck.Consumer(
            {
                "bootstrap.servers": self.address,
                "client.id": self.name,
                "group.id": f"nobody-{self.name}",
                "isolation.level": "read_committed" if self.committed_only else "read_uncommitted",
                "auto.offset.reset": "error",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "socket.timeout.ms": REQUEST_TIMEOUT_MS,
                "reconnect.backoff.max.ms": 500,
                "fetch.error.backoff.ms": 100,
                "log_level": 0,
            }
        )
        self._consumer.assign([ck.TopicPartition(*where, offset) for where, offset in self.positions.items()])
        self.begin()

    def step(self) -> None:
        began = self.history.tick()
        records: dict[TopicPartition, list[tuple[int, str]]] = defaultdict(list)
        for message in self._consumer.consume(500, POLL_S):
            where = TopicPartition(message.topic() or "", message.partition() or 0)
            error = message.error()
            if error is None:
                records[where].append((message.offset() or 0, (message.value() or b"").decode()))
            elif error.code() == ck.KafkaError._PARTITION_EOF:
                self._ends[where] = message.offset() or 0
            else:
                # Others it repeats by itself.
                assert error.code() not in (ck.KafkaError._AUTO_OFFSET_RESET, ck.KafkaError._BAD_MSG), error
        self.note({where: tuple(found) for where, found in records.items()}, began)

    def reached(self) -> dict[TopicPartition, int]:
        return self._ends

    def close(self) -> None:
        if hasattr(self, "_consumer"):
            close_or_leave(self._consumer)


# ---- all together ---------------------------------------------------------------------------------------

PRODUCERS: Final[tuple[type[Sender], ...]] = (OttlaProducer, RdkafkaProducer)
TRANSACTIONALS: Final[tuple[type[Sender], ...]] = (OttlaTransactional, RdkafkaTransactional)
READERS: Final[tuple[type[Reader], ...]] = (OttlaReader, RdkafkaReader)


class Workload:
    """Clients of one topic."""

    def __init__(
        self,
        cluster: Replicated,
        topic: str,
        partitions: int = 3,
        *,
        producers: Iterable[type[Sender]] = (*PRODUCERS, *TRANSACTIONALS),
        readers: Iterable[type[Reader]] = READERS,
    ) -> None:
        self.cluster = cluster
        self.topic = topic
        self.partitions = [TopicPartition(topic, n) for n in range(partitions)]
        self.recorder = Recorder()
        self.history = self.recorder.history
        made: list[type[Sender] | type[Reader]] = [*producers, *readers]
        self.clients = [
            kind(f"{topic}.{kind.__name__}", self.recorder, self.partitions, cluster.bootstrap_servers)
            for kind in made
        ]

    def __enter__(self) -> Self:
        for client in self.clients:
            client.start()
        return self

    def __exit__(self, kind: object, failure: BaseException | None, trace: object) -> None:
        for client in self.clients:
            client.tell_to_stop()
        if failure is not None:
            # A client whose cluster is gone takes its time to give up, and the failure is told already.
            return
        for client in self.clients:
            client.join(2 * PATIENCE_S)
        self.check_clients()

    def check_clients(self) -> None:
        for client in self.clients:
            if client.failure is not None:
                raise AssertionError(f"{client.name} failed") from client.failure

    # ---- progress ---------------------------------------------------------------------------------------

    def mark(self) -> Mark:
        return Mark(self.history.tick(), time.monotonic())

    def wait_for_writes(
        self, count: int = 10, partitions: Iterable[int] | None = None, since: Mark | None = None
    ) -> None:
        """Until so many sends that began after this moment are acknowledged in each of these partitions."""
        since = since or self.mark()
        wanted = [p for p in self.partitions if partitions is None or p.partition in set(partitions)]

        def are_written() -> bool:
            self.check_clients()
            return all(len(self._since(where, since)) >= count for where in wanted)

        wait_until(are_written, PATIENCE_S, f"{count} writes to each of {[str(p) for p in wanted]}")

    def written_since(self, since: Mark) -> int:
        """How many sends that began after this moment are acknowledged by now."""
        return sum(len(self._since(where, since)) for where in self.partitions)

    def _since(self, where: TopicPartition, since: Mark) -> list[Mark]:
        return [mark for mark in list(self.recorder.acknowledged[where]) if mark.tick > since.tick]

    def wait_for_transactions(self, count: int = 3) -> None:
        """Until so many transactions are committed whose commits began after this moment."""
        since = self.history.tick()

        def are_committed() -> bool:
            self.check_clients()
            return sum(began > since for began in list(self.recorder.committed)) >= count

        wait_until(are_committed, PATIENCE_S, f"{count} transactions")

    def wait_for_reads(self) -> None:
        """Until the consumers have read what was acknowledged at this moment."""
        goal = {
            send.where: send.offset
            for send in self.history.of(Send)
            if isinstance(send, Send) and send.offset
        }
        reading = [client for client in self.clients if isinstance(client, Reader)]

        def are_read() -> bool:
            self.check_clients()
            return all(reader.positions[p] > goal.get(p, -1) for reader in reading for p in self.partitions)

        wait_until(are_read, PATIENCE_S, "the consumers to catch up")

    def gap_s(self, since: Mark, partition: int) -> float:
        """From this moment to the answer of the first send that began after it."""
        answers = [mark.seconds for mark in self._since(self.partitions[partition], since)]
        return min(answers) - since.seconds

    # ---- the end ----------------------------------------------------------------------------------------

    def read_everything(self) -> None:
        """Two consumers read all there is: one what is committed, one all of it."""
        ends = {p: self.cluster.high_watermark(p.topic, p.partition) for p in self.partitions}
        for kind in READERS:
            name = f"{self.topic}.final.{kind.__name__}"
            kind(name, self.recorder, self.partitions, self.cluster.bootstrap_servers).read_all(ends)
        self._ask_groups()

    def _ask_groups(self) -> None:
        for client in self.clients:
            if isinstance(client, OttlaTransactional):
                group = f"{GROUP}-{client.name}"
                began = self.history.tick()
                with self.cluster.admin() as admin:
                    told = admin.list_group_offsets(group)
                offsets = {where: at.offset for where, at in told.items() if at is not None}
                self.history.add(Committed(group, offsets, began, self.history.tick()))

    def anomalies(self) -> list[Anomaly]:
        return check(self.history)

    def verify(self) -> None:
        """All replicas in sync, everything read, nothing wrong, and the logs of all replicas the same."""
        self.cluster.check_nodes()
        self.cluster.wait_for_full_isr(self.topic)
        self.read_everything()
        found = self.anomalies()
        assert not found, "\n".join([*map(str, found[:20]), *self._batches_of(found)])
        self.cluster.check_equal_logs(self.topic)
        assert self.history.acknowledged() > 0

    def _batches_of(self, found: Iterable[Anomaly]) -> list[str]:
        """What the leader's log holds of the partitions in which something is wrong."""
        lines = []
        for where in sorted({anomaly.where for anomaly in found}):
            leader = self.cluster.leader(where.topic, where.partition)
            directory = self.cluster.dir_of(leader, where.topic, where.partition)
            lines.append(f"{where} on node {leader}:")
            lines += [
                f"  {batch.base_offset}-{batch.last_offset} epoch {batch.leader_epoch} "
                f"producer {batch.producer_id}/{batch.producer_epoch} sequence {batch.base_sequence}"
                for batch in disk_batches(directory, where.topic, where.partition)
            ]
        return lines
