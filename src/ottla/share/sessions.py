"""Share sessions (KIP-932): the broker remembers which partitions a member of a share group fetches from.

A session belongs to a member of a group and to the connection it was opened on; when that closes the session is
closed with it, and what the member held is released. The first request opens it with epoch 0, each further one says
the epoch that is due, and -1 closes it. Requests name only what is added or forgotten, answers only what there is to
say.

Owner: the broker's loop; one cache serves all listeners.
"""

from collections.abc import Hashable, Iterable
from typing import NamedTuple

from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import Uuid, next_session_epoch

INITIAL_EPOCH = 0
FINAL_EPOCH = -1


class CachedSharePartition(NamedTuple):
    """A partition that a member fetches from; the name is None if its id was not known when it was added."""

    topic_id: Uuid
    partition: int
    topic: str | None

    @property
    def key(self) -> tuple[Uuid, int]:
        return self.topic_id, self.partition


class ShareSessionKey(NamedTuple):
    """Whose session it is."""

    group_id: str
    member_id: str


class ShareSession:
    """One member's session."""

    __slots__ = ("_to_answer", "connection", "epoch", "key", "partitions")

    def __init__(
        self, key: ShareSessionKey, connection: Hashable, partitions: Iterable[CachedSharePartition]
    ) -> None:
        self.key = key
        self.connection = connection
        self.epoch = next_session_epoch(INITIAL_EPOCH)
        # In the order of reading: one that had records goes to the back.
        self.partitions: dict[tuple[Uuid, int], CachedSharePartition] = {}
        # Partitions to be named in the next answer even if there is nothing to say of them.
        self._to_answer: set[tuple[Uuid, int]] = set()
        for partition in partitions:
            if partition.key in self.partitions:
                raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{partition} is named twice")
            self.partitions[partition.key] = partition

    def update(self, added: Iterable[CachedSharePartition], forgotten: Iterable[tuple[Uuid, int]]) -> None:
        for partition in added:
            if partition.key not in self.partitions:
                self.partitions[partition.key] = partition
                self._to_answer.add(partition.key)
        for key in forgotten:
            self.partitions.pop(key, None)
            self._to_answer.discard(key)

    def must_answer(self, key: tuple[Uuid, int], has_records: bool, has_error: bool) -> bool:
        """Note what an answer would say of a partition; True if the partition has to be in it."""
        must = has_records or has_error or key in self._to_answer
        self._to_answer.discard(key)
        if has_error:
            self._to_answer.add(key)  # the next answer says that the error is gone
        if has_records and key in self.partitions:
            self.partitions[key] = self.partitions.pop(key)
        return must


class ShareFetchContext(NamedTuple):
    """What a share fetch reads, and how to answer it; no session if it is the first request or the last."""

    partitions: list[CachedSharePartition]
    session: ShareSession | None
    expected_epoch: int = -1

    def is_current(self) -> bool:
        """Has no other request of the session come since?"""
        return self.session is None or self.session.epoch == self.expected_epoch


class ShareSessionCache:
    """The sessions of a broker."""

    def __init__(self) -> None:
        self._sessions: dict[ShareSessionKey, ShareSession] = {}
        self._members: dict[str, int] = {}
        self._by_connection: dict[Hashable, dict[ShareSessionKey, ShareSession]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, key: ShareSessionKey) -> ShareSession | None:
        return self._sessions.get(key)

    def new_context(
        self,
        key: ShareSessionKey,
        epoch: int,
        wanted: list[CachedSharePartition],
        forgotten: Iterable[tuple[Uuid, int]],
        *,
        acknowledges: bool,
        connection: Hashable,
        max_sessions: int,
    ) -> ShareFetchContext:
        """What this fetch reads; KafkaError for a session that is not as the client believes."""
        if epoch == FINAL_EPOCH:
            self._require(key)
            return ShareFetchContext([], None)
        if epoch == INITIAL_EPOCH:
            if acknowledges:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "nothing can be acknowledged before a session")
            self._open(key, connection, wanted, max_sessions)
            return ShareFetchContext(wanted, None)
        session = self._require(key)
        self._step(session, epoch)
        session.update(wanted, forgotten)
        return ShareFetchContext(list(session.partitions.values()), session, session.epoch)

    def acknowledging(self, key: ShareSessionKey, epoch: int) -> None:
        """A request that only acknowledges; KafkaError as for `new_context`."""
        if epoch == INITIAL_EPOCH:
            raise KafkaError(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
        session = self._require(key)
        if epoch != FINAL_EPOCH:
            self._step(session, epoch)

    def remove(self, key: ShareSessionKey) -> ShareSession | None:
        """Close a session; None if there is none."""
        session = self._sessions.pop(key, None)
        if session is None:
            return None
        left = self._members[key.group_id] - 1
        if left:
            self._members[key.group_id] = left
        else:
            del self._members[key.group_id]
        opened = self._by_connection[session.connection]
        del opened[key]
        if not opened:
            del self._by_connection[session.connection]
        return session

    def opened_on(self, connection: Hashable) -> list[ShareSessionKey]:
        """The sessions that a connection has open."""
        return list(self._by_connection.get(connection, ()))

    def has_members(self, group_id: str) -> bool:
        """Has a group sessions here?"""
        return group_id in self._members

    def clear(self) -> None:
        self._sessions.clear()
        self._members.clear()
        self._by_connection.clear()

    def _open(
        self,
        key: ShareSessionKey,
        connection: Hashable,
        wanted: list[CachedSharePartition],
        max_sessions: int,
    ) -> None:
        self.remove(key)
        session = ShareSession(key, connection, wanted)
        if len(self._sessions) >= max_sessions:
            raise KafkaError(ErrorCode.SHARE_SESSION_LIMIT_REACHED)
        self._sessions[key] = session
        self._members[key.group_id] = self._members.get(key.group_id, 0) + 1
        self._by_connection.setdefault(connection, {})[key] = session

    def _require(self, key: ShareSessionKey) -> ShareSession:
        session = self._sessions.get(key)
        if session is None:
            raise KafkaError(ErrorCode.SHARE_SESSION_NOT_FOUND)
        return session

    def _step(self, session: ShareSession, epoch: int) -> None:
        if session.epoch != epoch:
            raise KafkaError(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
        session.epoch = next_session_epoch(session.epoch)
