"""Fetch sessions: what a broker remembers of a consumer, and what it tells it again."""

from types import SimpleNamespace
from typing import cast

import pytest

from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import next_session_epoch
from ottla.replication.partition import Partition
from ottla.server.fetch_sessions import CONSUMER, FetchContext, FetchSessionCache, Watermarks
from ottla.wire.fast.fetch import Wanted

NOW = 1_000_000


def wanted(index: int, offset: int = 0) -> Wanted:
    return Wanted("topic", index, -1, offset, -1, -1, 1000)


def context(
    cache: FetchSessionCache,
    session_id: int,
    epoch: int,
    *asked: Wanted,
    now_ms: int = NOW,
    ids: bool = False,
) -> FetchContext:
    return cache.new_context(session_id, epoch, list(asked), [], ids, now_ms)


def read_by(context: FetchContext) -> list[tuple[int, int]]:
    """The partitions that a fetch looks at, and where."""
    assert context.session is not None
    found = context.session.look_at(
        context.session.in_order(only_news=context.incremental), lambda topic, index: None
    )
    return [(item.index, item.fetch_offset) for item in found]


def refusal(cache: FetchSessionCache, session_id: int, epoch: int, ids: bool = False) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        context(cache, session_id, epoch, ids=ids)
    return caught.value.code


def test_a_full_fetch_opens_a_session_even_if_it_asks_for_nothing_yet() -> None:
    cache = FetchSessionCache()
    opened = context(cache, 0, 0)
    assert opened.session_id != 0
    followed = context(cache, opened.session_id, 1, wanted(3))
    assert followed.incremental
    assert read_by(followed) == [(3, 0)]


def test_a_session_remembers_adds_and_forgets() -> None:
    cache = FetchSessionCache()
    session_id = context(cache, 0, 0, wanted(0), wanted(1)).session_id
    changed = cache.new_context(session_id, 1, [wanted(2), wanted(0, 9)], [("topic", [1])], False, NOW)
    assert read_by(changed) == [(0, 9), (2, 0)]


def test_what_is_forgotten_while_a_fetch_looks_is_not_news_again() -> None:
    """A fetch of very many looks in slices. Told of what it has forgotten a client refuses the whole answer."""
    replica = cast("Partition", SimpleNamespace(watchers=set(), end_watchers=set()))
    cache = FetchSessionCache()
    session = context(cache, 0, 0, wanted(0), wanted(1)).session
    assert session is not None
    to_look_at = session.in_order(only_news=False)
    later = cache.new_context(session.id, 1, [], [("topic", [1])], False, NOW)
    session.look_at(to_look_at, lambda topic, index: replica)
    for watcher in tuple(replica.watchers):
        watcher.progressed(replica)
    assert read_by(later) == [(0, 0)]
    cache.close(session.id)
    assert not replica.watchers


def test_a_session_without_partitions_ends() -> None:
    cache = FetchSessionCache()
    session_id = context(cache, 0, 0, wanted(0)).session_id
    ended = cache.new_context(session_id, 1, [], [("topic", [0])], False, NOW)
    assert (ended.session_id, ended.wanted) == (0, [])
    assert refusal(cache, session_id, 2) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_client_that_believes_something_else_is_refused() -> None:
    cache = FetchSessionCache()
    session_id = context(cache, 0, 0, wanted(0)).session_id
    assert refusal(cache, session_id, 2) is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert refusal(cache, session_id, 1, ids=True) is ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    assert refusal(cache, session_id + 1, 1) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert context(cache, session_id, 1).incremental  # nothing of that has harmed it


def test_a_full_cache_makes_room_only_of_what_was_silent_long_enough() -> None:
    cache = FetchSessionCache(max_sessions=1, eviction_ms=100)
    first = context(cache, 0, 0, wanted(0)).session_id
    assert context(cache, 0, 0, wanted(0), now_ms=NOW + 100).session_id == 0
    assert context(cache, 0, 0, wanted(0), now_ms=NOW + 101).session_id not in (0, first)
    assert len(cache) == 1


