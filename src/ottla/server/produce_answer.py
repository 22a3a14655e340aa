"""The answer to a produce request: what each partition is told, and when.

With acks=0 nobody is told anything. With acks=all the answer waits until the high watermark has passed what was
appended, the partition is led here no more, or the request's time is up. An error names the log's start where Kafka's
does, and has words only where single records are refused.

Owner: the Produce handler, for one request.
"""

from collections.abc import Callable

from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.tasks import guarded
from ottla.replication.partition import ACKS_ALL, Partition
from ottla.server.answers import Answer, Deferred
from ottla.server.connection import Connection
from ottla.server.context import Services
from ottla.server.leaders import current_leader, endpoints
from ottla.server.output import Reply
from ottla.storage.append import AppendResult
from ottla.storage.errors import RecordValidationError, UnacceptableRecordsError
from ottla.wire.fast_produce import Outcome, ProduceFast, TopicKey, encode_produce_response

Outcomes = list[tuple[TopicKey, list[Outcome]]]

# The first that tells where the leader is (KIP-951).
CURRENT_LEADER_VERSION = 10

_NO_RECORD_ERRORS: list[tuple[int, str | None]] = []
_NO_LOG_START = -1
# Errors that Kafka answers without the log's start.
_WITHOUT_LOG_START = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)


