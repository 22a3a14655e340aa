"""The sink's decision: into offsets and back, in pieces, damaged and incomplete."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.model.ids import TopicPartition
from ottla.spark.sink.commit import (
    MAX_TOLD_TOPICS,
    Committed,
    Decision,
    DecisionError,
    Entry,
    Span,
    decode,
    encode,
    from_offsets,
    to_offsets,
    union,
)

numbers = st.integers(0, 2**31 - 1)
offsets = st.integers(0, 2**62)
entries = st.builds(Entry, numbers, numbers, offsets, st.integers(0, 32_767), offsets)
topics = st.text(st.sampled_from("abc.-_0"), min_size=1, max_size=20)


@st.composite
def spans(draw: st.DrawFn) -> Span:
    first = draw(offsets)
    return Span(draw(topics), draw(numbers), first, first + draw(numbers))


decisions = st.builds(
    Decision,
    numbers,
    st.text(max_size=40),
    offsets,
    st.lists(entries, max_size=20, unique=True).map(sorted).map(tuple),
    st.lists(spans(), max_size=20, unique=True).map(sorted).map(tuple),
)


def places(count: int) -> list[TopicPartition]:
    return [TopicPartition("out", number) for number in range(count)]


def large(tasks: int, partitions: int) -> Decision:
    rng = random.Random(7)
    made = tuple(
        Entry(slot, 0, 5_000 + slot, rng.randrange(100), rng.randrange(10**6)) for slot in range(tasks)
    )
    where = tuple(Span("out", p, 10**9 + rng.randrange(10**6), 10**9 + 2 * 10**6) for p in range(partitions))
    return Decision(3, "query", 12, made, where)


@given(decisions)
def test_bytes_and_back(decision: Decision) -> None:
    assert decode(encode(decision)) == decision


@given(decisions)
def test_offsets_and_back(decision: Decision) -> None:
    committed = to_offsets(decision, places(4))
    assert {offset.offset for offset in committed.values()} == {decision.batch_id}
    assert from_offsets(committed) == decision


def test_no_offsets_are_no_decision() -> None:
    assert from_offsets({}) is None
    assert from_offsets({TopicPartition("out", 0): Committed(3, "somebody else's")}) is None


def test_pieces_fit_into_what_a_broker_takes() -> None:
    committed = to_offsets(large(2_000, 400), places(400))
    assert len(committed) > 1
    assert all(len(offset.metadata.encode()) <= 4_096 for offset in committed.values())
    assert from_offsets(committed) == large(2_000, 400)


def test_five_hundred_tasks_fit_on_one_partition() -> None:
    assert len(to_offsets(large(500, 1), places(1))) == 1


def test_too_many_tasks_are_refused_with_a_way_out() -> None:
    with pytest.raises(DecisionError, match=r"5000 tasks.*coalesce"):
        to_offsets(large(5_000, 1), places(1))


def test_an_older_decision_does_not_come_back_with_the_end_of_a_topic() -> None:
    def spans(*topics: str) -> tuple[Span, ...]:
        return tuple(Span(topic, partition, 0, 0) for topic in topics for partition in range(2))

    older = Decision(4, "q", 11, (), spans("b"))
    newer = Decision(5, "q", 12, (), spans("a", "b", "c"))
    offsets = {
        **to_offsets(older, [span.topic_partition for span in older.spans]),
        **to_offsets(newer, [span.topic_partition for span in newer.spans]),
    }
    for gone in ("a", "b", "c"):
        assert from_offsets({at: one for at, one in offsets.items() if at.topic != gone}) == newer
    many = Decision(6, "q", 13, (), spans(*map(str, range(100))))
    assert len(to_offsets(many, [span.topic_partition for span in many.spans])) == MAX_TOLD_TOPICS


def test_the_highest_number_is_in_force_whatever_is_left_of_older_ones() -> None:
    old = to_offsets(large(3_000, 1), places(20))
    new = large(1, 1)._replace(number=4)
    assert len(old) > 1
    assert from_offsets({**old, **to_offsets(new, places(20))}) == new


def test_a_missing_piece_is_an_error() -> None:
    committed = to_offsets(large(3_000, 1), places(20))
    del committed[TopicPartition("out", 1)]
    with pytest.raises(DecisionError, match="was deleted"):
        from_offsets(committed)


def test_damage_is_an_error() -> None:
    place = TopicPartition("out", 0)
    committed = to_offsets(large(5, 1), [place])[place]
    for metadata in (committed.metadata[:-5], committed.metadata.replace(" 3 0 ", " 4 0 ", 1)):
        with pytest.raises(DecisionError):
            from_offsets({place: Committed(0, metadata)})


@given(st.binary(max_size=200))
def test_noise_is_refused_and_nothing_else_is_raised(noise: bytes) -> None:
    import zlib

    with pytest.raises((ValueError, zlib.error)):
        decode(zlib.compress(b"\x01" + noise)[:-1])


def test_union_covers_all_of_a_partition() -> None:
    given_spans = [Span("b", 0, 5, 9), Span("a", 1, 3, 3), Span("b", 0, 1, 2), Span("a", 0, 0, 7)]
    assert union(given_spans) == (Span("a", 0, 0, 7), Span("a", 1, 3, 3), Span("b", 0, 1, 9))


def test_a_batch_is_settled_by_its_own_query_only() -> None:
    decision = large(1, 1)
    assert decision.settles("query", 12)
    assert decision.settles("query", 11)
    assert not decision.settles("query", 13)
    assert not decision.settles("other", 12)
