"""Kafka's ClusterControlManager: brokers and controllers: registering, heartbeats, fencing, going (KIP-631, KIP-966).

Also BrokerHeartbeatManager (who was heard from when), log directories (KIP-858, KIP-1066), and
ProducerIdControlManager (KIP-730).

Rules: pure decisions over an image; the heartbeats are only read here, the controller notes what was heard. A broker's
epoch is the offset of its registration, so that a later life is always above an earlier one. An id that was in a block
of producer ids is never given away again. What becomes of a broker stands after the changes of its partitions, or,
where these are too many for one decision, before them: then nobody elects it meanwhile, and repair_partitions() does
the rest, now or under another controller.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from typing import NamedTuple

from ottla.controller.result import ITEMS_PER_STEP, ControllerResult
from ottla.controller.rules import ClusterRules, Partition, Removal
from ottla.metadata import features
from ottla.metadata.features import VersionRange
from ottla.metadata.image import ClusterImage
from ottla.metadata.records import (
    BrokerEndpoint,
    BrokerFeature,
    BrokerRegistrationChangeRecord,
    ControllerEndpoint,
    ControllerFeature,
    MetadataRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    UnregisterBrokerRecord,
)
from ottla.metadata.registrations import BrokerRegistration, is_reserved_directory
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import Uuid, uuid_to_str
from ottla.model.time_slice import Steps
from ottla.wire.messages import producers
from ottla.wire.messages.nodes import broker_lifecycle as m

# Producer ids that a broker is given at once.
BLOCK_SIZE = 1_000
_MAX_ID = (1 << 63) - 1
# BrokerRegistrationChangeRecord.fenced and .in_controlled_shutdown.
FENCE, UNFENCE, SHUTTING_DOWN = 1, -1, 1


class BrokerControlState(Enum):
    """What a broker is to the controller."""

    FENCED = "fenced"
    UNFENCED = "unfenced"
    CONTROLLED_SHUTDOWN = "controlled shutdown"
    SHUTDOWN_NOW = "shutdown now"


# What a heartbeat may lead to.
TRANSITIONS: dict[BrokerControlState, frozenset[BrokerControlState]] = {
    BrokerControlState.FENCED: frozenset(
        {BrokerControlState.FENCED, BrokerControlState.UNFENCED, BrokerControlState.SHUTDOWN_NOW}
    ),
    BrokerControlState.UNFENCED: frozenset(BrokerControlState),
    BrokerControlState.CONTROLLED_SHUTDOWN: frozenset(
        {BrokerControlState.CONTROLLED_SHUTDOWN, BrokerControlState.SHUTDOWN_NOW}
    ),
    BrokerControlState.SHUTDOWN_NOW: frozenset({BrokerControlState.SHUTDOWN_NOW}),
}


@dataclass(slots=True)
class _Session:
    epoch: int
    last_contact_ms: float
    metadata_offset: int = -1
    # The offset of the broker's last loss of leadership: others must have seen it before it may go.
    controlled_shutdown_offset: int = -1
    # Could the broker still be alive? Not one that has been let go.
    may_live: bool = True
    # Is it only assumed to be, by a controller that has just become active and has not heard from it?
    is_assumed: bool = False


class BrokerHeartbeatManager:
    """Who was heard from when: the soft state of brokers that is never logged.

    Owned by the active controller and rebuilt when it becomes active: every broker then has a fresh session. Never
    consulted on replay. `now_ms` is monotonic time.
    """

    def __init__(self, session_timeout_ms: int) -> None:
        self._session_timeout_ms = session_timeout_ms
        self._sessions: dict[int, _Session] = {}

    def start(self, image: ClusterImage, now_ms: float) -> None:
        """A controller that has just become active gives every unfenced broker time to be heard from."""
        self._sessions = {
            broker.id: _Session(broker.epoch, now_ms, is_assumed=True)
            for broker in image.brokers.values()
            if not broker.fenced
        }

    def register(self, broker_id: int, epoch: int, now_ms: float) -> None:
        """A new life of the broker, or the same one registering again."""
        session = self._sessions.get(broker_id)
        if session is None or session.epoch != epoch:
            self._sessions[broker_id] = _Session(epoch, now_ms)
        else:
            session.last_contact_ms = now_ms
            session.may_live = True
            session.is_assumed = False

    def touch(self, broker_id: int, epoch: int, metadata_offset: int, now_ms: float) -> None:
        """The broker is alive and has applied the log so far."""
        self.register(broker_id, epoch, now_ms)
        self._sessions[broker_id].metadata_offset = metadata_offset

    def remove(self, broker_id: int) -> None:
        self._sessions.pop(broker_id, None)

    def has_valid_session(self, broker_id: int, epoch: int, now_ms: float) -> bool:
        """Has this life of the broker been heard from lately?"""
        session = self._sessions.get(broker_id)
        return session is not None and session.may_live and self._lasts(session, epoch, now_ms)

    def _lasts(self, session: _Session, epoch: int, now_ms: float) -> bool:
        return session.epoch == epoch and now_ms - session.last_contact_ms < self._session_timeout_ms

    def last_heard_ms(self, broker_id: int, epoch: int) -> float | None:
        """When this life of the broker was last heard from; None if it need not be waited for."""
        session = self._sessions.get(broker_id)
        if session is None or session.epoch != epoch or not session.may_live:
            return None
        return session.last_contact_ms

    def expired(self, image: ClusterImage, now_ms: float) -> list[int]:
        """Unfenced brokers whose session has run out."""
        expired = []
        for broker in image.brokers.values():
            session = self._sessions.get(broker.id)
            if not broker.fenced and (session is None or not self._lasts(session, broker.epoch, now_ms)):
                expired.append(broker.id)
        return expired

    def next_expiry_ms(self) -> float | None:
        """When the first session runs out, if nobody is heard from."""
        if not self._sessions:
            return None
        return min(s.last_contact_ms for s in self._sessions.values()) + self._session_timeout_ms

    def set_controlled_shutdown_offset(self, broker_id: int, offset: int) -> None:
        session = self._sessions.get(broker_id)
        if session is not None and session.controlled_shutdown_offset < 0:
            session.controlled_shutdown_offset = offset

    def let_go(self, broker_id: int) -> None:
        """The broker has been told that it may end, or has ended: its next life need not wait for the session."""
        session = self._sessions.get(broker_id)
        if session is not None:
            session.may_live = False

    def begins_anew(self, broker_id: int) -> None:
        """The broker of this very process registers: an earlier life that nobody has heard from since is over."""
        session = self._sessions.get(broker_id)
        if session is not None and session.is_assumed:
            session.may_live = False

    def may_shut_down(self, broker_id: int, image: ClusterImage) -> bool:
        """Have all active brokers seen that the broker no longer leads anything?"""
        session = self._sessions.get(broker_id)
        wanted = session.controlled_shutdown_offset if session is not None else -1
        return all(
            self._sessions[other.id].metadata_offset >= wanted
            for other in image.brokers.values()
            if other.active and other.id in self._sessions
        )


# --- registration


def register_broker(
    rules: ClusterRules,
    request: m.BrokerRegistrationRequest,
    heartbeats: BrokerHeartbeatManager,
    *,
    new_epoch: int,
    kraft_version: int,
    clean_shutdown_detection: bool,
    now_ms: float,
) -> ControllerResult[m.BrokerRegistrationResponse]:
    """A broker process announces itself; its replicas leave the ISR until it is unfenced."""
    if request.cluster_id != rules.settings.cluster_id:
        raise KafkaError(
            ErrorCode.INCONSISTENT_CLUSTER_ID,
            f"Expected cluster ID {rules.settings.cluster_id}, but got cluster ID {request.cluster_id}",
        )
    existing = rules.image.brokers.get(request.broker_id)
    _check_no_other_life(existing, request, heartbeats, now_ms)
    if request.is_migrating_zk_broker:
        raise KafkaError(
            ErrorCode.BROKER_ID_NOT_REGISTERED, "Controller does not support registering ZK brokers."
        )
    _check_directories(rules, request)
    _check_features(rules, request, kraft_version)
    record = _registration(rules, request)
    if existing is not None and existing.incarnation_id == request.incarnation_id:
        record.fenced = existing.fenced
        record.in_controlled_shutdown = existing.in_controlled_shutdown
        record.broker_epoch = existing.epoch
        return ControllerResult(m.BrokerRegistrationResponse(broker_epoch=existing.epoch), [record])
    record.broker_epoch = new_epoch
    stored_epoch = existing.epoch if existing is not None else -2
    clean = clean_shutdown_detection and stored_epoch == request.previous_broker_epoch
    records = _after_shutdown(rules, request.broker_id, clean)
    response = m.BrokerRegistrationResponse(broker_epoch=new_epoch)
    if len(records) < rules.slice_records:
        return ControllerResult(response, [*records, record])
    # The registration comes last: only before it is known how the last life ended.
    if existing is not None and not existing.fenced:
        records = [_fencing(existing), *records]
    return ControllerResult(response, records, more=True)


def _check_no_other_life(
    existing: BrokerRegistration | None,
    request: m.BrokerRegistrationRequest,
    heartbeats: BrokerHeartbeatManager,
    now_ms: float,
) -> None:
    if existing is None or existing.incarnation_id == request.incarnation_id:
        return
    if heartbeats.has_valid_session(existing.id, existing.epoch, now_ms):
        raise KafkaError(
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
            "Another broker is registered with that broker id. If the broker was recently restarted this "
            "should self-resolve once the heartbeat manager expires the broker's session.",
        )


def _check_directories(rules: ClusterRules, request: m.BrokerRegistrationRequest) -> None:
    if not features.directory_assignment_supported(rules.metadata_version):
        return
    if not request.log_dirs:
        raise _invalid("No directories specified in request")
    if any(is_reserved_directory(directory) for directory in request.log_dirs):
        raise _invalid("Reserved directory ID in request")
    if len(set(request.log_dirs)) != len(request.log_dirs):
        raise _invalid("Duplicate directory ID in request")
    for broker in rules.image.brokers.values():
        shared = set(broker.directories) & set(request.log_dirs)
        if broker.id != request.broker_id and shared:
            directory = uuid_to_str(min(shared))
            raise _invalid(f"Broker {broker.id} is already registered with directory {directory}")


def _check_features(rules: ClusterRules, request: m.BrokerRegistrationRequest, kraft_version: int) -> None:
    """A broker must be able to run with every level in use; one it does not name it has not."""
    offered = {
        f.name: VersionRange(f.min_supported_version, f.max_supported_version) for f in request.features
    }
    if features.METADATA_VERSION not in offered:
        raise _invalid(f"Request features do not contain '{features.METADATA_VERSION}'")
    finalized = {**rules.image.features, features.KRAFT_VERSION: kraft_version}
    for name in {**finalized, **offered}:
        level, supported = finalized.get(name, 0), offered.get(name, features.DISABLED)
        if level not in supported:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"Unable to register because the broker does not support finalized version {level} of {name}. "
                f"The broker wants a version between {supported.min} and {supported.max}, inclusive.",
            )


def _registration(rules: ClusterRules, request: m.BrokerRegistrationRequest) -> RegisterBrokerRecord:
    with_directories = features.directory_assignment_supported(rules.metadata_version)
    return RegisterBrokerRecord(
        broker_id=request.broker_id,
        is_migrating_zk_broker=False,
        incarnation_id=request.incarnation_id,
        broker_epoch=-1,
        end_points=[
            BrokerEndpoint(name=e.name, host=e.host, port=e.port, security_protocol=e.security_protocol)
            for e in request.listeners
        ],
        features=[
            BrokerFeature(
                name=f.name,
                min_supported_version=f.min_supported_version,
                max_supported_version=f.max_supported_version,
            )
            for f in request.features
        ],
        rack=request.rack,
        log_dirs=list(request.log_dirs) if with_directories else [],
    )


def _after_shutdown(rules: ClusterRules, broker_id: int, clean: bool) -> list[MetadataRecord]:
    """What becomes of a broker's partitions after its last life; without a clean end it may have lost data."""
    in_sync = rules.partitions_to_leave(broker_id)
    if not rules.image.elr_enabled or clean:
        return rules.leader_and_isr_updates(in_sync, Removal(leaving=broker_id))
    touched = chain(in_sync, rules.partitions_to_leave_elr(broker_id, unclean=True))
    return rules.leader_and_isr_updates(touched, Removal(unclean=broker_id))