def test_only_news_are_told() -> None:
    session = context(FetchSessionCache(), 0, 0, wanted(0)).session
    assert session is not None
    marks = Watermarks(5, 0)
    assert session.update_response(wanted(0), 0, marks, has_records=False)
    assert not session.update_response(wanted(0), 0, marks, has_records=False)
    assert session.update_response(wanted(0), 0, marks, has_records=True)
    assert session.update_response(wanted(0), 0, Watermarks(6, 0), has_records=False)
    assert session.update_response(
        wanted(0), int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), Watermarks(-1, -1), has_records=False
    )
    assert session.update_response(wanted(0), 0, Watermarks(6, 0), has_records=False)


def test_marks_that_came_with_where_the_logs_part_are_told_again() -> None:
    """A follower cuts its log before it takes over the marks: those of the answer that told it to are not taken."""
    session = context(FetchSessionCache(), 0, 0, wanted(0)).session
    assert session is not None
    marks = Watermarks(5, 0)
    assert session.update_response(wanted(0), 0, marks, has_records=False, must_tell=True)
    assert session.update_response(wanted(0), 0, marks, has_records=False)
    assert not session.update_response(wanted(0), 0, marks, has_records=False)


def test_marks_are_told_again_in_a_new_leader_epoch() -> None:
    """A follower drops an answer for an epoch that is over by then, and the watermark with it."""
    cache = FetchSessionCache()
    in_epoch = [Wanted("topic", 0, epoch, 5, -1, -1, 1000) for epoch in range(4)]
    opened = context(cache, 0, 0, in_epoch[2])
    session = opened.session
    assert session is not None
    marks = Watermarks(5, 0)
    assert session.update_response(in_epoch[2], 0, marks, has_records=False)
    context(cache, opened.session_id, 1, in_epoch[2])
    assert not session.update_response(in_epoch[2], 0, marks, has_records=False)
    context(cache, opened.session_id, 2, in_epoch[3])
    assert session.update_response(in_epoch[3], 0, marks, has_records=False)
    assert not session.update_response(in_epoch[3], 0, marks, has_records=False)


def test_epochs_wrap_to_one() -> None:
    assert next_session_epoch(2**31 - 1) == 1


def by_follower(
    cache: FetchSessionCache, *asked: Wanted, session_id: int = 0, epoch: int = 0, now_ms: int = NOW
) -> FetchContext:
    reader = CONSUMER._replace(replica_id=2)
    return cache.new_context(session_id, epoch, list(asked), [], False, now_ms, reader)


def test_a_follower_takes_the_place_of_a_consumer_and_never_the_other_way_round() -> None:
    cache = FetchSessionCache(max_sessions=1, eviction_ms=100)
    consumer = context(cache, 0, 0, wanted(0), wanted(1)).session
    follower = by_follower(cache, wanted(0)).session
    assert consumer is not None
    assert follower is not None
    assert follower.follower is not None
    assert not consumer.is_open
    assert by_follower(cache, wanted(0), wanted(1)).session is None
    assert context(cache, 0, 0, wanted(0), wanted(1)).session is None
    # Not even when it is old, as long as it is used; one that is silent makes room for anybody.
    assert by_follower(cache, session_id=follower.id, epoch=1, now_ms=NOW + 101).session is follower
    assert context(cache, 0, 0, *map(wanted, range(9)), now_ms=NOW + 102).session is None
    assert follower.follower.is_open
    assert context(cache, 0, 0, wanted(0), now_ms=NOW + 202).session is not None
    assert not follower.follower.is_open


def test_an_old_session_makes_room_for_one_of_more_partitions() -> None:
    cache = FetchSessionCache(max_sessions=2, eviction_ms=100)
    small = context(cache, 0, 0, wanted(0)).session_id
    large = context(cache, 0, 0, wanted(0), wanted(1)).session_id
    for session_id in (small, large):
        context(cache, session_id, 1, now_ms=NOW + 101)
    assert context(cache, 0, 0, now_ms=NOW + 102).session is None
    assert context(cache, 0, 0, wanted(0), wanted(1), now_ms=NOW + 103).session is not None
    assert refusal(cache, small, 2) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert context(cache, large, 2, now_ms=NOW + 104).incremental
