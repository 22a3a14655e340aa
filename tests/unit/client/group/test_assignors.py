"""The bytes of the consumer protocol, and who gets what."""

import struct
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.client.errors import ConfigError
from ottla.client.group.assignors import (
    CooperativeStickyAssignor,
    RangeAssignor,
    RoundRobinAssignor,
    StickyAssignor,
    make_assignors,
)
from ottla.client.group.protocol import (
    Subscription,
    decode_assignment,
    decode_generation,
    decode_sticky,
    decode_subscription,
    encode_assignment,
    encode_generation,
    encode_sticky,
    encode_subscription,
)
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.ids import TopicPartition


def tp(topic: str, *numbers: int) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in numbers]


def string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def int32(*values: int) -> bytes:
    return struct.pack(f">{len(values)}i", *values)


# -- bytes ----------------------------------------------------------------------------------------------------


def test_a_subscription_is_written_as_kafka_writes_it() -> None:
    subscription = Subscription(("b", "a"), tuple(tp("a", 1, 0)), 7, b"ud", "rack")
    expected = b"\x00\x03" + int32(2) + string("a") + string("b") + int32(2) + b"ud"
    expected += int32(1) + string("a") + int32(2, 0, 1) + int32(7) + string("rack")
    assert encode_subscription(subscription) == expected


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"\x00\x00" + int32(1) + string("t") + int32(-1), Subscription(("t",))),
        (
            b"\x00\x01" + int32(1) + string("t") + int32(0) + int32(1) + string("t") + int32(1, 4),
            Subscription(("t",), tuple(tp("t", 4)), -1, b""),
        ),
        (
            b"\x00\x02" + int32(1) + string("t") + int32(-1) + int32(0) + int32(9),
            Subscription(("t",), (), 9),
        ),
        # A version from the future: what we know comes first, what is behind it is left alone.
        (
            b"\x00\x09" + int32(1) + string("t") + int32(-1) + int32(0) + int32(9) + b"\xff\xff" + b"more",
            Subscription(("t",), (), 9),
        ),
    ],
)
def test_subscriptions_of_every_version_are_read(data: bytes, expected: Subscription) -> None:
    assert decode_subscription(data) == expected


def test_an_assignment_is_written_as_kafka_writes_it_and_read_in_every_version() -> None:
    body = int32(1) + string("t") + int32(2, 0, 3) + int32(-1)
    assert encode_assignment(tp("t", 3, 0)) == b"\x00\x03" + body
    for version in range(5):
        assert decode_assignment(struct.pack(">h", version) + body) == tp("t", 0, 3)
    assert decode_assignment(b"") == []


@pytest.mark.parametrize(
    "data", [b"\x00", b"\xff\xff\x00\x00", b"\x00\x00\x7f\xff\xff\xff", b"\x00\x01" + int32(3)]
)
def test_garbage_is_refused(data: bytes) -> None:
    for read in (decode_subscription, decode_assignment):
        with pytest.raises(KafkaError) as caught:
            read(data)
        assert caught.value.code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_what_sticky_assignors_tell_each_other() -> None:
    data = encode_sticky(tp("t", 1, 2), 4)
    assert data == int32(1) + string("t") + int32(2, 1, 2) + int32(4)
    assert decode_sticky(data) == (tp("t", 1, 2), 4)
    assert decode_sticky(data[:-4]) == (tp("t", 1, 2), -1), "version 0 has no generation"
    assert decode_sticky(int32(0)) == ([], -1)
    assert decode_sticky(int32(0, 5)) == ([], 5)
    assert decode_sticky(b"garbage that is no array") == ([], -1)
    assert decode_sticky(None) == ([], -1)
    assert encode_generation(5) == int32(5)
    assert decode_generation(int32(5)) == 5
    assert decode_generation(b"") == decode_generation(None) == -1


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9)), unique=True), st.integers(-1, 2**31 - 1)
)
def test_sticky_data_comes_back(held: list[tuple[str, int]], generation: int) -> None:
    partitions = sorted(TopicPartition(*entry) for entry in held)
    assert decode_sticky(encode_sticky(partitions, generation)) == (partitions, generation)
    assert decode_sticky(encode_sticky(partitions, generation)[:-4])[0] == partitions


# -- range and roundrobin: the examples of Kafka's documentation ----------------------------------------------


def subscribe(**topics: str) -> dict[str, Subscription]:
    return {member: Subscription(tuple(names.split())) for member, names in topics.items()}


def test_range() -> None:
    assignor = RangeAssignor()
    assert assignor.assign({"t0": 3, "t1": 3}, subscribe(c0="t0 t1", c1="t0 t1")) == {
        "c0": tp("t0", 0, 1) + tp("t1", 0, 1),
        "c1": tp("t0", 2) + tp("t1", 2),
    }
    assert assignor.assign({"t0": 2}, subscribe(c0="t0", c1="t0", c2="t0")) == {
        "c0": tp("t0", 0),
        "c1": tp("t0", 1),
        "c2": [],
    }
    assert assignor.assign({"t0": 1}, subscribe(c0="t0 absent", c1="t0")) == {"c0": tp("t0", 0), "c1": []}


def test_static_members_stand_first_in_order_of_their_instance_ids() -> None:
    members = {
        "a": Subscription(("t",)),
        "b": Subscription(("t",), instance_id="z"),
        "c": Subscription(("t",), instance_id="y"),
    }
    assert RangeAssignor().assign({"t": 3}, members) == {"c": tp("t", 0), "b": tp("t", 1), "a": tp("t", 2)}


