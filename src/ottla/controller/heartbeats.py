"""Who was heard from when: the soft state of brokers that Kafka never logs.

Rules: owned by the active controller and rebuilt when it becomes active (every broker then has a fresh
session). Never consulted on replay. `now_ms` is monotonic time.
"""

from dataclasses import dataclass

from ottla.metadata.image import ClusterImage


@dataclass(slots=True)
class _Session:
    epoch: int
    last_contact_ms: float
    metadata_offset: int = -1
    # The offset of the broker's last loss of leadership: others must have seen it before it may go.
    controlled_shutdown_offset: int = -1
    # Could the broker still be alive? Not the one that shares its node with a controller that has just started.
    may_live: bool = True


class Heartbeats:
    """Sessions of registered brokers."""

    def __init__(self, session_timeout_ms: int) -> None:
        self._session_timeout_ms = session_timeout_ms
        self._sessions: dict[int, _Session] = {}

    def start(self, image: ClusterImage, own_node_id: int, now_ms: float) -> None:
        """A controller that has just become active gives every unfenced broker time to be heard from.

        The broker of its own node cannot be alive in an earlier life, so it may register at once.
        """
        self._sessions = {
            broker.id: _Session(broker.epoch, now_ms, may_live=broker.id != own_node_id)
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

    def may_shut_down(self, broker_id: int, image: ClusterImage) -> bool:
        """Have all active brokers seen that the broker no longer leads anything?"""
        session = self._sessions.get(broker_id)
        wanted = session.controlled_shutdown_offset if session is not None else -1
        return all(
            self._sessions[other.id].metadata_offset >= wanted
            for other in image.brokers.values()
            if other.active and other.id in self._sessions
        )
