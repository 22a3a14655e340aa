"""One decision about a classic group in the making: the records and effects it will give back."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ottla.coordinator.group.classic.group import ClassicGroup
from ottla.coordinator.group.classic.member import Member
from ottla.coordinator.result import Answer, CoordinatorRecord, Effect, Result
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.pending import Pending
from ottla.wire.messages.groups import JoinGroupResponse, SyncGroupResponse

T = TypeVar("T")


class Turn:
    """Made for a request or a timer, and used up by `result`."""

    __slots__ = ("effects", "now_ms", "on_failure", "records")

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.records: list[CoordinatorRecord] = []
        self.effects: list[Effect] = []
        self.on_failure: Callable[[KafkaError], Sequence[Effect]] | None = None

    def result(self, response: T | Pending[T]) -> Result[T]:
        return Result(response, self.records, self.effects, self.on_failure)

    def answer_join(self, group: ClassicGroup, member: Member, response: JoinGroupResponse) -> None:
        """Answer a member's parked join, if there is one."""
        if member.awaiting_join is not None:
            self.effects.append(Answer(member.awaiting_join, response))
            member.awaiting_join = None
            group.awaiting_join_count -= 1

    def answer_sync(self, member: Member, response: SyncGroupResponse) -> bool:
        """Answer a member's parked sync, if there is one."""
        if member.awaiting_sync is None:
            return False
        self.effects.append(Answer(member.awaiting_sync, response))
        member.awaiting_sync = None
        return True


def join_error(code: ErrorCode, member_id: str) -> JoinGroupResponse:
    return JoinGroupResponse(
        error_code=int(code), protocol_name=None, leader="", member_id=member_id, members=[]
    )


def sync_error(code: ErrorCode) -> SyncGroupResponse:
    return SyncGroupResponse(error_code=int(code), assignment=b"")


def park(older: Pending[Any] | None) -> Pending[Any]:
    """A place for an answer; a request that the same member sent before and gave up gets the same one."""
    parked: Pending[Any] = Pending()
    if older is not None:
        parked.then(lambda done: _pass_on(done, older))
    return parked


def _pass_on(done: Pending[Any], older: Pending[Any]) -> None:
    if older.done:
        return
    if done.error is not None:
        older.fail(done.error)
    else:
        older.resolve(done.result())
