"""Kafka's FileQuorumStateStore, the `quorum-state` file: the epoch, the leader and the vote, which must survive.

Rules: the file is on disk before an answer depends on what it says; it is replaced, never rewritten. The format is
Kafka's: one line of JSON, data_version 0 with static voters and 1 with voters in the log. Nothing is written that
could not be read again.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ottla.model.durable import replace_file
from ottla.model.ids import ZERO_UUID, uuid_from_str, uuid_to_str
from ottla.raft.voters import ReplicaKey

FILE_NAME = "quorum-state"
MAX_FILE_BYTES = 1 << 20
NONE = -1
# Epochs and node ids are 32 bits wide, here, on the wire and in every batch of the log.
MIN_INT32: Final = -(1 << 31)
MAX_INT32: Final = (1 << 31) - 1
MAX_EPOCH: Final = MAX_INT32
# What a sole voter may do about a file that it cannot use: it has voted for nobody but itself.
REMEDY: Final = (
    "the only voter of a quorum finds its epoch in the log as well: move the file away and start again"
)


class QuorumStateError(Exception):
    """The file is there, but is not a quorum-state: guessing would risk a second vote in one epoch."""


@dataclass(frozen=True, slots=True)
class ElectionState:
    """What a voter may never forget: the epoch, who leads it, and whom it has voted for in it."""

    epoch: int
    leader_id: int = NONE
    voted: ReplicaKey | None = None
    # Only files of version 0 name them: static voters are nowhere else on disk.
    voters: frozenset[int] = frozenset()

    def to_json(self, kraft_version: int) -> str:
        voted = self.voted or ReplicaKey(NONE)
        state: dict[str, object]
        if kraft_version == 0:
            state = {
                "clusterId": "",
                "leaderId": self.leader_id,
                "leaderEpoch": self.epoch,
                "votedId": voted.id,
                "appliedOffset": 0,
                "currentVoters": [{"voterId": voter} for voter in sorted(self.voters)],
                "data_version": 0,
            }
        else:
            state = {
                "leaderId": self.leader_id,
                "leaderEpoch": self.epoch,
                "votedId": voted.id,
                "votedDirectoryId": uuid_to_str(voted.directory_id),
                "data_version": 1,
            }
        return json.dumps(state, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "ElectionState":
        try:
            return cls._from_json(text)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise QuorumStateError(f"not a quorum-state: {_reason(error)}") from None

    @classmethod
    def _from_json(cls, text: str) -> "ElectionState":
        state = json.loads(text)
        version = state["data_version"]
        if version not in (0, 1):
            raise ValueError(
                f"data_version ({version}) is not within the min (0) and max (1) supported version"
            )
        voted_id = _number(state, "votedId", NONE)
        directory = uuid_from_str(state["votedDirectoryId"]) if version == 1 else ZERO_UUID
        return cls(
            # Apache's counter goes round at its end, and what it then wrote is older than any log.
            epoch=_number(state, "leaderEpoch", MIN_INT32),
            leader_id=_number(state, "leaderId", NONE),
            voted=None if voted_id == NONE else ReplicaKey(voted_id, directory),
            voters=frozenset(_number(v, "voterId", 0) for v in state.get("currentVoters") or ()),
        )


def _number(fields: Any, name: str, least: int) -> int:
    value = fields[name]
    if type(value) is not int or not least <= value <= MAX_INT32:
        raise ValueError(f"{name} is {value!r:.40}, allowed are {least} to {MAX_INT32}")
    return value


def _reason(error: Exception) -> str:
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)


class QuorumStateFile:
    """Reads and replaces the file. Blocking, and short: called at elections only."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / FILE_NAME

    def read(self) -> ElectionState | None:
        """What was last written; None if nothing was."""
        try:
            with self.path.open("rb") as file:
                text = file.read(MAX_FILE_BYTES + 1)
        except FileNotFoundError:
            return None
        if len(text) > MAX_FILE_BYTES:
            raise self.unusable("too large to be a quorum-state")
        try:
            return ElectionState.from_json(text.decode("utf-8"))
        except (QuorumStateError, UnicodeDecodeError) as error:
            raise self.unusable(str(error)) from None

    def unusable(self, why: str) -> QuorumStateError:
        """One line for the operator: which file, what is wrong with it, what to do."""
        return QuorumStateError(f"{self.path}: {why}; {REMEDY}")

    def write(self, state: ElectionState, kraft_version: int) -> None:
        """Puts the state on disk; when this returns, it will be read after a crash."""
        if not 0 <= state.epoch <= MAX_EPOCH:
            raise QuorumStateError(
                f"{self.path}: epoch {state.epoch} cannot be written: the last is {MAX_EPOCH}"
            )
        replace_file(self.path, [state.to_json(kraft_version).encode("utf-8")])