def test_roundrobin() -> None:
    assignor = RoundRobinAssignor()
    assert assignor.assign({"t0": 3, "t1": 3}, subscribe(c0="t0 t1", c1="t0 t1")) == {
        "c0": tp("t0", 0, 2) + tp("t1", 1),
        "c1": tp("t0", 1) + tp("t1", 0, 2),
    }
    assert assignor.assign({"t0": 1, "t1": 2, "t2": 3}, subscribe(c0="t0", c1="t0 t1", c2="t0 t1 t2")) == {
        "c0": tp("t0", 0),
        "c1": tp("t1", 0),
        "c2": tp("t1", 1) + tp("t2", 0, 1, 2),
    }


# -- the sticky ones ------------------------------------------------------------------------------------------

TOPICS = "abcd"
counts = st.fixed_dictionaries({topic: st.integers(0, 6) for topic in TOPICS})
subscriptions = st.dictionaries(
    st.sampled_from([f"m{n}" for n in range(6)]),
    st.sets(st.sampled_from(TOPICS), min_size=1),
    min_size=1,
)


def check(
    assignment: dict[str, list[TopicPartition]], sizes: dict[str, int], wanted: dict[str, set[str]]
) -> None:
    """Every partition somebody may have has one owner, and no single move makes it more even."""
    given_out = Counter(tp for partitions in assignment.values() for tp in partitions)
    possible = {topic for topics in wanted.values() for topic in topics}
    assert given_out == Counter(
        TopicPartition(topic, number) for topic in possible for number in range(sizes.get(topic, 0))
    )
    for giver, partitions in assignment.items():
        for partition in partitions:
            assert partition.topic in wanted[giver]
            for taker, topics in wanted.items():
                if partition.topic in topics:
                    assert len(assignment[taker]) + 1 >= len(partitions), (giver, taker, partition)


@settings(max_examples=200, deadline=None)
@given(counts, subscriptions, subscriptions)
def test_sticky_is_whole_balanced_and_stays(
    sizes: dict[str, int], before: dict[str, set[str]], after: dict[str, set[str]]
) -> None:
    assignor = StickyAssignor()
    first = assignor.assign(sizes, {m: Subscription(tuple(topics)) for m, topics in before.items()})
    check(first, sizes, before)
    same = {
        m: Subscription(tuple(topics), user_data=encode_sticky(first[m], 1)) for m, topics in before.items()
    }
    assert assignor.assign(sizes, same) == first, "nothing moves without a reason"
    changed = {
        m: Subscription(tuple(topics), user_data=encode_sticky(first.get(m, []), 1))
        for m, topics in after.items()
    }
    check(assignor.assign(sizes, changed), sizes, after)


@settings(max_examples=200, deadline=None)
@given(counts, subscriptions, subscriptions)
def test_cooperative_sticky_hands_nothing_over_before_it_is_free(
    sizes: dict[str, int], before: dict[str, set[str]], after: dict[str, set[str]]
) -> None:
    assignor = CooperativeStickyAssignor()
    owned = assignor.assign(sizes, {m: Subscription(tuple(topics)) for m, topics in before.items()})
    for generation in range(1, 6):
        members = {
            m: Subscription(tuple(topics), tuple(owned.get(m, ())), generation) for m, topics in after.items()
        }
        new = assignor.assign(sizes, members)
        taken = {tp for m in after for tp in owned.get(m, ()) if tp not in new[m]}
        added = {tp for m in after for tp in new[m] if tp not in owned.get(m, ())}
        assert not taken & added
        is_settled = new == {m: owned.get(m, []) for m in after}
        owned = new
        if is_settled:
            break
    check(owned, sizes, after)


def test_one_leaves_and_the_others_keep_all_they_had() -> None:
    members = {f"m{n}": Subscription(("t",)) for n in range(4)}
    first = StickyAssignor().assign({"t": 12}, members)
    assert {len(partitions) for partitions in first.values()} == {3}
    left = {m: Subscription(("t",), user_data=encode_sticky(first[m], 1)) for m in members if m != "m2"}
    second = StickyAssignor().assign({"t": 12}, left)
    assert {len(partitions) for partitions in second.values()} == {4}
    assert all(set(first[m]) <= set(second[m]) for m in left)


def test_the_newest_claim_counts_and_equal_ones_cancel_each_other() -> None:
    held = {"old": (1, tp("t", 0, 1)), "new": (2, tp("t", 0))}
    members = {m: Subscription(("t",), user_data=encode_sticky(p, g)) for m, (g, p) in held.items()}
    assert StickyAssignor().assign({"t": 2}, members) == {"new": tp("t", 0), "old": tp("t", 1)}
    both = {m: Subscription(("t",), tuple(tp("t", 0)), 3) for m in ("a", "b")}
    assert CooperativeStickyAssignor().assign({"t": 1}, both) == {"a": tp("t", 0), "b": []}


def test_many_members_and_partitions_take_no_time_to_speak_of() -> None:
    members = {f"m{n:03}": Subscription(("a", "b")) for n in range(200)}
    out = StickyAssignor().assign({"a": 2000, "b": 1000}, members)
    assert {len(partitions) for partitions in out.values()} == {15}


# -- names ----------------------------------------------------------------------------------------------------


def test_assignors_by_their_names() -> None:
    names = [assignor.name for assignor in make_assignors("range, cooperative-sticky")]
    assert names == ["range", "cooperative-sticky"]
    java = "org.apache.kafka.clients.consumer.RoundRobinAssignor"
    assert [assignor.name for assignor in make_assignors([java, StickyAssignor])] == ["roundrobin", "sticky"]
    for wrong, told in (
        ("rang", "unknown assignor 'rang'"),
        ([], "names no assignor"),
        ("range,range", "twice"),
    ):
        with pytest.raises(ConfigError, match=told):
            make_assignors(wrong)