def _with_state(
    rules: ClusterRules, records: list[MetadataRecord], state: MetadataRecord
) -> list[MetadataRecord]:
    """Changes of a broker's partitions, with the record that says what they are for."""
    return [*records, state] if len(records) < rules.slice_records else [state, *records]


def register_controller(
    rules: ClusterRules, request: m.ControllerRegistrationRequest
) -> ControllerResult[m.ControllerRegistrationResponse]:
    """A controller process announces itself (KIP-919)."""
    if not features.controller_registration_supported(rules.metadata_version):
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            "The current MetadataVersion is too old to support controller registrations.",
        )
    record = RegisterControllerRecord(
        controller_id=request.controller_id,
        incarnation_id=request.incarnation_id,
        zk_migration_ready=False,
        end_points=[
            ControllerEndpoint(name=e.name, host=e.host, port=e.port, security_protocol=e.security_protocol)
            for e in request.listeners
        ],
        features=[
            ControllerFeature(
                name=f.name,
                min_supported_version=f.min_supported_version,
                max_supported_version=f.max_supported_version,
            )
            for f in request.features
        ],
    )
    return ControllerResult(m.ControllerRegistrationResponse(error_message=""), [record], atomic=True)


# --- heartbeats


class HeartbeatDecision(NamedTuple):
    """The answer to a heartbeat, and what the broker is from now on."""

    response: m.BrokerHeartbeatResponse
    state: BrokerControlState


