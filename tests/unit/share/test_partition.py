"""What a share partition gives, hears and remembers, case by case; the figures are those of Apache Kafka."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ottla.model.errors import ErrorCode, KafkaError
from ottla.share.partition import SHARE_TRANSITIONS, SharePartition, SharePartitionState
from ottla.share.state import (
    TERMINAL,
    TRANSITIONS,
    Acknowledgement,
    Acquired,
    AcquireParams,
    Fetched,
    Limits,
    PersistedState,
    PersisterStateBatch,
    RecordState,
    ShareAcquireMode,
)

GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
AVAILABLE, ACQUIRED, ACKNOWLEDGED, ARCHIVED = (
    RecordState.AVAILABLE,
    RecordState.ACQUIRED,
    RecordState.ACKNOWLEDGED,
    RecordState.ARCHIVED,
)


class Share:
    """A share partition and a clock."""

    def __init__(
        self, start: int = 0, batches: Sequence[PersisterStateBatch] = (), **limits: int | bool
    ) -> None:
        self.limits = Limits(**limits)  # type: ignore[arg-type]
        self.machine = SharePartition()
        self.machine.become(SharePartitionState.INITIALIZING)
        self.machine.load(PersistedState(3, start, batches), start)
        self.now = 0.0

    def acquire(
        self,
        *batches: tuple[int, int],
        member: str = "a",
        records: int = 500,
        batch_size: int = 500,
        exact: bool = False,
        at: int | None = None,
        aborted: Sequence[tuple[int, int]] = (),
    ) -> list[tuple[int, int, int]]:
        mode = ShareAcquireMode.RECORD_LIMIT if exact else ShareAcquireMode.BATCH_OPTIMIZED
        offset = self.next if at is None else at
        fetched = [Fetched(first, last) for first, last in batches]
        params = AcquireParams(member, records, batch_size, mode)
        got = self.machine.acquire(params, offset, fetched, self.limits, self.now, aborted)
        return [tuple(entry) for entry in got]

    def say(self, *said: tuple[int, int, int | list[int]], member: str = "a", fails: bool = False) -> None:
        entries = [
            Acknowledgement(first, last, kinds if isinstance(kinds, list) else [kinds])
            for first, last, kinds in said
        ]
        transition = self.machine.acknowledge(member, entries, self.limits, self.now)
        self.machine.complete(transition, not fails, self.now)

    def pass_time(self, ms: float) -> list[PersisterStateBatch]:
        self.now += ms
        return self.machine.expire(self.limits, self.now)

    @property
    def next(self) -> int:
        offset = self.machine.fetch_offset(self.limits)
        return -1 if offset is None else offset

    @property
    def bounds(self) -> tuple[int, int]:
        return self.machine.start_offset, self.machine.end_offset

    @property
    def states(self) -> list[tuple[int, int, RecordState, int]]:
        return [(r.first, r.last, r.state, r.delivery_count) for r in self.machine.in_flight.runs()]

    @property
    def complete(self) -> int:
        return self.machine.in_flight.complete_count


def refused(code: ErrorCode, call: object, *args: object, **kwargs: object) -> str:
    with pytest.raises(KafkaError) as error:
        call(*args, **kwargs)  # type: ignore[operator]
    assert error.value.code == code
    return str(error.value)


# ---- acquiring what is new ------------------------------------------------------------------------------------


def test_whole_batches_are_given_up_to_the_one_with_the_last_record_asked_for() -> None:
    share = Share(10)
    assert share.acquire((10, 14), (15, 29), (30, 44), records=10) == [(10, 29, 1)]
    assert share.next == 30
    assert share.bounds == (10, 29)


def test_small_batches_come_together_up_to_the_batch_size() -> None:
    share = Share()
    assert share.acquire((0, 4), (5, 19), (20, 34), records=10, batch_size=2) == [(0, 4, 1), (5, 19, 1)]
    assert Share().acquire((0, 1), (2, 3), (4, 5), (6, 6), batch_size=3) == [(0, 3, 1), (4, 6, 1)]
    assert Share().acquire((0, 9), batch_size=2) == [(0, 9, 1)]


def test_a_record_limit_is_kept_and_the_rest_of_the_batch_stays_free() -> None:
    share = Share(10)
    assert share.acquire((10, 14), (15, 29), (30, 44), records=10, exact=True) == [(10, 19, 1)]
    assert share.next == 20
    assert share.states == [(10, 19, ACQUIRED, 1), (20, 29, AVAILABLE, 0)]
    assert share.acquire((15, 29), member="b", records=5, exact=True) == [(20, 24, 1)]


def test_a_record_limit_takes_from_the_next_batch_what_the_first_lacks() -> None:
    share = Share()
    assert share.acquire((0, 4), records=3, exact=True) == [(0, 2, 1)]
    assert share.acquire((0, 4), (5, 9), records=3, exact=True, at=0) == [(3, 4, 1), (5, 5, 1)]
    assert share.next == 6


def test_nothing_is_given_before_the_start() -> None:
    share = Share(20)
    assert share.acquire((0, 9), at=20) == []
    assert share.acquire((10, 29), at=20) == [(20, 29, 1)]


def test_nothing_is_given_before_it_is_loaded_or_after_it_is_fenced() -> None:
    machine = SharePartition()
    params, fetched, limits = AcquireParams("a", 10), [Fetched(0, 9)], Limits()
    assert machine.fetch_offset(limits) is None
    assert machine.acquire(params, 0, fetched, limits, 0) == []
    share = Share()
    share.machine.become(SharePartitionState.FENCED)
    assert share.next == -1
    assert share.acquire((0, 9), at=0) == []


def test_nothing_read_or_nothing_wanted_gives_nothing() -> None:
    share = Share()
    assert share.acquire() == []
    assert share.acquire((0, 9), records=0) == []


# ---- the limit of records in flight -----------------------------------------------------------------------------


def test_no_more_are_in_flight_than_allowed_but_for_the_last_batch() -> None:
    share = Share(max_in_flight=20)
    assert share.acquire((0, 14)) == [(0, 14, 1)]
    assert share.acquire((15, 24), (25, 30)) == [(15, 24, 1)]
    assert share.next == -1


def test_what_is_released_can_be_taken_again_at_the_limit_and_nothing_beyond_it() -> None:
    share = Share(max_in_flight=20)
    for first, last in ((0, 4), (5, 9), (10, 14), (15, 24)):
        share.acquire((first, last))
    share.say((5, 9, RELEASE))
    assert share.next == 5
    assert share.acquire((5, 9), (10, 14), (15, 24), (25, 34), records=6) == [(5, 9, 2)]
    assert share.next == -1


def test_room_comes_back_when_the_start_moves() -> None:
    share = Share(max_in_flight=20)
    share.acquire((0, 19))
    assert share.next == -1
    share.say((0, 9, ACCEPT))
    assert share.next == 20


# ---- acknowledging ----------------------------------------------------------------------------------------------


def test_accepted_records_move_the_start() -> None:
    share = Share()
    share.acquire((0, 9), (10, 19))
    share.say((0, 9, ACCEPT))
    assert share.bounds == (10, 19)
    share.say((10, 19, ACCEPT))
    assert share.bounds == (20, 20)
    assert (share.next, share.states, share.complete) == (20, [], 0)


def test_rejected_records_and_gaps_are_archived() -> None:
    share = Share()
    share.acquire((0, 9))
    share.say((2, 3, REJECT), (4, 4, GAP))
    assert share.states[1:3] == [(2, 3, ARCHIVED, 1), (4, 4, ARCHIVED, 1)]
    assert (share.bounds, share.complete) == ((0, 9), 3)


def test_each_record_can_have_an_answer_of_its_own() -> None:
    share = Share()
    share.acquire((0, 5))
    share.say((0, 5, [ACCEPT, ACCEPT, RELEASE, GAP, REJECT, RELEASE]))
    assert share.states == [
        (2, 2, AVAILABLE, 1),
        (3, 3, ARCHIVED, 1),
        (4, 4, ARCHIVED, 1),
        (5, 5, AVAILABLE, 1),
    ]
    assert share.next == 2
    assert share.acquire((0, 5), member="b") == [(2, 2, 2), (5, 5, 2)]


def test_only_the_holder_may_say_anything() -> None:
    share = Share()
    share.acquire((0, 9))
    message = refused(ErrorCode.INVALID_RECORD_STATE, share.say, (0, 9, ACCEPT), member="b")
    assert message == "Member is not the owner of batch record"
    share.say((0, 4, RELEASE))
    share.acquire((0, 9), member="b", at=0)
    message = refused(ErrorCode.INVALID_RECORD_STATE, share.say, (0, 9, ACCEPT), member="b")
    assert message == "Member is not the owner of offset"


def test_what_nobody_holds_cannot_be_acknowledged() -> None:
    share = Share()
    message = refused(ErrorCode.INVALID_RECORD_STATE, share.say, (0, 9, ACCEPT))
    assert message == "Batch record not found. The request batch offsets are not found in the cache."
    share.acquire((0, 9), (10, 19), batch_size=1)
    share.say((0, 9, RELEASE))
    message = refused(ErrorCode.INVALID_RECORD_STATE, share.say, (0, 9, ACCEPT))
    assert message == "The batch cannot be acknowledged. The batch is not in the acquired state."
    share.say((10, 14, RELEASE))
    message = refused(ErrorCode.INVALID_RECORD_STATE, share.say, (10, 11, ACCEPT))
    assert message == "The offset cannot be acknowledged. The offset is not acquired."


def test_offsets_beyond_what_is_in_flight_are_an_invalid_request() -> None:
    share = Share()
    share.acquire((0, 9))
    message = refused(ErrorCode.INVALID_REQUEST, share.say, (20, 21, ACCEPT))
    assert message == "Batch record not found. The first offset in request is past acquired records."
    message = refused(ErrorCode.INVALID_REQUEST, share.say, (5, 10, ACCEPT))
    assert message == "Batch record not found. The last offset in request is past acquired records."
    assert refused(ErrorCode.INVALID_REQUEST, share.say, (0, 9, 7)) == "Invalid acknowledge type: [7]"


def test_what_is_done_may_be_said_again() -> None:
    share = Share()
    share.acquire((0, 9))
    share.say((0, 4, ACCEPT))
    share.say((0, 4, REJECT))
    share.say((2, 9, ACCEPT))
    assert share.bounds == (10, 10)


def test_nothing_of_a_request_counts_if_a_part_is_refused() -> None:
    share = Share()
    share.acquire((0, 9))
    share.acquire((10, 19), member="b")
    before = share.states
    refused(ErrorCode.INVALID_RECORD_STATE, share.say, (0, 9, ACCEPT), (10, 19, ACCEPT))
    assert (share.states, share.complete) == (before, 0)
    share.say((0, 9, ACCEPT))
    assert share.bounds == (10, 19)


# ---- writes that take time or fail ------------------------------------------------------------------------------


def test_what_is_being_written_is_nobodys() -> None:
    share = Share()
    share.acquire((0, 9))
    transition = share.machine.release("a", share.limits)
    assert share.next == 10
    assert share.acquire((0, 9), member="b", at=0) == []
    refused(ErrorCode.INVALID_RECORD_STATE, share.say, (0, 9, ACCEPT))
    share.machine.complete(transition, True, share.now)
    assert share.next == 0
    assert share.acquire((0, 9), member="b") == [(0, 9, 2)]


def test_a_failed_write_gives_records_back_to_their_holder() -> None:
    share = Share()
    share.acquire((0, 9))
    share.say((0, 9, ACCEPT), fails=True)
    assert (share.states, share.complete, share.bounds) == ([(0, 9, ACQUIRED, 1)], 0, (0, 9))
    share.say((0, 9, ACCEPT))
    assert share.bounds == (10, 10)


def test_a_failed_write_after_the_lock_has_ended_gives_records_to_everybody() -> None:
    share = Share(max_delivery_count=2)
    share.acquire((0, 9))
    transition = share.machine.acknowledge("a", [Acknowledgement(0, 9, [ACCEPT])], share.limits, share.now)
    assert share.pass_time(30_000) == []
    share.machine.complete(transition, False, share.now)
    assert share.states == [(0, 9, AVAILABLE, 1)]
    share.acquire((0, 9))
    transition = share.machine.acknowledge("a", [Acknowledgement(0, 9, [RELEASE])], share.limits, share.now)
    share.now += 30_000
    share.machine.complete(transition, False, share.now)
    assert share.states == [(0, 9, ARCHIVED, 2)]
    assert share.complete == 10


# ---- locks ------------------------------------------------------------------------------------------------------


def test_a_lock_ends_after_its_time() -> None:
    share = Share(lock_duration_ms=100)
    share.acquire((0, 9))
    assert share.machine.expiry_ms == 100
    assert share.pass_time(99) == []
    assert share.pass_time(1) == [(0, 9, 1, AVAILABLE)]
    assert share.machine.expiry_ms is None
    assert share.next == 0
    refused(ErrorCode.INVALID_RECORD_STATE, share.say, (0, 9, ACCEPT))


def test_parts_of_a_batch_keep_the_time_of_the_whole() -> None:
    share = Share(lock_duration_ms=100)
    share.acquire((0, 9))
    share.now = 50
    share.say((0, 4, ACCEPT))
    assert share.pass_time(50) == [(5, 9, 1, AVAILABLE)]


def test_renewing_holds_records_for_longer() -> None:
    share = Share(lock_duration_ms=100)
    share.acquire((0, 9))
    share.now = 60
    share.say((0, 4, RENEW))
    assert share.pass_time(40) == [(5, 9, 1, AVAILABLE)]
    assert share.machine.expiry_ms == 160
    share.say((0, 4, [RENEW, ACCEPT, RENEW, RENEW, RENEW]))
    assert share.pass_time(60) == []
    assert share.pass_time(40) == [(0, 0, 1, AVAILABLE), (2, 4, 1, AVAILABLE)]


def test_a_refused_request_renews_nothing() -> None:
    share = Share(lock_duration_ms=100)
    share.acquire((0, 4))
    share.acquire((5, 9))
    share.now = 60
    said = (0, 4, RENEW), (1, 2, ACCEPT), (9, 9, GAP), (5, 9, RENEW)  # the last one has 9 again
    refused(ErrorCode.INVALID_RECORD_STATE, share.say, *said)
    assert {run.lock_until_ms for run in share.machine.in_flight.runs()} == {100}
    freed = [(batch.first_offset, batch.last_offset) for batch in share.pass_time(40)]
    assert freed == [(0, 0), (1, 2), (3, 4), (5, 8), (9, 9)]


def test_what_is_renewed_and_acknowledged_at_once_is_held_for_longer_if_that_cannot_be_written() -> None:
    share = Share(lock_duration_ms=100)
    share.acquire((0, 4))
    share.now = 60
    share.say((0, 4, RENEW), (1, 2, ACCEPT), fails=True)
    assert [
        (run.first, run.last, run.holder, run.lock_until_ms) for run in share.machine.in_flight.runs()
    ] == [
        (0, 0, "a", 160),
        (1, 2, "a", 160),
        (3, 4, "a", 160),
    ]


def test_renewing_can_be_forbidden() -> None:
    share = Share(renew_enabled=False)
    share.acquire((0, 9))
    for said in ((0, 9, RENEW), (3, 4, RENEW)):
        message = refused(ErrorCode.INVALID_RECORD_STATE, share.say, said)
        assert message == "Renewing acquisition locks is not enabled for the group."


def test_leaving_frees_what_the_member_holds_and_nothing_else() -> None:
    share = Share()
    share.acquire((0, 9))
    share.acquire((10, 19), member="b")
    share.say((0, 3, ACCEPT))
    transition = share.machine.release("a", share.limits)
    assert transition.batches == [(4, 9, 1, AVAILABLE)]
    share.machine.complete(transition, True, share.now)
    assert share.states == [(4, 9, AVAILABLE, 1), (10, 19, ACQUIRED, 1)]


# ---- delivered too often ----------------------------------------------------------------------------------------


def test_what_was_delivered_too_often_is_archived() -> None:
    share = Share(max_delivery_count=2)
    for _ in range(2):
        share.acquire((0, 9))
        share.pass_time(30_000)
    assert share.states == [(0, 9, ARCHIVED, 2)]
    assert (share.next, share.complete) == (10, 10)
    share.machine.in_flight.advance()
    assert share.bounds == (10, 10)


def test_records_that_fail_again_and_again_come_in_smaller_portions_and_alone_at_last() -> None:
    share = Share(max_delivery_count=10)
    sizes: list[int] = []
    for _ in range(10):
        got = share.acquire((0, 499))
        assert len(got) == 1
        sizes.append(got[0][1] - got[0][0] + 1)
        share.pass_time(30_000)
    assert sizes == [500, 500, 500, 500, 500, 250, 125, 62, 31, 1]
    assert share.states[0] == (0, 0, ARCHIVED, 10)
    # Its neighbour is on its last try as well: the two are not delivered together.
    assert share.acquire((0, 499)) == [(1, 1, 10)]


def test_bad_records_are_not_delivered_with_others() -> None:
    share = Share(0, [PersisterStateBatch(0, 9, 1, AVAILABLE), PersisterStateBatch(10, 19, 3, AVAILABLE)])
    assert share.acquire((0, 9), (10, 19), (20, 29)) == [(0, 9, 2)]
    assert share.acquire((10, 19), (20, 29)) == [(10, 14, 4)]
    assert share.acquire((10, 19), (20, 29)) == [(15, 19, 4)]
    assert share.acquire((20, 29)) == [(20, 29, 1)]


def test_a_limit_of_two_deliveries_leaves_nothing_to_isolate() -> None:
    share = Share(max_delivery_count=2)
    share.acquire((0, 9))
    share.pass_time(30_000)
    assert share.acquire((0, 9)) == [(0, 9, 2)]


# ---- what was written down before -------------------------------------------------------------------------------


def test_done_records_at_the_start_are_skipped_when_it_is_loaded() -> None:
    share = Share(
        10, [PersisterStateBatch(10, 14, 1, ACKNOWLEDGED), PersisterStateBatch(15, 19, 2, AVAILABLE)]
    )
    assert (share.bounds, share.next, share.complete) == ((15, 19), 15, 0)
    share = Share(
        10, [PersisterStateBatch(10, 14, 1, ACKNOWLEDGED), PersisterStateBatch(15, 19, 2, ARCHIVED)]
    )
    assert (share.bounds, share.next) == ((20, 20), 20)


def test_holes_in_what_was_written_are_fetched() -> None:
    batches = [
        PersisterStateBatch(15, 18, 2, AVAILABLE),
        PersisterStateBatch(20, 22, 2, ARCHIVED),
        PersisterStateBatch(26, 30, 1, AVAILABLE),
    ]
    share = Share(10, batches)
    assert (share.bounds, share.next, share.complete) == ((10, 30), 10, 3)
    assert share.acquire((3, 4), (6, 6), (8, 11), (13, 22)) == [(10, 14, 1), (15, 18, 3), (19, 19, 1)]
    assert share.next == 23
    assert share.acquire((23, 40)) == [(23, 25, 1), (26, 30, 2), (31, 40, 1)]


def test_records_wanted_end_in_a_hole() -> None:
    share = Share(11, [PersisterStateBatch(21, 30, 2, AVAILABLE), PersisterStateBatch(31, 40, 1, ARCHIVED)])
    assert share.complete == 10
    assert share.acquire((11, 20), (21, 30), records=8) == [(11, 20, 1)]
    assert (share.bounds, share.next) == ((11, 40), 21)


def test_the_start_does_not_pass_a_hole() -> None:
    share = Share(0, [PersisterStateBatch(0, 9, 1, AVAILABLE), PersisterStateBatch(20, 29, 1, ACKNOWLEDGED)])
    assert share.acquire((0, 9)) == [(0, 9, 2)]
    share.say((0, 9, ACCEPT))
    assert (share.bounds, share.next) == ((10, 29), 10)
    assert share.acquire((10, 19), (20, 29)) == [(10, 19, 1)]
    share.say((10, 19, ACCEPT))
    assert (share.bounds, share.next) == ((30, 30), 30)


def test_a_hole_that_the_log_has_too_is_passed() -> None:
    share = Share(0, [PersisterStateBatch(5, 9, 1, ACKNOWLEDGED), PersisterStateBatch(10, 14, 1, AVAILABLE)])
    assert share.next == 0
    assert share.acquire((10, 14)) == [(10, 14, 2)]
    share.say((10, 14, ACCEPT))
    assert share.bounds == (15, 15)


def test_a_count_of_deliveries_as_high_as_can_be_written_does_not_grow() -> None:
    most = (1 << 15) - 1
    share = Share(10, [PersisterStateBatch(10, 14, most, AVAILABLE)])
    # Neither a fetch nor the share coordinator's record has room for one more.
    assert share.acquire((10, 14)) == [(10, 10, most)]
    assert share.pass_time(30_000) == [PersisterStateBatch(10, 10, most, ARCHIVED)]


@pytest.mark.parametrize(
    "batches",
    [
        [PersisterStateBatch(5, 9, 1, AVAILABLE)],
        [PersisterStateBatch(12, 11, 1, AVAILABLE)],
        [PersisterStateBatch(10, 14, 1, AVAILABLE), PersisterStateBatch(12, 19, 1, AVAILABLE)],
        [PersisterStateBatch(10, 14, 1, 9)],
    ],
)
def test_what_cannot_have_been_written_is_refused(batches: list[PersisterStateBatch]) -> None:
    machine = SharePartition()
    machine.become(SharePartitionState.INITIALIZING)
    refused(ErrorCode.UNKNOWN_SERVER_ERROR, machine.load, PersistedState(0, 10, batches), 10)
    assert not machine.is_active


# ---- a log that changes -----------------------------------------------------------------------------------------


def test_what_the_log_loses_at_its_beginning_is_gone() -> None:
    share = Share()
    share.acquire((0, 9), (10, 19), (20, 29), batch_size=1)
    share.say((10, 19, RELEASE), (20, 24, ACCEPT))
    share.machine.move_start(15)
    assert (share.bounds, share.next, share.complete) == ((15, 29), 15, 5)
    share.say((0, 9, ACCEPT))
    share.say((25, 29, ACCEPT))
    assert share.bounds == (15, 29)
    share.machine.move_start(40)
    assert (share.bounds, share.next, share.states, share.complete) == ((40, 40), 40, [], 0)


def test_the_start_never_goes_back() -> None:
    share = Share(20)
    share.machine.move_start(10)
    assert share.bounds == (20, 20)


def test_an_answer_about_records_that_were_lost_meanwhile_counts_for_the_rest() -> None:
    share = Share()
    share.acquire((0, 9))
    share.machine.move_start(5)
    share.say((0, 9, [RELEASE] * 5 + [ACCEPT] * 5))
    assert share.bounds == (10, 10)


def test_a_write_may_end_after_its_records_are_lost() -> None:
    share = Share()
    share.acquire((0, 9))
    transition = share.machine.acknowledge("a", [Acknowledgement(0, 9, [ACCEPT])], share.limits, 0)
    share.machine.move_start(5)
    share.machine.complete(transition, False, 0)
    assert (share.states, share.complete) == ([(5, 9, ACQUIRED, 1)], 0)


def test_free_records_that_compaction_removed_are_archived() -> None:
    share = Share()
    share.acquire((0, 9), (10, 19), (20, 29), batch_size=1)
    share.pass_time(30_000)
    assert share.acquire((20, 29), at=0) == [(20, 29, 2)]
    assert share.bounds == (20, 29)


def test_records_of_aborted_transactions_are_archived_and_not_given() -> None:
    share = Share()
    got = share.acquire((0, 9), (10, 14), (15, 15), (16, 25), aborted=[(5, 9), (10, 14)])
    assert got == [(0, 4, 1), (15, 25, 1)]
    states = [state for first, last, state, _ in share.states for _ in range(first, last + 1)]
    assert states == [ACQUIRED] * 5 + [ARCHIVED] * 10 + [ACQUIRED] * 11
    assert share.complete == 10


def test_what_an_aborted_transaction_leaves_of_a_batch_is_free_when_its_lock_ends() -> None:
    share = Share(7, lock_duration_ms=30, max_in_flight=36)
    log = (6, 11), (12, 15), (16, 22), (23, 24)
    assert share.acquire(*log, records=22, exact=True, aborted=[(12, 15)]) == [(7, 11, 1), (16, 24, 1)]
    share.pass_time(31)
    got = share.acquire(*log, (25, 29), records=25, exact=True)
    assert got == [(7, 11, 2), (16, 24, 2), (25, 28, 1)]  # 18 were in flight: there is room for as many


def test_a_log_of_aborted_records_only_does_not_fill_what_may_be_in_flight() -> None:
    share = Share(max_in_flight=100)
    for first in range(0, 1000, 100):
        assert share.acquire((first, first + 99), aborted=[(first, first + 99)]) == []
    assert share.bounds == (1000, 1000)


# ---- the tables -------------------------------------------------------------------------------------------------


def test_the_tables_name_every_state() -> None:
    assert set(TRANSITIONS) == set(RecordState)
    assert set(SHARE_TRANSITIONS) == set(SharePartitionState)
    assert all(not TRANSITIONS[state] for state in TERMINAL)


def test_a_run_of_acquired_records_knows_its_size() -> None:
    assert Acquired(5, 9, 1).size == 5
