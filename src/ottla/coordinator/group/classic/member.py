"""A member of a classic group: what it said of itself, what it was assigned, what it waits for.

Owner: a ClassicGroup. Everything here is soft: a new coordinator knows only what the last record of the group says.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ottla.model.pending import Pending
from ottla.wire.messages.groups import JoinGroupResponse, SyncGroupResponse

NO_ASSIGNMENT: Final = b""
NEVER: Final = float("inf")

# The assignors a member knows, the one it likes best first, each with its subscription in that assignor's terms.
Protocols = tuple[tuple[str, bytes], ...]
# What holding one of them takes, beside its bytes.
PROTOCOL_OVERHEAD_BYTES: Final = 200


def size_of(protocols: Protocols) -> int:
    """What holding them takes."""
    return sum(len(name) + len(metadata) + PROTOCOL_OVERHEAD_BYTES for name, metadata in protocols)


@dataclass(slots=True, eq=False)
class Member:
    """See the module."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: Protocols
    assignment: bytes = NO_ASSIGNMENT
    # Requests that are parked until the others have joined, until the leader has assigned.
    awaiting_join: Pending[JoinGroupResponse] | None = None
    awaiting_sync: Pending[SyncGroupResponse] | None = None
    # Has it never been in a generation? Its client may be gone while its first join is parked.
    is_new: bool = False
    # When it counts as gone unless it is heard of before.
    deadline_ms: float = NEVER
    # By name, for looking up.
    metadata: Mapping[str, bytes] = field(init=False)

    def __post_init__(self) -> None:
        self.metadata = dict(self.protocols)

    @property
    def is_static(self) -> bool:
        return self.group_instance_id is not None

    @property
    def excused(self) -> bool:
        """Need it not send heartbeats? It cannot while it waits; but a new one must not wait for ever."""
        return not self.is_new and (self.awaiting_join is not None or self.awaiting_sync is not None)

    def set_protocols(self, protocols: Protocols) -> None:
        self.protocols = protocols
        self.metadata = dict(protocols)