def broker_heartbeat(
    rules: ClusterRules, request: m.BrokerHeartbeatRequest, heartbeats: BrokerHeartbeatManager
) -> ControllerResult[HeartbeatDecision]:
    """A broker is alive, and says whether it wants to be fenced or to go."""
    rules.check_broker_epoch(request.broker_id, request.broker_epoch)
    broker = rules.image.brokers[request.broker_id]
    current = current_state(broker)
    following = next_state(rules, broker, request, heartbeats)
    if following is BrokerControlState.UNFENCED and _newly_lost(rules, broker, request.offline_log_dirs):
        # The next heartbeat lets it in: by then the image says in which of its directories it cannot lead.
        following = current
    assert following in TRANSITIONS[current]
    records = _transition(rules, broker, current, following)
    records += offline_directories(rules, broker, request.offline_log_dirs)
    records += cordoned_directories(rules, broker, request.cordoned_log_dirs)
    response = m.BrokerHeartbeatResponse(
        is_caught_up=request.current_metadata_offset >= broker.registered_at_offset,
        is_fenced=following in (BrokerControlState.FENCED, BrokerControlState.SHUTDOWN_NOW),
        should_shut_down=following is BrokerControlState.SHUTDOWN_NOW,
    )
    return ControllerResult(HeartbeatDecision(response, following), records)


