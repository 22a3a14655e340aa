"""ShareFetch and ShareAcknowledge: the members of share groups acquire records and say what became of them (KIP-932).

Members need to read their group and the topics. A fetch may carry acknowledgements; both are done at the same time,
and the answer waits for both. With epoch -1 the session is closed and everything that the member still holds is
released.

Where there is a quota, whoever has to wait for what it was sent before acquires nothing: what Kafka acquires and does
not send then stays locked. What is acquired is sent, and waited for afterwards.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final, NamedTuple

from ottla.metadata.image import ClusterImage
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import Uuid
from ottla.model.pending import Pending
from ottla.security.acls import AclOperation, ResourceType
from ottla.server.context import Context
from ottla.server.dispatch import Encoded
from ottla.server.errors import MISDIRECTED, current_leader, endpoints
from ottla.server.registry import handles
from ottla.share.fetch import ShareFetchParams, ShareRead
from ottla.share.leader import PartitionOutcomes, SharePartitionCache
from ottla.share.sessions import FINAL_EPOCH, CachedSharePartition, ShareFetchContext, ShareSessionKey
from ottla.share.state import (
    Acknowledgement,
    AcknowledgeType,
    AcquireParams,
    ShareAcquireMode,
    SharePartitionKey,
)
from ottla.wire.fast.share_fetch import SharePartitionAnswer, encode_share_fetch_response
from ottla.wire.messages.groups.share import (
    AcknowledgementBatch,
    AcknowledgeTopic,
    FetchTopic,
    LeaderIdAndEpoch,
    NodeEndpoint,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareAcknowledgeResponsePartitionData,
    ShareAcknowledgeTopicResponse,
    ShareFetchRequest,
)

MAX_MEMBER_ID_LENGTH: Final = 36
RENEW_VERSION: Final = 2

PartitionKey = tuple[Uuid, int]


class AckOutcome(NamedTuple):
    """The answer to the acknowledgements of one partition."""

    error_code: int
    message: str | None = None


AckOutcomes = dict[PartitionKey, AckOutcome]


@handles(ShareFetchRequest)
def share_fetch(ctx: Context, request: ShareFetchRequest) -> Encoded | Pending[Encoded]:
    """Acquire records for a member, and take the acknowledgements that come along."""
    call = _ShareFetch(ctx, request)
    try:
        return call.serve()
    except KafkaError as error:
        if error.code == ErrorCode.SHARE_SESSION_LIMIT_REACHED:
            return call.refuse_later(error.code)
        return _refused(error.code)


@handles(ShareAcknowledgeRequest)
def share_acknowledge(ctx: Context, request: ShareAcknowledgeRequest) -> Any:
    """Take what a member says of records that it holds."""
    service = ctx.node.share
    try:
        who = _member(ctx, request)
        service.sessions.acknowledging(who, request.share_session_epoch)
        named = [_name(ctx.node.image(), topic.topic_id) for topic in request.topics if topic.partitions]
        rules = AckRules(ctx.version, request.is_renew_ack, _readable(ctx, named))
    except KafkaError as error:
        return ShareAcknowledgeResponse(error_code=error.code, responses=[], node_endpoints=[])
    acknowledging = acknowledge(service.partitions, ctx.node.image(), who, request.topics, rules)
    answer: Pending[ShareAcknowledgeResponse] = Pending()

    def acknowledged(done: Pending[AckOutcomes]) -> None:
        if request.share_session_epoch == FINAL_EPOCH:
            service.close_session(who)
        answer.resolve(_acknowledge_response(ctx, who, done.result()))

    acknowledging.then(acknowledged)
    return answer


def _member(ctx: Context, request: ShareFetchRequest | ShareAcknowledgeRequest) -> ShareSessionKey:
    """Who asks; KafkaError if nobody may, or it does not say."""
    if not ctx.node.share.enabled:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
    if request.group_id is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Invalid group id in the request.")
    if ctx.node.authorizer is not None:
        ctx.require(AclOperation.READ, ResourceType.GROUP, request.group_id)
    if not request.member_id or len(request.member_id) > MAX_MEMBER_ID_LENGTH:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Invalid member id in the request.")
    return ShareSessionKey(request.group_id, request.member_id)


def _name(image: ClusterImage, topic_id: bytes) -> str | None:
    topic = image.topic_by_id(Uuid(topic_id))
    return None if topic is None else topic.name


def _readable(ctx: Context, topics: Sequence[str | None]) -> Collection[str] | None:
    """Those of the topics that may be read; None: all of them.

    With an authorizer Kafka fails as a whole over a topic that is gone; clients open a new session.
    """
    if ctx.node.authorizer is None:
        return None
    names = [name for name in topics if name is not None]
    if len(names) < len(topics):
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "a topic is gone")
    return ctx.authorized_names(AclOperation.READ, ResourceType.TOPIC, names)


def _refused(code: ErrorCode) -> Encoded:
    return Encoded(encode_share_fetch_response(code, 0, []))


class _ShareFetch:
    """One share fetch."""

    def __init__(self, ctx: Context, request: ShareFetchRequest) -> None:
        self._ctx = ctx
        self._request = request
        self._service = ctx.node.share
        self._image = ctx.node.image()
        self._who: ShareSessionKey
        self._session_context: ShareFetchContext
        # What may be read; None: everything.
        self._readable: Collection[str] | None = None
        quotas = self._quotas = ctx.node.quotas
        self._quota = (
            quotas.sensors_of(ctx.connection.principal, ctx.header.client_id) if quotas.enabled else None
        )
        self._has_to_wait_ms = 0 if self._quota is None else quotas.share_fetched(self._quota)

    def serve(self) -> Encoded | Pending[Encoded]:
        """Acquire and acknowledge; KafkaError if the request as a whole is refused."""
        self._who = _member(self._ctx, self._request)
        self._check_renewal()
        self._session_context = self._new_context()
        self._ctx.connection.when_lost(self._service, self._service.disconnected)
        if self._ctx.node.authorizer is not None:
            self._readable = _readable(self._ctx, self._named())
        acknowledging = self._acknowledge()
        unknown, known = self._sort_out()
        fetching = self._fetch(known)
        answer: Pending[Encoded] = Pending()

        def done(_: object) -> None:
            if acknowledging.done and fetching.done and not answer.done:
                answer.resolve(self._answer(fetching.result() + unknown, acknowledging.result()))

        acknowledging.then(done)
        fetching.then(done)
        return answer

    def refuse_later(self, code: ErrorCode) -> Pending[Encoded]:
        """A member without a session tries again at once: let it wait as long as it would for records."""
        answer: Pending[Encoded] = Pending()
        waiting = self._service.after(self._request.max_wait_ms)
        waiting.then(lambda _: answer.resolve(_refused(code)))
        return answer

    # ---- asking -------------------------------------------------------------------------------------------

    def _check_renewal(self) -> None:
        """Renewing is urgent: such a request fetches nothing (KIP-1222)."""
        request = self._request
        wanted = (request.max_bytes, request.min_bytes, request.max_records, request.max_wait_ms)
        if request.is_renew_ack and any(wanted):
            raise KafkaError(ErrorCode.INVALID_REQUEST, "a fetch that renews must ask for nothing else")

    def _new_context(self) -> ShareFetchContext:
        request, image = self._request, self._image
        wanted = []
        for topic in request.topics:
            known = image.topic_by_id(Uuid(topic.topic_id))
            name = None if known is None else known.name
            wanted += [
                CachedSharePartition(Uuid(topic.topic_id), partition.partition_index, name)
                for partition in topic.partitions
            ]
        return self._service.sessions.new_context(
            self._who,
            request.share_session_epoch,
            wanted,
            [(Uuid(t.topic_id), index) for t in request.forgotten_topics_data for index in t.partitions],
            acknowledges=self._acknowledges,
            connection=self._ctx.connection,
            max_sessions=self._service.settings.max_sessions,
        )

    def _named(self) -> list[str | None]:
        """The topics of the session and of the request; None for one that is gone."""
        session = {partition.topic for partition in self._session_context.partitions}
        asked = {_name(self._image, topic.topic_id) for topic in self._request.topics if topic.partitions}
        return list(session | asked)

    @property
    def _acknowledges(self) -> bool:
        return any(p.acknowledgement_batches for topic in self._request.topics for p in topic.partitions)

    def _acknowledge(self) -> Pending[AckOutcomes]:
        if not self._acknowledges:
            return Pending.of({})
        rules = AckRules(self._ctx.version, self._request.is_renew_ack, self._readable)
        return acknowledge(self._service.partitions, self._image, self._who, self._request.topics, rules)

    def _sort_out(self) -> tuple[list[ShareRead], list[CachedSharePartition]]:
        """Partitions that are not there or may not be read, and those to acquire from."""
        if self._request.is_renew_ack:
            return [], []
        image, readable = self._image, self._readable
        unknown, known = [], []
        for partition in self._session_context.partitions:
            if partition.topic is None:
                unknown.append(ShareRead(partition, ErrorCode.UNKNOWN_TOPIC_ID))
            elif readable is not None and partition.topic not in readable:
                unknown.append(ShareRead(partition, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
            elif image.partition(partition.topic, partition.partition) is None:
                unknown.append(ShareRead(partition, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            else:
                known.append(partition)
        return unknown, known

    def _fetch(self, partitions: list[CachedSharePartition]) -> Pending[list[ShareRead]]:
        if not partitions or self._has_to_wait_ms:
            return Pending.of([])
        request = self._request
        max_bytes = min(request.max_bytes, self._service.settings.max_fetch_bytes)
        if self._quota is not None:
            max_bytes = min(max_bytes, self._quota.max_fetch_bytes)
        if request.share_acquire_mode not in ShareAcquireMode.__members__.values():
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "Unknown share acquire mode")
        mode = ShareAcquireMode(request.share_acquire_mode)
        acquire = AcquireParams(self._who.member_id, request.max_records, request.batch_size, mode)
        params = ShareFetchParams(
            self._who.group_id, acquire, request.max_wait_ms, min(request.min_bytes, max_bytes), max_bytes
        )
        return self._service.fetch(
            params, _rotated(partitions, request.share_session_epoch), self._ctx.connection
        )

    # ---- answering ----------------------------------------------------------------------------------------

    def _answer(self, reads: list[ShareRead], outcomes: AckOutcomes) -> Encoded:
        node = self._ctx.node
        code = ErrorCode.NONE
        if not self._session_context.is_current():
            code, reads = ErrorCode.INVALID_SHARE_SESSION_EPOCH, []
        answered = [read for read in reads if self._must_answer(read)]
        if any(self._image.topic_by_id(read.partition.topic_id) is None for read in answered):
            # There is a code for a topic that is gone, but Kafka fails as a whole, and clients open a new session.
            return _refused(ErrorCode.UNKNOWN_SERVER_ERROR)
        topics = self._topics(answered, dict(outcomes))
        leaders = [a.leader_id for answers in topics.values() for a in answers if a.error_code in MISDIRECTED]
        if self._request.share_session_epoch == FINAL_EPOCH:
            self._service.close_session(self._who)
        throttle_ms = self._has_to_wait_ms
        if self._quota is not None and not throttle_ms:
            slices = [read.slice.length for read in answered if read.slice is not None]
            throttle_ms = self._quotas.share_fetched(self._quota, sum(slices), len(slices))
        return Encoded(
            encode_share_fetch_response(
                code,
                self._service.settings(self._who.group_id).limits.lock_duration_ms,
                list(topics.items()),
                endpoints(node, self._ctx.listener_name, leaders) if leaders else (),
                throttle_ms,
            ),
            throttle_ms,
        )

    def _topics(
        self, reads: list[ShareRead], outcomes: AckOutcomes
    ) -> dict[Uuid, list[SharePartitionAnswer]]:
        """What there is to say, by topic."""
        topics: dict[Uuid, list[SharePartitionAnswer]] = {}
        for read in reads:
            key = read.partition.key
            outcome = outcomes.pop(key, AckOutcome(ErrorCode.NONE))
            topics.setdefault(key[0], []).append(self._partition_answer(read, outcome))
        for (topic_id, partition), outcome in outcomes.items():
            answer = SharePartitionAnswer(partition, 0, outcome.error_code, outcome.message)
            topics.setdefault(topic_id, []).append(answer)
        return topics

    def _must_answer(self, read: ShareRead) -> bool:
        session = self._session_context.session
        if session is None:
            return True
        return session.must_answer(read.partition.key, read.slice is not None, bool(read.error_code))

    def _partition_answer(self, read: ShareRead, outcome: AckOutcome) -> SharePartitionAnswer:
        topic_id, partition = read.partition.key
        leader = (0, 0)
        if read.error_code in MISDIRECTED:
            leader = current_leader(self._ctx.node, topic_id, partition)
        return SharePartitionAnswer(
            partition,
            read.error_code,
            outcome.error_code,
            outcome.message,
            *leader,
            read.acquired,
            read.slice,
        )


def _rotated(partitions: list[CachedSharePartition], epoch: int) -> list[CachedSharePartition]:
    """Each request begins with another partition, so that none starves."""
    if len(partitions) < 2 or epoch < 1:
        return partitions
    begin = epoch % len(partitions)
    return partitions[begin:] + partitions[:begin]


# ---- acknowledgements, alone (ShareAcknowledge) or together with a fetch


class AckRules(NamedTuple):
    """What a request may acknowledge: RENEW from version 2 on, and only if the request says that it does."""

    version: int
    is_renew: bool
    # The topics; None: all of them.
    readable: Collection[str] | None = None

    def allow(self, said: Sequence[AcknowledgementBatch]) -> bool:
        before = -1
        for batch in said:
            if batch.first_offset > batch.last_offset or batch.first_offset < before:
                return False
            if not self._allow_types(batch):
                return False
            before = batch.last_offset
        return True

    def _allow_types(self, batch: AcknowledgementBatch) -> bool:
        types = batch.acknowledge_types
        if not types or (len(types) > 1 and len(types) != batch.last_offset - batch.first_offset + 1):
            return False
        highest = AcknowledgeType.RENEW if self.version >= RENEW_VERSION else AcknowledgeType.REJECT
        if min(types) < 0 or max(types) > highest:
            return False
        return self.is_renew or AcknowledgeType.RENEW not in types


def acknowledge(
    shares: SharePartitionCache,
    image: ClusterImage,
    who: ShareSessionKey,
    topics: Iterable[FetchTopic] | Iterable[AcknowledgeTopic],
    rules: AckRules,
) -> Pending[AckOutcomes]:
    """Pass the acknowledgements of a member on to the share partitions; each has an outcome of its own."""
    said: dict[PartitionKey, list[AcknowledgementBatch]] = {
        (Uuid(topic.topic_id), partition.partition_index): partition.acknowledgement_batches
        for topic in topics
        for partition in topic.partitions
    }
    errors: AckOutcomes = {}
    accepted: dict[SharePartitionKey, list[Acknowledgement]] = {}
    unsaid: AckOutcomes = {}
    for key, batches in said.items():
        code = _problem(image, key, batches, rules)
        if code:
            errors[key] = AckOutcome(code)
        elif not batches:
            unsaid[key] = AckOutcome(ErrorCode.NONE)
        else:
            accepted[SharePartitionKey(who.group_id, *key)] = [
                Acknowledgement(batch.first_offset, batch.last_offset, batch.acknowledge_types)
                for batch in batches
            ]
    if not accepted:
        return Pending.of(errors)
    answer: Pending[AckOutcomes] = Pending()
    shares.acknowledge(who.member_id, accepted).then(
        lambda done: answer.resolve(_in_order(said, done.result(), errors | unsaid))
    )
    return answer


def _problem(
    image: ClusterImage, key: PartitionKey, said: Sequence[AcknowledgementBatch], rules: AckRules
) -> ErrorCode:
    topic = image.topic_by_id(key[0])
    if topic is None:
        return ErrorCode.UNKNOWN_TOPIC_ID
    if not rules.allow(said):
        return ErrorCode.INVALID_REQUEST
    if rules.readable is not None and topic.name not in rules.readable:
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return ErrorCode.NONE if key[1] in topic.partitions else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _in_order(keys: Iterable[PartitionKey], outcomes: PartitionOutcomes, known: AckOutcomes) -> AckOutcomes:
    found = {key[1:]: _outcome(error) for key, error in outcomes.items()} | known
    return {key: found[key] for key in keys}


def _outcome(error: KafkaError | None) -> AckOutcome:
    return AckOutcome(ErrorCode.NONE) if error is None else AckOutcome(error.code, error.message)


def _acknowledge_response(
    ctx: Context, who: ShareSessionKey, outcomes: AckOutcomes
) -> ShareAcknowledgeResponse:
    topics: dict[Uuid, list[ShareAcknowledgeResponsePartitionData]] = {}
    leaders = []
    for (topic_id, partition), outcome in outcomes.items():
        leader = (0, 0)
        if outcome.error_code in MISDIRECTED:
            leader = current_leader(ctx.node, topic_id, partition)
            leaders.append(leader[0])
        topics.setdefault(topic_id, []).append(
            ShareAcknowledgeResponsePartitionData(
                partition_index=partition,
                error_code=outcome.error_code,
                error_message=outcome.message,
                current_leader=LeaderIdAndEpoch(leader_id=leader[0], leader_epoch=leader[1]),
            )
        )
    return ShareAcknowledgeResponse(
        acquisition_lock_timeout_ms=ctx.node.share.settings(who.group_id).limits.lock_duration_ms,
        responses=[
            ShareAcknowledgeTopicResponse(topic_id=topic_id, partitions=partitions)
            for topic_id, partitions in topics.items()
        ],
        node_endpoints=[
            NodeEndpoint(node_id=node_id, host=host, port=port, rack=rack)
            for node_id, host, port, rack in endpoints(ctx.node, ctx.listener_name, leaders)
        ],
    )
