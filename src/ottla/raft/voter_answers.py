"""Requests to change the voters (KIP-853), as a quorum that stays one voter answers them.

Rules: pure. The sole voter cannot be removed, and no other is added: a node that asks is told that it is not
ready, which Kafka's own tools take as a reason to try again later. See answers.py for the rest.
"""

from ottla.model.errors import ErrorCode
from ottla.model.ids import ZERO_UUID, Uuid, uuid_to_str
from ottla.raft import core
from ottla.raft.core import QuorumState
from ottla.raft.voters import ReplicaKey
from ottla.wire.messages import raft as m


def add_voter(
    state: QuorumState,
    cluster_id: str,
    kraft_version: int,
    request: m.AddRaftVoterRequest,
    listener: str | None = None,
) -> m.AddRaftVoterResponse:
    """A controller wants a vote."""
    error, message = _refusal(state, cluster_id, request.cluster_id)
    voter = ReplicaKey(request.voter_id, request.voter_directory_id)
    names = [endpoint.name for endpoint in request.listeners]
    if error is None:
        if not _is_voter_key(voter):
            error, message = ErrorCode.INVALID_REQUEST, "Add voter request didn't include a valid voter"
        elif listener is not None and listener not in names:
            error = ErrorCode.INVALID_REQUEST
            message = f"Add voter request didn't include the endpoint for the default listener {listener}"
        elif kraft_version == 0:
            error, message = ErrorCode.UNSUPPORTED_VERSION, _unsupported("adding")
        elif voter.id in state.voters.ids:
            error = ErrorCode.DUPLICATE_VOTER
            message = f"The voter id for {_text(voter)} is already part of the set of voters {_all(state)}."
        else:
            error = ErrorCode.REQUEST_TIMED_OUT
            message = f"New voter {_text(voter)} is not ready to receive requests"
    return m.AddRaftVoterResponse(error_code=error or 0, error_message=message)


def remove_voter(
    state: QuorumState, cluster_id: str, kraft_version: int, request: m.RemoveRaftVoterRequest
) -> m.RemoveRaftVoterResponse:
    """A vote is to be taken away."""
    error, message = _refusal(state, cluster_id, request.cluster_id)
    voter = ReplicaKey(request.voter_id, request.voter_directory_id)
    if error is None:
        if not _is_voter_key(voter):
            error, message = ErrorCode.INVALID_REQUEST, "Remove voter request didn't include a valid voter"
        elif kraft_version == 0:
            error, message = ErrorCode.UNSUPPORTED_VERSION, _unsupported("removing")
        else:
            error = ErrorCode.VOTER_NOT_FOUND
            message = f"Cannot remove voter {_text(voter)} from the set of voters {_all(state)}"
    return m.RemoveRaftVoterResponse(error_code=error or 0, error_message=message)


def update_voter(
    state: QuorumState, cluster_id: str, request: m.UpdateRaftVoterRequest
) -> m.UpdateRaftVoterResponse:
    """A voter reports where it is reached; the sole one writes that down itself when it is elected."""
    voter = ReplicaKey(request.voter_id, request.voter_directory_id)
    error = core.leader_request_error(state, request.current_leader_epoch)
    if request.cluster_id is not None and request.cluster_id != cluster_id:
        error = ErrorCode.INCONSISTENT_CLUSTER_ID
    elif error is None:
        known = _is_voter_key(voter) and not state.voters.contains(voter)
        error = ErrorCode.VOTER_NOT_FOUND if known else ErrorCode.INVALID_REQUEST
    where = state.voters.listeners(state.leader_id)
    return m.UpdateRaftVoterResponse(
        error_code=error,
        current_leader=m.CurrentLeader(
            leader_id=state.leader_id,
            leader_epoch=state.epoch,
            host=where[0].host if where else "",
            port=where[0].port if where else 0,
        ),
    )


def _refusal(
    state: QuorumState, cluster_id: str, requested: str | None
) -> tuple[ErrorCode | None, str | None]:
    if requested is not None and requested != cluster_id:
        message = f'The given id "{requested}" doesn\'t match the cluster id "{cluster_id}"'
        return ErrorCode.INCONSISTENT_CLUSTER_ID, message
    return core.leader_request_error(state, state.epoch), None


def _is_voter_key(voter: ReplicaKey) -> bool:
    return voter.id >= 0 and voter.directory_id != ZERO_UUID


def _unsupported(what: str) -> str:
    return f"Cluster doesn't support {what} voter because the kraft.version feature is 0"


def _text(voter: ReplicaKey) -> str:
    directory = "<undefined>" if voter.directory_id == ZERO_UUID else uuid_to_str(Uuid(voter.directory_id))
    return f"ReplicaKey(id={voter.id}, directoryId={directory})"


def _all(state: QuorumState) -> str:
    return f"[{', '.join(_text(voter.key) for voter in state.voters.voters.values())}]"