def current_state(broker: BrokerRegistration) -> BrokerControlState:
    if broker.fenced:
        return BrokerControlState.FENCED
    if broker.in_controlled_shutdown:
        return BrokerControlState.CONTROLLED_SHUTDOWN
    return BrokerControlState.UNFENCED


def next_state(
    rules: ClusterRules,
    broker: BrokerRegistration,
    request: m.BrokerHeartbeatRequest,
    heartbeats: BrokerHeartbeatManager,
) -> BrokerControlState:
    """What the broker becomes by what it asks for and how far it has read the log."""
    current = current_state(broker)
    if current is BrokerControlState.FENCED:
        if request.want_shut_down:
            return BrokerControlState.SHUTDOWN_NOW
        caught_up = request.current_metadata_offset >= broker.registered_at_offset
        return current if request.want_fence or not caught_up else BrokerControlState.UNFENCED
    if current is BrokerControlState.UNFENCED:
        if request.want_fence:
            return BrokerControlState.SHUTDOWN_NOW if request.want_shut_down else BrokerControlState.FENCED
        if not request.want_shut_down:
            return current
        leads = rules.has_leaderships(broker.id)
        return BrokerControlState.CONTROLLED_SHUTDOWN if leads else BrokerControlState.SHUTDOWN_NOW
    if rules.has_leaderships(broker.id) or not heartbeats.may_shut_down(broker.id, rules.image):
        return BrokerControlState.CONTROLLED_SHUTDOWN
    return BrokerControlState.SHUTDOWN_NOW