class ProduceAnswer:
    """One produce request on its way back.

    The handler's class sets the fields: a constructor here would be one call more for every request.
    """

    __slots__ = (
        "_connection",
        "_correlation_id",
        "_leaders",
        "_many",
        "_request",
        "_services",
        "_version",
        "_waiting_for",
    )
    _services: Services
    _connection: Connection
    _request: ProduceFast
    _version: int
    _correlation_id: int
    # Are there so many partitions that even the answer is not to be written on the loop?
    _many: bool
    # Who leads what others than this broker lead.
    _leaders: tuple[int, ...]
    # Partitions whose high watermark has yet to pass what was appended, and up to where.
    _waiting_for: list[tuple[Partition, int]]

    # ---- what a partition is told -------------------------------------------------------------------------

    def _appended(self, partition: Partition, index: int, result: AppendResult) -> Outcome:
        if self._request.acks == ACKS_ALL and partition.log.high_watermark <= result.last_offset:
            self._waiting_for.append((partition, result.last_offset + 1))
        _, _, log_append_time_ms, log_start_offset, _, _ = result
        return (index, 0, result[0], log_append_time_ms, log_start_offset, _NO_RECORD_ERRORS, None, None)

    def _failed(self, topic: TopicKey, index: int, error: KafkaError) -> Outcome:
        hosted = self._services.replicas.hosted(topic, index)
        leader: tuple[int, int] | None = None
        if error.code == ErrorCode.NOT_LEADER_OR_FOLLOWER and self._version >= CURRENT_LEADER_VERSION:
            leader = current_leader(self._services, topic, index)
            if leader[0] not in self._leaders:
                self._leaders = (*self._leaders, leader[0])
        log_start_offset = _NO_LOG_START
        if hosted is not None and not _is_without_log_start(error):
            log_start_offset = hosted.log.log_start_offset
        if isinstance(error, RecordValidationError):
            refused: list[tuple[int, str | None]] = [*error.record_errors]
            return (index, error.code, -1, -1, log_start_offset, refused, error.message, leader)
        return (index, error.code, -1, -1, log_start_offset, _NO_RECORD_ERRORS, None, leader)

    def _unverified(self, topic: TopicKey, index: int, error: KafkaError) -> Outcome:
        outcome = self._failed(topic, index, error)
        return (*outcome[:4], _NO_LOG_START, _NO_RECORD_ERRORS, error.message, outcome[7])

    # ---- refusing -----------------------------------------------------------------------------------------

    def refuse_all(self, error: KafkaError) -> Answer:
        """Refuse the request as a whole, in the words of the error if it has any."""
        return self._answer(self._refused(error))

    async def refuse_many(self, error: KafkaError) -> Reply | None:
        refused = await self._services.loop.run_in_executor(self._services.executor, self._refused, error)
        return await self._answer_many(refused)

    def _refused(self, error: KafkaError) -> Outcomes:
        refusal = (error.code, -1, -1, _NO_LOG_START, _NO_RECORD_ERRORS, error.message, None)
        return [
            (topic, [(index, *refusal) for index, _, _ in partitions])
            for topic, partitions in self._request.topics
        ]

    # ---- answering ----------------------------------------------------------------------------------------

    def _answer(self, topics: Outcomes) -> Answer:
        if self._request.acks == 0:
            self._close_if_failed(topics)
            return None
        if self._waiting_for:
            return self._answer_when_committed(topics)
        if self._leaders:
            return self._encode(topics)
        return encode_produce_response(self._version, self._correlation_id, topics)

    async def _answer_many(self, topics: Outcomes) -> Reply | None:
        if self._many and self._request.acks and not self._waiting_for:
            return await self._services.loop.run_in_executor(self._services.executor, self._encode, topics)
        answer = self._answer(topics)
        if not isinstance(answer, Deferred):
            return answer  # type: ignore[return-value]
        done = self._services.loop.create_future()
        answer.then(done.set_result)
        return await done  # type: ignore[no-any-return]

    def _close_if_failed(self, topics: Outcomes) -> None:
        """acks=0 gets no answer; only a closed connection can tell that something went wrong."""
        failed = [(topic, outcome[1]) for topic, outcomes in topics for outcome in outcomes if outcome[1]]
        if failed:
            topic, code = failed[0]
            self._connection.close(f"produce with acks=0 to {topic!r} failed: {ErrorCode(code).name}")

    def _answer_when_committed(self, topics: Outcomes) -> Deferred:
        deferred = Deferred()
        left = len(self._waiting_for)

        def committed_or_lost() -> None:
            nonlocal left
            left -= 1
            if left == 0 and not deferred.done:
                timer.cancel()
                deferred.resolve(self._encode(self._told_uncommitted(topics, self._why_lost)))

        def timed_out() -> None:
            if not deferred.done:
                late = KafkaError(ErrorCode.REQUEST_TIMED_OUT)
                deferred.resolve(self._encode(self._told_uncommitted(topics, lambda topic, index: late)))

        # Whoever commits has others to tell: a fault here ends this connection only.
        owner, fail = self._connection.name, self._connection.fail
        late = guarded(timed_out, name="a produce that timed out", owner=owner, failed=fail)
        told = guarded(committed_or_lost, name="a produce that is committed", owner=owner, failed=fail)
        timer = self._services.loop.call_later(max(self._request.timeout_ms, 0) / 1000, late)
        for partition, offset in self._waiting_for:
            partition.when_committed(offset, told)
        return deferred

    def _told_uncommitted(self, topics: Outcomes, why: Callable[[TopicKey, int], KafkaError]) -> Outcomes:
        """What is appended but was not committed is told with an error; its offsets stay in the answer, as in Kafka."""
        uncommitted = {
            (topic, partition.topic_partition.partition)
            for partition, offset in self._waiting_for
            if partition.log.high_watermark < offset
            for topic in (partition.topic_partition.topic, partition.topic_id)
        }
        if not uncommitted:
            return topics

        def told(topic: TopicKey, outcome: Outcome) -> Outcome:
            if (topic, outcome[0]) not in uncommitted:
                return outcome
            failed = self._failed(topic, outcome[0], why(topic, outcome[0]))
            return (outcome[0], failed[1], *outcome[2:7], failed[7])

        return [(topic, [told(topic, outcome) for outcome in outcomes]) for topic, outcomes in topics]

    def _why_lost(self, topic: TopicKey, index: int) -> KafkaError:
        """The partition was taken away, or is led by another, before its high watermark passed what was appended."""
        try:
            self._services.replicas.leader(topic, index)
        except KafkaError as error:
            if error.code == ErrorCode.UNKNOWN_TOPIC_ID:  # Kafka looks by the name, whatever the request had
                return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            return error
        # Deleted and made again, or led again: what is there now are another's records.
        return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _encode(self, topics: Outcomes) -> bytes:
        if not self._leaders:
            return encode_produce_response(self._version, self._correlation_id, topics)
        where = endpoints(self._services, self._connection.host.listener_name, self._leaders)
        return encode_produce_response(self._version, self._correlation_id, topics, node_endpoints=where)


def _is_without_log_start(error: KafkaError) -> bool:
    return error.code in _WITHOUT_LOG_START or isinstance(error, UnacceptableRecordsError)
