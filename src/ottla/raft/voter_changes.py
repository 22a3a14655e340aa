"""Kafka's AddVoterHandler, RemoveVoterHandler and UpdateVoterHandler, and kraft.version 0 to 1 (KIP-853, KIP-1186).

Purpose: the voters change one at a time, and only when the leader's epoch and the change before it are committed: then
any majority of the old voters and any of the new ones have a voter in common. New voters count from the moment their
record is appended, so it is they who commit it.

Rules: the checks in 4.3.1's order, in its words. A function gives the response, or None if it comes when the change is
committed, by the core's answers. One change is under way at most; it is answered once, and forgotten when its leader
stops leading. Owned by the raft core.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from ottla import __version__
from ottla.metadata.features import KRAFT_VERSION, VersionRange
from ottla.metadata.registrations import Endpoint
from ottla.model.errors import ErrorCode, KafkaError, error_of
from ottla.model.ids import ZERO_UUID, Uuid, uuid_to_str
from ottla.net.peers import Node
from ottla.raft.answers import NONE, SENTENCES, Asked, leader_endpoint
from ottla.raft.state import LeaderState, Replica, VoterChange
from ottla.raft.voters import RECONFIGURABLE, QuorumEntry, ReplicaKey, VoterNode, VoterSet
from ottla.records.control import ControlType
from ottla.wire.codec import encode
from ottla.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.wire.messages.logs.control import KRaftVersionRecord
from ottla.wire.messages.nodes import raft as m

Refusal = tuple[ErrorCode, str | None]

# What a record of the voters may come to, some hundred bytes each: a snapshot has it in its first megabyte, or no node
# that begins with that snapshot starts again.
MAX_VOTERS_BYTES: Final = 1 << 19


# --- adding


def add_voter(core: Replica, token: int, request: m.AddRaftVoterRequest) -> m.AddRaftVoterResponse | None:
    """A controller wants a vote, for itself (KIP-1186) or by an administrator."""
    key = ReplicaKey(request.voter_id, request.voter_directory_id)
    endpoints = _endpoints(request.listeners)
    refusal = _refused_request(core, request.cluster_id, key, "Add")
    if refusal is None and _address(endpoints, core.controller_listener) is None:
        refusal = (
            ErrorCode.INVALID_REQUEST,
            "Add voter request didn't include the endpoint for the default listener "
            f"{core.controller_listener}",
        )
    if refusal is None:
        refusal = _refused_change(core, "adding")
    voters = core.log.quorum.latest().voters
    if refusal is None and key.id in voters.ids:
        refusal = (
            ErrorCode.DUPLICATE_VOTER,
            f"The voter id for {_text(key)} is already part of the set of voters {_all(voters)}.",
        )
    added = voters.added(VoterNode(key, endpoints))
    if refusal is None and added is not None and _is_too_large(added):
        refusal = ErrorCode.INVALID_REQUEST, "Add voter request has endpoints that no snapshot has room for"
    where = _address(endpoints, core.controller_listener)
    if refusal is None and where is not None:
        ask = ApiVersionsRequest(client_software_name="ottla", client_software_version=__version__)
        leader = _leader(core)
        if core.ask(Node(key.id, where.host, where.port), ask, partial(_new_voter_answered, core)):
            deadline_ms = core.now_ms + core.timeouts.request_ms
            voter = VoterNode(key, endpoints)
            leader.change = VoterChange(
                m.AddRaftVoterResponse, token, voter, request.ack_when_committed, deadline_ms
            )
            return None
        message = f"New voter {_text(key)} is not ready to receive requests"
        refusal = (ErrorCode.REQUEST_TIMED_OUT, message)
    assert refusal is not None, "what is not refused is under way"
    return m.AddRaftVoterResponse(error_code=refusal[0], error_message=refusal[1])


def _new_voter_answered(core: Replica, response: Any, node: Node) -> bool:
    """The new voter is there, and says which kraft.versions it can do; None: it did not answer."""
    state = core.state
    leader = state.leader
    change = leader.change if leader is not None else None
    if leader is None or change is None or change.offset is not None or node.node_id != change.voter.key.id:
        return True
    key = change.voter.key
    error = ErrorCode.BROKER_NOT_AVAILABLE
    if isinstance(response, ApiVersionsResponse):
        error = error_of(response.error_code) or ErrorCode.NONE
    if error is not ErrorCode.NONE or not isinstance(response, ApiVersionsResponse):
        message = f"Aborted add voter operation for since API_VERSIONS returned an error {error.name}"
        _finish(core, leader, ErrorCode.REQUEST_TIMED_OUT, message)
        return False
    kraft_versions = next(
        (
            VersionRange(s.min_version, s.max_version)
            for s in response.supported_features
            if s.name == KRAFT_VERSION
        ),
        VersionRange(0, 0),
    )
    finalized = core.log.quorum.latest().kraft_version
    if finalized not in kraft_versions:
        message = (
            f"Aborted add voter operation for {_text(key)} since the {KRAFT_VERSION} range (min: "
            f"{kraft_versions.min}, max: {kraft_versions.max}) doesn't support the finalized version {finalized}"
        )
        _finish(core, leader, ErrorCode.INVALID_REQUEST, message)
        return True
    if not leader.has_caught_up(key, core.now_ms):
        message = f"Aborted add voter operation for {_text(key)} since it is lagging behind"
        _finish(core, leader, ErrorCode.REQUEST_TIMED_OUT, message)
        return True
    change.voter = VoterNode(key, change.voter.listeners, kraft_versions)
    voters = core.log.quorum.latest().voters.added(change.voter)
    assert voters is not None, "while a change is under way there is no other"
    change.offset = _append_voters(core, voters)
    if not change.ack_when_committed:
        _answer(core, change, ErrorCode.NONE, None)
    return True


# --- removing


def remove_voter(
    core: Replica, token: int, request: m.RemoveRaftVoterRequest
) -> m.RemoveRaftVoterResponse | None:
    """A vote is to be taken away; a leader that loses its own leads on until that is committed."""
    key = ReplicaKey(request.voter_id, request.voter_directory_id)
    refusal = _refused_request(core, request.cluster_id, key, "Remove") or _refused_change(core, "removing")
    voters = core.log.quorum.latest().voters
    remaining = voters.removed(key)
    if refusal is None and remaining is not None:
        change = VoterChange(
            m.RemoveRaftVoterResponse,
            token,
            VoterNode(key),
            ack_when_committed=True,
            deadline_ms=core.now_ms + core.timeouts.request_ms,
        )
        change.offset = _append_voters(core, remaining)
        _leader(core).change = change
        return None
    if refusal is None:
        message = f"Cannot remove voter {_text(key)} from the set of voters {_all(voters)}"
        refusal = (ErrorCode.VOTER_NOT_FOUND, message)
    return m.RemoveRaftVoterResponse(error_code=refusal[0], error_message=refusal[1])


# --- updating


def update_voter(core: Replica, request: m.UpdateRaftVoterRequest, how: Asked) -> m.UpdateRaftVoterResponse:
    """A voter reports where it is reached and what it can do."""
    error = _update_voter(core, request)
    state = core.state
    where = leader_endpoint(state, how)
    return m.UpdateRaftVoterResponse(
        error_code=error or NONE,
        current_leader=m.CurrentLeader(
            leader_id=state.leader_id,
            leader_epoch=state.epoch,
            host=where.host if where is not None else "",
            port=where.port if where is not None else 0,
        ),
    )


def _update_voter(core: Replica, request: m.UpdateRaftVoterRequest) -> ErrorCode | None:
    if core.is_foreign(request.cluster_id):
        return ErrorCode.INCONSISTENT_CLUSTER_ID
    error = core.state.leader_request_error(request.current_leader_epoch)
    if error is not None:
        return error
    key = ReplicaKey(request.voter_id, request.voter_directory_id)
    endpoints = _endpoints(request.listeners)
    feature = request.kraft_version_feature
    kraft_versions = VersionRange(feature.min_supported_version, feature.max_supported_version)
    if not _is_voter_key(key) or _address(endpoints, core.controller_listener) is None:
        return ErrorCode.INVALID_REQUEST
    if not 0 <= kraft_versions.min <= kraft_versions.max:
        return ErrorCode.INVALID_REQUEST
    leader, latest = _leader(core), core.log.quorum.latest()
    reconfigurable = latest.kraft_version >= RECONFIGURABLE
    voters = latest.voters if reconfigurable else leader.volatile_voters
    if leader.change is not None or not leader.has_committed or voters is None:
        return ErrorCode.REQUEST_TIMED_OUT
    if reconfigurable and not _is_committed(core, latest):
        return ErrorCode.REQUEST_TIMED_OUT
    if latest.kraft_version not in kraft_versions:
        return ErrorCode.INVALID_REQUEST
    updated = voters.updated(VoterNode(key, endpoints, kraft_versions), any_directory=not reconfigurable)
    if updated is None:
        return ErrorCode.VOTER_NOT_FOUND
    if _is_too_large(updated):
        return ErrorCode.INVALID_REQUEST
    if not reconfigurable:
        leader.volatile_voters = updated
    elif updated != voters:
        _append_voters(core, updated)
    core.update_check_quorum(key)
    return None


# --- kraft.version


def upgrade_kraft_version(core: Replica, level: int, validate_only: bool) -> bool:
    """UpdateFeatures wants another kraft.version; False if it is the one in force, KafkaError if it cannot be."""
    leader, latest = core.state.leader, core.log.quorum.latest()
    if leader is None:
        raise KafkaError(
            ErrorCode.NOT_CONTROLLER,
            "Upgrade kraft version failed because the replica is not the current leader",
        )
    if level == latest.kraft_version:
        return False
    change = f"Invalid upgrade of {KRAFT_VERSION} from version {latest.kraft_version} to {level}"
    if level < latest.kraft_version:
        message = f"{change} because the new version is a downgrade"
        raise KafkaError(ErrorCode.INVALID_UPDATE_VERSION, message)
    voters = leader.volatile_voters
    if voters is None:
        raise KafkaError(ErrorCode.INVALID_UPDATE_VERSION, change)
    # A voter that has not reported yet supports version 0 alone, and its directory is not known.
    if not voters.supports(level) or any(v.key.directory_id == ZERO_UUID for v in voters.voters.values()):
        message = f"Invalid upgrade of {KRAFT_VERSION} to {level} because not all of the voters support it"
        raise KafkaError(ErrorCode.INVALID_UPDATE_VERSION, message)
    if not validate_only:
        leader.volatile_voters = None
        version = KRaftVersionRecord(version=0, kraft_version=level)
        core.append_control(
            [
                (ControlType.KRAFT_VERSION, encode(version, 0)),
                (ControlType.KRAFT_VOTERS, encode(voters.to_record(), 0)),
            ]
        )
    return True


# --- the end of a change


def high_watermark_updated(core: Replica, leader: LeaderState) -> None:
    """More is committed: the change, perhaps."""
    change = leader.change
    if change is not None and change.offset is not None and core.state.high_watermark > change.offset:
        _finish(core, leader, ErrorCode.NONE, None)


def expire(core: Replica, leader: LeaderState) -> None:
    """A change that takes too long is answered so; what is appended may be committed all the same."""
    if leader.change is not None and core.now_ms >= leader.change.deadline_ms:
        _finish(core, leader, ErrorCode.REQUEST_TIMED_OUT, SENTENCES[ErrorCode.REQUEST_TIMED_OUT])


def stopped_leading(core: Replica, leader: LeaderState) -> None:
    """Whether the change is committed is for the next leader to find out."""
    error = ErrorCode.NOT_LEADER_OR_FOLLOWER
    _finish(core, leader, error, SENTENCES[error])


def _finish(core: Replica, leader: LeaderState, error: ErrorCode, message: str | None) -> None:
    if leader.change is not None:
        _answer(core, leader.change, error, message)
        leader.change = None


def _answer(core: Replica, change: VoterChange, error: ErrorCode, message: str | None) -> None:
    if change.token is not None:
        core.answer(change.token, change.response(error_code=error, error_message=message))
        change.token = None


# --- checks


def _leader(core: Replica) -> LeaderState:
    leader = core.state.leader
    assert leader is not None, "only a leader gets this far"
    return leader


def _refused_request(core: Replica, cluster_id: str | None, key: ReplicaKey, name: str) -> Refusal | None:
    if core.is_foreign(cluster_id):
        message = f'The given id "{cluster_id}" doesn\'t match the cluster id "{core.cluster_id}"'
        return ErrorCode.INCONSISTENT_CLUSTER_ID, message
    error = core.state.leader_request_error(core.state.epoch)
    if error is not None:
        return error, None
    if not _is_voter_key(key):
        return ErrorCode.INVALID_REQUEST, f"{name} voter request didn't include a valid voter"
    return None


def _refused_change(core: Replica, what: str) -> Refusal | None:
    """Why nobody can be added or removed now."""
    leader, latest = _leader(core), core.log.quorum.latest()
    waiting = "Request timed out waiting for"
    if leader.change is not None:
        return ErrorCode.REQUEST_TIMED_OUT, f"{waiting} leader to handle previous voter change request"
    if not leader.has_committed:
        message = f"{waiting} leader to establish HWM and fence previous voter changes"
        return ErrorCode.REQUEST_TIMED_OUT, message
    if latest.kraft_version < RECONFIGURABLE:
        message = f"Cluster doesn't support {what} voter because the {KRAFT_VERSION} feature is 0"
        return ErrorCode.UNSUPPORTED_VERSION, message
    if not _is_committed(core, latest):
        message = (
            f"{waiting} voters to commit the latest voter change at Optional[{latest.voters_offset}] "
            f"with HWM {core.state.high_watermark}"
        )
        return ErrorCode.REQUEST_TIMED_OUT, message
    return None


def _is_committed(core: Replica, entry: QuorumEntry) -> bool:
    return entry.voters_offset < core.state.high_watermark


def _is_too_large(voters: VoterSet) -> bool:
    return len(encode(voters.to_record(), 0)) > MAX_VOTERS_BYTES


def _append_voters(core: Replica, voters: VoterSet) -> int:
    return core.append_control([(ControlType.KRAFT_VOTERS, encode(voters.to_record(), 0))])


def _endpoints(listeners: Sequence[m.Listener]) -> tuple[Endpoint, ...]:
    return tuple(Endpoint(e.name, e.host, e.port) for e in listeners)


def _address(endpoints: Sequence[Endpoint], listener: str) -> Endpoint | None:
    return next((endpoint for endpoint in endpoints if endpoint.listener == listener), None)


def _is_voter_key(voter: ReplicaKey) -> bool:
    return voter.id >= 0 and voter.directory_id != ZERO_UUID


def _text(voter: ReplicaKey) -> str:
    directory = "<undefined>" if voter.directory_id == ZERO_UUID else uuid_to_str(Uuid(voter.directory_id))
    return f"ReplicaKey(id={voter.id}, directoryId={directory})"


def _all(voters: VoterSet) -> str:
    return f"[{', '.join(_text(voter.key) for voter in voters.voters.values())}]"