def _transition(
    rules: ClusterRules,
    broker: BrokerRegistration,
    current: BrokerControlState,
    following: BrokerControlState,
) -> list[MetadataRecord]:
    if current is following:
        return []
    if following in (BrokerControlState.FENCED, BrokerControlState.SHUTDOWN_NOW):
        return fence_broker(rules, broker.id)
    if following is BrokerControlState.UNFENCED:
        return unfence_broker(rules, broker)
    return _enter_controlled_shutdown(rules, broker)


def fence_broker(rules: ClusterRules, broker_id: int) -> list[MetadataRecord]:
    """The broker is cut off: it leads nothing and is in no ISR."""
    partitions = rules.partitions_to_leave(broker_id)
    records = rules.leader_and_isr_updates(partitions, Removal(leaving=broker_id))
    return _with_state(rules, records, _fencing(rules.image.brokers[broker_id]))


def _fencing(broker: BrokerRegistration) -> BrokerRegistrationChangeRecord:
    return BrokerRegistrationChangeRecord(broker_id=broker.id, broker_epoch=broker.epoch, fenced=FENCE)


def unfence_broker(rules: ClusterRules, broker: BrokerRegistration) -> list[MetadataRecord]:
    """The broker is let in: partitions without a leader may have one again."""
    change = BrokerRegistrationChangeRecord(broker_id=broker.id, broker_epoch=broker.epoch, fenced=UNFENCE)
    leaderless = rules.leaderless_partitions(returning=broker.id)
    return [change, *rules.leader_and_isr_updates(leaderless, Removal(returning=broker.id))]


def _enter_controlled_shutdown(rules: ClusterRules, broker: BrokerRegistration) -> list[MetadataRecord]:
    change = BrokerRegistrationChangeRecord(
        broker_id=broker.id, broker_epoch=broker.epoch, in_controlled_shutdown=SHUTTING_DOWN
    )
    partitions = rules.partitions_to_leave(broker.id)
    return [change, *rules.leader_and_isr_updates(partitions, Removal(leaving=broker.id))]


def unregister_broker(
    rules: ClusterRules, request: m.UnregisterBrokerRequest
) -> ControllerResult[m.UnregisterBrokerResponse]:
    """A broker is struck off the list."""
    broker = rules.image.brokers.get(request.broker_id)
    if broker is None:
        raise KafkaError(
            ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker ID {request.broker_id} is not currently registered"
        )
    touched = chain(
        rules.partitions_to_leave(broker.id),
        rules.partitions_to_leave_elr(broker.id, unclean=False),
    )
    records = rules.leader_and_isr_updates(touched, Removal(leaving=broker.id))
    gone = UnregisterBrokerRecord(broker_id=broker.id, broker_epoch=broker.epoch)
    response = m.UnregisterBrokerResponse(error_message=None)
    return ControllerResult(response, _with_state(rules, records, gone))


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REGISTRATION, message)


# --- log directories


def offline_directories(
    rules: ClusterRules, broker: BrokerRegistration, offline: Sequence[Uuid]
) -> list[MetadataRecord]:
    """A broker has lost directories: the replicas in them no longer count."""
    lost = _newly_lost(rules, broker, offline)
    if not lost:
        return []
    touched = (
        entry for entry in rules.partitions_to_leave(broker.id) if entry[2].directory(broker.id) in lost
    )
    records = rules.leader_and_isr_updates(touched, Removal(leaving=broker.id))
    left = [directory for directory in broker.directories if directory not in lost]
    change = BrokerRegistrationChangeRecord(broker_id=broker.id, broker_epoch=broker.epoch, log_dirs=left)
    return _with_state(rules, records, change)


