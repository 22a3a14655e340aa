"""Incremental fetch sessions (KIP-227): after the first full request, only what changed is said.

Rules: one session a broker. `build` notes what the request says; `accepted` and `failed` say what came of it.
Whatever goes wrong ends in a new full request, never in a guess. Owned by the consumer core.
"""

from collections.abc import Mapping
from typing import NamedTuple

from ottla.client.config import ConsumerConfig
from ottla.model.errors import ErrorCode
from ottla.model.ids import ZERO_UUID, TopicPartition, Uuid
from ottla.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic

NO_SESSION = 0
FULL_EPOCH = 0
FINAL_EPOCH = -1
_MAX_EPOCH = 0x7FFFFFFF


class FetchSpec(NamedTuple):
    """What is asked for one partition."""

    topic_id: Uuid
    fetch_offset: int
    leader_epoch: int
    max_bytes: int


class SessionRequest(NamedTuple):
    """What the next request says about the session."""

    session_id: int
    epoch: int
    send: dict[TopicPartition, FetchSpec]
    forget: dict[TopicPartition, Uuid]
    by_id: bool


class FetchSession:
    """See the module."""

    def __init__(self) -> None:
        self.session_id = NO_SESSION
        self.epoch = FULL_EPOCH
        self._partitions: dict[TopicPartition, FetchSpec] = {}
        self._by_id = False

    def build(self, wanted: Mapping[TopicPartition, FetchSpec]) -> SessionRequest:
        """The difference between what the broker knows and what is wanted (all of it in a full request)."""
        by_id = all(spec.topic_id != ZERO_UUID for spec in wanted.values())
        if self.epoch != FULL_EPOCH and by_id != self._by_id and wanted:
            self.failed()  # names and ids do not mix in one session
        if self.epoch == FULL_EPOCH:
            self._by_id = by_id
            self._partitions = dict(wanted)
            return SessionRequest(self.session_id, FULL_EPOCH, self._partitions, {}, by_id)
        return self._increment(wanted)

    def _increment(self, wanted: Mapping[TopicPartition, FetchSpec]) -> SessionRequest:
        known = self._partitions
        changed = {tp: spec for tp, spec in wanted.items() if known.get(tp) != spec}
        forget = {
            tp: spec.topic_id
            for tp, spec in known.items()
            # A topic made anew under its old name is forgotten under its old id.
            if tp not in wanted or wanted[tp].topic_id != spec.topic_id
        }
        self._partitions = dict(wanted)
        return SessionRequest(self.session_id, self.epoch, changed, forget, self._by_id)

    def accepted(self, session_id: int) -> None:
        """The broker answered without an error at the top."""
        if session_id == NO_SESSION:
            # It makes no sessions, or has closed ours.
            self.session_id, self.epoch = NO_SESSION, FULL_EPOCH
        elif self.epoch == FULL_EPOCH:
            self.session_id, self.epoch = session_id, 1
        else:
            self.epoch = 1 if self.epoch == _MAX_EPOCH else self.epoch + 1

    def failed(self, error: ErrorCode | None = None) -> None:
        """The session is of no use: begin anew, closing what the broker may still have of it."""
        if error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
            self.session_id = NO_SESSION
        self.epoch = FULL_EPOCH
        self._partitions = {}


def build_fetch(asked: SessionRequest, config: ConsumerConfig) -> FetchRequest:
    """The request that says what the session has to say."""
    return FetchRequest(
        max_wait_ms=config.fetch_max_wait_ms,
        min_bytes=config.fetch_min_bytes,
        max_bytes=config.fetch_max_bytes,
        isolation_level=int(config.read_committed),
        session_id=asked.session_id,
        session_epoch=asked.epoch,
        topics=_fetch_topics(asked.send),
        forgotten_topics_data=_forgotten_topics(asked.forget),
        rack_id=config.client_rack,
    )


def _fetch_topics(send: Mapping[TopicPartition, FetchSpec]) -> list[FetchTopic]:
    topics: dict[tuple[str, Uuid], FetchTopic] = {}
    for tp, spec in send.items():
        key = (tp.topic, spec.topic_id)
        if key not in topics:
            topics[key] = FetchTopic(topic=tp.topic, topic_id=spec.topic_id, partitions=[])
        topics[key].partitions.append(
            FetchPartition(
                partition=tp.partition,
                current_leader_epoch=spec.leader_epoch,
                fetch_offset=spec.fetch_offset,
                partition_max_bytes=spec.max_bytes,
            )
        )
    return list(topics.values())


def _forgotten_topics(forget: Mapping[TopicPartition, Uuid]) -> list[ForgottenTopic]:
    topics: dict[tuple[str, Uuid], ForgottenTopic] = {}
    for tp, topic_id in forget.items():
        key = (tp.topic, topic_id)
        if key not in topics:
            topics[key] = ForgottenTopic(topic=tp.topic, topic_id=topic_id, partitions=[])
        topics[key].partitions.append(tp.partition)
    return list(topics.values())
