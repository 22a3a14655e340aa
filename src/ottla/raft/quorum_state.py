"""The `quorum-state` file: the epoch, the leader and the vote, which must survive whatever happens.

Rules: the file is on disk before anyone is told what it says; it is replaced, never rewritten. The format is
Kafka's: one line of JSON, data_version 0 with static voters and 1 with voters in the log.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path

from ottla.metadata.checkpoint import fsync_directory
from ottla.model.ids import ZERO_UUID, uuid_from_str, uuid_to_str
from ottla.raft.voters import ReplicaKey

FILE_NAME = "quorum-state"
MAX_FILE_BYTES = 1 << 20
NONE = -1


class QuorumStateError(Exception):
    """The file is there, but is not a quorum-state: guessing would risk a second vote in one epoch."""


@dataclass(frozen=True, slots=True)
class ElectionState:
    """What a voter may never forget: the epoch, who leads it, and whom it has voted for in it."""

    epoch: int
    leader_id: int = NONE
    voted: ReplicaKey | None = None
    # Only files of version 0 name them: where the voters are static and nothing else on disk tells.
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
            raise QuorumStateError(f"not a quorum-state: {error!r}") from None

    @classmethod
    def _from_json(cls, text: str) -> "ElectionState":
        state = json.loads(text)
        version = state["data_version"]
        if version not in (0, 1):
            raise ValueError(
                f"data_version ({version}) is not within the min (0) and max (1) supported version"
            )
        voted_id = int(state["votedId"])
        directory = uuid_from_str(state["votedDirectoryId"]) if version == 1 else ZERO_UUID
        return cls(
            epoch=int(state["leaderEpoch"]),
            leader_id=int(state["leaderId"]),
            voted=None if voted_id == NONE else ReplicaKey(voted_id, directory),
            voters=frozenset(int(v["voterId"]) for v in state.get("currentVoters") or ()),
        )


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
            raise QuorumStateError(f"{self.path} is too large to be a quorum-state")
        try:
            return ElectionState.from_json(text.decode("utf-8"))
        except (QuorumStateError, UnicodeDecodeError) as error:
            raise QuorumStateError(f"{self.path}: {error}") from None

    def write(self, state: ElectionState, kraft_version: int) -> None:
        """Puts the state on disk; when this returns, it will be read after a crash."""
        temporary = self.path.with_name(FILE_NAME + ".tmp")
        with temporary.open("wb") as file:
            file.write(state.to_json(kraft_version).encode("utf-8"))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self.path)
        fsync_directory(self.path.parent)