def _newly_lost(rules: ClusterRules, broker: BrokerRegistration, offline: Sequence[Uuid]) -> list[Uuid]:
    if not features.directory_assignment_supported(rules.metadata_version):
        return []
    return [directory for directory in broker.directories if directory in offline]


def cordoned_directories(
    rules: ClusterRules, broker: BrokerRegistration, cordoned: Sequence[Uuid] | None
) -> list[MetadataRecord]:
    """A broker takes no new replicas in some of its directories."""
    if cordoned is None or not features.cordoned_dirs_supported(rules.metadata_version):
        return []
    known = broker.cordoned_directories
    if known is not None and set(known) == set(cordoned):
        return []
    return [
        BrokerRegistrationChangeRecord(
            broker_id=broker.id, broker_epoch=broker.epoch, cordoned_log_dirs=list(cordoned)
        )
    ]


def assign_replicas_to_dirs(
    rules: ClusterRules, request: m.AssignReplicasToDirsRequest
) -> Steps[ControllerResult[m.AssignReplicasToDirsResponse]]:
    """A broker says in which of its directories its replicas are."""
    if not features.directory_assignment_supported(rules.metadata_version):
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, "Directory assignment is not supported yet.")
    rules.check_broker_epoch(request.broker_id, request.broker_epoch)
    broker = rules.image.brokers[request.broker_id]
    records: list[MetadataRecord] = []
    offline: list[Partition] = []
    answers = []
    for directory in request.directories:
        topics = []
        for topic in directory.topics:
            partitions = []
            for number, asked in enumerate(topic.partitions):
                if number % ITEMS_PER_STEP == 0:
                    yield
                error = _assign(
                    rules, broker, directory.id, topic.topic_id, asked.partition_index, records, offline
                )
                partitions.append(
                    m.AssignReplicasToDirsResponsePartitionData(
                        partition_index=asked.partition_index, error_code=error
                    )
                )
            topics.append(
                m.AssignReplicasToDirsResponseTopicData(topic_id=topic.topic_id, partitions=partitions)
            )
        answers.append(m.AssignReplicasToDirsResponseDirectoryData(id=directory.id, topics=topics))
    for first in range(0, len(offline), ITEMS_PER_STEP):
        some = offline[first : first + ITEMS_PER_STEP]
        records += rules.leader_and_isr_updates(some, Removal(leaving=broker.id), limit=len(some))
        yield
    return ControllerResult(m.AssignReplicasToDirsResponse(directories=answers), records)


def _assign(
    rules: ClusterRules,
    broker: BrokerRegistration,
    directory: Uuid,
    topic_id: Uuid,
    number: int,
    records: list[MetadataRecord],
    offline: list[Partition],
) -> int:
    topic = rules.image.topic_by_id(topic_id)
    if topic is None:
        return ErrorCode.UNKNOWN_TOPIC_ID
    partition = topic.partitions.get(number)
    if partition is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if broker.id not in partition.replicas:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    change = rules.change(topic, number, partition)
    change.directories[broker.id] = directory
    record = change.build()
    if record is not None:
        records.append(record)
    if not broker.has_online_directory(directory):
        offline.append((topic, number, partition))
    return 0


# --- producer ids


def allocate_producer_ids(
    rules: ClusterRules, request: producers.AllocateProducerIdsRequest
) -> ControllerResult[producers.AllocateProducerIdsResponse]:
    """The next block, for a broker."""
    rules.check_broker_epoch(request.broker_id, request.broker_epoch)
    first = max(rules.image.next_producer_id, 0)
    if first > _MAX_ID - BLOCK_SIZE:
        raise KafkaError(
            ErrorCode.UNKNOWN_SERVER_ERROR,
            "Exhausted all producerIds as the next block's end producerId has exceeded the int64 type limit",
        )
    record = ProducerIdsRecord(
        broker_id=request.broker_id, broker_epoch=request.broker_epoch, next_producer_id=first + BLOCK_SIZE
    )
    response = producers.AllocateProducerIdsResponse(producer_id_start=first, producer_id_len=BLOCK_SIZE)
    return ControllerResult(response, [record])
